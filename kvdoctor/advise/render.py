"""A policy in the flags of one engine version, key by key, or that it cannot be had there and what comes closest."""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.engines.base import Engine, Lever, Scheduler, lever_for
from kvdoctor.findings import Action
from kvdoctor.frozen import frozen
from kvdoctor.policy import Policy


@frozen
class _Key:
    """The lever a policy key is turned by. ``exact``: the lever's flag can mean just this key."""

    lever: str
    exact: bool = True


_KEYS: Mapping[str, _Key] = {
    "admission.mode": _Key("admission.full_prompt"),
    "admission.free_share": _Key("admission.free_share"),
    "victim.order": _Key("victim.order"),
    "victim.explicit": _Key("victim.order", exact=False),
    "victim.weights": _Key("victim.order", exact=False),
    "protect.near_completion_tokens": _Key("victim.protect", exact=False),
    "protect.near_completion_share": _Key("victim.protect", exact=False),
    "protect.long_tokens": _Key("victim.protect", exact=False),
    "protect.priority_at_most": _Key("victim.protect", exact=False),
    "cooldown.mode": _Key("victim.cooldown", exact=False),
    "cooldown.seconds": _Key("victim.cooldown", exact=False),
    "release": _Key("prefix.enable"),
    "restore": _Key("kv.offload_bytes", exact=False),
    "restore.gb_per_s": _Key("kv.offload_bytes", exact=False),
    "queue.high": _Key("sched.max_queue", exact=False),
    "queue.low": _Key("sched.max_queue", exact=False),
    "breaker.mode": _Key("sched.max_queue", exact=False),
    "breaker.evictions_per_s": _Key("sched.max_queue", exact=False),
    "breaker.recompute_share": _Key("sched.max_queue", exact=False),
    "breaker.per_finished": _Key("sched.max_queue", exact=False),
    "breaker.floor": _Key("sched.max_queue", exact=False),
    "fallback": _Key("sched.max_queue", exact=False),
    "pool.kind": _Key("kv.block_tokens", exact=False),
    "pool.block_tokens": _Key("kv.block_tokens"),
    "pool.tiers_mib": _Key("kv.block_tokens", exact=False),
    "pool.preallocate": _Key("kv.block_tokens", exact=False),
    "reuse": _Key("prefix.enable", exact=False),
    "reuse.ttl_s": _Key("prefix.enable", exact=False),
}
"""Every policy key and the lever nearest to it."""


def render_policy(policy: Policy, engine: Engine, version: str | None, now: Policy | None = None) -> list[Action]:
    """One action per key that ``policy`` sets (apart from the stock policy) and the server does not do now.

    ``now`` is the policy in force; without it, what this version does by default.

    An action has a flag where the version can be set to exactly that; otherwise ``instead`` says that it cannot and names
    what comes closest. A detail of a mode (the seconds of a cooldown, the weights of an order) follows its mode's action.
    """
    found = engine.scheduler(version, {})
    scheduler = found if isinstance(found, Scheduler) else None
    if now is None:
        now = scheduler.policy if scheduler is not None else Policy()
    out: list[Action] = []
    said: set[str] = set()
    wishes = Policy().differences(policy)
    for key, (start, to) in now.differences(policy).items():
        if key not in wishes or (key == "victim.order" and to == "none" and policy.admission_mode == "reserve"):
            # what a reservation admits is never evicted: that wish is part of the other
            continue
        group = key.split(".")[0]
        wanted = _KEYS[key]
        # one sentence per lever that cannot be had: its keys are one wish
        if not wanted.exact and f"{group}/{wanted.lever}" in said:
            continue
        said.add(f"{group}/{wanted.lever}")
        out.append(_render(key, start, to, wanted, engine, version, scheduler))
    return out


def _render(
    key: str, start: object, to: object, wanted: _Key, engine: Engine, version: str | None, scheduler: Scheduler | None
) -> Action:
    lever = "admission.reserve_output" if key == "admission.mode" and to == "reserve" else wanted.lever
    entry = lever_for(engine, lever, version)
    if entry is not None and entry.flag is not None and _means(key, to, wanted, scheduler):
        on_off = key in ("admission.mode", "release")
        on = to in ("full_prompt", "reserve", "tail_blocks")
        value = ("on" if on else "off") if on_off else f"{to:g}" if isinstance(to, (int, float)) else str(to)
        direction = value if on_off else "set"
        return Action(
            lever, entry.flag, entry.default, value, direction, entry.effect, entry.cost, entry.next_limit, entry.verify,
            why=f"{key} = {to}",
        )  # fmt: skip
    return Action(
        lever, None, str(start), None, "set", "", "", "", "",
        instead=f"{key} = {to} cannot be set on {engine.title}{f' {version}' if version else ''}. {_closest(entry)}",
        why=f"{key} = {to}",
    )  # fmt: skip


def _means(key: str, to: object, wanted: _Key, scheduler: Scheduler | None) -> bool:
    """Whether the flag of this version's lever can mean exactly this value of the key."""
    if not wanted.exact:
        return False
    if key == "victim.order":
        return to == "priority"
    if key in ("admission.free_share", "admission.mode"):
        if to == "reserve":
            return True
        return scheduler is not None and wanted.lever in scheduler.turns
    return True


def _closest(entry: Lever | None) -> str:
    if entry is None:
        return "Nothing there comes close."
    if entry.flag is None:
        return f"Instead: {entry.instead}" if entry.instead else "Nothing there comes close."
    return f"Closest: {entry.flag}. {entry.effect}".strip()
