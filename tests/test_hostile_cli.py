"""What a shell can do to a process: closed and full output, devices as files, faults that must not look like findings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvdoctor.sim.workload import TraceError, read_trace

SAMPLE = ("diagnose", "sample:vllm-healthy", "--what-if", "none")


def _run(arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = f'"{sys.executable}" -m kvdoctor {arguments}'
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [" ".join(SAMPLE), "rules list", "--help"])
def test_a_full_disk_behind_standard_output_is_no_finding(arguments: str) -> None:
    done = _run(f"{arguments} > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("kvdoctor: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_changes_no_exit_code(closed: str) -> None:
    assert _run(f"{' '.join(SAMPLE)} {closed}").returncode == 0


def test_an_encoding_without_the_characters_of_the_report() -> None:
    done = _run(" ".join(SAMPLE), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        "size /dev/zero",
        "lint /dev/zero",
        "check --baseline /dev/zero sample:vllm-healthy",
        "diagnose --config /dev/zero sample:vllm-healthy",
        "diagnose /dev/zero",
        "diagnose ''",
        "diagnose --window nan",
        "diagnose --timeout nan --url http://127.0.0.1:1",
    ],
)
def test_what_is_no_input_is_said_in_a_line(arguments: str) -> None:
    done = _run(arguments)
    assert done.returncode == 2
    assert "kvdoctor: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_fault_of_kvdoctor_is_one_line_and_never_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvdoctor import cli
    from kvdoctor.cli import main

    def broken() -> None:
        cli._place(None)  # type: ignore[arg-type]

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(SystemExit) as end:
        cli.run()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("kvdoctor: a fault of kvdoctor itself (AttributeError")
    assert "kvdoctor.cli:" in said
    assert said.count("\n") == 1


def test_a_trace_of_one_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("[" * 200_000)
    with pytest.raises(TraceError, match=r":1: no csv header"):
        read_trace(path)
