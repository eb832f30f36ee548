"""Server logs: files, standard input, journald units, docker containers, pods. The first part and the last, never more.

A log is opened at the start of a run and finished at its end, so that lines written meanwhile are in it, also when the file
was rotated or truncated in between. The first part holds the start-up lines (version, flags, pool size), the last part what
happened lately; when something between them was left out, a line says so and the member is marked as cut.
"""

from __future__ import annotations

import os
import re
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Protocol

from kvdoctor.collect import SpecError
from kvdoctor.collect.command import Output, run
from kvdoctor.collect.http import KUBE_NAME, kube_hint
from kvdoctor.collect.mask import is_secret_name, mask_text
from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Member, Missing, memory_member

HEAD = 4 << 20
TAIL = 64 << 20
FIRST_LOOK = 1 << 20
COMMAND_LINES = 300_000
COMMAND_TIMEOUT_S = 20.0

_KUBE_LOG = re.compile(rf"({KUBE_NAME})/({KUBE_NAME})(?:/({KUBE_NAME}))?")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


@frozen
class LogTake:
    """What a log source gave: its members, what is missing of it, and what to tell beside."""

    members: tuple[Member, ...] = ()
    missing: tuple[Missing, ...] = ()
    warnings: tuple[str, ...] = ()


class LogSource(Protocol):
    """A log that is followed over a run: ``first`` soon after the start, ``finish`` once at its end."""

    @property
    def spec(self) -> str: ...

    def first(self) -> LogTake: ...

    def finish(self, *, hurry: bool = False) -> LogTake: ...


def open_log(spec: str, *, tail: int = TAIL, stdin_fd: int = 0, timeout_s: float = COMMAND_TIMEOUT_S) -> LogSource:
    """The source behind a ``--log`` value: ``PATH``, ``-``, ``journal:UNIT``, ``docker:NAME``, ``k8s:NS/POD[/CONTAINER]``.

    Raises :class:`SpecError` when the value cannot be meant. Everything else is told by the source itself as Missing.
    """
    kind, colon, name = spec.partition(":")
    if spec == "-":
        return StreamLog(stdin_fd, tail=tail)
    if colon and kind == "journal":
        if not _UNIT.fullmatch(name) or name.startswith("-"):
            raise SpecError(f"{mask_text(spec)}: a unit is written journal:UNIT, as in journal:vllm.service")
        return CommandLog(spec, Journal(name), tail=tail, timeout_s=timeout_s)
    if colon and kind == "docker":
        if not _CONTAINER.fullmatch(name):
            raise SpecError(f"{mask_text(spec)}: a container is written docker:NAME or docker:ID")
        return CommandLog(spec, Docker(name), tail=tail, timeout_s=timeout_s)
    if colon and kind == "k8s":
        found = _KUBE_LOG.fullmatch(name)
        if found is None:
            raise SpecError(
                f"{mask_text(spec)}: a pod's log is written k8s:NAMESPACE/POD or k8s:NAMESPACE/POD/CONTAINER"
            )
        return CommandLog(spec, Pod(found.group(1), found.group(2), found.group(3)), tail=tail, timeout_s=timeout_s)
    return FileLog(spec, tail=tail)


def _joined(head: bytes, tail: bytes, left_out: int | None) -> bytes:
    """Head and tail of one log with a line between them that says what is not there (None: unknown how much)."""
    amount = "a part" if left_out is None else f"{left_out:,} bytes"
    head = head[: head.rfind(b"\n") + 1] or head + b"\n"
    return head + f"[kvdoctor: {amount} of this log left out here]\n".encode() + tail[tail.find(b"\n") + 1 :]


# ---- files ----------------------------------------------------------------------------------------------------------


