"""The host beside the servers: kernel log, memory, the memory files of a server's control group. All read-only, no privileges."""

from __future__ import annotations

import os
import re

from kvdoctor.collect.command import run
from kvdoctor.collect.mask import mask_text
from kvdoctor.snapshot import Member, Missing, memory_member

KERNEL_CAP = 4 << 20
_V2 = ("memory.current", "memory.max", "memory.high", "memory.stat", "memory.events")
_V1 = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.failcnt", "memory.stat", "memory.oom_control")


def kernel_log(now: float, *, timeout_s: float = 5.0) -> Member | Missing:
    """The kernel's ring buffer by ``dmesg``, if this user may read it.

    ISO time stamps carry a zone and can be compared with a server's log; a line becomes ``TIME kernel: TEXT``, the form
    journald gives it. An old dmesg without them is read with ``-T``.
    """
    hint = "run 'sudo dmesg -T > dmesg.txt' and give that file too: Xid and out-of-memory kills stand there"
    output = run(["dmesg", "--time-format", "iso"], timeout_s=timeout_s, cap=KERNEL_CAP, keep="tail")
    iso = True
    if output.problem and re.search(r"unrecognized|unknown option|invalid option|usage", output.problem, re.I):
        output, iso = run(["dmesg", "-T"], timeout_s=timeout_s, cap=KERNEL_CAP, keep="tail"), False
    if output.problem:
        reason = output.problem
        if "not permitted" in reason or "ermission" in reason:
            reason = "the kernel shows its log to root only (kernel.dmesg_restrict)"
        return Missing("kernel log", "dmesg", reason, hint)
    text = output.data.decode("utf-8", "replace")
    if not text.strip():
        return Missing("kernel log", "dmesg", "it is empty here (in a container the host's log is not visible)", hint)
    if iso:
        text = re.sub(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]\d+[+-]\d\d:\d\d) ", r"\1 kernel: ", text, flags=re.M)
    return memory_member(
        "host/kernel.log", mask_text(text).encode(), kind="kernel", time=now, origin="dmesg", truncated=output.cut
    )


def meminfo(now: float, proc_root: str = "/proc") -> Member | Missing:
    """``/proc/meminfo`` as it is."""
    path = f"{proc_root}/meminfo"
    try:
        with open(path, "rb") as stream:
            data = stream.read(1 << 16)
    except OSError as error:
        return Missing("meminfo", path, f"cannot be read: {error.strerror}", "host memory is not judged")
    return memory_member("host/meminfo", data, kind="meminfo", time=now, origin=path)


def cgroup_memory(
    pid: int, now: float, *, proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup"
) -> Member | Missing:
    """The memory files of the control group a process runs in, each under a ``==> file <==`` heading."""
    origin = f"cgroup memory of process {pid}"
    try:
        with open(f"{proc_root}/{pid}/cgroup", encoding="utf-8", errors="replace") as stream:
            lines = stream.read(1 << 14).splitlines()
    except OSError as error:
        return Missing(
            "cgroup", origin, f"{proc_root}/{pid}/cgroup cannot be read: {error.strerror}", "has the process ended?"
        )
    places: list[tuple[str, tuple[str, ...]]] = []
    for line in lines:
        controllers, path = (line.split(":", 2) + ["", ""])[1:3]
        inside = os.path.normpath("/" + path)
        if "memory" in controllers.split(","):
            places.insert(0, (f"{cgroup_root}/memory{inside}", _V1))
        elif not controllers:
            places += [(cgroup_root + inside, _V2), (f"{cgroup_root}/unified{inside}", _V2)]
    for folder, names in places:
        parts: list[str] = []
        for name in names:
            try:
                with open(f"{folder}/{name}", encoding="ascii", errors="replace") as stream:
                    parts.append(f"==> {folder}/{name} <==\n{stream.read(1 << 14).rstrip()}\n")
            except OSError:
                continue  # the root group has no limit, and not every kernel has every file
        if parts:
            return memory_member(
                f"host/cgroup-{pid}.txt", "\n".join(parts).encode(), kind="cgroup", time=now, origin=origin
            )
    return Missing(
        "cgroup", origin, "its control group has no memory files here", "its container's limit is not judged"
    )
