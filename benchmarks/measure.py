"""What the benchmarks share: rows of the table, and what a command costs in a process of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvdoctor.frozen import frozen

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples"

# the highest memory of the process itself; what wait4 tells may be that of the process that started it
_PEAK = """
import re, sys
sys.argv = sys.argv[:1] + sys.argv[2:]
from kvdoctor.cli import run
try:
    run()
except SystemExit:
    pass
with open({place!r}, "w") as out:
    out.write(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""


@frozen
class Row:
    """One row: what was measured, the goal, the figure in words, and whether the goal was met (None: no goal)."""

    part: str
    goal: str
    measured: str
    met: bool | None = None


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    words = {True: "yes", False: "no", None: ""}
    lines = ["| part | goal | measured | met |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.part} | {row.goal} | {row.measured} | {words[row.met]} |" for row in rows]
    return "\n".join(lines)


@contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """An environment in which modules are compiled once, as those of an installed wheel are; ends with its folder."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("KVDOCTOR_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        yield {**kept, "PYTHONPYCACHEPREFIX": folder, "COLUMNS": "100"}


def kvdoctor(*words: str) -> list[str]:
    """The command line of kvdoctor with this interpreter."""
    return [sys.executable, "-c", "from kvdoctor.cli import run; run()", *words]


def cpu_ms(argv: Sequence[str], env: Mapping[str, str], rounds: int = 9) -> float:
    """Median of the CPU milliseconds (user and system) of a command's process; one run goes before."""
    spent = []
    for turn in range(rounds + 1):
        process = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1, 3):
            raise SystemExit(f"exit code {process.returncode} of: {' '.join(argv[2:])}")
        if turn:
            spent.append(1000 * (usage.ru_utime + usage.ru_stime))
    return statistics.median(spent)


def peak_mb(words: Sequence[str], env: Mapping[str, str]) -> float:
    """Highest resident memory of one run of kvdoctor, MB (10^6 bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "peak"))
        code = _PEAK.format(place=place)
        subprocess.run(
            [sys.executable, "-c", code, "kvdoctor", *words], env=env, cwd=ROOT, stdout=subprocess.DEVNULL, check=True
        )
        return int(Path(place).read_text()) * 1024 / 1e6
