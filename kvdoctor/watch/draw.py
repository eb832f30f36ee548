"""One frame as lines of a terminal: pure functions of what is known and of the room there is.

Every state is said in a word; colour repeats it. Only the sixteen colours of the terminal are used, dark text on a coloured
ground where a light and a dark background would ask for different ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.cells import cell_len, set_cell_size

from kvdoctor.facts import Fact, Known, Unknown
from kvdoctor.findings import DeviceMemory, TargetReport, Verdict
from kvdoctor.frozen import frozen
from kvdoctor.report.marks import certainty, rank_word
from kvdoctor.report.words import clean, flow, size, span, value
from kvdoctor.watch.rows import Row, fullest, largest, total
from kvdoctor.watch.watcher import BAD_AT, WATCH_AT, Frame

Cell = tuple[str, str]
Line = list[Cell]

LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-:=+*#"
BADGES = {
    "ok": "black on green",
    "watch": "black on yellow",
    "bad": "bold white on red",
    "unknown": "reverse",
}
_SEVERITY_BADGE = {
    "critical": "bad", "high": "bad", "medium": "watch", "low": "watch", "info": "unknown",
    "healthy": "ok", "undetermined": "unknown",
}  # fmt: skip
LABEL = 11
COLUMNS: tuple[tuple[str, Callable[[Row], float | str | None]], ...] = (
    ("engine", lambda r: r.name),
    ("KV", lambda r: r.usage),
    ("running", lambda r: r.running),
    ("waiting", lambda r: r.waiting),
    ("preempt/s", lambda r: r.preempt_rate),
    ("tokens/s", lambda r: r.gen_rate),
    ("room", lambda r: r.headroom),
)
"""Columns of the table and what they sort by."""


@dataclass(slots=True)
class Ui:
    """What the person at the terminal chose. ``focus`` is ``findings`` or ``table``; ``note`` is the answer to the last key."""

    focus: str = "findings"
    finding: int = 0
    row: int = 0
    sort: int = 0
    reverse: bool = False
    paused: bool = False
    ended: bool = False
    source: str = ""
    note: str = ""
    plain: bool = False
    keys: bool = True


def board(frame: Frame | None, ui: Ui, width: int, height: int) -> list[Line]:
    """Exactly ``height`` lines of at most ``width`` columns. What matters most gets room first: verdict, pool, queue, findings."""
    if width < 1 or height < 1:
        return []
    if frame is None:
        return _fit([[(f"kvdoctor watch {ui.source}", "bold")], [("waiting for the first sample", "")]], width, height)
    few = frame.report is None or len(frame.rows) < 2
    verdict = _verdict(frame, width)
    blocks = {
        "title": _Block(7, 1, lambda n: [_title(frame, ui)]),
        "verdict": _Block(0, 2, lambda n: verdict[:n], most=min(3 + height // 12, len(verdict))),
        "pool": _Block(1, 3, lambda n: _pool(frame, ui, width)[:n]),
        "queue": _Block(2, 1, lambda n: [_queue(frame, ui, width)]),
        "preempt": _Block(4, 1, lambda n: [_preempted(frame)]),
        "latency": _Block(6, 1, lambda n: [_latency(frame)]),
        "tokens": _Block(9, 1, lambda n: [_tokens(frame)]),
        "memory": _Block(10, 1, lambda n: _memory(frame, width)[:n], most=2),
        "table": _Block(11 if few else 5, 2, lambda n: _table(frame, ui, width, n), most=1 + len(frame.rows), least=2),
        "lists": _Block(3, 3 if height < 20 else 6, lambda n: _lists(frame, ui, width, n)),
        "footer": _Block(8, 1, lambda n: [_footer(ui)]),
    }
    given = _share(blocks, height)
    out: list[Line] = []
    for name, block in blocks.items():
        if given[name]:
            out.extend(_fit(block.draw(given[name]), width, given[name]))
    return _fit(out, width, height)


@frozen
class _Block:
    """A part of the board: its rank (0 first), the lines it wants, at ``most`` when there is room left, and at ``least`` if any."""

    rank: int
    want: int
    draw: Callable[[int], list[Line]]
    most: int = 0
    least: int = 1


CORE = 4
"""Blocks of a lower rank are there however little room there is."""


def _share(blocks: dict[str, _Block], height: int) -> dict[str, int]:
    """Lines for each block: one for the core, then what each wants by rank, then up to its most; the lists take the rest."""
    given = dict.fromkeys(blocks, 0)
    ranked = sorted(blocks.items(), key=lambda kv: kv[1].rank)
    left = height

    def give(name: str, goal: int) -> None:
        nonlocal left
        add = min(max(goal - given[name], 0), left)
        if given[name] + add >= blocks[name].least:
            given[name] += add
            left -= add

    for name, block in ranked:
        if block.rank < CORE:
            give(name, 1)
    for name, block in ranked:
        give(name, block.want)
    for name, block in ranked:
        give(name, block.most)
    given["lists"] += left
    return given


def _fit(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """Cut to the room, filled up with empty lines."""
    out = [clip(line, width) for line in lines[:height]]
    return out + [[] for _ in range(height - len(out))]


def clip(line: Line, width: int) -> Line:
    """The first ``width`` columns of a line."""
    out: Line = []
    for text, style in line:
        wide = cell_len(text)
        if wide > width:
            if width > 0:
                out.append((set_cell_size(text, width), style))
            return out
        out.append((text, style))
        width -= wide
    return out


def badge(word: str, state: str) -> Cell:
    """A word on the colour of its state."""
    return (f" {word} ", BADGES[state])


def state_of_verdict(verdict: Verdict) -> str:
    """ok, watch, bad or unknown."""
    return _SEVERITY_BADGE[verdict.rule if verdict.rule in ("healthy", "undetermined") else verdict.severity]


def clock(t: float) -> str:
    """Time of day in UTC; of a recording without a clock the seconds since its start."""
    return f"+{t:.0f} s" if t < 1e8 else datetime.fromtimestamp(t, UTC).strftime("%H:%M:%S")


# ---------------------------------------------------------------- parts


def _title(frame: Frame, ui: Ui) -> Line:
    line: Line = [("kvdoctor watch ", "bold"), (clock(frame.time) + (" UTC " if frame.time >= 1e8 else " "), "dim")]
    if ui.paused:
        line += [badge("PAUSED, p goes on", "watch"), (" ", "")]
    if ui.ended:
        line += [badge("ENDED", "unknown"), (" ", "")]
    for name, since in frame.lost[:2]:
        line += [badge(f"LOST {clean(name)} since {clock(since)}", "bad"), (" ", "")]
    return [*line, (clean(ui.source), "dim")]


def _verdict(frame: Frame, width: int) -> list[Line]:
    report = frame.report
    if report is None:
        why = "; ".join(f"{m.origin}: {m.reason}" for m in frame.missing[:2])
        return [[badge("LOOKING", "unknown"), (f" {clean(why)}" if why else " no diagnosis yet", "")]]
    verdict = report.main.verdict
    mark = badge(rank_word(verdict), state_of_verdict(verdict))
    indent = len(mark[0]) + 1
    title = textwrap.wrap(flow(verdict.title), max(width - indent, 10)) or [""]
    out: list[Line] = [[mark, (" " + title[0], "bold")]]
    out += [[(" " * indent + part, "bold")] for part in title[1:]]
    names = ", ".join(w for w in (verdict.rule, verdict.id, certainty(verdict)) if w)
    where = "the group" if report.main.name == "group" else clean(report.main.name)
    seconds = report.main.window.seconds
    parts = [clean(names) if verdict.rule not in ("healthy", "undetermined") else "", f"on {where}"]
    if seconds is not None:
        parts.append(f"window {value(seconds, 's')}")
    if frame.judged is not None and frame.time - frame.judged >= 1:
        parts.append(f"judged {frame.time - frame.judged:.0f} s ago")
    out.append([(", ".join(p for p in parts if p), "dim")])
    say = verdict.say if verdict.rule != "undetermined" else "; ".join(
        f"not known: {gap.fact} ({flow(gap.reason)})" for gap in verdict.missing[:3]
    )  # fmt: skip
    out += [[(part, "")] for part in textwrap.wrap(flow(say), max(width, 10))]
    return out


def _pool(frame: Frame, ui: Ui, width: int) -> list[Line]:
    top = fullest(frame.rows)
    marks = _marks(frame)
    known_rows = sum(r.usage is not None for r in frame.rows)
    note = f" fullest: {clean(top[0].name)}" if top is not None and known_rows > 1 and width >= 80 else ""
    if top is None:
        first: Line = [
            (_label("KV pool"), "bold"),
            badge("NOT KNOWN", "unknown"),
            (" " + _why(frame, "kv.usage_last"), ""),
        ]
    else:
        usage = top[1]
        room = max(min(width - LABEL - 7 - 12 - len(note), 60), 8)
        first = [(_label("KV pool"), "bold"), (f"{usage:>5.0%} ", "bold"), (bar(usage, room, marks, ui.plain), ""), (" ", ""), _level(usage), (note, "dim")]  # fmt: skip
    spark_room = max(width - LABEL - 16, 4)
    second: Line = [(_label("  0..1"), "dim"), (spark(frame.usage, spark_room, ui.plain), "cyan"), (f" marks {WATCH_AT:.0%} {BAD_AT:.0%}", "dim")]  # fmt: skip
    return [first, _room(frame), second]


def _room(frame: Frame) -> Line:
    """How many average requests still fit, and a warning before none does."""
    fits = min((r.headroom for r in frame.rows if r.headroom is not None), default=None)
    label: Cell = (_label("Room for"), "bold")
    soon = f"full in about {frame.full_in:.0f} s at this rise" if frame.full_in is not None else ""
    if fits is None:
        line: Line = [label, badge("NOT KNOWN", "unknown"), (" " + _why(frame, "kv.headroom_requests", "kv.pool_tokens", "work.sequence_mean"), "")]  # fmt: skip
        return [*line, (f"; {soon}", "")] if soon else line
    text = f"{fits:.1f} average requests "
    if fits < 1:
        return [label, (text, "bold"), badge("WATCH", "watch"), (" the next average request does not fit", "")]
    if fits < 2 or soon:
        return [label, (text, "bold"), badge("WATCH", "watch"), (f" {soon or 'almost full'}", "")]
    return [label, (text, "bold"), badge("OK", "ok")]


def _queue(frame: Frame, ui: Ui, width: int) -> Line:
    running, waiting = total(r.running for r in frame.rows), total(r.waiting for r in frame.rows)
    line: Line = [(_label("Requests"), "bold"), (f"{_count(running)} running, {_count(waiting)} waiting ", "bold")]
    if waiting is None:
        line.append(badge("NOT KNOWN", "unknown"))
    else:
        line.append(badge("WAIT", "watch") if waiting > 0 else badge("OK", "ok"))
    most = largest(frame.waiting)
    room = width - sum(cell_len(t) for t, _ in line) - 20
    if most and room >= 8:
        line += [(" ", ""), (spark([None if w is None else w / most for w in frame.waiting], min(room, 40), ui.plain), "cyan"), (f" of {_count(most)}", "dim")]  # fmt: skip
    return line


def _preempted(frame: Frame) -> Line:
    target = frame.subject
    if target is None:
        return [(_label("Preempted"), "bold"), badge("NOT KNOWN", "unknown")]
    states = {v.fact: v.status for v in target.vitals}
    rate = target.facts.get("preempt.rate")
    line: Line = [(_label("Preempted"), "bold"), (_of(rate, "/s"), "bold"), (" ", "")]
    line.append(_status(states.get("preempt.rate", "unknown")))
    per = target.facts.get("preempt.per_finished")
    if isinstance(per, Known):
        line.append((f" {_of(per, 'ratio')} per finished request;", ""))
    share, tokens = target.facts.get("recompute.token_share"), target.facts.get("recompute.rate")
    line.append((f" recomputed {_of(share, '1')} of tokens", ""))
    if isinstance(tokens, Known):
        line.append((f", {_of(tokens, 'tok/s')}", ""))
    return line


def _latency(frame: Frame) -> Line:
    target = frame.subject
    line: Line = [(_label("Latency"), "bold")]
    if target is None:
        return [*line, badge("NOT KNOWN", "unknown")]
    f = target.facts
    stalls = f.get("latency.stalls")
    line.append((f"stalls > 1 s {_of(stalls, 'count')} ", "bold"))
    if not isinstance(stalls, Known) or stalls.span == "L":
        line.append(badge("NOT KNOWN", "unknown"))
    elif float(stalls.lo) > 0:
        line.append(badge("STALLS", "watch"))
    elif float(stalls.hi) == 0:
        line.append(badge("OK", "ok"))
    else:
        line.append(badge("MAYBE", "unknown"))
    line.append((f" ITL p50 {_of(f.get('latency.itl_p50'), 's')} p99.9 {_of(f.get('latency.itl_p999'), 's')};", ""))
    line.append((f" TTFT p50 {_of(f.get('latency.ttft_p50'), 's')} p99 {_of(f.get('latency.ttft_p99'), 's')}", ""))
    return line


def _tokens(frame: Frame) -> Line:
    target = frame.subject
    now = total(r.gen_rate for r in frame.rows)
    line: Line = [
        (_label("Tokens"), "bold"),
        (value(now, "tok/s") if now is not None else "not known", "bold"),
        (" generated now", ""),
    ]
    if target is not None:
        line.append((f"; window: {_of(target.facts.get('tok.gen_rate'), 'tok/s')} generated", ""))
        line.append((f", {_of(target.facts.get('tok.prompt_rate'), 'tok/s')} prompt", ""))
    return line


def _memory(frame: Frame, width: int) -> list[Line]:
    target = frame.subject
    devices = target.memory if target is not None else ()
    if not devices:
        return [
            [
                (_label("GPU memory"), "bold"),
                badge("NOT KNOWN", "unknown"),
                (" " + _why(frame, "mem.used", "mem.total"), ""),
            ]
        ]
    tightest = min(devices, key=_free)
    parts = [(p.name, p.bytes) for p in tightest.parts if p.bytes > 0]
    if tightest.unexplained > 0:
        parts.append(("unexplained", tightest.unexplained))
    used = tightest.total - _free(tightest)
    note = f" {size(used)} of {size(tightest.total)}" + (f", fullest of {len(devices)}" if len(devices) > 1 else "")
    room = max(min(width - LABEL - len(note) - 1, 60), 8)
    legend = ", ".join(f"{_letter(i, n)} {clean(n)} {size(b)}" for i, (n, b) in enumerate(parts))
    return [
        [(_label("GPU memory"), "bold"), (stacked(parts, tightest.total, room), "cyan"), (note, "bold")],
        [(" " * LABEL + legend, "dim")],
    ]


def _free(device: DeviceMemory) -> float:
    return sum(p.bytes for p in device.parts if p.name == "free")


def sorted_rows(frame: Frame, ui: Ui) -> list[Row]:
    """Rows in the order of the chosen column; what is not known comes last."""
    key = COLUMNS[ui.sort][1]
    have = [r for r in frame.rows if key(r) is not None]
    lack = [r for r in frame.rows if key(r) is None]
    # figures start with the largest, names with A
    descending = (ui.sort != 0) != ui.reverse
    return sorted(have, key=lambda r: key(r), reverse=descending) + lack  # type: ignore[arg-type,return-value]


def _table(frame: Frame, ui: Ui, width: int, lines: int) -> list[Line]:
    if not frame.rows:
        return [[("no engine answers with figures yet", "dim")]]
    rows = sorted_rows(frame, ui)
    wide = width >= 80
    widths = (6, 9, 9, 11, 10, 7) if wide else (6, 8, 8, 7, 7, 6)
    name_room = max(min(max(cell_len(r.name) for r in rows), width - sum(widths) - 2), 8)
    head: Line = []
    for number, (title, _) in enumerate(COLUMNS):
        mark = ("^" if (number != 0) == ui.reverse else "v") if number == ui.sort else ""
        short = title if wide else {"preempt/s": "pre/s", "tokens/s": "tok/s"}.get(title, title)
        text = f"{short}{mark}"
        place = f"{text:<{name_room + 2}}" if number == 0 else f"{text:>{widths[number - 1]}}"
        head.append((place, "bold" if number == ui.sort else "dim"))
    start = max(min(ui.row - lines + 2, len(rows) - lines + 1), 0)
    out = [head]
    for number, row in enumerate(rows[start : start + max(lines - 1, 0)], start):
        chosen = ui.focus == "table" and number == ui.row
        style = "reverse" if chosen else ""
        line: Line = [(f"{'>' if chosen else ' '} {set_cell_size(clean(row.name), name_room)}", style)]
        cells = (
            "?" if row.usage is None else f"{row.usage:.0%}", _count(row.running), _count(row.waiting),
            "?" if row.preempt_rate is None else f"{row.preempt_rate:.2g}",
            "?" if row.gen_rate is None else f"{row.gen_rate:.0f}",
            "?" if row.headroom is None else f"{row.headroom:.1f}",
        )  # fmt: skip
        line += [(f"{cell:>{room}}", style) for cell, room in zip(cells, widths, strict=True)]
        if row.usage is not None and row.usage >= WATCH_AT:
            line += [(" ", ""), _level(row.usage)]
        out.append(line)
    return out


def listed_findings(frame: Frame) -> list[tuple[TargetReport, Verdict]]:
    """Findings of all targets, those of the verdict's target first; what another finding explains comes last."""
    report = frame.report
    if report is None:
        return []
    targets = sorted(report.targets, key=lambda t: t is not report.main)
    found = [(t, v) for t in targets for v in t.findings]
    return sorted(
        found,
        key=lambda tv: (
            tv[1].muted_by is not None,
            tv[0] is not report.main,
            tv[1].rule != tv[0].verdict.rule,
            tv[1].stage,
        ),
    )


