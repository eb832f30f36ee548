"""The GitHub Action: its steps are run as the runner runs them.

Once with its real installation, from a package index; everywhere else this checkout stands in for it, which takes no time.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples"
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))

# stands for python3 of the runner: `-m venv DIR` gives a folder whose pip writes down what it was asked for
PYTHON3 = f"""#!/bin/bash
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "$@" >> "%s/installed"\\n' "$3" > "$3/bin/python"
printf '#!/bin/bash\\nexec {sys.executable} -c "from kvdoctor.cli import run; run()" "$@"\\n' > "$3/bin/kvdoctor"
chmod +x "$3/bin/python" "$3/bin/kvdoctor"
"""


class Job:
    """A job in a workspace of its own; ``python3`` is the text of the runner's interpreter."""

    def __init__(self, folder: Path, python3: str = PYTHON3, **env: str) -> None:
        self.env = env
        self.work, self.temp = folder / "work", folder / "temp"
        self.output, self.summary = folder / "output", folder / "summary"
        tools = folder / "tools"
        for made in (self.work, self.temp, tools):
            made.mkdir()
        self.output.touch()
        self.summary.touch()
        (tools / "python3").write_text(python3, encoding="utf-8")
        (tools / "python3").chmod(stat.S_IRWXU)
        self.path = f"{tools}:{os.environ['PATH']}"

    def run(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        """All steps, the first that fails ends it. Missing inputs have their defaults."""
        known = {name: str(spec.get("default", "")) for name, spec in ACTION["inputs"].items()} | {
            name.replace("_", "-"): value for name, value in inputs.items()
        }
        context = {f"inputs.{name}": value for name, value in known.items()} | {"github.action_path": str(ROOT)}
        done: subprocess.CompletedProcess[str] | None = None
        for step in ACTION["runs"]["steps"]:
            env = {
                "PATH": self.path,
                "HOME": str(self.temp),
                **self.env,
                "RUNNER_TEMP": str(self.temp),
                "GITHUB_OUTPUT": str(self.output),
                "GITHUB_STEP_SUMMARY": str(self.summary),
                **{name: evaluated(str(value), context) for name, value in step.get("env", {}).items()},
            }
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", evaluated(step["run"], context)],
                cwd=self.work, env=env, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                break
        assert done is not None
        return done


def evaluated(text: str, context: dict[str, str]) -> str:
    """``${{ name }}`` filled in, as the runner does; an unknown name is an error."""
    return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda match: context[match[1]], text)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, PYTHONPATH=str(ROOT))


def test_with_its_real_installation(tmp_path: Path) -> None:
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "asked"), "hatchling"]
    alone = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **pip}
    if subprocess.run(asked, env=alone, capture_output=True, check=False).returncode:
        pytest.skip("no package index can be reached, so the action's own installation cannot be run")
    job = Job(tmp_path, f'#!/bin/bash\nexec {sys.executable} "$@"\n', **pip)
    done = job.run(paths=str(SAMPLES / "vllm-saturated"))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error ")
    # what ran is the installed copy with the rules inside it, not this checkout
    (package,) = (job.temp / "kvdoctor-venv").glob("lib/python3*/site-packages/kvdoctor")
    assert (package / "_rules").is_dir()


def test_an_input_never_becomes_part_of_a_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"


def test_it_installs_the_action_itself(job: Job) -> None:
    job.run(paths=str(SAMPLES / "vllm-healthy"))
    installed = (job.temp / "kvdoctor-venv" / "installed").read_text(encoding="utf-8")
    assert installed.split()[:3] == ["-m", "pip", "install"]
    assert installed.split()[-1] == str(ROOT)


@pytest.mark.parametrize(
    "sample, fail_on, code",
    [("vllm-healthy", "high", 0), ("vllm-saturated", "high", 1), ("vllm-saturated", "never", 0)],
)
def test_the_exit_code_is_that_of_the_check(job: Job, sample: str, fail_on: str, code: int) -> None:
    done = job.run(paths=str(SAMPLES / sample), fail_on=fail_on)
    assert done.returncode == code, done.stderr
    assert job.output.read_text(encoding="utf-8") == f"exit-code={code}\n"


def test_annotations_by_default(job: Job) -> None:
    done = job.run(paths=str(SAMPLES / "vllm-saturated"))
    assert done.stdout.startswith("::error ")
    assert "KV301 admission-thrash" in done.stdout
    assert job.summary.read_text(encoding="utf-8") == ""


def test_markdown_goes_into_the_summary(job: Job) -> None:
    done = job.run(paths=str(SAMPLES / "vllm-saturated"), format="markdown")
    assert done.stdout == ""
    assert job.summary.read_text(encoding="utf-8").startswith("| snapshot | result |")


def test_patterns_blank_lines_and_names_with_spaces(job: Job) -> None:
    for name in ("night 1", "night 2", "other"):
        shutil.copytree(SAMPLES / "vllm-healthy", job.work / "captures" / name)
    done = job.run(paths="\n  captures/night *\n\ncaptures/other\n", format="text")
    assert done.returncode == 0, done.stderr
    verdicts = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line.split(": ")[0] for line in verdicts] == ["captures/night 1", "captures/night 2", "captures/other"]


@pytest.mark.parametrize("paths", ["", "nowhere/*.tar.gz", "$(touch broken)"])
def test_nothing_to_judge_is_an_error_and_never_green(job: Job, paths: str) -> None:
    done = job.run(paths=paths)
    assert done.returncode == 2
    assert job.output.read_text(encoding="utf-8") == "exit-code=2\n"
    assert not (job.work / "broken").exists()
