"""Result files of ``kvdoctor probe`` (``kvdoctor.probe/1``), read back for a diagnosis. Bytes and seconds throughout.

A field that is missing or of the wrong kind is None, never zero; a file that is not such a result is a
:class:`NotAProbe`.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from kvdoctor.frozen import frozen

SCHEMA: Final = "kvdoctor.probe/1"


@frozen
class NotAProbe:
    """Why the text is not a probe result."""

    reason: str


@frozen
class Fit:
    """How many blocks of one size the device held at once, of how many by division; ``counted_up_to`` caps the count."""

    block_bytes: int
    count: int
    expected: int
    counted_up_to: int


@frozen
class Replay:
    """One request pattern under one allocator setting ("" = defaults), in the probe's own allocator."""

    pattern: str
    settings: str
    requests: int | None
    refused: int | None
    false_refused: int | None
    external_max: float | None
    largest_fit_min_bytes: int | None
    inactive_split_peak_bytes: int | None
    reserved_peak_bytes: int | None
    allocated_peak_bytes: int | None


@frozen
class ProbeResult:
    """``gap``: 1 - largest single allocation / limit (free less the reserve). ``stopped`` None = every step ran.

    ``largest_is_limit``: the true largest allocation may be larger than ``largest_single_bytes``.
    """

    device_name: str | None
    device_uuid: str | None
    total_bytes: int | None
    free_bytes: int | None
    limit_bytes: int | None
    largest_single_bytes: int | None
    largest_is_limit: bool | None
    gap: float | None
    fits: tuple[Fit, ...]
    replays: tuple[Replay, ...]
    stopped: str | None


def sniff(head: str) -> bool:
    """Whether the beginning of a text looks like a probe result."""
    return head.lstrip()[:1] == "{" and SCHEMA in head[:4096]


def load(text: str) -> ProbeResult | NotAProbe:
    """Reads one result; unknown extra fields are ignored."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        return NotAProbe("not valid JSON")
    if not isinstance(root, dict) or not isinstance(root.get("schema"), str):
        return NotAProbe("not an object with a schema")
    if root["schema"] != SCHEMA:
        return NotAProbe(f"schema {root['schema'][:60]}, expected {SCHEMA}")
    device = _object(root.get("device"))
    level = _object(root.get("device_level"))
    flag = level.get("largest_is_limit")
    return ProbeResult(
        device_name=_text(device.get("name")),
        device_uuid=_text(device.get("uuid")),
        total_bytes=_count(device.get("total_bytes")),
        free_bytes=_count(device.get("free_bytes")),
        limit_bytes=_count(level.get("limit_bytes")),
        largest_single_bytes=_count(level.get("largest_single_bytes")),
        largest_is_limit=flag if isinstance(flag, bool) else None,
        gap=_share(level.get("gap")),
        fits=tuple(fit for row in _rows(level.get("fit")) if (fit := _fit(row)) is not None),
        replays=tuple(_replay(row) for row in _rows(_object(root.get("allocator_level")).get("runs"))),
        stopped=_text(root.get("stopped")),
    )


def _fit(row: dict[str, Any]) -> Fit | None:
    size, count = _count(row.get("block_bytes")), _count(row.get("count"))
    expected, up_to = _count(row.get("expected")), _count(row.get("counted_up_to"))
    if size is None or count is None or expected is None or up_to is None:
        return None
    return Fit(size, count, expected, up_to)


def _replay(row: dict[str, Any]) -> Replay:
    pattern, settings = _text(row.get("pattern")), _text(row.get("settings"))
    return Replay(
        pattern=pattern if pattern is not None else "unknown",
        settings=settings if settings is not None else "unknown",
        requests=_count(row.get("requests")),
        refused=_count(row.get("refused")),
        false_refused=_count(row.get("false_refused")),
        external_max=_share(row.get("external_max")),
        largest_fit_min_bytes=_count(row.get("largest_fit_min_bytes")),
        inactive_split_peak_bytes=_count(row.get("inactive_split_peak_bytes")),
        reserved_peak_bytes=_count(row.get("reserved_peak_bytes")),
        allocated_peak_bytes=_count(row.get("allocated_peak_bytes")),
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _share(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= 1 else None
