"""Values, times and foreign text in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import evidence, verdict

from kvdoctor.facts import FACTS, Known, Unknown
from kvdoctor.report import words
from kvdoctor.report.doubts import gap_words


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0.9684, "1", "96.8 %"),
        (0.0, "1", "0 %"),
        (0.0004, "1", "0.04 %"),
        (92.0, "count", "92"),
        (12_345.0, "count", "12.3k"),
        (2_500_000.0, "tok", "2.5M tokens"),
        (982.7, "tok/s", "983 tokens/s"),
        (84_924_170_240.0, "B", "79.1 GiB"),
        (0.0, "B", "0"),
        (0.433, "s", "433 ms"),
        (80.0, "s", "80 s"),
        (4_000.0, "s", "66.7 min"),
        (True, "bool", "yes"),
        ("pool_too_small", "enum", "pool_too_small"),
        (None, "1", "unknown"),
    ],
)
def test_values_read_with_their_unit(number: float | str | bool | None, unit: str, text: str) -> None:
    assert words.value(number, unit) == text


def test_an_interval_is_never_shown_as_one_number() -> None:
    assert words.interval(0.0, 0.29, "1") == "between 0 and 29 %"
    assert words.interval(2 * 2.0**30, 3 * 2.0**30, "B") == "between 2 and 3 GiB"
    assert words.interval(512 * 2.0**20, 3 * 2.0**30, "B") == "between 512 MiB and 3 GiB"
    assert words.of_fact(Known(0.0, 0.29, "bound", "w", "x"), "1") == "0 to 29 %"


def test_unknown_is_a_word_and_not_a_number() -> None:
    assert words.of_fact(Unknown("why"), "1") == "unknown"
    assert words.comparison(evidence(outcome=None, value=None, lo=None, hi=None))[0] == "unknown"


def test_a_value_and_its_limit_do_not_read_alike_when_they_differ() -> None:
    assert words.comparison(evidence(number=0.7501, limit=0.75, op=">")) == ("0.7501", "> 0.75")
    assert words.comparison(evidence(number=0.75, limit=0.75)) == ("0.75", ">= 0.75")


@given(st.floats(0, 1), st.floats(0, 1))
def test_shares_that_differ_have_different_texts(left: float, right: float) -> None:
    seen, limit = words.comparison(evidence(number=left, limit=right, unit="1", op=">"))
    if abs(left - right) > 1e-9:
        assert seen != limit.removeprefix("> ")


@given(st.text())
def test_cleaned_text_cannot_steer_a_terminal(text: str) -> None:
    cleaned = words.clean(text)
    assert cleaned.isprintable()
    assert "\n" not in cleaned


def test_what_was_escaped_can_still_be_told() -> None:
    assert words.clean("a\x1b[31mred\u202e\n") == "a\\x1b[31mred\\u202e\\n"
    assert words.clean("\udcff") == "\\udcff"
    assert words.flow("two\n  lines") == "two lines"


def test_a_time_without_a_year_is_no_date() -> None:
    assert words.rfc3339(1_795_957_400.534) == "2026-11-29T13:03:20.534Z"
    assert words.rfc3339(None) is None
    leap_year_stand_in = 91_889_694.0
    assert words.rfc3339(leap_year_stand_in) is None
    assert words.day(leap_year_stand_in) == "11-29"


def test_a_check_shows_the_numbers_behind_threshold_names() -> None:
    rule = verdict(evidence=(evidence(threshold_name="thrash", limit=0.75),))
    assert words.spelled("after an hour: preempt.per_finished < thresholds.thrash", rule) == (
        "after an hour: preemptions per finished request < 0.75"
    )
    assert "thresholds.other" in words.spelled("tok.gen_drop < thresholds.other", rule)


def test_a_sentence_keeps_names_as_they_are() -> None:
    assert words.sentence("two scrapes of /metrics") == "Two scrapes of /metrics."
    assert words.sentence("scheduler_config.policy=X admits it.") == "scheduler_config.policy=X admits it."
    assert words.sentence("`pip install x`!") == "`pip install x`!"
    assert words.sentence("") == ""


def test_sources_in_little_room() -> None:
    assert words.short_source("m.prom:7 vllm:a, m.prom:9 vllm:b") == "vllm:a +1"
    assert words.short_source("server.log:4") == "server.log:4"
    assert words.short_source("weights per rank") == "weights per rank"
    assert words.place("m.prom:7 vllm:a") == "m.prom:7"


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("32", "now 32"),
        ("0.0 (default)", "default 0.0"),
        ("on (default, version not known)", "default on, version not known"),
    ],
)
def test_settings_say_where_they_come_from(start: str, text: str) -> None:
    assert words.setting(start) == text


def test_labels_name_facts_that_exist_and_tell_them_apart() -> None:
    assert set(words.LABELS) <= set(FACTS)
    assert len(set(words.LABELS.values())) == len(words.LABELS)
    assert words.label("a.b / c.d") == "a.b / c.d"


def test_every_fact_has_a_name_of_its_own() -> None:
    from kvdoctor.facts import FACTS
    from kvdoctor.report.words import LABELS

    assert set(LABELS) == set(FACTS)


@pytest.mark.parametrize(
    "condition, said",
    [
        ("preempt.victims_near_done > 0.25 (1)", "victims that were nearly done > 25 %"),
        ("latency.queue_p50 < 5", "median time in the queue < 5 s"),
        ("preempt.count == 0 or req.waiting_max == 0", "preemptions: none or most requests waiting: none"),
        ('start.error == "none"', "reason the start failed: none"),
        ("oom.fragmented == false", "more reserved and unused than was asked for: no"),
        ("req.context_share <= 0.01", "share of requests ended by a full context <= 1 %"),
        ("req.waiting_max > req.running_max", "most requests waiting > most requests running"),
        ("kv.usage_max < 95 %", "peak KV pool usage < 95 %"),
    ],
)
def test_a_condition_reads_with_labels_and_units(condition: str, said: str) -> None:
    assert words.condition(condition) == said


def test_an_open_bound_has_its_unit_and_no_reason_leaves_no_brackets() -> None:
    assert gap_words("whatif.policy", "known only to lie between 0.920833 and 0.9875") == (
        "goodput with another policy (known only to lie between 92.1 and 98.8 %)"
    )
    assert gap_words("preempt.count", "") == "preemptions"
