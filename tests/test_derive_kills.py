"""Whose death a kernel's out-of-memory kill was: it counts only where it can concern the server at hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kvdoctor.facts import Known, Unknown
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


STATS = (
    "Oct 14 02:3{n}:10 box2 run[911]: (APIServer pid=911) INFO 10-14 02:3{n}:10 [loggers.py:127] Engine 000: "
    "Avg prompt throughput: 210.0 tokens/s, Avg generation throughput: 400.0 tokens/s, Running: 9 reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 18.{n}%, Prefix cache hit rate: 0.0%\n"
)
SAID_BY_SYSTEMD = [
    "A process of this unit has been killed by the OOM killer.",
    "Failed with result 'oom-kill'.",
    "systemd-oomd killed 12 process(es) in this unit.",
]


def _of_unit(unit: str, said: str) -> Known | Unknown:
    text = "".join(STATS.format(n=n) for n in range(3)) + f"Oct 14 02:32:31 box2 systemd[1]: {unit}: {said}\n"
    report = diagnose(Snapshot((memory_member("journal.txt", text.encode()),)), ())
    return report.main.facts["host.oom_kill"]


@pytest.mark.parametrize("said", SAID_BY_SYSTEMD)
@pytest.mark.parametrize("unit", ["vllm.service", "sglang@0.service", "ollama.service"])
def test_what_systemd_says_of_the_servers_unit_is_a_kill(unit: str, said: str) -> None:
    fact = _of_unit(unit, said)
    assert isinstance(fact, Known)
    assert fact.hi is True


@pytest.mark.parametrize("said", SAID_BY_SYSTEMD)
@pytest.mark.parametrize("unit", ["nginx.service", "docker.service", "session-3.scope"])
def test_a_kill_in_another_unit_is_not_laid_on_the_server(unit: str, said: str) -> None:
    fact = _of_unit(unit, said)
    assert isinstance(fact, Unknown)
    assert "unit" in fact.reason
