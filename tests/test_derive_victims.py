"""What was preempted, by which figure, and what a figure that is missing does not prove."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from kvdoctor.facts import Fact, Known, Unknown
from kvdoctor.normalise import normalise
from kvdoctor.pipeline import diagnose
from kvdoctor.report.words import interval
from kvdoctor.snapshot import Snapshot, memory_member

START = 1_790_000_000.0


def facts(*members: tuple[str, str, float | None]) -> dict[str, Fact]:
    taken = tuple(memory_member(name, text.encode(), time=time) for name, text, time in members)
    return dict(diagnose(Snapshot(taken), ()).main.facts)


def known(found: dict[str, Fact], name: str) -> Known:
    fact = found[name]
    assert isinstance(fact, Known), (name, fact)
    return fact


# -------------------------------------------------------------------- TensorRT-LLM: a log


def triton_line(second: int, paused: int | None) -> str:
    record = {
        "Active Request Count": 48,
        "Context Requests": 2,
        "Iteration Counter": second,
        "Max KV cache blocks": 4100,
        "Max Request Count": 64,
        "MicroBatch ID": 0,
        "Runtime Pinned Memory Usage": 500000,
        "Scheduled Requests": 28,
        "Total Context Tokens": 7000,
        "Used KV cache blocks": 4083,
    }
    if paused is not None:
        record["Paused Requests"] = paused
    return f"2026-09-14T08:20:{second:02d}.500000000Z [TensorRT-LLM][INFO] {json.dumps(record)}"


WARNING = (
    "2026-09-14T08:20:30.100000000Z [TensorRT-LLM][WARNING] Pause generation only request ,request_id :1010 , change it as "
    "context init state, which may degrade performance"
)


def log(lines: Sequence[str]) -> dict[str, Fact]:
    return facts(("triton.log", "\n".join([*lines, ""]), None))


def test_paused_requests_of_the_stats_lines_are_summed() -> None:
    found = log([triton_line(second, 16 + second % 4) for second in range(20)])
    count = known(found, "preempt.count")
    assert (count.lo, count.hi, count.how) == (350.0, 350.0, "measured")
    assert known(found, "preempt.kind").hi == "pause"
    assert known(found, "kv.pressure").hi is True


def test_a_warning_for_some_of_them_does_not_hide_the_sum() -> None:
    found = log([*(triton_line(second, 16) for second in range(20)), WARNING])
    assert known(found, "preempt.count").hi == 320.0


def test_a_warning_alone_is_one_pause() -> None:
    found = log([*(triton_line(second, None) for second in range(20)), WARNING])
    assert known(found, "preempt.count").hi == 1.0
    assert known(found, "preempt.kind").hi == "pause"


def test_a_log_that_names_pauses_at_debug_level_only_proves_no_zero() -> None:
    found = log([triton_line(second, None) for second in range(20)])
    assert isinstance(found["preempt.count"], Unknown)


def test_stats_lines_that_tell_no_pause_are_a_zero() -> None:
    found = log([triton_line(second, 0) for second in range(20)])
    assert known(found, "preempt.count").hi == 0.0


def test_two_reports_of_one_step_are_counted_once() -> None:
    summary = "[TensorRT-LLM][DEBUG] [Summary] Capacity scheduler allows 28 requests, pauses 16 requests"
    lines = [line for second in range(20) for line in (triton_line(second, 16), summary)]
    assert known(log(lines), "preempt.count").hi == 320.0


# -------------------------------------------------------------------- TensorRT-LLM: iteration statistics


def steps(
    count: int, *, every: int = 9, pauses: int = 3, first: int = 2000, slow: int = 0, without: Sequence[int] = ()
) -> str:
    rows = []
    for number in range(count):
        if number in without:
            continue
        rows.append(
            {
                "iter": first + number,
                "iterLatencyMS": 1500.0 if number < slow else 40.0,
                "numActiveRequests": 40,
                "numQueuedRequests": 0,
                "numCompletedRequests": int(number % every == 0),
                "maxNumActiveRequests": 256,
                "kvCacheStats": {
                    "maxNumBlocks": 4100,
                    "usedNumBlocks": 4012,
                    "freeNumBlocks": 88,
                    "tokensPerBlock": 64,
                },
                "inflightBatchingStats": {
                    "numScheduledRequests": 40,
                    "numContextRequests": 0,
                    "numCtxTokens": 0,
                    "numGenRequests": 40,
                    "numPausedRequests": int(0 < number <= pauses),
                    "microBatchId": 0,
                },
                "timestamp": f"09-14-2026 08:{23 + number // 600:02d}:{number // 10 % 60:02d}.{number % 10}00000",
            }
        )
    return "\n".join([*map(json.dumps, rows), ""])


def test_completed_requests_and_time_stamps_are_used() -> None:
    found = facts(("iter.jsonl", steps(601), None))
    assert known(found, "req.finished").hi == 67.0
    assert known(found, "preempt.per_finished").hi == pytest.approx(3 / 67)
    assert known(found, "target.window_s").hi == pytest.approx(60.0)
    assert known(found, "preempt.rate").hi == pytest.approx(3 / 60.0)


def test_a_pause_that_was_seen_tells_its_kind_without_the_policy() -> None:
    assert known(facts(("iter.jsonl", steps(601), None)), "preempt.kind").hi == "pause"
    assert "preempt.kind" not in facts(("iter.jsonl", steps(601, pauses=0), None))


def test_steps_bound_the_stalls() -> None:
    stalls = known(facts(("iter.jsonl", steps(601), None)), "latency.stalls")
    assert (stalls.lo, stalls.hi, stalls.how) == (0.0, 3.0, "bound")
    # a step over a second is felt by all forty requests in it
    assert known(facts(("iter.jsonl", steps(601, slow=2), None)), "latency.stalls").hi == 83.0


def test_steps_with_a_hole_say_nothing_of_stalls() -> None:
    assert isinstance(facts(("iter.jsonl", steps(601, without=(300,)), None))["latency.stalls"], Unknown)


# -------------------------------------------------------------------- vLLM V0: the swap space


def v0_page(swapped: float, host: float, preempted: float) -> str:
    return "\n".join(
        [
            "vllm:num_requests_running 28.0",
            f"vllm:num_requests_swapped {swapped}",
            "vllm:num_requests_waiting 70.0",
            "vllm:gpu_cache_usage_perc 0.99",
            f"vllm:cpu_cache_usage_perc {host}",
            f"vllm:num_preemptions_total {preempted}",
            "",
        ]
    )


def pages(*texts: str) -> dict[str, Fact]:
    return facts(*((f"m{i}.prom", text, START + 60 * i) for i, text in enumerate(texts)))


def test_requests_seen_in_the_swap_space_tell_the_kind() -> None:
    assert known(pages(v0_page(4, 0.1, 100), v0_page(42, 0.76, 920)), "preempt.kind").hi == "swap"


def test_an_empty_swap_space_leaves_the_table_of_the_engine() -> None:
    assert known(pages(v0_page(0, 0.0, 100), v0_page(0, 0.0, 920)), "preempt.kind").hi == "recompute"


def test_series_that_ended_with_v0_keep_later_flags_out_of_the_advice() -> None:
    members = tuple(
        memory_member(f"m{i}.prom", text.encode(), time=START + 60 * i)
        for i, text in enumerate((v0_page(4, 0.1, 100), v0_page(42, 0.76, 920)))
    )
    target = normalise(Snapshot(members)).targets[0]
    assert target.version is None
    assert target.newest_version() == "0.9.0"


def test_a_series_of_later_says_that_the_old_names_were_only_kept_on() -> None:
    page = v0_page(0, 0.0, 100) + 'vllm:num_requests_waiting_by_reason{reason="capacity"} 3.0\n'
    target = normalise(Snapshot((memory_member("m.prom", page.encode(), time=START),))).targets[0]
    assert target.newest_version() is None


# -------------------------------------------------------------------- a histogram of finished requests


def sglang_page(hits: Sequence[int], running: int = 4, waiting: int = 2) -> str:
    lines = [
        f'sglang:num_running_reqs{{tp_rank="0"}} {running}',
        f'sglang:num_queue_reqs{{tp_rank="0"}} {waiting}',
        'sglang:token_usage{tp_rank="0"} 0.98',
        "# TYPE sglang:num_retractions histogram",
    ]
    for edge in (0, 1, 2, 3, 5):
        lines.append(f'sglang:num_retractions_bucket{{tp_rank="0",le="{edge}"}} {sum(h <= edge for h in hits)}')
    lines.append(f'sglang:num_retractions_bucket{{tp_rank="0",le="+Inf"}} {len(hits)}')
    lines.append(f'sglang:num_retractions_sum{{tp_rank="0"}} {sum(hits)}')
    lines.append(f'sglang:num_retractions_count{{tp_rank="0"}} {len(hits)}')
    return "\n".join([*lines, ""])


def test_hits_of_finished_requests_are_a_lower_bound_of_the_count() -> None:
    before, after = [0] * 40, [0] * 40 + [0] * 50 + [1] * 20 + [3] * 10
    found = pages(sglang_page(before), sglang_page(after))
    count = known(found, "preempt.count")
    # six were there when the window began: six of those hit three times may have been hit before it
    assert (count.lo, count.hi, count.how, count.span) == (20 + 4 * 3, float("inf"), "bound", "w")
    rate = known(found, "preempt.rate")
    assert rate.lo == pytest.approx(32 / 60)
    assert interval(count.lo, count.hi, "count") == "32 or more"


def test_a_wide_bucket_counts_with_the_least_it_can_hold() -> None:
    found = pages(sglang_page([0] * 40, 0, 0), sglang_page([0] * 40 + [5] * 3 + [9] * 2, 1, 0))
    assert known(found, "preempt.count").lo == 3 * 4 + 2 * 6


def test_finished_requests_that_were_not_hit_prove_no_zero() -> None:
    found = pages(sglang_page([0] * 40), sglang_page([0] * 90))
    assert isinstance(found["preempt.count"], Unknown)


def test_hits_of_as_many_as_were_there_before_prove_nothing() -> None:
    found = pages(sglang_page([0] * 40), sglang_page([0] * 90 + [3] * 6))
    assert isinstance(found["preempt.count"], Unknown)


@pytest.mark.parametrize(("scheduled", "least"), [(40, None), (31, 9)])
def test_without_the_length_of_the_queue_nobody_waiting_is_not_known(scheduled: int, least: float | None) -> None:
    rows = [json.loads(line) for line in steps(20, pauses=0).splitlines()]
    for row in rows:
        del row["numQueuedRequests"]
        row["inflightBatchingStats"]["numScheduledRequests"] = scheduled
    found = facts(("iter.jsonl", "\n".join([*map(json.dumps, rows), ""]), None))
    waiting = found.get("req.waiting_max")
    assert (waiting.hi if isinstance(waiting, Known) else None) == least
