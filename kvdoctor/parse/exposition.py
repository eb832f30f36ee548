"""Prometheus and OpenMetrics text -> samples, in one pass and without giving up at the first bad line.

Both formats are read by the same code, because real servers mix them: names stay as they are on the wire (no ``_total``
is added or taken away), an exemplar is dropped and never taken for a timestamp, families may be interleaved, lines may
end in CR LF. Sources: the Prometheus text format 0.0.4, OpenMetrics 1.0, and the traps noted in the tests.

Most lines of a scrape are ``name{labels} value`` with label sets that repeat from family to family, so a label set and
a value text are each read once and looked up afterwards; everything unusual takes :func:`_read_line`, which is strict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from kvdoctor.frozen import frozen
from kvdoctor.parse import KEPT_BAD, MAX_LINE, SHOWN, BadLine, bad_line


class Sample(NamedTuple):
    """One value of one series.

    A named tuple rather than a dataclass because a body holds thousands and a frozen dataclass costs four times as much
    to make. ``labels`` is shared by all samples with the same label set: read it, do not change it. ``value`` may be
    NaN or infinite. ``line`` counts from 1. ``time`` is epoch seconds, or None when the line carries no timestamp (or
    one that cannot be true, see :func:`parse`).
    """

    name: str
    labels: Mapping[str, str]
    value: float
    line: int
    time: float | None


class Duplicate(NamedTuple):
    """One series that stands in the body more than once with the same (or no) timestamp; all its samples are kept."""

    name: str
    labels: Mapping[str, str]
    lines: tuple[int, ...]


@frozen
class Exposition:
    """What one body said.

    ``by_name`` keeps the wire name and, within it, the order of the lines. ``types`` is name -> type as declared by
    ``# TYPE`` (the family name, so a histogram's ``_bucket`` series stand under the name without it). ``created`` are
    the names that hold creation times (``_created`` beside a counter, histogram or summary): they say when a series
    began, they are not measurements. ``bad`` holds the first refused lines, ``bad_count`` counts all of them.
    ``truncated`` is True when the body does not end in a line feed; its last line is then refused, because a cut number
    still reads as a number.
    """

    origin: str
    by_name: Mapping[str, list[Sample]]
    types: Mapping[str, str]
    created: frozenset[str]
    bad: tuple[BadLine, ...]
    bad_count: int
    duplicates: tuple[Duplicate, ...]
    truncated: bool
    openmetrics: bool
    lines: int

    @property
    def samples(self) -> list[Sample]:
        """All samples in the order of their lines."""
        return sorted((s for family in self.by_name.values() for s in family), key=lambda s: s.line)

    def named(self, name: str) -> list[Sample]:
        """The samples of one wire name, in the order of their lines; empty when it is not in the body."""
        return self.by_name.get(name, [])

    def times(self) -> tuple[float, float] | None:
        """Earliest and latest timestamp in the body, epoch seconds; None when no line carries one."""
        seen = [s.time for family in self.by_name.values() for s in family if s.time is not None]
        return (min(seen), max(seen)) if seen else None


@frozen
class NotExposition:
    """The text is no metrics page; ``reason`` quotes its first characters."""

    origin: str
    reason: str


_NO_LABELS: dict[str, str] = {}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_QUOTED = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_ESCAPE = re.compile(r'\\([\\"n])')
_UNESCAPED = {"\\": "\\", '"': '"', "n": "\n"}
# the number a well-behaved exporter prints, short enough that float() cannot overflow on it
_DECIMAL = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{2})?", re.ASCII).fullmatch
_BLANK = re.compile(r"[ \t]*")
_COMMENT = re.compile(r"#[ \t]+(TYPE|HELP|UNIT)[ \t]+(\S+)(?:[ \t]+(\S+))?")

# 0.0.4 counts milliseconds and OpenMetrics seconds. A 0.0.4 time below this is before March 1973: no server was running
# then, so the body is a cut OpenMetrics one or nonsense, and no time is better than a wrong one.
_EARLIEST_MS = 1e11
_CREATED = "_created"
_ACCUMULATING = frozenset({"counter", "histogram", "summary", "gaugehistogram"})


class _Refused(Exception):
    """A line that is not a sample; the text says why."""


def parse(text: str, *, origin: str = "", content_type: str | None = None) -> Exposition | NotExposition:
    """Read one metrics body.

    ``content_type`` is the HTTP header, if there was one. A body is OpenMetrics (timestamps in seconds) when that
    header says so or its last line is ``# EOF``; otherwise it is 0.0.4 (timestamps in milliseconds). Never raises on
    any text: a page that holds no sample and declares no metric comes back as :class:`NotExposition`.
    """
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    tail = lines.pop()
    openmetrics = _is_openmetrics(content_type, text)
    truncated = tail != "" and tail.strip() != "# EOF"

    by_name: dict[str, list[Sample]] = {}
    types: dict[str, str] = {}
    bad: list[BadLine] = []
    bad_count = 0
    declared = False
    label_sets = _LabelSets()
    known_labels = label_sets.by_text
    known_values: dict[str, float] = {}
    make = tuple.__new__

    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if line[0] == "#":
            declared = _read_comment(line, types) or declared
            continue
        head, _, value_text = line.rpartition(" ")
        name, brace, label_text = head.partition("{")
        family = by_name.get(name)
        value = known_values.get(value_text)
        if value is None and _DECIMAL(value_text):
            value = known_values[value_text] = float(value_text)
        if brace:
            labels = known_labels.get(label_text)
            if labels is None:
                labels = label_sets.plain(label_text)
        else:
            labels = _NO_LABELS
        time = None
        if family is None or value is None or labels is None:
            if line.isspace():
                continue
            try:
                name, labels, value, time = _read_line(line, label_sets, openmetrics=openmetrics)
            except _Refused as refused:
                bad_count += 1
                if len(bad) < KEPT_BAD:
                    bad.append(bad_line(number, str(refused), line))
                continue
            family = by_name.setdefault(name, [])
        family.append(make(Sample, (name, labels, value, number, time)))

    if truncated:
        bad_count += 1
        bad.append(bad_line(len(lines) + 1, "the body ends inside this line", tail))
    if not by_name and not declared:
        return NotExposition(origin, _what_instead(text))
    return Exposition(
        origin=origin,
        by_name=by_name,
        types=types,
        created=_creation_names(by_name, types),
        bad=tuple(bad),
        bad_count=bad_count,
        duplicates=_duplicates(by_name),
        truncated=truncated,
        openmetrics=openmetrics,
        lines=len(lines) + (1 if tail else 0),
    )


class _LabelSets:
    """Label texts already read, and one shared dict per distinct label set whatever its order or spacing."""

    def __init__(self) -> None:
        self.by_text: dict[str, dict[str, str]] = {}
        self._by_content: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._keys: dict[str, str] = {}

    def shared(self, labels: dict[str, str]) -> dict[str, str]:
        if not labels:
            return _NO_LABELS
        return self._by_content.setdefault(tuple(sorted(labels.items())), labels)

    def plain(self, text: str) -> dict[str, str] | None:
        """Read ``a="b",c="d"}``, or None when it needs the strict reader (escapes, quoted names, anything odd).

        Without a backslash a quote can only open or close a value, so splitting at quotes is exact whatever the values
        hold.
        """
        if "\\" in text or not text.endswith("}"):
            return None
        parts = text[:-1].split('"')
        if len(parts) % 2 == 0 or parts[-1] not in ("", ","):
            return None
        keys, values = parts[0:-1:2], parts[1::2]
        labels: dict[str, str] = {}
        for position, (key, value) in enumerate(zip(keys, values, strict=True)):
            name = self._keys.get(key)
            if name is None:
                bare = key[1:-1] if position else key[:-1]
                if key[-1:] != "=" or not _LABEL_NAME.fullmatch(bare) or (position and key[0] != ","):
                    return None
                name = bare
                if position:
                    self._keys[key] = bare
            labels[name] = value
        if len(labels) != len(keys) or (not keys and parts[0]):
            return None
        labels = self.shared(labels)
        self.by_text[text] = labels
        return labels


def _read_line(
    line: str, label_sets: _LabelSets, *, openmetrics: bool
) -> tuple[str, dict[str, str], float, float | None]:
    """Read one sample line strictly. Raises :class:`_Refused` with the reason."""
    if len(line) > MAX_LINE:
        raise _Refused(f"longer than {MAX_LINE} characters")
    start = _skip(line, 0)
    name_match = _NAME.match(line, start)
    position = name_match.end() if name_match else start
    name = name_match.group() if name_match else ""
    position = _skip(line, position)
    labels = _NO_LABELS
    if line[position : position + 1] == "{":
        body = line[position + 1 :]
        close = body.rfind("} ") + 1
        plain = label_sets.plain(body[:close]) if close and name else None
        if plain is not None:
            labels, position = plain, position + 1 + close
        else:
            quoted_name, labels, position = _read_labels(line, position + 1, label_sets)
            if name and quoted_name:
                raise _Refused("two metric names")
            name = name or quoted_name
    elif name_match and position == name_match.end() and position < len(line):
        raise _Refused("not a metric name")
    if not name:
        raise _Refused("not a metric name")
    words = line[position:].split(" # ", 1)[0].split()
    if not words:
        raise _Refused("no value")
    value = _read_number(words[0])
    if len(words) > 1 and words[1].startswith("#"):
        words = words[:1]
    if len(words) > 2:
        raise _Refused("more than a value and a timestamp")
    return name, labels, value, _read_time(words[1], openmetrics=openmetrics) if len(words) == 2 else None


def _read_labels(line: str, position: int, label_sets: _LabelSets) -> tuple[str, dict[str, str], int]:
    """Read labels from after ``{`` to after ``}``: quoted metric name (or ""), labels, next position."""
    metric = ""
    labels: dict[str, str] = {}
    first = True
    while True:
        position = _skip(line, position)
        if line[position : position + 1] == "}":
            return metric, label_sets.shared(labels), position + 1
        quoted = _QUOTED.match(line, position)
        if quoted:
            key, position = _unescape(quoted.group(1)), quoted.end()
        else:
            bare = _LABEL_NAME.match(line, position)
            if not bare:
                raise _Refused("labels not closed" if position >= len(line) else "not a label name")
            key, position = bare.group(), bare.end()
        position = _skip(line, position)
        if line[position : position + 1] == "=":
            value = _QUOTED.match(line, _skip(line, position + 1))
            if not value:
                raise _Refused("label value not closed")
            if key in labels:
                raise _Refused(f"label {key[:SHOWN]} twice")
            labels[key], position = _unescape(value.group(1)), value.end()
        elif quoted and first:
            metric = key
        else:
            raise _Refused("label without a value")
        first = False
        position = _skip(line, position)
        if line[position : position + 1] == ",":
            position += 1
        elif line[position : position + 1] != "}":
            raise _Refused("labels not closed" if position >= len(line) else "no comma between labels")


def _skip(line: str, position: int) -> int:
    blank = _BLANK.match(line, position)
    return blank.end() if blank else position


def _unescape(text: str) -> str:
    """Undo ``\\\\``, ``\\"`` and ``\\n``; any other backslash stands for itself, as other readers have it."""
    return _ESCAPE.sub(lambda found: _UNESCAPED[found.group(1)], text) if "\\" in text else text


