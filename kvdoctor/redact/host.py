"""nvidia-smi, kernel log, ps, cgroup files, meminfo, kubectl: written again from their readings, in text their parsers read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from kvdoctor.parse import TORCH_PROCESS, Unread
from kvdoctor.parse.gpu import THROTTLE_BITS, GpuProcess, GpuReading, GpuReport, MigReading
from kvdoctor.parse.kernel import (
    Autoscaler,
    CgroupMemory,
    ContainerState,
    KernelLog,
    Kube,
    KubeEvent,
    MemInfo,
    OomKill,
    Pod,
    Process,
    ProcessTable,
    ScaledMetric,
    Stall,
    Stamp,
    Usage,
)  # fmt: skip
from kvdoctor.redact import words
from kvdoctor.redact.veil import Veil

GPU_NOTES = ("readings written again as csv; serials and UUIDs hashed", "process names: known programs, others hashed")
KERNEL_NOTES = ("only Xid, out-of-memory and lockup lines, written again; process names and cgroups hashed",)
PS_NOTES = ("users left out; command lines: known programs and settings", "environment and arguments left out")
KUBE_NOTES = (
    "only states, reasons, exit codes, limits and autoscaler metrics; names hashed; of images only which server it is; "
    "of messages only the probe and the resource",
)
CGROUP_NOTES = ("only memory counters",)

_NAMES = re.compile(
    r"(?:NVIDIA|Tesla|GeForce|Quadro|RTX|TITAN|GRID|AMD|Instinct|Radeon|Intel)(?: [A-Za-z0-9+/.-]{1,16}){1,8}|[A-Z][0-9]{1,4}[A-Z]?"
)
_DRIVER = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,3}")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{1,80}")


def _decimal(value: float) -> str:
    return f"{round(value, 6):f}".rstrip("0").rstrip(".")


def _bytes(value: int) -> str:
    return f"{value // 2**20} MiB" if value % 2**20 == 0 else f"{value} bytes"


def _uuid(value: str, veil: Veil) -> str:
    return f"{'MIG' if value.startswith('MIG') else 'GPU'}-{veil.token(value)}"


def _known(value: str, pattern: re.Pattern[str], veil: Veil) -> str:
    return value if pattern.fullmatch(value) else veil.token(value)


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")


_NOT_PRINTED = GpuReading(0).index
"""What a parser gives for a column that is not in the output (as against one that prints no value)."""


def gpu(report: GpuReport, veil: Veil) -> bytes:
    """Devices and processes as ``--query-gpu`` and ``--query-compute-apps`` print them, one after the other."""
    lines: list[str] = []
    rows = [_gpu_row(reading, report.driver, veil) for reading in report.readings]
    if not rows and not report.processes_listed:
        lines.append("memory.used, memory.total")
    lines += _tables(rows)
    lines += _tables([_instance_row(instance, veil) for instance in report.mig])
    names = {process.name for process in report.processes if not isinstance(process.name, Unread)}
    alike = Counter(veil.command(name) for name in names)
    apps = [_process_row(process, alike, veil) for process in report.processes]
    if report.processes_listed and not apps:
        lines.append("gpu_uuid, pid, process_name, used_gpu_memory")
    lines += _tables(apps)
    return ("\n".join(lines) + "\n").encode()


def _tables(rows: list[dict[str, str]]) -> list[str]:
    """Rows under their header; a row with other columns starts a new table, as a second query does."""
    lines: list[str] = []
    header: list[str] = []
    for row in rows:
        if list(row) != header:
            header = list(row)
            lines.append(", ".join(header))
        lines.append(", ".join(row.values()))
    return lines


def _gpu_row(g: GpuReading, driver: str | Unread, veil: Veil) -> dict[str, str]:
    row = _row(
        {
            "index": (g.index, str),
            "uuid": (g.uuid, lambda v: _uuid(v, veil)),
            "name": (g.name, lambda v: _known(v, _NAMES, veil)),
            "pci.bus_id": (g.pci, lambda v: _known(v, _BUS, veil)),
            "memory.total": (g.mem_total, _bytes),
            "memory.used": (g.mem_used, _bytes),
            "memory.free": (g.mem_free, _bytes),
            "memory.reserved": (g.mem_reserved, _bytes),
            "utilization.gpu": (g.util_gpu, lambda v: f"{_decimal(v * 100)} %"),
            "utilization.memory": (g.util_mem, lambda v: f"{_decimal(v * 100)} %"),
            "clocks.sm": (g.sm_clock_hz, lambda v: f"{_decimal(v / 1e6)} MHz"),
            "clocks.max.sm": (g.sm_clock_max_hz, lambda v: f"{_decimal(v / 1e6)} MHz"),
            "temperature.gpu": (g.temperature_c, _decimal),
            "power.draw": (g.power_w, lambda v: f"{_decimal(v)} W"),
            "power.limit": (g.power_limit_w, lambda v: f"{_decimal(v)} W"),
            "driver_model.current": (g.driver_model, lambda v: v if v in ("WDDM", "TCC", "MCDM") else veil.token(v)),
            "mig.mode.current": (g.mig, lambda v: "Enabled" if v else "Disabled"),
            "driver_version": (driver, lambda v: _known(v, _DRIVER, veil)),
        }
    )
    if isinstance(g.throttle, Unread):
        if g.throttle != _NOT_PRINTED:
            row["clocks_event_reasons.active"] = "[N/A]"
    else:
        for name in sorted({*THROTTLE_BITS.values(), *(_reason(r, veil) for r in g.throttle)}):
            active = any(_reason(r, veil) == name for r in g.throttle)
            row[f"clocks_event_reasons.{name}"] = "Active" if active else "Not Active"
    if g.time is not None:
        row["timestamp"] = _clock(g.time)
    return row


def _reason(name: str, veil: Veil) -> str:
    return name if name in THROTTLE_BITS.values() or re.fullmatch(r"bit_0x[0-9a-f]{1,16}", name) else veil.token(name)


def _instance_row(m: MigReading, veil: Veil) -> dict[str, str]:
    return _row(
        {
            "gpu_index": (m.gpu_index, str),
            "gpu_bus_id": (m.gpu_pci, lambda v: _known(v, _BUS, veil)),
            "gpu_instance_id": (m.gi, str),
            "compute_instance_id": (m.ci, str),
            "memory.total": (m.mem_total, _bytes),
            "memory.used": (m.mem_used, _bytes),
            "memory.free": (m.mem_free, _bytes),
        }
    )


def _process_row(p: GpuProcess, alike: Mapping[str, int], veil: Veil) -> dict[str, str]:
    def program(name: str) -> str:
        # the same program from two places is two servers: that stays visible
        known = veil.command(name).replace(",", " ")
        return f"{known} {veil.token(name)}" if alike[veil.command(name)] > 1 else known

    row = _row(
        {
            "pid": (p.pid, str),
            "gpu_index": (p.gpu_index, str),
            "gpu_instance_id": (p.gi, str),
            "compute_instance_id": (p.ci, str),
            "gpu_uuid": (p.gpu_uuid, lambda v: _uuid(v, veil)),
            "gpu_bus_id": (p.gpu_pci, lambda v: _known(v, _BUS, veil)),
            "process_name": (p.name, program),
            "used_gpu_memory": (p.used, _bytes),
        }
    )
    if p.time is not None:
        row["timestamp"] = _clock(p.time)
    return row


def _row(cells: Mapping[str, tuple[Any, Callable[[Any], str]]]) -> dict[str, str]:
    """Cells of the columns that were printed, ``[N/A]`` where no value was."""
    return {
        name: "[N/A]" if isinstance(value, Unread) else write(value)
        for name, (value, write) in cells.items()
        if value != _NOT_PRINTED
    }


# ---- kernel log


def _stamp(stamp: Stamp) -> str:
    boot = f"[{stamp.since_boot:.6f}] " if stamp.since_boot is not None else ""
    if stamp.clock is not None:
        moment = datetime.fromtimestamp(stamp.clock, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        return f"{moment}{'+00:00' if stamp.zoned else ''} node kernel: {boot}"
    if stamp.no_year is not None:
        return f"{stamp.no_year} node kernel: {boot}"
    return boot or "node kernel: "


def kernel(log: KernelLog, veil: Veil) -> bytes:
    """The events, each in the kernel's own wording, in the order of their kinds and lines."""
    lines: list[str] = []
    entries: list[tuple[int, list[str]]] = []
    for xid in log.xids:
        pid = "" if isinstance(xid.pid, Unread) else f", pid={xid.pid}"
        name = (
            ""
            if isinstance(xid.process, Unread) or not pid
            else f", name={veil.command(xid.process).replace(',', ' ')}"
        )
        entries.append((xid.line, [f"{_stamp(xid.stamp)}NVRM: Xid (PCI:{xid.pci}): {xid.number}{pid}{name}"]))
    entries += [(kill.line, _kill(kill, veil)) for kill in log.kills]
    entries += [(stall.line, _stall(stall, veil)) for stall in log.stalls]
    for _, text in sorted(entries, key=lambda entry: entry[0]):
        lines += text
    return ("\n".join(lines or ["node kernel: no Xid, no out-of-memory kill, no lockup"]) + "\n").encode()


