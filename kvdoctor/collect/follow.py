"""Servers, GPUs, logs and host read again and again: one :class:`Take` at each call, whatever fails on the way.

Servers are asked side by side, each page at most once a call, and a server that still answers the call before is left alone. GPUs
and the host are read on a slower beat, in the background. Logs give what they gained, in whole lines.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from kvdoctor.collect import host, nvidia_smi
from kvdoctor.collect.gather import METRICS, Ask, ServerAsk
from kvdoctor.collect.http import Page, Source, open_source, split_url
from kvdoctor.collect.logs import CommandLog, Docker, Journal, Pod, Teller, open_log
from kvdoctor.collect.nvml import Nvml
from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Member, Missing, memory_member

HEAD = 256 << 10
BACKLOG = 8 << 20
STEP = 4 << 20
BACKLOG_LINES = 20_000
GPU_S = 5.0
SMI_S = 30.0
HOST_S = 60.0
AGAIN_S = 10.0
MOST_AT_ONCE = 16


@frozen
class Take:
    """One reading. ``pages``: (server, page) of what is asked for at each call; ``others``: static pages, GPUs, host;
    ``logs``: (origin, new bytes). ``missing``: what failed now; ``warnings``: what is to be told once."""

    pages: tuple[tuple[str, Member], ...] = ()
    others: tuple[Member, ...] = ()
    logs: tuple[tuple[str, bytes], ...] = ()
    missing: tuple[Missing, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Server:
    number: int
    url: str
    source: Source
    asks: list[Ask]
    known: bool
    done: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    busy: Future[tuple[list[tuple[Ask, Page, float]], list[Missing]]] | None = None


class Follow:
    """Everything of one watch. ``choose`` gives the pages of the engine behind a URL from its first metrics page.

    Raises :class:`~kvdoctor.collect.SpecError` when a URL or log cannot be meant.
    """

    def __init__(
        self,
        servers: Sequence[ServerAsk],
        logs: Sequence[str],
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        choose: Callable[[str, bytes | None], Sequence[Ask]],
        gpu: bool = True,
        nvml: Nvml | None = None,
        stdin_fd: int = 0,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._choose = choose
        self._timeout_s = timeout_s
        self._steady = steady
        self._servers: list[_Server] = []
        for number, server in enumerate(servers, 1):
            base, page = split_url(server.url)
            asks = list(server.asks or METRICS)
            if page is not None:
                asks = [Ask(page, "exposition"), *(a for a in asks if a.kind != "exposition")]
            source = open_source(base, headers=headers, timeout_s=timeout_s)
            self._servers.append(_Server(number, base, source, asks, bool(server.asks)))
        self._logs: list[_Log] = [open_growing(spec, stdin_fd=stdin_fd) for spec in logs]
        self._gpu = gpu
        self._nvml = nvml if nvml is not None else Nvml()
        self._pool = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="kvdoctor")
        self._gpu_due = self._host_due = steady()
        self._side: dict[str, Future[list[Member | Missing]]] = {}
        self._side_missing: dict[str, list[Missing]] = {}

    def take(self, now: float, wait_s: float) -> Take:
        """Read everything once; servers that have not answered after ``wait_s`` are told as missing and may come later."""
        self._start_side(now)
        for server in self._servers:
            if server.busy is None:
                started = self._steady()
                server.busy = self._pool.submit(self._ask, server, now, started)
        wait([s.busy for s in self._servers if s.busy is not None], wait_s)
        pages: list[tuple[str, Member]] = []
        others: list[Member] = []
        missing: list[Missing] = []
        warnings: list[str] = []
        for server in self._servers:
            assert server.busy is not None
            if not server.busy.done():
                missing.append(
                    Missing("metrics", server.source.origin, f"no answer within {wait_s:.1f} s yet",
                            "the server is stuck or overloaded, or the network is slow")
                )  # fmt: skip
                continue
            got, failed = server.busy.result()
            server.busy = None
            missing += failed
            for ask, page, when in got:
                member = _member(server, ask, page, when)
                if ask.once:
                    others.append(member)
                else:
                    pages.append((server.source.origin, member))
        for name in [n for n, f in self._side.items() if f.done()]:
            read = self._side.pop(name).result()
            others += [m for m in read if isinstance(m, Member)]
            self._side_missing[name] = [m for m in read if isinstance(m, Missing)]
        missing += [m for entries in self._side_missing.values() for m in entries]
        logs: list[tuple[str, bytes]] = []
        for log in self._logs:
            data = log.gained()
            if data:
                logs.append((log.spec, data))
            if log.problem is not None:
                missing.append(log.problem)
            warnings += log.told()
        return Take(tuple(pages), tuple(others), tuple(logs), tuple(missing), tuple(warnings))

    def close(self) -> None:
        """End followers and connections; what hangs in a driver or a network is left to the end of the process."""
        for log in self._logs:
            log.close()
        for server in self._servers:
            if server.busy is None or server.busy.done():
                server.source.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._nvml.close()

    # ---- servers

    def _ask(self, server: _Server, now: float, started: float) -> tuple[list[tuple[Ask, Page, float]], list[Missing]]:
        got: list[tuple[Ask, Page, float]] = []
        failed: list[Missing] = []
        todo = deque(server.asks)
        asked: set[str] = set()
        while todo:
            ask = todo.popleft()
            if ask.path in asked or ask.path in server.closed or (ask.once and ask.kind in server.done):
                continue
            asked.add(ask.path)
            when = now + (self._steady() - started)
            answer = server.source.get(ask.path, ask.kind)
            if not isinstance(answer, Page):
                if ask.once and not answer.again:
                    server.closed.add(ask.path)
                elif not ask.once:
                    failed.append(answer.missing)
                if answer.again:
                    # nobody there now: its other pages need not be tried
                    server.done.clear()
                    return got, failed
                continue
            got.append((ask, answer, when + answer.answered_s))
            if ask.once:
                server.done.add(ask.kind)
            if not server.known:
                server.known = True
                chosen = [a for a in self._choose(server.url, answer.body) if a.path != ask.path]
                if answer.kind is not None:
                    chosen = [a for a in chosen if a.kind != "exposition"]
                server.asks = [ask, *chosen]
                todo = deque(server.asks)
        return got, failed

    # ---- GPUs and host

    def _start_side(self, now: float) -> None:
        at = self._steady()
        if self._gpu and at >= self._gpu_due and "gpu" not in self._side:
            self._gpu_due = at + GPU_S
            self._side["gpu"] = self._pool.submit(self._gpus, now)
        if at >= self._host_due and "host" not in self._side:
            self._host_due = at + HOST_S
            self._side["host"] = self._pool.submit(lambda: [host.meminfo(now), host.kernel_log(now)])

    def _gpus(self, now: float) -> list[Member | Missing]:
        taken = self._nvml.read(now, "now")
        if not taken.works:
            # a program of its own is dear: not every few seconds
            self._gpu_due = self._steady() + SMI_S
            second = nvidia_smi.read(now, "now")
            taken = second if second.works else taken
        return [*taken.members, *taken.missing]


def _member(server: _Server, ask: Ask, page: Page, when: float) -> Member:
    word = re.sub(r"[^A-Za-z0-9]+", "-", ask.path.partition("?")[0]).strip("-") or "page"
    stamp = "" if ask.once else f".{when:.3f}"
    name = f"server-{server.number}/{word}{stamp}.txt"
    return memory_member(name, page.body, kind=page.kind, time=when, origin=page.origin)


# ---- logs -----------------------------------------------------------------------------------------------------------


class _Log(Protocol):
    @property
    def spec(self) -> str: ...

    @property
    def problem(self) -> Missing | None: ...

    def gained(self) -> bytes: ...

    def told(self) -> list[str]: ...

    def close(self) -> None: ...


def open_growing(spec: str, *, stdin_fd: int = 0) -> _Log:
    """A log that is followed, from a ``--log`` value; raises :class:`~kvdoctor.collect.SpecError` when it cannot be meant."""
    if spec == "-":
        return GrowingStream("-", stdin_fd)
    known = open_log(spec, tail=0)
    if not isinstance(known, CommandLog):
        return GrowingFile(spec)
    kind, _, name = spec.partition(":")
    if kind == "journal":
        return GrowingCommand(spec, Journal(name))
    if kind == "docker":
        return GrowingCommand(spec, Docker(name))
    namespace, pod, *container = name.split("/")
    return GrowingCommand(spec, Pod(namespace, pod, container[0] if container else None))


class GrowingFile:
    """A log file: its start and its last ``BACKLOG`` bytes at first, then what is appended, over rotation and truncation."""

    def __init__(self, path: str) -> None:
        self.spec = path
        self.problem: Missing | None = None
        self._stream: BinaryIO | None = None
        self._rest = b""
        self._told: list[str] = []

    def told(self) -> list[str]:
        told, self._told = self._told, []
        return told

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def gained(self) -> bytes:
        """New whole lines; at most ``STEP`` bytes a call after the first."""
        try:
            data = self._read()
        except OSError as error:
            hint = (
                "check the path" if isinstance(error, FileNotFoundError) else "run kvdoctor as the user of the server"
            )
            self.problem = Missing("log", self.spec, f"cannot be read: {error.strerror}", hint)
            return b""
        self.problem = None
        return self._whole(data)

    def _read(self) -> bytes:
        if self._stream is None:
            self._stream = _regular(self.spec)
            size = os.fstat(self._stream.fileno()).st_size
            if size <= BACKLOG:
                return self._stream.read(BACKLOG)
            head = self._stream.read(HEAD)
            self._stream.seek(size - BACKLOG + HEAD)
            tail = self._stream.read(BACKLOG)
            self._told.append(f"{self.spec}: read from its first {HEAD >> 10} KiB and its last {BACKLOG >> 20} MiB on")
            return head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]
        position, size = self._stream.tell(), os.fstat(self._stream.fileno()).st_size
        if size < position:
            self._told.append(f"{self.spec} was truncated: reading it from its start")
            self._stream.seek(0)
            self._rest = b""
        data = self._stream.read(STEP)
        if len(data) < STEP and self._moved():
            self._told.append(f"{self.spec} was rotated: reading its successor")
            self._stream.close()
            self._stream = _regular(self.spec)
            data += self._stream.read(STEP)
        return data

    def _moved(self) -> bool:
        assert self._stream is not None
        opened = os.fstat(self._stream.fileno())
        try:
            now = os.stat(self.spec)
        except FileNotFoundError:
            return False  # between the two steps of a rotation
        return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino)

    def _whole(self, data: bytes) -> bytes:
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > STEP:
            end = len(data)  # no line is that long
        self._rest = data[end:]
        return data[:end]


def _regular(path: str) -> BinaryIO:
    """A regular file, opened for reading; a pipe or device would block. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not os.path.isfile(path):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", path)
    return os.fdopen(descriptor, "rb")


