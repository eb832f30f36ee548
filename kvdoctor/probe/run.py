"""Runs the plan: device level, allocator level, with a guard before every call and everything freed at the end.

The result is the JSON object of ``probe.schema.json`` (``kvdoctor.probe/1``). ``stopped`` is None only when every
step ran.
"""

from __future__ import annotations

import ctypes
import os
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, Final

from kvdoctor.probe.driver import MIB, PAGE, CacheState, Driver, ProbeError, Survey, Tenant
from kvdoctor.probe.pattern import AZURE_CONVERSATION, BYTES_PER_TOKEN, Lengths, Request, operations
from kvdoctor.probe.plan import GIB, REPLAY_BYTES, TIERS, Options, PatternName, Plan, make_plan

SCHEMA: Final = "kvdoctor.probe/1"
TENANT_PERIOD_S: Final = 0.25
"""The process list costs about a millisecond; free memory is read before every call, the list this often."""
REPEATS: Final = 5
MAX_BLOCKS: Final = 4096
SAMPLE_EVERY: Final = 8
"""The allocator's own snapshot is read after every this many requests, and at each refusal."""
PR_SET_PDEATHSIG: Final = 1

DEVICE_SAYS: Final = (
    "Device memory is mapped in 2 MiB pages, so between processes no gap is expected: the figure here is measured, within "
    "what the reserve leaves.",
    "This says nothing about the inside of another process's allocator: no process can look there. A memory snapshot dumped "
    "by the server itself can (torch.cuda.memory._dump_snapshot).",
)
ALLOCATOR_SAYS: Final = (
    "A property of the request pattern and the settings, replayed in the probe's own allocator; not a reading of the server.",
    "Engines that allocate their KV pool once at start-up, such as vLLM, do not allocate per request at all.",
)


class Stopped(Exception):
    """The guard ended the run; the text is a sentence for the report."""


@dataclass
class Guard:
    """Looks at the device before each call of the probe and raises :class:`Stopped` when something moved.

    ``held``: bytes the probe holds now. ``watched``: the other processes seen before the start.
    """

    driver: Driver
    options: Options
    reserve: int
    watched: tuple[Tenant, ...] | None
    base_free: int
    deadline: float
    parent: int
    newcomers: frozenset[int]
    held: int = 0
    _next_list: float = field(default=0.0)

    def check(self, want: int = 0) -> None:
        """``want``: bytes the next call is going to take."""
        now = self.driver.now()
        if now >= self.deadline:
            raise Stopped(f"the time limit of {self.options.time_limit_s:.0f} s was reached")
        if os.getppid() != self.parent:
            raise Stopped("the calling process died")
        free = self.driver.free_memory()
        drift = free + self.held - self.base_free
        if abs(drift) > self.options.tolerance:
            word = "freed" if drift > 0 else "took"
            raise Stopped(f"another process {word} {abs(drift) / MIB:.0f} MiB of the device while the probe ran")
        if free - want < self.reserve:
            raise Stopped(f"{(free - want) / GIB:.1f} GiB would stay free, less than the reserve")
        if now >= self._next_list:
            self._next_list = now + TENANT_PERIOD_S
            self._check_processes()

    def _check_processes(self) -> None:
        seen = self.driver.tenants()
        if self.watched is None or seen is None:
            return
        by_pid = {tenant.pid: tenant for tenant in seen}
        for before in self.watched:
            after = by_pid.pop(before.pid, None)
            if after is None:
                raise Stopped(f"process {before.pid} left the device while the probe ran")
            if before.bytes is not None and after.bytes is not None:
                moved = after.bytes - before.bytes
                if abs(moved) > self.options.tolerance:
                    raise Stopped(f"process {before.pid} changed its memory by {moved / MIB:+.0f} MiB in the meantime")
        # in a container the probe itself appears under a host pid, so one stranger after the context is made is no news
        fresh = by_pid.keys() - self.newcomers
        if fresh:
            raise Stopped(f"process {min(fresh)} came to the device while the probe ran")


def run(
    driver: Driver, options: Options, *, dry_run: bool = False, lengths: Lengths = AZURE_CONVERSATION
) -> dict[str, Any]:
    """Makes the plan and, unless ``dry_run`` or refused, runs it. Never raises for what a device can do."""
    survey = driver.survey()
    plan = make_plan(survey, options, driver.missing())
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "device": _device(survey, plan) if isinstance(survey, Survey) else None,
        "plan": [asdict(step) for step in plan.steps],
        "device_level": None,
        "allocator_level": None,
        "stopped": plan.refused,
    }
    if plan.refused is not None or dry_run or not isinstance(survey, Survey) or plan.reserve is None:
        return result
    with _signals() as ignore_signals:
        try:
            guard = _start(driver, options, survey, plan)
            # the tolerance stays free too: a drift within it must never eat into the reserve
            limit = max(0, guard.base_free - guard.reserve - options.tolerance) // PAGE * PAGE
            if not limit:
                raise Stopped("with the context made, nothing above the reserve is free")
            result["device_level"] = {"say": list(DEVICE_SAYS), "context_bytes": max(0, survey.free - guard.base_free)}
            _device_level(driver, guard, limit, options, result["device_level"])
            result["allocator_level"] = {"say": list(ALLOCATOR_SAYS)}
            _allocator_level(driver, guard, limit, options, lengths, result["allocator_level"])
        except (Stopped, ProbeError) as why:
            result["stopped"] = f"Stopped: {why}."
        finally:
            ignore_signals()
            driver.close()
    return result


