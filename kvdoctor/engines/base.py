"""The form every engine table has: how to recognise the engine, what it says under which name, which levers it has.

An engine is one file beside this one that defines ``ENGINE = Engine(...)``; :func:`engines` finds them all. Nothing else
has to be touched to add one.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Literal

from kvdoctor.frozen import frozen
from kvdoctor.parse.serverlog import LogTemplate

if TYPE_CHECKING:
    from kvdoctor.policy import Policy

Kind = Literal["gauge", "counter", "histogram", "summary", "info"]

Version = tuple[int, ...]


def version_key(text: str | None) -> Version | None:
    """``'0.10.2rc1+cpu'`` -> ``(0, 10, 2)``; None when there is no leading number (then nothing is known of it)."""
    if not text:
        return None
    match = re.match(r"v?b?(\d+(?:\.\d+)*)", text)
    return tuple(int(p) for p in match.group(1).split(".")) if match else None


def in_range(version: str | None, since: str | None, until: str | None) -> bool | None:
    """Is ``version`` within ``since..until`` (both inclusive, None = open)? None when the version is not known.

    ``until = '0.10'`` includes 0.10.2: only as many parts as ``until`` has are compared.
    """
    if since is None and until is None:
        return True
    key = version_key(version)
    if key is None:
        return None
    low, high = version_key(since), version_key(until)
    if low is not None and key < low:
        return False
    return not (high is not None and key[: len(high)] > high)


@frozen
class SeriesName:
    """One wire name of a role: ``scale`` turns the vendor's unit into the canonical one (fraction, byte, second).

    ``since``/``until`` are engine versions (inclusive). ``where`` keeps only samples with these label values; an empty
    value asks for a label that is absent or empty. A role may be split by a label, then ``by`` names it and the readings
    are keyed ``role{value}``; where the vendor splits by name instead, ``key`` gives the value and each key is its own
    :class:`Series`. ``ignore`` explains why a series that looks right is not used (a trap), and then it is never read.
    """

    name: str
    kind: Kind
    scale: float = 1.0
    since: str | None = None
    until: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    ignore: str = ""
    key: str = ""


@frozen
class Series:
    """A canonical role and the names it had, newest first; the first name present in a scrape is used.

    ``absent_is_zero``: the counter appears with its first event, so its absence from a page of that version means none.
    """

    role: str
    names: tuple[SeriesName, ...]
    note: str = ""
    absent_is_zero: bool = False


ROLES: Mapping[str, tuple[str, str]] = {
    "run.start": ("s", "process start, epoch seconds"),
    "run.cpu": ("s", "processor seconds used, counter"),
    "run.rss": ("B", "resident memory"),
    "req.running": ("count", "requests being computed"),
    "req.waiting": ("count", "requests queued (preempted ones included where the engine does so)"),
    "req.waiting_reason": ("count", "the same, by reason: keyed by capacity, deferred"),
    "req.swapped": ("count", "sequences swapped to the host"),
    "req.paused": ("count", "requests paused, retracted or parked, now (gauge)"),
    "req.finished": ("count", "requests ended, counter; keyed by reason where the engine tells it"),
    "req.arrived": ("count", "requests received, counter"),
    "req.aborted": ("count", "requests aborted, counter"),
    "req.failed": ("count", "requests failed, counter"),
    "req.rejected": ("count", "requests refused at admission, counter"),
    "req.limit_running": ("count", "configured limit of running sequences"),
    "kv.usage": ("1", "share of the pool in use"),
    "kv.cpu_usage": ("1", "share of the host swap space or tier in use"),
    "kv.secondary_usage": ("1", "usage of a secondary pool, keyed by its name (swa, mamba ...)"),
    "kv.pool_tokens": ("tok", "pool size in tokens"),
    "kv.pool_blocks": ("count", "pool size in blocks"),
    "kv.pool_bytes": ("B", "pool size in bytes"),
    "kv.block_tokens": ("tok", "tokens per block or page"),
    "kv.used_tokens": ("tok", "tokens in use"),
    "kv.used_blocks": ("count", "blocks in use"),
    "kv.available_tokens": ("tok", "tokens free"),
    "kv.evictable_tokens": ("tok", "tokens held by reusable prefixes"),
    "kv.info": ("info", "configuration in labels (num_gpu_blocks, block_size, gpu_memory_utilization ...)"),
    "kv.block_idle": ("s", "idle time of a cached block before eviction, histogram"),
    "kv.reuse_gap": ("s", "time between two uses of a cached block, histogram"),
    "preempt.total": ("count", "preemptions, retractions or pauses, counter"),
    "preempt.per_request": ("count", "preemptions per finished request, histogram"),
    "retract.input_tokens": ("tok", "prompt tokens lost by retractions, counter"),
    "retract.output_tokens": ("tok", "generated tokens lost by retractions, counter"),
    "tok.prompt": ("tok", "prompt tokens, counter (what is in it differs: see the table's note)"),
    "tok.generated": ("tok", "generated tokens, counter"),
    "tok.prompt_rate": ("tok/s", "prompt throughput, gauge"),
    "tok.gen_rate": ("tok/s", "generation throughput, gauge"),
    "tok.prefill_compute": ("tok", "prefill tokens computed, redone ones included, counter"),
    "tok.prefill_effective": ("tok", "prompt tokens that were useful, counter"),
    "tok.cached": ("tok", "prompt tokens taken from a cache, counter"),
    "tok.flops": ("count", "estimated floating point operations, counter"),
    "prefix.queries": ("tok", "tokens looked up in the prefix cache, counter"),
    "prefix.hits": ("tok", "tokens found there, counter"),
    "prefix.hit_rate": ("1", "hit rate, gauge"),
    "prefix.evicted": ("tok", "tokens of reusable prefixes dropped from the pool, counter (normal operation)"),
    "prefix.external_queries": ("tok", "tokens looked up in the second tier, counter"),
    "prefix.external_hits": ("tok", "tokens found there, counter"),
    "latency.ttft": ("s", "time to first token, histogram or summary"),
    "latency.itl": ("s", "time between tokens, histogram"),
    "latency.e2e": ("s", "request duration, histogram"),
    "latency.queue": ("s", "time before first scheduling, histogram"),
    "latency.prefill": ("s", "prefill time per request, histogram or summary"),
    "latency.decode": ("s", "decode time per request, histogram"),
    "work.prompt": ("tok", "prompt length, histogram"),
    "work.output": ("tok", "output length, histogram"),
    "work.max_tokens": ("tok", "requested output limit, histogram"),
    "iter.tokens": ("tok", "tokens per engine step, histogram"),
    "offload.usage": ("1", "fullness of the second tier"),
    "offload.used_tokens": ("tok", "tokens held in the second tier"),
    "offload.pool_tokens": ("tok", "size of the second tier in tokens"),
    "offload.failures": ("count", "failed stores to the second tier, counter"),
    "offload.hits": ("tok", "tokens loaded from the second tier, counter"),
    "pd.prefill_queue": ("count", "disaggregated: waiting on the prefill side"),
    "pd.transfer_queue": ("count", "disaggregated: waiting for a KV transfer"),
    "pd.decode_queue": ("count", "disaggregated: waiting for room on the decode side"),
    "pd.expired": ("count", "KV transfers that expired, counter"),
    "pd.failed": ("count", "KV transfers that failed, counter"),
    "spec.drafts": ("count", "speculative drafts, counter; present only with speculative decoding"),
    "observer.recomputed": ("tok", "kvdoctor's observer: tokens computed again, counter"),
    "observer.resumed": ("count", "kvdoctor's observer: admissions of requests that had been preempted, counter"),
    "observer.resume_queries": ("tok", "kvdoctor's observer: tokens such requests had when they came back, counter"),
    "observer.preemptions": (
        "count",
        "kvdoctor's observer: preemptions per finished request, histogram with a 0 bucket",
    ),
    "observer.victims": ("count", "kvdoctor's observer: victims seen, counter"),
    "observer.victims_near_done": ("count", "kvdoctor's observer: victims near completion, counter"),
    "observer.victim_remaining": ("tok", "kvdoctor's observer: remaining tokens of victims, histogram"),
    "observer.repeats": ("count", "kvdoctor's observer: same request hit again within 30 s, counter"),
    "time.prefill": ("s", "seconds spent on prefill, counter"),
    "time.decode": ("s", "seconds spent on decode, counter (summed over slots it exceeds the wall time)"),
    "mem.weights": ("B", "weights on the device, as the engine measured them at start"),
    "mem.graphs": ("B", "captured graphs, as the engine measured them at start"),
    "mem.free_after_start": ("B", "device memory left when the engine was ready"),
    "gpu.util": ("1", "device utilisation"),
    "gpu.mem_used": ("B", "device memory in use"),
    "gpu.mem_free": ("B", "device memory free"),
    "gpu.mem_reserved": ("B", "device memory reserved by the driver"),
    "gpu.sm_clock": ("count", "SM clock, MHz"),
    "gpu.power": ("count", "power draw, W"),
    "gpu.throttle": ("count", "throttle reasons, bit mask"),
    "gpu.xid": ("count", "last Xid"),
}
"""Roles of vendor series: unit and meaning. An engine table maps wire names to them; derive turns them into facts."""


CANONICAL_SETTINGS: Mapping[str, str] = {
    "max_running": "most sequences computed at a time",
    "batch_tokens": "tokens per scheduler step",
    "max_model_len": "longest request, prompt and output together, in tokens",
    "block_tokens": "tokens per KV block or page",
    "pool_blocks": "pool size forced by the operator, in blocks",
    "pool_tokens": "pool size forced by the operator, in tokens",
    "pool_bytes": "pool size forced by the operator, in bytes",
    "fraction": "share of device memory the engine may take (what it covers differs: see the engine's lever)",
    "tp": "tensor parallel ranks",
    "pp": "pipeline parallel ranks",
    "dp": "data parallel replicas behind one server",
    "prefix": "reuse of common prefixes, on or off",
    "kv_dtype": "data type of the KV cache",
    "weight_dtype": "data type or quantisation of the weights",
    "free_share": "share of the pool kept free at admission (watermark)",
    "eager": "graph capture switched off",
    "max_queue": "most requests allowed to wait",
    "policy": "order of the queue",
    "full_prompt": "admit only when the whole prompt fits",
    "model": "model name or path",
    "port": "HTTP port",
    "chunk": "longest piece of a prompt computed at once, in tokens",
    "lora": "adapters, on or off or their number",
    "lora_rank": "largest adapter rank provided for",
    "reserve_policy": "how much output is reserved at admission",
    "preempt_mode": "what happens to a victim: recompute or swap",
    "offload": "second tier for KV blocks",
    "multimodal_limit": "images, videos, audio allowed per request",
    "max_logprobs": "most log probabilities per token",
    "spec": "speculative decoding",
    "connector": "KV transfer connector",
    "scheduler": "scheduler class other than the stock one",
}
"""Settings every engine has in its own words: ``canonical_args`` maps them, ``defaults`` answers in them."""


COMMON_SERIES: tuple[Series, ...] = (
    Series("run.start", (SeriesName("process_start_time_seconds", "gauge"),)),
    Series(
        "run.cpu", (SeriesName("process_cpu_seconds_total", "counter"), SeriesName("process_cpu_seconds", "counter"))
    ),
    Series("run.rss", (SeriesName("process_resident_memory_bytes", "gauge"),)),
)
"""Series of the process itself, the same for every engine."""


@frozen
class Way:
    """What turning a lever in one direction does, costs, and runs into next; '' where the lever's own text holds."""

    effect: str
    cost: str
    next_limit: str


