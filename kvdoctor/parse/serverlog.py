"""Server logs: any wrapping to bare lines, bare lines to typed events, by templates the engine tables own.

A log is read once, as bytes, in bounded memory. Only lines that contain a template's literal are decoded and unwrapped,
so the cost is that of finding a few strings. Wrappings understood: docker json, CRI, Kubernetes time stamps, kubectl and
compose prefixes, journald (text and json), a level in front of the engine's own, Ray (with its repeat counts), ANSI
colours, CRLF, UTF-16, Latin-1, escaped newlines inside one line, two messages glued into one line, a message broken over
two lines.
"""

from __future__ import annotations

import bisect
import codecs
import functools
import itertools
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from kvdoctor.frozen import frozen
from kvdoctor.parse import OOM_LITERALS, Unread
from kvdoctor.parse.lazy import lazily

if TYPE_CHECKING:
    from kvdoctor.parse.oom import OomMessage


@frozen
class LogTemplate:
    """One log message of the engine.

    ``literal`` is an exact piece of the message that every instance contains: lines without it are never looked at.
    ``pattern`` is matched (``re.search``) on the unwrapped line; its named groups become fields. ``scale`` multiplies a
    numeric group; a group named ``x__gib``, ``x__mib``, ``x__gb``, ``x__kib`` or ``x__pct`` becomes field ``x`` in bytes or a
    fraction. ``event`` is the canonical kind (see :data:`EVENTS`). ``fields`` are constants added to the event. ``last`` means
    only the last such event counts per run (bounded memory for frequent lines is not affected by it).
    """

    id: str
    event: str
    literal: str
    pattern: str
    fields: Mapping[str, str | float | bool] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)
    since: str | None = None
    until: str | None = None
    note: str = ""
    derive: Callable[[dict[str, object]], dict[str, object]] | None = None


EVENTS: Mapping[str, str] = {
    "banner": "a server run begins; fields: version, model, pid, "
    "generation (vLLM: V0 or V1), part (api or core: one run of vLLM prints both)",
    "args": "configuration; fields: text (the raw key=value part), parsed later by the engine's `parse_args`",
    "stats": "periodic line; fields: engine, running, waiting, swapped, deferred, kv_usage, cpu_usage, prompt_rate, "
    "gen_rate, prefix_hit, external_hit, secondary_usage, tokens_used, pending_tokens, new_tokens, cached_tokens, "
    "new_seqs, spec_accept, batch ('prefill'|'decode'), swa_usage, mamba_usage (secondary_usage is the fullest), "
    "pd_prefill_queue, pd_transfer_queue, pd_decode_queue, retracted_waiting, prealloc_usage (disaggregated), "
    "aggregated (ranks averaged in this line), kv_fetch (requests in a KV transfer), spec (bool: speculative decoding), "
    "partial (bool: a second line of the same report, without running and waiting), paused (requests paused in this step), "
    "max_running (the limit of running)",
    "iteration": "one scheduler step; fields: context_requests, context_tokens, generation_requests, generation_tokens, "
    "elapsed_ms",
    "pool": "KV pool laid out; fields: tokens, bytes, blocks, block_tokens, cpu_blocks, available_bytes, dry_run, "
    "max_running, max_model_len, slots, slot_tokens, unified, device, "
    "profiled_blocks (before an override), host (bool: the pool is in host memory), block_bytes, "
    "sequence_blocks (blocks of the longest request)",
    "concurrency": "largest concurrency; fields: length (tokens per request), ratio, cut (bool: the length was cut to what fits)",
    "memory": "a part of the memory budget; fields: weights, activations, graphs, non_torch, kv_pool, total, budget, "
    "fraction, free (all bytes, fraction as 0..1), secondary_pool, host_pool, device, stage (when it was measured), "
    "consumed (weights + non_torch in one figure), peak_torch (weights + activations in one figure), "
    "free_initial, fraction_equivalent",
    "graphs_begin": "graph capture starts",
    "graphs_end": "graph capture finished; fields: graphs (bytes), seconds",
    "ready": "the server accepts requests",
    "preempt": "preemption notice; fields: total (running count printed), id, mode ('recompute'|'swap')",
    "retract": "requests retracted or paused; fields: count, ratio_from, ratio_to, lost_tokens, tokens_gained "
    "(pool tokens freed at once: a lower bound of what is computed again), aborted",
    "pool_full": "the pool overflowed and the engine has no victim choice; fields: batch, slot, final (bool: no retry follows)",
    "request_failed": "a request was failed by the engine; fields: id, slot, n_tokens, n_ctx, why",
    "request_in": "a request arrived or started; fields: id, prompt_tokens, max_tokens, slot, n_ctx (several lines of one "
    "request carry the same id)",
    "request_queued": "a request waits for a slot; fields: id",
    "timing": "times of one request; fields: id, slot, prompt_tokens, prompt_s, output_tokens, gen_s",
    "context_shift": "old context was dropped to go on; fields: id, slot, n_keep, n_discard, n_ctx",
    "request_out": "a request ended; fields: id, prompt_tokens, output_tokens, finish ('stop'|'length'|'abort'), slot, "
    "truncated, prompt_ms, gen_ms, n_tokens (prompt and output), retractions, cached_tokens, queue_ms, total_ms, "
    "max_tokens",
    "admission_blocked": "the head of the queue does not fit into the pool now; fields: free_blocks, total_blocks, admitted, "
    "planned (requests of this step)",
    "request_rejected": "refused at admission; fields: id, why",
    "slot_reuse": "llama.cpp slot choice; fields: slot, how ('lru'|'similarity'|'purge'), id, cached_tokens, "
    "n_tokens, t_last (-1: the slot was never used, nothing is lost)",
    "context_limit": "prompt exceeds the context; fields: n_tokens, n_ctx, id, truncated",
    "start_error": "the engine refuses to start; fields: error (start.error value), need, have, total, fraction, free, "
    "free_initial, tokens_need, tokens_have, text, "
    "used, used_initial (bytes), empty (bool: nothing at all is left for the pool)",
    "warmup": "sampler or model warm-up; fields: requests, sampler (bool)",
    "multimodal_profile": "multi-modal profiling reserves memory; fields: tokens, limit",
    "hybrid_disabled": "KV of sliding or hybrid layers is booked as full attention",
    "crash_stats": "scheduler state dumped at a crash; fields: running, waiting, kv_usage",
    "page_oom": "token pool failure; fields: batch ('prefill'|'decode'), want_tokens, free (available + evictable), "
    "available, evictable, page (one failure is several lines, each gives some of them)",
    "idle_check": "token pool accounting when idle; fields: available, evictable, total, used, lost (total less all that is "
    "accounted for; negative: given back twice), pool",
    "model_load": "a model is loaded; fields: model, bytes",
    "model_unload": "a model is unloaded; fields: model",
    "offload_lookup": "second-tier lookup; fields: total, hit, need_load",
    "offload_fail": "store into the second tier failed",
    "transfer": "disaggregated KV transfer; fields: failed, expired",
    "exit": "a process died; fields: code, signal, process",
    "error": "a Python or engine error that ends work; fields: text (class and first words), "
    "start (bool: while starting), site (oom.site value, where the line names the step it died in)",
    "stall": "the engine reports it makes no progress; fields: text, ends (bool: and gives up), soft (bool: told only)",
    "phase": "a named step of work begins or ends; fields: what, begin (bool)",
    "oom": "device out of memory; made by the log reader from kvdoctor.parse.oom; fields: requested, total, free, "
    "allocated, unallocated, reserved, cap, site, device, wording",
    "xid": "NVRM Xid; fields: number, pid, device",
    "oom_kill": "kernel, cgroup or unit kill; fields: pid, process (or systemd unit), denied (bool: the runtime says that there was none)",
}
"""The canonical event kinds and their fields. Numbers are canonical units: bytes, tokens, fractions, seconds."""


