"""The watch on a terminal. Textual draws on standard error, so nothing else may be written there while it runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from kvdoctor.findings import Plan, Report, TargetReport, Verdict
from kvdoctor.report.first import headline, target_line
from kvdoctor.report.gaps import undecided_rules
from kvdoctor.report.page import Page
from kvdoctor.report.seen import evidence, memory, timeline, vitals
from kvdoctor.report.todo import actions, confirm
from kvdoctor.snapshot import Snapshot
from kvdoctor.watch.draw import COLUMNS, Line, Ui, board, clock, listed_findings, sorted_rows
from kvdoctor.watch.pump import ENDS, pump
from kvdoctor.watch.sample import Sampler
from kvdoctor.watch.watcher import Frame, Watcher

HELP = """\
q, Ctrl-C     quit
h, ?          this page
Enter         evidence of the chosen finding, or all about the chosen engine
u             rules that could not be decided, and what would decide them
Up Down, k j  choose in the list       Tab  findings or engines
, .           sort the engines by the column to the left or right       /  turn the order round
p             hold the picture (readings go on)
c             write the last minutes to a snapshot, redacted
r, F5         read at once
Esc, q        back from a page like this one

KV pool       share of the pool in use, the fullest engine; | are watermarks. The line of blocks below is always 0..1.
Room for      requests of average length that still fit: under 2 it is nearly full, under 1 the next one waits or evicts.
WATCH, BAD    a sign to look at; a limit that is passed. A full pool alone is no fault.
?             not known: the source does not tell it. It is never taken for 0.
"""


class Board(Widget):
    """All lines of the watch; only those that changed are drawn again."""

    DEFAULT_CSS = "Board { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []
        self._room = (0, 0)

    def put(self, lines: list[Line]) -> None:
        """Show ``lines``."""
        old, self._lines = self._lines, lines
        room = (self.size.width, self.size.height)
        if len(old) != len(lines) or room != self._room:
            self._room = room
            self.refresh()
            return
        changed = [Region(0, y, self.size.width, 1) for y, (a, b) in enumerate(zip(old, lines, strict=True)) if a != b]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        strip = Strip([Segment(text, _style(style)) for text, style in self._lines[y]])
        return strip.adjust_cell_length(self.size.width)


@cache
def _style(text: str) -> Style:
    return Style.parse(text)


class Sheet(ModalScreen[None]):
    """A page of text over the board."""

    DEFAULT_CSS = """
    Sheet { align: center middle; }
    Sheet VerticalScroll { width: 100%; height: 100%; padding: 0 1; }
    Sheet Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,h,question_mark,u", "dismiss_sheet", "back"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
    ]

    def __init__(self, make: Callable[[int], Text]) -> None:
        super().__init__()
        self._make = make

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static()

    def on_mount(self) -> None:
        self._fill()

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        self.query_one(Static).update(self._make(max(self.app.size.width - 4, 20)))

    def action_dismiss_sheet(self) -> None:
        self.dismiss(None)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


