"""Preemptions, who was hit how often, and the work that was done again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvdoctor.derive.latency import STALL_S
from kvdoctor.derive.load import usage_samples
from kvdoctor.derive.view import Delta, Sampled, View
from kvdoctor.derive.work import prefills
from kvdoctor.engines.base import version_key
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import Fact, Known, Span, Unknown, bound, combine, estimated, measured
from kvdoctor.frozen import frozen
from kvdoctor.readings import Histogram

if TYPE_CHECKING:
    from kvdoctor.parse.iterstats import IterationRow

REPEAT_S = 30.0
NEAR_TOKENS = 512.0
NEAR_SHARE = 0.25
PIECES_S = 10.0
"""Seconds of prefill that pieces of prompts must cover for a speed: log lines carry whole seconds."""


def add(view: View) -> None:
    """Derive ``preempt.*`` and ``recompute.*`` (needs the queue, pool and token facts)."""
    _counts(view)
    _ratios(view)
    _distribution(view)
    _events(view)
    _kind(view)
    _recompute(view)
    _stalls_of_steps(view)


def is_v0(view: View) -> bool | None:
    """The old vLLM engine, whose counters mean other things; None when nothing tells."""
    target = view.target
    if target.engine is None or target.engine.name != "vllm":
        return False
    version = version_key(target.version)
    if version is not None and version >= (0, 11):
        return False
    if version is not None and version < (0, 7):
        return True
    for run in target.logs:
        for event in run.events:
            if event.event == "stats":
                if event.number("engine") is not None:
                    return False
                if event.number("swapped") is not None:
                    return True
            if event.event == "banner" and event.fields.get("v1") is not None:
                return not event.fields["v1"]
    if any("req.swapped" in s.values or "kv.cpu_usage" in s.values for s in target.scrapes):
        return True
    if any(rank for s in target.scrapes for rank in s.ranks()):
        return False
    return None


# -------------------------------------------------------------------- counts


def _counts(view: View) -> None:
    target = view.target
    never = target.engine.never_preempts(target.version, target.args) if target.engine is not None else None
    for rank in view.rank_names:
        facts = view.rank(rank)
        counted = view.counter("preempt.total", rank)
        if isinstance(counted, Known):
            facts.set("preempt.count", _with_events(counted))
    counted_total = sum(
        float(f.hi) for facts in view.ranks.values() if isinstance(f := facts["preempt.count"], Known) and f.span == "w"
    )
    logged = _from_log(view)
    if (
        logged is not None
        and counted_total == 0
        and float(logged.lo) > 0
        and any("preempt.count" in f for f in view.ranks.values())
    ):
        # the log reaches back further than the scrapes: what it shows did happen
        for facts in view.ranks.values():
            facts.values.pop("preempt.count", None)
        view.target.notes.append("preemptions are in the log, before the first scrape")
    if not any("preempt.count" in f for f in view.ranks.values()):
        if logged is not None:
            view.rank(view.rank_names[0]).set("preempt.count", logged)
        elif (least := _least_of_finished(view)) is not None:
            view.rank(view.rank_names[0]).set("preempt.count", least)
        elif _absent_counter_is_zero(view):
            view.rank(view.rank_names[0]).set(
                "preempt.count",
                measured(
                    0.0,
                    "w",
                    target.scrapes[-1].origin,
                    note="the counter appears with its first event and is not there",
                    events=0.0,
                ),
            )
        elif never and not target.events("pool_full"):
            view.rank(view.rank_names[0]).set(
                "preempt.count", measured(0.0, "w", "this engine has no preemption", events=0.0)
            )
    parts = {r: f["preempt.count"] for r, f in view.ranks.items() if "preempt.count" in f}
    refused = view.delta("preempt.total")
    if parts:
        view.facts.set("preempt.count", combine(TABLE["preempt.count"].combine, parts))
    elif view.has_role("preempt.total") and isinstance(refused, Unknown):
        view.facts.set("preempt.count", refused)
    else:
        view.facts.set(
            "preempt.count",
            view.unknown(
                "preempt.count",
                "neither a metric nor a log line counts preemptions",
                "give the engine's metrics page, two scrapes",
            ),
        )
    count = view.facts["preempt.count"]
    seconds = view.window.seconds or _busy_seconds(view)
    if isinstance(count, Known) and count.span == "w" and seconds:
        view.facts.set(
            "preempt.rate",
            Known(
                float(count.lo) / seconds, float(count.hi) / seconds, count.how, "w", count.source, events=count.events
            ),
        )
    elif isinstance(count, Known):
        view.facts.set(
            "preempt.rate",
            Unknown(
                "the samples carry no time" if count.span == "w" else "a lifetime count has no rate",
                "give two scrapes with their times",
            ),
        )
    if isinstance(count, Known) and float(count.hi) > 0 and count.span == "w":
        known = {r: float(f.hi) for r, f in parts.items() if isinstance(f, Known)}
        if len(known) > 1 and sum(known.values()) > 0:
            top = max(known, key=lambda r: known[r])
            view.facts.set(
                "spread.preempt_top",
                measured(known[top] / sum(known.values()), "w", f"engine {top}", events=sum(known.values())),
            )
    _first_on_timeline(view)


def _least_of_finished(view: View) -> Known | None:
    """A lower bound from preemptions per finished request: those still running add an unknown number, and whoever was
    there when the window began may have been hit before, so that many of the most often hit do not count.
    """
    gathered = view.histogram("observer.preemptions")
    if isinstance(gathered, Unknown):
        gathered = view.histogram("preempt.per_request")
    if isinstance(gathered, Unknown):
        return None
    histogram, span, source = gathered
    earlier = 0.0
    if span == "w":
        queues = [view.target.scrapes[0].values.get(role) for role in ("req.running", "req.waiting")]
        if not all(queues):
            return None
        earlier = math.fsum(r.value for readings in queues if readings for r in readings.values())
    least, before, edge_before = 0.0, 0.0, -1.0
    counting = max((histogram.buckets[-1][1] if histogram.buckets else 0.0) - earlier, 0.0)
    for edge, cumulative in histogram.buckets:
        counted = min(cumulative, counting)
        # hits are whole numbers: a bucket above 2 holds 3 at least, the first one may hold 0
        least += max(counted - before, 0.0) * (math.floor(edge_before) + 1)
        before, edge_before = max(before, counted), edge
    if least <= 0:
        return None
    note = (
        "hits of finished requests, without as many as were there before the window"
        if earlier
        else "finished requests only"
    )
    return Known(least, math.inf, "bound", "L" if span == "L" else "w", source, note, events=least)


def _absent_counter_is_zero(view: View) -> bool:
    """A counter this version creates at its first event, on pages that do show series of that version."""
    engine = view.target.engine
    if engine is None or not view.target.scrapes:
        return False
    series = next((s for s in engine.series if s.role == "preempt.total" and s.absent_is_zero), None)
    if series is None:
        return False
    since = version_key(series.names[0].since)
    version = version_key(view.target.version)
    if version is not None and since is not None:
        return version >= since
    # no version told: any series on the page that came with or after the counter proves it
    newer = {
        n.name
        for s in engine.series
        for n in s.names
        if since is not None and (key := version_key(n.since)) is not None and key >= since
    }
    seen = {
        r.source.rsplit(" ", 1)[-1] for s in view.target.scrapes for role in s.values.values() for r in role.values()
    }
    seen |= {
        where.rsplit(" ", 1)[-1]
        for s in view.target.scrapes
        for role in s.histograms.values()
        for _, where in role.values()
    }
    return bool(newer & seen)


def _quiet_v0(view: View) -> Known | None:
    """V0 warns at its 1st, 51st ... preemption: a log of its work without the warning bounds the count."""
    if not is_v0(view) or not view.stats or view.has_role("preempt.total"):
        return None
    source = view.stats[-1].source
    swapped = _swapped_out(view)
    if swapped is not None and swapped.value > 0:
        return Known(swapped.value, math.inf, "bound", "w", swapped.source, "so many were swapped out at once")
    if any(run.has_start for run in view.target.logs):
        return Known(0.0, 0.0, "measured", "w", source, "no preemption warning since the start", 0.0)
    usage = [v for s in view.stats if (v := s.event.number("kv_usage")) is not None]
    if usage and max(usage) < 0.9:
        return Known(0.0, 0.0, "estimated", "w", source, "no warning, and the pool is never near full", 0.0)
    return Known(0.0, 49.0, "bound", "w", source, "the warning is printed every 50th time only", 0.0)


def _swapped_out(view: View) -> Sampled | None:
    """V0: the largest number of requests swapped out, by gauge or stats line; None when neither tells."""
    if not is_v0(view):
        return None
    logged = [
        Sampled(i, s.time, n, s.source)
        for i, s in enumerate(view.stats)
        if (n := s.event.number("swapped")) is not None
    ]
    return max([*view.samples("req.swapped"), *logged], key=lambda s: s.value, default=None)


def _busy_seconds(view: View) -> float | None:
    """TensorRT-LLM: the summed latency of the iterations stands for the clock they do not carry."""
    total = math.fsum(
        row.latency_s for timed in view.target.iterations for row in timed.value if row.latency_s is not None
    )
    return total or None


def _with_events(known: Known) -> Known:
    return Known(known.lo, known.hi, known.how, known.span, known.source, known.note, events=float(known.hi))


def _from_log(view: View) -> Known | None:
    """Counts told by the log: V0's running total (every 50th is printed), retractions, pauses, pool failures."""
    totals: list[tuple[float, str]] = []
    plain = 0
    first_source = ""
    for run, event in view.target.events("preempt"):
        first_source = first_source or run.source(event)
        total = event.number("total")
        if total is None:
            plain += event.repeat
        else:
            totals.append((total, run.source(event)))
    if totals:
        # the text holds the running count and is printed at 1, 51, 101 ...: the lines themselves under-count by 50
        last = max(t for t, _ in totals)
        first = min(t for t, _ in totals)
        low = last if first <= 1 else last - first + 1
        return Known(low, low + 49, "bound", "w", totals[-1][1], "running count printed every 50th time", events=low)
    if plain:
        return Known(float(plain), float(plain), "measured", "w", first_source, "log lines", events=float(plain))
    retracts = retractions(view)
    named = math.fsum(r.count for r in retracts)
    summed = _paused(view)
    # lines that name a victim may be printed for some of them only: a sum that is larger has seen the others too
    if summed is not None and float(summed.hi) >= named:
        return summed
    if retracts:
        return Known(
            named,
            named,
            "measured",
            "w",
            retracts[0].source,
            "retraction lines, repeats of other ranks dropped",
            events=named,
        )
    failed = _ended_by_pool(view)
    if failed is not None:
        return failed
    quiet = _quiet_v0(view)
    if quiet is not None:
        return quiet
    engine = view.target.engine
    tells = engine is not None and any(t.event == "retract" for t in engine.templates) and not engine.silent_pauses
    if tells and view.stats and not view.has_role("preempt.total"):
        # the engine logs every retraction, and this log of its work has none
        return Known(
            0.0, 0.0, "measured", "w", view.stats[-1].source, "no retraction line among its stats lines", events=0.0
        )
    return None