@frozen
class Lever:
    """How this engine turns a lever, newest first.

    ``flag`` is the command-line or environment form (None: this engine has none, ``instead`` says what to do).
    ``setting`` is the key under which the present value appears in the parsed arguments. ``effect`` and ``cost`` are one
    sentence each, ``next_limit`` the limit to expect next, ``verify`` what to look at. ``refused_with`` names a setting beside
    which this version refuses the flag. ``values`` gives the value of a flag that is no number, by direction (up, down, on, off);
    ``inverse``: the flag is one minus the lever (a limit of usage where the lever is a free share); ``margin``: the
    flag is an amount of memory left free of it, so it goes up where the lever goes down. ``flags``: another flag for a direction
    (off, on), complete as it stands. ``not_for``: directions of the lever in which this flag helps nobody, each with what to do instead. ``of_free``: a share of the
    memory that is free when the pool is laid out, not of the device. ``ways``: effect, cost and next limit of a direction, where
    the ones above describe the other (:mod:`kvdoctor.advise.ways` has them for levers that mean the same everywhere).
    ``only_with``: an entry for a fork, taken where an argument was seen that only the fork has.
    """

    lever: str
    flag: str | None
    since: str | None = None
    until: str | None = None
    default: str | None = None
    setting: str = ""
    effect: str = ""
    cost: str = ""
    next_limit: str = ""
    verify: str = ""
    instead: str = ""
    refused_with: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    inverse: bool = False
    margin: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    not_for: Mapping[str, str] = field(default_factory=dict)
    of_free: bool = False
    only_with: str = ""
    ways: Mapping[str, Way] = field(default_factory=dict)


