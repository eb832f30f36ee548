"""Replays of a captured load: what reproduces, what is promised, what is refused."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from corpus import SAMPLES, report_on

from kvdoctor.engines.base import engines
from kvdoctor.facts import Known, Unknown, measured
from kvdoctor.pipeline import Options, diagnose, observed
from kvdoctor.policy import Policy
from kvdoctor.rulebook.rule import load_rules
from kvdoctor.sim import CostModel, Engine, Limits, Request
from kvdoctor.snapshot import read_paths
from kvdoctor.whatif import (
    BUDGET,
    FACT_NAMES,
    Inputs,
    Interval,
    Lengths,
    Observed,
    captured,
    closed_loop,
    decode_step,
    replay,
)

COST = CostModel("server", 0.0, 0.014, 0.0001, 0.0, 0.0, 131_072)


def lengths(values: list[int]) -> Lengths:
    edges = [float(step * 10**power) for power in range(5) for step in (1, 2, 5)] + [math.inf]
    return Lengths(tuple((edge, float(sum(v <= edge for v in values))) for edge in edges), float(sum(values)))


def watched(policy: Policy, *, clients: int | None, pool: int = 6400, count: int = 160) -> Observed:
    """A server that is watched every two seconds until everything has been served."""
    rng = random.Random(4)
    requests = [
        Request(at * 0.18, rng.randint(100, 400), rng.randint(100, 400), 400) for at in range(count)
    ]  # fmt: skip
    server = Engine(policy, pool_tokens=pool, cost=COST, limits=Limits(max_num_seqs=64), clients=clients)
    for request in requests:
        server.submit(request)
    rows = [(0.0, 0, 0, 0, 0)]
    while not server.idle:
        server.advance(rows[-1][0] + 2.0)
        gauges = server.gauges
        rows.append(
            (rows[-1][0] + 2.0, server.record.finished, server.record.preemptions, gauges.running, gauges.waiting)
        )
    intervals = tuple(
        Interval(b[0] - a[0], b[1] - a[1], b[2] - a[2], a[3], a[4], b[3], b[4])
        for a, b in zip(rows, rows[1:], strict=False)
    )
    return Observed(
        intervals,
        lengths([one.prompt_tokens for one in requests]),
        lengths([one.output_tokens for one in requests]),
        None,
        Lengths(((0.01, 0.0), (0.025, 1000.0), (math.inf, 1000.0)), 14.0),
        10_000.0,
        # vLLM keeps one block for itself
        pool + 16,
        16,
        1,
        131_072,
        64,
        2048,
        4096,
        True,
        0.0,
    )


def inputs(seen: Observed, version: str | None = "0.32.0", *, pressure: bool = True, preempted: float = 5.0) -> Inputs:
    return Inputs(
        seen,
        engines()["vllm"],
        version,
        {},
        measured(pressure, "w", "test"),
        measured(preempted, "w", "test"),
        measured(3.0, "w", "test"),
    )


CLOSED = watched(Policy(release="tail_blocks"), clients=40)
OPEN = watched(Policy(release="tail_blocks"), clients=None)


@pytest.mark.parametrize("seen", [CLOSED, OPEN], ids=["closed", "open"])
def test_what_the_simulator_served_is_reproduced_from_counters_alone(seen: Observed) -> None:
    found = replay(inputs(seen))
    assert found.facts["whatif.reproduces"].hi is True  # type: ignore[union-attr]
    more = found.facts["whatif.more_kv"]
    now = found.facts["whatif.asis"]
    assert isinstance(more, Known)
    assert isinstance(now, Known)
    assert more.lo >= now.lo
    assert {row.name for row in found.rows} >= {"as it is", "2x KV, same compute", "2 GPUs, twice the demand"}


def test_closed_loops_are_told_from_arrivals() -> None:
    assert closed_loop(CLOSED.intervals) == 40
    assert closed_loop(OPEN.intervals) is None
    assert closed_loop(CLOSED.intervals[:2]) is None


def test_the_work_is_bounded_and_the_answer_the_same_twice() -> None:
    once, again = replay(inputs(CLOSED)), replay(inputs(CLOSED))
    assert once == again
    assert 0 < once.simulated <= BUDGET["auto"]
    other = replay(inputs(replace(CLOSED, max_model_len=2048)))
    assert other.facts != once.facts


def test_a_count_that_does_not_fit_gives_no_promise() -> None:
    wrong = replace(CLOSED, intervals=tuple(replace(one, preempted=one.preempted * 6 + 5) for one in CLOSED.intervals))
    found = replay(inputs(wrong))
    told = found.facts["whatif.reproduces"]
    assert isinstance(told, Known)
    assert told.hi is False
    assert found.rows == ()
    assert found.watermark is None
    for name in FACT_NAMES[1:]:
        fact = found.facts[name]
        assert isinstance(fact, Unknown)
        assert fact.reason.startswith("no promise")


def test_only_levers_of_the_version_are_turned() -> None:
    new, old = replay(inputs(CLOSED)), replay(inputs(CLOSED, "0.21.0"))
    assert isinstance(new.facts["whatif.watermark"], Known)
    assert isinstance(old.facts["whatif.watermark"], Unknown)
    assert {one.lever for one in old.settings} <= {"sched.max_running"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pressure": False}, "not under pressure"),
        ({"preempted": 0.0}, ""),
    ],
)
def test_the_gate(change: dict[str, object], says: str) -> None:
    found = replay(inputs(CLOSED, **change))  # type: ignore[arg-type]
    if says:
        assert says in found.say
        assert found.simulated == 0
    else:
        assert found.simulated > 0  # somebody waited


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pool_tokens": None}, "size of the KV pool"),
        ({"prompt": None}, "lengths of requests"),
        ({"intervals": ()}, "two scrapes"),
        ({"intervals": CLOSED.intervals[:1]}, "requests ended in the window"),
        ({"pool_tokens": 32}, "no request"),
        ({"intervals": tuple(replace(one, seconds=None) for one in OPEN.intervals)}, "carry no time"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], reason: str) -> None:
    found = replay(inputs(replace(OPEN if "seconds" in str(change) else CLOSED, **change)))  # type: ignore[arg-type]
    fact = found.facts["whatif.reproduces"]
    assert isinstance(fact, Unknown)
    assert reason in fact.reason


def test_other_engines_say_why_not() -> None:
    for name, engine in engines().items():
        found = replay(replace(inputs(CLOSED), engine=engine, version=None))
        fact = found.facts["whatif.asis"]
        if name not in ("vllm", "sglang"):
            assert isinstance(fact, Unknown)
            assert "not modelled" in fact.reason


def test_the_step_time_is_the_mean_without_the_stalls() -> None:
    edges = ((0.01, 900.0), (0.025, 990.0), (1.0, 995.0), (5.0, 1000.0), (math.inf, 1000.0))
    assert decode_step(Lengths(edges, 900 * 0.006 + 90 * 0.02 + 5 * 0.5 + 5 * 2.3)) == pytest.approx(0.0075, abs=0.003)
    assert decode_step(Lengths(edges, None)) == pytest.approx(0.005)
    assert decode_step(Lengths(((math.inf, 0.0),), 0.0)) is None


def test_captured_loads_are_replayed_without_pressure_too() -> None:
    found = captured(inputs(CLOSED, pressure=False), requests=500, seeds=2)
    assert not isinstance(found, Unknown)
    assert len(found.loads) == 2
    assert found.problem is None
    assert found.policy.release == "tail_blocks"


@pytest.fixture(scope="module")
def saturated() -> object:
    return report_on(next(p for p in SAMPLES if p.name == "vllm-saturated"), what_if="auto")


def test_a_real_capture_is_reproduced_and_planned_for(saturated: object) -> None:
    from kvdoctor.findings import Report

    assert isinstance(saturated, Report)
    facts = saturated.main.facts
    assert facts["whatif.reproduces"].hi is True  # type: ignore[union-attr]
    plan = saturated.plan
    assert plan.what_if is not None
    assert plan.admission_free is not None
    assert plan.admission_free.lo <= plan.admission_free.value <= plan.admission_free.hi <= 0.1
    running = next(one for one in plan.levers if one.lever == "sched.max_running")
    assert running.to is not None
    assert running.to.startswith("about ")
    assert "Replayed:" in running.effect
    assert saturated.main.verdict.id not in ("KV500", "KV913")


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda p: p.name)
def test_a_replay_never_changes_the_verdict_of_a_sample(folder: object) -> None:
    from pathlib import Path

    assert isinstance(folder, Path)
    assert report_on(folder, what_if="auto").main.verdict.rule == report_on(folder).main.verdict.rule


def test_the_limits_of_what_is_good_are_options() -> None:
    snapshot = read_paths([next(p for p in SAMPLES if p.name == "vllm-saturated")])
    strict = diagnose(snapshot, load_rules(), Options(what_if="auto", ttft_limit_s=0.5, stall_limit_s=0.2))
    loose = diagnose(snapshot, load_rules(), Options(what_if="auto", ttft_limit_s=600, stall_limit_s=600))
    assert strict.main.facts["whatif.asis"].hi < 0.5  # type: ignore[union-attr,operator]
    assert loose.main.facts["whatif.asis"].lo == 1.0  # type: ignore[union-attr]


def test_every_server_of_a_snapshot_is_observed() -> None:
    names = observed(read_paths([next(p for p in SAMPLES if p.name == "vllm-saturated")]))
    assert len(names) == 1
    assert names[0][1].observed.pool_tokens == 5120
