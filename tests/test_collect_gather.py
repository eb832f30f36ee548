"""A live run against small servers on the loopback, end to end to what the parsers make of it."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
from collect_helpers import Answer, dead_port, http_server, path_with, program, raw_server

from kvdoctor.collect import SpecError, gather, host
from kvdoctor.collect.discover import Discovery, Found
from kvdoctor.collect.gather import Ask, Clock, LiveRequest, ServerAsk
from kvdoctor.collect.nvml import Nvml
from kvdoctor.normalise import normalise
from kvdoctor.parse.kernel import CgroupMemory, KernelLog, cgroup, kernel_log
from kvdoctor.snapshot import Member, Missing, Snapshot, read_archive, write_archive

VLLM = (Ask("/metrics", "exposition"), Ask("/version", "version", once=True), Ask("/v1/models", "models", once=True))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program of this host: stand-ins alone are on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))


class Engine:
    """A server whose counters grow by ten at each scrape."""

    def __init__(self) -> None:
        self.count = itertools.count(1)
        self.start = 1_700_000_000.0

    def __call__(self, request: BaseHTTPRequestHandler) -> Answer:
        if request.path == "/metrics":
            n = next(self.count)
            page = (
                "# TYPE vllm:num_requests_running gauge\n"
                f'vllm:num_requests_running{{model_name="org/m",engine="0"}} {n}\n'
                "# TYPE vllm:generation_tokens_total counter\n"
                f'vllm:generation_tokens_total{{model_name="org/m",engine="0"}} {10 * n}\n'
                f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.start}\n"
            )
            return 200, {"Content-Encoding": "gzip"}, gzip.compress(page.encode())
        if request.path == "/version":
            return 200, {}, b'{"version": "0.32.1"}'
        if request.path == "/v1/models":
            return 200, {}, b'{"object": "list", "data": [{"id": "org/m", "max_model_len": 4096}]}'
        return 404, {}, b"{}"


class Steps:
    """A clock that only goes on while the run sleeps: the number of samples does not depend on this machine's load."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.seconds = 0.0
        self.sleeps = 0
        self.interrupt_at = interrupt_at

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == self.interrupt_at:
            raise KeyboardInterrupt
        self.seconds += seconds

    def clock(self, jump_after: float | None = None) -> Clock:
        def wall() -> float:
            jump = 3600 if jump_after is not None and self.seconds > jump_after else 0
            return 1_785_000_000 + self.seconds + jump

        return Clock(wall=wall, steady=lambda: self.seconds, sleep=self.sleep)


def take(
    asked: LiveRequest,
    on_progress: Callable[[str, float], None] = lambda text, share: None,
    *,
    on_first: Callable[[Snapshot], None] | None = None,
    nvml: Nvml | None = None,
    clock: Clock | None = None,
    stdin_fd: int = 0,
) -> Snapshot:
    return gather.take(
        asked,
        on_progress,
        on_first=on_first,
        nvml=nvml,
        clock=clock if clock is not None else Steps().clock(),
        stdin_fd=stdin_fd,
    )


def request(*servers: ServerAsk, **more: object) -> LiveRequest:
    options: dict[str, object] = {"window_s": 10.0, "samples": 5, "gpu": False, "host": False, "timeout_s": 2.0, **more}
    return LiveRequest(servers=servers, **options)  # type: ignore[arg-type]


def kinds(snapshot: Snapshot) -> dict[str | None, int]:
    out: dict[str | None, int] = {}
    for member in snapshot.members:
        out[member.kind] = out.get(member.kind, 0) + 1
    return out


def test_metrics_are_read_at_each_sample_and_static_pages_once() -> None:
    progress: list[tuple[str, float]] = []
    with http_server(Engine()) as (base, asked):
        got = take(request(ServerAsk(base, VLLM)), lambda text, share: progress.append((text, share)))
    assert kinds(got) == {"exposition": 5, "version": 1, "models": 1}
    assert [m for m, _ in asked] == ["GET"] * 7
    assert got.missing == ()
    assert got.live
    times = [m.time for m in got.members if m.kind == "exposition"]
    assert all(t is not None for t in times)
    assert [round(t - 1_785_000_000, 1) for t in times if t is not None] == pytest.approx([0, 2.5, 5, 7.5, 10], abs=1.5)
    assert all(0 <= share <= 1 for _, share in progress)
    assert base in progress[0][0]