def _paused(view: View) -> Known | None:
    """Requests paused, summed over the steps of the iteration statistics or of the stats lines that tell them.

    A log may hold two reports of each step (a debug summary beside the statistics), so each kind of line is summed alone.
    """
    sums: dict[str, list[float]] = {}
    first: dict[str, str] = {}
    for timed in view.target.iterations:
        for row in timed.value:
            if row.paused is not None:
                sums.setdefault("iterations", []).append(row.paused)
                first.setdefault("iterations", f"{timed.origin}:{row.line}")
    for stat in view.stats:
        if (paused := stat.event.number("paused")) is not None:
            sums.setdefault(stat.event.template, []).append(paused)
            first.setdefault(stat.event.template, stat.source)
    if not sums:
        return None
    kind = max(sums, key=lambda k: math.fsum(sums[k]))
    total = math.fsum(sums[kind])
    note = f"sum of paused requests over {len(sums[kind])} iterations"
    return Known(total, total, "measured", "w", first[kind], note, events=total)


def _ended_by_pool(view: View) -> Known | None:
    """An engine without a victim choice: active requests that failed after the pool overflowed down to one token.

    Builds that print no line for each of them leave the overflows alone: each ended at least one.
    """
    overflows, failed, source = 0, 0, ""
    for run, event in view.target.events("pool_full", "request_failed"):
        if event.event == "pool_full":
            overflows += event.repeat if event.fields.get("final") else 0
        elif overflows or event.fields.get("overflow"):
            failed += event.repeat
            source = source or run.source(event)
    if failed:
        return Known(
            float(failed),
            float(failed),
            "measured",
            "w",
            source,
            "active requests ended by a full pool",
            events=float(failed),
        )
    if overflows:
        run, event = next((r, e) for r, e in view.target.events("pool_full") if e.fields.get("final"))
        return Known(
            float(overflows),
            float(overflows),
            "estimated",
            "w",
            run.source(event),
            "overflows of the pool, each of which ended one request at least",
            events=float(overflows),
        )
    return None


