"""Which GPU a request goes to: dealt in turn, or to the one with the least work outstanding."""

from __future__ import annotations

from collections.abc import Sequence

from .engine import Engine
from .workload import Request

ROUTINGS = ("round_robin", "least_loaded")


def deal(count: int, gpus: int) -> list[tuple[int, int]]:
    """(engine, index there) of ``count`` requests dealt in turn."""
    return [(at % gpus, at // gpus) for at in range(count)]


def run_least_loaded(engines: Sequence[Engine], requests: Sequence[Request]) -> list[tuple[int, int]]:
    """Feed every request at its arrival to the engine with the fewest outstanding tokens, then run all to the end."""
    order = []
    for request in requests:
        for engine in engines:
            engine.advance(request.arrival_s)
        chosen = min(range(len(engines)), key=lambda at: (engines[at].outstanding_tokens, at))
        order.append((chosen, engines[chosen].submit(request)))
    for engine in engines:
        engine.advance()
    return order
