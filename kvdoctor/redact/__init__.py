"""What may be written down: a snapshot -> the same snapshot without prompts, keys, addresses, hosts, users and names.

Allow-lists only: what no engine table and no vendor manual names is hashed with a key of this capture or left out. The law:
a diagnosis of the redacted snapshot equals that of the original in verdicts, findings, states and values of facts.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import replace

from kvdoctor.engines import recognise
from kvdoctor.engines.base import Engine, engines
from kvdoctor.frozen import frozen
from kvdoctor.parse import benchcsv, exposition, gpu, iterstats, kernel, sniff, torch_snapshot
from kvdoctor.redact import documents, events, host, metrics
from kvdoctor.redact.veil import Origins, Veil
from kvdoctor.snapshot import Member, Missing, Snapshot, memory_member

TEXT_LIMIT = 64 << 20
RAW_NOTE = "raw: nothing was left out"

_SUFFIX = {"metrics": ".prom", "gpu": ".csv", "benchmark": ".csv", "log": ".json"}
_LABEL = {
    "exposition": "metrics", "log": "log", "log-events": "log", "smi-query": "gpu", "smi-apps": "gpu", "smi-table": "gpu",
    "smi-q": "gpu", "smi-xml": "gpu", "kernel": "kernel", "ps": "processes", "kubectl": "kubectl", "cgroup": "cgroup",
    "meminfo": "meminfo", "iterstats": "iterations", "slots": "slots", "props": "props", "server-info": "info",
    "router-info": "info", "model-config": "config",
    "loads": "loads", "torch-snapshot": "allocator", "probe": "probe", "bench-csv": "benchmark", "version": "version",
    "models": "models", "command": "command",
}  # fmt: skip
_REASONS = (
    ("no nvidia driver library", "no NVIDIA driver library there", "run on the GPU's host, or add nvidia-smi output"),
    ("installed but not loaded", "the NVIDIA driver was not loaded", "modprobe nvidia, or look at dmesg"),
    ("no gpu is visible", "no GPU was visible", "start the container with the GPUs passed in"),
    ("permission", "permission denied", "run as a user who may read it"),
    ("no such file", "not there", ""),
    ("not found", "not there", ""),
    ("does not exist", "not there", ""),
    ("not installed", "not installed", ""),
    ("timed out", "timed out", ""),
    ("timeout", "timed out", ""),
    ("took longer", "timed out", ""),
    ("refused", "connection refused", ""),
    ("unreachable", "not reachable", ""),
    ("resolve", "not reachable", ""),
    ("401", "not authorised", "give --header"),
    ("403", "not authorised", "give --header"),
    ("404", "the server has no such page", ""),
    ("cut", "cut off", ""),
    ("not included", "not included", ""),
    ("left out", "left out", ""),
)
_HOST_KEYS = re.compile(
    r"(?:os|kernel|python|driver|cuda|cpus|cpu_count|gpus|gpu_count|memory_bytes|container|kvdoctor|arch|platform)"
)
_HOST_VALUE = re.compile(
    r"[0-9][0-9.]{0,24}|Linux|Windows|Darwin|x86_64|aarch64|arm64|docker|kubernetes|none|true|false", re.I
)


@frozen
class _Left:
    """A member that is not written, and why."""

    kind: str
    reason: str
    hint: str = ""


def redact(snapshot: Snapshot, *, salt: bytes, include_raw_logs: bool = False, engine: str | None = None) -> Snapshot:
    """The snapshot that may be written down.

    ``salt`` keys every hash: the same salt gives the same output, another one unrelated hashes; it is in no member.
    ``include_raw_logs`` keeps logs as they are. ``engine`` overrules detection. Every member lists its redactions; what is
    not written becomes a ``missing`` entry.
    """
    forced = engines().get(engine) if engine else None
    veil = Veil(salt)
    year = recognise.year_of([m.time for m in snapshot.members], snapshot.taken)
    kinds = [_kind(m, forced is not None) for m in snapshot.members]
    origins = Origins(
        [(m.origin, _LABEL.get(kind, "file")) for m, kind in zip(snapshot.members, kinds, strict=True)]
        + [(m.origin, "source") for m in snapshot.missing]
    )
    members: list[Member] = []
    missing = [_missing(m, origins) for m in snapshot.missing]
    for number, (member, kind) in enumerate(zip(snapshot.members, kinds, strict=True), 1):
        label = _LABEL.get(kind, "file")
        made: Member | _Left
        if kind == "log" and include_raw_logs:
            made = replace(
                member, name=f"{number:04d}-log.txt", kind="log", origin=origins[member.origin], redactions=(RAW_NOTE,)
            )
        else:
            try:
                made = _member(member, kind, veil, forced, year)
            except _DAMAGED:
                made = _Left(label if label != "file" else "unknown", "not included: cut off or damaged")
        if isinstance(made, _Left):
            missing.append(Missing(made.kind, origins[member.origin], made.reason, made.hint))
        elif made.redactions == (RAW_NOTE,):
            members.append(made)
            continue
        else:
            name = f"{number:04d}-{label}{_SUFFIX.get(label, '.json' if kind in _JSON else '.txt')}"
            members.append(replace(made, name=name, origin=origins[member.origin]))
        if (
            kind == "log"
            and not isinstance(made, _Left)
            and (said := recognise.kernel_lines(_edges(member))) is not None
        ):
            data, notes = _kernel(said, veil, member.name)
            beside = _made(member, "kernel", data, notes)
            if isinstance(beside, Member):
                members.append(replace(beside, name=f"{number:04d}-kernel.txt", origin=origins[member.origin]))
    left = len(snapshot.warnings)
    return Snapshot(
        tuple(members),
        tuple(missing),
        {k: v for k, v in snapshot.host.items() if _HOST_KEYS.fullmatch(k) and _HOST_VALUE.fullmatch(v)},
        snapshot.taken,
        "",
        (f"{left} remarks on the reading were left out: they may name files",) if left else (),
        snapshot.live,
    )


def _missing(entry: Missing, origins: Origins) -> Missing:
    said = f"{entry.reason} {entry.hint}".lower()
    found = next(((reason, hint) for mark, reason, hint in _REASONS if mark in said), ("could not be read", ""))
    kind = entry.kind if re.fullmatch(r"[a-z][a-z -]{0,30}", entry.kind) and entry.kind in _MISSING_KINDS else "source"
    return Missing(kind, origins[entry.origin], *found)


_MISSING_KINDS = frozenset({
    "file", "folder", "log", "metrics", "gpu", "kernel", "processes", "server", "container", "unit", "journal", "kubectl",
    "http", "prometheus", "exposition", "host", "model", "empty", "binary", "html", "unknown", *_LABEL, *_LABEL.values(),
})  # fmt: skip
_JSON = frozenset(
    {
        "slots",
        "props",
        "server-info",
        "router-info",
        "model-config",
        "loads",
        "torch-snapshot",
        "probe",
        "version",
        "models",
    }
)


_DAMAGED = (OSError, EOFError, zlib.error)
"""What reading a packed file that was cut or changed raises."""


def _kind(member: Member, forced: bool) -> str:
    try:
        return recognise.kind_of(member.head(sniff.HEAD), member.kind, forced=forced, name=member.name)
    except _DAMAGED:
        return member.kind if member.kind in recognise.KINDS else "unknown"


def _member(member: Member, kind: str, veil: Veil, forced: Engine | None, year: int | None) -> Member | _Left:
    """The member's reduced form, or why it is left out."""
    if kind == "log":
        return _made(member, "log-events", events.redacted(member, veil, forced, year), events.NOTES)
    if kind == "torch-snapshot":
        snapshot = torch_snapshot.load(member.read())
        if isinstance(snapshot, torch_snapshot.Refused):
            return _Left("allocator", "an allocator snapshot that could not be read")
        return _made(member, kind, documents.torch(snapshot), documents.TORCH_NOTES)
    if kind not in _LABEL:
        why = "empty" if kind == "empty" else "content not understood"
        return _Left(kind if kind in ("empty", "binary", "html") else "unknown", f"not included: {why}")
    text = recognise.text_of(member.read(TEXT_LIMIT))
    if kind == "exposition":
        return _page(member, text, veil, forced)
    if kind == "log-events":
        return _made(member, kind, events.again(text, veil), events.NOTES)
    read = _READERS.get(kind, _smi)
    data, notes = read(text, veil, member.name)
    return _made(member, "smi-query" if kind.startswith("smi-") else kind, data, notes)


