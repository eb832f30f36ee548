"""The compiled twin of the engine for the configurations that sweeps and what-ifs use; same figures, bit for bit.

Needs numba (extra ``fast``). It covers the orders tail, last-started, oldest, largest, fewest-output, ratio and none,
every admission mode and watermark, recompute with whole or tail-block release, sessions, open and closed loop.
Protection, cooldown, breaker, queueing hysteresis, swap, priorities, value, explicit and random orders, growth
reserves, separate prefill steps and requeueing at the back run in plain Python only; ``not_covered`` says why.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

from kvdoctor.policy import Policy

from . import kernel
from .cost import CostModel, preset_cost
from .engine import SimulationError
from .limits import Limits
from .result import EngineRecord, Timeline
from .victims import protects_anyone
from .workload import Request

ORDERS = ("tail", "last-started", "oldest", "largest", "fewest-output", "ratio", "none")
_MODES = ("first_chunk", "full_prompt", "reserve")

_kernel: Callable[..., Any] | None = None


def available() -> bool:
    """Whether numba is installed. Does not import it."""
    return importlib.util.find_spec("numba") is not None


def ready() -> bool:
    """Whether the kernel is loaded in this process, so that using it costs nothing."""
    return _kernel is not None


def warm() -> bool:
    """Load the kernel (seconds to compile once, then cached on disk). False when numba is not installed."""
    if not available():
        return False
    if _kernel is None:
        one = Request(0.0, 1, 1, 1)
        run((one,), Policy(), pool_tokens=16, cost=preset_cost("a100-8b"), limits=Limits())
    return True


def not_covered(policy: Policy, limits: Limits) -> str | None:
    """Why this configuration runs in plain Python only, or None."""
    if policy.victim_order not in ORDERS:
        return f"victim.order = {policy.victim_order}"
    if protects_anyone(policy):
        return "protection or cooldown"
    if policy.restore != "recompute":
        return f"restore = {policy.restore}"
    if policy.breaker_mode != "none":
        return f"breaker.mode = {policy.breaker_mode}"
    if policy.queue_high < 1.0:
        return f"queue.high = {policy.queue_high}"
    if policy.reuse != "lru":
        return f"reuse = {policy.reuse}"
    if limits.growth is not None:
        return "a growth reserve"
    if not limits.mixed_prefill:
        return "prefill steps of their own"
    if limits.requeue != "front":
        return f"requeue = {limits.requeue}"
    return None


_cache: list[tuple[Sequence[Request], tuple[Any, ...]]] = []


def _columns(requests: Sequence[Request]) -> tuple[Any, ...]:
    """Columns of a load; the latest few are kept, because a sweep replays the same load again and again."""
    import numpy as np

    for known, columns in _cache:
        if known is requests:
            return columns
    count = len(requests)
    sessions: dict[str, int] = {}
    session = np.full(count, -1, np.int64)
    for at, one in enumerate(requests):
        if one.session is not None:
            session[at] = sessions.setdefault(one.session, len(sessions))
    columns = (
        np.fromiter((one.arrival_s for one in requests), np.float64, count),
        np.fromiter((one.prompt_tokens for one in requests), np.int64, count),
        np.fromiter((one.output_tokens for one in requests), np.int64, count),
        np.fromiter((one.max_tokens for one in requests), np.int64, count),
        np.fromiter((one.prefix for one in requests), np.int64, count),
        session,
        len(sessions),
    )
    _cache.append((requests, columns))
    del _cache[:-4]
    return columns


def run(
    requests: Sequence[Request],
    policy: Policy,
    *,
    pool_tokens: int,
    cost: CostModel,
    limits: Limits,
    clients: int | None = None,
) -> tuple[EngineRecord, Timeline, list[float]]:
    """Replay on one GPU: (record, timeline, arrival times), as the plain engine would leave them.

    The configuration must be covered and the requests must fit. Raises SimulationError for a live-lock,
    ModuleNotFoundError without numba.
    """
    import numpy as np

    replay = _load()
    arrival, prompt, output, most, prefix, session, sessions = _columns(requests)
    if clients is not None:
        arrival = np.full(len(requests), math.inf)
    block = policy.pool_block_tokens
    blocks = pool_tokens // block
    ints, floats, columns, lists = replay(
        arrival.copy(),
        prompt,
        output,
        most,
        prefix,
        session,
        sessions,
        0 if clients is None else clients,
        ORDERS.index(policy.victim_order),
        _MODES.index(policy.admission_mode),
        int(policy.admission_free_share * blocks),
        policy.release == "tail_blocks",
        limits.prefix_caching,
        limits.max_num_seqs,
        limits.max_batched_tokens,
        block,
        blocks,
        cost.overhead_s,
        cost.floor_s,
        cost.token_s,
        cost.context_s,
        cost.attention_s,
    )
    if ints[0]:
        raise SimulationError(
            f"live-lock: steps without end and without one generated token, {int(ints[9])} evictions under "
            f"{policy.victim_order} / {policy.admission_mode}"
        )
    record = EngineRecord(blocks=blocks, block_tokens=block)
    names = (
        "steps", "prefill_tokens", "decode_tokens", "sampled_tokens", "recompute_tokens", "found_tokens",
        "prefix_tokens", "output_tokens", "preemptions", "repeats", "chains", "near_done", "lost_tokens", "peak_blocks",
    )  # fmt: skip
    for name, value in zip(names, ints[1:].tolist(), strict=True):
        setattr(record, name, value)
    record.busy_s, record.recompute_s, record.block_seconds = floats.tolist()
    record.finished = len(requests)
    (
        record.started_s,
        record.first_token_s,
        record.ended_s,
        record.evicted_s,
        record.readmitted_s,
        record.freed_s,
        record.longest_gap_s,
    ) = (column.tolist() for column in columns[:7])
    record.evictions = columns[7].tolist()
    sent = columns[8].tolist()
    who, waits, works, remaining, points = lists
    record.stalls = list(zip(who.tolist(), waits.tolist(), works.tolist(), strict=True))
    record.victim_remaining = remaining.tolist()
    timeline = Timeline()
    timeline.points = [(at, int(used), int(waiting), int(running)) for at, used, waiting, running in points.tolist()]
    return record, timeline, sent


def _load() -> Callable[..., Any]:
    global _kernel
    if _kernel is None:
        import numpy

        # The kernel is plain functions that see each other and numpy as globals; compiling them replaces those globals.
        kernel.np = numpy
        for name in kernel.HELPERS:
            setattr(kernel, name, _compiled(getattr(kernel, name)))
        _kernel = _compiled(kernel.replay)
    return _kernel


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    try:
        compiled: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:
        # Neither the package nor a user folder can be written to: compile in memory.
        compiled = numba.njit(function)
    return compiled
