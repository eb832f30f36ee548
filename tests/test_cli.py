"""The commands as a user meets them: exit codes, streams, bad input, settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples"


def kvdoctor(
    *argv: str, stdin: bytes = b"", env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVDOCTOR_")}
    done = subprocess.run(
        [sys.executable, "-m", "kvdoctor", *argv], input=stdin, capture_output=True, env={**clean, **(env or {})}, cwd=cwd, timeout=120, check=False
    )  # fmt: skip
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_diagnose_reports_and_exits_zero_whatever_it_finds() -> None:
    done = kvdoctor("diagnose", str(SAMPLES / "vllm-saturated"), "--what-if", "none")
    assert done.returncode == 0
    assert "admission-thrash" in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_fail_on_turns_a_finding_into_one() -> None:
    path = str(SAMPLES / "vllm-saturated")
    assert kvdoctor("diagnose", path, "--what-if", "none", "--fail-on", "high").returncode == 1
    assert kvdoctor("diagnose", path, "--what-if", "none", "--fail-on", "critical").returncode == 0
    assert (
        kvdoctor("diagnose", str(SAMPLES / "vllm-healthy"), "--what-if", "none", "--fail-on", "medium").returncode == 0
    )


def test_json_follows_the_shipped_schema() -> None:
    done = kvdoctor("diagnose", str(SAMPLES / "sglang-retract"), "--format", "json", "--what-if", "none")
    schema = json.loads((ROOT / "kvdoctor" / "report" / "report.schema.json").read_text())
    jsonschema.validate(json.loads(done.stdout), schema)


@pytest.mark.parametrize(
    "argv, words",
    [
        (["diagnose", "no/such/path"], "does not exist"),
        (["diagnose", "sample:vllm-saturatd"], "did you mean vllm-saturated"),
        (["diagnose", "sample:vllm-healthy", "--format", "yaml"], "choose text, json or html"),
        (["diagnose", "sample:vllm-healthy", "--engine", "vlm"], "choose one of"),
        (["diagnose", "sample:vllm-healthy", "--fail-on", "bad"], "choose critical"),
        (["diagnose", "sample:vllm-healthy", "--set", "KV200.nope=1"], "KV200"),
        (["diagnose", "sample:vllm-healthy", "--url", "http://127.0.0.1:1"], "not both"),
        (["check", "sample:vllm-healthy", "--baseline", "no-such-file.toml"], "cannot be read"),
        (["rules", "show", "KV40"], "did you mean"),
        (["explain", "kv.usage_mx"], "did you mean kv.usage_max"),
    ],
)  # fmt: skip
def test_usage_errors_are_one_clear_line_and_two(argv: list[str], words: str) -> None:
    done = kvdoctor(*argv)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_nothing_usable_is_three_and_names_what_was_looked_at(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = kvdoctor("diagnose", str(empty))
    assert done.returncode == 3
    assert "sample:vllm-saturated" in done.stderr
    binary = tmp_path / "core.bin"
    binary.write_bytes(bytes(range(256)) * 40)
    page = tmp_path / "metrics.prom"
    page.write_text("<html><body>502 Bad Gateway</body></html>")
    done = kvdoctor("diagnose", str(binary), str(page))
    assert done.returncode == 3
    assert "binary data" in done.stdout
    assert "HTML page" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_loop_and_an_unreadable_link_are_said(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "metrics_1795957400.prom").write_text(
        (SAMPLES / "vllm-healthy").joinpath(_first("vllm-healthy")).read_text()
    )
    done = kvdoctor("diagnose", str(tmp_path), "--what-if", "none")
    assert "loop" in done.stdout
    assert "gone.log" in done.stdout
    assert "Traceback" not in done.stderr


def _first(sample: str) -> str:
    return sorted(p.name for p in (SAMPLES / sample).glob("metrics*"))[0]


def test_one_scrape_alone_fires_nothing_and_says_why() -> None:
    done = kvdoctor(
        "diagnose",
        str(SAMPLES / "vllm-saturated" / sorted(p.name for p in (SAMPLES / "vllm-saturated").glob("metrics*"))[-1]),
        "--format",
        "json",
    )
    report = json.loads(done.stdout)
    assert not [f for f in report["findings"] if f["severity"] in ("critical", "high")]
    assert report["verdict"]["rule"] == "undetermined"
    assert done.returncode == 3


def test_a_closed_pipe_keeps_the_true_exit_code() -> None:
    command = f"{sys.executable} -m kvdoctor diagnose {SAMPLES / 'vllm-saturated'} --format json --what-if none | head -c 10; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_standard_input_is_a_source() -> None:
    text = (SAMPLES / "vllm-start-fail" / "server.log").read_bytes()
    done = kvdoctor("diagnose", "-", "--what-if", "none", stdin=text)
    assert "kv-pool-too-small" in done.stdout


def test_settings_change_a_threshold_and_the_report_names_the_origin(tmp_path: Path) -> None:
    (tmp_path / "kvdoctor.toml").write_text("[thresholds.KV301]\nevents = 1000\n")
    path = str(SAMPLES / "vllm-saturated")
    assert "KV301, likely" in kvdoctor("diagnose", path, "--what-if", "none").stdout
    quiet = json.loads(kvdoctor("diagnose", path, "--what-if", "none", "--format", "json", cwd=tmp_path).stdout)
    assert quiet["verdict"]["rule"] != "admission-thrash"
    by_env = json.loads(
        kvdoctor(
            "diagnose", path, "--what-if", "none", "--format", "json", env={"KVDOCTOR_SET": "KV301.events=1000"}
        ).stdout
    )
    assert by_env["verdict"]["rule"] == quiet["verdict"]["rule"]


def test_own_rules_are_loaded_and_linted(tmp_path: Path) -> None:
    rule = (
        (ROOT / "rules" / "KV904-large-pool.toml")
        .read_text()
        .replace('"KV904"', '"ACME100"')
        .replace('"large-pool"', '"acme-pool"')
    )
    file = tmp_path / "ACME100-acme-pool.toml"
    file.write_text(rule)
    assert kvdoctor("rules", "test", str(tmp_path)).returncode == 0
    listed = kvdoctor("rules", "list", "--rules", str(tmp_path))
    assert "acme-pool" in listed.stdout
    file.write_text(rule.replace("kv.usage_max", "kv.usge_max"))
    wrong = kvdoctor("rules", "test", str(tmp_path))
    assert wrong.returncode == 2
    assert "kv.usage_max" in wrong.stdout


def test_every_sample_is_readable_by_name() -> None:
    for folder in sorted(SAMPLES.iterdir()):
        if (folder / "expect.toml").is_file():
            assert kvdoctor("diagnose", f"sample:{folder.name}", "--what-if", "none").returncode in (0, 3)


# ---------------------------------------------------------------- check


def test_check_gives_one_result_each_and_the_worst_code(tmp_path: Path) -> None:
    done = kvdoctor("check", "sample:vllm-healthy", "sample:vllm-saturated", str(tmp_path / "gone"), "--format", "json")
    assert done.returncode == 2
    results = json.loads(done.stdout)["results"]
    assert {r["snapshot"]: r["exit_code"] for r in results} == {
        "sample:vllm-healthy": 0,
        "sample:vllm-saturated": 1,
        str(tmp_path / "gone"): 2,
    }
    assert kvdoctor("check", "sample:vllm-healthy").returncode == 0
    assert kvdoctor("check", "sample:vllm-saturated", "--exit-zero").returncode == 0


def test_a_baseline_accepts_a_finding_for_a_while(tmp_path: Path) -> None:
    file = tmp_path / "baseline.toml"
    file.write_text('[[accept]]\nrule = "admission-thrash"\nuntil = 2999-01-01\nwhy = "ticket 1"\n')
    assert kvdoctor("check", "sample:vllm-saturated", "--baseline", str(file), "--allow-unknown").returncode == 0
    file.write_text('[[accept]]\nrule = "admission-thrash"\nuntil = 2001-01-01\nwhy = "ticket 1"\n')
    late = kvdoctor("check", "sample:vllm-saturated", "--baseline", str(file))
    assert late.returncode == 1
    assert "until 2001-01-01" in late.stderr
    file.write_text('[[accept]]\nrule = "KV999"\nuntil = 2999-01-01\nwhy = "ticket 1"\n')
    gone = kvdoctor("check", "sample:vllm-saturated", "--baseline", str(file))
    assert gone.returncode == 1
    assert "KV999" in gone.stderr


def test_junit_skips_what_is_unknown() -> None:
    from junitparser import JUnitXml

    text = kvdoctor("check", "sample:vllm-saturated", "sample:vllm-healthy", "--format", "junit").stdout
    xml = JUnitXml.fromstring(text.encode())
    assert [suite.failures for suite in xml] == [1, 0]
    assert all(suite.skipped > 0 for suite in xml)
    assert all("cannot tell" in r.message or "apply" in r.message or "explained" in r.message
               for suite in xml for case in suite for r in case.result if r.__class__.__name__ == "Skipped")  # fmt: skip


def test_github_annotations_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "a,b%::c"
    folder.mkdir()
    for file in (SAMPLES / "vllm-saturated").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    text = kvdoctor("check", str(folder), "--format", "github").stdout
    for line in text.splitlines():
        assert line.startswith(("::error ", "::warning ", "::notice "))
        head, _, _ = line.removeprefix("::").partition("::")
        assert "," not in head.split("title=", 1)[1]


def test_textfile_passes_promtool() -> None:
    import shutil

    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    text = kvdoctor("check", "sample:vllm-saturated", "sample:vllm-healthy", "--format", "textfile").stdout
    done = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_output_files_are_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.md"
    kvdoctor("check", "sample:vllm-saturated", "--format", "markdown", "-o", str(target))
    assert target.read_text().startswith("| snapshot |")
    assert [p.name for p in tmp_path.iterdir()] == ["out.md"]
    assert kvdoctor("check", "sample:vllm-saturated", "-o", str(tmp_path / "no" / "dir.txt")).returncode == 2
