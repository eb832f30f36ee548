"""Counters, histograms and gauges over the window: restarts, resets, missing clocks, lifetime values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.derive import derive
from kvdoctor.derive.view import View, last_run, slope
from kvdoctor.facts import Known, Unknown
from kvdoctor.normalise import normalise
from kvdoctor.pipeline import diagnose
from kvdoctor.readings import Histogram
from kvdoctor.snapshot import Snapshot, memory_member


def page(
    usage: float = 0.5,
    preemptions: float = 0,
    generated: float = 100,
    finished: float = 10,
    running: float = 4,
    waiting: float = 0,
    start: float | None = 1_795_000_000.0,
    model: str = "m",
    extra: str = "",
    engine: str = "0",
) -> str:
    label = f'{{engine="{engine}",model_name="{model}"}}'
    lines = [
        f"vllm:num_requests_running{label} {running}",
        f"vllm:num_requests_waiting{label} {waiting}",
        f"vllm:kv_cache_usage_perc{label} {usage}",
        f"vllm:num_preemptions_total{label} {preemptions}",
        f"vllm:generation_tokens_total{label} {generated}",
        f"vllm:prompt_tokens_total{label} {generated * 2}",
        f'vllm:request_success_total{{engine="{engine}",finished_reason="stop",model_name="{model}"}} {finished}',
    ]
    if start is not None:
        lines.append(f"process_start_time_seconds {start}")
    return "\n".join(lines) + "\n" + extra


def views(*members: tuple[str, str]) -> list[View]:
    snapshot = Snapshot(tuple(_member(name, text) for name, text in members))
    return derive(normalise(snapshot)).views


def _member(name: str, text: str):  # type: ignore[no-untyped-def]
    from kvdoctor.snapshot import epoch_in_name

    return memory_member(name, text.encode(), time=epoch_in_name(name))


def fact(view: View, name: str) -> Known:
    found = view.facts[name]
    assert isinstance(found, Known), found
    return found


def test_a_difference_is_taken_between_first_and_last_scrape() -> None:
    (view,) = views(
        ("m_1795000100.prom", page(preemptions=5)),
        ("m_1795000110.prom", page(preemptions=25, generated=300, finished=30)),
    )
    assert fact(view, "preempt.count").hi == 20
    assert fact(view, "preempt.rate").hi == 2.0
    assert fact(view, "preempt.per_finished").hi == 1.0


def test_scrapes_without_a_clock_give_counts_but_no_rates() -> None:
    (view,) = views(("a.prom", page(preemptions=5)), ("b.prom", page(preemptions=25, generated=300, finished=30)))
    assert fact(view, "preempt.count").hi == 20
    assert isinstance(view.facts["preempt.rate"], Unknown)
    assert isinstance(view.facts["target.window_s"], Unknown)


def test_a_limit_for_each_rank_is_added_up_like_the_requests_that_run() -> None:
    log = "(APIServer pid=1) INFO 11-18 11:08:10 [api_server.py:1977] vLLM API server version 0.12.0\n"
    log += (
        "(APIServer pid=1) INFO 11-18 11:08:10 [utils.py:233] non-default args: {'model': 'm', 'max_num_seqs': 128}\n"
    )
    two = page(running=70, waiting=5, engine="0") + page(running=70, waiting=0, engine="1")
    (view,) = views(("m_1795000100.prom", two), ("m_1795000110.prom", two), ("server.log", log))
    assert fact(view, "req.running_max").hi == 140
    assert (fact(view, "req.limit_running").hi, fact(view, "req.limit_ranks").hi) == (256, 2)


@pytest.mark.parametrize(("usage", "waiting", "fits"), [(0.05, 20, 28), (0.4, 20, 16), (0.9, 20, 8)])
def test_a_limit_may_be_raised_as_far_as_the_pool_takes_it(usage: float, waiting: float, fits: float) -> None:
    log = "(APIServer pid=1) INFO 11-18 11:08:10 [api_server.py:1977] vLLM API server version 0.12.0\n"
    log += "(APIServer pid=1) INFO 11-18 11:08:10 [utils.py:233] non-default args: {'model': 'm', 'max_num_seqs': 8}\n"
    one = page(usage=usage, running=8, waiting=waiting)
    (view,) = views(("m_1795000100.prom", one), ("m_1795000110.prom", one), ("server.log", log))
    assert fact(view, "req.limit_fits").hi == fits


NAMES = [
    (("pod-a_1.prom", "pod-a_2.prom", "pod-b_1.prom", "pod-b_2.prom"), None, 2),
    # the process says that it is one and the same
    (("before_1.prom", "before_2.prom", "after_1.prom", "after_2.prom"), 1_795_000_000.0, 1),
    # one page each: nothing counts them apart
    (("pod-a.prom", "pod-b.prom"), None, 1),
    (("t0.prom", "t1.prom", "t2.prom"), None, 1),
    # clocks a second apart that alternate
    (("a_1795000100.prom", "b_1795000101.prom", "a_1795000110.prom", "b_1795000111.prom"), None, 2),
    (("before_1795000100.prom", "before_1795000110.prom", "after_1795000120.prom", "after_1795000130.prom"), None, 1),
    (("a_2026-04-22T10-00-00Z.prom", "a_2026-04-22T10-01-00Z.prom", "b_2026-04-22T10-00-00Z.prom", "b_2026-04-22T10-01-00Z.prom"),
     None, 2),
]  # fmt: skip


@pytest.mark.parametrize(("names", "start", "servers"), NAMES, ids=lambda value: str(value)[:40])
def test_names_tell_servers_apart_that_export_the_same_labels(
    names: tuple[str, ...], start: float | None, servers: int
) -> None:
    found = views(*((name, page(generated=100.0 * (i + 1), start=start)) for i, name in enumerate(names)))
    assert len(found) == servers
    assert sum(len(view.target.scrapes) for view in found) == len(names)


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("m_1795957400.prom", 1_795_957_400.0),
        ("m_1795957400.534.prom", 1_795_957_400.534),
        ("a/metrics-2026-11-29T13-03-20Z.prom", 1_795_957_400.0),
        ("metrics_20261129-130320.txt", 1_795_957_400.0),
        ("20261129130320.prom", 1_795_957_400.0),
        ("metrics_20261339-130320.txt", None),
        ("metrics_20261129.txt", None),
        ("metrics_1.prom", None),
    ],
)
def test_the_time_in_a_name(name: str, time: float | None) -> None:
    from kvdoctor.snapshot import epoch_in_name

    assert epoch_in_name(name) == time


def test_scrapes_without_a_clock_are_ordered_by_their_counters_not_their_names() -> None:
    (view,) = views(
        ("z_first.prom", page(preemptions=5)), ("a_last.prom", page(preemptions=25, generated=300, finished=30))
    )
    assert fact(view, "preempt.count").hi == 20


def test_one_scrape_gives_lifetime_values_that_fire_nothing() -> None:
    (view,) = views(
        ("m_1795000100.prom", page(preemptions=8423)),
    )
    assert fact(view, "preempt.count").span == "L"
    assert isinstance(view.facts["kv.pressure"], (Known, Unknown))
    assert not (isinstance(view.facts["kv.pressure"], Known) and view.facts["kv.pressure"].hi is True)  # type: ignore[union-attr]


def test_a_counter_that_reads_zero_is_zero_for_every_window() -> None:
    (view,) = views(
        ("m_1795000100.prom", page(preemptions=0)),
    )
    assert fact(view, "preempt.count").hi == 0
    assert fact(view, "preempt.count").span == "w"


def test_a_restart_that_the_counter_does_not_show_is_seen_by_the_process_start() -> None:
    found = views(
        ("m_1795000100.prom", page(preemptions=5, start=1_795_000_000.0)),
        ("m_1795000200.prom", page(preemptions=50, generated=900, finished=90, start=1_795_000_150.0)),
    )
    assert len(found) == 2
    assert found[1].target.earlier_runs == 1
    for view in found:
        assert fact(view, "preempt.count").span == "L"


def test_created_series_show_a_restart_too() -> None:
    created = 'vllm:num_preemptions_created{engine="0",model_name="m"} %d\n'
    found = views(
        (
            "m_1795000100.prom",
            "# TYPE vllm:num_preemptions_created gauge\n" + page(start=None, extra=created % 1_795_000_000),
        ),
        (
            "m_1795000200.prom",
            "# TYPE vllm:num_preemptions_created gauge\n"
            + page(start=None, generated=900, finished=90, preemptions=9, extra=created % 1_795_000_150),
        ),
    )
    assert len(found) == 2


def test_a_counter_that_falls_within_one_process_is_refused() -> None:
    (view,) = views(
        ("m_1795000100.prom", page(preemptions=50)), ("m_1795000110.prom", page(preemptions=20, generated=300, finished=30)),
    )  # fmt: skip
    assert isinstance(view.facts["preempt.count"], Unknown)
    assert "reset" in view.facts["preempt.count"].reason


def test_two_servers_in_one_folder_never_become_one_series() -> None:
    found = views(
        ("a_1795000100.prom", page(model="llama", preemptions=1)), ("a_1795000110.prom", page(model="llama", preemptions=2, generated=150)),
        ("b_1795000100.prom", page(model="qwen", preemptions=100)), ("b_1795000110.prom", page(model="qwen", preemptions=400, generated=900)),
    )  # fmt: skip
    assert sorted(v.target.model or "" for v in found) == ["llama", "qwen"]
    assert {v.target.model: fact(v, "preempt.count").hi for v in found} == {"llama": 1, "qwen": 300}


def test_engines_of_one_server_are_summed_for_counts_and_never_averaged() -> None:
    both = page(usage=0.98, preemptions=5, running=27, engine="0") + page(
        usage=0.1, preemptions=0, running=3, start=None, engine="1"
    )
    later = page(usage=0.97, preemptions=25, running=27, generated=300, finished=30, engine="0") + page(
        usage=0.1, preemptions=0, running=3, start=None, generated=300, finished=30, engine="1"
    )
    (view,) = views(("m_1795000100.prom", both), ("m_1795000110.prom", later))
    assert fact(view, "kv.usage_max").hi == 0.98
    assert fact(view, "preempt.count").hi == 20
    assert fact(view, "req.running").hi == 30
    assert fact(view, "spread.preempt_top").hi == 1.0


def test_a_missing_gauge_is_unknown_and_names_the_way_to_get_it() -> None:
    without = "\n".join(line for line in page(preemptions=3).splitlines() if "kv_cache" not in line) + "\n"
    (view,) = views(
        ("m_1795000100.prom", without),
        (
            "m_1795000110.prom",
            without.replace('_total{engine="0",model_name="m"} 3', '_total{engine="0",model_name="m"} 9'),
        ),
    )
    usage = view.facts["kv.usage_max"]
    assert isinstance(usage, Unknown)
    assert usage.reason


def test_nan_is_unknown_not_a_number() -> None:
    (view,) = views(
        (
            "m_1795000100.prom",
            page().replace('perc{engine="0",model_name="m"} 0.5', 'perc{engine="0",model_name="m"} NaN'),
        ),
    )
    assert isinstance(view.facts["kv.usage_last"], Unknown)


# ---------------------------------------------------------------- histograms


edges = st.lists(st.floats(0.001, 1e4, allow_nan=False), min_size=1, max_size=12, unique=True).map(sorted)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    bounds = [*draw(edges), math.inf]
    counts = draw(st.lists(st.integers(0, 1000), min_size=len(bounds), max_size=len(bounds)))
    total, rows = 0, []
    for edge, count in zip(bounds, counts, strict=True):
        total += count
        rows.append((edge, float(total)))
    return Histogram(tuple(rows), float(total), None)


@given(histograms(), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_that_holds_its_rank(histogram: Histogram, q: float) -> None:
    value = histogram.quantile(q)
    count = histogram.buckets[-1][1]
    if count == 0:
        assert value is None
        return
    assert value is not None
    finite = [e for e, _ in histogram.buckets if not math.isinf(e)]
    assert 0 <= value <= finite[-1]
    below = max((c for e, c in histogram.buckets if e < value), default=0.0)
    assert below <= q * count + 1e-6


@given(histograms(), st.floats(0.01, 0.98), st.floats(0.0, 0.01))
def test_quantiles_rise_with_q(histogram: Histogram, q: float, step: float) -> None:
    a, b = histogram.quantile(q), histogram.quantile(q + step)
    if a is not None and b is not None:
        assert a <= b + 1e-9


@given(histograms(), st.floats(0.001, 1e4))
def test_the_count_above_a_limit_is_a_true_interval(histogram: Histogram, limit: float) -> None:
    found = histogram.above(limit)
    assert found is not None
    lo, hi = found
    total = histogram.buckets[-1][1]
    assert 0 <= lo <= hi <= total
    for edge, cumulative in histogram.buckets:
        if edge <= limit:
            assert hi <= total - cumulative + 1e-9 or math.isinf(edge)
        if edge >= limit:
            assert lo >= total - cumulative - 1e-9


@given(histograms(), histograms())
def test_plus_and_minus_are_inverse(a: Histogram, b: Histogram) -> None:
    same = Histogram(tuple((e, c) for (e, _), (_, c) in zip(a.buckets, b.buckets, strict=False)), None, None)
    if len(same.buckets) != len(a.buckets):
        return
    both = a.plus(same)
    assert both is not None
    back = both.minus(same)
    assert back is not None
    assert [c for _, c in back.buckets] == pytest.approx([c for _, c in a.buckets])


def test_a_reset_histogram_is_refused() -> None:
    a = Histogram(((1.0, 5.0), (math.inf, 9.0)), 9.0, 12.0)
    b = Histogram(((1.0, 2.0), (math.inf, 4.0)), 4.0, 5.0)
    assert b.minus(a) is None
    assert a.minus(Histogram(((2.0, 1.0), (math.inf, 1.0)), 1.0, 1.0)) is None


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e5, 1e5)), max_size=2))
def test_no_slope_below_three_points(points: list[tuple[float, float]]) -> None:
    assert slope(points) is None


@given(st.floats(-50, 50), st.floats(-100, 100), st.lists(st.integers(0, 1000), min_size=3, max_size=20, unique=True))
def test_the_slope_of_a_line_is_its_slope(a: float, b: float, times: list[int]) -> None:
    found = slope((float(t), a * t + b) for t in times)
    assert found == pytest.approx(a, abs=1e-6)


@given(st.lists(st.sampled_from([0.1, 0.2]), max_size=30))
def test_the_longest_run_of_equal_values(values: list[float]) -> None:
    best = 0
    for i in range(len(values)):
        j = i
        while j < len(values) and values[j] == values[i]:
            j += 1
        best = max(best, j - i)
    assert last_run(values) == best


def test_aborts_are_counted_once() -> None:
    def with_aborts(aborts: int, done: int) -> str:
        return (
            page(finished=done, generated=100 + done)
            + f'vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} {aborts}\n'
        )

    (view,) = views(("m_1795000100.prom", with_aborts(0, 10)), ("m_1795000110.prom", with_aborts(10, 40)))
    assert fact(view, "req.finished").hi == 30
    assert fact(view, "req.error_share").hi == 0.25


def test_data_parallel_ranks_of_a_log_are_led_by_the_first_of_their_processes() -> None:
    """With attention split over data-parallel ranks the tensor-parallel numbers run on: DP1 is TP2 and TP3."""
    line = "[2025-09-02 10:0{m}:00 DP{d} TP{t}] Decode batch. #running-req: {r}, #token: {n}, token usage: {u}, #queue-req: {q}"
    rows = [
        line.format(m=m, d=d, t=t, r=r, n=n, u=u, q=q)
        for m in range(4)
        for d, t, r, n, u, q in ((0, 0, 80, 430000, 0.98, 30), (0, 1, 80, 430000, 0.98, 30), (1, 2, 5, 9000, 0.02, 0), (1, 3, 5, 9000, 0.02, 0))
    ]  # fmt: skip
    (view,) = views(("server.log", "\n".join(rows)))
    assert view.rank_names == ["0", "1"]
    assert len(view.stats) == 8
    assert view.facts.number("req.running") == 85
    assert view.facts.number("spread.usage_gap") == pytest.approx(0.96)


def test_time_lines_hold_the_mean_latency_between_pages() -> None:
    def page(total: float, count: int) -> str:
        name = "vllm:time_to_first_token_seconds"
        return (
            f"# TYPE {name} histogram\n"
            + "".join(f'{name}_bucket{{engine="0",le="{edge}"}} {count}\n' for edge in ("10.0", "+Inf"))
            + f'{name}_sum{{engine="0"}} {total}\n{name}_count{{engine="0"}} {count}\n'
            + '# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine="0"} 0.4\n'
        )

    pages = [(0, 10.0, 5), (60, 22.0, 9), (120, 22.0, 9), (180, 23.0, 11)]
    members = tuple(
        memory_member(f"metrics_{1790000000 + at}.prom", page(total, count).encode(), time=1790000000.0 + at)
        for at, total, count in pages
    )
    drawn = diagnose(Snapshot(members), ()).main.series
    assert drawn["latency.ttft"] == ((1790000060.0, 3.0), (1790000180.0, 0.5))
