"""The watch off a terminal: JSON lines, the text file, recordings, signals, a closed pipe, the terminal given back."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from watch_helpers import OPTIONS, SAMPLES, T0, page, page_text, rules, sample, watcher

from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import memory_member, read_paths
from kvdoctor.watch.lines import line
from kvdoctor.watch.pump import pump
from kvdoctor.watch.replay import Replay
from kvdoctor.watch.sample import Paced, Sample
from kvdoctor.watch.textfile import render, write
from kvdoctor.watch.watcher import Frame, Watcher

ROOT = SAMPLES.parent
RUN = (
    "import sys, typer\n"
    "from kvdoctor.cli.watch import watch\n"
    "app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)\n"
    "app.command()(watch)\n"
    "app()\n"
)


def played(story: str) -> Frame:
    import threading

    one = Watcher(rules(), OPTIONS)
    replay = Replay(read_paths([SAMPLES / story]), rules(), OPTIONS, speed=1e9)
    frame = pump(replay, one, lambda frame: None, threading.Event())
    assert frame is not None
    return frame


# ---------------------------------------------------------------- lines


def test_a_line_is_a_report_and_names_what_is_undecided_without_its_details() -> None:
    report = diagnose(read_paths([SAMPLES / "vllm-overload"]), rules(), OPTIONS)
    text = line(report, "1.0")
    assert text.count("\n") == 1
    document = json.loads(text)
    schema = json.loads((ROOT / "kvdoctor" / "report" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert document["verdict"]["rule"] == report.main.verdict.rule
    assert [u["rule"] for u in document["undecided"]] == [v.rule for v in report.main.undecided]
    assert all(u["holds"] == [] and u["missing"] == [] for u in document["undecided"])


# ---------------------------------------------------------------- text file


def series(text: str) -> dict[str, float]:
    return {one.rpartition(" ")[0]: float(one.rpartition(" ")[2]) for one in text.splitlines() if one[0] != "#"}


def test_the_text_file_holds_verdict_vitals_and_findings() -> None:
    text = render(played("vllm-overload"))
    found = series(text)
    assert (
        found[
            'kvdoctor_verdict{target="vllm tiny",rule="admission-thrash",id="KV301",severity="high",confidence="medium"}'
        ]
        == 1
    )
    assert found['kvdoctor_finding_severity_level{target="vllm tiny",rule="admission-thrash",id="KV301"}'] == 3
    assert found['kvdoctor_kv_usage_ratio{target="vllm tiny"}'] == 1.0
    assert found['kvdoctor_requests_running{target="vllm tiny"}'] == 6
    assert found['kvdoctor_server_up{server="vllm"}'] == 1


def test_what_is_not_known_has_no_series() -> None:
    one = watcher()
    frame = one.feed(sample(0, page(T0, page_text(preempted=7))))
    text = render(frame)
    # one scrape: no rate, and a count since the start of the process is no count of the window
    assert "kvdoctor_preemptions_per_second" not in text
    assert "kvdoctor_memory_total_bytes" not in text
    assert "kvdoctor_kv_usage_ratio" in text
    assert render(one.feed(Sample(T0 + 1))) != ""


def test_labels_are_escaped() -> None:
    one = watcher()
    frame = one.feed(sample(0, page(T0, page_text(), 'a"b\\c\nd')))
    frame = one.feed(sample(3, page(T0 + 3, page_text(), 'a"b\\c\nd')))
    assert 'server="a\\"b\\\\c\\nd"' in render(frame)


@pytest.mark.parametrize("story", ["vllm-overload", "sglang-retract", "vllm-start-fail"])
def test_promtool_accepts_the_text_file(story: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=render(played(story)), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_text_file_is_replaced_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "kvdoctor.prom"
    write(target, "a 1\n")
    write(target, "b 2\n")
    assert target.read_text() == "b 2\n"
    assert [p.name for p in tmp_path.iterdir()] == ["kvdoctor.prom"]
    blocked = tmp_path / "folder"
    blocked.mkdir()
    with pytest.raises(OSError, match="folder"):
        write(blocked, "c 3\n")
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


# ---------------------------------------------------------------- recordings


def test_a_recording_plays_every_page_at_its_time_and_the_log_beside_it() -> None:
    import threading

    replay = Replay(read_paths([SAMPLES / "vllm-saturated"]), rules(), OPTIONS, speed=1e9)
    samples = []
    while (taken := replay.next(threading.Event())) is not None:
        samples.append(taken)
    paged = [s for s in samples if s.pages]
    assert len(paged) == 7
    assert [s.time for s in paged] == sorted(p.member.time for s in paged for p in s.pages)  # type: ignore[type-var]
    log = b"".join(piece.data for s in samples for piece in s.logs)
    assert log == (SAMPLES / "vllm-saturated" / "server.log").read_bytes()
    # not all at once: a line is not there before its time
    assert sum(bool(s.logs) for s in samples) > 3


def test_pages_without_a_time_keep_their_order_and_have_no_rates() -> None:
    frame = played("sglang-retract")
    assert frame.rows[0].gen_rate is None or frame.rows[0].preempt_rate is None
    assert any("carry no time" in event.text for event in frame.events)


def test_a_recording_goes_at_the_speed_that_was_asked_for() -> None:
    import threading

    now = [0.0]
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            now[0] += timeout
            return False

    members = [
        memory_member(f"m{n}", page_text(generated=n).encode(), kind="exposition", time=T0 + 10 * n, origin=f"m{n}")
        for n in range(3)
    ]
    from kvdoctor.snapshot import Snapshot

    replay = Replay(Snapshot(tuple(members)), rules(), OPTIONS, speed=10.0, steady=lambda: now[0])
    stop = Stop()
    while replay.next(stop) is not None:
        pass
    assert sum(waited) == pytest.approx(2.0)


def test_samples_are_paced_from_the_start_and_not_made_up_for() -> None:
    import threading

    now = [100.0]

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            now[0] += timeout
            return False

    taken: list[float] = []

    def take(at: float) -> Sample:
        taken.append(at)
        now[0] += 3.5 if len(taken) == 2 else 0.0
        return Sample(at)

    paced = Paced(take, lambda: None, interval_s=1.0, duration_s=8.0, wall=lambda: now[0] + 1000, steady=lambda: now[0])
    while paced.next(Stop()) is not None:
        pass
    assert taken == pytest.approx([1100.0, 1101.0, 1104.5, 1105.5, 1106.5, 1107.5, 1108.5], abs=0.01)


def test_a_wall_clock_that_was_set_is_told_with_the_sample() -> None:
    import threading

    now, off = [0.0], [0.0]
    stop = threading.Event()
    paced = Paced(Sample, lambda: None, interval_s=0.001, wall=lambda: now[0] + off[0] + 5000, steady=lambda: now[0])
    first = paced.next(stop)
    now[0], off[0] = 1.0, -60.0
    second = paced.next(stop)
    now[0] = 2.0
    third = paced.next(stop)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.jumped, second.jumped, third.jumped) == (0.0, -60.0, 0.0)
    assert second.time == pytest.approx(4941.0)


# ---------------------------------------------------------------- the whole program


def start(*arguments: str, **named: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUN, *arguments], cwd=ROOT, **named)  # type: ignore[call-overload,no-any-return]


def test_off_a_terminal_there_is_a_json_line_for_each_diagnosis() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--replay", "sample:vllm-overload", "--speed", "100000", "--fail-on", "high"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    lines = [json.loads(one) for one in done.stdout.splitlines()]
    assert done.returncode == 1
    assert len(lines) >= 3
    assert lines[-1]["verdict"]["rule"] == "admission-thrash"
    assert done.stderr == b""


def test_with_a_text_file_nothing_else_is_written(tmp_path: Path) -> None:
    target = tmp_path / "kvdoctor.prom"
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--replay", "sample:vllm-overload", "--speed", "100000", "--textfile", str(target)],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "kvdoctor_verdict{" in target.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_at_once_with_whole_lines(number: signal.Signals) -> None:
    with start("--replay", "sample:vllm-saturated", "--speed", "0.01", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)
        rest = process.stdout.read()
        code = process.wait(10)
    assert code == 0
    for one in (first + rest).splitlines():
        json.loads(one)


def test_a_reader_that_leaves_ends_it_without_a_finding_in_the_exit_code() -> None:
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--replay", "sample:vllm-saturated", "--speed", "1000", "--fail-on", "low"],
        cwd=ROOT, stdout=written, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(written)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


def on_terminal(act: signal.Signals | bytes, size: tuple[int, int] = (30, 100)) -> tuple[int, bytes]:
    """Run the live view on a terminal of its own, press a key or send a signal once it shows a verdict."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    before = termios.tcgetattr(slave)
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    with start(
        "--replay", "sample:vllm-overload", "--speed", "20", stdin=slave, stdout=slave, stderr=slave, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        output = b""
        end = time.monotonic() + 60
        acted = False
        while time.monotonic() < end and process.poll() is None:
            if select.select([master], [], [], 0.1)[0]:
                output += os.read(master, 1 << 16)
            if not acted and b"KV pool" in output and b"Findings" in output:
                acted = True
                if isinstance(act, bytes):
                    os.write(master, act)
                else:
                    process.send_signal(act)
        code = process.wait(10)
    while select.select([master], [], [], 0.1)[0]:
        output += os.read(master, 1 << 16)
    assert termios.tcgetattr(slave)[:4] == before[:4]
    os.close(slave)
    os.close(master)
    assert acted
    return code, output


@pytest.mark.parametrize("act", [b"q", b"\x03", signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_terminal_is_given_back_as_it_was(act: signal.Signals | bytes) -> None:
    code, output = on_terminal(act)
    assert code in (0, 3)
    entered, left = output.rfind(b"\x1b[?1049h"), output.rfind(b"\x1b[?1049l")
    assert 0 <= entered < left
    assert output.rfind(b"\x1b[?25h") > output.rfind(b"\x1b[?25l")
