"""nvidia-smi in every form it prints -> readings per GPU, per MIG instance and per process.

Forms: ``--query-gpu`` and ``--query-compute-apps`` csv (with or without units; a dump with a time column is several
readings), the default table (old, new, Windows, MIG), ``dmon``, ``gpustat``, ``-q`` text and ``-q -x`` xml. Sizes become bytes, percentages
fractions, MHz hertz. Whatever nvidia-smi does not give - ``[N/A]``, ``[Insufficient Permissions]``, ``ERR!``, a column
that was not asked for - is an :class:`~kvdoctor.parse.Unread`, never 0.

What "used" means depends on the source: from driver R510 it excludes what the driver itself reserves (0.3 to 0.9 GiB),
before that, and in NVML's first memory call, it includes it; ``GpuReading.used_includes_reserved`` says which, as far
as the text shows it. Utilisation is the share of time in which any kernel ran, not how full or busy the device is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar
from xml.parsers import expat

from kvdoctor.frozen import frozen
from kvdoctor.parse import KEPT_BAD, MAX_LINE, NOT_ASKED, SHOWN, BadLine, Unread, bad_line

_NOT_PRINTED = Unread(NOT_ASKED)
_T = TypeVar("_T")


@frozen
class GpuReading:
    """One GPU at one moment. Sizes in bytes, shares 0..1, clocks in Hz, temperature in degrees Celsius, power in W.

    ``pci`` is in nvidia-smi's spelling. ``mem_reserved`` is what the driver keeps for itself. ``throttle`` are the
    active reasons by NVML's names (``sw_power_cap``, ``hw_thermal_slowdown``, ``gpu_idle`` ...); an empty set means
    that none is active. ``driver_model`` is ``WDDM`` or ``TCC`` on Windows. ``mig`` is True when MIG mode is on: then
    the memory here covers all instances. ``time`` is the printed wall clock read as if it were UTC, in epoch seconds
    (nvidia-smi prints no zone). ``line`` counts from 1.
    """

    line: int
    index: int | Unread = _NOT_PRINTED
    uuid: str | Unread = _NOT_PRINTED
    name: str | Unread = _NOT_PRINTED
    pci: str | Unread = _NOT_PRINTED
    mem_total: int | Unread = _NOT_PRINTED
    mem_used: int | Unread = _NOT_PRINTED
    mem_free: int | Unread = _NOT_PRINTED
    mem_reserved: int | Unread = _NOT_PRINTED
    used_includes_reserved: bool | None = None
    util_gpu: float | Unread = _NOT_PRINTED
    util_mem: float | Unread = _NOT_PRINTED
    sm_clock_hz: float | Unread = _NOT_PRINTED
    sm_clock_max_hz: float | Unread = _NOT_PRINTED
    temperature_c: float | Unread = _NOT_PRINTED
    power_w: float | Unread = _NOT_PRINTED
    power_limit_w: float | Unread = _NOT_PRINTED
    throttle: frozenset[str] | Unread = _NOT_PRINTED
    driver_model: str | Unread = _NOT_PRINTED
    mig: bool | Unread = _NOT_PRINTED
    time: float | None = None


@frozen
class MigReading:
    """One MIG compute instance. Two compute instances of one GPU instance (``gi``) repeat the same memory: never add
    them up over ``ci``."""

    line: int
    gpu_index: int | Unread
    gpu_pci: str | Unread
    gi: int | Unread
    ci: int | Unread
    mem_total: int | Unread
    mem_used: int | Unread
    mem_free: int | Unread = _NOT_PRINTED


@frozen
class GpuProcess:
    """One process on a GPU; ``used`` in bytes. ``pid`` is the host's pid, also when the list was made in a container.

    ``kind`` is C (compute), G (graphics) or C+G. The sum over processes is less than the device's used memory: context
    and driver shares belong to none of them.
    """

    line: int
    pid: int | Unread
    name: str | Unread
    used: int | Unread
    gpu_index: int | Unread = _NOT_PRINTED
    gpu_uuid: str | Unread = _NOT_PRINTED
    gpu_pci: str | Unread = _NOT_PRINTED
    gi: int | Unread = _NOT_PRINTED
    ci: int | Unread = _NOT_PRINTED
    kind: str | Unread = _NOT_PRINTED
    time: float | None = None


@frozen
class GpuReport:
    """What one nvidia-smi output said.

    ``form`` is one of ``query-gpu``, ``query-compute-apps``, ``dmon``, ``gpustat``, ``table``, ``text``, ``xml``. ``processes_listed`` is True
    when the output makes a statement about processes (a list, or the words that there are none); an empty panel without
    those words, as seen inside a container, is no statement. ``driver`` is the driver's version. ``bad`` holds the
    first lines that could not be read, ``bad_count`` counts all of them.
    """

    form: str
    readings: tuple[GpuReading, ...]
    processes: tuple[GpuProcess, ...]
    processes_listed: bool
    mig: tuple[MigReading, ...]
    driver: str | Unread
    bad: tuple[BadLine, ...]
    bad_count: int
    lines: int


@frozen
class NotGpu:
    """The text is no nvidia-smi output that can be understood; ``reason`` says what is missing."""

    reason: str


LONGEST_REASON = 200
"""Characters of nvidia-smi's own words that are passed on."""


