"""NVML and nvidia-smi as members that the one GPU parser reads.

No GPU here: a stand-in object plays pynvml (same function names, same error class and texts), and a stand-in nvidia-smi on
PATH replays recorded output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collect_helpers import path_with, program

from kvdoctor.collect import nvidia_smi
from kvdoctor.collect.nvml import GpuTake, Nvml
from kvdoctor.parse import Unread
from kvdoctor.parse.gpu import GpuReport, parse
from kvdoctor.parse.sniff import sniff
from kvdoctor.snapshot import Member

GIB = 1 << 30
MIB = 1 << 20


class NVMLError(Exception):
    """Plays pynvml.NVMLError: its text is NVML's reason."""


def raises(reason: str) -> Callable[..., Any]:
    def call(*arguments: object, **named: object) -> Any:
        raise NVMLError(reason)

    return call


def memory(handle: object, version: int | None = None) -> SimpleNamespace:
    total, used, reserved = 80 * GIB, 71 * GIB + 64 * 1024, 600 * MIB
    if version is None:
        return SimpleNamespace(total=total, used=used + reserved, free=total - used - reserved)
    return SimpleNamespace(total=total, used=used, reserved=reserved, free=total - used - reserved)


def fake(**changes: Any) -> SimpleNamespace:
    """A pynvml of two GPUs with one process each; ``changes`` replace its functions (None: the function is absent)."""
    calls: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlMemory_v2": 0x02000028,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.86.10",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=41),
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 63,
        "nvmlDeviceGetPowerUsage": lambda handle: 512_340,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x44,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-00000000-0000-0000-0000-00000000000{handle}",
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
        "nvmlDeviceGetMigMode": raises("Not Supported"),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=4000 + handle, usedGpuMemory=70 * GIB)
        ],
        "nvmlDeviceGetMPSComputeRunningProcesses": lambda handle: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
        "nvmlSystemGetProcessName": lambda pid: "VLLM::Worker, TP0",
    }
    calls.update(changes)
    return SimpleNamespace(**{name: call for name, call in calls.items() if call is not None})


def take(module: object) -> GpuTake:
    return Nvml(module).read(1000.0, "start")


def reports(taken: GpuTake) -> list[GpuReport]:
    out = []
    for member in taken.members:
        assert isinstance(member, Member)
        assert member.time == 1000.0
        assert member.origin
        assert sniff(member.head(65536)) == member.kind
        report = parse(member.read().decode())
        assert isinstance(report, GpuReport)
        assert report.bad_count == 0
        out.append(report)
    return out


