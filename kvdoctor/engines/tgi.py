"""Text Generation Inference and its fork lorax.

Nobody is ever preempted: a request is admitted when blocks for its prompt and all of max_new_tokens are free, and then
it runs to its end. Pressure is a queue; the pool gauge shows reservations, not tokens in use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvdoctor.engines import _argtext
from kvdoctor.engines._host_levers import HOST_LEVERS
from kvdoctor.engines._promql_tgi import PROMQL
from kvdoctor.engines.base import Args, Command, Endpoint, Engine, Gap, Kind, Lever, Series, SeriesName
from kvdoctor.parse.serverlog import LogTemplate

_NO_LABELS: Mapping[str, str] = {}


def _names(bare: str, kind: Kind, where: Mapping[str, str] = _NO_LABELS) -> tuple[SeriesName, ...]:
    """The same series as TGI and as lorax name it; counters carry no ``_total`` in either."""
    return tuple(SeriesName(f"{prefix}_{bare}", kind, where=where) for prefix in ("tgi", "lorax"))


_SERIES: tuple[Series, ...] = (
    Series("req.running", _names("batch_current_size", "gauge")),
    Series("req.waiting", _names("queue_size", "gauge"), "the only direct sign of pressure"),
    Series("req.arrived", _names("request_count", "counter")),
    Series("req.finished", _names("request_success", "counter")),
    Series(
        "req.failed",
        _names("request_failure", "counter", {"err": "generation"}),
        "an error of the shard, such as a device OOM; a label value appears with its first failure",
    ),
    Series(
        "req.rejected",
        _names("request_failure", "counter", {"err": "overloaded"}),
        "HTTP 429 by --max-concurrent-requests",
    ),
    Series("req.aborted", _names("request_failure", "counter", {"err": "dropped"}), "the client went away"),
    Series(
        "kv.used_tokens",
        _names("batch_current_max_tokens", "gauge"),
        "reserved, not used: prompt and max_new_tokens of every running request, in whole blocks",
    ),
    Series(
        "kv.pool_tokens",
        (
            SeriesName("tgi_batch_max_total_tokens", "gauge"),
            SeriesName("tgi_batch_total_tokens", "gauge", ignore="only its HELP line exists; no sample is ever set"),
        ),
        "set once after the warm-up; it has no HELP and no TYPE line",
    ),
    Series(
        "tok.prompt",
        tuple(SeriesName(f"{p}_request_input_length_sum", "counter") for p in ("tgi", "lorax")),
        "sum of the histogram of prompt lengths, counted at arrival",
    ),
    Series(
        "tok.generated",
        tuple(SeriesName(f"{p}_request_generated_tokens_sum", "counter") for p in ("tgi", "lorax")),
        "sum of the histogram of output lengths, counted when a request ends",
    ),
    Series("latency.e2e", _names("request_duration", "histogram")),
    Series("latency.queue", _names("request_queue_duration", "histogram")),
    Series(
        "latency.prefill",
        _names("batch_inference_duration", "histogram", {"method": "prefill"}),
        "one observation per prefill batch, so its sum is the prefill busy time",
    ),
    Series(
        "latency.itl",
        (
            SeriesName(
                "tgi_request_mean_time_per_token_duration",
                "histogram",
                ignore="inference time / generated tokens: the prefill is in it and gaps are averaged away",
            ),
        ),
    ),
    Series("work.prompt", _names("request_input_length", "histogram")),
    Series("work.output", _names("request_generated_tokens", "histogram")),
    Series("work.max_tokens", _names("request_max_new_tokens", "histogram")),
)


_SECONDS: Mapping[str, float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = r"(?P<{0}>[\d.]+)(?P<{0}_unit>ns|[^\d\"]{{0,2}}s)"
_SIGNALS: Mapping[int, str] = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_SITES: Mapping[str, str] = {"Prefill": "prefill", "Decode": "decode", "Warmup": "prefill"}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seconds(fields: Mapping[str, object], name: str) -> float | None:
    """A Rust duration such as ``3.62s``, ``438.9ms`` or ``94.9`` micro-seconds (the sign may be mis-encoded)."""
    amount, unit = _number(fields.get(name)), fields.get(f"{name}_unit")
    if amount is None or not isinstance(unit, str):
        return None
    return amount * _SECONDS.get(unit, 1e-6)


def _request_out(fields: dict[str, object]) -> dict[str, object]:
    """Output tokens = inference time / time per token: that quotient is how the server made the second figure."""
    out: dict[str, object] = {}
    limit = _number(fields.get("max_tokens"))
    if limit is not None:
        out["max_tokens"] = limit
    queue, total = _seconds(fields, "queue"), _seconds(fields, "total")
    inference, per_token = _seconds(fields, "inference"), _seconds(fields, "per_token")
    if queue is not None:
        out["queue_ms"] = queue * 1000.0
    if total is not None:
        out["total_ms"] = total * 1000.0
    if inference is not None and per_token is not None and per_token > 0.0:
        out["output_tokens"] = float(round(inference / per_token))
    return out


def _pair(fields: dict[str, object]) -> dict[str, object]:
    """``key`` and ``value`` of a line that names one setting, as the text `parse_args` reads."""
    value = fields.get("value")
    shown = f"{value:.0f}" if isinstance(value, float) else str(value)
    return {**fields, "text": f"{fields.get('key')}: {shown}"}


def _attention(fields: dict[str, object]) -> dict[str, object]:
    return {
        **fields,
        "text": f"attention: {fields.get('attention')}, prefix_caching: {str(fields.get('prefix')).lower()}",
    }


def _signal(fields: dict[str, object]) -> dict[str, object]:
    number = _number(fields.get("number"))
    return fields if number is None else {**fields, "signal": _SIGNALS.get(int(number), f"signal {number:.0f}")}


def _asked_total(fields: dict[str, object]) -> dict[str, object]:
    """Prompt and requested output together: that is what the limit is about."""
    prompt, new = fields.pop("n_prompt", None), fields.pop("n_new", None)
    return {**fields, "n_tokens": prompt + new} if isinstance(prompt, float) and isinstance(new, float) else fields


def _method_site(fields: dict[str, object]) -> dict[str, object]:
    """Where it died; the warm-up runs one prefill of the full budget."""
    site = _SITES.get(str(fields.get("method")))
    # nobody is served while a warm-up runs
    warming = {"start": True} if fields.get("method") == "Warmup" else {}
    return {**fields, **warming, "site": site} if site else fields


_TEMPLATES: tuple[LogTemplate, ...] = (
    LogTemplate(
        "tgi.banner",
        "banner",
        "launcher: Args {",
        r"(?:text_generation|lorax)_launcher: Args \{(?:\s*model_id: \"(?P<model>[^\"]*)\")?",
    ),
    LogTemplate(
        "tgi.args",
        "args",
        "launcher: Args {",
        r"(?:text_generation|lorax)_launcher: Args \{\s*(?P<text>model_id: \".*)",
        note="one line up to 2.0; later the settings follow on lines of their own",
    ),
    LogTemplate("tgi.args.model", "args", 'model_id: "', r"(?P<text>model_id: \"[^\"]*\"),?\s*$"),
    LogTemplate(
        "tgi.args.number",
        "args",
        "max_concurrent_requests: ",
        r"(?P<text>max_concurrent_requests: \d+),?\s*$",
    ),
    LogTemplate(
        "tgi.args.fraction",
        "args",
        "cuda_memory_fraction: ",
        r"(?P<text>cuda_memory_fraction: [\d.]+),?\s*$",
    ),
    LogTemplate(
        "tgi.args.default",
        "args",
        "Default `max_",
        r"Default `(?P<key>max_\w+)` to (?P<value>\d+)",
        derive=_pair,
    ),
    LogTemplate(
        "tgi.prefill_reduced",
        "args",
        "Reducing the max batch prefill from",
        r"Reducing the max batch prefill from \d+ to (?P<value>\d+) because there is not enough VRAM",
        fields={"key": "max_batch_prefill_tokens"},
        derive=_pair,
    ),
    LogTemplate(
        "tgi.prefix",
        "args",
        "Prefix caching ",
        r"Using attention (?P<attention>[\w-]+) - Prefix caching (?P<prefix>\w+)",
        derive=_attention,
    ),
    LogTemplate("tgi.warmup", "warmup", "Warming up model", r"Warming up model", fields={"sampler": False}),
    LogTemplate(
        "tgi.start.tokens",
        "pool",
        "Setting max batch total tokens to",
        r"Setting max batch total tokens to (?P<tokens>\d+)",
    ),
    LogTemplate(
        "tgi.start.blocks",
        "pool",
        "KV-cache blocks:",
        r"KV-cache blocks: (?P<blocks>\d+), size: (?P<block_tokens>\d+)",
    ),
    LogTemplate(
        "tgi.start.free",
        "memory",
        "GB , (real:",
        r"Free memory (?P<budget__gb>[\d.]+)GB , \(real: (?P<free__gb>[\d.]+)GB",
        note="bytes / 1e9, so these are real GB; the first figure is after the wiggle room",
    ),
    LogTemplate(
        "tgi.ready",
        "ready",
        ": Connected",
        r"(?:text_generation|lorax)_router\S*: \S+:\d+: Connected\s*$",
    ),
    LogTemplate(
        "tgi.oom.warmup",
        "oom",
        "Not enough memory to handle ",
        r"Not enough memory to handle (?P<batch_tokens>\d+) (?:total tokens with \d+ )?prefill tokens",
        fields={"site": "prefill", "wording": "tgi-warmup"},
        note="the activation peak of one full prefill batch, not the KV pool",
    ),
    LogTemplate(
        "tgi.oom.total",
        "start_error",
        "Not enough memory to handle `max_total_tokens=",
        r"Not enough memory to handle `max_total_tokens=(?P<tokens_need>\d+)`",
        fields={"error": "pool_too_small"},
    ),
    LogTemplate(
        "tgi.start.over_budget",
        "start_error",
        "`max_total_tokens` must be <= `max_batch_total_tokens`",
        r"`max_total_tokens` must be <= `max_batch_total_tokens`\. Given: (?P<tokens_need>\d+) and (?P<tokens_have>\d+)",
        fields={"error": "pool_too_small"},
    ),
    LogTemplate(
        "tgi.context.total",
        "context_limit",
        "`inputs` tokens + `max_new_tokens` must be <= ",
        r"`inputs` tokens \+ `max_new_tokens` must be <= (?P<n_ctx>\d+)\. Given: (?P<n_prompt>\d+) `inputs` tokens and "
        r"(?P<n_new>\d+) `max_new_tokens`",
        derive=_asked_total,
    ),
    LogTemplate(
        "tgi.context.input",
        "context_limit",
        "`inputs` must have less than ",
        r"`inputs` must have less than (?P<n_ctx>\d+) tokens\. Given: (?P<n_tokens>\d+)",
    ),
    LogTemplate(
        "tgi.start.refused",
        "start_error",
        "must be >= `max_input_",
        r"(?P<text>`max_batch_prefill_tokens` must be >= `max_input_(?:tokens|length)`\. Given: \d+ and \d+)",
        fields={"error": "config_refused"},
    ),
    LogTemplate(
        "tgi.method_error",
        "error",
        "encountered an error",
        r"(?P<text>Method (?P<method>Prefill|Decode|Warmup) encountered an error)",
        derive=_method_site,
        note="the shard raised; a RuntimeError, a device OOM among them, also ends the shard",
    ),
    LogTemplate(
        "tgi.batch_error",
        "error",
        "Server error:",
        r"batch\{batch_size=(?P<batch_size>\d+)\}:(?P<site>prefill|decode).{0,400}?(?P<text>Server error: [^:.\n]{1,60})",
    ),
    LogTemplate(
        "tgi.request_failed",
        "request_failed",
        "Request failed during generation:",
        r"Request failed during generation: (?P<why>[^\n]{1,80})",
    ),
    LogTemplate("tgi.shard_crash", "exit", " crashed", r"(?P<process>Shard \d+) crashed"),
    LogTemplate("tgi.shard_start", "exit", "failed to start", r"(?P<process>Shard \d+) failed to start"),
    LogTemplate(
        "tgi.shard_signal",
        "exit",
        "was signaled to shutdown with signal",
        r"Shard process was signaled to shutdown with signal (?P<number>\d+)",
        fields={"process": "Shard"},
        derive=_signal,
    ),
    LogTemplate(
        "tgi.over_budget",
        "admission_blocked",
        "Over budget: not enough free blocks",
        r"Over budget: not enough free blocks",
        note="DEBUG level: the head of the queue waits for blocks",
    ),
    LogTemplate(
        "tgi.overloaded",
        "request_rejected",
        "Model is overloaded",
        r"(?P<why>Model is overloaded)",
        note="HTTP 429 by --max-concurrent-requests",
    ),
    LogTemplate(
        "tgi.success",
        "request_out",
        'inference_time="',
        r"(?:max_new_tokens: Some\((?P<max_tokens>\d+)\).{0,800}?)?"
        + rf'total_time="{_DURATION.format("total")}" validation_time="[^"]*" queue_time="{_DURATION.format("queue")}" '
        + rf'inference_time="{_DURATION.format("inference")}" time_per_token="{_DURATION.format("per_token")}"',
        derive=_request_out,
    ),
)


_LEVERS: tuple[Lever, ...] = (
    Lever(
        "sched.max_running",
        "--max-batch-size",
        default="none",
        setting="max_running",
        effect="Caps the requests in a batch whatever room the pool has.",
        cost="A longer queue.",
        next_limit="tgi_queue_size",
        verify="tgi_batch_current_size stays at the cap",
    ),
    Lever(
        "sched.batch_tokens",
        "--max-batch-prefill-tokens",
        default="derived from the model and the memory",
        setting="batch_tokens",
        effect="Bounds the tokens of one prefill batch, which is the activation peak.",
        cost="Fewer prompts are computed together, so time to first token grows.",
        next_limit="time to first token",
        verify="the warm-up passes with room left and 'Method Prefill encountered an error' does not come back",
    ),
    Lever(
        "sched.max_queue",
        "--max-concurrent-requests",
        default="128",
        setting="max_queue",
        effect="Requests beyond it, queued and running together, get HTTP 429.",
        cost="Clients have to try again.",
        next_limit="refused requests",
        verify='tgi_request_failure{err="overloaded"}',
    ),
    Lever(
        "sched.policy",
        None,
        instead="The queue is first in, first out and its head blocks it; order requests in the gateway.",
    ),
    Lever(
        "admission.free_share",
        "TGI_WIGGLE_ROOM",
        since="3.0",
        default="0.9",
        setting="free_share",
        effect="Share of the free memory that becomes pool; a lower value leaves more for activations.",
        cost="A smaller pool.",
        next_limit="pool size",
        verify="the line 'Setting max batch total tokens to'",
        inverse=True,
    ),
    Lever(
        "admission.free_share",
        None,
        until="2.9",
        instead="Lower --cuda-memory-fraction; admission itself has no watermark and needs none, since all is reserved.",
    ),
    Lever(
        "admission.full_prompt",
        None,
        instead="Always so: a request is admitted only when prompt and max_new_tokens fit.",
    ),
    Lever(
        "admission.reserve_output",
        "--max-total-tokens",
        default="derived from the model",
        setting="max_model_len",
        effect="Bounds prompt and output of one request, which is what admission reserves.",
        cost="Longer requests are refused.",
        next_limit="requests that are refused",
        verify="tgi_queue_size falls while tgi_batch_current_size rises",
    ),
    Lever("victim.order", None, instead="There are no victims: nobody is preempted."),
    Lever("victim.protect", None, instead="There are no victims: nobody is preempted."),
    Lever("victim.cooldown", None, instead="There are no victims: nobody is preempted."),
    Lever(
        "kv.pool_share",
        "--cuda-memory-fraction",
        default="1.0",
        setting="fraction",
        effect="Share of the device the process may use, weights, activations and pool together.",
        cost="A higher share leaves less for other processes.",
        next_limit="device memory",
        verify="the line 'Setting max batch total tokens to'",
    ),
    Lever(
        "kv.pool_bytes",
        "--max-batch-total-tokens",
        default="inferred at warm-up",
        setting="pool_tokens",
        effect="Sets the pool in tokens; flash models infer it and ignore smaller values only with a warning.",
        cost="A value above what fits ends in a device OOM.",
        next_limit="device memory",
        verify="the line 'Setting max batch total tokens to'",
    ),
    Lever(
        "kv.dtype",
        "--kv-cache-dtype",
        since="2.4",
        default="auto",
        setting="kv_dtype",
        effect="fp8_e4m3fn or fp8_e5m2 halve the bytes per token.",
        cost="Quality has to be checked for the model.",
        next_limit="compute",
        verify="max batch total tokens doubles",
    ),
    Lever("kv.dtype", None, until="2.3", instead="The cache has the dtype of the model; upgrade to 2.4 for fp8."),
    Lever(
        "kv.block_tokens",
        "ATTENTION",
        default="flashinfer or flashdecoding by device",
        effect="The block size follows the attention kernel: 16 with paged, 256 with flashdecoding, 1 with flashinfer.",
        cost="Another kernel may be slower.",
        next_limit="step time",
        verify="the line 'KV-cache blocks: N, size: S'",
    ),
    Lever("kv.offload_bytes", None, instead="There is no second tier; lower max_new_tokens or add memory."),
    Lever(
        "prefix.enable",
        "PREFIX_CACHING",
        since="2.3",
        default="true where the attention kernel allows it",
        setting="prefix",
        effect="Blocks of a common beginning are shared and need no new prefill.",
        cost="None worth naming.",
        next_limit="prompt order of the clients",
        verify="the line 'Using attention A - Prefix caching true'",
    ),
    Lever("prefix.enable", None, until="2.2", instead="Prefix caching came with 2.3: upgrade."),
    Lever(
        "mem.max_model_len",
        "--max-total-tokens",
        default="derived from the model",
        setting="max_model_len",
        effect="Shortens the longest request and the warm-up, so more requests fit.",
        cost="Longer requests are refused.",
        next_limit="requests that are refused",
        verify="the line 'Setting max batch total tokens to'",
    ),
    Lever(
        "mem.graphs",
        "--cuda-graphs",
        values={"off": "0"},
        default="1,2,4,8,16,32",
        setting="eager",
        effect="Fewer captured sizes, or 0 for none, leave memory.",
        cost="Slower decode steps.",
        next_limit="time per token",
        verify="the line 'Cuda Graphs are enabled for sizes'",
    ),
    Lever(
        "mem.prefill_chunk",
        "--max-batch-prefill-tokens",
        since="3.0",
        default="derived from the model and the memory",
        setting="chunk",
        effect="With chunked prefill long prompts are cut at this many tokens.",
        cost="Time to first token of long prompts.",
        next_limit="time to first token",
        verify="tgi_batch_concat{reason='chunking'} grows",
    ),
    Lever(
        "mem.prefill_chunk",
        None,
        until="2.9",
        instead="Prompts are computed whole: lower --max-input-tokens, or upgrade to 3.0.",
    ),
    Lever(
        "mem.lora_slots",
        "--lora-adapters",
        since="2.1",
        default="none",
        setting="lora",
        effect="Every adapter named here stays in memory; name only those in use.",
        cost="Requests for others are refused.",
        next_limit="adapters in use",
        verify="free memory after the warm-up",
    ),
    Lever("mem.lora_slots", None, until="2.0", instead="Adapters came with 2.1; lorax has --max-active-adapters."),
    Lever(
        "mem.lora_slots",
        "--max-active-adapters",
        default="128",
        setting="lora",
        effect="Adapters that are on the device at a time (lorax). --adapter-memory-fraction, in releases that have it, sets "
        "memory aside for them before the pool takes the rest: raise that where the adapters in use do not fit.",
        cost="Requests for other adapters wait until theirs is exchanged; memory set aside is taken from the pool.",
        next_limit="adapters that wait for an exchange",
        verify="the line 'Setting max batch total tokens to', and no device OOM while adapters are loaded",
        only_with="max_active_adapters",
    ),
    Lever(
        "mem.multimodal_limit",
        None,
        instead="Limit images per request in the gateway and lower --max-batch-prefill-tokens: image tokens count as prompt.",
    ),
    Lever(
        "mem.logprobs_cap",
        "--max-top-n-tokens",
        default="5",
        setting="max_logprobs",
        effect="Caps the alternatives a request may ask for; decoder_input_details costs most, forbid it in the gateway.",
        cost="Clients get fewer alternatives.",
        next_limit="device memory in prefill",
        verify="'Method Prefill encountered an error' does not come back",
    ),
    Lever(
        "mem.allocator_conf",
        "PYTORCH_CUDA_ALLOC_CONF",
        until="1.1",
        values={"set": "max_split_size_mb:128"},
        effect="Blocks above that size are not split, so large pieces stay whole; torch 2.0 has no expandable segments.",
        cost="Large blocks that are partly used waste the rest.",
        next_limit="device memory",
        verify="reserved memory beside allocated memory in the next OOM line",
    ),
    Lever(
        "mem.allocator_conf",
        "PYTORCH_CUDA_ALLOC_CONF",
        since="1.2",
        effect="expandable_segments:True lets torch use memory it has reserved in pieces.",
        cost="A small cost when segments are mapped.",
        next_limit="device memory",
        verify="reserved but unallocated memory in the next OOM line",
    ),
    Lever(
        "mem.process_cap",
        "--cuda-memory-fraction",
        default="1.0",
        setting="fraction",
        effect="This is the cap torch enforces ('allowed' in the OOM line), although the device has more.",
        cost="A higher cap leaves less for other processes.",
        next_limit="device memory",
        verify="'allowed' in the next OOM line, or none",
    ),
    Lever(
        "topo.tp",
        "--num-shard",
        default="all visible devices when --sharded",
        setting="tp",
        effect="Spreads weights and KV over more devices.",
        cost="Communication in every layer.",
        next_limit="communication between devices",
        verify="output tokens per second per device",
    ),
    Lever("topo.dp", None, instead="Start several servers behind a load balancer."),
    Lever("topo.routing", None, instead="The server does not route; use a balancer that looks at tgi_queue_size."),
    Lever(
        "client.max_tokens",
        "max_new_tokens (request)",
        effect="Every request reserves it at admission, so a sane value lets more requests in at once.",
        cost="Outputs longer than the limit are cut.",
        next_limit="outputs that end by length",
        verify="tgi_queue_size falls at the same load",
    ),
    *HOST_LEVERS,
    Lever(
        "engine.version",
        "docker image tag",
        effect="2.3 brought prefix caching and 3.0 chunked prefill; the project is in maintenance mode since.",
        cost="Flags and defaults changed at 2.0 and 3.0.",
        next_limit="a project that is no longer developed",
        verify="curl -s URL/info shows the version",
    ),
    Lever(
        "observe.metrics",
        "--port",
        default="3000 (80 in the image)",
        setting="port",
        effect="/metrics is served on the main port; --prometheus-port has no listener in 3.x.",
        cost="None.",
        next_limit="no usage and no preemption series exist",
        verify="curl -s URL/metrics shows tgi_queue_size",
    ),
    Lever(
        "observe.request_log",
        "LOG_LEVEL=info",
        default="info",
        effect="Each request that succeeds prints queue, inference and per-token times.",
        cost="A line per request.",
        next_limit="log volume",
        verify="lines with time_per_token=",
    ),
    Lever("observe.victims", None, instead="There are no victims: nobody is preempted."),
)


_GAPS: tuple[Gap, ...] = (
    Gap("preempt", "the engine never preempts", "nothing to look for: look at the queue"),
    Gap(
        "recompute", "the engine never preempts, so nothing is computed again", "nothing to look for: look at the queue"
    ),
    Gap(
        "latency.ttft", "time to first token is not measured", "queue time + prefill time; or measure it in the client"
    ),
    Gap(
        "latency.itl",
        "only the mean time per token of whole requests is measured, with the prefill in it",
        "measure gaps between tokens in the client",
    ),
    Gap("latency.stalls", "gaps between tokens are not measured", "measure them in the client"),
    Gap("prefix", "prefix hits are not exposed", "compare prefill times of equal prompts"),
    Gap("kv.evictable_share", "prefixes kept for reuse are not exposed", "none so far"),
    Gap("kv.block_tokens", "the block size is only in the log", "look for 'KV-cache blocks: N, size: S'"),
    Gap("kv.usage", "there is no usage gauge: only reserved tokens and the pool size", "scrape both gauges"),
    Gap("kv.pool_tokens", "the pool gauge is set after the warm-up", "look for 'Setting max batch total tokens to'"),
    Gap("tok.prefill_speed", "needs the prefill histogram and prompt lengths", "scrape twice with load in between"),
    Gap("mem", "the parts of device memory are not printed", "run with LOG_LEVEL=debug and look for 'Free memory'"),
)


_COMMANDS: tuple[Command, ...] = (
    Command("metrics.kv", "curl -s {url}/metrics | grep -E '^(tgi|lorax)_batch_(current_max_tokens|max_total_tokens)'"),
    Command("metrics.queue", "curl -s {url}/metrics | grep -E '^(tgi|lorax)_(queue_size|batch_current_size)'"),
    Command(
        "metrics.preemptions",
        "curl -s {url}/metrics | grep -E '^(tgi|lorax)_(queue_size|request_failure)'",
    ),
    Command(
        "metrics.latency",
        "curl -s {url}/metrics | grep -E '^(tgi|lorax)_request_(queue|inference)_duration_(sum|count)'",
    ),
    Command("metrics.prefix", "grep -n 'Prefix caching' {log}"),
    Command("log.oom", "grep -nE 'out of memory|encountered an error|Not enough memory' {log}"),
    Command("log.start", "grep -nE 'Args|Setting max batch total tokens|KV-cache blocks|Default `max' {log}"),
    Command("log.stats", "grep -n 'time_per_token=' {log} | tail -20"),
    Command("observe.metrics", "curl -s {url}/metrics | grep -cE '^(tgi|lorax)_'"),
    Command("observe.request_log", "grep -c 'time_per_token=' {log}"),
    Command("observe.victims", "curl -s {url}/metrics | grep -E '^(tgi|lorax)_queue_size'"),
)


_ENVIRONMENT = re.compile(r"\b([A-Z][A-Z0-9_]{2,40})=(\"[^\"]*\"|'[^']*'|[^\s,;\"']+)")


def _parse_args(text: str) -> Args:
    """Debug print of the launcher, command line, environment (``MAX_TOTAL_TOKENS=4096``) and the JSON of /info."""
    environment = {name.lower(): value.strip("'\"") for name, value in _ENVIRONMENT.findall(text[: _argtext.LONGEST])}
    return {**_argtext.nested(text), **_argtext.rust_debug(text), **environment, **_argtext.flags(text)}


ENGINE = Engine(
    name="tgi",
    title="Text Generation Inference",
    metric_prefixes=("tgi_", "lorax_"),
    log_markers=(
        "text_generation_launcher",
        "text_generation_router",
        "text_generation_server",
        "lorax_launcher",
        "lorax_router",
        "lorax_client",
        "lorax_server",
    ),
    process_markers=(
        "text-generation-launcher",
        "text-generation-router",
        "text-generation-server",
        "lorax-launcher",
        "lorax-router",
    ),
    default_port=3000,
    endpoints=(Endpoint("/metrics", "exposition"), Endpoint("/info", "router-info", once=True)),
    series=_SERIES,
    templates=_TEMPLATES,
    levers=_LEVERS,
    gaps=_GAPS,
    commands=_COMMANDS,
    never_preempts=lambda version, args: True,
    reserves_output=lambda version, args: True,
    parse_args=_parse_args,
    canonical_args={
        "max_running": ("max_batch_size",),
        "batch_tokens": ("max_batch_prefill_tokens",),
        "max_model_len": ("max_total_tokens",),
        "pool_tokens": ("max_batch_total_tokens",),
        "fraction": ("cuda_memory_fraction",),
        "free_share": ("tgi_wiggle_room",),
        "tp": ("num_shard",),
        "prefix": ("prefix_caching",),
        "kv_dtype": ("kv_cache_dtype",),
        "weight_dtype": ("quantize", "dtype"),
        "max_queue": ("max_concurrent_requests",),
        "eager": ("cuda_graphs",),
        "model": ("model_id",),
        "port": ("port",),
        "lora": ("lora_adapters", "max_active_adapters"),
        "max_logprobs": ("max_top_n_tokens",),
        "spec": ("speculate",),
    },
    defaults=lambda version: {
        "max_queue": "128",
        "fraction": "1.0",
        "reserve_policy": "prompt + max_new_tokens",
        "full_prompt": "True",
    },
    forks=("lorax",),
    promql=PROMQL,
)