def parse(text: str) -> GpuReport | NotGpu:
    """Read one nvidia-smi output, whatever its form. Pure, never raises on any text."""
    text = text.removeprefix("\ufeff")
    lines = [line[:MAX_LINE].rstrip("\r") for line in text.split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    if "<nvidia_smi_log" in text:
        return _parse_xml(text)
    if "NVSMI LOG" in text:
        return _parse_text(lines)
    if any(_is_table_line(line) for line in lines):
        return _parse_table(lines)
    if any(_DMON.match(line) for line in lines[:_FIRST_LINES]):
        return _parse_dmon(lines)
    if any(_STAT_ROW.match(line) for line in lines[:_FIRST_LINES]):
        return _parse_gpustat(lines)
    header = next((number for number, line in enumerate(lines) if _csv_columns(line)), None)
    if header is not None:
        return _parse_csv(lines)
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("Unable to determine the device handle for"):
        return NotGpu(f"the driver cannot reach a device: {' '.join(first.split())[:LONGEST_REASON]}")
    if _HEADERLESS.search(first):
        return NotGpu(f"csv without its header line, the columns are unknown (leave out noheader): {first[:SHOWN]!r}")
    return NotGpu(f"no nvidia-smi output: {first[:SHOWN]!r}")


# ---- values -------------------------------------------------------------------------------------------------------

_MISSING = frozenset({"", "-", "N/A", "NA", "ERR!", "None", "Unknown Error", "Not Supported", "Not Active Process"})
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)[ ]{0,4}([A-Za-z%]{0,8})")
# nvidia-smi of old drivers wrote MB for 2^20
_SIZES = {"B": 1, "bytes": 1, "KiB": 2**10, "KB": 2**10, "MiB": 2**20, "MB": 2**20, "GiB": 2**30, "GB": 2**30}
_CLOCKS = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}

THROTTLE_BITS: Mapping[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of ``clocks_event_reasons.active`` (``clocks_throttle_reasons.active`` before R535), by NVML's names."""

_REASON_WORDS = {
    "idle": "gpu_idle",
    "gpu_idle": "gpu_idle",
    "display_clocks_setting": "display_clock_setting",
}


def _missing(text: str) -> Unread | None:
    """The marker nvidia-smi prints instead of a value, as an :class:`Unread` that quotes it."""
    text = text.strip()
    if text in _MISSING or (text.startswith("[") and text.endswith("]")):
        return Unread(f"nvidia-smi prints {text}" if text else "the cell is empty")
    return None


def _number(text: str, unit: str, scales: Mapping[str, float]) -> float | Unread:
    """A number with the unit of its cell, or of its header when the cell has none, times that unit's scale."""
    missing = _missing(text)
    if missing:
        return missing
    found = _QUANTITY.fullmatch(text.strip())
    if not found:
        return Unread(f"not a number: {text.strip()[:SHOWN]!r}")
    written = found.group(2) or unit
    if written not in scales:
        return Unread(f"unit {written!r} is not known" if written else "number without a unit")
    return float(found.group(1)) * scales[written]


def _size(text: str, unit: str = "") -> int | Unread:
    value = _number(text, unit, _SIZES)
    return value if isinstance(value, Unread) else round(value)


def _share(text: str, unit: str = "%") -> float | Unread:
    percent = _number(text, unit or "%", {"%": 1.0})
    return percent if isinstance(percent, Unread) else percent / 100


def _clock(text: str, unit: str = "") -> float | Unread:
    return _number(text, unit, _CLOCKS)


def _plain(text: str, unit: str = "") -> float | Unread:
    return _number(text, unit, {"": 1.0, "C": 1.0, "W": 1.0})


def _whole(text: str, unit: str = "") -> int | Unread:
    missing = _missing(text)
    if missing:
        return missing
    digits = text.strip()
    return (
        int(digits)
        if digits.isascii() and digits.isdigit() and len(digits) < 19
        else Unread(f"not a number: {digits[:SHOWN]!r}")
    )


def _word(text: str, unit: str = "") -> str | Unread:
    return _missing(text) or text.strip()


def _switch(text: str, unit: str = "") -> bool | Unread:
    missing = _missing(text)
    if missing:
        return missing
    known = {"Enabled": True, "Disabled": False}.get(text.strip())
    return Unread(f"neither Enabled nor Disabled: {text.strip()[:SHOWN]!r}") if known is None else known


def throttle_names(mask: int) -> frozenset[str]:
    """Names of the set bits of NVML's reason mask; a bit without a name appears as ``bit_0x...``."""
    return frozenset(THROTTLE_BITS.get(1 << n, f"bit_{1 << n:#x}") for n in range(mask.bit_length()) if mask & (1 << n))


def _mask(text: str, unit: str = "") -> frozenset[str] | Unread:
    missing = _missing(text)
    if missing:
        return missing
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text.strip()):
        return Unread(f"not a bit mask: {text.strip()[:SHOWN]!r}")
    return throttle_names(int(text, 16))


