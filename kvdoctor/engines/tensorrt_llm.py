"""TensorRT-LLM: its Prometheus page, its log, and both as seen through Triton.

Two schedulers decide everything. GUARANTEED_NO_EVICT (the default) reserves prompt and maximum output at admission and
never pauses anybody: pressure shows as a queue beside a half-empty pool. MAX_UTILIZATION overcommits and pauses the
request started last, which is then computed again.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.engines import _argtext
from kvdoctor.engines._host_levers import HOST_LEVERS
from kvdoctor.engines._promql_tensorrt_llm import PROMQL
from kvdoctor.engines.base import Args, Command, Endpoint, Engine, Gap, Lever, Series, SeriesName
from kvdoctor.parse.serverlog import LogTemplate

_TRITON_KV = "nv_trt_llm_kv_cache_block_metrics"
_TRITON_REQUESTS = "nv_trt_llm_request_metrics"
_TRITON_BATCHER = "nv_trt_llm_inflight_batcher_metrics"
_POLICY_NAMES = ("capacity_scheduler_policy", "batch_scheduler_policy", "scheduler_policy")


def _kv(kind: str) -> SeriesName:
    return SeriesName(_TRITON_KV, "gauge", where={"kv_cache_block_type": kind})


def _requests(kind: str) -> SeriesName:
    return SeriesName(_TRITON_REQUESTS, "gauge", where={"request_type": kind})


def _histogram(role: str, name: str, note: str = "") -> Series:
    return Series(role, (SeriesName(f"trtllm_{name}_seconds", "histogram"),), note)


_SERIES: tuple[Series, ...] = (
    Series("req.running", (SeriesName("trtllm_num_requests_running", "gauge"), _requests("active"))),
    Series(
        "req.waiting",
        (SeriesName("trtllm_num_requests_waiting", "gauge"), _requests("waiting")),
        "requests not admitted yet; paused ones are not in it",
    ),
    Series(
        "req.paused",
        (
            SeriesName("trtllm_num_paused_requests", "gauge"),
            SeriesName(_TRITON_BATCHER, "gauge", where={"inflight_batcher_specific_metric": "paused_requests"}),
        ),
        "paused in the last step; always 0 under GUARANTEED_NO_EVICT; newer Triton releases do not list it",
    ),
    Series(
        "req.finished",
        (
            SeriesName("trtllm_request_success_total", "counter", by="finished_reason"),
            SeriesName("trtllm_num_requests_completed_total", "counter"),
        ),
        "the first needs return_perf_metrics, the second iteration statistics",
    ),
    Series("req.failed", (SeriesName("trtllm_request_error_total", "counter"),)),
    Series(
        "req.limit_running",
        (SeriesName("trtllm_max_num_active_requests", "gauge"), _requests("max")),
        "often far above what a step can hold (max_batch_size)",
    ),
    Series(
        "kv.usage",
        (SeriesName("trtllm_kv_cache_utilization", "gauge"), _kv("fraction")),
        "blocks in use; blocks kept for reuse count as free. Under GUARANTEED_NO_EVICT the reservation of a request is "
        "not in it: a queue beside a low usage is reservation",
    ),
    Series("kv.pool_blocks", (SeriesName("trtllm_kv_cache_max_blocks", "gauge"), _kv("max"))),
    Series("kv.used_blocks", (SeriesName("trtllm_kv_cache_used_blocks", "gauge"), _kv("used"))),
    Series("kv.block_tokens", (SeriesName("trtllm_kv_cache_tokens_per_block", "gauge"), _kv("tokens_per"))),
    Series("kv.cpu_usage", (SeriesName("trtllm_kv_cache_host_utilization", "gauge"),), "host tier of the block pool"),
    Series("offload.usage", (SeriesName("trtllm_kv_cache_host_utilization", "gauge"),)),
    Series("kv.info", (SeriesName("trtllm_kv_cache_config_info", "info"),)),
    Series(
        "prefix.hit_rate",
        (
            SeriesName("trtllm_kv_cache_hit_rate", "gauge"),
            SeriesName(
                "trtllm_kv_cache_iter_reuse_rate", "gauge", ignore="rate of the last step alone: jumps between 0 and 1"
            ),
        ),
        "since the start, not of the window",
    ),
    Series("tok.cached", (SeriesName("trtllm_prompt_cached_tokens_total", "counter"),)),
    Series("tok.prompt", (SeriesName("trtllm_prompt_tokens_total", "counter"),), "counted when a request ends"),
    Series("tok.generated", (SeriesName("trtllm_generation_tokens_total", "counter"),), "counted when a request ends"),
    _histogram("latency.ttft", "time_to_first_token"),
    _histogram(
        "latency.itl", "time_per_output_token", "mean per request (TPOT), so single long gaps are averaged away"
    ),
    _histogram("latency.e2e", "e2e_request_latency"),
    _histogram("latency.queue", "request_queue_time"),
    _histogram("latency.prefill", "request_prefill_time"),
    _histogram("latency.decode", "request_decode_time"),
)


def _number(fields: Mapping[str, object], name: str) -> float | None:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _sequence_need(fields: dict[str, object]) -> dict[str, object]:
    """Tokens one sequence needs: beams x tokens per block x blocks, the product the message itself states."""
    beams, block, blocks = (_number(fields, name) for name in ("beams", "block_tokens", "blocks"))
    if beams is None or block is None or blocks is None:
        return fields
    return {**fields, "tokens_need": beams * block * blocks}


def _window_ratio(fields: dict[str, object]) -> dict[str, object]:
    """How many of the longest requests fit: less than one, which is why the window was cut."""
    length, fits = _number(fields, "length"), _number(fields, "fits")
    if length is None or fits is None or length <= 0:
        return fields
    return {**fields, "ratio": fits / length}


def _generation(fields: dict[str, object]) -> dict[str, object]:
    """Generation requests are the scheduled ones that are not in their context phase."""
    scheduled, context = _number(fields, "running"), _number(fields, "context_requests")
    if scheduled is None or context is None:
        return fields
    return {**fields, "generation_requests": scheduled - context}


def _block_usage(fields: dict[str, object]) -> dict[str, object]:
    used, most = _number(fields, "used_blocks"), _number(fields, "max_blocks")
    if used is None or most is None or most <= 0:
        return fields
    return {**fields, "kv_usage": used / most}


# The parts an executor is made of, by the name its error gives them. "Additional executor resources" and "Model resources"
# are the work buffers of the warm-up steps, which grow with the tokens of a step.
_COMPONENTS = {
    "kv_alloc": r"(?:Initial )?KV [Cc]ache",
    "prefill": r"Additional executor resources|Model resources created during usage",
    "sampler": r"Sampler",
    "weights_load": r"Model(?! resources)|Draft model for speculative decoding",
}


def _component(site: str, names: str) -> LogTemplate:
    return LogTemplate(
        f"trt.start.component.{site}",
        "error",
        "The following component could not be created:",
        rf"The following (?P<text>component could not be created: (?:{names}))",
        fields={"start": True, "site": site},
        note="PyTorch backend; the message lists the components made before it with the memory free around each",
    )


def _whole_length(fields: dict[str, object]) -> dict[str, object]:
    """Prompt, requested output and draft tokens together: that is what the limit is about."""
    asked = [value for name in ("prompt", "output", "draft") if (value := _number(fields, name)) is not None]
    return {"n_ctx": fields.get("n_ctx"), "n_tokens": sum(asked)}


_TRITON_FIELDS = {
    "Scheduled Requests": "running",
    "Context Requests": "context_requests",
    "MicroBatch ID": "micro_batch",
    "Max Request Count": "max_running",
    "Max KV cache blocks": "max_blocks",
    "Used KV cache blocks": "used_blocks",
    "Paused Requests": "paused",
    "Total Context Tokens": "new_tokens",
}


def _triton(key: str, field: str, *, first: bool = False) -> str:
    """A figure of the backend's JSON line, wherever it stands behind the first one."""
    figure = rf'"{key}\\?":\s?(?P<{field}>\d+)'
    return figure if first else rf"(?=.*?{figure})?"


