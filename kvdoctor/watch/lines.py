"""The watch off a terminal: one JSON object a line, the report's shape."""

from __future__ import annotations

import json
from typing import Any

from kvdoctor.findings import Report
from kvdoctor.report.machine import to_dict


def line(report: Report, tool_version: str) -> str:
    """``report`` on one line, with its line end. What is undecided is named; its evidence and hints are left out."""
    document = to_dict(report, tool_version)
    for part in (document, *document["targets"]):
        part["undecided"] = [_brief(entry) for entry in part["undecided"]]
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _brief(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "holds": [], "missing": []}
