"""Counts inside vLLM what its own /metrics leaves out: tokens computed again, and preemptions of each request.

vLLM (0.11.1 and later) loads ``Observer`` through the entry point group ``vllm.stat_logger_plugins`` in the process of
its API server and hands it the statistics of every step. vLLM calls these objects unstable, so releases are listed by
name: on one that is not in the list the observer is inert and says nothing.

Series, all with the labels ``model_name`` and ``engine`` of vLLM's own:

=============================================  =========  =====  =======================================================
name                                           kind       since  meaning
=============================================  =========  =====  =======================================================
``kvdoctor:recomputed_tokens_total``           counter    0.11.1 tokens computed again after a preemption
``kvdoctor:resumed_requests_total``            counter    0.11.1 admissions of a request that had been preempted
``kvdoctor:resume_queries_total``              counter    0.11.1 tokens such requests brought with them
``kvdoctor:resume_hits_total``                 counter    0.11.1 of those, found in the prefix cache or a second tier
``kvdoctor:request_preemptions``               histogram  0.30   preemptions of each finished request, from 0 on
``kvdoctor:request_max_tokens``                histogram  0.30   max_tokens of finished requests, by ``preempted``
``kvdoctor:request_decode_seconds``            histogram  0.30   first to last token, by ``preempted``
=============================================  =========  =====  =======================================================

The first four need prefix caching (vLLM counts no lookup without it) and are absent otherwise: absent is unknown, zero
would be a claim. A request that is preempted again before its replay is over counts with its whole length (measured on
0.32: 0.02 to 1 % too much); one that asks for prompt logprobs is never looked up and not counted. Before 0.27 vLLM
counts a lookup at every attempt to admit, and admissions are told from attempts by the number of running requests. How
far victims had come, and which request was hit when, is not visible from a stat logger and is not exported.

An error inside the observer never reaches the engine: it withdraws its series, writes one line and stays off. With
several API server processes prometheus_client cannot withdraw a series; then the line alone tells.
"""

from __future__ import annotations

import importlib
import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kvdoctor.frozen import frozen

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

FIRST = (0, 11, 1)
"""The first release that loads stat loggers by entry point."""

LAST = (0, 33)
"""The last minor release whose statistics are known."""

AT_ADMISSION = (0, 27)
"""Lookups count once, at admission; before, a request that waits at the head of the queue counts at every attempt."""

PER_REQUEST = (0, 30)
"""Finished requests carry their number of preemptions."""

PREEMPTION_EDGES = (0, 1, 2, 3, 4, 5, 10, 20)
TOKEN_EDGES = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SECOND_EDGES = (0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)

_log = logging.getLogger("vllm.kvdoctor_observer")  # below "vllm", so the line gets vLLM's own handler and format


@frozen
class Sight:
    """What a server's release and settings let a stat logger see."""

    resumes: bool
    """Lookups of resumed requests are counted."""
    at_admission: bool
    """Each lookup counted is an admission."""
    per_request: bool
    """Finished requests carry their number of preemptions."""


