"""A rule's condition as a PromQL filter: it has a value exactly while the condition is certainly true.

PromQL has no third truth value, but absence serves: a comparison whose fact is not told has no value, so ``and`` fails with it
and ``or`` passes it over, as undecided comparisons do when a rule is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvdoctor.export.promql import ENDS, End, Templates
from kvdoctor.frozen import frozen
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


@frozen
class Used:
    """A recorded series an expression reads: the fact, the end of its interval, an enum's choice."""

    fact: str
    end: End = ""
    choice: str = ""
    group: bool = False
    window: str = ""

    @property
    def record(self) -> str:
        """Its name: ``kv.usage_max`` is ``kvdoctor:kv_usage_max``; the ends of a bound are ``..._at_least`` and
        ``..._at_most``, another window than the usual one is named behind, and facts of a group have ``job_`` before them.
        """
        parts = ["job"] if self.group else []
        parts.append(self.fact.replace(".", "_"))
        parts += [part for part in (_SUFFIX[self.end], self.choice, self.window) if part]
        return "kvdoctor:" + "_".join(parts)


_SUFFIX: Mapping[str, str] = {"": "", "lo": "at_least", "hi": "at_most"}


@frozen
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
    """Turns conditions into filters over recorded facts of one engine, or (``group``) of its replicas.

    ``window`` names the window in the recorded series where it is not the usual one.
    """

    templates: Templates
    thresholds: Mapping[str, Threshold]
    group: bool = False
    window: str = ""
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
        texts = dict.fromkeys(f"({part.text})" if part.compound and part.compound != op else part.text for part in live)
        return Filter(f"\n{op} ".join(texts), used, left_out=left_out, compound=op)

    def use(self, fact: str, end: End = "", choice: str = "") -> Used:
        """The recorded series of a fact."""
        return Used(fact, end, choice, self.group, self.window)

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
            use = self.use(name)
            return Filter(f"{use.record} == {1 if leaf.op == 'is' else 0}", (use,))
        return self._number(leaf, leaf.right, constants)

    def _choice(self, leaf: Comparison, constants: Mapping[str, float | str]) -> Filter:
        name = facts_of(leaf.left)[0]
        wanted = str(leaf.right)
        if name in constants:
            same = constants[name] == wanted
            return Filter(truth=same if leaf.op == "==" else not same)
        if leaf.op == "==" and not self.group and self.templates.fact(name, choice=wanted) is not None:
            use = self.use(name, choice=wanted)
            return Filter(use.record, (use,))
        return Filter(missing=(name,))

    def _presence(self, leaf: Comparison, constants: Mapping[str, float | str]) -> Filter:
        name = facts_of(leaf.left)[0]
        if name in constants:
            return Filter(truth=leaf.op == "known")
        ends = [end for end in ENDS if self.has(name, end)]
        if not ends or leaf.op == "unknown":
            return Filter(missing=(name,))
        use = self.use(name, ends[0])
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
                uses[name] = self.use(name, take)
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