def _read_number(text: str) -> float:
    # float() also takes 1_000 and the digits of other scripts: no exporter writes them
    if "_" in text or not text.isascii():
        raise _Refused("not a number")
    try:
        value = float(text)
    except ValueError:
        raise _Refused("not a number") from None
    if math.isinf(value) and "n" not in text.lower():
        raise _Refused("number out of range")
    return value


def _read_time(text: str, *, openmetrics: bool) -> float | None:
    stamp = _read_number(text)
    if not math.isfinite(stamp):
        raise _Refused("not a timestamp")
    if openmetrics:
        return stamp
    return stamp / 1000 if stamp >= _EARLIEST_MS else None


def _read_comment(line: str, types: dict[str, str]) -> bool:
    """Note a ``# TYPE`` line; True when the comment is one that only a metrics page has."""
    found = _COMMENT.match(line[:MAX_LINE])
    if not found:
        return False
    keyword, name, kind = found.groups()
    if keyword == "TYPE" and kind:
        types[name.strip('"')] = kind.lower()
    return True


def _is_openmetrics(content_type: str | None, text: str) -> bool:
    if content_type is not None and "openmetrics" in content_type.lower():
        return True
    return text[-SHOWN:].rstrip().endswith("# EOF")


def _creation_names(by_name: Mapping[str, list[Sample]], types: Mapping[str, str]) -> frozenset[str]:
    found = set()
    for name in by_name:
        if name.endswith(_CREATED):
            base = name.removesuffix(_CREATED)
            kind = types.get(base) or types.get(f"{base}_total")
            if kind in _ACCUMULATING or f"{base}_total" in by_name or f"{base}_count" in by_name:
                found.add(name)
    return frozenset(found)


def _duplicates(by_name: Mapping[str, list[Sample]]) -> tuple[Duplicate, ...]:
    found: list[Duplicate] = []
    for name, family in by_name.items():
        # equal label sets are one object, so identity is enough and much cheaper than comparing dicts
        if len(family) == 1 or len({id(s.labels) for s in family}) == len(family):
            continue
        lines: dict[tuple[int, float | None], list[Sample]] = {}
        for sample in family:
            lines.setdefault((id(sample.labels), sample.time), []).append(sample)
        found += [Duplicate(name, g[0].labels, tuple(s.line for s in g)) for g in lines.values() if len(g) > 1]
    return tuple(found)


def _what_instead(text: str) -> str:
    start = " ".join(text[: 10 * SHOWN].split())[:SHOWN]
    if not start:
        return "empty"
    kind = {"<": "an HTML or XML page", "{": "JSON", "[": "JSON"}.get(start[0], "text without a metric")
    return f"{kind}, not a metrics page: {start!r}"
