"""Host memory as docker stats, kubectl top and /proc/PID/status tell it, and devices as nvidia-smi dmon lists them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse import Unread, gpu, kernel, sniff

GIB, MIB, KIB = 2**30, 2**20, 2**10
NOON = 1_793_707_200.0
DOCKER = (
    "### 2026-11-03T12:00:00\n"
    "CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O           BLOCK I/O         PIDS\n"
    "4f1c0e9b2a77   chat      98.1%    18.20GiB / 125.6GiB   14.49%    1.2GB / 3.4GB     31GB / 12MB       211\n"
    "5a1c0e9b2a77   db        0.10%    412.1MiB / 125.6GiB   0.32%     1.2GB / 3.4GB     31GB / 12MB       11\n"
)
KUBECTL = (
    "$ date; kubectl top pod chat-0\nTue Nov  3 12:00:00 UTC 2026\n"
    "NAMESPACE   NAME     CPU(cores)   MEMORY(bytes)\nllm         chat-0   1430m        18200Mi\n"
)
CONTAINERS = "POD     NAME     CPU(cores)   MEMORY(bytes)\nchat-0  server   1430m        18Gi\n"
INLINE = "2026-11-03T12:00:00Z pid=4711 VmRSS: 9011220 kB\n"
LOOP = "Tue Nov  3 12:00:00 UTC 2026\nVmRSS:\t 9011220 kB\n"
WHOLE = "1793707200 /proc/4711/status:VmRSS:\t 9011220 kB\n"
STATUS = "2026-11-03 12:00:00\nName:\tpython3\nPid:\t4711\nVmPeak:\t 9911220 kB\nVmRSS:\t 9011220 kB\n"


def usages(text: str) -> list[tuple[str, str, int, float | None]]:
    table = kernel.ps(text)
    assert isinstance(table, kernel.ProcessTable)
    assert table.bad_count == 0
    return [(u.kind, u.name, u.memory, u.time) for u in table.usages]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (DOCKER, ("container", "chat", round(18.2 * GIB), NOON)),
        (DOCKER.replace("CONTAINER ID", "\x1b[2J\x1b[HCONTAINER ID"), ("container", "chat", round(18.2 * GIB), NOON)),
        (KUBECTL, ("pod", "llm/chat-0", 18200 * MIB, NOON)),
        (CONTAINERS, ("pod", "chat-0/server", 18 * GIB, None)),
        (INLINE, ("process", "4711", 9011220 * KIB, NOON)),
        (LOOP, ("process", "", 9011220 * KIB, NOON)),
        (WHOLE, ("process", "4711", 9011220 * KIB, NOON)),
        (STATUS, ("process", "4711", 9011220 * KIB, NOON)),
    ],
)
def test_memory_is_read_with_whose_it_is_and_when(text: str, first: tuple[str, str, int, float | None]) -> None:
    assert sniff.sniff(text.encode()) == "ps"
    assert usages(text)[0] == first


@pytest.mark.parametrize(
    "text",
    [
        "CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %\n4f1c0e9b2a77   chat      --    -- / --   --\n",
        "NAME     CPU(cores)   MEMORY(bytes)\nchat-0   <unknown>        <unknown>\n",
        "VmRSS: many kB\n",
        "NAME     CPU(cores)   CPU%   MEMORY(bytes)   MEMORY%\nnode-1   1430m        3%     18200Mi   14%\n",
    ],
    ids=["a stopped container", "not measured yet", "no number", "a node"],
)
def test_what_tells_no_memory_of_a_server_gives_none(text: str) -> None:
    assert isinstance(kernel.ps(text), kernel.NotThis)


def test_a_process_table_below_ends_the_other_one() -> None:
    table = kernel.ps(KUBECTL + "PID PPID COMMAND RSS\n12 1 vllm 1024\n")
    assert isinstance(table, kernel.ProcessTable)
    assert (len(table.usages), len(table.processes)) == (1, 1)


@given(st.sampled_from([DOCKER, KUBECTL, CONTAINERS, INLINE, STATUS]), st.data())
def test_damage_never_raises(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    kernel.ps(text[:cut] + data.draw(st.text(max_size=20)) + text[cut + data.draw(st.integers(0, 40)) :])


PLAIN = "# gpu     sm    mem    enc    dec \n# Idx      %      %      %      % \n    0     34     18      0      0 \n    1      -     17      0      0 \n"
DATED = (
    "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb \n"
    "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB \n"
    " 20261103   12:00:00      0    182     44      -     31     17   2619   1980  61022 \n"
)


def test_dmon_rows_are_readings() -> None:
    assert sniff.sniff(PLAIN.encode()) == "smi-query"
    report = gpu.parse(PLAIN)
    assert isinstance(report, gpu.GpuReport)
    one, two = report.readings
    assert (one.index, one.util_gpu, one.util_mem, report.bad_count) == (0, 0.34, 0.18, 0)
    assert isinstance(two.util_gpu, Unread)
    assert isinstance(one.mem_used, Unread)


def test_dmon_columns_go_by_their_names() -> None:
    assert sniff.sniff(DATED.encode()) == "smi-query"
    report = gpu.parse(DATED)
    assert isinstance(report, gpu.GpuReport)
    (row,) = report.readings
    assert (row.time, row.power_w, row.temperature_c, row.util_gpu) == (NOON, 182.0, 44.0, 0.31)
    assert (row.sm_clock_hz, row.mem_used) == (1980e6, 61022 * MIB)


GPUSTAT = (
    "gpu3                     Tue Nov  3 12:00:00 2026  570.124.06\n"
    "[0] NVIDIA A100-SXM4-80GB | 41'C,   7 % | 31420 / 81920 MB | alice:python/20114(31402M) bob:top/7(12M)\n"
    "[1] NVIDIA A100-SXM4-80GB | 38'C,  ?? %,   62 / 400 W |     0 / 81920 MB | carol(455M)\n"
)


def test_gpustat_rows_are_readings_with_their_processes() -> None:
    assert sniff.sniff(GPUSTAT.encode()) == "smi-table"
    report = gpu.parse(GPUSTAT)
    assert isinstance(report, gpu.GpuReport)
    one, two = report.readings
    assert (one.time, one.util_gpu, one.mem_used, one.mem_total) == (NOON, 0.07, 31420 * MIB, 81920 * MIB)
    assert (two.power_w, two.power_limit_w, two.mem_used, two.temperature_c) == (62.0, 400.0, 0, 38.0)
    assert isinstance(two.util_gpu, Unread)
    told = [(p.gpu_index, p.pid, p.name, p.used) for p in report.processes[:2]]
    assert told == [(0, 20114, "python", 31402 * MIB), (0, 7, "top", 12 * MIB)]
    assert isinstance(report.processes[2].pid, Unread)
    assert isinstance(report.processes[2].name, Unread)
    assert (report.driver, report.bad_count, report.processes_listed) == ("570.124.06", 0, True)


def test_gpustat_without_processes_says_nothing_of_them() -> None:
    report = gpu.parse("[0] NVIDIA H200 | 41'C,   0 % | 31420 / 143771 MB |\n")
    assert isinstance(report, gpu.GpuReport)
    assert not report.processes_listed


@given(st.sampled_from([PLAIN, DATED, GPUSTAT]), st.data())
def test_damaged_readings_never_raise(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    gpu.parse(text[:cut] + data.draw(st.text(max_size=20)) + text[cut + data.draw(st.integers(0, 40)) :])
