"""Scrapes of real servers loaded into a real Prometheus: each template gives what derive gives from the same scrapes."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvdoctor.derive import derive
from kvdoctor.export.promql import Templates
from kvdoctor.facts import Known
from kvdoctor.normalise import normalise
from kvdoctor.snapshot import read_paths

DATA = Path(__file__).parent / "data" / "export"
CAPTURES = {"vllm-saturated": "0.32.0", "vllm-healthy": "0.32.0", "sglang-retract": "0.5.23"}
_LINE = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)$")

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is not installed (Debian: apt-get install --no-install-recommends prometheus)",
)


def stamp(file: Path) -> float:
    found = re.search(r"_(\d+(?:\.\d+)?)\.prom$", file.name)
    assert found is not None
    return float(found[1])


def openmetrics() -> str:
    """All captures as one OpenMetrics text, families together, each capture a job of its own."""
    families: dict[str, list[str]] = {}
    for name in CAPTURES:
        for file in sorted((DATA / name).glob("*.prom"), key=stamp):
            for line in file.read_text().splitlines():
                match = _LINE.match(line)
                if match and not line.startswith("#"):
                    labels = ",".join(part for part in (f'job="{name}",instance="engine"', match[2]) if part)
                    families.setdefault(match[1], []).append(f"{match[1]}{{{labels}}} {match[3]} {stamp(file)}")
    return "".join(line + "\n" for lines in families.values() for line in lines) + "# EOF\n"


@dataclass
class Server:
    url: str

    def value(self, expr: str, at: float) -> float | None:
        """The value of the only series, None when there is none or it is not a number."""
        body = urllib.parse.urlencode({"query": expr, "time": repr(at)}).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/query", body, timeout=30) as answer:
            rows = json.load(answer)["data"]["result"]
        assert len(rows) <= 1, (expr, rows)
        value = float(rows[0]["value"][1]) if rows else math.nan
        return None if math.isnan(value) else value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "in.om").write_text(openmetrics())
    (folder / "prometheus.yml").write_text("global: {}\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "in.om"), str(folder / "data")],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        yield Server(url)
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.parametrize("name", CAPTURES)
def test_each_template_equals_the_derived_fact_within_two_percent(server: Server, name: str) -> None:
    view = derive(normalise(read_paths([str(DATA / name)]))).views[0]
    times = sorted(stamp(file) for file in (DATA / name).glob("*.prom"))
    window = f"{round((times[-1] - times[0]) * 1000)}ms"
    assert view.target.engine is not None
    filled = Templates(view.target.engine, CAPTURES[name], window=window, select=(f'job="{name}"',))
    equal: list[str] = []
    wrong: list[str] = []
    for fact in filled.facts():
        known = view.facts.known(fact)
        text = filled.fact(fact)
        if known is None or text is None or not filled.exact(fact):
            continue
        found = server.value(text, times[-1])
        if not known.exact or filled.bounded(fact, "lo"):
            # a bound has no value here either, unless the observer gives one
            if found is not None:
                wrong.append(f"{fact}: a bound {known.lo}..{known.hi}, Prometheus says {found}")
        elif found is None or abs(found - float(known.hi)) > max(0.02 * abs(float(known.hi)), 1e-9):
            wrong.append(f"{fact}: {known.hi}, Prometheus says {found}")
        else:
            equal.append(fact)
    assert not wrong
    assert len(equal) >= 50, equal


@pytest.mark.parametrize("name", CAPTURES)
def test_the_end_of_a_bound_never_says_more_than_the_fact(server: Server, name: str) -> None:
    view = derive(normalise(read_paths([str(DATA / name)]))).views[0]
    times = sorted(stamp(file) for file in (DATA / name).glob("*.prom"))
    window = f"{round((times[-1] - times[0]) * 1000)}ms"
    assert view.target.engine is not None
    filled = Templates(view.target.engine, CAPTURES[name], window=window, select=(f'job="{name}"',))
    for fact in filled.facts():
        known = view.facts.known(fact)
        for end in ("lo", "hi"):
            text = filled.fact(fact, end) if filled.bounded(fact, end) else None  # type: ignore[arg-type]
            found = server.value(text, times[-1]) if text else None
            if known is None or found is None:
                continue
            if end == "lo":
                assert found <= float(known.lo) * 1.02 + 1e-9, fact
            else:
                assert found >= float(known.hi) * 0.98 - 1e-9, fact


def test_the_bounds_of_vllms_histogram_come_out_of_it(server: Server) -> None:
    name = "vllm-saturated"
    view = derive(normalise(read_paths([str(DATA / name)]))).views[0]
    times = sorted(stamp(file) for file in (DATA / name).glob("*.prom"))
    assert view.target.engine is not None
    filled = Templates(
        view.target.engine, "0.32.0", window=f"{round((times[-1] - times[0]) * 1000)}ms", select=(f'job="{name}"',)
    )
    for fact in ("preempt.hit_share", "preempt.hit_3plus_of_hit"):
        known = view.facts[fact]
        text = filled.fact(fact, "lo")
        assert isinstance(known, Known)
        assert text is not None
        assert server.value(text, times[-1]) == pytest.approx(known.lo, rel=0.02)
