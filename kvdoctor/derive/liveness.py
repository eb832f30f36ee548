"""Is anything moving, who holds the pool, and is what we are told complete?"""

from __future__ import annotations

import math

from kvdoctor.derive.load import longest_request
from kvdoctor.derive.shape import samples
from kvdoctor.derive.view import View
from kvdoctor.engines.base import in_range
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import Known, Unknown, combine, estimated, measured
from kvdoctor.parse import NOT_ASKED, Unread
from kvdoctor.parse.serverlog import LogEvent
from kvdoctor.readings import HostReadings, LogRun

SHARE_REUSED = 0.01


def add(view: View, host: HostReadings) -> None:
    """Derive stuck samples, tokens per request, over-booking, leaks, missed standing prefixes and missing telemetry."""
    engine = view.target.engine
    if engine is not None:
        reserves = engine.reserves_output(view.target.version, view.target.args)
        view.facts.set("admission.reserves", measured(reserves, "c", f"{engine.title} admits so") if reserves is not None
                       else Unknown("this version's admission policy is not known"))  # fmt: skip
    else:
        view.facts.set("admission.reserves", Unknown("the engine is not known"))
    _stuck(view)
    _context_last(view)
    for rank in view.rank_names:
        _overbooked(view, rank)
        _idle(view, rank)
    for name in ("kv.overbooked_tokens", "kv.idle_held"):
        parts = {r: f[name] for r, f in view.ranks.items() if name in f}
        if parts:
            view.facts.set(name, combine(TABLE[name].combine or "max", parts))
    _leak(view)
    _reported(view)
    _standing(view)
    _fits(view)
    _shown_rate(view)
    _telemetry(view, host)


def _stuck(view: View) -> None:
    """Samples in a row, up to the last, with nobody running, somebody waiting and not one token computed."""
    per_sample: list[tuple[bool, str]] = []
    scrapes = view.target.scrapes
    for index, scrape in enumerate(scrapes):
        running, waiting = scrape.values.get("req.running"), scrape.values.get("req.waiting")
        if running is None or waiting is None:
            continue
        still = True
        if index:
            for role in ("tok.prompt", "tok.generated"):
                now, before = scrape.values.get(role), scrapes[index - 1].values.get(role)
                if (
                    now
                    and before
                    and math.fsum(r.value for r in now.values()) != math.fsum(r.value for r in before.values())
                ):
                    still = False
        per_sample.append((
            all(r.value == 0 for r in running.values()) and any(r.value > 0 for r in waiting.values()) and still, scrape.origin,
        ))  # fmt: skip
    logged: list[tuple[bool, str]] = []
    for stat in view.stats:
        if stat.event.number("running") is None or stat.event.number("waiting") is None:
            continue
        rates = [v for k in ("gen_rate", "prompt_rate") if (v := stat.event.number(k)) is not None]
        logged.append((
            stat.event.number("running") == 0 and (stat.event.number("waiting") or 0) > 0 and stat.batch != "prefill" and not any(rates),
            stat.source,
        ))  # fmt: skip
    rows = per_sample if len(per_sample) >= len(logged) else logged
    if len(rows) < 2:
        view.facts.set(
            "req.stuck_samples",
            Unknown("fewer than two samples of running and waiting", "give more scrapes or a longer log"),
        )
        return
    count = 0
    for stuck, _ in reversed(rows):
        if not stuck:
            break
        count += 1
    view.facts.set("req.stuck_samples", measured(float(count), "w", rows[-1][1]))


