"""What lint found, as text, JSON, SARIF or GitHub annotations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from kvdoctor.export.lint import CHECKS, LintResult
from kvdoctor.findings import SEVERITIES, Severity

FORMATS = ("text", "json", "sarif", "github")
UNREADABLE = "unreadable"
_SARIF_LEVEL: Mapping[str, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "note",
    "info": "note",
}
_GITHUB_LEVEL: Mapping[str, str] = {**_SARIF_LEVEL, "low": "notice", "info": "notice"}


def render(result: LintResult, form: str, *, version: str) -> str:
    """The result in one of :data:`FORMATS`; ``version`` is kvdoctor's own. Raises ``KeyError`` for another format."""
    return {"text": _text, "json": _json, "sarif": _sarif, "github": _github}[form](result, version)


def exit_code(result: LintResult, fail_on: str) -> int:
    """2 when a file could not be read, 1 when something is at or above ``fail_on`` (a severity, or ``never``), else 0."""
    if result.unreadable:
        return 2
    if fail_on == "never":
        return 0
    bar = SEVERITIES.index(_severity(fail_on))
    return int(any(SEVERITIES.index(problem.severity) <= bar for problem in result.problems))


def _severity(word: str) -> Severity:
    for severity in SEVERITIES:
        if severity == word:
            return severity
    raise ValueError(f"{word!r} is none of {', '.join(SEVERITIES)}, never")


def _text(result: LintResult, version: str) -> str:
    lines = [f"{item.file}:{item.line}: {item.reason}" for item in result.unreadable]
    lines += [problem.text() for problem in result.problems]
    lines += [f"note: {note}" for note in result.notes]
    counts = Counter(problem.severity for problem in result.problems)
    told = ", ".join(f"{counts[s]} {s}" for s in SEVERITIES if counts[s])
    lines.append(f"{result.expressions} expressions: {told or 'no problem'}")
    return "\n".join(lines) + "\n"


def _json(result: LintResult, version: str) -> str:
    document = {
        "schema": "kvdoctor.lint/1",
        "tool": {"name": "kvdoctor", "version": version},
        "expressions": result.expressions,
        "problems": [
            {
                "file": p.file,
                "line": p.line,
                "check": p.check,
                "severity": p.severity,
                "message": p.message,
                "instead": p.instead or None,
                "where": p.where or None,
            }
            for p in result.problems
        ],
        "unreadable": [{"file": u.file, "line": u.line, "reason": u.reason} for u in result.unreadable],
        "notes": list(result.notes),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _location(file: str, line: int) -> dict[str, object]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": file.replace("\\", "/")},
            "region": {"startLine": max(line, 1)},
        }
    }


def _sarif(result: LintResult, version: str) -> str:
    rules: list[dict[str, object]] = [
        {
            "id": check,
            "shortDescription": {"text": text},
            "defaultConfiguration": {"level": _SARIF_LEVEL[severity]},
        }
        for check, (severity, text) in CHECKS.items()
    ]
    results: list[dict[str, object]] = [
        {
            "ruleId": p.check,
            "level": _SARIF_LEVEL[p.severity],
            "message": {"text": p.message + (f"; use {p.instead}" if p.instead else "")},
            "locations": [_location(p.file, p.line)],
        }
        for p in result.problems
    ]
    notifications = [
        {"level": "error", "message": {"text": u.reason}, "locations": [_location(u.file, u.line)]}
        for u in result.unreadable
    ]
    run = {
        "tool": {"driver": {"name": "kvdoctor", "version": version, "rules": rules}},
        "results": results,
        "invocations": [{"executionSuccessful": not result.unreadable, "toolExecutionNotifications": notifications}],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _github(result: LintResult, version: str) -> str:
    lines = [_annotation("error", u.file, u.line, UNREADABLE, u.reason) for u in result.unreadable]
    lines += [
        _annotation(
            _GITHUB_LEVEL[p.severity], p.file, p.line, p.check, p.message + (f"; use {p.instead}" if p.instead else "")
        )
        for p in result.problems
    ]
    return "".join(line + "\n" for line in lines)


def _annotation(level: str, file: str, line: int, title: str, message: str) -> str:
    return f"::{level} file={_property(file)},line={line},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
