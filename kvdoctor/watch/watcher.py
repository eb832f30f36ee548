"""Samples in, frames out: the window, the diagnosis of it, and what happened.

Two beats. Every sample: usage, queue, rates (a page costs about a fifth of a millisecond). Every ``window / scrapes`` seconds a
page goes into the window. The window is judged on that beat, every second time while the verdict stays the same and every third time
while the servers are idle as well; and at once after an event that changes the picture: a first preemption, a pool that crosses a
watermark, a restart, a server that falls silent or comes back. A page is read whole once, at the first diagnosis that sees it.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import BytesIO

from kvdoctor.facts import Fact, Known, Unknown
from kvdoctor.findings import Report, TargetReport
from kvdoctor.frozen import frozen
from kvdoctor.pipeline import Options, Sliding
from kvdoctor.rulebook.rule import Rule
from kvdoctor.snapshot import Member, Missing, Snapshot
from kvdoctor.watch.log import LogWindow
from kvdoctor.watch.rows import History, Row, Server, fullest
from kvdoctor.watch.sample import Page, Sample

WINDOW_S = 120.0
SCRAPES = 24
EARLY = 5
EARLY_STEP_S = 2.0
KEEP_S = 300.0
SAME_FACTOR = 2.0
QUIET_FACTOR = 3.0
AT_ONCE_GAP_S = 2.0
CALM_S = 15.0
WATCH_AT, BAD_AT = 0.85, 0.95
EVENTS = 200
METRICS = "exposition"


@frozen
class Event:
    """Something that happened; ``grave``: worth a colour."""

    time: float
    text: str
    grave: bool = False


@frozen
class Frame:
    """Everything there is to show at one instant.

    ``report`` is None before the first diagnosis; ``judged`` tells its time. ``renewed``: it is new in this frame. ``lost`` are
    servers that do not answer, with the time since when. ``full_in``: seconds until the pool is full at the present rise.
    """

    time: float
    report: Report | None
    judged: float | None
    renewed: bool
    rows: tuple[Row, ...]
    usage: tuple[float | None, ...]
    waiting: tuple[float | None, ...]
    full_in: float | None
    events: tuple[Event, ...]
    missing: tuple[Missing, ...]
    lost: tuple[tuple[str, float], ...]

    @property
    def subject(self) -> TargetReport | None:
        """The target whose figures are shown: the one of the verdict, or of the group the one with most pressure."""
        return None if self.report is None else subject(self.report)


def subject(report: Report) -> TargetReport:
    """The target the verdict is about; of a group's verdict its fullest target."""
    if report.main.name != "group":
        return report.main
    single = [t for t in report.targets if t.name != "group"]
    return max(single, key=lambda t: _upper(t.facts.get("kv.usage_max"))) if single else report.main


def _upper(fact: Fact | None) -> float:
    # only to order targets: one that tells nothing comes last
    return float(fact.hi) if isinstance(fact, Known) and not isinstance(fact.hi, str) else -1.0


