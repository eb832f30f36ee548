"""Where the bytes of a device are, out-of-memory events, and why a start failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvdoctor.derive import devices
from kvdoctor.derive.view import View
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import Fact, FactSet, How, Known, Unknown, combine, estimated, measured
from kvdoctor.findings import DeviceMemory, MemoryPart
from kvdoctor.parse import Unread

if TYPE_CHECKING:
    from kvdoctor.parse.gpu import GpuProcess
    from kvdoctor.parse.kernel import Process
    from kvdoctor.parse.serverlog import LogEvent
    from kvdoctor.readings import HostReadings, LogRun

FRAGMENT_SHARE = 0.03
FOREIGN_ROUNDING = 0.01
"""Sums of printed numbers differ by the driver's own share and by rounding: less than this of the device is nobody's."""
CROWDED = 256 << 20
"""Bytes of another process below which it is a context, not a tenant."""


def add(view: View, host: HostReadings) -> None:
    """Derive ``mem.*``, ``oom.*``, ``start.*`` and ``frag.*`` (needs ``target.phase`` and the pool)."""
    _budget(view)
    _ooms(view)
    _starts(view)
    _devices(view, host)
    _pages(view)
    _hybrid(view)
    _fragments(view, host)
    _compose(view)


# -------------------------------------------------------------------- start-up budget


_PARTS = {
    "weights": "mem.weights",
    "activations": "mem.activations",
    "graphs": "mem.graphs",
    "non_torch": "mem.non_torch",
    "kv_pool": "mem.kv_pool",
}


def _budget(view: View) -> None:
    """Parts of the start-up budget by rank, from the start-up lines; the last value of a rank counts."""
    by_rank: dict[str, dict[str, Known]] = {}
    order: list[str] = []
    unnamed: dict[str, int] = {}
    for run, event in view.target.events("memory", "graphs_end", "pool"):
        rank = event.rank or (f"pid{event.pid}" if event.pid is not None else "")
        values = {k: v for k in (*_PARTS, "total", "fraction") if (v := event.number(k)) is not None}
        if event.event == "pool":
            available = (
                event.number("available_bytes")
                if event.number("available_bytes") is not None
                else event.number("bytes")
            )
            values = (
                {"kv_pool": available}
                if available is not None and available > 0 and not event.fields.get("dry_run")
                else {}
            )
        if not values:
            continue
        if not rank and "weights" in values and event.event == "memory" and "weights" in by_rank.get("", {}):
            # unlabelled workers print the same line one after another: number them
            unnamed["weights"] = unnamed.get("weights", 0) + 1
            rank = f"#{unnamed['weights']}"
        slot = by_rank.setdefault(rank, {})
        if rank not in order:
            order.append(rank)
        for name, value in values.items():
            slot[name] = Known(value, value, "measured", "s", run.source(event))
    for name, fact in _PARTS.items():
        parts: dict[str, Fact] = {r: by_rank[r][name] for r in order if name in by_rank[r]}
        if parts:
            for rank, part in parts.items():
                view.rank(f"worker {rank}" if rank else view.rank_names[0]).set(fact, part)
            view.facts.set(fact, combine("max", parts))
        else:
            view.facts.set(
                fact, view.unknown(fact, "no start-up line tells it", "give the log from the start of the server")
            )
    weights = [float(by_rank[r]["weights"].hi) for r in order if "weights" in by_rank[r]]
    if len(weights) > 1 and min(weights) > 0:
        view.facts.set("spread.weights_ratio", measured(max(weights) / min(weights), "s", "weights per rank"))
    fraction = _fraction(view, [k for r in order for k in by_rank[r].items()])
    if fraction is not None:
        view.facts.set("mem.fraction", fraction)
    for rank in order:
        if "total" in by_rank[rank]:
            view.facts.set("mem.total", by_rank[rank]["total"])


def _fraction(view: View, values: list[tuple[str, Known]]) -> Known | None:
    text = view.target.setting("fraction")
    if text is not None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if 0 < value <= 1:
            return Known(value, value, "measured", "c", "arguments")
    for name, known in values:
        if name == "fraction":
            return Known(known.lo, known.hi, "measured", "c", known.source)
    default = view.target.default("fraction")
    if default is not None and view.target.version is not None:
        return Known(float(default), float(default), "assumed", "c", f"default of version {view.target.version}")
    return None


# -------------------------------------------------------------------- out of memory


@dataclass(slots=True)
class Oom:
    """One out-of-memory event with the repeats of other ranks merged."""

    run: LogRun
    event: LogEvent
    ranks: set[str] = field(default_factory=set)
    repeats: int = 1


def ooms(view: View) -> list[Oom]:
    """Out-of-memory events in order; the same failure reported by several ranks within 5 s is one."""
    found: list[Oom] = []
    for run, event in view.target.events("oom"):
        who = event.rank or (str(event.pid) if event.pid is not None else "")
        for old in found:
            near = old.event.time is None or event.time is None or abs(event.time - old.event.time) <= 5
            close = near and abs(event.line - old.event.line) <= 400
            same = _close(old.event.number("requested"), event.number("requested"))
            if old.run is run and close and (same or event.number("requested") is None):
                old.repeats += event.repeat
                old.ranks.add(who)
                if event.number("requested") is not None and old.event.number("requested") is None:
                    old.event = event
                break
        else:
            if (
                event.number("requested") is None
                and found
                and found[-1].run is run
                and abs(event.line - found[-1].event.line) <= 400
            ):
                continue
            found.append(Oom(run, event, {who}, event.repeat))
    return found


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= 0.2 * max(a, b)


def _ooms(view: View) -> None:
    facts = view.facts
    events = ooms(view)
    if not view.target.logs:
        facts.set("oom.count", Unknown("no log in the snapshot", "give the server's log"))
        return
    facts.set("oom.count", measured(float(len(events)), "e", view.target.logs[0].origin))
    if not events:
        return
    # the first message with numbers tells most; an echo without them comes before or after it
    main = next((o for o in events if o.event.number("requested") is not None), events[0])
    run, event = main.run, main.event
    source = run.source(event)
    view.note_event(event.time, _words(event), source)
    for name in ("requested", "free", "unallocated", "cap"):
        value = event.number(name)
        facts.set(
            f"oom.{name}",
            measured(value, "e", source) if value is not None else Unknown("this message does not give it"),
        )
    facts.set("oom.site", measured(_site(view, run, event), "e", source))
    total = _total(view, event)
    if total is not None:
        facts.set("mem.total", measured(total, "e", source))
    asked, stuck = event.number("requested"), event.number("unallocated")
    if asked is not None and stuck is not None and total is not None:
        facts.set("oom.fragmented", measured(stuck >= asked and stuck >= FRAGMENT_SHARE * total, "e", source))
    elif asked is not None and stuck is not None and stuck < asked:
        facts.set("oom.fragmented", measured(False, "e", source))
    else:
        facts.set("oom.fragmented", Unknown("the message does not give what is reserved and unallocated"))
    if stuck is not None:
        facts.set("mem.allocator_gap", measured(stuck, "e", source))
    if event.text("wording") == "torch-fraction":
        facts.set("oom.cap_refused", measured(True, "e", source))
    elif (free_bytes := event.number("free")) is not None and event.number("cap") is not None and asked is not None:
        facts.set("oom.cap_refused", measured(free_bytes > asked, "e", source))
    _other_use(view, event, total, source)
    work = [
        e
        for e in run.events
        if e.event in ("stats", "request_in", "request_out", "iteration", "retract", "ready") and e.line < event.line
    ]
    started = [
        e
        for e in run.events
        if e.event
        in (
            "banner",
            "args",
            "pool",
            "memory",
            "graphs_begin",
            "graphs_end",
            "warmup",
            "multimodal_profile",
            "concurrency",
        )
        and e.line <= event.line
    ]
    later = [e for e in run.events if e.event in ("stats", "request_out") and e.line > event.line]
    if not work and event.text("site") in ("prefill", "decode") and _serving_error(run, event):
        facts.set("oom.before_serving", measured(False, "e", source))
    elif work:
        facts.set("oom.before_serving", measured(False, "e", run.source(work[-1])))
    elif started:
        facts.set("oom.before_serving", measured(True, "e", source))
    elif later or event.text("site") in ("prefill", "decode") or view.facts.text("target.phase") == "serving":
        facts.set("oom.before_serving", measured(False, "e", source))
    else:
        facts.set(
            "oom.before_serving",
            Unknown("the log shows neither the start nor any request", "give the log from the start of the server"),
        )
    begun = [e for e in run.events if e.event == "graphs_begin" and e.line < event.line]
    done = [e for e in run.events if e.event == "graphs_end" and e.line < event.line]
    pool = [e for e in run.events if e.event in ("pool", "concurrency") and e.line < event.line]
    if not work:
        if begun and not done:
            facts.set("oom.in_graph_phase", measured(True, "e", run.source(begun[-1])))
        elif done:
            facts.set("oom.in_graph_phase", measured(False, "e", run.source(done[-1])))
        elif pool and _captures_graphs(view):
            facts.set("oom.in_graph_phase", measured(True, "e", run.source(pool[-1])))
    else:
        facts.set("oom.in_graph_phase", measured(False, "e", run.source(work[-1])))
    _usage_at(view, run, event)
    spread = _fullest(view, events)
    if spread is not None:
        facts.set("oom.on_fullest_rank", spread)


def _serving_error(run: LogRun, event: LogEvent) -> bool:
    """The failure is reported by a step of serving (a batch's prefill or decode), not by a warm-up."""
    near = [e for e in run.events if abs(e.line - event.line) <= 5 and e.event in ("error", "request_failed")]
    return any(e.text("site") in ("prefill", "decode") or e.event == "request_failed" for e in near)


def _captures_graphs(view: View) -> bool:
    """This engine captures graphs after the pool is laid out, and nothing says that it was told not to."""
    engine = view.target.engine
    if engine is None or not any(t.event == "graphs_begin" for t in engine.templates):
        return False
    eager = view.target.setting("eager")
    return eager is None or eager.lower() in ("false", "0", "no")


def _words(event: LogEvent) -> str:
    asked = event.number("requested")
    return "device out of memory" + (f" (asked for {_size(asked)})" if asked is not None else "")


def _size(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def _total(view: View, event: LogEvent) -> float | None:
    value = event.number("total")
    if value is not None:
        return value
    return view.facts.number("mem.total")


_PHASE_SITES = {
    "weights": "weights_load",
    "prefill": "prefill",
    "decode": "decode",
    "compute buffers refused": "prefill",
}


def _site(view: View, run: LogRun, event: LogEvent) -> str:
    """The site of the allocation: the frames', else the step of work that was begun and not ended before it."""
    named = event.text("site") or "other"
    before = [e for e in run.events if e.line <= event.line]
    started = any(e.event in ("stats", "ready", "request_out", "pool") for e in before)
    if named in ("other", "prefill", "decode") and not started and any(e.event == "multimodal_profile" for e in before):
        # the profile run's frame is a plain forward; the warning before it names what the forward was given
        return "multimodal"
    if named != "other":
        return named
    for earlier in reversed(before):
        if earlier.event == "warmup" and earlier.fields.get("sampler"):
            return "sampler"
        if earlier.event == "phase" and (what := _PHASE_SITES.get(earlier.text("what") or "")) is not None:
            return what if earlier.fields.get("begin", True) else "other"
        if earlier.event == "error" and (site := earlier.text("site")) is not None and event.line - earlier.line <= 40:
            return site
        if earlier.event in ("stats", "ready"):
            break
    return "other"


def _other_use(view: View, event: LogEvent, total: float | None, source: str) -> None:
    """What others hold by the message's own numbers: total - free - reserved (old wording) or - this process."""
    free, reserved, mine = event.number("free"), event.number("reserved"), event.number("this_process")
    if total is None or free is None:
        return
    if mine is not None:
        foreign = total - free - mine
        if foreign > FOREIGN_ROUNDING * total:
            view.facts.set("oom.foreign", estimated(foreign, "e", source, note="total - free - this process"))
        else:
            view.facts.set("oom.foreign", measured(0.0, "e", source))
    elif reserved is not None:
        foreign = max(total - free - reserved, 0.0)
        view.facts.set(
            "oom.foreign",
            estimated(foreign, "e", source, note="total - free - reserved; holds this process's own context too"),
        )


def _usage_at(view: View, run: LogRun, event: LogEvent) -> None:
    crash = [
        e
        for e in run.events
        if e.event == "crash_stats" and abs(e.line - event.line) <= 400 and e.number("kv_usage") is not None
    ]
    before = [e for e in run.events if e.event == "stats" and e.line < event.line and e.number("kv_usage") is not None]
    chosen = crash[0] if crash else (before[-1] if before else None)
    if chosen is not None:
        value = chosen.number("kv_usage")
        if value is not None:
            view.facts.set("oom.kv_usage", measured(value, "e", run.source(chosen)))
            return
    view.facts.set(
        "oom.kv_usage",
        Unknown("no stats line or crash dump before the message", "give more of the log before the error"),
    )


def _fullest(view: View, events: list[Oom]) -> Fact | None:
    """Did it fail only where the weights are largest?"""
    weights: dict[str, float] = {}
    for _, event in view.target.events("memory"):
        value = event.number("weights")
        who = event.rank or (str(event.pid) if event.pid is not None else "")
        if value is not None:
            weights[who] = value
    failed = {who for o in events for who in o.ranks}
    if len(weights) < 2 or not failed or not failed <= weights.keys():
        return None
    top = max(weights.values())
    return measured(all(weights[w] >= top * 0.999 for w in failed), "e", events[0].run.source(events[0].event))


# -------------------------------------------------------------------- start errors


def _starts(view: View) -> None:
    facts = view.facts
    errors = view.target.events("start_error")
    logs = bool(view.target.logs)
    if not errors:
        if logs:
            facts.set("start.error", measured("none", "s", view.target.logs[0].origin))
            facts.set("start.negative_kv", measured(False, "s", view.target.logs[0].origin))
        else:
            facts.set("start.error", Unknown("no log in the snapshot", "give the log from the start of the server"))
        return
    # the most specific error is the cause; a generic refusal around it is its echo
    rank = {
        "memory_race": 0,
        "free_below_fraction": 1,
        "pool_too_small": 2,
        "weights": 3,
        "port_in_use": 4,
        "config_refused": 5,
    }
    run, event = min(errors, key=lambda item: (rank.get(item[1].text("error") or "", 9), item[1].line))
    source = run.source(event)
    error = event.text("error") or "config_refused"
    facts.set("start.error", measured(error, "s", source))
    view.note_event(event.time, f"start refused: {event.text('text') or error.replace('_', ' ')}"[:160], source)
    merged: dict[str, float] = {}
    for _, other in errors:
        for key in (
            "need",
            "have",
            "total",
            "fraction",
            "free",
            "free_initial",
            "tokens_need",
            "tokens_have",
            "max_len_fits",
        ):
            value = other.number(key)
            if value is not None:
                merged.setdefault(key, value)
    per_token = merged["need"] / merged["tokens_need"] if merged.get("need") and merged.get("tokens_need") else None
    if "need" in merged:
        facts.set("start.need_bytes", measured(merged["need"], "s", source))
    if "have" in merged:
        facts.set("start.have_bytes", measured(merged["have"], "s", source))
    if "tokens_need" in merged:
        facts.set("start.need_tokens", measured(merged["tokens_need"], "s", source))
    have_tokens = merged.get("tokens_have", merged["have"] / per_token if per_token and "have" in merged else None)
    if have_tokens is not None:
        facts.set("start.have_tokens", measured(have_tokens, "s", source))
    elif "max_len_fits" in merged:
        facts.set("start.have_tokens", measured(merged["max_len_fits"], "s", source))
    if "free" in merged and "total" in merged:
        facts.set("start.free_bytes", measured(merged["free"], "s", source))
        facts.set("mem.total", measured(merged["total"], "s", source))
    grew = error == "memory_race"
    if "free" in merged and "free_initial" in merged and merged["free"] > merged["free_initial"]:
        grew = True
    facts.set("start.free_grew", measured(grew, "s", source))
    available = [
        (r, e, v) for r, e in view.target.events("memory", "pool") if (v := e.number("available_bytes")) is not None
    ]
    if available and available[-1][2] < 0:
        facts.set("start.negative_kv", measured(True, "s", available[-1][0].source(available[-1][1])))
        facts.set("start.have_bytes", measured(available[-1][2], "s", available[-1][0].source(available[-1][1])))
    elif available or merged.get("have", 0.0) > 0 or merged.get("tokens_have", 0.0) > 0:
        facts.set(
            "start.negative_kv",
            measured(False, "s", available[-1][0].source(available[-1][1]) if available else source),
        )


# -------------------------------------------------------------------- devices


def peers_starting(views: Sequence[View], host: HostReadings) -> None:
    """A negative pool while another engine starts on the device: its loading was charged to this one."""
    for view in views:
        if not _is_true(view.facts["start.negative_kv"]):
            continue
        mine = _start_span(view)
        others = [o for o in views if o is not view and _start_overlaps(mine, _start_span(o))]
        if others:
            view.facts.values["start.free_grew"] = measured(
                True, "s", f"{others[0].target.name} starts at the same time"
            )


def _is_true(fact: Fact) -> bool:
    return isinstance(fact, Known) and fact.hi is True


def _start_span(view: View) -> tuple[float, float] | None:
    times = [
        e.time for run in view.target.logs for e in run.events
        if e.time is not None and e.event in ("banner", "args", "memory", "pool", "start_error", "graphs_begin")
    ]  # fmt: skip
    return (min(times), max(times)) if times else None


def _start_overlaps(a: tuple[float, float] | None, b: tuple[float, float] | None) -> bool:
    return a is not None and b is not None and a[0] <= b[1] + 5 and b[0] <= a[1] + 5


def _devices(view: View, host: HostReadings) -> None:
    """``mem.*`` of devices from nvidia-smi, NVML and DCGM readings."""
    latest = {name: rows[-1] for name, rows in devices.readings(host).items()}
    processes: list[tuple[GpuProcess, str]] = []
    listed = False
    for timed in host.gpu:
        if timed.value.processes_listed:
            listed = True
            processes = [(p, f"{timed.origin}:{p.line}") for p in timed.value.processes]
        elif timed.value.processes:
            processes = [(p, f"{timed.origin}:{p.line}") for p in timed.value.processes]
    for name, (reading, source) in latest.items():
        facts = view.devices.setdefault(name, FactSet())
        for field_name, fact in (
            ("mem_total", "mem.total"),
            ("mem_used", "mem.used"),
            ("mem_free", "mem.free"),
            ("mem_reserved", "mem.reserved"),
        ):
            value = getattr(reading, field_name)
            facts.set(fact, Unknown(f"{source} prints {value.reason}" if isinstance(value, Unread) else "", "ask NVML for the MIG instance by its UUID, or use the engine's metrics")
                      if isinstance(value, Unread) else measured(float(value), "i", source))  # fmt: skip
        used, total, free = facts.number("mem.used"), facts.number("mem.total"), facts.number("mem.free")
        if free is None and used is not None and total is not None:
            reserved = facts.number("mem.reserved")
            facts.values["mem.free"] = estimated(
                max(total - used - (reserved if reserved is not None else 0.0), 0.0), "i", source, note="total - used"
            )
    for scrape in host.exporter:
        for rank in {r for role in ("gpu.mem_used", "gpu.mem_free") for r, _ in scrape.values.get(role, {})}:
            facts = view.devices.setdefault(f"GPU {rank}" if rank else "GPU", FactSet())
            for role, fact in (
                ("gpu.mem_used", "mem.used"),
                ("gpu.mem_free", "mem.free"),
                ("gpu.mem_reserved", "mem.reserved"),
            ):
                found = [r for (rk, _), r in scrape.values.get(role, {}).items() if rk == rank]
                if found:
                    facts.set(fact, measured(found[0].value, "i", found[0].source))
            used, free = facts.number("mem.used"), facts.number("mem.free")
            if used is not None and free is not None:
                reserved = facts.number("mem.reserved")
                facts.set(
                    "mem.total",
                    estimated(
                        used + free + (reserved if reserved is not None else 0.0),
                        "i",
                        scrape.origin,
                        note="used + free + reserved",
                    ),
                )
    for name in ("mem.total", "mem.used", "mem.free", "mem.reserved"):
        parts = {d: f[name] for d, f in view.devices.items() if name in f}
        if parts and "start.free_bytes" not in view.facts or parts:
            view.facts.set(name, combine(TABLE[name].combine, parts))
    used_values = [v for f in view.devices.values() if (v := f.number("mem.used")) is not None]
    if len(used_values) > 1 and min(used_values) > 0:
        view.facts.set("spread.mem_ratio", measured(max(used_values) / min(used_values), "i", "device memory in use"))
    _foreign(view, host, processes, listed)


def _engine_like(name: object) -> bool:
    text = str(name).lower()
    return any(
        w in text
        for w in (
            "vllm",
            "sglang",
            "enginecore",
            "worker_tp",
            "trtllm",
            "text-generation",
            "llama-server",
            "lmdeploy",
            "tritonserver",
            "ray::",
            "ollama",
        )
    )


def _foreign(view: View, host: HostReadings, processes: list[tuple[GpuProcess, str]], listed: bool) -> None:
    """Memory of processes that are not this server, and workers left over from a dead one."""
    facts = view.facts
    own = {p for run in view.target.logs for p in run.pids}
    rows = {row.pid: (row, t.origin) for t in host.processes for row in t.value.processes}
    for pid in list(own):
        mine = rows.get(pid)
        if mine is not None and not isinstance(mine[0].ppid, Unread):
            own.add(mine[0].ppid)
    children = {
        pid for pid, (row, _) in rows.items() if not isinstance(row.ppid, Unread) and row.ppid in own and row.ppid > 1
    }
    own |= children
    orphans = 0
    orphan_bytes = 0.0
    orphan_source = ""
    if rows and processes:
        for process, source in processes:
            if isinstance(process.pid, Unread) or process.pid not in rows or process.pid in own:
                continue
            if _engine_like(process.name) and not _has_server(rows, process.pid):
                orphans += 1
                orphan_bytes += 0.0 if isinstance(process.used, Unread) else float(process.used)
                orphan_source = orphan_source or source
    elif rows:
        for pid, (row, origin) in rows.items():
            if (
                _engine_like(row.command)
                and "api" not in row.command.lower()
                and "serve" not in row.command.lower()
                and not _has_server(rows, pid)
                and pid not in own
            ):
                orphans += 1
                orphan_source = orphan_source or f"{origin}:{row.line}"
    no_process = [
        (name, f) for name, f in view.devices.items()
        if listed and not processes and (f.number("mem.used") or 0.0) > CROWDED
    ]  # fmt: skip
    if rows or listed:
        count = float(orphans + len(no_process))
        facts.set("mem.orphans", measured(count, "i", orphan_source or "process list"))
    if orphan_bytes or listed or processes:
        facts.set("mem.orphan_bytes", measured(orphan_bytes, "i", orphan_source or "process list"))
    others = [
        (p, s)
        for p, s in processes
        if not isinstance(p.pid, Unread) and own and p.pid not in own and not isinstance(p.used, Unread)
    ]
    if processes and own and any(not isinstance(p.pid, Unread) and p.pid in own for p, _ in processes):
        total = math.fsum(float(p.used) for p, _ in others if not isinstance(p.used, Unread))
        facts.set("mem.foreign", measured(total, "i", others[0][1] if others else processes[0][1]))
    elif isinstance(facts["oom.foreign"], Known):
        known = facts.known("oom.foreign")
        assert known is not None
        facts.set("mem.foreign", known)


def _has_server(rows: Mapping[int, tuple[Process, str]], pid: int) -> bool:
    """Does the parent chain of a worker hold a server process (not a shell, not init)?"""
    seen: set[int] = set()
    at = pid
    while at in rows and at not in seen:
        seen.add(at)
        row = rows[at][0]
        parent = row.ppid
        if isinstance(parent, Unread):
            return True  # the parent is not told: no ground to call it an orphan
        if parent <= 1:
            return at != pid and _serves(row.command)
        if parent not in rows:
            return True
        above = rows[parent][0]
        if _serves(above.command):
            return True
        at = parent
    return False


def _serves(command: str) -> bool:
    text = command.lower()
    return any(
        w in text
        for w in (
            "api_server",
            "vllm serve",
            "serve ",
            "launch_server",
            "apiserver",
            "trtllm-serve",
            "tritonserver",
            "text-generation-launcher",
            "llama-server",
            "ollama",
            "ray start",
            "raylet",
            "python",
        )
    )


# -------------------------------------------------------------------- fragmentation


def _pages(view: View) -> None:
    """Free tokens that are not whole pages when a step failed for want of tokens."""
    want = have = None
    batch, source = "", ""
    page = view.facts.number("kv.block_tokens")
    for run, event in view.target.events("page_oom"):
        source = source or run.source(event)
        batch = event.text("batch") or batch
        want = event.number("want_tokens") if event.number("want_tokens") is not None else want
        free = event.number("free") if event.number("free") is not None else event.number("available")
        have = free if free is not None else have
        page = event.number("page") if event.number("page") is not None else page
    if want is None or have is None or page is None:
        return
    if have < want:
        view.facts.set(
            "kv.page_shortfall",
            measured(0.0, "e", source, note="fewer tokens than wanted: the pool is full, pages do not matter"),
        )
        return
    pages = want if batch != "prefill" else math.ceil(want / page)
    view.facts.set(
        "kv.page_shortfall",
        measured(max(pages * page - have, 0.0), "e", source, note="a page for each sequence of the step - free tokens"),
    )


def _hybrid(view: View) -> None:
    found = view.target.events("hybrid_disabled")
    if found:
        run, event = found[0]
        view.facts.set("kv.hybrid_full", measured(True, "c", run.source(event)))


def _fragments(view: View, host: HostReadings) -> None:
    if host.torch:
        from kvdoctor.parse import torch_snapshot
    for timed in host.torch:
        for device in sorted({s.device for s in timed.value.segments}):
            result = torch_snapshot.analyse(timed.value, device)
            source = timed.origin
            if result.external is not None:
                view.facts.set("frag.external", measured(result.external, "e", source))
            view.facts.set("frag.largest_fit", measured(float(result.largest_fit), "e", source))
            view.facts.set("mem.allocator_gap", measured(float(result.free), "e", source))
            if result.requested is not None and result.allocated:
                view.facts.set(
                    "frag.internal_waste",
                    measured(max(result.allocated - result.requested, 0) / result.allocated, "i", source),
                )
    for probe in host.probes:
        if probe.value.gap is not None:
            view.facts.set("frag.external", measured(probe.value.gap, "e", probe.origin))
        if probe.value.largest_single_bytes is not None:
            view.facts.set("frag.largest_fit", measured(float(probe.value.largest_single_bytes), "e", probe.origin))
    block, mean = view.facts.number("kv.block_tokens"), view.facts.number("work.sequence_mean")
    if block and mean:
        view.facts.set(
            "frag.internal_waste",
            estimated(min(block / 2 / mean, 1.0), "i", "half a block per sequence", note="block / 2 / mean sequence"),
        )


# -------------------------------------------------------------------- composition


def _compose(view: View) -> None:
    """One bar per device: named parts, free, and what is left unexplained; they add up to the total."""
    events = ooms(view)
    main = next((o for o in events if o.event.number("requested") is not None), None)
    facts = view.facts
    if main is not None and (total := main.event.number("total")) is not None:
        _from_oom(view, main, total)
    elif view.devices:
        for name, device in view.devices.items():
            whole = device.number("mem.total")
            if whole:
                _from_device(view, name, device.values, whole)
    else:
        whole = facts.number("mem.total")
        if whole and isinstance(facts["mem.weights"], Known):
            _bar(view, "device", whole, _start_parts(view), None)
    for memory in view.memory:
        facts.set("mem.unexplained", estimated(memory.unexplained, "i", memory.device, note="total - every named part"))


def _start_parts(view: View) -> list[MemoryPart]:
    names = (
        ("weights", "mem.weights"),
        ("KV pool", "mem.kv_pool"),
        ("CUDA graphs", "mem.graphs"),
        ("activation peak", "mem.activations"),
        ("non-torch", "mem.non_torch"),
    )
    parts: list[MemoryPart] = []
    for label, fact in names:
        known = view.facts.known(fact)
        if known is not None:
            parts.append(MemoryPart(label, float(known.hi), known.how, known.source))
    return parts


def _from_oom(view: View, oom: Oom, total: float) -> None:
    event, source = oom.event, oom.run.source(oom.event)
    device = event.number("device")
    parts: list[MemoryPart] = []
    free, allocated, gap, mine = (
        event.number("free"),
        event.number("allocated"),
        event.number("unallocated"),
        event.number("this_process"),
    )
    start = {p.name: p for p in _start_parts(view)}
    if allocated is not None:
        rest = allocated
        how: How = "measured"
        for label in ("weights", "KV pool"):
            part = start.get(label)
            if part is not None and part.bytes <= rest:
                parts.append(part)
                rest -= part.bytes
                how = "estimated"
        parts.append(
            MemoryPart("allocated by PyTorch" if how == "measured" else "other tensors of PyTorch", rest, how, source)
        )
    if gap is not None:
        parts.append(MemoryPart("reserved, unallocated", gap, "measured", source))
    if mine is not None and allocated is not None and gap is not None:
        context = mine - allocated - gap
        if context > 0:
            parts.append(MemoryPart("non-torch (context, NCCL)", context, "estimated", source))
        if free is not None and total - free - mine > 0:
            parts.append(MemoryPart("other processes", total - free - mine, "estimated", source))
    if free is not None:
        parts.append(MemoryPart("free", free, "measured", source))
    _bar(view, f"GPU {device:.0f}" if device is not None else "device", total, parts, source)


def _from_device(view: View, name: str, values: dict[str, Fact], total: float) -> None:
    parts: list[MemoryPart] = []
    used, free, reserved = values.get("mem.used"), values.get("mem.free"), values.get("mem.reserved")
    start = _start_parts(view) if len(view.devices) == 1 or view.target.setting("tp") else []
    if isinstance(used, Known):
        named = math.fsum(p.bytes for p in start)
        if start and named <= float(used.hi) * 1.02:
            parts.extend(start)
            foreign = view.facts.known("mem.foreign")
            if foreign is not None and float(foreign.hi) > 0:
                parts.append(MemoryPart("other processes", float(foreign.hi), foreign.how, foreign.source))
                named += float(foreign.hi)
            rest = float(used.hi) - named
            if rest > 0:
                parts.append(MemoryPart("in use, unnamed", rest, "estimated", used.source))
        else:
            parts.append(MemoryPart("in use", float(used.hi), used.how, used.source))
    if isinstance(reserved, Known) and float(reserved.hi) > 0:
        parts.append(MemoryPart("driver reserved", float(reserved.hi), reserved.how, reserved.source))
    if isinstance(free, Known):
        parts.append(MemoryPart("free", float(free.hi), free.how, free.source))
    _bar(view, name, total, parts, None)


def _bar(view: View, device: str, total: float, parts: list[MemoryPart], source: str | None) -> None:
    named = math.fsum(p.bytes for p in parts)
    view.memory.append(DeviceMemory(device, total, tuple(parts), total - named, source or ""))