@frozen
class LogEvent:
    """One recognised line. ``fields`` are canonical; ``line`` is 1-based; ``time`` is epoch seconds or None.

    ``rank`` names the process or rank that wrote it ('' where the line does not say). ``repeat`` multiplies it (Ray folds
    equal lines of many workers into one). ``place`` is the line of the file where that is another than ``line``, which counts
    in the order of time: some exports begin with the newest line.
    """

    template: str
    event: str
    fields: Mapping[str, object]
    line: int
    time: float | None = None
    rank: str = ""
    pid: int | None = None
    repeat: int = 1
    place: int | None = None

    def number(self, name: str) -> float | None:
        """A numeric field, or None when the line does not carry it."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value)

    def text(self, name: str) -> str | None:
        """A text field, or None."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else None


@dataclass(slots=True)
class ParsedLog:
    """What a log said. ``dropped`` counts events beyond the memory bound, by template (the newest are kept).

    ``order`` is empty for a log that begins with its oldest line, :data:`TURNED` for one that was turned round, and
    :data:`NOT_TURNED` for one that is too large for it.
    """

    events: list[LogEvent]
    lines: int
    bad_lines: int
    first_time: float | None
    last_time: float | None
    clock: str
    wrapping: str
    encoding: str
    dropped: Mapping[str, int]
    order: str = ""


TURNED = "newest first"
NOT_TURNED = "newest first, not turned"

MAX_LINE = 65_536
CHUNK = 1 << 20
KEEP_STATS = 20_000
KEEP_FIRST = 400
KEEP_LAST = 1_600
KEEP_NOISE = 400
MOST_MISSES = 20_000
KEEP_OOM = 60
ABOVE = 160
ABOVE_LINE = 2_048
FOLLOW_LINE = 4_096
HELD_BYTES = 4 << 20
SHAPE_BYTES = 8 << 20

_ANSI = lazily(r"\x1b\[[0-9;?]{0,32}[A-Za-z]|\x1b\][^\x07]{0,256}\x07")
_UNITS = {
    "gib": 2.0**30, "gb": 1e9, "mib": 2.0**20, "mb": 1e6, "kib": 1024.0, "kb": 1000.0, "pct": 0.01, "ms": 0.001,
    "us": 1e-6,
}  # fmt: skip


def plain(text: str) -> str:
    """The text without terminal colours."""
    return _ANSI.sub("", text) if "\x1b" in text else text


# ---------------------------------------------------------------- wrappers


@frozen
class Line:
    """A line without its wrapping."""

    text: str
    time: float | None
    rank: str
    pid: int | None
    repeat: int
    clock: str = ""


_CRI = lazily(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) (?:stdout|stderr) [FP] ")
_COMPOSE = lazily(r"[A-Za-z0-9][\w.-]{0,80} {0,40}\| ")
# journalctl -o short, short-precise, short-iso, short-full (a zone's name says no offset, but UTC) and short-unix
_JOURNAL = lazily(
    r"((?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?|"
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d| [A-Z]{3,5})|"
    r"\d{9,11}\.\d{6}) [\w.-]{1,255} [\w@./-]{1,128}\[(\d+)\]: "
)
_KUBECTL = lazily(r"\[pod/[^\]\s]{1,256}\] |pod/[\w.-]{1,253}/[\w.-]{1,63}: ")
_ISO_LEAD = lazily(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)[\t ]+")
# container runtimes write nine digits, no engine does
_NANO = lazily(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")
# what stands behind a time stamp that a wrapper put there: a log line with its own time, or one that has none
_INNER = lazily(
    r"(?:\([^)\n]{1,120}\) )?(?:(?:INFO|WARNING|ERROR|DEBUG|CRITICAL):? {1,5}(?!text_generation|lorax|batch|health)|\[|\{|slot |srv |"
    r"time=|\d{4}[-/]\d\d[-/]\d\d|\(\w{1,64}[^)\n]{0,40} pid=\d)"
)
_LOGFMT = lazily(r'(?:time|ts|t|level|lvl)=\S[^\n]{0,120}?\b(?:msg|message)="((?:[^"\\\n]|\\.){0,60000})"')
_ESCAPED = lazily(r'\\(["\\])')
_GKE_LEVEL = lazily(
    r"(?:INFO|WARNING|WARN|ERROR|DEBUG|DEFAULT|CRITICAL|NOTICE) (?=[\[({]|(?:INFO|WARNING|ERROR|DEBUG)\b)"
)
_RAY = lazily(r"\((\w[\w.:]{0,80}) pid=(\d+)(?:, ip=([\d.a-fA-F:]+))?\) ")
_RAY_REPEAT = lazily(r"\s*\[repeated (\d+)x across cluster\].{0,200}$")
_VLLM_RANK = lazily(r"\((\w{1,64})(?: rank=(\d+))? pid=(\d+)(?:, ip=[\d.a-fA-F:]+)?\)")
_SGLANG_RANK = lazily(r"\d\d:\d\d:\d\d(?:[.,]\d+)?((?: (?:DP|TP|PP|EP)\d+)+)\]")
_PARALLEL = lazily(r"((?:DP|TP|PP|EP|rank)_?\d+)")

_MONTHS = {
    m: i + 1 for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])
}
_STAMP = lazily(
    r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)(?:[T ]| - )(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?"
    r"(?P<z> ?UTC| ?Z|[+-]\d\d:?\d\d)?"
)
_STAMP_US = lazily(  # TensorRT-LLM: 11/29/2025-13:04:50
    r"(?<!\d)(?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d{4})[- ](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,6})?(?P<z>(?!))?"
)
_STAMP_SHORT = lazily(r"(?<!\d)(?P<mo>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,6})?(?!\d)")
_STAMP_SYSLOG = lazily(
    r"\b(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<d>\d{1,2}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>\.\d{1,6})?"
)


NO_YEAR = 1972
"""The leap year that stands in for one that nobody tells."""
_YEARLESS_END = 94_694_400.0


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    try:
        return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp() + (
            second - min(second, 59)
        )
    except ValueError:
        return None


def parse_time(text: str, year: int | None) -> tuple[float | None, str]:
    """The first timestamp of a line as epoch seconds and how sure it is: ``zone``, ``local`` (no zone: taken as UTC) or
    ``yearless`` (``year`` was filled in; 1972, a leap year, when none is known). ``(None, '')`` when there is none.
    """
    head = text[:200]
    match = _STAMP.search(head) or (_STAMP_US.search(head) if "/" in head else None)
    if match:
        base = _epoch(*(int(match[k]) for k in ("y", "mo", "d", "h", "mi", "s")))
        if base is None:
            return None, ""
        if match["f"]:
            base += float("0." + match["f"][1:])
        zone = match["z"]
        if zone and zone[-1] not in "ZC":
            sign = 1 if zone[0] == "+" else -1
            base -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
        return base, "zone" if zone else "local"
    match = _STAMP_SHORT.search(head)
    if match:
        base = _epoch(year or NO_YEAR, *(int(match[k]) for k in ("mo", "d", "h", "mi", "s")))
        if base is not None and match["f"]:
            base += float("0." + match["f"][1:])
        return base, "yearless" if base is not None else ""
    match = _STAMP_SYSLOG.search(head)
    if match:
        base = _epoch(year or NO_YEAR, _MONTHS[match["mon"]], *(int(match[k]) for k in ("d", "h", "mi", "s")))
        if base is not None and match["f"]:
            base += float("0" + match["f"])
        return base, "yearless" if base is not None else ""
    return None, ""


_JSON_TEXT = ("log", "MESSAGE", "message", "msg", "textPayload", "line")
_JSON_TIME = ("time", "timestamp", "ts", "@timestamp", "asctime", "receiveTimestamp", "__REALTIME_TIMESTAMP")


