"""What the requests look like: lengths, limits, arrivals, sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvdoctor.derive.view import View
from kvdoctor.facts import Known, Span, Unknown, bound, estimated, measured
from kvdoctor.frozen import frozen
from kvdoctor.readings import Histogram


def add(view: View) -> None:
    """Derive ``work.*`` (needs the queue and prefix facts)."""
    facts = view.facts
    prompt = _lengths(view, "work.prompt", "work.prompt", "prompt_tokens")
    output = _lengths(view, "work.output", "work.output", "output_tokens")
    limit = view.histogram("work.max_tokens")
    if not isinstance(limit, Unknown) and (middle := limit[0].quantile(0.5)) is not None:
        facts.set("work.max_tokens_p50", Known(middle, middle, "measured", _span(limit[1]), limit[2]))
    else:
        asked = sorted(v for _, e in view.target.events("request_in") if (v := e.number("max_tokens")) is not None)
        if asked:
            facts.set(
                "work.max_tokens_p50", measured(asked[len(asked) // 2], "w", "request log", requests=float(len(asked)))
            )
    first, second = facts.known("work.prompt_mean"), facts.known("work.output_mean")
    if first is not None and second is not None and first.span == second.span:
        total = float(first.hi) + float(second.hi)
        facts.set(
            "work.sequence_mean",
            Known(total, total, first.how, first.span, first.source, "mean prompt + mean output", None, first.requests),
        )
    else:
        facts.set(
            "work.sequence_mean",
            view.unknown(
                "work.sequence_mean", "the lengths of requests are not told", "give the metrics page or a request log"
            ),
        )
    if prompt is not None and output is not None:
        spread = _cv(prompt, output)
        if spread is not None:
            facts.set(
                "work.length_cv",
                estimated(
                    spread,
                    "w",
                    "length buckets",
                    note="standard deviation / mean of prompt + output, taken as independent",
                ),
            )
    _arrivals(view)
    _sessions(view)


def _span(span: str) -> Span:
    return "L" if span == "L" else "w"


def _lengths(view: View, role: str, stem: str, field: str) -> Histogram | None:
    facts = view.facts
    gathered = view.histogram(role)
    if not isinstance(gathered, Unknown):
        histogram, span, source = gathered
        count = histogram.buckets[-1][1] if histogram.buckets else histogram.total
        for label, value in (
            ("p50", histogram.quantile(0.5)),
            ("p99", histogram.quantile(0.99)),
            ("mean", histogram.mean),
        ):
            name = f"{stem}_{label}"
            if value is not None:
                facts.set(name, Known(value, value, "measured", _span(span), source, "", None, count))
            else:
                facts.set(name, Unknown("no request finished in the window", "look while requests are served"))
        return histogram if count else None
    values = sorted(
        v
        for kind in ("request_out", "request_in")
        for _, e in view.target.events(kind)
        if (v := e.number(field)) is not None
    )
    if values:
        n = len(values)
        for label, value in (
            ("p50", values[n // 2]),
            ("p99", values[min(int(n * 0.99), n - 1)]),
            ("mean", math.fsum(values) / n),
        ):
            facts.set(f"{stem}_{label}", measured(value, "w", "request log", requests=float(n)))
        return Histogram(tuple((v, float(i + 1)) for i, v in enumerate(values)), float(n), math.fsum(values))
    if role == "work.prompt" and (found := prefills(view)[0]):
        mean = math.fsum(p.length for p in found) / len(found)
        facts.set(
            "work.prompt_mean",
            estimated(
                mean, "w", found[-1].source, note="prompt lengths of the prefill lines", requests=float(len(found))
            ),
        )
        ordered = sorted(p.length for p in found)
        facts.set(
            "work.prompt_p50", estimated(ordered[len(ordered) // 2], "w", found[-1].source, requests=float(len(found)))
        )
    if role == "work.prompt":
        _mean_of_totals(view)
    for label in ("p50", "p99", "mean"):
        facts.set(f"{stem}_{label}", view.unknown(f"{stem}_{label}", gathered.reason, gathered.hint))
    return None


FEWEST = 20
"""Finished requests below which totals say nothing of one request."""

EDGE_SHARE = 0.25
"""Requests that ran across an edge of the window count in one total only: at most this share of the finished ones."""


def _mean_of_totals(view: View) -> None:
    """Mean prompt length where the engine gives no lengths: prompt tokens over finished requests."""
    facts = view.facts
    tokens, finished = facts.known("tok.prompt"), facts.known("req.finished")
    if tokens is None or finished is None or not (tokens.exact and finished.exact) or tokens.span != finished.span:
        return
    count = float(finished.hi)
    most = facts.known("req.running_max")
    at_the_edges = float(most.hi) if most is not None else 0.0
    if count < FEWEST or at_the_edges > EDGE_SHARE * count:
        return
    mean = float(tokens.hi) / count
    note = "prompt tokens / finished requests, for want of a histogram of lengths"
    facts.set("work.prompt_mean", estimated(mean, tokens.span, tokens.source, note=note, requests=count))


@dataclass(slots=True)
class Prefill:
    """What consecutive prefill lines computed: the pieces of one prompt, or several prompts in one batch."""

    tokens: float
    sequences: float
    source: str
    in_pieces: bool = False

    @property
    def length(self) -> float:
        """Tokens of one prompt, on average."""
        return self.tokens / self.sequences


@dataclass(slots=True)
class _Open:
    """A rank's lines so far: the prompt that is being put together, and whether its last line was cut by the chunk size."""

    prefill: Prefill | None = None
    cut: bool = False
    pending: float | None = None
    at: tuple[float | None, float] = (None, 0.0)


