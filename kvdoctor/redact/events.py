"""A log -> typed events with only what may be written down in their fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kvdoctor.engines import recognise
from kvdoctor.engines.base import Engine, engines
from kvdoctor.parse import logevents
from kvdoctor.parse.serverlog import NOT_TURNED, TURNED, LogEvent, ParsedLog, scan
from kvdoctor.redact import words
from kvdoctor.redact.veil import Veil
from kvdoctor.snapshot import Member

NOTES = (
    "log lines became typed events; text of lines left out",
    "request ids hashed with a key of this capture",
    "settings: known names with numbers, switches and known words; others hashed; who-and-where settings dropped",
    "model names: last part of the path",
)

MOST = 1e15
"""Numbers above it are no size or count of a server; an id or a card number could be."""

_RANK = re.compile(r"(?:(?:DP|TP|PP|EP|rank)_?\d{1,6})(?:_(?:DP|TP|PP|EP|rank)_?\d{1,6}){0,5}")
_DEVICE = re.compile(r"(?:CPU|GPU|CUDA|ROCm|HIP|Metal|MTL|Vulkan|SYCL|TPU|HPU|XPU|NPU|MUSA|CANN|BLAS|RPC|AMX|NEURON|Host)[A-Za-z_ ]{0,12}\d{0,3}", re.I)  # fmt: skip
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9 _./-]{0,40}")
_SIGNAL = re.compile(r"SIG[A-Z]{2,10}")
_DTYPE = re.compile(r"torch\.\w{1,20}")


def redacted(member: Member, veil: Veil, forced: Engine | None, year: int | None) -> bytes:
    """The events of a log as a document (one pass over the log)."""
    first = member.head(recognise.EDGE)
    edges = [first] if member.size <= recognise.EDGE else [first, member.tail(recognise.EDGE)]
    engine = forced or recognise.of_log(edges)
    with member.open() as stream:
        parsed = scan(stream, recognise.log_templates(engine, edges), year=year)
    return logevents.dump(engine.name if engine else None, reduce(parsed, veil, engine))


def again(text: str, veil: Veil) -> bytes | None:
    """A document of events, reduced once more: it may come from elsewhere. None when it is none."""
    loaded = logevents.load(text)
    if not isinstance(loaded, tuple):
        return None
    name, parsed = loaded
    known = engines().get(name or "")
    return logevents.dump(known.name if known else None, reduce(parsed, veil, known))


def reduce(log: ParsedLog, veil: Veil, engine: Engine | None) -> ParsedLog:
    """The same log with reduced fields, ranks and names."""
    return replace(
        log,
        order=log.order if log.order in (TURNED, NOT_TURNED) else "",
        events=[_event(event, veil, engine) for event in log.events],
        clock=log.clock if log.clock in ("zone", "local", "yearless") else "",
        wrapping=log.wrapping if log.wrapping.isalpha() and len(log.wrapping) < 16 else "",
        encoding=log.encoding if log.encoding in ("utf-16-le", "utf-16-be") else "utf-8",
        dropped={_template(name, veil): count for name, count in log.dropped.items()},
    )


def _template(name: str, veil: Veil) -> str:
    base = name.removeprefix("oom:")
    return (
        name
        if base in words.templates() or (base != name and _CODE.fullmatch(base)) or base == ""
        else veil.token(name)
    )


def _event(event: LogEvent, veil: Veil, engine: Engine | None) -> LogEvent:
    fields: dict[str, object] = {}
    for name, value in event.fields.items():
        if isinstance(value, bool):
            fields[name] = value
        elif isinstance(value, (int, float)):
            if abs(value) < MOST:
                fields[name] = value
        elif isinstance(value, str):
            kept = _text(event, name, value, veil)
            if kept is not None:
                fields[name] = kept
    if event.event == "args":
        fields.pop("text", None)
        settings = event.fields.get("settings")
        text = event.fields.get("text")
        if isinstance(settings, Mapping):
            fields["settings"] = veil.settings({str(k): str(v) for k, v in settings.items()})
        elif isinstance(text, str) and text and engine is not None:
            fields["settings"] = veil.settings(engine.parse_args(text))
    rank = event.rank if not event.rank or _RANK.fullmatch(event.rank) else veil.token(event.rank)
    return replace(event, template=_template(event.template, veil), fields=fields, rank=rank)


def _text(event: LogEvent, name: str, value: str, veil: Veil) -> str | None:
    """What of a text field may stay; None: nothing."""
    if name == "id":
        return veil.identifier(value)
    if name == "model":
        return veil.model(value)
    if name == "version":
        return veil.version(value)
    if name == "process":
        return veil.command(value)
    if event.event == "oom":
        # wording and site are this program's own words for what the message is
        return value if _CODE.fullmatch(value) and name in ("wording", "site") else veil.token(value)
    if value in words.constants() or value.lower() in words.values() or words.is_closed(event.template, name):
        return value
    if name in ("text", "why"):
        return words.phrase(event.template, value)
    if name == "device" and _DEVICE.fullmatch(value):
        return value
    if (name == "signal" and _SIGNAL.fullmatch(value)) or (name == "dtype" and _DTYPE.fullmatch(value)):
        return value
    return veil.token(value)
