"""What another policy, twice the pool or a second GPU would have done to the load that was seen.

The window is rebuilt request by request: how many were there at its start, how many came between two samples, lengths
drawn from the server's own histograms, step costs from its own latencies. Replayed as it is, it must give the preemptions
that were counted; only then are the other replays worth a figure. Everything that had to be assumed is listed.

The work is bounded by a count of simulated requests, never by a clock, and the seed follows from the observation itself:
the same snapshot gives the same answer on every machine, redacted or not.
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

from kvdoctor.engines.base import Args, Engine, Scheduler, lever_for
from kvdoctor.facts import Fact, Known, Unknown, measured
from kvdoctor.findings import Watermark, WhatIf
from kvdoctor.frozen import frozen
from kvdoctor.policy import Policy
from kvdoctor.sim import (
    Bench,
    Cell,
    CostModel,
    Goal,
    GrowthReserve,
    Histogram,
    Limits,
    Request,
    SimulationError,
    TraceError,
    Workload,
    from_histograms,
)
from kvdoctor.sim import Engine as Server
from kvdoctor.sim.replay import WATERMARKS

Mode = Literal["auto", "full"]

BUDGET: Mapping[str, int] = {"auto": 20_000, "full": 100_000}
"""Simulated requests in all, over every cell and seed."""

RUNNING_SHARES = (0.75, 0.5, 0.35)
"""Limits on running sequences that are tried, as shares of the most that were seen running."""


@frozen
class _Effort:
    """How the budget is spent: loads to search on, loads to judge on, free shares and limits that are tried.

    The best setting is looked for on some loads and judged on others, so that no figure is the best of many tries.
    """

    search: int
    judge: int
    free_shares: tuple[float, ...]
    running_shares: tuple[float, ...]


EFFORTS = (
    _Effort(3, 5, WATERMARKS, RUNNING_SHARES),
    _Effort(1, 3, (0.0, 0.01, 0.02, 0.05), RUNNING_SHARES[:2]),
)
"""The second is for servers with so many requests in flight that the first could not hold them all."""

LONGER = 8
"""How many times the requests of the window a closed loop is replayed for, within the budget."""

COUNT_ERROR = 0.30
"""Stated error of a replayed preemption count: the simulator stays within it on recorded runs of real servers."""

TIME_ERROR = 0.30
"""Largest relative difference between the time the replay takes and the time the server took."""

FITS = 2
"""Times the step costs may be corrected by the pace of the window."""

MIN_FINISHED = 30
"""Requests that must have ended in the window."""

FACT_NAMES = (
    "whatif.reproduces",
    "whatif.asis",
    "whatif.policy",
    "whatif.more_kv",
    "whatif.more_gpu",
    "whatif.watermark",
)


@frozen
class Lengths:
    """A histogram of the window: cumulative ``(upper edge, count)`` with the last edge infinite, and the sum of values."""

    buckets: tuple[tuple[float, float], ...]
    total: float | None = None

    @property
    def count(self) -> float:
        """Values in it."""
        return self.buckets[-1][1] if self.buckets else 0.0

    @property
    def mean(self) -> float | None:
        """Mean of the values, None when the sum is not told or there are none."""
        return None if self.total is None or not self.count else self.total / self.count


@frozen
class Interval:
    """What happened between two samples: seconds (None: no clock), requests ended and preempted, in flight at its ends.

    ``usage`` is the share of the pool in use at its start, None when it is not told.
    """

    seconds: float | None
    finished: float
    preempted: float
    running: float
    waiting: float
    running_after: float
    waiting_after: float
    usage: float | None = None

    @property
    def before(self) -> float:
        """Requests in flight at its start."""
        return self.running + self.waiting

    @property
    def after(self) -> float:
        """Requests in flight at its end."""
        return self.running_after + self.waiting_after

    @property
    def arrived(self) -> float:
        """Requests that came in, from what ended and the change of what was in flight."""
        return max(0.0, self.finished + self.after - self.before)


@frozen
class Observed:
    """What a capture tells about one server's load and limits. None: not told. Lengths are tokens, times seconds.

    ``pool_tokens`` is the pool of one of the ``engines`` ranks. ``output_tokens`` generated in the window.
    """

    intervals: tuple[Interval, ...] = ()
    prompt: Lengths | None = None
    output: Lengths | None = None
    max_tokens: Lengths | None = None
    token_gap: Lengths | None = None
    prefill_tokens_per_s: float | None = None
    pool_tokens: int | None = None
    block_tokens: int | None = None
    engines: int = 1
    bytes_per_token: int | None = None
    max_running: int | None = None
    batch_tokens: int | None = None
    max_model_len: int | None = None
    prefix_caching: bool | None = None
    reused_share: float | None = None


@frozen
class Inputs:
    """All a replay is made from: the observation, the engine's table and settings, the facts of the gate."""

    observed: Observed
    engine: Engine | None
    version: str | None
    args: Args
    pressure: Fact
    preemptions: Fact
    waiting: Fact


