"""A real vLLM on the CPU, its pool too small for the load, the observer inside; then the same with a watermark.

Everything a person would do: diagnose it live, watch it, capture it, turn the lever the plan names, and compare. Run by
`.ci/real_engine.sh`, which prints the figures at the end (`KVDOCTOR_FIGURES`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

import engine

from benchmarks import loadgen

pytestmark = pytest.mark.real

REQUESTS, CLIENTS, SEED = 90, 14, 1
WARM_S = 6.0
WINDOW_S = 60.0
WATERMARK = "0.10"
MOST_S = 400.0


@dataclass(slots=True)
class Run:
    """One server and its load: what the commands beside it said, by command; None where the command does not exist."""

    load: dict[str, Any]
    recomputed: float
    replayed: int
    preemptions: float
    observed: dict[str, float]
    said: dict[str, tuple[int, str, str] | None] = field(default_factory=dict)


def exists(command: str) -> bool:
    """Whether this checkout has the command, with a live target; before that its steps are skipped and say so."""
    status, out, _ = engine.kvdoctor(command, "--help", timeout=60)
    if status or (command != "diff" and "--url" not in out):
        return False
    return command != "diagnose" or importlib.util.find_spec("kvdoctor.cli.live") is not None


def drive(folder: Path, name: str, beside: tuple[str, ...], *flags: str) -> Run:
    """Start a server, drive the closed loop, run the commands ``beside`` it in the middle of the load."""
    log = folder / f"{name}.log"
    with engine.vllm(os.environ["KVDOCTOR_VLLM_PYTHON"], folder / "model", log, *flags) as server:
        result: list[tuple[list[loadgen.Outcome], float]] = []

        def load() -> None:
            todo = loadgen.jobs(REQUESTS, SEED)
            result.append(loadgen.run(server.url, "tiny", todo, CLIENTS, MOST_S))

        driver = threading.Thread(target=load)
        driver.start()
        time.sleep(WARM_S)
        window = f"{WINDOW_S:.0f}"
        live = ("--url", server.url, "--log", str(log))
        commands = {
            "diagnose": ("diagnose", *live, "--window", window, "--format", "json"),
            "watch": ("watch", *live, "--interval", "5", "--duration", "30"),
            "capture": ("capture", *live, "--window", window, "-o", str(folder / f"{name}.tar.gz")),
        }
        running = {
            command: engine.start_kvdoctor(*commands[command]) if exists(command) else None for command in beside
        }
        said = {command: engine.finish(process) if process else None for command, process in running.items()}
        for command, spoken in said.items():
            if spoken is not None:  # kept beside the logs: what a failure of a live step is understood from
                (folder / f"{name}.{command}.txt").write_text("\n".join(map(str, spoken)), encoding="utf-8")
        driver.join()
        (outcomes, wall) = result[0]
        time.sleep(1)  # the last step's statistics
        return Run(
            load=loadgen.summary(outcomes, wall),
            recomputed=server.counter("kvdoctor:recomputed_tokens_total"),
            replayed=server.replayed(),
            preemptions=server.counter("vllm:num_preemptions_total"),
            observed={
                name: server.counter(f"kvdoctor:{name}")
                for name in ("request_preemptions_count", "request_preemptions_sum", "resumed_requests_total")
            },
            said=said,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("real")
    python = os.environ["KVDOCTOR_VLLM_PYTHON"]
    maker = Path(__file__).parent / "make_model.py"
    subprocess.run([python, str(maker), str(made / "model")], check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def stock(folder: Path) -> Run:
    return drive(folder, "before", ("diagnose", "watch", "capture"))


@pytest.fixture(scope="module")
def watermark(folder: Path) -> Run:
    return drive(folder, "after", ("capture",), "--watermark", WATERMARK)


@pytest.fixture(scope="module", autouse=True)
def figures(stock: Run, watermark: Run) -> Iterator[None]:
    """Both runs' numbers for the documentation."""
    yield
    where = os.environ.get("KVDOCTOR_FIGURES")
    if where:
        numbers = {
            name: {
                "load": run.load,
                "recomputed_by_observer": run.recomputed,
                "recomputed_by_iteration_details": run.replayed,
                "preemptions": run.preemptions,
                **run.observed,
            }
            for name, run in (("stock", stock), (f"watermark {WATERMARK}", watermark))
        }
        Path(where).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def answer(run: Run, command: str) -> tuple[int, str, str]:
    said = run.said[command]
    if said is None:
        pytest.skip(f"`kvdoctor {command}` for a live target does not exist in this checkout yet")
    return said


