"""Memory snapshots of torch's caching allocator: what is reserved, what is free, and which free memory cannot be used.

Input: a file of ``torch.cuda.memory._dump_snapshot()`` (torch 2.1-2.15, a pickle of the ``_snapshot()`` dictionary),
the same dictionary written as JSON, or the bare segment list of ``memory_snapshot()``. A snapshot comes from
strangers and a pickle can run code, so it is read by :mod:`kvdoctor.parse._unpickle_child` in a child process with
memory and CPU limits that refuses every global; what cannot be read is a :class:`Refused` value with a reason, never
an exception.

Sizes are bytes. Three kinds of loss are kept apart, because each has another remedy:

* internal: ``size - requested_size`` of blocks in use (rounding);
* external: free bytes that are there but not in one piece (``1 - largest free / total free``);
* pinned: free bytes in segments that also hold a block in use, which the allocator cannot give back to the device.

Free memory is never shared between pools, streams and the small and large class, so every figure is also given per
group. Source of the layout: torch/cuda/memory.py and c10/cuda/CUDACachingAllocator.cpp, torch 2.1-2.15.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from kvdoctor.frozen import frozen

MIB: Final = 1 << 20
DEFAULT_POOL: Final = (0, 0)
MAX_FILE: Final = 1 << 30
ROUND: Final = 512
"""The allocator rounds every request up to this (c10 kMinBlockSize)."""
DEVICE_PAGE: Final = 2 * MIB
"""Physical pages and expandable segments of the small class are mapped in this size."""
LARGE_PAGE: Final = 20 * MIB
"""Expandable segments of the large class grow and shrink in this size (c10 kLargeBuffer)."""

State = Literal["allocated", "awaiting_free", "inactive"]
SizeClass = Literal["small", "large", "unknown"]
_UNDONE: Final = ("alloc", "free_completed", "segment_alloc", "segment_map", "segment_free", "segment_unmap")
_STATES: Final[tuple[State, ...]] = ("allocated", "awaiting_free", "inactive")
_CHILD: Final = Path(__file__).with_name("_unpickle_child.py")
_EXPLAIN: Final = {
    "too_large": "larger than this reader takes",
    "truncated": "cut off: dump it again or copy it again",
    "corrupt": "damaged or not a memory snapshot",
    "names_code": "it names code to run, which a memory snapshot never does; it was not run",
    "not_a_snapshot": "readable, but not a torch memory snapshot",
    "too_many_nodes": "its parts refer to each other so often that it cannot be a dump of a real allocator",
    "memory_limit": "reading it took more memory than allowed",
    "time_limit": "reading it took longer than allowed",
    "crashed": "the reader process died on it",
    "unreadable": "could not be opened",
    "no_limits": "this system cannot limit the reading process, so it is not read",
}


@frozen
class Refused:
    """A file that was not taken; ``reason`` is one of the closed list in the module, ``detail`` what was seen."""

    reason: str
    detail: str

    @property
    def say(self) -> str:
        """One sentence for the report."""
        text = f"torch memory snapshot not read: {_EXPLAIN[self.reason]}"
        return f"{text} ({self.detail})" if self.detail else text


@frozen
class Block:
    """A piece of a segment. ``requested`` None = not recorded; ``stack`` indexes :attr:`TorchSnapshot.stacks`, -1 =
    none.
    """

    address: int
    size: int
    requested: int | None
    state: State
    stack: int


@frozen
class Segment:
    """Memory got from the device: one cudaMalloc, or one run of mapped pages of an expandable segment.

    ``pool_id`` (0, 0) is the default pool, others are private (CUDA graphs, MemPool); None = not recorded.
    """

    device: int
    address: int
    size: int
    stream: int | None
    size_class: SizeClass
    pool_id: tuple[int, int] | None
    expandable: bool | None
    blocks: tuple[Block, ...]

    @property
    def private(self) -> bool:
        return self.pool_id is not None and self.pool_id != DEFAULT_POOL

    @property
    def in_use(self) -> int:
        """Bytes of blocks that are allocated or wait for another stream."""
        return sum(block.size for block in self.blocks if block.state != "inactive")

    @property
    def free(self) -> int:
        return sum(block.size for block in self.blocks if block.state == "inactive")


@frozen
class Frame:
    """One line of a stack trace; ``line`` None = not recorded."""

    file: str
    line: int | None
    name: str

    def __str__(self) -> str:
        tail = "/".join(self.file.split("/")[-3:])
        return f"{self.name} ({tail}:{self.line})" if self.line is not None else f"{self.name} ({tail})"


@frozen
class OutOfMemory:
    """An ``oom`` entry of the history: bytes asked, bytes the device still reported free, who asked."""

    device: int
    requested: int | None
    device_free: int | None
    time_us: int | None
    stack: int


@frozen
class History:
    """Recorded actions of one device, oldest first, as parallel columns (a history can hold millions of entries).

    -1 in a column = not recorded. ``sizes`` of alloc and free actions are *requested* sizes, before rounding.
    """

    device: int
    actions: tuple[str, ...]
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    times_us: tuple[int, ...]


@frozen
class TorchSnapshot:
    """One dump. ``vendor`` is "rocm" or "cuda" when the dump itself shows it, else "unknown" (both have the same
    layout).
    """

    form: Literal["pickle", "json"]
    segments: tuple[Segment, ...]
    stacks: tuple[tuple[Frame, ...], ...]
    histories: tuple[History, ...]
    ooms: tuple[OutOfMemory, ...]
    settings: dict[str, str | int | float | bool]
    vendor: Literal["cuda", "rocm", "unknown"]
    bad_rows: int

    @property
    def devices(self) -> tuple[int, ...]:
        """Ordinals inside the process that made the dump."""
        return tuple(sorted({segment.device for segment in self.segments}))


def sniff(head: bytes) -> bool:
    """Whether the first bytes of a file look like a torch memory snapshot (64 bytes or more decide)."""
    start = head[:4096].lstrip()
    if start[:1] in (b"{", b"["):
        return b'"segment_type"' in start or b'"device_traces"' in start or start[:20].startswith(b'{"segments"')
    return start[:1] == b"\x80" and b"segments" in start[:128] or (start[:1] == b"\x80" and b"segment_type" in start)


def load(source: bytes | Path, *, cpu_seconds: int = 20) -> TorchSnapshot | Refused:
    """Reads a snapshot from a file or from its bytes, in a limited child process.

    Limits: 1 GiB of input; memory 256 MiB + 32 times the input, at most 4 GiB; ``cpu_seconds`` of CPU time.
    """
    if sys.platform == "win32":
        return Refused("no_limits", "")
    if isinstance(source, bytes):
        return _read(source, None, len(source), cpu_seconds)
    try:
        if not stat.S_ISREG(os.stat(source).st_mode):
            return Refused("unreadable", "not a regular file")
        with open(source, "rb") as file:
            return _read(None, file.fileno(), os.fstat(file.fileno()).st_size, cpu_seconds)
    except OSError as error:
        return Refused("unreadable", error.strerror or type(error).__name__)


def _read(data: bytes | None, fd: int | None, size: int, cpu_seconds: int) -> TorchSnapshot | Refused:
    if size == 0:
        return Refused("truncated", "the file is empty")
    if size > MAX_FILE:
        return Refused("too_large", f"{size} bytes, limit {MAX_FILE}")
    memory = min(256 * MIB + 32 * size, 4 << 30)
    # an honest dump spends more than one byte of file on every row and frame
    budget = max(200_000, 2 * size)
    command = [sys.executable, "-I", "-S", str(_CHILD), str(memory), str(cpu_seconds), str(budget)]
    try:
        # "stdin" and "input" exclude each other, even as None
        feed: dict[str, Any] = {"stdin": fd} if data is None else {"input": data}
        done = subprocess.run(
            command,
            **feed,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=cpu_seconds + 30,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Refused("time_limit", f"{cpu_seconds + 30} s")
    except OSError as error:
        return Refused("no_limits", f"no child process: {error.strerror or type(error).__name__}")
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Refused("time_limit", f"{cpu_seconds} s of CPU")
    if done.returncode != 0:
        return Refused("crashed", f"exit status {done.returncode}")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return Refused("crashed", "its answer was cut off")
    if "reason" in answer:
        return Refused(answer["reason"], answer["detail"])
    return _build(answer)


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _build(answer: dict[str, Any]) -> TorchSnapshot:
    strings: list[str] = answer["strings"]

    def text(index: int) -> str:
        return strings[index] if index >= 0 else "?"

    frames = [Frame(text(file), _known(line), text(name)) for file, line, name in answer["frames"]]
    stacks = tuple(tuple(frames[index] for index in stack) for stack in answer["stacks"])
    table: list[int] = answer["blocks"]
    blocks = [
        Block(address, size, requested if requested >= 0 else None, _STATES[state], stack)
        for address, size, requested, state, stack in zip(*[iter(table)] * 5, strict=True)
    ]
    segments = []
    at = 0
    for device, address, size, stream, size_class, pool, graph, expandable, count in zip(
        *[iter(answer["segments"])] * 9, strict=True
    ):
        segments.append(
            Segment(
                device=device,
                address=address,
                size=size,
                stream=_known(stream),
                size_class="small" if size_class == 0 else "large" if size_class == 1 else "unknown",
                pool_id=(pool, graph) if pool >= 0 else None,
                expandable=bool(expandable) if expandable >= 0 else None,
                blocks=tuple(blocks[at : at + count]),
            )
        )
        at += count
    histories, ooms = _histories(answer["traces"], strings)
    return TorchSnapshot(
        form=answer["form"],
        segments=tuple(segments),
        stacks=stacks,
        histories=histories,
        ooms=ooms,
        settings=answer["settings"],
        vendor=_vendor(strings, answer["settings"]),
        bad_rows=answer["bad_rows"],
    )


def _histories(table: list[int], strings: list[str]) -> tuple[tuple[History, ...], tuple[OutOfMemory, ...]]:
    columns = [table[start::8] for start in range(8)]
    histories, ooms = [], []
    start = 0
    device_column, action_column, addresses, sizes, _, times, free, stacks = columns
    for at, action in enumerate(action_column):
        if strings[action] == "oom":
            ooms.append(
                OutOfMemory(device_column[at], _known(sizes[at]), _known(free[at]), _known(times[at]), stacks[at])
            )
    while start < len(device_column):
        device = device_column[start]
        end = bisect_left(device_column, device + 1, lo=start)
        histories.append(
            History(
                device=device,
                actions=tuple(strings[action] for action in action_column[start:end]),
                addresses=tuple(addresses[start:end]),
                sizes=tuple(sizes[start:end]),
                times_us=tuple(times[start:end]),
            )
        )
        start = end
    return tuple(histories), tuple(ooms)


def _vendor(strings: Iterable[str], settings: dict[str, Any]) -> Literal["cuda", "rocm", "unknown"]:
    names = "\n".join([*strings, *settings])
    # torch built for ROCm keeps the CUDA names in Python and in the settings; only C++ frames and library paths differ
    if any(mark in names for mark in ("HIPCachingAllocator", "libc10_hip", "libtorch_hip", "PYTORCH_HIP_ALLOC_CONF")):
        return "rocm"
    if any(mark in names for mark in ("CUDACachingAllocator", "libc10_cuda", "libtorch_cuda")):
        return "cuda"
    return "unknown"


@frozen
class Group:
    """Blocks that can serve each other's requests: one device, pool, size class and stream. Bytes."""

    device: int
    pool_id: tuple[int, int] | None
    size_class: SizeClass
    stream: int | None
    segments: int
    reserved: int
    allocated: int
    awaiting_free: int
    free: int
    largest_free: int

    @property
    def external(self) -> float | None:
        """1 - largest free / total free; None when nothing is free."""
        return 1 - self.largest_free / self.free if self.free else None


