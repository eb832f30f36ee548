"""GPU readings by NVML, written down as the text nvidia-smi prints, so that one parser reads both.

Without MIG: a ``--query-gpu`` csv and a ``--query-compute-apps`` csv. With MIG on any device: one ``-q -x`` document, the
only form of nvidia-smi that carries the memory of instances. Sizes are MiB with the fraction nvidia-smi leaves out.
"Used" is that of NVML's second memory call and excludes what the driver reserves; a driver before R510 has only the first,
then ``memory.reserved`` is ``[N/A]`` and the driver's version tells the reader.

What NVML does not give stands there as nvidia-smi writes it: ``[N/A]`` (not supported: WSL, vGPU, unified memory),
``[Insufficient Permissions]``, ``[GPU is lost]`` ... - never 0.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Member, Missing, memory_member

MIB = 1 << 20
_NA = "[N/A]"

COLUMNS = (
    "index, uuid, name, pci.bus_id, driver_version, memory.total [MiB], memory.reserved [MiB], memory.used [MiB], "
    "memory.free [MiB], utilization.gpu [%], utilization.memory [%], clocks.current.sm [MHz], clocks.max.sm [MHz], "
    "temperature.gpu, power.draw [W], enforced.power.limit [W], clocks_event_reasons.active, mig.mode.current"
)
APP_COLUMNS = "gpu_uuid, pid, process_name, used_gpu_memory [MiB]"


@frozen
class GpuTake:
    """One reading of all GPUs. ``pids``: host pids of processes that hold GPU memory, with their names.

    ``works`` is False when there is no NVML to ask at all (then nvidia-smi may still answer).
    """

    members: tuple[Member, ...]
    missing: tuple[Missing, ...]
    pids: dict[int, str] = field(default_factory=dict)
    works: bool = True


@dataclass(slots=True)
class _Process:
    pid: int
    name: str
    used: str
    kind: str
    gi: str = _NA
    ci: str = _NA


@dataclass(slots=True)
class _Instance:
    index: int
    gi: str
    ci: str
    total: str
    used: str
    free: str


@dataclass(slots=True)
class _Device:
    index: int
    cells: dict[str, str]
    mig: bool = False
    instances: list[_Instance] = field(default_factory=list)
    processes: list[_Process] = field(default_factory=list)
    unlisted: str = ""


class _Refused(Exception):
    """An NVML call that gave nothing; the text is NVML's reason."""

    @property
    def cell(self) -> str:
        reason = str(self)
        return _NA if reason == "Not Supported" else f"[{reason}]"


