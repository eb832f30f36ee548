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
