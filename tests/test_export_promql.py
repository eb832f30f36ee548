"""Templates filled in: names by version, selection, facts built from facts, what is missing and why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.engines.base import Promql, engines
from kvdoctor.export.promql import SelectError, Templates, as_duration, enclosed, matchers, seconds, why_missing
from kvdoctor.facts import FACTS
from tests.export_helpers import VERSIONS, templates


def test_a_metric_has_the_name_of_the_version() -> None:
    assert "vllm:gpu_cache_usage_perc" in (templates("vllm", "0.8.5").fact("kv.usage_max") or "")
    assert "vllm:kv_cache_usage_perc" in (templates("vllm", "0.32.0").fact("kv.usage_max") or "")
    assert "vllm:kv_cache_usage_perc" in (templates("vllm").fact("kv.usage_max") or "")
    assert "token_usage" in (templates("sglang", "0.5.6").fact("kv.usage_max") or "")


def test_a_series_that_only_old_versions_have_is_missing_in_new_ones() -> None:
    assert templates("vllm", "0.6.4").fact("req.swapped_max") is not None
    assert templates("vllm", "0.32.0").fact("req.swapped_max") is None
    assert templates("vllm").fact("req.swapped_max") is None


def test_labels_of_the_table_and_of_the_user_stand_on_every_series() -> None:
    filled = templates("sglang", "0.5.23", select=('job="llm"',))
    for fact in filled.facts():
        text = filled.fact(fact) or filled.fact(fact, "lo") or ""
        for selector in re.findall(r"(?:sglang|kvdoctor):\w+(\{[^}]*\})?", text):
            assert 'job="llm"' in selector, (fact, text)
    assert 'priority=""' in (filled.fact("req.waiting") or "")


@pytest.mark.parametrize("engine, version", VERSIONS)
def test_every_template_is_free_of_placeholders_and_of_increase(engine: str, version: str | None) -> None:
    filled = templates(engine, version)
    assert filled.facts()
    for fact in filled.facts():
        for end in ("", "lo", "hi"):
            text = filled.fact(fact, end)  # type: ignore[arg-type]
            if text is not None:
                assert not re.search(r"\$\{|\{(win|by|seconds|ranks|scale)|<[a-z_]+\.", text), (fact, text)
                assert "increase(" not in text
                assert not re.search(r"avg by \([^)]*\) \((max by[^)]*\) )?\(?(vllm:\w*usage|sglang:\w*usage)", text)


@pytest.mark.parametrize("name", [e.name for e in engines().values() if e.promql])
def test_entries_name_facts_of_the_vocabulary(name: str) -> None:
    for entry in engines()[name].promql:
        assert entry.fact in FACTS, entry
        for inner in re.findall(r"\$\{([\w.]+)\}", entry.expr):
            assert inner in FACTS, entry


def test_a_fact_whose_series_is_missing_says_why() -> None:
    assert "log lines" in why_missing(engines()["vllm"], "0.32.0", "oom.count")
    assert "NVML" in why_missing(engines()["vllm"], "0.32.0", "gpu.util")
    assert "since May 2025" in why_missing(engines()["llamacpp"], None, "kv.usage_max")


def test_a_bound_has_ends_and_no_value() -> None:
    vllm = templates("vllm", "0.32.0")
    assert vllm.bounded("preempt.hit_3plus_of_hit", "lo")
    assert not vllm.bounded("kv.usage_max", "lo")
    low = vllm.fact("preempt.hit_3plus_of_hit", "lo") or ""
    assert "request_num_preemptions_sum" in low
    assert "vllm:" not in (vllm.fact("preempt.hit_3plus_of_hit") or "")


def test_a_template_that_refers_to_itself_is_told() -> None:
    engine = replace(
        engines()["vllm"], promql=(Promql("req.running", "${req.waiting}"), Promql("req.waiting", "${req.running}"))
    )
    with pytest.raises(RecursionError, match=r"req\.running > req\.waiting"):
        Templates(engine).fact("req.running")


@pytest.mark.parametrize(
    "text, wanted",
    [
        ('job="vllm"', ('job="vllm"',)),
        ('{job="vllm", zone=~"a|b"}', ('job="vllm"', 'zone=~"a|b"')),
        ('a!="x,y",b!~"\\"q\\""', ('a!="x,y"', 'b!~"\\"q\\""')),
        ("", ()),
    ],
)
def test_selectors_are_read(text: str, wanted: tuple[str, ...]) -> None:
    assert matchers(text) == wanted


@pytest.mark.parametrize("text", ["job=vllm", 'job="a" zone="b"', '"x"', "{job", 'job="a"}) or vector(1)#'])
def test_a_selector_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SelectError):
        matchers(text)


@given(st.text(max_size=40))
def test_a_selector_never_smuggles_anything_out_of_its_braces(text: str) -> None:
    try:
        found = matchers(text)
    except SelectError:
        return
    for matcher in found:
        assert re.fullmatch(r'[A-Za-z_]\w*(=~|!~|!=|=)"(?:[^"\\]|\\.)*"', matcher, re.DOTALL)


@given(st.integers(min_value=1, max_value=10**7))
def test_durations_keep_their_length(length: int) -> None:
    assert seconds(as_duration(length)) == length


@pytest.mark.parametrize("text", ["5", "5 minutes", "0m", "m", "1h30m"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SelectError):
        seconds(text)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("sum by (a, b) (x)", "sum by (a, b) (x)"),
        ("rate(x[5m])", "rate(x[5m])"),
        ('f(x{a=")"})', 'f(x{a=")"})'),
        ("sum(x) / sum(y)", "(sum(x) / sum(y))"),
        ("sum(x) * 300", "(sum(x) * 300)"),
        ("(a) + (b)", "((a) + (b))"),
    ],
)
def test_parentheses_are_put_only_where_they_are_needed(text: str, wanted: str) -> None:
    assert enclosed(text) == wanted