class Nvml:
    """NVML of this host; kept open between readings. ``module`` stands in for pynvml in tests.

    All calls run in one thread of their own: a device whose driver hangs costs ``timeout_s``, not the run.
    """

    def __init__(self, module: Any = None, *, timeout_s: float = 5.0) -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._open = False
        self._stuck = False

    def read(self, now: float, label: str) -> GpuTake:
        """Read every device; ``now`` is epoch seconds and ``label`` goes into the members' names."""
        if self._stuck:
            return self._timed_out()
        answer: queue.SimpleQueue[GpuTake | Exception] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put(self._read(now, label))
            except Exception as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
                answer.put(error)

        threading.Thread(target=work, name="nvml", daemon=True).start()
        try:
            result = answer.get(timeout=self._timeout_s)
        except queue.Empty:
            self._stuck = True
            return self._timed_out()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Give NVML back (not while a call hangs in the driver)."""
        if self._open and not self._stuck:
            self._open = False
            with contextlib.suppress(_Refused):
                self._ask("nvmlShutdown")

    def _timed_out(self) -> GpuTake:
        return GpuTake(
            (), (Missing("gpu", "NVML", f"NVML did not answer within {self._timeout_s:g} s",
                         "the driver hangs: look at dmesg for NVRM: Xid lines; nvidia-smi will hang too"),),
        )  # fmt: skip

    # ---- one wrapper around every call

    def _ask(self, call: str, *arguments: Any, **named: Any) -> Any:
        """``pynvml.<call>(...)``; raises :class:`_Refused` with NVML's own reason, whatever goes wrong."""
        function = getattr(self._module, call, None)
        if function is None:
            raise _Refused("Function Not Found")
        try:
            return function(*arguments, **named)
        except self._module.NVMLError as error:
            raise _Refused(str(error)) from error
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise _Refused(f"{call}: {error}") from error

    def _cell(self, call: str, *arguments: Any, show: Callable[[Any], str] = str) -> str:
        try:
            return show(self._ask(call, *arguments))
        except _Refused as refused:
            return refused.cell

    # ---- reading

    def _start(self) -> Missing | None:
        if self._module is None:
            try:
                self._module = importlib.import_module("pynvml")
            except ImportError:
                return Missing(
                    "gpu", "NVML", "the Python package nvidia-ml-py is not installed", "pip install nvidia-ml-py"
                )
        if self._open:
            return None
        try:
            self._ask("nvmlInit")
        except _Refused as refused:
            return _no_nvml(str(refused))
        self._open = True
        return None

    def _read(self, now: float, label: str) -> GpuTake:
        problem = self._start()
        if problem is not None:
            return GpuTake((), (problem,), works=False)
        driver = self._cell("nvmlSystemGetDriverVersion", show=_text)
        try:
            count = int(self._ask("nvmlDeviceGetCount"))
        except _Refused as refused:
            return GpuTake(
                (), (Missing("gpu", "NVML", f"GPUs cannot be counted: {refused}", _hint(refused)),), works=False
            )
        if count == 0:
            return GpuTake((), (Missing("gpu", "NVML", "the driver is there, but no GPU is visible",
                                        "in a container, start it with the GPUs passed in (--gpus all)"),))  # fmt: skip
        devices: list[_Device] = []
        missing: list[Missing] = []
        for index in range(count):
            device = self._device(index, driver, missing)
            devices.append(device)
            if device.unlisted:
                missing.append(
                    Missing("gpu processes", f"GPU {index}", f"the list of processes cannot be read: {device.unlisted}",
                            "run kvdoctor on the host and as root, outside WSL")
                )  # fmt: skip
        pids = {p.pid: p.name for device in devices for p in device.processes}
        return GpuTake(tuple(_members(devices, driver, now, label)), tuple(missing), pids)

    def _device(self, index: int, driver: str, missing: list[Missing]) -> _Device:
        try:
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        except _Refused as refused:
            missing.append(Missing("gpu", f"GPU {index}", f"NVML cannot open it: {refused}", _hint(refused)))
            names = [c.split(" [")[0] for c in COLUMNS.split(", ")]
            cells = dict.fromkeys(names, refused.cell) | {"index": str(index), "driver_version": driver}
            return _Device(index, cells)
        memory = self._memory(handle)
        if isinstance(memory, _Refused):
            missing.append(
                Missing("gpu memory", f"GPU {index}", f"NVML does not tell the memory: {memory}", _memory_hint(memory))
            )
            total = reserved = used = free = memory.cell
        else:
            total, reserved, used, free = memory
        try:
            rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
            util_gpu, util_memory = f"{rates.gpu} %", f"{rates.memory} %"
        except _Refused as refused:
            util_gpu = util_memory = refused.cell
        sm = getattr(self._module, "NVML_CLOCK_SM", 1)
        reasons = self._cell("nvmlDeviceGetCurrentClocksEventReasons", handle, show=_hex)
        if reasons == "[Function Not Found]":
            reasons = self._cell("nvmlDeviceGetCurrentClocksThrottleReasons", handle, show=_hex)
        try:
            mig = bool(self._ask("nvmlDeviceGetMigMode", handle)[0])
            mode = "Enabled" if mig else "Disabled"
        except _Refused as refused:
            mig, mode = False, refused.cell
        device = _Device(
            index,
            {
                "index": str(index),
                "uuid": self._cell("nvmlDeviceGetUUID", handle, show=_text),
                "name": self._cell("nvmlDeviceGetName", handle, show=_text),
                "pci.bus_id": self._cell("nvmlDeviceGetPciInfo", handle, show=lambda p: _text(p.busId)),
                "driver_version": driver,
                "memory.total": total,
                "memory.reserved": reserved,
                "memory.used": used,
                "memory.free": free,
                "utilization.gpu": util_gpu,
                "utilization.memory": util_memory,
                "clocks.current.sm": self._cell("nvmlDeviceGetClockInfo", handle, sm, show=_mhz),
                "clocks.max.sm": self._cell("nvmlDeviceGetMaxClockInfo", handle, sm, show=_mhz),
                "temperature.gpu": self._cell("nvmlDeviceGetTemperature", handle, 0),
                "power.draw": self._cell("nvmlDeviceGetPowerUsage", handle, show=_watts),
                "enforced.power.limit": self._cell("nvmlDeviceGetEnforcedPowerLimit", handle, show=_watts),
                "clocks_event_reasons.active": reasons,
                "mig.mode.current": mode,
            },
            mig,
        )
        self._processes(handle, device)
        if mig:
            self._instances(handle, device)
        return device

    def _memory(self, handle: Any) -> tuple[str, str, str, str] | _Refused:
        version = getattr(self._module, "nvmlMemory_v2", None)
        try:
            if version is not None:
                info = self._ask("nvmlDeviceGetMemoryInfo", handle, version=version)
                return _mib(info.total), _mib(info.reserved), _mib(info.used), _mib(info.free)
        except _Refused as refused:
            if str(refused) not in ("Function Not Found", "Argument Version Mismatch"):
                return refused
        try:
            info = self._ask("nvmlDeviceGetMemoryInfo", handle)
        except _Refused as refused:
            return refused
        return _mib(info.total), _NA, _mib(info.used), _mib(info.free)

    def _processes(self, handle: Any, device: _Device, gi: str = _NA, ci: str = _NA) -> None:
        """Processes with a compute or graphics context, each pid once; ``unlisted`` says why there is no list."""
        found = {(p.pid, p.gi, p.ci): p for p in device.processes}
        for call, kind in (
            ("nvmlDeviceGetComputeRunningProcesses", "C"),
            ("nvmlDeviceGetMPSComputeRunningProcesses", "C"),
            ("nvmlDeviceGetGraphicsRunningProcesses", "G"),
        ):
            try:
                listed = self._ask(call, handle)
            except _Refused as refused:
                if call == "nvmlDeviceGetComputeRunningProcesses":
                    device.unlisted = str(refused)
                continue
            for process in listed:
                used = _NA if process.usedGpuMemory is None else _mib(process.usedGpuMemory)
                known = found.get((process.pid, gi, ci))
                if known is not None:
                    known.kind = known.kind if kind in known.kind else f"{known.kind}+{kind}"
                    continue
                name = self._cell("nvmlSystemGetProcessName", process.pid, show=_text)
                found[(process.pid, gi, ci)] = _Process(int(process.pid), name, used, kind, gi, ci)
        device.processes = list(found.values())

    def _instances(self, handle: Any, device: _Device) -> None:
        try:
            most = int(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle))
        except _Refused:
            return
        whole = device.processes
        device.processes = []
        for number in range(most):
            try:
                instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            except _Refused:
                continue  # NVML counts places; most of them are empty
            gi = self._cell("nvmlDeviceGetGpuInstanceId", instance)
            ci = self._cell("nvmlDeviceGetComputeInstanceId", instance)
            memory = self._memory(instance)
            total, _, used, free = (memory.cell,) * 4 if isinstance(memory, _Refused) else memory
            device.instances.append(_Instance(number, gi, ci, total, used, free))
            self._processes(instance, device, gi, ci)
        inside = {p.pid for p in device.processes}
        device.processes += [p for p in whole if p.pid not in inside]


