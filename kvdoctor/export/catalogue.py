"""Every metric name of every engine with the versions that have it (``metrics.json``), and what the engine tables add.

The file lists names, types and version ranges; which of them mislead, and why, stands in the engine tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kvdoctor.engines.base import engines, in_range, version_key
from kvdoctor.facts import suggest
from kvdoctor.frozen import frozen

_FILE = Path(__file__).with_name("metrics.json")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "summary": ("", "_sum", "_count", "_created"),
    "counter": ("",),
    "gauge": ("",),
    "info": ("", "_info"),
    "unknown": ("", "_total", "_bucket", "_sum", "_count", "_created"),
}


@frozen
class Entry:
    """One metric: ``since`` and ``until`` are releases it was found in (inclusive, None open), ``now`` what replaces it.

    ``hidden``: from that release on only with the engine's option to show deprecated metrics. ``trap``: why it misleads
    although it exists.
    """

    name: str
    engine: str
    type: str
    since: str | None = None
    until: str | None = None
    now: str | None = None
    hidden: str | None = None
    note: str = ""
    trap: str = ""

    def exists(self, version: str | None) -> bool:
        """Is it on the metrics page of this version (None: the newest)? True where that cannot be told."""
        return not (self.not_yet(version) or self.gone(version))

    def not_yet(self, version: str | None) -> bool:
        """Is the version older than the metric?"""
        return version is not None and in_range(version, self.since, None) is False

    def gone(self, version: str | None) -> bool:
        """Is the version newer than the metric's last one?"""
        return self.until is not None if version is None else in_range(version, None, self.until) is False

    def is_hidden(self, version: str | None) -> bool:
        """Is it among the deprecated ones that are not shown by themselves?"""
        return self.hidden is not None and (version is None or in_range(version, self.hidden, None) is True)

    @property
    def span(self) -> str:
        """Its life in words."""
        if self.until is None:
            return f"from {self.since} on" if self.since else "in every release"
        return f"from {self.since} to {self.until}" if self.since else f"up to {self.until}"


@frozen
class Table:
    """The metrics of one engine by exposed name. ``complete``: a name that is not listed does not exist."""

    engine: str
    newest: str | None
    complete: bool
    prefixes: tuple[str, ...]
    entries: Mapping[str, Entry]

    def find(self, name: str) -> Entry | None:
        """The metric a series name belongs to (``..._bucket`` to its histogram), None when there is none."""
        entry = self.entries.get(name)
        if entry is not None:
            return entry
        for suffix in ("_bucket", "_sum", "_count", "_created", "_info", "_total"):
            base = name.removesuffix(suffix)
            if base == name:
                continue
            found = self.entries.get(base)
            if found is None and suffix == "_created":
                found = self.entries.get(base + "_total")
                if found is not None:
                    return found
            if found is not None and suffix in _PARTS[found.type]:
                return found
        return None

    def near(self, name: str) -> str:
        """What may have been meant, empty when nothing is close: first the same name with the ending it has on the wire."""
        if name + "_total" in self.entries:
            return name + "_total"
        if name.endswith("_total") and name.removesuffix("_total") in self.entries:
            return name.removesuffix("_total")
        alive = [n for n, entry in self.entries.items() if entry.until is None]
        close = suggest(name, alive)
        return close[0] if close else ""

    def former(self, name: str, version: str | None) -> Entry | None:
        """The metric that this one replaced, as far as the version has it."""
        for entry in self.entries.values():
            if entry.now == name and entry.exists(version):
                return entry
        return None


@cache
def tables() -> Mapping[str, Table]:
    """Every engine's table by name."""
    document = json.loads(_FILE.read_text(encoding="utf-8"))
    out: dict[str, Table] = {}
    for engine, data in document["engines"].items():
        known = engines().get(engine)
        traps: dict[str, str] = {}
        counters: set[str] = set()
        for series in known.series if known is not None else ():
            for name in series.names:
                if name.ignore:
                    traps[name.name] = name.ignore
                elif name.kind == "counter":
                    counters.add(name.name)
        entries = {
            name: Entry(
                name,
                engine,
                # the engine tables know counters that are declared gauges on the wire
                "counter" if name in counters else row["type"],
                row.get("since"),
                row.get("until"),
                row.get("now"),
                row.get("hidden"),
                row.get("note", ""),
                traps.get(name, row.get("note", "") if row.get("trap") else ""),
            )
            for name, row in data["metrics"].items()
        }
        out[engine] = Table(engine, data["newest"], data["complete"], tuple(data["prefixes"]), entries)
    return out


_RAY = re.compile(r"ray_vllm[_:]")


def wire_name(name: str) -> str:
    """Ray's wrapper writes ``ray_vllm_x`` for ``vllm:x``; other names unchanged."""
    return _RAY.sub("vllm:", name, count=1) if _RAY.match(name) else name


def table_of(name: str) -> Table | None:
    """The engine whose prefix the name has."""
    for table in tables().values():
        if name.startswith(table.prefixes):
            return table
    return None


def newer_than_known(table: Table, version: str | None) -> bool:
    """Is the version beyond the newest release the file was made from?"""
    if version is None or table.newest is None:
        return False
    mine, newest = version_key(version), version_key(table.newest)
    return mine is not None and newest is not None and mine[: len(newest)] > newest