@frozen
class Piece:
    """A piece of a prompt that was followed by the next one: its tokens, and the seconds between their lines."""

    tokens: float
    seconds: float


def prefills(view: View) -> tuple[list[Prefill], list[Piece]]:
    """SGLang: prompts from its prefill lines, pieces joined; and the pieces whose time is told.

    Where a line tells the tokens still pending, the first line of a prompt gives its whole length. Where it does not, a line as
    long as the chunk size was cut there, and the next prefill line of the rank goes on with the same prompt.
    """
    chunk = chunk_tokens(view)
    prompts: list[Prefill] = []
    pieces: list[Piece] = []
    ranks: dict[str, _Open] = {}
    for stat in view.stats:
        rank = ranks.setdefault(stat.rank, _Open())
        if stat.batch != "prefill":
            rank.prefill, rank.cut, rank.at = None, False, (None, 0.0)
            continue
        new, cached, pending, count = (
            stat.event.number(k) for k in ("new_tokens", "cached_tokens", "pending_tokens", "new_seqs")
        )
        goes_on = rank.cut
        if pending is not None or rank.pending is not None:
            rest = pending if pending is not None else 0.0
            goes_on = bool(rank.pending) and rest < (rank.pending or 0.0)
        began, before = rank.at
        if goes_on and began is not None and stat.time is not None and stat.time >= began:
            pieces.append(Piece(before, stat.time - began))
        rank.pending, rank.at = pending, (stat.time, new if new is not None else 0.0)
        rank.cut = new is not None and chunk is not None and new >= chunk
        if new is None or not count:
            rank.prefill, rank.cut = None, False
            continue
        here = new + (cached if cached is not None else 0.0)
        if goes_on:
            if pending is None and rank.prefill is not None:
                rank.prefill.tokens += here
                rank.prefill.sequences += count - 1
                rank.prefill.in_pieces = True
            continue
        if pending and stat.event.number("waiting"):
            continue  # pending tokens are then those of the whole queue
        rank.prefill = Prefill(here + (pending or 0.0), count, stat.source, bool(pending))
        prompts.append(rank.prefill)
    return prompts, pieces


def chunk_tokens(view: View) -> float | None:
    """Tokens at which a prompt is cut: as set, else the largest piece of the log where it came more than once."""
    told = view.target.setting("chunk")
    if told is not None and told.lstrip("-").isdigit():
        return float(told) if int(told) > 0 else None
    sizes = [v for s in view.stats if s.batch == "prefill" and (v := s.event.number("new_tokens")) is not None]
    return max(sizes) if sizes and sizes.count(max(sizes)) > 1 else None


def _moments(histogram: Histogram) -> tuple[float, float] | None:
    """Mean and variance with each bucket at its middle; None when empty."""
    total = histogram.buckets[-1][1] if histogram.buckets else 0.0
    if total <= 0:
        return None
    first = second = 0.0
    before_edge, before = 0.0, 0.0
    for edge, cumulative in histogram.buckets:
        inside = cumulative - before
        middle = before_edge if math.isinf(edge) else (before_edge + edge) / 2
        first += inside * middle
        second += inside * middle * middle
        before = cumulative
        if not math.isinf(edge):
            before_edge = edge
    mean = first / total
    return mean, max(second / total - mean * mean, 0.0)


def _cv(prompt: Histogram, output: Histogram) -> float | None:
    a, b = _moments(prompt), _moments(output)
    if a is None or b is None or a[0] + b[0] <= 0:
        return None
    return math.sqrt(a[1] + b[1]) / (a[0] + b[0])


def _arrivals(view: View) -> None:
    facts = view.facts
    seconds = view.window.seconds
    finished = facts.known("req.finished")
    scrapes = view.target.scrapes
    if not seconds or finished is None or finished.span != "w" or len(scrapes) < 2:
        facts.set(
            "work.arrival_rate",
            Unknown(
                "needs two dated scrapes and the count of finished requests", "take a second scrape some seconds later"
            ),
        )
        return
    change = 0.0
    for role in ("req.running", "req.waiting"):
        first, last = scrapes[0].values.get(role, {}), scrapes[-1].values.get(role, {})
        change += math.fsum(r.value for r in last.values()) - math.fsum(r.value for r in first.values())
    facts.set(
        "work.arrival_rate",
        estimated(
            max((float(finished.hi) + change) / seconds, 0.0),
            "w",
            finished.source,
            note="(finished + change of running and waiting) / window",
            requests=float(finished.hi),
        ),
    )


def _sessions(view: View) -> None:
    """The share of requests whose prefix belongs to an earlier one: from prefix hits where there is nothing better."""
    facts = view.facts
    hits = facts.known("prefix.hit_share")
    enabled = facts.known("prefix.enabled")
    if enabled is not None and enabled.hi is False:
        facts.set("work.multi_turn_share", Unknown("prefix reuse is off, so turns leave no trace"))
    elif hits is not None and hits.span == "w":
        # what was evicted between turns leaves no hit: hits are a lower bound only
        facts.set(
            "work.multi_turn_share", bound(float(hits.hi), 1.0, "w", hits.source, note="at least the prefix hit share")
        )
    else:
        facts.set(
            "work.multi_turn_share",
            view.unknown("work.multi_turn_share", "no session trace and no prefix hits of the window"),
        )