def _context_last(view: View) -> None:
    """Tokens held per running request, in the last sample with anybody running."""
    best: Known | None = None
    for rank in view.rank_names:
        rows = [
            s
            for s in view.stats
            if s.rank == rank and (s.event.number("tokens_used") is not None) and s.event.number("running")
        ]
        if rows:
            used, running = rows[-1].event.number("tokens_used"), rows[-1].event.number("running")
            assert used is not None
            assert running is not None
            found = Known(used / running, used / running, "measured", "i", rows[-1].source)
        else:
            pool = view.rank(rank).number("kv.pool_tokens")
            busy = [s for s in samples(view, rank) if s.usage is not None and s.running]
            if not pool or not busy:
                continue
            last = busy[-1]
            assert last.usage is not None
            assert last.running is not None
            held = last.usage * pool / last.running
            found = Known(held, held, "estimated", "i", last.source, "usage x pool / running")
        if best is None or float(found.hi) > float(best.hi):
            best = found
    view.facts.set(
        "kv.context_last",
        best if best is not None else Unknown("nothing runs, or neither the tokens in use nor the pool size is told"),
    )


IDLE_SAMPLES = 3
"""Idle samples in a row: a transfer to another server or tier may hold blocks for a moment after the end."""


def _idle(view: View, rank: str) -> None:
    """What stays in use while nobody runs and nobody waits; only where usage leaves reusable prefixes out."""
    engine = view.target.engine
    if engine is None or engine.usage_counts_reusable or engine.name in ("llamacpp", "ollama"):
        return
    seen = [s for s in samples(view, rank) if s.usage is not None and s.running is not None and s.waiting is not None]
    if not seen:
        return
    held = (0.0, seen[-1].source)
    kept: list[tuple[float, str]] = []
    for s in seen:
        kept = [*kept, (s.usage, s.source)] if s.usage is not None and s.running == 0 and s.waiting == 0 else []
        if len(kept) >= IDLE_SAMPLES:
            held = max(held, min(kept[-IDLE_SAMPLES:]))
    view.rank(rank).set("kv.idle_held", measured(held[0], "w", held[1]))


def _overbooked(view: View, rank: str) -> None:
    """Tokens in use that no request can hold: used - (running + waiting) x longest request, in two samples in a row."""
    facts = view.rank(rank)
    engine = view.target.engine
    if engine is None or engine.name in ("llamacpp", "ollama"):
        facts.set("kv.overbooked_tokens", Unknown("this engine's usage counts reusable prefixes, so it proves no leak"))
        return
    pool, longest = facts.number("kv.pool_tokens"), longest_request(view)
    block = facts.number("kv.block_tokens")
    slack = block if engine.name == "vllm" and block else 0.0
    logged = [s for s in view.stats if s.rank == rank]
    rows: list[tuple[float, float, float | None, str]] = []
    if logged and logged[0].event.number("tokens_used") is not None:
        for stat in logged:
            used, running, waiting = (stat.event.number(k) for k in ("tokens_used", "running", "waiting"))
            if used is not None and running is not None and stat.batch != "prefill":
                rows.append((used, running, waiting, stat.source))
    elif pool:
        for s in samples(view, rank):
            if s.usage is not None and s.running is not None:
                rows.append((s.usage * pool, s.running, s.waiting, s.source))
    over: list[tuple[float, str]] = []
    judged = False
    for used, running, waiting, source in rows:
        if running == 0 and waiting == 0:
            over.append((max(used - slack, 0.0), source))
            judged = True
        elif longest is not None and waiting is not None:
            over.append((max(used - slack - (running + waiting) * longest, 0.0), source))
            judged = True
        else:
            over.append((0.0, source))
    pairs = [(min(a[0], b[0]), b[1]) for a, b in zip(over, over[1:], strict=False)]
    if not judged or not pairs:
        facts.set(
            "kv.overbooked_tokens",
            Unknown("the longest request, the pool size or two samples of tokens in use are missing"),
        )
        return
    top = max(pairs)
    facts.set("kv.overbooked_tokens", measured(top[0], "w", top[1]))


def _leak(view: View) -> None:
    found = [
        (r, e)
        for r, e in view.target.events("idle_check")
        if _lost(
            e.number("lost"), e.number("total"), e.number("available"), e.number("evictable"), e.number("protected")
        )
    ]
    if found:
        run, event = found[0]
        view.facts.set("kv.leak_reported", measured(True, "e", run.source(event)))
    elif view.target.logs or view.target.scrapes:
        view.facts.set("kv.leak_reported", measured(False, "e", "no such line"))


