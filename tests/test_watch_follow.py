"""Following live sources: one GET per page and call, servers that hang or come back, logs that grow, turn and shrink."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from watch_helpers import page_text

from kvdoctor.collect import SpecError
from kvdoctor.collect.follow import BACKLOG, Follow, GrowingCommand, GrowingFile, GrowingStream, open_growing
from kvdoctor.collect.gather import Ask, ServerAsk
from kvdoctor.collect.logs import Docker

PAGES = (Ask("/metrics", "exposition"), Ask("/version", "version", once=True))


class Server:
    """A server on a port of its own that counts what it is asked."""

    def __init__(self, port: int = 0) -> None:
        self.asked: list[str] = []
        self.delay = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                time.sleep(outer.delay)
                body = b'{"version": "0.32.0"}' if self.path == "/version" else page_text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json" if self.path == "/version" else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def follow(*urls: str, timeout_s: float = 2.0, logs: tuple[str, ...] = ()) -> Follow:
    return Follow(
        [ServerAsk(u) for u in urls], logs, headers={}, timeout_s=timeout_s, choose=lambda url, body: PAGES, gpu=False
    )


def test_each_page_is_asked_for_once_a_call_and_a_static_one_once_at_all(server: Server) -> None:
    one = follow(server.url)
    takes = [one.take(1000.0 + n, 2.0) for n in range(4)]
    one.close()
    assert server.asked.count("/metrics") == 4
    assert server.asked.count("/version") == 1
    assert [len(t.pages) for t in takes] == [1, 1, 1, 1]
    assert [m.kind for m in takes[0].others if m.name.startswith("server-")] == ["version"]
    name, member = takes[2].pages[0]
    assert name == server.url
    assert member.time == pytest.approx(1002.0, abs=0.5)
    assert member.origin == f"{server.url}/metrics"


def test_a_slow_server_is_told_and_does_not_hold_up_the_others(server: Server) -> None:
    slow = Server()
    slow.delay = 1.0
    one = follow(slow.url, server.url)
    started = time.monotonic()
    take = one.take(1000.0, 0.3)
    assert time.monotonic() - started < 0.9
    assert [name for name, _ in take.pages] == [server.url]
    assert any(m.origin == slow.url and "no answer within 0.3 s" in m.reason for m in take.missing)
    # it is left alone while it works on the first request, and its answer is taken when it is there
    slow.delay = 0.0
    time.sleep(1.2)
    later = one.take(1002.0, 1.0)
    one.close()
    slow.close()
    assert slow.url in [name for name, _ in later.pages]


def test_a_server_that_is_down_is_tried_again(server: Server) -> None:
    url = server.url
    server.close()
    one = follow(url)
    down = one.take(1000.0, 2.0)
    assert down.pages == ()
    assert any("refused" in m.reason for m in down.missing)
    back = Server(int(url.rpartition(":")[2]))
    again = one.take(1001.0, 2.0)
    one.close()
    back.close()
    assert [name for name, _ in again.pages] == [url]


def test_a_source_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(SpecError):
        follow("ftp://x")
    with pytest.raises(SpecError):
        open_growing("k8s:onlyone")


# ---------------------------------------------------------------- logs


def test_a_file_gives_what_it_gained_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"one\ntw")
    log = GrowingFile(str(path))
    assert log.gained() == b"one\n"
    with path.open("ab") as stream:
        stream.write(b"o\nthree\n")
    assert log.gained() == b"two\nthree\n"
    assert log.gained() == b""
    assert log.told() == []
    log.close()


def test_a_rotated_file_is_followed_into_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"one\n")
    log = GrowingFile(str(path))
    log.gained()
    with path.open("ab") as stream:
        stream.write(b"two\n")
    path.rename(tmp_path / "server.log.1")
    assert log.gained() == b"two\n"
    path.write_bytes(b"three\n")
    assert log.gained() == b"three\n"
    assert any("rotated" in text for text in log.told())
    log.close()


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"one\ntwo\n")
    log = GrowingFile(str(path))
    log.gained()
    path.write_bytes(b"new\n")
    assert log.gained() == b"new\n"
    assert any("truncated" in text for text in log.told())
    log.close()


def test_a_long_file_is_read_from_its_start_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    row = b"x" * 99 + b"\n"
    path.write_bytes(b"banner\n" + row * (BACKLOG // 100 + 50_000) + b"last\n")
    log = GrowingFile(str(path))
    data = log.gained()
    assert data.startswith(b"banner\n")
    assert data.endswith(b"last\n")
    assert len(data) <= BACKLOG
    assert {len(one) for one in data.splitlines()[1:-1]} == {99}
    log.close()


def test_a_file_that_is_not_there_yet_is_told_and_read_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = GrowingFile(str(path))
    assert log.gained() == b""
    assert log.problem is not None
    assert "cannot be read" in log.problem.reason
    path.write_bytes(b"here\n")
    assert log.gained() == b"here\n"
    assert log.problem is None
    log.close()


def test_a_pipe_gives_whole_lines_and_its_last_piece_at_the_end() -> None:
    read, written = os.pipe()
    log = GrowingStream("-", read)
    os.write(written, b"one\ntwo")
    got = _until(log.gained, b"one\n")
    assert got == b"one\n"
    os.close(written)
    assert log.ended.wait(5)
    assert log.gained() == b"two"
    log.close()
    os.close(read)


def test_a_program_that_follows_a_log_is_ended_with_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a stand-in on PATH that prints what docker would
    _program(tmp_path / "docker", f'echo "$@" > {tmp_path}/args; echo $$ > {tmp_path}/pid; echo line; exec sleep 60')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    log = GrowingCommand("docker:vllm", Docker("vllm"))
    assert _until(log.gained, b"line\n") == b"line\n"
    assert "--follow" in (tmp_path / "args").read_text()
    pid = int((tmp_path / "pid").read_text())
    log.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_program_that_fails_is_told_and_started_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        f"[ -e {tmp_path}/tried ] && exec sleep 60\ntouch {tmp_path}/tried\necho 'Error: No such container'\nexit 1"
    )
    _program(tmp_path / "docker", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    now = [0.0]
    log = GrowingCommand("docker:vllm", Docker("vllm"), steady=lambda: now[0])
    end = time.monotonic() + 5
    while log.problem is None and time.monotonic() < end:
        log.gained()
        time.sleep(0.01)
    assert log.problem is not None
    assert "ended with status 1" in log.problem.reason
    assert log._process is None
    now[0] = 60.0
    log.gained()
    assert log._process is not None
    log.close()


def test_a_program_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    log = GrowingCommand("docker:vllm", Docker("vllm"))
    assert log.gained() == b""
    assert log.problem is not None
    assert "not installed" in log.problem.reason
    log.close()


def _until(gained: object, wanted: bytes, seconds: float = 5.0) -> bytes:
    assert callable(gained)
    data = b""
    end = time.monotonic() + seconds
    while len(data) < len(wanted) and time.monotonic() < end:
        data += gained()
        time.sleep(0.01)
    return data


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
