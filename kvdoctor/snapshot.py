"""A snapshot: raw text of every source with its time, or the reason why a source is missing.

A snapshot is a folder, a ``.tar.gz`` archive, or a handful of loose files. Reading one is safe for files from a stranger:
nothing is extracted, links and devices are not followed out of the folder, sizes and member counts are bounded, and no
member is executed or unpickled here.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
import time as _time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from kvdoctor.frozen import frozen

if TYPE_CHECKING:
    from gzip import GzipFile

SCHEMA = "kvdoctor.snapshot/1"
MANIFEST = "manifest.json"

MAX_MEMBERS = 5_000
MAX_DEPTH = 8
MAX_ARCHIVE_BYTES = 512 << 20
MAX_MEMBER_BYTES = 256 << 20
MAX_CHECKED_BYTES = 64 << 20
"""A packed file up to this size is unpacked once at the start: its true size, and whether it is whole."""


@frozen
class Missing:
    """A source that could not be read: why, and what to do about it."""

    kind: str
    origin: str
    reason: str
    hint: str = ""


@frozen
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
                last = b""
                while block := stream.read(1 << 18):
                    last = (last + block)[-size:]
                return last
            return stream.read(size)

    def read(self, limit: int = MAX_MEMBER_BYTES) -> bytes:
        """All bytes, at most ``limit``."""
        with self.open() as stream:
            return stream.read(limit)


@frozen
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


_STAMP = re.compile(r"(?<!\d)(20\d\d)-?(\d\d)-?(\d\d)[T_-]?(\d\d)[-:_]?(\d\d)[-:_]?(\d\d)(?!\d)")


def epoch_in_name(name: str) -> float | None:
    """The time in a file name, else None: an epoch (9 to 11 digits, optional fraction), or a date with a time to the second.

    A date is read as UTC: names seldom tell their zone, and differences between pages do not depend on it.
    """
    base = os.path.basename(name)
    match = _EPOCH.search(base)
    if match:
        return float(match.group(0))
    stamp = _STAMP.search(base)
    if stamp is None:
        return None
    try:
        return datetime(*(int(part) for part in stamp.groups()), tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]
    except ValueError:
        return None


def _damage() -> tuple[type[Exception], ...]:
    """What reading a packed file that was cut or changed raises."""
    import zlib

    return (OSError, EOFError, zlib.error)


class _CutShort(io.RawIOBase):
    """A packed file without its end, read as far as it goes."""

    def __init__(self, path: Path) -> None:
        import gzip

        self._raw = path.open("rb")
        self._packed = gzip.GzipFile(fileobj=self._raw)
        self._over = False

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes; 0 where the file ends."""
        if self._over:
            return 0
        try:
            data = self._packed.read1(len(buffer))
        except EOFError:
            data = b""
        self._over = not data
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Closes the file too."""
        self._raw.close()
        super().close()


def _unpacked(path: Path) -> tuple[int, bool]:
    """(bytes a gzip file unpacks to, at most ``MAX_ARCHIVE_BYTES``; whether its end is missing).

    Raises OSError for one that was changed: what it unpacks to cannot be trusted.
    """
    import gzip

    total = 0
    with gzip.open(path, "rb") as stream:
        try:
            while total < MAX_ARCHIVE_BYTES and (block := stream.read1(1 << 18)):
                total += len(block)
        except EOFError:
            return total, True
        except _damage() as error:
            raise OSError(errno.EIO, "the packed data is damaged") from error
    return total, False


def _file_member(path: Path, name: str) -> Member:
    """A member of a regular file; a gzip file is read unpacked, one without its end as far as it goes."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    if not packed:
        return Member(name, name, lambda: path.open("rb"), size, None, epoch_in_name(name))
    import gzip

    if size <= MAX_CHECKED_BYTES:
        size, cut = _unpacked(path)
        if cut:
            if not size:
                raise OSError(errno.EIO, "the packed data ends at once")
            return Member(
                name, name, lambda: io.BufferedReader(_CutShort(path)), size, None, epoch_in_name(name), truncated=True
            )
    return Member(name, name, lambda: cast(BinaryIO, gzip.open(path, "rb")), size, None, epoch_in_name(name))


def _walk(root: Path, warnings: list[str], missing: list[Missing]) -> list[tuple[str, Path]]:
    """Regular files below ``root`` in name order; each directory once (loops end), links out of it are not followed."""
    found: list[tuple[str, Path]] = []
    home = os.path.realpath(root)
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
                if entry.is_symlink() and not _within(os.path.realpath(entry.path), home):
                    missing.append(
                        Missing("file", name, "a link to outside of the folder: not followed", "name its target too")
                    )
                    continue
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


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


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
        mode = _mode(raw)
        if stat.S_ISDIR(mode):
            part = _read_folder(path)
        elif stat.S_ISFIFO(mode):
            part = read_stream(_pipe(path), str(raw))
        elif not stat.S_ISREG(mode):
            raise SnapshotError(f"{raw} is a device or a socket; give a file, a folder or a .tar.gz")
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


