"""How many bytes of the device a lever frees, from what was seen: one sentence for the plan, or that it cannot be told.

Only where memory is short (an out-of-memory error, or a start refused for the pool). All figures are estimates from facts
of this run; the start-up lines after the change give the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kvdoctor.facts import FactSet, Known

STEP = 0.01
"""The step in which a share of the device is usually turned."""

UNTOLD: Mapping[str, str] = {
    "mem.graphs": "the memory of the CUDA graphs",
    "sched.batch_tokens": "the activation peak",
    "mem.prefill_chunk": "the activation peak",
    "kv.pool_share": "the size of the device",
    "mem.allocator_conf": "what is reserved and not allocated",
    "sched.max_running": "what a sequence takes of the peak",
    "mem.lora_slots": "what an adapter takes",
    "mem.multimodal_limit": "what an image, video or audio takes",
    "mem.logprobs_cap": "what the log probabilities take",
}
"""Levers that free device memory, and the figure that would tell how much."""


def frees(lever: str, direction: str, facts: FactSet, *, of_free: bool = False, switched: bool = False) -> str:
    """One sentence about the bytes the lever moves; empty where memory is not short or the lever frees none.

    ``of_free``: the engine's share is one of the memory free when the pool is laid out. ``switched``: its flag has states in
    this direction, no amounts.
    """
    if not _short(facts):
        return ""
    tell = _TELL.get(lever)
    said = _share(direction, facts, of_free) if lever == "kv.pool_share" else ""
    if tell is not None and not (switched and tell is _peak):
        said = tell(direction, facts)
    if not said and lever in UNTOLD and direction != "up":
        return f"How many bytes it frees is not known: nothing tells {UNTOLD[lever]}."
    return said


def _short(facts: FactSet) -> bool:
    count, started = facts.number("oom.count"), facts.text("start.error")
    return bool(count) or started in ("pool_too_small", "free_below_fraction", "memory_race")


def _size(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 0.1 * 2**30 else f"{value / 2**20:.0f} MiB"


def _bytes(facts: FactSet, *names: str) -> float | None:
    """The upper end of the first of these facts that is known and above 0."""
    for name in names:
        fact = facts[name]
        if isinstance(fact, Known) and not isinstance(fact.hi, str) and float(fact.hi) > 0:
            return float(fact.hi)
    return None


def _share(direction: str, facts: FactSet, of_free: bool) -> str:
    total = _bytes(facts, "mem.total")
    if total is None:
        return ""
    base, at_most = (total, "") if not of_free else _free_base(total, facts)
    step = _size(STEP * base)
    if direction == "up":
        return f"Each {STEP:g} of it gives the engine {at_most}{step} more."
    asked, free = _bytes(facts, "oom.requested"), facts.number("oom.free")
    if asked is None or free is None or asked <= free:
        return f"Each {STEP:g} of it frees {at_most}{step}."
    steps = math.ceil((asked - free) / (STEP * base))
    return (
        f"Each {STEP:g} of it frees {at_most}{step}; the failed request lacked {_size(asked - free)}: "
        f"at least {steps * STEP:g} less."
    )


def _free_base(total: float, facts: FactSet) -> tuple[float, str]:
    """The memory that was free when the pool was laid out, and how sure that is: the pool tells it with its share."""
    pool, share = _bytes(facts, "mem.kv_pool", "kv.pool_bytes"), _bytes(facts, "mem.fraction")
    if pool is not None and share is not None and pool <= share * total:
        return pool / share, ""
    return total - min(_bytes(facts, "mem.weights") or 0.0, total / 2), "at most "


def _graphs(direction: str, facts: FactSet) -> str:
    held = _bytes(facts, "mem.graphs", "start.graphs_bytes")
    return "" if held is None else f"Frees at most {_size(held)}, what the graphs hold."


def _allocator(direction: str, facts: FactSet) -> str:
    gap = _bytes(facts, "oom.unallocated", "mem.allocator_gap")
    return "" if gap is None else f"Makes at most {_size(gap)} usable that is reserved and not allocated."


def _peak(direction: str, facts: FactSet) -> str:
    peak = _bytes(facts, "mem.activations")
    return (
        ""
        if peak is None or direction != "down"
        else f"Half of it frees at most {_size(peak / 2)} of the activation peak."
    )


def _orphans(direction: str, facts: FactSet) -> str:
    held = _bytes(facts, "mem.orphan_bytes")
    return "" if held is None else f"Frees {_size(held)}."


def _tenants(direction: str, facts: FactSet) -> str:
    held = _bytes(facts, "oom.foreign", "mem.foreign")
    return "" if held is None else f"Frees {_size(held)}, what others hold."


def _cap(direction: str, facts: FactSet) -> str:
    cap, total = _bytes(facts, "oom.cap"), _bytes(facts, "mem.total")
    return "" if cap is None or total is None or cap >= total else f"At most {_size(total - cap)} lie above the cap."


def _layout(direction: str, facts: FactSet) -> str:
    weights = _bytes(facts, "mem.weights")
    return "" if weights is None else f"Over twice the devices each holds {_size(weights / 2)} less of the weights."


_TELL: Mapping[str, Callable[[str, FactSet], str]] = {
    "mem.graphs": _graphs,
    "mem.allocator_conf": _allocator,
    "sched.batch_tokens": _peak,
    "mem.prefill_chunk": _peak,
    "host.kill_orphan": _orphans,
    "host.separate_tenants": _tenants,
    "mem.process_cap": _cap,
    "topo.tp": _layout,
}
