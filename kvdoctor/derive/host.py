"""Device load, kernel events on one time line with the server's errors, host memory, processes, autoscalers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvdoctor.derive import devices, kills
from kvdoctor.derive.kills import JOIN_S, is_server
from kvdoctor.derive.view import View, slope
from kvdoctor.facts import FACTS as TABLE
from kvdoctor.facts import FactSet, Known, Unknown, combine, estimated, measured
from kvdoctor.frozen import frozen
from kvdoctor.parse import Unread

if TYPE_CHECKING:
    from kvdoctor.parse.gpu import GpuReading
    from kvdoctor.parse.kernel import Stall, Xid
    from kvdoctor.readings import HostReadings


def add(view: View, host: HostReadings) -> None:
    """Derive ``gpu.*``, ``host.*``, ``pd.*``, ``offload.*`` and ``model.*``."""
    _gpus(view, host)
    _xids(view, host)
    kills.add(view, host)
    _stuck(view, host)
    _rss(view, host)
    _cgroups(view, host)
    _scalers(view, host)
    _tiers(view)


# -------------------------------------------------------------------- devices


_ORDER = ("hw_slowdown", "thermal", "power", "other", "none")
# the driver sets the slowdown bit beside the one that says why: what names heat is heat
_REASONS = {
    "thermal": ("sw_thermal", "sw_thermal_slowdown", "hw_thermal", "hw_thermal_slowdown", "thermal"),
    "hw_slowdown": ("hw_slowdown", "hw_power_brake", "hw_power_brake_slowdown"),
    "power": ("sw_power_cap", "power", "power_cap"),
}
_HARMLESS = (
    "none",
    "gpu_idle",
    "idle",
    "applications_clocks_setting",
    "display_clock_setting",
    "display_clocks_setting",
    "sync_boost",
)


def _gpus(view: View, host: HostReadings) -> None:
    for name, rows in devices.readings(host).items():
        facts = view.devices.setdefault(name, FactSet())
        for reading, source in reversed(rows):
            # the last reading counts; an earlier one only where the last did not give the value
            for field, fact in (("util_gpu", "gpu.util"), ("util_mem", "gpu.mem_util")):
                value = getattr(reading, field)
                facts.set(
                    fact,
                    Unknown(f"{source}: {value.reason}")
                    if isinstance(value, Unread)
                    else measured(float(value), "i", source),
                )
            if isinstance(reading.driver_model, str):
                facts.set("gpu.wddm", measured(reading.driver_model.upper().startswith("WDDM"), "c", source))
            if (
                reading.mig is not True
                and not isinstance(reading.mem_used, Unread)
                and not isinstance(reading.mem_total, Unread)
                and reading.mem_total > 0
            ):
                facts.set("mem.used_share", measured(reading.mem_used / reading.mem_total, "i", source))
        _clocks(facts, rows)
    for scrape in host.exporter:
        for role, fact in (("gpu.util", "gpu.util"),):
            for (rank, _), exported in scrape.values.get(role, {}).items():
                view.devices.setdefault(f"GPU {rank}" if rank else "GPU", FactSet()).set(
                    fact, measured(exported.value, "i", exported.source)
                )
    for name in ("gpu.util", "gpu.mem_util", "gpu.clock_share", "gpu.capped_clock", "gpu.wddm", "mem.used_share"):
        parts = {d: f[name] for d, f in view.devices.items() if name in f}
        if parts:
            view.facts.set(name, combine(TABLE[name].combine, parts))
        elif not host.gpu and not host.exporter:
            view.facts.set(
                name,
                Unknown(
                    "no GPU reading in the snapshot",
                    "add nvidia-smi --query-gpu=... --format=csv, or run live on the host",
                ),
            )
    reasons = {d: f["gpu.throttle"] for d, f in view.devices.items() if "gpu.throttle" in f}
    known = [v for v in reasons.values() if isinstance(v, Known)]
    if known:
        view.facts.set("gpu.throttle", min(known, key=lambda k: _ORDER.index(str(k.hi))))


def _clocks(facts: FactSet, rows: list[tuple[GpuReading, str]]) -> None:
    """The worst clock of a device over its readings, and the worst among those that name a reason for it."""
    for reading, source in rows:
        clock, top = reading.sm_clock_hz, reading.sm_clock_max_hz
        share = clock / top if not isinstance(clock, Unread) and not isinstance(top, Unread) and top > 0 else None
        reason = _throttle(reading.throttle) if not isinstance(reading.throttle, Unread) else None
        if share is not None:
            _keep_smaller(facts, "gpu.clock_share", share, source)
        if reason is not None:
            old = facts.text("gpu.throttle")
            if old is None or _ORDER.index(reason) < _ORDER.index(old):
                facts.values["gpu.throttle"] = measured(reason, "i", source)
        if share is not None and reason is not None:
            # idle devices clock down: only a device that names a cap is capped
            _keep_smaller(
                facts, "gpu.capped_clock", share if reason in ("power", "thermal", "hw_slowdown") else 1.0, source
            )


def _keep_smaller(facts: FactSet, name: str, value: float, source: str) -> None:
    old = facts.number(name)
    if old is None or value < old:
        facts.values[name] = measured(value, "i", source)


def _throttle(reasons: frozenset[str]) -> str:
    active = {r.lower() for r in reasons} - set(_HARMLESS)
    for name, words in _REASONS.items():
        if active & set(words):
            return name
    return "other" if active else "none"


# -------------------------------------------------------------------- Xid against error


@frozen
class _Moment:
    time: float | None
    since_boot: float | None
    source: str


def _errors(view: View) -> list[_Moment]:
    """Failures of the server's own processes, in order."""
    out: list[_Moment] = []
    for run in view.target.logs:
        for event in run.events:
            if event.event in ("error", "oom", "exit", "start_error"):
                out.append(_Moment(event.time, None, run.source(event)))
    return out


