"""Facts -> verdicts, and the choice of the one verdict.

``judge`` answers every rule for one subject, ``settle`` applies the mutes, ``choose`` picks the verdict. All three are pure.
Clear and inapplicable rules come back as one shared verdict each, without evidence; ``Judge.explain`` gives it on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from kvdoctor.facts import Fact, FactSet, Known, Unknown
from kvdoctor.findings import CONFIDENCES, SEVERITIES, Evidence, Missing, State, Verdict
from kvdoctor.rulebook import confidence
from kvdoctor.rulebook.config import Config, apply_config
from kvdoctor.rulebook.expr import (
    FALSE,
    SINCE_START,
    TRUE,
    UNDECIDED,
    Bound,
    Comparison,
    Facts,
    Group,
    Test,
    Threshold,
    number,
    parse_condition,
)
from kvdoctor.rulebook.rule import Rule, Scope, mute_targets

PRESSURE_STAGE = 5
BOUNDARY_STAGES = (7, 8)
REPLAY_RULES = ("KV500", "KV913")
"""Decided by a replay they say what would help, not what is wrong; they stand behind families 2 to 4 and exclude each other."""
GENERAL_VERDICTS = ("KV900", "KV904")
"""The boundaries of stage 8 that may stand in for ``healthy``."""
QUIET = "KV900"
QUIET_SAMPLES = 4
"""From how many samples on KV900 may be the verdict where preemptions are not counted: a log of half a minute and more."""
COMPANION = "KV808"
"""Goes with a verdict, never is one."""
HEALTH_FACTS = (("kv.usage_last", "kv.usage_max"), ("preempt.count",), ("req.waiting",))
"""What must be Known to call a server healthy: one of each row."""

_GATE = parse_condition("kv.pressure", {}).bind({})


ABSENT = -1
"""Beside the codes of a condition: the rule does not apply."""


class _Program:
    """One rule on one level. It is compiled when it is first needed: most rules never get past their gate.

    ``gate`` names a necessary condition that other rules share, ``gate_test`` tests it; without one they are '' and None.
    ``code(facts, so_far)`` answers the rule, given the answer of its gate: ``ABSENT``, ``FALSE`` (clear), ``TRUE`` (fires) or
    undecided.
    """

    __slots__ = (
        "_applies",
        "_briefs",
        "_parts",
        "_sure",
        "absent",
        "clear",
        "code",
        "gate",
        "gate_test",
        "rule",
        "scope",
    )

    def __init__(self, rule: Rule, scope: Scope) -> None:
        self.rule = rule
        self.scope = scope
        self.absent = _blank(rule, "not_applicable")
        self.clear = _blank(rule, "clear")
        self.code: Callable[[Facts, int], int] = self._first_code
        self._briefs: dict[tuple[State, int], Verdict] = {}
        self._parts: tuple[tuple[Bound, ...], Bound, Bound | None] | None = None
        self._sure: Callable[[Facts], int] | None = None
        self._applies: Bound | None = None
        self.gate = ""
        self.gate_test: Test | None = None
        if rule.gated and scope == "target":
            self.gate, self.gate_test = _first(_GATE)
        elif (applies := rule.applies_on(scope)) is not None:
            self._applies = rule.bound(applies)
            self.gate, self.gate_test = _first(self._applies)

    def _compiled(self) -> tuple[tuple[Bound, ...], Bound, Bound | None]:
        if self._parts is None:
            rule, scope = self.rule, self.scope
            applies, when = rule.conditions(scope)
            needed = [_GATE] if rule.gated and scope == "target" else []
            if applies is not None:
                needed.append(self._applies or rule.bound(applies))
            floor: Bound | None = None
            # a rule with its own condition for groups is not bound to the floor of its targets
            if rule.min_events is not None and (scope == "target" or rule.group_when is None):
                limit = Threshold("min_events", rule.min_events.value, "count", calibrated=True, why="a floor")
                text = f"{rule.min_events.fact} >= thresholds.min_events"
                floor = parse_condition(text, {"min_events": "count"}).bind({"min_events": limit})
            self._parts = (tuple(needed), rule.bound(when), floor)
        return self._parts

    def _first_code(self, facts: Facts, so_far: int) -> int:
        needed, when, floor = self._compiled()
        first, rest = needed[:1], [part.code for part in needed[1:]]
        for part in first:
            # the gate was tested for all rules that share it
            left = part.after_first() if self.gate_test is not None else part.code
            rest[:0] = [left] if left is not None else []
        self.code = _decider(rest, [when.code] if floor is None else [when.code, floor.code])
        return self.code(facts, so_far)

    def verdict(self, facts: Facts) -> Verdict:
        """The full verdict with all evidence, whatever the state."""
        bounds = self._compiled()
        so_far = TRUE if self.gate_test is None else self.gate_test(facts)
        code = ABSENT if so_far == FALSE else self.code(facts, so_far)
        state = _STATES[code]
        applies = [part.result(facts) for part in bounds[0]]
        when = bounds[1].result(facts)
        floor = [bounds[2].result(facts)] if bounds[2] is not None else []
        evidence = tuple([item for result in (when, *floor, *applies) for item in result.evidence])
        if state == "fires":
            parts = [*zip(bounds[0], applies, strict=True), (bounds[1], when)]
            sure = min(confidence.of_result(bound, result) for bound, result in parts)
            body = self.rule.body
            return replace(
                self.clear,
                state=state,
                confidence=confidence.word(sure),
                evidence=evidence,
                say=body.say,
                cause=body.cause,
                not_this=body.not_this,
            )
        if state == "suspected":
            state = "suspected" if when.holds else "blind"
            results = [*applies, when, *floor]
            missing: dict[str, Missing] = {}
            for result in results:
                for gap in result.missing:
                    missing.setdefault(gap.fact, gap)
            return replace(
                self.clear,
                state=state,
                confidence="low",
                evidence=evidence,
                missing=tuple(missing.values()),
                would_fire_if=_joined([result.open for result in results if result.open]),
            )
        return replace(self.clear if state == "clear" else self.absent, evidence=evidence)

    def brief(self, facts: Facts, code: int) -> Verdict:
        """A verdict that fired or is undecided, without its evidence; one shared object for each outcome."""
        applies, when, _ = self._compiled()
        state: State = "fires"
        sure = 0
        if code == TRUE:
            if self._sure is None:
                self._sure = confidence.scorer((*applies, when))
            sure = self._sure(facts)
        else:
            state = "blind"
            for test in when.tests:
                if test(facts) >= SINCE_START:
                    state = "suspected"
                    break
        made = self._briefs.get((state, sure))
        if made is None:
            made = replace(self.clear, state=state, confidence=confidence.word(sure))
            self._briefs[(state, sure)] = made
        return made


_STATES: Mapping[int, State] = {
    ABSENT: "not_applicable",
    FALSE: "clear",
    UNDECIDED: "suspected",
    SINCE_START: "suspected",
    TRUE: "fires",
}


def _decider(applies: Sequence[Test], when: Sequence[Test]) -> Callable[[Facts, int], int]:
    """One call for one rule: what is left of ``applies`` behind the gate, then ``when`` and its floor."""
    if len(applies) == 1 and len(when) == 1:
        (only,), (asked,) = applies, when

        def simple(facts: Facts, so_far: int) -> int:
            code = only(facts)
            if code == FALSE:
                return ABSENT
            if code < so_far:
                so_far = code
            code = asked(facts)
            return code if code < so_far else so_far

        return simple

    def decide(facts: Facts, so_far: int) -> int:
        for test in applies:
            code = test(facts)
            if code == FALSE:
                return ABSENT
            if code < so_far:
                so_far = code
        for test in when:
            code = test(facts)
            if code < so_far:
                if code == FALSE:
                    return FALSE
                so_far = code
        return so_far

    return decide


def _joined(texts: Sequence[str]) -> str:
    several = len(texts) > 1
    return " and ".join(dict.fromkeys(f"({text})" if several and " or " in text else text for text in texts))


def _blank(rule: Rule, state: State) -> Verdict:
    return Verdict(
        rule=rule.name,
        id=rule.id,
        state=state,
        title=rule.title,
        severity=rule.severity,
        stage=rule.stage,
        misdiagnosis=rule.misdiagnosis,
        fallback=rule.fallback,
    )


class Judge:
    """A set of rules compiled for repeated use (``watch``, ``fleet``). ``config`` changes thresholds."""

    def __init__(self, rules: Sequence[Rule], config: Config | None = None) -> None:
        self.rules = apply_config(rules, config) if config is not None else tuple(rules)
        self._levels: dict[Scope, _Level] = {}

    def judge(self, facts: FactSet, *, scope: Scope = "target", brief: bool = False) -> list[Verdict]:
        """One verdict for each rule of that level, in the order of the rules.

        ``brief``: without evidence, texts, missing facts and ``would_fire_if``, which would be most of the work for a fleet;
        :meth:`explain` has them.
        """
        return self._level(scope).judge(facts.values, brief)

    def explain(self, name: str, facts: FactSet, *, scope: Scope = "target") -> Verdict:
        """The verdict of one rule with all its evidence, also when it is clear or does not apply. Raises ``KeyError``."""
        level = self._level(scope)
        program = level.by_name[name]
        if level.starting(facts.values) and program.rule.stage == PRESSURE_STAGE:
            return program.absent
        return program.verdict(facts.values)

    def _level(self, scope: Scope) -> _Level:
        if scope not in self._levels:
            self._levels[scope] = _Level(self.rules, scope)
        return self._levels[scope]


class _Level:
    """The programs of one level, grouped by the first condition they need, which is tested once for all of them."""

    def __init__(self, rules: Sequence[Rule], scope: Scope) -> None:
        self.scope = scope
        self.programs = [_Program(rule, scope) for rule in rules if scope in rule.scopes]
        self.by_name = {program.rule.name: program for program in self.programs}
        self.absent = [program.absent for program in self.programs]
        groups: dict[str, tuple[Test | None, list[tuple[int, _Program]]]] = {}
        for index, program in enumerate(self.programs):
            groups.setdefault(program.gate, (program.gate_test, []))[1].append((index, program))
        self.groups = list(groups.values())

    def starting(self, facts: Facts) -> bool:
        """Start-up comes first: is the target known to be starting?"""
        phase = facts.get("target.phase")
        return self.scope == "target" and isinstance(phase, Known) and phase.lo == phase.hi == "starting"

    def judge(self, facts: Facts, brief: bool) -> list[Verdict]:
        out = list(self.absent)
        starting = self.starting(facts)
        for test, members in self.groups:
            so_far = TRUE if test is None else test(facts)
            if so_far == FALSE:
                continue
            for index, program in members:
                if starting and program.rule.stage == PRESSURE_STAGE:
                    continue
                code = program.code(facts, so_far)
                if code > FALSE:
                    # which of the replay rules stands is told by its evidence
                    short = brief and program.rule.id not in REPLAY_RULES
                    out[index] = program.brief(facts, code) if short else program.verdict(facts)
                elif code == FALSE:
                    out[index] = program.clear
        return out


def _first(bound: Bound) -> tuple[str, Test | None]:
    """A comparison without which the condition cannot be true, and its text with numbers for thresholds."""
    node = bound.condition.root
    while isinstance(node, Group) and node.op == "and":
        node = node.parts[0]
    if not isinstance(node, Comparison):
        return "", None
    values = ",".join(f"{name}={bound.thresholds[name].value!r}" for name in bound.condition.thresholds)
    return f"{node.text} [{values}]", bound.tests[node.index]


@lru_cache(maxsize=16)
def _judge_for(rules: tuple[Rule, ...], config: Config | None) -> Judge:
    return Judge(rules, config)


def judge(
    rules: Sequence[Rule], facts: FactSet, *, scope: Scope = "target", config: Config | None = None
) -> list[Verdict]:
    """Answer every rule of that level for one subject; mutes are not applied yet (:func:`settle`).

    Raises :class:`~kvdoctor.rulebook.config.ConfigError` for a changed threshold that does not exist.
    """
    return _judge_for(tuple(rules), config).judge(facts, scope=scope)


# ---------------------------------------------------------------------------------------------- mutes


def settle(verdicts: Sequence[Verdict], rules: Sequence[Rule], config: Config | None = None) -> list[Verdict]:
    """Apply what the user muted, the mutes of fired rules (a muted rule mutes nobody), fallbacks, and muted advice.

    A muted verdict keeps its state and names who muted it; suspected ones are marked as well. Of KV500 and KV913 at most one is
    left fired: a measured comparison stands against a replay, two of a kind contradict each other and are both suspected.
    """
    by_name, targets_of = _relations(tuple(rules))
    out = {verdict.rule: verdict for verdict in _exclude(verdicts)}
    for mute in config.mutes if config is not None else ():
        for name, verdict in out.items():
            whole = by_name.get(by_name[name].part_of) if name in by_name else None
            if mute.rule in (verdict.rule, verdict.id, *((whole.name, whole.id) if whole is not None else ())):
                reason = f"{mute.why} (until {mute.until}, {mute.origin})"
                out[name] = replace(verdict, muted_by="settings", mute_reason=reason)
    # only a fired rule mutes, so only those have to be put in order
    fired = [by_name[v.rule] for v in out.values() if v.state == "fires" and v.rule in by_name]
    edges = {rule.name: [name for name in targets_of[rule.name] if name in out] for rule in fired}
    for name in _causes_first(edges):
        if out[name].muted_by is not None:
            continue
        for target in edges[name]:
            effect = out[target]
            if effect.muted_by is None and effect.state in ("fires", "suspected"):
                why = "its cause is found" if target in by_name[name].mutes else "a sub-cause is decided"
                out[target] = replace(effect, muted_by=name, mute_reason=why)
        for target in by_name[name].mutes_advice:
            if target in out and out[target].advice_muted_by is None:
                out[target] = replace(out[target], advice_muted_by=name)
    return [out[verdict.rule] for verdict in verdicts]


@lru_cache(maxsize=16)
def _relations(rules: tuple[Rule, ...]) -> tuple[Mapping[str, Rule], Mapping[str, tuple[str, ...]]]:
    return {rule.name: rule for rule in rules}, {rule.name: mute_targets(rule, rules) for rule in rules}


def under_one_name(verdicts: Sequence[Verdict], rules: Sequence[Rule]) -> list[Verdict]:
    """Settled verdicts with the parts told under the name and id of their whole: of a whole and its parts one is left.

    That is the part that stands, else the whole. Who was muted by a part names the whole.
    """
    by_name, _ = _relations(tuple(rules))
    wholes = {rule.name: by_name[rule.part_of] for rule in rules if rule.part_of in by_name}
    stands = {v.rule: v.state == "fires" and v.muted_by is None for v in verdicts}
    told = {whole.name: name for name, whole in wholes.items() if stands.get(name)}
    out: list[Verdict] = []
    for verdict in verdicts:
        whole = wholes.get(verdict.rule)
        if told.get(whole.name if whole is not None else verdict.rule, verdict.rule) != verdict.rule:
            continue
        if whole is not None:
            if not stands[verdict.rule]:
                continue
            verdict = replace(verdict, rule=whole.name, id=whole.id)
        if verdict.muted_by in wholes:
            verdict = replace(verdict, muted_by=wholes[verdict.muted_by].name)
        if verdict.advice_muted_by in wholes:
            verdict = replace(verdict, advice_muted_by=wholes[verdict.advice_muted_by].name)
        out.append(verdict)
    return out


def _causes_first(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Topological order of the keys; loading refuses cycles, so every key comes out."""
    pending = dict.fromkeys(edges, 0)
    for targets in edges.values():
        for target in targets:
            if target in pending:
                pending[target] += 1
    ready = [name for name, count in pending.items() if count == 0]
    for name in ready:
        for target in edges[name]:
            if target in pending:
                pending[target] -= 1
                if pending[target] == 0:
                    ready.append(target)
    return ready


