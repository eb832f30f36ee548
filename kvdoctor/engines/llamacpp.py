"""llama.cpp's llama-server (also behind ramalama, LM Studio, LLMKube and other runners): names, log lines, levers, gaps.

Sources: the server of build b11434, runs of it, and logs of builds from 2024 on. Builds are numbered ``bNNNN``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from kvdoctor.engines import _argtext
from kvdoctor.engines._host_levers import HOST_LEVERS
from kvdoctor.engines._promql import COMMON_PROMQL
from kvdoctor.engines.base import (
    COMMON_SERIES,
    Args,
    Command,
    Endpoint,
    Engine,
    Gap,
    Lever,
    Series,
    SeriesName,
)
from kvdoctor.parse.serverlog import LogTemplate


def _gauge(name: str, until: str | None = None) -> SeriesName:
    return SeriesName(f"llamacpp:{name}", "gauge", until=until)


def _counter(name: str) -> SeriesName:
    return SeriesName(f"llamacpp:{name}", "counter")


SERIES: tuple[Series, ...] = (
    *COMMON_SERIES,
    Series("req.running", (_gauge("requests_processing"),)),
    Series("req.waiting", (_gauge("requests_deferred"),), "requests for which no slot is free"),
    Series("req.waiting_reason", (SeriesName("llamacpp:requests_deferred", "gauge", key="deferred"),)),
    Series(
        "kv.usage",
        (_gauge("kv_cache_usage_ratio", "5440"),),
        "removed in May 2025; later builds tell it only through /slots (tokens held / n_ctx)",
    ),
    Series(
        "kv.used_tokens",
        (
            _gauge("kv_cache_tokens", "5440"),
            SeriesName(
                "llamacpp:n_tokens_max",
                "gauge",
                ignore="the longest single sequence ever seen (declared a counter), not what the pool holds",
            ),
        ),
    ),
    Series("tok.prompt", (_counter("prompt_tokens_total"),), "computed prompt tokens; cached ones are not in it"),
    Series("tok.prefill_compute", (_counter("prompt_tokens_total"),)),
    Series("tok.cached", (_counter("prompt_tokens_cached_total"),)),
    Series("prefix.hits", (_counter("prompt_tokens_cached_total"),)),
    Series(
        "tok.generated",
        (_counter("tokens_predicted_total"),),
        "tokens of requests that were failed later are in it: delivered output can be far less",
    ),
    Series("tok.prompt_rate", (_gauge("prompt_tokens_seconds"),)),
    Series(
        "tok.gen_rate",
        (
            SeriesName(
                "llamacpp:predicted_tokens_seconds",
                "gauge",
                ignore="a mean per slot since the last scrape, 0 between two updates: not the server's throughput",
            ),
        ),
    ),
    Series("time.prefill", (_counter("prompt_seconds_total"),)),
    Series("time.decode", (_counter("tokens_predicted_seconds_total"),), "summed over slots: exceeds the wall time"),
    Series(
        "req.limit_running",
        (
            SeriesName(
                "llamacpp:n_busy_slots_per_decode", "gauge", ignore="a mean since the start, neither a limit nor a load"
            ),
        ),
    ),
)


# ---------------------------------------------------------------- log

_SLOT = r"(?:id +(?P<slot>\d+) \| task (?P<id>-?\d+) \| )"
_MIB = r"-?\d+(?:\.\d+)?"


def _slots(fields: dict[str, object]) -> dict[str, object]:
    """Total size of the pool: one shared pool of ``n_ctx_slot``, or as many as there are slots."""
    fields["unified"] = unified = fields.get("unified") == "true"
    slots, size = fields.get("slots"), fields.get("slot_tokens")
    if isinstance(slots, float) and isinstance(size, float):
        fields["tokens"] = size if unified else size * slots
        fields["max_running"] = slots
    return fields


def _slot_count(fields: dict[str, object]) -> dict[str, object]:
    """A single slot has the pool for itself; how several share it is not told."""
    fields["max_running"] = slots = fields.get("slots")
    if slots == 1:
        fields["unified"] = False
    return fields


def _buffer(fields: dict[str, object]) -> dict[str, object]:
    """A buffer of 0 bytes is the trial run that fits parameters to the memory, not the allocation."""
    fields["dry_run"] = fields.get("bytes") == 0
    return fields


def _weights(fields: dict[str, object]) -> dict[str, object]:
    if fields.get("weights") == 0:
        fields.pop("weights")
        fields["dry_run"] = True
    return fields


def _flag(fields: dict[str, object]) -> dict[str, object]:
    if "truncated" in fields:
        fields["truncated"] = fields["truncated"] in (1.0, "true", "True")
    return fields


def _breakdown(fields: dict[str, object]) -> dict[str, object]:
    # the trial run prints 2**64 bytes or a negative rest where it has not allocated anything
    rest = fields.get("non_torch")
    if not isinstance(rest, float) or rest < 0 or rest > 2.0**50:
        fields.pop("non_torch", None)
        fields["dry_run"] = True
    return fields


TEMPLATES: tuple[LogTemplate, ...] = (
    LogTemplate("lcp.banner", "banner", "llama_server: initializing", r"llama_server: initializing"),
    LogTemplate("lcp.banner.old", "banner", "build: ", r"(?<!\w)build: (?P<version>[1-9]\d{2,5}) \([0-9a-f]{6,40}\) with ",
                note="the first line of builds that have no 'initializing' line"),
    LogTemplate("lcp.version", "args", "common_params_print_info: build ",
                r"common_params_print_info: build (?P<version>[1-9]\d*) \("),
    LogTemplate("lcp.command", "args", "llama-server ", r"llama-server(?:\.exe)? (?P<text>-{1,2}[A-Za-z][^\n]{1,8000})"),
    LogTemplate("lcp.start.model", "model_load", "load_model: loading model",
                r"load_model: loading model '?(?P<model>[^'\n]{1,400})"),
    LogTemplate("lcp.start.slots", "pool", "initializing, n_slots = ",
                r"initializing, n_slots = (?P<slots>\d+), n_ctx_slot = (?P<slot_tokens>\d+), kv_unified = '(?P<unified>\w+)'",
                derive=_slots),
    LogTemplate("lcp.start.n_slots", "pool", "initializing slots, n_slots = ", r"initializing slots, n_slots = (?P<slots>\d+)",
                derive=_slot_count, note="builds that do not say whether the slots share one pool"),
    LogTemplate("lcp.start.slot", "phase", "new slot", r"new slot,? n_ctx(?:_slot)? = (?P<slot_tokens>\d+)", fields={"what": "slot"},
                note="once per slot; older builds print no other line about slots"),
    LogTemplate("lcp.start.ctx", "pool", "n_ctx ", r"(?:llama_context|llama_new_context_with_model|llama_init_from_model): n_ctx +=\s{1,8}(?P<tokens>\d+)",
                note="all slots together; a smaller value than asked for may come from --fit"),
    LogTemplate("lcp.start.buf.kv", "pool", "KV buffer size", rf"(?P<device>\w+) +KV buffer size = +(?P<bytes__mib>{_MIB}) MiB",
                derive=_buffer,
                note="per device, and once more for a sliding-window cache: those that are not the trial run add up"),
    LogTemplate("lcp.start.buf.model_old", "memory", "llm_load_tensors: ",
                rf"llm_load_tensors: +(?P<device>\w+) buffer size = +(?P<weights__mib>{_MIB}) MiB"),
    LogTemplate("lcp.start.buf.model", "memory", "model buffer size", rf"(?P<device>\w+) +model buffer size = +(?P<weights__mib>{_MIB}) MiB",
                derive=_weights, note="per device; those that are not the trial run add up"),
    LogTemplate("lcp.start.buf.compute", "memory", "compute buffer size",
                rf"(?P<device>\w+) +compute buffer size = +(?P<activations__mib>{_MIB}) MiB", note="the trial run prints it too"),
    LogTemplate("lcp.start.breakdown", "memory", "memory_breakdown_print: |   - ",
                rf"\|   - (?P<device>\w+)[^|\n]{{0,120}}\| +(?P<total__mib>\d+) = +(?P<free__mib>\d+) \+ \( *\d+ = +(?P<weights__mib>\d+) \+ +"
                rf"(?P<kv_pool__mib>\d+) \+ +(?P<activations__mib>\d+)\) \+ +(?P<non_torch__mib>{_MIB}) \|",
                derive=_breakdown, note="with --verbose; once for the trial run and once at exit"),
    LogTemplate("lcp.start.host", "memory", "common_param:   - CPU",
                rf"common_param: +- CPU +: [^\n(]{{0,120}}\((?P<host_total__mib>{_MIB}) MiB, (?P<host_free__mib>{_MIB}) MiB free\)",
                note="the machine's memory at the start"),
    LogTemplate("lcp.start.offload", "phase", "layers to GPU", r"offloaded (?P<layers>\d+)/(?P<layers_all>\d+) layers to GPU",
                fields={"what": "offload"}),
    LogTemplate("lcp.start.ready", "ready", "listening on http", r"(?:server is|llama_server:|main:|HTTP server) listening on http"),
    LogTemplate("lcp.start.ready_old", "ready", "HTTP server listening", r"HTTP server listening(?! on)"),
    # requests
    LogTemplate("lcp.launch", "request_in", "processing task", rf"{_SLOT}processing task"),
    LogTemplate("lcp.launch.old", "request_in", "is processing [task id", r"slot (?P<slot>\d+) is processing \[task id: (?P<id>\d+)\]"),
    LogTemplate("lcp.prompt", "request_in", "new prompt, n_ctx_slot",
                rf"{_SLOT}new prompt, n_ctx_slot = (?P<n_ctx>\d+), n_keep = -?\d+, (?:n_prompt_tokens|task\.n_tokens) = (?P<prompt_tokens>\d+)",
                note="the same id as the launch line: one request"),
    LogTemplate("lcp.cached", "slot_reuse", "_rm [", rf"{_SLOT}(?:cached )?(?:n_tokens|n_past)? ?=? ?\d*,? ?memory_seq_rm \[(?P<cached_tokens>\d+), end\)",
                note="the first one of a request tells what was reused; further ones are pieces of its prompt"),
    LogTemplate("lcp.cached.old", "slot_reuse", "kv cache rm [", rf"{_SLOT}kv cache rm \[(?P<cached_tokens>\d+), end\)"),
    LogTemplate("lcp.cached.oldest", "slot_reuse", "kv cache rm - [", r"slot (?P<slot>\d+) : kv cache rm - \[(?P<cached_tokens>\d+), end\)"),
    LogTemplate("lcp.state_lost", "phase", "forcing full prompt re-processing due to lack of cache data",
                rf"{_SLOT}forcing full prompt re-processing due to lack of cache data", fields={"what": "state lost"},
                note="the window or recurrent layers hold no state of where the new prompt leaves the old one"),
    LogTemplate("lcp.lru", "slot_reuse", "selected slot by LRU",
                r"id +(?P<slot>\d+) \| task -?\d+ \| selected slot by (?:LRU|lru), t_last = (?P<t_last>-?\d+)", fields={"how": "lru"}),
    LogTemplate("lcp.similarity", "slot_reuse", "selected slot by l",
                r"id +(?P<slot>\d+) \| task -?\d+ \| selected slot by lcs similarity, lcs_len = \d+, similarity = (?P<similarity>[\d.]+)",
                fields={"how": "similarity"}),
    LogTemplate("lcp.lcp", "slot_reuse", "selected slot by LCP",
                r"id +(?P<slot>\d+) \| task -?\d+ \| selected slot by LCP similarity, (?:f_sim_best|sim_best) = (?P<similarity>[\d.]+)"
                r"(?:[^\n]{0,40}f_keep = (?P<keep>[\d.]+))?", fields={"how": "similarity"}),
    LogTemplate("lcp.purge", "slot_reuse", "purging slot", r"purging slot (?P<slot>\d+) with (?P<n_tokens>\d+) tokens", fields={"how": "purge"},
                note="an idle conversation lost its cache so that active ones can go on"),
    LogTemplate("lcp.release", "request_out", "stop processing: n_",
                rf"{_SLOT}stop processing: (?:n_tokens|n_past) = (?P<n_tokens>\d+), truncated = (?P<truncated>\d)", derive=_flag,
                note="also after a failure; truncated: cut by the context limit"),
    LogTemplate("lcp.release.old", "request_out", "tokens in cache)", r"slot (?P<slot>\d+) released \((?P<n_tokens>\d+) tokens in cache\)"),
    LogTemplate("lcp.timing.prompt", "timing", "prompt eval time",
                rf"{_SLOT}?prompt eval time {{0,8}}= {{0,12}}(?P<prompt_s__ms>[\d.]+) ms / {{0,8}}(?P<prompt_tokens>\d+) tokens"),
    LogTemplate("lcp.timing.gen", "timing", "eval time",
                rf"{_SLOT}? {{0,12}}(?:generation )?(?<!prompt )eval time {{0,8}}= {{0,12}}(?P<gen_s__ms>[\d.]+) ms / {{0,8}}(?P<output_tokens>\d+) (?:tokens|runs)"),
    LogTemplate("lcp.defer", "request_queued", "defer task, id_task", r"(?:no slot is available|requested slot is unavailable), defer task, id_task = (?P<id>\d+)",
                note="debug level only"),
    # the pool overflows
    LogTemplate("lcp.retry", "pool_full", "failed to find free space in the KV cache",
                r"failed to find free space in the KV cache, retrying with smaller (?:batch size|n_batch)(?:[^\n]{0,120}?n_batch)? = (?P<batch>\d+)",
                note="the batch is halved until it is 1"),
    LogTemplate("lcp.fatal", "pool_full", "Context size has been exceeded. ",
                r"Context size has been exceeded\. (?:off|i) = \d+, n_batch = (?P<batch>\d+)", fields={"final": True},
                note="every active request is failed now; 'decode() failed' repeats it"),
    LogTemplate("lcp.fatal.old", "pool_full", "failed to decode the batch",
                r"failed to decode the batch(?:: KV cache is full)?[^\n]{0,120}?n_batch = (?P<batch>\d+), ret = 1\b", fields={"final": True}),
    LogTemplate("lcp.send_error.full", "request_failed", "error: Context size has been exceeded",
                r"send_error: task id = (?P<id>\d+), error: (?P<why>Context size has been exceeded\.?)", fields={"overflow": True},
                note="what each active request is told when the pool overflowed; the overflow's own line may be cut off"),
    LogTemplate("lcp.send_error", "request_failed", "send_error: task id = ",
                r"send_error: task id = (?P<id>\d+), error: (?P<why>(?!the request exceeds|request \(|Context size has been exceeded)[^\n]{1,120})"),
    # the context of one slot
    LogTemplate("lcp.exceed", "context_limit", "exceeds the available context size",
                r"(?:task id = (?P<id>\d+), error: )?request \((?P<n_tokens>\d+) tokens\) exceeds the available context size \((?P<n_ctx>\d+) tokens\)"),
    LogTemplate("lcp.exceed.old", "context_limit", "the request exceeds the available context size",
                r"(?:task id = (?P<id>\d+), error: )?the request exceeds the available context size",
                note="the numbers are in the 'new prompt' line of the same task"),
    LogTemplate("lcp.truncated", "context_limit", "input truncated, n_ctx",
                rf"{_SLOT}?input truncated, n_ctx = (?P<n_ctx>\d+), n_keep = -?\d+, n_left = -?\d+, n_prompt_tokens = (?P<n_tokens>\d+)",
                fields={"truncated": True}, note="n_prompt_tokens is what was left after the cut"),
    LogTemplate("lcp.shift", "context_shift", "slot context shift",
                rf"{_SLOT}?slot context shift, n_keep = (?P<n_keep>-?\d+), n_left = -?\d+, n_discard = (?P<n_discard>\d+)"),
    # the cache in host memory
    LogTemplate("lcp.cache_evict", "offload_fail", "cache size limit reached, removing oldest",
                rf"cache size limit reached, removing oldest entry \(size = (?P<bytes__mib>{_MIB}) MiB\)", fields={"what": "evicted"}),
    LogTemplate("lcp.cache_too_big", "offload_fail", "exceeds cache size limit",
                rf"prompt state size (?P<bytes__mib>{_MIB}) MiB exceeds cache size limit (?P<limit__mib>{_MIB}) MiB", fields={"what": "too large"}),
    # refusals at start (device out of memory itself is read by the out-of-memory parser)
    LogTemplate("lcp.oom.kv", "start_error", "failed to allocate buffer for kv cache", r"failed to allocate buffer for kv cache",
                fields={"error": "pool_too_small"}),
    LogTemplate("lcp.oom.compute", "phase", "failed to allocate compute", r"failed to allocate compute (?:(?P<part>pp|tg) )?buffers",
                fields={"what": "compute buffers refused"}),
    LogTemplate("lcp.assert", "error", "GGML_ASSERT(", r"(?P<text>GGML_ASSERT\([^\n]{1,120})", note="the process ends at once"),
    LogTemplate("lcp.throw", "error", "terminate called after throwing", r"(?P<text>terminate called after throwing[^\n]{1,120})"),
    LogTemplate("lcp.start.bind", "start_error", "couldn't bind", r"(?P<text>couldn't bind (?:HTTP server )?socket[^\n]{0,120})",
                fields={"error": "port_in_use"}),
    LogTemplate("lcp.start.usage", "start_error", "error: invalid argument", r"(?P<text>error: invalid argument: [^\n]{1,120})",
                fields={"error": "config_refused"}),
    LogTemplate("lcp.start.weights", "start_error", "failed to load model", r"(?:error|llama_model_load\w*|load_model|common_init_\w+): (?P<text>failed to load model[^\n]{0,160})",
                fields={"error": "weights"}),
)  # fmt: skip


# ---------------------------------------------------------------- configuration

_LONG: Mapping[str, str] = {
    "c": "ctx_size", "np": "parallel", "b": "batch_size", "ub": "ubatch_size", "ctk": "cache_type_k", "ctv": "cache_type_v",
    "ngl": "n_gpu_layers", "kvu": "kv_unified", "m": "model", "fa": "flash_attn", "cram": "cache_ram", "hf": "hf_repo",
    "sps": "slot_prompt_similarity", "ctxcp": "ctx_checkpoints", "swa_checkpoints": "ctx_checkpoints", "n": "predict", "n_predict": "predict",
}  # fmt: skip


_OPTION = re.compile(r"--[A-Za-z][\w-]*|-[A-Za-z]+")


def parse_args(text: str) -> Args:
    """``-c 4096 -np 4 --metrics`` -> {'ctx_size': '4096', 'parallel': '4', 'metrics': 'True'}.

    Short options get their long name, dashes become underscores, an option without a value reads ``True`` and
    ``--no-x`` reads ``x = False``. Text without options is read as key=value pairs.
    """
    text = text[: _argtext.LONGEST]
    try:
        words = shlex.split(text)
    except ValueError:  # a quote was cut off
        words = text.split()
    args: Args = {}
    index = 0
    while index < len(words):
        option, equals, value = words[index].partition("=")
        index += 1
        if not _OPTION.fullmatch(option):
            continue
        name = option.lstrip("-").replace("-", "_")
        if not equals:
            value = "True"
            if index < len(words) and not _OPTION.fullmatch(words[index].partition("=")[0]):
                value = words[index]
                index += 1
        if value == "True" and name.startswith("no_"):
            name, value = name[3:], "False"
        name = _LONG.get(name, name)
        if value not in _AUTOMATIC.get(name, ()):
            args.setdefault(name, value)
    return args or _argtext.nested(text)


_AUTOMATIC: Mapping[str, tuple[str, ...]] = {
    "ctx_size": ("0",),
    "parallel": ("-1", "0"),
    "n_gpu_layers": ("-1", "auto"),
}
"""Values that leave the choice to the server: no setting that could be raised or lowered."""


def _never_preempts(version: str | None, args: Args) -> bool | None:
    return True


def _preempt_kind(version: str | None, args: Args) -> str | None:
    return "abort"


def _defaults(version: str | None) -> Mapping[str, str]:
    return {
        "batch_tokens": "2048",
        "chunk": "512",
        "block_tokens": "1",
        "kv_dtype": "f16",
        "prefix": "True",
        "dp": "1",
        "pp": "1",
        "port": "8080",
    }


CANONICAL: Mapping[str, tuple[str, ...]] = {
    "max_running": ("parallel", "total_slots"),
    "pool_tokens": ("ctx_size",),
    "batch_tokens": ("batch_size",),
    "chunk": ("ubatch_size",),
    "kv_dtype": ("cache_type_k",),
    "prefix": ("cache_prompt",),
    "max_model_len": ("n_ctx",),
    "model": ("model", "hf_repo", "model_path"),
    "port": ("port",),
    "lora": ("lora",),
    "offload": ("cache_ram",),
    "spec": ("model_draft", "spec_type"),
}


# ---------------------------------------------------------------- levers

_SLOTS = "n_slots and n_ctx_slot in the start line"

LEVERS: tuple[Lever, ...] = (
    Lever(
        "sched.max_running", "-np N", default="auto: 4 with a unified pool", setting="parallel",
        effect="Fewer requests share the pool; without a unified pool each also gets a larger part of -c.",
        cost="More requests wait for a slot.", next_limit="requests that wait for a slot (requests_deferred)", verify=_SLOTS,
    ),
    Lever(
        "sched.batch_tokens", "-b N", default="2048", setting="batch_size",
        effect="A prompt is taken in smaller pieces, so generation of other slots is held up for less time.",
        cost="Prompts take longer.", next_limit="prefill throughput", verify="prompt eval time in the timing lines",
    ),
    Lever(
        "sched.max_queue", None,
        instead="the queue has no limit: limit concurrency in the proxy in front, or ask /slots?fail_on_no_slot=1 before sending",
    ),
    Lever("sched.policy", None, instead="first come, first served; order requests in the proxy in front"),
    Lever(
        "admission.free_share", "--kv-unified-per-slot N", default="unset", setting="kv_unified_per_slot",
        values={"up": "context / slots"},
        effect="No slot of a unified pool can take more than N tokens; with N = c / np the pool cannot overflow.",
        cost="One long conversation can no longer use the whole pool.", next_limit="the context of one slot",
        verify="no 'failed to find free space' in the log", since="11000",
    ),
    Lever(
        "admission.free_share", "--no-kv-unified", until="10999", default="unified when -np is auto", setting="kv_unified",
        values={"up": "set"},
        effect="Each slot gets its own c / np tokens, so no slot can take another one's room.",
        cost="A conversation longer than c / np is refused.", next_limit="the context of one slot",
        verify="kv_unified = 'false' in the start line",
    ),
    Lever(
        "admission.full_prompt", None,
        instead="a slot takes its prompt whether the shared pool has room or not; --no-kv-unified guarantees each slot its part",
    ),
    Lever(
        "admission.reserve_output", None,
        instead="nothing is reserved for the output in a unified pool; --no-kv-unified reserves c / np for each slot",
    ),
    Lever(
        "victim.order", None,
        instead="there is no victim: when the pool overflows all active requests fail together. Avoid the overflow with "
        "--no-kv-unified, a larger -c or a smaller -np",
    ),
    Lever("victim.protect", None, instead="no request can be protected; give sessions that matter their own server or slot (id_slot)"),
    Lever("victim.cooldown", None, instead="none: a client that retries at once is admitted at once; let clients wait before a retry"),
    Lever(
        "kv.pool_share", "--fit-target MIB", since="7500", default="1024", setting="fit_target", margin=True,
        values={"up": "1024 and what was short"},
        not_for={
            "up": "the pool is -c tokens, however much is free: a smaller cache type (-ctk, -ctv) or fewer layers on the device (-ngl) "
            "make room for it",
        },
        effect="What is not set by hand (-c, -ngl) is reduced until this much memory stays free.",
        cost="A smaller context or layers on the CPU.", next_limit="the context, or CPU speed",
        verify="n_ctx of the start lines (it can be less than asked for)",
    ),
    Lever(
        "kv.pool_share", None, until="7499",
        instead="there is no share: the pool follows -c, and -ngl decides how many layers lie on the device",
    ),
    Lever(
        "kv.pool_bytes", "-c N", default="from the model (0)", setting="ctx_size",
        effect="N tokens for all slots together; with split slots each gets N / np.",
        cost="Memory grows with N.", next_limit="device memory", verify=_SLOTS,
    ),
    Lever(
        "kv.dtype", "-ctk q8_0 -ctv q8_0", default="f16", setting="cache_type_k",
        effect="About half the bytes per token.", cost="Some accuracy; a quantised V needs flash attention.",
        next_limit="speed of dequantisation", verify="K (q8_0) and V (q8_0) in the llama_kv_cache line (--verbose)",
    ),
    Lever("kv.block_tokens", None, instead="cells are single tokens: nothing is lost to pages"),
    Lever(
        "kv.offload_bytes", "--cache-ram MIB", default="8192", setting="cache_ram",
        effect="Prompts of idle slots are kept in host memory and loaded back.",
        cost="Host memory.", next_limit="host memory", verify="'prompt cache update' lines without 'removing oldest entry'",
    ),
    Lever(
        "prefix.enable", "--cache-prompt (cache_prompt in the request)", default="on", setting="cache_prompt",
        effect="A slot keeps its last prompt and computes only what differs.",
        cost="None.", next_limit="number of slots", verify="cached n_tokens above 0 in the log",
    ),
    Lever(
        "mem.max_model_len", "-c N", default="from the model", setting="ctx_size",
        values={"up": "the longest request times the slots (that length alone with --kv-unified)"},
        effect="The context of one slot is -c with a unified pool and -c / -np otherwise.",
        cost="Memory grows with N.", next_limit="device memory", verify="n_ctx_slot in the start line",
    ),
    Lever(
        "mem.device_layers", "-ngl N", default="auto (0 in builds before 2026)", setting="n_gpu_layers",
        values={"up": "as many as fit, best all (99 in builds before 2026)"},
        effect="More layers, and their part of the cache, are computed on the device.", cost="Device memory.",
        next_limit="device memory", verify="'offloaded N/N layers to GPU' at start",
    ),
    Lever(
        "prefix.states", "--swa-full, or --ctx-checkpoints N", since="6700", default="off, 32", setting="ctx_checkpoints",
        values={"on": "the first for a sliding window, the second above 32 for recurrent layers"},
        effect="The window layers keep the whole context, or more states of earlier turns are kept to go on from.",
        cost="The full cache takes the memory of an ordinary one; checkpoints take host memory.", next_limit="memory",
        verify="no 'forcing full prompt re-processing' in the log",
    ),
    Lever(
        "prefix.states", "--swa-full", since="5435", until="6699", default="off", setting="swa_full", values={"on": "set"},
        effect="The window layers keep the whole context.", cost="The memory of an ordinary cache.", next_limit="device memory",
        verify="no 'forcing full prompt re-processing' in the log",
    ),
    Lever("prefix.states", None, until="5434", instead="these builds keep the whole context of window layers as they are"),
    Lever("mem.graphs", "GGML_CUDA_DISABLE_GRAPHS=1", default="graphs are on",
          effect="No CUDA graphs are kept.", cost="Slower generation.", next_limit="launch overhead",
          verify="no 'graphs reused' in the timing lines"),
    Lever(
        "mem.prefill_chunk", "-ub N", default="512", setting="ubatch_size",
        effect="The compute buffer shrinks with N.", cost="Prompts take longer.", next_limit="prefill throughput",
        verify="compute buffer size in the start lines (--verbose)",
    ),
    Lever("mem.lora_slots", "--lora FILE", default="none", setting="lora",
          effect="Adapters lie in memory from the start; fewer files, less memory.", cost="Adapters left out cannot be asked for.",
          next_limit="none", verify="the adapter lines at start"),
    Lever("mem.multimodal_limit", None, instead="limit images per request in the proxy, or start without --mmproj"),
    Lever("mem.logprobs_cap", None, instead="take n_probs out of the requests; the server has no limit"),
    Lever("mem.allocator_conf", None, instead="buffers are allocated once at start; there is no caching allocator to tune"),
    Lever("mem.process_cap", None, instead="limit what is used by -ngl (layers on the device), -c and --fit-target"),
    Lever("topo.tp", "--split-mode row --tensor-split A,B", default="layer", setting="split_mode",
          values={"up": "a part for each device", "down": "one device"},
          effect="Weights and pool are spread over devices.", cost="Devices exchange data.", next_limit="communication",
          verify="a KV buffer size line for each device (--verbose)"),
    Lever("topo.dp", None, instead="start several servers and put a proxy in front"),
    Lever("topo.routing", "id_slot in the request; -sps F", default="0.1", setting="slot_prompt_similarity",
          effect="A conversation comes back to the slot that holds its prefix.", cost="A busy slot makes it wait.",
          next_limit="number of slots", verify="'selected slot by LCP similarity' instead of LRU"),
    Lever("client.max_tokens", "n_predict (max_tokens) in the request; -n N", default="unlimited",
          effect="Outputs end before they fill the pool.", cost="Answers can be cut.", next_limit="answers that end by length",
          verify="n_remain in /slots"),
    *HOST_LEVERS,
    Lever("engine.version", "the build of llama.cpp", default=None,
          effect="Newer builds purge idle slots before they fail active ones, print the context error with numbers and keep "
          "prompts in host memory.", cost="A restart.", next_limit="none", verify="build_info in /props"),
    Lever("observe.metrics", "--metrics", default="off", setting="metrics", effect="Opens /metrics; /slots is open by default.",
          cost="Little.", next_limit="none", verify="GET /metrics answers with llamacpp: series"),
    Lever("observe.request_log", "-lv 5", default="3", setting="verbosity",
          effect="Prints buffer sizes, the memory breakdown, cached tokens and deferred tasks.",
          cost="A large log.", next_limit="disk", verify="'KV buffer size' lines at start"),
    Lever("observe.victims", "--slots and a scrape of /slots every second", default="on", setting="slots",
          effect="n_decoded and n_remain of each slot just before an overflow tell who was near its end.",
          cost="One small request per second.", next_limit="none", verify="GET /slots answers with one entry per slot"),
)  # fmt: skip

_SLOTS_HINT = "save /slots once per second (curl -s URL/slots) and name the files by time"

GAPS: tuple[Gap, ...] = (
    Gap("kv.usage", "llama-server exports no usage of the pool since May 2025", _SLOTS_HINT + ": tokens held / n_ctx"),
    Gap("kv.pool_bytes", "sizes are not printed at the default verbosity", "start once with -lv 5 and send the start of the log"),
    Gap("kv.evictable_share", "what idle slots keep is not exported", _SLOTS_HINT + ": idle slots hold their last prompt"),
    Gap("kv.block", "cells are single tokens and have no idle time", "the 'selected slot by LRU' lines tell how long a slot lay idle (t_last)"),
    Gap("kv.lost_tokens", "there is no accounting of the pool", _SLOTS_HINT),
    Gap("preempt", "llama-server never preempts: an overflow fails every active request", "count 'failed to find free space' and "
        "'Context size has been exceeded' in the log"),
    Gap("recompute", "nothing is computed again by the server; clients that retry do", "compare tokens_predicted_total with the tokens "
        "that clients received"),
    Gap("req.waiting", "the log names deferred requests at debug level only", "start with --metrics and scrape /metrics twice (requests_deferred)"),
    Gap("req.finished", "finished requests are not counted", "send the log: each 'stop processing' line is one"),
    Gap("req.length_share", "finish reasons are not counted", "send the log, or the responses' finish_reason"),
    Gap("req.error_share", "failures are not counted", "send the log: each 'send_error' line is one"),
    Gap("req.rejected", "refusals are not counted", "send the log or the clients' 400 answers"),
    Gap("req.limit_running", "the number of slots is not among the metrics", "send /props (total_slots) or the start of the log"),
    Gap("latency", "there are no latency histograms", "send the log (prompt eval time, eval time) or times measured by a client"),
    Gap("work", "there are no length histograms", "send the log with -lv 5, or a request trace"),
    Gap("tok.gen_rate", "the exported rate is a mean per slot", "take two scrapes with their times: tokens_predicted_total gives the rate"),
    Gap("prefix", "cached tokens are counted in builds from 2026 on", "send the log with -lv 5 (cached n_tokens)"),
    Gap("target.age_s", "the exporter does not report the process start", "send the start of the log"),
    Gap("mem", "memory is printed only with -lv 5", "start once with -lv 5 and send the start of the log, and nvidia-smi"),
    Gap("offload", "the prompt cache in host memory is not exported", "search the log for 'cache size limit reached'"),
    Gap("pd", "llama-server is not disaggregated", "nothing to send"),
)  # fmt: skip

COMMANDS: tuple[Command, ...] = (
    Command("metrics.kv", "curl -s {url}/slots | jq '[.[].n_prompt_tokens] | add'   # tokens held; compare with n_ctx of {url}/props"),
    Command("metrics.preemptions", "grep -cE 'Context size has been exceeded. (off|i) = ' {log}   # each one failed every active request"),
    Command("metrics.queue", "curl -s {url}/metrics | grep -E '^llamacpp:requests_(processing|deferred)'"),
    Command("metrics.latency", "grep -E 'prompt eval time|  eval time' {log} | tail -40"),
    Command("metrics.prefix", "curl -s {url}/metrics | grep -E '^llamacpp:prompt_tokens(_cached)?_total'"),
    Command("log.oom", "grep -nE 'cudaMalloc failed|failed to allocate|failed to find free space|Context size has been exceeded' {log}"),
    Command("log.start", "grep -nE 'n_slots|n_ctx|KV buffer size|model buffer size|compute buffer size|listening on' {log}"),
    Command("log.stats", "grep -E 'stop processing|send_error|selected slot|purging slot|new prompt' {log} | tail -50"),
    Command("log.preemptions", "grep -nE 'failed to find free space|send_error|purging slot' {log}"),
    Command("observe.metrics", "llama-server ... --metrics"),
    Command("observe.request_log", "llama-server ... -lv 5"),
    Command("observe.victims", "while sleep 1; do curl -s {url}/slots > slots_$(date +%s).json; done"),
    Command("state.config", "curl -s {url}/props | jq '.total_slots, .default_generation_settings.n_ctx, .build_info'"),
)  # fmt: skip

ENGINE = Engine(
    name="llamacpp",
    title="llama.cpp",
    metric_prefixes=("llamacpp:",),
    log_markers=(
        "slot launch_slot_: ",
        "slot update_slots: ",
        "slot get_availabl: ",
        "slot print_timing: ",
        "slot      release: ",
        "slot   operator(): ",
        "srv    load_model: ",
        "srv    send_error: ",
        "srv  update_slots: ",
        "srv        decode: ",
        "srv  llama_server: ",
        "llama_kv_cache",
        "llama_model_loader: ",
        "llama_context: ",
        "exceeds the available context size",
        "update_slots : ",
    ),
    process_markers=("llama-server", "llama_server", "ramalama"),
    default_port=8080,
    endpoints=(
        Endpoint("/metrics", "exposition"),
        Endpoint("/slots", "slots"),
        Endpoint("/props", "props", once=True),
    ),
    series=SERIES,
    templates=TEMPLATES,
    levers=LEVERS,
    gaps=GAPS,
    commands=COMMANDS,
    rank_labels=(),
    usage_counts_reusable=True,
    preempt_kind=_preempt_kind,
    never_preempts=_never_preempts,
    reserves_output=lambda version, args: False,
    parse_args=parse_args,
    canonical_args=CANONICAL,
    defaults=_defaults,
    forks=("ik_llama.cpp", "ramalama", "llamafile", "koboldcpp"),
    promql=COMMON_PROMQL,
)
