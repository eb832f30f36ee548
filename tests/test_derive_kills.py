"""Whose death a kernel's out-of-memory kill was: it counts only where it can concern the server at hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kvdoctor.facts import Known
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, memory_member

START = 1_790_000_000.0


def page(at: float, started: float | None) -> str:
    told = f"process_start_time_seconds {started}\n" if started is not None else ""
    return (
        f'{told}vllm:kv_cache_usage_perc{{engine="0"}} 0.4\nvllm:num_requests_running{{engine="0"}} 1\n'
        f'vllm:num_preemptions_total{{engine="0"}} {at - START}\n'
    )


def killed(when: float) -> bytes:
    stamp = datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return (
        f"{stamp},000000+00:00 kernel: Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0\n"
    ).encode()


@pytest.mark.parametrize(
    ("after_start", "started", "counts"),
    [
        (-7200.0, START, False),
        (-5.0, START, True),
        (100.0, START, False),
        (290.0, START, True),
        (3600.0, START, True),
        (-7200.0, None, False),
    ],
    ids=["two hours before it started", "just before it started", "it served on for minutes", "just before the last page",
         "after the last page", "two hours before the first page"],
)  # fmt: skip
def test_a_kill_counts_where_it_can_concern_this_server(
    after_start: float, started: float | None, counts: bool
) -> None:
    pages = tuple(
        memory_member(f"m_{at}.prom", page(at, started).encode(), time=at) for at in (START + 60, START + 300)
    )
    kernel = memory_member("kernel.log", killed(START + after_start), kind="kernel", time=START + 7200)
    report = diagnose(Snapshot((*pages, kernel)), ())
    fact = report.main.facts["host.oom_kill"]
    assert isinstance(fact, Known)
    assert fact.hi is counts
    assert any("the kernel killed python" in entry.what for entry in report.main.timeline)
