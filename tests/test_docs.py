"""The docs are true: generated pages are up to date, examples are real, every command and option is there and none is made up."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvdoctor.pages import explain, write_docs
from kvdoctor.rulebook.baseline import read_baseline
from kvdoctor.rulebook.config import _ENV, load_config
from kvdoctor.rulebook.lint import lint
from kvdoctor.rulebook.rule import load_rules

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@cache
def refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh_docs", DOCS / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def commands() -> dict[str, Any]:
    return refresh().commands()  # type: ignore[no-any-return]


@cache
def options(name: str) -> frozenset[str]:
    found = {word for param in commands()[name].params for word in (*param.opts, *param.secondary_opts) if word[0] == "-"}  # fmt: skip
    return frozenset(found | {"--help", "-h"})


WRITTEN = sorted([*(p for p in DOCS.glob("*.md") if p.name not in ("flags.md", "commands.md")), ROOT / "README.md"])
ids = [path.name if path.parent == DOCS else f"../{path.name}" for path in WRITTEN]


# ---------------------------------------------------------------------------------------------- up to date


def test_generated_pages_are_what_the_generator_writes() -> None:
    made = {path.name: path for path in (DOCS / "rules").glob("*.md")}
    assert refresh().stale() == []
    from kvdoctor.pages import documents

    for name, text in documents(load_rules()).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: run make docs"
    assert len(made) == len(load_rules()) + 1
    assert (DOCS / "commands.md").read_text(encoding="utf-8") == refresh().commands_page(), "run make docs"


@pytest.mark.parametrize("path", WRITTEN, ids=ids)
def test_examples_show_what_the_commands_print(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert refresh().with_output(text) == text, "run make docs"


def test_the_readme_shows_a_real_report() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- report:start -->") == 1
    assert refresh().with_report(text) == text, "run make docs"


def test_write_docs_repairs_a_folder(tmp_path: Path) -> None:
    rules = load_rules()
    assert len(write_docs(tmp_path, rules)) == len(rules) + 2
    assert write_docs(tmp_path, rules) == []
    (tmp_path / "rules" / "KV999-gone.md").write_text("x", encoding="utf-8")
    (tmp_path / "flags.md").write_text("x", encoding="utf-8")
    assert [p.name for p in write_docs(tmp_path, rules)] == ["flags.md", "KV999-gone.md"]
    assert not (tmp_path / "rules" / "KV999-gone.md").exists()


def test_a_wrong_example_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = "<!-- shown: all -->\n```console\n$ kvdoctor --version\nkvdoctor 0.0.0\n```\n"
    assert "0.0.0" not in refresh().with_output(block)
    with pytest.raises(SystemExit, match="exit code 2"):
        refresh().with_output("```console\n$ kvdoctor diagnose --no-such-option\n```\n")
    kept = block.replace("shown: all", "not run: for a reason")
    assert refresh().with_output(kept) == kept
    assert refresh().pick("a\nb\n\nHead x\n1\n\nc\n", "1-1; Head") == ["a", "...", "Head x", "1", "..."]


# ---------------------------------------------------------------------------------------------- complete and not made up


def mentions(text: str) -> list[list[str]]:
    """Words behind each ``kvdoctor`` in code: in backticks, or on a line of a code block."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside:
            found += re.findall(r"^(?:\$ )?kvdoctor (.+)$", line)
        else:
            found += re.findall(r"`kvdoctor ([^`]+)`", line)
    return [shlex.split(words.replace("\\|", "|"), comments=True) for words in found]