@frozen
class Holder:
    """A call site whose blocks sit in segments with free bytes. ``pins`` counts a segment for each of its holders."""

    where: str
    blocks: int
    bytes: int
    pins: int


@frozen
class Analysis:
    """One device of a snapshot. Bytes; figures of fragmentation leave private pools out, which serve only their graphs.

    ``largest_fit`` is the largest request that certainly succeeds: the largest cached free block, or what the
    allocator can hand back to the device and get again in one piece, whichever is more. It is a lower bound: the dump
    does not say how much the device itself had free (``device_free`` does, when the history ends with a failed
    request).
    """

    device: int
    reserved: int
    allocated: int
    awaiting_free: int
    free: int
    requested: int | None
    external: float | None
    largest_free: int
    largest_fit: int
    returnable: int
    pinned_free: int
    inactive_split: int
    expandable_reserved: int
    private_reserved: int
    private_free: int
    device_free: int | None
    groups: tuple[Group, ...]
    holders: tuple[Holder, ...]

    @property
    def internal(self) -> int | None:
        """Bytes lost to rounding in blocks in use; None when requested sizes were not recorded."""
        return self.allocated - self.requested if self.requested is not None else None

    @property
    def internal_share(self) -> float | None:
        return self.internal / self.allocated if self.internal is not None and self.allocated else None


