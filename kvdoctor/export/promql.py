"""An engine's PromQL templates, filled in for one version, window and selection of targets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kvdoctor.engines._promql import GROUP_PROMQL
from kvdoctor.engines.base import (
    COMMON_SERIES,
    Engine,
    Promql,
    SeriesName,
    engines,
    gap_for,
    in_range,
    version_key,
)
from kvdoctor.facts import FACTS

End = Literal["", "lo", "hi"]
ENDS: tuple[End, ...] = ("", "lo", "hi")

WINDOWS = ("target.window_s", "host.rss_window_s")
"""Facts that are the length of the window a query looks at."""

_ROLE = re.compile(
    r"<(?P<role>[a-z_]+\.[a-z_0-9]+)(?:#(?P<key>\w+))?(?::(?P<part>bucket|sum|count))?(?:,(?P<more>[^<>]*))?>"
)
_FACT = re.compile(r"\$\{([a-z_]+\.[a-z_0-9]+)\}")
_SCALE = re.compile(r"\{scale:([a-z_]+\.[a-z_0-9]+)\}")
_DURATION = re.compile(r"(\d+)(ms|[smhd])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MATCHER = re.compile(r'\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*')


class SelectError(ValueError):
    """A label selector or a window that cannot be read; ``str()`` says what is wanted."""


def seconds(duration: str) -> float:
    """``5m`` -> 300, ``1500ms`` -> 1.5. Raises :class:`SelectError`."""
    match = _DURATION.fullmatch(duration)
    if match is None or int(match[1]) == 0:
        raise SelectError(f"{duration!r} is not a duration such as 5m")
    return int(match[1]) * _SECONDS[match[2]]


def matchers(text: str) -> tuple[str, ...]:
    """``job="vllm",zone=~"a|b"`` (braces allowed) as single matchers. Raises :class:`SelectError`."""
    rest = text.strip().removeprefix("{").removesuffix("}").strip()
    out: list[str] = []
    while rest:
        match = _MATCHER.match(rest)
        if match is None:
            raise SelectError(f'{text!r} is not a label selector such as job="vllm",zone=~"a|b" (at {rest[:20]!r})')
        out.append(f'{match[1]}{match[2]}"{match[3]}"')
        rest = rest[match.end() :]
        if rest and not rest.startswith(","):
            raise SelectError(f"{text!r}: a comma is wanted at {rest[:20]!r}")
        rest = rest.removeprefix(",").strip()
    return tuple(out)


_CALL = re.compile(r"[a-z_]+ ?(?:by \([^()]*\) ?)?\(")


def enclosed(text: str) -> str:
    """The expression in parentheses, unless it is one call already."""
    match = _CALL.match(text)
    if match is None:
        return f"({text})"
    depth = 1
    quote = False
    for at in range(match.end(), len(text)):
        char = text[at]
        quote ^= char == '"'
        depth += 0 if quote else (char == "(") - (char == ")")
        if depth == 0:
            return text if at == len(text) - 1 else f"({text})"
    return f"({text})"


def quoted(value: str) -> str:
    """A PromQL string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def as_duration(length: float) -> str:
    """3600 -> ``1h``, 90 -> ``90s``: the shortest spelling."""
    whole = math.ceil(length)
    for unit in ("d", "h", "m"):
        if whole % _SECONDS[unit] == 0:
            return f"{whole // int(_SECONDS[unit])}{unit}"
    return f"{whole}s"


def why_missing(engine: Engine, version: str | None, fact: str) -> str:
    """Why a fact cannot be had from this engine's metrics, in a few words."""
    gap = gap_for(engine, fact, version)
    # a gap of the whole pool is about an exporter that is switched off, which a rule file cannot know
    if gap is not None and gap.fact != "kv":
        return gap.reason
    row = FACTS[fact]
    if row.level == "g":
        return "read from the device (NVML), not from the engine's metrics"
    if row.level == "x":
        return "a comparison of several runs"
    if row.span == "e":
        return "told by log lines, not by a series"
    if row.span in ("s", "c"):
        return "told at start-up or by the configuration, not by a number in a series"
    return f"no series of {engine.title}{' ' + version if version else ''} gives it"


