"""One target's readings as tracks over the window: the arithmetic every derivation shares.

A counter's difference is taken between the first and the last scrape of one process only; a value that fell in between is
refused. One scrape alone gives lifetime values (span ``L``), except that a counter that reads 0 is 0 for every window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kvdoctor.engines.base import gap_for
from kvdoctor.facts import Fact, FactSet, Known, Unknown, measured
from kvdoctor.findings import DeviceMemory, TimelineEntry, Window
from kvdoctor.frozen import frozen
from kvdoctor.parse.serverlog import LogEvent
from kvdoctor.readings import Histogram, LogRun, Reading, Target, rank_order

ONE_SCRAPE = "only one scrape: a counter needs two to give a difference"
PAGE_OR_STATS = "give the engine's metrics page or its log with stats lines"
TAKE_TWO = "take a second scrape some seconds later (kvdoctor diagnose --url does) and give both"


@dataclass(slots=True)
class Stat:
    """One stats line (or decode/prefill batch line) of one rank, canonical units, None where the line has no such field."""

    time: float | None
    rank: str
    source: str
    event: LogEvent
    batch: str = ""

    def __getattr__(self, name: str) -> float | None:
        return self.event.number(name)


@frozen
class Sampled:
    """A gauge sample: when, its value, where it was read. ``order`` sorts undated ones."""

    order: float
    time: float | None
    value: float
    source: str


@frozen
class Delta:
    """A counter's difference over the window. ``span`` is ``w``, or ``L`` when it is a lifetime value."""

    value: float
    span: str
    source: str
    seconds: float | None


