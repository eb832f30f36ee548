"""The report in one line."""

from __future__ import annotations

from kvdoctor.findings import Report
from kvdoctor.report.marks import certainty, rank_word
from kvdoctor.report.words import clean, flow


def first_line(report: Report) -> str:
    """The verdict and its target on one line, without control characters and without a line end."""
    verdict = report.main.verdict
    words = (
        ""
        if verdict.rule == "undetermined"
        else ", ".join(filter(None, (verdict.rule, verdict.id, certainty(verdict))))
    )
    runs = sum(target.name != "group" for target in report.targets)
    where = (
        f"the group of {runs} target{'s' if runs != 1 else ''}"
        if report.main.name == "group"
        else clean(report.main.name)
    )
    if runs > 1 and report.main.name != "group":
        where += f" (of {runs} targets)"
    return f"{rank_word(verdict)} {flow(verdict.title)}" + (f" [{clean(words)}]" if words else "") + f" on {where}"
