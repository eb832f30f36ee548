"""``kvdoctor watch``: the live view on a terminal, JSON lines off it, a text file for a node exporter."""

from __future__ import annotations

import locale
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdoctor.cli import common, options

if TYPE_CHECKING:
    from kvdoctor.collect.follow import Follow
    from kvdoctor.snapshot import Snapshot
    from kvdoctor.watch.sample import Sample, Sampler
    from kvdoctor.watch.watcher import Frame, Watcher


def watch(
    url: options.Url = None,
    log: options.Log = None,
    window: Annotated[
        float, typer.Option("--window", help="Seconds that are judged together, ending now.", min=10, max=3600)
    ] = 120.0,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between two samples.", min=0.5, max=300)] = 1.0,
    duration: Annotated[
        float | None, typer.Option("--duration", help="End after so many seconds.", min=1, show_default=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Two samples, one diagnosis, and end.")] = False,
    textfile: Annotated[
        Path | None,
        typer.Option("--textfile", help="Keep a file for a node exporter; without a terminal nothing else is written."),
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", help="Play a snapshot (or sample:NAME) instead of a live server.")
    ] = None,
    speed: Annotated[
        float, typer.Option("--speed", help="Pace of a replay: 10 plays ten minutes in one.", min=0.01, max=1e6)
    ] = 1.0,
    header: options.Header = None,
    timeout: options.Timeout = 5.0,
    engine: options.EngineName = None,
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", help="Exit 1 when the last diagnosis holds a finding of this severity or above."),
    ] = None,
    rules: options.Rules = None,
    set_: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Watch a server: verdict, pool, queue, preemptions, latency, memory, findings.

    On a terminal a live view (h: help, q: quit); where standard output or standard error is no terminal, one JSON object a line
    at each diagnosis.

    \b
    Examples:
      kvdoctor watch
      kvdoctor watch --url http://127.0.0.1:8000 --log journal:vllm
      kvdoctor watch --replay sample:vllm-saturated --speed 10
      kvdoctor watch --textfile /var/lib/node_exporter/kvdoctor.prom
    """
    from kvdoctor.pipeline import Options, exit_code
    from kvdoctor.watch.watcher import Watcher

    common.known_engine(engine)
    if replay is not None and (url or log):
        common.fail("give either --replay or --url/--log, not both: a recording and a live server are two watches")
    if textfile is not None and not textfile.parent.is_dir():
        common.fail(f"--textfile {textfile}: the folder {textfile.parent} does not exist")
    active, loaded = common.settings(config, rules or (), set_ or ())
    level = fail_on or loaded.fail_on or "never"
    if level not in ("critical", "high", "medium", "low", "info", "never"):
        common.fail(f"--fail-on {level}: choose critical, high, medium, low, info or never")
    wanted = Options(engine=engine, what_if="none", config=loaded)
    terminal = sys.stdout.isatty() and sys.stderr.isatty() and not once and os.environ.get("TERM") != "dumb"
    watcher = Watcher(active, wanted, window_s=window, steady_beat=not terminal)
    sampler: Sampler
    if replay is not None:
        from kvdoctor.watch.replay import Replay

        source = f"replay of {Path(replay).name}" + (f" x{speed:g}" if speed != 1 else "")
        sampler = Replay(common.read([replay]), active, wanted, speed=speed, duration_s=duration)
    else:
        source, sampler = _live(url or [], log or [], header or [], timeout, interval, duration, engine)
    file = _TextFile(textfile) if textfile is not None else None
    if terminal:
        frame = _screen(sampler, watcher, source, file, stay=replay is not None, engine=engine, live=replay is None)
    else:
        try:
            frame = _lines(sampler, watcher, file, once=once)
        except BrokenPipeError:
            # the reader left: nothing is left to write to, and the exit code is the shell's own for it, never a finding's
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
    if frame is None or frame.report is None:
        sys.stderr.write("kvdoctor: no sample was taken\n")
        raise typer.Exit(3)
    raise typer.Exit(exit_code(frame.report, level))


def _screen(
    sampler: Sampler,
    watcher: Watcher,
    source: str,
    file: _TextFile | None,
    *,
    stay: bool,
    engine: str | None,
    live: bool,
) -> Frame | None:
    from kvdoctor.watch.app import WatchApp, last_words

    app = WatchApp(
        sampler,
        watcher,
        source=source,
        capture=(lambda past: _capture(past, engine)) if live else None,
        also=file,
        stay=stay,
        plain="utf" not in locale.getpreferredencoding(False).lower(),
        keys=sys.stdin.isatty(),
    )
    app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    sys.stdout.write(last_words(app.last))
    return app.last


def _lines(sampler: Sampler, watcher: Watcher, file: _TextFile | None, *, once: bool) -> Frame | None:
    """A line at each diagnosis; with a text file, only the file."""
    from kvdoctor import __version__
    from kvdoctor.watch.lines import line
    from kvdoctor.watch.pump import ending_on_signals, pump

    stop = threading.Event()
    samples = 0

    def show(frame: Frame) -> None:
        nonlocal samples
        samples += 1
        if once and samples >= 2:
            stop.set()
        if file is not None:
            file(frame)
        elif frame.renewed and frame.report is not None and not once:
            sys.stdout.write(line(frame.report, __version__))
            sys.stdout.flush()

    with ending_on_signals(stop):
        frame = pump(sampler, watcher, show, stop)
    if once and file is None and frame is not None and frame.report is not None:
        _print_once(frame)
    return frame


def _print_once(frame: Frame) -> None:
    """The board as text on a terminal, a JSON line elsewhere."""
    from kvdoctor import __version__
    from kvdoctor.watch.draw import Ui, board
    from kvdoctor.watch.lines import line

    assert frame.report is not None
    if not sys.stdout.isatty():
        sys.stdout.write(line(frame.report, __version__))
        return
    lines = board(frame, Ui(focus="", note=" "), common.width(), 30)
    text = "\n".join("".join(part for part, _ in one).rstrip() for one in lines)
    sys.stdout.write(text.rstrip() + "\n")


class _TextFile:
    """Writes the text file at each diagnosis; a failure is told once, on standard error when there is no live view."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = ""

    def __call__(self, frame: Frame) -> None:
        from kvdoctor.watch.textfile import render, write

        if not frame.renewed:
            return
        try:
            write(self._path, render(frame))
            self._failed = ""
        except OSError as error:
            why = f"cannot write {self._path}: {error.strerror}"
            if why != self._failed and not (sys.stdout.isatty() and sys.stderr.isatty()):
                sys.stderr.write(f"kvdoctor: {why}; the old file stays, trying again\n")
            self._failed = why


def _capture(past: Snapshot, engine: str | None) -> str:
    """The last minutes, redacted, into a file of the working folder; what was written, or why not."""
    import secrets
    from datetime import UTC, datetime

    from kvdoctor import __version__
    from kvdoctor.redact import redact
    from kvdoctor.snapshot import write_archive

    stamp = datetime.fromtimestamp(past.taken if past.taken is not None else 0, UTC).strftime("%Y%m%dT%H%M%SZ")
    path = Path(f"kvdoctor-{stamp}.tar.gz")
    try:
        written = write_archive(
            redact(past, salt=secrets.token_bytes(32), engine=engine), path, f"kvdoctor {__version__}"
        )
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}; nothing was left behind"
    return f"wrote {path} ({written / 1024:.0f} KiB): kvdoctor diagnose {path}"


# ---------------------------------------------------------------- live


def _live(
    urls: Sequence[str],
    logs: Sequence[str],
    headers: Sequence[str],
    timeout: float,
    interval: float,
    duration: float | None,
    engine: str | None,
) -> tuple[str, Sampler]:
    from kvdoctor.cli.live import choose_pages, request
    from kvdoctor.collect import SpecError
    from kvdoctor.collect.follow import Follow
    from kvdoctor.watch.sample import Paced

    _one_heap()
    wanted = request(urls, logs, interval, headers, timeout, engine)
    if not wanted.servers and not wanted.logs:
        looked = "; ".join(wanted.discovery.looked) if wanted.discovery is not None else ""
        common.fail(
            f"no inference server was found on this host ({looked}); name one with --url or --log, "
            "or try: kvdoctor watch --replay sample:vllm-saturated --speed 10", 3,
        )  # fmt: skip
    try:
        follow = Follow(wanted.servers, wanted.logs, headers=wanted.headers, timeout_s=timeout, choose=choose_pages)
    except SpecError as error:
        common.fail(str(error))
    source = ", ".join([*(s.url for s in wanted.servers), *wanted.logs])
    return source, Paced(_taker(follow, interval), follow.close, interval_s=interval, duration_s=duration)


def _one_heap() -> None:
    """Keep glibc from giving each thread a heap of its own: with eight servers that is 10 MB of a small program."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        arena_max = -8
        mallopt(arena_max, 1)


def _taker(follow: Follow, interval: float) -> Callable[[float], Sample]:
    from kvdoctor.watch.sample import LogBytes, Page, Sample

    def take(now: float) -> Sample:
        got = follow.take(now, max(interval, 1.0))
        return Sample(
            now,
            tuple(Page(server.removeprefix("http://"), member) for server, member in got.pages),
            got.others,
            tuple(LogBytes(origin, data) for origin, data in got.logs),
            got.missing,
            got.warnings,
        )

    return take