def test_what_was_read_normalises_to_one_server_with_rising_counters() -> None:
    with http_server(Engine()) as (base, _):
        intake = normalise(take(request(ServerAsk(base, VLLM))))
    (target,) = intake.targets
    assert (target.engine.name if target.engine else None, target.version, target.model) == ("vllm", "0.32.1", "org/m")
    values = [r.value for s in target.scrapes for r in s.values["tok.generated"].values()]
    assert values == [10, 20, 30, 40, 50]


def test_a_saved_run_reads_back_the_same(tmp_path: Path) -> None:
    with http_server(Engine()) as (base, _):
        got = take(request(ServerAsk(base, VLLM)))
    write_archive(got, tmp_path / "run.tar.gz", "kvdoctor")
    back = read_archive(tmp_path / "run.tar.gz")
    assert [(m.name, m.kind, m.origin, m.time, m.read()) for m in back.members] == [
        (m.name, m.kind, m.origin, m.time, m.read()) for m in got.members
    ]


def test_the_first_reading_is_handed_out_before_the_window_is_over() -> None:
    first: list[Snapshot] = []
    with http_server(Engine()) as (base, _):
        got = take(request(ServerAsk(base, VLLM)), on_first=first.append)
    assert kinds(first[0])["exposition"] == 1
    assert kinds(got)["exposition"] == 5


def test_not_more_than_one_reading_a_second() -> None:
    with http_server(Engine()) as (base, asked):
        take(request(ServerAsk(base, VLLM[:1]), window_s=4.0, samples=50))
    assert len(asked) == 5


def test_a_page_that_is_not_there_is_asked_for_once_and_named() -> None:
    with http_server(Engine()) as (base, asked):
        got = take(request(ServerAsk(base, (*VLLM, Ask("/slots", "slots")))))
    assert [p for _, p in asked].count("/slots") == 1
    assert [(m.kind, m.origin) for m in got.missing] == [("slots", base + "/slots")]


def test_of_two_names_of_one_static_page_the_first_that_answers_is_enough() -> None:
    def answer(r: BaseHTTPRequestHandler) -> Answer:
        if r.path == "/metrics":
            return 200, {}, b"a 1\n"
        return (404, {}, b"") if r.path == "/server_info" else (200, {}, b'{"mem_fraction_static": 0.9}')

    pages = (
        Ask("/metrics", "exposition"), Ask("/server_info", "server-info", True), Ask("/get_server_info", "server-info", True),
        Ask("/third", "server-info", True),
    )  # fmt: skip
    with http_server(answer) as (base, asked):
        got = take(request(ServerAsk(base, pages)))
    assert got.missing == ()
    static = [p for _, p in asked if p != "/metrics"]
    assert static == ["/server_info", "/get_server_info"]


def test_an_unknown_server_is_told_by_its_first_page_and_then_asked_for_its_own_pages() -> None:
    told: list[tuple[str, bool]] = []

    def choose(url: str, page: bytes | None) -> Sequence[Ask]:
        told.append((url, page is not None and page.startswith(b"# TYPE vllm:")))
        return VLLM

    with http_server(Engine()) as (base, asked):
        got = take(request(ServerAsk(base), choose=choose))
    assert told == [(base, True)]
    assert kinds(got) == {"exposition": 5, "version": 1, "models": 1}
    assert len(asked) == 7