def _kill(kill: OomKill, veil: Veil) -> list[str]:
    at = _stamp(kill.stamp)
    lines: list[str] = []
    if isinstance(kill.constraint, str):
        constraint = kill.constraint if kill.constraint in ("NONE", "MEMCG", "CPUSET", "MEMORY_POLICY") else "NONE"
        group = f",oom_memcg=/{veil.token(kill.cgroup)}" if isinstance(kill.cgroup, str) else ""
        lines.append(f"{at}oom-kill:constraint=CONSTRAINT_{constraint}{group},pid={kill.pid},uid=0")
    scope = {"memcg": "Memory cgroup out of memory: ", "global": "Out of memory: "}.get(str(kill.scope), "")
    sizes = [
        f"{name}:{value // 1024}kB"
        for name, value in (
            ("total-vm", kill.total_vm), ("anon-rss", kill.anon_rss), ("file-rss", kill.file_rss), ("shmem-rss", kill.shmem_rss),
        )
        if not isinstance(value, Unread)
    ]  # fmt: skip
    lines.append(f"{at}{scope}Killed process {kill.pid} ({_short(kill.process, veil)}) {', '.join(sizes)}".rstrip())
    return lines


def _short(name: str, veil: Veil) -> str:
    """A process name as the kernel prints one: no blanks or brackets, at most 40 characters."""
    if name == TORCH_PROCESS:
        return name
    return re.sub(r"[\s()\[\]*]+", "_", veil.command(name)).strip("_")[:40]