class FileLog:
    """A log file. It stays open over the run: what is appended, a rotation and a truncation are all followed."""

    def __init__(self, path: str, *, tail: int = TAIL, head: int = HEAD) -> None:
        self.spec = path
        self._tail_size = tail
        self._head_size = head
        self._head = b""
        self._ring: deque[bytes] = deque()
        self._ring_size = 0
        self._left_out = 0
        self._warnings: list[str] = []
        self._missing: Missing | None = None
        self._stream: BinaryIO | None = None
        self._position = 0
        self._open()

    def _open(self) -> None:
        try:
            self._stream = _regular(self.spec)
            size = os.fstat(self._stream.fileno()).st_size
            self._head = self._stream.read(min(self._head_size, size))
            start = max(size - self._tail_size, len(self._head))
            self._left_out = start - len(self._head)
            self._stream.seek(start)
            self._append(self._stream.read(size - start))
            self._position = size
        except OSError as error:
            self._missing = _file_missing(self.spec, error)

    def _append(self, data: bytes) -> None:
        if data:
            self._ring.append(data)
            self._ring_size += len(data)
        while self._ring_size > self._tail_size:
            surplus = self._ring_size - self._tail_size
            oldest = self._ring.popleft()
            dropped = min(surplus, len(oldest))
            if dropped < len(oldest):
                self._ring.appendleft(oldest[dropped:])
            self._ring_size -= dropped
            self._left_out += dropped

    def first(self) -> LogTake:
        """The start-up lines and the newest MiB, for a first word before the window is over."""
        if self._missing is not None:
            return LogTake(missing=(self._missing,))
        tail = b"".join(self._ring)
        newest = tail[-FIRST_LOOK:]
        cut = len(newest) < len(tail) or self._left_out > 0
        return self._take(_joined(self._head, newest, None) if cut else self._head + newest, cut)

    def finish(self, *, hurry: bool = False) -> LogTake:
        """Everything kept, with what was written since the start."""
        if self._missing is not None and not self._appeared():
            return LogTake(missing=(self._missing,))
        try:
            self._catch_up()
        except OSError as error:
            self._warnings.append(f"{self.spec}: reading on failed ({error.strerror}); what came before was kept")
        finally:
            if self._stream is not None:
                self._stream.close()
                self._stream = None
        parts = list(self._ring)
        self._ring.clear()
        if self._left_out == 0:
            return self._take(b"".join([self._head, *parts]), cut=False)
        self._warnings.append(
            f"{self.spec}: {self._left_out >> 20:,} MiB between its first {len(self._head) >> 20} MiB and its end were left "
            "out (a restart in there is not seen; line numbers after it count what was kept)"
        )
        return self._take(_joined(self._head, b"".join(parts), self._left_out), cut=True)

    def _appeared(self) -> bool:
        """A file that was not there at the start may have been made meanwhile."""
        if not os.path.isfile(self.spec):
            return False
        self._missing = None
        self._open()
        return self._missing is None

    def _catch_up(self) -> None:
        assert self._stream is not None
        opened = os.fstat(self._stream.fileno())
        if opened.st_size < self._position:
            self._warnings.append(f"{self.spec} was truncated while it was read; what came before was kept")
            self._position = 0
        self._stream.seek(self._position)
        self._append(self._stream.read(min(opened.st_size - self._position, self._tail_size)))
        try:
            now = os.stat(self.spec)
        except FileNotFoundError:
            self._warnings.append(f"{self.spec} was moved away while it was read; what came before was kept")
            return
        if (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino):
            self._warnings.append(f"{self.spec} was rotated while it was read; both parts were kept in order")
            with _regular(self.spec) as successor:
                self._append(successor.read(self._tail_size))

    def _take(self, data: bytes, cut: bool) -> LogTake:
        if not data:
            missing = Missing("log", self.spec, "the file is empty", "does the server write its log somewhere else?")
            return LogTake(missing=(missing,), warnings=tuple(self._warnings))
        name = f"logs/{os.path.basename(self.spec)}"
        member = memory_member(name, data, kind="log", time=time.time(), origin=self.spec, truncated=cut)
        return LogTake((member,), warnings=tuple(self._warnings))


