"""What normalising a snapshot gives: scrapes, log runs and host readings in canonical roles and units, by target.

Nothing here is a fact yet: these are readings at instants. ``derive`` turns them into facts over a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from kvdoctor.frozen import frozen

if TYPE_CHECKING:
    from kvdoctor.engines.base import Args, Engine, SeriesName
    from kvdoctor.findings import SourceNote
    from kvdoctor.parse.benchcsv import BenchRow
    from kvdoctor.parse.endpoints import Loads, Props, ServerInfo, Slot
    from kvdoctor.parse.gpu import GpuReport
    from kvdoctor.parse.iterstats import IterationRow
    from kvdoctor.parse.kernel import CgroupMemory, KernelLog, Kube, MemInfo, ProcessTable
    from kvdoctor.parse.probe_result import ProbeResult
    from kvdoctor.parse.serverlog import LogEvent
    from kvdoctor.parse.torch_snapshot import TorchSnapshot


T = TypeVar("T")


@frozen
class Histogram:
    """Cumulative buckets ``(upper edge, count)``, ascending, the last edge +Inf; ``total`` and ``sum`` as exposed.

    A summary has ``quantiles`` instead of buckets.
    """

    buckets: tuple[tuple[float, float], ...]
    total: float | None
    sum: float | None
    quantiles: tuple[tuple[float, float], ...] = ()

    def minus(self, earlier: Histogram) -> Histogram | None:
        """What was added since ``earlier``; None when the edges differ or something fell (a reset)."""
        edges = [e for e, _ in self.buckets]
        if edges != [e for e, _ in earlier.buckets]:
            return None
        buckets = tuple((e, c - c0) for (e, c), (_, c0) in zip(self.buckets, earlier.buckets, strict=True))
        if any(c < 0 for _, c in buckets):
            return None
        total = None if self.total is None or earlier.total is None else self.total - earlier.total
        if total is not None and total < 0:
            return None
        added = None if self.sum is None or earlier.sum is None else self.sum - earlier.sum
        return Histogram(buckets, total, added, self.quantiles)

    def plus(self, other: Histogram) -> Histogram | None:
        """Both together (ranks of one server); None when the edges differ."""
        if [e for e, _ in self.buckets] != [e for e, _ in other.buckets]:
            return None
        return Histogram(
            tuple((e, a + b) for (e, a), (_, b) in zip(self.buckets, other.buckets, strict=True)),
            None if self.total is None or other.total is None else self.total + other.total,
            None if self.sum is None or other.sum is None else self.sum + other.sum,
        )

    def quantile(self, q: float) -> float | None:
        """Linear interpolation inside the bucket; the +Inf bucket answers with the last finite edge. None when empty."""
        if not self.buckets:
            exact = [v for p, v in self.quantiles if abs(p - q) < 1e-9 and math.isfinite(v)]
            return exact[0] if exact else None
        count = self.buckets[-1][1]
        if count <= 0:
            return None
        rank = q * count
        previous_edge, previous_count = 0.0, 0.0
        for edge, cumulative in self.buckets:
            if cumulative >= rank:
                if math.isinf(edge):
                    return previous_edge
                inside = cumulative - previous_count
                if inside <= 0:
                    return edge
                return previous_edge + (edge - previous_edge) * (rank - previous_count) / inside
            previous_edge, previous_count = edge, cumulative
        return previous_edge

    def above(self, limit: float) -> tuple[float, float] | None:
        """How many values exceed ``limit``, as an interval: exact when an edge lies there. None when there are no buckets."""
        if not self.buckets:
            return None
        count = self.buckets[-1][1]
        at_most_lo = 0.0  # certainly at or below the limit
        at_most_hi = count
        for edge, cumulative in self.buckets:
            if edge <= limit * (1 + 1e-9):
                at_most_lo = cumulative
            if edge >= limit * (1 - 1e-9):
                at_most_hi = cumulative
                break
        return count - at_most_hi, count - at_most_lo

    @property
    def mean(self) -> float | None:
        """Sum over count, None when either is missing or nothing was observed."""
        if self.sum is None or not self.total:
            return None
        return self.sum / self.total


@frozen
class Reading:
    """A value of a role and the series it came from (``origin:line name``)."""

    value: float
    source: str


Key = tuple[str, str]
"""(rank, key): the rank or engine a value belongs to ('' for the only one) and the value of the splitting label."""


@dataclass(slots=True)
class Scrape:
    """One metrics page of one server in canonical roles."""

    origin: str
    time: float | None
    values: dict[str, dict[Key, Reading]] = field(default_factory=dict)
    histograms: dict[str, dict[Key, tuple[Histogram, str]]] = field(default_factory=dict)
    infos: dict[str, tuple[Mapping[str, str], str]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def ranks(self) -> list[str]:
        """Ranks that report a pool, a queue or running requests, in order."""
        found: dict[str, None] = {}
        for role in ("req.running", "kv.usage", "req.waiting", "preempt.total", "tok.generated"):
            for rank, _ in self.values.get(role, {}):
                found[rank] = None
        return sorted(found, key=rank_order)


def rank_order(rank: str) -> tuple[int, str]:
    """Sort ``'2' < '10'``, words last."""
    return (int(rank), "") if rank.isdigit() else (1 << 30, rank)


@dataclass(slots=True)
class LogRun:
    """One run of a server in one log: its events from banner (or first line) to exit (or last line)."""

    origin: str
    engine: Engine | None
    version: str | None
    args: Args
    events: list[LogEvent]
    first_time: float | None
    last_time: float | None
    clock: str
    model: str
    pids: frozenset[int]
    first_line: int
    last_line: int
    has_start: bool
    dropped: Mapping[str, int]

    def of(self, *kinds: str) -> list[LogEvent]:
        """Events of these kinds, in order."""
        return [e for e in self.events if e.event in kinds]

    def source(self, event: LogEvent) -> str:
        """``file:line`` of an event."""
        return f"{self.origin}:{event.line if event.place is None else event.place}"


@dataclass
class Timed(Generic[T]):
    """A reading of something at a time (None: not dated) from a source."""

    origin: str
    time: float | None
    value: T


@dataclass(slots=True)
class HostReadings:
    """What the snapshot holds about the machine rather than about one server."""

    gpu: list[Timed[GpuReport]] = field(default_factory=list)
    kernel: list[Timed[KernelLog]] = field(default_factory=list)
    processes: list[Timed[ProcessTable]] = field(default_factory=list)
    kube: list[Timed[Kube]] = field(default_factory=list)
    cgroups: list[Timed[CgroupMemory]] = field(default_factory=list)
    meminfo: list[Timed[MemInfo]] = field(default_factory=list)
    exporter: list[Scrape] = field(default_factory=list)
    torch: list[Timed[TorchSnapshot]] = field(default_factory=list)
    probes: list[Timed[ProbeResult]] = field(default_factory=list)


@dataclass(slots=True)
class Target:
    """Everything one server run said. ``scrapes`` are ordered; ``clock`` tells whether they carry time."""

    name: str
    engine: Engine | None
    version: str | None
    model: str | None
    args: Args
    scrapes: list[Scrape] = field(default_factory=list)
    logs: list[LogRun] = field(default_factory=list)
    slots: list[Timed[tuple[Slot, ...]]] = field(default_factory=list)
    props: list[Timed[Props]] = field(default_factory=list)
    server_info: list[Timed[ServerInfo]] = field(default_factory=list)
    loads: list[Timed[Loads]] = field(default_factory=list)
    config: Timed[Mapping[str, object]] | None = None
    iterations: list[Timed[tuple[IterationRow, ...]]] = field(default_factory=list)
    earlier_runs: int = 0
    sources: list[SourceNote] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def clocked(self) -> bool:
        """Every scrape carries a time."""
        return bool(self.scrapes) and all(s.time is not None for s in self.scrapes)

    def events(self, *kinds: str) -> list[tuple[LogRun, LogEvent]]:
        """Events of these kinds over all logs, in file order."""
        return [(run, event) for run in self.logs for event in run.of(*kinds)]

    def newest_version(self) -> str | None:
        """The version; where it is not told, the newest one that prints every message and exports every series that was seen.

        None where nothing bounds it, or where series of a later version say that the names were only kept on.
        """
        if self.version is not None or self.engine is None:
            return self.version
        from kvdoctor.engines.base import version_key

        seen = {event.template for run in self.logs for event in run.events}
        ends = [t.until for t in self.engine.templates if t.until is not None and t.id in seen]
        wire = {r.source.rsplit(" ", 1)[-1] for s in self.scrapes for role in s.values.values() for r in role.values()}
        spans: dict[str, list[SeriesName]] = {name: [] for name in wire}
        for series in self.engine.series:
            for entry in series.names:
                if entry.name in spans:
                    spans[entry.name].append(entry)
        # a name read under several roles exists from the first of them on, and as long as the last
        begins = [min(version_key(e.since) or () for e in entries) for entries in spans.values() if entries]
        lasts = [
            max((e.until for e in entries if e.until is not None), key=lambda end: version_key(end) or ())
            for entries in spans.values()
            if entries and all(e.until is not None for e in entries)
        ]
        last = min(lasts, key=lambda end: version_key(end) or (), default=None)
        if last is not None and max(begins) <= (version_key(last) or ()):
            ends.append(last)
        return min(ends, key=lambda end: version_key(end) or (), default=None)

    def beside(self, tables: Iterable[Engine]) -> tuple[Engine, ...]:
        """Those of the tables of side engines whose messages stand in the logs."""
        seen = {event.template for run in self.logs for event in run.events}
        return tuple(table for table in tables if any(t.id in seen for t in table.templates))

    def setting(self, name: str) -> str | None:
        """A canonical setting from the arguments, by any of the names the engine gives it."""
        names: Iterable[str] = (name,)
        if self.engine is not None:
            names = (*self.engine.canonical_args.get(name, ()), name)
        for key in names:
            value = self.args.get(key)
            if value is not None and value not in ("None", "null", ""):
                return value
        return None

    def default(self, name: str) -> str | None:
        """The version's default of a canonical setting, None when not known."""
        return self.engine.defaults(self.version).get(name) if self.engine is not None else None


@dataclass(slots=True)
class Intake:
    """A whole snapshot, normalised."""

    targets: list[Target]
    host: HostReadings
    bench: list[Timed[tuple[BenchRow, ...]]]
    sources: list[SourceNote]
    warnings: list[str]
    usable: bool
