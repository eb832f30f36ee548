"""PromQL read far enough to judge it: which metrics, inside which calls, compared with which numbers.

It takes what Grafana and Helm write into expressions (``$job``, ``${job:regex}``, ``[[job]]``, ``{{ .Values.x }}``) and never
fails: what it does not understand is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvdoctor.frozen import frozen

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|\#[^\n]*)
    | (?P<hole>\{\{[^{}]*\}\}|\[\[[^\[\]]*\]\]|\$\{[^{}]*\}|\$\w+)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    | (?P<range>\[[^\[\]]*\])
    | (?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z0-9_:]))
    | (?P<duration>(?:\d+(?:ms|[smhdwy]))+)
    | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    | (?P<op>==|!=|=~|!~|>=|<=|[-+*/%^<>=(){},@])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

AGGREGATIONS = frozenset(
    [
        "sum",
        "avg",
        "min",
        "max",
        "count",
        "group",
        "stddev",
        "stdvar",
        "topk",
        "bottomk",
        "quantile",
        "count_values",
        "limitk",
        "limit_ratio",
    ]
)
_WORDS = frozenset(
    [
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
        "bool",
        "offset",
        "and",
        "or",
        "unless",
        "atan2",
        "start",
        "end",
    ]
)
_LABEL_LISTS = frozenset(["by", "without", "on", "ignoring", "group_left", "group_right"])
_NUMBERS = frozenset({"inf", "nan"})
_COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
_MAX_DEPTH = 200


@dataclass(slots=True)
class Token:
    """A piece of the text; ``glued`` says that a variable touches it, so that its name is not known."""

    kind: str
    text: str
    at: int
    glued: bool = False


@dataclass(slots=True)
class Metric:
    """A selector: the metric's name and where it stands."""

    name: str
    at: int


@dataclass(slots=True)
class Call:
    """A function or aggregation with its arguments, or plain parentheses (no name). ``by``/``without`` hold label names."""

    name: str
    parts: list[Part] = field(default_factory=list)
    by: tuple[str, ...] | None = None
    without: tuple[str, ...] | None = None


@dataclass(slots=True)
class Sign:
    """An operator, a comma, a keyword, a number, or something not understood."""

    kind: str
    text: str
    at: int


Part = Metric | Call | Sign


def tokens(text: str) -> Iterator[Token]:
    """The tokens without white space and comments."""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "other"
        if kind != "space":
            yield Token(kind, match.group(), match.start())


def parse(text: str) -> list[Part]:
    """The expression as a list of parts; calls hold their own."""
    found = list(tokens(text))
    for first, second in zip(found, found[1:], strict=False):
        # a variable inside a name makes pieces that are no names
        if first.at + len(first.text) == second.at and "hole" in (first.kind, second.kind):
            first.glued = second.glued = True
    return _Reader(found).parts(0)


class _Reader:
    def __init__(self, found: Sequence[Token]) -> None:
        self.found = found
        self.at = 0

    def peek(self, ahead: int = 0) -> Token | None:
        index = self.at + ahead
        return self.found[index] if index < len(self.found) else None

    def parts(self, depth: int) -> list[Part]:
        out: list[Part] = []
        while (token := self.peek()) is not None:
            if token.text == ")" and token.kind == "op":
                if depth:
                    return out
                self.at += 1
                continue
            self.at += 1
            if token.kind == "name":
                self.name(token, out, depth)
            elif token.text == "(" and token.kind == "op":
                out.append(self.call("", depth))
            elif token.text == "{" and token.kind == "op":
                found = self.selector()
                # {__name__="x"} or {"x"}; after a name these are its labels
                if found is not None and not (out and isinstance(out[-1], Metric)):
                    out.append(Metric(found, token.at))
            elif token.kind in ("number", "op", "hole"):
                out.append(Sign(token.kind, token.text, token.at))
        return out

    def name(self, token: Token, out: list[Part], depth: int) -> None:
        after = self.peek()
        lower = token.text.lower()
        if lower in _LABEL_LISTS:
            labels = self.labels() if after is not None and after.text == "(" else ()
            if lower in ("by", "without") and out and isinstance(out[-1], Call):
                self.group(out[-1], lower, labels)
            return
        if lower in AGGREGATIONS and after is not None and after.text.lower() in ("by", "without"):
            self.at += 1
            labels = self.labels() if (p := self.peek()) is not None and p.text == "(" else ()
            nxt = self.peek()
            if nxt is not None and nxt.text == "(":
                self.at += 1
                call = self.call(lower, depth)
                self.group(call, after.text.lower(), labels)
                out.append(call)
            return
        if after is not None and after.text == "(" and after.kind == "op" and lower not in _WORDS:
            self.at += 1
            out.append(self.call(lower, depth))
        elif lower in _WORDS:
            out.append(Sign("word", lower, token.at))
        elif lower in _NUMBERS:
            out.append(Sign("number", lower, token.at))
        elif not token.glued:
            out.append(Metric(token.text, token.at))
        else:
            out.append(Sign("hole", token.text, token.at))

    @staticmethod
    def group(call: Call, word: str, labels: tuple[str, ...]) -> None:
        if word == "by":
            call.by = labels
        else:
            call.without = labels

    def labels(self) -> tuple[str, ...]:
        out: list[str] = []
        self.at += 1
        while (token := self.peek()) is not None:
            self.at += 1
            if token.text == ")":
                break
            if token.kind in ("name", "hole", "text"):
                out.append(token.text.strip("\"'"))
        return tuple(out)

    def call(self, name: str, depth: int) -> Call:
        """What stands in the parentheses that were just opened."""
        if depth > _MAX_DEPTH:
            # nobody writes this; the rest is skipped so that it ends
            self.at = len(self.found)
            return Call(name)
        inner = Call(name, self.parts(depth + 1))
        self.at += 1
        return inner

    def selector(self) -> str | None:
        """The metric named inside ``{...}``, None when none is named outright."""
        name: str | None = None
        before: list[Token] = []
        while (token := self.peek()) is not None:
            self.at += 1
            if token.text == "}" and token.kind == "op":
                break
            if token.kind == "text":
                value = token.text[1:-1]
                if len(before) >= 2 and before[-1].text == "=" and before[-2].text == "__name__":
                    name = value
                elif not before or before[-1].text == ",":
                    after = self.peek()
                    if after is not None and after.text in (",", "}"):
                        name = value
            before.append(token)
        return name if name and re.fullmatch(r"[A-Za-z_:][A-Za-z0-9_:]*", name) else None