def _edges(member: Member) -> list[bytes]:
    first = member.head(recognise.EDGE)
    return [first] if member.size <= recognise.EDGE else [first, member.tail(recognise.EDGE)]


def _made(member: Member, kind: str, data: bytes | None, notes: tuple[str, ...]) -> Member | _Left:
    if data is None:
        return _Left(_LABEL.get(kind, "unknown"), "not included: content could not be read")
    return memory_member(member.name, data, kind=kind, time=member.time, truncated=member.truncated, redactions=notes)


def _page(member: Member, text: str, veil: Veil, forced: Engine | None) -> Member | _Left:
    page = exposition.parse(text, origin=member.origin)
    if isinstance(page, exposition.NotExposition):
        return _Left("metrics", "not included: not a metrics page")
    data = metrics.redacted(page, veil, forced)
    if data is None:
        return _Left("metrics", "not included: metrics of no known engine")
    return memory_member(
        member.name, data, kind="exposition", time=recognise.page_time(page, member.time),
        truncated=member.truncated or page.truncated, redactions=metrics.NOTES,
    )  # fmt: skip


_Reduced = tuple[bytes | None, tuple[str, ...]]


def _smi(text: str, veil: Veil, name: str) -> _Reduced:
    report = gpu.parse(text)
    return (None if isinstance(report, gpu.NotGpu) else host.gpu(report, veil)), host.GPU_NOTES


