"""Configuration as servers print it, as name -> value text: command lines, nested Python reprs, Rust debug, pbtxt."""

from __future__ import annotations

import re

from kvdoctor.parse.lazy import lazily

LONGEST = 40_000
"""Characters of a configuration dump that are read."""

_FLAG = lazily(r"(?<![\w-])--([A-Za-z][\w.-]*)(?:[= ]+(?!-)(\"[^\"]*\"|'[^']*'|[^\s\"']+))?")
# A value that opens a bracket is a nested object: its inner pairs are taken, not the object. Possessive, so that no
# shorter piece of the object's name is taken either; a name is tried once only, at its beginning, so that a long word
# costs linear time.
_NESTED = lazily(
    r"(?<![\w-])([A-Za-z_][\w-]*+)['\"]?[ \t]*+[=:][ \t]*+"
    r"(?:'([^']*)'|\"([^\"]*)\"|<(?:\w++\.)*+(\w++):[^>]*+>|([^\s,(){}\[\]'\"<=:][^\s,(){}\[\]'\"]*+)(?![(\[{:]))"
)
_RUST = lazily(
    r"\b([a-z_][a-z0-9_]*+):\s*(?:Some\(\s*)?(\"(?:[^\"\\]|\\.)*\"|[^\s,(){}\[\]\"]++(?!\s*[({\[]))", re.DOTALL
)
_PBTXT = lazily(r"key:\s*\"(\w+)\"\s*,?\s*value:\s*\{\s*string_value:\s*\"([^\"]*)\"")


def flags(text: str) -> dict[str, str]:
    """``--max-batch-size 64 --trust=1 --eager`` -> underscored names; a switch without a value is ``True``."""
    out: dict[str, str] = {}
    for name, value in _FLAG.findall(text[:LONGEST]):
        out.setdefault(name.replace("-", "_"), value.strip("'\"") if value else "True")
    return out


def nested(text: str) -> dict[str, str]:
    """``Config(a=1, b=Inner(c='x', d=<Kind.BIG: 2>))``, YAML lines and JSON -> every scalar by its own name.

    Names of outer objects are dropped: the first of two equal names is kept. ``None`` and ``null`` are no setting.
    """
    out: dict[str, str] = {}
    for name, single, double, enum, bare in _NESTED.findall(text[:LONGEST]):
        value = single or double or enum or bare
        if value not in ("", "None", "null"):
            out.setdefault(name.replace("-", "_"), value)
    return out


def rust_debug(text: str) -> dict[str, str]:
    """``model_id: "m", num_shard: Some(2), dtype: None`` on one line or many -> the settings that are set."""
    out: dict[str, str] = {}
    for name, value in _RUST.findall(text[:LONGEST]):
        bare = value.strip('"')
        if bare not in ("None", "Some", ""):
            out.setdefault(name, bare)
    return out


def pbtxt(text: str) -> dict[str, str]:
    """Parameters of a Triton model configuration; an unfilled ``${name}`` template is no setting."""
    return {k: v for k, v in _PBTXT.findall(text[:LONGEST]) if v and not v.startswith("${")}