def sight(version: str, *, prefix_caching: bool, front_ends: int = 1) -> Sight | None:
    """What can be seen in this release, or None for a release that is not known.

    ``front_ends`` is the number of API server processes: before 0.27 admissions are told from attempts by requests
    that ended, and with several processes each sees only its own.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        return None
    release = tuple(int(part or "0") for part in match.groups())
    if release < FIRST or release[:2] > LAST:
        return None
    at_admission = release >= AT_ADMISSION
    return Sight(
        resumes=prefix_caching and (at_admission or front_ends == 1),
        at_admission=at_admission,
        per_request=release >= PER_REQUEST,
    )


class _Lookups(NamedTuple):
    """Lookups of resumed requests in the prefix cache; the last two in tokens."""

    requests: int
    queries: float
    hits: float


class Series:
    """The observer's collectors in one registry, shared by the engines of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        labels = ("model_name", "engine")

        def counter(name: str, text: str) -> Counter:
            return Counter(f"kvdoctor:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, edges: tuple[float, ...], *more: str) -> Histogram:
            return Histogram(f"kvdoctor:{name}", text, (*labels, *more), registry=registry, buckets=edges)

        self.recomputed = counter("recomputed_tokens", "Tokens computed again after a preemption.")
        self.resumed = counter("resumed_requests", "Admissions of requests that had been preempted.")
        self.queries = counter("resume_queries", "Tokens of resumed requests, looked up in the prefix cache.")
        self.hits = counter("resume_hits", "Tokens of resumed requests found in the prefix cache or a second tier.")
        self.preemptions = histogram("request_preemptions", "Preemptions of each finished request.", PREEMPTION_EDGES)
        self.max_tokens = histogram("request_max_tokens", "max_tokens of finished requests.", TOKEN_EDGES, "preempted")
        self.decode = histogram(
            "request_decode_seconds", "First to last token of finished requests.", SECOND_EDGES, "preempted"
        )


_by_registry: dict[CollectorRegistry, Series] = {}


def _series(registry: CollectorRegistry) -> Series:
    """One set of collectors per registry: vLLM makes its loggers anew when it scales, names may be taken once only."""
    if registry not in _by_registry:
        _by_registry[registry] = Series(registry)
    return _by_registry[registry]


class Recorder:
    """Adds one engine's steps to the series. Raises whatever an unexpected object makes it raise."""

    def __init__(self, seen: Sight, series: Series, model_name: str, engine: int) -> None:
        self._seen = seen
        self._running = 0
        self._held: tuple[_Lookups, int] | None = None
        names = (model_name, str(engine))
        self._names = names
        self._series = series
        if seen.resumes:
            self._recomputed: Counter = series.recomputed.labels(*names)
            self._resumed: Counter = series.resumed.labels(*names)
            self._queries: Counter = series.queries.labels(*names)
            self._hits: Counter = series.hits.labels(*names)
        if seen.per_request:
            self._preemptions: Histogram = series.preemptions.labels(*names)
            self._max_tokens = tuple(series.max_tokens.labels(*names, told) for told in ("no", "yes"))
            self._decode = tuple(series.decode.labels(*names, told) for told in ("no", "yes"))

    def record(self, scheduler: Any, iteration: Any) -> None:
        """One step: vLLM's SchedulerStats and IterationStats; either may be None."""
        finished = iteration.finished_requests if iteration is not None else ()
        if scheduler is not None and self._seen.resumes:
            self._resumes(scheduler, len(finished))
        if self._seen.per_request:
            for request in finished:
                times = request.num_preemptions
                hit = int(times > 0)
                self._preemptions.observe(times)
                self._decode[hit].observe(request.decode_time)
                if request.max_tokens_param is not None:
                    self._max_tokens[hit].observe(request.max_tokens_param)

    def _resumes(self, scheduler: Any, ended: int) -> None:
        before, self._running = self._running, scheduler.num_running_reqs
        cache = scheduler.prefix_cache_stats
        if cache is None or not cache.preempted_requests:
            return
        count, queries, hits = cache.preempted_requests, cache.preempted_queries, cache.preempted_hits
        connector = scheduler.connector_prefix_cache_stats
        if connector is not None:
            hits += connector.preempted_hits
        if not self._seen.at_admission:
            # victims stand at the head of the queue and nobody is preempted in a step that looks at the queue:
            # as many were admitted as the running requests grew by, plus those that ended
            admitted = min(max(self._running - before + ended, 0), count)
            count, queries, hits = self._of_admitted(_Lookups(count, queries, hits), admitted)
        self._resumed.inc(count)
        self._queries.inc(queries)
        self._hits.inc(hits)
        # of a victim's tokens the last one was never computed before: it is the next step of generation
        self._recomputed.inc(max(queries - hits - count, 0))

    def _of_admitted(self, now: _Lookups, admitted: int) -> _Lookups:
        """What the admitted requests looked up, where lookups count at every attempt.

        Of several lookups in one step only the last can have failed, and it is the first of a later step. So a step in
        which some were admitted waits for the next lookups: made by one request, they are the part to take away.
        """
        done = _Lookups(0, 0, 0)
        if self._held is not None:
            held, of_it = self._held
            rest = held.queries - now.queries
            if now.requests == 1 and rest > 0:
                done = _Lookups(of_it, rest, min(max(held.hits - now.hits, 0), rest))
            else:
                share = of_it / held.requests
                done = _Lookups(of_it, held.queries * share, held.hits * share)
        self._held = (now, admitted) if 0 < admitted < now.requests else None
        if admitted == now.requests:
            done = _Lookups(done.requests + now.requests, done.queries + now.queries, done.hits + now.hits)
        return done

    def withdraw(self) -> None:
        """Take this engine's series out of /metrics: a counter that stands still would read as no recompute."""
        if self._seen.resumes:
            for counter in (self._series.recomputed, self._series.resumed, self._series.queries, self._series.hits):
                counter.remove(*self._names)
        if self._seen.per_request:
            self._series.preemptions.remove(*self._names)
            for histogram in (self._series.max_tokens, self._series.decode):
                for told in ("no", "yes"):
                    histogram.remove(*self._names, told)


def _recorder(config: Any, engine: int, version: str, registry: CollectorRegistry) -> Recorder | None:
    seen = sight(
        version,
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        front_ends=getattr(config.parallel_config, "_api_process_count", 1),
    )
    if seen is None:
        return None
    return Recorder(seen, _series(registry), config.model_config.served_model_name, engine)


class Hooks:
    """The methods vLLM calls, guarded. ``Observer`` adds vLLM's base class to them."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0, *_: Any, **__: Any) -> None:
        self._recorder: Recorder | None = None
        try:
            from prometheus_client import REGISTRY

            self._recorder = _recorder(vllm_config, engine_index, vllm_version(), REGISTRY)
        except Exception as error:  # noqa: BLE001 - nothing may reach the engine
            self._switch_off(error)

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: Any, **__: Any) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.record(scheduler_stats, iteration_stats)
        except Exception as error:  # noqa: BLE001 - nothing may reach the engine
            self._switch_off(error)

    def log(self, *_: Any, **__: Any) -> None:
        """Nothing: what the observer has to say is in /metrics."""

    def log_engine_initialized(self, *_: Any, **__: Any) -> None:
        """Nothing: vLLM has already printed that the plug-in was loaded."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Nothing: counters stand still while the engine sleeps, and that is right."""

    def _switch_off(self, error: Exception) -> None:
        recorder, self._recorder = self._recorder, None
        rest = "its series are gone from /metrics"
        if recorder is not None:
            try:
                recorder.withdraw()
            except Exception as again:  # noqa: BLE001 - nothing may reach the engine
                rest = f"and its series could not be withdrawn ({type(again).__name__})"
        _log.warning("kvdoctor's observer switched itself off, %s: %s: %s", rest, type(error).__name__, error)


def vllm_version() -> str:
    """The version vLLM reports of itself."""
    return str(importlib.import_module("vllm").__version__)


def __getattr__(name: str) -> Any:
    """``Observer`` is made when vLLM asks for it: only then is there a base class to derive from."""
    if name != "Observer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = importlib.import_module("vllm.v1.metrics.loggers").StatLoggerBase
    observer = type("Observer", (Hooks, base), {"__module__": __name__, "__doc__": Hooks.__doc__})
    # a later release may ask for methods nobody knows yet; its base class must not stop the server for that
    observer.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    globals()[name] = observer
    return observer
