"""Server logs: any wrapping to bare lines, bare lines to typed events, by templates the engine tables own.

A log is read once, as bytes, in bounded memory. Only lines that contain a template's literal are decoded and unwrapped,
so the cost is that of finding a few strings. Wrappings understood: docker json, CRI, Kubernetes time stamps, kubectl and
compose prefixes, journald (text and json), a level in front of the engine's own, Ray (with its repeat counts), ANSI
colours, CRLF, UTF-16, Latin-1, escaped newlines inside one line, two messages glued into one line, a message broken over
two lines.
"""

from __future__ import annotations

import codecs
import itertools
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import BinaryIO

from kvdoctor.parse import Unread, oom


@dataclass(frozen=True, slots=True)
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
    "partial (bool: a second line of the same report, without running and waiting), paused (requests paused in this step)",
    "iteration": "one scheduler step; fields: context_requests, context_tokens, generation_requests, generation_tokens, "
    "elapsed_ms",
    "pool": "KV pool laid out; fields: tokens, bytes, blocks, block_tokens, cpu_blocks, available_bytes, dry_run, "
    "max_running, max_model_len, slots, slot_tokens, unified, device, "
    "profiled_blocks (before an override), host (bool: the pool is in host memory), block_bytes, "
    "sequence_blocks (blocks of the longest request)",
    "concurrency": "largest concurrency; fields: length (tokens per request), ratio",
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
    "used, used_initial (bytes)",
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
    "stall": "the engine reports it makes no progress; fields: text",
    "phase": "a named step of work begins or ends; fields: what, begin (bool)",
    "oom": "device out of memory; made by the log reader from kvdoctor.parse.oom; fields: requested, total, free, "
    "allocated, unallocated, reserved, cap, site, device, wording",
    "xid": "NVRM Xid; fields: number, pid, device",
    "oom_kill": "kernel or cgroup kill; fields: pid, process",
}
"""The canonical event kinds and their fields. Numbers are canonical units: bytes, tokens, fractions, seconds."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One recognised line. ``fields`` are canonical; ``line`` is 1-based; ``time`` is epoch seconds or None.

    ``rank`` names the process or rank that wrote it ('' where the line does not say). ``repeat`` multiplies it (Ray folds
    equal lines of many workers into one).
    """

    template: str
    event: str
    fields: Mapping[str, object]
    line: int
    time: float | None = None
    rank: str = ""
    pid: int | None = None
    repeat: int = 1

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
    """What a log said. ``dropped`` counts events beyond the memory bound, by template (the newest are kept)."""

    events: list[LogEvent]
    lines: int
    bad_lines: int
    first_time: float | None
    last_time: float | None
    clock: str
    wrapping: str
    encoding: str
    dropped: Mapping[str, int]


MAX_LINE = 65_536
CHUNK = 4 << 20
KEEP_STATS = 20_000
KEEP_FIRST = 400
KEEP_LAST = 1_600
CONTEXT = 65_536

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]|\x1b\][^\x07]{0,256}\x07")
_UNITS = {
    "gib": 2.0**30, "gb": 1e9, "mib": 2.0**20, "mb": 1e6, "kib": 1024.0, "kb": 1000.0, "pct": 0.01, "ms": 0.001,
    "us": 1e-6,
}  # fmt: skip


def _plain(text: str) -> str:
    return _ANSI.sub("", text) if "\x1b" in text else text


