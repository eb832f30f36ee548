"""Mean prompt length without a histogram of lengths: estimated from totals, where enough requests finished."""

from __future__ import annotations

import pytest

from kvdoctor.facts import Fact, Known, Unknown
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, memory_member


def page(tokens: int, finished: int, running: int, histogram: tuple[float, int] | None = None) -> str:
    lines = [
        f'vllm:num_requests_running{{engine="0"}} {running}',
        'vllm:num_requests_waiting{engine="0"} 0',
        'vllm:kv_cache_usage_perc{engine="0"} 0.04',
        f'vllm:prompt_tokens_total{{engine="0"}} {tokens}',
        f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {finished}',
    ]
    if histogram is not None:
        total, count = histogram
        lines += [
            f'vllm:request_prompt_tokens_bucket{{engine="0",le="100000.0"}} {count}',
            f'vllm:request_prompt_tokens_bucket{{engine="0",le="+Inf"}} {count}',
            f'vllm:request_prompt_tokens_sum{{engine="0"}} {total}',
            f'vllm:request_prompt_tokens_count{{engine="0"}} {count}',
        ]
    return "\n".join([*lines, ""])


def mean(*pages: str) -> Fact:
    members = tuple(memory_member(f"m{i}.prom", text.encode(), time=1.79e9 + 60 * i) for i, text in enumerate(pages))
    return diagnose(Snapshot(members), ()).main.facts["work.prompt_mean"]


def test_totals_give_an_estimate_that_says_so() -> None:
    fact = mean(page(1000, 10, 2), page(601_000, 110, 3))
    assert isinstance(fact, Known)
    assert (fact.hi, fact.how, fact.span, fact.requests) == (6000.0, "estimated", "w", 100.0)
    assert "prompt tokens / finished requests" in fact.note


@pytest.mark.parametrize(
    ("finished", "running"), [(19, 2), (100, 40)], ids=["too few finished", "too many run across the edges"]
)
def test_nothing_is_said_where_the_edges_decide(finished: int, running: int) -> None:
    assert isinstance(mean(page(0, 0, running), page(600_000, finished, running)), Unknown)


def test_a_histogram_is_measured_and_wins() -> None:
    fact = mean(page(0, 0, 2, (0.0, 0)), page(600_000, 100, 2, (500_000.0, 100)))
    assert isinstance(fact, Known)
    assert (fact.hi, fact.how) == (5000.0, "measured")
