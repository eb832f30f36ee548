"""Who is evicted: one key per order, smallest dies, and who is protected from it.

Pure functions over candidates; the engine builds a candidate for every running request when the pool runs out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvdoctor.policy import Policy

SHORT_TOKENS = 2048
"""Explicit order: a request that has computed fewer tokens is short (the published boundary of 2k)."""
LOW_REMAINING_TOKENS = 512
"""Explicit order: fewer tokens to go is little remaining (the published figure)."""
LONG_STALLED_S = 1.0
"""Explicit order: a request that is not short and has had no token for this long is stalled."""
AGE_SCALE_S = 600.0
"""Value order: age at which its term reaches 1."""
EVICTED_SCALE = 5
"""Value order: evictions at which the fairness term reaches 1."""
_MIB = 1024 * 1024


class Candidate(NamedTuple):
    """A running request as the victim orders see it. Times are seconds, lengths tokens.

    ``admitted`` numbers the latest admission, ``first_admitted`` the first one. ``high_water`` is the most the request
    ever had computed: below it, it is still regaining what an eviction lost.
    """

    request: int
    admitted: int
    first_admitted: int
    arrival_s: float
    started_s: float
    first_token_s: float | None
    last_token_s: float | None
    prompt: int
    computed: int
    generated: int
    max_tokens: int
    blocks: int
    priority: int
    evictions: int
    last_evicted_s: float | None
    high_water: int

    @property
    def remaining(self) -> int:
        """Tokens still to come at most: the client's limit less what was generated (an upper bound)."""
        return self.max_tokens - self.generated


class Scale(NamedTuple):
    """What the size terms need: MiB per block and of the whole pool."""

    block_mib: float
    pool_mib: float

    @classmethod
    def of(cls, pool_blocks: int, block_tokens: int, bytes_per_token: float) -> Scale:
        """The scale of a pool of ``pool_blocks`` blocks."""
        block = block_tokens * bytes_per_token / _MIB
        return cls(block, block * pool_blocks)


Key = Callable[[Candidate, float], tuple[float, ...]]


def loss_ratio(computed: int, remaining: int) -> float:
    """The two ledgers: what eviction throws away per token that keeping it would still buy. The smallest dies."""
    return math.inf if remaining <= 0 else computed / remaining


def value_score(one: Candidate, now_s: float, policy: Policy, scale: Scale) -> float:
    """Loss if evicted, every term 0..1 before weighting. Age counts from the first token, priority 1 is protected."""
    weights = policy.victim_weights
    age = 0.0 if one.first_token_s is None else now_s - one.first_token_s
    size = one.blocks * scale.block_mib
    return (
        weights.age * min(1.0, math.log1p(age) / math.log1p(AGE_SCALE_S))
        + weights.progress * one.generated / one.max_tokens
        + weights.size * math.log1p(size) / math.log1p(scale.pool_mib)
        + weights.priority * (6 - one.priority) / 5
        + weights.evicted * min(one.evictions, EVICTED_SCALE) / EVICTED_SCALE
    )


def value_as_published(one: Candidate, now_s: float, scale: Scale) -> float:
    """The published code with its flaws: terms not scaled, age from the start of prefill, priority subtracted."""
    return (
        0.30 * math.log1p(1000.0 * (now_s - one.started_s))
        + 0.25 * one.generated / (one.prompt + one.generated + 1)
        + 0.25 * math.log1p(one.blocks * scale.block_mib)
        - 0.20 * (6 - one.priority)
    )


def explicit_class(one: Candidate, now_s: float, order: Sequence[str]) -> int:
    """Position of the first listed class that the candidate belongs to; past the end when it is in none."""
    for position, name in enumerate(order):
        if name == "completed_not_released":
            belongs = one.remaining <= 0
        elif name == "short_low_remaining":
            belongs = one.computed < SHORT_TOKENS and one.remaining < LOW_REMAINING_TOKENS
        else:
            last = one.started_s if one.last_token_s is None else one.last_token_s
            belongs = one.computed >= SHORT_TOKENS and now_s - last >= LONG_STALLED_S
        if belongs:
            return position
    return len(order)


def order_key(policy: Policy, scale: Scale, rng: random.Random) -> Key:
    """The key of ``policy.victim_order``; the candidate with the smallest key dies, ties to the last admitted."""
    keys: dict[str, Key] = {
        "tail": lambda one, now: (-one.admitted,),
        "priority": lambda one, now: (-one.priority, -one.arrival_s, -one.admitted),
        "fewest-output": lambda one, now: (one.generated, -one.prompt, -one.admitted),
        "last-started": lambda one, now: (-one.first_admitted,),
        "oldest": lambda one, now: (one.first_admitted,),
        "largest": lambda one, now: (-one.blocks, -one.admitted),
        "ratio": lambda one, now: (loss_ratio(one.computed, one.remaining), -one.admitted),
        "value": lambda one, now: (value_score(one, now, policy, scale), -one.admitted),
        "value-published": lambda one, now: (value_as_published(one, now, scale), -one.admitted),
        "explicit": lambda one, now: (explicit_class(one, now, policy.victim_explicit), one.computed, -one.admitted),
        "random": lambda one, now: (rng.random(),),
    }
    return keys[policy.victim_order]


def protected(one: Candidate, now_s: float, policy: Policy) -> bool:
    """Whether the policy spares this request. An absolute near-completion rule is one with share 0."""
    near = policy.protect_near_completion_tokens
    if near and one.remaining < near:
        share = policy.protect_near_completion_share
        if share == 0 or one.remaining < share * one.computed:
            return True
    if policy.protect_long_tokens and one.computed >= policy.protect_long_tokens:
        return True
    if one.priority <= policy.protect_priority_at_most:
        return True
    if one.last_evicted_s is not None:
        if policy.cooldown_mode == "seconds" and now_s - one.last_evicted_s < policy.cooldown_seconds:
            return True
        if policy.cooldown_mode == "regained" and one.computed < one.high_water:
            return True
    return False


def protects_anyone(policy: Policy) -> bool:
    """Whether the policy has any protection at all."""
    return bool(
        policy.protect_near_completion_tokens
        or policy.protect_long_tokens
        or policy.protect_priority_at_most
        or policy.cooldown_mode != "none"
    )


def choose(candidates: Sequence[Candidate], now_s: float, policy: Policy, key: Key) -> tuple[Candidate, bool]:
    """(victim, whether protection had to be overridden), among at least one candidate.

    When everyone is protected, ``evict_anyway`` falls back to the order itself; ``queue_new_request`` and ``abort``
    take the request admitted last.
    """
    open_to_it = [one for one in candidates if not protected(one, now_s, policy)]
    if open_to_it:
        return min(open_to_it, key=lambda one: key(one, now_s)), False
    if policy.fallback == "evict_anyway":
        return min(candidates, key=lambda one: key(one, now_s)), True
    return max(candidates, key=lambda one: one.admitted), True


def choose_until(
    candidates: Sequence[Candidate], need_blocks: int, now_s: float, policy: Policy, key: Key
) -> list[Candidate]:
    """Victims in order of death until ``need_blocks`` are free, or everyone is gone."""
    left, victims, freed = list(candidates), [], 0
    while left and freed < need_blocks:
        victim, _ = choose(left, now_s, policy, key)
        left.remove(victim)
        victims.append(victim)
        freed += victim.blocks
    return victims
