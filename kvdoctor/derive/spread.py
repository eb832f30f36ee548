"""How evenly load and memory lie over the engines of one server."""

from __future__ import annotations

import math

from kvdoctor.derive.view import View
from kvdoctor.facts import Unknown, measured


def add(view: View) -> None:
    """Derive ``spread.running_ratio`` and ``spread.usage_gap`` over the engines of one server."""
    ranks = [r for r in view.rank_names if "req.running_max" in view.rank(r)]
    running = {r: v for r in ranks if (v := view.rank(r).number("req.running_max")) is not None}
    load = {
        r: v + (w if (w := view.rank(r).number("req.waiting_max")) is not None else 0.0) for r, v in running.items()
    }
    if len(running) > 1:
        mean = math.fsum(load.values()) / len(load)
        top = max(load, key=lambda r: load[r])
        if mean > 0:
            view.facts.set(
                "spread.running_ratio",
                measured(load[top] / mean, "w", f"running + waiting per engine, largest engine {top}"),
            )
    elif ranks:
        view.facts.set("spread.running_ratio", Unknown("one engine only: there is nothing to compare"))
    usage = {r: v for r in view.rank_names if (v := view.rank(r).number("kv.usage_max")) is not None}
    if len(usage) > 1:
        top, low = max(usage, key=lambda r: usage[r]), min(usage, key=lambda r: usage[r])
        view.facts.set("spread.usage_gap", measured(usage[top] - usage[low], "w", f"engine {top} against engine {low}"))
    elif usage:
        view.facts.set("spread.usage_gap", Unknown("one engine only: there is nothing to compare"))
