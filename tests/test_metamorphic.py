"""The verdict depends on what a snapshot says, not on how it was written down; and less evidence never makes another cause.

Changes that must not change the verdict: files renamed or listed in another order, all times shifted by a week, process ids,
addresses, request ids and model names changed, source lines and ports changed, counters that had counted before, all sizes or all
rates a few per cent larger or smaller, the log in any wrapping, unrelated lines between its lines, half a line before its first and
after its last, other encodings.

Deciding lines taken away (all lines of one message of a log, or all series of one metric, in turn). With ``before`` the rules
that fired on the whole input, muted or not, the verdict on the rest must be one of

- what is right for the case (``verdict``, ``also_ok``), or any rule of ``before``: what was seen anyway,
- a rule of the same misdiagnosis, or the fallback of one that fired: the same cause, said with less detail,
- a rule of the same stage and ID block that was *suspected* before: less evidence against it is left,
- ``undetermined``,
- an informative boundary or ``healthy``, but only when nothing of a failure is left in the logs (no error, refusal, exit, lack
  of memory, lost request) and no series was taken away: what is missing is unknown, and unknown is never healthy.

Another fault is never right. Nor is anything the case forbids (``must_not``), except ``undetermined``.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from corpus import CASES, SAMPLES, Expectation, rules
from wrappers import WRAPPERS

from kvdoctor.engines import recognise
from kvdoctor.engines.base import Engine
from kvdoctor.findings import Report
from kvdoctor.parse.serverlog import scan
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, epoch_in_name, memory_member

Files = dict[str, bytes]
WEEK = 7 * 86_400
YEAR = 2026
LABELLED = [*CASES, *SAMPLES]
BIG = 400_000


def files_of(folder: Path) -> Files:
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name not in ("expect.toml", "README.md")
    }


def report_on(files: Files) -> Report:
    members = tuple(memory_member(name, raw, time=epoch_in_name(name)) for name, raw in files.items())
    return diagnose(Snapshot(members), rules())


def kind_of(raw: bytes) -> str:
    return recognise.kind_of(raw[:65_536], None)


def year_of(files: Files) -> int:
    return recognise.year_of([epoch_in_name(name) for name in files], None) or YEAR


def on_logs(files: Files, change: Callable[[str], bytes]) -> Files:
    return {
        name: change(recognise.text_of(raw)) if kind_of(raw) == "log" and raw[:1] != b"{" else raw
        for name, raw in files.items()
    }


# ---------------------------------------------------------------- changes that mean nothing


def renamed(files: Files, draw: random.Random) -> Files:
    """Other names in the same order; epochs stay, and so do the names of cgroup files (a bare number says nothing).

    Names that are counted alike (pod-a_1, pod-b_1) tell servers apart: they mean something and stay.
    """
    counted = [re.sub(r"\d{1,6}\.\w+$", "", name) for name in files if re.search(r"(?<!\d)\d{1,6}\.\w+$", name)]
    if len(set(counted)) > 1 and min(map(counted.count, counted)) > 1:
        return files
    out: Files = {}
    for place, (name, raw) in enumerate(sorted(files.items(), key=lambda item: natural(item[0]))):
        epoch = re.search(r"(?<!\d)\d{9,11}(?:\.\d{1,9})?(?!\d)", name)
        stem = "".join(draw.choices("qwxyz", k=5))
        keep = kind_of(raw) == "cgroup" or len(raw) < 40
        out[name if keep else f"a{place:03d}{stem}{'_' + epoch.group() if epoch else ''}.txt"] = raw
    return out


def natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def reordered(files: Files, draw: random.Random) -> Files:
    names = list(files)
    draw.shuffle(names)
    return {name: files[name] for name in names}


_DATES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b\d{4}-\d\d-\d\d(?=[T ]\d\d:\d\d:\d\d)"), "%Y-%m-%d"),
    (re.compile(r"\b\d{4}/\d\d/\d\d(?= (?:- )?\d\d:\d\d:\d\d)"), "%Y/%m/%d"),
    (re.compile(r"\b\d\d/\d\d/\d{4}(?=-\d\d:\d\d:\d\d)"), "%m/%d/%Y"),
    (
        re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d \d{4}\b"),
        "%a %b %d %H:%M:%S %Y",
    ),
    (re.compile(r"(?<![\d-])\d\d-\d\d(?= \d\d:\d\d:\d\d)"), "%m-%d"),
)
_EPOCHS = re.compile(r"(?m)^(process_start_time_seconds(?:\{[^}]*\})?|\S+_created(?:\{[^}]*\})?) ([\d.e+]+)")


def week_later(files: Files, draw: random.Random) -> Files:
    year = year_of(files)

    def moved(match: re.Match[str], form: str) -> str:
        text = match.group()
        try:
            moment = (
                datetime.strptime(f"{year} {text}", f"%Y {form}") if "%Y" not in form else datetime.strptime(text, form)
            )
        except ValueError:
            return text
        return (moment + timedelta(days=7)).strftime(form)

    def text_later(text: str) -> str:
        for pattern, form in _DATES:
            text = pattern.sub(lambda match, form=form: moved(match, form), text)  # type: ignore[misc]
        return _EPOCHS.sub(lambda match: f"{match.group(1)} {float(match.group(2)) + WEEK!r}", text)

    out: Files = {}
    for name, raw in files.items():
        later = re.sub(r"(?<!\d)(\d{9,11})(?=(?:\.\d{1,9})?(?!\d))", lambda match: str(int(match.group()) + WEEK), name)
        out[later] = raw if kind_of(raw) == "torch-snapshot" else text_later(recognise.text_of(raw)).encode()
    return out


def other_identities(files: Files, draw: random.Random) -> Files:
    """Process ids, addresses and request ids of every text, and the models' names, consistently."""
    shift = draw.randrange(1_000, 30_000)

    def other(text: str) -> str:
        text = re.sub(
            r"\b(pid[=: ]{1,2}|Process )(\d{2,7})\b", lambda m: m.group(1) + str(int(m.group(2)) + shift), text
        )
        text = re.sub(r"\b10\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "172.16.9.7", text)
        text = re.sub(r"\b(cmpl|chatcmpl|req)-(?=[\w-]{4})", r"\1-x9", text)
        return re.sub(r"(?<![\w/.-])(\w[\w.-]*/)(?=(?:Llama|Qwen|Mistral|Mixtral|DeepSeek)[\w.-]*)", "other-org/", text)

    ours = [name for name, raw in files.items() if kind_of(raw) in ("log", "exposition")]
    if any(kind_of(raw) in ("kernel", "ps", "smi-apps", "smi-table", "kubectl") for raw in files.values()):
        return files  # pids of several kinds of files belong together in forms of their own
    return {name: other(recognise.text_of(raw)).encode() if name in ours else raw for name, raw in files.items()}


UNRELATED = (
    'INFO:     10.0.0.9:52114 - "GET /health HTTP/1.1" 200 OK',
    "",
    'time="2026-11-29T13:01:55Z" level=info msg="reloaded 3 upstreams" component=proxy',
    "W0714 08:11:02.100231       7 reflector.go:539] watch closed",
    "/usr/lib/python3/dist-packages/pydantic/_internal.py:198: UserWarning: field was shadowed",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:09<00:00,  2.31s/it]",
)
_BEGINS = re.compile(r"\(\w[^)]*pid=\d|\[?\d{4}-\d\d|INFO|WARNING|ERROR|slot |srv |\[TM\]|time=|\d{4}/\d\d|\[TensorRT")


