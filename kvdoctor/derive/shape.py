"""The shape of the window: flips, saw-teeth, growth. Each is a count or ratio over consecutive samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvdoctor.derive.load import FULL
from kvdoctor.derive.victims import is_v0
from kvdoctor.derive.view import View
from kvdoctor.derive.work import prefills
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import Known, Unknown, combine, estimated, measured
from kvdoctor.frozen import frozen
from kvdoctor.readings import Histogram


@frozen
class Sample:
    """One instant of one rank; None where the source does not tell."""

    time: float | None
    usage: float | None
    running: float | None
    waiting: float | None
    generated: float | None
    source: str


def samples(view: View, rank: str) -> list[Sample]:
    """Instants of a rank: scrapes where there are at least three, else its stats lines (the richer source wins)."""
    scraped: list[Sample] = []
    before: float | None = None
    for scrape in view.target.scrapes:

        def at(role: str, scrape=scrape) -> float | None:  # type: ignore[no-untyped-def]
            found = [r.value for (rk, _), r in scrape.values.get(role, {}).items() if rk == rank]
            return math.fsum(found) if found else None

        total = at("tok.generated")
        made = total - before if total is not None and before is not None else None
        before = total
        scraped.append(Sample(scrape.time, at("kv.usage"), at("req.running"), at("req.waiting"), made, scrape.origin))
    logged = [
        Sample(s.time, s.event.number("kv_usage"), s.event.number("running"), s.event.number("waiting"), s.event.number("gen_rate"), s.source)
        for s in view.stats if s.rank == rank and s.batch != "prefill"
    ]  # fmt: skip
    return scraped if len(scraped) >= len(logged) else logged


def add(view: View) -> None:
    """Derive flips, saw-tooth falls, growth ratios and the swap facts of old engines."""
    for rank in view.rank_names:
        _sawtooth(view, rank)
        _swap(view, rank)
    for name in ("kv.sawtooth_falls", "req.swapped_max", "kv.host_usage_swing"):
        parts = {r: f[name] for r, f in view.ranks.items() if name in f}
        if parts:
            view.facts.set(name, combine(TABLE[name].combine, parts))
    _flips(view)
    _growth(view)
    _context(view)
    _prefixes(view)


def _flips(view: View) -> None:
    """Running and waiting change places by one at a full pool, in both directions: no hysteresis at admission."""
    up = down = 0
    judged = full = False
    source = ""
    for rank in view.rank_names:
        rows = [
            s for s in samples(view, rank) if s.usage is not None and s.running is not None and s.waiting is not None
        ]
        judged = judged or len(rows) >= 3
        for a, b in zip(rows, rows[1:], strict=False):
            assert a.usage is not None
            assert b.usage is not None
            assert a.running is not None
            assert b.running is not None
            assert a.waiting is not None
            assert b.waiting is not None
            full = full or a.usage >= FULL or b.usage >= FULL
            step = b.running - a.running
            if a.usage >= FULL and b.usage >= FULL and abs(step) in (1, 2) and b.waiting - a.waiting == -step:
                up += step > 0
                down += step < 0
                source = b.source
    if not judged:
        view.facts.set(
            "req.flips",
            Unknown("fewer than three samples with usage, running and waiting", "give more scrapes or a longer log"),
        )
    elif up and down:
        view.facts.set("req.flips", measured(float(up + down), "w", source, events=float(up + down)))
    else:
        view.facts.set("req.flips", measured(0.0, "w", source or "samples"))


def _sawtooth(view: View, rank: str) -> None:
    """Usage falls by half its peak while running does not and nothing is generated: one prompt starts again and again."""
    facts = view.rank(rank)
    rows = [s for s in samples(view, rank) if s.usage is not None and s.running is not None and s.generated is not None]
    if len(rows) < 3:
        facts.set(
            "kv.sawtooth_falls",
            Unknown("fewer than three samples with usage and generation", "give more scrapes or a longer log"),
        )
        return
    peak = max(s.usage for s in rows if s.usage is not None)
    falls = 0
    for a, b in zip(rows, rows[1:], strict=False):
        assert a.usage is not None
        assert b.usage is not None
        assert a.running is not None
        assert b.running is not None
        if (
            peak > 0
            and a.usage - b.usage >= peak / 2
            and b.running >= a.running > 0
            and a.generated == 0
            and b.generated == 0
        ):
            falls += 1
    facts.set("kv.sawtooth_falls", measured(float(falls), "w", rows[-1].source))


def _swap(view: View, rank: str) -> None:
    """V0 swaps to host memory; on newer engines the gauge of that name is always 0 and means nothing."""
    facts = view.rank(rank)
    old = is_v0(view)
    if not old:
        reason = "this engine does not swap sequences to host memory"
        facts.set("req.swapped_max", Unknown(reason))
        facts.set("kv.host_usage_swing", Unknown(reason))
        return
    swapped = [(s.value, s.source) for s in view.samples("req.swapped", rank)]
    host = [(s.value, s.source) for s in view.samples("kv.cpu_usage", rank)]
    for stat in view.stats:
        if stat.rank != rank:
            continue
        if (value := stat.event.number("swapped")) is not None:
            swapped.append((value, stat.source))
        if (value := stat.event.number("cpu_usage")) is not None:
            host.append((value, stat.source))
    if swapped:
        top = max(swapped)
        facts.set("req.swapped_max", measured(top[0], "w", top[1]))
    if len(host) >= 2:
        facts.set("kv.host_usage_swing", measured(max(host)[0] - min(host)[0], "w", host[-1][1]))


def _growth(view: View) -> None:
    """Running and time per token of the last interval against the first."""
    facts = view.facts
    intervals: list[tuple[float, float | None, str]] = []
    scrapes = view.target.scrapes
    for a, b in zip(scrapes, scrapes[1:], strict=False):
        running = [
            math.fsum(r.value for r in s.values["req.running"].values()) for s in (a, b) if "req.running" in s.values
        ]
        if len(running) == 2 and sum(running) > 0:
            intervals.append(
                (
                    sum(running) / 2,
                    _mean_itl(a.histograms.get("latency.itl"), b.histograms.get("latency.itl")),
                    b.origin,
                )
            )
    usable = [i for i in intervals if i[1] is not None]
    if len(usable) < 2:
        rows = [(s.running, s.running / s.generated, s.source) for r in view.rank_names for s in samples(view, r)
                if s.running and s.generated] if len(scrapes) < 3 and len(view.rank_names) == 1 else []  # fmt: skip
        usable = [(r, t, src) for r, t, src in rows if r is not None]
        how = estimated
    else:
        how = measured
    if len(usable) < 2:
        for name in ("req.running_growth", "latency.itl_growth"):
            facts.set(
                name,
                Unknown(
                    "fewer than two intervals with running requests and tokens", "give three scrapes or a longer log"
                ),
            )
        return
    (r0, t0, _), (r1, t1, source) = usable[0], usable[-1]
    if r0 > 0:
        facts.set("req.running_growth", how(r1 / r0, "w", source))
    if t0 and t1 is not None:
        facts.set("latency.itl_growth", how(t1 / t0, "w", source))


def _mean_itl(
    a: dict[tuple[str, str], tuple[Histogram, str]] | None, b: dict[tuple[str, str], tuple[Histogram, str]] | None
) -> float | None:
    if not a or not b:
        return None
    spent = made = 0.0
    for key, (later, _) in b.items():
        earlier = a.get(key)
        if (
            earlier is None
            or later.sum is None
            or later.total is None
            or earlier[0].sum is None
            or earlier[0].total is None
        ):
            return None
        spent += later.sum - earlier[0].sum
        made += later.total - earlier[0].total
    return spent / made if made > 0 and spent >= 0 else None


def _context(view: View) -> None:
    """Tokens held per running request, last sample against first (the pool size cancels out)."""
    shares: list[tuple[float, str]] = []
    if len(view.rank_names) == 1:
        for s in samples(view, view.rank_names[0]):
            if s.usage is not None and s.running:
                shares.append((s.usage / s.running, s.source))
    if len(shares) < 3 or shares[0][0] <= 0:
        view.facts.set(
            "kv.context_growth",
            Unknown("fewer than three samples with running requests", "give more scrapes or a longer log"),
        )
        return
    view.facts.set("kv.context_growth", measured(shares[-1][0] / shares[0][0], "w", shares[-1][1]))


def _prefixes(view: View) -> None:
    """Conversations that come back: how long they are, and what was dropped of the cache."""
    facts = view.facts
    dropped = view.counter("prefix.evicted")
    if isinstance(dropped, Known):
        facts.set("prefix.evicted_tokens", dropped)
    else:
        erased = [v for _, e in view.target.events("prefix_evicted") if (v := e.number("tokens")) is not None]
        if erased:
            facts.set("prefix.evicted_tokens", measured(math.fsum(erased), "w", "log"))
        else:
            facts.set(
                "prefix.evicted_tokens",
                view.unknown("prefix.evicted_tokens", "evictions of cached prefixes are not told"),
            )
    lengths = _prompt_lengths(view)
    groups: list[list[float]] = []
    for length in lengths:
        for members in groups:
            # a turn adds little to a long conversation: lengths within 5 % are the same one coming back
            # (the very same length is another prompt of that kind: a turn adds something)
            if 0 < abs(length - members[-1]) <= 0.05 * max(length, members[-1]):
                members.append(length)
                break
        else:
            groups.append([length])
    again = [max(m) for m in groups if len(m) >= 2]
    if again:
        facts.set(
            "prefix.session_tokens",
            estimated(
                math.fsum(again),
                "w",
                "prompt lengths in the log",
                note="longest prompt of each conversation that came back",
            ),
        )
    else:
        facts.set(
            "prefix.session_tokens",
            Unknown("no conversation was seen twice", "give a request log with session ids or a longer log"),
        )


def _prompt_lengths(view: View) -> Sequence[float]:
    """Lengths of long prompts in order: request lines, slot lines, or the first chunk of each SGLang prefill."""
    found = [v for _, e in view.target.events("request_in") if (v := e.number("prompt_tokens")) is not None]
    if found:
        return found
    return [p.length for p in prefills(view)[0] if p.sequences == 1 and p.in_pieces]


__all__ = ["Sample", "add", "samples"]
