"""The compiled twin gives the figures of the plain engine, bit for bit."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.policy import Policy
from kvdoctor.sim import CostModel, GrowthReserve, Limits, Request, Result, SimulationError, Workload, fast, simulate

COST = CostModel("test", 0.002, 0.010, 0.0001, 1e-8, 1e-9, 100_000)
needs_numba = pytest.mark.skipif(not fast.available(), reason="numba (extra 'fast') is not installed")

loads = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 300),
        st.integers(1, 100),
        st.integers(0, 60),
        st.sampled_from((None, None, "a", "b")),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=30,
).map(
    lambda rows: Workload(
        "load",
        tuple(
            Request(at, prompt, out, out + more, session, prefix=round(prompt * share))
            for at, prompt, out, more, session, share in sorted(rows, key=lambda row: row[0])
        ),
    )
)
policies = st.builds(
    Policy,
    victim_order=st.sampled_from([order for order in fast.ORDERS if order != "none"]),
    release=st.sampled_from(("whole", "tail_blocks")),
    admission_mode=st.sampled_from(("first_chunk", "full_prompt", "reserve")),
    admission_free_share=st.sampled_from((0.0, 0.05, 0.3)),
    pool_block_tokens=st.sampled_from((1, 16, 32)),
)
habits = st.builds(
    Limits,
    max_num_seqs=st.sampled_from((1, 4, 16)),
    max_batched_tokens=st.sampled_from((32, 256)),
    prefix_caching=st.booleans(),
)


def differences(one: Result, other: Result) -> list[str]:
    return [
        field.name for field in fields(Result) if repr(getattr(one, field.name)) != repr(getattr(other, field.name))
    ]


@needs_numba
@given(loads, policies, habits, st.integers(480, 1500), st.sampled_from((None, 2, 5)), st.sampled_from((1, 2)))
@settings(max_examples=100, deadline=None)
def test_both_engines_agree_in_every_figure(
    load: Workload, policy: Policy, limits: Limits, pool: int, clients: int | None, gpus: int
) -> None:
    def once(engine: str) -> Result:
        return simulate(
            load,
            policy,
            pool_tokens=pool,
            cost=COST,
            limits=limits,
            gpus=min(gpus, len(load.requests)),
            closed_loop=clients,
            engine=engine,
        )

    assert differences(once("python"), once("fast")) == []


@needs_numba
def test_both_agree_over_many_evictions_and_a_thinned_timeline() -> None:
    load = Workload("load", tuple(Request(0.01 * at, 150 + at % 97, 100 + at % 61, 400) for at in range(1500)))
    for policy in (Policy(), Policy(release="tail_blocks", victim_order="ratio"), Policy(admission_mode="first_chunk")):
        plain, compiled = (
            simulate(load, policy, pool_tokens=4000, cost=COST, engine=engine) for engine in ("python", "fast")
        )
        assert plain.preemptions > 300
        assert len(plain.timeline) >= 200
        assert differences(plain, compiled) == []


@needs_numba
def test_reservation_without_any_order() -> None:
    load = Workload("load", tuple(Request(0.0, 100, 50, 300) for _ in range(20)))
    policy = Policy(victim_order="none", admission_mode="reserve")
    plain, compiled = (simulate(load, policy, pool_tokens=1600, cost=COST, engine=one) for one in ("python", "fast"))
    assert differences(plain, compiled) == []


@needs_numba
def test_auto_takes_the_kernel_once_it_is_loaded() -> None:
    assert fast.warm()
    assert fast.ready()
    load = Workload("load", (Request(0.0, 10, 5, 5),))
    assert simulate(load, Policy(), pool_tokens=160, cost=COST).finished == 1


@pytest.mark.parametrize(
    ("policy", "limits", "why"),
    [
        (Policy(victim_order="value"), Limits(), "victim.order = value"),
        (Policy(protect_priority_at_most=1), Limits(), "protection or cooldown"),
        (Policy(cooldown_mode="regained"), Limits(), "protection or cooldown"),
        (Policy(restore="swap"), Limits(), "restore = swap"),
        (Policy(breaker_mode="floor"), Limits(), "breaker.mode = floor"),
        (Policy(queue_high=0.85, queue_low=0.7), Limits(), "queue.high = 0.85"),
        (Policy(reuse="ttl"), Limits(), "reuse = ttl"),
        (Policy(), Limits(growth=GrowthReserve()), "growth reserve"),
        (Policy(), Limits(mixed_prefill=False), "prefill steps"),
        (Policy(), Limits(requeue="back"), "requeue = back"),
    ],
)
def test_what_the_kernel_does_not_cover_is_said(policy: Policy, limits: Limits, why: str) -> None:
    found = fast.not_covered(policy, limits)
    assert found is not None
    assert why in found
    load = Workload("load", (Request(0.0, 10, 5, 5),))
    with pytest.raises(SimulationError, match="does not cover"):
        simulate(load, policy, pool_tokens=160, cost=COST, limits=limits, engine="fast")
    assert simulate(load, policy, pool_tokens=160, cost=COST, limits=limits).finished == 1


def test_without_numba_insisting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "available", lambda: False)
    assert fast.warm() is False
