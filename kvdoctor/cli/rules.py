"""``kvdoctor rules list|show|test`` and ``kvdoctor explain``: the rule catalogue and its pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import EXIT_USAGE, common, options

app = typer.Typer(
    help="The rule catalogue: what each verdict means, and a lint for your own rules.", no_args_is_help=True
)


@app.command("list")
def list_(
    rules: options.Rules = None,
) -> None:
    """One line per rule: ID, name, severity, stage, title."""
    active, _ = common.settings(None, rules or (), ())
    wide = max(len(rule.name) for rule in active)
    common.write(
        "\n".join(f"{r.id:6} {r.name:{wide}}  {r.severity:8}  {r.title}" for r in sorted(active, key=lambda r: r.id)),
        None,
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name or ID of a rule.")],
    rules: options.Rules = None,
) -> None:
    """The page of one rule: what it means, what it is not, thresholds with their reasons, fix, proof."""
    from kvdoctor.facts import suggest
    from kvdoctor.report.rulepage import page

    active, _ = common.settings(None, rules or (), ())
    found = [r for r in active if name.lower() in (r.id.lower(), r.name)]
    if not found:
        near = suggest(name, [x for r in active for x in (r.id, r.name)])
        common.fail(
            f"there is no rule {name}"
            + (f"; did you mean {', '.join(near)}?" if near else "; see: kvdoctor rules list")
        )
    common.write(page(found[0]), None)


@app.command()
def test(paths: Annotated[list[Path], typer.Argument(help="Rule files or folders.")]) -> None:
    """Lint your own rules as strictly as the shipped ones, and run their examples. Exit 2 when a rule is bad."""
    from kvdoctor.rulebook.lint import lint

    files: list[Path] = []
    for path in paths:
        if not path.exists():
            common.fail(f"{path} does not exist")
        files.extend(sorted(path.glob("*.toml")) if path.is_dir() else [path])
    if not files:
        common.fail(f"no .toml file in {', '.join(str(p) for p in paths)}")
    problems = lint(files)
    for problem in problems:
        common.emit(f"{problem}\n")
    if problems:
        raise typer.Exit(EXIT_USAGE)
    common.emit(f"{len(files)} rule file(s), no problem\n")
