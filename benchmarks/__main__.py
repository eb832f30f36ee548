"""All benchmarks that need nothing but this machine, as one table.

Run: ``python -m benchmarks [NAME ...]`` (some minutes; names: commands exposition serverlog rules torch_snapshot sim_speed
sim_fidelity watch). Rows are printed as they are measured. README.md in this folder says how to read them.
"""

from __future__ import annotations

import importlib
import platform
import sys

from benchmarks.measure import table

PARTS = ("commands", "exposition", "serverlog", "rules", "torch_snapshot", "sim_speed", "sim_fidelity", "watch")


def main(names: list[str]) -> int:
    """Print the table; 1 when a goal was missed."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise SystemExit(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    print(f"Python {platform.python_version()}, {platform.machine()}\n")
    print(table(()))
    missed = 0
    for name in names or PARTS:
        for row in importlib.import_module(f"benchmarks.{name}").rows():
            print(table((row,)).splitlines()[-1], flush=True)
            missed += row.met is False
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
