"""One live reading of servers, GPUs, logs and host: a snapshot, whatever fails on the way.

Metrics pages are read several times, evenly over the window, at most once a second; pages that do not change once; GPUs at the
start and the end; logs from the start to the end. A source that fails becomes Missing and the rest goes on. An interrupt
(Ctrl-C) ends the window early and keeps what was gathered.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kvdoctor.collect import host, nvidia_smi
from kvdoctor.collect.discover import Discovery
from kvdoctor.collect.http import Failure, Page, Source, open_source, split_url
from kvdoctor.collect.logs import HEAD, TAIL, LogSource, LogTake, StreamLog, open_log
from kvdoctor.collect.nvml import GpuTake, Nvml
from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Member, Missing, Snapshot, memory_member

MIN_STEP_S = 1.0
MEMORY = 256 << 20
LOG_MEMORY = 128 << 20
FIRST_S = 1.8
JUMP_S = 1.0


@frozen
class Ask:
    """A page of a server: its path, what it holds (a member kind), and whether it is asked for once per run."""

    path: str
    kind: str
    once: bool = False


METRICS = (Ask("/metrics", "exposition"),)
"""What is asked of a server whose engine is not known yet."""


@frozen
class ServerAsk:
    """One server: ``url`` as the user gave it, or ``k8s:NS/POD[:PORT]``; the pages of its engine, or none when not known."""

    url: str
    asks: tuple[Ask, ...] = ()


@frozen
class LiveRequest:
    """What to read.

    ``headers`` go to every server of ``servers``. ``choose`` is for servers without ``asks``: it gets the URL and the first
    metrics page (None when the server has none) and gives the pages of the engine it recognises there. ``discovery``: engines found on this host; their command lines, versions, control
    groups and the process table become members. ``gpu``, ``host``: read NVML or nvidia-smi, read kernel log and memory.
    """

    servers: tuple[ServerAsk, ...] = ()
    logs: tuple[str, ...] = ()
    window_s: float = 10.0
    samples: int = 5
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 5.0
    gpu: bool = True
    host: bool = True
    choose: Callable[[str, bytes | None], Sequence[Ask]] | None = None
    discovery: Discovery | None = None


@frozen
class Clock:
    """The clocks of a run: wall time, monotonic time, waiting."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def take(
    request: LiveRequest,
    on_progress: Callable[[str, float], None] = lambda text, share: None,
    *,
    on_first: Callable[[Snapshot], None] | None = None,
    nvml: Nvml | None = None,
    clock: Clock | None = None,
    stdin_fd: int = 0,
) -> Snapshot:
    """Read everything over the window. ``on_progress(what, share)``: share 0..1 of the time.

    ``on_first`` gets what is there after the first reading of everything (within about two seconds unless a source hangs), so
    that a first word can be said early. ``nvml``: one that the caller keeps open over several runs. Raises :class:`~kvdoctor.collect.SpecError` when a URL or log cannot be meant.
    """
    run = _Run(request, clock if clock is not None else Clock(), nvml, stdin_fd)
    try:
        run.open()
        try:
            run.start(on_progress)
            if on_first is not None:
                on_first(run.snapshot())
            run.window(on_progress)
            on_progress("reading logs and GPUs to the end", 1.0)
        except KeyboardInterrupt:
            run.interrupt()
        try:
            run.end()
        except KeyboardInterrupt:
            run.interrupt()
        return run.snapshot()
    finally:
        run.close()


@dataclass(slots=True)
class _Server:
    """One server of a run and what it was asked so far."""

    number: int
    url: str
    source: Source
    asks: list[Ask]
    known: bool
    good: dict[str, int] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)
    failure: dict[str, Failure] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    busy: threading.Thread | None = None


