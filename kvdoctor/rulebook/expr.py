"""Rule expressions: a closed subset of Python's grammar over facts, three-valued and with units.

``and``, ``or``, ``not``, one comparison at a time, ``+ - * /``, dotted facts, ``thresholds.NAME``, the numbers 0 and 1, a
string literal compared with an enum fact, boolean facts as they stand, and ``known(fact)`` where it is allowed.

Facts are intervals. ``x > t`` is true when the lower end exceeds t, false when the upper end does not, otherwise undecided.
A comparison has one of four codes, ordered so that ``and`` is the minimum and ``or`` the maximum:

====================  ==================================================================================================
``FALSE``             certainly not so
``UNDECIDED``         a fact is unknown, a bound straddles the threshold, or a divisor may be zero
``SINCE_START``       so, but counted since the process started: it supports, it cannot decide
``TRUE``              certainly so
====================  ==================================================================================================

``not`` is pushed down to the comparisons when the text is compiled (it is exact on intervals), so it needs no inversion.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from kvdoctor.facts import FACTS, Fact, Known, Unknown, Value, suggest, widest_span, worst_how
from kvdoctor.findings import Evidence, Missing
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.units import ONE, ZERO, Unit, agree, product, quotient, unit_of

FALSE, UNDECIDED, SINCE_START, TRUE = 0, 1, 2, 3

Op = Literal["<", "<=", ">", ">=", "==", "!=", "is", "is not", "known", "unknown"]
Facts = Mapping[str, Any]
Test = Callable[[Facts], int]
Interval = tuple[float, float]
Reader = Callable[[Facts], "Interval | None"]

_COMPARISONS: Mapping[type[ast.cmpop], Op] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_INVERSE: Mapping[Op, Op] = {
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "known": "unknown",
    "unknown": "known",
}
_MIRROR: Mapping[Op, Op] = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ARITHMETIC: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

_MAX_TEXT = 4000
_NOBODY = Unknown("nothing in this snapshot tells it")


class ExprError(ValueError):
    """An expression that is refused; ``str()`` shows the place with a caret.

    ``line`` (from 0) and ``column`` are the place inside ``text``.
    """

    def __init__(self, message: str, text: str, line: int = 0, column: int = 0, width: int = 1) -> None:
        lines = text.splitlines() or [""]
        shown = lines[min(line, len(lines) - 1)]
        super().__init__(f"{message}\n    {shown}\n    {' ' * column}{'^' * max(width, 1)}")
        self.message = message
        self.line = line
        self.column = column


@frozen
class Threshold:
    """A named number of a rule. ``origin`` is ``rule`` or the place where the user changed it."""

    name: str
    value: float
    unit: str
    calibrated: bool
    why: str
    source: str = ""
    origin: str = "rule"


@frozen
class Number:
    """The literal 0 or 1."""

    value: float


@frozen
class FactRef:
    """A fact by name."""

    name: str


@frozen
class ThresholdRef:
    """A threshold by name."""

    name: str


@frozen
class Arithmetic:
    """``left op right`` with op one of ``+ - * /``."""

    op: str
    left: Operand
    right: Operand


Operand = Number | FactRef | ThresholdRef | Arithmetic


@frozen
class Comparison:
    """One comparison, boolean fact or ``known()``: a leaf of the tree, ``index`` in reading order.

    ``left`` holds at least one fact. ``right`` is None for a boolean fact and for ``known``, a string for an enum.
    """

    index: int
    op: Op
    left: Operand
    right: Operand | str | None
    unit: str

    @property
    def text(self) -> str:
        """The comparison in words of the rule, ``not`` already resolved."""
        left = show(self.left)
        if self.op == "is":
            return left
        if self.op == "is not":
            return f"not {left}"
        if self.op == "known":
            return f"known({left})"
        if self.op == "unknown":
            return f"not known({left})"
        right = f'"{self.right}"' if isinstance(self.right, str) else show(self.right) if self.right else ""
        return f"{left} {self.op} {right}"


@frozen
class Group:
    """``and`` or ``or`` over two or more parts."""

    op: Literal["and", "or"]
    parts: tuple[Node, ...]


Node = Comparison | Group


def show(operand: Operand, *, inner: bool = False) -> str:
    """The text of an operand."""
    if isinstance(operand, Number):
        return f"{operand.value:g}"
    if isinstance(operand, FactRef):
        return operand.name
    if isinstance(operand, ThresholdRef):
        return f"thresholds.{operand.name}"
    text = f"{show(operand.left, inner=True)} {operand.op} {show(operand.right, inner=True)}"
    return f"({text})" if inner else text


def number(value: Value) -> str:
    """A number for a person: six significant digits, words for truth."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value:.6g}"


