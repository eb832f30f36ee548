"""ollama: a scheduler that loads and unloads llama.cpp runners. It has no metrics; everything is in its log.

The log is logfmt (``time=... level=... source=... msg="..." key=value``) with the runner's own lines between it, so the
templates of llama.cpp are part of the table. Sources: logs of 0.1.41 to 0.14 and of the llama-server based runners.
"""

from __future__ import annotations

from kvdoctor.engines import llamacpp
from kvdoctor.engines._host_levers import HOST_LEVERS
from kvdoctor.engines.base import Args, Command, Engine, Gap, Lever
from kvdoctor.parse.serverlog import LogTemplate

_SIZE = r"\d+(?:\.\d+)? [KMGT]?i?B"
_UNIT = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def _bytes(fields: dict[str, object]) -> dict[str, object]:
    """Sizes are printed as text with a unit: ``6.2 GiB``; plain numbers are bytes already."""
    for name, value in list(fields.items()):
        if isinstance(value, str) and value[:1].isdigit():
            amount, _, unit = value.partition(" ")
            if unit in _UNIT:
                fields[name] = float(amount) * _UNIT[unit]
    return fields


def _pool(fields: dict[str, object]) -> dict[str, object]:
    tokens, slots = fields.get("tokens"), fields.get("slots")
    if isinstance(tokens, float) and isinstance(slots, float) and slots > 0:
        fields["slot_tokens"] = tokens / slots
        fields["max_running"] = slots
    return fields


def _answered(fields: dict[str, object]) -> dict[str, object]:
    """A request that was refused, failed or given up by its client (499) ended without an answer."""
    status = fields.get("status")
    if isinstance(status, float) and status >= 400:
        fields["finish"] = "abort"
    return fields