def _kernel(text: str, veil: Veil, name: str) -> _Reduced:
    log = kernel.kernel_log(text)
    return (None if isinstance(log, kernel.NotThis) else host.kernel(log, veil)), host.KERNEL_NOTES


def _ps(text: str, veil: Veil, name: str) -> _Reduced:
    table = kernel.ps(text)
    return (None if isinstance(table, kernel.NotThis) else host.ps(table, veil)), host.PS_NOTES


def _kubectl(text: str, veil: Veil, name: str) -> _Reduced:
    found = kernel.kubectl(text)
    return (None if isinstance(found, kernel.NotThis) else host.kube(found, veil)), host.KUBE_NOTES


def _cgroup(text: str, veil: Veil, name: str) -> _Reduced:
    group = kernel.cgroup(text, name=name)
    return (None if isinstance(group, kernel.NotThis) else host.cgroup(group)), host.CGROUP_NOTES


def _meminfo(text: str, veil: Veil, name: str) -> _Reduced:
    info = kernel.meminfo(text)
    return (None if isinstance(info, kernel.NotThis) else host.meminfo(info)), host.CGROUP_NOTES


def _iterations(text: str, veil: Veil, name: str) -> _Reduced:
    stats = iterstats.parse(text)
    return (
        None if isinstance(stats, iterstats.NotIterationStats) else documents.iterations(stats)
    ), documents.ITERATION_NOTES


def _bench(text: str, veil: Veil, name: str) -> _Reduced:
    table = benchcsv.parse(text)
    return (None if isinstance(table, benchcsv.NotBench) else documents.bench(table, veil)), documents.BENCH_NOTES


def _answer(read: Callable[[str, Veil], bytes | None], notes: tuple[str, ...]) -> Callable[[str, Veil, str], _Reduced]:
    return lambda text, veil, name: (read(text, veil), notes)


_READERS: dict[str, Callable[[str, Veil, str], _Reduced]] = {
    "kernel": _kernel,
    "ps": _ps,
    "kubectl": _kubectl,
    "cgroup": _cgroup,
    "meminfo": _meminfo,
    "iterstats": _iterations,
    "bench-csv": _bench,
    "slots": _answer(documents.slots, documents.JSON_NOTES),
    "props": _answer(documents.props, documents.JSON_NOTES),
    "server-info": _answer(documents.server_info, documents.JSON_NOTES),
    "router-info": _answer(documents.router_info, documents.JSON_NOTES),
    "model-config": _answer(documents.model_config, documents.CONFIG_NOTES),
    "loads": _answer(documents.loads, documents.JSON_NOTES),
    "version": _answer(documents.version, documents.JSON_NOTES),
    "models": _answer(documents.models, documents.JSON_NOTES),
    "command": _answer(documents.command, documents.COMMAND_NOTES),
    "probe": _answer(documents.probe, documents.PROBE_NOTES),
}
