"""The page writes what rich's console would write, which is too slow to load for a short report."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from kvdoctor.report.page import Page

WORDS = st.sampled_from(["a", "cache", " ", "  ", "—", "日本語", "x" * 37, "y" * 90, " blocks"])
CELLS = st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=12).map("".join), st.sampled_from(["", "bold", "dim", "bold red"])), min_size=1, max_size=3)  # fmt: skip


def by_rich(cells: list[tuple[str, str]], width: int, color: bool, indent: int, hang: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system="standard" if color else None, force_terminal=color, no_color=not color, markup=False, emoji=False, highlight=False, legacy_windows=False, _environ={})  # fmt: skip
    body = Text(" " * indent)
    for text, style in cells:
        body.append(text, style=style or None)
    lines = list(body.wrap(console, width))
    if len(lines) > 1:
        tail = body[len(lines[0].plain) :]
        tail = tail[len(tail.plain) - len(tail.plain.lstrip(" ")) :]
        lines = [lines[0], *tail.wrap(console, width - hang)]
    for number, line in enumerate(lines):
        whole = Text(" " * hang if number else "").append_text(line)
        whole.rstrip()
        console.print(whole, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
    return out.getvalue()


@given(CELLS, st.sampled_from([40, 60, 100]), st.booleans(), st.integers(0, 18), st.integers(0, 18))
def test_prose_is_wrapped_and_coloured_as_by_rich(
    cells: list[tuple[str, str]], width: int, color: bool, indent: int, hang: int
) -> None:
    page = Page(width, color)
    page.flow(cells, indent, hang)
    assert str(page) == by_rich(cells, width, color, indent, hang)