# ---------------------------------------------------------------- wrappers


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its wrapping."""

    text: str
    time: float | None
    rank: str
    pid: int | None
    repeat: int


_CRI = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) (?:stdout|stderr) [FP] ")
_COMPOSE = re.compile(r"[A-Za-z0-9][\w.-]{0,80} {0,40}\| ")
_JOURNAL = re.compile(
    r"((?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d|"
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) \S{1,255} [\w@./-]{1,128}\[(\d+)\]: "
)
_KUBECTL = re.compile(r"\[pod/[^\]\s]{1,256}\] |pod/[\w.-]{1,253}/[\w.-]{1,63}: ")
_ISO_LEAD = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)[\t ]+")
_GKE_LEVEL = re.compile(
    r"(?:INFO|WARNING|WARN|ERROR|DEBUG|DEFAULT|CRITICAL|NOTICE) (?=[\[({]|(?:INFO|WARNING|ERROR|DEBUG)\b)"
)
_RAY = re.compile(r"\((\w[\w.:]{0,80}) pid=(\d+)(?:, ip=([\d.a-fA-F:]+))?\) ")
_RAY_REPEAT = re.compile(r"\s*\[repeated (\d+)x across cluster\].{0,200}$")
_VLLM_RANK = re.compile(r"\((\w{1,64})(?: rank=(\d+))? pid=(\d+)(?:, ip=[\d.a-fA-F:]+)?\)")
_SGLANG_RANK = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?((?: (?:DP|TP|PP|EP)\d+)+)\]")
_PARALLEL = re.compile(r"((?:DP|TP|PP|EP|rank)_?\d+)")

_MONTHS = {
    m: i + 1 for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])
}
_STAMP = re.compile(
    r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?"
    r"(?P<z>Z|[+-]\d\d:?\d\d)?"
)
_STAMP_SHORT = re.compile(
    r"(?<!\d)(?P<mo>\d\d)-(?P<d>\d\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,6})?(?!\d)"
)
_STAMP_SYSLOG = re.compile(
    r"(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<d>\d{1,2}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"
)


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
    match = _STAMP.search(head)
    if match:
        base = _epoch(*(int(match[k]) for k in ("y", "mo", "d", "h", "mi", "s")))
        if base is None:
            return None, ""
        if match["f"]:
            base += float("0." + match["f"][1:])
        zone = match["z"]
        if zone and zone != "Z":
            sign = 1 if zone[0] == "+" else -1
            base -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
        return base, "zone" if zone else "local"
    match = _STAMP_SHORT.search(head)
    if match:
        base = _epoch(year or 1972, *(int(match[k]) for k in ("mo", "d", "h", "mi", "s")))
        if base is not None and match["f"]:
            base += float("0." + match["f"][1:])
        return base, "yearless" if base is not None else ""
    match = _STAMP_SYSLOG.search(head)
    if match:
        base = _epoch(year or 1972, _MONTHS[match["mon"]], *(int(match[k]) for k in ("d", "h", "mi", "s")))
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
    """Takes wrapping off lines. Keeps what it learnt of the clock (``year``) and which wrappers it met."""

    year: int | None = None
    met: dict[str, int] = field(default_factory=dict)
    clock: str = ""

    def __call__(self, raw: str) -> list[Line]:
        """The bare line or, where one physical line holds several (escaped newlines), all of them."""
        text = _plain(raw)
        when: float | None = None
        for _ in range(4):  # wrappers nest: journald around docker-compose around the engine
            stripped, stamp = self._peel(text)
            if stamp is not None and when is None:
                when = stamp
            if stripped is None:
                break
            text = _plain(stripped)
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
        else:
            match = _SGLANG_RANK.search(text[:80])
            if match:
                rank = "_".join(match.group(1).split())
        if when is None:
            when, clock = parse_time(text, self.year)
            if clock and (not self.clock or clock == "zone"):
                self.clock = clock
        else:
            self.clock = "zone"
        if "\\n" in text and ("Traceback" in text or "rror" in text):
            parts = [p for p in text.replace("\\\\n", "\\n").split("\\n") if p]
        else:
            parts = text.split("\n") if "\n" in text else [text]
        return [Line(part.rstrip("\r"), when, rank, pid, repeat) for part in parts if part]

    def _peel(self, text: str) -> tuple[str | None, float | None]:
        first = text[:1]
        if first == "{" and text.rstrip()[-1:] == "}":
            found = _from_json(text)
            if found is not None:
                self._met("json")
                return found[0], found[1]
            return None, None
        if first.isdigit():
            match = _CRI.match(text)
            if match:
                self._met("cri")
                return text[match.end() :], parse_time(match.group(1), None)[0]
        match = _JOURNAL.match(text)
        if match:
            self._met("journald")
            when, clock = parse_time(match.group(1), self.year)
            return text[match.end() :], when if clock == "zone" else None
        if first.isdigit():
            match = _ISO_LEAD.match(text)
            if (
                match
                and text[match.end() : match.end() + 1] in "[({IWED"
                and not text[match.end() :].startswith(
                    ("INFO text_generation", "ERROR text_generation", "WARN text_generation", "ERROR batch")
                )
            ):
                inner = text[match.end() :]
                if parse_time(inner, self.year)[0] is not None:
                    self._met("kubernetes")
                    when, clock = parse_time(match.group(1), None)
                    return inner, when if clock == "zone" else None
        if first == "[" or first == "p":
            match = _KUBECTL.match(text)
            if match:
                self._met("kubectl")
                return text[match.end() :], None
        match = _COMPOSE.match(text)
        if match:
            self._met("compose")
            return text[match.end() :], None
        match = _GKE_LEVEL.match(text)
        if match:
            inner = text[match.end() :]
            # the engine's own "INFO 03-19 ..." starts with a level too: peel only where another level follows
            if re.match(r"(?:\([^)]{1,120}\) )?(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL)\b", inner):
                self._met("gke")
                return inner, None
        if first == "(":
            match = _RAY.match(text)
            if match and _VLLM_RANK.search(text[match.end() : match.end() + 120]):
                self._met("ray")
                return text[match.end() :], None
        return None, None

    def _met(self, name: str) -> None:
        self.met[name] = self.met.get(name, 0) + 1


# ---------------------------------------------------------------- matching


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: LogTemplate
    literal: str
    pattern: re.Pattern[str]


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


class Matcher:
    """Templates ready to run over lines; the literals they need are found first, patterns run only where one was."""

    def __init__(self, templates: Sequence[LogTemplate]) -> None:
        self.compiled = [_Compiled(t, t.literal, re.compile(t.pattern)) for t in templates]
        literals = sorted({t.literal for t in templates} | set(OOM_LITERALS), key=len)
        keep: list[str] = []
        for literal in literals:
            if not any(short in literal for short in keep):
                keep.append(literal)
        self.needles = [literal.encode() for literal in keep]

    def match(self, text: str) -> list[tuple[str, str, dict[str, object]]]:
        """(template id, event, fields) of every template instance in a line; a glued line gives several."""
        found: list[tuple[str, str, dict[str, object]]] = []
        for compiled in self.compiled:
            if compiled.literal not in text:
                continue
            for match in itertools.islice(compiled.pattern.finditer(text), 8):
                fields = _fields(compiled, match)
                if fields is not None:
                    found.append((compiled.template.id, compiled.template.event, fields))
        return found


OOM_LITERALS = oom.LITERALS
_EXIT_137 = ("code 137", "code: 137", "code=137", "status 137", 'code": 137', 'code":137')
GENERIC: tuple[LogTemplate, ...] = (
    LogTemplate("traceback", "error", "Traceback (most recent call last)", r"Traceback \(most recent call last\)",
                fields={"text": "Traceback"}),
    LogTemplate("cuda_error", "error", "CUDA error", r"CUDA error: (?P<text>(?!out of memory)[^\n]{1,120})", fields={"cuda": True}),
    LogTemplate("hip_error", "error", "HIP error", r"HIP error: (?P<text>(?!out of memory)[^\n]{1,120})", fields={"cuda": True}),
    *(LogTemplate(f"exit_137_{i}", "exit", text, re.escape(text) + r"\b", fields={"code": 137.0}) for i, text in enumerate(_EXIT_137)),
    LogTemplate("sigkill", "exit", "SIGKILL", r"(?i)(?:killed by|signal|received|by|status|code|with)[^\n]{0,40}SIGKILL", fields={"signal": "SIGKILL"}),
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
    if len(sample) >= 16:
        if sample[1::2].count(0) > len(sample) * 0.35:
            return "utf-16-le"
        if sample[0::2].count(0) > len(sample) * 0.35:
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

    ``stream`` is read to its end in ``chunk``-byte pieces; only lines that hold a template's literal (or an out-of-memory
    wording) are decoded. ``year`` dates timestamps that have none. Lines over 64 KiB are cut before any pattern runs.
    """
    matcher = Matcher([*templates, *GENERIC])
    unwrap = Unwrapper(year)
    bag = _Bag()
    head = stream.read(chunk)
    encoding = detect_encoding(head)
    pieces: Iterator[bytes]
    if encoding == "utf-8":
        pieces = itertools.chain([head.removeprefix(b"\xef\xbb\xbf")], _chunks(stream, encoding, chunk))
    else:
        pieces = _chunks(
            _Prefixed(head[2:] if head[:2] in (b"\xff\xfe", b"\xfe\xff") else head, stream), encoding, chunk
        )
    line_no = 1
    carry = b""
    context = b""
    bad = 0
    first_time: float | None = None
    last_time: float | None = None
    overlong = False
    for piece in pieces:
        data = carry + piece if not overlong else piece
        cut = data.rfind(b"\n")
        if cut < 0:
            if overlong:
                continue
            if len(data) > 2 * MAX_LINE:
                # a line longer than the bound: judge its start, then skip to its end
                bad += 1
                first_time, last_time = _scan_block(
                    data[:MAX_LINE], context, line_no, matcher, unwrap, bag, first_time, last_time
                )
                overlong, carry = True, b""
            else:
                carry = data
            continue
        block, rest = data[: cut + 1], data[cut + 1 :]
        if overlong:
            start = block.find(b"\n") + 1
            line_no += 1
            block = block[start:]
            overlong = False
        if block:
            first_time, last_time = _scan_block(block, context, line_no, matcher, unwrap, bag, first_time, last_time)
            line_no += block.count(b"\n")
            context = (context + block)[-CONTEXT:] if len(block) < CONTEXT else block[-CONTEXT:]
        carry = rest
    if carry and not overlong:
        first_time, last_time = _scan_block(carry, context, line_no, matcher, unwrap, bag, first_time, last_time)
        line_no += 1
    return ParsedLog(
        events=bag.all(),
        lines=line_no - 1,
        bad_lines=bad,
        first_time=first_time,
        last_time=last_time,
        clock=unwrap.clock,
        wrapping=max(unwrap.met, key=lambda k: unwrap.met[k]) if unwrap.met else "",
        encoding=encoding,
        dropped=bag.dropped,
    )


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