@dataclass
class View:
    """A target with its fact sets while they are being filled."""

    target: Target
    facts: FactSet = field(default_factory=FactSet)
    ranks: dict[str, FactSet] = field(default_factory=dict)
    devices: dict[str, FactSet] = field(default_factory=dict)
    timeline: list[TimelineEntry] = field(default_factory=list)
    memory: list[DeviceMemory] = field(default_factory=list)

    # ---------------------------------------------------------------- facts

    def rank(self, name: str) -> FactSet:
        """The fact set of a rank, made on first use."""
        return self.ranks.setdefault(name, FactSet())

    def unknown(self, fact: str, reason: str, hint: str = "") -> Unknown:
        """An Unknown with the engine table's own reason and hint where it has one."""
        engine = self.target.engine
        gap = gap_for(engine, fact, self.target.version) if engine is not None else None
        if gap is not None:
            return Unknown(gap.reason, gap.hint)
        return Unknown(reason, hint)

    def hint_bounds(self) -> None:
        """Give bounds the engine table's own way to a measured value."""
        engine = self.target.engine
        if engine is None:
            return
        for facts in (self.facts, *self.ranks.values()):
            for name, fact in facts.values.items():
                if isinstance(fact, Known) and not fact.exact and not fact.hint:
                    gap = gap_for(engine, name, self.target.version)
                    if gap is not None:
                        facts.values[name] = replace(fact, hint=gap.hint)

    # ---------------------------------------------------------------- stats lines

    @cached_property
    def stats(self) -> list[Stat]:
        """Stats lines of all logs in order, one per rank and instant (tensor-parallel repeats are dropped)."""
        found: list[Stat] = []
        lines = [(run, event) for run, event in self.target.events("stats") if not event.fields.get("partial")]
        leaders = _leaders([event for _, event in lines])
        for run, event in lines:
            rank, place = _stat_rank(event)
            if place != leaders[rank]:
                continue
            found.append(Stat(event.time, rank, run.source(event), event, event.text("batch") or ""))
        names = {s.rank for s in found}
        scraped = {r for s in self.target.scrapes for r in s.ranks()}
        if len(names) == 1 and len(scraped) == 1 and names != scraped:
            only = next(iter(scraped))
            for stat in found:
                stat.rank = only
        return found

    @cached_property
    def rank_names(self) -> list[str]:
        """Every rank that reports a queue, a pool or work."""
        names = {r for s in self.target.scrapes for r in s.ranks()} | {s.rank for s in self.stats}
        if self.target.iterations or self.target.slots:
            names.add("")
        return sorted(names, key=rank_order) or [""]

    # ---------------------------------------------------------------- scrapes

    def samples(self, role: str, rank: str | None = None, key: str | None = None) -> list[Sampled]:
        """Samples of a gauge in order; ``rank``/``key`` None takes the largest over all of them at each instant."""
        out: list[Sampled] = []
        for order, scrape in enumerate(self.target.scrapes):
            readings = [
                r for (rk, k), r in scrape.values.get(role, {}).items()
                if (rank is None or rk == rank) and (key is None or k == key)
            ]  # fmt: skip
            if readings:
                best = max(readings, key=lambda r: r.value)
                out.append(Sampled(order, scrape.time, best.value, best.source))
        return out

    def summed(self, role: str, rank: str) -> list[Sampled]:
        """Samples of one rank with the splitting keys added up."""
        out: list[Sampled] = []
        for order, scrape in enumerate(self.target.scrapes):
            readings = [r for (rk, _), r in scrape.values.get(role, {}).items() if rk == rank]
            if readings:
                out.append(Sampled(order, scrape.time, math.fsum(r.value for r in readings), readings[0].source))
        return out

    def has_role(self, role: str) -> bool:
        """Any scrape carries the role."""
        return any(role in s.values or role in s.histograms for s in self.target.scrapes)

    def keys(self, role: str) -> set[str]:
        """Splitting label values of a role."""
        return {k for s in self.target.scrapes for _, k in (*s.values.get(role, {}), *s.histograms.get(role, {}))}

    def delta(self, role: str, rank: str | None = None, key: str | None = None) -> Delta | Unknown:
        """A counter's difference over the window, summed over ranks and keys unless named."""
        tracks: dict[tuple[str, str], list[tuple[int, Reading]]] = {}
        for order, scrape in enumerate(self.target.scrapes):
            for (rk, k), reading in scrape.values.get(role, {}).items():
                if (rank is None or rk == rank) and (key is None or k == key):
                    tracks.setdefault((rk, k), []).append((order, reading))
        if not tracks:
            return Unknown(f"no series for it in the metrics ({role})")
        count = len(self.target.scrapes)
        total, source = 0.0, ""
        span = "w"
        for track in tracks.values():
            last_order, last = track[-1]
            source = source or last.source
            first_order, first = track[0]
            if count == 1:
                if last.value != 0:
                    span = "L"
                total += last.value
                continue
            if any(b.value < a.value for (_, a), (_, b) in zip(track, track[1:], strict=False)):
                return Unknown(
                    "the counter fell between two scrapes: it was reset, so no difference is taken", TAKE_TWO
                )
            if first_order > 0:
                # the series appeared during the window: labelled counters exist only after their first event
                total += last.value
            elif len(track) == 1:
                return Unknown("the series is in the first scrape only")
            else:
                total += last.value - first.value
        return Delta(total, span, source, self.window.seconds)

    def counter(self, role: str, rank: str | None = None, key: str | None = None) -> Fact:
        """:meth:`delta` as a fact; one non-zero scrape is a lifetime value."""
        delta = self.delta(role, rank, key)
        if isinstance(delta, Unknown):
            return delta
        if delta.span == "L":
            return Known(delta.value, delta.value, "measured", "L", delta.source, "since the process started")
        return measured(delta.value, "w", delta.source)

    def histogram(self, role: str, key: str | None = None) -> tuple[Histogram, str, str] | Unknown:
        """What a histogram gathered in the window over all ranks: (difference, span, source)."""
        scrapes = self.target.scrapes
        have = [(i, s.histograms[role]) for i, s in enumerate(scrapes) if role in s.histograms]
        if not have:
            return Unknown(f"no histogram for it in the metrics ({role})")
        last_index, last = have[-1]
        total: Histogram | None = None
        source = ""
        span = "w"
        for (rank, k), (histogram, where) in last.items():
            if key is not None and k != key:
                continue
            part = histogram
            if len(scrapes) == 1:
                if histogram.total != 0:
                    span = "L"
            else:
                first = scrapes[0].histograms.get(role, {}).get((rank, k))
                if first is not None:
                    difference = histogram.minus(first[0])
                    if difference is None:
                        return Unknown(
                            "the histogram was reset between two scrapes, so no difference is taken", TAKE_TWO
                        )
                    part = difference
                elif histogram.quantiles and not histogram.buckets:
                    part = histogram
            source = source or where
            if total is None:
                total = part
            else:
                both = total.plus(part)
                if both is None:
                    return Unknown("the ranks' histograms have different buckets")
                total = both
        if total is None:
            return Unknown(f"no histogram for it in the metrics ({role})")
        return total, span, source

    # ---------------------------------------------------------------- time

    @cached_property
    def window(self) -> Window:
        """From the first to the last usable scrape; without scrapes from stats lines, else from engine steps, else from logs."""
        scrapes = self.target.scrapes
        if scrapes:
            times = [s.time for s in scrapes if s.time is not None]
            if times and len(times) == len(scrapes):
                return Window(times[0], times[-1], times[-1] - times[0] if len(times) > 1 else None, len(scrapes))
            return Window(None, None, None, len(scrapes))
        times = [t for s in self.stats if (t := s.time) is not None]
        if not times:
            times = [t for timed in self.target.iterations for row in timed.value if (t := row.time) is not None]
        if not times:
            times = [t for run in self.target.logs for t in (run.first_time, run.last_time) if t is not None]
        if not times:
            return Window(None, None, None, 0)
        return Window(min(times), max(times), max(times) - min(times) if max(times) > min(times) else None, 0)

    def note_event(self, t: float | None, what: str, source: str) -> None:
        """Put an entry on the time line."""
        self.timeline.append(TimelineEntry(t, what, source))


