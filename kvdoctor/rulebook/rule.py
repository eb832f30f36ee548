"""A rule is a TOML file: read, checked, compiled.

The top of the file (identity, relations, expression texts) is read when a rule is loaded. The thresholds and the part that
explains (``explain``, ``fix``, ``confirm``, ``alert``) of a shipped rule are read when they are first asked for, and so are its
``examples``; a user's rule is read and compiled completely at once, so that a mistake is reported before anything is judged.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

from kvdoctor.facts import FACTS, HOW_RANK, SPANS, Fact, How, Known, Span, Unknown, suggest
from kvdoctor.findings import CONFIDENCES, SEVERITIES, Confidence, Severity, State
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.expr import (
    Bound,
    Condition,
    ExprError,
    Quantity,
    Threshold,
    did_you_mean,
    parse_condition,
    parse_quantity,
)
from kvdoctor.rulebook.units import NUMERIC_UNITS

Scope = Literal["target", "group"]
Direction = Literal["up", "down", "set", "on", "off"]

SHIPPED_ID = re.compile(r"KV\d{3}")
_ID = re.compile(r"[A-Z][A-Z0-9]{0,9}?\d{3,4}")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_DURATION = re.compile(r"\d+(s|m|h|d)")

_TOP = (
    "id",
    "name",
    "title",
    "severity",
    "misdiagnosis",
    "looks_like",
    "refs",
    "stage",
    "scope",
    "fallback",
    "gated",
    "part_of",
    "mutes",
    "mutes_advice",
    "min_events",
    "applies",
    "when",
)
_TABLES = ("thresholds", "group", "explain", "fix", "confirm", "alert", "examples")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "threshold": ("value", "unit", "calibrated", "why", "source"),
    "min_events": ("fact", "value"),
    "group": ("applies", "when"),
    "explain": ("cause", "not_this"),
    "fix": ("say", "policy", "lever", "check"),
    "fix.lever": ("lever", "direction", "to", "why"),
    "fix.check": ("after", "expect"),
    "confirm": ("run",),
    "alert": ("for", "why_not"),
    "examples": ("name", "scope", "facts", "expect", "missing", "confidence"),
    "fact": ("value", "lo", "hi", "how", "span", "events", "requests", "unknown"),
}
_MISSING = object()
_HEADER = re.compile(r"\s*\[\[?\s*([\w.\"'-]+)\s*\]\]?\s*(#.*)?$")
_ASSIGNED = re.compile(r"\s*(\"[^\"]+\"|'[^']+'|[\w.-]+)\s*=")


class RuleError(ValueError):
    """A rule file that cannot be used. ``str()`` is ``file:line: key: message``."""

    def __init__(self, file: str, line: int | None, key: str, message: str) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(f"{place}: {key}: {message}" if key else f"{place}: {message}")
        self.file = file
        self.line = line
        self.key = key
        self.message = message


@frozen
class MinEvents:
    """A floor: ``fact`` Known and below ``value`` (a count) makes the rule clear."""

    fact: str
    value: float


@frozen
class Lever:
    """One lever the fix turns; ``to`` is an expression (up, down), literal text (set) or None."""

    lever: str
    direction: Direction
    why: str
    to: str | None = None
    quantity: Quantity | None = None


@frozen
class Check:
    """How to see that the fix worked: ``expect`` should be true some time ``after``."""

    after: str
    expect: str
    condition: Condition


@frozen
class Alert:
    """How the rule becomes an alert: a duration such as ``5m``, or why it cannot become one."""

    duration: str | None
    why_not: str | None


@frozen
class Example:
    """Facts and the state they must lead to; ``missing`` names exactly the facts that would decide it."""

    name: str
    facts: Mapping[str, Fact]
    expect: State
    missing: tuple[str, ...] | None = None
    confidence: Confidence | None = None
    scope: Scope = "target"
    line: int | None = None


@frozen
class Body:
    """The part of a rule that explains it."""

    cause: str
    not_this: str
    say: str
    policy: Mapping[str, object]
    levers: tuple[Lever, ...]
    checks: tuple[Check, ...]
    confirm: tuple[str, ...]
    alert: Alert | None


@dataclass(frozen=True, eq=False)
class Rule:
    """One rule, one verdict. ``applies`` and ``when`` are the raw expression texts.

    ``scopes`` holds ``target``, ``group`` or both; ``group_applies`` and ``group_when`` replace the expressions on a group when
    given. ``gated``: on a target the fact ``kv.pressure`` is and-ed into ``applies``. ``part_of`` names a rule whose verdict this
    one is a special case of: it has words and levers of its own and is told under the name and id of the other.
    """

    id: str
    name: str
    title: str
    severity: Severity
    looks_like: str
    stage: int
    when: str
    text: str = field(repr=False)
    file: str = ""
    applies: str | None = None
    group_applies: str | None = None
    group_when: str | None = None
    misdiagnosis: int | None = None
    refs: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ("target",)
    fallback: bool = False
    gated: bool = False
    part_of: str = ""
    mutes: tuple[str, ...] = ()
    mutes_advice: tuple[str, ...] = ()
    min_events: MinEvents | None = None
    shipped: bool = False
    changes: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    pieces: tuple[str, str, str] | None = field(default=None, repr=False)

    @cached_property
    def thresholds(self) -> Mapping[str, Threshold]:
        """The named numbers, with the user's changes. Raises :class:`RuleError` when the table is malformed."""
        out = _thresholds(self)
        for name, (value, origin) in self.changes.items():
            # another number than the one that was calibrated
            out[name] = replace(out[name], value=value, origin=origin, calibrated=False)
        return out

    @cached_property
    def units(self) -> Mapping[str, str]:
        """Threshold name -> unit."""
        return {name: threshold.unit for name, threshold in self.thresholds.items()}

    @cached_property
    def when_condition(self) -> Condition:
        """``when``, compiled."""
        return self._condition("when", self.when)

    @cached_property
    def applies_condition(self) -> Condition | None:
        """``applies``, compiled; None when the rule has none."""
        return None if self.applies is None else self._condition("applies", self.applies, allow_known=True)

    def conditions(self, scope: Scope) -> tuple[Condition | None, Condition]:
        """``(applies, when)`` on that level."""
        if scope == "target" or self.group_when is None:
            return self.applies_condition, self.when_condition
        return self._group_conditions

    def applies_on(self, scope: Scope) -> Condition | None:
        """``applies`` on that level; ``when`` stays uncompiled, most rules never get to it."""
        return self.applies_condition if scope == "target" or self.group_when is None else self._group_conditions[0]

    def bound(self, condition: Condition) -> Bound:
        """A condition of this rule with its thresholds, ready to be evaluated."""
        return condition.bind(self.thresholds if condition.thresholds else {})

    @cached_property
    def _group_conditions(self) -> tuple[Condition | None, Condition]:
        assert self.group_when is not None
        applies = self.group_applies
        return (
            None if applies is None else self._condition("group.applies", applies, allow_known=True),
            self._condition("group.when", self.group_when),
        )

    @cached_property
    def body(self) -> Body:
        """Explanation, fix, confirm commands and alert. Raises :class:`RuleError` when they are malformed."""
        return _body(self)

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """The rule's own examples. Raises :class:`RuleError` when they are malformed."""
        return _examples(self)

    def with_thresholds(self, changes: Mapping[str, tuple[float, str]]) -> Rule:
        """A copy with threshold values replaced: name -> (value, origin)."""
        return replace(self, changes={**self.changes, **changes})

    def line(self, *path: str) -> int | None:
        """The line of a key in the file, for messages."""
        return line_of(self.text, *path)

    def _condition(self, key: str, text: str, *, allow_known: bool = False) -> Condition:
        try:
            # the table of thresholds is read for those who name one
            units = self.units if "thresholds" in text else {}
            return parse_condition(text, units, allow_known=allow_known)
        except ExprError as error:
            raise expression_error(self.file, self.text, key, error) from None


