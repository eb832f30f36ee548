"""Where the bytes are: every start-up wording, out-of-memory messages, device readings, and what cannot be told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from corpus import report_on
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.facts import Known, Unknown
from kvdoctor.findings import DeviceMemory, Report, TargetReport
from kvdoctor.redact import redact
from kvdoctor.report import text
from kvdoctor.snapshot import Snapshot, memory_member

DATA = Path(__file__).parent / "data" / "startup"
GIB, MIB = float(2**30), float(2**20)


def read(**files: str) -> Report:
    """The report on files held in memory; ``server_log`` is ``server.log``."""
    names = {name.replace("_", ".", 1) if "_" in name else name: body for name, body in files.items()}
    return report_on(Snapshot(tuple(memory_member(name, body.encode()) for name, body in names.items())))


def vllm(version: str, *lines: str, who: str = "") -> str:
    head = f"INFO 05-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v{version}) with config: model='m'\n"
    return head + "".join(f"{who}INFO 05-01 10:00:{n + 1:02d} [worker.py:1] {line}\n" for n, line in enumerate(lines))


def sized(target: TargetReport) -> dict[str, float]:
    """The parts of the start-up budget that are known, in bytes."""
    names = ("weights", "kv_pool", "graphs", "activations", "non_torch")
    known = {n: target.facts.get(f"mem.{n}") for n in names}
    return {n: float(f.hi) for n, f in known.items() if isinstance(f, Known)}


def parts(bar: DeviceMemory) -> dict[str, float]:
    return {part.name: part.bytes for part in bar.parts}


def adds_up(bar: DeviceMemory) -> None:
    assert math.fsum([p.bytes for p in bar.parts] + [bar.unexplained]) == pytest.approx(bar.total, abs=1.0)
    assert all(p.bytes >= 0 for p in bar.parts), bar


def reason(target: TargetReport, fact: str) -> str:
    value = target.facts[fact]
    assert isinstance(value, Unknown), value
    return value.reason


# -------------------------------------------------------------------- real start-up logs


def test_a_verbose_llamacpp_start_adds_up_to_what_the_log_says() -> None:
    target = report_on(DATA / "llamacpp-verbose.log").main
    # its buffers: 10.65 MiB weights, 16.00 MiB cells, 6.52 MiB compute; its own table: 33 MiB, of 24105 MiB
    assert sized(target) == pytest.approx(
        {"weights": 10.65 * MIB, "kv_pool": 16 * MIB, "activations": 6.52 * MIB}, rel=0.01
    )
    assert math.fsum(sized(target).values()) == pytest.approx(33 * MIB, rel=0.01)
    (bar,) = target.memory
    adds_up(bar)
    assert bar.total == 24105 * MIB
    assert parts(bar)["free"] == pytest.approx(24071 * MIB, rel=0.001)
    assert abs(bar.unexplained) <= 0.01 * bar.total
    assert "no device memory" in bar.device


def test_a_vllm_start_on_the_cpu_has_no_device_memory_and_no_bar() -> None:
    report = report_on(DATA / "vllm-cpu.log")
    assert report.main.memory == ()
    for fact in ("mem.total", "mem.used", "mem.free", "mem.used_share"):
        assert "there is no device memory" in reason(report.main, fact)
    assert sized(report.main) == {"kv_pool": GIB}  # the 1.0 GiB it was told to take of the node
    shown = " ".join(text.render(report).split())
    assert "there is no device memory" in shown
    assert "Device memory" not in shown


def test_a_gpu_beside_a_server_on_the_cpu_is_not_filled_with_its_parts() -> None:
    log = (DATA / "vllm-cpu.log").read_text(encoding="utf-8")
    smi = "index, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n0, 81920 MiB, 4000 MiB, 77920 MiB\n"
    (bar,) = read(server_log=log, smi_csv=smi).main.memory
    adds_up(bar)
    assert parts(bar) == {"in use": 4000 * MIB, "free": 77920 * MIB}


# -------------------------------------------------------------------- one made log per wording


PROFILE_V0 = (
    "Memory profiling takes 2.10 seconds\nthe current vLLM instance can use total_gpu_memory (79.15GiB) x "
    "gpu_memory_utilization (0.90) = 71.24GiB\nmodel weights take 14.99GiB; non_torch_memory takes 0.09GiB; PyTorch activation "
    "peak memory takes 1.23GiB; the rest of the memory reserved for KV Cache is 54.93GiB."
)
PROFILE_064 = (
    "Memory profiling results: total_gpu_memory=79.15GiB initial_memory_usage=15.34GiB peak_torch_memory=16.20GiB "
    "memory_usage_post_profile=15.40Gib non_torch_memory=0.14GiB kv_cache_size=54.90GiB gpu_memory_utilization=0.90"
)
_ADVICE = (
    "Replace gpu_memory_utilization config with `--kv-cache-memory=59000000000` (54.95 GiB) to fit into requested memory, or "
    "`--kv-cache-memory=65000000000` (60.54 GiB) to fully utilize gpu memory. Current kv cache memory in use is"
)
_USAGE = "Free memory on device (78.58/79.19 GiB) on startup. Desired GPU memory utilization is (0.92, 72.85 GiB). Actual usage is"
USAGE_0102 = (
    f"{_USAGE} 14.99 GiB for weight, 1.42 GiB for peak activation, 0.22 GiB for non-torch memory, and 0.55 GiB for CUDAGraph "
    f"memory. {_ADVICE} 58985512960 bytes."
)
USAGE_027 = (
    f"{_USAGE} 15.21 GiB for consumed memory (weights + non-torch), 1.42 GiB for peak activation, and 0.55 GiB for CUDAGraph "
    f"memory. {_ADVICE} 55.22 GiB."
)
LOADED = "Model loading took 14.9900 GiB memory and 3.127000 seconds"
CAPTURED = "Graph capturing finished in 21 secs, took 0.55 GiB"


@pytest.mark.parametrize(
    ("log", "gib"),
    [
        (vllm("0.5.4", "Loading model weights took 14.9888 GB", "Graph capturing finished in 21 secs."), {"weights": 14.9888}),
        (
            vllm("0.6.4", "Loading model weights took 14.9888 GB", PROFILE_064, CAPTURED),
            {"weights": 14.9888, "kv_pool": 54.90, "graphs": 0.55, "activations": 16.20 - 14.9888, "non_torch": 0.14},
        ),
        (
            vllm("0.6.6", "Loading model weights took 14.9888 GB", PROFILE_V0, CAPTURED),
            {"weights": 14.99, "kv_pool": 54.93, "graphs": 0.55, "activations": 1.23, "non_torch": 0.09},
        ),
        (vllm("0.8.2", "Model loading took 14.9888 GB and 3.1 seconds", CAPTURED), {"weights": 14.9888, "graphs": 0.55}),
        (
            vllm("0.9.2", "Model loading took 14.9900 GiB and 3.1 seconds", "Available KV cache memory: 54.13 GiB", CAPTURED),
            {"weights": 14.99, "kv_pool": 54.13, "graphs": 0.55},
        ),
        (
            vllm("0.10.2", "Model loading took 14.9900 GiB and 3.1 seconds", USAGE_0102),
            {"weights": 14.99, "kv_pool": 58985512960 / GIB, "graphs": 0.55, "activations": 1.42, "non_torch": 0.22},
        ),
        (
            vllm("0.20.0", LOADED, "Available KV cache memory: 54.13 GiB",
                 "CUDA graph pool memory: 0.55 GiB (actual), 0.60 GiB (estimated), difference: 0.05 GiB (9.1%)."),
            {"weights": 14.99, "kv_pool": 54.13, "graphs": 0.55},
        ),
        (
            vllm("0.27.0", LOADED, USAGE_027),
            {"weights": 14.99, "kv_pool": 55.22, "graphs": 0.55, "activations": 1.42, "non_torch": 15.21 - 14.99},
        ),
        (
            vllm("0.12.0", LOADED, "Initial free memory 78.58 GiB, reserved 60.00 GiB memory for KV Cache as specified by "
                 "kv_cache_memory_bytes config and skipped memory profiling."),
            {"weights": 14.99, "kv_pool": 60.0},
        ),
        # nothing is left, or a neighbour freed memory meanwhile: a negative figure is no size
        (vllm("0.11.2", LOADED, "Available KV cache memory: -1.25 GiB"), {"weights": 14.99}),
        (vllm("0.11.2", LOADED, "Graph capturing finished in 21 secs, took -0.10 GiB"), {"weights": 14.99}),
    ],
)  # fmt: skip
def test_vllm_wordings(log: str, gib: dict[str, float]) -> None:
    target = read(server_log=log).main
    assert sized(target) == pytest.approx({name: value * GIB for name, value in gib.items()})
    for bar in target.memory:
        adds_up(bar)


def test_the_v0_parts_fill_the_share_the_line_before_them_names() -> None:
    (bar,) = read(server_log=vllm("0.6.6", "Loading model weights took 14.9888 GB", PROFILE_V0, CAPTURED)).main.memory
    told = parts(bar)
    share = math.fsum(told[n] for n in ("weights", "KV pool", "activation peak", "non-torch"))
    assert share == pytest.approx(71.24 * GIB, rel=0.02)
    assert bar.total == pytest.approx(79.15 * GIB)
    # graphs are not in the share in these versions: they lie in what the engine left alone
    assert told["outside the engine's share"] == pytest.approx((79.15 - 71.24 - 0.55) * GIB)
    assert abs(bar.unexplained) <= 0.02 * share


def test_a_v0_start_of_many_workers_of_a_ticket() -> None:
    who = "(RayWorkerWrapper pid=1463574, ip=10.0.0.60) "
    log = vllm("0.8.2") + "".join(
        f"{who}INFO 03-27 10:29:01 [worker.py:267] {line} [repeated 30x across cluster]\n"
        for line in (
            "the current vLLM instance can use total_gpu_memory (44.53GiB) x gpu_memory_utilization (0.98) = 43.64GiB",
            "model weights take 20.64GiB; non_torch_memory takes 0.28GiB; PyTorch activation peak memory takes 1.52GiB; the rest "
            "of the memory reserved for KV Cache is 21.20GiB.",
        )
    )
    (bar,) = read(server_log=log).main.memory
    adds_up(bar)
    told = parts(bar)
    share = math.fsum(told[n] for n in ("weights", "KV pool", "activation peak", "non-torch"))
    assert share == pytest.approx(43.64 * GIB, rel=0.02)
    assert told["outside the engine's share"] == pytest.approx(0.89 * GIB, rel=0.01)


def test_weights_and_context_in_one_figure_are_shown_as_one_part() -> None:
    (bar,) = read(server_log=vllm("0.27.0", USAGE_027)).main.memory
    told = parts(bar)
    assert told["weights and non-torch"] == pytest.approx(15.21 * GIB)
    assert told["in use before the start"] == pytest.approx((79.19 - 78.58) * GIB)
    assert "weights" not in told
    adds_up(bar)


def test_one_bar_for_each_worker() -> None:
    log = vllm("0.27.0") + "".join(
        vllm("0.27.0", LOADED.replace("14.99", weights), USAGE_027.replace("15.21", f"{float(weights) + 0.2}"), who=f"({w}) ")
        .split("\n", 1)[1]
        for w, weights in (("Worker_TP0 pid=10", "14.90"), ("Worker_TP1 pid=11", "15.40"))
    )  # fmt: skip
    target = read(server_log=log).main
    first, second = target.memory
    assert (parts(first)["weights"], parts(second)["weights"]) == (14.9 * GIB, 15.4 * GIB)
    assert sized(target)["weights"] == 15.4 * GIB
    adds_up(first)
    adds_up(second)


SGLANG = (
    "Init torch distributed ends. elapsed=0.50 s, mem usage=0.12 GB",
    "Load weight begin. avail mem=78.48 GB",
    "Load weight end. elapsed=2.10 s, type=LlamaForCausalLM, avail mem=63.34 GB, mem usage=15.14 GB.",
    "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 400000, K size: 24.41 GB, V size: 24.41 GB",
    "Memory pool end. avail mem=14.10 GB",
    "Capture decode cuda graph begin. This can take up to several minutes. avail mem=13.50 GB",
    "Capture decode cuda graph end. bs=[1, 2], elapsed=5.10 s, mem usage=0.53 GB, avail mem=12.97 GB.",
    "Capture draft cuda graph end. bs=[1, 2], elapsed=5.10 s, mem usage=0.20 GB, avail mem=12.77 GB.",
    "max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4096, "
    "context_len=131072, available_gpu_mem=12.77 GB",
)


def sglang(*lines: str) -> str:
    return "".join(f"[2026-05-01 10:00:{n:02d} TP0] {line}\n" for n, line in enumerate(lines))


def test_sglang_lines_tell_the_pool_and_what_is_left_beside_it() -> None:
    target = read(server_log=sglang(*SGLANG)).main
    expect = {"weights": 15.14, "kv_pool": 48.82, "graphs": 0.73, "non_torch": 0.12}
    assert sized(target) == pytest.approx({n: v * GIB for n, v in expect.items()})
    (bar,) = target.memory
    adds_up(bar)
    assert "free before the weights" in bar.device
    assert [bar.total, parts(bar)["free"]] == pytest.approx([78.48 * GIB, 12.77 * GIB])
    assert 0 <= bar.unexplained < 0.02 * bar.total


def test_sglang_memory_left_is_not_the_size_of_the_pool() -> None:
    target = read(server_log=sglang(SGLANG[2], SGLANG[-1])).main
    assert sized(target) == pytest.approx({"weights": 15.14 * GIB})
    assert not isinstance(target.facts.get("kv.pool_bytes"), Known)
    assert target.facts["mem.free"].hi == pytest.approx(12.77 * GIB)  # type: ignore[union-attr]


def test_tgi_prints_real_gigabytes() -> None:
    log = (
        "2026-05-01T10:00:01.000000Z  INFO text_generation_launcher: KV-cache blocks: 27000, size: 16\n"
        "2026-05-01T10:00:02.000000Z DEBUG text_generation_launcher: Free memory 3.25GB , (real: 4.00GB\n"
        "2026-05-01T10:00:03.000000Z  INFO text_generation_router_v3: backends/v3/src/lib.rs:137: Setting max batch total tokens "
        "to 432000\n"
    )
    target = read(server_log=log).main
    assert sized(target) == {}
    assert target.facts["mem.free"].hi == 4.0e9  # type: ignore[union-attr]
    assert target.facts["kv.pool_tokens"].hi == 432000.0  # type: ignore[union-attr]
    assert target.memory == ()  # neither the device's size nor a part of it is told


def test_tensorrt_llm_with_a_built_engine() -> None:
    log = "".join(
        f"[TensorRT-LLM][INFO] {line}\n"
        for line in (
            "Loaded engine size: 14000 MiB",
            "[MemUsageChange] Allocated 512.00 MiB for execution context memory.",
            "Memory usage when calculating max tokens in paged kv cache: total: 79.15 GiB, available: 63.00 GiB",
            "[MemUsageChange] Allocated 56.70 GiB for max tokens in paged KV cache (448000).",
        )
    )
    target = read(server_log=log).main
    assert sized(target) == pytest.approx({"weights": 14000 * MIB, "kv_pool": 56.7 * GIB, "activations": 512 * MIB})
    (bar,) = target.memory
    assert bar.unexplained == pytest.approx(79.15 * GIB - 14512 * MIB - 56.7 * GIB)


def test_tensorrt_llm_with_the_torch_back_end() -> None:
    log = (
        "[05/01/2026-10:00:01] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 20.50 GiB, available "
        "KV cache memory when calculating max tokens: 52.78 GiB, fraction is set 0.9, kv size is 131072. device total memory "
        "79.15 GiB\n[TensorRT-LLM][INFO] [MemUsageChange] Allocated 52.78 GiB for max tokens in paged KV cache (432000).\n"
    )
    (bar,) = read(server_log=log).main.memory
    adds_up(bar)
    assert sorted(parts(bar).values()) == pytest.approx([20.5 * GIB, 52.78 * GIB])
    assert bar.unexplained == pytest.approx((79.15 - 20.5 - 52.78) * GIB)


def test_turbomind_tells_blocks_and_their_size() -> None:
    log = "[TM][INFO] [BlockManager] block_size = 8 MB\n[TM][INFO] [BlockManager] max_block_count = 6000\n"
    assert sized(read(server_log=log).main) == {"kv_pool": 6000 * 8 * MIB}


LLAMACPP = """build: 4500 (abcdef12) with cc (Debian) for x86_64-linux-gnu
load_tensors: offloaded 33/33 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =   128.00 MiB
llama_context:      CUDA0 compute buffer size =   560.00 MiB
llama_context:  CUDA_Host compute buffer size =    24.01 MiB
"""
TABLE = """llama_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |
llama_memory_breakdown_print: |   - CUDA0 (A100)       | 81152 = 74372 + (6115 =  4403 +    1152 +     560) +         665 |
llama_memory_breakdown_print: |   - Host               |                  305 =   281 +       0 +      24                |
"""


def test_llamacpp_buffers_of_the_host_are_not_on_the_device() -> None:
    target = read(server_log=LLAMACPP).main
    # a sliding-window cache has a second buffer
    assert sized(target) == pytest.approx({"weights": 4403.49 * MIB, "kv_pool": 1152 * MIB, "activations": 560 * MIB})
    assert target.memory == ()
    assert "spread.weights_ratio" not in target.facts


def test_llamacpp_closing_table_gives_the_rest_of_the_device() -> None:
    target = read(server_log=LLAMACPP + TABLE).main
    (bar,) = target.memory
    adds_up(bar)
    assert (bar.device, bar.total) == ("CUDA0", 81152 * MIB)
    assert parts(bar)["weights"] == pytest.approx(4403.49 * MIB, rel=1e-6)
    assert [parts(bar)["non-torch"], parts(bar)["free"]] == pytest.approx([665 * MIB, 74372 * MIB], rel=1e-4)
    assert bar.unexplained == pytest.approx(0, abs=2 * MIB)


# -------------------------------------------------------------------- messages and device readings


SERVED = vllm(
    "0.11.2", "Model loading took 15.0000 GiB memory and 3.1 seconds", "Available KV cache memory: 54.00 GiB"
) + (
    "(APIServer pid=77) INFO 05-01 10:01:00 [loggers.py:1] Engine 000: Avg prompt throughput: 108.4 tokens/s, Avg generation "
    "throughput: 52.7 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 28.3%, Prefix cache hit rate: 0.0%\n"
)
COLUMNS = "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n"
GIBS = st.decimals(0, 200, places=2).map(float)
MIBS = st.integers(0, 200_000)


def overfull(bar: DeviceMemory, report: Report) -> None:
    """More named than there is: allowed where the figures contradict each other, and then said."""
    adds_up(bar)
    if bar.unexplained < 0:
        assert "counted twice" in " ".join(text.render(report, verbose=True).split())
    else:
        assert math.fsum(p.bytes for p in bar.parts) <= bar.total + 1.0


@settings(max_examples=60, deadline=None)
@given(total=GIBS.filter(bool), free=GIBS, mine=GIBS, allocated=GIBS, gap=GIBS)
def test_parts_of_any_message_add_up(total: float, free: float, mine: float, allocated: float, gap: float) -> None:
    message = (
        f"ERROR 05-01 10:02:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        f"total capacity of {total:.2f} GiB of which {free:.2f} GiB is free. Including non-PyTorch memory, this process has "
        f"{mine:.2f} GiB memory in use. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and {gap:.2f} GiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    report = read(server_log=SERVED + message)
    (bar,) = report.main.memory
    assert bar.total == pytest.approx(total * GIB)
    overfull(bar, report)


@settings(max_examples=60, deadline=None)
@given(total=MIBS.filter(bool), used=MIBS, free=st.none() | MIBS, reserved=st.none() | MIBS, other=st.none() | MIBS)
def test_parts_of_any_device_reading_add_up(
    total: int, used: int, free: int | None, reserved: int | None, other: int | None
) -> None:
    head, row = "index, memory.total [MiB], memory.used [MiB]", f"0, {total} MiB, {used} MiB"
    for name, value in (("free", free), ("reserved", reserved)):
        head += f", memory.{name} [MiB]"
        row += f", {value} MiB" if value is not None else ", [N/A]"
    files = {"server_log": SERVED, "smi_csv": f"{head}\n{row}\n"}
    if other is not None:
        files["apps_csv"] = (
            f"pid, process_name, used_gpu_memory [MiB]\n77, VLLM::EngineCore, 100 MiB\n99, other, {other} MiB\n"
        )
    report = read(**files)
    (bar,) = report.main.memory
    assert bar.total == total * MIB
    overfull(bar, report)


def test_rounding_of_the_driver_is_not_memory_counted_twice() -> None:
    smi = "index, memory.total [MiB], memory.used [MiB], memory.free [MiB], memory.reserved [MiB]\n"
    report = read(server_log=SERVED, smi_csv=smi + "0, 81559 MiB, 75001 MiB, 6038 MiB, 521 MiB\n")
    (bar,) = report.main.memory
    adds_up(bar)
    assert bar.unexplained == 0
    assert "counted twice" not in text.render(report)


# -------------------------------------------------------------------- what cannot be told


def intact(report: Report) -> None:
    """The rest of the diagnosis stands: pool usage and start-up figures are there."""
    assert report.main.facts["kv.usage_max"].hi == pytest.approx(0.283)  # type: ignore[union-attr]
    assert sized(report.main) == {"weights": 15 * GIB, "kv_pool": 54 * GIB}


def said(report: Report) -> str:
    return " ".join(text.render(report, verbose=True, width=200).split())


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("Tesla K80", "[Not Supported]", "nvidia-smi prints [Not Supported]"),
        ("NVIDIA GB10", "[N/A]", "NVIDIA GB10 shares the memory of the CPU"),
        ("NVIDIA GH200 480GB", "[N/A]", "nvidia-smi prints [N/A]"),
    ],
)
def test_a_device_without_memory_figures(name: str, value: str, why: str) -> None:
    report = read(server_log=SERVED, smi_csv=f"{COLUMNS}0, {name}, {value}, {value}, {value}\n")
    assert report.main.memory == ()
    assert why in reason(report.main, "mem.used")
    assert "memory not given for 1 of 1 devices" in said(report)
    intact(report)


@pytest.mark.parametrize(
    "after", ["", "1, NVIDIA A100, [GPU is lost], [GPU is lost], [GPU is lost]\n"], ids=["left out", "said to be lost"]
)
def test_a_device_that_falls_off_the_bus_leaves_no_stale_bar(after: str) -> None:
    both = [f"{n}, NVIDIA A100, 81920 MiB, 75000 MiB, 6920 MiB\n" for n in (0, 1)]
    report = read(
        server_log=SERVED,
        smi1_csv=COLUMNS + "".join(both),
        smi2_csv=COLUMNS + both[0] + after,
        dmesg_txt="[Fri May  1 10:01:30 2026] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
        "the bus.\n",
    )
    assert [bar.device for bar in report.main.memory] == ["GPU 0"]
    assert "GPU 1 no longer answers" in said(report)
    assert "Xid 79" in said(report)
    intact(report)


def test_readings_of_one_device_per_file_are_not_losses() -> None:
    files = {f"smi{n}_csv": f"{COLUMNS}{n}, NVIDIA A100, 81920 MiB, 75000 MiB, 6920 MiB\n" for n in (0, 1)}
    report = read(server_log=SERVED, **files)
    assert [bar.device for bar in report.main.memory] == ["GPU 0", "GPU 1"]
    assert "no longer answers" not in said(report)


def test_a_driver_that_cannot_reach_the_device_is_quoted() -> None:
    words = "Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
    report = read(server_log=SERVED, smi_txt=words)
    assert "the driver cannot reach a device: Unable to determine the device handle" in said(report)
    intact(report)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("", "empty"),
        ("4242, [Not Found], 73000 MiB\n", "none of the listed device processes has a pid of this server"),
        ("4242, [Insufficient Permissions], [N/A]\n", "gives no sizes"),
    ],
    ids=["container without a list", "pids of the host", "WSL"],
)
def test_processes_that_cannot_be_told_apart(rows: str, why: str) -> None:
    report = read(
        server_log=SERVED,
        smi_csv=f"{COLUMNS}0, NVIDIA A100, 81920 MiB, 75000 MiB, 6920 MiB\n",
        apps_csv="pid, process_name, used_gpu_memory [MiB]\n" + rows,
    )
    assert why in reason(report.main, "mem.foreign")
    (bar,) = report.main.memory
    adds_up(bar)
    assert "other processes" not in parts(bar)
    # a server that lives is no orphan of itself
    orphans = report.main.facts["mem.orphans"]
    assert isinstance(orphans, Unknown) or orphans.hi == 0
    intact(report)


MIG_CARD = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:18:00.0 Off |                    0 |
| N/A   41C    P0            192W /  400W |   58330MiB /  81920MiB |    N/A      Default |
|                                         |                        |              Enabled |
| MIG devices:                                                                            |
|  0    3   0   0  |           35242MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |
|  0    4   0   1  |           23010MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |
| Processes:                                                                              |
|    0    3    0           {first:>6}      C   {mine:<34}35210MiB |
|    0    4    0            77012      C   {other:<34}22950MiB |
"""
CORE = "(EngineCore_DP0 pid=13021) "