# ---- text -----------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return " ".join(text.split()) or _NA


def _mib(size: int) -> str:
    return f"{size / MIB:.4f}".rstrip("0").rstrip(".") + " MiB"


def _mhz(value: Any) -> str:
    return f"{value} MHz"


def _watts(milliwatts: Any) -> str:
    return f"{milliwatts / 1000:.2f} W"


def _hex(mask: Any) -> str:
    return f"0x{mask:016x}"


def _members(devices: list[_Device], driver: str, now: float, label: str) -> list[Member]:
    if any(device.mig for device in devices):
        return [
            memory_member(
                f"gpu/nvml-{label}.xml",
                _xml(devices, driver).encode(),
                kind="smi-xml",
                time=now,
                origin=f"NVML ({label})",
            )
        ]
    names = [column.split(" [")[0] for column in COLUMNS.split(", ")]
    rows = [COLUMNS, *(", ".join(device.cells[name] for name in names) for device in devices)]
    members = [
        memory_member(f"gpu/nvml-{label}.csv", _lines(rows), kind="smi-query", time=now, origin=f"NVML ({label})")
    ]
    # an empty list says that there is no process; without the right to read it nothing is said
    if not all(device.unlisted or device.cells["uuid"].startswith("[") for device in devices):
        apps = [f"{device.cells['uuid']}, {p.pid}, {p.name}, {p.used}" for device in devices for p in device.processes]
        members.append(
            memory_member(
                f"gpu/nvml-processes-{label}.csv", _lines([APP_COLUMNS, *apps]), kind="smi-apps", time=now,
                origin=f"NVML processes ({label})",
            )
        )  # fmt: skip
    return members


def _lines(rows: list[str]) -> bytes:
    return ("\n".join(rows) + "\n").encode()


