"""Patterns that are compiled when they are first used: a run on a page of metrics needs none of those for logs."""

from __future__ import annotations

import re
from typing import Any, cast, overload

_METHODS = ("match", "search", "fullmatch", "sub", "split", "findall", "finditer")


class _Lazy:
    """Stands for a compiled pattern. After the first use its methods are those of the pattern, with nothing in between."""

    __slots__ = ("flags", "pattern", *_METHODS)

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        made = re.compile(self.pattern, self.flags)
        for method in _METHODS:
            setattr(self, method, getattr(made, method))
        return getattr(made, name)


@overload
def lazily(pattern: str, flags: int = 0) -> re.Pattern[str]: ...
@overload
def lazily(pattern: bytes, flags: int = 0) -> re.Pattern[bytes]: ...
def lazily(pattern: str | bytes, flags: int = 0) -> re.Pattern[str] | re.Pattern[bytes]:
    """``re.compile``, later. For patterns of a module, of which only methods and the text are used."""
    return cast("re.Pattern[str]", _Lazy(pattern, flags))