@frozen
class Gap:
    """What the engine does not expose: facts whose names start with ``fact``, why, and how to get them."""

    fact: str
    reason: str
    hint: str
    since: str | None = None
    until: str | None = None


@frozen
class Command:
    """A command a person can run to confirm a finding on this engine and version.

    ``text`` may contain ``{url}``, ``{log}``, ``{pid}``; placeholders nobody knows are printed as ``URL``, ``LOG``, ``PID``.
    """

    name: str
    text: str
    since: str | None = None
    until: str | None = None


@frozen
class Promql:
    """A fact of the window as one PromQL expression over this engine's own series: one value per server.

    Written in these placeholders, which :mod:`kvdoctor.export.promql` fills in:

    - ``<role>`` the wire name of a role in the version asked for, with its selector; ``<role:bucket>`` one part of a
      histogram (``bucket``, ``sum``, ``count``), ``<role#key>`` one of several series of a role, ``<role,le="1.0">``
      with further matchers; ``{scale:role}`` the factor to the canonical unit
    - ``${fact}`` another fact of this table
    - ``{win}`` the window, ``{seconds}`` its length in seconds, ``{by}`` the labels of a server, ``{ranks}`` the labels
      that tell its engines apart

    An entry whose roles have no name in that version is not used; several entries of one fact are tried in order.
    ``end`` says that the expression is only the lower (``lo``) or upper (``hi``) end of the fact. ``choice``: the fact is an
    enum and the expression has a value exactly while it is this choice. ``exact`` is False where Prometheus looks at other
    instants than the fact does (subqueries), so that the two agree in meaning and not to the decimal.
    """

    fact: str
    expr: str
    since: str | None = None
    until: str | None = None
    end: Literal["", "lo", "hi"] = ""
    choice: str = ""
    exact: bool = True


