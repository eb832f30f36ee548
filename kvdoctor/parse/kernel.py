"""What the host says: kernel log, ``ps``, cgroup files, /proc/meminfo, ``kubectl describe`` of pods and autoscalers.

Sizes are bytes (the kernel's and ps' kB are KiB), shares 0..1, durations seconds. A time is epoch seconds of the clock
as printed; ``zoned`` says whether the text carried a zone (without one it is read as if it were UTC, to be compared only
with clocks of the same host).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import pairwise

from kvdoctor.frozen import frozen
from kvdoctor.parse import KEPT_BAD, MAX_LINE, SHOWN, BadLine, Unread, bad_line

_ABSENT = Unread("not in this text")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"


@frozen
class NotThis:
    """The text is not of the kind that was asked for; ``reason`` says what is missing."""

    reason: str


def _lines(text: str) -> list[str]:
    lines = [line[:MAX_LINE].rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    return lines


@dataclass(slots=True)
class _Refusals:
    """Refused lines: all counted, the first ones kept."""

    kept: list[BadLine] = field(default_factory=list)
    count: int = 0

    def add(self, number: int, why: str, line: str) -> None:
        self.count += 1
        if len(self.kept) < KEPT_BAD:
            self.kept.append(bad_line(number, why, line))


# ---- kernel log -----------------------------------------------------------------------------------------------------


@frozen
class Stamp:
    """When a kernel line was written: seconds since boot, wall clock, or neither.

    ``clock`` is epoch seconds; None when the line prints none, or prints no year (journald's short form), in which case
    ``no_year`` holds the text, such as ``Jul 28 03:00:15``.
    """

    since_boot: float | None = None
    clock: float | None = None
    zoned: bool = False
    no_year: str | None = None


@frozen
class Xid:
    """One NVRM Xid line. ``number`` is NVIDIA's error number; pid and process are in the text since R460."""

    number: int
    pci: str
    pid: int | Unread
    process: str | Unread
    message: str
    stamp: Stamp
    line: int


@frozen
class OomKill:
    """A process the kernel killed for memory.

    ``scope`` is ``memcg`` (a cgroup limit, such as a container's) or ``global`` (the host ran out); Unread when the
    lines that tell are missing. ``cgroup`` is the group whose limit was hit. Sizes are the victim's, in bytes.
    """

    pid: int
    process: str
    scope: str | Unread
    constraint: str | Unread
    cgroup: str | Unread
    anon_rss: int | Unread
    file_rss: int | Unread
    shmem_rss: int | Unread
    total_vm: int | Unread
    stamp: Stamp
    line: int


@frozen
class Stall:
    """A CPU or task that does not get on. ``kind``: soft_lockup, hard_lockup, hung_task. ``seconds``: how long so far.

    ``function`` and ``module`` are the innermost frame of the trace below that lies in a module (such as nvidia_uvm),
    else the innermost frame.
    """

    kind: str
    process: str | Unread
    pid: int | Unread
    cpu: int | Unread
    seconds: float | Unread
    function: str | Unread
    module: str | Unread
    stamp: Stamp
    line: int


@frozen
class KernelLog:
    """What a kernel log says about GPUs, memory and stalls, each in the order of the lines."""

    xids: tuple[Xid, ...]
    kills: tuple[OomKill, ...]
    stalls: tuple[Stall, ...]
    lines: int
    bad: tuple[BadLine, ...]
    bad_count: int


_SINCE_BOOT = re.compile(r"\[[ ]{0,12}([0-9]{1,12}\.[0-9]{1,9})\]")
_CTIME = re.compile(rf"\[?((?:{_DAYS}) (?:{_MONTHS})[ ]{{1,2}}[0-9]{{1,2}} [0-9:]{{8}} [0-9]{{4}})\]?")
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_NO_YEAR = re.compile(rf"((?:{_MONTHS})[ ]{{1,2}}[0-9]{{1,2}} [0-9:]{{8}}(?:\.[0-9]{{1,9}})?) ")
_HEAD = 120

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{5,20})\): ([0-9]{1,4})(?:, (.{0,600}))?")
_XID_PID = re.compile(r"pid=(?:'([^']{0,40})'|([^,]{0,40}))(?:, name=([^,]{0,80}))?")
_KILLED = re.compile(r"Kill(?:ed)? process ([0-9]{1,10}),? \(([^)]{0,40}(?:\)[^)]{0,20})?)\)")
_SCOPE = re.compile(r"(Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Kill")
_OOM_FACTS = re.compile(r"oom-kill:constraint=CONSTRAINT_([A-Z_]{1,30}),(.{0,2000})")
_KILOBYTES = re.compile(r"(total-vm|anon-rss|file-rss|shmem-rss):([0-9]{1,15})kB")
_SOFT = re.compile(r"soft lockup - CPU#([0-9]{1,5}) stuck for ([0-9]{1,7})s! \[(.{1,40}):([0-9]{1,10})\]")
_HARD = re.compile(r"hard LOCKUP on cpu ([0-9]{1,5})")
_HUNG = re.compile(r"task (.{1,40}):([0-9]{1,10}) blocked for more than ([0-9]{1,7}) seconds")
_FRAME = re.compile(
    r"(?:RIP: [0-9a-f]{4}:|[\] ] {0,8})(\?? ?)([A-Za-z_][\w.]{1,80})\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8}(?: \[(\w{1,40})[ \]])?"
)
_TRACE_LINES = 60
_TELLING = (
    "NVRM: Xid",
    "oom-kill:constraint=",
    "Kill process ",
    "Killed process ",
    "soft lockup",
    "hard LOCKUP",
    "blocked for more than",
)


def kernel_log(text: str, *, first_line: int = 1) -> KernelLog | NotThis:
    """Read dmesg or journalctl -k output; ``first_line`` is the number of the text's first line in its file.

    A log in which nothing of interest stands is an empty :class:`KernelLog` when its lines look like a kernel log, and
    :class:`NotThis` otherwise.
    """
    xids: list[Xid] = []
    kills: list[OomKill] = []
    stalls: list[Stall] = []
    refused = _Refusals()
    pending: dict[int, tuple[str, str | Unread]] = {}
    trace_left = 0
    kernel_like = False
    lines = _lines(text)
    for number, line in enumerate(lines, first_line):
        told = any(word in line for word in _TELLING)
        if not told:
            if trace_left and stalls:
                trace_left -= 1
                stalls[-1] = _with_frame(stalls[-1], line)
            kernel_like = kernel_like or _looks_like_kernel(line)
            continue
        stamp = _stamp(line)
        kernel_like = kernel_like or _looks_like_kernel(line)
        if "NVRM: Xid" in line:
            xid = _xid(line, stamp, number)
            if xid is None:
                refused.add(number, "Xid line in an unknown form", line)
            else:
                xids.append(xid)
            trace_left = 0
        elif "oom-kill:constraint=" in line:
            facts = _OOM_FACTS.search(line)
            parts = dict(p.split("=", 1) for p in facts.group(2).split(",") if "=" in p) if facts else {}
            pid = parts.get("pid", "")
            if facts and pid.isascii() and pid.isdigit():
                pending[int(pid)] = (facts.group(1), parts.get("oom_memcg", _ABSENT))
            else:
                refused.add(number, "oom-kill line without a pid", line)
        elif "Kill process " in line or "Killed process " in line:
            kill = _kill(line, stamp, number, pending)
            if kill is None:
                refused.add(number, "kill line in an unknown form", line)
            elif kills and kills[-1].pid == kill.pid and isinstance(kills[-1].anon_rss, Unread):
                # before 4.20 one kill is two lines: the choice, then the deed with the sizes
                kills[-1] = replace(kill, scope=kills[-1].scope, line=kills[-1].line, stamp=kills[-1].stamp)
            else:
                kills.append(kill)
            trace_left = 0
        elif stall := _stall(line, stamp, number):
            stalls.append(stall)
            trace_left = _TRACE_LINES
    if not (xids or kills or stalls or kernel_like):
        return NotThis("no line looks like a kernel log")
    return KernelLog(tuple(xids), tuple(kills), tuple(stalls), len(lines), tuple(refused.kept), refused.count)


