"""How many bytes a lever frees: from the facts of the run, or said to be unknown."""

from __future__ import annotations

import pytest
from rulebook_helpers import facts

from kvdoctor.advise.frees import UNTOLD, frees
from kvdoctor.facts import LEVERS

GIB = 2.0**30
OOM = {"oom.count": 1, "mem.total": 80 * GIB, "oom.requested": 3 * GIB, "oom.free": 1 * GIB}


@pytest.mark.parametrize(
    ("lever", "direction", "more", "said"),
    [
        # 2 GiB are missing, and a hundredth of 80 GiB is 0.8: three steps
        ("kv.pool_share", "down", {}, "Each 0.01 of it frees 0.80 GiB; the failed request lacked 2.00 GiB: at least 0.03 less."),
        ("kv.pool_share", "down", {"oom.free": 4 * GIB}, "Each 0.01 of it frees 0.80 GiB."),
        ("kv.pool_share", "up", {}, "Each 0.01 of it gives the engine 0.80 GiB more."),
        ("mem.graphs", "down", {"mem.graphs": 1.5 * GIB}, "Frees at most 1.50 GiB, what the graphs hold."),
        ("mem.graphs", "down", {}, "How many bytes it frees is not known: nothing tells the memory of the CUDA graphs."),
        ("mem.graphs", "down", {"mem.graphs": 0}, "How many bytes it frees is not known: nothing tells the memory of the CUDA graphs."),
        ("mem.allocator_conf", "set", {"oom.unallocated": 20 * GIB}, "Makes at most 20.00 GiB usable that is reserved and not allocated."),
        ("sched.batch_tokens", "down", {"mem.activations": 4 * GIB}, "Half of it frees at most 2.00 GiB of the activation peak."),
        ("sched.batch_tokens", "up", {"mem.activations": 4 * GIB}, ""),
        ("host.kill_orphan", "on", {"mem.orphan_bytes": 50 * 2**20}, "Frees 50 MiB."),
        ("host.separate_tenants", "on", {"oom.foreign": 30 * GIB}, "Frees 30.00 GiB, what others hold."),
        ("mem.process_cap", "up", {"oom.cap": 60 * GIB}, "At most 20.00 GiB lie above the cap."),
        ("topo.tp", "up", {"mem.weights": 40 * GIB}, "Over twice the devices each holds 20.00 GiB less of the weights."),
        ("client.max_tokens", "down", {}, ""),
    ],
)  # fmt: skip
def test_a_lever_says_what_it_frees(lever: str, direction: str, more: dict[str, float], said: str) -> None:
    assert frees(lever, direction, facts({**OOM, **more})) == said


def test_where_memory_is_not_short_nothing_is_said() -> None:
    assert all(frees(lever, "down", facts({**OOM, "oom.count": 0})) == "" for lever in LEVERS)
    assert all(frees(lever, "down", facts({"mem.total": 80 * GIB})) == "" for lever in LEVERS)


def test_the_levers_named_here_exist() -> None:
    assert set(UNTOLD) <= set(LEVERS)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        # 40 GiB of pool are 0.8 of the 50 that were free: a hundredth is 0.5, and 2 GiB are four of them
        ({"mem.kv_pool": 40 * GIB, "mem.fraction": 0.8}, "Each 0.01 of it frees 0.50 GiB; the failed request lacked 2.00 GiB: at least 0.04 less."),
        ({"mem.weights": 30 * GIB}, "Each 0.01 of it frees at most 0.50 GiB; the failed request lacked 2.00 GiB: at least 0.04 less."),
        ({}, "Each 0.01 of it frees at most 0.80 GiB; the failed request lacked 2.00 GiB: at least 0.03 less."),
    ],
)  # fmt: skip
def test_a_share_of_what_is_free_is_not_one_of_the_device(more: dict[str, float], said: str) -> None:
    assert frees("kv.pool_share", "down", facts({**OOM, **more}), of_free=True) == said


def test_a_switch_has_no_half() -> None:
    known = facts({**OOM, "mem.activations": 4 * GIB})
    assert "Half of it" in frees("mem.prefill_chunk", "down", known)
    assert "Half of it" not in frees("mem.prefill_chunk", "down", known, switched=True)
