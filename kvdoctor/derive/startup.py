"""What the start-up lines say of memory, by process or device: parts, total, and what was free before and after."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvdoctor.facts import Known, worst_how

if TYPE_CHECKING:
    from kvdoctor.derive.view import View
    from kvdoctor.parse.serverlog import LogEvent

PARTS = {
    "weights": "mem.weights",
    "kv_pool": "mem.kv_pool",
    "graphs": "mem.graphs",
    "activations": "mem.activations",
    "non_torch": "mem.non_torch",
}
"""Names of parts in log lines -> facts, in the order of a bar."""

LABELS = {
    "weights": "weights",
    "kv_pool": "KV pool",
    "graphs": "CUDA graphs",
    "activations": "activation peak",
    "non_torch": "non-torch",
}
"""How a bar names them."""

_JOINED = ("consumed", "peak_torch", "peak")
"""Two or three parts in one figure."""

_OTHERS = ("total", "budget", "fraction", "host_total", "host_free")

_HOST_DEVICE = re.compile(r"(?i)cpu(?:_\w*)?|host|\w+_host|blas|amx|accelerate")
"""Buffer types of llama.cpp and its kin that are in host memory, pinned and mapped ones included."""


HOST = "host memory"
"""Name of what is not on a device."""


@dataclass(slots=True)
class Start:
    """One process or device as its start-up lines describe it. Values are bytes, except ``fraction``.

    ``by_source`` keeps what adds up apart: one value for each pool, graph set or buffer type. ``free_before`` is what was
    free before the weights, ``free_after`` what is left after the start.
    """

    name: str
    host: bool = False
    by_source: dict[str, dict[str, Known]] = field(default_factory=dict)
    free_before: Known | None = None
    free_after: Known | None = None

    def get(self, name: str) -> Known | None:
        """The value of a part or of a plain figure, the addends summed; None when no line tells it."""
        found = self.by_source.get(name)
        if found:
            return _sum(found.values())
        if name == "non_torch":
            return self._rest("consumed", "weights")
        if name == "activations":
            return self._rest("peak_torch", "weights")
        return None

    def _rest(self, whole: str, part: str) -> Known | None:
        both, one = self.get(whole), self.get(part)
        if both is None or one is None or float(both.hi) < float(one.hi):
            return None
        value = float(both.hi) - float(one.hi)
        return Known(value, value, "estimated", "s", both.source, f"{whole.replace('_', ' ')} - {part}")

    def put(self, name: str, source: str, value: Known) -> None:
        """Keep a value; the last one of the same source counts."""
        self.by_source.setdefault(name, {})[source] = value

    def forget(self) -> None:
        """Another load begins: what a trial run or the model before it had is gone."""
        for name in PARTS:
            self.by_source.pop(name, None)
        self.free_after = None

    def parts(self) -> list[tuple[str, Known]]:
        """Label and value of every part; a figure that joins parts nobody tells apart stands for them."""
        out = [(LABELS[name], value) for name in PARTS if (value := self.get(name)) is not None]
        names = {label for label, _ in out}
        if "weights" not in names:
            joined = (("consumed", "weights and non-torch", "non-torch"), ("peak_torch", "weights and activation peak", "activation peak"), ("peak", "weights, activations and context at the peak", ""))  # fmt: skip
            for name, label, twin in joined:
                if (value := self.get(name)) is not None and twin not in names:
                    return [(label, value), *out]
        return out


def _sum(values: Iterable[Known]) -> Known:
    several = list(values)
    if len(several) == 1:
        return several[0]
    total = math.fsum(float(v.hi) for v in several)
    return Known(total, total, worst_how(several), "s", several[-1].source, f"sum of {len(several)}")


@dataclass(slots=True)
class Startup:
    """Every process or device of the start-up lines, in order of appearance. ``on_cpu`` is the line that says that the server
    computes on the CPU ('' where none does), ``on_cpu_at`` its time."""

    starts: list[Start]
    on_cpu: str
    on_cpu_at: float | None

    @property
    def devices(self) -> list[Start]:
        """Those on a device."""
        return [s for s in self.starts if not s.host]

    @property
    def host(self) -> Start | None:
        """Buffers in host memory."""
        return next((s for s in self.starts if s.host), None)


def read(view: View) -> Startup:
    """Gather the start-up lines of all logs of a target."""
    starts: dict[str, Start] = {}
    wording = on_cpu = on_device = ""
    on_cpu_at: float | None = None
    unnamed = 0
    trial = False
    for run, event in view.target.events("memory", "graphs_end", "pool", "model_load"):
        if event.event == "model_load":
            for start in starts.values():
                start.forget()
            continue
        source = run.source(event)
        device = event.text("device") or ""
        # buffers are told by device; other lines with a device name only say what kind it is
        by_device = bool(device) and any(event.number(k) is not None for k in (*PARTS, "bytes"))
        host = bool(event.fields.get("host")) or bool(_HOST_DEVICE.fullmatch(device))
        if event.event == "pool" and host:
            on_cpu, on_cpu_at = (on_cpu, on_cpu_at) if on_cpu else (source, event.time)
        elif by_device and not host:
            on_device = on_device or source
        sized = _sizes(event)
        trial = bool(event.fields.get("dry_run")) or (trial and not sized.get("weights"))
        if trial and by_device:
            # parameters are being fitted to the memory: sizes are planned, only the device's total and free are real
            sized = {k: v for k, v in sized.items() if k not in PARTS}
        key = _key(event, device if by_device else "", host or "host_total" in sized)
        if key == "" and "weights" in sized:
            # unlabelled workers print the same line one after another: number them; another wording is the same worker
            if wording == event.template:
                unnamed += 1
                key = f"worker #{unnamed}"
            wording = wording or event.template
        if not sized:
            continue
        start = starts.setdefault(key, Start(key, key == HOST))
        addend = str(event.fields.get("part") or device)
        if by_device and ("weights" in sized or "kv_pool" in sized):
            # a second pool (sliding window) or a draft model's weights lie beside the first
            addend = source
        for name, value in sized.items():
            known = Known(value, value, "measured", "s", source)
            if name == "free":
                _put_free(start, event, known)
            elif name not in PARTS or "total" not in sized or not by_device:
                start.put(name, addend, known)
            elif name not in start.by_source:
                # a closing table repeats, rounded, what the buffers said: only what they did not say is new
                start.put(name, addend, known)
    return Startup(list(starts.values()), "" if on_device else on_cpu, on_cpu_at)


def _key(event: LogEvent, device: str, host: bool) -> str:
    if host:
        return HOST
    if device:
        return device
    rank = event.rank or (f"pid{event.pid}" if event.pid is not None else "")
    return f"worker {rank}" if rank else ""


def _sizes(event: LogEvent) -> dict[str, float]:
    """The sizes a line gives; a negative one (another process freed memory meanwhile, or nothing is left) is no size."""
    if event.event == "pool":
        available = event.number("available_bytes")
        pool = available if available is not None else event.number("bytes")
        free = event.number("free")
        out = {} if pool is None or pool <= 0 or event.fields.get("dry_run") else {"kv_pool": pool}
        return out if free is None else {**out, "free": free}
    names = (*PARTS, *_JOINED, *_OTHERS, "free")
    out = {k: v for k in names if (v := event.number(k)) is not None and v >= 0}
    if out.get("kv_pool") == 0:
        del out["kv_pool"]
    return out


def _put_free(start: Start, event: LogEvent, value: Known) -> None:
    """Free memory counts as that before the weights or as that after the start; in between it says nothing lasting."""
    stage, total, kv_pool = event.text("stage"), event.number("total"), event.number("kv_pool")
    planned = event.number("fraction") is not None or (kv_pool is not None and total is None)
    if stage == "before_weights" or event.fields.get("dry_run") or (stage is None and planned):
        start.free_before = start.free_before or value
    elif stage == "after_pool" or (stage is None and (event.event != "memory" or total is not None or event.number("budget") is not None)):  # fmt: skip
        start.free_after = value