def _from_json(text: str) -> tuple[str, float | None] | None:
    """``{"log": "...", "time": ...}`` in any of the usual spellings; None when it is no such record."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    nested = record.get("fields") if isinstance(record.get("fields"), dict) else record.get("jsonPayload")
    for source in (record, nested):
        if not isinstance(source, dict):
            continue
        for key in _JSON_TEXT:
            body = source.get(key)
            if isinstance(body, list) and body and all(isinstance(b, int) and 0 <= b < 256 for b in body):
                body = bytes(body).decode("utf-8", "replace")  # journald prints non-ASCII messages as byte arrays
            if isinstance(body, str):
                return body, _json_time(record)
    return None


def _json_time(record: Mapping[str, object]) -> float | None:
    for key in _JSON_TIME:
        stamp = record.get(key)
        if key == "__REALTIME_TIMESTAMP" and isinstance(stamp, str) and stamp.isdigit():
            return int(stamp) / 1e6
        if isinstance(stamp, str):
            when, _ = parse_time(stamp, None)
            if when is not None:
                return when
        if isinstance(stamp, (int, float)) and not isinstance(stamp, bool) and stamp > 1e8:
            return float(stamp) / (1e3 if stamp > 1e11 else 1.0)
    return None


@dataclass(slots=True)
class Unwrapper:
    """Takes wrapping off lines. ``year`` dates stamps without one; ``met`` counts the wrappers that were met."""

    year: int | None = None
    met: dict[str, int] = field(default_factory=dict)

    def __call__(self, raw: str) -> list[Line]:
        """The bare line or, where one physical line holds several (escaped newlines), all of them."""
        text = plain(raw)
        zoned: float | None = None
        loose: tuple[float, str] | None = None
        for _ in range(5):  # wrappers nest: journald around docker-compose around the engine
            stripped, stamp, clock = self._peel(text)
            if stamp is not None and zoned is None:
                if clock == "zone":
                    zoned = stamp
                else:
                    loose = loose or (stamp, clock)
            if stripped is None:
                break
            text = plain(stripped)
        repeat = 1
        if "[repeated " in text:
            match = _RAY_REPEAT.search(text)
            if match:
                repeat = max(int(match.group(1)), 1)
                text = text[: match.start()]
        rank, pid = "", None
        match = _VLLM_RANK.search(text[:400])
        if match:
            pid = int(match.group(3))
            inner = _PARALLEL.findall(match.group(1))
            rank = f"rank{match.group(2)}" if match.group(2) is not None else "_".join(inner)
        # the engine's own tag, also behind a Ray actor's name, which tells no rank
        tag = None if rank else _SGLANG_RANK.search(text[:200])
        if tag:
            rank = "_".join(tag.group(1).split())
        when, clock = zoned, "zone"
        if when is None:
            when, clock = parse_time(text, self.year)
            if when is None and loose is not None:
                when, clock = loose
        if "\\n" in text and ("Traceback" in text or "rror" in text):
            parts = [p for p in text.replace("\\\\n", "\\n").split("\\n") if p]
        else:
            parts = text.split("\n") if "\n" in text else [text]
        return [Line(part.rstrip("\r"), when, rank, pid, repeat, clock) for part in parts if part]

    def _peel(self, text: str) -> tuple[str | None, float | None, str]:
        """The text without its outermost wrapper (None: there is none), the wrapper's time and how sure it is."""
        first = text[:1]
        if first == "{" and text.rstrip()[-1:] == "}":
            found = _from_json(text)
            if found is None:
                return None, None, ""
            self._met("json")
            return found[0], found[1], "zone"
        if first.isdigit():
            match = _CRI.match(text)
            if match:
                self._met("cri")
                return text[match.end() :], parse_time(match.group(1), None)[0], "zone"
        if first in "tl":
            match = _LOGFMT.match(text)
            # ollama's own lines have this form too; their templates are for the whole line
            if match and "source=" not in text[: match.start(1)]:
                self._met("logfmt")
                when, clock = parse_time(text, self.year)
                return _ESCAPED.sub(r"\1", match.group(1)), when, clock
        match = _JOURNAL.match(text)
        if match:
            self._met("journald")
            if match.group(1)[:9].isdigit():
                return text[match.end() :], float(match.group(1)), "zone"
            when, clock = parse_time(match.group(1), self.year)
            return text[match.end() :], when, clock
        if first.isdigit():
            match = _ISO_LEAD.match(text)
            if match and (_NANO.match(text) or _INNER.match(text, match.end())):
                # Python's own logging prints a comma: that is the program's stamp, nobody wrapped the line
                if "," not in match.group(1):
                    self._met("kubernetes")
                when, clock = parse_time(match.group(1), None)
                return text[match.end() :], when, clock
        if first == "[" or first == "p":
            match = _KUBECTL.match(text)
            if match:
                self._met("kubectl")
                return text[match.end() :], None, ""
        match = _COMPOSE.match(text)
        if match:
            self._met("compose")
            return text[match.end() :], None, ""
        match = _GKE_LEVEL.match(text)
        if match:
            inner = text[match.end() :]
            # the engine's own "INFO 03-19 ..." starts with a level too: peel only where another level follows
            if re.match(r"(?:\([^)]{1,120}\) )?(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL)\b", inner):
                self._met("gke")
                return inner, None, ""
        if first == "(":
            match = _RAY.match(text)
            if match and _VLLM_RANK.search(text[match.end() : match.end() + 120]):
                self._met("ray")
                return text[match.end() :], None, ""
        return None, None, ""

    def _met(self, name: str) -> None:
        self.met[name] = self.met.get(name, 0) + 1


# ---------------------------------------------------------------- matching


