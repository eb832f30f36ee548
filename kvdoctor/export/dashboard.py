"""A Grafana dashboard of one engine: pressure, victims, recompute, latency with its stalls, memory, engines side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvdoctor.engines.base import Engine
from kvdoctor.export.promql import Templates
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.rule import Rule

SCHEMA_VERSION = 39
"""Grafana 10.3 and later read it as it is."""

_FULL, _NEARLY = 0.95, 0.85
"""A pool counts as full at the first (the gate of every pressure rule); the second is the line to look at it."""


@frozen
class Query:
    """A curve: a legend and a template in the placeholders of the engine tables."""

    legend: str
    expr: str


@frozen
class Panel:
    """A graph. ``lines`` are drawn across it: a number, or the threshold of a rule as ``rule-name.threshold``."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    about: str = ""
    lines: tuple[float | str, ...] = ()
    top: float | None = None


@frozen
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


_SERVER = "{{instance}}"
_EACH = "{{instance}} {{%s}}"


def _rows(each: str, ranks: str) -> tuple[Row, ...]:
    """The layout; ``ranks`` are the labels of the engines of one server, ``each`` the legend that shows the first."""
    return (
        Row(
            "Pressure",
            (
                Panel(
                    "KV pool in use, fullest engine",
                    "percentunit",
                    (Query(_SERVER, "${kv.usage_last}"), Query(_SERVER + " largest in 5 m", "${kv.usage_max}")),
                    "Scrapes miss peaks, and a preemption lowers the gauge: the largest value counts.",
                    (_NEARLY, _FULL),
                    1,
                ),
                Panel(
                    "Requests running and waiting",
                    "short",
                    (
                        Query(_SERVER + " running", "${req.running}"),
                        Query(_SERVER + " waiting", "${req.waiting}"),
                        Query(_SERVER + " waiting for room", "${req.waiting_capacity}"),
                    ),
                    "A queue beside a pool with room is another matter than a queue beside a full one.",
                ),
                Panel(
                    "Preemptions per second",
                    "reqps",
                    (Query(_SERVER, "${preempt.rate}"),),
                    "Retractions and pauses included.",
                    ("recompute-overload.rate",),
                ),
                Panel(
                    "Preemptions per finished request",
                    "short",
                    (Query(_SERVER, "${preempt.per_finished}"),),
                    "",
                    ("recompute-overload.thrash",),
                ),
            ),
        ),
        Row(
            "Victims",
            (
                Panel(
                    "Requests preempted twice or more",
                    "percentunit",
                    (Query(_SERVER, "${preempt.hit_twice_share}"),),
                    "Share of finished requests.",
                    ("admission-thrash.twice",),
                ),
                Panel(
                    "Victims close to their end",
                    "percentunit",
                    (Query(_SERVER, "${preempt.victims_near_done}"),),
                    "Needs kvdoctor's observer in the server.",
                ),
                Panel(
                    "Tokens a victim had computed",
                    "short",
                    (Query(_SERVER, "${preempt.victim_computed_mean}"),),
                    "What one preemption throws away.",
                ),
                Panel(
                    "Mean length of a finished request",
                    "short",
                    (
                        Query(_SERVER + " prompt", "${work.prompt_mean}"),
                        Query(_SERVER + " output", "${work.output_mean}"),
                    ),
                    "Tokens. The price of computing a request again.",
                ),
            ),
        ),
        Row(
            "Recompute",
            (
                Panel(
                    "Share of computed tokens that were computed again",
                    "percentunit",
                    (Query(_SERVER, "${recompute.token_share}"),),
                    "",
                    ("recompute-overload.share",),
                ),
                Panel(
                    "Tokens per second",
                    "short",
                    (
                        Query(_SERVER + " prompt", "${tok.prompt_rate}"),
                        Query(_SERVER + " generated", "${tok.gen_rate}"),
                        Query(_SERVER + " again", "${recompute.rate}"),
                    ),
                ),
                Panel(
                    "Prefix cache",
                    "percentunit",
                    (
                        Query(_SERVER + " hits", "${prefix.hit_share}"),
                        Query(_SERVER + " hits in the second tier", "${prefix.external_hit_share}"),
                    ),
                    "Tokens found / tokens looked up.",
                    top=1,
                ),
            ),
        ),
        Row(
            "Latency with its stalls",
            (
                Panel(
                    "Stalls over 1 s per finished request",
                    "short",
                    (Query(_SERVER, "${latency.stalls_per_finished}"),),
                    "A preempted request waits in one long gap, which quantiles over all tokens do not show.",
                    ("preemption-tail-latency.stalls",),
                ),
                Panel(
                    "Time between tokens",
                    "s",
                    (
                        Query(_SERVER + " p50", "${latency.itl_p50}"),
                        Query(_SERVER + " p99", "${latency.itl_p99}"),
                        Query(_SERVER + " p99.9", "${latency.itl_p999}"),
                    ),
                ),
                Panel(
                    "Time to first token",
                    "s",
                    (
                        Query(_SERVER + " p50", "${latency.ttft_p50}"),
                        Query(_SERVER + " p99", "${latency.ttft_p99}"),
                    ),
                ),
                Panel(
                    "Time in the queue and of the whole request",
                    "s",
                    (
                        Query(_SERVER + " queue p50", "${latency.queue_p50}"),
                        Query(_SERVER + " queue p99", "${latency.queue_p99}"),
                        Query(_SERVER + " request p99", "${latency.e2e_p99}"),
                    ),
                ),
            ),
        ),
        Row(
            "Memory",
            (
                Panel(
                    "Device memory by use",
                    "bytes",
                    (
                        Query(_SERVER + " weights", "max by (instance) (<mem.weights>) * {scale:mem.weights}"),
                        Query(_SERVER + " KV pool", "max by (instance) (<kv.pool_bytes>) * {scale:kv.pool_bytes}"),
                        Query(_SERVER + " graphs", "max by (instance) (<mem.graphs>) * {scale:mem.graphs}"),
                        Query(
                            _SERVER + " free after start",
                            "max by (instance) (<mem.free_after_start>) * {scale:mem.free_after_start}",
                        ),
                    ),
                    "Largest rank. The pool is laid out at the start: this does not move with the load.",
                ),
                Panel(
                    "KV pool in tokens",
                    "short",
                    (
                        Query(_SERVER + " size", "${kv.pool_tokens}"),
                        Query(_SERVER + " in use", "sum by (instance) (<kv.used_tokens>)"),
                        Query(_SERVER + " free", "sum by (instance) (<kv.available_tokens>)"),
                        Query(_SERVER + " reusable prefixes", "sum by (instance) (<kv.evictable_tokens>)"),
                    ),
                ),
                Panel(
                    "Secondary pools and second tier",
                    "percentunit",
                    (
                        Query(_SERVER + " sliding window, state space", "${kv.secondary_usage_max}"),
                        Query(_SERVER + " second tier", "${offload.usage}"),
                        Query(_SERVER + " swap space", "max by (instance) (<kv.cpu_usage>)"),
                    ),
                    "",
                    (_FULL,),
                    1,
                ),
                Panel(
                    "Resident memory of the server process",
                    "bytes",
                    (Query(_SERVER, "max by (instance) (<run.rss>)"),),
                ),
            ),
        ),
        Row(
            "Engines side by side",
            (
                Panel(
                    "KV pool in use",
                    "percentunit",
                    (Query(each, f"max by (instance, {ranks}) (<kv.usage>)"),),
                    "A mean over engines would hide the full one.",
                    (_NEARLY, _FULL),
                    1,
                ),
                Panel("Requests running", "short", (Query(each, f"sum by (instance, {ranks}) (<req.running>)"),)),
                Panel("Requests waiting", "short", (Query(each, f"sum by (instance, {ranks}) (<req.waiting>)"),)),
                Panel(
                    "Preemptions per second",
                    "reqps",
                    (Query(each, f"sum by (instance, {ranks}) (rate(<preempt.total>[{{win}}]))"),),
                ),
                Panel(
                    "Fullest engine against the emptiest",
                    "percentunit",
                    (Query(_SERVER, "${spread.usage_gap}"),),
                    "Difference of their largest usage in 5 m.",
                    ("load-imbalance.gap",),
                ),
            ),
        ),
    )


