"""Loads: public traces, generic csv, histograms and seeds, and what is wrong with broken ones."""

from __future__ import annotations

import contextlib
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.sim import GENERATORS, Histogram, Request, TraceError, Workload, from_histograms, parse_trace, read_trace
from kvdoctor.sim.workload import likely_max_tokens

DATA = Path(__file__).parent / "data"


def parse(*lines: str) -> Workload:
    return parse_trace([line + "\n" for line in lines], name="t")


def test_azure_csv() -> None:
    load = read_trace(DATA / "azure_conv_head.csv")
    assert len(load.requests) == 300
    first, second = load.requests[:2]
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    # 18:15:46.680590 to 18:15:50.995169
    assert second.arrival_s == pytest.approx(4.314579, abs=1e-6)
    assert second.max_tokens == 256
    assert load.lines[:2] == (2, 3)
    assert any("max_tokens unknown" in line for line in load.assumed)


def test_mooncake_jsonl_finds_sessions_by_their_blocks() -> None:
    load = read_trace(DATA / "mooncake_excerpt.jsonl")
    assert len(load.requests) == 92
    assert load.requests[0].prompt_tokens == 6758
    assert load.requests[0].prefix == 0
    again = [one for one in load.requests if one.prefix]
    assert again
    for one in again:
        assert one.prefix < one.prompt_tokens
        assert any(other.session == one.session and other.arrival_s <= one.arrival_s for other in load.requests)


def test_one_shared_block_is_no_session() -> None:
    load = parse(
        '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}',
        '{"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 3, 4]}',
        '{"timestamp": 1500, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 2, 5]}',
    )
    assert [one.prefix for one in load.requests] == [0, 0, 1536]
    assert load.requests[0].session == load.requests[2].session != load.requests[1].session
    assert load.requests[2].arrival_s == 1.5


def test_generic_csv_with_every_column() -> None:
    load = parse(
        "arrival_s,prompt_tokens,output_tokens,max_tokens,session,priority,prefix",
        "10,100,20,50,a,1,0",
        "11.5,150,20,50,a,2,120",
        "12,5,1,1,,3,0",
    )
    assert load.requests[1] == Request(1.5, 150, 20, 50, "a", 2, 120)
    assert load.requests[2].session is None
    assert load.assumed == ()


def test_lines_out_of_order_are_sorted_and_said_so() -> None:
    load = parse("arrival_s,prompt_tokens,output_tokens", "5,1,1", "3,2,2")
    assert [one.prompt_tokens for one in load.requests] == [2, 1]
    assert load.lines == (3, 2)
    assert [one.arrival_s for one in load.requests] == [0.0, 2.0]
    assert any("sorted" in line for line in load.assumed)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t: empty file"),
        (["arrival_s,prompt_tokens,output_tokens"], "t: no requests"),
        (["time,prompt,output"], r"t:1: no column for prompt \(prompt_tokens\), output \(output_tokens\)"),
        (["arrival_s,prompt_tokens,output_tokens", "0,1,1", "1,,1"], r"t:3: prompt tokens '' is not a number"),
        (["arrival_s,prompt_tokens,output_tokens", "0,1,1", "1,5"], "t:3: 2 cells, the header has 3"),
        (["arrival_s,prompt_tokens,output_tokens", "0,-4,1"], "t:2: prompt of -4 tokens"),
        (["arrival_s,prompt_tokens,output_tokens", "0,4,0"], "t:2: output of 0 tokens"),
        (["arrival_s,prompt_tokens,output_tokens", "0,4,99999999999"], "t:2: output of 99999999999 tokens"),
        (["arrival_s,prompt_tokens,output_tokens", "0,4.5,1"], "t:2: prompt tokens 4.5 is not a whole number"),
        (["arrival_s,prompt_tokens,output_tokens", "noon,4,1"], "t:2: 'noon' is not a time"),
        (["arrival_s,prompt_tokens,output_tokens", "nan,4,1"], "t:2: 'nan' is not a time"),
        (["arrival_s,prompt_tokens,output_tokens,max_tokens", "0,4,9,5"], "t:2: max_tokens 5 is below"),
        (["arrival_s,prompt_tokens,output_tokens,prefix", "0,4,9,5"], "t:2: prefix of 5 tokens"),
        (['{"timestamp": 0}'], "t:1: no input_length"),
        (['{"timestamp": 0, "input_length": 4, "output_length": 1}', "{oops"], "t:2: not JSON"),
        (['{"timestamp": 0, "input_length": "many", "output_length": 1}'], "t:1: input_length 'many' is not a number"),
        (['{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": "x"}'], "t:1: hash_ids"),
        (['{"timestamp": 0, "input_length": 1' + "0" * 400 + ', "output_length": 1}'], "t:1: prompt of 10"),
        (['{"timestamp": ' + "[" * 100_000], "t:1: not JSON"),
        (["arrival_s,prompt_tokens,output_tokens", '"' + "x" * 200_000], "t:2: not a csv line"),
    ],
)
def test_a_broken_trace_names_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse(*lines)


def test_requests_out_of_order_in_code_are_refused() -> None:
    with pytest.raises(TraceError, match="request 2: arrival"):
        Workload("w", (Request(1.0, 1, 1, 1), Request(0.5, 1, 1, 1)))