def _reason_name(label: str) -> str:
    """``HW Thermal Slowdown`` or ``clocks_event_reason_hw_thermal_slowdown`` -> ``hw_thermal_slowdown``."""
    name = re.sub(r"[ ]{1,4}", "_", label.strip().lower())
    for prefix in (
        "clocks_event_reasons.",
        "clocks_throttle_reasons.",
        "clocks_event_reason_",
        "clocks_throttle_reason_",
    ):
        name = name.removeprefix(prefix)
    return _REASON_WORDS.get(name, name)


def _reasons(states: Mapping[str, str]) -> frozenset[str] | Unread:
    """Active reasons from label -> ``Active`` / ``Not Active``; Unread when no label carries either word."""
    said = {label: state.strip() for label, state in states.items() if state.strip() in ("Active", "Not Active")}
    if not said:
        return next((m for m in map(_missing, states.values()) if m), _NOT_PRINTED)
    return frozenset(_reason_name(label) for label, state in said.items() if state == "Active")


_WALL_CLOCKS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S", "%a %b %d %H:%M:%S %Y")


def _wall_clock(text: str) -> float | None:
    text = " ".join(text.split())
    for form in _WALL_CLOCKS:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


def _includes_reserved(
    driver: str | Unread, reserved: object, used: object, free: object, total: object
) -> bool | None:
    """Whether "used" contains the driver's reservation, from the driver version or from the sums."""
    if isinstance(reserved, int):
        return False
    if isinstance(driver, str):
        major = driver.split(".")[0]
        if major.isascii() and major.isdigit():
            return int(major) < 510
    if isinstance(used, int) and isinstance(free, int) and isinstance(total, int) and total - used - free > 2 * 2**20:
        return False
    return None


# ---- csv ----------------------------------------------------------------------------------------------------------

_Reader = Callable[[str, str], object]
_COLUMNS: Mapping[str, tuple[str, _Reader]] = {
    "index": ("index", _whole),
    "gpu_uuid": ("uuid", _word),
    "uuid": ("uuid", _word),
    "name": ("name", _word),
    "gpu_name": ("name", _word),
    "pci.bus_id": ("pci", _word),
    "gpu_bus_id": ("pci", _word),
    "memory.total": ("mem_total", _size),
    "memory.used": ("mem_used", _size),
    "memory.free": ("mem_free", _size),
    "memory.reserved": ("mem_reserved", _size),
    "utilization.gpu": ("util_gpu", _share),
    "utilization.memory": ("util_mem", _share),
    "clocks.sm": ("sm_clock_hz", _clock),
    "clocks.current.sm": ("sm_clock_hz", _clock),
    "clocks.max.sm": ("sm_clock_max_hz", _clock),
    "temperature.gpu": ("temperature_c", _plain),
    "power.draw": ("power_w", _plain),
    "power.draw.instant": ("power_w", _plain),
    "power.draw.average": ("power_w", _plain),
    "power.limit": ("power_limit_w", _plain),
    "enforced.power.limit": ("power_limit_w", _plain),
    "clocks_event_reasons.active": ("throttle", _mask),
    "clocks_throttle_reasons.active": ("throttle", _mask),
    "driver_model.current": ("driver_model", _word),
    "mig.mode.current": ("mig", _switch),
}
_APP_COLUMNS: Mapping[str, tuple[str, _Reader]] = {
    "gpu_index": ("gpu_index", _whole),
    "gpu_instance_id": ("gi", _whole),
    "compute_instance_id": ("ci", _whole),
    "gpu_uuid": ("gpu_uuid", _word),
    "gpu_bus_id": ("gpu_pci", _word),
    "pid": ("pid", _whole),
    "process_name": ("name", _word),
    "name": ("name", _word),
    "used_gpu_memory": ("used", _size),
    "used_memory": ("used", _size),
}
# nvidia-smi lists instances in its table and in -q only; these columns, and the places of a process, are a capture's
_INSTANCE_COLUMNS: Mapping[str, tuple[str, _Reader]] = {
    "gpu_index": ("gpu_index", _whole),
    "gpu_bus_id": ("gpu_pci", _word),
    "gpu_instance_id": ("gi", _whole),
    "compute_instance_id": ("ci", _whole),
    "memory.total": ("mem_total", _size),
    "memory.used": ("mem_used", _size),
    "memory.free": ("mem_free", _size),
}
_OTHER_COLUMNS = frozenset({"timestamp", "driver_version", "count", "pstate", "gpu_name", "fan.speed", "compute_cap"})
_COLUMN = re.compile(r"([a-z_][a-z0-9_.]{0,60})(?: \[([A-Za-z%]{1,8})\])?")
_HEADERLESS = re.compile(r"(?:^|, ?)(?:[0-9]{1,9} (?:MiB|%|MHz)|GPU-[0-9a-f]{8}|NVIDIA [A-Z]|\[N/A\])")