def _hits(block: bytes, needles: Sequence[bytes]) -> list[int]:
    """Start offsets of the lines of ``block`` that hold any needle, ascending, each once."""
    starts: set[int] = set()
    for needle in needles:
        at = block.find(needle)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            if end < 0:
                break
            at = block.find(needle, end + 1)
    return sorted(starts)


def _scan_block(
    block: bytes,
    context: bytes,
    line_no: int,
    matcher: Matcher,
    unwrap: Unwrapper,
    bag: _Bag,
    first_time: float | None,
    last_time: float | None,
) -> tuple[float | None, float | None]:
    if first_time is None:
        first_time = _edge_time(block[:8192], unwrap, last=False)
    counted = 0
    at_line = line_no
    for start in _hits(block, matcher.needles):
        at_line += block.count(b"\n", counted, start)
        counted = start
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        lines = unwrap(decode(block[start : min(end, start + MAX_LINE)]).rstrip("\r"))
        frames: list[str] | None = None
        for index, line in enumerate(lines):
            found = matcher.match(line.text)
            if not found and index == len(lines) - 1 and end + 1 < len(block):
                found = _joined(block, end, line.text, matcher)
            if line.time is not None:
                first_time = line.time if first_time is None else first_time
                last_time = line.time
            for template, event, fields in found:
                bag.add(LogEvent(template, event, fields, at_line, line.time, line.rank, line.pid, line.repeat))
            if any(literal in line.text for literal in OOM_LITERALS):
                if frames is None:
                    frames = _frames(block, start, context, line, unwrap)
                follow = _follow(block, end, line.text)
                bag_oom(bag, line, follow, [*frames, *(earlier.text for earlier in lines[:index])], at_line)
    tail_time = _edge_time(block[-8192:], unwrap, last=True)
    return first_time, tail_time if tail_time is not None else last_time


