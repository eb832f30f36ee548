"""GPU readings by the program nvidia-smi, where NVML cannot be used from here. Its output is kept as printed."""

from __future__ import annotations

import re

from kvdoctor.collect.command import run
from kvdoctor.collect.nvml import GpuTake
from kvdoctor.snapshot import Member, Missing, memory_member

CAP = 4 << 20

FIELDS = (
    "index", "uuid", "name", "pci.bus_id", "driver_version", "memory.total", "memory.reserved", "memory.used", "memory.free",
    "utilization.gpu", "utilization.memory", "clocks.current.sm", "clocks.max.sm", "temperature.gpu", "power.draw",
    "enforced.power.limit", "clocks_event_reasons.active", "mig.mode.current",
)  # fmt: skip
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_REFUSED = re.compile(r'Field "([a-z_.]{1,60})" is not a valid field')


def read(now: float, label: str, *, timeout_s: float = 10.0) -> GpuTake:
    """One reading by nvidia-smi; a field that its version does not know is left out (an older name is tried first)."""
    fields = list(FIELDS)
    while True:
        argv = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv"]
        output = run(argv, timeout_s=timeout_s, cap=CAP)
        said = output.data.decode("utf-8", "replace") + output.problem
        refused = _REFUSED.search(said)
        if not (output.problem and refused and refused.group(1) in fields and len(fields) > 2):
            break
        at = fields.index(refused.group(1))
        fields[at : at + 1] = [_OLD_NAMES[fields[at]]] if fields[at] in _OLD_NAMES else []
    if output.problem:
        first = said.strip().splitlines()[0][:200] if output.data.strip() else output.problem
        return GpuTake(
            (), (Missing("gpu", "nvidia-smi", output.problem if output.timed_out else first, _hint(said)),), works=False
        )
    members: list[Member] = [
        memory_member(
            f"gpu/nvidia-smi-{label}.csv", output.data, kind="smi-query", time=now, origin=f"nvidia-smi ({label})"
        )
    ]
    missing: list[Missing] = []
    if re.search(r",\s*Enabled\s*$", said, re.M):
        # only the xml form gives the memory of MIG instances; it holds everything else too
        whole = run(["nvidia-smi", "-q", "-x"], timeout_s=timeout_s, cap=CAP)
        if not whole.problem:
            return GpuTake(
                (memory_member(f"gpu/nvidia-smi-{label}.xml", whole.data, kind="smi-xml", time=now, origin=f"nvidia-smi -q ({label})"),),
                (),
            )  # fmt: skip
        missing.append(Missing("gpu", "nvidia-smi -q -x", whole.problem, "MIG instances were not read"))
    apps = run(
        ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory", "--format=csv"],
        timeout_s=timeout_s, cap=CAP,
    )  # fmt: skip
    pids: dict[int, str] = {}
    if apps.problem:
        missing.append(Missing("gpu processes", "nvidia-smi", apps.problem, "run kvdoctor on the host and as root"))
    else:
        members.append(
            memory_member(f"gpu/nvidia-smi-processes-{label}.csv", apps.data, kind="smi-apps", time=now,
                          origin=f"nvidia-smi processes ({label})")
        )  # fmt: skip
        for found in re.finditer(
            r"^[^,\n]{1,80}, ([0-9]{1,10}), ([^\n]{0,300}), [^,\n]{1,40}$", apps.data.decode("utf-8", "replace"), re.M
        ):
            pids[int(found.group(1))] = found.group(2)
    return GpuTake(tuple(members), tuple(missing), pids)


def _hint(said: str) -> str:
    if "not installed" in said:
        return "run kvdoctor on the host of the server, or add nvidia-smi output to the files you give it"
    if "lost" in said or "restart" in said:
        return "a GPU fell off the bus (Xid 79): look at dmesg; it takes a reset or reboot"
    if "mismatch" in said:
        return "the driver was updated without a reboot: reboot, or reload its modules"
    if "did not finish" in said:
        return "the driver hangs: look at dmesg for NVRM: Xid lines"
    return "run nvidia-smi by hand"
