"""Answers of a store that are valid JSON and nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from kvdoctor.cli.main import app

NONSENSE = [
    {"metric": {}, "value": [1.0, "NaN"]},
    {"metric": {}, "value": [1.0, "+Inf"]},
    {"metric": {}, "value": [1.0, "-7"]},
    {"metric": {"__name__": 5}, "values": [[1e999, "NaN"], ["x"], None, [10**400, "1"], [True, "1"], [1, 1]]},
]


@pytest.fixture(params=range(len(NONSENSE)))
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [NONSENSE[request.param], 7]}})

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_count_or_a_time_that_is_none_is_a_missing_source(store: str) -> None:
    done = CliRunner().invoke(app, ["diagnose", "--prometheus", store, "--select", 'instance="a"'])
    assert isinstance(done.exception, SystemExit)  # and no other: nothing broke
    assert done.exit_code in (2, 3)
    assert "instance" in done.output or "count" in done.output
