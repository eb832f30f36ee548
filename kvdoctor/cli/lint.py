"""``kvdoctor lint FILE...``: the user's own dashboards and alert files against an engine's real metrics. Wiring only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import common


def lint(
    files: Annotated[
        list[str],
        typer.Argument(help="Grafana dashboards (JSON), rule files or PrometheusRules (YAML); - is standard input."),
    ],
    engine: Annotated[
        str | None, typer.Option("--engine", help="The engine whose --engine-version is given.", show_default=False)
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", help="Its version; default: the newest.", show_default=False)
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option("--fail-on", help="Exit 1 at this severity or above: critical, high, medium, low, info, never."),
    ] = "medium",
    form: Annotated[str, typer.Option("--format", help="text, json, sarif or github.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")
    ] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 whatever is found.")] = False,
) -> None:
    """Find metrics that were renamed, removed or mean something else, and comparisons that mislead."""
    from kvdoctor import __version__
    from kvdoctor.engines.base import engines, version_key
    from kvdoctor.export.catalogue import tables
    from kvdoctor.export.lint import lint as judge
    from kvdoctor.export.lint_text import FORMATS, exit_code, render
    from kvdoctor.findings import SEVERITIES

    if form not in FORMATS:
        common.fail(f"--format {form}: one of {', '.join(FORMATS)} is wanted")
    if fail_on not in (*SEVERITIES, "never"):
        common.fail(f"--fail-on {fail_on}: one of {', '.join(SEVERITIES)}, never is wanted")
    if engine is not None and engine not in tables():
        common.fail(f"--engine {engine}: one of {', '.join(sorted(tables()))} is wanted")
    if engine_version is not None:
        if engine is None:
            common.fail("--engine-version needs --engine: a version says nothing without its engine")
        if version_key(engine_version) is None:
            title = engines()[engine].title if engine in engines() else engine
            common.fail(f"--engine-version {engine_version}: that is no version of {title}, such as 0.11.2")
    texts: list[tuple[str, str]] = []
    for file in files:
        try:
            data = sys.stdin.buffer.read(common.MAX_TEXT + 1) if file == "-" else common.bytes_of(Path(file))
        except OSError as error:
            common.fail(f"{file}: {error.strerror}")
        texts.append(("standard input" if file == "-" else file, data.decode("utf-8", "replace")))
    result = judge(texts, engine=engine, version=engine_version)
    common.write(render(result, form, version=__version__), output)
    code = exit_code(result, fail_on)
    if code and not exit_zero:
        raise typer.Exit(code)
