"""Pipeline stages on devices: does one hold more than the others, and is it the one that failed?"""

from __future__ import annotations

import math
from collections import Counter

from kvdoctor.derive.view import View
from kvdoctor.facts import Unknown, measured
from kvdoctor.parse import Unread
from kvdoctor.readings import HostReadings

FULL = 0.95
"""Of the fullest device: the ranks of one stage differ by buffers, not by layers."""


def add(view: View, host: HostReadings) -> None:
    """Set ``spread.stage_ratio`` and ``oom.on_fullest_device`` where every device shown is a rank of this one server."""
    sizes = [view.target.setting(name) or "1" for name in ("tp", "pp", "dp")]
    if not all(size.isdigit() for size in sizes) or int(sizes[1]) < 2:
        return
    used = {name: v for name, facts in view.devices.items() if (v := facts.number("mem.used")) is not None}
    processes = [p for report in host.gpu[-1:] for p in report.value.processes]
    places = [p.gpu_index if isinstance(p.gpu_index, int) else p.gpu_uuid for p in processes]
    listed = Counter(place for place in places if not isinstance(place, Unread))
    reason = ""
    if len(used) != math.prod(int(size) for size in sizes):
        reason = f"{len(used)} devices are shown, and the server has {' x '.join(sizes)} ranks"
    elif any(count > 1 for count in listed.values()):
        reason = "several processes share a device"
    elif min(used.values()) <= 0:
        reason = "a device holds nothing"
    if reason:
        view.facts.set("spread.stage_ratio", Unknown(reason, "nvidia-smi of all devices of the server, and no others"))
        return
    top = max(used, key=lambda name: used[name])
    view.facts.set("spread.stage_ratio", measured(used[top] / min(used.values()), "i", f"fullest: {top}"))
    # a worker that sees one device only calls it number 0: the list of processes knows better
    of_pid = {p.pid: p.gpu_index for p in processes if isinstance(p.gpu_index, int)}
    failed = {
        f"GPU {device:.0f}": run.source(event)
        for run, event in view.target.events("oom")
        if (device := of_pid.get(event.pid) if event.pid in of_pid else event.number("device")) is not None
    }
    if failed and failed.keys() <= used.keys():
        full = all(used[name] >= FULL * used[top] for name in failed)
        view.facts.set("oom.on_fullest_device", measured(full, "e", next(iter(failed.values()))))