_LINE_NUMBERS = re.compile(r"(\b[\w/-]+\.(?:py|cc|cpp|cu|rs|go)(?::|\", line ))(\d{1,5})(?=[\]:,) ]|$)", re.M)
_SERVED = re.compile(r"(\bport[ =:]+|0\.0\.0\.0:|127\.0\.0\.1:|localhost:)(\d{2,5})\b")


def other_numbers(files: Files, draw: random.Random) -> Files:
    """Another build prints other source lines, and another host serves on other ports."""
    more = draw.randrange(1, 50)

    def changed(text: str) -> bytes:
        text = _LINE_NUMBERS.sub(lambda m: f"{m.group(1)}{int(m.group(2)) + more}", text)
        return _SERVED.sub(lambda m: f"{m.group(1)}{1024 + (int(m.group(2)) + more) % 60_000}", text).encode()

    return on_logs(files, changed)


_SIZES = re.compile(r"(?<![\w.])\d{1,7}(?:\.\d{1,6})?(?= ?[KMG]i?B\b)")
_RATES = re.compile(
    r"(?<![\w.])\d{1,7}(?:\.\d{1,6})?(?= (?:tokens/s|tok/s|tokens per second)\b)|(?<=\(token/s\): )\d+(?:\.\d+)?"
)


def scaled(pattern: re.Pattern[str]) -> Callable[[Files, random.Random], Files]:
    """A card with a tenth more or less memory and everything on it in proportion, or one so much faster or slower."""

    def change(files: Files, draw: random.Random) -> Files:
        factor = draw.choice((0.9, 0.97, 1.03, 1.1))

        def number(match: re.Match[str]) -> str:
            digits = len(match.group().partition(".")[2])
            return f"{float(match.group()) * factor:.{digits}f}"

        return {
            name: raw
            if kind_of(raw) in ("torch-snapshot", "binary", "exposition")
            else pattern.sub(number, recognise.text_of(raw)).encode()
            for name, raw in files.items()
        }

    return change


