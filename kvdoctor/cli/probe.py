"""``kvdoctor probe``: wiring only. Exit codes: 0 every step ran (or a dry run), 2 usage, 3 nothing or not all
measured.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def probe(
    device: Annotated[
        str | None,
        typer.Option(
            help="Index, GPU UUID or MIG UUID; default: the first of CUDA_VISIBLE_DEVICES, else 0.", show_default=False
        ),
    ] = None,
    block: Annotated[
        list[int] | None, typer.Option(help="Another block size to fit, in MiB (repeatable).", metavar="MIB")
    ] = None,
    reserve: Annotated[
        int | None,
        typer.Option(
            help="MiB that stay free at every moment; default: the larger of 2048 and 10 % of the device.",
            metavar="MIB",
            show_default=False,
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds after which the probe stops.")] = 60.0,
    allocator_conf: Annotated[
        list[str] | None,
        typer.Option(help="Allocator settings to replay with, as in PYTORCH_ALLOC_CONF (repeatable).", metavar="CONF"),
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(help="contiguous, paged or tiered (repeatable); default: all three.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run without asking.")] = False,
    output: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Measure the fragmentation of a device and of torch's allocator, beside a live server, within guards."""
    from kvdoctor.probe.driver import MIB, TorchDriver
    from kvdoctor.probe.plan import PATTERNS, Options
    from kvdoctor.probe.run import die_with_parent, run
    from kvdoctor.probe.text import render_plan, render_result

    chosen = tuple(name for name in PATTERNS if pattern is None or name in pattern)
    unknown = sorted(set(pattern if pattern is not None else ()) - set(PATTERNS))
    try:
        if unknown:
            raise ValueError(f"unknown pattern {unknown[0]!r}: contiguous, paged or tiered")
        if output not in ("text", "json"):
            raise ValueError(f"unknown format {output!r}: text or json")
        options = Options(
            block_bytes=tuple(size * MIB for size in block) if block is not None else (),
            reserve=reserve * MIB if reserve is not None else None,
            time_limit_s=time_limit,
            settings=tuple(allocator_conf) if allocator_conf else ("",),
            patterns=chosen,
        )
    except ValueError as error:
        typer.echo(f"kvdoctor probe: {error}", err=True)
        raise typer.Exit(2) from error
    die_with_parent()
    driver = TorchDriver(device)
    planned = run(driver, options, dry_run=True)
    refused = planned["stopped"] is not None
    # with JSON on standard output the plan a person reads goes to standard error
    if output == "text" or not (refused or dry_run):
        typer.echo(render_plan(planned), err=output == "json")
    result = planned
    if not refused and not dry_run:
        if not yes:
            if not sys.stdin.isatty():
                typer.echo(
                    "kvdoctor probe: nothing was run: add --yes to run this plan, or --dry-run to only print it",
                    err=True,
                )
                raise typer.Exit(2)
            typer.confirm("Run this plan on the device?", abort=True, err=True)
        result = run(driver, options)
    if output == "json":
        typer.echo(json.dumps(result, indent=2))
    else:
        text = render_result(result)
        if text:
            typer.echo(text)
        if result["stopped"] is not None:
            typer.echo(result["stopped"])
    if result["stopped"] is not None:
        raise typer.Exit(3)
