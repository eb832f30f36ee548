"""The circuit breaker on evictions and recompute, as published (latched) and with a floor."""

from __future__ import annotations

from collections import deque

from kvdoctor.policy import Policy

WINDOW_S = 10.0
"""Rates and shares are taken over this many seconds."""
OFF_EVICTIONS_PER_S = 1.0
OFF_RECOMPUTE_SHARE = 0.05
"""The latch opens again below both (the published pair)."""
LEAST_EVICTIONS = 5
"""Evictions in the window below which a ratio per finished request says nothing."""


class Breaker:
    """Counts what happened lately and says whether new requests are admitted.

    Latched: none while it is on. With a floor: while on, only below ``breaker.floor`` of the pool. The recompute share
    is of prefill tokens: while admissions are shut there are none, the share is unknown and cannot open the latch.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._evictions: deque[float] = deque()
        self._finishes: deque[float] = deque()
        self._tokens: deque[tuple[float, int, int]] = deque()
        self._computed = 0
        self._again = 0
        self.on = False
        self.trips = 0

    def evicted(self, now_s: float) -> None:
        """A request was evicted."""
        self._evictions.append(now_s)

    def finished(self, now_s: float) -> None:
        """A request finished."""
        self._finishes.append(now_s)

    def computed(self, now_s: float, tokens: int, again: int) -> None:
        """A step prefilled ``tokens``, ``again`` of them for the second time."""
        self._tokens.append((now_s, tokens, again))
        self._computed += tokens
        self._again += again

    def admits(self, now_s: float, usage: float) -> bool:
        """Whether a request may be admitted at this pool usage (0..1) while something is running."""
        self._judge(now_s)
        if not self.on:
            return True
        return self._policy.breaker_mode == "floor" and usage < self._policy.breaker_floor

    def _judge(self, now_s: float) -> None:
        since = now_s - WINDOW_S
        for times in (self._evictions, self._finishes):
            while times and times[0] < since:
                times.popleft()
        while self._tokens and self._tokens[0][0] < since:
            _, tokens, again = self._tokens.popleft()
            self._computed -= tokens
            self._again -= again
        rate = len(self._evictions) / WINDOW_S
        share = self._again / self._computed if self._computed else None
        policy = self._policy
        if self.on:
            if rate < OFF_EVICTIONS_PER_S and share is not None and share < OFF_RECOMPUTE_SHARE:
                self.on = False
            return
        evictions, finishes = len(self._evictions), len(self._finishes)
        too_many = evictions >= LEAST_EVICTIONS and evictions > policy.breaker_per_finished * finishes
        recomputes = share is not None and share > policy.breaker_recompute_share
        if rate > policy.breaker_evictions_per_s or recomputes or too_many:
            self.on = True
            self.trips += 1