def report(run: Run) -> dict[str, Any]:
    status, out, err = answer(run, "diagnose")
    assert status == 0, err
    loaded = json.loads(out)
    assert isinstance(loaded, dict)
    return loaded


# ---------------------------------------------------------------- the observer


def test_the_load_was_served(stock: Run, watermark: Run) -> None:
    for run in (stock, watermark):
        assert run.load["failed"] == 0, run.load
        assert run.load["requests"] == REQUESTS
    assert stock.preemptions >= 30


def test_the_observer_agrees_with_iteration_details(stock: Run, watermark: Run) -> None:
    # a tenth of the tokens again is 1 % where few are lost
    for run, share in ((stock, 0.02), (watermark, 0.05)):
        assert run.recomputed == pytest.approx(run.replayed, rel=share)


def test_the_observer_counts_every_preemption_once(stock: Run) -> None:
    assert stock.observed["request_preemptions_count"] == REQUESTS
    assert stock.observed["request_preemptions_sum"] == stock.preemptions
    assert stock.observed["resumed_requests_total"] == stock.preemptions


# -------------------------------------------------------------------- the doctor


def test_the_live_verdict_is_admission_thrash(stock: Run) -> None:
    said = report(stock)
    assert said["verdict"]["misdiagnosis"] in (3, 4), said["verdict"]
    assert "admission-thrash" in {finding["rule"] for finding in said["findings"]}
    assert said["target"]["engine"] == "vllm"


def test_the_plan_names_a_watermark(stock: Run) -> None:
    # as a lever; where the replay of this load finds a larger pool better (a slow machine), as the share to keep free
    plan = report(stock)["plan"]
    flags = [lever["flag"] or "" for lever in plan["levers"]]
    share = plan["watermarks"]["admission_free"]
    assert any(flag.startswith("--watermark") for flag in flags) or (share and share["value"] > 0), plan


def test_recompute_is_measured_not_bounded(stock: Run) -> None:
    facts = report(stock)["facts"]
    assert facts["recompute.tokens"]["how"] == "measured"
    assert "kvdoctor:recomputed_tokens_total" in facts["recompute.tokens"]["source"]
    assert facts["preempt.hit_share"]["how"] == "measured"


def test_watch_writes_one_verdict_a_line(stock: Run) -> None:
    status, out, err = answer(stock, "watch")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0, (err, [line["verdict"] for line in lines])
    assert len(lines) >= 3
    assert lines[-1]["target"]["engine"] == "vllm"
    assert any(line["verdict"]["misdiagnosis"] in (2, 3, 4) for line in lines), [line["verdict"] for line in lines]


def test_the_capture_gives_the_verdict_again(stock: Run, folder: Path) -> None:
    status, _, err = answer(stock, "capture")
    assert status == 0, err
    archive = folder / "before.tar.gz"
    with tarfile.open(archive) as packed:
        assert any(name.endswith("manifest.json") for name in packed.getnames())
    status, out, err = engine.kvdoctor("diagnose", str(archive), "--format", "json")
    assert status == 0, err
    again = json.loads(out)
    assert again["verdict"]["misdiagnosis"] in (3, 4)
    assert again["facts"]["recompute.tokens"]["how"] == "measured"


# --------------------------------------------------------------------- the fix


def test_a_watermark_lowers_repeats_and_recompute(stock: Run, watermark: Run) -> None:
    assert watermark.preemptions < stock.preemptions * 0.75
    assert watermark.recomputed < stock.recomputed
    assert watermark.load["gaps_over_1s"] < stock.load["gaps_over_1s"]


def test_diff_says_what_it_bought_and_what_it_cost(stock: Run, watermark: Run, folder: Path) -> None:
    answer(stock, "capture")
    answer(watermark, "capture")
    if not exists("diff"):
        pytest.skip("`kvdoctor diff` does not exist in this checkout yet")
    before, after = (str(folder / f"{name}.tar.gz") for name in ("before", "after"))
    status, out, err = engine.kvdoctor("diff", before, after, "--format", "json")
    said = json.loads(out)
    assert said["verdict"] in ("better", "trade-off"), (said, err)
    assert status == 0
    status, _, _ = engine.kvdoctor("diff", after, before, "--format", "json")
    assert status in (0, 1)  # worse, or a trade-off the other way round
