"""What could not be decided, what was read, and, when asked for, all that was not said above."""

from __future__ import annotations

from collections.abc import Sequence

from kvdoctor.facts import Known
from kvdoctor.findings import SourceNote, TargetReport
from kvdoctor.report.doubts import gap_words, held, listed, needs, undecided
from kvdoctor.report.marks import more, rank_style
from kvdoctor.report.page import Cell, Page
from kvdoctor.report.words import clean, comparison, condition, flow, how_word, label, of_fact, sentence, unit_of, value

MOST_SUSPECTED = 3
MOST_NEEDS = 1
MOST_NAMES = 8


def undecided_rules(page: Page, target: TargetReport, verbose: bool) -> None:
    """Suspected rules with what holds and what is open, then the blind ones and what most of them wait for."""
    suspected, blind, aside = undecided(target)
    if not verbose:
        # a boundary that may hold changes nothing
        suspected = [v for v in suspected if v.severity != "info"]
        aside = {muter: kept for muter, rest in aside.items() if (kept := [v for v in rest if v.severity != "info"])}
    if not (suspected or blind or aside):
        return
    page.heading("Could not be decided")
    shown = suspected if verbose else suspected[:MOST_SUSPECTED]
    for verdict in shown:
        page.flow(
            [
                (f"{clean(verdict.rule)} ", "bold"),
                (f"({verdict.id}, ", ""),
                (verdict.severity, rank_style(verdict)),
                (f", suspected) {flow(verdict.title)}", ""),
            ],
            2,
            4,
        )
        holds = [f"{label(item.fact)} {' '.join(comparison(item))}".rstrip() for item in held(verdict)]
        if holds:
            page.flow([("holds: ", "dim"), (listed(holds, 99 if verbose else 2), "")], 4, 6)
        gaps = [gap_words(gap.fact, gap.reason) for gap in verdict.missing]
        page.flow([("open: ", "dim"), (listed(gaps, 99 if verbose else 2), "")], 4, 6)
        for need in needs([verdict])[: None if verbose else 1]:
            page.flow([("to decide it: ", "dim"), (sentence(need.hint), "")], 4, 6)
        if verbose:
            page.flow([("fires if: ", "dim"), (condition(verdict.would_fire_if), "")], 4, 6)
    more(page, len(suspected) - len(shown), "suspected rule")
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


def understood(source: SourceNote) -> bool:
    """Was all of it read?"""
    if source.bad_lines or "unknown engine" in source.status:
        return False
    return source.lines is not None or source.status == "ok"


def source_lines(notes: Sequence[SourceNote], verbose: bool) -> list[tuple[bool, str]]:
    """(all of it was read, what was read): alike sources in one line, then what was not understood, one by one."""
    out: list[tuple[bool, str]] = []
    groups: dict[tuple[str, str], list[SourceNote]] = {}
    for source in notes:
        if understood(source):
            groups.setdefault((source.kind, source.status), []).append(source)
    for (kind, status), members in groups.items():
        names = [clean(member.origin) for member in members]
        counted = [member.lines for member in members if member.lines is not None]
        names = list(dict.fromkeys(names))
        if verbose or len(names) <= 2:
            which = ", ".join(names)
        else:
            which = f"{names[0]} to {names[-1]}"
        count = f"{len(members)} x " if len(members) > 1 else ""
        said = [] if status == "ok" else [flow(status)]
        if counted:
            said.insert(0, f"{value(float(sum(counted)), 'count')} line{'s' if sum(counted) != 1 else ''}")
        out.append((True, f"{count}{clean(kind)}: {which}" + (f" ({'; '.join(said)})" if said else "")))
    for source in notes:
        if not understood(source):
            bad = f", {source.bad_lines} of {source.lines} lines not read" if source.bad_lines else ""
            out.append((False, f"{clean(source.kind)}: {clean(source.origin)}: {flow(source.status)}{bad}"))
    return out


def sources(page: Page, notes: Sequence[SourceNote], verbose: bool) -> None:
    """What was read, and what of it was not understood."""
    if not notes:
        return
    page.heading("Sources")
    for whole, line in source_lines(notes, verbose):
        page.flow([(line, "")] if whole else [("! ", "yellow"), (line, "")], 2, 4)


def silent_rules(page: Page, target: TargetReport) -> None:
    """The rules that did not fire."""
    for state, words in (("clear", "Looked for and not found"), ("not_applicable", "Does not apply here")):
        names = [f"{clean(v.rule)} ({v.id})" for v in target.silent if v.state == state]
        if names:
            page.heading(words)
            page.flow([(", ".join(names), "")], 2)


def known_facts(page: Page, target: TargetReport) -> None:
    """Every fact that is known."""
    page.heading("Facts", "known ones")
    rows: list[list[Cell]] = [
        [(name, ""), (of_fact(fact, unit_of(name)), "bold"), (how_word(fact.how), "dim"), (clean(fact.source), "dim")]
        for name, fact in sorted(target.facts.items())
        if isinstance(fact, Known)
    ]
    page.columns(rows)