@pytest.mark.parametrize("path", WRITTEN, ids=ids)
def test_no_command_or_option_is_made_up(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for words in mentions(text):
        first = words[0]
        if first.isupper() or first in ("--version", "--help"):
            continue
        names = [f"{first} {one}" for one in words[1].split("|")] if len(words) > 1 else [first]
        names = [name if name in commands() else first for name in names]
        for name in names:
            assert name in commands(), f"there is no kvdoctor {name}"
            used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert used <= options(name), f"{' '.join(words)}: {used - options(name)}"


def test_every_command_is_described() -> None:
    told = {" ".join(words[:2]) for path in WRITTEN if path.parent == DOCS for words in mentions(path.read_text())}
    for name in commands():
        words = name.split()
        assert any(one.split()[: len(words)] == words for one in told), name
    reference = (DOCS / "commands.md").read_text(encoding="utf-8")
    for name in commands():
        part = reference.split(f"## kvdoctor {name}\n")[1].split("\n## ")[0]
        for word in options(name) - {"--help", "-h"}:
            assert re.search(rf"[` ]{re.escape(word)}[`,]", part), (name, word)


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    pages = [*DOCS.glob("*.md"), *(DOCS / "rules").glob("*.md"), ROOT / "README.md"]
    reached = {DOCS / "README.md"}
    for path in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if target.startswith("http"):
                continue
            assert (path.parent / target).is_file(), f"{path.name}: {target}"
            reached.add((path.parent / target).resolve())
    assert {p.resolve() for p in pages if p.parent != ROOT} <= reached


def test_commands_of_the_docs_are_run_or_say_why_not() -> None:
    for path in WRITTEN:
        text = path.read_text(encoding="utf-8")
        for match in refresh().BLOCK.finditer(text):
            assert match["mark"] != "not run" or match["what"].strip(), path.name
            assert match["body"].startswith("$ kvdoctor "), path.name


def test_names_in_examples_of_explain_are_known() -> None:
    rules = load_rules()
    for path in WRITTEN:
        for words in mentions(path.read_text(encoding="utf-8")):
            if words[0] == "explain" and words[1:] and not words[1].isupper():
                assert explain(words[1], rules) is not None, words


# ---------------------------------------------------------------------------------------------- what can be tried


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)


def test_the_rule_of_the_docs_passes_the_lint(tmp_path: Path) -> None:
    settings, rule = blocks("writing-rules.md", "toml")
    (tmp_path / "our-rules").mkdir()
    path = tmp_path / "our-rules" / "OPS001-long-queue.toml"
    path.write_text(rule, encoding="utf-8")
    assert lint([path]) == []
    (tmp_path / "kvdoctor.toml").write_text(settings, encoding="utf-8")
    loaded = load_config(tmp_path, None, {}, (), date(2026, 1, 1))
    assert [mute.rule for mute in loaded.mutes] == ["KV809"]
    assert loaded.changes[0].value == 0.4
    assert "OPS001" in {r.id for r in load_rules(loaded.rule_dirs)}


def test_the_settings_variables_are_named() -> None:
    text = (DOCS / "writing-rules.md").read_text(encoding="utf-8")
    assert [name for name in _ENV if name not in text] == []


def test_the_baseline_of_the_docs_is_read() -> None:
    (text,) = blocks("ci.md", "toml")
    tomllib.loads(text)
    accepted = read_baseline(text, "accepted.toml", load_rules(), date(2026, 1, 1))
    assert accepted.for_snapshot("nightly-7.tar.gz") == (("admission-thrash", "known, ticket 4711"),)


def test_the_example_program_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    folders = [str(ROOT / "samples" / name) for name in ("vllm-healthy", "vllm-fragmentation")]
    done = subprocess.run([sys.executable, str(DOCS / "examples" / "diagnose_folder.py"), *folders], capture_output=True, text=True, env=environment, check=False)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        f"{folders[0]}: info no-kv-pressure, KV pool at most 32%",
        f"{folders[1]}: high allocator-fragmentation, KV pool at most unknown",
    ]


def test_the_python_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = blocks("api.md", "python")
    exec(compile(code, "api.md", "exec"), {})
    assert capsys.readouterr().out == "admission-thrash\n"


def test_the_stable_names_are_there_and_cheap() -> None:
    import kvdoctor

    for name in kvdoctor.__all__:
        assert getattr(kvdoctor, name).__name__ == name
        assert f"`{name}" in (DOCS / "api.md").read_text(encoding="utf-8")
    assert set(kvdoctor.__all__) <= set(dir(kvdoctor))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = kvdoctor.nonsense  # type: ignore[attr-defined]
    code = "import sys, kvdoctor; print([m for m in sys.modules if m.startswith('kvdoctor.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_word_of_a_report_and_a_pasted_error_are_explained() -> None:
    rules = load_rules()
    assert "first token" in (explain("goodput", rules) or "")
    assert (explain("ttft", rules) or "").startswith("TTFT: ")
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacity of 22.40 GiB of which 121.00 MiB is free."
    said = explain(line, rules) or ""
    assert "requested 136 MiB" in said
    assert "KV100" in said