def _csv_columns(line: str) -> list[tuple[str, str]] | None:
    """Column names and units when the line is a header of one of the two queries, else None."""
    if len(line) > 8192:
        return None
    columns = []
    for cell in line.split(","):
        found = _COLUMN.fullmatch(cell.strip())
        if not found:
            return None
        columns.append((found.group(1), found.group(2) or ""))
    known = sum(
        name in _COLUMNS or name in _APP_COLUMNS or name in _OTHER_COLUMNS or "_reasons." in name for name, _ in columns
    )
    # one bare word such as "name" heads many files that are not from nvidia-smi; a dot or a unit makes it one
    typical = any("." in name or unit or name in ("gpu_uuid", "used_gpu_memory") for name, unit in columns)
    return columns if typical and known * 2 >= len(columns) else None


def _parse_csv(lines: Sequence[str]) -> GpuReport:
    columns: list[tuple[str, str]] = []
    apps = instances = False
    readings: list[GpuReading] = []
    processes: list[GpuProcess] = []
    mig: list[MigReading] = []
    driver: str | Unread = _NOT_PRINTED
    refused = _Refusals()
    listed = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        header = _csv_columns(line)
        if header:
            # a file may hold several queries, or the same one started again
            columns = header
            names = {name for name, _ in columns}
            apps = "pid" in names
            instances = "gpu_instance_id" in names and not apps
            listed = listed or apps
            continue
        cells = [cell.strip() for cell in line.split(",")]
        surplus = len(cells) - len(columns)
        free_text = next((i for i, (name, _) in enumerate(columns) if name in ("process_name", "name")), None)
        if surplus > 0 and free_text is not None:
            # process and product names are not quoted and may hold commas
            cells[free_text : free_text + surplus + 1] = [", ".join(cells[free_text : free_text + surplus + 1])]
        if not columns or len(cells) != len(columns):
            refused.add(
                number, "before any header" if not columns else f"{len(cells)} cells for {len(columns)} columns", line
            )
            continue
        row = {name: (cell, unit) for (name, unit), cell in zip(columns, cells, strict=True)}
        if "driver_version" in row:
            driver = _word(row["driver_version"][0])
        if apps:
            processes.append(_app_row(row, number))
        elif instances:
            mig.append(_instance_row(row, number))
        else:
            readings.append(_gpu_row(row, number, driver))
    return GpuReport(
        form="query-compute-apps" if processes or (listed and not readings) else "query-gpu",
        readings=tuple(readings),
        processes=tuple(processes),
        processes_listed=listed,
        mig=tuple(mig),
        driver=driver,
        bad=tuple(refused.kept),
        bad_count=refused.count,
        lines=len(lines),
    )


def _gpu_row(row: Mapping[str, tuple[str, str]], number: int, driver: str | Unread) -> GpuReading:
    values: dict[str, object] = {}
    for name, (cell, unit) in row.items():
        if name in _COLUMNS:
            key, read = _COLUMNS[name]
            value = read(cell, unit)
            # two columns may give one quantity (instant and average power): the one that could be read wins
            if isinstance(values.get(key, _NOT_PRINTED), Unread):
                values[key] = value
    if "throttle" not in values:
        states = {
            n: cell
            for n, (cell, _) in row.items()
            if n.startswith(("clocks_event_reasons.", "clocks_throttle_reasons."))
        }
        if states:
            values["throttle"] = _reasons(states)
    values["used_includes_reserved"] = _includes_reserved(
        driver, values.get("mem_reserved"), values.get("mem_used"), values.get("mem_free"), values.get("mem_total")
    )
    values["time"] = _wall_clock(row["timestamp"][0]) if "timestamp" in row else None
    return GpuReading(line=number, **values)  # type: ignore[arg-type]


def _app_row(row: Mapping[str, tuple[str, str]], number: int) -> GpuProcess:
    values: dict[str, object] = {"pid": _NOT_PRINTED, "name": _NOT_PRINTED, "used": _NOT_PRINTED}
    for name, (cell, unit) in row.items():
        if name in _APP_COLUMNS:
            key, read = _APP_COLUMNS[name]
            values[key] = read(cell, unit)
    values["time"] = _wall_clock(row["timestamp"][0]) if "timestamp" in row else None
    return GpuProcess(line=number, **values)  # type: ignore[arg-type]


def _instance_row(row: Mapping[str, tuple[str, str]], number: int) -> MigReading:
    values: dict[str, object] = {field: _NOT_PRINTED for field, _ in _INSTANCE_COLUMNS.values()}
    for name, (cell, unit) in row.items():
        if name in _INSTANCE_COLUMNS:
            key, read = _INSTANCE_COLUMNS[name]
            values[key] = read(cell, unit)
    return MigReading(line=number, **values)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Refusals:
    """Refused lines: all counted, the first ones kept."""

    kept: list[BadLine] = field(default_factory=list)
    count: int = 0

    def add(self, number: int, why: str, line: str) -> None:
        self.count += 1
        if len(self.kept) < KEPT_BAD:
            self.kept.append(bad_line(number, why, line))


# ---- dmon: one line per device and second, under a header of names and one of units ------------------------------------

