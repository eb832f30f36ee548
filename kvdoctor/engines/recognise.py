"""Which engine a source comes from, and what kind of source it is. Told by content, never by name alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache

from kvdoctor.engines import _start_logs
from kvdoctor.engines.base import Engine, engines
from kvdoctor.parse import sniff
from kvdoctor.parse.exposition import Exposition
from kvdoctor.parse.serverlog import LogTemplate, decode, detect_encoding, searchable

EDGE = 4 << 20
"""Bytes at the start and at the end of a log that are searched for an engine's markers."""

LONGEST = 4000
"""Characters of a line that are looked at to tell an engine by one message."""

KINDS = frozenset(
    [
        "exposition",
        "log",
        "log-events",
        "smi-query",
        "smi-apps",
        "smi-table",
        "smi-q",
        "smi-xml",
        "kernel",
        "ps",
        "kubectl",
        "cgroup",
        "meminfo",
        "iterstats",
        "slots",
        "props",
        "server-info",
        "router-info",
        "model-config",
        "loads",
        "torch-snapshot",
        "probe",
        "bench-csv",
        "version",
        "models",
        "command",
    ]
)
"""Kinds of members that are understood; a member that says one of them is not sniffed."""

TELLING = frozenset(
    {"start_error", "context_limit", "request_failed", "preempt", "retract", "concurrency", "idle_check", "exit"}
)
"""Events of which one line is enough to name the engine that prints it, when a log holds no marker."""


@cache
def servers() -> tuple[Engine, ...]:
    """Tables of servers, in the order of their names."""
    return tuple(e for e in engines().values() if not e.side)


@cache
def side() -> tuple[Engine, ...]:
    """Tables of what stands beside a server (a cache tier, a GPU exporter)."""
    return tuple(e for e in engines().values() if e.side)


@cache
def _markers() -> tuple[str, ...]:
    return tuple(m for e in engines().values() for m in e.log_markers)


def kind_of(head: bytes, told: str | None, *, forced: bool = False, name: str = "") -> str:
    """The kind of a source from what its member says, else from its first bytes; with ``forced``, unknown text is a log."""
    kind = told if told in KINDS else sniff.sniff(head, _markers(), name)
    if kind == "unknown" and (forced or _says_something(head)):
        return "log"
    return kind or "unknown"


def _says_something(head: bytes) -> bool:
    """A line by itself, without a level or a time: a refusal, or a message that tells its engine."""
    edges = [searchable(head)]
    return any(_matches(t, edges) for t in _start_logs.TEMPLATES) or _by_message(edges) is not None


def _matches(template: LogTemplate, edges: Sequence[bytes]) -> bool:
    literal = template.literal.encode()
    return any(
        re.search(template.pattern, line.decode("utf-8", "replace")[:LONGEST]) is not None
        for edge in edges
        if literal in edge
        for line in edge.split(b"\n")
        if literal in line
    )


@cache
def _telling() -> tuple[tuple[Engine, LogTemplate], ...]:
    """Messages only one engine prints; access-log lines are every server's."""
    return tuple(
        (engine, template)
        for engine in servers()
        for template in engine.templates
        if template.event in TELLING and not template.literal.startswith('"')
    )


def _by_message(edges: Sequence[bytes]) -> Engine | None:
    """The one server whose telling messages occur; None when none does, or those of several."""
    found = {engine.name: engine for engine, template in _telling() if _matches(template, edges)}
    return next(iter(found.values())) if len(found) == 1 else None


def text_of(raw: bytes) -> str:
    """A whole source as text: UTF-16 by its marks, else UTF-8, else Latin-1; without a byte order mark."""
    encoding = detect_encoding(raw[:4096])
    text = decode(raw) if encoding == "utf-8" else raw.decode(encoding, "replace")
    return text.removeprefix("\ufeff")


def count(names: Iterable[str], engine: Engine) -> int:
    """How many metric names are the engine's."""
    return sum(1 for name in names if name.startswith(engine.metric_prefixes)) if engine.metric_prefixes else 0


def of_page(names: Iterable[str]) -> Engine | None:
    """The server whose names a metrics page holds most of."""
    listed = tuple(names)
    scored = [(found, -i, e) for i, e in enumerate(servers()) if (found := count(listed, e))]
    return max(scored)[2] if scored else None


def page_time(page: Exposition, told: float | None) -> float | None:
    """The time a page carries in its samples, else ``told``."""
    for samples in page.by_name.values():
        for sample in samples:
            if sample.time is not None:
                return sample.time
        break
    return told


def of_log(edges: Sequence[bytes]) -> Engine | None:
    """The server whose markers occur most in a log's edges (a tie goes to the one with more different markers).

    Without any marker, the one whose messages occur: tickets often quote a single line.
    """
    best: tuple[int, int, int] | None = None
    found: Engine | None = None
    edges = [searchable(edge) for edge in edges]
    for index, engine in enumerate(servers()):
        kinds = hits = 0
        for marker in engine.log_markers:
            seen = sum(min(edge.count(marker.encode()), 50) for edge in edges)
            kinds += seen > 0
            hits += seen
        score = (kinds, hits, -index)
        if hits and (best is None or score > best):
            best, found = score, engine
    return found or _by_message(edges)


KERNEL_WORDS = (b"NVRM: Xid", b"oom-kill:", b"Out of memory: Kill", b"Memory cgroup out of memory", b"soft lockup")
"""Words of the kernel that decide; a server never prints them itself."""


def kernel_lines(edges: Sequence[bytes]) -> str | None:
    """The edges of a log as text for the kernel's reader, when the kernel speaks in it (a journal); None otherwise."""
    edges = [edge if detect_encoding(edge) == "utf-8" else text_of(edge).encode() for edge in edges]
    if not any(word in edge for edge in edges for word in KERNEL_WORDS):
        return None
    from kvdoctor.parse import kernel

    return "\n".join(kernel.journal_line(line) for edge in edges for line in text_of(edge).splitlines())


def log_templates(found: Engine | None, edges: Sequence[bytes]) -> list[LogTemplate]:
    """What a log is read with: its engine's templates, refusals common to all, and those of a side engine that occurs."""
    templates = [*(found.templates if found else ()), *_start_logs.TEMPLATES]
    edges = [searchable(edge) for edge in edges]
    for other in side():
        if other.templates and any(m.encode() in e for m in other.log_markers for e in edges):
            templates.extend(other.templates)
    return templates


def year_of(times: Sequence[float | None], taken: float | None) -> int | None:
    """The year to date yearless stamps with: of the earliest member's time, else of the capture."""
    known = [t for t in times if t is not None] or ([taken] if taken else [])
    return datetime.fromtimestamp(min(known), UTC).year if known else None
