"""Lint of the user's own dashboards and alert files against the metrics an engine version really has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kvdoctor.engines.base import engines
from kvdoctor.export import promparse
from kvdoctor.export.catalogue import Entry, Table, newer_than_known, table_of, wire_name
from kvdoctor.export.promparse import Compared, Found
from kvdoctor.export.sources import Expression, Unreadable, expressions
from kvdoctor.findings import Severity
from kvdoctor.frozen import frozen

CHECKS: Mapping[str, tuple[Severity, str]] = {
    "renamed-metric": ("high", "The metric has another name in this version"),
    "removed-metric": ("high", "The metric no longer exists in this version"),
    "later-metric": ("high", "The metric does not exist yet in this version"),
    "unknown-metric": ("high", "No version has a metric of this name"),
    "hidden-metric": ("low", "The metric is shown only on request in this version"),
    "misleading-metric": ("medium", "The metric means something else than it seems to"),
    "histogram-name": ("high", "A histogram is read under its bare name, which carries no samples"),
    "gauge-as-counter": ("high", "A rate is taken of a gauge"),
    "counter-without-rate": ("medium", "A counter is compared as it stands"),
    "absolute-increase": ("medium", "increase() is compared with an absolute number"),
    "average-over-engines": ("medium", "A mean over engines hides the one that is full"),
    "ratio-as-percent": ("high", "A ratio from 0 to 1 is compared with a percentage"),
}
"""What is looked for: severity and one sentence."""

_RATES = frozenset({"rate", "irate", "increase"})
_CHANGES = _RATES | {"delta", "idelta", "deriv", "resets", "changes", "absent", "absent_over_time", "count", "group",
                     "present_over_time", "timestamp", "count_over_time", "histogram_quantile", "label_values"}  # fmt: skip
_OVER_TIME = re.compile(r"(max|min|avg|last|quantile)_over_time")
_USAGE_ROLES = ("kv.usage", "kv.secondary_usage", "kv.cpu_usage", "offload.usage")


@frozen
class Problem:
    """One finding: where, which check, what, and what to write instead (empty when there is nothing)."""

    file: str
    line: int
    check: str
    message: str
    instead: str = ""
    where: str = ""

    @property
    def severity(self) -> Severity:
        """Severity of the check."""
        return CHECKS[self.check][0]

    def text(self) -> str:
        """``file:line: severity: message [check]``."""
        place = f" (in {self.where})" if self.where else ""
        instead = f"; use {self.instead}" if self.instead else ""
        return f"{self.file}:{self.line}: {self.severity}: {self.message}{instead}{place} [{self.check}]"


@frozen
class LintResult:
    """Everything found in some files. ``unreadable`` are files that could not be judged, ``expressions`` how many were."""

    problems: tuple[Problem, ...]
    unreadable: tuple[Unreadable, ...]
    notes: tuple[str, ...]
    expressions: int


def lint(files: Sequence[tuple[str, str]], *, engine: str | None = None, version: str | None = None) -> LintResult:
    """Judge the texts of files given as (path, text).

    ``engine`` and ``version`` name what the metrics come from; metrics of another engine are held against its newest
    version, and so are all without ``version``.
    """
    read: list[Expression] = []
    unreadable: list[Unreadable] = []
    for path, text in files:
        for item in expressions(path, text):
            if isinstance(item, Unreadable):
                unreadable.append(item)
            else:
                read.append(item)
    own = {item.record for item in read if item.record}
    notes: dict[str, None] = {}
    problems: dict[Problem, None] = {}
    for item in read:
        for problem in _judge(item, own, engine, version, notes):
            problems.setdefault(problem)
    ordered = sorted(problems, key=lambda p: (p.file, p.line, p.check, p.message))
    return LintResult(tuple(ordered), tuple(unreadable), tuple(notes), len(read))


def _judge(
    item: Expression, own: set[str], engine: str | None, version: str | None, notes: dict[str, None]
) -> Iterator[Problem]:
    parts = promparse.parse(item.text)

    def problem(check: str, at: int, message: str, instead: str = "") -> Problem:
        return Problem(item.file, item.line_at(at), check, message, instead, item.where)

    for found in promparse.metrics(parts):
        name = wire_name(found.metric.name)
        if found.metric.name in own or name.count(":") > 1:
            continue
        table = table_of(name)
        if table is None:
            continue
        held = version if engine is None or engine == table.engine else None
        if newer_than_known(table, held):
            notes[
                f"{table.engine} {held} is newer than the newest version known here ({table.newest}): "
                "what came or went since then is not seen"
            ] = None
        entry = _entry(table, found.metric.name, name)
        if entry is None:
            if table.complete:
                near = table.near(name)
                yield problem(
                    "unknown-metric", found.metric.at, f"{name} exists in no version of {_title(table)}", near
                )
            continue
        yield from (problem(*rest) for rest in _existence(found, name, entry, table, held))
        if entry.exists(held):
            yield from (problem(*rest) for rest in _use(found, name, entry))
    for compared in promparse.comparisons(parts):
        yield from (problem(*rest) for rest in _comparison(compared, own))


Rest = tuple[str, int, str, str]


def _entry(table: Table, written: str, name: str) -> Entry | None:
    found = table.find(name)
    if found is None and written != name:
        # Ray may drop a counter's _total
        return table.entries.get(name + "_total")
    return found


def _title(table: Table) -> str:
    known = engines().get(table.engine)
    return known.title if known is not None else table.engine


def _existence(found: Found, name: str, entry: Entry, table: Table, version: str | None) -> Iterator[Rest]:
    at = found.metric.at
    shown = f"{_title(table)} {version}" if version else f"the newest {_title(table)}"
    suffix = name.removeprefix(entry.name) if name.startswith(entry.name) else ""
    if entry.not_yet(version):
        older = table.former(entry.name, version)
        yield (
            "renamed-metric" if older else "later-metric",
            at,
            f"{name} is not in {shown}: it is there {entry.span}",
            older.name + suffix if older else "",
        )
        return
    if entry.gone(version):
        # an expression instead of a name takes no _bucket or _sum behind it
        instead = (entry.now or "") + (suffix if entry.now and table.find(entry.now) else "")
        why = f" ({entry.trap or entry.note})" if entry.trap or entry.note else ""
        check = "renamed-metric" if entry.now else "removed-metric"
        yield check, at, f"{name} is not in {shown}: it was there {entry.span}{why}", instead
        return
    if entry.is_hidden(version):
        yield (
            "hidden-metric",
            at,
            f"{name} is deprecated since {entry.hidden} and shown only with --show-hidden-metrics-for-version",
            entry.now or "",
        )
    if entry.trap:
        yield "misleading-metric", at, f"{name}: {entry.trap}", ""


def _use(found: Found, name: str, entry: Entry) -> Iterator[Rest]:
    at = found.metric.at
    inner = found.calls[0] if found.calls else None
    bare = name == entry.name
    if entry.type == "histogram" and bare and (inner is None or inner.name != "label_values"):
        yield (
            "histogram-name",
            at,
            f"{name} is a histogram: samples are under {name}_bucket, {name}_sum and {name}_count",
            f"{name}_bucket",
        )
    if inner is not None and inner.name in _RATES and entry.type == "gauge" and bare:
        yield "gauge-as-counter", at, f"{inner.name}() of {name}, which is a gauge: it goes up and down", ""
    if entry.name in _usage_gauges():
        ranks = _rank_labels(entry.engine)
        for call in found.calls:
            if call.name == "avg":
                if not (call.by is not None and ranks & set(call.by)):
                    yield (
                        "average-over-engines",
                        at,
                        f"avg() of {name} over engines: one full engine among idle ones looks harmless",
                        f"max by (instance) ({name})",
                    )
                break
            if not _OVER_TIME.fullmatch(call.name):
                break


def _comparison(compared: Compared, own: set[str]) -> Iterator[Rest]:
    inside = list(promparse.undivided(compared.side))
    for found in inside:
        name = wire_name(found.metric.name)
        table = table_of(name)
        if found.metric.name in own or table is None:
            continue
        entry = _entry(table, found.metric.name, name)
        if entry is None:
            continue
        calls = [call.name for call in found.calls]
        if "increase" in calls and compared.number != 0:
            yield (
                "absolute-increase",
                found.metric.at,
                f"increase({name}) {compared.op} {compared.number:g}: the number depends on the window, the scrape interval "
                "and the load",
                "a rate(), or a ratio of two rates",
            )
        counter = entry.type == "counter" or (entry.type == "histogram" and name != entry.name)
        if counter and not _CHANGES & set(calls):
            yield (
                "counter-without-rate",
                found.metric.at,
                f"{name} {compared.op} {compared.number:g}: a counter only grows, so this stays true once it is",
                f"rate({name}[5m])",
            )
        plain = all(_OVER_TIME.fullmatch(call) or call in ("max", "min", "avg") for call in calls)
        if entry.name in _usage_gauges() and plain and len(compared.side) == 1 and abs(compared.number) > 1.5:
            yield (
                "ratio-as-percent",
                found.metric.at,
                f"{name} {compared.op} {compared.number:g}: it is a ratio from 0 to 1, in spite of any perc in its name",
                f"{name} {compared.op} {compared.number / 100:g}",
            )


def _usage_gauges() -> frozenset[str]:
    return frozenset(
        name.name
        for engine in engines().values()
        for series in engine.series
        if series.role in _USAGE_ROLES
        for name in series.names
        if name.kind == "gauge"
    )


def _rank_labels(engine: str) -> frozenset[str]:
    known = engines().get(engine)
    return frozenset(known.rank_labels) if known is not None else frozenset()
