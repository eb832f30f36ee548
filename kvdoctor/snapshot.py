"""A snapshot: raw text of every source with its time, or the reason why a source is missing.

A snapshot is a folder, a ``.tar.gz`` archive, or a handful of loose files. Reading one is safe for files from a stranger:
nothing is extracted, links and devices are not followed out of the folder, sizes and member counts are bounded, and no
member is executed or unpickled here.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import time as _time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

SCHEMA = "kvdoctor.snapshot/1"
MANIFEST = "manifest.json"

MAX_MEMBERS = 5_000
MAX_DEPTH = 8
MAX_ARCHIVE_BYTES = 512 << 20
MAX_MEMBER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Missing:
    """A source that could not be read: why, and what to do about it."""

    kind: str
    origin: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One source: ``open()`` gives its bytes from the start, as often as asked.

    ``kind`` is None where only the content can tell. ``time`` is epoch seconds of the reading (from the manifest, or an epoch
    in the file name), None when nothing says it. ``origin`` is what a report names: a path, a URL, a command.
    """

    name: str
    origin: str
    open: Callable[[], BinaryIO]
    size: int
    kind: str | None = None
    time: float | None = None
    truncated: bool = False
    redactions: tuple[str, ...] = ()

    def head(self, size: int) -> bytes:
        """The first ``size`` bytes."""
        with self.open() as stream:
            return stream.read(size)

    def tail(self, size: int) -> bytes:
        """The last ``size`` bytes."""
        with self.open() as stream:
            try:
                stream.seek(max(self.size - size, 0))
            except (OSError, io.UnsupportedOperation):
                return b""
            return stream.read(size)

    def read(self, limit: int = MAX_MEMBER_BYTES) -> bytes:
        """All bytes, at most ``limit``."""
        with self.open() as stream:
            return stream.read(limit)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a diagnosis may look at. ``host`` holds host facts of the manifest, ``taken`` its time."""

    members: tuple[Member, ...]
    missing: tuple[Missing, ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    taken: float | None = None
    origin: str = ""
    warnings: tuple[str, ...] = ()
    live: bool = False


class SnapshotError(Exception):
    """An input that cannot be read at all; the message says what was tried and what to do."""


def memory_member(
    name: str,
    data: bytes,
    *,
    kind: str | None = None,
    time: float | None = None,
    origin: str = "",
    truncated: bool = False,
    redactions: tuple[str, ...] = (),
) -> Member:
    """A member held in memory (live readings, archive members, tests)."""
    return Member(name, origin or name, lambda: io.BytesIO(data), len(data), kind, time, truncated, redactions)


_EPOCH = re.compile(r"(?<!\d)(\d{9,11})(\.\d{1,9})?(?!\d)")


def epoch_in_name(name: str) -> float | None:
    """An epoch in a file name (9 to 11 digits, optional fraction), else None."""
    match = _EPOCH.search(os.path.basename(name))
    return float(match.group(0)) if match else None


def _file_member(path: Path, name: str) -> Member:
    size = path.stat().st_size

    def opener() -> BinaryIO:
        raw = path.open("rb")
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            return raw
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))

    return Member(name, name, opener, size, None, epoch_in_name(name))


def _walk(root: Path, warnings: list[str], missing: list[Missing]) -> list[tuple[str, Path]]:
    """Regular files below ``root`` in name order; each directory once (loops end), links out of it are not followed."""
    found: list[tuple[str, Path]] = []
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Path, str, int]] = [(root, "", 0)]
    while stack:
        folder, prefix, depth = stack.pop()
        try:
            info = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as error:
            missing.append(
                Missing("folder", prefix or str(root), f"cannot be listed: {error.strerror}", "check its permissions")
            )
            continue
        if (info.st_dev, info.st_ino) in seen:
            warnings.append(f"{prefix} is the same folder again (a loop): skipped")
            continue
        seen.add((info.st_dev, info.st_ino))
        # a labelled case keeps its ground truth beside the input; it is never input
        labelled = any(e.name == "expect.toml" for e in entries)
        folders: list[tuple[Path, str, int]] = []
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.name.startswith(".") or (labelled and entry.name in ("expect.toml", "truth")):
                continue
            try:
                mode = entry.stat().st_mode
            except OSError as error:
                missing.append(
                    Missing("file", name, f"cannot be read: {error.strerror}", "check the link or its permissions")
                )
                continue
            if stat.S_ISDIR(mode):
                if depth + 1 > MAX_DEPTH:
                    warnings.append(f"{name} is nested deeper than {MAX_DEPTH} folders: skipped")
                else:
                    folders.append((Path(entry.path), name + "/", depth + 1))
            elif stat.S_ISREG(mode):
                found.append((name, Path(entry.path)))
            else:
                warnings.append(f"{name} is neither a file nor a folder: skipped")
        stack.extend(reversed(folders))
        if len(found) > MAX_MEMBERS:
            warnings.append(f"more than {MAX_MEMBERS} files: the rest was not read")
            return found[:MAX_MEMBERS]
    return found


def _readable(path: Path, name: str, missing: list[Missing]) -> Member | None:
    try:
        member = _file_member(path, name)
        with member.open() as stream:
            stream.read(1)
    except (OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        missing.append(Missing("file", name, f"cannot be read: {reason}", "check its permissions or copy it again"))
        return None
    return member


def read_paths(paths: Sequence[str | Path]) -> Snapshot:
    """One snapshot from folders, archives and loose files; raises :class:`SnapshotError` when a path does not exist."""
    members: list[Member] = []
    missing: list[Missing] = []
    warnings: list[str] = []
    host: dict[str, str] = {}
    taken: float | None = None
    for raw in paths:
        path = Path(raw)
        if not path.exists():
            raise SnapshotError(
                f"{raw} does not exist; give a snapshot folder, a .tar.gz, or files of a server (log, metrics, nvidia-smi)"
            )
        if path.is_dir():
            part = _read_folder(path)
        elif _is_tar(path):
            part = read_archive(path)
        else:
            one = _readable(path, path.name, missing)
            part = Snapshot((one,) if one else ())
        members.extend(part.members)
        missing.extend(part.missing)
        warnings.extend(part.warnings)
        host.update(part.host)
        taken = part.taken if taken is None else taken
    names: dict[str, int] = {}
    unique: list[Member] = []
    for member in members:
        count = names.get(member.name, 0)
        names[member.name] = count + 1
        unique.append(replace(member, name=f"{member.name}#{count + 1}") if count else member)
    return Snapshot(tuple(unique), tuple(missing), host, taken, ", ".join(str(p) for p in paths), tuple(warnings))


def _is_tar(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            magic = stream.read(262)
    except OSError:
        return False
    if magic[:2] == b"\x1f\x8b":
        import gzip

        try:
            with gzip.open(path, "rb") as unzipped:
                return unzipped.read(262)[257:262] == b"ustar"
        except (OSError, EOFError):
            return path.name.endswith((".tar.gz", ".tgz"))
    return magic[257:262] == b"ustar"


def _read_folder(path: Path) -> Snapshot:
    warnings: list[str] = []
    missing: list[Missing] = []
    files = _walk(path, warnings, missing)
    members = [m for name, file in files if (m := _readable(file, name, missing)) is not None]
    if not members and not missing:
        missing.append(
            Missing("folder", str(path), "holds no file that could be read", "give the folder with the server's files")
        )
    return _with_manifest(Snapshot(tuple(members), tuple(missing), {}, None, str(path), tuple(warnings)))


def read_archive(path: Path) -> Snapshot:
    """Read a ``.tar`` or ``.tar.gz``, as a stream: regular members only, within the byte and member budgets."""
    import tarfile

    members: list[Member] = []
    missing: list[Missing] = []
    warnings: list[str] = []
    budget = MAX_ARCHIVE_BYTES
    try:
        with tarfile.open(path, "r|*") as archive:
            for count, info in enumerate(archive):
                if count >= MAX_MEMBERS:
                    warnings.append(f"{path.name}: more than {MAX_MEMBERS} members: the rest was not read")
                    break
                name = _safe_name(info.name)
                if not info.isfile():
                    if not info.isdir():
                        warnings.append(f"{path.name}: {name} is not a regular file: skipped")
                    continue
                stream = archive.extractfile(info)
                if stream is None:
                    continue
                data = stream.read(min(MAX_MEMBER_BYTES, budget) + 1)
                cut = len(data) > min(MAX_MEMBER_BYTES, budget)
                if cut:
                    data = data[: min(MAX_MEMBER_BYTES, budget)]
                    warnings.append(f"{path.name}: {name} is larger than the byte budget: cut")
                budget -= len(data)
                members.append(memory_member(name, data, time=epoch_in_name(name), truncated=cut))
                if budget <= 0:
                    warnings.append(
                        f"{path.name}: more than {MAX_ARCHIVE_BYTES >> 20} MiB unpacked: the rest was not read"
                    )
                    break
    except (tarfile.TarError, OSError, EOFError) as error:
        if not members:
            raise SnapshotError(
                f"{path} is not a readable archive ({error}); make it again with 'kvdoctor capture -o FILE'"
            ) from error
        warnings.append(f"{path.name}: the archive ends early ({error}); {len(members)} members were read")
    # one common top folder is packaging, not information
    return _with_manifest(
        Snapshot(tuple(_without_common_top(members)), tuple(missing), {}, None, str(path), tuple(warnings))
    )


def _without_common_top(members: list[Member]) -> list[Member]:
    tops = {m.name.split("/", 1)[0] for m in members}
    if len(tops) == 1 and all("/" in m.name for m in members):
        return [replace(m, name=m.name.split("/", 1)[1], origin=m.name.split("/", 1)[1]) for m in members]
    return members


def _safe_name(name: str) -> str:
    return "/".join(p for p in name.replace("\\", "/").split("/") if p not in ("", ".", ".."))


def _with_manifest(snapshot: Snapshot) -> Snapshot:
    """Apply ``manifest.json`` when there is one: kinds, times, origins, missing entries, host facts."""
    found = next((m for m in snapshot.members if m.name == MANIFEST), None)
    if found is None:
        return snapshot
    rest = tuple(m for m in snapshot.members if m is not found)
    try:
        manifest = json.loads(found.read(8 << 20))
    except (ValueError, RecursionError) as error:
        return replace(
            snapshot,
            members=rest,
            warnings=(*snapshot.warnings, f"{MANIFEST} is not valid JSON ({error}): members are told by their content"),
        )
    if not isinstance(manifest, dict) or not str(manifest.get("schema", "")).startswith("kvdoctor.snapshot/"):
        return snapshot
    warnings = list(snapshot.warnings)
    if manifest["schema"] != SCHEMA:
        warnings.append(
            f"written by a newer kvdoctor ({manifest['schema']}); this one reads {SCHEMA}: unknown entries are left out"
        )
    entries = {str(e["name"]): e for e in manifest.get("members", ()) if isinstance(e, dict) and "name" in e}
    members = []
    for member in rest:
        entry = entries.get(member.name)
        if entry is None:
            members.append(member)
            continue
        when = entry.get("time")
        if isinstance(entry.get("sha256"), str) and not member.truncated:
            digest = _sha256(member)
            if digest != entry["sha256"]:
                warnings.append(f"{member.name} was changed after it was captured (its sha256 differs)")
        members.append(replace(
            member,
            kind=str(entry["kind"]) if "kind" in entry else member.kind,
            time=float(when) if isinstance(when, (int, float)) else member.time,
            origin=str(entry.get("origin") or member.origin),
            truncated=bool(entry.get("truncated", member.truncated)),
            redactions=tuple(str(r) for r in entry.get("redactions", ())),
        ))  # fmt: skip
    missing = tuple(
        Missing(str(e.get("kind", "")), str(e.get("origin", "")), str(e.get("reason", "")), str(e.get("hint", "")))
        for e in manifest.get("missing", ())
        if isinstance(e, dict)
    )
    host = (
        {str(k): str(v) for k, v in manifest.get("host", {}).items()} if isinstance(manifest.get("host"), dict) else {}
    )
    taken = manifest.get("taken")
    return replace(
        snapshot,
        members=tuple(members),
        missing=snapshot.missing + missing,
        host=host,
        taken=float(taken) if isinstance(taken, (int, float)) else None,
        warnings=tuple(warnings),
    )


def _sha256(member: Member) -> str:
    import hashlib

    digest = hashlib.sha256()
    with member.open() as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def manifest_for(snapshot: Snapshot, tool: str) -> dict[str, object]:
    """The manifest that describes ``snapshot``: per member kind, origin, time, size, sha256, truncation, redactions."""
    return {
        "schema": SCHEMA,
        "tool": tool,
        "taken": snapshot.taken,
        "host": dict(snapshot.host),
        "members": [
            {
                "name": m.name,
                "kind": m.kind,
                "origin": m.origin,
                "time": m.time,
                "size": m.size,
                "sha256": _sha256(m),
                "truncated": m.truncated,
                "redactions": list(m.redactions),
            }
            for m in snapshot.members
        ],
        "missing": [{"kind": m.kind, "origin": m.origin, "reason": m.reason, "hint": m.hint} for m in snapshot.missing],
    }


def write_archive(snapshot: Snapshot, path: Path, tool: str) -> int:
    """Write a ``.tar.gz`` atomically (temporary file in the same folder, then rename); returns its size in bytes."""
    import tarfile

    manifest = json.dumps(manifest_for(snapshot, tool), indent=1, ensure_ascii=False).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    stamp = int(snapshot.taken if snapshot.taken is not None else _time.time())
    try:
        with tarfile.open(temporary, "w:gz") as archive:
            for name, data in [(MANIFEST, manifest), *((m.name, m.read()) for m in snapshot.members)]:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                info.mtime = stamp
                info.mode = 0o600
                archive.addfile(info, io.BytesIO(data))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


def digest(snapshot: Snapshot) -> str:
    """A digest of the members' names and bytes (first MiB of each): the same snapshot gives the same seed."""
    import hashlib

    total = hashlib.sha256()
    for member in sorted(snapshot.members, key=lambda m: m.name):
        total.update(member.name.encode())
        total.update(str(member.size).encode())
        total.update(member.head(1 << 20))
    return total.hexdigest()
