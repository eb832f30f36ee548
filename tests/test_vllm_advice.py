"""What is advised for whole vLLM logs: levers that can help, with values that can be set."""

from __future__ import annotations

import pytest
from corpus import ROOT, report_on

from kvdoctor.facts import Known
from kvdoctor.findings import Action, Report
from kvdoctor.report.todo import turn


def case(name: str) -> Report:
    return report_on(ROOT / "tests" / "cases" / f"own-vllm-{name}")


def levers(report: Report) -> dict[str, Action]:
    return {action.lever: action for action in report.plan.levers}


def test_weights_do_not_ask_the_share() -> None:
    assert "kv.pool_share" not in levers(case("weights-do-not-fit"))
    assert "topo.tp" in levers(case("weights-do-not-fit"))


def test_the_workers_of_the_server_are_no_strangers_to_its_front_end() -> None:
    report = case("front-end-oom")
    assert not isinstance(report.main.facts.get("mem.foreign"), Known)
    assert not {"host.separate_tenants", "kv.pool_share"} & levers(report).keys()


def test_an_estimate_of_the_graphs_that_eats_the_pool_is_the_first_to_look_at() -> None:
    report = case("graph-estimate")
    first = report.plan.levers[0]
    assert first.lever == "mem.graphs"
    assert "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0" in first.effect
    assert "61.20 GiB" in first.effect
    assert "mem.max_model_len" not in levers(report)


def test_the_share_of_a_refusal_is_the_one_in_force() -> None:
    share = levers(case("free-below-fraction"))["kv.pool_share"]
    assert turn(share) == "--gpu-memory-utilization F: from 0.8 to about 0.72"


@pytest.mark.parametrize(("name", "site"), [("wake-up-refused", "wake_up"), ("v0-message-first", "multimodal")])
def test_sites(name: str, site: str) -> None:
    fact = case(name).main.facts["oom.site"]
    assert isinstance(fact, Known)
    assert fact.hi == site


def test_a_lower_bound_is_no_target() -> None:
    longer = levers(case("context-at-least"))["mem.max_model_len"]
    assert longer.to is None
    assert turn(longer) == "--max-model-len N: raise it (now 16384)"


def test_the_label_of_the_cache_configuration_tells_how_many_fit() -> None:
    fact = case("concurrency-label").main.facts["kv.max_concurrency"]
    assert isinstance(fact, Known)
    assert fact.hi == 2.5


def test_a_dropped_prompt_is_not_said_to_stop_the_server() -> None:
    cause = case("v0-prompt-over-pool").main.verdict.cause
    assert "Nothing runs" not in cause
    assert "drop" in cause
