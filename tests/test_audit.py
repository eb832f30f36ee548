"""The audit of what the wheel brings along: what must make it fail does, and what was not looked up is never clean."""

from __future__ import annotations

import json
import runpy
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

AUDIT: dict[str, Any] = runpy.run_path(str(Path(__file__).resolve().parent.parent / ".ci" / "audit.py"))


class Found:
    """An installed distribution."""

    def __init__(self, name: str, *headers: tuple[str, str]) -> None:
        self.name, self.version, self.metadata = name, "1.0", Message()
        for key, value in headers:
            self.metadata[key] = value


MIT = Found("good", ("License-Expression", "MIT"))


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: list[Found], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setitem(AUDIT["main"].__globals__, "distributions", lambda: found)
    code = AUDIT["main"](list(arguments))
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([("Classifier", "License :: OSI Approved :: BSD License")], 0),
        ([("License", "Apache 2.0\n\nthe whole text")], 0),
        ([("License-Expression", "AGPL-3.0-only")], 1),
        ([("License-Expression", "MIT AND LGPL-2.1-or-later")], 1),
        ([("Classifier", "License :: Other/Proprietary License")], 1),
        ([], 1),
    ],
)
def test_a_licence_that_is_not_known_to_be_free_of_conditions_fails(
    headers: list[tuple[str, str]], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, capsys, [MIT, Found("asked", *headers)])[0] == code


def test_a_known_vulnerability_fails_and_one_not_looked_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    hole = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    asked: list[dict[str, object]] = [{"name": "good", "version": "1.0", "vulns": [hole]}]
    report.write_text(json.dumps({"dependencies": asked}))
    code, text = run(monkeypatch, capsys, [MIT], str(report))
    assert (code, "good 1.0: PYSEC-1, mended in 1.1" in text) == (1, True)

    report.write_text(json.dumps({"dependencies": [{"name": "good", "version": "1.0", "vulns": []}]}))
    code, text = run(monkeypatch, capsys, [MIT], str(report))
    assert (code, "looked up for 1 packages" in text, "not looked up" in text) == (0, True, False)

    report.write_text(json.dumps({"dependencies": [{"name": "good", "skip_reason": "not found"}]}))
    code, text = run(monkeypatch, capsys, [MIT], str(report))
    assert (code, "not looked up for 1 of 1" in text) == (0, True)
    assert "not looked up" in run(monkeypatch, capsys, [MIT])[1]