def _device(survey: Survey, plan: Plan) -> dict[str, Any]:
    return {
        "name": survey.name,
        "uuid": survey.uuid,
        "mig": survey.mig,
        "total_bytes": survey.total,
        "free_bytes": survey.free,
        "reserve_bytes": plan.reserve,
        "processes": None if survey.tenants is None else [asdict(tenant) for tenant in survey.tenants],
    }


def _start(driver: Driver, options: Options, survey: Survey, plan: Plan) -> Guard:
    """Waits whether anything moves, makes the context and takes the baseline."""
    begun = driver.now()
    while driver.now() - begun < options.settle_s:
        driver.sleep(min(0.25, options.settle_s))
        again = driver.survey()
        if not isinstance(again, Survey):
            raise Stopped("the device went away before the start")
        if abs(again.free - survey.free) > options.tolerance or _pids(again.tenants) != _pids(survey.tenants):
            raise Stopped("memory or processes of the device are moving: an engine may be starting or stopping")
    driver.open()
    fresh = _pids(driver.tenants()) - _pids(survey.tenants)
    if survey.tenants is not None and len(fresh) > 1:
        raise Stopped("another process came to the device at the same time")
    return Guard(
        driver=driver,
        options=options,
        reserve=plan.reserve if plan.reserve is not None else 0,
        watched=survey.tenants,
        base_free=driver.free_memory(),
        deadline=driver.now() + options.time_limit_s,
        parent=os.getppid(),
        newcomers=fresh,
    )


def _pids(tenants: tuple[Tenant, ...] | None) -> frozenset[int]:
    return frozenset(tenant.pid for tenant in tenants) if tenants is not None else frozenset()


# Device level


def _device_level(driver: Driver, guard: Guard, limit: int, options: Options, out: dict[str, Any]) -> None:
    sizes = sorted({*TIERS, *options.block_bytes})
    largest, tries = _largest(driver, guard, limit)
    out["free_bytes"] = guard.base_free
    out["limit_bytes"] = limit
    out["largest_single_bytes"] = largest
    out["largest_is_limit"] = largest == limit
    out["gap"] = 1 - largest / limit if limit else None
    out["tries"] = tries
    out["fit"] = []
    for size in sizes:
        out["fit"].append(_fit(driver, guard, limit, size))
    out["malloc"] = []
    for size in sorted({PAGE, *sizes}):
        if size <= limit:
            out["malloc"].append(_time(driver, guard, size))


@contextmanager
def _holding(driver: Driver, guard: Guard) -> Iterator[list[tuple[int, int]]]:
    """(handle, bytes) of direct allocations, released at the end whatever happens."""
    held: list[tuple[int, int]] = []
    try:
        yield held
    finally:
        while held:
            handle, size = held.pop()
            driver.release(handle)
            guard.held -= size


