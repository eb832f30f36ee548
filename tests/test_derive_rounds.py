"""What a log of several engines or ranks says of all of them together."""

from __future__ import annotations

import pytest

from kvdoctor.facts import Fact, Known
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, memory_member

Row = tuple[int, int, float, int, int]
"""Second, engine, generated tokens per second, running, waiting."""


def facts(*files: list[Row]) -> dict[str, Fact]:
    members = tuple(
        memory_member(
            f"engine-{number}.log",
            "".join(
                f"(APIServer pid=1) INFO 09-07 19:{30 + t // 60}:{t % 60:02d} [loggers.py:273] Engine {e:03d}: "
                f"Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: {g} tokens/s, Running: {r} reqs, "
                f"Waiting: {w} reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%\n"
                for t, e, g, r, w in rows
            ).encode(),
        )
        for number, rows in enumerate(files)
    )
    return diagnose(Snapshot(members), ()).main.facts


def number(told: dict[str, Fact], name: str) -> float:
    fact = told[name]
    assert isinstance(fact, Known), fact
    return float(fact.hi)


def steps(engine: int, rates: list[float], waiting: list[int] | None = None, start: int = 0) -> list[Row]:
    return [(start + 10 * i, engine, g, 8, waiting[i] if waiting else 0) for i, g in enumerate(rates)]


def merged(*tracks: list[Row]) -> list[Row]:
    return sorted((row for track in tracks for row in track), key=lambda row: row[0])


def test_all_ranks_fall_together() -> None:
    told = facts(merged(*[steps(e, [400.0, 300.0, 100.0, 40.0], [1, 3, 6, 9]) for e in range(4)]))
    assert number(told, "tok.gen_drop") == pytest.approx(0.9)
    assert number(told, "req.waiting_growth") == 32
    assert number(told, "work.concurrency_max") == 4 * (8 + 9)


def test_load_that_moves_from_one_rank_to_the_other_is_no_fall() -> None:
    told = facts(merged(steps(0, [400.0, 300.0, 100.0, 0.0]), steps(1, [0.0, 100.0, 300.0, 400.0])))
    assert number(told, "tok.gen_drop") == pytest.approx(0.0)


def test_a_rank_that_speaks_less_often_stands_with_what_it_said_last() -> None:
    slow = [(0, 1, 100.0, 8, 0), (30, 1, 100.0, 8, 0)]
    told = facts(merged(steps(0, [400.0, 400.0, 400.0, 200.0, 200.0]), slow))
    assert number(told, "tok.gen_drop") == pytest.approx(1 - 300 / 500)


def test_a_rank_that_fell_silent_generates_nothing() -> None:
    told = facts(merged(steps(0, [400.0] * 12), steps(1, [400.0] * 3)))
    assert number(told, "tok.gen_drop") == pytest.approx(0.5)


def test_nothing_runs_on_any_rank_at_the_end() -> None:
    over = [(40, e, 0.0, 0, 0) for e in range(2)]
    told = facts(merged(steps(0, [400.0] * 4), steps(1, [400.0] * 4), over))
    assert number(told, "tok.gen_drop") == pytest.approx(0.0)