def test_a_reading_says_what_nvml_says() -> None:
    taken = take(fake())
    gpus, apps = reports(taken)
    gpu = gpus.readings[1]
    assert taken.missing == ()
    assert (gpu.index, gpu.name, gpu.pci) == (1, "NVIDIA H100 80GB HBM3", "00000000:01:00.0")
    assert (gpu.mem_total, gpu.mem_used, gpu.mem_reserved) == (80 * GIB, 71 * GIB + 64 * 1024, 600 * MIB)
    assert gpu.used_includes_reserved is False
    assert (gpu.util_gpu, gpu.util_mem) == (0.97, 0.41)
    assert (gpu.sm_clock_hz, gpu.sm_clock_max_hz) == (1980e6, 1980e6)
    assert (gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (63, 512.34, 700)
    assert gpu.throttle == frozenset({"sw_power_cap", "hw_thermal_slowdown"})
    assert isinstance(gpu.mig, Unread)
    assert gpus.driver == "570.86.10"
    assert [(p.pid, p.used, p.name, p.gpu_uuid) for p in apps.processes] == [
        (4000, 70 * GIB, "VLLM::Worker, TP0", "GPU-00000000-0000-0000-0000-000000000000"),
        (4001, 70 * GIB, "VLLM::Worker, TP0", "GPU-00000000-0000-0000-0000-000000000001"),
    ]
    assert taken.pids == {4000: "VLLM::Worker, TP0", 4001: "VLLM::Worker, TP0"}


def test_a_driver_without_the_second_memory_call_tells_that_used_includes_the_reserve() -> None:
    def old(handle: object, version: int | None = None) -> SimpleNamespace:
        if version is not None:
            raise NVMLError("Function Not Found")
        return memory(handle)

    gpu = reports(take(fake(nvmlDeviceGetMemoryInfo=old, nvmlSystemGetDriverVersion=lambda: "470.82.01")))[0].readings[
        0
    ]
    assert gpu.mem_used == 71 * GIB + 64 * 1024 + 600 * MIB
    assert isinstance(gpu.mem_reserved, Unread)
    assert gpu.used_includes_reserved is True


def test_what_is_not_supported_is_unread_and_missing_not_zero() -> None:
    taken = take(
        fake(
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetMemoryInfo=raises("Not Supported"),
            nvmlDeviceGetUtilizationRates=raises("Unknown Error"),
            nvmlDeviceGetClockInfo=raises("Insufficient Permissions"),
            nvmlDeviceGetPowerUsage=None,
        )
    )
    gpu = reports(taken)[0].readings[0]
    assert gpu.mem_used == Unread("nvidia-smi prints [N/A]")
    assert gpu.util_gpu == Unread("nvidia-smi prints [Unknown Error]")
    assert gpu.sm_clock_hz == Unread("nvidia-smi prints [Insufficient Permissions]")
    assert gpu.power_w == Unread("nvidia-smi prints [Function Not Found]")
    assert [(m.kind, m.origin) for m in taken.missing] == [("gpu memory", "GPU 0")]
    assert "shares the host's memory" in taken.missing[0].hint


def test_a_lost_gpu_is_missing_and_the_other_is_read() -> None:
    def handle(index: int) -> int:
        if index == 0:
            raise NVMLError("GPU is lost")
        return index

    taken = take(fake(nvmlDeviceGetHandleByIndex=handle))
    gpus, apps = reports(taken)
    assert gpus.readings[0].mem_used == Unread("nvidia-smi prints [GPU is lost]")
    assert gpus.readings[1].mem_total == 80 * GIB
    assert [p.pid for p in apps.processes] == [4001]
    assert "Xid 79" in taken.missing[0].hint


def test_a_process_without_a_figure_and_one_with_two_contexts() -> None:
    taken = take(
        fake(
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetComputeRunningProcesses=lambda h: [SimpleNamespace(pid=7, usedGpuMemory=None)],
            nvmlDeviceGetGraphicsRunningProcesses=lambda h: [SimpleNamespace(pid=7, usedGpuMemory=None)],
            nvmlSystemGetProcessName=raises("Not Found"),
        )
    )
    (process,) = reports(taken)[1].processes
    assert process.pid == 7
    assert isinstance(process.used, Unread)
    assert process.name == Unread("nvidia-smi prints [Not Found]")


def test_an_unreadable_process_list_is_no_statement_that_there_is_none() -> None:
    taken = take(fake(nvmlDeviceGetComputeRunningProcesses=raises("Not Supported")))
    assert [member.kind for member in taken.members] == ["smi-query"]
    assert [m.kind for m in taken.missing] == ["gpu processes", "gpu processes"]


def test_an_idle_gpu_states_that_no_process_is_there() -> None:
    apps = reports(take(fake(nvmlDeviceGetComputeRunningProcesses=lambda h: [])))[1]
    assert apps.processes_listed
    assert apps.processes == ()


def mig_fake() -> SimpleNamespace:
    places = {0: "mig-a", 3: "mig-b"}

    def instance(handle: object, number: int) -> str:
        if number not in places:
            raise NVMLError("Not Found")
        return places[number]

    def sized(handle: object, version: int | None = None) -> SimpleNamespace:
        if isinstance(handle, str):
            return SimpleNamespace(total=10 * GIB, used=9 * GIB, reserved=0, free=1 * GIB)
        return memory(handle, version)

    return fake(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetMigMode=lambda handle: [1, 1],
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetGpuInstanceId=lambda handle: 7 if handle == "mig-a" else 9,
        nvmlDeviceGetComputeInstanceId=lambda handle: 0,
        nvmlDeviceGetMemoryInfo=sized,
        nvmlDeviceGetUtilizationRates=raises("Not Supported"),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: (
            [SimpleNamespace(pid=51, usedGpuMemory=8 * GIB)] if handle == "mig-a" else []
        ),
        nvmlSystemGetProcessName=lambda pid: "python <a> & b",
    )


def test_mig_instances_keep_their_own_memory_and_processes() -> None:
    taken = take(mig_fake())
    assert [m.kind for m in taken.members] == ["smi-xml"]
    (report,) = reports(taken)
    assert report.readings[0].mig is True
    assert report.readings[0].mem_total == 80 * GIB
    assert report.readings[0].throttle == frozenset({"sw_power_cap", "hw_thermal_slowdown"})
    assert isinstance(report.readings[0].util_gpu, Unread)
    assert [(m.gi, m.ci, m.mem_total, m.mem_used) for m in report.mig] == [
        (7, 0, 10 * GIB, 9 * GIB),
        (9, 0, 10 * GIB, 9 * GIB),
    ]
    assert [(p.pid, p.gi, p.used, p.name) for p in report.processes] == [(51, 7, 8 * GIB, "python <a> & b")]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("NVML Shared Library Not Found", "no NVIDIA driver library"),
        ("Driver Not Loaded", "not loaded"),
        ("RM has detected an NVML/RM version mismatch.", "different versions"),
    ],
)
def test_no_nvml_says_why(reason: str, word: str) -> None:
    taken = take(fake(nvmlInit=raises(reason)))
    assert not taken.works
    assert word in taken.missing[0].reason
    assert taken.missing[0].hint


