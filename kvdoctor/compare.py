"""Did the change work? Two reports of the same server, before and after, fact by fact and beyond noise or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from kvdoctor.facts import FACTS, Fact, Known
from kvdoctor.findings import Report, TargetReport
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.confidence import poisson_interval, wilson_interval

Outcome = Literal["better", "worse", "trade-off", "no-difference", "not-comparable"]
Direction = Literal["up", "down"]

KEY_FACTS: Mapping[str, Direction] = {
    "preempt.per_finished": "down",
    "preempt.hit_twice_share": "down",
    "preempt.repeats_30s": "down",
    "recompute.token_share": "down",
    "recompute.time_share": "down",
    "latency.stalls_per_finished": "down",
    "latency.ttft_p50": "down",
    "latency.ttft_p99": "down",
    "latency.itl_p99": "down",
    "latency.e2e_p99": "down",
    "tok.gen_rate": "up",
    "req.error_share": "down",
}
"""What a change is judged by, and which way is good."""

MIN_REQUESTS = 30
MIN_SECONDS = 20.0
LOAD_WITHIN = 0.25
STEADY = 0.10
"""Repeated runs of one load on one server moved throughput and medians by up to a tenth."""


@frozen
class FactChange:
    """One key fact before and after. ``judged`` is better, worse, same (within noise) or unknown."""

    name: str
    unit: str
    before: Fact
    after: Fact
    change: float | None
    judged: Literal["better", "worse", "same", "unknown"]
    why: str


@frozen
class Diff:
    """The answer, what it rests on, and what speaks against comparing."""

    verdict: Outcome
    say: str
    gone: tuple[str, ...]
    stayed: tuple[str, ...]
    new: tuple[str, ...]
    facts: tuple[FactChange, ...]
    doubts: tuple[str, ...]
    refusals: tuple[str, ...]


def diff(before: Report, after: Report) -> Diff:
    """Compare the main targets of two reports."""
    a, b = _server(before), _server(after)
    refusals, doubts = _comparable(a, b)
    fired = {v.rule for v in a.findings if v.muted_by is None}, {v.rule for v in b.findings if v.muted_by is None}
    changes = tuple(_change(name, way, a.facts.get(name), b.facts.get(name)) for name, way in KEY_FACTS.items()
                    if name in a.facts or name in b.facts)  # fmt: skip
    better = [c.name for c in changes if c.judged == "better"]
    worse = [c.name for c in changes if c.judged == "worse"]
    verdict: Outcome
    if refusals:
        verdict = "not-comparable"
    elif better and worse:
        verdict = "trade-off"
    elif better:
        verdict = "better"
    elif worse:
        verdict = "worse"
    elif all(c.judged == "unknown" for c in changes):
        verdict = "not-comparable"
        refusals.append("no key fact is known on both sides")
    else:
        verdict = "no-difference"
    return Diff(
        verdict,
        _say(verdict, better, worse, refusals),
        tuple(sorted(fired[0] - fired[1])),
        tuple(sorted(fired[0] & fired[1])),
        tuple(sorted(fired[1] - fired[0])),
        changes,
        tuple(doubts),
        tuple(refusals),
    )


def _server(report: Report) -> TargetReport:
    """The target a comparison is about: the main one, or the gravest server when the verdict is the group's."""
    if report.main.name != "group":
        return report.main
    return next(t for t in report.targets if t.name != "group")


def _say(verdict: Outcome, better: list[str], worse: list[str], refusals: tuple[str, ...] | list[str]) -> str:
    if verdict == "not-comparable":
        return "The two cannot be compared: " + "; ".join(refusals) + "."
    if verdict == "no-difference":
        return "No key fact moved beyond noise."
    parts = []
    if better:
        parts.append("better: " + ", ".join(better))
    if worse:
        parts.append("worse: " + ", ".join(worse))
    return ("What it bought and what it cost. " if verdict == "trade-off" else "") + "; ".join(parts).capitalize() + "."


def _number(facts: Mapping[str, Fact], name: str) -> float | None:
    fact = facts.get(name)
    return float(fact.hi) if isinstance(fact, Known) and not isinstance(fact.hi, str) else None


