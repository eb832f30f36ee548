"""Facts, values and times in words a person reads; everything that came from outside is made harmless here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from kvdoctor.facts import FACTS, Fact, How, Known, Value
from kvdoctor.findings import Evidence, Verdict

MISDIAGNOSES: Mapping[int, str] = {
    1: "out of memory, but the KV cache is not the reason",
    2: "P99 spikes with preemption",
    3: "the same request is hit again and again",
    4: "throughput falls as concurrency rises",
    5: "more GPUs did not or will not help",
}
"""What people take each of the five misdiagnoses for."""

LABELS: Mapping[str, str] = {
    "req.stuck_samples": "samples in a row in which nothing moved",
    "req.context_share": "share of requests ended by a full context",
    "kv.leak_reported": "the engine itself reports missing KV tokens",
    "kv.overbooked_tokens": "KV tokens in use that no request can hold",
    "kv.context_last": "KV tokens per running request at the end",
    "prefix.standing_misses": "prompts that missed a prefix still in the cache",
    "prefix.shown_hit_rate": "prefix hit rate the engine shows",
    "gpu.capped_clock": "SM clock of a device that names a cap",
    "group.running_ratio": "running requests, later run against earlier",
    "group.sweep_rate_drop": "throughput lost at the highest load",
    "group.usage_max": "peak KV pool usage of the runs",
    "group.tp_ratio": "tensor parallel ranks, larger run against smaller",
    "group.tp_speedup": "throughput, larger run against smaller",
    "group.pd_decode_usage": "peak KV pool usage of the decode servers",
    "group.pd_decode_waiting": "most requests waiting at the decode servers",
    "group.pd_prefill_usage": "peak KV pool usage of the prefill servers",
    "group.pd_prefill_waiting": "most requests waiting at the prefill servers",
    "telemetry.na_readings": "device readings without memory figures",
    "telemetry.missing": "needed series that are missing",
    "target.phase": "phase of the server",
    "target.age_s": "age of the server",
    "target.window_s": "length of the window",
    "target.restarts": "restarts seen",
    "target.failure_reported": "failure reported, with no work after it",
    "target.hang_reported": "hang reported, with no work after it",
    "target.samples": "usable samples",
    "req.running": "requests running",
    "req.running_max": "most requests running",
    "req.running_drop": "fall of running requests while others wait",
    "req.running_growth": "growth of running requests",
    "req.waiting": "requests waiting",
    "req.waiting_max": "most requests waiting",
    "req.waiting_capacity": "requests waiting for memory or a slot",
    "req.waiting_slope": "growth of the queue per second",
    "req.waiting_growth": "growth of the queue",
    "req.flips": "flips between running and waiting",
    "req.swapped_max": "most sequences swapped out",
    "req.finished": "requests finished",
    "req.length_share": "requests ended by their length limit",
    "req.error_share": "requests failed or aborted",
    "req.rejected": "requests refused",
    "req.oversize_refused": "requests too large for the whole pool",
    "req.context_limited": "requests ended by a full context",
    "req.context_needed": "context the longest of them needed",
    "admission.reserves": "output is reserved at admission",
    "req.limit_running": "limit on running requests",
    "req.limit_fits": "running requests the pool takes",
    "req.limit_ranks": "ranks the limit is added up over",
    "kv.pool_tokens": "KV pool size",
    "kv.pool_bytes": "KV pool size in bytes",
    "kv.block_tokens": "KV block size",
    "kv.usage_last": "KV pool usage at the end",
    "kv.usage_max": "peak KV pool usage",
    "kv.usage_mean": "mean KV pool usage",
    "kv.idle_held": "pool that stays in use while nothing runs",
    "kv.reserved_idle": "part of the booked pool that stays empty",
    "kv.per_slot": "each slot owns its part of the pool",
    "kv.full_share": "share of samples with a full pool",
    "kv.pressure": "KV pressure (pool full or somebody preempted)",
    "kv.evictable_share": "reusable share of the pool",
    "kv.hybrid_full": "hybrid layers booked as full attention",
    "kv.secondary_usage_max": "peak usage of a secondary pool",
    "kv.max_concurrency": "longest requests the pool holds",
    "kv.headroom_requests": "average requests that still fit",
    "kv.lost_tokens": "KV tokens nobody holds",
    "kv.frozen_samples": "samples in a row with unchanged usage",
    "kv.growth_while_falling": "rise of KV usage while running falls",
    "kv.sawtooth_falls": "falls of KV usage with nothing generated",
    "kv.context_growth": "growth of the context per request",
    "kv.host_usage_swing": "swing of the swap space in use",
    "kv.page_shortfall": "free tokens that are not whole pages",
    "kv.bytes_per_token": "KV bytes per token as booked",
    "kv.bytes_per_token_formula": "KV bytes per token by the model",
    "kv.block_idle_p50_s": "median idle time of a block before eviction",
    "kv.block_reuse_gap_p50_s": "median time between two uses of a block",
    "preempt.count": "preemptions",
    "preempt.rate": "preemptions per second",
    "preempt.per_finished": "preemptions per finished request",
    "preempt.per_request_min": "least preemptions per request",
    "preempt.hit_share": "requests hit once or more",
    "preempt.hit_twice_share": "requests hit twice or more",
    "preempt.hit_3plus_of_hit": "victims hit three times or more",
    "preempt.repeats_30s": "same request hit again within 30 s",
    "preempt.secondary": "hits while an earlier victim is still recomputed",
    "preempt.victims_near_done": "victims that were nearly done",
    "preempt.victim_remaining_p50": "median tokens a victim had left",
    "preempt.victim_computed_mean": "mean tokens a victim had computed",
    "preempt.kind": "kind of preemption",
    "recompute.tokens": "tokens computed again",
    "recompute.rate": "tokens computed again per second",
    "recompute.token_share": "recomputed share of all computed tokens",
    "recompute.prefill_share": "recomputed share of prefill",
    "recompute.time_share": "share of busy time spent recomputing",
    "tok.prompt": "prompt tokens computed",
    "tok.generated": "tokens generated",
    "tok.prompt_rate": "prompt tokens per second",
    "tok.gen_rate": "generated tokens per second",
    "tok.gen_drop": "fall of the generation rate",
    "tok.gen_zero_samples": "samples with requests running and none generating",
    "tok.prefill_speed": "prefill speed",
    "prefill.full_share": "steps full of prompt tokens while requests waited",
    "latency.ttft_p50": "median time to first token",
    "latency.ttft_p99": "P99 time to first token",
    "latency.e2e_p99": "P99 time of a whole request",
    "latency.itl_p50": "median gap between tokens",
    "latency.itl_p99": "P99 gap between tokens",
    "latency.itl_p999": "P99.9 gap between tokens",
    "latency.itl_tail_ratio": "P99 over median gap between tokens",
    "latency.starved_share": "time in which answers stand nearly still beside prompts",
    "latency.itl_growth": "growth of the time per token",
    "latency.stalls": "gaps over 1 s between tokens",
    "latency.stalls_per_finished": "gaps over 1 s per finished request",
    "latency.stall_share": "requests with a gap over 1 s",
    "latency.queue_p50": "median time in the queue",
    "latency.queue_p99": "P99 time in the queue",
    "latency.queue_share": "queue share of the time to first token",
    "work.prompt_p50": "median prompt length",
    "work.prompt_p99": "P99 prompt length",
    "work.prompt_mean": "mean prompt length",
    "work.output_p50": "median output length",
    "work.output_p99": "P99 output length",
    "work.output_mean": "mean output length",
    "work.max_tokens_p50": "median output limit asked for",
    "work.sequence_mean": "average sequence length",
    "work.length_cv": "spread of sequence lengths",
    "work.arrival_rate": "arrivals per second",
    "work.concurrency_max": "most requests at a time",
    "work.multi_turn_share": "requests that continue an earlier one",
    "prefix.enabled": "prefix reuse",
    "prefix.lookup_tokens": "tokens looked up in the prefix cache",
    "prefix.hit_share": "prefix cache hits",
    "prefix.evicted_tokens": "cached prefix tokens evicted",
    "prefix.session_tokens": "tokens of all returning conversations",
    "prefix.external_hit_share": "hits served by the outer tier",
    "mem.total": "device memory",
    "mem.used": "device memory in use",
    "mem.free": "device memory free",
    "mem.used_share": "memory usage of the fullest device",
    "mem.reserved": "device memory reserved by the driver",
    "mem.weights": "weights",
    "mem.activations": "activation peak",
    "mem.graphs": "CUDA graphs",
    "mem.non_torch": "memory outside PyTorch",
    "mem.kv_pool": "KV pool in memory",
    "mem.allocator_gap": "memory PyTorch reserved and does not use",
    "mem.foreign": "memory of other processes",
    "mem.unexplained": "memory nobody explains",
    "mem.fraction": "share of the device the engine may take",
    "mem.orphans": "left-over engine workers",
    "mem.orphan_bytes": "memory held by left-over workers",
    "mem.spill": "memory spilled to the host by the driver",
    "oom.count": "out-of-memory events",
    "oom.requested": "memory asked for when it failed",
    "oom.free": "memory free when it failed",
    "oom.unallocated": "reserved but unallocated when it failed",
    "oom.cap": "memory the process was allowed",
    "oom.cap_refused": "refused by the process's own limit",
    "oom.fragmented": "more reserved and unused than was asked for",
    "oom.site": "where it ran out",
    "oom.before_serving": "failed before it served",
    "oom.kv_usage": "KV pool in use before it failed",
    "oom.in_graph_phase": "failed while graphs were captured",
    "oom.foreign": "memory held by others when it failed",
    "oom.on_fullest_device": "only devices of the fullest stage failed",
    "oom.on_fullest_rank": "only the rank with the largest weights failed",
    "start.need_tokens": "tokens the longest request needs",
    "start.have_tokens": "tokens the pool holds",
    "start.free_bytes": "memory free at the start",
    "start.negative_kv": "memory left for KV came out negative",
    "start.length_cut": "longest request cut to what the pool holds",
    "mem.twin_workers": "second workers of the same rank on one device",
    "start.graphs_bytes": "graph memory taken off before the pool",
    "start.need_bytes": "KV memory one full request needs",
    "start.have_bytes": "KV memory available",
    "start.free_grew": "free memory changed during profiling",
    "start.error": "reason the start failed",
    "frag.external": "external fragmentation",
    "frag.largest_fit": "largest request that would fit",
    "frag.internal_waste": "internal fragmentation",
    "gpu.util": "GPU utilisation",
    "gpu.mem_util": "memory bus busy",
    "gpu.wddm": "Windows display driver model",
    "gpu.clock_share": "clock against its maximum",
    "gpu.throttle": "clock throttling",
    "gpu.xid_order": "Xid against the first error",
    "gpu.xid_outlived": "work after the last Xid",
    "gpu.xid_fatal": "Xid of broken hardware",
    "host.oom_kill": "killed for host memory",
    "host.killed": "ended by SIGKILL",
    "host.rss_slope": "growth of resident memory per second",
    "host.rss_growth": "growth of resident memory",
    "host.rss_steps_up": "samples in which resident memory rose",
    "host.rss_samples": "samples of resident memory",
    "host.rss_window_s": "time over which resident memory was sampled",
    "host.cgroup_usage": "container memory in use",
    "host.file_cache_share": "file cache in the container's memory",
    "host.cpu_busy": "cores used by the busiest engine process",
    "host.stuck_in_driver": "process stuck in the GPU driver",
    "scaler.on_gpu_util": "autoscaler follows GPU utilisation",
    "spread.running_ratio": "busiest engine against the mean",
    "spread.usage_gap": "KV usage gap of fullest and emptiest engine",
    "spread.preempt_top": "preemptions on one engine",
    "spread.stage_ratio": "memory of fullest over emptiest stage",
    "spread.mem_ratio": "memory of fullest over emptiest rank",
    "spread.weights_ratio": "weights of largest over smallest rank",
    "group.pool_ratio": "pool of largest over smallest replica",
    "group.gpu_ratio": "GPUs of the later over the earlier run",
    "group.throughput_ratio": "throughput of the later over the earlier run",
    "group.recompute_change": "change of the recomputed share",
    "group.recompute_before": "recomputed share of the earlier run",
    "group.slope_break": "jump of the time per token in the sweep",
    "group.sweep_preemptions": "preemptions in the sweep",
    "group.concurrency_growth": "growth of concurrency in the sweep",
    "group.tpot_growth": "growth of the time per token in the sweep",
    "group.policy_changed": "only a policy setting differs",
    "group.pressure_before": "pressure in the earlier run",
    "group.pressure_after": "pressure in the later run",
    "group.fraction_bracket": "one fraction too small and the next too large",
    "offload.store_failures": "failed stores to the outer tier",
    "offload.usage": "outer tier in use",
    "pd.prefill_queue": "most requests waiting on the prefill side",
    "pd.decode_queue": "most requests waiting on the decode side",
    "pd.transfer_queue": "waiting for KV transfer",
    "pd.expired": "KV transfers that expired",
    "model.loads": "model loads",
    "model.loads_per_request": "model loads per request",
    "model.loaded_names": "different models loaded",
    "model.device_share": "share of the model on a device",
    "prefix.states_lost": "prompts computed in full for want of a kept state",
    "prefix.states_lost_share": "share of prompts computed in full for want of a kept state",
    "whatif.reproduces": "replay matches what was seen",
    "whatif.asis": "goodput replayed as it is",
    "whatif.policy": "goodput with another policy",
    "whatif.more_kv": "goodput with a larger pool",
    "whatif.more_gpu": "goodput with another GPU",
    "whatif.watermark": "best share to keep free at admission",
}

YEARLESS = 1972
"""Log lines without a year are read in this year; it is never shown."""

_FACT = re.compile(r"\b[a-z]+\.[a-z][a-z0-9_]*\b")
_SERIES = re.compile(r"(\S+:\d+) (\S+)")
_THRESHOLD = re.compile(r"\bthresholds\.([a-z][a-z0-9_]*)")


def clean(text: str) -> str:
    """``text`` on one line with every character that could steer a terminal or hide itself written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\u00a0" else _escape(c) for c in text)


