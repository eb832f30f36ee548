"""Effect and cost of a lever are those of the direction it is turned in, and values are ones a person can type."""

from __future__ import annotations

import pytest
from rulebook_helpers import facts

from kvdoctor.advise import Setting, action
from kvdoctor.advise.ways import WAYS, way
from kvdoctor.engines.base import engines
from kvdoctor.facts import LEVERS, FactSet, Known
from kvdoctor.findings import Action, Turn

GIB = 2.0**30
SERVERS = sorted(name for name, engine in engines().items() if not engine.side)


def turned(
    engine: str, lever: str, direction: str, to: float | None = None, unit: str = "", seen: FactSet | None = None
) -> Action:
    goal = None if to is None else Known(to, to, "estimated", "c", "here")
    setting = Setting(engines()[engine], None, {}, seen if seen is not None else facts({}))
    return action(Turn(lever, direction, goal, unit, "why"), (), setting)


@pytest.mark.parametrize("engine", SERVERS)
def test_a_raised_limit_of_running_requests_is_not_told_as_a_lowered_one(engine: str) -> None:
    raised, lowered = turned(engine, "sched.max_running", "up"), turned(engine, "sched.max_running", "down")
    assert "fewer wait" in raised.effect
    assert "Each step takes longer" in raised.cost
    assert "wait" not in raised.cost
    assert lowered.effect != raised.effect


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy"])
def test_a_lowered_share_costs_pool_and_a_raised_one_room_for_activations(engine: str) -> None:
    lowered, raised = turned(engine, "kv.pool_share", "down"), turned(engine, "kv.pool_share", "up")
    assert lowered.cost == "A smaller pool: fewer tokens fit at once."
    assert lowered.next_limit == "pool size"
    assert "activations" in raised.cost
    assert "activations" not in lowered.cost


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy"])
def test_a_longer_context_is_not_told_as_a_shorter_one(engine: str) -> None:
    assert turned(engine, "mem.max_model_len", "up").effect == "Longer requests are accepted."
    assert "refused" not in turned(engine, "mem.max_model_len", "up").cost


def test_only_levers_and_directions_that_exist_have_words() -> None:
    assert {lever for lever, _ in WAYS} <= set(LEVERS)
    entry = next(e for e in engines()["llamacpp"].levers if e.margin)
    assert way(entry, "down").effect == entry.effect


@pytest.mark.parametrize(
    ("to", "direction", "unit", "shown"),
    [
        (0.999049, "down", "1", "about 0.99"),
        (0.854321, "down", "1", "about 0.85"),
        (2185702.4, "up", "tok", "about 2185703"),
        (11.2, "down", "count", "about 11"),
        (0.0123456, "up", "s", "about 0.0123"),
    ],
)
def test_values_have_the_digits_a_person_types(to: float, direction: str, unit: str, shown: str) -> None:
    assert turned("vllm", "kv.pool_share" if unit == "1" else "sched.max_running", direction, to, unit).to == shown


def test_a_share_of_next_to_nothing_is_no_advice() -> None:
    act = turned("vllm", "kv.pool_share", "down", 0.0016, "1")
    assert act.to is None
    assert "no value of it helps alone" in act.effect


def test_a_share_of_free_memory_gets_no_target_reckoned_from_the_device() -> None:
    seen = facts({"oom.count": 1, "mem.total": 80 * GIB})
    assert turned("tensorrt-llm", "kv.pool_share", "down", 0.83, "1", seen).to is None
    assert turned("vllm", "kv.pool_share", "down", 0.83, "1", seen).to == "about 0.83"
