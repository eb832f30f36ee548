"""The part of a growing log that stays in the window: the start of the run that is on, and what is new."""

from __future__ import annotations

from collections import deque

from kvdoctor.snapshot import Member, memory_member

HEAD = 256 << 10
TAIL = 1 << 20


class LogWindow:
    """Bytes of one log: the first ``HEAD`` of the present run, then at most ``TAIL`` of the newest within the window.

    The start of a run tells its version, arguments, pool and memory, so it is kept as long as the run is on.
    """

    def __init__(self, origin: str, name: str) -> None:
        self.origin = origin
        self.name = name
        self._head = bytearray()
        self._gap = False
        self._recent: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._member: Member | None = None

    def add(self, time: float, data: bytes) -> None:
        """New bytes that came at ``time``."""
        if data:
            self._recent.append((time, data))
            self._size += len(data)
            self._member = None

    def slide(self, oldest: float) -> None:
        """Let go of what came before ``oldest`` and of more than ``TAIL``; the head of the run keeps its part."""
        while self._recent:
            time, data = self._recent[0]
            cut = len(data)
            if time >= oldest:
                if self._size <= TAIL:
                    return
                # only as much as the bound asks for: a log may come in one piece
                cut = _line_end(data, self._size - TAIL)
            self._recent.popleft()
            if cut < len(data):
                self._recent.appendleft((time, data[cut:]))
            self._size -= cut
            self._member = None
            self._retire(data[:cut])

    def _retire(self, data: bytes) -> None:
        room = 0 if self._gap else HEAD - len(self._head)
        kept = data if len(data) <= room else data[: data.rfind(b"\n", 0, max(room, 0)) + 1]
        self._head += kept
        self._gap = self._gap or len(kept) < len(data)

    def start_at(self, line: int, newest_from: int | None) -> None:
        """The present run begins at ``line`` (1-based) of :meth:`member`: earlier lines go.

        ``newest_from``: the first line that belongs to the window; what lies between the run's head and it goes as well.
        Bytes that are moved into the head keep their order; the time of the rest is that of the newest piece.
        """
        data = self._bytes()
        when = self._recent[-1][0] if self._recent else 0.0
        rest = data[_offset(data, line) :]
        keep = len(rest) if newest_from is None else len(data) - _offset(data, newest_from)
        self._head.clear()
        self._gap = False
        self._recent.clear()
        self._size = 0
        old, new = rest[: len(rest) - keep], rest[len(rest) - keep :] if keep else b""
        self._retire(old)
        self.add(when, new)
        self._member = None

    def member(self) -> Member | None:
        """The bytes as one member; the same object until something changes. None when there is nothing."""
        if self._member is None:
            data = self._bytes()
            if data:
                self._member = memory_member(
                    self.name, data, kind="log", time=self._recent[-1][0] if self._recent else None,
                    origin=self.origin, truncated=self._gap,
                )  # fmt: skip
        return self._member

    def _bytes(self) -> bytes:
        return bytes(self._head) + b"".join(data for _, data in self._recent)


def _offset(data: bytes, line: int) -> int:
    """Where ``line`` (1-based) begins; the end of ``data`` when it has fewer lines."""
    at = 0
    for _ in range(line - 1):
        found = data.find(b"\n", at)
        if found < 0:
            return len(data)
        at = found + 1
    return at


def _line_end(data: bytes, at_least: int) -> int:
    found = data.find(b"\n", max(at_least - 1, 0))
    return len(data) if found < 0 else found + 1