def _escape(char: str) -> str:
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(char)
    return names.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def flow(text: str) -> str:
    """Prose: line breaks of the author become spaces, the rest is cleaned."""
    return clean(" ".join(text.split()))


def sentence(text: str) -> str:
    """``text`` with a full stop, unless it has an end of its own, and with a capital first letter, unless it starts with a name."""
    text = ended(flow(text))
    first = text.split(" ", 1)[0].rstrip(",.:;")
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text


def ended(text: str) -> str:
    """``text`` with a full stop, unless it is empty or has an end of its own."""
    return text if not text or text.endswith((".", ":", ";", "!", "?")) else f"{text}."


def label(fact: str) -> str:
    """What a fact is called in a sentence; in an expression every fact gets its own words."""
    return LABELS.get(fact) or clean(relabel(fact))


def relabel(expression: str) -> str:
    """An expression with the names of facts put in words."""
    return _FACT.sub(lambda m: LABELS.get(m[0], m[0]), expression)


def unit_of(fact: str) -> str:
    """The unit in the vocabulary, '' for an expression."""
    return FACTS[fact].unit if fact in FACTS else ""


# ---------------------------------------------------------------------------------------------- values


def value(number: Value | None, unit: str, digits: int = 3) -> str:
    """One value with its unit, to ``digits`` significant digits: ``97 %``, ``1.2k tokens``, ``79.1 GiB``, ``yes``."""
    if number is None:
        return "unknown"
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, str):
        return clean(number)
    if unit == "1":
        return f"{_digits(number * 100, digits)} %"
    if unit == "B":
        return size(number, digits)
    if unit == "B/s":
        return f"{size(number, digits)}/s"
    if unit == "s":
        return duration(number, digits)
    if unit == "/s":
        return f"{_digits(number, digits)}/s"
    if unit == "tok":
        return f"{_short(number, digits)} tokens"
    if unit == "tok/s":
        return f"{_short(number, digits)} tokens/s"
    if unit == "count":
        return _short(number, digits)
    return _digits(number, digits)


