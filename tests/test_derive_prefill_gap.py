"""What prefill does to requests that already answer, from stats lines alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kvdoctor.facts import Fact, Known
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, memory_member

Row = tuple[float, float, int, int, float]
"""Prompt tokens per second, generated tokens per second, running, waiting, usage in percent."""

QUIET: list[Row] = [(0.0, 29.0, 1, 0, 11.0), (0.0, 29.2, 1, 0, 11.1), (0.0, 28.8, 1, 0, 11.2)]


def tail(rows: list[Row]) -> Fact | None:
    return facts(rows).get("latency.itl_tail_ratio")


def share(rows: list[Row]) -> float:
    fact = facts(rows)["latency.starved_share"]
    assert isinstance(fact, Known), fact
    return float(fact.hi)


def facts(rows: list[Row]) -> Mapping[str, Fact]:
    text = "".join(
        f"(APIServer pid=1) INFO 09-07 19:{30 + i // 6}:{i % 6}0 [loggers.py:273] Engine 000: Avg prompt throughput: {p} tokens/s, "
        f"Avg generation throughput: {g} tokens/s, Running: {r} reqs, Waiting: {w} reqs, GPU KV cache usage: {u:.1f}%, "
        "Prefix cache hit rate: 0.0%\n"
        for i, (p, g, r, w, u) in enumerate(rows)
    )
    return diagnose(Snapshot((memory_member("server.log", text.encode()),)), ()).main.facts


def test_an_answer_that_stands_still_beside_prompts() -> None:
    fact = tail([*QUIET, *[(2500.0, 0.5, 3, 0, 14.0 + i) for i in range(4)], (0.0, 78.0, 3, 0, 27.0)])
    assert isinstance(fact, Known)
    assert fact.how == "estimated"
    assert fact.hi == pytest.approx(2.0 * 28.8)


def test_a_usual_mixed_step() -> None:
    fact = tail([*QUIET, *[(2500.0, 9.0, 3, 0, 14.0 + i) for i in range(4)]])
    assert isinstance(fact, Known)
    assert fact.hi == pytest.approx(28.8 / 9)


@pytest.mark.parametrize(
    "beside",
    [
        [(2500.0, 0.5, 2, 0, 5.0)] * 4,
        [(2500.0, 0.5, 1, 0, 14.0)] * 4,
        [(2500.0, 0.5, 3, 2, 14.0)] * 4,
        [(2500.0, 0.5, 3, 0, 14.0)] * 2,
        [(2500.0, 0.0, 3, 0, 14.0)] * 4,
    ],
    ids=[
        "the pool emptied: it had ended",
        "nobody beside the newcomer",
        "others wait",
        "two lines",
        "nothing came out",
    ],
)
def test_nothing_is_said_where_nobody_is_known_to_have_gone_on(beside: list[Row]) -> None:
    assert tail([*QUIET, *beside]) is None


def test_a_server_that_never_only_decodes_cannot_be_compared() -> None:
    assert tail([(2500.0, 100.0, 9, 0, 20.0)] * 8) is None


def test_how_long_answers_stand_still_is_told_by_time() -> None:
    calm = [*QUIET, *QUIET, *QUIET, *QUIET]
    stall: list[Row] = [(1640.0, 0.4, 3, 0, 12.0 + i) for i in range(6)]
    after: list[Row] = [(0.0, 75.0, 3, 0, 20.0)] * 12
    assert share([*calm, *stall, *after]) == pytest.approx(6 / 30)
    assert share([*calm, *[(p, 4.0, r, w, u) for p, _, r, w, u in stall], *after]) == 0.0


def test_lines_in_which_nobody_runs_are_no_part_of_the_time() -> None:
    idle: list[Row] = [(0.0, 0.0, 0, 0, 0.0)] * 10
    assert share([*idle, *QUIET, *[(1640.0, 0.4, 3, 0, 12.0 + i) for i in range(3)]]) == pytest.approx(0.5)
