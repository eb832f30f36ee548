"""A live reading for ``diagnose``, ``capture`` and ``watch``: what to ask comes from the engine tables, reading is collect's."""

from __future__ import annotations

import math
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvdoctor.cli import common

if TYPE_CHECKING:
    from kvdoctor.collect.gather import Ask, LiveRequest
    from kvdoctor.engines.base import Engine
    from kvdoctor.snapshot import Snapshot


def take(
    url: Sequence[str], log: Sequence[str], window: float, header: Sequence[str], timeout: float, engine: str | None
) -> Snapshot:
    """Read servers, logs, GPUs and the host over the window. Without ``url`` and ``log`` the engines of this host are found."""
    from kvdoctor.collect import SpecError, gather

    wanted = request(url, log, window, header, timeout, engine)
    progress = _Progress()
    # a polite end of the process ends the window early, as Ctrl-C does: what was gathered is judged
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        snapshot = gather.take(wanted, progress.step, on_first=progress.first if progress.shown else None)
    except SpecError as error:
        common.fail(str(error))
    finally:
        progress.end()
    return snapshot


def request(
    url: Sequence[str], log: Sequence[str], window: float, header: Sequence[str], timeout: float, engine: str | None
) -> LiveRequest:
    """What to read, as collect wants it."""
    from kvdoctor.collect import SpecError
    from kvdoctor.collect.gather import LiveRequest, ServerAsk
    from kvdoctor.collect.http import parse_header
    from kvdoctor.engines.base import engines

    for option, value in (("--window", window), ("--timeout", timeout)):
        if not math.isfinite(value):
            common.fail(f"{option} {value}: a number of seconds is wanted")
    try:
        headers = dict(parse_header(h) for h in header)
    except SpecError as error:
        common.fail(str(error))
    known = engines().get(engine) if engine else None
    servers = [ServerAsk(u, _asks(known) if known else ()) for u in url]
    logs = list(log)
    discovery = None
    if not url:
        from kvdoctor.collect.discover import discover

        tables = [e for e in engines().values() if not e.side]
        discovery = discover(
            {e.name: e.process_markers for e in tables}, default_ports={e.name: e.default_port for e in tables}
        )
        for found in discovery.found:
            table = engines().get(found.engine)
            if not found.server or (known is not None and table is not known):
                continue
            # the first address is the front door; the others are sockets between the engine's own processes
            servers += [ServerAsk(u, _asks(table) if table else ()) for u in found.urls[:1]]
            if not log and found.log.spec is not None:
                logs.append(found.log.spec)
    return LiveRequest(
        servers=tuple(servers), logs=tuple(dict.fromkeys(logs)), window_s=window, headers=headers, timeout_s=timeout,
        choose=choose_pages, discovery=discovery,
    )  # fmt: skip


def _asks(engine: Engine | None) -> tuple[Ask, ...]:
    from kvdoctor.collect.gather import METRICS, Ask

    return tuple(Ask(e.path, e.kind, e.once) for e in engine.endpoints) if engine is not None else METRICS


def choose_pages(url: str, page: bytes | None) -> Sequence[Ask]:
    """The pages of the engine that a first page belongs to; of TensorRT-LLM, whose first page is JSON, its own."""
    from kvdoctor.engines import recognise
    from kvdoctor.engines.base import engines
    from kvdoctor.parse import exposition

    if page is None:
        return ()
    parsed = exposition.parse(recognise.text_of(page), origin=url)
    if not isinstance(parsed, exposition.NotExposition):
        return _asks(recognise.of_page(parsed.by_name))
    kind = recognise.kind_of(page, None)
    tables = [e for e in engines().values() if any(a.kind == kind for a in e.endpoints)]
    return _asks(tables[0]) if len(tables) == 1 else ()


class _Progress:
    """One line on a terminal's stderr that tells what is being read; nothing in a pipe."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self.last = ""

    def step(self, what: str, share: float) -> None:
        if not self.shown:
            return
        text = f"{share:4.0%}  {what}"[:78]
        sys.stderr.write("\r" + text.ljust(len(self.last)))
        sys.stderr.flush()
        self.last = text

    def first(self, snapshot: Snapshot) -> None:
        """A first word from gauges and logs, long before the window ends."""
        from kvdoctor.pipeline import diagnose
        from kvdoctor.report.brief import first_line
        from kvdoctor.rulebook.rule import load_rules

        report = diagnose(snapshot, load_rules())
        self.end()
        sys.stderr.write(f"so far: {first_line(report)}\n")

    def end(self) -> None:
        if self.shown and self.last:
            sys.stderr.write("\r" + " " * len(self.last) + "\r")
            sys.stderr.flush()
            self.last = ""


def keep(snapshot: Snapshot, path: Path) -> None:
    """Write what was read, redacted, as an archive."""
    from kvdoctor import __version__
    from kvdoctor.redact import redact
    from kvdoctor.snapshot import write_archive

    try:
        write_archive(redact(snapshot, salt=secrets.token_bytes(32)), path, f"kvdoctor {__version__}")
    except OSError as error:
        common.fail(f"cannot write {path}: {error.strerror or error}; nothing was left behind")
    sys.stderr.write(f"kvdoctor: kept, redacted, in {path}\n")
