"""Reports for CI: several snapshots, one result each. A rule that could not be decided is skipped, never passed.

Formats: JUnit XML, GitHub annotations, Markdown, Prometheus textfile. All are plain and stably ordered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from kvdoctor.facts import Known
from kvdoctor.findings import SEVERITIES, Report, Verdict
from kvdoctor.frozen import frozen
from kvdoctor.report.doubts import gap_words, held
from kvdoctor.report.words import clean, comparison, condition, label


@frozen
class Checked:
    """One snapshot's result: its name, its report (None: it could not be read), exit code, accepted findings."""

    name: str
    report: Report | None
    code: int
    error: str = ""
    accepted: tuple[tuple[str, str], ...] = ()


_MEANING = {0: "ok", 1: "finding", 2: "error", 3: "could not tell"}


def _fired(item: Checked) -> list[tuple[str, Verdict]]:
    if item.report is None:
        return []
    out = [(t.name, v) for t in item.report.targets for v in t.findings if v.muted_by is None]
    return sorted(out, key=lambda x: (SEVERITIES.index(x[1].severity), x[0], x[1].id))


def _undecided(item: Checked) -> list[tuple[str, Verdict]]:
    if item.report is None:
        return []
    out = [
        (t.name, v) for t in item.report.targets for v in t.undecided if v.muted_by is None and v.state == "suspected"
    ]
    return sorted(out, key=lambda x: (SEVERITIES.index(x[1].severity), x[0], x[1].id))


def _seen(verdict: Verdict) -> str:
    parts = []
    for seen in held(verdict)[:4]:
        where = f" ({clean(seen.source)})" if seen.source else ""
        parts.append(f"{label(seen.fact)} {comparison(seen)[0]}{where}")
    return "; ".join(parts)


def one_line(item: Checked) -> str:
    """``name: verdict`` for the text form."""
    if item.report is None:
        return f"{item.name}: error: {item.error}"
    verdict = item.report.main.verdict
    extra = f" [{len(item.accepted)} accepted by the baseline]" if item.accepted else ""
    return f"{item.name}: {_MEANING[item.code]}: {verdict.rule} ({verdict.severity}) {clean(verdict.title)}{extra}"


def text(items: Sequence[Checked]) -> str:
    """One line per snapshot, its findings below, and what could not be decided."""
    lines: list[str] = []
    for item in items:
        lines.append(one_line(item))
        for target, verdict in _fired(item):
            lines.append(
                f"    {verdict.severity:8} {verdict.id:6} {verdict.rule}  {clean(verdict.title)}  [{clean(target)}]"
            )
        for target, verdict in _undecided(item):
            lines.append(
                f"    unknown  {verdict.id:6} {verdict.rule}  would fire if {condition(verdict.would_fire_if)}  [{clean(target)}]"
            )
    return "\n".join(lines) + "\n"


def junit(items: Sequence[Checked]) -> str:
    """JUnit XML: a suite per snapshot, a case per rule; suspected rules are ``<skipped>``, an unreadable snapshot an ``<error>``."""
    root = ElementTree.Element("testsuites", name="kvdoctor")
    for item in items:
        suite = ElementTree.SubElement(root, "testsuite", name=clean(item.name))
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        if item.report is None:
            case = ElementTree.SubElement(suite, "testcase", classname="kvdoctor", name="read the snapshot")
            ElementTree.SubElement(case, "error", message=clean(item.error))
            counts["tests"] = counts["errors"] = 1
        else:
            accepted = {rule for rule, _ in item.accepted}
            for target in sorted(item.report.targets, key=lambda t: t.name):
                for verdict in sorted((*target.findings, *target.undecided, *target.silent), key=lambda v: v.id):
                    counts["tests"] += 1
                    case = ElementTree.SubElement(
                        suite, "testcase", classname=clean(target.name), name=f"{verdict.id} {verdict.rule}"
                    )
                    if (
                        verdict.state == "fires"
                        and verdict.muted_by is None
                        and verdict.rule not in accepted
                        and verdict.severity != "info"
                    ):
                        counts["failures"] += 1
                        failure = ElementTree.SubElement(
                            case, "failure", type=verdict.severity, message=clean(verdict.title)
                        )
                        failure.text = "\n".join(
                            clean(line) for line in (verdict.cause, _seen(verdict), verdict.say) if line
                        )
                    elif verdict.state in ("suspected", "blind", "not_applicable") or verdict.muted_by is not None:
                        counts["skipped"] += 1
                        ElementTree.SubElement(case, "skipped", message=clean(_why_skipped(verdict)))
            if item.code == 3:
                counts["tests"] += 1
                counts["skipped"] += 1
                case = ElementTree.SubElement(suite, "testcase", classname="kvdoctor", name="verdict")
                ElementTree.SubElement(case, "skipped", message=clean(f"cannot tell: {item.report.main.verdict.say}"))
        for key, value in counts.items():
            suite.set(key, str(value))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(s.get(key, "0")) for s in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _why_skipped(verdict: Verdict) -> str:
    if verdict.muted_by is not None:
        return f"explained by {verdict.muted_by}"
    if verdict.state == "not_applicable":
        return "does not apply here"
    missing = "; ".join(gap_words(m.fact, m.reason) for m in verdict.missing[:3])
    return f"cannot tell: {missing or condition(verdict.would_fire_if)}"


