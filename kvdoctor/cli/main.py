"""The application: every command, grouped as people look for them."""

from __future__ import annotations

from typing import Annotated

import typer

from kvdoctor.cli import capture as capture_command
from kvdoctor.cli import check as check_command
from kvdoctor.cli import diagnose as diagnose_command
from kvdoctor.cli import diff as diff_command
from kvdoctor.cli import doctor as doctor_command
from kvdoctor.cli import explain as explain_command
from kvdoctor.cli import probe as probe_command
from kvdoctor.cli import rules as rules_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Tells what is really wrong when an LLM inference server runs out of GPU memory.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from kvdoctor import __version__

        typer.echo(f"kvdoctor {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("diagnose")(diagnose_command.diagnose)
app.command("capture")(capture_command.capture)
app.command("check")(check_command.check)
app.command("diff")(diff_command.diff)
app.add_typer(rules_command.app, name="rules")
app.command("explain")(explain_command.explain)
app.command("doctor")(doctor_command.doctor)
app.command("probe")(probe_command.probe)
