"""Which readings are of the same device: by index or UUID, else rows of one device over time, else rows side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdoctor.parse import Unread

if TYPE_CHECKING:
    from kvdoctor.parse.gpu import GpuReading
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