class GrowingStream:
    """A pipe (standard input, or the output of a program) read by a thread; the newest ``BACKLOG`` bytes wait to be taken."""

    def __init__(self, spec: str, descriptor: int) -> None:
        self.spec = spec
        self.problem: Missing | None = None
        self.ended = threading.Event()
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._lost = 0
        self._stop = threading.Event()
        if os.isatty(descriptor):
            self.problem = Missing(
                "log", spec, "standard input is a terminal", "pipe a log in: COMMAND | kvdoctor watch --log -"
            )
            self.ended.set()
            return
        threading.Thread(target=self._pump, name=f"log {spec}", daemon=True).start()

    def _pump(self) -> None:
        try:
            while not self._stop.is_set():
                # select first: a thread blocked in a read would hold the interpreter up at its exit
                if not select.select([self._descriptor], [], [], 0.25)[0]:
                    continue
                block = os.read(self._descriptor, 1 << 16)
                if not block:
                    break
                with self._lock:
                    self._waiting += block
                    surplus = len(self._waiting) - BACKLOG
                    if surplus > 0:
                        del self._waiting[:surplus]
                        self._lost += surplus
        except (OSError, ValueError):
            pass  # closed by us, or the other end is gone: either way it has ended
        self.ended.set()

    def gained(self) -> bytes:
        """Whole lines that came; the last piece too once the stream has ended."""
        with self._lock:
            end = len(self._waiting) if self.ended.is_set() else self._waiting.rfind(b"\n") + 1
            data = bytes(self._waiting[:end])
            del self._waiting[:end]
        return data

    def told(self) -> list[str]:
        with self._lock:
            lost, self._lost = self._lost, 0
        return [f"{self.spec}: {lost:,} bytes came faster than they were read and were dropped"] if lost else []

    def close(self) -> None:
        self._stop.set()