def _comparable(a: TargetReport, b: TargetReport) -> tuple[list[str], list[str]]:
    refusals: list[str] = []
    doubts: list[str] = []
    if a.engine != b.engine:
        refusals.append(f"different engines ({a.engine or 'unknown'} and {b.engine or 'unknown'})")
    if a.model and b.model and a.model.rsplit("/", 1)[-1] != b.model.rsplit("/", 1)[-1]:
        refusals.append(f"different models ({a.model} and {b.model})")
    for side, target in (("before", a), ("after", b)):
        done = _number(target.facts, "req.finished")
        if done is None:
            doubts.append(f"{side}: the number of finished requests is not known")
        elif done < MIN_REQUESTS:
            refusals.append(
                f"{side}: only {done:.0f} requests finished in the window (at least {MIN_REQUESTS} are needed)"
            )
        if target.window.seconds is not None and target.window.seconds < MIN_SECONDS:
            doubts.append(f"{side}: a window of {target.window.seconds:.0f} s is short")
    for name, what in (
        ("work.prompt_mean", "mean prompt length"),
        ("work.output_mean", "mean output length"),
        ("work.concurrency_max", "largest concurrency"),
    ):
        x, y = _number(a.facts, name), _number(b.facts, name)
        if x and y and abs(y - x) / max(x, y) > LOAD_WITHIN:
            refusals.append(f"the load differs: {what} {x:.0f} against {y:.0f}")
    if a.engine_version and b.engine_version and a.engine_version != b.engine_version:
        doubts.append(f"the version changed too ({a.engine_version} to {b.engine_version})")
    return refusals, doubts


def _change(name: str, way: Direction, before: Fact | None, after: Fact | None) -> FactChange:
    from kvdoctor.facts import Unknown

    unit = FACTS[name].unit
    a = before if before is not None else Unknown("not derived")
    b = after if after is not None else Unknown("not derived")
    if not isinstance(a, Known) or not isinstance(b, Known):
        missing = "before" if not isinstance(a, Known) else "after"
        return FactChange(name, unit, a, b, None, "unknown", f"not known {missing}")
    if "L" in (a.span, b.span):
        return FactChange(name, unit, a, b, None, "unknown", "counted since the process started, not over the window")
    low_a, high_a = _interval(name, a)
    low_b, high_b = _interval(name, b)
    change = float(b.hi) - float(a.hi)
    judged: Literal["better", "worse", "same", "unknown"]
    # what lies between the two values, against the spread of both together
    rise = float(b.lo) - float(a.hi)
    fall = float(a.lo) - float(b.hi)
    if rise > math.hypot(high_a - float(a.hi), float(b.lo) - low_b):
        judged, why = ("better" if way == "up" else "worse"), "beyond noise"
    elif fall > math.hypot(float(a.lo) - low_a, high_b - float(b.hi)):
        judged, why = ("worse" if way == "up" else "better"), "beyond noise"
    else:
        judged, why = "same", "within noise"
    return FactChange(name, unit, a, b, change, judged, why)


_QUANTILE = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def _interval(name: str, fact: Known) -> tuple[float, float]:
    """The 95 % interval of a fact by what it counts: events over requests, a share of requests, a quantile, a rate."""
    lo, hi = float(fact.lo), float(fact.hi)
    unit = FACTS[name].unit
    if fact.events is not None and fact.requests and unit == "ratio":
        a, b = poisson_interval(fact.events)
        return min(lo, a / fact.requests), max(hi, b / fact.requests)
    if unit == "count":
        a, _ = poisson_interval(lo)
        _, b = poisson_interval(hi)
        return a, b
    if unit == "1" and fact.requests and lo == hi:
        return wilson_interval(lo, fact.requests)
    if unit == "1" and fact.events:
        spread = 2 / math.sqrt(fact.events)
        return lo * (1 - spread), hi * (1 + spread)
    tail = name.rsplit("_", 1)[-1]
    if tail in _QUANTILE and fact.requests:
        q = _QUANTILE[tail]
        # how many observations lie beyond the quantile decides how firm it is
        spread = max(STEADY, 1 / math.sqrt(max(fact.requests * min(q, 1 - q), 1.0)))
        return lo * (1 - min(spread, 1.0)), hi * (1 + spread)
    return lo * (1 - STEADY), hi * (1 + STEADY)


def to_dict(result: Diff, tool_version: str) -> dict[str, object]:
    """The machine form (``kvdoctor.diff/1``)."""

    def value(fact: Fact) -> dict[str, object]:
        if isinstance(fact, Known):
            return {"value": fact.hi, "lo": fact.lo, "hi": fact.hi, "how": fact.how, "source": fact.source}
        return {"value": None, "lo": None, "hi": None, "how": None, "source": None, "reason": fact.reason}

    return {
        "schema": "kvdoctor.diff/1",
        "tool": {"name": "kvdoctor", "version": tool_version},
        "verdict": result.verdict,
        "say": result.say,
        "findings": {"gone": list(result.gone), "stayed": list(result.stayed), "new": list(result.new)},
        "facts": [
            {
                "fact": c.name, "unit": c.unit, "before": value(c.before), "after": value(c.after),
                "change": c.change, "judged": c.judged, "why": c.why,
            }
            for c in result.facts
        ],
        "doubts": list(result.doubts),
        "refusals": list(result.refusals),
    }  # fmt: skip