COMMON_COMMANDS: tuple[Command, ...] = (
    Command("gpu.processes", "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory --format=csv"),
    Command(
        "gpu.memory",
        "nvidia-smi --query-gpu=index,name,memory.total,memory.reserved,memory.used,memory.free,utilization.gpu "
        "--format=csv",
    ),
    Command("gpu.clocks", "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE"),
    Command("kernel.xid", "sudo dmesg -T | grep -E 'NVRM: Xid'"),
    Command("kernel.oom", "sudo dmesg -T | grep -iE 'out of memory|oom-kill|oom_reaper'"),
    Command("host.processes", "ps -eo pid,ppid,stat,lstart,rss,args --sort=-rss | head -40"),
)
"""Commands that do not depend on the engine; an engine's own command of the same name comes first."""


@frozen
class Endpoint:
    """An HTTP path read with GET: ``once`` per run or at each sample."""

    path: str
    kind: str
    once: bool = False


Args = dict[str, str]


@frozen
class Scheduler:
    """How an engine version admits, evicts and requeues with these arguments: what a replay needs to know of it.

    ``policy`` is what is in force now. ``turns`` names the levers whose meaning in this version is the one of the policy
    keys, so that a replay may turn them. ``growth`` is the initial ratio of an admission by expected growth (None: there is
    no such thing). ``spare_blocks`` of the pool are never given to a request. ``assumed`` says what was not told.
    """

    policy: Policy
    turns: tuple[str, ...] = ()
    mixed_prefill: bool = True
    requeue: Literal["front", "back"] = "front"
    growth: float | None = None
    spare_blocks: int = 0
    assumed: tuple[str, ...] = ()


def no_scheduler(version: str | None, args: Args) -> Scheduler | str:
    """The answer of an engine whose scheduler nobody has modelled."""
    return "the scheduler of this engine is not modelled, so its load cannot be replayed"


