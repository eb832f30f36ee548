"""How sure a finding is: by the provenance of its facts, its thresholds and the number of events behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvdoctor.findings import Confidence, Evidence
from kvdoctor.rulebook.expr import TRUE, Bound, Comparison, Facts, Node, Result, View, compare, fold

_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")
_Z = 1.959963985
"""Two-sided 95 % of the normal distribution."""

FEW_EVENTS = 10
FEW_REQUESTS = 30


def poisson_interval(events: float) -> tuple[float, float]:
    """95 % interval of the expected count behind ``events`` observed ones (Byar's approximation of the exact one)."""
    low = 0.0
    if events > 0:
        low = events * (1 - 1 / (9 * events) - _Z / (3 * math.sqrt(events))) ** 3
    above = events + 1
    return max(low, 0.0), above * (1 - 1 / (9 * above) + _Z / (3 * math.sqrt(above))) ** 3


def wilson_interval(share: float, requests: float) -> tuple[float, float]:
    """95 % Wilson interval of a share (0..1) observed on ``requests`` requests."""
    square = _Z * _Z / requests
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / requests + square / (4 * requests)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _spread(seen: Evidence) -> tuple[float, float] | None:
    """The 95 % interval of the value compared, when it rests on a known number of events or requests."""
    value = seen.value
    if seen.lo != seen.hi or not isinstance(value, (int, float)):
        return None
    if seen.unit == "1" and seen.requests and 0 <= value <= 1:
        return wilson_interval(value, seen.requests)
    if seen.events is None:
        return None
    low, high = poisson_interval(seen.events)
    if seen.events > 0:
        return value * low / seen.events, value * high / seen.events
    # nothing was seen: the upper end in events, as far as the unit allows it
    return (0.0, high) if seen.unit == "count" else (0.0, high / seen.requests) if seen.requests else None


def of_evidence(leaf: Comparison, seen: Evidence) -> int:
    """0 low, 1 medium, 2 high: what one comparison that holds is worth."""
    if seen.how is None:
        return 2
    if seen.how == "assumed":
        return 0
    level = 2 if seen.how == "measured" and seen.calibrated else 1
    if seen.requests is not None and seen.requests < FEW_REQUESTS:
        return 0
    # a statement that little was seen does not need many events
    much = leaf.op in (">", ">=", "==") and seen.threshold is not None and seen.value != 0
    if much and seen.events is not None and seen.events < FEW_EVENTS:
        return 0
    if leaf.op in ("<", "<=", ">", ">=") and seen.threshold_name and isinstance(seen.threshold, (int, float)):
        spread = _spread(seen)
        if spread is not None and compare(leaf.op, spread, (seen.threshold, seen.threshold)) is None:
            level -= 1
    return max(level, 0)


def level(node: Node, codes: Sequence[int], of_leaf: Callable[[Comparison], int]) -> int:
    """The confidence of a condition that is true: the weakest part of ``and``, the strongest true part of ``or``."""
    if isinstance(node, Comparison):
        return of_leaf(node)
    if node.op == "and":
        return min([level(part, codes, of_leaf) for part in node.parts])
    return max([level(part, codes, of_leaf) for part in node.parts if fold(part, codes) == TRUE])


def of_result(bound: Bound, result: Result) -> int:
    """The confidence of a condition that is true, from its evidence."""
    return level(bound.condition.root, result.codes, lambda leaf: of_evidence(leaf, result.evidence[leaf.index]))


Scorer = Callable[[Facts], int]


def scorer(bounds: Sequence[Bound]) -> Scorer:
    """The same for conditions that are all true, compiled: no evidence is made where a plain measured value needs none."""
    return _weakest([_scorer_of(bound.condition.root, bound) for bound in bounds])


def _scorer_of(node: Node, bound: Bound) -> Scorer:
    if isinstance(node, Comparison):
        return _leaf_scorer(node, bound.views[node.index])
    parts = [_scorer_of(part, bound) for part in node.parts]
    if node.op == "and":
        return _weakest(parts)
    tests = [bound.test_of(part) for part in node.parts]

    def strongest(facts: Facts) -> int:
        return max([part(facts) for test, part in zip(tests, parts, strict=True) if test(facts) == TRUE])

    return strongest


def _weakest(parts: Sequence[Scorer]) -> Scorer:
    def weakest(facts: Facts) -> int:
        out = 2
        for part in parts:
            sure = part(facts)
            if sure < out:
                if sure == 0:
                    return 0
                out = sure
        return out

    return weakest


def _leaf_scorer(leaf: Comparison, view: View) -> Scorer:
    if leaf.op in ("known", "unknown"):
        return lambda facts: 2
    names, plain = view.names, 2 if view.calibrated else 1

    def score(facts: Facts) -> int:
        for name in names:
            fact = facts[name]
            if fact.how != "measured" or fact.events is not None or fact.requests is not None:
                return of_evidence(leaf, view.evidence(facts, TRUE))
        return plain

    return score


def word(value: int) -> Confidence:
    """0..2 -> low, medium, high."""
    return _LEVELS[value]
