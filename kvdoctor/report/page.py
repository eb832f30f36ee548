"""A text page of fixed width: prose that hangs under its label, aligned columns, lines that are never wrapped."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

Cell = tuple[str, str]
"""A text and its style."""

NARROWEST = 40


class Page:
    """Lines are written in order; ``str(page)`` is the page. No text is ever read as markup."""

    def __init__(self, width: int, color: bool) -> None:
        from rich.console import Console

        self.width = max(width, NARROWEST)
        self._least = max(self.width // 4, 20)
        self._color = color
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=self.width,
            color_system="standard" if color else None,
            force_terminal=color,
            no_color=not color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            _environ={},
        )

    def __str__(self) -> str:
        return self._out.getvalue()

    def blank(self) -> None:
        """An empty line."""
        self._out.write("\n")

    def rule(self, style: str = "") -> None:
        """A line across the page."""
        self.raw("─" * self.width, style)

    def heading(self, title: str, note: str = "") -> None:
        """A section starts: a blank line, the title in bold, a note beside it."""
        self.blank()
        self.flow([(title, "bold"), (f"  {note}" if note else "", "dim")])

    def raw(self, line: str, style: str = "") -> None:
        """One line that is never wrapped, so that it can be copied."""
        from rich.text import Text

        self._line(Text(line, style=style))

    def flow(self, cells: Sequence[Cell], indent: int = 0, hang: int | None = None) -> None:
        """Wrapped prose; the first line starts at ``indent``, the others at ``hang`` (same as ``indent`` when None)."""
        from rich.text import Text

        rest = indent if hang is None else hang
        # room for a text even where a deep indent meets a narrow page
        most = self.width - self._least
        indent, rest = min(indent, most), min(rest, most)
        body = Text(" " * indent)
        for text, style in cells:
            body.append(text, style=style or None)
        for number, line in enumerate(self._wrapped(body, rest)):
            self._line(Text(" " * rest if number else "").append_text(line))

    def labelled(self, label: str, text: str, style: str = "", at: int = 8) -> None:
        """``label`` in bold and the text beside it, hanging at column ``at``."""
        self.flow([(f"{label:<{at}}", "bold"), (text, style)], hang=at)

    def columns(self, rows: Sequence[Sequence[Cell]], indent: int = 2, gap: int = 2, right: Sequence[int] = ()) -> None:
        """Aligned columns; those numbered in ``right`` are right-aligned.

        On a page too narrow for them a row is prose. The last column takes what is left; where that is too little for its text it goes on a line of its own.
        """
        from rich.cells import cell_len

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

    def _wrapped(self, body: Text, rest: int) -> list[Text]:
        """Lines of ``body``: the first as wide as the page, the following narrower by ``rest``."""
        first = body.wrap(self._console, self.width)
        if len(first) <= 1:
            return list(first)
        head = first[0]
        tail = body[len(head.plain) :]
        # the space at the break belongs to neither line
        plain = tail.plain
        tail = tail[len(plain) - len(plain.lstrip(" ")) :]
        return [head, *tail.wrap(self._console, self.width - rest)]

    def _line(self, text: Text) -> None:
        text.rstrip()
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def _trimmed(cells: list[Cell]) -> list[Cell]:
    """Without the blank cells at the end."""
    while cells and not cells[-1][0].strip():
        cells.pop()
    return cells