_FIRST_LINES = 10
_DMON = re.compile(r"#[ ]{0,4}(?:Date,?[ ]{1,8})?(?:Time,?[ ]{1,8})?gpu(?:,?[ ]{1,8}[a-z0-9]{1,12}){1,40}[ ]{0,8}$")
_DMON_COLUMNS: Mapping[str, tuple[str, _Reader, str]] = {
    "gpu": ("index", _whole, ""),
    "pwr": ("power_w", _plain, "W"),
    "gtemp": ("temperature_c", _plain, "C"),
    "sm": ("util_gpu", _share, "%"),
    "mem": ("util_mem", _share, "%"),
    "pclk": ("sm_clock_hz", _clock, "MHz"),
    "fb": ("mem_used", _size, "MB"),
}


def _parse_dmon(lines: Sequence[str]) -> GpuReport:
    columns: list[str] = []
    readings: list[GpuReading] = []
    refused = _Refusals()
    for number, line in enumerate(lines, 1):
        cells = line.replace(",", " ").lstrip("# ").split()
        if _DMON.match(line):
            columns = cells
        elif cells and not line.startswith("#"):
            if len(cells) != len(columns):
                refused.add(number, f"{len(cells)} cells for {len(columns)} columns", line)
                continue
            row = dict(zip(columns, cells, strict=True))
            values: dict[str, object] = {
                name: read(row[column], unit) for column, (name, read, unit) in _DMON_COLUMNS.items() if column in row
            }
            if "Date" in row and "Time" in row:
                values["time"] = _wall_clock(f"{row['Date'][:4]}/{row['Date'][4:6]}/{row['Date'][6:]} {row['Time']}")
            readings.append(GpuReading(line=number, **values))  # type: ignore[arg-type]
    return GpuReport(
        form="dmon",
        readings=tuple(readings),
        processes=(),
        processes_listed=False,
        mig=(),
        driver=_NOT_PRINTED,
        bad=tuple(refused.kept),
        bad_count=refused.count,
        lines=len(lines),
    )


# ---- gpustat: one line per device, its processes at the end of it --------------------------------------------------------

_STAT_ROW = re.compile(
    r"\[([0-9]{1,4})\] (\S.{0,80}?)[ ]{0,40}\|[ ]{0,8}([0-9?]{1,4})['\u00b0]C,[^|]{0,30}?([0-9?]{1,4}) %"
    r"(?:,[ ]{0,8}([0-9?]{1,6}) / [ ]{0,8}([0-9?]{1,6}) W)?[ ]{0,4}\|[ ]{0,8}([0-9?]{1,9}) / [ ]{0,8}([0-9?]{1,9}) MB(?:[ ]{0,4}\|(.{0,4000}))?"
)
# user:command/pid(size): each part but the user and the size is asked for by an option
_STAT_PROCESS = re.compile(r"[^\s:/(]{1,64}(?::([^\s/(]{1,200}))?(?:/([0-9]{1,10}))?\(([0-9?]{1,9})M\)")
_STAT_HEAD = re.compile(r"\S{1,80}[ ]{1,60}(\w{3} \w{3} [ 0-9][0-9] [0-9:]{8} [0-9]{4})[ ]{1,8}([0-9][0-9.]{1,15})")


def _parse_gpustat(lines: Sequence[str]) -> GpuReport:
    readings: list[GpuReading] = []
    processes: list[GpuProcess] = []
    driver: str | Unread = _NOT_PRINTED
    time: float | None = None
    refused = _Refusals()
    for number, line in enumerate(lines, 1):
        head, row = _STAT_HEAD.match(line), _STAT_ROW.match(line)
        if head:
            time, driver = _wall_clock(head.group(1)), head.group(2)
        elif row:
            index, name, heat, util, power, limit, used, total, listed = row.groups()
            reading = GpuReading(
                line=number,
                index=int(index),
                name=name,
                temperature_c=_plain(heat),
                util_gpu=_share(util),
                power_w=_plain(power) if power else _NOT_PRINTED,
                power_limit_w=_plain(limit) if limit else _NOT_PRINTED,
                mem_used=_size(used, "MB"),
                mem_total=_size(total, "MB"),
                used_includes_reserved=_includes_reserved(driver, None, None, None, None),
                time=time,
            )
            readings.append(reading)
            processes += [
                GpuProcess(
                    line=number,
                    pid=_whole(pid) if pid else _NOT_PRINTED,
                    name=command or _NOT_PRINTED,
                    used=_size(size, "MB"),
                    gpu_index=reading.index,
                    time=time,
                )
                for command, pid, size in _STAT_PROCESS.findall(listed or "")
            ]
        elif line.strip():
            refused.add(number, "not a row of gpustat", line)
    return GpuReport(
        form="gpustat",
        readings=tuple(readings),
        processes=tuple(processes),
        # without processes it prints nothing, as when it was told not to list them
        processes_listed=bool(processes),
        mig=(),
        driver=driver,
        bad=tuple(refused.kept),
        bad_count=refused.count,
        lines=len(lines),
    )


# ---- default table ------------------------------------------------------------------------------------------------

