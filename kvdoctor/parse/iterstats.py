"""TensorRT-LLM iteration statistics: JSON lines, arrays (also cut or pretty-printed ones), one row per engine step.

The engine gives them at ``GET /metrics`` (a JSON array that each read empties), through ``get_stats()`` and, behind
Triton, as a line of its log. Key names are read in camel case (C++ and HTTP), snake case (Python bindings) and in the
spaced form of Triton's log, because files of all three exist. Source: the field list in the executor's JSON contract.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from kvdoctor.frozen import frozen
from kvdoctor.parse import KEPT_BAD, SHOWN, BadLine, bad_line


@frozen
class IterationRow:
    """One engine step; a field is None when the record does not give it (never 0).

    ``line`` is where the record begins, counted from 1. ``time`` is epoch seconds; a timestamp without a zone is taken
    as UTC, so differences hold and the absolute time may be off by the zone. ``latency_s`` and ``queue_latency_s`` are
    seconds, memory is bytes, ``*_tokens`` tokens, ``*_blocks`` blocks, ``hit_rate`` a fraction, all others counts.
    ``paused`` counts requests paused in this step, ``queued`` those that wait for their first admission. ``active`` are all
    that were taken in, ``scheduled`` those of them that this step computes.
    ``secondary_*`` is the host tier, summed over attention windows.
    """

    line: int
    time: float | None = None
    iteration: float | None = None
    rank: float | None = None
    latency_s: float | None = None
    queue_latency_s: float | None = None
    new_active: float | None = None
    active: float | None = None
    queued: float | None = None
    completed: float | None = None
    max_active: float | None = None
    max_batch_static: float | None = None
    max_batch_runtime: float | None = None
    max_step_tokens: float | None = None
    gpu_bytes: float | None = None
    cpu_bytes: float | None = None
    pinned_bytes: float | None = None
    max_blocks: float | None = None
    free_blocks: float | None = None
    used_blocks: float | None = None
    tokens_per_block: float | None = None
    reused_blocks: float | None = None
    missed_blocks: float | None = None
    hit_rate: float | None = None
    secondary_max_blocks: float | None = None
    secondary_used_blocks: float | None = None
    scheduled: float | None = None
    context_requests: float | None = None
    generation_requests: float | None = None
    paused: float | None = None
    context_tokens: float | None = None
    generation_tokens: float | None = None
    paused_kv_tokens: float | None = None
    micro_batch: float | None = None

    @property
    def idle(self) -> float | None:
        """Requests that were taken in and are not computed in this step, the paused ones among them.

        None without both numbers. In a pipeline a step is one of several micro-batches, and the others compute the rest.
        """
        if self.active is None or self.scheduled is None or self.micro_batch:
            return None
        return max(self.active - self.scheduled, self.paused or 0.0)

    @property
    def kv_usage(self) -> float | None:
        """Blocks in use / blocks of the primary pool, as a fraction; None without both numbers."""
        if self.max_blocks is None or self.max_blocks <= 0:
            return None
        if self.used_blocks is not None:
            return self.used_blocks / self.max_blocks
        if self.free_blocks is not None:
            return 1.0 - self.free_blocks / self.max_blocks
        return None


@frozen
class IterationStats:
    """The rows of one file in its order; ``bad`` holds the first refused pieces, ``bad_count`` counts all of them."""

    origin: str
    rows: tuple[IterationRow, ...]
    bad: tuple[BadLine, ...]
    bad_count: int
    lines: int


@frozen
class NotIterationStats:
    """The text holds no iteration record; ``reason`` quotes its first characters."""

    origin: str
    reason: str


# Field -> the places it is found at, in order: "group/key" in snake case, or a bare key of the record itself.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "iteration": ("iter", "iteration_counter"),
    "rank": ("attention_dp_rank", "rank"),
    "latency_s": ("iter_latency_ms",),
    "queue_latency_s": ("new_active_requests_queue_latency_ms",),
    "new_active": ("num_new_active_requests",),
    "active": ("num_active_requests", "active_request_count"),
    "queued": ("num_queued_requests", "waiting_requests"),
    "completed": ("num_completed_requests",),
    "max_active": ("max_num_active_requests", "max_request_count"),
    "max_batch_static": ("max_batch_size_static",),
    "max_batch_runtime": ("max_batch_size_runtime",),
    "max_step_tokens": ("max_num_tokens_runtime", "max_num_tokens_static"),
    "gpu_bytes": ("gpu_mem_usage", "runtime_gpu_memory_usage"),
    "cpu_bytes": ("cpu_mem_usage", "runtime_cpu_memory_usage"),
    "pinned_bytes": ("pinned_mem_usage", "runtime_pinned_memory_usage"),
    "max_blocks": ("kv_cache_stats/max_num_blocks", "max_kv_cache_blocks"),
    "free_blocks": ("kv_cache_stats/free_num_blocks", "free_kv_cache_blocks"),
    "used_blocks": ("kv_cache_stats/used_num_blocks", "used_kv_cache_blocks"),
    "tokens_per_block": ("kv_cache_stats/tokens_per_block", "tokens_per_kv_cache_block"),
    "reused_blocks": ("kv_cache_stats/reused_blocks",),
    "missed_blocks": ("kv_cache_stats/missed_blocks",),
    "hit_rate": ("kv_cache_stats/cache_hit_rate",),
    "scheduled": (
        "inflight_batching_stats/num_scheduled_requests",
        "static_batching_stats/num_scheduled_requests",
        "scheduled_requests",
    ),
    "context_requests": (
        "inflight_batching_stats/num_context_requests",
        "static_batching_stats/num_context_requests",
        "context_requests",
    ),
    "generation_requests": ("inflight_batching_stats/num_gen_requests", "generation_requests"),
    "paused": ("inflight_batching_stats/num_paused_requests", "paused_requests"),
    "context_tokens": (
        "inflight_batching_stats/num_ctx_tokens",
        "static_batching_stats/num_ctx_tokens",
        "total_context_tokens",
    ),
    "generation_tokens": ("static_batching_stats/num_gen_tokens", "total_generation_tokens"),
    "paused_kv_tokens": ("inflight_batching_stats/num_paused_kv_tokens",),
    "micro_batch": ("inflight_batching_stats/micro_batch_id", "micro_batch_id"),
}
_MILLISECONDS = frozenset({"latency_s", "queue_latency_s"})
_MARKS = frozenset(
    {
        "iter",
        "iter_latency_ms",
        "kv_cache_stats",
        "inflight_batching_stats",
        "static_batching_stats",
        "num_active_requests",
        "active_request_count",
    }
)
_HEAD_MARKS = (
    '"iterLatencyMS"',
    '"kvCacheStats"',
    '"inflightBatchingStats"',
    '"staticBatchingStats"',
    '"numActiveRequests"',
    '"iter_latency_ms"',
    '"kv_cache_stats"',
    '"inflight_batching_stats"',
    '"num_active_requests"',
    '"Active Request Count"',
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_GAP = re.compile(r"[\s,\]]*")
# A log line in front of the JSON also begins with "[", but no JSON follows it.
_JSON_START = re.compile(r"\s*(?:\{\s*\"|\[\s*[\[{\]])")
_DECODER = json.JSONDecoder()
# A refused decode costs as much as the text before it is long (the decoder counts the lines for its message): short
# lines are decoded by themselves, and of longer values only so many may fail.
_SHORT = 8192
_MOST_FAILURES = 50

# The executor's own clock text, and what Python builds print.
_FORMATS = ("%m-%d-%Y %H:%M:%S.%f", "%m-%d-%Y %H:%M:%S")
# Epoch numbers: the unit is told by the size (seconds until the year 5138, then milli-, micro-, nanoseconds).
_EPOCH_UNITS = ((1e8, 1e11, 1.0), (1e11, 1e14, 1e-3), (1e14, 1e17, 1e-6), (1e17, 1e20, 1e-9))


def looks_like(head: str) -> bool:
    """Do the first characters of a file belong to iteration statistics? A metrics page or a log does not match."""
    return _JSON_START.match(head.removeprefix("\ufeff")) is not None and any(mark in head for mark in _HEAD_MARKS)


def parse(text: str, *, origin: str = "") -> IterationStats | NotIterationStats:
    """Read one file; never raises on any text. Pieces that are no record are counted with their line number."""
    text = text.removeprefix("\ufeff")
    rows: list[IterationRow] = []
    bad: list[BadLine] = []
    bad_count = 0
    for line, piece, why in _pieces(text):
        row = _row(line, piece) if isinstance(piece, dict) else None
        if row is not None:
            rows.append(row)
            continue
        bad_count += 1
        if len(bad) < KEPT_BAD:
            bad.append(bad_line(line, why or "no iteration record", str(piece)))
    if not rows:
        return NotIterationStats(origin, f"no iteration record in it: {text.lstrip()[:SHOWN]!r}")
    return IterationStats(origin, tuple(rows), tuple(bad), bad_count, text.count("\n") + 1)


def _pieces(text: str) -> Iterator[tuple[int, object, str]]:
    """JSON values from the text with their line and, for a piece that could not be read, the reason.

    An array that does not close is entered, so that a file cut in the middle gives all its whole records.
    """
    position, line, counted, failures = 0, 1, 0, 0
    end = len(text)
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        if position >= end:
            return
        line += text.count("\n", counted, position)
        counted = position
        stop = text.find("\n", position)
        stop = end if stop < 0 else stop
        opens = text[position] in "{["
        found = _decode(text[position:stop], 0) if opens and stop - position <= _SHORT else None
        if found is not None:
            found = found[0], position + found[1]
        elif opens and failures < _MOST_FAILURES:
            found = _decode(text, position)
            failures += found is None
        if found is None:
            if text[position] == "[":
                position += 1
                continue
            yield line, text[position : min(stop, position + SHOWN)], "not JSON, or cut"
            position = stop
            continue
        value, position = found
        if isinstance(value, list):
            for item in value:
                yield line, item, ""
        else:
            yield line, value, ""


def _decode(text: str, position: int) -> tuple[object, int] | None:
    """The JSON value at a position and where it ends; None when there is none."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    return value, end


