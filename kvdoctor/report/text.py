"""The report as text for a person: the verdict, why and what to do first; then everything it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvdoctor.facts import SPANS, Known
from kvdoctor.findings import (
    CERTAINTY,
    Action,
    DeviceMemory,
    Evidence,
    Report,
    SourceNote,
    TargetReport,
    Verdict,
    WhatIf,
    Window,
)
from kvdoctor.report.doubts import blind_spots, held, listed, needs, undecided
from kvdoctor.report.page import Cell, Page
from kvdoctor.report.words import (
    MISDIAGNOSES,
    clean,
    clock,
    comparison,
    day,
    ended,
    flow,
    has_year,
    how_word,
    interval,
    label,
    of_fact,
    place,
    sentence,
    setting,
    short_source,
    size,
    spelled,
    unit_of,
    value,
)

_SEVERITY_STYLE = {
    "critical": "bold red",
    "high": "red",
    "medium": "yellow",
    "low": "cyan",
    "info": "blue",
    "healthy": "green",
    "undetermined": "yellow",
}
_STATUS_STYLE = {"ok": "green", "watch": "yellow", "bad": "bold red", "unknown": "yellow"}
_FLOOR_OF_CONCERN = ("critical", "high", "medium", "low")
_PRESSURE = (2, 3, 4)
"""The misdiagnoses that watermarks are about."""
MOST_EVIDENCE = 6
MOST_EVENTS = 8
MOST_SUSPECTED = 3
MOST_NEEDS = 1
MOST_DEVICES = 2
MOST_TARGETS = 12
MOST_REASONS = 3
MOST_GAPS = 4
MOST_NAMES = 8


def render(report: Report, *, width: int = 100, color: bool = False, verbose: bool = False) -> str:
    """The report as text, ``width`` columns wide (commands are never wrapped). ``verbose`` cuts no list and adds the rules that
    did not fire and every fact."""
    page = Page(width, color)
    target = report.main
    _verdict(page, report)
    if len(report.targets) > 1:
        _targets(page, report, verbose)
    _target(page, target)
    _vitals(page, target, verbose)
    _evidence(page, target.verdict, verbose)
    if target.verdict.not_this:
        page.heading("What it is not")
        page.flow([(flow(target.verdict.not_this), "")], 2)
    _actions(page, report, verbose)
    _confirm(page, target.verdict)
    _other_findings(page, target)
    _memory(page, target.memory, verbose)
    _timeline(page, target, verbose)
    _what_if(page, report.plan.what_if)
    _undecided(page, target, verbose)
    _sources(page, target.sources, verbose)
    if report.warnings:
        page.heading("Warnings")
        for warning in report.warnings:
            page.flow([("! ", "yellow"), (flow(warning), "")], 2, 4)
    if verbose:
        _silent(page, target)
        _facts(page, target)
    return str(page)


# ---------------------------------------------------------------------------------------------- first screen


def rank_word(verdict: Verdict) -> str:
    """The word in front of a verdict: its severity, or HEALTHY or UNDETERMINED."""
    return (verdict.rule if verdict.rule in ("healthy", "undetermined") else verdict.severity).upper()


def certainty(verdict: Verdict) -> str:
    """certain, likely or suspected; '' where nothing is claimed."""
    if verdict.rule == "undetermined":
        return ""
    return CERTAINTY[verdict.confidence] if verdict.state == "fires" else "suspected"


def _rule_words(verdict: Verdict) -> str:
    """Name, id and certainty; '' where the word in front says it all."""
    if verdict.rule == "undetermined":
        return ""
    return ", ".join(clean(part) for part in (verdict.rule, verdict.id, certainty(verdict)) if part)


def _rank_style(verdict: Verdict) -> str:
    key = verdict.rule if verdict.rule in ("healthy", "undetermined") else verdict.severity
    return _SEVERITY_STYLE[key]


def _verdict(page: Page, report: Report) -> None:
    target = report.main
    verdict = target.verdict
    style = _rank_style(verdict)
    word = rank_word(verdict)
    page.rule(style)
    page.flow([(f"{word}  ", style), (flow(verdict.title), "bold")], hang=len(word) + 2)
    line = _rule_words(verdict)
    if verdict.misdiagnosis is not None:
        line += f"; misdiagnosis {verdict.misdiagnosis}: {MISDIAGNOSES[verdict.misdiagnosis]}"
    if line:
        page.flow([(line, "dim")])
    page.rule(style)
    if verdict.rule == "undetermined":
        _undetermined(page, report)
        return
    if verdict.rule == "healthy":
        page.labelled("Why", "No rule fired, and none that matters is suspected, in these sources and this window.")
    else:
        page.labelled("Why", flow(verdict.cause or verdict.say))
    doubts = blind_spots(target)
    if doubts:
        page.labelled("Doubt", " ".join(doubts))
    if verdict.rule == "healthy":
        return
    if verdict.advice_muted_by is not None:
        page.labelled(
            "Do", f"Nothing about its policy: {_name(target, verdict.advice_muted_by)} holds, so it would not pay."
        )
        return
    if verdict.cause and verdict.say:
        page.labelled("Do", flow(verdict.say))
    first = next((a for a in report.plan.levers if not _already(a)), None)
    if first is not None:
        page.labelled("First", _turn(first), "bold")


def _undetermined(page: Page, report: Report) -> None:
    target, verdict = report.main, report.main.verdict
    if not report.usable:
        page.labelled("Why", "None of the sources that were given could be used.")
    why = "Why" if report.usable else ""
    if not verdict.missing:
        page.labelled(why, flow(verdict.say) or "Nothing that was read tells enough.")
        return
    suspected = [clean(v.rule) for v in undecided(target)[0]]
    text = ""
    if suspected:
        text = f"Suspected, not decided: {listed(suspected, 3)}. "
    gaps = [f"{label(gap.fact)} ({flow(gap.reason)})" for gap in verdict.missing]
    shown = "; ".join(gaps[:MOST_GAPS]) + (f"; and {len(gaps) - MOST_GAPS} more" if len(gaps) > MOST_GAPS else "")
    page.labelled(why, f"{text}Not known: {shown}.")
    for number, need in enumerate(needs([verdict])[:MOST_GAPS]):
        gives = listed(map(label, need.facts), 3)
        page.labelled("" if number else "Need", f"{sentence(need.hint)[:-1]} (tells {gives}).")


def _name(target: TargetReport, rule: str) -> str:
    """A rule with its title, when it is among the findings."""
    found = next((v for v in target.findings if v.rule == rule), None)
    return clean(rule) if found is None else f"{clean(rule)} ({flow(found.title)})"


def _targets(page: Page, report: Report, verbose: bool) -> None:
    page.heading("Targets", "* the details below are about this one")
    shown = report.targets if verbose else report.targets[:MOST_TARGETS]
    rows = []
    for target in shown:
        mark = "*" if target is report.main else " "
        verdict = target.verdict
        words = _rule_words(verdict)
        rows.append(
            [
                (f"{mark} {clean(target.name)}", ""),
                (rank_word(verdict), _rank_style(verdict)),
                (flow(verdict.title) + (f" ({words})" if words else ""), ""),
            ]
        )
    page.columns(rows, indent=1)
    _more(page, len(report.targets) - len(shown), "target")


def _target(page: Page, target: TargetReport) -> None:
    if target.name == "group":
        parts = ["the group of targets"]
    elif target.engine is None:
        parts = [clean(target.name)]
    else:
        parts = [
            f"{target.engine} {clean(target.engine_version)}"
            if target.engine_version
            else f"{target.engine}, version not known"
        ]
    if target.model or target.engine is not None:
        parts.append(f"model {clean(target.model)}" if target.model else "model not known")
    if target.gpus:
        parts.append(listed(map(clean, target.gpus), 3))
    page.blank()
    page.labelled("Target", "; ".join([*parts, _window(target.window)]))


def _window(window: Window) -> str:
    parts = []
    if window.seconds is not None:
        parts.append(value(window.seconds, "s"))
    parts.append(
        f"{window.scrapes} scrape{'s' if window.scrapes != 1 else ''}" if window.scrapes else "no scrape of metrics"
    )
    if window.start is None or window.end is None:
        parts.append("no clock: nothing per second can be told")
    else:
        start, end = f"{day(window.start)} {clock(window.start)}", clock(window.end)
        if day(window.start) != day(window.end):
            end = f"{day(window.end)} {end}"
        span = start if window.start == window.end else f"{start} to {end}"
        parts.append(f"{span} UTC" if has_year(window.start) else f"{span} (the log prints no year)")
    return ", ".join(parts)


# ---------------------------------------------------------------------------------------------- what was seen


def _vitals(page: Page, target: TargetReport, verbose: bool) -> None:
    if not target.vitals:
        return
    page.heading("Vitals")
    rows: list[list[Cell]] = []
    unknown: dict[tuple[str, str], list[str]] = {}
    for vital in target.vitals:
        fact = vital.value
        if not isinstance(fact, Known):
            unknown.setdefault((flow(fact.reason), flow(fact.hint) if verbose else ""), []).append(vital.name)
            continue
        # without a limit there is nothing to be ok against
        status = vital.status if vital.threshold is not None else "-"
        notes = [f"limit {value(vital.threshold, vital.unit)}"] if vital.threshold is not None else []
        if fact.how in ("estimated", "assumed"):
            notes.append(fact.how)
        if fact.span == "L":
            notes.append(SPANS["L"])
        rows.append(
            [
                (f"{status:<7}", _STATUS_STYLE.get(status, "dim")),
                (vital.name, ""),
                (of_fact(fact, vital.unit), "bold"),
                (", ".join(notes), "dim"),
            ]
        )
    page.columns(rows, right=(2,))
    lines = [
        f"{'; '.join(names)}: {reason}" + (f"; {hint}" if hint else "") for (reason, hint), names in unknown.items()
    ]
    if len(lines) > MOST_REASONS and not verbose:
        lines = ["; ".join(name for names in unknown.values() for name in names) + " (why: --verbose)"]
    for line in lines:
        page.flow([("unknown  ", _STATUS_STYLE["unknown"]), (line, "")], 2, 11)


def _evidence(page: Page, verdict: Verdict, verbose: bool) -> None:
    seen = held(verdict)
    if not verbose and any(item.unit != "bool" for item in seen):
        # a gate repeats what the figures before it say
        seen = [item for item in seen if item.fact != "kv.pressure"]
    if not seen:
        return
    page.heading("Evidence", "measured where nothing else is said")
    shown = seen if verbose else seen[:MOST_EVIDENCE]
    page.columns(_evidence_rows(shown, verbose), right=(1,))
    _more(page, len(seen) - len(shown), "comparison that holds", "comparisons that hold")
    if verbose:
        open_ = [item for item in verdict.evidence if not item.outcome]
        for item in open_:
            left, right = comparison(item)
            state = "not known" if item.outcome is None else "does not hold"
            why = f" ({flow(item.reason)})" if item.reason else ""
            page.flow([(f"{state}: {label(item.fact)} {left} {right}".rstrip() + why, "dim")], 2, 4)


def _evidence_rows(items: Iterable[Evidence], verbose: bool) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for item in items:
        left, right = comparison(item)
        source = clean(item.source) if verbose else short_source(item.source)
        if item.how not in (None, "measured"):
            source = f"{how_word(item.how)} from {source}" if source else how_word(item.how)
        # what equals its own wanted value need not be said twice
        rows.append(
            [(label(item.fact), ""), (left, "bold"), ("" if right == f"== {left}" else right, ""), (source, "dim")]
        )
    return rows


# ---------------------------------------------------------------------------------------------- what to do


_VERBS = {"up": "raise", "down": "lower", "on": "switch on", "off": "switch off", "set": "set"}


def _already(action: Action) -> bool:
    """Is the setting now, by what is known, what the action asks for?"""
    return action.flag is not None and action.to is not None and action.start is not None and (
        action.start == action.to or action.start.startswith(f"{action.to} (")
    )  # fmt: skip


def _turn(action: Action) -> str:
    """One line: the flag, from what, to what; or what to do where there is no flag."""
    if action.flag is None:
        return sentence(action.instead or action.effect)
    flag = clean(action.flag)
    now = setting(action.start) if action.start is not None else ""
    if _already(action):
        return f"{flag}: {now}; as it should be, make sure that nothing changes it"
    if action.to is None:
        step = f"{_VERBS.get(action.direction, action.direction)} it"
    elif action.to in ("on", "off"):
        step = f"switch {action.to}"
    elif now.startswith("now ") and " " not in now[4:]:
        return f"{flag}: from {now[4:]} to {flow(action.to)}"
    else:
        step = f"set to {flow(action.to)}"
    return f"{flag}: {step}" + (f" ({now})" if now else "")


def _actions(page: Page, report: Report, verbose: bool) -> None:
    # what is set already is a check, not a step
    levers = sorted(report.plan.levers, key=_already)
    if not levers:
        return
    page.heading("What to turn", "in this order, one at a time" if len(levers) > 1 else "")
    owners = {id(action): verdict for verdict in report.main.findings for action in verdict.actions}
    for number, action in enumerate(levers, start=1):
        head = f"{number}. "
        if action.flag is None:
            # an engine nobody recognised has no version to lack the flag
            what = sentence(action.effect)[:-1] if action.instead and report.main.engine is not None else ""
            page.flow(
                [(head, "bold"), (f"{what}: no flag for it in this version. Instead: " if what else "", ""), (_turn(action), "bold")],
                2, 5,
            )  # fmt: skip
        else:
            page.flow([(head, "bold"), (_turn(action), "bold")], 2, 5)
        if _already(action) and not verbose:
            continue
        rest = [] if action.flag is None else [sentence(action.effect)]
        if action.cost:
            rest.append(f"Cost: {ended(flow(action.cost))}")
        if action.next_limit:
            rest.append(f"Next limit: {ended(flow(action.next_limit))}")
        if verbose and action.why:
            rest.append(f"Why: {ended(flow(action.why))}")
        if rest:
            page.flow([(" ".join(rest), "")], 5)
    checks: dict[str, None] = {}
    for action in levers:
        owner = owners.get(id(action), report.main.verdict)
        for check in action.verify.split("; "):
            if check:
                checks[spelled(check, owner)] = None
    for number, check in enumerate(checks):
        page.flow([("        " if number else "Verify  ", "bold"), (check, "")], 2, 10)
    _watermarks(page, report, verbose)


def _confirm(page: Page, verdict: Verdict) -> None:
    if not verdict.confirm:
        return
    page.heading("Confirm it yourself")
    for command in verdict.confirm:
        page.raw("  " + clean(command))


def _other_findings(page: Page, target: TargetReport) -> None:
    verdict = target.verdict
    others = [v for v in target.findings if v.rule != verdict.rule]
    free = [v for v in others if v.muted_by is None and v.severity in _FLOOR_OF_CONCERN]
    muted: dict[str, list[Verdict]] = {}
    for other in others:
        if other.muted_by is not None and other.severity in _FLOOR_OF_CONCERN:
            muted.setdefault(other.muted_by, []).append(other)
    notes = [v for v in others if v.severity not in _FLOOR_OF_CONCERN]
    if not (free or muted or notes):
        return
    page.heading("Also found")
    _muted(page, verdict, muted.pop(verdict.rule, []), 2)
    for other in free:
        _finding_line(page, other, 2)
        if other.say and other.advice_muted_by is None:
            page.flow([("Do: ", "bold"), (flow(other.say), "")], 6)
        _muted(page, other, muted.pop(other.rule, []), 6)
    for muter, rest in muted.items():
        for below in rest:
            _finding_line(page, below, 2)
            page.flow([(f"muted by {clean(muter)}: {flow(below.mute_reason)}", "dim")], 6)
    for note in notes:
        if note.muted_by is None:
            page.flow([("good to know: ", "dim"), (f"{clean(note.rule)} ({note.id}) {flow(note.title)}", "")], 2, 4)
    below_notes = [f"{clean(v.rule)} ({v.id})" for v in notes if v.muted_by is not None]
    if below_notes:
        page.flow([(f"holds as well: {listed(below_notes, 99)}", "dim")], 2, 4)


def _muted(page: Page, cause: Verdict, effects: Sequence[Verdict], indent: int) -> None:
    """The findings another one explains: their names under it."""
    if not effects:
        return
    cells: list[Cell] = [(f"explained by {clean(cause.rule)}: ", "dim")]
    for number, effect in enumerate(effects):
        cells += [
            (", " if number else "", ""),
            (clean(effect.rule), "bold"),
            (f" ({effect.id}, ", ""),
            (effect.severity, _rank_style(effect)),
            (f", {certainty(effect)})", ""),
        ]
    page.flow(cells, indent, indent + 2)


def _finding_line(page: Page, verdict: Verdict, indent: int) -> None:
    page.flow(
        [
            (f"{clean(verdict.rule)} ", "bold"),
            (f"({verdict.id}, ", ""),
            (verdict.severity, _rank_style(verdict)),
            (f", {certainty(verdict)}) {flow(verdict.title)}", ""),
        ],
        indent,
        indent + 2,
    )


# ---------------------------------------------------------------------------------------------- memory, time, plan


def _memory(page: Page, devices: Sequence[DeviceMemory], verbose: bool) -> None:
    if not devices:
        return
    page.heading("Device memory")
    # the fullest are the ones to look at
    fullest = sorted(devices, key=_free_share) if len(devices) > MOST_DEVICES else list(devices)
    shown = fullest if verbose else fullest[:MOST_DEVICES]
    for device in shown:
        _bar(page, device)
    _more(page, len(devices) - len(shown), "device with more memory free", "devices with more memory free")


def _free_share(device: DeviceMemory) -> float:
    free = [part.bytes for part in device.parts if part.name == "free"]
    return sum(free) / device.total if device.total > 0 else 0.0


def _bar(page: Page, device: DeviceMemory) -> None:
    """One bar, a letter for each part, ``.`` free and ``?`` unexplained, and the table behind it."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    parts: list[tuple[str, str, float, str, str]] = [
        ("." if part.name == "free" else next(letters, "z"), clean(part.name), part.bytes, how_word(part.how), clean(part.source))
        for part in device.parts
    ]  # fmt: skip
    gap = device.unexplained
    if gap > 0:
        parts.append(("?", "unexplained", gap, "", ""))
    length = max(min(page.width - 24, 60), 12)
    edges = [0.0]
    for _, _, amount, _, _ in parts:
        edges.append(edges[-1] + max(amount, 0.0))
    whole = max(device.total, edges[-1])
    marks = [round(edge / whole * length) for edge in edges] if whole > 0 else [0] * len(edges)
    bar = "".join(letter * (end - start) for (letter, *_), (start, end) in zip(parts, pairwise(marks), strict=True))
    page.flow(
        [(f"{clean(device.device)}  ", "bold"), (f"[{bar:<{length}}]", "cyan"), (f"  {size(device.total)}", "bold")], 2
    )
    rows: list[list[Cell]] = [
        [
            (letter, "cyan"),
            (name, ""),
            (size(amount), ""),
            (_share(amount, device.total), ""),
            (how, "dim"),
            (source, "dim"),
        ]
        for letter, name, amount, how, source in parts
    ]
    page.columns(rows, indent=4, right=(2, 3))
    if gap < 0:
        page.flow(
            [(f"the parts add up to {size(-gap)} more than the device has: some bytes are counted twice", "yellow")], 4
        )


