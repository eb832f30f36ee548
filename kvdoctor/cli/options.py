"""Options that several commands have, each declared once: the same name, the same words, the same limits everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[list[str] | None, typer.Option("--url", help="Address of a server, or k8s:NS/POD[:PORT]. Repeatable.")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="FILE, -, journal:UNIT, docker:NAME or k8s:NS/POD[/CONTAINER]. Repeatable."),
]
Window = Annotated[
    float, typer.Option("--window", help="Seconds between the first and the last of five scrapes.", min=1, max=3600)
]
Header = Annotated[
    list[str] | None, typer.Option("--header", help="HTTP header, e.g. 'Authorization: Bearer ...'. Repeatable.")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds one request may take.", min=0.1, max=120)]
Prometheus = Annotated[
    str | None,
    typer.Option("--prometheus", help="Address of a Prometheus-compatible server: look into the past of one target."),
]
Select = Annotated[str, typer.Option("--select", help='Labels of that target: instance="10.0.0.5:8000".')]
Since = Annotated[str, typer.Option("--since", help="How far back: 30m, 2h, or a time.")]
At = Annotated[str | None, typer.Option("--at", help="End of the window (a time or an epoch); now by default.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Overrule detection of the engine.")]
Rules = Annotated[list[Path] | None, typer.Option("--rules", help="Folder with further rules. Repeatable.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Change a threshold: KV200.near_done_share=0.4. Repeatable.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Settings file instead of kvdoctor.toml or pyproject.toml.")
]
