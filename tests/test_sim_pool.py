"""The paged pool against a list of real blocks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.sim.pool import PagedPool


class ListPool:
    """The same free list, block by block: (owner, position in the owner's content) or None."""

    def __init__(self, blocks: int) -> None:
        self.free: list[tuple[int, int] | None] = [None] * blocks

    def take(self, count: int) -> None:
        del self.free[:count]

    def give(self, count: int, owner: int, kept: int) -> None:
        if kept:
            self.free = [None if one is not None and one[0] == owner else one for one in self.free]
        self.free += [None] * (count - kept) + [(owner, at) for at in reversed(range(kept))]

    def found(self, owner: int) -> int:
        mine = {one[1] for one in self.free if one is not None and one[0] == owner}
        count = 0
        while count in mine:
            count += 1
        return count

    def reclaim(self, owner: int, count: int) -> None:
        back = {(owner, at) for at in range(count)}
        self.free = [one for one in self.free if one not in back]
        self.free = [None if one is not None and one[0] == owner else one for one in self.free]


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 12)), max_size=60))
@settings(deadline=None)
def test_counts_and_findable_content_match_a_list_of_blocks(blocks: int, moves: list[tuple[int, int, int]]) -> None:
    pool, truth = PagedPool(blocks, caching=True), ListPool(blocks)
    held: dict[int, int] = {}
    for kind, owner, size in moves:
        if kind == 0 and size <= pool.free and owner not in held:
            pool.take(size)
            truth.take(size)
            held[owner] = size
        elif kind == 1 and owner in held:
            count = held.pop(owner)
            kept = min(size, count)
            pool.give(count, owner=owner, kept=kept)
            truth.give(count, owner, kept)
        elif kind == 2 and owner not in held and pool.found(owner):
            hit = min(pool.found(owner), max(1, size))
            pool.reclaim(owner, hit)
            truth.reclaim(owner, hit)
            held[owner] = hit
        elif kind == 3:
            pool.forget(owner)
            truth.free = [None if one is not None and one[0] == owner else one for one in truth.free]
        assert pool.free == len(truth.free)
        assert pool.used == sum(held.values())
        for one in range(5):
            assert pool.found(one) == truth.found(one)


def test_the_tail_of_an_evicted_sequence_goes_first() -> None:
    pool = PagedPool(10, caching=True)
    pool.take(10)
    pool.give(4, owner=7, kept=4)
    pool.take(3)
    assert pool.found(7) == 1
    pool.take(1)
    assert pool.found(7) == 0


def test_a_long_life_keeps_the_free_list_short() -> None:
    pool = PagedPool(8, caching=True)
    for owner in range(20_000):
        pool.take(4)
        pool.give(4, owner=owner, kept=3)
    assert pool.free == 8
    assert pool.found(19_999) == 3
    assert len(pool._owner) < 10_000
