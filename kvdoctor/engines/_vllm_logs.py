"""vLLM's log messages: 0.2 to 0.33, V0 and V1, CPU and accelerator builds, and forks that print the same words.

Sizes: up to 0.8.2 the unit printed is GB, the value is bytes / 2**30; both spellings are read as GiB.
Literals are short and shared on purpose: the reader searches a log once for each different one.
"""

from __future__ import annotations

from kvdoctor.parse.serverlog import LogTemplate

_WITHIN = r"(?=(?:(?:(?!Avg prompt throughput).){0,700}?"
"""Looks for a field further on in the same report: forks put fields in the middle, logs glue two reports together."""


def _maybe(field: str) -> str:
    return f"{_WITHIN}{field})?)"


def _must(field: str) -> str:
    return f"{_WITHIN}{field}))"


_NUMBER = r"\d[\d.]{0,20}"


def _kv_fetch(fields: dict[str, object]) -> dict[str, object]:
    """Requests that wait for a KV transfer and those in one, as one number."""
    parts = [fields.pop(name) for name in ("fetch_waiting", "fetch_running") if name in fields]
    numbers = [part for part in parts if isinstance(part, float)]
    return {**fields, "kv_fetch": sum(numbers)} if numbers else fields


def _mode(fields: dict[str, object]) -> dict[str, object]:
    mode = fields.get("mode")
    return {**fields, "mode": mode.lower()} if isinstance(mode, str) else fields


def _prompt_ids(fields: dict[str, object]) -> dict[str, object]:
    """The list of prompt tokens becomes its length; the tokens themselves are a user's text and are not kept."""
    ids = fields.pop("prompt_ids", None)
    if isinstance(ids, str) and ids.strip():
        fields["prompt_tokens"] = float(ids.count(",") + 1)
    elif isinstance(ids, float):
        fields["prompt_tokens"] = 1.0  # a single token reads as a number
    return fields


def _drop_rounded(fields: dict[str, object]) -> dict[str, object]:
    """Sizes so small that need and have print as the same 0.0 GiB say nothing; the token counts remain."""
    need, have = fields.get("need"), fields.get("have")
    if isinstance(need, float) and isinstance(have, float) and need <= have:
        return {name: value for name, value in fields.items() if name not in ("need", "have")}
    return fields


def _as_setting(name: str, template: LogTemplate) -> LogTemplate:
    """A message that tells one resolved setting becomes ``args`` text."""

    def derive(fields: dict[str, object]) -> dict[str, object]:
        value = fields.pop("value", None)
        return {**fields, "text": f"{name}={value:.0f}"} if isinstance(value, float) else fields

    return LogTemplate(
        template.id,
        "args",
        template.literal,
        template.pattern,
        since=template.since,
        until=template.until,
        note=template.note,
        derive=derive,
    )


