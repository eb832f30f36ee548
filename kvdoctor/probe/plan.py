"""What the probe is going to do, before it does anything: steps, limits and the reasons not to start.

The plan is made from :class:`~kvdoctor.probe.driver.Survey` alone: no torch, no CUDA context, nothing allocated.
"""

from __future__ import annotations

from typing import Final, Literal

from kvdoctor.frozen import frozen
from kvdoctor.probe.driver import MIB, PAGE, NoDevice, Survey

GIB: Final = 1024 * MIB
RESERVE_BYTES: Final = 2 * GIB
RESERVE_SHARE: Final = 0.10
CONTEXT_BYTES: Final = 600 * MIB
"""Allowance for the probe's own CUDA context with torch: a guess at the upper end (a bare CUDA program took 146 MiB).
"""
YOUNG_S: Final = 180.0
"""A process younger than this may be an engine that still measures free memory to size its pool."""
TIERS: Final = (64 * MIB, 256 * MIB, 1024 * MIB)
REPLAY_BYTES: Final = 8 * GIB
"""The allocator replay takes no more than this: enough for dozens of requests, little beside a live server."""

PatternName = Literal["contiguous", "paged", "tiered"]
PATTERNS: Final[tuple[PatternName, ...]] = ("contiguous", "paged", "tiered")


@frozen
class Options:
    """What the user chose. ``reserve`` None = the larger of 2 GiB and 10 % of the device; ``settings`` are allocator
    settings ("" = torch's defaults), each replayed in turn. Raises ValueError for what cannot work."""

    block_bytes: tuple[int, ...] = ()
    reserve: int | None = None
    time_limit_s: float = 60.0
    settings: tuple[str, ...] = ("",)
    patterns: tuple[PatternName, ...] = PATTERNS
    tolerance: int = 64 * MIB
    """Free memory may differ from what the probe expects by this much before it stops."""
    settle_s: float = 2.0

    def __post_init__(self) -> None:
        if any(size < PAGE for size in self.block_bytes):
            raise ValueError("a block must have at least 2 MiB, the page size of the device")
        if self.reserve is not None and self.reserve < 256 * MIB:
            raise ValueError("the reserve must be at least 256 MiB")
        if not 1 <= self.time_limit_s <= 600:
            raise ValueError("the time limit must be 1 to 600 seconds")
        for settings in self.settings:
            check_settings(settings)


def check_settings(text: str) -> None:
    """Raises ValueError unless ``text`` has the form of PYTORCH_ALLOC_CONF and can be set in a running process."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, colon, value = part.partition(":")
        if not colon or not key.strip() or not value.strip():
            raise ValueError(f"allocator settings are key:value pairs, not {part!r}")
        if key.strip() == "backend":
            raise ValueError("the allocator backend cannot be changed in a running process")


@frozen
class Step:
    """One line of the plan. ``bytes`` is the most the step holds at once, None = nothing or not known without a
    device.
    """

    step: str
    text: str
    bytes: int | None


@frozen
class Plan:
    """Steps in order. ``limit``: most bytes the probe ever holds; ``refused``: why it will not start, as a sentence."""

    steps: tuple[Step, ...]
    reserve: int | None
    limit: int | None
    refused: str | None


def make_plan(survey: Survey | NoDevice, options: Options, missing: str | None) -> Plan:
    """The plan for this device; ``missing`` is what is not installed, as a sentence."""
    reserve = options.reserve
    limit = None
    if isinstance(survey, Survey):
        if reserve is None:
            reserve = max(RESERVE_BYTES, int(survey.total * RESERVE_SHARE))
        limit = max(0, survey.free - CONTEXT_BYTES - reserve - options.tolerance) // PAGE * PAGE
    kept = f"{reserve / GIB:.1f} GiB" if reserve is not None else "the larger of 2 GiB and 10 % of the device"
    sizes = sorted({*TIERS, *options.block_bytes})
    named = ", ".join(f"{size // MIB}" for size in sizes)
    settings = "; ".join(text if text else "torch's defaults" for text in options.settings)
    replay = min(limit, REPLAY_BYTES) if limit is not None else None
    steps = (
        Step("guard", f"keep {kept} free at every moment; stop after {options.time_limit_s:.0f} s", None),
        Step(
            "guard",
            f"watch free memory and every other process for {options.settle_s:.0f} s before the start and all the time: "
            f"stop at once when they move by more than {options.tolerance // MIB} MiB",
            None,
        ),
        Step("context", "make a CUDA context in this process (torch); it goes when the process ends", CONTEXT_BYTES),
        Step("largest", "bisect for the largest single allocation, each held only until it succeeded", limit),
        Step("fit", f"count how many blocks of {named} MiB fit at once, then free them", limit),
        Step("time", "time five allocations each of 2 MiB and of those sizes", max(sizes)),
        Step(
            "replay",
            f"replay KV-cache requests ({', '.join(options.patterns)}) in this process's own torch allocator with: {settings}",
            replay,
        ),
        Step("free", "free everything, also on Ctrl-C, SIGTERM and when the calling process dies", None),
    )
    return Plan(steps, reserve, limit, _refusal(survey, reserve, missing))


def _refusal(survey: Survey | NoDevice, reserve: int | None, missing: str | None) -> str | None:
    if isinstance(survey, NoDevice):
        return f"No device to probe: {survey.reason}. {survey.hint[:1].upper()}{survey.hint[1:]}."
    if missing is not None:
        return f"Nothing was probed: {missing}."
    if survey.mps:
        return "Nothing was probed: MPS is running, so a fault of the probe would take the server down with it."
    if survey.compute_mode in ("exclusive", "prohibited"):
        return f"Nothing was probed: the compute mode is {survey.compute_mode}, so a second context is not allowed."
    young = [tenant for tenant in survey.tenants or () if tenant.age_s is not None and tenant.age_s < YOUNG_S]
    if young:
        return (
            f"Nothing was probed: process {young[0].pid} started {young[0].age_s:.0f} s ago, and a starting engine sizes its "
            f"pool by the free memory it sees; wait until it serves (at least {YOUNG_S:.0f} s)."
        )
    needed = CONTEXT_BYTES + (reserve if reserve is not None else RESERVE_BYTES)
    if survey.free < needed + PAGE:
        return (
            f"Nothing was probed: {survey.free / GIB:.1f} GiB are free, less than the reserve and the probe's own context "
            f"({needed / GIB:.1f} GiB)."
        )
    return None
