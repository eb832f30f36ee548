"""One engine of the demo server: it is stepped one scheduler iteration at a time, and every step is counted as vLLM would."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from kvdoctor.frozen import frozen
from kvdoctor.sim import Engine, Event, Request

from .exposition import (
    GAP_EDGES,
    OWN_PREEMPTION_EDGES,
    PREEMPTION_EDGES,
    REQUEST_EDGES,
    TOKEN_EDGES,
    TTFT_EDGES,
    Hist,
    length_edges,
)
from .scenario import Scenario

_AHEAD_S = 5.0


@frozen
class Step:
    """One iteration as vLLM's iteration details show it: a victim's replay counts as generation tokens."""

    number: int
    at_s: float
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    seconds: float
    usage: float


class Rank:
    """An engine, its endless load, and its counters. ``now`` is seconds since its process started."""

    def __init__(self, scenario: Scenario, number: int, life: int) -> None:
        self.scenario = scenario
        self._load: Iterator[Request] = scenario.requests(number, life)
        self._next = next(self._load)
        self.engine = Engine(
            scenario.policy,
            # one block is the null block of the real engine
            pool_tokens=scenario.pool_tokens - scenario.policy.pool_block_tokens,
            cost=scenario.cost,
            limits=scenario.limits,
            rng=random.Random(f"{scenario.name}/{number}/{life}"),
            events=True,
            clients=None if scenario.clients is None else scenario.clients[number],
        )
        self._requests: list[Request] = []
        self._admitted: dict[int, float] = {}
        lengths = length_edges(scenario.max_model_len)
        self.ttft = Hist(TTFT_EDGES)
        self.gap = Hist(GAP_EDGES)
        self.e2e = Hist(REQUEST_EDGES)
        self.queue = Hist(REQUEST_EDGES)
        self.prefill = Hist(REQUEST_EDGES)
        self.decode = Hist(REQUEST_EDGES)
        self.prompt = Hist(lengths)
        self.output = Hist(lengths)
        self.max_tokens = Hist(lengths)
        self.step_tokens = Hist((1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
        self.preemptions = Hist(PREEMPTION_EDGES)
        self.own_preemptions = Hist(OWN_PREEMPTION_EDGES)
        self.remaining = Hist(TOKEN_EDGES)
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.prompt_tokens = 0
        self.looked_up = 0
        self.found = 0
        self.frozen = False
        self._seen_stalls = 0
        self._seen_victims = 0
        self._steps = 0

    @property
    def usage(self) -> float:
        """Blocks in use / blocks."""
        gauges = self.engine.gauges
        return gauges.used_blocks / gauges.blocks

    @property
    def generated(self) -> int:
        """Tokens generated since the start."""
        return self.engine.record.decode_tokens + self.engine.record.sampled_tokens

    def advance(self, until_s: float) -> list[Step]:
        """Play up to ``until_s``; the steps that were made."""
        steps: list[Step] = []
        engine, record = self.engine, self.engine.record
        while not self.frozen and engine.now < until_s:
            # an engine without a request to come does not move its clock
            while self._wanted():
                engine.submit(self._next)
                self._requests.append(self._next)
                self._next = next(self._load)
            before = (record.steps, record.busy_s, record.prefill_tokens, record.decode_tokens, record.recompute_tokens)
            if engine.idle or not (engine.gauges.running or engine.gauges.waiting):
                # nothing to do until the next arrival: the clock may be moved up to it
                events = engine.advance(min(until_s, engine.now + 0.5))
            else:
                events = engine.advance(engine.now + 1e-9)
            self._count(events)
            made = record.steps - before[0]
            if not made:
                continue
            seconds = record.busy_s - before[1]
            computed = record.prefill_tokens - before[2]
            decoded = record.decode_tokens - before[3]
            again = record.recompute_tokens - before[4]
            if decoded:
                self.gap.observe(seconds / made, decoded)
            self.step_tokens.observe((computed + decoded) / made, made)
            self._steps += made
            steps.append(
                Step(
                    self._steps,
                    engine.now,
                    1 if computed > again else 0,
                    computed - again,
                    decoded // made + (1 if again else 0),
                    decoded + again + (1 if again else 0),
                    seconds,
                    self.usage,
                )
            )
        return steps

    def _wanted(self) -> bool:
        """Whether another request has to be handed in: enough for every client, or for the next seconds."""
        if self.scenario.clients is not None:
            return len(self._requests) < self.engine.record.finished + 2 * max(self.scenario.clients)
        return self.engine.idle or self._next.arrival_s <= self.engine.now + _AHEAD_S

    def _count(self, events: list[Event]) -> None:
        record = self.engine.record
        for event in events:
            request, arrival = self._requests[event.request], self.engine.arrivals[event.request]
            if event.kind == "admit":
                self._admitted[event.request] = event.at_s
                self.queue.observe(event.at_s - arrival)
                self.looked_up += request.prompt_tokens
                self.found += event.tokens
            elif event.kind == "first_token":
                self.prompt_tokens += request.prompt_tokens
                self.ttft.observe(event.at_s - arrival)
            elif event.kind == "finish":
                first = record.first_token_s[event.request]
                self.finished["length" if request.output_tokens >= request.max_tokens else "stop"] += 1
                self.e2e.observe(event.at_s - arrival)
                self.prefill.observe(first - self._admitted.pop(event.request))
                self.decode.observe(event.at_s - first)
                self.prompt.observe(request.prompt_tokens)
                self.output.observe(request.output_tokens)
                self.max_tokens.observe(request.max_tokens)
                hits = record.evictions[event.request]
                self.preemptions.observe(hits)
                self.own_preemptions.observe(hits)
        for _, waited, worked in record.stalls[self._seen_stalls :]:
            if not math.isnan(waited):
                self.gap.observe(waited + worked)
        self._seen_stalls = len(record.stalls)
        for left in record.victim_remaining[self._seen_victims :]:
            self.remaining.observe(left)
        self._seen_victims = len(record.victim_remaining)
