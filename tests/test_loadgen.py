"""The load generator of the real-engine step, against a stand-in server that streams at once."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import loadgen


class Streams(BaseHTTPRequestHandler):
    """Answers each completion with as many events as tokens were asked for; refuses prompts of odd length."""

    bodies: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        self.send_response(200 if len(body["prompt"]) % 2 == 0 else 503)
        self.end_headers()
        if len(body["prompt"]) % 2 == 0:
            self.wfile.write(b'data: {"choices": []}\n\n' * body["max_tokens"] + b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Streams.bodies.clear()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Streams)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_equal_seeds_are_equal_work() -> None:
    assert loadgen.jobs(20, 7) == loadgen.jobs(20, 7)
    assert loadgen.jobs(20, 7) != loadgen.jobs(20, 8)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://127.9.9.9", "http://[::1]:80", "http://localhost:1"])
def test_this_machine_is_accepted(url: str) -> None:
    loadgen.address(url)


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "http://example.org", "https://127.0.0.1", "127.0.0.1:80"])
def test_any_other_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="only"):
        loadgen.address(url)
    with pytest.raises(SystemExit) as ended:
        loadgen.main(["--url", url])
    assert ended.value.code == 2


@pytest.mark.parametrize("option", ["--requests=100000", "--concurrency=0", "--max-seconds=1e9"])
def test_the_load_is_bounded(option: str) -> None:
    with pytest.raises(SystemExit):
        loadgen.main(["--url", "http://127.0.0.1:1", option])


def test_every_job_is_sent_once_and_counted(server: str) -> None:
    todo = [loadgen.Job(n, (5,) * 4, 3) for n in range(9)]
    outcomes, wall = loadgen.run(server, "tiny", todo, 4, 30)
    assert [o.number for o in outcomes] == list(range(9))
    assert {o.output_tokens for o in outcomes} == {3}
    assert len(Streams.bodies) == 9
    assert Streams.bodies[0]["ignore_eos"] is True
    told = loadgen.summary(outcomes, wall)
    assert (told["requests"], told["failed"], told["output_tokens"]) == (9, 0, 27)


def test_a_refusal_and_a_dead_server_are_failures(server: str) -> None:
    outcomes, wall = loadgen.run(server, "tiny", [loadgen.Job(0, (5,), 3)], 1, 30)
    assert (outcomes[0].status, outcomes[0].ttft) == (503, None)
    assert loadgen.summary(outcomes, wall)["failed"] == 1
    outcomes, _ = loadgen.run("http://127.0.0.1:9", "tiny", [loadgen.Job(0, (5,), 3)], 1, 30)
    assert outcomes[0].status == 0
    assert outcomes[0].error


def test_quantiles_of_what_was_seen() -> None:
    assert loadgen.quantile([], 0.5) is None
    assert loadgen.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert loadgen.quantile([1.0, 2.0], 0.99) == 2.0