@pytest.mark.parametrize(
    ("pid", "mine", "other"),
    [(13021, "VLLM::EngineCore", "VLLM::EngineCore"), (72, "VLLM::EngineCore", "python")],
    ids=["by its pid", "by the only name of a server"],
)
def test_a_server_in_a_mig_instance_has_the_memory_of_that_instance(pid: int, mine: str, other: str) -> None:
    log = vllm("0.11.0", "Available KV cache memory: 16.50 GiB", who=CORE)
    facts = read(smi_txt=MIG_CARD.format(first=pid, mine=mine, other=other), server_log=log).main.facts
    used, total = facts["mem.used"], facts["mem.total"]
    assert isinstance(used, Known)
    assert isinstance(total, Known)
    assert (used.hi, total.hi) == (35242 * MIB, 40192 * MIB)
    foreign = facts["mem.foreign"]
    assert not isinstance(foreign, Known) or foreign.hi == 0


def test_which_of_two_mig_instances_is_the_servers_is_not_guessed() -> None:
    log = vllm("0.11.0", "Available KV cache memory: 16.50 GiB", who=CORE)
    card = MIG_CARD.format(first=72, mine="VLLM::EngineCore", other="VLLM::EngineCore")
    facts = read(smi_txt=card, server_log=log).main.facts
    for name in ("mem.used", "mem.free", "mem.foreign"):
        assert isinstance(facts[name], Unknown), name
    used = facts["mem.used"]
    assert isinstance(used, Unknown)
    assert "2 instances" in used.reason


