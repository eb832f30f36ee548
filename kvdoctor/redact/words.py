"""What may be written down: words and names that stand in the engines' own tables and in vendors' manuals, nothing else.

Everything here is an allow-list. A word that is in none of them leaves as a keyed hash (equal words stay equal) or not at
all, so a new kind of secret needs no new pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from kvdoctor.engines._start_logs import TEMPLATES as COMMON_REFUSALS
from kvdoctor.engines.base import CANONICAL_SETTINGS, COMMON_SERIES, engines
from kvdoctor.parse.serverlog import GENERIC, LogTemplate


def known(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


_VALUES = known(
    # types and quantisation
    "auto float float16 float32 bfloat16 half fp16 fp32 fp8 bf16 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla fp4 fp4_e2m1 nvfp4 "
    "mxfp4 mxfp8 int8 int4 w8a8 w8a8_int8 w8a8_fp8 w4a16 w4a8 awq awq_marlin gptq gptq_marlin marlin bitsandbytes bnb gguf "
    "compressed-tensors modelopt modelopt_fp4 modelopt_fp8 fbgemm_fp8 experts_int8 deepspeedfp torchao quark eetq exl2 qoq "
    "petit_nvfp4 f16 f32 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k_m q5_k_m q6_k iq4_nl turbomind w4afp8 "
    # order of the queue, victims, reservation
    "fcfs priority lpm fcfs_lpm dfs-weight lof random fifo sjf lru lfu slru recompute swap guaranteed_no_evict "
    "max_utilization static_batch guaranteed-no-evict max-utilization static-batch round-robin round_robin roundrobin "
    "least-loaded least_loaded least-request least_requests least-requests power-of-two power_of_two kv-aware kv_aware "
    "cache-aware cache_aware prefix-aware prefix_aware random_choice shortest_queue shortest-queue minimum_tokens hash "
    "consistent_hash session sticky follow_bootstrap_room stock youngest oldest watermark ceiling newest none "
    # backends and modes
    "mp ray uni external_launcher flash_attn flash-attn flashattn fa2 fa3 fa4 flashinfer triton torch_native torch xformers "
    "flex_attention flex flashmla cutlass_mla trtllm_mha trtllm_mla trtllm cutlass aiter sdpa paged eager cuda hip rocm cpu "
    "xpu tpu npu hpu neuron gpu generate runner pooling draft spawn fork pytorch tensorrt pt eagle eagle3 medusa mtp ngram "
    "nextn standalone lookahead draft_model mlp_speculator prefill decode both null kv_producer kv_consumer kv_both nixl "
    "mooncake lmcache write_back write_through write_through_selective balanced layer_first page_first layout hybrid full "
    "piecewise full_and_piecewise full_decode_only yes no on off true false enabled disabled basic advanced local remote "
    "nixlconnector lmcacheconnectorv1 mooncakeconnector offloadingconnector sharedstorageconnector multiconnector "
    # how requests end, and what series are split by
    "stop length abort error eos_token stop_sequence tool_calls repetition cancelled total other capacity deferred input "
    "output cached local_compute external_kv_transfer local_cache_hit device host dropped_cpu_full success failed timeout "
    "waiting_to_start in_progress completed_waiting prefill_forward prefill_waiting decode_forward weights kv graph used free "
    "max fraction tokens_per context generation scheduled active paused paused_requests "
    # how device memory is named
    "primary secondary swa mamba gpu0 target k v"
)

_ERRORS = known(
    "error errors exception traceback failed failure fatal out of memory cuda hip device host kernel illegal "
    "access address invalid argument assert assertion triggered launch unspecified timeout timed nccl watchdog "
    "ecc uncorrectable misaligned unknown internal driver shutting down runtimeerror valueerror typeerror "
    "keyerror indexerror oserror assertionerror attributeerror notimplementederror importerror "
    "modulenotfounderror filenotfounderror permissionerror connectionerror timeouterror memoryerror "
    "recursionerror enginedeaderror asyncenginedeaderror outofmemoryerror acceleratorerror distbackenderror "
    "distneterror validationerror mqenginedeaderror keyboardinterrupt cancellederror brokenpipeerror eoferror "
    "connectionreseterror torch with for the a an is was not in on at to from and or by be has"
)

SETTINGS_BY_MODEL = frozenset(
    {
        "model",
        "model_path",
        "model_tag",
        "model_id",
        "model_name",
        "served_model_name",
        "alias",
        "hf_repo",
    }
)
"""Settings whose value names a model: they join a log to a server, so the base name stays."""

NEVER = known(
    "host hostname ip nnodes node_rank node dist_init_addr master_addr master_port random_seed seed api_key "
    "api_keys admin_api_key hf_token token nccl_port base_gpu_id tokenizer tokenizer_path tokenizer_name revision download_dir ssl_keyfile "
    "ssl_certfile"
)
"""Settings that say who and where, never how it runs: they are dropped, not even hashed."""


_IN_WORDS = ("kv_dtype", "weight_dtype", "policy", "reserve_policy", "preempt_mode", "connector", "scheduler", "spec")


@cache
def in_words() -> frozenset[str]:
    """Settings whose values are words; a long number there is none of theirs."""
    return frozenset(_IN_WORDS) | {
        w for e in engines().values() for n in _IN_WORDS for w in e.canonical_args.get(n, ())
    }


@cache
def settings() -> frozenset[str]:
    """Names of settings whose plain values may stay: those the engine tables know, by any name."""
    names = {
        "generation", "version", "speculative_config", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens",
        "kv_cache_max_concurrency", "sliding_window", "port", "disaggregation_mode", "disaggregation_decode_retraction_backup", *CANONICAL_SETTINGS,
    }  # fmt: skip
    for engine in engines().values():
        for wire in engine.canonical_args.values():
            names.update(wire)
        names.update(lever.setting for lever in engine.levers if lever.setting)
        names.update(lever.refused_with for lever in engine.levers if lever.refused_with)
        for lever in engine.levers:
            names.update(
                word.lstrip("-").replace("-", "_") for word in re.findall(r"--[a-z][a-z-]{1,60}", lever.flag or "")
            )
    return frozenset(names) - NEVER - SETTINGS_BY_MODEL


@cache
def values() -> frozenset[str]:
    """Words a setting, a label or a field may have as its value, in lower case."""
    found = set(_VALUES)
    for engine in engines().values():
        for version in (None, "0.5.0", "0.8.0", "0.12.0", "0.32.0", "1.0.0", "2.0.0"):
            found.update(v.lower() for v in engine.defaults(version).values())
        for series in engine.series:
            for name in series.names:
                found.update(v.lower() for v in name.where.values())
    return frozenset(word for word in found if re.fullmatch(r"[a-z0-9][a-z0-9_.+-]{0,40}", word))


@cache
def metric_names() -> frozenset[str]:
    """Every name of a series in the engine tables, with what a histogram, summary or counter adds to it."""
    found: set[str] = set()
    for series in (*COMMON_SERIES, *(s for e in engines().values() for s in e.series)):
        for name in series.names:
            found.add(name.name)
            if name.kind in ("histogram", "summary"):
                found.update(name.name + suffix for suffix in ("_bucket", "_sum", "_count"))
    return frozenset(found)


@cache
def info_names() -> frozenset[str]:
    """Names of series that carry the configuration in their labels."""
    every = (s for e in engines().values() for s in e.series)
    return frozenset(name.name for series in every for name in series.names if name.kind == "info")


PLACES = frozenset({"instance", "pod", "job", "namespace", "hostname", "Hostname"})
"""Labels that tell servers apart: hashed, so that two stay two."""

MODELS = frozenset({"model_name", "model", "model_id"})
"""Labels that name a model."""


@cache
def labels() -> frozenset[str]:
    """Labels whose values may stay where they are numbers or known words."""
    found = {"le", "quantile", "tp_rank", "pp_rank", "moe_ep_rank", "pid", *MODELS, *PLACES}
    for engine in engines().values():
        found.update(engine.rank_labels)
        for series in engine.series:
            for name in series.names:
                found.update(name.where)
                if name.by:
                    found.add(name.by)
    return frozenset(found)


UTILISATION = (
    "gpu_util", "gpu-util", "gpuutil", "utilization_gpu", "utilization.gpu", "gpu_utilization", "gr_engine_active",
    "nvidia_gpu_duty_cycle", "duty_cycle", "sm_active",
)  # fmt: skip
"""How autoscalers name device utilisation."""

PROCESS_MARKS = (
    "vllm serve", "vllm", "sglang", "enginecore", "worker_tp", "trtllm-serve", "trtllm", "text-generation-launcher",
    "text-generation", "llama-server", "llama", "lmdeploy", "tritonserver", "triton", "ray::", "ray start", "raylet",
    "ollama", "api_server", "apiserver", "launch_server", "serve", "api", "python",
)  # fmt: skip
"""Pieces of a command line that tell a server, a worker and a leftover apart, longest first where one holds another."""

_PROGRAMS = known(
    "vllm sglang serve start runner trtllm-serve trtllm-build tritonserver text-generation-launcher "
    "text-generation-server text-generation-router llama-server llama-cli lmdeploy api_server ollama ray raylet "
    "gcs_server dashboard uvicorn gunicorn torchrun mpirun orted multiprocessing spawn_main resource_tracker bash "
    "sh zsh sshd systemd init dockerd containerd containerd-shim kubelet xorg gnome-shell nvidia-smi "
    "nvidia-persistenced nv-hostengine dcgm-exporter node_exporter prometheus jupyter-lab jupyter-notebook "
    "ipython node java chrome firefox code tmux screen sleep tini dumb-init vllm.entrypoints.openai.api_server "
    "vllm.entrypoints.api_server vllm.entrypoints.cli.main sglang.launch_server sglang.srt.launch_server "
    "lmdeploy.serve tensorrt_llm ps grep dmesg journalctl kworker ksoftirqd kswapd0 migration -m -c -u -eo "
    "-bash -sh -zsh dash ash ksh fish -fish login conmon docker-init catatonit runsv slurmstepd supervisord "
    "ray::idle ray::rayworkerwrapper ray::servereplica vllm::apiserver"
)
_PROGRAM = re.compile(
    r"python[0-9.]{0,6}|VLLM::[A-Za-z]{1,24}(?:_[A-Z]{2}[0-9]{1,4}){0,4}|sglang::[a-z_]{1,24}(?:_[A-Z]{2}[0-9]{1,4}){0,4}"
)


def program(word: str) -> str | None:
    """A word of a command line that may stay: a program's base name, an engine's module, a worker's title."""
    base = word.rsplit("/", 1)[-1].rstrip(":")
    return base if base.lower() in _PROGRAMS or _PROGRAM.fullmatch(base) else None