_Place = tuple[int, ...]


def _stat_rank(event: LogEvent) -> tuple[str, _Place]:
    """The data-parallel rank a stats line speaks for, and the place of its process among the ranks that share its pool."""
    engine = event.number("engine")
    if engine is not None:
        return f"{engine:.0f}", ()
    if not event.rank or event.rank.startswith("rank"):
        return "", ()
    parts = event.rank.split("_")
    data = [p[2:] for p in parts if p.startswith("DP")]
    place = tuple(int(p[2:]) for p in parts if p.startswith(("TP", "PP", "EP")) and p[2:].isdigit())
    return (data[0] if data else ""), place


def _leaders(events: Iterable[LogEvent]) -> dict[str, _Place]:
    """By data-parallel rank, the first of its processes: the others repeat its lines.

    With attention split over data-parallel ranks the numbers run on (DP1 TP1, or DP1 TP2 with two processes each), so the
    leader is the smallest one that speaks, not number 0.
    """
    leaders: dict[str, _Place] = {}
    for event in events:
        rank, place = _stat_rank(event)
        leaders[rank] = min(leaders.get(rank, place), place)
    return leaders


def last_run(values: Sequence[float], same: float = 0.0) -> int:
    """The longest run of consecutive values that differ by no more than ``same``."""
    best = current = 1 if values else 0
    for a, b in zip(values, values[1:], strict=False):
        current = current + 1 if abs(b - a) <= same else 1
        best = max(best, current)
    return best


def slope(points: Iterable[tuple[float, float]]) -> float | None:
    """Least-squares slope of (time, value); None below three points or without a spread of time."""
    data = list(points)
    if len(data) < 3:
        return None
    n = len(data)
    mean_t = math.fsum(t for t, _ in data) / n
    mean_v = math.fsum(v for _, v in data) / n
    spread = math.fsum((t - mean_t) ** 2 for t, _ in data)
    if spread <= 0:
        return None
    return math.fsum((t - mean_t) * (v - mean_v) for t, v in data) / spread


def first_run(view: View) -> LogRun | None:
    """The first log run, None without logs."""
    return view.target.logs[0] if view.target.logs else None
