"""``kvdoctor diagnose``: a snapshot, loose files, or this host, to one verdict."""

# annotations are values here, not texts: typer would evaluate each of them twice, three milliseconds in all

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import common


def diagnose(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Snapshot folders or archives, sample:NAME, or loose files; none: this host, live.", show_default=False
        ),
    ] = None,
    url: Annotated[
        list[str] | None, typer.Option("--url", help="Address of a server, or k8s:NS/POD[:PORT]. Repeatable.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", help="FILE, -, journal:UNIT, docker:NAME or k8s:NS/POD[/CONTAINER]. Repeatable."),
    ] = None,
    window: Annotated[
        float, typer.Option("--window", help="Seconds between the first and the last of five scrapes.", min=1, max=3600)
    ] = 10.0,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="HTTP header, e.g. 'Authorization: Bearer ...'. Repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds one request may take.", min=0.1, max=120)] = 5.0,
    prometheus: Annotated[
        str | None,
        typer.Option(
            "--prometheus", help="Address of a Prometheus-compatible server: look into the past of one target."
        ),
    ] = None,
    select: Annotated[str, typer.Option("--select", help='Labels of that target: instance="10.0.0.5:8000".')] = "",
    since: Annotated[str, typer.Option("--since", help="How far back: 30m, 2h, or a time.")] = "10m",
    at: Annotated[
        str | None, typer.Option("--at", help="End of the window (a time or an epoch); now by default.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Keep what was read as a snapshot (.tar.gz).")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Overrule detection of the engine.")] = None,
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
    rules: Annotated[list[Path] | None, typer.Option("--rules", help="Folder with further rules. Repeatable.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a threshold: KV200.near_done_share=0.4. Repeatable.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings file instead of kvdoctor.toml or pyproject.toml.")
    ] = None,
) -> None:
    """Say what is wrong with an inference server, with evidence and what to do.

    \b
    Examples:
      kvdoctor diagnose sample:vllm-saturated
      kvdoctor diagnose logs/ metrics_*.prom
      kvdoctor diagnose --url http://127.0.0.1:8000 --log journal:vllm
    """
    from kvdoctor.engines.base import engines
    from kvdoctor.pipeline import Options, exit_code
    from kvdoctor.pipeline import diagnose as run

    if format not in ("text", "json", "html"):
        common.fail(f"--format {format}: choose text, json or html")
    mode = common.what_if_mode(what_if)
    if engine is not None and engine not in engines():
        common.fail(f"--engine {engine}: choose one of {', '.join(sorted(engines()))}")
    active, loaded = common.settings(config, rules or (), set_ or ())
    level = fail_on or loaded.fail_on or "never"
    if level not in ("critical", "high", "medium", "low", "info", "never"):
        common.fail(f"--fail-on {level}: choose critical, high, medium, low, info or never")
    common.one_source(paths, url, log, prometheus)
    if paths:
        snapshot = common.read(paths)
    elif prometheus is not None:
        from kvdoctor.cli.past import take_past

        snapshot = take_past(prometheus, select, since, at, header or [], max(timeout, 30.0), engine)
    else:
        from kvdoctor.cli.live import take

        snapshot = take(url or [], log or [], window, header or [], timeout, engine)
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