@frozen
class Retraction:
    """One retraction notice, repeats by other ranks merged."""

    time: float | None
    count: float
    line: int
    source: str


def retractions(view: View) -> list[Retraction]:
    """Retraction notices with the repeats of tensor-parallel ranks merged (same second, same numbers)."""
    seen: dict[tuple[object, ...], Retraction] = {}
    last_line: dict[tuple[object, ...], str] = {}
    for run, event in view.target.events("retract"):
        count = event.number("count")
        key = (
            run.origin,
            event.time,
            tuple(sorted((k, v) for k, v in event.fields.items() if isinstance(v, (int, float)))),
        )
        if key in seen and event.time is not None and last_line[key] != event.rank:
            continue
        if key in seen and event.time is not None and not event.rank:
            continue
        seen.setdefault(key, Retraction(event.time, count if count is not None else 1.0, event.line, run.source(event)))
        last_line[key] = event.rank
    return list(seen.values())


def _first_on_timeline(view: View) -> None:
    for a, b in zip(view.target.scrapes, view.target.scrapes[1:], strict=False):
        before = math.fsum(r.value for r in a.values.get("preempt.total", {}).values())
        after_readings = b.values.get("preempt.total", {})
        after = math.fsum(r.value for r in after_readings.values())
        if after > before and "preempt.total" in b.values:
            view.note_event(
                b.time,
                f"first preemptions ({after - before:.0f} since the scrape before)",
                next(iter(after_readings.values())).source,
            )
            return
    for run, event in view.target.events("preempt", "retract", "pool_full")[:1]:
        words = {
            "preempt": "first preemption",
            "retract": "first retraction",
            "pool_full": "the pool overflows for the first time",
        }
        view.note_event(event.time, words[event.event], run.source(event))


# -------------------------------------------------------------------- ratios


