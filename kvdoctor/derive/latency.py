"""Latency facts: quantiles from bucket differences, and stalls, which token quantiles hide."""

from __future__ import annotations

from kvdoctor.derive.view import View
from kvdoctor.facts import Known, Span, Unknown

STALL_S = 1.0


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
    p50, p99 = facts.known("latency.itl_p50"), facts.known("latency.itl_p99")
    if p50 is not None and p99 is not None and float(p50.hi) > 0:
        ratio = float(p99.hi) / float(p50.hi)
        facts.set(
            "latency.itl_tail_ratio",
            Known(ratio, ratio, "measured", p99.span, p99.source, "p99 / p50", None, p99.requests),
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