def dashboard(templates: Templates, rules: Sequence[Rule]) -> dict[str, object]:
    """The dashboard as Grafana's JSON model; a panel whose series this version does not have is left out.

    Lines come from the thresholds of ``rules`` (so a changed threshold moves its line).
    """
    engine = templates.engine
    shown = replace(
        templates,
        by=("instance",),
        select=('job=~"$job"', 'instance=~"$instance"', *templates.select),
    )
    limits = {f"{rule.name}.{name}": t.value for rule in rules for name, t in rule.thresholds.items()}
    panels: list[dict[str, object]] = []
    at = 0
    ranks = ", ".join(engine.rank_labels)
    each = _EACH % engine.rank_labels[0] if engine.rank_labels else _SERVER
    for row in _rows(each, ranks):
        if not ranks and row.title == "Engines side by side":
            continue
        made = [p for panel in row.panels if (p := _panel(panel, shown, limits)) is not None]
        if not made:
            continue
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": at},
            }
        )
        at += 1
        for index, panel in enumerate(made):
            width = 12 if len(made) in (2, 4) else 8
            per_line = 24 // width
            panel["id"] = len(panels) + 1
            panel["gridPos"] = {
                "h": 8,
                "w": width,
                "x": width * (index % per_line),
                "y": at + 8 * (index // per_line),
            }
            panels.append(panel)
        at += 8 * (-(-len(made) // per_line))
    version = f" {templates.version}" if templates.version else ""
    return {
        "uid": f"kvdoctor-{engine.name}",
        "title": f"{engine.title}: KV cache under pressure",
        "description": f"Made by kvdoctor for {engine.title}{version}.",
        "tags": ["kvdoctor", engine.name],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables(shown, engine)},
        "panels": panels,
    }


def dashboard_text(templates: Templates, rules: Sequence[Rule]) -> str:
    """:func:`dashboard` as JSON text."""
    return json.dumps(dashboard(templates, rules), indent=2, ensure_ascii=False) + "\n"


_SOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}


def _variables(templates: Templates, engine: Engine) -> list[dict[str, object]]:
    plain = replace(templates, select=())
    base = plain.fill("<req.running>") or ""
    narrowed = replace(templates, select=('job=~"$job"',)).fill("<req.running>") or ""
    out: list[dict[str, object]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    ]
    for name, label, series in (("job", "Job", base), ("instance", "Server", narrowed)):
        query = f"label_values({series}, {name})"
        out.append(
            {
                "name": name,
                "label": label,
                "type": "query",
                "datasource": dict(_SOURCE),
                "definition": query,
                "query": {"query": query, "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return out


def _panel(panel: Panel, templates: Templates, limits: Mapping[str, float]) -> dict[str, object] | None:
    targets: list[dict[str, object]] = []
    for query in panel.queries:
        expr = templates.fill(query.expr)
        if expr is not None:
            targets.append(
                {
                    "refId": chr(ord("A") + len(targets)),
                    "datasource": dict(_SOURCE),
                    "expr": expr,
                    "legendFormat": query.legend,
                    "range": True,
                }
            )
    if not targets:
        return None
    lines = [
        value for line in panel.lines if (value := limits.get(line) if isinstance(line, str) else line) is not None
    ]
    colours = ["orange", "red"] if len(lines) > 1 else ["red"]
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for colour, value in zip(colours, lines, strict=False)]
    defaults: dict[str, object] = {
        "unit": panel.unit,
        "min": 0,
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 5,
            "showPoints": "never",
            "spanNulls": False,
            "thresholdsStyle": {"mode": "line" if lines else "off"},
        },
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.top is not None:
        defaults["max"] = panel.top
    return {
        "id": 0,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": dict(_SOURCE),
        "gridPos": {},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }
