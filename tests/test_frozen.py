"""``@frozen`` against the standard library's ``@dataclass(frozen=True, slots=True)``."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.frozen import frozen


@frozen
class Ours:
    """A value with its unit."""

    value: float
    unit: str = "1"
    tags: dict[str, int] = field(default_factory=dict, hash=False)
    note: str = field(default="", compare=False, repr=False)

    @property
    def shown(self) -> str:
        return f"{self.value:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Theirs:
    """A value with its unit."""

    value: float
    unit: str = "1"
    tags: dict[str, int] = field(default_factory=dict, hash=False)
    note: str = field(default="", compare=False, repr=False)


@frozen
class Child(Ours):
    """Adds a field and keeps the others."""

    more: tuple[int, ...] = ()


ARGUMENTS = st.tuples(st.floats(), st.sampled_from(["1", "bytes"]), st.dictionaries(st.text(), st.integers(), max_size=2), st.text(max_size=3))  # fmt: skip


@given(ARGUMENTS, ARGUMENTS)
def test_they_compare_hash_and_show_alike(
    one: tuple[float, str, dict[str, int], str], two: tuple[float, str, dict[str, int], str]
) -> None:
    ours, theirs = (Ours(*one), Ours(*two)), (Theirs(*one), Theirs(*two))
    assert (ours[0] == ours[1]) == (theirs[0] == theirs[1])
    assert [hash(o) for o in ours] == [hash(t) for t in theirs]
    assert repr(ours[0]) == repr(theirs[0]).replace("Theirs", "Ours")
    assert ours[0] != theirs[0]


def test_nothing_can_be_changed_and_nothing_added() -> None:
    made = Ours(1.0)
    for name in ("value", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(made, name, 2)
    with pytest.raises(FrozenInstanceError):
        del made.value
    assert not hasattr(made, "__dict__")
    assert made.shown == "1 1"


def test_defaults_are_made_anew_and_wrong_arguments_refused() -> None:
    assert Ours(1.0).tags is not Ours(1.0).tags
    with pytest.raises(TypeError):
        Ours()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Ours(1.0, size=3)  # type: ignore[call-arg]


def test_it_is_a_dataclass_to_everybody_else() -> None:
    made = Ours(1.0, note="n")
    assert is_dataclass(made)
    assert [one.name for one in fields(made)] == ["value", "unit", "tags", "note"]
    assert replace(made, unit="s") == Ours(1.0, "s")
    match made:
        case Ours(value, unit):
            assert (value, unit) == (1.0, "1")
    for same in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert same == made
        assert same.note == "n"


def test_a_class_can_build_on_another() -> None:
    made = Child(1.0, more=(2,))
    assert repr(made) == "Child(value=1.0, unit='1', tags={}, more=(2,))"
    assert made != Ours(1.0)
    assert replace(made, value=3.0).more == (2,)


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="positional"):

        @frozen
        class _Odd:
            one: int = field(init=False, default=1)
