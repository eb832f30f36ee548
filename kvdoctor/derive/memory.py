"""Where the bytes of a device are, out-of-memory events, and why a start failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvdoctor.derive import devices, startup
from kvdoctor.derive.view import View
from kvdoctor.engines.base import in_range
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import Fact, FactSet, How, Known, Unknown, combine, estimated, measured
from kvdoctor.findings import DeviceMemory, MemoryPart
from kvdoctor.parse import Unread

if TYPE_CHECKING:
    from kvdoctor.parse.gpu import GpuProcess, GpuReading
    from kvdoctor.parse.kernel import Process
    from kvdoctor.parse.serverlog import LogEvent
    from kvdoctor.readings import HostReadings, LogRun

FRAGMENT_SHARE = 0.03
FRAGMENT_SURE = 1.25
"""What lies unused over what was asked for: below it a device without gaps would have been nearly full too."""
FOREIGN_ROUNDING = 0.01
"""Sums of printed numbers differ by the driver's own share and by rounding: less than this of the device is nobody's."""
PRINTED_STEP = 6 << 20
"""Half of the last digit of a size printed as 0.01 GiB, rounded up."""
ROUNDING_SHARE = 0.01
"""Of a device: rounding never comes to more, however small the device."""
CROWDED = 256 << 20
"""Bytes of another process below which it is a context, not a tenant."""


def add(view: View, host: HostReadings) -> None:
    """Derive ``mem.*``, ``oom.*``, ``start.*`` and ``frag.*`` (needs ``target.phase`` and the pool)."""
    told = _budget(view)
    _ooms(view)
    _starts(view)
    _devices(view, host)
    _pages(view)
    _hybrid(view)
    _concurrency(view)
    _fragments(view, host)
    _compose(view, told)


# -------------------------------------------------------------------- start-up budget


NEIGHBOUR_SHARE = 0.1
"""Of a device: more than a process's own context and communication buffers take beside what its allocator holds."""

CONTEXT_SHARE = 0.05
"""Of a device: what contexts take beside the two processes, rounding included."""

TRACEBACK_LINES = 400
"""Lines of a traceback at most."""


def _budget(view: View) -> startup.Startup:
    """Parts of the start-up budget by rank or device; buffers in host memory count only where nothing is on a device."""
    told = startup.read(view)
    counted = told.devices if any(s.parts() for s in told.devices) else told.starts
    for name, fact in startup.PARTS.items():
        parts = {s.name: part for s in counted if (part := s.get(name)) is not None}
        for rank, part in parts.items():
            view.rank(rank or view.rank_names[0]).set(fact, part)
        if parts:
            view.facts.set(fact, combine("max", parts))
            continue
        pool = view.facts.known("kv.pool_bytes") if name == "kv_pool" else None
        view.facts.set(
            fact,
            pool or view.unknown(fact, "no start-up line tells it", "give the log from the start of the server"),
        )
    weights = [float(part.hi) for s in counted if (part := s.get("weights")) is not None]
    if len(weights) > 1 and min(weights) > 0:
        view.facts.set("spread.weights_ratio", measured(max(weights) / min(weights), "s", "weights per rank"))
    taken = [
        Known(value, value, "estimated", "s", run.source(event))
        for run, event in view.target.events("memory")
        if (value := event.number("graphs_estimate")) is not None and _of_this_version(view, event)
    ]
    if taken:
        view.facts.set("start.graphs_bytes", max(taken, key=lambda known: float(known.hi)))
    fraction = _fraction(view, [("fraction", f) for s in told.starts if (f := s.get("fraction")) is not None])
    if fraction is not None:
        view.facts.set("mem.fraction", fraction)
    for start in told.devices:
        if (total := start.get("total")) is not None:
            view.facts.set("mem.total", total)
    return told


