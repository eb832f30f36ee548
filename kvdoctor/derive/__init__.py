"""From readings to facts: the numbers rules are written in, each with unit, span, provenance and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvdoctor.derive import (
    faults,
    latency,
    liveness,
    load,
    memory,
    model,
    prefill,
    runners,
    shape,
    spread,
    stages,
    victims,
    work,
)
from kvdoctor.derive import group as _group
from kvdoctor.derive import host as _host
from kvdoctor.derive.view import View
from kvdoctor.facts import FactSet
from kvdoctor.readings import Intake


@dataclass(slots=True)
class Derived:
    """Every target's view with its facts filled in, and the facts of the group (None with a single run)."""

    views: list[View]
    group: FactSet | None


def derive(intake: Intake) -> Derived:
    """Fill the facts of every target and, where there are several runs or a benchmark, of the group."""
    views = [View(target) for target in intake.targets]
    for view in views:
        load.add(view)
        victims.add(view)
        latency.add(view)
        work.add(view)
        load.headroom(view)
        prefill.add(view)
        memory.add(view, intake.host)
        _host.add(view, intake.host)
        faults.add(view, intake.host)
        runners.add(view, intake.host)
        spread.add(view)
        shape.add(view)
        liveness.add(view, intake.host)
        memory.no_device(view)
        model.add(view)
        stages.add(view, intake.host)
        load.pressure(view)
        view.hint_bounds()
    memory.peers_starting(views, intake.host)
    group: FactSet | None = None
    if len(views) > 1 or intake.bench:
        group = FactSet()
        _group.add(group, views, intake.bench)
    return Derived(views, group)


def with_facts(values: Mapping[str, object]) -> FactSet:
    """A fact set from ready facts (tests, the fleet, what-if)."""
    facts = FactSet()
    for name, value in values.items():
        facts.set(name, value)  # type: ignore[arg-type]
    return facts
