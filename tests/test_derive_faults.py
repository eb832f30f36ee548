"""An Xid of broken hardware: whether it can concern the server, and whether the server outlived it."""

from __future__ import annotations

import pytest
from corpus import report_on

from kvdoctor.facts import Known, Unknown
from kvdoctor.findings import Report
from kvdoctor.snapshot import Snapshot, memory_member

START = (
    'time=2025-05-11T09:00:00.101Z level=INFO source=routes.go:1298 msg="Listening on [::]:11434 (version 0.6.5)"\n'
    '[GIN] 2025/05/11 - 10:22:05 | 200 |  1.2s |   127.0.0.1 | POST     "/api/chat"\n'
)
DIED = 'time=2025-05-11T10:25:31.800Z level=ERROR source=server.go:449 msg="llama runner terminated" error="exit status 2"\n'
ANSWER = '[GIN] 2025/05/11 - {} | {} |  3.0s |   127.0.0.1 | POST     "/api/chat"\n'
XID = "[Sun May 11 {} 2025] NVRM: Xid (PCI:0000:02:00): {}, pid='<unknown>', name=<unknown>, a fault\n"


def judged(log: str, kernel: str) -> Report:
    files = {"dmesg.txt": kernel, **({"ollama.log": log} if log else {})}
    return report_on(Snapshot(tuple(memory_member(n, t.encode()) for n, t in files.items())))


@pytest.mark.parametrize(
    ("log", "time", "number", "fatal"),
    [
        # an answer that failed is no work
        (START + DIED + ANSWER.format("10:28:41", 500), "10:25:30", 79, True),
        # the kernel notices some failures after the server did
        (START + DIED, "10:25:40", 119, True),
        (START + DIED, "10:25:30", 31, False),
        # the server worked on: another device, or another day
        (START + ANSWER.format("10:28:41", 200), "10:25:30", 79, False),
        (START, "08:15:30", 79, False),
        # the log stops, without an error, before anything happened
        (START, "10:25:30", 79, None),
        ("", "10:25:30", 48, True),
    ],
)
def test_broken_hardware_decides_unless_the_server_outlived_it(
    log: str, time: str, number: int, fatal: bool | None
) -> None:
    report = judged(log, XID.format(time, number))
    fact = report.main.facts["gpu.xid_fatal"]
    if fatal is None:
        assert isinstance(fact, Unknown)
        assert report.main.verdict.rule == "undetermined"
    else:
        assert isinstance(fact, Known)
        assert fact.value is fatal
        assert (report.main.verdict.rule == "xid-error") is (fatal or number == 31)


def test_without_a_kernel_log_nothing_is_known() -> None:
    report = report_on(Snapshot((memory_member("ollama.log", (START + DIED).encode()),)))
    assert isinstance(report.main.facts["gpu.xid_fatal"], Unknown)