def _by_replay(verdict: Verdict) -> bool:
    return any(item.outcome and "whatif." in item.fact for item in verdict.evidence)


def _exclude(verdicts: Sequence[Verdict]) -> list[Verdict]:
    fired = [v for v in verdicts if v.id in REPLAY_RULES and v.state == "fires"]
    if len(fired) < 2:
        return list(verdicts)
    losers = [v for v in fired if _by_replay(v)]
    if not losers:
        losers = fired
    gap = Missing("whatif.policy", "the evidence for a policy and for more capacity contradict each other")
    doubt = {v.rule: replace(v, state="suspected", confidence="low", missing=(gap,)) for v in losers}
    return [doubt.get(v.rule, v) for v in verdicts]


# ---------------------------------------------------------------------------------------------- the one verdict


def _rank(verdict: Verdict) -> tuple[int, int, int, bool, str]:
    return (
        verdict.stage,
        SEVERITIES.index(verdict.severity),
        CONFIDENCES.index(verdict.confidence),
        verdict.fallback,
        verdict.id,
    )


def choose(verdicts: Sequence[Verdict], facts: FactSet) -> Verdict:
    """The one verdict of a subject, from settled verdicts.

    Among the rules that fired and are not muted: lowest stage, then severity, confidence, not-fallback, id. A general boundary
    (stage 8) stands in for ``healthy`` only as KV900 or KV904 and only where ``healthy`` could be said; KV808 goes along.
    Otherwise ``healthy`` (what was looked at is named) or ``undetermined`` (what is missing is named).
    """
    fired = [v for v in verdicts if v.state == "fires" and v.muted_by is None and v.id != COMPANION]
    if any(v.misdiagnosis in (2, 3, 4) for v in fired):
        fired = [v for v in fired if not (v.id in REPLAY_RULES and _by_replay(v))]
    decided = [v for v in fired if v.stage != max(BOUNDARY_STAGES)]
    if decided:
        return min(decided, key=_rank)
    grave = SEVERITIES.index("medium")
    doubts = [
        v for v in verdicts if v.state == "suspected" and v.muted_by is None and SEVERITIES.index(v.severity) <= grave
    ]
    looked, gaps = _health(facts)
    seen = [*_unexplained(facts), *_too_few(facts)]
    gaps[:0] = seen
    general = [v for v in fired if v.id in GENERAL_VERDICTS]
    if not doubts and not gaps:
        return min(general, key=_rank) if general else _healthy(looked)
    if not doubts and {g.fact for g in gaps} == {"preempt.count"} and _seen_quiet(general, facts):
        return min(general, key=_rank)
    return _undetermined(doubts, gaps, seen)