class _Run:
    def __init__(self, request: LiveRequest, clock: Clock, nvml: Nvml | None, stdin_fd: int) -> None:
        self.request = request
        self.clock = clock
        self.own_nvml = nvml is None
        self.nvml = nvml if nvml is not None else Nvml()
        self.gpus = False
        self.stdin_fd = stdin_fd
        self.wall_start, self.steady_start = clock.wall(), clock.steady()
        self.interrupted = False
        self.members: list[Member] = []
        self.missing: list[Missing] = []
        self.warnings: list[str] = []
        self.servers: list[_Server] = []
        self.logs: list[LogSource] = []
        self.log_takes: list[LogTake] = []
        self.beside: list[threading.Thread] = []
        self.broken: list[Exception] = []
        self.lock = threading.Lock()
        self.room = MEMORY
        self.jump = 0.0

    # ---- clock

    def elapsed(self) -> float:
        return self.clock.steady() - self.steady_start

    def now(self) -> float:
        """Epoch seconds that cannot jump: the wall clock of the start plus the time since."""
        return self.wall_start + self.elapsed()

    def _check_clock(self) -> None:
        off = self.clock.wall() - self.now()
        if abs(off - self.jump) > JUMP_S:
            self.warnings.append(
                f"the clock of this host jumped by {off - self.jump:+.1f} s during the window: readings are dated by the clock "
                "of the start, and times in logs from then on do not fit them"
            )
            self.jump = off

    # ---- stages

    def open(self) -> None:
        """Check what the user wrote and open it; raises SpecError."""
        for number, server in enumerate(self.request.servers, 1):
            base, page = split_url(server.url)
            asks = list(server.asks or METRICS)
            if page is not None:
                asks = [Ask(page, "exposition"), *(a for a in asks if a.kind != "exposition")]
            source = open_source(base, headers=self.request.headers, timeout_s=self.request.timeout_s)
            self.servers.append(_Server(number, base, source, asks, bool(server.asks)))
        tail = min(TAIL, max(LOG_MEMORY // max(len(self.request.logs), 1), HEAD))
        self.logs = [open_log(spec, tail=tail, stdin_fd=self.stdin_fd) for spec in self.request.logs]
        self.log_takes = [LogTake()] * len(self.logs)
        # loading the HTTP library is no part of the window
        self.wall_start, self.steady_start = self.clock.wall(), self.clock.steady()

    def close(self) -> None:
        for server in self.servers:
            if server.busy is None or not server.busy.is_alive():
                server.source.close()
        _join(self.beside, 1.0)
        if self.own_nvml and not any(thread.is_alive() for thread in self.beside):
            self.nvml.close()

    def interrupt(self) -> None:
        if not self.interrupted:
            self.warnings.append(f"interrupted after {self.elapsed():.1f} s: what was read until then is used")
        self.interrupted = True

    def start(self, on_progress: Callable[[str, float], None]) -> None:
        """The first reading of everything, all at the same time; what is slow goes on beside the window."""
        names = [s.source.origin for s in self.servers] + [log.spec for log in self.logs]
        on_progress("reading " + (", ".join(names) if names else "this host"), 0.0)
        self._discovered()
        jobs: list[Callable[[], None]] = []
        if self.request.gpu:
            jobs.append(partial(self._gpu, "start"))
        if self.request.host:
            jobs.append(self._host)
        jobs += [partial(self._first_of, number) for number in range(len(self.logs))]
        self.beside = [self._spawn(job) for job in jobs]
        deadline = self.clock.steady() + FIRST_S
        self._sample(deadline)
        _join(self.beside, deadline - self.clock.steady())

    def window(self, on_progress: Callable[[str, float], None]) -> None:
        """The other samples, evenly spaced."""
        if not any(s.good for s in self.servers):
            _join([s.busy for s in self.servers if s.busy is not None], self.request.timeout_s + 1.0)
        if self.request.samples < 2 or not any(s.good and self._open_asks(s) for s in self.servers):
            self._drain_stdin()
            return
        step = max(self.request.window_s / (self.request.samples - 1), MIN_STEP_S)
        count = min(self.request.samples, int(self.request.window_s / step + 1e-6) + 1)
        for number in range(1, count):
            due = self.steady_start + number * step
            while (left := due - self.clock.steady()) > 0:
                self.clock.sleep(min(left, 0.5))
                share = self.elapsed() / self.request.window_s
                on_progress(f"sample {number} of {count} taken", min(share, 1.0))
            self._check_clock()
            self._sample(due + step)

    def _drain_stdin(self) -> None:
        """Without a server to sample there is no window; a log on standard input is read to its end, or as long as one."""
        for log in self.logs:
            if isinstance(log, StreamLog):
                log.wait(self.request.window_s)

    def end(self) -> None:
        """The last reading of GPUs and logs; failures put into words."""
        self._check_clock()
        if not self.interrupted:
            _join([*self.beside, *(s.busy for s in self.servers if s.busy is not None)], self.request.timeout_s + 1.0)
            if self.gpus and self.elapsed() > MIN_STEP_S:
                self._gpu("end")
        for number, log in enumerate(self.logs):
            taken = log.finish(hurry=self.interrupted)
            with self.lock:
                self.log_takes[number] = taken
        for error in self.broken:
            raise error

    # ---- servers

    def _open_asks(self, server: _Server) -> list[Ask]:
        """What is still worth asking: not a page that was refused for good, nor a static one that answered."""
        done = {a.kind for a in server.asks if a.once and server.good.get(a.path)}
        return [a for a in server.asks if a.path not in server.closed and not (a.once and a.kind in done)]

    def _sample(self, until: float) -> None:
        """Every server once, side by side; one that still answers the sample before is left alone."""
        for server in self.servers:
            if server.busy is None or not server.busy.is_alive():
                server.busy = self._spawn(partial(self._ask, server))
            else:
                with self.lock:
                    self.warnings.append(
                        f"{server.source.origin} was still answering when the next sample was due: left out"
                    )
        _join([s.busy for s in self.servers if s.busy is not None], until - self.clock.steady())

    def _ask(self, server: _Server) -> None:
        todo = deque(server.asks)
        asked: set[str] = set()
        while todo:
            ask = todo.popleft()
            if ask.path in asked or ask not in self._open_asks(server):
                continue
            asked.add(ask.path)
            when = self.now()
            answer = server.source.get(ask.path, ask.kind)
            with self.lock:
                if isinstance(answer, Page):
                    self._keep(server, ask, answer, when + answer.answered_s)
                else:
                    server.bad[ask.path] = server.bad.get(ask.path, 0) + 1
                    server.failure[ask.path] = answer
                    if not answer.again:
                        server.closed.add(ask.path)
            if isinstance(answer, Failure) and answer.again:
                if not server.good:
                    return  # nobody there: its other pages need not be tried in this sample
            elif not server.known and self.request.choose is not None:
                server.known = True
                server.asks = _chosen(ask, answer, self.request.choose(server.url, getattr(answer, "body", None)))
                todo = deque(server.asks)

    def _keep(self, server: _Server, ask: Ask, page: Page, when: float) -> None:
        server.good[ask.path] = server.good.get(ask.path, 0) + 1
        if len(page.body) > self.room:
            self.missing.append(
                Missing(ask.kind, page.origin, f"more than {MEMORY >> 20} MiB of pages in one run: this one was dropped",
                        "use a shorter --window")
            )  # fmt: skip
            server.closed.add(ask.path)
            return
        self.room -= len(page.body)
        word = re.sub(r"[^A-Za-z0-9]+", "-", ask.path.partition("?")[0]).strip("-") or "page"
        name = f"server-{server.number}/{word}.{when:.3f}.txt"
        self.members.append(memory_member(name, page.body, kind=page.kind, time=when, origin=page.origin))

    def _settle(self, server: _Server, into: list[Missing], warnings: list[str]) -> None:
        """Failures of a server as Missing; of a page that answered at other times, as a warning."""
        for ask in server.asks:
            failure = server.failure.get(ask.path)
            if failure is None:
                continue
            missing = failure.missing
            good, bad = server.good.get(ask.path, 0), server.bad[ask.path]
            if good:
                warnings.append(f"{missing.origin}: {bad} of {good + bad} samples failed ({missing.reason})")
            elif not any(server.good.get(a.path) for a in server.asks if a.kind == ask.kind):
                into.append(missing)

    # ---- the rest

    def _spawn(self, job: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - end() raises it in the caller's thread
                self.broken.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _gpu(self, label: str) -> None:
        now = self.now()
        taken: GpuTake = self.nvml.read(now, label)
        if not taken.works:
            second = nvidia_smi.read(now, label)
            # one sentence for a host without a GPU, not two
            taken = second if second.works else taken
        with self.lock:
            self.gpus = self.gpus or bool(taken.members)
            self.members += taken.members
            self.missing += [m for m in taken.missing if m not in self.missing]

    def _host(self) -> None:
        now = self.now()
        for one in (host.meminfo(now), host.kernel_log(now)):
            with self.lock:
                if isinstance(one, Member):
                    self.members.append(one)
                else:
                    self.missing.append(one)

    def _discovered(self) -> None:
        found = self.request.discovery
        if found is None:
            return
        now = self.now()
        if found.table:
            self.members.append(
                memory_member("host/ps.txt", found.table.encode(), kind="ps", time=now, origin="process table")
            )
        for one in found.found:
            text = f"{one.engine}\n{one.flags}\n"
            self.members.append(
                memory_member(f"host/command-{one.pid}.txt", text.encode(), kind="command", time=now,
                              origin=f"command line of process {one.pid}")
            )  # fmt: skip
            if self.request.host:
                group = host.cgroup_memory(one.pid, now)
                (self.members if isinstance(group, Member) else self.missing).append(group)  # type: ignore[arg-type]
        if len(found.found) == 1 and found.found[0].version is not None:
            # the server's own /version page, read later, counts before it
            self.members.append(
                memory_member("host/version.json", json.dumps({"version": found.found[0].version}).encode(), kind="version",
                              time=now, origin=found.found[0].version_from)
            )  # fmt: skip
        self.warnings += [*found.notes, *(note for one in found.found for note in one.notes)]

    def _first_of(self, number: int) -> None:
        taken = self.logs[number].first()
        with self.lock:
            if self.log_takes[number] == LogTake():
                self.log_takes[number] = taken

    def snapshot(self) -> Snapshot:
        """What is there now."""
        with self.lock:
            members = [*self.members, *(m for t in self.log_takes for m in t.members)]
            missing = [*self.missing, *(m for t in self.log_takes for m in t.missing)]
            warnings = [*self.warnings, *(w for t in self.log_takes for w in t.warnings)]
            for server in self.servers:
                self._settle(server, missing, warnings)
            return Snapshot(
                tuple(_unique(members)), tuple(missing), _host_facts(), self.wall_start, "live", tuple(warnings), True
            )


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))


def _chosen(first: Ask, answer: Page | Failure, pages: Sequence[Ask]) -> list[Ask]:
    """The pages to ask from now on: one metrics page, and the others of the engine."""
    if isinstance(answer, Page) and answer.kind is None and pages:
        return list(pages)  # what was asked as metrics is something else on this engine
    others = [a for a in pages if a.path != first.path]
    if isinstance(answer, Page):
        others = [a for a in others if a.kind != "exposition"]
    return [first, *others]


def _unique(members: Sequence[Member]) -> list[Member]:
    """Members with names of their own (two logs may be called server.log)."""
    seen: dict[str, int] = {}
    out: list[Member] = []
    for member in members:
        seen[member.name] = seen.get(member.name, 0) + 1
        stem, dot, end = member.name.rpartition(".")
        count = seen[member.name]
        name = member.name if count == 1 else f"{stem}-{count}.{end}" if dot else f"{member.name}-{count}"
        out.append(replace(member, name=name))
    return out


def _host_facts() -> dict[str, str]:
    """What a reader needs to know of the machine; not its name."""
    system = os.uname()
    count = os.cpu_count()
    return {"system": system.sysname, "kernel": system.release, "machine": system.machine} | (
        {"cpus": str(count)} if count is not None else {}
    )
