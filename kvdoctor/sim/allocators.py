"""Allocator models: what the same requests cost under paging, tiered pools, first fit, best fit and buddy.

All sizes are bytes. A model hands out :class:`Grant` values and takes them back; it never loops until memory appears: a
request that does not fit is answered with None at once. Three figures are kept apart at any moment:

* internal waste: bytes granted beyond what was asked (rounding to blocks);
* external: ``1 - largest request that would succeed / free bytes``;
* a *false* failure: a request refused although at least its size was free, which is what users call
  "60 % used and still out of memory".

The tier rules come in two forms. ``published``: the smallest single tier that holds the request, else several of the
largest (400 MiB takes 1 x 1024 MiB, 61 % waste). ``corrected``: the tier of least waste, several blocks of a smaller
tier allowed (400 MiB takes 7 x 64 MiB, 11 %). Both account granted bytes, return a block to the tier it came from, and
refuse what exceeds the capacity.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from kvdoctor.frozen import frozen

MIB: Final = 1 << 20
TIERS_MIB: Final = (64, 256, 1024)
TIERS: Final = tuple(size * MIB for size in TIERS_MIB)
PREALLOCATE: Final = (10, 5, 2)
BLOCK_SIZES: Final = (8, 16, 32, 64, 128, 256)
"""Tokens per block of the sweep."""
TABLE_ENTRY: Final = 4
"""Bytes of one block-table entry (a 32-bit block number)."""

Kind = Literal["paged", "tiered", "first_fit", "best_fit", "buddy"]


@frozen
class Grant:
    """Memory handed out: ``granted >= requested`` bytes. ``parts`` is the model's own description of the blocks."""

    ident: int
    requested: int
    granted: int
    parts: tuple[tuple[int, int], ...]
    """(tier or offset, count or size) pairs; a tiered block carries its tier, so it cannot go back to another."""


class Allocator(Protocol):
    """One pool of ``capacity`` bytes."""

    @property
    def capacity(self) -> int: ...

    @property
    def granted(self) -> int:
        """Bytes handed out, rounding included."""

    def allocate(self, size: int) -> Grant | None:
        """Memory for ``size`` bytes (>= 1), or None when it does not fit now. Raises ValueError below 1."""

    def free(self, grant: Grant) -> None:
        """Takes a grant back. Raises KeyError when it is not outstanding (a second free)."""

    def largest_fit(self) -> int:
        """Bytes of the largest request that would succeed now."""

    def checkpoint(self) -> object:
        """The state, for :meth:`rollback`: later grants and releases can be undone together."""

    def rollback(self, state: object) -> None:
        """Back to a checkpoint of this pool; grants outstanding then are outstanding again."""