_WORK = frozenset({"iteration", "request_out", "retract", "preempt", "pool_full"})
_GRACEFUL = (0.0, 130.0, 143.0)
"""Exit codes of a process that was asked to end."""


_RECOVERED = 2
"""Signs of work after a report that take it back; the first stats line after it still averages over the time before."""


def _reported(view: View) -> None:
    """Did the server itself say that it failed or hangs, with no work after it? What it recovers from is no failure."""
    hangs: list[tuple[LogRun, LogEvent]] = []
    failures: list[tuple[LogRun, LogEvent]] = []
    for run in view.target.logs:
        busy, after = False, 0
        own: list[tuple[LogEvent, bool]] = []
        for event in run.events:
            if event.event == "stats":
                busy = bool(event.number("running"))
                worked = busy and any(event.number(rate) for rate in ("gen_rate", "prompt_rate"))
            else:
                worked = event.event in _WORK
            if worked and own:
                after += 1
                if after == _RECOVERED:
                    own, after = [], 0
            elif _is_hang(event, busy=busy):
                own.append((event, True))
            elif _is_failure(event):
                own.append((event, False))
        hangs += [(run, event) for event, hang in own if hang]
        failures += [(run, event) for event, _ in own]
    for name, found in (("target.hang_reported", hangs), ("target.failure_reported", failures)):
        if found:
            run, event = found[0]
            view.facts.set(name, measured(True, "e", run.source(event), note=_words(event)))
        else:
            view.facts.set(name, measured(False, "e", "no such line"))
    if failures:
        run, event = failures[0]
        view.note_event(event.time, f"the server reports: {_words(event)}", run.source(event))


def _words(event: LogEvent) -> str:
    words = event.text("text") or event.text("signal") or event.event
    process, code = event.text("process"), event.number("code")
    told = f"{process}: {words}" if process else words
    return (f"{told}, code {code:.0f}" if code is not None else told)[:160]


def _is_hang(event: LogEvent, *, busy: bool) -> bool:
    """A watchdog that ends the server; a worker that does not answer counts only while requests run: an idle one waits."""
    if event.event != "stall" or event.fields.get("soft") is True:
        return False
    return busy or event.fields.get("ends") is True


def _is_failure(event: LogEvent) -> bool:
    """A traceback alone may be one request's, or the noise of a shutdown."""
    if event.event == "exit":
        return event.number("code") not in _GRACEFUL and event.text("signal") not in ("SIGTERM", "SIGINT")
    return event.event == "error" and event.text("text") != "Traceback"


def _lost(lost: float | None, total: float | None, free: float | None, held: float | None, kept: float | None) -> bool:
    if lost is not None:
        return lost > 0
    if total is None or free is None or held is None:
        return False
    return total - free - held - (kept if kept is not None else 0.0) > 0


def _standing(view: View) -> None:
    """Prompts that reused nothing although what their slot had left was still held."""
    events = view.target.events("request_in", "request_out", "slot_reuse", "prefix_evicted", "banner")
    slots: dict[float, float] = {}
    asked: dict[tuple[float | None, str | None], float] = {}
    seen: set[tuple[float | None, str | None]] = set()
    misses, judged, source = 0, False, ""
    for run, event in events:
        slot, name = event.number("slot"), event.text("id")
        key = (slot, name)
        if event.event == "banner" or event.event == "prefix_evicted":
            slots.clear()
        elif event.event == "request_out" and slot is not None and (held := event.number("n_tokens")) is not None:
            slots[slot] = held
        elif event.event == "request_in" and (length := event.number("prompt_tokens")) is not None:
            asked[key] = length
        elif event.event == "slot_reuse" and slot is not None:
            if event.text("how") == "purge":
                slots.pop(slot, None)
                continue
            cached = event.number("cached_tokens")
            if cached is None or key in seen:
                continue
            seen.add(key)
            length = asked.get(key)
            before = slots.get(slot)
            if length is None:
                continue
            judged = True
            if before is not None and before >= length / 2 and cached < SHARE_REUSED * length:
                misses += 1
                source = source or run.source(event)
    if judged:
        view.facts.set("prefix.standing_misses", measured(float(misses), "e", source or "slot lines"))
    else:
        view.facts.set(
            "prefix.standing_misses", Unknown("no slot lines and no session trace tell what stood in the cache")
        )