def interval(lo: Value | None, hi: Value | None, unit: str, digits: int = 3) -> str:
    """A value, or ``between a and b`` when only bounds are known, ``a or more`` when only the lower one is."""
    if hi == math.inf:
        return f"{value(lo, unit, digits)} or more"
    low, high = _ends(lo, hi, unit, digits)
    return f"between {low} and {high}" if low else high


def span(lo: Value | None, hi: Value | None, unit: str, digits: int = 3) -> str:
    """The same in little room: ``a to b``."""
    if hi == math.inf:
        return f"{value(lo, unit, digits)} or more"
    low, high = _ends(lo, hi, unit, digits)
    return f"{low} to {high}" if low else high


def _ends(lo: Value | None, hi: Value | None, unit: str, digits: int) -> tuple[str, str]:
    """Both ends with the unit behind the second where it is the same; the first is '' where they read alike."""
    high = value(hi, unit, digits)
    low = value(lo, unit, digits) if lo is not None and hi is not None else high
    if low == high:
        return "", high
    if lo == 0 and not isinstance(lo, bool):
        return "0", high
    tail = high[high.rfind(" ") :] if " " in high else ""
    return (low.removesuffix(tail) if tail else low), high


def of_fact(fact: Fact, unit: str) -> str:
    """The value of a fact, ``a to b`` for bounds; ``unknown`` when there is none."""
    return span(fact.lo, fact.hi, unit) if isinstance(fact, Known) else "unknown"