def _seen_quiet(general: Sequence[Verdict], facts: FactSet) -> bool:
    """No counter of preemptions, but a pool that kept room at every one of several samples while nobody waited.

    A preempted request waits and its pool was full: neither was seen. Logs that print no preemptions tell no more.
    """
    samples = facts["target.samples"]
    return (
        any(v.id == QUIET for v in general)
        and isinstance(facts["preempt.count"], Unknown)
        and isinstance(samples, Known)
        and not isinstance(samples.lo, str)
        and samples.lo >= QUIET_SAMPLES
    )


def _health(facts: FactSet) -> tuple[list[tuple[str, Known]], list[Missing]]:
    looked: list[tuple[str, Known]] = []
    gaps: list[Missing] = []
    for row in HEALTH_FACTS:
        known = [(name, fact) for name in row if isinstance(fact := facts[name], Known)]
        if known:
            looked.append(known[-1])
            continue
        # a reading that was tried tells more than one nobody tried
        name = next((name for name in row if name in facts), row[0])
        fact = facts[name]
        if isinstance(fact, Unknown):
            gaps.append(Missing(name, fact.reason, fact.hint))
    return looked, gaps


def _too_few(facts: FactSet) -> list[Missing]:
    """Preemptions were seen, yet too few for any rule or boundary to judge them: that is not health."""
    count = facts["preempt.count"]
    if isinstance(count, Known) and count.span != "L" and not isinstance(count.lo, str) and count.lo > 0:
        return [
            Missing(
                "preempt.count",
                f"{number(count.lo)} preempted in this window, too few to tell a storm from a well-used pool",
                "look longer (--window 60), or give more scrapes",
            )
        ]
    return []


