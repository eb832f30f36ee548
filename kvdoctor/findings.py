"""The nouns a diagnosis ends in: evidence, verdicts, actions, the plan, the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from kvdoctor.facts import Fact, How, Span, Value
from kvdoctor.frozen import frozen

State = Literal["fires", "clear", "not_applicable", "suspected", "blind"]
Severity = Literal["critical", "high", "medium", "low", "info"]
Confidence = Literal["high", "medium", "low"]

SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low", "info")
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")

CERTAINTY: Mapping[Confidence, str] = {"high": "certain", "medium": "likely", "low": "likely"}
"""The one word of the text report for a finding that fired; one that did not is 'suspected'."""


@frozen
class Evidence:
    """One comparison of a rule, with the value it saw.

    ``outcome`` is True, False or None (undecided). ``threshold`` is the number compared with (in ``unit``), ``origin``
    tells where a changed threshold was set. ``value`` is None when the fact is unknown; then ``reason`` and ``hint`` say
    why and how to get it.
    """

    fact: str
    op: str
    outcome: bool | None
    unit: str
    value: Value | None = None
    lo: Value | None = None
    hi: Value | None = None
    threshold: Value | None = None
    threshold_name: str = ""
    calibrated: bool = True
    origin: str = "rule"
    how: How | None = None
    span: Span | None = None
    source: str = ""
    note: str = ""
    events: float | None = None
    requests: float | None = None
    reason: str = ""
    hint: str = ""


@frozen
class Missing:
    """A fact a rule needs and does not have."""

    fact: str
    reason: str
    hint: str = ""


@frozen
class Turn:
    """A lever a rule wants turned, before an engine's flag is known. ``to`` is a value with unit, literal text, or None."""

    lever: str
    direction: str
    to: Fact | str | None
    unit: str
    why: str


@frozen
class Advice:
    """What a rule recommends on this subject: levers, confirm command names, checks in words, a policy patch."""

    turns: tuple[Turn, ...]
    confirm: tuple[str, ...]
    checks: tuple[str, ...]
    policy: Mapping[str, object]


@frozen
class Action:
    """One lever to turn, in the words of the engine version seen.

    ``flag`` is None when that version has no such flag; ``instead`` then says what to do. ``start`` and ``to`` are the
    setting now and the setting recommended (None: only the direction is known).
    """

    lever: str
    flag: str | None
    start: str | None
    to: str | None
    direction: str
    effect: str
    cost: str
    next_limit: str
    verify: str
    instead: str = ""
    why: str = ""


@frozen
class Verdict:
    """What one rule says about one subject."""

    rule: str
    id: str
    state: State
    title: str
    severity: Severity
    stage: int
    misdiagnosis: int | None
    fallback: bool
    say: str = ""
    cause: str = ""
    not_this: str = ""
    confidence: Confidence = "high"
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[Missing, ...] = ()
    would_fire_if: str = ""
    muted_by: str | None = None
    mute_reason: str = ""
    advice_muted_by: str | None = None
    actions: tuple[Action, ...] = ()
    confirm: tuple[str, ...] = ()


@frozen
class SourceNote:
    """One input of a target and what became of it."""

    kind: str
    origin: str
    status: str
    lines: int | None = None
    bad_lines: int | None = None


@frozen
class Window:
    """When the evidence was taken; epoch seconds, None where the sources carry no clock."""

    start: float | None
    end: float | None
    seconds: float | None
    scrapes: int


@frozen
class TimelineEntry:
    """One dated event; ``t`` is epoch seconds, or None when only the order is known."""

    t: float | None
    what: str
    source: str


@frozen
class Vital:
    """One of the monitored vitals with its threshold and status."""

    name: str
    fact: str
    value: Fact
    threshold: float | None
    unit: str
    status: Literal["ok", "watch", "bad", "unknown"]


@frozen
class MemoryPart:
    """One named share of a device, in bytes."""

    name: str
    bytes: float
    how: How
    source: str


@frozen
class DeviceMemory:
    """Where the bytes of one device are; parts and ``unexplained`` add up to ``total``."""

    device: str
    total: float
    parts: tuple[MemoryPart, ...]
    unexplained: float
    note: str = ""


@frozen
class WhatIf:
    """One replayed alternative: goodput as a share of requests, with its spread over seeds."""

    name: str
    goodput: float
    lo: float
    hi: float
    ttft_p99_s: float | None
    stall_p99_s: float | None
    recompute_time_share: float | None


@frozen
class Watermark:
    """A recommended watermark with its interval and the basis it rests on."""

    value: float
    lo: float
    hi: float


@frozen
class Plan:
    """What to change: watermarks, levers in the engine's flags, a policy patch, and the replays behind them."""

    alert_high: Watermark | None = None
    alert_low: Watermark | None = None
    admission_free: Watermark | None = None
    basis: str = ""
    how: How | None = None
    levers: tuple[Action, ...] = ()
    policy: Mapping[str, object] | None = None
    what_if: tuple[WhatIf, ...] | None = None


@frozen
class TargetReport:
    """Everything said about one server run (or about the group of runs, ``name == 'group'``)."""

    name: str
    engine: str | None
    engine_version: str | None
    model: str | None
    gpus: tuple[str, ...]
    sources: tuple[SourceNote, ...]
    window: Window
    verdict: Verdict
    findings: tuple[Verdict, ...]
    undecided: tuple[Verdict, ...]
    silent: tuple[Verdict, ...]
    facts: Mapping[str, Fact]
    ranks: Mapping[str, Mapping[str, Fact]] = field(default_factory=dict)
    vitals: tuple[Vital, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    series: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)


@frozen
class Report:
    """The whole answer. ``main`` is the target the verdict comes from."""

    main: TargetReport
    targets: tuple[TargetReport, ...]
    plan: Plan
    warnings: tuple[str, ...]
    usable: bool
    fail_unknown: tuple[str, ...] = ()