def _share(amount: float, total: float) -> str:
    if total <= 0:
        return ""
    share = amount / total
    return "< 0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def _timeline(page: Page, target: TargetReport, verbose: bool) -> None:
    entries = target.timeline
    if not entries:
        return
    dated = [entry.t for entry in entries if entry.t is not None]
    days = {day(t) for t in dated}
    note = ""
    if len(days) == 1:
        note = f"{days.pop()}, UTC" if has_year(dated[0]) else f"{days.pop()}, clock of the log, which prints no year"
    elif days:
        note = "UTC"
    page.heading("Timeline", note)
    shown = entries if verbose else entries[:MOST_EVENTS]
    rows: list[list[Cell]] = []
    for entry in shown:
        if entry.t is None:
            when = "no clock"
        else:
            when = clock(entry.t) if note and note != "UTC" else f"{day(entry.t)} {clock(entry.t)}"
        source = clean(entry.source) if verbose else place(entry.source)
        rows.append([(when, ""), (flow(entry.what), ""), (source, "dim")])
    page.columns(rows)
    _more(page, len(entries) - len(shown), "later event")


def _watermarks(page: Page, report: Report, verbose: bool) -> None:
    """The alert pair and the share to keep free, where the findings are about pressure on the pool."""
    plan = report.plan
    pressure = any(verdict.misdiagnosis in _PRESSURE for verdict in report.main.findings)
    if not (pressure or plan.admission_free is not None or plan.what_if or verbose):
        return
    parts = []
    if plan.alert_high is not None and plan.alert_low is not None:
        high, low = value(plan.alert_high.value, "1"), value(plan.alert_low.value, "1")
        parts.append(f"when KV pool usage passes {high}, clear below {low}.")
    free = plan.admission_free
    if free is None:
        parts.append("How much to keep free at admission takes a replay of this load.")
    else:
        span = f" ({interval(free.lo, free.hi, '1')})" if free.lo != free.hi else ""
        how = f", {how_word(plan.how)}" if plan.how is not None else ""
        parts.append(f"Keep {value(free.value, '1')}{span} free at admission{how}.")
    if plan.basis and verbose:
        parts.append(sentence(plan.basis))
    page.flow([("Alert   ", "bold"), (" ".join(parts), "")], 2, 10)
    if plan.policy and verbose:
        patch = ", ".join(f"{clean(key)} = {_literal(wanted)}" for key, wanted in plan.policy.items())
        page.flow([("Policy  ", "bold"), (patch, "")], 2, 10)


