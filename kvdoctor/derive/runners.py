"""What a log says of the model's runner: how often it was loaded, how much of the model lies on a device, lost states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdoctor.facts import Unknown, measured

if TYPE_CHECKING:
    from kvdoctor.derive.view import View
    from kvdoctor.parse.serverlog import LogEvent
    from kvdoctor.readings import LogRun

IDLE_S = 300.0
"""So long without a request an unused model is kept by default: a load after it belongs to the pause, not to the requests."""


def add(view: View) -> None:
    """Derive ``model.*``."""
    _loads(view)


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


def _after_pause(run: LogRun, load: LogEvent) -> bool:
    """Nothing was asked for so long before it that the model had expired."""
    before = [
        e.time for e in run.events if e.line < load.line and e.event in ("request_out", "ready") and e.time is not None
    ]
    if load.time is None or not before:
        return False
    return load.time - (load.number("seconds") or 0.0) - max(before) >= IDLE_S
