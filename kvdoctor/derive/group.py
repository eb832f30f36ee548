"""Facts over several runs: replicas at the same time, a run before and after a change, rows of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvdoctor.derive.view import View
from kvdoctor.facts import Fact, FactSet, Known, Unknown, bound, estimated, measured
from kvdoctor.frozen import frozen

if TYPE_CHECKING:
    from kvdoctor.parse.benchcsv import BenchRow
    from kvdoctor.readings import Timed

POLICY_SETTINGS = (
    "free_share",
    "max_running",
    "policy",
    "full_prompt",
    "reserve_policy",
    "max_queue",
    "batch_tokens",
    "prefix",
)


def add(group: FactSet, views: Sequence[View], bench: Sequence[Timed[tuple[BenchRow, ...]]]) -> None:
    """Derive ``group.*`` and the group's ``spread.*``."""
    _replicas(group, views)
    _fractions(group, views)
    _before_after(group, views)
    _tensor_parallel(group, views)
    _disaggregated(group, views)
    for timed in bench:
        _bench(group, timed)


def _base(model: str | None) -> str:
    return (model or "").rstrip("/").rsplit("/", 1)[-1].lower()


_IGNORED = frozenset(
    {
        "port",
        "host",
        "model",
        "model_path",
        "served_model_name",
        "nnodes",
        "node_rank",
        "dist_init_addr",
        "random_seed",
        "seed",
        "api_key",
        "base_gpu_id",
        "nccl_port",
    }
)


def _comparable(a: View, b: View, but: Sequence[str] = ()) -> bool:
    """Same engine and model as far as known, and no known setting differs (``but`` canonical settings excepted)."""
    if a.target.engine is not b.target.engine or a.target.engine is None:
        return False
    if a.target.model and b.target.model and _base(a.target.model) != _base(b.target.model):
        return False
    allowed = set(_IGNORED)
    for name in but:
        allowed.update(a.target.engine.canonical_args.get(name, ()))
        allowed.add(name)
    if _side(a) != _side(b):
        return False  # one computes prompts, the other holds what is generated: unlike by design
    common = a.target.args.keys() & b.target.args.keys()
    return all(a.target.args[k] == b.target.args[k] for k in common if k not in allowed)


def _overlap(a: View, b: View) -> bool | None:
    """Did both run at the same time? None when one carries no clock."""
    wa, wb = _span(a), _span(b)
    if wa is None or wb is None:
        return None
    return wa[0] <= wb[1] and wb[0] <= wa[1]


def _alongside(a: View, b: View) -> bool:
    """Two servers whose pages carry no clock, scraped equally often into one snapshot: one command took them side by side."""
    if _span(a) is not None or _span(b) is not None:
        return False
    return bool(a.target.scrapes) and len(a.target.scrapes) == len(b.target.scrapes) and not _restarted(a, b)


def _span(view: View) -> tuple[float, float] | None:
    times = [t for t in (view.window.start, view.window.end) if t is not None]
    times += [t for run in view.target.logs for t in (run.first_time, run.last_time) if t is not None]
    return (min(times), max(times)) if times else None