def with_unrelated_lines(files: Files, draw: random.Random) -> Files:
    """Between messages, never inside one."""

    def mixed(text: str) -> bytes:
        out: list[str] = []
        for line in text.splitlines():
            if _BEGINS.match(line) and draw.random() < 0.4:
                out.append(draw.choice(UNRELATED))
            out.append(line)
        return ("\n".join(out) + "\n").encode()

    return on_logs(files, mixed)


def with_half_lines(files: Files, draw: random.Random) -> Files:
    """What stands before the first and after the last whole line when a log is cut by size."""
    return on_logs(
        files,
        lambda text: (
            'erver pid=21) INFO:     10.0.0.9:52114 - "GET /health HTTP/1.1" 200 OK\n'
            + text.rstrip("\n")
            + '\nINFO:     10.0.0.9:52114 - "GET /heal'
        ).encode(),
    )


def encoded(encoding: str, end: str = "\n") -> Callable[[Files, random.Random], Files]:
    def change(files: Files, draw: random.Random) -> Files:
        return {
            name: raw
            if kind_of(raw) in ("torch-snapshot", "binary")
            else recognise.text_of(raw).replace("\r\n", "\n").replace("\n", end).encode(encoding)
            for name, raw in files.items()
        }

    return change


_COUNTED = re.compile(
    r"^([A-Za-z_:][\w:]*(?:_total|_sum|_count|_bucket)(?:\{[^}\n]*\})?) ([\d.e+]+)((?: \d+)?\r?)$", re.M
)
LIFE = 4096
"""Counts of an earlier life of the server, exact in floating point."""


def longer_served(files: Files, draw: random.Random) -> Files:
    """The server had counted before the first of several pages: only what was counted between them matters."""
    pages = {name for name, raw in files.items() if kind_of(raw) == "exposition"}
    if len(pages) < 2:
        return files

    texts = {name: recognise.text_of(raw) for name, raw in files.items() if name in pages}
    # a series that appears with its first event had counted nothing before
    everywhere = set.intersection(*({m.group(1) for m in _COUNTED.finditer(text)} for text in texts.values()))

    def counted(match: re.Match[str]) -> str:
        if match.group(1) not in everywhere:
            return match.group()
        return f"{match.group(1)} {float(match.group(2)) + LIFE!r}{match.group(3)}"

    return {**files, **{name: _COUNTED.sub(counted, text).encode() for name, text in texts.items()}}


CHANGES: dict[str, Callable[[Files, random.Random], Files]] = {
    "renamed": renamed,
    "reordered": reordered,
    "a week later": week_later,
    "other identities": other_identities,
    "longer served": longer_served,
    "other numbers": other_numbers,
    "another size": scaled(_SIZES),
    "another speed": scaled(_RATES),
    "unrelated lines": with_unrelated_lines,
    "half lines": with_half_lines,
    "crlf": encoded("utf-8", "\r\n"),
    "utf-16": encoded("utf-16"),
    "utf-16-be": encoded("utf-16-be"),
}


@pytest.mark.parametrize("folder", LABELLED, ids=lambda p: p.name)
def test_what_means_nothing_changes_nothing(folder: Path) -> None:
    files, right = files_of(folder), Expectation.of(folder)
    whole = report_on(files)
    for name, change in CHANGES.items():
        changed = change(files, random.Random(folder.name))
        if changed == files and list(changed) == list(files):
            continue
        report = report_on(changed)
        assert report.main.verdict.rule == whole.main.verdict.rule, name
        assert right.problem(report) == right.problem(whole), name


def wrappers_for(folder: Path, count: int) -> Iterable[str]:
    return random.Random(folder.name).sample(sorted(WRAPPERS), count)


@pytest.mark.parametrize("folder", LABELLED, ids=lambda p: p.name)
def test_a_wrapped_log_gets_the_same_verdict(folder: Path) -> None:
    files = files_of(folder)
    if not any(kind_of(raw) == "log" for raw in files.values()):
        return
    year = year_of(files)
    whole = report_on(files).main.verdict.rule
    export = any(scan(io.BytesIO(raw), ()).order for raw in files.values() if kind_of(raw) == "log")
    for name in wrappers_for(folder, 4):
        if export and name.endswith("-split"):
            continue  # the pieces of a line that a runtime split are written oldest first, whatever the lines are
        wrapped = on_logs(files, lambda text, name=name: WRAPPERS[name](text, year))  # type: ignore[misc]
        assert report_on(wrapped).main.verdict.rule == whole, name


