"""Reports built by hand, for shapes no sample has."""

from __future__ import annotations

import functools
from pathlib import Path

from corpus import report_on

from kvdoctor.facts import Fact, Unknown, bound, measured
from kvdoctor.findings import (
    Action,
    DeviceMemory,
    Evidence,
    MemoryPart,
    Missing,
    Plan,
    Report,
    SourceNote,
    TargetReport,
    TimelineEntry,
    Verdict,
    Vital,
    Watermark,
    WhatIf,
    Window,
)

GIB = float(2**30)
NOON = 1_795_957_200.0
"""2026-11-29 13:00:00 UTC"""


@functools.cache
def of_sample(sample: Path) -> Report:
    """The report on a shipped sample, made once."""
    return report_on(sample)


def verdict(rule: str = "some-rule", **changes: object) -> Verdict:
    base: dict[str, object] = {
        "rule": rule,
        "id": "KV999",
        "state": "fires",
        "title": f"Title of {rule}",
        "severity": "high",
        "stage": 5,
        "misdiagnosis": 4,
        "fallback": False,
        "say": "Do the thing.",
        "cause": "Because of that.",
        "not_this": "Not the other thing.",
        "confidence": "medium",
    }
    return Verdict(**{**base, **changes})  # type: ignore[arg-type]


def evidence(
    fact: str = "preempt.per_finished", number: float = 0.97, limit: float = 0.75, **changes: object
) -> Evidence:
    base: dict[str, object] = {
        "fact": fact,
        "op": ">=",
        "outcome": True,
        "unit": "ratio",
        "value": number,
        "lo": number,
        "hi": number,
        "threshold": limit,
        "threshold_name": "limit",
        "how": "measured",
        "span": "w",
        "source": "metrics.prom:7 vllm:num_preemptions_total",
    }
    return Evidence(**{**base, **changes})  # type: ignore[arg-type]


def action(**changes: object) -> Action:
    base: dict[str, object] = {
        "lever": "sched.max_running",
        "flag": "--max-num-seqs N",
        "start": "256",
        "to": "48",
        "direction": "down",
        "effect": "fewer requests hold blocks",
        "cost": "the queue grows",
        "next_limit": "TTFT",
        "verify": "after an hour: preempt.per_finished < thresholds.limit",
    }
    return Action(**{**base, **changes})  # type: ignore[arg-type]


def target(name: str = "vllm tiny", main: Verdict | None = None, **changes: object) -> TargetReport:
    said = main if main is not None else verdict()
    facts: dict[str, Fact] = {
        "kv.usage_max": measured(0.5, "w", "metrics.prom:3 vllm:kv_cache_usage_perc"),
        "recompute.token_share": bound(0.0, 0.29, "w", "metrics.prom:7"),
        "gpu.util": Unknown("no GPU reading in the snapshot", "add nvidia-smi output"),
    }
    base: dict[str, object] = {
        "name": name,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "model": "tiny",
        "gpus": (),
        "sources": (SourceNote("metrics", "metrics.prom", "ok", 600, 0),),
        "window": Window(NOON, NOON + 60, 60.0, 2),
        "verdict": said,
        "findings": (said,) if said.state == "fires" and said.id else (),
        "undecided": (),
        "silent": (),
        "facts": facts,
        "vitals": tuple(
            Vital(name, fact, facts[fact], limit, "1", status)  # type: ignore[arg-type]
            for name, fact, limit, status in (
                ("KV pool in use, largest", "kv.usage_max", 0.95, "ok"),
                ("recompute share", "recompute.token_share", 0.2, "unknown"),
                ("GPU utilisation", "gpu.util", None, "unknown"),
            )
        ),
    }
    return TargetReport(**{**base, **changes})  # type: ignore[arg-type]


def report(main: TargetReport | None = None, *others: TargetReport, **changes: object) -> Report:
    first = main if main is not None else target()
    base: dict[str, object] = {
        "main": first,
        "targets": (*others, first),
        "plan": Plan(levers=tuple(a for v in first.findings for a in v.actions)),
        "warnings": (),
        "usable": True,
    }
    return Report(**{**base, **changes})  # type: ignore[arg-type]


def full_report() -> Report:
    """Every part of a report filled in: muted and unmuted findings, undecided rules, memory, time line, plan, two targets."""
    main = verdict("main-cause", evidence=(evidence(), evidence("req.waiting_max", 9.0, 0.0, unit="count", op=">")),
                   actions=(action(), action(lever="topo.routing", flag=None, start=None, to=None, direction="set",
                                             instead="Change the router in front.")),
                   confirm=("curl -s URL/metrics | grep -E " + "'" + "x" * 150 + "'",))  # fmt: skip
    effect = verdict("an-effect", id="KV998", muted_by="main-cause", mute_reason="its cause is found")
    boundary = verdict("a-boundary", id="KV997", severity="info", stage=8, misdiagnosis=None)
    suspected = verdict("a-suspect", id="KV996", state="suspected", evidence=(evidence("preempt.count", 5.0, 3.0, unit="count"),),
                        missing=(Missing("preempt.repeats_30s", "no request is named", "switch the request log on"),),
                        would_fire_if="preempt.repeats_30s > 5 (count)")  # fmt: skip
    blind = verdict(
        "a-blind-one", id="KV995", state="blind", missing=(Missing("gpu.util", "no reading", "add nvidia-smi"),)
    )
    device = DeviceMemory(
        "GPU 0",
        80 * GIB,
        (
            MemoryPart("weights", 40 * GIB, "measured", "server.log:4"),
            MemoryPart("KV pool", 32 * GIB, "estimated", "server.log:5"),
            MemoryPart("free", 4 * GIB, "measured", "smi.csv:2"),
        ),
        4 * GIB,
    )
    first = target(
        main=main,
        findings=(effect, main, boundary),
        undecided=(suspected, blind),
        silent=(verdict("a-clear-one", id="KV994", state="clear"),),
        memory=(device,),
        timeline=(TimelineEntry(NOON + 5, "the KV pool is full", "metrics.prom:3 vllm:kv_cache_usage_perc"),),
    )
    plan = Plan(
        Watermark(0.85, 0.85, 0.85),
        Watermark(0.7, 0.7, 0.7),
        Watermark(0.03, 0.02, 0.05),
        "found by replaying this load",
        "estimated",
        main.actions,
        {"admission.free_share": 0.03},
        (WhatIf("as it is", 0.4, 0.35, 0.45, 12.0, 4.5, 0.3), WhatIf("policy", 0.9, 0.9, 0.9, 3.0, None, 0.02)),
    )
    other = target("vllm other", verdict("healthy", id="", severity="info", stage=9, misdiagnosis=None, cause=""))
    return report(first, other, plan=plan, warnings=("metrics.prom: the clock goes backwards",))
