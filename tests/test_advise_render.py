"""A policy in an engine version's flags, or what comes closest; and plans that replays change."""

from __future__ import annotations

import pytest

from kvdoctor.advise import Setting, Simulated, SimulatedLever, plan
from kvdoctor.advise.render import render_policy
from kvdoctor.engines.base import engines
from kvdoctor.facts import FactSet
from kvdoctor.findings import Action, Verdict, Watermark, WhatIf
from kvdoctor.policy import NAMED_POLICIES, Policy


def rendered(name: str, engine: str, version: str) -> dict[str, Action]:
    return {one.why: one for one in render_policy(Policy.named(name), engines()[engine], version)}


def test_a_watermark_is_a_flag_where_the_version_has_one() -> None:
    act = rendered("watermark", "vllm", "0.32.0")["admission.free_share = 0.02"]
    assert act.flag == "--watermark F"
    assert act.to == "0.02"
    assert act.cost
    old = rendered("watermark", "vllm", "0.21.0")["admission.free_share = 0.02"]
    assert old.flag is None
    assert "cannot be set on vLLM 0.21.0" in old.instead
    assert "--max-num-seqs" in old.instead


def test_another_engines_ratio_is_not_called_a_watermark() -> None:
    act = rendered("watermark", "sglang", "0.5.23")["admission.free_share = 0.02"]
    assert act.flag is None
    assert "Closest: --schedule-conservativeness" in act.instead


def test_first_chunk_and_reservation() -> None:
    assert rendered("first-chunk", "vllm", "0.32.0")["admission.mode = first_chunk"].to == "off"
    assert rendered("first-chunk", "vllm", "0.18.0") == {}, "that is what the version does"
    reserve = rendered("no-evict", "tensorrt-llm", "1.0")["admission.mode = reserve"]
    assert reserve.flag is not None
    assert rendered("no-evict", "vllm", "0.32.0")["admission.mode = reserve"].flag is None


@pytest.mark.parametrize("name", sorted(NAMED_POLICIES))
@pytest.mark.parametrize("engine", sorted(engines()))
def test_every_wish_has_a_flag_or_words(name: str, engine: str) -> None:
    for act in render_policy(Policy.named(name), engines()[engine], None):
        assert (act.flag is None) == bool(act.instead)


def test_the_stock_policy_asks_for_nothing() -> None:
    assert rendered("stock", "vllm", "0.32.0") == {}


def action(lever: str, direction: str, *, start: str | None = None, to: str | None = None) -> Action:
    return Action(lever, f"--{lever}", start, to, direction, "effect.", "", "next", "")


def finding(*actions: Action) -> Verdict:
    return Verdict("rule", "KV999", "fires", "title", "high", 5, None, False, actions=actions)


SIMULATED = Simulated(
    (WhatIf("as it is", 0.5, 0.4, 0.6, 1.0, 1.0, 0.1),),
    {"sched.max_running": SimulatedLever(8, 6, 9, 32, "Replayed: more.", "the queue")},
    frozenset({"admission.free_share"}),
    Watermark(0.02, 0.01, 0.03),
    "basis",
)


def setting(simulated: Simulated | None) -> Setting:
    return Setting(engines()["vllm"], "0.32.0", {}, FactSet(), simulated)


def test_what_the_replay_refutes_is_not_in_the_plan() -> None:
    levers = (action("admission.free_share", "up"), action("sched.max_running", "down"), action("topo.dp", "up"))
    assert [one.lever for one in plan([finding(*levers)], {}, setting(None)).levers] == [one.lever for one in levers]
    kept = plan([finding(*levers)], {}, setting(SIMULATED))
    assert [one.lever for one in kept.levers] == ["sched.max_running", "topo.dp"]
    wrong_way = plan([finding(action("sched.max_running", "up"))], {}, setting(SIMULATED))
    assert wrong_way.levers == ()
    assert kept.what_if == SIMULATED.rows
    assert kept.admission_free == Watermark(0.02, 0.01, 0.03)


def test_what_is_set_already_is_not_advised() -> None:
    levers = (
        action("admission.full_prompt", "on", start="on (default)", to="on"),
        action("kv.dtype", "set", start="auto", to="fp8"),
    )
    assert [one.lever for one in plan([finding(*levers)], {}, setting(None)).levers] == ["kv.dtype"]


def test_no_two_levers_against_each_other() -> None:
    levers = (action("admission.free_share", "up", to="0.02"), action("sched.max_running", "up"))
    assert [one.lever for one in plan([finding(*levers)], {}, setting(None)).levers] == ["admission.free_share"]


def test_the_watermark_found_replaces_the_rule_of_thumb() -> None:
    found = plan([finding()], {"rule": {"admission.free_share": 0.05}}, setting(SIMULATED))
    assert found.policy == {"admission.free_share": 0.02}
    assert plan([finding()], {"rule": {"admission.free_share": 0.05}}, setting(None)).policy == {
        "admission.free_share": 0.05
    }
