"""What kind of file is this? By content, never by name alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from kvdoctor.parse import OOM_LITERALS
from kvdoctor.parse.lazy import lazily
from kvdoctor.parse.serverlog import GENERIC, decode, detect_encoding, plain

HEAD = 65_536

_SAMPLE = lazily(
    r"[a-zA-Z_:][\w:]*(?:\{[^\n]*\})?[ \t]+[-+]?(?:\d[\d.eE+-]*|[Nn]a[Nn]|[Ii]nf)(?:[ \t]+-?\d[\d.]*)?[ \t]*(?:#[^\n]*)?\r?$"
)
_METRIC_COMMENT = lazily(r"# (?:HELP|TYPE|UNIT) [a-zA-Z_:]|# EOF\b")
_PS_HEADER = lazily(r"^\s*(?:USER|UID|PID|PPID|STAT|S)\b.*\b(?:CMD|COMMAND|ARGS)\s*$|^\s*PID\b.*\bPPID\b", re.I)
# docker stats, kubectl top pod, /proc/PID/status
_USAGE = lazily(
    r"(?:CONTAINER|NAME)\b.*\bMEM USAGE / LIMIT\b|(?:NAMESPACE\s+)?(?:POD\s+)?NAME\s+CPU\(cores\)\s+MEMORY\(bytes\)|.*\bVmRSS:\s+\d+ kB"
)
_TOP = lazily(r"top - \d\d?:\d\d:\d\d up ")
_KERNEL = lazily(
    r"NVRM: Xid|oom-kill:|Out of memory: Kill|Memory cgroup out of memory|soft lockup|invoked oom-killer|blocked for more than \d+ seconds"
)
_KERNEL_PREFIX = lazily(r"^(?:<\d+>)?\[\s*\d+\.\d{4,6}\] |^\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) |\bkernel: ")
_KUBECTL = lazily(
    r"^(?:Name|Namespace|Node|Labels|Annotations|Status|Reference|Metrics|Containers|Scale Target Ref|API Version|Min replicas|Replicas|Scale Target|Metric Type)s?\s*:",
    re.M,
)
_LISTED = lazily(r"(?:NAMESPACE\s+)?NAME\s+REFERENCE\s+TARGETS\s")
_MANIFEST = lazily(r"^apiVersion: \S{1,80}\s{0,4}\n(?:.*\n){0,200}?[ -]{0,8}kind: [A-Z]", re.M)
_CGROUP = lazily(
    r"^(?:anon|file|inactive_file|active_file|total_inactive_file|memory\.(?:current|max|high|stat|events|usage_in_bytes|limit_in_bytes)|oom_kill|cache|rss)[ =:\t]+(?:\d+|max)\b",
    re.M,
)
_LONE_NUMBER = lazily(rb"\s{0,8}(?:\d{1,20}|max)\s{0,8}")
_CGROUP_FILE = lazily(r"memory\.(?:current|max|high|peak|swap\.\w{1,8}|usage_in_bytes|limit_in_bytes)$")
_MEMINFO = lazily(r"^MemTotal:\s+\d+ kB", re.M)
_LOGISH = lazily(
    r"\b(?:INFO|WARN(?:ING)?|ERROR|DEBUG|CRITICAL|FATAL)\b|\d\d:\d\d:\d\d|Traceback \(most recent call last\)|^\S*Error: |level=",
    re.M,
)
_DMON = lazily(r"#\s{0,4}(?:Date,?\s{1,8})?(?:Time,?\s{1,8})?gpu\b")
_GPUSTAT = lazily(
    r"\[\d{1,4}\] [^|]{1,120}\|[ ]{0,8}[\d?]{1,4}['\u00b0]C,[^|]{1,60}\|[ ]{0,8}[\d?]{1,9} / +[\d?]{1,9} MB"
)
_ONE_COLUMN = lazily(r"(?:memory|utilization|clocks|power|temperature)\.[a-z_.]{2,60}(?: \[[a-z/%]{1,8}\])?")
# what Prometheus, or promtool, answers to a query: text of one instant ("NAME{...} => 1 @[1793700000]") or of a range
_PROMTOOL = lazily(r"(?:[a-zA-Z_:][\w:]{0,200})?(?:\{[^\n]{0,4000}\})? =>(?: \S{1,40} @\[\d[\d.]{0,20}\])?\s*$")
_ANSWER = lazily(r'\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"resultType"\s*:\s*"(\w{1,20})"')
_SERIES = lazily(r'\[\s*\{\s*"metric"\s*:\s*\{')
_HTML = lazily(r"^\s*(?:<!doctype html|<html|<head|<\?xml[^>]*>\s*<html)", re.I)


def is_binary(head: bytes) -> bool:
    """Control bytes that no text has (after UTF-16 is ruled out)."""
    if not head or detect_encoding(head) != "utf-8":
        return False
    sample = head[:8192]
    control = sum(sample.count(bytes([c])) for c in (*range(8), *range(14, 27)))
    return control > max(len(sample) // 100, 0) or b"\x00" in sample


def sniff(head: bytes, log_markers: Iterable[str] = (), name: str = "") -> str:
    """The kind of a source from its first 64 KiB.

    One of ``exposition log log-events smi-query smi-apps smi-table smi-q smi-xml kernel ps kubectl cgroup meminfo iterstats
    slots props server-info router-info model-config loads torch-snapshot probe bench-csv html prometheus-answer loki-answer empty binary unknown``. ``log_markers`` are pieces of
    lines that only an engine prints. ``name`` only tells which cgroup file a lone number comes from.
    """
    if not head.strip():
        return "empty"
    if _LONE_NUMBER.fullmatch(head) and _CGROUP_FILE.search(name):
        return "cgroup"
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return "torch-snapshot"
    if head[:16] == b"\x00" * 16:
        # a log that was truncated while its writer kept the offset begins with NULs
        head = head.lstrip(b"\x00") or head
    if is_binary(head):
        return "binary"
    encoding = detect_encoding(head)
    text = (
        head[:HEAD].decode(encoding, "replace").lstrip("\ufeff")
        if encoding != "utf-8"
        else decode(head[:HEAD]).lstrip("\ufeff")
    )
    if "\x1b" in text:
        text = plain(text)
    stripped = text.lstrip()
    if _HTML.match(text):
        return "html"
    if stripped[:1] in "[{":
        kind = _json_kind(stripped)
        if kind:
            return kind
    if _cut_json_lines(stripped):
        return "iterstats"
    if "<nvidia_smi_log>" in text:
        return "smi-xml"
    lines = [line for line in text.splitlines()[:400] if line.strip()]
    if not lines:
        return "empty"
    kind = _smi(text, lines)
    if kind:
        return kind
    if _PROMTOOL.match(lines[0]):
        return "prometheus-answer"
    metric = sum(1 for line in lines[:60] if _METRIC_COMMENT.match(line) or _SAMPLE.match(line))
    if metric and (metric >= 0.6 * len(lines[:60]) or any(_METRIC_COMMENT.match(line) for line in lines[:3])):
        if _MEMINFO.search(text):
            return "meminfo"
        return "cgroup" if _CGROUP.search(text) and ":" not in lines[0] and "{" not in text else "exposition"
    if _MEMINFO.search(text):
        return "meminfo"
    marked = any(marker in text for marker in log_markers)
    if not marked:
        if any(_PS_HEADER.match(line) or _TOP.match(line) for line in lines[:3]):
            return "ps"
        if any(_USAGE.match(line) for line in lines[:80]):
            return "ps"
        if _KERNEL.search(text) and any(_KERNEL_PREFIX.search(line) for line in lines[:50]):
            return "kernel"
        if len(_KUBECTL.findall(text)) >= 2 or _MANIFEST.search(text) or _LISTED.match(lines[0]):
            return "kubectl"
        if _CGROUP.search(text):
            return "cgroup"
        if _bench_header(lines):
            return "bench-csv"
        if sum(1 for line in lines[:50] if _KERNEL_PREFIX.search(line)) > len(lines[:50]) / 2 or _KERNEL.search(text):
            return "kernel"
    if (
        marked
        or _LOGISH.search(text)
        or any(word in text for word in OOM_LITERALS)
        or any(t.literal in text for t in GENERIC)
    ):
        return "log"
    return "unknown"


def _bench_header(lines: list[str]) -> bool:
    from kvdoctor.parse import benchcsv

    return benchcsv.looks_like("\n".join(lines[:20]))


def _smi(text: str, lines: list[str]) -> str | None:
    first = lines[0].lower().lstrip("# ")
    if "," in first:
        columns = [c.strip().split(" ")[0] for c in first.split(",")]
        if (
            "used_gpu_memory" in columns
            or "used_memory" in columns
            or ("pid" in columns and any(c in columns for c in ("process_name", "gpu_uuid", "gpu_bus_id", "gpu_name")))
        ):
            return "smi-apps"
        dotted = sum(
            1
            for c in columns
            if c.startswith(
                (
                    "memory.",
                    "utilization.",
                    "clocks",
                    "temperature.",
                    "power.",
                    "mig.",
                    "driver_",
                    "pci.",
                    "fb_memory",
                    "pstate",
                )
            )
        )
        if dotted and len(columns) > 1:
            return "smi-query"
    if _ONE_COLUMN.fullmatch(first):
        return "smi-query"
    if _DMON.match(lines[0]):
        return "smi-query"
    if any(_GPUSTAT.match(line) for line in lines[:3]):
        return "smi-table"
    if "NVIDIA-SMI " in text and "+-" in text:
        return "smi-table"
    if "NVSMI LOG" in text:
        return "smi-q"
    if text.startswith("Unable to determine the device handle for"):
        return "smi-table"
    return None


_FIRST_LINES = 10


def _cut_json_lines(text: str) -> bool:
    """Iteration statistics whose first line is the end of a longer one, as ``tail`` of bytes leaves it.

    Only a kind whose reader skips what is no record: the others are whole documents. One line of a log that holds such a
    record does not make the log one: all lines between the first and the last must be records.
    """
    lines = [line.strip() for line in text.split("\n", _FIRST_LINES + 1)[:_FIRST_LINES] if line.strip()]
    if len(lines) < 2 or (lines[0][0] != "{" and lines[0][-1] != "}"):
        return False
    whole = lines[1:-1] or lines[1:]
    return all(line[0] == "{" and line[-1] == "}" and _json_kind(line) == "iterstats" for line in whole)


_ROUTER_LIMITS = frozenset({"max_concurrent_requests", "max_batch_total_tokens", "max_total_tokens"})
_LAYERS_OF_A_MODEL = frozenset({"num_hidden_layers", "n_layer", "num_layers", "text_config"})


def _json_kind(text: str) -> str | None:
    """Kind of a JSON document or of JSON lines; None when it is neither or nothing known."""
    first_line = text.split("\n", 1)[0]
    record: object = None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        try:
            record = json.loads(first_line)
        except (ValueError, RecursionError):
            record = None
    if isinstance(record, list):
        record = record[0] if record else None
        if isinstance(record, dict) and "metric" in record and ("value" in record or "values" in record):
            return "prometheus-answer"
        if isinstance(record, dict) and ("id_task" in record or ("n_ctx" in record and "is_processing" in record)):
            return "slots"
    if isinstance(record, dict):
        keys = record.keys()
        schema = str(record.get("schema", ""))
        if schema.startswith("kvdoctor.probe/"):
            return "probe"
        if schema.startswith("kvdoctor.log/"):
            return "log-events"
        if (
            "kvCacheStats" in keys
            or "inflightBatchingStats" in keys
            or "kv_cache_stats" in keys
            or "numActiveRequests" in keys
        ):
            return "iterstats"
        if "default_generation_settings" in keys or "total_slots" in keys:
            return "props"
        if "loads" in keys or ("num_reqs" in keys and "num_tokens" in keys):
            return "loads"
        if "model_id" in keys and keys & _ROUTER_LIMITS:
            return "router-info"
        if keys & _LAYERS_OF_A_MODEL and ("model_type" in keys or "architectures" in keys):
            return "model-config"
        if "internal_states" in keys or "mem_fraction_static" in keys or "max_total_num_tokens" in keys:
            return "server-info"
        if ("apiVersion" in keys and "kind" in keys) or ("State" in keys and "Id" in keys):
            return "kubectl"
        if "segments" in keys and ("device_traces" in keys or "allocator_settings" in keys):
            return "torch-snapshot"
        if any(k in keys for k in ("log", "MESSAGE", "message", "msg", "textPayload", "jsonPayload", "line")):
            return "log"
        if "error" in keys:
            return "log"
        if isinstance(data := record.get("data"), dict) and "resultType" in data:
            return _answer_kind(str(data["resultType"]))
        return "unknown" if text.startswith("{") and text.rstrip().endswith("}") else None
    if (answer := _ANSWER.match(text)) is not None:
        return _answer_kind(answer.group(1))
    if _SERIES.match(text):
        return "prometheus-answer"
    # cut JSON: a snapshot or an endpoint answer larger than the head
    if '"segments"' in text[:4096] and '"blocks"' in text:
        return "torch-snapshot"
    if '"kvCacheStats"' in text[:4096] or '"inflightBatchingStats"' in text[:4096]:
        return "iterstats"
    if '"mem_fraction_static"' in text or '"internal_states"' in text:
        return "server-info"
    if '"id_task"' in text[:4096] and '"is_processing"' in text[:8192]:
        return "slots"
    if '"default_generation_settings"' in text:
        return "props"
    return None


def _answer_kind(result: str) -> str:
    """Prometheus and Loki answer queries in one form; only Loki's holds lines."""
    return "loki-answer" if result == "streams" else "prometheus-answer"