# ---------------------------------------------------------------------------------------------- looking at it


@frozen
class Found:
    """A metric with the calls around it, innermost first; parentheses without a name are left out."""

    metric: Metric
    calls: tuple[Call, ...]


def metrics(parts: Sequence[Part], around: tuple[Call, ...] = ()) -> Iterator[Found]:
    """Every metric of an expression."""
    for part in parts:
        if isinstance(part, Metric):
            yield Found(part, around)
        elif isinstance(part, Call):
            yield from metrics(part.parts, (part, *around) if part.name else around)


@frozen
class Compared:
    """One side of a comparison with a plain number on the other side."""

    side: tuple[Part, ...]
    op: str
    number: float
    at: int


def comparisons(parts: Sequence[Part]) -> Iterator[Compared]:
    """Every comparison with a number, at every depth."""
    for term in _split(parts, {"and", "or", "unless", ","}):
        at = [i for i, part in enumerate(term) if isinstance(part, Sign) and part.text in _COMPARISONS]
        for index in at:
            left = [p for p in term[:index] if not _is_word(p, "bool")]
            right = [p for p in term[index + 1 :] if not _is_word(p, "bool")]
            sign = term[index]
            assert isinstance(sign, Sign)
            for side, other, op in ((left, right, sign.text), (right, left, _turned(sign.text))):
                value = _number(other)
                if value is not None:
                    yield Compared(tuple(side), op, value, sign.at)
    for part in parts:
        if isinstance(part, Call):
            yield from comparisons(part.parts)


def divides(parts: Sequence[Part]) -> bool:
    """Is there a division at this level?"""
    return any(isinstance(part, Sign) and part.text == "/" for part in parts)


def undivided(parts: Sequence[Part], around: tuple[Call, ...] = ()) -> Iterator[Found]:
    """The metrics that are not part of a ratio."""
    if divides(parts):
        return
    for part in parts:
        if isinstance(part, Metric):
            yield Found(part, around)
        elif isinstance(part, Call):
            yield from undivided(part.parts, (part, *around) if part.name else around)


def _turned(op: str) -> str:
    return {">": "<", "<": ">", ">=": "<=", "<=": ">="}.get(op, op)


def _is_word(part: Part, word: str) -> bool:
    return isinstance(part, Sign) and part.text == word


def _split(parts: Sequence[Part], at: set[str]) -> Iterator[list[Part]]:
    term: list[Part] = []
    for part in parts:
        if isinstance(part, Sign) and part.text in at:
            yield term
            term = []
        else:
            term.append(part)
    yield term


def _number(parts: Sequence[Part]) -> float | None:
    sign = 1.0
    value: float | None = None
    for part in parts:
        if isinstance(part, Call) and not part.name and len(parts) == 1:
            return _number(part.parts)
        if not isinstance(part, Sign):
            return None
        if part.text in "+-" and value is None:
            sign = -sign if part.text == "-" else sign
        elif part.kind == "number" and value is None:
            value = float(int(part.text, 16)) if part.text.lower().startswith("0x") else float(part.text)
        else:
            return None
    return None if value is None else sign * value
