"""Every sample and every case gets its right verdict, and says nothing that is forbidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import CASES, SAMPLES, Expectation, report_on


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda p: p.name)
def test_sample(folder: Path) -> None:
    assert Expectation.of(folder).problem(report_on(folder)) is None


@pytest.mark.parametrize("folder", CASES, ids=lambda p: p.name)
def test_case(folder: Path) -> None:
    assert Expectation.of(folder).problem(report_on(folder)) is None


def test_samples_are_small_and_labelled() -> None:
    total = 0
    for folder in SAMPLES:
        size = sum(f.stat().st_size for f in folder.iterdir())
        assert size < 300_000, folder.name
        total += size
        assert "fidelity" in (folder / "expect.toml").read_text(encoding="utf-8")
    assert total < 3_000_000
    assert len(SAMPLES) >= 9


def test_the_same_snapshot_gives_the_same_report() -> None:
    folder = next(p for p in SAMPLES if p.name == "vllm-saturated")
    assert report_on(folder) == report_on(folder)
