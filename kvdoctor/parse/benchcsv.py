"""Benchmark tables: one row per run, any delimiter, columns recognised by what their names say.

Nobody's benchmark writes the same header, so names are taken apart into words, the unit is taken from a suffix, a
bracket or the cell itself, and values come out in canonical units (seconds, tokens per second, fractions, counts).
A column nobody recognises is not lost: its text stays in :attr:`BenchRow.settings`, because what differs between two
rows is often exactly such a column.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from kvdoctor.frozen import frozen
from kvdoctor.parse import KEPT_BAD, MAX_LINE, SHOWN, BadLine, bad_line

_STATS = ("mean", "p50", "p90", "p95", "p99", "p999")

COLUMNS: Mapping[str, tuple[str, str]] = {
    "concurrency": ("count", "requests kept in flight by the load generator"),
    "request_rate": ("1/s", "offered load"),
    "requests": ("count", "requests sent"),
    "finished": ("count", "requests that succeeded"),
    "failed": ("count", "requests that failed"),
    "duration_s": ("s", "length of the run"),
    "prompt_len": ("tok", "prompt length asked for"),
    "output_len": ("tok", "output length asked for"),
    "gpus": ("count", "devices in use"),
    "tp": ("count", "tensor parallel ranks"),
    "pp": ("count", "pipeline parallel ranks"),
    "dp": ("count", "data parallel replicas"),
    "workers": ("count", "server processes behind the entry point"),
    "max_running": ("count", "limit of running sequences"),
    "batch_tokens": ("tok", "limit of tokens per step"),
    "fraction": ("1", "share of device memory given to the engine"),
    "watermark": ("1", "share of the pool kept free at admission"),
    **{f"ttft_{stat}": ("s", f"time to first token, {stat}") for stat in _STATS},
    **{f"tpot_{stat}": ("s", f"time per output token of a request, {stat}") for stat in _STATS},
    **{f"itl_{stat}": ("s", f"time between tokens, {stat}") for stat in _STATS},
    **{f"e2e_{stat}": ("s", f"request duration, {stat}") for stat in _STATS},
    "output_rate": ("tok/s", "output tokens per second, all requests together"),
    "total_rate": ("tok/s", "prompt and output tokens per second"),
    "prompt_rate": ("tok/s", "prompt tokens per second"),
    "finished_rate": ("1/s", "requests finished per second"),
    "goodput": ("1/s", "requests per second that met their objective"),
    "preemptions": ("count", "preemptions, retractions or pauses within this row's run"),
    "preemptions_total": ("count", "the server's running count of them, read after this row's run"),
    "hit_share": ("1", "prefix cache hit rate"),
    "kv_usage": ("1", "share of the KV pool in use"),
    "recompute_share": ("1", "share of tokens computed again"),
    "waiting": ("count", "requests queued"),
    "running": ("count", "requests computed"),
    "oom": ("count", "out-of-memory errors"),
}
"""Canonical column names with unit and meaning."""

_LOAD = frozenset(
    {
        "concurrency",
        "request_rate",
        "gpus",
        "tp",
        "pp",
        "dp",
        "workers",
        "max_running",
        "batch_tokens",
        "fraction",
        "watermark",
        "prompt_len",
        "output_len",
        "requests",
        "policy",
    }
)
_RESULT = frozenset(COLUMNS) - _LOAD - {"duration_s"}


@frozen
class BenchRow:
    """One run of the benchmark.

    ``values`` maps names of :data:`COLUMNS` to numbers in their units; a cell that is empty or no number is not in it.
    ``policy`` is the text of the router, scheduler or eviction policy column. ``settings`` holds the columns nobody
    recognised, by normalised header, as text. ``line`` counts from 1.
    """

    line: int
    values: Mapping[str, float]
    policy: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> float | None:
        """The value of a canonical column, or None when this row does not give it."""
        return self.values.get(name)


@frozen
class BenchTable:
    """One benchmark file.

    ``columns`` maps each header as written to its canonical name (``policy`` for the policy text, empty for a setting).
    ``guessed`` names canonical columns whose unit the file does not say and that was told from the size of the numbers.
    """

    origin: str
    rows: tuple[BenchRow, ...]
    columns: Mapping[str, str]
    guessed: frozenset[str]
    bad: tuple[BadLine, ...]
    bad_count: int
    lines: int


@frozen
class NotBench:
    """The text is no benchmark table; ``reason`` quotes its first characters."""

    origin: str
    reason: str


@frozen
class _Column:
    """What a header says: canonical name (empty: a setting) and the unit it names (empty: none)."""

    header: str
    name: str
    unit: str
    key: str


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[^a-z0-9%.]+")
_END_TO_END = re.compile(r"e2el?")
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?|%")
_RULE_LINE = re.compile(r"[\s|:+=-]+")
_CELL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-zµ%/]*(?:\s?/\s?s)?)", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")

_TIME_UNITS: Mapping[str, float] = {
    "ms": 1e-3,
    "msec": 1e-3,
    "millisecond": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "microseconds": 1e-6,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
}
_PERCENT = frozenset({"%", "pct", "percent", "percentage"})
_REQUEST_IDS = frozenset({"request_id", "req_id", "uuid", "session_id", "chat_id", "trace_id", "hash_ids"})
_DEVICE_WORDS = ("memory.", "utilization.", "clocks.", "power.", "temperature.", "pcie.", "[mib]", "gpu_uuid")

_METRICS: Sequence[tuple[str, frozenset[str]]] = (
    ("ttft", frozenset({"ttft"})),
    ("ttft", frozenset({"time", "to", "first", "token"})),
    ("tpot", frozenset({"tpot"})),
    ("tpot", frozenset({"time", "per", "output", "token"})),
    ("itl", frozenset({"itl"})),
    ("itl", frozenset({"inter", "token"})),
    ("e2e", frozenset({"etoe"})),
    ("e2e", frozenset({"end", "to"})),
    ("e2e", frozenset({"request", "latency"})),
)
_STAT_WORDS: Mapping[str, str] = {
    "mean": "mean",
    "avg": "mean",
    "average": "mean",
    "median": "p50",
    "50": "p50",
    "90": "p90",
    "95": "p95",
    "99": "p99",
    "99.9": "p999",
    "999": "p999",
}
_NOT_A_STAT = frozenset({"std", "stddev", "stdev", "min", "max", "var"})

# Headers without their units, as words in order -> canonical name. The longest that fits as a whole is used.
_NAMES: Mapping[str, str] = {
    "concurrency": "concurrency",
    "max concurrency": "concurrency",
    "num concurrent": "concurrency",
    "concurrent": "concurrency",
    "concurrent requests": "concurrency",
    "num concurrent requests": "concurrency",
    "concurrent users": "concurrency",
    "clients": "concurrency",
    "num clients": "concurrency",
    "users": "concurrency",
    "num users": "concurrency",
    "request rate": "request_rate",
    "rate": "request_rate",
    "offered rate": "request_rate",
    "arrival rate": "request_rate",
    "target qps": "request_rate",
    "target rps": "request_rate",
    "requests": "requests",
    "num requests": "requests",
    "prompts": "requests",
    "num prompts": "requests",
    "completed": "finished",
    "successful requests": "finished",
    "finished": "finished",
    "failed": "failed",
    "failed requests": "failed",
    "errors": "failed",
    "duration": "duration_s",
    "benchmark duration": "duration_s",
    "wall time": "duration_s",
    "input len": "prompt_len",
    "input length": "prompt_len",
    "prompt len": "prompt_len",
    "prompt length": "prompt_len",
    "isl": "prompt_len",
    "random input len": "prompt_len",
    "output len": "output_len",
    "output length": "output_len",
    "osl": "output_len",
    "random output len": "output_len",
    "gpu": "gpus",
    "gpus": "gpus",
    "num gpu": "gpus",
    "num gpus": "gpus",
    "n gpus": "gpus",
    "gpu count": "gpus",
    "tp": "tp",
    "tp size": "tp",
    "tensor parallel": "tp",
    "tensor parallel size": "tp",
    "pp": "pp",
    "pp size": "pp",
    "pipeline parallel size": "pp",
    "dp": "dp",
    "dp size": "dp",
    "data parallel size": "dp",
    "workers": "workers",
    "num workers": "workers",
    "replicas": "workers",
    "num replicas": "workers",
    "instances": "workers",
    "max num seqs": "max_running",
    "max running requests": "max_running",
    "max batch size": "max_running",
    "max num batched tokens": "batch_tokens",
    "max num tokens": "batch_tokens",
    "gpu memory utilization": "fraction",
    "mem fraction static": "fraction",
    "memory fraction": "fraction",
    "watermark": "watermark",
    "admission watermark": "watermark",
    "free share": "watermark",
    "policy": "policy",
    "router": "policy",
    "routing": "policy",
    "router policy": "policy",
    "routing policy": "policy",
    "scheduler": "policy",
    "scheduler policy": "policy",
    "scheduling policy": "policy",
    "schedule policy": "policy",
    "capacity scheduler policy": "policy",
    "eviction policy": "policy",
    "victim policy": "policy",
    "preemption policy": "policy",
    "output throughput": "output_rate",
    "output token throughput": "output_rate",
    "output tokens throughput": "output_rate",
    "generation throughput": "output_rate",
    "decode throughput": "output_rate",
    "output tokens": "output_rate",
    "output tok": "output_rate",
    "gen tok": "output_rate",
    "gen tokens": "output_rate",
    "generation tokens": "output_rate",
    "out tok": "output_rate",
    "tok": "output_rate",
    "tokens": "output_rate",
    "throughput tok": "output_rate",
    "throughput tokens": "output_rate",
    "total throughput": "total_rate",
    "total token throughput": "total_rate",
    "total tokens": "total_rate",
    "total tok": "total_rate",
    "input throughput": "prompt_rate",
    "input token throughput": "prompt_rate",
    "prompt throughput": "prompt_rate",
    "prompt tokens": "prompt_rate",
    "prompt tok": "prompt_rate",
    "input tokens": "prompt_rate",
    "request throughput": "finished_rate",
    "req": "finished_rate",
    "reqs": "finished_rate",
    "rps": "finished_rate",
    "qps": "finished_rate",
    "throughput req": "finished_rate",
    "throughput requests": "finished_rate",
    "request goodput": "goodput",
    "goodput": "goodput",
    "preemptions": "preemptions",
    "num preemptions": "preemptions",
    "preemption count": "preemptions",
    "preemptions delta": "preemptions",
    "num preemptions delta": "preemptions",
    "retractions": "preemptions",
    "num retractions": "preemptions",
    "retracted": "preemptions",
    "pauses": "preemptions",
    "preempted": "preemptions",
    "num preemptions total": "preemptions_total",
    "preemptions total": "preemptions_total",
    "total preemptions": "preemptions_total",
    "hit rate": "hit_share",
    "cache hit rate": "hit_share",
    "prefix hit rate": "hit_share",
    "prefix cache hit rate": "hit_share",
    "kv hit rate": "hit_share",
    "kv usage": "kv_usage",
    "kv cache usage": "kv_usage",
    "kv cache usage perc": "kv_usage",
    "gpu cache usage perc": "kv_usage",
    "gpu kv cache usage": "kv_usage",
    "gpu cache usage": "kv_usage",
    "kv util": "kv_usage",
    "kv cache utilization": "kv_usage",
    "token usage": "kv_usage",
    "max kv usage": "kv_usage",
    "recompute share": "recompute_share",
    "recompute token share": "recompute_share",
    "recomputed share": "recompute_share",
    "waiting": "waiting",
    "queued": "waiting",
    "max waiting": "waiting",
    "queue length": "waiting",
    "running": "running",
    "max running": "running",
    "oom": "oom",
    "ooms": "oom",
    "oom count": "oom",
}
# A count of tokens or requests is a rate only when the header says "per second".
_ONLY_PER_SECOND = frozenset(
    {
        "output tokens",
        "output tok",
        "gen tok",
        "gen tokens",
        "generation tokens",
        "out tok",
        "tok",
        "tokens",
        "total tokens",
        "total tok",
        "prompt tokens",
        "prompt tok",
        "input tokens",
        "req",
        "reqs",
    }
)
# "requests/s" is a throughput although "requests" alone is a number of requests.
_PER_SECOND: Mapping[str, str] = {"requests": "finished_rate", "request": "finished_rate", "completed": "finished_rate"}
_COUNTED = frozenset({"tok", "token", "tokens", "req", "reqs", "request", "requests"})
_FRACTIONS = frozenset(name for name, (unit, _) in COLUMNS.items() if unit == "1")
_TIMES = frozenset(name for name, (unit, _) in COLUMNS.items() if unit == "s")


def looks_like(head: str) -> bool:
    """Is this the beginning of a benchmark table: a column of load or set-up, one of results, and numbers below them?

    nvidia-smi tables, request traces and per-request logs are not claimed.
    """
    lines = _content_lines(head[:MAX_LINE])
    if len(lines) < 2:
        return False
    columns = _header(lines[0][1])
    if columns is None:
        return False
    delimiter = _delimiter(lines[0][1])
    return any(_filled(_cells(text, delimiter), columns) for _, text in lines[1:4])


def parse(text: str, *, origin: str = "") -> BenchTable | NotBench:
    """Read one file; never raises on any text. Rows that do not fit the header are counted with their line number."""
    lines = _content_lines(text)
    columns = _header(lines[0][1]) if lines else None
    if columns is None:
        return NotBench(origin, f"no benchmark columns in it: {text.lstrip()[:SHOWN]!r}")
    delimiter = _delimiter(lines[0][1])
    grid: list[tuple[int, list[str]]] = []
    bad: list[BadLine] = []
    bad_count = 0
    for number, line in lines[1:]:
        if line == lines[0][1]:
            continue
        cells = _cells(line, delimiter)
        if _filled(cells, columns):
            grid.append((number, cells[: len(columns)]))
            continue
        bad_count += 1
        if len(bad) < KEPT_BAD:
            bad.append(bad_line(number, f"{len(cells)} cells under {len(columns)} columns, or no number", line))
    scales, guessed = _scales(columns, [cells for _, cells in grid], delimiter)
    rows = tuple(_row(number, cells, columns, scales, delimiter) for number, cells in grid)
    return BenchTable(
        origin, rows, {c.header: c.name for c in columns}, guessed, tuple(bad), bad_count, text.count("\n") + 1
    )


def _content_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers; blank ones, comments and the rule under a Markdown header are left out."""
    found: list[tuple[int, str]] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw[:MAX_LINE].strip()
        if line and not line.startswith("#") and not _RULE_LINE.fullmatch(line):
            found.append((number, line))
    return found


