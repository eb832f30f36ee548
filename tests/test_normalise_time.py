"""Sources on one time line: years and zones that a log does not print, order across files."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from corpus import report_on

from kvdoctor.findings import Report
from kvdoctor.normalise import normalise
from kvdoctor.snapshot import Snapshot, memory_member

START = datetime(2026, 10, 30, 10, 0, 0, tzinfo=UTC).timestamp()


def page(running: int, usage: float) -> str:
    return "".join(
        f'# TYPE vllm:{name} gauge\nvllm:{name}{{engine="0",model_name="m"}} {value}\n'
        for name, value in (
            ("num_requests_running", running),
            ("num_requests_waiting", 0),
            ("kv_cache_usage_perc", usage),
        )
    )


def stats(stamp: str, running: int, usage: float) -> str:
    return (
        f"(APIServer pid=31) INFO {stamp} [loggers.py:257] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation "
        f"throughput: 9.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: {usage * 100:.1f}%, Prefix "
        "cache hit rate: 0.0%\n"
    )


LOAD = [(3, 0.11), (9, 0.32), (21, 0.71), (14, 0.52), (6, 0.2), (30, 0.93)]
PAGES = {f"metrics_{START + 60 * i:.3f}.prom": page(*load) for i, load in enumerate(LOAD)}


def log(day: str, hour: int, load: list[tuple[int, float]], second: int = 4) -> str:
    return "".join(stats(f"{day} {hour:02d}:{i:02d}:{second:02d}", *said) for i, said in enumerate(load))


def first_time(files: dict[str, str]) -> tuple[float | None, list[str]]:
    intake = normalise(Snapshot(tuple(memory_member(n, t.encode(), time=time_of(n)) for n, t in files.items())))
    runs = [run for target in intake.targets for run in target.logs]
    return runs[0].first_time, [w for w in intake.warnings if "zone" in w]


def time_of(name: str) -> float | None:
    return float(name.split("_")[1].removesuffix(".prom")) if "metrics_" in name else None


def test_a_log_in_utc_stays() -> None:
    assert first_time({**PAGES, "server.log": log("10-30", 10, LOAD)}) == (START + 4, [])


@pytest.mark.parametrize("hours", [-8, -5, 1, 2, 9])
def test_a_log_in_local_time_is_put_beside_the_scrapes_it_agrees_with(hours: int) -> None:
    day, hour = divmod(10 + hours, 24)
    time, said = first_time({**PAGES, "server.log": log(f"10-{30 + day}", hour, LOAD)})
    assert time == START + 4
    assert len(said) == 1
    assert f"{-hours:+d} h" in said[0]


def test_a_log_of_another_hour_with_another_load_stays_where_it_is() -> None:
    other = [(1, 0.02)] * 6
    assert first_time({**PAGES, "server.log": log("10-30", 7, other)}) == (START - 3 * 3600 + 4, [])


def test_a_steady_load_fits_everywhere_so_nothing_is_moved() -> None:
    steady = {f"metrics_{START + 60 * i:.3f}.prom": page(8, 0.4) for i in range(6)}
    long = "".join(stats(f"10-30 {h:02d}:{m:02d}:04", 8, 0.4) for h in range(7, 9) for m in range(60))
    assert first_time({**steady, "server.log": long}) == (START - 3 * 3600 + 4, [])


def test_the_year_is_the_one_in_which_the_log_ends_beside_the_scrapes() -> None:
    new_year = datetime(2027, 1, 1, 0, 2, 0, tzinfo=UTC).timestamp()
    pages = {f"metrics_{new_year + 60 * i:.3f}.prom": page(8, 0.4) for i in range(2)}
    text = stats("12-31 23:58:00", 8, 0.4) + stats("01-01 00:02:30", 8, 0.4)
    time, _ = first_time({**pages, "server.log": text})
    assert time == datetime(2026, 12, 31, 23, 58, 0, tzinfo=UTC).timestamp()


# ---------------------------------------------------------------- order across files

ERROR = "(EngineCore_DP0 pid=77) ERROR {} [core.py:855] torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
XID = "{} NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=VLLM::EngineCor, channel 0x00000008, intr 00000000. MMU Fault\n"


def xid_order(log_line: str, kernel_line: str) -> str | None:
    files = {"server.log": stats("10-30 09:59:50", 8, 0.4) + log_line, "dmesg.txt": kernel_line}
    report: Report = report_on(Snapshot(tuple(memory_member(n, t.encode()) for n, t in files.items())))
    fact = report.main.facts.get("gpu.xid_order")
    return getattr(fact, "hi", None)


@pytest.mark.parametrize(
    ("error", "kernel", "order"),
    [
        ("10-30 10:00:09", "[Fri Oct 30 10:00:06 2026]", "before_error"),
        ("10-30 10:00:09", "[Fri Oct 30 10:00:13 2026]", "after_error"),
        ("10-30 10:00:09", "[Fri Oct 30 12:00:06 2026]", "before_error"),
        ("10-30 10:00:09", "[Fri Oct 30 03:00:13 2026]", "after_error"),
        ("10-30 10:00:09", "Oct 30 10:00:06 host kernel:", "before_error"),
    ],
)
def test_an_xid_and_an_error_in_order(error: str, kernel: str, order: str) -> None:
    assert xid_order(ERROR.format(error), XID.format(kernel)) == order


def test_an_xid_much_earlier_in_the_same_zone_is_a_story_of_its_own() -> None:
    assert xid_order(ERROR.format("10-30 10:00:09"), XID.format("[Fri Oct 30 09:12:44 2026]")) == "alone"


def test_out_of_memory_before_the_first_stats_line() -> None:
    oom = "(EngineCore_DP0 pid=77) ERROR {} [core.py:855] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free.\n"
    for first in (True, False):
        lines = [oom.format("10-30 09:00:00"), stats("10-30 10:00:00", 8, 0.4)]
        banner = "(EngineCore_DP0 pid=77) INFO 10-30 08:59:00 [core.py:93] Initializing a V1 LLM engine (v0.12.0) with config: model='m', x=1\n"
        text = banner + "".join(lines if first else lines[::-1])
        report = report_on(Snapshot((memory_member("server.log", text.encode()),)))
        assert getattr(report.main.facts.get("oom.before_serving"), "hi", None) is first


def test_the_same_request_within_thirty_seconds() -> None:
    def preempted(stamp: str, name: str, total: int) -> str:
        return (
            f"WARNING {stamp} scheduler.py:1242] Sequence group {name} is preempted by PreemptionMode.RECOMPUTE mode because "
            f"there is not enough KV cache space. total_num_cumulative_preemption={total}\n"
        )

    start = "INFO 10-30 09:59:00 llm_engine.py:174] Initializing an LLM engine (v0.5.4) with config: model='m', tokenizer='m')\n"
    text = (
        start + preempted("10-30 10:00:00", "a", 1) + preempted("10-30 10:00:29", "a", 51) + preempted("10-30 10:00:40", "b", 101)
        + preempted("10-30 10:01:11", "b", 151)
    )  # fmt: skip
    report = report_on(Snapshot((memory_member("server.log", text.encode()),)))
    assert getattr(report.main.facts.get("preempt.repeats_30s"), "hi", None) == 1.0


BANNER = "(APIServer pid=31) INFO {stamp} [api_server.py:1839] vLLM API server version 0.11.0\n"
DAY = 86_400


def start(stamp: str) -> str:
    return BANNER.format(stamp=stamp)


def pages_of(folder: str, at: float) -> dict[str, str]:
    return {f"{folder}/metrics_{at + 60 * i:.3f}.prom": page(*load) for i, load in enumerate(LOAD)}


def homes(files: dict[str, str]) -> dict[str, set[str]]:
    """By log, the folders of the pages it was put to."""
    intake = normalise(Snapshot(tuple(memory_member(n, t.encode(), time=time_of(n)) for n, t in files.items())))
    return {
        run.origin: {s.origin.rsplit("/", 1)[0] for s in target.scrapes}
        for target in intake.targets
        for run in target.logs
    }


def test_a_log_belongs_to_the_pages_in_its_folder() -> None:
    names = ("before/a", "after/a", "after/b")
    files: dict[str, str] = {}
    for name in names:
        later = name.startswith("after")
        files |= pages_of(name, START + 2 * DAY * later)
        files[f"{name}/server.log"] = start("11-01 09:00:00" if later else "10-30 09:00:00") + log(
            "11-01" if later else "10-30", 10, LOAD
        )
    assert homes(files) == {f"{name}/server.log": {name} for name in names}


@pytest.mark.parametrize("own", [True, False])
def test_a_log_of_two_days_later_is_another_run(own: bool) -> None:
    files = {**pages_of("before", START), "after/server.log": start("11-01 09:00:00") + log("11-01", 10, LOAD)}
    if own:
        files["before/server.log"] = start("10-30 09:00:00") + log("10-30", 10, LOAD)
    found = homes(files)
    assert found["after/server.log"] == set()
    assert not own or found["before/server.log"] == {"before"}


def test_a_log_of_two_days_before_is_another_run() -> None:
    files = {**pages_of("after", START), "before/server.log": start("10-28 09:00:00") + log("10-28", 10, LOAD)}
    assert homes(files) == {"before/server.log": set()}


def test_a_log_in_a_folder_of_its_own_is_joined_when_the_time_fits() -> None:
    files = {**pages_of("metrics", START), "logs/server.log": start("10-30 09:00:00") + log("10-30", 10, LOAD)}
    assert homes(files) == {"logs/server.log": {"metrics"}}


def test_the_start_alone_may_be_days_old_beside_its_pages() -> None:
    assert homes({**pages_of("x", START), "x/args.log": start("10-20 09:00:00")}) == {"x/args.log": {"x"}}
