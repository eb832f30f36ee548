"""Unit algebra of rule expressions: which units may be compared, added, multiplied and divided."""

from __future__ import annotations

from kvdoctor.frozen import frozen

_PLAIN = ("1", "ratio", "count")
_DIMS: dict[str, tuple[int, int, int]] = {
    "tok": (1, 0, 0),
    "B": (0, 1, 0),
    "s": (0, 0, 1),
    "/s": (0, 0, -1),
    "tok/s": (1, 0, -1),
    "B/s": (0, 1, -1),
}
NUMERIC_UNITS: tuple[str, ...] = (*_PLAIN, *_DIMS)

_WORDS = {"1": "a fraction (1)", "ratio": "a ratio", "count": "a count"}


@frozen
class Unit:
    """Exponents of token, byte and second; without any of them, the plain units it may stand for.

    A literal 0 or 1 and a quotient of equal units have several ``plain`` readings; the other side decides.
    ``zero`` marks the literal 0, which fits every unit.
    """

    dims: tuple[int, int, int]
    plain: frozenset[str] = frozenset()
    zero: bool = False

    def __str__(self) -> str:
        if self.zero:
            return "0"
        if not any(self.dims):
            return " or ".join(_WORDS[name] for name in _PLAIN if name in self.plain)
        for name, dims in _DIMS.items():
            if dims == self.dims:
                return name
        parts = zip(("tok", "B", "s"), self.dims, strict=True)
        return "*".join(name if power == 1 else f"{name}^{power}" for name, power in parts if power)

    @property
    def name(self) -> str:
        """The unit's name for print; a plain unit with several readings gives the first of 1, ratio, count."""
        if not any(self.dims):
            return next((name for name in _PLAIN if name in self.plain), "1")
        return str(self)


ZERO = Unit((0, 0, 0), frozenset(_PLAIN), zero=True)
ONE = Unit((0, 0, 0), frozenset(_PLAIN))


def unit_of(name: str) -> Unit:
    """The unit called ``name``; ``KeyError`` when it is not numeric (bool, enum) or unknown."""
    if name in _PLAIN:
        return Unit((0, 0, 0), frozenset((name,)))
    return Unit(_DIMS[name])


def agree(left: Unit, right: Unit) -> Unit | None:
    """The common unit of two sides of a comparison or a sum; None when they do not agree."""
    if left.zero:
        return right
    if right.zero:
        return left
    if left.dims != right.dims:
        return None
    if any(left.dims):
        return left
    common = left.plain & right.plain
    return Unit(left.dims, common) if common else None


def product(left: Unit, right: Unit) -> Unit:
    """The unit of ``left * right``. A count of fractions is a count; a ratio of fractions is a ratio."""
    dims = (left.dims[0] + right.dims[0], left.dims[1] + right.dims[1], left.dims[2] + right.dims[2])
    if any(dims):
        return Unit(dims)
    if any(left.dims):
        # tok/s * s/tok and the like: whatever cancelled leaves a bare number
        return ONE
    if left.plain == ONE.plain or right.plain == ONE.plain:
        return Unit(dims, left.plain & right.plain)
    for name in ("count", "ratio"):
        if name in left.plain or name in right.plain:
            return Unit(dims, frozenset((name,)))
    return Unit(dims, frozenset(("1",)))


def quotient(left: Unit, right: Unit) -> Unit:
    """The unit of ``left / right``: count/count = ratio, tok/tok = 1 or ratio, count/s = /s."""
    dims = (left.dims[0] - right.dims[0], left.dims[1] - right.dims[1], left.dims[2] - right.dims[2])
    if any(dims):
        return Unit(dims)
    if any(left.dims):
        return Unit(dims, frozenset(("1", "ratio")))
    if left.plain == {"count"} and right.plain != {"count"}:
        return Unit(dims, frozenset(("count",)))
    if left.plain == {"count"} or right.plain == {"count"}:
        return Unit(dims, frozenset(("ratio",)))
    return Unit(dims, frozenset(("1", "ratio")))
