"""A log as typed events: the one form in which a log is written into a snapshot, and its reader.

``{"schema": "kvdoctor.log/1", "engine", "lines", "bad_lines", "first_time", "last_time", "clock", "wrapping", "encoding",
"dropped": {template: count}, "events": [{"t": template, "e": kind, "f": fields, "n": line, "at": time, "r": rank, "p": pid,
"x": repeat, "l": line of the file where that is another}], "order": how the file was ordered}``. An ``args`` event carries
``settings`` (name -> value) where the raw log's event carries ``text``.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from kvdoctor.parse import Unread
from kvdoctor.parse.serverlog import LogEvent, ParsedLog

SCHEMA: Final = "kvdoctor.log/1"


def dump(engine: str | None, log: ParsedLog) -> bytes:
    """The document; one event a line, absent parts left out."""
    head = {
        "schema": SCHEMA, "engine": engine, "lines": log.lines, "bad_lines": log.bad_lines, "first_time": log.first_time,
        "last_time": log.last_time, "clock": log.clock, "wrapping": log.wrapping, "encoding": log.encoding,
        "dropped": dict(log.dropped), "order": log.order,
    }  # fmt: skip
    encode = json.JSONEncoder(separators=(",", ":")).encode
    rows = ",\n".join(encode(_row(event)) for event in log.events)
    return f'{encode(head)[:-1]},"events":[\n{rows}\n]}}\n'.encode()


def _row(event: LogEvent) -> dict[str, object]:
    row: dict[str, object] = {"t": event.template, "e": event.event, "f": dict(event.fields), "n": event.line}
    if event.time is not None:
        row["at"] = event.time
    if event.rank:
        row["r"] = event.rank
    if event.pid is not None:
        row["p"] = event.pid
    if event.repeat != 1:
        row["x"] = event.repeat
    if event.place is not None:
        row["l"] = event.place
    return row


def load(text: str) -> tuple[str | None, ParsedLog] | Unread:
    """(engine, log) of a document; :class:`Unread` with the reason when it is none. A row of another shape is counted bad."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unread(f"not JSON: {error}")
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("events"), list)
    ):
        return Unread(f"not a {SCHEMA} document")
    events: list[LogEvent] = []
    bad = 0
    for row in document["events"]:
        event = _event(row) if isinstance(row, dict) else None
        if event is None:
            bad += 1
        else:
            events.append(event)
    dropped = document.get("dropped")
    engine = document.get("engine")
    log = ParsedLog(
        events,
        _count(document.get("lines")),
        _count(document.get("bad_lines")) + bad,
        _time(document.get("first_time")),
        _time(document.get("last_time")),
        str(document.get("clock", "")),
        str(document.get("wrapping", "")),
        str(document.get("encoding", "utf-8")),
        {str(k): v for k, v in dropped.items() if isinstance(v, int)} if isinstance(dropped, dict) else {},
        str(document.get("order", "")),
    )
    return engine if isinstance(engine, str) else None, log


def _event(row: dict[str, Any]) -> LogEvent | None:
    fields, line, pid = row.get("f"), row.get("n"), row.get("p")
    if not isinstance(fields, dict) or not isinstance(line, int):
        return None
    repeat, place = row.get("x", 1), row.get("l")
    return LogEvent(
        str(row.get("t", "")),
        str(row.get("e", "")),
        {str(k): v for k, v in fields.items() if isinstance(v, (str, int, float))} | _settings(fields.get("settings")),
        line,
        _time(row.get("at")),
        str(row.get("r", "")),
        pid if isinstance(pid, int) else None,
        repeat if isinstance(repeat, int) else 1,
        place if isinstance(place, int) else None,
    )


def _settings(value: object) -> dict[str, object]:
    return {"settings": {str(k): str(v) for k, v in value.items()}} if isinstance(value, dict) else {}


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
