"""The top of the room: replay a load under a policy on one or more GPUs and return the figures."""

from __future__ import annotations

import random

from kvdoctor.policy import Policy

from .cost import CostModel
from .engine import Engine, SimulationError, check_policy, never_fits
from .limits import Limits
from .result import Goal, Result, Timeline, summarise
from .routing import ROUTINGS, deal, run_least_loaded
from .workload import Workload

ENGINES = ("auto", "python", "fast")


def simulate(
    workload: Workload,
    policy: Policy,
    *,
    pool_tokens: int,
    cost: CostModel,
    limits: Limits | None = None,
    gpus: int = 1,
    routing: str = "round_robin",
    closed_loop: int | None = None,
    seed: int = 0,
    goal: Goal | None = None,
    engine: str = "auto",
) -> Result:
    """Replay ``workload`` under ``policy``; ``pool_tokens`` is the KV pool of each GPU.

    ``closed_loop``: clients in all; each sends its next request when its last one has ended, arrival times are not
    used, and clients stay on their GPU. ``seed`` drives random victims only. ``engine``: ``auto`` takes the compiled
    twin when it is loaded (``fast.warm()``) and covers the configuration: same figures, faster; ``python`` never does,
    ``fast`` insists. Raises SimulationError and, for ``fast`` without numba, ModuleNotFoundError.
    """
    limits = Limits() if limits is None else limits
    goal = Goal() if goal is None else goal
    if gpus < 1:
        raise SimulationError(f"{gpus} GPUs cannot serve anything")
    if routing not in ROUTINGS:
        raise SimulationError(f"routing {routing!r} is not one of {', '.join(ROUTINGS)}")
    if engine not in ENGINES:
        raise SimulationError(f"engine {engine!r} is not one of {', '.join(ENGINES)}")
    if closed_loop is not None:
        if closed_loop < gpus:
            raise SimulationError(f"a closed loop of {closed_loop} clients cannot keep {gpus} GPUs busy")
        if routing != "round_robin":
            raise SimulationError("a closed loop keeps its clients on their GPU: routing must be round_robin")
    check_policy(policy, limits)
    blocks = pool_tokens // policy.pool_block_tokens
    for at, request in enumerate(workload.requests):
        problem = never_fits(request, policy, blocks)
        if problem is not None:
            raise SimulationError(f"{workload.where(at)}: {problem}")
    clients = [None if closed_loop is None else (closed_loop + gpus - 1 - at) // gpus for at in range(gpus)]
    requests = workload.requests
    if engine != "python" and routing == "round_robin":
        from . import fast

        why = fast.not_covered(policy, limits)
        if why is None and (engine == "fast" or fast.ready()):
            runs = [
                fast.run(
                    requests if gpus == 1 else requests[at::gpus],
                    policy,
                    pool_tokens=pool_tokens,
                    cost=cost,
                    limits=limits,
                    clients=clients[at],
                )
                for at in range(gpus)
            ]
            records = [run[0] for run in runs]
            return summarise(records, runs[0][1], [run[2] for run in runs], deal(len(requests), gpus), goal)
        if engine == "fast":
            raise SimulationError(f"the compiled engine does not cover this: {why}")
    elif engine == "fast":
        raise SimulationError("the compiled engine does not cover this: least_loaded routing")
    engines = [
        Engine(
            policy,
            pool_tokens=pool_tokens,
            cost=cost,
            limits=limits,
            rng=random.Random(f"{seed}/{at}"),
            clients=clients[at],
        )
        for at in range(gpus)
    ]
    if routing == "least_loaded":
        order = run_least_loaded(engines, requests)
    else:
        order = deal(len(requests), gpus)
        for (at, _), request in zip(order, requests, strict=True):
            engines[at].submit(request)
        for one in engines:
            one.advance()
    timeline: Timeline = engines[0].timeline
    return summarise([one.record for one in engines], timeline, [one.arrivals for one in engines], order, goal)
