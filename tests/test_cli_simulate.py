"""``kvdoctor simulate``: loads from captures, traces and seeds; formats; what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest
import typer
from typer.testing import CliRunner, Result

from kvdoctor.cli.simulate import simulate
from kvdoctor.policy import Policy, PolicyError
from kvdoctor.report.simulate import COLUMNS
from kvdoctor.sim.matrix import sweep

SCHEMA = json.loads(
    (Path(__file__).parent.parent / "kvdoctor" / "report" / "simulate.schema.json").read_text(encoding="utf-8")
)

app = typer.Typer()
app.command()(simulate)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_capture_reproduces_and_a_watermark_lowers_preemptions() -> None:
    found = call("sample:vllm-saturated", "--sweep", "watermark=0:.1:.05", "--format", "json", "--seeds", "3")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["observed"]["preemptions"] == 92
    assert document["observed"]["reproduces"] is True
    counts = [run["preemptions"] for run in document["runs"]]
    assert [run["policy"] for run in document["runs"]] == ["watermark=0", "watermark=0.05", "watermark=0.1"]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 3
    lo, hi = document["runs"][0]["spread"]["goodput"]
    assert lo <= document["runs"][0]["goodput"] <= hi


def test_the_same_seed_gives_the_same_answer_and_another_does_not() -> None:
    words = ("--seed-load", "chat", "--requests", "80", "--seeds", "1", "--pool-tokens", "16000", "--format", "json")
    assert call(*words).stdout == call(*words).stdout
    assert call(*words).stdout != call(*words, "--seed", "5").stdout


def test_compare_adds_twice_the_pool_and_twice_the_gpus() -> None:
    found = call(
        "--seed-load",
        "agent",
        "--requests",
        "60",
        "--seeds",
        "1",
        "--compare",
        "--pool-tokens",
        "60000",
        "--format",
        "csv",
    )
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    assert [(row["gpus"], row["pool_tokens"]) for row in rows] == [("1", "60000"), ("1", "120000"), ("2", "60000")]
    assert set(COLUMNS) <= set(rows[0])


def test_policies_by_name_and_file_and_several_sizes(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('"victim.order" = "oldest"\n', encoding="utf-8")
    found = call(
        "--seed-load", "short", "--requests", "60", "--seeds", "1", "--policy", "ratio", "--policy", str(tmp_path / "mine.toml"),
        "--gpus", "1,2", "--pool-tokens", "8000,16000", "--format", "json",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    runs = json.loads(found.stdout)["runs"]
    assert len(runs) == 8
    assert {run["policy"] for run in runs} == {"ratio", "mine"}


def test_text_has_table_pictures_and_what_was_assumed() -> None:
    found = call(
        "--seed-load", "reasoning", "--requests", "120", "--seeds", "1", "--pool-tokens", "60000", "--allocator", "paged",
        "--allocator", "first_fit", "--policy", "stock", "--policy", "watermark",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "TTFT p50" in found.stdout
    assert "█" in found.stdout
    assert "Requests waiting" in found.stdout
    assert "Assumed:" in found.stdout
    assert "first_fit" in found.stdout
    assert max(len(line) for line in found.stdout.splitlines() if "█" in line) <= 100


def test_a_captured_server_is_told_how_to_follow_the_policy(tmp_path: Path) -> None:
    (tmp_path / "kept.toml").write_text(
        'admission = {mode = "full_prompt", free_share = 0.05}\nvictim = {order = "value"}\n'
    )
    said = call(
        "sample:vllm-saturated", "--policy", str(tmp_path / "kept.toml"), "--requests", "60", "--seeds", "1"
    ).stdout
    assert "To run kept:" in said
    assert "--watermark F: 0.05" in said
    assert "victim.order = value cannot be set on vLLM 0.32.0" in said
    assert "To run" not in call("sample:vllm-saturated", "--requests", "60", "--seeds", "1").stdout


def test_a_trace_and_the_line_of_its_mistake(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,200,30\n", encoding="utf-8")
    found = call(str(trace), "--format", "json", "--seeds", "2")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["runs"][0]["finished"] == 2
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,-7,30\n", encoding="utf-8")
    found = call(str(trace))
    assert found.exit_code == 2
    assert "trace.csv:3: prompt of -7 tokens" in found.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give one load"),
        (("sample:vllm-saturated", "--seed-load", "chat"), "give one load"),
        (("--seed-load", "chatt"), "choose chat"),
        (("--seed-load", "chat", "--rate", "0"), "must be above 0"),
        (("--seed-load", "chat", "--pool-tokens", "100"), "exceed the pool of 96 tokens"),
        (("--seed-load", "chat", "--pool-tokens", "many"), "whole numbers"),
        (("--seed-load", "chat", "--gpus", "0"), "at least 1"),
        (("--seed-load", "chat", "--policy", "ration"), "did you mean 'ratio'"),
        (("--seed-load", "chat", "--sweep", "watermark=0:2:.5"), "at most 0.95"),
        (("--seed-load", "chat", "--sweep", "watermark"), "FROM:TO:STEP"),
        (("--seed-load", "chat", "--cost", "abacus"), "unknown cost preset"),
        (("--seed-load", "chat", "--format", "xml"), "choose text, json or csv"),
        (("--seed-load", "chat", "--allocator", "heap"), "choose paged"),
        (("--seed-load", "chat", "--ttft-limit", "0"), "above 0"),
        (("no-such-file.csv",), "does not exist"),
    ],
)
def test_usage_errors_are_one_line(words: tuple[str, ...], says: str) -> None:
    found = call(*words, "--requests", "40")
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_a_policy_that_can_never_free_a_block_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stuck.toml").write_text('"victim.order" = "none"\n', encoding="utf-8")
    found = call("--seed-load", "chat", "--requests", "20", "--policy", str(tmp_path / "stuck.toml"))
    assert found.exit_code == 2
    assert "can never free a block" in found.output
    assert "stuck" in found.output


def test_a_mistake_in_a_policy_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('"victim.order" = "tail"\n"cooldown.mode" = "often"\n', encoding="utf-8")
    found = call("--seed-load", "chat", "--requests", "20", "--policy", str(tmp_path / "wrong.toml"))
    assert found.exit_code == 2
    assert "wrong.toml:2:" in found.output


def test_a_capture_that_cannot_be_replayed_is_code_3() -> None:
    found = call("sample:llamacpp-split")
    assert found.exit_code == 3
    assert "cannot be replayed" in found.output


def test_sweeps_include_both_ends_and_have_a_limit() -> None:
    names = [one.name for one in sweep("watermark=0:.1:.02", Policy())]
    assert names[0] == "watermark=0"
    assert names[-1] == "watermark=0.1"
    assert len(names) == 6
    assert [one.max_running for one in sweep("max_running=4:12:4", Policy())] == [4, 8, 12]
    assert sweep("cooldown.seconds=10:30:10", Policy())[-1].policy.cooldown_seconds == 30
    for bad in ("watermark=0:1:0.000001", "watermark=.1:0:.1", "max_running=0:2:1", "max_running=1:2:.5", "x=1:2:1"):
        with pytest.raises(PolicyError):
            sweep(bad, Policy())
