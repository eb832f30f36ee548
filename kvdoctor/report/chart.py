"""Time lines as inline SVG: no script, drawn to one time axis, honest about where nothing was sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from kvdoctor.frozen import frozen
from kvdoctor.report.markup import Markup, el, join
from kvdoctor.report.words import clock

Point = tuple[float, float]

WIDTH, HEIGHT = 760, 148
LEFT, RIGHT, TOP, BOTTOM = 52, 124, 16, 24
MOST_POINTS = 480
MOST_DOTS = 60
GAP_STEPS = 5.0
"""A pause of more than so many usual steps between two samples is drawn as a gap."""
_LINE_HEIGHT = 13.0
_STEPS_S = (0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@frozen
class Line:
    """One series: points in the order of time, the name written beside its end, and the class that colours it."""

    name: str
    points: Sequence[Point]
    cls: str
    bars: bool = False


@frozen
class Mark:
    """A level drawn across the chart."""

    name: str
    level: float
    cls: str = "mark"


@frozen
class Event:
    """A moment drawn down the chart, by its number in the list of events."""

    t: float
    number: int
    what: str


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most ``most`` points: of every stretch the first, the last, the lowest and the highest stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / max(most // 4, 1))
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        values = [value for _, value in part]
        picked = {0, len(part) - 1, values.index(min(values)), values.index(max(values))}
        kept += [part[at] for at in sorted(picked)]
    return kept


def stretches(points: Sequence[Point]) -> list[list[Point]]:
    """Points split where nothing was sampled for much longer than usual, so that no line is drawn across it."""
    if len(points) < 3:
        return [list(points)] if points else []
    usual = median(b[0] - a[0] for a, b in pairwise(points))
    out: list[list[Point]] = [[points[0]]]
    for before, point in pairwise(points):
        if usual > 0 and point[0] - before[0] > GAP_STEPS * usual:
            out.append([])
        out[-1].append(point)
    return out


def finite(points: Sequence[Point]) -> list[Point]:
    """Points with a time and a value, in the order of time."""
    return sorted((t, v) for t, v in points if math.isfinite(t) and math.isfinite(v))


def nice_top(largest: float) -> float:
    """The smallest round number that is not below ``largest``; 1 for nothing at all."""
    if largest < 1e-300:
        return 1.0  # nothing at all; the power of ten below would be nothing either
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 2.5, 5, 10, 20) if step * power >= largest)


def chart(
    name: str,
    lines: Sequence[Line],
    span: tuple[float, float],
    say: Callable[[float], str],
    *,
    marks: Sequence[Mark] = (),
    events: Sequence[Event] = (),
    top: float | None = None,
    described: str,
) -> Markup:
    """An SVG of ``lines`` over ``span``; ``say`` writes a value, ``described`` is read out instead of the picture."""
    start, end = span if span[1] > span[0] else (span[0] - 1, span[1] + 1)
    drawn = [(line, [thin(part, max(MOST_POINTS * len(part) // max(len(line.points), 1), 8)) for part in stretches(line.points)]) for line in lines]  # fmt: skip
    highest = top if top is not None else nice_top(max((v for line in lines for _, v in line.points), default=0.0))

    def x(t: float) -> float:
        return LEFT + (t - start) / (end - start) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = min(max(value / highest, 0.0), 1.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    body = [el("title", name), el("desc", described), *_grid(start, end, highest, x, y, say), *_moments(events, x)]
    body += [el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_at(y(m.level)), y2=_at(y(m.level)), cls=m.cls) for m in marks]
    for line, parts in drawn:
        draw = _bars if line.bars else _curve
        body += draw(line, parts, x, y, say)
    ends = [(y(mark.level), mark.name, mark.cls) for mark in marks]
    ends += [(y(line.points[-1][1]), line.name, line.cls) for line in lines if line.name and line.points]
    body += _names(ends)
    return el("svg", *body, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{name}. {described}")


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _grid(
    start: float,
    end: float,
    highest: float,
    x: Callable[[float], float],
    y: Callable[[float], float],
    say: Callable[[float], str],
) -> list[Markup]:
    out = []
    for value in (0.0, highest / 2, highest):
        out.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_at(y(value)), y2=_at(y(value)), cls="grid"))
        out.append(el("text", say(value), x=LEFT - 6, y=_at(y(value) + 4), text_anchor="end"))
    step = next((one for one in _STEPS_S if (end - start) / one <= 6), (end - start) / 6)
    t = math.ceil(start / step) * step
    while t <= end:
        when = clock(t) if step < 60 else clock(t)[:-3]
        out.append(el("line", x1=_at(x(t)), x2=_at(x(t)), y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4, cls="grid"))
        out.append(el("text", when, x=_at(x(t)), y=HEIGHT - 6, text_anchor="middle"))
        t += step
    return out


def _moments(events: Sequence[Event], x: Callable[[float], float]) -> list[Markup]:
    """A thin line for each event, numbered at its top; numbers that would overlap are written together."""
    groups: list[list[Event]] = []
    for event in events:
        if groups and x(event.t) - x(groups[-1][0].t) < 22:
            groups[-1].append(event)
        else:
            groups.append([event])
    out = []
    for group in groups:
        for at in dict.fromkeys(_at(x(event.t)) for event in group):
            out.append(el("line", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM, cls="event"))
        first, last = group[0].number, group[-1].number
        told = el("title", "; ".join(event.what for event in group))
        name = f"{first}" if first == last else f"{first}-{last}"
        out.append(el("text", told, name, x=_at(x(group[0].t)), y=TOP - 5, text_anchor="middle", cls="number"))
    return out


def _curve(
    line: Line,
    parts: Sequence[Sequence[Point]],
    x: Callable[[float], float],
    y: Callable[[float], float],
    say: Callable[[float], str],
) -> list[Markup]:
    out = []
    for part in parts:
        path = " ".join(f"{_at(x(t))},{_at(y(v))}" for t, v in part)
        out.append(el("polyline", points=path, cls=f"curve {line.cls}"))
    if len(line.points) <= MOST_DOTS:
        out += [
            el("circle", el("title", f"{clock(t)} {line.name} {say(v)}"), cx=_at(x(t)), cy=_at(y(v)), r=2.5, cls=line.cls)
            for t, v in line.points
        ]  # fmt: skip
    else:
        # a sample without neighbours has no line to be seen by
        out += [el("circle", cx=_at(x(p[0][0])), cy=_at(y(p[0][1])), r=2, cls=line.cls) for p in parts if len(p) == 1]
    return out


def _bars(
    line: Line,
    parts: Sequence[Sequence[Point]],
    x: Callable[[float], float],
    y: Callable[[float], float],
    say: Callable[[float], str],
) -> list[Markup]:
    count = sum(map(len, parts))
    width = min(max((WIDTH - LEFT - RIGHT) / max(count, 1) * 0.5, 1.2), 12.0)
    base = HEIGHT - BOTTOM
    out = []
    few = count <= MOST_DOTS
    for t, v in (point for part in parts for point in part):
        if v <= 0 and not few:
            continue
        tall = max(base - y(v), 1.0)
        told = [el("title", f"{clock(t)} {say(v)}")] if few else []
        out.append(el("rect", *told, x=_at(x(t) - width / 2), y=_at(base - tall), width=_at(width), height=_at(tall), cls=line.cls))  # fmt: skip
    return out


def _names(ends: Sequence[tuple[float, str, str]]) -> list[Markup]:
    """The names beside their lines, moved apart where they would overlap."""
    placed: list[tuple[float, str, str]] = []
    for wanted, name, cls in sorted(ends):
        lowest = placed[-1][0] + _LINE_HEIGHT if placed else 0.0
        placed.append((max(wanted, lowest), name, cls))
    over = placed[-1][0] - (HEIGHT - BOTTOM) if placed else 0.0
    out = []
    for at, name, cls in placed:
        out.append(el("text", name, x=WIDTH - RIGHT + 6, y=_at(at - max(over, 0.0) + 4), cls=f"name {cls}"))
    return out


def share_bar(lo: float, middle: float, hi: float) -> Markup:
    """A share with its interval on a line from 0 to 1; decoration for a number that stands beside it."""
    low, at, high = (min(max(v, 0.0), 1.0) * 110 + 5 for v in (lo, middle, hi))
    parts = [
        el("line", x1=5, x2=115, y1=7, y2=7, cls="track"),
        el("line", x1=_at(low), x2=_at(high), y1=7, y2=7, cls="interval"),
        el("circle", cx=_at(at), cy=7, r=4, cls="s1"),
    ]
    return el("svg", join(parts), viewBox="0 0 120 14", width=120, height=14, aria_hidden="true")


def stack(parts: Sequence[tuple[str, float, str]], whole: float) -> Markup:
    """One bar of (mark, share of ``whole``, class) side by side; a table beside it says what they are."""
    out = []
    at = 0.0
    for mark, amount, cls in parts:
        wide = amount / whole * WIDTH if whole > 0 and amount > 0 else 0.0
        if wide >= 0.05:
            out.append(el("rect", x=_at(at), y=0, width=_at(wide), height=30, cls=cls))
        if wide >= 14:
            out.append(el("text", mark, x=_at(at + wide / 2), y=20, text_anchor="middle", cls="letter"))
        at += wide
    return el("svg", *out, viewBox=f"0 0 {WIDTH} 30", cls="stack", aria_hidden="true")