def _of_this_version(view: View, event: LogEvent) -> bool:
    """The line means what its template says: the version seen is among those the template is for."""
    engine = view.target.engine
    for template in engine.templates if engine is not None else ():
        if template.id == event.template:
            return in_range(view.target.version, template.since, template.until) is not False
    return True


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
    sites: set[str] = field(default_factory=set)
    """What each of the messages says of the place; only one of them may have its frames above it."""


def ooms(view: View) -> list[Oom]:
    """Out-of-memory events in order; the same failure reported by several ranks within 5 s is one."""
    found: list[Oom] = []
    for run, event in view.target.events("oom"):
        who = event.rank or (str(event.pid) if event.pid is not None else "") or _raised_by(run, event)
        for old in found:
            near = old.event.time is None or event.time is None or abs(event.time - old.event.time) <= 5
            close = near and abs(event.line - old.event.line) <= 400
            same = _close(old.event.number("requested"), event.number("requested"))
            if old.run is run and close and (same or event.number("requested") is None):
                old.repeats += event.repeat
                old.ranks.add(who)
                old.sites.add(event.text("site") or "other")
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
            found.append(
                Oom(run, event, {who}, event.repeat, {event.text("site") or "other", *_sites_below(run, event)})
            )
    return found


FRAMES_BELOW = 60
"""Lines of a worker's traceback that is printed below its message, at most."""


def _sites_below(run: LogRun, event: LogEvent) -> set[str]:
    """Sites of the frames below a message that its process printed first."""
    return {
        site
        for e in run.of("error")
        if e.template.startswith("worker_frame_") and e.pid == event.pid and 0 < e.line - event.line <= FRAMES_BELOW
        and (site := e.text("site")) is not None
    }  # fmt: skip


def _raised_by(run: LogRun, event: LogEvent) -> str:
    """The rank of the traceback that an unlabelled message ends: only its first line carries the rank."""
    above = [e for e in run.of("error") if e.rank and 0 < event.line - e.line <= TRACEBACK_LINES]
    return above[-1].rank if above else ""


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
    site = _site(main)
    view.note_event(event.time, _words(event, site), source)
    for name in ("requested", "free", "unallocated", "cap"):
        value = event.number(name)
        facts.set(
            f"oom.{name}",
            measured(value, "e", source) if value is not None else Unknown("this message does not give it"),
        )
    facts.set("oom.site", measured(site, "e", source))
    total = _total(view, event)
    if total is not None:
        facts.set("mem.total", measured(total, "e", source))
    asked, stuck = event.number("requested"), event.number("unallocated")
    if stuck is not None:
        facts.set("mem.allocator_gap", measured(stuck, "e", source))
    if event.text("wording") == "torch-fraction":
        facts.set("oom.cap_refused", measured(True, "e", source))
    elif (free_bytes := event.number("free")) is not None and event.number("cap") is not None and asked is not None:
        facts.set("oom.cap_refused", measured(free_bytes > asked, "e", source))
    _other_use(view, run, event, total, source)
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
    if not work and _serving_error(run, event):
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
    facts.set("oom.fragmented", _fragmented(facts, event, total, source))
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


def _fragmented(facts: FactSet, event: LogEvent, total: float | None, source: str) -> Fact:
    """Whether what is reserved and unused is cut into pieces: enough of it for the request, and more than a trifle."""
    asked, stuck = event.number("requested"), event.number("unallocated")
    if asked is None or stuck is None or (total is None and stuck >= asked):
        return Unknown("the message does not give what is reserved and unallocated")
    if stuck < asked or stuck < FRAGMENT_SHARE * (total or 0.0):
        return measured(False, "e", source)
    if facts.text("oom.site") == "prefill" and _is_true(facts["oom.before_serving"]):
        return measured(False, "e", source, note="a first warm-up: nothing has grown and shrunk yet")
    if stuck < FRAGMENT_SURE * asked:
        return estimated(True, "e", source, note="hardly more than was asked for: the device is full as well")
    return measured(True, "e", source)