@frozen
class Engine:
    """One engine's table.

    ``metric_prefixes`` and ``log_markers`` recognise it (a marker is an exact piece of a line only this engine prints);
    ``rank_labels`` are the labels that tell ranks or engines of one server apart, most important first.
    ``usage_counts_reusable``: kv.usage counts reusable prefixes as used. ``preempt_kind`` and ``never_preempts`` answer for a
    version and its arguments (None: not known), ``reserves_output`` whether admission waits for room for output that may follow. ``canonical_args`` maps a canonical setting to the names it has in the
    arguments; ``defaults`` gives the version's defaults of canonical settings. ``side``: not a server but something that
    stands beside one (a cache tier, a GPU exporter). ``promql``: its facts as PromQL, for exported alerts and dashboards.
    ``scheduler``: how a version admits and evicts, for a replay, or why it cannot be replayed. ``shared_limit``: the limit on
    running requests is set for all data-parallel ranks together, not for each. ``silent_pauses``: its log names preempted
    requests at a level that is off by default, so a log without such lines says nothing.
    """

    name: str
    title: str
    metric_prefixes: tuple[str, ...]
    log_markers: tuple[str, ...]
    process_markers: tuple[str, ...]
    default_port: int
    endpoints: tuple[Endpoint, ...]
    series: tuple[Series, ...]
    templates: tuple[LogTemplate, ...]
    levers: tuple[Lever, ...]
    gaps: tuple[Gap, ...]
    commands: tuple[Command, ...]
    rank_labels: tuple[str, ...] = ()
    usage_counts_reusable: bool = False
    preempt_kind: Callable[[str | None, Args], str | None] = lambda version, args: None
    never_preempts: Callable[[str | None, Args], bool | None] = lambda version, args: None
    reserves_output: Callable[[str | None, Args], bool | None] = lambda version, args: None
    parse_args: Callable[[str], Args] = lambda text: parse_key_values(text)
    canonical_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Callable[[str | None], Mapping[str, str]] = lambda version: {}
    forks: tuple[str, ...] = ()
    side: bool = False
    promql: tuple[Promql, ...] = ()
    scheduler: Callable[[str | None, Args], Scheduler | str] = no_scheduler
    shared_limit: bool = False
    silent_pauses: bool = False


_PAIR = re.compile(
    r"""(?<![\w.])['"]?([A-Za-z_][\w.]*+)['"]?\s*[=:]\s*('[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}|[^,\s)}]+)"""
)


def parse_key_values(text: str) -> Args:
    """``model='m', tensor_parallel_size=4`` or ``{'a': 1}`` -> {'model': 'm', ...}; quotes are taken off, nothing else."""
    out: Args = {}
    for key, value in _PAIR.findall(text[:20_000]):
        out.setdefault(key, value.strip("'\""))
    return out


@cache
def engines() -> Mapping[str, Engine]:
    """Every engine table found beside this file, by name."""
    found: dict[str, Engine] = {}
    package = importlib.import_module("kvdoctor.engines")
    for info in pkgutil.iter_modules(package.__path__):
        if info.name in ("base",):
            continue
        module = importlib.import_module(f"kvdoctor.engines.{info.name}")
        engine = getattr(module, "ENGINE", None)
        if isinstance(engine, Engine):
            found[engine.name] = engine
    return found


def lever_for(engine: Engine, lever: str, version: str | None) -> Lever | None:
    """The entry of ``lever`` that holds for ``version``; an unknown version gets the newest entry."""
    entries: Sequence[Lever] = [entry for entry in engine.levers if entry.lever == lever and not entry.only_with]
    for entry in entries:
        if in_range(version, entry.since, entry.until) in (True, None):
            return entry
    return None


def gap_for(engine: Engine, fact: str, version: str | None) -> Gap | None:
    """Why this engine does not tell ``fact`` (longest matching name first)."""
    best: Gap | None = None
    for gap in engine.gaps:
        matches = fact == gap.fact or fact.startswith((gap.fact + ".", gap.fact + "_"))
        if (
            matches
            and in_range(version, gap.since, gap.until) in (True, None)
            and (best is None or len(gap.fact) > len(best.fact))
        ):
            best = gap
    return best
