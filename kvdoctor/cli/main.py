"""The application: every command, grouped as people look for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

GROUPS: dict[str, tuple[str, ...]] = {
    "Diagnose": ("diagnose", "watch", "capture", "check", "diff"),
    "Plan": ("simulate", "size", "probe"),
    "Operate": ("export", "lint"),
    "Learn": ("rules", "explain", "doctor", "demo"),
}


class _Grouped(TyperGroup):
    """Lists the commands under the headings people look for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands in the order of their groups."""
        return [name for names in GROUPS.values() for name in names if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section per group."""
        for title, names in GROUPS.items():
            rows = [(name, self.commands[name].get_short_help_str(66)) for name in names if name in self.commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    cls=_Grouped,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Tells what is really wrong when an LLM inference server runs out of GPU memory.",
    epilog="Start with: kvdoctor diagnose (this host) or kvdoctor diagnose sample:vllm-saturated",
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


def _register() -> None:
    """A command is a function of its own name in ``kvdoctor.cli.NAME``; a module with ``app`` is a group of commands."""
    for names in GROUPS.values():
        for name in names:
            module = importlib.import_module(f"kvdoctor.cli.{name}")
            group = getattr(module, "app", None)
            if isinstance(group, typer.Typer):
                app.add_typer(group, name=name)
                continue
            command: Callable[..., None] = getattr(module, name)
            app.command(name)(command)


_register()