_START: tuple[LogTemplate, ...] = (
    LogTemplate(
        "api_version",
        "banner",
        "ersion ",
        r"(?:vLLM API server version v?|█ {1,4}version {1,4}v?)(?P<version>\d[\w.+-]{0,40})",
        fields={"part": "api"},
    ),
    LogTemplate(
        "engine_init",
        "banner",
        "LLM ",
        r"Initializing an? (?!LLM engine with config)(?:(?P<generation>V[01]) )?LLM engine(?: \(v(?P<version>[^)\s]{1,40})\))? with config"
        r"(?:: model='?(?P<model>[^',\s]{1,300}))?",
        fields={"part": "core"},
        note="the version is in the text from 0.4.1, V0 or V1 from 0.7.1; one line per engine core",
    ),
    LogTemplate(
        "engine_init_unversioned",
        "banner",
        "LLM ",
        r"Initializing an LLM engine with config(?:: model='?(?P<model>[^',\s]{1,300}))?",
        fields={"part": "core"},
        until="0.4.0",
    ),
    LogTemplate(
        "engine_config",
        "args",
        "LLM ",
        r"Initializing an? (?P<text>(?:V[01] )?LLM engine(?: \([^)]{1,40}\))? with config: [^\n]+)",
        note="what the engine resolved",
    ),
    LogTemplate(
        "server_args",
        "args",
        "args: ",
        r"non-default args: (?P<text>\{[^\n]*)",
        since="0.9",
        note="what the operator set; may hold objects",
    ),
    LogTemplate("namespace_args", "args", "args: ", r"args: (?P<text>Namespace\([^\n]*)", until="0.9"),
    _as_setting(
        "max_num_batched_tokens",
        LogTemplate(
            "chunked",
            "args",
            "max_num_batched_tokens=",
            r"Chunked prefill is enabled with max_num_batched_tokens=(?P<value>\d{1,12})",
            since="0.5.3",
        ),
    ),
    _as_setting(
        "max_model_len",
        LogTemplate("max_len", "args", "max model len ", r"Using max model len (?P<value>\d{1,12})", since="0.8.5"),
    ),
    _as_setting(
        "max_model_len",
        LogTemplate(
            "autofit",
            "args",
            "max_model_len",
            r"Auto-fit max_model_len: reduced from \d{1,12} to (?P<value>\d{1,12})",
            since="0.14",
            note="max_model_len=-1 shrank the context: requests cut off there are not evicted",
        ),
    ),
    LogTemplate(
        "load_begin", "phase", "to load model", r"Starting to load model ", fields={"what": "weights", "begin": True}
    ),
    LogTemplate(
        "weights_v0",
        "memory",
        "took ",
        rf"Loading model weights took (?P<weights__gib>{_NUMBER}) (?:GB|GiB)",
        note="GB is printed, GiB is meant",
    ),
    LogTemplate(
        "weights_v1",
        "memory",
        "took ",
        rf"Model loading took (?P<weights__gib>{_NUMBER}) (?:GB|GiB)(?: memory)? and",
        since="0.8",
        note="up to 0.8.2 GB is printed, GiB is meant; 0.11.1 adds the word memory",
    ),
    LogTemplate(
        "profile_064",
        "memory",
        "emory",
        rf"Memory profiling results: total_gpu_memory=(?P<total__gib>{_NUMBER})GiB "
        rf"initial_memory_usage={_NUMBER}GiB peak_torch_memory=(?P<peak_torch__gib>{_NUMBER})GiB "
        rf"memory_usage_post_profile={_NUMBER}Gi[bB] non_torch_memory=(?P<non_torch__gib>-?{_NUMBER})GiB "
        rf"kv_cache_size=(?P<kv_pool__gib>-?{_NUMBER})GiB gpu_memory_utilization=(?P<fraction>{_NUMBER})",
        since="0.6.4",
        until="0.6.4",
        note="one unit is spelled Gib (and one may be GiB)",
    ),
    LogTemplate(
        "profile_budget_v0",
        "memory",
        "LLM ",
        rf"vLLM instance can use total_gpu_memory \((?P<total__gib>{_NUMBER})GiB\) x gpu_memory_utilization "
        rf"\((?P<fraction>{_NUMBER})\) = (?P<budget__gib>{_NUMBER})GiB",
        since="0.6.5",
        until="0.10",
    ),
    LogTemplate(
        "profile_v0",
        "memory",
        "model weights take ",
        rf"model weights take (?P<weights__gib>{_NUMBER})GiB; non_torch_memory takes (?P<non_torch__gib>-?{_NUMBER})GiB; "
        rf"PyTorch activation peak memory takes (?P<activations__gib>{_NUMBER})GiB; the rest of the memory reserved for "
        rf"KV Cache is (?P<kv_pool__gib>-?{_NUMBER})GiB",
        since="0.6.5",
        until="0.10",
    ),
    LogTemplate(
        "available_kv",
        "pool",
        "KV cache",
        rf"Available KV cache memory: (?P<available_bytes__gib>-?{_NUMBER}) GiB",
        since="0.9.1",
        note="before 0.20 graph memory is still inside; below zero when a neighbour took the memory meanwhile",
    ),
    LogTemplate(
        "actual_usage",
        "memory",
        "emory",
        rf"Free memory on device \((?P<free__gib>{_NUMBER})/(?P<total__gib>{_NUMBER}) GiB\) on startup\. "
        rf"Desired GPU memory utilization is \((?P<fraction>{_NUMBER}), (?P<budget__gib>{_NUMBER}) GiB\)\. Actual usage is "
        rf"(?:(?P<weights__gib>{_NUMBER}) GiB for weight|(?P<consumed__gib>{_NUMBER}) GiB for consumed memory)[^,]{{0,40}}, "
        rf"(?P<activations__gib>{_NUMBER}) GiB for peak activation,(?: (?P<non_torch__gib>-?{_NUMBER}) GiB for non-torch "
        rf"memory,)? and (?P<graphs__gib>-?{_NUMBER}) GiB for CUDAGraph memory\."
        rf"[^\n]{{0,600}}?Current kv cache memory in use is "
        rf"(?:(?P<kv_pool__gib>-?{_NUMBER}) GiB|(?P<kv_pool>-?\d{{1,20}}) bytes)",
        since="0.10.2",
        note="weights and non-torch apart up to 0.26, one figure from 0.27; bytes in 0.10.2; DEBUG in 0.11-0.25",
    ),
    LogTemplate(
        "kv_bytes_fixed",
        "memory",
        "emory",
        rf"Initial free memory (?P<free__gib>{_NUMBER}) GiB, reserved (?P<kv_pool__gib>{_NUMBER}) ?GiB memory for KV Cache "
        r"as specified by kv_cache_memory_bytes",
        since="0.10.2",
    ),
    LogTemplate(
        "cpu_kv_set",
        "pool",
        "KV cache",
        rf"Explicitly set \((?P<available_bytes__gib>{_NUMBER})/{_NUMBER}\) GiB for KV cache on node",
        fields={"host": True},
        since="0.20",
        note="CPU build: VLLM_CPU_KVCACHE_SPACE",
    ),
    LogTemplate(
        "gpu_blocks",
        "pool",
        "blocks: ",
        r"# GPU blocks: (?P<blocks>\d{1,12})(?:, # CPU blocks: (?P<cpu_blocks>\d{1,12}))?",
        until="0.7",
    ),
    LogTemplate(
        "device_blocks",
        "pool",
        "blocks: ",
        r"# (?!GPU )(?P<device>\w{1,16}) blocks: (?P<blocks>\d{1,12}), # CPU blocks: (?P<cpu_blocks>\d{1,12})",
        until="0.10",
        note="0.7 and later print the device name (cuda); TPU and HPU back ends always did",
    ),
    LogTemplate(
        "cpu_blocks",
        "pool",
        "blocks: ",
        r"(?<!, )# CPU blocks: (?P<blocks>\d{1,12})(?!\d|, #)",
        fields={"host": True},
        until="0.10",
        note="CPU build: the pool itself",
    ),
    LogTemplate(
        "kv_tokens",
        "pool",
        "KV cache",
        r"(?<!\w)(?P<device>[A-Z][\w +]{0,24}?) KV cache size: (?P<tokens>[\d,]{1,24}) tokens",
        since="0.8",
        note="from 0.21 max_concurrency x max_model_len, so for sliding-window models it depends on max_model_len",
    ),
    LogTemplate(
        "max_concurrency",
        "concurrency",
        "Maximum concurrency for ",
        rf"Maximum concurrency for (?P<length>[\d,]{{1,24}}) tokens per request: (?P<ratio>{_NUMBER})x",
        since="0.6.3",
    ),
    LogTemplate(
        "blocks_override",
        "pool",
        "num_gpu_blocks",
        r"Overriding num_gpu_blocks=(?P<profiled_blocks>\d{1,12}) with num_gpu_blocks_override=(?P<blocks>\d{1,12})",
    ),
    LogTemplate(
        "cache_info_blocks",
        "pool",
        "num_gpu_blocks",
        r"cache_config_info with initialization after num_gpu_blocks is: (?P<blocks>\d{1,12})",
        since="0.9",
    ),
    LogTemplate(
        "graphs_begin",
        "graphs_begin",
        "apturing ",
        r"Capturing (?:cudagraphs for decoding|the model for CUDA graphs|CUDA graph(?: shapes|s)(?: \([^)]{0,60}\))?: {1,4}0%)",
    ),
    LogTemplate(
        "graphs_end",
        "graphs_end",
        "apturing ",
        rf"Graph capturing finished in (?P<seconds>\d{{1,6}}) secs(?:, took (?P<graphs__gib>-?{_NUMBER}) GiB)?",
        note="the size from 0.6.4; 0 or less when another process freed memory meanwhile",
    ),
    LogTemplate(
        "graph_pool",
        "memory",
        "emory",
        rf"CUDA graph pool memory: (?P<graphs__gib>-?{_NUMBER}) GiB \(actual\)",
        since="0.18",
    ),
    LogTemplate(
        "graph_estimate",
        "memory",
        "emory",
        rf"Estimated CUDA graph memory: (?P<graphs_estimate__gib>{_NUMBER}) GiB total",
        since="0.20",
        note="taken off before the pool; 0.18 and 0.19 print it too and take it off only with "
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1",
    ),
    LogTemplate(
        "graph_profiling",
        "memory",
        "emory",
        rf"CUDA graph memory profiling is enabled[^\n]{{0,200}}?gpu-memory-utilization=(?P<fraction>{_NUMBER}) is equivalent "
        rf"to --gpu-memory-utilization=(?P<fraction_equivalent>0?\.\d{{1,8}}|[01](?:\.\d{{1,8}})?)",
        since="0.18",
        note="on by default from 0.20: a smaller pool after an upgrade is this, not a leak",
    ),
    LogTemplate(
        "free_grew",
        "memory",
        "emory",
        rf"Free memory grew by {_NUMBER} GiB during profiling \(initial (?P<free_initial__gib>{_NUMBER}) GiB, current "
        rf"(?P<free__gib>{_NUMBER}) GiB\)",
        since="0.29",
        note="ROCm: a neighbour freed memory, the start goes on",
    ),
    LogTemplate(
        "hybrid_off",
        "hybrid_disabled",
        "KV cache",
        r"Hybrid KV cache manager is disabled",
        since="0.9.1",
    ),
    LogTemplate(
        "multimodal_profile",
        "multimodal_profile",
        "multi-modal embeddings",
        r"(?:= |\()(?P<limit>\d{1,12})\)[^\n]{0,40} is too short to hold the multi-modal embeddings in the worst case "
        r"\((?P<tokens>\d{1,12}) tokens in total",
    ),
    LogTemplate(
        "multimodal_worst_case",
        "multimodal_profile",
        "-case total number of multimodal tokens",
        r"sequence length \((?P<limit>\d{1,12})\) is smaller than the pre-defined (?:worst|wosrt)-case total number of "
        r"multimodal tokens \((?P<tokens>\d{1,12})\)",
    ),
    LogTemplate(
        "multimodal_profile_v0",
        "multimodal_profile",
        "multi-modal models",
        r"Starting profile run for multi-modal models",
        until="0.10",
        note="encoder-decoder models with images: the dummy run holds max_num_seqs of the largest",
    ),
    LogTemplate(
        "init_end",
        "phase",
        "took ",
        r"init engine \([^)]{1,80}\) took",
        fields={"what": "init", "begin": False},
    ),
    LogTemplate("ready_start", "ready", "LLM ", r"Starting vLLM (?:API )?server(?: \d{1,6})? on "),
    LogTemplate("ready_routes", "ready", "Route: /version", r"Route: /version, Methods"),
    LogTemplate("ready_uvicorn", "ready", "Uvicorn running on", r"Uvicorn running on"),
    LogTemplate("ready_app", "ready", " complete", r"Application startup complete"),
)