@frozen
class Setting:
    """A lever turned in the replay: best value, the values that do as well, what it does, and what is in force now."""

    lever: str
    value: float
    lo: float
    hi: float
    effect: str
    next_limit: str
    present: float


@frozen
class WhatIfResult:
    """``whatif.*`` facts, rows and settings for the plan, and what was assumed. Rows and settings only where it reproduces.

    ``idle`` names the levers that were tried and do no more for this load than what is in force.
    """

    facts: Mapping[str, Fact]
    rows: tuple[WhatIf, ...] = ()
    settings: tuple[Setting, ...] = ()
    idle: tuple[str, ...] = ()
    watermark: Watermark | None = None
    policy: Mapping[str, object] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    say: str = ""
    simulated: int = 0


def replay(inputs: Inputs, *, mode: Mode = "auto", goal: Goal | None = None) -> WhatIfResult:
    """Replay the load when the gate is open: pressure, and somebody preempted or waiting. Never raises for odd input."""
    goal = Goal() if goal is None else goal
    closed = _gate(inputs)
    if closed is not None:
        return _nothing(closed)
    assert inputs.engine is not None
    scheduler = inputs.engine.scheduler(inputs.version, inputs.args)
    if isinstance(scheduler, str):
        return _nothing(Unknown(scheduler))
    lacking = _lacking(inputs.observed)
    if lacking is not None:
        return _nothing(lacking)
    try:
        return _Replay(inputs, scheduler, BUDGET[mode], goal).run()
    except (SimulationError, TraceError) as error:
        return _nothing(Unknown(f"the load cannot be replayed: {error}"))


@frozen
class Captured:
    """A captured load ready to be replayed: one workload per seed, the server, the policy in force, what was seen.

    ``problem`` says why the replay as it is does not give what was counted, None when it does.
    """

    loads: tuple[Workload, ...]
    bench: Bench
    policy: Policy
    engines: int
    preempted: float
    finished: float
    seconds: float | None
    problem: str | None
    assumed: tuple[str, ...]


def captured(inputs: Inputs, *, requests: int, seeds: int, goal: Goal | None = None) -> Captured | Unknown:
    """The load of a capture, at most ``requests`` of it, pressure or not. Raises nothing for odd input."""
    if inputs.engine is None:
        return Unknown("the engine is not known, so its scheduler cannot be replayed")
    scheduler = inputs.engine.scheduler(inputs.version, inputs.args)
    if isinstance(scheduler, str):
        return Unknown(scheduler)
    lacking = _lacking(inputs.observed)
    if lacking is not None:
        return lacking
    try:
        return _Replay(inputs, scheduler, requests, Goal() if goal is None else goal).captured(seeds)
    except (SimulationError, TraceError) as error:
        return Unknown(f"the load cannot be replayed: {error}")


def _nothing(reason: Unknown, *, assumed: tuple[str, ...] = ()) -> WhatIfResult:
    return WhatIfResult(dict.fromkeys(FACT_NAMES, reason), assumed=assumed, say=reason.reason)


def _gate(inputs: Inputs) -> Unknown | None:
    """Why no replay is run, None when one is."""
    pressure = inputs.pressure
    if isinstance(pressure, Unknown):
        return Unknown(f"no replay without known KV pressure: {pressure.reason}", pressure.hint)
    if pressure.hi is not True:
        return Unknown("no replay: the KV pool is not under pressure")
    hurt = [fact for fact in (inputs.preemptions, inputs.waiting) if isinstance(fact, Known) and _above_zero(fact)]
    if not hurt:
        return Unknown("no replay: nobody was preempted or had to wait in this window")
    if inputs.engine is None:
        return Unknown("the engine is not known, so its scheduler cannot be replayed")
    return None


def _above_zero(fact: Known) -> bool:
    return fact.span != "L" and not isinstance(fact.lo, str) and float(fact.lo) > 0


def _lacking(seen: Observed) -> Unknown | None:
    """What the telemetry does not tell and a replay needs."""
    if not seen.intervals:
        return Unknown(
            "a replay needs two scrapes that count finished requests, preemptions, running and waiting",
            "take scrapes of the metrics page some seconds apart (kvdoctor diagnose --url does)",
        )
    if seen.pool_tokens is None or seen.block_tokens is None:
        return Unknown("the size of the KV pool is not told", "add the start of the log or the full metrics page")
    if seen.prompt is None or seen.output is None:
        return Unknown("the lengths of requests are not told", "scrape the length histograms of the metrics page")
    finished = math.fsum(one.finished for one in seen.intervals)
    if finished < MIN_FINISHED:
        return Unknown(
            f"only {finished:.0f} requests ended in the window, a replay needs {MIN_FINISHED}", "take a longer --window"
        )
    return None


# --- the load ---------------------------------------------------------------------------------------------------------


@frozen
class _Stretch:
    """The part of the window that is replayed. ``clients``: a closed loop of so many, None for arrivals by the clock."""

    intervals: tuple[Interval, ...]
    clients: int | None
    running: int
    waiting: int
    requests: int
    finished: float
    preempted: float
    seconds: float | None


