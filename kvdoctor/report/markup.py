"""HTML and SVG elements. Plain text is always made harmless; only what was built here passes as it is."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from kvdoctor.report.words import clean

_VOID = frozenset({"meta", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: str) -> Markup:
    """``content`` as HTML text: control and direction characters written out, markup and quotes escaped."""
    return content if isinstance(content, Markup) else Markup(escape(clean(content), quote=True))


def el(tag: str, /, *children: str, **attributes: str | float | bool) -> Markup:
    """An element. ``cls`` is the class, ``_`` in a name of an attribute is ``-``, False leaves an attribute out."""
    written = [tag]
    for key, wanted in attributes.items():
        if wanted is False:
            continue
        key = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        written.append(key if wanted is True else f'{key}="{text(str(wanted))}"')
    opened = f"<{' '.join(written)}>"
    return Markup(opened if tag in _VOID else f"{opened}{join(children)}</{tag}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts one after the other."""
    return Markup("".join(map(text, parts)))


def table(
    head: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str, right: frozenset[int] = frozenset()
) -> Markup:
    """A table whose first column names its rows; columns numbered in ``right`` are right-aligned. '' without rows."""
    body = [
        el("tr", *(el("td" if at else "th", cell, scope=False if at else "row", cls="n" if at in right else False) for at, cell in enumerate(row)))
        for row in rows
    ]  # fmt: skip
    if not body:
        return Markup()
    titles = el("tr", *(el("th", title, scope="col", cls="n" if at in right else False) for at, title in enumerate(head)))  # fmt: skip
    whole = el("table", el("caption", caption), el("thead", titles), el("tbody", *body))
    # a wide table scrolls in itself and can be reached by keyboard
    return el("div", whole, cls="wide", tabindex="0", role="region", aria_label=caption)