@dataclass(frozen=True)
class _Compiled:
    template: LogTemplate
    literal: str
    shape: bytes

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when the first line holds the literal: most templates of an engine meet none in most logs."""
        return re.compile(self.template.pattern)


def _value(name: str, text: str, scale: Mapping[str, float]) -> tuple[str, object]:
    base, _, unit = name.partition("__")
    factor = _UNITS.get(unit, 1.0) * scale.get(base, 1.0)
    bare = text.replace(",", "")
    try:
        number = float(bare)
    except ValueError:
        return base, text
    if not math.isfinite(number):
        return base, text
    return base, number * factor


def _fields(compiled: _Compiled, match: re.Match[str]) -> dict[str, object] | None:
    out: dict[str, object] = dict(compiled.template.fields)
    for name, text in match.groupdict().items():
        if text is not None:
            key, value = _value(name, text, compiled.template.scale)
            out[key] = value if key not in _TEXT_FIELDS else text
    if compiled.template.derive is not None:
        return compiled.template.derive(out)
    return out


_TEXT_FIELDS = frozenset(
    {"version", "model", "id", "text", "finish", "why", "how", "process", "signal", "mode", "what"}
)


# Counters, ports, times and hexadecimal ids are what differs between the lines of one statement in a program: without
# digits, and with the letters of hexadecimal digits made one, such lines have the same bytes. Backslashes go too: inside
# JSON every quote has one.
_SAME_LETTER = bytes.maketrans(b"bcdef", b"aaaaa")
_DIGITS = b"0123456789\\"


def line_shape(raw: bytes) -> bytes:
    """What stays of a line (or of a block of lines) when numbers and hexadecimal ids are taken out."""
    return raw.translate(_SAME_LETTER, _DIGITS)


@dataclass(slots=True)
class Kind:
    """What lines can be that hold the same literals: which templates fit, whether a message for lack of memory.

    ``literals`` are looked for in the line itself (a shape forgets digits); none for a line that may only be the first
    half of a broken message. ``misses`` counts lines that held a literal and were nothing; ``group`` is where lines of a kind
    that need not all be read are held back.
    """

    candidates: tuple[_Compiled, ...]
    literals: tuple[bytes, ...]
    oom: bool
    broken: bool = False
    misses: int = 0
    group: _Newest | None = None


_Sized = Mapping[int, Set[bytes]]


@functools.lru_cache(maxsize=32)
def _pieces(shapes: frozenset[bytes]) -> tuple[tuple[bytes, ...], _Sized, _Sized]:
    """(shapes that no shorter one is part of; beginnings; ends, both by length) - the same for every log of an engine."""
    ordered = sorted(shapes, key=lambda shape: (len(shape), shape))
    needles: list[bytes] = []
    for shape in ordered:
        if not any(short in shape for short in needles):
            needles.append(shape)
    stems: dict[int, set[bytes]] = {}
    rests: dict[int, set[bytes]] = {}
    for shape in ordered:
        for end in range(_SHORTEST_STEM, len(shape)):
            stems.setdefault(end, set()).add(shape[:end])
        for start in range(1, len(shape) - _SHORTEST_STEM):
            rests.setdefault(len(shape) - start, set()).add(shape[start:])
    return tuple(needles), stems, rests


class Matcher:
    """Templates ready to run over lines. Shapes of lines are judged once; patterns run only where a literal is."""

    def __init__(self, templates: Sequence[LogTemplate]) -> None:
        self.compiled = [_compile(t) for t in templates]
        self._oom = [(literal.encode(), line_shape(literal.encode())) for literal in OOM_LITERALS]
        shapes = frozenset({line_shape(t.literal.encode()) for t in templates} | {s for _, s in self._oom})
        self.needles, self._stems, self._rests = _pieces(shapes)
        self._kinds: dict[tuple[tuple[int, ...], bool], Kind] = {}
        self.first_half = Kind(tuple(self.compiled), (), False, True)
        self.second_half = Kind((), (), False, True)
        self._settled: list[tuple[bytes, Kind]] = []

    def kind(self, shape: bytes) -> Kind | None:
        """What a line of this shape can be; None: nothing."""
        for literal, settled in self._settled:
            if literal in shape:
                return settled
        for needle in self.needles:
            if needle in shape:
                break
        else:
            if any(shape[-size:] in stems for size, stems in self._stems.items()):
                return self.first_half
            return self.second_half if self.starts_inside(shape) else None
        fitting = tuple(i for i, c in enumerate(self.compiled) if c.shape in shape)
        wordings = tuple(literal for literal, folded in self._oom if folded in shape)
        if not fitting and not wordings:
            return None
        key = (fitting, bool(wordings))
        kind = self._kinds.get(key)
        if kind is None:
            candidates = tuple(self.compiled[i] for i in fitting)
            literals = [*(c.literal.encode() for c in candidates), *(w for w, _ in self._oom if wordings)]
            literals += [form for literal in literals if b'"' in literal for form in _in_json(literal)]
            kind = self._kinds[key] = Kind(candidates, tuple(dict.fromkeys(literals)), bool(wordings))
        return kind

    def starts_inside(self, shape: bytes) -> bool:
        """Does the line start inside a literal? Then it is the second half of a broken message."""
        return any(shape[:size] in rests for size, rests in self._rests.items())

    def settle(self, kind: Kind, ids: Sequence[str]) -> None:
        """Enough of these were read: a line with the literal of a request's message is that, whatever its text holds."""
        for compiled in kind.candidates:
            if compiled.template.id in ids and compiled.template.event in USERS_TEXT:
                self._settled.append((compiled.shape, kind))

    def match(self, text: str, among: Sequence[_Compiled] | None = None) -> list[tuple[str, str, dict[str, object]]]:
        """(template id, event, fields) of every template instance in a line; a glued line gives several.

        A line about a request may hold its prompt or its answer: what else seems to be in it was said by a user.
        """
        found: list[tuple[str, str, dict[str, object]]] = []
        for compiled in self.compiled if among is None else among:
            if compiled.literal not in text:
                continue
            for match in itertools.islice(compiled.pattern.finditer(text), 8):
                fields = _fields(compiled, match)
                if fields is not None:
                    found.append((compiled.template.id, compiled.template.event, fields))
        if len(found) > 1 and any(event in USERS_TEXT for _, event, _ in found):
            return [item for item in found if item[1] in USERS_TEXT]
        return found


def _in_json(literal: bytes) -> tuple[bytes, bytes]:
    """The literal inside a JSON string, and inside a JSON string in a JSON string."""
    return literal.replace(b'"', b'\\"'), literal.replace(b'"', b'\\\\\\"')


USERS_TEXT = frozenset({"request_in", "request_out"})
"""Events of messages that may quote what a user sent or got."""

_PLAIN_LEFT = lazily(r"[\w ,:;'\"=/<>!%&~#@-]*\Z")
_PLAIN_RIGHT = lazily(r"[\w ,:;'\"=/<>!%&~#@-]*")


def _compile(template: LogTemplate) -> _Compiled:
    literal = _widened(template.literal, template.pattern)
    return _Compiled(template, literal, line_shape(literal.encode()))


def _widened(literal: str, pattern: str) -> str:
    """The literal with the plain text that stands around it in the pattern: more of what every instance must hold."""
    form = next((form for form in (literal, re.escape(literal)) if pattern.count(form) == 1), None)
    if form is None or "(?i" in pattern or "(?x" in pattern:
        return literal
    at = pattern.index(form)
    end = at + len(form)
    if _one_of_several(pattern, at):
        return literal
    left, right = _PLAIN_LEFT.search(pattern, 0, at), _PLAIN_RIGHT.match(pattern, end)
    before, after = left.group() if left else "", right.group() if right else ""
    lead = pattern[: at - len(before)]
    if lead.endswith("\\"):
        before = before[1:]  # the letter of an escape
    elif lead.endswith("(?"):
        # the head of a group: (?P<name>, (?:, (?<!, (?=
        before = before.partition(">")[2] if before.startswith("P<") else before[1:] if before.startswith(":") else ""
    if pattern[end + len(after) : end + len(after) + 1] in ("?", "*", "{"):
        after = after[:-1]
    return before + literal + after


def _one_of_several(pattern: str, at: int) -> bool:
    """Is this place of the pattern inside a group that offers alternatives?"""
    alternatives = [False]
    here: list[int] = []
    index, in_class = 0, False
    verdicts: dict[int, bool] = {}
    names = [0]
    made = 0
    while index < len(pattern):
        if index == at:
            here = list(names)
        letter = pattern[index]
        if letter == "\\":
            index += 2
            continue
        if in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
            index += pattern.startswith(("^]", "]"), index + 1)
        elif letter == "(":
            made += 1
            names.append(made)
            alternatives.append(False)
        elif letter == ")" and len(names) > 1:
            verdicts[names.pop()] = alternatives.pop()
        elif letter == "|":
            alternatives[-1] = True
        index += 1
    verdicts[0] = alternatives[0]
    return any(verdicts.get(name, True) for name in here)


# a line that lists what may have happened says nothing of what did
_GUESS = r"\b(?:potential|possibl[ey]|may|might|could|perhaps|probably|usually|typically|e\.g\.)(?![\w-])"
_NO_GUESS = rf"(?:(?!{_GUESS})[^\n])*?"
_SHORTEST_STEM = 5
# systemd speaks of units; which one is the server's is for the reader of the events to tell
_UNIT = r"(?P<process>[\w@:.\\-]{1,200}\.(?:service|scope|slice))"
_EXIT_137 = ("code 137", "code: 137", "code=137", "status 137", 'code": 137', 'code":137', 'Code": 137', 'Code":137')
GENERIC: tuple[LogTemplate, ...] = (
    LogTemplate("traceback", "error", "Traceback (most recent call last)", r"Traceback \(most recent call last\)",
                fields={"text": "Traceback"}),
    LogTemplate("cuda_error", "error", "CUDA error", r"CUDA error: (?P<text>(?!out of memory)[^\n]{1,120})", fields={"cuda": True}),
    LogTemplate("cuda_runtime_error", "error", "CUDA runtime error", r"CUDA runtime error: (?P<text>(?!out of memory)[^\n]{1,120})",
                fields={"cuda": True}),
    LogTemplate("hip_error", "error", "HIP error", r"HIP error: (?P<text>(?!out of memory)[^\n]{1,120})", fields={"cuda": True}),
    LogTemplate("nccl_watchdog", "stall", "atchdog caught collective", r"(?P<text>[Ww]atchdog caught collective operation timeout[^\n]{0,80})",
                fields={"ends": True}),
    *(LogTemplate(f"exit_137_{i}", "exit", text, re.escape(text) + r"\b", fields={"code": 137.0}) for i, text in enumerate(_EXIT_137)),
    LogTemplate("sigkill", "exit", "SIGKILL", rf"(?i)^{_NO_GUESS}(?:killed by|signal|received|by|status|code|with)[^\n]{{0,40}}SIGKILL", fields={"signal": "SIGKILL"}),
    LogTemplate("not_oom_killed", "oom_kill", '"OOMKilled"', r'"OOMKilled": ?false', fields={"denied": True}),
    LogTemplate("oom_killed", "oom_kill", '"OOMKilled"', r'"OOMKilled": ?true'),
    *(LogTemplate(f"unit_{name}", "oom_kill", text, rf"(?:^|[\s\]]){_UNIT}: {re.escape(text)}")
      for name, text in (
          ("oom_killed", "A process of this unit has been killed by the OOM killer"),
          ("oom_result", "Failed with result 'oom-kill'"),
          ("oomd_killed", "systemd-oomd killed "),
      )),
    LogTemplate("exitcode_9", "exit", "exitcode", r"(?i)exitcode[:= ]{1,3}-9\b", fields={"signal": "SIGKILL"}),
    LogTemplate("signal_9", "exit", "signal", r"(?i)(?:terminated|killed|died)[^\n]{0,60}signal[: (]{1,3}9\b", fields={"signal": "SIGKILL"}),
)  # fmt: skip
"""Messages no engine owns."""