def _lists(frame: Frame, ui: Ui, width: int, lines: int) -> list[Line]:
    if width >= 120 and lines >= 3:
        left = width * 3 // 5
        return _beside(_findings(frame, ui, left - 2, lines), _events(frame, lines), left, lines)
    found = max(min(len(listed_findings(frame)), 8), 1) + 1
    if lines <= 3:
        return _findings(frame, ui, width, lines)
    share = min(found, max(lines - 3, 3))
    return [*_fit(_findings(frame, ui, width, share), width, share), *_events(frame, lines - share)]


def _beside(left: list[Line], right: list[Line], at: int, lines: int) -> list[Line]:
    out: list[Line] = []
    for number in range(lines):
        first = clip(left[number], at - 2) if number < len(left) else []
        gap = at - sum(cell_len(t) for t, _ in first)
        out.append([*first, (" " * gap, ""), *(right[number] if number < len(right) else [])])
    return out


def _findings(frame: Frame, ui: Ui, width: int, lines: int) -> list[Line]:
    found = listed_findings(frame)
    undecided = sum(len(t.undecided) for t in frame.report.targets) if frame.report is not None else 0
    suspected = sum(v.state == "suspected" for t in frame.report.targets for v in t.undecided) if frame.report else 0
    more = f"{undecided} rules undecided, {suspected} of them suspected (u)" if undecided else "every rule decided"
    head: Line = [(f"Findings {len(found)}", "bold"), (f"  {more}", "dim")]
    if not found:
        return [head] if lines > 1 else [[("No finding; ", "bold"), (more, "dim")]]
    room = lines - 1 if lines > 1 else 1
    start = max(min(ui.finding - room + 1, len(found) - room), 0)
    many = len({t.name for t, _ in found}) > 1
    out: list[Line] = []
    for number, (target, verdict) in enumerate(found[start : start + room], start):
        chosen = ui.focus == "findings" and number == ui.finding
        style = "reverse" if chosen else "dim" if verdict.muted_by is not None else ""
        where = f" [{clean(target.name)}]" if many else ""
        tail = (
            f" (explained by {clean(verdict.muted_by)})" if verdict.muted_by is not None else f", {certainty(verdict)}"
        )
        out.append([
            (">" if chosen else " ", style),
            badge(f"{rank_word(verdict):<8}", "unknown" if verdict.muted_by is not None else state_of_verdict(verdict)),
            (f" {clean(verdict.rule)}", style or "bold"),
            (f"{tail}: {flow(verdict.title)}{where}", style),
        ])  # fmt: skip
    return [head, *out] if lines > 1 else out


