"""Who dies: the worked examples of the policy page, and what protection spares."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from kvdoctor.policy import Policy
from kvdoctor.sim.victims import Candidate, Scale, choose, choose_until, loss_ratio, order_key, protected, value_score

GIB = 1024


def candidate(request: int, **over: object) -> Candidate:
    base = Candidate(
        request=request,
        admitted=request,
        first_admitted=request,
        arrival_s=float(request),
        started_s=0.0,
        first_token_s=0.0,
        last_token_s=10.0,
        prompt=1000,
        computed=1500,
        generated=500,
        max_tokens=1000,
        blocks=94,
        priority=3,
        evictions=0,
        last_evicted_s=None,
        high_water=0,
    )
    return base._replace(**over)  # type: ignore[arg-type]


def order_of_death(candidates: list[Candidate], policy: Policy, *, now: float = 100.0) -> list[int]:
    key = order_key(policy, Scale(1.0, 1e5), random.Random(0))
    return [one.request for one in choose_until(candidates, 10**9, now, policy, key)]


A = candidate(0, computed=30_000, generated=2000, max_tokens=10_000)
B = candidate(1, computed=2000, generated=1000, max_tokens=2000)
C = candidate(2, computed=26_000, generated=1800, max_tokens=2000)


def test_two_ledgers_kill_the_smallest_loss_ratio() -> None:
    assert [loss_ratio(one.computed, one.remaining) for one in (A, B, C)] == [3.75, 2.0, 130.0]
    assert order_of_death([A, B, C], Policy(victim_order="ratio")) == [1, 0, 2]


def test_near_completion_needs_both_conditions() -> None:
    both = Policy(protect_near_completion_tokens=512, protect_near_completion_share=0.25)
    assert [protected(one, 100.0, both) for one in (A, B, C)] == [False, False, True]
    # 300 tokens computed, 100 left: finishing costs more than a quarter of redoing, so it may go.
    small = candidate(3, computed=300, generated=100, max_tokens=200)
    assert not protected(small, 100.0, both)
    absolute = Policy(protect_near_completion_tokens=512)
    assert protected(small, 100.0, absolute)
    assert not protected(candidate(4, computed=26_000, generated=0, max_tokens=512), 100.0, absolute)


def eight(now: float = 100.0) -> list[Candidate]:
    """Four of 256 MiB, three of 2 GiB, one of 8 GiB, of equal age; a block is one MiB here."""
    sizes = [256] * 4 + [2 * GIB] * 3 + [8 * GIB]
    return [candidate(at, blocks=size, computed=size * 8, first_token_s=0.0) for at, size in enumerate(sizes)]


def test_largest_first_frees_12_8_gib_with_four_victims() -> None:
    policy = Policy(victim_order="largest")
    key = order_key(policy, Scale(1.0, 80.0 * GIB), random.Random(0))
    victims = choose_until(eight(), round(12.8 * GIB), 100.0, policy, key)
    assert [one.blocks for one in victims] == [8 * GIB, 2 * GIB, 2 * GIB, 2 * GIB]


def test_the_value_function_as_published_takes_all_eight() -> None:
    policy = Policy(victim_order="value-published")
    key = order_key(policy, Scale(1.0, 80.0 * GIB), random.Random(0))
    victims = choose_until(eight(), round(12.8 * GIB), 100.0, policy, key)
    assert len(victims) == 8
    assert sum(one.blocks for one in victims) == 15 * GIB
    assert [one.blocks for one in victims] == sorted(one.blocks for one in victims)


def test_the_corrected_value_protects_priority_one_and_the_published_sign_kills_it() -> None:
    high, low = candidate(0, priority=1), candidate(1, priority=5)
    assert order_of_death([high, low], Policy(victim_order="value")) == [1, 0]
    assert order_of_death([high, low], Policy(victim_order="value-published")) == [0, 1]


def test_age_counts_from_the_first_token() -> None:
    prefilling = candidate(0, started_s=0.0, first_token_s=None, generated=0)
    decoding = candidate(1, started_s=95.0, first_token_s=99.0, generated=0)
    policy = Policy(victim_order="value")
    assert order_of_death([prefilling, decoding], policy) == [0, 1]
    assert order_of_death([prefilling, decoding], Policy(victim_order="value-published")) == [1, 0]


def test_value_is_the_weighted_sum_of_terms_between_zero_and_one() -> None:
    policy = Policy(victim_order="value")
    scale = Scale(1.0, 1000.0)
    top = candidate(0, first_token_s=0.0, generated=1000, blocks=1000, priority=1, evictions=9)
    assert value_score(top, 600.0, policy, scale) == pytest.approx(sum(asdict(policy.victim_weights).values()))
    assert value_score(top, 6000.0, policy, scale) == value_score(top, 600.0, policy, scale)
    bottom = candidate(1, first_token_s=None, generated=0, blocks=0, priority=5)
    assert value_score(bottom, 600.0, policy, scale) == pytest.approx(0.20 / 5)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("tail", [2, 1, 0]),
        ("last-started", [1, 2, 0]),
        ("oldest", [0, 2, 1]),
        ("fewest-output", [1, 0, 2]),
        ("largest", [2, 0, 1]),
        ("priority", [0, 2, 1]),
    ],
)
def test_each_order(order: str, expected: list[int]) -> None:
    three = [
        candidate(0, first_admitted=0, admitted=3, generated=5, blocks=20, priority=5, prompt=10),
        candidate(1, first_admitted=2, admitted=4, generated=5, blocks=10, priority=1, prompt=90),
        candidate(2, first_admitted=1, admitted=5, generated=9, blocks=30, priority=3),
    ]
    assert order_of_death(three, Policy(victim_order=order)) == expected


def test_explicit_takes_the_classes_in_their_order() -> None:
    short = candidate(0, computed=900, generated=700, max_tokens=1000)
    stalled = candidate(1, computed=9000, generated=100, max_tokens=4000, last_token_s=50.0)
    other = candidate(2, computed=9000, generated=100, max_tokens=4000, last_token_s=99.9)
    done = candidate(3, computed=9000, generated=1000, max_tokens=1000)
    policy = Policy(victim_order="explicit")
    assert order_of_death([other, stalled, short, done], policy) == [3, 0, 1, 2]
    turned = Policy(victim_order="explicit", victim_explicit=("long_stalled", "short_low_remaining"))
    assert order_of_death([other, stalled, short], turned)[0] == 1


def test_random_is_seeded() -> None:
    many = [candidate(at) for at in range(20)]
    policy = Policy(victim_order="random")

    def once(seed: int) -> list[int]:
        key = order_key(policy, Scale(1.0, 1e5), random.Random(seed))
        return [one.request for one in choose_until(many, 10**9, 0.0, policy, key)]

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_cooldown_by_seconds_and_until_regained() -> None:
    lost = candidate(0, last_evicted_s=90.0, evictions=1, high_water=2000, computed=1500)
    seconds = Policy(cooldown_mode="seconds", cooldown_seconds=30)
    assert protected(lost, 119.9, seconds)
    assert not protected(lost, 120.0, seconds)
    regained = Policy(cooldown_mode="regained")
    assert protected(lost, 500.0, regained)
    assert not protected(lost._replace(computed=2000), 91.0, regained)


def test_priority_and_length_protect() -> None:
    assert protected(candidate(0, priority=1), 0.0, Policy(protect_priority_at_most=1))
    assert not protected(candidate(0, priority=2), 0.0, Policy(protect_priority_at_most=1))
    assert protected(candidate(0, computed=1500), 0.0, Policy(protect_long_tokens=1500))


def test_when_all_are_protected_the_fallback_decides_and_it_counts_as_override() -> None:
    both = [candidate(0, priority=1, blocks=500), candidate(1, priority=1, blocks=5)]
    queue = Policy(victim_order="largest", protect_priority_at_most=1)
    anyway = Policy(victim_order="largest", protect_priority_at_most=1, fallback="evict_anyway")
    for policy, victim in ((queue, 1), (anyway, 0)):
        key = order_key(policy, Scale(1.0, 1e5), random.Random(0))
        chosen, overridden = choose(both, 0.0, policy, key)
        assert (chosen.request, overridden) == (victim, True)
    key = order_key(queue, Scale(1.0, 1e5), random.Random(0))
    assert choose([*both, candidate(2, priority=4, blocks=1)], 0.0, queue, key)[1] is False
