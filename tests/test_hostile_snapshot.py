"""Inputs of a stranger: archives, packed files, links, pipes and manifests that lie."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import threading
from pathlib import Path

import pytest

from kvdoctor import snapshot as snapshots
from kvdoctor.snapshot import SnapshotError, memory_member, read_archive, read_paths, read_stream, write_archive

LOG = b"".join(b"INFO 11-29 10:00:%02d [core.py:1] line %d\n" % (i % 60, i * 7919) for i in range(2000))


def _tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_links_lead_nowhere_outside_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "server.log").write_bytes(LOG)
    (folder / "up").symlink_to("..")
    (folder / "secret").symlink_to("../secret")
    (folder / "near").symlink_to("server.log")
    (folder / "sub" / "loop").symlink_to("..")
    read = read_paths([folder])
    assert [m.name for m in read.members] == ["near", "server.log"]
    assert {m.origin for m in read.missing} == {"up", "secret"}
    assert any("loop" in w for w in read.warnings)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_gzip_log_is_read_up_to_the_cut(tmp_path: Path, keep: float) -> None:
    packed = gzip.compress(LOG)
    path = tmp_path / "server.log.gz"
    path.write_bytes(packed[: int(len(packed) * keep)])
    (member,) = read_paths([path]).members
    data = member.read()
    assert member.truncated
    assert data
    assert LOG.startswith(data)
    assert member.size == len(data)
    assert member.tail(10) == data[-10:]


def test_a_whole_gzip_log_has_its_unpacked_size(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LOG))
    (member,) = read_paths([path]).members
    assert (member.size, member.truncated) == (len(LOG), False)
    assert member.tail(20) == LOG[-20:]


def test_a_cut_archive_keeps_the_members_before_the_cut(tmp_path: Path) -> None:
    path = _tar(tmp_path / "a.tar.gz", [("a/first", b"x"), ("a/second", os.urandom(200_000))])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    read = read_archive(path)
    assert [m.name for m in read.members] == ["first"]
    assert any("ends early" in w for w in read.warnings)


def test_an_archive_unpacks_to_no_more_than_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_ARCHIVE_BYTES", 1 << 20)
    monkeypatch.setattr(snapshots, "MAX_MEMBER_BYTES", 1 << 18)
    path = _tar(tmp_path / "bomb.tar.gz", [("small", b"x"), ("bomb", bytes(8 << 20)), ("after", b"y")])
    read = read_archive(path)
    assert [(m.name, m.size, m.truncated) for m in read.members] == [("small", 1, False), ("bomb", 1 << 18, True)]
    assert any("the rest was not read" in w for w in read.warnings)


def test_members_without_a_usable_name_are_left_out(tmp_path: Path) -> None:
    path = _tar(tmp_path / "a.tar", [("..", b"x"), ("../..", b"x"), ("../../etc/log", b"kept")], "w")
    assert [(m.name, m.read()) for m in read_archive(path).members] == [("log", b"kept")]


@pytest.mark.parametrize(
    "manifest",
    [
        {"members": None, "missing": None, "host": None, "taken": "x"},
        {"members": 5, "missing": 7, "host": []},
        {"members": [{"name": "server.log", "redactions": 5, "time": 10**400}], "taken": 10**400},
        {"members": [{"name": "server.log", "redactions": None, "time": 1e308}], "taken": -1e300},
        {"members": [{"name": "server.log", "kind": None, "time": True}], "taken": float("nan")},
        {"members": [[], None, 3, {"name": {}}], "missing": [None]},
    ],
)
def test_a_manifest_of_wrong_types_costs_only_itself(tmp_path: Path, manifest: dict[str, object]) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": "kvdoctor.snapshot/1", **manifest}))
    (tmp_path / "server.log").write_bytes(LOG)
    read = read_paths([tmp_path])
    assert [(m.name, m.kind, m.time, m.redactions) for m in read.members] == [("server.log", None, None, ())]
    assert read.taken is None


def test_what_the_manifest_lists_and_is_not_there_is_named(tmp_path: Path) -> None:
    manifest = {"schema": "kvdoctor.snapshot/1", "members": [{"name": "ghost.log", "kind": "log"}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "server.log").write_bytes(LOG)
    assert [(m.kind, m.origin) for m in read_paths([tmp_path]).missing] == [("log", "ghost.log")]


@pytest.mark.parametrize("path", ["", "x" * 300, "/dev/zero", "no/such/path"])
def test_paths_that_are_no_input_are_refused(path: str) -> None:
    with pytest.raises(SnapshotError):
        read_paths([path])


def test_a_pipe_is_read_and_one_without_a_writer_is_empty(tmp_path: Path) -> None:
    idle = tmp_path / "idle"
    os.mkfifo(idle)
    (member,) = read_paths([idle]).members
    assert member.read() == b""
    receiver, sender = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(sender, LOG[:5000]), os.close(sender)))
    writer.start()
    (member,) = read_paths([f"/dev/fd/{receiver}"]).members
    writer.join()
    os.close(receiver)
    assert member.read() == LOG[:5000]


def test_a_stream_may_be_plain_packed_or_an_archive(tmp_path: Path) -> None:
    assert [m.read() for m in read_stream(io.BytesIO(LOG), "standard input").members] == [LOG]
    assert [m.read() for m in read_stream(io.BytesIO(gzip.compress(LOG)), "standard input").members] == [LOG]
    for mode in ("w", "w:gz"):
        data = _tar(tmp_path / "s.tar", [("top/a", b"1"), ("top/b", b"2")], mode).read_bytes()
        assert [m.name for m in read_stream(io.BytesIO(data), "standard input").members] == ["a", "b"]


def test_a_stream_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_MEMBER_BYTES", 1000)
    for data in (bytes(5000), gzip.compress(bytes(5000))):
        read = read_stream(io.BytesIO(data), "standard input")
        assert [(m.size, m.truncated) for m in read.members] == [(1000, True)]
        assert any("only the first" in w for w in read.warnings)


def test_names_that_are_no_text_are_written(tmp_path: Path) -> None:
    odd = snapshots.Snapshot((memory_member("b\udcff.log", b"INFO x"),), taken=1.0)
    write_archive(odd, tmp_path / "o.tar.gz", "test")
    assert [m.read() for m in read_archive(tmp_path / "o.tar.gz").members] == [b"INFO x"]


def test_a_gzip_file_that_was_changed_is_not_trusted(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(LOG))
    packed[-6] ^= 0xFF
    (tmp_path / "server.log.gz").write_bytes(packed)
    read = read_paths([tmp_path])
    assert read.members == ()
    assert [m.reason for m in read.missing] == ["cannot be read: the packed data is damaged"]
    with pytest.raises(SnapshotError, match="damaged"):
        read_stream(io.BytesIO(bytes(packed)), "standard input")