# ---------------------------------------------------------------- scanning


def detect_encoding(head: bytes) -> str:
    """``utf-16-le``, ``utf-16-be`` or ``utf-8`` (undecodable bytes are read as Latin-1 line by line)."""
    if head[:2] == b"\xff\xfe":
        return "utf-16-le"
    if head[:2] == b"\xfe\xff":
        return "utf-16-be"
    sample = head[:4096]
    half = len(sample) // 2
    if half >= 8:
        even, odd = sample[0::2].count(0) / half, sample[1::2].count(0) / half
        # a run of NULs (a log that was cut while it was written) has them at both
        if odd > 0.7 and even < 0.3:
            return "utf-16-le"
        if even > 0.7 and odd < 0.3:
            return "utf-16-be"
    return "utf-8"


def decode(raw: bytes) -> str:
    """One line's text; Latin-1 where it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _chunks(stream: BinaryIO | _Prefixed, encoding: str, size: int) -> Iterator[bytes]:
    if encoding == "utf-8":
        while block := stream.read(size):
            yield block
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while block := stream.read(size):
        yield decoder.decode(block).encode("utf-8", "replace")
    tail = decoder.decode(b"", final=True)
    if tail:
        yield tail.encode("utf-8", "replace")


def searchable(edge: bytes) -> bytes:
    """The lines of a piece of a log in a form in which words can be looked for.

    UTF-8, without colours, split lines joined, and at most :data:`ALIKE` lines of one shape.
    """
    encoding = detect_encoding(edge)
    if encoding != "utf-8":
        edge = edge.decode(encoding, "replace").encode("utf-8", "replace")
    lines = edge.split(b"\n")
    rule = _partial_rule(lines)
    if rule is not None:
        _join_partials(lines, rule, False)
        edge = b"\n".join(lines)
    seen: dict[bytes, int] = {}
    kept: list[bytes] = []
    for line, shape in zip(lines, line_shape(edge).split(b"\n"), strict=True):
        count = seen.get(shape, 0)
        if count < ALIKE:
            seen[shape] = count + 1
            kept.append(line)
    text = b"\n".join(kept)
    return _ANSI_BYTES.sub(b"", text) if b"\x1b" in text else text


ALIKE = 50
_ANSI_BYTES = lazily(_ANSI.pattern.encode())


class _Bag:
    """Events kept within a bound: all rare ones, the newest of frequent ones."""

    def __init__(self) -> None:
        self.first: dict[str, list[LogEvent]] = {}
        self.last: dict[str, deque[LogEvent]] = {}
        self.dropped: dict[str, int] = {}

    def add(self, event: LogEvent) -> None:
        key = event.template
        stats = event.event in ("stats", "iteration")
        if event.event == "iteration" and (merged := self._same_second(event)) is not None:
            self.last[key][-1] = merged
            return
        first = self.first.setdefault(key, [])
        if not stats and len(first) < KEEP_FIRST:
            first.append(event)
            return
        last = self.last.get(key)
        if last is None:
            last = self.last[key] = deque(maxlen=KEEP_STATS if stats else KEEP_LAST)
        if len(last) == last.maxlen:
            self.dropped[key] = self.dropped.get(key, 0) + 1
        last.append(event)

    def _same_second(self, event: LogEvent) -> LogEvent | None:
        """The newest iteration event with this one added, when both are of one second: sums stay exact, memory small."""
        kept = self.last.get(event.template)
        if not kept or event.time is None or kept[-1].time is None or kept[-1].rank != event.rank:
            return None
        if int(kept[-1].time) != int(event.time):
            return None
        fields = dict(kept[-1].fields)
        for name, value in event.fields.items():
            before = fields.get(name)
            if isinstance(value, float) and isinstance(before, float):
                fields[name] = before + value
        return replace(kept[-1], fields=fields, repeat=kept[-1].repeat + event.repeat)

    def all(self) -> list[LogEvent]:
        out = [e for events in self.first.values() for e in events]
        out.extend(e for events in self.last.values() for e in events)
        out.sort(key=lambda e: e.line)
        return out


def scan(
    stream: BinaryIO, templates: Sequence[LogTemplate], *, year: int | None = None, chunk: int = CHUNK
) -> ParsedLog:
    """Read a log once, in bounded memory, and return its events in order.

    ``stream`` is read to its end in ``chunk``-byte pieces. Lines are told apart by their shape; only those that can be a
    message are decoded. Of a message that occurs thousands of times the first and the last are read (:class:`_Bag`).
    ``year`` dates timestamps that have none, unless lines of the log itself print one. Lines over 64 KiB are cut before any pattern runs.
    """
    reader = _LogReader(Matcher([*templates, *GENERIC]), Unwrapper(), year)
    head = stream.read(chunk)
    encoding = detect_encoding(head)
    pieces: Iterator[bytes]
    if encoding == "utf-8":
        pieces = itertools.chain([head.removeprefix(b"\xef\xbb\xbf")], _chunks(stream, encoding, chunk))
    else:
        pieces = _chunks(
            _Prefixed(head[2:] if head[:2] in (b"\xff\xfe", b"\xfe\xff") else head, stream), encoding, chunk
        )
    pieces, order, places = _oldest_first(pieces, reader, chunk)
    carry = b""
    overlong = False
    for piece in pieces:
        data = carry + piece if not overlong else piece
        cut = data.rfind(b"\n")
        if cut < 0:
            if not overlong and len(data) > 2 * MAX_LINE:
                # a line longer than the bound: judge its start, then skip to its end
                reader.bad += 1
                reader.block(data[:MAX_LINE])
                overlong, data = True, b""
            carry = b"" if overlong else data
            continue
        block, carry = data[:cut], data[cut + 1 :]
        if overlong:
            overlong = False
            end = block.find(b"\n")
            if end < 0:
                continue
            block = block[end + 1 :]
        carry = reader.block(block, more=True) + carry
    if carry and not overlong:
        reader.block(carry.removesuffix(b"\n"))
    parsed = reader.finish(encoding)
    if places:
        parsed.events = [replace(e, place=places[e.line - 1]) if e.line <= len(places) else e for e in parsed.events]
    parsed.order = order
    return parsed


def _oldest_first(pieces: Iterator[bytes], reader: _LogReader, chunk: int) -> tuple[Iterator[bytes], str, list[int]]:
    """A log's pieces with the oldest line first, what was done for it, and the file's line of each line if turned."""
    from kvdoctor.parse import logorder

    taken = _up_to(pieces, logorder.LOOK)
    if not logorder.newest_first(b"".join(taken)[: logorder.LOOK], reader.time_of):
        return itertools.chain(taken, pieces), "", []
    taken += _up_to(pieces, logorder.MOST)
    more = next(pieces, None)
    if more is not None:
        return itertools.chain(taken, [more], pieces), NOT_TURNED, []
    whole, places = logorder.turned(b"".join(taken))
    return logorder.in_pieces(whole, chunk), TURNED, places


def _up_to(pieces: Iterator[bytes], most: int) -> list[bytes]:
    taken: list[bytes] = []
    size = 0
    while size < most and (piece := next(pieces, None)) is not None:
        taken.append(piece)
        size += len(piece)
    return taken


class _Prefixed:
    """A stream whose first bytes were already read."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if self._head:
            out, self._head = self._head[:size], self._head[size:]
            return out
        return self._rest.read(size)