def _refused(id_: str, literal: str, pattern: str, since: str | None = None) -> LogTemplate:
    return LogTemplate(id_, "start_error", literal, pattern, fields={"error": "config_refused"}, since=since)


_START_ERRORS: tuple[LogTemplate, ...] = (
    LogTemplate(
        "no_kv_memory",
        "start_error",
        "emory",
        r"(?P<text>No available memory for the cache blocks)",
        fields={"error": "pool_too_small"},
        note="weights and activations fill the budget; CPU builds name VLLM_CPU_KVCACHE_SPACE",
    ),
    LogTemplate(
        "kv_too_small_v0",
        "start_error",
        "KV cache",
        r"The model's max seq len \((?P<tokens_need>\d{1,12})\) is larger than the maximum number of tokens that can be "
        r"stored in KV cache \((?P<tokens_have>\d{1,12})\)",
        fields={"error": "pool_too_small"},
        until="0.10",
    ),
    LogTemplate(
        "kv_too_small_v1",
        "start_error",
        "KV cache",
        rf"To serve at least one request with the models?'s max seq len \((?P<tokens_need>\d{{1,12}})\), "
        rf"\((?P<need__gib>{_NUMBER}) Gi?B KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<have__gib>-?{_NUMBER}) Gi?B\)"
        r"(?:\. ?Based on the available memory,\s{1,4}the estimated maximum model length is (?P<tokens_have>\d{1,12}))?",
        fields={"error": "pool_too_small"},
        since="0.7",
        note="up to 0.8.2 GB is printed, GiB is meant; small pools print 0.0 for both: then the tokens decide",
        derive=_drop_rounded,
    ),
    LogTemplate(
        "free_below_fraction",
        "start_error",
        "emory",
        rf"Free memory on device (?:\S{{1,40}} )?\((?P<free__gib>{_NUMBER})/(?P<total__gib>{_NUMBER}) GiB\) on startup is "
        r"less than (?:desired GPU memory utilization|the engine's budget after excluding external process's weights) "
        rf"\((?P<fraction>{_NUMBER}), (?P<need__gib>{_NUMBER}) GiB\)",
        fields={"error": "free_below_fraction"},
        since="0.9.1",
    ),
    LogTemplate(
        "cpu_free_below_fraction",
        "start_error",
        "emory",
        rf"Available memory on node \S{{1,20}} \((?P<free__gib>{_NUMBER})/(?P<total__gib>{_NUMBER}) GiB\) on startup is less "
        rf"than desired CPU memory utilization \((?P<fraction>{_NUMBER}), (?P<need__gib>{_NUMBER}) GiB\)",
        fields={"error": "free_below_fraction", "host": True},
        since="0.20",
    ),
    LogTemplate(
        "memory_race",
        "start_error",
        "emory",
        r"Error in memory profiling\.(?: Initial (?:"
        rf"free memory (?P<free_initial__gib>{_NUMBER}) GiB, current free memory (?P<free__gib>{_NUMBER}) GiB|"
        r"free memory (?P<free_initial>\d{1,20}), current free memory (?P<free>\d{1,20})|"
        r"used memory (?P<used_initial>\d{1,20}), currently used memory (?P<used>\d{1,20})))?",
        fields={"error": "memory_race"},
        note="a neighbour freed memory while vLLM measured it; 0.4.1-0.5.3 without numbers, then free bytes, V0 0.7-0.10 used "
        "bytes, V1 from 0.9.1 free GiB",
    ),
    LogTemplate(
        "sampler_warmup",
        "warmup",
        "when warming up ",
        r"out of memory occurred when warming up (?P<what>sampler|pooler)(?: \(task=[^)]{0,60}\))? with "
        r"(?P<requests>\d{1,9}) dummy requests",
        fields={"sampler": True},
        since="0.8",
        note="logits: max_num_seqs x vocabulary",
    ),
    _refused("block_size_refused", "No common block size", r"(?P<text>No common block size for \d{1,9})", "0.11.1"),
    _refused(
        "connector_allocator",
        "incompatible with PYTORCH_",
        r"(?P<text>KV connector \S{1,80} is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
        "0.21",
    ),
    _refused(
        "derived_max_len",
        "max_model_len",
        r"(?P<text>User-specified max_model_len \(\d{1,12}\) is greater than the derived max_model_len)",
    ),
    _refused(
        "batched_tokens_refused",
        "max_num_batched_tokens (",
        r"(?P<text>max_num_batched_tokens \(\d{1,12}\) (?:is smaller than max_model_len|must be greater than or equal to "
        r"max_num_seqs) \(\d{1,12}\))",
    ),
    _refused(
        "heads_refused",
        "must be divisible by tensor parallel size",
        r"(?P<text>Total number of attention heads \(\d{1,9}\) must be divisible by tensor parallel size)",
    ),
    _refused(
        "too_few_devices",
        "number of available ",
        r"(?P<text>(?:World size \(\d{1,6}\) is larger than|The number of required \w{1,20} exceeds) the (?:total )?number of "
        r"available)",
    ),
    LogTemplate(
        "no_weights",
        "start_error",
        "any model weights",
        r"(?P<text>Cannot find any model weights with)",
        fields={"error": "weights"},
    ),
)


_STATS: tuple[LogTemplate, ...] = (
    LogTemplate(
        "stats_v1",
        "stats",
        "Avg prompt throughput",
        r"(?:Engine (?P<engine>\d{1,6}): |(?<!\d)(?P<aggregated>\d{1,6}) Engines Aggregated: )?"
        rf"Avg prompt throughput: (?P<prompt_rate>{_NUMBER}) tokens/s"
        + _must(r"Waiting: (?P<waiting>\d{1,9}) reqs")
        + _maybe(rf"Avg generation throughput: (?P<gen_rate>{_NUMBER}) tokens/s")
        + _maybe(r"Running: (?P<running>\d{1,9}) reqs")
        + _maybe(r"Deferred: (?P<deferred>\d{1,9}) reqs")
        + _maybe(r"KV fetch: (?P<fetch_waiting>\d{1,9}) waiting to start, (?P<fetch_running>\d{1,9}) in progress")
        + _maybe(rf"[A-Z][A-Za-z]{{0,15}} KV cache usage: (?P<kv_usage__pct>{_NUMBER})%")
        + _maybe(rf"Prefix cache hit rate: (?P<prefix_hit__pct>{_NUMBER})%")
        + _maybe(rf"External prefix cache hit rate: (?P<external_hit__pct>{_NUMBER})%"),
        since="0.7.1",
        note="no Preemptions field ever prints (counters are reset before they are read); aggregated lines average the ranks; "
        "prompt throughput leaves re-prefill out, and from 0.16 cached tokens; the hit rate covers the last 1000 requests; "
        "idle servers log at DEBUG, so silence is normal",
        derive=_kv_fetch,
    ),
    LogTemplate(
        "stats_v0",
        "stats",
        "Avg prompt throughput",
        rf"Avg prompt throughput: (?P<prompt_rate>{_NUMBER}) tokens/s"
        + _must(r"Pending: (?P<waiting>\d{1,9}) reqs")
        + _maybe(rf"Avg generation throughput: (?P<gen_rate>{_NUMBER}) tokens/s")
        + _maybe(r"Running: (?P<running>\d{1,9}) reqs")
        + _maybe(r"Swapped: (?P<swapped>\d{1,9}) reqs")
        + _maybe(rf"(?!CPU )[A-Z][A-Za-z]{{0,15}} KV cache usage: (?P<kv_usage__pct>{_NUMBER})%")
        + _maybe(rf"CPU KV cache usage: (?P<cpu_usage__pct>{_NUMBER})%"),
        until="0.10",
        note="Pending is the queue; CPU KV cache usage is swap space here, the main pool on a V1 CPU build",
    ),
    LogTemplate(
        "stats_v0_prefix",
        "stats",
        "refix cache",
        rf"Prefix cache hit rate: GPU: (?P<prefix_hit__pct>{_NUMBER})%",
        fields={"partial": True},
        since="0.5.5",
        until="0.10",
    ),
    LogTemplate(
        "stats_spec",
        "stats",
        "SpecDecoding metrics",
        rf"SpecDecoding metrics: (?=(?:[^\n]{{0,600}}?[Dd]raft acceptance rate: (?P<spec_accept__pct>{_NUMBER})%)?)",
        fields={"partial": True, "spec": True},
        since="0.8.3",
        note="generation tokens - generation requests is no recompute where this is printed",
    ),
    LogTemplate(
        "iteration",
        "iteration",
        "context requests, ",
        r"(?:Engine (?P<engine>\d{1,6}): )?Iteration\(\d{1,15}\): (?P<context_requests>\d{1,9}) context requests, "
        r"(?P<context_tokens>\d{1,12}) context tokens, (?P<generation_requests>\d{1,9}) generation requests, "
        rf"(?P<generation_tokens>\d{{1,12}}) generation tokens, iteration elapsed time: (?P<elapsed_ms>{_NUMBER}) ms"
        rf"(?! \(dummy\))(?:, [A-Z][A-Za-z]{{0,15}} KV cache usage: (?P<kv_usage__pct>{_NUMBER})%)?",
        since="0.14",
        note="scheduled tokens, recompute included: a request preempted while decoding replays as generation tokens",
    ),
    LogTemplate(
        "kv_transfer",
        "transfer",
        "KV Transfer metrics",
        r"KV Transfer metrics: (?=(?:[^\n]{0,600}?Num failed transfers=(?P<failed>\d{1,9}))?)"
        r"(?=(?:[^\n]{0,600}?(?:Num KV expired reqs|Num expired reqs)=(?P<expired>\d{1,9}))?)",
        since="0.11",
        note="counts of the interval",
    ),
)


