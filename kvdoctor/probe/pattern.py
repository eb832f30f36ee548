"""KV-cache requests as allocations and releases, for the replay in torch's own allocator.

Requests come from a length distribution with a fixed seed and are admitted while their *requested* bytes stay below
``FILL`` of the budget, oldest first; each lives as many steps as it generates tokens. So a refusal is never lack of
memory in the sum, only in its shape.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from typing import Final

from kvdoctor.frozen import frozen
from kvdoctor.probe.plan import TIERS, PatternName

FILL: Final = 0.85
BYTES_PER_TOKEN: Final = 131_072
"""An 8B model with grouped-query attention in 16 bits: 2 x 32 layers x 8 heads x 128 x 2 bytes."""
BLOCK_TOKENS: Final = 16


@frozen
class Lengths:
    """Quantiles 0, 1/n, ... 1 of prompt and output tokens, and where they come from."""

    source: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def draw(self, count: int, seed: int = 1) -> list[tuple[int, int]]:
        """``count`` independent (prompt, output) pairs, each at least one token."""
        rng = random.Random(seed)
        return [(_quantile(self.prompt, rng.random()), _quantile(self.output, rng.random())) for _ in range(count)]


AZURE_CONVERSATION: Final = Lengths(
    source="Azure LLM inference trace 2023, conversation (CC-BY-4.0), 5 % quantiles of 19,366 requests",
    prompt=(
        *(2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020),
        *(1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083, 14050),
    ),
    output=(
        *(7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129),
        *(151, 177, 217, 384, 395, 400, 411, 424, 451, 1000),
    ),
)


def from_pairs(pairs: list[tuple[int, int]], source: str) -> Lengths:
    """Quantiles of captured (prompt, output) token pairs. Raises ValueError without any."""
    if not pairs:
        raise ValueError("no request lengths")
    columns = [sorted(column) for column in zip(*pairs, strict=True)]
    steps = range(21)
    prompt, output = (tuple(column[round(step / 20 * (len(column) - 1))] for step in steps) for column in columns)
    return Lengths(source, prompt, output)


def _quantile(marks: tuple[int, ...], share: float) -> int:
    place = share * (len(marks) - 1)
    low = min(int(place), len(marks) - 1)
    high = min(low + 1, len(marks) - 1)
    return max(1, round(marks[low] + (marks[high] - marks[low]) * (place - low)))


@frozen
class Request:
    """A request of ``bytes`` that takes the pieces ``sizes`` (bytes each) at once."""

    ident: int
    bytes: int
    sizes: tuple[int, ...]


@frozen
class Op:
    """``request`` comes (``take``) or goes."""

    take: bool
    request: Request


def pieces(pattern: PatternName, tokens: int) -> tuple[int, ...]:
    """The allocations one request of ``tokens`` makes."""
    size = tokens * BYTES_PER_TOKEN
    if pattern == "contiguous":
        return (size,)
    if pattern == "paged":
        return (BLOCK_TOKENS * BYTES_PER_TOKEN,) * -(-tokens // BLOCK_TOKENS)
    tier = min(TIERS, key=lambda tier: (-(-size // tier) * tier, -(-size // tier)))
    return (tier,) * -(-size // tier)


def operations(pattern: PatternName, lengths: Lengths, budget: int, requests: int = 400) -> Iterator[Op]:
    """The replay in order; a request larger than the fill is left out."""
    room = int(budget * FILL)
    waiting = deque(
        (Request(ident, (prompt + output) * BYTES_PER_TOKEN, pieces(pattern, prompt + output)), output)
        for ident, (prompt, output) in enumerate(lengths.draw(requests))
    )
    running: list[tuple[int, int, Request]] = []
    clock = used = 0
    while waiting or running:
        while waiting and (waiting[0][0].bytes > room or used + waiting[0][0].bytes <= room):
            request, output = waiting.popleft()
            if request.bytes > room:
                continue
            used += request.bytes
            heapq.heappush(running, (clock + output, request.ident, request))
            yield Op(True, request)
        if running:
            clock, _, done = heapq.heappop(running)
            used -= done.bytes
            yield Op(False, done)
