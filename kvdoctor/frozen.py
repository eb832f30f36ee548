"""The form of the house's nouns: ``@frozen`` makes what ``@dataclass(frozen=True, slots=True)`` makes, in a third of the time.

The standard library compiles six methods of every class while its module loads (Python 3.11: 0.6 ms a class). A hundred
nouns lie on the way of one diagnosis, so that took longer than everything the diagnosis does. Here ``__init__`` alone is
compiled, the others are closures over the names of the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")
_NOT_GIVEN = object()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass with slots; for ``replace``, ``fields`` and ``match`` it is one like any other.

    Supports what the nouns use: defaults, ``field(default=, default_factory=, compare=, repr=, hash=)`` and
    ``__post_init__``. Raises ``TypeError`` for a field that is keyword-only or no argument of ``__init__``.
    """
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or the standard library works out a signature to put there
    own = cls.__dict__
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    rows = fields(made)
    compared = tuple(row.name for row in rows if row.compare)
    values = _values(compared)
    hashed = _values(tuple(row.name for row in rows if (row.compare if row.hash is None else row.hash)))
    shown = tuple(row.name for row in rows if row.repr)
    names = tuple(row.name for row in rows)
    state = _values(names)

    def __eq__(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:
        return hash(hashed(self))

    @recursive_repr()
    def __repr__(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in shown])})"

    def __setstate__(self: object, stored: tuple[object, ...]) -> None:
        for name, value in zip(names, stored, strict=True):
            object.__setattr__(self, name, value)

    for method in (__eq__, __hash__, __repr__):
        if method.__name__ not in own:
            setattr(made, method.__name__, method)
    made.__init__ = _initialiser(made)
    made.__setattr__ = _refuse_set
    made.__delattr__ = _refuse_delete
    made.__getstate__ = lambda self: state(self)
    made.__setstate__ = __setstate__
    found: type[T] = made
    return found


def _values(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])


def _initialiser(made: Any) -> Callable[..., None]:
    scope: dict[str, Any] = {"_not_given": _NOT_GIVEN}
    arguments, lines = ["self"], []
    for row in fields(made):
        if not row.init or row.kw_only:
            raise TypeError(f"{made.__qualname__}.{row.name}: a frozen class has positional fields only")
        name = row.name
        # the slot's own setter is not stopped by the class's __setattr__
        scope[f"_set_{name}"] = getattr(made, name).__set__
        value = name
        if row.default is not MISSING:
            scope[f"_default_{name}"] = row.default
            arguments.append(f"{name}=_default_{name}")
        elif row.default_factory is not MISSING:
            scope[f"_make_{name}"] = row.default_factory
            arguments.append(f"{name}=_not_given")
            value = f"_make_{name}() if {name} is _not_given else {name}"
        else:
            arguments.append(name)
        lines.append(f" _set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n" + ("\n".join(lines) or " pass"), scope)
    initialiser: Callable[..., None] = scope["__init__"]
    initialiser.__qualname__ = f"{made.__qualname__}.__init__"
    initialiser.__module__ = made.__module__
    return initialiser


def _refuse_set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
