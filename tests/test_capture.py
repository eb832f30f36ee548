"""``kvdoctor capture``: what it lists, what it writes, and that it never leaves half a file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvdoctor.cli.capture import capture
from kvdoctor.snapshot import Missing, Snapshot, memory_member, read_archive, replacing

LOG = (
    "INFO 07-28 03:00:01 [logger.py:41] Received request cmpl-1: prompt: 'private words', params: SamplingParams(max_tokens=64)\n"
    "INFO 07-28 03:00:16 [loggers.py:127] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 "
    "tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV cache usage: 91.0%, Prefix cache hit rate: 0.0%\n"
)
PAGE = 'vllm:num_requests_running{engine="0",model_name="m"} 3\n'

app = typer.Typer()
app.command()(capture)
runner = CliRunner()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "acme-logs"
    folder.mkdir()
    (folder / "server.log").write_text(LOG)
    (folder / "metrics_1785207600.prom").write_text(PAGE)
    (folder / "notes.bin").write_bytes(bytes(range(256)))
    return folder


def test_files_become_an_archive_that_a_diagnosis_reads(logs: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    done = runner.invoke(app, [str(logs), "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert f"next: kvdoctor diagnose {target}" in done.stdout
    assert "missing:\n  binary: not included: content not understood" in done.stdout
    back = read_archive(target)
    assert [m.kind for m in back.members] == ["exposition", "log-events"]
    assert back.members[0].time == 1785207600.0
    assert all(m.redactions for m in back.members)
    assert b"private words" not in b"".join(m.read() for m in back.members)
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


def test_a_dry_run_lists_and_writes_nothing(logs: Path, tmp_path: Path) -> None:
    done = runner.invoke(app, [str(logs), "--dry-run", "-o", str(tmp_path / "out.tar.gz")])
    assert done.exit_code == 0
    assert "2 sources" in done.stdout
    assert "0002-log.json" not in done.stdout.split("left out or changed:")[1]
    assert "log-events: request ids hashed with a key of this capture" in done.stdout
    assert not (tmp_path / "out.tar.gz").exists()
    assert runner.invoke(app, [str(logs), "--dry-run"]).exit_code == 0


def test_raw_logs_are_kept_with_a_warning(logs: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    done = runner.invoke(app, [str(logs), "-o", str(target), "--include-raw-logs"])
    assert done.exit_code == 0
    assert "warning" in done.stderr
    assert "may hold prompts" in done.stderr
    assert b"private words" in b"".join(m.read() for m in read_archive(target).members)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["LOGS"], "-o FILE"),
        (["LOGS", "-o", "nowhere/out.tar.gz"], "does not exist"),
        (["LOGS", "-o", "."], "is a folder"),
        (["gone", "-o", "out.tar.gz"], "gone does not exist"),
        (["LOGS", "-o", "out.tar.gz", "--url", "http://x"], "not both"),
        (["LOGS", "-o", "out.tar.gz", "--engine", "vlm"], "choose one of"),
    ],
)
def test_usage_errors_are_one_line_and_2(
    arguments: list[str], said: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, [str(logs) if a == "LOGS" else a for a in arguments])
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_to_write_is_3_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words of nobody's format\n")
    done = runner.invoke(app, [str(tmp_path / "notes.txt"), "-o", str(tmp_path / "out.tar.gz")])
    assert done.exit_code == 3
    assert "nothing that could be captured" in done.stderr
    assert not (tmp_path / "out.tar.gz").exists()


def test_a_live_reading_takes_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def take(*arguments: object) -> Snapshot:
        asked.append(arguments)
        page = memory_member("m", PAGE.encode(), kind="exposition", time=1.0, origin="http://acme:8000/metrics")
        return Snapshot((page,), (Missing("log", "journal:acme", "journalctl is not installed"),), taken=1.0, live=True)

    live = types.ModuleType("kvdoctor.cli.live")
    live.take = take  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvdoctor.cli.live", live)
    target = tmp_path / "out.tar.gz"
    done = runner.invoke(
        app, ["-o", str(target), "--url", "http://acme:8000", "--window", "4", "--log", "journal:acme"]
    )
    assert done.exit_code == 0, done.output
    assert asked == [(["http://acme:8000"], ["journal:acme"], 4.0, [], 5.0, None)]
    assert "log: not installed" in done.stdout
    back = read_archive(target)
    assert back.members[0].origin == "http://host1:8000/metrics"
    assert "acme" not in str(back.missing)


def test_the_cap_is_noted(tmp_path: Path) -> None:
    line = LOG.splitlines()[1]
    (tmp_path / "s.log").write_text(
        "\n".join(line.replace("03:00:16", f"03:{i // 60:02d}:{i % 60:02d}") for i in range(3000))
    )
    target = tmp_path / "out.tar.gz"
    done = runner.invoke(app, [str(tmp_path / "s.log"), "-o", str(target), "--max-mb", "0.1"])
    assert done.exit_code == 0, done.output
    (log,) = read_archive(target).members
    assert log.truncated
    assert log.size <= 0.1 * 2**20
    assert "cut" in done.stdout


def test_a_full_disk_is_a_clear_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    target.write_bytes(b"the earlier capture")
    source = tmp_path / "server.log"
    source.write_text(LOG * 2000)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    program = "import typer; from kvdoctor.cli.capture import capture; typer.run(capture)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(source), "-o", str(target)],
        capture_output=True,
        text=True,
        preexec_fn=small,
        check=False,
    )
    assert done.returncode == 2
    assert f"cannot write {target}" in done.stderr
    assert "Traceback" not in done.stderr
    assert target.read_bytes() == b"the earlier capture"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.tar.gz", "server.log"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_plain_file_is_written_to_and_stays(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    place = target
    if kind == "pipe":
        os.mkfifo(place)
        reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    else:
        target.write_text("old")
        place = tmp_path / "place"
        place.symlink_to(target)
    with replacing(place) as path:
        path.write_text("new")
    if kind == "pipe":
        assert os.read(reader, 10) == b"new"
        assert place.is_fifo()
        os.close(reader)
    else:
        assert (target.read_text(), place.is_symlink()) == ("new", True)
    assert len(list(tmp_path.iterdir())) == (1 if kind == "pipe" else 2)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text("old")

    def half() -> None:
        with replacing(place) as path:
            path.write_text("ne")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        half()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