def journal_line(line: str) -> str:
    """A record of ``journalctl -o json`` as a dated text line; any other line as it is."""
    if not line.startswith("{") or "MESSAGE" not in line:
        return line
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(record, dict):
        return line
    message, micros = record.get("MESSAGE"), record.get("__REALTIME_TIMESTAMP")
    if not isinstance(message, str):
        return line
    if not (isinstance(micros, str) and micros.isascii() and micros.isdigit() and len(micros) < 20):
        return message
    moment = datetime.fromtimestamp(int(micros) / 1e6, UTC)
    return f"{moment.isoformat(timespec='microseconds')} host kernel: {message}"


def _looks_like_kernel(line: str) -> bool:
    head = line[:_HEAD]
    if " kernel: " in head or "NVRM:" in head or _SINCE_BOOT.match(head):
        return True
    return head.startswith("[") and _CTIME.match(head) is not None


def _stamp(line: str) -> Stamp:
    head = line[:_HEAD]
    boot = _SINCE_BOOT.search(head)
    since_boot = float(boot.group(1)) if boot else None
    iso = _ISO.search(head)
    if iso:
        day, clock, fraction, zone = iso.groups()
        moment = f"{day}T{clock}.{(fraction or '0')[:6]}{'+00:00' if zone in (None, 'Z') else zone}"
        return Stamp(since_boot, _epoch(moment), zone is not None)
    ctime = _CTIME.search(head)
    if ctime:
        return Stamp(since_boot, _epoch_ctime(ctime.group(1)))
    short = _NO_YEAR.search(head)
    return Stamp(since_boot, no_year=short.group(1) if short else None)


def _epoch(moment: str) -> float | None:
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None


def _epoch_ctime(text: str) -> float | None:
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _xid(line: str, stamp: Stamp, number: int) -> Xid | None:
    found = _XID.search(line)
    if not found:
        return None
    rest = found.group(3) or ""
    pid: int | Unread = _ABSENT
    process: str | Unread = _ABSENT
    who = _XID_PID.match(rest)
    if who:
        written = (who.group(1) if who.group(1) is not None else who.group(2)).strip()
        pid = int(written) if written.isascii() and written.isdigit() else Unread(f"the driver prints pid {written}")
        name = (who.group(3) or "").strip()
        if name:
            process = Unread(f"the driver prints name {name}") if name.startswith("<") else name
        rest = rest[who.end() :].lstrip(", ")
    return Xid(int(found.group(2)), found.group(1), pid, process, rest, stamp, number)


def _kill(line: str, stamp: Stamp, number: int, pending: Mapping[int, tuple[str, str | Unread]]) -> OomKill | None:
    found = _KILLED.search(line)
    if not found:
        return None
    pid = int(found.group(1))
    scope_text = _SCOPE.search(line)
    constraint, cgroup = pending.get(pid, (_ABSENT, _ABSENT))
    scope: str | Unread
    if scope_text:
        scope = "memcg" if scope_text.group(1).startswith("Memory") else "global"
    elif isinstance(constraint, str):
        scope = "memcg" if constraint == "MEMCG" else "global"
    else:
        scope = _ABSENT
    sizes = {key: int(value) * 1024 for key, value in _KILOBYTES.findall(line)}
    return OomKill(
        pid=pid,
        process=found.group(2),
        scope=scope,
        constraint=constraint,
        cgroup=cgroup,
        anon_rss=sizes.get("anon-rss", _ABSENT),
        file_rss=sizes.get("file-rss", _ABSENT),
        shmem_rss=sizes.get("shmem-rss", _ABSENT),
        total_vm=sizes.get("total-vm", _ABSENT),
        stamp=stamp,
        line=number,
    )


def _stall(line: str, stamp: Stamp, number: int) -> Stall | None:
    soft = _SOFT.search(line) if "soft lockup" in line else None
    if soft:
        cpu, seconds, name, pid = soft.groups()
        return Stall("soft_lockup", name, int(pid), int(cpu), float(seconds), _ABSENT, _ABSENT, stamp, number)
    hung = _HUNG.search(line) if "blocked for more than" in line else None
    if hung:
        name, pid, seconds = hung.groups()
        return Stall("hung_task", name, int(pid), _ABSENT, float(seconds), _ABSENT, _ABSENT, stamp, number)
    hard = _HARD.search(line) if "hard LOCKUP" in line else None
    if hard:
        return Stall("hard_lockup", _ABSENT, _ABSENT, int(hard.group(1)), _ABSENT, _ABSENT, _ABSENT, stamp, number)
    return None


def _with_frame(stall: Stall, line: str) -> Stall:
    if isinstance(stall.module, str):
        return stall
    frame = _FRAME.search(line)
    # "?" marks a frame that the unwinder only guessed
    if not frame or "?" in frame.group(1):
        return stall
    if frame.group(3):
        return replace(stall, function=frame.group(2), module=frame.group(3))
    return replace(stall, function=frame.group(2)) if isinstance(stall.function, Unread) else stall


# ---- ps -------------------------------------------------------------------------------------------------------------


@frozen
class Process:
    """One row of ps. Sizes in bytes, ``cpu`` in cores, ``mem`` 0..1 of the host's memory, ``elapsed`` in seconds.

    ``state`` begins with ps' letter (R running, S sleeping, D uninterruptible, Z zombie). ``started`` is the text as
    printed; ``start`` its epoch seconds when it is a full date.
    """

    line: int
    pid: int
    command: str
    ppid: int | Unread = _ABSENT
    state: str | Unread = _ABSENT
    user: str | Unread = _ABSENT
    rss: int | Unread = _ABSENT
    vsz: int | Unread = _ABSENT
    cpu: float | Unread = _ABSENT
    mem: float | Unread = _ABSENT
    cpu_time: float | Unread = _ABSENT
    elapsed: float | Unread = _ABSENT
    started: str | Unread = _ABSENT
    start: float | None = None


@frozen
class Usage:
    """Host memory of a container, a pod or a process at one moment, in bytes; ``kind`` says of which.

    docker and kubectl count the file cache that is in use, but not the part that the kernel would drop first. A process
    is named by its pid, or not at all. ``time`` stands on the line itself or on the last date above it.
    """

    line: int
    kind: str
    name: str
    memory: int
    time: float | None