def _try(driver: Driver, guard: Guard, size: int, held: list[tuple[int, int]]) -> bool:
    taken = -(-size // PAGE) * PAGE
    guard.check(taken)
    handle = driver.allocate(size)
    if handle is None:
        return False
    held.append((handle, taken))
    guard.held += taken
    return True


def _largest(driver: Driver, guard: Guard, limit: int) -> tuple[int, int]:
    """(bytes of the largest single allocation up to ``limit``, number of tries), to one page."""

    def fits(size: int) -> bool:
        with _holding(driver, guard) as held:
            return _try(driver, guard, size, held)

    if limit < PAGE:
        return 0, 0
    if fits(limit):
        return limit, 1
    low, high, tries = 0, limit // PAGE, 1
    while high - low > 1:
        middle = (low + high) // 2
        tries += 1
        if fits(middle * PAGE):
            low = middle
        else:
            high = middle
    return low * PAGE, tries


def _fit(driver: Driver, guard: Guard, limit: int, size: int) -> dict[str, Any]:
    taken = -(-size // PAGE) * PAGE
    expected = limit // taken
    wanted = min(expected, MAX_BLOCKS)
    with _holding(driver, guard) as held:
        while len(held) < wanted and _try(driver, guard, size, held):
            pass
        count = len(held)
    return {"block_bytes": size, "count": count, "expected": expected, "counted_up_to": wanted}


def _time(driver: Driver, guard: Guard, size: int) -> dict[str, Any]:
    times = []
    for _ in range(REPEATS):
        with _holding(driver, guard) as held:
            guard.check(size)
            start = driver.now()
            handle = driver.allocate(size)
            times.append(driver.now() - start)
            if handle is not None:
                held.append((handle, size))
                guard.held += size
    return {"bytes": size, "median_s": statistics.median(times), "max_s": max(times)}


# Allocator level


def _allocator_level(
    driver: Driver, guard: Guard, limit: int, options: Options, lengths: Lengths, out: dict[str, Any]
) -> None:
    budget = min(limit, REPLAY_BYTES)
    out["lengths"] = lengths.source
    out["bytes_per_token"] = BYTES_PER_TOKEN
    out["budget_bytes"] = budget
    out["runs"] = []
    for settings in options.settings:
        for pattern in options.patterns:
            driver.configure(settings, budget)
            out["runs"].append(_replay(driver, guard, pattern, settings, lengths, budget))


def _replay(
    driver: Driver, guard: Guard, pattern: PatternName, settings: str, lengths: Lengths, budget: int
) -> dict[str, Any]:
    live: dict[int, list[int]] = {}
    watch = _Watch(budget)
    requests = refused = false_refused = requested = 0
    first: dict[str, int] | None = None
    begun = driver.now()
    try:
        for op in operations(pattern, lengths, budget):
            request = op.request
            if not op.take:
                if request.ident in live:
                    requested -= request.bytes
                    for handle in live.pop(request.ident):
                        driver.cache_release(handle)
                continue
            requests += 1
            handles = live[request.ident] = []
            if _take(driver, guard, request, handles):
                requested += request.bytes
                if requests % SAMPLE_EVERY == 0:
                    watch.see(driver.cache_state(), requested)
                continue
            for handle in live.pop(request.ident):
                driver.cache_release(handle)
            refused += 1
            state = driver.cache_state()
            watch.see(state, requested)
            if budget - state.allocated >= sum(request.sizes):
                false_refused += 1
                if first is None:
                    first = {
                        "requested_bytes": sum(request.sizes),
                        "free_bytes": budget - state.allocated,
                        "largest_fit_bytes": watch.largest_fit(state),
                    }
    finally:
        for handles in live.values():
            for handle in handles:
                driver.cache_release(handle)
        driver.trim()
        guard.held = 0
    return {
        "pattern": pattern,
        "settings": settings,
        "requests": requests,
        "refused": refused,
        "false_refused": false_refused,
        "first_false": first,
        "seconds": driver.now() - begun,
        **watch.result(),
    }


def _take(driver: Driver, guard: Guard, request: Request, handles: list[int]) -> bool:
    """Allocates the pieces of a request into ``handles``; False when one was refused."""
    for size in request.sizes:
        guard.held = driver.cache_reserved()
        guard.check()
        handle = driver.cache_allocate(size)
        if handle is None:
            return False
        handles.append(handle)
    return True


class _Watch:
    """Largest and last figures over the samples of one replay."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.samples = 0
        self.reserved = 0
        self.allocated = 0
        self.split: int | None = 0
        self.external: list[float] = []
        self.internal: list[float] = []
        self.fit: int | None = None

    def see(self, state: CacheState, requested: int) -> None:
        self.samples += 1
        self.reserved = max(self.reserved, state.reserved)
        self.allocated = max(self.allocated, state.allocated)
        if self.split is not None:
            self.split = None if state.inactive_split is None else max(self.split, state.inactive_split)
        free = self.budget - state.allocated
        fit = self.largest_fit(state)
        if free > 0:
            self.external.append(max(0.0, 1 - fit / free))
        if state.allocated:
            self.internal.append(max(0.0, 1 - requested / state.allocated))
        self.fit = fit if self.fit is None else min(self.fit, fit)

    def largest_fit(self, state: CacheState) -> int:
        """A cached free block, or new memory within the budget once cached free segments went back."""
        fresh = self.budget - state.reserved + state.returnable
        return max(state.largest_free, fresh // PAGE * PAGE)

    def result(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "reserved_peak_bytes": self.reserved if self.samples else None,
            "allocated_peak_bytes": self.allocated if self.samples else None,
            "inactive_split_peak_bytes": self.split if self.samples else None,
            "largest_fit_min_bytes": self.fit,
            "external_max": max(self.external, default=None),
            "external_mean": statistics.fmean(self.external) if self.external else None,
            "internal_mean": statistics.fmean(self.internal) if self.internal else None,
        }


# Signals


def die_with_parent() -> bool:
    """Asks the kernel to send SIGTERM when the calling process dies; False where that does not exist (not Linux)."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0)


@contextmanager
def _signals() -> Iterator[Callable[[], None]]:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Stopped`, so that the memory is freed on the way out.

    Yields a function that ignores them from then on: nothing may interrupt the freeing. Only the main thread may set
    handlers; elsewhere the caller's own handling stays.
    """
    before: dict[signal.Signals, Any] = {}

    def ignore() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    def stop(number: int, frame: FrameType | None) -> None:
        ignore()
        raise Stopped(f"interrupted by {signal.Signals(number).name}")

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, stop)
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
