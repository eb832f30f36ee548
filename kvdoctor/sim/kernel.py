"""The engine's loop over arrays, written for the compiler: see ``fast`` for what it covers and how it is compiled.

Every float expression stands here as it stands in the engine, so that both give equal results. ``state`` holds the
scalars that helpers change: free blocks, head and last segment of the free list, decoding requests, sum of their
bases, step counter, height of the gap stack.
"""

from __future__ import annotations

import math
from typing import Any

from .engine import REPEAT_WINDOW_S, STALL_LIMIT
from .result import NEAR_SHARE, NEAR_TOKENS

np: Any = None
"""numpy, put here by ``fast`` before it compiles; not imported at the top because it costs every start."""

HELPERS = ("take", "give", "leave_decoding", "remove", "steps_for")

FREE, HEAD, LAST, DECODING, BASE_SUM, STEPS, TOP = range(7)
_POINTS = 400


def take(count: Any, state: Any, owner: Any, held: Any, place: Any) -> Any:
    """Take blocks from the front of the free list."""
    state[FREE] -= count
    head = state[HEAD]
    while count:
        here = held[head]
        if here > count:
            held[head] = here - count
            break
        count -= here
        held[head] = 0
        if owner[head] >= 0:
            place[owner[head]] = -1
            owner[head] = -1
        if head == state[LAST]:
            break
        head += 1
    state[HEAD] = head


def give(count: Any, who: Any, kept: Any, state: Any, owner: Any, held: Any, place: Any) -> Any:
    """Return blocks to the end of the free list, the leading ``kept`` with content of ``who``."""
    state[FREE] += count
    loose = count - kept
    if loose:
        if owner[state[LAST]] < 0:
            held[state[LAST]] += loose
        else:
            state[LAST] += 1
            owner[state[LAST]] = -1
            held[state[LAST]] = loose
    if kept:
        if place[who] >= 0:
            owner[place[who]] = -1
        state[LAST] += 1
        owner[state[LAST]] = who
        held[state[LAST]] = kept
        place[who] = state[LAST]


def leave_decoding(
    index: Any, state: Any, block: Any, base: Any, phases: Any, finish_at: Any, joined: Any, gap_step: Any, gap_s: Any,
    longest: Any,
) -> Any:  # fmt: skip
    """Take a request out of the decoding set and fold its longest gap in."""
    phase = -base[index] % block
    phases[phase] -= 1
    state[DECODING] -= 1
    state[BASE_SUM] -= base[index]
    finish_at[index] = -1
    low, high = 0, state[TOP]
    while low < high:
        middle = (low + high) // 2
        if joined[index] < gap_step[middle]:
            high = middle
        else:
            low = middle + 1
    if low < state[TOP] and gap_s[low] > longest[index]:
        longest[index] = gap_s[low]


def remove(items: Any, count: Any, value: Any) -> Any:
    """Remove the first ``value`` of the first ``count`` items, closing the gap. Returns the new count."""
    at = 0
    while items[at] != value:
        at += 1
    for here in range(at, count - 1):
        items[here] = items[here + 1]
    return count - 1


def steps_for(span: Any, first: Any, growth: Any) -> Any:
    """The engine's ``_steps_for``."""
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