def _triton_stats(fields: dict[str, object]) -> dict[str, object]:
    """Active requests that a step does not compute wait for memory, unless another micro-batch of a pipeline has them."""
    fields = _block_usage(fields)
    active, scheduled = _number(fields, "active"), _number(fields, "running")
    out = {k: v for k, v in fields.items() if k not in ("active", "micro_batch")}
    if active is None or scheduled is None or _number(fields, "micro_batch"):
        return {**out, "running": active}
    return {**_generation(out), "waiting": max(active - scheduled, _number(fields, "paused") or 0.0)}


def _pair(fields: dict[str, object]) -> dict[str, object]:
    """``key`` and ``value`` of a line that names one setting, as the text `parse_args` reads."""
    value = fields.get("value")
    shown = (
        f"{value:g}"
        if isinstance(value, float) and value < 1e6
        else f"{value:.0f}"
        if isinstance(value, float)
        else value
    )
    return {**fields, "text": f"{fields.get('key')}={shown}"}


_TEMPLATES: tuple[LogTemplate, ...] = (
    LogTemplate(
        "trt.banner",
        "banner",
        "TensorRT-LLM version:",
        r"\[TensorRT-LLM\] TensorRT-LLM version: (?P<version>\d[\w.+-]*)",
        note="printed when the package is imported, by every MPI rank of a run",
    ),
    LogTemplate(
        "trt.policy",
        "args",
        "Capacity Scheduler Policy:",
        r"Capacity Scheduler Policy: (?P<value>\w+)",
        fields={"key": "capacity_scheduler_policy"},
        derive=_pair,
    ),
    LogTemplate(
        "trt.model.limits",
        "args",
        "TRTGptModel ",
        r"TRTGptModel (?P<key>maxNumSequences|maxBatchSize|maxSequenceLen|maxNumTokens|maxBeamWidth): (?P<value>\d+)",
        derive=_pair,
    ),
    LogTemplate(
        "trt.mpi",
        "args",
        "MPI size:",
        r"MPI size: (?P<value>\d+)(?:, MPI local size: \d+)?, rank: 0\b",
        fields={"key": "mpi_size"},
        derive=_pair,
        note="world size: tensor x pipeline ranks; said by rank 0 only once",
    ),
    LogTemplate(
        "trt.start.limits",
        "args",
        "max_num_requests=",
        r"(?P<text>max_seq_len=\d+, max_num_requests=\d+, max_num_tokens=\d+(?:, max_batch_size=\d+)?)",
    ),
    LogTemplate(
        "trt.args",
        "args",
        "kv_cache_config=KvCacheConfig(",
        r"(?P<text>(?:\w*Args\(.*)?kv_cache_config=KvCacheConfig\(.*)",
    ),
    LogTemplate(
        "trt.reuse",
        "args",
        "KV cache block reuse is",
        r"KV cache block reuse is (?P<value>enabled|disabled)",
        fields={"key": "enable_block_reuse"},
        derive=_pair,
    ),
    LogTemplate(
        "trt.start.kv",
        "pool",
        "for max tokens in paged KV cache",
        r"Allocated (?P<bytes__gib>[\d.]+) GiB for max tokens in paged KV cache \((?P<tokens>\d+)\)",
    ),
    LogTemplate(
        "trt.start.kv_bytes",
        "pool",
        "bytes for k/v cache",
        r"Allocate (?P<bytes>\d+) bytes for k/v cache",
        note="0.5-0.8",
    ),
    LogTemplate(
        "trt.start.kv_tokens",
        "pool",
        "total tokens in paged KV cache",
        r"Using (?P<tokens>\d+) total tokens in paged KV cache, and (?P<sequence_blocks>\d+) blocks per sequence",
        note="0.5-0.8",
    ),
    LogTemplate(
        "trt.start.kv_max_tokens",
        "pool",
        "Max tokens in paged KV cache:",
        r"Max tokens in paged KV cache: (?P<tokens>\d+)\. Allocating (?P<bytes>\d+) bytes",
        note="0.9-0.10",
    ),
    LogTemplate(
        "trt.start.blocks",
        "pool",
        "blocks in KV cache primary pool:",
        r"Number of blocks in KV cache primary pool: (?P<blocks>\d+)",
    ),
    LogTemplate(
        "trt.start.blocks2",
        "pool",
        "blocks in KV cache secondary pool:",
        r"Number of blocks in KV cache secondary pool: (?P<cpu_blocks>\d+)",
    ),
    LogTemplate(
        "trt.start.tpb", "pool", "Number of tokens per block:", r"Number of tokens per block: (?P<block_tokens>\d+)"
    ),
    LogTemplate(
        "trt.start.pages",
        "pool",
        "KV cache pages per sequence:",
        r"Max KV cache pages per sequence: (?P<sequence_blocks>\d+)",
        note="pages x tokens per block = the longest request the pool provides for",
    ),
    LogTemplate(
        "trt.start.avail",
        "memory",
        "when calculating max tokens in paged kv cache",
        r"Memory usage when calculating max tokens in paged kv cache: "
        r"total: (?P<total__gib>[\d.]+) GiB, available: (?P<free__gib>[\d.]+) GiB",
        fields={"stage": "before the pool"},
    ),
    LogTemplate(
        "trt.start.peak",
        "memory",
        "Peak memory during memory usage profiling",
        r"Peak memory during memory usage profiling \(torch \+ non-torch\): (?P<peak__gib>[\d.]+) GiB, "
        r"available KV cache memory when calculating max tokens: (?P<kv_pool__gib>[\d.]+) GiB, "
        r"fraction is set (?P<kv_fraction>[\d.]+), kv size is (?P<token_bytes>\d+)"
        r"(?:\. device total memory (?P<total__gib>[\d.]+) GiB)?",
        fields={"stage": "before the pool"},
        note="the fraction is one of the memory left free, not of the device",
    ),
    LogTemplate(
        "trt.start.fraction",
        "args",
        "fraction is set ",
        r"fraction is set (?P<value>[\d.]+), kv size",
        fields={"key": "free_gpu_memory_fraction"},
        derive=_pair,
    ),
    LogTemplate(
        "trt.start.weights", "memory", "Loaded engine size:", r"Loaded engine size: (?P<weights__mib>[\d.]+) MiB"
    ),
    LogTemplate(
        "trt.start.context",
        "memory",
        "for execution context memory",
        r"Allocated (?P<activations__mib>[\d.]+) MiB for execution context memory",
    ),
    LogTemplate(
        "trt.window_shrunk",
        "concurrency",
        "exceeds upper bound",
        r"Attention window size (?P<length>\d+) exceeds upper bound (?P<fits>\d+) for available blocks",
        fields={"cut": True},
        derive=_window_ratio,
        note="the pool cannot hold one longest request; the engine cuts the length and starts all the same",
    ),
    LogTemplate(
        "trt.start.too_small",
        "start_error",
        "must be large enough to process at least 1 sequence",
        r"maxTokensInPagedKvCache \((?P<tokens_have>\d+)\) must be large enough to process at least 1 sequence.{0,80}?"
        r"beam_width \((?P<beams>\d+)\) \* tokensPerBlock \((?P<block_tokens>\d+)\) \* maxBlocksPerSeq \((?P<blocks>\d+)\)",
        fields={"error": "pool_too_small"},
        derive=_sequence_need,
    ),
    LogTemplate(
        "trt.start.no_fit",
        "start_error",
        "Impossible to fit in any sequence in kvCache",
        r"Impossible to fit in any sequence in kvCache",
        fields={"error": "pool_too_small", "text": "not one sequence fits into the KV pool"},
    ),
    *(_component(site, names) for site, names in _COMPONENTS.items()),
    LogTemplate(
        "trt.forward_error",
        "request_failed",
        "Encountered an error in forward",
        r"(?P<why>Encountered an error in forward(?:Async|Sync)? function)",
        note="every active request is answered with this error",
    ),
    LogTemplate(
        "trt.context.total",
        "context_limit",
        "must be less than max sequence length",
        r"Input length \((?P<prompt>\d+)\) \+ max new tokens \((?P<output>\d+)\)"
        r"(?: \+ draft tokens \((?P<draft>\d+)\))? must be less than max sequence length \((?P<n_ctx>\d+)\)",
        derive=_whole_length,
    ),
    LogTemplate(
        "trt.context.input",
        "context_limit",
        "exceeds maximum input length",
        r"Prompt length \((?P<n_tokens>\d+)\) exceeds maximum input length \((?P<n_ctx>\d+)\)",
    ),
    LogTemplate("trt.ready.triton", "ready", "Started HTTPService at", r"Started HTTPService at "),
    LogTemplate("trt.ready", "ready", "Application startup complete", r"Application startup complete"),
    LogTemplate(
        "trt.iter",
        "stats",
        "kv_cache_util = ",
        r"iter = (?P<step>\d+), global_rank = \d+, rank = \d+, num_scheduled_requests = (?P<running>\d+), "
        r"kv_cache_util = (?P<kv_usage>[\d.]+), .{0,200}?'num_ctx_requests': (?P<context_requests>\d+), "
        r"'num_ctx_tokens': (?P<new_tokens>\d+), 'num_generation_tokens': (?P<generation_tokens>\d+)",
        derive=_generation,
        note="print_iter_log; running is what this step scheduled, paused requests are not in it",
    ),
    LogTemplate(
        "trt.iter.old",
        "stats",
        "num_scheduled_requests: ",
        r"iter = (?P<step>\d+), global_rank = \d+, rank = \d+, .{0,300}?num_scheduled_requests: (?P<running>\d+), "
        r"states = \{'num_ctx_requests': (?P<context_requests>\d+), 'num_ctx_tokens': (?P<new_tokens>\d+), "
        r"'num_generation_tokens': (?P<generation_tokens>\d+)",
        derive=_generation,
    ),
    LogTemplate(
        "trt.iter.triton",
        "stats",
        "Active Request Count",
        _triton("Active Request Count", "active", first=True)
        + "".join(_triton(key, field) for key, field in _TRITON_FIELDS.items()),
        derive=_triton_stats,
        note="newer Triton releases escape the quotes; active requests are all that were taken in, scheduled ones computed",
    ),
    LogTemplate(
        "trt.pause",
        "retract",
        "MaxUtilizationScheduler: request ID",
        r"MaxUtilizationScheduler: request ID (?P<id>\d+) -> pause",
        fields={"count": 1.0, "mode": "pause"},
        note="DEBUG level only",
    ),
    LogTemplate(
        "trt.pause.generation",
        "retract",
        "Pause generation only request",
        r"Pause generation only request\s?,\s?request_id\s?:\s?(?P<id>\d+)",
        fields={"count": 1.0, "mode": "pause"},
        note="WARNING level, on the generation side of a disaggregated server: its victims run their context phase here",
    ),
    LogTemplate(
        "trt.summary",
        "stats",
        "[Summary] Capacity scheduler",
        r"\[Summary\] Capacity scheduler allows (?P<running>\d+) requests, pauses (?P<paused>\d+) requests",
        note="DEBUG level, every step; the pauses are also printed one by one, so they are not counted from here",
    ),
    LogTemplate(
        "trt.no_block",
        "error",
        "No free block found",
        r"(?P<text>No free block found)\. This shouldn't happen",
        note="an invariant of the allocator broke; no eviction setting changes it",
    ),
)


