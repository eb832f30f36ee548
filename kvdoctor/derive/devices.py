"""Which readings are of the same device: by index or UUID, else rows of one device over time, else rows side by side.

A device in MIG mode is several: its own reading covers all instances, and a server lives in one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvdoctor.derive.kills import names_server
from kvdoctor.frozen import frozen
from kvdoctor.parse import Unread

if TYPE_CHECKING:
    from kvdoctor.parse.gpu import GpuProcess, GpuReading, MigReading
    from kvdoctor.readings import HostReadings


def readings(host: HostReadings) -> dict[str, list[tuple[GpuReading, str]]]:
    """Readings by device, each list in time order, with ``file:line`` of each."""
    out: dict[str, list[tuple[GpuReading, str]]] = {}
    for timed in sorted(host.gpu, key=lambda t: (t.time is None, t.time or 0.0)):
        rows = timed.value.readings
        stamps = {r.time for r in rows}
        # without a name, rows with different times are one device watched; rows of one instant are devices side by side
        watched = len(rows) > 1 and len(stamps) == len(rows) and None not in stamps
        for position, reading in enumerate(rows):
            if not isinstance(reading.index, Unread):
                name = f"GPU {reading.index}"
            elif isinstance(reading.uuid, str):
                name = reading.uuid
            elif isinstance(reading.pci, str):
                name = f"GPU at {reading.pci}"
            else:
                name = "GPU" if watched or len(rows) == 1 else f"GPU #{position + 1}"
            out.setdefault(name, []).append((reading, f"{timed.origin}:{reading.line}"))
    return out


def lost(host: HostReadings) -> dict[str, str]:
    """Devices that the last listing says are lost, or leaves out although an earlier one had them beside the rest: name -> where.

    A listing is one instant of one output; outputs that show other devices (a file for each) are no later listings.
    """
    listings: dict[tuple[str, float | None], dict[str, str]] = {}
    out: dict[str, str] = {}
    for name, rows in readings(host).items():
        for reading, source in rows:
            listings.setdefault((source.rpartition(":")[0], reading.time), {})[name] = source
        memory = rows[-1][0].mem_used
        if isinstance(memory, Unread) and "lost" in memory.reason:
            out[name] = rows[-1][1]
    if listings:
        *earlier, last = listings.values()
        for one in earlier:
            if last.keys() < one.keys():
                out |= {name: next(iter(last.values())) for name in one.keys() - last.keys()}
    return out


@frozen
class Instance:
    """The server's part of a device in MIG mode; None with the reason where it cannot be told."""

    found: MigReading | None
    source: str
    why: str = ""


def instance(reading: GpuReading, host: HostReadings, pids: set[int]) -> Instance | None:
    """Where the server lives on a device; None when the device is whole.

    Told by its pids, else by the only instance with a process that names an inference server, else by there being one instance.
    """
    if reading.mig is not True:
        return None
    parts: dict[object, tuple[MigReading, str]] = {}
    processes: list[GpuProcess] = []
    for timed in host.gpu:
        for part in timed.value.mig:
            if _on(reading, part.gpu_index, part.gpu_pci):
                parts[part.gi] = part, f"{timed.origin}:{part.line}"
        if timed.value.processes:
            processes = [p for p in timed.value.processes if _on(reading, p.gpu_index, p.gpu_pci)]
    if not parts:
        return Instance(None, "", "MIG is on: the reading covers all instances, and none is listed")
    mine = _places(p for p in processes if p.pid in pids) or _places(p for p in processes if names_server(str(p.name)))
    known = (mine & parts.keys()) or set(parts)
    if len(known) == 1:
        return Instance(*parts[known.pop()])
    return Instance(None, "", f"MIG is on with {len(parts)} instances, and nothing tells which one is this server's")


def _places(processes: Iterable[GpuProcess]) -> set[object]:
    return {p.gi for p in processes if not isinstance(p.gi, Unread)}


def _on(reading: GpuReading, index: int | Unread, pci: str | Unread) -> bool:
    """Does something listed with this index or bus id belong to the device? The index decides where both have one."""
    if not isinstance(index, Unread) and not isinstance(reading.index, Unread):
        return index == reading.index
    return isinstance(pci, str) and pci == reading.pci
