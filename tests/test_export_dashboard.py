"""The exported dashboard: only series of the version, every expression parsed by promtool, lines from the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvdoctor.export import promparse
from kvdoctor.export.alerts import build
from kvdoctor.export.dashboard import SCHEMA_VERSION, dashboard, dashboard_text
from kvdoctor.export.yamltext import dump
from kvdoctor.rulebook.rule import load_rules
from tests.export_helpers import VERSIONS, needs_promtool, promtool, templates

RULES = load_rules()


def panels(engine: str, version: str | None) -> list[dict[str, Any]]:
    found: Any = dashboard(templates(engine, version), RULES)["panels"]
    return list(found)


def queries(engine: str, version: str | None) -> list[str]:
    return [target["expr"] for panel in panels(engine, version) for target in panel.get("targets", ())]


@pytest.mark.parametrize("engine, version", VERSIONS)
def test_every_metric_is_in_the_engine_table_for_the_version(engine: str, version: str | None) -> None:
    filled = templates(engine, version)
    known = {name.name for series in filled.engine.series for name in series.names if not name.ignore}
    known |= {"process_resident_memory_bytes"}
    for expr in queries(engine, version):
        for found in promparse.metrics(promparse.parse(expr)):
            base = found.metric.name
            for suffix in ("_bucket", "_sum", "_count"):
                if base not in known:
                    base = base.removesuffix(suffix)
            assert base in known, expr


@needs_promtool
@pytest.mark.parametrize("engine, version", VERSIONS)
def test_promtool_parses_every_expression(tmp_path: Path, engine: str, version: str | None) -> None:
    rules = [{"record": f"x{i}", "expr": expr} for i, expr in enumerate(queries(engine, version))]
    (tmp_path / "r.yml").write_text(dump({"groups": [{"name": "d", "rules": rules}]}))
    checked = promtool("check", "rules", tmp_path / "r.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_data_source_is_a_variable_everywhere() -> None:
    document = dashboard(templates("vllm"), RULES)
    assert document["schemaVersion"] == SCHEMA_VERSION
    for panel in panels("vllm", None):
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
            assert all('job=~"$job"' in target["expr"] for target in panel["targets"])


@pytest.mark.parametrize(
    "title", ["Pressure", "Victims", "Recompute", "Latency with its stalls", "Memory", "Engines side by side"]
)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_part_is_there(engine: str, title: str) -> None:
    assert title in [panel["title"] for panel in panels(engine, None) if panel["type"] == "row"]


def test_a_watermark_is_a_line_and_follows_the_rule() -> None:
    rule = next(r for r in RULES if r.name == "recompute-overload")
    moved = [rule.with_thresholds({"share": (0.33, "test")}), *(r for r in RULES if r is not rule)]
    found: Any = dashboard(templates("sglang"), moved)["panels"]
    panel = next(p for p in found if p["title"].startswith("Share of computed tokens"))
    custom = panel["fieldConfig"]["defaults"]
    assert custom["custom"]["thresholdsStyle"]["mode"] == "line"
    assert custom["thresholds"]["steps"][-1]["value"] == 0.33


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    seen: set[tuple[int, int]] = set()
    found = panels("sglang", None)
    for panel in found:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & seen
        seen |= cells
    assert len({panel["id"] for panel in found}) == len(found)


def test_legends_of_engines_use_a_label_the_query_keeps() -> None:
    for panel in panels("vllm", None):
        for target in panel.get("targets", ()):
            if "{{engine}}" in target["legendFormat"]:
                assert "engine" in target["expr"]


def test_a_selection_is_on_every_query() -> None:
    text = dashboard_text(templates("vllm", select=('namespace="prod"',)), RULES)
    for panel in json.loads(text)["panels"]:
        for target in panel.get("targets", ()):
            assert 'namespace="prod"' in target["expr"]


def test_alerts_and_dashboard_name_the_same_series() -> None:
    filled = templates("vllm", "0.32.0")
    recorded = {
        found.metric.name
        for _, text in build(RULES, filled).records
        for found in promparse.metrics(promparse.parse(text))
    }
    shown = {
        found.metric.name for expr in queries("vllm", "0.32.0") for found in promparse.metrics(promparse.parse(expr))
    }
    assert {
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:inter_token_latency_seconds_bucket",
    } <= recorded & shown