def _escape(value: str, *, prop: bool = False) -> str:
    """GitHub's workflow-command escapes."""
    value = value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return value.replace(":", "%3A").replace(",", "%2C") if prop else value


_LEVEL = {"critical": "error", "high": "error", "medium": "warning", "low": "notice", "info": "notice"}
_PLACE = re.compile(r"([^\s:]+):(\d+)(?: |$)")


def github(items: Sequence[Checked]) -> str:
    """GitHub annotations: findings by severity, suspected rules as notices, an unreadable snapshot as an error."""
    lines: list[str] = []
    for item in items:
        if item.report is None:
            lines.append(
                f"::error title={_escape('kvdoctor: ' + clean(item.name), prop=True)}::{_escape(clean(item.error))}"
            )
            continue
        for _, verdict in _fired(item):
            place = next((m for e in verdict.evidence if e.outcome and (m := _PLACE.match(e.source))), None)
            where = f"file={_escape(clean(place.group(1)), prop=True)},line={place.group(2)}," if place else ""
            title = _escape(f"{verdict.id} {verdict.rule} in {clean(item.name)}", prop=True)
            body = _escape(clean(f"{verdict.title}. {_seen(verdict)}"))
            lines.append(f"::{_LEVEL[verdict.severity]} {where}title={title}::{body}")
        for _, verdict in _undecided(item):
            title = _escape(f"{verdict.id} {verdict.rule} could not be decided in {clean(item.name)}", prop=True)
            lines.append(f"::notice title={title}::{_escape('would fire if ' + condition(verdict.would_fire_if))}")
    return "\n".join(lines) + ("\n" if lines else "")


def _cell(value: str) -> str:
    return clean(value).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def markdown(items: Sequence[Checked]) -> str:
    """A table of snapshots and, below, the findings of each."""
    lines = ["| snapshot | result | verdict | severity |", "| --- | --- | --- | --- |"]
    for item in items:
        if item.report is None:
            lines.append(f"| {_cell(item.name)} | error | {_cell(item.error)} | |")
            continue
        verdict = item.report.main.verdict
        lines.append(
            f"| {_cell(item.name)} | {_MEANING[item.code]} | {verdict.rule}: {_cell(verdict.title)} | {verdict.severity} |"
        )
    for item in items:
        found, doubts = _fired(item), _undecided(item)
        if not found and not doubts:
            continue
        lines += ["", f"### {_cell(item.name)}", ""]
        for target, verdict in found:
            lines.append(
                f"- **{verdict.severity}** {verdict.id} {verdict.rule} ({_cell(target)}): {_cell(verdict.title)}. {_cell(_seen(verdict))}"
            )
        for _, verdict in doubts:
            lines.append(
                f"- unknown: {verdict.id} {verdict.rule} would fire if {_cell(condition(verdict.would_fire_if))}"
            )
        for rule, why in item.accepted:
            lines.append(f"- accepted: {rule} ({_cell(why)})")
    return "\n".join(lines) + "\n"


def _label_value(value: str) -> str:
    return clean(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def textfile(items: Sequence[Checked], now: float) -> str:
    """Prometheus text for a node exporter: findings, undecided rules, recompute share, when it ran."""
    families: list[tuple[str, str, list[str]]] = [
        ("kvdoctor_finding_active", "1 for each rule that fired and is not muted.", []),
        ("kvdoctor_rule_unknown", "1 for each rule that is suspected but could not be decided.", []),
        ("kvdoctor_exit_code", "0 nothing at the level, 1 a finding, 2 error, 3 could not tell.", []),
        (
            "kvdoctor_recompute_share_ratio",
            "Share of computed tokens that was computed again; absent when unknown.",
            [],
        ),
        ("kvdoctor_kv_usage_max_ratio", "Largest share of the KV pool in use; absent when unknown.", []),
        ("kvdoctor_last_run_timestamp_seconds", "When kvdoctor last ran.", []),
    ]
    rows = {name: out for name, _, out in families}
    for item in items:
        snapshot = f'snapshot="{_label_value(item.name)}"'
        rows["kvdoctor_exit_code"].append(f"kvdoctor_exit_code{{{snapshot}}} {item.code}")
        seen: set[str] = set()
        for name, pairs in (("kvdoctor_finding_active", _fired(item)), ("kvdoctor_rule_unknown", _undecided(item))):
            for target, verdict in pairs:
                row = f'{name}{{{snapshot},target="{_label_value(target)}",rule="{verdict.rule}",severity="{verdict.severity}"}} 1'
                if row not in seen:
                    seen.add(row)
                    rows[name].append(row)
        if item.report is not None:
            for fact, metric in (
                ("recompute.token_share", "kvdoctor_recompute_share_ratio"),
                ("kv.usage_max", "kvdoctor_kv_usage_max_ratio"),
            ):
                for server in item.report.targets:
                    known = server.facts.get(fact)
                    if isinstance(known, Known) and known.exact and not isinstance(known.hi, str):
                        rows[metric].append(
                            f'{metric}{{{snapshot},target="{_label_value(server.name)}"}} {float(known.hi)!r}'
                        )
    rows["kvdoctor_last_run_timestamp_seconds"].append(f"kvdoctor_last_run_timestamp_seconds {now:.0f}")
    out: list[str] = []
    for name, help_text, lines in families:
        if lines:
            out += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *sorted(lines)]
    return "\n".join(out) + "\n"
