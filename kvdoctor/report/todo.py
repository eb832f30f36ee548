"""What to do: settings to turn, commands that confirm the verdict, the other findings, replayed alternatives."""

from __future__ import annotations

from collections.abc import Sequence

from kvdoctor.findings import Action, Report, TargetReport, Verdict, WhatIf
from kvdoctor.report.doubts import listed
from kvdoctor.report.marks import certainty, rank_style
from kvdoctor.report.page import Cell, Page
from kvdoctor.report.words import clean, ended, flow, how_word, interval, sentence, setting, span, spelled, value

CONCERNS = ("critical", "high", "medium", "low")
_PRESSURE = (2, 3, 4)
"""The misdiagnoses that watermarks are about."""
_VERBS = {"up": "raise", "down": "lower", "on": "switch on", "off": "switch off", "set": "set"}


def already(action: Action) -> bool:
    """Is the setting now, by what is known, what the action asks for?"""
    return action.flag is not None and action.to is not None and action.start is not None and (
        action.start == action.to or action.start.startswith(f"{action.to} (")
    )  # fmt: skip


def turn(action: Action) -> str:
    """One line: the flag, from what, to what; or what to do where there is no flag."""
    if action.flag is None:
        return sentence(action.instead or action.effect)
    flag = clean(action.flag)
    now = setting(action.start) if action.start is not None else ""
    if already(action):
        return f"{flag}: {now}; as it should be, make sure that nothing changes it"
    if action.to is not None and flag.endswith(("=" + action.to, " " + action.to)):
        return f"set {flag}" + (f" ({now})" if now else "")
    if "'{" in flag:
        step = "as in this example"
    elif action.to is None:
        step = f"{_VERBS.get(action.direction, action.direction)} it"
    elif action.to in ("on", "off"):
        step = f"switch it {action.to}"
    elif now.startswith("now ") and " " not in now[4:]:
        return f"{flag}: from {now[4:]} to {flow(action.to)}"
    else:
        step = f"set to {flow(action.to)}"
    return f"{flag}: {_aside(step, now)}"


def _aside(step: str, now: str) -> str:
    """``step (now)``; brackets never stand in brackets or side by side."""
    if not now:
        return step
    now = now.replace(" (", ", ").replace(")", "")
    return f"{step[:-1]}; {now})" if step.endswith(")") else f"{step} ({now})"


def without_flag(action: Action) -> str:
    """What is to be turned, in front of the way to do it; says that a flag is missing only where an engine could have one."""
    what = sentence(action.effect)[:-1]
    outside = action.lever.startswith(("topo.", "client.", "host.", "engine."))
    return f"{what}: " if outside else f"{what} (no flag for it in this version): "


def actions(page: Page, report: Report, verbose: bool) -> None:
    """Levers in the order to turn them, how to verify it, and the watermarks."""
    # what is set already is a check, not a step
    levers = sorted(report.plan.levers, key=already)
    marks = watermarks(report, verbose)
    if not levers and not marks:
        return
    page.heading("What to turn", "in this order, one at a time" if len(levers) > 1 else "")
    owners = {id(action): verdict for verdict in report.main.findings for action in verdict.actions}
    for number, action in enumerate(levers, start=1):
        head = f"{number}. "
        if action.flag is None:
            # an engine nobody recognised has no version to lack the flag
            what = without_flag(action) if action.instead and report.main.engine is not None else ""
            page.flow([(head, "bold"), (what, ""), (turn(action), "bold")], 2, 5)
        else:
            page.flow([(head, "bold"), (turn(action), "bold")], 2, 5)
        if already(action) and not verbose:
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
    for title, text in marks:
        page.flow([(f"{title:<8}", "bold"), (text, "")], 2, 10)


def watermarks(report: Report, verbose: bool) -> list[tuple[str, str]]:
    """The alert pair and the share to keep free, where the findings are about pressure on the pool."""
    plan = report.plan
    pressure = any(verdict.misdiagnosis in _PRESSURE for verdict in report.main.findings)
    if not (pressure or plan.admission_free is not None or plan.what_if or verbose):
        return []
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
    lines = [("Alert", " ".join(parts))]
    if plan.policy and verbose:
        lines.append(("Policy", ", ".join(f"{clean(key)} = {_literal(wanted)}" for key, wanted in plan.policy.items())))
    return lines


def _literal(wanted: object) -> str:
    return clean(str(wanted).lower() if isinstance(wanted, bool) else str(wanted))


def confirm(page: Page, verdict: Verdict) -> None:
    """Commands a person can run, each on a line of its own."""
    if not verdict.confirm:
        return
    page.heading("Confirm it yourself")
    for command in verdict.confirm:
        page.raw("  " + clean(command))


def other_findings(page: Page, target: TargetReport) -> None:
    """What fired beside the verdict: what it explains, what stands alone, boundaries."""
    verdict = target.verdict
    others = [v for v in target.findings if v.rule != verdict.rule]
    free = [v for v in others if v.muted_by is None and v.severity in CONCERNS]
    muted: dict[str, list[Verdict]] = {}
    for other in others:
        if other.muted_by is not None and other.severity in CONCERNS:
            muted.setdefault(other.muted_by, []).append(other)
    notes = [v for v in others if v.severity not in CONCERNS]
    if not (free or muted or notes):
        return
    page.heading("Also found")
    _muted(page, verdict, muted.pop(verdict.rule, []), 2)
    for other in free:
        _finding_line(page, other, 2)
        if other.say and other.advice_muted_by is None:
            page.flow([("Do: ", "bold"), (flow(other.say), "")], 4)
        _muted(page, other, muted.pop(other.rule, []), 4)
    for muter, rest in muted.items():
        for below in rest:
            _finding_line(page, below, 2)
            page.flow([(f"muted by {clean(muter)}: {flow(below.mute_reason)}", "dim")], 4)
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
            (effect.severity, rank_style(effect)),
            (f", {certainty(effect)})", ""),
        ]
    page.flow(cells, indent, indent + 2)


def _finding_line(page: Page, verdict: Verdict, indent: int) -> None:
    page.flow(
        [
            (f"{clean(verdict.rule)} ", "bold"),
            (f"({verdict.id}, ", ""),
            (verdict.severity, rank_style(verdict)),
            (f", {certainty(verdict)}) {flow(verdict.title)}", ""),
        ],
        indent,
        indent + 2,
    )


def what_if(page: Page, runs: Sequence[WhatIf] | None) -> None:
    """A row for each replayed alternative."""
    if not runs:
        return
    page.heading("What if", "the same load, replayed; redone: share of busy time spent recomputing")
    rows: list[list[Cell]] = [
        [("", ""), ("goodput", "dim"), ("spread", "dim"), ("TTFT P99", "dim"), ("stall P99", "dim"), ("redone", "dim")]
    ]  # fmt: skip
    for run in runs:
        spread = span(run.lo, run.hi, "1") if run.lo != run.hi else ""
        rows.append(
            [
                (clean(run.name), ""),
                (value(run.goodput, "1"), "bold"),
                (spread, "dim"),
                (value(run.ttft_p99_s, "s"), ""),
                (value(run.stall_p99_s, "s"), ""),
                (value(run.recompute_time_share, "1", 2), ""),
            ]
        )
    page.columns(rows, right=(1, 3, 4))
