"""Brings ``docs/`` and the README up to date: generated pages, the command reference, and the output shown in examples.

``make docs`` runs it; a test compares. In a Markdown file a block marked ``console`` holds commands behind ``$``. What is shown
below them is written here, when a comment above the block says which part of the output of the last command that is::

    <!-- shown: first screen; Evidence --> all before the first blank line, then the section with that heading
    <!-- shown: 1-8 -->                   lines 1 to 8; "all" for all
    <!-- not run: needs a GPU -->         nothing is run, the block stays as it is
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REPORT = re.compile(r"(<!-- report:start -->\n```\n).*?(```\n<!-- report:end -->)", re.S)
BLOCK = re.compile(r"(?:<!-- (?P<mark>shown|not run): (?P<what>[^\n]*?) -->\n)?```console\n(?P<body>.*?)```\n", re.S)
GENERATED = ("flags.md", "commands.md")
SAMPLE = "sample:vllm-saturated"


def main() -> int:
    """Write what differs, name it, and fail where a command of the docs fails."""
    for path, text in expected().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    for path in stale():
        path.unlink()
        sys.stdout.write(f"{path.relative_to(ROOT)}: removed, the rule is gone\n")
    return 0


def expected() -> dict[Path, str]:
    """Every page as it should be."""
    from kvdoctor import load_rules
    from kvdoctor.pages import documents

    out = {DOCS / name: text for name, text in documents(load_rules()).items()}
    out[DOCS / "commands.md"] = commands_page()
    for path in written():
        with workplace():
            out[path] = with_output(path.read_text(encoding="utf-8"))
    out[ROOT / "README.md"] = with_report((ROOT / "README.md").read_text(encoding="utf-8"))
    return out


def written() -> list[Path]:
    """The pages written by hand."""
    return sorted(path for path in DOCS.glob("*.md") if path.name not in GENERATED)


def stale() -> list[Path]:
    """Pages of rules that are gone."""
    from kvdoctor import load_rules
    from kvdoctor.pages import documents

    wanted = documents(load_rules())
    return [path for path in sorted((DOCS / "rules").glob("*.md")) if f"rules/{path.name}" not in wanted]


@contextmanager
def workplace() -> Iterator[None]:
    """An empty folder to run the commands of one page in, so that what one writes the next can read."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


# ---------------------------------------------------------------------------------------------- output in pages


def with_report(text: str) -> str:
    """The README with the first half of a real report."""
    lines = run(f"kvdoctor diagnose {SAMPLE}").splitlines()
    shown = "\n".join(lines[: lines.index("What it is not") - 1])
    return REPORT.sub(lambda m: f"{m[1]}{shown}\n{m[2]}", text)


def with_output(text: str) -> str:
    """A page with the output of its commands."""

    def block(match: re.Match[str]) -> str:
        commands = [line[2:] for line in match["body"].splitlines() if line.startswith("$ ")]
        if match["mark"] == "not run":
            return match[0]
        outputs = [run(command) for command in commands]
        shown = pick(outputs[-1], match["what"]) if match["mark"] == "shown" else []
        body = "\n".join([*(f"$ {command}" for command in commands), *shown])
        head = f"<!-- shown: {match['what']} -->\n" if match["mark"] else ""
        return f"{head}```console\n{body}\n```\n"

    return BLOCK.sub(block, text)


def pick(output: str, selectors: str) -> list[str]:
    """The lines asked for; ``...`` stands for those left out."""
    lines = output.splitlines()
    spans = [_span(lines, selector.strip()) for selector in selectors.split(";")]
    out: list[str] = []
    at = 0
    for start, end in spans:
        if start > at:
            out.append("...")
        out += lines[start:end]
        at = end
    return [*out, "..."] if any(lines[at:]) else out


def _span(lines: Sequence[str], selector: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"(\d+)-(\d+)", selector)
    if numbers:
        return int(numbers[1]) - 1, int(numbers[2])
    if selector == "all":
        return 0, len(lines)
    if selector == "first screen":
        return 0, next((at for at, line in enumerate(lines) if not line.strip()), len(lines))
    start = next((at for at, line in enumerate(lines) if line.startswith(selector)), None)
    if start is None:
        raise SystemExit(f"there is no section {selector!r} in the output that starts with {lines[:2]}")
    end = next((at for at in range(start, len(lines)) if not lines[at].strip()), len(lines))
    return start, end


def run(command: str) -> str:
    """What a command prints, 100 columns wide; a usage error ends the run."""
    import shlex

    from typer.testing import CliRunner

    from kvdoctor.cli.main import app

    words = shlex.split(command, comments=True)
    if words[0] != "kvdoctor":
        raise SystemExit(f"only kvdoctor itself is run in the docs, not: {command}")
    result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "100", "NO_COLOR": "1"}, prog_name="kvdoctor")
    if result.exit_code not in (0, 1, 3):
        raise SystemExit(f"exit code {result.exit_code} of: {command}\n{result.output}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


# ---------------------------------------------------------------------------------------------- command reference


def commands() -> dict[str, Any]:
    """Every command by its words, such as ``rules list``."""
    from typer.main import get_command

    from kvdoctor.cli.main import app

    out: dict[str, Any] = {}

    def walk(name: str, command: Any) -> None:
        below = getattr(command, "commands", None)
        if not below:
            out[name] = command
        for word, child in (below or {}).items():
            walk(f"{name} {word}".strip(), child)

    walk("", get_command(app))
    return out


def commands_page() -> str:
    """The reference of all commands and options."""
    out = [
        "# Commands",
        "",
        "Every command with its options. Generated from the commands themselves (`make docs`); do not edit by hand.",
        "`kvdoctor COMMAND --help` prints the same.",
    ]
    for name, command in commands().items():
        told = [param for param in command.params if not getattr(param, "hidden", False)]
        arguments = [param for param in told if param.param_type_name == "argument"]
        usage = " ".join(_usage(param) for param in arguments)
        out += ["", f"## kvdoctor {name}", "", f"`kvdoctor {name} [OPTIONS] {usage}".rstrip() + "`", ""]
        out += [_paragraph(part) + "\n" for part in (command.help or "").split("\n\n")]
        out[-1] = out[-1].rstrip("\n")
        out += ["", "| option | what it is | default |", "| --- | --- | --- |"]
        for param in told:
            words = param.human_readable_name.upper() if param in arguments else ", ".join((*param.opts, *param.secondary_opts))  # fmt: skip
            said = " ".join((getattr(param, "help", None) or "").split()).replace("|", "\\|")
            out.append(f"| `{words}` | {said} | {_default(param)} |")
    return "\n".join(out) + "\n"


def _paragraph(text: str) -> str:
    """One paragraph of a help text; what must not be wrapped (the examples) as a block."""
    if not text.lstrip().startswith("\b"):
        return " ".join(text.split())
    title, *lines = text.strip().removeprefix("\b").strip().splitlines()
    return "\n".join([title, "", "```", *(line.strip() for line in lines), "```"])


def _usage(param: Any) -> str:
    name = param.human_readable_name.upper() + ("..." if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def _default(param: Any) -> str:
    default = param.default
    if default in (None, False, "", ()) or callable(default) or not isinstance(default, (str, int, float, bool)):
        return ""
    return f"`{default}`" if default is not True else "on"


if __name__ == "__main__":
    raise SystemExit(main())
