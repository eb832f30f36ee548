"""What was seen: vitals, evidence, device memory, timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from kvdoctor.facts import SPANS, Known
from kvdoctor.findings import DeviceMemory, Evidence, TargetReport, Verdict
from kvdoctor.report.doubts import held
from kvdoctor.report.marks import more
from kvdoctor.report.page import Cell, Page
from kvdoctor.report.words import (
    clean,
    clock,
    comparison,
    day,
    flow,
    has_year,
    how_word,
    label,
    of_fact,
    place,
    short_source,
    size,
    value,
)

_STATUS_STYLE = {"ok": "green", "watch": "yellow", "bad": "bold red", "unknown": "yellow"}
MOST_EVIDENCE = 6
MOST_EVENTS = 8
MOST_DEVICES = 2
MOST_REASONS = 3


def vitals(page: Page, target: TargetReport, verbose: bool) -> None:
    """The monitored vitals: status, name, value, limit; what is unknown behind them, with the reason."""
    if not target.vitals:
        return
    page.heading("Vitals")
    rows: list[list[Cell]] = []
    unknown: dict[tuple[str, str], list[str]] = {}
    for vital in target.vitals:
        fact = vital.value
        if not isinstance(fact, Known):
            unknown.setdefault((flow(fact.reason), flow(fact.hint) if verbose else ""), []).append(vital.name)
            continue
        # without a limit there is nothing to be ok against
        status = vital.status if vital.threshold is not None else "-"
        notes = [f"limit {value(vital.threshold, vital.unit)}"] if vital.threshold is not None else []
        if fact.how in ("estimated", "assumed"):
            notes.append(fact.how)
        if fact.span == "L":
            notes.append(SPANS["L"])
        rows.append(
            [
                (f"{status:<7}", _STATUS_STYLE.get(status, "dim")),
                (vital.name, ""),
                (of_fact(fact, vital.unit), "bold"),
                (", ".join(notes), "dim"),
            ]
        )
    page.columns(rows, right=(2,))
    lines = [
        f"{'; '.join(names)}: {reason}" + (f"; {hint}" if hint else "") for (reason, hint), names in unknown.items()
    ]
    if len(lines) > MOST_REASONS and not verbose:
        lines = ["; ".join(name for names in unknown.values() for name in names) + " (why: --verbose)"]
    for line in lines:
        page.flow([("unknown  ", _STATUS_STYLE["unknown"]), (line, "")], 2, 11)


def evidence(page: Page, verdict: Verdict, verbose: bool) -> None:
    """The comparisons the verdict rests on, and with ``verbose`` those that do not hold or are not known."""
    seen = held(verdict)
    if not verbose and any(item.unit != "bool" for item in seen):
        # a gate repeats what the figures before it say
        seen = [item for item in seen if item.fact != "kv.pressure"]
    if not seen:
        return
    page.heading("Evidence", "measured where nothing else is said")
    shown = seen if verbose else seen[:MOST_EVIDENCE]
    page.columns(_evidence_rows(shown, verbose), right=(1,))
    more(page, len(seen) - len(shown), "comparison that holds", "comparisons that hold")
    if verbose:
        open_ = [item for item in verdict.evidence if not item.outcome]
        for item in open_:
            left, right = comparison(item)
            state = "not known" if item.outcome is None else "does not hold"
            why = f" ({flow(item.reason)})" if item.reason else ""
            page.flow([(f"{state}: {label(item.fact)} {left} {right}".rstrip() + why, "dim")], 2, 4)


def _evidence_rows(items: Iterable[Evidence], verbose: bool) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for item in items:
        left, right = comparison(item)
        source = clean(item.source) if verbose else short_source(item.source)
        if item.how not in (None, "measured"):
            source = f"{how_word(item.how)} from {source}" if source else how_word(item.how)
        # what equals its own wanted value need not be said twice
        rows.append(
            [(label(item.fact), ""), (left, "bold"), ("" if right == f"== {left}" else right, ""), (source, "dim")]
        )
    return rows


def memory(page: Page, devices: Sequence[DeviceMemory], verbose: bool) -> None:
    """A bar and a table for each device, the fullest first."""
    if not devices:
        return
    page.heading("Device memory")
    # the fullest are the ones to look at
    fullest = sorted(devices, key=_free_share) if len(devices) > MOST_DEVICES else list(devices)
    shown = fullest if verbose else fullest[:MOST_DEVICES]
    for device in shown:
        _bar(page, device)
    more(page, len(devices) - len(shown), "device with more memory free", "devices with more memory free")


def _free_share(device: DeviceMemory) -> float:
    free = [part.bytes for part in device.parts if part.name == "free"]
    return sum(free) / device.total if device.total > 0 else 0.0


def _bar(page: Page, device: DeviceMemory) -> None:
    """One bar, a letter for each part, ``.`` free and ``?`` unexplained, and the table behind it."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    parts: list[tuple[str, str, float, str, str]] = [
        ("." if part.name == "free" else next(letters, "z"), clean(part.name), part.bytes, how_word(part.how), clean(part.source))
        for part in device.parts
    ]  # fmt: skip
    gap = device.unexplained
    if gap > 0:
        parts.append(("?", "unexplained", gap, "", ""))
    length = max(min(page.width - 24, 60), 12)
    edges = [0.0]
    for _, _, amount, _, _ in parts:
        edges.append(edges[-1] + max(amount, 0.0))
    whole = max(device.total, edges[-1])
    marks = [round(edge / whole * length) for edge in edges] if whole > 0 else [0] * len(edges)
    bar = "".join(letter * (end - start) for (letter, *_), (start, end) in zip(parts, pairwise(marks), strict=True))
    page.flow(
        [(f"{clean(device.device)}  ", "bold"), (f"[{bar:<{length}}]", "cyan"), (f"  {size(device.total)}", "bold")], 2
    )
    rows: list[list[Cell]] = [
        [
            (letter, "cyan"),
            (name, ""),
            (size(amount), ""),
            (_share(amount, device.total), ""),
            (how, "dim"),
            (source, "dim"),
        ]
        for letter, name, amount, how, source in parts
    ]
    page.columns(rows, indent=4, right=(2, 3))
    if gap < 0:
        page.flow(
            [(f"the parts add up to {size(-gap)} more than the device has: some bytes are counted twice", "yellow")], 4
        )


def _share(amount: float, total: float) -> str:
    if total <= 0:
        return ""
    share = amount / total
    return "< 0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def timeline(page: Page, target: TargetReport, verbose: bool) -> None:
    """Dated events with their sources."""
    entries = target.timeline
    if not entries:
        return
    dated = [entry.t for entry in entries if entry.t is not None]
    days = {day(t) for t in dated}
    note = ""
    if len(days) == 1:
        note = f"{days.pop()}, UTC" if has_year(dated[0]) else f"{days.pop()}, clock of the log, which prints no year"
    elif days:
        note = "UTC"
    page.heading("Timeline", note)
    shown = entries if verbose else entries[:MOST_EVENTS]
    rows: list[list[Cell]] = []
    for entry in shown:
        if entry.t is None:
            when = "no clock"
        else:
            when = clock(entry.t) if note and note != "UTC" else f"{day(entry.t)} {clock(entry.t)}"
        source = clean(entry.source) if verbose else place(entry.source)
        rows.append([(when, ""), (flow(entry.what), ""), (source, "dim")])
    page.columns(rows)
    more(page, len(entries) - len(shown), "later event")
