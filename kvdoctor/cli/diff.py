"""``kvdoctor diff BEFORE AFTER``: did the change work?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import common, options


def diff(
    before: Annotated[str, typer.Argument(help="Snapshot taken before the change (folder, archive or sample:NAME).")],
    after: Annotated[str, typer.Argument(help="Snapshot taken after it, under the same load.")],
    format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to a file.")] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 whatever the outcome.")] = False,
    what_if: Annotated[
        str, typer.Option("--what-if", help="Replay the load of each side: none, auto or full.")
    ] = "auto",
    rules: options.Rules = None,
    set_: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Say whether a change helped, beyond noise, and what it cost. Exit 1 worse, 3 not comparable, else 0.

    \b
    Example:
      kvdoctor diff before.tar.gz after.tar.gz
    """
    from kvdoctor import __version__
    from kvdoctor.compare import diff as compare
    from kvdoctor.compare import to_dict
    from kvdoctor.pipeline import Options, diagnose
    from kvdoctor.report.diff import render

    if format not in ("text", "json"):
        common.fail(f"--format {format}: choose text or json")
    mode = common.what_if_mode(what_if)
    active, loaded = common.settings(config, rules or (), set_ or ())
    wanted = Options(what_if=mode, config=loaded)
    result = compare(*(diagnose(common.read([path]), active, wanted) for path in (before, after)))
    machine = to_dict(result, __version__)
    if format == "json":
        common.write(json.dumps(machine, indent=2, ensure_ascii=False), output)
    else:
        rows = [(c.name, c.unit, c.before, c.after, c.judged, c.why) for c in result.facts]
        common.write(render(machine, rows), output)
    code = {"worse": 1, "not-comparable": 3}.get(result.verdict, 0)
    raise typer.Exit(0 if exit_zero else code)