@frozen
class ProcessTable:
    """All rows of one ps output, in its order. ``stamps`` are lines that hold a date: (line number, epoch seconds).

    ``usages`` are rows of ``docker stats``, ``kubectl top pod`` and ``VmRSS`` lines.
    """

    processes: tuple[Process, ...]
    lines: int
    bad: tuple[BadLine, ...]
    bad_count: int
    stamps: tuple[tuple[int, float], ...] = ()
    usages: tuple[Usage, ...] = ()

    def time_of(self, process: Process) -> float | None:
        """When a row was printed: the last date above it."""
        above = [time for line, time in self.stamps if line < process.line]
        return above[-1] if above else None


_PS_COLUMNS = frozenset(
    {
        "USER",
        "UID",
        "PID",
        "PPID",
        "PGID",
        "SID",
        "TID",
        "LWP",
        "NLWP",
        "SPID",
        "C",
        "STIME",
        "TTY",
        "TT",
        "TIME",
        "CMD",
    }
    | {"COMMAND", "%CPU", "%MEM", "VSZ", "RSS", "SZ", "STAT", "S", "START", "STARTED", "ELAPSED", "NI", "PRI", "PSR"}
    | {"F", "ADDR", "WCHAN", "CLS", "COMM", "ARGS"}
    | {"PR", "VIRT", "RES", "SHR", "TIME+"}
)
_PS_TEXT = frozenset({"CMD", "COMMAND", "ARGS"})
_FULL_DATE = rf"(?:{_DAYS})[ ]{{1,2}}(?:{_MONTHS})[ ]{{1,2}}[0-9]{{1,2}}[ ]{{1,2}}[0-9:]{{8}}[ ]{{1,2}}[0-9]{{4}}"
_PS_FIELD = re.compile(r"\S{1,4096}")
_PS_START = re.compile(rf"{_FULL_DATE}|(?:{_MONTHS})[ ]{{1,2}}[0-9]{{1,2}}(?=\s)|\S{{1,40}}")
_FOREST = re.compile(r"^[ |]{0,80}\\_ ")


def ps(text: str) -> ProcessTable | NotThis:
    """Read ``ps aux``, ``ps -ef``, ``ps -eo ...`` or ``top`` by its header line; a header that is repeated starts a new table.

    ``docker stats``, ``kubectl top pod`` and ``VmRSS`` of /proc/PID/status are read beside it. A loop that prints the date
    before each table dates them.
    """
    lines = _lines(text)
    stamps: list[tuple[int, float]] = []
    columns: list[str] = []
    tables = False
    processes: list[Process] = []
    usages = _Usages()
    refused = _Refusals()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if usages.take(line, number, stamps[-1][1] if stamps else None):
            columns = []
            continue
        if line.startswith("top - "):
            # the summary above the next table of top -b
            columns = []
        if "PID" in words and words and set(words) <= _PS_COLUMNS:
            columns = words
            tables = True
            usages.docker, usages.pods = [], []
            continue
        dated = _date_line(line) if len(words) <= _DATE_WORDS else None
        if dated is not None:
            stamps.append((number, dated))
            continue
        if not columns or not words:
            continue
        row = _ps_row(line, columns)
        process = None if row is None else _process(row, number)
        if process is None:
            refused.add(number, "not a row of this table", line)
        else:
            processes.append(process)
    if not tables and not usages.rows:
        return NotThis("no header line of ps or top with a PID column")
    return ProcessTable(
        tuple(processes), len(lines), tuple(refused.kept), refused.count, tuple(stamps), tuple(usages.rows)
    )


_CLEARED = re.compile(r"\x1b\[[0-9;?]{0,8}[A-Za-z]")
_DOCKER_USAGE = "MEM USAGE / LIMIT"
_DOCKER_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(B|[kKMGT]i?B) / \S{1,30}")
_DOCKER_UNITS = {"B": 1} | {f"{c}B": 1000**n for n, c in enumerate("kMGT", 1)} | {
    f"{c}iB": 1024**n for n, c in enumerate("KMGT", 1)
}  # fmt: skip
_POD_HEADER = re.compile(r"(?:NAMESPACE\s{1,80})?(?:POD\s{1,80})?NAME\s{1,80}CPU\(cores\)\s{1,80}MEMORY\(bytes\)")
_VM_RSS = re.compile(r"\bVmRSS:[ \t]{0,20}([0-9]{1,15}) kB")
_PROC_PID = re.compile(r"/proc/([0-9]{1,10})/status|\bpid[ =:]{1,3}([0-9]{1,10})", re.I)
_EPOCH_HEAD = re.compile(r"\W{0,2}([0-9]{10}(?:\.[0-9]{1,9})?)(?=\W)")


@dataclass(slots=True)
class _Usages:
    """Rows that tell how much host memory something holds, with the header that is in force."""

    rows: list[Usage] = field(default_factory=list)
    docker: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    pid: str = ""

    def take(self, line: str, number: int, dated: float | None) -> bool:
        """Read a line that is a header or a row of these; False for any other."""
        line = _CLEARED.sub("", line).strip()
        if _DOCKER_USAGE in line:
            self.docker, self.pods = re.split(r"[ ]{2,}", line), []
            return True
        if _POD_HEADER.fullmatch(line):
            self.docker, self.pods = [], line.split()
            return True
        told = self._container(line) or self._pod(line) or self._process(line)
        if told is None:
            return False
        kind, name, memory = told
        when = dated if kind != "process" else _line_time(line, dated)
        self.rows.append(Usage(number, kind, name, memory, when))
        return True

    def _container(self, line: str) -> tuple[str, str, int] | None:
        cells = re.split(r"[ ]{2,}", line) if self.docker else []
        if len(cells) != len(self.docker) or not cells:
            return None
        row = dict(zip(self.docker, cells, strict=True))
        size = _DOCKER_SIZE.fullmatch(row[_DOCKER_USAGE])
        if size is None:
            return None
        name = row.get("NAME") or row.get("CONTAINER ID") or row.get("CONTAINER") or ""
        return "container", name, round(float(size.group(1)) * _DOCKER_UNITS[size.group(2)])

    def _pod(self, line: str) -> tuple[str, str, int] | None:
        cells = line.split() if self.pods else []
        if len(cells) != len(self.pods) or not cells:
            return None
        cores, size = quantity(cells[-2]), quantity(cells[-1])
        if isinstance(cores, Unread) or isinstance(size, Unread):
            return None
        return "pod", "/".join(cells[:-2]), round(size)

    def _process(self, line: str) -> tuple[str, str, int] | None:
        if line.startswith("Pid:") and (number := line[4:].strip()).isascii() and number.isdigit():
            self.pid = number
        size = _VM_RSS.search(line)
        if size is None:
            return None
        who = _PROC_PID.search(line)
        return "process", (who.group(1) or who.group(2) if who else self.pid), int(size.group(1)) * 1024


def _line_time(line: str, dated: float | None) -> float | None:
    """The date a loop printed in front of its line, else the last one above it."""
    seconds = _EPOCH_HEAD.match(line)
    if seconds:
        return float(seconds.group(1))
    stamp = _stamp(line)
    return dated if stamp.clock is None else stamp.clock