def _ratios(view: View) -> None:
    facts = view.facts
    count, finished = facts["preempt.count"], facts["req.finished"]
    if (
        isinstance(count, Known)
        and isinstance(finished, Known)
        and float(finished.lo) > 0
        and count.span == finished.span
    ):
        per = Known(float(count.lo) / float(finished.hi), float(count.hi) / float(finished.lo), count.how, count.span, count.source,
                    "preemptions / finished requests", count.events, float(finished.hi))  # fmt: skip
        facts.set("preempt.per_finished", per)
    elif isinstance(count, Known) and float(count.hi) == 0:
        facts.set("preempt.per_finished", measured(0.0, "w", count.source))
    else:
        facts.set("preempt.per_finished", view.unknown("preempt.per_finished", "the number of finished requests is not told"
                  if isinstance(count, Known) else _why(count)))  # fmt: skip
    running, waiting = facts["req.running_max"], facts["req.waiting_max"]
    if (
        isinstance(count, Known)
        and isinstance(finished, Known)
        and isinstance(running, Known)
        and isinstance(waiting, Known)
    ):
        existed = float(finished.hi) + float(running.hi) + float(waiting.hi)
        if existed > 0 and count.span == finished.span:
            facts.set("preempt.per_request_min", Known(float(count.lo) / existed, float(count.lo) / existed, "estimated", count.span, count.source,
                      "preemptions / all requests there can have been", count.events, existed))  # fmt: skip
    elif isinstance(count, Known) and isinstance(running, Known) and isinstance(waiting, Known):
        existed = float(running.hi) + float(waiting.hi)
        generated = facts["tok.generated"]
        if float(count.hi) == 0:
            facts.set("preempt.per_request_min", measured(0.0, "w", count.source))
        elif isinstance(generated, Known) and generated.span == count.span:
            # every finished request generated at least one token
            least = float(count.lo) / (existed + float(generated.hi)) if existed + float(generated.hi) > 0 else 0.0
            facts.set("preempt.per_request_min", Known(least, least, "estimated", count.span, count.source,
                      "preemptions / (tokens generated + running + waiting)", count.events))  # fmt: skip


def _why(fact: Fact) -> str:
    return fact.reason if isinstance(fact, Unknown) else ""


# -------------------------------------------------------------------- distribution


def _distribution(view: View) -> None:
    facts = view.facts
    gathered = view.histogram("observer.preemptions")
    if isinstance(gathered, Unknown):
        gathered = view.histogram("preempt.per_request")
    count = facts["preempt.count"]
    if isinstance(gathered, Unknown):
        if isinstance(count, Known) and float(count.hi) == 0 and count.span == "w":
            for name in ("preempt.hit_share", "preempt.hit_twice_share", "preempt.hit_3plus_of_hit"):
                if name != "preempt.hit_3plus_of_hit":
                    facts.set(name, measured(0.0, "w", count.source))
        else:
            _distribution_from_log(view)
            per = facts.known("preempt.per_finished")
            if per is not None and per.span == "w" and "preempt.hit_twice_share" not in facts:
                # two hits take two preemptions
                facts.set(
                    "preempt.hit_twice_share",
                    bound(
                        0.0,
                        min(float(per.hi) / 2, 1.0),
                        "w",
                        per.source,
                        note="at most half the preemptions per finished request",
                        events=per.events,
                    ),
                )
        for name in ("preempt.hit_share", "preempt.hit_twice_share", "preempt.hit_3plus_of_hit"):
            facts.set(name, view.unknown(name, gathered.reason, gathered.hint))
        return
    histogram, span, source = gathered
    _from_histogram(view, histogram, "L" if span == "L" else "w", source)


def _from_histogram(view: View, histogram: Histogram, span: str, source: str) -> None:
    facts = view.facts
    total = histogram.buckets[-1][1] if histogram.buckets else histogram.total
    if not total:
        for name in ("preempt.hit_share", "preempt.hit_twice_share", "preempt.hit_3plus_of_hit"):
            facts.set(name, Unknown("no request finished in the window", "look over a longer window"))
        return
    the_span: Span = "L" if span == "L" else "w"
    above = {n: histogram.above(float(n)) for n in (0, 1, 2)}
    edges = {edge for edge, _ in histogram.buckets}
    twice = above[1]
    if twice is not None:
        lo, hi = twice[0] / total, twice[1] / total
        facts.set(
            "preempt.hit_twice_share",
            Known(lo, hi, "measured" if lo == hi else "bound", the_span, source, "", twice[0], total),
        )
    hits_lo = hits_hi = None
    if 0.0 in edges and above[0] is not None:
        hits_lo = hits_hi = above[0][0]
    elif twice is not None:
        # the first bucket holds 0 and 1 together: the victims number at least those hit twice, and at most
        # those plus one for each further preemption
        hits_lo = twice[0]
        hits_hi = min(total, max(histogram.sum - twice[1], hits_lo)) if histogram.sum is not None else total
    if hits_lo is not None and hits_hi is not None:
        facts.set("preempt.hit_share", Known(hits_lo / total, hits_hi / total, "measured" if hits_lo == hits_hi else "bound", the_span, source,
                  "" if hits_lo == hits_hi else "the first bucket merges 0 and 1", hits_lo, total))  # fmt: skip
        thrice = above[2]
        if thrice is not None and 2.0 in edges and hits_hi > 0:
            lo = thrice[0] / hits_hi
            hi = min(thrice[1] / hits_lo, 1.0) if hits_lo > 0 else (1.0 if thrice[1] > 0 else 0.0)
            facts.set(
                "preempt.hit_3plus_of_hit",
                Known(min(lo, hi), hi, "measured" if lo == hi else "bound", the_span, source, "", thrice[0], hits_hi),
            )
        elif hits_hi == 0:
            facts.set("preempt.hit_3plus_of_hit", Unknown("nobody was preempted"))


def _distribution_from_log(view: View) -> None:
    """Preempted requests by id, where lines carry ids."""
    hits: dict[str, int] = {}
    source = ""
    for run, event in view.target.events("preempt", "retract"):
        name = event.text("id")
        if name:
            hits[name] = hits.get(name, 0) + event.repeat
            source = source or run.source(event)
    finished = view.facts.number("req.finished")
    if not hits:
        return
    victims = len(hits)
    thrice = sum(n >= 3 for n in hits.values())
    view.facts.set(
        "preempt.hit_3plus_of_hit",
        Known(thrice / victims, thrice / victims, "measured", "w", source, "", float(thrice), float(victims)),
    )
    if finished:
        twice = sum(n >= 2 for n in hits.values())
        view.facts.set(
            "preempt.hit_share",
            measured(min(victims / finished, 1.0), "w", source, events=float(victims), requests=finished),
        )
        view.facts.set(
            "preempt.hit_twice_share",
            measured(min(twice / finished, 1.0), "w", source, events=float(twice), requests=finished),
        )


