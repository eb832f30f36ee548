"""The promtool unit test that goes with an exported rule file.

Two kinds of proof. Each rule's own examples are put in as recorded facts: the alert must fire exactly where the rule book says
that the rule fires. And whole scenes are put in as raw series of the engine: every recorded fact must come out at the value
the scene was made for, and the alerts must follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from kvdoctor.engines.base import SeriesName
from kvdoctor.export.alerts import AlertRule, AlertSet
from kvdoctor.export.condition import Used
from kvdoctor.export.promql import Templates, as_duration, quoted, seconds
from kvdoctor.export.yamltext import Tree, dump
from kvdoctor.facts import Fact, Known, measured
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.expr import TRUE
from kvdoctor.rulebook.rule import Example

_SERVER: Mapping[str, str] = {"instance": "engine:8000", "job": "llm"}
_STEP_S = 30
_ROUND_S = 300
"""Rules are evaluated every five minutes: enough to see ``for`` pass, and quick to run."""


def promtest_file(made: AlertSet, rule_file: str, labels: Mapping[str, str]) -> str:
    """The test as YAML. ``rule_file`` is the path of the rules as the test should name it, ``labels`` those put on alerts."""
    tests: list[Tree] = [test for alert in made.alerts for test in _examples(alert, labels)]
    tests += [test for scene in SCENES for test in _scene(made, scene, labels)]
    document: Tree = {"rule_files": [rule_file], "evaluation_interval": as_duration(_ROUND_S), "tests": tests}
    return f"# promtool test rules THIS_FILE: proves the kvdoctor alerts for {made.engine.title}\n{dump(document)}\n"


# ---------------------------------------------------------------------------------------------- examples of the rules


def _examples(alert: AlertRule, labels: Mapping[str, str]) -> Iterator[Tree]:
    """The examples of a rule as one test: each is a server (or job) named after it."""
    held = _after(seconds(alert.duration))
    series: list[Tree] = []
    firing: list[Mapping[str, str]] = []
    for example in alert.rule.examples:
        if example.scope != alert.scope or _past_or_starting(example):
            continue
        facts = _visible(alert, example.facts)
        if facts is None:
            continue
        home = _home(alert, example.name)
        series += [
            {"series": f"{use.record}{_labels(home)}", "values": f"{value:.12g}x{held // 60}"}
            for use, value in _recorded(alert, facts)
        ]
        if fires(alert, facts):
            firing.append(home)
    if series:
        yield {
            "name": f"{alert.rule.id} {alert.rule.name}: its examples, {len(firing)} of which fire",
            "interval": "1m",
            "input_series": series,
            "alert_rule_test": [_expect(alert, as_duration(held), firing, labels)],
        }


def _after(length: float) -> int:
    """The first round in which an alert that began with the first round has held for that long."""
    return (math.ceil(length / _ROUND_S) + 1) * _ROUND_S


def _past_or_starting(example: Example) -> bool:
    phase = example.facts.get("target.phase")
    lifetime = any(isinstance(fact, Known) and fact.span == "L" for fact in example.facts.values())
    return lifetime or (isinstance(phase, Known) and phase.hi == "starting")


def _home(alert: AlertRule, name: str) -> Mapping[str, str]:
    return {"job": name} if alert.scope == "group" else {"instance": name, "job": _SERVER["job"]}


def _visible(alert: AlertRule, facts: Mapping[str, Fact]) -> dict[str, Fact] | None:
    """The facts of an example that the alert reads; None when one is a bound of which the alert has only exact values."""
    out: dict[str, Fact] = {}
    for use in alert.condition.used:
        fact = facts.get(use.fact)
        if not isinstance(fact, Known):
            continue
        if not fact.exact and not use.end:
            return None
        out[use.fact] = fact
    constants: Mapping[str, float | str] = {} if alert.scope == "group" else alert.templates.constants
    return {**out, **{name: measured(value, "w", "export") for name, value in constants.items()}}


def fires(alert: AlertRule, facts: Mapping[str, Fact]) -> bool:
    """Does the rule book let the rule fire on these facts?"""
    rule = alert.rule
    applies, when = rule.conditions(alert.scope)
    for condition in (applies, when):
        if condition is not None and condition.bind(rule.thresholds).code(facts) != TRUE:
            return False
    if rule.min_events is not None and (alert.scope == "target" or rule.group_when is None):
        floor = facts.get(rule.min_events.fact)
        if not isinstance(floor, Known) or float(floor.lo) < rule.min_events.value:
            return False
    if rule.gated and alert.scope == "target":
        pressure = facts.get("kv.pressure")
        return isinstance(pressure, Known) and pressure.lo is True
    return True


def _recorded(alert: AlertRule, facts: Mapping[str, Fact]) -> Iterator[tuple[Used, float]]:
    for use in alert.condition.used:
        fact = facts.get(use.fact)
        if not isinstance(fact, Known):
            continue
        value = fact.hi if use.end == "hi" else fact.lo
        if use.choice:
            if value == use.choice:
                yield use, 1.0
        elif not isinstance(value, str):
            yield use, float(value)


def _expect(alert: AlertRule, at: str, firing: Sequence[Mapping[str, str]], labels: Mapping[str, str]) -> Tree:
    """The alert fires for exactly these servers (none: it is silent)."""
    test: dict[str, Tree] = {"eval_time": at, "alertname": alert.name}
    expected: list[Tree] = []
    for home in firing:
        notes = alert.annotations()
        for label, value in home.items():
            notes = {k: text.replace(f"{{{{ $labels.{label} }}}}", value) for k, text in notes.items()}
        expected.append({"exp_labels": {**alert.labels(labels), **home}, "exp_annotations": notes})
    if expected:
        test["exp_alerts"] = expected
    return test


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{name}={quoted(value)}" for name, value in labels.items()) + "}"


# ---------------------------------------------------------------------------------------------- scenes of raw series


@frozen
class Gathered:
    """A histogram: observations per second up to each edge, and the sum of what was observed per second."""

    edges: Mapping[str, float]
    sum: float


Track = float | Gathered


@frozen
class Scene:
    """Roles at a steady state (gauges their value, counters their rate per second) and the facts that must come out.

    ``rates`` are facts that grow with the window: their value is this times its seconds.
    """

    name: str
    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Gathered]
    facts: Mapping[str, float | bool]
    rates: Mapping[str, float] = field(default_factory=dict)

    def expected(self, window_s: int) -> dict[str, float | bool]:
        """Every fact of the scene over a window."""
        return {**self.facts, **{name: rate * window_s for name, rate in self.rates.items()}}


_FINISHED = 0.4

SCENES: tuple[Scene, ...] = (
    Scene(
        name="a full pool that thrashes",
        gauges={
            "req.running": 32,
            "req.waiting": 8,
            "req.swapped": 0,
            "kv.usage": 0.98,
            "kv.used_tokens": 98_000,
            "kv.pool_tokens": 100_000,
        },
        counters={
            "req.finished": _FINISHED,
            "preempt.total": 0.5,
            "tok.prompt": 100,
            "tok.prefill_effective": 100,
            "tok.prefill_compute": 250,
            "tok.generated": 200,
            "retract.input_tokens": 110,
            "retract.output_tokens": 40,
            "observer.recomputed": 150,
            "observer.repeats": 0.25,
        },
        histograms={
            "latency.itl": Gathered(
                {"0.01": 50, "0.05": 150, "0.1": 198, "0.5": 198.5, "1.0": 199.8, "5.0": 200, "+Inf": 200}, 9
            ),
            "latency.ttft": Gathered({"1.0": 0.1, "5.0": 0.3, "10.0": 0.4, "+Inf": 0.4}, 1.4),
            "latency.queue": Gathered({"1.0": 0.2, "5.0": 0.4, "+Inf": 0.4}, 0.7),
            "latency.prefill": Gathered({"1.0": 0.4, "+Inf": 0.4}, 0.25),
            "work.prompt": Gathered({"200.0": 0.2, "500.0": 0.4, "+Inf": 0.4}, 100),
            "work.output": Gathered({"500.0": 0.2, "1000.0": 0.4, "+Inf": 0.4}, 200),
            "observer.preemptions": Gathered({"0.0": 0.2, "1.0": 0.25, "2.0": 0.3, "+Inf": 0.4}, 0.5),
            "preempt.per_request": Gathered({"0.0": 0.2, "1.0": 0.25, "2.0": 0.3, "+Inf": 0.4}, 0.5),
        },
        facts={
            "req.running": 32,
            "req.running_max": 32,
            "req.waiting": 8,
            "req.waiting_max": 8,
            "req.waiting_capacity": 8,
            "req.waiting_growth": 0,
            "kv.usage_last": 0.98,
            "kv.usage_max": 0.98,
            "kv.usage_mean": 0.98,
            "kv.pressure": True,
            "preempt.rate": 0.5,
            "preempt.per_finished": 1.25,
            "preempt.hit_share": 0.5,
            "preempt.hit_twice_share": 0.375,
            "preempt.hit_3plus_of_hit": 0.5,
            "recompute.token_share": 150 / 450,
            "tok.prompt_rate": 100,
            "tok.gen_rate": 200,
            "tok.gen_drop": 0,
            "tok.prefill_speed": 400,
            "latency.itl_p50": 0.03,
            "latency.itl_p99": 0.1,
            "latency.itl_p999": 1.0,
            "latency.itl_tail_ratio": 0.1 / 0.03,
            "latency.stalls_per_finished": 0.5,
            "latency.ttft_p50": 3,
            "latency.queue_p50": 1,
            "latency.queue_share": 0.5,
            "work.prompt_mean": 250,
            "work.output_mean": 500,
            "req.swapped_max": 0,
        },
        rates={
            "req.finished": _FINISHED,
            "preempt.count": 0.5,
            "preempt.repeats_30s": 0.25,
            "recompute.tokens": 150,
            "tok.prompt": 100,
            "tok.generated": 200,
            "latency.stalls": 0.2,
        },
    ),
    Scene(
        name="a server at ease",
        gauges={
            "req.running": 4,
            "req.waiting": 0,
            "req.swapped": 0,
            "kv.usage": 0.25,
            "kv.used_tokens": 25_000,
            "kv.pool_tokens": 100_000,
        },
        counters={
            "req.finished": _FINISHED,
            "preempt.total": 0,
            "tok.prompt": 100,
            "tok.prefill_effective": 100,
            "tok.prefill_compute": 100,
            "tok.generated": 200,
            "retract.input_tokens": 0,
            "retract.output_tokens": 0,
            "observer.recomputed": 0,
            "observer.repeats": 0,
        },
        histograms={
            "latency.itl": Gathered({"0.02": 100, "0.04": 200, "1.0": 200, "+Inf": 200}, 4),
            "latency.ttft": Gathered({"0.1": 0.2, "0.2": 0.4, "+Inf": 0.4}, 0.04),
            "latency.queue": Gathered({"0.1": 0.4, "+Inf": 0.4}, 0.004),
            "latency.prefill": Gathered({"1.0": 0.4, "+Inf": 0.4}, 0.025),
            "work.prompt": Gathered({"200.0": 0.2, "500.0": 0.4, "+Inf": 0.4}, 100),
            "work.output": Gathered({"500.0": 0.2, "1000.0": 0.4, "+Inf": 0.4}, 200),
            "observer.preemptions": Gathered({"0.0": 0.4, "1.0": 0.4, "2.0": 0.4, "+Inf": 0.4}, 0),
            "preempt.per_request": Gathered({"0.0": 0.4, "1.0": 0.4, "2.0": 0.4, "+Inf": 0.4}, 0),
        },
        facts={
            "req.running": 4,
            "req.running_max": 4,
            "req.waiting": 0,
            "req.waiting_max": 0,
            "req.waiting_capacity": 0,
            "req.waiting_growth": 0,
            "kv.usage_last": 0.25,
            "kv.usage_max": 0.25,
            "kv.usage_mean": 0.25,
            "kv.pressure": False,
            "preempt.rate": 0,
            "preempt.per_finished": 0,
            "preempt.hit_share": 0,
            "preempt.hit_twice_share": 0,
            "recompute.token_share": 0,
            "tok.prompt_rate": 100,
            "tok.gen_rate": 200,
            "tok.gen_drop": 0,
            "tok.prefill_speed": 4000,
            "latency.itl_p50": 0.02,
            "latency.itl_p99": 0.0396,
            "latency.itl_p999": 0.03996,
            "latency.itl_tail_ratio": 1.98,
            "latency.stalls_per_finished": 0,
            "latency.ttft_p50": 0.1,
            "latency.queue_p50": 0.05,
            "work.prompt_mean": 250,
            "work.output_mean": 500,
            "req.swapped_max": 0,
        },
        rates={
            "req.finished": _FINISHED,
            "preempt.count": 0,
            "preempt.repeats_30s": 0,
            "recompute.tokens": 0,
            "tok.prompt": 100,
            "tok.generated": 200,
            "latency.stalls": 0,
        },
    ),
)


def _scene(made: AlertSet, scene: Scene, labels: Mapping[str, str]) -> Iterator[Tree]:
    templates = made.templates
    window = int(seconds(templates.window))
    expected = scene.expected(window)
    told = [
        alert
        for alert in made.alerts
        if alert.scope == "target" and all(not use.window and use.fact in expected for use in alert.condition.used)
    ]
    # the window has to fill before an alert can begin to hold
    end = _after(max((seconds(alert.duration) for alert in told), default=0) + 2 * window)
    series = _raw(templates, scene, end // _STEP_S + 1)
    if not series:
        return
    test: dict[str, Tree] = {
        "name": scene.name,
        "interval": f"{_STEP_S}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
    }
    at = as_duration(end)
    checks = [
        _check(use, value, at)
        for use, _ in made.records
        if not use.window and not use.group and not use.choice and (value := expected.get(use.fact)) is not None
    ]
    if checks:
        test["promql_expr_test"] = checks
    facts: dict[str, Fact] = {name: measured(value, "w", "scene") for name, value in expected.items()}
    if told:
        # an alert sees what its own recordings tell, which may be less than the scene holds
        test["alert_rule_test"] = [
            _expect(alert, at, [_SERVER] if (seen := _visible(alert, facts)) and fires(alert, seen) else [], labels)
            for alert in told
        ]
    yield test


def _check(use: Used, value: float | bool, at: str) -> Tree:
    wanted = float(value)
    expr = f"abs({use.record} / {wanted:.12g} - 1) < bool 0.000001" if wanted else f"abs({use.record}) < bool 0.000001"
    return {"expr": expr, "eval_time": at, "exp_samples": [{"labels": _labels(_SERVER), "value": 1}]}


def _raw(templates: Templates, scene: Scene, count: int) -> dict[str, str]:
    """Series name with labels -> values. A role whose series is told in parts by other roles is left to them."""
    engine = templates.engine
    found: list[tuple[SeriesName, str, Track]] = []
    kinds: tuple[tuple[str, Mapping[str, Track]], ...] = (
        ("gauge", scene.gauges),
        ("counter", scene.counters),
        ("histogram", scene.histograms),
    )
    for kind, tracks in kinds:
        for role, track in tracks.items():
            name = templates.name(role)
            if name is not None:
                found.append((name, kind, track))
    parts = {name.name for name, _, _ in found if name.where}
    out: dict[str, str] = {}
    for name, kind, track in found:
        if name.name in parts and not name.where:
            continue
        labels = {**_SERVER, **{k: v for k, v in name.where.items() if v}}
        if engine.rank_labels:
            labels[engine.rank_labels[0]] = "0"
        if name.by:
            labels[name.by] = "stop"
        if isinstance(track, Gathered):
            for edge, rate in track.edges.items():
                out.setdefault(f"{name.name}_bucket{_labels({**labels, 'le': edge})}", _rising(rate, count))
            out.setdefault(f"{name.name}_count{_labels(labels)}", _rising(track.edges["+Inf"], count))
            out.setdefault(f"{name.name}_sum{_labels(labels)}", _rising(track.sum, count))
        elif kind == "counter":
            out.setdefault(f"{name.name}{_labels(labels)}", _rising(track, count))
        else:
            out.setdefault(f"{name.name}{_labels(labels)}", f"{track / name.scale:.12g}x{count}")
    reason = templates.name("req.waiting_reason")
    if reason is not None and reason.by:
        labels = {**_SERVER, **dict.fromkeys(engine.rank_labels[:1], "0"), reason.by: "capacity"}
        out.setdefault(f"{reason.name}{_labels(labels)}", f"{scene.gauges['req.waiting']:.12g}x{count}")
    return out


def _rising(rate: float, count: int) -> str:
    return f"0+{rate * _STEP_S:.12g}x{count}"