_REQUESTS: tuple[LogTemplate, ...] = (
    LogTemplate(
        "request_received",
        "request_in",
        "equest ",
        r"\A[^\n]{0,400}?Received request (?P<id>\S{1,200}?): [^\n]*params: SamplingParams\((?=(?:[^\n]{0,2000}?\bmax_tokens=(?P<max_tokens>\d{1,12}))?)"
        r"(?=(?:[^\n]*prompt_token_ids: \[(?P<prompt_ids>[\d, ]*)\])?)",
        note="on by default to 0.10.0, --enable-log-requests after; prompt and token ids are inside up to 0.11.0",
        derive=_prompt_ids,
    ),
    LogTemplate("request_finished", "request_out", "equest ", r"Finished request (?P<id>\S{1,200}?)\.(?:\s|$)"),
    LogTemplate(
        "request_aborted",
        "request_out",
        "borted",
        r"Aborted request(?:\(s\))? (?P<id>[^\n]{1,400}?)\.(?:\s|$)",
        fields={"finish": "abort"},
    ),
    LogTemplate(
        "request_aborted_v1",
        "request_out",
        "borted",
        r"Request (?P<id>\S{1,200}) aborted\.",
        fields={"finish": "abort"},
    ),
    LogTemplate(
        "response_logged",
        "request_out",
        "Generated response ",
        r"\A[^\n]{0,400}?Generated response (?P<id>[^\s:(]{1,200}+)(?! ?\(streaming delta\))[^\n]*finish_reason: '?(?P<finish>stop|length|abort|"
        r"error|tool_calls|repetition)\b",
        since="0.10.1",
    ),
    LogTemplate(
        "request_failed",
        "request_failed",
        "failed",
        r"Request (?P<id>\S{1,200}) failed(?: \((?P<why>[^)]{1,80})\)| due to )",
        since="0.8.5",
    ),
    LogTemplate(
        "no_blocks_v0",
        "request_failed",
        "equest ",
        r"Failing the request (?P<id>\S{1,200}) because there's not enough kv cache blocks",
        fields={"why": "the pool cannot hold the sequence"},
        until="0.10",
    ),
    LogTemplate(
        "prompt_over_pool_v0",
        "request_failed",
        "prompt (",
        r"Input prompt \((?P<n_tokens>\d{1,12}) tokens\)[^\n]{0,60} is too long and exceeds the capacity of block_?\s?manager",
        fields={"why": "the pool cannot hold the prompt"},
        until="0.10",
    ),
    LogTemplate(
        "prompt_over_limit_v0",
        "context_limit",
        "prompt (",
        r"Input prompt \((?P<n_tokens>\d{1,12}) tokens\)[^\n]{0,60} is too long and exceeds limit of (?P<n_ctx>\d{1,12})",
        until="0.10",
    ),
    LogTemplate(
        "context_requested",
        "context_limit",
        "maximum context length is",
        r"maximum context length is (?P<n_ctx>\d{1,12}) tokens\. However, you requested (?P<n_tokens>\d{1,12}) tokens",
    ),
    LogTemplate(
        "context_total",
        "context_limit",
        "maximum context length is",
        r"maximum context length is (?P<n_ctx>\d{1,12}) tokens\. However, you requested \d{1,12} output tokens[^\n]{0,120}?"
        r"total of at least (?P<least_tokens>\d{1,12}) tokens",
        note="the count stops at the first token too many: how long the request is, it does not say",
    ),
    LogTemplate(
        "context_prompt",
        "context_limit",
        "prompt (",
        r"prompt \((?:total )?length (?P<n_tokens>\d{1,12})\) is longer than the maximum model length of (?P<n_ctx>\d{1,12})",
    ),
    LogTemplate(
        "refused_503",
        "request_rejected",
        '" 50',
        r'"POST /\S{1,200} HTTP/[\d.]{1,4}" 503\b',
        fields={"why": "HTTP 503"},
    ),
    LogTemplate(
        "failed_500",
        "request_failed",
        '" 50',
        r'"POST /\S{1,200} HTTP/[\d.]{1,4}" 500\b',
        fields={"why": "HTTP 500"},
    ),
    LogTemplate(
        "preempt_v0",
        "preempt",
        "PreemptionMode.",
        r"Sequence group (?P<id>\S{1,200}) is preempted by PreemptionMode\.(?P<mode>RECOMPUTE|SWAP)"
        r"(?=(?:[^\n]{0,600}?total_(?:num_cumulative_preemption|cumulative_preemption_cnt)=(?P<total>\d{1,12}))?)",
        until="0.10",
        note="V0 prints preemption 1, 51, 101 ...: the running count in the text is the number, lines are not; V1 prints none",
        derive=_mode,
    ),
)