def _serving_error(run: LogRun, event: LogEvent) -> bool:
    """The failure is reported by a step of serving (a batch's prefill or decode), not by a warm-up."""
    near = [e for e in run.events if abs(e.line - event.line) <= 5 and e.event in ("error", "request_failed")]
    step = event.text("site") in ("prefill", "decode")
    return any(
        e.event == "request_failed" or (step and e.text("site") in ("prefill", "decode") and not e.fields.get("start"))
        for e in near
    )


def _captures_graphs(view: View) -> bool:
    """This engine captures graphs after the pool is laid out, and nothing says that it was told not to."""
    engine = view.target.engine
    if engine is None or not any(t.event == "graphs_begin" for t in engine.templates):
        return False
    eager = view.target.setting("eager")
    return eager is None or eager.lower() in ("false", "0", "no")


_SITE_NAMES = {"kv_alloc": "laying out the KV pool", "weights_load": "loading the weights"}
"""Places no sub-cause is named after: the timeline says them."""


def _words(event: LogEvent, site: str) -> str:
    asked, place = event.number("requested"), _SITE_NAMES.get(site)
    where = f" while {place}" if place is not None else ""
    return f"device out of memory{where}" + (f" (asked for {_size(asked)})" if asked is not None else "")


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


def _site(oom: Oom) -> str:
    """The site of the allocation: the frames', else the step of work that was begun and not ended before it."""
    # built only for logs that hold such a message
    from kvdoctor.parse.oom import SITES

    run, event = oom.run, oom.event
    named = next((site for site in SITES if site in oom.sites), "other")
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


def _beside_the_workers(view: View, run: LogRun, event: LogEvent) -> Unknown | None:
    """Why the others of a message are not strangers: a front end of this server ran out, and its workers are on the device."""
    loaded = [(e.pid, w) for e in run.of("memory") if e.line < event.line and (w := e.number("weights")) is not None]
    allocated = event.number("allocated")
    if event.pid is None or allocated is None or not loaded or any(pid in (None, event.pid) for pid, _ in loaded):
        return None
    if allocated >= min(weights for _, weights in loaded):
        return None
    return Unknown(
        "the message is of a process that holds no weights: what it counts as others' holds the workers of this server",
        HOST_LIST,
    )


def _other_use(view: View, run: LogRun, event: LogEvent, total: float | None, source: str) -> None:
    """What others hold by the message's own numbers: total - free - reserved (old wording) or - this process."""
    free, reserved, mine = event.number("free"), event.number("reserved"), event.number("this_process")
    if total is None or free is None:
        return
    if (beside := _beside_the_workers(view, run, event)) is not None:
        view.facts.set("oom.foreign", beside)
        return
    allocated, unallocated = event.number("allocated"), event.number("unallocated")
    ours = allocated + unallocated if allocated is not None and unallocated is not None else reserved
    if mine is not None and ours and _is_another(total, free, mine, ours):
        view.facts.set(
            "oom.foreign", estimated(mine, "e", source, note="the process the message lists is not this one")
        )
    elif mine is not None:
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


def _is_another(total: float, free: float, listed: float, ours: float) -> bool:
    """The one process a message lists is a neighbour: it holds far more than this one allocated, and the two make up the rest.

    In a container the driver's list holds host pids, so a message cannot say whether the listed process is its own.
    """
    return listed - ours > NEIGHBOUR_SHARE * total and abs(total - free - listed - ours) < CONTEXT_SHARE * total


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
    if logs:
        cut = [(run, event) for run, event in view.target.events("concurrency") if event.fields.get("cut")]
        origin = cut[-1][0].source(cut[-1][1]) if cut else view.target.logs[0].origin
        facts.set("start.length_cut", measured(bool(cut), "s", origin))
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
    if error == "free_below_fraction" and "free" not in merged and "have" in merged:
        merged["free"] = merged["have"]
        facts.set("start.free_bytes", measured(merged["free"], "s", source))
    if "free" in merged and "total" in merged:
        facts.set("start.free_bytes", measured(merged["free"], "s", source))
        facts.set("mem.total", measured(merged["total"], "s", source))
    grew = error == "memory_race"
    if "free" in merged and "free_initial" in merged and merged["free"] > merged["free_initial"]:
        grew = True
    facts.set("start.free_grew", measured(grew, "s", source))
    fraction = merged.get("fraction")
    if fraction is not None and 0 < fraction <= 1 and not _told(facts["mem.fraction"]):
        facts.values["mem.fraction"] = measured(fraction, "c", source)
    available = [
        (r, e, v) for r, e in view.target.events("memory", "pool") if (v := e.number("available_bytes")) is not None
    ]
    if available and available[-1][2] < 0:
        facts.set("start.negative_kv", measured(True, "s", available[-1][0].source(available[-1][1])))
        facts.set("start.have_bytes", measured(available[-1][2], "s", available[-1][0].source(available[-1][1])))
    elif any(other.fields.get("empty") is True for _, other in errors):
        # how much is missing is not said
        facts.set("start.negative_kv", measured(True, "s", source))
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


