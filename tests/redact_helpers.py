"""What two reports must have in common when one is of the redacted snapshot: everything but texts, names and sources."""

from __future__ import annotations

import io
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from kvdoctor.facts import Fact, Unknown
from kvdoctor.findings import Report, Verdict
from kvdoctor.pipeline import Options, diagnose
from kvdoctor.redact import redact
from kvdoctor.rulebook.rule import Rule, load_rules
from kvdoctor.snapshot import Snapshot, read_archive, write_archive

SAMPLES = Path(__file__).resolve().parent.parent / "samples"


@cache
def rules() -> tuple[Rule, ...]:
    return load_rules(())


def _fact(fact: Fact) -> object:
    if isinstance(fact, Unknown):
        return "unknown"
    # gpu numbers pass through decimal text
    ends = tuple(float(f"{v:.9g}") if isinstance(v, float) else v for v in (fact.lo, fact.hi))
    return (*ends, fact.how, fact.span, fact.events, fact.requests)


def _verdicts(found: tuple[Verdict, ...]) -> list[tuple[object, ...]]:
    return [(v.rule, v.state, v.severity, v.confidence, v.muted_by) for v in found]


def essence(report: Report) -> dict[str, object]:
    """Verdicts, findings, states and fact values of every target, in order."""
    return {
        "usable": report.usable,
        "main": report.main.verdict.rule,
        "targets": [
            {
                "engine": t.engine,
                "verdict": _verdicts((t.verdict,)),
                "findings": _verdicts(t.findings),
                "undecided": _verdicts(t.undecided),
                "silent": _verdicts(t.silent),
                "facts": {name: _fact(fact) for name, fact in t.facts.items()},
                "ranks": len(t.ranks),
            }
            for t in report.targets
        ],
    }


def judged(snapshot: Snapshot) -> dict[str, object]:
    return essence(diagnose(snapshot, rules(), Options()))


def archived(snapshot: Snapshot, *, salt: bytes = b"0" * 32, include_raw_logs: bool = False) -> tuple[Snapshot, bytes]:
    """The redacted snapshot as it is read back, and everything that stands in the archive, unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.tar.gz"
        write_archive(redact(snapshot, salt=salt, include_raw_logs=include_raw_logs), path, "test")
        data = path.read_bytes()
        back = read_archive(path)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        everything = b"\n".join(
            info.name.encode() + b"\n" + (stream.read() if (stream := archive.extractfile(info)) else b"")
            for info in archive
        )
    return back, everything