def _error(id_: str, literal: str, pattern: str, *, start: bool = False) -> LogTemplate:
    return LogTemplate(id_, "error", literal, pattern, fields={"start": True} if start else {})


_FAILURES: tuple[LogTemplate, ...] = (
    LogTemplate(
        "crash_stats",
        "crash_stats",
        "SchedulerStats(",
        r"SchedulerStats\((?=(?:[^\n]{0,600}?num_running_reqs=(?P<running>\d{1,9}))?)"
        r"(?=(?:[^\n]{0,600}?num_waiting_reqs=(?P<waiting>\d{1,9}))?)"
        r"(?=[^\n]{0,600}?\b(?:kv|gpu)_cache_usage=(?P<kv_usage>\d[\d.]{0,30}(?:e-\d{1,3})?))",
        since="0.9",
        note="printed when the engine dies: the usage at that moment",
    ),
    _error("engine_dead", "a fatal error", r"(?P<text>EngineCore encountered a fatal error)"),
    _error("engine_no_start", "failed", r"(?P<text>(?:EngineCore|WorkerProc) failed to start)", start=True),
    _error("engine_init_failed", "failed", r"(?P<text>Engine core initialization failed)", start=True),
    _error("engine_dead_error", "DeadError", r"(?<!Async)(?P<text>EngineDeadError)"),
    _error("engine_exception", "hit an exception", r"(?P<text>(?:EngineCore|WorkerProc) hit an exception)"),
    *(
        LogTemplate(
            f"worker_frame_{site}",
            "error",
            "multiproc_worker_utils.py:",
            rf"multiproc_worker_utils\.py:\d{{1,5}}\] {{1,8}}[^\n]{{0,400}}(?:{words})",
            fields={"text": "frame below a worker's message", "site": site},
            until="0.10",
            note="V0 workers print the message first and its traceback below",
        )
        for site, words in (
            ("logprobs", "log_softmax|logprobs"),
            ("sampler", r"[Ss]ampler(?!_?[Oo]utput)"),
            ("lora", "[Ll]o[Rr][Aa](?![a-z])|punica"),
            ("multimodal", "[Vv]ision|visual|[Mm]ulti_?[Mm]odal|pixel_values"),
            ("graph_capture", "capture_model|graph_capture"),
        )
    ),
    _error("worker_proc_failed", "failed", r"(?P<text>WorkerProc failed)(?! to start)"),
    _error(
        "engine_dead_v0",
        "Background loop ",
        r"(?P<text>Background loop (?:is not running|has errored already|is stopped))",
    ),
    _error(
        "worker_failed",
        "failed",
        r"(?P<text>Worker failed with error '[^\n]{1,200}?)(?:', please check|\n|$)",
    ),
    *(
        LogTemplate(id_, "stall", "timed out", rf"(?P<text>{words} timed out)", fields={"ends": True})
        for id_, words in (("iteration_timeout", "Engine iteration"), ("rpc_timeout", r"RPC call to \w{1,80}"))
    ),
    _error(
        "no_free_blocks",
        " free blocks",
        r"(?P<text>Cannot get \d{1,12} free blocks from the pool|No free blocks available)",
    ),
    _error("no_swap_space", "borted", r"(?P<text>Aborted due to the lack of CPU swap space)"),
    LogTemplate(
        "worker_died",
        "exit",
        "died",
        r"(?:Worker proc|Engine core proc(?:ess)?) (?P<process>\S{1,80}) died unexpectedly"
        r"(?: \(exit code: (?:(?P<code>-?\d{1,5})|None)\))?",
        note="printed after every failed start too; code None says nothing, -9 is the host's OOM killer",
    ),
    LogTemplate(
        "worker_died_v0",
        "exit",
        "died",
        r"Worker (?P<process>\S{1,80}) pid \d{1,10} died, exit code: (?P<code>-?\d{1,5})",
        until="0.10",
    ),
    LogTemplate(
        "ray_actor_died",
        "exit",
        "died",
        r"The actor is dead because its worker process has died",
        fields={"process": "ray actor"},
        note="the causes Ray lists behind it are guesses, not findings",
    ),
    LogTemplate(
        "no_broadcast_block",
        "stall",
        "block found in ",
        r"(?P<text>No available (?:shared memory broadcast )?block found in \d{1,6} seconds?)",
        note="normal while graphs compile; while serving it means that a worker does not answer",
    ),
    LogTemplate(
        "kv_load_failure",
        "transfer",
        "KV load failure",
        r"(?:Recovered from KV load failure: |Failing )(?P<failed>\d{1,9}) request\(s\)",
        since="0.11",
    ),
    LogTemplate(
        "kv_expired",
        "transfer",
        "expired KV blocks",
        r"Releasing expired KV blocks for request ",
        fields={"expired": 1.0},
        since="0.10",
    ),
    LogTemplate(
        "prefix_reset",
        "phase",
        "refix cache",
        r"Successfully reset prefix cache|Failed to reset prefix cache",
        fields={"what": "prefix_reset", "begin": False},
        note="explains a burst of forced preemptions and a fall of the hit rate",
    ),
    LogTemplate(
        "sleep_freed",
        "phase",
        "emory",
        r"Sleep mode freed -?[\d.]{1,20} GiB memory",
        fields={"what": "sleep", "begin": True},
    ),
    LogTemplate(
        "sleep_cumem",
        "phase",
        "emory",
        r"CuMemAllocator: sleep freed [\d.]{1,20} GiB",
        fields={"what": "sleep", "begin": True},
    ),
    LogTemplate(
        "fall_asleep",
        "phase",
        "took ",
        r"It took [\d.]{1,20} seconds to fall asleep",
        fields={"what": "sleep", "begin": True},
    ),
    LogTemplate(
        "wake_up",
        "phase",
        "took ",
        r"It took [\d.]{1,20} seconds to wake up",
        fields={"what": "sleep", "begin": False},
    ),
    LogTemplate(
        "shutdown",
        "phase",
        " complete",
        r"Application shutdown complete",
        fields={"what": "shutdown", "begin": False},
    ),
)


TEMPLATES: tuple[LogTemplate, ...] = (*_START, *_START_ERRORS, *_STATS, *_REQUESTS, *_FAILURES)