def _events(frame: Frame, lines: int) -> list[Line]:
    if lines < 2:
        return []
    out: list[Line] = [[("Events", "bold")]]
    for event in list(frame.events)[::-1][: lines - 1]:
        out.append(
            [(f"{clock(event.time)} ", "dim"), ("! " if event.grave else "  ", "bold red"), (flow(event.text), "")]
        )
    return out


def _footer(ui: Ui) -> Line:
    if ui.note:
        return [(clean(ui.note), "reverse")]
    if not ui.keys:
        return [("standard input is no terminal: Ctrl-C ends", "dim")]
    return [("q quit  h help  Enter evidence  u undecided  p pause  c capture  Tab list  , . sort  r refresh", "dim")]


# ---------------------------------------------------------------- pieces


def _label(text: str) -> str:
    return f"{text:<{LABEL}}"


def _count(number: float | None) -> str:
    return "?" if number is None else value(number, "count")


def _of(fact: Fact | None, unit: str) -> str:
    """A fact in few words; lifetime values say so."""
    if not isinstance(fact, Known):
        return "?"
    return span(fact.lo, fact.hi, unit) + (" (since start)" if fact.span == "L" else "")


def _why(frame: Frame, *names: str) -> str:
    """The reason why the first unknown one of these facts is not known."""
    target = frame.subject
    for name in names:
        fact = None if target is None else target.facts.get(name)
        if isinstance(fact, Unknown):
            return flow(fact.reason)
    return "" if target is None else "nothing that was read tells it"


