"""Patterns compiled at first use answer like compiled ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse.lazy import lazily


@given(
    st.text("ab1 \n", max_size=30), st.sampled_from([r"a+(?P<n>\d)?", r"^b", r"\s(?=a)"]), st.sampled_from([0, re.M])
)
def test_they_find_what_re_finds(text: str, pattern: str, flags: int) -> None:
    made, plain = lazily(pattern, flags), re.compile(pattern, flags)
    for _ in range(2):  # before and after it is compiled
        assert [m.span() for m in made.finditer(text)] == [m.span() for m in plain.finditer(text)]
        assert made.sub("-", text) == plain.sub("-", text)
        assert (made.match(text) is None) == (plain.match(text) is None)
    assert made.pattern == pattern


def test_bytes_and_what_is_no_method_of_a_pattern() -> None:
    assert lazily(rb"\d+").findall(b"a1b22") == [b"1", b"22"]
    with pytest.raises(AttributeError, match="nothing"):
        lazily("a").nothing  # type: ignore[attr-defined]  # noqa: B018
