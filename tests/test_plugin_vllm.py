"""The observer for vLLM against stand-in statistics: plain objects with the fields of vLLM 0.32's classes.

No vLLM is needed or imported: a small module of that name stands in where one is asked for. The observer inside a real
server is tested in tests/real.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from kvdoctor.engines._vllm_series import SERIES
from kvdoctor.parse.exposition import Exposition, parse
from kvdoctor.plugins import vllm_observer as observer


def cache(requests: int = 0, queries: int = 0, hits: int = 0) -> SimpleNamespace:
    return SimpleNamespace(preempted_requests=requests, preempted_queries=queries, preempted_hits=hits)


def step(running: int = 4, prefix: Any = None, connector: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        num_running_reqs=running,
        prefix_cache_stats=cache() if prefix is None else prefix,
        connector_prefix_cache_stats=connector,
    )


def ended(*preemptions: int, max_tokens: int | None = 200, decode: float = 3.0) -> SimpleNamespace:
    return SimpleNamespace(
        finished_requests=[
            SimpleNamespace(num_preemptions=n, max_tokens_param=max_tokens, decode_time=decode) for n in preemptions
        ]
    )


def settings(caching: bool | None = True, front_ends: int = 1, model: str = "tiny") -> SimpleNamespace:
    return SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=caching),
        parallel_config=SimpleNamespace(_api_process_count=front_ends),
        model_config=SimpleNamespace(served_model_name=model),
    )


def values(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample of the registry's page but the times of creation, by name and labels as written."""
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        if "_created{" not in name
    }


def recorder(version: str = "0.32.0", registry: CollectorRegistry | None = None, **config: Any) -> Any:
    made = observer._recorder(settings(**config), 0, version, registry or CollectorRegistry())
    assert made is not None
    return made


LABELS = 'engine="0",model_name="tiny"'
AGAIN = f"kvdoctor:recomputed_tokens_total{{{LABELS}}}"


# ------------------------------------------------------------------- versions


@pytest.mark.parametrize("version", ["0.11.1", "0.11.2", "0.26.0", "0.27.0", "0.32.0", "0.32.0+cpu", "0.33.1rc1"])
def test_known_releases_are_observed(version: str) -> None:
    assert observer.sight(version, prefix_caching=True) is not None


@pytest.mark.parametrize("version", ["0.11.0", "0.8.5", "0.34.0", "1.0.0", "dev", "", "0.1.dev1+gabc"])
def test_unknown_releases_are_not(version: str) -> None:
    assert observer.sight(version, prefix_caching=True) is None


def test_what_a_release_shows() -> None:
    old = observer.sight("0.20.2", prefix_caching=True)
    assert old == observer.Sight(resumes=True, at_admission=False, per_request=False)
    assert observer.sight("0.29.0", prefix_caching=True) == observer.Sight(True, True, False)
    assert observer.sight("0.30.0", prefix_caching=False) == observer.Sight(False, True, True)


def test_several_front_ends_hide_admissions_before_lookups_count_once() -> None:
    old = observer.sight("0.20.2", prefix_caching=True, front_ends=2)
    assert old is not None
    assert not old.resumes
    new = observer.sight("0.27.0", prefix_caching=True, front_ends=2)
    assert new is not None
    assert new.resumes


# ------------------------------------------------------------------- counting


def test_recompute_is_what_a_resumed_request_did_not_find_but_for_its_last_token() -> None:
    registry = CollectorRegistry()
    made = recorder(registry=registry)
    made.record(step(prefix=cache(1, 975, 928)), None)
    made.record(step(prefix=cache(2, 1000, 0)), ended())
    seen = values(registry)
    assert seen[AGAIN] == (975 - 928 - 1) + (1000 - 2)
    assert seen[f"kvdoctor:resumed_requests_total{{{LABELS}}}"] == 3
    assert seen[f"kvdoctor:resume_queries_total{{{LABELS}}}"] == 1975
    assert seen[f"kvdoctor:resume_hits_total{{{LABELS}}}"] == 928


def test_a_second_tier_spares_recompute_too() -> None:
    registry = CollectorRegistry()
    recorder(registry=registry).record(step(prefix=cache(1, 900, 400), connector=cache(1, 500, 450)), None)
    assert values(registry)[AGAIN] == 900 - 400 - 450 - 1


