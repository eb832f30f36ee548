"""One page store: what a verdict, fact, lever, flag, metric or log line means. ``kvdoctor explain`` prints it, ``docs/`` holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    for found in (_metric(wanted), _word(wanted), _flag(wanted), _log_line(wanted)):
        if found is not None:
            return found
    return None


WORDS: Mapping[str, str] = {
    "bounds": "only a lower and an upper end of the value are known; bounds can clear a rule or raise a suspicion, never make one fire",
    "calibrated": "the limit was set on real runs; one that was not keeps a verdict from being certain",
    "certain": "every deciding figure was measured and every limit is calibrated",
    "goodput": "share of requests that got their first token in time and never stalled for long (in replays: 10 s, 2 s)",
    "ITL": "inter-token latency: the time between two tokens of one request",
    "KV pool": "the device memory set apart at start for keys and values of all requests; when it is full, requests wait or are preempted",
    "likely": "a figure was estimated or assumed, there were few events, or a limit is not calibrated",
    "misdiagnosis": "one of the five usual wrong readings of a symptom; see docs/misdiagnoses.md",
    "preemption": "a running request loses its KV blocks to make room and is computed again later; SGLang says retraction",
    "recompute": "tokens that are computed again because their KV blocks were taken away",
    "replay": "the load of the window, drawn again and run in a simulator under other settings or sizes",
    "retraction": "SGLang's word for preemption",
    "scrape": "one reading of a metrics page; counters only speak by the difference of two",
    "stall": "a gap of more than a second between two tokens of one request",
    "suspected": "everything known fits, but a deciding fact is not known: no finding",
    "thrash": "requests are admitted, evicted and admitted again, so the same prompts are computed over and over",
    "TPOT": "time per output token: the mean time between the tokens of a request",
    "TTFT": "time to first token: from the arrival of a request to its first token, the queue included",
    "undetermined": "what was read does not decide it; the report says what would",
    "watermark": "the share of the KV pool that is kept free when a request is admitted; as an alert, a mark of pool usage",
}
"""Words of a report that are no name of anything."""


def _word(text: str) -> str | None:
    lower = text.lower()
    return next((f"{word}: {meaning}\n" for word, meaning in WORDS.items() if word.lower() == lower), None)


def near(name: str, rules: Sequence[Rule]) -> list[str]:
    """Names close to a misspelt one."""
    known = [*FACTS, *LEVERS, *WORDS, *(r.id for r in rules), *(r.name for r in rules), *(n for n, _, _ in _series())]
    return suggest(name, dict.fromkeys(known))


def _fact(name: str, rules: Sequence[Rule]) -> str:
    row = FACTS[name]
    users = [r for r in rules if name in r.when or (r.applies and name in r.applies)]
    out = [
        f"{name}: {row.meaning}",
        f"unit: {_UNITS.get(row.unit, row.unit)}; measured on the {LEVELS[row.level]}; span: {SPANS[row.span]}"
        + (
            f"; a server's value is the {_COMBINED.get(row.combine, row.combine)} over its parts" if row.combine else ""
        ),
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


_UNITS = {
    "1": "a share, 0 to 1",
    "tok": "tokens",
    "tok/s": "tokens per second",
    "B": "bytes",
    "B/s": "bytes per second",
    "s": "seconds",
    "/s": "per second",
    "bool": "yes or no",
    "enum": "a word",
}
_COMBINED = {"max": "largest", "min": "smallest", "mean": "mean"}


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
    out += _out_of_memory(text)
    return "\n".join(out) + "\n" if out else None


def _out_of_memory(text: str) -> list[str]:
    """What an out-of-memory message says, in figures, and which rules read it."""
    from dataclasses import fields

    from kvdoctor.parse import oom
    from kvdoctor.report.words import size

    out: list[str] = []
    for message in oom.find(text):
        figures = [
            f"{field.name} {size(amount)}"
            for field in fields(message)
            if field.name in ("requested", "total", "free", "allocated", "unallocated", "reserved", "cap")
            and isinstance(amount := getattr(message, field.name), int)
        ]
        out.append(
            "An out-of-memory error of the device. It is not the KV pool that ran out: that is allocated once, at start."
        )
        out.append(f"    read from this line: {', '.join(figures) or 'that it happened'}")
        out.append("    judged by: KV100 oom-outside-kv and its causes, KV101 to KV110")
    return out


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