STANDING_QUEUE = 3
STANDING_QUEUE_SHARE = 0.05
"""A queue at the first and the last sample of so many, and of this share of what runs: not the request that is just taken in."""
GROWING_QUEUE = 4
"""From an empty queue to so many times that is more than a burst that is about to be taken in."""
TRANSFER_QUEUES = ("pd.prefill_queue", "pd.decode_queue", "pd.transfer_queue", "pd.expired")


def _unexplained(facts: FactSet) -> list[Missing]:
    """What was seen and contradicts health, though no rule knows its cause."""
    out: list[Missing] = []
    report = facts["target.failure_reported"]
    if isinstance(report, Known) and report.lo is True:
        why = f"a failure is reported, with no work after it: {report.note} ({report.source})"
        out.append(
            Missing("target.failure_reported", why, "read the lines before that one; add the whole log, and dmesg -T")
        )
    waiting, grown, running = (_least(facts[name]) for name in ("req.waiting", "req.waiting_growth", "req.running"))
    if waiting is not None:
        # without a second sample the one there is stands for the window
        standing = min(waiting, waiting - grown) if grown is not None else waiting
        if standing >= max(STANDING_QUEUE, STANDING_QUEUE_SHARE * (running or 0.0)):
            why = (
                f"{number(waiting)} requests wait, at least {number(standing)} all the time, and no rule knows for what"
            )
            out.append(
                Missing("req.waiting", why, "add the start of the log (limits) and a window of a minute or more")
            )
    for name in TRANSFER_QUEUES:
        held = _least(facts[name])
        if held is not None and held >= STANDING_QUEUE:
            why = f"{number(held)} requests are held up between prefill and decode ({name})"
            out.append(Missing(name, why, "add the logs or metrics of the servers on the other side"))
            break
    return out


