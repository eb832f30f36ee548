"""A device without hardware: physical pages, virtual mapping, other processes, and a caching allocator like torch's.

For tests and for trying the probe: nothing in here touches a GPU. Pages are 2 MiB; with ``mapped`` any free pages
make one allocation, as on real devices; without it an allocation needs neighbouring pages, which real devices do not
require - so the probe's "no gap" can be shown to be a measurement and not a constant.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvdoctor.probe.driver import MIB, PAGE, CacheState, ComputeMode, NoDevice, ProbeError, Survey, Tenant

ROUND: Final = 512
SMALL_REQUEST: Final = MIB
SMALL_SEGMENT: Final = 2 * MIB
LARGE_SEGMENT: Final = 20 * MIB
LARGE_REQUEST: Final = 10 * MIB


@dataclass(slots=True)
class Neighbour:
    """Another process: pages it holds, its age, and whether the driver tells its memory."""

    pid: int
    pages: set[int]
    age_s: float | None = 3600.0
    told: bool = True


@dataclass
class SimulatedDevice:
    """A device of ``pages`` pages. ``on_call`` runs before every call with the call's number: tests move neighbours
    in it.

    ``latency_s`` is added to the clock by each call that reaches the device, ``per_page_s`` per page of an allocation.
    """

    pages: int
    neighbours: list[Neighbour] = field(default_factory=list)
    mapped: bool = True
    context_pages: int = 150
    mps: bool = False
    compute_mode: ComputeMode = "default"
    mig: bool = False
    absent: NoDevice | None = None
    not_installed: str | None = None
    listed: bool = True
    on_call: Callable[[SimulatedDevice, int], None] | None = None
    latency_s: float = 2e-5
    per_page_s: float = 1e-7
    calls: int = 0
    clock: float = 0.0
    opened: bool = False
    lost: bool = False

    def __post_init__(self) -> None:
        self._next = 1
        self._own: dict[int, list[int]] = {}
        self._context: list[int] = []
        self._cache = _Cache(self, "", self.pages * PAGE)

    # what the tests look at

    def free_pages(self) -> list[int]:
        taken = {page for neighbour in self.neighbours for page in neighbour.pages}
        taken.update(self._context)
        for pages in self._own.values():
            taken.update(pages)
        return [page for page in range(self.pages) if page not in taken]

    def free_count(self) -> int:
        held = sum(len(neighbour.pages) for neighbour in self.neighbours)
        return self.pages - held - len(self._context) - self.own_pages()

    def own_pages(self) -> int:
        """Pages the probe holds beside its context."""
        return sum(len(pages) for pages in self._own.values())

    def grow(self, pid: int, pages: int) -> None:
        """A neighbour takes pages (negative: gives back)."""
        neighbour = next(item for item in self.neighbours if item.pid == pid)
        if pages >= 0:
            neighbour.pages.update(self.free_pages()[:pages])
        else:
            for page in sorted(neighbour.pages)[pages:]:
                neighbour.pages.discard(page)

    # the driver interface

    def missing(self) -> str | None:
        return self.not_installed

    def survey(self) -> Survey | NoDevice:
        try:
            self._called()
        except ProbeError as error:
            # NVML is asked here, and a lost device answers it with an error, not torch
            return NoDevice(f"device cannot be read: {error}", "nvidia-smi -L lists what there is")
        if self.absent is not None:
            return self.absent
        return Survey(
            name="simulated device",
            uuid="MIG-00000000-simulated" if self.mig else "GPU-00000000-simulated",
            mig=self.mig,
            total=self.pages * PAGE,
            free=self.free_count() * PAGE,
            tenants=self._tenants(),
            mps=self.mps,
            compute_mode=self.compute_mode,
        )

    def open(self) -> None:
        self._called()
        free = self.free_pages()
        if len(free) < self.context_pages:
            raise ProbeError("no CUDA context: out of memory")
        self._context = free[: self.context_pages]
        self.opened = True

    def free_memory(self) -> int:
        self._called()
        return self.free_count() * PAGE

    def tenants(self) -> tuple[Tenant, ...] | None:
        self._called()
        return self._tenants()

    def _tenants(self) -> tuple[Tenant, ...] | None:
        if not self.listed:
            return None
        return tuple(
            Tenant(item.pid, len(item.pages) * PAGE if item.told else None, item.age_s) for item in self.neighbours
        )

    def allocate(self, size: int) -> int | None:
        self._called()
        return self.map_pages(-(-size // PAGE))

    def release(self, handle: int) -> None:
        self._called()
        del self._own[handle]

    def configure(self, settings: str, cap: int) -> None:
        self._called()
        self._cache = _Cache(self, settings, cap)

    def cache_allocate(self, size: int) -> int | None:
        self._called()
        return self._cache.allocate(size)

    def cache_release(self, handle: int) -> None:
        self._called()
        self._cache.release(handle)

    def cache_reserved(self) -> int:
        self._called()
        return self._cache.reserved

    def cache_state(self) -> CacheState:
        self._called()
        return self._cache.state()

    def trim(self) -> None:
        self._called()
        self._cache.trim()

    def close(self) -> None:
        self._own.clear()
        self._cache = _Cache(self, "", self.pages * PAGE)

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def _called(self) -> None:
        self.calls += 1
        self.clock += self.latency_s
        if self.on_call is not None:
            self.on_call(self, self.calls)
        if self.lost:
            raise ProbeError("the device stopped answering: unspecified launch failure")

    # pages

    def map_pages(self, count: int) -> int | None:
        """A handle over ``count`` pages, or None when they are not there (or not adjacent, without mapping)."""
        free = self.free_pages()
        self.clock += count * self.per_page_s
        chosen = free[:count] if self.mapped else _adjacent(free, count)
        if len(chosen) < count:
            return None
        handle = self._next
        self._next += 1
        self._own[handle] = chosen
        return handle

    def unmap(self, handle: int) -> None:
        del self._own[handle]


def _adjacent(free: list[int], count: int) -> list[int]:
    start = 0
    for at in range(len(free)):
        if at and free[at] != free[at - 1] + 1:
            start = at
        if at - start + 1 == count:
            return free[start : at + 1]
    return []


@dataclass(slots=True)
class _Segment:
    """Address range of one device allocation; ``handles`` are its pages (one per chunk when it can grow)."""

    start: int
    size: int
    small: bool
    handles: dict[int, int]
    """Offset of each mapped chunk to its device handle; a fixed segment has one chunk at 0."""


class _Cache:
    """The rules of torch's caching allocator: size classes, best fit, splitting, joining, segments, expandable
    segments.

    Source of the constants and rules: c10/cuda/CUDACachingAllocator (2 MiB and 20 MiB segments, 1 MiB and 10 MiB
    limits).
    """

    def __init__(self, device: SimulatedDevice, settings: str, cap: int) -> None:
        pairs = dict(part.split(":", 1) for part in settings.replace(" ", "").split(",") if part)
        self.device = device
        self.cap = cap
        self.expandable = pairs.get("expandable_segments", "False").lower() == "true"
        split = pairs.get("max_split_size_mb")
        self.max_split = int(split) * MIB if split is not None else None
        self.reserved = 0
        self.allocated = 0
        self._segments: dict[int, _Segment] = {}
        self._used: dict[int, int] = {}
        self._free: dict[int, int] = {}
        self._by_size: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._ends: dict[int, int] = {}
        self._owner: dict[int, int] = {}
        self._virtual = 1 << 40

    def allocate(self, size: int) -> int | None:
        need = max(ROUND, -(-size // ROUND) * ROUND)
        small = need <= SMALL_REQUEST
        start = self._fitting(need, small)
        if start is None:
            start = self._grow(need, small)
        if start is None:
            self.trim()
            start = self._grow(need, small)
        if start is None:
            return None
        length = self._pop(start)
        owner = self._owner.pop(start)
        rest = length - need
        if not self.expandable and self.max_split is not None and not small and need >= self.max_split:
            rest = 0
        if rest >= (ROUND if small or self.expandable else MIB + 1):
            self._push(start + need, rest, owner)
        else:
            need = length
        self._used[start] = need
        self._owner[start] = owner
        self.allocated += need
        return start

    def release(self, start: int) -> None:
        length = self._used.pop(start)
        owner = self._owner.pop(start)
        self.allocated -= length
        after = start + length
        if after in self._free and self._owner[after] == owner:
            length += self._pop(after)
            del self._owner[after]
        before = self._ends.get(start)
        if before is not None and self._owner[before] == owner:
            length += self._pop(before)
            del self._owner[before]
            start = before
        self._push(start, length, owner)

    def trim(self) -> None:
        """Wholly free segments go back to the device, and whole free chunks of expandable ones."""
        for start, length in list(self._free.items()):
            segment = self._segments[self._owner[start]]
            if not self.expandable:
                if length == segment.size:
                    self._pop(start)
                    del self._owner[start]
                    self.device.unmap(segment.handles[0])
                    del self._segments[segment.start]
                    self.reserved -= segment.size
                continue
            chunk = SMALL_SEGMENT if segment.small else LARGE_SEGMENT
            first = -(-(start - segment.start) // chunk) * chunk + segment.start
            last = (start + length - segment.start) // chunk * chunk + segment.start
            if first >= last:
                continue
            self._pop(start)
            owner = self._owner.pop(start)
            for offset in range(first - segment.start, last - segment.start, chunk):
                self.device.unmap(segment.handles.pop(offset))
            self.reserved -= last - first
            if first > start:
                self._push(start, first - start, owner)
            if start + length > last:
                self._push(last, start + length - last, owner)

    def state(self) -> CacheState:
        largest = max((rows[-1][0] for rows in self._by_size.values() if rows), default=0)
        returnable = split = 0
        for start, length in self._free.items():
            segment = self._segments[self._owner[start]]
            if self.expandable:
                chunk = SMALL_SEGMENT if segment.small else LARGE_SEGMENT
                first = -(-(start - segment.start) // chunk)
                returnable += max(0, (start + length - segment.start) // chunk - first) * chunk
            elif length == segment.size:
                returnable += length
            else:
                split += length
        return CacheState(self.reserved, self.allocated, largest, returnable, None if self.expandable else split)

    def _fitting(self, need: int, small: bool) -> int | None:
        rows = self._by_size[small]
        at = bisect_left(rows, (need, 0))
        if at == len(rows):
            return None
        if self.max_split is not None and not small and need < self.max_split <= rows[at][0]:
            return None
        return rows[at][1]

    def _grow(self, need: int, small: bool) -> int | None:
        """A new free block of at least ``need``; None when cap or device have no room."""
        if self.expandable:
            return self._extend(need, small)
        size = SMALL_SEGMENT if small else LARGE_SEGMENT if need < LARGE_REQUEST else -(-need // PAGE) * PAGE
        if self.reserved + size > self.cap:
            return None
        handle = self.device.map_pages(size // PAGE)
        if handle is None:
            return None
        start = self._virtual
        # a hole between ranges, so that neighbours of different segments never look joined
        self._virtual += size + PAGE
        self._segments[start] = _Segment(start, size, small, {0: handle})
        self.reserved += size
        self._push(start, size, start)
        return start

    def _extend(self, need: int, small: bool) -> int | None:
        segment = next((item for item in self._segments.values() if item.small == small), None)
        if segment is None:
            segment = _Segment(self._virtual, 0, small, {})
            self._segments[segment.start] = segment
            self._virtual += 1 << 45
        chunk = SMALL_SEGMENT if small else LARGE_SEGMENT
        end = segment.start + segment.size
        tail = self._ends.get(end)
        have = self._free[tail] if tail is not None else 0
        count = -(-(need - have) // chunk)
        if self.reserved + count * chunk > self.cap:
            return None
        handles: list[int] = []
        for _ in range(count):
            handle = self.device.map_pages(chunk // PAGE)
            if handle is None:
                for done in handles:
                    self.device.unmap(done)
                return None
            handles.append(handle)
        for number, handle in enumerate(handles):
            segment.handles[segment.size + number * chunk] = handle
        segment.size += count * chunk
        self.reserved += count * chunk
        start = end
        length = count * chunk
        if tail is not None:
            start = tail
            length += self._pop(tail)
            del self._owner[tail]
        self._push(start, length, segment.start)
        return start

    def _push(self, start: int, length: int, owner: int) -> None:
        self._free[start] = length
        self._ends[start + length] = start
        self._owner[start] = owner
        insort(self._by_size[self._segments[owner].small], (length, start))

    def _pop(self, start: int) -> int:
        length = self._free.pop(start)
        del self._ends[start + length]
        rows = self._by_size[self._segments[self._owner[start]].small]
        rows.pop(bisect_left(rows, (length, start)))
        return length
