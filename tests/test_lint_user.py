"""Lint of dashboards and alert files: every renamed metric of the catalogue is found, and nothing in a right file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvdoctor.cli import lint as lint_command
from kvdoctor.engines.base import engines
from kvdoctor.export import promparse
from kvdoctor.export.alerts import build, rule_file
from kvdoctor.export.catalogue import Entry, tables
from kvdoctor.export.dashboard import dashboard_text
from kvdoctor.export.lint import CHECKS, LintResult, lint
from kvdoctor.export.lint_text import exit_code, render
from kvdoctor.rulebook.rule import load_rules
from tests.export_helpers import VERSIONS, templates

runner = CliRunner()
RULES = load_rules()


def dashboard(*exprs: str, **more: object) -> str:
    panels = [
        {"type": "timeseries", "title": f"panel {i}", "targets": [{"expr": expr}]} for i, expr in enumerate(exprs)
    ]
    return json.dumps({"title": "d", "panels": panels, **more}, indent=1)


def judge(*exprs: str, engine: str | None = None, version: str | None = None) -> LintResult:
    return lint([("d.json", dashboard(*exprs))], engine=engine, version=version)


def checks(*exprs: str, engine: str | None = None, version: str | None = None) -> list[str]:
    return [problem.check for problem in judge(*exprs, engine=engine, version=version).problems]


def used(entry: Entry) -> str:
    """The metric as one would use it rightly."""
    if entry.type == "histogram":
        return f"histogram_quantile(0.9, sum by (le) (rate({entry.name}_bucket[5m])))"
    if entry.type == "counter":
        return f"rate({entry.name}[5m])"
    if entry.type == "summary":
        return f"rate({entry.name}_sum[5m])"
    return entry.name


# ---------------------------------------------------------------------------------------------- the catalogue


def test_every_renamed_or_removed_metric_of_the_catalogue_is_found_and_no_other() -> None:
    gone = [e for table in tables().values() for e in table.entries.values() if e.until is not None]
    assert len(gone) >= 15
    result = judge(*(used(entry) for entry in gone))
    told = {problem.message.split()[0]: problem for problem in result.problems}
    assert len(result.problems) == len(gone)
    for entry in gone:
        problem = told[entry.name + ("_bucket" if entry.type == "histogram" else "")]
        assert problem.check == ("renamed-metric" if entry.now else "removed-metric")
        if entry.now:
            assert entry.now in problem.instead


def test_nothing_is_found_in_a_right_dashboard() -> None:
    right = [e for table in tables().values() for e in table.entries.values() if e.until is None and not e.trap]
    assert len(right) > 300
    assert judge(*(used(entry) for entry in right)).problems == ()


@pytest.mark.parametrize("engine, version", VERSIONS)
def test_nothing_is_found_in_what_kvdoctor_exports(engine: str, version: str | None) -> None:
    filled = templates(engine, version)
    files = [("r.yml", rule_file(build(RULES, filled), {})), ("d.json", dashboard_text(filled, RULES))]
    result = lint(files, engine=engine, version=version)
    assert result.problems == ()
    assert result.unreadable == ()
    assert result.expressions > 10


def test_every_name_of_the_engine_tables_is_in_the_catalogue() -> None:
    for name, table in tables().items():
        for series in engines()[name].series if name in engines() else ():
            for wire in series.names:
                if wire.name.startswith(table.prefixes):
                    assert table.find(wire.name) is not None, wire.name


def test_replacements_exist() -> None:
    for table in tables().values():
        for entry in table.entries.values():
            if entry.now is not None:
                for found in promparse.metrics(promparse.parse(entry.now)):
                    target = table.find(found.metric.name)
                    assert target is not None, entry
                    assert target.until is None, entry


# ---------------------------------------------------------------------------------------------- single checks


@pytest.mark.parametrize(
    "expr, engine, version, check, words",
    [
        ("vllm:gpu_cache_usage_perc", "vllm", "0.12.0", "renamed-metric", "vllm:kv_cache_usage_perc"),
        ("vllm:kv_cache_usage_perc", "vllm", "0.8.5", "renamed-metric", "vllm:gpu_cache_usage_perc"),
        ("rate(vllm:time_per_output_token_seconds_bucket[5m])", "vllm", "0.20.0", "renamed-metric",
         "vllm:inter_token_latency_seconds_bucket"),
        ("vllm:num_requests_swapped", "vllm", "0.20.0", "removed-metric", "V1 has no swapped requests"),
        ("vllm:request_num_preemptions_count", "vllm", "0.20.0", "later-metric", "from 0.30.0 on"),
        ("vllm:gpu_cache_usage_perc", "vllm", "0.11.1", "hidden-metric", "show-hidden-metrics"),
        ("rate(vllm:num_preemptions[5m])", None, None, "unknown-metric", "vllm:num_preemptions_total"),
        ("vllm:num_request_waiting", None, None, "unknown-metric", "vllm:num_requests_waiting"),
        ("rate(vllm:prompt_tokens_recomputed_total[5m])", "vllm", "0.18.0", "misleading-metric", "nothing to do with preemption"),
        ("sglang:utilization", None, None, "misleading-metric", "stuck at 0"),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", None, None, "misleading-metric", "memory bus"),
        ("vllm:time_to_first_token_seconds", None, None, "histogram-name", "_bucket"),
        ("rate(vllm:num_requests_waiting[5m])", None, None, "gauge-as-counter", "a gauge"),
        ("increase(sglang:num_used_tokens[1h])", None, None, "gauge-as-counter", "a gauge"),
        ("vllm:num_preemptions_total > 100", None, None, "counter-without-rate", "rate(vllm:num_preemptions_total[5m])"),
        ("sum(increase(vllm:num_preemptions_total[5m])) > 10", None, None, "absolute-increase", "ratio"),
        ("10 < increase(vllm:num_preemptions_total[5m])", None, None, "absolute-increase", "> 10"),
        ("avg(vllm:kv_cache_usage_perc)", None, None, "average-over-engines", "max by"),
        ("avg by (instance) (max_over_time(vllm:kv_cache_usage_perc[5m])) > 0.9", None, None, "average-over-engines", "max by"),
        ("vllm:kv_cache_usage_perc > 90", None, None, "ratio-as-percent", "> 0.9"),
        ("80 < max by (instance) (sglang:token_usage)", None, None, "ratio-as-percent", "> 0.8"),
        ("ray_vllm_gpu_cache_usage_perc", "vllm", "0.20.0", "renamed-metric", "vllm:kv_cache_usage_perc"),
    ],
)  # fmt: skip
def test_each_mistake_is_named_with_what_to_write(
    expr: str, engine: str | None, version: str | None, check: str, words: str
) -> None:
    result = judge(expr, engine=engine, version=version)
    assert [problem.check for problem in result.problems] == [check]
    assert words in result.problems[0].text()


@pytest.mark.parametrize(
    "expr",
    [
        "increase(vllm:num_preemptions_total[5m]) > 0",
        "increase(vllm:num_preemptions_total[5m]) / increase(vllm:request_success_total[5m]) > 0.5",
        "rate(vllm:num_preemptions_total[5m]) > 5",
        "max by (instance) (vllm:kv_cache_usage_perc) > 0.95",
        "avg by (instance, engine) (vllm:kv_cache_usage_perc)",
        "avg_over_time(vllm:kv_cache_usage_perc[5m]) > 0.9",
        "avg(rate(vllm:generation_tokens_total[5m]))",
        "absent(vllm:num_requests_running)",
        "delta(vllm:num_requests_waiting[5m]) > 3",
        "rate(lmdeploy:num_requests_succeeded[5m])",
        "rate(ray_vllm_num_preemptions[5m]) > bool 0",
        "vllm:num_preemptions_created",
        "vllm:cluster:usage > 3",
        "up == 1 and http_requests_total > 1e9",
        "100 * vllm:kv_cache_usage_perc > 90",
    ],
)
def test_what_is_right_is_left_alone(expr: str) -> None:
    assert checks(expr) == []


def test_a_recorded_name_of_the_same_files_is_no_metric_of_the_engine() -> None:
    rules = "groups:\n- name: g\n  rules:\n  - record: vllm:usage_max\n    expr: max(vllm:kv_cache_usage_perc)\n"
    result = lint([("r.yml", rules), ("d.json", dashboard("vllm:usage_max > 0.9"))])
    assert result.problems == ()


def test_another_engine_is_held_against_its_newest_version() -> None:
    result = judge("vllm:gpu_cache_usage_perc", "sglang:num_retractions_count", engine="vllm", version="0.8.5")
    assert [problem.check for problem in result.problems] == ["removed-metric"]


def test_a_version_beyond_what_is_known_is_said() -> None:
    assert (
        "newer than the newest version known"
        in judge("vllm:num_requests_running", engine="vllm", version="0.99").notes[0]
    )
    assert judge("vllm:num_requests_running", engine="vllm", version="0.33.0").notes == ()


# ---------------------------------------------------------------------------------------------- dashboards


def test_nested_panels_rows_variables_and_grafana_words() -> None:
    document = {
        "schemaVersion": 39,
        "templating": {
            "list": [
                {"name": "i", "type": "query", "query": {"query": "label_values(vllm:gpu_cache_usage_perc{job=~\"$job\"}, instance)"}},
                {"name": "j", "type": "query", "query": "label_values(job)"},
                {"name": "m", "type": "query", "query": "metrics(vllm:gpu_.*)"},
                {"name": "t", "type": "query", "query": "label_values(vllm:time_to_first_token_seconds, le)"},
            ]
        },
        "panels": [
            {
                "type": "row",
                "collapsed": True,
                "panels": [
                    {
                        "title": "inner",
                        "targets": [
                            {"expr": 'sum(rate(vllm:num_preemptions[$__rate_interval])) by ([[group]])'},
                            {"expr": 'vllm:num_requests_${kind}{instance=~"${i:regex}"}'},
                            {"expr": "$expr"},
                        ],
                    }
                ],
            },
            {"title": "logs", "datasource": {"type": "loki"}, "targets": [{"expr": 'count_over_time({app="vllm:none"}[5m])'}]},
        ],
        "rows": [{"panels": [{"title": "old row", "targets": [{"expr": "vllm:nothing_at_all_here"}]}]}],
    }  # fmt: skip
    result = lint([("d.json", json.dumps(document, indent=2))])
    assert [(p.check, p.where) for p in result.problems] == [
        ("renamed-metric", "variable i"),
        ("unknown-metric", "inner"),
        ("unknown-metric", "old row"),
    ]
    assert result.unreadable == ()


def test_a_problem_stands_at_its_line_even_when_the_text_repeats() -> None:
    text = dashboard("vllm:num_requests_running", "vllm:num_requests_swapped", "vllm:num_requests_swapped")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if "swapped" in line]
    assert [p.line for p in lint([("d.json", text)]).problems] == lines


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"name": "x", "value": 3}', "no Grafana dashboard"),
        ("[1, 2, 3]", "no Grafana dashboard"),
        ('{"panels": [', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("", "empty"),
        ("  \n", "empty"),
        ("just words", "no rules"),
        ("a: [1, 2", "not valid YAML"),
        ("groups:\n{{- if .Values.x }}\n- name: a\n{{- end }}\n", "Helm template"),
        ("groups: []\n", "no rules"),
    ],
)
def test_a_file_that_is_neither_is_one_clear_line(text: str, words: str) -> None:
    result = lint([("f", text)])
    assert len(result.unreadable) == 1
    assert words in result.unreadable[0].reason
    assert exit_code(result, "never") == 2


# ---------------------------------------------------------------------------------------------- alert files


RULE_FILE = """\
groups:
  - name: kv
    rules:
      - alert: Full
        expr: |
          max by (instance) (vllm:kv_cache_usage_perc) > 0.95
            and on (instance)
          vllm:num_requests_swapped > 0
        for: 5m
        annotations:
          summary: "{{ $labels.instance }}: {{ $value | humanizePercentage }} of {{ with query \\"vllm:none\\" }}x{{ end }}"
      - alert: Quoted
        expr: 'increase(vllm:num_preemptions_total{job="{{ .Values.job }}"}[5m]) > 20'
