"""What commands share: inputs, settings, output. Wiring only."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NoReturn, cast, get_args

import typer

from kvdoctor.cli import EXIT_USAGE

if TYPE_CHECKING:
    from kvdoctor.rulebook.config import Config
    from kvdoctor.rulebook.rule import Rule
    from kvdoctor.snapshot import Snapshot


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """One clear line on stderr, then the exit code."""
    sys.stderr.write(f"kvdoctor: {message}\n")
    raise typer.Exit(code)


WhatIfMode = Literal["none", "auto", "full"]


def what_if_mode(text: str) -> WhatIfMode:
    """The value of ``--what-if``."""
    for mode in get_args(WhatIfMode):
        if text == mode:
            return cast("WhatIfMode", mode)
    fail(f"--what-if {text}: choose none, auto or full")


def samples_dir() -> Path:
    """The shipped samples: inside the wheel, else in the checkout."""
    packaged = Path(__file__).resolve().parent.parent / "_samples"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent.parent / "samples"


def sample_names() -> list[str]:
    """Names usable as ``sample:NAME``."""
    folder = samples_dir()
    return (
        sorted(p.name for p in folder.iterdir() if p.is_dir() and (p / "expect.toml").is_file())
        if folder.is_dir()
        else []
    )


def resolve(path: str) -> str:
    """``sample:NAME`` to its folder; other paths unchanged."""
    if not path.startswith("sample:"):
        return path
    name = path.removeprefix("sample:")
    if name not in sample_names():
        from kvdoctor.facts import suggest

        near = suggest(name, sample_names())
        fail(
            f"there is no sample {name}; {'did you mean ' + ', '.join(near) if near else 'the samples are: ' + ', '.join(sample_names())}"
        )
    return str(samples_dir() / name)


def known_engine(name: str | None) -> None:
    """Usage error for an ``--engine`` that has no table."""
    from kvdoctor.engines.base import engines

    if name is not None and name not in engines():
        fail(f"--engine {name}: choose one of {', '.join(sorted(engines()))}")


def open_one(path: str) -> Snapshot:
    """The snapshot of one path; raises SnapshotError when it cannot be read at all."""
    from kvdoctor.snapshot import read_paths, read_stream

    if path == "-":
        return read_stream(_stdin(), "standard input")
    return read_paths([resolve(path)])


def read(paths: Sequence[str]) -> Snapshot:
    """A snapshot from the paths of the command line; usage error when one does not exist. ``-`` reads standard input."""
    from dataclasses import replace

    from kvdoctor.snapshot import SnapshotError, read_paths, read_stream

    named = [resolve(p) for p in paths if p != "-"]
    try:
        if "-" not in paths:
            return read_paths(named)
        piped = read_stream(_stdin(), "standard input")
        if not named:
            return piped
        snapshot = read_paths(named)
    except SnapshotError as error:
        fail(str(error))
    return replace(
        snapshot,
        members=(*snapshot.members, *piped.members),
        missing=(*snapshot.missing, *piped.missing),
        warnings=(*snapshot.warnings, *piped.warnings),
    )


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        fail("standard input is closed; give a file")
    return sys.stdin.buffer


MAX_TEXT = 32 << 20
"""Bytes of a settings, baseline, dashboard or config file; none of them is that large."""


def bytes_of(path: Path) -> bytes:
    """The bytes of a small file; raises OSError, also for a device and for a file that cannot be what is wanted."""
    import errno
    import stat

    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "a device or a socket, not a file", str(path))
    with path.open("rb") as stream:
        data = stream.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise OSError(errno.EFBIG, f"larger than {MAX_TEXT >> 20} MiB", str(path))
    return data


def take(
    paths: Sequence[str] | None,
    *,
    url: Sequence[str],
    log: Sequence[str],
    window: float,
    header: Sequence[str],
    timeout: float,
    engine: str | None,
    prometheus: str | None,
    select: str,
    since: str,
    at: str | None,
) -> Snapshot:
    """What a command is to look at: files, the past of one target, or a live reading. Usage error when they are mixed."""
    if paths and (url or log):
        fail("give either files or --url/--log, not both: a live reading and files are two diagnoses")
    if prometheus is not None and (paths or url or log):
        fail("give either --prometheus or files or --url/--log: the past of one target is a diagnosis of its own")
    if paths:
        return read(paths)
    if prometheus is not None:
        from kvdoctor.cli.past import take_past

        return take_past(prometheus, select, since, at, header, max(timeout, 30.0), engine)
    from kvdoctor.cli import live

    return live.take(url, log, window, header, timeout, engine)


def settings(config: Path | None, rules: Sequence[Path], sets: Sequence[str]) -> tuple[tuple[Rule, ...], Config]:
    """Rules and settings from files, environment and options; usage error (2) when one is wrong."""
    from datetime import UTC, datetime

    from kvdoctor.rulebook.config import ConfigError, apply_config, load_config
    from kvdoctor.rulebook.rule import RuleError, load_rules

    today = datetime.now(UTC).date()
    if config is not None and (config.is_char_device() or config.is_socket()):
        fail(f"--config {config}: a device or a socket, not a file")
    try:
        loaded = load_config(Path.cwd(), config, os.environ, sets, today)
        found = load_rules((*loaded.rule_dirs, *rules))
        apply_config(found, loaded)  # a changed threshold that does not exist is an error now, not in the middle
        return found, loaded
    except (ConfigError, RuleError) as error:
        fail(str(error))


def emit(text: str) -> None:
    """To stdout. When the reader has gone (| head), what is left has no reader, and the exit code stays the true one."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # what is still buffered must not fail a second time at the end of the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(f"cannot write to standard output: {error.strerror or error}")


def write(text: str, output: Path | None) -> None:
    """To stdout as it is, or to a file by a temporary file and a rename (never half-written)."""
    if output is None or str(output) == "-":
        emit(text if text.endswith("\n") else text + "\n")
        return
    from kvdoctor.snapshot import replacing

    try:
        with replacing(output) as target:
            target.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror}")


def colour() -> bool:
    """Colour only on a terminal and without NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """The terminal's width, 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() or os.environ.get("COLUMNS") else 100