def _snake(key: str) -> str:
    """``iterLatencyMS``, ``iter_latency_ms`` and ``Iter Latency MS`` are the same key."""
    return _CAMEL.sub("_", key).replace(" ", "_").lower()


def _row(line: int, record: dict[str, object]) -> IterationRow | None:
    """One record as a row, or None when it carries none of the keys that make it one."""
    flat: dict[str, object] = {}
    for key, value in record.items():
        name = _snake(key)
        flat[name] = value
        if isinstance(value, dict):
            for inner, deep in value.items():
                flat[f"{name}/{_snake(str(inner))}"] = deep
    if not _MARKS.intersection(flat):
        return None
    found: dict[str, float | None] = {}
    for field, places in _FIELDS.items():
        number = next((n for n in (_number(flat.get(place)) for place in places) if n is not None), None)
        found[field] = number / 1000.0 if number is not None and field in _MILLISECONDS else number
    secondary = _secondary(flat.get("kv_cache_iteration_stats"))
    return IterationRow(line, _time(flat.get("timestamp")), **found, **secondary)


def _secondary(windows: object) -> dict[str, float | None]:
    """Blocks of the host tier, summed over the attention windows; a window that gives none is left out."""
    sums: dict[str, float | None] = {"secondary_max_blocks": None, "secondary_used_blocks": None}
    if isinstance(windows, dict):
        for stats in windows.values():
            if not isinstance(stats, dict):
                continue
            named = {_snake(str(key)): value for key, value in stats.items()}
            for field, key in (
                ("secondary_max_blocks", "secondary_max_num_blocks"),
                ("secondary_used_blocks", "secondary_used_num_blocks"),
            ):
                number = _number(named.get(key))
                if number is not None:
                    before = sums[field]
                    sums[field] = number if before is None else before + number
    return sums


def _number(value: object) -> float | None:
    """A finite JSON number; anything else (text, true, NaN, null) is no reading."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _time(value: object) -> float | None:
    """Epoch seconds from a number of any common unit, the executor's ``MM-DD-YYYY HH:MM:SS.ffffff`` or ISO 8601."""
    number = _number(value)
    if number is not None:
        return next((number * factor for low, high, factor in _EPOCH_UNITS if low <= number < high), None)
    if not isinstance(value, str):
        return None
    for form in _FORMATS:
        try:
            return datetime.strptime(value.strip(), form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    try:
        moment = datetime.fromisoformat(value.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