def _events(view: View) -> None:
    """Repeats within 30 s and victims' progress, from id-bearing lines or the observer."""
    facts = view.facts
    repeats = view.counter("observer.repeats")
    if isinstance(repeats, Known) and repeats.span == "w":
        facts.set("preempt.repeats_30s", Known(repeats.lo, repeats.hi, "measured", "e", repeats.source))
    else:
        last: dict[str, float] = {}
        count, dated, source = 0, False, ""
        for run, event in view.target.events("preempt", "retract"):
            name = event.text("id")
            if not name or event.time is None:
                continue
            dated, source = True, source or run.source(event)
            if name in last and 0 <= event.time - last[name] <= REPEAT_S:
                count += 1
            last[name] = event.time
        if dated:
            facts.set("preempt.repeats_30s", measured(float(count), "e", source))
        else:
            facts.set(
                "preempt.repeats_30s",
                view.unknown("preempt.repeats_30s", "no line or series names the request that was preempted"),
            )
    facts.set(
        "preempt.secondary",
        view.unknown("preempt.secondary", "no line or series tells when a victim is being recomputed"),
    )
    victims, near = view.delta("observer.victims"), view.delta("observer.victims_near_done")
    if isinstance(victims, Delta) and isinstance(near, Delta) and victims.value > 0:
        share = near.value / victims.value
        facts.set(
            "preempt.victims_near_done",
            Known(share, share, "measured", "L" if victims.span == "L" else "w", near.source, "", victims.value),
        )
    remaining = view.histogram("observer.victim_remaining")
    if not isinstance(remaining, Unknown) and (middle := remaining[0].quantile(0.5)) is not None:
        facts.set(
            "preempt.victim_remaining_p50",
            Known(middle, middle, "measured", "L" if remaining[1] == "L" else "w", remaining[2]),
        )
    resumed, brought = view.delta("observer.resumed"), view.delta("observer.resume_queries")
    if isinstance(resumed, Delta) and isinstance(brought, Delta) and resumed.value > 0:
        # what a victim brings with it when it comes back is what it had computed
        mean = brought.value / resumed.value
        facts.set(
            "preempt.victim_computed_mean",
            Known(mean, mean, "measured", "L" if brought.span == "L" else "w", brought.source, "", resumed.value),
        )
    _progress_from_log(view)
    _progress_from_slots(view)
    for name in ("preempt.victims_near_done", "preempt.victim_remaining_p50"):
        facts.set(name, view.unknown(name, "nothing in the input tells how far the victims had come"))
    lost_in, lost_out, count_fact = (
        view.delta("retract.input_tokens"),
        view.delta("retract.output_tokens"),
        facts["preempt.count"],
    )
    if (
        isinstance(lost_in, Delta)
        and isinstance(lost_out, Delta)
        and isinstance(count_fact, Known)
        and count_fact.exact
        and float(count_fact.hi) > 0
    ):
        mean = (lost_in.value + lost_out.value) / float(count_fact.hi)
        facts.set(
            "preempt.victim_computed_mean",
            Known(mean, mean, "measured", "L" if lost_in.span == "L" else "w", lost_in.source, "", count_fact.events),
        )


def near_completion(computed: float, remaining: float) -> bool:
    """Remaining below both 512 tokens and a quarter of what was computed."""
    return remaining < min(NEAR_TOKENS, computed * NEAR_SHARE)