def _xml(devices: list[_Device], driver: str) -> str:
    """The part of ``nvidia-smi -q -x`` that the csv columns and MIG instances need."""

    def bare(cell: str) -> str:
        return escape("N/A" if cell == _NA else cell)

    out = ['<?xml version="1.0" ?>', "<nvidia_smi_log>", f"<driver_version>{bare(driver)}</driver_version>",
           f"<attached_gpus>{len(devices)}</attached_gpus>"]  # fmt: skip
    for device in devices:
        cells = {name: bare(cell) for name, cell in device.cells.items()}
        out += [
            f'<gpu id="{cells["pci.bus_id"]}">',
            f"<product_name>{cells['name']}</product_name>",
            f"<uuid>{cells['uuid']}</uuid>",
            f"<mig_mode><current_mig>{cells['mig.mode.current']}</current_mig></mig_mode>",
            "<fb_memory_usage>",
            *(f"<{part}>{cells[f'memory.{part}']}</{part}>" for part in ("total", "reserved", "used", "free")),
            "</fb_memory_usage>",
            f"<utilization><gpu_util>{cells['utilization.gpu']}</gpu_util>"
            f"<memory_util>{cells['utilization.memory']}</memory_util></utilization>",
            f"<clocks><sm_clock>{cells['clocks.current.sm']}</sm_clock></clocks>",
            f"<max_clocks><sm_clock>{cells['clocks.max.sm']}</sm_clock></max_clocks>",
            f"<temperature><gpu_temp>{_unit(cells['temperature.gpu'], ' C')}</gpu_temp></temperature>",
            f"<gpu_power_readings><power_draw>{cells['power.draw']}</power_draw>"
            f"<current_power_limit>{cells['enforced.power.limit']}</current_power_limit></gpu_power_readings>",
            *_xml_reasons(device.cells["clocks_event_reasons.active"]),
            "<mig_devices>",
        ]
        for i in device.instances:
            out += [
                f"<mig_device><index>{i.index}</index><gpu_instance_id>{bare(i.gi)}</gpu_instance_id>"
                f"<compute_instance_id>{bare(i.ci)}</compute_instance_id><fb_memory_usage><total>{bare(i.total)}</total>"
                f"<used>{bare(i.used)}</used><free>{bare(i.free)}</free></fb_memory_usage></mig_device>"
            ]
        out.append("</mig_devices>")
        if not device.unlisted:
            out.append("<processes>")
            out += [
                f"<process_info><gpu_instance_id>{bare(p.gi)}</gpu_instance_id><compute_instance_id>{bare(p.ci)}"
                f"</compute_instance_id><pid>{p.pid}</pid><type>{p.kind}</type><process_name>{bare(p.name)}</process_name>"
                f"<used_memory>{bare(p.used)}</used_memory></process_info>"
                for p in device.processes
            ]
            out.append("</processes>" if device.processes else "None</processes>")
        out.append("</gpu>")
    return "\n".join([*out, "</nvidia_smi_log>", ""])


def _unit(cell: str, unit: str) -> str:
    return cell + unit if cell.isdigit() else cell


_REASON_BITS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}


def _xml_reasons(mask: str) -> list[str]:
    """The xml form names each reason instead of giving the mask."""
    if not mask.startswith("0x"):
        return []
    active = int(mask, 16)
    return [
        "<clocks_event_reasons>",
        *(
            f"<clocks_event_reason_{name}>{'Active' if active & bit else 'Not Active'}</clocks_event_reason_{name}>"
            for bit, name in _REASON_BITS.items()
        ),
        "</clocks_event_reasons>",
    ]


def _no_nvml(reason: str) -> Missing:
    hint = "run kvdoctor on the host of the server, or add nvidia-smi output to the files you give it"
    if "Shared Library Not Found" in reason:
        reason = "no NVIDIA driver library here (libnvidia-ml.so.1)"
        hint += "; in a container, start it with the GPUs passed in (--gpus all)"
    elif "Driver Not Loaded" in reason:
        reason = "the NVIDIA driver is installed but not loaded"
        hint = "modprobe nvidia, or look at dmesg for why it does not load"
    elif "mismatch" in reason.lower():
        reason = f"driver and library are of different versions ({reason})"
        hint = "the driver was updated without a reboot: reboot, or reload its modules"
    return Missing("gpu", "NVML", reason, hint)


def _hint(refused: _Refused) -> str:
    reason = str(refused).lower()
    if "lost" in reason:
        return "the GPU fell off the bus (Xid 79): look at dmesg; it takes a reset or reboot, often a hardware check"
    if "restart" in reason or "reset" in reason:
        return "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot"
    if "permission" in reason:
        return "run kvdoctor as root or as the user of the server"
    return "see what nvidia-smi says"


def _memory_hint(refused: _Refused) -> str:
    if str(refused) == "Not Supported":
        return "a GPU that shares the host's memory, WSL or a vGPU gives no figure: host memory and the engine's own figures are used"
    return _hint(refused)
