"""The vLLM table: names by version, every log message that decides something, flags by version, version traps."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.engines import _start_logs, base, lmcache, vllm
from kvdoctor.engines.base import COMMON_COMMANDS, gap_for, in_range, lever_for, version_key
from kvdoctor.facts import FACTS, LEVERS
from kvdoctor.parse.serverlog import EVENTS, Matcher

GIB = 2.0**30
VERSIONS = (
    "0.4.0", "0.4.1", "0.4.3", "0.5.4", "0.5.5", "0.6.2", "0.6.4", "0.6.6", "0.7.3", "0.8.2", "0.8.5", "0.9.2", "0.10.0",
    "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.12.0", "0.14.0", "0.16.0", "0.19.0", "0.20.0", "0.23.0", "0.24.0", "0.28.0",
    "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
ENGINES = (vllm.ENGINE, lmcache.ENGINE)
_MATCHER = Matcher([*vllm.ENGINE.templates, *lmcache.ENGINE.templates, *_start_logs.TEMPLATES])


def events(line: str) -> list[tuple[str, str, dict[str, object]]]:
    return _MATCHER.match(line)


def one(line: str, template: str) -> dict[str, object]:
    """Fields of ``template`` in ``line``, which must hold it exactly once."""
    found = [fields for name, _, fields in events(line) if name == template]
    assert len(found) == 1, events(line)
    return found[0]


def wire(role: str, exported: set[str], version: str | None) -> str | None:
    """The name a role is read from: the first that is exported, in range and no trap."""
    for series in vllm.ENGINE.series:
        if series.role == role:
            for name in series.names:
                if not name.ignore and in_range(version, name.since, name.until) is not False and name.name in exported:
                    return name.name
    return None


# ---------------------------------------------------------------- the form


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_only_known_words_are_used(engine: base.Engine) -> None:
    assert {series.role for series in engine.series} <= base.ROLES.keys()
    assert {template.event for template in engine.templates} <= EVENTS.keys()
    assert {lever.lever for lever in engine.levers} <= LEVERS.keys()
    assert engine.canonical_args.keys() <= base.CANONICAL_SETTINGS.keys()
    for gap in engine.gaps:
        assert any(f == gap.fact or f.startswith((gap.fact + ".", gap.fact + "_")) for f in FACTS), gap.fact


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
def test_each_role_and_each_template_is_defined_once(engine: base.Engine) -> None:
    roles = [series.role for series in engine.series]
    assert sorted(set(roles)) == sorted(roles)
    ids = [template.id for template in engine.templates]
    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_lever_answers_for_every_version(version: str) -> None:
    for name in LEVERS:
        lever = lever_for(vllm.ENGINE, name, version)
        assert lever is not None, (name, version)
        if lever.flag is None:
            assert lever.instead
        else:
            assert lever.effect
            assert lever.cost
            assert lever.verify


@pytest.mark.parametrize("version", VERSIONS)
def test_ranges_of_a_lever_do_not_overlap(version: str) -> None:
    for name in LEVERS:
        holding = [e for e in vllm.ENGINE.levers if e.lever == name and in_range(version, e.since, e.until)]
        assert len(holding) == 1, (name, version)


def test_no_command_has_a_brace_that_is_no_placeholder() -> None:
    for command in (*vllm.ENGINE.commands, *lmcache.ENGINE.commands, *COMMON_COMMANDS):
        assert set(re.findall(r"\{[^}]*\}", command.text)) <= {"{url}", "{log}", "{pid}"}, command.name


# ---------------------------------------------------------------- series

V0_066 = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_swapped", "vllm:gpu_cache_usage_perc",
    "vllm:cpu_cache_usage_perc", "vllm:gpu_prefix_cache_hit_rate", "vllm:num_preemptions_total", "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds", "vllm:time_per_output_token_seconds",
    "vllm:request_queue_time_seconds", "vllm:time_in_queue_requests", "vllm:request_success_total", "vllm:cache_config_info",
    "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
}  # fmt: skip
V1_0102 = {
    "vllm:num_requests_running", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries_total", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
    "vllm:num_preemptions_total",
}  # fmt: skip
V1_032 = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total", "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total",
    "vllm:request_success_total", "vllm:admission_rejections_total", "vllm:request_num_preemptions", "vllm:cache_config_info",
    "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds", "vllm:estimated_flops_per_gpu_total",
    "vllm:kv_block_idle_before_evict_seconds", "vllm:kv_offload_cpu_cache_usage_perc", "vllm:kv_offload_allocation_failure_total",
}  # fmt: skip


@pytest.mark.parametrize(
    ("role", "exported", "version", "name"),
    [
        ("kv.usage", V0_066, "0.6.6", "vllm:gpu_cache_usage_perc"),
        ("kv.usage", V1_0102, "0.10.2", "vllm:kv_cache_usage_perc"),
        ("kv.usage", V1_032, "0.32.0", "vllm:kv_cache_usage_perc"),
        ("kv.usage", V1_032, None, "vllm:kv_cache_usage_perc"),
        ("req.swapped", V0_066, "0.6.6", "vllm:num_requests_swapped"),
        ("req.swapped", V1_032, "0.32.0", None),
        ("prefix.hit_rate", V0_066, "0.6.6", "vllm:gpu_prefix_cache_hit_rate"),
        ("prefix.queries", V1_0102, "0.10.2", "vllm:prefix_cache_queries_total"),
        ("latency.itl", V0_066, "0.6.6", "vllm:time_per_output_token_seconds"),
        ("latency.itl", V1_0102, "0.10.2", "vllm:inter_token_latency_seconds"),
        ("latency.queue", V0_066, "0.6.6", "vllm:request_queue_time_seconds"),
        ("preempt.total", V0_066, "0.6.6", "vllm:num_preemptions_total"),
        ("preempt.per_request", V1_032, "0.32.0", "vllm:request_num_preemptions"),
        ("tok.prefill_effective", V1_032, "0.32.0", "vllm:prompt_tokens_by_source_total"),
        ("req.waiting_reason", V1_032, "0.32.0", "vllm:num_requests_waiting_by_reason"),
        ("kv.block_idle", V1_032, "0.32.0", "vllm:kv_block_idle_before_evict_seconds"),
        ("offload.failures", V1_032, "0.32.0", "vllm:kv_offload_allocation_failure_total"),
        ("observer.recomputed", {"kvdoctor:recomputed_tokens_total"}, "0.32.0", "kvdoctor:recomputed_tokens_total"),
    ],
)
def test_newest_exported_name_is_read(role: str, exported: set[str], version: str | None, name: str | None) -> None:
    assert wire(role, exported, version) == name


def test_the_recomputed_counter_of_016_to_019_is_never_read() -> None:
    assert wire("observer.recomputed", {"vllm:prompt_tokens_recomputed_total"}, "0.18.0") is None


def test_mean_time_per_token_of_a_request_is_no_inter_token_latency() -> None:
    assert wire("latency.itl", {"vllm:request_time_per_output_token_seconds"}, "0.14.0") is None


def test_pinned_share_of_the_offload_tier_is_not_its_fullness() -> None:
    assert wire("offload.usage", V1_032, "0.32.0") is None


@pytest.mark.parametrize(
    "name", ["ray_vllm_num_preemptions_total", "ray_vllm_num_preemptions", "ray_vllm:num_preemptions_total"]
)
def test_ray_names_are_the_same_series(name: str) -> None:
    assert wire("preempt.total", {name}, None) == name


def test_usage_is_a_ratio_whatever_its_name_says() -> None:
    usage = next(series for series in vllm.ENGINE.series if series.role == "kv.usage")
    assert {name.scale for name in usage.names} == {1.0}


# ---------------------------------------------------------------- log: start-up

PREFIXES = (
    "",
    "INFO 04-11 08:15:02 worker.py:267] ",
    "(EngineCore_DP1 pid=77) INFO 04-11 08:15:02 [gpu_worker.py:298] ",
    "(RayWorkerWrapper pid=9, ip=10.1.2.3) INFO 04-11 08:15:02 [worker.py:1] ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("line", "weights"),
    [
        ("Loading model weights took 7.5000 GB", 7.5),
        ("Model loading took 7.5000 GB and 12.25 seconds", 7.5),
        ("Model loading took 7.5000 GiB and 12.25 seconds", 7.5),
        ("Model loading took 7.50 GiB memory and 12.25 seconds", 7.5),
    ],
)
def test_weights_are_gib_whatever_the_unit_printed(prefix: str, line: str, weights: float) -> None:
    (found,) = events(prefix + line)
    assert found[1:] == ("memory", {"weights": weights * GIB})


def test_v0_budget_lines() -> None:
    budget = one(
        "the current vLLM instance can use total_gpu_memory (39.39GiB) x gpu_memory_utilization (0.90) = 35.45GiB",
        "profile_budget_v0",
    )
    assert budget == {"total": pytest.approx(39.39 * GIB), "fraction": 0.90, "budget": pytest.approx(35.45 * GIB)}
    parts = one(
        "model weights take 12.55GiB; non_torch_memory takes -0.02GiB; PyTorch activation peak memory takes 2.00GiB; the rest "
        "of the memory reserved for KV Cache is 20.92GiB.",
        "profile_v0",
    )
    assert parts["weights"] == pytest.approx(12.55 * GIB)
    assert parts["non_torch"] == pytest.approx(-0.02 * GIB)
    assert parts["activations"] == pytest.approx(2.0 * GIB)
    assert parts["kv_pool"] == pytest.approx(20.92 * GIB)


def test_profile_of_064_with_its_misspelt_unit() -> None:
    found = one(
        "Memory profiling results: total_gpu_memory=23.60GiB initial_memory_usage=5.10GiB peak_torch_memory=6.00GiB "
        "memory_usage_post_profile=5.20Gib non_torch_memory=0.25GiB kv_cache_size=14.99GiB gpu_memory_utilization=0.90",
        "profile_064",
    )
    assert found["peak_torch"] == pytest.approx(6.0 * GIB)
    assert found["non_torch"] == pytest.approx(0.25 * GIB)
    assert found["kv_pool"] == pytest.approx(14.99 * GIB)


@pytest.mark.parametrize(
    ("middle", "tail", "expect"),
    [
        (
            "8.00 GiB for weight, 1.50 GiB for peak activation, 0.25 GiB for non-torch memory, and 0.75 GiB for CUDAGraph "
            "memory.",
            "Current kv cache memory in use is 21474836480 bytes.",
            {"weights": 8.0, "non_torch": 0.25, "activations": 1.5, "graphs": 0.75, "kv_pool": 20.0},
        ),
        (
            "8.25 GiB for consumed memory (weights + non-torch), 1.50 GiB for peak activation, and 0.75 GiB for CUDAGraph "
            "memory.",
            "Current kv cache memory in use is 20.00 GiB.",
            {"consumed": 8.25, "activations": 1.5, "graphs": 0.75, "kv_pool": 20.0},
        ),
    ],
    ids=["0.10.2 to 0.26", "0.27 and later"],
)
def test_whole_budget_in_one_line(middle: str, tail: str, expect: dict[str, float]) -> None:
    found = one(
        "Free memory on device (38.90/39.39 GiB) on startup. Desired GPU memory utilization is (0.92, 36.24 GiB). Actual usage "
        f"is {middle} Replace gpu_memory_utilization config with `--kv-cache-memory=1` (0.00 GiB). {tail}",
        "actual_usage",
    )
    for name, gib in expect.items():
        assert found[name] == pytest.approx(gib * GIB), name
    assert found["fraction"] == 0.92
    assert found["free"] == pytest.approx(38.90 * GIB)
    assert {"weights", "consumed"} & found.keys() == {"weights", "consumed"} & expect.keys()


@pytest.mark.parametrize(
    ("line", "template", "fields"),
    [
        ("Available KV cache memory: 11.50 GiB", "available_kv", {"available_bytes": 11.5 * GIB}),
        ("Available KV cache memory: -1.25 GiB", "available_kv", {"available_bytes": -1.25 * GIB}),
        (
            "Initial free memory 38.50 GiB, reserved 30.00GiB memory for KV Cache as specified by kv_cache_memory_bytes config "
            "and skipped memory profiling.",
            "kv_bytes_fixed",
            {"free": 38.5 * GIB, "kv_pool": 30.0 * GIB},
        ),
        (
            "Explicitly set (2.0/31.5) GiB for KV cache on node 1.",
            "cpu_kv_set",
            {"available_bytes": 2.0 * GIB, "host": True},
        ),
        ("# GPU blocks: 1201, # CPU blocks: 640", "gpu_blocks", {"blocks": 1201.0, "cpu_blocks": 640.0}),
        ("# GPU blocks: 1201", "gpu_blocks", {"blocks": 1201.0}),
        (
            "# cuda blocks: 1201, # CPU blocks: 640",
            "device_blocks",
            {"device": "cuda", "blocks": 1201.0, "cpu_blocks": 640.0},
        ),
        (
            "# CPU blocks: 3506, # CPU blocks: 273",
            "device_blocks",
            {"device": "CPU", "blocks": 3506.0, "cpu_blocks": 273.0},
        ),
        ("# CPU blocks: 3506", "cpu_blocks", {"blocks": 3506.0, "host": True}),
        ("GPU KV cache size: 1,234,560 tokens", "kv_tokens", {"device": "GPU", "tokens": 1234560.0}),
        ("NPU KV cache size: 98,304 tokens", "kv_tokens", {"device": "NPU", "tokens": 98304.0}),
        (
            "Maximum concurrency for 32768 tokens per request: 12.50x",
            "max_concurrency",
            {"length": 32768.0, "ratio": 12.5},
        ),
        (
            "Overriding num_gpu_blocks=900 with num_gpu_blocks_override=64",
            "blocks_override",
            {"profiled_blocks": 900.0, "blocks": 64.0},
        ),
        (
            "Engine 001: vllm cache_config_info with initialization after num_gpu_blocks is: 5120",
            "cache_info_blocks",
            {"blocks": 5120.0},
        ),
        ("Graph capturing finished in 17 secs, took 0.50 GiB", "graphs_end", {"seconds": 17.0, "graphs": 0.5 * GIB}),
        ("Graph capturing finished in 17 secs, took -0.25 GiB", "graphs_end", {"seconds": 17.0, "graphs": -0.25 * GIB}),
        ("Graph capturing finished in 17 secs.", "graphs_end", {"seconds": 17.0}),
        (
            "CUDA graph pool memory: 0.75 GiB (actual), 0.80 GiB (estimated), difference: 0.05 GiB (6.7%).",
            "graph_pool",
            {"graphs": 0.75 * GIB},
        ),
        (
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9000 is "
            "equivalent to --gpu-memory-utilization=0.8850 without CUDA graph memory profiling.",
            "graph_profiling",
            {"fraction": 0.9, "fraction_equivalent": 0.885},
        ),
        (
            "Free memory grew by 2.00 GiB during profiling (initial 40.00 GiB, current 42.00 GiB). Sizing the KV cache from the "
            "12.00 GiB torch reserved instead of the profiling difference.",
            "free_grew",
            {"free_initial": 40.0 * GIB, "free": 42.0 * GIB},
        ),
        (
            "Chunked prefill is enabled with max_num_batched_tokens=4096.",
            "chunked",
            {"text": "max_num_batched_tokens=4096"},
        ),
        ("Using max model len 20480", "max_len", {"text": "max_model_len=20480"}),
        (
            "Auto-fit max_model_len: reduced from 262144 to 30720 to fit in available GPU memory (3.10 GiB available for KV "
            "cache)",
            "autofit",
            {"text": "max_model_len=30720"},
        ),
        ("Hybrid KV cache manager is disabled for this hybrid model, This means ...", "hybrid_off", {}),
        (
            "The context length (65536) of the model is too short to hold the multi-modal embeddings in the worst case (98304 "
            "tokens in total, out of which {'image': 81920} are reserved for multi-modal embeddings).",
            "multimodal_profile",
            {"limit": 65536.0, "tokens": 98304.0},
        ),
        (
            "The sequence length (4096) is smaller than the pre-defined wosrt-case total number of multimodal tokens (24576).",
            "multimodal_worst_case",
            {"limit": 4096.0, "tokens": 24576.0},
        ),
        (
            "init engine (profile, create kv cache, warmup model) took 21.07 seconds",
            "init_end",
            {"what": "init", "begin": False},
        ),
    ],
)
def test_start_lines(line: str, template: str, fields: dict[str, object]) -> None:
    found = one("(EngineCore pid=5) INFO 06-02 01:02:03 [x.py:1] " + line, template)
    assert found == {k: pytest.approx(v) if isinstance(v, float) else v for k, v in fields.items()}


def test_pool_and_concurrency_in_one_line() -> None:
    found = {name: fields for name, _, fields in events("CPU KV cache size: 8,192 tokens, Maximum concurrency for 2,048 tokens "
                                                        "per request: 4.00x")}  # fmt: skip
    assert found["kv_tokens"]["tokens"] == 8192.0
    assert found["max_concurrency"] == {"length": 2048.0, "ratio": 4.0}


def test_swap_blocks_of_a_gpu_build_are_not_its_pool() -> None:
    assert [name for name, _, _ in events("# GPU blocks: 229, # CPU blocks: 512")] == ["gpu_blocks"]


def test_context_parallel_note_is_no_pool_size() -> None:
    assert not events("Multiplying the GPU KV cache size by the dcp_world_size 4.")


@pytest.mark.parametrize(
    "line",
    [
        "Capturing cudagraphs for decoding. This may lead to unexpected consequences if the model is not static.",
        "Capturing the model for CUDA graphs. This may lead to unexpected consequences if the model is not static.",
        "Capturing CUDA graph shapes:   0%|          | 0/35 [00:00<?, ?it/s]",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/67 [00:00<?, ?it/s]",
    ],
)
def test_graph_capture_begins(line: str) -> None:
    assert [event for _, event, _ in events(line)] == ["graphs_begin"]


@pytest.mark.parametrize(
    "line",
    [
        "INFO:     Application startup complete.",
        "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)",
        "(APIServer pid=3) INFO 06-02 01:02:03 [api_server.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000",
        "(APIServer pid=3) INFO 06-02 01:02:03 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000",
        "(APIServer pid=3) INFO 06-02 01:02:03 [launcher.py:1] Route: /version, Methods: GET",
    ],
)
def test_ready(line: str) -> None:
    assert [event for _, event, _ in events(line)] == ["ready"]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("vLLM API server version 0.9.2", {"part": "api", "version": "0.9.2"}),
        (" ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.33.0", {"part": "api", "version": "0.33.0"}),
        (
            "Initializing an LLM engine (v0.6.3.post1) with config: model='org/m', speculative_config=None",
            {"part": "core", "version": "0.6.3.post1", "model": "org/m"},
        ),
        (
            "Initializing a V0 LLM engine (v0.8.5) with config: model='org/m', speculative_config=None",
            {"part": "core", "version": "0.8.5", "generation": "V0", "model": "org/m"},
        ),
        ("Initializing an LLM engine with config: model='org/m', seed=0)", {"part": "core", "model": "org/m"}),
    ],
)
def test_banner_gives_the_release(line: str, fields: dict[str, object]) -> None:
    banners = [found for _, event, found in events(line) if event == "banner"]
    assert banners == [fields]


# ---------------------------------------------------------------- log: refused starts


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
            "the engine.",
            {"error": "pool_too_small", "text": "No available memory for the cache blocks"},
        ),
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV "
            "cache (5136). Try increasing `gpu_memory_utilization`",
            {"error": "pool_too_small", "tokens_need": 8192.0, "tokens_have": 5136.0},
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (65536), (8.00 GB KV cache is needed, which "
            "is larger than the available KV cache memory (3.00 GB). Try increasing",
            {"error": "pool_too_small", "tokens_need": 65536.0, "need": 8 * GIB, "have": 3 * GIB},
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (65536), (8.00 GiB KV cache is needed, which "
            "is larger than the available KV cache memory (3.00 GiB). Based on the available memory, the estimated maximum "
            "model length is 24560. Try increasing",
            {"error": "pool_too_small", "tokens_need": 65536.0, "need": 8 * GIB, "have": 3 * GIB, "tokens_have": 24560.0},
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (2048), (0.0 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated maximum model "
            "length is 1984.",
            {"error": "pool_too_small", "tokens_need": 2048.0, "tokens_have": 1984.0},
        ),
        (
            "ValueError: Free memory on device (9.50/47.50 GiB) on startup is less than desired GPU memory utilization (0.9, "
            "42.75 GiB). Decrease GPU memory utilization",
            {"error": "free_below_fraction", "free": 9.5 * GIB, "total": 47.5 * GIB, "fraction": 0.9, "need": 42.75 * GIB},
        ),
        (
            "ValueError: Free memory on device cuda:3 (9.50/47.50 GiB) on startup is less than the engine's budget after "
            "excluding external process's weights (0.9, 42.75 GiB).",
            {"error": "free_below_fraction", "free": 9.5 * GIB, "total": 47.5 * GIB, "fraction": 0.9, "need": 42.75 * GIB},
        ),
        (
            "ValueError: Available memory on node 0 (3.00/16.00 GiB) on startup is less than desired CPU memory utilization "
            "(0.5, 8.00 GiB).",
            {
                "error": "free_below_fraction", "host": True, "free": 3 * GIB, "total": 16 * GIB, "fraction": 0.5,
                "need": 8 * GIB,
            },
        ),
        (
            "ValueError: No common block size for 48 (FLASH_ATTN: [MultipleOf(16)]).",
            {"error": "config_refused", "text": "No common block size for 48"},
        ),
        (
            "ValueError: KV connector OffloadingConnector is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
            "unless enable_cumem_allocator is also enabled.",
            {
                "error": "config_refused",
                "text": "KV connector OffloadingConnector is incompatible with "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            },
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            {"error": "config_refused", "text": "1 validation error for ModelConfig"},
        ),
        (
            "ValueError: User-specified max_model_len (9000) is greater than the derived max_model_len "
            "(max_position_embeddings=8192)",
            {
                "error": "config_refused",
                "text": "User-specified max_model_len (9000) is greater than the derived max_model_len",
            },
        ),
        (
            "ValueError: max_num_batched_tokens (512) is smaller than max_model_len (4096).",
            {"error": "config_refused", "text": "max_num_batched_tokens (512) is smaller than max_model_len (4096)"},
        ),
        (
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
            {"error": "config_refused", "text": "Total number of attention heads (28) must be divisible by tensor parallel size"},
        ),
        (
            "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
            {"error": "config_refused", "text": "World size (8) is larger than the number of available"},
        ),
        (
            "api_server.py: error: unrecognized arguments: --watermark 0.05",
            {"error": "config_refused", "text": "error: unrecognized arguments: --watermark 0.05"},
        ),
        (
            "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'int3'",
            {"error": "config_refused", "text": "error: argument --kv-cache-dtype: invalid choice: 'int3'"},
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
            {"error": "config_refused", "text": "Bfloat16 is only supported on GPUs with compute cap"},
        ),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
            {"error": "port_in_use", "text": "address already in use"},
        ),
        (
            "RuntimeError: Cannot find any model weights with `org/m`",
            {"error": "weights", "text": "Cannot find any model weights with"},
        ),
    ],
)  # fmt: skip
def test_refused_starts(line: str, fields: dict[str, object]) -> None:
    found = [got for _, event, got in events("(EngineCore pid=8) ERROR 06-02 01:02:03 [core.py:1] " + line)
             if event == "start_error"]  # fmt: skip
    assert found == [{k: pytest.approx(v) if isinstance(v, float) else v for k, v in fields.items()}]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "Initial free memory 40.00 GiB, current free memory 41.50 GiB.",
            {"free_initial": 40 * GIB, "free": 41.5 * GIB},
        ),
        (
            "Initial free memory 42949672960, current free memory 44560285696.",
            {"free_initial": 40 * GIB, "free": 41.5 * GIB},
        ),
        (
            "Initial used memory 4294967296, currently used memory 2147483648.",
            {"used_initial": 4 * GIB, "used": 2 * GIB},
        ),
        ("This happens when the GPU memory was not properly cleaned up before initializing the vLLM instance.", {}),
    ],
    ids=["free GiB", "free bytes", "used bytes", "no numbers"],
)
def test_memory_race_in_its_forms(text: str, fields: dict[str, float]) -> None:
    assert one(f"AssertionError: Error in memory profiling. {text}", "memory_race") == {
        "error": "memory_race",
        **fields,
    }


@pytest.mark.parametrize("what", ["sampler", "pooler (task=embed)"])
def test_sampler_warm_up(what: str) -> None:
    found = one(
        f"RuntimeError: CUDA out of memory occurred when warming up {what} with 512 dummy requests. Please try lowering "
        "`max_num_seqs`",
        "sampler_warmup",
    )
    assert (found["requests"], found["sampler"]) == (512.0, True)


def test_a_request_that_is_invalid_is_no_refused_start() -> None:
    assert not events("pydantic_core._pydantic_core.ValidationError: 1 validation error for ChatCompletionRequest")


# ---------------------------------------------------------------- log: while serving


def test_v1_stats() -> None:
    found = one(
        "(APIServer pid=3) INFO 06-02 01:02:03 [loggers.py:259] Engine 003: Avg prompt throughput: 812.5 tokens/s, Avg "
        "generation throughput: 96.0 tokens/s, Running: 14 reqs, Waiting: 6 reqs, Deferred: 2 reqs, KV fetch: 3 waiting to "
        "start, 1 in progress, 5 completed waiting, GPU KV cache usage: 87.5%, Prefix cache hit rate: 12.5%, Corrupted: 0 reqs, "
        "External prefix cache hit rate: 25.0%, MM cache hit rate: 50.0%",
        "stats_v1",
    )
    assert found == {
        "engine": 3.0, "prompt_rate": 812.5, "gen_rate": 96.0, "running": 14.0, "waiting": 6.0, "deferred": 2.0,
        "kv_fetch": 4.0, "kv_usage": pytest.approx(0.875), "prefix_hit": pytest.approx(0.125),
        "external_hit": pytest.approx(0.25),
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 3 reqs, Waiting: 4 reqs "
        "GPU KV cache usage: 50.0%.",
        "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 3 reqs, Waiting: 4 "
        "reqs, Max iteration time: 812 ms, Preemptions: 7, NPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%",
    ],
    ids=["0.7.1 without comma", "fork with a field in the middle"],
)
def test_v1_stats_of_other_builds(line: str) -> None:
    found = one(line, "stats_v1")
    assert (found["running"], found["waiting"], found["kv_usage"]) == (3.0, 4.0, pytest.approx(0.5))


def test_aggregated_stats_say_over_how_many_engines_they_average() -> None:
    found = one(
        "8 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 40.0%",
        "stats_v1",
    )
    assert found["aggregated"] == 8.0
    assert "engine" not in found


def test_main_pool_of_a_cpu_build_and_swap_space_of_v0_share_their_words() -> None:
    cpu = one(
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 0 "
        "reqs, CPU KV cache usage: 75.0%, Prefix cache hit rate: 0.0%",
        "stats_v1",
    )
    assert cpu["kv_usage"] == pytest.approx(0.75)
    v0 = one(
        "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, Swapped: 5 reqs, Pending: "
        "9 reqs, GPU KV cache usage: 62.5%, CPU KV cache usage: 75.0%.",
        "stats_v0",
    )
    assert (v0["kv_usage"], v0["cpu_usage"]) == (pytest.approx(0.625), pytest.approx(0.75))
    assert (v0["waiting"], v0["swapped"], v0["running"]) == (9.0, 5.0, 3.0)


def test_two_reports_glued_into_one_line() -> None:
    text = (
        "INFO 06-02 01:02:03 metrics.py:341] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
        "Running: {} reqs, Swapped: 0 reqs, Pending: {} reqs, GPU KV cache usage: {}%, CPU KV cache usage: 0.0%."
    )
    found = [f for name, _, f in events(text.format(1, 2, 10.0) + text.format(3, 4, 20.0)) if name == "stats_v0"]
    assert [(f["running"], f["waiting"], f["kv_usage"]) for f in found] == [(1.0, 2.0, 0.1), (3.0, 4.0, 0.2)]


def test_a_cut_report_keeps_what_it_has_and_never_reads_zero() -> None:
    found = one(
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 7 "
        "reqs, GPU KV ca",
        "stats_v1",
    )
    assert "kv_usage" not in found
    assert "prefix_hit" not in found


def test_second_lines_of_a_report_are_marked() -> None:
    assert one("Prefix cache hit rate: GPU: 40.00%, CPU: 0.00%", "stats_v0_prefix") == {
        "partial": True,
        "prefix_hit": pytest.approx(0.4),
    }
    spec = one(
        "SpecDecoding metrics: Mean acceptance length: 1.80, Accepted: 40 tokens, Drafted: 50 tokens, Avg Draft acceptance rate: "
        "80.0%",
        "stats_spec",
    )
    assert spec == {"partial": True, "spec": True, "spec_accept": pytest.approx(0.8)}


@pytest.mark.parametrize("tail", ["", ", GPU KV cache usage: 62.5%, encoder inputs: 2"])
def test_iteration_details(tail: str) -> None:
    found = one(
        "Engine 002: Iteration(77): 1 context requests, 512 context tokens, 20 generation requests, 1020 generation tokens, "
        f"iteration elapsed time: 45.50 ms{tail}",
        "iteration",
    )
    assert found["generation_tokens"] == 1020.0
    assert found["generation_requests"] == 20.0
    assert (found["context_requests"], found["context_tokens"]) == (1.0, 512.0)
    assert found["elapsed_ms"] == 45.5
    assert found.get("kv_usage") == (pytest.approx(0.625) if tail else None)


def test_dummy_iterations_are_no_work() -> None:
    assert not events(
        "Iteration(78): 0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens, iteration elapsed "
        "time: 4.00 ms (dummy)"
    )


@pytest.mark.parametrize("counter", ["total_num_cumulative_preemption", "total_cumulative_preemption_cnt"])
@pytest.mark.parametrize("mode", ["RECOMPUTE", "SWAP"])
def test_v0_preemption_count_is_read_from_the_text(counter: str, mode: str) -> None:
    found = one(
        f"WARNING 06-02 01:02:03 scheduler.py:1057] Sequence group cmpl-9-0 is preempted by PreemptionMode.{mode} mode because "
        "there is not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or "
        f"tensor_parallel_size to provide more KV cache memory. {counter}=151",
        "preempt_v0",
    )
    assert found == {"id": "cmpl-9-0", "mode": mode.lower(), "total": 151.0}


def test_request_received_with_and_without_its_prompt() -> None:
    old = one(
        "Received request cmpl-1a-0: prompt: 'say max_tokens=9, params: SamplingParams(max_tokens=8', params: "
        "SamplingParams(n=1, temperature=0.7, max_tokens=333, min_tokens=0), prompt_token_ids: [1, 22, 333, 4], lora_request: "
        "None, prompt_adapter_request: None.",
        "request_received",
    )
    assert old == {"id": "cmpl-1a-0", "max_tokens": 333.0, "prompt_tokens": 4.0}
    new = one(
        "(APIServer pid=3) INFO 06-02 01:02:03 [request_logger.py:65] Received request chatcmpl-7: params: SamplingParams(n=1, "
        "max_tokens=64), lora_request: None.",
        "request_received",
    )
    assert new == {"id": "chatcmpl-7", "max_tokens": 64.0}
    open_end = one(
        "Received request cmpl-2: params: SamplingParams(n=1, max_tokens=None), lora_request: None.", "request_received"
    )
    assert open_end == {"id": "cmpl-2"}


def test_no_prompt_text_leaves_the_table() -> None:
    for _, _, fields in events(
        "Received request cmpl-1: prompt: 'secret words', params: SamplingParams(max_tokens=5), prompt_token_ids: [7, 8, 9], "
        "lora_request: None."
    ):
        assert "secret" not in repr(fields)
        assert "7, 8" not in repr(fields)


@pytest.mark.parametrize(
    ("line", "event", "fields"),
    [
        ("Finished request cmpl-3.", "request_out", {"id": "cmpl-3"}),
        ("Aborted request cmpl-3.", "request_out", {"id": "cmpl-3", "finish": "abort"}),
        ("Aborted request(s) cmpl-3,cmpl-4.", "request_out", {"id": "cmpl-3,cmpl-4", "finish": "abort"}),
        ("Request cmpl-3 aborted.", "request_out", {"id": "cmpl-3", "finish": "abort"}),
        (
            "Generated response cmpl-3 (streaming complete): output: 'finish_reason: stop', finish_reason: length",
            "request_out",
            {"id": "cmpl-3", "finish": "length"},
        ),
        ("Request cmpl-3 failed (bad request).", "request_failed", {"id": "cmpl-3", "why": "bad request"}),
        ("Request cmpl-3 failed due to KeyError('x').", "request_failed", {"id": "cmpl-3"}),
        (
            "Failing the request cmpl-3 because there's not enough kv cache blocks to run the entire sequence.",
            "request_failed",
            {"id": "cmpl-3", "why": "the pool cannot hold the sequence"},
        ),
        (
            "Input prompt (50000 tokens) + lookahead slots (4) is too long and exceeds the capacity of block_manager",
            "request_failed",
            {"n_tokens": 50000.0, "why": "the pool cannot hold the prompt"},
        ),
        (
            "Input prompt (5000 tokens) is too long and exceeds limit of 4096",
            "context_limit",
            {"n_tokens": 5000.0, "n_ctx": 4096.0},
        ),
        (
            "ValueError: This model's maximum context length is 4096 tokens. However, you requested 5100 tokens (5000 in the "
            "messages, 100 in the completion). Please reduce the length.",
            "context_limit",
            {"n_tokens": 5100.0, "n_ctx": 4096.0},
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 100 output tokens and your prompt "
            "contains at least 5000 input tokens, for a total of at least 5100 tokens.",
            "context_limit",
            {"least_tokens": 5100.0, "n_ctx": 4096.0},
        ),
        (
            "ValueError: The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            "context_limit",
            {"n_tokens": 5000.0, "n_ctx": 4096.0},
        ),
        ('INFO:     10.0.0.2:5 - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable', "request_rejected",
         {"why": "HTTP 503"}),
        ('INFO:     10.0.0.2:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error', "request_failed",
         {"why": "HTTP 500"}),
        ("EngineCore encountered a fatal error.", "error", {"text": "EngineCore encountered a fatal error"}),
        ("EngineCore failed to start.", "error", {"text": "EngineCore failed to start", "start": True}),
        ("EngineCore hit an exception: Traceback", "error", {"text": "EngineCore hit an exception"}),
        ("WorkerProc hit an exception.", "error", {"text": "WorkerProc hit an exception"}),
        ("WorkerProc failed", "error", {"text": "WorkerProc failed"}),
        ("WorkerProc failed to start.", "error", {"text": "WorkerProc failed to start", "start": True}),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", "error",
         {"text": "Engine core initialization failed", "start": True}),
        (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).",
            "error",
            {"text": "EngineDeadError"},
        ),
        ("AsyncEngineDeadError: Background loop is not running.", "error", {"text": "Background loop is not running"}),
        ("RuntimeError: Worker failed with error 'shape mismatch', please check the stack trace above", "error",
         {"text": "Worker failed with error 'shape mismatch"}),
        ("TimeoutError: RPC call to execute_model timed out.", "stall", {"text": "RPC call to execute_model timed out", "ends": True}),
        ("Engine iteration timed out. This should never happen!", "stall", {"text": "Engine iteration timed out", "ends": True}),
        ("ValueError: Cannot get 3 free blocks from the pool", "error", {"text": "Cannot get 3 free blocks from the pool"}),
        ("RuntimeError: Aborted due to the lack of CPU swap space. Please increase the swap space", "error",
         {"text": "Aborted due to the lack of CPU swap space"}),
        ("Worker proc VllmWorker-2 died unexpectedly, shutting down executor.", "exit", {"process": "VllmWorker-2"}),
        ("Worker proc VllmWorker-2 died unexpectedly (exit code: -9), shutting down executor.", "exit",
         {"process": "VllmWorker-2", "code": -9.0}),
        ("Worker proc VllmWorker-2 died unexpectedly (exit code: None), shutting down executor.", "exit",
         {"process": "VllmWorker-2"}),
        ("Engine core process EngineCore_DP1 died unexpectedly, shutting down client.", "exit", {"process": "EngineCore_DP1"}),
        ("Worker VllmWorkerProcess pid 812 died, exit code: -15", "exit", {"process": "VllmWorkerProcess", "code": -15.0}),
        ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", "exit",
         {"process": "ray actor"}),
        ("No available shared memory broadcast block found in 60 seconds. This typically happens when", "stall",
         {"text": "No available shared memory broadcast block found in 60 seconds"}),
        ("No available block found in 60 second. ", "stall", {"text": "No available block found in 60 second"}),
        ("Recovered from KV load failure: 2 request(s) rescheduled (640 tokens affected).", "transfer", {"failed": 2.0}),
        ("Releasing expired KV blocks for request cmpl-3 which were retrieved by 0 decode worker(s) within 120 seconds.",
         "transfer", {"expired": 1.0}),
        ("KV Transfer metrics: Num successful transfers=9, Avg xfer time (ms)=3.1, Num failed transfers=4, Num KV expired reqs=2",
         "transfer", {"failed": 4.0, "expired": 2.0}),
        ("KV Transfer metrics: Num successful transfers=9, Avg xfer time (ms)=3.1", "transfer", {}),
        ("Successfully reset prefix cache", "phase", {"what": "prefix_reset", "begin": False}),
        ("Sleep mode freed 30.10 GiB memory, 1.20 GiB memory is still in use.", "phase", {"what": "sleep", "begin": True}),
        ("CuMemAllocator: sleep freed 30.10 GiB memory in total, of which 8.00 GiB is backed up in CPU and the rest 22.10 GiB",
         "phase", {"what": "sleep", "begin": True}),
        ("It took 0.901 seconds to fall asleep.", "phase", {"what": "sleep", "begin": True}),
        ("It took 0.901 seconds to wake up tags ['weights'].", "phase", {"what": "sleep", "begin": False}),
        ("INFO:     Application shutdown complete.", "phase", {"what": "shutdown", "begin": False}),
        ("Dumping scheduler stats: SchedulerStats(num_running_reqs=31, num_waiting_reqs=8, step_counter=0, current_wave=0, "
         "kv_cache_usage=0.625, prefix_cache_stats=PrefixCacheStats(queries=1))", "crash_stats",
         {"running": 31.0, "waiting": 8.0, "kv_usage": 0.625}),
        ("SchedulerStats(num_running_reqs=31, num_waiting_reqs=8, gpu_cache_usage=5e-05)", "crash_stats",
         {"running": 31.0, "waiting": 8.0, "kv_usage": 5e-05}),
        ("Reqid: cmpl-5, Total tokens 4000, Inference Engine computed tokens: 16, LMCache hit tokens: 3840, need to load: 3824",
         "offload_lookup", {"id": "cmpl-5", "total": 4000.0, "computed": 16.0, "hit": 3840.0, "need_load": 3824.0}),
        ("Reqid: cmpl-5, Total tokens 4000, LMCache hit tokens: 256, but need to load: 0 < min_retrieve 64", "offload_lookup",
         {"id": "cmpl-5", "total": 4000.0, "hit": 256.0, "need_load": 0.0}),
        ("Failed to allocate memory for tensor(torch.Size([2, 32, 256, 128]), torch.float16) because no memory is available",
         "offload_fail", {}),
        ("No eviction candidates found in local cpu backend. Local cpu memory is under pressure.", "offload_fail", {}),
        ("Local cpu memory under pressure so choosing to store only 3 total chunks of KV cache.", "offload_fail", {}),
    ],
)  # fmt: skip
def test_serving_lines(line: str, event: str, fields: dict[str, object]) -> None:
    found = [
        got for _, kind, got in events("(Worker_TP0 pid=6) ERROR 06-02 01:02:03 [m.py:9] " + line) if kind == event
    ]
    assert found == [{k: pytest.approx(v) if isinstance(v, float) else v for k, v in fields.items()}]


@pytest.mark.parametrize(
    "line",
    [
        "Added request cmpl-7f-0.",  # printed beside "Received request": one request must not count twice
        "Generated response cmpl-3 (streaming delta): output: 'a', finish_reason: stop",
        "Request cmpl-3 details: prompt: 'x', prompt_token_ids: [1, 2], prompt_embeds shape: None.",
        'Request 9f2 JSON body: {"model":"m","prompt":"x"}',
        "Running batch with cudagraph_mode: NONE, batch_descriptor: BatchDescriptor(num_tokens=512, num_reqs=None)",
        "Engine 000: MFU: 1.5 TF/s/device 20.1 GB/s/device",
        "Reqid: cmpl-5, Total tokens 4000, LMCache hit tokens: None.",
        "[req_id=cmpl-5] Retrieved 512 out of 512 required tokens (from 4000 total tokens). size: 0.06 gb, cost 3.1 ms",
    ],
)
def test_lines_that_must_not_become_events(line: str) -> None:
    assert not events(line)


def test_a_v1_server_prints_no_preemptions() -> None:
    for name, _, fields in events(
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 3 reqs, Waiting: 4 "
        "reqs, GPU KV cache usage: 99.9%, Prefix cache hit rate: 0.0%"
    ):
        assert name == "stats_v1"
        assert not any("preempt" in key for key in fields)


# ---------------------------------------------------------------- arguments, defaults, generation


def test_engine_config_line() -> None:
    args = vllm.ENGINE.parse_args(
        "V0 LLM engine (v0.8.5.post1) with config: model='/m/x', speculative_config=None, dtype=torch.float16, "
        "max_seq_len=8192, tensor_parallel_size=2, enforce_eager=False, observability_config=ObservabilityConfig(seed=7, a=[1, 2]), "
        "seed=0, enable_prefix_caching=True, compilation_config={'level': 3, 'max_seq_len': 1}, use_cached_outputs=True, "
    )
    assert args["generation"] == "V0"
    assert args["version"] == "0.8.5.post1"
    assert args["model"] == "/m/x"
    assert args["max_seq_len"] == "8192"
    assert args["seed"] == "0"
    assert args["observability_config"] == "ObservabilityConfig(seed=7, a=[1, 2])"
    assert "speculative_config" not in args
    assert "level" not in args


def test_non_default_args_line() -> None:
    args = vllm.ENGINE.parse_args(
        "{'model': 'org/m', 'max_model_len': 4096, 'limit_mm_per_prompt': {'image': 1, 'video': 0}, 'served_model_name': ['a, b'], "
        "'kv_events_config': KVEventsConfig(enable=True, port=5), 'watermark': 0.05, 'compilation_config': None}"
    )
    assert args == {
        "model": "org/m",
        "max_model_len": "4096",
        "limit_mm_per_prompt": "{'image': 1, 'video': 0}",
        "served_model_name": "['a, b']",
        "kv_events_config": "KVEventsConfig(enable=True, port=5)",
        "watermark": "0.05",
    }


def test_namespace_line() -> None:
    line = "args: Namespace(host=None, port=8001, allowed_origins=['*'], model='m', max_num_seqs=64, swap_space=4.0)"
    text = one(line, "namespace_args")["text"]
    assert isinstance(text, str)
    args = vllm.ENGINE.parse_args(text)
    assert (args["port"], args["max_num_seqs"], args["swap_space"]) == ("8001", "64", "4.0")
    assert "host" not in args


def test_a_cut_configuration_gives_what_is_whole() -> None:
    args = vllm.ENGINE.parse_args("{'model': 'm', 'max_num_seqs': 32, 'kv_transfer_config': KVTransferConfig(kv_conn")
    assert args == {"model": "m", "max_num_seqs": "32"}


@given(st.text(alphabet=st.sampled_from("ab=,:'\"(){}[]\\ V01LMenginwthcof_N"), max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_text_parses_to_names_and_values(text: str) -> None:
    for key, value in vllm.ENGINE.parse_args(text).items():
        assert key
        assert value
        assert value != "None"


_NAMES = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(lambda n: n not in ("generation", "version"))


@given(st.dictionaries(_NAMES, st.one_of(st.integers(0, 10**9), st.booleans(), st.text(max_size=20))))
@settings(max_examples=100, deadline=None)
def test_a_dict_literal_round_trips(settings_: dict[str, object]) -> None:
    args = vllm.ENGINE.parse_args(repr(settings_))
    for name, value in settings_.items():
        plain = not isinstance(value, str) or (repr(value) == f"'{value}'" and value not in ("", "None"))
        if plain:
            assert args[name] == str(value)


@pytest.mark.parametrize(
    ("version", "args", "expect"),
    [
        ("0.6.6", {}, "V0"),
        ("0.8.5", {}, None),
        ("0.8.5", {"generation": "V1"}, "V1"),
        ("0.9.1", {"preemption_mode": "swap"}, "V0"),
        ("0.11.0", {}, "V1"),
        ("0.32.0", {}, "V1"),
        (None, {}, None),
        (None, {"version": "0.5.4"}, "V0"),
    ],
)
def test_generation(version: str | None, args: dict[str, str], expect: str | None) -> None:
    assert vllm.generation(version, args) == expect


@pytest.mark.parametrize(
    ("version", "args", "expect"),
    [
        ("0.6.6", {}, "recompute"),
        ("0.6.6", {"preemption_mode": "swap"}, "swap"),
        ("0.33.0", {}, "recompute"),
        ("0.33.0", {"preemption_mode": "swap"}, "recompute"),
        (None, {}, "recompute"),
    ],
)
def test_what_happens_to_a_victim(version: str | None, args: dict[str, str], expect: str) -> None:
    assert vllm.ENGINE.preempt_kind(version, args) == expect
    assert vllm.ENGINE.never_preempts(version, args) is False


def test_defaults_change_with_the_release() -> None:
    assert vllm.defaults("0.19.1")["fraction"] == "0.9"
    assert vllm.defaults("0.20.0")["fraction"] == "0.92"
    assert vllm.defaults("0.18.0")["full_prompt"] == "False"
    assert vllm.defaults("0.19.0")["full_prompt"] == "True"
    assert vllm.defaults("0.6.6")["max_running"] == "256"
    # V1 takes it from the device: not known from the release alone
    assert "max_running" not in vllm.defaults("0.32.0")
    assert "prefix" not in vllm.defaults("0.8.5")
    assert "fraction" not in vllm.defaults(None)
    for version in VERSIONS:
        assert vllm.defaults(version).keys() <= base.CANONICAL_SETTINGS.keys()


# ---------------------------------------------------------------- levers, gaps, commands by version


@pytest.mark.parametrize(
    ("lever", "version", "flag"),
    [
        ("admission.free_share", "0.24.0", "--watermark F"),
        ("admission.free_share", "0.23.0", None),
        ("admission.free_share", "0.6.6", None),
        ("admission.full_prompt", "0.19.0", "--scheduler-reserve-full-isl"),
        ("admission.full_prompt", "0.18.1", None),
        ("sched.max_queue", "0.29.0", "--max-num-queued-reqs N"),
        ("sched.max_queue", "0.28.0", None),
        ("kv.pool_bytes", "0.10.2", "--kv-cache-memory-bytes N"),
        ("kv.pool_bytes", "0.10.1", None),
        ("kv.offload_bytes", "0.6.6", "--swap-space GIB"),
        ("kv.offload_bytes", "0.10.2", None),
        ("kv.offload_bytes", "0.13.0", "--kv-offloading-size GIB --kv-offloading-backend native"),
        ("kv.offload_bytes", "0.32.0", "--kv-offloading-size GIB"),
        ("observe.request_log", "0.14.0", "--enable-log-requests --enable-logging-iteration-details"),
        ("observe.request_log", "0.10.0", None),
        ("observe.victims", "0.11.1", "pip install --no-deps kvdoctor"),
        ("observe.victims", "0.11.0", None),
        ("victim.protect", "0.33.0", None),
        ("sched.policy", "0.6.2", None),
    ],
)
def test_flags_exist_only_where_the_release_has_them(lever: str, version: str, flag: str | None) -> None:
    found = lever_for(vllm.ENGINE, lever, version)
    assert found is not None
    assert found.flag == flag


def test_no_text_names_a_flag_its_release_lacks() -> None:
    born = {
        "--watermark": (0, 24), "--scheduler-reserve-full-isl": (0, 19), "--max-num-queued-reqs": (0, 29),
        "--kv-offloading-size": (0, 11, 1), "--enable-logging-iteration-details": (0, 14), "--kv-cache-metrics": (0, 12),
        "--kv-cache-memory-bytes": (0, 10, 2),
    }  # fmt: skip
    for entry in vllm.ENGINE.levers:
        until = version_key(entry.until)
        for flag, since in born.items():
            if until is not None and until < since:
                text = f"{entry.flag} {entry.effect} {entry.cost} {entry.verify}"
                assert flag not in text, (entry.lever, flag)
                if flag in entry.instead:  # may be named as the reason to upgrade
                    assert re.search("upgrade|exists from", entry.instead), (entry.lever, flag)


def test_allocator_advice_names_the_connector_that_refuses_it() -> None:
    new = lever_for(vllm.ENGINE, "mem.allocator_conf", "0.21.0")
    old = lever_for(vllm.ENGINE, "mem.allocator_conf", "0.20.0")
    assert new is not None
    assert old is not None
    assert "refused" in new.cost
    assert "refused" not in old.cost


@pytest.mark.parametrize(
    ("fact", "version", "words"),
    [
        ("recompute.tokens", "0.32.0", "--enable-logging-iteration-details"),
        ("recompute.token_share", "0.12.0", "pip install --no-deps kvdoctor"),
        ("recompute.tokens", "0.9.0", "upgrade"),
        ("recompute.tokens", "0.6.6", "two scrapes"),
        ("preempt.victims_near_done", "0.32.0", "pip install --no-deps kvdoctor"),
        ("preempt.victims_near_done", "0.10.0", "kvdoctor simulate"),
        ("preempt.victim_remaining_p50", "0.32.0", "pip install --no-deps kvdoctor"),
        ("preempt.victim_remaining_p50", "0.10.0", "kvdoctor simulate"),
        ("preempt.hit_share", "0.32.0", "pip install --no-deps kvdoctor"),
        ("preempt.victim_computed_mean", "0.32.0", "pip install --no-deps kvdoctor"),
        ("preempt.hit_twice_share", "0.29.0", "0.30"),
        ("preempt.repeats_30s", "0.32.0", "pip install --no-deps kvdoctor"),
        ("preempt.repeats_30s", "0.10.0", "kvdoctor simulate"),
        ("preempt.count", "0.32.0", "num_preemptions_total"),
        ("kv.evictable_share", "0.32.0", "--kv-events-config"),
        ("kv.block_idle_p50_s", "0.11.0", "upgrade"),
        ("req.rejected", "0.30.0", "503"),
    ],
)
def test_gaps_name_the_way_to_know(fact: str, version: str, words: str) -> None:
    gap = gap_for(vllm.ENGINE, fact, version)
    assert gap is not None
    assert gap.reason
    assert words in gap.hint


@pytest.mark.parametrize("version", ["0.8.0", "0.18.0", "0.33.0"])
def test_no_grep_for_preemptions_where_the_log_has_none(version: str) -> None:
    usable = [c for c in vllm.ENGINE.commands if in_range(version, c.since, c.until)]
    assert not [c for c in usable if "{log}" in c.text and "preempt" in c.text]


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_of_the_confirm_commands(version: str) -> None:
    usable = [c.name for c in vllm.ENGINE.commands if in_range(version, c.since, c.until)]
    assert len(usable) == len(set(usable)), version
    assert {
        "metrics.kv",
        "metrics.queue",
        "metrics.latency",
        "log.oom",
        "log.start",
        "log.stats",
        "observe.metrics",
    } <= set(usable)
    assert {"gpu.processes", "gpu.memory", "kernel.xid", "kernel.oom"} <= {c.name for c in COMMON_COMMANDS}


def test_the_table_is_found() -> None:
    found = base.engines()
    assert found["vllm"] is vllm.ENGINE
    assert found["lmcache"].side


@given(st.text(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_line_gives_finite_numbers_or_nothing(text: str) -> None:
    for line in (text, "Avg prompt throughput: 1 tokens/s, Waiting: 1 reqs " + text, "Received request a: " + text):
        for _, event, fields in events(line):
            assert event in EVENTS
            assert all(math.isfinite(value) for value in fields.values() if isinstance(value, float))
