"""The rules that come with kvdoctor keep what the lint asks of them."""

from __future__ import annotations

import pytest
from rulebook_helpers import facts, known

from kvdoctor.facts import Fact, Value, bound
from kvdoctor.rulebook.judge import Judge
from kvdoctor.rulebook.lint import lint
from kvdoctor.rulebook.rule import load_rules, rules_dir


def test_no_shipped_rule_has_a_problem() -> None:
    assert [str(problem) for problem in lint([rules_dir()])] == []


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.29), (0.0, 0.9)])
def test_an_upper_bound_of_recomputation_never_fires_overload(low: float, high: float) -> None:
    # a real capture with a watermark: the bound says up to 29 %, the truth was 14.2 %
    values: dict[str, Fact | Value] = {
        "kv.pressure": True,
        "preempt.count": known(33.0, events=33),
        "preempt.per_finished": known(0.31, events=33, requests=106),
        "recompute.token_share": bound(low, high, "w", "metrics.prom:7"),
        "req.waiting": 4,
        "req.waiting_max": 9,
    }
    verdict = Judge(load_rules()).explain("recompute-overload", facts(values))
    assert verdict.state == "suspected"
    assert "recompute.token_share" in [gap.fact for gap in verdict.missing]
