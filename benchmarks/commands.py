"""What the commands cost: ``--help``, a diagnosis, ``export``, ``check`` of many snapshots, discovery, redaction.

Run: ``python -m benchmarks.commands``. Median CPU milliseconds of processes of their own, beside a bare ``python -c pass`` of the
same run. Modules are compiled before, as those of an installed wheel are. The diagnosis reads two pages of 31 kB of a saturated
vLLM 0.32, without its log.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.measure import SAMPLES, Row, compiled, cpu_ms, kvdoctor, peak_mb, table

HELP_GOAL = 8.0
DIAGNOSIS_GOAL_MS = 150.0
DIAGNOSIS_GOAL_MB = 45.0
PAGES = sorted((SAMPLES / "vllm-saturated").glob("*.prom"))
PROCESSES = 500


def start(env: Mapping[str, str], bare: float) -> Iterator[Row]:
    """``--help`` and ``--version`` as multiples of a bare interpreter."""
    yield Row("python -c pass", "", f"{bare:.0f} ms")
    for word in ("--help", "--version"):
        took = cpu_ms(kvdoctor(word), env)
        yield Row(f"kvdoctor {word}", f"<= {HELP_GOAL:g} x bare python", f"{took:.0f} ms, {took / bare:.1f} x", took <= HELP_GOAL * bare)  # fmt: skip


def diagnosis(env: Mapping[str, str], folder: Path, bare: float) -> Iterator[Row]:
    """Two pages, as text and as JSON, without and with the replay."""
    saved = folder / "saved"
    saved.mkdir()
    for page in (PAGES[0], PAGES[-2]):
        shutil.copy(page, saved)
    for form in ("text", "json"):
        words = ["diagnose", str(saved), "--what-if", "none", "--format", form]
        took, peak = cpu_ms(kvdoctor(*words), env), peak_mb(words, env)
        yield Row(
            f"diagnosis of two pages, {form}",
            f"<= {DIAGNOSIS_GOAL_MS:.0f} ms, <= {DIAGNOSIS_GOAL_MB:.0f} MB",
            f"{took:.0f} ms ({took / bare:.0f} x bare python), {peak:.0f} MB",
            took <= DIAGNOSIS_GOAL_MS and peak <= DIAGNOSIS_GOAL_MB,
        )
    whole = cpu_ms(kvdoctor("diagnose", str(SAMPLES / "vllm-saturated"), "--what-if", "none"), env)
    yield Row("diagnosis of seven pages and a log", "", f"{whole:.0f} ms")
    replayed = cpu_ms(kvdoctor("diagnose", str(SAMPLES / "vllm-saturated")), env, rounds=3)
    yield Row("the same with the replay", "<= 3 s more", f"{(replayed - whole) / 1000:.1f} s more", replayed - whole <= 3000)  # fmt: skip


def export(env: Mapping[str, str]) -> Iterator[Row]:
    """Alerts and dashboard of an engine."""
    for what in ("alerts", "dashboard"):
        took = cpu_ms(kvdoctor("export", what, "--engine", "vllm"), env)
        yield Row(f"export {what}", "<= 300 ms", f"{took:.0f} ms", took <= 300)


def check(env: Mapping[str, str], folder: Path) -> Iterator[Row]:
    """One run over many snapshots, and over twice as many."""
    spent = []
    for count in (100, 200):
        many = folder / f"check{count}"
        paths = []
        for number in range(count):
            one = many / f"s{number:03d}"
            one.mkdir(parents=True)
            for page in (PAGES[0], PAGES[-2]):
                shutil.copy(page, one)
            paths.append(str(one))
        spent.append(cpu_ms(kvdoctor("check", *paths, "--exit-zero"), env, rounds=3) / 1000)
    yield Row("check of 100 snapshots", "<= 10 s", f"{spent[0]:.1f} s", spent[0] <= 10)
    yield Row("check of 200 against 100", "linear", f"{spent[1] / spent[0]:.2f} x", spent[1] / spent[0] <= 2.2)


def discovery(folder: Path) -> Iterator[Row]:
    """A process table of 500, one engine among them."""
    from kvdoctor.collect.discover import discover
    from kvdoctor.engines.base import engines

    root = folder / "proc"
    for pid in range(1, PROCESSES + 1):
        home = root / str(pid)
        home.mkdir(parents=True)
        words = ["vllm", "serve", "some/model"] if pid == PROCESSES else ["/usr/sbin/daemon", "--number", str(pid)]
        (home / "cmdline").write_bytes("\0".join([*words, ""]).encode())
        cells = ["S", "1" if pid > 1 else "0", *["0"] * 17, "10000", "0", "2560", "0"]
        (home / "stat").write_text(f"{pid} (process) {' '.join(cells)}\n")
    (root / "stat").write_text("btime 1795000000\n")
    markers = {name: one.process_markers for name, one in engines().items() if one.process_markers}
    ports = {name: one.default_port for name, one in engines().items()}
    best, found = float("inf"), 0
    for _ in range(5):
        began = time.process_time()
        found = len(discover(markers, default_ports=ports, proc_root=str(root)).found)
        best = min(best, 1000 * (time.process_time() - began))
    yield Row(f"discovery among {PROCESSES} processes", "<= 300 ms", f"{best:.0f} ms, {found} found", best <= 300 and found == 1)  # fmt: skip


def redaction() -> Iterator[Row]:
    """Redaction of a snapshot with a log."""
    from kvdoctor.redact import redact
    from kvdoctor.snapshot import read_paths

    snapshot = read_paths([str(SAMPLES / "vllm-saturated")])
    size = sum(member.size for member in snapshot.members)
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        redact(snapshot, salt=b"benchmark")
        best = min(best, 1000 * (time.process_time() - began))
    yield Row(f"redaction of {size / 1e3:.0f} kB of pages and log", "", f"{best:.0f} ms")


def rows() -> Iterator[Row]:
    """All of them, each as soon as it is measured."""
    with compiled() as env, tempfile.TemporaryDirectory() as name:
        bare = cpu_ms([sys.executable, "-c", "pass"], env)
        yield from start(env, bare)
        yield from diagnosis(env, Path(name), bare)
        yield from export(env)
        yield from check(env, Path(name))
        yield from discovery(Path(name))
        yield from redaction()


if __name__ == "__main__":
    print(table(rows()))
