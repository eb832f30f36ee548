"""The engine: against a step-by-step reference, its conservation laws, and what each policy key does."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.policy import Policy
from kvdoctor.sim import CostModel, Engine, GrowthReserve, Limits, Request, Result, SimulationError, Workload, simulate
from kvdoctor.sim import engine as engine_module

COST = CostModel("test", 0.002, 0.010, 0.0001, 1e-8, 1e-9, 100_000)


def load(*shapes: tuple[float, int, int] | tuple[float, int, int, int]) -> Workload:
    return Workload("load", tuple(Request(s[0], s[1], s[2], s[3] if len(s) > 3 else s[2]) for s in shapes))


def run(workload: Workload, policy: Policy | None = None, pool: int = 1600, **over: object) -> Result:
    over.setdefault("engine", "python")
    return simulate(workload, policy or Policy(), pool_tokens=pool, cost=COST, **over)  # type: ignore[arg-type]


class Reference:
    """The stock scheduler written out step by step, token by token, without leaps."""

    def __init__(self, workload: Workload, pool: int, block: int, limits: Limits, free_share: float) -> None:
        self.todo = list(workload.requests)
        self.blocks = pool // block
        self.block = block
        self.limits = limits
        self.watermark = int(free_share * self.blocks)
        count = len(self.todo)
        self.computed = [0] * count
        self.made = [0] * count
        self.goal = [0] * count
        self.first: list[float] = [math.nan] * count
        self.ended: list[float] = [math.nan] * count
        self.evictions = [0] * count

    def held(self, index: int, extra: int = 0) -> int:
        return -(-(self.computed[index] + extra) // self.block)

    def run(self) -> None:
        now, waiting, running, nxt = 0.0, [], [], 0
        while True:
            while nxt < len(self.todo) and self.todo[nxt].arrival_s <= now:
                waiting.append(nxt)
                nxt += 1
            if not running and not waiting:
                if nxt == len(self.todo):
                    return
                now = self.todo[nxt].arrival_s
                continue
            work: dict[int, int] = {}
            preempted = False
            while True:
                # Decodes first, then running prefills in order: what each computes this step.
                decodes = [one for one in running if self.made[one] and self.computed[one] >= self.goal[one]]
                work = dict.fromkeys(decodes, 1)
                budget = self.limits.max_batched_tokens - len(decodes)
                for one in running:
                    if one not in work and budget > 0:
                        work[one] = min(self.goal[one] - self.computed[one], budget)
                        budget -= work[one]
                after = sum(self.held(one, work.get(one, 0)) for one in running)
                if after <= self.blocks:
                    break
                victim = running.pop()
                self.computed[victim] = 0
                self.evictions[victim] += 1
                waiting.insert(0, victim)
                preempted = True
            while waiting and not preempted and budget > 0 and len(running) < self.limits.max_num_seqs:
                one = waiting[0]
                self.goal[one] = self.todo[one].prompt_tokens + self.made[one]
                free = self.blocks - sum(self.held(other, work.get(other, 0)) for other in running)
                if -(-self.goal[one] // self.block) + (self.watermark if running else 0) > free:
                    break
                waiting.pop(0)
                running.append(one)
                work[one] = min(self.goal[one], budget)
                budget -= work[one]
            if not work:
                continue
            context = sum(self.computed[one] for one in decodes if one in running)
            tokens = sum(work.values())
            attention = sum(
                tokens_ * (self.computed[one] + 0.5 * tokens_) for one, tokens_ in work.items() if one not in decodes
            )
            now += COST.overhead_s + max(COST.floor_s, COST.token_s * tokens)
            now += COST.context_s * context + COST.attention_s * attention
            for one, tokens_ in work.items():
                self.computed[one] += tokens_
                if one in decodes or self.computed[one] >= self.goal[one]:
                    self.made[one] += 1
                    if self.made[one] == 1:
                        self.first[one] = now
                    if self.made[one] >= self.todo[one].output_tokens:
                        self.ended[one] = now
                        running.remove(one)
                        self.computed[one] = 0


shapes = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400), st.integers(1, 120)), min_size=1, max_size=25).map(
    lambda rows: load(*sorted(rows))
)


@given(
    shapes,
    st.integers(35, 120),
    st.sampled_from((0.0, 0.05, 0.2)),
    st.sampled_from((1, 3, 8)),
    st.sampled_from((64, 300)),
)
@settings(max_examples=100, deadline=None)
def test_leaps_give_what_single_steps_give(
    workload: Workload, blocks: int, free_share: float, seqs: int, batch: int
) -> None:
    limits = Limits(max_num_seqs=seqs, max_batched_tokens=batch, prefix_caching=False)
    truth = Reference(workload, blocks * 16, 16, limits, free_share)
    truth.run()
    engine = Engine(Policy(admission_free_share=free_share), pool_tokens=blocks * 16, cost=COST, limits=limits)
    for request in workload.requests:
        engine.submit(request)
    engine.advance()
    assert engine.record.evictions == truth.evictions
    assert engine.record.first_token_s == pytest.approx(truth.first, rel=1e-6)
    assert engine.record.ended_s == pytest.approx(truth.ended, rel=1e-6)


policies = st.builds(
    Policy,
    victim_order=st.sampled_from(
        ("tail", "priority", "fewest-output", "last-started", "oldest", "largest", "ratio", "value", "value-published",
         "explicit", "random")
    ),
    protect_near_completion_tokens=st.sampled_from((0, 50)),
    protect_near_completion_share=st.sampled_from((0.0, 0.25)),
    protect_priority_at_most=st.sampled_from((0, 1)),
    cooldown_mode=st.sampled_from(("none", "seconds", "regained")),
    release=st.sampled_from(("whole", "tail_blocks")),
    restore=st.sampled_from(("recompute", "swap")),
    admission_mode=st.sampled_from(("first_chunk", "full_prompt", "reserve")),
    admission_free_share=st.sampled_from((0.0, 0.1)),
    queue_high=st.sampled_from((1.0, 0.85)),
    queue_low=st.just(0.7),
    breaker_mode=st.sampled_from(("none", "latched", "floor")),
    fallback=st.sampled_from(("queue_new_request", "evict_anyway", "abort")),
    reuse=st.sampled_from(("lru", "ttl")),
    reuse_ttl_s=st.just(0.5),
)  # fmt: skip
session_shapes = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 300),
        st.integers(1, 100),
        st.integers(0, 60),
        st.sampled_from((None, "a", "b")),
        st.integers(1, 5),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=25,
).map(
    lambda rows: Workload(
        "load",
        tuple(
            Request(at, prompt, out, out + more, session, priority, round(prompt * share))
            for at, prompt, out, more, session, priority, share in sorted(rows, key=lambda row: row[0])
        ),
    )
)
habits = st.builds(
    Limits,
    max_num_seqs=st.sampled_from((1, 4, 16)),
    max_batched_tokens=st.sampled_from((32, 256)),
    prefix_caching=st.booleans(),
    mixed_prefill=st.booleans(),
    requeue=st.sampled_from(("front", "back")),
    growth=st.sampled_from((None, GrowthReserve(initial=0.3))),
)


@given(session_shapes, policies, habits, st.integers(30, 90), st.sampled_from((None, 1, 5)))
@settings(max_examples=100, deadline=None)
def test_blocks_tokens_and_requests_are_conserved(
    workload: Workload, policy: Policy, limits: Limits, blocks: int, clients: int | None
) -> None:
    engine = Engine(
        policy, pool_tokens=blocks * 16, cost=COST, limits=limits, rng=random.Random(1), events=True, clients=clients
    )
    for request in workload.requests:
        engine.submit(request)
    events = []
    last = 0.0
    while not engine.idle:
        events += engine.advance(engine.now + 0.05)
        gauges = engine.gauges
        assert 0 <= gauges.used_blocks <= gauges.blocks
        assert gauges.used_blocks >= gauges.running
        assert gauges.at_s >= last
        last = gauges.at_s
    record = engine.record
    # Every block is back, every request ended exactly once.
    assert engine.pool.free == blocks
    ends = Counter(event.request for event in events if event.kind in ("finish", "abort"))
    assert ends == Counter(range(len(workload.requests)))
    assert record.finished + record.aborted == len(workload.requests)
    assert record.preemptions == sum(record.evictions)
    assert record.preemptions == len(record.victim_remaining)
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    if record.aborted == 0:
        # Every token is computed once, plus what was recomputed, less what a session found.
        once = sum(one.prompt_tokens + one.output_tokens - 1 for one in workload.requests)
        computed = record.prefill_tokens + record.decode_tokens
        assert computed + record.prefix_tokens == once + record.recompute_tokens
        assert record.sampled_tokens + record.decode_tokens == sum(one.output_tokens for one in workload.requests)
        assert record.output_tokens == sum(one.output_tokens for one in workload.requests)
    if policy.restore == "swap":
        assert record.recompute_tokens == 0
    if policy.release == "whole":
        assert record.found_tokens == 0
    for index, request in enumerate(workload.requests):
        if request.output_tokens and index not in record.thrown_out:
            assert engine.arrivals[index] < record.first_token_s[index] <= record.ended_s[index]


def test_advancing_in_small_pieces_changes_nothing() -> None:
    rng = random.Random(3)
    workload = load(*sorted((rng.random() * 3, rng.randint(50, 300), rng.randint(5, 100)) for _ in range(40)))
    ends = []
    for piece in (math.inf, 0.013):
        engine = Engine(Policy(), pool_tokens=800, cost=COST)
        for request in workload.requests:
            engine.submit(request)
        while not engine.idle:
            engine.advance(engine.now + piece)
        ends.append((engine.record.preemptions, engine.record.ended_s))
    assert ends[0][0] == ends[1][0] > 0
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-9)


def test_same_seed_same_answer() -> None:
    rng = random.Random(3)
    workload = load(*((0.0, rng.randint(50, 300), rng.randint(50, 200)) for _ in range(40)))
    policy = Policy(victim_order="random")
    assert run(workload, policy, seed=4) == run(workload, policy, seed=4)
    assert run(workload, policy, seed=4).evicted != run(workload, policy, seed=5).evicted


# --- what each key does -----------------------------------------------------------------------------------------------


def crowd(count: int = 12, prompt: int = 200, output: int = 200) -> Workload:
    return load(*((0.01 * at, prompt, output) for at in range(count)))


def test_a_pool_that_is_large_enough_never_evicts() -> None:
    result = run(crowd(), pool=12 * 400 + 16 * 12)
    assert result.preemptions == result.recompute_tokens == 0
    assert result.goodput == 1.0
    assert result.preemptions_per_finished == 0


def test_the_tail_dies_and_goes_first_again() -> None:
    engine = Engine(Policy(), pool_tokens=1600, cost=COST, events=True)
    for request in crowd().requests:
        engine.submit(request)
    events = engine.advance()
    evicted = [event.request for event in events if event.kind == "evict"]
    admitted = [event.request for event in events if event.kind == "admit"]
    assert evicted[0] == max(admitted[: len([e for e in events if e.kind == "admit" and e.at_s <= events[0].at_s + 1])])
    assert 0 not in evicted
    first_back = next(event.request for event in events if event.kind == "resume")
    assert first_back == evicted[0] or first_back in evicted[:3]
    assert [event.request for event in events if event.kind == "finish"][0] == 0


def test_first_chunk_admits_what_full_prompt_holds_back() -> None:
    workload = load(*((0.0, 900, 60) for _ in range(6)))
    small = Limits(max_batched_tokens=256)
    full = run(workload, pool=2400, limits=small)
    thrash = run(workload, Policy(admission_mode="first_chunk"), pool=2400, limits=small)
    assert thrash.preemptions > 0
    assert thrash.preemptions > 2 * full.preemptions
    assert thrash.tokens_per_s < full.tokens_per_s


def test_a_watermark_trades_first_tokens_for_evictions() -> None:
    results = [run(crowd(30), Policy(admission_free_share=share)) for share in (0.0, 0.1, 0.3)]
    assert results[0].preemptions > results[1].preemptions >= results[2].preemptions
    assert results[2].ttft_p99_s is not None
    assert results[0].ttft_p50_s is not None
    assert results[2].pool_usage_mean < results[0].pool_usage_mean


def test_a_watermark_does_not_hold_back_a_request_that_runs_alone() -> None:
    assert run(load((0.0, 1500, 50)), Policy(admission_free_share=0.5)).finished == 1


def test_reservation_never_evicts_and_admits_fewer() -> None:
    workload = load(*((0.0, 100, 50, 700) for _ in range(8)))
    reserved = run(workload, Policy(admission_mode="reserve", victim_order="none"))
    assert reserved.preemptions == 0
    assert max(running for _, _, _, running in reserved.timeline) == 2
    assert reserved.makespan_s > run(workload).makespan_s


def test_tail_blocks_keep_what_nobody_took() -> None:
    whole = run(crowd(30))
    kept = run(crowd(30), Policy(release="tail_blocks"))
    assert kept.found_tokens > 0
    assert kept.recompute_token_share < whole.recompute_token_share


def test_swap_moves_instead_of_recomputing_and_pays_by_bandwidth() -> None:
    fast = run(crowd(30), Policy(restore="swap", restore_gb_per_s=50))
    slow = run(crowd(30), Policy(restore="swap", restore_gb_per_s=0.5))
    assert fast.recompute_tokens == slow.recompute_tokens == 0
    assert fast.preemptions > 0
    assert slow.swap_s > 50 * fast.swap_s > 0
    assert slow.makespan_s > fast.makespan_s


def test_cooldown_spreads_evictions_over_requests() -> None:
    plain = run(crowd(40, 60, 400), Policy(victim_order="oldest"))
    cooled = run(crowd(40, 60, 400), Policy(victim_order="oldest", cooldown_mode="seconds", cooldown_seconds=2))
    assert plain.most_evictions > cooled.most_evictions
    assert plain.repeats > cooled.repeats


def test_a_cooldown_longer_than_the_load_is_overridden_and_stops_nothing() -> None:
    cooled = run(crowd(40, 60, 400), Policy(cooldown_mode="seconds", cooldown_seconds=600))
    assert cooled.overrides == cooled.preemptions - cooled.requests + sum(
        1 for at in range(40) if at not in cooled.evicted
    )


def test_protecting_everybody_protects_nobody_and_is_counted() -> None:
    result = run(crowd(20), Policy(protect_near_completion_tokens=512))
    assert result.preemptions > 0
    assert result.overrides == result.preemptions


def test_abort_ends_the_newest_instead() -> None:
    result = run(crowd(20), Policy(protect_near_completion_tokens=512, fallback="abort"))
    assert result.aborted > 0
    assert result.aborted + result.finished == 20
    assert result.goodput <= result.finished / 20


def test_priority_order_spares_the_high_and_serves_them_first() -> None:
    shapes = [Request(0.001 * at, 200, 200, 200, priority=1 if at % 2 else 5) for at in range(16)]
    engine = Engine(Policy(victim_order="priority"), pool_tokens=1600, cost=COST)
    for one in shapes:
        engine.submit(one)
    engine.advance()
    high = [engine.record.ended_s[at] for at in range(16) if at % 2]
    low = [engine.record.ended_s[at] for at in range(16) if not at % 2]
    assert max(high) < max(low)
    assert sum(engine.record.evictions[1::2]) < sum(engine.record.evictions[::2])


def test_hysteresis_closes_at_high_and_opens_at_low() -> None:
    plain = run(crowd(30))
    gated = run(crowd(30), Policy(queue_high=0.5, queue_low=0.3))
    assert gated.preemptions < plain.preemptions
    assert gated.pool_usage_mean < plain.pool_usage_mean


def test_a_latched_breaker_drains_the_server_and_a_floor_does_not() -> None:
    workload = crowd(150, 60, 200)
    latched = run(workload, Policy(breaker_mode="latched"))
    floored = run(workload, Policy(breaker_mode="floor"))
    assert latched.preemptions < run(workload).preemptions
    assert latched.pool_usage_mean < floored.pool_usage_mean
    assert latched.tokens_per_s < floored.tokens_per_s


def test_a_session_finds_its_last_turn() -> None:
    turns = tuple(Request(4.0 * at, 300 * (at + 1), 20, 20, "s", prefix=300 * at) for at in range(3))
    found = run(Workload("s", turns))
    cold = run(Workload("s", turns), limits=Limits(prefix_caching=False))
    assert found.prefix_tokens == (300 // 16 + 600 // 16) * 16
    assert cold.prefix_tokens == 0
    assert found.ttft_s[2] < cold.ttft_s[2]
    stale = run(Workload("s", turns), Policy(reuse="ttl", reuse_ttl_s=1.0))
    assert stale.prefix_tokens == 0


def test_the_batch_budget_splits_a_long_prompt() -> None:
    assert run(load((0.0, 1000, 1)), limits=Limits(max_num_seqs=1, max_batched_tokens=100)).steps == 10


def test_prefill_in_steps_of_its_own_holds_decodes_up() -> None:
    workload = load((0.0, 10, 100), (0.3, 1000, 5))
    mixed = run(workload)
    apart = run(workload, limits=Limits(mixed_prefill=False))
    assert apart.longest_gap_s[0] > mixed.longest_gap_s[0]
    assert apart.steps == mixed.steps + 1


def test_a_prefill_that_evicts_itself_lets_the_decodes_go_on() -> None:
    workload = load((0.0, 196, 47), (0.1, 225, 1))
    limits = Limits(max_num_seqs=4, max_batched_tokens=32, mixed_prefill=False)
    result = run(workload, Policy(admission_mode="first_chunk"), pool=400, limits=limits)
    assert result.preemptions > 0
    assert result.finished == 2


def test_requeueing_at_the_back_lets_others_pass() -> None:
    front = run(crowd(30))
    back = run(crowd(30), limits=Limits(requeue="back"))
    assert back.eviction_wait_p99_s is not None
    assert front.eviction_wait_p99_s is not None
    assert back.eviction_wait_p99_s > front.eviction_wait_p99_s


def test_stall_is_split_into_waiting_and_recompute() -> None:
    result = run(crowd(30))
    assert result.eviction_wait_p50_s is not None
    assert result.eviction_recompute_p50_s is not None
    # One prefill step at least, and the longest gap of a victim holds both.
    assert result.eviction_recompute_p50_s >= COST.overhead_s + COST.floor_s
    assert max(result.longest_gap_s) >= result.eviction_wait_p50_s + result.eviction_recompute_p50_s


def test_token_share_and_time_share_are_two_figures() -> None:
    heavy = CostModel("decode-bound", 0.0, 0.05, 1e-6, 0.0, 0.0, 1000)
    result = simulate(crowd(30), Policy(), pool_tokens=1600, cost=heavy, engine="python")
    # The floor hides the compute: recomputing costs tokens but no time.
    assert result.recompute_token_share > 0.05
    assert result.recompute_time_share == 0.0
    assert run(crowd(30)).recompute_time_share > 0.0


def test_chain_evictions_fall_while_an_earlier_victim_recomputes() -> None:
    workload = load(*((0.0, 700, 60) for _ in range(6)))
    result = run(workload, Policy(admission_mode="first_chunk"), pool=2000, limits=Limits(max_batched_tokens=256))
    assert 0 < result.chain_evictions <= result.preemptions


# --- GPUs and loops ---------------------------------------------------------------------------------------------------


def test_two_gpus_serve_what_one_cannot() -> None:
    one, two = run(crowd(30)), run(crowd(30), gpus=2)
    assert two.preemptions < one.preemptions
    assert sum(two.gpu_output_tokens) == one.output_tokens
    assert two.gpus == 2
    assert two.makespan_s < one.makespan_s


def test_least_loaded_routing_balances_uneven_work() -> None:
    workload = load(*((0.05 * at, 100, 300 if at % 2 else 5) for at in range(20)))
    dealt = run(workload, gpus=2, pool=16_000)
    loaded = run(workload, gpus=2, pool=16_000, routing="least_loaded")

    def spread(result: Result) -> float:
        return max(result.gpu_output_tokens) / sum(result.gpu_output_tokens)

    assert spread(loaded) < spread(dealt)
    assert loaded.finished == 20


def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    workload = load(*((0.0, 100, 50) for _ in range(12)))
    result = run(workload, pool=16_000, closed_loop=3)
    assert max(running for _, _, _, running in result.timeline) <= 3
    assert result.finished == 12
    wider = run(workload, pool=16_000, closed_loop=6)
    assert wider.makespan_s < result.makespan_s
    assert run(workload, pool=16_000, closed_loop=6, gpus=2).finished == 12


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_pool_below_one_request_names_the_line() -> None:
    workload = replace(load((0.0, 100, 10), (1.0, 5000, 10)), name="trace.csv", lines=(2, 3))
    with pytest.raises(SimulationError, match=r"trace\.csv:3: 5010 tokens .* exceed the pool of 1600 tokens"):
        run(workload)
    with pytest.raises(SimulationError, match="holds no block"):
        Engine(Policy(), pool_tokens=10, cost=COST)


def test_a_reservation_that_never_fits_is_an_error() -> None:
    with pytest.raises(SimulationError, match="admission.mode = reserve holds back"):
        run(load((0.0, 100, 10, 5000)), Policy(admission_mode="reserve"))


def test_a_policy_that_can_never_free_a_block_is_an_error() -> None:
    with pytest.raises(SimulationError, match="can never free a block"):
        run(crowd(), Policy(victim_order="none"))


def test_a_contiguous_pool_is_not_for_the_step_engine() -> None:
    with pytest.raises(SimulationError, match=r"pool\.kind = tiered"):
        run(crowd(), Policy(pool_kind="tiered"))


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"gpus": 0}, "0 GPUs"),
        ({"routing": "sticky"}, "routing 'sticky'"),
        ({"closed_loop": 1, "gpus": 2}, "cannot keep 2 GPUs busy"),
        ({"closed_loop": 4, "gpus": 2, "routing": "least_loaded"}, "closed loop"),
        ({"engine": "quick"}, "engine 'quick'"),
        ({"limits": Limits(max_num_seqs=64, max_batched_tokens=32)}, "below max_num_seqs"),
    ],
)
def test_impossible_settings(over: dict[str, object], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        run(crowd(), **over)


@pytest.mark.parametrize("over", [{"max_num_seqs": 0}, {"max_batched_tokens": 0}, {"requeue": "middle"}])
def test_impossible_limits(over: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(over))):
        Limits(**over)  # type: ignore[arg-type]


def test_a_live_lock_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STALL_LIMIT", 20)
    small = Limits(max_num_seqs=1, max_batched_tokens=16)
    engine = Engine(Policy(), pool_tokens=1600, cost=COST, limits=small)
    engine.submit(Request(0.0, 1500, 5, 5))
    # A long prompt in small chunks takes many steps without a token and is no live-lock.
    engine.advance()
    assert engine.record.finished == 1
    endless = Engine(Policy(), pool_tokens=1600, cost=COST, limits=small)
    endless.submit(Request(0.0, 1500, 5, 5))
    monkeypatch.setattr(endless, "_step", lambda chunks, decoding: endless._check_progress())
    monkeypatch.setattr(endless, "_without_token", 10**9)
    with pytest.raises(SimulationError, match=r"live-lock .* without one generated token"):
        endless.advance()


@pytest.mark.parametrize("field", ["overhead_s", "floor_s", "token_s", "context_s", "attention_s"])
def test_a_cost_model_refuses_nonsense(field: str) -> None:
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=field):
            replace(COST, **{field: value})


def test_a_calibrated_cost_model_lists_what_it_assumed() -> None:
    measured = CostModel.calibrated(decode_step_s=0.02, prefill_tokens_per_s=5000, kv_bytes_per_token=4096)
    assert measured.assumed == ()
    assert measured.decode_step_s(4, 1000) == 0.02
    assert measured.prefill_s(5000) == pytest.approx(1.0)
    guessed = CostModel.calibrated(decode_step_s=0.02)
    assert any("prefill speed" in line for line in guessed.assumed)
    assert any("KV bytes" in line for line in guessed.assumed)
    for zero in ({"decode_step_s": 0.0}, {"prefill_tokens_per_s": 0.0}):
        with pytest.raises(ValueError, match="must be above 0"):
            CostModel.calibrated(**zero)  # type: ignore[arg-type]
