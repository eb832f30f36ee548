"""What the export tests share: engines and versions to try, promtool with a clear skip."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvdoctor.engines.base import engines
from kvdoctor.export.promql import Templates

VERSIONS = (
    ("vllm", None),
    ("vllm", "0.32.0"),
    ("vllm", "0.9.2"),
    ("vllm", "0.6.4"),
    ("sglang", None),
    ("sglang", "0.5.23"),
    ("sglang", "0.5.9"),
    ("sglang", "0.5.6"),
    ("tensorrt-llm", None),
    ("tgi", None),
    ("lmdeploy", None),
    ("llamacpp", None),
    ("llamacpp", "b5000"),
)

PROVEN = tuple(
    pair for pair in VERSIONS if pair not in (("vllm", None), ("vllm", "0.9.2"), ("sglang", None), ("sglang", "0.5.6"))
)
"""Those whose unit test is run: it takes seconds each."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian: apt-get install --no-install-recommends prometheus)",
)


def templates(engine: str, version: str | None = None, **more: object) -> Templates:
    return Templates(engines()[engine], version, **more)  # type: ignore[arg-type]


def promtool(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=120)
