"""What a replay produced: per-request records of one engine, and the figures over all engines that a table shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from kvdoctor.frozen import frozen

from .victims import Candidate

NEAR_TOKENS = 512
NEAR_SHARE = 0.25
"""A victim was nearly done when remaining < min(512, computed / 4)."""

_POINTS = 400


class Timeline:
    """Pool usage, queue and running over time, thinned so that it never exceeds a few hundred points."""

    __slots__ = ("_every", "_next", "points")

    def __init__(self) -> None:
        self.points: list[tuple[float, int, int, int]] = []
        self._every = 0.05
        self._next = 0.0

    def sample(self, now_s: float, used_blocks: int, waiting: int, running: int) -> None:
        """Note the state when the last point is old enough."""
        if now_s < self._next:
            return
        self.points.append((now_s, used_blocks, waiting, running))
        if len(self.points) >= _POINTS:
            self.points = self.points[::2]
            self._every *= 2.0
        self._next = now_s + self._every


@dataclass(slots=True)
class EngineRecord:
    """Counters and one entry per request, as the engine writes them. NaN = never happened."""

    blocks: int
    block_tokens: int
    steps: int = 0
    busy_s: float = 0.0
    recompute_s: float = 0.0
    swap_s: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0
    recompute_tokens: int = 0
    found_tokens: int = 0
    prefix_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0
    repeats: int = 0
    chains: int = 0
    overrides: int = 0
    near_done: int = 0
    lost_tokens: int = 0
    block_seconds: float = 0.0
    peak_blocks: int = 0
    victim_remaining: list[int] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    evicted_s: list[float] = field(default_factory=list)
    readmitted_s: list[float] = field(default_factory=list)
    freed_s: list[float] = field(default_factory=list)
    longest_gap_s: list[float] = field(default_factory=list)
    evictions: list[int] = field(default_factory=list)
    thrown_out: set[int] = field(default_factory=set)
    stalls: list[tuple[int, float, float]] = field(default_factory=list)
    """(request, seconds waiting for readmission, seconds until its next token) of every eviction after a first token."""

    def add(self) -> None:
        """One more request."""
        for column in (self.started_s, self.first_token_s, self.ended_s, self.evicted_s, self.readmitted_s):
            column.append(math.nan)
        self.freed_s.append(math.nan)
        self.longest_gap_s.append(0.0)
        self.evictions.append(0)

    def evict(self, now_s: float, victim: Candidate, overridden: bool, chained: bool, repeat_window_s: float) -> None:
        """Count an eviction."""
        index = victim.request
        self.preemptions += 1
        self.lost_tokens += victim.computed
        remaining = victim.remaining
        self.victim_remaining.append(remaining)
        if remaining < NEAR_TOKENS and remaining < NEAR_SHARE * victim.computed:
            self.near_done += 1
        if self.evictions[index] and now_s - self.evicted_s[index] <= repeat_window_s:
            self.repeats += 1
        if chained:
            self.chains += 1
        if overridden:
            self.overrides += 1
        self.evictions[index] += 1
        self.evicted_s[index] = now_s

    def resumed(self, index: int, now_s: float) -> None:
        """A victim that had output got its next token."""
        gone, back = self.evicted_s[index], self.readmitted_s[index]
        self.stalls.append((index, back - gone, now_s - back))
        if now_s - gone > self.longest_gap_s[index]:
            self.longest_gap_s[index] = now_s - gone

    def use(self, seconds: float, before: int, after: int) -> None:
        """Add ``seconds`` with the pool going from ``before`` to ``after`` used blocks."""
        self.block_seconds += 0.5 * seconds * (before + after)
        if after > self.peak_blocks:
            self.peak_blocks = after


@frozen
class Goal:
    """What counts as good: first token within ``ttft_s`` and no gap between tokens above ``stall_s``. Seconds."""

    ttft_s: float = 10.0
    stall_s: float = 2.0


@frozen
class Result:
    """Figures of one replay. Times are seconds, shares 0..1; None where there was nothing to take a figure from."""

    requests: int
    finished: int
    aborted: int
    gpus: int
    pool_tokens: int
    makespan_s: float
    busy_s: float
    steps: int
    preemptions: int
    preemptions_per_s: float
    preemptions_per_finished: float | None
    hit_twice: int
    most_evictions: int
    repeats: int
    chain_evictions: int
    overrides: int
    near_done: int
    victim_remaining_p50: float | None
    recompute_tokens: int
    recompute_token_share: float
    recompute_prefill_share: float | None
    recompute_time_share: float
    found_tokens: int
    prefix_tokens: int
    swap_s: float
    prefill_tokens: int
    decode_tokens: int
    output_tokens: int
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    stall_p50_s: float | None
    stall_p99_s: float | None
    eviction_wait_p50_s: float | None
    eviction_wait_p99_s: float | None
    eviction_recompute_p50_s: float | None
    eviction_recompute_p99_s: float | None
    goodput: float
    pool_usage_mean: float
    pool_usage_max: float
    gpu_output_tokens: tuple[int, ...]
    timeline: tuple[tuple[float, float, int, int], ...]
    """(seconds, pool usage 0..1, waiting, running); of several GPUs the first."""
    evicted: tuple[int, ...]
    """Indices of the requests that were evicted at least once, in order of arrival."""
    ttft_s: tuple[float, ...]
    """Time to first token per request in order of arrival, NaN when it had none."""
    longest_gap_s: tuple[float, ...]
    """Longest time between two tokens per request in order of arrival."""

    def figures(self) -> dict[str, int | float | None]:
        """The single figures by name, without the per-request columns: a row of a table."""
        names = (one.name for one in fields(self) if one.name not in _COLUMNS)
        return {name: getattr(self, name) for name in names}


_COLUMNS = ("gpu_output_tokens", "timeline", "evicted", "ttft_s", "longest_gap_s")


def percentile(values: Sequence[float], share: float) -> float | None:
    """The ``share`` quantile (0..1) of sorted ``values`` by linear interpolation; None when there are none."""
    if not values:
        return None
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def summarise(
    records: Sequence[EngineRecord],
    timeline: Timeline,
    arrivals: Sequence[Sequence[float]],
    order: Sequence[tuple[int, int]],
    goal: Goal,
) -> Result:
    """One Result from the records of all engines.

    ``arrivals``: per engine, the arrival times; ``order``: per request of the load, (engine, index there).
    """
    ttft: list[float] = []
    gaps: list[float] = []
    evictions: list[int] = []
    good = 0
    first_arrival, last_end = math.inf, 0.0
    for engine, index in order:
        record = records[engine]
        wait = record.first_token_s[index] - arrivals[engine][index]
        gap = record.longest_gap_s[index]
        ended = record.ended_s[index]
        ttft.append(wait)
        gaps.append(gap)
        evictions.append(record.evictions[index])
        first_arrival = min(first_arrival, arrivals[engine][index])
        if ended > last_end:
            last_end = ended
        # An aborted request may have been quick until it was thrown out; it is not good.
        if wait <= goal.ttft_s and gap <= goal.stall_s and index not in record.thrown_out:
            good += 1
    makespan = max(last_end - first_arrival, 0.0)
    finished = _total(record.finished for record in records)
    preemptions = _total(record.preemptions for record in records)
    prefill = _total(record.prefill_tokens for record in records)
    decode = _total(record.decode_tokens for record in records)
    again = _total(record.recompute_tokens for record in records)
    busy = math.fsum(record.busy_s for record in records)
    output = _total(record.output_tokens for record in records)
    waits = sorted(wait for record in records for _, wait, _ in record.stalls)
    works = sorted(work for record in records for _, _, work in record.stalls)
    left = sorted(remaining for record in records for remaining in record.victim_remaining)
    firsts = sorted(wait for wait in ttft if not math.isnan(wait))
    ordered = sorted(gaps)
    capacity = math.fsum(record.blocks * makespan for record in records)
    return Result(
        requests=len(order),
        finished=finished,
        aborted=_total(record.aborted for record in records),
        gpus=len(records),
        pool_tokens=records[0].blocks * records[0].block_tokens,
        makespan_s=makespan,
        busy_s=busy,
        steps=_total(record.steps for record in records),
        preemptions=preemptions,
        preemptions_per_s=preemptions / makespan if makespan else 0.0,
        preemptions_per_finished=preemptions / finished if finished else None,
        hit_twice=sum(1 for count in evictions if count >= 2),
        most_evictions=max(evictions),
        repeats=_total(record.repeats for record in records),
        chain_evictions=_total(record.chains for record in records),
        overrides=_total(record.overrides for record in records),
        near_done=_total(record.near_done for record in records),
        victim_remaining_p50=percentile(left, 0.5),
        recompute_tokens=again,
        recompute_token_share=again / (prefill + decode),
        recompute_prefill_share=again / prefill if prefill else None,
        recompute_time_share=math.fsum(record.recompute_s for record in records) / busy,
        found_tokens=_total(record.found_tokens for record in records),
        prefix_tokens=_total(record.prefix_tokens for record in records),
        swap_s=math.fsum(record.swap_s for record in records),
        prefill_tokens=prefill,
        decode_tokens=decode,
        output_tokens=output,
        tokens_per_s=output / makespan if makespan else 0.0,
        ttft_p50_s=percentile(firsts, 0.5),
        ttft_p99_s=percentile(firsts, 0.99),
        stall_p50_s=percentile(ordered, 0.5),
        stall_p99_s=percentile(ordered, 0.99),
        eviction_wait_p50_s=percentile(waits, 0.5),
        eviction_wait_p99_s=percentile(waits, 0.99),
        eviction_recompute_p50_s=percentile(works, 0.5),
        eviction_recompute_p99_s=percentile(works, 0.99),
        goodput=good / len(order),
        pool_usage_mean=math.fsum(record.block_seconds for record in records) / capacity if capacity else 0.0,
        pool_usage_max=max(record.peak_blocks / record.blocks for record in records),
        gpu_output_tokens=tuple(record.output_tokens for record in records),
        timeline=tuple(
            (at, used / records[0].blocks, waiting, running) for at, used, waiting, running in timeline.points
        ),
        evicted=tuple(at for at, count in enumerate(evictions) if count),
        ttft_s=tuple(ttft),
        longest_gap_s=tuple(gaps),
    )


def _total(values: Iterable[int]) -> int:
    return sum(values)
