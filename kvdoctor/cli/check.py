"""``kvdoctor check PATH...``: the same diagnosis for CI, several snapshots side by side."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import common, options

_FORMATS = ("text", "json", "junit", "github", "markdown", "textfile")


def check(
    paths: Annotated[
        list[str],
        typer.Argument(help="Snapshots: folders, archives, sample:NAME, - for standard input. One result each."),
    ],
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            help="Exit 1 at this severity or above: critical, high, medium, low, info, never.  [default: high]",
            show_default=False,
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="text, json, junit, github, markdown or textfile.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to a file.")] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Accepted findings, each with a reason and an end (TOML).")
    ] = None,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Suspected rules do not give exit code 3.")
    ] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 whatever was found.")] = False,
    engine: options.EngineName = None,
    rules: options.Rules = None,
    set_: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Judge captured snapshots in CI. Unknown is skipped, never passed. Exit 0 clean, 1 a finding, 2 error, 3 could not tell.

    \b
    Example:
      kvdoctor check snapshots/* --fail-on high --format junit -o kvdoctor.xml
    """
    from datetime import UTC, datetime

    from kvdoctor import __version__
    from kvdoctor.pipeline import Options, diagnose, exit_code
    from kvdoctor.report import ci
    from kvdoctor.report.machine import to_dict
    from kvdoctor.rulebook.baseline import Baseline, read_baseline
    from kvdoctor.rulebook.config import ConfigError
    from kvdoctor.snapshot import SnapshotError

    if format not in _FORMATS:
        common.fail(f"--format {format}: choose one of {', '.join(_FORMATS)}")
    active, loaded = common.settings(config, rules or (), set_ or ())
    level = fail_on or loaded.fail_on or "high"
    if level not in ("critical", "high", "medium", "low", "info", "never"):
        common.fail(f"--fail-on {level}: choose critical, high, medium, low, info or never")
    accepted = Baseline()
    if baseline is not None:
        try:
            accepted = read_baseline(
                common.bytes_of(baseline).decode(), str(baseline), active, datetime.now(UTC).date()
            )
        except (OSError, UnicodeDecodeError) as error:
            common.fail(f"--baseline {baseline} cannot be read: {error}")
        except ConfigError as error:
            common.fail(str(error))
        for warning in accepted.warnings:
            sys.stderr.write(f"kvdoctor: {warning}\n")
    items: list[ci.Checked] = []
    machine: list[object] = []
    for path in paths:
        name = path.rstrip("/")
        try:
            snapshot = common.open_one(path)
        except SnapshotError as error:
            items.append(ci.Checked(name, None, 2, str(error)))
            continue
        report = diagnose(snapshot, active, Options(engine=engine, what_if="none", config=loaded))
        known = accepted.for_snapshot(os.path.basename(name))
        code = exit_code(report, level, check=True, allow_unknown=allow_unknown, accepted={rule for rule, _ in known})
        items.append(ci.Checked(name, report, code, "", known))
        if format == "json":
            machine.append(
                {
                    "snapshot": name,
                    "exit_code": code,
                    "accepted": [r for r, _ in known],
                    "report": to_dict(report, __version__),
                }
            )
    if format == "json":
        errors = [{"snapshot": i.name, "exit_code": 2, "error": i.error} for i in items if i.report is None]
        body = json.dumps({"schema": "kvdoctor.check/1", "results": machine + errors}, indent=1, ensure_ascii=False)
    elif format == "textfile":
        body = ci.textfile(items, time.time())
    else:
        body = {"text": ci.text, "junit": ci.junit, "github": ci.github, "markdown": ci.markdown}[format](items)
    if body:
        common.write(body, output)
    codes = {item.code for item in items}
    worst = next((c for c in (2, 1, 3) if c in codes), 0)
    raise typer.Exit(0 if exit_zero else worst)