_OWN: tuple[LogTemplate, ...] = (
    LogTemplate("oll.banner", "banner", 'msg="Listening on ', r'msg="Listening on \S{1,80} \(version (?P<version>[\w.+-]{1,40})\)"'),
    LogTemplate("oll.config", "args", "server config", r'server config"? env="(?P<text>map\[[^\n]{1,4000}\])'),
    LogTemplate("oll.runner", "args", 'msg="starting ',
                r'msg="starting (?:llama[ -]server|runner)" cmd="?\S{1,300}?(?: runner)? (?P<text>--[^"\n]{1,2000})'),
    LogTemplate("oll.loaded", "model_load", 'msg="loaded runners"', r'msg="loaded runners" count=(?P<count>\d+)',
                note="one per load, also of a model that was loaded before"),
    LogTemplate("oll.fits", "memory", 'msg="new model will fit in available VRAM',
                r'msg="new model will fit in available VRAM[^"\n]{0,60}" model=(?P<model>\S{1,300})'
                rf'(?=(?:[^\n]{{0,300}}?parallel=(?P<slots>\d+))?)(?=(?:[^\n]{{0,300}}?available=(?P<free>\d+))?)(?=(?:[^\n]{{0,300}}?required="(?P<need>{_SIZE})")?)',
                derive=_bytes, fields={"stage": "before_weights"}),
    LogTemplate("oll.estimate", "memory", "layers.offload=", r'msg=(?:"offload to \w+"|offload) '
                rf'(?=(?:[^\n]{{0,900}}?memory\.required\.kv="(?P<kv_pool>{_SIZE})")?)'
                rf'(?=(?:[^\n]{{0,900}}?memory\.weights\.total="(?P<weights>{_SIZE})")?)'
                rf'(?=(?:[^\n]{{0,900}}?memory\.graph\.full="(?P<activations>{_SIZE})")?)'
                r'(?=(?:[^\n]{0,900}?layers\.model=(?P<layers_all>\d+))?)(?=(?:[^\n]{0,900}?layers\.offload=(?P<layers>\d+))?)',
                derive=_bytes, fields={"stage": "estimate"}),
    LogTemplate("oll.device", "phase", 'msg="inference compute"', r'msg="inference compute" id=\S{1,100} library=(?P<library>\w+)',
                fields={"what": "device"}, note="one line per device; library=cpu where none was found"),
    LogTemplate("oll.ps.split", "phase", "% CPU/GPU",
                r"\S +[0-9a-f]{12} +[\d.]+ [KMGT]?B +(?P<cpu__pct>\d+)%/\d+% CPU/GPU(?: |$)", fields={"what": "placed"},
                note="a row of ollama ps: how the model's bytes are spread"),
    LogTemplate("oll.ps.gpu", "phase", "100% GPU", r"\S +[0-9a-f]{12} +[\d.]+ [KMGT]?B +100% GPU(?: |$)",
                fields={"what": "placed", "cpu": 0.0}),
    LogTemplate("oll.ps.cpu", "phase", "100% CPU", r"\S +[0-9a-f]{12} +[\d.]+ [KMGT]?B +100% CPU(?: |$)",
                fields={"what": "placed", "cpu": 1.0}),
    LogTemplate("oll.part.weights", "memory", 'msg="model weights"',
                rf'msg="model weights" (?:device|buffer)=(?P<device>\w+) size="(?P<weights>{_SIZE})"', derive=_bytes,
                note="per device: they add up"),
    LogTemplate("oll.part.kv", "pool", 'msg="kv cache"', rf'msg="kv cache" device=(?P<device>\w+) size="(?P<bytes>{_SIZE})"', derive=_bytes,
                note="per device: they add up; a part on the CPU is slow, not missing"),
    LogTemplate("oll.part.graph", "memory", 'msg="compute graph"',
                rf'msg="compute graph" (?:backend|device)=(?P<device>\w+)[^\n]{{0,60}}? size="(?P<activations>{_SIZE})"', derive=_bytes),
    LogTemplate("oll.load_request", "pool", "KvSize:",
                r"Operation:(?P<operation>commit)[^\n]{0,80}?Parallel:(?P<slots>\d+)[^\n]{0,120}?KvSize:(?P<tokens>\d+)", derive=_pool,
                note="the trial loads before it (fit, alloc) are not counted"),
    LogTemplate("oll.system", "memory", 'msg="system memory"', rf'msg="system memory" total="(?P<host_total>{_SIZE})" free="(?P<host_free>{_SIZE})"',
                derive=_bytes),
    LogTemplate("oll.started", "ready", "started in", r'msg="(?:llama runner|llama-server) started in (?P<seconds>[\d.]+) seconds"',
                fields={"what": "runner"}),
    LogTemplate("oll.evict", "model_unload", "resetting model to expire immediately",
                r'msg="resetting model to expire immediately to make room"(?: (?:modelPath|runner\.\w+)=(?P<model>\S{1,300}))?',
                fields={"why": "room"}),
    LogTemplate("oll.reload", "model_unload", "needs reload", r'msg="reloading"|needs reload', fields={"why": "other options"}),
    LogTemplate("oll.released", "phase", 'msg="runner released"', r'msg="runner released"(?: modelPath=(?P<model>\S{1,300}))?',
                fields={"what": "runner released"}),
    LogTemplate("oll.evicting", "phase", "than is currently available, evicting a model",
                r'msg="model requires more (?P<resource>gpu|system) memory than is currently available, evicting a model to make space"',
                fields={"what": "evict for room"}),
    LogTemplate("oll.load_failed", "start_error", 'msg="Load failed"',
                r'msg="Load failed" model=\S{1,300} error="(?P<text>[^"\n]{1,200})', fields={"error": "weights"}),
    LogTemplate("oll.server_failed", "start_error", 'msg="NewLlamaServer failed"',
                r'msg="NewLlamaServer failed" model=\S{1,300} error="(?P<text>[^"\n]{1,200})', fields={"error": "weights"}),
    LogTemplate("oll.loading_failed", "error", 'msg="error loading llama server"',
                r'msg="error loading llama server" error="(?P<text>[^"\n]{1,200})', fields={"start": True},
                note="also when the client gave up while the model was loading"),
    LogTemplate("oll.runner_died", "error", ' terminated" error="',
                r'msg="(?:llama runner|llama-server) terminated" error="(?P<text>[^"\n]{1,200})'),
    LogTemplate("oll.gpu_lost", "error", "GPU is lost", r'msg="[^"\n]{1,120}" error="[^"\n]{0,120}(?P<text>GPU is lost)'),
    LogTemplate("oll.truncated", "context_limit", 'msg="truncating input prompt"',
                r'msg="truncating input prompt" limit=(?P<n_ctx>\d+) prompt=(?P<n_tokens>\d+)', fields={"truncated": True},
                note="the request goes on with the rest: the client sees nothing"),
    LogTemplate("oll.truncated_messages", "phase", "truncating input messages which exceed context length",
                r'msg="truncating input messages which exceed context length" truncated=(?P<messages>\d+)', fields={"what": "messages dropped"}),
    LogTemplate("oll.shift", "context_shift", 'msg="context limit hit - shifting"',
                r'msg="context limit hit - shifting" id=(?P<slot>\d+) limit=(?P<n_ctx>\d+) input=\d+ keep=(?P<n_keep>\d+) discard=(?P<n_discard>\d+)'),
    LogTemplate("oll.cache", "slot_reuse", 'msg="loading cache slot"',
                r'msg="loading cache slot" id=(?P<slot>\d+) cache=\d+ prompt=(?P<n_tokens>\d+) used=(?P<cached_tokens>\d+)'),
    LogTemplate("oll.request", "request_out", "[GIN] ",
                r'\[GIN\][^|\n]{1,60}\| +(?P<status>\d{3}) \|[^\n]{1,80}\| POST +"/(?:api/(?:generate|chat)|v1/(?:chat/)?completions)"',
                derive=_answered, note="one line per finished request of a generating route"),
    LogTemplate("oll.busy", "request_rejected", "maximum pending requests exceeded", r"maximum pending requests exceeded", fields={"why": "queue full"}),
)  # fmt: skip

