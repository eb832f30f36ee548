"""The window of the watch: one truth with diagnose, restarts, silence, events, logs that slide."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watch_helpers import OPTIONS, SAMPLES, T0, page, page_text, rules, sample, texts, watcher

from kvdoctor.findings import Report
from kvdoctor.normalise import Reader, normalise
from kvdoctor.pipeline import Sliding, diagnose
from kvdoctor.snapshot import Missing, memory_member, read_paths
from kvdoctor.watch.log import HEAD, TAIL, LogWindow
from kvdoctor.watch.pump import pump
from kvdoctor.watch.replay import Replay
from kvdoctor.watch.rows import History, Row, Server, total
from kvdoctor.watch.sample import Page, Sample
from kvdoctor.watch.watcher import Watcher

STORIES = ["vllm-saturated", "vllm-watermark", "sglang-retract", "llamacpp-overflow", "vllm-start-fail"]


def said(report: Report) -> object:
    """Everything a report claims, for comparison."""
    return (
        [(t.name, t.verdict, t.findings, t.undecided, dict(t.facts), t.vitals, t.memory) for t in report.targets],
        report.plan, report.warnings, report.usable,
    )  # fmt: skip


# ---------------------------------------------------------------- one truth


@pytest.mark.parametrize("story", STORIES)
def test_the_watch_says_of_its_window_what_diagnose_says_of_the_same_members(story: str) -> None:
    seen = 0
    one = Watcher(rules(), OPTIONS)
    play = Replay(read_paths([SAMPLES / story]), rules(), OPTIONS, speed=1e9)
    while (taken := play.next(threading.Event())) is not None:
        frame = one.feed(taken)
        if frame.renewed and frame.report is not None:
            seen += 1
            assert said(frame.report) == said(diagnose(one.window(), rules(), OPTIONS))
    last = one.finish()
    if last is not None:
        assert last.report is not None
        assert said(last.report) == said(diagnose(one.window(), rules(), OPTIONS))
    assert seen >= 1


@pytest.mark.parametrize("story", STORIES)
def test_a_reader_that_knows_members_already_reads_the_same(story: str) -> None:
    snapshot = read_paths([SAMPLES / story])
    sliding = Sliding(rules(), OPTIONS)
    for count in range(1, len(snapshot.members) + 1):
        part = replace(snapshot, members=snapshot.members[:count])
        assert said(sliding.report(part)) == said(diagnose(part, rules(), OPTIONS))
    tail = replace(snapshot, members=snapshot.members[1:])
    assert said(sliding.report(tail)) == said(diagnose(tail, rules(), OPTIONS))


def test_a_member_that_stays_is_opened_once_only() -> None:
    opened = []
    base = memory_member("m.prom", page_text().encode(), kind="exposition", time=T0, origin="http://h/metrics")

    def opener() -> object:
        opened.append(1)
        return base.open()

    member = replace(base, open=opener)  # type: ignore[arg-type]
    reader = Reader()
    snapshot = replace(read_paths([]), members=(member,))
    reader.intake(snapshot)
    first = len(opened)
    reader.intake(snapshot)
    assert first > 0
    assert len(opened) == first
    assert len(normalise(snapshot).targets) == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=12))
def test_any_course_of_gauges_is_judged_like_its_snapshot(course: list[tuple[float, int, int]]) -> None:
    one = watcher()
    preempted = 0
    for number, (usage, waiting, more) in enumerate(course):
        preempted += more
        text = page_text(usage=usage, waiting=waiting, preempted=preempted, generated=1000 + number * 50)
        one.feed(sample(number * 5.0, page(T0 + number * 5.0, text)))
    frame = one.finish()
    report = frame.report if frame is not None else one.feed(sample(len(course) * 5.0)).report
    assert report is not None
    assert said(diagnose(one.window(), rules(), OPTIONS))[0] == said(report)[0]  # type: ignore[index]


# ---------------------------------------------------------------- samples in, window out


def test_every_sample_is_shown_but_a_page_enters_the_window_every_five_seconds() -> None:
    one = watcher()
    for second in range(60):
        frame = one.feed(sample(second, page(T0 + second, page_text(usage=second / 100))))
        if second:
            assert frame.rows[0].usage == pytest.approx(second / 100)
    one.finish()
    times = [m.time for m in one.window().members]
    assert len(frame.usage) == 60
    # two seconds apart at first, then five; the newest comes in at the end
    assert times == [T0 + s for s in (0, 2, 4, 6, *range(8, 60, 5), 59)]


def test_the_window_slides_and_a_capture_holds_more_than_it() -> None:
    one = watcher(window_s=60.0, scrapes=12)
    for second in range(0, 400, 5):
        one.feed(sample(second, page(T0 + second, page_text())))
    one.finish()
    window = [m.time for m in one.window().members]
    assert min(t for t in window if t is not None) >= T0 + 395 - 60.5
    assert len(window) <= 13
    past = [m.time for m in one.past().members if m.time is not None]
    assert max(past) - min(past) == pytest.approx(300.0)


def test_a_rate_is_a_difference_of_two_readings_over_their_time() -> None:
    one = watcher()
    one.feed(sample(0, page(T0, page_text(generated=1000, preempted=2))))
    frame = one.feed(sample(2, page(T0 + 2, page_text(generated=1300, preempted=3))))
    assert frame.rows[0].gen_rate == pytest.approx(150.0)
    assert frame.rows[0].preempt_rate == pytest.approx(0.5)


def test_a_restart_is_told_and_no_figure_spans_it() -> None:
    one = watcher()
    for second in range(6):
        one.feed(sample(second, page(T0 + second, page_text(generated=5000 + second, preempted=40))))
    frame = one.feed(sample(6, page(T0 + 6, page_text(generated=90_000, preempted=41, start=T0 + 5))))
    assert any("was restarted" in text for text in texts(frame))
    assert frame.rows[0].gen_rate is None
    assert frame.rows[0].preempt_rate is None
    assert frame.report is not None
    one.finish()
    # the pages of the process that is gone are no longer judged
    assert [m.time for m in one.window().members] == [T0 + 6]
    frame = one.feed(sample(8, page(T0 + 8, page_text(generated=90_200, preempted=41, start=T0 + 5))))
    assert frame.rows[0].gen_rate == pytest.approx(100.0)


def test_totals_that_fall_tell_a_restart_where_no_start_time_does() -> None:
    server = Server("s")

    class Read:
        def __init__(self, total_: float) -> None:
            self.time = 1.0
            self.values = {"tok.generated": {("", ""): Value(total_)}}

    class Value:
        def __init__(self, value: float) -> None:
            self.value = value

    assert server.read(Read(100), 1.0) is False  # type: ignore[arg-type]
    assert server.read(Read(150), 2.0) is False  # type: ignore[arg-type]
    assert server.read(Read(20), 3.0) is True  # type: ignore[arg-type]


def test_a_server_that_falls_silent_is_told_lost_and_comes_back() -> None:
    one = watcher()
    one.feed(sample(0, page(T0, page_text())))
    gone = Sample(T0 + 1, missing=(Missing("exposition", "http://h:8000/metrics", "connection refused"),))
    frame = one.feed(gone)
    assert frame.lost == (("h:8000", T0 + 1),)
    assert frame.rows == ()
    assert any("is lost: connection refused" in text for text in texts(frame))
    frame = one.feed(sample(4, page(T0 + 4, page_text(generated=9000))))
    assert frame.lost == ()
    assert any("answers again after 3 s" in text for text in texts(frame))
    assert frame.rows[0].gen_rate is None


def test_a_port_used_by_another_program_is_no_restart_of_the_server() -> None:
    one = watcher()
    for second in range(3):
        one.feed(sample(second, page(T0 + second, page_text())))
    frame = one.feed(sample(3, page(T0 + 3, "<html>hello</html>\n")))
    assert frame.rows == ()
    assert any("no metrics page" in text for text in texts(frame))


def test_a_first_preemption_and_a_crossed_mark_renew_the_diagnosis_at_once() -> None:
    one = watcher()
    for second in range(30):
        one.feed(sample(second, page(T0 + second, page_text())))
    calm = one.feed(sample(31, page(T0 + 31, page_text())))
    assert not calm.renewed
    hit = one.feed(sample(33, page(T0 + 33, page_text(usage=0.97, waiting=3, preempted=4))))
    assert hit.renewed
    # what made it look is among what it looks at
    assert T0 + 33 in [m.time for m in one.window().members]
    assert any("preempts requests" in text for text in texts(hit))
    assert any("over the 95% mark" in text for text in texts(hit))


def test_a_pool_that_flutters_around_a_mark_is_told_once() -> None:
    one = watcher()
    for second in range(20):
        frame = one.feed(sample(second, page(T0 + second, page_text(usage=0.851 if second % 2 else 0.849))))
    assert sum("over the 85% mark" in text for text in texts(frame)) == 1


def test_a_clock_that_was_set_starts_the_window_anew() -> None:
    one = watcher()
    for second in range(6):
        one.feed(sample(second, page(T0 + second, page_text())))
    frame = one.feed(Sample(T0 + 4000, (page(T0 + 4000, page_text()),), jumped=3994.0))
    assert len(one.window().members) == 1
    assert any("was set by +3994.0 s" in text for text in texts(frame))
    assert frame.rows[0].gen_rate is None


def test_nothing_known_is_not_zero() -> None:
    assert total([1.0, None]) is None
    assert total([]) is None
    assert total([1.0, 2.0]) == 3.0
    history = History()
    history.add(0.0, [Row("a", "", usage=None)])
    assert list(history.usage) == [None]
    assert history.full_in() is None


def test_a_rising_pool_is_announced_before_it_is_full() -> None:
    history = History()
    for second in range(20):
        history.add(float(second), [Row("a", "", usage=0.5 + second * 0.02)])
    assert history.full_in() == pytest.approx((1 - 0.88) / 0.02)
    falling = History()
    for second in range(20):
        falling.add(float(second), [Row("a", "", usage=0.9 - second * 0.02)])
    assert falling.full_in() is None


# ---------------------------------------------------------------- logs


def test_the_start_of_a_run_stays_while_the_middle_of_its_log_goes() -> None:
    log = LogWindow("server.log", "logs/1.log")
    log.add(0.0, b"start\n" * 10)
    for second in range(1, 400):
        log.add(float(second), b"x" * 4095 + b"\n")
    log.slide(350.0)
    member = log.member()
    assert member is not None
    data = member.read()
    assert data.startswith(b"start\n" * 10)
    assert member.truncated
    assert len(data) <= HEAD + 50 * 4096
    assert log.member() is member


def test_a_flood_of_lines_is_bounded() -> None:
    log = LogWindow("server.log", "logs/1.log")
    log.add(0.0, b"y" * 79 + b"\n")
    log.add(1.0, (b"z" * 79 + b"\n") * 100_000)
    log.slide(-1.0)
    member = log.member()
    assert member is not None
    assert member.size <= HEAD + TAIL
    assert all(len(line) == 79 for line in member.read().splitlines())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 12))
def test_a_run_that_begins_at_a_line_keeps_every_line_from_it_on(lengths: list[int], first: int) -> None:
    lines = [b"a" * n + b"\n" for n in lengths]
    log = LogWindow("l", "l")
    for number, line in enumerate(lines):
        log.add(float(number), line)
    log.start_at(min(first, len(lines)), None)
    member = log.member()
    assert member is not None
    assert member.read() == b"".join(lines[min(first, len(lines)) - 1 :])


def test_a_crash_in_the_log_is_found_and_the_run_before_the_window_is_dropped(tmp_path: Path) -> None:
    text = (SAMPLES / "vllm-start-fail" / "server.log").read_bytes()
    one = watcher(window_s=20.0, scrapes=4)
    one.feed(sample(0, log=text))
    frame = one.feed(sample(6))
    assert frame.report is not None
    assert frame.report.main.verdict.rule == "kv-pool-too-small"


def test_a_source_is_closed_whatever_happens() -> None:
    from watch_helpers import Played

    played = Played([sample(0, page(T0, page_text()))])

    def broken(_: object) -> None:
        raise RuntimeError("nobody shows it")

    with pytest.raises(RuntimeError):
        pump(played, watcher(), broken, threading.Event())
    assert played.closed == 1


def test_pages_that_are_no_metrics_all_stay_because_each_tells_something_of_its_own() -> None:
    one = watcher()
    for second in range(6):
        text = b'{"iter": %d, "iterLatencyMS": 5.0, "numActiveRequests": 2}\n' % second
        name = f"server-1/metrics.{T0 + second:.3f}.txt"
        member = memory_member(name, text, time=T0 + second, origin="http://h/metrics")
        one.feed(Sample(T0 + second, (Page("h", member),)))
    one.finish()
    assert len(one.window().members) == 6