def _least(fact: Fact) -> float | None:
    if not isinstance(fact, Known) or fact.span == "L" or isinstance(fact.lo, (str, bool)):
        return None
    return float(fact.lo)


def _healthy(looked: Sequence[tuple[str, Known]]) -> Verdict:
    seen = ", ".join(f"{name} {_interval(fact)}" for name, fact in looked)
    evidence = tuple(
        Evidence(
            fact=name,
            op="seen",
            outcome=True,
            unit="",
            value=fact.value,
            lo=fact.lo,
            hi=fact.hi,
            how=fact.how,
            span=fact.span,
            source=fact.source,
            note=fact.note,
        )
        for name, fact in looked
    )
    return Verdict(
        rule="healthy",
        id="",
        state="fires",
        title="Nothing found in what was looked at",
        severity="info",
        stage=9,
        misdiagnosis=None,
        fallback=False,
        say=f"No rule fired and none of weight is suspected. Looked at: {seen}. This holds for these sources and this window.",
        confidence="medium",
        evidence=evidence,
    )


def _interval(fact: Known) -> str:
    return number(fact.lo) if fact.exact else f"{number(fact.lo)} to {number(fact.hi)}"


def _undetermined(doubts: Sequence[Verdict], gaps: Sequence[Missing], seen: Sequence[Missing]) -> Verdict:
    missing: dict[str, Missing] = {gap.fact: gap for gap in gaps}
    parts = []
    if seen:
        parts.append(f"Seen, and no rule explains it: {'; '.join(gap.reason for gap in seen)}.")
    if doubts:
        names = ", ".join(v.rule for v in sorted(doubts, key=_rank)[:3])
        more = f" and {len(doubts) - 3} more" if len(doubts) > 3 else ""
        parts.append(f"Suspected but not decided: {names}{more}.")
        for verdict in sorted(doubts, key=_rank):
            for gap in verdict.missing:
                missing.setdefault(gap.fact, gap)
    told = {gap.fact for gap in seen}
    unknown = [gap for gap in missing.values() if gap.fact not in told]
    if unknown:
        few = unknown[:4]
        more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        parts.append(f"Missing: {'; '.join(f'{gap.fact} ({gap.reason})' for gap in few)}{more}.")
    return Verdict(
        rule="undetermined",
        id="",
        state="blind",
        title="Not enough was seen to tell",
        severity="info",
        stage=9,
        misdiagnosis=None,
        fallback=False,
        say=" ".join(parts),
        confidence="low",
        missing=tuple(missing.values()),
    )


def gravest(verdicts: Iterable[Verdict]) -> Verdict:
    """Of the verdicts of several targets the one to act on first; raises ``ValueError`` for none.

    The order of :func:`choose`; a target that could not be judged comes after every finding and before boundaries and health.
    """
    return min(verdicts, key=lambda v: (_weight(v), _rank(v)))


def _weight(verdict: Verdict) -> int:
    if verdict.rule == "undetermined":
        return 1
    return 2 if verdict.rule == "healthy" or verdict.stage in BOUNDARY_STAGES else 0
