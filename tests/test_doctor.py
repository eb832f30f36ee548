"""``kvdoctor doctor``: each look with stand-in programs on PATH that print what the real ones print."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest
import typer
from collect_helpers import path_with, program
from test_collect_gpu import fake
from typer.testing import CliRunner

from kvdoctor.cli import doctor as module
from kvdoctor.cli.doctor import Sight, doctor, look, newest_versions, to_text
from kvdoctor.collect.nvml import Nvml

app = typer.Typer()
app.command()(doctor)

SMI = """index, uuid, name, pci.bus_id, driver_version, memory.total [MiB], memory.used [MiB], memory.free [MiB]
0, GPU-00000000-0000-0000-0000-000000000001, NVIDIA A100-SXM4-80GB, 00000000:07:00.0, 535.104.05, 81920 MiB, 70000 MiB, 11000 MiB
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_without_any_tool_every_look_says_why_and_what_to_do(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sights = look(nvml=Nvml(types.SimpleNamespace(NVMLError=OSError)), proc_root=str(tmp_path / "none"), environ={})
    by_name = {s.name: s for s in sights}
    for name in ("nvidia-smi", "journald", "docker", "kubectl", "kernel log", "settings"):
        assert by_name[name].state == "absent", by_name[name]
    assert by_name["NVML"].state in ("absent", "refused")
    assert by_name["processes"].state == "refused"
    assert all(s.detail and s.needed_for for s in sights)
    assert all(s.how for s in sights if s.state != "ok")


def test_tools_that_answer(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path_with(stand_ins))
    program(
        stand_ins,
        "nvidia-smi",
        f"case \"$*\" in *query-gpu*) cat <<'E'\n{SMI}E\n;; *) echo 'gpu_uuid, pid, process_name, used_gpu_memory [MiB]' ;; esac\n",
    )
    program(stand_ins, "journalctl", "echo 'Nov 29 13:00:00 host vllm[1]: ready'\n")
    program(stand_ins, "docker", "echo 27.1.1\n")
    program(stand_ins, "kubectl", 'echo \'{"major": "1", "gitVersion": "v1.31.2"}\'\n')
    program(stand_ins, "dmesg", "echo '2026-11-29T13:00:00,000000+00:00 Linux version 6.1'\n")
    by_name = {s.name: s for s in look(nvml=Nvml(fake()))}
    states = {
        name: by_name[name].state for name in ("NVML", "nvidia-smi", "journald", "docker", "kubectl", "kernel log")
    }
    assert set(states.values()) == {"ok"}, by_name
    assert by_name["NVML"].detail == "2 x NVIDIA H100 80GB HBM3, driver 570.86.10"
    assert by_name["nvidia-smi"].detail == "1 x NVIDIA A100-SXM4-80GB, driver 535.104.05"
    assert "27.1.1" in by_name["docker"].detail
    assert "v1.31.2" in by_name["kubectl"].detail
    assert "ready" not in str(by_name["journald"])


@pytest.mark.parametrize(
    "tool, script, name, reason, how",
    [
        ("docker", "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1\n", "docker",
         "permission denied", "group docker"),
        ("docker", "sleep 30\n", "docker", "did not finish within 1 s", "docker ps"),
        ("kubectl", "echo 'The connection to the server localhost:8080 was refused' >&2; exit 1\n", "kubectl",
         "was refused", "kubectl"),
        ("kubectl", "echo 'error: You must be logged in to the server' >&2; exit 1\n", "kubectl", "logged in", "log in"),
        ("journalctl", "echo 'Hint: You are currently not seeing messages from other users and the system.' >&2; echo x\n",
         "journald", "own messages", "systemd-journal"),
        ("journalctl", "echo 'Failed to open journal' >&2; exit 1\n", "journald", "Failed to open", "by hand"),
        ("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n", "nvidia-smi",
         "mismatch", "reboot"),
        ("dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n", "kernel log",
         "root only", "sudo dmesg"),
    ],
)  # fmt: skip
def test_tools_that_refuse(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch, tool: str, script: str, name: str, reason: str, how: str
) -> None:
    monkeypatch.setenv("PATH", path_with(stand_ins))
    monkeypatch.setattr(module, "TOOL_TIMEOUT_S", 1.0)
    program(stand_ins, tool, script)
    sight = next(s for s in look(nvml=Nvml(fake())) if s.name == name)
    assert sight.state == "refused"
    assert reason in sight.detail
    assert how in sight.how


def test_an_empty_journal_is_absent(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path_with(stand_ins))
    program(stand_ins, "journalctl", "echo 'No journal files were found.' >&2; echo '-- No entries --'\n")
    assert module._journald().state == "absent"


def test_a_library_that_is_broken_is_refused_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brokenlib.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sight = module._library("brokenlib", "import brokenlib", "x", "y")
    assert (sight.state, sight.how) == ("refused", "y")
    assert "libcudart" in sight.detail
    (tmp_path / "slowlib.py").write_text("import time; time.sleep(30)\n")
    monkeypatch.setattr(module, "IMPORT_TIMEOUT_S", 0.5)
    assert "longer than 0.5 s" in module._library("slowlib", "import slowlib", "x", "y").detail
    (tmp_path / "goodlib.py").write_text("__version__ = '3.2.1'\n")
    monkeypatch.setattr(module, "IMPORT_TIMEOUT_S", 30.0)
    assert module._library("goodlib", "import goodlib; print(goodlib.__version__)", "x", "y").detail == "3.2.1"
    gone = module._library("no_such_library", "", "x", "y")
    assert (gone.state, gone.detail) == ("absent", f"not installed for {sys.executable}")


def proc(root: Path, *pids: int) -> str:
    for pid in pids:
        (root / str(pid) / "fd").mkdir(parents=True)
    return str(root)


def test_processes_of_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert module._processes(proc(tmp_path / "a", 1, 7)).state == "ok"
    hidden = module._processes(proc(tmp_path / "b", 7))
    assert hidden.state == "refused"
    assert "hidepid" in hidden.detail
    root = proc(tmp_path / "c", 1, 7)
    listdir = os.listdir

    def guarded(path: str) -> list[str]:
        if str(path).endswith("/1/fd"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", guarded)
    closed = module._processes(root)
    assert closed.state == "refused"
    assert "2 visible, 2 of other users; ports and log files of 1 of them" in closed.detail


def test_settings_found_and_settings_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert module._settings({}).state == "absent"
    (tmp_path / "kvdoctor.toml").write_text('fail_on = "high"\n')
    found = module._settings({})
    assert found.state == "ok"
    assert "kvdoctor.toml" in found.detail
    (tmp_path / "kvdoctor.toml").write_text("fail_on = 3\n")
    assert module._settings({}).state == "refused"


def test_the_catalogue_names_the_newest_version_of_each_server() -> None:
    versions = newest_versions()
    assert set(versions) >= {"vllm", "sglang", "tensorrt-llm", "tgi", "llamacpp", "lmdeploy", "ollama"}
    assert "dcgm-exporter" not in versions
    # by number, not by letters: 0.9 is older than 0.33
    assert tuple(map(int, str(versions["vllm"]).split("."))) >= (0, 33)


def test_a_terminal_is_told_from_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(tty: bool) -> types.SimpleNamespace:
        return types.SimpleNamespace(isatty=lambda: tty, encoding="utf-8")

    monkeypatch.setattr(sys, "stderr", stream(True))
    monkeypatch.setattr(sys, "stdout", stream(False))
    assert module._terminal({"TERM": "xterm"}).detail == "not a terminal: standard output"
    monkeypatch.setattr(sys, "stdout", stream(True))
    assert module._terminal({"TERM": "xterm", "NO_COLOR": "1"}).state == "ok"
    assert "NO_COLOR" in module._terminal({"TERM": "xterm", "NO_COLOR": "1"}).detail
    assert module._terminal({"TERM": "dumb"}).state == "refused"


def test_the_command_never_fails_on_what_it_sees(stand_ins: Path) -> None:
    result = CliRunner().invoke(app, ["--format", "json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["schema"] == "kvdoctor.doctor/1"
    assert {row["state"] for row in document["sights"]} <= {"ok", "absent", "refused"}
    assert all((row["how"] is None) == (row["state"] == "ok") for row in document["sights"])
    text = CliRunner().invoke(app, [])
    assert text.exit_code == 0
    assert "get it: " in text.stdout
    assert CliRunner().invoke(app, ["--format", "xml"]).exit_code == 2


def test_text_fits_the_terminal_and_shows_no_control_characters_or_secrets() -> None:
    sights = [
        Sight("logs", "docker", "refused", "said \x1b[31mtoken=hf_abcdefghijklmnop1234 " + "word " * 40, "logs", "ask")
    ]
    text = to_text(sights, 60, color=False)
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert "hf_abcdef" not in text
    assert "\x1b[33mrefused" in to_text(sights, 60, color=True)
