"""Logs that begin with their newest line: exports of Grafana, Loki, Google Cloud and others are written that way."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

LOOK = 256 << 10
"""Bytes at the start of a log by which its order is told."""

LOOK_LINES = 800

MOST = 32 << 20
"""Bytes of the largest log that is turned round (it has to be held whole); an export is far smaller."""

FEWEST_STEPS = 4
"""Steps back in time below which an order is not believed."""

HARDLY = 5
"""Times as many steps back as forward. Lines of several processes are not exactly in order either way."""

_KEY = re.compile(rb'\s{0,16}"([\w.@-]{1,64})"\s{0,4}:')
_DATE = re.compile(
    rb"\d{4}[-/]\d\d[-/]\d\d(?:[T ]| - )\d\d:\d\d|\d\d/\d\d/\d{4}[- ]\d\d:\d\d|\d\d-\d\d \d\d:\d\d:\d\d|"
    rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} \d\d:\d\d"
)
_LEADING = re.compile(rb'"?\d{4}[-/]\d\d[-/]\d\d(?:[T ]| - )\d\d:\d\d')
_OPENS = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{\s*\n")


def newest_first(head: bytes, time_of: Callable[[bytes], tuple[float, str] | None]) -> bool:
    """Do the dated lines go back in time, and hardly any forward? ``time_of`` gives a line's time and its kind of clock.

    A record that is spread over lines has several times (written, received, the message's own): each is compared with that
    of the same name in the record before.
    """
    before: dict[tuple[str, bytes], float] = {}
    back = forward = 0
    # where the first step back began: what stands above the records (a head line, a note) may have any time
    began: dict[tuple[str, bytes], float] = {}
    for raw in head.split(b"\n")[:LOOK_LINES]:
        found = time_of(raw) if raw else None
        if found is None:
            continue
        # processes that write at once are out of order by parts of a second, in either order
        time, clock = math.floor(found[0]), found[1]
        name = _KEY.match(raw)
        track = clock, name.group(1) if name else b""
        if track in before:
            if time < before[track]:
                back += 1
                began.setdefault(track, before[track])
            forward += time > before[track]
            if forward >= FEWEST_STEPS and forward * HARDLY > back:
                return False
        before[track] = time
    return back >= max(FEWEST_STEPS, HARDLY * forward) and all(before[track] < time for track, time in began.items())


def turned(whole: bytes) -> tuple[bytes, list[int]]:
    """The log with its records in the order in which they were written, and the line of the file of each of its lines.

    The lines of one record stay together and in their order; what stands above the first record stays there.
    """
    lines = whole.removesuffix(b"\n").split(b"\n")
    starts = [index for index, begins in enumerate(map(_start_of_record(whole, lines), lines)) if begins]
    if not starts:
        return whole, list(range(1, len(lines) + 1))
    order = list(range(starts[0]))
    for begin, end in zip(reversed(starts), reversed([*starts[1:], len(lines)]), strict=True):
        order.extend(range(begin, end))
    return b"\n".join([lines[index] for index in order]) + b"\n", [index + 1 for index in order]


def _start_of_record(whole: bytes, lines: Sequence[bytes]) -> Callable[[bytes], bool]:
    if _OPENS.match(whole):
        # a printed array: its records open at one depth, what they hold lies deeper
        opening = next(line for line in lines if line.lstrip(b"\xef\xbb\xbf[ \t\r").startswith(b"{"))
        depth = opening[: opening.index(b"{") + 1].replace(b"\xef\xbb\xbf", b"")
        return lambda line: line.rstrip(b"\r") == depth or line == opening
    dated = [line for line in lines[:LOOK_LINES] if _DATE.search(line[:200])]
    # rows of a table, or lines of a collector, begin with its own stamp: a date further right is in what they quote
    leading = sum(1 for line in dated if _LEADING.match(line))
    if leading * 2 > len(dated):
        return lambda line: _LEADING.match(line) is not None
    return lambda line: line.lstrip()[:1] == b"{" or _DATE.search(line[:200]) is not None


def in_pieces(text: bytes, size: int) -> Iterator[bytes]:
    """A text in pieces of ``size`` bytes."""
    return (text[at : at + size] for at in range(0, len(text), size))
