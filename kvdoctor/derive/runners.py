"""What a log says of the model's runner: how often it was loaded, how much of the model lies on a device, lost states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvdoctor.facts import Unknown, measured

if TYPE_CHECKING:
    from kvdoctor.derive.view import View
    from kvdoctor.parse.serverlog import LogEvent
    from kvdoctor.readings import HostReadings, LogRun

IDLE_S = 300.0
"""So long without a request an unused model is kept by default: a load after it belongs to the pause, not to the requests."""


def add(view: View, host: HostReadings) -> None:
    """Derive ``model.*`` and ``prefix.states_lost``."""
    _loads(view)
    _placed(view, host)
    _states(view)


def _loads(view: View) -> None:
    """A load is told twice, when it is decided and when the runner is ready; some versions print only one of the two."""
    decided = view.target.events("model_load")
    ready = [(run, event) for run, event in view.target.events("ready") if event.text("what") == "runner"]
    told = max(decided, ready, key=len)
    loads = told[:1] + [(run, event) for run, event in told[1:] if not _after_pause(run, event)]
    if not loads:
        return
    asked = [e for _, e in view.target.events("request_in")] or [e for _, e in view.target.events("request_out")]
    source = loads[0][0].source(loads[0][1])
    _names(view)
    requests = float(sum(e.repeat for e in asked)) if asked else None
    view.facts.set("model.loads", measured(float(len(loads)), "w", source, events=float(len(loads))))
    if requests:
        view.facts.set(
            "model.loads_per_request",
            measured(len(loads) / requests, "w", source, events=float(len(loads)), requests=requests),
        )
    else:
        view.facts.set(
            "model.loads_per_request", Unknown("requests are not in the log", "give the log with its request lines")
        )


def _names(view: View) -> None:
    """How many different models the runners were started with."""
    engine = view.target.engine
    if engine is None:
        return
    found: list[tuple[str, str]] = []
    for run, event in view.target.events("args", "model_load"):
        settings = event.fields.get("settings")
        args = settings if isinstance(settings, Mapping) else engine.parse_args(event.text("text") or "")
        if name := event.text("model") or args.get("model"):
            found.append((str(name), run.source(event)))
    if found:
        count = float(len({name for name, _ in found}))
        view.facts.set("model.loaded_names", measured(count, "w", found[0][1]))


def _after_pause(run: LogRun, load: LogEvent) -> bool:
    """Nothing was asked for so long before it that the model had expired."""
    before = [
        e.time for e in run.events if e.line < load.line and e.event in ("request_out", "ready") and e.time is not None
    ]
    if load.time is None or not before:
        return False
    return load.time - (load.number("seconds") or 0.0) - max(before) >= IDLE_S


def _placed(view: View, host: HostReadings) -> None:
    """How much of the model lies on a device, as the last load or the list of running models says.

    A machine without a device loads every layer on the CPU as well, and there that is no fault.
    """
    phases = view.target.events("phase")
    layers = [
        (run, event, share)
        for run, event in [*phases, *view.target.events("memory")]
        if (share := _layers(event)) is not None
    ]
    listed = [
        (run, event, 1.0 - on_cpu)
        for run, event in phases
        if event.text("what") == "placed" and (on_cpu := event.number("cpu")) is not None
    ]
    if not layers and not listed:
        return
    run, event, share = layers[-1] if layers else min(listed, key=lambda row: row[2])
    if share == 0 and not _has_device(view, host):
        view.facts.set(
            "model.device_share",
            Unknown("no layer is on a device, and nothing shows that there is one", "add the output of nvidia-smi"),
        )
        return
    view.facts.set("model.device_share", measured(share, "s", run.source(event)))


def _layers(event: LogEvent) -> float | None:
    every, some = event.number("layers_all"), event.number("layers")
    return some / every if every and some is not None else None


def _has_device(view: View, host: HostReadings) -> bool:
    """llama.cpp counts layers only where it sees a device; ollama counts them everywhere and lists its devices at start."""
    if any(timed.value.readings for timed in host.gpu):
        return True
    if view.target.engine is not None and view.target.engine.name == "llamacpp":
        return True
    return any(e.text("what") == "device" and e.text("library") != "cpu" for _, e in view.target.events("phase"))


def _states(view: View) -> None:
    lost = [(run, event) for run, event in view.target.events("phase") if event.text("what") == "state lost"]
    if not lost:
        return
    source = lost[0][0].source(lost[0][1])
    count = float(len({event.text("id") for _, event in lost}))
    view.facts.set("prefix.states_lost", measured(count, "w", source, events=count))
    asked = {e.text("id") for _, e in view.target.events("request_in", "request_out") if e.text("id") is not None}
    asked |= {event.text("id") for _, event in lost}
    view.facts.set(
        "prefix.states_lost_share", measured(count / len(asked), "w", source, events=count, requests=float(len(asked)))
    )
