"""``kvdoctor demo``: an embedded engine to try everything without a GPU."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kvdoctor.cli import common


def demo(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="healthy, fragmentation-oom, near-completion-victims, missing-cooldown, recompute-overload, "
            "policy-not-capacity, load-imbalance or restart; none: list them.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Server log; a GPU reading is written beside it.", show_default=False),
    ] = None,
    speed: Annotated[float, typer.Option("--speed", help="Simulated seconds per second.", min=0.01, max=1000)] = 1.0,
    duration: Annotated[
        float | None, typer.Option("--duration", help="Stop after so many seconds.", show_default=False)
    ] = None,
) -> None:
    """Play an inference server: /metrics in vLLM's names, a log, a GPU reading. Ends with Ctrl-C or --duration.

    \b
    Examples:
      kvdoctor demo recompute-overload --port 8000 --log /tmp/demo.log
      kvdoctor diagnose --url http://127.0.0.1:8000 --log /tmp/demo.log   # in another terminal
    """
    from kvdoctor.demo import SCENARIOS, DemoServer
    from kvdoctor.facts import suggest

    if scenario is None:
        wide = max(len(name) for name in SCENARIOS)
        common.write("\n".join(f"{one.name:{wide}}  {one.shows}" for one in SCENARIOS.values()), None)
        return
    if scenario not in SCENARIOS:
        near = suggest(scenario, SCENARIOS)
        common.fail(
            f"there is no scenario {scenario}; " + (f"did you mean {near[0]}?" if near else "see: kvdoctor demo")
        )
    if duration is not None and not duration > 0:
        common.fail(f"--duration {duration:g}: seconds above 0")
    try:
        server = DemoServer(SCENARIOS[scenario], port=port, log=log, speed=speed)
    except OSError as error:
        common.fail(f"cannot serve: {error.strerror or error}")
    server.start()
    address = f"http://127.0.0.1:{server.port}"
    words = [f"{SCENARIOS[scenario].name}: {SCENARIOS[scenario].shows}", f"serving {address}"]
    if log is not None:
        words += [f"log {log}", f"GPU reading {server.gpu_path}"]
    words.append(f"try: kvdoctor diagnose --url {address}" + (f" --log {log}" if log is not None else ""))
    sys.stdout.write("\n".join(words) + "\n")
    sys.stdout.flush()
    until = None if duration is None else time.monotonic() + duration
    try:
        while until is None or time.monotonic() < until:
            time.sleep(0.2 if until is None else max(0.0, min(0.2, until - time.monotonic())))
    except KeyboardInterrupt:
        sys.stderr.write("kvdoctor: demo ended\n")
    finally:
        server.close()
