"""SGLang 0.4.6 to 0.5.23 and forks of it: names, log lines, levers, gaps.

Sources: the released packages 0.4.6.post5, 0.5.3, 0.5.8, 0.5.12 and 0.5.23, and runs of 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvdoctor.engines import _argtext
from kvdoctor.engines._host_levers import HOST_LEVERS
from kvdoctor.engines._promql_sglang import PROMQL
from kvdoctor.engines.base import (
    COMMON_SERIES,
    Args,
    Command,
    Endpoint,
    Engine,
    Gap,
    Lever,
    Scheduler,
    Series,
    SeriesName,
    Way,
    in_range,
)
from kvdoctor.parse.serverlog import LogTemplate

GIB = 2.0**30

# With priority scheduling the queue gauges appear once more per priority; the total has an empty priority.
_TOTAL = {"priority": ""}


def _gauge(name: str, since: str | None = None, until: str | None = None, scale: float = 1.0) -> SeriesName:
    return SeriesName(f"sglang:{name}", "gauge", scale=scale, since=since, until=until)


def _queue(name: str, since: str | None = None, until: str | None = None) -> SeriesName:
    return SeriesName(f"sglang:{name}", "gauge", since=since, until=until, where=_TOTAL)


def _loads(name: str, scale: float = 1.0) -> SeriesName:
    # /v1/loads?format=prometheus has its own names, with an underscore
    return SeriesName(f"sglang_{name}", "gauge", scale=scale, since="0.5.8")


def _counter(name: str, since: str | None = None, where: Mapping[str, str] | None = None) -> SeriesName:
    return SeriesName(f"sglang:{name}", "counter", since=since, where=where or {})


def _histogram(
    name: str, since: str | None = None, until: str | None = None, where: Mapping[str, str] | None = None
) -> SeriesName:
    return SeriesName(f"sglang:{name}", "histogram", since=since, until=until, where=where or {})


def _ignored(name: str, why: str) -> SeriesName:
    return SeriesName(name, "gauge", ignore=why)


_LAST_BATCH = (
    "a gauge of the last batch that is set back to 0 at each tick: it read 0 through whole runs with retractions. Use "
    "the num_retracted_*_total counters or the log line"
)

SERIES: tuple[Series, ...] = (
    Series(
        "run.cpu",
        (_counter("scheduler_process_cpu_seconds_total", "0.5.20"),),
        "the scheduler is the process that holds the device back; the exporter's own process is another one",
    ),
    *COMMON_SERIES,
    Series("req.running", (_queue("num_running_reqs"), _loads("num_running_reqs"))),
    Series("req.waiting", (_queue("num_queue_reqs"), _loads("num_waiting_reqs")), "retracted requests queue again"),
    Series(
        "req.paused",
        (
            _loads("disagg_decode_retracted_queue_reqs"),
            _ignored("sglang:num_retracted_reqs", _LAST_BATCH),
            _ignored("sglang_queues_retracted", _LAST_BATCH),
            _ignored("sglang:num_paused_reqs", "requests paused for a weight update, not for memory"),
            _ignored("sglang_queues_paused", "requests paused for a weight update, not for memory"),
        ),
        "only a disaggregated decode server keeps retracted requests in a queue of their own",
    ),
    Series("req.finished", (_counter("num_requests_total"),)),
    Series("req.aborted", (_counter("num_aborted_requests_total", "0.4.10"),)),
    Series(
        "req.limit_running",
        (
            _loads("max_running_requests"),
            _ignored("sglang:max_running_requests_under_SLO", "a benchmark's result, not the limit in force"),
        ),
    ),
    Series(
        "kv.usage",
        (_gauge("full_token_usage", "0.5.10"), _gauge("token_usage"), _loads("token_usage")),
        "rounded to 2 decimals and refreshed at a prefill batch or every decode_log_interval steps: scrapes miss peaks. "
        "Reusable prefixes are not counted. On hybrid models token_usage is the fullest of all pools",
    ),
    Series("kv.secondary_usage", (SeriesName("sglang:swa_token_usage", "gauge", since="0.5.3", key="swa"),)),
    Series("kv.secondary_usage", (SeriesName("sglang:mamba_usage", "gauge", since="0.5.6", key="mamba"),)),
    Series(
        "kv.pool_tokens",
        (_gauge("max_total_num_tokens", "0.5.6"), _loads("max_total_num_tokens"), _loads("memory_token_capacity")),
        "set once at start; before 0.5.6 the log line or /get_server_info has it",
    ),
    Series("kv.pool_blocks", (_gauge("num_pages", "0.5.12"),)),
    Series("kv.block_tokens", (_gauge("page_size", "0.5.12"),)),
    Series(
        "kv.pool_bytes",
        (_gauge("kv_cache_memory_usage_gb", "0.5.18", scale=GIB), _loads("memory_kv_cache_gb", GIB)),
        "the name says GB, the unit is 2**30 bytes",
    ),
    Series(
        "kv.used_tokens", (_gauge("kv_used_tokens", "0.5.12"), _gauge("num_used_tokens"), _loads("num_used_tokens"))
    ),
    Series("kv.available_tokens", (_gauge("kv_available_tokens", "0.5.12"),)),
    Series("kv.evictable_tokens", (_gauge("kv_evictable_tokens", "0.5.12"),)),
    Series("mem.weights", (_gauge("weight_memory_usage_gb", "0.5.18", scale=GIB), _loads("memory_weight_gb", GIB))),
    Series(
        "mem.graphs",
        (
            SeriesName("sglang:graph_memory_usage_gb", "gauge", scale=GIB, since="0.5.18", by="phase"),
            _loads("memory_graph_gb", GIB),
        ),
    ),
    Series("mem.free_after_start", (_gauge("startup_available_gpu_memory_gb", "0.5.12", scale=GIB),)),
    Series(
        "preempt.total",
        (_counter("num_retracted_requests_total", "0.5.8"),),
        "the series does not exist before the first retraction: absent beside other SGLang series means 0",
        absent_is_zero=True,
    ),
    Series("preempt.per_request", (_histogram("num_retractions", "0.5.6", "0.5.10"),)),
    Series("retract.input_tokens", (_counter("num_retracted_input_tokens_total", "0.5.8"),)),
    Series("retract.output_tokens", (_counter("num_retracted_output_tokens_total", "0.5.8"),)),
    Series(
        "tok.prompt",
        (_counter("prefill_effective_tokens_total", "0.5.18", {"mode": "input"}), _counter("prompt_tokens_total")),
        "effective tokens leave out cached ones and what a retraction computes again; prompt_tokens_total counts whole "
        "prompts when a request finishes",
    ),
    Series(
        "tok.generated",
        (_counter("realtime_tokens_total", "0.5.8", {"mode": "decode"}), _counter("generation_tokens_total")),
        "generation_tokens_total counts when a request finishes",
    ),
    Series("tok.gen_rate", (_gauge("gen_throughput"), _loads("gen_throughput"))),
    Series(
        "tok.prefill_compute",
        (_counter("realtime_tokens_total", "0.5.8", {"mode": "prefill_compute"}),),
        "less prefill_effective_tokens_total{mode=input} it is exactly what retractions computed again",
    ),
    Series("tok.prefill_effective", (_counter("prefill_effective_tokens_total", "0.5.18", {"mode": "input"}),)),
    Series(
        "tok.cached",
        (
            _counter("prefill_effective_tokens_total", "0.5.18", {"mode": "device_hit"}),
            _counter("cached_tokens_total"),
        ),
    ),
    Series(
        "prefix.queries",
        (_counter("prefill_effective_tokens_total", "0.5.18"), _counter("prompt_tokens_total")),
        "the sum over all modes: computed tokens and hits of every tier",
    ),
    Series(
        "prefix.hits",
        (
            _counter("prefill_effective_tokens_total", "0.5.18", {"mode": "device_hit"}),
            _counter("cached_tokens_total"),
        ),
    ),
    Series(
        "prefix.external_hits",
        (_counter("prefill_effective_tokens_total", "0.5.18", {"mode": "host_hit"}),),
        "hits of the storage tier have mode storage_hit",
    ),
    Series("prefix.hit_rate", (_gauge("cache_hit_rate"), _loads("cache_hit_rate")), "of the last prefill batch only"),
    Series("prefix.evicted", (_counter("evicted_tokens_total", "0.5.6"),)),
    Series(
        "latency.ttft",
        (_histogram("time_to_first_token_seconds"),),
    ),
    Series(
        "latency.itl",
        (
            _histogram("inter_token_latency_seconds"),
            _ignored(
                "sglang:request_time_per_output_token_seconds",
                "a mean per request: a stall of one step disappears in it",
            ),
        ),
        "each observation is the mean over the tokens of one step: the far tail is estimated",
    ),
    Series("latency.e2e", (_histogram("e2e_request_latency_seconds"),)),
    Series("latency.queue", (_histogram("queue_time_seconds", "0.5.3"),)),
    Series(
        "latency.prefill", (_histogram("per_stage_req_latency_seconds", "0.5.3", where={"stage": "prefill_forward"}),)
    ),
    Series("work.prompt", (_histogram("prompt_tokens_histogram"),)),
    Series("work.output", (_histogram("generation_tokens_histogram"),)),
    Series("offload.used_tokens", (_gauge("hicache_host_used_tokens", "0.5.10"),)),
    Series("offload.pool_tokens", (_gauge("hicache_host_total_tokens", "0.5.10"),)),
    Series(
        "offload.failures",
        (_counter("hicache_backup_dropped_tokens_total", "0.5.20"),),
        "counts tokens, not stores: only more than 0 means something",
    ),
    Series("offload.hits", (_counter("load_back_tokens_total", "0.5.6"),)),
    Series(
        "pd.prefill_queue",
        (
            _queue("num_prefill_bootstrap_queue_reqs", "0.5.12"),
            _queue("num_prefill_prealloc_queue_reqs", None, "0.5.11"),
            _loads("disagg_prefill_bootstrap_queue_reqs"),
        ),
    ),
    Series(
        "pd.transfer_queue",
        (
            SeriesName("sglang:num_decode_transfer_queue_reqs", "gauge", where=_TOTAL, key="decode"),
            SeriesName("sglang_disagg_decode_transfer_queue_reqs", "gauge", since="0.5.8", key="decode"),
        ),
    ),
    Series(
        "pd.transfer_queue",
        (
            SeriesName("sglang:num_prefill_inflight_queue_reqs", "gauge", since="0.5.3", where=_TOTAL, key="prefill"),
            SeriesName("sglang:num_prefill_infight_queue_reqs", "gauge", until="0.5.2", key="prefill"),
            SeriesName("sglang_disagg_prefill_inflight_queue_reqs", "gauge", since="0.5.8", key="prefill"),
        ),
        "the misspelt name is that of 0.4.6",
    ),
    Series(
        "pd.decode_queue",
        (_queue("num_decode_prealloc_queue_reqs"), _loads("disagg_decode_prealloc_queue_reqs")),
    ),
    Series("pd.failed", (SeriesName("sglang:num_transfer_failed_reqs_total", "counter", key="transfer"),)),
    Series("pd.failed", (SeriesName("sglang:num_bootstrap_failed_reqs_total", "counter", key="bootstrap"),)),
    Series(
        "gpu.util",
        (
            _ignored("sglang:utilization", "stuck at 0: its divisor is never set. It is not the device's utilisation"),
            _ignored("sglang_utilization", "stuck at 0: its divisor is never set. It is not the device's utilisation"),
        ),
    ),
)


# ---------------------------------------------------------------- log


def _optional(*parts: str, reach: int = 700) -> str:
    """Fields anywhere later in the line: their order and neighbours changed from release to release."""
    return "".join(rf"(?=(?:[^\n]{{0,{reach}}}?{part})?)" for part in parts)


_NUMBER = r"\d+(?:\.\d+)?"
_LEADING = re.compile(r"-?\d+(?:\.\d+)?")

_STATS: Mapping[str, str] = {
    "#running-req": "running",
    "#queue-req": "waiting",
    "#token": "tokens_used",
    "#full token": "tokens_used",
    "#gpu token": "tokens_used",
    "token usage": "kv_usage",
    "full token usage": "kv_usage",
    "gpu token usage": "kv_usage",
    "swa token usage": "swa_usage",
    "mamba usage": "mamba_usage",
    "#new-token": "new_tokens",
    "#cached-token": "cached_tokens",
    "#pending-token": "pending_tokens",
    "cache hit rate": "prefix_hit",
    "gen throughput (token/s)": "gen_rate",
    "input throughput (token/s)": "prompt_rate",
    "accept len": "spec_accept",
    "accept rate": "spec_accept_rate",
    "pre-allocated usage": "prealloc_usage",
    "#unbootstrapped-req": "pd_prefill_queue",
    "#bootstrap-req": "pd_prefill_queue",
    "#transferring-req": "pd_transfer_queue",
    "#inflight-req": "pd_transfer_queue",
    "#transfer-req": "pd_transfer_queue",
    "#retracted-req": "retracted_waiting",
}


def _stats(fields: dict[str, object]) -> dict[str, object]:
    """The ``name: number`` pairs of a periodic line; their order and neighbours changed from release to release.

    Pairs are split by hand: these lines are nearly the whole log.
    """
    rest = str(fields.pop("rest"))
    # two lines written into one: the second has its own event
    glued = rest.find(" batch")
    if glued >= 0:
        rest = rest[:glued]
    # "#prealloc-req" is the queue of whichever side prints it
    side = "pd_decode_queue" if fields["batch"] == "decode" else "pd_prefill_queue"
    for pair in rest.split(", "):
        name, _, text = pair.partition(": ")
        key = _STATS.get(name) or (side if name == "#prealloc-req" else None)
        number = _LEADING.match(text) if key else None
        if key and number and key not in fields:
            fields[key] = float(number[0]) * (0.01 if key == "prefix_hit" else 1.0)
    for pool in ("swa", "mamba"):
        usage, fullest = fields.get(f"{pool}_usage"), fields.get("secondary_usage")
        if isinstance(usage, float) and (not isinstance(fullest, float) or usage > fullest):
            fields["secondary_usage"], fields["secondary_pool"] = usage, pool
    return fields


def _kv_bytes(fields: dict[str, object]) -> dict[str, object]:
    """K and V together. Sizes are printed with 2 decimals, so 0.00 GB only says "under 5 MiB" and is left out."""
    sizes = [fields.pop(name) for name in ("k", "v", "kv") if name in fields]
    total = sum(size for size in sizes if isinstance(size, float))
    if total > 0:
        fields["bytes"] = total
    return fields


def _lost(fields: dict[str, object]) -> dict[str, object]:
    total = fields.get("total")
    parts = [fields.get(n) for n in ("available", "evictable", "protected", "session_held", "uncached")]
    known = [part for part in parts if isinstance(part, float)]
    if isinstance(total, float) and known:
        fields["lost"] = total - sum(known)
    return fields


def _ratio(fields: dict[str, object]) -> dict[str, object]:
    pool, length = fields.pop("pool_tokens"), fields.get("length")
    if isinstance(pool, float) and isinstance(length, float) and length > 0:
        fields["ratio"] = pool / length
    return fields


def _batch(fields: dict[str, object]) -> dict[str, object]:
    fields["batch"] = str(fields["batch"]).lower()
    return fields


def _shut(fields: dict[str, object]) -> dict[str, object]:
    if "soft" in fields:
        fields["soft"] = fields["soft"] == "True"
    return fields


_ARGS = r"server_args=(?:\w+\.)?(?:ServerArgs\(|\{)"
_CAPTURE = r"Capture [\w \-]{2,60}graph"
_RID = r"(?=(?:[^\n]{0,160}?rid='(?P<id>[^'\n]{1,80})')?)"
_META = (
    r"['\"]prompt_tokens['\"]: (?P<prompt_tokens>\d+)",
    r"['\"]completion_tokens['\"]: (?P<output_tokens>\d+)",
    r"['\"]cached_tokens['\"]: (?P<cached_tokens>\d+)",
    r"['\"](?:num|total)_retractions['\"]: (?P<retractions>\d+)",
    r"['\"]finish_reason['\"]: \{['\"]type['\"]: ['\"](?P<finish>\w+)['\"]",
)

TEMPLATES: tuple[LogTemplate, ...] = (
    LogTemplate("sgl.banner", "banner", "server_args=", r"server_args=(?=(?:\w+\.)?ServerArgs\(|\{|<)",
                note="the first line of its own that a server prints; the version is not in it (see /server_info)"),
    LogTemplate("sgl.args", "args", "server_args=", _ARGS + r"(?P<text>[^\n]*)"),
    LogTemplate("sgl.command", "args", "sglang.launch_server --", r"sglang\.launch_server (?P<text>--[^\n]{1,8000})"),
    LogTemplate("sgl.serve", "args", "sglang serve --", r"(?<!Example: )sglang serve (?P<text>--[^\n]{1,8000})"),
    # start-up budget. Every "GB" of SGLang's device memory is 2**30 bytes; host pools are printed in 1e9.
    LogTemplate("sgl.start.distributed", "memory", "Init torch distributed ends",
                rf"Init torch distributed ends\.[^\n]{{0,40}}mem usage=(?P<non_torch__gib>-?{_NUMBER}) GB"),
    LogTemplate("sgl.start.weights_begin", "memory", "Load weight begin",
                rf"Load weight begin\. avail mem=(?P<free__gib>{_NUMBER}) GB", fields={"stage": "before_weights"}),
    LogTemplate("sgl.start.weights", "memory", "Load weight end",
                "Load weight end\\." + _optional(rf"avail mem=(?P<free__gib>{_NUMBER}) GB",
                                                 rf"mem usage=(?P<weights__gib>{_NUMBER}) GB"),
                fields={"stage": "after_weights"},
                note="a negative usage (another process freed memory meanwhile) is not a size and is left out"),
    LogTemplate("sgl.start.kv", "pool", "KV Cache is allocated",
                r"KV Cache is allocated\.(?: dtype: (?P<dtype>[\w.]{1,40}),)?[^\n]{0,60}?#tokens: (?P<tokens>\d+)"
                + _optional(rf"\bK size: (?P<k__gib>{_NUMBER}) GB", rf"\bV size: (?P<v__gib>{_NUMBER}) GB",
                            rf"\bKV size: (?P<kv__gib>{_NUMBER}) GB"),
                derive=_kv_bytes,
                note="once per pool (draft model, sliding window): bytes add up; the size in tokens that counts is the "
                "later max_total_num_tokens line"),
    LogTemplate("sgl.start.mamba", "memory", "Mamba Cache is allocated",
                r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<mamba_slots>\d+)"
                + _optional(rf"ssm_state size: (?P<secondary_pool__gib>{_NUMBER}) ?GB"), fields={"stage": "after_pool"}),
    LogTemplate("sgl.start.pool_end", "memory", "Memory pool end",
                rf"Memory pool end\. avail mem=(?P<free__gib>{_NUMBER}) GB", fields={"stage": "after_pool"}),
    LogTemplate("sgl.start.hicache", "memory", "hierarchical KV host pool",
                rf"hierarchical KV host pool: (?P<host_tokens>\d+) tokens, (?P<host_pool__gb>{_NUMBER}) GB host memory"),
    LogTemplate("sgl.start.hicache_old", "memory", "GB host memory for hierarchical KV cache",
                rf"Allocating (?P<host_pool__gb>{_NUMBER}) GB host memory for hierarchical KV cache"),
    LogTemplate("sgl.start.graph_begin", "graphs_begin", "graph begin",
                _CAPTURE + " begin" + _optional(rf"avail mem=(?P<free__gib>{_NUMBER}) GB")),
    LogTemplate("sgl.start.graph", "graphs_end", "graph end",
                r"Capture (?P<part>[\w \-]{1,60}?) ?graph end" + _optional(rf"mem usage=(?P<graphs__gib>{_NUMBER}) GB",
                                              rf"avail mem=(?P<free__gib>{_NUMBER}) GB",
                                              rf"elapsed[=:] ?(?P<seconds>{_NUMBER}) s"),
                note="once per graph set (decode, draft, piecewise prefill): they add up"),
    LogTemplate("sgl.start.limits", "pool", "max_total_num_tokens=",
                r"(?<![\w.])max_total_num_tokens=(?P<tokens>\d+), chunked_prefill_size=(?P<chunk>-?\d+)"
                + _optional(r"max_running_requests=(?P<max_running>\d+)", r"context_len=(?P<max_model_len>\d+)",
                            rf"available_(?P<device>gpu|cpu)_mem=(?P<free__gib>{_NUMBER}) GB"),
                note="printed by the first rank of each replica; the memory is what is left beside the pool"),
    LogTemplate("sgl.start.pool_small", "concurrency", "KV pool holds",
                r"KV pool holds (?P<pool_tokens>\d+) tokens, fewer than --context-length (?P<length>\d+)", derive=_ratio,
                since="0.5.21"),
    LogTemplate("sgl.start.ready", "ready", "fired up and ready to roll", r"The server is fired up and ready to roll"),
    # periodic lines
    LogTemplate("sgl.decode", "stats", "Decode batch",
                r"Decode batch(?: \[\d+\])?[.,] #running-req: (?P<running>\d+), (?=(?P<rest>[^\n]{0,900}))",
                fields={"batch": "decode"}, derive=_stats),
    LogTemplate("sgl.prefill", "stats", "Prefill batch",
                r"Prefill batch(?: \[\d+\])?[.,] #new-seq: (?P<new_seqs>\d+), (?=(?P<rest>[^\n]{0,900}))",
                fields={"batch": "prefill"}, derive=_stats,
                note="#new-token includes what retractions compute again; #running-req are the decoding requests beside it"),
    # retraction
    LogTemplate("sgl.retract", "retract", "KV cache pool is full. Retract",
                r"KV cache pool is full\. Retract requests\. #retracted_reqs: (?P<count>\d+)"
                + _optional(r"#aborted_retracted_reqs: (?P<aborted>\d+)", r"#new_tokens_gained: (?P<tokens_gained>-?\d+)",
                            rf"#new_token_ratio: (?P<ratio_from>{_NUMBER}) -> (?P<ratio_to>{_NUMBER})"),
                since="0.5", note="once per rank: the same values at the same time are one event"),
    LogTemplate("sgl.retract.046", "retract", "ecode out of memory happened",
                r"[Dd]ecode out of memory happened[.,] #retracted_reqs: (?P<count>\d+)"
                + _optional(rf"#new_token_ratio: (?P<ratio_from>{_NUMBER}) -> (?P<ratio_to>{_NUMBER})"),
                until="0.5.2", note="a retraction notice, no device out of memory; once per rank"),
    LogTemplate("sgl.retract.abort_last", "request_failed", "retract_decode: aborted last request",
                r"retract_decode: aborted last request (?P<id>\S{1,120}) due to OOM",
                fields={"why": "does not fit the pool alone"}),
    LogTemplate("sgl.retract.abort", "request_failed", "retract_decode: aborted request",
                r"retract_decode: aborted request (?P<id>[^\s:]{1,120}): (?P<why>[^\n]{1,200})"),
    # token pool: these are not device memory errors
    LogTemplate("sgl.oom.pool", "page_oom", "out of memory. Try to lower your batch size",
                r"(?P<batch>Prefill|Decode) out of memory\. Try to lower your batch size",
                derive=_batch, note="logged and raised: the same failure can appear twice"),
    LogTemplate("sgl.oom.want", "page_oom", "Try to allocate", r"Try to allocate (?P<want_tokens>\d+) tokens"),
    LogTemplate("sgl.oom.free", "page_oom", "able tokens: ",
                r"Ava(?:il|li)able tokens: (?P<free>\d+)"
                r"(?: \(available_size=(?P<available>\d+) \+ evictable_size=(?P<evictable>\d+)\))?"),
    LogTemplate("sgl.oom.free_full", "page_oom", "Available full tokens: ",
                r"Available full tokens: (?P<free>\d+)"
                r"(?: \(full_available_size=(?P<available>\d+) \+ full_evictable_size_?=(?P<evictable>\d+)\))?"),
    LogTemplate("sgl.oom.slots", "request_failed", "alloc_req_slots runs out of memory",
                r"alloc_req_slots runs out of memory", fields={"why": "no free request slot"}),
    LogTemplate("sgl.leak", "idle_check", "memory leak detected!",
                r"token_to_kv_pool_allocator memory leak detected!(?! ?(?:full_|\[))"
                + _optional(r"max_total_num_tokens=(?P<total>\d+)", r"(?<![\w.])available_size=(?P<available>\d+)",
                            r"(?<![\w.])evictable_size=(?P<evictable>\d+)", r"(?<![\w.])protected_size=(?P<protected>\d+)"),
                derive=_lost,
                note="where no evictable size stands on the line, available_size includes it"),
    LogTemplate("sgl.leak.hybrid", "idle_check", "memory leak detected! full_available_size=",
                r"memory leak detected! full_available_size=(?P<available>\d+)"
                + _optional(r"full_evictable_size=(?P<evictable>\d+)", r"(?:allocator\.size|full_capacity|tokens_per_layer)=(?P<total>\d+)",
                            r"full_protected_size(?:\(\))?=(?P<protected>\d+)"),
                derive=_lost),
    LogTemplate("sgl.leak.pool", "idle_check", "] total=",
                r"\[(?P<pool>full|swa|mamba[\w-]{0,12})\] total=(?P<total>\d+), available=(?P<available>\d+), "
                r"evictable=(?P<evictable>\d+)(?:, protected=(?P<protected>\d+))?(?:, session_held=(?P<session_held>\d+))?"
                r"(?:, uncached=(?P<uncached>\d+))?",
                derive=_lost),
    # refusals at start
    LogTemplate("sgl.start.not_enough", "start_error", "--mem-fraction-static",
                r"Not enough memory\. Please try to increase --mem-fraction-static"
                r"(?:\.? Current value: [\w.]{0,40}mem_fraction_static=(?P<fraction>\d\.\d+))?",
                fields={"error": "pool_too_small", "empty": True}),
    LogTemplate("sgl.start.pool_zero", "start_error", "Memory pool size is too small", r"Memory pool size is too small",
                fields={"error": "pool_too_small"}),
    LogTemplate("sgl.start.host_pool", "start_error", "Not enough host memory available",
                rf"(?P<text>Not enough host memory available\. Requesting {_NUMBER} GB but only have {_NUMBER} GB free)",
                fields={"error": "config_refused"}, note="the host part of a hierarchical cache is larger than what the host has free"),
    LogTemplate("sgl.start.unbalanced", "start_error", "memory capacity is unbalanced",
                r"memory capacity is unbalanced\. Some GPUs may be occupied by other processes\."
                + _optional(rf"min_per_gpu_memory=(?P<have__gib>{_NUMBER})", rf"local_gpu_memory=(?P<need__gib>{_NUMBER})"),
                fields={"error": "free_below_fraction"},
                note="free memory of the fullest device of the group against this one's: another process sits there. Only a "
                "warning where SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK is off"),
    LogTemplate("sgl.start.context", "start_error", "User-specified context_length",
                r"(?:Value|Runtime)Error: (?P<text>User-specified context_length \((?P<tokens_need>\d+)\) is greater than the "
                r"derived context_length \((?P<tokens_have>\d+)\))", fields={"error": "config_refused"}),
    LogTemplate("sgl.start.port_taken", "start_error", "Port is already in use", r"(?P<text>Port is already in use)",
                fields={"error": "port_in_use"}),
    LogTemplate("sgl.start.usage", "start_error", ": error: ",
                r"(?:launch_server|sglang)[\w.]{0,20}: error: (?P<text>[^\n]{1,200})", fields={"error": "config_refused"}),
    # requests
    LogTemplate("sgl.request.receive", "request_in", "Receive: obj=GenerateReqInput",
                r"Receive: obj=GenerateReqInput\(" + _optional(r"rid=\[?'(?P<id>[^'\n]{1,80})'",
                                                                r"'max_new_tokens': (?P<max_tokens>\d+)", reach=8000)),
    LogTemplate("sgl.request.finish", "request_out", "Finish: obj=GenerateReqInput",
                r"Finish: obj=GenerateReqInput\("
                + _optional(r"rid=\[?'(?P<id>[^'\n]{1,80})'", *_META, reach=16000)),
    LogTemplate("sgl.queue_full", "request_rejected", "The request queue is full", r"The request queue is full",
                fields={"why": "queue full"}),
    LogTemplate("sgl.queue_preempted", "request_rejected", "aborted by a higher priority request",
                r"The request is aborted by a higher priority request", fields={"why": "dropped for a higher priority"}),
    LogTemplate("sgl.context.input", "context_limit", "is longer than the model's context length",
                r"The input \((?P<n_tokens>\d+) tokens\) is longer than the model's context length \((?P<n_ctx>\d+) tokens\)"),
    LogTemplate("sgl.context.max", "context_limit", "exceeds the maximum allowed length",
                r"Input length \((?P<n_tokens>\d+) tokens\) exceeds the maximum allowed length \((?P<n_ctx>\d+) tokens\)",
                note="the allowed length is the smaller of context and pool"),
    LogTemplate("sgl.context.requested", "context_limit", "exceeds the model's maximum context length",
                r"Requested token count exceeds the model's maximum context length of (?P<n_ctx>\d+) tokens"
                r"(?:\. You requested a total of (?P<n_tokens>\d+) tokens)?"),
    LogTemplate("sgl.context.truncated", "context_limit", "Request length is longer than the KV cache pool size",
                r"Request length is longer than the KV cache pool size or the max context length\. Truncated\."
                r"(?: len\(req\.origin_input_ids\)=(?P<n_tokens>\d+), max_req_input_len=(?P<n_ctx>\d+))?",
                fields={"truncated": True}),
    LogTemplate("sgl.pd.oversize", "request_failed", "exceeds the maximum number of tokens",
                r"Request (?P<id>\S{1,120}) exceeds the maximum number of tokens: (?P<n_tokens>\d+) > (?P<n_ctx>\d+)",
                fields={"why": "larger than the pool"}),
    # disaggregation: printed by every rank of the group
    LogTemplate("sgl.pd.transfer", "transfer", "transfer failed for request",
                r"(?P<side>Prefill|Decode) transfer failed for request" + _RID
                + r"(?=(?:[^\n]{0,400}?with exception (?P<why>[^\n]{1,200}))?)", fields={"failed": 1.0}),
    LogTemplate("sgl.pd.handshake", "transfer", "Decode handshake failed for request",
                r"(?P<side>Decode) handshake failed for request" + _RID, fields={"failed": 1.0}),
    LogTemplate("sgl.pd.bootstrap", "transfer", "Prefill bootstrap failed for request",
                r"(?P<side>Prefill) bootstrap failed for request" + _RID, fields={"failed": 1.0}),
    LogTemplate("sgl.pd.timeout", "transfer", "in KVPoll.",
                rf"Request (?P<id>\d+) timed out after (?P<seconds>{_NUMBER})s in KVPoll\.(?P<why>\w+)", fields={"expired": 1.0}),
    # the server stops
    LogTemplate("sgl.watchdog", "stall", "atchdog timeout (",
                rf"(?P<text>[Ww]atchdog timeout) \(self\.watchdog_timeout=(?P<seconds>{_NUMBER})(?:, self\.soft=(?P<soft>True|False))?",
                fields={"ends": True}, derive=_shut, note="once per rank"),
    LogTemplate("sgl.exception", "error", " hit an exception: ",
                r"(?P<process>Scheduler|TpModelWorkerClient|TokenizerManager|DetokenizerManager|DataParallelController|"
                r"\w{1,40}Router) hit an exception: (?P<text>[^\n]{0,160})"),
    LogTemplate("sgl.child_failed", "exit", "It usually means", r"(?P<signal>[Ss][Ii][Gg][Qq][Uu][Ii][Tt])[^\n]{0,80}It usually means",
                fields={"process": "child"}, note="the parent's notice that a scheduler died; the cause stands above it"),
)  # fmt: skip


# ---------------------------------------------------------------- configuration


def parse_args(text: str) -> Args:
    """The printed ``ServerArgs(...)``, the JSON of /server_info, or a command line; unset values are left out.

    Two settings that SGLang names by their opposite are added in the direct sense: ``radix_cache`` and, for a command
    line or log alike, ``cuda_graph``.
    """
    args = {**_argtext.nested(text), **_argtext.flags(text)}
    for setting, opposite in (("radix_cache", "disable_radix_cache"), ("cuda_graph", "disable_cuda_graph")):
        if opposite in args:
            args[setting] = "False" if args[opposite].lower() in ("true", "1") else "True"
    return args


def _preempt_kind(version: str | None, args: Args) -> str | None:
    if args.get("disaggregation_mode") == "decode" and in_range(version, "0.5.13", None) is not False:
        backup = args.get("disaggregation_decode_retraction_backup")
        return {"cpu_tensor": "swap", "host_pool": "swap", "none": "abort"}.get(backup or "", "recompute")
    return "recompute"


def _defaults(version: str | None) -> Mapping[str, str]:
    return {
        "batch_tokens": "16384",
        "tp": "1",
        "pp": "1",
        "dp": "1",
        "prefix": "True",
        "kv_dtype": "auto",
        "eager": "False",
        "policy": "fcfs",
        "reserve_policy": "1.0",
        "full_prompt": "False",
        "port": "30000",
    }


def _scheduler(version: str | None, args: Args) -> Scheduler | str:
    """Admission by expected growth; the request with the fewest output tokens is retracted and goes to the end."""
    if args.get("speculative_algorithm"):
        return "speculative decoding is not modelled"
    if args.get("disaggregation_mode", "null") not in ("null", "None"):
        return "disaggregated serving is not modelled"
    said = args.get("schedule_conservativeness")
    try:
        conservativeness = 1.0 if said is None else float(said)
    except ValueError:
        return f"schedule_conservativeness = {said!r} is not a number"
    growth = 0.7 * conservativeness
    if not 0 < growth <= 1:
        return f"a schedule_conservativeness of {conservativeness:g} is outside what is modelled"
    from kvdoctor.policy import Policy

    policy = Policy(
        victim_order="fewest-output",
        admission_mode="first_chunk",
        pool_block_tokens=1,
        release="whole" if args.get("radix_cache") == "False" else "tail_blocks",
    )
    assumed = () if said is not None else ("schedule_conservativeness 1.0, the default",)
    mixed = args.get("enable_mixed_chunk") in ("True", "true")
    return Scheduler(policy, ("sched.max_running",), mixed, "back", growth, assumed=assumed)


CANONICAL: Mapping[str, tuple[str, ...]] = {
    "max_running": ("max_running_requests",),
    "batch_tokens": ("max_prefill_tokens",),
    "max_model_len": ("context_length", "context_len"),
    "block_tokens": ("page_size",),
    "pool_tokens": ("max_total_tokens",),
    "fraction": ("mem_fraction_static",),
    "tp": ("tp_size", "tensor_parallel_size", "tp"),
    "pp": ("pp_size", "pipeline_parallel_size", "pp"),
    "dp": ("dp_size", "data_parallel_size", "dp"),
    "prefix": ("radix_cache",),
    "kv_dtype": ("kv_cache_dtype",),
    "weight_dtype": ("quantization", "dtype"),
    "eager": ("disable_cuda_graph",),
    "max_queue": ("max_queued_requests",),
    "policy": ("schedule_policy",),
    "model": ("model_path", "model"),
    "port": ("port",),
    "chunk": ("chunked_prefill_size",),
    "lora": ("enable_lora", "lora_paths"),
    "lora_rank": ("max_lora_rank",),
    "reserve_policy": ("schedule_conservativeness",),
    "preempt_mode": ("disaggregation_decode_retraction_backup",),
    "offload": ("enable_hierarchical_cache",),
    "multimodal_limit": ("limit_mm_data_per_request",),
    "spec": ("speculative_algorithm",),
    "connector": ("disaggregation_mode",),
}


# ---------------------------------------------------------------- levers

_RETRACTS = "num_retracted_requests_total stops growing and new_token_ratio falls without jumping up again"
_START = "the max_total_num_tokens and available_gpu_mem of the start line"

LEVERS: tuple[Lever, ...] = (
    Lever(
        "sched.max_running", "--max-running-requests N", default="from the pool size", setting="max_running_requests",
        effect="Fewer sequences grow at the same time, so the pool is overrun less often.",
        cost="Requests wait longer before their first token.",
        next_limit="the queue", verify=_RETRACTS,
    ),
    Lever(
        "sched.batch_tokens", "--max-prefill-tokens N", default="16384", setting="max_prefill_tokens",
        effect="A prefill batch takes less activation memory and less time.",
        cost="Prompts need more batches, so prefill throughput falls.",
        next_limit="prefill throughput", verify="#new-token of the Prefill batch lines stays below the new value",
    ),
    Lever(
        "sched.max_queue", "--max-queued-requests N", since="0.5.3", default="unlimited", setting="max_queued_requests",
        effect="Overload is answered with 503 at once instead of an ever longer queue.",
        cost="Clients must retry or go elsewhere.",
        next_limit="refused requests", verify="num_queue_reqs stays at or below N",
    ),
    Lever("sched.max_queue", None, until="0.5.2", instead="limit concurrency in the gateway in front of the server"),
    Lever(
        "sched.policy", "--schedule-policy fcfs|lpm|lof|priority", default="fcfs", setting="schedule_policy",
        effect="lpm runs requests with the longest cached prefix first and so saves prefill.",
        cost="Requests without a cached prefix can wait for long.",
        next_limit="fairness", verify="cached tokens rise while the queue time p99 stays bearable",
    ),
    Lever(
        "admission.free_share", "--schedule-conservativeness F", default="1.0", setting="schedule_conservativeness",
        values={"up": "higher, in steps of 0.1 to 0.3"},
        effect="Admission assumes that running requests still write F times the usual share of their output, so it keeps "
        "more of the pool free; SGLang has no fixed watermark.",
        cost="Fewer requests run at once and first tokens come later.",
        next_limit="the queue", verify=_RETRACTS,
    ),
    Lever(
        "admission.full_prompt", None,
        instead="admission already counts the whole prompt; only chunked prefill computes it in pieces "
        "(--prefill-max-requests N limits how many start together, 0.5.8 and later)",
    ),
    Lever(
        "admission.reserve_output", "--schedule-conservativeness F", default="1.0",
        setting="schedule_conservativeness",
        effect="Admission reserves a larger part of each request's remaining output; a disaggregated decode server has "
        "--num-reserved-decode-tokens N per request instead (0.5.3 and later).",
        cost="Fewer requests run at once.", next_limit="the queue", verify=_RETRACTS,
        ways={"down": Way("Admission books less of the output that may follow, so more requests run at once.",
                          "Outputs that do get long cause retractions.", "retractions")},
    ),
    Lever(
        "victim.order", "--retraction-policy length|priority", since="0.5.16", default="length",
        setting="retraction_policy",
        effect="priority retracts requests of low priority first (needs --enable-priority-scheduling); length takes those "
        "with the fewest generated tokens.",
        cost="Low priority requests carry all retractions.", next_limit="recompute of the chosen victims",
        verify="meta_info.num_retractions of high priority requests stays 0",
    ),
    Lever(
        "victim.order", None, until="0.5.15",
        instead="fixed: fewest generated tokens first (with speculative decoding the most recently added); raise "
        "--schedule-conservativeness so that nobody is retracted",
    ),
    Lever(
        "victim.protect", "--enable-priority-scheduling --retraction-policy priority", since="0.5.16", default="off",
        setting="enable_priority_scheduling",
        effect="Requests sent with a higher priority are retracted last.",
        cost="A waiting request of much higher priority may now also preempt running ones.",
        next_limit="starvation of low priorities", verify="meta_info.num_retractions of the protected requests stays 0",
    ),
    Lever(
        "victim.protect", None, until="0.5.15",
        instead="no request can be protected before 0.5.16; raise --schedule-conservativeness or cap --max-running-requests",
    ),
    Lever(
        "victim.cooldown", None,
        instead="none per request; after a retraction new_token_ratio throttles admission by itself. A longer effect: "
        "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS above 600, or a higher --schedule-conservativeness",
    ),
    Lever(
        "kv.pool_share", "--mem-fraction-static F", default="auto, about 0.88 on CUDA", setting="mem_fraction_static",
        effect="Share of the device for weights and KV pool together; what is left serves activations and graphs. Lower it "
        "after a device out of memory, raise it when available_gpu_mem at start is above 5 to 8 GB.",
        cost="Lower: a smaller pool. Higher: less room for activations.",
        next_limit="activations of large prefills, or the pool", verify=_START,
    ),
    Lever(
        "kv.pool_bytes", "--max-total-tokens N", default="from the memory left", setting="max_total_tokens",
        effect="Caps the pool at N tokens, which makes replicas equal; it cannot enlarge it.",
        cost="Memory above the cap stays unused.", next_limit="the pool", verify="max_total_num_tokens=N in the start line",
    ),
    Lever(
        "kv.dtype", "--kv-cache-dtype fp8_e5m2|fp8_e4m3", default="auto (that of the model)", setting="kv_cache_dtype",
        effect="Halves the bytes per token, so about twice the tokens fit.",
        cost="Some accuracy; some attention backends do not support it.", next_limit="compute", verify=_START,
    ),
    Lever(
        "kv.block_tokens", "--page-size N", default="1, or what the attention backend needs", setting="page_size",
        effect="A smaller page wastes fewer tokens at the end of each sequence.",
        cost="Some attention backends need a fixed size.", next_limit="the attention backend",
        verify="page_size in the server_args line",
    ),
    Lever(
        "kv.offload_bytes", "--enable-hierarchical-cache --hicache-size GB", default="off",
        setting="enable_hierarchical_cache",
        effect="Evicted prefixes are kept in host memory and loaded back instead of computed again.",
        cost="Host memory and PCIe traffic; running requests are still retracted by recompute.",
        next_limit="PCIe bandwidth", verify="load_back_tokens_total grows and retracted prompts find their prefix",
    ),
    Lever(
        "prefix.enable", "--disable-radix-cache", default="reuse is on", setting="radix_cache",
        effect="Reuse of prefixes is on unless this flag is given: remove it.",
        cost="None; without reuse a retraction computes everything again.", next_limit="the pool",
        verify="#cached-token above 0 in the Prefill batch lines",
    ),
    Lever(
        "mem.max_model_len", "--context-length N", default="from the model", setting="context_length",
        effect="Longer requests are refused, so one request can hold less of the pool.",
        cost="Long requests are refused.", next_limit="refused requests", verify="context_len=N in the start line",
    ),
    Lever(
        "mem.graphs", "--cuda-graph-max-bs-decode N", since="0.5.13", default="auto", setting="cuda_graph_max_bs_decode",
        flags={"off": "--disable-cuda-graph", "on": "remove --disable-cuda-graph, if it is set"},
        effect="Fewer and smaller graphs are captured.", cost="Batches above N run without a graph and slower.",
        next_limit="decode speed at large batches", verify="mem usage in the graph capture line",
    ),
    Lever(
        "mem.graphs", "--cuda-graph-max-bs N", until="0.5.12", default="auto", setting="cuda_graph_max_bs",
        flags={"off": "--disable-cuda-graph", "on": "remove --disable-cuda-graph, if it is set"},
        effect="Fewer and smaller graphs are captured.", cost="Batches above N run without a graph and slower.",
        next_limit="decode speed at large batches", verify="mem usage in the graph capture line",
    ),
    Lever(
        "mem.prefill_chunk", "--chunked-prefill-size N", default="auto, 2048 to 16384 by device",
        setting="chunked_prefill_size",
        effect="Each prefill step takes less activation memory and holds decoding up for less time.",
        cost="A long prompt needs more steps.", next_limit="prefill throughput",
        verify="#new-token of the Prefill batch lines is at most N",
    ),
    Lever(
        "mem.lora_slots", "--max-loras-per-batch N --max-lora-rank R", since="0.5", default="8, from the adapters",
        setting="max_loras_per_batch", effect="The adapter pool takes less memory.",
        cost="Requests for more adapters than N wait for each other.", next_limit="adapter swaps", verify=_START,
    ),
    Lever(
        "mem.lora_slots", "--max-loras-per-batch N", until="0.4", default="8", setting="max_loras_per_batch",
        effect="The adapter pool takes less memory.", cost="Requests for more adapters than N wait for each other.",
        next_limit="adapter swaps", verify=_START,
    ),
    Lever(
        "mem.multimodal_limit", "--limit-mm-data-per-request JSON", since="0.5.8", default="unlimited",
        setting="limit_mm_data_per_request", effect="Images and videos per request are limited.",
        cost="Requests with more are refused.", next_limit="refused requests",
        verify="no device out of memory in the encoder frames",
    ),
    Lever(
        "mem.multimodal_limit", None, until="0.5.7",
        instead="limit images per request in the gateway, or lower --mem-fraction-static to leave the encoder more room",
    ),
    Lever(
        "mem.logprobs_cap", None,
        instead="no limit on the server: take logprobs and prompt logprobs (return_logprob, logprob_start_len) out of the "
        "requests, or lower --chunked-prefill-size so that fewer rows are computed at once",
    ),
    Lever(
        "mem.allocator_conf", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", default="unset",
        effect="The allocator can use memory that lies in pieces.",
        cost="Some collective and graph features do not work with it.", next_limit="real lack of memory",
        verify="reserved but unallocated memory stays small in the next out-of-memory line",
    ),
    Lever(
        "mem.process_cap", None,
        instead="SGLang sets no cap of its own: look for torch.cuda.set_per_process_memory_fraction in the code around it "
        "or a MIG or MPS limit",
    ),
    Lever(
        "topo.tp", "--tp-size N", default="1", setting="tp_size",
        effect="Weights and pool are split over N devices, so each holds more tokens.",
        cost="Devices exchange data in every layer.", next_limit="communication", verify=_START,
    ),
    Lever(
        "topo.dp", "--dp-size N", default="1", setting="dp_size", effect="N replicas share the load behind one port.",
        cost="N times the devices; each replica has its own pool and prefix cache.", next_limit="balance between replicas",
        verify="num_running_reqs per dp_rank differ little",
    ),
    Lever(
        "topo.routing", "--load-balance-method shortest_queue|minimum_tokens|round_robin", default="round_robin",
        setting="load_balance_method",
        effect="Requests go to the replica with the least work; a cache-aware router in front keeps sessions together.",
        cost="A session can land on a replica without its prefix.", next_limit="prefix hits",
        verify="num_running_reqs and token_usage per dp_rank differ little",
    ),
    Lever(
        "client.max_tokens", "max_new_tokens (max_tokens) in the request", default="128 on /generate",
        effect="Outputs end earlier, and admission reserves less for each request.",
        cost="Answers can be cut.", next_limit="answers that end by length",
        verify="generation_tokens_histogram and the share of finish_reason length",
    ),
    *HOST_LEVERS,
    Lever(
        "engine.version", "pip install -U sglang", default=None,
        effect="Counters of retractions from 0.5.8, exact recompute from 0.5.18, victim policy from 0.5.16.",
        cost="A restart and a new set of defaults.", next_limit="defaults that changed (compare the server_args lines)",
        verify="version in /server_info",
    ),
    Lever(
        "observe.metrics", "--enable-metrics", default="off", setting="enable_metrics",
        effect="Opens /metrics; --decode-log-interval 10 refreshes gauges four times as often.",
        cost="Little.", next_limit="none", verify="GET /metrics answers with sglang: series",
    ),
    Lever(
        "observe.request_log", "--log-requests --log-requests-level 0", default="off", setting="log_requests",
        effect="A line per request with prompt and output tokens, finish reason and retractions, without any text.",
        cost="Log volume.", next_limit="disk", verify="lines that begin with Finish: obj=GenerateReqInput",
    ),
    Lever(
        "observe.victims", "--log-requests --log-requests-level 0", since="0.5.6", default="off", setting="log_requests",
        effect="num_retractions in each Finish line tells who was hit and how often; their progress at that moment is not "
        "printed anywhere.",
        cost="Log volume.", next_limit="disk", verify="num_retractions or total_retractions in the Finish lines",
    ),
    Lever(
        "observe.victims", None, until="0.5.5",
        instead="not visible before 0.5.6: upgrade, or read num_retracted_*_total averages after an upgrade to 0.5.8",
    ),
)  # fmt: skip

_REQUEST_LOG = "start the server with --log-requests --log-requests-level 0 and send the log"

GAPS: tuple[Gap, ...] = (
    Gap("preempt.count", "counters of retractions exist from 0.5.8 on",
        "send the log: each 'Decode out of memory happened' or 'KV cache pool is full. Retract requests' line is one", until="0.5.7"),
    Gap("preempt.hit_share", "the histogram sglang:num_retractions was removed after 0.5.10", _REQUEST_LOG, since="0.5.11"),
    Gap("preempt.hit_twice_share", "the histogram sglang:num_retractions was removed after 0.5.10", _REQUEST_LOG, since="0.5.11"),
    Gap("preempt.hit_share", "retractions per request are not counted before 0.5.6", "upgrade to 0.5.8 or later", until="0.5.5"),
    Gap("preempt.hit_twice_share", "retractions per request are not counted before 0.5.6", "upgrade to 0.5.8 or later", until="0.5.5"),
    Gap("preempt.hit_3plus_of_hit", "retractions per request are only in each response", _REQUEST_LOG),
    Gap("preempt.repeats_30s", "retract lines carry no request id", _REQUEST_LOG + " (num_retractions per request)"),
    Gap("preempt.secondary", "retract lines carry no request id", "only a replay of the load can tell: send a request trace"),
    Gap("preempt.victims_near_done", "only totals of the victims' tokens are counted",
        "num_retracted_output_tokens_total / num_retracted_requests_total is their mean progress; compare it with the "
        "outputs' length, or send a request trace for a replay"),
    Gap("preempt.victim_remaining_p50", "only totals of the victims' tokens are counted",
        "send a request trace for a replay"),
    Gap("recompute", "effective prefill tokens are counted from 0.5.18 on",
        "upgrade to 0.5.18 or later; from 0.5.8 on the retracted tokens give an upper bound", until="0.5.17"),
    Gap("kv.evictable_share", "reusable tokens are reported from 0.5.12 on", "upgrade, or try --disable-radix-cache on one "
        "server: usage that does not change was not cache", until="0.5.11"),
    Gap("kv.pool_tokens", "the gauge exists from 0.5.6 on", "send the start of the log (max_total_num_tokens=...) or "
        "/get_server_info", until="0.5.5"),
    Gap("kv.pool_bytes", "the gauge exists from 0.5.18 on", "send the start of the log (KV Cache is allocated ...) or "
        "/server_info", until="0.5.17"),
    Gap("kv.block_idle", "SGLang measures no idle time of cached blocks", "num_streaming_sessions and evicted_tokens_total "
        "show the same pressure from outside"),
    Gap("kv.block_reuse_gap", "SGLang measures no time between two uses of a block", "look at cached against looked-up tokens"),
    Gap("req.waiting_capacity", "the queue is not split by reason", "num_queue_reqs is an upper bound of it"),
    Gap("req.limit_running", "the limit is not among the metrics", "send the start of the log (max_running_requests=...), "
        "/server_info or /v1/loads"),
    Gap("req.rejected", "refusals are not counted", "search the log for 'The request queue is full'"),
    Gap("work.max_tokens_p50", "requested output limits are not recorded", _REQUEST_LOG),
    Gap("work.multi_turn_share", "sessions are not recorded", "send a request trace with session ids"),
    Gap("target.age_s", "the multi-process exporter does not report the process start",
        "name scrapes with their time (metrics_1795956688.prom) and send the log's start; a restart then shows as counters that fall"),
    Gap("latency.queue", "the queue histogram exists from 0.5.3 on", "compare time to first token at low and at high load", until="0.5.2"),
    Gap("latency.itl_p999", "each observation is the mean of one step", "take gaps between tokens from a client's trace"),
    Gap("tok.prefill_speed", "time spent on prefill is not counted", "the Prefill batch lines print input throughput"),
    Gap("mem.weights", "sizes are among the metrics from 0.5.18 on", "send the start of the log (Load weight end ...)", until="0.5.17"),
    Gap("mem.graphs", "sizes are among the metrics from 0.5.18 on", "send the start of the log (Capture cuda graph end ...)", until="0.5.17"),
    Gap("mem.activations", "SGLang does not profile activations; they live in what --mem-fraction-static leaves",
        "available_gpu_mem of the start line is their room"),
    Gap("offload.store_failures", "dropped backups are counted from 0.5.20 on", "upgrade to see them", until="0.5.19"),
    Gap("pd.expired", "expired transfers are not counted apart from failed ones", "search the log for 'timed out after' beside KVPoll"),
    Gap("kv.lost_tokens", "the accounting is printed only when it does not add up",
        "compare max_total_num_tokens with kv_available + kv_evictable + kv_used tokens while idle (0.5.12 and later)"),
)  # fmt: skip

COMMANDS: tuple[Command, ...] = (
    Command("metrics.kv", "curl -s {url}/metrics | grep -E '^sglang:(token_usage|full_token_usage|swa_token_usage|mamba_usage|"
            "kv_(used|available|evictable)_tokens|max_total_num_tokens)'", since="0.5.12"),
    Command("metrics.kv", "curl -s {url}/metrics | grep -E '^sglang:(token_usage|num_used_tokens)'", until="0.5.11"),
    Command("metrics.preemptions", "curl -s {url}/metrics | grep -E '^sglang:num_retracted_.*_total'", since="0.5.8"),
    Command("metrics.preemptions", "grep -cE 'Retract requests|Decode out of memory happened' {log}   # once per rank", until="0.5.7"),
    Command("metrics.recompute", "curl -s {url}/metrics | grep -E '^sglang:(realtime_tokens_total.*prefill_compute|"
            "prefill_effective_tokens_total.*\"input\")'   # the difference was computed again", since="0.5.18"),
    Command("metrics.queue", "curl -s {url}/metrics | grep -E '^sglang:num_(running|queue)_reqs'"),
    Command("metrics.latency", "curl -s {url}/metrics | grep -E '^sglang:(time_to_first_token|inter_token_latency|queue_time)_seconds_(sum|count)'"),
    Command("metrics.prefix", "curl -s {url}/metrics | grep -E '^sglang:(prefill_effective_tokens_total|cached_tokens_total|evicted_tokens_total)'"),
    Command("log.oom", "grep -nE 'CUDA out of memory|OutOfMemoryError|Try to lower your batch size' {log} | grep -v 'Decode out of memory happened'"),
    Command("log.start", "grep -nE 'server_args=|Load weight end|KV Cache is allocated|graph end|max_total_num_tokens=|fired up' {log}"),
    Command("log.stats", "grep -E 'Decode batch|Prefill batch|Retract requests|Decode out of memory happened' {log} | tail -50"),
    Command("log.preemptions", "grep -E 'Retract requests|Decode out of memory happened' {log}   # the same line once per rank"),
    Command("observe.metrics", "python -m sglang.launch_server ... --enable-metrics --decode-log-interval 10"),
    Command("observe.request_log", "python -m sglang.launch_server ... --log-requests --log-requests-level 0"),
    Command("observe.victims", "grep -oE \"'(num|total)_retractions': [0-9]+\" {log} | sort | uniq -c   # needs --log-requests", since="0.5.6"),
    Command("state.loads", "curl -s '{url}/v1/loads?include=all'", since="0.5.8"),
    Command("state.config", "curl -s {url}/server_info", since="0.5.8"),
    Command("state.config", "curl -s {url}/get_server_info", until="0.5.7"),
)  # fmt: skip

ENGINE = Engine(
    name="sglang",
    title="SGLang",
    metric_prefixes=("sglang:", "sglang_"),
    log_markers=(
        "server_args=ServerArgs(",
        "Scheduler hit an exception: ",
        "Load weight begin. ",
        "Load weight end. ",
        "#running-req: ",
        "#queue-req: ",
        "#retracted_reqs: ",
        "max_total_num_tokens=",
        "--mem-fraction-static",
        "The server is fired up and ready to roll",
        "Avaliable tokens: ",
        "/sglang/srt/",
        "token_to_kv_pool_allocator",
    ),
    process_markers=("sglang::", "sglang.launch_server", "sglang serve", "sglang_router"),
    default_port=30000,
    endpoints=(
        Endpoint("/metrics", "exposition"),
        Endpoint("/v1/loads", "loads"),
        Endpoint("/server_info", "server-info", once=True),
        Endpoint("/get_server_info", "server-info", once=True),
    ),
    series=SERIES,
    templates=TEMPLATES,
    levers=LEVERS,
    gaps=GAPS,
    commands=COMMANDS,
    rank_labels=("dp_rank",),
    usage_counts_reusable=False,
    preempt_kind=_preempt_kind,
    never_preempts=lambda version, args: False,
    reserves_output=lambda version, args: True,
    parse_args=parse_args,
    canonical_args=CANONICAL,
    shared_limit=True,
    defaults=_defaults,
    forks=("sglang-omni", "sgl-jax", "sglang-jax"),
    promql=PROMQL,
    scheduler=_scheduler,
)
