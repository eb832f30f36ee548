"""TensorRT-LLM iteration statistics in every shape they are saved in."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse.iterstats import IterationRow, IterationStats, NotIterationStats, looks_like, parse

RECORD = {
    "iter": 412,
    "timestamp": "03-09-2026 07:15:02.250000",
    "iterLatencyMS": 84.5,
    "numActiveRequests": 40,
    "numQueuedRequests": 6,
    "maxNumActiveRequests": 512,
    "gpuMemUsage": 70_000_000_000,
    "kvCacheStats": {
        "maxNumBlocks": 2000,
        "freeNumBlocks": 20,
        "usedNumBlocks": 1980,
        "tokensPerBlock": 32,
        "cacheHitRate": 0.25,
    },
    "inflightBatchingStats": {
        "numScheduledRequests": 27,
        "numContextRequests": 2,
        "numGenRequests": 25,
        "numPausedRequests": 13,
        "numCtxTokens": 4096,
    },
}


def rows_of(text: str) -> tuple[IterationRow, ...]:
    stats = parse(text)
    assert isinstance(stats, IterationStats)
    return stats.rows


def test_values_of_one_record_in_canonical_units() -> None:
    (row,) = rows_of(json.dumps(RECORD))
    assert (row.iteration, row.active, row.queued, row.paused, row.max_active) == (412, 40, 6, 13, 512)
    assert (row.scheduled, row.context_requests, row.generation_requests, row.context_tokens) == (27, 2, 25, 4096)
    assert row.latency_s == pytest.approx(0.0845)
    assert row.kv_usage == pytest.approx(0.99)
    assert (row.tokens_per_block, row.hit_rate, row.gpu_bytes) == (32, 0.25, 7e10)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORD) + "\n" + json.dumps(RECORD) + "\n",
        json.dumps([RECORD, RECORD]),
        json.dumps([RECORD]) + "\n[]\n" + json.dumps([RECORD]),
        json.dumps([RECORD, RECORD], indent=2),
        "\ufeff" + json.dumps(RECORD) + "\r\n" + json.dumps(RECORD) + "\r\n",
        "[\n" + json.dumps(RECORD) + ",\n" + json.dumps(RECORD) + "\n",
    ],
    ids=["lines", "array", "array per read", "indented", "bom and crlf", "array that does not close"],
)
def test_every_file_shape_gives_both_records(text: str) -> None:
    assert [row.paused for row in rows_of(text)] == [13, 13]


def test_snake_case_keys_are_the_same_keys() -> None:
    record = {
        "iter": 7,
        "iter_latency_ms": 12.0,
        "num_active_requests": 3,
        "kv_cache_stats": {"max_num_blocks": 100, "used_num_blocks": 10},
        "inflight_batching_stats": {"num_paused_requests": 1, "num_ctx_tokens": 77},
    }
    (row,) = rows_of(json.dumps(record))
    assert (row.active, row.paused, row.context_tokens, row.kv_usage) == (3, 1, 77, 0.1)
    assert row.latency_s == pytest.approx(0.012)


def test_triton_backend_keys_are_read() -> None:
    record = {
        "Active Request Count": 249,
        "Iteration Counter": 90,
        "Max Request Count": 256,
        "Max KV cache blocks": 2448,
        "Used KV cache blocks": 2200,
        "Tokens per KV cache block": 64,
        "Total Context Tokens": 6904,
        "Timestamp": "12-13-2023 14:55:14",
    }
    (row,) = rows_of(json.dumps(record))
    assert (row.active, row.max_active, row.iteration, row.tokens_per_block) == (249, 256, 90, 64)
    assert row.context_tokens == 6904
    assert row.kv_usage == pytest.approx(2200 / 2448)


def test_what_a_record_does_not_give_is_none_and_not_zero() -> None:
    (row,) = rows_of('{"iter": 3, "numActiveRequests": 0, "kvCacheStats": {}}')
    assert row.active == 0
    assert row.paused is None
    assert row.queued is None
    assert row.kv_usage is None
    assert row.latency_s is None
    assert row.time is None


def test_numbers_that_are_none_are_not_taken() -> None:
    (row,) = rows_of('{"iter": 3, "numActiveRequests": NaN, "numQueuedRequests": "4", "gpuMemUsage": true}')
    assert (row.active, row.queued, row.gpu_bytes) == (None, None, None)


def test_usage_from_free_blocks_and_an_empty_pool() -> None:
    (row,) = rows_of('{"iter": 1, "kvCacheStats": {"maxNumBlocks": 200, "freeNumBlocks": 50}}')
    assert row.kv_usage == pytest.approx(0.75)
    (row,) = rows_of('{"iter": 1, "kvCacheStats": {"maxNumBlocks": 0, "usedNumBlocks": 0}}')
    assert row.kv_usage is None


def test_host_tier_is_summed_over_windows() -> None:
    windows = {"4096": {"secondaryMaxNumBlocks": 10, "secondaryUsedNumBlocks": 4}, "512": {"secondaryMaxNumBlocks": 6}}
    (row,) = rows_of(json.dumps({"iter": 1, "kvCacheIterationStats": windows}))
    assert (row.secondary_max_blocks, row.secondary_used_blocks) == (16, 4)


@pytest.mark.parametrize(
    "stamp",
    [
        "03-09-2026 07:15:02.250000",
        "2026-03-09 07:15:02.250",
        "2026-03-09T07:15:02.250Z",
        "2026-03-09T09:15:02.250+02:00",
        1773040502.25,
        1773040502250,
        1773040502250000,
    ],
)
def test_every_form_of_the_timestamp(stamp: object) -> None:
    (row,) = rows_of(json.dumps({"iter": 1, "timestamp": stamp}))
    assert row.time == pytest.approx(datetime(2026, 3, 9, 7, 15, 2, 250_000, tzinfo=UTC).timestamp())


@pytest.mark.parametrize("stamp", ["soon", "", 17, -5, None, []])
def test_a_timestamp_that_is_none_gives_no_time(stamp: object) -> None:
    (row,) = rows_of(json.dumps({"iter": 1, "timestamp": stamp}))
    assert row.time is None


def test_bad_lines_are_counted_with_their_numbers_and_the_rest_is_kept() -> None:
    text = "\n".join(
        [json.dumps(RECORD), "server restarted", '{"other": 1}', "", json.dumps(RECORD), '{"iter": 5, "nu']
    )
    stats = parse(text, origin="stats.jsonl")
    assert isinstance(stats, IterationStats)
    assert [row.line for row in stats.rows] == [1, 5]
    assert stats.bad_count == 3
    assert [bad.line for bad in stats.bad] == [2, 3, 6]


def test_a_cut_indented_array_keeps_its_whole_records() -> None:
    text = json.dumps([RECORD, RECORD, RECORD], indent=1)
    stats = parse(text[: text.rindex('"numPausedRequests"')])
    assert isinstance(stats, IterationStats)
    assert len(stats.rows) == 2
    assert stats.bad_count >= 1


def test_a_file_without_a_record_is_said_to_be_none() -> None:
    found = parse('{"model": "m"}\n', origin="x.json")
    assert isinstance(found, NotIterationStats)
    assert "model" in found.reason


@pytest.mark.parametrize(
    ("head", "claimed"),
    [
        (json.dumps(RECORD), True),
        ("\ufeff [\n " + json.dumps(RECORD), True),
        ('{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}', False),
        ("# TYPE trtllm_kv_cache_utilization gauge\n", False),
        ('[TensorRT-LLM][INFO] {"Active Request Count":3}', False),
        ('{"id": 0, "n_ctx": 2048, "is_processing": true}', False),
        ("", False),
    ],
)
def test_only_iteration_statistics_are_claimed(head: str, claimed: bool) -> None:
    assert looks_like(head) is claimed


@given(st.text(alphabet='{}[]",:0123456789eE.-ntrueiter \n', max_size=200))
def test_no_text_raises(text: str) -> None:
    found = parse(text)
    if isinstance(found, IterationStats):
        assert found.rows


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    assert isinstance(parse('{"a":' * 5000), NotIterationStats)
    assert isinstance(parse("[" * 50_000), NotIterationStats)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.booleans())
def test_every_whole_record_comes_back_in_order(paused: list[int], lines: bool) -> None:
    records = [{"iter": i, "inflightBatchingStats": {"numPausedRequests": p}} for i, p in enumerate(paused)]
    text = "\n".join(json.dumps(r) for r in records) if lines else json.dumps(records)
    assert [row.paused for row in rows_of(text)] == paused


def test_who_is_taken_in_and_not_computed_waits() -> None:
    def idle(**more: object) -> float | None:
        record = {"iter": 1, "numActiveRequests": 10, "inflightBatchingStats": {"numScheduledRequests": 3, **more}}
        return rows_of(json.dumps(record))[0].idle

    assert idle() == 7
    assert idle(numPausedRequests=2) == 7
    assert idle(microBatchId=0) == 7
    # the other micro-batches of a pipeline compute the rest
    assert idle(microBatchId=1) is None
    assert rows_of('{"iter": 1, "numActiveRequests": 10}')[0].idle is None
