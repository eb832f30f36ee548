"""The lint of rule files: everything a rule promises is checked, its examples are run.

``python -m kvdoctor.rulebook.lint [FILE...]`` prints the problems and exits with 1 when there are any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvdoctor.facts import FACTS, LEVERS, FactSet, suggest
from kvdoctor.findings import Verdict
from kvdoctor.frozen import frozen
from kvdoctor.policy import Policy, PolicyError
from kvdoctor.rulebook.expr import FALSE, TRUE, did_you_mean, fold
from kvdoctor.rulebook.judge import BOUNDARY_STAGES, Judge
from kvdoctor.rulebook.rule import (
    SHIPPED_ID,
    Example,
    Rule,
    RuleError,
    Scope,
    compile_rule,
    read_rule,
    rules_dir,
    set_errors,
)

_STAGES: dict[str, tuple[int, ...]] = {
    "1": (2,),
    "2": (5,),
    "3": (5,),
    "4": (5,),
    "5": (4, 5),
    "6": (2, 3, 6),
    "7": (3, 4, 6),
    "8": (1, 6),
    "9": BOUNDARY_STAGES,
}
_CAPACITY = "KV913"
"""Has its id in the block of the boundaries and is judged with the pressure rules (verdicts.md)."""
_MAX_CONFIRM = 3
_TOPICS = ("metrics", "log", "gpu", "kernel", "host")
"""First words of the engine tables' commands; a test of the tables knows the rest."""


@frozen
class Problem:
    """One thing wrong with a rule file."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


def lint(paths: Iterable[Path], *, base: Path | None = None) -> list[Problem]:
    """Check rule files (a folder stands for its ``*.toml``).

    ``base`` is the folder of the shipped rules (default :func:`~kvdoctor.rulebook.rule.rules_dir`): its rules may be named in
    mutes, may not be repeated, and only its files may use the ids KV000 to KV999.
    """
    home = (base if base is not None else rules_dir()).resolve()
    files: list[Path] = []
    for path in paths:
        files.extend(sorted(path.glob("*.toml")) if path.is_dir() else [path])
    problems: list[Problem] = []
    rules: list[Rule] = []
    for path in files:
        try:
            rules.append(_read(path, home))
        except RuleError as error:
            problems.append(_problem(error))
    for rule in rules:
        problems.extend(check_rule(rule))
    given = {rule.file for rule in rules}
    whole = [*_others(home, files), *rules]
    problems.extend(_problem(error) for error in set_errors(whole) if error.file in given)
    return problems


def _read(path: Path, home: Path) -> Rule:
    rule = read_rule(path, shipped=path.resolve().parent == home)
    compile_rule(rule)
    return rule


def _others(home: Path, files: Sequence[Path]) -> Iterator[Rule]:
    """The shipped rules that are not among the files looked at; broken ones are somebody else's problem here."""
    given = {path.resolve() for path in files}
    for path in sorted(home.glob("*.toml")) if home.is_dir() else []:
        if path.resolve() in given:
            continue
        try:
            yield read_rule(path, shipped=True)
        except RuleError:
            continue


def _problem(error: RuleError) -> Problem:
    return Problem(error.file, error.line, error.key, error.message)


def check_rule(rule: Rule) -> list[Problem]:
    """Every check that needs this rule only."""
    found = [*_place(rule), *_names(rule), *_unused(rule), *_texts(rule)]
    return found + _examples(rule)


def _at(rule: Rule, key: str, message: str) -> Problem:
    return Problem(rule.file, rule.line(*key.split(".")), key, message)


def _place(rule: Rule) -> Iterator[Problem]:
    boundary = rule.stage in BOUNDARY_STAGES
    if rule.id != _CAPACITY and boundary != (rule.severity == "info"):
        yield _at(rule, "severity", "info is for boundaries: stage 7 and 8, and they have no other severity")
    if not SHIPPED_ID.fullmatch(rule.id):
        return
    block = rule.id[2]
    stages = (5,) if rule.id == _CAPACITY else _STAGES.get(block, ())
    if rule.stage not in stages:
        wanted = " or ".join(map(str, stages)) or "none: this block is empty"
        yield _at(rule, "stage", f"rules of the block KV{block}xx have stage {wanted}, not {rule.stage}")
    if block in "12345" and rule.misdiagnosis != int(block):
        yield _at(rule, "misdiagnosis", f"{rule.id} belongs to misdiagnosis {block}")
    if rule.fallback and rule.misdiagnosis is None:
        yield _at(rule, "fallback", "a fallback belongs to a misdiagnosis")


def _names(rule: Rule) -> Iterator[Problem]:
    body = rule.body
    for lever in body.levers:
        if lever.lever not in LEVERS:
            near = did_you_mean(suggest(lever.lever, LEVERS))
            yield _at(rule, "fix.lever", f"unknown lever {lever.lever}{near}")
    if body.policy:
        try:
            Policy().patch(body.policy)
        except PolicyError as error:
            yield _at(rule, "fix.policy", str(error))
    for scope in rule.scopes:
        for condition in rule.conditions(scope):
            for name in condition.facts if condition is not None else ():
                if scope == "target" and FACTS[name].level == "x":
                    yield _at(
                        rule, "when", f"{name} belongs to a group of targets; a rule of scope target cannot see it"
                    )
                if name == "kv.pressure" and rule.gated:
                    yield _at(rule, "when", "kv.pressure is implied in a gated rule; leave it out")