def _xids(view: View, host: HostReadings) -> None:
    found: list[tuple[Xid, str]] = [(x, t.origin) for t in host.kernel for x in t.value.xids]
    logged = view.target.events("xid")
    if not found and not logged:
        if host.kernel:
            view.facts.set("gpu.xid_order", measured("none", "e", host.kernel[0].origin))
        else:
            view.facts.set(
                "gpu.xid_order", Unknown("no kernel log in the snapshot", "add the output of: dmesg -T | grep -i xid")
            )
        return
    if not found:
        run, event = logged[0]
        view.facts.set("gpu.xid_order", measured("alone", "e", run.source(event)))
        return
    errors = [e for e in _errors(view) if e.time is not None]
    xid, origin = found[0]
    source = f"{origin}:{xid.line}"
    when = xid.stamp.clock
    view.note_event(when, f"Xid {xid.number}", source)
    if when is None or not errors:
        if not _errors(view):
            view.facts.set("gpu.xid_order", measured("alone", "e", source))
        else:
            view.facts.set(
                "gpu.xid_order",
                Unknown(
                    "the Xid or the server's error carries no time",
                    "take dmesg -T and the server's log with time stamps",
                ),
            )
        return
    # the errors of a crash follow within seconds of each other: the Xid is compared with the first of them
    near = [e for e in errors if e.time is not None and abs(e.time - when) <= JOIN_S]
    if not near:
        view.facts.set("gpu.xid_order", measured("alone", "e", source))
        return
    first = min(e.time for e in near if e.time is not None)
    whole_second = 1.0 if when == int(when) or first == int(first) else 0.0
    if when <= first or when - first < whole_second:
        view.facts.set("gpu.xid_order", measured("before_error", "e", source))
    else:
        view.facts.set("gpu.xid_order", measured("after_error", "e", source))


# -------------------------------------------------------------------- hangs


