"""The report as text for a person: the verdict, why and what to do first; then everything it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvdoctor.facts import Known
from kvdoctor.findings import (
    CERTAINTY,
    Action,
    DeviceMemory,
    Evidence,
    Plan,
    Report,
    SourceNote,
    TargetReport,
    Verdict,
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
MOST_EVIDENCE = 6
MOST_EVENTS = 8
MOST_SUSPECTED = 3
MOST_NEEDS = 3
MOST_DEVICES = 2
MOST_TARGETS = 12


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
    _boundaries(page, target)
    _memory(page, target.memory, verbose)
    _timeline(page, target, verbose)
    _plan(page, report.plan, verbose)
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
    parts = [verdict.rule, verdict.id, certainty(verdict)]
    line = ", ".join(clean(part) for part in parts if part)
    if verdict.misdiagnosis in MISDIAGNOSES:
        line += f"; misdiagnosis {verdict.misdiagnosis}: {MISDIAGNOSES[verdict.misdiagnosis]}"
    page.flow([(line, "dim")])
    page.rule(style)
    if verdict.rule == "undetermined":
        _undetermined(page, target)
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
        page.labelled("Do", f"Nothing about its policy: {_name(target, verdict.advice_muted_by)} holds, so it would not pay.")
        return
    if verdict.cause and verdict.say:
        page.labelled("Do", flow(verdict.say))
    first = next((a for a in report.plan.levers if not _already(a)), None)
    if first is not None:
        page.labelled("First", _turn(first), "bold")


def _undetermined(page: Page, target: TargetReport) -> None:
    verdict = target.verdict
    if not verdict.missing:
        page.labelled("Why", flow(verdict.say) or "Nothing that was read tells enough.")
        return
    suspected = [clean(v.rule) for v in undecided(target)[0]]
    text = ""
    if suspected:
        text = f"Suspected, not decided: {listed(suspected, 3)}. "
    gaps = [f"{label(gap.fact)} ({flow(gap.reason)})" for gap in verdict.missing]
    shown = "; ".join(gaps[:4]) + (f"; and {len(gaps) - 4} more" if len(gaps) > 4 else "")
    page.labelled("Why", f"{text}Not known: {shown}.")
    for number, need in enumerate(needs([verdict])[:MOST_NEEDS]):
        gives = listed(map(label, need.facts), 3)
        page.labelled("Give" if not number else "", f"{sentence(need.hint)} Tells: {gives}.")


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
        words = ", ".join(p for p in (clean(verdict.rule), verdict.id, certainty(verdict)) if p)
        rows.append(
            [
                (f"{mark} {clean(target.name)}", ""),
                (rank_word(verdict), _rank_style(verdict)),
                (f"{flow(verdict.title)} ({words})", ""),
            ]
        )
    page.columns(rows, indent=1)
    _more(page, len(report.targets) - len(shown), "target")


def _target(page: Page, target: TargetReport) -> None:
    if target.name == "group":
        parts = ["the group of targets"]
    elif target.engine is None:
        parts = [clean(target.name), "engine not known"]
    else:
        parts = [f"{target.engine} {clean(target.engine_version)}" if target.engine_version else f"{target.engine}, version not known"]
    parts.append(f"model {clean(target.model)}" if target.model else "model not known")
    if target.gpus:
        parts.append(listed(map(clean, target.gpus), 3))
    page.blank()
    page.labelled("Target", "; ".join(parts))
    page.labelled("Window", _window(target.window))


def _window(window: Window) -> str:
    parts = []
    if window.seconds is not None:
        parts.append(value(window.seconds, "s"))
    parts.append(f"{window.scrapes} scrape{'s' if window.scrapes != 1 else ''}" if window.scrapes else "no scrape of metrics")
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
        limit = f"limit {value(vital.threshold, vital.unit)}" if vital.threshold is not None else "no limit"
        # without a limit there is nothing to be ok against
        status = vital.status if vital.threshold is not None else "-"
        since = "since the start" if fact.span == "L" else ""
        rows.append(
            [
                (vital.name, ""),
                (of_fact(fact, vital.unit), ""),
                (limit, "dim"),
                (status, _STATUS_STYLE.get(status, "dim")),
                (", ".join(p for p in (how_word(fact.how) if fact.how != "measured" else "", since) if p), "dim"),
            ]
        )
    page.columns(rows, right=(1,))
    for (reason, hint), names in unknown.items():
        text = f"{', '.join(names)}: {reason}" + (f"; {hint}" if hint else "")
        page.flow([("unknown  ", _STATUS_STYLE["unknown"]), (text, "")], 2, 11)


def _evidence(page: Page, verdict: Verdict, verbose: bool) -> None:
    seen = held(verdict)
    if not verbose and any(item.unit != "bool" for item in seen):
        # a gate repeats what the figures before it say
        seen = [item for item in seen if item.fact != "kv.pressure"]
    if not seen:
        return
    page.heading("Evidence")
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
        rows.append(
            [
                (label(item.fact), ""),
                (left, "bold"),
                (right, ""),
                (how_word(item.how), "" if item.how == "measured" else "yellow"),
                (clean(item.source) if verbose else short_source(item.source), "dim"),
            ]
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
    start = setting(action.start) if action.start is not None else ""
    if _already(action):
        return f"{flag}: already {start}; make sure that nothing changes it"
    now = f" (now {start})" if start else ""
    if action.to is None:
        return f"{flag}: {_VERBS.get(action.direction, action.direction)} it{now}"
    return f"{flag}: from {start} to {flow(action.to)}" if start else f"{flag}: set to {flow(action.to)}"


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
            what = sentence(action.effect)[:-1] if action.instead else ""
            page.flow(
                [(head, "bold"), (f"{what}: no flag for it in this version. Instead: " if what else "", ""), (_turn(action), "bold")],
                2, 5,
            )  # fmt: skip
        else:
            page.flow([(head, "bold"), (_turn(action), "bold")], 2, 5)
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
        page.flow([("Verify  " if not number else "        ", "bold"), (check, "")], 2, 10)


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
        if other.muted_by is not None:
            muted.setdefault(other.muted_by, []).append(other)
    if not free and not muted:
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


def _boundaries(page: Page, target: TargetReport) -> None:
    found = [
        v for v in target.findings if v.severity == "info" and v.muted_by is None and v.rule != target.verdict.rule
    ]
    if not found:
        return
    page.heading("Good to know")
    for verdict in found:
        page.flow([(f"{clean(verdict.rule)} ({verdict.id}): ", ""), (flow(verdict.title), "")], 2, 4)


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
    page.flow([(f"{clean(device.device)}  ", "bold"), (f"[{bar:<{length}}]", "cyan"), (f"  {size(device.total)}", "bold")], 2)
    rows: list[list[Cell]] = [
        [(letter, "cyan"), (name, ""), (size(amount), ""), (_share(amount, device.total), ""), (how, "dim"), (source, "dim")]
        for letter, name, amount, how, source in parts
    ]
    page.columns(rows, indent=4, right=(2, 3))
    if gap < 0:
        page.flow([(f"the parts add up to {size(-gap)} more than the device has: some bytes are counted twice", "yellow")], 4)


def _share(amount: float, total: float) -> str:
    return f"{amount / total:.1%}".replace("%", " %") if total > 0 else ""


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
        place = clean(entry.source) if verbose else clean(entry.source).split(" ", 1)[0]
        rows.append([(when, ""), (flow(entry.what), ""), (place, "dim")])
    page.columns(rows)
    _more(page, len(entries) - len(shown), "later event")


def _plan(page: Page, plan: Plan, verbose: bool) -> None:
    if not (plan.levers or plan.admission_free or plan.what_if or verbose):
        return
    page.heading("Watermarks")
    if plan.alert_high is not None and plan.alert_low is not None:
        page.flow([(f"Alert when KV pool usage passes {value(plan.alert_high.value, '1')}, clear below {value(plan.alert_low.value, '1')}.", "")], 2)  # fmt: skip
    free = plan.admission_free
    if free is not None:
        span = f" ({interval(free.lo, free.hi, '1')})" if free.lo != free.hi else ""
        page.flow([(f"Keep free at admission: {value(free.value, '1')}{span}, {how_word(plan.how)}.", "")], 2)
    else:
        page.flow([("How much to keep free at admission takes a replay of this load.", "")], 2)
    if plan.basis and verbose:
        page.flow([(sentence(plan.basis), "dim")], 2)
    if plan.policy:
        patch = ", ".join(f"{clean(key)} = {_literal(wanted)}" for key, wanted in plan.policy.items())
        page.flow([("Policy  ", "bold"), (patch, "")], 2, 10)
    if plan.what_if:
        page.heading("What if", "the same load, replayed")
        head: list[Cell] = [("", ""), ("goodput", "dim"), ("TTFT P99", "dim"), ("stall P99", "dim"), ("recompute time", "dim")]
        rows = [head]
        for run in plan.what_if:
            goodput = interval(run.lo, run.hi, "1")
            rows.append(
                [
                    (clean(run.name), ""),
                    (f"{value(run.goodput, '1')}" + (f", {goodput}" if run.lo != run.hi else ""), "bold"),
                    (value(run.ttft_p99_s, "s"), ""),
                    (value(run.stall_p99_s, "s"), ""),
                    (value(run.recompute_time_share, "1"), ""),
                ]
            )
        page.columns(rows)


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
        page.flow([(f"set aside, {clean(muter)} explains it: {listed((clean(v.rule) for v in rest), 99)}", "dim")], 2, 4)
    if blind:
        names = listed((clean(v.rule) for v in blind), 99 if verbose else 12)
        page.flow([("too little seen for: ", "dim"), (names, "")], 2, 4)
        first = {need.hint for need in needs([target.verdict])} if target.verdict.rule == "undetermined" else set()
        first |= {need.hint for verdict in shown for need in needs([verdict])}
        useful = [need for need in needs(blind) if need.hint not in first]
        for need in useful if verbose else useful[:MOST_NEEDS]:
            rules = f"{need.rules} rule{'s' if need.rules != 1 else ''}"
            page.flow([(f"for {rules}: ", "dim"), (sentence(need.hint), "")], 4, 6)


def _understood(source: SourceNote) -> bool:
    return source.lines is not None and not source.bad_lines and "unknown engine" not in source.status


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
        lines = sum(member.lines for member in members if member.lines is not None)
        if verbose or len(names) <= 2:
            which = ", ".join(names)
        else:
            which = f"{names[0]} to {names[-1]}"
        count = f"{len(members)} x " if len(members) > 1 else ""
        said = "" if status == "ok" else f"; {flow(status)}"
        page.flow([(f"{count}{clean(kind)}: {which} ({value(float(lines), 'count')} lines{said})", "")], 2, 4)
    for source in sources:
        if not _understood(source):
            bad = f", {source.bad_lines} of {source.lines} lines not read" if source.bad_lines else ""
            page.flow([("! ", "yellow"), (f"{clean(source.kind)}: {clean(source.origin)}: {flow(source.status)}{bad}", "")], 2, 4)


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
