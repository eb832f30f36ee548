"""Benchmark tables as people write them: the headers are invented, the traps are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse.benchcsv import COLUMNS, BenchTable, NotBench, looks_like, parse

SWEEP = """concurrency,tpot_ms_p50,tpot_ms_p99,num_preemptions_delta
8,18.0,20.5,0
12,18.9,21.4,0
16,61.2,160.0,98
"""

ROUTERS = """router_policy,gpus,workers,gateways,req_per_s,prefix_hit_rate,ttft_p99_s
round_robin,4,2,1,9.5,0.11,88.0
round_robin,4,2,2,9.1,0.11,
cache_aware,4,2,1,21.5,0.31,19.5
"""


def table(text: str) -> BenchTable:
    found = parse(text)
    assert isinstance(found, BenchTable)
    return found


def test_a_concurrency_sweep() -> None:
    rows = table(SWEEP).rows
    assert [row.get("concurrency") for row in rows] == [8, 12, 16]
    assert [row.get("preemptions") for row in rows] == [0, 0, 98]
    assert rows[2].get("tpot_p99") == pytest.approx(0.160)
    assert rows[0].get("tpot_p50") == pytest.approx(0.018)
    assert [row.line for row in rows] == [2, 3, 4]


def test_a_comparison_of_routers() -> None:
    found = table(ROUTERS)
    first, second, third = found.rows
    assert (first.policy, third.policy) == ("round_robin", "cache_aware")
    assert (third.get("gpus"), third.get("workers"), third.get("finished_rate")) == (4, 2, 21.5)
    assert third.get("hit_share") == pytest.approx(0.31)
    assert third.get("ttft_p99") == pytest.approx(19.5)
    assert second.get("ttft_p99") is None
    assert [row.settings for row in found.rows] == [{"gateways": "1"}, {"gateways": "2"}, {"gateways": "1"}]


@pytest.mark.parametrize(
    ("header", "cell", "name", "value"),
    [
        ("Median TTFT (ms)", "1500", "ttft_p50", 1.5),
        ("P99 ITL [ms]", "40", "itl_p99", 0.04),
        ("mean_tpot_ms", "25", "tpot_mean", 0.025),
        ("Time to First Token p99 (s)", "2.5", "ttft_p99", 2.5),
        ("Inter-Token Latency p50 (µs)", "9000", "itl_p50", 0.009),
        ("p99_e2el_ms", "30000", "e2e_p99", 30.0),
        ("TPOT p99", "31 ms", "tpot_p99", 0.031),
        ("TPOT p99.9 (ms)", "310", "tpot_p999", 0.31),
        ("Output Token Throughput (tok/s)", "812", "output_rate", 812.0),
        ("output_throughput", "812", "output_rate", 812.0),
        ("tokens/s", "812", "output_rate", 812.0),
        ("outputTokPerS", "812", "output_rate", 812.0),
        ("total_token_throughput", "900", "total_rate", 900.0),
        ("Request throughput (req/s)", "3.5", "finished_rate", 3.5),
        ("requests/s", "3.5", "finished_rate", 3.5),
        ("kv usage (%)", "97", "kv_usage", 0.97),
        ("kv_usage", "97.0%", "kv_usage", 0.97),
        ("kv_cache_usage_perc", "0.97", "kv_usage", 0.97),
        ("prefix cache hit rate %", "0.5", "hit_share", 0.005),
        ("num_retractions", "4", "preemptions", 4.0),
        ("preemptions_total", "400", "preemptions_total", 400.0),
    ],
)
def test_result_columns_and_their_units(header: str, cell: str, name: str, value: float) -> None:
    (row,) = table(f"concurrency\t{header}\n8\t{cell}\n").rows
    assert row.values == {"concurrency": 8, name: pytest.approx(value)}


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("max_concurrency", "concurrency"),
        ("Concurrent Requests", "concurrency"),
        ("request_rate", "request_rate"),
        ("num_gpus", "gpus"),
        ("tensor_parallel_size", "tp"),
        ("TP", "tp"),
        ("replicas", "workers"),
        ("max_num_seqs", "max_running"),
        ("watermark", "watermark"),
        ("num_prompts", "requests"),
    ],
)
def test_load_columns(header: str, name: str) -> None:
    (row,) = table(f"{header},mean_ttft_ms\n1,5\n").rows
    assert row.get(name) == 1


def test_a_running_counter_is_not_the_count_of_its_row() -> None:
    (row,) = table("concurrency,num_preemptions_total\n4,1200\n").rows
    assert row.get("preemptions") is None
    assert row.get("preemptions_total") == 1200


def test_percent_or_fraction_is_decided_by_the_whole_column() -> None:
    rows = table("concurrency,cache_hit_rate,kv_usage\n1,0.4,0.4\n2,38.0,0.9\n").rows
    assert [row.get("hit_share") for row in rows] == [pytest.approx(0.004), pytest.approx(0.38)]
    assert [row.get("kv_usage") for row in rows] == [0.4, 0.9]


def test_a_unit_nobody_states_is_guessed_only_where_the_size_decides() -> None:
    found = table("concurrency,tpot_p50,ttft_p50\n1,21.0,3.0\n2,22.0,4.0\n")
    assert found.guessed == {"tpot_p50"}
    assert found.rows[0].get("tpot_p50") == pytest.approx(0.021)
    assert found.rows[0].get("ttft_p50") is None
    assert found.rows[0].settings == {"ttft_p50": "3.0"}
    unsure = table("concurrency,tpot_p50\n1,0.9\n2,1.4\n")
    assert unsure.rows[0].get("tpot_p50") is None


def test_cells_that_are_no_number_are_absent_and_not_zero() -> None:
    rows = table("request_rate,preemptions,mean_itl_ms\ninf,3,9\n4,N/A,-\n,,8\n").rows
    assert rows[0].get("request_rate") is None
    assert rows[0].settings == {"request_rate": "inf"}
    assert rows[1].values == {"request_rate": 4}
    assert rows[2].values == {"itl_mean": pytest.approx(0.008)}


@pytest.mark.parametrize(
    "text",
    [
        "concurrency;tpot p50 (ms);req/s\n16;21,5;1,25\n",
        "concurrency\ttpot_p50_ms\treq_per_s\n16\t21.5\t1.25\n",
        "| concurrency | tpot p50 (ms) | req/s |\n|---:|---|---|\n| 16 | 21.5 | 1.25 |\n",
        "concurrency  tpot_p50_ms  req_per_s\n         16         21.5       1.25\n",
        "\ufeffconcurrency,tpot_p50_ms,req_per_s\r\n16,21.5,1.25\r\n",
        '# run of Monday\n\n"concurrency","tpot_p50_ms","req_per_s"\n"16","21.5","1.25"\n',
    ],
    ids=["semicolon and decimal comma", "tab", "markdown", "aligned", "bom and crlf", "quoted and commented"],
)
def test_any_delimiter(text: str) -> None:
    assert looks_like(text)
    (row,) = table(text).rows
    assert row.values == {"concurrency": 16, "tpot_p50": pytest.approx(0.0215), "finished_rate": 1.25}


def test_thousands_separators() -> None:
    (row,) = table('concurrency,output tok/s\n16,"1,067"\n').rows
    assert row.get("output_rate") == 1067


def test_bad_rows_are_counted_and_the_rest_is_kept() -> None:
    found = table(SWEEP + "20,19\nnotes: ran twice\n" + SWEEP.splitlines()[0] + "\n24,90.0,250.0,300\n")
    assert [row.get("concurrency") for row in found.rows] == [8, 12, 16, 24]
    assert found.bad_count == 2
    assert [bad.line for bad in found.bad] == [5, 6]


def test_two_columns_of_one_meaning_do_not_overwrite_each_other() -> None:
    (row,) = table("concurrency,users,mean_itl_ms\n4,9,1\n").rows
    assert row.get("concurrency") == 4
    assert row.settings == {"users": "9"}


@pytest.mark.parametrize(
    "head",
    [
        "index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n0, NVIDIA L4, 4000 MiB, 23034 MiB, 9 %\n",
        "pid, process_name, used_gpu_memory [MiB]\n17, python, 300 MiB\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
        "request_id,concurrency,ttft_ms\na1,4,300\n",
        "input_tokens,output_tokens\n300,20\n",
        '{"timestamp": 0, "input_length": 60, "output_length": 5}\n',
        "INFO 10-01 12:00:00 Avg prompt throughput: 10.0 tokens/s, Running: 4 reqs\n",
        "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 3\n",
        "concurrency,tpot_ms_p50\n",
        "concurrency,tpot_ms_p50\nlow,high\n",
        "",
    ],
)
def test_what_is_not_claimed(head: str) -> None:
    assert not looks_like(head)


@pytest.mark.parametrize("head", [SWEEP, ROUTERS])
def test_what_is_claimed(head: str) -> None:
    assert looks_like(head)


def test_other_text_is_said_to_be_no_benchmark() -> None:
    found = parse("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n")
    assert isinstance(found, NotBench)
    assert "TIMESTAMP" in found.reason


@given(st.text(alphabet="concurey,;|\t\n0123456789.%ms tpot_\"'-", max_size=200))
def test_no_text_raises(text: str) -> None:
    looks_like(text)
    for found in (parse(text), parse("concurrency,tpot_ms\n" + text)):
        if isinstance(found, BenchTable):
            for row in found.rows:
                assert set(row.values) <= set(COLUMNS)


@given(st.lists(st.tuples(st.integers(1, 999), st.integers(0, 10**6)), min_size=1, max_size=6))
def test_whole_rows_come_back(runs: list[tuple[int, int]]) -> None:
    text = "concurrency,preemptions\n" + "".join(f"{c},{p}\n" for c, p in runs)
    assert [(row.get("concurrency"), row.get("preemptions")) for row in table(text).rows] == runs
