"""Small real servers on the loopback and stand-in programs, for the tests of ``collect``."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Answer = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def http_server(answer: Callable[[BaseHTTPRequestHandler], Answer]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A server that answers by ``answer``; gives its base URL and the list of (method, path) it was asked."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            asked.append((self.command, self.path))
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)

        do_GET = do_POST = do_HEAD = _reply

        def log_message(self, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def raw_server(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A TCP server that speaks by ``talk(connection, stop)``; gives its port."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                talk(connection, stop)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        thread.join(5)
        listener.close()


def dead_port() -> int:
    """A port of the loopback on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def program(folder: Path, name: str, script: str) -> None:
    """A stand-in executable (a shell script that replays recorded output) in a folder that goes on PATH."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def path_with(folder: Path) -> str:
    """PATH with the stand-ins first and only what scripts need behind."""
    return f"{folder}:{os.path.dirname('/bin/sh')}:/usr/bin"
