"""Device out-of-memory messages in every wording, broken and wrapped; what is no such message is not found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse import OOM_LITERALS, Unread
from kvdoctor.parse.oom import SITES, OomMessage, find, site

KIB, MIB, GIB = 2**10, 2**20, 2**30

TORCH_2 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.74 GiB. GPU 1 has a total capacity of 23.57 GiB of "
    "which 605.88 MiB is free. Process 133288 has 22.97 GiB memory in use. Of the allocated memory 20.21 GiB is allocated "
    "by PyTorch, with 128.00 MiB allocated in private pools (e.g., CUDA Graphs), and 185.98 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
TORCH_1 = (
    "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 47.54 GiB total capacity; 23.68 GiB already allocated; "
    "23.44 GiB free; 23.77 GiB allowed; 23.77 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
)
ASYNC = (
    "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
    "Currently allocated     : 9.43 GiB\nRequested               : 640.00 MiB\nDevice limit            : 11.59 GiB\n"
    "Free (according to CUDA): 7.12 MiB\nPyTorch limit (set by user-supplied memory fraction)\n"
    "                        : 17179869184.00 GiB\n"
)


def one(text: str) -> OomMessage:
    found = find(text)
    assert len(found) == 1, found
    return found[0]


def test_the_current_torch_wording() -> None:
    message = one(TORCH_2)
    assert (message.wording, message.backend, message.device, message.line) == ("torch-2", "cuda", 1, 1)
    assert message.requested == round(1.74 * GIB)
    assert message.total == round(23.57 * GIB)
    assert message.free == round(605.88 * MIB)
    assert message.allocated == round(20.21 * GIB)
    assert message.private_pools == 128 * MIB
    assert message.unallocated == round(185.98 * MIB)
    assert message.reserved == message.allocated + message.unallocated
    assert message.processes == ((133288, round(22.97 * GIB)),)
    assert isinstance(message.cap, Unread)
    assert isinstance(message.this_process, Unread)


def test_how_far_the_printed_digits_reach() -> None:
    steps = one(TORCH_2).half_step
    assert steps["requested"] == pytest.approx(0.005 * GIB, abs=1)
    assert steps["free"] == pytest.approx(0.005 * MIB, abs=1)
    assert steps["reserved"] == steps["allocated"] + steps["unallocated"]


def test_the_own_process_the_misspelt_capacity_and_no_private_pools() -> None:
    message = one(
        "CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacty of 22.36 GiB of which 448.00 KiB is "
        "free. Process 7 has 1.00 GiB memory in use. Including non-PyTorch memory, this process has 21.23 GiB memory in "
        "use. Of the allocated memory 20.31 GiB is allocated by PyTorch, and 118.20 MiB is reserved by PyTorch but "
        "unallocated."
    )
    assert (message.this_process, message.free) == (round(21.23 * GIB), 448 * KIB)
    assert message.processes == ((7, GIB),)
    assert isinstance(message.private_pools, Unread)


def test_a_cap_refuses_although_the_device_is_free_and_2_to_the_64_is_no_size() -> None:
    message = one(
        "CUDA out of memory. Tried to allocate 18.63 GiB. GPU 0 has a total capacity of 45.00 GiB of which 43.66 GiB is "
        "free. Process 1459 has 17179869184.00 GiB memory in use. 2.25 GiB allowed; Of the allocated memory 0 bytes is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    assert (message.cap, message.allocated, message.unallocated) == (round(2.25 * GIB), 0, 0)
    ((pid, used),) = message.processes
    assert (pid, isinstance(used, Unread)) == (1459, True)


def test_the_torch_1_wording_computes_what_it_does_not_print() -> None:
    message = one(TORCH_1)
    assert (message.wording, message.device, message.cap) == ("torch-1", 0, round(23.77 * GIB))
    assert message.reserved == round(23.77 * GIB)
    assert message.unallocated == message.reserved - round(23.68 * GIB)


def test_older_and_foreign_forms_of_the_torch_1_wording() -> None:
    cached = one(
        "CUDA out of memory. Tried to allocate 1.65 GiB (GPU 1; 7.79 GiB total capacity; 3.53 GiB already allocated; "
        "1.40 GiB free; 5.28 GiB cached)"
    )
    ascend = one(
        "RuntimeError: NPU out of memory. Tried to allocate 260.00 MiB (NPU 0; 28.50 GiB total capacity; 10.24 GiB "
        "already allocated; 10.24 GiB current active; 149.57 MiB free; 10.28 GiB reserved in total by PyTorch)"
    )
    assert cached.reserved == round(5.28 * GIB)
    assert (ascend.backend, ascend.free, ascend.reserved) == ("npu", round(149.57 * MIB), round(10.28 * GIB))


@pytest.mark.parametrize(("word", "backend"), [("HIP", "hip"), ("XPU", "xpu")])
def test_other_accelerators_use_the_same_words(word: str, backend: str) -> None:
    message = one(TORCH_2.replace("CUDA out", f"{word} out"))
    assert (message.backend, message.requested) == (backend, round(1.74 * GIB))


@pytest.mark.parametrize("form", [ASYNC, ASYNC.replace("\n", "\\n"), ASYNC.replace("\n", "\nERROR 03-19 [x.py:1] ")])
def test_the_async_allocator_prints_lines_of_its_own(form: str) -> None:
    message = one(form)
    assert (message.wording, message.device, message.requested) == ("torch-async", 0, 640 * MIB)
    assert (message.allocated, message.free) == (round(9.43 * GIB), round(7.12 * MIB))
    assert message.cap == Unread("no cap is set")


@pytest.mark.parametrize(
    ("text", "wording"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", "torch-1eb"),
        ("RuntimeError: CUDA out of memory.", "torch-bare"),
        (
            TORCH_2 + " This is virtual-address-space (VSZ) exhaustion from expandable segments, not",
            "torch-address-space",
        ),
        (TORCH_2 + " This allocation exceeds the expandable-segment reserve of 90 GiB, and", "torch-segment"),
        (
            'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp"',
            "torch-nvml-assert",
        ),
        ("RuntimeError: CUDA error: out of memory", "driver"),
        ("RuntimeError: CUDA driver error: out of memory", "driver"),
        ("HIP error: out of memory", "driver"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "driver"),
        ("NCCL WARN Cuda failure 2 'out of memory'", "driver"),
        ("[TM][ERROR] CUDA runtime error: out of memory /src/turbomind/utils/allocator.h:236", "turbomind"),
        (
            "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, pool, s): out of memory (x.h:237)",
            "tensorrt-llm",
        ),
        ("RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease", "tgi-warmup"),
        ("error: failed to allocate compute pp buffers", "llama-context"),
    ],
)
def test_wordings_without_a_breakdown(text: str, wording: str) -> None:
    message = one(f"INFO before\n{text}\nINFO after\n")
    assert (message.wording, message.line) == (wording, 2)
    assert any(literal in text for literal in OOM_LITERALS)


def test_a_rejection_by_the_memory_fraction() -> None:
    message = one(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
        "limit. Requested size: 2.00 GiB. Reserved 9.00 GiB + requested size would exceed memory limit (10.00 GiB)"
    )
    assert (message.wording, message.requested, message.cap) == ("torch-fraction", 2 * GIB, 10 * GIB)


def test_a_sampler_warm_up_names_its_site() -> None:
    message = one("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please")
    assert (message.wording, message.site) == ("vllm-warmup", "sampler")


def test_llama_cpp_tells_one_failure_three_times() -> None:
    message = one(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1792.00 MiB on device 0: cudaMalloc failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1879048192\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n"
    )
    assert (message.wording, message.backend, message.device) == ("ggml", "cuda", 0)
    assert (message.requested, message.half_step["requested"]) == (1879048192, 0)
    assert message.site == "kv_alloc"


def test_llama_cpp_names_the_compute_buffer() -> None:
    allocating = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1792.00 MiB on device 0: cudaMalloc failed: out of memory\n"
    graph = "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 1879048192\n"
    assert one(allocating + graph).site == "prefill"
    assert one(graph).site == "prefill"
    assert one(allocating + graph + "llama_init_from_model: failed to allocate compute buffers\n").site == "prefill"
    assert one("graph_reserve: failed to allocate compute pp buffers\n").site == "prefill"
    # a tensor buffer holds weights or the cache: the words do not tell which
    tensors = one(allocating + "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1879048192\n")
    assert isinstance(tensors.site, Unread)


def test_two_devices_are_two_messages_and_rocm_is_told_by_the_buffer() -> None:
    first, second = find(
        "allocating 10.00 MiB on device 0: cudaMalloc failed: out of memory\n"
        "allocating 20.00 MiB on device 1: cudaMalloc failed: out of memory\n"
        "ggml_gallocr_reserve_n: failed to allocate ROCm1 buffer of size 20971520\n"
    )
    assert (first.device, first.requested) == (0, 10 * MIB)
    assert (second.device, second.requested, second.backend) == (1, 20 * MIB, "hip")


def test_ggml_names_the_device_after_a_bare_driver_error() -> None:
    assert one("CUDA error: out of memory\n  current device: 3, in function alloc at ggml-cuda.cu:405\n").device == 3


def test_tensorrt_prints_the_size_in_bytes() -> None:
    text = "[E] Error[2]: [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 104 bytes.)"
    assert one(text).requested == 104


def test_ray_folds_many_messages_into_one_line() -> None:
    first, second = find(
        f"{TORCH_2}\n\x1b[36m(W pid=1)\x1b[0m {TORCH_2}\x1b[32m [repeated 30x across cluster]\x1b[0m\n"
    )
    assert (first.times, second.times) == (1, 30)


@pytest.mark.parametrize(
    "text",
    [
        "[2025-01-06 02:58:44 TP0] Decode out of memory happened. #retracted_reqs: 1",
        "RuntimeError: Decode out of memory. Try to lower your batch size.",
        "RuntimeError: Prefill out of memory. Try to lower your batch size.",
        "alloc_req_slots runs out of memory. Please set a smaller number",
        "dp0 ID 3: cache out of memory, no request can be admitted",
        "Memory cgroup out of memory: Killed process 4177 (ray::RayWorkerW)",
        "Out of memory: Killed process 1 (python)",
        "If out-of-memory error occurs during cudagraph capture, consider decreasing",
        "Lower it to avoid CUDA out of memory errors.",
        "Not enough memory to handle `max_total_tokens=4096`",
        "model request too large for system",
        "alloc_tensor_range: failed to allocate CPU buffer of size 1879048192",
        "omitting per-process memory info from CUDA out-of-memory messages.",
    ],
)
def test_what_is_about_slots_host_memory_or_advice_is_not_found(text: str) -> None:
    assert find(f"x\n{text}\ny\n") == []


def test_line_numbers_follow_the_file() -> None:
    found = find(f"a\n{TORCH_2}\nb\n{TORCH_1}\n", first_line=101)
    assert [m.line for m in found] == [102, 104]


@given(st.integers(0, len(TORCH_2)), st.sampled_from(["\n", "\r\n", "\\n", " "]))
def test_one_break_anywhere_changes_nothing(position: int, broken_by: str) -> None:
    message = one(TORCH_2[:position] + broken_by + TORCH_2[position:])
    whole = one(TORCH_2)
    assert (message.requested, message.free, message.unallocated) == (whole.requested, whole.free, whole.unallocated)
    assert message.processes == whole.processes


@given(st.integers(0, len(TORCH_2)))
def test_a_cut_message_gives_fewer_numbers_never_other_ones(cut: int) -> None:
    whole = one(TORCH_2)
    for message in find(TORCH_2[:cut]):
        for name in ("total", "free", "allocated", "unallocated", "private_pools"):
            value = getattr(message, name)
            assert isinstance(value, Unread) or value == getattr(whole, name)


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    find(text)
    find(f"CUDA out of memory. Tried to allocate {text}")


@pytest.mark.parametrize(
    "piece", ["CUDA out of memory. Tried to allocate ", "CUDA runtime error in ", "1 GiB allowed; ", "Process 1 has "]
)
def test_hostile_repetition_is_read_in_one_pass(piece: str) -> None:
    assert len(find(piece * 20_000)) <= 20_000


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        (['File "/x/vllm/v1/sample/ops/topk_topp_sampler.py", line 79, in forward_native'], "sampler"),
        (
            ['File "/x/vllm/model_executor/layers/sampler.py", line 261', "logprobs = torch.log_softmax(logits"],
            "logprobs",
        ),
        (['File "/x/vllm/v1/worker/gpu_model_runner.py", line 5120, in capture_model'], "graph_capture"),
        (['File "/x/vllm/lora/layers.py", line 388, in apply'], "lora"),
        (['File "/x/lorax_server/models/flash_causal_lm.py", line 9, in prefill'], "prefill"),
        (
            ['File "/x/vllm/model_executor/models/qwen2_vl.py", line 9, in _process_image_input', "self.visual(x)"],
            "multimodal",
        ),
        (['File "/x/gpu_worker.py", line 9, in load_model'], "weights_load"),
        (['File "/x/gpu_model_runner.py", line 9, in initialize_kv_cache_tensors'], "kv_alloc"),
        (['File "/x/sglang/srt/model_executor/model_runner.py", line 9, in forward_extend'], "prefill"),
        (['File "/x/sglang/srt/model_executor/model_runner.py", line 9, in forward_decode'], "decode"),
        # log lines are no frames: settings name what nobody asked for (a step that was begun is an event of the log)
        (["[TM][INFO] [decodeContext] base = 0, count = 8", "[TM][INFO] context decoding start"], "other"),
        (["[TensorRT-LLM][INFO] TRTGptModel normalizeLogProbs: 1"], "other"),
        (
            ["[07/08/2025-19:44:02] [TRT-LLM] [I] PyTorchConfig(mixed_sampler=False, enable_trtllm_sampler=False)"],
            "other",
        ),
        (["Sampler: 41.20 / 41.20", "  Sampler: reduce max_seq_len and/or max_attention_window_size"], "other"),
        (["INFO 01-02 03:04:05 [config.py:12] max_logprobs=20, lora_config=None"], "other"),
        (["2024-01-02 03:04:05,678 - lmdeploy - WARNING - logprobs_mode is not set"], "other"),
        (['  File "/x/model.py", line 3, in f', '    logger.warning("INFO")', "    x = log_softmax(y)"], "logprobs"),
        (["3  0x7f1 tensorrt_llm::batch_manager::HandleContextLogits::operator()(int) const + 801"], "logprobs"),
        # a plain forward that only hands the setting on
        (["    outputs = self._forward_step(inputs, gather_ids, gather_context_logits)"], "other"),
        (["Method Prefill encountered an error."], "prefill"),
        (["Method Decode encountered an error."], "decode"),
        (['File "/x/vllm/model_executor/models/llama.py", line 9, in forward'], "other"),
        ([], "other"),
    ],
)
def test_the_allocation_site(frames: list[str], where: str) -> None:
    assert site(frames) == where


def test_of_several_sites_the_most_specific_wins() -> None:
    frames = [
        'File "/x/scheduler.py", line 1, in forward_extend',
        'File "/x/gpu_model_runner.py", line 9, in capture_model',
        'File "/x/layers/sampler.py", line 2, in forward',
    ]
    assert site(frames) == "sampler"
    assert site(frames[:2]) == "graph_capture"
    assert SITES.index("logprobs") < SITES.index("sampler") < SITES.index("prefill") < SITES.index("other")
