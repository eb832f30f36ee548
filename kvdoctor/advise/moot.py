"""Levers that cannot move what is short on this server: they are left out of the advice, or their place is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvdoctor.engines.base import Args, Engine, Lever, lever_for
from kvdoctor.facts import FactSet, Known
from kvdoctor.findings import Action, Turn
from kvdoctor.frozen import frozen

_UNSET = frozenset({"", "0", "0.0", "none", "null", "false", "off"})


@frozen
class Seen:
    """What decides whether a lever can do anything: the engine's entry for it, settings and facts of this run."""

    entry: Lever
    engine: Engine | None
    version: str | None
    args: Args
    facts: FactSet
    beside: bool
    """A cache tier of another program stands beside the server."""

    def setting(self, name: str) -> str | None:
        """A canonical setting that was given, None where it was not or is a way to say no."""
        keys = (*self.engine.canonical_args.get(name, ()), name) if self.engine is not None else (name,)
        value = next((self.args[k] for k in keys if k in self.args), "")
        return None if value.lower() in _UNSET else value


def moot(turn: Turn, seen: Seen) -> bool:
    """Nothing comes of this lever here, as far as it is known; or it is in force with nothing to turn."""
    if seen.entry.flag is None and seen.entry.default == "always":
        return True
    test = _TESTS.get(turn.lever)
    return test is not None and test(turn, seen)


def forced(action: Action, seen: Seen) -> Action | None:
    """The setting that fixes the pool's size, in place of a share or data type that does nothing beside it."""
    if action.lever not in ("kv.pool_share", "kv.dtype") or seen.engine is None:
        return None
    share = lever_for(seen.engine, "kv.pool_share", seen.version)
    if share is None or share.flag is None or share.margin:
        # here the pool is a number of tokens by nature: nothing is overruled by it, and a smaller type makes it fit
        return None
    for name, fixes in _FIXED.items():
        if seen.setting(name) is None or action.lever not in fixes or seen.engine is None:
            continue
        key = next((k for k in (*seen.engine.canonical_args.get(name, ()), name) if k in seen.args), name)
        entry = lever_for(seen.engine, "kv.pool_bytes", seen.version)
        own = entry is not None and entry.setting in (name, key)
        flag = entry.flag if entry is not None and own and entry.flag is not None else f"--{key.replace('_', '-')} N"
        return replace(
            action,
            lever="kv.pool_bytes",
            flag=flag,
            start=seen.args[key],
            to=None,
            direction="down" if action.direction == "down" else "up",
            effect=_FORCED,
            cost="Without it the pool gets what weights and activations leave of the engine's share.",
            next_limit="device memory",
            instead="",
            why="a fixed size overrules what the share would give",
        )
    return None


_FORCED = "It fixes the size of the pool, so neither the engine's share of the device nor a smaller data type changes it: remove it, or turn it."
_FIXED: Mapping[str, tuple[str, ...]] = {
    "pool_blocks": ("kv.pool_share", "kv.dtype"),
    "pool_tokens": ("kv.pool_share", "kv.dtype"),
    # so many bytes hold more tokens of a smaller type
    "pool_bytes": ("kv.pool_share",),
}
"""What fixes the pool's size, and the levers that do nothing then."""


def _number(fact: object) -> float | None:
    return float(fact.hi) if isinstance(fact, Known) and not isinstance(fact.hi, str) else None


def _below_zero(facts: FactSet) -> bool:
    fact = facts["start.negative_kv"]
    return isinstance(fact, Known) and fact.lo is True


def _share(turn: Turn, seen: Seen) -> bool:
    """A lower share helps nothing that is not counted in it, and one below the weights starts nothing."""
    if turn.direction != "down":
        return False
    facts = seen.facts
    site = facts.text("oom.site")
    if site in ("weights_load", "wake_up"):
        return True
    laid_out = any(isinstance(facts[name], Known) for name in ("kv.pool_tokens", "kv.pool_bytes", "mem.kv_pool"))
    early = facts["oom.before_serving"]
    if site in ("prefill", "multimodal") and isinstance(early, Known) and early.lo is True and not laid_out:
        return True
    to = _number(turn.to)
    weights, total = _number(facts["mem.weights"]), _number(facts["mem.total"])
    return to is not None and (to <= 0 or (weights is not None and total is not None and to * total <= weights))


def _no_pool_at_all(turn: Turn, seen: Seen) -> bool:
    """Tokens of another number or size need no less than nothing."""
    return turn.direction != "up" and _below_zero(seen.facts)


def _graphs(turn: Turn, seen: Seen) -> bool:
    if turn.direction not in ("down", "off"):
        return False
    eager = seen.setting("eager")
    if eager is not None and eager.lower() in ("true", "1", "yes"):
        return True
    if seen.facts.text("start.error") != "pool_too_small":
        return False
    # graphs that were not taken off before the pool cannot be what it lacks
    taken, have = _number(seen.facts["start.graphs_bytes"]), _number(seen.facts["start.have_bytes"])
    need = _number(seen.facts["start.need_bytes"])
    if taken is None or have is None:
        return True
    return taken < (need if need is not None and have >= 0 else 0.0) - have


def _no_tier(turn: Turn, seen: Seen) -> bool:
    """A second tier that nobody set up can be neither made smaller nor switched off."""
    shrinks = turn.direction in ("down", "off") or (isinstance(turn.to, str) and turn.to.startswith("off"))
    if not shrinks or seen.beside or not seen.args:
        return False
    default = (seen.entry.default or "0").split()[0].rstrip(";,")
    return (
        seen.entry.flag is None or (seen.setting(seen.entry.setting) is None and not default.replace(".", "").strip("0").isdigit())
    ) and seen.setting("connector") is None  # fmt: skip


_TESTS: Mapping[str, Callable[[Turn, Seen], bool]] = {
    "kv.pool_share": _share,
    "mem.max_model_len": _no_pool_at_all,
    "kv.dtype": _no_pool_at_all,
    "mem.graphs": _graphs,
    "kv.offload_bytes": _no_tier,
}