TEMPLATES: tuple[LogTemplate, ...] = (
    *_OWN,
    # a runner starts for each model: its banner is not that of the server
    *(t for t in llamacpp.TEMPLATES if t.event not in ("banner", "ready", "model_load") and t.id != "lcp.command"),
)

_PS = "ollama ps (CONTEXT and PROCESSOR columns)"

_OWN_LEVERS: tuple[Lever, ...] = (
        Lever("sched.max_running", "OLLAMA_NUM_PARALLEL=N", default="auto (1 to 4 by memory)", setting="max_running",
              effect="Each model answers N requests at once; its pool is num_ctx x N tokens.",
              cost="More: more memory per model and more reloads. Fewer: requests queue.", next_limit="memory for the pool", verify=_PS),
        Lever("sched.batch_tokens", "num_batch in the request options", default="512",
              effect="A prompt is taken in smaller pieces.", cost="Prompts take longer.", next_limit="prefill throughput",
              verify="--batch-size in the 'starting llama server' line"),
        Lever("sched.max_queue", "OLLAMA_MAX_QUEUE=N", default="512", setting="OLLAMA_MAX_QUEUE",
              effect="More requests than N are answered with 503.", cost="Clients must retry.", next_limit="refused requests",
              verify="503 in the [GIN] lines"),
        Lever("admission.free_share", None,
              instead="nothing of the pool is kept free: OLLAMA_NUM_PARALLEL=1 gives it to one request at a time"),
        Lever("admission.full_prompt", None, instead="a prompt longer than num_ctx is cut, not refused: set num_ctx to what clients need"),
        Lever("kv.pool_share", "OLLAMA_GPU_OVERHEAD=BYTES", default="0", setting="OLLAMA_GPU_OVERHEAD", margin=True,
              values={"up": "1073741824 (1 GiB) and what was short"},
              not_for={"up": "there is no share: all that is free is used but OLLAMA_GPU_OVERHEAD, and the pool is num_ctx x parallel tokens; "
                             "a smaller num_ctx or OLLAMA_NUM_PARALLEL, or a smaller cache type, makes it fit"},
              effect="This much memory of each device is left free when a model is placed.", cost="Fewer layers on the device.",
              next_limit="CPU speed", verify="layers.offload in the load lines"),
        Lever("kv.pool_bytes", "OLLAMA_CONTEXT_LENGTH=N, or num_ctx in the request options", default="4096 (2048 in old versions)",
              setting="max_model_len",
              effect="The pool is num_ctx x parallel tokens; the same num_ctx in all requests avoids reloads.",
              cost="Memory grows with N.", next_limit="device memory", verify=_PS),
        Lever("kv.dtype", "OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1", since="0.5", default="f16", setting="OLLAMA_KV_CACHE_TYPE",
              effect="About half the bytes per token.", cost="Some accuracy.", next_limit="compute", verify="KvCacheType in the load lines"),
        Lever("kv.dtype", None, until="0.4", instead="only f16 before 0.5: lower num_ctx"),
        Lever("kv.offload_bytes", None, instead="no second tier; a model that does not fit leaves layers and their cache on the CPU"),
        Lever("mem.device_layers", None, instead="as many layers as fit are placed on the device: take num_gpu out of the request options "
              "and the Modelfile, and make the model fit"),
        Lever("prefix.states", None, instead="ollama has no option for it: a model without a sliding window or recurrent layers keeps its prefix"),
        Lever("mem.max_model_len", "OLLAMA_CONTEXT_LENGTH=N, or num_ctx in the request options", default="4096 (2048 in old versions)",
              setting="max_model_len", effect="Longest prompt and answer of one request.", cost="Memory grows with N.",
              next_limit="device memory", verify=_PS),
        Lever("mem.prefill_chunk", "num_batch in the request options", default="512", effect="The compute graph shrinks.",
              cost="Prompts take longer.", next_limit="prefill throughput", verify="the 'compute graph' lines"),
        Lever("mem.graphs", None, instead="no switch; lower num_batch or num_ctx to shrink the compute graph"),
        Lever("mem.lora_slots", None, instead="adapters are merged into the model by ADAPTER in the Modelfile: one model each"),
        Lever("prefix.enable", None, instead="always on: each slot keeps its last prompt until the model is unloaded (raise keep_alive)"),
        Lever("topo.tp", "OLLAMA_SCHED_SPREAD=1", default="off", setting="OLLAMA_SCHED_SPREAD", effect="A model is spread over all devices.",
              cost="Devices exchange data.", next_limit="communication", verify="one 'model weights' line per device"),
        Lever("topo.routing", "OLLAMA_MAX_LOADED_MODELS=N", default="3 per device", setting="OLLAMA_MAX_LOADED_MODELS",
              effect="More models stay loaded, so requests for different models cause fewer reloads.",
              cost="They share the memory.", next_limit="device memory", verify="'loaded runners' lines per request"),
        Lever("host.loaded_models", "OLLAMA_MAX_LOADED_MODELS=N", default="3 per device", setting="OLLAMA_MAX_LOADED_MODELS",
              effect="As many models stay loaded, where their weights and pools fit beside each other; where N is enough already, memory is the limit.",
              cost="They share the memory.", next_limit="device memory", verify="count in the 'loaded runners' lines"),
        Lever("client.max_tokens", "num_predict in the request options", default="-1 (unlimited)",
              effect="Outputs end before they fill the context.", cost="Answers can be cut.", next_limit="answers that end by length",
              verify="done_reason length in the answers"),
        Lever("engine.version", "the version of ollama", default=None, effect="Newer versions measure memory instead of estimating it and "
              "reload less often.", cost="A restart.", next_limit="none", verify="version in the 'Listening on' line"),
        Lever("observe.metrics", None, instead="ollama exports no metrics: use its log (OLLAMA_DEBUG=1), ollama ps and nvidia-smi"),
        Lever("observe.request_log", "OLLAMA_DEBUG=1", default="off", setting="OLLAMA_DEBUG",
              effect="Prints why models are loaded and unloaded, cache slots and runner lines.", cost="A large log.",
              next_limit="disk", verify="level=DEBUG lines"),
        Lever("observe.victims", None, instead="ollama does not preempt: an overlong request is cut or shifted, an idle model unloaded"),
)  # fmt: skip