_GROUP = re.compile(r"\(\?P<(\w+)>")
_OPEN_CLASS = re.compile(r"\[\^|\\S|\\w|\\D|\\W|(?<!\\)\.|\[[^\]]*(?:A-Za-z|a-z)")


@cache
def _open_groups(pattern: str) -> frozenset[str]:
    """Named groups of a pattern that can match text the pattern does not spell out."""
    found: set[str] = set()
    for match in _GROUP.finditer(pattern):
        depth, at = 1, match.end()
        while at < len(pattern) and depth:
            char = pattern[at]
            if char == "\\":
                at += 2
                continue
            if char == "[":
                end = pattern.find("]", at + 2)
                at = end + 1 if end > 0 else at + 1
                continue
            depth += (char == "(") - (char == ")")
            at += 1
        if _OPEN_CLASS.search(pattern[match.end() : at - 1]):
            found.add(match.group(1))
    return frozenset(found)


@cache
def templates() -> Mapping[str, LogTemplate]:
    """Every template of the engine tables, by id (equal ids of two tables are one and the same message)."""
    found = {t.id: t for t in (*GENERIC, *COMMON_REFUSALS)}
    for engine in engines().values():
        found.update((t.id, t) for t in engine.templates)
    return found


def is_closed(template: str, field: str) -> bool:
    """Whether a field's text is spelt out by its template: then it can hold nothing of the user's."""
    known = templates().get(template)
    return known is not None and f"(?P<{field}>" in known.pattern and field not in _open_groups(known.pattern)


@cache
def constants() -> frozenset[str]:
    """Texts that the tables themselves put into events."""
    return frozenset(v for t in templates().values() for v in t.fields.values() if isinstance(v, str))


@cache
def _vocabulary(template: str) -> frozenset[str]:
    known = templates().get(template)
    return frozenset(w.lower() for w in re.findall(r"[A-Za-z_]{2,}", known.pattern)) | _ERRORS if known else _ERRORS


def phrase(template: str, text: str) -> str:
    """Free text with only the words of its own template and of known errors; runs of anything else become ``*``."""
    return _only(re.findall(r"[A-Za-z_]+|[^A-Za-z_]+", text[:400]), _vocabulary(template))


def _only(pieces: Iterable[str], known: frozenset[str]) -> str:
    out: list[str] = []
    for piece in pieces:
        if piece.isspace():
            continue
        word = piece if piece.lower() in known else "*"
        if word != "*" or out[-1:] != ["*"]:
            out.append(word)
    return " ".join(out)
