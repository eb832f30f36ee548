"""The paged block pool: a count of free blocks and, in the order they will be taken, whose content they still hold.

Freed blocks go to the end of the free list, the tail of the sequence first, and keep their content until they are
taken again. A request that comes back in time finds its leading blocks and recomputes only the tail: that is what a
prefix cache gives a preempted request. Contiguous pools (tiers, first fit, buddy) are byte allocators of another kind
and live in their own module.
"""

from __future__ import annotations


class PagedPool:
    """Blocks of equal size. ``free`` counts the free ones; with ``caching`` freed content stays findable by its owner."""

    __slots__ = ("_count", "_head", "_owner", "_place", "blocks", "caching", "free")

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.blocks = blocks
        self.free = blocks
        self.caching = caching
        self._owner: list[int] = [-1]
        self._count: list[int] = [blocks]
        self._head = 0
        self._place: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks in use."""
        return self.blocks - self.free

    def take(self, count: int) -> None:
        """Take ``count`` blocks from the front of the free list; their content is gone. There must be as many free."""
        self.free -= count
        if not self.caching:
            return
        counts, head = self._count, self._head
        while count:
            here = counts[head]
            if here > count:
                counts[head] = here - count
                break
            count -= here
            counts[head] = 0
            owner = self._owner[head]
            if owner >= 0:
                del self._place[owner]
                self._owner[head] = -1
            if head + 1 == len(counts):
                break
            head += 1
        self._head = head
        if head > 4096:
            self._compact()

    def give(self, count: int, *, owner: int = -1, kept: int = 0) -> None:
        """Return ``count`` blocks; the leading ``kept`` of them hold findable content of ``owner``."""
        self.free += count
        if not self.caching:
            return
        if owner < 0:
            kept = 0
        self._append(-1, count - kept)
        if kept:
            if owner in self._place:
                self._owner[self._place[owner]] = -1
            self._append(owner, kept)
            self._place[owner] = len(self._count) - 1

    def found(self, owner: int) -> int:
        """Leading blocks of ``owner`` that are still findable."""
        place = self._place.get(owner)
        return 0 if place is None else self._count[place]

    def reclaim(self, owner: int, count: int) -> None:
        """Take the leading ``count`` blocks of ``owner`` back with their content; the rest of it is forgotten."""
        place = self._place.pop(owner)
        self._count[place] -= count
        self._owner[place] = -1
        self.free -= count

    def forget(self, owner: int) -> None:
        """Make the content of ``owner`` unfindable; its blocks stay free."""
        place = self._place.pop(owner, None)
        if place is not None:
            self._owner[place] = -1

    def _append(self, owner: int, count: int) -> None:
        if not count:
            return
        if owner < 0 and self._owner[-1] < 0:
            self._count[-1] += count
        else:
            self._owner.append(owner)
            self._count.append(count)

    def _compact(self) -> None:
        head = self._head
        del self._owner[:head]
        del self._count[:head]
        self._place = {owner: place - head for owner, place in self._place.items()}
        self._head = 0