def expression_error(file: str, text: str, key: str, error: ExprError) -> RuleError:
    """An error of an expression at its line in the file."""
    line = line_of(text, *key.split("."))
    if line is not None:
        # a text in triple quotes starts on the line after its key
        opened = text.splitlines()[line - 1].rstrip().endswith(('"""', "'''"))
        line += error.line + opened
    return RuleError(file, line, key, str(error))


def line_of(text: str, *path: str) -> int | None:
    """The line (from 1) where a key of a table stands; None when it cannot be told.

    ``line_of(text, "thresholds", "stalls")`` finds ``stalls = ...`` below ``[thresholds]``; a key that has no line of its own
    (in an inline table) gives the line of its table.
    """
    found: int | None = None
    inside: tuple[str, ...] = ()
    best = 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        assigned = None if header else _ASSIGNED.match(line)
        if header:
            keys = inside = tuple(part.strip("\"'") for part in header.group(1).split("."))
        elif assigned:
            keys = (*inside, assigned.group(1).strip("\"'"))
        else:
            continue
        depth = len(keys)
        if depth > best and keys == path[:depth]:
            found, best = number, depth
    return found


# ---------------------------------------------------------------------------------------------- reading TOML


class _Table:
    """A table of the file with its place; every wrong key or type becomes a :class:`RuleError` at its line."""

    def __init__(self, file: str, text: str, data: object, path: tuple[str, ...], line: int | None = None) -> None:
        self.file, self.text, self.path = file, text, path
        self.line = line
        if not isinstance(data, dict):
            raise RuleError(file, line_of(text, *path), ".".join(path), "a table is wanted here")
        self.data: dict[str, Any] = data

    def fail(self, key: str, message: str) -> NoReturn:
        path = (*self.path, key) if key else self.path
        raise RuleError(self.file, self.line or line_of(self.text, *path), ".".join(path), message)

    def only(self, allowed: Sequence[str]) -> None:
        for key in self.data:
            if key not in allowed:
                near = did_you_mean(suggest(key, allowed)) or f" (keys here: {', '.join(allowed)})"
                self.fail(key, f"unknown key{near}")

    def _get(self, key: str, kind: type | tuple[type, ...], what: str, default: object) -> Any:
        if key not in self.data:
            if default is _MISSING:
                raise RuleError(
                    self.file,
                    self.line or (line_of(self.text, *self.path) if self.path else 1),
                    ".".join((*self.path, key)),
                    "this key is required",
                )
            return default
        value = self.data[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(key, f"{what} is wanted, not {value!r}")
        return value

    def string(self, key: str, default: object = _MISSING) -> Any:
        value = self._get(key, str, "text", default)
        if key in self.data and not value.strip():
            self.fail(key, "may not be empty")
        return value.strip() if key in self.data else value

    def raw(self, key: str, default: object = _MISSING) -> Any:
        return self._get(key, str, "text", default)

    def boolean(self, key: str, default: object = _MISSING) -> Any:
        return self._get(key, bool, "true or false", default)

    def number(self, key: str, default: object = _MISSING) -> Any:
        value = self._get(key, (int, float), "a number", default)
        if isinstance(value, (int, float)) and value != value:
            self.fail(key, "not a number")
        return value

    def choice(self, key: str, choices: Sequence[str], default: object = _MISSING) -> Any:
        value = self.string(key, default)
        if isinstance(value, str) and value not in choices:
            near = did_you_mean(suggest(value, choices)) or f" (choices: {', '.join(choices)})"
            self.fail(key, f"unknown value {value!r}{near}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value = self._get(key, list, "a list of texts", [])
        if not all(isinstance(item, str) and item.strip() for item in value):
            self.fail(key, "a list of texts is wanted")
        return tuple(value)

    def table(self, key: str) -> _Table:
        return _Table(self.file, self.text, self.data.get(key, {}), (*self.path, key), self.line)

    def tables(self, key: str, lines: Sequence[int] = ()) -> list[_Table]:
        value = self._get(key, list, "a list of tables", [])
        out = []
        for index, item in enumerate(value):
            line = lines[index] if index < len(lines) else None
            out.append(_Table(self.file, self.text, item, (*self.path, key), line))
        return out


_SECTION = re.compile(r"\n\[\[?[ \t]*([A-Za-z_-]+)")


def _split(text: str) -> tuple[str, str, str, str] | None:
    """``(what identifies and decides, [thresholds], what explains, [[examples]])``.

    None when a section header might stand inside a multi-line text.
    """
    starts = [(match.start() + 1, match.group(1)) for match in _SECTION.finditer(text)]
    edges = [*(start for start, _ in starts), len(text)]
    out = {"head": [text[: edges[0]]], "thresholds": [], "body": [], "examples": []}
    for index, (start, name) in enumerate(starts):
        part = "head" if name == "group" else name if name in out else "body"
        out[part].append(text[start : edges[index + 1]])
    pieces = ["".join(parts) for parts in out.values()]
    if any(piece.count('"""') % 2 or piece.count("'''") % 2 for piece in pieces):
        return None
    return pieces[0], pieces[1], pieces[2], pieces[3]


def _toml(file: str, text: str, whole: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if text is not whole:
            # the same mistake again, with the line of the whole file
            _toml(file, whole, whole)
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        message = re.sub(r"\s*\(at .*\)$", "", str(error))
        raise RuleError(file, int(place.group(1)) if place else None, "", f"not valid TOML: {message}") from None


def parse_rule(text: str, file: str, *, shipped: bool = False) -> Rule:
    """One rule from the text of its file. ``file`` is its path as errors should print it.

    Raises :class:`RuleError`. The explaining part of a shipped rule is checked when it is used (and by the lint).
    """
    split = _split(text) if shipped else None
    data = _toml(file, split[0] if split else text, text)
    top = _Table(file, text, data, ())
    top.only((*_TOP, *_TABLES))
    rule_id, name = top.string("id"), top.string("name")
    if not _ID.fullmatch(rule_id):
        top.fail("id", f"{rule_id!r} is not an id: capital letters, then three or four digits, such as KV200")
    if SHIPPED_ID.fullmatch(rule_id) and not shipped:
        top.fail(
            "id", f"{rule_id}: KV000 to KV999 are kept for the rules that come with kvdoctor; use a prefix of your own"
        )
    if not _NAME.fullmatch(name):
        top.fail("name", f"{name!r} is not a name: lower-case words joined by hyphens")
    if Path(file).name != f"{rule_id}-{name}.toml":
        top.fail("name", f"the file must be called {rule_id}-{name}.toml")
    stage = top.number("stage")
    if not (isinstance(stage, int) and 1 <= stage <= 8):
        top.fail("stage", f"a stage is 1 to 8, not {stage}")
    misdiagnosis = top.number("misdiagnosis", None)
    if misdiagnosis is not None and misdiagnosis not in (1, 2, 3, 4, 5):
        top.fail("misdiagnosis", f"1 to 5 is wanted, not {misdiagnosis}")
    scopes = _scopes(top)
    group = top.table("group")
    group.only(_KEYS["group"])
    if group.data and scopes != ("target", "group"):
        top.fail("group", '[group] is read only with scope = "both"')
    gated = top.boolean("gated", stage == 5 and "target" in scopes)
    if gated and not (stage == 5 and "target" in scopes):
        top.fail("gated", "only stage 5 rules of a target are gated by kv.pressure")
    rule = Rule(
        id=rule_id,
        name=name,
        title=top.string("title"),
        severity=cast(Severity, top.choice("severity", SEVERITIES)),
        looks_like=top.string("looks_like"),
        stage=stage,
        when=top.raw("when"),
        text=text,
        file=file,
        applies=top.raw("applies", None),
        group_applies=group.raw("applies", None),
        group_when=group.raw("when") if group.data else None,
        misdiagnosis=misdiagnosis,
        refs=top.strings("refs"),
        scopes=scopes,
        fallback=top.boolean("fallback", False),
        gated=gated,
        part_of=top.string("part_of", ""),
        mutes=top.strings("mutes"),
        mutes_advice=top.strings("mutes_advice"),
        min_events=_min_events(top),
        shipped=shipped,
        pieces=split[1:] if split else None,
    )
    if not shipped:
        compile_rule(rule)
    return rule


def compile_rule(rule: Rule) -> None:
    """Compile and read everything of a rule now; raises :class:`RuleError`."""
    for scope in rule.scopes:
        rule.conditions(scope)
    assert rule.body is not None
    assert rule.examples is not None


def _scopes(top: _Table) -> tuple[Scope, ...]:
    word = top.choice("scope", ("target", "group", "both"), "target")
    return ("target", "group") if word == "both" else (cast(Scope, word),)


def _thresholds(rule: Rule) -> dict[str, Threshold]:
    data = _toml(rule.file, rule.pieces[0] if rule.pieces else rule.text, rule.text)
    out: dict[str, Threshold] = {}
    table = _Table(rule.file, rule.text, data, ()).table("thresholds")
    for name in table.data:
        if not name.isidentifier():
            table.fail(name, "a threshold is named like a variable")
        row = table.table(name)
        row.only(_KEYS["threshold"])
        threshold = Threshold(
            name=name,
            value=row.number("value"),
            unit=row.choice("unit", NUMERIC_UNITS),
            calibrated=row.boolean("calibrated"),
            why=row.string("why"),
            source=row.string("source", ""),
        )
        if threshold.calibrated and not threshold.source:
            row.fail("source", "a calibrated threshold says where it was calibrated")
        out[name] = threshold
    return out


def _min_events(top: _Table) -> MinEvents | None:
    if "min_events" not in top.data:
        return None
    table = top.table("min_events")
    table.only(_KEYS["min_events"])
    fact, value = table.string("fact"), table.number("value")
    if fact not in FACTS:
        table.fail("fact", f"unknown fact {fact}{did_you_mean(suggest(fact, FACTS))}")
    if FACTS[fact].unit != "count":
        table.fail("fact", f"{fact} is not a count ({FACTS[fact].unit})")
    return MinEvents(fact, value)


def _body(rule: Rule) -> Body:
    data = _toml(rule.file, rule.pieces[1] if rule.pieces else rule.text, rule.text)
    top = _Table(rule.file, rule.text, data, ())
    explain, fix, confirm = top.table("explain"), top.table("fix"), top.table("confirm")
    for key, table in (("explain", explain), ("fix", fix), ("confirm", confirm)):
        table.only(_KEYS[key])
    return Body(
        cause=explain.string("cause"),
        not_this=explain.string("not_this"),
        say=fix.string("say"),
        policy=fix.table("policy").data,
        levers=tuple(_lever(rule, table) for table in fix.tables("lever", _lines(rule.text, "fix.lever"))),
        checks=tuple(_check(rule, table) for table in fix.tables("check", _lines(rule.text, "fix.check"))),
        confirm=confirm.strings("run"),
        alert=_alert(top),
    )


def _examples(rule: Rule) -> tuple[Example, ...]:
    top = _Table(rule.file, rule.text, _toml(rule.file, rule.pieces[2] if rule.pieces else rule.text, rule.text), ())
    return tuple(_example(rule, table) for table in top.tables("examples", _lines(rule.text, "examples")))


def _lines(text: str, name: str) -> list[int]:
    wanted = re.compile(r"\s*\[\[\s*" + re.escape(name) + r"\s*\]\]")
    return [number for number, line in enumerate(text.splitlines(), 1) if wanted.match(line)]


def _lever(rule: Rule, table: _Table) -> Lever:
    table.only(_KEYS["fix.lever"])
    direction = cast(Direction, table.choice("direction", get_args(Direction)))
    to = table.string("to", None)
    quantity: Quantity | None = None
    if direction in ("on", "off") and to is not None:
        table.fail("to", f"direction {direction!r} takes no `to`")
    if direction == "set" and to is None:
        table.fail("to", "direction 'set' needs `to`, the setting in words")
    if direction in ("up", "down") and to is not None:
        try:
            quantity = parse_quantity(to, rule.units)
        except ExprError as error:
            raise RuleError(rule.file, table.line, "fix.lever.to", str(error)) from None
    return Lever(table.string("lever"), direction, table.string("why"), to, quantity)


def _check(rule: Rule, table: _Table) -> Check:
    table.only(_KEYS["fix.check"])
    expect = table.string("expect")
    try:
        condition = parse_condition(expect, rule.units)
    except ExprError as error:
        raise RuleError(rule.file, table.line, "fix.check.expect", str(error)) from None
    return Check(table.string("after"), expect, condition)


def _alert(top: _Table) -> Alert | None:
    if "alert" not in top.data:
        return None
    table = top.table("alert")
    table.only(_KEYS["alert"])
    duration, why_not = table.string("for", None), table.string("why_not", None)
    if (duration is None) == (why_not is None):
        top.fail("alert", "exactly one of `for` and `why_not`")
    if duration is not None and not _DURATION.fullmatch(duration):
        table.fail("for", f"{duration!r} is not a duration such as 5m")
    return Alert(duration, why_not)


def _example(rule: Rule, table: _Table) -> Example:
    table.only(_KEYS["examples"])
    expect = cast(State, table.choice("expect", get_args(State)))
    missing = table.strings("missing") if "missing" in table.data else None
    for name in missing or ():
        if name not in FACTS:
            table.fail("missing", f"unknown fact {name}{did_you_mean(suggest(name, FACTS))}")
    confidence = table.choice("confidence", CONFIDENCES, None)
    scope = cast(Scope, table.choice("scope", rule.scopes, rule.scopes[0]))
    rows = table.table("facts")
    facts: dict[str, Fact] = {}
    for name in rows.data:
        if name not in FACTS:
            if "." not in name:
                rows.fail(name, f'not a fact; its name has a dot and is written in quotes, as "{name}.something"')
            rows.fail(name, f"unknown fact{did_you_mean(suggest(name, FACTS))}")
        facts[name] = _example_fact(rows, name)
    if rule.gated and scope == "target":
        facts.setdefault("kv.pressure", Known(True, True, "measured", "w", "example"))
    return Example(table.string("name"), facts, expect, missing, confidence, scope, table.line)


def _example_fact(rows: _Table, name: str) -> Fact:
    value = rows.data[name]
    if not isinstance(value, dict):
        _fits(rows, name, value)
        return Known(value, value, "measured", "w", "example")
    table = rows.table(name)
    table.only(_KEYS["fact"])
    if table.boolean("unknown", False):
        return Unknown("not given in this example")
    events, requests = table.number("events", None), table.number("requests", None)
    span = cast(Span, table.choice("span", tuple(SPANS), "w"))
    if "value" in value:
        _fits(rows, name, value["value"])
        how = cast(How, table.choice("how", tuple(HOW_RANK), "measured"))
        return Known(value["value"], value["value"], how, span, "example", "", events, requests)
    lo, hi = table.number("lo"), table.number("hi")
    if lo > hi:
        table.fail("lo", f"{lo} is above hi = {hi}")
    how = cast(How, table.choice("how", tuple(HOW_RANK), "bound"))
    return Known(lo, hi, how, span, "example", "", events, requests)


def _fits(rows: _Table, name: str, value: object) -> None:
    row = FACTS[name]
    if row.unit == "bool":
        good = isinstance(value, bool)
        what = "true or false"
    elif row.unit == "enum":
        good = value in row.choices
        what = f"one of {', '.join(row.choices)}"
    else:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        what = f"a number ({row.unit})"
    if not good:
        rows.fail(name, f"{what} is wanted, not {value!r}")


# ---------------------------------------------------------------------------------------------- folders


def rules_dir() -> Path:
    """The folder of the rules that come with kvdoctor: inside the wheel, else in the checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_rules"
    return inside if inside.is_dir() else package.parent / "rules"


def load_rules(extra: Iterable[Path] = (), *, base: Path | None = None) -> tuple[Rule, ...]:
    """The shipped rules (``base``, default :func:`rules_dir`) and those of the ``extra`` folders, by id.

    Raises :class:`RuleError` for a malformed file, an id or name used twice (naming both files), a mute of an unknown rule or
    a cycle of mutes, and for a folder that cannot be read.
    """
    folders = [(base if base is not None else rules_dir(), True), *((Path(folder), False) for folder in extra)]
    rules: list[Rule] = []
    for folder, shipped in folders:
        for path in _files(folder):
            rules.append(read_rule(path, shipped=shipped))
    check_set(rules)
    return tuple(sorted(rules, key=lambda rule: rule.id))


def read_rule(path: Path, *, shipped: bool = False) -> Rule:
    """One rule from its file; raises :class:`RuleError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(str(path), None, "", f"cannot be read: {error}") from None
    return parse_rule(text, str(path), shipped=shipped)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except OSError as error:
        raise RuleError(
            str(folder), None, "", f"the folder of rules cannot be read: {error.strerror or error}"
        ) from None


def check_set(rules: Sequence[Rule]) -> None:
    """Ids and names are used once, mutes name existing rules and have no cycle; raises the first :class:`RuleError`."""
    for error in set_errors(rules):
        raise error


def set_errors(rules: Sequence[Rule]) -> Iterator[RuleError]:
    """Everything :func:`check_set` looks at, one error each."""
    by_id: dict[str, Rule] = {}
    by_name: dict[str, Rule] = {}
    for rule in rules:
        for key, seen, value in (("id", by_id, rule.id), ("name", by_name, rule.name)):
            other = seen.setdefault(value, rule)
            if other is not rule:
                yield RuleError(rule.file, rule.line(key), key, f"{value} is used twice: also in {other.file}")
    for rule in rules:
        for key in ("mutes", "mutes_advice"):
            for name in getattr(rule, key):
                if name not in by_name:
                    yield RuleError(rule.file, rule.line(key), key, _unknown_rule(name, by_id, by_name))
    for rule in rules:
        if rule.part_of:
            wrong = _no_part(rule, by_id, by_name)
            if wrong:
                yield RuleError(rule.file, rule.line("part_of"), "part_of", wrong)
    cycle = find_cycle({rule.name: mute_targets(rule, rules) for rule in by_name.values()})
    if cycle:
        first = by_name[cycle[0]]
        yield RuleError(first.file, first.line("mutes"), "mutes", f"a cycle of mutes: {' > '.join(cycle)}")


def _no_part(rule: Rule, by_id: Mapping[str, Rule], by_name: Mapping[str, Rule]) -> str:
    whole = by_name.get(rule.part_of)
    if whole is None:
        return _unknown_rule(rule.part_of, by_id, by_name)
    if whole.part_of:
        return f"{whole.name} is itself a part of {whole.part_of}"
    if (whole.stage, whole.misdiagnosis, whole.scopes) != (rule.stage, rule.misdiagnosis, rule.scopes):
        return f"stage, misdiagnosis and scope must be those of {whole.name}"
    return "" if whole.name in rule.mutes else f"mutes must name {whole.name}: one of the two is told"


def _unknown_rule(name: str, by_id: Mapping[str, Rule], by_name: Mapping[str, Rule]) -> str:
    if name in by_id:
        return f"{name} is an id; write its name, {by_id[name].name}"
    return f"unknown rule {name}{did_you_mean(suggest(name, by_name))}"


def mute_targets(rule: Rule, rules: Sequence[Rule]) -> tuple[str, ...]:
    """The names a rule mutes when it fires: those it lists, and the fallbacks of its family."""
    implied = (
        other.name
        for other in rules
        if other.fallback and not rule.fallback and other.misdiagnosis == rule.misdiagnosis is not None
    )
    return tuple(dict.fromkeys((*rule.mutes, *implied)))


def find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A cycle of a graph as a list that ends where it begins; None when there is none."""
    state: dict[str, int] = {}
    for start in edges:
        if start in state:
            continue
        path: list[str] = []
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            name, step = stack.pop()
            if step == 0:
                state[name] = 1
                path.append(name)
            following = edges.get(name, ())
            if step == len(following):
                state[name] = 2
                path.pop()
                continue
            stack.append((name, step + 1))
            nxt = following[step]
            if state.get(nxt) == 1:
                return [*path[path.index(nxt) :], nxt]
            if nxt not in state:
                stack.append((nxt, 0))
    return None