def test_a_quiet_server_reads_zero_from_the_start() -> None:
    registry = CollectorRegistry()
    recorder(registry=registry)
    seen = values(registry)
    assert seen[AGAIN] == 0
    assert seen['kvdoctor:request_preemptions_bucket{engine="0",le="0.0",model_name="tiny"}'] == 0


def test_without_prefix_caching_recompute_is_absent_not_zero() -> None:
    registry = CollectorRegistry()
    made = recorder(registry=registry, caching=False)
    made.record(step(), ended(2))
    seen = values(registry)
    assert not any("recomputed" in name or "resume" in name for name in seen)
    assert seen[f"kvdoctor:request_preemptions_count{{{LABELS}}}"] == 1


def test_preemptions_of_finished_requests_keep_none_and_one_apart() -> None:
    registry = CollectorRegistry()
    recorder(registry=registry).record(None, ended(0, 0, 0, 1, 3))
    seen = values(registry)

    def bucket(edge: str) -> float:
        return seen[f'kvdoctor:request_preemptions_bucket{{engine="0",le="{edge}",model_name="tiny"}}']

    assert [bucket(edge) for edge in ("0.0", "1.0", "2.0", "3.0", "+Inf")] == [3, 4, 4, 5, 5]
    assert seen[f"kvdoctor:request_preemptions_sum{{{LABELS}}}"] == 4
    assert seen[f'kvdoctor:request_decode_seconds_sum{{{LABELS},preempted="no"}}'] == 9
    assert seen[f'kvdoctor:request_max_tokens_count{{{LABELS},preempted="yes"}}'] == 2


def test_a_request_without_a_limit_has_no_max_tokens() -> None:
    registry = CollectorRegistry()
    recorder(registry=registry).record(None, ended(0, max_tokens=None))
    seen = values(registry)
    assert seen[f'kvdoctor:request_max_tokens_count{{{LABELS},preempted="no"}}'] == 0
    assert seen[f"kvdoctor:request_preemptions_count{{{LABELS}}}"] == 1


def test_before_0_30_finished_requests_tell_nothing() -> None:
    registry = CollectorRegistry()
    old = SimpleNamespace(finished_requests=[SimpleNamespace(max_tokens_param=10, decode_time=1.0)])
    recorder("0.27.1", registry).record(step(), old)
    assert not any("request_preemptions" in name for name in values(registry))


def test_engines_are_told_apart_in_one_set_of_series() -> None:
    registry = CollectorRegistry()
    for engine in (0, 1):
        made = observer._recorder(settings(), engine, "0.32.0", registry)
        assert made is not None
        made.record(step(prefix=cache(1, 100 * (engine + 1) + 1, 0)), None)
    seen = values(registry)
    assert seen[AGAIN] == 100
    assert seen['kvdoctor:recomputed_tokens_total{engine="1",model_name="tiny"}'] == 200


def test_the_page_is_read_back_by_the_name_the_doctor_knows() -> None:
    registry = CollectorRegistry()
    recorder(registry=registry).record(step(prefix=cache(1, 101, 0)), ended(0, 2))
    page = parse(generate_latest(registry).decode())
    assert isinstance(page, Exposition)
    assert page.bad_count == 0
    known = {name.name: name.kind for series in SERIES for name in series.names}
    assert known["kvdoctor:recomputed_tokens_total"] == "counter"
    assert [sample.value for sample in page.named("kvdoctor:recomputed_tokens_total")] == [100]
    assert known["kvdoctor:request_preemptions"] == page.types["kvdoctor:request_preemptions"] == "histogram"
    assert [s.value for s in page.named("kvdoctor:request_preemptions_bucket") if s.labels["le"] == "0.0"] == [1]


# -------------------------------------------- lookups counted at every attempt


def test_an_attempt_that_fails_is_not_a_resume() -> None:
    registry = CollectorRegistry()
    made = recorder("0.26.0", registry)
    made.record(step(running=5), ended())
    for _ in range(40):  # at the head of the queue, no room
        made.record(step(running=5, prefix=cache(1, 900, 64)), ended())
    made.record(step(running=6, prefix=cache(1, 900, 64)), ended())
    seen = values(registry)
    assert seen[f"kvdoctor:resumed_requests_total{{{LABELS}}}"] == 1
    assert seen[AGAIN] == 900 - 64 - 1


