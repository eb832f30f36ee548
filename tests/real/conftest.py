"""Tests that need a real engine: run by `.ci/real_engine.sh` only, which names the engine's interpreter."""

from __future__ import annotations

import os

import pytest

if not os.environ.get("KVDOCTOR_VLLM_PYTHON"):
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real: needs a real inference server, started by the test itself")