def _regular(path: str) -> BinaryIO:
    """Open a regular file for reading; a pipe or device would block and is refused. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _file_missing(path: str, error: OSError) -> Missing:
    hint = "check the path"
    if isinstance(error, PermissionError):
        hint = "run kvdoctor as the user of the server, or as root"
    elif isinstance(error, FileNotFoundError):
        hint = "check the path; other sources are written journal:UNIT, docker:NAME, k8s:NAMESPACE/POD, or - for standard input"
    elif not error.errno:
        hint = "give a file, or pipe it in and use --log -"
    return Missing("log", path, f"cannot be read: {error.strerror}", hint)


# ---- standard input -------------------------------------------------------------------------------------------------


class StreamLog:
    """Standard input, read by a thread from the start: its first part and its last are kept, whatever its length."""

    spec = "-"

    def __init__(self, descriptor: int, *, tail: int = TAIL, head: int = HEAD) -> None:
        self._descriptor = descriptor
        self._tail_size = tail
        self._head_size = head
        self._lock = threading.Lock()
        self._head = bytearray()
        self._ring: deque[bytes] = deque()
        self._ring_size = 0
        self._left_out = 0
        self._problem = ""
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if os.isatty(descriptor):
            self._problem = "standard input is a terminal"
            self._ended.set()
            return
        self._thread = threading.Thread(target=self._pump, name="stdin", daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        # os.read after select: a thread blocked inside sys.stdin would hold the interpreter up at its exit
        try:
            while not self._stop.is_set():
                ready, _, _ = select.select([self._descriptor], [], [], 0.1)
                if not ready or self._stop.is_set():
                    continue
                block = os.read(self._descriptor, 1 << 16)
                if not block:
                    break
                with self._lock:
                    room = self._head_size - len(self._head)
                    self._head += block[:room] if room > 0 else b""
                    rest = block[room:] if room > 0 else block
                    if rest:
                        self._ring.append(rest)
                        self._ring_size += len(rest)
                    while self._ring_size - len(self._ring[0]) >= self._tail_size if self._ring else False:
                        dropped = len(self._ring.popleft())
                        self._ring_size -= dropped
                        self._left_out += dropped
        except OSError as error:
            self._problem = f"reading standard input failed: {error.strerror}"
        self._ended.set()

    def first(self) -> LogTake:
        """What has come within half a second."""
        self._ended.wait(0.5)
        return self._take()

    def finish(self, *, hurry: bool = False) -> LogTake:
        """What has come so far; an input that still flows is given one more second to end."""
        ended = self._ended.wait(0.0 if hurry else 1.0)
        self._stop.set()
        if self._thread is not None:
            # the caller may close the descriptor now, and its number may be somebody else's the moment after
            self._thread.join(1.0)
        warnings = () if ended else ("standard input had not ended: the lines up to now were read",)
        return self._take(warnings)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the input; True when it came."""
        return self._ended.wait(seconds)

    def _take(self, warnings: tuple[str, ...] = ()) -> LogTake:
        with self._lock:
            head, tail, left_out = bytes(self._head), b"".join(self._ring), self._left_out
        if not head:
            reason = self._problem or "nothing came in on standard input"
            return LogTake(missing=(Missing("log", "-", reason, "pipe a log in: COMMAND | kvdoctor diagnose --log -"),))
        data = _joined(head, tail, left_out) if left_out else head + tail
        member = memory_member(
            "logs/stdin.log", data, kind="log", time=time.time(), origin="standard input", truncated=left_out > 0
        )
        return LogTake((member,), warnings=warnings + ((self._problem,) if self._problem else ()))


# ---- other programs -------------------------------------------------------------------------------------------------


class Teller(Protocol):
    """How one program tells a log. ``head`` is None where it cannot tell the lines of the present run.

    ``merged``: the log stands in both output streams of the program (and so do the program's own errors).
    """

    @property
    def name(self) -> str: ...

    @property
    def merged(self) -> bool: ...

    def tail(self, lines: int) -> Sequence[str]: ...

    def head(self, timeout_s: float) -> Sequence[str] | None: ...

    def beside(self, timeout_s: float) -> LogTake: ...

    def hint(self, problem: str) -> str: ...