"""


def test_an_alert_file_with_go_templates_gives_lines_inside_blocks() -> None:
    result = lint([("a.yml", RULE_FILE)])
    assert [(p.line, p.check, p.where) for p in result.problems] == [
        (8, "removed-metric", "Full"),
        (13, "absolute-increase", "Quoted"),
    ]


def test_a_custom_resource_a_config_map_and_several_documents() -> None:
    resource = yaml.safe_dump(
        {
            "kind": "PrometheusRule",
            "spec": {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "vllm:nope_total > 1"}]}]},
        }
    )
    config = "kind: ConfigMap\ndata:\n  board.json: |-\n" + "".join(
        f"    {line}\n" for line in dashboard("vllm:num_requests_running", "vllm:tokens_total").splitlines()
    )
    result = lint([("all.yml", f"{resource}---\n{config}")])
    assert [(p.check, p.where) for p in result.problems] == [("unknown-metric", "A"), ("renamed-metric", "panel 1")]
    text = f"{resource}---\n{config}".splitlines()
    assert "vllm:tokens_total" in text[result.problems[1].line - 1]


def test_aliases_that_multiply_are_walked_once() -> None:
    lines = ["a0: &a0 [{expr: 'vllm:num_requests_swapped'}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    result = lint([("bomb.yml", "\n".join(lines))])
    assert [p.check for p in result.problems] == ["removed-metric"]


# ---------------------------------------------------------------------------------------------- reading PromQL


@given(st.text(max_size=200))
def test_reading_never_fails(text: str) -> None:
    parts = promparse.parse(text)
    for found in promparse.metrics(parts):
        assert text[found.metric.at :].startswith(found.metric.name) or text[found.metric.at] == "{"
    list(promparse.comparisons(parts))


NAMES = st.from_regex(r"[a-z]{1,3}:[a-z_]{1,8}", fullmatch=True)
EXPRESSIONS = st.recursive(
    NAMES.map(lambda name: (name, {name})),
    lambda inner: st.one_of(
        inner.map(lambda e: (f"sum by (le, job) ({e[0]})", e[1])),
        inner.map(lambda e: (f"avg({e[0]}) without (engine)", e[1])),
        inner.map(lambda e: (f"(-{e[0]} + 1e3)", e[1])),
        NAMES.map(lambda n: (f"rate({n}{{a=\"b{{}}(,\", c!~'x'}}[5m:30s] offset 1h)", {n})),
        st.tuples(inner, inner).map(lambda p: (f"{p[0][0]} / on (a, b) group_left (c) {p[1][0]}", p[0][1] | p[1][1])),
        st.tuples(inner, inner)
        .map(lambda p: (f"{p[0][0]} > bool 0.5 and {p[1][0]} # note: x", p[0][1] | p[1][1]))
        .map(lambda p: (p[0].split(" #")[0], p[1])),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_every_metric_of_an_expression_is_found_and_nothing_else(made: tuple[str, set[str]]) -> None:
    text, names = made
    assert {found.metric.name for found in promparse.metrics(promparse.parse(text))} == names


@pytest.mark.parametrize(
    "text, names",
    [
        ('{__name__="vllm:a", job="b"}', ["vllm:a"]),
        ('{"vllm:a", job="b"}', ["vllm:a"]),
        ('{__name__=~"vllm:.*"}', []),
        ("vllm:${kind}_total", []),
        ("vllm:[[kind]]_total + b:c", ["b:c"]),
        ("{{ .Values.x }}", []),
        ("a # b\n+ c", ["a", "c"]),
        ('label_replace(a:x, "dst", "$1", "src", "(.*)")', ["a:x"]),
        ("topk(3, a:x) or sum(b:y) by (sum)", ["a:x", "b:y"]),
        ("Inf + NaN + 0x1F", []),
    ],
)
def test_metric_names_in_awkward_texts(text: str, names: list[str]) -> None:
    assert [found.metric.name for found in promparse.metrics(promparse.parse(text))] == names


# ---------------------------------------------------------------------------------------------- output


def found() -> LintResult:
    return lint([("a b,c:d.yml", RULE_FILE), ("bad.json", '{"x": 1}')])


def test_json_and_sarif_carry_file_line_and_level() -> None:
    document = json.loads(render(found(), "json", version="1"))
    assert document["schema"] == "kvdoctor.lint/1"
    assert [p["line"] for p in document["problems"]] == [8, 13]
    assert document["unreadable"][0]["file"] == "bad.json"
    run = json.loads(render(found(), "sarif", version="1"))["runs"][0]
    ids = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert ids == set(CHECKS)
    assert [r["level"] for r in run["results"]] == ["error", "warning"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 8
    assert run["invocations"][0]["executionSuccessful"] is False


def test_github_annotations_are_escaped_and_one_line_each() -> None:
    text = render(found(), "github", version="1")
    assert len(text.splitlines()) == 3
    assert "file=a b%2Cc%3Ad.yml,line=8," in text
    assert text.splitlines()[1].startswith("::error ")


@pytest.mark.parametrize("level, code", [("critical", 0), ("high", 1), ("medium", 1), ("never", 0)])
def test_the_exit_code_follows_the_bar(level: str, code: int) -> None:
    assert exit_code(lint([("a.yml", RULE_FILE)]), level) == code


def run(*args: str, stdin: str | None = None) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(lint_command.lint)
    result = runner.invoke(app, [*args], input=stdin)
    return result.exit_code, result.output + result.stderr


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    file.write_text(RULE_FILE)
    code, text = run(str(file))
    assert code == 1
    assert f"{file}:8: high: vllm:num_requests_swapped" in text
    assert run(str(file), "--exit-zero")[0] == 0
    assert run(str(file), "--engine", "vllm", "--engine-version", "0.8.0", "--fail-on", "high")[0] == 1
    assert run("-", stdin=dashboard("vllm:num_requests_running"))[0] == 0
    assert run("-", stdin="{")[0] == 2
    out = tmp_path / "out.sarif"
    run(str(file), "--format", "sarif", "-o", str(out))
    assert json.loads(out.read_text())["version"] == "2.1.0"


@pytest.mark.parametrize(
    "args, words",
    [
        (("none.yml",), "none.yml"),
        (("-", "--format", "xml"), "--format xml"),
        (("-", "--fail-on", "bad"), "--fail-on bad"),
        (("-", "--engine", "vlm"), "--engine vlm"),
        (("-", "--engine-version", "1.0"), "needs --engine"),
        (("-", "--engine", "vllm", "--engine-version", "new"), "no version of vLLM"),
    ],
)
def test_a_wrong_option_is_a_usage_error(args: tuple[str, ...], words: str) -> None:
    code, text = run(*args, stdin="")
    assert code == 2
    assert words in text
