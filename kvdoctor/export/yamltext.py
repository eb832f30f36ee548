"""A small YAML writer for rule files: mappings, lists, texts, numbers; long texts as literal blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

Tree = str | int | float | bool | Sequence["Tree"] | Mapping[str, "Tree"]

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./ ()\-]*[A-Za-z0-9_/)]|[A-Za-z_/]")
# what a YAML 1.1 reader would take for something else than text
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})


def scalar(value: str | int | float | bool) -> str:
    """One value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:.12g}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    escaped = "".join(_escape(char) for char in value)
    return f'"{escaped}"'


def _escape(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char == "\n":
        return "\\n"
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def dump(tree: Tree, indent: int = 0) -> str:
    """The text of a tree, without a line end."""
    return "\n".join(_lines(tree, indent))


def _lines(tree: Tree, indent: int) -> Iterator[str]:
    pad = " " * indent
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _entry(f"{pad}{scalar(key)}:", value, indent)
    elif isinstance(tree, Sequence) and not isinstance(tree, str):
        for item in tree:
            if isinstance(item, Mapping) and item:
                inner = list(_lines(item, indent + 2))
                yield f"{pad}- {inner[0][indent + 2 :]}"
                yield from inner[1:]
            else:
                yield from _entry(f"{pad}-", item, indent)
    else:
        yield pad + scalar(tree)


def _edges(value: str) -> bool:
    """Does a literal block keep how the text begins and ends?"""
    return value[0] not in " \n" and value[-1] != "\n"


def _entry(head: str, value: Tree, indent: int) -> Iterator[str]:
    if isinstance(value, str):
        if "\n" in value.strip() and all(map(str.isprintable, value.split("\n"))) and _edges(value):
            yield f"{head} |-"
            pad = " " * (indent + 2)
            for line in value.split("\n"):
                yield pad + line if line else ""
        else:
            yield f"{head} {scalar(value)}"
    elif isinstance(value, Mapping):
        if value:
            yield head
            yield from _lines(value, indent + 2)
        else:
            yield f"{head} {{}}"
    elif isinstance(value, Sequence):
        if value:
            yield head
            yield from _lines(value, indent + 2)
        else:
            yield f"{head} []"
    else:
        yield f"{head} {scalar(value)}"