def comparison(seen: Evidence) -> tuple[str, str]:
    """The value seen and what it was compared with: ``("97 %", ">= 75 %")``; two numbers that differ never read alike."""
    unit = seen.unit or unit_of(seen.fact)
    if seen.op in ("known", "unknown"):
        return "known" if (seen.op == "known") == bool(seen.outcome) else "not known", ""
    if seen.op not in ("<", "<=", ">", ">=", "==", "!=") or seen.threshold is None:
        return interval(seen.lo, seen.hi, unit), ""
    for digits in (3, 5, 8, 15):
        left, right = interval(seen.lo, seen.hi, unit, digits), value(seen.threshold, unit, digits)
        if left != right or seen.lo == seen.threshold or seen.hi == seen.threshold:
            break
    return left, f"{seen.op} {right}"


def _digits(number: float, digits: int) -> str:
    if number == 0:
        return "0"
    if abs(number) >= 10 ** (digits - 1):
        return f"{number:.0f}"
    if abs(number) < 10 ** (1 - digits):
        return f"{number:.{max(digits - 2, 1)}g}"
    return f"{number:.{digits}g}"


def _short(number: float, digits: int) -> str:
    """Whole up to 9999, then with k, M, G."""
    if abs(number) < 10_000:
        return f"{number:.0f}" if float(number).is_integer() else _digits(number, digits)
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= power * 0.9995:
            return f"{_digits(number / power, digits)}{letter}"
    return _digits(number, digits)


