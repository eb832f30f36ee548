"""The report in one line."""

from __future__ import annotations

from kvdoctor.findings import Report
from kvdoctor.report.text import certainty, rank_word
from kvdoctor.report.words import clean, flow


def first_line(report: Report) -> str:
    """The verdict and its target on one line, without control characters and without a line end."""
    verdict = report.main.verdict
    words = ", ".join(part for part in (verdict.rule, verdict.id, certainty(verdict)) if part)
    line = f"{rank_word(verdict)} {flow(verdict.title)} [{clean(words)}] on {clean(report.main.name)}"
    others = len(report.targets) - 1
    return f"{line} (1 of {others + 1} targets)" if others > 0 else line