def _what_if(page: Page, runs: Sequence[WhatIf] | None) -> None:
    if not runs:
        return
    page.heading("What if", "the same load, replayed")
    rows: list[list[Cell]] = [
        [("", ""), ("goodput", "dim"), ("", ""), ("TTFT P99", "dim"), ("stall P99", "dim"), ("time recomputing", "dim")]
    ]
    for run in runs:
        spread = interval(run.lo, run.hi, "1") if run.lo != run.hi else ""
        rows.append(
            [
                (clean(run.name), ""),
                (value(run.goodput, "1"), "bold"),
                (spread, "dim"),
                (value(run.ttft_p99_s, "s"), ""),
                (value(run.stall_p99_s, "s"), ""),
                (value(run.recompute_time_share, "1"), ""),
            ]
        )
    page.columns(rows, right=(1, 3, 4))


def _literal(wanted: object) -> str:
    return clean(str(wanted).lower() if isinstance(wanted, bool) else str(wanted))


# ---------------------------------------------------------------------------------------------- gaps and sources


def _undecided(page: Page, target: TargetReport, verbose: bool) -> None:
    suspected, blind, aside = undecided(target)
    if not (suspected or blind or aside):
        return
    page.heading("Could not be decided")
    shown = suspected if verbose else suspected[:MOST_SUSPECTED]
    for verdict in shown:
        page.flow(
            [
                (f"{clean(verdict.rule)} ", "bold"),
                (f"({verdict.id}, ", ""),
                (verdict.severity, _rank_style(verdict)),
                (f", suspected) {flow(verdict.title)}", ""),
            ],
            2,
            4,
        )
        holds = [f"{label(item.fact)} {' '.join(comparison(item))}".rstrip() for item in held(verdict)]
        if holds:
            page.flow([("holds: ", "dim"), (listed(holds, 99 if verbose else 2), "")], 4, 6)
        gaps = [f"{label(gap.fact)} ({flow(gap.reason)})" for gap in verdict.missing]
        page.flow([("open: ", "dim"), (listed(gaps, 99 if verbose else 2), "")], 4, 6)
        for need in needs([verdict])[: None if verbose else 1]:
            page.flow([("to decide it: ", "dim"), (sentence(need.hint), "")], 4, 6)
        if verbose:
            page.flow([("fires if: ", "dim"), (flow(verdict.would_fire_if), "")], 4, 6)
    _more(page, len(suspected) - len(shown), "suspected rule")
    for muter, rest in aside.items():
        page.flow(
            [(f"set aside, {clean(muter)} explains it: {listed((clean(v.rule) for v in rest), 99)}", "dim")], 2, 4
        )
    if blind:
        names = listed((clean(v.rule) for v in blind), 99 if verbose else MOST_NAMES)
        page.flow([("too little seen for: ", "dim"), (names, "")], 2, 4)
        first = {need.hint for need in needs([target.verdict])} if target.verdict.rule == "undetermined" else set()
        first |= {need.hint for verdict in shown for need in needs([verdict])}
        useful = [need for need in needs(blind) if need.hint not in first]
        for need in useful if verbose else useful[:MOST_NEEDS]:
            rules = f"{need.rules} of them" if need.rules > 1 else "one of them"
            page.flow([(f"to decide {rules}: ", "dim"), (sentence(need.hint), "")], 4, 6)