_FRACTION = "kv_cache_config.free_gpu_memory_fraction"
_POLICY = "scheduler_config.capacity_scheduler_policy"

_LEVERS: tuple[Lever, ...] = (
    Lever(
        "sched.max_running",
        "max_batch_size",
        default="build dependent",
        setting="max_running",
        effect="Caps the requests in a step, so fewer sequences grow at the same time.",
        cost="The queue grows and throughput falls once decode steps are no longer full.",
        next_limit="request queue time",
        verify="trtllm_num_paused_requests stays 0 while trtllm_num_requests_running holds its level",
    ),
    Lever(
        "sched.batch_tokens",
        "max_num_tokens",
        default="build dependent",
        setting="batch_tokens",
        effect="Bounds the tokens of a step and with them the activation peak.",
        cost="Long prompts take more steps.",
        next_limit="time to first token",
        verify="total_context_tokens per step stays below it and no device OOM follows",
    ),
    Lever(
        "sched.max_queue",
        None,
        instead="Behind Triton set max_queue_size in the model's dynamic batching policy; trtllm-serve has no bound, limit it "
        "in the gateway.",
    ),
    Lever(
        "sched.policy",
        "scheduler_config.waiting_queue_policy",
        since="1.4",
        default="fcfs",
        setting="policy",
        effect="Chooses which waiting request is admitted next.",
        cost="Requests at the back may starve.",
        next_limit="p99 of the queue time",
        verify="spread of trtllm_request_queue_time_seconds",
    ),
    Lever(
        "sched.policy",
        None,
        until="1.3",
        instead="The queue is first come, first served; order requests in the gateway, or upgrade to 1.4.",
    ),
    Lever(
        "admission.free_share",
        "kv_cache_config.max_util_for_resume",
        default="0.95",
        setting="free_share",
        effect="With use_kv_cache_manager_v2 paused work is resumed only below this usage, which leaves room for growth.",
        cost="Paused requests wait longer before they go on.",
        next_limit="end-to-end latency of paused requests",
        inverse=True,
        verify="numPausedRequests no longer rises and falls step by step",
    ),
    Lever(
        "admission.full_prompt",
        None,
        instead=f"{_POLICY}=GUARANTEED_NO_EVICT admits a request only when its prompt and its whole output fit.",
    ),
    Lever(
        "admission.reserve_output",
        _POLICY,
        default="GUARANTEED_NO_EVICT",
        setting="reserve_policy",
        effect="GUARANTEED_NO_EVICT reserves prompt and maximum output at admission and never pauses; MAX_UTILIZATION "
        "reserves nothing and pauses when blocks run out.",
        cost="Reservation leaves the pool half empty when clients send a far too large max_tokens.",
        next_limit="the queue under reservation, recomputation without it",
        verify="numPausedRequests is 0 and numQueuedRequests is compared before and after",
        values={"up": "GUARANTEED_NO_EVICT", "down": "MAX_UTILIZATION"},
    ),
    Lever(
        "victim.order",
        None,
        instead="The victim is always the request started last; use GUARANTEED_NO_EVICT to have no victims.",
    ),
    Lever(
        "victim.protect",
        None,
        instead="Running requests cannot be protected; KvCacheRetentionConfig (per request: priority 0-100 and a duration) "
        "protects cached blocks only.",
    ),
    Lever(
        "victim.cooldown",
        None,
        instead="There is none; max_util_for_resume (KV cache manager V2) or GUARANTEED_NO_EVICT stops pausing in turns.",
    ),
    Lever(
        "kv.pool_share",
        _FRACTION,
        of_free=True,
        default="0.9",
        setting="fraction",
        effect="Share of the memory left free after the weights that becomes KV pool.",
        cost="Less is left for activations, so a too large value ends in a device OOM with a half-empty pool.",
        next_limit="device memory for activations",
        verify="the line 'Allocated N GiB for max tokens in paged KV cache'",
    ),
    Lever(
        "kv.pool_bytes",
        "kv_cache_config.max_tokens",
        default="none",
        setting="pool_tokens",
        effect="Sets the pool in tokens; with the fraction also set, the smaller of the two wins.",
        cost="A value that fits today does not follow a change of model or dtype.",
        next_limit="device memory",
        verify="the token count in 'Allocated N GiB for max tokens in paged KV cache (N)'",
    ),
    Lever(
        "kv.dtype",
        "kv_cache_config.dtype",
        default="auto",
        setting="kv_dtype",
        effect="fp8 halves the bytes per token, so the same memory holds twice the tokens.",
        cost="Quality has to be checked for the model; older engines fix it when they are built.",
        next_limit="compute",
        verify="the token count of the pool doubles",
    ),
    Lever(
        "kv.block_tokens",
        "kv_cache_config.tokens_per_block",
        default="32",
        setting="block_tokens",
        effect="Smaller blocks waste less at the end of a sequence and match prefixes more finely.",
        cost="More bookkeeping; attention kernels prefer larger blocks.",
        next_limit="step time",
        verify="the line 'Number of tokens per block'",
    ),
    Lever(
        "kv.offload_bytes",
        "kv_cache_config.host_cache_size",
        default="none",
        setting="offload",
        effect="Evicted blocks of priority >= secondary_offload_min_priority go to host memory instead of being dropped.",
        cost="Host memory and PCIe bandwidth.",
        next_limit="PCIe",
        verify="trtllm_kv_cache_onboard_bytes_total grows with the hit rate",
    ),
    Lever(
        "prefix.enable",
        "kv_cache_config.enable_block_reuse",
        default="true",
        setting="prefix",
        effect="Blocks of finished requests are found again by later requests with the same beginning.",
        cost="None worth naming: blocks kept for reuse count as free.",
        next_limit="prompt order of the clients",
        verify="trtllm_kv_cache_hit_rate",
    ),
    Lever(
        "mem.max_model_len",
        "max_seq_len",
        setting="max_model_len",
        effect="Shortens the longest request, so fewer blocks must be held for one.",
        cost="Longer requests are refused.",
        next_limit="requests that are refused",
        verify="the line 'Max KV cache pages per sequence'",
    ),
    Lever(
        "mem.graphs",
        "cuda_graph_config",
        setting="eager",
        effect="Fewer or smaller captured batch sizes leave memory; PyTorch backend.",
        cost="Slower decode steps for sizes that were not captured.",
        next_limit="inter-token latency",
        verify="device memory after start",
    ),
    Lever(
        "mem.prefill_chunk",
        "enable_chunked_prefill",
        values={"down": "true"},
        default="false",
        setting="chunk",
        effect="Cuts long prompts into pieces of at most max_num_tokens, which lowers the activation peak.",
        cost="Time to first token of long prompts.",
        next_limit="time to first token",
        verify="numCtxTokens per step stays below max_num_tokens",
    ),
    Lever(
        "mem.lora_slots",
        "lora_config.max_lora_rank",
        setting="lora_rank",
        effect="Adapter memory follows the rank and the number of adapters provided for (max_loras).",
        cost="Adapters of a higher rank are refused.",
        next_limit="adapters that must be swapped in",
        verify="device memory after start",
    ),
    Lever(
        "mem.multimodal_limit",
        None,
        instead="Set max_multimodal_len when the engine is built and limit images per request in the gateway.",
    ),
    Lever(
        "mem.logprobs_cap",
        None,
        instead="Do not gather context logits (gather_context_logits=false) and limit logprobs in the gateway.",
    ),
    Lever(
        "mem.allocator_conf",
        "PYTORCH_CUDA_ALLOC_CONF",
        effect="expandable_segments:True lets the PyTorch backend use memory it has reserved in pieces.",
        cost="Not for engines built with the TensorRT backend, whose memory torch does not manage.",
        next_limit="device memory",
        verify="reserved but unallocated memory in the next OOM line",
    ),
    Lever(
        "mem.process_cap",
        None,
        instead=f"{_FRACTION} bounds the pool; nothing bounds the process, so separate processes by device or MIG.",
    ),
    Lever(
        "topo.tp",
        "--tp_size",
        default="1",
        setting="tp",
        effect="Spreads weights and KV over more devices.",
        cost="Communication in every layer; engines of the TensorRT backend must be built again.",
        next_limit="communication between devices",
        verify="output tokens per second per device",
    ),
    Lever(
        "topo.dp",
        "enable_attention_dp",
        default="false",
        setting="dp",
        effect="Each rank keeps the KV of its own requests instead of a slice of all, where heads are few (MLA).",
        cost="Ranks can be loaded unequally.",
        next_limit="the fullest rank",
        verify="usage per rank, not the mean",
        values={"up": "true"},
    ),
    Lever(
        "topo.routing",
        None,
        instead="The engine does not route; use Triton ensembles, trtllm-serve disaggregated, Dynamo or a gateway that looks "
        "at usage and prefixes.",
    ),
    Lever(
        "client.max_tokens",
        "max_tokens (request)",
        effect="Under GUARANTEED_NO_EVICT every request books prompt and max_tokens, so a sane limit frees the pool.",
        cost="Outputs longer than the limit are cut.",
        next_limit="outputs that end by length",
        verify="numQueuedRequests falls while usage rises",
    ),
    *HOST_LEVERS,
    Lever(
        "engine.version",
        "pip install tensorrt_llm==VERSION",
        effect="Takes fixes of the scheduler and of the block manager.",
        cost="Engines of the TensorRT backend have to be built again.",
        next_limit="settings whose names changed",
        verify="the line '[TensorRT-LLM] TensorRT-LLM version'",
    ),
    Lever(
        "observe.metrics",
        "enable_iter_perf_stats: true, return_perf_metrics: true",
        effect="Fills /prometheus/metrics with iteration and request series.",
        cost="A little work per step.",
        next_limit="pauses are still only a gauge of the last step",
        verify="curl -s URL/prometheus/metrics shows trtllm_kv_cache_utilization",
    ),
    Lever(
        "observe.request_log",
        "print_iter_log: true",
        effect="One line per step with scheduled requests, context tokens and pool usage.",
        cost="A large log.",
        next_limit="log volume",
        verify="lines that begin with 'iter ='",
    ),
    Lever(
        "observe.victims",
        "TLLM_LOG_LEVEL=DEBUG",
        effect="Names every request that is paused.",
        cost="A very large log; for minutes only.",
        next_limit="log volume",
        verify="lines 'request ID N -> pause'",
    ),
)


