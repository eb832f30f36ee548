"""Small rules for the tests of the rulebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvdoctor.facts import Fact, FactSet, Known, Value
from kvdoctor.rulebook.rule import Rule, parse_rule

BODY = """
[explain]
cause = "the cause"
not_this = "not that"
[fix]
say = "do this"
[[fix.check]]
after = "an hour"
expect = "preempt.count == 0"
[confirm]
run = ["observe.victims"]
"""


def text_of(
    rule_id: str = "AB100",
    name: str = "some-rule",
    *,
    when: str = "req.waiting > 0",
    stage: int = 6,
    severity: str = "high",
    top: str = "",
    tables: str = "",
    body: str = BODY,
) -> str:
    """A complete rule file. ``top`` are further keys, ``tables`` further sections."""
    return (
        f'id = "{rule_id}"\nname = "{name}"\ntitle = "Title of {name}"\nseverity = "{severity}"\n'
        f'looks_like = "something else"\nstage = {stage}\nwhen = """\n{when}\n"""\n{top}\n{tables}\n{body}'
    )


def make(rule_id: str = "KV799", name: str = "some-rule", **parts: object) -> Rule:
    """The rule of :func:`text_of`, as a shipped one."""
    return parse_rule(text_of(rule_id, name, **parts), f"rules/{rule_id}-{name}.toml", shipped=True)  # type: ignore[arg-type]


def write(folder: Path, rule_id: str, name: str, text: str) -> Path:
    """Put a rule file into a folder."""
    path = folder / f"{rule_id}-{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def known(value: Value, span: str = "w", how: str = "measured", **more: float) -> Known:
    """A known fact."""
    return Known(value, value, how, span, "metrics.prom:7", **more)  # type: ignore[arg-type]


def facts(values: Mapping[str, Fact | Value]) -> FactSet:
    """Plain values are measured facts of the window."""
    out = FactSet()
    for name, value in values.items():
        out.set(name, known(value) if isinstance(value, (bool, int, float, str)) else value)
    return out