@given(st.text(max_size=200))
@settings(deadline=None)
def test_any_text_is_a_load_or_a_trace_error(text: str) -> None:
    with contextlib.suppress(TraceError):
        parse_trace(text.splitlines(keepends=True), name="t")


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=20))
@settings(deadline=None)
def test_a_written_csv_reads_back(rows: list[tuple[float, int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    load = parse("arrival_s,prompt_tokens,output_tokens", *(f"{a!r},{p},{o}" for a, p, o in rows))
    assert [(one.prompt_tokens, one.output_tokens) for one in load.requests] == [(p, o) for _, p, o in rows]
    assert [one.arrival_s for one in load.requests] == [a - rows[0][0] for a, _, _ in rows]


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_loads_are_seeded_and_near_their_rate(name: str) -> None:
    make = GENERATORS[name]
    one, same, other = (
        make(random.Random(1), 400, 2.0),
        make(random.Random(1), 400, 2.0),
        make(random.Random(2), 400, 2.0),
    )
    assert one == same != other
    assert len(one.requests) == 400
    assert one.assumed
    assert 400 / one.span_s == pytest.approx(2.0, rel=0.5)


def test_the_size_mix_has_the_published_shares() -> None:
    load = GENERATORS["size-mix"](random.Random(0), 4000, 1.0)
    share = {
        size: sum(1 for one in load.requests if one.prompt_tokens == size) / 4000 for size in (1500, 14_000, 60_000)
    }
    assert share == pytest.approx({1500: 0.5, 14_000: 0.375, 60_000: 0.125}, abs=0.03)


def test_agent_turns_repeat_their_whole_context() -> None:
    load = GENERATORS["agents"](random.Random(0), 80, 1.0)
    by_session: dict[str | None, list[Request]] = {}
    for one in load.requests:
        by_session.setdefault(one.session, []).append(one)
    for turns in by_session.values():
        for before, after in zip(turns, turns[1:], strict=False):
            assert after.prefix == before.prompt_tokens + before.output_tokens


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(TraceError, match="arrival rate"):
        GENERATORS["chat"](random.Random(0), 10, rate)


def test_histograms_give_back_their_buckets_and_mean() -> None:
    prompt = Histogram.from_cumulative([(100, 10), (1000, 90), (math.inf, 100)])
    assert prompt.counts == (10, 80, 10)
    output = Histogram((10.0, 50.0), (1.0, 3.0))
    load = from_histograms(
        random.Random(0), 4000, 3.0, prompt, output, prompt_mean=500.0, output_mean=25.0, max_tokens=64
    )
    assert len(load.requests) == 4000
    mean = sum(one.prompt_tokens for one in load.requests) / 4000
    assert mean == pytest.approx(500, rel=0.05)
    assert sum(one.output_tokens for one in load.requests) / 4000 == pytest.approx(25, rel=0.05)
    assert all(one.max_tokens >= 64 for one in load.requests)
    assert any("Poisson" in line for line in load.assumed)


def test_histogram_reuse_becomes_sessions() -> None:
    histogram = Histogram((1000.0, 2000.0), (0.0, 1.0))
    load = from_histograms(random.Random(0), 400, 3.0, histogram, Histogram((50.0,), (1.0,)), reused_share=0.5)
    shared = sum(one.prefix for one in load.requests) / sum(one.prompt_tokens for one in load.requests)
    # The first turn of a session finds nothing, so the others must repeat more than the captured share.
    assert shared == pytest.approx(0.5 * 4 / 3, rel=0.01)
    assert any("sessions" in line for line in load.assumed)


@pytest.mark.parametrize(
    ("edges", "counts"), [((), ()), ((1.0,), (1.0, 2.0)), ((2.0, 1.0), (1.0, 1.0)), ((1.0,), (0.0,)), ((1.0,), (-1.0,))]
)
def test_impossible_histograms(edges: tuple[float, ...], counts: tuple[float, ...]) -> None:
    with pytest.raises(TraceError, match="histogram"):
        Histogram(edges, counts)


def test_grown_resampled_and_faster() -> None:
    load = read_trace(DATA / "azure_conv_head.csv")
    grown = load.grown(2, 1)
    assert len(grown.requests) == 600
    assert grown.span_s == pytest.approx(load.span_s, rel=0.05)
    again = load.resampled(7)
    assert [one.arrival_s for one in again.requests] == [one.arrival_s for one in load.requests]
    assert again != load
    assert load.resampled(7) == again
    assert load.faster(2).span_s == pytest.approx(load.span_s / 2)
    assert load.head(10).requests == load.requests[:10]
    for factor in (0.0, -1.0, math.inf):
        with pytest.raises(TraceError, match="must be above 0"):
            load.faster(factor)
    with pytest.raises(TraceError, match="at least 1"):
        load.grown(0, 1)


@given(st.integers(1, 10**6))
@settings(deadline=None)
def test_the_likely_limit_leaves_room(output: int) -> None:
    limit = likely_max_tokens(output)
    assert limit >= 1.5 * output
    assert limit & (limit - 1) == 0
