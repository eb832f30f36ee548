"""The word, the colour and the names a verdict goes by in the text report."""

from __future__ import annotations

from kvdoctor.findings import CERTAINTY, Verdict
from kvdoctor.report.page import Page
from kvdoctor.report.words import clean

_SEVERITY_STYLE = {
    "critical": "bold red",
    "high": "red",
    "medium": "yellow",
    "low": "cyan",
    "info": "blue",
    "healthy": "green",
    "undetermined": "yellow",
}


def rank_word(verdict: Verdict) -> str:
    """The word in front of a verdict: its severity, or HEALTHY or UNDETERMINED."""
    return (verdict.rule if verdict.rule in ("healthy", "undetermined") else verdict.severity).upper()


def certainty(verdict: Verdict) -> str:
    """certain, likely or suspected; '' where nothing is claimed."""
    if verdict.rule == "undetermined":
        return ""
    return CERTAINTY[verdict.confidence] if verdict.state == "fires" else "suspected"


def rank_style(verdict: Verdict) -> str:
    """The colour of that word."""
    key = verdict.rule if verdict.rule in ("healthy", "undetermined") else verdict.severity
    return _SEVERITY_STYLE[key]


def rule_words(verdict: Verdict) -> str:
    """Name, id and certainty; '' where the word in front says it all."""
    if verdict.rule == "undetermined":
        return ""
    return ", ".join(clean(part) for part in (verdict.rule, verdict.id, certainty(verdict)) if part)


def more(page: Page, count: int, one: str, many: str = "") -> None:
    """How many of a list were cut."""
    if count > 0:
        noun = one if count == 1 else many or f"{one}s"
        page.flow([(f"and {count} more {noun} (--verbose)", "dim")], 2)
