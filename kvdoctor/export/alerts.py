"""Prometheus recording and alerting rules of one engine, made from the rule files, and a promtool test of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvdoctor.engines.base import Engine
from kvdoctor.export.condition import Compiler, Filter, Used
from kvdoctor.export.promql import WINDOWS, Templates, as_duration, seconds, why_missing
from kvdoctor.export.yamltext import Tree, dump
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.expr import FactRef, ThresholdRef
from kvdoctor.rulebook.rule import Rule, Scope

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CRD_LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


class ExportError(ValueError):
    """An export that cannot be made; ``str()`` says what is wrong with what was asked for."""


PAGES = "docs/rules"
"""The rules' pages in the repository."""


@frozen
class AlertRule:
    """One alert: a rule on one level. ``pages`` is where the rules' pages are served."""

    rule: Rule
    scope: Scope
    condition: Filter
    duration: str
    templates: Templates
    pages: str

    @property
    def name(self) -> str:
        """``recompute-overload`` -> ``KvdoctorRecomputeOverload``; on the replicas of a job with ``Replicas`` behind."""
        words = "".join(part.capitalize() for part in self.rule.name.split("-"))
        return f"Kvdoctor{words}{'Replicas' if self.scope == 'group' else ''}"

    @property
    def page(self) -> str:
        """Address of the rule's page."""
        return f"{self.pages}/{self.rule.id}-{self.rule.name}.md"

    def labels(self, extra: Mapping[str, str]) -> dict[str, str]:
        """What the alert is labelled with, beside the labels of the server."""
        return {"severity": self.rule.severity, "rule": self.rule.id, **extra}

    def annotations(self) -> dict[str, str]:
        """Summary, description and page; the only variable in them is the name of the server or job."""
        where = "{{ $labels.job }}" if self.scope == "group" else "{{ $labels.instance }}"
        body = self.rule.body
        return {
            "summary": f"{where}: {self.rule.title.rstrip('.')}",
            "description": " ".join(f"{body.cause} {body.say}".split()),
            "runbook_url": self.page,
        }


@frozen
class NoAlert:
    """A rule that is no alert, and why."""

    rule: Rule
    why: str


@dataclass(frozen=True)
class AlertSet:
    """Every rule of the book for one engine: as an alert with the recordings it reads, or with the reason why not."""

    templates: Templates
    alerts: tuple[AlertRule, ...]
    others: tuple[NoAlert, ...]
    records: tuple[tuple[Used, str], ...]

    @property
    def engine(self) -> Engine:
        """The engine the rules are for."""
        return self.templates.engine


def build(rules: Sequence[Rule], templates: Templates, pages: str = PAGES) -> AlertSet:
    """Compile every rule that can be an alert; recordings are collected once each. ``pages``: see :class:`AlertRule`."""
    alerts: list[AlertRule] = []
    others: list[NoAlert] = []
    for rule in sorted(rules, key=lambda r: r.id):
        made, why = _alerts_of(rule, templates, pages.rstrip("/"))
        alerts.extend(made)
        if not made:
            others.append(NoAlert(rule, why))
    used = {use: alert.templates for alert in alerts for use in alert.condition.used}
    return AlertSet(
        templates, tuple(alerts), tuple(others), tuple((use, _expression(t, use)) for use, t in used.items())
    )


def _expression(templates: Templates, use: Used) -> str:
    text = templates.group(use.fact) if use.group else templates.fact(use.fact, use.end, use.choice)
    assert text is not None, f"{use.record} was compiled without a template"
    return text


def _alerts_of(rule: Rule, templates: Templates, pages: str) -> tuple[list[AlertRule], str]:
    alert = rule.body.alert
    if alert is None:
        return [], "the rule does not say for how long it has to hold"
    if alert.duration is None:
        return [], alert.why_not or ""
    made: list[AlertRule] = []
    reasons: list[str] = []
    for scope in rule.scopes:
        own = _own_window(rule, scope, templates)
        condition = _condition(rule, scope, own, own.window if own is not templates else "")
        if condition.truth is None and not condition.missing:
            made.append(AlertRule(rule, scope, condition, alert.duration, own, pages))
        elif condition.missing:
            reasons.append(_missing(condition.missing, templates, scope))
        else:
            reasons.append(_settled(rule, scope, templates))
    return made, "; ".join(dict.fromkeys(reasons))


def _own_window(rule: Rule, scope: Scope, templates: Templates) -> Templates:
    """The templates over a window as long as the rule asks for (``target.window_s >= ...``, or that of one series)."""
    wanted = seconds(templates.window)
    for leaf in rule.conditions(scope)[1].leaves:
        if (
            isinstance(leaf.left, FactRef)
            and leaf.left.name in WINDOWS
            and leaf.op in (">", ">=")
            and isinstance(leaf.right, ThresholdRef)
        ):
            wanted = max(wanted, float(rule.thresholds[leaf.right.name].value))
    if wanted <= seconds(templates.window):
        return templates
    return replace(templates, window=as_duration(wanted))


