"""Loads x policies x GPUs x pools: the cells of a comparison, run one by one so that a caller can show progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvdoctor.frozen import frozen
from kvdoctor.policy import Policy, PolicyError

from .allocators import Kind, Replay, make, sequence_events
from .allocators import replay as replay_pool
from .cost import CostModel
from .engine import SimulationError
from .limits import Limits
from .replay import Cell
from .result import Goal, Result
from .run import simulate
from .workload import Workload

SWEEPS = {
    "watermark": "admission.free_share",
    "free_share": "admission.free_share",
    "max_running": "",
}
"""Short names of what a sweep may vary; every numeric policy key may be given too."""

MOST_STEPS = 200


@frozen
class Variant:
    """A policy with its name; ``max_running`` replaces the server's limit on running sequences."""

    name: str
    policy: Policy
    max_running: int | None = None


def sweep(text: str, base: Policy) -> list[Variant]:
    """``watermark=0:.1:.01`` or ``max_running=4:32:4`` -> one variant per value, both ends included. Raises PolicyError."""
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals:
        raise PolicyError(f"sweep {text!r}: write NAME=FROM:TO:STEP, e.g. watermark=0:.1:.01")
    parts = values.split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        raise PolicyError(f"sweep {text!r}: {values!r} is not FROM:TO:STEP") from None
    if len(numbers) != 3 or not numbers[2] > 0 or not numbers[0] <= numbers[1] < float("inf"):
        raise PolicyError(f"sweep {text!r}: write NAME=FROM:TO:STEP with FROM at most TO and STEP above 0")
    count = int((numbers[1] - numbers[0]) / numbers[2] + 1e-9) + 1
    if count > MOST_STEPS:
        raise PolicyError(f"sweep {text!r}: {count} values, at most {MOST_STEPS}")
    steps = [round(numbers[0] + at * numbers[2], 10) for at in range(count)]
    if name == "max_running":
        if any(step < 1 or step != int(step) for step in steps):
            raise PolicyError(f"sweep {text!r}: max_running takes whole numbers of at least 1")
        return [Variant(f"max_running={step:g}", base, int(step)) for step in steps]
    key = SWEEPS.get(name, name)
    return [Variant(f"{name}={step:g}", base.patch({key: step})) for step in steps]


@frozen
class Task:
    """One replay to run."""

    variant: Variant
    gpus: int
    pool_tokens: int
    load: Workload
    seed: int
    clients: int | None


def tasks(
    variants: Sequence[Variant],
    loads: Sequence[Workload],
    *,
    gpus: Sequence[int],
    pools: Sequence[int],
    clients: int | None,
) -> list[Task]:
    """Every combination, the loads innermost. ``clients``: a closed loop of so many, whatever the number of GPUs."""
    return [
        Task(variant, count, pool, load, at, clients)
        for variant in variants
        for count in gpus
        for pool in pools
        for at, load in enumerate(loads)
    ]


def run(
    todo: Sequence[Task], cost: CostModel, limits: Limits, goal: Goal, done: Callable[[Task], None] | None = None
) -> list[Cell]:
    """Run the tasks; ``done`` is called after each. Raises SimulationError that names the policy."""
    cells: list[Cell] = []
    gathered: list[Result] = []
    for at, task in enumerate(todo):
        mine = limits if task.variant.max_running is None else replace(limits, max_num_seqs=task.variant.max_running)
        if mine.max_batched_tokens < mine.max_num_seqs:
            mine = replace(mine, max_batched_tokens=mine.max_num_seqs)
        try:
            result = simulate(
                task.load,
                task.variant.policy,
                pool_tokens=task.pool_tokens,
                cost=cost,
                limits=mine,
                gpus=task.gpus,
                closed_loop=task.clients,
                seed=task.seed,
                goal=goal,
            )
        except SimulationError as error:
            raise SimulationError(f"policy {task.variant.name}: {error}") from error
        gathered.append(result)
        if done is not None:
            done(task)
        following = todo[at + 1] if at + 1 < len(todo) else None
        if following is None or (following.variant, following.gpus, following.pool_tokens) != (
            task.variant,
            task.gpus,
            task.pool_tokens,
        ):
            cells.append(Cell(task.variant.name, task.variant.policy, task.gpus, task.pool_tokens, tuple(gathered)))
            gathered = []
    return cells


def allocators(
    kinds: Sequence[Kind], load: Workload, cost: CostModel, pool_tokens: int, policy: Policy
) -> list[tuple[Kind, Replay]]:
    """What the same sequences cost under each allocator: every request asks for its whole length in one piece when it
    arrives and gives it back when it would end unhindered. A refused request is dropped, not queued. Raises ValueError.
    """
    capacity = pool_tokens * cost.kv_bytes_per_token
    step = cost.overhead_s + max(cost.floor_s, cost.token_s)
    sequences = [
        (
            one.arrival_s,
            one.prompt_tokens + one.output_tokens,
            cost.prefill_s(one.prompt_tokens) + one.output_tokens * step,
        )
        for one in load.requests
    ]
    events = sequence_events(sequences, cost.kv_bytes_per_token)
    out: list[tuple[Kind, Replay]] = []
    for kind in kinds:
        try:
            pool = make(
                kind,
                capacity,
                block=policy.pool_block_tokens * cost.kv_bytes_per_token,
                tiers_mib=policy.pool_tiers_mib,
                preallocate=policy.pool_preallocate,
            )
        except ValueError as error:
            raise ValueError(
                f"allocator {kind}: {error} (a policy file can set pool.tiers_mib, pool.preallocate)"
            ) from error
        out.append((kind, replay_pool(pool, events, every=max(1, len(events) // 2000))))
    return out
