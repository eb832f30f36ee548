"""The JSON report and its schema."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest
from corpus import SAMPLES
from report_helpers import NOON, action, evidence, full_report, of_sample, report, target, verdict

from kvdoctor.facts import Unknown
from kvdoctor.findings import DeviceMemory, MemoryPart, Plan, Report, TimelineEntry, Window
from kvdoctor.report.machine import to_dict, to_json

SCHEMA: dict[str, Any] = json.loads(
    resources.files("kvdoctor.report").joinpath("report.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())


def checked(said: Report) -> dict[str, Any]:
    """The report through text and back, valid."""
    document: dict[str, Any] = json.loads(to_json(said, "1.2.3"))
    VALIDATOR.validate(document)
    return document


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_real_reports_are_valid(sample: Any) -> None:
    said = of_sample(sample)
    document = checked(said)
    assert document["verdict"]["rule"] == said.main.verdict.rule
    assert [t["name"] for t in document["targets"]] == [t.name for t in said.targets]


def test_a_full_report_is_valid_and_keeps_every_part() -> None:
    document = checked(full_report())
    assert document["tool"] == {"name": "kvdoctor", "version": "1.2.3"}
    assert [f["rule"] for f in document["findings"]] == ["an-effect", "main-cause", "a-boundary"]
    assert document["findings"][0]["muted_by"] == "main-cause"
    assert [(u["rule"], u["state"]) for u in document["undecided"]] == [
        ("a-suspect", "suspected"),
        ("a-blind-one", "blind"),
    ]
    assert document["undecided"][0]["holds"][0]["fact"] == "preempt.count"
    assert document["plan"]["watermarks"]["admission_free"] == {"value": 0.03, "lo": 0.02, "hi": 0.05}
    assert document["plan"]["what_if"][1]["stall_p99_s"] is None
    assert document["timeline"] == [
        {
            "t": "2026-11-29T13:00:05.000Z",
            "what": "the KV pool is full",
            "source": "metrics.prom:3 vllm:kv_cache_usage_perc",
        }
    ]


def test_the_top_repeats_the_target_the_verdict_comes_from() -> None:
    document = checked(full_report())
    main = next(t for t in document["targets"] if t["name"] == "vllm tiny")
    for key in ("target", "window", "verdict", "findings", "undecided", "facts"):
        assert document[key] == main[key]


def test_an_unknown_fact_is_null_with_a_reason_and_never_zero() -> None:
    fact = checked(report())["facts"]["gpu.util"]
    assert fact == {
        "value": None, "lo": None, "hi": None, "unit": "1", "how": None, "span": "i", "source": None,
        "reason": "no GPU reading in the snapshot", "hint": "add nvidia-smi output",
    }  # fmt: skip


def test_bounds_are_no_value() -> None:
    document = checked(report())
    fact = document["facts"]["recompute.token_share"]
    assert (fact["value"], fact["lo"], fact["hi"], fact["how"]) == (None, 0, 0.29, "bound")
    assert [v["value"] for v in document["vitals"]] == [0.5, None, None]


def test_only_what_holds_is_evidence() -> None:
    open_one = evidence("tok.gen_drop", outcome=None, value=None, lo=None, hi=None, how=None, span=None, source="")
    main = verdict(evidence=(evidence(), evidence("req.flips", 0.0, 2.0, outcome=False), open_one))
    document = checked(report(target(main=main)))
    assert [e["fact"] for e in document["findings"][0]["evidence"]] == ["preempt.per_finished"]


def test_numbers_json_cannot_say_are_null() -> None:
    main = verdict(evidence=(evidence(limit=math.inf),))
    document = checked(report(target(main=main, window=Window(NOON, NOON, math.nan, 1))))
    assert document["window"]["seconds"] is None
    assert document["findings"][0]["evidence"][0]["threshold"] is None


def test_no_time_is_made_up() -> None:
    yearless = 91_889_694.0
    entries = (TimelineEntry(yearless, "start refused", "server.log:7"), TimelineEntry(None, "first preemption", "a:1"))
    document = checked(report(target(window=Window(yearless, yearless + 5, 5.0, 0), timeline=entries)))
    assert (document["window"]["start"], document["window"]["end"], document["window"]["seconds"]) == (None, None, 5)
    assert [(e["t"], e["what"]) for e in document["timeline"]] == [
        (None, "11-29 12:54:54 start refused"),
        (None, "first preemption"),
    ]


def test_memory_adds_up_also_with_two_parts_of_one_name() -> None:
    parts = (
        MemoryPart("x", 3.0, "measured", ""),
        MemoryPart("x", 4.0, "measured", ""),
        MemoryPart("free", 1.0, "measured", ""),
    )
    memory = checked(report(target(memory=(DeviceMemory("GPU 0", 10.0, parts, 2.0),))))["memory"][0]
    assert memory["parts"] == {"x": 7, "free": 1}
    assert sum(memory["parts"].values()) + memory["unexplained"] == memory["total"]


def test_an_action_without_a_flag_says_what_to_do_instead() -> None:
    turns = (action(to=None), action(flag=None, start=None, to=None, direction="set", instead="Change the router."))
    document = checked(report(plan=Plan(levers=turns)))
    assert [a["to"] for a in document["plan"]["levers"]] == ["lower", "set"]
    assert document["plan"]["levers"][1]["flag"] is None
    assert document["plan"]["levers"][1]["effect"] == "Change the router."


def test_foreign_text_survives_and_stays_ascii() -> None:
    name = "evil\x1b[2J\ud800\u202e[bold]\n名"
    text = to_json(report(target(name, model=name)), "1")
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["target"]["model"] == name


def test_the_schema_refuses_what_is_not_in_the_contract() -> None:
    good = to_dict(report(), "1")
    fact = good["facts"]["kv.usage_max"]
    for bad in (
        {**good, "extra": 1},
        {key: value for key, value in good.items() if key != "undecided"},
        {**good, "verdict": {**good["verdict"], "severity": "fatal"}},
        {**good, "facts": {"gpu.util": {**fact, "how": None}}},
        {**good, "facts": {"kv.usage_max": {**fact, "reason": "none"}}},
        {**good, "window": {**good["window"], "start": "2026-11-29 13:00"}},
        {**good, "targets": []},
    ):
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(bad)


def test_a_report_without_a_verdict_to_give() -> None:
    nothing = verdict(
        "undetermined", id="", state="blind", severity="info", stage=9, misdiagnosis=None, cause="", say=""
    )
    empty = replace(target(main=nothing), engine=None, engine_version=None, model=None, vitals=(), sources=(),
                    facts={"kv.usage_max": Unknown("nothing was read")}, window=Window(None, None, None, 0))  # fmt: skip
    document = checked(report(empty, usable=False))
    assert document["verdict"]["id"] is None
    assert document["findings"] == []
    assert document["facts"]["kv.usage_max"]["value"] is None