class _Pool:
    """Bookkeeping every model shares: outstanding grants and their bytes."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} B")
        self.capacity = capacity
        self.granted = 0
        self._next = 0
        self._live: dict[int, Grant] = {}

    def _give(self, requested: int, granted: int, parts: tuple[tuple[int, int], ...]) -> Grant:
        grant = Grant(self._next, requested, granted, parts)
        self._next += 1
        self._live[grant.ident] = grant
        self.granted += granted
        return grant

    def _take(self, grant: Grant) -> None:
        if self._live.get(grant.ident) is not grant:
            raise KeyError(f"grant {grant.ident} is not outstanding")
        del self._live[grant.ident]
        self.granted -= grant.granted

    def checkpoint(self) -> object:
        return {name: _copied(value) for name, value in vars(self).items()}

    def rollback(self, state: object) -> None:
        if not isinstance(state, dict):
            raise TypeError("not a checkpoint")
        vars(self).update({name: _copied(value) for name, value in state.items()})

    @staticmethod
    def _check(size: int) -> None:
        if size < 1:
            raise ValueError(f"a request of {size} B")


def _copied(value: object) -> object:
    """One level of copy, two for a dictionary of lists; grants are immutable and stay the same objects."""
    if isinstance(value, dict):
        return {key: list(item) if isinstance(item, list) else item for key, item in value.items()}
    return value.copy() if isinstance(value, (list, set)) else value


class Paged(_Pool):
    """Equal blocks, any of them serves any request: no external fragmentation, less than one block lost per request."""

    def __init__(self, capacity: int, block: int) -> None:
        if block < 1:
            raise ValueError(f"a block of {block} B")
        super().__init__(capacity - capacity % block)
        self.block = block
        self._free_blocks = capacity // block

    def allocate(self, size: int) -> Grant | None:
        self._check(size)
        count = -(-size // self.block)
        if count > self._free_blocks:
            return None
        self._free_blocks -= count
        return self._give(size, count * self.block, ((0, count),))

    def free(self, grant: Grant) -> None:
        self._take(grant)
        self._free_blocks += grant.parts[0][1]

    def largest_fit(self) -> int:
        return self._free_blocks * self.block


class Tiered(_Pool):
    """Byte pools of a few block sizes. Free blocks stay in their tier; a tier grows while the capacity has room left.

    What is free in another tier cannot serve a request of this one: that is this model's external fragmentation. When
    the best tier is used up and cannot grow, the corrected rules take the next best: fewer refusals, more waste.
    """

    def __init__(
        self,
        capacity: int,
        tiers: Sequence[int] = TIERS,
        preallocate: Sequence[int] = PREALLOCATE,
        rules: Literal["published", "corrected"] = "corrected",
    ) -> None:
        super().__init__(capacity)
        if len(tiers) != len(preallocate) or list(tiers) != sorted(set(tiers)) or not tiers or tiers[0] < 1:
            raise ValueError("tiers must rise, one preallocation each")
        held = sum(size * count for size, count in zip(tiers, preallocate, strict=True))
        if held > capacity:
            raise ValueError(f"preallocation of {held} B exceeds the capacity of {capacity} B")
        self.tiers = tuple(tiers)
        self.rules = rules
        self.held = held
        self.idle = list(preallocate)

    def choices(self, size: int) -> list[tuple[int, int]]:
        """(tier index, blocks) in the order the rules try them."""
        self._check(size)
        counts = [(index, -(-size // tier)) for index, tier in enumerate(self.tiers)]
        if self.rules == "published":
            single = [choice for choice in counts if choice[1] == 1]
            return single[:1] or counts[-1:]
        return sorted(counts, key=lambda choice: (choice[1] * self.tiers[choice[0]], choice[1]))

    def allocate(self, size: int) -> Grant | None:
        for index, count in self.choices(size):
            tier = self.tiers[index]
            missing = max(0, count - self.idle[index])
            if self.held + missing * tier > self.capacity:
                continue
            self.held += missing * tier
            self.idle[index] += missing - count
            return self._give(size, count * tier, ((index, count),))
        return None

    def free(self, grant: Grant) -> None:
        self._take(grant)
        for index, count in grant.parts:
            self.idle[index] += count

    def largest_fit(self) -> int:
        room = self.capacity - self.held
        fits = [tier * (idle + room // tier) for tier, idle in zip(self.tiers, self.idle, strict=True)]
        if self.rules == "corrected":
            return max(fits)
        # a single block of any tier, or several of the largest
        singles = [tier for tier, fit in zip(self.tiers, fits, strict=True) if fit >= tier]
        return max([fits[-1], *singles])


class Contiguous(_Pool):
    """One address range, requests rounded to ``align``: first fit or best fit with joining of free neighbours."""

    def __init__(self, capacity: int, fit: Literal["first", "best"], align: int = 512) -> None:
        if align < 1:
            raise ValueError(f"alignment of {align} B")
        super().__init__(capacity - capacity % align)
        self.fit = fit
        self.align = align
        self._starts = [0]
        self._holes = {0: self.capacity}
        self._by_size = [(self.capacity, 0)]

    def allocate(self, size: int) -> Grant | None:
        self._check(size)
        need = -(-size // self.align) * self.align
        if self.fit == "best":
            at = bisect_left(self._by_size, (need, 0))
            start = self._by_size[at][1] if at < len(self._by_size) else None
        else:
            start = next((start for start in self._starts if self._holes[start] >= need), None)
        if start is None:
            return None
        length = self._drop(start)
        if length > need:
            self._add(start + need, length - need)
        return self._give(size, need, ((start, need),))

    def free(self, grant: Grant) -> None:
        self._take(grant)
        start, length = grant.parts[0]
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + length:
            length += self._drop(self._starts[at])
        if at > 0 and self._starts[at - 1] + self._holes[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            length += self._drop(start)
        self._add(start, length)

    def largest_fit(self) -> int:
        return self._by_size[-1][0] if self._by_size else 0

    def _add(self, start: int, length: int) -> None:
        insort(self._starts, start)
        self._holes[start] = length
        insort(self._by_size, (length, start))

    def _drop(self, start: int) -> int:
        length = self._holes.pop(start)
        self._starts.pop(bisect_left(self._starts, start))
        self._by_size.pop(bisect_left(self._by_size, (length, start)))
        return length


class Buddy(_Pool):
    """Power-of-two blocks that split in halves and join again; the capacity is a row of such blocks, largest first."""

    def __init__(self, capacity: int, smallest: int = 2 * MIB) -> None:
        if smallest < 1 or smallest & (smallest - 1):
            raise ValueError(f"smallest block of {smallest} B is not a power of two")
        super().__init__(capacity - capacity % smallest)
        self.smallest = smallest
        self._holes: dict[int, list[int]] = {}
        self._free: set[tuple[int, int]] = set()
        self._roots: set[tuple[int, int]] = set()
        start = 0
        for bit in range(self.capacity.bit_length() - 1, -1, -1):
            if self.capacity >> bit & 1:
                self._roots.add((start, 1 << bit))
                self._add(start, 1 << bit)
                start += 1 << bit

    def allocate(self, size: int) -> Grant | None:
        self._check(size)
        need = max(self.smallest, 1 << (size - 1).bit_length())
        length = min((length for length, holes in self._holes.items() if holes and length >= need), default=None)
        if length is None:
            return None
        start = heapq.heappop(self._holes[length])
        self._free.discard((start, length))
        while length > need:
            length //= 2
            self._add(start + length, length)
        return self._give(size, need, ((start, need),))

    def free(self, grant: Grant) -> None:
        self._take(grant)
        start, length = grant.parts[0]
        while (start, length) not in self._roots:
            root = next(low for low, size in self._roots if low <= start < low + size)
            other = root + ((start - root) ^ length)
            if (other, length) not in self._free:
                break
            self._free.discard((other, length))
            self._holes[length].remove(other)
            heapq.heapify(self._holes[length])
            start = min(start, other)
            length *= 2
        self._add(start, length)

    def largest_fit(self) -> int:
        return max((length for length, holes in self._holes.items() if holes), default=0)

    def _add(self, start: int, length: int) -> None:
        heapq.heappush(self._holes.setdefault(length, []), start)
        self._free.add((start, length))


def make(
    kind: Kind,
    capacity: int,
    *,
    block: int = 16 * 131_072,
    tiers_mib: Sequence[int] = TIERS_MIB,
    preallocate: Sequence[int] = PREALLOCATE,
    rules: Literal["published", "corrected"] = "corrected",
) -> Allocator:
    """The model of that name; keyword names follow the policy keys ``pool.block_tokens``, ``pool.tiers_mib``,
    ``pool.preallocate`` (``block`` is bytes: tokens per block x bytes per token). Raises ValueError for a bad size."""
    makers: Mapping[Kind, Callable[[], Allocator]] = {
        "paged": lambda: Paged(capacity, block),
        "tiered": lambda: Tiered(capacity, tuple(tier * MIB for tier in tiers_mib), preallocate, rules),
        "first_fit": lambda: Contiguous(capacity, "first"),
        "best_fit": lambda: Contiguous(capacity, "best"),
        "buddy": lambda: Buddy(capacity),
    }
    return makers[kind]()


@frozen
class Event:
    """``size`` bytes asked by ``ident`` at time ``t`` (seconds), or given back when ``size`` is 0."""

    t: float
    ident: Hashable
    size: int


@frozen
class Moment:
    """A pool at one time. ``external`` None = nothing is free; ``internal`` None = nothing is granted."""

    t: float
    requested: int
    granted: int
    free: int
    largest_fit: int

    @property
    def internal(self) -> float | None:
        """Granted but not asked, as a share of granted."""
        return (self.granted - self.requested) / self.granted if self.granted else None

    @property
    def external(self) -> float | None:
        return 1 - self.largest_fit / self.free if self.free else None


@frozen
class FalseFailure:
    """A request refused while at least its size was free."""

    t: float
    ident: Hashable
    size: int
    free: int
    largest_fit: int
    used_share: float


@frozen
class Replay:
    """What one model made of one list of events. ``refused`` counts all refusals, ``false_refused`` the false ones."""

    capacity: int
    asked: int
    refused: int
    false_refused: int
    first_false: FalseFailure | None
    peak_granted: int
    moments: tuple[Moment, ...]

    @property
    def internal_mean(self) -> float | None:
        """Mean share of granted bytes nobody asked for, over the moments with something granted."""
        shares = [moment.internal for moment in self.moments if moment.internal is not None]
        return sum(shares) / len(shares) if shares else None

    @property
    def external_max(self) -> float | None:
        shares = [moment.external for moment in self.moments if moment.external is not None]
        return max(shares, default=None)


def sequence_events(requests: Iterable[tuple[float, int, float]], bytes_per_token: int) -> tuple[Event, ...]:
    """Events of (arrival s, tokens, duration s) requests whose cache is one piece per sequence, asked for at arrival."""
    events = []
    for ident, (arrival, tokens, duration) in enumerate(requests):
        events.append(Event(arrival, ident, tokens * bytes_per_token))
        events.append(Event(arrival + duration, ident, 0))
    return tuple(events)


def replay(pool: Allocator, events: Iterable[Event], *, every: int = 1) -> Replay:
    """Runs events in order of time; a refused request is dropped and so is its release. One moment per ``every``
    events.

    Raises ValueError when an identity asks twice without giving back.
    """
    live: dict[Hashable, Grant] = {}
    moments: list[Moment] = []
    asked = refused = false_refused = requested = peak = 0
    first: FalseFailure | None = None
    for number, event in enumerate(sorted(events, key=lambda event: event.t)):
        if event.size:
            if event.ident in live:
                raise ValueError(f"{event.ident!r} asks again before it gave back")
            asked += 1
            grant = pool.allocate(event.size)
            if grant is None:
                refused += 1
                free = pool.capacity - pool.granted
                if free >= event.size:
                    false_refused += 1
                    if first is None:
                        used = pool.granted / pool.capacity
                        first = FalseFailure(event.t, event.ident, event.size, free, pool.largest_fit(), used)
            else:
                live[event.ident] = grant
                requested += event.size
                peak = max(peak, pool.granted)
        elif event.ident in live:
            grant = live.pop(event.ident)
            requested -= grant.requested
            pool.free(grant)
        if number % every == 0:
            free = pool.capacity - pool.granted
            moments.append(Moment(event.t, requested, pool.granted, free, pool.largest_fit()))
    return Replay(pool.capacity, asked, refused, false_refused, first, peak, tuple(moments))


@frozen
class BlockSize:
    """One row of the block-size sweep.

    ``waste_share``: unfilled part of the last blocks / bytes granted. ``table_bytes``: block-table entries of all
    sequences (4 B each). ``blocks_mean`` per sequence: also the number of pieces a transfer to another tier is cut
    into.
    """

    block_tokens: int
    waste_share: float
    waste_tokens_mean: float
    blocks_mean: float
    table_bytes: int


def sweep_block_sizes(lengths: Sequence[int], block_sizes: Sequence[int] = BLOCK_SIZES) -> tuple[BlockSize, ...]:
    """Waste against table size for sequences of these lengths (tokens, >= 1). Raises ValueError without lengths."""
    if not lengths or min(lengths) < 1:
        raise ValueError("sequence lengths in tokens, at least one, each >= 1")
    total = sum(lengths)
    rows = []
    for tokens in block_sizes:
        blocks = sum(-(-length // tokens) for length in lengths)
        waste = blocks * tokens - total
        rows.append(
            BlockSize(
                tokens, waste / (blocks * tokens), waste / len(lengths), blocks / len(lengths), blocks * TABLE_ENTRY
            )
        )
    return tuple(rows)


@dataclass(slots=True)
class _Entry:
    grant: Grant
    last_used: float
    priority: int
    pins: int = 0


@frozen
class CacheStats:
    """Counters since the start; ``hit_share`` None before the first lookup."""

    hits: int
    misses: int
    evicted: int
    expired: int
    refused: int
    entries: int
    granted: int
    capacity: int

    @property
    def hit_share(self) -> float | None:
        looked = self.hits + self.misses
        return self.hits / looked if looked else None


@dataclass(slots=True)
class IdleCache:
    """Reusable entries kept after their request ended, on top of a pool.

    The victim is the least recently used entry of the least important priority (1 = most important, as for requests).
    Pinned entries (in use) are never evicted and never expire. ``ttl_s`` None = entries do not expire. An entry larger
    than the pool is refused at once, and nothing is lost for a request that does not fit in the end.
    """

    pool: Allocator
    ttl_s: float | None = None
    _entries: dict[Hashable, _Entry] = field(default_factory=dict)
    _hits: int = 0
    _misses: int = 0
    _evicted: int = 0
    _expired: int = 0
    _refused: int = 0

    def put(self, key: Hashable, size: int, now: float, *, priority: int = 3) -> bool:
        """Keeps ``size`` bytes under ``key``; a new size for a known key replaces it. False when it does not fit.

        A known key that is pinned keeps its memory: False when its size changes.
        """
        self.expire(now)
        known = self._entries.get(key)
        if known is not None:
            if known.grant.requested == size:
                known.last_used, known.priority = now, priority
                return True
            if known.pins:
                self._refused += 1
                return False
        grant = self._room(size, key)
        if grant is None:
            self._refused += 1
            return False
        self._entries[key] = _Entry(grant, now, priority)
        return True

    def get(self, key: Hashable, now: float) -> bool:
        """Whether the key is held; a hit makes it the most recently used."""
        self.expire(now)
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return False
        self._hits += 1
        entry.last_used = now
        return True

    def pin(self, key: Hashable) -> None:
        """Marks the entry as in use, once more. Raises KeyError when it is not held."""
        self._entries[key].pins += 1

    def unpin(self, key: Hashable) -> None:
        """Undoes one pin. Raises KeyError when it is not held, ValueError when it is not pinned."""
        entry = self._entries[key]
        if not entry.pins:
            raise ValueError(f"{key!r} is not pinned")
        entry.pins -= 1

    def expire(self, now: float) -> int:
        """Drops idle entries unused for longer than the time to live; returns how many."""
        if self.ttl_s is None:
            return 0
        old = [key for key, entry in self._entries.items() if not entry.pins and now - entry.last_used > self.ttl_s]
        for key in old:
            self.pool.free(self._entries.pop(key).grant)
        self._expired += len(old)
        return len(old)

    def warm_up(self, entries: Iterable[tuple[Hashable, int]], now: float, *, priority: int = 3) -> int:
        """Fills the pool with (key, size) pairs, best first, without evicting anything; returns how many were taken."""
        taken = 0
        for key, size in entries:
            if key in self._entries:
                continue
            grant = self.pool.allocate(size)
            if grant is not None:
                self._entries[key] = _Entry(grant, now, priority)
                taken += 1
        return taken

    def stats(self) -> CacheStats:
        return CacheStats(
            self._hits,
            self._misses,
            self._evicted,
            self._expired,
            self._refused,
            len(self._entries),
            self.pool.granted,
            self.pool.capacity,
        )

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def _room(self, size: int, key: Hashable) -> Grant | None:
        """Evicts idle entries until ``size`` fits; leaves everything as it was when it cannot."""
        before = self.pool.checkpoint()
        removed: dict[Hashable, _Entry] = {}
        if key in self._entries:
            removed[key] = self._entries.pop(key)
            self.pool.free(removed[key].grant)
        grant = self.pool.allocate(size)
        if grant is None and size <= self.pool.capacity:
            idle = [name for name, entry in self._entries.items() if not entry.pins]
            idle.sort(key=lambda name: (-self._entries[name].priority, self._entries[name].last_used))
            for victim in idle:
                removed[victim] = self._entries.pop(victim)
                self.pool.free(removed[victim].grant)
                grant = self.pool.allocate(size)
                if grant is not None:
                    break
        if grant is None:
            self.pool.rollback(before)
            self._entries.update(removed)
            return None
        self._evicted += len(removed.keys() - {key})
        return grant
