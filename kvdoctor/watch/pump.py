"""From a sampler through the watcher to whatever shows frames, until the source ends or is told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kvdoctor.watch.sample import Sampler
from kvdoctor.watch.watcher import Frame, Watcher

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def pump(sampler: Sampler, watcher: Watcher, show: Callable[[Frame], None], stop: threading.Event) -> Frame | None:
    """Feed samples until there are no more or ``stop`` is set; gives the last frame. The sampler is closed in any case."""
    frame: Frame | None = None
    try:
        while (sample := sampler.next(stop)) is not None:
            frame = watcher.feed(sample)
            show(frame)
        if frame is not None and (last := watcher.finish()) is not None:
            frame = last
            show(frame)
    finally:
        sampler.close()
    return frame


@contextmanager
def ending_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP set ``stop``; a second one does what it always does. For the main thread only."""
    before = {number: signal.getsignal(number) for number in ENDS}

    def end(number: int, _: FrameType | None) -> None:
        stop.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in ENDS:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
