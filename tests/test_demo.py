"""The demo: every scenario reaches its verdict, says the same twice, and serves over HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import typer
from corpus import rules
from typer.testing import CliRunner

from kvdoctor.cli.demo import demo as command
from kvdoctor.demo import SCENARIOS, Demo, DemoServer
from kvdoctor.findings import Report
from kvdoctor.pipeline import Options, diagnose
from kvdoctor.snapshot import Member, Snapshot, memory_member

EXPECTED = {
    "healthy": "healthy",
    "fragmentation-oom": "allocator-fragmentation",
    "near-completion-victims": "near-completion-victims",
    "missing-cooldown": "missing-cooldown",
    "recompute-overload": "recompute-overload",
    "load-imbalance": "load-imbalance",
}


def watch(demo: Demo, start: float, seconds: float = 10.0, pages: int = 5) -> Report:
    """What a diagnosis says that reads ``pages`` pages from ``start`` on, and the log."""
    members: list[Member] = []
    for at in range(pages):
        demo.play(start + seconds * at / (pages - 1))
        if demo.up:
            clock = demo.epoch + demo.now
            members.append(memory_member(f"metrics_{clock:.3f}.prom", demo.metrics().encode(), time=clock))
    members.append(memory_member("server.log", ("\n".join(demo.new_lines()) + "\n").encode()))
    return diagnose(Snapshot(tuple(members)), rules(), Options(what_if="auto"))


@pytest.mark.parametrize("start", [0.0, 3.0])
@pytest.mark.parametrize(("name", "verdict"), EXPECTED.items())
def test_a_scenario_reaches_its_verdict(name: str, verdict: str, start: float) -> None:
    report = watch(Demo(SCENARIOS[name]), start)
    assert report.main.verdict.rule == verdict


def test_a_limit_beats_a_second_gpu() -> None:
    report = watch(Demo(SCENARIOS["policy-not-capacity"]), 0.0)
    assert "policy-not-capacity" in {found.rule for found in report.main.findings}
    assert report.plan.what_if is not None
    assert report.main.verdict.misdiagnosis in (2, 3, 4), "what would help is not what is wrong"


def test_nothing_is_compared_across_a_restart() -> None:
    report = watch(Demo(SCENARIOS["restart"]), 8.0)
    assert len(report.targets) >= 2
    entries = [entry.what for target in report.targets for entry in target.timeline]
    assert any("restarted" in entry for entry in entries)
    for target in report.targets:
        assert target.verdict.severity == "info"
        finished = target.facts["req.finished"]
        assert getattr(finished, "lo", 0.0) >= 0


def test_every_scenario_of_the_contract_is_there() -> None:
    assert set(SCENARIOS) == {*EXPECTED, "policy-not-capacity", "restart"}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_same_time_gives_the_same_page(name: str) -> None:
    once, again = Demo(SCENARIOS[name]), Demo(SCENARIOS[name])
    once.play(4.0)
    for step in range(1, 9):
        again.play(step * 0.5)
    assert once.metrics() == again.metrics()
    assert once.new_lines() == again.new_lines()
    assert once.gpu_reading() == again.gpu_reading()


def test_counters_never_fall_and_tokens_add_up() -> None:
    demo = Demo(SCENARIOS["missing-cooldown"])
    before: dict[str, float] = {}
    for at in range(6):
        demo.play(float(at))
        now = {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in demo.metrics().splitlines()
            if not line.startswith("#") and ("_total" in line or "_bucket" in line or "_count" in line)
        }
        assert all(now[key] >= value for key, value in before.items())
        before = now
    rank = demo.ranks[0]
    assert rank.output.sum == rank.engine.record.output_tokens
    assert rank.generated >= rank.output.sum
    assert rank.gap.count >= rank.engine.record.decode_tokens


def get(address: str) -> tuple[int, str]:
    with urllib.request.urlopen(address, timeout=5) as answer:
        return answer.status, answer.read().decode()


def test_it_serves_pages_and_writes_files(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = DemoServer(SCENARIOS["near-completion-victims"], log=log, speed=20.0)
    server.start()
    try:
        root = f"http://127.0.0.1:{server.port}"
        members = []
        for at in range(5):
            status, page = get(f"{root}/metrics")
            assert status == 200
            members.append(memory_member(f"page{at}", page.encode()))
            time.sleep(0.15)
        assert json.loads(get(f"{root}/version")[1])["version"] == "0.32.0"
        assert get(f"{root}/v1/models")[0] == 200
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{root}/nothing")
        members.append(memory_member("server.log", log.read_bytes()))
        gpu = server.gpu_path
        assert gpu is not None
        assert "A100" in gpu.read_text(encoding="utf-8")
    finally:
        server.close()
    report = diagnose(Snapshot(tuple(members)), rules(), Options(what_if="auto"))
    assert report.main.engine == "vllm"
    window = report.main.window.seconds
    assert window is not None
    assert window > 5, "pages carry the simulated clock"
    assert report.main.verdict.rule == "near-completion-victims"


def test_the_command_lists_and_refuses(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    run = CliRunner()
    assert "recompute-overload" in run.invoke(app, []).stdout
    found = run.invoke(app, ["helthy"])
    assert found.exit_code == 2
    assert "did you mean healthy" in found.output
    assert run.invoke(app, ["healthy", "--duration", "-1"]).exit_code == 2
    assert run.invoke(app, ["healthy", "--log", str(tmp_path / "no" / "log")]).exit_code == 2
    played = run.invoke(app, ["healthy", "--duration", "0.2", "--log", str(tmp_path / "server.log")])
    assert played.exit_code == 0, played.output
    assert "serving http://127.0.0.1:" in played.stdout
    assert "GPU KV cache size" in (tmp_path / "server.log").read_text(encoding="utf-8")