_DATE_WORDS = 8
_DATE_LINE = re.compile(
    r"\W{0,12}(?:(?P<iso>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
    rf"|(?:{_DAYS})[ ]{{1,2}}(?P<date>(?:{_MONTHS})[ ]{{1,2}}[0-9]{{1,2}}[ ]{{1,2}}[0-9:]{{8}})"
    r"(?:[ ][AP]M)?(?:[ ][A-Z][A-Za-z+0-9-]{0,6})?[ ]{1,2}(?P<year>[0-9]{4}))\W{0,12}"
)


def _date_line(line: str) -> float | None:
    """A line that is nothing but a date, as ``date`` prints it, perhaps between dashes."""
    found = _DATE_LINE.fullmatch(line.strip())
    if found is None:
        return None
    if found.group("iso"):
        zone = found.group("zone")
        return _epoch(found.group("iso") + ("+00:00" if zone in (None, "Z") else zone))
    return _epoch_ctime(f"Mon {found.group('date')} {found.group('year')}")


def _ps_row(line: str, columns: Sequence[str]) -> dict[str, str] | None:
    """Cells by column. Only the command holds blanks, so what stands left and right of it is read from the ends."""
    text_at = next((i for i, name in enumerate(columns) if name in _PS_TEXT), len(columns) - 1)
    row: dict[str, str] = {}
    position = 0
    for name in columns[:text_at]:
        while position < len(line) and line[position].isspace():
            position += 1
        cell = (_PS_START if name in ("STARTED", "START", "STIME") else _PS_FIELD).match(line, position)
        if not cell:
            return None
        row[name], position = cell.group(), cell.end()
    rest = line[position:].rstrip()
    for name in reversed(columns[text_at + 1 :]):
        rest, _, cell_text = rest.rstrip().rpartition(" ")
        if not cell_text:
            return None
        row[name] = cell_text
    row[columns[text_at]] = rest.strip()
    return row if row[columns[text_at]] else None


def _process(row: Mapping[str, str], number: int) -> Process | None:
    pid = row["PID"]
    if not (pid.isascii() and pid.isdigit()):
        return None
    command = next((row[name] for name in ("CMD", "COMMAND", "ARGS", "COMM") if name in row), "")
    started = next((row[name] for name in ("STARTED", "START", "STIME") if name in row), None)
    return Process(
        line=number,
        pid=int(pid),
        command=_FOREST.sub("", command),
        ppid=_cell(row, "PPID", 1),
        state=row.get("STAT") or row.get("S") or _ABSENT,
        user=row.get("USER") or row.get("UID") or _ABSENT,
        rss=_size(row["RES"]) if "RES" in row else _cell(row, "RSS", 1024),
        vsz=_size(row["VIRT"]) if "VIRT" in row else _cell(row, "VSZ", 1024),
        cpu=_percent(row, "%CPU"),
        mem=_percent(row, "%MEM"),
        cpu_time=_duration(row.get("TIME+", row.get("TIME"))),
        elapsed=_duration(row.get("ELAPSED")),
        started=started or _ABSENT,
        start=_epoch_ctime(started) if started else None,
    )


def _cell(row: Mapping[str, str], name: str, scale: int) -> int | Unread:
    if name not in row:
        return _ABSENT
    text = row[name]
    return (
        int(text) * scale
        if text.isascii() and text.isdigit() and len(text) < 19
        else Unread(f"{name} is {text[:SHOWN]!r}")
    )


