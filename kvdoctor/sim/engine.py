"""Step-level continuous batching on a paged pool: one engine, one GPU (or one tensor-parallel group).

Every scheduler step is simulated; runs of steps in which nothing but decoding happens are leapt over in closed form:
all decoding requests gain one token a step, so finishes, block needs and step times of k steps follow by arithmetic.

Conventions: a request whose prompt of P tokens and g generated tokens are known has P + g - 1 tokens in the pool while
it decodes (the newest token is computed by the next step). An evicted request keeps its generated tokens and computes
all P + g again before it goes on, less what it still finds in the pool.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from kvdoctor.policy import Policy

from .breaker import Breaker
from .cost import CostModel
from .limits import Limits
from .pool import PagedPool
from .result import EngineRecord, Timeline
from .victims import Candidate, Scale, choose, order_key, protects_anyone
from .workload import Request

FUTURE, WAITING, PREFILL, DECODE, DONE, ABORTED = range(6)

STALL_LIMIT = 100_000
"""Scheduler iterations without one generated token, beyond those of the longest prompt, that make a live-lock."""

REPEAT_WINDOW_S = 30.0
"""A second eviction of the same request within this time is a repeat."""


class SimulationError(RuntimeError):
    """A load and a policy that cannot be simulated: a pool below one request, an endless eviction loop."""


class Event(NamedTuple):
    """What happened to a request: kind is admit, resume, first_token, evict, finish or abort; tokens as fits the kind.

    admit and resume: prompt tokens found in the pool; evict: tokens lost; finish and abort: tokens generated.
    """

    at_s: float
    kind: str
    request: int
    tokens: int


class Gauges(NamedTuple):
    """State at the engine's clock: requests running and waiting, blocks used and in all."""

    at_s: float
    running: int
    waiting: int
    used_blocks: int
    blocks: int