_NAMED = {lever.lever for lever in (*_OWN_LEVERS, *HOST_LEVERS)}

LEVERS: tuple[Lever, ...] = (
    *_OWN_LEVERS,
    *HOST_LEVERS,
    # what llama.cpp has no option for, ollama has none for either
    *(lever for lever in llamacpp.LEVERS if lever.lever not in _NAMED and lever.flag is None),
)

GAPS: tuple[Gap, ...] = (
    Gap("kv", "ollama tells the size of the pool (num_ctx x parallel), never what is in use",
        "compare prompt_eval_count + eval_count of the answers with num_ctx"),
    Gap("req.waiting", "ollama prints no queue", "count the requests in flight in the client or in a proxy in front of it"),
    Gap("req.running", "ollama prints requests only when they have ended", "count the requests in flight in the client or in a proxy in front of it"),
    Gap("req", "ollama exports no metrics", "send its log: a [GIN] line per request"),
    Gap("latency", "ollama exports no metrics", "the [GIN] lines print each request's duration; clients get total_duration and eval_duration"),
    Gap("tok", "ollama exports no metrics", "clients get prompt_eval_count and eval_count in each answer"),
    Gap("work", "ollama exports no metrics", "clients get prompt_eval_count and eval_count in each answer"),
    Gap("prefix", "ollama exports no metrics", "send its log with OLLAMA_DEBUG=1 (loading cache slot)"),
    Gap("preempt", "ollama does not preempt running requests", "look for 'truncating input prompt' and 'loaded runners' in the log"),
    Gap("recompute", "nothing is computed again except after a model is reloaded", "count 'loaded runners' against requests"),
    Gap("offload", "ollama has no second tier", "'ollama ps' shows how much of a model lies on the CPU"),
    Gap("pd", "ollama is not disaggregated", "nothing to send"),
)  # fmt: skip