def _told(fact: Fact) -> bool:
    return isinstance(fact, Known) and fact.how == "measured"


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


MIG_HINT = "ask NVML for the MIG instance by its UUID (nvidia-smi -L lists them), or use the engine's metrics"
LOST_HINT = "dmesg -T | grep -i xid; then drain the node and reset or replace the device"

_SHARED_MEMORY = ("GB10", "ORIN", "THOR", "XAVIER", "TEGRA", "JETSON")
"""Devices without memory of their own, by the names drivers give them."""


def _not_given(reading: GpuReading, value: Unread, source: str) -> Unknown:
    """Why a device reading has no such figure, and where to get it."""
    if isinstance(reading.name, str) and any(w in reading.name.upper() for w in _SHARED_MEMORY):
        return Unknown(
            f"{source}: {reading.name} shares the memory of the CPU, so {value.reason}",
            "read MemAvailable in /proc/meminfo",
        )
    if reading.mig is True:
        return Unknown(
            f"{source}: {value.reason}", "ask NVML for the MIG instance by its UUID, or use the engine's metrics"
        )
    return Unknown(
        f"{source}: {value.reason}",
        "ask NVML for the device (for a MIG instance by its UUID), give the start-up log, or use the engine's metrics",
    )


def _devices(view: View, host: HostReadings) -> None:
    """``mem.*`` of devices from nvidia-smi, NVML and DCGM readings."""
    latest = {name: rows[-1] for name, rows in devices.readings(host).items()}
    gone = devices.lost(host)
    for name, source in gone.items():
        view.note_event(None, f"{name} no longer answers: its memory cannot be read", source)
    processes: list[tuple[GpuProcess, str]] = []
    listed = False
    for timed in host.gpu:
        if timed.value.processes_listed:
            listed = True
            processes = [(p, f"{timed.origin}:{p.line}") for p in timed.value.processes]
        elif timed.value.processes:
            processes = [(p, f"{timed.origin}:{p.line}") for p in timed.value.processes]
    pids = {p for run in view.target.logs for p in run.pids}
    for name, (reading, source) in latest.items():
        facts = view.devices.setdefault(name, FactSet())
        part = devices.instance(reading, host, pids)
        if part is not None and name not in gone:
            _instance(facts, part)
            if part.found is not None:
                # what lives in another instance can take nothing from this one
                processes = [(p, s) for p, s in processes if isinstance(p.gi, Unread) or p.gi == part.found.gi]
            continue
        for field_name, fact in (
            ("mem_total", "mem.total"),
            ("mem_used", "mem.used"),
            ("mem_free", "mem.free"),
            ("mem_reserved", "mem.reserved"),
        ):
            value = getattr(reading, field_name)
            if name in gone:
                facts.set(
                    fact, Unknown(f"{name} no longer answers ({gone[name]}): it is lost until it is reset", LOST_HINT)
                )
            elif isinstance(value, Unread):
                facts.set(fact, _not_given(reading, value, source))
            else:
                facts.set(fact, measured(float(value), "i", source))
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
        if parts:
            view.facts.set(name, combine(TABLE[name].combine, parts))
    used_values = [v for f in view.devices.values() if (v := f.number("mem.used")) is not None]
    if len(used_values) > 1 and min(used_values) > 0:
        view.facts.set("spread.mem_ratio", measured(max(used_values) / min(used_values), "i", "device memory in use"))
    _foreign(view, host, processes, listed)
    told = view.facts.known("mem.foreign")
    if processes:
        view.facts.set("mem.twin_workers", measured(float(_twins(processes)), "i", processes[0][1]))
    elif told is not None:
        # what others hold is accounted for in bytes: their titles would add nothing
        view.facts.set("mem.twin_workers", measured(0.0, told.span, told.source))


