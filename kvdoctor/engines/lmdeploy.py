"""LMDeploy: both backends, TurboMind (C++, lines that begin with ``[TM]``) and PyTorch.

Both preempt by dropping the KV of the newest request and computing it again; neither says so in a metric or, at the
default level, in the log. ``block_size`` in a TurboMind start line is bytes, not tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.engines import _argtext
from kvdoctor.engines._host_levers import HOST_LEVERS
from kvdoctor.engines._promql_lmdeploy import PROMQL
from kvdoctor.engines.base import Args, Command, Endpoint, Engine, Gap, Kind, Lever, Series, SeriesName
from kvdoctor.parse.serverlog import LogTemplate


def _name(bare: str, kind: Kind, by: str = "") -> SeriesName:
    return SeriesName(f"lmdeploy:{bare}", kind, by=by)


_SERIES: tuple[Series, ...] = (
    Series("req.running", (_name("num_requests_running", "gauge"),)),
    Series(
        "req.waiting",
        (
            _name("num_requests_waiting", "gauge"),
            SeriesName(
                "lmdeploy:num_api_requests_waiting",
                "gauge",
                ignore="requests the API process has not handed to the engine yet; the engine's own queue decides",
            ),
        ),
        "the engine's queue; preempted requests are in it",
    ),
    Series(
        "req.finished",
        (_name("request_success_total", "counter", "finished_reason"), _name("num_requests_succeeded", "counter")),
        "the second is declared a gauge on the wire but only grows",
    ),
    Series("req.failed", (_name("num_requests_failed", "counter"),), "declared a gauge on the wire but only grows"),
    Series(
        "kv.usage",
        (_name("gpu_cache_usage_perc", "gauge"),),
        "a ratio 0..1 despite its name; blocks kept for reuse count as used when prefix caching is on",
    ),
    Series("kv.info", (_name("backend_config", "info"), _name("backend_config_info", "info"))),
    Series("prefix.hit_rate", (_name("prefix_cache_hit_rate", "gauge"),)),
    Series("tok.cached", (_name("cached_tokens_total", "counter"),)),
    Series("tok.prompt", (_name("prompt_tokens_total", "counter"),)),
    Series("tok.generated", (_name("generation_tokens_total", "counter"),)),
    Series("latency.ttft", (_name("time_to_first_token_seconds", "histogram"),)),
    Series(
        "latency.itl",
        (_name("iter_token_latency", "histogram"), _name("time_per_output_token_seconds", "histogram")),
        "the second is a mean per request (TPOT)",
    ),
    Series("latency.e2e", (_name("e2e_request_latency_seconds", "histogram"),)),
    Series("latency.queue", (_name("request_queue_time_seconds", "histogram"),)),
    Series("latency.prefill", (_name("request_prefill_time_seconds", "histogram"),)),
    Series("latency.decode", (_name("request_decode_time_seconds", "histogram"),)),
    Series("work.prompt", (_name("request_prompt_tokens", "histogram"),)),
    Series("work.output", (_name("request_generation_tokens", "histogram"),)),
    Series("iter.tokens", (_name("iteration_tokens_total", "histogram"),), "a histogram although it is named total"),
)


def _number(fields: Mapping[str, object], name: str) -> float | None:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _session_ratio(fields: dict[str, object]) -> dict[str, object]:
    """Less than one longest request fits, which is why the length was cut."""
    length, fits = _number(fields, "length"), _number(fields, "fits")
    if length is None or fits is None or length <= 0:
        return fields
    return {**fields, "ratio": fits / length}


def _prefill_text(fields: dict[str, object]) -> dict[str, object]:
    value = _number(fields, "value")
    return fields if value is None else {**fields, "text": f"max_prefill_token_num={value:.0f}"}


def _whole_length(fields: dict[str, object]) -> dict[str, object]:
    prompt, output = _number(fields, "prompt"), _number(fields, "output")
    return fields if prompt is None or output is None else {**fields, "n_tokens": prompt + output}


_TEMPLATES: tuple[LogTemplate, ...] = (
    LogTemplate(
        "lmd.banner",
        "banner",
        "input backend=",
        r"input backend=(?P<part>\w+), backend_config=(?:\w+EngineConfig\((?:.{0,2000}?\bmodel_name='(?P<model>[^']+)')?)?",
    ),
    LogTemplate("lmd.args", "args", "backend_config=", r"backend_config=(?P<text>\w+EngineConfig\(.*)"),
    LogTemplate(
        "lmd.tm.block_count",
        "pool",
        "max_block_count = ",
        r"\[(?:SequenceManager|BlockManager)\] max_block_count = (?P<blocks>\d+)",
    ),
    LogTemplate(
        "lmd.tm.block_mb",
        "pool",
        "block_size = ",
        r"\[(?:SequenceManager|BlockManager)\] block_size = (?P<block_bytes__mib>[\d.]+) MB",
        note="printed as MB, shifted by 20: MiB",
    ),
    LogTemplate(
        "lmd.tm.block_bytes",
        "pool",
        "block_size = ",
        r"\[(?:SequenceManager|BlockManager)\] block_size = (?P<block_bytes>\d+)(?![\d.]| [KMG]i?B)",
    ),
    LogTemplate(
        "lmd.tm.session_cut",
        "concurrency",
        "No enough blocks for `session_len`",
        r"No enough blocks for `session_len` \((?P<length>\d+)\), `session_len` truncated to (?P<fits>\d+)",
        fields={"cut": True},
        derive=_session_ratio,
        note="the pool cannot hold one longest request; the engine cuts the length and starts all the same",
    ),
    LogTemplate(
        "lmd.pt.no_memory",
        "start_error",
        "No enough gpu memory for",
        r"(?P<text>No enough gpu memory for (?:kv cache|runtime|state cache))",
        fields={"error": "pool_too_small"},
        note="PyTorch back end: what the weights leave is less than a step and one block need",
    ),
    LogTemplate(
        "lmd.tm.no_blocks",
        "admission_blocked",
        "No enough blocks",
        r"No enough blocks(?! for `session_len`)",
        note="nobody can be scheduled with the blocks there are",
    ),
    LogTemplate(
        "lmd.tm.context_begin",
        "phase",
        "context decoding start",
        r"context decoding start",
        fields={"what": "prefill", "begin": True},
    ),
    LogTemplate(
        "lmd.tm.context_end",
        "phase",
        "context decoding end",
        r"context decoding end",
        fields={"what": "prefill", "begin": False},
    ),
    LogTemplate(
        "lmd.tm.context_batch",
        "iteration",
        "[decodeContext] offset",
        r"\[decodeContext\] offset = \d+, batch_size = (?P<context_requests>\d+), token_num = (?P<context_tokens>\d+)",
    ),
    LogTemplate(
        "lmd.tm.oom",
        "request_failed",
        "failing head-of-line request",
        r"ID (?P<id>\d+): (?P<why>cache out of memory, no request can be admitted)",
        note="the KV cache, not the device: one request does not fit even when all others are evicted",
    ),
    LogTemplate(
        "lmd.tm.pass",
        "admission_blocked",
        "out of memory at ",
        r"\bout of memory at (?P<admitted>\d+)/(?P<planned>\d+)",
        note="the KV cache, not the device: the rest of the queue waits this step",
    ),
    LogTemplate(
        "lmd.tm.stats",
        "stats",
        "[cache] region=",
        r"\[cache\] region=\S+.{0,120}?\| pages \d+/\d+ used \((?P<kv_usage__pct>[\d.]+)%\)",
        note="cached prefixes count as used; the fragmentation of the region follows on the next lines",
    ),
    LogTemplate(
        "lmd.tm.trunc",
        "context_limit",
        "exceeds `session_len`",
        r"ID (?P<id>\d+): total sequence length \((?P<prompt>\d+) \+ (?P<output>\d+)\) exceeds `session_len` "
        r"\((?P<n_ctx>\d+)\)",
        derive=_whole_length,
    ),
    LogTemplate(
        "lmd.stat",
        "stats",
        "Avg thr (in/out):",
        r"(?:DP(?P<engine>\d+)\] )?Avg thr \(in/out\): (?P<prompt_rate>[\d.]+) / (?P<gen_rate>[\d.]+) tokens/s, "
        r"Server \(succeeded/failed/routed/waiting\): \d+ / \d+ / \d+ / \d+, "
        r"Engine \(running/waiting\): (?P<running>\d+) / (?P<waiting>\d+), KV cache: (?P<kv_usage__pct>[\d.]+)%"
        r"(?:, Prefix cache hit rate: (?P<prefix_hit__pct>[\d.]+)%)?",
    ),
    LogTemplate(
        "lmd.full",
        "admission_blocked",
        "Maybe cache is full",
        r"no next prefill running request, Maybe cache is full, free gpu cache blocks: (?P<free_blocks>\d+), "
        r"total gpu cache blocks: (?P<total_blocks>\d+)",
    ),
    LogTemplate(
        "lmd.prefill_shrunk",
        "args",
        "Update max_prefill_token_num=",
        r"No enough memory\. Update max_prefill_token_num=(?P<value>\d+)",
        derive=_prefill_text,
    ),
    LogTemplate(
        "lmd.cacheconfig",
        "pool",
        "num_gpu_blocks=",
        r"CacheConfig\((?=.{0,400}?\bblock_size=(?P<block_tokens>\d+))(?=.{0,400}?\bnum_cpu_blocks=(?P<cpu_blocks>\d+))"
        r"(?=.{0,400}?\bnum_gpu_blocks=(?P<blocks>[1-9]\d*))",
        note="0 blocks stand for automatic and are not taken",
    ),
    LogTemplate("lmd.ready", "ready", "Application startup complete", r"Application startup complete"),
)


_LEVERS: tuple[Lever, ...] = (
    Lever(
        "sched.max_running",
        "--max-batch-size",
        default="by device",
        setting="max_running",
        effect="Caps the requests computed together, so fewer sequences grow at the same time.",
        cost="A longer queue.",
        next_limit="queue time",
        verify="lmdeploy:num_requests_running stays at the cap while usage stays below 1",
    ),
    Lever(
        "sched.batch_tokens",
        "--max-prefill-token-num",
        default="8192",
        setting="batch_tokens",
        effect="Bounds the tokens of a prefill step, which is the activation peak.",
        cost="Long prompts take more steps.",
        next_limit="time to first token",
        verify="no device OOM between 'context decoding start' and its end",
    ),
    Lever("sched.max_queue", None, instead="The queue has no bound; limit concurrent requests in the gateway."),
    Lever("sched.policy", None, instead="First come, first served by request id; order requests in the gateway."),
    Lever(
        "admission.free_share",
        None,
        instead="There is no watermark; lower --max-batch-size until usage stays below 0.95.",
    ),
    Lever("admission.full_prompt", None, instead="There is no such switch; lower --max-batch-size."),
    Lever("admission.reserve_output", None, instead="Output is not reserved; limit max_tokens in the clients."),
    Lever(
        "victim.order", None, instead="The newest request always gives way; lower --max-batch-size to have no victims."
    ),
    Lever("victim.protect", None, instead="Nobody can be protected; lower --max-batch-size to have no victims."),
    Lever("victim.cooldown", None, instead="There is none; lower --max-batch-size to have no victims."),
    Lever(
        "kv.pool_share",
        "--cache-max-entry-count",
        since="0.2.1",
        of_free=True,
        default="0.8",
        setting="fraction",
        effect="Share of the memory left free after the weights that becomes KV pool.",
        cost="Less is left for activations, so a too large value ends in a device OOM with a half-empty pool.",
        next_limit="device memory for activations",
        verify="max_block_count or num_gpu_blocks in the start lines",
    ),
    Lever(
        "kv.pool_share",
        "--cache-max-entry-count",
        until="0.2.0",
        default="0.5",
        setting="fraction",
        effect="Share of the whole device, weights not taken off, that becomes KV pool.",
        cost="Together with the weights it may exceed the device.",
        next_limit="device memory",
        verify="max_block_count in the start lines",
    ),
    Lever(
        "kv.pool_bytes",
        "num_gpu_blocks (PytorchEngineConfig)",
        default="0 (automatic)",
        setting="pool_blocks",
        effect="Sets the pool in blocks; PyTorch backend. TurboMind takes an absolute count as --cache-max-entry-count > 1.",
        cost="A value above what fits ends in a device OOM.",
        next_limit="device memory",
        verify="num_gpu_blocks in 'Building CacheEngine with config'",
    ),
    Lever(
        "kv.dtype",
        "--quant-policy",
        default="0",
        setting="kv_dtype",
        effect="8 halves and 4 quarters the bytes per token.",
        cost="Quality has to be checked for the model.",
        next_limit="compute",
        verify="the block count in the start lines",
    ),
    Lever(
        "kv.block_tokens",
        "--cache-block-seq-len",
        default="64",
        setting="block_tokens",
        effect="Smaller blocks waste less at the end of a sequence and match prefixes more finely.",
        cost="More bookkeeping.",
        next_limit="step time",
        verify="the block count in the start lines",
    ),
    Lever(
        "kv.offload_bytes",
        None,
        instead="num_cpu_blocks is deprecated and there is no other tier; add memory or replicas.",
    ),
    Lever(
        "prefix.enable",
        "--enable-prefix-caching",
        default="off",
        setting="prefix",
        effect="Common beginnings are found again, also by a preempted request that comes back.",
        cost="Kept prefixes count as used.",
        next_limit="prompt order of the clients",
        verify="lmdeploy:prefix_cache_hit_rate",
    ),
    Lever(
        "mem.max_model_len",
        "--session-len",
        default="model",
        setting="max_model_len",
        effect="Shortens the longest request, so one request books fewer blocks.",
        cost="Longer requests are cut.",
        next_limit="requests that are cut",
        verify="no 'session_len truncated' and no 'exceeds session_len' lines",
    ),
    Lever(
        "mem.graphs",
        "--eager-mode",
        default="off",
        setting="eager",
        effect="PyTorch backend: no graph capture, which leaves memory. TurboMind captures none.",
        cost="Slower decode steps.",
        next_limit="inter-token latency",
        verify="device memory after start",
    ),
    Lever(
        "mem.prefill_chunk",
        "--max-prefill-token-num",
        default="8192",
        setting="chunk",
        effect="Prompts longer than this are computed in pieces; old TurboMind names it max_context_token_num.",
        cost="Time to first token of long prompts.",
        next_limit="time to first token",
        verify="token_num in '[decodeContext]' lines stays below it",
    ),
    Lever(
        "mem.lora_slots",
        "--adapters",
        default="none",
        setting="lora",
        effect="PyTorch backend: every adapter named stays in memory; name only those in use.",
        cost="Requests for others are refused.",
        next_limit="adapters in use",
        verify="device memory after start",
    ),
    Lever(
        "mem.multimodal_limit",
        "--vision-max-batch-size",
        default="1",
        setting="multimodal_limit",
        effect="Images encoded together; images per request must be limited in the gateway.",
        cost="Requests with many images take longer.",
        next_limit="time to first token",
        verify="device memory while images are encoded",
    ),
    Lever(
        "mem.logprobs_cap",
        None,
        instead="There is no cap; limit logprobs in the gateway and keep --logprobs-mode unset.",
    ),
    Lever(
        "mem.allocator_conf",
        "PYTORCH_CUDA_ALLOC_CONF",
        effect="PyTorch backend: expandable_segments:True lets torch use memory it has reserved in pieces. TurboMind does not "
        "use torch's allocator.",
        cost="A small cost when segments are mapped.",
        next_limit="device memory",
        verify="reserved but unallocated memory in the next OOM line",
    ),
    Lever(
        "mem.process_cap",
        None,
        instead="--cache-max-entry-count bounds the pool; nothing bounds the process, so separate processes by device.",
    ),
    Lever(
        "topo.tp",
        "--tp",
        default="1",
        setting="tp",
        effect="Spreads weights and KV over more devices.",
        cost="Communication in every layer.",
        next_limit="communication between devices",
        verify="output tokens per second per device",
    ),
    Lever(
        "topo.dp",
        "--dp",
        default="1",
        setting="dp",
        effect="Replicas behind one server, each with its own pool.",
        cost="Ranks can be loaded unequally.",
        next_limit="the fullest rank",
        verify="lmdeploy:gpu_cache_usage_perc by engine label, not the mean",
    ),
    Lever(
        "topo.routing",
        "--routing-strategy (lmdeploy serve proxy)",
        default="min_expected_latency",
        effect="Which replica the proxy sends a request to.",
        cost="None of the built-in strategies looks at prefixes.",
        next_limit="the fullest replica",
        verify="requests waiting per replica",
    ),
    Lever(
        "client.max_tokens",
        "max_tokens (request)",
        effect="Shorter outputs hold fewer blocks; without it a request may run to session_len.",
        cost="Outputs longer than the limit are cut.",
        next_limit="outputs that end by length",
        verify='lmdeploy:request_success_total{finished_reason="length"}',
    ),
    *HOST_LEVERS,
    Lever(
        "engine.version",
        "pip install lmdeploy==VERSION",
        effect="Takes fixes of the scheduler and of the block manager.",
        cost="The meaning of --cache-max-entry-count changed with 0.2.1.",
        next_limit="flags that changed",
        verify="lmdeploy check_env",
    ),
    Lever(
        "observe.metrics",
        "--disable-metrics must not be set",
        default="metrics are on",
        effect="Serves /metrics on the API port.",
        cost="A little work per step.",
        next_limit="there is no preemption series",
        verify="curl -s URL/metrics shows lmdeploy:gpu_cache_usage_perc",
    ),
    Lever(
        "observe.request_log",
        "--log-level INFO",
        default="WARNING",
        effect="Prints requests as they come and go, and the start lines of the pool.",
        cost="A larger log.",
        next_limit="log volume",
        verify="lines with session ids",
    ),
    Lever(
        "observe.victims",
        None,
        instead="Victims are not named; watch lmdeploy:num_requests_running fall while num_requests_waiting grows at full usage.",
    ),
)


_GAPS: tuple[Gap, ...] = (
    Gap(
        "preempt",
        "neither backend counts or prints preemptions",
        "running requests that fall while the queue grows at full usage are the only trace",
    ),
    Gap(
        "recompute", "recomputed tokens are not counted", "compare prompt_tokens_total with iteration_tokens_total_sum"
    ),
    Gap("kv.pool_tokens", "the pool size is only in the log", "start with --log-level INFO and keep the start lines"),
    Gap("kv.pool_bytes", "the pool size is only in the log", "start with --log-level INFO and keep the start lines"),
    Gap("kv.block_tokens", "the block length is only in the arguments", "look at --cache-block-seq-len (64)"),
    Gap("kv.evictable_share", "kept prefixes count as used and are not told apart", "none so far"),
    Gap("kv", "metrics are switched off", "start without --disable-metrics"),
    Gap("latency.stalls", "the histogram of gaps needs an edge at 1 s", "measure gaps in the client"),
    Gap("latency", "metrics are switched off", "start without --disable-metrics"),
    Gap("prefix", "prefix caching is off by default", "start with --enable-prefix-caching"),
    Gap("work.max_tokens", "requested limits are not exposed", "use the request log"),
    Gap("req.rejected", "the server does not count refusals", "count HTTP errors in the gateway"),
    Gap("mem", "the parts of device memory are not printed", "compare nvidia-smi before and after start"),
)


_COMMANDS: tuple[Command, ...] = (
    Command("metrics.kv", "curl -s {url}/metrics | grep '^lmdeploy:gpu_cache_usage_perc'"),
    Command("metrics.preemptions", "curl -s {url}/metrics | grep -E '^lmdeploy:num_requests_(running|waiting)'"),
    Command("metrics.queue", "curl -s {url}/metrics | grep -E '^lmdeploy:num_(api_)?requests_waiting'"),
    Command(
        "metrics.latency",
        "curl -s {url}/metrics | grep -E '^lmdeploy:(time_to_first_token_seconds|iter_token_latency)_(sum|count)'",
    ),
    Command(
        "metrics.prefix", "curl -s {url}/metrics | grep -E '^lmdeploy:(prefix_cache_hit_rate|cached_tokens_total)'"
    ),
    Command("log.oom", "grep -nE 'CUDA runtime error|out of memory|No enough' {log}"),
    Command("log.start", "grep -nE 'backend_config=|max_block_count|block_size|CacheConfig' {log}"),
    Command("log.stats", "grep -nE 'Avg thr|Maybe cache is full|decodeContext' {log} | tail -20"),
    Command("observe.metrics", "curl -s {url}/metrics | grep -c '^lmdeploy:'"),
    Command("observe.request_log", "grep -c 'session' {log}"),
    Command("observe.victims", "curl -s {url}/metrics | grep -E '^lmdeploy:(num_requests_|gpu_cache)'"),
)


def _parse_args(text: str) -> Args:
    return {**_argtext.nested(text), **_argtext.flags(text)}


def _defaults(version: str | None) -> Mapping[str, str]:
    return {"fraction": "0.8", "block_tokens": "64", "batch_tokens": "8192", "prefix": "False", "tp": "1"}


ENGINE = Engine(
    name="lmdeploy",
    title="LMDeploy",
    metric_prefixes=("lmdeploy:",),
    log_markers=(
        "[TM][",
        "lmdeploy - ",
        "TurbomindEngineConfig",
        "PytorchEngineConfig",
        "lmdeploy/pytorch/",
        "Avg thr (in/out):",
    ),
    process_markers=("lmdeploy serve", "lmdeploy.serve", "lmdeploy"),
    default_port=23333,
    endpoints=(Endpoint("/metrics", "exposition"), Endpoint("/v1/models", "models", once=True)),
    series=_SERIES,
    templates=_TEMPLATES,
    levers=_LEVERS,
    gaps=_GAPS,
    commands=_COMMANDS,
    rank_labels=("engine",),
    usage_counts_reusable=True,
    preempt_kind=lambda version, args: "recompute",
    never_preempts=lambda version, args: False,
    reserves_output=lambda version, args: False,
    parse_args=_parse_args,
    canonical_args={
        "max_running": ("max_batch_size",),
        "batch_tokens": ("max_prefill_token_num", "max_context_token_num"),
        "max_model_len": ("session_len",),
        "block_tokens": ("cache_block_seq_len", "block_size"),
        "pool_blocks": ("num_gpu_blocks",),
        "fraction": ("cache_max_entry_count",),
        "tp": ("tp",),
        "dp": ("dp",),
        "prefix": ("enable_prefix_caching",),
        "kv_dtype": ("quant_policy",),
        "weight_dtype": ("model_format", "dtype"),
        "eager": ("eager_mode",),
        "model": ("model_path", "model_name"),
        "port": ("server_port",),
        "lora": ("adapters",),
        "multimodal_limit": ("vision_max_batch_size",),
        "offload": ("num_cpu_blocks",),
    },
    defaults=_defaults,
    promql=PROMQL,
)
