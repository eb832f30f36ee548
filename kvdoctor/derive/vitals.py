"""The monitored vitals with value, threshold and status, and the series a report draws."""

from __future__ import annotations

import math
from typing import Literal

from kvdoctor.derive.view import View
from kvdoctor.facts import Fact, Known
from kvdoctor.findings import Vital

Status = Literal["ok", "watch", "bad", "unknown"]

_VITALS: tuple[tuple[str, str, float | None, float | None, str], ...] = (
    ("KV pool in use, largest", "kv.usage_max", 0.85, 0.95, "1"),
    ("KV pool in use, last", "kv.usage_last", 0.85, 0.95, "1"),
    ("preemptions per second", "preempt.rate", 0.5, 5.0, "/s"),
    ("preemptions per finished request", "preempt.per_finished", 0.1, 0.75, "ratio"),
    ("recomputed tokens per second", "recompute.rate", None, None, "tok/s"),
    ("recompute share of computed tokens", "recompute.token_share", 0.1, 0.2, "1"),
    ("average sequence length", "work.sequence_mean", None, None, "tok"),
    ("requests hit twice or more", "preempt.hit_twice_share", 0.01, 0.05, "1"),
    ("same request hit again within 30 s", "preempt.repeats_30s", 1.0, 5.0, "count"),
    ("requests waiting, largest", "req.waiting_max", None, None, "count"),
    ("GPU utilisation", "gpu.util", None, None, "1"),
    ("GPU memory in use", "mem.used", None, None, "B"),
)
"""Name, fact, watch at, bad at, unit. The first figure is a sign to look, the second the published or measured limit. A full
pool alone is no fault, so its status never exceeds ``watch``."""


def vitals(view: View) -> tuple[Vital, ...]:
    """Each vital judged alone (verdicts judge them together)."""
    out: list[Vital] = []
    for name, fact_name, watch, bad, unit in _VITALS:
        fact = view.facts[fact_name]
        status = _status(fact, watch, bad)
        if fact_name.startswith("kv.usage") and status == "bad":
            status = "watch"
        out.append(Vital(name, fact_name, fact, bad, unit, status))
    return tuple(out)


def _status(fact: Fact, watch: float | None, bad: float | None) -> Status:
    if not isinstance(fact, Known):
        return "unknown"
    if watch is None or bad is None or isinstance(fact.hi, (str, bool)):
        return "unknown"  # shown, not judged: there is no limit that would hold for every server
    if fact.span == "L":
        return "unknown"
    low, high = float(fact.lo), float(fact.hi)
    if low >= bad:
        return "bad"
    if high < watch:
        return "ok"
    return "watch" if low >= watch else "unknown" if high >= bad else "watch"


def series(view: View) -> dict[str, tuple[tuple[float, float], ...]]:
    """Dated points for time lines: usage, running, waiting, preemptions per scrape, generation rate, mean latencies (s)."""
    out: dict[str, list[tuple[float, float]]] = {
        "kv.usage": [],
        "req.running": [],
        "req.waiting": [],
        "preemptions": [],
        "tok.gen_rate": [],
        "latency.ttft": [],
        "latency.itl": [],
    }
    before: dict[str, tuple[float, float]] = {}
    served: dict[str, tuple[float, float]] = {}
    for scrape in view.target.scrapes:
        if scrape.time is None:
            continue
        for role, how in (("kv.usage", max), ("req.running", math.fsum), ("req.waiting", math.fsum)):
            readings = [r.value for r in scrape.values.get(role, {}).values()]
            if readings:
                out[role].append((scrape.time, how(readings)))
        for role, name in (("preempt.total", "preemptions"), ("tok.generated", "tok.gen_rate")):
            readings = [r.value for r in scrape.values.get(role, {}).values()]
            if not readings:
                continue
            total = math.fsum(readings)
            if name in before and scrape.time > before[name][0] and total >= before[name][1]:
                gap = scrape.time - before[name][0]
                out[name].append((scrape.time, (total - before[name][1]) / (gap if name == "tok.gen_rate" else 1.0)))
            before[name] = (scrape.time, total)
        for role in ("latency.ttft", "latency.itl"):
            kept = [h for h, _ in scrape.histograms.get(role, {}).values()]
            known = [(h.sum, h.total) for h in kept if h.sum is not None and h.total is not None]
            last = served.pop(role, None)
            if not kept or len(known) < len(kept):
                continue
            now = served[role] = (math.fsum(s for s, _ in known), math.fsum(n for _, n in known))
            if last is not None and now[1] > last[1] and now[0] >= last[0]:
                out[role].append((scrape.time, (now[0] - last[0]) / (now[1] - last[1])))
    if not out["kv.usage"]:
        for stat in view.stats:
            if stat.time is None:
                continue
            for field, name in (
                ("kv_usage", "kv.usage"),
                ("running", "req.running"),
                ("waiting", "req.waiting"),
                ("gen_rate", "tok.gen_rate"),
            ):
                value = stat.event.number(field)
                if value is not None:
                    out[name].append((stat.time, value))
    return {k: tuple(v) for k, v in out.items() if v}