def _stall(stall: Stall, veil: Veil) -> list[str]:
    at = _stamp(stall.stamp)
    name = "unknown" if isinstance(stall.process, Unread) else _short(stall.process, veil)
    pid = 0 if isinstance(stall.pid, Unread) else stall.pid
    seconds = 0 if isinstance(stall.seconds, Unread) else int(stall.seconds)
    cpu = 0 if isinstance(stall.cpu, Unread) else stall.cpu
    head = {
        "soft_lockup": f"watchdog: BUG: soft lockup - CPU#{cpu} stuck for {seconds}s! [{name}:{pid}]",
        "hard_lockup": f"NMI watchdog: Watchdog detected hard LOCKUP on cpu {cpu}",
        "hung_task": f"INFO: task {name}:{pid} blocked for more than {seconds} seconds.",
    }[stall.kind]
    lines = [f"{at}{head}"]
    if isinstance(stall.function, str) and _SYMBOL.fullmatch(stall.function):
        module = (
            f" [{stall.module}]" if isinstance(stall.module, str) and re.fullmatch(r"\w{1,40}", stall.module) else ""
        )
        lines.append(f"{at}RIP: 0010:{stall.function}+0x0/0x0{module}")
    return lines


# ---- processes and host memory


_PS_HEADER = "PID PPID STAT RSS VSZ %CPU %MEM TIME ELAPSED STARTED COMMAND"
_USAGE_HEADERS = {"container": "NAME  MEM USAGE / LIMIT", "pod": "NAME CPU(cores) MEMORY(bytes)", "process": ""}


