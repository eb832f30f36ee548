"""Labelled inputs: shipped samples and re-created cases, with the question whether a report answers them right."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kvdoctor.findings import Report
from kvdoctor.pipeline import Options, diagnose
from kvdoctor.rulebook.rule import Rule, load_rules
from kvdoctor.snapshot import Snapshot, read_paths

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted(p.parent for p in (ROOT / "samples").glob("*/expect.toml"))
CASES = sorted(p.parent for p in (ROOT / "tests" / "cases").glob("*/expect.toml"))


@functools.cache
def rules() -> tuple[Rule, ...]:
    return load_rules()


def report_on(snapshot: Snapshot | Path, what_if: str = "none") -> Report:
    taken = read_paths([snapshot]) if isinstance(snapshot, Path) else snapshot
    return diagnose(taken, rules(), Options(what_if=what_if))


@dataclass(frozen=True)
class Expectation:
    verdict: str
    also_ok: tuple[str, ...]
    must_not: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> Expectation:
        data = tomllib.loads((folder / "expect.toml").read_text(encoding="utf-8"))
        return cls(data["verdict"], tuple(data.get("also_ok", ())), tuple(data.get("must_not", ())))

    def problem(self, report: Report) -> str | None:
        """What is wrong with the report, None when it is right."""
        verdict = report.main.verdict
        fired = [(f.rule, f.misdiagnosis) for f in report.main.findings if f.muted_by is None]
        said = [(verdict.rule, verdict.misdiagnosis), *fired]
        forbidden = [token for token in self.must_not if any(_matches(token, *one) for one in said)]
        if forbidden:
            return f"says {verdict.rule} (fired {[r for r, _ in fired]}), forbidden: {forbidden}"
        if not any(_matches(token, verdict.rule, verdict.misdiagnosis) for token in (self.verdict, *self.also_ok)):
            return f"says {verdict.rule}, wanted {self.verdict} or {list(self.also_ok)}"
        return None


def _matches(token: str, rule: str, misdiagnosis: int | None) -> bool:
    if len(token) == 2 and token[0] == "m" and token[1].isdigit():
        return misdiagnosis == int(token[1])
    return token == rule