def test_room_left_by_a_finished_request_is_an_admission() -> None:
    registry = CollectorRegistry()
    made = recorder("0.26.0", registry)
    made.record(step(running=5), None)
    made.record(step(running=5, prefix=cache(1, 300, 0)), ended(0))
    assert values(registry)[AGAIN] == 299


def test_one_in_and_one_refused_is_settled_by_the_next_attempt() -> None:
    registry = CollectorRegistry()
    made = recorder("0.26.0", registry)
    made.record(step(running=5), None)
    made.record(step(running=6, prefix=cache(2, 400 + 900, 352 + 64)), None)
    assert values(registry)[AGAIN] == 0
    made.record(step(running=6), None)
    made.record(step(running=6, prefix=cache(1, 900, 64)), None)
    seen = values(registry)
    assert seen[f"kvdoctor:resumed_requests_total{{{LABELS}}}"] == 1
    assert seen[AGAIN] == 400 - 352 - 1


def test_unsettled_lookups_are_shared_by_number() -> None:
    registry = CollectorRegistry()
    made = recorder("0.26.0", registry)
    made.record(step(running=5), None)
    made.record(step(running=6, prefix=cache(2, 1000, 200)), None)
    made.record(step(running=8, prefix=cache(2, 600, 0)), None)
    seen = values(registry)
    assert seen[f"kvdoctor:resumed_requests_total{{{LABELS}}}"] == 3
    assert seen[AGAIN] == (500 - 100) + 600 - 3


numbers = st.integers(0, 5000)


@given(
    st.sampled_from(["0.11.1", "0.26.0", "0.32.0"]),
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 5), numbers, numbers, st.integers(0, 3)), max_size=30),
)
def test_counters_only_grow_and_hits_never_exceed_queries(
    version: str, steps: list[tuple[int, int, int, int, int]]
) -> None:
    registry = CollectorRegistry()
    made = recorder(version, registry)
    before: dict[str, float] = {}
    for running, requests, queries, hits, done in steps:
        # a step with no lookup has no tokens, and what was found was looked for
        looked = cache(requests, queries if requests else 0, min(hits, queries) if requests else 0)
        made.record(step(running=running, prefix=looked), SimpleNamespace(finished_requests=[]) if done else None)
        now = {name: value for name, value in values(registry).items() if "_total{" in name}
        assert all(now[name] >= value for name, value in before.items())
        before = now
    if before:
        lookups = before[f"kvdoctor:resume_queries_total{{{LABELS}}}"]
        assert before[f"kvdoctor:resume_hits_total{{{LABELS}}}"] <= lookups + 1e-6
        assert before[AGAIN] <= lookups


# ----------------------------------------------------- as vLLM loads and calls