def _stuck(view: View, host: HostReadings) -> None:
    """Processes that a signal cannot reach: in the driver, spinning or uninterruptible."""
    stalls: list[tuple[Stall, str]] = [(s, t.origin) for t in host.kernel for s in t.value.stalls]
    in_driver = [(s, o) for s, o in stalls if _driver_word(s.module) or _driver_word(s.function)]
    states = {row.pid: (row, t.origin) for t in host.processes for row in t.value.processes}
    if in_driver:
        stall, origin = in_driver[0]
        view.facts.set("host.stuck_in_driver", measured(True, "e", f"{origin}:{stall.line}"))
        return
    waiting = [
        (row, origin)
        for row, origin in states.values()
        if isinstance(row.state, str) and row.state.startswith("D") and is_server(row.command)
    ]
    if waiting:
        row, origin = waiting[0]
        known = [s for s, _ in stalls if not isinstance(s.pid, Unread) and s.pid == row.pid]
        view.facts.set("host.stuck_in_driver", measured(True, "e", f"{origin}:{row.line}") if known
                       else Unknown("a process waits uninterruptibly; whether in the driver is not told", "look at /proc/PID/stack and dmesg"))  # fmt: skip
        return
    if host.kernel or states:
        view.facts.set("host.stuck_in_driver", measured(False, "e", "kernel log and process list"))


def _driver_word(text: object) -> bool:
    return isinstance(text, str) and any(w in text for w in ("nvidia", "uvm", "amdgpu", "xe", "i915", "kfd"))


# -------------------------------------------------------------------- host memory


def _rss(view: View, host: HostReadings) -> None:
    scraped = [(s.time, s.value, s.source) for s in view.samples("run.rss")]
    ways = (scraped, _listed_rss(host), used := _listed_usage(host))
    # the one watched most closely shows best whether it falls in between
    points = max(ways, key=lambda way: sum(t is not None for t, _, _ in way))
    dated = [(t, v) for t, v, _ in points if t is not None]
    rate = slope(dated)
    if rate is not None:
        source = points[-1][2]
        view.facts.set("host.rss_slope", estimated(rate, "w", source, note=f"least squares over {len(dated)} samples"))
        view.facts.set("host.rss_window_s", measured(dated[-1][0] - dated[0][0], "w", source))
        view.facts.set("host.rss_samples", measured(float(len(dated)), "w", source))
        rises = sum(b > a for (_, a), (_, b) in zip(dated, dated[1:], strict=False))
        first, last = dated[0][1], dated[-1][1]
        if first > 0:
            growth = (last - first) / first
            view.facts.set(
                "host.rss_growth",
                estimated(growth, "w", source, note="of a container or pod: file cache in use counts with it")
                if points is used and _of_a_whole(host)
                else measured(growth, "w", source),
            )
        view.facts.set("host.rss_steps_up", measured(rises / (len(dated) - 1), "w", source))
    busy = view.delta("run.cpu")
    if not isinstance(busy, Unknown) and busy.span == "w" and busy.seconds:
        view.facts.set("host.cpu_busy", measured(busy.value / busy.seconds, "w", busy.source))
    shares = [
        (row.cpu, f"{t.origin}:{row.line}") for t in host.processes for row in t.value.processes
        if not isinstance(row.cpu, Unread) and is_server(row.command)
    ]  # fmt: skip
    if shares:
        top, source = max(((float(c), s) for c, s in shares), key=lambda x: x[0])
        view.facts.set(
            "host.cpu_busy",
            estimated(top, "i", source, note="share of processor time: over its life (ps) or an interval (top)"),
        )


def _listed_rss(host: HostReadings) -> list[tuple[float | None, float, str]]:
    """Resident memory of the largest engine process over several dated ps tables: (time, bytes, source)."""
    tracks: dict[int, list[tuple[float | None, float, str]]] = {}
    for timed in host.processes:
        for row in timed.value.processes:
            if not isinstance(row.rss, Unread) and is_server(row.command):
                when = timed.value.time_of(row)
                source = f"{timed.origin}:{row.line}"
                tracks.setdefault(row.pid, []).append((timed.time if when is None else when, float(row.rss), source))
    return max(tracks.values(), key=lambda track: track[-1][1], default=[])