class CommandLog:
    """A log told by another program: its last lines, and the first ones of the present run when they are not among them."""

    def __init__(self, spec: str, teller: Teller, *, tail: int, timeout_s: float) -> None:
        self.spec = spec
        self._teller = teller
        self._tail_size = tail
        self._timeout_s = timeout_s
        self._first: LogTake | None = None

    def first(self) -> LogTake:
        """The newest lines, for a first word; a source that fails here is not asked again."""
        output = self._run(self._teller.tail(2000), min(self._timeout_s, 5.0), FIRST_LOOK)
        self._first = self._take(output, None)
        return self._first

    def finish(self, *, hurry: bool = False) -> LogTake:
        """The last lines, the first lines of the run, and what the program knows beside."""
        if self._first is not None and (hurry or not self._first.members):
            return self._first
        output = self._run(self._teller.tail(COMMAND_LINES), self._timeout_s, self._tail_size)
        head: bytes | None = None
        if output.data and (output.cut or output.data.count(b"\n") >= COMMAND_LINES - 1):
            command = self._teller.head(self._timeout_s)
            if command is not None:
                head = self._run(command, self._timeout_s, HEAD, keep="head").data
        take = self._take(output, head)
        if output.absent:
            return take
        beside = self._teller.beside(self._timeout_s)
        return LogTake(take.members + beside.members, take.missing + beside.missing, take.warnings + beside.warnings)

    def _run(self, argv: Sequence[str], timeout_s: float, cap: int, keep: str = "tail") -> Output:
        output = run(argv, timeout_s=timeout_s, cap=cap, keep=keep, merge=self._teller.merged)
        if self._teller.merged and output.code and output.data.count(b"\n") <= 3:
            return replace(output, data=b"")  # nothing but the program's own complaint
        return output

    def _take(self, output: Output, head: bytes | None) -> LogTake:
        warnings: list[str] = []
        if not output.data:
            reason = output.problem or "it has no lines"
            return LogTake(missing=(Missing("log", self.spec, reason, self._teller.hint(reason)),))
        if output.problem:
            warnings.append(f"{self.spec}: {output.problem}; the lines that came before were read")
        data, cut = output.data, output.cut
        if head and not head.startswith(data[:4096]):
            data, cut = _joined(head, data, None), True
        elif cut:
            warnings.append(
                f"{self.spec}: only its last {len(data) >> 20} MiB were read; the start-up lines are not among them"
            )
        name = f"logs/{re.sub(r'[^A-Za-z0-9._-]+', '_', self._teller.name)}.log"
        member = memory_member(name, data, kind="log", time=time.time(), origin=self.spec, truncated=cut)
        return LogTake((member,), warnings=tuple(warnings))


@frozen
class Journal:
    """journald, as JSON lines with nothing but time and message."""

    name: str
    merged: bool = False

    def _base(self) -> list[str]:
        return ["journalctl", "--no-pager", "--quiet", "-o", "json", "--output-fields=MESSAGE"]

    def tail(self, lines: int) -> Sequence[str]:
        return [*self._base(), "-u", self.name, "-n", str(lines)]

    def head(self, timeout_s: float) -> Sequence[str] | None:
        asked = run(["systemctl", "show", "-p", "InvocationID", "--value", self.name], timeout_s=timeout_s, cap=4096)
        invocation = asked.data.decode("ascii", "replace").strip()
        if asked.problem or not re.fullmatch(r"[0-9a-f]{32}", invocation):
            return None
        return [*self._base(), f"_SYSTEMD_INVOCATION_ID={invocation}"]

    def beside(self, timeout_s: float) -> LogTake:
        return LogTake()

    def hint(self, problem: str) -> str:
        if "not installed" in problem:
            return "this host has no journald: give the log file with --log PATH"
        if "ermission" in problem or "not seeing messages" in problem:
            return "journald shows a unit's lines to root and to the groups systemd-journal and adm"
        return f"check the unit's name: systemctl list-units '*{self.name.split('.')[0]}*'; a user's unit is not read"