_BANNER = re.compile(r"NVIDIA-SMI[ ]+([0-9][0-9.]{0,15})[ ]+Driver Version:[ ]*([0-9][0-9.]{0,15})")
_GPU_HEAD = re.compile(
    r"\|[ ]{1,8}([0-9]{1,4})[ ]{1,4}(\S[^|]{0,80}?)[ ]{1,40}(On|Off|N/A|WDDM|TCC|MCDM)[ ]{0,8}\|"
    r"[ ]{0,8}([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])"
)
_MEMORY_CELL = re.compile(
    r"([0-9]{1,9}MiB|N/A|ERR!|Not Supported|\[[^\]|]{1,40}\])[ ]{0,8}(?:/[ ]{0,8}([0-9]{1,9}MiB|N/A|ERR!))?"
)
_POWER_CELL = re.compile(
    r"([0-9]{1,5}C|N/A|ERR!)[ ]{1,8}(P[0-9]{1,2}|N/A|ERR!|\?\?)[ ]{1,20}([0-9.]{1,8}W|N/A|ERR!)[ ]{0,4}/[ ]{0,4}([0-9.]{1,8}W|N/A|ERR!)"
)
_UTIL_CELL = re.compile(r"([0-9]{1,3}%|N/A|ERR!)")
_MIG_MODE_ROW = re.compile(r"\|[ ]{1,80}\|[ ]{1,80}\|[ ]{1,40}(Enabled|Disabled|N/A|\[N/A\])\*?[ ]{1,4}\|")
_MIG_ROW = re.compile(
    r"\|[ ]{1,8}([0-9]{1,4})[ ]{1,8}([0-9]{1,4})[ ]{1,8}([0-9]{1,4})[ ]{1,8}([0-9]{1,4})[ ]{0,8}\|([^|]{1,80})\|"
)
# the pid stands right-aligned in a column whose width grew from driver to driver
_PROCESS_ROW = re.compile(
    r"\|[ ]{1,8}([0-9]{1,4})[ ]{1,20}(?:([0-9]{1,4}|N/A)[ ]{1,8}([0-9]{1,4}|N/A)[ ]{1,20})?([0-9]{1,10})[ ]{1,10}"
    r"(C\+G|M\+C|C|G)[ ]{1,8}(\S.{0,200}?)[ ]{1,60}([0-9]{1,9}MiB|N/A|ERR!)[ ]{0,8}\|"
)


def _is_table_line(line: str) -> bool:
    return bool(_BANNER.search(line) or _GPU_HEAD.search(line))


def _parse_table(lines: Sequence[str]) -> GpuReport:
    readings: list[GpuReading] = []
    processes: list[GpuProcess] = []
    mig: list[MigReading] = []
    driver: str | Unread = _NOT_PRINTED
    time: float | None = None
    refused = _Refusals()
    listed = False
    section = "gpus"
    head: dict[str, object] | None = None
    for number, line in enumerate(lines, 1):
        banner = _BANNER.search(line)
        if banner:
            driver, section, head = banner.group(2), "gpus", None
        elif line.startswith("| MIG devices"):
            section = "mig"
        elif line.startswith("| Processes:"):
            section = "processes"
        elif "No running processes found" in line:
            listed = True
        elif section == "processes":
            row = _PROCESS_ROW.match(line)
            if row:
                listed = True
                index, gi, ci, pid, kind, name, used = row.groups()
                processes.append(
                    GpuProcess(
                        line=number,
                        pid=_whole(pid),
                        name=_word(name),
                        used=_size(used),
                        gpu_index=int(index),
                        gi=_whole(gi) if gi else _NOT_PRINTED,
                        ci=_whole(ci) if ci else _NOT_PRINTED,
                        kind=kind,
                        time=time,
                    )
                )
            elif line[:1] == "|" and re.match(r"\|[ ]{1,8}[0-9]", line):
                refused.add(number, "not a process row", line)
        elif section == "mig":
            instance = _MIG_ROW.match(line)
            if instance:
                cell = _MEMORY_CELL.search(instance.group(5))
                mig.append(
                    MigReading(
                        line=number,
                        gpu_index=int(instance.group(1)),
                        gpu_pci=_NOT_PRINTED,
                        gi=int(instance.group(2)),
                        ci=int(instance.group(3)),
                        mem_total=_size(cell.group(2)) if cell and cell.group(2) else _NOT_PRINTED,
                        mem_used=_size(cell.group(1)) if cell else _NOT_PRINTED,
                    )
                )
        elif _GPU_HEAD.match(line):
            if head is not None:
                refused.add(number, "the previous GPU has no memory row", line)
            head = _table_head(line, number)
        elif head is not None and line[:1] == "|":
            cells = line.split("|")
            if len(cells) < 4:
                refused.add(number, "not the second row of a GPU", line)
            else:
                readings.append(_table_reading(head, cells, driver, time))
            head = None
        elif readings and (mode := _MIG_MODE_ROW.match(line)):
            readings[-1] = replace(readings[-1], mig=_switch(mode.group(1)))
        elif time is None:
            time = _wall_clock(line)
    return GpuReport(
        form="table",
        readings=tuple(readings),
        processes=tuple(processes),
        processes_listed=listed,
        mig=tuple(mig),
        driver=driver,
        bad=tuple(refused.kept),
        bad_count=refused.count,
        lines=len(lines),
    )