def _missing(facts: Iterable[str], templates: Templates, scope: Scope) -> str:
    if scope == "group":
        return f"on a group it needs {', '.join(facts)}, which no query over several servers gives"
    reasons: dict[str, list[str]] = {}
    for fact in facts:
        reasons.setdefault(why_missing(templates.engine, templates.version, fact), []).append(fact)
    return "it needs " + "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _settled(rule: Rule, scope: Scope, templates: Templates) -> str:
    applies, when = rule.conditions(scope)
    read = (*when.facts, *(applies.facts if applies else ()), *((rule.min_events.fact,) if rule.min_events else ()))
    fixed = [f"{fact} is {value}" for fact, value in templates.constants.items() if fact in read]
    return f"it cannot come about on {templates.engine.title}: {', '.join(fixed)}"


def _condition(rule: Rule, scope: Scope, templates: Templates, window: str) -> Filter:
    """Everything that has to hold: the condition, where it applies, the floor of events, the gate of pressure."""
    compiler = Compiler(templates, rule.thresholds, group=scope == "group", window=window)
    applies, when = rule.conditions(scope)
    parts = [compiler.node(when.root)]
    if applies is not None:
        parts.append(compiler.node(applies.root))
    own = scope == "target" or rule.group_when is None
    if rule.min_events is not None and own:
        fact, value = rule.min_events.fact, rule.min_events.value
        if fact in templates.constants:
            parts.append(Filter(truth=float(templates.constants[fact]) >= value))
        elif compiler.has(fact):
            use = compiler.use(fact)
            parts.append(Filter(f"{use.record} >= {value:.12g}", (use,)))
        else:
            parts.append(Filter(missing=(fact,)))
    if rule.gated and scope == "target":
        if compiler.has("kv.pressure"):
            use = compiler.use("kv.pressure")
            parts.append(Filter(f"{use.record} == 1", (use,)))
        else:
            parts.append(Filter(missing=("kv.pressure",)))
    return compiler.join("and", parts)


# ---------------------------------------------------------------------------------------------- the rule file


def check_labels(labels: Mapping[str, str], *, crd: bool) -> None:
    """Raises :class:`ExportError` for a label Prometheus (or, on the CRD's metadata, Kubernetes) would refuse."""
    form = _CRD_LABEL if crd else _LABEL
    for name in labels:
        if not form.fullmatch(name):
            raise ExportError(f"{name!r} is not the name of a label")
        if not crd and name in ("alertname", "severity", "rule"):
            raise ExportError(f"the label {name} is set by kvdoctor")


def rule_file(made: AlertSet, labels: Mapping[str, str], *, crd: bool = False) -> str:
    """The rules as YAML: a Prometheus rule file, or a PrometheusRule for the operator.

    ``labels`` go on every alert, with ``crd`` on the metadata (where the operator's selector looks).
    """
    check_labels(labels, crd=crd)
    engine = made.engine
    extra: Mapping[str, str] = {} if crd else labels
    rules: list[Tree] = [{"record": use.record, "expr": text} for use, text in made.records]
    rules += [
        {
            "alert": alert.name,
            "expr": alert.condition.text,
            "for": alert.duration,
            "labels": alert.labels(extra),
            "annotations": alert.annotations(),
        }
        for alert in made.alerts
    ]
    groups: Tree = [{"name": f"kvdoctor-{engine.name}", "rules": rules}] if rules else []
    document: Tree = {"groups": groups}
    if crd:
        metadata: dict[str, Tree] = {"name": f"kvdoctor-{engine.name}"}
        if labels:
            metadata["labels"] = dict(labels)
        document = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": metadata,
            "spec": document,
        }
    return f"{_head(made)}\n{dump(document)}\n"


def _head(made: AlertSet) -> str:
    version = made.templates.version
    lines = [
        f"kvdoctor alerts for {made.engine.title}{' ' + version if version else ', newest names'}",
        f"window {made.templates.window}; counters enter as rates, gauges by their largest value",
        "",
    ]
    for alert in made.alerts:
        if alert.condition.left_out:
            facts = ", ".join(alert.condition.left_out)
            lines.append(f"{alert.name} is without the part of {alert.rule.id} that needs {facts}")
    if made.others:
        lines += ["", "No alert, and why not:"]
        lines += [f"  {other.rule.id} {other.rule.name}: {' '.join(other.why.split())}" for other in made.others]
    return "\n".join(f"# {line}".rstrip() for line in lines)