@frozen
class Docker:
    """docker, both streams in the order they were written, with its time stamps."""

    name: str
    merged: bool = True

    def tail(self, lines: int) -> Sequence[str]:
        return ["docker", "logs", "--timestamps", "--tail", str(lines), self.name]

    def head(self, timeout_s: float) -> Sequence[str] | None:
        asked = run(["docker", "inspect", "-f", "{{.State.StartedAt}}", self.name], timeout_s=timeout_s, cap=4096)
        started = asked.data.decode("ascii", "replace").strip()
        if asked.problem or not re.fullmatch(r"[0-9TZ:.+-]{10,40}", started):
            return None
        return ["docker", "logs", "--timestamps", "--since", started, self.name]

    def beside(self, timeout_s: float) -> LogTake:
        return LogTake()

    def hint(self, problem: str) -> str:
        text = problem.lower()
        if "not installed" in text:
            return "docker is not on this host: give the log file with --log PATH"
        if "permission denied" in text:
            return "run kvdoctor as root or as a member of the group docker"
        if "cannot connect" in text:
            return "the docker daemon does not run here, or DOCKER_HOST is not set"
        if "no such container" in text:
            return "check the name: docker ps -a"
        if "logging driver" in text or "not support reading" in text:
            return "this container's logging driver keeps nothing to read: give its log with --log PATH or --log -"
        return f"try the same by hand: docker logs --tail 10 {self.name}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A container of a pod; when it was restarted, also the log of its previous run, and the pod's description."""

    namespace: str
    pod: str
    container: str | None = None
    merged: bool = False
    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", "-".join(p for p in (self.namespace, self.pod, self.container) if p))

    def _logs(self, *options: str) -> list[str]:
        container = ["-c", self.container] if self.container else []
        return ["kubectl", "logs", self.pod, "-n", self.namespace, *container, "--timestamps", *options]

    def tail(self, lines: int) -> Sequence[str]:
        return self._logs(f"--tail={lines}")

    def head(self, timeout_s: float) -> Sequence[str] | None:
        # a container's log begins with its present run: kubectl keeps the earlier one apart
        return self._logs()

    def beside(self, timeout_s: float) -> LogTake:
        origin = f"k8s:{self.namespace}/{self.pod}"
        members: list[Member] = []
        missing: list[Missing] = []
        described = run(
            ["kubectl", "describe", "pod", self.pod, "-n", self.namespace], timeout_s=timeout_s, cap=1 << 20
        )
        if described.problem:
            missing.append(Missing("kubectl", f"{origin} (describe)", described.problem, self.hint(described.problem)))
        else:
            text = mask_describe(described.data.decode("utf-8", "replace"))
            members.append(
                memory_member(
                    f"kubectl/{self.name}.txt",
                    text.encode(),
                    kind="kubectl",
                    time=time.time(),
                    origin=f"{origin} (describe)",
                )
            )
        if any(
            int(n)
            for n in re.findall(r"^\s+Restart Count:\s+([0-9]{1,9})$", described.data.decode("utf-8", "replace"), re.M)
        ):
            earlier = run(
                self._logs("--previous", f"--tail={COMMAND_LINES}"), timeout_s=timeout_s, cap=TAIL, keep="tail"
            )
            where = f"{origin}{'/' + self.container if self.container else ''} (previous run)"
            if earlier.data:
                members.append(
                    memory_member(f"logs/{self.name}-previous.log", earlier.data, kind="log", time=time.time(), origin=where,
                                  truncated=earlier.cut)
                )  # fmt: skip
            else:
                reason = earlier.problem or "it has no lines"
                missing.append(Missing("log", where, reason, "the node keeps only the last run, and not for long"))
        return LogTake(tuple(members), tuple(missing))

    def hint(self, problem: str) -> str:
        if "not installed" in problem:
            return "install kubectl, or save the log and give it with --log PATH"
        return kube_hint(problem, "get pods and pods/log")


_ENVIRONMENT = re.compile(r"^(\s+)Environment:\s*$")


def mask_describe(text: str) -> str:
    """``kubectl describe pod`` with every plain value of its environment removed, and secrets of its command masked."""
    out: list[str] = []
    inside: int | None = None
    hide_next = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        bare = line.strip()
        heading = _ENVIRONMENT.match(line)
        if heading:
            inside = len(heading.group(1))
        elif inside is not None and indent <= inside:
            inside = None
        elif inside is not None:
            name, colon, value = line.partition(":")
            # a reference (<set to the key ...>) names a secret, it does not hold it
            out.append(line if value.strip().startswith("<") else f"{name}{colon} ***")
            continue
        out.append(" " * indent + "***" if hide_next and not bare.startswith("-") else mask_text(line))
        hide_next = bool(re.fullmatch(r"--?[A-Za-z][\w-]*", bare)) and is_secret_name(bare)
    return "\n".join(out) + "\n"