def _understood(source: SourceNote) -> bool:
    """Was all of it read?"""
    if source.bad_lines or "unknown engine" in source.status:
        return False
    return source.lines is not None or source.status == "ok"


def _sources(page: Page, sources: Sequence[SourceNote], verbose: bool) -> None:
    if not sources:
        return
    page.heading("Sources")
    groups: dict[tuple[str, str], list[SourceNote]] = {}
    for source in sources:
        if _understood(source):
            groups.setdefault((source.kind, source.status), []).append(source)
    for (kind, status), members in groups.items():
        names = [clean(member.origin) for member in members]
        counted = [member.lines for member in members if member.lines is not None]
        if verbose or len(names) <= 2:
            which = ", ".join(names)
        else:
            which = f"{names[0]} to {names[-1]}"
        count = f"{len(members)} x " if len(members) > 1 else ""
        said = [] if status == "ok" else [flow(status)]
        if counted:
            said.insert(0, f"{value(float(sum(counted)), 'count')} line{'s' if sum(counted) != 1 else ''}")
        page.flow([(f"{count}{clean(kind)}: {which}" + (f" ({'; '.join(said)})" if said else ""), "")], 2, 4)
    for source in sources:
        if not _understood(source):
            bad = f", {source.bad_lines} of {source.lines} lines not read" if source.bad_lines else ""
            page.flow(
                [("! ", "yellow"), (f"{clean(source.kind)}: {clean(source.origin)}: {flow(source.status)}{bad}", "")],
                2,
                4,
            )


def _silent(page: Page, target: TargetReport) -> None:
    for state, words in (("clear", "Looked for and not found"), ("not_applicable", "Does not apply here")):
        names = [f"{clean(v.rule)} ({v.id})" for v in target.silent if v.state == state]
        if names:
            page.heading(words)
            page.flow([(", ".join(names), "")], 2)


def _facts(page: Page, target: TargetReport) -> None:
    page.heading("Facts", "known ones")
    rows: list[list[Cell]] = [
        [(name, ""), (of_fact(fact, unit_of(name)), "bold"), (how_word(fact.how), "dim"), (clean(fact.source), "dim")]
        for name, fact in sorted(target.facts.items())
        if isinstance(fact, Known)
    ]
    page.columns(rows)


def _more(page: Page, count: int, one: str, many: str = "") -> None:
    """How many of a list were cut."""
    if count > 0:
        noun = one if count == 1 else many or f"{one}s"
        page.flow([(f"and {count} more {noun} (--verbose)", "dim")], 2)