def _busy(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Without the idle ends."""
    lively = [at for at, one in enumerate(intervals) if one.before or one.after or one.finished or one.arrived]
    return tuple(intervals[lively[0] : lively[-1] + 1]) if lively else ()


def closed_loop(intervals: Sequence[Interval]) -> int | None:
    """Clients that each wait for their answer, when the number in flight stays put while requests come and go.

    Arrivals of independent users make it move by its square root; half of that, for half of the samples, and everybody
    served at least once, is taken as a closed loop.
    """
    levels = [one.after for one in intervals if one.after > 0]
    if len(levels) < 3:
        return None
    top = max(levels)
    steady = sum(1 for level in levels if top - level <= max(1.0, 0.5 * math.sqrt(top)))
    served = math.fsum(one.finished for one in intervals)
    return round(top) if steady >= 0.5 * len(levels) and served >= top and top >= 2 else None


def _stretch(intervals: Sequence[Interval], most: int) -> _Stretch | Unknown:
    """The run of intervals with the most preemptions that holds at most ``most`` requests."""
    busy = _busy(intervals)
    if not busy:
        return Unknown("nothing was served in the window")
    clients = closed_loop(busy)
    clocked = all(one.seconds is not None and one.seconds > 0 for one in busy)
    timeless = Unknown(
        "the samples carry no time, so the arrivals cannot be replayed", "name the files with an epoch, or scrape live"
    )
    if clients is None and not clocked:
        return timeless
    best: tuple[float, float, int, int] | None = None
    end, arrived = 0, 0.0
    for start in range(len(busy)):
        if end < start:
            end, arrived = start, 0.0
        while end < len(busy) and busy[start].before + arrived + busy[end].arrived <= most:
            arrived += busy[end].arrived
            end += 1
        if end > start:
            hit = math.fsum(one.preempted for one in busy[start:end])
            held = math.fsum(one.waiting for one in busy[start:end])
            rank = (hit, held, -start, end)
            if best is None or rank > best:
                best = rank
            arrived -= busy[start].arrived
    if best is None:
        return Unknown(
            f"more than {most} requests came between two samples: too many for the work allowed", "--what-if full"
        )
    part = busy[-best[2] : best[3]]
    requests = round(part[0].before + math.fsum(one.arrived for one in part))
    if clients is not None and requests <= clients:
        if not clocked:
            return timeless
        clients = None
    return _Stretch(
        part,
        clients,
        round(part[0].running),
        round(part[0].waiting),
        requests,
        math.fsum(one.finished for one in part),
        math.fsum(one.preempted for one in part),
        _busy_seconds(part) if clocked else None,
    )


def _busy_seconds(intervals: Sequence[Interval]) -> float:
    """Seconds the server took for what ended in these intervals.

    In an interval that begins or ends idle nobody knows when work began: its requests are counted at the speed of the others.
    """
    whole = [one for one in intervals if one.before > 0 and one.after > 0]
    took = math.fsum(one.seconds for one in whole if one.seconds is not None)
    ended = math.fsum(one.finished for one in whole)
    if ended <= 0 or took <= 0:
        return math.fsum(one.seconds for one in intervals if one.seconds is not None)
    return took * math.fsum(one.finished for one in intervals) / ended


def _histogram(lengths: Lengths) -> Histogram:
    """For drawing; leading edges that a length cannot have are merged into the first that it can."""
    buckets = [(edge, count) for edge, count in lengths.buckets if edge > 0]
    return Histogram.from_cumulative(buckets)


def _load(seen: Observed, part: _Stretch, seed: str, longest: int, count: int, pool: int) -> Workload:
    """One load: those in flight at the start, then the arrivals of every interval, with lengths drawn anew.

    ``count`` requests; more than the window held only in a closed loop, which simply goes on.
    """
    assert seen.prompt is not None
    assert seen.output is not None
    rng = random.Random(seed)
    drawn = from_histograms(
        rng,
        count,
        1.0,
        _histogram(seen.prompt),
        _histogram(seen.output),
        prompt_mean=seen.prompt.mean,
        output_mean=seen.output.mean,
        max_tokens=None if seen.max_tokens is None else _histogram(seen.max_tokens),
        longest=max(2, longest // 2),
        reused_share=_reused(seen),
        name="captured load",
    ).requests
    arrivals = [0.0] * (part.running + part.waiting)
    if part.clients is None:
        start, owed = 0.0, 0.0
        for one in part.intervals:
            assert one.seconds is not None
            owed += one.arrived
            count = min(round(owed), part.requests - len(arrivals))
            owed -= count
            begin, span = start, one.seconds
            arrivals += sorted(begin + rng.random() * span for _ in range(count))
            start += one.seconds
        arrivals += [start] * (part.requests - len(arrivals))
    else:
        arrivals = [0.0] * count
    requests: list[Request] = []
    # who is met at work is met in proportion to the time it works
    met = rng.choices(drawn, [one.output_tokens for one in drawn], k=part.running)
    usage = part.intervals[0].usage
    held = None if usage is None else usage * pool * seen.engines
    under_way = _under_way(met, [rng.random() for _ in met], held)
    for at, (when, shape) in enumerate(zip(arrivals, drawn, strict=False)):
        if at < part.running:
            shape = under_way[at]
        requests.append(replace(shape, arrival_s=when))
    return Workload("captured load", tuple(requests))


def _reused(seen: Observed) -> float:
    """Share of prompt tokens that sessions repeat; 0 where it is not told or reuse is off."""
    share = seen.reused_share
    return 0.0 if share is None or not seen.prefix_caching else min(max(share, 0.0), 0.9)


def _under_way(shapes: Sequence[Request], done: Sequence[float], held: float | None) -> list[Request]:
    """Requests that run already when the window begins: the share ``done`` of each output counts as prompt.

    Where ``held``, the tokens in the pool, is known, all are moved forwards or backwards until together they hold as many.
    """
    if held is not None and shapes:
        low, high = -1.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            moved = [_moved(share, middle) for share in done]
            total = sum(one.prompt_tokens + share * one.output_tokens for one, share in zip(shapes, moved, strict=True))
            low, high = (middle, high) if total < held else (low, middle)
        done = [_moved(share, low) for share in done]
    out = []
    for shape, share in zip(shapes, done, strict=True):
        made = min(shape.output_tokens - 1, int(share * shape.output_tokens))
        out.append(
            replace(
                shape,
                prompt_tokens=shape.prompt_tokens + made,
                output_tokens=shape.output_tokens - made,
                max_tokens=max(shape.max_tokens - made, shape.output_tokens - made),
            )
        )
    return out


def _moved(share: float, by: float) -> float:
    """A share moved towards 1 (``by`` above 0) or towards 0."""
    return 1 - (1 - share) * (1 - by) if by > 0 else share * (1 + by)


def decode_step(gaps: Lengths) -> float | None:
    """Seconds of an undisturbed step from the gaps between tokens: their mean without the stalls.

    A stall is a gap above ten times the upper edge of the bucket that holds the median. The mean of the rest is held
    inside the median's bucket, because an interpolated median of one wide bucket is only its middle.
    """
    count = gaps.count
    if count <= 0:
        return None
    low = 0.0
    bounds: tuple[float, float] | None = None
    for edge, cumulative in gaps.buckets:
        if cumulative >= count / 2:
            bounds = (low, edge)
            break
        low = edge
    if bounds is None or not math.isfinite(bounds[1]) or bounds[1] <= 0:
        return None
    if gaps.total is None:
        return (bounds[0] + bounds[1]) / 2
    limit = 10 * bounds[1]
    stalled, seconds = 0.0, 0.0
    lower, before = 0.0, 0.0
    for edge, cumulative in gaps.buckets:
        inside = cumulative - before
        if lower >= limit and inside > 0:
            stalled += inside
            seconds += inside * (math.sqrt(lower * edge) if math.isfinite(edge) else lower)
        lower, before = edge, cumulative
    mean = (gaps.total - seconds) / (count - stalled)
    return min(max(mean, bounds[0], bounds[1] / 100), bounds[1])


# --- the replays ------------------------------------------------------------------------------------------------------


class _Replay:
    """One run of all cells."""

    def __init__(self, inputs: Inputs, scheduler: Scheduler, budget: int, goal: Goal) -> None:
        self.seen = seen = inputs.observed
        self.inputs = inputs
        self.scheduler = scheduler
        self.budget = budget
        self.goal = goal
        self.simulated = 0
        self.assumed = list(scheduler.assumed)
        self.seed = hashlib.sha256(repr((seen, inputs.version, sorted(inputs.args.items()))).encode()).hexdigest()[:16]
        assert seen.block_tokens is not None
        assert seen.pool_tokens is not None
        block = seen.block_tokens
        release = scheduler.policy.release
        if seen.prefix_caching is not None:
            release = "tail_blocks" if seen.prefix_caching else "whole"
        self.policy = scheduler.policy.patch({"pool.block_tokens": block, "release": release})
        self.pool = (seen.pool_tokens // block - scheduler.spare_blocks) * block
        running, batch = seen.max_running, seen.batch_tokens
        if running is None:
            running = 256
            self.assumed.append("at most 256 sequences run at a time")
        if batch is None:
            batch = max(2048, running)
            self.assumed.append(f"{batch:,} tokens per step")
        self.limits = Limits(
            max_num_seqs=running,
            max_batched_tokens=max(batch, running),
            prefix_caching=release == "tail_blocks",
            mixed_prefill=scheduler.mixed_prefill,
            requeue=scheduler.requeue,
            growth=None if scheduler.growth is None else GrowthReserve(initial=scheduler.growth),
        )

    def run(self) -> WhatIfResult:
        """Reproduce, then search, then judge."""
        ready: tuple[_Stretch, int, Bench, str | None] | Unknown = Unknown("nothing was tried")
        given = len(self.assumed)
        for effort in EFFORTS:
            candidates = self._candidates(effort)
            # reproducing takes up to 1 + FITS passes; grown demand is twice the requests
            levers = len({lever for lever, _ in candidates})
            units = effort.search * (len(candidates) + 1) + effort.judge * (1 + FITS + 1 + levers + 1 + 1 + 2)
            del self.assumed[given:]
            ready = self._ready(self.budget // units, effort.judge)
            if not isinstance(ready, Unknown):
                break
        if isinstance(ready, Unknown):
            return _nothing(ready, assumed=tuple(self.assumed))
        part, longest, bench, problem = ready
        if problem is not None:
            return self._refused(problem, part)
        count = part.requests
        if part.clients is not None:
            # a closed loop goes on as it was: more requests make the figures steadier
            count = max(count, min(self.budget // units, LONGER * count))
        seen = self.seen
        judged = [_load(seen, part, f"{self.seed}/judge/{at}", longest, count, self.pool) for at in range(effort.judge)]
        search = [
            _load(seen, part, f"{self.seed}/search/{at}", longest, count, self.pool) for at in range(effort.search)
        ]
        now = self._cell(bench, "as it is", judged, self.policy)
        tried = [(lever, value, self._tried(bench, search, lever, value)) for lever, value in candidates]
        base = self._cell(bench, "as it is", search, self.policy)
        return self._judge(bench, part, judged, now, base, tried)

    # ---- preparing

    def _ready(self, most: int, seeds: int) -> tuple[_Stretch, int, Bench, str | None] | Unknown:
        """(what is replayed, longest sequence, the server, why it does not reproduce what was counted)."""
        seen = self.seen
        part = _stretch(seen.intervals, max(1, most))
        if isinstance(part, Unknown):
            return part
        longest = self.pool - self.policy.pool_block_tokens
        if longest < self.policy.pool_block_tokens:
            return Unknown(f"a pool of {self.pool} tokens holds no request that could be replayed")
        if seen.max_model_len is not None:
            longest = min(longest, seen.max_model_len)
        self._note(part)
        loads = [
            _load(seen, part, f"{self.seed}/window/{at}", longest, part.requests, self.pool) for at in range(seeds)
        ]
        problem, cost = self._reproduce(loads, part, self._cost())
        clients = None if part.clients is None else max(part.clients, seen.engines)
        return part, longest, Bench(self.pool, cost, self.limits, clients, self.goal), problem

    def captured(self, seeds: int) -> Captured | Unknown:
        """The load and the server for replays of the caller's choice."""
        ready = self._ready(self.budget, EFFORTS[0].judge)
        if isinstance(ready, Unknown):
            return ready
        part, longest, bench, problem = ready
        loads = tuple(
            _load(self.seen, part, f"{self.seed}/{at}", longest, part.requests, self.pool) for at in range(seeds)
        )
        return Captured(
            loads,
            bench,
            self.policy,
            self.seen.engines,
            part.preempted,
            part.finished,
            part.seconds,
            problem,
            tuple(self.assumed),
        )

    def _note(self, part: _Stretch) -> None:
        seen = self.seen
        if part.clients is not None:
            self.assumed.append(f"a closed loop of {part.clients} clients (the number in flight stayed put)")
        else:
            self.assumed.append("arrivals spread evenly between two samples")
        self.assumed.append("prompt and output lengths drawn independently from the histograms of the window")
        if seen.max_tokens is None:
            self.assumed.append("limits of requests (max_tokens) not told")
        if part.running:
            self.assumed.append(
                "requests that ran at the start: long ones in proportion to their length, anywhere in their output"
            )
        if seen.prefix_caching is None:
            self.assumed.append("prefix caching as the version's default")
        whole = _busy(seen.intervals)
        if len(part.intervals) < len(whole):
            self.assumed.append(
                f"the {len(part.intervals)} of {len(whole)} intervals with the most preemptions stand for all"
            )
        if seen.engines > 1:
            self.assumed.append(f"requests dealt round robin to {seen.engines} engines")

    def _cost(self) -> CostModel:
        seen = self.seen
        step = None if seen.token_gap is None else decode_step(seen.token_gap)
        speed = seen.prefill_tokens_per_s
        cost = CostModel.calibrated(
            decode_step_s=step,
            prefill_tokens_per_s=speed if speed is not None and speed > 0 else None,
            kv_bytes_per_token=seen.bytes_per_token if seen.bytes_per_token else None,
        )
        self.assumed.extend(cost.assumed)
        return cost

    def _cell(
        self,
        bench: Bench,
        name: str,
        loads: Sequence[Workload],
        policy: Policy,
        *,
        gpus: int = 1,
        pool: int = 1,
        clients: int = 1,
    ) -> Cell:
        self.simulated += sum(len(load.requests) for load in loads)
        return bench.cell(name, loads, policy, gpus=gpus * self.seen.engines, pool=pool, clients=clients)

    def _candidates(self, effort: _Effort) -> list[tuple[str, float]]:
        """(lever, value) that this version can be set to and that differ from what is in force."""
        turns = [lever for lever in self.scheduler.turns if self._turnable(lever)]
        out: list[tuple[str, float]] = []
        if "admission.full_prompt" in turns and self.policy.admission_mode == "first_chunk":
            out.append(("admission.full_prompt", 1.0))
        if "admission.free_share" in turns:
            out += [
                ("admission.free_share", share)
                for share in effort.free_shares
                if share != self.policy.admission_free_share
            ]
        if "sched.max_running" in turns:
            top = max((one.running for one in self.seen.intervals), default=0.0)
            top = max(top, max((one.running_after for one in self.seen.intervals), default=0.0)) / self.seen.engines
            limits = {max(1, round(top * share)) for share in effort.running_shares}
            out += [
                ("sched.max_running", float(one)) for one in sorted(limits) if one < min(top, self.limits.max_num_seqs)
            ]
        return out

    def _turnable(self, lever: str) -> bool:
        engine, args = self.inputs.engine, self.inputs.args
        assert engine is not None
        entry = lever_for(engine, lever, self.inputs.version)
        if entry is None or entry.flag is None:
            return False
        names = (*engine.canonical_args.get(entry.refused_with, ()), entry.refused_with)
        return not (entry.refused_with and any(name in args for name in names))

    def _turned(self, bench: Bench, lever: str, value: float) -> tuple[Bench, Policy]:
        if lever == "admission.free_share":
            return bench, self.policy.patch({"admission.mode": "full_prompt", "admission.free_share": value})
        if lever == "admission.full_prompt":
            return bench, self.policy.patch({"admission.mode": "full_prompt"})
        return replace(bench, limits=replace(bench.limits, max_num_seqs=int(value))), self.policy

    def _tried(self, bench: Bench, loads: Sequence[Workload], lever: str, value: float) -> Cell:
        turned, policy = self._turned(bench, lever, value)
        return self._cell(turned, f"{lever} {value:g}", loads, policy)

    # ---- reproducing

    def _reproduce(self, loads: Sequence[Workload], part: _Stretch, cost: CostModel) -> tuple[str | None, CostModel]:
        """Whether the replay gives the counted preemptions in the time it took: (why not, or None; the cost used)."""
        first = cost
        counts, seconds, prefilled = self._counted(loads, part, cost)
        if part.seconds is not None and seconds > 0:
            # arrivals by the clock set the pace themselves: only a replay that falls behind tells of the step costs
            slack = 0.15 if part.clients is None else 0.05
            for _ in range(FITS):
                if abs(part.seconds / seconds - 1) <= slack:
                    break
                fitted = _fitted(cost, part.seconds, seconds, prefilled)
                if fitted is None:
                    break
                cost = fitted
                counts, seconds, prefilled = self._counted(loads, part, cost)
            if cost != first:
                self.assumed.append(
                    f"step costs fitted to the pace of the window: {cost.floor_s * 1000:.1f} ms a step, "
                    f"{1 / cost.token_s:,.0f} prompt tokens/s"
                )
            if abs(part.seconds / seconds - 1) > TIME_ERROR:
                return (
                    f"the replay takes {seconds:.0f} s for the requests that ended in {part.seconds:.0f} s: its step costs do "
                    "not describe this server"
                ), cost
        lo, hi = _accepted(part.preempted)
        mean = statistics.fmean(counts)
        if not lo <= mean <= hi:
            return (
                f"replayed as it is, the load gives {mean:.0f} preemptions, and {part.preempted:.0f} were counted (accepted: "
                f"{lo:.0f} to {hi:.0f})"
            ), cost
        self.say = f"replayed as it is: {mean:.0f} preemptions, counted {part.preempted:.0f}"
        return None, cost

    def _counted(self, loads: Sequence[Workload], part: _Stretch, cost: CostModel) -> tuple[list[int], float, float]:
        """Until as many requests have ended as in the window: preemptions per load, mean seconds, mean prefill tokens."""
        counts: list[int] = []
        prefilled: list[int] = []
        times: list[float] = []
        engines = self.seen.engines
        for load in loads:
            self.simulated += len(load.requests)
            servers = []
            for at in range(engines):
                mine = load.requests[at::engines]
                clients = None if part.clients is None else max(1, (part.clients + engines - 1 - at) // engines)
                server = Server(
                    self.policy,
                    pool_tokens=self.pool,
                    cost=cost,
                    limits=self.limits,
                    rng=random.Random(f"{self.seed}/{at}"),
                    clients=clients,
                )
                for request in mine:
                    server.submit(request)
                servers.append(server)
            slice_s = (part.seconds if part.seconds else 60.0) / 200
            now = 0.0
            while sum(server.record.finished for server in servers) < part.finished and not all(
                s.idle for s in servers
            ):
                now += slice_s
                for server in servers:
                    server.advance(now)
            counts.append(sum(server.record.preemptions for server in servers))
            prefilled.append(sum(server.record.prefill_tokens for server in servers))
            times.append(now)
        return counts, statistics.fmean(times), statistics.fmean(prefilled) / engines

    def _refused(self, problem: str, part: _Stretch) -> WhatIfResult:
        unknown = Unknown(f"no promise: {problem}", "a per-request log or a longer window describes the load better")
        facts: dict[str, Fact] = dict.fromkeys(FACT_NAMES, unknown)
        facts["whatif.reproduces"] = measured(False, "w", "replay of the window", note=problem, events=part.preempted)
        return WhatIfResult(facts, assumed=tuple(self.assumed), say=f"no promise: {problem}", simulated=self.simulated)

    # ---- judging

    def _judge(
        self,
        bench: Bench,
        part: _Stretch,
        judged: Sequence[Workload],
        now: Cell,
        base: Cell,
        tried: Sequence[tuple[str, float, Cell]],
    ) -> WhatIfResult:
        rows = [_row("as it is", now)]
        settings: list[Setting] = []
        idle: list[str] = []
        best: tuple[tuple[float, float], Cell, str, float] | None = None
        watermark: Watermark | None = None
        for lever in dict.fromkeys(lever for lever, _, _ in tried):
            chosen = _choose(
                lever, [(value, cell) for one, value, cell in tried if one == lever], base, self._present(lever)
            )
            if chosen is None:
                idle.append(lever)
                continue
            value, lo, hi = chosen
            turned, policy = self._turned(bench, lever, value)
            cell = self._cell(turned, _NAMES[lever].format(value=value), judged, policy)
            rows.append(_row(cell.name, cell))
            settings.append(
                Setting(lever, value, lo, hi, _effect(now, cell), _next_limit(now, cell), self._present(lever))
            )
            if lever == "admission.free_share":
                watermark = Watermark(value, lo, hi)
            # the choice among levers is made on the loads of the search, the figures come from the others
            found = next(c for one, v, c in tried if one == lever and v == value)
            rank = (round(found.mean("goodput"), 6), round(found.mean("tokens_per_s"), 6))
            if best is None or rank > best[0]:
                best = (rank, cell, lever, value)
        more_kv = self._cell(bench, "2x KV, same compute", judged, self.policy, pool=2)
        more_gpu = self._cell(bench, "2 GPUs, same demand", judged, self.policy, gpus=2)
        if part.clients is None:
            grown_loads: Sequence[Workload] = [load.grown(2, at) for at, load in enumerate(judged)]
        else:
            grown_loads = [
                replace(load, requests=tuple(one for one in load.requests for _ in range(2)), lines=())
                for load in judged
            ]
        grown = self._cell(bench, "2 GPUs, twice the demand", grown_loads, self.policy, gpus=2, clients=2)
        rows += [_row(cell.name, cell) for cell in (more_kv, more_gpu, grown)]
        count = float(sum(len(load.requests) for load in judged))
        facts: dict[str, Fact] = {
            "whatif.reproduces": measured(True, "w", "replay of the window", note=self.say, events=part.preempted),
            "whatif.asis": _goodput(now, count),
            "whatif.more_kv": _goodput(more_kv, count),
            "whatif.more_gpu": _goodput(more_gpu, count),
        }
        patch: dict[str, object] = {}
        if best is None:
            facts["whatif.policy"] = (
                replace(_goodput(now, count), note="no change of policy that this version has does more")
                if tried
                else Unknown("this version has no setting that the replay could turn")
            )
        else:
            facts["whatif.policy"] = replace(_goodput(best[1], count), note=best[1].name)
            patch = _patch(best[2], best[3])
        if watermark is not None:
            facts["whatif.watermark"] = Known(
                watermark.lo, watermark.hi, "estimated", "w", "replay of the window",
                f"best {watermark.value:g}; the others do as well within the spread of the seeds", None, count,
            )  # fmt: skip
        else:
            facts["whatif.watermark"] = self._no_watermark(tried)
        goal = f"good: first token within {self.goal.ttft_s:g} s and no gap above {self.goal.stall_s:g} s"
        return WhatIfResult(
            facts,
            tuple(rows),
            tuple(settings),
            tuple(idle),
            watermark,
            patch,
            tuple(self.assumed),
            f"{self.say}; {goal}; {len(judged)} seeds of {len(judged[0].requests)} requests",
            self.simulated,
        )

    def _present(self, lever: str) -> float:
        if lever == "admission.free_share":
            return self.policy.admission_free_share
        return float(self.limits.max_num_seqs) if lever == "sched.max_running" else 0.0

    def _no_watermark(self, tried: Sequence[tuple[str, float, Cell]]) -> Fact:
        if not any(lever == "admission.free_share" for lever, _, _ in tried):
            return Unknown("this version keeps no share of the pool free at admission")
        share = self.policy.admission_free_share
        return Known(
            share, share, "estimated", "w", "replay of the window", "what is in force does as well as any other"
        )


_NAMES: Mapping[str, str] = {
    "admission.free_share": "watermark {value:g}",
    "admission.full_prompt": "whole prompts at admission",
    "sched.max_running": "at most {value:.0f} running",
}


def _patch(lever: str, value: float) -> dict[str, object]:
    """The policy keys of a setting; a limit on running sequences is no policy key."""
    if lever == "admission.free_share":
        return {"admission.mode": "full_prompt", "admission.free_share": value}
    return {"admission.mode": "full_prompt"} if lever == "admission.full_prompt" else {}


def _choose(
    lever: str, tried: Sequence[tuple[float, Cell]], base: Cell, present: float
) -> tuple[float, float, float] | None:
    """(best value, lowest and highest that do as well) on the search loads; None when what is in force does as well."""
    ranked = [(round(cell.mean("goodput"), 6), round(cell.mean("tokens_per_s"), 6)) for _, cell in tried]
    stay = (round(base.mean("goodput"), 6), round(base.mean("tokens_per_s"), 6))
    best = max(range(len(tried)), key=lambda at: (ranked[at], -at))
    if ranked[best] <= stay:
        return None
    spread = tried[best][1].spread("goodput")
    noise = 0.005 if spread is None else max(0.005, 0.5 * (spread.hi - spread.lo))
    good = [value for (value, _), rank in zip(tried, ranked, strict=True) if rank[0] >= ranked[best][0] - noise]
    if lever == "admission.free_share" and stay[0] >= ranked[best][0] - noise:
        good.append(present)
    return tried[best][0], min(good), max(good)


def _accepted(count: float) -> tuple[float, float]:
    """Replayed counts that reproduce ``count``: the stated error, or the 95 % Poisson interval where that is wider."""
    half = 1.96 * math.sqrt(count + 0.96)
    lo, hi = max(0.0, count + 1.92 - half), count + 1.92 + half
    return min(lo, count * (1 - COUNT_ERROR)), max(hi, count * (1 + COUNT_ERROR))


def _fitted(cost: CostModel, wanted_s: float, took_s: float, prefilled: float) -> CostModel | None:
    """Step costs with which the replay comes nearer to the time the window took; None when nothing plausible does.

    The speed of prefill is the less certain of the two figures: requests wait, and are thrown out, while the server counts
    their time as prefill. It is corrected first, within a tenth and twice of what was told; else all costs together.
    """
    if prefilled > 0 and cost.token_s > 0:
        token_s = cost.token_s + (wanted_s - took_s) / prefilled
        if 0.1 <= token_s / cost.token_s <= 2.0:
            return replace(cost, token_s=token_s)
    ratio = wanted_s / took_s
    if not 0.5 <= ratio <= 2.0:
        return None
    return replace(
        cost,
        overhead_s=cost.overhead_s * ratio,
        floor_s=cost.floor_s * ratio,
        token_s=cost.token_s * ratio,
        context_s=cost.context_s * ratio,
        attention_s=cost.attention_s * ratio,
    )


def _goodput(cell: Cell, requests: float) -> Known:
    spread = cell.spread("goodput")
    assert spread is not None
    return Known(spread.lo, spread.hi, "estimated", "w", "replay of the window", cell.name, None, requests)


def _mean(cell: Cell, figure: str) -> float | None:
    spread = cell.spread(figure)
    return None if spread is None else spread.mean


def _row(name: str, cell: Cell) -> WhatIf:
    spread = cell.spread("goodput")
    assert spread is not None
    return WhatIf(
        name,
        spread.mean,
        spread.lo,
        spread.hi,
        _mean(cell, "ttft_p99_s"),
        _mean(cell, "stall_p99_s"),
        _mean(cell, "recompute_time_share"),
    )


def _effect(now: Cell, then: Cell) -> str:
    """One sentence with intervals over the seeds."""
    before, after = now.spread("goodput"), then.spread("goodput")
    hits = _mean(now, "preemptions_per_finished"), _mean(then, "preemptions_per_finished")
    assert before is not None
    assert after is not None
    if f"{before.mean:.0%}{before.lo:.0%}{before.hi:.0%}" == f"{after.mean:.0%}{after.lo:.0%}{after.hi:.0%}":
        said = f"{after.mean:.0%} of the requests good with it and without"
    else:
        said = (
            f"{after.mean:.0%} of the requests good ({after.lo:.0%} to {after.hi:.0%}) instead of {before.mean:.0%} "
            f"({before.lo:.0%} to {before.hi:.0%})"
        )
    rarer = ""
    if hits[0] is not None and hits[1] is not None:
        rarer = f", {hits[1]:.2g} preemptions per finished request instead of {hits[0]:.2g}"
    return f"Replayed: {said}{rarer}."


def _next_limit(now: Cell, then: Cell) -> str:
    """What gets worse first, from the replays; empty when nothing does."""
    first = _mean(now, "ttft_p99_s"), _mean(then, "ttft_p99_s")
    speed = now.mean("tokens_per_s"), then.mean("tokens_per_s")
    parts = []
    if first[0] is not None and first[1] is not None and first[1] > 1.1 * first[0]:
        parts.append(f"the queue: TTFT P99 {first[0]:.1f} s becomes {first[1]:.1f} s")
    if speed[1] < 0.97 * speed[0]:
        parts.append(f"throughput: {speed[0]:.0f} becomes {speed[1]:.0f} tokens/s")
    return "; ".join(parts)
