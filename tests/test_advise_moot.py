"""Levers that cannot move what is short are left out, and a forced pool size takes the place of what it overrules."""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.advise import Setting, with_actions
from kvdoctor.engines import vllm
from kvdoctor.facts import FactSet, Value, measured
from kvdoctor.findings import Action, Advice, Turn, Verdict

GIB = float(1 << 30)


def levers(
    turns: list[tuple[str, str, str | None]], facts: Mapping[str, Value], version: str = "0.22.0", **args: str
) -> tuple[Action, ...]:
    known = FactSet()
    for name, value in facts.items():
        known.set(name, measured(value, "s", "log:1"))
    verdict = Verdict("kv-pool-too-small", "KV600", "fires", "t", "high", 2, None, False)
    advice = Advice(tuple(Turn(lever, direction, to, "", "") for lever, direction, to in turns), (), (), {})
    return with_actions(verdict, advice, Setting(vllm.ENGINE, version, args, known)).actions


POOL: list[tuple[str, str, str | None]] = [
    ("mem.graphs", "down", None), ("mem.max_model_len", "down", None), ("kv.pool_share", "up", None),
    ("kv.dtype", "set", "an 8-bit type"),
]  # fmt: skip


def names(actions: tuple[Action, ...]) -> list[str]:
    return [action.lever for action in actions]


def test_a_pool_below_zero_is_not_helped_by_shorter_requests() -> None:
    below = {"start.error": "pool_too_small", "start.negative_kv": True, "start.have_bytes": -0.87 * GIB}
    assert names(levers(POOL, below, model="m")) == ["kv.pool_share"]
    above = {
        "start.error": "pool_too_small",
        "start.negative_kv": False,
        "start.have_bytes": GIB,
        "start.need_bytes": 2 * GIB,
    }
    assert names(levers(POOL, above, model="m")) == ["mem.max_model_len", "kv.pool_share", "kv.dtype"]


def test_graphs_are_named_where_they_alone_are_more_than_what_is_missing() -> None:
    short = {"start.error": "pool_too_small", "start.negative_kv": True, "start.have_bytes": -31 * GIB}
    assert names(levers(POOL, {**short, "start.graphs_bytes": 118 * GIB})) == ["mem.graphs", "kv.pool_share"]
    assert names(levers(POOL, {**short, "start.graphs_bytes": 2 * GIB})) == ["kv.pool_share"]
    assert names(levers(POOL, {**short, "start.graphs_bytes": 118 * GIB}, enforce_eager="True")) == ["kv.pool_share"]


def test_a_forced_number_of_blocks_comes_first_and_replaces_share_and_data_type() -> None:
    found = levers(POOL[1:], {}, version="0.16.0", num_gpu_blocks_override="50", gpu_memory_utilization="0.3")
    assert names(found) == ["kv.pool_bytes", "mem.max_model_len"]
    assert (found[0].flag, found[0].start) == ("--num-gpu-blocks-override N", "50")


def test_a_forced_number_of_bytes_leaves_the_data_type() -> None:
    found = levers(POOL[1:], {}, kv_cache_memory_bytes="8589934592")
    assert names(found) == ["kv.pool_bytes", "mem.max_model_len", "kv.dtype"]
    assert found[0].flag == "--kv-cache-memory-bytes N"


def test_a_tier_that_nobody_set_up_is_not_switched_off() -> None:
    off: list[tuple[str, str, str | None]] = [("kv.offload_bytes", "set", "off, until the connector is fixed")]
    assert levers(off, {}, model="m") == ()
    assert names(levers(off, {}, model="m", kv_offloading_size="40")) == ["kv.offload_bytes"]
    assert names(levers(off, {}, model="m", kv_transfer_config="{...}")) == ["kv.offload_bytes"]
    assert names(levers(off, {})) == ["kv.offload_bytes"], "no settings were seen: it may be set up"
    down: list[tuple[str, str, str | None]] = [("kv.offload_bytes", "down", None)]
    assert names(levers(down, {}, version="0.4.0", model="m")) == ["kv.offload_bytes"], "V0 takes 4 GiB by default"
    assert levers(down, {}, version="0.10.0", model="m") == ()