def _instance(facts: FactSet, part: devices.Instance) -> None:
    """``mem.*`` of the server's own instance of a device in MIG mode."""
    if part.found is None:
        for fact in ("mem.total", "mem.used", "mem.free"):
            facts.set(fact, Unknown(part.why, MIG_HINT))
        return
    total, used, free = part.found.mem_total, part.found.mem_used, part.found.mem_free
    for fact, value in (("mem.total", total), ("mem.used", used), ("mem.free", free)):
        if not isinstance(value, Unread):
            facts.set(fact, measured(float(value), "i", part.source, note="of the server's MIG instance"))
        elif fact == "mem.free" and not isinstance(total, Unread) and not isinstance(used, Unread):
            facts.set(fact, estimated(float(max(total - used, 0)), "i", part.source, note="total - used"))
        else:
            facts.set(fact, Unknown(f"{part.source}: {value.reason}", MIG_HINT))


_TITLES = ("vllm::", "sglang::")
"""Engines whose workers carry their rank in the process title."""


def _twins(processes: Sequence[tuple[GpuProcess, str]]) -> int:
    """Workers that share title and device with another: a server starts each rank once, so they are of two servers."""
    seen: dict[tuple[object, ...], set[int]] = {}
    for process, _ in processes:
        device = next(
            (d for d in (process.gpu_uuid, process.gpu_pci, process.gpu_index) if not isinstance(d, Unread)), None
        )
        place = None if isinstance(process.gi, Unread) else process.gi
        if device is None or isinstance(process.name, Unread) or isinstance(process.pid, Unread):
            continue
        if process.name.lower().startswith(_TITLES):
            seen.setdefault((device, place, process.name), set()).add(process.pid)
    return sum(len(pids) - 1 for pids in seen.values())


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
            if _left_over(rows, process.pid):
                orphans += 1
                orphan_bytes += 0.0 if isinstance(process.used, Unread) else float(process.used)
                orphan_source = orphan_source or source
    elif rows:
        for pid, (row, origin) in rows.items():
            if pid not in own and _left_over(rows, pid):
                orphans += 1
                orphan_source = orphan_source or f"{origin}:{row.line}"
    no_process = [
        (name, f) for name, f in view.devices.items()
        if listed and not processes and (f.number("mem.used") or 0.0) > CROWDED
    ]  # fmt: skip
    if rows and not listed and not processes and all(isinstance(row.ppid, Unread) for row, _ in rows.values()):
        facts.set("mem.orphans", Unknown("the process list has no PPID column", "ps -eo pid,ppid,stat,rss,args"))
    elif no_process and not orphans and facts.text("target.phase") == "serving":
        # this server lives and is not in the list either
        facts.set(
            "mem.orphans",
            Unknown("the process list is empty although memory is in use: it is of another container", HOST_LIST),
        )
    elif rows or listed:
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
    elif (taken := _taken_before(facts)) is not None:
        facts.set("mem.foreign", taken)
    elif (neighbours := _neighbours(view, processes)) is not None:
        facts.set("mem.foreign", neighbours)
    elif "oom.foreign" in facts and not (processes or listed):
        facts.set("mem.foreign", facts["oom.foreign"])
    elif processes or listed:
        facts.set("mem.foreign", Unknown(_why_not_told_apart(processes, own), HOST_LIST))


