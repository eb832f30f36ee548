"""The text of a comparison: the verdict first, then what moved, then what was not judged."""

from __future__ import annotations

from collections.abc import Sequence

from kvdoctor.facts import Fact
from kvdoctor.report.words import label, of_fact

_WORDS = {
    "better": "BETTER",
    "worse": "WORSE",
    "trade-off": "TRADE-OFF",
    "no-difference": "NO DIFFERENCE",
    "not-comparable": "NOT COMPARABLE",
}


def render(result: dict[str, object], facts: Sequence[tuple[str, str, Fact, Fact, str, str]]) -> str:
    """``result`` is the machine form; ``facts`` are (name, unit, before, after, judged, why)."""
    say = str(result["say"])
    for name, *_ in sorted(facts, key=lambda f: -len(f[0])):
        say = say.replace(name, label(name))
    lines = [f"{_WORDS[str(result['verdict'])]}  {say}", ""]
    if facts:
        rows = [("", "fact", "before", "after", "")]
        apart = result["verdict"] == "not-comparable"
        rows += [
            ("-" if apart else judged, label(name), of_fact(a, unit), of_fact(b, unit), "" if apart else why)
            for name, unit, a, b, judged, why in facts
        ]
        widths = [max(len(r[i]) for r in rows) for i in range(4)]
        for judged, name, before, after, why in rows:
            lines.append(
                f"  {judged:{widths[0]}}  {name:{widths[1]}}  {before:>{widths[2]}}  {after:>{widths[3]}}  {why}".rstrip()
            )
        lines.append("")
    findings = result["findings"]
    assert isinstance(findings, dict)
    for key, words in (("gone", "Gone"), ("stayed", "Stayed"), ("new", "New")):
        if findings[key]:
            lines.append(f"{words}: {', '.join(findings[key])}")
    # why two cannot be compared stands in the first line
    lines += [f"Mind: {item}" for item in result["doubts"]]  # type: ignore[attr-defined]
    return "\n".join(lines).rstrip() + "\n"