def _operands(operand: Operand) -> Iterator[Operand]:
    yield operand
    if isinstance(operand, Arithmetic):
        yield from _operands(operand.left)
        yield from _operands(operand.right)


def facts_of(operand: Operand | str | None) -> tuple[str, ...]:
    """The facts an operand reads, in order, without repeats."""
    if operand is None or isinstance(operand, str):
        return ()
    return tuple(dict.fromkeys(part.name for part in _operands(operand) if isinstance(part, FactRef)))


def thresholds_of(operand: Operand | str | None) -> tuple[str, ...]:
    """The thresholds an operand reads."""
    if operand is None or isinstance(operand, str):
        return ()
    return tuple(dict.fromkeys(part.name for part in _operands(operand) if isinstance(part, ThresholdRef)))


class _Reader:
    """Turns the Python syntax tree into nodes and checks names and units on the way."""

    def __init__(self, text: str, units: Mapping[str, str], *, allow_known: bool) -> None:
        self.text = text
        self.units = units
        self.allow_known = allow_known
        self.leaves: list[Comparison] = []
        self.tree = self._parse(text)

    def _parse(self, text: str) -> ast.expr:
        if len(text) > _MAX_TEXT:
            raise ExprError(f"longer than {_MAX_TEXT} characters", text[:80])
        if not text.strip():
            raise ExprError("the expression is empty", text)
        try:
            return ast.parse(f"({text}\n)", mode="eval").body
        except SyntaxError as error:
            line = max((error.lineno or 1) - 1, 0)
            column = max((error.offset or 1) - 1 - (line == 0), 0)
            raise ExprError(f"not an expression: {error.msg}", text, line, column) from None
        except (ValueError, RecursionError, MemoryError):
            raise ExprError(
                "not an expression: it cannot be read (nested too deeply, or a NUL character)", text
            ) from None

    def fail(self, at: ast.AST, message: str) -> ExprError:
        line = getattr(at, "lineno", 1) - 1
        column = getattr(at, "col_offset", 0) - (line == 0)
        end_line = (getattr(at, "end_lineno", None) or line + 1) - 1
        end = (getattr(at, "end_col_offset", None) or column + 1) - (end_line == 0)
        width = end - column if end_line == line else 1
        return ExprError(message, self.text, line, max(column, 0), width)

    def dotted(self, node: ast.expr) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([node.id, *reversed(parts)])

    def fact(self, node: ast.expr, name: str) -> FactRef:
        if name not in FACTS:
            raise self.fail(node, f"unknown fact {name}{did_you_mean(suggest(name, FACTS))}")
        return FactRef(name)

    def node(self, node: ast.expr, positive: bool = True) -> Node:
        if isinstance(node, ast.BoolOp):
            op: Literal["and", "or"] = "and" if isinstance(node.op, ast.And) == positive else "or"
            parts: list[Node] = []
            for value in node.values:
                part = self.node(value, positive)
                if isinstance(part, Group) and part.op == op:
                    parts.extend(part.parts)
                else:
                    parts.append(part)
            return Group(op, tuple(parts))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.node(node.operand, not positive)
        if isinstance(node, ast.Compare):
            return self.leaf(*self.comparison(node), positive)
        if isinstance(node, ast.Call):
            return self.leaf("known", self.known(node), None, "bool", positive)
        name = self.dotted(node)
        if name is not None:
            if name.startswith("thresholds."):
                raise self.fail(node, f"{name} is a number; compare it with a fact")
            ref = self.fact(node, name)
            unit = FACTS[name].unit
            if unit == "bool":
                return self.leaf("is", ref, None, "bool", positive)
            if unit == "enum":
                choices = ", ".join(FACTS[name].choices)
                raise self.fail(node, f'{name} is one of {choices}; write {name} == "..."')
            raise self.fail(node, f"{name} is a number ({unit}); compare it with a threshold")
        raise self.fail(node, f"{_kind(node)} is not allowed here; an expression is and/or/not over comparisons")

    def leaf(self, op: Op, left: Operand, right: Operand | str | None, unit: str, positive: bool) -> Comparison:
        made = Comparison(len(self.leaves), op if positive else _INVERSE[op], left, right, unit)
        self.leaves.append(made)
        return made

    def known(self, node: ast.Call) -> FactRef:
        if self.dotted(node.func) != "known" or len(node.args) != 1 or node.keywords:
            raise self.fail(node, "calls are not allowed; only known(fact), and only in applies")
        if not self.allow_known:
            raise self.fail(node, "known() is allowed in applies only: an answer may not change when a fact arrives")
        name = self.dotted(node.args[0])
        if name is None:
            raise self.fail(node.args[0], "known() takes the name of one fact")
        return self.fact(node.args[0], name)

    def comparison(self, node: ast.Compare) -> tuple[Op, Operand, Operand | str | None, str]:
        if len(node.ops) != 1:
            raise self.fail(node, "one comparison at a time; join two with `and`")
        op = _COMPARISONS.get(type(node.ops[0]))
        if op is None:
            raise self.fail(node, "only < <= > >= == != compare; for several choices join == with `or`")
        left_node, right_node = node.left, node.comparators[0]
        if _is_text(left_node) and not _is_text(right_node):
            left_node, right_node = right_node, left_node
            op = _MIRROR.get(op, op)
        left_name = self.dotted(left_node)
        if left_name is not None and left_name in FACTS and FACTS[left_name].unit in ("enum", "bool"):
            return self.choice(op, left_name, left_node, right_node)
        left, left_unit = self.value(left_node)
        right, right_unit = self.value(right_node)
        unit = agree(left_unit, right_unit)
        if unit is None or (left_unit.zero and right_unit.zero):
            raise self.fail(
                node,
                f"units do not agree: {ast.unparse(left_node)} is {left_unit}, {ast.unparse(right_node)} is {right_unit}",
            )
        if not facts_of(left):
            if not facts_of(right):
                raise self.fail(node, "no fact in this comparison: its answer never changes")
            left, right, op = right, left, _MIRROR.get(op, op)
        return op, left, right, unit.name

    def choice(self, op: Op, name: str, left: ast.expr, right: ast.expr) -> tuple[Op, Operand, str, str]:
        if FACTS[name].unit == "bool":
            raise self.fail(left, f"{name} is true or false; write `{name}` or `not {name}`")
        choices = FACTS[name].choices
        if op not in ("==", "!="):
            raise self.fail(left, f"{name} has no order; use == or !=")
        if not (isinstance(right, ast.Constant) and isinstance(right.value, str)):
            raise self.fail(right, f"{name} is compared with one of its choices in quotes: {', '.join(choices)}")
        if right.value not in choices:
            close = did_you_mean(suggest(right.value, choices))
            raise self.fail(right, f"{name} is never {right.value!r}{close} (choices: {', '.join(choices)})")
        return op, FactRef(name), right.value, "enum"

    def value(self, node: ast.expr) -> tuple[Operand, Unit]:
        if isinstance(node, ast.Constant):
            return self.literal(node)
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node)
        name = self.dotted(node)
        if name is None:
            raise self.fail(node, f"{_kind(node)} is not allowed in a value; use facts, thresholds, 0, 1 and + - * /")
        if name.startswith("thresholds."):
            short = name.removeprefix("thresholds.")
            if short not in self.units:
                near = suggest(short, self.units)
                known = did_you_mean([f"thresholds.{n}" for n in near]) or _listed("thresholds", self.units)
                raise self.fail(node, f"unknown threshold {short}{known}")
            return ThresholdRef(short), unit_of(self.units[short])
        ref = self.fact(node, name)
        unit = FACTS[name].unit
        if unit in ("bool", "enum"):
            raise self.fail(node, f"{name} is {unit}, not a number")
        return ref, unit_of(unit)

    def literal(self, node: ast.Constant) -> tuple[Operand, Unit]:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(node, f"{ast.unparse(node)} is not allowed here; text is compared with an enum fact only")
        if value not in (0, 1):
            raise self.fail(
                node,
                f"bare number {ast.unparse(node)}: give it a name in [thresholds], with unit and why (only 0 and 1 go bare)",
            )
        return Number(float(value)), ZERO if value == 0 else ONE

    def arithmetic(self, node: ast.BinOp) -> tuple[Operand, Unit]:
        op = _ARITHMETIC.get(type(node.op))
        if op is None:
            raise self.fail(node, "only + - * / are allowed")
        left, left_unit = self.value(node.left)
        right, right_unit = self.value(node.right)
        if op == "*":
            unit: Unit | None = product(left_unit, right_unit)
        elif op == "/":
            if right_unit.zero:
                raise self.fail(node.right, "division by zero")
            unit = quotient(left_unit, right_unit)
        else:
            unit = agree(left_unit, right_unit)
            if unit is None:
                raise self.fail(
                    node,
                    f"units do not agree: {ast.unparse(node.left)} is {left_unit}, "
                    f"{ast.unparse(node.right)} is {right_unit}",
                )
        assert unit is not None
        return Arithmetic(op, left, right), unit