def _marks(frame: Frame) -> tuple[float, ...]:
    """Watermarks on the bar: those to look at, and of the plan what to alert at and what to keep free."""
    plan = frame.report.plan if frame.report is not None else None
    marks = {WATCH_AT, BAD_AT}
    if plan is not None:
        marks |= {m.value for m in (plan.alert_high, plan.alert_low) if m is not None}
        if plan.admission_free is not None:
            marks.add(1 - plan.admission_free.value)
    return tuple(sorted(m for m in marks if 0 < m < 1))


def _level(usage: float) -> Cell:
    """A full pool alone is no fault, so it is never worse than something to watch."""
    if usage >= BAD_AT:
        return badge("FULL", "watch")
    return badge("WATCH", "watch") if usage >= WATCH_AT else badge("OK", "ok")


def _status(state: str) -> Cell:
    word = {"ok": "OK", "watch": "WATCH", "bad": "BAD", "unknown": "NOT KNOWN"}[state]
    return badge(word, state)


def bar(share: float, width: int, marks: Sequence[float] = (), plain: bool = False) -> str:
    """A gauge of 0..1 in ``width`` columns, its brackets included; watermarks are ``|``."""
    inner = max(width - 2, 1)
    full, empty = ("#", ".") if plain else ("█", "░")
    filled = round(min(max(share, 0.0), 1.0) * inner)
    cells = [full if i < filled else empty for i in range(inner)]
    for mark in marks:
        cells[min(int(mark * inner), inner - 1)] = "|"
    return "[" + "".join(cells) + "]"


def spark(values: Sequence[float | None], width: int, plain: bool = False) -> str:
    """The last ``width`` values of 0..1 as blocks; the scale never moves. What is not known is a blank."""
    levels = PLAIN_LEVELS if plain else LEVELS
    shown = list(values)[-width:]
    text = "".join(
        " " if v is None else levels[min(int(min(max(v, 0.0), 1.0) * len(levels)), len(levels) - 1)] for v in shown
    )
    return text.rjust(width)


def _letter(index: int, name: str) -> str:
    return "." if name == "free" else "?" if name == "unexplained" else chr(ord("a") + index % 26)


def stacked(parts: Sequence[tuple[str, float]], whole: float, width: int) -> str:
    """Shares of a whole as runs of letters: ``.`` is free, ``?`` unexplained."""
    inner = max(width - 2, 1)
    if not whole > 0:
        return "[" + " " * inner + "]"
    out, done = "", 0.0
    for index, (name, amount) in enumerate(parts):
        done += amount
        out += _letter(index, name) * (min(round(done / whole * inner), inner) - len(out))
    return "[" + out.ljust(inner) + "]"
