"""A day of a healthy server, one sample a second: how many findings does ``watch`` show? The right answer is none.

    python -m benchmarks.quiet            24 hours
    python -m benchmarks.quiet 2          two hours

The load is the public Azure conversation trace (see data/README.md), played again and again by the demo's engine with a pool that
fits it. Time is simulated. Shown: samples, diagnoses, each finding above "info" with how many diagnoses carried it, and what the
diagnoses said.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from kvdoctor.demo.scenario import Scenario
from kvdoctor.demo.server import Demo
from kvdoctor.pipeline import Options
from kvdoctor.rulebook.rule import load_rules
from kvdoctor.sim import Request
from kvdoctor.snapshot import Member
from kvdoctor.watch.sample import LogBytes, Page, Sample
from kvdoctor.watch.watcher import Watcher

TRACE = Path(__file__).resolve().parent / "data" / "AzureLLMInferenceTrace_conv.csv"


def _trace() -> list[tuple[float, int, int]]:
    with TRACE.open(encoding="utf-8") as file:
        rows = [(datetime.fromisoformat(r["TIMESTAMP"][:26]).timestamp(), int(r["ContextTokens"]), int(r["GeneratedTokens"]))
                for r in csv.DictReader(file)]  # fmt: skip
    return [(at - rows[0][0], prompt, output) for at, prompt, output in rows]


class _Traced(Scenario):
    """The trace, round after round."""

    __slots__ = ()

    def requests(self, engine: int, life: int) -> Iterator[Request]:
        rows = _trace()
        length = rows[-1][0] + 1.0
        turn = 0
        while True:
            for at, prompt, output in rows:
                yield Request(turn * length + at, max(prompt, 1), max(output, 1), max(output, 1) * 2)
            turn += 1


def main(hours: float) -> None:
    """Play, watch, count."""
    demo = Demo(_Traced("azure-conversation", "a day of chat with room to spare", (5.4,), (), 131_072))
    watcher = Watcher(load_rules(), Options())
    said: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    peak, judged, began = 0.0, 0, time.process_time()
    for second in range(1, int(hours * 3600) + 1):
        demo.play(float(second))
        now = demo.epoch + second
        body = demo.metrics().encode()
        member = Member("metrics.prom", "demo/metrics", lambda body=body: io.BytesIO(body), len(body), time=now)  # type: ignore[misc]
        told = "".join(f"{line}\n" for line in demo.new_lines()).encode()
        frame = watcher.feed(Sample(now, (Page("demo", member),), logs=(LogBytes("demo.log", told),)))
        peak = max(peak, demo.ranks[0].usage)
        if not frame.renewed or frame.report is None:
            continue
        judged += 1
        said[frame.report.main.verdict.rule] += 1
        for target in frame.report.targets:
            findings.update(v.rule for v in target.findings if v.muted_by is None and v.severity != "info")
    preempted = demo.ranks[0].engine.record.preemptions
    print(
        f"{hours:g} h: {int(hours * 3600)} samples, {judged} diagnoses, {sum(findings.values())} findings {dict(findings)}"
    )
    print(
        f"said: {dict(said)}; fullest {peak:.0%} of the pool, {preempted} preemptions; {time.process_time() - began:.0f} s CPU"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 24.0)