def _delimiter(header: str) -> str:
    """The delimiter of the header line; a space stands for any run of blanks."""
    counts = {mark: header.count(mark) for mark in ("\t", ";", "|", ",")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else " "


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line, stripped."""
    if delimiter == " ":
        return line.split()
    if delimiter == "|":
        return [cell.strip() for cell in line.strip("|").split("|")]
    try:
        found = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        found = line.split(delimiter)
    return [cell.strip() for cell in found]


def _header(line: str) -> list[_Column] | None:
    """The columns of a benchmark header, or None when the line is none."""
    low = line.lower()
    if any(word in low for word in _DEVICE_WORDS):
        return None
    columns = [_column(cell) for cell in _cells(line, _delimiter(line))]
    if _REQUEST_IDS.intersection(column.key for column in columns):
        return None
    names = [column.name for column in columns]
    if not (_LOAD.intersection(names) and _RESULT.intersection(names)):
        return None
    # The second of two columns that mean the same is kept as a setting: which of them is meant cannot be told.
    seen: set[str] = set()
    unique: list[_Column] = []
    for column in columns:
        name = "" if column.name in seen else column.name
        seen.add(column.name)
        unique.append(_Column(column.header, name, column.unit, column.key))
    return unique


def _column(header: str) -> _Column:
    """Take a header apart: words, unit, canonical name."""
    plain = _CAMEL.sub("_", header).lower().replace("µ", "u")
    key = _SEPARATORS.sub("_", plain).strip("_")
    words = _WORD.findall(_END_TO_END.sub("etoe", plain))
    unit = ""
    per_second = len(words) >= 2 and (words[-2:] in (["per", "s"], ["per", "sec"], ["per", "second"]))
    if per_second:
        words = words[:-2]
    elif len(words) >= 2 and words[-1] in ("s", "sec", "second") and words[-2] in _COUNTED:
        per_second, words = True, words[:-1]
    latency = _latency(words)
    if latency:
        units = [word for word in words if word in _TIME_UNITS]
        return _Column(header, latency, units[-1] if units else "", key)
    if words and (words[-1] in _PERCENT or words[-1] in _TIME_UNITS) and len(words) > 1:
        unit = words[-1]
        words = words[:-1]
    text = " ".join(words)
    if per_second:
        bare = " ".join(words[:-1]) if words and words[-1] in _COUNTED else ""
        name = _PER_SECOND.get(text) or _NAMES.get(text) or _NAMES.get(bare, "")
        name = name if COLUMNS.get(name, ("", ""))[0] in ("1/s", "tok/s") else ""
    else:
        name = "" if text in _ONLY_PER_SECOND else _NAMES.get(text, "")
    if unit in _TIME_UNITS and name not in _TIMES:
        name = ""
    return _Column(header, name, unit, key)


def _latency(words: Sequence[str]) -> str:
    """``tpot_p99`` and the like from the words of a header; empty when it is no latency or a spread of one."""
    have = set(words)
    metric = next((name for name, need in _METRICS if need <= have), "")
    if not metric or have & _NOT_A_STAT:
        return ""
    stats = [_STAT_WORDS[word] for word in words if word in _STAT_WORDS]
    return f"{metric}_{stats[0] if stats else 'mean'}"


def _filled(cells: Sequence[str], columns: Sequence[_Column]) -> bool:
    """Does a line fit the header: as many cells (empty ones at the end may be more) and at least one number?"""
    if len(cells) < len(columns) or any(cells[len(columns) :]):
        return False
    return any(
        column.name not in ("", "policy") and _CELL.match(cell) for column, cell in zip(columns, cells, strict=False)
    )


def _read(cell: str, delimiter: str) -> tuple[float, str] | None:
    """A cell as number and unit text; None when it is empty, a word, infinite or not a number."""
    text = cell.replace("µ", "u")
    if _THOUSANDS.fullmatch(text.split(" ")[0]) and delimiter != ";":
        text = text.replace(",", "")
    elif delimiter != ",":
        text = text.replace(",", ".", 1)
    match = _CELL.fullmatch(text)
    if match is None:
        return None
    value = float(match.group(1))
    return (value, match.group(2).lower().replace(" ", "")) if math.isfinite(value) else None


def _scales(
    columns: Sequence[_Column], grid: Sequence[Sequence[str]], delimiter: str
) -> tuple[dict[int, float | None], frozenset[str]]:
    """Factor per column to its canonical unit (None: the unit cannot be told, the column stays text), and the guesses.

    A column is judged as a whole, since one column has one unit: fractions are told from percents by their largest
    value, and a time per token without a unit by its size (a whole column of >= 2 s per token is not served by anyone,
    nor one of <= 0.5 ms).
    """
    scales: dict[int, float | None] = {}
    guessed: set[str] = set()
    for index, column in enumerate(columns):
        if column.name in ("", "policy"):
            continue
        read = [found for cells in grid if (found := _read(cells[index], delimiter)) is not None]
        bare = [value for value, unit in read if not unit]
        scale: float | None = 1.0
        if column.name in _FRACTIONS:
            largest = max((abs(value) for value in bare), default=0.0)
            scale = 0.01 if largest > 1.0 or column.unit in _PERCENT else 1.0
        elif column.name in _TIMES:
            scale = _TIME_UNITS.get(column.unit)
            if scale is None and column.name == "duration_s":
                scale = 1.0
            elif scale is None and bare and column.name.startswith(("tpot_", "itl_")):
                scale = 1e-3 if min(bare) >= 2.0 else 1.0 if max(bare) <= 0.5 else None
                if scale is not None:
                    guessed.add(column.name)
        scales[index] = scale
    return scales, frozenset(guessed)


def _row(
    number: int,
    cells: Sequence[str],
    columns: Sequence[_Column],
    scales: Mapping[int, float | None],
    delimiter: str,
) -> BenchRow:
    """One line as a row; a unit in the cell beats the column's."""
    values: dict[str, float] = {}
    settings: dict[str, str] = {}
    policy: str | None = None
    for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if column.name == "policy":
            policy = cell or None
            continue
        read = _read(cell, delimiter) if column.name else None
        factor = _factor(column.name, read[1], scales[index]) if read is not None else None
        if read is not None and factor is not None:
            values[column.name] = read[0] * factor
        elif cell:
            settings[column.key] = cell
    return BenchRow(number, values, policy, settings)


def _factor(name: str, unit: str, column: float | None) -> float | None:
    """Factor for one cell; None when its unit does not belong to the column."""
    if not unit:
        return column
    if name in _TIMES:
        return _TIME_UNITS.get(unit)
    if name in _FRACTIONS:
        return 0.01 if unit in _PERCENT else None
    return 1.0 if unit in ("tok/s", "tokens/s", "req/s", "reqs/s", "requests/s", "/s", "x", "tok", "tokens") else None
