"""The first screen: the verdict, why, what makes it doubtful, what to do; then who was looked at and when."""

from __future__ import annotations

from kvdoctor.facts import Known
from kvdoctor.findings import Report, TargetReport, Verdict, Window
from kvdoctor.report.doubts import blind_spots, grouped_gaps, listed, needs, undecided
from kvdoctor.report.marks import more, rank_style, rank_word, rule_words
from kvdoctor.report.page import Page
from kvdoctor.report.todo import already, turn
from kvdoctor.report.words import MISDIAGNOSES, clean, clock, day, flow, has_year, label, sentence, value

MOST_TARGETS = 12
MOST_GAPS = 4


def headline(page: Page, report: Report) -> None:
    """The verdict between two rules, then why, doubts and what to do first."""
    target = report.main
    verdict = target.verdict
    style = rank_style(verdict)
    word = rank_word(verdict)
    page.rule(style)
    page.flow([(f"{word}  ", style), (flow(verdict.title), "bold")], hang=len(word) + 2)
    line = rule_words(verdict)
    if verdict.misdiagnosis is not None:
        line += f"; misdiagnosis {verdict.misdiagnosis}: {MISDIAGNOSES[verdict.misdiagnosis]}"
    if line:
        page.flow([(line, "dim")])
    page.rule(style)
    for name, text in summary(report):
        page.labelled(name, text, "bold" if name == "First" else "")


def summary(report: Report) -> list[tuple[str, str]]:
    """What stands under the verdict: why, doubts, what to do first; an empty label goes on with the one before."""
    target, verdict = report.main, report.main.verdict
    if verdict.rule == "undetermined":
        return _undetermined(report)
    if verdict.rule == "healthy":
        out = [("Why", "No rule fired, and none that matters is suspected, in these sources and this window.")]
    else:
        out = [("Why", flow(verdict.cause or verdict.say))]
    doubts = blind_spots(target)
    if doubts:
        out.append(("Doubt", " ".join(doubts)))
    if verdict.rule == "healthy":
        return out
    if verdict.advice_muted_by is not None:
        muter = _found(target, verdict.advice_muted_by)
        name = clean(verdict.advice_muted_by) + (f" ({flow(muter.title)})" if muter is not None else "")
        instead = f"{flow(muter.say)} " if muter is not None and muter.say else ""
        out.append(("Do", f"{instead}Tuning eviction or admission would not pay: {name} holds."))
    elif verdict.cause and verdict.say:
        out.append(("Do", flow(verdict.say)))
    first = next((a for a in report.plan.levers if not already(a)), None)
    if first is not None:
        out.append(("First", turn(first)))
    return out


def _undetermined(report: Report) -> list[tuple[str, str]]:
    target, verdict = report.main, report.main.verdict
    out: list[tuple[str, str]] = []
    if not report.usable:
        # a list of unknown facts would only say again that nothing was read
        out.append(("Why", "None of the sources that were looked at could be used."))
        out.append(("Need", "The server's metrics page (two scrapes), its log from the start, or nvidia-smi output."))
        return out
    why = "Why"
    if not verdict.missing:
        return [*out, (why, flow(verdict.say) or "Nothing that was read tells enough.")]
    # a value that is known and still a gap was seen, and contradicts health
    seen = [gap for gap in verdict.missing if isinstance(fact := target.facts.get(gap.fact), Known) and fact.exact]
    told = {gap.fact for gap in seen}
    texts = [f"Seen, and no rule explains it: {'; '.join(flow(gap.reason) for gap in seen)}."] if seen else []
    suspected = [clean(v.rule) for v in undecided(target)[0]]
    if suspected:
        texts.append(f"Suspected, not decided: {listed(suspected, 3)}.")
    gaps = grouped_gaps(gap for gap in verdict.missing if gap.fact not in told)
    if gaps:
        more = f"; and {len(gaps) - MOST_GAPS} more" if len(gaps) > MOST_GAPS else ""
        texts.append(f"Not known: {'; '.join(gaps[:MOST_GAPS])}{more}.")
    out.append((why, " ".join(texts)))
    for number, need in enumerate(needs([verdict])[:MOST_GAPS]):
        unknown = [label(name) for name in need.facts if name not in told]
        gives = f" (tells {listed(unknown, 3)})" if unknown else ""
        out.append(("" if number else "Need", f"{sentence(need.hint)[:-1]}{gives}."))
    return out


def not_this(target: TargetReport) -> str:
    """What the verdict is not; where another finding silences its advice, what that one is not."""
    verdict = target.verdict
    muter = _found(target, verdict.advice_muted_by) if verdict.advice_muted_by is not None else None
    return flow(verdict.not_this if muter is None else muter.not_this)


def _found(target: TargetReport, rule: str) -> Verdict | None:
    """The finding of that name."""
    return next((v for v in target.findings if v.rule == rule), None)


def target_list(page: Page, report: Report, verbose: bool) -> None:
    """One line for each target."""
    page.heading("Targets", "* the details below are about this one")
    shown = report.targets if verbose else report.targets[:MOST_TARGETS]
    rows = []
    for target in shown:
        mark = "*" if target is report.main else " "
        verdict = target.verdict
        words = rule_words(verdict)
        rows.append(
            [
                (f"{mark} {clean(target.name)}", ""),
                (rank_word(verdict), rank_style(verdict)),
                (flow(verdict.title) + (f" ({words})" if words else ""), ""),
            ]
        )
    page.columns(rows, indent=1)
    more(page, len(report.targets) - len(shown), "target")


def target_line(page: Page, target: TargetReport) -> None:
    """Engine, version, model, devices and window of the target described."""
    page.blank()
    page.labelled("Target", "; ".join([*target_parts(target), window_words(target.window)]))


def target_parts(target: TargetReport) -> list[str]:
    """Engine with version, model, devices."""
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
    return parts


def window_words(window: Window) -> str:
    """Length, scrapes and times of a window."""
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
