"""Three-valued interval expressions: grammar, units, evidence, and that a certain answer never changes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.facts import FACTS, Fact, Known, Unknown, bound, estimated, measured
from kvdoctor.rulebook.expr import (
    FALSE,
    SINCE_START,
    TRUE,
    UNDECIDED,
    Bound,
    ExprError,
    Result,
    Threshold,
    fold,
    parse_condition,
    parse_quantity,
)

UNITS = {"share": "1", "ratio": "ratio", "n": "count", "rate": "/s", "slow": "s", "long": "tok", "speed": "tok/s"}
VALUES = {"share": 0.25, "ratio": 2.0, "n": 5.0, "rate": 1.0, "slow": 1.0, "long": 100.0, "speed": 50.0}
THRESHOLDS = {
    name: Threshold(name, VALUES[name], unit, calibrated=True, why="test", source="test")
    for name, unit in UNITS.items()
}


def m(value: float | str | bool, span: str = "w") -> Known:
    return Known(value, value, "measured", span, "test:1")  # type: ignore[arg-type]


def result(text: str, facts: Mapping[str, Fact], *, allow_known: bool = False) -> Result:
    return parse_condition(text, UNITS, allow_known=allow_known).bind(THRESHOLDS).result(facts)


def truth(text: str, **facts: Fact) -> bool | None:
    return result(text, {name.replace("__", "."): fact for name, fact in facts.items()}, allow_known=True).truth


def refusal(text: str, *, allow_known: bool = False) -> str:
    with pytest.raises(ExprError) as error:
        parse_condition(text, UNITS, allow_known=allow_known)
    return str(error.value)


# ------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize(
    ("lo", "hi", "expected"),
    [(0.3, 0.4, True), (0.25, 0.4, None), (0.1, 0.25, False), (0.1, 0.3, None), (0.0, 0.1, False)],
)
def test_an_interval_exceeds_only_when_its_lower_end_does(lo: float, hi: float, expected: bool | None) -> None:
    assert truth("kv.usage_max > thresholds.share", kv__usage_max=bound(lo, hi, "w", "t")) is expected


@pytest.mark.parametrize(
    ("op", "lo", "hi", "expected"),
    [
        (">=", 0.25, 0.4, True),
        (">=", 0.1, 0.25, None),
        (">=", 0.1, 0.2, False),
        ("<", 0.1, 0.2, True),
        ("<", 0.1, 0.25, None),
        ("<", 0.25, 0.4, False),
        ("<=", 0.1, 0.25, True),
        ("<=", 0.25, 0.4, None),
        ("<=", 0.3, 0.4, False),
        ("==", 0.25, 0.25, True),
        ("==", 0.1, 0.25, None),
        ("==", 0.3, 0.4, False),
        ("!=", 0.25, 0.25, False),
        ("!=", 0.2, 0.4, None),
        ("!=", 0.3, 0.4, True),
    ],
)
def test_the_other_comparisons_on_intervals(op: str, lo: float, hi: float, expected: bool | None) -> None:
    assert truth(f"kv.usage_max {op} thresholds.share", kv__usage_max=bound(lo, hi, "w", "t")) is expected


def test_not_is_exact_on_intervals() -> None:
    inside = bound(0.2, 0.3, "w", "t")
    assert truth("not (kv.usage_max > thresholds.share)", kv__usage_max=inside) is None
    assert truth("not (kv.usage_max > thresholds.share)", kv__usage_max=m(0.25)) is True
    assert truth("not (preempt.count > 0 and req.waiting > 0)", preempt__count=m(0)) is True
    assert truth("not (preempt.count > 0 or req.waiting > 0)", preempt__count=m(1)) is False


def test_unknown_is_neither_zero_nor_false() -> None:
    gone = Unknown("not exported", "pass --log")
    assert truth("preempt.count == 0", preempt__count=gone) is None
    assert truth("preempt.count > 0 and req.waiting > 0", preempt__count=gone, req__waiting=m(0)) is False
    assert truth("preempt.count > 0 or req.waiting > 0", preempt__count=gone, req__waiting=m(3)) is True
    assert truth("preempt.count > 0 or req.waiting > 0", preempt__count=gone, req__waiting=m(0)) is None


def test_since_the_process_started_clears_or_supports_but_never_decides() -> None:
    lifetime = m(9200, "L")
    seen = result("preempt.count > thresholds.n", {"preempt.count": lifetime})
    assert (seen.code, seen.truth) == (SINCE_START, None)
    assert [e.outcome for e in seen.holds] == [True]
    assert seen.missing[0].fact == "preempt.count"
    assert "since the process started" in seen.missing[0].reason
    assert truth("preempt.count > thresholds.n", preempt__count=m(2, "L")) is False
    assert truth("not (preempt.count > thresholds.n)", preempt__count=m(2, "L")) is None
    assert (
        truth("preempt.count / req.finished > thresholds.ratio", preempt__count=lifetime, req__finished=m(10)) is None
    )


def test_enums_and_booleans() -> None:
    assert truth('oom.site == "prefill"', oom__site=m("prefill")) is True
    assert truth('oom.site != "prefill"', oom__site=m("sampler")) is True
    assert truth('"prefill" == oom.site', oom__site=m("sampler")) is False
    assert truth('oom.site == "prefill"') is None
    assert truth("oom.fragmented", oom__fragmented=m(True)) is True
    assert truth("not oom.fragmented", oom__fragmented=m(True)) is False
    assert truth("not oom.fragmented") is None


def test_known_asks_for_presence_and_is_always_certain() -> None:
    assert truth("known(kv.usage_max)", kv__usage_max=m(0.0)) is True
    assert truth("known(kv.usage_max)", kv__usage_max=Unknown("gone")) is False
    assert truth("not known(kv.usage_max)") is True


def test_a_divisor_that_may_be_zero_is_undecided_and_named() -> None:
    facts = {"preempt.count": m(10), "req.finished": bound(0, 4, "w", "t")}
    seen = result("preempt.count / req.finished > thresholds.ratio", facts)
    assert seen.truth is None
    assert [gap.fact for gap in seen.missing] == ["req.finished"]
    assert "zero" in seen.missing[0].reason
    assert truth("preempt.count / req.finished > thresholds.ratio", preempt__count=m(10), req__finished=m(2)) is True


@pytest.mark.parametrize(
    ("text", "lo", "hi"),
    [
        ("req.waiting_growth + preempt.count", -1, 9),
        ("req.waiting_growth - preempt.count", -8, 2),
        ("req.waiting_growth * preempt.count", -15, 20),
        ("req.waiting_growth / preempt.count", -1.5, 2),
    ],
)
def test_arithmetic_on_the_ends_of_intervals_with_negatives(text: str, lo: float, hi: float) -> None:
    facts = {"req.waiting_growth": bound(-3, 4, "w", "t"), "preempt.count": bound(2, 5, "w", "t")}
    value = parse_quantity(text, UNITS).evaluate(facts, THRESHOLDS)
    assert isinstance(value, Known)
    assert (value.lo, value.hi) == (lo, hi)


def test_a_quantity_carries_the_weakest_provenance_and_says_what_is_missing() -> None:
    quantity = parse_quantity("req.running * thresholds.share", UNITS)
    assert (quantity.unit, quantity.facts, quantity.thresholds) == ("count", ("req.running",), ("share",))
    value = quantity.evaluate({"req.running": estimated(8, "w", "log:3")}, THRESHOLDS)
    assert isinstance(value, Known)
    assert (value.lo, value.how, value.source) == (2.0, "estimated", "log:3")
    gone = Unknown("not exported", "look")
    assert quantity.evaluate({"req.running": gone}, THRESHOLDS) is gone
    assert isinstance(quantity.evaluate({}, THRESHOLDS), Unknown)


def test_evidence_is_complete_in_spite_of_short_circuit() -> None:
    text = "preempt.count > thresholds.n and kv.usage_max > thresholds.share or latency.itl_p99 > thresholds.slow"
    seen = result(
        text, {"preempt.count": m(1), "kv.usage_max": m(0.9), "latency.itl_p99": Unknown("no histogram", "x")}
    )
    assert [(e.fact, e.op, e.threshold, e.outcome) for e in seen.evidence] == [
        ("preempt.count", ">", 5.0, False),
        ("kv.usage_max", ">", 0.25, True),
        ("latency.itl_p99", ">", 1.0, None),
    ]
    first, last = seen.evidence[0], seen.evidence[2]
    assert (first.value, first.unit, first.how, first.span, first.source) == (1, "count", "measured", "w", "test:1")
    assert (last.value, last.reason, last.hint) == (None, "no histogram", "x")
    # the false branch of `or` cannot be mended by what is unknown, so only the other fact is missing
    assert [gap.fact for gap in seen.missing] == ["latency.itl_p99"]
    assert seen.open == "latency.itl_p99 > 1 (s)"


def test_a_bound_that_straddles_says_between_what() -> None:
    seen = result("recompute.token_share > thresholds.share", {"recompute.token_share": bound(0, 0.29, "w", "t")})
    assert seen.truth is None
    assert seen.missing[0].reason == "known only to lie between 0 and 0.29"


def test_what_is_still_open_is_written_with_numbers() -> None:
    text = "kv.usage_max > thresholds.share and (req.waiting > 0 or preempt.rate > thresholds.rate)"
    assert result(text, {"kv.usage_max": m(0.9)}).open == "req.waiting > 0 (count) or preempt.rate > 1 (/s)"
    assert result(text, {}).open == "kv.usage_max > 0.25 (1) and (req.waiting > 0 (count) or preempt.rate > 1 (/s))"


def test_a_changed_threshold_tells_its_origin_in_the_evidence() -> None:
    changed = {"share": Threshold("share", 0.9, "1", calibrated=False, why="w", origin="--set KV200.share=0.9")}
    condition = parse_condition("kv.usage_max > thresholds.share", {"share": "1"})
    seen = condition.bind(changed).result({"kv.usage_max": m(0.5)})
    assert (seen.evidence[0].threshold, seen.evidence[0].origin) == (0.9, "--set KV200.share=0.9")
    assert (seen.evidence[0].threshold_name, seen.evidence[0].calibrated) == ("share", False)


def test_the_constant_may_stand_on_the_left() -> None:
    seen = result("thresholds.share < kv.usage_max", {"kv.usage_max": m(0.5)})
    assert seen.truth is True
    assert (seen.evidence[0].fact, seen.evidence[0].op) == ("kv.usage_max", ">")


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv.usage_mx > thresholds.share", "did you mean kv.usage_max"),
        ("kv.usage_max > thresholds.shar", "did you mean thresholds.share"),
        ('oom.site == "prefil"', "did you mean prefill"),
        ("kv.usage_max > 0.9", "bare number 0.9"),
        ("kv.usage_max > 2", "bare number 2"),
        ("0 < kv.usage_max < 1", "one comparison at a time"),
        ("kv.usage_max", "is a number"),
        ("thresholds.share", "compare it with a fact"),
        ("oom.site", "one of prefill"),
        ('oom.site > "prefill"', "no order"),
        ("oom.fragmented == 1", "true or false"),
        ("kv.usage_max > preempt.rate", "units do not agree"),
        ("kv.usage_max > thresholds.rate", "units do not agree: kv.usage_max is a fraction (1), thresholds.rate is /s"),
        ("preempt.per_finished > thresholds.share", "a ratio"),
        ("latency.itl_p99 > 1", "units do not agree"),
        ("thresholds.share > thresholds.share", "no fact in this comparison"),
        ("known(kv.usage_max)", "in applies only"),
        ("abs(kv.usage_max) > 0", "not allowed"),
        ("max(1)", "calls are not allowed"),
        ("kv.usage_max ** thresholds.share > 0", "only + - * /"),
        ("kv.usage_max if oom.fragmented else 0", "a conditional"),
        ("[x for x in y]", "a comprehension"),
        ("lambda: 0", "a lambda"),
        ("kv.usage_max[0] > 0", "an index"),
        ('oom.site in ("prefill",)', "only < <= > >= == !="),
        ("kv.usage_max > True", "not allowed here"),
        ("preempt.count / 0 > 1", "division by zero"),
        ("", "empty"),
        ("kv.usage_max >", "not an expression"),
        ("-preempt.count > 0", "a sign"),
        ("preempt.count > 0 \x00", "not an expression"),
        ("not " * 3000 + "oom.fragmented", "longer than"),
        ("(" * 900 + "oom.fragmented" + ")" * 900, "not an expression"),
    ],
)
def test_refused_with_a_reason(text: str, message: str) -> None:
    assert message in refusal(text)


def test_the_caret_points_at_the_misspelt_name_on_its_own_line() -> None:
    lines = refusal("preempt.count > 0\nand kv.usage_mx > thresholds.share").splitlines()
    assert lines[1].strip() == "and kv.usage_mx > thresholds.share"
    column = lines[1].index("kv.usage_mx")
    assert lines[2] == " " * column + "^" * len("kv.usage_mx")


@pytest.mark.parametrize(
    "text",
    [
        "preempt.count / req.finished > thresholds.ratio",
        "recompute.tokens / tok.prompt > thresholds.share",
        "recompute.tokens / tok.prompt > thresholds.ratio",
        "preempt.count / target.window_s > thresholds.rate",
        "tok.prefill_speed * target.window_s > thresholds.long",
        "recompute.tokens / tok.prefill_speed > thresholds.slow",
        "req.running_max >= req.limit_running",
        "req.running + req.waiting > thresholds.n",
        "1 - kv.usage_max < thresholds.share",
        "mem.used > thresholds.share * mem.total",
        "preempt.rate * target.window_s > thresholds.n",
        "req.running == 1",
        "mem.foreign > 0",
        "preempt.per_request_min > 1",
    ],
)
def test_units_that_agree(text: str) -> None:
    assert parse_condition(text, UNITS).text == text


@pytest.mark.parametrize(
    "text",
    [
        "preempt.count / req.finished > thresholds.share",
        "preempt.count / target.window_s > thresholds.n",
        "tok.prefill_speed / target.window_s > thresholds.long",
        "req.running + kv.usage_max > thresholds.n",
        "mem.used / mem.total > thresholds.long",
        "mem.used * mem.total > mem.free",
        "kv.usage_max + preempt.per_finished > thresholds.ratio",
    ],
)
def test_units_that_do_not_agree(text: str) -> None:
    assert "units do not agree" in refusal(text)


def test_every_name_of_the_fact_table_can_be_written_in_an_expression() -> None:
    for name, row in FACTS.items():
        text = {"bool": name, "enum": f'{name} == "{row.choices[0] if row.choices else ""}"'}.get(
            row.unit, f"{name} > 0"
        )
        assert parse_condition(text, {}).facts == (name,)


# ------------------------------------------------------------------------------------------ properties

NUMBERS = ("preempt.count", "req.waiting", "req.running", "req.finished")
VALUE = st.recursive(
    st.sampled_from([*NUMBERS, "thresholds.n", "1"]),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
    max_leaves=3,
)
LEAF = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(NUMBERS), st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), VALUE),
    st.builds("{} {} {}".format, VALUE, st.sampled_from(["<", ">"]), st.sampled_from(NUMBERS)),
    st.sampled_from(["oom.fragmented", 'oom.site == "decode"']),
)
CONDITION = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=6,
)
POINT = st.sampled_from([-2.0, 0.0, 0.5, 1.0, 4.0, 5.0, 6.0, 100.0])
WORLD = st.fixed_dictionaries(
    dict.fromkeys(NUMBERS, POINT) | {"oom.fragmented": st.booleans(), "oom.site": st.sampled_from(["decode", "lora"])}
)


def compiled(text: str) -> Bound | None:
    """None where units or grammar refuse it."""
    try:
        return parse_condition(text, UNITS).bind(THRESHOLDS)
    except ExprError:
        return None


@given(CONDITION, WORLD, st.data())
def test_a_certain_answer_never_changes_when_more_becomes_known(
    text: str, world: dict[str, float | bool | str], data: st.DataObject
) -> None:
    program = compiled(text)
    if program is None:
        return
    exact = {name: m(value) for name, value in world.items()}
    blurred: dict[str, Fact] = {}
    for name, value in world.items():
        kind = data.draw(st.sampled_from(["exact", "unknown", "wide"]))
        if kind == "exact":
            blurred[name] = exact[name]
        elif kind == "wide" and isinstance(value, float):
            blurred[name] = bound(value - data.draw(POINT.map(abs)), value + data.draw(POINT.map(abs)), "w", "t")
        elif data.draw(st.booleans()):
            blurred[name] = Unknown("hidden")
    vague, sharp = program.result(blurred).truth, program.result(exact).truth
    assert vague is None or sharp is None or vague == sharp


@given(CONDITION, WORLD)
def test_a_world_of_plain_numbers_agrees_with_python(text: str, world: dict[str, float | bool | str]) -> None:
    program = compiled(text)
    if program is None:
        return
    python = text.replace("thresholds.n", "5.0")
    for name in sorted(world, key=len, reverse=True):
        python = python.replace(name, f"V[{name!r}]")
    try:
        expected = bool(eval(python, {"V": world}))
    except ZeroDivisionError:
        return
    answer = program.result({name: m(value) for name, value in world.items()}).truth
    # a division elsewhere in the expression may be skipped by Python and stay undecided here
    assert answer is expected or (answer is None and "/" in text)


@given(CONDITION, WORLD, st.sets(st.sampled_from(NUMBERS)), st.sets(st.sampled_from(NUMBERS)))
def test_the_fast_path_and_the_full_evaluation_agree(
    text: str, world: dict[str, float | bool | str], hidden: set[str], lifetime: set[str]
) -> None:
    program = compiled(text)
    if program is None:
        return
    facts = {name: m(value, "L" if name in lifetime else "w") for name, value in world.items() if name not in hidden}
    seen = program.result(facts)
    assert program.code(facts) == seen.code == fold(program.condition.root, seen.codes)
    assert len(seen.evidence) == len(program.condition.leaves)
    assert bool(seen.missing) == bool(seen.open) == (seen.code in (UNDECIDED, SINCE_START))
    for evidence, code in zip(seen.evidence, seen.codes, strict=True):
        assert evidence.outcome == {FALSE: False, UNDECIDED: None, SINCE_START: True, TRUE: True}[code]


@given(st.text(max_size=80))
def test_any_text_is_either_compiled_or_refused(text: str) -> None:
    try:
        condition = parse_condition(text, UNITS, allow_known=True)
    except ExprError:
        return
    assert condition.facts


def test_measured_zero_is_a_value() -> None:
    assert truth("preempt.count == 0", preempt__count=measured(0, "w", "t")) is True