WELL_FILLED = 0.8
"""Share of the pool that running requests may hold at the busiest moment: the rest is for their growth."""


def _fits(view: View) -> None:
    """To how many the limit on running requests may be raised: those that wait as well, as far as the pool takes them."""
    facts = view.facts
    limit, waiting = facts.number("req.limit_running"), facts.number("req.waiting_max")
    usage, slots = facts.number("kv.usage_max"), facts["kv.per_slot"]
    if limit is None or waiting is None:
        return
    wanted, told = limit + waiting, "as many as run and wait"
    per_slot = isinstance(slots, Known) and slots.lo is True
    if not per_slot and usage is not None and usage > 0 and limit * WELL_FILLED / usage < wanted:
        wanted, told = (
            limit * WELL_FILLED / usage,
            f"{limit:g} held {usage:.0%} of the pool, {WELL_FILLED:.0%} may be held",
        )
    facts.set("req.limit_fits", estimated(max(math.floor(wanted), limit), "w", "limit, queue and usage", note=told))


def _shown_rate(view: View) -> None:
    shown = [(v, s.source) for s in view.stats if (v := s.event.number("prefix_hit")) is not None]
    if shown:
        view.facts.set(
            "prefix.shown_hit_rate",
            measured(shown[-1][0], "i", shown[-1][1], note="the engine's own figure, over its own window"),
        )
        return
    gauge = [s for s in view.samples("prefix.hit_rate") if s.value >= 0]
    if gauge:
        view.facts.set("prefix.shown_hit_rate", measured(gauge[-1].value, "i", gauge[-1].source))
    else:
        view.facts.set("prefix.shown_hit_rate", Unknown("the engine shows no hit rate here"))


_NEEDED = ("kv.usage", "req.running", "req.waiting", "preempt.total")


def _telemetry(view: View, host: HostReadings) -> None:
    asked = missing = 0
    source = ""
    for timed in host.gpu:
        for reading in timed.value.readings:
            values = [
                v
                for v in (reading.mem_total, reading.mem_used)
                if not (isinstance(v, Unread) and v.reason == NOT_ASKED)
            ]
            if values:
                asked += 1
                if any(isinstance(v, Unread) for v in values):
                    missing += 1
                    source = source or f"{timed.origin}:{reading.line}"
    if asked:
        view.facts.set("telemetry.na_readings", measured(float(missing), "i", source or host.gpu[0].origin))
    else:
        view.facts.set("telemetry.na_readings", Unknown("no device reading with memory in the snapshot"))
    engine = view.target.engine
    if engine is None:
        view.facts.set("telemetry.missing", Unknown("the engine is not known"))
        return
    if view.target.scrapes:
        absent = [role for role in _NEEDED if _expected(view, role) and not view.has_role(role)]
        view.facts.set(
            "telemetry.missing", measured(float(len(absent)), "w", ", ".join(absent) or view.target.scrapes[-1].origin)
        )
    elif (
        view.target.events("request_out", "request_in")
        and not view.stats
        and any(t.event == "stats" for t in engine.templates)
    ):
        view.facts.set("telemetry.missing", measured(3.0, "w", "requests are served, and no stats line is printed"))
    else:
        view.facts.set("telemetry.missing", measured(0.0, "w", "what this engine tells is there"))


def _expected(view: View, role: str) -> bool:
    """The engine table has a series for this role in this version, and it is not one that appears only with its first event."""
    engine = view.target.engine
    if engine is None:
        return False
    for series in engine.series:
        if series.role == role and not series.absent_is_zero:
            version = view.target.version
            # a version that is not known may be a later one than the last that had the name
            return any(
                not n.ignore
                and (n.until is None if version is None else in_range(version, n.since, n.until) is not False)
                for n in series.names
            )
    return False