def test_a_metrics_path_that_answers_with_json_is_another_page_of_that_engine() -> None:
    def answer(r: BaseHTTPRequestHandler) -> Answer:
        return (
            (200, {}, b"a 1\n") if r.path == "/prometheus/metrics" else (200, {}, b'[{"iter": 1, "kvCacheStats": {}}]')
        )

    own = (Ask("/prometheus/metrics", "exposition"), Ask("/metrics", "iterstats"))
    with http_server(answer) as (base, asked):
        got = take(request(ServerAsk(base), choose=lambda url, page: own, samples=3))
    assert [p for _, p in asked].count("/metrics") == 3
    assert kinds(got)["exposition"] == 3


def test_a_server_without_metrics_can_still_be_asked_who_it_is() -> None:
    def answer(r: BaseHTTPRequestHandler) -> Answer:
        return (404, {}, b"") if r.path == "/metrics" else (200, {}, b'{"data": []}')

    with http_server(answer) as (base, _):
        got = take(
            request(
                ServerAsk(base), choose=lambda url, page: (Ask("/v1/models", "models", True),) if page is None else ()
            )
        )
    assert kinds(got) == {"models": 1}
    assert [m.kind for m in got.missing] == ["metrics"]


def test_a_dead_server_ends_the_run_at_once_with_one_sentence_and_the_live_one_goes_on() -> None:
    port = dead_port()
    began = time.monotonic()
    got = take(request(ServerAsk(f"http://127.0.0.1:{port}", VLLM), window_s=30), clock=Clock())
    assert time.monotonic() - began < 10
    assert [(m.kind, m.origin) for m in got.missing] == [("metrics", f"http://127.0.0.1:{port}/metrics")]
    with http_server(Engine()) as (base, _):
        both = take(request(ServerAsk(f"http://127.0.0.1:{port}", VLLM), ServerAsk(base, VLLM)))
    assert kinds(both)["exposition"] == 5
    assert len(both.missing) == 1


def test_a_server_that_fails_in_between_is_a_warning_and_its_readings_stay() -> None:
    engine = Engine()
    calls = itertools.count()

    def answer(r: BaseHTTPRequestHandler) -> Answer:
        return (503, {}, b"") if next(calls) in (1, 2) else engine(r)

    with http_server(answer) as (base, _):
        got = take(request(ServerAsk(base, VLLM[:1])))
    assert kinds(got) == {"exposition": 3}
    assert got.missing == ()
    assert any("2 of 5 samples failed" in w for w in got.warnings)


def test_a_slow_server_does_not_hold_up_a_quick_one() -> None:
    with raw_server(lambda c, stop: (stop.wait(5), None)[1]) as port, http_server(Engine()) as (base, _):
        got = take(
            request(
                ServerAsk(f"http://127.0.0.1:{port}", VLLM[:1]),
                ServerAsk(base, VLLM[:1]),
                samples=3,
                timeout_s=1.0,
            )
        )
    assert kinds(got) == {"exposition": 3}
    assert "within 1 s" in got.missing[0].reason


def test_an_interrupt_keeps_what_was_gathered(tmp_path: Path) -> None:
    log = tmp_path / "s.log"
    log.write_text("INFO hello\n")
    with http_server(Engine()) as (base, _):
        asked = request(ServerAsk(base, VLLM), logs=(str(log),))
        got = take(asked, clock=Steps(interrupt_at=8).clock())
    found = kinds(got)
    assert found["exposition"] == 2
    assert found["log"] == 1
    assert any("interrupted" in w for w in got.warnings)


def test_a_clock_that_jumps_is_said_and_does_not_bend_the_times_of_readings() -> None:
    with http_server(Engine()) as (base, _):
        got = take(request(ServerAsk(base, VLLM[:1])), clock=Steps().clock(jump_after=3))
    times = [m.time for m in got.members if m.time is not None]
    assert max(times) - min(times) < 60
    assert sum("jumped by +3600" in w for w in got.warnings) == 1