# ---------------------------------------------------------------- deciding lines taken away


FAILURES = frozenset({
    "oom", "start_error", "exit", "error", "pool_full", "request_failed", "page_oom", "context_limit", "offload_fail", "stall",
})  # fmt: skip
FALLBACKS = {"oom-outside-kv": 1, "preemption-tail-latency": 2, "recompute-overload": 4}


@dataclass(frozen=True)
class Rest:
    """An input without one thing: what was taken away, and whether nothing of a failure is left in the logs."""

    what: str
    files: Files
    calm: bool


def log_events(raw: bytes) -> tuple[Engine | None, dict[str, set[int]], dict[str, str]]:
    """Of a log: its engine, the lines of each template, and the event of each template."""
    engine = recognise.of_log([raw])
    parsed = scan(io.BytesIO(raw), recognise.log_templates(engine, [raw]), year=YEAR)
    lines: dict[str, set[int]] = {}
    kinds: dict[str, str] = {}
    for event in parsed.events:
        lines.setdefault(event.template, set()).add(event.line)
        kinds[event.template] = event.event
    return engine, lines, kinds


def without_lines(files: Files) -> Iterable[Rest]:
    for name, raw in files.items():
        if kind_of(raw) != "log" or len(raw) > BIG:
            continue
        _, lines, kinds = log_events(raw)
        source = raw.split(b"\n")
        for template, numbers in lines.items():
            kept = b"\n".join(line for number, line in enumerate(source, 1) if number not in numbers)
            rest = {**files, name: kept}
            left = {
                event for other in rest.values() if kind_of(other) == "log" for event in log_events(other)[2].values()
            }
            yield Rest(f"{name}: {template}", rest, not left & FAILURES)


def without_series(files: Files, draw: random.Random, most: int) -> Iterable[Rest]:
    pages = {name: recognise.text_of(raw) for name, raw in files.items() if kind_of(raw) == "exposition"}
    families = sorted({name for text in pages.values() for name in re.findall(r"(?m)^# TYPE (\S+) ", text)})
    engines = [recognise.of_page([family]) for family in families]
    wanted = [f for f, engine in zip(families, engines, strict=True) if engine and is_read(engine, f)]
    for family in draw.sample(wanted, min(most, len(wanted))):
        gone = re.compile(rf"(?m)^(?:# (?:HELP|TYPE) )?{re.escape(family)}(?:_bucket|_sum|_count|_created)?[ {{].*\n?")
        yield Rest(family, {**files, **{name: gone.sub("", text).encode() for name, text in pages.items()}}, False)


def is_read(engine: Engine, family: str) -> bool:
    return any(name.name == family for series in engine.series for name in series.names if not name.ignore)


def allowed(folder: Path, whole: Report, rest: Rest, report: Report) -> str | None:
    """What is wrong with the verdict on the rest, None when it is honest."""
    verdict, right = report.main.verdict, Expectation.of(folder)
    if verdict.rule == "undetermined":
        return None
    said = f"{rest.what}: {verdict.rule}"
    reports = [whole.main, *whole.targets]
    before = {v.rule: v for r in reports for v in (*r.findings, r.verdict)}
    doubted = {v.rule: v for r in reports for v in r.undecided if v.state == "suspected"}
    families = {v.misdiagnosis for v in before.values() if v.misdiagnosis}
    if verdict.rule in before or verdict.rule in (right.verdict, *right.also_ok):
        return None
    if verdict.misdiagnosis and (
        verdict.misdiagnosis in families or f"m{verdict.misdiagnosis}" in (right.verdict, *right.also_ok)
    ):
        return None
    if verdict.rule in doubted and verdict.stage == whole.main.verdict.stage:
        return None
    if verdict.rule == "healthy" or verdict.severity == "info":
        forbidden = verdict.rule in right.must_not and not rest.calm
        well = whole.main.verdict.rule == "healthy" or whole.main.verdict.severity == "info"
        return (
            None
            if (well or rest.calm) and not forbidden
            else f"{said} although something of a failure, or a gap, is left"
        )
    return f"{said}, another cause"


@pytest.mark.parametrize("folder", LABELLED, ids=lambda p: p.name)
def test_less_evidence_never_makes_another_cause(folder: Path) -> None:
    files = files_of(folder)
    whole = report_on(files)
    draw = random.Random(folder.name)
    rests = list(without_lines(files))
    rests = draw.sample(rests, min(len(rests), 8)) + list(without_series(files, draw, 4))
    problems = [problem for rest in rests if (problem := allowed(folder, whole, rest, report_on(rest.files)))]
    assert not problems
