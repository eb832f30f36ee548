"""Reading a torch memory snapshot of about 9 MB: CPU seconds and memory of reader and child, beside a bare
``pickle.load``.

Run: ``python -m benchmarks.torch_snapshot [MB]``. The file is made here with the layout of torch's ``_snapshot()``:
512-byte rounded blocks with call stacks of 24 frames shared between them, one private graph pool, and a history of
allocations.
"""

from __future__ import annotations

import json
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, table
from kvdoctor.parse import torch_snapshot

MIB = 1 << 20


def make(megabytes: float, seed: int = 1) -> dict[str, Any]:
    """A snapshot dictionary whose pickle has about ``megabytes`` (half state, half history)."""
    rng = random.Random(seed)
    frames = [
        {
            "filename": f"/opt/env/lib/python3.11/site-packages/vllm/m{number % 97}.py",
            "line": number,
            "name": f"f{number}",
        }
        for number in range(3000)
    ]

    def stack() -> list[dict[str, Any]]:
        start = rng.randrange(len(frames) - 24)
        return frames[start : start + 24]

    segments: list[dict[str, Any]] = []
    trace: list[dict[str, Any]] = []
    address = 0x7F0000000000
    for number in range(int(megabytes * 64)):
        size = rng.choice((2, 20, 64, 256)) * MIB
        blocks: list[dict[str, Any]] = []
        at = address
        while at < address + size:
            rest = address + size - at
            requested = min(rest, rng.randrange(1, max(2, size // 32)))
            length = min(rest, -(-requested // 512) * 512)
            used = rng.random() < 0.7
            blocks.append(
                {
                    "address": at,
                    "size": length,
                    "requested_size": requested if used else 0,
                    "state": "active_allocated" if used else "inactive",
                    "frames": stack() if used else [],
                }
            )
            if used:
                entry = {"action": "alloc", "addr": at, "size": requested, "stream": 0, "time_us": len(trace) * 10}
                trace.append({**entry, "frames": stack()})
            at += length
        segments.append(
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "allocated_size": sum(block["size"] for block in blocks if block["state"] == "active_allocated"),
                "active_size": sum(block["size"] for block in blocks if block["state"] == "active_allocated"),
                "requested_size": sum(block["requested_size"] for block in blocks),
                "stream": 0,
                "segment_type": "small" if size == 2 * MIB else "large",
                "segment_pool_id": (0, 1) if number % 50 == 0 else (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
            }
        )
        address += size
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"expandable_segments": False}}


def cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def peak_kib() -> int:
    """VmHWM of this process; ru_maxrss would carry over the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def measure(path: Path) -> None:
    """One read in this process; prints CPU seconds of both processes and the peak memory of each, as JSON."""
    before = peak_kib()
    self_cpu, child_cpu = cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    snapshot = torch_snapshot.load(path)
    if isinstance(snapshot, torch_snapshot.Refused):
        raise SystemExit(snapshot.say)
    reading = (cpu(resource.RUSAGE_SELF) - self_cpu, cpu(resource.RUSAGE_CHILDREN) - child_cpu)
    start = time.process_time()
    torch_snapshot.analyse(snapshot)
    torch_snapshot.timeline(snapshot)
    judging = time.process_time() - start
    peak = peak_kib()
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    blocks = sum(len(segment.blocks) for segment in snapshot.segments)
    entries = sum(len(item.actions) for item in snapshot.histories)
    found = {"here": reading[0], "child": reading[1], "judging": judging, "blocks": blocks, "entries": entries}
    print(json.dumps({**found, "before": before, "peak": peak, "child_peak": child}))


def rows(megabytes: float = 9.0) -> Iterator[Row]:
    """A made file read in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(pickle.dumps(make(megabytes)))
        start = time.process_time()
        with path.open("rb") as file:
            pickle.load(file)
        bare = time.process_time() - start
        # a fresh process, so that making the file does not count as memory of the reader
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.torch_snapshot", "--measure", str(path)],
            check=True,
            stdout=subprocess.PIPE,
        )
        found = json.loads(done.stdout)
        size = path.stat().st_size / 1e6
    spent = found["here"] + found["child"]
    highest = max(found["peak"], found["child_peak"]) / 1024
    yield Row(
        f"torch memory snapshot of {size:.1f} MB ({found['blocks']} blocks, {found['entries']} history entries)",
        "<= .5 s, <= 200 MB",
        f"{spent:.2f} s ({found['child']:.2f} s in the child; bare pickle.load {bare:.2f} s), {highest:.0f} MB",
        spent <= 0.5 and highest <= 200,
    )
    yield Row("its analysis and history", "", f"{found['judging']:.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        print(table(rows(*map(float, sys.argv[1:2]))))
