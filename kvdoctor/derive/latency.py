"""Latency facts: quantiles from bucket differences, and stalls, which token quantiles hide."""

from __future__ import annotations

import math

from kvdoctor.derive.view import Stat, View
from kvdoctor.facts import Known, Span, Unknown, estimated, worst_how

STALL_S = 1.0

FEWEST_LINES = 3
"""Stats lines of each kind below which a difference between them can be chance."""

QUIET_SHARE = 0.01
"""Prompt tokens per second, against the most of any line, below which a line counts as decoding alone."""

STARVED = 10.0
"""Times the calm median gap of its rank, above which a line beside prompts counts as standing still."""

BUSY_SHARE = 0.5
"""And above which prompts were computed in most of its interval."""


def add(view: View) -> None:
    """Derive ``latency.*`` (needs ``req.finished``)."""
    facts = view.facts
    for role, stem, quantiles in (
        ("latency.ttft", "latency.ttft", (("p50", 0.5), ("p99", 0.99))),
        ("latency.e2e", "latency.e2e", (("p99", 0.99),)),
        ("latency.itl", "latency.itl", (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))),
        ("latency.queue", "latency.queue", (("p50", 0.5), ("p99", 0.99))),
    ):
        gathered = view.histogram(role)
        for label, q in quantiles:
            name = f"{stem}_{label}"
            if isinstance(gathered, Unknown):
                facts.set(name, view.unknown(name, gathered.reason, gathered.hint))
                continue
            histogram, span, source = gathered
            value = histogram.quantile(q)
            count = histogram.buckets[-1][1] if histogram.buckets else histogram.total
            if value is None:
                facts.set(name, Unknown("nothing was observed in the window", "look while requests are served"))
            else:
                facts.set(name, Known(value, value, "measured", _span(span), source, "", None, count))
    if "latency.itl" not in {role for scrape in view.target.scrapes for role in scrape.histograms}:
        _gaps_of_lines(view)
    p50, p99 = facts.known("latency.itl_p50"), facts.known("latency.itl_p99")
    if p50 is not None and p99 is not None and float(p50.hi) > 0:
        ratio = float(p99.hi) / float(p50.hi)
        facts.set(
            "latency.itl_tail_ratio",
            Known(ratio, ratio, worst_how((p50, p99)), p99.span, p99.source, "p99 / p50", None, p99.requests),
        )
    _stalls(view)
    _queue_share(view)


def _span(span: str) -> Span:
    return "L" if span == "L" else "w"


def _stalls(view: View) -> None:
    facts = view.facts
    gathered = view.histogram("latency.itl")
    if isinstance(gathered, Unknown):
        for name in ("latency.stalls", "latency.stalls_per_finished", "latency.stall_share"):
            facts.set(name, view.unknown(name, gathered.reason, gathered.hint))
        return
    histogram, span, source = gathered
    over = histogram.above(STALL_S)
    if over is None:
        for name in ("latency.stalls", "latency.stalls_per_finished", "latency.stall_share"):
            facts.set(name, Unknown("the time between tokens has no buckets", "scrape the histogram, not a summary"))
        return
    lo, hi = over
    how = "measured" if lo == hi else "bound"
    facts.set(
        "latency.stalls",
        Known(
            lo,
            hi,
            "measured" if how == "measured" else "bound",
            _span(span),
            source,
            "gaps over 1 s between tokens",
            lo,
        ),
    )
    finished = facts.known("req.finished")
    if finished is not None and float(finished.hi) > 0 and finished.span == _span(span):
        n = float(finished.hi)
        facts.set(
            "latency.stalls_per_finished",
            Known(
                lo / n,
                hi / n,
                "measured" if lo == hi else "bound",
                _span(span),
                source,
                "gaps over 1 s / finished requests",
                lo,
                n,
            ),
        )
        facts.set(
            "latency.stall_share",
            Known(
                0.0,
                min(hi / n, 1.0),
                "bound" if hi > 0 else "measured",
                _span(span),
                source,
                "at most one stalled request per gap",
                lo,
                n,
            ),
        )
    else:
        facts.set("latency.stalls_per_finished", Unknown("the number of finished requests is not told"))
    facts.set("latency.stall_share", view.unknown("latency.stall_share", "no per-request gaps in the input"))


def _queue_share(view: View) -> None:
    queue, first = view.histogram("latency.queue"), view.histogram("latency.ttft")
    if isinstance(queue, Unknown) or isinstance(first, Unknown):
        return
    waited, total = queue[0].mean, first[0].mean
    if waited is not None and total:
        share = min(waited / total, 1.0)
        view.facts.set(
            "latency.queue_share",
            Known(share, share, "measured", _span(queue[1]), queue[2], "mean queue time / mean TTFT"),
        )


def _gaps_of_lines(view: View) -> None:
    """Gaps between tokens from stats lines that tell both rates, where some were written while prompts were computed.

    A line's mean gap counts for all of its tokens, so the tail comes out too short, never too long.
    """
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    lines = [s for s in view.stats if not s.batch]
    starved = 0
    for rank in sorted({s.rank for s in lines}):
        one, other = _gaps([s for s in lines if s.rank == rank])
        alone += one
        beside += other
        if one:
            calm = sorted(gap for gap, _ in one)[len(one) // 2]
            starved += sum(gap > STARVED * calm for gap, _ in other)
    if min(len(alone), len(beside)) < FEWEST_LINES:
        return
    gaps = sorted(alone + beside)
    note = f"mean gaps of {len(alone)} stats lines without prompts and {len(beside)} beside them, by tokens"
    for name, share in (("latency.itl_p50", 0.5), ("latency.itl_p99", 0.99)):
        view.facts.set(name, estimated(_weighted(gaps, share), "w", lines[-1].source, note=note))
    # by tokens the worst stall weighs least, for hardly any come out of it: how long it lasts is another number
    busy = sum(1 for s in lines if s.event.number("running"))
    view.facts.set(
        "latency.starved_share",
        estimated(starved / busy, "w", lines[-1].source, note=f"{starved} of {busy} stats lines with requests running"),
    )


def _weighted(gaps: list[tuple[float, float]], share: float) -> float:
    """The gap within which ``share`` of the tokens came; ``gaps`` ascending, each with its tokens."""
    left = share * math.fsum(tokens for _, tokens in gaps)
    for gap, tokens in gaps:
        left -= tokens
        if left <= 0:
            return gap
    return gaps[-1][0]


def _gaps(lines: list[Stat]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(seconds between tokens of one request, tokens per second) of the lines without prompts, and of those beside them.

    Who answered in the last line without prompts goes on while the pool does not empty and somebody more runs. What the
    new ones generate counts as theirs.
    """
    most = max((rate for s in lines if (rate := s.event.number("prompt_rate")) is not None), default=0.0)
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    answering = held = 0.0
    for stat in lines:
        prompt, made, running, usage = (
            stat.event.number(name) for name in ("prompt_rate", "gen_rate", "running", "kv_usage")
        )
        if prompt is None or not made or running is None or usage is None or stat.event.number("waiting"):
            answering = 0.0
        elif prompt <= QUIET_SHARE * most:
            answering, held = running, usage
            if running > 0:
                alone.append((running / made, made))
        elif usage < held or running <= answering:
            answering = 0.0
        elif answering and prompt >= BUSY_SHARE * most:
            beside.append((answering / made, made))
    return alone, beside
