"""The report as JSON, ``kvdoctor.report/1``: the schema beside this file describes every key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from kvdoctor.facts import FACTS, Fact, Known, Unknown, Value
from kvdoctor.findings import (
    Action,
    DeviceMemory,
    Evidence,
    Plan,
    Report,
    TargetReport,
    TimelineEntry,
    Verdict,
    Vital,
    Watermark,
    Window,
)
from kvdoctor.report.words import clock, day, has_year, rfc3339

SCHEMA = "kvdoctor.report/1"

_DIRECTIONS: Mapping[str, str] = {"up": "higher", "down": "lower"}
"""What ``to`` says when only the direction is known."""


def to_json(report: Report, tool_version: str) -> str:
    """The report as JSON text: plain ASCII, never wrapped, ends in a newline."""
    return json.dumps(to_dict(report, tool_version), indent=2, allow_nan=False) + "\n"


def to_dict(report: Report, tool_version: str) -> dict[str, Any]:
    """The report as plain data.

    Fractions are 0..1, sizes bytes, durations seconds, times RFC 3339 in UTC. Where only bounds are known ``value`` is None and
    ``lo`` and ``hi`` hold them; what is unknown is None everywhere and says why.
    """
    main = _target(report.main)
    return {
        "schema": SCHEMA,
        "tool": {"name": "kvdoctor", "version": tool_version},
        "verdict": main["verdict"],
        "target": main["target"],
        "window": main["window"],
        "findings": main["findings"],
        "undecided": main["undecided"],
        "facts": main["facts"],
        "vitals": [_vital(vital) for vital in report.main.vitals],
        "memory": [_memory(device) for device in report.main.memory],
        "timeline": [_entry(entry) for entry in report.main.timeline],
        "plan": _plan(report.plan),
        "targets": [main if target is report.main else _target(target) for target in report.targets],
        "warnings": list(report.warnings),
    }


def _target(target: TargetReport) -> dict[str, Any]:
    return {
        "name": target.name,
        "target": {
            "name": target.name,
            "engine": target.engine,
            "engine_version": target.engine_version,
            "model": target.model,
            "gpus": list(target.gpus),
            "sources": [
                {
                    "kind": source.kind,
                    "origin": source.origin,
                    "status": source.status,
                    "lines": source.lines,
                    "bad_lines": source.bad_lines,
                }
                for source in target.sources
            ],
        },
        "window": _window(target.window),
        "verdict": _verdict(target.verdict),
        "findings": [_finding(verdict) for verdict in target.findings],
        "undecided": [_undecided(verdict) for verdict in target.undecided],
        "facts": {name: _fact(name, fact) for name, fact in sorted(target.facts.items())},
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "start": rfc3339(window.start),
        "end": rfc3339(window.end),
        "seconds": _number(window.seconds),
        "scrapes": window.scrapes,
    }


def _head(verdict: Verdict) -> dict[str, Any]:
    return {"rule": verdict.rule, "id": verdict.id or None, "misdiagnosis": verdict.misdiagnosis}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        **_head(verdict),
        "severity": verdict.severity,
        "confidence": verdict.confidence,
        "title": verdict.title,
        "say": " ".join(f"{verdict.cause} {verdict.say}".split()),
    }


def _finding(verdict: Verdict) -> dict[str, Any]:
    return {
        **_head(verdict),
        "severity": verdict.severity,
        "confidence": verdict.confidence,
        "title": verdict.title,
        "evidence": [_evidence(item) for item in verdict.evidence if item.outcome],
        "muted_by": verdict.muted_by,
        "actions": [_action(action) for action in verdict.actions],
        "confirm": list(verdict.confirm),
    }


def _undecided(verdict: Verdict) -> dict[str, Any]:
    return {
        **_head(verdict),
        "state": verdict.state,
        "holds": [_evidence(item) for item in verdict.evidence if item.outcome],
        "would_fire_if": verdict.would_fire_if,
        "missing": [{"fact": gap.fact, "reason": gap.reason, "hint": gap.hint} for gap in verdict.missing],
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "fact": item.fact,
        **_bounds(item.lo, item.hi),
        "unit": item.unit or (FACTS[item.fact].unit if item.fact in FACTS else ""),
        "op": item.op,
        "threshold": _number(item.threshold),
        "how": item.how,
        "span": item.span,
        "source": item.source,
    }


def _fact(name: str, fact: Fact) -> dict[str, Any]:
    row = FACTS.get(name)
    unit = row.unit if row is not None else ""
    if isinstance(fact, Unknown):
        return {
            "value": None,
            "lo": None,
            "hi": None,
            "unit": unit,
            "how": None,
            "span": row.span if row is not None else None,
            "source": None,
            "reason": fact.reason,
            "hint": fact.hint,
        }
    return {**_bounds(fact.lo, fact.hi), "unit": unit, "how": fact.how, "span": fact.span, "source": fact.source}


def _bounds(lo: Value | None, hi: Value | None) -> dict[str, Any]:
    """An interval is no value: its upper end must not be read as one."""
    low, high = _number(lo), _number(hi)
    return {"value": high if low == high else None, "lo": low, "hi": high}


def _number(value: Value | None) -> Value | None:
    """Plain data: whole floats as integers, what is not finite as None."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value