class Engine:
    """A server that is fed requests and moved forward in time.

    ``submit`` in order of arrival, then ``advance(until)``; ``advance`` returns the events when ``events`` is on.
    Raises SimulationError for a policy that can never free a block and for a request that can never fit.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        pool_tokens: int,
        cost: CostModel,
        limits: Limits | None = None,
        rng: random.Random | None = None,
        events: bool = False,
        clients: int | None = None,
    ) -> None:
        limits = Limits() if limits is None else limits
        check_policy(policy, limits)
        if clients is not None and clients < 1:
            raise SimulationError(f"a closed loop of {clients} clients sends nothing")
        self.policy = policy
        self.cost = cost
        self.limits = limits
        self.now = 0.0
        block = policy.pool_block_tokens
        blocks = pool_tokens // block
        if blocks < 1:
            raise SimulationError(f"a pool of {pool_tokens} tokens holds no block of {block} tokens")
        self.pool = PagedPool(blocks, caching=policy.release == "tail_blocks" or limits.prefix_caching)
        self._block = block
        self.record = EngineRecord(blocks=blocks, block_tokens=block)
        self.timeline = Timeline()
        self._events: list[Event] | None = [] if events else None
        self._clients = clients
        self._released = 0
        rng = random.Random(0) if rng is None else rng
        self._key = (
            order_key(policy, Scale.of(blocks, block, cost.kv_bytes_per_token), rng) if _evicts(policy) else None
        )
        self._plain_tail = policy.victim_order == "tail" and not protects_anyone(policy)
        self._by_priority = policy.victim_order == "priority"
        self._keeps = policy.release == "tail_blocks"
        self._swaps = policy.restore == "swap"
        self._swap_s = cost.kv_bytes_per_token / (policy.restore_gb_per_s * 1e9)
        self._watermark = int(policy.admission_free_share * blocks)
        self._hysteresis = policy.queue_high < 1.0
        self._closed = False
        self._breaker = None if policy.breaker_mode == "none" else Breaker(policy)
        self._ratio = 0.0 if limits.growth is None else limits.growth.initial
        self._batch_full = False
        # Requests, one entry each, in order of submission.
        self._requests: list[Request] = []
        self._arrival: list[float] = []
        self._state: list[int] = []
        self._generated: list[int] = []
        self._done: list[int] = []
        self._target: list[int] = []
        self._high: list[int] = []
        self._base: list[int] = []
        self._finish_at: list[int] = []
        self._joined: list[int] = []
        self._admitted: list[int] = []
        self._first_admitted: list[int] = []
        self._next = 0
        self._admissions = 0
        self._reserved = 0
        self._queue: deque[int] = deque()
        self._running: list[int] = []
        self._prefilling: list[int] = []
        self._joining: list[int] = []
        self._last_turn: dict[str, int] = {}
        # Decoding set: the step counter, finishes by counter value, block needs by counter modulo the block size.
        self._steps = 0
        self._decoding = 0
        self._base_sum = 0
        self._heap: list[tuple[int, int]] = []
        self._phases = [0] * (2 * block)
        # Longest step since a counter value: a falling stack of (counter, seconds).
        self._gap_step: list[int] = []
        self._gap_s: list[float] = []
        self._carried_s = 0.0
        self._swap_pending = 0.0
        self._recomputing = 0
        self._without_token = 0
        self._patience = STALL_LIMIT + pool_tokens // limits.max_batched_tokens

    # --- feeding ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, *, where: str = "") -> int:
        """Add a request; arrivals must not run backwards. Returns its index. Raises SimulationError when it never fits."""
        problem = request.problem()
        if problem is None:
            problem = never_fits(request, self.policy, self.pool.blocks)
        if problem is not None:
            raise SimulationError(f"{where or f'request {len(self._requests) + 1}'}: {problem}")
        index = len(self._requests)
        self._requests.append(request)
        self._arrival.append(request.arrival_s if self._clients is None else math.inf)
        self._state.append(FUTURE)
        for column in (self._generated, self._done, self._target, self._high, self._base):
            column.append(0)
        for column in (self._finish_at, self._joined, self._admitted, self._first_admitted):
            column.append(-1)
        self.record.add()
        if self._clients is not None and self._released < self._clients:
            self._release()
        return index

    def _release(self) -> None:
        """Closed loop: a client sends its next request now."""
        if self._released < len(self._requests):
            self._arrival[self._released] = self.now
            self._released += 1

    @property
    def gauges(self) -> Gauges:
        """Running and waiting requests and used blocks at the clock."""
        return Gauges(self.now, len(self._running), len(self._queue), self.pool.used, self.pool.blocks)

    @property
    def arrivals(self) -> list[float]:
        """Arrival time of every request; in a closed loop the time its client sent it."""
        return self._arrival

    @property
    def outstanding_tokens(self) -> int:
        """Tokens of work not yet done: what a least-loaded router compares."""
        total = 0
        for index in (*self._running, *self._queue, *range(self._next, len(self._requests))):
            request = self._requests[index]
            done = self._base[index] + self._steps if self._state[index] == DECODE else self._done[index]
            total += request.prompt_tokens + request.max_tokens - done
        return total

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is still to arrive."""
        return not self._running and not self._queue and self._next >= len(self._requests)

    # --- running ------------------------------------------------------------------------------------------------------

    def advance(self, until: float = math.inf) -> list[Event]:
        """Run steps until the clock reaches ``until`` (the last step may pass it) or nothing is left to do."""
        arrival, requests = self._arrival, self._requests
        while True:
            total = len(requests)
            while self._next < total and arrival[self._next] <= self.now:
                self._enqueue(self._next)
                self._next += 1
            if self.now >= until:
                break
            if not self._running and not self._queue:
                if self._next >= total or arrival[self._next] == math.inf:
                    break
                if arrival[self._next] > until:
                    self.now = until
                    break
                self._idle_until(arrival[self._next])
                continue
            self._iterate(until)
        events = self._events
        if events is None:
            return []
        self._events = []
        return events

    def _idle_until(self, when: float) -> None:
        self.now = when
        if self.limits.growth is not None:
            self._ratio = self.limits.growth.initial
            self._batch_full = False

    def _enqueue(self, index: int) -> None:
        self._state[index] = WAITING
        if self._by_priority:
            insort(self._queue, index, key=self._rank)
        else:
            self._queue.append(index)

    def _rank(self, index: int) -> tuple[int, float, int]:
        return self._requests[index].priority, self._arrival[index], index

    def _iterate(self, until: float) -> None:
        """One scheduler step, or one leap over steps that only decode."""
        limits = self.limits
        chunks: list[tuple[int, int]] = []
        if not limits.mixed_prefill and self._queue and not self._prefilling:
            self._admit(chunks, limits.max_batched_tokens, 0)
            if chunks or self._joining:
                self._step(chunks, 0)
                return
        decoding = self._decoding if limits.mixed_prefill or not self._prefilling else 0
        evicted = self._secure(chunks, decoding)
        if evicted and not chunks and not decoding:
            # A prefill that evicted itself gives its step to the decodes; otherwise it would be let in again at once
            # and nobody would ever get a token.
            decoding = self._decoding
            self._secure(chunks, decoding)
        if evicted:
            decoding = self._decoding if decoding else 0
        need = self._phases[self._steps % self._block] if decoding else 0
        if self._queue and not evicted and limits.mixed_prefill:
            budget = limits.max_batched_tokens - decoding
            for _, chunk in chunks:
                budget -= chunk
            self._admit(chunks, budget, need)
        if chunks or self._joining or self._swap_pending:
            if need:
                self.pool.take(need)
            self._step(chunks, decoding)
        elif decoding:
            self._leap(until, evicted)
        else:
            self._without_token += 1
            self._check_progress()

    def _secure(self, chunks: list[tuple[int, int]], decoding: int) -> bool:
        """Evict until this step's decodes and running prefills have their blocks; takes those of the prefills.

        Fills ``chunks`` with (request, tokens) of the running prefills. Returns whether anyone was evicted.
        """
        block, evicted = self._block, False
        while True:
            need = self._phases[self._steps % block] if decoding else 0
            own = 0
            if self._prefilling:
                chunks.clear()
                budget = self.limits.max_batched_tokens - decoding
                for index in self._prefilling:
                    done = self._done[index]
                    chunk = min(self._target[index] - done, budget)
                    if chunk <= 0:
                        break
                    own += -(-(done + chunk) // block) + -done // block
                    budget -= chunk
                    chunks.append((index, chunk))
            else:
                chunks.clear()
            if need + own <= self.pool.free:
                if own:
                    self.pool.take(own)
                return evicted
            self._evict_one(need + own)
            evicted = True
            if decoding:
                decoding = self._decoding

    # --- admission ----------------------------------------------------------------------------------------------------

    def _admit(self, chunks: list[tuple[int, int]], budget: int, held_back: int) -> None:
        """Admit from the queue while blocks, batch tokens and sequences last; appends (request, first chunk)."""
        queue, running, pool, block = self._queue, self._running, self.pool, self._block
        mode = self.policy.admission_mode
        growth = self.limits.growth
        most = self.limits.max_num_seqs
        if growth is not None and self._batch_full:
            return
        if running and not self._gate_open():
            return
        # SGLang remembers that its batch was full until someone leaves; a batch that began empty is a new one.
        remembers = growth is not None and bool(running)
        expected = 0.0 if growth is None else self._expected_growth(growth.most_new_tokens)
        whole = 0
        while queue and budget > 0 and len(running) < most:
            index = queue[0]
            request = self._requests[index]
            target = request.prompt_tokens + self._generated[index]
            saved = self._done[index] if self._swaps else 0
            owner, hit = self._found(index, request, target)
            start = saved if saved else hit * block
            chunk = 0 if saved and self._generated[index] else min(target - start, budget)
            held_blocks = -(-(start + chunk) // block)
            if mode == "first_chunk":
                need = held_blocks
            else:
                need = -(-target // block)
            need += held_back
            if running:
                need += self._watermark
            if need > pool.free:
                self._batch_full = remembers
                break
            if mode == "reserve":
                reserve = -(-(request.prompt_tokens + request.max_tokens) // block)
                if self._reserved + reserve > pool.blocks:
                    break
                self._reserved += reserve
            if growth is not None:
                to_come = min(request.max_tokens - self._generated[index], growth.most_new_tokens)
                if running and target - start + to_come >= (pool.free - held_back) * block - expected - whole:
                    self._batch_full = remembers
                    break
                whole += to_come
            queue.popleft()
            if hit and not saved:
                pool.reclaim(owner, hit)
                held_blocks -= hit
            pool.take(held_blocks)
            self._start(index, request, start, target, chunk, chunks)
            budget -= chunk

    def _found(self, index: int, request: Request, target: int) -> tuple[int, int]:
        """(owner, leading blocks) that the request finds in the pool: its own after an eviction, or its session's."""
        pool = self.pool
        if not pool.caching:
            return -1, 0
        if self._high[index]:
            if not self._keeps:
                return -1, 0
            owner, most = index, target - 1
        elif request.session is not None and request.prefix and self.limits.prefix_caching:
            found = self._last_turn.get(request.session)
            if found is None:
                return -1, 0
            owner, most = found, min(request.prefix, target - 1)
        else:
            return -1, 0
        hit = min(pool.found(owner), most // self._block)
        if hit and self.policy.reuse == "ttl" and self.now - self.record.freed_s[owner] > self.policy.reuse_ttl_s:
            pool.forget(owner)
            hit = 0
        return owner, hit

    def _start(
        self, index: int, request: Request, start: int, target: int, chunk: int, chunks: list[tuple[int, int]]
    ) -> None:
        record = self.record
        again = self._high[index] > 0
        self._running.append(index)
        self._admitted[index] = self._admissions
        if self._first_admitted[index] < 0:
            self._first_admitted[index] = self._admissions
            record.started_s[index] = self.now
        self._admissions += 1
        self._done[index] = start
        self._target[index] = target
        self._state[index] = PREFILL
        found = start
        if self._swaps and again:
            self._swap_pending += start * self._swap_s
            found = 0
        elif again:
            record.found_tokens += start
        else:
            record.prefix_tokens += start
        if again:
            record.readmitted_s[index] = self.now
            if start < self._high[index]:
                self._recomputing += 1
        if chunk:
            self._prefilling.append(index)
            chunks.append((index, chunk))
        else:
            self._joining.append(index)
        if self._events is not None:
            self._events.append(Event(self.now, "resume" if again else "admit", index, found))

    def _gate_open(self) -> bool:
        """Queueing hysteresis and circuit breaker: whether admissions are open while something runs."""
        usage = self.pool.used / self.pool.blocks
        if self._hysteresis:
            if usage >= self.policy.queue_high:
                self._closed = True
            elif usage <= self.policy.queue_low:
                self._closed = False
            if self._closed:
                return False
        return self._breaker is None or self._breaker.admits(self.now, usage)

    def _expected_growth(self, most: int) -> float:
        """Tokens that the running requests are expected to add, by the growth reserve's ratio."""
        total = 0
        for index in self._running:
            request = self._requests[index]
            if self._state[index] == DECODE:
                generated = self._base[index] + self._steps - request.prompt_tokens + 1
            else:
                generated = self._generated[index]
            total += min(request.max_tokens - generated, most)
        return total * self._ratio

    # --- eviction -----------------------------------------------------------------------------------------------------

    def _candidate(self, index: int) -> Candidate:
        request, record = self._requests[index], self.record
        if self._state[index] == DECODE:
            computed = self._base[index] + self._steps
            generated = computed - request.prompt_tokens + 1
            last_token: float | None = self.now
        else:
            computed, generated = self._done[index], self._generated[index]
            last_token = record.evicted_s[index] if generated else None
        first = record.first_token_s[index]
        evictions = record.evictions[index]
        return Candidate(
            index,
            self._admitted[index],
            self._first_admitted[index],
            self._arrival[index],
            record.started_s[index],
            None if math.isnan(first) else first,
            last_token,
            request.prompt_tokens,
            computed,
            generated,
            request.max_tokens,
            -(-computed // self._block),
            request.priority,
            evictions,
            record.evicted_s[index] if evictions else None,
            self._high[index],
        )

    def _evict_one(self, need: int) -> None:
        """Evict one running request by the policy's order, because ``need`` blocks are wanted."""
        if self._plain_tail:
            victim = self._candidate(self._running[-1])
            overridden = False
        elif self._key is None:
            raise SimulationError(
                f"at {self.now:.3f} s {need} blocks are needed, {self.pool.free} are free, and victim.order = none "
                "frees none"
            )
        else:
            victim, overridden = choose(
                [self._candidate(index) for index in self._running], self.now, self.policy, self._key
            )
        self._evict(victim, overridden)
        growth = self.limits.growth
        if growth is not None:
            self._batch_full = False
            generated = limit = 0
            while True:
                generated = limit = 0
                for index in self._running:
                    request = self._requests[index]
                    limit += request.max_tokens
                    if self._state[index] == DECODE:
                        generated += self._base[index] + self._steps - request.prompt_tokens + 1
                    else:
                        generated += self._generated[index]
                wanted = len(self._running) * growth.retract_steps
                if len(self._running) < 2 or self.pool.free * self._block >= wanted:
                    break
                candidates = [self._candidate(index) for index in self._running]
                assert self._key is not None
                victim, overridden = choose(candidates, self.now, self.policy, self._key)
                self._evict(victim, overridden)
            if limit:
                self._ratio = min(1.0, (generated + growth.retract_steps * len(self._running)) / limit)

    def _evict(self, victim: Candidate, overridden: bool) -> None:
        index, computed = victim.request, victim.computed
        request, record, block = self._requests[index], self.record, self._block
        record.evict(self.now, victim, overridden, self._recomputing > 0, REPEAT_WINDOW_S)
        was_decoding = self._state[index] == DECODE
        if was_decoding:
            self._leave_decoding(index)
        else:
            if computed < self._high[index]:
                self._recomputing -= 1
            self._prefilling.remove(index)
        self._running.remove(index)
        self._generated[index] = victim.generated
        if computed > self._high[index]:
            self._high[index] = computed
        kept = computed // block if self._keeps and not self._swaps else 0
        self.pool.give(victim.blocks, owner=index, kept=kept)
        record.freed_s[index] = self.now
        if self.policy.admission_mode == "reserve":
            self._reserved -= -(-(request.prompt_tokens + request.max_tokens) // block)
        if self._breaker is not None:
            self._breaker.evicted(self.now)
        if overridden and self.policy.fallback == "abort":
            self.pool.forget(index)
            self._end(index, ABORTED, victim.generated)
            return
        if self._swaps:
            self._swap_pending += computed * self._swap_s
            self._done[index] = computed
        else:
            self._done[index] = 0
        self._state[index] = WAITING
        if self._by_priority:
            insort(self._queue, index, key=self._rank)
        elif self.limits.requeue == "front":
            self._queue.appendleft(index)
        else:
            self._queue.append(index)
        if self._events is not None:
            self._events.append(Event(self.now, "evict", index, computed))

    # --- time ---------------------------------------------------------------------------------------------------------

    def _step(self, chunks: list[tuple[int, int]], decoding: int) -> None:
        """One step with prefill work or transfers in it. Its blocks have been taken."""
        cost, record, now = self.cost, self.record, self.now
        tokens, again = decoding, 0
        attention = attention_again = 0.0
        for index, chunk in chunks:
            done = self._done[index]
            high = self._high[index]
            tokens += chunk
            attention += chunk * (done + 0.5 * chunk)
            if done < high:
                lost = min(chunk, high - done)
                again += lost
                attention_again += lost * (done + 0.5 * lost)
                if done + chunk >= high:
                    self._recomputing -= 1
            self._done[index] = done + chunk
        read = cost.context_s * (self._base_sum + decoding * self._steps) if decoding else 0.0
        seconds = cost.overhead_s + max(cost.floor_s, cost.token_s * tokens) + read + cost.attention_s * attention
        if again:
            without = max(cost.floor_s, cost.token_s * (tokens - again)) + cost.attention_s * (
                attention - attention_again
            )
            record.recompute_s += max(cost.floor_s, cost.token_s * tokens) + cost.attention_s * attention - without
            record.recompute_tokens += again
        if self._swap_pending:
            seconds += self._swap_pending
            record.swap_s += self._swap_pending
            self._swap_pending = 0.0
        used = self.pool.used
        now += seconds
        self.now = now
        record.busy_s += seconds
        record.steps += 1
        record.prefill_tokens += tokens - decoding
        record.use(seconds, used, used)
        if self._breaker is not None:
            self._breaker.computed(now, tokens - decoding, again)
        gained = decoding
        if decoding:
            self._steps += 1
            record.decode_tokens += decoding
            self._longest(self._steps, seconds + self._carried_s)
            self._carried_s = 0.0
            self._decay(1)
            self._finish_decoded()
        elif self._decoding:
            self._carried_s += seconds
        if self._prefilling:
            ready = [index for index in self._prefilling if self._done[index] >= self._target[index]]
            if ready:
                gained += len(ready)
                self._prefilling = [index for index in self._prefilling if self._done[index] < self._target[index]]
                for index in ready:
                    self._token_after_prefill(index)
        if self._joining:
            for index in self._joining:
                record.resumed(index, now)
                self._join(index, self._done[index])
            self._joining = []
            gained += 1
        if gained:
            self._without_token = 0
        else:
            self._without_token += 1
            self._check_progress()
        self.timeline.sample(now, self.pool.used, len(self._queue), len(self._running))

    def _token_after_prefill(self, index: int) -> None:
        """The step that completed a prefill also sampled a token."""
        request, record = self._requests[index], self.record
        record.sampled_tokens += 1
        generated = self._generated[index] + 1
        self._generated[index] = generated
        if generated == 1:
            record.first_token_s[index] = self.now
            if self._events is not None:
                self._events.append(Event(self.now, "first_token", index, self._target[index]))
        else:
            record.resumed(index, self.now)
        if generated >= request.output_tokens:
            self._running.remove(index)
            self._release_finished(index, self._target[index])
        else:
            self._join(index, self._target[index])

    def _join(self, index: int, computed: int) -> None:
        """The request decodes from the next step on."""
        steps, block = self._steps, self._block
        base = computed - steps
        self._state[index] = DECODE
        self._base[index] = base
        self._joined[index] = steps
        request = self._requests[index]
        generated = computed - request.prompt_tokens + 1
        finish = steps + request.output_tokens - generated
        self._finish_at[index] = finish
        heappush(self._heap, (finish, index))
        phase = -base % block
        self._phases[phase] += 1
        self._phases[phase + block] += 1
        self._decoding += 1
        self._base_sum += base

    def _leave_decoding(self, index: int) -> None:
        base, block = self._base[index], self._block
        phase = -base % block
        self._phases[phase] -= 1
        self._phases[phase + block] -= 1
        self._decoding -= 1
        self._base_sum -= base
        self._finish_at[index] = -1
        self._gap(index)

    def _leap(self, until: float, evicted: bool) -> None:
        """Decode steps up to the next one that something else can change."""
        cost, record, pool, block = self.cost, self.record, self.pool, self._block
        count, steps, heap = self._decoding, self._steps, self._heap
        finish_at = self._finish_at
        while finish_at[heap[0][1]] != heap[0][0]:
            heappop(heap)
        leap = heap[0][0] - steps
        fixed = cost.overhead_s + max(cost.floor_s, cost.token_s * count)
        first = fixed + cost.context_s * (self._base_sum + count * steps)
        growth = cost.context_s * count
        stop = until
        if not self._queue or self._by_priority:
            next_arrival = self._arrival[self._next] if self._next < len(self._arrival) else math.inf
            if next_arrival < stop:
                stop = next_arrival
        if self._queue:
            if evicted:
                leap = 1
            elif self._breaker is not None and stop > self.now + 1.0:
                # The breaker reopens with time, not only with events: look at it once a second.
                stop = self.now + 1.0
        span = stop - self.now
        if leap > 1 and span < leap * first + growth * (leap * (leap - 1) // 2):
            leap = min(leap, _steps_for(span, first, growth))
        at = steps % block
        rounds, rest = divmod(leap, block)
        need = rounds * count + sum(self._phases[at : at + rest])
        if need > pool.free:
            rounds, rest = divmod(pool.free, count)
            leap = rounds * block
            need = rounds * count
            for more in self._phases[at : at + block]:
                if more > rest:
                    break
                rest -= more
                need += more
                leap += 1
        before = pool.used
        if need:
            pool.take(need)
        seconds = leap * first + growth * (leap * (leap - 1) // 2)
        self.now += seconds
        self._steps = steps + leap
        record.busy_s += seconds
        record.steps += leap
        record.decode_tokens += leap * count
        record.use(seconds, before, before + need)
        longest = first + growth * (leap - 1)
        if self._carried_s:
            longest = max(longest, first + self._carried_s)
            self._carried_s = 0.0
        self._longest(self._steps, longest)
        if self.limits.growth is not None:
            self._decay(leap)
        self._without_token = 0
        self._finish_decoded()
        self.timeline.sample(self.now, pool.used, len(self._queue), len(self._running))

    def _decay(self, steps: int) -> None:
        growth = self.limits.growth
        if growth is not None:
            self._ratio = max(growth.floor, self._ratio - steps * growth.step)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _finish_decoded(self) -> None:
        """Release the decoding requests whose last token this step was."""
        heap, steps = self._heap, self._steps
        while heap and heap[0][0] <= steps:
            finish, index = heappop(heap)
            if self._finish_at[index] != finish:
                continue
            computed = self._base[index] + steps
            self._leave_decoding(index)
            self._running.remove(index)
            self._release_finished(index, computed)

    def _release_finished(self, index: int, computed: int) -> None:
        request, block = self._requests[index], self._block
        session = request.session
        if session is not None and self.limits.prefix_caching:
            self.pool.give(-(-computed // block), owner=index, kept=computed // block)
            self._last_turn[session] = index
        else:
            self.pool.give(-(-computed // block))
        self.record.freed_s[index] = self.now
        if self.policy.admission_mode == "reserve":
            self._reserved -= -(-(request.prompt_tokens + request.max_tokens) // block)
        self._end(index, DONE, request.output_tokens)

    def _end(self, index: int, state: int, generated: int) -> None:
        self._state[index] = state
        record = self.record
        record.ended_s[index] = self.now
        if state == DONE:
            record.finished += 1
            if self._breaker is not None:
                self._breaker.finished(self.now)
        else:
            record.aborted += 1
            record.thrown_out.add(index)
        record.output_tokens += generated
        self._batch_full = False
        if self._events is not None:
            self._events.append(Event(self.now, "finish" if state == DONE else "abort", index, generated))
        if self._clients is not None:
            self._release()

    # --- gaps between tokens ------------------------------------------------------------------------------------------

    def _longest(self, step: int, seconds: float) -> None:
        stack = self._gap_s
        while stack and stack[-1] <= seconds:
            stack.pop()
            self._gap_step.pop()
        stack.append(seconds)
        self._gap_step.append(step)

    def _gap(self, index: int) -> None:
        """Fold the longest step since the request joined into its longest gap."""
        at = bisect_right(self._gap_step, self._joined[index])
        if at < len(self._gap_s):
            longest = self._gap_s[at]
            if longest > self.record.longest_gap_s[index]:
                self.record.longest_gap_s[index] = longest

    def _check_progress(self) -> None:
        if self._without_token > self._patience:
            raise SimulationError(
                f"live-lock at {self.now:.3f} s: {self._without_token} steps without one generated token, "
                f"{len(self._running)} running, {len(self._queue)} waiting, {self.record.preemptions} evictions "
                f"under {self.policy.victim_order} / {self.policy.admission_mode}"
            )


def _steps_for(span: float, first: float, growth: float) -> int:
    """The fewest steps (at least one) whose summed time reaches ``span``: the first takes ``first``, each next more."""
    if span <= first:
        return 1
    if growth > 0.0:
        half = first - 0.5 * growth
        count = int((math.sqrt(half * half + 2.0 * growth * span) - half) / growth)
    else:
        count = int(span / first)
    count = max(1, count)
    while count * first + growth * (count * (count - 1) // 2) < span:
        count += 1
    while count > 1 and (count - 1) * first + growth * ((count - 1) * (count - 2) // 2) >= span:
        count -= 1
    return count


def _evicts(policy: Policy) -> bool:
    return policy.victim_order != "none"


def check_policy(policy: Policy, limits: Limits) -> None:
    """Raise SimulationError for a policy that this engine cannot run to an end."""
    if policy.pool_kind != "paged":
        raise SimulationError(
            f"pool.kind = {policy.pool_kind}: the step engine needs a paged pool; contiguous pools are compared as "
            "allocators"
        )
    if not _evicts(policy) and policy.admission_mode != "reserve":
        raise SimulationError(
            f"victim.order = none with admission.mode = {policy.admission_mode} can never free a block once the pool "
            "is full; reserve prompt + max_tokens (admission.mode = reserve) or name an order"
        )
    if limits.max_batched_tokens < limits.max_num_seqs:
        raise SimulationError(
            f"max_batched_tokens = {limits.max_batched_tokens} is below max_num_seqs = {limits.max_num_seqs}: a full "
            "batch could not decode in one step"
        )


def never_fits(request: Request, policy: Policy, blocks: int) -> str | None:
    """Why the request can never be served from a pool of ``blocks`` blocks, or None."""
    block = policy.pool_block_tokens
    tokens = request.prompt_tokens + request.output_tokens
    what = "its prompt and output"
    if policy.admission_mode == "reserve":
        tokens = request.prompt_tokens + request.max_tokens
        what = "prompt + max_tokens, which admission.mode = reserve holds back"
    if -(-tokens // block) > blocks:
        return f"{tokens} tokens ({what}) exceed the pool of {blocks * block} tokens"
    return None
