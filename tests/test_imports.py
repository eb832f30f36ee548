"""The house's table of who may import whom, walked over every module (imports inside functions count too)."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kvdoctor"

NOUNS = {"facts", "policy", "findings", "snapshot"}
ANY = {"*"}
EVERYBODY = {"frozen"}  # the decorator that makes a noun: as good as the standard library's
ROOMS: dict[str, set[str]] = {
    "frozen": set(),
    "facts": set(),
    "policy": set(),
    "findings": {"facts"},
    "snapshot": set(),
    "kvsize": set(),
    "collect": {"snapshot"},
    "parse": {"snapshot", "facts"},
    "engines": {"parse", "facts", "policy"},
    "readings": {"parse", "engines", "findings"},
    "normalise": {"snapshot", "parse", "engines", "readings", "findings"},
    "redact": {"snapshot", "parse", "engines", "kvsize"},
    "derive": {"facts", "findings", "engines", "parse", "readings", "kvsize"},
    "rulebook": {"facts", "policy", "findings"},
    "sim": {"policy", "kvsize"},
    "whatif": {"facts", "findings", "policy", "engines", "sim"},
    "advise": {"findings", "policy", "facts", "engines"},
    "pipeline": ANY,
    "compare": ANY,
    "export": {"facts", "engines", "rulebook", "findings"},
    "demo": {"sim", "policy"},
    "probe": {"facts"},
    "report": {"findings", "facts", "policy", "rulebook"},
    "watch": {"pipeline", "findings", "facts", "report", "snapshot", "rulebook"},
    "pages": {"engines", "facts", "parse", "report", "rulebook"},
    "plugins": {"policy"},
    "cli": ANY,
}
NEVER = {
    "pipeline": {"collect", "probe", "report", "watch", "cli", "plugins"},
    "compare": {"collect", "probe", "report", "watch", "cli", "plugins"},
}
INPUT_OUTPUT = {"collect", "probe", "cli", "watch", "demo", "plugins"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "kvdoctor" else [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "kvdoctor" and len(parts) > 1 and parts[1] != "__version__":
                found.add(parts[1])
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    assert here in ROOMS, f"{here} is a new room: put it into the table"
    others = imported(path) - {here} - EVERYBODY
    if ROOMS[here] == ANY:
        assert not others & NEVER.get(here, set())
    else:
        assert others <= ROOMS[here], f"{here} may not import {sorted(others - ROOMS[here])}"
    if here != "cli":
        assert "cli" not in others


def test_the_rule_engine_never_names_an_engine() -> None:
    words = ("vllm", "sglang", "llama", "tensorrt", "lmdeploy")
    for path in (PACKAGE / "rulebook").glob("*.py"):
        code = path.read_text(encoding="utf-8").lower()
        assert not [w for w in words if w in code], path.name


def test_every_command_of_the_overview_loads_and_has_a_line_that_fits() -> None:
    from typer.main import get_command

    from kvdoctor.cli.main import GROUPS, app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    purposes = {name: purpose for names in GROUPS.values() for name, purpose in names.items()}
    assert set(commands) == set(purposes)
    for name, purpose in purposes.items():
        assert commands[name].name == name
        assert commands[name].help
        assert len(purpose) <= 80 - len("  diagnose  ") - 2


HEAVY = ("pandas", "numpy", "requests", "textual", "torch", "pynvml", "numba", "pydantic", "rich.console")


@pytest.mark.parametrize("argv", [["--help"], ["--version"]])
def test_help_loads_nothing_heavy(argv: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['kvdoctor', *{argv!r}]\n"
        "from kvdoctor.cli import run\ntry:\n    run()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


# what a plain diagnosis of metrics pages has no use for: parsers of other files, the simulator, the console of rich
UNUSED = (
    "pandas",
    "numpy",
    "requests",
    "textual",
    "torch",
    "numba",
    "rich.console",
    "tarfile",
    "kvdoctor.sim",
    "kvdoctor.whatif",
    "kvdoctor.parse.gpu",
    "kvdoctor.parse.kernel",
    "kvdoctor.parse.oom",
    "kvdoctor.parse.torch_snapshot",
    "kvdoctor.parse.benchcsv",
)


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_diagnosis_loads_only_what_it_needs(format: str, tmp_path: Path) -> None:
    for page in (PACKAGE.parent / "samples" / "vllm-healthy").glob("metrics_*.prom"):
        shutil.copy(page, tmp_path)
    code = (
        f"import sys; sys.argv = ['kvdoctor', 'diagnose', {str(tmp_path)!r}, '--what-if', 'none', '--format', {format!r}]\n"
        "from kvdoctor.cli import run\ntry:\n    run()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {UNUSED!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.returncode == 0
    assert "vllm" in done.stdout.lower()
    assert done.stderr.strip() == "[]"


def test_a_diagnosis_that_replays_needs_no_table_library() -> None:
    code = (
        "import sys; sys.argv = ['kvdoctor', 'diagnose', 'sample:vllm-healthy', '--format', 'json']\n"
        "from kvdoctor.cli import run\ntry:\n    run()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('pandas', 'numpy', 'requests', 'textual', 'torch', 'numba') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
