"""The fact vocabulary: every number kvdoctor reasons about has a name, a unit, a level, a span and a meaning here.

A fact is :class:`Known` (an interval ``lo..hi`` with how it was obtained) or :class:`Unknown` (with a reason and a hint).
Unknown is never zero, never healthy and never a fault: expressions over it are undecided and name it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kvdoctor.frozen import frozen

How = Literal["measured", "estimated", "bound", "assumed"]
Span = Literal["i", "w", "L", "s", "e", "c"]
Value = float | str | bool

HOW_RANK: Mapping[str, int] = {"measured": 0, "estimated": 1, "bound": 2, "assumed": 3}

SPANS: Mapping[str, str] = {
    "i": "last sample",
    "w": "window",
    "L": "since the process started",
    "s": "start-up",
    "e": "ordered events",
    "c": "configuration",
}
LEVELS: Mapping[str, str] = {"g": "device", "r": "engine or rank", "t": "target", "x": "group of targets"}


@frozen
class FactDef:
    """One row of the vocabulary.

    ``unit`` is one of ``1`` (fraction 0..1), ``count``, ``ratio``, ``tok``, ``B``, ``s``, ``/s``, ``tok/s``, ``B/s``,
    ``bool``, ``enum``. ``combine`` says how the target's value is built from its ranks or devices: ``sum``, ``max``,
    ``min``, ``first`` (never a mean of gauges); empty where the fact is measured on the target itself.
    """

    name: str
    unit: str
    level: str
    span: str
    meaning: str
    combine: str = ""
    choices: tuple[str, ...] = ()


@frozen
class Known:
    """A value with its provenance.

    ``lo == hi`` for measured and estimated values, ``lo < hi`` for bounds. Booleans and enums have ``lo == hi``.
    ``events`` is the number of events or requests the value rests on (``None``: not a count of anything). ``hint`` says how
    to get a measured value in place of a bound.
    """

    lo: Value
    hi: Value
    how: How
    span: Span
    source: str
    note: str = ""
    events: float | None = None
    requests: float | None = None
    hint: str = ""

    @property
    def exact(self) -> bool:
        """True when the interval is a single value."""
        return self.lo == self.hi

    @property
    def value(self) -> Value:
        """The single value, or for an interval its upper end (callers that care look at ``lo`` and ``hi``)."""
        return self.hi


@frozen
class Unknown:
    """A value that could not be had: ``reason`` says why, ``hint`` says how to get it."""

    reason: str
    hint: str = ""


Fact = Known | Unknown


def measured(
    value: Value, span: Span, source: str, *, note: str = "", events: float | None = None, requests: float | None = None
) -> Fact:
    """A directly measured value; a NaN or infinite reading becomes :class:`Unknown`."""
    if isinstance(value, float) and not math.isfinite(value):
        return Unknown(f"{source} reads {value}, which is not a number", "look at the exporter of that series")
    return Known(value, value, "measured", span, source, note, events, requests)


def estimated(
    value: float, span: Span, source: str, *, note: str = "", events: float | None = None, requests: float | None = None
) -> Fact:
    """A value computed from others by a stated formula (``note``)."""
    if not math.isfinite(value):
        return Unknown(f"the estimate from {source} is not a finite number")
    return Known(value, value, "estimated", span, source, note, events, requests)


def bound(
    lo: float,
    hi: float,
    span: Span,
    source: str,
    *,
    note: str = "",
    events: float | None = None,
    requests: float | None = None,
) -> Fact:
    """An interval that certainly holds the value; collapses to an estimate when both ends agree."""
    if not (math.isfinite(lo) and math.isfinite(hi)):
        return Unknown(f"the bound from {source} is not finite")
    if lo > hi:
        raise ValueError(f"bound {lo} > {hi} from {source}")
    return Known(lo, hi, "bound" if lo < hi else "estimated", span, source, note, events, requests)


def assumed(value: Value, span: Span, source: str, *, note: str = "") -> Fact:
    """A value taken from a default or a convention, not from this server."""
    return Known(value, value, "assumed", span, source, note)


def worst_how(parts: Iterable[Known]) -> How:
    """The weakest provenance of several values."""
    worst: How = "measured"
    for part in parts:
        if HOW_RANK[part.how] > HOW_RANK[worst]:
            worst = part.how
    return worst


_SPAN_RANK = {"c": 0, "s": 1, "i": 2, "e": 3, "w": 4, "L": 5}


def widest_span(parts: Iterable[Known]) -> Span:
    """The span of a value computed from several: lifetime is contagious, otherwise the window."""
    widest: Span = "c"
    for part in parts:
        if _SPAN_RANK[part.span] > _SPAN_RANK[widest]:
            widest = part.span
    return widest


def combine(how: str, parts: Mapping[str, Fact]) -> Fact:
    """Build a target's value from its ranks' (or devices') values by ``sum``, ``max``, ``min`` or ``first``.

    A sum with one unknown part is a lower bound only where the known parts cannot be negative, so it stays unknown and
    says which rank is missing. A maximum over known parts is kept (a hot rank is hot whoever else is silent).
    """
    known = {k: v for k, v in parts.items() if isinstance(v, Known)}
    if not known:
        for value in parts.values():
            if isinstance(value, Unknown):
                return value
        return Unknown("no rank reports it")
    if len(known) < len(parts) and how == "sum":
        missing = [k for k in parts if k not in known]
        first = parts[missing[0]]
        why = first.reason if isinstance(first, Unknown) else ""
        return Unknown(f"known for {len(known)} of {len(parts)} ranks; {', '.join(missing)}: {why}")
    values = list(known.values())
    if len(values) == 1:
        return values[0]
    if how == "first":
        return values[0]
    events = [v.events for v in values if v.events is not None]
    requests = [v.requests for v in values if v.requests is not None]
    if how == "sum":
        return Known(
            sum(_number(v.lo) for v in values),
            sum(_number(v.hi) for v in values),
            worst_how(values),
            widest_span(values),
            _join(v.source for v in values),
            f"sum over {', '.join(known)}",
            sum(events) if events else None,
            sum(requests) if requests else None,
        )
    pick = max if how == "max" else min
    name, chosen = pick(known.items(), key=lambda kv: _number(kv[1].hi if how == "max" else kv[1].lo))
    return replace(chosen, note=_note(chosen.note, f"{how} over {len(known)}: {name}"))


def _note(old: str, new: str) -> str:
    return f"{old}; {new}" if old else new


def _number(value: Value) -> float:
    if isinstance(value, str):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _join(sources: Iterable[str], most: int = 3) -> str:
    seen = list(dict.fromkeys(sources))
    return ", ".join(seen[:most]) + (f" and {len(seen) - most} more" if len(seen) > most else "")


@dataclass(slots=True)
class FactSet:
    """Facts of one subject (a target, one of its ranks, a device, or a group), by name.

    Reading a name that is not in the vocabulary is a bug and raises ``KeyError``; a name nobody derived is Unknown.
    """

    values: dict[str, Fact] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Fact:
        if name in self.values:
            return self.values[name]
        if name not in FACTS:
            raise KeyError(name)
        return Unknown("nothing in this snapshot tells it")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def set(self, name: str, fact: Fact) -> None:
        """Store ``fact`` under a name of the vocabulary; the first Known value wins over later ones."""
        if name not in FACTS:
            raise KeyError(f"{name} is not in the fact table")
        old = self.values.get(name)
        if isinstance(old, Known):
            return
        self.values[name] = fact

    def known(self, name: str) -> Known | None:
        """The value when Known, else None."""
        fact = self[name]
        return fact if isinstance(fact, Known) else None

    def number(self, name: str) -> float | None:
        """The single numeric value when Known and exact, else None (never a stand-in zero)."""
        fact = self.known(name)
        if fact is None or isinstance(fact.hi, str) or not fact.exact:
            return None
        return float(fact.hi)

    def text(self, name: str) -> str | None:
        """The enum value when Known, else None."""
        fact = self.known(name)
        return fact.hi if fact is not None and isinstance(fact.hi, str) else None


def _f(
    name: str, unit: str, level: str, span: str, meaning: str, *, combine: str = "", choices: tuple[str, ...] = ()
) -> FactDef:
    return FactDef(name, unit, level, span, meaning, combine, choices)


_ROWS = (
    _f(
        "target.phase",
        "enum",
        "t",
        "e",
        "starting, serving, stopped, unknown; serving = a stats line, a request started or finished, or any token counter > 0",
        choices=("starting", "serving", "stopped", "unknown"),
    ),
    _f("target.age_s", "s", "t", "i", "time since the process started, at the last sample"),
    _f("target.window_s", "s", "t", "w", "clock between the first and the last usable sample"),
    _f(
        "target.restarts",
        "count",
        "t",
        "w",
        "earlier runs of the same server in the snapshot; each run is its own target and no delta crosses the border",
    ),
    _f(
        "target.failure_reported",
        "bool",
        "t",
        "e",
        "the log reports a fatal error, a death or a hang, or its container ended abnormally, and no work came after it",
    ),
    _f(
        "target.hang_reported",
        "bool",
        "t",
        "e",
        "the server's own log reports that a step or a worker does not answer while requests run, and no work came after it",
    ),
    _f("target.samples", "count", "t", "w", "usable scrapes + stats lines"),
    _f(
        "req.running",
        "count",
        "r",
        "i",
        "requests being computed at the last sample, all engines together",
        combine="sum",
    ),
    _f("req.running_max", "count", "r", "w", "most requests being computed at any sample", combine="sum"),
    _f("req.running_drop", "1", "t", "w", "1 - last/max while waiting > 0"),
    _f(
        "req.waiting",
        "count",
        "r",
        "i",
        "requests in the queue at the last sample; preempted ones are in it where the engine queues them again",
        combine="sum",
    ),
    _f(
        "req.waiting_max",
        "count",
        "r",
        "w",
        "most requests in the queue at any sample",
        combine="sum",
    ),
    _f("req.waiting_capacity", "count", "r", "i", "queue that waits for memory or a slot", combine="sum"),
    _f("req.waiting_slope", "/s", "t", "w", "least-squares slope; needs >= 3 samples"),
    _f(
        "req.flips",
        "count",
        "t",
        "w",
        "moves of one or two requests between running and waiting, both ways, between samples with usage >= .95",
    ),
    _f("req.waiting_growth", "count", "t", "w", "last - first; needs no clock and two samples"),
    _f(
        "req.stuck_samples",
        "count",
        "t",
        "w",
        "samples in a row, up to the last, with nobody running, somebody waiting and no token computed",
    ),
    _f("req.swapped_max", "count", "r", "w", "sequences swapped out to host memory", combine="sum"),
    _f("req.running_growth", "ratio", "t", "w", "mean running of the last interval / of the first (running > 0)"),
    _f("req.finished", "count", "t", "w", "finished in the window, aborts apart"),
    _f("req.length_share", "1", "t", "w", "finished by length limit / finished"),
    _f("req.error_share", "1", "t", "w", "failed + aborted / ended"),
    _f("req.rejected", "count", "t", "w", "refused at admission"),
    _f(
        "req.oversize_refused",
        "count",
        "t",
        "w",
        "requests failed or refused because the whole KV pool cannot hold them",
    ),
    _f(
        "req.context_limited",
        "count",
        "t",
        "w",
        "requests refused, cut or ended because the context of their slot or model is full (not for lack of memory)",
    ),
    _f(
        "req.context_share",
        "1",
        "t",
        "w",
        "req.context_limited / requests seen",
    ),
    _f("req.context_needed", "tok", "t", "w", "longest of the requests that were refused or cut for their context"),
    _f("req.limit_running", "count", "t", "c", "max running sequences of the ranks seen, all together"),
    _f(
        "req.limit_fits",
        "count",
        "t",
        "w",
        "running requests up to which the limit may be raised: those that wait too, while at most 80 % of the pool is held",
    ),
    _f(
        "req.limit_ranks",
        "ratio",
        "t",
        "c",
        "how many times the setting of that limit is in req.limit_running: the ranks that have it each, or seen ranks / all",
    ),
    _f(
        "admission.reserves",
        "bool",
        "t",
        "c",
        "a request is admitted only when room for (a share of) the output it may still ask for is free",
    ),
    _f("kv.pool_tokens", "tok", "r", "s", "size of the KV pool in tokens", combine="sum"),
    _f("kv.pool_bytes", "B", "r", "s", "size of the KV pool in bytes", combine="sum"),
    _f("kv.block_tokens", "tok", "r", "c", "page size", combine="max"),
    _f(
        "kv.usage_last",
        "1",
        "r",
        "i",
        "blocks in use / pool at the last sample; reusable prefixes count as free (vLLM) or are left out (SGLang)",
        combine="max",
    ),
    _f(
        "kv.usage_max",
        "1",
        "r",
        "w",
        "largest share of the pool in use at any sample; a server's value is that of its fullest engine",
        combine="max",
    ),
    _f(
        "kv.usage_mean",
        "1",
        "r",
        "w",
        "mean share of the pool in use over the samples (no rule uses it)",
        combine="max",
    ),
    _f("kv.full_share", "1", "r", "w", "share of samples with usage >= .95", combine="max"),
    _f("kv.pressure", "bool", "t", "w", "the gate of verdicts.md, point 4"),
    _f(
        "kv.idle_held",
        "1",
        "r",
        "w",
        "part of the pool seen to stay in use over three idle samples (0: none seen)",
        combine="max",
    ),
    _f("kv.reserved_idle", "1", "t", "w", "part of the booked pool that requests of usual length do not fill"),
    _f(
        "kv.per_slot",
        "bool",
        "t",
        "c",
        "each slot owns its part of the pool: requests wait for a slot, never for blocks",
    ),
    _f("kv.evictable_share", "1", "r", "i", "reusable, reclaimable tokens / pool", combine="min"),
    _f("kv.secondary_usage_max", "1", "r", "w", "fullest of SWA / mamba / other pools", combine="max"),
    _f(
        "kv.max_concurrency",
        "ratio",
        "r",
        "s",
        "pool / longest request: how many requests of the longest length fit",
        combine="min",
    ),
    _f(
        "kv.headroom_requests",
        "ratio",
        "r",
        "i",
        "free tokens / mean sequence: how many average requests still fit",
        combine="min",
    ),
    _f("kv.lost_tokens", "tok", "r", "i", "total - used - free - evictable when idle (a leak)", combine="sum"),
    _f(
        "kv.leak_reported",
        "bool",
        "r",
        "e",
        "the engine's own check at idle found tokens that nobody holds",
        combine="max",
    ),
    _f(
        "kv.overbooked_tokens",
        "tok",
        "r",
        "w",
        "tokens in use beyond (running + waiting) x longest request, in two samples in a row; idle: all in use",
        combine="max",
    ),
    _f(
        "kv.frozen_samples",
        "count",
        "r",
        "w",
        "consecutive samples with identical usage while running > 0",
        combine="min",
    ),
    _f("kv.growth_while_falling", "1", "r", "w", "rise of usage while running falls", combine="max"),
    _f(
        "kv.sawtooth_falls",
        "count",
        "r",
        "w",
        "falls of usage by half of its peak or more while running does not fall and nothing is generated",
        combine="max",
    ),
    _f("kv.context_growth", "ratio", "t", "w", "KV tokens per running request, last sample / first"),
    _f("kv.context_last", "tok", "t", "i", "KV tokens per running request in the last sample"),
    _f(
        "kv.host_usage_swing", "1", "r", "w", "largest - smallest usage of the swap space in host memory", combine="max"
    ),
    _f("kv.page_shortfall", "tok", "r", "e", "free tokens that are not whole pages at the failure", combine="max"),
    _f(
        "kv.bytes_per_token",
        "B",
        "r",
        "s",
        "KV bytes per token as the engine booked them (pool bytes / pool tokens)",
        combine="max",
    ),
    _f(
        "kv.bytes_per_token_formula",
        "B",
        "r",
        "c",
        "KV bytes per token by architecture and data type; unknown for an unknown architecture",
        combine="max",
    ),
    _f(
        "kv.hybrid_full",
        "bool",
        "r",
        "c",
        "the engine says it books KV of sliding-window or hybrid layers as full attention",
        combine="max",
    ),
    _f(
        "kv.block_idle_p50_s",
        "s",
        "r",
        "w",
        "median idle time of a cached block before it is evicted",
        combine="min",
    ),
    _f(
        "kv.block_reuse_gap_p50_s",
        "s",
        "r",
        "w",
        "median time between two uses of a cached block",
        combine="min",
    ),
    _f(
        "preempt.count",
        "count",
        "r",
        "w",
        "preemptions, retractions and pauses in the window",
        combine="sum",
    ),
    _f(
        "preempt.rate",
        "/s",
        "r",
        "w",
        "preemptions, retractions and pauses per second; needs a clock",
        combine="sum",
    ),
    _f("preempt.per_finished", "ratio", "t", "w", "preemptions / finished requests"),
    _f(
        "preempt.per_request_min",
        "ratio",
        "t",
        "w",
        "count / (finished + largest running + largest waiting): a lower bound; > 1 proves repeats",
    ),
    _f("preempt.hit_share", "1", "t", "w", "requests hit >= 1 / finished"),
    _f("preempt.hit_twice_share", "1", "t", "w", "requests hit >= 2 / finished"),
    _f("preempt.hit_3plus_of_hit", "1", "t", "w", "requests hit >= 3 / requests hit"),
    _f("preempt.repeats_30s", "count", "t", "e", "same id hit again within 30 s"),
    _f("preempt.secondary", "count", "t", "e", "hits while an earlier victim is still being recomputed"),
    _f("preempt.victims_near_done", "1", "t", "w", "victims with remaining < min(512, computed/4) / victims"),
    _f(
        "preempt.victim_remaining_p50",
        "tok",
        "t",
        "w",
        "median tokens the victims had left (max_tokens - generated: an upper bound)",
    ),
    _f(
        "preempt.victim_computed_mean",
        "tok",
        "t",
        "w",
        "mean tokens the victims had computed",
    ),
    _f(
        "preempt.kind",
        "enum",
        "t",
        "c",
        "recompute, swap, pause, abort",
        choices=("recompute", "swap", "pause", "abort"),
    ),
    _f("recompute.tokens", "tok", "t", "w", "tokens computed again after a preemption"),
    _f("recompute.rate", "tok/s", "t", "w", "tokens computed again per second; needs a clock"),
    _f(
        "recompute.token_share",
        "1",
        "t",
        "w",
        "recomputed / all computed tokens (prompt + generated + recomputed)",
    ),
    _f(
        "recompute.prefill_share",
        "1",
        "t",
        "w",
        "recomputed / prefill tokens (prompt + recomputed)",
    ),
    _f("recompute.time_share", "1", "t", "w", "recompute.tokens / tok.prefill_speed / busy time"),
    _f(
        "tok.prompt",
        "tok",
        "r",
        "w",
        "useful prompt tokens of the window, cached ones apart",
        combine="sum",
    ),
    _f(
        "tok.generated",
        "tok",
        "r",
        "w",
        "generated tokens of the window",
        combine="sum",
    ),
    _f(
        "tok.prompt_rate",
        "tok/s",
        "r",
        "i",
        "prompt tokens per second",
        combine="sum",
    ),
    _f(
        "tok.gen_rate",
        "tok/s",
        "r",
        "i",
        "generated tokens per second",
        combine="sum",
    ),
    _f("tok.gen_drop", "1", "t", "w", "1 - last / max of gen rate while running > 0"),
    _f("tok.gen_zero_samples", "count", "r", "w", "samples with generation 0 while running > 0", combine="sum"),
    _f("tok.prefill_speed", "tok/s", "t", "w", "prefill tokens / prefill busy time"),
    _f("prefill.full_share", "1", "t", "w", "steps full of prompt tokens / logged steps, while requests waited"),
    _f("latency.ttft_p50", "s", "t", "w", "median time to first token, from bucket differences"),
    _f("latency.ttft_p99", "s", "t", "w", "99 % of first tokens come within this time"),
    _f("latency.e2e_p99", "s", "t", "w", "99 % of requests end within this time"),
    _f("latency.itl_p50", "s", "t", "w", "median time between tokens"),
    _f("latency.itl_p99", "s", "t", "w", "99 % of gaps between tokens are shorter"),
    _f(
        "latency.itl_p999",
        "s",
        "t",
        "w",
        "99.9 % of gaps between tokens are shorter (SGLang reports an average per step, so it is estimated there)",
    ),
    _f("latency.itl_tail_ratio", "ratio", "t", "w", "p99 / p50"),
    _f(
        "latency.starved_share",
        "1",
        "t",
        "w",
        "samples in which requests that already answer get under a tenth of their calm rate beside prompts / samples with "
        "requests running",
    ),
    _f(
        "latency.itl_growth", "ratio", "t", "w", "mean time per token of the last interval / of the first (running > 0)"
    ),
    _f("latency.stalls", "count", "t", "w", "gaps over 1 s (a bucket edge at 1.0 s is needed)"),
    _f(
        "latency.stalls_per_finished",
        "ratio",
        "t",
        "w",
        "stalls / finished; an upper bound of the share of requests that stalled",
    ),
    _f(
        "latency.stall_share",
        "1",
        "t",
        "w",
        "requests with a gap over 1 s / requests; [0, stalls_per_finished] from metrics",
    ),
    _f("latency.queue_p50", "s", "t", "w", "median time before the first scheduling"),
    _f("latency.queue_p99", "s", "t", "w", "99 % of requests are first scheduled within this time"),
    _f("latency.queue_share", "1", "t", "w", "mean queue time / mean time to first token"),
    _f("work.prompt_p50", "tok", "t", "w", "median prompt length"),
    _f("work.prompt_p99", "tok", "t", "w", "99 % of prompts are shorter"),
    _f("work.prompt_mean", "tok", "t", "w", "mean prompt length"),
    _f("work.output_p50", "tok", "t", "w", "median generated length"),
    _f("work.output_p99", "tok", "t", "w", "99 % of outputs are shorter"),
    _f("work.output_mean", "tok", "t", "w", "mean generated length"),
    _f("work.max_tokens_p50", "tok", "t", "w", "median output limit that requests ask for"),
    _f("work.sequence_mean", "tok", "t", "w", "prompt + generated: the price of one eviction"),
    _f("work.length_cv", "ratio", "t", "w", "spread of sequence length (narrow: victim choice cannot matter)"),
    _f("work.arrival_rate", "/s", "t", "w", "(finished + change of running and waiting) / window_s"),
    _f("work.concurrency_max", "count", "t", "w", "largest running + waiting"),
    _f("work.multi_turn_share", "1", "t", "w", "requests whose prefix belongs to an earlier one"),
    _f("prefix.enabled", "bool", "t", "c", "prefix reuse on"),
    _f("prefix.lookup_tokens", "tok", "t", "w", "tokens looked up (a prompt admitted again counts again)"),
    _f("prefix.hit_share", "1", "t", "w", "hit / looked-up tokens from deltas (version bias noted)"),
    _f("prefix.evicted_tokens", "tok", "t", "w", "cached prefix tokens dropped to make room"),
    _f("prefix.session_tokens", "tok", "t", "w", "longest prompt of each conversation that came back, summed"),
    _f(
        "prefix.standing_misses",
        "count",
        "t",
        "e",
        "prompts that reused nothing although what their slot or conversation left was still held",
    ),
    _f(
        "prefix.shown_hit_rate",
        "1",
        "t",
        "i",
        "hit rate the engine itself shows (log line or gauge), over its own window",
    ),
    _f("prefix.external_hit_share", "1", "t", "w", "hits served by the CPU/disk/remote tier"),
    _f("mem.total", "B", "g", "i", "memory of the device", combine="max"),
    _f(
        "mem.used",
        "B",
        "g",
        "i",
        "device memory in use, the driver's reserve left out where the source allows it",
        combine="max",
    ),
    _f("mem.free", "B", "g", "i", "device memory that is free", combine="min"),
    _f("mem.used_share", "1", "g", "i", "used / total of the fullest device", combine="max"),
    _f("mem.reserved", "B", "g", "i", "device memory the driver keeps for itself", combine="max"),
    _f("mem.weights", "B", "r", "s", "weights of one rank", combine="max"),
    _f("mem.activations", "B", "r", "s", "activation peak of the profile run", combine="max"),
    _f("mem.graphs", "B", "r", "s", "memory of CUDA graphs", combine="max"),
    _f("mem.non_torch", "B", "r", "s", "memory outside the framework (context, NCCL, cuBLAS)", combine="max"),
    _f("mem.kv_pool", "B", "r", "s", "memory given to the KV pool at start", combine="max"),
    _f("mem.allocator_gap", "B", "r", "e", "reserved - allocated", combine="max"),
    _f("mem.foreign", "B", "g", "i", "used by processes that are not the target", combine="sum"),
    _f("mem.unexplained", "B", "g", "i", "total - every named part (never hidden)", combine="sum"),
    _f("mem.fraction", "1", "t", "c", "share of the device the engine may take"),
    _f(
        "mem.orphans",
        "count",
        "g",
        "i",
        "engine workers without a living parent, or used > 0 with no process",
        combine="sum",
    ),
    _f("mem.spill", "B", "g", "i", "shared/system memory in use by the driver", combine="sum"),
    _f("oom.count", "count", "r", "e", "device OOM events (duplicates by rank merged)", combine="sum"),
    _f(
        "oom.requested",
        "B",
        "r",
        "e",
        "bytes the failed allocation asked for (rounded up by the allocator)",
        combine="first",
    ),
    _f(
        "oom.free",
        "B",
        "r",
        "e",
        "device memory free at the failure, after cached memory was given back",
        combine="min",
    ),
    _f(
        "oom.unallocated",
        "B",
        "r",
        "e",
        "reserved by the allocator and not in use, at the failure",
        combine="first",
    ),
    _f("oom.cap", "B", "r", "e", "most the process was allowed to take", combine="first"),
    _f("oom.fragmented", "bool", "r", "e", "unallocated >= requested AND >= 3 % of the device", combine="max"),
    _f(
        "oom.cap_refused",
        "bool",
        "r",
        "e",
        "the process's own memory limit refused the request while the device had room",
        combine="first",
    ),
    _f(
        "oom.site",
        "enum",
        "r",
        "e",
        "prefill, decode, sampler, logprobs, lora, multimodal, wake_up, graph_capture, weights_load, kv_alloc, other",
        combine="first",
        choices=(
            "prefill",
            "decode",
            "sampler",
            "logprobs",
            "lora",
            "multimodal",
            "wake_up",
            "graph_capture",
            "weights_load",
            "kv_alloc",
            "other",
        ),
    ),
    _f("oom.before_serving", "bool", "r", "e", "before the first stats line", combine="max"),
    _f("oom.kv_usage", "1", "r", "e", "usage in the last stats line or crash dump before the OOM", combine="first"),
    _f(
        "oom.in_graph_phase",
        "bool",
        "r",
        "e",
        "the failure lies after the pool was laid out (or graph capture began) and before capture ended and before any request",
        combine="first",
    ),
    _f(
        "oom.foreign",
        "B",
        "r",
        "e",
        "held by others by the message's own numbers: total - free - this process (or - reserved)",
        combine="first",
    ),
    _f("oom.on_fullest_device", "bool", "t", "e", "only devices of the fullest stage failed"),
    _f("oom.on_fullest_rank", "bool", "r", "e", "only the rank with the largest weights failed", combine="first"),
    _f(
        "start.need_tokens",
        "tok",
        "r",
        "s",
        "tokens of the longest request the configuration asks for, from the start-up error",
        combine="max",
    ),
    _f(
        "start.have_tokens",
        "tok",
        "r",
        "s",
        "tokens the pool holds (or the longest length that would fit), from the start-up error",
        combine="min",
    ),
    _f(
        "start.free_bytes",
        "B",
        "r",
        "s",
        "device memory that was free when the engine started, from the start-up error",
        combine="min",
    ),
    _f("start.negative_kv", "bool", "r", "s", "memory left for the KV pool came out negative", combine="max"),
    _f(
        "start.length_cut", "bool", "r", "s", "the engine cut the longest request to what the pool holds", combine="max"
    ),
    _f(
        "mem.twin_workers",
        "count",
        "g",
        "i",
        "device processes that have the name of another engine worker on the same device",
        combine="sum",
    ),
    _f(
        "start.graphs_bytes",
        "B",
        "r",
        "s",
        "graph memory, estimated by the engine and taken off before the pool",
        combine="max",
    ),
    _f("spread.weights_ratio", "ratio", "t", "s", "largest / smallest weights over ranks"),
    _f("mem.orphan_bytes", "B", "g", "i", "device memory held by engine workers without a server", combine="sum"),
    _f(
        "start.need_bytes",
        "B",
        "r",
        "s",
        "KV memory one full request needs, from the start-up error",
        combine="max",
    ),
    _f(
        "start.have_bytes",
        "B",
        "r",
        "s",
        "memory that was left for the KV pool, from the start-up error",
        combine="min",
    ),
    _f(
        "start.free_grew",
        "bool",
        "r",
        "s",
        "a neighbour changed the free memory while this engine measured it",
        combine="max",
    ),
    _f(
        "start.error",
        "enum",
        "t",
        "s",
        "pool_too_small, free_below_fraction, memory_race, config_refused, port_in_use, weights, shared_memory, none",
        choices=(
            "pool_too_small",
            "free_below_fraction",
            "memory_race",
            "config_refused",
            "port_in_use",
            "weights",
            "shared_memory",
            "none",
        ),
    ),
    _f("frag.external", "1", "g", "e", "1 - largest free / total free", combine="max"),
    _f("frag.largest_fit", "B", "g", "e", "largest request that would succeed", combine="min"),
    _f("frag.internal_waste", "1", "r", "i", "allocated - requested / allocated", combine="max"),
    _f("gpu.util", "1", "g", "i", "share of time the device was busy", combine="max"),
    _f(
        "gpu.mem_util", "1", "g", "i", "share of time the memory bus was busy (bandwidth, not occupancy)", combine="max"
    ),
    _f(
        "gpu.wddm",
        "bool",
        "g",
        "c",
        "Windows display driver model, whose driver may spill to system memory",
        combine="max",
    ),
    _f("gpu.clock_share", "1", "g", "i", "SM clock / its maximum", combine="min"),
    _f(
        "gpu.capped_clock",
        "1",
        "g",
        "i",
        "SM clock / maximum of a device that names a power, thermal or slowdown reason; 1 where none does",
        combine="min",
    ),
    _f(
        "gpu.throttle",
        "enum",
        "g",
        "i",
        "none, power, thermal, hw_slowdown, other",
        combine="first",
        choices=("none", "power", "thermal", "hw_slowdown", "other"),
    ),
    _f(
        "gpu.xid_order",
        "enum",
        "g",
        "e",
        "none, before_error, after_error, alone",
        combine="first",
        choices=("none", "before_error", "after_error", "alone"),
    ),
    _f("gpu.xid_outlived", "bool", "t", "e", "the server computed tokens after the last Xid"),
    _f("gpu.xid_fatal", "bool", "t", "e", "Xid 48, 74, 79, 94, 95, 119 or 120 (broken hardware), and no work after it"),
    _f("host.oom_kill", "bool", "t", "e", "the kernel, the cgroup or the node killed the server for host memory"),
    _f(
        "host.killed",
        "bool",
        "t",
        "e",
        "a process or container of the server ended by SIGKILL (137, -9), whoever sent it",
    ),
    _f(
        "host.rss_slope",
        "B/s",
        "t",
        "w",
        "growth of resident memory per second",
    ),
    _f("host.rss_growth", "1", "t", "w", "resident memory: (last - first) / first"),
    _f("host.rss_steps_up", "1", "t", "w", "share of consecutive samples in which resident memory rose"),
    _f("host.rss_samples", "count", "t", "w", "dated samples of resident memory"),
    _f("host.rss_window_s", "s", "t", "w", "time between the first and the last of them"),
    _f("host.cgroup_usage", "1", "t", "i", "memory of the container / its limit"),
    _f("host.stuck_in_driver", "bool", "t", "e", "a process spins or waits inside the GPU driver and cannot be killed"),
    _f("scaler.on_gpu_util", "bool", "t", "c", "an autoscaler scales on GPU utilisation"),
    _f(
        "host.file_cache_share",
        "1",
        "t",
        "w",
        "file cache (inactive_file) / memory of the container",
    ),
    _f(
        "host.cpu_busy",
        "1",
        "t",
        "w",
        "processor time of the busiest engine process (1 = one core)",
    ),
    _f(
        "spread.running_ratio",
        "ratio",
        "t",
        "w",
        "largest / mean requests per engine (on a group: per server whose windows overlap)",
    ),
    _f(
        "spread.usage_gap",
        "1",
        "t",
        "w",
        "largest - smallest peak pool usage of the engines (on a group: of the servers)",
    ),
    _f("spread.preempt_top", "1", "t", "w", "share of preemptions on one engine"),
    _f("spread.mem_ratio", "ratio", "t", "i", "max / min of mem.used over ranks"),
    _f(
        "spread.stage_ratio",
        "ratio",
        "t",
        "i",
        "max / min of mem.used over the devices of one pipeline, one rank on each",
    ),
    _f("group.pool_ratio", "ratio", "x", "s", "max / min of kv.pool_tokens, same model and flags"),
    _f(
        "group.gpu_ratio",
        "ratio",
        "x",
        "w",
        "devices of the later run / of the earlier one (or benchmark row against row)",
    ),
    _f(
        "group.throughput_ratio",
        "ratio",
        "x",
        "w",
        "throughput of the later run / of the earlier one (or benchmark row against row)",
    ),
    _f("group.running_ratio", "ratio", "x", "w", "most running requests, later run / earlier run"),
    _f(
        "group.sweep_rate_drop",
        "1",
        "x",
        "w",
        "concurrency sweep: throughput at the highest load below the best row without preemptions",
    ),
    _f("group.usage_max", "1", "x", "w", "largest KV usage of the two runs"),
    _f("group.tp_ratio", "ratio", "x", "c", "tensor parallel size: larger / smaller of two runs of one model"),
    _f(
        "group.tp_speedup",
        "ratio",
        "x",
        "w",
        "generation throughput of the run with the larger tensor parallel size / of the other",
    ),
    _f("group.recompute_change", "1", "x", "w", "recompute share of the later run - of the earlier one"),
    _f(
        "group.slope_break",
        "ratio",
        "x",
        "w",
        "concurrency sweep: TPOT step at the first row with preemptions / largest step before it",
    ),
    _f("group.sweep_preemptions", "count", "x", "w", "concurrency sweep: preemptions of all rows"),
    _f("group.concurrency_growth", "ratio", "x", "w", "concurrency sweep: last row / first row"),
    _f("group.tpot_growth", "ratio", "x", "w", "concurrency sweep: TPOT of the last row / of the first"),
    _f("group.policy_changed", "bool", "x", "w", "two runs on the same GPUs and model differ in a policy setting only"),
    _f("group.pressure_before", "bool", "x", "w", "the earlier run had KV pressure and requests waiting or preempted"),
    _f("group.pressure_after", "bool", "x", "w", "the later run has KV pressure or requests waiting"),
    _f("group.recompute_before", "1", "x", "w", "recompute.token_share of the earlier run"),
    _f("group.fraction_bracket", "bool", "x", "s", "f fails for too little KV and f + .01 runs out of memory"),
    _f("offload.store_failures", "count", "t", "w", "failed stores to the CPU/disk tier"),
    _f("offload.usage", "1", "t", "i", "fullness of that tier"),
    _f(
        "pd.prefill_queue",
        "count",
        "t",
        "w",
        "disaggregated: most requests waiting on the prefill side, as this server tells it",
    ),
    _f("pd.decode_queue", "count", "t", "w", "disaggregated: most requests waiting for room on the decode side"),
    _f(
        "pd.transfer_queue",
        "count",
        "t",
        "i",
        "disaggregated: requests waiting for a KV transfer at the last sample",
    ),
    _f("pd.expired", "count", "t", "w", "disaggregated: KV transfers that expired"),
    _f("group.pd_decode_usage", "1", "x", "w", "disaggregated: largest KV usage on the decode side"),
    _f("group.pd_decode_waiting", "count", "x", "w", "disaggregated: most requests waiting on the decode side"),
    _f("group.pd_prefill_usage", "1", "x", "w", "disaggregated: largest KV usage on the prefill side"),
    _f("group.pd_prefill_waiting", "count", "x", "w", "disaggregated: most requests waiting at the prefill servers"),
    _f("model.loads", "count", "t", "w", "model loads and reloads in the log, those after a pause apart"),
    _f("model.loads_per_request", "ratio", "t", "w", "model (re)loads / requests"),
    _f("model.loaded_names", "count", "t", "w", "different models that were loaded"),
    _f(
        "model.device_share",
        "1",
        "t",
        "s",
        "layers of the model on a device / all of them; bytes where only those are told",
    ),
    _f(
        "prefix.states_lost",
        "count",
        "t",
        "w",
        "prompts computed in full because window or recurrent layers kept no state",
    ),
    _f("prefix.states_lost_share", "1", "t", "w", "such prompts / requests"),
    _f(
        "telemetry.na_readings",
        "count",
        "t",
        "i",
        "device memory readings that were asked for and answered with N/A, not supported or no permission",
    ),
    _f(
        "telemetry.missing",
        "count",
        "t",
        "w",
        "series that metrics or log of this engine version normally carry and these do not: pool usage, running, waiting, preemptions",
    ),
    _f("whatif.reproduces", "bool", "t", "w", "replay within its stated error of the observed preemptions"),
    _f("whatif.asis", "1", "t", "w", "goodput of the replay as it is (interval over seeds)"),
    _f("whatif.policy", "1", "t", "w", "goodput of the replay under the best policy this version has"),
    _f("whatif.more_kv", "1", "t", "w", "goodput of the replay with twice the pool"),
    _f("whatif.more_gpu", "1", "t", "w", "goodput of the replay with two devices"),
    _f("whatif.watermark", "1", "t", "w", "best admission free share for this load"),
)

FACTS: Mapping[str, FactDef] = {row.name: row for row in _ROWS}

LEVERS: Mapping[str, str] = {
    "sched.max_running": "most sequences computed at a time",
    "sched.batch_tokens": "tokens per scheduler step",
    "sched.max_queue": "most requests allowed to wait",
    "sched.policy": "order of the queue",
    "admission.free_share": "share of the pool kept free at admission (watermark)",
    "admission.full_prompt": "admit only when the whole prompt fits",
    "admission.reserve_output": "tokens of output reserved at admission",
    "victim.order": "who is preempted first",
    "victim.protect": "who is never preempted",
    "victim.cooldown": "time before the same request may be preempted again",
    "kv.pool_share": "share of device memory for weights and pool",
    "kv.pool_bytes": "pool size, absolute",
    "kv.dtype": "data type of the KV cache",
    "kv.block_tokens": "tokens per block or page",
    "kv.offload_bytes": "second tier for KV blocks in host memory or on disk",
    "prefix.enable": "reuse of common prefixes",
    "prefix.states": "earlier states kept of layers with a sliding window or a recurrent state",
    "mem.device_layers": "layers of the model computed on a device",
    "mem.max_model_len": "longest request",
    "mem.graphs": "CUDA graph capture",
    "mem.prefill_chunk": "longest piece of a prompt computed at once",
    "mem.lora_slots": "adapters held and their rank",
    "mem.multimodal_limit": "images, videos, audio per request",
    "mem.logprobs_cap": "most log probabilities per token",
    "mem.allocator_conf": "settings of the CUDA caching allocator",
    "mem.process_cap": "share of the device one process may take",
    "topo.tp": "tensor and pipeline parallel layout",
    "topo.dp": "replicas",
    "topo.pd_split": "servers of the prefill side and of the decode side",
    "topo.routing": "who sends which request to which replica",
    "client.max_tokens": "output limit sent by clients",
    "client.prefix_order": "order of the parts of a prompt",
    "host.kill_orphan": "end a left-over worker",
    "host.separate_tenants": "give each engine its own device or start them one after another",
    "host.loaded_models": "models kept loaded at a time",
    "host.scaler_metric": "what the autoscaler follows",
    "host.power_cap": "power, clocks, cooling",
    "host.memory": "host memory of the container or machine",
    "engine.version": "upgrade or change of the engine or driver",
    "observe.metrics": "the engine's metrics",
    "observe.request_log": "a log line per request or iteration",
    "observe.victims": "who is preempted, seen from inside",
}


def suggest(name: str, among: Iterable[str], most: int = 3) -> list[str]:
    """Names close to a misspelt one, best first (for error messages)."""
    import difflib

    return difflib.get_close_matches(name, list(among), n=most, cutoff=0.6)