def test_logs_are_read_from_start_to_end_and_appear_in_the_first_word(tmp_path: Path) -> None:
    log = tmp_path / "s.log"
    log.write_text("INFO start\n")
    first: list[Snapshot] = []

    def keep(snapshot: Snapshot) -> None:
        first.append(snapshot)
        with log.open("a") as stream:
            stream.write("INFO later\n")

    with http_server(Engine()) as (base, _):
        got = take(request(ServerAsk(base, VLLM[:1]), logs=(str(log), str(tmp_path / "absent.log"))), on_first=keep)

    def body(s: Snapshot) -> list[bytes]:
        return [m.read() for m in s.members if m.kind == "log"]

    assert body(first[0]) == [b"INFO start\n"]
    assert body(got) == [b"INFO start\nINFO later\n"]
    assert [m.origin for m in got.missing] == [str(tmp_path / "absent.log")]


def test_a_log_on_standard_input_alone_is_read_to_its_end_without_a_window() -> None:
    reader, writer = os.pipe()

    def write() -> None:
        os.write(writer, b"INFO x\n")
        os.close(writer)

    threading.Timer(0.3, write).start()
    began = time.monotonic()
    got = take(request(logs=("-",), window_s=20), stdin_fd=reader, clock=Clock())
    os.close(reader)
    assert time.monotonic() - began < 10
    assert [m.read() for m in got.members] == [b"INFO x\n"]


def test_two_logs_of_one_name_keep_names_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.log").write_text(name)
    got = take(request(logs=(str(tmp_path / "a/server.log"), str(tmp_path / "b/server.log"))))
    assert sorted(m.name for m in got.members) == ["logs/server-2.log", "logs/server.log"]


def test_pages_over_the_memory_of_a_run_are_dropped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MEMORY", 500)
    with http_server(lambda r: (200, {}, b"a 1\n" * 50)) as (base, _):
        got = take(request(ServerAsk(base, VLLM[:1])))
    assert kinds(got) == {"exposition": 2}
    assert "dropped" in got.missing[0].reason


def test_a_host_without_gpu_says_so_once() -> None:
    class NVMLError(Exception):
        """Plays pynvml.NVMLError."""

    def init() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    nvml = Nvml(SimpleNamespace(NVMLError=NVMLError, nvmlInit=init))
    got = take(request(gpu=True), nvml=nvml)
    assert [(m.kind, m.reason) for m in got.missing] == [("gpu", "no NVIDIA driver library here (libnvidia-ml.so.1)")]


def test_gpus_are_read_at_the_start_and_at_the_end() -> None:
    class NVMLError(Exception):
        """Plays pynvml.NVMLError."""

    used = itertools.count(1)
    nvml = Nvml(
        SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 1,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=8 << 30, used=next(used) << 30, free=0),
            nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
        )
    )
    with http_server(Engine()) as (base, _):
        got = take(request(ServerAsk(base, VLLM[:1]), gpu=True), nvml=nvml)
    report = [t.value.readings[0].mem_used for t in normalise(got).host.gpu if t.value.readings]
    assert report == [1 << 30, 2 << 30]
    assert [m.time for m in got.members if m.kind == "smi-query"] == [1_785_000_000, 1_785_000_010]


def test_what_discovery_found_becomes_members_with_masked_flags() -> None:
    table = "    PID    PPID STAT      RSS %CPU     ELAPSED COMMAND\n      9       1 S          100  0.0    00:01:00 vllm serve m\n"
    one = Found(
        "vllm",
        os.getpid(),
        ("vllm", "serve", "m", "--max-num-seqs", "7"),
        version="0.31.0",
        version_from="/x.dist-info",
        notes=("a note",),
    )
    got = take(request(discovery=Discovery((one,), ("looked",), (), table), host=False))
    assert kinds(got) == {"ps": 1, "command": 1, "version": 1}
    assert "a note" in got.warnings
    intake = normalise(got)
    assert intake.targets[0].args["max_num_seqs"] == "7"


@pytest.mark.parametrize("bad", [LiveRequest(servers=(ServerAsk("ftp://x"),)), LiveRequest(logs=("k8s:x",))])
def test_what_cannot_be_meant_is_an_error_of_the_user(bad: LiveRequest) -> None:
    with pytest.raises(SpecError):
        take(bad)