def did_you_mean(near: Sequence[str]) -> str:
    """``; did you mean a, b?`` or nothing."""
    return f"; did you mean {', '.join(near)}?" if near else ""


def _listed(what: str, names: Mapping[str, str]) -> str:
    return f" ({what} here: {', '.join(names)})" if names else f" (there are no {what} here)"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


_KINDS: Mapping[type[ast.expr], str] = {
    ast.Call: "a call",
    ast.Lambda: "a lambda",
    ast.IfExp: "a conditional",
    ast.ListComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Subscript: "an index",
    ast.Tuple: "a tuple",
    ast.List: "a list",
    ast.Constant: "a bare value",
    ast.BinOp: "a value without a comparison",
    ast.UnaryOp: "a sign",
    ast.JoinedStr: "a formatted text",
    ast.NamedExpr: "an assignment",
}


def _kind(node: ast.expr) -> str:
    return _KINDS.get(type(node), f"this ({type(node).__name__})")


# ---------------------------------------------------------------------------------------------- values


def _reader(operand: Operand, thresholds: Mapping[str, Threshold]) -> Reader:
    """A closure that reads the interval of an operand; None when a fact is unknown or a divisor may be zero."""
    if isinstance(operand, (Number, ThresholdRef)):
        value = operand.value if isinstance(operand, Number) else float(thresholds[operand.name].value)
        constant = (value, value)
        return lambda facts: constant
    if isinstance(operand, FactRef):
        name = operand.name
        known: Any = Known

        def read(facts: Facts) -> Interval | None:
            fact: Any = facts.get(name)
            return (fact.lo, fact.hi) if fact.__class__ is known else None

        return read
    if operand.op == "*" and isinstance(operand.left, ThresholdRef):
        factor = float(thresholds[operand.left.name].value)
        if factor >= 0:
            return _scaled(factor, _reader(operand.right, thresholds))
    left, right, work = _reader(operand.left, thresholds), _reader(operand.right, thresholds), _STEPS[operand.op]

    def compute(facts: Facts) -> Interval | None:
        a, b = left(facts), right(facts)
        if a is None or b is None:
            return None
        out = work(a, b)
        # infinity minus infinity and the like are not numbers
        return out if out is not None and out[0] <= out[1] else None

    return compute


