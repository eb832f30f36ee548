"""The page of a rule, generated from its file: in the terminal (``rules show``) and in ``docs/rules``."""

from __future__ import annotations

from kvdoctor.facts import FACTS, LEVERS
from kvdoctor.report.words import MISDIAGNOSES, label, value
from kvdoctor.rulebook.rule import Rule

_STAGES = {
    1: "hard evidence",
    2: "start-up and out of memory",
    3: "liveness",
    4: "spread between engines, ranks, replicas, pools",
    5: "pressure",
    6: "scheduler, cache, host",
    7: "specific boundary",
    8: "general boundary",
}


def page(rule: Rule) -> str:
    """The whole page as Markdown."""
    body = rule.body
    out = [f"# {rule.id} {rule.name}", "", f"**{rule.title}.**", ""]
    out.append(f"Severity {rule.severity}; looked at in stage {rule.stage} ({_STAGES[rule.stage]})"
               + (f"; belongs to misdiagnosis {rule.misdiagnosis}: {MISDIAGNOSES[rule.misdiagnosis]}" if rule.misdiagnosis else "") + ".")  # fmt: skip
    if rule.part_of:
        out += [
            "",
            f"A special case of `{rule.part_of}`: a report tells it under that name, in the words of this page.",
        ]
    out += [
        "",
        f"What people take it for: {rule.looks_like}.",
        "",
        "## Cause",
        "",
        body.cause,
        "",
        "## What it is not",
        "",
        body.not_this,
    ]
    out += ["", "## When it fires", "", "```"]
    if rule.applies:
        out.append(f"applies: {' '.join(rule.applies.split())}")
    out += [line.strip() for line in rule.when.strip().splitlines()]
    if rule.group_when:
        out.append(f"over several runs: {' '.join(rule.group_when.split())}")
    out.append("```")
    if rule.gated:
        out += [
            "",
            "Only while the pool is under pressure: full at some sample, or somebody was preempted, retracted or paused.",
        ]
    if rule.min_events is not None:
        out += ["", f"Floor: below {rule.min_events.value:g} ({label(rule.min_events.fact)}) it says nothing."]
    if rule.thresholds:
        out += ["", "| threshold | value | calibrated | why |", "| --- | --- | --- | --- |"]
        for name, limit in sorted(rule.thresholds.items()):
            source = f" ({limit.source})" if getattr(limit, "source", "") else ""
            out.append(
                f"| {name} | {value(limit.value, limit.unit)} | {'yes' if limit.calibrated else 'no'} | {limit.why}{source} |"
            )
    facts = sorted({n for c in rule.conditions(rule.scopes[0]) if c is not None for n in c.facts})
    if facts:
        out += ["", "| fact | unit | meaning |", "| --- | --- | --- |"]
        out += [f"| `{name}` | {FACTS[name].unit} | {FACTS[name].meaning.replace('|', '/')} |" for name in facts]
    out += ["", "## What to do", "", body.say]
    for number, lever in enumerate(body.levers, 1):
        aim = f" to {lever.to}" if lever.to else ""
        out.append(
            f"{number}. `{lever.lever}` ({LEVERS[lever.lever]}) {lever.direction}{aim}: {lever.why}."
            if number > 1
            else f"\n{number}. `{lever.lever}` ({LEVERS[lever.lever]}) {lever.direction}{aim}: {lever.why}."
        )
    if body.policy:
        out += ["", "As a policy file:", "", "```toml"]
        out += [f'"{key}" = {_toml(item)}' for key, item in body.policy.items()]
        out.append("```")
    if body.checks:
        out += ["", "## How to see that it worked", ""]
        out += [f"- after {check.after}: `{check.expect}`" for check in body.checks]
    if body.confirm:
        out += [
            "",
            "## Confirm it by hand",
            "",
            "The report prints these for the engine version it sees: "
            + ", ".join(f"`{c}`" for c in body.confirm)
            + ".",
        ]
    if rule.mutes or rule.mutes_advice:
        out += ["", "## Relations", ""]
        if rule.mutes:
            out.append("When it fires, it explains (and mutes): " + ", ".join(rule.mutes) + ".")
        if rule.mutes_advice:
            out.append("When it fires, the policy advice of these is silenced: " + ", ".join(rule.mutes_advice) + ".")
    if body.alert is not None:
        out += [
            "",
            "## As an alert",
            "",
            f"For {body.alert.duration}." if body.alert.duration else f"Not exported: {body.alert.why_not}.",
        ]
    out += ["", "## Examples", "", "| example | answer |", "| --- | --- |"]
    out += [f"| {example.name} | {example.expect} |" for example in rule.examples]
    if rule.refs:
        out += ["", "## References", ""]
        out += [f"- {ref}" for ref in rule.refs]
    return "\n".join(out) + "\n"


def _toml(item: object) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return f'"{item}"'
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(_toml(i) for i in item) + "]"
    return f"{item}"


def index(rules: list[Rule]) -> str:
    """The table of all rules, for ``docs/rules/README.md``."""
    out = [
        "# Rules",
        "",
        "One rule, one verdict. Generated from `rules/*.toml`; do not edit by hand.",
        "",
        "| ID | verdict | severity | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for rule in sorted(rules, key=lambda r: r.id):
        out.append(f"| {rule.id} | [{rule.name}]({rule.id}-{rule.name}.md) | {rule.severity} | {rule.title} |")
    return "\n".join(out) + "\n"