def _replicas(group: FactSet, views: Sequence[View]) -> None:
    """Equal replicas with different pools, and an uneven load among targets that ran at the same time."""
    pools = [(v, p) for v in views if (p := v.facts.known("kv.pool_tokens")) is not None]
    best: Known | None = None
    for i, (a, pa) in enumerate(pools):
        for b, pb in pools[i + 1 :]:
            low, high = sorted((float(pa.hi), float(pb.hi)))
            if (
                low > 0
                and _comparable(a, b)
                and _overlap(a, b) is not False
                and not _restarted(a, b)
                or (low > 0 and _comparable(a, b) and _same_moment(a, b))
            ):
                ratio = high / low
                if best is None or ratio > float(best.hi):
                    best = Known(ratio, ratio, "measured", "s", f"{pa.source} and {pb.source}")
    group.set(
        "group.pool_ratio", best if best is not None else Unknown("needs the pool sizes of two replicas of one model")
    )
    but = ("pool_blocks", "pool_tokens", "fraction")

    def beside(same_time: Callable[[View, View], bool | None]) -> list[View]:
        return [v for v in views if any(v is not o and same_time(v, o) and _comparable(v, o, but) for o in views)]

    together, told = beside(_overlap), _measured
    if not together:
        together, told = beside(_alongside), _taken_together
    running = [(v, r) for v in together if (r := v.facts.number("req.running_max")) is not None]
    if len(running) > 1:
        mean = math.fsum(r for _, r in running) / len(running)
        if mean > 0:
            top = max(running, key=lambda x: x[1])
            group.set(
                "spread.running_ratio",
                told(top[1] / mean, f"running per replica, largest {top[0].target.name}"),
            )
    usage = [u for v in together if (u := v.facts.number("kv.usage_max")) is not None]
    if len(usage) > 1:
        group.set("spread.usage_gap", told(max(usage) - min(usage), "largest usage per replica"))
    counts = [(v, c) for v in together if (c := v.facts.number("preempt.count")) is not None]
    total = math.fsum(c for _, c in counts)
    if len(counts) > 1 and total > 0:
        group.set(
            "spread.preempt_top",
            told(max(c for _, c in counts) / total, "preemptions per replica", total),
        )


def _measured(value: float, source: str, events: float | None = None) -> Fact:
    return measured(value, "w", source, events=events)


def _taken_together(value: float, source: str, events: float | None = None) -> Fact:
    return Known(
        value, value, "assumed", "w", source, "the pages carry no clock: taken to be of the same time", events,
        hint="name the files with an epoch (pod-a_1795957400.prom)",
    )  # fmt: skip


def _restarted(a: View, b: View) -> bool:
    """Two runs in one file or on one port are one server restarted, not replicas."""
    origins = {r.origin for r in a.target.logs} & {r.origin for r in b.target.logs}
    return bool(origins)


def _same_moment(a: View, b: View) -> bool:
    """Start lines within ten minutes of each other in different files: replicas brought up together."""
    sa, sb = _span(a), _span(b)
    return sa is not None and sb is not None and abs(sa[0] - sb[0]) <= 600 and not _restarted(a, b)


def _fractions(group: FactSet, views: Sequence[View]) -> None:
    """f fails for too little KV, f + .01 runs out of memory: no fraction in between is left."""
    small: list[float] = []
    burst: list[float] = []
    source = ""
    for view in views:
        fraction = view.facts.number("mem.fraction")
        if fraction is None:
            continue
        if view.facts.text("start.error") == "pool_too_small":
            small.append(fraction)
        count = view.facts.number("oom.count")
        if count:
            burst.append(fraction)
            source = source or view.target.name
    if small and burst:
        gap = min(b - s for b in burst for s in small)
        # one step of the setting is .01; what lies between two neighbouring steps is not worth a third try
        group.set("group.fraction_bracket", measured(0 <= round(gap, 6) <= 0.011, "s", source))
    else:
        group.set(
            "group.fraction_bracket",
            Unknown(
                "needs one start that failed for too little KV and one that ran out of memory, with their fractions"
            ),
        )


def _one_model(a: View, b: View) -> bool:
    """No name of the model that one goes by contradicts the other: a page tells the served name, a log the path."""
    names_a, names_b = _model_names(a), _model_names(b)
    return not names_a or not names_b or bool(names_a & names_b)


def _model_names(view: View) -> set[str]:
    told = (view.target.model, *(view.target.args.get(k) for k in ("model", "model_path", "served_model_name")))
    return {_base(name) for name in told if name}


_Side = tuple[View, ...]