def _unused(rule: Rule) -> Iterator[Problem]:
    body = rule.body
    used: set[str] = set()
    for scope in rule.scopes:
        for condition in rule.conditions(scope):
            used.update(condition.thresholds if condition is not None else ())
    for check in body.checks:
        used.update(check.condition.thresholds)
    for lever in body.levers:
        used.update(lever.quantity.thresholds if lever.quantity is not None else ())
    for name in rule.thresholds:
        if name not in used:
            near = did_you_mean(suggest(name, used))
            yield _at(rule, f"thresholds.{name}", f"this threshold is used nowhere{near}")


def _texts(rule: Rule) -> Iterator[Problem]:
    body = rule.body
    if rule.severity != "info":
        if not body.checks:
            yield _at(rule, "fix.check", "at least one check that shows the fix worked")
        if not body.confirm:
            yield _at(rule, "confirm.run", "at least one command a person can run to confirm it")
    if len(body.confirm) > _MAX_CONFIRM:
        yield _at(rule, "confirm.run", f"at most {_MAX_CONFIRM} commands")
    for word in body.confirm:
        topic, _, rest = word.partition(".")
        if word not in LEVERS and not (topic in _TOPICS and rest):
            near = did_you_mean(suggest(word, LEVERS))
            yield _at(rule, "confirm.run", f"{word}: neither a lever nor a command ({', '.join(_TOPICS)}.*){near}")


def _examples(rule: Rule) -> list[Problem]:
    judge = Judge([rule])
    problems: list[Problem] = []
    for example in rule.examples:
        verdict = judge.explain(rule.name, FactSet(dict(example.facts)), scope=example.scope)
        for message in _differs(example, verdict):
            problems.append(Problem(rule.file, example.line, f"examples: {example.name}", message))
    levels: tuple[Scope, ...] = rule.scopes if rule.group_when is not None else rule.scopes[:1]
    for scope in levels:
        own = [example for example in rule.examples if example.scope == scope]
        if not any(example.expect == "fires" for example in own):
            problems.append(_at(rule, "examples", f"no example of a {scope} that fires"))
        problems.extend(_near_misses(rule, scope, own))
    return problems


def _differs(example: Example, verdict: Verdict) -> Iterator[str]:
    if verdict.state != example.expect:
        gaps = ", ".join(gap.fact for gap in verdict.missing)
        outcomes = "; ".join(
            f"{e.fact} {e.op}{'' if e.threshold is None else f' {e.threshold}'} is {_word(e.outcome)}"
            for e in verdict.evidence
        )
        yield f"expected {example.expect}, got {verdict.state} ({outcomes}{f'; missing: {gaps}' if gaps else ''})"
        return
    if example.expect in ("suspected", "blind"):
        missing = {gap.fact for gap in verdict.missing}
        if example.missing is None:
            yield f"`missing` is wanted: {sorted(missing)}"
        elif set(example.missing) != missing:
            yield f"missing is {sorted(missing)}, the example says {sorted(example.missing)}"
    elif example.missing:
        yield f"`missing` makes no sense with expect = {example.expect!r}"
    if example.confidence is not None and (verdict.state != "fires" or verdict.confidence != example.confidence):
        got = verdict.confidence if verdict.state == "fires" else f"none ({verdict.state})"
        yield f"expected confidence {example.confidence}, got {got}"


def _word(outcome: bool | None) -> str:
    return "undecided" if outcome is None else "true" if outcome else "false"


def _near_misses(rule: Rule, scope: Scope, examples: Sequence[Example]) -> Iterator[Problem]:
    """Each comparison of ``when`` must be shown to matter: an example where everything fires but for it alone."""
    applies, when = rule.conditions(scope)
    bound = when.bind(rule.thresholds)
    shown: set[str] = set()
    # what surrounds `when` (applies, the gate, the floor) must be true in the example: judged with a `when` that is true
    for example in examples:
        if example.expect == "fires" or not _surroundings_hold(rule, scope, example):
            continue
        codes = list(bound.codes(example.facts))
        if fold(when.root, codes) == TRUE:
            continue
        for leaf in when.leaves:
            if codes[leaf.index] != FALSE:
                continue
            same = [other.index for other in when.leaves if other.text == leaf.text]
            flipped = [TRUE if index in same else code for index, code in enumerate(codes)]
            if fold(when.root, flipped) == TRUE:
                shown.add(leaf.text)
    key = "when" if scope == "target" or rule.group_when is None else "group.when"
    for text in dict.fromkeys(leaf.text for leaf in when.leaves):
        if text not in shown:
            yield _at(
                rule,
                key,
                f"no near miss for `{text}`: wanted is an example that does not fire, where this alone is false and all else holds",
            )


def _surroundings_hold(rule: Rule, scope: Scope, example: Example) -> bool:
    """Would the rule fire in this example if ``when`` were true?"""
    verdict = Judge([rule]).explain(rule.name, FactSet(dict(example.facts)), scope=scope)
    if verdict.state == "not_applicable":
        return False
    applies, when = rule.conditions(scope)
    if applies is not None and rule.bound(applies).code(example.facts) != TRUE:
        return False
    # behind those of `when` and before those of `applies` stand the floor and the gate
    end = len(verdict.evidence) - (0 if applies is None else len(applies.leaves))
    return all(item.outcome is True and item.span != "L" for item in verdict.evidence[len(when.leaves) : end])


def main(arguments: Sequence[str]) -> int:
    """Lint the files named (default: the shipped rules), print problems, return 1 when there are any."""
    paths = [Path(argument) for argument in arguments] or [rules_dir()]
    problems = lint(paths)
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
