"""Before and after: beyond noise or not, comparable or not, and the price beside the gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from corpus import SAMPLES, report_on
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.compare import KEY_FACTS, diff, to_dict
from kvdoctor.facts import Known
from kvdoctor.findings import Report

BY_NAME = {p.name: p for p in SAMPLES}


@pytest.fixture(scope="module")
def stock() -> Report:
    return report_on(BY_NAME["vllm-saturated"])


def changed(report: Report, **facts: Known) -> Report:
    target = replace(report.main, facts={**report.main.facts, **{k.replace("__", "."): v for k, v in facts.items()}})
    return replace(report, main=target, targets=(target,))


def per_finished(count: float, finished: float) -> Known:
    return Known(count / finished, count / finished, "measured", "w", "made", "", count, finished)


def test_a_run_against_itself_is_no_difference(stock: Report) -> None:
    result = diff(stock, stock)
    assert result.verdict == "no-difference"
    assert not result.gone
    assert not result.new


def test_fewer_preemptions_beyond_noise_are_better(stock: Report) -> None:
    result = diff(stock, changed(stock, preempt__per_finished=per_finished(20, 95)))
    assert result.verdict == "better"
    assert [c.judged for c in result.facts if c.name == "preempt.per_finished"] == ["better"]


def test_a_small_change_of_a_count_is_noise(stock: Report) -> None:
    assert diff(stock, changed(stock, preempt__per_finished=per_finished(88, 95))).verdict == "no-difference"


def test_a_gain_with_a_price_is_a_trade_off(stock: Report) -> None:
    slow = Known(9.0, 9.0, "measured", "w", "made", "", None, 95.0)
    result = diff(stock, changed(stock, preempt__per_finished=per_finished(20, 95), latency__ttft_p50=slow))
    assert result.verdict == "trade-off"
    assert "cost" in result.say


def test_worse_is_worse(stock: Report) -> None:
    assert diff(stock, changed(stock, preempt__per_finished=per_finished(300, 95))).verdict == "worse"


def test_another_engine_is_not_comparable(stock: Report) -> None:
    other = report_on(BY_NAME["sglang-retract"])
    result = diff(stock, other)
    assert result.verdict == "not-comparable"
    assert "engine" in " ".join(result.refusals)


def test_another_load_is_not_comparable(stock: Report) -> None:
    longer = Known(5000.0, 5000.0, "measured", "w", "made")
    result = diff(stock, changed(stock, work__output_mean=longer))
    assert result.verdict == "not-comparable"
    assert "load differs" in result.say


def test_lifetime_values_are_never_judged(stock: Report) -> None:
    old = Known(9.0, 9.0, "measured", "L", "made")
    result = diff(stock, changed(stock, preempt__per_finished=old))
    assert [c.judged for c in result.facts if c.name == "preempt.per_finished"] == ["unknown"]


@given(st.integers(1, 500), st.integers(1, 500))
def test_swapping_the_sides_swaps_the_judgement(stock: Report, a: int, b: int) -> None:
    one, two = (
        changed(stock, preempt__per_finished=per_finished(a, 95)),
        changed(stock, preempt__per_finished=per_finished(b, 95)),
    )
    there = {c.name: c.judged for c in diff(one, two).facts}["preempt.per_finished"]
    back = {c.name: c.judged for c in diff(two, one).facts}["preempt.per_finished"]
    assert {"better": "worse", "worse": "better"}.get(there, there) == back


def test_machine_form_names_every_key_fact_once(stock: Report) -> None:
    data = to_dict(diff(stock, stock), "0")
    assert data["schema"] == "kvdoctor.diff/1"
    names = [f["fact"] for f in data["facts"]]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    assert set(names) <= set(KEY_FACTS)
