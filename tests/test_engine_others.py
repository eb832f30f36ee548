"""TensorRT-LLM, TGI, LMDeploy and the tables that stand beside an engine: each trap of theirs has its right value."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.engines import dcgm, dynamo, lmdeploy, tensorrt_llm, tgi, triton
from kvdoctor.engines.base import CANONICAL_SETTINGS, ROLES, Engine, Series, gap_for, lever_for
from kvdoctor.facts import LEVERS
from kvdoctor.parse.serverlog import EVENTS, LogEvent, scan

TRT, TGI, LMD = tensorrt_llm.ENGINE, tgi.ENGINE, lmdeploy.ENGINE
SERVERS = (TRT, TGI, LMD)
SIDE = (dcgm.ENGINE, triton.ENGINE, dynamo.ENGINE)
GIB, MIB = 2.0**30, 2.0**20


@dataclass(frozen=True)
class Said:
    """One line of an engine and what it says."""

    engine: Engine
    template: str
    line: str
    event: str
    fields: dict[str, Any] = field(default_factory=dict)


SAID = [
    # --- TensorRT-LLM
    Said(TRT, "trt.banner", "[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3", "banner", {"version": "1.1.0rc3"}),
    Said(
        TRT,
        "trt.policy",
        "[TensorRT-LLM][INFO] Capacity Scheduler Policy: MAX_UTILIZATION",
        "args",
        {"text": "capacity_scheduler_policy=MAX_UTILIZATION"},
    ),
    Said(
        TRT,
        "trt.model.limits",
        "[TensorRT-LLM][INFO] TRTGptModel maxNumTokens: 6144",
        "args",
        {"text": "maxNumTokens=6144"},
    ),
    Said(
        TRT,
        "trt.mpi",
        "[TensorRT-LLM][INFO] MPI size: 4, MPI local size: 4, rank: 0",
        "args",
        {"text": "mpi_size=4"},
    ),
    Said(
        TRT,
        "trt.start.limits",
        "[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len=65536, max_num_requests=1024, max_num_tokens=4096, max_batch_size=512",
        "args",
        {"text": "max_seq_len=65536, max_num_requests=1024, max_num_tokens=4096, max_batch_size=512"},
    ),
    Said(
        TRT,
        "trt.args",
        "[TRT-LLM] [I] TorchLlmArgs(model='m/one', tensor_parallel_size=2, kv_cache_config=KvCacheConfig("
        "enable_block_reuse=True, free_gpu_memory_fraction=0.85), scheduler_config=SchedulerConfig("
        "capacity_scheduler_policy=<CapacitySchedulerPolicy.MAX_UTILIZATION: 'MAX_UTILIZATION'>))",
        "args",
    ),
    Said(
        TRT,
        "trt.reuse",
        "[TensorRT-LLM][INFO] KV cache block reuse is disabled",
        "args",
        {"text": "enable_block_reuse=disabled"},
    ),
    Said(
        TRT,
        "trt.start.kv",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).",
        "pool",
        {"tokens": 220480, "bytes": 26.91 * GIB},
    ),
    Said(
        TRT,
        "trt.start.kv_bytes",
        "[TensorRT-LLM][INFO] Allocate 1912602624 bytes for k/v cache. ",
        "pool",
        {"bytes": 1912602624},
    ),
    Said(
        TRT,
        "trt.start.kv_tokens",
        "[TensorRT-LLM][INFO] Using 58368 total tokens in paged KV cache, and 136 blocks per sequence",
        "pool",
        {"tokens": 58368, "sequence_blocks": 136},
    ),
    Said(
        TRT,
        "trt.start.kv_max_tokens",
        "[TensorRT-LLM][INFO] Max tokens in paged KV cache: 83840. Allocating 10989076480 bytes.",
        "pool",
        {"tokens": 83840, "bytes": 10989076480},
    ),
    Said(
        TRT,
        "trt.start.blocks",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4060",
        "pool",
        {"blocks": 4060},
    ),
    Said(
        TRT,
        "trt.start.blocks2",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 812, onboard blocks to primary memory "
        "before reuse: true",
        "pool",
        {"cpu_blocks": 812},
    ),
    Said(TRT, "trt.start.tpb", "[TensorRT-LLM][INFO] Number of tokens per block: 64.", "pool", {"block_tokens": 64}),
    Said(
        TRT,
        "trt.start.pages",
        "[TensorRT-LLM][INFO] Max KV cache pages per sequence: 65",
        "pool",
        {"sequence_blocks": 65},
    ),
    Said(
        TRT,
        "trt.start.avail",
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 44.40 GiB, "
        "available: 21.75 GiB",
        "memory",
        {"total": 44.40 * GIB, "free": 21.75 * GIB},
    ),
    Said(
        TRT,
        "trt.start.peak",
        "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 18.25 GiB, available KV cache memory "
        "when calculating max tokens: 50.50 GiB, fraction is set 0.9, kv size is 131072. device total memory 79.11 GiB",
        "memory",
        {"kv_pool": 50.5 * GIB, "total": 79.11 * GIB, "peak": 18.25 * GIB, "kv_fraction": 0.9, "token_bytes": 131072},
    ),
    Said(
        TRT,
        "trt.start.fraction",
        "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 18.25 GiB, available KV cache memory "
        "when calculating max tokens: 50.50 GiB, fraction is set 0.85, kv size is 131072. device total memory 79.11 GiB",
        "args",
        {"text": "free_gpu_memory_fraction=0.85"},
    ),
    Said(
        TRT, "trt.start.weights", "[TensorRT-LLM][INFO] Loaded engine size: 6214 MiB", "memory", {"weights": 6214 * MIB}
    ),
    Said(
        TRT,
        "trt.start.context",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 928.77 MiB for execution context memory.",
        "memory",
        {"activations": 928.77 * MIB},
    ),
    Said(
        TRT,
        "trt.window_shrunk",
        "[TRT-LLM] [W] Attention window size 40000 exceeds upper bound 10000 for available blocks. Reducing to 10000.",
        "concurrency",
        {"length": 40000, "ratio": 0.25},
    ),
    Said(
        TRT,
        "trt.start.too_small",
        "ERROR: Failed to create instance: unexpected error when creating modelInstanceState: maxTokensInPagedKvCache "
        "(6400) must be large enough to process at least 1 sequence to completion (i.e. must be larger than beam_width (2) "
        "* tokensPerBlock (64) * maxBlocksPerSeq (80))",
        "start_error",
        {"error": "pool_too_small", "tokens_have": 6400, "tokens_need": 2 * 64 * 80},
    ),
    Said(
        TRT,
        "trt.start.no_fit",
        "AssertionError: Impossible to fit in any sequence in kvCache",
        "start_error",
        {"error": "pool_too_small"},
    ),
    *(
        Said(
            TRT,
            f"trt.start.component.{site}",
            f"The following component could not be created: {name}",
            "error",
            {"site": site, "start": True, "text": f"component could not be created: {name}"},
        )
        for site, name in (
            ("kv_alloc", "KV cache"),
            ("kv_alloc", "Initial KV Cache"),
            ("prefill", "Additional executor resources"),
            ("prefill", "Model resources created during usage"),
            ("sampler", "Sampler"),
            ("weights_load", "Model"),
            ("weights_load", "Draft model for speculative decoding"),
        )
    ),
    Said(
        TRT,
        "trt.forward_error",
        "[TRT-LLM] [E] Encountered an error in forward function: CUDA error",
        "request_failed",
        {"why": "Encountered an error in forward function"},
    ),
    Said(
        TRT,
        "trt.context.total",
        "Assertion failed: Input length (3900) + max new tokens (512) + draft tokens (3) must be less than max sequence "
        "length (4096). (/src/llmRequest.h:560)",
        "context_limit",
        {"n_tokens": 4415, "n_ctx": 4096},
    ),
    Said(
        TRT,
        "trt.context.input",
        "Prompt length (9000) exceeds maximum input length (8192). Set log level to info",
        "context_limit",
        {"n_tokens": 9000, "n_ctx": 8192},
    ),
    Said(
        TRT,
        "trt.ready.triton",
        'I0306 16:41:00.1 117 http_server.cc:4685] "Started HTTPService at 0.0.0.0:8000"',
        "ready",
    ),
    Said(TRT, "trt.ready", "INFO:     Application startup complete.", "ready"),
    Said(
        TRT,
        "trt.iter",
        "0: [08/04/2026-19:08:13] [TRT-LLM] [I] [_torch][RANK 0] iter = 512, global_rank = 0, rank = 0, "
        "num_scheduled_requests = 24, kv_cache_util = 0.975, currank_total_requests = 1/8, host_step_time = 31.5ms, "
        "prev_device_step_time = N/A, timestamp = 2026-08-04 19:08:13, states = {'num_ctx_requests': 3, "
        "'num_ctx_tokens': 4096, 'num_generation_tokens': 21}",
        "stats",
        {"running": 24, "kv_usage": 0.975, "context_requests": 3, "generation_requests": 21, "new_tokens": 4096},
    ),
    Said(
        TRT,
        "trt.iter.old",
        "[TRT-LLM] [I] iter = 40, global_rank = 0, rank = 0, currank_total_requests = 0/0, host_step_time = 12.2ms, "
        "prev_device_step_time = 11.0ms, timestamp = 2025-07-07 00:00:00, num_scheduled_requests: 9, "
        "states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 9}",
        "stats",
        {"running": 9, "generation_requests": 9, "generation_tokens": 9},
    ),
    Said(
        TRT,
        "trt.iter.triton",
        '[TensorRT-LLM][INFO] {"Active Request Count":249,"Context Requests":8,"Free KV cache blocks":0,'
        '"Max KV cache blocks":2448,"Timestamp":"12-13-2023 14:55:14","Total Context Tokens":6904,'
        '"Used KV cache blocks":1224}',
        "stats",
        {"running": 249, "kv_usage": 0.5, "new_tokens": 6904},
    ),
    Said(
        TRT,
        "trt.iter.triton",
        r'I1 136 model_instance_state.cc:1115] "{\"Active Request Count\":8,\"Max Request Count\":16,\"Context Requests\":1,'
        r"\"Generation Requests\":2,\"MicroBatch ID\":0,\"Paused Requests\":0,\"Scheduled Requests\":3,"
        r'\"Max KV cache blocks\":40,\"Used KV cache blocks\":30}"',
        "stats",
        {"running": 3, "waiting": 5, "kv_usage": 0.75, "generation_requests": 2, "max_running": 16},
    ),
    Said(
        TRT,
        "trt.iter.triton",
        '{"Active Request Count":8,"MicroBatch ID":1,"Paused Requests":0,"Scheduled Requests":4}',
        "stats",
        {"running": 8},
    ),
    Said(
        TRT,
        "trt.pause",
        "[TensorRT-LLM][DEBUG] MaxUtilizationScheduler: request ID 7731 -> pause",
        "retract",
        {"count": 1, "id": "7731", "mode": "pause"},
    ),
    Said(
        TRT,
        "trt.pause.generation",
        "[TensorRT-LLM][WARNING] Pause generation only request ,request_id :1000 , change it as context init state, which may "
        "degrade performance",
        "retract",
        {"count": 1, "id": "1000", "mode": "pause"},
    ),
    Said(
        TRT,
        "trt.summary",
        "[TensorRT-LLM][DEBUG] [Summary] Capacity scheduler allows 21 requests, pauses 4 requests",
        "stats",
        {"running": 21, "paused": 4},
    ),
    Said(TRT, "trt.no_block", "[TensorRT-LLM][ERROR] No free block found. This shouldn't happen!", "error"),
    # --- TGI and lorax
    Said(
        TGI,
        "tgi.banner",
        "2024-09-03T04:36:57.491823Z  INFO text_generation_launcher: Args {",
        "banner",
    ),
    Said(
        TGI,
        "tgi.args",
        '2023-07-05T19:53:44.757129Z  INFO lorax_launcher: Args { model_id: "big/one", revision: None, num_shard: Some(2), '
        "max_concurrent_requests: 64, max_total_tokens: 2048 }",
        "args",
    ),
    Said(TGI, "tgi.args.model", '    model_id: "org/name-8B",', "args", {"text": 'model_id: "org/name-8B"'}),
    Said(TGI, "tgi.args.number", "    max_concurrent_requests: 96,", "args", {"text": "max_concurrent_requests: 96"}),
    Said(TGI, "tgi.args.fraction", "    cuda_memory_fraction: 0.6,", "args", {"text": "cuda_memory_fraction: 0.6"}),
    Said(
        TGI,
        "tgi.args.default",
        "INFO text_generation_launcher: Default `max_batch_prefill_tokens` to 8242",
        "args",
        {"text": "max_batch_prefill_tokens: 8242"},
    ),
    Said(
        TGI,
        "tgi.prefill_reduced",
        "WARN text_generation_launcher: Reducing the max batch prefill from 16384 to 7000 because there is not enough VRAM "
        "to support it.",
        "args",
        {"text": "max_batch_prefill_tokens: 7000"},
    ),
    Said(
        TGI,
        "tgi.prefix",
        "INFO text_generation_launcher: Using attention flashinfer - Prefix caching true",
        "args",
        {"text": "attention: flashinfer, prefix_caching: true"},
    ),
    Said(TGI, "tgi.warmup", "INFO text_generation_router_v3: backends/v3/src/lib.rs:125: Warming up model", "warmup"),
    Said(
        TGI,
        "tgi.start.tokens",
        "INFO text_generation_router_v3: backends/v3/src/lib.rs:137: Setting max batch total tokens to 133696",
        "pool",
        {"tokens": 133696},
    ),
    Said(
        TGI,
        "tgi.start.blocks",
        "INFO text_generation_launcher: KV-cache blocks: 8356, size: 16",
        "pool",
        {"blocks": 8356, "block_tokens": 16},
    ),
    Said(
        TGI,
        "tgi.start.free",
        "DEBUG text_generation_launcher: Free memory 12.50GB , (real: 20.25GB",
        "memory",
        {"budget": 12.5e9, "free": 20.25e9},
    ),
    Said(TGI, "tgi.ready", "INFO text_generation_router::server: router/src/server.rs:2402: Connected", "ready"),
    Said(
        TGI,
        "tgi.oom.warmup",
        "RuntimeError: Not enough memory to handle 16000 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
        "oom",
        {"site": "prefill"},
    ),
    Said(
        TGI,
        "tgi.oom.total",
        "Not enough memory to handle `max_total_tokens=32768`",
        "start_error",
        {"error": "pool_too_small", "tokens_need": 32768},
    ),
    Said(
        TGI,
        "tgi.start.over_budget",
        'Error: Backend(ArgumentValidation("`max_total_tokens` must be <= `max_batch_total_tokens`. Given: 8192 and 7100"))',
        "start_error",
        {"error": "pool_too_small", "tokens_need": 8192, "tokens_have": 7100},
    ),
    Said(
        TGI,
        "tgi.context.total",
        "ERROR generate: router/src/infer/mod.rs:105: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` "
        "tokens and 512 `max_new_tokens`",
        "context_limit",
        {"n_tokens": 4512, "n_ctx": 4096},
    ),
    Said(
        TGI,
        "tgi.context.input",
        "ERROR generate: router/src/infer/mod.rs:105: `inputs` must have less than 3072 tokens. Given: 4000",
        "context_limit",
        {"n_tokens": 4000, "n_ctx": 3072},
    ),
    Said(
        TGI,
        "tgi.start.refused",
        'Error: ArgumentValidation("`max_batch_prefill_tokens` must be >= `max_input_tokens`. Given: 4096 and 6000")',
        "start_error",
        {"error": "config_refused"},
    ),
    Said(
        TGI,
        "tgi.method_error",
        "ERROR text_generation_launcher: Method Decode encountered an error.",
        "error",
        {"site": "decode"},
    ),
    Said(
        TGI,
        "tgi.batch_error",
        "ERROR batch{batch_size=5}:prefill:prefill{id=44 size=5}:prefill{id=44 size=5}: "
        "text_generation_router_v3::client: backends/v3/src/client/mod.rs:45: Server error: transport error",
        "error",
        {"batch_size": 5, "site": "prefill", "text": "Server error: transport error"},
    ),
    Said(
        TGI,
        "tgi.request_failed",
        "ERROR generate_stream:generate: text_generation_router::infer: router/src/infer.rs:3: "
        "Request failed during generation: Server error: unexpected",
        "request_failed",
        {"why": "Server error: unexpected"},
    ),
    Said(TGI, "tgi.shard_crash", "ERROR text_generation_launcher: Shard 3 crashed", "exit", {"process": "Shard 3"}),
    Said(
        TGI,
        "tgi.shard_start",
        "ERROR text_generation_launcher: Shard 1 failed to start",
        "exit",
        {"process": "Shard 1"},
    ),
    Said(
        TGI,
        "tgi.shard_signal",
        "ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0",
        "exit",
        {"signal": "SIGKILL", "process": "Shard"},
    ),
    Said(
        TGI,
        "tgi.over_budget",
        "DEBUG next_batch: text_generation_router_v3::queue: Over budget: not enough free blocks",
        "admission_blocked",
    ),
    Said(
        TGI,
        "tgi.overloaded",
        "ERROR generate: text_generation_router::infer: router/src/infer/mod.rs:104: Model is overloaded",
        "request_rejected",
    ),
    Said(
        TGI,
        "tgi.success",
        "INFO generate{parameters=GenerateParameters { best_of: None, max_new_tokens: Some(200), stop: [] } "
        'total_time="4.065504959s" validation_time="440.038965ms" queue_time="94.981µs" inference_time="3.625371193s" '
        'time_per_token="38.982485ms" seed="None"}: text_generation_router::server: router/src/server.rs:402: Success',
        "request_out",
        {"output_tokens": 93, "max_tokens": 200, "queue_ms": 0.094981, "total_ms": 4065.504959},
    ),
    # --- LMDeploy
    Said(
        LMD,
        "lmd.banner",
        "2024-07-05 23:57:38,582 - lmdeploy - INFO - input backend=turbomind, backend_config=TurbomindEngineConfig("
        "model_name='org/seven', tp=2, session_len=None, max_batch_size=96, cache_max_entry_count=0.7)",
        "banner",
        {"model": "org/seven", "part": "turbomind"},
    ),
    Said(
        LMD,
        "lmd.args",
        "2025-07-05 23:57:38,582 - lmdeploy - INFO - updated backend_config=PytorchEngineConfig(dtype='auto', tp=4, "
        "max_batch_size=48, cache_max_entry_count=0.65, block_size=64)",
        "args",
    ),
    Said(LMD, "lmd.tm.block_count", "[TM][INFO] [BlockManager] max_block_count = 159", "pool", {"blocks": 159}),
    Said(LMD, "lmd.tm.block_mb", "[TM][INFO] [BlockManager] block_size = 6 MB", "pool", {"block_bytes": 6 * MIB}),
    Said(
        LMD,
        "lmd.tm.block_bytes",
        "[TM][INFO] [SequenceManager] block_size = 33554432",
        "pool",
        {"block_bytes": 33554432},
    ),
    Said(
        LMD,
        "lmd.tm.session_cut",
        "[TM][WARNING] No enough blocks for `session_len` (32768), `session_len` truncated to 8192.",
        "concurrency",
        {"length": 32768, "ratio": 0.25},
    ),
    Said(
        LMD,
        "lmd.pt.no_memory",
        "RuntimeError: No enough gpu memory for kv cache.",
        "start_error",
        {"error": "pool_too_small"},
    ),
    Said(LMD, "lmd.tm.no_blocks", "[TM][WARNING] No enough blocks.", "admission_blocked"),
    Said(LMD, "lmd.tm.context_begin", "[TM][INFO] context decoding start", "phase", {"what": "prefill", "begin": True}),
    Said(LMD, "lmd.tm.context_end", "[TM][INFO] context decoding end", "phase", {"what": "prefill", "begin": False}),
    Said(
        LMD,
        "lmd.tm.context_batch",
        "[TM][INFO] [decodeContext] offset = 0, batch_size = 3, token_num = 12300, max_input_len = 4100",
        "iteration",
        {"context_requests": 3, "context_tokens": 12300},
    ),
    Said(
        LMD,
        "lmd.tm.oom",
        "[TM][WARNING] dp0 ID 4821: cache out of memory, no request can be admitted; failing head-of-line request",
        "request_failed",
        {"id": "4821"},
    ),
    Said(
        LMD,
        "lmd.tm.pass",
        "[TM][INFO] out of memory at 12/40",
        "admission_blocked",
        {"admitted": 12, "planned": 40},
    ),
    Said(
        LMD,
        "lmd.tm.stats",
        "[cache] region=40.00GB live=31.20GB (78.0%) live_alloc=512 | pages 15974/20480 used (78.0%) page_size=2.00MB",
        "stats",
        {"kv_usage": 0.78},
    ),
    Said(
        LMD,
        "lmd.tm.trunc",
        "[TM][WARNING] ID 77: total sequence length (7000 + 2048) exceeds `session_len` (8192), `max_new_tokens` is "
        "truncated to 1192",
        "context_limit",
        {"n_tokens": 9048, "n_ctx": 8192, "id": "77"},
    ),
    Said(
        LMD,
        "lmd.stat",
        "[2026-01-05 10:11:12 DP1] Avg thr (in/out): 2210.5 / 310.0 tokens/s, Server (succeeded/failed/routed/waiting): "
        "812 / 3 / 40 / 5, Engine (running/waiting): 32 / 8, KV cache: 97.5%, Prefix cache hit rate: 41.0%, ",
        "stats",
        {"running": 32, "waiting": 8, "kv_usage": 0.975, "prefix_hit": 0.41, "gen_rate": 310.0, "engine": 1},
    ),
    Said(
        LMD,
        "lmd.full",
        "lmdeploy - WARNING - engine_loop.py:300 - no next prefill running request, Maybe cache is full, free gpu cache "
        "blocks: 2, total gpu cache blocks: 1280",
        "admission_blocked",
        {"free_blocks": 2, "total_blocks": 1280},
    ),
    Said(
        LMD,
        "lmd.prefill_shrunk",
        "lmdeploy - WARNING - base.py:100 - No enough memory. Update max_prefill_token_num=2048",
        "args",
        {"text": "max_prefill_token_num=2048"},
    ),
    Said(
        LMD,
        "lmd.cacheconfig",
        "lmdeploy - INFO - base.py:200 - CacheConfig(max_batches=256, block_size=64, num_cpu_blocks=0, num_gpu_blocks=1280, "
        "window_size=-1)",
        "pool",
        {"blocks": 1280, "block_tokens": 64, "cpu_blocks": 0},
    ),
    Said(LMD, "lmd.ready", "INFO:     Application startup complete.", "ready"),
]


LINES = {said.template: said.line for said in SAID}


def events(engine: Engine, text: str) -> list[LogEvent]:
    return scan(io.BytesIO(text.encode()), engine.templates).events


def roles(engine: Engine) -> dict[str, Series]:
    return {series.role: series for series in engine.series}


# ---------------------------------------------------------------- what the lines say


@pytest.mark.parametrize("said", SAID, ids=lambda said: said.template)
def test_a_line_says(said: Said) -> None:
    found = [event for event in events(said.engine, said.line) if event.template == said.template]
    assert len(found) == 1
    assert found[0].event == said.event
    for name, value in said.fields.items():
        want = pytest.approx(value) if isinstance(value, float) else value
        assert found[0].fields[name] == want, name


@pytest.mark.parametrize("engine", SERVERS, ids=lambda engine: engine.name)
def test_every_template_has_a_line_here(engine: Engine) -> None:
    assert {template.id for template in engine.templates} == {said.template for said in SAID if said.engine is engine}


@given(st.integers(0, len(SAID) - 1), st.text(alphabet="0123456789-:TZ []{}()|.abcdefgWI", max_size=60))
def test_what_stands_in_front_of_a_line_does_not_change_it(index: int, front: str) -> None:
    said = SAID[index]
    alone = [e.fields for e in events(said.engine, said.line) if e.template == said.template]
    behind = [e.fields for e in events(said.engine, f"{front}  {said.line}") if e.template == said.template]
    assert behind == alone


@pytest.mark.parametrize("engine", (*SERVERS, *SIDE), ids=lambda engine: engine.name)
def test_the_table_uses_the_common_words(engine: Engine) -> None:
    assert {series.role for series in engine.series} <= set(ROLES)
    assert len(engine.series) == len(roles(engine))
    assert {template.event for template in engine.templates} <= set(EVENTS)
    assert all(
        template.literal in said.line for template in engine.templates for said in SAID if said.template == template.id
    )
    assert set(engine.canonical_args) <= set(CANONICAL_SETTINGS)
    assert set(engine.defaults(None)) <= set(CANONICAL_SETTINGS)
    assert {lever.setting for lever in engine.levers} - {""} <= set(CANONICAL_SETTINGS)


def test_a_full_cache_of_lmdeploy_is_no_device_oom() -> None:
    text = (
        "[TM][WARNING] dp0 ID 9: cache out of memory, no request can be admitted; failing head-of-line request\n"
        "[TM][INFO] out of memory at 3/7\n"
    )
    assert [event.event for event in events(LMD, text)] == ["request_failed", "admission_blocked"]


def test_a_device_oom_of_turbomind_is_one() -> None:
    found = events(LMD, "[TM][INFO] context decoding start\n[TM][ERROR] CUDA runtime error: out of memory /a/b.h:9\n")
    assert [event.event for event in found] == ["phase", "oom"]


def test_the_block_size_of_turbomind_is_bytes_and_is_read_once() -> None:
    (event,) = events(LMD, "[TM][INFO] [BlockManager] block_size = 64 MB")
    assert event.fields == {"block_bytes": 64 * MIB}
    (event,) = events(LMD, "[TM][INFO] [SequenceManager] block_size = 67108864")
    assert event.fields == {"block_bytes": 67108864}


def test_an_automatic_block_count_is_no_pool() -> None:
    line = "lmdeploy - INFO - CacheConfig(max_batches=256, block_size=64, num_cpu_blocks=0, num_gpu_blocks=0)"
    assert events(LMD, line) == []


def test_a_cut_session_length_does_not_also_say_that_nobody_fits() -> None:
    text = "[TM][WARNING] No enough blocks for `session_len` (4096), `session_len` truncated to 2048."
    assert [event.event for event in events(LMD, text)] == ["concurrency"]


def test_prefix_hit_rate_is_absent_where_the_stats_line_has_none() -> None:
    line = (
        "[2026-01-05 10:11:12 DP0] Avg thr (in/out): 0.0 / 0.0 tokens/s, Server (succeeded/failed/routed/waiting): "
        "0 / 0 / 0 / 0, Engine (running/waiting): 0 / 0, KV cache: 0.0%, "
    )
    (event,) = events(LMD, line)
    assert event.number("kv_usage") == 0.0
    assert event.number("prefix_hit") is None


def test_the_triton_step_line_without_block_numbers_gives_no_usage() -> None:
    (event,) = events(TRT, '[TensorRT-LLM][INFO] {"Active Request Count":5,"Iteration Counter":1}')
    assert event.number("running") == 5
    assert event.number("kv_usage") is None


def test_a_policy_line_for_chunking_is_not_the_capacity_policy() -> None:
    assert events(TRT, "[TensorRT-LLM][INFO] Context Chunking Scheduler Policy: FIRST_COME_FIRST_SERVED") == []


@pytest.mark.parametrize(
    ("queue", "seconds"), [("1.5s", 1.5), ("250ms", 0.25), ("80µs", 80e-6), ("80Âµs", 80e-6), ("900ns", 900e-9)]
)
def test_rust_durations(queue: str, seconds: float) -> None:
    line = f'total_time="2s" validation_time="1ms" queue_time="{queue}" inference_time="2s" time_per_token="20ms" seed="None"'
    (event,) = events(TGI, line)
    assert event.number("queue_ms") == pytest.approx(seconds * 1000)
    assert event.number("output_tokens") == 100
    assert event.number("max_tokens") is None


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (3, "signal 3")])
def test_signals_of_a_shard(number: int, name: str) -> None:
    (event,) = events(TGI, f"Shard process was signaled to shutdown with signal {number} rank=1")
    assert event.text("signal") == name


# ---------------------------------------------------------------- series


def test_counters_of_tgi_and_lorax_have_no_total() -> None:
    names = [name for series in TGI.series for name in series.names]
    assert not [name.name for name in names if name.kind == "counter" and name.name.endswith("_total")]
    assert {name.name for name in roles(TGI)["req.waiting"].names} == {"tgi_queue_size", "lorax_queue_size"}


def test_the_pool_of_tgi_is_read_from_the_series_that_exists() -> None:
    read = [name.name for name in roles(TGI)["kv.pool_tokens"].names if not name.ignore]
    assert read == ["tgi_batch_max_total_tokens"]


def test_tgi_time_per_token_is_not_taken_for_the_time_between_tokens() -> None:
    assert all(name.ignore for name in roles(TGI)["latency.itl"].names)
    assert gap_for(TGI, "latency.itl_p99", None) is not None


def test_failures_of_tgi_are_told_apart() -> None:
    reasons = {
        role: {name.where["err"] for name in roles(TGI)[role].names}
        for role in ("req.failed", "req.rejected", "req.aborted")
    }
    assert reasons == {"req.failed": {"generation"}, "req.rejected": {"overloaded"}, "req.aborted": {"dropped"}}


@pytest.mark.parametrize(
    ("engine", "role", "name"),
    [
        (LMD, "kv.usage", "lmdeploy:gpu_cache_usage_perc"),
        (dynamo.ENGINE, "kv.usage", "dynamo_component_gpu_cache_usage_percent"),
        (TRT, "kv.usage", "trtllm_kv_cache_utilization"),
        (triton.ENGINE, "gpu.util", "nv_gpu_utilization"),
    ],
)
def test_a_ratio_stays_one_whatever_its_name_says(engine: Engine, role: str, name: str) -> None:
    (series,) = [n for n in roles(engine)[role].names if n.name == name]
    assert series.scale == 1.0


def test_dcgm_units_and_traps() -> None:
    table = roles(dcgm.ENGINE)
    assert table["gpu.mem_used"].names[0].scale == MIB
    assert table["gpu.util"].names[0].scale == 0.01
    (bandwidth,) = [n for s in dcgm.ENGINE.series for n in s.names if n.name == "DCGM_FI_DEV_MEM_COPY_UTIL"]
    assert bandwidth.ignore
    assert {"hostname", "Hostname"} <= set(dcgm.ENGINE.rank_labels)


def test_gauges_of_lmdeploy_that_only_grow_are_read_as_counters() -> None:
    assert {n.kind for n in (*roles(LMD)["req.finished"].names, *roles(LMD)["req.failed"].names)} == {"counter"}


def test_triton_requests_are_kept_apart_by_model() -> None:
    table = roles(triton.ENGINE)
    assert {n.by for role in ("req.finished", "req.failed", "req.waiting") for n in table[role].names} == {"model"}


def test_the_engine_behind_triton_is_read_from_its_labels() -> None:
    usage = [n for n in roles(TRT)["kv.usage"].names if n.name == "nv_trt_llm_kv_cache_block_metrics"]
    assert [dict(n.where) for n in usage] == [{"kv_cache_block_type": "fraction"}]


def test_side_tables_are_marked_and_servers_are_not() -> None:
    assert all(engine.side for engine in SIDE)
    assert not any(engine.side for engine in SERVERS)


# ---------------------------------------------------------------- configuration


TGI_ARGS = """text_generation_launcher: Args {
    model_id: "org/model-8B",
    revision: None,
    num_shard: Some(
        2,
    ),
    quantize: Some(
        Fp8,
    ),
    max_concurrent_requests: 96,
    max_total_tokens: Some(
        8192,
    ),
    cuda_memory_fraction: 0.8,
}"""


def setting(engine: Engine, text: str, name: str) -> str | None:
    args = engine.parse_args(text)
    return next((args[alias] for alias in engine.canonical_args[name] if alias in args), None)


@pytest.mark.parametrize(
    ("engine", "text", "name", "value"),
    [
        (TGI, TGI_ARGS, "tp", "2"),
        (TGI, TGI_ARGS, "max_model_len", "8192"),
        (TGI, TGI_ARGS, "model", "org/model-8B"),
        (TGI, TGI_ARGS, "fraction", "0.8"),
        (TGI, TGI_ARGS, "weight_dtype", "Fp8"),
        (TGI, TGI_ARGS, "pool_tokens", None),
        (TGI, 'Args { model_id: "m", sharded: None, num_shard: Some(4), max_total_tokens: 2048 }', "tp", "4"),
        (
            TGI,
            "text-generation-launcher --model-id m --max-total-tokens 4096 --trust-remote-code",
            "max_model_len",
            "4096",
        ),
        (TGI, "MODEL_ID=m MAX_TOTAL_TOKENS=3000", "max_model_len", "3000"),
        (TGI, '{"model_id": "m", "max_total_tokens": 3072}', "max_model_len", "3072"),
        (TRT, LINES["trt.args"], "fraction", "0.85"),
        (TRT, LINES["trt.args"], "reserve_policy", "MAX_UTILIZATION"),
        (TRT, LINES["trt.args"], "tp", "2"),
        (TRT, "kv_cache_config:\n  free_gpu_memory_fraction: 0.7\nmax_batch_size: 64\n", "fraction", "0.7"),
        (TRT, "trtllm-serve m --tp_size 4 --kv_cache_free_gpu_memory_fraction=0.6", "fraction", "0.6"),
        (
            TRT,
            'parameters: {\n  key: "batch_scheduler_policy"\n  value: {\n    string_value: "max_utilization"\n  }\n}',
            "reserve_policy",
            "max_utilization",
        ),
        (
            TRT,
            'parameters: { key: "batch_scheduler_policy" value: { string_value: "${batch_scheduler_policy}" } }',
            "reserve_policy",
            None,
        ),
        (LMD, LINES["lmd.banner"], "max_running", "96"),
        (
            LMD,
            "backend_config=TurbomindEngineConfig(tp=2, session_len=None, cache_max_entry_count=0.5)",
            "fraction",
            "0.5",
        ),
        (LMD, "backend_config=TurbomindEngineConfig(tp=2, session_len=None)", "max_model_len", None),
        (LMD, "lmdeploy serve api_server m --cache-max-entry-count 0.4 --quant-policy 8", "kv_dtype", "8"),
        (LMD, "lmdeploy serve api_server m --enable-prefix-caching --tp 2", "prefix", "True"),
    ],
)
def test_settings_as_they_are_printed(engine: Engine, text: str, name: str, value: str | None) -> None:
    assert setting(engine, text, name) == value


@given(st.text(alphabet="abAB01_-=:(){}[]<>'\", \n\\.$", max_size=300))
def test_no_configuration_text_raises(text: str) -> None:
    for engine in SERVERS:
        assert all(isinstance(value, str) for value in engine.parse_args(text).values())


@pytest.mark.parametrize("piece", ["a", "a=b(", "key:", "--a ", "a: Some(", "<a.", "A_"])
def test_a_hostile_configuration_is_read_to_its_end(piece: str) -> None:
    for engine in SERVERS:
        assert engine.parse_args(f"tp_size=2 {piece * 30_000}")["tp_size"] == "2"


# ---------------------------------------------------------------- preemption, levers, gaps


@pytest.mark.parametrize(
    ("args", "never", "kind"),
    [
        ({"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}, True, None),
        ({"capacity_scheduler_policy": "MAX_UTILIZATION"}, False, "pause"),
        ({"capacity_scheduler_policy": "CapacitySchedulerPolicy.MAX_UTILIZATION"}, False, "pause"),
        ({"batch_scheduler_policy": "max_utilization"}, False, "pause"),
        ({"batch_scheduler_policy": "guaranteed_no_evict"}, True, None),
        ({"max_batch_size": "8"}, None, None),
        ({}, None, None),
    ],
)
def test_whether_tensorrt_llm_pauses_follows_from_its_policy(
    args: dict[str, str], never: bool | None, kind: str | None
) -> None:
    assert TRT.never_preempts("1.0", args) is never
    assert TRT.preempt_kind("1.0", args) == kind


def test_tgi_never_preempts_and_lmdeploy_recomputes() -> None:
    assert TGI.never_preempts(None, {}) is True
    assert TGI.preempt_kind(None, {}) is None
    assert LMD.never_preempts(None, {}) is False
    assert LMD.preempt_kind(None, {}) == "recompute"


VERSIONS = {
    "tensorrt-llm": (None, "0.8.0", "1.3.0", "1.4.0rc2"),
    "tgi": (None, "0.9.4", "2.0.4", "2.3.1", "3.3.6-dev0"),
    "lmdeploy": (None, "0.1.0", "0.2.1", "0.18.0"),
}


@pytest.mark.parametrize("engine", SERVERS, ids=lambda engine: engine.name)
@pytest.mark.parametrize("name", sorted(LEVERS))
def test_every_lever_has_a_flag_or_says_what_to_do_instead(engine: Engine, name: str) -> None:
    for version in VERSIONS[engine.name]:
        lever = lever_for(engine, name, version)
        assert lever is not None, version
        if lever.flag is None:
            assert lever.instead
        else:
            assert lever.effect
            assert lever.cost
            assert lever.next_limit
            assert lever.verify


@pytest.mark.parametrize(
    ("engine", "lever", "version", "flag"),
    [
        (TGI, "kv.dtype", "2.2.0", None),
        (TGI, "kv.dtype", "3.0.1", "--kv-cache-dtype"),
        (TGI, "mem.prefill_chunk", "2.4.1", None),
        (TRT, "sched.policy", "1.2.0", None),
        (TRT, "sched.policy", "1.4.0", "scheduler_config.waiting_queue_policy"),
    ],
)
def test_a_flag_the_version_does_not_have_is_not_offered(
    engine: Engine, lever: str, version: str, flag: str | None
) -> None:
    found = lever_for(engine, lever, version)
    assert found is not None
    assert found.flag == flag


def test_the_share_of_lmdeploy_changed_its_meaning() -> None:
    old, new = lever_for(LMD, "kv.pool_share", "0.1.0"), lever_for(LMD, "kv.pool_share", "0.9.0")
    assert old is not None
    assert new is not None
    assert "whole device" in old.effect
    assert "left free" in new.effect


COMMANDS = {
    "metrics.kv",
    "metrics.preemptions",
    "metrics.queue",
    "metrics.latency",
    "metrics.prefix",
    "log.oom",
    "log.start",
    "log.stats",
    "observe.metrics",
    "observe.request_log",
    "observe.victims",
}


@pytest.mark.parametrize("engine", SERVERS, ids=lambda engine: engine.name)
def test_the_common_commands_are_there_and_ask_for_nothing_else(engine: Engine) -> None:
    commands = {command.name: command.text for command in engine.commands}
    assert set(commands) >= COMMANDS
    for text in commands.values():
        assert set(_placeholders(text)) <= {"url", "log", "pid"}


def _placeholders(text: str) -> list[str]:
    import string

    return [name for _, name, _, _ in string.Formatter().parse(text) if name]


@pytest.mark.parametrize("engine", SERVERS, ids=lambda engine: engine.name)
def test_what_no_series_gives_is_explained(engine: Engine) -> None:
    for fact in ("preempt.count", "recompute.tokens", "latency.stalls", "kv.evictable_share"):
        gap = gap_for(engine, fact, None)
        assert gap is not None, fact
        assert gap.reason
        assert gap.hint