@dataclass(frozen=True)
class Templates:
    """One engine's templates for one version (None: the newest names), window and selection.

    ``by`` are the labels that name a server; ``select`` are matchers put on every series.
    """

    engine: Engine
    version: str | None = None
    window: str = "5m"
    by: tuple[str, ...] = ("job", "instance")
    select: tuple[str, ...] = ()
    _stack: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _made: dict[tuple[str, End, str], str | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    # ---------------------------------------------------------------- names

    @cached_property
    def _foreign(self) -> tuple[str, ...]:
        own = self.engine.metric_prefixes[0]
        return tuple(p for e in engines().values() for p in e.metric_prefixes if p != own)

    def name(self, role: str, key: str = "") -> SeriesName | None:
        """The wire name of a role in this version, None when there is none.

        Only names of the engine's own metrics page count: the same series renamed by a wrapper (Ray), or on another
        endpoint, is left out.
        """
        own = self.engine.metric_prefixes[0]
        for series in (*self.engine.series, *COMMON_SERIES):
            if series.role != role or (key and series.names[0].key != key):
                continue
            for name in series.names:
                if name.ignore or (self.version is None and name.until is not None):
                    continue
                if in_range(self.version, name.since, name.until) is False:
                    continue
                if name.name.startswith(own) or not name.name.startswith(self._foreign):
                    return name
        return None

    def _role(self, match: re.Match[str]) -> str:
        found = self.name(match["role"], match["key"] or "")
        if found is None:
            raise LookupError(match["role"])
        part = f"_{match['part']}" if match["part"] else ""
        where = [f"{label}={quoted(value)}" for label, value in found.where.items()]
        more = match["more"].split(",") if match["more"] else []
        labels = ",".join((*self.select, *where, *more))
        return f"{found.name}{part}" + (f"{{{labels}}}" if labels else "")

    def _scale(self, match: re.Match[str]) -> str:
        found = self.name(match[1])
        if found is None:
            raise LookupError(match[1])
        return f"{found.scale:.12g}"

    def fill(self, text: str) -> str | None:
        """A template text with every placeholder filled in; None when a role or fact in it cannot be had."""
        try:
            text = _FACT.sub(self._inner, text)
            text = _ROLE.sub(self._role, text)
            text = _SCALE.sub(self._scale, text)
        except LookupError:
            return None
        return (
            text.replace("{win}", self.window)
            .replace("{seconds}", f"{seconds(self.window):.12g}")
            .replace("{by}", ", ".join(self.by))
            .replace("{ranks}", ", ".join(self.engine.rank_labels))
            .replace(", )", ")")
        )

    def _inner(self, match: re.Match[str]) -> str:
        text = self.fact(match[1])
        if text is None:
            raise LookupError(match[1])
        return enclosed(text)

    # ---------------------------------------------------------------- facts

    @cached_property
    def _entries(self) -> Mapping[str, Sequence[Promql]]:
        out: dict[str, list[Promql]] = {}
        for entry in self.engine.promql:
            if self.version is None:
                usable = entry.until is None
            else:
                usable = in_range(self.version, entry.since, entry.until) is not False
            if usable:
                out.setdefault(entry.fact, []).append(entry)
        return out

    def fact(self, name: str, end: End = "", choice: str = "") -> str | None:
        """The expression of a fact; None when it cannot be had.

        ``end`` also takes entries that are only the lower or upper end. Raises ``RecursionError`` for a template that
        refers to itself.
        """
        key = (name, end, choice)
        if key not in self._made:
            if name in self._stack:
                raise RecursionError(f"the template of {name} refers to itself: {' > '.join(self._stack)}")
            self._stack.append(name)
            try:
                self._made[key] = self._joined(name, end, choice)
            finally:
                self._stack.pop()
        return self._made[key]

    def _joined(self, name: str, end: End, choice: str) -> str | None:
        parts = [
            text
            for entry in self._entries.get(name, ())
            if entry.end in ("", end) and entry.choice == choice and (text := self.fill(entry.expr)) is not None
        ]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else " or ".join(enclosed(part) for part in dict.fromkeys(parts))

    def bounded(self, name: str, end: End) -> bool:
        """Is there an entry that gives only this end of the fact?"""
        return any(
            entry.end == end and self.fill(entry.expr) is not None for entry in self._entries.get(name, ()) if end
        )

    def exact(self, name: str) -> bool:
        """Does every entry of the fact look at the same instants as the fact (no subquery)?"""
        return all(entry.exact for entry in self._entries.get(name, ()))

    def facts(self) -> tuple[str, ...]:
        """Every fact that can be had exactly or as a bound."""
        names = dict.fromkeys(entry.fact for entry in self.engine.promql if not entry.choice)
        return tuple(n for n in names if any(self.fact(n, end) for end in ENDS))

    def group(self, name: str) -> str | None:
        """A fact of the replicas of one job, None when it cannot be had."""
        for entry in GROUP_PROMQL:
            if entry.fact == name:
                return self.fill(entry.expr)
        return None

    # ---------------------------------------------------------------- what is fixed

    @cached_property
    def constants(self) -> Mapping[str, float | str]:
        """Facts that need no query: the window's length, and that an engine without preemption has none."""
        out: dict[str, float | str] = {name: seconds(self.window) for name in WINDOWS}
        if self.engine.never_preempts(self.version, {}):
            out |= {"preempt.count": 0.0, "preempt.rate": 0.0, "preempt.per_finished": 0.0}
        kind = self.engine.preempt_kind(self.version, {})
        if kind is not None and not any(entry.choice for entry in self._entries.get("preempt.kind", ())):
            out["preempt.kind"] = kind
        return out


def check_version(engine: Engine, version: str | None) -> None:
    """Raises :class:`SelectError` when ``version`` is no version."""
    if version is not None and version_key(version) is None:
        raise SelectError(f"{version!r} is not a version of {engine.title}, such as 0.11.2")