COMMANDS: tuple[Command, ...] = (
    Command("metrics.kv", "ollama ps"),
    Command("metrics.preemptions", "grep -c 'truncating input prompt' {log}"),
    Command("metrics.queue", "grep -c ' 503 ' {log}"),
    Command("metrics.latency", "grep -F '[GIN]' {log} | grep POST | tail -40"),
    Command("metrics.prefix", "grep -F 'loading cache slot' {log} | tail -40"),
    Command("log.oom", "grep -nE 'cudaMalloc failed|out of memory|Load failed' {log}"),
    Command("log.start", "grep -nE 'Listening on|server config|inference compute|starting llama server|loaded runners' {log}"),
    Command("log.stats", "grep -E 'loaded runners|resetting model|needs reload|GIN' {log} | tail -60"),
    Command("observe.metrics", "ollama ps; nvidia-smi"),
    Command("observe.request_log", "OLLAMA_DEBUG=1 ollama serve"),
    Command("observe.victims", "grep -nE 'resetting model to expire|truncating input|context limit hit' {log}"),
)  # fmt: skip


def parse_args(text: str) -> Args:
    """The environment printed at start (``map[OLLAMA_NUM_PARALLEL:4 ...]``) or the command line of a runner.

    A runner is given the context of all its slots: ``num_ctx`` is the part of one, as clients ask for it.
    """
    if text.startswith("map["):
        out: Args = {}
        for item in text[4:].split(" "):
            name, colon, value = item.partition(":")
            value = value.rstrip("]")
            if value == "0" and name in _AUTOMATIC:
                continue
            if colon and value and name.startswith("OLLAMA_"):
                out.setdefault(name, value)
        return out
    args = llamacpp.parse_args(text)
    total, slots = args.get("ctx_size", ""), args.get("parallel", "1")
    if total.isdecimal() and slots.isdecimal() and int(slots) > 0:
        args["num_ctx"] = str(int(total) // int(slots))
    return args


_AUTOMATIC = frozenset({"OLLAMA_NUM_PARALLEL", "OLLAMA_MAX_LOADED_MODELS", "OLLAMA_CONTEXT_LENGTH"})
"""Settings that are chosen at each load where they read 0."""


ENGINE = Engine(
    name="ollama",
    title="ollama",
    metric_prefixes=("ollama_",),
    log_markers=(
        "source=sched.go:",
        "source=routes.go:",
        "source=server.go:",
        "source=runner.go:",
        'msg="loaded runners"',
        "OLLAMA_HOST:",
        "ollama_llama_server",
        "[GIN] ",
        # the head of ollama ps: its columns stand four blanks apart at least
        "    PROCESSOR    ",
    ),
    process_markers=("ollama serve", "ollama runner", "ollama_llama_server"),
    default_port=11434,
    endpoints=(),
    series=(),
    templates=TEMPLATES,
    levers=LEVERS,
    gaps=GAPS,
    commands=COMMANDS,
    usage_counts_reusable=True,
    preempt_kind=lambda version, args: "abort",
    never_preempts=lambda version, args: True,
    reserves_output=lambda version, args: False,
    parse_args=parse_args,
    canonical_args={
        **llamacpp.CANONICAL,
        "max_running": ("parallel", "OLLAMA_NUM_PARALLEL"),
        "pool_tokens": ("ctx_size",),
        "max_model_len": ("num_ctx", "OLLAMA_CONTEXT_LENGTH"),
        "kv_dtype": ("OLLAMA_KV_CACHE_TYPE", "cache_type_k"),
        "max_queue": ("OLLAMA_MAX_QUEUE",),
    },
    defaults=lambda version: {
        "batch_tokens": "512",
        "block_tokens": "1",
        "kv_dtype": "f16",
        "prefix": "True",
        "max_queue": "512",
        "port": "11434",
    },
    forks=(),
)