def _listed_usage(host: HostReadings) -> list[tuple[float | None, float, str]]:
    """Memory of the server's container, pod or process over time: one that names a server, else the only one."""
    tracks: dict[tuple[str, str], list[tuple[float | None, float, str]]] = {}
    for timed in host.processes:
        for use in timed.value.usages:
            when = timed.time if use.time is None else use.time
            tracks.setdefault((use.kind, use.name), []).append((when, float(use.memory), f"{timed.origin}:{use.line}"))
    ours = [track for (_, name), track in tracks.items() if kills.names_server(name)]
    processes = [track for (kind, _), track in tracks.items() if kind == "process"]
    told = ours or processes or (list(tracks.values()) if len(tracks) == 1 else [])
    return max(told, key=lambda track: track[-1][1], default=[])


def _of_a_whole(host: HostReadings) -> bool:
    return any(use.kind != "process" for timed in host.processes for use in timed.value.usages)


def _cgroups(view: View, host: HostReadings) -> None:
    for timed in host.cgroups:
        group = timed.value
        whole = group.current
        if isinstance(whole, Unread) and not isinstance(group.anon, Unread) and not isinstance(group.file, Unread):
            whole = group.anon + group.file
        if not isinstance(group.inactive_file, Unread) and not isinstance(whole, Unread) and whole > 0:
            view.facts.set("host.file_cache_share", measured(min(group.inactive_file / whole, 1.0), "i", timed.origin))
        if not isinstance(group.limit, Unread) and not isinstance(whole, Unread) and group.limit > 0:
            view.facts.set("host.cgroup_usage", measured(min(whole / group.limit, 1.0), "i", timed.origin))


# -------------------------------------------------------------------- autoscaler


_UTIL_WORDS = (
    "gpu_util",
    "gpu-util",
    "gpuutil",
    "utilization_gpu",
    "utilization.gpu",
    "gpu_utilization",
    "gr_engine_active",
    "nvidia_gpu_duty_cycle",
    "duty_cycle",
    "sm_active",
)


def _scalers(view: View, host: HostReadings) -> None:
    for timed in host.kube:
        for scaler in timed.value.autoscalers:
            texts = [m.name for m in scaler.metrics] + list(scaler.queries)
            if texts:
                named = any(w in text.lower() for text in texts for w in _UTIL_WORDS)
                view.facts.set("scaler.on_gpu_util", measured(named, "c", f"{timed.origin}:{scaler.line}"))


# -------------------------------------------------------------------- second tier, disaggregation, model loads


def _tiers(view: View) -> None:
    facts = view.facts
    failed = view.counter("offload.failures")
    events = view.target.events("offload_fail")
    if events:
        count = float(sum(e.repeat for _, e in events))
        facts.set("offload.store_failures", measured(count, "w", events[0][0].source(events[0][1]), events=count))
    elif isinstance(failed, Known):
        facts.set("offload.store_failures", failed)
    usage = view.samples("offload.usage")
    if usage:
        facts.set("offload.usage", measured(usage[-1].value, "i", usage[-1].source))
    queue = view.samples("pd.transfer_queue")
    if queue:
        facts.set("pd.transfer_queue", measured(queue[-1].value, "i", queue[-1].source))
    for role, fact in (("pd.prefill_queue", "pd.prefill_queue"), ("pd.decode_queue", "pd.decode_queue")):
        samples = view.samples(role)
        if samples:
            facts.set(fact, measured(max(s.value for s in samples), "w", samples[-1].source))
    # a log shows one side only: what queues before the other side stays unknown there
    for field, fact in (
        ("pd_prefill_queue", "pd.prefill_queue"),
        ("pd_transfer_queue", "pd.transfer_queue"),
        ("pd_decode_queue", "pd.decode_queue"),
    ):
        told = [(v, s.source) for s in view.stats if (v := s.event.number(field)) is not None]
        if told and fact not in facts:
            value, source = told[-1] if fact == "pd.transfer_queue" else max(told)
            facts.set(fact, measured(value, "i" if fact == "pd.transfer_queue" else "w", source))
    expired = view.counter("pd.expired")
    if isinstance(expired, Known):
        facts.set("pd.expired", expired)
    transfers = [v for _, e in view.target.events("transfer") if (v := e.number("expired")) is not None]
    if transfers:
        facts.set("pd.expired", measured(math.fsum(transfers), "w", "log"))