class Watcher:
    """Takes samples in their order; :meth:`window` is what the last diagnosis looked at."""

    def __init__(
        self,
        rules: Sequence[Rule],
        options: Options,
        *,
        window_s: float = WINDOW_S,
        scrapes: int = SCRAPES,
        steady_beat: bool = False,
    ) -> None:
        self._sliding = Sliding(rules, options)
        self._window_s = window_s
        self._step_s = window_s / scrapes
        self._steady_beat = steady_beat
        self._servers: dict[str, Server] = {}
        self._engines: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._kept: dict[tuple[str, str], deque[tuple[float, Member]]] = {}
        self._lock = threading.Lock()
        self._passed: dict[tuple[str, str], tuple[float, Member]] = {}
        self._first: dict[str, float] = {}
        self._others: dict[str, Member] = {}
        self._logs: dict[str, LogWindow] = {}
        self._settled_logs: set[str] = set()
        self._missing: tuple[Missing, ...] = ()
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._history = History()
        self._report: Report | None = None
        self._window = Snapshot(())
        self._judged: float | None = None
        self._now = 0.0
        self._above = {WATCH_AT: False, BAD_AT: False}
        self._last_hit: float | None = None
        self._repeats = 0
        self._changed = False

    # ------------------------------------------------------------ samples

    def feed(self, sample: Sample) -> Frame:
        """Take a sample in."""
        with self._lock:
            return self._feed(sample)

    def _feed(self, sample: Sample) -> Frame:
        now = self._now = sample.time
        if sample.jumped:
            self._forget_times(sample.jumped)
        for warning in sample.warnings:
            self._say(warning)
        for member in sample.others:
            self._others[member.name] = _packed(member)
        for piece in sample.logs:
            if piece.origin not in self._logs:
                self._logs[piece.origin] = LogWindow(piece.origin, f"logs/{len(self._logs) + 1}.log")
            self._logs[piece.origin].add(now, piece.data)
        self._missing = sample.missing
        due = False
        for page in sample.pages:
            due = self._page(page) or due
        self._silence({p.server for p in sample.pages}, bool(sample.missing))
        rows = self._all_rows()
        if sample.pages or sample.missing or not self._servers:
            self._history.add(now, rows)
        self._notice(rows)
        # the diagnosis tells the engine of a new server, the headroom, and of a log alone everything
        return self._frame(self._judge_if_due(due, rows))

    def finish(self) -> Frame | None:
        """Judge what came since the last diagnosis; None when nothing did."""
        with self._lock:
            if self._judged == self._now and not self._passed:
                return None
            self._judge(newest=True)
            return self._frame(True)

    def _frame(self, renewed: bool) -> Frame:
        return Frame(
            self._now, self._report, self._judged, renewed, self._all_rows(), tuple(self._history.usage),
            tuple(self._history.waiting), self._history.full_in(), tuple(self._events), self._missing,
            tuple((s.name, s.silent_since) for s in self._servers.values() if s.silent_since is not None),
        )  # fmt: skip

    def _page(self, page: Page) -> bool:
        """Take a metrics page in; True when it went into the window."""
        server = self._servers.setdefault(page.server, Server(page.server))
        if server.silent_since is not None:
            gone = self._now - server.silent_since
            self._say(f"{server.name} answers again after {gone:.0f} s", changed=True)
            server.silent_since = None
        kind = page.member.kind or "other"
        kept = self._kept.setdefault((page.server, kind), deque())
        if kind != METRICS:
            # pages that tell what happened since they were read last: none may be left out
            kept.append((self._now, _packed(page.member)))
            return True
        engine = self._engines.get(page.server)
        if engine is not None:
            glance = self._sliding.glance(page.member, engine)
            if glance is None and server.rows:
                self._say(f"{server.name} answers, but with no metrics page", True, changed=True)
                server.rows = ()
            elif glance is not None and server.read(glance, self._now):
                self._say(
                    f"{server.name} was restarted: figures start anew, none spans the restart", True, changed=True
                )
                for (name, _), old in self._kept.items():
                    if name == page.server:
                        old.clear()
                self._first.pop(page.server, None)
                self._passed.pop((page.server, METRICS), None)
        if kept and self._now - kept[-1][0] < self._wait(page.server) - 0.05:
            self._passed[page.server, kind] = (self._now, page.member)
            return False
        self._passed.pop((page.server, kind), None)
        self._first.setdefault(page.server, self._now)
        kept.append((self._now, _packed(page.member)))
        return True

    def _wait(self, server: str) -> float:
        early = self._now - self._first.get(server, self._now) < EARLY * EARLY_STEP_S
        return min(EARLY_STEP_S, self._step_s) if early else self._step_s

    def _silence(self, answered: set[str], failed: bool) -> None:
        for server in self._servers.values():
            if failed and server.name not in answered and server.silent_since is None:
                server.silent_since = self._now
                why = next((m.reason for m in self._missing if server.name in m.origin), "it does not answer")
                self._say(f"{server.name} is lost: {why}; trying again at every sample", True, changed=True)
                server.totals.clear()
                server.rows = ()

    def _forget_times(self, jumped: float) -> None:
        self._say(f"the clock of this host was set by {jumped:+.1f} s: the window starts anew", True)
        self._kept.clear()
        self._passed.clear()
        self._first.clear()
        self._history = History()
        for server in self._servers.values():
            server.totals.clear()
        self._judged = None

    # ------------------------------------------------------------ events

    def _say(self, text: str, grave: bool = False, *, changed: bool = False) -> None:
        self._events.append(Event(self._now, text, grave))
        self._changed = self._changed or changed

    def _notice(self, rows: Iterable[Row]) -> None:
        """Events from the figures alone. A mark counts as left only five points below it, so that nothing flutters."""
        all_rows = list(rows)
        top = fullest(all_rows)
        if top is not None:
            row, usage = top
            for mark, above in self._above.items():
                if not above and usage >= mark:
                    text = f"KV pool of {row.name} at {usage:.0%}, over the {mark:.0%} mark"
                    self._say(text, mark >= BAD_AT, changed=True)
                    self._above[mark] = True
                elif above and usage < mark - 0.05:
                    self._say(f"KV pool back under the {mark:.0%} mark")
                    self._above[mark] = False
        hit = [r for r in all_rows if r.preempt_rate is not None and r.preempt_rate > 0]
        if hit:
            if self._last_hit is None or self._now - self._last_hit > CALM_S:
                self._say(f"{hit[0].name} preempts requests", True, changed=True)
            self._last_hit = self._now

    # ------------------------------------------------------------ diagnosis

    def _judge_if_due(self, page_due: bool, rows: Sequence[Row]) -> bool:
        since = None if self._judged is None else self._now - self._judged
        beat = self._step_s * (1.0 if self._steady_beat else self._patience(rows))
        early = page_due and any(self._now - t < EARLY * EARLY_STEP_S for t in self._first.values())
        if since is not None and not (
            since >= beat - 0.05 or early or (self._changed and since >= AT_ONCE_GAP_S - 0.05)
        ):
            return False
        self._judge(newest=self._changed)
        return True

    def _judge(self, *, newest: bool) -> None:
        """Judge the window; with ``newest`` also the last page of each server, whose turn it was not yet."""
        if newest:
            for key, (time, member) in self._passed.items():
                self._kept[key].append((time, _packed(member)))
            self._passed.clear()
        self._slide()
        before = self._report
        self._window = self._snapshot(self._window_s)
        self._report = self._sliding.report(self._window)
        self._judged = self._now
        self._changed = False
        self._meet()
        for log in self._logs.values():
            self._settle(log)
        self._tell_change(before, self._report)

    def _meet(self) -> None:
        """Servers whose engine is known now, or is another one than before (a port used again)."""
        for (name, kind), kept in self._kept.items():
            if kind != METRICS:
                continue
            engine = self._sliding.engine_of(kept[-1][1]) if kept else None
            old = self._engines.get(name)
            if kept:
                self._sources[name] = kept[-1][1].origin
            if engine is None or engine == old:
                continue
            self._engines[name] = engine
            if old is not None:
                self._say(f"{name} is {engine} now, it was {old}", True)
            glance = self._sliding.glance(kept[-1][1], engine)
            if glance is not None:
                self._servers[name].read(glance, kept[-1][0])

    def _patience(self, rows: Sequence[Row]) -> float:
        """How many steps until the window is judged again: an unchanged verdict can wait, and one of an idle server longer."""
        if self._repeats < 2:
            return 1.0
        quiet = bool(rows) and all(
            r.usage is not None and r.usage < WATCH_AT and r.waiting == 0 and not r.preempt_rate for r in rows
        )
        return QUIET_FACTOR if quiet else SAME_FACTOR

    def _slide(self) -> None:
        oldest = self._now - max(self._window_s, KEEP_S)
        for kept in self._kept.values():
            while kept and kept[0][0] < oldest:
                kept.popleft()
        for log in self._logs.values():
            if log.origin in self._settled_logs:
                log.slide(self._now - self._window_s)

    def _settle(self, log: LogWindow) -> None:
        """After a diagnosis: drop runs that ended before the window, and at first what is older than the window."""
        runs = self._sliding.runs(log.origin)
        if not runs:
            return
        last = runs[-1]
        oldest = self._now - self._window_s
        earlier = [r for r in runs[:-1] if r.last_time is None or r.last_time < oldest]
        first_look = log.origin not in self._settled_logs
        self._settled_logs.add(log.origin)
        if not first_look and not (last.has_start and earlier and len(earlier) == len(runs) - 1):
            return
        start = last.first_line if last.has_start and len(earlier) == len(runs) - 1 else runs[0].first_line
        dated = [e for e in last.events if e.time is not None]
        recent = [e.line for e in dated if e.time is not None and e.time >= oldest]
        newest_from = None if not dated else min(recent) if recent else last.last_line + 1
        log.start_at(start, newest_from)

    def _tell_change(self, before: Report | None, after: Report) -> None:
        old = None if before is None else before.main.verdict
        new = after.main.verdict
        self._repeats = self._repeats + 1 if old is not None and old.rule == new.rule else 0
        if old is None or old.rule != new.rule:
            self._say(f"verdict: {new.title} ({new.rule})", new.severity in ("critical", "high"))
        was = set() if before is None else {v.rule for v in before.main.findings if v.muted_by is None}
        now = {v.rule: v for v in after.main.findings if v.muted_by is None}
        for rule, verdict in now.items():
            if before is not None and rule not in was and rule != new.rule:
                self._say(f"new finding: {verdict.title} ({rule})")
        for rule in sorted(was - now.keys()):
            self._say(f"no longer found: {rule}")

    # ------------------------------------------------------------ what is shown

    def _all_rows(self) -> tuple[Row, ...]:
        rows = tuple(row for server in self._servers.values() for row in server.rows)
        if self._report is None:
            return rows
        seen = {self._sources[name] for name in self._engines if name in self._sources}
        told = [
            row
            for t in self._report.targets
            if t.name != "group" and not any(s.origin in seen for s in t.sources)
            for row in _rows_of(t, self._now)
        ]
        return (*(replace(row, headroom=self._headroom(row)) for row in rows), *told)

    def target_of(self, row: Row) -> TargetReport | None:
        """The target of the last report that a row belongs to."""
        report, origin = self._report, self._sources.get(row.server)
        targets = [] if report is None else [t for t in report.targets if t.name != "group"]
        for target in targets:
            if target.name == row.server or any(s.origin == origin and s.kind == "metrics" for s in target.sources):
                return target
        return None

    def _headroom(self, row: Row) -> float | None:
        """Average requests that still fit at the usage of now."""
        target = self.target_of(row)
        if row.usage is None or target is None:
            return None
        facts = target.ranks.get(row.rank, target.facts)
        pool = facts.get("kv.pool_tokens", target.facts.get("kv.pool_tokens"))
        mean = target.facts.get("work.sequence_mean")
        if not isinstance(pool, Known) or not isinstance(mean, Known) or not float(mean.hi) > 0:
            return None
        return max(1 - row.usage, 0.0) * float(pool.lo) / float(mean.hi)

    # ------------------------------------------------------------ snapshots

    def window(self) -> Snapshot:
        """What the last diagnosis looked at: pages of the last ``window_s``, logs, and the newest of everything else."""
        return self._window

    def past(self) -> Snapshot:
        """The last minutes, for a capture: as :meth:`window`, with pages of at least ``KEEP_S`` seconds."""
        with self._lock:
            return self._snapshot(max(self._window_s, KEEP_S))

    def _snapshot(self, span_s: float) -> Snapshot:
        oldest = self._now - span_s - 0.5
        members = [m for kept in self._kept.values() for t, m in kept if t >= oldest]
        members += list(self._others.values())
        members += [m for log in self._logs.values() if (m := log.member()) is not None]
        return Snapshot(tuple(members), self._missing, {}, self._now, "watch", (), True)


def _packed(member: Member) -> Member:
    """The same member with its bytes compressed: a page of 30 KB takes 3."""
    data = member.read()
    small = zlib.compress(data, 1)
    return replace(member, open=lambda: BytesIO(zlib.decompress(small)), size=len(data))


def _rows_of(target: TargetReport, now: float) -> Iterable[Row]:
    """Rows from the facts of a target that is known from its log alone."""
    ranks = {r: f for r, f in target.ranks.items() if any(n.startswith(("kv.", "req.")) for n in f)} or {
        "": target.facts
    }
    for rank, facts in ranks.items():
        row = Row(
            target.name, rank, known(facts.get("kv.usage_last")), known(facts.get("req.running")),
            known(facts.get("req.waiting")), known(facts.get("preempt.rate")), known(facts.get("tok.gen_rate")),
            known(facts.get("kv.headroom_requests")), now,
        )  # fmt: skip
        if any(v is not None for v in (row.usage, row.running, row.waiting)):
            yield row


def known(fact: Fact | None) -> float | None:
    """The value of an exact numeric fact, else None."""
    if fact is None or isinstance(fact, Unknown) or not fact.exact or isinstance(fact.hi, (str, bool)):
        return None
    return float(fact.hi)
