"""What a watched source gives at one instant, and how samples are paced."""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from typing import Protocol

from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Member, Missing

JUMP_S = 1.0


@frozen
class Page:
    """A page of ``server`` (the same word for every page of one server): metrics, or what else it tells at each sample."""

    server: str
    member: Member


@frozen
class LogBytes:
    """What a log gained since the sample before, in whole lines."""

    origin: str
    data: bytes


@frozen
class Sample:
    """Everything read at ``time`` (epoch seconds).

    ``others`` are members that are neither such pages nor logs (GPU readings, static pages, host files); one replaces the
    earlier one of the same name. ``missing`` is what failed in this sample, ``warnings`` what is to be told once. ``jumped``:
    the clock was set since the sample before, so times before and after do not fit.
    """

    time: float
    pages: tuple[Page, ...] = ()
    others: tuple[Member, ...] = ()
    logs: tuple[LogBytes, ...] = ()
    missing: tuple[Missing, ...] = ()
    warnings: tuple[str, ...] = ()
    jumped: float = 0.0


class Sampler(Protocol):
    """A source of samples in the order of their times."""

    def next(self, stop: threading.Event) -> Sample | None:
        """The next sample, when it is due; None at the end or soon after ``stop`` is set."""

    def refresh(self) -> None:
        """Take the next sample at once."""

    def close(self) -> None:
        """Give connections and files back."""


class Paced:
    """Samples of a live source every ``interval_s``, from now on for ``duration_s`` (None: without end).

    A sample that takes longer than the interval makes the next one late; none is taken twice to catch up.
    """

    def __init__(
        self,
        take: Callable[[float], Sample],
        close: Callable[[], None],
        *,
        interval_s: float,
        duration_s: float | None = None,
        wall: Callable[[], float] = _time.time,
        steady: Callable[[], float] = _time.monotonic,
    ) -> None:
        self._take = take
        self.close = close
        self._interval_s = interval_s
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        self._start = steady()
        self._end = None if duration_s is None else self._start + duration_s
        self._due = self._start
        self._hurry = threading.Event()

    def refresh(self) -> None:
        self._hurry.set()

    def next(self, stop: threading.Event) -> Sample | None:
        while not stop.is_set() and not self._hurry.is_set() and (left := self._due - self._steady()) > 0:
            # short waits, so that a refresh or the end is not noticed late
            stop.wait(min(left, 0.2))
        now = self._steady()
        if stop.is_set() or (self._end is not None and now > self._end + self._interval_s / 2):
            return None
        self._hurry.clear()
        self._due += self._interval_s
        if self._due <= now:
            self._due = now + self._interval_s
        off = self._wall() - now
        jumped = off - self._offset
        if abs(jumped) > JUMP_S:
            self._offset = off
        else:
            jumped = 0.0
        # the time of the start plus a clock that cannot be set: small corrections of the wall clock bend no rate
        sample = self._take(now + self._offset)
        if not jumped:
            return sample
        return Sample(sample.time, sample.pages, sample.others, sample.logs, sample.missing, sample.warnings, jumped)
