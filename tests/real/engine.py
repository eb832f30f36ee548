"""Starts and stops a vLLM on the CPU with a pool too small for its load, and runs kvdoctor beside it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

READY_S = 240.0
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
FLAGS = (
    *("--served-model-name", "tiny", "--load-format", "dummy", "--dtype", "float32", "--enforce-eager", "--seed", "0"),
    *("--max-model-len", "4096", "--block-size", "32", "--num-gpu-blocks-override", "160"),
    *("--max-num-seqs", "32", "--max-num-batched-tokens", "1024", "--enable-logging-iteration-details"),
)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it listens and writes."""

    url: str
    log: Path

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def counter(self, name: str) -> float:
        """The sum of a series over its label sets; AssertionError when the page does not have it."""
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", self.metrics(), re.MULTILINE)
        assert found, f"{name} is not in /metrics"
        return sum(float(value) for value in found)

    def replayed(self) -> int:
        """Tokens computed again, by vLLM's iteration details: generation tokens beyond one per generating request."""
        pairs = re.findall(r"(\d+) generation requests, (\d+) generation tokens", self.log.read_text(errors="replace"))
        return sum(int(tokens) - int(requests) for requests, tokens in pairs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def vllm(python: str, model: Path, log: Path, *flags: str) -> Iterator[Server]:
    """A server that answers; ended with its process group on leaving."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)),
        *("--model", str(model)),
        *FLAGS,
        *flags,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + READY_S
        while True:
            assert process.poll() is None, f"vLLM ended while starting:\n{tail(log)}"
            assert time.monotonic() < deadline, f"vLLM was not ready after {READY_S:.0f} s:\n{tail(log)}"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(1)
        yield Server(url, log)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=30)
            return
        except subprocess.TimeoutExpired:
            continue


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@dataclass(frozen=True, slots=True)
class Command:
    """kvdoctor as a user runs it, in the background; into files, since a pipe nobody reads yet would hold it up."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]


def start_kvdoctor(*arguments: str) -> Command:
    code = "import sys; from kvdoctor.cli import run; sys.exit(run())"
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish
    return Command(
        subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=out, stderr=err, cwd=ROOT), out, err
    )


def finish(command: Command, timeout: float = 240.0) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    try:
        status = command.process.wait(timeout)
    except subprocess.TimeoutExpired:
        command.process.kill()
        command.process.wait()
        raise AssertionError(f"{command.process.args!r} was not done after {timeout:.0f} s") from None
    texts = []
    for stream in (command.out, command.err):
        with stream:
            stream.seek(0)
            texts.append(stream.read().decode())
    return status, texts[0], texts[1]


def kvdoctor(*arguments: str, timeout: float = 240.0) -> tuple[int, str, str]:
    return finish(start_kvdoctor(*arguments), timeout)
