"""Logs of every source: first part and last, rotation and truncation while read, programs that are absent or fail.

journalctl, systemctl, docker and kubectl are stand-ins on PATH that replay recorded output.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from collect_helpers import path_with, program

from kvdoctor.collect import SpecError, logs
from kvdoctor.collect.command import run
from kvdoctor.collect.logs import FileLog, LogTake, StreamLog, mask_describe, open_log
from kvdoctor.parse.serverlog import Unwrapper


def text(taken: LogTake, index: int = 0) -> str:
    return taken.members[index].read().decode()


def test_a_file_is_kept_whole_with_what_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("one\n")
    log = open_log(str(path))
    assert text(log.first()) == "one\n"
    with path.open("a") as stream:
        stream.write("two\n")
    taken = log.finish()
    assert text(taken) == "one\ntwo\n"
    member = taken.members[0]
    assert (member.kind, member.origin, member.truncated) == ("log", str(path), False)
    assert member.time is not None
    assert taken.warnings == ()


def test_of_a_long_file_the_first_and_the_last_part_are_kept_and_the_gap_is_said(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(f"line {n:06d}\n" for n in range(10_000)))
    log = FileLog(str(path), tail=1200, head=600)
    with path.open("a") as stream:
        stream.write("the newest line\n")
    taken = log.finish()
    lines = text(taken).splitlines()
    assert lines[0] == "line 000000"
    assert lines[-1] == "the newest line"
    assert lines[-2] == "line 009999"
    gap = next(i for i, line in enumerate(lines) if "left out here" in line)
    assert all(line.startswith("line ") and len(line) == 11 for line in [*lines[:gap], *lines[gap + 1 : -1]])
    assert taken.members[0].truncated
    assert any("left out" in w for w in taken.warnings)
    assert len(text(taken)) < 2000


def test_a_rotation_keeps_both_parts_in_order(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("before\n")
    log = open_log(str(path))
    with path.open("a") as stream:
        stream.write("last of the old\n")
    path.rename(tmp_path / "server.log.1")
    path.write_text("first of the new\n")
    taken = log.finish()
    assert text(taken) == "before\nlast of the old\nfirst of the new\n"
    assert any("rotated" in w for w in taken.warnings)


def test_a_truncation_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("a long line before the truncation\n")
    log = open_log(str(path))
    path.write_text("after\n")
    taken = log.finish()
    assert text(taken) == "a long line before the truncation\nafter\n"
    assert any("truncated" in w for w in taken.warnings)


def test_a_file_that_is_moved_away_and_one_that_appears(tmp_path: Path) -> None:
    gone = tmp_path / "gone.log"
    gone.write_text("x\n")
    log = open_log(str(gone))
    gone.unlink()
    taken = log.finish()
    assert text(taken) == "x\n"
    assert any("moved away" in w for w in taken.warnings)
    later = tmp_path / "later.log"
    log = open_log(str(later))
    assert "No such file" in log.first().missing[0].reason
    later.write_text("now\n")
    assert text(log.finish()) == "now\n"


def test_a_folder_a_pipe_and_an_empty_file_are_missing_with_a_hint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text("")
    for name, word in ((".", "not a regular file"), ("pipe", "not a regular file"), ("empty", "empty")):
        (missing,) = open_log(str(tmp_path / name)).finish().missing
        assert word in missing.reason, name
        assert missing.hint


@pytest.mark.parametrize(
    "spec", ["journal:", "journal:-x", "docker:--help", "docker:a b", "k8s:pod", "k8s:a/b/c/d", "k8s:a/--x"]
)
def test_specs_that_cannot_be_meant(spec: str) -> None:
    with pytest.raises(SpecError):
        open_log(spec)


# ---- standard input


def test_standard_input_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"hello\nworld\n")
    os.close(writer)
    log = StreamLog(reader)
    assert log.wait(5)
    assert text(log.finish()) == "hello\nworld\n"
    os.close(reader)


def test_standard_input_that_does_not_end_is_taken_as_far_as_it_came() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"hello\n")
    log = StreamLog(reader)
    assert text(log.first()) == "hello\n"
    taken = log.finish(hurry=True)
    os.close(writer)
    os.close(reader)
    assert text(taken) == "hello\n"
    assert any("had not ended" in w for w in taken.warnings)


def test_when_standard_input_is_finished_nothing_reads_its_descriptor_any_more() -> None:
    for _ in range(20):
        reader, writer = os.pipe()
        log = StreamLog(reader)
        os.write(writer, b"a line\n")
        log.finish(hurry=True)
        os.write(writer, b"for somebody else\n")
        os.close(writer)
        assert b"somebody else" in os.read(reader, 100)
        os.close(reader)


def test_standard_input_keeps_head_and_tail_in_bounded_memory() -> None:
    reader, writer = os.pipe()
    log = StreamLog(reader, tail=200_000, head=1000)

    def feed() -> None:
        for n in range(40_000):
            os.write(writer, f"line {n:06d}\n".encode() * 4)
        os.close(writer)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    assert log.wait(30)
    taken = log.finish()
    os.close(reader)
    lines = text(taken).splitlines()
    assert (lines[0], lines[-1]) == ("line 000000", "line 039999")
    assert len(text(taken)) < 400_000
    assert taken.members[0].truncated


def test_nothing_on_standard_input() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    log = StreamLog(reader)
    (missing,) = log.finish().missing
    os.close(reader)
    assert "nothing came" in missing.reason


# ---- programs

JOURNAL = '{"MESSAGE":"INFO 08-03 00:00:01 [core.py:1] hello","__REALTIME_TIMESTAMP":"1785715201000000"}\n'


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    program(tmp_path, name, f'echo "$@" >> {tmp_path}/asked\n{script}')
    monkeypatch.setenv("PATH", path_with(tmp_path))


def test_journald_lines_are_asked_for_as_json_and_unwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "journalctl", f"cat <<'X'\n{JOURNAL}X\n")
    log = open_log("journal:vllm.service")
    log.first()
    taken = log.finish()
    (line,) = Unwrapper(2026)(text(taken).strip())
    assert (line.text, line.time) == ("INFO 08-03 00:00:01 [core.py:1] hello", 1785715201.0)
    assert taken.members[0].origin == "journal:vllm.service"
    assert "-u vllm.service -n 2000" in (tmp_path / "asked").read_text()


def test_a_long_journal_gets_the_first_lines_of_the_present_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "COMMAND_LINES", 3)
    stand_in(tmp_path, monkeypatch, "systemctl", f"echo {'a' * 32}\n")
    stand_in(
        tmp_path, monkeypatch, "journalctl",
        'case "$*" in *INVOCATION*) printf "start\\nsecond\\n";; *) printf "x\\ny\\nz\\n";; esac\n',
    )  # fmt: skip
    taken = open_log("journal:vllm").finish()
    lines = text(taken).splitlines()
    assert lines[:2] == ["start", "second"]
    assert lines[-1] == "z"
    assert taken.members[0].truncated
    assert f"_SYSTEMD_INVOCATION_ID={'a' * 32}" in (tmp_path / "asked").read_text()


def test_docker_gives_both_streams_with_time_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "docker", 'echo "2026-08-03T00:00:01Z out"; echo "2026-08-03T00:00:02Z err" >&2\n')
    assert text(open_log("docker:vllm").finish()) == "2026-08-03T00:00:01Z out\n2026-08-03T00:00:02Z err\n"
    assert "logs --timestamps --tail 300000 vllm" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("spec", "name", "says", "hint"),
    [
        ("docker:vllm", "docker", "Error response from daemon: No such container: vllm", "docker ps -a"),
        (
            "docker:vllm",
            "docker",
            "permission denied while trying to connect to the Docker daemon socket",
            "group docker",
        ),
        (
            "docker:vllm",
            "docker",
            "Error response from daemon: configured logging driver does not support reading",
            "logging driver",
        ),
        (
            "journal:vllm",
            "journalctl",
            "Hint: You are currently not seeing messages from other users",
            "systemd-journal",
        ),
        (
            "k8s:prod/vllm-0",
            "kubectl",
            'Error from server (NotFound): pods "vllm-0" not found',
            "check namespace and pod",
        ),
        (
            "k8s:prod/vllm-0",
            "kubectl",
            "error: a container name must be specified for pod vllm-0, choose one of: [a b]",
            "name the container",
        ),
    ],
)
def test_what_a_program_answers_instead_of_a_log(
    spec: str, name: str, says: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, name, f"echo '{says}' >&2; exit 1\n")
    taken = open_log(spec).finish()
    assert taken.members == ()
    assert says[:40] in taken.missing[0].reason
    assert hint in taken.missing[0].hint


@pytest.mark.parametrize(
    ("spec", "tool"), [("journal:a", "journalctl"), ("docker:a", "docker"), ("k8s:a/b", "kubectl")]
)
def test_an_absent_program(spec: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (missing,) = open_log(spec).finish().missing
    assert f"{tool} is not installed" in missing.reason
    assert missing.hint


def test_a_program_that_hangs_keeps_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "docker", "echo came\nsleep 30\n")
    began = time.monotonic()
    taken = open_log("docker:a", timeout_s=0.5).finish()
    assert time.monotonic() - began < 10
    assert text(taken) == "came\n"
    assert any("did not finish" in w for w in taken.warnings)


def test_a_program_is_ended_once_it_has_said_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "endless", "yes\n")
    output = run(["endless"], timeout_s=20, cap=100_000)
    assert (len(output.data), output.cut, output.problem) == (100_000, True, "")


def test_the_tail_of_a_long_output_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "long", "seq 1 200000\n")
    output = run(["long"], timeout_s=30, cap=5000, keep="tail")
    assert output.data.endswith(b"200000\n")
    assert len(output.data) == 5000
    assert output.cut


DESCRIBE = """\
Name:             vllm-0
Namespace:        prod
Containers:
  vllm:
    Command:
      vllm
      serve
      --api-key
      topsecret1
    Args:
      --hf-token=topsecret2
    State:          Running
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Restart Count:  2
    Environment:
      HF_TOKEN:      <set to the key 'token' in secret 'hf'>  Optional: false
      DB_DSN:        postgres topsecret3
    Mounts:
      /models from models (rw)
"""


def test_a_restarted_pod_gives_its_description_and_the_log_of_its_previous_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""case "$*" in
describe*) cat <<'X'
{DESCRIBE}X
;;
*--previous*) echo "2026-08-03T00:00:00Z died";;
*) echo "2026-08-03T00:01:00Z lives";;
esac
"""
    stand_in(tmp_path, monkeypatch, "kubectl", script)
    taken = open_log("k8s:prod/vllm-0/vllm").finish()
    assert [m.kind for m in taken.members] == ["log", "kubectl", "log"]
    assert "lives" in text(taken, 0)
    assert "OOMKilled" in text(taken, 1)
    assert "died" in text(taken, 2)
    assert "previous run" in taken.members[2].origin
    assert "logs vllm-0 -n prod -c vllm --timestamps" in (tmp_path / "asked").read_text()


def test_a_description_keeps_no_value_of_the_environment_and_no_secret_of_the_command() -> None:
    masked = mask_describe(DESCRIBE)
    assert "topsecret" not in masked
    assert "<set to the key 'token' in secret 'hf'>" in masked
    assert "/models from models (rw)" in masked
    assert "Restart Count:  2" in masked
    assert len(masked.splitlines()) == len(DESCRIBE.splitlines())