_Dated = tuple[int, float]
"""A line that prints a whole date: its number and its time."""

_Held = tuple[int, bytes, tuple[bytes, ...], tuple[bytes, ...]]
"""A line that is read at the end, if it is then among the newest of its kind: number, bytes, lines after it, lines above."""


class _Newest:
    """The newest lines of one kind, within a number and a size: whole batches, the oldest go first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen = 0
        self.fresh: list[int] = []
        self.batches: deque[list[_Held]] = deque()
        self.lost = 0

    def add(self, batch: list[_Held]) -> None:
        """Add lines in their order, and let go what is not needed any more."""
        self.batches.append(batch)
        count = size = 0
        for kept, lines in enumerate(reversed(self.batches)):
            if kept and (count >= self.most or size > HELD_BYTES):
                while len(self.batches) > kept:
                    self.lost += len(self.batches.popleft())
                break
            count += len(lines)
            size += sum([len(line[1]) for line in lines]) if len(lines) < self.most else HELD_BYTES // 2

    def newest(self) -> list[_Held]:
        """The lines that are still held, at most ``most``."""
        lines = [line for batch in self.batches for line in batch]
        self.lost += max(len(lines) - self.most, 0)
        return lines[-self.most :]


class _LogReader:
    """Blocks of whole lines in, events out."""

    def __init__(self, matcher: Matcher, unwrap: Unwrapper, year: int | None) -> None:
        self.matcher = matcher
        self.unwrap = unwrap
        self.year = year
        self.quiet = Unwrapper()
        self.dated: list[_Dated] = []
        self.bag = _Bag()
        self.bad = 0
        self.number = 1
        self.kinds: dict[bytes, Kind | None] = {}
        self.kinds_size = 0
        self.newest: dict[tuple[str, ...], _Newest] = {}
        self.noise = _Newest(KEEP_NOISE)
        self.ooms = _Newest(KEEP_OOM)
        self.lines: list[bytes] = []
        self.above: list[bytes] = []
        self.partial: _Rule | None = None
        self.clocks: dict[str, int] = {}
        self.first: list[tuple[float, str]] = []
        self.earliest: tuple[int, float] | None = None
        self.latest: tuple[int, float] | None = None

    def block(self, block: bytes, *, more: bool = False) -> bytes:
        """Read a block of whole lines. With ``more`` to come, what belongs to a later line is given back."""
        lines = block.split(b"\n")
        if self.number == 1:
            self.partial = _partial_rule(lines)
        back = b""
        if self.partial is not None:
            back = _join_partials(lines, self.partial, more)
            block = b"\n".join(lines)
        if not self.first:
            self.first = self._times(lines[:40])
        if self.kinds_size > SHAPE_BYTES:
            self.kinds.clear()
            self.kinds_size = 0
        self.lines = lines
        kinds = self.kinds
        shapes = line_shape(block).split(b"\n")
        for shape in set(shapes).difference(kinds):
            kinds[shape] = self.matcher.kind(shape[:MAX_LINE])
            self.kinds_size += len(shape) + 120
        found = list(map(kinds.__getitem__, shapes))
        for index in itertools.compress(range(len(found)), found):
            kind = found[index]
            if kind is None:
                continue
            if (group := kind.group) is not None and group.seen >= KEEP_FIRST:
                group.fresh.append(index)
                continue
            raw = lines[index]
            for literal in kind.literals:
                if literal in raw:
                    self._line(index, raw, kind)
                    break
            else:
                if kind.broken:
                    self._line(index, raw, kind)
        for group in self.newest.values():
            if group.fresh:
                self._hold(group)
        self.number += len(lines)
        self.above = [line[:ABOVE_LINE] for line in (self.above + lines[-2 * ABOVE :]) if line][-ABOVE:]
        self.lines = []
        return back

    def finish(self, encoding: str) -> ParsedLog:
        """Read what was held back and close."""
        for group in (*self.newest.values(), self.noise, self.ooms):
            for line in group.newest():
                kind = self.matcher.kind(line_shape(line[1]))
                if kind is not None:
                    self._read(line, kind)
        last = self._times(self.above[::-1][:40])
        # lines of other programs may stand beside the server's: the server's own kind of clock counts
        clocks = self.clocks or {kind: 1 for _, kind in last[:1] or self.first[:1]}
        clock = max(clocks, key=lambda kind: clocks[kind]) if clocks else ""
        first_time = next((time for time, kind in self.first if kind == clock), None)
        last_time = next((time for time, kind in last if kind == clock), None)
        if first_time is None:
            first_time = self.earliest[1] if self.earliest is not None else last_time
        if last_time is None:
            last_time = self.latest[1] if self.latest is not None else first_time
        dated = sorted([*self._whole(self.first, 0), *self.dated, *self._whole(last, self.number)])
        events = self.bag.all()
        if dated or self.year:
            events = [self._with_year(event, dated) for event in events]
        first_time = None if first_time is None else self._year(first_time, 0, dated)
        last_time = None if last_time is None else self._year(last_time, self.number, dated)
        if clock == "yearless" and dated:
            clock = "local"
        elif clock == "yearless":
            events, last_time = _across_new_year(events, first_time, last_time)
        dropped = dict(self.bag.dropped)
        for ids, group in self.newest.items():
            for name in ids if group.lost else ():
                dropped[name] = dropped.get(name, 0) + group.lost
        if self.ooms.lost:
            dropped["oom"] = self.ooms.lost
        return ParsedLog(
            events=events,
            lines=self.number - 1,
            bad_lines=self.bad,
            first_time=first_time,
            last_time=last_time,
            clock=clock,
            wrapping=max(self.unwrap.met, key=lambda k: self.unwrap.met[k]) if self.unwrap.met else "",
            encoding=encoding,
            dropped=dropped,
        )

    @staticmethod
    def _whole(times: Sequence[tuple[float, str]], number: int) -> list[_Dated]:
        return [(number, time) for time, kind in times if kind != "yearless"]

    def _with_year(self, event: LogEvent, dated: Sequence[_Dated]) -> LogEvent:
        if event.time is None or event.time >= _YEARLESS_END:
            return event
        return replace(event, time=self._year(event.time, event.line, dated))

    def _year(self, time: float, number: int, dated: Sequence[_Dated]) -> float:
        """A time without a year in that of the dated line nearest to it, so that the two stand close; else in ``year``."""
        if time >= _YEARLESS_END or not (dated or self.year):
            return time
        if not dated:
            return later_year(time, (self.year or NO_YEAR) - NO_YEAR)
        at = bisect.bisect(dated, (number, math.inf))
        _, near = min(dated[max(at - 1, 0) : at + 1], key=lambda line: abs(line[0] - number))
        years = datetime.fromtimestamp(near, UTC).year - NO_YEAR
        return min((later_year(time, years + more) for more in (0, -1, 1)), key=lambda guess: abs(guess - near))

    def _times(self, lines: Sequence[bytes]) -> list[tuple[float, str]]:
        """Times of lines, in their order, each with how sure it is."""
        return [found for raw in lines if raw and (found := self.time_of(raw)) is not None]

    def time_of(self, raw: bytes) -> tuple[float, str] | None:
        """The time of a line and how sure it is; None when it has none."""
        line = next(iter(self.quiet(decode(raw[:2048]).rstrip("\r"))), None)
        return None if line is None or line.time is None else (line.time, line.clock)

    def _hold(self, group: _Newest) -> None:
        """Hold back lines of a kind of which enough were read; of one block only the newest can still be wanted."""
        fresh, lines, number = group.fresh, self.lines, self.number
        group.lost += max(len(fresh) - group.most, 0)
        group.add([(number + i, lines[i][:MAX_LINE], (), ()) for i in fresh[-group.most :]])
        fresh.clear()

    def _after(self, index: int) -> tuple[bytes, ...]:
        following = self.lines[index + 1 : index + 3]
        if self.partial is not None:
            # joined pieces left empty lines
            following = [line for line in self.lines[index + 1 : index + 200] if line]
        if following and _NATIVE_FRAME.match(following[0]):
            # a C++ program prints its stack below the message
            below = following if self.partial is not None else self.lines[index + 1 : index + 1 + MOST_NATIVE_FRAMES]
            following = list(itertools.takewhile(_NATIVE_FRAME.match, below))
        else:
            following = following[:2]
        return tuple(line[:FOLLOW_LINE] for line in following)

    def _line(self, index: int, raw: bytes, kind: Kind) -> None:
        """Read a line now, or hold it back when enough of its kind were read."""
        if kind is self.matcher.second_half:
            if index == 0 or self.matcher.kind(line_shape(self.lines[index - 1])) is not None:
                return  # the line before was read, together with this one
            index, raw, kind = index - 1, self.lines[index - 1], self.matcher.first_half
        follow = self._after(index)
        number = self.number + index
        if kind.oom:
            self.ooms.seen += 1
            before = [line for line in self.lines[max(index - 2 * ABOVE, 0) : index] if line][-ABOVE:]
            if len(before) < ABOVE:
                before = (self.above + before)[-ABOVE:]
            held = (number, raw[:MAX_LINE], follow, tuple(line[:ABOVE_LINE] for line in before))
            if self.ooms.seen > KEEP_OOM:
                self.ooms.add([held])
            else:
                self._read(held, kind)
            return
        if kind.misses > MOST_MISSES:
            self.noise.add([(number, raw[:MAX_LINE], follow, ())])
            return
        found = self._read((number, raw[:MAX_LINE], follow, ()), kind)
        if not found:
            kind.misses += 1
            if index and not kind.broken and self.matcher.starts_inside(line_shape(raw)):
                self._line(index, raw, self.matcher.second_half)
        elif kind.group is None and not any(event in ("stats", "iteration") for _, event in found):
            kind.group = self.newest.setdefault(tuple(sorted({template for template, _ in found})), _Newest(KEEP_LAST))
        if kind.group is not None:
            kind.group.seen += 1
            if kind.group.seen == KEEP_FIRST:
                self.matcher.settle(kind, [template for template, _ in found])

    def _read(self, held: _Held, kind: Kind) -> list[tuple[str, str]]:
        """Put a line's events into the bag; (template, kind) of each."""
        made: list[tuple[str, str]] = []
        number, raw, follow, above = held
        lines = self.unwrap(decode(raw).rstrip("\r"))
        frames: list[str] | None = None
        for index, line in enumerate(lines):
            found = self.matcher.match(line.text, kind.candidates)
            text = line.text
            if index == len(lines) - 1 and follow and (not found or any(event == "stats" for _, event, _ in found)):
                rest = self._rest(follow[0])
                again = self.matcher.match(line.text + rest) if rest else []
                if again and not found:
                    alone = self.matcher.match(rest)
                    again = [item for item in again if item not in alone]
                if _says_more(again, found):
                    found = again
                elif not found:
                    text = line.text + rest
            if found and line.time is not None:
                self.clocks[line.clock] = self.clocks.get(line.clock, 0) + 1
                if line.clock != "yearless" and len(self.dated) < KEEP_FIRST:
                    self.dated.append((number, line.time))
                if self.earliest is None or number < self.earliest[0]:
                    self.earliest = (number, line.time)
                if self.latest is None or number >= self.latest[0]:
                    self.latest = (number, line.time)
            for template, event, fields in found:
                made.append((template, event))
                self.bag.add(LogEvent(template, event, fields, number, line.time, line.rank, line.pid, line.repeat))
            quoted = any(event in USERS_TEXT for _, event, _ in found)
            if (kind.oom or kind.broken) and not quoted and any(literal in text for literal in OOM_LITERALS):
                if frames is None:
                    frames = self._frames(above, line)
                message = "\n".join([text, *(self._follow(follow) if index == len(lines) - 1 else ())])
                bag_oom(self.bag, line, message, [*frames, *(earlier.text for earlier in lines[:index])], number)
                made.append(("oom", "oom"))
        return made

    def _rest(self, follow: bytes) -> str:
        """The next line, when it is the other half of a message broken in the middle of a word; else nothing."""
        if _NEW_MESSAGE_RAW.match(follow):
            return ""
        rest = self.quiet(decode(follow).rstrip("\r"))
        if not rest or _NEW_MESSAGE.match(rest[0].text) or any(literal in rest[0].text for literal in OOM_LITERALS):
            return ""
        return rest[0].text

    def _follow(self, follow: Sequence[bytes]) -> list[str]:
        """Lines that go on with a message, without their wrapping; up to the next message."""
        out: list[str] = []
        for raw in follow:
            stack = _NATIVE_FRAME.match(raw) is not None
            for line in self.quiet(decode(raw).rstrip("\r"))[:1]:
                if stack:
                    out.append(line.text)
                    continue
                if _NEW_MESSAGE.match(line.text) or any(literal in line.text for literal in OOM_LITERALS):
                    return out
                out.append(line.text)
        return out

    def _frames(self, above: Sequence[bytes], line: Line) -> list[str]:
        """What led to an error, of the same process where lines say whose they are, nearest last (at most 120 lines).

        The traceback that ends in it, where there is one. Else the lines above, without those that tell settings or name a
        request: they name samplers and adapters that nobody used.
        """
        lines: list[str] = []
        for raw in above:
            for item in self.quiet(decode(raw).rstrip("\r")):
                if line.pid is not None and item.pid is not None and item.pid != line.pid:
                    continue
                if line.pid is None and line.rank and item.rank and item.rank != line.rank:
                    continue
                lines.append(item.text)
        traceback = _last_traceback(lines)
        if traceback:
            return traceback[-120:]
        return [
            text for text in lines[-120:]
            if "DEBUG" not in text[:80] and not any(event in _NO_FRAMES for _, event, _ in self.matcher.match(text))
        ]  # fmt: skip