def _joined(block: bytes, end: int, text: str, matcher: Matcher) -> list[tuple[str, str, dict[str, object]]]:
    """A line broken in the middle of a word: try it together with the next one."""
    stop = block.find(b"\n", end + 1)
    follow = decode(block[end + 1 : min(stop if stop >= 0 else len(block), end + 4096)]).rstrip("\r")
    return matcher.match(text + _plain(follow))


def _follow(block: bytes, end: int, text: str) -> str:
    """The message with up to two continuation lines (some engines break the numbers over lines)."""
    stop = end
    for _ in range(2):
        if stop + 1 >= len(block):
            break
        nxt = block.find(b"\n", stop + 1)
        stop = nxt if nxt >= 0 else len(block)
    extra = decode(block[end + 1 : min(stop, end + 4096)]) if stop > end else ""
    return text + ("\n" + _plain(extra) if extra else "")


def _frames(block: bytes, start: int, context: bytes, line: Line, unwrap: Unwrapper) -> list[str]:
    """Lines above an error, of the same process where lines say whose they are, nearest last (at most 120)."""
    before = (context + block[:start]) if start < CONTEXT else block[start - CONTEXT : start]
    raw = before.split(b"\n")[-160:]
    quiet = Unwrapper(unwrap.year)
    out: list[str] = []
    for piece in raw:
        if not piece:
            continue
        for item in quiet(decode(piece[:MAX_LINE]).rstrip("\r")):
            if line.pid is not None and item.pid is not None and item.pid != line.pid:
                continue
            if line.pid is None and line.rank and item.rank and item.rank != line.rank:
                continue
            out.append(item.text)
    return out[-120:]


