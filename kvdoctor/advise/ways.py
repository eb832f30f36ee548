"""Effect, cost and next limit of a lever in the direction its usual text does not describe, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.engines.base import Lever, Way

WAYS: Mapping[tuple[str, str], Way] = {
    ("sched.max_running", "up"): Way(
        "More requests are computed at a time, so fewer wait.",
        "Each step takes longer, and more requests share the pool.",
        "time between tokens, then the pool",
    ),
    # what the share is one of, the engine's own text says
    ("kv.pool_share", "down"): Way("", "A smaller pool: fewer tokens fit at once.", "pool size"),
    ("kv.pool_share", "up"): Way(
        "",
        "Less is left for activations and for what nothing counts; too much ends in an out-of-memory error.",
        "device memory",
    ),
    ("mem.max_model_len", "up"): Way(
        "Longer requests are accepted.",
        "One request may hold more of the pool, and a pool that cannot hold one refuses to start.",
        "pool size",
    ),
    ("mem.graphs", "on"): Way(
        "Steps are replayed from captured graphs, so the processor has less to launch.",
        "The graphs hold device memory, and the start takes longer.",
        "device memory",
    ),
    ("kv.offload_bytes", "down"): Way(
        "Less host memory is set aside for what the pool evicts.",
        "What is not kept there is computed again.",
        "prefill of evicted prefixes",
    ),
    ("topo.tp", "down"): Way(
        "Fewer devices exchange data in every step; the others can serve another replica.",
        "Each device holds more of the weights, so its pool is smaller.",
        "device memory",
    ),
}


def way(entry: Lever, direction: str) -> Way:
    """What the entry does in this direction of the lever: its own words for it, the common ones, or its usual text."""
    own = Way(entry.effect, entry.cost, entry.next_limit)
    # a flag that is an amount left free, or one minus the lever, is described as it is turned
    common = None if entry.margin or entry.inverse else WAYS.get((entry.lever, direction))
    found = entry.ways.get(direction) or common
    if found is None or entry.flag is None:
        return own
    return Way(found.effect or own.effect, found.cost or own.cost, found.next_limit or own.next_limit)