_GAPS: tuple[Gap, ...] = (
    Gap(
        "preempt",
        "pauses are exposed as a gauge of the last step, not as a counter",
        "save the iteration statistics (GET /metrics, which each read empties) and sum numPausedRequests",
    ),
    Gap(
        "recompute",
        "recomputed tokens are not counted",
        "compare numCtxTokens of the iteration statistics with the prompt tokens of new requests",
    ),
    Gap("preempt.victims_near_done", "victims are only named at DEBUG level, without their progress", "none so far"),
    Gap("preempt.victim", "victims are only named at DEBUG level, without their progress", "none so far"),
    Gap(
        "kv",
        "iteration statistics are off",
        "set enable_iter_perf_stats: true and read /prometheus/metrics (not /metrics)",
    ),
    Gap("kv.evictable_share", "blocks kept for reuse count as free and are not told apart", "none so far"),
    Gap(
        "latency",
        "request series need return_perf_metrics",
        "set return_perf_metrics: true and read /prometheus/metrics",
    ),
    Gap(
        "latency.stalls",
        "only the mean time per token of a request is measured, so gaps within it are not visible",
        "measure gaps in the client, or use the engine's request trace",
    ),
    Gap(
        "work",
        "prompt and output lengths have no histogram",
        "use the means of the token counters per finished request",
    ),
    Gap("req.rejected", "the server does not count refusals", "count HTTP errors in the gateway"),
    Gap(
        "prefix.lookup_tokens",
        "only hits are counted in tokens",
        "use the prompt token counter as the number looked up",
    ),
    Gap("mem.graphs", "the size of captured graphs is not printed", "compare device memory before and after start"),
)