def _table_head(line: str, number: int) -> dict[str, object]:
    found = _GPU_HEAD.match(line)
    if not found:
        return {}
    index, name, mode, pci = found.groups()
    head: dict[str, object] = {"line": number, "index": int(index), "name": name.strip(), "pci": pci}
    if mode in ("WDDM", "TCC", "MCDM"):
        head["driver_model"] = mode
    return head


def _table_reading(
    head: Mapping[str, object], cells: Sequence[str], driver: str | Unread, time: float | None
) -> GpuReading:
    values: dict[str, object] = dict(head)
    power = _POWER_CELL.search(cells[1])
    if power:
        values["temperature_c"] = _plain(power.group(1))
        values["power_w"], values["power_limit_w"] = _plain(power.group(3)), _plain(power.group(4))
    memory = _MEMORY_CELL.search(cells[2])
    if memory:
        values["mem_used"] = used = _size(memory.group(1))
        if memory.group(2):
            values["mem_total"] = _size(memory.group(2))
        elif isinstance(used, Unread):
            # one marker for the whole cell
            values["mem_total"] = used
    util = _UTIL_CELL.search(cells[3])
    if util:
        values["util_gpu"] = _share(util.group(1))
    values["used_includes_reserved"] = _includes_reserved(driver, None, None, None, None)
    values["time"] = time
    return GpuReading(**values)  # type: ignore[arg-type]


