"""The application: every command, grouped as people look for them. A command's module is imported when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Diagnose": {
        "diagnose": "Say what is wrong with an inference server, and what to do.",
        "watch": "Watch a server: verdict, pool, queue, preemptions, latency.",
        "capture": "Write what a diagnosis needs, without prompts, keys and names.",
        "check": "Judge captured snapshots in CI.",
        "diff": "Say whether a change helped, beyond noise, and what it cost.",
    },
    "Plan": {
        "simulate": "Replay a load under other policies, pools and GPUs.",
        "size": "Size the KV cache: bytes per token, tokens, requests at once.",
        "probe": "Measure the fragmentation of a device, within guards.",
    },
    "Operate": {
        "export": "Prometheus alerts and a Grafana dashboard for an engine.",
        "lint": "Find metrics that were renamed or mean something else.",
    },
    "Learn": {
        "rules": "The rule catalogue, and a lint for your own rules.",
        "explain": "Say what a verdict, fact, flag, metric or log line means.",
        "doctor": "Say what kvdoctor can see on this host, and what it lacks.",
        "demo": "Play an inference server that runs into trouble.",
    },
}
"""Heading -> command -> what it is for, in one line of the overview; the command's own docstring says it in full."""


class _Commands(MutableMapping[str, Any]):
    """Click commands by name: a function of its own name in ``kvdoctor.cli.NAME``, or a group there called ``app``."""

    def __init__(self) -> None:
        self._purpose = {name: text for names in GROUPS.values() for name, text in names.items()}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._purpose[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._purpose[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._purpose)

    def __len__(self) -> int:
        return len(self._purpose)

    def __contains__(self, name: object) -> bool:
        return name in self._purpose


def _load(name: str, purpose: str) -> Any:
    from typer.main import get_command_from_info, get_group_from_info
    from typer.models import CommandInfo, TyperInfo

    module = importlib.import_module(f"kvdoctor.cli.{name}")
    group = getattr(module, "app", None)
    if isinstance(group, typer.Typer):
        return get_group_from_info(
            TyperInfo(group, name=name, short_help=purpose),
            pretty_exceptions_short=False,
            suggest_commands=True,
            rich_markup_mode=None,
        )
    return get_command_from_info(
        CommandInfo(name=name, callback=getattr(module, name), short_help=purpose),
        pretty_exceptions_short=False,
        rich_markup_mode=None,
    )


class _Grouped(TyperGroup):
    """Lists the commands under the headings people look for, without loading any of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section per group."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))


app = typer.Typer(
    cls=_Grouped,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Tells what is really wrong when an LLM inference server runs out of GPU memory.",
    epilog="\b\nStart with:\n  kvdoctor diagnose                        the servers of this host\n"
    "  kvdoctor diagnose sample:vllm-saturated  a recorded one",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from kvdoctor import __version__
        from kvdoctor.cli.doctor import newest_versions

        told = ", ".join(f"{name} {newest}" for name, newest in newest_versions().items() if newest)
        typer.echo(f"kvdoctor {__version__}\nengine tables up to: {told}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
