"""What the installed wheel brings along: name, version and licence of every distribution; run by the Python of that venv.

    python .ci/audit.py [REPORT]

Fails on a licence that is not known to allow use in any setting. REPORT is the output of ``pip-audit --format json``: known
vulnerabilities fail as well; packages that could not be looked up are named, never counted as clean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PERMISSIVE = ("mit", "bsd", "apache", "isc", "psf", "python software foundation", "mpl", "mozilla")
TOOLS = ("pip", "setuptools", "kvdoctor")


def licence(found: Distribution) -> str:
    """The licence a distribution states, by expression, classifier or text; '' when it states none."""
    told = found.metadata
    classifiers = [c.rsplit(" :: ", 1)[1] for c in told.get_all("Classifier") or () if c.startswith("License ::")]
    return str(told.get("License-Expression") or ", ".join(classifiers) or (told.get("License") or "").split("\n")[0])


def vulnerable(report: Any) -> Iterator[str]:
    """One line for each known vulnerability."""
    for package in report["dependencies"]:
        for hole in package.get("vulns", ()):
            fixed = ", ".join(hole.get("fix_versions", ())) or "no version yet"
            yield f"{package['name']} {package['version']}: {hole['id']}, mended in {fixed}"


def main(arguments: list[str]) -> int:
    """Print the table; 1 when something has to be looked at."""
    bad = []
    for found in sorted(distributions(), key=lambda d: d.name.lower()):
        if found.name.lower() in TOOLS:
            continue
        words = licence(found)
        print(f"{found.name} {found.version}: {words or 'states no licence'}")
        if "gpl" in words.lower() or not any(known in words.lower() for known in PERMISSIVE):
            bad.append(f"{found.name} {found.version}: look at its licence ({words or 'none stated'})")
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8")) if arguments else {"dependencies": []}
    bad.extend(vulnerable(report))
    unseen = [package["name"] for package in report["dependencies"] if "skip_reason" in package]
    if not arguments or unseen:
        which = (
            f"not looked up for {len(unseen)} of {len(report['dependencies'])} packages" if unseen else "not looked up"
        )
        print(f"known vulnerabilities: {which} (no vulnerability service can be reached from here)")
    else:
        print(f"known vulnerabilities: looked up for {len(report['dependencies'])} packages")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
