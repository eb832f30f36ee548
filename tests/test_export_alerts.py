"""Exported rules: what becomes an alert, what does not and why, and the proof by promtool."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvdoctor.cli import export as export_command
from kvdoctor.export.alerts import AlertSet, ExportError, build, rule_file
from kvdoctor.export.condition import Compiler
from kvdoctor.export.promtest import promtest_file
from kvdoctor.export.yamltext import dump
from kvdoctor.rulebook.expr import Threshold, parse_condition
from kvdoctor.rulebook.rule import load_rules, parse_rule
from tests.export_helpers import PROVEN, VERSIONS, needs_promtool, promtool, templates

ROOT = Path(__file__).resolve().parent.parent
RULES = load_rules()
runner = CliRunner()


@cache
def made(engine: str, version: str | None = None) -> AlertSet:
    return build(RULES, templates(engine, version))


def compiled(text: str, engine: str = "vllm", version: str | None = "0.32.0", **thresholds: float) -> object:
    table = {n: Threshold(n, v, "1", True, "why") for n, v in thresholds.items()}
    condition = parse_condition(text, dict.fromkeys(table, "1"), allow_known=True)
    return Compiler(templates(engine, version), table).node(condition.root)


# ---------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("kv.usage_max > thresholds.t", "kvdoctor:kv_usage_max > 0.5"),
        (
            "req.waiting > 0 and kv.usage_max < thresholds.t",
            "kvdoctor:req_waiting > 0\nand kvdoctor:kv_usage_max < 0.5",
        ),
        (
            "req.waiting > 0 and (kv.usage_max < thresholds.t or kv.pressure)",
            "kvdoctor:req_waiting > 0\nand (kvdoctor:kv_usage_max < 0.5\nor kvdoctor:kv_pressure == 1)",
        ),
        ("not (req.waiting > 0)", "kvdoctor:req_waiting <= 0"),
        ("not kv.pressure", "kvdoctor:kv_pressure == 0"),
        ("req.running < req.running_max", "kvdoctor:req_running < kvdoctor:req_running_max"),
        ("preempt.count > thresholds.t * latency.stalls", "kvdoctor:preempt_count > 0.5 * kvdoctor:latency_stalls"),
        ("known(req.waiting)", "kvdoctor:req_waiting"),
        # only the lower end can show that it is more, only the upper one that it is less
        ("preempt.hit_share > thresholds.t", "kvdoctor:preempt_hit_share_at_least > 0.5"),
        ("preempt.hit_share < thresholds.t", "kvdoctor:preempt_hit_share_at_most < 0.5"),
    ],
)
def test_a_condition_becomes_a_filter(text: str, wanted: str) -> None:
    thresholds = {"t": 0.5} if "thresholds.t" in text else {}
    if "latency.stalls" in text:
        table = {"t": Threshold("t", 0.5, "ratio", True, "why")}
        root = parse_condition(text, {"t": "ratio"}).root
        assert Compiler(templates("vllm", "0.32.0"), table).node(root).text == wanted
        return
    assert compiled(text, **thresholds).text == wanted  # type: ignore[attr-defined]


def test_an_or_passes_over_what_cannot_be_had_and_says_so() -> None:
    found = compiled("req.flips > 0 or req.waiting > 0")
    assert found.text == "kvdoctor:req_waiting > 0"  # type: ignore[attr-defined]
    assert found.left_out == ("req.flips",)  # type: ignore[attr-defined]


def test_an_and_with_something_that_cannot_be_had_is_no_alert() -> None:
    found = compiled("req.flips > 0 and req.waiting > 0")
    assert found.missing == ("req.flips",)  # type: ignore[attr-defined]
    assert not found.text  # type: ignore[attr-defined]


def test_what_an_engine_never_does_is_settled_without_a_query() -> None:
    assert compiled("preempt.count > 0", "tgi", None).truth is False  # type: ignore[attr-defined]
    assert compiled("preempt.count == 0", "tgi", None).truth is True  # type: ignore[attr-defined]
    assert compiled("preempt.count == 0 and req.waiting > 0", "tgi", None).text == "kvdoctor:req_waiting > 0"  # type: ignore[attr-defined]
    assert compiled('preempt.kind == "swap"', "vllm", "0.32.0").truth is False  # type: ignore[attr-defined]


def test_an_old_engine_shows_by_its_series_that_it_swaps() -> None:
    assert compiled('preempt.kind == "swap"', "vllm", "0.6.4").text == "kvdoctor:preempt_kind_swap"  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- rule files


@pytest.mark.parametrize("engine, version", VERSIONS)
def test_every_rule_is_an_alert_or_says_why_not(engine: str, version: str | None) -> None:
    book = made(engine, version)
    alerts, others = {a.rule.id for a in book.alerts}, {o.rule.id for o in book.others}
    assert alerts | others == {rule.id for rule in RULES}
    assert not alerts & others
    assert all(other.why for other in book.others)


def test_the_rules_that_can_be_alerts_on_vllm_are() -> None:
    names = {alert.rule.name for alert in made("vllm", "0.32.0").alerts}
    assert {
        "preemption-tail-latency",
        "missing-cooldown",
        "admission-thrash",
        "recompute-overload",
        "load-imbalance",
        "queue-overload",
        "engine-hang",
    } <= names


def test_the_file_holds_recordings_alerts_and_the_reasons_of_the_others() -> None:
    text = rule_file(made("vllm", "0.32.0"), {"team": "ml"})
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    records = [r["record"] for r in rules if "record" in r]
    assert len(records) == len(set(records))
    overload = next(r for r in rules if r.get("alert") == "KvdoctorRecomputeOverload")
    rule = next(r for r in RULES if r.name == "recompute-overload")
    assert overload["for"] == rule.body.alert.duration  # type: ignore[union-attr]
    assert overload["labels"] == {"severity": rule.severity, "rule": rule.id, "team": "ml"}
    assert overload["annotations"]["runbook_url"] == f"docs/rules/{rule.id}-{rule.name}.md"
    assert rule.title.rstrip(".") in overload["annotations"]["summary"]
    assert rule.body.cause.split()[0] in overload["annotations"]["description"]
    for name in re.findall(r"kvdoctor:\w+", overload["expr"]):
        assert name in records
    assert "increase(" not in text
    assert re.search(r"^#   KV100 oom-outside-kv: .+", text, re.MULTILINE)


def test_the_page_of_an_alert_is_where_the_user_serves_the_pages() -> None:
    book = build(RULES, templates("vllm", "0.32.0"), "https://wiki.example/kvdoctor/")
    served = {alert.annotations()["runbook_url"] for alert in book.alerts}
    assert "https://wiki.example/kvdoctor/KV400-recompute-overload.md" in served
    for url in served:
        assert (ROOT / "docs" / "rules" / url.removeprefix("https://wiki.example/kvdoctor/")).is_file()


def test_a_changed_threshold_is_in_the_expression() -> None:
    rule = next(r for r in RULES if r.name == "recompute-overload")
    changed = rule.with_thresholds({"rate": (7.5, "test")})
    text = rule_file(build([changed], templates("vllm", "0.32.0")), {})
    assert "kvdoctor:preempt_rate > 7.5" in text


def test_a_rule_that_asks_for_an_hour_gets_a_window_of_an_hour() -> None:
    rules = {r.get("record"): r["expr"] for r in yaml.safe_load(rule_file(made("vllm"), {}))["groups"][0]["rules"]}
    assert "[1h]" in rules["kvdoctor:host_rss_steps_up_1h"]
    assert "[5m]" in rules["kvdoctor:kv_usage_max"]


def test_replicas_are_compared_within_their_job() -> None:
    alert = next(a for a in made("vllm").alerts if a.name == "KvdoctorLoadImbalanceReplicas")
    assert "kvdoctor:job_spread_usage_gap" in alert.condition.text
    assert "{{ $labels.job }}" in alert.annotations()["summary"]


def test_the_custom_resource_carries_the_labels_the_operator_selects_by() -> None:
    document = yaml.safe_load(rule_file(made("vllm"), {"release": "prom", "app.kubernetes.io/part-of": "x"}, crd=True))
    assert document["apiVersion"] == "monitoring.coreos.com/v1"
    assert document["kind"] == "PrometheusRule"
    assert document["metadata"]["labels"] == {"release": "prom", "app.kubernetes.io/part-of": "x"}
    assert document["spec"]["groups"][0]["rules"]


@pytest.mark.parametrize("name", ["a-b", "severity", "", "alertname"])
def test_a_label_prometheus_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(ExportError):
        rule_file(made("vllm"), {name: "x"})


# ---------------------------------------------------------------------------------------------- promtool


@needs_promtool
@pytest.mark.parametrize("engine, version", PROVEN)
def test_promtool_takes_the_rules_and_their_unit_test_passes(tmp_path: Path, engine: str, version: str | None) -> None:
    book = made(engine, version)
    (tmp_path / "rules.yml").write_text(rule_file(book, {"team": "ml"}))
    (tmp_path / "test.yml").write_text(promtest_file(book, "rules.yml", {"team": "ml"}))
    checked = promtool("check", "rules", tmp_path / "rules.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", tmp_path / "test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("engine, version", [("vllm", "0.32.0"), ("sglang", "0.5.23")])
def test_the_unit_test_shows_each_alert_firing_and_silent(engine: str, version: str) -> None:
    book = made(engine, version)
    document = yaml.safe_load(promtest_file(book, "rules.yml", {}))
    firing: set[str] = set()
    silent: set[str] = set()
    checked: set[str] = set()
    for test in document["tests"]:
        homes = {
            re.sub(r"^[^{]*", "", row["series"])
            for row in test["input_series"]
            if row["series"].startswith("kvdoctor:")
        }
        for case in test.get("alert_rule_test", ()):
            expected = case.get("exp_alerts", [])
            firing.update([case["alertname"]] if expected else [])
            silent.update([case["alertname"]] if len(expected) < max(len(homes), 1) else [])
        for case in test.get("promql_expr_test", ()):
            checked.update(re.findall(r"kvdoctor:\w+", case["expr"]))
    assert firing == silent == {alert.name for alert in book.alerts}
    # most recorded facts also come out of raw series of the engine
    assert len(checked) > len(book.records) / 2


@needs_promtool
@pytest.mark.parametrize(
    "old, new",
    [
        ("kvdoctor:preempt_rate > 5", "kvdoctor:preempt_rate > 500000"),
        ("vllm:num_preemptions_total", "vllm:num_preemption_total"),
    ],
)
def test_the_unit_test_notices_a_wrong_rule(tmp_path: Path, old: str, new: str) -> None:
    book = made("vllm", "0.32.0")
    text = rule_file(book, {})
    assert old in text
    (tmp_path / "rules.yml").write_text(text.replace(old, new))
    (tmp_path / "test.yml").write_text(promtest_file(book, "rules.yml", {}))
    assert promtool("test", "rules", tmp_path / "test.yml").returncode != 0


USER_RULE = """
id = "ACME100"
name = "queue-too-long"
title = "Requests wait"
severity = "medium"
looks_like = "a slow model"
stage = 6
when = "req.waiting > thresholds.queue"
[thresholds]
queue = { value = 3, unit = "count", calibrated = false, why = "ours" }
[explain]
cause = "Text with \\"quotes\\", a colon: and {braces}"
not_this = "x"
[fix]
say = "y"
[alert]
for = "90s"
[[examples]]
name = "it's long: a # and 'quotes'"
facts = { "req.waiting" = 9 }
expect = "fires"
[[examples]]
name = "short"
facts = { "req.waiting" = 1 }
expect = "clear"
"""


@needs_promtool
def test_a_rule_of_the_user_with_awkward_words_is_exported_and_proven(tmp_path: Path) -> None:
    rule = parse_rule(USER_RULE, "ACME100-queue-too-long.toml")
    book = build([rule], templates("sglang"))
    (tmp_path / "rules.yml").write_text(rule_file(book, {"team": 'it\'s: "x"'}))
    (tmp_path / "test.yml").write_text(promtest_file(book, "rules.yml", {"team": 'it\'s: "x"'}))
    tested = promtool("test", "rules", tmp_path / "test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


# ---------------------------------------------------------------------------------------------- YAML writer

TREES = st.recursive(
    st.text(max_size=30) | st.integers(-(10**9), 10**9) | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=12), TREES, min_size=1, max_size=4))
def test_yaml_reads_back_what_was_written(tree: dict[str, object]) -> None:
    assert yaml.safe_load(dump(tree)) == tree  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "word",
    ["yes", "NO", "on", "null", "~", "1e3", "12:30", "010", "- x", "a: b", "#x", "a\nb", "a\n", "\na", "'", " x"],
)
def test_yaml_keeps_text_that_looks_like_something_else(word: str) -> None:
    assert yaml.safe_load(dump({"k": word, "l": [word]})) == {"k": word, "l": [word]}


# ---------------------------------------------------------------------------------------------- the command


def run(*args: str) -> tuple[int, str]:
    app = typer.Typer()
    app.add_typer(export_command.app, name="export")
    result = runner.invoke(app, ["export", *args])
    return result.exit_code, result.output + result.stderr


def test_the_command_writes_rules_and_their_test(tmp_path: Path) -> None:
    rules, tests = tmp_path / "r" / "kv.yml", tmp_path / "kv_test.yml"
    rules.parent.mkdir()
    code, _ = run("alerts", "--engine", "vllm", "--engine-version", "0.11.2", "--select", 'job="llm"',
                  "--label", "team=ml", "-o", str(rules), "--tests", str(tests))  # fmt: skip
    assert code == 0
    assert yaml.safe_load(tests.read_text())["rule_files"] == ["r/kv.yml"]
    assert '{job="llm"}' in rules.read_text()


@pytest.mark.parametrize(
    "args, words",
    [
        (("alerts", "--engine", "vlm"), "--engine vlm"),
        (("alerts", "--engine", "vllm", "--engine-version", "new"), "'new' is not a version"),
        (("alerts", "--engine", "vllm", "--select", "job=x"), "is not a label selector"),
        (("alerts", "--engine", "vllm", "--label", "team"), "NAME=VALUE"),
        (("alerts", "--engine", "vllm", "--label", "a-b=c"), "not the name of a label"),
        (("alerts", "--engine", "vllm", "--tests", "t.yml"), "--tests needs --output"),
        (("dashboard", "--engine", "dcgm-exporter"), "nothing can be exported"),
    ],
)
def test_a_wrong_option_is_a_usage_error_with_one_line(args: tuple[str, ...], words: str) -> None:
    code, text = run(*args)
    assert code == 2
    assert words in text
