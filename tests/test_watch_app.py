"""The live view, driven by a pilot: keys, sheets, resizing, what happens when the source ends or breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from watch_helpers import T0, Played, page, page_text, sample, watcher

from kvdoctor.snapshot import Snapshot
from kvdoctor.watch.app import Board, Sheet, WatchApp, last_words
from kvdoctor.watch.sample import Sample

Play = Callable[[WatchApp, "Pilot[None]"], Awaitable[None]]


class Waiting(Played):
    """Gives its samples and then stays silent until it is told to stop, like a live source."""

    def next(self, stop: threading.Event) -> Sample | None:
        if not self.left:
            stop.wait()
            return None
        return super().next(stop)


def course(servers: int = 2) -> list[Sample]:
    return [
        sample(second, *(
            page(T0 + second, page_text(usage=0.5 + 0.2 * n, preempted=second * n, waiting=n), f"h:{8000 + n}")
            for n in range(servers)
        ))
        for second in range(12)
    ]  # fmt: skip


def drive(play: Play, *, size: tuple[int, int] = (100, 30), **named: object) -> WatchApp:
    sampler = named.pop("sampler", None) or Waiting(course())
    app = WatchApp(sampler, watcher(), source="test", **named)  # type: ignore[arg-type]

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            for _ in range(200):
                await pilot.pause(0.02)
                if app.last is not None and not sampler.left and app.frame is app.last:  # type: ignore[attr-defined]
                    break
            await play(app, pilot)

    asyncio.run(run())
    return app


def shown(app: WatchApp) -> str:
    board = app.screen_stack[0].query_one(Board)
    return "\n".join(board.render_line(y).text.rstrip() for y in range(board.size.height))


def test_the_verdict_stands_on_top_and_the_figures_below() -> None:
    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        text = shown(app)
        assert text.splitlines()[0].startswith("kvdoctor watch")
        assert "KV pool      70% [" in text
        assert "h:8001 #0" in text

    drive(play)


def test_enter_opens_the_evidence_and_escape_goes_back() -> None:
    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("u")
        await pilot.pause()
        assert isinstance(app.screen, Sheet)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, Sheet)
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert isinstance(app.screen, Sheet)
        await pilot.press("q")
        await pilot.pause()
        assert not isinstance(app.screen, Sheet)
        assert app.is_running

    drive(play)


def test_the_arrows_choose_and_stay_inside_the_list() -> None:
    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("tab")
        await pilot.press("down", "down", "down", "j")
        assert app.ui.row == 1
        assert "> h:8001 #0" in shown(app)
        await pilot.press("up", "k", "up")
        assert app.ui.row == 0

    drive(play)


def test_comma_and_full_stop_move_the_sort_column_and_slash_turns_it() -> None:
    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("full_stop")
        text = shown(app)
        assert text.index("h:8001 #0") < text.index("h:8000 #0  ")
        await pilot.press("slash")
        text = shown(app)
        assert text.index("h:8000 #0  ") < text.index("h:8001 #0  ")
        await pilot.press("comma", "comma")
        assert app.ui.sort == 6

    drive(play)


def test_a_pause_holds_the_picture_while_readings_go_on() -> None:
    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        held = app.frame
        later = watcher().feed(sample(90, page(T0 + 90, page_text(usage=0.11))))
        app._show(later)
        await pilot.pause(0.05)
        assert app.frame is held
        assert "PAUSED" in shown(app)
        await pilot.press("p")
        assert app.frame is later
        assert "PAUSED" not in shown(app)

    drive(play)


def test_a_capture_gets_the_last_minutes_and_its_answer_is_shown() -> None:
    taken: list[Snapshot] = []

    def capture(past: Snapshot) -> str:
        taken.append(past)
        return "wrote it"

    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("c")
        for _ in range(50):
            await pilot.pause(0.02)
            if "wrote it" in shown(app):
                break
        assert "wrote it" in shown(app)

    drive(play, capture=capture)
    assert len(taken[0].members) >= 4


def test_a_capture_that_fails_is_told_and_the_view_goes_on() -> None:
    def capture(past: Snapshot) -> str:
        raise ValueError("no room")

    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("c")
        for _ in range(50):
            await pilot.pause(0.02)
            if "failed" in shown(app):
                break
        assert "the capture failed: ValueError: no room" in shown(app)
        assert app.is_running

    drive(play, capture=capture)


def test_r_reads_at_once() -> None:
    sampler = Waiting(course())

    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("r")
        await pilot.press("f5")

    drive(play, sampler=sampler)
    assert sampler.refreshed == 2


@pytest.mark.parametrize("size", [(20, 5), (60, 15), (200, 60), (1, 1)])
def test_it_is_drawn_again_for_another_size(size: tuple[int, int]) -> None:
    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(*size)
        await pilot.pause(0.05)
        lines = shown(app).split("\n")
        assert len(lines) == size[1]
        assert all(len(line) <= size[0] for line in lines)
        await pilot.press("h")
        await pilot.pause()
        await pilot.press("escape")

    drive(play)


def test_q_ends_it_and_the_source_is_closed() -> None:
    sampler = Waiting(course())

    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.press("q")

    app = drive(play, sampler=sampler)
    assert app._worker is not None
    app._worker.join(5)
    assert sampler.closed == 1
    assert " on " in last_words(app.last)


def test_a_recording_stays_on_the_screen_when_it_ends_and_a_live_source_does_not() -> None:
    async def stays(app: WatchApp, pilot: Pilot[None]) -> None:
        for _ in range(50):
            await pilot.pause(0.02)
            if app.ui.ended:
                break
        assert "ENDED" in shown(app)

    drive(stays, sampler=Played(course()), stay=True)

    async def ends(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.pause(0.2)
        assert app._exit

    drive(ends, sampler=Played(course()))


def test_a_failure_of_the_source_ends_the_view_and_is_kept_for_the_caller() -> None:
    class Broken(Played):
        def next(self, stop: threading.Event) -> Sample | None:
            if not self.left:
                raise RuntimeError("the source broke")
            return super().next(stop)

    async def play(app: WatchApp, pilot: Pilot[None]) -> None:
        await pilot.pause(0.1)

    app = drive(play, sampler=Broken(course()))
    assert str(app.failure) == "the source broke"


def test_last_words_without_a_diagnosis() -> None:
    assert last_words(None) == "kvdoctor watch: no diagnosis was made\n"
