"""The report as text for a person: the verdict, why and what to do first; then everything it rests on."""

from __future__ import annotations

from kvdoctor.findings import Report
from kvdoctor.report.first import headline, not_this, target_line, target_list
from kvdoctor.report.gaps import known_facts, silent_rules, sources, undecided_rules
from kvdoctor.report.page import Page
from kvdoctor.report.seen import evidence, memory, timeline, vitals
from kvdoctor.report.todo import actions, confirm, other_findings, what_if
from kvdoctor.report.words import flow


def render(report: Report, *, width: int = 100, color: bool = False, verbose: bool = False) -> str:
    """The report as text, ``width`` columns wide (commands are never wrapped). ``verbose`` cuts no list and adds the rules that
    did not fire and every fact."""
    page = Page(width, color)
    target = report.main
    headline(page, report)
    if not report.usable:
        # nothing was read: what was looked at is all there is to say
        sources(page, target.sources, verbose)
        _warnings(page, report)
        return str(page)
    if len(report.targets) > 1:
        target_list(page, report, verbose)
    target_line(page, target)
    vitals(page, target, verbose)
    evidence(page, target.verdict, verbose)
    if is_not := not_this(target):
        page.heading("What it is not")
        page.flow([(is_not, "")], 2)
    actions(page, report, verbose)
    confirm(page, target.verdict)
    other_findings(page, target)
    memory(page, target.memory, verbose)
    timeline(page, target, verbose)
    what_if(page, report.plan.what_if)
    undecided_rules(page, target, verbose)
    sources(page, target.sources, verbose)
    _warnings(page, report)
    if verbose:
        silent_rules(page, target)
        known_facts(page, target)
    return str(page)


def _warnings(page: Page, report: Report) -> None:
    if report.warnings:
        page.heading("Warnings")
        for warning in report.warnings:
            page.flow([("! ", "yellow"), (flow(warning), "")], 2, 4)
