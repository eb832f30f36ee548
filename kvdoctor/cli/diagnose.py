"""``kvdoctor diagnose``: a snapshot, loose files, or this host, to one verdict."""

# annotations are values here, not texts: typer would evaluate each of them twice, three milliseconds in all

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import common, options


def diagnose(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Snapshot folders or archives, sample:NAME, or loose files; none: this host, live.", show_default=False
        ),
    ] = None,
    url: options.Url = None,
    log: options.Log = None,
    window: options.Window = 10.0,
    header: options.Header = None,
    timeout: options.Timeout = 5.0,
    prometheus: options.Prometheus = None,
    select: options.Select = "",
    since: options.Since = "10m",
    at: options.At = None,
    save: Annotated[Path | None, typer.Option("--save", help="Keep what was read as a snapshot (.tar.gz).")] = None,
    engine: options.EngineName = None,
    format: Annotated[str, typer.Option("--format", help="text, json or html.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to a file.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List also the rules that are clear or do not apply.")
    ] = False,
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", help="Exit 1 at this severity or above: critical, high, medium, low, info, never."),
    ] = None,
    what_if: Annotated[
        str, typer.Option("--what-if", help="Replay the load under other policies and sizes: none, auto or full.")
    ] = "auto",
    rules: options.Rules = None,
    set_: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Say what is wrong with an inference server, with evidence and what to do.

    \b
    Examples:
      kvdoctor diagnose sample:vllm-saturated
      kvdoctor diagnose logs/ metrics_*.prom
      kvdoctor diagnose --url http://127.0.0.1:8000 --log journal:vllm
    """
    from kvdoctor.pipeline import Options, exit_code
    from kvdoctor.pipeline import diagnose as run

    if format not in ("text", "json", "html"):
        common.fail(f"--format {format}: choose text, json or html")
    mode = common.what_if_mode(what_if)
    common.known_engine(engine)
    active, loaded = common.settings(config, rules or (), set_ or ())
    level = fail_on or loaded.fail_on or "never"
    if level not in ("critical", "high", "medium", "low", "info", "never"):
        common.fail(f"--fail-on {level}: choose critical, high, medium, low, info or never")
    snapshot = common.take(
        paths, url=url or [], log=log or [], window=window, header=header or [], timeout=timeout, engine=engine,
        prometheus=prometheus, select=select, since=since, at=at,
    )  # fmt: skip
    report = run(snapshot, active, Options(engine=engine, what_if=mode, config=loaded))
    if save is not None:
        from kvdoctor.cli.live import keep

        keep(snapshot, save)
    common.write(_render(report, format, verbose, output), output)
    code = exit_code(report, level)
    if not report.usable:
        if paths or url or log or prometheus is not None:
            looked = "; ".join(f"{m.origin}: {m.reason}" for m in snapshot.missing[:4])
            said = "nothing that could be judged was found" + (f" ({looked})" if looked else "")
        else:
            said = "no inference server was found on this host; name one with --url http://HOST:PORT"
        sys.stderr.write(f"kvdoctor: {said}; to see a report: kvdoctor diagnose sample:vllm-saturated\n")
    raise typer.Exit(code)


def _render(report: object, format: str, verbose: bool, output: Path | None) -> str:
    from kvdoctor import __version__
    from kvdoctor.findings import Report

    assert isinstance(report, Report)
    if format == "json":
        from kvdoctor.report.machine import to_json

        return to_json(report, __version__)
    if format == "html":
        from kvdoctor.report.html import render as page

        return page(report, __version__)
    from kvdoctor.report.text import render

    return render(report, width=common.width(), color=common.colour() and output is None, verbose=verbose)