def _ordered_sides(views: Sequence[View]) -> tuple[_Side, _Side] | None:
    """The servers of an earlier time and those of a later one; None when the runs do not fall into exactly two times."""
    served = [v for v in views if v.facts.text("target.phase") != "starting"]
    if len(served) < 2 or served[0].target.engine is None:
        return None
    first = served[0]
    if any(v.target.engine is not first.target.engine or not _one_model(first, v) for v in served[1:]):
        return None
    spans = [(span, v) for v in served if (span := _span(v)) is not None]
    if len(spans) < len(served):
        return None
    times: list[list[View]] = []
    until = -math.inf
    for (start, end), view in sorted(spans, key=lambda x: x[0]):
        if start >= until:
            times.append([])
        times[-1].append(view)
        until = max(until, end)
    return (tuple(times[0]), tuple(times[1])) if len(times) == 2 else None


def _total(side: _Side, value: Callable[[View], float | None]) -> float | None:
    """Over all servers of one time; None when one does not tell."""
    values = [value(v) for v in side]
    known = [v for v in values if v is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _any(values: Sequence[bool | None]) -> bool | None:
    return True if any(values) else None if None in values else False


def _hull(side: _Side, fact: str) -> tuple[float, float] | None:
    """A share of the whole side lies between the smallest and the largest of its servers."""
    known = [k for v in side if (k := v.facts.known(fact)) is not None]
    if not known or len(known) < len(side):
        return None
    return min(float(k.lo) for k in known), max(float(k.hi) for k in known)


def _setting(side: _Side, name: str) -> str | None:
    """A setting that all servers of one time share."""
    values = {v.target.setting(name) for v in side}
    return next(iter(values)) if len(values) == 1 else None


def _gpus(view: View) -> float | None:
    total = 1.0
    known = False
    for name in ("tp", "pp", "dp"):
        text = view.target.setting(name)
        if text is None:
            continue
        try:
            total *= float(text)
        except ValueError:
            return None
        known = True
    return total if known else None


def _rate(view: View) -> float | None:
    best = [v for s in view.stats if (v := s.event.number("gen_rate")) is not None]
    if best:
        return max(best)
    return view.facts.number("tok.gen_rate")


def _before_after(group: FactSet, views: Sequence[View]) -> None:
    sides = _ordered_sides(views)
    if sides is None:
        return
    before, after = sides
    source = " -> ".join(", ".join(v.target.name for v in side) for side in sides)
    gpus = _total(before, _gpus), _total(after, _gpus)
    if gpus[0] and gpus[1]:
        group.set("group.gpu_ratio", measured(gpus[1] / gpus[0], "w", source))
    rates = _total(before, _rate), _total(after, _rate)
    if rates[0] and rates[1] is not None:
        group.set("group.throughput_ratio", measured(rates[1] / rates[0], "w", source))
    running = _total(before, _running_max), _total(after, _running_max)
    if running[0] and running[1] is not None:
        group.set("group.running_ratio", measured(running[1] / running[0], "w", source))
    usage = [v.facts.number("kv.usage_max") for side in sides for v in side]
    known_usage = [u for u in usage if u is not None]
    if len(known_usage) == len(usage):
        group.set("group.usage_max", measured(max(known_usage), "w", source))
    shares = _hull(before, "recompute.token_share"), _hull(after, "recompute.token_share")
    if shares[0] is not None:
        group.set("group.recompute_before", _interval(*shares[0], source))
    if shares[0] is not None and shares[1] is not None:
        change = shares[1][0] - shares[0][1], shares[1][1] - shares[0][0]
        group.set("group.recompute_change", _interval(*change, source))
    hurt, pressed = _any([_hurts(v) for v in before]), _any([_pressed(v) for v in after])
    if hurt is not None:
        group.set("group.pressure_before", measured(hurt, "w", source))
    if pressed is not None:
        group.set("group.pressure_after", measured(pressed, "w", source))
    changed = [
        n for n in POLICY_SETTINGS
        if (x := _setting(before, n)) is not None and (y := _setting(after, n)) is not None and x != y
    ]  # fmt: skip
    known = [n for n in POLICY_SETTINGS if _setting(before, n) is not None or _setting(after, n) is not None]
    if changed:
        group.set("group.policy_changed", measured(True, "c", f"{source}: {', '.join(changed)}"))
    elif known or all(v.target.args for side in sides for v in side):
        one_sided = [n for n in known if (_setting(before, n) is None) != (_setting(after, n) is None)]
        group.set("group.policy_changed", measured(bool(one_sided), "c", source))


def _running_max(view: View) -> float | None:
    return view.facts.number("req.running_max")


def _hurts(view: View) -> bool | None:
    """Under pressure, and somebody felt it."""
    pressed = view.facts.known("kv.pressure")
    if pressed is None:
        return None
    return bool(pressed.hi) and bool(view.facts.number("req.waiting_max") or view.facts.number("preempt.count"))


def _pressed(view: View) -> bool | None:
    """Under pressure, or somebody waits."""
    pressed = view.facts.known("kv.pressure")
    return None if pressed is None else bool(pressed.hi) or bool(view.facts.number("req.waiting_max"))


def _interval(lo: float, hi: float, source: str) -> Fact:
    return bound(lo, hi, "w", source) if lo < hi else estimated(lo, "w", source)


# -------------------------------------------------------------------- benchmark rows


def _first(row: BenchRow, *names: str) -> float | None:
    for name in names:
        if name in row.values:
            return row.values[name]
    return None


_TPOT = ("tpot_p50", "tpot_mean", "itl_p50", "itl_mean")
_THROUGHPUT = ("output_rate", "finished_rate", "total_rate")
_LOADS = ("concurrency", "request_rate", "max_running")


def _bench(group: FactSet, timed: Timed[tuple[BenchRow, ...]]) -> None:
    rows = list(timed.value)
    _sweep(group, rows, timed.origin)
    _policies(group, rows, timed.origin)
    _tensor_parallel_rows(group, rows, timed.origin)


def _sweep(group: FactSet, rows: list[BenchRow], origin: str) -> None:
    column = next((c for c in _LOADS if len({r.values[c] for r in rows if c in r.values}) >= 3), None)
    if column is None:
        return
    ordered = sorted((r for r in rows if column in r.values), key=lambda r: r.values[column])
    if len({r.policy for r in ordered}) > 1:
        return
    source = f"{origin}:{ordered[-1].line}"
    counts = [(r, c) for r in ordered if (c := _first(r, "preemptions")) is not None]
    if counts:
        total = math.fsum(c for _, c in counts)
        group.set("group.sweep_preemptions", measured(total, "w", source, events=total))
    _rate_drop(group, ordered, origin)
    first, last = ordered[0].values[column], ordered[-1].values[column]
    if first > 0:
        group.set("group.concurrency_growth", measured(last / first, "w", source))
    times = [(r, t) for r in ordered if (t := _first(r, *_TPOT)) is not None]
    if len(times) >= 2 and times[0][1] > 0:
        group.set("group.tpot_growth", measured(times[-1][1] / times[0][1], "w", source))
    hit = next((i for i, (r, _) in enumerate(times) if (_first(r, "preemptions") or 0.0) > 0), None)
    if hit is not None and hit >= 2:
        steps = [b[1] - a[1] for a, b in zip(times, times[1:], strict=False)]
        earlier = max((s for s in steps[: hit - 1] if s > 0), default=None)
        if earlier:
            group.set("group.slope_break", measured(steps[hit - 1] / earlier, "w", f"{origin}:{times[hit][0].line}"))
    elif hit is None and counts and len(times) >= 3:
        group.set("group.slope_break", Unknown("no row with preemptions"))


def _rate_drop(group: FactSet, ordered: Sequence[BenchRow], origin: str) -> None:
    """How far throughput at the highest load lies below the best row in which nothing was preempted."""
    last = ordered[-1]
    for name in _THROUGHPUT:
        calm = [r.values[name] for r in ordered if r.values.get("preemptions") == 0 and name in r.values]
        if calm and name in last.values and max(calm) > 0 and (last.values.get("preemptions") or 0.0) > 0:
            drop = 1.0 - last.values[name] / max(calm)
            group.set("group.sweep_rate_drop", measured(drop, "w", f"{origin}:{last.line}"))
            return


def _same_but_policy(a: BenchRow, b: BenchRow) -> bool:
    skip = {*_THROUGHPUT, *_TPOT}
    shared = [k for k in a.values.keys() & b.values.keys() if k in _CONDITIONS and k not in skip]
    return all(a.values[k] == b.values[k] for k in shared) and _settings(a) == _settings(b)


def _settings(row: BenchRow) -> Mapping[str, str]:
    return row.settings


_CONDITIONS = frozenset(
    {"gpus", "tp", "pp", "dp", "workers", "concurrency", "request_rate", "max_running", "prompt_len", "output_len"}
)


@frozen
class _Gain:
    ratio: float
    line: int


def _policies(group: FactSet, rows: list[BenchRow], origin: str) -> None:
    """The best row with another policy against the row that is equal in every other column."""
    if len({r.policy for r in rows if r.policy}) < 2:
        _gpu_rows(group, rows, origin)
        return
    best: _Gain | None = None
    for a in rows:
        for b in rows:
            if a.policy and b.policy and a.policy != b.policy and _same_but_policy(a, b):
                x, y = _first(a, *_THROUGHPUT), _first(b, *_THROUGHPUT)
                if x and y and (best is None or y / x > best.ratio):
                    best = _Gain(y / x, b.line)
    if best is None:
        return
    source = f"{origin}:{best.line}"
    group.set("group.policy_changed", measured(True, "c", source))
    group.set("group.throughput_ratio", measured(best.ratio, "w", source))
    group.set("group.gpu_ratio", measured(1.0, "w", source))


def _size(row: BenchRow) -> float:
    return _first(row, "gpus", "tp", "workers") or 0.0


def _gpu_rows(group: FactSet, rows: list[BenchRow], origin: str) -> None:
    sized = [(g, r) for r in rows if (g := _size(r)) > 0]
    if len({g for g, _ in sized}) < 2:
        return
    # of a sweep, the pair under the highest load that was run with two sizes
    pairs = _same_load([r for _, r in sorted(sized, key=lambda x: x[0])], _size)
    ordered = pairs[-1] if pairs else [r for _, r in sorted(sized, key=lambda x: x[0])]
    first, last = ordered[0], ordered[-1]
    g0, g1 = _size(first), _size(last)
    x, y = _first(first, *_THROUGHPUT), _first(last, *_THROUGHPUT)
    if g0 > 0:
        group.set("group.gpu_ratio", measured(g1 / g0, "w", f"{origin}:{last.line}"))
    if x and y is not None:
        group.set("group.throughput_ratio", estimated(y / x, "w", f"{origin}:{last.line}"))
    group.set("group.policy_changed", measured(False, "c", origin))


def _tensor_parallel_rows(group: FactSet, rows: list[BenchRow], origin: str) -> None:
    """The row with most tensor parallel ranks against the one with fewest, under the same load.

    Where a sweep ran several loads, the one at which more ranks helped most: what does not help there helps nowhere. Without
    a pair under one load the extremes are compared, and ``group.running_ratio`` tells that the loads differ.
    """
    sized = sorted((r for r in rows if r.values.get("tp", 0.0) > 0), key=lambda r: r.values["tp"])
    pairs = [(part[0], part[-1]) for part in _same_load(sized, _ranks)] or [(sized[0], sized[-1])] if sized else []
    best: tuple[float, float, BenchRow, BenchRow] | None = None
    for a, b in pairs:
        x, y, load = _first(a, *_THROUGHPUT), _first(b, *_THROUGHPUT), _load_ratio(a, b)
        if a.values["tp"] < b.values["tp"] and load is not None and x and y is not None and _alike(a, b):
            best = (y / x, load, a, b) if best is None or y / x > best[0] else best
    if best is None:
        return
    speedup, load, a, b = best
    source = f"{origin}:{b.line}"
    group.set("group.tp_ratio", measured(b.values["tp"] / a.values["tp"], "c", source))
    group.set("group.tp_speedup", measured(speedup, "w", source))
    group.set("group.running_ratio", measured(load, "w", source))
    usage = [u for r in (a, b) if (u := r.values.get("kv_usage")) is not None]
    if len(usage) == 2:
        group.set("group.usage_max", measured(max(usage), "w", source))


def _ranks(row: BenchRow) -> float:
    return row.values["tp"]


def _same_load(sized: Sequence[BenchRow], size: Callable[[BenchRow], float]) -> list[list[BenchRow]]:
    """Rows in the order given, those under one load together, lowest load first; those of one size only are left out."""
    columns = (*_LOADS, "prompt_len", "output_len")
    parts: dict[tuple[object, ...], list[BenchRow]] = {}
    for row in sized:
        load = (row.policy, *sorted(_settings(row).items()), *(row.values.get(c) for c in columns))
        parts.setdefault(load, []).append(row)
    found = [part for part in parts.values() if size(part[0]) < size(part[-1])]
    return sorted(found, key=lambda part: [part[0].values.get(c, 0.0) for c in _LOADS])


def _load_ratio(a: BenchRow, b: BenchRow) -> float | None:
    shared = [(a.values[c], b.values[c]) for c in _LOADS if c in a.values and c in b.values]
    return shared[0][1] / shared[0][0] if shared and shared[0][0] > 0 else None


def _alike(a: BenchRow, b: BenchRow) -> bool:
    return a.policy == b.policy and _settings(a) == _settings(b)


def _tensor_parallel(group: FactSet, views: Sequence[View]) -> None:
    """Throughput of the run with more tensor parallel ranks against the other, whichever came first."""
    sized = [
        (float(tp), v)
        for v in views
        if (tp := v.target.setting("tp")) is not None and tp.isdigit() and _rate(v) is not None
    ]
    if len(sized) != 2 or sized[0][1].target.engine is not sized[1][1].target.engine:
        return
    (small, a), (large, b) = sorted(sized, key=lambda x: x[0])
    if a.target.model and b.target.model and _base(a.target.model) != _base(b.target.model):
        return
    x, y = _rate(a), _rate(b)
    group.set("group.tp_ratio", measured(large / small, "c", f"{a.target.name} and {b.target.name}"))
    if x and y is not None:
        group.set("group.tp_speedup", measured(y / x, "w", f"{b.target.name} / {a.target.name}"))


def _side(view: View) -> str | None:
    """prefill or decode, of a disaggregated server: by its arguments, else by the queues its stats lines name."""
    mode = (view.target.args.get("disaggregation_mode") or "").lower()
    if mode in ("prefill", "decode"):
        return mode
    role = view.target.args.get("kv_transfer_config") or view.target.args.get("kv_role") or ""
    if "kv_producer" in role:
        return "prefill"
    if "kv_consumer" in role:
        return "decode"
    named = {key for stats in view.stats for key in stats.event.fields}
    if named & {"prealloc_usage", "pd_decode_queue"}:
        return "decode"
    return "prefill" if "pd_prefill_queue" in named else None


def _disaggregated(group: FactSet, views: Sequence[View]) -> None:
    sides: dict[str, list[View]] = {}
    for view in views:
        side = _side(view)
        if side is not None:
            sides.setdefault(side, []).append(view)
    if len(sides) < 2:
        return
    for side, members in sides.items():
        usage = [u for v in members if (u := v.facts.number("kv.usage_max")) is not None]
        queue = [
            w for v in members for name in ("req.waiting_max", f"pd.{side}_queue")
            if (w := v.facts.number(name)) is not None
        ]  # fmt: skip
        source = ", ".join(v.target.name for v in members)
        if usage:
            group.set(f"group.pd_{side}_usage", measured(max(usage), "w", source))
        if queue:
            group.set(f"group.pd_{side}_waiting", measured(max(queue), "w", source))
