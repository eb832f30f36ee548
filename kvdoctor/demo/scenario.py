"""What the demo can play: load, pool, policy and mishaps of each scenario. Lengths are tokens, times seconds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import field

from kvdoctor.frozen import frozen
from kvdoctor.policy import Policy
from kvdoctor.sim import CostModel, Limits, Request

COST = CostModel("demo", 0.002, 0.010, 0.00003, 2e-8, 0.0, 131_072)
"""An 8B model on a card of the H100 class: 12 ms a step, 30 us a prompt token."""


@frozen
class Part:
    """A kind of request: its weight in the mix, ranges of prompt and output, how much more than it uses it may generate."""

    weight: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    slack: float = 1.5


@frozen
class Scenario:
    """One story. ``rates``: requests/s of each engine; with ``clients`` so many send their next request when the last one
    has ended. ``warm_up_s`` is played before the first page is served.

    ``oom_at_s`` and ``restart_at_s`` count from the end of the warm-up; ``observer`` adds the series of kvdoctor's plug-in,
    ``iterations`` a log line per step.
    """

    name: str
    shows: str
    rates: tuple[float, ...]
    parts: tuple[Part, ...]
    pool_tokens: int
    policy: Policy = Policy()
    limits: Limits = Limits(prefix_caching=False)
    version: str = "0.32.0"
    max_model_len: int = 32_768
    warm_up_s: float = 120.0
    observer: bool = False
    iterations: bool = False
    oom_at_s: float | None = None
    restart_at_s: float | None = None
    clients: tuple[int, ...] | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    seed: int = 1
    cost: CostModel = COST

    def requests(self, engine: int, life: int) -> Iterator[Request]:
        """The endless load of one engine in one life of the server, by its own seed."""
        rng = random.Random(f"{self.name}/{self.seed}/{engine}/{life}")
        weights = [part.weight for part in self.parts]
        now = 0.0
        while True:
            now += rng.expovariate(self.rates[engine])
            part = rng.choices(self.parts, weights)[0]
            prompt = rng.randint(*part.prompt)
            output = rng.randint(*part.output)
            yield Request(now, prompt, output, int(output * part.slack))


_CHAT = (Part(0.7, (200, 1200), (60, 250)), Part(0.3, (800, 3000), (200, 700)))

SCENARIOS: Mapping[str, Scenario] = {
    one.name: one
    for one in (
        Scenario("healthy", "a chat load with room to spare", (4.0,), _CHAT, 131_072),
        Scenario(
            "fragmentation-oom",
            "an out-of-memory error with gigabytes reserved by the allocator and not used",
            (3.0,),
            _CHAT,
            131_072,
            oom_at_s=4.0,
        ),
        Scenario(
            "near-completion-victims",
            "the oldest request is preempted first, and it is mostly nearly done",
            (1.0,),
            (Part(1.0, (200, 400), (300, 900), slack=1.05),),
            10_000,
            policy=Policy(victim_order="oldest"),
            observer=True,
            clients=(31,),
            args={"scheduler_cls": "demo.OldestFirst"},
        ),
        Scenario(
            "missing-cooldown",
            "a few long requests are preempted again and again while short ones pass",
            (1.0,),
            (Part(0.94, (100, 300), (40, 100)), Part(0.06, (1850, 2750), (200, 400))),
            12_288,
            policy=Policy(victim_order="largest"),
            clients=(64,),
            args={"scheduler_cls": "demo.LargestFirst"},
        ),
        Scenario(
            "recompute-overload",
            "a few huge requests lose everything they have computed, over and over",
            (1.0,),
            (Part(0.97, (100, 300), (20, 40)), Part(0.03, (4096, 5324), (100, 200))),
            10_240,
            policy=Policy(victim_order="largest", cooldown_mode="seconds"),
            iterations=True,
            clients=(48,),
            seed=5,
            args={"scheduler_cls": "demo.LargestFirst", "enable_logging_iteration_details": "True"},
        ),
        Scenario(
            "policy-not-capacity",
            "eight engines that each run one sequence more than fits: a limit does as much as eight more GPUs",
            (1.0,) * 8,
            (Part(1.0, (200, 300), (250, 350), slack=1.0),),
            1328,
            limits=Limits(max_batched_tokens=1024, prefix_caching=False),
            max_model_len=1024,
            warm_up_s=30.0,
            clients=(5,) * 8,
        ),
        Scenario(
            "load-imbalance",
            "one of four engines gets nearly all requests",
            (1.0, 1.0, 1.0, 1.0),
            _CHAT,
            24_000,
            clients=(40, 2, 2, 2),
        ),
        Scenario("restart", "the server is restarted while it is watched", (4.0,), _CHAT, 131_072, restart_at_s=12.0),
    )
}
"""The scenarios by name."""