def analyse(snapshot: TorchSnapshot, device: int = 0, *, holders: int = 10) -> Analysis:
    """Sums one device up; ``holders`` limits the list of call sites. Raises KeyError when the device has no segment."""
    mine = [segment for segment in snapshot.segments if segment.device == device]
    if not mine and snapshot.segments:
        raise KeyError(f"device {device}; the snapshot has {', '.join(map(str, snapshot.devices))}")
    shared = [segment for segment in mine if not segment.private]
    private = [segment for segment in mine if segment.private]
    used = [block for segment in mine for block in segment.blocks if block.state == "allocated"]
    sizes = [block.requested for block in used]
    groups = _groups(mine, device)
    free = sum(segment.free for segment in shared)
    largest = max((group.largest_free for group in groups if group.pool_id in (None, DEFAULT_POOL)), default=0)
    returnable = sum(_returnable(segment) for segment in shared)
    pinned = [segment for segment in shared if segment.in_use]
    last_oom = next((oom for oom in reversed(snapshot.ooms) if oom.device == device), None)
    return Analysis(
        device=device,
        reserved=sum(segment.size for segment in mine),
        allocated=sum(block.size for block in used),
        awaiting_free=sum(group.awaiting_free for group in groups),
        free=free,
        requested=sum(size for size in sizes if size is not None) if None not in sizes else None,
        external=1 - largest / free if free else None,
        largest_free=largest,
        largest_fit=max(largest, returnable // DEVICE_PAGE * DEVICE_PAGE),
        returnable=returnable,
        pinned_free=sum(segment.free - _returnable(segment) for segment in pinned),
        inactive_split=sum(segment.free for segment in pinned),
        expandable_reserved=sum(segment.size for segment in mine if segment.expandable),
        private_reserved=sum(segment.size for segment in private),
        private_free=sum(segment.free for segment in private),
        device_free=last_oom.device_free if last_oom else None,
        groups=groups,
        holders=_holders(snapshot, pinned)[:holders],
    )


def _groups(segments: Sequence[Segment], device: int) -> tuple[Group, ...]:
    split: dict[tuple[tuple[int, int] | None, SizeClass, int | None], list[Segment]] = defaultdict(list)
    for segment in segments:
        split[segment.pool_id, segment.size_class, segment.stream].append(segment)
    groups = []
    for (pool_id, size_class, stream), members in split.items():
        totals = dict.fromkeys(_STATES, 0)
        largest = 0
        for segment in members:
            for block in segment.blocks:
                totals[block.state] += block.size
                if block.state == "inactive" and block.size > largest:
                    largest = block.size
        groups.append(
            Group(
                device,
                pool_id,
                size_class,
                stream,
                len(members),
                sum(segment.size for segment in members),
                totals["allocated"],
                totals["awaiting_free"],
                totals["inactive"],
                largest,
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.reserved))


def _returnable(segment: Segment) -> int:
    """Bytes the allocator can hand back: a segment with no block in use, or whole free pages of an expandable one."""
    if not segment.expandable:
        return segment.size if not segment.in_use else 0
    page = DEVICE_PAGE if segment.size_class == "small" else LARGE_PAGE
    total = 0
    for block in segment.blocks:
        if block.state == "inactive":
            first = -(-(block.address - segment.address) // page)
            last = (block.address + block.size - segment.address) // page
            total += max(0, last - first) * page
    return total


def _holders(snapshot: TorchSnapshot, pinned: Sequence[Segment]) -> tuple[Holder, ...]:
    sites = [_site(stack) for stack in snapshot.stacks]
    rows: dict[str, list[int]] = {}
    for segment in pinned:
        stuck = segment.free - _returnable(segment)
        if not stuck:
            continue
        seen: set[str] = set()
        for block in segment.blocks:
            if block.state == "inactive":
                continue
            where = sites[block.stack] if block.stack >= 0 else "not recorded"
            row = rows.setdefault(where, [0, 0, 0])
            row[0] += 1
            row[1] += block.size
            row[2] += stuck if where not in seen else 0
            seen.add(where)
    found = (Holder(where, blocks, size, pins) for where, (blocks, size, pins) in rows.items())
    return tuple(sorted(found, key=lambda holder: (-holder.pins, -holder.bytes, holder.where)))


def _site(stack: Sequence[Frame]) -> str:
    """The innermost frame outside torch and its C++ libraries; the innermost of all when there is none."""
    for frame in stack:
        if frame.file not in ("??", "?", "") and "/torch/" not in f"/{frame.file}" and ".cpp" not in frame.file:
            return str(frame)
    return str(stack[0]) if stack else "not recorded"


@frozen
class Moment:
    """The allocator at one entry of the history. Bytes; ``time_us`` None = no clock recorded.

    Free blocks are those between blocks in use, all pools together: the history does not name the pool before 2.13.
    """

    entry: int
    time_us: int | None
    reserved: int
    in_use: int
    largest_free: int

    @property
    def free(self) -> int:
        return self.reserved - self.in_use

    @property
    def external(self) -> float | None:
        return 1 - self.largest_free / self.free if self.free > 0 else None


@frozen
class Timeline:
    """Moments oldest first. ``mismatches`` counts entries that contradict the final state (a history with gaps).

    Sizes in use are requested sizes rounded up to 512 bytes for blocks that are gone by the end: an estimate.
    """

    device: int
    moments: tuple[Moment, ...]
    entries: int
    mismatches: int


def timeline(snapshot: TorchSnapshot, device: int = 0, *, points: int = 32) -> Timeline | None:
    """Fragmentation over time, by undoing the history from the final state backwards; None without a history.

    The history is a ring that may start long after the first allocation, so only its end is a known state.
    """
    history = next((item for item in snapshot.histories if item.device == device), None)
    if history is None or not history.actions:
        return None
    mine = [segment for segment in snapshot.segments if segment.device == device]
    ranges = _Ranges((segment.address, segment.address + segment.size, bool(segment.expandable)) for segment in mine)
    in_use = {block.address: block.size for segment in mine for block in segment.blocks if block.state != "inactive"}
    count = len(history.actions)
    marks = {round(step * count / max(points, 1)) for step in range(points + 1)}
    moments = []
    mismatches = 0
    for entry in range(count, -1, -1):
        if entry in marks:
            time = history.times_us[min(entry, count - 1)]
            moments.append(_moment(entry, _known(time), ranges, in_use))
        if entry == 0:
            break
        action, address, size = (
            history.actions[entry - 1],
            history.addresses[entry - 1],
            history.sizes[entry - 1],
        )
        if address < 0 or size < 0:
            mismatches += action in _UNDONE
        elif action == "alloc":
            mismatches += in_use.pop(address, None) is None
        elif action == "free_completed":
            mismatches += address in in_use
            in_use[address] = -(-size // ROUND) * ROUND
        elif action in ("segment_alloc", "segment_map"):
            mismatches += not ranges.remove(address, address + size)
        elif action in ("segment_free", "segment_unmap"):
            ranges.add(address, address + size, action == "segment_unmap")
    return Timeline(device, tuple(reversed(moments)), count, mismatches)


class _Ranges:
    """Sorted address ranges of the device memory held; only ranges of expandable segments join."""

    def __init__(self, ranges: Iterable[tuple[int, int, bool]]) -> None:
        self.rows = sorted(ranges)

    def add(self, start: int, end: int, joins: bool) -> None:
        at = bisect_left(self.rows, (start, end, joins))
        if joins and at < len(self.rows) and self.rows[at][0] == end and self.rows[at][2]:
            end = self.rows.pop(at)[1]
        if joins and at > 0 and self.rows[at - 1][1] == start and self.rows[at - 1][2]:
            at -= 1
            start = self.rows.pop(at)[0]
        self.rows.insert(at, (start, end, joins))

    def remove(self, start: int, end: int) -> bool:
        at = bisect_left(self.rows, (start + 1,)) - 1
        if at < 0 or self.rows[at][1] < end:
            return False
        low, high, joins = self.rows.pop(at)
        rest = [(low, start, joins)] if low < start else []
        rest += [(end, high, joins)] if end < high else []
        self.rows[at:at] = rest
        return True


def _moment(entry: int, time_us: int | None, ranges: _Ranges, in_use: dict[int, int]) -> Moment:
    blocks = sorted(in_use.items())
    largest = reserved = used = at = 0
    for start, end, _ in ranges.rows:
        reserved += end - start
        cursor = start
        while at < len(blocks) and blocks[at][0] < start:
            at += 1
        while at < len(blocks) and blocks[at][0] < end:
            address, size = blocks[at]
            largest = max(largest, address - cursor)
            cursor = max(cursor, min(end, address + size))
            used += size
            at += 1
        largest = max(largest, end - cursor)
    return Moment(entry, time_us, reserved, min(used, reserved), largest)


def render_map(snapshot: TorchSnapshot, width: int = 100, *, device: int = 0, rows: int = 24) -> str:
    """Segments as lines of text: ``#`` in use, ``~`` waits for another stream, ``.`` free, ``+`` partly in use.

    Segments with the most free bytes beside blocks in use come first, because those cannot be given back. ``width``
    is the line length (at least 60), ``rows`` the number of segments shown; the rest is counted in the last line.
    """
    mine = [segment for segment in snapshot.segments if segment.device == device]
    mine.sort(key=lambda segment: (-(segment.free - _returnable(segment)), -segment.size, segment.address))
    cells = max(width, 60) - 45
    lines = [
        f"{'pool':<12} {'class':<7} {'stream':>6} {'MiB':>8} {'free':>5}  map (# in use, ~ waiting, + partly, . free)"
    ]
    for segment in mine[:rows]:
        pool = "?" if segment.pool_id is None else "default" if not segment.private else f"private {segment.pool_id[1]}"
        share = segment.free / segment.size if segment.size else 0.0
        stream = "?" if segment.stream is None else str(segment.stream)[-6:]
        lines.append(
            f"{pool[:12]:<12} {segment.size_class + ('*' if segment.expandable else ''):<7.7} {stream:>6} "
            f"{segment.size / MIB:>8.1f} {share:>5.0%}  {_bar(segment, cells)}"
        )
    if len(mine) > rows:
        rest = mine[rows:]
        total = sum(segment.size for segment in rest) / MIB
        free = sum(segment.free for segment in rest) / MIB
        lines.append(f"and {len(rest)} more segments, {total:.1f} MiB, {free:.1f} MiB of them free")
    if any(segment.expandable for segment in mine[:rows]):
        lines.append("* expandable segment: whole free pages of it can be given back")
    return "\n".join(lines)


def _bar(segment: Segment, cells: int) -> str:
    if not segment.size:
        return ""
    totals = [[0, 0] for _ in range(cells)]
    for block in segment.blocks:
        if block.state == "inactive":
            continue
        kind = 0 if block.state == "allocated" else 1
        start, end = block.address - segment.address, block.address - segment.address + block.size
        first, last = start * cells // segment.size, -(-end * cells // segment.size)
        for cell in range(max(0, first), min(cells, last)):
            low, high = cell * segment.size / cells, (cell + 1) * segment.size / cells
            totals[cell][kind] += round(min(high, end) - max(low, start))
    full = segment.size / cells
    marks = []
    for used, waiting in totals:
        if used + waiting <= 0:
            marks.append(".")
        elif used + waiting < 0.999 * full - 1:
            marks.append("+")
        else:
            marks.append("#" if used >= waiting else "~")
    return "".join(marks)
