"""The simulator against real runs, within the error this project states (tables: benchmarks/sim_fidelity.py)."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "sim_fidelity", Path(__file__).parent.parent / "benchmarks" / "sim_fidelity.py"
)
assert _spec is not None
assert _spec.loader is not None
fidelity = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fidelity)


@pytest.mark.parametrize(("free_share", "seqs", "count", "share", "twice"), [row[:5] for row in fidelity.OWN_RUNS])
def test_own_runs_within_30_percent_and_5_points(
    free_share: float, seqs: int, count: int, share: float, twice: int
) -> None:
    got = fidelity.own_run(free_share, seqs)
    assert got.preemptions == pytest.approx(count, rel=0.30)
    assert got.recompute_token_share == pytest.approx(share, abs=0.05)
    assert got.hit_twice == pytest.approx(twice, rel=0.30)
    assert got.finished == 90


def test_own_runs_fall_with_the_watermark() -> None:
    counts = [fidelity.own_run(share, 32).preemptions for share in (0.0, 0.02, 0.05, 0.10)]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 4


@pytest.mark.parametrize(("free_share", "count"), [row[:2] for row in fidelity.PUBLISHED])
def test_published_runs_within_20_percent(free_share: float, count: int) -> None:
    mean = statistics.fmean(run.preemptions for run in fidelity.published_run(free_share, 40))
    assert mean == pytest.approx(count, rel=0.20)


def test_the_same_requests_are_retracted() -> None:
    got = fidelity.retraction_run()
    assert got.evicted == fidelity.RETRACTED
    assert got.preemptions == 3
    assert got.recompute_tokens == pytest.approx(1493, rel=0.01)
    assert got.prefill_tokens == pytest.approx(6167, rel=0.01)