def _neighbours(view: View, processes: list[tuple[GpuProcess, str]]) -> Known | None:
    """What others hold at least and at most, where one device is listed and this server can only be one of its programs."""
    places = {(p.gpu_index, p.gpu_uuid, p.gpu_pci, p.gi) for p, _ in processes}
    if len(places) != 1 or len(view.devices) > 1:
        return None
    programs: dict[str, float] = {}
    for process, _ in processes:
        # a display, or a front end that only opened the device, is no neighbour
        if not isinstance(process.used, Unread) and process.used > CROWDED:
            if isinstance(process.name, Unread):
                return None
            # processes of one name may be the ranks or runners of one server
            programs[process.name] = programs.get(process.name, 0.0) + float(process.used)
    if len(programs) < 2:
        return None
    whole = math.fsum(programs.values())
    return Known(
        whole - max(programs.values()), whole - min(programs.values()), "bound", "i", processes[0][1],
        f"{len(programs)} programs on the device, and this server is one of them at most",
    )  # fmt: skip


def _taken_before(facts: FactSet) -> Known | None:
    """What others held when the engine looked, before it had loaded anything: total - free of the refusal."""
    if facts.text("start.error") != "free_below_fraction":
        return None
    total, free = facts.number("mem.total"), facts.known("start.free_bytes")
    if total is None or free is None or float(free.hi) > total:
        return None
    taken = total - float(free.hi)
    return Known(
        taken, taken, "estimated", "s", free.source, "total - free when the engine looked; its own context too"
    )


HOST_LIST = "run nvidia-smi and ps on the host, not in the container, and give the log with the pids of the workers"


def _why_not_told_apart(processes: list[tuple[GpuProcess, str]], own: set[int]) -> str:
    """Why the memory of others cannot be told from this server's own."""
    if not processes:
        return "the list of device processes is empty: it does not show this server"
    if all(isinstance(p.used, Unread) for p, _ in processes):
        return "the list of device processes gives no sizes (as under WSL and WDDM)"
    if not own:
        return "the log names no pid, so none of the listed device processes is known to be this server"
    return "none of the listed device processes has a pid of this server: the list has pids of the host or of another container"


_FRONT_ENDS = (
    "api_server", "apiserver", "vllm serve", "serve ", "launch_server", "trtllm-serve", "tritonserver",
    "text-generation-launcher", "llama-server", "ollama", "ray start", "raylet",
)  # fmt: skip
_WORKERS = ("enginecor", "worker_tp", "vllm::", "sglang::", "ray::", "text-generation-server")
"""Titles of processes that another one starts and serves for (the kernel cuts names to 15 characters)."""

_REAPERS = frozenset((
    "init", "systemd", "tini", "dumb-init", "docker-init", "catatonit", "containerd-shim", "containerd-shim-runc-v2", "conmon",
    "runsv", "supervisord", "bash", "sh", "dash", "ash", "zsh", "ksh", "fish", "tmux", "screen", "sshd", "login", "slurmstepd",
))  # fmt: skip
"""Programs that take over the children of the dead, as process 1 does: none of them is the front end of an engine."""


def _serves(command: str) -> bool:
    text = command.lower()
    return any(word in text for word in _FRONT_ENDS)


def _works(command: str) -> bool:
    """A process that serves nobody by itself: an engine's core, a worker, a shard."""
    text = command.lower()
    return any(word in text for word in _WORKERS) and not _serves(command)


def _reaps(command: str) -> bool:
    first = command.split(None, 1)[0] if command.strip() else ""
    return first.rsplit("/", 1)[-1].lstrip("-").rstrip(":").lower() in _REAPERS