def _size(text: str) -> int | Unread:
    """A size of top: KiB, or with a letter the next larger unit."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,4})?)([kmgtpe]?)", text.lower())
    if not found:
        return Unread(f"not a size: {text[:SHOWN]!r}")
    return int(float(found.group(1)) * 1024 ** (1 + "kmgtpe".find(found.group(2) or "k")))


def _percent(row: Mapping[str, str], name: str) -> float | Unread:
    if name not in row:
        return _ABSENT
    return (
        float(row[name]) / 100
        if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,4})?", row[name])
        else Unread(f"{name} is {row[name][:SHOWN]!r}")
    )


def _duration(text: str | None) -> float | Unread:
    """``[[days-]hours:]minutes:seconds`` or plain seconds -> seconds."""
    if text is None:
        return _ABSENT
    found = re.fullmatch(r"(?:([0-9]{1,6})-)?((?:[0-9]{1,9}:){0,2}[0-9]{1,9})(?:\.[0-9]{1,3})?", text)
    if not found:
        return Unread(f"not a duration: {text[:SHOWN]!r}")
    seconds = 0.0
    for part in found.group(2).split(":"):
        seconds = seconds * 60 + int(part)
    return seconds + 86400 * int(found.group(1) or "0")


# ---- cgroup and meminfo ---------------------------------------------------------------------------------------------


@frozen
class CgroupMemory:
    """Memory files of one control group, in bytes and counts.

    ``limit`` is Unread with that reason when there is none (``unlimited``). ``inactive_file`` is page cache the kernel
    would drop first: counted in ``current``, but no demand. ``oom_kills`` counts processes killed in the group,
    ``limit_hits`` how often the limit was reached (v2 ``max`` events, v1 ``failcnt``). ``values`` holds every entry by
    ``file:key`` as printed; ``where`` gives the line of each.
    """

    version: int | Unread
    limit: int | Unread
    unlimited: bool
    current: int | Unread
    peak: int | Unread
    anon: int | Unread
    file: int | Unread
    inactive_file: int | Unread
    active_file: int | Unread
    shmem: int | Unread
    oom_kills: int | Unread
    limit_hits: int | Unread
    values: Mapping[str, int]
    where: Mapping[str, int]
    lines: int
    bad: tuple[BadLine, ...]
    bad_count: int


_CGROUP_FILE = re.compile(r"(?:^|/)(memory\.[a-z_.]{1,40})$")
_CGROUP_PREFIX = re.compile(r"(?:\S{0,400}/)?(memory\.[a-z_.]{1,40}):")
_CGROUP_HEADING = re.compile(r"==> (?:.{0,400}/)?(memory\.[a-z_.]{1,40}) <==")
_CGROUP_ROW = re.compile(r"(?:([a-z_0-9]{1,60})[ \t]{1,8})?([0-9]{1,20}|max)")
_V1_ONLY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "memory.failcnt")
# v1 has no word for "no limit": it prints the largest page-aligned value
_V1_NO_LIMIT = 2**62


def cgroup(text: str, *, name: str = "") -> CgroupMemory | NotThis:
    """Read one memory file of a control group, or several in one text.

    A single number says nothing by itself, so ``name`` (the file's name or path) is used when it is one of the
    ``memory.*`` files; otherwise the text must name them, as ``grep . memory.*`` (``file:value``) and ``tail -n +1``
    (``==> file <==``) do. ``memory.stat`` and ``memory.events`` are recognised by their keys.
    """
    lines = _lines(text)
    named = _CGROUP_FILE.search(name)
    current_file = named.group(1) if named else ""
    values: dict[str, int] = {}
    where: dict[str, int] = {}
    unlimited = False
    refused = _Refusals()
    for number, line in enumerate(lines, 1):
        row_text = line.strip()
        if not row_text:
            continue
        heading = _CGROUP_HEADING.fullmatch(row_text)
        if heading:
            current_file = heading.group(1)
            continue
        file = current_file
        prefix = _CGROUP_PREFIX.match(row_text)
        if prefix:
            file, row_text = prefix.group(1), row_text[prefix.end() :]
        row = _CGROUP_ROW.fullmatch(row_text)
        if not row:
            refused.add(number, "not a number or key and number", line)
            continue
        key, number_text = row.group(1) or "", row.group(2)
        file = file or (_file_of(key) if key else "")
        if not file:
            refused.add(number, "a number without the name of its file", line)
            continue
        if number_text == "max":
            unlimited = unlimited or file == "memory.max"
            continue
        values.setdefault(f"{file}:{key}", int(number_text))
        where.setdefault(f"{file}:{key}", number)
    if not values and not unlimited:
        return NotThis("no memory file of a control group")
    return _cgroup_memory(values, where, unlimited, len(lines), refused)


_STAT_KEYS = frozenset(
    {
        "anon",
        "file",
        "inactive_file",
        "active_file",
        "cache",
        "rss",
        "total_rss",
        "total_inactive_file",
        "shmem",
        "kernel",
    }
)
_EVENT_KEYS = frozenset({"low", "high", "oom", "oom_kill", "oom_group_kill"})


def _file_of(key: str) -> str:
    if key in _EVENT_KEYS:
        return "memory.events"
    return "memory.stat"


def _cgroup_memory(
    values: dict[str, int], where: dict[str, int], unlimited: bool, lines: int, refused: _Refusals
) -> CgroupMemory | NotThis:
    stat_keys = {key.partition(":")[2] for key in values if key.startswith("memory.stat:")}
    only_stat = all(key.startswith(("memory.stat:", "memory.events:")) for key in values)
    if (
        only_stat
        and not unlimited
        and not (stat_keys & _STAT_KEYS or any(k.startswith("memory.events:") for k in values))
    ):
        return NotThis("no memory file of a control group")
    v1 = (
        any(f"{file}:" in values for file in _V1_ONLY) or "rss" in stat_keys or "memory.oom_control:under_oom" in values
    )
    v2 = unlimited or "memory.max:" in values or "memory.current:" in values or "anon" in stat_keys

    def pick(*keys: str) -> int | Unread:
        return next((values[key] for key in keys if key in values), _ABSENT)

    limit = pick("memory.max:", "memory.limit_in_bytes:", "memory.stat:hierarchical_memory_limit")
    if isinstance(limit, int) and limit >= _V1_NO_LIMIT:
        unlimited = True
    if unlimited:
        limit = Unread("the group has no limit")
    return CgroupMemory(
        version=1 if v1 else 2 if v2 else _ABSENT,
        limit=limit,
        unlimited=unlimited,
        current=pick("memory.current:", "memory.usage_in_bytes:"),
        peak=pick("memory.peak:", "memory.max_usage_in_bytes:"),
        # v1: the total_ keys cover the groups below as well, as the plain keys of v2 do
        anon=pick("memory.stat:anon", "memory.stat:total_rss", "memory.stat:rss"),
        file=pick("memory.stat:file", "memory.stat:total_cache", "memory.stat:cache"),
        inactive_file=pick("memory.stat:total_inactive_file", "memory.stat:inactive_file"),
        active_file=pick("memory.stat:total_active_file", "memory.stat:active_file"),
        shmem=pick("memory.stat:total_shmem", "memory.stat:shmem"),
        oom_kills=pick("memory.events:oom_kill", "memory.oom_control:oom_kill"),
        limit_hits=pick("memory.events:max", "memory.failcnt:"),
        values=values,
        where=where,
        lines=lines,
        bad=tuple(refused.kept),
        bad_count=refused.count,
    )


@frozen
class MemInfo:
    """/proc/meminfo: bytes by the kernel's names (``MemTotal``, ``MemAvailable``, ``Cached`` ...) and their lines."""

    values: Mapping[str, int]
    where: Mapping[str, int]
    lines: int
    bad: tuple[BadLine, ...]
    bad_count: int

    def get(self, name: str) -> int | Unread:
        """Bytes of one entry; Unread when it is not in the text."""
        return self.values.get(name, _ABSENT)


_MEMINFO_ROW = re.compile(r"([A-Z][A-Za-z_()0-9]{1,40}):[ \t]{0,20}([0-9]{1,15})(?: (kB))?")


def meminfo(text: str) -> MemInfo | NotThis:
    """Read /proc/meminfo; its kB are 1024 bytes. Entries without a unit (``HugePages_Total``) are counts."""
    lines = _lines(text)
    values: dict[str, int] = {}
    where: dict[str, int] = {}
    refused = _Refusals()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _MEMINFO_ROW.fullmatch(line.strip())
        if not row:
            refused.add(number, "not an entry", line)
            continue
        values[row.group(1)] = int(row.group(2)) * (1024 if row.group(3) else 1)
        where[row.group(1)] = number
    if "MemTotal" not in values and "MemAvailable" not in values:
        return NotThis("no MemTotal entry")
    return MemInfo(values, where, len(lines), tuple(refused.kept), refused.count)


# ---- kubectl --------------------------------------------------------------------------------------------------------


@frozen
class ContainerState:
    """Running, Waiting or Terminated, with what Kubernetes says about it. Times are epoch seconds.

    ``oom_killed`` is the runtime's own word for it (docker inspect prints it either way); None where it prints none.
    """

    state: str
    reason: str | Unread
    exit_code: int | Unread
    started: float | None
    finished: float | None
    line: int
    oom_killed: bool | None = None


# image or name of a container: pieces that only an inference server's has
_SERVER = re.compile(
    r"(?<![a-z0-9])(vllm|sglang|text-generation-inference|tgi|tritonserver|triton|tensorrt[-_]?llm|trt-?llm|ollama|"
    r"llama[-._]?cpp|llama-server|lmdeploy)"
)
# an extended resource has a domain; of these the ones that are accelerators
_ACCELERATOR = re.compile(r"[^/]{1,100}/.{0,40}(?:gpu|mig-|tpu|npu|gaudi|neuron|ascend)|gpu\.[^/]{1,100}/", re.I)


@frozen
class Container:
    """One container of a pod. ``limits`` and ``requests``: sizes in bytes, cpu in cores, GPUs as a count."""

    name: str
    image: str | Unread
    init: bool
    state: ContainerState | None
    last_state: ContainerState | None
    restarts: int | Unread
    limits: Mapping[str, float]
    requests: Mapping[str, float]
    line: int

    @property
    def server(self) -> str:
        """The inference server that its image or its name tells; empty where they tell none."""
        texts = (self.image if isinstance(self.image, str) else "", self.name)
        return next((found.group(1) for text in texts if (found := _SERVER.search(text.lower()))), "")

    @property
    def accelerated(self) -> bool:
        """It asks for an accelerator."""
        return any(n > 0 and _ACCELERATOR.match(k) for table in (self.limits, self.requests) for k, n in table.items())


@frozen
class KubeEvent:
    """One row of the Events table; ``age`` as printed."""

    kind: str
    reason: str
    age: str
    source: str
    message: str
    line: int

    def names(self, container: str) -> bool:
        """The message is about the container of this name."""
        return re.search(rf"\b[Cc]ontainer \"?{re.escape(container)}(?![\w-])", self.message) is not None

    @property
    def names_one(self) -> bool:
        """The message is about one container."""
        return re.search(r"\b[Cc]ontainer \"?[\w.-]", self.message) is not None


_LOW_ON = re.compile(r"low on resource: ([a-z][a-z-]{2,30})")


@frozen
class Pod:
    """``kubectl describe pod`` of one pod. ``reason`` and ``message`` are those of the pod itself (such as Evicted)."""

    name: str
    namespace: str | Unread
    node: str | Unread
    status: str | Unread
    reason: str | Unread
    message: str | Unread
    started: float | None
    containers: tuple[Container, ...]
    events: tuple[KubeEvent, ...]
    line: int

    @property
    def low_on(self) -> str:
        """What the node lacked when the kubelet evicted the pod (``memory``, ``ephemeral-storage``); empty otherwise."""
        found = _LOW_ON.search(self.message) if self.reason == "Evicted" and isinstance(self.message, str) else None
        return found.group(1) if found else ""


@frozen
class ScaledMetric:
    """One metric an autoscaler follows. ``unit`` is ``share`` for percentages (0..1), else empty (the metric's own)."""

    name: str
    current: float | Unread
    target: float | Unread
    unit: str
    line: int


@frozen
class Autoscaler:
    """A HorizontalPodAutoscaler or KEDA ScaledObject. ``queries`` are KEDA's trigger queries, as written."""

    name: str
    reference: str | Unread
    metrics: tuple[ScaledMetric, ...]
    replicas_min: int | Unread
    replicas_max: int | Unread
    replicas_current: int | Unread
    replicas_desired: int | Unread
    conditions: Mapping[str, str]
    queries: tuple[str, ...]
    events: tuple[KubeEvent, ...]
    line: int


@frozen
class Kube:
    """All pods and autoscalers described in one text."""

    pods: tuple[Pod, ...]
    autoscalers: tuple[Autoscaler, ...]
    lines: int


@dataclass(slots=True)
class _Entry:
    """One line of an indented description: key, value, what is indented below it."""

    indent: int
    key: str
    value: str
    line: int
    children: list[_Entry] = field(default_factory=list)

    def child(self, key: str) -> _Entry | None:
        return next((e for e in self.children if e.key == key), None)

    def text(self, key: str) -> str | Unread:
        entry = self.child(key)
        return entry.value if entry is not None and entry.value and entry.value != "<none>" else _ABSENT

    def walk(self) -> Iterator[_Entry]:
        stack = [self]
        while stack:
            entry = stack.pop()
            yield entry
            stack.extend(reversed(entry.children))


_KEY = re.compile(r"(\S[^:]{0,120}?):(?:[ \t]{1,120}(.*))?$")
_MAX_DEPTH = 40
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|K|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_POWERS = {"m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_POWERS |= {f"{letter}i": 1024.0 ** (i + 1) for i, letter in enumerate("KMGTP")}


def kubectl(text: str) -> Kube | NotThis:
    """Read ``kubectl describe pod|hpa|scaledobject`` (several objects, blank lines between) and ``kubectl get hpa``.

    Manifests (``-o yaml``, ``-o json``) and ``docker inspect`` give the states of containers and the autoscaler's metrics.
    """
    lines = _lines(text)
    if text.lstrip()[:1] in "[{":
        return _manifests(text, len(lines))
    if _YAML.search(text):
        return _yaml_manifests(lines)
    pods: list[Pod] = []
    scalers: list[Autoscaler] = []
    for start, block in _objects(lines):
        root = _tree(block, start)
        keys = {entry.key for entry in root.children}
        if keys & {"Containers", "Init Containers"} and "Name" in keys:
            pods.append(_pod(root))
        elif "Reference" in keys or "Min replicas" in keys or root.text("Kind") == "ScaledObject":
            scalers.append(_autoscaler(root))
    scalers += _listed_autoscalers(lines)
    if not pods and not scalers:
        return NotThis("neither a described pod nor an autoscaler")
    return Kube(tuple(pods), tuple(scalers), len(lines))


_YAML = re.compile(r"^apiVersion:[ ]", re.M)
_NESTED = 30


def _manifests(text: str, lines: int) -> Kube | NotThis:
    """JSON of ``kubectl get -o json`` or ``docker inspect``."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return NotThis(f"not JSON: {error}")
    pods: list[Pod] = []
    scalers: list[Autoscaler] = []
    for item in _items(document):
        if item.get("kind") in ("ScaledObject", "HorizontalPodAutoscaler"):
            texts = [v for k, v in _leaves(item.get("spec"), "", _NESTED) if _names_metric(k)]
            scalers.append(_scaler_of(texts, 1))
        elif pod := _json_pod(item):
            pods.append(pod)
    if not pods and not scalers:
        return NotThis("neither a container's state nor an autoscaler")
    return Kube(tuple(pods), tuple(scalers), lines)


def _items(document: object) -> Iterator[Mapping[str, object]]:
    if isinstance(document, list):
        for part in document:
            yield from _items(part)
    elif isinstance(document, dict):
        if isinstance(document.get("items"), list):
            yield from _items(document["items"])
        else:
            yield document


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}", depth - 1)
    elif isinstance(value, list) and depth:
        for inner in value:
            yield from _leaves(inner, path, depth - 1)
    elif isinstance(value, str):
        yield path, value


def _names_metric(path: str) -> bool:
    return path.rpartition(".")[2] in ("query", "metricName") or path.endswith((".metric.name", ".resource.name"))


def _json_pod(item: Mapping[str, object]) -> Pod | None:
    """A pod or a docker container of which a state is told; None for anything else."""
    spec, status = _part(item, "spec"), _part(item, "status")
    limits = {
        str(c.get("name")): _json_quantities(_part(_part(c, "resources"), "limits"))
        for key in ("containers", "initContainers")
        for c in _records(spec, key)
    }
    containers = [
        found
        for key in ("initContainerStatuses", "containerStatuses")
        for record in _records(status, key)
        if (found := _json_container(record, limits, init=key.startswith("init")))
    ]
    docker = _part(item, "State")
    if "OOMKilled" in docker and "ExitCode" in docker:
        config = _part(item, "Config")
        containers.append(_container_of(_word(item, "Name"), _word(config, "Image"), None, _docker_state(docker)))
    if not containers:
        return None
    told = [_word(status, key) for key in ("phase", "reason", "message")]
    return _pod_of(_word(_part(item, "metadata"), "name"), told, containers)


def _part(record: Mapping[str, object], key: str) -> Mapping[str, object]:
    inner = record.get(key)
    return inner if isinstance(inner, dict) else {}


def _records(record: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    inner = record.get(key)
    return [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []


def _word(record: Mapping[str, object], key: str) -> str | Unread:
    text = record.get(key)
    return text if isinstance(text, str) and text else _ABSENT


def _json_quantities(table: Mapping[str, object]) -> dict[str, float]:
    found = {key: quantity(str(value)) for key, value in table.items()}
    return {key: value for key, value in found.items() if isinstance(value, float)}


def _json_container(
    record: Mapping[str, object], limits: Mapping[str, Mapping[str, float]], *, init: bool
) -> Container | None:
    now, last = (_json_state(_part(record, key)) for key in ("state", "lastState"))
    name = _word(record, "name")
    if now is None and last is None:
        return None
    return _container_of(name, _word(record, "image"), now, last, limits.get(str(name), {}), init=init)


def _json_state(record: Mapping[str, object]) -> ContainerState | None:
    if ended := _part(record, "terminated"):
        return _ended(ended.get("reason"), ended.get("exitCode"))
    if "running" in record:
        return ContainerState("Running", _ABSENT, _ABSENT, None, None, 1)
    waiting = _part(record, "waiting")
    return ContainerState("Waiting", _word(waiting, "reason"), _ABSENT, None, None, 1) if waiting else None


def _docker_state(record: Mapping[str, object]) -> ContainerState:
    """docker's ``State``; a container that runs has the exit code of nothing."""
    ended = record.get("Running") is not True
    killed = record["OOMKilled"] is True
    reason = "OOMKilled" if killed else "Error" if ended else "Running"
    return replace(_ended(reason, record["ExitCode"] if ended else None), oom_killed=killed)


def _ended(reason: object, code: object, line: int = 1) -> ContainerState:
    return ContainerState(
        "Terminated",
        reason if isinstance(reason, str) else _ABSENT,
        code if isinstance(code, int) and not isinstance(code, bool) else _ABSENT,
        None,
        None,
        line,
    )


def _container_of(
    name: str | Unread,
    image: str | Unread,
    state: ContainerState | None,
    last: ContainerState | None,
    limits: Mapping[str, float] | None = None,
    *,
    init: bool = False,
) -> Container:
    line = next((s.line for s in (last, state) if s is not None), 1)
    return Container(name if isinstance(name, str) else "", image, init, state, last, _ABSENT, limits or {}, {}, line)


def _pod_of(name: str | Unread, told: Sequence[str | Unread], containers: Sequence[Container]) -> Pod:
    status, reason, message = told
    return Pod(
        name if isinstance(name, str) else "",
        _ABSENT,
        _ABSENT,
        status,
        reason,
        message,
        None,
        tuple(containers),
        (),
        containers[0].line,
    )


def _scaler_of(texts: Sequence[str], line: int) -> Autoscaler:
    return Autoscaler("", _ABSENT, (), _ABSENT, _ABSENT, _ABSENT, _ABSENT, {}, tuple(texts), (), line)


def _yaml_manifests(lines: Sequence[str]) -> Kube | NotThis:
    """``kubectl get -o yaml`` and manifests: what is indented below a key belongs to it; a list's dash counts as indent."""
    pods: list[Pod] = []
    scalers: list[Autoscaler] = []
    starts = [0, *(i + 1 for i, line in enumerate(lines) if line.strip() == "---")]
    for start, end in pairwise([*starts, len(lines)]):
        root = _tree([re.sub(r"^( *)- ", r"\1  ", line) for line in lines[start:end]], start + 1)
        kinds = {entry.value for entry in root.walk() if entry.key == "kind"}
        if kinds & {"ScaledObject", "HorizontalPodAutoscaler"}:
            texts = [value for path, value in _yaml_leaves(root, "") if _names_metric(path)]
            scalers.append(_scaler_of(texts, start + 1))
            continue
        listed = _yaml_items(root.child("items"), lines)
        pods += [pod for owner in listed or [root] if (pod := _yaml_pod(owner, lines))]
    if not pods and not scalers:
        return NotThis("neither a container's state nor an autoscaler")
    return Kube(tuple(pods), tuple(scalers), len(lines))


def _yaml_pod(root: _Entry, lines: Sequence[str]) -> Pod | None:
    """A pod whose containers' states are told; None for anything else."""
    spec, status = (root.child(key) or root for key in ("spec", "status"))
    limits = {
        _bare(item.text("name")): _quantities((item.child("resources") or item).child("limits"))
        for key in ("containers", "initContainers")
        for item in _yaml_items(spec.child(key), lines)
    }
    containers: list[Container] = []
    for key in ("initContainerStatuses", "containerStatuses"):
        for item in _yaml_items(status.child(key), lines):
            now, last = (_yaml_state(item.child(part)) for part in ("state", "lastState"))
            name = _bare(item.text("name"))
            if now or last:
                init = key.startswith("init")
                containers.append(_container_of(name, item.text("image"), now, last, limits.get(name), init=init))
    if not containers:
        return None
    told = [status.text(key) for key in ("phase", "reason", "message")]
    return _pod_of(_bare((root.child("metadata") or root).text("name")), told, containers)


def _bare(text: str | Unread) -> str:
    return text.strip("\"'") if isinstance(text, str) else ""


def _yaml_items(section: _Entry | None, lines: Sequence[str]) -> list[_Entry]:
    """The items of a list: each begins where a dash stood."""
    items: list[_Entry] = []
    for child in section.children if section else ():
        if not items or lines[child.line - 1].lstrip().startswith("- "):
            items.append(_Entry(child.indent - 1, "", "", child.line))
        items[-1].children.append(child)
    return items


def _yaml_state(entry: _Entry | None) -> ContainerState | None:
    if entry is None:
        return None
    if ended := entry.child("terminated"):
        return _ended(ended.text("reason"), _integer(ended.text("exitCode")), ended.line)
    if running := entry.child("running"):
        return ContainerState("Running", _ABSENT, _ABSENT, None, None, running.line)
    waiting = entry.child("waiting")
    return ContainerState("Waiting", waiting.text("reason"), _ABSENT, None, None, waiting.line) if waiting else None


def _yaml_leaves(entry: _Entry, path: str) -> Iterator[tuple[str, str]]:
    for child in entry.children:
        here = f"{path}.{child.key}" if child.key else path
        if child.value and child.value not in ("|", ">", "|-", ">-"):
            yield here, child.value
        elif child.value:
            # a block of text: its lines are this key's value
            yield here, " ".join(f"{e.key}: {e.value}" if e.key else e.value for e in child.children)
        yield from _yaml_leaves(child, here)


def _objects(lines: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Split at each ``Name:`` in the first column: (number of the first line, lines)."""
    starts = [i for i, line in enumerate(lines) if line.startswith("Name:")]
    for start, end in pairwise([*starts, len(lines)]):
        yield start + 1, lines[start:end]


def _tree(lines: Sequence[str], first: int) -> _Entry:
    root = _Entry(-1, "", "", first)
    stack = [root]
    for number, line in enumerate(lines, first):
        bare = line.strip()
        if not bare:
            continue
        indent = len(line) - len(line.lstrip(" "))
        found = _KEY.match(bare)
        entry = (
            _Entry(indent, found.group(1), (found.group(2) or "").strip(), number)
            if found
            else _Entry(indent, "", bare, number)
        )
        while stack[-1].indent >= indent:
            stack.pop()
        stack[-1].children.append(entry)
        if len(stack) < _MAX_DEPTH:
            stack.append(entry)
    return root


def _pod(root: _Entry) -> Pod:
    containers = [
        _container(entry, init=section.key == "Init Containers")
        for section in root.children
        if section.key in ("Containers", "Init Containers")
        for entry in section.children
        if entry.key
    ]
    name = root.text("Name")
    return Pod(
        name=name if isinstance(name, str) else "",
        namespace=root.text("Namespace"),
        node=root.text("Node"),
        status=root.text("Status"),
        reason=root.text("Reason"),
        message=root.text("Message"),
        started=_mail_date(root.text("Start Time")),
        containers=tuple(containers),
        events=_events(root),
        line=root.line,
    )


def _container(entry: _Entry, *, init: bool) -> Container:
    return Container(
        name=entry.key,
        image=entry.text("Image"),
        init=init,
        state=_state(entry.child("State")),
        last_state=_state(entry.child("Last State")),
        restarts=_integer(entry.text("Restart Count")),
        limits=_quantities(entry.child("Limits")),
        requests=_quantities(entry.child("Requests")),
        line=entry.line,
    )


def _state(entry: _Entry | None) -> ContainerState | None:
    if entry is None or not entry.value:
        return None
    return ContainerState(
        state=entry.value,
        reason=entry.text("Reason"),
        exit_code=_integer(entry.text("Exit Code")),
        started=_mail_date(entry.text("Started")),
        finished=_mail_date(entry.text("Finished")),
        line=entry.line,
        oom_killed={"true": True, "false": False}.get(str(entry.text("OOM Killed")).lower()),
    )


def _mail_date(text: str | Unread) -> float | None:
    """``Tue, 28 Jul 2026 03:00:15 +0000`` -> epoch seconds."""
    if isinstance(text, Unread):
        return None
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    # without a zone the reader's own would be taken: the answer must not depend on where the file is read
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _integer(text: str | Unread) -> int | Unread:
    if isinstance(text, Unread):
        return text
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else Unread(f"not a number: {text[:SHOWN]!r}")


def quantity(text: str) -> float | Unread:
    """A Kubernetes quantity (``64Gi``, ``1500m``, ``12``) as a plain number."""
    found = _QUANTITY.fullmatch(text.strip())
    if not found:
        return Unread(f"not a quantity: {text.strip()[:SHOWN]!r}")
    return float(found.group(1)) * (_POWERS[found.group(2)] if found.group(2) else 1.0)


def _quantities(entry: _Entry | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for child in entry.children if entry else ():
        value = quantity(child.value.strip("\"'"))
        if child.key and isinstance(value, float):
            found[child.key] = value
    return found


def _events(root: _Entry) -> tuple[KubeEvent, ...]:
    section = root.child("Events")
    found = []
    for entry in section.children if section else ():
        # the table's columns are at least two blanks apart; a colon in the message has split key and value
        text = f"{entry.key}: {entry.value}" if entry.key else entry.value
        cells = re.split(r"[ ]{2,}", text, maxsplit=4)
        if len(cells) == 5 and cells[0] in ("Normal", "Warning"):
            kind, reason, age, source, message = cells
            found.append(KubeEvent(kind, reason, age, source, message, entry.line))
    return tuple(found)


_METRIC_ROW = re.compile(r'(?:"([^"]{1,200})"|resource (\S{1,60})|(\S{1,200}))[^:]{0,200}')
_METRIC_VALUE = re.compile(r"(<unknown>|[0-9][^ /(]{0,30})(?: \(([^)]{0,40})\))? / (\S{1,40})")


def _autoscaler(root: _Entry) -> Autoscaler:
    name = root.text("Name")
    spec = root.child("Spec") or root
    replicas = next((e for e in root.children if e.key.endswith(" pods") and " current / " in e.value), None)
    counts = re.fullmatch(r"([0-9]{1,9}) current / ([0-9]{1,9}) desired", replicas.value) if replicas else None
    smallest, largest = root.text("Min replicas"), root.text("Max replicas")
    return Autoscaler(
        name=name if isinstance(name, str) else "",
        reference=root.text("Reference"),
        metrics=tuple(_metrics(root.child("Metrics"))),
        replicas_min=_integer(smallest if isinstance(smallest, str) else spec.text("Min Replica Count")),
        replicas_max=_integer(largest if isinstance(largest, str) else spec.text("Max Replica Count")),
        replicas_current=int(counts.group(1)) if counts else _ABSENT,
        replicas_desired=int(counts.group(2)) if counts else _ABSENT,
        conditions=dict(_conditions(root)),
        queries=tuple(e.value for e in spec.walk() if e.key == "Query"),
        events=_events(root),
        line=root.line,
    )


def _metrics(section: _Entry | None) -> Iterator[ScaledMetric]:
    for entry in section.children if section else ():
        # a metric's own name may hold colons (vllm:...), so the key is the text before the last run of blanks
        text = f"{entry.key}: {entry.value}" if entry.key else entry.value
        left, _, right = text.rpartition(":  ")
        if not left:
            left, _, right = text.rpartition(": ")
        name = _METRIC_ROW.match(left)
        value = _METRIC_VALUE.fullmatch(" ".join(right.split()))
        if not name or not value:
            continue
        share = value.group(3).endswith("%")
        yield ScaledMetric(
            name=next(group for group in name.groups() if group),
            current=_metric_number(value.group(1)),
            target=_metric_number(value.group(3)),
            unit="share" if share else "",
            line=entry.line,
        )


def _metric_number(text: str) -> float | Unread:
    if text == "<unknown>":
        return Unread("Kubernetes prints <unknown>")
    if text.endswith("%"):
        percent = quantity(text[:-1])
        return percent if isinstance(percent, Unread) else percent / 100
    return quantity(text)


def _conditions(root: _Entry) -> Iterator[tuple[str, str]]:
    section = root.child("Conditions")
    for entry in section.children if section else ():
        cells = re.split(r"[ ]{2,}", f"{entry.key}: {entry.value}" if entry.key else entry.value, maxsplit=3)
        if len(cells) == 4 and cells[1] in ("True", "False", "Unknown"):
            yield cells[0], f"{cells[1]} {cells[2]}"


def _listed_autoscalers(lines: Sequence[str]) -> Iterator[Autoscaler]:
    """Rows of ``kubectl get hpa``: NAME REFERENCE TARGETS MINPODS MAXPODS REPLICAS AGE."""
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        cells = re.split(r"[ ]{2,}", line.strip())
        if "REFERENCE" in cells and "MINPODS" in cells:
            header = cells
        elif header and len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            yield Autoscaler(
                name=row.get("NAME", ""),
                reference=row["REFERENCE"],
                metrics=tuple(_listed_targets(row.get("TARGETS", ""), number)),
                replicas_min=_integer(row["MINPODS"]),
                replicas_max=_integer(row.get("MAXPODS", "")),
                replicas_current=_integer(row.get("REPLICAS", "")),
                replicas_desired=_ABSENT,
                conditions={},
                queries=(),
                events=(),
                line=number,
            )
        elif not line.strip():
            header = []


def _listed_targets(text: str, line: int) -> Iterator[ScaledMetric]:
    for part in text.split(", "):
        name, _, value = part.rpartition(": ")
        current, slash, target = value.partition("/")
        if slash:
            target = target.split(" ")[0]
            yield ScaledMetric(
                name, _metric_number(current), _metric_number(target), "share" if target.endswith("%") else "", line
            )
