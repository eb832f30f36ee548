"""From facts to the one verdict: states, confidence, mutes, the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rulebook_helpers import facts, known, make

from kvdoctor.facts import FACTS, Fact, FactSet, Unknown, Value, bound
from kvdoctor.findings import SEVERITIES, Evidence, Verdict
from kvdoctor.rulebook import confidence
from kvdoctor.rulebook.config import Config, Mute
from kvdoctor.rulebook.expr import FALSE, TRUE, Threshold, parse_condition
from kvdoctor.rulebook.judge import Judge, choose, gravest, judge, settle, under_one_name
from kvdoctor.rulebook.rule import Rule, RuleError, Scope, check_set, load_rules

LIMITS = """
[thresholds]
share = { value = 0.25, unit = "1", calibrated = true, why = "w", source = "s" }
guess = { value = 0.25, unit = "1", calibrated = false, why = "w" }
n = { value = 5, unit = "count", calibrated = true, why = "w", source = "s" }
often = { value = 0.2, unit = "ratio", calibrated = true, why = "w", source = "s" }
"""
HEALTHY: dict[str, Fact | Value] = {"kv.usage_max": 0.4, "preempt.count": 0, "req.waiting": 0}


def verdict_of(rule: Rule, values: dict[str, Fact | Value], **options: str) -> Verdict:
    (verdict,) = judge([rule], facts(values), **options)  # type: ignore[arg-type]
    return verdict


def state_of(rule: Rule, values: dict[str, Fact | Value]) -> str:
    return verdict_of(rule, values).state


# ------------------------------------------------------------------------------------------ states

PLAIN = make(
    when="req.waiting > 0 and kv.usage_max > thresholds.share", top='applies = "preempt.count > 0"', tables=LIMITS
)


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"preempt.count": 1, "req.waiting": 2, "kv.usage_max": 0.9}, "fires"),
        ({"preempt.count": 1, "req.waiting": 0, "kv.usage_max": 0.9}, "clear"),
        ({"preempt.count": 1, "req.waiting": 0}, "clear"),
        ({"preempt.count": 0, "req.waiting": 2, "kv.usage_max": 0.9}, "not_applicable"),
        ({"preempt.count": 0}, "not_applicable"),
        ({"preempt.count": 1, "req.waiting": 2}, "suspected"),
        ({"preempt.count": 1}, "blind"),
        ({}, "blind"),
        ({"req.waiting": 2, "kv.usage_max": 0.9}, "suspected"),
        ({"req.waiting": 0}, "clear"),
        # the straddling bound holds nothing by itself, the queue does
        ({"preempt.count": 1, "req.waiting": 2, "kv.usage_max": bound(0.0, 0.9, "w", "t")}, "suspected"),
        ({"preempt.count": 1, "kv.usage_max": bound(0.0, 0.9, "w", "t")}, "blind"),
        ({"preempt.count": 1, "req.waiting": 2, "kv.usage_max": bound(0.0, 0.2, "w", "t")}, "clear"),
        ({"preempt.count": known(9000, "L"), "req.waiting": 2, "kv.usage_max": 0.9}, "suspected"),
        ({"preempt.count": 1, "req.waiting": 2, "kv.usage_max": known(0.9, "L")}, "suspected"),
        ({"preempt.count": 1, "req.waiting": 2, "kv.usage_max": known(0.1, "L")}, "clear"),
    ],
)
def test_states(values: dict[str, Fact | Value], state: str) -> None:
    assert state_of(PLAIN, values) == state


def test_an_undecided_rule_says_what_is_missing_and_what_would_make_it_fire() -> None:
    gone = Unknown("vLLM does not export it", "pass --log")
    seen = verdict_of(PLAIN, {"preempt.count": 1, "req.waiting": 2, "kv.usage_max": gone})
    assert [(m.fact, m.reason, m.hint) for m in seen.missing] == [
        ("kv.usage_max", "vLLM does not export it", "pass --log")
    ]
    assert seen.would_fire_if == "kv.usage_max > 0.25 (1)"
    assert {e.fact: e.outcome for e in seen.evidence} == {
        "req.waiting": True,
        "kv.usage_max": None,
        "preempt.count": True,
    }


def test_what_would_make_it_fire_joins_all_parts() -> None:
    either = make(when="req.waiting > 0 or req.running > 0", top='applies = "preempt.count > 0"')
    assert (
        verdict_of(either, {"preempt.count": 1}).would_fire_if == "req.waiting > 0 (count) or req.running > 0 (count)"
    )
    assert verdict_of(either, {}).would_fire_if == (
        "preempt.count > 0 (count) and (req.waiting > 0 (count) or req.running > 0 (count))"
    )


def test_a_finding_carries_its_texts_and_all_evidence() -> None:
    seen = verdict_of(PLAIN, {"preempt.count": 1, "req.waiting": 2, "kv.usage_max": 0.9})
    assert (seen.say, seen.cause, seen.not_this) == ("do this", "the cause", "not that")
    assert [(e.fact, e.value, e.threshold, e.source) for e in seen.evidence] == [
        ("req.waiting", 2, 0.0, "metrics.prom:7"),
        ("kv.usage_max", 0.9, 0.25, "metrics.prom:7"),
        ("preempt.count", 1, 0.0, "metrics.prom:7"),
    ]


def test_the_evidence_of_a_clear_rule_is_there_on_demand() -> None:
    judged = Judge([PLAIN])
    values = facts({"preempt.count": 1, "req.waiting": 0, "kv.usage_max": 0.9})
    assert judged.judge(values)[0].evidence == ()
    told = judged.explain("some-rule", values)
    assert told.state == "clear"
    assert [(e.fact, e.outcome) for e in told.evidence[:2]] == [("req.waiting", False), ("kv.usage_max", True)]
    with pytest.raises(KeyError):
        judged.explain("no-such-rule", values)


FLOOR = make(when="req.waiting > 0", top='min_events = { fact = "preempt.count", value = 10 }')


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"req.waiting": 2, "preempt.count": 10}, "fires"),
        ({"req.waiting": 2, "preempt.count": 9}, "clear"),
        ({"req.waiting": 2}, "suspected"),
        ({"req.waiting": 0}, "clear"),
        ({"req.waiting": 2, "preempt.count": bound(0, 40, "w", "t")}, "suspected"),
        ({"req.waiting": 2, "preempt.count": known(4000, "L")}, "suspected"),
    ],
)
def test_a_floor_of_events(values: dict[str, Fact | Value], state: str) -> None:
    assert state_of(FLOOR, values) == state


GATED = make("KV299", stage=5, when="req.waiting > 0", top="misdiagnosis = 2")
UNGATED = make("KV302", stage=5, when="req.waiting > 0", top="misdiagnosis = 3\ngated = false")


@pytest.mark.parametrize(
    ("values", "gated", "ungated"),
    [
        ({"kv.pressure": True, "req.waiting": 1}, "fires", "fires"),
        ({"kv.pressure": False, "req.waiting": 1}, "not_applicable", "fires"),
        ({"req.waiting": 1}, "suspected", "fires"),
        ({"target.phase": "starting", "kv.pressure": True, "req.waiting": 1}, "not_applicable", "not_applicable"),
        ({"target.phase": "unknown", "kv.pressure": True, "req.waiting": 1}, "fires", "fires"),
        ({"target.phase": Unknown("no log"), "kv.pressure": True, "req.waiting": 1}, "fires", "fires"),
    ],
)
def test_the_pressure_gate_and_the_phase(values: dict[str, Fact | Value], gated: str, ungated: str) -> None:
    assert (state_of(GATED, values), state_of(UNGATED, values)) == (gated, ungated)


def test_the_gate_is_part_of_the_evidence() -> None:
    seen = verdict_of(GATED, {"kv.pressure": True, "req.waiting": 1})
    assert [(e.fact, e.op, e.outcome) for e in seen.evidence] == [
        ("req.waiting", ">", True),
        ("kv.pressure", "is", True),
    ]


def test_start_up_holds_back_pressure_rules_only() -> None:
    oom = make("KV199", stage=2, when="oom.count > 0", top="misdiagnosis = 1")
    assert state_of(oom, {"target.phase": "starting", "oom.count": 1}) == "fires"


def test_levels() -> None:
    both = make(
        "KV501",
        stage=4,
        when="spread.usage_gap > thresholds.share",
        top='misdiagnosis = 5\nscope = "both"',
        tables=LIMITS,
    )
    own = make(
        "KV500",
        "other",
        stage=5,
        when="whatif.policy > thresholds.share",
        top='misdiagnosis = 5\nscope = "both"',
        tables=LIMITS + '[group]\nwhen = "group.recompute_change > thresholds.share"\n',
    )
    only = make("KV502", "third", stage=4, when="group.pool_ratio > 1", top='misdiagnosis = 5\nscope = "group"')
    rules = (both, own, only)
    values = facts(
        {"spread.usage_gap": 0.6, "group.recompute_change": 0.5, "group.pool_ratio": 1.5, "whatif.policy": 0.1}
    )
    on_target = {v.rule: v.state for v in judge(rules, values)}
    on_group = {v.rule: v.state for v in judge(rules, values, scope="group")}
    assert on_target == {"some-rule": "fires", "other": "clear"}
    assert on_group == {"some-rule": "fires", "other": "fires", "third": "fires"}


WHOLE = make("KV190", "whole", stage=2, when="oom.count > 0", top="misdiagnosis = 1")
PART = make(
    "KV191",
    "part",
    stage=2,
    when='oom.site == "weights_load"',
    top='misdiagnosis = 1\npart_of = "whole"\nmutes = ["whole"]',
)
EFFECT = make("KV790", "effect", stage=6, when="req.waiting > 0")


@pytest.mark.parametrize(
    ("site", "told"),
    [("weights_load", [("whole", "KV190", PART.id)]), ("prefill", [("whole", "KV190", WHOLE.id)])],
)
def test_a_part_is_told_under_the_name_of_its_whole(site: str, told: list[tuple[str, str, str]]) -> None:
    rules = [WHOLE, PART]
    values = facts({"oom.count": 1, "oom.site": site})
    out = under_one_name(settle(judge(rules, values), rules), rules)
    by_title = {rule.title: rule.id for rule in rules}
    assert [(v.rule, v.id, by_title[v.title]) for v in out if v.state == "fires"] == told
    assert len(out) == 1, "of a whole and its parts one is left"


def test_who_is_muted_by_a_part_names_the_whole_and_a_mute_of_the_whole_holds_for_its_parts() -> None:
    part = replace(PART, mutes=("whole", "effect"))
    rules = [WHOLE, part, EFFECT]
    values = facts({"oom.count": 1, "oom.site": "weights_load", "req.waiting": 3})
    out = under_one_name(settle(judge(rules, values), rules), rules)
    assert {v.rule: v.muted_by for v in out} == {"whole": None, "effect": "whole"}
    config = Config(mutes=(Mute("KV190", date(2030, 1, 1), "known", "test"),))
    out = under_one_name(settle(judge(rules, values), rules, config), rules)
    assert {v.rule: v.muted_by for v in out} == {"whole": "settings", "effect": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part_of": "hole"}, "unknown rule hole"),
        ({"mutes": ()}, "mutes must name whole"),
        ({"stage": 3}, "stage, misdiagnosis and scope"),
    ],
)
def test_a_part_belongs_to_a_rule_of_its_kind(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        check_set([WHOLE, replace(PART, **changes)])  # type: ignore[arg-type]


FACT_NAMES = ("req.waiting", "kv.usage_max", "preempt.count", "kv.pressure")
ANY_FACT = st.one_of(
    st.none(),
    st.sampled_from([0, 0.1, 0.9, 20]).map(known),
    st.sampled_from([0.1, 20]).map(lambda value: known(value, "L")),
    st.just(bound(0.0, 30.0, "w", "t")),
    st.just(known(0.9, how="estimated", requests=12, events=4)),
)
WORLD = st.fixed_dictionaries(
    dict.fromkeys(FACT_NAMES[:3], ANY_FACT) | {"kv.pressure": st.sampled_from([True, False, None])}
)


@given(WORLD)
def test_the_short_form_has_the_same_states_and_confidence(world: dict[str, Fact | Value | None]) -> None:
    values = facts({name: value for name, value in world.items() if value is not None})
    rules = [replace(PLAIN, name="a-rule"), replace(FLOOR, name="b-rule"), replace(GATED, name="c-rule")]
    judged = Judge(rules)
    full, short = judged.judge(values), judged.judge(values, brief=True)
    assert [(v.rule, v.state, v.confidence) for v in full] == [(v.rule, v.state, v.confidence) for v in short]
    # and both agree with the evaluation that takes no short cut
    assert [v.state for v in full] == [judged.explain(v.rule, values).state for v in full]


def _plainly(rule: Rule, scope: Scope, values: Mapping[str, Fact]) -> str:
    """The state of a rule from its whole conditions, with no gate shared and no comparison skipped."""
    applies, when = rule.conditions(scope)
    needed = [] if applies is None else [rule.bound(applies)]
    if rule.gated and scope == "target":
        needed.append(parse_condition("kv.pressure", {}).bind({}))
    if any(part.result(values).code == FALSE for part in needed):
        return "not_applicable"
    asked = [rule.bound(when)]
    if rule.min_events is not None and (scope == "target" or rule.group_when is None):
        limit = Threshold("least", rule.min_events.value, "count", calibrated=True, why="a floor")
        asked.append(
            parse_condition(f"{rule.min_events.fact} >= thresholds.least", {"least": "count"}).bind({"least": limit})
        )
    codes = [part.result(values).code for part in asked]
    if FALSE in codes:
        return "clear"
    if all(code == TRUE for code in (*codes, *(part.result(values).code for part in needed))):
        return "fires"
    return "suspected" if asked[0].result(values).holds else "blind"


def _any_fact(chance: Random, name: str) -> Fact:
    row = FACTS[name]
    span = chance.choice("wwwL")
    if row.unit == "bool":
        return known(chance.random() < 0.5, span)
    if row.unit == "enum":
        return known(chance.choice(row.choices), span)
    value = chance.choice((0.0, 0.02, 0.3, 0.9, 1.0, 3.0, 40.0, 5e3, 2e10))
    made = known(value, span, how=chance.choice(("measured", "measured", "estimated")))
    if chance.random() < 0.2:
        return bound(value / 2, value * 2, "w", "t")
    return replace(
        made, events=chance.choice((None, None, 5.0, 60.0)), requests=chance.choice((None, None, 12.0, 400.0))
    )


@given(st.integers(0, 2**32), st.floats(0.1, 1.0), st.sampled_from(("target", "group")))
def test_every_shipped_rule_short_or_full_says_what_its_conditions_say(seed: int, share: float, scope: Scope) -> None:
    # a world of 300 facts is too large to be drawn one by one
    chance = Random(seed)
    world = {name: _any_fact(chance, name) for name in FACTS if chance.random() < share}
    values = facts({**world, "target.phase": "serving"})
    judged = Judge(load_rules())
    full, short = (judged.judge(values, scope=scope, brief=brief) for brief in (False, True))
    assert [(v.rule, v.state, v.confidence) for v in full] == [(v.rule, v.state, v.confidence) for v in short]
    by_name = {rule.name: rule for rule in judged.rules}
    expected = {v.rule: _plainly(by_name[v.rule], scope, values.values) for v in full}
    assert {v.rule: v.state for v in full} == expected
    assert {name: judged.explain(name, values, scope=scope).state for name in expected} == expected


# ------------------------------------------------------------------------------------------ confidence


def sure(when: str, values: dict[str, Fact | Value]) -> str:
    verdict = verdict_of(make(when=when, tables=LIMITS), values)
    assert verdict.state == "fires"
    return verdict.confidence


@pytest.mark.parametrize(
    ("when", "values", "expected"),
    [
        ("kv.usage_max > thresholds.share", {"kv.usage_max": 0.9}, "high"),
        ("kv.usage_max > thresholds.guess", {"kv.usage_max": 0.9}, "medium"),
        ("kv.usage_max > thresholds.share", {"kv.usage_max": known(0.9, how="estimated")}, "medium"),
        ("kv.usage_max > thresholds.share", {"kv.usage_max": bound(0.5, 0.9, "w", "t")}, "medium"),
        ("kv.usage_max > thresholds.share", {"kv.usage_max": known(0.9, how="assumed")}, "low"),
        ("preempt.count > thresholds.n", {"preempt.count": known(9, events=9)}, "low"),
        ("preempt.count > thresholds.n", {"preempt.count": known(40, events=40)}, "high"),
        # 12 events could as well be 6 or 21: the interval of 95 % reaches below the threshold
        ("preempt.count > thresholds.n + thresholds.n", {"preempt.count": known(12, events=12)}, "medium"),
        ("preempt.hit_share > thresholds.share", {"preempt.hit_share": known(0.3, requests=20)}, "low"),
        ("preempt.hit_share > thresholds.share", {"preempt.hit_share": known(0.3, requests=50)}, "medium"),
        ("preempt.hit_share > thresholds.share", {"preempt.hit_share": known(0.3, requests=5000)}, "high"),
        (
            "preempt.per_finished > thresholds.often",
            {"preempt.per_finished": known(0.25, events=12, requests=48)},
            "medium",
        ),
        (
            "preempt.per_finished > thresholds.often",
            {"preempt.per_finished": known(0.9, events=90, requests=100)},
            "high",
        ),
        # that nothing was seen needs no ten events
        ("preempt.count == 0", {"preempt.count": known(0, events=0)}, "high"),
        # and: the weakest; or: the strongest branch that is true
        (
            "kv.usage_max > thresholds.guess and kv.usage_last > thresholds.share",
            {"kv.usage_max": 0.9, "kv.usage_last": 0.9},
            "medium",
        ),
        (
            "kv.usage_max > thresholds.guess or kv.usage_last > thresholds.share",
            {"kv.usage_max": 0.9, "kv.usage_last": 0.9},
            "high",
        ),
        (
            "kv.usage_max > thresholds.guess or kv.usage_last > thresholds.share",
            {"kv.usage_max": 0.9, "kv.usage_last": 0.1},
            "medium",
        ),
    ],
)
def test_confidence(when: str, values: dict[str, Fact | Value], expected: str) -> None:
    assert sure(when, values) == expected


def test_statistical_intervals_match_published_values() -> None:
    # Garwood's exact 95 % limits for a Poisson count (Ulm 1990, table), to the precision of Byar's approximation
    for events, low, high in ((1, 0.025, 5.572), (10, 4.795, 18.39), (100, 81.36, 121.63)):
        got = confidence.poisson_interval(events)
        assert got == pytest.approx((low, high), rel=0.02, abs=0.03)
    assert confidence.poisson_interval(0) == pytest.approx((0.0, 3.69), abs=0.1)
    # Newcombe 1998, table I: 81 of 263 and 0 of 20
    assert confidence.wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-4)
    assert confidence.wilson_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-4)


# ------------------------------------------------------------------------------------------ mutes


def fired(rule: Rule, **changes: object) -> Verdict:
    base = Verdict(
        rule=rule.name,
        id=rule.id,
        state="fires",
        title=rule.title,
        severity=rule.severity,
        stage=rule.stage,
        misdiagnosis=rule.misdiagnosis,
        fallback=rule.fallback,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def muters(rules: list[Rule], verdicts: list[Verdict], config: Config | None = None) -> dict[str, str | None]:
    return {v.rule: v.muted_by for v in settle(verdicts, rules, config)}


def rule(
    rule_id: str, name: str, stage: int = 6, *, mutes: tuple[str, ...] = (), top: str = "", severity: str = "high"
) -> Rule:
    names = ", ".join(f'"{n}"' for n in mutes)
    return make(rule_id, name, stage=stage, severity=severity, top=f"mutes = [{names}]\n{top}")


def test_a_muted_rule_mutes_nobody_whatever_the_order() -> None:
    a = rule("KV701", "a-rule", mutes=("b-rule",))
    b = rule("KV702", "b-rule", mutes=("c-rule",))
    c = rule("KV703", "c-rule", mutes=("d-rule",))
    d = rule("KV704", "d-rule")
    expected = {"a-rule": None, "b-rule": "a-rule", "c-rule": None, "d-rule": "c-rule"}
    for order in ([a, b, c, d], [d, c, b, a], [c, a, d, b]):
        assert muters(order, [fired(r) for r in order]) == {r.name: expected[r.name] for r in order}


def test_only_a_rule_that_fired_mutes() -> None:
    a, b = rule("KV701", "a-rule", mutes=("b-rule",)), rule("KV702", "b-rule")
    for state in ("clear", "suspected", "blind", "not_applicable"):
        assert muters([a, b], [fired(a, state=state), fired(b)])["b-rule"] is None


def test_a_fallback_gives_way_to_any_fired_rule_of_its_family() -> None:
    fallback = rule("KV201", "fallback", 5, top="misdiagnosis = 2\nfallback = true")
    member = rule("KV200", "member", 5, top="misdiagnosis = 2")
    other = rule("KV300", "other", 5, top="misdiagnosis = 3")
    rules = [fallback, member, other]
    assert muters(rules, [fired(r) for r in rules]) == {"fallback": "member", "member": None, "other": None}
    assert muters(rules, [fired(fallback), fired(member, state="suspected"), fired(other)])["fallback"] is None
    # a muted member leaves the fallback standing
    cause = rule("KV703", "cause", 3, mutes=("member",))
    seen = muters([cause, *rules], [fired(r) for r in [cause, *rules]])
    assert (seen["member"], seen["fallback"]) == ("cause", None)


def test_muted_advice_leaves_the_finding() -> None:
    boundary = make("KV901", "boundary", stage=8, severity="info", top='mutes_advice = ["member"]')
    member = rule("KV200", "member", 5, top="misdiagnosis = 2")
    out = {v.rule: v for v in settle([fired(boundary), fired(member)], [boundary, member])}
    assert (out["member"].advice_muted_by, out["member"].muted_by) == ("boundary", None)


def test_a_mute_of_the_user_names_its_reason_and_silences_the_rule_as_a_cause_too() -> None:
    a, b = rule("KV701", "a-rule", mutes=("b-rule",)), rule("KV702", "b-rule")
    mute = Mute("KV701", date(2026, 12, 31), "known, ticket 7", "kvdoctor.toml:3")
    out = {v.rule: v for v in settle([fired(a), fired(b)], [a, b], Config(mutes=(mute,)))}
    assert (out["a-rule"].muted_by, out["b-rule"].muted_by) == ("settings", None)
    assert out["a-rule"].mute_reason == "known, ticket 7 (until 2026-12-31, kvdoctor.toml:3)"


def replay(fact: str = "whatif.policy") -> tuple[Evidence, ...]:
    return (Evidence(fact, ">", True, "1", value=0.9, threshold=0.5),)


COMPARED = (Evidence("group.recompute_change", "<", True, "1", value=0.0, threshold=0.5),)


def test_policy_and_capacity_never_both_fire() -> None:
    policy = rule("KV500", "policy", 5, top="misdiagnosis = 5")
    capacity = rule("KV913", "capacity", 5)
    rules = [policy, capacity]
    both = settle([fired(policy, evidence=replay()), fired(capacity, evidence=replay("whatif.more_gpu"))], rules)
    assert [v.state for v in both] == ["suspected", "suspected"]
    one = settle([fired(policy, evidence=replay()), fired(capacity, evidence=COMPARED)], rules)
    assert [v.state for v in one] == ["suspected", "fires"]


@given(st.data())
def test_settled_mutes_obey_the_definition(data: st.DataObject) -> None:
    names = [f"r{i}-rule" for i in range(6)]
    rules = []
    for index, name in enumerate(names):
        targets = data.draw(st.lists(st.sampled_from(names[index + 1 :]), unique=True)) if index < 5 else []
        rules.append(rule(f"KV70{index}", name, mutes=tuple(targets)))
    verdicts = [fired(r, state=data.draw(st.sampled_from(["fires", "clear", "suspected"]))) for r in rules]
    order = data.draw(st.permutations(verdicts))
    out = {v.rule: v for v in settle(order, rules)}
    assert [v.rule for v in settle(order, rules)] == [v.rule for v in order]
    for target in out.values():
        causes = [
            r.name
            for r in rules
            if target.rule in r.mutes and out[r.name].state == "fires" and out[r.name].muted_by is None
        ]
        if target.state in ("fires", "suspected"):
            assert (target.muted_by in causes) if causes else target.muted_by is None
        else:
            assert target.muted_by is None


# ------------------------------------------------------------------------------------------ the one verdict


def test_the_order_of_the_choice() -> None:
    def v(rule_id: str, stage: int, severity: str, confidence_: str, fallback: bool = False) -> Verdict:
        return Verdict(rule_id, rule_id, "fires", "t", severity, stage, None, fallback, confidence=confidence_)  # type: ignore[arg-type]

    best_first = [
        v("KV703", 3, "medium", "low"),
        v("KV400", 5, "critical", "low"),
        v("KV301", 5, "high", "high"),
        v("KV201", 5, "high", "high", True),
        v("KV300", 5, "high", "medium"),
        v("KV700", 6, "critical", "high"),
        v("KV701", 6, "critical", "high"),
        v("KV905", 7, "info", "high"),
    ]
    for index in range(len(best_first)):
        assert choose(list(reversed(best_first[index:])), facts({})) == best_first[index]
        assert gravest(best_first[index:]) == best_first[index]


def test_healthy_says_what_was_looked_at() -> None:
    seen = choose([], facts(HEALTHY))
    assert (seen.rule, seen.id, seen.severity, seen.state) == ("healthy", "", "info", "fires")
    for word in ("kv.usage_max 0.4", "preempt.count 0", "req.waiting 0"):
        assert word in seen.say


@pytest.mark.parametrize("name", ["kv.usage_max", "preempt.count", "req.waiting"])
def test_without_one_of_the_three_readings_it_is_undetermined_and_named(name: str) -> None:
    values = {**HEALTHY, name: Unknown("the scrape was cut", "scrape again")}
    seen = choose([], facts(values))
    assert seen.rule == "undetermined"
    assert "the scrape was cut" in seen.say
    assert [(m.fact, m.hint) for m in seen.missing] == [(name, "scrape again")]


def test_either_reading_of_the_usage_will_do() -> None:
    assert choose([], facts({"kv.usage_last": 0.4, "preempt.count": 0, "req.waiting": 0})).rule == "healthy"


@pytest.mark.parametrize(("count", "verdict"), [(0, "healthy"), (3, "undetermined")])
def test_preemptions_that_no_rule_could_judge_are_not_health(count: int, verdict: str) -> None:
    seen = choose([], facts({**HEALTHY, "preempt.count": count}))
    assert seen.rule == verdict
    if count:
        assert [m.fact for m in seen.missing] == ["preempt.count"]
        assert "--window" in seen.missing[0].hint


@pytest.mark.parametrize(
    ("severity", "verdict"), [("high", "undetermined"), ("medium", "undetermined"), ("low", "healthy")]
)
def test_a_suspicion_of_weight_is_not_healthy(severity: str, verdict: str) -> None:
    doubt = fired(rule("KV700", "doubt", severity=severity), state="suspected")
    seen = choose([doubt], facts(HEALTHY))
    assert seen.rule == verdict
    assert ("doubt" in seen.say) == (verdict == "undetermined")
    assert choose([replace(doubt, muted_by="settings")], facts(HEALTHY)).rule == "healthy"
    assert choose([replace(doubt, state="blind")], facts(HEALTHY)).rule == "healthy"


def boundary(rule_id: str, stage: int) -> Verdict:
    return fired(make(rule_id, f"boundary-{rule_id.lower()}", stage=stage, severity="info"))


def test_boundaries_in_place_of_healthy() -> None:
    general, other, specific = boundary("KV900", 8), boundary("KV901", 8), boundary("KV905", 7)
    assert choose([general, other], facts(HEALTHY)) == general
    assert choose([other], facts(HEALTHY)).rule == "healthy"
    assert choose([general, specific], facts(HEALTHY)) == specific
    # a general boundary never hides that health could not be told
    assert choose([general], facts({})).rule == "undetermined"
    doubt = fired(rule("KV700", "doubt"), state="suspected")
    assert choose([general, doubt], facts(HEALTHY)).rule == "undetermined"
    assert choose([replace(general, muted_by="x"), other], facts(HEALTHY)).rule == "healthy"


def test_missing_telemetry_goes_along_and_is_never_the_verdict() -> None:
    telemetry = fired(rule("KV808", "telemetry-missing", severity="low"))
    assert choose([telemetry], facts({})).rule == "undetermined"
    assert choose([telemetry, fired(rule("KV700", "cause"))], facts({})).rule == "cause"


def test_what_a_replay_says_stands_behind_what_is_wrong() -> None:
    policy = fired(rule("KV500", "policy", 5, top="misdiagnosis = 5", severity="critical"), evidence=replay())
    wrong = fired(rule("KV705", "wrong", 6, top="misdiagnosis = 3", severity="medium"))
    assert choose([policy, wrong], facts({})) == wrong
    assert choose([policy], facts({})) == policy
    assert choose([replace(policy, evidence=COMPARED), wrong], facts({})).rule == "policy"
    assert choose([policy, replace(wrong, muted_by="x")], facts({})) == policy


def test_of_several_targets_the_gravest_comes_first() -> None:
    healthy, unclear = choose([], facts(HEALTHY)), choose([], facts({}))
    finding, specific = fired(rule("KV700", "cause", severity="low")), boundary("KV905", 7)
    assert gravest([healthy, specific, unclear, finding]) == finding
    assert gravest([healthy, specific, unclear]) == unclear
    assert gravest([healthy, specific]) == specific
    with pytest.raises(ValueError, match="empty"):
        gravest([])


@given(WORLD)
def test_the_choice_is_a_fired_unmuted_rule_or_one_of_the_two_words(world: dict[str, Fact | Value | None]) -> None:
    values = facts({name: value for name, value in world.items() if value is not None})
    rules = [replace(PLAIN, name="a-rule"), replace(FLOOR, name="b-rule"), replace(GATED, name="c-rule")]
    settled = settle(judge(rules, values), rules)
    verdict = choose(settled, values)
    standing = [v for v in settled if v.state == "fires" and v.muted_by is None]
    assert (verdict in standing) if standing else verdict.rule in ("healthy", "undetermined")
    if verdict.rule == "healthy":
        assert not any(v.state == "suspected" and SEVERITIES.index(v.severity) <= 2 for v in settled)


def test_an_empty_set_of_facts_is_judged_without_a_word_of_health() -> None:
    assert choose(settle(judge([PLAIN], FactSet()), [PLAIN]), FactSet()).rule == "undetermined"