# ---- host (dmesg is a stand-in on PATH)

ISO = "2026-08-03T00:00:01,123456+02:00 NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=x, GPU has fallen off the bus."


def test_the_kernel_log_with_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "dmesg", f"echo '{ISO}'\n")
    monkeypatch.setenv("PATH", path_with(tmp_path))
    member = host.kernel_log(5.0)
    assert isinstance(member, Member)
    parsed = kernel_log(member.read().decode())
    assert isinstance(parsed, KernelLog)
    assert (parsed.xids[0].number, parsed.xids[0].stamp.zoned) == (79, True)


def test_a_quiet_kernel_log_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "dmesg", "echo '2026-08-03T00:00:01,123456+02:00 usb 1-1: new device'\n")
    monkeypatch.setenv("PATH", path_with(tmp_path))
    member = host.kernel_log(5.0)
    assert isinstance(member, Member)
    assert isinstance(kernel_log(member.read().decode()), KernelLog)


def test_an_old_dmesg_is_asked_the_old_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        tmp_path,
        "dmesg",
        "[ $1 = -T ] || { echo \"dmesg: unrecognized option '--time-format'\" >&2; exit 1; }\necho '[Mon Aug  3 00:00:01 2026] x'\n",
    )
    monkeypatch.setenv("PATH", path_with(tmp_path))
    member = host.kernel_log(5.0)
    assert isinstance(member, Member)
    assert member.read() == b"[Mon Aug  3 00:00:01 2026] x\n"


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n", "root only"),
        ("true\n", "empty"),
    ],
)
def test_a_kernel_log_that_cannot_be_read(
    script: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "dmesg", script)
    monkeypatch.setenv("PATH", path_with(tmp_path))
    missing = host.kernel_log(5.0)
    assert isinstance(missing, Missing)
    assert word in missing.reason
    assert "sudo dmesg" in missing.hint


def cgroup_tree(tmp_path: Path, line: str, files: dict[str, str]) -> Member | Missing:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(line)
    for name, text in files.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host.cgroup_memory(7, 1.0, proc_root=str(tmp_path / "proc"), cgroup_root=str(tmp_path / "sys"))


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("0::/a.slice\n", {"a.slice/memory.current": "900\n", "a.slice/memory.max": "1000\n", "a.slice/memory.stat": "anon 800\nfile 100\ninactive_file 50\n",
                           "a.slice/memory.events": "low 0\nmax 3\noom_kill 1\n"}),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.usage_in_bytes": "900\n", "memory/a/memory.limit_in_bytes": "1000\n",
                                 "memory/a/memory.stat": "total_inactive_file 50\nrss 800\n", "memory/a/memory.oom_control": "under_oom 0\noom_kill 1\n"}),
    ],
    ids=["v2", "v1"],
)  # fmt: skip
def test_cgroup_memory_of_both_versions(tmp_path: Path, line: str, files: dict[str, str]) -> None:
    member = cgroup_tree(tmp_path, line, files)
    assert isinstance(member, Member)
    parsed = cgroup(member.read().decode(), name=member.name)
    assert isinstance(parsed, CgroupMemory)
    assert (parsed.current, parsed.limit, parsed.inactive_file, parsed.oom_kills) == (900, 1000, 50, 1)


def test_no_cgroup_memory(tmp_path: Path) -> None:
    missing = cgroup_tree(tmp_path, "0::/../../x\n", {})
    assert isinstance(missing, Missing)
    assert missing.hint


def test_meminfo_of_this_host_and_of_none(tmp_path: Path) -> None:
    assert isinstance(host.meminfo(1.0), Member)
    assert isinstance(host.meminfo(1.0, str(tmp_path)), Missing)


def test_host_facts_do_not_name_the_host() -> None:
    got = take(request())
    assert os.uname().nodename not in json.dumps(dict(got.host))
    assert got.host["system"] == os.uname().sysname