_NO_FRAMES = USERS_TEXT | {"args", "banner", "stats", "pool", "memory"}
_TRACE_BEGINS = "Traceback (most recent call last)"
_TRACE_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_TRACE_LINE = lazily(
    r"(?:^|\] |\) )(?:  (?: {2,})?\S|\s*File \"[^\"]{1,400}\", line \d|\s*[\^~]{2,}\s*$|[A-Za-z_][\w.]{0,120}(?:Error|Exception)(?::|$))"
)


def _last_traceback(lines: Sequence[str]) -> list[str]:
    """The lines of the traceback that ends below, with those it was raised from; empty when there is none."""
    taken: list[str] = []
    frames = ended = False
    between = 0
    for text in reversed(lines):
        if _TRACE_BEGINS in text:
            ended = frames
            taken.append(text)
        elif any(words in text for words in _TRACE_CHAIN):
            ended = False
        elif ended:
            if text.strip() and not text.rstrip().endswith("]"):  # a log prefix alone is a blank line
                break
        elif _TRACE_LINE.search(text) is not None:
            frames = frames or 'File "' in text
            taken.append(text)
        elif not taken:
            between += 1
            if between > _FAR_ABOVE:
                return []
    return taken[::-1] if frames else []


_FAR_ABOVE = 20

