"""llama.cpp's and ollama's tables: log lines of many builds, traps, levers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.advise import Setting, action, with_actions
from kvdoctor.engines import llamacpp, ollama
from kvdoctor.engines.base import ROLES, Engine, engines, gap_for, in_range, lever_for
from kvdoctor.facts import LEVERS, Fact, FactSet, measured
from kvdoctor.findings import Action, Advice, Turn, Verdict
from kvdoctor.parse.serverlog import EVENTS, Matcher

SERVER = Matcher(llamacpp.ENGINE.templates)
OLLAMA = Matcher(ollama.ENGINE.templates)
MIB = 2.0**20
GIB = 2.0**30


def one(matcher: Matcher, line: str, template: str) -> dict[str, object]:
    found = matcher.match(line)
    assert [name for name, _, _ in found] == [template], f"{line!r} -> {found}"
    return found[0][2]


LINES = [
    ("0.00.003.422 I srv  llama_server: initializing ...", "lcp.banner", {}),
    ("build: 6123 (79c1160b) with cc (GCC) 13.2.0 for x86_64-linux-gnu", "lcp.banner.old", {"version": "6123"}),
    (
        "0.00.008.412 I cmn  common_param: common_params_print_info: build 11434 (9ab3f01) with GNU 12.2.0 for Linux x86_64",
        "lcp.version",
        {"version": "11434"},
    ),
    ("0.00.016.110 I srv    load_model: loading model 'm/tiny.gguf'", "lcp.start.model", {"model": "m/tiny.gguf"}),
    (
        "srv    load_model: initializing, n_slots = 6, n_ctx_slot = 4096, kv_unified = 'true'",
        "lcp.start.slots",
        {"slots": 6.0, "slot_tokens": 4096.0, "unified": True, "tokens": 4096.0, "max_running": 6.0},
    ),
    (
        "srv    load_model: initializing, n_slots = 6, n_ctx_slot = 4096, kv_unified = 'false'",
        "lcp.start.slots",
        {"unified": False, "tokens": 24576.0},
    ),
    (
        "srv          init: initializing slots, n_slots = 1",
        "lcp.start.n_slots",
        {"slots": 1.0, "max_running": 1.0, "unified": False},
    ),
    ("srv          init: initializing slots, n_slots = 4", "lcp.start.n_slots", {"slots": 4.0, "max_running": 4.0}),
    ("slot         init: id  1 | task -1 | new slot n_ctx_slot = 8192", "lcp.start.slot", {"slot_tokens": 8192.0}),
    ("0.00.017.504 I llama_context: n_ctx                 = 16384", "lcp.start.ctx", {"tokens": 16384.0}),
    ("llama_new_context_with_model: n_ctx      = 163840", "lcp.start.ctx", {"tokens": 163840.0}),
    (
        "0.00.017.762 I llama_kv_cache:      CUDA1 KV buffer size =   182.75 MiB",
        "lcp.start.buf.kv",
        {"device": "CUDA1", "bytes": 182.75 * MIB, "dry_run": False},
    ),
    ("llama_kv_cache:        CPU KV buffer size =     0.00 MiB", "lcp.start.buf.kv", {"dry_run": True}),
    (
        "load_tensors:        CUDA0 model buffer size =   974.50 MiB",
        "lcp.start.buf.model",
        {"device": "CUDA0", "weights": 974.5 * MIB},
    ),
    ("llm_load_tensors:     CUDA14 buffer size = 12698.50 MiB", "lcp.start.buf.model_old", {"device": "CUDA14"}),
    (
        "0.00.025.553 I sched_reserve:      CUDA0 compute buffer size =   304.25 MiB",
        "lcp.start.buf.compute",
        {"activations": 304.25 * MIB},
    ),
    (
        "llama_memory_breakdown_print: |   - CUDA0 (RTX 5090)   | 32606 = 1057 + (29365 = 28609 +     397 +     358) +        "
        "2183 |",
        "lcp.start.breakdown",
        {
            "total": 32606 * MIB,
            "free": 1057 * MIB,
            "weights": 28609 * MIB,
            "kv_pool": 397 * MIB,
            "activations": 358 * MIB,
            "non_torch": 2183 * MIB,
        },
    ),
    (
        "0.00.094.539 I srv  llama_server: listening on http://127.0.0.1:30222",
        "lcp.start.ready",
        {},
    ),
    ("main: server is listening on http://0.0.0.0:8088 - starting the main loop", "lcp.start.ready", {}),
    (
        "0.17.036.778 I slot launch_slot_: id  7 | task 81 | processing task, is_child = 0",
        "lcp.launch",
        {"slot": 7.0, "id": "81"},
    ),
    (
        "slot update_slots: id  0 | task 2017 | new prompt, n_ctx_slot = 2048, n_keep = 0, n_prompt_tokens = 2059",
        "lcp.prompt",
        {"id": "2017", "slot": 0.0, "n_ctx": 2048.0, "prompt_tokens": 2059.0},
    ),
    (
        "slot   operator(): id  3 | task 9 | new prompt, n_ctx_slot = 1024, n_keep = 0, task.n_tokens = 306",
        "lcp.prompt",
        {"n_ctx": 1024.0, "prompt_tokens": 306.0},
    ),
    (
        "slot   operator(): id  3 | task 9 | cached n_tokens = 48, memory_seq_rm [48, end)",
        "lcp.cached",
        {"id": "9", "cached_tokens": 48.0},
    ),
    ("slot update_slots: id  0 | task 12 | kv cache rm [77, end)", "lcp.cached.old", {"cached_tokens": 77.0}),
    (
        "slot get_availabl: id  6 | task -1 | selected slot by LRU, t_last = 88123456789",
        "lcp.lru",
        {"slot": 6.0, "how": "lru", "t_last": 88123456789.0},
    ),
    (
        "slot get_availabl: id  2 | task -1 | selected slot by LCP similarity, f_sim_best = 0.912 (> 0.100 thold), "
        "f_keep = 0.955",
        "lcp.lcp",
        {"slot": 2.0, "how": "similarity", "similarity": 0.912, "keep": 0.955},
    ),
    (
        "slot get_availabl: id  2 | task -1 | selected slot by lcs similarity, lcs_len = 10, similarity = 0.5",
        "lcp.similarity",
        {"how": "similarity"},
    ),
    (
        "1.07.000.001 W srv  try_clear_id: purging slot 4 with 619 tokens",
        "lcp.purge",
        {"slot": 4.0, "n_tokens": 619.0, "how": "purge"},
    ),
    (
        "slot      release: id  5 | task 91 | stop processing: n_tokens = 298, truncated = 0",
        "lcp.release",
        {"slot": 5.0, "id": "91", "n_tokens": 298.0, "truncated": False},
    ),
    (
        "slot      release: id  0 | task 14 | stop processing: n_past = 2047, truncated = 1",
        "lcp.release",
        {"n_tokens": 2047.0, "truncated": True},
    ),
    (
        "slot print_timing: id  0 | task 812 | prompt eval time =  762857.00 ms / 96120 tokens (    7.94 ms per token,   "
        "126.00 tokens per second)",
        "lcp.timing.prompt",
        {"id": "812", "prompt_s": 762.857, "prompt_tokens": 96120.0},
    ),
    (
        "slot print_timing: id  5 | task 87 |        eval time =    7825.00 ms /   250 tokens (   31.30 ms per token,    31.95 "
        "tokens per second)",
        "lcp.timing.gen",
        {"id": "87", "slot": 5.0, "gen_s": 7.825, "output_tokens": 250.0},
    ),
    (
        "prompt eval time =    5093.50 ms /  1360 tokens (    3.75 ms per token,   267.01 tokens per second)",
        "lcp.timing.prompt",
        {"prompt_s": 5.0935, "prompt_tokens": 1360.0},
    ),
    (
        "       eval time =     319.50 ms /    10 tokens (   31.96 ms per token,    31.29 tokens per second)",
        "lcp.timing.gen",
        {"gen_s": 0.3195, "output_tokens": 10.0},
    ),
    (
        "srv  get_availabl: no slot is available, defer task, id_task = 44",
        "lcp.defer",
        {"id": "44"},
    ),
    (
        "0.18.650.750 W srv        decode: failed to find free space in the KV cache, retrying with smaller batch size, off = "
        "0, n_batch = 64, ret = 1",
        "lcp.retry",
        {"batch": 64.0},
    ),
    (
        "srv  update_slots: failed to find free space in the KV cache, retrying with smaller n_batch = 32",
        "lcp.retry",
        {"batch": 32.0},
    ),
    (
        "0.18.702.916 E srv        decode: Context size has been exceeded. off = 5, n_batch = 1, ret = 1",
        "lcp.fatal",
        {"batch": 1.0, "final": True},
    ),
    (
        "srv  update_slots: failed to decode the batch: KV cache is full - try increasing it via the context size, i = 0, "
        "n_batch = 1, ret = 1",
        "lcp.fatal.old",
        {"final": True},
    ),
    (
        "0.18.702.931 E srv    send_error: task id = 9, error: Context size has been exceeded.",
        "lcp.send_error.full",
        {"id": "9", "why": "Context size has been exceeded."},
    ),
    (
        "srv    send_error: task id = 17, error: request (1377 tokens) exceeds the available context size (1024 tokens), try "
        "increasing it",
        "lcp.exceed",
        {"id": "17", "n_tokens": 1377.0, "n_ctx": 1024.0},
    ),
    (
        '{"error":{"code":400,"message":"request (1615 tokens) exceeds the available context size (1024 tokens), try '
        'increasing it","type":"exceed_context_size_error","n_prompt_tokens":1615,"n_ctx":1024}}',
        "lcp.exceed",
        {"n_tokens": 1615.0, "n_ctx": 1024.0},
    ),
    (
        "srv    send_error: task id = 2018, error: the request exceeds the available context size. try increasing the context "
        "size or enable context shift",
        "lcp.exceed.old",
        {"id": "2018"},
    ),
    (
        "slot update_slots: id  1 | task 5 | input truncated, n_ctx = 2048, n_keep = 0, n_left = 2048, n_prompt_tokens = 1536",
        "lcp.truncated",
        {"n_ctx": 2048.0, "n_tokens": 1536.0, "truncated": True},
    ),
    (
        "slot update_slots: id  1 | task 5 | slot context shift, n_keep = 4, n_left = 4091, n_discard = 2045",
        "lcp.shift",
        {"slot": 1.0, "id": "5", "n_discard": 2045.0},
    ),
    (
        "srv        update:  - cache size limit reached, removing oldest entry (size = 12.50 MiB)",
        "lcp.cache_evict",
        {"bytes": 12.5 * MIB},
    ),
    (
        "srv        update:  - prompt state size 9000.00 MiB exceeds cache size limit 8192.00 MiB, skipping",
        "lcp.cache_too_big",
        {"bytes": 9000 * MIB, "limit": 8192 * MIB},
    ),
    (
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        "lcp.oom.kv",
        {"error": "pool_too_small"},
    ),
    ("graph_reserve: failed to allocate compute pp buffers", "lcp.oom.compute", {"part": "pp"}),
    (
        "/build/ggml/src/ggml-cuda/ggml-cuda.cu:1288: GGML_ASSERT(status == cudaSuccess) failed",
        "lcp.assert",
        {"text": "GGML_ASSERT(status == cudaSuccess) failed"},
    ),
    ("terminate called after throwing an instance of 'std::runtime_error'", "lcp.throw", {}),
    (
        "slot update_slots: id  0 | task 300 | forcing full prompt re-processing due to lack of cache data (likely due to SWA or "
        "hybrid/recurrent memory, see https://github.com/ggml-org/llama.cpp/pull/13194#issuecomment-2868343055)",
        "lcp.state_lost",
        {"slot": 0.0, "id": "300"},
    ),
    # the words of 2023 and early 2024
    ("slot 3 is processing [task id: 71]", "lcp.launch.old", {"slot": 3.0, "id": "71"}),
    ("slot 3 : kv cache rm - [24, end)", "lcp.cached.oldest", {"slot": 3.0, "cached_tokens": 24.0}),
    ("slot 3 released (812 tokens in cache)", "lcp.release.old", {"slot": 3.0, "n_tokens": 812.0}),
    ("update_slots : failed to decode the batch, n_batch = 1, ret = 1", "lcp.fatal.old", {"batch": 1.0, "final": True}),
    (
        "0.21.200.101 E srv    send_error: task id = 12, error: Context size has been exceeded.",
        "lcp.send_error.full",
        {"id": "12", "overflow": True},
    ),
]


@pytest.mark.parametrize("line, template, expected", LINES)
def test_line(line: str, template: str, expected: dict[str, object]) -> None:
    fields = one(SERVER, line, template)
    assert {name: fields.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "0.18.650.737 W decode: failed to find a memory slot for batch of size 8",  # the allocator's view of the same failure
        "srv  update_slots: decode() failed: Context size has been exceeded.",  # the second line of it
        "srv          stop: cancel task, id_task = 9",
        "slot print_timing: id  5 | task 87 |       total time =   7990.00 ms /   620 tokens",
        "slot print_timing: id  5 | task 87 | n_gen =    12, tg =  29.95 t/s, tg_3s =  29.95 t/s",
        "0.00.012.845 I llama_kv_cache: size =   16.00 MiB (  1024 cells,   4 layers,  4/4 seqs), K (f16):    8.00 MiB",
        "0.00.012.712 I llama_context:        CPU  output buffer size =     0.01 MiB",
        "common_params_print_info: build 0 (unknown) with GNU 12.2.0 for Linux x86_64",
    ],
)
def test_lines_that_must_not_count(line: str) -> None:
    assert SERVER.match(line) == []


def test_trial_run_is_marked_and_its_zero_is_no_size() -> None:
    fields = one(SERVER, "load_tensors:          CPU model buffer size =     0.00 MiB", "lcp.start.buf.model")
    assert fields == {"device": "CPU", "dry_run": True}
    line = (
        "common_memory_breakdown_print: |   - CUDA0 (RTX 5060 Ti) | 15841 = 15630 + (15302 = 14736 +      72 +     493) + "
        "17592186029324 |"
    )
    fields = one(SERVER, line, "lcp.start.breakdown")
    assert fields["dry_run"] is True
    assert "non_torch" not in fields
    negative = line.replace("17592186029324", "-8603")
    assert one(SERVER, negative, "lcp.start.breakdown")["dry_run"] is True


def test_an_unused_slot_loses_nothing() -> None:
    line = "slot get_availabl: id  7 | task -1 | selected slot by LRU, t_last = -1"
    assert one(SERVER, line, "lcp.lru")["t_last"] == -1.0


def test_command_lines() -> None:
    line = "exec llama-server --port 8080 --model /mnt/m.gguf -c 8192 -np 4 --no-mmap -ctk q8_0 --metrics"
    text = one(SERVER, line, "lcp.command")["text"]
    args = llamacpp.ENGINE.parse_args(str(text))
    assert args["ctx_size"] == "8192"
    assert args["parallel"] == "4"
    assert args["mmap"] == "False"
    assert args["metrics"] == "True"
    assert [args[name] for name in llamacpp.CANONICAL["kv_dtype"]] == ["q8_0"]
    assert llamacpp.ENGINE.parse_args("-n -1 --parallel=2") == {"predict": "-1", "parallel": "2"}
    # left to the server: nothing that could be lowered
    assert llamacpp.ENGINE.parse_args("-c 0 -np -1 -ngl auto --metrics") == {"metrics": "True"}


@given(st.text(max_size=300))
def test_arguments_never_fail(text: str) -> None:
    llamacpp.ENGINE.parse_args(text)
    ollama.ENGINE.parse_args(text)


def test_hostile_line_stays_cheap() -> None:
    for template in ollama.ENGINE.templates:
        text = (template.literal + " ") * (60_000 // (len(template.literal) + 1))
        assert len(OLLAMA.match(text)) < 2000


# ---------------------------------------------------------------- ollama

OLLAMA_LINES = [
    (
        'time=2025-09-06T11:37:53.863+09:00 level=INFO source=routes.go:1265 msg="Listening on 127.0.0.1:11434 (version 0.7.0)"',
        "oll.banner",
        {"version": "0.7.0"},
    ),
    (
        'time=2024-08-04T06:26:29.575 level=INFO source=sched.go:445 msg="loaded runners" count=2',
        "oll.loaded",
        {"count": 2.0},
    ),
    (
        'level=DEBUG source=sched.go:280 msg="resetting model to expire immediately to make room" '
        "modelPath=/models/blobs/sha256-ff1d refCount=0",
        "oll.evict",
        {"model": "/models/blobs/sha256-ff1d", "why": "room"},
    ),
    (
        'level=INFO source=sched.go:714 msg="new model will fit in available VRAM in single GPU, loading" '
        'model=/m/sha256-6a gpu=0 parallel=4 available=22906503168 required="6.5 GiB"',
        "oll.fits",
        {"slots": 4.0, "free": 22906503168.0, "need": 6.5 * GIB, "model": "/m/sha256-6a"},
    ),
    (
        'level=INFO source=memory.go:309 msg="offload to cuda" layers.requested=-1 layers.model=33 layers.offload=21 '
        'layers.split="" memory.available="[22.1 GiB]" memory.required.full="6.2 GiB" memory.required.kv="1.5 GiB" '
        'memory.weights.total="4.5 GiB" memory.graph.full="560.0 MiB"',
        "oll.estimate",
        {"kv_pool": 1.5 * GIB, "weights": 4.5 * GIB, "activations": 560 * MIB, "layers": 21.0, "layers_all": 33.0},
    ),
    (
        'level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="800.0 MiB"',
        "oll.part.kv",
        {"device": "CUDA0", "bytes": 800 * MIB},
    ),
    (
        'level=INFO source=ggml.go:365 msg="model weights" buffer=CUDA1 size="11.5 GiB"',
        "oll.part.weights",
        {"device": "CUDA1", "weights": 11.5 * GIB},
    ),
    (
        'level=INFO source=runner.go:1271 msg=load request="{Operation:commit LoraPath:[] Parallel:2 BatchSize:512 '
        'FlashAttention:true KvSize:32768 KvCacheType: NumThreads:1}"',
        "oll.load_request",
        {"tokens": 32768.0, "slots": 2.0, "slot_tokens": 16384.0, "max_running": 2.0},
    ),
    (
        'level=WARN source=runner.go:129 msg="truncating input prompt" limit=2048 prompt=2815 keep=25 new=2048',
        "oll.truncated",
        {"n_ctx": 2048.0, "n_tokens": 2815.0, "truncated": True},
    ),
    (
        'level=DEBUG source=cache.go:240 msg="context limit hit - shifting" id=0 limit=50 input=50 keep=4 discard=23',
        "oll.shift",
        {"n_ctx": 50.0, "n_discard": 23.0},
    ),
    (
        '[GIN] 2024/08/04 - 06:26:58 | 200 | 14.9021s |       10.0.0.9 | POST     "/api/generate"',
        "oll.request",
        {"status": 200.0, "finish": None},
    ),
    (
        '[GIN] 2024/08/04 - 06:26:58 | 500 | 14.9021s |       10.0.0.9 | POST     "/api/generate"',
        "oll.request",
        {"status": 500.0, "finish": "abort"},
    ),
    (
        'level=INFO source=types.go:130 msg="inference compute" id=GPU-8c1f library=cuda variant=v12 compute=8.9 total="23.6 GiB"',
        "oll.device",
        {"library": "cuda"},
    ),
    ("chat:27b    a418f5838eaf    44 GB    48%/52% CPU/GPU    4 minutes from now", "oll.ps.split", {"cpu": 0.48}),
    ("chat:8b    a418f5838eaf    6.1 GB    100% GPU    8192    Forever", "oll.ps.gpu", {"cpu": 0.0}),
    ("chat:8b    a418f5838eaf    6.1 GB    100% CPU    4 minutes from now", "oll.ps.cpu", {"cpu": 1.0}),
    (
        'level=ERROR source=server.go:449 msg="llama runner terminated" error="exit status 2"',
        "oll.runner_died",
        {"text": "exit status 2", "start": None},
    ),
    (
        'level=WARN source=gpu.go:449 msg="error looking up nvidia GPU memory" error="nvml failed to get memory info: GPU is lost"',
        "oll.gpu_lost",
        {"text": "GPU is lost"},
    ),
    (
        'level=ERROR source=sched.go:455 msg="error loading llama server" error="timed out waiting for llama runner to start: '
        'context canceled"',
        "oll.loading_failed",
        {"start": True},
    ),
    (
        'level=INFO source=sched.go:470 msg="Load failed" model=/m/sha256-5e error="model requires more system memory (1.9 '
        'GiB) than is available (1.4 GiB)"',
        "oll.load_failed",
        {"error": "weights"},
    ),
    (
        'level=INFO source=sched.go:429 msg="NewLlamaServer failed" model=/m/sha256-5e error="model requires more system '
        'memory (90.1 GiB) than is available (61.4 GiB)"',
        "oll.server_failed",
        {"error": "weights", "text": "model requires more system memory (90.1 GiB) than is available (61.4 GiB)"},
    ),
]


@pytest.mark.parametrize("line, template, expected", OLLAMA_LINES)
def test_ollama_line(line: str, template: str, expected: dict[str, object]) -> None:
    fields = one(OLLAMA, line, template)
    assert {name: fields.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        '[GIN] 2024/08/04 - 06:26:58 | 200 | 100µs | 10.0.0.9 | GET      "/api/ps"',  # not a request for tokens
        'level=INFO source=runner.go:1271 msg=load request="{Operation:alloc LoraPath:[] Parallel:2 KvSize:32768}"',  # a trial
        "srv    load_model: loading model '/m/sha256-ff1d'",  # the runner's word for what "loaded runners" counts
        "0.00.003.422 I srv  llama_server: initializing ...",  # a runner's start is not the server's
    ],
)
def test_ollama_lines_that_must_not_count(line: str) -> None:
    assert OLLAMA.match(line) == []


def test_ollama_runner_lines_are_llamacpp_lines() -> None:
    line = "slot update_slots: id  0 | task 7 | slot context shift, n_keep = 4, n_left = 8187, n_discard = 4093"
    assert one(OLLAMA, line, "lcp.shift")["n_discard"] == 4093.0


def test_ollama_runner_command_line() -> None:
    line = (
        'source=server.go:391 msg="starting llama server" cmd="/tmp/runners/cuda_v12/ollama_llama_server --model /m/x '
        '--ctx-size 8192 --batch-size 512 --parallel 4 --port 39905"'
    )
    args = ollama.ENGINE.parse_args(str(one(OLLAMA, line, "oll.runner")["text"]))
    assert (args["ctx_size"], args["parallel"]) == ("8192", "4")
    for command in (
        'starting runner" cmd="C:\\\\ollama.exe runner --ollama-engine',
        'starting llama-server" cmd="/usr/lib/llama-server',
    ):
        line = f'source=server.go:431 msg="{command} --model /m/x --ctx-size 8192 --parallel 4 --port 39905"'
        assert ollama.ENGINE.parse_args(str(one(OLLAMA, line, "oll.runner")["text"]))["ctx_size"] == "8192"
    env = ollama.ENGINE.parse_args(
        "map[OLLAMA_DEBUG:false OLLAMA_NUM_PARALLEL:3 OLLAMA_ORIGINS:[http://a] OLLAMA_TMPDIR:]"
    )
    assert env["OLLAMA_NUM_PARALLEL"] == "3"
    assert args["num_ctx"] == "2048"
    assert ollama.ENGINE.parse_args("map[OLLAMA_NUM_PARALLEL:0 OLLAMA_GPU_OVERHEAD:0]") == {"OLLAMA_GPU_OVERHEAD": "0"}
    assert "OLLAMA_TMPDIR" not in env


# ---------------------------------------------------------------- tables


def test_series_are_in_the_vocabulary_and_traps_are_named() -> None:
    ignored = set()
    for entry in llamacpp.ENGINE.series:
        assert entry.role in ROLES
        ignored |= {name.name for name in entry.names if name.ignore}
    assert ignored == {
        "llamacpp:n_tokens_max",
        "llamacpp:predicted_tokens_seconds",
        "llamacpp:n_busy_slots_per_decode",
    }


@pytest.mark.parametrize("engine", [llamacpp.ENGINE, ollama.ENGINE], ids=lambda e: e.name)
@pytest.mark.parametrize("lever", sorted(LEVERS))
def test_every_lever_has_an_answer(engine: object, lever: str) -> None:
    table = engines()[engine.name]  # type: ignore[attr-defined]
    for version in ("b4567", "b11434", "0.3.0", "0.12.1", None):
        entry = lever_for(table, lever, version)
        assert entry is not None
        assert (
            entry.instead if entry.flag is None else entry.effect and entry.cost and entry.verify and entry.next_limit
        )


def turned(engine: Engine, lever: str, direction: str, version: str, to: Fact | None = None) -> Action:
    facts = FactSet()
    facts.set("mem.total", measured(24 * GIB, "s", "log"))
    facts.set("oom.count", measured(1.0, "e", "log"))
    return action(Turn(lever, direction, to, "1", "why"), (), Setting(engine, version, {}, facts))


@pytest.mark.parametrize(
    ("engine", "version", "flag"),
    [(llamacpp.ENGINE, "11434", "--fit-target MIB"), (ollama.ENGINE, "0.12.1", "OLLAMA_GPU_OVERHEAD=BYTES")],
    ids=["llamacpp", "ollama"],
)
def test_what_is_left_free_grows_where_the_share_shrinks(engine: Engine, version: str, flag: str) -> None:
    smaller = turned(engine, "kv.pool_share", "down", version, measured(0.8, "s", "rule"))
    assert (smaller.flag, smaller.direction) == (flag, "up")
    # neither a share nor the bytes of a hundredth of it belongs to a margin
    assert "0.8" not in (smaller.to or "")
    assert "0.01" not in smaller.effect
    larger = turned(engine, "kv.pool_share", "up", version)
    assert larger.flag is None
    assert larger.start is None
    assert "cache type" in larger.instead


@pytest.mark.parametrize("engine", [llamacpp.ENGINE, ollama.ENGINE], ids=lambda e: e.name)
def test_a_context_that_was_given_overrules_nothing(engine: Engine) -> None:
    """The pool is so many tokens in any case: a smaller type makes it smaller, a larger context does not."""
    turns = (Turn("kv.dtype", "set", "an 8-bit type", "1", "why"), Turn("kv.pool_share", "up", None, "1", "why"))
    setting = Setting(engine, None, {"ctx_size": "65536"}, FactSet())
    verdict = Verdict("rule", "KV999", "fires", "title", "high", 2, None, False)
    small, share = with_actions(verdict, Advice(turns, (), (), {}), setting).actions
    assert (small.lever, small.to) == ("kv.dtype", "an 8-bit type")
    assert share.flag is None
    assert share.effect == LEVERS["kv.pool_share"]


def test_memory_left_free_is_no_share_of_the_pool_kept_free() -> None:
    assert turned(ollama.ENGINE, "admission.free_share", "up", "0.12.1").flag is None


@pytest.mark.parametrize("engine", [llamacpp.ENGINE, ollama.ENGINE], ids=lambda e: e.name)
def test_common_topics_have_a_command(engine: object) -> None:
    names = {command.name for command in engine.commands}  # type: ignore[attr-defined]
    assert names >= {
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


@pytest.mark.parametrize("engine", [llamacpp.ENGINE, ollama.ENGINE], ids=lambda e: e.name)
def test_templates_use_known_events(engine: object) -> None:
    templates = engine.templates  # type: ignore[attr-defined]
    assert {template.event for template in templates} <= set(EVENTS)
    assert len({template.id for template in templates}) == len(templates)
    for template in templates:
        re.compile(template.pattern)


def test_nobody_is_asked_for_the_log_that_was_given() -> None:
    """Request lines of ollama's log tell that a request ended, not that one waits."""
    for fact in ("req.waiting", "req.waiting_max", "req.running_max"):
        gap = gap_for(ollama.ENGINE, fact, "0.12.1")
        assert gap is not None
        assert "log" not in gap.hint
    deferred = gap_for(llamacpp.ENGINE, "req.waiting_max", "b11434")
    assert deferred is not None
    assert "requests_deferred" in deferred.hint


def test_the_engine_never_preempts_but_aborts() -> None:
    assert llamacpp.ENGINE.never_preempts("b11434", {}) is True
    assert llamacpp.ENGINE.preempt_kind("b11434", {}) == "abort"
    assert gap_for(llamacpp.ENGINE, "preempt.hit_share", "b11434") is not None


def test_old_usage_gauge_belongs_to_old_builds() -> None:
    usage = next(e for e in llamacpp.ENGINE.series if e.role == "kv.usage").names[0]
    assert in_range("b4567", usage.since, usage.until) is True
    assert in_range("b11434", usage.since, usage.until) is False
