"""Tells what is really wrong when an LLM inference server runs out of GPU memory.

The stable names for use from Python; each is loaded when it is first asked for::

    from kvdoctor import diagnose, load_rules, read_paths

    report = diagnose(read_paths(["captured/"]), load_rules())
    print(report.main.verdict.rule, report.main.verdict.title)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvdoctor.findings import Report
    from kvdoctor.pipeline import Options, diagnose
    from kvdoctor.rulebook.rule import load_rules
    from kvdoctor.snapshot import Snapshot, read_paths

__version__ = "0.1.0"
__all__ = ["Options", "Report", "Snapshot", "diagnose", "load_rules", "read_paths"]

_HOMES = {
    "Options": "kvdoctor.pipeline",
    "Report": "kvdoctor.findings",
    "Snapshot": "kvdoctor.snapshot",
    "diagnose": "kvdoctor.pipeline",
    "load_rules": "kvdoctor.rulebook.rule",
    "read_paths": "kvdoctor.snapshot",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'kvdoctor' has no attribute {name!r}")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
