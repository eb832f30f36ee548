"""One page store: what a verdict, fact, lever, flag, metric or log line means. ``kvdoctor explain`` prints it, ``docs/`` holds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvdoctor.engines.base import ROLES, Engine, engines
from kvdoctor.facts import FACTS, LEVELS, LEVERS, SPANS, suggest
from kvdoctor.report.rulepage import index, page
from kvdoctor.rulebook.rule import Rule


def explain(name: str, rules: Sequence[Rule]) -> str | None:
    """The page of ``name``; None when nothing is known under it."""
    wanted = name.strip()
    for rule in rules:
        if wanted.lower() in (rule.id.lower(), rule.name):
            return page(rule)
    if wanted in FACTS:
        return _fact(wanted, rules)
    if wanted in LEVERS:
        return _lever(wanted)
    for found in (_metric(wanted), _flag(wanted), _log_line(wanted)):
        if found is not None:
            return found
    return None


def near(name: str, rules: Sequence[Rule]) -> list[str]:
    """Names close to a misspelt one."""
    known = [*FACTS, *LEVERS, *(r.id for r in rules), *(r.name for r in rules), *(n for n, _, _ in _series())]
    return suggest(name, dict.fromkeys(known))


def _fact(name: str, rules: Sequence[Rule]) -> str:
    row = FACTS[name]
    users = [r for r in rules if name in r.when or (r.applies and name in r.applies)]
    out = [
        f"{name}: {row.meaning}",
        f"unit {row.unit}; measured on the {LEVELS[row.level]}; span: {SPANS[row.span]}"
        + (f"; a server's value is the {row.combine} over its parts" if row.combine else ""),
    ]
    if row.choices:
        out.append("one of: " + ", ".join(row.choices))
    for engine in engines().values():
        for gap in engine.gaps:
            if name == gap.fact or name.startswith((gap.fact + ".", gap.fact + "_")):
                out.append(f"{engine.title} does not tell it: {gap.reason}. To get it: {gap.hint}")
                break
    if users:
        out.append("used by: " + ", ".join(f"{r.id} {r.name}" for r in users))
    return "\n".join(out) + "\n"


def _lever(name: str) -> str:
    out = [f"{name}: {LEVERS[name]}", ""]
    for engine in engines().values():
        for entry in engine.levers:
            if entry.lever != name:
                continue
            span = _versions(entry.since, entry.until)
            if entry.flag is None:
                out.append(f"{engine.title}{span}: none; instead: {entry.instead}")
            else:
                out.append(
                    f"{engine.title}{span}: {entry.flag}" + (f" (default {entry.default})" if entry.default else "")
                )
                out += [
                    f"    {word}: {text}"
                    for word, text in (
                        ("effect", entry.effect),
                        ("cost", entry.cost),
                        ("next limit", entry.next_limit),
                        ("verify", entry.verify),
                    )
                    if text
                ]
    return "\n".join(out) + "\n"


def _versions(since: str | None, until: str | None) -> str:
    if since and until:
        return f" {since} to {until}"
    if since:
        return f" from {since}"
    return f" to {until}" if until else ""


def _series() -> list[tuple[str, Engine, str]]:
    out: list[tuple[str, Engine, str]] = []
    for engine in engines().values():
        for series in engine.series:
            out.extend((n.name, engine, series.role) for n in series.names)
    return out


def _metric(name: str) -> str | None:
    bare = name.split("{", 1)[0].strip()
    stems = {bare, bare.removesuffix("_bucket"), bare.removesuffix("_sum"), bare.removesuffix("_count")}
    out: list[str] = []
    for engine in engines().values():
        for series in engine.series:
            for entry in series.names:
                if entry.name not in stems:
                    continue
                unit, meaning = ROLES[series.role]
                out.append(f"{entry.name}: {entry.kind} of {engine.title}{_versions(entry.since, entry.until)}")
                if entry.ignore:
                    out.append(f"    a trap, never used: {entry.ignore}")
                    continue
                out.append(f"    read as {series.role} ({unit}): {meaning}")
                if series.note:
                    out.append(f"    note: {series.note}")
                newest = series.names[0]
                if newest.name != entry.name:
                    out.append(f"    newer name: {newest.name}{_versions(newest.since, newest.until)}")
    return "\n".join(out) + "\n" if out else None


def _flag(name: str) -> str | None:
    bare = name.lstrip("-").replace("_", "-").split("=", 1)[0].split(" ", 1)[0].lower()
    if len(bare) < 3:
        return None
    out: list[str] = []
    for engine in engines().values():
        for entry in engine.levers:
            words = (entry.flag or "").replace("_", "-").lower().replace("=", " ").replace(",", " ").split()
            if any(word.lstrip("-") == bare for word in words):
                out.append(f"{entry.flag}: {engine.title}{_versions(entry.since, entry.until)}; turns {entry.lever} ({LEVERS[entry.lever]})"
                           + (f"; default {entry.default}" if entry.default else ""))  # fmt: skip
                out += [
                    f"    {word}: {text}"
                    for word, text in (
                        ("effect", entry.effect),
                        ("cost", entry.cost),
                        ("next limit", entry.next_limit),
                        ("verify", entry.verify),
                    )
                    if text
                ]
    return "\n".join(out) + "\n" if out else None


def _log_line(text: str) -> str | None:
    """What a pasted log line is taken for, by every engine whose template matches it."""
    from kvdoctor.parse.serverlog import EVENTS, Matcher, Unwrapper

    if len(text) < 12:
        return None
    out: list[str] = []
    for engine in engines().values():
        matcher = Matcher(engine.templates)
        for line in Unwrapper()(text):
            for template, event, fields in matcher.match(line.text):
                note = next((t.note for t in engine.templates if t.id == template), "")
                shown = ", ".join(f"{k} = {v}" for k, v in fields.items())
                out.append(f"{engine.title}: {event}: {EVENTS.get(event, '')}")
                out.append(f"    read from this line: {shown or 'that it happened'}")
                if note:
                    out.append(f"    note: {note}")
    return "\n".join(out) + "\n" if out else None


# ---------------------------------------------------------------------------------------------- docs


def documents(rules: Sequence[Rule]) -> dict[str, str]:
    """The generated pages of ``docs/``: path inside it -> Markdown."""
    out = {f"rules/{rule.id}-{rule.name}.md": page(rule) for rule in sorted(rules, key=lambda r: r.id)}
    return {"flags.md": flags(), "rules/README.md": index(list(rules)), **out}


def write_docs(folder: Path, rules: Sequence[Rule]) -> list[Path]:
    """Write the generated pages into ``folder``; pages of rules that are gone are removed. Returns what changed."""
    changed: list[Path] = []
    wanted = documents(rules)
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    for path in sorted((folder / "rules").glob("*.md")):
        if f"rules/{path.name}" not in wanted:
            path.unlink()
            changed.append(path)
    return changed


def flags() -> str:
    """What can be turned in each engine, and what each engine does not tell."""
    out = [
        "# Flags per engine",
        "",
        "What kvdoctor may advise you to turn, in the words of each engine. Generated from the engine tables (`make docs`);",
        "do not edit by hand. A report names only flags that the version it sees has. In the terminal:",
        "`kvdoctor explain NAME`, where NAME is a flag without its dashes (`max-num-seqs`) or the name of a setting",
        "(`sched.max_running`).",
        "",
        "\"Next limit\" is the one you will meet after turning it far enough. \"Not told\" lists what an engine keeps to itself",
        "and how to get it all the same.",
        "",
    ]  # fmt: skip
    known = [engine for engine in engines().values() if engine.levers]
    out += [f"- [{engine.title}](#{_anchor(engine.title)})" for engine in known]
    for engine in known:
        out += ["", f"## {engine.title}", ""]
        out += ["| turns | flag | versions | default | effect | cost | next limit |", "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for entry in (one for one in engine.levers if one.flag is not None):
            row = (
                f"{LEVERS[entry.lever]} (`{entry.lever}`)",
                f"`{entry.flag}`",
                _versions(entry.since, entry.until).strip() or "all",
                entry.default or "",
                entry.effect,
                entry.cost,
                entry.next_limit,
            )
            out.append(f"| {' | '.join(_cell(text) for text in row)} |")
        bare = [one for one in engine.levers if one.flag is None]
        if bare:
            out += ["", "Without a flag:", "", "| turns | versions | instead |", "| --- | --- | --- |"]
        for entry in bare:
            turns = f"{LEVERS[entry.lever]} (`{entry.lever}`)"
            out.append(f"| {_cell(turns)} | {_versions(entry.since, entry.until).strip() or 'all'} | {_cell(entry.instead)} |")  # fmt: skip
        if engine.gaps:
            out += ["", "Not told:", "", "| fact | versions | why | how to get it |", "| --- | --- | --- | --- |"]
            out += [
                f"| `{gap.fact}` | {_versions(gap.since, gap.until).strip() or 'all'} | {_cell(gap.reason)} | {_cell(gap.hint)} |"
                for gap in engine.gaps
            ]
    return "\n".join(out) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _anchor(title: str) -> str:
    """The anchor a Markdown heading gets."""
    return "".join(c if c.isalnum() else "-" if c in " -" else "" for c in title.lower())
