"""A text page of fixed width: prose that hangs under its label, aligned columns, lines that are never wrapped.

Written here and not by rich's console, which takes longer to load than the rest of a report takes to make.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

Cell = tuple[str, str]
"""A text and its style."""

NARROWEST = 40

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_WORD = re.compile(r"\s*\S+\s*")


class Page:
    """Lines are written in order; ``str(page)`` is the page. No text is ever read as markup.

    A style is any of bold, dim, red, green, yellow, blue and cyan, separated by blanks; '' is none.
    """

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, NARROWEST)
        self._least = max(self.width // 4, 20)
        self._color = color
        self._lines: list[str] = []

    def __str__(self) -> str:
        return "".join([f"{line}\n" for line in self._lines])

    def blank(self) -> None:
        """An empty line."""
        self._lines.append("")

    def rule(self, style: str = "") -> None:
        """A line across the page."""
        self.raw("─" * self.width, style)

    def heading(self, title: str, note: str = "") -> None:
        """A section starts: a blank line, the title in bold, a note beside it."""
        self.blank()
        self.flow([(title, "bold"), (f"  {note}" if note else "", "dim")])

    def raw(self, line: str, style: str = "") -> None:
        """One line that is never wrapped, so that it can be copied."""
        self._line([(line, style)])

    def flow(self, cells: Sequence[Cell], indent: int = 0, hang: int | None = None) -> None:
        """Wrapped prose; the first line starts at ``indent``, the others at ``hang`` (same as ``indent`` when None)."""
        rest = indent if hang is None else hang
        # room for a text even where a deep indent meets a narrow page
        most = self.width - self._least
        indent, rest = min(indent, most), min(rest, most)
        body = [(" " * indent, ""), *cells]
        plain = "".join([text for text, _ in body])
        end = next(_breaks(plain, self.width), len(plain))
        self._line(_cut(body, 0, end))
        # the blanks at the break belong to neither line
        start = len(plain) - len(plain[end:].lstrip(" "))
        stops = [start + at for at in _breaks(plain[start:], self.width - rest)]
        for begin, stop in pairwise((start, *stops, len(plain))):
            if begin < stop:
                self._line([(" " * rest, ""), *_cut(body, begin, stop)])

    def labelled(self, label: str, text: str, style: str = "", at: int = 8) -> None:
        """``label`` in bold and the text beside it, hanging at column ``at``."""
        self.flow([(f"{label:<{at}}", "bold"), (text, style)], hang=at)

    def columns(self, rows: Sequence[Sequence[Cell]], indent: int = 2, gap: int = 2, right: Sequence[int] = ()) -> None:
        """Aligned columns; those numbered in ``right`` are right-aligned.

        On a page too narrow for them a row is prose. The last column takes what is left; where that is too little for its text it goes on a line of its own.
        """
        if not rows:
            return
        fixed = max(len(row) for row in rows) - 1
        longest = max((self.width - indent) * 2 // 3, 12)
        widths = [
            min(max((cell_len(row[i][0]) for row in rows if len(row) > i), default=0), longest) for i in range(fixed)
        ]
        aligned = indent + sum(width + gap for width in widths if width) <= self.width - indent * 2
        for row in rows:
            if not aligned:
                filled = [cell for cell in row if cell[0].strip()]
                spaced = [part for cell in filled for part in (cell, (" " * gap, ""))]
                self.flow(spaced[:-1], indent, indent + 4)
                continue
            cells: list[Cell] = []
            start = indent
            for index, (text, style) in enumerate(row[:fixed]):
                if not widths[index]:
                    continue
                fill = " " * max(widths[index] - cell_len(text), 0)
                cells.append((fill + text if index in right else text + fill, style))
                cells.append((" " * gap, ""))
                start += max(widths[index], cell_len(text)) + gap
            last = row[fixed] if len(row) > fixed else ("", "")
            room = self.width - start
            if last[0] and cell_len(last[0]) > room and room < 2 * self._least:
                self.flow(_trimmed(cells), indent, indent + 4)
                self.flow([last], indent + 4, indent + 6)
            else:
                self.flow(_trimmed([*cells, last]), indent, start)

    def _line(self, cells: Iterable[Cell]) -> None:
        kept = _trimmed(list(cells))
        if kept:
            kept[-1] = (kept[-1][0].rstrip(), kept[-1][1])
        self._lines.append("".join([self._styled(text, style) for text, style in kept]))

    def _styled(self, text: str, style: str) -> str:
        if not self._color or not style or not text:
            return text
        return f"\x1b[{';'.join([_SGR[word] for word in style.split()])}m{text}\x1b[0m"


def cell_len(text: str) -> int:
    """Columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as columns  # its tables are needed for wide letters only

    return columns(text)


def _chopped(word: str, width: int) -> list[str]:
    if word.isascii():
        return [word[at : at + width] for at in range(0, len(word), width)]
    from rich.cells import chop_cells

    return chop_cells(word, width)


def _breaks(text: str, width: int) -> Iterator[int]:
    """Where lines of ``width`` columns begin in a text (but the first): at words; a word longer than a line is cut."""
    column = 0
    for found in _WORD.finditer(text):
        word, start = found.group(), found.start()
        length = cell_len(word.rstrip())
        if length <= width - column:
            column += cell_len(word)
        elif length > width:
            pieces = _chopped(word, width)
            for piece in pieces:
                if start:
                    yield start
                start += len(piece)
            column = cell_len(pieces[-1])
        elif start:
            yield start
            column = cell_len(word)


def _cut(cells: Iterable[Cell], start: int, end: int) -> Iterator[Cell]:
    """The cells between two offsets of their joined text."""
    at = 0
    for text, style in cells:
        yield text[max(start - at, 0) : max(end - at, 0)], style
        at += len(text)


def _trimmed(cells: list[Cell]) -> list[Cell]:
    """Without the blank cells at the end."""
    while cells and not cells[-1][0].strip():
        cells.pop()
    return cells
