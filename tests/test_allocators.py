"""Allocator models: the worked examples, the published mistakes that must not happen, and bytes that are conserved."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.sim.allocators import (
    MIB,
    Allocator,
    Buddy,
    Contiguous,
    Event,
    IdleCache,
    Paged,
    Tiered,
    make,
    replay,
    sequence_events,
    sweep_block_sizes,
)

GIB = 1024 * MIB
MODELS: dict[str, Callable[[], Allocator]] = {
    "paged": lambda: Paged(4 * GIB, 2 * MIB),
    "tiered": lambda: Tiered(4 * GIB),
    "tiered-published": lambda: Tiered(4 * GIB, rules="published"),
    "first_fit": lambda: Contiguous(4 * GIB, "first"),
    "best_fit": lambda: Contiguous(4 * GIB, "best"),
    "buddy": lambda: Buddy(4 * GIB),
}


@pytest.mark.parametrize(
    "size_mib, rules, tier_mib, count, waste",
    [
        (400, "corrected", 64, 7, 0.107),
        (400, "published", 1024, 1, 0.609),
        (65, "corrected", 64, 2, 0.492),
        (65, "published", 256, 1, 0.746),
        (257, "corrected", 64, 5, 0.197),
        (257, "published", 1024, 1, 0.749),
        (600, "corrected", 64, 10, 0.0625),
        (600, "published", 1024, 1, 0.414),
        (1025, "published", 1024, 2, 0.4995),
        (1024, "corrected", 1024, 1, 0.0),
        (256, "corrected", 256, 1, 0.0),
    ],
)
def test_tier_choice_worked_examples(size_mib: int, rules: str, tier_mib: int, count: int, waste: float) -> None:
    pool = Tiered(8 * GIB, rules="corrected" if rules == "corrected" else "published")
    grant = pool.allocate(size_mib * MIB)
    assert grant is not None
    assert grant.parts == (((64, 256, 1024).index(tier_mib), count),)
    assert grant.granted == count * tier_mib * MIB
    assert (grant.granted - grant.requested) / grant.granted == pytest.approx(waste, abs=0.001)


def test_preallocation_is_the_published_sum() -> None:
    assert Tiered(4 * GIB).held == 3968 * MIB
    with pytest.raises(ValueError, match="preallocation"):
        Tiered(3967 * MIB)


def test_blocks_go_back_to_the_tier_they_came_from() -> None:
    """The published code freed every block into the small pool: medium -5, small +5, usage below zero."""
    pool = Tiered(4 * GIB, rules="published")
    grants = [pool.allocate(200 * MIB) for _ in range(5)]
    assert pool.idle == [10, 0, 2]
    for grant in grants:
        assert grant is not None
        pool.free(grant)
    assert pool.idle == [10, 5, 2]
    assert pool.granted == 0
    small = pool.allocate(10 * MIB)
    assert small is not None
    assert small.granted == 64 * MIB
    assert pool.held == 3968 * MIB


def test_a_tier_does_not_grow_while_its_own_blocks_are_idle() -> None:
    pool = Tiered(16 * GIB, rules="published")
    for _ in range(50):
        grant = pool.allocate(200 * MIB)
        assert grant is not None
        pool.free(grant)
    assert pool.held == 3968 * MIB


def test_corrected_rules_take_another_tier_when_the_best_is_used_up() -> None:
    pool = Tiered(3968 * MIB)
    first = pool.allocate(640 * MIB)
    second = pool.allocate(400 * MIB)
    assert first is not None
    assert second is not None
    assert first.parts == ((0, 10),)
    assert second.parts == ((1, 2),)


@pytest.mark.parametrize("name", MODELS)
def test_a_request_above_the_capacity_is_refused_at_once(name: str) -> None:
    """The published cache looped forever on this."""
    pool = MODELS[name]()
    assert pool.allocate(4 * GIB + 1) is None
    cache = IdleCache(pool)
    assert cache.put("small", 1 * MIB, 0.0)
    assert not cache.put("huge", 40 * GIB, 1.0)
    assert "small" in cache


@pytest.mark.parametrize("name", MODELS)
def test_a_second_free_is_an_error_and_changes_nothing(name: str) -> None:
    pool = MODELS[name]()
    grant = pool.allocate(3 * MIB)
    assert grant is not None
    pool.free(grant)
    fit = pool.largest_fit()
    with pytest.raises(KeyError):
        pool.free(grant)
    assert (pool.granted, pool.largest_fit()) == (0, fit)
    with pytest.raises(ValueError, match="request"):
        pool.allocate(0)


def test_sixty_percent_used_and_still_out_of_memory() -> None:
    """A checkerboard: contiguous models refuse what paging serves."""
    events = [Event(at, at, 100 * MIB) for at in range(10)]
    events += [Event(20 + at, at, 0) for at in (0, 2, 4, 6)]
    events.append(Event(30, "late", 150 * MIB))
    contiguous = replay(Contiguous(1000 * MIB, "first"), events)
    assert contiguous.first_false is not None
    assert contiguous.first_false.ident == "late"
    assert contiguous.first_false.used_share == pytest.approx(0.6)
    assert contiguous.first_false.free == 400 * MIB
    assert contiguous.first_false.largest_fit == 100 * MIB
    assert contiguous.moments[-1].external == pytest.approx(0.75)
    paged = replay(Paged(1000 * MIB, 2 * MIB), events)
    assert (paged.refused, paged.first_false, paged.external_max) == (0, None, 0)


def test_best_fit_keeps_the_large_hole_that_first_fit_breaks() -> None:
    events = [Event(0, "a", 300 * MIB), Event(1, "b", 10 * MIB), Event(2, "c", 100 * MIB), Event(3, "d", 10 * MIB)]
    events += [Event(4, "a", 0), Event(5, "c", 0), Event(6, "e", 90 * MIB), Event(7, "f", 300 * MIB)]
    assert replay(Contiguous(420 * MIB, "best"), events).refused == 0
    assert replay(Contiguous(420 * MIB, "first"), events).false_refused == 1


def test_buddy_rounds_to_powers_of_two_and_joins_again() -> None:
    pool = Buddy(1 * GIB + 64 * MIB)
    assert pool.largest_fit() == 1 * GIB
    grants = [pool.allocate(5 * MIB) for _ in range(4)]
    assert pool.granted == 4 * 8 * MIB
    for grant in grants:
        assert grant is not None
        pool.free(grant)
    assert pool.largest_fit() == 1 * GIB


def test_refusals_and_releases_of_refused_requests() -> None:
    run = replay(Paged(4 * MIB, MIB), [Event(0, "a", 5 * MIB), Event(1, "a", 0), Event(2, "b", 4 * MIB)])
    assert (run.asked, run.refused, run.false_refused, run.peak_granted) == (2, 1, 0, 4 * MIB)
    with pytest.raises(ValueError, match="asks again"):
        replay(Paged(4 * MIB, MIB), [Event(0, "a", 1), Event(1, "a", 1)])


def test_sequence_events_hold_one_piece_for_their_time() -> None:
    events = sequence_events([(0.0, 100, 2.0), (1.0, 50, 2.0)], 131_072)
    run = replay(Paged(1 * GIB, MIB), events)
    assert [moment.requested for moment in run.moments] == [100 * 131_072, 150 * 131_072, 50 * 131_072, 0]


def test_block_size_sweep_trades_waste_for_table() -> None:
    rows = sweep_block_sizes([1000, 33, 17])
    assert [row.block_tokens for row in rows] == [8, 16, 32, 64, 128, 256]
    sixteen = rows[1]
    assert sixteen.blocks_mean == pytest.approx((63 + 3 + 2) / 3)
    assert sixteen.waste_tokens_mean == pytest.approx((8 + 15 + 15) / 3)
    assert sixteen.table_bytes == 68 * 4
    assert all(a.waste_share <= b.waste_share and a.table_bytes >= b.table_bytes for a, b in pairwise(rows))
    with pytest.raises(ValueError, match="lengths"):
        sweep_block_sizes([])


def test_names_of_the_policy_make_the_models() -> None:
    assert isinstance(make("paged", GIB), Paged)
    assert isinstance(make("buddy", GIB), Buddy)
    tiered = make("tiered", 8 * GIB, rules="published")
    assert isinstance(tiered, Tiered)
    assert tiered.rules == "published"
    fits = [make("first_fit", GIB), make("best_fit", GIB)]
    assert [pool.fit for pool in fits if isinstance(pool, Contiguous)] == ["first", "best"]


def test_cache_evicts_the_oldest_of_the_least_important() -> None:
    cache = IdleCache(Paged(4 * MIB, MIB))
    for at, (key, priority) in enumerate([("keep", 1), ("old", 5), ("new", 5), ("mid", 3)]):
        assert cache.put(key, MIB, float(at), priority=priority)
    assert cache.get("old", 10.0)
    assert cache.put("next", MIB, 11.0)
    assert "new" not in cache
    assert cache.put("more", 2 * MIB, 12.0)
    assert [key for key in ("keep", "old", "mid", "next", "more") if key in cache] == ["keep", "next", "more"]
    assert cache.stats().evicted == 3


def test_blocks_in_use_are_pinned_and_nothing_is_lost_for_a_request_that_fails() -> None:
    cache = IdleCache(Contiguous(4 * MIB, "first"), ttl_s=1.0)
    cache.put("a", MIB, 0.0)
    cache.put("b", MIB, 0.0)
    cache.put("c", MIB, 0.0)
    cache.pin("b")
    assert not cache.put("wide", 3 * MIB, 0.5)
    assert all(key in cache for key in "abc")
    assert cache.stats().evicted == 0
    assert cache.stats().granted == 3 * MIB
    assert cache.expire(5.0) == 2
    assert "b" in cache
    assert not cache.put("b", 2 * MIB, 5.0)
    cache.unpin("b")
    with pytest.raises(ValueError, match="not pinned"):
        cache.unpin("b")
    assert cache.expire(5.0) == 1


def test_a_new_size_for_a_known_key_is_taken() -> None:
    """The published cache kept the old size."""
    cache = IdleCache(Paged(4 * MIB, MIB))
    cache.put("a", 1 * MIB, 0.0)
    assert cache.put("a", 3 * MIB, 1.0)
    assert cache.stats().granted == 3 * MIB
    assert cache.stats().entries == 1
    assert not cache.put("a", 5 * MIB, 2.0)
    assert cache.stats().granted == 3 * MIB


def test_granted_bytes_count_not_requested_ones() -> None:
    cache = IdleCache(Paged(4 * MIB, 2 * MIB))
    assert cache.put("a", 1, 0.0)
    assert cache.put("b", 1, 0.0)
    assert cache.stats().granted == 4 * MIB
    assert cache.put("c", 1, 1.0)
    assert cache.stats().evicted == 1


def test_warm_up_fills_without_evicting() -> None:
    cache = IdleCache(Paged(3 * MIB, MIB))
    cache.put("a", MIB, 0.0)
    assert cache.warm_up([("a", MIB), ("b", MIB), ("big", 9 * MIB), ("c", MIB), ("d", MIB)], 1.0) == 2
    assert all(key in cache for key in "abc")
    assert cache.stats().hit_share is None
    assert cache.get("b", 2.0)
    assert not cache.get("d", 2.0)
    assert cache.stats().hit_share == 0.5


OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(1, 700 * MIB), st.integers(0, 99)), max_size=60)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40, deadline=None)
@given(operations=OPERATIONS)
def test_bytes_are_conserved_and_pieces_never_overlap(name: str, operations: list[tuple[bool, int, int]]) -> None:
    pool = MODELS[name]()
    start = pool.largest_fit()
    live = []
    for take, size, pick in operations:
        if take or not live:
            fit = pool.largest_fit()
            grant = pool.allocate(size)
            if grant is None:
                assert size > fit or name == "tiered-published"
            else:
                assert grant.granted >= grant.requested == size
                live.append(grant)
        else:
            pool.free(live.pop(pick % len(live)))
        assert pool.granted == sum(grant.granted for grant in live) <= pool.capacity
        assert 0 <= pool.largest_fit() <= pool.capacity - pool.granted
        if name in ("first_fit", "best_fit", "buddy"):
            pieces = sorted(grant.parts[0] for grant in live)
            assert all(low + size <= other for (low, size), (other, _) in pairwise(pieces))
    fit = pool.largest_fit()
    if fit:
        state = pool.checkpoint()
        assert pool.allocate(fit) is not None
        pool.rollback(state)
    assert pool.allocate(fit + 1) is None or name == "tiered-published"
    pool.rollback(pool.checkpoint())
    for grant in live:
        pool.free(grant)
    assert pool.granted == 0
    if "tiered" not in name:
        assert pool.largest_fit() == start


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 5), st.booleans()), max_size=40))
def test_cache_never_exceeds_its_pool_and_never_drops_pinned_entries(steps: list[tuple[str, int, bool]]) -> None:
    pool = Contiguous(8 * MIB, "first")
    cache = IdleCache(pool, ttl_s=7.0)
    pinned: set[str] = set()
    for now, (key, size, pin) in enumerate(steps):
        cache.put(key, size * MIB, float(now), priority=size)
        if pin and key in cache and key not in pinned:
            cache.pin(key)
            pinned.add(key)
        assert all(name in cache for name in pinned)
        assert cache.stats().granted <= 8 * MIB
        assert cache.stats().entries == sum(name in cache for name in "abcdefgh")


def test_tiers_waste_what_log_uniform_sizes_lead_to() -> None:
    """Sizes log-uniform in a fourfold class fill a single block of it to about 54 %."""
    rng = random.Random(1)
    sizes = [int(256 * MIB * 4 ** rng.random()) + 1 for _ in range(2000)]
    pool = Tiered(10_000 * GIB, rules="published")
    grants = [pool.allocate(size) for size in sizes]
    assert sum(sizes) / sum(grant.granted for grant in grants if grant) == pytest.approx(0.54, abs=0.01)