SERVE = "python3 /usr/local/bin/vllm serve acme/m"
CHAINS = {
    "under process 1, which is not listed": ([(10, 1, "VLLM::EngineCore")], 1),
    "under process 1": ([(1, 0, "/sbin/init"), (10, 1, "VLLM::EngineCore")], 1),
    "under a login shell": ([(7, 6, "-bash"), (10, 7, "VLLM::EngineCore")], 1),
    "under a shell that once started it": ([(7, 1, "/bin/bash ./launch.sh"), (10, 7, "sglang::scheduler_TP0")], 1),
    "under the user's systemd": ([(7, 1, "/usr/lib/systemd/systemd --user"), (10, 7, "VLLM::EngineCore")], 1),
    "under a container's init": ([(1, 0, "/usr/bin/tini -- sh"), (10, 1, "VLLM::EngineCore")], 1),
    "a core and its workers": (
        [(7, 6, "zsh"), (10, 7, "VLLM::EngineCore"), (11, 10, "VLLM::Worker_TP0"), (12, 10, "VLLM::Worker_TP1")],
        3,
    ),
    "a server under a shell": ([(7, 6, "-bash"), (9, 7, SERVE), (10, 9, "VLLM::EngineCore")], 0),
    "a server whose name alone is printed": ([(7, 6, "bash"), (9, 7, "vllm"), (10, 9, "VLLM::EngineCor")], 0),
    "the server is process 1": ([(1, 0, SERVE), (10, 1, "VLLM::EngineCore")], 0),
    "a script of its own": ([(7, 1, "bash"), (9, 7, "python3 batch.py"), (10, 9, "VLLM::EngineCore")], 0),
    "a parent that is not listed": ([(10, 9, "VLLM::EngineCore")], 0),
    "a program that serves alone": ([(7, 1, "-bash"), (10, 7, "llama-server -m m.gguf")], 0),
    "parents that go in a circle": ([(10, 11, "VLLM::EngineCore"), (11, 10, "VLLM::Worker_TP0")], 0),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_worker_is_left_over_when_nobody_above_it_serves(chain: str) -> None:
    rows, expected = CHAINS[chain]
    table = "PID PPID COMMAND\n" + "".join(f"{pid} {ppid} {command}\n" for pid, ppid, command in rows)
    snapshot = Snapshot((memory_member("ps.txt", table.encode()), memory_member("server.log", vllm("0.11.0").encode())))
    for one in (snapshot, redact(snapshot, salt=b"2" * 32)):
        fact = report_on(one).main.facts["mem.orphans"]
        assert isinstance(fact, Known)
        assert fact.hi == expected
