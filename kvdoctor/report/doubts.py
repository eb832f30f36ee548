"""Why a verdict is not certain, what could not be decided, and what would decide it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kvdoctor.facts import Known
from kvdoctor.findings import SEVERITIES, Evidence, Missing, TargetReport, Verdict
from kvdoctor.frozen import frozen
from kvdoctor.report.words import flow, interval, label, unit_of

FEW_EVENTS = 10
FEW_REQUESTS = 30


def listed(items: Iterable[str], most: int = 4) -> str:
    """``a, b and c``; beyond ``most`` the rest is counted."""
    names = list(dict.fromkeys(items))
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def held(verdict: Verdict) -> list[Evidence]:
    """The comparisons that hold: of several with one fact and one direction the strictest, gates (yes or no) at the end. That a fact is known is no evidence."""
    kept: dict[tuple[str, str], Evidence] = {}
    for item in verdict.evidence:
        if not item.outcome or item.op in ("known", "unknown"):
            continue
        side = {">": "above", ">=": "above", "<": "below", "<=": "below"}.get(item.op, item.op)
        old = kept.get((item.fact, side))
        if old is None or _stricter(item, old, side):
            kept[item.fact, side] = item
    return sorted(kept.values(), key=lambda item: item.unit == "bool")


def _stricter(new: Evidence, old: Evidence, side: str) -> bool:
    if not isinstance(new.threshold, (int, float)) or not isinstance(old.threshold, (int, float)):
        return False
    return new.threshold > old.threshold if side == "above" else side == "below" and new.threshold < old.threshold


def blind_spots(target: TargetReport) -> list[str]:
    """Sentences that say what keeps the verdict of ``target`` from being certain; empty for high confidence."""
    verdict = target.verdict
    if verdict.rule == "undetermined" or verdict.confidence == "high":
        return []
    if verdict.rule == "healthy":
        unseen = [v.name for v in target.vitals if not isinstance(v.value, Known)]
        return [f"Not seen: {listed(unseen)}."] if unseen else []
    out: list[str] = []
    seen = held(verdict)
    by_how: dict[str, list[str]] = {}
    for item in seen:
        if item.how not in (None, "measured"):
            by_how.setdefault(str(item.how), []).append(label(item.fact))
    words = {"estimated": "Estimated, not measured", "bound": "Known as bounds only", "assumed": "Assumed, not seen"}
    out.extend(f"{words[how]}: {listed(names, 2)}." for how, names in sorted(by_how.items()))
    few = [case for item in seen if (case := _few(item)) is not None]
    if few:
        number, noun, name = min(few)
        out.append(f"Only {number:g} {noun if number != 1 else noun[:-1]} behind {name}.")
    gaps = [item for item in verdict.evidence if item.outcome is None]
    if gaps:
        out.append(f"Not known: {listed((gap_words(g.fact, g.reason) for g in gaps), 1)}.")
    raw = [label(item.fact) for item in seen if not item.calibrated]
    if raw:
        out.append(f"Limit not calibrated for {listed(raw, 2)}.")
    if not out:
        out.append("The counts are too small to tell the value from its limit with 95 % certainty.")
    return out


def _few(item: Evidence) -> tuple[float, str, str] | None:
    """How many of what stand behind a value, where they are few."""
    much = item.op in (">", ">=", "==") and item.value != 0
    if item.requests is not None and item.requests < FEW_REQUESTS:
        return item.requests, "requests", label(item.fact)
    if much and item.events is not None and item.events < FEW_EVENTS:
        return item.events, "events", label(item.fact)
    return None


_WITHIN = re.compile(r"known only to lie between (\S+) and (\S+)")


def reason_words(fact: str, reason: str) -> str:
    """Why a fact is open, with the ends of a bound in its unit."""

    def ends(match: re.Match[str]) -> str:
        try:
            low, high = float(match[1]), float(match[2])
        except ValueError:
            return match[0]
        return f"known only to lie {interval(low, high, unit_of(fact))}"

    return _WITHIN.sub(ends, flow(reason))


def gap_words(fact: str, reason: str) -> str:
    """``label (reason)``"""
    why = reason_words(fact, reason)
    return label(fact) + (f" ({why})" if why else "")


def grouped_gaps(missing: Iterable[Missing]) -> list[str]:
    """What is not known, facts with one reason together: ``a and b (why)``."""
    by_reason: dict[str, list[str]] = {}
    for gap in missing:
        by_reason.setdefault(reason_words(gap.fact, gap.reason), []).append(label(gap.fact))
    return [listed(names, 3) + (f" ({why})" if why else "") for why, names in by_reason.items()]


_NO_WAY = "a measured value would decide it"
"""What the rulebook says where nobody knows how to get a better value: no advice."""


@frozen
class Need:
    """One thing to supply: how, which facts it gives, how many rules wait for it."""

    hint: str
    facts: tuple[str, ...]
    rules: int


def needs(verdicts: Sequence[Verdict]) -> list[Need]:
    """What would decide ``verdicts``, the one most rules wait for first; gaps without a hint name no way and are left out."""
    facts: dict[str, dict[str, None]] = {}
    rules: dict[str, set[str]] = {}
    for verdict in verdicts:
        for gap in verdict.missing:
            hint = flow(gap.hint)
            if hint and hint != _NO_WAY:
                facts.setdefault(hint, {})[gap.fact] = None
                rules.setdefault(hint, set()).add(verdict.rule)
    found = [Need(hint, tuple(names), len(rules[hint])) for hint, names in facts.items()]
    return sorted(found, key=lambda need: -need.rules)


def undecided(target: TargetReport) -> tuple[list[Verdict], list[Verdict], Mapping[str, list[Verdict]]]:
    """Suspected (gravest first), blind, and suspected ones set aside by the finding that explains them."""
    suspected = [v for v in target.undecided if v.state == "suspected" and v.muted_by is None]
    blind = [v for v in target.undecided if v.state == "blind"]
    aside: dict[str, list[Verdict]] = {}
    for verdict in target.undecided:
        if verdict.state == "suspected" and verdict.muted_by is not None:
            aside.setdefault(verdict.muted_by, []).append(verdict)
    suspected.sort(key=lambda v: (SEVERITIES.index(v.severity), v.stage, v.id))
    blind.sort(key=lambda v: (SEVERITIES.index(v.severity), v.stage, v.id))
    return suspected, blind, aside