_COMMANDS: tuple[Command, ...] = (
    Command(
        "metrics.kv",
        "curl -s {url}/prometheus/metrics | grep -E '^trtllm_kv_cache_(utilization|max_blocks|used_blocks)'",
    ),
    Command("metrics.preemptions", "curl -s {url}/prometheus/metrics | grep '^trtllm_num_paused_requests'"),
    Command("metrics.queue", "curl -s {url}/prometheus/metrics | grep -E '^trtllm_num_requests_(running|waiting)'"),
    Command(
        "metrics.latency",
        "curl -s {url}/prometheus/metrics | grep -E '^trtllm_(time_to_first_token|time_per_output_token|request_queue_time)'",
    ),
    Command(
        "metrics.prefix",
        "curl -s {url}/prometheus/metrics | grep -E '^trtllm_(kv_cache_hit_rate|prompt_cached_tokens)'",
    ),
    Command("log.oom", "grep -nE 'out of memory|cudaMallocAsync|must be large enough' {log}"),
    Command("log.start", "grep -nE 'paged KV cache|primary pool|tokens per block|Capacity Scheduler Policy' {log}"),
    Command("log.stats", "grep -nE 'iter = |Active Request Count' {log} | tail -20"),
    Command("observe.metrics", "curl -s {url}/prometheus/metrics | grep -c '^trtllm_'"),
    Command("observe.request_log", "curl -s {url}/metrics >> iteration-stats.jsonl"),
    Command("observe.victims", "grep -n -- '-> pause' {log} | tail -50"),
)