class StatLoggerBase(ABC):
    """Stand-in for vLLM's base class, with one method more than is known."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    @abstractmethod
    def not_known_yet(self) -> None: ...


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The class vLLM gets, beside a stand-in vllm of a settable version, with a registry of its own."""
    import prometheus_client

    vllm, loggers = ModuleType("vllm"), ModuleType("vllm.v1.metrics.loggers")
    vllm.__version__ = "0.32.0"  # type: ignore[attr-defined]
    loggers.StatLoggerBase = StatLoggerBase  # type: ignore[attr-defined]
    for name, module in (
        ("vllm", vllm),
        ("vllm.v1", ModuleType("vllm.v1")),
        ("vllm.v1.metrics", ModuleType("vllm.v1.metrics")),
        ("vllm.v1.metrics.loggers", loggers),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.setattr(observer, "_by_registry", {})
    made = observer.__getattr__("Observer")
    yield SimpleNamespace(cls=made, vllm=vllm, loggers=loggers, registry=registry)
    vars(observer).pop("Observer", None)


def test_the_class_is_what_vllm_checks_for(loaded: SimpleNamespace) -> None:
    assert isinstance(loaded.cls, type)
    assert issubclass(loaded.cls, StatLoggerBase)
    made = loaded.cls(settings(), 0)
    made.record(step(prefix=cache(1, 51, 0)), ended(0), mm_cache_stats=None, engine_idx=0)
    made.log_engine_initialized()
    made.log()
    made.record_sleep_state(True, 1)
    assert values(loaded.registry)[AGAIN] == 50


def test_the_entry_point_of_the_package_names_the_class() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    where = project["entry-points"]["vllm.stat_logger_plugins"]["kvdoctor"]
    module, name = where.split(":")
    assert importlib.import_module(module) is observer
    assert name == "Observer"


def test_an_unknown_release_is_met_with_silence(loaded: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    loaded.vllm.__version__ = "0.99.0"
    with caplog.at_level(logging.DEBUG):
        made = loaded.cls(settings(), 0)
        made.record(object(), object())
        made.not_known_yet()
    assert values(loaded.registry) == {}
    assert caplog.records == []


def test_another_logger_of_the_same_process_shares_the_names(loaded: SimpleNamespace) -> None:
    for _ in range(2):  # vLLM builds its loggers anew when it scales
        loaded.cls(settings(), 0).record(step(prefix=cache(1, 11, 0)), None)
    assert values(loaded.registry)[AGAIN] == 20


@pytest.mark.parametrize(
    "broken",
    [
        SimpleNamespace(),
        SimpleNamespace(num_running_reqs=1),
        SimpleNamespace(num_running_reqs=1, prefix_cache_stats=SimpleNamespace()),
        step(prefix=SimpleNamespace(preempted_requests=1, preempted_queries="many", preempted_hits=0)),
    ],
    ids=["nothing", "no prefix statistics", "no counts", "a word for a number"],
)
def test_a_changed_interface_switches_it_off_with_one_line(
    loaded: SimpleNamespace, caplog: pytest.LogCaptureFixture, broken: Any
) -> None:
    made = loaded.cls(settings(), 0)
    made.record(step(prefix=cache(1, 11, 0)), ended(1))
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            made.record(broken, None)
    assert len(caplog.records) == 1
    assert "switched itself off" in caplog.records[0].getMessage()
    assert "\n" not in caplog.records[0].getMessage()
    # counters that stand still would be read as no recompute
    assert values(loaded.registry) == {}


def test_one_engine_that_fails_leaves_the_other_alone(loaded: SimpleNamespace) -> None:
    first, second = loaded.cls(settings(), 0), loaded.cls(settings(), 1)
    first.record(object(), None)
    second.record(step(prefix=cache(1, 8, 0)), None)
    seen = values(loaded.registry)
    assert AGAIN not in seen
    assert seen['kvdoctor:recomputed_tokens_total{engine="1",model_name="tiny"}'] == 7


def test_finished_requests_without_the_field_switch_it_off(loaded: SimpleNamespace) -> None:
    made = loaded.cls(settings(), 0)
    made.record(None, SimpleNamespace(finished_requests=[SimpleNamespace(decode_time=1.0)]))
    assert values(loaded.registry) == {}


def test_a_configuration_it_does_not_know_never_stops_the_server(
    loaded: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    made = loaded.cls(SimpleNamespace(), 0)
    made.record(step(), ended(0))
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert values(loaded.registry) == {}


def test_names_taken_by_somebody_else_never_stop_the_server(
    loaded: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    from prometheus_client import Counter

    Counter("kvdoctor:recomputed_tokens", "another copy", registry=loaded.registry)
    loaded.cls(settings(), 0).record(step(), ended(0))
    assert len(caplog.records) == 1


def test_series_that_cannot_be_withdrawn_are_said_so(
    loaded: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> None:
        raise KeyError("gone")

    made = loaded.cls(settings(), 0)
    monkeypatch.setattr(made._recorder, "withdraw", refuse)
    made.record(object(), None)
    assert "could not be withdrawn" in caplog.records[0].getMessage()


def test_without_vllm_there_is_no_class_but_the_module_loads() -> None:
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "import kvdoctor.plugins.vllm_observer as o\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "try:\n    o.Observer\nexcept ImportError:\n    print('no class')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "no class"


def test_other_names_are_not_made_up() -> None:
    with pytest.raises(AttributeError):
        observer.__getattr__("Oberver")
