"""``kvdoctor export alerts|dashboard``: Prometheus rules and a Grafana dashboard from the same rules. Wiring only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdoctor.cli import common

if TYPE_CHECKING:
    from kvdoctor.export.promql import Templates

app = typer.Typer(
    help="Prometheus alerts and a Grafana dashboard for an engine, made from the same rules.", no_args_is_help=True
)

_Engine = Annotated[str, typer.Option("--engine", help="vllm, sglang, tensorrt-llm, tgi, llamacpp or lmdeploy.")]
_Version = Annotated[
    str | None,
    typer.Option(
        "--engine-version", help="Its version, such as 0.11.2; default: the newest names.", show_default=False
    ),
]
_Select = Annotated[
    str,
    typer.Option(
        "--select", help='Labels every series must have, such as job="vllm",namespace="prod".', metavar="LABELS"
    ),
]
_Rules = Annotated[list[Path] | None, typer.Option("--rules", help="Folder with further rules. Repeatable.")]
_Config = Annotated[Path | None, typer.Option("--config", help="Settings file, for changed thresholds.")]
_Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")]


@app.command()
def alerts(
    engine: _Engine,
    engine_version: _Version = None,
    select: _Select = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="NAME=VALUE on every alert; with --crd on the resource, for the operator's selector. Repeatable.",
        ),
    ] = None,
    pages: Annotated[
        str | None,
        typer.Option(
            "--pages",
            metavar="URL",
            help="Where you serve docs/rules of this project; every alert's runbook_url begins with it. Default: the path.",
            show_default=False,
        ),
    ] = None,
    crd: Annotated[bool, typer.Option("--crd", help="A PrometheusRule for the Prometheus operator.")] = False,
    rules: _Rules = None,
    config: _Config = None,
    output: _Output = None,
    tests: Annotated[
        Path | None, typer.Option("--tests", help="Also write a promtool unit test of the rules (needs --output).")
    ] = None,
) -> None:
    """Recording and alerting rules; at their head, every rule that is no alert and why not."""
    from kvdoctor.export.alerts import PAGES, ExportError, build, rule_file
    from kvdoctor.export.promtest import promtest_file

    templates = _templates(engine, engine_version, select)
    labels: dict[str, str] = {}
    for pair in label or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            common.fail(f"--label {pair!r}: NAME=VALUE is wanted")
        labels[name] = value
    if tests is not None and (output is None or crd):
        common.fail("--tests needs --output FILE and goes without --crd: promtool reads plain rule files")
    active, _ = common.settings(config, rules or (), ())
    made = build(active, templates, pages or PAGES)
    try:
        text = rule_file(made, labels, crd=crd)
    except ExportError as error:
        common.fail(str(error))
    common.write(text, output)
    if tests is not None and output is not None:
        common.write(promtest_file(made, os.path.relpath(output, tests.parent), labels), tests)


@app.command()
def dashboard(
    engine: _Engine,
    engine_version: _Version = None,
    select: _Select = "",
    rules: _Rules = None,
    config: _Config = None,
    output: _Output = None,
) -> None:
    """A Grafana dashboard: pressure, victims, recompute, latency with its stalls, memory, engines side by side."""
    from kvdoctor.export.dashboard import dashboard_text

    templates = _templates(engine, engine_version, select)
    active, _ = common.settings(config, rules or (), ())
    common.write(dashboard_text(templates, active), output)


def _templates(engine: str, version: str | None, select: str) -> Templates:
    from kvdoctor.engines.base import engines
    from kvdoctor.export.promql import SelectError, Templates, check_version, matchers

    able = {name: table for name, table in engines().items() if table.promql}
    if engine not in able:
        common.fail(f"--engine {engine}: nothing can be exported for it; one of {', '.join(sorted(able))} is wanted")
    try:
        check_version(able[engine], version)
        return Templates(able[engine], version, select=matchers(select))
    except SelectError as error:
        common.fail(str(error))