def _action(action: Action) -> dict[str, Any]:
    return {
        "lever": action.lever,
        "flag": action.flag,
        "from": action.start,
        "to": action.to if action.to is not None else _DIRECTIONS.get(action.direction, action.direction),
        # without a flag the way around it is what there is to do
        "effect": action.instead if action.flag is None and action.instead else action.effect,
        "cost": action.cost,
        "next_limit": action.next_limit,
        "verify": action.verify,
    }


def _vital(vital: Vital) -> dict[str, Any]:
    fact = vital.value
    known = _bounds(fact.lo, fact.hi)["value"] if isinstance(fact, Known) else None
    return {
        "name": vital.name,
        "fact": vital.fact,
        "value": known,
        "threshold": _number(vital.threshold),
        "status": vital.status,
    }


def _memory(device: DeviceMemory) -> dict[str, Any]:
    parts: dict[str, float] = {}
    for part in device.parts:
        parts[part.name] = math.fsum((parts[part.name], part.bytes)) if part.name in parts else part.bytes
    return {
        "device": device.device,
        "total": _number(device.total),
        "parts": {name: _number(size) for name, size in parts.items()},
        "unexplained": _number(device.unexplained),
    }


def _entry(entry: TimelineEntry) -> dict[str, Any]:
    """A time without a year has no RFC 3339 form, so it stands in the text."""
    what = entry.what
    if entry.t is not None and not has_year(entry.t):
        what = f"{day(entry.t)} {clock(entry.t)} {what}"
    return {"t": rfc3339(entry.t), "what": what, "source": entry.source}


def _watermark(mark: Watermark | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {"value": _number(mark.value), "lo": _number(mark.lo), "hi": _number(mark.hi)}


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "watermarks": {
            "alert_high": _watermark(plan.alert_high),
            "alert_low": _watermark(plan.alert_low),
            "admission_free": _watermark(plan.admission_free),
            "basis": plan.basis,
            "how": plan.how,
        },
        "levers": [_action(action) for action in plan.levers],
        "policy": dict(plan.policy) if plan.policy is not None else None,
        "what_if": None
        if plan.what_if is None
        else [
            {
                "name": run.name,
                "goodput": _number(run.goodput),
                "lo": _number(run.lo),
                "hi": _number(run.hi),
                "ttft_p99_s": _number(run.ttft_p99_s),
                "stall_p99_s": _number(run.stall_p99_s),
                "recompute_time_share": _number(run.recompute_time_share),
            }
            for run in plan.what_if
        ],
    }
