"""``kvdoctor capture``: a redacted snapshot of a live server or of files. Exit codes: 0 written, 2 usage or not writable, 3
nothing to write."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdoctor.cli import EXIT_UNKNOWN, common, options

if TYPE_CHECKING:
    from kvdoctor.snapshot import Snapshot


def capture(
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files to redact into a snapshot; none: this host, live.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The archive to write (.tar.gz).", show_default=False)
    ] = None,
    url: options.Url = None,
    log: options.Log = None,
    window: options.Window = 10.0,
    header: options.Header = None,
    timeout: options.Timeout = 5.0,
    engine: options.EngineName = None,
    prometheus: options.Prometheus = None,
    select: options.Select = "",
    since: options.Since = "10m",
    at: options.At = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be written and write nothing.")] = False,
    include_raw_logs: Annotated[
        bool,
        typer.Option("--include-raw-logs", help="Keep logs as they are: they may hold prompts, keys and addresses."),
    ] = False,
    max_mb: Annotated[
        float, typer.Option("--max-mb", help="Most MiB of members before compression.", min=0.1, max=500)
    ] = 64.0,
) -> None:
    """Write what a diagnosis needs, without prompts, keys, addresses, hosts and users.

    \b
    Examples:
      kvdoctor capture -o server.tar.gz --url http://127.0.0.1:8000 --log journal:vllm
      kvdoctor capture -o server.tar.gz logs/ metrics_*.prom
    """
    import secrets

    from kvdoctor import __version__
    from kvdoctor.redact import redact
    from kvdoctor.redact.limit import limit
    from kvdoctor.snapshot import write_archive

    if output is None and not dry_run:
        common.fail("say where to write: -o FILE.tar.gz (or --dry-run to only list)")
    common.known_engine(engine)
    if output is not None:
        _check_target(output)
    if include_raw_logs:
        sys.stderr.write(
            "kvdoctor: warning: logs are kept as they are; they may hold prompts, API keys, addresses and user names\n"
        )
    snapshot = common.take(
        paths, url=url or [], log=log or [], window=window, header=header or [], timeout=timeout, engine=engine,
        prometheus=prometheus, select=select, since=since, at=at,
    )  # fmt: skip
    salt = secrets.token_bytes(32)
    reduced = limit(redact(snapshot, salt=salt, include_raw_logs=include_raw_logs, engine=engine), int(max_mb * 2**20))
    common.write(_listing(reduced), None)
    if not reduced.members:
        sys.stderr.write("kvdoctor: nothing that could be captured was found; try: kvdoctor doctor\n")
        raise typer.Exit(EXIT_UNKNOWN)
    if dry_run or output is None:
        common.emit("nothing was written (--dry-run)\n")
        return
    try:
        size = write_archive(reduced, output, f"kvdoctor {__version__}")
    except OSError as error:
        common.fail(f"cannot write {output}: {error.strerror or error}; nothing was left behind")
    common.emit(f"wrote {output} ({_size(size)})\nnext: kvdoctor diagnose {output}\n")


def _check_target(output: Path) -> None:
    """Refuse before reading for a minute, not after."""
    folder = output.parent
    if output.is_dir():
        common.fail(f"{output} is a folder: name a file, e.g. {output / 'server.tar.gz'}")
    if not folder.is_dir():
        common.fail(f"the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        common.fail(f"the folder {folder} is not writable")


def _listing(snapshot: Snapshot) -> str:
    """Members with size and redactions, then what is missing and why."""
    lines: list[str] = []
    total = sum(m.size for m in snapshot.members)
    lines.append(f"{len(snapshot.members)} sources, {_size(total)} before compression")
    for member in snapshot.members:
        lines.append(f"  {member.name}  {_size(member.size)}" + ("  cut" if member.truncated else ""))
    notes = dict.fromkeys((m.kind or "file", note) for m in snapshot.members for note in m.redactions)
    if notes:
        lines.append("left out or changed:")
        lines += [f"  {kind}: {note}" for kind, note in notes]
    if snapshot.missing:
        lines.append("missing:")
        counted: dict[str, int] = {}
        for entry in snapshot.missing:
            text = f"{entry.kind}: {entry.reason}" + (f" ({entry.hint})" if entry.hint else "")
            counted[text] = counted.get(text, 0) + 1
        lines += [f"  {text}" + (f", {count} times" if count > 1 else "") for text, count in counted.items()]
    lines += list(snapshot.warnings)
    return "\n".join(lines)


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"