def _progress_from_log(view: View) -> None:
    """Victims whose line tells what they had computed and what they had left (request log, trace, plug-in)."""
    seen: list[tuple[float, float, str]] = []
    limits: dict[str, tuple[float | None, float | None]] = {}
    for _, event in view.target.events("request_in"):
        name = event.text("id")
        if name:
            limits[name] = (event.number("prompt_tokens"), event.number("max_tokens"))
    for run, event in view.target.events("preempt", "retract"):
        computed, remaining = event.number("computed_tokens"), event.number("remaining_tokens")
        done = event.number("output_tokens")
        name = event.text("id")
        if remaining is None and done is not None and name in limits:
            prompt, limit = limits[name]
            if limit is not None:
                remaining = limit - done
                computed = computed if computed is not None else (prompt + done if prompt is not None else None)
        if computed is not None and remaining is not None:
            seen.append((computed, max(remaining, 0.0), run.source(event)))
    if not seen:
        return
    near = sum(near_completion(c, r) for c, r, _ in seen)
    count = float(len(seen))
    view.facts.set("preempt.victims_near_done", measured(near / count, "w", seen[0][2], events=count))
    left = sorted(r for _, r, _ in seen)
    view.facts.set("preempt.victim_remaining_p50", measured(left[len(left) // 2], "w", seen[0][2], events=count))
    view.facts.set(
        "preempt.victim_computed_mean",
        measured(math.fsum(c for c, _, _ in seen) / count, "w", seen[0][2], events=count),
    )


def _progress_from_slots(view: View) -> None:
    """llama.cpp: when the pool overflows all active slots die; the last ``/slots`` reading tells how far they were."""
    if not view.target.events("pool_full") or not view.target.slots:
        return
    seen: list[tuple[float, float]] = []
    for timed in view.target.slots:
        for slot in timed.value:
            if slot.processing and slot.remain is not None and slot.remain >= 0 and slot.held is not None:
                seen.append((float(slot.held), float(slot.remain)))
    if seen:
        near = sum(near_completion(c, r) for c, r in seen) / len(seen)
        view.facts.set(
            "preempt.victims_near_done",
            estimated(
                near,
                "w",
                view.target.slots[-1].origin,
                note="active slots in the readings before the overflow",
                events=float(len(seen)),
            ),
        )


def _kind(view: View) -> None:
    target = view.target
    for _, event in target.events("preempt", "retract"):
        mode = event.text("mode")
        if mode in ("recompute", "swap", "pause"):
            view.facts.set("preempt.kind", measured(mode, "c", "log"))
    if (swapped := _swapped_out(view)) is not None and swapped.value > 0:
        view.facts.set("preempt.kind", measured("swap", "c", swapped.source))
    paused = _paused(view)
    if paused is not None and float(paused.hi) > 0:
        # what the engine's own figures call paused was paused, whatever its arguments would have told
        view.facts.set("preempt.kind", measured("pause", "c", paused.source))
    kind = target.engine.preempt_kind(target.version, target.args) if target.engine is not None else None
    if kind is not None:
        view.facts.set(
            "preempt.kind", Known(kind, kind, "measured" if target.version else "assumed", "c", "engine and version")
        )


def _stalls_of_steps(view: View) -> None:
    """Engine steps without a hole bound the gaps over 1 s: one per request in a slow step, and at most one per pause."""
    most, source, steps = 0.0, "", 0
    for timed in view.target.iterations:
        last: dict[float | None, IterationRow] = {}
        for row in timed.value:
            touched = row.active if row.active is not None else row.scheduled
            if row.paused is None or row.latency_s is None or row.iteration is None or touched is None:
                return
            before = last.get(row.rank)
            if row.micro_batch or (before is not None and row.iteration != (before.iteration or 0.0) + 1):
                return  # what happened between two records is not told
            gap = row.latency_s
            if before is not None and before.time is not None and row.time is not None:
                gap = max(gap, row.time - before.time)
            most += row.paused + (touched if gap > STALL_S else 0.0)
            steps += 1
            last[row.rank] = row
            source = source or f"{timed.origin}:{row.line}"
    finished = view.facts.number("req.finished")
    if steps < 2 or not finished:
        return
    note = "at most one gap over 1 s per pause, and one per request in a step that slow"
    view.facts.set("latency.stalls", bound(0.0, most, "w", source, note=note))
    view.facts.set("latency.stalls_per_finished", bound(0.0, most / finished, "w", source, note=note))
    view.facts.set("latency.stall_share", bound(0.0, min(most / finished, 1.0), "w", source, note=note))


# -------------------------------------------------------------------- recompute


def _recompute(view: View) -> None:
    facts = view.facts
    tokens = _recomputed_tokens(view)
    facts.set("recompute.tokens", tokens)
    prompt, generated = facts["tok.prompt"], facts["tok.generated"]
    effective = view.counter("tok.prefill_effective")
    if isinstance(effective, Known):
        prompt = effective
    speed = _prefill_speed(view)
    if speed is not None:
        facts.set("tok.prefill_speed", speed)
    if not isinstance(tokens, Known):
        for name in ("recompute.rate", "recompute.token_share", "recompute.prefill_share", "recompute.time_share"):
            facts.set(name, tokens)
        return
    seconds = view.window.seconds
    lo, hi = float(tokens.lo), float(tokens.hi)
    how = tokens.how
    if seconds and tokens.span == "w":
        facts.set(
            "recompute.rate", Known(lo / seconds, hi / seconds, how, "w", tokens.source, tokens.note, tokens.events)
        )
    else:
        facts.set(
            "recompute.rate",
            Unknown(
                "the samples carry no time" if tokens.span == "w" else "lifetime values have no rate",
                "give two scrapes with their times",
            ),
        )
    useful = _useful(view, prompt, generated)
    if useful is None:
        useful = _useful_from_rows(view, hi)
    if isinstance(useful, Known) and useful.span == tokens.span:
        base = float(useful.hi)
        if base + hi > 0:
            facts.set(
                "recompute.token_share", _share(lo, hi, base, tokens, "recomputed / (prompt + generated + recomputed)")
            )
        if isinstance(prompt, Known) and float(prompt.hi) + hi > 0:
            facts.set(
                "recompute.prefill_share",
                _share(lo, hi, float(prompt.hi), tokens, "recomputed / (prompt + recomputed)"),
            )
    elif hi == 0:
        facts.set("recompute.token_share", Known(0.0, 0.0, how, tokens.span, tokens.source))
        facts.set("recompute.prefill_share", Known(0.0, 0.0, how, tokens.span, tokens.source))
    for name in ("recompute.token_share", "recompute.prefill_share"):
        facts.set(name, view.unknown(name, "the useful tokens of the window are not told"))
    if speed is not None and seconds and tokens.span == "w" and float(speed.hi) > 0:
        share_lo, share_hi = min(lo / float(speed.hi) / seconds, 1.0), min(hi / float(speed.hi) / seconds, 1.0)
        facts.set("recompute.time_share", Known(share_lo, share_hi, "bound" if share_lo < share_hi else "estimated", "w", tokens.source,
                  "recomputed tokens / prefill speed / window", tokens.events))  # fmt: skip
    else:
        facts.set(
            "recompute.time_share",
            Unknown(
                "the prefill speed or the clock is not known",
                "give two dated scrapes of an engine that exports prefill time",
            ),
        )


def _share(lo: float, hi: float, base: float, tokens: Known, note: str) -> Known:
    low = lo / (base + lo) if base + lo > 0 else 0.0
    high = hi / (base + hi)
    return Known(
        low,
        high,
        tokens.how,
        tokens.span,
        tokens.source,
        f"{note}; {tokens.note}" if tokens.note else note,
        tokens.events,
        tokens.requests,
    )


def _useful(view: View, prompt: Fact, generated: Fact) -> Known | None:
    if isinstance(prompt, Known) and isinstance(generated, Known) and prompt.span == generated.span:
        total = float(prompt.hi) + float(generated.hi)
        return Known(total, total, "measured", prompt.span, prompt.source)
    return None


def _useful_from_rows(view: View, again: float) -> Known | None:
    """Useful tokens from TensorRT-LLM iterations, or from SGLang prefill lines plus one token per running request and line."""
    context = generated = 0.0
    rows = 0
    for timed in view.target.iterations:
        for row in timed.value:
            made = row.generation_tokens if row.generation_tokens is not None else row.generation_requests
            if row.context_tokens is not None and made is not None:
                rows += 1
                context += row.context_tokens
                generated += made
    if rows:
        return Known(
            max(context - again, 0.0) + generated,
            max(context - again, 0.0) + generated,
            "estimated",
            "w",
            "iteration stats",
        )
    new = [v for s in view.stats if s.batch == "prefill" and (v := s.event.number("new_tokens")) is not None]
    decoded = view.facts.known("tok.generated")
    if new and again > 0:
        made_total = float(decoded.hi) if decoded is not None and decoded.span == "w" else 0.0
        total = max(math.fsum(new) - again, 0.0) + made_total
        return Known(total, total, "estimated", "w", "prefill batch lines")
    return None


def _recomputed_tokens(view: View) -> Fact:
    count = view.facts["preempt.count"]
    events = count.events if isinstance(count, Known) else None
    seen = view.counter("observer.recomputed")
    if isinstance(seen, Known):
        return Known(seen.lo, seen.hi, "measured", seen.span, seen.source, "counted inside the engine", events)
    computed, useful = view.delta("tok.prefill_compute"), view.delta("tok.prefill_effective")
    if isinstance(computed, Delta) and isinstance(useful, Delta):
        again = max(computed.value - useful.value, 0.0)
        return Known(
            again,
            again,
            "measured",
            "L" if computed.span == "L" else "w",
            computed.source,
            "prefill computed - prefill effective",
            events,
        )
    lost_in, lost_out = view.delta("retract.input_tokens"), view.delta("retract.output_tokens")
    if isinstance(lost_in, Delta) and isinstance(lost_out, Delta):
        again = lost_in.value + lost_out.value
        return Known(
            again,
            again,
            "measured",
            "L" if lost_in.span == "L" else "w",
            lost_in.source,
            "input and output tokens of retracted requests",
            events,
        )
    again_logged = _from_iterations(view, events)
    if again_logged is not None:
        return again_logged
    for guess in (_from_prefill_lines(view, events), _from_iteration_rows(view, events)):
        if guess is not None:
            return guess
    kind = view.facts.text("preempt.kind")
    if kind is None and view.target.engine is not None:
        kind = view.target.engine.preempt_kind(view.target.version, view.target.args)
    if isinstance(count, Known) and float(count.hi) == 0 and count.span == "w":
        return Known(0.0, 0.0, "measured", "w", count.source, "nothing was preempted", 0.0)
    if is_v0(view):
        old = _from_v0(view, events)
        if old is not None:
            return old
    if kind == "abort":
        return view.unknown("recompute.tokens", "the engine ends requests instead of recomputing them")
    return _bounded(view, count)


def _from_iterations(view: View, events: float | None) -> Known | None:
    """vLLM iteration details: a victim's replay is counted as generation tokens beyond one per generating request."""
    speculative = view.target.args.get("speculative_config", "None") not in ("None", "", "null")
    if speculative:
        return None
    again, seen, source = 0.0, False, ""
    start, end = view.window.start, view.window.end
    scraped = bool(view.target.scrapes) and start is not None
    for run, event in view.target.events("iteration"):
        tokens, requests = event.number("generation_tokens"), event.number("generation_requests")
        if tokens is None or requests is None:
            continue
        if (
            scraped
            and event.time is not None
            and start is not None
            and end is not None
            and not start - 1 <= event.time <= end + 1
        ):
            continue
        seen, source = True, source or run.source(event)
        again += max(tokens - requests, 0.0)
    dropped = any("iteration" in t for run in view.target.logs for t in run.dropped)
    if not seen:
        return None
    if dropped and scraped:
        return Known(
            again,
            again,
            "estimated",
            "w",
            source,
            "iteration details, the earlier ones beyond the memory bound",
            events,
        )
    return Known(
        again, again, "measured", "w", source, "iteration details: generation tokens - generation requests", events
    )


def _from_prefill_lines(view: View, events: float | None) -> Known | None:
    """SGLang: what is still to be prefilled right after a retraction, although nobody new arrived."""
    notices = retractions(view)
    if not notices or not view.stats or view.target.scrapes:
        return None
    total, source = 0.0, ""
    for notice in notices:
        after = [s for s in view.stats if s.event.line > notice.line]
        if not after or after[0].batch != "prefill":
            continue
        first = after[0]
        pending, new = first.event.number("pending_tokens"), first.event.number("new_tokens")
        if pending is not None and new is not None and not first.event.number("cached_tokens"):
            total += pending + new
            source = source or first.source
    if not source:
        return None
    return Known(
        total, total, "estimated", "w", source, "tokens to prefill right after a retraction, nothing cached", events
    )


def _from_iteration_rows(view: View, events: float | None) -> Known | None:
    """TensorRT-LLM: context tokens of iterations in which requests are paused and nobody new is queued."""
    total, source, seen = 0.0, "", False
    for timed in view.target.iterations:
        before: float | None = None
        for row in timed.value:
            if row.context_tokens is not None and row.paused is not None:
                seen = True
                rising = before is not None and row.active is not None and row.active > before
                if row.paused > 0 and not row.queued and not rising:
                    total += row.context_tokens
                    source = source or f"{timed.origin}:{row.line}"
            before = row.active if row.active is not None else before
    if not seen:
        return None
    return Known(
        total,
        total,
        "estimated",
        "w",
        source or "iteration stats",
        "context tokens while requests are paused and none is queued",
        events,
    )


def _from_v0(view: View, events: float | None) -> Fact | None:
    """V0 counts prompt tokens again at each recompute; finished requests' prompts tell the useful ones."""
    prompt = view.delta("tok.prompt")
    useful = view.histogram("work.prompt")
    if not isinstance(prompt, Delta) or isinstance(useful, Unknown) or useful[0].sum is None:
        return None
    extra = max(prompt.value - useful[0].sum, 0.0)
    mean = useful[0].mean
    running = view.facts.number("req.running_max")
    slack = mean * running if mean is not None and running is not None else extra
    low = max(extra - slack, 0.0)
    return bound(
        low,
        extra,
        "L" if prompt.span == "L" else "w",
        prompt.source,
        note="V0: prompt tokens - prompts of finished requests, less those still running",
        events=events,
    )


def _bounded(view: View, count: Fact) -> Fact:
    """Nothing measures it: between 0 and preemptions x what a victim can have held."""
    if not isinstance(count, Known):
        return view.unknown("recompute.tokens", _why(count))
    if float(count.hi) == 0:
        return Known(0.0, 0.0, "measured", count.span, count.source, "nothing was preempted", 0.0)
    held = _held(view)
    if held is None:
        return view.unknown(
            "recompute.tokens",
            "neither the pool size nor the lengths of requests are told, so not even a bound can be given",
        )
    value, formula = held
    return bound(0.0, float(count.hi) * value, count.span, count.source, note=f"bound: {formula}", events=count.events)


def _held(view: View) -> tuple[float, str] | None:
    """Tokens a victim can have held: usage x pool / running where known, at most the mean finished sequence where shorter."""
    options: list[tuple[float, str]] = []
    for rank in view.rank_names:
        pool = view.rank(rank).number("kv.pool_tokens")
        if not pool:
            continue
        scraped, _, _ = usage_samples(view, rank)
        running = {s.order: s.value for s in view.samples("req.running", rank)}
        shares = [s.value * pool / running[s.order] for s in scraped if running.get(s.order)]
        busy = [s.value * pool / running[s.order] for s in scraped if running.get(s.order) and s.value >= 0.5]
        chosen = busy or shares
        if chosen:
            options.append((math.fsum(chosen) / len(chosen), "preemptions x usage x pool / running"))
    prompt, output = view.histogram("work.prompt"), view.histogram("work.output")
    if (
        not isinstance(prompt, Unknown)
        and not isinstance(output, Unknown)
        and prompt[0].mean is not None
        and output[0].mean is not None
    ):
        options.append((prompt[0].mean + output[0].mean, "preemptions x mean length of a finished request"))
    return min(options) if options else None


def _prefill_speed(view: View) -> Known | None:
    gathered = view.histogram("latency.prefill")
    prompt = view.facts["tok.prompt"]
    if not isinstance(gathered, Unknown) and isinstance(prompt, Known) and gathered[0].sum:
        speed = float(prompt.hi) / gathered[0].sum
        # overlapping prefills each count their whole time, so this is the speed one request sees
        return Known(
            speed, speed, "estimated", "L" if gathered[1] == "L" else "w", gathered[2], "prompt tokens / prefill time"
        )
    rates = [
        v for s in view.stats if (v := s.event.number("prompt_rate")) is not None and v > 0 and s.batch == "prefill"
    ]
    if rates:
        return Known(max(rates), max(rates), "estimated", "w", "prefill batch lines", "largest input throughput")
    pieces = prefills(view)[1]
    seconds = math.fsum(p.seconds for p in pieces)
    if seconds >= PIECES_S:
        speed = math.fsum(p.tokens for p in pieces) / seconds
        return Known(
            speed, speed, "estimated", "w", "prefill batch lines", "pieces of prompts / time to the next piece"
        )
    return None


__all__ = ["Retraction", "add", "near_completion", "retractions"]