def _policy(args: Args) -> str | None:
    """The capacity scheduler policy as stated, in upper case; None when the arguments do not say."""
    for name in _POLICY_NAMES:
        value = args.get(name)
        if value:
            return value.upper().rsplit(".", 1)[-1]
    return None


def _preempt_kind(version: str | None, args: Args) -> str | None:
    return "pause" if _policy(args) == "MAX_UTILIZATION" else None


def _reserves_output(version: str | None, args: Args) -> bool | None:
    """The default policy books prompt and output in full; MAX_UTILIZATION books what is used."""
    stated = _never_preempts(version, args)
    return True if stated is None else stated


def _never_preempts(version: str | None, args: Args) -> bool | None:
    policy = _policy(args)
    if policy in ("GUARANTEED_NO_EVICT", "STATIC_BATCH"):
        return True
    return False if policy == "MAX_UTILIZATION" else None


def _parse_args(text: str) -> Args:
    return {**_argtext.nested(text), **_argtext.pbtxt(text), **_argtext.flags(text)}


def _defaults(version: str | None) -> Mapping[str, str]:
    return {"fraction": "0.9", "block_tokens": "32", "prefix": "True", "reserve_policy": "GUARANTEED_NO_EVICT"}


ENGINE = Engine(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    metric_prefixes=("trtllm_", "nv_trt_llm_"),
    log_markers=("[TensorRT-LLM]", "[TRT-LLM]", "maxTokensInPagedKvCache", "Runtime Pinned Memory Usage"),
    process_markers=("trtllm-serve", "trtllm-llmapi-launch", "tensorrt_llm", "trtllmExecutorWorker", "executorWorker"),
    default_port=8000,
    endpoints=(
        Endpoint("/prometheus/metrics", "exposition"),
        Endpoint("/metrics", "iterstats"),
        Endpoint("/version", "version", once=True),
        Endpoint("/v1/models", "models", once=True),
    ),
    series=_SERIES,
    templates=_TEMPLATES,
    levers=_LEVERS,
    gaps=_GAPS,
    commands=_COMMANDS,
    rank_labels=("rank", "model"),
    usage_counts_reusable=False,
    preempt_kind=_preempt_kind,
    never_preempts=_never_preempts,
    reserves_output=_reserves_output,
    parse_args=_parse_args,
    canonical_args={
        "max_running": ("max_batch_size", "maxBatchSize", "max_num_requests", "max_num_sequences", "maxNumSequences"),
        "batch_tokens": ("max_num_tokens", "maxNumTokens"),
        "max_model_len": ("max_seq_len", "maxSequenceLen"),
        "block_tokens": ("tokens_per_block",),
        "pool_tokens": ("max_tokens_in_paged_kv_cache",),
        "pool_bytes": ("max_gpu_total_bytes",),
        "fraction": (
            "free_gpu_memory_fraction",
            "kv_cache_free_gpu_memory_fraction",
            "kv_cache_free_gpu_mem_fraction",
        ),
        "tp": ("tensor_parallel_size", "tp_size"),
        "pp": ("pipeline_parallel_size", "pp_size"),
        "dp": ("enable_attention_dp",),
        "prefix": ("enable_block_reuse", "enable_kv_cache_reuse"),
        "kv_dtype": ("kv_cache_dtype",),
        "free_share": ("max_util_for_resume",),
        "max_queue": ("max_queue_size",),
        "policy": ("waiting_queue_policy",),
        "reserve_policy": _POLICY_NAMES,
        "chunk": ("enable_chunked_prefill", "enable_chunked_context"),
        "lora_rank": ("max_lora_rank",),
        "offload": ("host_cache_size", "kv_cache_host_memory_bytes"),
        "model": ("model", "model_dir", "engine_dir", "gpt_model_path"),
        "port": ("port", "http_port"),
        "spec": ("speculative_decoding_mode", "decoding_mode"),
    },
    defaults=_defaults,
    promql=PROMQL,
    silent_pauses=True,
)
