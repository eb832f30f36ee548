"""A snapshot played as if it happened now: its pages at their recorded times, its logs line by line."""

from __future__ import annotations

import json
import os
import re
import threading
import time as _time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvdoctor.pipeline import Options, Sliding
from kvdoctor.rulebook.rule import Rule
from kvdoctor.snapshot import Member, Snapshot, memory_member
from kvdoctor.watch.sample import LogBytes, Page, Sample

APART_S = 3600.0
UNDATED_STEP_S = 5.0


@dataclass(slots=True)
class _Tick:
    pages: list[Page] = field(default_factory=list)
    others: list[Member] = field(default_factory=list)
    logs: list[LogBytes] = field(default_factory=list)


class Replay:
    """Samples of ``snapshot`` at ``speed`` times the recorded pace. Pages without a time come in
    their order, five seconds apart.

    A log is played by the times of its lines where they fit those of the pages; else it is there from the start.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        rules: Sequence[Rule],
        options: Options,
        *,
        speed: float = 1.0,
        duration_s: float | None = None,
        steady: Callable[[], float] = _time.monotonic,
    ) -> None:
        self._speed = speed
        self._steady = steady
        self._duration_s = duration_s
        self._ticks: dict[float, _Tick] = {}
        self._notes: list[str] = []
        self._lay(snapshot, Sliding(rules, options))
        self._times = sorted(self._ticks)
        self._at = 0
        self._due = steady()
        self._hurry = threading.Event()

    def __len__(self) -> int:
        return len(self._times)

    def refresh(self) -> None:
        self._hurry.set()

    def close(self) -> None:
        self._times = self._times[: self._at]

    def next(self, stop: threading.Event) -> Sample | None:
        if self._at >= len(self._times):
            return None
        time = self._times[self._at]
        if self._duration_s is not None and time - self._times[0] > self._duration_s:
            return None
        if self._at:
            self._due += (time - self._times[self._at - 1]) / self._speed
        while not stop.is_set() and not self._hurry.is_set() and (left := self._due - self._steady()) > 0:
            stop.wait(min(left, 0.2))
        if stop.is_set():
            return None
        if self._hurry.is_set():
            self._hurry.clear()
            self._due = self._steady()
        tick = self._ticks.pop(time)
        warnings = tuple(self._notes) if self._at == 0 else ()
        self._at += 1
        return Sample(time, tuple(tick.pages), tuple(tick.others), tuple(tick.logs), (), warnings)

    # ------------------------------------------------------------ laying it out

    def _lay(self, snapshot: Snapshot, sliding: Sliding) -> None:
        """Sort everything into ticks. Of dated pages only the first of each kind is read: an hour of them is a lot."""
        groups: dict[tuple[str, str], list[Member]] = {}
        rest: list[Member] = []
        for member in snapshot.members:
            if sliding.kind_of(member) == "exposition":
                groups.setdefault((_place(member.origin), re.sub(r"\d+", "#", member.name)), []).append(member)
            else:
                rest.append(member)
        some = [m for group in groups.values() for m in group if m is group[0] or m.time is None]
        sliding.report(replace(snapshot, members=(*rest, *some)))
        engines = {key: sliding.engine_of(group[0]) for key, group in groups.items()}
        servers = _server_names({key: engine for key, engine in engines.items() if engine is not None})
        times = dict(sliding.pages)
        order = {origin: number for number, (origin, _) in enumerate(sliding.pages)}
        pages: list[tuple[float | None, int, Page]] = []
        for key, group in groups.items():
            if engines[key] is None:
                rest += group
                continue
            for member in group:
                time = times.get(member.origin, member.time) if member.time is None else member.time
                page = Page(servers[key], replace(member, kind="exposition"))
                pages.append((time, order.get(member.origin, len(order)), page))
        spans = {m.origin: _schedule(m, sliding) for m in rest if sliding.runs(m.origin)}
        undated = sorted(((n, p) for t, n, p in pages if t is None), key=lambda np: np[0])
        known = [t for t, _, _ in pages if t is not None]
        dated = [t for span in spans.values() for t, _ in span]
        if known:
            first = min(known)
        elif dated and not undated:
            first = min(dated)
        else:
            first = snapshot.taken if snapshot.taken is not None else 0.0
        for number, (_, page) in enumerate(undated):
            self._tick(first + number * UNDATED_STEP_S).pages.append(page)
        for time, _, page in pages:
            if time is not None:
                self._tick(time).pages.append(page)
        if undated:
            self._notes.append(
                f"{len(undated)} of {len(pages)} metrics pages carry no time: they come in their order, "
                f"{UNDATED_STEP_S:.0f} s apart"
            )
        last = max([*self._ticks, first])
        for member in rest:
            if member.origin in spans:
                self._lay_log(member, spans[member.origin], first, last if pages else None)
            else:
                at = member.time if member.time is not None and first <= member.time <= last else first
                self._tick(at).others.append(member)

    def _tick(self, time: float) -> _Tick:
        return self._ticks.setdefault(time, _Tick())

    def _lay_log(self, member: Member, span: list[tuple[float, int]], first: float, last: float | None) -> None:
        """Lines up to the n-th at a time, for each (time, n) of ``span``."""
        data = member.read()
        fits = bool(span) and (last is None or (span[0][0] <= last + APART_S and span[-1][0] >= first - APART_S))
        if not fits:
            self._notes.append(f"{member.origin} carries no time that fits the pages: it is there from the start")
            span = []
        if member.kind == "log-events" or data[:40].startswith(b'{"schema":"kvdoctor.log/'):
            self._lay_events(member, data, span, first)
            return
        ends = _line_ends(data)
        at, time = 0, first
        for when, line in span:
            end = ends[min(line, len(ends)) - 1] if ends else 0
            time = max(time, when)
            if end > at:
                self._tick(max(when, first)).logs.append(LogBytes(member.origin, data[at:end]))
                at = end
        if at < len(data):
            self._tick(time).logs.append(LogBytes(member.origin, data[at:]))

    def _lay_events(self, member: Member, data: bytes, span: list[tuple[float, int]], first: float) -> None:
        """A log of typed events grows by replacing it."""
        document = json.loads(data)
        times = sorted({max(t, first) for t, _ in span}) or [first]
        for time in times:
            upto = [e for e in document["events"] if not span or e.get("at") is None or max(e["at"], first) <= time]
            grown = {**document, "events": upto, "last_time": time if span else document.get("last_time")}
            text = json.dumps(grown, separators=(",", ":")).encode()
            self._tick(time).others.append(
                memory_member(member.name, text, kind="log-events", time=time, origin=member.origin)
            )


def _schedule(member: Member, sliding: Sliding) -> list[tuple[float, int]]:
    """(time, line) of the dated events of a log, both rising."""
    out: list[tuple[float, int]] = []
    for run in sliding.runs(member.origin):
        for event in run.events:
            if event.time is not None and (not out or (event.time >= out[-1][0] and event.line > out[-1][1])):
                out.append((event.time, event.line))
    return out


def _line_ends(data: bytes) -> list[int]:
    """Where each line ends, its line feed included."""
    ends = [m.end() for m in re.finditer(rb"\n", data)]
    if not ends or ends[-1] < len(data):
        ends.append(len(data))
    return ends


def _server_names(engines: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """A short name for the server of each group of pages: its engine, with its address or folder where there are several."""
    places = {(engine, place) for (place, _), engine in engines.items()}
    count = [engine for engine, _ in places]
    return {
        key: engine if count.count(engine) == 1 or not key[0] else f"{engine} {key[0]}"
        for key, engine in engines.items()
    }


def _place(origin: str) -> str:
    match = re.match(r"https?://([^/]+)", origin)
    return match.group(1) if match else os.path.dirname(origin)