def bag_oom(bag: _Bag, line: Line, text: str, frames: list[str], at_line: int) -> None:
    """Parse an out-of-memory message and keep it as an ``oom`` event."""
    for fields in oom_fields(text, frames):
        bag.add(
            LogEvent(
                f"oom:{fields.get('wording', '')}", "oom", fields, at_line, line.time, line.rank, line.pid, line.repeat
            )
        )


def _edge_time(raw: bytes, unwrap: Unwrapper, *, last: bool) -> float | None:
    lines = raw.split(b"\n")
    order = lines[::-1] if last else lines
    for piece in order[:40]:
        if piece:
            for item in unwrap(decode(piece[:2048]).rstrip("\r")):
                if item.time is not None:
                    return item.time
    return None


def oom_fields(text: str, frames: list[str]) -> list[dict[str, object]]:
    """The numbers of each out-of-memory message in ``text`` (bytes; absent where the wording does not give them)."""
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
        named = oom.site([*frames, text])
        # some wordings name the place themselves (a warm-up): they win over frames that do not decide
        fields["site"] = (
            message.site if isinstance(message.site, str) and named in ("other", "prefill", "decode") else named
        )
        out.append(fields)
    return out


def _own_process(message: oom.OomMessage) -> float | None:
    """What this process holds: named, or the listed process (under its host pid) nearest above what PyTorch reserved."""
    if not isinstance(message.this_process, Unread) or isinstance(message.reserved, Unread):
        return None
    held = [float(used) for _, used in message.processes if not isinstance(used, Unread) and used >= message.reserved]
    return min(held) if held else None
