"""What a watch costs: processor and memory of ``kvdoctor watch`` on a terminal against eight servers at one sample a second, and
memory over a long run.

    python -m benchmarks.watch            two minutes live, then an hour of samples without a pause
    python -m benchmarks.watch 600        the live part for ten minutes

The servers are made: a real page of vLLM 0.32 whose counters move. They run in a process of their own, and so does the watch, in a
pseudo-terminal of 120 x 40. Processor time is user and system time of the watch's process from /proc, after 15 s of start-up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.measure import Row

SERVERS = 8
START_S = 15.0
PAGE = sorted((Path(__file__).resolve().parent.parent / "samples" / "vllm-saturated").glob("*.prom"))[3]
RUN = (
    "import sys, typer\nfrom kvdoctor.cli.watch import watch\n"
    "app = typer.Typer(rich_markup_mode=None)\napp.command()(watch)\napp()\n"
)


class Moving:
    """A page whose counters grow by 2 % a second and whose pool fills and empties once a minute."""

    def __init__(self, number: int, start: float) -> None:
        self._lines = PAGE.read_text(encoding="utf-8").splitlines()
        self._number = number
        self._start = start

    def at(self, seconds: float) -> str:
        out = []
        wave = abs(((seconds + self._number * 7) % 60) / 30 - 1)
        for line in self._lines:
            head, _, value = line.rpartition(" ")
            if line.startswith("#"):
                head, value = line, ""
            elif head.startswith("process_start_time"):
                value = f"{self._start:.2f}"
            elif head.startswith("vllm:kv_cache_usage"):
                value = f"{0.5 + wave / 2:.4f}"
            elif head.startswith("vllm:num_requests_waiting{"):
                value = f"{int(wave * 6)}"
            elif any(part in head for part in ("_total", "_bucket", "_count", "_sum")) and "_created" not in head:
                value = f"{float(value) * (1 + seconds / 50):.4f}"
            out.append(f"{head} {value}".rstrip())
        return "\n".join([*out, ""])


def serve() -> None:
    """Serve the pages; print the ports; end with standard input."""
    ports = []
    for number in range(SERVERS):
        moving, began = Moving(number, time.time()), time.time()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self, moving: Moving = moving, began: float = began) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                body = moving.at(time.time() - began).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        ports.append(http.server_address[1])
        threading.Thread(target=http.serve_forever, daemon=True).start()
    print(*ports, flush=True)
    sys.stdin.read()


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int | str) -> float:
    """MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("no VmRSS")


def live(seconds: float) -> tuple[float, float]:
    """The watch on a terminal against eight servers: its share of a core, and its memory in MB at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.watch", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as servers:
        assert servers.stdout is not None
        assert servers.stdin is not None
        urls = [part for port in servers.stdout.readline().split() for part in ("--url", f"127.0.0.1:{port}")]
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"}
        with subprocess.Popen(
            [sys.executable, "-c", RUN, *urls], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        ) as watch:  # fmt: skip
            os.close(slave)
            _drain(master, START_S)
            used, began = _seconds(watch.pid), time.monotonic()
            print(f"after {START_S:.0f} s: {_resident(watch.pid):.1f} MB")
            drawn = _drain(master, seconds)
            share = (_seconds(watch.pid) - used) / (time.monotonic() - began)
            memory = _resident(watch.pid)
            print(
                f"{SERVERS} servers, 1 Hz, {seconds:.0f} s: {share:.2%} of a core, {memory:.1f} MB, "
                f"{drawn / seconds / 1000:.1f} kB/s to the terminal"
            )
            os.write(master, b"q")
            _drain(master, 2.0)
        os.close(master)
        servers.stdin.close()
    return share, memory


def rows(seconds: float = 30.0) -> Iterator[Row]:
    """The live part, short."""
    with contextlib.redirect_stdout(sys.stderr):
        share, memory = live(seconds)
    yield Row(
        f"watch of {SERVERS} servers at 1 Hz, {seconds:.0f} s",
        "<= 3 % of a core, <= 80 MB",
        f"{share:.1%}, {memory:.0f} MB",
        share <= 0.03 and memory <= 80,
    )


def _drain(master: int, seconds: float) -> int:
    drawn, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            try:
                drawn += len(os.read(master, 1 << 16))
            except OSError:
                return drawn  # the other end is closed: the watch has ended
    return drawn


def long_run() -> None:
    """An hour of samples of two servers, without a pause: memory must not grow after the first ten minutes."""
    from kvdoctor.pipeline import Options
    from kvdoctor.rulebook.rule import load_rules
    from kvdoctor.snapshot import memory_member
    from kvdoctor.watch.sample import Page, Sample
    from kvdoctor.watch.watcher import Watcher

    watcher = Watcher(load_rules(()), Options(what_if="none"))
    start = 1_800_000_000.0
    made = [Moving(number, start) for number in range(2)]
    began = time.process_time()
    for second in range(3601):
        now = start + second
        pages = tuple(
            Page(
                f"h:{number}",
                memory_member(
                    f"s{number}/m.{now}.txt", one.at(second).encode(), kind="exposition", time=now,
                    origin=f"http://h:{number}/metrics",
                ),
            )
            for number, one in enumerate(made)
        )  # fmt: skip
        watcher.feed(Sample(now, pages))
        if second in (0, 300, 600, 1200, 2400, 3600):
            print(f"after {second:>4} s of samples: {_resident('self'):.1f} MB")
    print(f"an hour of samples took {time.process_time() - began:.0f} s of processor time, making the pages included")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        live(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
        long_run()