def test_no_gpu_visible() -> None:
    taken = take(fake(nvmlDeviceGetCount=lambda: 0))
    assert taken.members == ()
    assert "no GPU is visible" in taken.missing[0].reason


def test_a_hanging_driver_costs_the_time_limit_once() -> None:
    release = threading.Event()
    nvml = Nvml(fake(nvmlDeviceGetCount=lambda: release.wait(20) and 1), timeout_s=0.2)
    first, second = nvml.read(1.0, "start"), nvml.read(2.0, "end")
    release.set()
    assert "did not answer within 0.2 s" in first.missing[0].reason
    assert second.missing == first.missing
    assert first.works  # nvidia-smi would hang as well


# ---- nvidia-smi

QUERY = """\
index, uuid, name, memory.total [MiB], memory.used [MiB], mig.mode.current
0, GPU-1, NVIDIA L4, 23034 MiB, 21000 MiB, [N/A]
"""
APPS = "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-1, 812, /usr/bin/python, with comma, 20990 MiB\n"


def test_nvidia_smi_is_kept_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        tmp_path, "nvidia-smi", f"case $1 in --query-gpu*) cat <<'X'\n{QUERY}X\n;; *) cat <<'X'\n{APPS}X\n;; esac\n"
    )
    monkeypatch.setenv("PATH", path_with(tmp_path))
    taken = nvidia_smi.read(1000.0, "start")
    gpus, apps = reports(taken)
    assert gpus.readings[0].mem_used == 21000 * MIB
    assert apps.processes[0].pid == 812
    assert taken.pids == {812: "/usr/bin/python, with comma"}


def test_fields_an_old_nvidia_smi_does_not_know_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""case $1 in
*memory.reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2;;
*clocks_event_reasons.active*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
--query-gpu*) echo "$1" > {tmp_path}/asked; cat <<'X'
{QUERY}X
;; *) echo "gpu_uuid, pid, process_name, used_gpu_memory [MiB]";; esac
"""
    program(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", path_with(tmp_path))
    taken = nvidia_smi.read(1.0, "start")
    assert len(taken.members) == 2
    asked = (tmp_path / "asked").read_text()
    assert "memory.used" in asked
    assert "memory.reserved" not in asked
    assert "clocks_throttle_reasons.active" in asked


def test_mig_makes_nvidia_smi_answer_in_xml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xml = "<nvidia_smi_log><attached_gpus>1</attached_gpus></nvidia_smi_log>"
    program(
        tmp_path, "nvidia-smi",
        f"case $1 in --query-gpu*) printf 'index, mig.mode.current, memory.used [MiB]\\n0, x, Enabled\\n';; -q) echo '{xml}';; esac\n",
    )  # fmt: skip
    monkeypatch.setenv("PATH", path_with(tmp_path))
    assert [m.kind for m in nvidia_smi.read(1.0, "start").members] == ["smi-xml"]


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (
            'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9\n',
            "communicate",
        ),
        ("echo 'Unable to determine the device handle for GPU0: GPU is lost. Reboot the system'; exit 15\n", "lost"),
    ],
)
def test_nvidia_smis_failures_are_told(script: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", path_with(tmp_path))
    taken = nvidia_smi.read(1.0, "start")
    assert not taken.works
    assert word in taken.missing[0].reason


def test_no_nvidia_smi_and_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in nvidia_smi.read(1.0, "start").missing[0].reason
    program(tmp_path, "nvidia-smi", "sleep 30\n")
    monkeypatch.setenv("PATH", path_with(tmp_path))
    assert "did not finish" in nvidia_smi.read(1.0, "start", timeout_s=0.3).missing[0].reason
