"""Queue, pool, throughput and prefix facts: what the server was doing over the window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from kvdoctor.derive.view import ONE_SCRAPE, PAGE_OR_STATS, TAKE_TWO, Delta, Sampled, Stat, View, last_run, slope
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import Fact, Known, Unknown, bound, combine, estimated, measured
from kvdoctor.readings import Scrape

FULL = 0.95


def add(view: View) -> None:
    """Derive ``target.*``, ``req.*``, ``kv.*`` (pool and usage), ``tok.*`` and ``prefix.*``."""
    _target(view)
    for rank in view.rank_names:
        _queue(view, rank)
        _pool(view, rank)
        _usage(view, rank)
        _tokens(view, rank)
    for name in _RANK_FACTS:
        _combine(view, name)
    _finished(view)
    _refused(view)
    _whole_queue(view)
    _throughput(view)
    _prefix(view)
    _pressure(view)


_RANK_FACTS = (
    "req.running", "req.running_max", "req.waiting", "req.waiting_max", "req.waiting_capacity", "kv.pool_tokens", "kv.pool_bytes",
    "kv.block_tokens", "kv.usage_last", "kv.usage_max", "kv.usage_mean", "kv.full_share", "kv.evictable_share",
    "kv.secondary_usage_max", "kv.max_concurrency", "kv.lost_tokens", "kv.frozen_samples", "kv.growth_while_falling",
    "kv.bytes_per_token", "kv.block_idle_p50_s", "kv.block_reuse_gap_p50_s", "tok.prompt", "tok.generated", "tok.prompt_rate",
    "tok.gen_rate", "tok.gen_zero_samples",
)  # fmt: skip


def _combine(view: View, name: str) -> None:
    parts = {rank: facts[name] for rank, facts in view.ranks.items() if name in facts}
    if parts:
        view.facts.set(name, combine(TABLE[name].combine, parts))


# -------------------------------------------------------------------- target


def _target(view: View) -> None:
    facts, target, window = view.facts, view.target, view.window
    scrapes = target.scrapes
    usable = len(scrapes) + len(view.stats) + sum(len(i.value) for i in target.iterations) + len(target.slots)
    facts.set("target.samples", measured(float(usable), "w", "count of scrapes and stats lines"))
    facts.set("target.restarts", measured(float(target.earlier_runs), "w", "process start times and banners"))
    if target.earlier_runs:
        born = view.samples("run.start")
        view.note_event(
            born[0].value if born else window.start,
            "the server was restarted: nothing is compared across it",
            born[0].source if born else "banner",
        )
    if window.seconds is not None:
        facts.set("target.window_s", measured(window.seconds, "w", "first to last sample"))
    else:
        reason = "the samples carry no time" if usable > 1 else "fewer than two samples"
        facts.set(
            "target.window_s",
            Unknown(reason, "name files with an epoch (metrics_1795957400.prom) or give a log with time stamps"),
        )
    starts = view.samples("run.start")
    if starts and window.end is not None:
        facts.set("target.age_s", measured(window.end - starts[-1].value, "i", starts[-1].source))
    facts.set("target.phase", _phase(view))


def _phase(view: View) -> Fact:
    target = view.target
    for role in ("tok.prompt", "tok.generated", "req.running", "req.finished", "tok.prefill_compute"):
        for scrape in target.scrapes:
            for reading in scrape.values.get(role, {}).values():
                if reading.value > 0:
                    return measured("serving", "e", reading.source)
    for run in target.logs:
        work = [e for e in run.events if e.event in _SERVING]
        if work:
            ended = [e for e in run.events if e.event == "exit" and e.line > work[-1].line]
            if ended and not target.scrapes:
                return measured("stopped", "e", run.source(ended[0]))
            return measured("serving", "e", run.source(work[0]))
    if target.iterations or any(slot.held for timed in target.slots for slot in timed.value):
        return measured("serving", "e", "iteration stats" if target.iterations else "/slots")
    for run in target.logs:
        for event in run.events:
            if event.event in _STARTING:
                return measured("starting", "e", run.source(event))
    return Unknown("neither a start-up line nor any work was seen")


_SERVING = frozenset(
    {
        "stats",
        "request_in",
        "request_out",
        "iteration",
        "ready",
        "retract",
        "preempt",
        "pool_full",
        "idle_check",
        "page_oom",
        "request_failed",
        "context_limit",
    }
)
_STARTING = frozenset(
    {
        "banner",
        "args",
        "pool",
        "memory",
        "graphs_begin",
        "graphs_end",
        "start_error",
        "warmup",
        "multimodal_profile",
        "concurrency",
    }
)


# -------------------------------------------------------------------- gauges of a rank


def _gauge(view: View, rank: str, role: str, field: str) -> list[Sampled]:
    """Samples of a gauge from scrapes, else from stats lines of this rank."""
    samples = view.samples(role, rank)
    if samples:
        return samples
    out: list[Sampled] = []
    for order, stat in enumerate(s for s in view.stats if s.rank == rank):
        value = stat.event.number(field)
        if value is not None:
            out.append(Sampled(order, stat.time, value, stat.source))
    return out


def _last(samples: list[Sampled]) -> Fact:
    return measured(samples[-1].value, "i", samples[-1].source)


def _largest(samples: list[Sampled]) -> Fact:
    top = max(samples, key=lambda s: s.value)
    return measured(top.value, "w", top.source, note=f"largest of {len(samples)} samples")


def _queue(view: View, rank: str) -> None:
    facts = view.rank(rank)
    for role, field, name in (("req.running", "running", "req.running"), ("req.waiting", "waiting", "req.waiting")):
        samples = _queue_samples(view, rank, role, field)
        if samples:
            facts.set(name, _last(samples))
            logged = [
                Sampled(i, s.time, v, s.source)
                for i, s in enumerate(view.stats)
                if s.rank == rank and (v := s.event.number(field)) is not None
            ]
            facts.set(name + "_max", _largest([*samples, *logged]))
        else:
            facts.set(name, view.unknown(name, "neither a metric nor a log line tells it", PAGE_OR_STATS))
    capacity = view.samples("req.waiting_reason", rank, "capacity")
    if capacity:
        facts.set("req.waiting_capacity", _last(capacity))
    elif isinstance(waiting := facts["req.waiting"], Known):
        facts.set(
            "req.waiting_capacity",
            estimated(float(waiting.hi), "i", waiting.source, note="the reason is not told: all waiting"),
        )


def _queue_samples(view: View, rank: str, role: str, field: str) -> list[Sampled]:
    samples = _gauge(view, rank, role, field)
    if samples:
        return samples
    out: list[Sampled] = []
    # of a pipeline each record is one micro-batch: what it leaves out, another computes
    pipeline = any(row.micro_batch for timed in view.target.iterations for row in timed.value)
    for timed in view.target.iterations:
        for order, row in enumerate(timed.value):
            idle = None if pipeline else row.idle
            if field == "running":
                value = row.active if idle is None else row.scheduled
            elif idle is not None:
                # whoever was taken in and is not computed waits for memory as a queued one does; without the queue's
                # length that is the least that waits, and none of them is not nobody
                value = (idle or None) if row.queued is None else row.queued + idle
            else:
                value = None if row.queued is None else row.queued + (row.paused or 0.0)
            if value is not None:
                out.append(Sampled(order, row.time, float(value), f"{timed.origin}:{row.line}"))
    if out:
        return out
    if field == "running":
        for order, timed_slots in enumerate(view.target.slots):
            busy = sum(1 for slot in timed_slots.value if slot.processing)
            out.append(Sampled(order, timed_slots.time, float(busy), timed_slots.origin))
    return out


# -------------------------------------------------------------------- pool


def _pool(view: View, rank: str) -> None:
    facts, target = view.rank(rank), view.target
    block = _first_known(
        lambda: _from_samples(view, rank, "kv.block_tokens", "c"),
        lambda: _from_info(view, "block_size"),
        lambda: _from_events(view, rank, "block_tokens"),
        lambda: _from_iterations(view, "tokens_per_block"),
        lambda: _from_setting(view, "block_tokens"),
    )
    if block is not None:
        facts.set("kv.block_tokens", block)
    blocks = _first_known(
        lambda: _from_samples(view, rank, "kv.pool_blocks", "s"),
        lambda: _from_info(view, "num_gpu_blocks"),
        lambda: _from_events(view, rank, "blocks"),
        lambda: _from_iterations(view, "max_blocks"),
    )
    tokens = _first_known(
        lambda: _from_samples(view, rank, "kv.pool_tokens", "s"),
        lambda: _from_events(view, rank, "tokens"),
        lambda: _product(blocks, block),
        lambda: _from_loads(view),
        lambda: _from_setting(view, "pool_tokens"),
    )
    if tokens is not None:
        facts.set("kv.pool_tokens", tokens)
    size = _first_known(
        lambda: _from_samples(view, rank, "kv.pool_bytes", "s"),
        lambda: _from_events(view, rank, "bytes"),
        lambda: _from_events(view, rank, "available_bytes"),
        lambda: _product(blocks, _from_events(view, rank, "block_bytes")),
    )
    if size is not None:
        facts.set("kv.pool_bytes", size)
        pool = facts.number("kv.pool_tokens")
        if pool:
            facts.set(
                "kv.bytes_per_token",
                Known(
                    float(size.hi) / pool, float(size.hi) / pool, size.how, "s", size.source, "pool bytes / pool tokens"
                ),
            )
    ratio = None
    for run, event in target.events("concurrency"):
        value = event.number("ratio")
        if value is not None:
            ratio = measured(value, "s", run.source(event))
    if ratio is not None:
        facts.set("kv.max_concurrency", ratio)
    elif isinstance(tokens, Known):
        length = longest_request(view)
        if length:
            facts.set(
                "kv.max_concurrency",
                estimated(float(tokens.hi) / length, "s", tokens.source, note="pool tokens / max model length"),
            )
    for role, name in (("kv.block_idle", "kv.block_idle_p50_s"), ("kv.reuse_gap", "kv.block_reuse_gap_p50_s")):
        gathered = view.histogram(role)
        if not isinstance(gathered, Unknown) and (middle := gathered[0].quantile(0.5)) is not None:
            facts.set(name, Known(middle, middle, "measured", "L" if gathered[1] == "L" else "w", gathered[2]))


def longest_request(view: View) -> float | None:
    """Tokens of the longest request the server accepts: a setting, a start line, or the context of a slot."""
    value = _number(view.target.setting("max_model_len"))
    if value:
        return value
    for event_kind, field in (("pool", "max_model_len"), ("concurrency", "length"), ("pool", "slot_tokens")):
        for _, event in view.target.events(event_kind):
            found = event.number(field)
            if found:
                return found
    return None


def _first_known(*sources: Callable[[], Known | None]) -> Known | None:
    for source in sources:
        found = source()
        if found is not None:
            return found
    return None


def _from_samples(view: View, rank: str, role: str, span: str) -> Known | None:
    samples = view.samples(role, rank)
    if not samples or samples[-1].value <= 0:
        return None
    return Known(samples[-1].value, samples[-1].value, "measured", "c" if span == "c" else "s", samples[-1].source)


def _from_info(view: View, label: str) -> Known | None:
    for scrape in view.target.scrapes:
        info = scrape.infos.get("kv.info")
        if info is not None and (value := _number(info[0].get(label))):
            return Known(value, value, "measured", "s", info[1])
    return None


def _from_events(view: View, rank: str, field: str) -> Known | None:
    """The last pool line that carries the field (the dry run of a fit comes first and does not count)."""
    found: Known | None = None
    parts: dict[tuple[str, str], float] = {}
    for run, event in view.target.events("pool"):
        value = event.number(field)
        if value is None or value <= 0 or event.fields.get("dry_run"):
            continue
        found = Known(value, value, "measured", "s", run.source(event))
        if event.fields.get("part"):
            parts[(event.rank, str(event.fields["part"]))] = value
    if parts and field == "bytes":
        # a draft model's, a sliding-window or a mamba pool is laid out beside the main one, each with its own line
        ranks = {r for r, _ in parts}
        total = max(math.fsum(v for (r, _), v in parts.items() if r == rank_name) for rank_name in ranks)
        return Known(total, total, "measured", "s", found.source, "all pools of one rank") if found else None
    return found


def _from_iterations(view: View, field: str) -> Known | None:
    for timed in view.target.iterations:
        for row in timed.value:
            value = getattr(row, field)
            if value:
                return Known(float(value), float(value), "measured", "s", f"{timed.origin}:{row.line}")
    return None


def _of_seen_ranks(view: View, limit: Known | None, *, shared: bool | None = None) -> Known | None:
    """A limit as set, for the ranks whose running requests are added up: an excerpt of a log may show some of them only."""
    engine = view.target.engine
    ranks = len({s.rank for s in view.stats} | {r for s in view.target.scrapes for r in s.ranks()})
    if limit is None or engine is None or ranks < 2:
        return limit
    times = float(ranks)
    if engine.shared_limit if shared is None else shared:
        # a limit for all ranks together is split between them
        times = ranks / max(_number(view.target.setting("dp")) or 1.0, ranks)
    if times == 1.0:
        return limit
    view.facts.set("req.limit_ranks", measured(times, "c", f"{ranks} ranks are seen"))
    return replace(
        limit, lo=float(limit.lo) * times, hi=float(limit.hi) * times, note=f"{limit.hi:g} as set, for {ranks} ranks"
    )


def _from_setting(view: View, name: str) -> Known | None:
    value = _number(view.target.setting(name))
    return Known(value, value, "measured", "c", f"setting {name}") if value else None


def _from_loads(view: View) -> Known | None:
    for timed in view.target.loads:
        sizes = [load.pool_tokens for load in timed.value.loads if load.pool_tokens]
        if sizes:
            return Known(float(sizes[0]), float(sizes[0]), "measured", "s", timed.origin)
    for info in view.target.server_info:
        if info.value.pool_tokens:
            return Known(float(info.value.pool_tokens), float(info.value.pool_tokens), "measured", "s", info.origin)
    return None


def _product(a: Known | None, b: Known | None) -> Known | None:
    if a is None or b is None:
        return None
    value = float(a.hi) * float(b.hi)
    return Known(value, value, a.how, "s", a.source, "blocks x block size")


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# -------------------------------------------------------------------- usage


def usage_samples(view: View, rank: str) -> tuple[list[Sampled], list[Sampled], str]:
    """Usage of the main pool from scrapes, from stats lines, and how sure it is."""
    scraped = view.samples("kv.usage", rank)
    logged: list[Sampled] = []
    for order, stat in enumerate(s for s in view.stats if s.rank == rank):
        value = stat.event.number("kv_usage")
        if value is not None:
            logged.append(Sampled(order, stat.time, value, stat.source))
    if scraped or logged:
        return scraped, logged, "measured"
    out: list[Sampled] = []
    for timed in view.target.iterations:
        for order, row in enumerate(timed.value):
            if row.used_blocks is not None and row.max_blocks:
                out.append(Sampled(order, row.time, row.used_blocks / row.max_blocks, f"{timed.origin}:{row.line}"))
    if out:
        return out, [], "measured"
    used = view.samples("kv.used_tokens", rank)
    pool = view.rank(rank).number("kv.pool_tokens")
    if used and pool:
        return [Sampled(s.order, s.time, s.value / pool, s.source) for s in used], [], "measured"
    for order, timed_slots in enumerate(view.target.slots):
        held = [slot.held for slot in timed_slots.value]
        limit = {slot.n_ctx for slot in timed_slots.value if slot.n_ctx}
        if any(h is not None for h in held) and limit:
            # a unified pool shows the whole context at every slot, split slots their own share; without the pool size
            # from the log the larger of the two readings keeps the usage from being overstated
            capacity = pool or sum(slot.n_ctx for slot in timed_slots.value if slot.n_ctx)
            total = sum(h for h in held if h is not None)
            out.append(Sampled(order, timed_slots.time, min(total / capacity, 1.0), timed_slots.origin))
    return out, [], "estimated"


def _usage(view: View, rank: str) -> None:
    facts = view.rank(rank)
    scraped, logged, how = usage_samples(view, rank)
    if not scraped and not logged:
        for name in ("kv.usage_last", "kv.usage_max", "kv.usage_mean", "kv.full_share"):
            facts.set(name, view.unknown(name, "neither a metric nor a log line tells the usage of the KV pool", PAGE_OR_STATS))  # fmt: skip
    else:
        main = scraped or logged
        last, top = main[-1], max([*scraped, *logged], key=lambda s: s.value)
        made = measured if how == "measured" else estimated
        facts.set("kv.usage_last", made(last.value, "i", last.source))
        facts.set(
            "kv.usage_max", made(top.value, "w", top.source, note=f"largest of {len(scraped) + len(logged)} samples")
        )
        facts.set("kv.usage_mean", made(math.fsum(s.value for s in main) / len(main), "w", last.source))
        # a rounded 99.9 % is full; so is anything at or above the published line
        facts.set("kv.full_share", made(sum(s.value >= FULL for s in main) / len(main), "w", last.source))
        _shape(view, rank, main)
    available = view.samples("kv.available_tokens", rank)
    evictable = view.samples("kv.evictable_tokens", rank)
    pool = facts.number("kv.pool_tokens")
    if evictable and pool:
        facts.set("kv.evictable_share", measured(evictable[-1].value / pool, "i", evictable[-1].source))
    else:
        for run, event in view.target.events("idle_check"):
            held = event.number("evictable")
            total = event.number("total") or pool
            if held is not None and total:
                facts.set("kv.evictable_share", measured(held / total, "i", run.source(event)))
        if "kv.evictable_share" not in facts:
            facts.set(
                "kv.evictable_share",
                view.unknown("kv.evictable_share", "nothing tells how much of the pool reusable prefixes hold"),
            )
    _secondary(view, rank)
    _lost(view, rank, available, evictable, pool)


def _secondary(view: View, rank: str) -> None:
    best: Known | None = None
    for sample in view.samples("kv.secondary_usage", rank):
        if best is None or sample.value > float(best.hi):
            best = Known(sample.value, sample.value, "measured", "w", sample.source)
    for stat in view.stats:
        value = stat.event.number("secondary_usage")
        if stat.rank == rank and value is not None and (best is None or value > float(best.hi)):
            best = Known(value, value, "measured", "w", stat.source)
    if best is not None:
        view.rank(rank).set("kv.secondary_usage_max", best)
    else:
        view.rank(rank).set(
            "kv.secondary_usage_max", view.unknown("kv.secondary_usage_max", "no secondary pool is reported")
        )


def _lost(view: View, rank: str, available: list[Sampled], evictable: list[Sampled], pool: float | None) -> None:
    """Tokens that are neither used, free nor reusable while nothing runs: a leak."""
    facts = view.rank(rank)
    running = {s.order: s.value for s in view.samples("req.running", rank)}
    usage = {s.order: s for s in view.samples("kv.usage", rank)}
    if pool and available and evictable and running:
        idle = [
            (a, e) for a, e in zip(available, evictable, strict=False) if running.get(a.order) == 0
        ]  # fmt: skip
        if idle:
            a, e = idle[-1]
            used = usage[a.order].value * pool if a.order in usage else 0.0
            facts.set("kv.lost_tokens", measured(max(pool - a.value - e.value - used, 0.0), "i", a.source))
            return
    for run, event in view.target.events("idle_check"):
        lost = event.number("lost")
        if lost is not None:
            facts.set("kv.lost_tokens", measured(max(lost, 0.0), "i", run.source(event)))
            return
        free, held, total = event.number("available"), event.number("evictable"), event.number("total") or pool
        if free is not None and held is not None and total:
            facts.set("kv.lost_tokens", measured(max(total - free - held, 0.0), "i", run.source(event)))
            return
    if (
        pool
        and running
        and usage
        and view.target.engine is not None
        and view.target.engine.usage_counts_reusable is False
    ):
        idle_usage = [usage[o] for o, r in running.items() if r == 0 and o in usage]
        waiting = {s.order: s.value for s in view.samples("req.waiting", rank)}
        quiet = [s for s in idle_usage if waiting.get(s.order) == 0]
        if quiet:
            facts.set(
                "kv.lost_tokens",
                estimated(
                    quiet[-1].value * pool, "i", quiet[-1].source, note="usage while nothing runs or waits x pool"
                ),
            )


def _shape(view: View, rank: str, usage: list[Sampled]) -> None:
    """How usage moves against running: frozen to the decimal, or rising while running falls."""
    facts = view.rank(rank)
    pairs = _with_running(view, rank, usage)
    busy = [u.value for u, running in pairs if running > 0]
    if busy:
        facts.set("kv.frozen_samples", measured(float(last_run(busy)), "w", usage[-1].source))
    if len(pairs) >= 3:
        rise = 0.0
        low: tuple[float, float] | None = None
        for u, running in pairs:
            if low is None or running > low[1] or u.value < low[0]:
                low = (u.value, running)
            elif running < low[1]:
                rise = max(rise, u.value - low[0])
        facts.set("kv.growth_while_falling", measured(rise, "w", usage[-1].source))


def _with_running(view: View, rank: str, usage: list[Sampled]) -> list[tuple[Sampled, float]]:
    if view.samples("kv.usage", rank):
        running = {s.order: s.value for s in view.samples("req.running", rank)}
        return [(u, running[u.order]) for u in usage if u.order in running]
    out: list[tuple[Sampled, float]] = []
    for order, stat in enumerate(s for s in view.stats if s.rank == rank):
        kv, running_now = stat.event.number("kv_usage"), stat.event.number("running")
        if kv is not None and running_now is not None:
            out.append((Sampled(order, stat.time, kv, stat.source), running_now))
    return out


# -------------------------------------------------------------------- tokens


def _tokens(view: View, rank: str) -> None:
    facts = view.rank(rank)
    for role, name, field in (
        ("tok.prompt", "tok.prompt", "prompt_rate"),
        ("tok.generated", "tok.generated", "gen_rate"),
    ):
        counted = view.counter(role, rank)
        rate_name = "tok.prompt_rate" if name == "tok.prompt" else "tok.gen_rate"
        if isinstance(counted, Known):
            facts.set(name, counted)
            seconds = view.window.seconds
            if counted.span == "w" and seconds:
                facts.set(rate_name, measured(float(counted.hi) / seconds, "w", counted.source))
        rows = [s for s in view.stats if s.rank == rank and s.event.number(field) is not None]
        if rows and rate_name not in facts:
            value = rows[-1].event.number(field)
            assert value is not None
            facts.set(rate_name, measured(value, "i", rows[-1].source))
        gauge = view.samples("tok.gen_rate" if name == "tok.generated" else "tok.prompt_rate", rank)
        if gauge and rate_name not in facts:
            facts.set(rate_name, _last(gauge))
        if name not in facts:
            total = _integrate([(s.time, s.event.number(field)) for s in rows])
            if total is not None:
                facts.set(
                    name, estimated(total, "w", rows[-1].source, note="sum of the logged rates over their intervals")
                )
        if name not in facts and name == "tok.prompt":
            new = [
                (v, s.source)
                for s in view.stats
                if s.rank == rank and s.batch == "prefill" and (v := s.event.number("new_tokens")) is not None
            ]
            if new:
                facts.set(
                    name,
                    estimated(
                        math.fsum(v for v, _ in new), "w", new[-1][1], note="new tokens of the prefill lines in the log"
                    ),
                )
        if name not in facts and name == "tok.generated" and (stepped := _from_steps(view)) is not None:
            facts.set(name, stepped)
        if name not in facts and isinstance(counted, Unknown):
            facts.set(name, counted)
    quiet = 0
    seen = False
    for a, b in zip(view.target.scrapes, view.target.scrapes[1:], strict=False):
        made, before = _of(b, "tok.generated", rank), _of(a, "tok.generated", rank)
        running = _of(a, "req.running", rank), _of(b, "req.running", rank)
        if made is not None and before is not None and running[0] is not None and running[1] is not None:
            seen = True
            quiet += made == before and min(v for v in running if v is not None) > 0
    if seen:
        facts.set("tok.gen_zero_samples", measured(float(quiet), "w", "scrapes without a new token while requests ran"))
    zero = [s for s in view.stats if s.rank == rank and s.batch != "prefill"
            and (s.event.number("running") or 0) > 0 and s.event.number("gen_rate") is not None]  # fmt: skip
    if zero:
        facts.set(
            "tok.gen_zero_samples",
            measured(float(sum(s.event.number("gen_rate") == 0 for s in zero)), "w", zero[-1].source),
        )


def _from_steps(view: View) -> Fact | None:
    """Tokens generated by the listed engine steps: one per decoding request; steps left out made up to as many each."""
    rows = [(row, t.origin) for t in view.target.iterations for row in t.value if row.generation_requests is not None]
    if not rows:
        return None
    made = [row.generation_requests for row, _ in rows if row.generation_requests is not None]
    numbers = [row.iteration for row, _ in rows if row.iteration is not None]
    least = math.fsum(made)
    steps = max(numbers) - min(numbers) + 1 if numbers else float(len(made))
    source = f"{rows[-1][1]}:{rows[-1][0].line}"
    return bound(least, max(least, steps * max(made)), "w", source, note="decoding requests summed over engine steps")


def _of(scrape: Scrape, role: str, rank: str) -> float | None:
    found = [r.value for (rk, _), r in scrape.values.get(role, {}).items() if rk == rank]
    return math.fsum(found) if found else None


def _integrate(points: list[tuple[float | None, float | None]]) -> float | None:
    """Sum of rate x interval; an interval is the gap to the line before (the first line has none)."""
    total, any_gap = 0.0, False
    for (t0, _), (t1, rate) in zip(points, points[1:], strict=False):
        if t0 is None or t1 is None or rate is None:
            continue
        gap = t1 - t0
        if 0 < gap <= 60:
            total += rate * gap
            any_gap = True
    return total if any_gap else None


# -------------------------------------------------------------------- target level


def _finished(view: View) -> None:
    facts = view.facts
    total = view.delta("req.finished")
    bad_keys = {"abort", "aborted", "error", "cancelled", "timeout", "repetition"}
    if isinstance(total, Delta):
        parts = {k: d for k in view.keys("req.finished") if isinstance(d := view.delta("req.finished", key=k), Delta)}
        bad = math.fsum(d.value for k, d in parts.items() if k.lower() in bad_keys)
        # the same series read by its reason label would count aborts and errors twice
        own = total.source.rsplit(" ", 1)[-1]
        extra = [
            d for role in ("req.aborted", "req.failed")
            if isinstance(d := view.delta(role), Delta) and d.source.rsplit(" ", 1)[-1] != own
        ]  # fmt: skip
        failed = bad + math.fsum(d.value for d in extra)
        good = total.value - bad
        span = total.span
        facts.set("req.finished", Known(good, good, "measured", "L" if span == "L" else "w", total.source, events=good))
        told = any(k for k in parts)
        if told and good + failed > 0:
            length = math.fsum(d.value for k, d in parts.items() if k.lower() in ("length", "max_tokens"))
            share = length / good if good > 0 else None
            if share is not None:
                facts.set(
                    "req.length_share",
                    Known(share, share, "measured", "L" if span == "L" else "w", total.source, requests=good),
                )
        if (told or extra) and good + failed > 0:
            share = failed / (good + failed)
            facts.set(
                "req.error_share",
                Known(share, share, "measured", "L" if span == "L" else "w", total.source, requests=good + failed),
            )
    else:
        _finished_from_log(view)
    if "req.finished" not in facts:
        facts.set(
            "req.finished",
            view.unknown("req.finished", total.reason if isinstance(total, Unknown) else "not told", TAKE_TWO),
        )
    rejected = view.counter("req.rejected")
    if isinstance(rejected, Known):
        facts.set("req.rejected", rejected)
    else:
        refused = view.target.events("request_rejected")
        if refused:
            facts.set(
                "req.rejected",
                measured(float(sum(e.repeat for _, e in refused)), "w", refused[0][0].source(refused[0][1])),
            )
    limit = _first_known(
        lambda: _limit_from_samples(view),
        lambda: _limit_from_info(view),
        lambda: _of_seen_ranks(view, _from_setting(view, "max_running")),
        lambda: _of_seen_ranks(view, _from_pool_events(view), shared=False),
        lambda: _from_iterations(view, "max_active"),
        lambda: _limit_from_stats(view),
        lambda: _limit_from_slots(view),
    )
    if limit is not None:
        facts.set("req.limit_running", limit)
    else:
        default = _number(view.target.default("max_running"))
        if default:
            assumed = _of_seen_ranks(view, Known(default, default, "assumed", "c", "the version's default"))
            assert assumed is not None
            facts.set("req.limit_running", assumed)
    if "req.limit_running" in facts and "req.limit_ranks" not in facts:
        facts.set("req.limit_ranks", measured(1.0, "c", "as told"))


_WHOLE_POOL = ("pool", "capacity of block", "kv cache", "cache out of memory", "does not fit")


def _refused(view: View) -> None:
    """Requests refused because the whole pool, or their context, cannot hold them."""
    facts = view.facts
    seen = view.target.events(
        "request_in", "request_out", "stats", "context_limit", "request_failed", "request_rejected"
    )
    if not seen:
        return
    pool = [
        (r, e) for r, e in view.target.events("request_failed", "request_rejected", "context_limit")
        if any(w in (e.text("why") or "").lower() for w in _WHOLE_POOL) or "pool" in e.template
    ]  # fmt: skip
    if view.target.events("pool_full"):
        pool = []  # an overflow of a shared pool ends active requests; it refuses nobody for its own size
    source = pool[0][0].source(pool[0][1]) if pool else seen[0][0].source(seen[0][1])
    facts.set("req.oversize_refused", measured(float(sum(e.repeat for _, e in pool)), "w", source))
    chosen = {id(e) for _, e in pool}
    names: set[object] = set()
    lengths: dict[str, float] = {}
    needed: list[float] = []
    first = ""
    limit = max((v for _, e in view.target.events("pool") if (v := e.number("slot_tokens")) is not None), default=None)
    shared = bool(view.target.events("pool_full"))
    for run, event in view.target.events("request_in", "context_limit", "context_shift", "request_out"):
        name = event.text("id")
        if event.event == "request_in":
            length = (
                event.number("prompt_tokens") if event.number("prompt_tokens") is not None else event.number("n_tokens")
            )
            if name and length is not None:
                lengths[name] = length
            continue
        hit = event.event in ("context_limit", "context_shift") and id(event) not in chosen
        if event.event == "request_out":
            held = event.number("n_tokens")
            full = limit is not None and held is not None and held + 1 >= limit and not shared
            hit = bool(event.fields.get("truncated")) or full
        if hit:
            names.add(name if name else (run.origin, event.line))
            first = first or run.source(event)
            length = event.number("n_tokens")
            if length is None and name is not None:
                length = lengths.get(name)
            if length is not None and event.event != "request_out":
                needed.append(length)
    facts.set("req.context_limited", measured(float(len(names)), "w", first or seen[0][0].source(seen[0][1])))
    requests = [
        float(len({e.text("id") for _, e in view.target.events("request_in") if e.text("id")})), float(len(names)),
        *[v for n in ("req.finished", "work.concurrency_max") if (v := facts.number(n)) is not None],
    ]  # fmt: skip
    counted = isinstance(facts["req.finished"], Known) or bool(view.target.events("request_in"))
    share = len(names) / max(requests) if max(requests) > 0 else 0.0
    made = measured if counted else estimated
    facts.set(
        "req.context_share",
        made(share, "w", first or seen[0][0].source(seen[0][1]), note="requests cut by their context / requests seen"),
    )
    if needed:
        facts.set("req.context_needed", measured(max(needed), "w", first))


def _limit_from_stats(view: View) -> Known | None:
    told = ((s.event.number("max_running"), s.source) for s in reversed(view.stats))
    return next((Known(v, v, "measured", "c", source) for v, source in told if v), None)


def _limit_from_samples(view: View) -> Known | None:
    parts = [view.samples("req.limit_running", rank) for rank in view.rank_names]
    values = [p[-1].value for p in parts if p]
    return (
        Known(math.fsum(values), math.fsum(values), "measured", "c", next(p[-1].source for p in parts if p))
        if values
        else None
    )


def _from_pool_events(view: View) -> Known | None:
    for run, event in view.target.events("pool"):
        value = event.number("max_running")
        if value:
            return Known(value, value, "measured", "c", run.source(event))
    return None


def _limit_from_info(view: View) -> Known | None:
    for info in view.target.server_info:
        limits = [state.max_running for state in info.value.states if state.max_running]
        if limits:
            return Known(float(sum(limits)), float(sum(limits)), "measured", "c", info.origin)
    return None


def _limit_from_slots(view: View) -> Known | None:
    for timed in view.target.slots:
        value = float(len(timed.value))
        return Known(value, value, "measured", "c", timed.origin) if value else None
    return None


def _finished_from_log(view: View) -> None:
    ended = view.target.events("request_out")
    if not ended:
        _finished_from_steps(view)
        return
    good = [(r, e) for r, e in ended if e.text("finish") != "abort"]
    failed = view.target.events("request_failed")
    source = ended[0][0].source(ended[0][1])
    count = float(sum(e.repeat for _, e in good))
    view.facts.set("req.finished", measured(count, "w", source, events=count))
    told = [e for _, e in good if e.text("finish")]
    if told:
        share = sum(e.text("finish") == "length" for e in told) / len(told)
        view.facts.set("req.length_share", measured(share, "w", source, requests=float(len(told))))
    if good or failed:
        share = len(failed) / (len(failed) + len(good))
        view.facts.set("req.error_share", measured(share, "w", source, requests=float(len(failed) + len(good))))


def _finished_from_steps(view: View) -> None:
    """Requests completed in the listed engine steps; of steps left out nothing is known, as of what was paused in them."""
    rows = [(row, t.origin) for t in view.target.iterations for row in t.value if row.completed is not None]
    if not rows:
        return
    count = math.fsum(row.completed for row, _ in rows if row.completed is not None)
    note = f"sum of completed requests over {len(rows)} iterations"
    source = f"{rows[0][1]}:{rows[0][0].line}"
    view.facts.set("req.finished", Known(count, count, "measured", "w", source, note, events=count))


def waiting_points(view: View) -> list[tuple[float | None, float, str]]:
    """The whole queue over time, summed over ranks: at each scrape, or from the stats lines of all of them."""
    out: list[tuple[float | None, float, str]] = []
    for scrape in view.target.scrapes:
        readings = scrape.values.get("req.waiting", {})
        if readings:
            out.append(
                (scrape.time, math.fsum(r.value for r in readings.values()), next(iter(readings.values())).source)
            )
    if out:
        return out
    logged = _rounds(view, lambda stat: _numbers(stat, "waiting"))
    if logged:
        return [(time, waiting, source) for time, (waiting,), source in logged]
    return [(s.time, s.value, s.source) for s in _queue_samples(view, "", "req.waiting", "waiting")]


def _whole_queue(view: View) -> None:
    facts = view.facts
    points = waiting_points(view)
    if len(points) >= 2:
        facts.set("req.waiting_growth", measured(points[-1][1] - points[0][1], "w", points[-1][2]))
        rate = slope((t, v) for t, v, _ in points if t is not None)
        if rate is not None:
            facts.set(
                "req.waiting_slope",
                estimated(rate, "w", points[-1][2], note=f"least squares over {len(points)} samples"),
            )
        for (_, before, _), (t, after, source) in zip(points, points[1:], strict=False):
            if after >= before + max(3.0, before):
                view.note_event(t, f"the queue starts to grow ({before:.0f} to {after:.0f} waiting)", source)
                break
    running, top, waiting = (
        facts.number("req.running"),
        facts.number("req.running_max"),
        facts.number("req.waiting_max"),
    )
    if running is not None and top and waiting is not None:
        drop = 1 - running / top if waiting > 0 else 0.0
        facts.set("req.running_drop", measured(drop, "w", "running: last against largest"))
    concurrency = [r + w for r, w in _running_and_waiting(view)]
    if concurrency:
        facts.set("work.concurrency_max", measured(max(concurrency), "w", "running + waiting"))


def _running_and_waiting(view: View) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for scrape in view.target.scrapes:
        running, waiting = scrape.values.get("req.running", {}), scrape.values.get("req.waiting", {})
        if running:
            out.append((math.fsum(r.value for r in running.values()), math.fsum(r.value for r in waiting.values())))
    out += [(running, waiting) for _, (running, waiting), _ in _rounds(view, _queue_of)]
    for timed in view.target.iterations:
        for row in timed.value:
            if row.active is not None:
                out.append((float(row.active), float(row.queued) if row.queued is not None else 0.0))
    return out


SILENT_S = 60.0
"""Without a line for this long a rank counts as generating nothing: engines print one every few seconds of work."""


def _rounds(
    view: View, read: Callable[[Stat], tuple[float, ...] | None], *, silent: float = math.inf
) -> list[tuple[float | None, tuple[float, ...], str]]:
    """(time, numbers summed over all ranks, source) from stats lines, each time every rank that speaks has spoken.

    Ranks print their lines one after the other and not equally often: whoever has not spoken again stands with what it said
    last, unless it has been ``silent``. Before each rank has spoken there is no sum; nor is there one of lines without a
    clock, which may come from several files.
    """
    lines = [(stat, numbers) for stat in view.stats if (numbers := read(stat)) is not None]
    ranks = {stat.rank for stat, _ in lines}
    if len(ranks) == 1:
        return [(stat.time, numbers, stat.source) for stat, numbers in lines]
    dated = [(stat.time, stat, numbers) for stat, numbers in lines if stat.time is not None]
    if len(dated) < len(lines):
        return []
    dated.sort(key=lambda line: line[0])
    held: dict[str, tuple[float, tuple[float, ...]]] = {}
    spoken: set[str] = set()
    out: list[tuple[float | None, tuple[float, ...], str]] = []
    for index, (time, stat, numbers) in enumerate(dated):
        held[stat.rank] = (time, numbers)
        spoken.add(stat.rank)
        following = dated[index + 1][1].rank if index + 1 < len(dated) else stat.rank
        if len(held) == len(ranks) and following in spoken:
            told = [one for since, one in held.values() if time - since <= silent]
            out.append((time, tuple(math.fsum(column) for column in zip(*told, strict=True)), stat.source))
            spoken.clear()
        elif following in spoken:
            spoken.clear()
    return out


def _numbers(stat: Stat, *names: str) -> tuple[float, ...] | None:
    """These fields of a stats line, None when it lacks one."""
    found = tuple(value for name in names if (value := stat.event.number(name)) is not None)
    return found if len(found) == len(names) else None


def _queue_of(stat: Stat) -> tuple[float, float] | None:
    running, waiting = stat.event.number("running"), stat.event.number("waiting")
    return None if running is None else (running, waiting if waiting is not None else 0.0)


def _rate_of(stat: Stat) -> tuple[float, float] | None:
    rate, running = stat.event.number("gen_rate"), stat.event.number("running")
    if rate is None or running is None or stat.batch == "prefill":
        return None
    return rate, running


def _throughput(view: View) -> None:
    """How far generation fell from its best while requests were running."""
    logged = _rounds(view, _rate_of, silent=SILENT_S)
    rates = [(rate, source) for _, (rate, running), source in logged if running > 0]
    if len(rates) < 2:
        scrapes = [s for s in view.target.scrapes if s.time is not None and "tok.generated" in s.values]
        if len(scrapes) >= 3:
            rates = []
            for a, b in zip(scrapes, scrapes[1:], strict=False):
                gap = (b.time or 0.0) - (a.time or 0.0)
                made = math.fsum(r.value for r in b.values["tok.generated"].values()) - math.fsum(
                    r.value for r in a.values["tok.generated"].values()
                )
                running = math.fsum(r.value for r in b.values.get("req.running", {}).values())
                if gap > 0 and made >= 0 and running > 0:
                    rates.append((made / gap, b.origin))
    if len(rates) >= 2:
        top = max(r for r, _ in rates)
        if top > 0:
            view.facts.set(
                "tok.gen_drop",
                estimated(1 - rates[-1][0] / top, "w", rates[-1][1], note="last generation rate against the largest"),
            )


def _prefix(view: View) -> None:
    facts = view.facts
    enabled = view.target.setting("prefix")
    if enabled is not None:
        facts.set("prefix.enabled", measured(enabled.lower() in ("true", "1", "yes", "on"), "c", "arguments"))
    if enabled is not None and isinstance(facts["prefix.enabled"], Known) and facts["prefix.enabled"].hi is False:
        facts.set("prefix.hit_share", Unknown("prefix reuse is off"))
        facts.set("prefix.lookup_tokens", Unknown("prefix reuse is off"))
        return
    looked, hits = view.delta("prefix.queries"), view.delta("prefix.hits")
    if isinstance(looked, Delta):
        span = "L" if looked.span == "L" else "w"
        facts.set(
            "prefix.lookup_tokens",
            Known(looked.value, looked.value, "measured", "L" if span == "L" else "w", looked.source),
        )
        if isinstance(hits, Delta) and looked.value > 0:
            share = min(hits.value / looked.value, 1.0)
            facts.set("prefix.hit_share", Known(share, share, "measured", "L" if span == "L" else "w", hits.source))
    if "prefix.hit_share" not in facts:
        _prefix_from_log(view)
    if "prefix.hit_share" not in facts and (rate := [s for s in view.samples("prefix.hit_rate") if s.value >= 0]):
        facts.set(
            "prefix.hit_share",
            estimated(rate[-1].value, "i", rate[-1].source, note="the engine's own rate, over its own window"),
        )
    outside, found = view.delta("prefix.external_queries"), view.delta("prefix.external_hits")
    if isinstance(outside, Delta) and isinstance(found, Delta) and outside.value > 0:
        share = min(found.value / outside.value, 1.0)
        facts.set(
            "prefix.external_hit_share",
            Known(share, share, "measured", "L" if outside.span == "L" else "w", found.source),
        )
    else:
        lookups = [
            (loaded, total, r.source(e))
            for r, e in view.target.events("offload_lookup")
            if (total := e.number("total")) and (loaded := e.number("need_load")) is not None
        ]
        if lookups:
            facts.set(
                "prefix.external_hit_share",
                measured(
                    math.fsum(part for part, _, _ in lookups) / math.fsum(whole for _, whole, _ in lookups),
                    "w",
                    lookups[0][2],
                    note="tokens loaded from the second tier / looked up",
                ),
            )
        elif rates := [(v, s.source) for s in view.stats if (v := s.event.number("external_hit")) is not None]:
            # the engine's own rate over its last lookups: the largest of the window, so that a share of none is none throughout
            share, where = max(rates)
            facts.set(
                "prefix.external_hit_share",
                estimated(share, "w", where, note="the engine's own rate, largest of the window"),
            )


def _prefix_from_log(view: View) -> None:
    looked_up = [
        (r, e)
        for r, e in view.target.events("offload_lookup")
        if e.number("total") and e.number("hit") is not None and e.number("need_load") is not None
    ]
    if looked_up and not view.stats:
        # what a second tier holds and need not load is already in device memory
        total = math.fsum(v for _, e in looked_up if (v := e.number("total")) is not None)
        here = math.fsum(
            h - n
            for _, e in looked_up
            if (h := e.number("hit")) is not None and (n := e.number("need_load")) is not None
        )
        view.facts.set(
            "prefix.hit_share",
            estimated(
                min(max(here, 0.0) / total, 1.0),
                "w",
                looked_up[0][0].source(looked_up[0][1]),
                note="found by the second tier and not loaded: already on the device",
            ),
        )
        view.facts.set("prefix.lookup_tokens", measured(total, "w", looked_up[0][0].source(looked_up[0][1])))
        return
    cached = [
        (s.event.number("cached_tokens"), s.event.number("new_tokens"), s.source)
        for s in view.stats
        if s.batch == "prefill"
    ]
    found = [(c, n, src) for c, n, src in cached if c is not None and n is not None]
    if found:
        hit, new = math.fsum(c for c, _, _ in found), math.fsum(n for _, n, _ in found)
        if hit + new > 0:
            view.facts.set("prefix.lookup_tokens", measured(hit + new, "w", found[-1][2]))
            view.facts.set("prefix.hit_share", measured(hit / (hit + new), "w", found[-1][2]))
        return
    asked = {
        (e.number("slot"), e.text("id")): v
        for _, e in view.target.events("request_in")
        if (v := e.number("prompt_tokens")) is not None
    }
    first_cached: dict[tuple[float | None, str | None], tuple[float, str]] = {}
    for run, event in view.target.events("slot_reuse"):
        cached_now = event.number("cached_tokens")
        key = (event.number("slot"), event.text("id"))
        if cached_now is not None and key in asked and key not in first_cached:
            first_cached[key] = (cached_now, run.source(event))
    if first_cached:
        total = math.fsum(asked[k] for k in first_cached)
        hit = math.fsum(c for c, _ in first_cached.values())
        where = next(iter(first_cached.values()))[1]
        if total > 0:
            view.facts.set("prefix.hit_share", measured(min(hit / total, 1.0), "w", where))
            view.facts.set("prefix.lookup_tokens", measured(total, "w", where))
            return
    reuse = [
        (kept, tokens, r.source(e))
        for r, e in view.target.events("slot_reuse")
        if (tokens := e.number("n_tokens")) and (kept := e.number("cached_tokens")) is not None
    ]
    if reuse:
        hit, total = math.fsum(part for part, _, _ in reuse), math.fsum(whole for _, whole, _ in reuse)
        view.facts.set("prefix.hit_share", measured(min(hit / total, 1.0), "w", reuse[0][2]))
        view.facts.set("prefix.lookup_tokens", measured(total, "w", reuse[0][2]))
        return
    rates = [(s.event.number("prefix_hit"), s.source) for s in view.stats if s.event.number("prefix_hit") is not None]
    if rates and rates[-1][0] is not None:
        view.facts.set(
            "prefix.hit_share",
            estimated(
                rates[-1][0], "i", rates[-1][1], note="the log's rate covers the last 1,000 requests, not this window"
            ),
        )


def _pressure(view: View) -> None:
    """The gate: a full pool at any sample, or a forced preemption in the window (set again once preemptions are known)."""
    for rank in view.rank_names:
        scraped, logged, _ = usage_samples(view, rank)
        full = [s for s in (*scraped, *logged) if s.value >= FULL]
        if full:
            first = min(full, key=lambda s: (s.time is None, s.time or 0.0, s.order))
            where = f" ({rank})" if rank and len(view.rank_names) > 1 else ""
            view.note_event(
                first.time, f"the KV pool is full for the first time{where}: {first.value:.0%}", first.source
            )


def pressure(view: View) -> None:
    """Set ``kv.pressure`` from usage, the secondary pool, preemptions, and (engines that never preempt) the queue."""
    facts, target = view.facts, view.target
    usage, secondary, count = facts["kv.usage_max"], facts["kv.secondary_usage_max"], facts["preempt.count"]
    known = [f for f in (usage, secondary) if isinstance(f, Known)]
    never = target.engine.never_preempts(target.version, target.args) if target.engine is not None else None
    if isinstance(count, Known) and count.span != "L" and float(count.lo) > 0:
        facts.set("kv.pressure", measured(True, "w", count.source, note="preemptions in the window"))
        return
    top = max(known, key=lambda f: float(f.hi)) if known else None
    if top is not None and float(top.lo) >= FULL:
        waiting = facts["req.waiting_max"]
        if never and isinstance(waiting, Known) and float(waiting.hi) == 0 and not target.events("pool_full"):
            facts.set("kv.pressure", measured(False, "w", top.source, note="reserved in full, but nobody waits"))
            return
        facts.set("kv.pressure", measured(True, "w", top.source, note=f"pool at {float(top.hi):.0%}"))
        return
    if target.events("pool_full", "retract"):
        run, event = target.events("pool_full", "retract")[0]
        facts.set("kv.pressure", measured(True, "w", run.source(event)))
        return
    if isinstance(usage, Known) and (isinstance(count, Known) and float(count.hi) == 0):
        facts.set("kv.pressure", measured(False, "w", usage.source))
        return
    if isinstance(usage, Known) and len(view.stats) + len(target.scrapes) >= 2 and not isinstance(count, Known):
        facts.set("kv.pressure", measured(False, "w", usage.source, note="usage only: preemptions are not told"))
        return
    reason = (
        usage.reason if isinstance(usage, Unknown) else (count.reason if isinstance(count, Unknown) else ONE_SCRAPE)
    )
    facts.set("kv.pressure", Unknown(reason, TAKE_TWO))


def headroom(view: View) -> None:
    """How many average requests still fit (needs the mean sequence)."""
    mean = view.facts.number("work.sequence_mean")
    for facts in view.ranks.values():
        pool, usage = facts.number("kv.pool_tokens"), facts.number("kv.usage_last")
        if pool and usage is not None and mean:
            facts.set(
                "kv.headroom_requests", estimated(max(1 - usage, 0.0) * pool / mean, "i", "free tokens / mean sequence")
            )
    _combine(view, "kv.headroom_requests")
    _reserved(view, mean)


def _reserved(view: View, mean: float | None) -> None:
    """Of what the pool books, the part that a usual request never fills; and whether each slot owns its part of the pool."""
    facts = view.facts
    used, pool, running = (facts.number(n) for n in ("kv.usage_max", "kv.pool_tokens", "req.running_max"))
    if used and pool and running and mean:
        facts.set(
            "kv.reserved_idle",
            estimated(max(1.0 - running * mean / (used * pool), 0.0), "w", "booked against running x mean sequence"),
        )
    split = [(r, e) for r, e in view.target.events("pool") if isinstance(e.fields.get("unified"), bool)]
    alone = next((p.origin for p in view.target.props if p.value.slots == 1), None)
    if not split and alone is not None:
        facts.set("kv.per_slot", measured(True, "c", alone, note="one slot: the pool is its own"))
        return
    unified = bool(split[-1][1].fields["unified"]) if split else True
    facts.set("kv.per_slot", measured(not unified, "c", split[-1][0].source(split[-1][1]) if split else "engine"))


__all__ = ["add", "bound", "headroom", "pressure", "usage_samples", "waiting_points"]