def size(number: float, digits: int = 3) -> str:
    """Bytes in the largest binary unit that keeps the figure at one or more."""
    for power, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(number) >= power * 0.9995:
            return f"{_digits(number / power, digits)} {name}"
    return f"{number:.0f} bytes" if number else "0"


def duration(seconds: float, digits: int = 3) -> str:
    """Seconds as ms, s, min, h or d."""
    size_ = abs(seconds)
    if size_ == 0:
        return "0 s"
    if size_ < 1:
        return f"{_digits(seconds * 1000, digits)} ms"
    if size_ < 300:
        return f"{_digits(seconds, digits)} s"
    for length, name in ((86400 * 2, "d"), (7200, "h"), (0, "min")):
        if size_ >= length:
            return f"{_digits(seconds / {'d': 86400, 'h': 3600, 'min': 60}[name], digits)} {name}"
    raise AssertionError(seconds)


def how_word(how: How | None) -> str:
    """The provenance in one word; a bound says ``bounds``."""
    return "" if how is None else {"bound": "bounds"}.get(how, how)


def short_source(source: str) -> str:
    """A source in little room: the series, or else ``file:line``, of the first one; the others counted."""
    first, *others = source.split(", ")
    match = _SERIES.fullmatch(first)
    return clean(match[2] if match else first) + (f" +{len(others)}" if others else "")