def _scaled(factor: float, part: Reader) -> Reader:
    """``thresholds.x * fact``, the usual product: both ends keep their order."""

    def scale(facts: Facts) -> Interval | None:
        ends = part(facts)
        if ends is None:
            return None
        lo, hi = factor * ends[0], factor * ends[1]
        # infinity times zero is not a number
        return (lo, hi) if lo <= hi else None

    return scale


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _subtract(a: Interval, b: Interval) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def _multiply(a: Interval, b: Interval) -> Interval:
    ends = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(ends), max(ends)


def _divide(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0 <= b[1]:
        return None
    ends = (a[0] / b[0], a[0] / b[1], a[1] / b[0], a[1] / b[1])
    return min(ends), max(ends)


_STEPS: Mapping[str, Callable[[Interval, Interval], Interval | None]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
}


def compare(op: Op, a: Interval, b: Interval) -> bool | None:
    """Compare two intervals: True and False are certain, None is undecided."""
    if op == ">":
        return True if a[0] > b[1] else False if a[1] <= b[0] else None
    if op == ">=":
        return True if a[0] >= b[1] else False if a[1] < b[0] else None
    if op == "<":
        return True if a[1] < b[0] else False if a[0] >= b[1] else None
    if op == "<=":
        return True if a[1] <= b[0] else False if a[0] > b[1] else None
    same = True if a[0] == a[1] == b[0] == b[1] else False if a[1] < b[0] or b[1] < a[0] else None
    if same is None or op == "==":
        return same
    return not same


# ---------------------------------------------------------------------------------------------- fast tests


def _simple(op: Op, name: str, t: float) -> Test:
    """The common case, one fact against one constant, without building intervals."""
    # untyped on purpose: a narrowing check of the number's type would cost more than the comparison
    known: Any = Known
    if op == ">":

        def test(facts: Facts) -> int:
            fact: Any = facts.get(name)
            if fact.__class__ is known:
                if fact.lo > t:
                    return SINCE_START if fact.span == "L" else TRUE
                if fact.hi <= t:
                    return FALSE
            return UNDECIDED

    elif op == ">=":

        def test(facts: Facts) -> int:
            fact: Any = facts.get(name)
            if fact.__class__ is known:
                if fact.lo >= t:
                    return SINCE_START if fact.span == "L" else TRUE
                if fact.hi < t:
                    return FALSE
            return UNDECIDED

    elif op == "<":

        def test(facts: Facts) -> int:
            fact: Any = facts.get(name)
            if fact.__class__ is known:
                if fact.hi < t:
                    return SINCE_START if fact.span == "L" else TRUE
                if fact.lo >= t:
                    return FALSE
            return UNDECIDED

    elif op == "<=":

        def test(facts: Facts) -> int:
            fact: Any = facts.get(name)
            if fact.__class__ is known:
                if fact.hi <= t:
                    return SINCE_START if fact.span == "L" else TRUE
                if fact.lo > t:
                    return FALSE
            return UNDECIDED

    else:
        equal = op == "=="

        def test(facts: Facts) -> int:
            fact: Any = facts.get(name)
            if fact.__class__ is known:
                if fact.lo == fact.hi == t:
                    same = True
                elif fact.hi < t or fact.lo > t:
                    same = False
                else:
                    return UNDECIDED
                if same is not equal:
                    return FALSE
                return SINCE_START if fact.span == "L" else TRUE
            return UNDECIDED

    return test


def _choice_test(leaf: Comparison) -> Test:
    """An enum against one of its choices, or a boolean fact as it stands."""
    assert isinstance(leaf.left, FactRef)
    name = leaf.left.name
    wanted: Value = leaf.right if isinstance(leaf.right, str) else True
    equal = leaf.op in ("==", "is")
    known = Known

    def test(facts: Facts) -> int:
        fact = facts.get(name)
        if fact.__class__ is not known or fact.lo != fact.hi:
            return UNDECIDED
        if (fact.lo == wanted) is equal:
            return SINCE_START if fact.span == "L" else TRUE
        return FALSE

    return test


def _known_test(leaf: Comparison) -> Test:
    assert isinstance(leaf.left, FactRef)
    name, known = leaf.left.name, Known
    if leaf.op == "known":
        return lambda facts: TRUE if facts.get(name).__class__ is known else FALSE
    return lambda facts: FALSE if facts.get(name).__class__ is known else TRUE


def _test(leaf: Comparison, thresholds: Mapping[str, Threshold]) -> Test:
    if leaf.op in ("known", "unknown"):
        return _known_test(leaf)
    if leaf.right is None or isinstance(leaf.right, str):
        return _choice_test(leaf)
    op, names = leaf.op, (*facts_of(leaf.left), *facts_of(leaf.right))
    right = _reader(leaf.right, thresholds)
    if isinstance(leaf.left, FactRef) and isinstance(leaf.right, (Number, ThresholdRef)):
        constant = right({})
        if constant is not None:
            return _simple(op, leaf.left.name, constant[0])
    left = _reader(leaf.left, thresholds)

    def test(facts: Facts) -> int:
        a, b = left(facts), right(facts)
        if a is None or b is None:
            return UNDECIDED
        answer = compare(op, a, b)
        if answer is None:
            return UNDECIDED
        if not answer:
            return FALSE
        for name in names:
            if facts[name].span == "L":
                return SINCE_START
        return TRUE

    return test


def _all(tests: Sequence[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests

        def both(facts: Facts) -> int:
            code = first(facts)
            if code == FALSE:
                return FALSE
            other = second(facts)
            return code if code < other else other

        return both

    def test(facts: Facts) -> int:
        out = TRUE
        for part in tests:
            code = part(facts)
            if code < out:
                if code == FALSE:
                    return FALSE
                out = code
        return out

    return test


def _any(tests: Sequence[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests

        def either(facts: Facts) -> int:
            code = first(facts)
            if code == TRUE:
                return TRUE
            other = second(facts)
            return code if code > other else other

        return either

    def test(facts: Facts) -> int:
        out = FALSE
        for part in tests:
            code = part(facts)
            if code > out:
                if code == TRUE:
                    return TRUE
                out = code
        return out

    return test


def _compile(node: Node, tests: Sequence[Test]) -> Test:
    if isinstance(node, Comparison):
        return tests[node.index]
    if node.op == "or" and all(isinstance(part, Comparison) and part.op == "known" for part in node.parts):
        return _any_known([name for part in node.parts if isinstance(part, Comparison) for name in facts_of(part.left)])
    parts = [_compile(part, tests) for part in node.parts]
    return _all(parts) if node.op == "and" else _any(parts)


def _any_known(names: Sequence[str]) -> Test:
    """What a rule often asks first: is there any of these facts at all?"""

    known = Known

    def test(facts: Facts) -> int:
        for name in names:
            if facts.get(name).__class__ is known:
                return TRUE
        return FALSE

    return test


def fold(node: Node, codes: Sequence[int]) -> int:
    """The code of a tree, given the codes of its comparisons."""
    if isinstance(node, Comparison):
        return codes[node.index]
    parts = [fold(part, codes) for part in node.parts]
    return min(parts) if node.op == "and" else max(parts)


# ---------------------------------------------------------------------------------------------- public


@frozen
class Condition:
    """A compiled truth expression. ``text`` is what the rule's author wrote."""

    text: str
    root: Node
    leaves: tuple[Comparison, ...]

    @property
    def facts(self) -> tuple[str, ...]:
        """Every fact it reads."""
        names = (n for leaf in self.leaves for n in (*facts_of(leaf.left), *facts_of(leaf.right)))
        return tuple(dict.fromkeys(names))

    @property
    def thresholds(self) -> tuple[str, ...]:
        """Every threshold it reads."""
        names = (n for leaf in self.leaves for n in (*thresholds_of(leaf.left), *thresholds_of(leaf.right)))
        return tuple(dict.fromkeys(names))

    def bind(self, thresholds: Mapping[str, Threshold]) -> Bound:
        """Fix the thresholds; the result can be evaluated."""
        return Bound(self, thresholds)


@frozen
class Result:
    """The full answer: ``evidence[i]`` and ``codes[i]`` belong to comparison i; nothing is left out by short-circuit.

    ``truth`` is None when undecided or when it rests on a value counted since the process started. ``missing`` are the facts
    that would decide it, ``open`` the comparisons that still have to come out true.
    """

    code: int
    codes: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    missing: tuple[Missing, ...]
    open: str

    @property
    def truth(self) -> bool | None:
        """True and False are certain."""
        return True if self.code == TRUE else False if self.code == FALSE else None

    @property
    def holds(self) -> tuple[Evidence, ...]:
        """The comparisons that hold, also those counted since the process started."""
        return tuple(e for e, code in zip(self.evidence, self.codes, strict=True) if code >= SINCE_START)


class Bound:
    """A condition with its thresholds. ``code(facts)`` is the fast path; ``result`` keeps all evidence.

    ``facts`` is the mapping of a :class:`~kvdoctor.facts.FactSet` (``values``); a name that is absent is unknown.
    """

    __slots__ = ("_views", "code", "condition", "tests", "thresholds")

    def __init__(self, condition: Condition, thresholds: Mapping[str, Threshold]) -> None:
        self.condition = condition
        self.thresholds = thresholds
        self.tests = tuple(_test(leaf, thresholds) for leaf in condition.leaves)
        self.code = _compile(condition.root, self.tests)
        self._views: tuple[View, ...] | None = None

    def test_of(self, node: Node) -> Test:
        """One part of the condition, compiled."""
        return _compile(node, self.tests)

    def after_first(self) -> Test | None:
        """The condition without its first comparison, for who knows that one to hold; None when nothing is left."""
        root = self.condition.root
        if isinstance(root, Comparison):
            return None
        assert isinstance(root.parts[0], Comparison), "an alternative has no first comparison that it needs"
        rest = root.parts[1:]
        return _compile(rest[0] if len(rest) == 1 else Group("and", rest), self.tests)

    def codes(self, facts: Facts) -> tuple[int, ...]:
        """The code of every comparison, without short-circuit."""
        return tuple([test(facts) for test in self.tests])

    @property
    def views(self) -> tuple[View, ...]:
        """What makes the evidence of each comparison."""
        if self._views is None:
            self._views = tuple(View(leaf, self.thresholds) for leaf in self.condition.leaves)
        return self._views

    def result(self, facts: Facts) -> Result:
        """Evaluate with all evidence."""
        root = self.condition.root
        codes = self.codes(facts)
        evidence = tuple([view.evidence(facts, code) for view, code in zip(self.views, codes, strict=True)])
        code = fold(root, codes)
        if code in (FALSE, TRUE):
            return Result(code, codes, evidence, (), "")
        missing: dict[str, Missing] = {}
        for leaf in _undecided(root, codes):
            for gap in _gaps(leaf, facts, evidence[leaf.index], codes[leaf.index]):
                missing.setdefault(gap.fact, gap)
        return Result(code, codes, evidence, tuple(missing.values()), _open(root, codes, evidence))


@frozen
class Quantity:
    """A compiled value expression (the ``to`` of a lever)."""

    text: str
    root: Operand
    unit: str
    facts: tuple[str, ...] = field(default=())
    thresholds: tuple[str, ...] = field(default=())

    def evaluate(self, facts: Facts, thresholds: Mapping[str, Threshold]) -> Fact:
        """The value as an interval with the provenance of its facts, or Unknown with the first reason."""
        for name in self.facts:
            fact = facts.get(name, _NOBODY)
            if not isinstance(fact, Known):
                return fact if isinstance(fact, Unknown) else _NOBODY
        interval = _reader(self.root, thresholds)(facts)
        if interval is None:
            return Unknown(f"{self.text} divides by a value that may be zero")
        parts = [facts[name] for name in self.facts]
        if not parts:
            return Known(interval[0], interval[1], "assumed", "c", "rule", self.text)
        source = ", ".join(dict.fromkeys(part.source for part in parts))
        return Known(interval[0], interval[1], worst_how(parts), widest_span(parts), source, self.text)


def parse_condition(text: str, units: Mapping[str, str], *, allow_known: bool = False) -> Condition:
    """Compile a truth expression; ``units`` maps the names of the thresholds to their units.

    Raises :class:`ExprError` for anything outside the grammar, misspelt names (with the right spelling), units that do not
    agree and bare numbers.
    """
    reader = _Reader(text, units, allow_known=allow_known)
    return Condition(text, reader.node(reader.tree), tuple(reader.leaves))


def parse_quantity(text: str, units: Mapping[str, str]) -> Quantity:
    """Compile a value expression; raises :class:`ExprError`."""
    reader = _Reader(text, units, allow_known=False)
    operand, unit = reader.value(reader.tree)
    return Quantity(text.strip(), operand, unit.name, facts_of(operand), thresholds_of(operand))


# ---------------------------------------------------------------------------------------------- evidence


class View:
    """Makes the evidence of one comparison; holds what of it does not depend on the facts."""

    __slots__ = (
        "calibrated",
        "constant",
        "leaf",
        "left",
        "names",
        "origin",
        "right",
        "shown",
        "single",
        "threshold_name",
    )

    def __init__(self, leaf: Comparison, thresholds: Mapping[str, Threshold]) -> None:
        right = leaf.right
        self.leaf = leaf
        self.shown = show(leaf.left)
        self.names = tuple(dict.fromkeys((*facts_of(leaf.left), *facts_of(right))))
        self.single = isinstance(leaf.left, FactRef)
        self.left = _reader(leaf.left, thresholds)
        self.right = None if right is None or isinstance(right, str) else _reader(right, thresholds)
        self.constant: Value | None = right if isinstance(right, str) else None
        if self.right is not None and not facts_of(right):
            # a constant divided by a constant zero has no value; it then stays undecided for ever and says so
            ends = self.right({})
            self.constant = ends[0] if ends is not None else None
        self.threshold_name = ""
        if right is not None and not isinstance(right, (str, Number)):
            self.threshold_name = show(right).removeprefix("thresholds.")
        used = [thresholds[name] for name in (*thresholds_of(leaf.left), *thresholds_of(right))]
        self.calibrated = all(threshold.calibrated for threshold in used)
        self.origin = next((threshold.origin for threshold in used if threshold.origin != "rule"), "rule")

    def evidence(self, facts: Facts, code: int) -> Evidence:
        """The comparison with the value it saw; ``code`` is its answer."""
        leaf = self.leaf
        outcome = None if code == UNDECIDED else code != FALSE
        if leaf.op in ("known", "unknown"):
            return Evidence(self.shown, leaf.op, outcome, "bool")
        threshold = self.constant
        if threshold is None and self.right is not None:
            ends = self.right(facts)
            # the end that decides: to exceed an interval is to exceed its upper end
            threshold = None if ends is None else ends[0] if leaf.op in ("<", "<=") else ends[1]
        lo: Value | None = None
        hi: Value | None = None
        reason = hint = ""
        known: list[Known] = []
        for name in self.names:
            fact = facts.get(name, _NOBODY)
            if fact.__class__ is Known:
                known.append(fact)
            elif not reason:
                reason, hint = fact.reason, fact.hint
        if self.single:
            first = facts.get(self.names[0])
            if first.__class__ is Known:
                lo, hi = first.lo, first.hi
        elif not reason:
            interval = self.left(facts)
            if interval is None:
                reason = f"{self.shown} divides by a value that may be zero"
            else:
                lo, hi = interval
        if not reason and self.right is not None and threshold is None:
            reason = f"{self.threshold_name} divides by a value that may be zero"
        common = (
            self.shown,
            leaf.op,
            outcome,
            leaf.unit,
            hi,
            lo,
            hi,
            threshold,
            self.threshold_name,
            self.calibrated,
            self.origin,
        )
        if not known:
            return Evidence(*common, reason=reason, hint=hint)
        if len(known) == 1:
            only = known[0]
            return Evidence(
                *common, only.how, only.span, only.source, only.note, only.events, only.requests, reason, hint
            )
        events = [fact.events for fact in known if fact.events is not None]
        requests = [fact.requests for fact in known if fact.requests is not None]
        return Evidence(
            *common,
            worst_how(known),
            widest_span(known),
            ", ".join(dict.fromkeys([fact.source for fact in known if fact.source])),
            "; ".join(dict.fromkeys([fact.note for fact in known if fact.note])),
            min(events) if events else None,
            min(requests) if requests else None,
            reason,
            hint,
        )


def _undecided(node: Node, codes: Sequence[int]) -> Iterator[Comparison]:
    """The undecided comparisons that matter: those below parts that are themselves undecided."""
    if fold(node, codes) not in (UNDECIDED, SINCE_START):
        return
    if isinstance(node, Comparison):
        yield node
        return
    for part in node.parts:
        yield from _undecided(part, codes)


def _gaps(leaf: Comparison, facts: Facts, evidence: Evidence, code: int) -> Iterator[Missing]:
    names = dict.fromkeys((*facts_of(leaf.left), *facts_of(leaf.right)))
    unknown = [(name, facts.get(name, _NOBODY)) for name in names]
    found = [(name, fact) for name, fact in unknown if not isinstance(fact, Known)]
    if found:
        for name, fact in found:
            yield Missing(name, fact.reason, fact.hint)
        return
    if code == SINCE_START:
        for name in names:
            if facts[name].span == "L":
                yield Missing(
                    name,
                    "counted since the process started, so it says nothing about now",
                    "take a second scrape some seconds after the first",
                )
        return
    if evidence.reason:
        divisor = next(iter(_divisors(leaf)), next(iter(names)))
        yield Missing(divisor, evidence.reason, "take a longer window, so that it is above zero")
        return
    for name in names:
        fact = facts[name]
        if fact.lo != fact.hi:
            yield Missing(
                name,
                f"known only to lie between {number(fact.lo)} and {number(fact.hi)}",
                fact.hint or "a measured value would decide it",
            )


def _divisors(leaf: Comparison) -> Iterator[str]:
    for side in (leaf.left, leaf.right):
        if side is None or isinstance(side, str):
            continue
        for part in _operands(side):
            if isinstance(part, Arithmetic) and part.op == "/":
                yield from facts_of(part.right)


def _open(node: Node, codes: Sequence[int], evidence: Sequence[Evidence], *, inner: bool = False) -> str:
    """What still has to come out true, with numbers in place of thresholds."""
    if isinstance(node, Comparison):
        return _needed(node, codes[node.index], evidence[node.index])
    parts = [part for part in node.parts if fold(part, codes) in (UNDECIDED, SINCE_START)]
    texts = list(dict.fromkeys(_open(part, codes, evidence, inner=len(parts) > 1) for part in parts))
    text = f" {node.op} ".join(texts)
    return f"({text})" if inner and len(texts) > 1 else text


def _needed(leaf: Comparison, code: int, evidence: Evidence) -> str:
    if leaf.right is None or isinstance(leaf.right, str) or evidence.threshold is None:
        text = leaf.text
    else:
        text = f"{evidence.fact} {leaf.op} {number(evidence.threshold)} ({leaf.unit})"
    return f"{text} in a window" if code == SINCE_START else text
