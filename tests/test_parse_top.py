"""top -b is a list of processes like that of ps: processor time and resident memory by process."""

from __future__ import annotations

import pytest

from kvdoctor.facts import Known
from kvdoctor.parse import Unread, kernel
from kvdoctor.parse.sniff import sniff
from kvdoctor.pipeline import diagnose
from kvdoctor.redact import redact
from kvdoctor.snapshot import Snapshot, memory_member

HEAD = """top - 10:31:02 up 12 days,  3:11,  2 users,  load average: 8.12, 8.02, 7.77
Tasks: 312 total,   9 running, 303 sleeping,   0 stopped,   0 zombie
%Cpu(s): 98.9 us,  1.0 sy,  0.0 ni,  0.1 id,  0.0 wa,  0.0 hi,  0.0 si,  0.0 st
MiB Mem :  64221.0 total,  31022.1 free,  18211.0 used,  14988.0 buff/cache

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
"""
ROWS = """   2211 root      20   0   31.2g   6.1g 512320 R 788.1   9.7 121:10.22 vllm
   2299 root      20   0   44.1g 524288   1.1g S  12.1   6.7  10:01.00 VLLM::EngineCor
     17 root      rt   0       0      0      0 S   0.0   0.0   0:00.10 migration/0
"""
LOG = "INFO 06-01 09:00:00 [api_server.py:1839] vLLM API server version 0.22.0\n"


def test_rows_are_read_with_their_units() -> None:
    table = kernel.ps(HEAD + ROWS)
    assert isinstance(table, kernel.ProcessTable)
    assert table.bad_count == 0
    first, second, third = table.processes
    assert (first.pid, first.command, first.state) == (2211, "vllm", "R")
    assert first.cpu == pytest.approx(7.881)
    assert first.mem == pytest.approx(0.097)
    assert (first.rss, first.vsz) == (int(6.1 * 2**30), int(31.2 * 2**30))
    assert first.cpu_time == 121 * 60 + 10
    assert (second.rss, third.rss) == (2**29, 0)


def test_every_round_of_a_batch_is_a_table() -> None:
    table = kernel.ps((HEAD + ROWS + "\n") * 3)
    assert isinstance(table, kernel.ProcessTable)
    assert (len(table.processes), table.bad_count) == (9, 0)


def test_a_size_that_is_none_is_left_out() -> None:
    table = kernel.ps(HEAD + ROWS.replace("6.1g", "6,1g"))
    assert isinstance(table, kernel.ProcessTable)
    assert isinstance(table.processes[0].rss, Unread)


@pytest.mark.parametrize(("text", "kind"), [(HEAD + ROWS, "ps"), ("the top - level of it\n", "unknown")])
def test_it_is_told_by_its_first_line(text: str, kind: str) -> None:
    assert sniff(text.encode()) == kind


def test_it_gives_what_ps_gives() -> None:
    snapshot = Snapshot((memory_member("top.txt", (HEAD + ROWS).encode()), memory_member("server.log", LOG.encode())))
    for one in (snapshot, redact(snapshot, salt=b"0" * 32)):
        busy = diagnose(one, ()).main.facts["host.cpu_busy"]
        assert isinstance(busy, Known)
        assert busy.hi == pytest.approx(7.881)