def place(source: str) -> str:
    """``file:line`` of a source that names a series behind it."""
    match = _SERIES.fullmatch(source)
    return clean(match[1] if match else source)


def setting(start: str) -> str:
    """A setting as it is now: ``now 32``, ``default 0.0``, ``default 0.0, version not known``."""
    for tail, more in ((" (default)", ""), (" (default, version not known)", ", version not known")):
        if start.endswith(tail):
            return f"default {flow(start.removesuffix(tail))}{more}"
    return f"now {flow(start)}"


# ---------------------------------------------------------------------------------------------- times


def has_year(t: float) -> bool:
    """False for a time read from a log that prints no year."""
    return _utc(t).year != YEARLESS


def _utc(t: float) -> datetime:
    return datetime.fromtimestamp(t, UTC)


def rfc3339(t: float | None) -> str | None:
    """UTC to the millisecond; None without a time or without a year (a made-up year would be a false statement)."""
    if t is None or not has_year(t):
        return None
    return _utc(t).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def day(t: float) -> str:
    """``2026-11-29``, or ``11-29`` where the year is not known."""
    return _utc(t).strftime("%Y-%m-%d" if has_year(t) else "%m-%d")


def clock(t: float) -> str:
    """``13:03:35``"""
    return _utc(t).strftime("%H:%M:%S")


# ---------------------------------------------------------------------------------------------- checks


def spelled(check: str, verdict: Verdict) -> str:
    """How to verify, with the numbers of the rule's thresholds in place of their names, as far as the evidence tells them."""
    numbers = {e.threshold_name: value(e.threshold, e.unit) for e in verdict.evidence if e.threshold is not None}
    return condition(_THRESHOLD.sub(lambda m: numbers.get(m[1], m[0]), flow(check)))


_COMPARED = re.compile(
    r"\b(?P<fact>[a-z]+\.[a-z][a-z0-9_]*) (?P<op><=|>=|==|!=|<|>) "
    r"(?P<limit>-?\d[\d.]*(?:e[+-]?\d+)?(?![\w.]| ?%)|\"[a-z_]+\"|true|false)(?: \((?P<unit>[\w/]+)\))?"
)


_DENIED = re.compile(r"\bnot (?P<fact>[a-z]+\.[a-z][a-z0-9_]*)\b")


def condition(expression: str) -> str:
    """A condition over facts for a person: labels, limits in the unit of the fact, ``none`` for nothing."""

    def one(match: re.Match[str]) -> str:
        name, op, limit = label(match["fact"]), match["op"], match["limit"]
        if limit in ("true", "false"):
            return f"{name}: {'yes' if (limit == 'true') == (op == '==') else 'no'}"
        if limit.startswith('"'):
            return f"{name}{': ' if op == '==' else ' is not '}{limit[1:-1]}"
        number = float(limit)
        if op == "==" and number == 0:
            return f"{name}: none"
        return f"{name} {op if op != '==' else '='} {value(number, match['unit'] or unit_of(match['fact']))}"

    def denied(match: re.Match[str]) -> str:
        return f"{label(match['fact'])}: no" if unit_of(match["fact"]) == "bool" else match[0]

    return relabel(_DENIED.sub(denied, _COMPARED.sub(one, flow(expression))))
