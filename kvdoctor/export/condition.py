"""A rule's condition as a PromQL filter: it has a value exactly while the condition is certainly true.

PromQL has no third truth value, but absence serves: a comparison whose fact is not told has no value, so ``and`` fails with it
and ``or`` passes it over, as undecided comparisons do when a rule is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvdoctor.export.promql import End, Templates, record_name
from kvdoctor.rulebook.expr import (
    Arithmetic,
    Comparison,
    FactRef,
    Group,
    Node,
    Number,
    Op,
    Operand,
    Threshold,
    ThresholdRef,
    compare,
    facts_of,
)


@dataclass(frozen=True, slots=True)
class Used:
    """A recorded series an expression reads: the fact, the end of its interval, an enum's choice."""

    fact: str
    end: End = ""
    choice: str = ""
    group: bool = False

    @property
    def record(self) -> str:
        """Its name."""
        name = record_name(self.fact, self.end, group=self.group)
        return f"{name}_{self.choice}" if self.choice else name


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition in PromQL. ``truth`` is set where it never changes; ``missing`` are the facts without which it is never
    true. ``left_out`` are the comparisons of an ``or`` that were dropped because their fact is missing.
    """

    text: str = ""
    used: tuple[Used, ...] = ()
    truth: bool | None = None
    missing: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    compound: str = ""


@dataclass
class Compiler:
    """Turns conditions into filters over recorded facts of one engine, or (``group``) of its replicas."""

    templates: Templates
    thresholds: Mapping[str, Threshold]
    group: bool = False
    _known: dict[tuple[str, End], bool] = field(default_factory=dict, repr=False)

    def node(self, node: Node) -> Filter:
        """The filter of a tree."""
        if isinstance(node, Comparison):
            return self.leaf(node)
        return self.join(node.op, [self.node(part) for part in node.parts], node)

    def join(self, op: str, parts: list[Filter], node: Group | None = None) -> Filter:
        """``and`` or ``or`` of filters, without what never changes."""
        absorbing = op == "or"
        for part in parts:
            if part.truth is absorbing:
                return Filter(truth=absorbing)
        live = [part for part in parts if part.truth is None and not part.missing]
        lost = [part for part in parts if part.missing]
        left_out = tuple(dict.fromkeys(reason for part in live for reason in part.left_out))
        if lost and (op == "and" or not live):
            return Filter(missing=tuple(dict.fromkeys(fact for part in lost for fact in part.missing)))
        if not live:
            return Filter(truth=not absorbing)
        left_out = (*left_out, *dict.fromkeys(fact for part in lost for fact in part.missing))
        used = tuple(dict.fromkeys(use for part in live for use in part.used))
        if len(live) == 1:
            only = live[0]
            return Filter(only.text, used, left_out=left_out, compound=only.compound)
        texts = dict.fromkeys(
            f"({part.text})" if part.compound and part.compound != op else part.text for part in live
        )
        return Filter(f"\n{op} ".join(texts), used, left_out=left_out, compound=op)

    # ---------------------------------------------------------------- leaves

    def has(self, fact: str, end: End = "") -> bool:
        """Can the fact (or that end of it) be had?"""
        key = (fact, end)
        if key not in self._known:
            if self.group:
                self._known[key] = not end and self.templates.group(fact) is not None
            else:
                self._known[key] = self.templates.fact(fact, end) is not None
        return self._known[key]

    def leaf(self, leaf: Comparison) -> Filter:
        """The filter of one comparison."""
        constants: Mapping[str, float | str] = {} if self.group else self.templates.constants
        if isinstance(leaf.right, str):
            return self._choice(leaf, constants)
        if leaf.op in ("known", "unknown"):
            return self._presence(leaf, constants)
        if leaf.right is None:
            name = facts_of(leaf.left)[0]
            if not self.has(name):
                return Filter(missing=(name,))
            use = Used(name, group=self.group)
            return Filter(f"{use.record} == {1 if leaf.op == 'is' else 0}", (use,))
        return self._number(leaf, leaf.right, constants)

    def _choice(self, leaf: Comparison, constants: Mapping[str, float | str]) -> Filter:
        name = facts_of(leaf.left)[0]
        wanted = str(leaf.right)
        if name in constants:
            same = constants[name] == wanted
            return Filter(truth=same if leaf.op == "==" else not same)
        if leaf.op == "==" and not self.group and self.templates.fact(name, choice=wanted) is not None:
            use = Used(name, choice=wanted)
            return Filter(use.record, (use,))
        return Filter(missing=(name,))

    def _presence(self, leaf: Comparison, constants: Mapping[str, float | str]) -> Filter:
        name = facts_of(leaf.left)[0]
        if name in constants:
            return Filter(truth=leaf.op == "known")
        if not self.has(name):
            # never known here; as a condition it is not met, and saying which fact is missing is of more use
            return Filter(missing=(name,)) if leaf.op == "known" else Filter(truth=True)
        if leaf.op == "unknown":
            return Filter(missing=(name,))
        use = Used(name, group=self.group)
        return Filter(use.record, (use,))

    def _number(self, leaf: Comparison, right: Operand, constants: Mapping[str, float | str]) -> Filter:
        end: End = "lo" if leaf.op in (">", ">=") else "hi" if leaf.op in ("<", "<=") else ""
        simple = isinstance(leaf.left, FactRef) and not facts_of(right)
        names = tuple(dict.fromkeys((*facts_of(leaf.left), *facts_of(right))))
        uses: dict[str, Used] = {}
        missing: list[str] = []
        for name in names:
            if name in constants:
                continue
            take: End = end if simple and not self.group and self.templates.bounded(name, end) else ""
            if self.has(name, take):
                uses[name] = Used(name, take, group=self.group)
            else:
                missing.append(name)
        if missing:
            return Filter(missing=tuple(missing))
        if not uses:
            return Filter(truth=self._decide(leaf.op, leaf.left, right, constants))
        texts = [self._operand(side, uses, constants) for side in (leaf.left, right)]
        return Filter(f"{texts[0]} {leaf.op} {texts[1]}", tuple(uses.values()))

    def _operand(self, operand: Operand, uses: Mapping[str, Used], constants: Mapping[str, float | str]) -> str:
        if isinstance(operand, Number):
            return f"{operand.value:.12g}"
        if isinstance(operand, ThresholdRef):
            return f"{float(self.thresholds[operand.name].value):.12g}"
        if isinstance(operand, FactRef):
            return uses[operand.name].record if operand.name in uses else f"{float(constants[operand.name]):.12g}"
        parts = []
        for side in (operand.left, operand.right):
            text = self._operand(side, uses, constants)
            parts.append(f"({text})" if isinstance(side, Arithmetic) else text)
        return f"{parts[0]} {operand.op} {parts[1]}"

    def _decide(self, op: Op, left: Operand, right: Operand, constants: Mapping[str, float | str]) -> bool | None:
        a, b = self._value(left, constants), self._value(right, constants)
        return compare(op, (a, a), (b, b))

    def _value(self, operand: Operand, constants: Mapping[str, float | str]) -> float:
        if isinstance(operand, Number):
            return operand.value
        if isinstance(operand, ThresholdRef):
            return float(self.thresholds[operand.name].value)
        if isinstance(operand, FactRef):
            return float(constants[operand.name])
        a, b = self._value(operand.left, constants), self._value(operand.right, constants)
        if operand.op == "/":
            return a / b if b else float("nan")
        return a + b if operand.op == "+" else a - b if operand.op == "-" else a * b