def _left_over(rows: Mapping[int, tuple[Process, str]], pid: int) -> bool:
    """Is this a worker whose front end is gone? Its first ancestor that is no worker tells; an ancestor not listed, nothing."""
    seen: set[int] = set()
    at = pid
    while at in rows and at not in seen and _works(rows[at][0].command):
        seen.add(at)
        parent = rows[at][0].ppid
        if isinstance(parent, Unread):
            return False
        if parent <= 1 and 1 not in rows:
            return True
        at = parent
    return bool(seen) and at in rows and at not in seen and _reaps(rows[at][0].command)


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


def _concurrency(view: View) -> None:
    """How many of the longest requests the pool holds, where the engine exports it (no line of the start needed)."""
    if _told(view.facts["kv.max_concurrency"]):
        return
    for scrape in reversed(view.target.scrapes):
        labels, source = scrape.infos.get("kv.info", ({}, ""))
        try:
            ratio = float(labels.get("kv_cache_max_concurrency", ""))
        except ValueError:
            continue
        if math.isfinite(ratio) and ratio > 0:
            view.facts.values["kv.max_concurrency"] = measured(ratio, "s", source)
            return


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


def _compose(view: View, told: startup.Startup) -> None:
    """One bar per device: named parts, free, and what is left unexplained; they add up to the total."""
    events = ooms(view)
    main = next((o for o in events if o.event.number("requested") is not None), None)
    own = [] if told.on_cpu else _start_parts(view)
    if main is not None and (total := main.event.number("total")) is not None:
        _from_oom(view, main, total, own)
    elif any(d.number("mem.total") for d in view.devices.values()):
        for name, device in view.devices.items():
            whole = device.number("mem.total")
            if whole:
                _from_device(view, name, device.values, whole, own)
    elif not told.on_cpu:
        for start in told.devices:
            _from_start(view, start)
    if told.on_cpu:
        view.note_event(told.on_cpu_at, "the server starts on the CPU: there is no device memory", told.on_cpu)
        if told.host is not None:
            _from_host(view, told.host)
    rest = {m.device: estimated(m.unexplained, "i", m.device, note="total - every named part") for m in view.memory}
    if rest:
        view.facts.set("mem.unexplained", combine("max", rest))
    if not view.devices and len(left := [f for s in told.devices if (f := s.free_after) is not None]) > 0:
        view.facts.set("mem.free", min(left, key=lambda f: float(f.hi)))


def no_device(view: View) -> None:
    """A server that computes on the CPU has no device memory: said in place of "not in the snapshot" (after all facts)."""
    told = startup.read(view)
    if not told.on_cpu:
        return
    reason = f"the server computes on the CPU ({told.on_cpu}): there is no device memory"
    for name in ("mem.total", "mem.used", "mem.free", "mem.reserved", "mem.used_share", "gpu.util"):
        if not isinstance(view.facts[name], Known):
            view.facts.values[name] = Unknown(reason)


def _start_parts(view: View) -> list[MemoryPart]:
    return [
        MemoryPart(startup.LABELS[name], float(known.hi), known.how, known.source)
        for name, fact in startup.PARTS.items()
        if (known := view.facts.known(fact)) is not None
    ]


def _from_start(view: View, start: startup.Start) -> None:
    """A bar from start-up lines alone: of the device where they give its size, else of what was free before the weights."""
    own = start.parts()
    whole = start.get("total") or (view.facts.known("mem.total") if own else None)
    if not own or (whole is None and start.free_before is None):
        return
    parts = [MemoryPart(label, float(part.hi), part.how, part.source) for label, part in own]
    name = start.name or "device"
    before, after = start.free_before, start.free_after
    if whole is None:
        assert before is not None
        # libraries were set up before this reading
        parts = [p for p in parts if p.name != "non-torch"]
        name, total = f"{name}: memory free before the weights", float(before.hi)
    else:
        total = float(whole.hi)
    if after is not None:
        parts.append(MemoryPart("free", float(after.hi), after.how, after.source))
    elif whole is not None:
        if before is not None and total > float(before.hi):
            parts.append(MemoryPart("in use before the start", total - float(before.hi), "estimated", before.source))
        budget, fraction = start.get("budget"), start.get("fraction")
        share = (
            float(budget.hi) if budget is not None else total * float(fraction.hi) if fraction is not None else total
        )
        left = min(total - share, total - math.fsum(p.bytes for p in parts))
        if left > 0:
            parts.append(MemoryPart("outside the engine's share", left, "estimated", whole.source))
    _bar(view, name, total, parts, None)