# ---- -q text and -q -x xml: both become one tree --------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """One element: its label in lower case with underscores, its text, its line."""

    label: str
    text: str
    line: int
    children: list[_Node] = field(default_factory=list)

    def child(self, *labels: str) -> _Node | None:
        for label in labels:
            for node in self.children:
                if node.label == label:
                    return node
        return None

    def value(self, *path: str | tuple[str, ...]) -> str | None:
        """Text at the end of the path; a tuple stands for spellings of one step, tried in turn."""
        node: _Node | None = self
        for step in path:
            if node is None:
                return None
            node = node.child(*((step,) if isinstance(step, str) else step))
        return None if node is None else node.text

    def walk(self) -> Iterator[_Node]:
        """This node and everything below it, in the order of the document."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


_MAX_DEPTH = 40
_MAX_NODES = 200_000
_TEXT_LINE = re.compile(r"([ ]{0,60})(\S[^:]{0,80}?)[ ]{0,60}:(?: (.*)|$)")
_GPU_LINE = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")


def _label(text: str) -> str:
    return re.sub(r"[ .\-/]{1,8}", "_", text.strip().lower())


def _parse_text(lines: Sequence[str]) -> GpuReport:
    root = _Node("log", "", 1)
    stack: list[tuple[int, _Node]] = [(-1, root)]
    refused = _Refusals()
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if not bare or bare.startswith("====="):
            continue
        indent = len(line) - len(line.lstrip(" "))
        gpu = _GPU_LINE.match(bare)
        found = _TEXT_LINE.fullmatch(line.rstrip())
        if gpu:
            indent, node = 0, _Node("gpu", gpu.group(1), number)
        elif found:
            node = _Node(_label(found.group(2)), (found.group(3) or "").strip(), number)
        else:
            node = _Node(_label(bare), "", number)
        while stack[-1][0] >= indent:
            stack.pop()
        if len(stack) > _MAX_DEPTH:
            refused.add(number, "nested too deeply", line)
            continue
        stack[-1][1].children.append(node)
        stack.append((indent, node))
    return _from_tree(root, "text", refused, len(lines))


class _TooBig(Exception):
    """The document declares entities, nests too deeply or holds too many elements; the text says which."""


def _parse_xml(text: str) -> GpuReport | NotGpu:
    """Read ``-q -x``. A document type line is usual; entity declarations never are and are refused unread."""
    root = _Node("document", "", 1)
    stack = [root]
    count = 0
    refused = _Refusals()
    # the declared encoding is that of the file before it was decoded
    parser = expat.ParserCreate("utf-8")
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(stack) > _MAX_DEPTH or count > _MAX_NODES:
            raise _TooBig("nested too deeply" if len(stack) > _MAX_DEPTH else "too many elements")
        node = _Node(tag, attributes.get("id", ""), parser.CurrentLineNumber)
        stack[-1].children.append(node)
        stack.append(node)

    def end(tag: str) -> None:
        stack.pop()

    def characters(data: str) -> None:
        node = stack[-1]
        if len(node.text) < MAX_LINE:
            node.text = (node.text + data).strip() if data.strip() else node.text

    def entity(*_: object) -> None:
        raise _TooBig("it declares entities")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.EntityDeclHandler = entity
    parser.buffer_text = True
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except _TooBig as problem:
        return NotGpu(f"xml refused: {problem}")
    except expat.ExpatError as problem:
        refused.add(problem.lineno, f"xml ends here: {expat.ErrorString(problem.code)}", "")
    return _from_tree(root, "xml", refused, text.count("\n") + (not text.endswith("\n")))


def _from_tree(root: _Node, form: str, refused: _Refusals, lines: int) -> GpuReport:
    log = root.child("nvidia_smi_log") or root
    driver = _read(log.value("driver_version"), _word)
    time = _wall_clock(log.value("timestamp") or "")
    gpus = [node for node in log.children if node.label == "gpu"]
    attached = log.value("attached_gpus")
    # -q prints no index; counting is only right when no GPU was left out by -i
    complete = attached is not None and attached.strip() == str(len(gpus))
    readings: list[GpuReading] = []
    processes: list[GpuProcess] = []
    mig: list[MigReading] = []
    listed = False
    for position, gpu in enumerate(gpus):
        index: int | Unread = position if complete else Unread("-q prints no index and not every GPU is in the output")
        readings.append(_tree_reading(gpu, index, driver, time))
        mig += [_tree_instance(node, index, gpu.text) for node in gpu.walk() if node.label == "mig_device"]
        panel = gpu.child("processes")
        if panel is not None:
            found = list(_tree_processes(panel, index, gpu.text, time))
            processes += found
            listed = listed or bool(found) or panel.text == "None"
    return GpuReport(
        form=form,
        readings=tuple(readings),
        processes=tuple(processes),
        processes_listed=listed,
        mig=tuple(mig),
        driver=driver,
        bad=tuple(refused.kept),
        bad_count=refused.count,
        lines=lines,
    )


def _read(text: str | None, reader: Callable[[str], _T | Unread]) -> _T | Unread:
    return _NOT_PRINTED if text is None else reader(text)


_POWER = ("gpu_power_readings", "power_readings")
_DRAW = ("power_draw", "instant_power_draw", "instantaneous_power_draw", "average_power_draw")
_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")


def _tree_reading(gpu: _Node, index: int | Unread, driver: str | Unread, time: float | None) -> GpuReading:
    memory = {part: _read(gpu.value("fb_memory_usage", part), _size) for part in ("total", "used", "free", "reserved")}
    reasons = gpu.child(*_REASONS)
    draws = [_read(gpu.value(_POWER, kind), _plain) for kind in _DRAW]
    return GpuReading(
        line=gpu.line,
        index=index,
        uuid=_read(gpu.value(("uuid", "gpu_uuid")), _word),
        name=_read(gpu.value("product_name"), _word),
        pci=gpu.text or _NOT_PRINTED,
        mem_total=memory["total"],
        mem_used=memory["used"],
        mem_free=memory["free"],
        mem_reserved=memory["reserved"],
        used_includes_reserved=_includes_reserved(
            driver, memory["reserved"], memory["used"], memory["free"], memory["total"]
        ),
        util_gpu=_read(gpu.value("utilization", ("gpu_util", "gpu")), _share),
        util_mem=_read(gpu.value("utilization", ("memory_util", "memory")), _share),
        sm_clock_hz=_read(gpu.value("clocks", ("sm_clock", "sm")), _clock),
        sm_clock_max_hz=_read(gpu.value("max_clocks", ("sm_clock", "sm")), _clock),
        temperature_c=_read(gpu.value("temperature", ("gpu_temp", "gpu_current_temp")), _plain),
        power_w=min(draws, key=lambda d: 2 if d is _NOT_PRINTED else isinstance(d, Unread)),
        power_limit_w=_read(gpu.value(_POWER, ("current_power_limit", "power_limit", "enforced_power_limit")), _plain),
        throttle=_NOT_PRINTED if reasons is None else _reasons({node.label: node.text for node in reasons.walk()}),
        driver_model=_read(gpu.value("driver_model", ("current_dm", "current")), _word),
        mig=_read(gpu.value("mig_mode", ("current_mig", "current")), _switch),
        time=time,
    )


def _tree_instance(node: _Node, index: int | Unread, pci: str) -> MigReading:
    return MigReading(
        line=node.line,
        gpu_index=index,
        gpu_pci=pci or _NOT_PRINTED,
        gi=_read(node.value("gpu_instance_id"), _whole),
        ci=_read(node.value("compute_instance_id"), _whole),
        mem_total=_read(node.value("fb_memory_usage", "total"), _size),
        mem_used=_read(node.value("fb_memory_usage", "used"), _size),
        mem_free=_read(node.value("fb_memory_usage", "free"), _size),
    )


def _tree_processes(panel: _Node, index: int | Unread, pci: str, time: float | None) -> Iterator[GpuProcess]:
    """xml wraps each process in an element; the text form lists the instance ids before each ``Process ID``."""
    gi: int | Unread = _NOT_PRINTED
    ci: int | Unread = _NOT_PRINTED
    for node in panel.children:
        if node.label == "gpu_instance_id":
            gi = _whole(node.text)
        elif node.label == "compute_instance_id":
            ci = _whole(node.text)
        elif node.label in ("process_info", "process_id"):
            wrapped = node.label == "process_info"
            yield GpuProcess(
                line=node.line,
                pid=_read(node.value("pid"), _whole) if wrapped else _whole(node.text),
                name=_read(node.value(("process_name", "name")), _word),
                used=_read(node.value(("used_memory", "used_gpu_memory")), _size),
                gpu_index=index,
                gpu_pci=pci or _NOT_PRINTED,
                gi=_read(node.value("gpu_instance_id"), _whole) if wrapped else gi,
                ci=_read(node.value("compute_instance_id"), _whole) if wrapped else ci,
                kind=_read(node.value("type"), _word),
                time=time,
            )
