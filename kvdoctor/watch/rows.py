"""Figures that move from sample to sample: one row for each rank of each server, and their history.

A rate is a difference of two readings of one process. After a restart the earlier reading is thrown away, so no rate ever spans
one. What a page does not tell is None and is shown as not known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvdoctor.frozen import frozen

SAME_START_S = 2.0
HISTORY = 600


class _Reading(Protocol):
    @property
    def value(self) -> float: ...


class Glance(Protocol):
    """What is needed of a scrape: its time and its roles, keyed by (rank, splitting label)."""

    @property
    def time(self) -> float | None: ...

    @property
    def values(self) -> Mapping[str, Mapping[tuple[str, str], _Reading]]: ...


@frozen
class Row:
    """One rank of one server now. Usage is a fraction, rates are per second; None: not known."""

    server: str
    rank: str
    usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    preempt_rate: float | None = None
    gen_rate: float | None = None
    headroom: float | None = None
    seen: float | None = None

    @property
    def name(self) -> str:
        """Server and rank in one word."""
        return f"{self.server} #{self.rank}" if self.rank else self.server


@dataclass(slots=True)
class Server:
    """One server while it is watched: its last readings, and since when it does not answer."""

    name: str
    start: float | None = None
    totals: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    silent_since: float | None = None

    def read(self, glance: Glance, now: float) -> bool:
        """Take a page in; True when it comes from another process than the page before (a restart)."""
        restarted = self._restarted(glance)
        if restarted:
            self.totals.clear()
        self.rates.clear()
        if glance.time is None:
            # pages without a clock have an order, no rates
            self.totals.clear()
        for role in ("preempt.total", "tok.generated"):
            for rank, total in _by_rank(glance, role, math.fsum).items():
                before = self.totals.get((role, rank))
                if before is not None and now > before[0]:
                    self.rates[role, rank] = (total - before[1]) / (now - before[0])
                if glance.time is not None:
                    self.totals[role, rank] = (now, total)
        starts = [r.value for r in glance.values.get("run.start", {}).values()]
        self.start = max(starts) if starts else self.start
        self.rows = self._rows(glance, now)
        return restarted

    def _restarted(self, glance: Glance) -> bool:
        starts = [r.value for r in glance.values.get("run.start", {}).values()]
        if starts and self.start is not None:
            return abs(max(starts) - self.start) > SAME_START_S
        # without a start time a total that fell tells it: totals of one process never do
        return any(
            total < self.totals[role, rank][1]
            for role in ("preempt.total", "tok.generated")
            for rank, total in _by_rank(glance, role, math.fsum).items()
            if (role, rank) in self.totals
        )

    def _rows(self, glance: Glance, now: float) -> tuple[Row, ...]:
        usage = _by_rank(glance, "kv.usage", max)
        used, pool = _by_rank(glance, "kv.used_tokens", math.fsum), _by_rank(glance, "kv.pool_tokens", math.fsum)
        for rank, tokens in used.items():
            if rank not in usage and pool.get(rank):
                usage[rank] = tokens / pool[rank]
        running, waiting = _by_rank(glance, "req.running", math.fsum), _by_rank(glance, "req.waiting", math.fsum)
        gauge = _by_rank(glance, "tok.gen_rate", math.fsum)
        ranks = dict.fromkeys([*usage, *running, *waiting])
        return tuple(
            Row(
                self.name, rank, usage.get(rank), running.get(rank), waiting.get(rank),
                self.rates.get(("preempt.total", rank)), self.rates.get(("tok.generated", rank), gauge.get(rank)), None, now,
            )
            for rank in sorted(ranks, key=lambda r: (int(r), "") if r.isdigit() else (1 << 30, r))
        )  # fmt: skip


def _by_rank(glance: Glance, role: str, how: object) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for (rank, _), reading in glance.values.get(role, {}).items():
        if math.isfinite(reading.value):
            grouped.setdefault(rank, []).append(reading.value)
    assert callable(how)
    return {rank: how(values) for rank, values in grouped.items()}


@dataclass(slots=True)
class History:
    """The last ten minutes at one sample a second of the whole: fullest pool, sums of the rest; None where not known."""

    usage: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    running: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    waiting: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    gen_rate: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def add(self, time: float, rows: Iterable[Row]) -> None:
        """One more sample."""
        all_rows = list(rows)
        self.times.append(time)
        self.usage.append(largest(r.usage for r in all_rows))
        self.running.append(total(r.running for r in all_rows))
        self.waiting.append(total(r.waiting for r in all_rows))
        self.gen_rate.append(total(r.gen_rate for r in all_rows))

    def full_in(self, over_s: float = 30.0, within_s: float = 120.0) -> float | None:
        """Seconds until the fullest pool is full if it goes on rising as over the last ``over_s``; None when it does not within ``within_s``."""
        points = [
            (t, u) for t, u in zip(self.times, self.usage, strict=True) if u is not None and t >= self.times[-1] - over_s
        ] if self.times else []  # fmt: skip
        if len(points) < 5 or points[-1][1] >= 1:
            return None
        mean_t = math.fsum(t for t, _ in points) / len(points)
        mean_u = math.fsum(u for _, u in points) / len(points)
        spread = math.fsum((t - mean_t) ** 2 for t, _ in points)
        if spread <= 0:
            return None
        slope = math.fsum((t - mean_t) * (u - mean_u) for t, u in points) / spread
        left = (1 - points[-1][1]) / slope if slope > 0 else math.inf
        return left if left <= within_s else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None when one of them is not known or there is none (a part is no total)."""
    found = list(values)
    known = [v for v in found if v is not None]
    return math.fsum(known) if known and len(known) == len(found) else None


def largest(values: Iterable[float | None]) -> float | None:
    """The largest of the known ones; None when none is."""
    known = [v for v in values if v is not None]
    return max(known) if known else None


def fullest(rows: Iterable[Row]) -> tuple[Row, float] | None:
    """The row with the fullest pool and its usage; None when no usage is known."""
    known = [(row, row.usage) for row in rows if row.usage is not None]
    return max(known, key=lambda pair: pair[1]) if known else None