class GrowingCommand:
    """A log told by another program that follows it; the program is started again when it ends."""

    def __init__(self, spec: str, teller: Teller, *, steady: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.problem: Missing | None = None
        self._teller = teller
        self._steady = steady
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: GrowingStream | None = None
        self._errors: GrowingStream | None = None
        self._due = steady()
        self._started = False
        self._told: list[str] = []

    def gained(self) -> bytes:
        """New whole lines."""
        if self._process is None:
            if self._steady() < self._due:
                return b""
            self._start()
        if self._stream is None or self._process is None:
            return b""
        data = self._stream.gained()
        if data:
            self.problem = None
        if self._stream.ended.is_set():
            data += self._stream.gained()
            self._finish()
        return data

    def _start(self) -> None:
        # after an interruption only what is new: lines read before must not count twice
        argv = [*self._teller.tail(0 if self._started else BACKLOG_LINES), "--follow"]
        merged = self._teller.merged
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": "", "PAGER": "cat"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            reason = f"{argv[0]} is not installed (not found on PATH)" if absent else f"{argv[0]}: {error.strerror}"
            self.problem = Missing("log", self.spec, reason, self._teller.hint(reason))
            self._due = self._steady() + AGAIN_S * (6 if absent else 1)
            return
        assert self._process.stdout is not None
        self._stream = GrowingStream(self.spec, self._process.stdout.fileno())
        self._errors = None if self._process.stderr is None else GrowingStream(self.spec, self._process.stderr.fileno())

    def _finish(self) -> None:
        assert self._process is not None
        said = b"" if self._errors is None else self._errors.gained()
        code = self._process.wait()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        reason = f"following it ended with status {code}" + (f": {lines[-1][:200]}" if lines else "")
        self.problem = Missing("log", self.spec, reason, self._teller.hint(lines[-1] if lines else reason))
        if code == 0 or self._started:
            self._told.append(f"{self.spec}: following it ended; lines until it is read again are lost")
        self._started = self._started or code == 0
        self._release()
        self._due = self._steady() + AGAIN_S

    def _release(self) -> None:
        for stream in (self._stream, self._errors):
            if stream is not None:
                stream.close()
                stream.ended.wait(1.0)
        process, self._process, self._stream, self._errors = self._process, None, None, None
        if process is not None:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def told(self) -> list[str]:
        told, self._told = self._told, []
        return told

    def close(self) -> None:
        """End the program with everything it started."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(1.0)
            except ProcessLookupError:
                pass  # it ended between the two calls
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(1.0)
        self._release()