MOST_NATIVE_FRAMES = 64
_NATIVE_FRAME = lazily(
    rb"[^\n]{0,120}?(?:^|[\s#\"]|\x1b\[[0-9;]{1,12}m)\d{1,3}:?(?:\s|\\t){1,20}(?:/\S{1,300}\(\+?)?0x[0-9a-fA-F]{4,16}\b"
)


_STARTS = r"\s*(?:\(\w[^)\n]{0,80} pid=\d|\[[^\]\n]{0,40}\d\d:\d\d|(?:INFO|WARN(?:ING)?|ERROR|DEBUG|CRITICAL)\b|time=|Traceback "
_NEW_MESSAGE = lazily(_STARTS + r"|\d{4}-\d\d-\d\d|\{\")")
_NEW_MESSAGE_RAW = lazily((_STARTS + ")").encode())


def _says_more(
    again: Sequence[tuple[str, str, dict[str, object]]], found: Sequence[tuple[str, str, dict[str, object]]]
) -> bool:
    if not found:
        return bool(again)
    return [t for t, _, _ in again] == [t for t, _, _ in found] and sum(len(f) for _, _, f in again) > sum(
        len(f) for _, _, f in found
    )


def _across_new_year(
    events: list[LogEvent], first_time: float | None, last_time: float | None
) -> tuple[list[LogEvent], float | None]:
    """Dates without a year go back by months at New Year: from there on they belong to the next year."""
    before = first_time
    years = 0
    out: list[LogEvent] = []
    for event in events:
        when = event.time
        if when is not None:
            if before is not None and later_year(when, years) < before - HALF_YEAR_S:
                years += 1
            when = before = later_year(when, years)
            event = replace(event, time=when) if years else event
        out.append(event)
    if last_time is not None and before is not None:
        if later_year(last_time, years) < before - HALF_YEAR_S:
            years += 1
        last_time = later_year(last_time, years)
    return out, last_time


HALF_YEAR_S = 180 * 86_400.0


def later_year(time: float, years: int) -> float:
    """The same date and time of day ``years`` later (29 February becomes the 28th where there is none)."""
    if not years:
        return time
    moment = datetime.fromtimestamp(time, UTC)
    try:
        return moment.replace(year=moment.year + years).timestamp()
    except ValueError:
        return moment.replace(year=moment.year + years, day=28).timestamp()


# ---------------------------------------------------------------- lines a container runtime split

_CRI_PARTIAL = lazily(rb"\S{20,40} (?:stdout|stderr) P ")
_CRI_ANY = lazily(rb"\S{20,40} (?:stdout|stderr) [FP] ")


_Rule = Callable[[bytes], bytes | None]
"""What a line of a runtime that splits long lines adds to the one before; None where it is no such line."""


def _partial_rule(lines: Sequence[bytes]) -> _Rule | None:
    """The rule of the runtime that wrote these lines, None when none that splits lines did."""
    for line in lines[:40]:
        if line.startswith(b'{"log":"'):
            return _docker_rest
        if _CRI_ANY.match(line):
            return _cri_rest
        if _BYTE_ARRAY.search(line):
            return _no_rest
    return None


# journald prints a message with colours or non-ASCII letters as the numbers of its bytes
_BYTE_ARRAY = lazily(rb'"MESSAGE" ?: ?\[([\d, ]{1,400000})\]')


def _spelled_out(match: re.Match[bytes]) -> bytes:
    numbers = [int(n) for n in match.group(1).split(b",") if n.strip()]
    if any(n > 255 for n in numbers):
        return match.group()
    return b'"MESSAGE":' + json.dumps(bytes(numbers).decode("utf-8", "replace"), ensure_ascii=False).encode()


def _no_rest(line: bytes) -> bytes | None:
    return None


def _cri_rest(line: bytes) -> bytes | None:
    match = _CRI_ANY.match(line)
    return line[match.end() :].rstrip(b"\r") if match else None


def _docker_rest(line: bytes) -> bytes | None:
    if not line.startswith(b'{"log":"'):
        return None
    end = line.rfind(b'","stream":')
    return line[8:end] if end > 0 else line[8:]


def _goes_on(line: bytes, rule: _Rule) -> bool:
    if rule is _no_rest:
        return False
    if rule is _cri_rest:
        return _CRI_PARTIAL.match(line) is not None
    end = line.rfind(b'","stream":')
    return line.startswith(b'{"log":"') and end > 0 and line[end - 2 : end] != b"\\n"


def _join_partials(lines: list[bytes], rule: _Rule, more: bool) -> bytes:
    """Put pieces of split lines together in place (a joined piece leaves an empty line, so that numbers stay).

    Returns the pieces that end the block when their rest is still to come; they are taken out of ``lines``.
    """
    back = b""
    if rule is _no_rest:
        for index, line in enumerate(lines):
            if b"[" in line:
                lines[index] = _BYTE_ARRAY.sub(_spelled_out, line)
        return back
    if more:
        tail = len(lines)
        while tail and _goes_on(lines[tail - 1], rule):
            tail -= 1
        back = b"".join(line + b"\n" for line in lines[tail:])
        if len(back) > 4 * MAX_LINE:
            back = b""
        else:
            del lines[tail:]
    pieces = [i for i, line in enumerate(lines) if _goes_on(line, rule)]
    done = -1
    for start in pieces:
        if start <= done:
            continue
        whole, at = lines[start], start
        while at + 1 < len(lines) and _goes_on(lines[at], rule):
            rest = rule(lines[at + 1])
            if rest is None or len(whole) > MAX_LINE:
                break
            whole = _with_rest(whole, rest, rule)
            at += 1
        for index in range(start + 1, at + 1):
            lines[index] = b""
        lines[start], done = whole, at
    return back


def _with_rest(whole: bytes, rest: bytes, rule: _Rule) -> bytes:
    if rule is _cri_rest:
        return whole.rstrip(b"\r") + rest
    end = whole.rfind(b'","stream":')
    return whole[:end] + rest + whole[end:]


def bag_oom(bag: _Bag, line: Line, text: str, frames: list[str], at_line: int) -> None:
    """Parse an out-of-memory message and keep it as an ``oom`` event."""
    for fields in oom_fields(text, frames):
        bag.add(
            LogEvent(
                f"oom:{fields.get('wording', '')}", "oom", fields, at_line, line.time, line.rank, line.pid, line.repeat
            )
        )


def oom_fields(text: str, frames: list[str]) -> list[dict[str, object]]:
    """The numbers of each out-of-memory message in ``text`` (bytes; absent where the wording does not give them)."""
    # its patterns take longer to build than many a log takes to read, and few logs hold such a message
    from kvdoctor.parse import oom

    out: list[dict[str, object]] = []
    for message in oom.find(text):
        fields: dict[str, object] = {"wording": message.wording}
        for name in (
            "requested",
            "total",
            "free",
            "allocated",
            "unallocated",
            "reserved",
            "cap",
            "private_pools",
            "this_process",
        ):
            value = getattr(message, name)
            if not isinstance(value, Unread) and value is not None:
                fields[name] = float(value)
        mine = _own_process(message)
        if mine is not None:
            fields["this_process"] = mine
        if not isinstance(message.device, Unread) and message.device is not None:
            fields["device"] = float(message.device)
        named = oom.site(frames, text)
        # some wordings name the place themselves (a warm-up): they win over frames that do not decide; llama.cpp prints no
        # frames, and the name of the function that ends the whole start (load_model) stands below every failure of it
        decides = named not in ("other", "prefill", "decode") and message.wording not in ("ggml", "llama-context")
        fields["site"] = message.site if isinstance(message.site, str) and not decides else named
        out.append(fields)
    return out


def _own_process(message: OomMessage) -> float | None:
    """What this process holds: named, or the listed process (under its host pid) nearest above what PyTorch reserved."""
    if not isinstance(message.this_process, Unread) or isinstance(message.reserved, Unread):
        return None
    held = [float(used) for _, used in message.processes if not isinstance(used, Unread) and used >= message.reserved]
    return min(held) if held else None
