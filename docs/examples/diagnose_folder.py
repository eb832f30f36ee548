"""Diagnose each folder given, print one line for each, and end with 1 when one of them has a grave finding.

python docs/examples/diagnose_folder.py samples/*
"""

from __future__ import annotations

import sys

from kvdoctor import Options, Report, Snapshot, diagnose, load_rules, read_paths
from kvdoctor.facts import Known
from kvdoctor.snapshot import SnapshotError


def line(folder: str, report: Report) -> str:
    """The verdict, and the peak of the KV pool where it is known."""
    verdict = report.main.verdict
    peak = report.main.facts.get("kv.usage_max")
    used = f"{peak.hi:.0%}" if isinstance(peak, Known) and isinstance(peak.hi, float) else "unknown"
    return f"{folder}: {verdict.severity} {verdict.rule}, KV pool at most {used}"


def main(folders: list[str]) -> int:
    rules = load_rules()
    grave = False
    for folder in folders:
        try:
            snapshot: Snapshot = read_paths([folder])
        except SnapshotError as error:
            sys.stderr.write(f"{folder}: {error}\n")
            return 2
        report = diagnose(snapshot, rules, Options(what_if="none"))
        sys.stdout.write(line(folder, report) + "\n")
        grave = grave or any(v.severity in ("critical", "high") and v.muted_by is None for v in report.main.findings)
    return 1 if grave else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