def replay(
    arrival: Any, prompt: Any, output: Any, most: Any, prefix: Any, session: Any, sessions: Any, clients: Any,
    order: Any, mode: Any, watermark: Any, keeps: Any, reuses: Any, max_seqs: Any, max_tokens: Any, block: Any,
    blocks: Any, overhead_s: Any, floor_s: Any, token_s: Any, context_s: Any, attention_s: Any,
) -> Any:  # fmt: skip
    """Replay a whole load on one GPU. Returns (counters, seconds, per-request columns, lists)."""
    n = len(prompt)
    generated = np.zeros(n, np.int64)
    done = np.zeros(n, np.int64)
    target = np.zeros(n, np.int64)
    high = np.zeros(n, np.int64)
    base = np.zeros(n, np.int64)
    finish_at = np.full(n, -1, np.int64)
    joined = np.full(n, -1, np.int64)
    admitted = np.full(n, -1, np.int64)
    first_admitted = np.full(n, -1, np.int64)
    decodes = np.zeros(n, np.bool_)
    started_s = np.full(n, math.nan)
    first_token_s = np.full(n, math.nan)
    ended_s = np.full(n, math.nan)
    evicted_s = np.full(n, math.nan)
    readmitted_s = np.full(n, math.nan)
    freed_s = np.full(n, math.nan)
    longest = np.zeros(n)
    evictions = np.zeros(n, np.int64)
    last_turn = np.full(sessions + 1, -1, np.int64)

    place = np.full(n, -1, np.int64)
    owner = np.full(1024 + 8 * max_seqs, -1, np.int64)
    held = np.zeros(1024 + 8 * max_seqs, np.int64)
    held[0] = blocks
    state = np.zeros(7, np.int64)
    state[FREE] = blocks
    phases = np.zeros(block, np.int64)
    gap_step = np.zeros(256, np.int64)
    gap_s = np.zeros(256)

    queue = np.zeros(n + 1, np.int64)
    q_head = q_count = 0
    running = np.zeros(max_seqs + 1, np.int64)
    r_count = 0
    prefilling = np.zeros(max_seqs + 1, np.int64)
    p_count = 0
    chunk_of = np.zeros(max_seqs + 1, np.int64)
    who_of = np.zeros(max_seqs + 1, np.int64)

    stall_who = np.zeros(1024 + max_seqs, np.int64)
    stall_wait = np.zeros(1024 + max_seqs)
    stall_work = np.zeros(1024 + max_seqs)
    s_count = 0
    remaining_of = np.zeros(1024 + max_seqs, np.int64)
    v_count = 0
    points = np.zeros((_POINTS, 4))
    t_count = 0
    every, next_sample = 0.05, 0.0

    now = busy = recompute_s = block_seconds = 0.0
    steps_run = prefill_tokens = decode_tokens = sampled = recompute_tokens = found_tokens = prefix_tokens = 0
    output_tokens = preemptions = repeats = chains = near_done = lost_tokens = peak = 0
    admissions = reserved = recomputing = without = 0
    stuck = 0
    patience = STALL_LIMIT + blocks * block // max_tokens
    upcoming = 0
    released = 0
    if clients:
        while released < min(clients, n):
            arrival[released] = 0.0
            released += 1

    while True:
        while upcoming < n and arrival[upcoming] <= now:
            queue[(q_head + q_count) % (n + 1)] = upcoming
            q_count += 1
            upcoming += 1
        if r_count == 0 and q_count == 0:
            if upcoming >= n or arrival[upcoming] == math.inf:
                break
            now = arrival[upcoming]
            continue

        # Room for what one step can add.
        if state[LAST] + 4 * max_seqs + 8 >= len(owner):
            head = state[HEAD]
            live = state[LAST] - head + 1
            size = len(owner)
            if 2 * (live + 4 * max_seqs + 8) > size:
                size *= 2
            new_owner = np.full(size, -1, np.int64)
            new_held = np.zeros(size, np.int64)
            for at in range(live):
                new_owner[at] = owner[head + at]
                new_held[at] = held[head + at]
                if new_owner[at] >= 0:
                    place[new_owner[at]] = at
            owner, held = new_owner, new_held
            state[HEAD] = 0
            state[LAST] = live - 1
        if state[TOP] + 1 >= len(gap_s):
            gap_step = np.concatenate((gap_step, np.zeros(len(gap_step), np.int64)))
            gap_s = np.concatenate((gap_s, np.zeros(len(gap_s))))
        if s_count + max_seqs >= len(stall_who):
            stall_who = np.concatenate((stall_who, np.zeros(len(stall_who), np.int64)))
            stall_wait = np.concatenate((stall_wait, np.zeros(len(stall_wait))))
            stall_work = np.concatenate((stall_work, np.zeros(len(stall_work))))
        if v_count + max_seqs >= len(remaining_of):
            remaining_of = np.concatenate((remaining_of, np.zeros(len(remaining_of), np.int64)))

        # Evict until this step's decodes and running prefills have their blocks.
        evicted = False
        c_count = 0
        budget = 0
        need = 0
        while True:
            need = phases[state[STEPS] % block] if state[DECODING] else 0
            own = 0
            c_count = 0
            budget = max_tokens - state[DECODING]
            for at in range(p_count):
                index = prefilling[at]
                chunk = min(target[index] - done[index], budget)
                if chunk <= 0:
                    break
                own += -(-(done[index] + chunk) // block) - -(-done[index] // block)
                budget -= chunk
                who_of[c_count] = index
                chunk_of[c_count] = chunk
                c_count += 1
            if need + own <= state[FREE]:
                if own:
                    take(own, state, owner, held, place)
                break
            evicted = True
            victim = running[r_count - 1]
            if order > 0:
                best = 0.0
                tie = -1
                for at in range(r_count):
                    index = running[at]
                    if decodes[index]:
                        computed = base[index] + state[STEPS]
                        made = computed - prompt[index] + 1
                    else:
                        computed, made = done[index], generated[index]
                    second = 0
                    if order == 1:
                        score = float(-first_admitted[index])
                    elif order == 2:
                        score = float(first_admitted[index])
                    elif order == 3:
                        score = float(-computed // block)
                    elif order == 4:
                        score = float(made)
                        second = -prompt[index]
                    else:
                        left = most[index] - made
                        score = math.inf if left <= 0 else computed / left
                    better = tie < 0 or score < best
                    if not better and score == best:
                        other = -prompt[victim] if order == 4 else 0
                        better = second < other or (second == other and admitted[index] > admitted[victim])
                    if better:
                        best, tie, victim = score, 1, index
            index = victim
            if decodes[index]:
                computed = base[index] + state[STEPS]
                made = computed - prompt[index] + 1
            else:
                computed, made = done[index], generated[index]
            preemptions += 1
            lost_tokens += computed
            left = most[index] - made
            remaining_of[v_count] = left
            v_count += 1
            if left < NEAR_TOKENS and left < NEAR_SHARE * computed:
                near_done += 1
            if evictions[index] and now - evicted_s[index] <= REPEAT_WINDOW_S:
                repeats += 1
            if recomputing > 0:
                chains += 1
            evictions[index] += 1
            evicted_s[index] = now
            if decodes[index]:
                leave_decoding(index, state, block, base, phases, finish_at, joined, gap_step, gap_s, longest)
                decodes[index] = False
            else:
                if computed < high[index]:
                    recomputing -= 1
                p_count = remove(prefilling, p_count, index)
            r_count = remove(running, r_count, index)
            generated[index] = made
            if computed > high[index]:
                high[index] = computed
            kept = computed // block if keeps else 0
            give(-(-computed // block), index, kept, state, owner, held, place)
            freed_s[index] = now
            if mode == 2:
                reserved -= -(-(prompt[index] + most[index]) // block)
            done[index] = 0
            q_head = (q_head - 1) % (n + 1)
            queue[q_head] = index
            q_count += 1

        # Admit while blocks, batch tokens and sequences last.
        if q_count and not evicted:
            while q_count and budget > 0 and r_count < max_seqs:
                index = queue[q_head]
                goal = prompt[index] + generated[index]
                source = -1
                hit = 0
                if high[index]:
                    if keeps:
                        source = index
                        hit = goal - 1
                elif reuses and session[index] >= 0 and prefix[index]:
                    source = last_turn[session[index]]
                    hit = min(prefix[index], goal - 1)
                if source >= 0 and place[source] >= 0:
                    hit = min(held[place[source]], hit // block)
                else:
                    hit = 0
                start = hit * block
                chunk = min(goal - start, budget)
                holds = -(-(start + chunk) // block)
                wanted = holds if mode == 0 else -(-goal // block)
                wanted += need
                if r_count:
                    wanted += watermark
                if wanted > state[FREE]:
                    break
                if mode == 2:
                    reserve = -(-(prompt[index] + most[index]) // block)
                    if reserved + reserve > blocks:
                        break
                    reserved += reserve
                q_head = (q_head + 1) % (n + 1)
                q_count -= 1
                if hit:
                    spot = place[source]
                    place[source] = -1
                    held[spot] -= hit
                    owner[spot] = -1
                    state[FREE] -= hit
                    holds -= hit
                take(holds, state, owner, held, place)
                again = high[index] > 0
                running[r_count] = index
                r_count += 1
                admitted[index] = admissions
                if first_admitted[index] < 0:
                    first_admitted[index] = admissions
                    started_s[index] = now
                admissions += 1
                done[index] = start
                target[index] = goal
                if again:
                    found_tokens += start
                    readmitted_s[index] = now
                    if start < high[index]:
                        recomputing += 1
                else:
                    prefix_tokens += start
                prefilling[p_count] = index
                p_count += 1
                who_of[c_count] = index
                chunk_of[c_count] = chunk
                c_count += 1
                budget -= chunk

        decoding = state[DECODING]
        if c_count:
            if need:
                take(need, state, owner, held, place)
            tokens = decoding
            repeated = 0
            attention = attention_again = 0.0
            for at in range(c_count):
                index, chunk = who_of[at], chunk_of[at]
                here = done[index]
                tokens += chunk
                attention += chunk * (here + 0.5 * chunk)
                if here < high[index]:
                    lost = min(chunk, high[index] - here)
                    repeated += lost
                    attention_again += lost * (here + 0.5 * lost)
                    if here + chunk >= high[index]:
                        recomputing -= 1
                done[index] = here + chunk
            read = context_s * (state[BASE_SUM] + decoding * state[STEPS]) if decoding else 0.0
            seconds = overhead_s + max(floor_s, token_s * tokens) + read + attention_s * attention
            if repeated:
                less = max(floor_s, token_s * (tokens - repeated)) + attention_s * (attention - attention_again)
                recompute_s += max(floor_s, token_s * tokens) + attention_s * attention - less
                recompute_tokens += repeated
            used = blocks - state[FREE]
            now += seconds
            busy += seconds
            steps_run += 1
            prefill_tokens += tokens - decoding
            block_seconds += 0.5 * seconds * (used + used)
            peak = max(peak, used)
            gained = decoding
            worst = seconds
            advanced = 1 if decoding else 0
            decode_tokens += decoding
        elif decoding:
            count = decoding
            steps = state[STEPS]
            leap = -1
            for at in range(r_count):
                finish = finish_at[running[at]]
                if finish >= 0 and (leap < 0 or finish - steps < leap):
                    leap = finish - steps
            fixed = overhead_s + max(floor_s, token_s * count)
            first = fixed + context_s * (state[BASE_SUM] + count * steps)
            growth = context_s * count
            stop = math.inf
            if q_count == 0 and upcoming < n:
                stop = arrival[upcoming]
            if q_count and evicted:
                leap = 1
            span = stop - now
            if leap > 1 and span < leap * first + growth * (leap * (leap - 1) // 2):
                leap = min(leap, steps_for(span, first, growth))
            at_phase = steps % block
            need = (leap // block) * count
            for at in range(at_phase, at_phase + leap % block):
                need += phases[at % block]
            if need > state[FREE]:
                rounds, rest = state[FREE] // count, state[FREE] % count
                leap = rounds * block
                need = rounds * count
                for at in range(at_phase, at_phase + block):
                    more = phases[at % block]
                    if more > rest:
                        break
                    rest -= more
                    need += more
                    leap += 1
            used = blocks - state[FREE]
            if need:
                take(need, state, owner, held, place)
            seconds = leap * first + growth * (leap * (leap - 1) // 2)
            now += seconds
            busy += seconds
            steps_run += leap
            decode_tokens += leap * count
            block_seconds += 0.5 * seconds * (used + (used + need))
            peak = max(peak, used + need)
            worst = first + growth * (leap - 1)
            gained = 1
            advanced = leap
        else:
            without += 1
            if without > patience:
                stuck = 1
                break
            continue

        if advanced:
            state[STEPS] += advanced
            while state[TOP] and gap_s[state[TOP] - 1] <= worst:
                state[TOP] -= 1
            gap_s[state[TOP]] = worst
            gap_step[state[TOP]] = state[STEPS]
            state[TOP] += 1
            while True:
                # The lowest index first, as the engine's heap gives them.
                index = -1
                for at in range(r_count):
                    one = running[at]
                    if finish_at[one] == state[STEPS] and (index < 0 or one < index):
                        index = one
                if index < 0:
                    break
                computed = base[index] + state[STEPS]
                leave_decoding(index, state, block, base, phases, finish_at, joined, gap_step, gap_s, longest)
                decodes[index] = False
                r_count = remove(running, r_count, index)
                in_session = session[index] >= 0 and reuses
                give(-(-computed // block), index, computed // block if in_session else 0, state, owner, held, place)
                if in_session:
                    last_turn[session[index]] = index
                freed_s[index] = now
                ended_s[index] = now
                output_tokens += output[index]
                if mode == 2:
                    reserved -= -(-(prompt[index] + most[index]) // block)
                if clients and released < n:
                    arrival[released] = now
                    released += 1
        if c_count:
            still = 0
            ready = 0
            for at in range(p_count):
                index = prefilling[at]
                if done[index] >= target[index]:
                    who_of[ready] = index
                    ready += 1
                else:
                    prefilling[still] = index
                    still += 1
            p_count = still
            gained += ready
            for at in range(ready):
                index = who_of[at]
                sampled += 1
                generated[index] += 1
                if generated[index] == 1:
                    first_token_s[index] = now
                else:
                    gone, back = evicted_s[index], readmitted_s[index]
                    stall_who[s_count] = index
                    stall_wait[s_count] = back - gone
                    stall_work[s_count] = now - back
                    s_count += 1
                    longest[index] = max(longest[index], now - gone)
                computed = target[index]
                if generated[index] >= output[index]:
                    r_count = remove(running, r_count, index)
                    in_session = session[index] >= 0 and reuses
                    kept = computed // block if in_session else 0
                    give(-(-computed // block), index, kept, state, owner, held, place)
                    if in_session:
                        last_turn[session[index]] = index
                    freed_s[index] = now
                    ended_s[index] = now
                    output_tokens += output[index]
                    if mode == 2:
                        reserved -= -(-(prompt[index] + most[index]) // block)
                    if clients and released < n:
                        arrival[released] = now
                        released += 1
                else:
                    decodes[index] = True
                    base[index] = computed - state[STEPS]
                    joined[index] = state[STEPS]
                    finish_at[index] = state[STEPS] + output[index] - (computed - prompt[index] + 1)
                    phases[-base[index] % block] += 1
                    state[DECODING] += 1
                    state[BASE_SUM] += base[index]
        if gained:
            without = 0
        else:
            without += 1
            if without > patience:
                stuck = 1
                break
        if now >= next_sample:
            points[t_count, 0] = now
            points[t_count, 1] = blocks - state[FREE]
            points[t_count, 2] = q_count
            points[t_count, 3] = r_count
            t_count += 1
            if t_count >= _POINTS:
                for at in range(0, _POINTS, 2):
                    for column in range(4):
                        points[at // 2, column] = points[at, column]
                t_count = _POINTS // 2
                every *= 2.0
            next_sample = now + every

    counters = np.array(
        (
            stuck, steps_run, prefill_tokens, decode_tokens, sampled, recompute_tokens, found_tokens, prefix_tokens,
            output_tokens, preemptions, repeats, chains, near_done, lost_tokens, peak,
        )
    )  # fmt: skip
    columns = (started_s, first_token_s, ended_s, evicted_s, readmitted_s, freed_s, longest, evictions, arrival)
    lists = (
        stall_who[:s_count], stall_wait[:s_count], stall_work[:s_count], remaining_of[:v_count], points[:t_count],
    )  # fmt: skip
    return counters, np.array((busy, recompute_s, block_seconds)), columns, lists