class WatchApp(App[None]):
    """The whole program on the terminal. ``capture`` writes a snapshot somewhere and says what it wrote, or why it could not."""

    CSS = "Screen { background: ansi_default; color: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+q", "end", "quit"),
        Binding("ctrl+c", "end", show=False, priority=True),
        Binding("h,question_mark", "help", "help"),
        Binding("enter", "open", "evidence"),
        Binding("u", "undecided", "undecided"),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
        Binding("tab", "switch", show=False, priority=True),
        Binding("comma", "sort(-1)", show=False),
        Binding("full_stop", "sort(1)", show=False),
        Binding("slash", "turn", show=False),
        Binding("p", "pause", "pause"),
        Binding("c", "capture", "capture"),
        Binding("r,f5", "refresh_now", "refresh"),
    ]

    def __init__(
        self,
        sampler: Sampler,
        watcher: Watcher,
        *,
        source: str = "",
        capture: Callable[[Snapshot], str] | None = None,
        also: Callable[[Frame], None] | None = None,
        stay: bool = False,
        plain: bool = False,
        keys: bool = True,
    ) -> None:
        super().__init__(ansi_color=True)
        self._sampler = sampler
        self._watcher = watcher
        self._capture = capture
        self._also = also
        self._stay = stay
        self._stop = threading.Event()
        self._worker: threading.Thread | None = None
        self._held: Frame | None = None
        self.frame: Frame | None = None
        self.last: Frame | None = None
        self.ui = Ui(source=source, plain=plain, keys=keys)
        self.failure: BaseException | None = None

    # ------------------------------------------------------------ life

    def compose(self) -> ComposeResult:
        yield Board()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in ENDS:
                loop.add_signal_handler(number, self.action_end)
        self._worker = threading.Thread(target=self._read, name="samples", daemon=True)
        self._worker.start()
        self._draw()

    def on_unmount(self) -> None:
        self._stop.set()
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in ENDS:
                loop.remove_signal_handler(number)
            # between here and the end of the program the terminal is not ours any more
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _read(self) -> None:
        """The thread that reads. Its failure ends the program, which then says what it was."""
        try:
            pump(self._sampler, self._watcher, self._show, self._stop)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller of run()
            self.failure = error
        if not self._stop.is_set():
            self._on_loop(self._ended)

    def _show(self, frame: Frame) -> None:
        self.last = frame
        if self._also is not None:
            self._also(frame)
        self._on_loop(lambda: self._take(frame))

    def _on_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed() and not self._stop.is_set():
            loop.call_soon_threadsafe(call)

    def _take(self, frame: Frame) -> None:
        if self.ui.paused:
            self._held = frame
            return
        self.frame = frame
        self._draw()

    def _ended(self) -> None:
        if self.failure is not None or not self._stay:
            self.action_end()
            return
        self.ui.ended = True
        self._draw()

    # ------------------------------------------------------------ drawing

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        size = self.size
        frame = self.frame
        if frame is not None:
            self.ui.finding = max(min(self.ui.finding, len(listed_findings(frame)) - 1), 0)
            self.ui.row = max(min(self.ui.row, len(frame.rows) - 1), 0)
        for found in self.screen_stack[0].query(Board):
            found.put(board(frame, self.ui, size.width, size.height))

    def _say(self, note: str) -> None:
        self.ui.note = note
        self._draw()
        self.set_timer(6.0, self._unsay)

    def _unsay(self) -> None:
        self.ui.note = ""
        self._draw()

    # ------------------------------------------------------------ keys

    def action_end(self) -> None:
        self._stop.set()
        self.exit()

    def action_help(self) -> None:
        self.push_screen(Sheet(lambda width: Text(HELP)))

    def action_move(self, by: int) -> None:
        if self.ui.focus == "findings":
            self.ui.finding += by
        else:
            self.ui.row += by
        self._draw()

    def action_switch(self) -> None:
        self.ui.focus = "table" if self.ui.focus == "findings" else "findings"
        self._draw()

    def action_sort(self, by: int) -> None:
        self.ui.sort = (self.ui.sort + by) % len(COLUMNS)
        self._say(f"engines by {COLUMNS[self.ui.sort][0]}")

    def action_turn(self) -> None:
        self.ui.reverse = not self.ui.reverse
        self._draw()

    def action_pause(self) -> None:
        self.ui.paused = not self.ui.paused
        if not self.ui.paused and self._held is not None:
            self.frame, self._held = self._held, None
        self._draw()

    def action_refresh_now(self) -> None:
        self._sampler.refresh()
        self._say("reading now")

    def action_open(self) -> None:
        frame = self.frame
        if frame is None or frame.report is None:
            self._say("no diagnosis yet")
            return
        report = frame.report
        if self.ui.focus == "table":
            rows = sorted_rows(frame, self.ui)
            target = self._watcher.target_of(rows[self.ui.row]) if rows else None
            if target is None:
                self._say("nothing is known of this engine yet")
                return
            self.push_screen(Sheet(lambda width: target_sheet(report, target, width)))
            return
        found = listed_findings(frame)
        if not found:
            self._say("no finding; u shows what could not be decided")
            return
        owner, verdict = found[self.ui.finding]
        self.push_screen(Sheet(lambda width: finding_sheet(report, owner, verdict, width)))

    def action_undecided(self) -> None:
        report = self.frame.report if self.frame is not None else None
        if report is None:
            self._say("no diagnosis yet")
            return
        self.push_screen(Sheet(lambda width: undecided_sheet(report, width)))

    def action_capture(self) -> None:
        capture = self._capture
        if capture is None or self.frame is None:
            self._say("there is nothing to capture" if capture is not None else "a recording is not captured again")
            return
        past = self._watcher.past()
        self._say("writing the last minutes ...")

        def write() -> None:
            try:
                said = capture(past)
            except Exception as error:  # noqa: BLE001 - the view goes on and says what happened
                said = f"the capture failed: {type(error).__name__}: {error}"
            self._on_loop(lambda: self._say(said))

        threading.Thread(target=write, name="capture", daemon=True).start()


# ---------------------------------------------------------------- sheets


def _text(page: Page) -> Text:
    return Text.from_ansi(str(page))


def finding_sheet(report: Report, owner: TargetReport, verdict: Verdict, width: int) -> Text:
    """One finding with everything it rests on and what to do about it."""
    page = Page(width, True)
    alone = replace(
        report, main=replace(owner, verdict=verdict, findings=(verdict,)), plan=Plan(levers=verdict.actions)
    )
    headline(page, alone)
    if verdict.muted_by is not None:
        page.flow([(f"Explained by {verdict.muted_by}: {verdict.mute_reason}", "bold")])
    evidence(page, verdict, True)
    if verdict.not_this:
        page.heading("What it is not")
        page.flow([(" ".join(verdict.not_this.split()), "")], 2)
    actions(page, alone, False)
    confirm(page, verdict)
    return _text(page)


def target_sheet(report: Report, target: TargetReport, width: int) -> Text:
    """One target: its own verdict, vitals, memory, time line."""
    page = Page(width, True)
    headline(page, replace(report, main=target, plan=Plan(levers=target.verdict.actions)))
    target_line(page, target)
    vitals(page, target, True)
    memory(page, target.memory, True)
    timeline(page, target, True)
    return _text(page)


def undecided_sheet(report: Report, width: int) -> Text:
    """What could not be decided, target by target."""
    page = Page(width, True)
    single: Sequence[TargetReport] = [t for t in report.targets if t.undecided]
    if not single:
        page.flow([("Every rule was decided.", "")])
    for target in single:
        if len(single) > 1:
            page.heading(target.name)
        undecided_rules(page, target, True)
    return _text(page)


def last_words(frame: Frame | None) -> str:
    """What stays on the terminal after the screen is given back: the verdict in a line."""
    if frame is None or frame.report is None:
        return "kvdoctor watch: no diagnosis was made\n"
    from kvdoctor.report.brief import first_line

    return f"{clock(frame.time)}  {first_line(frame.report)}\n"
