"""Cases made for verdicts and near misses that no public report gave: what they must show besides the verdict."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from corpus import CASES, report_on, rules

OWN = [folder for folder in CASES if folder.name.startswith("own-")]


def expected(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "expect.toml").read_text(encoding="utf-8"))


def test_there_are_enough_and_they_say_why() -> None:
    assert len(OWN) >= 40
    names = {rule.name for rule in rules()} | {"healthy", "undetermined", "m1", "m2", "m3", "m4", "m5"}
    for folder in OWN:
        told = expected(folder)
        assert told["fidelity"] == "made"
        assert told["because"]
        said = {told["verdict"], *told["also_ok"], *told["must_not"], *told.get("finds", ())}
        assert said <= names, (folder.name, said - names)
        assert told["verdict"] not in told["must_not"]
    assert sum("near" in expected(folder) for folder in OWN) >= 12


@pytest.mark.parametrize("folder", [f for f in OWN if "finds" in expected(f)], ids=lambda p: p.name)
def test_findings_beside_the_verdict(folder: Path) -> None:
    """A boundary of stage 8 is never the verdict: it stands beside it and silences advice."""
    fired = {verdict.rule for verdict in report_on(folder).main.findings}
    assert set(expected(folder)["finds"]) <= fired