def ps(table: ProcessTable, veil: Veil) -> bytes:
    """pid, parent, state, sizes, shares and times with a reduced command; memory of containers and pods by hashed name."""
    lines: list[str] = [] if table.usages else [_PS_HEADER]
    headed = "" if table.usages else _PS_HEADER
    dated: float | None = None
    rows: list[Process | Usage] = sorted([*table.processes, *table.usages], key=lambda row: row.line)
    for row in rows:
        when = row.time if isinstance(row, Usage) else table.time_of(row)
        if when is not None and when != dated:
            lines.append(datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S"))
            dated = when
        header = _USAGE_HEADERS[row.kind] if isinstance(row, Usage) else _PS_HEADER
        if header and header != headed:
            lines.append(header)
        headed = header
        lines.append(_usage(row, veil) if isinstance(row, Usage) else _ps_row(row, veil))
    return ("\n".join(lines) + "\n").encode()


def _usage(row: Usage, veil: Veil) -> str:
    if row.kind == "process":
        return f"{f'/proc/{row.name}/status:' if row.name else ''}VmRSS: {row.memory // 1024} kB"
    # whose memory it is: a name tells the server, and that two rows are of one container
    known = veil.command(row.name)
    name = re.sub(r"\s+", "_", known if known.startswith("process-") else f"{veil.token(row.name)} {known}")
    return f"{name}  {row.memory}B / -" if row.kind == "container" else f"{name} 0m {row.memory}"


def _ps_row(p: Process, veil: Veil) -> str:
    started = datetime.fromtimestamp(p.start, UTC).strftime("%a %b %d %H:%M:%S %Y") if p.start is not None else "-"
    state = p.state if isinstance(p.state, str) and re.fullmatch(r"[A-Za-z<+]{1,6}", p.state) else "-"
    cells = [
        str(p.pid), _dash(p.ppid), state, _dash(p.rss, 1024), _dash(p.vsz, 1024), _percent(p.cpu), _percent(p.mem),
        _dash(p.cpu_time), _dash(p.elapsed), started, veil.command(p.command),
    ]  # fmt: skip
    return " ".join(cells)


def _dash(value: float | Unread, scale: int = 1) -> str:
    return "-" if isinstance(value, Unread) else str(int(value) // scale)


def _percent(value: float | Unread) -> str:
    return "-" if isinstance(value, Unread) else f"{value * 100:.4f}".rstrip("0").rstrip(".")


_CGROUP_KEYS = words.known(
    "anon file kernel kernel_stack pagetables percpu sock shmem file_mapped file_dirty file_writeback swapcached "
    "anon_thp inactive_anon active_anon inactive_file active_file unevictable slab slab_reclaimable "
    "slab_unreclaimable pgfault pgmajfault low high max oom oom_kill oom_group_kill cache rss rss_huge "
    "mapped_file swap total_cache total_rss total_rss_huge total_shmem total_mapped_file total_swap "
    "total_inactive_anon total_active_anon total_inactive_file total_active_file total_unevictable "
    "hierarchical_memory_limit hierarchical_memsw_limit oom_kill_disable under_oom"
)
_CGROUP_FILES = words.known(
    "memory.max memory.high memory.low memory.min memory.current memory.peak memory.stat memory.events "
    "memory.swap.current memory.swap.max memory.limit_in_bytes memory.usage_in_bytes memory.max_usage_in_bytes "
    "memory.failcnt memory.oom_control memory.soft_limit_in_bytes"
)


def cgroup(group: CgroupMemory) -> bytes:
    """``file:key value`` lines."""
    lines = []
    for name, value in group.values.items():
        file, _, key = name.partition(":")
        if file in _CGROUP_FILES and (not key or key in _CGROUP_KEYS):
            lines.append(f"{file}:{key} {value}" if key else f"{file}:{value}")
    if group.unlimited and "memory.max:" not in group.values and group.version != 1:
        lines.append("memory.max:max")
    return ("\n".join(lines) + "\n").encode()


def meminfo(info: MemInfo) -> bytes:
    """The sizes of /proc/meminfo, in its own form."""
    lines = [f"{name}: {value // 1024} kB" for name, value in info.values.items() if name in _MEMINFO]
    return ("\n".join(lines) + "\n").encode()


_MEMINFO = words.known(
    "MemTotal MemFree MemAvailable Buffers Cached SwapCached Active Inactive Active(anon) Inactive(anon) "
    "Active(file) Inactive(file) Unevictable Mlocked SwapTotal SwapFree Dirty Writeback AnonPages Mapped Shmem "
    "KReclaimable Slab SReclaimable SUnreclaim KernelStack PageTables CommitLimit Committed_AS VmallocUsed Percpu "
    "AnonHugePages Hugetlb"
)


# ---- kubectl

_REASON = re.compile(r"[A-Z][A-Za-z]{2,40}")
_RESOURCES = re.compile(
    r"cpu|memory|ephemeral-storage|hugepages-[0-9]{1,4}[KMG]i|"
    r"(?:nvidia|amd|gpu\.intel|intel|habana|google|huawei|aws\.amazon)\.(?:com|ai)/[A-Za-z0-9.-]{1,40}"
)


def kube(found: Kube, veil: Veil) -> bytes:
    """Pods and autoscalers as ``kubectl describe`` prints them, with what may be written."""
    lines: list[str] = []
    for pod in found.pods:
        lines += [*_pod(pod, veil), ""]
    for scaler in found.autoscalers:
        lines += [*_autoscaler(scaler, veil), ""]
    return "\n".join(lines).encode()


def _pod(pod: Pod, veil: Veil) -> list[str]:
    lines = [f"Name:         pod-{veil.token(pod.name)}"]
    for key, value in (("Status", pod.status), ("Reason", pod.reason)):
        if isinstance(value, str) and _REASON.fullmatch(value):
            lines.append(f"{key}:       {value}")
    if pod.low_on:
        lines.append(f"Message:      low on resource: {pod.low_on}")
    if pod.started is not None:
        lines.append(f"Start Time:   {_mail(pod.started)}")
    for title, init in (("Init Containers", True), ("Containers", False)):
        part = [c for c in pod.containers if c.init == init]
        if part or not init:
            lines.append(f"{title}:")
        for container in part:
            lines.append(f"  c-{veil.token(container.name)}:")
            # whose container it is: a sidecar's end is not the server's
            if container.server:
                lines.append(f"    Image:  {container.server}")
            lines += [*_state("State", container.state), *_state("Last State", container.last_state)]
            if not isinstance(container.restarts, Unread):
                lines.append(f"    Restart Count:  {container.restarts}")
            for key, table in (("Limits", container.limits), ("Requests", container.requests)):
                lines += _quantities(key, table)
    rows = [e for e in pod.events if _REASON.fullmatch(e.reason)]
    if rows:
        lines += ["Events:", *(f"  {e.kind}  {e.reason}  {_age(e.age)}  node  {_said(e, pod, veil)}" for e in rows)]
    return lines


_PROBES = ("liveness", "startup", "readiness")


def _said(event: KubeEvent, pod: Pod, veil: Veil) -> str:
    """Of an event's message only which container it names, and which probe: they tell a kill from a lack of memory."""
    named = next((c.name for c in pod.containers if c.name and event.names(c.name)), None)
    probe = next((word for word in _PROBES if f"{word} probe" in event.message.lower()), None)
    parts = [f"Container c-{veil.token(named)}"] if named else []
    parts += [f"failed {probe} probe"] if probe else []
    return " ".join(parts) or "left out"


def _age(text: str) -> str:
    found = re.match(r"[0-9]{1,6}[smhd](?:[0-9]{1,3}[smh])?", text)
    return found.group() if found else "-"


def _mail(time: float) -> str:
    return format_datetime(datetime.fromtimestamp(time, UTC))


def _state(title: str, state: ContainerState | None) -> list[str]:
    if state is None or state.state not in ("Running", "Waiting", "Terminated"):
        return []
    lines = [f"    {title}:  {state.state}"]
    if isinstance(state.reason, str) and _REASON.fullmatch(state.reason):
        lines.append(f"      Reason:  {state.reason}")
    if not isinstance(state.exit_code, Unread):
        lines.append(f"      Exit Code:  {state.exit_code}")
    if state.oom_killed is not None:
        lines.append(f"      OOM Killed:  {state.oom_killed}")
    for key, time in (("Started", state.started), ("Finished", state.finished)):
        if time is not None:
            lines.append(f"      {key}:  {_mail(time)}")
    return lines


def _quantities(title: str, table: Mapping[str, float]) -> list[str]:
    known = {k: v for k, v in table.items() if _RESOURCES.fullmatch(k)}
    return [f"    {title}:", *(f"      {k}:  {_decimal(v)}" for k, v in known.items())] if known else []


def _metric(text: str, veil: Veil) -> str:
    """A metric's or query's name: known series and words for utilisation stay."""
    if text in ("cpu", "memory"):
        return text
    kept = [w for w in re.findall(r"[A-Za-z_:][\w:]{0,100}", text) if w in words.metric_names()]
    low = text.lower()
    kept += [w for w in words.UTILISATION if w in low and not any(w in k.lower() for k in kept)]
    return " ".join(dict.fromkeys(kept)) or veil.token(text)


def _autoscaler(scaler: Autoscaler, veil: Veil) -> list[str]:
    lines = [f"Name:  hpa-{veil.token(scaler.name)}", f"Reference:  {veil.token(str(scaler.reference))}"]
    if scaler.metrics:
        lines.append("Metrics:  ( current / target )")
        lines += [
            f'  "{_metric(m.name, veil)}":  {_amount(m.current, m)} / {_amount(m.target, m)}' for m in scaler.metrics
        ]
    for key, value in (("Min replicas", scaler.replicas_min), ("Max replicas", scaler.replicas_max)):
        if not isinstance(value, Unread):
            lines.append(f"{key}:  {value}")
    if not isinstance(scaler.replicas_current, Unread) and not isinstance(scaler.replicas_desired, Unread):
        lines.append(f"Deployment pods:  {scaler.replicas_current} current / {scaler.replicas_desired} desired")
    if scaler.queries:
        lines += ["Spec:", *(f"  Query:  {_metric(query, veil)}" for query in scaler.queries)]
    return lines


def _amount(value: float | Unread, metric: ScaledMetric) -> str:
    if isinstance(value, Unread):
        return "<unknown>"
    return f"{_decimal(value * 100)}%" if metric.unit == "share" else _decimal(value)