def _from_host(view: View, host: startup.Start) -> None:
    """A server on the CPU that tells its buffers and the machine's memory: what it takes of that."""
    total, free = host.get("host_total"), host.get("host_free")
    parts = [MemoryPart(label, float(part.hi), part.how, part.source) for label, part in host.parts()]
    if total is None or not parts:
        return
    whole = float(total.hi)
    if free is not None:
        if whole > float(free.hi):
            parts.append(MemoryPart("in use before the start", whole - float(free.hi), "estimated", free.source))
        left = float(free.hi) - math.fsum(float(part.hi) for _, part in host.parts())
        if left > 0:
            parts.append(MemoryPart("free", left, "estimated", free.source))
    _bar(view, "host memory (the server computes on the CPU: no device memory)", whole, parts, None)


def _from_oom(view: View, oom: Oom, total: float, own: list[MemoryPart]) -> None:
    event, source = oom.event, oom.run.source(oom.event)
    device = event.number("device")
    parts: list[MemoryPart] = []
    free, allocated, gap, mine = (
        event.number("free"),
        event.number("allocated"),
        event.number("unallocated"),
        event.number("this_process"),
    )
    start = {p.name: p for p in own}
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
            beside = _beside_the_workers(view, oom.run, event) is not None
            name = "other processes, this server's workers among them" if beside else "other processes"
            parts.append(MemoryPart(name, total - free - mine, "estimated", source))
    if free is not None:
        parts.append(MemoryPart("free", free, "measured", source))
    _bar(view, f"GPU {device:.0f}" if device is not None else "device", total, parts, source)


def _from_device(view: View, name: str, values: dict[str, Fact], total: float, own: list[MemoryPart]) -> None:
    parts: list[MemoryPart] = []
    used, free, reserved = values.get("mem.used"), values.get("mem.free"), values.get("mem.reserved")
    start = own if len(view.devices) == 1 or view.target.setting("tp") else []
    if isinstance(used, Known):
        foreign = view.facts.known("mem.foreign") if len(view.devices) == 1 else None
        others = min(float(foreign.hi), float(used.hi)) if foreign is not None else 0.0
        mine = float(used.hi) - others
        named = math.fsum(p.bytes for p in start)
        if start and named <= mine:
            parts.extend(start)
            if mine > named:
                parts.append(MemoryPart("in use, unnamed", mine - named, "estimated", used.source))
        else:
            parts.append(MemoryPart("in use", mine, used.how if not others else "estimated", used.source))
        if foreign is not None and others > 0:
            parts.append(MemoryPart("other processes", others, foreign.how, foreign.source))
    if isinstance(reserved, Known) and float(reserved.hi) > 0:
        parts.append(MemoryPart("driver reserved", float(reserved.hi), reserved.how, reserved.source))
    if isinstance(free, Known):
        parts.append(MemoryPart("free", float(free.hi), free.how, free.source))
    _bar(view, name, total, parts, None)


def _bar(view: View, device: str, total: float, parts: list[MemoryPart], source: str | None) -> None:
    excess = math.fsum(p.bytes for p in parts) - total
    if 0 < excess <= min(PRINTED_STEP * len(parts), ROUNDING_SHARE * total):
        # printed figures are rounded: that is not memory counted twice
        most = max(range(len(parts)), key=lambda i: parts[i].bytes)
        parts = [replace(p, bytes=p.bytes - excess) if i == most else p for i, p in enumerate(parts)]
    named = math.fsum(p.bytes for p in parts)
    view.memory.append(DeviceMemory(device, total, tuple(parts), total - named, source or ""))
