"""Several replays side by side: the what-if cells, a watermark search, and the spread of a figure over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvdoctor.frozen import frozen
from kvdoctor.policy import Policy

from .cost import CostModel
from .limits import Limits
from .result import Goal, Result
from .run import simulate
from .workload import Workload

WATERMARKS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.10)
"""Free shares that the watermark search tries."""


@frozen
class Spread:
    """A figure over seeds: lowest, mean, highest."""

    lo: float
    mean: float
    hi: float


@frozen
class Cell:
    """One configuration replayed on every load: the results in the order of the loads."""

    name: str
    policy: Policy
    gpus: int
    pool_tokens: int
    results: tuple[Result, ...]

    def spread(self, figure: str) -> Spread | None:
        """Spread of a figure of Result; None when a replay could not give it."""
        values = [getattr(one, figure) for one in self.results]
        if any(value is None or math.isnan(value) for value in values):
            return None
        return Spread(min(values), math.fsum(values) / len(values), max(values))

    def mean(self, figure: str) -> float:
        """Mean of a figure over the loads. Raises ValueError when a replay could not give it."""
        spread = self.spread(figure)
        if spread is None:
            raise ValueError(f"{self.name}: no {figure} in every replay")
        return spread.mean


@frozen
class Bench:
    """The server that is replayed: pool of one GPU, step costs, limits, clients of a closed loop, what counts as good."""

    pool_tokens: int
    cost: CostModel
    limits: Limits = Limits()
    closed_loop: int | None = None
    goal: Goal = Goal()

    def cell(
        self, name: str, loads: Sequence[Workload], policy: Policy, *, gpus: int = 1, pool: int = 1, clients: int = 1
    ) -> Cell:
        """Replay every load under ``policy`` with ``pool`` times the KV and ``clients`` times the clients."""
        results = tuple(
            simulate(
                load,
                policy,
                pool_tokens=self.pool_tokens * pool,
                cost=self.cost,
                limits=self.limits,
                gpus=gpus,
                closed_loop=None if self.closed_loop is None else self.closed_loop * clients,
                seed=at,
                goal=self.goal,
            )
            for at, load in enumerate(loads)
        )
        return Cell(name, policy, gpus, self.pool_tokens * pool, results)


def loads_for(budget: int, seeds: int) -> int:
    """Requests per load so that the five what-if cells over ``seeds`` loads stay within ``budget`` requests."""
    # The cell with grown demand replays twice the requests.
    return max(1, budget // (6 * seeds))


def what_if_cells(loads: Sequence[Workload], now: Policy, fixed: Policy, bench: Bench) -> Mapping[str, Cell]:
    """The captured load, one workload per seed, replayed as it is, with the other policy, with 2x KV and with 2 GPUs.

    ``more_gpu`` keeps the offered load, ``more_gpu_grown`` doubles it (in a closed loop: twice the clients).
    """
    if bench.closed_loop is None:
        doubled: Sequence[Workload] = [load.grown(2, at) for at, load in enumerate(loads)]
    else:
        doubled = loads
    cells = (
        bench.cell("as_is", loads, now),
        bench.cell("policy", loads, fixed),
        bench.cell("more_kv", loads, now, pool=2),
        bench.cell("more_gpu", loads, now, gpus=2),
        bench.cell("more_gpu_grown", doubled, now, gpus=2, clients=2),
    )
    return {cell.name: cell for cell in cells}


@frozen
class WatermarkChoice:
    """The free share to keep at admission for a load: the best, the range that is as good within the seeds' spread."""

    free_share: float
    lo: float
    hi: float
    cells: tuple[Cell, ...]


def best_watermark(
    loads: Sequence[Workload], policy: Policy, bench: Bench, shares: Sequence[float] = WATERMARKS
) -> WatermarkChoice:
    """The free share with the best mean goodput, then the best throughput, then the smallest.

    As good: a mean goodput within the largest spread (half of hi - lo) of the best cell, at least half a point.
    """
    cells = tuple(
        bench.cell(f"free share {share:g}", loads, policy.patch({"admission.free_share": share})) for share in shares
    )
    ranked = [
        (round(cell.mean("goodput"), 6), round(cell.mean("tokens_per_s"), 6), -at) for at, cell in enumerate(cells)
    ]
    best = -max(ranked)[2]
    spread = cells[best].spread("goodput")
    noise = 0.005 if spread is None else max(0.005, 0.5 * (spread.hi - spread.lo))
    as_good = [share for share, row in zip(shares, ranked, strict=True) if row[0] >= ranked[best][0] - noise]
    return WatermarkChoice(shares[best], min(as_good), max(as_good), cells)