def _mode(raw: str | Path) -> int:
    """File mode of a path that must exist."""
    if not str(raw):
        raise SnapshotError("an empty path was given; is a variable not set?")
    try:
        return os.stat(raw).st_mode
    except FileNotFoundError:
        why = "does not exist"
    except NotADirectoryError:
        why = "does not exist"
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise SnapshotError(
        f"{str(raw)[:200]} {why}; give a snapshot folder, a .tar.gz, or files of a server (log, metrics, nvidia-smi)"
    )


def _pipe(path: Path) -> BinaryIO:
    """A pipe (``<(command)``), opened without waiting for a writer: one that nobody writes to is empty."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from error
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def read_stream(stream: BinaryIO, origin: str) -> Snapshot:
    """A snapshot from a stream that can be read once (standard input, a pipe): an archive, a packed or a plain file.

    At most ``MAX_MEMBER_BYTES`` are kept; the rest is not read, and a warning says so.
    """
    import gzip

    data = stream.read(MAX_MEMBER_BYTES + 1)
    warnings: list[str] = []
    cut = len(data) > MAX_MEMBER_BYTES
    if cut:
        data = data[:MAX_MEMBER_BYTES]
        warnings.append(f"{origin}: only the first {MAX_MEMBER_BYTES >> 20} MiB were read; give a file instead")
    if data[:2] == b"\x1f\x8b":
        if _begins_tar(gzip.GzipFile(fileobj=io.BytesIO(data))):
            return _with_warnings(_read_tar(io.BytesIO(data), origin), warnings)
        unpacked = io.BytesIO()
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                while unpacked.tell() <= MAX_MEMBER_BYTES and (block := packed.read1(1 << 18)):
                    unpacked.write(block)
        except EOFError:
            cut = True
            warnings.append(f"{origin}: the packed data ends early: read up to there")
        except _damage() as error:
            raise SnapshotError(f"{origin}: the packed data is damaged; pack it again") from error
        if unpacked.tell() > MAX_MEMBER_BYTES:
            cut = True
            unpacked.truncate(MAX_MEMBER_BYTES)
            warnings.append(f"{origin}: only the first {MAX_MEMBER_BYTES >> 20} MiB were read; give a file instead")
        data = unpacked.getvalue()
    elif data[257:262] == b"ustar":
        return _with_warnings(_read_tar(io.BytesIO(data), origin), warnings)
    return Snapshot((memory_member(origin, data, truncated=cut),), origin=origin, warnings=tuple(warnings))


def _with_warnings(snapshot: Snapshot, warnings: Sequence[str]) -> Snapshot:
    return replace(snapshot, warnings=(*warnings, *snapshot.warnings))


def _begins_tar(unzipped: GzipFile) -> bool:
    try:
        with unzipped:
            return unzipped.read(262)[257:262] == b"ustar"
    except _damage():
        return False


def _is_tar(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            magic = stream.read(262)
            if magic[:2] == b"\x1f\x8b":
                import gzip

                stream.seek(0)
                return _begins_tar(gzip.GzipFile(fileobj=stream)) or path.name.endswith((".tar.gz", ".tgz"))
    except OSError:
        return False
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
    try:
        with path.open("rb") as stream:
            return _read_tar(stream, str(path))
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}") from error


class _Budgeted:
    """Reads at most ``budget`` bytes, then raises: what an archive unpacks to has an end."""

    def __init__(self, stream: BinaryIO, budget: int) -> None:
        self._stream = stream
        self._left = budget

    def read(self, size: int) -> bytes:
        """The next bytes."""
        # read1: what lies before the damage of a cut archive is not lost
        data: bytes = cast(Any, self._stream).read1(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise _OverBudget
        return data


class _OverBudget(Exception):
    pass


def _read_tar(raw: BinaryIO, origin: str) -> Snapshot:
    import gzip
    import tarfile

    members: list[Member] = []
    warnings: list[str] = []
    budget = MAX_ARCHIVE_BYTES
    label = os.path.basename(origin)
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    broken: tuple[type[Exception], ...] = (tarfile.TarError, ValueError, *_damage())
    # what is skipped is unpacked too, so the stream itself has a budget
    stream = _Budgeted(cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw, 2 * MAX_ARCHIVE_BYTES)
    try:
        with tarfile.open(fileobj=cast(Any, stream), mode="r|", bufsize=1 << 16) as archive:
            for count, info in enumerate(archive):
                if count >= MAX_MEMBERS:
                    warnings.append(f"{label}: more than {MAX_MEMBERS} members: the rest was not read")
                    break
                name = _safe_name(info.name)
                if not info.isfile() or not name:
                    if not info.isdir():
                        warnings.append(f"{label}: {name or 'a member without a name'} is not a regular file: skipped")
                    continue
                content = archive.extractfile(info)
                if content is None:
                    continue
                most = min(MAX_MEMBER_BYTES, budget)
                kept = io.BytesIO()
                while kept.tell() < most and (block := content.read(min(1 << 20, most - kept.tell()))):
                    kept.write(block)
                data = kept.getvalue()
                cut = info.size > len(data)
                if cut:
                    warnings.append(f"{label}: {name} is larger than the byte budget: cut")
                budget -= len(data)
                members.append(memory_member(name, data, time=epoch_in_name(name), truncated=cut))
                if budget <= 0:
                    warnings.append(f"{label}: more than {MAX_ARCHIVE_BYTES >> 20} MiB unpacked: the rest was not read")
                    break
    except _OverBudget:
        warnings.append(f"{label}: more than {2 * MAX_ARCHIVE_BYTES >> 20} MiB unpacked: the rest was not read")
    except broken as error:
        if not members:
            raise SnapshotError(
                f"{origin} is not a readable archive ({error}); make it again with 'kvdoctor capture -o FILE'"
            ) from error
        warnings.append(f"{label}: the archive ends early ({error}); {len(members)} members were read")
    # one common top folder is packaging, not information
    return _with_manifest(Snapshot(tuple(_without_common_top(members)), (), {}, None, origin, tuple(warnings)))


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
    except (ValueError, RecursionError, OSError):
        return replace(
            snapshot,
            members=rest,
            warnings=(*snapshot.warnings, f"{MANIFEST} is not valid JSON: members are told by their content"),
        )
    if not isinstance(manifest, dict) or not str(manifest.get("schema", "")).startswith("kvdoctor.snapshot/"):
        return snapshot
    warnings = list(snapshot.warnings)
    if manifest["schema"] != SCHEMA:
        warnings.append(
            f"written by a newer kvdoctor ({manifest['schema']}); this one reads {SCHEMA}: unknown entries are left out"
        )
    listed = _list(manifest, "members", warnings)
    entries = {str(e["name"]): e for e in listed if isinstance(e, dict) and "name" in e}
    members = []
    for member in rest:
        entry = entries.get(member.name)
        if entry is None:
            members.append(member)
            continue
        when = _epoch(entry.get("time"))
        redactions = entry.get("redactions")
        if isinstance(entry.get("sha256"), str) and not member.truncated:
            digest = _sha256(member)
            if digest != entry["sha256"]:
                warnings.append(f"{member.name} was changed after it was captured (its sha256 differs)")
        members.append(replace(
            member,
            kind=str(entry["kind"]) if entry.get("kind") is not None else member.kind,
            time=when if when is not None else member.time,
            origin=str(entry.get("origin") or member.origin),
            truncated=bool(entry.get("truncated", member.truncated)),
            redactions=tuple(str(r) for r in redactions) if isinstance(redactions, list) else (),
        ))  # fmt: skip
    missing = tuple(
        Missing(str(e.get("kind", "")), str(e.get("origin", "")), str(e.get("reason", "")), str(e.get("hint", "")))
        for e in _list(manifest, "missing", warnings)
        if isinstance(e, dict)
    )
    present = {m.name for m in rest}
    missing += tuple(
        Missing(str(e.get("kind") or "file"), name, f"{MANIFEST} lists it, but it is not there", "capture it again")
        for name, e in entries.items()
        if name not in present
    )
    host = (
        {str(k): str(v) for k, v in manifest.get("host", {}).items()} if isinstance(manifest.get("host"), dict) else {}
    )
    return replace(
        snapshot,
        members=tuple(members),
        missing=snapshot.missing + missing,
        host=host,
        taken=_epoch(manifest.get("taken")),
        warnings=tuple(warnings),
    )


_LAST_EPOCH = 253_402_300_799.0
"""The last second of the year 9999: what lies beyond is no time."""


def _epoch(value: object) -> float | None:
    """Epoch seconds from a manifest; None for what is no time of a server's life."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 < value <= _LAST_EPOCH and math.isfinite(value) else None


def _list(manifest: Mapping[str, object], key: str, warnings: list[str]) -> list[object]:
    value = manifest.get(key, [])
    if isinstance(value, list):
        return value
    warnings.append(f"{MANIFEST}: {key} is no list: left out")
    return []


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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` in one step when all is written, so nobody meets half a file.

    A device, a pipe or a link (/dev/null, /dev/stdout) is written to as it is: to replace it would take it from everybody.
    Raises OSError, and leaves an old file as it was.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_archive(snapshot: Snapshot, path: Path, tool: str) -> int:
    """Write a ``.tar.gz`` atomically (temporary file in the same folder, then rename); returns its size in bytes."""
    import tarfile

    manifest = json.dumps(manifest_for(snapshot, tool), indent=1, ensure_ascii=False).encode("utf-8", "replace")
    stamp = int(snapshot.taken if snapshot.taken is not None else _time.time())
    with replacing(path) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for name, data in [(MANIFEST, manifest), *((m.name, m.read()) for m in snapshot.members)]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = stamp
            info.mode = 0o600
            archive.addfile(info, io.BytesIO(data))
    return path.stat().st_size
