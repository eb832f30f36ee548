"""Pages by GET against real small servers on the loopback: each failure is a sentence, no POST, a time limit that holds."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from collect_helpers import Answer, dead_port, http_server, path_with, program, raw_server

from kvdoctor.collect import SpecError
from kvdoctor.collect import http as collect_http
from kvdoctor.collect.http import Failure, KubePod, Page, WebServer, parse_header, split_url

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"


def get(
    base: str,
    path: str = "/metrics",
    kind: str = "exposition",
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 3.0,
) -> Page | Failure:
    server = WebServer(base, headers=headers if headers is not None else {}, timeout_s=timeout_s)
    try:
        return server.get(path, kind)
    finally:
        server.close()


def failure(answer: Page | Failure) -> Failure:
    assert isinstance(answer, Failure), answer
    assert answer.missing.hint
    return answer


def page(answer: Page | Failure) -> Page:
    assert isinstance(answer, Page), answer
    return answer


def test_a_metrics_page_keeps_its_bytes_and_is_asked_for_as_prometheus_text() -> None:
    accepted: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> Answer:
        accepted.append(request.headers["Accept"])
        return 200, {"Content-Type": "text/plain; version=0.0.4"}, PAGE

    with http_server(answer) as (base, asked):
        got = page(get(base))
    assert (got.body, got.kind, got.origin) == (PAGE, "exposition", base + "/metrics")
    assert asked == [("GET", "/metrics")]
    assert accepted[0].startswith("text/plain;version=0.0.4")


def test_gzip_is_unpacked() -> None:
    with http_server(lambda r: (200, {"Content-Encoding": "gzip"}, gzip.compress(PAGE))) as (base, _):
        assert page(get(base)).body == PAGE


def test_damaged_gzip_is_a_failure_that_may_pass() -> None:
    with http_server(lambda r: (200, {"Content-Encoding": "gzip"}, b"no gzip at all")) as (base, _):
        got = failure(get(base))
    assert "damaged" in got.missing.reason
    assert got.again


def test_a_redirect_on_the_same_server_is_followed_once_and_remembered() -> None:
    def answer(request: BaseHTTPRequestHandler) -> Answer:
        if request.path == "/metrics":
            return 307, {"Location": "/metrics/"}, b""
        return 200, {}, PAGE

    with http_server(answer) as (base, asked):
        server = WebServer(base, headers={}, timeout_s=3)
        assert page(server.get("/metrics", "exposition")).origin == base + "/metrics"
        page(server.get("/metrics", "exposition"))
        server.close()
    assert [path for _, path in asked] == ["/metrics", "/metrics/", "/metrics/"]


def test_a_redirect_elsewhere_is_refused_and_the_header_does_not_go_there() -> None:
    seen: list[str | None] = []

    def other(request: BaseHTTPRequestHandler) -> Answer:
        seen.append(request.headers.get("Authorization"))
        return 200, {}, PAGE

    with (
        http_server(other) as (elsewhere, _),
        http_server(lambda r: (302, {"Location": elsewhere + "/login?token=abcdef"}, b"")) as (base, _),
    ):
        got = failure(get(base, headers={"Authorization": "Bearer topsecret"}))
    assert "redirects to another server" in got.missing.reason
    assert "abcdef" not in got.missing.reason
    assert not got.again
    assert seen == []


def test_a_redirect_loop_ends() -> None:
    with http_server(lambda r: (302, {"Location": "/metrics"}, b"")) as (base, asked):
        got = failure(get(base))
    assert "redirects" in got.missing.reason
    assert len(asked) == collect_http.MAX_REDIRECTS + 1


@pytest.mark.parametrize("status", [401, 403])
def test_missing_credentials_name_the_header_and_are_not_asked_again(status: int) -> None:
    with http_server(lambda r: (status, {}, b'{"error": "Unauthorized"}')) as (base, _):
        got = failure(get(base))
    assert str(status) in got.missing.reason
    assert "--header" in got.missing.hint
    assert not got.again


def test_the_header_reaches_the_server_also_where_a_netrc_holds_other_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    seen: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> Answer:
        seen.append(request.headers.get("Authorization"))
        return 200, {}, PAGE

    with http_server(answer) as (base, _):
        page(get(base, headers={"Authorization": "Bearer abc"}))
        page(get(base))
        page(get(base.replace("http://", "http://me:pw@")))
    assert seen[:2] == ["Bearer abc", None]
    assert seen[2] == "Basic bWU6cHc="


def test_no_secret_of_the_url_stands_in_the_origin() -> None:
    with http_server(lambda r: (200, {}, PAGE)) as (base, asked):
        got = page(get(base.replace("http://", "http://me:hunter2@"), "/metrics?api_key=hunter2&format=x"))
    assert got.origin == base + "/metrics?api_key=***&format=x"
    assert asked[0][1] == "/metrics?api_key=hunter2&format=x"


def test_html_is_no_metrics_page() -> None:
    with http_server(lambda r: (200, {"Content-Type": "text/html"}, b"<!DOCTYPE html><html>hello</html>")) as (base, _):
        got = failure(get(base))
    assert "HTML" in got.missing.reason
    assert not got.again


def test_an_empty_page_is_a_failure() -> None:
    with http_server(lambda r: (200, {}, b"\n")) as (base, _):
        assert "empty" in failure(get(base)).missing.reason


def test_json_on_the_metrics_path_is_left_to_the_content() -> None:
    with http_server(lambda r: (200, {}, b'[{"iter": 1}]')) as (base, _):
        assert page(get(base)).kind is None


@pytest.mark.parametrize(
    ("kind", "body", "word"),
    [
        ("version", b'{"v": 1}', "'version'"),
        ("models", b"[]", "'data'"),
        ("slots", b"slots: none", "no JSON"),
        ("props", b'{"a":', "no JSON"),
    ],
)
def test_json_pages_must_be_what_they_are_named(kind: str, body: bytes, word: str) -> None:
    with http_server(lambda r: (200, {}, body)) as (base, _):
        assert word in failure(get(base, "/x", kind)).missing.reason


def test_the_servers_own_words_are_told_with_secrets_masked() -> None:
    body = json.dumps({"error": {"code": 501, "message": "Start it with --metrics, api_key=abc123"}}).encode()
    with http_server(lambda r: (501, {}, body)) as (base, _):
        got = failure(get(base))
    assert "Start it with --metrics" in got.missing.reason
    assert "abc123" not in got.missing.reason
    assert not got.again


@pytest.mark.parametrize(("status", "again"), [(404, False), (500, True), (503, True), (429, True)])
def test_a_status_tells_whether_asking_again_may_help(status: int, again: bool) -> None:
    with http_server(lambda r: (status, {}, b"x")) as (base, _):
        got = failure(get(base))
    assert str(status) in got.missing.reason
    assert got.again is again


def test_a_page_over_the_limit_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_http, "MAX_BODY", 1 << 20)
    with http_server(lambda r: (200, {}, b"a 1\n" * (1 << 20))) as (base, _):
        got = failure(get(base))
    assert "larger than 1 MiB" in got.missing.reason


def test_a_gzip_bomb_is_not_unpacked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_http, "MAX_BODY", 1 << 20)
    with http_server(lambda r: (200, {"Content-Encoding": "gzip"}, gzip.compress(b"\0" * (64 << 20)))) as (base, _):
        assert "larger than" in failure(get(base)).missing.reason


def drip(connection: socket.socket, stop: threading.Event, head: bytes) -> None:
    connection.recv(65536)
    connection.sendall(head)
    while not stop.wait(0.05):
        connection.sendall(b"x")


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "],
    ids=["length", "no-length", "headers"],
)
def test_a_slow_drip_ends_at_the_time_limit(head: bytes) -> None:
    with raw_server(lambda c, stop: drip(c, stop, head)) as port:
        began = time.monotonic()
        got = failure(get(f"http://127.0.0.1:{port}", timeout_s=0.5))
        took = time.monotonic() - began
    assert "within 0.5 s" in got.missing.reason
    assert got.again
    assert took < 4  # the drip itself would go on for as long as the server runs


def test_a_server_that_says_nothing_is_a_time_out() -> None:
    with raw_server(lambda c, stop: (stop.wait(3), None)[1]) as port:
        got = failure(get(f"http://127.0.0.1:{port}", timeout_s=0.4))
    assert "no answer within 0.4 s" in got.missing.reason


def test_a_dead_port_is_refused() -> None:
    port = dead_port()
    got = failure(get(f"http://127.0.0.1:{port}"))
    assert f"nothing listens on 127.0.0.1:{port}" in got.missing.reason
    assert got.again


def test_tls_to_a_plain_port_says_so() -> None:
    with http_server(lambda r: (200, {}, PAGE)) as (base, _):
        got = failure(get(base.replace("http://", "https://")))
    assert got.missing.reason.startswith("TLS")
    assert "http://" in got.missing.hint


def test_a_name_that_does_not_exist() -> None:
    got = failure(get("http://no-such-host.invalid:8000"))
    assert "cannot be resolved" in got.missing.reason


def test_an_answer_that_breaks_off() -> None:
    def talk(connection: socket.socket, stop: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")

    with raw_server(talk) as port:
        assert "broke off" in failure(get(f"http://127.0.0.1:{port}")).missing.reason


def test_a_header_that_cannot_be_sent_does_not_show_its_value() -> None:
    got = failure(get(f"http://127.0.0.1:{dead_port()}", headers={"Authorization": "Bearer se\ncret"}))
    assert "header" in got.missing.reason
    assert "cret" not in got.missing.reason + got.missing.hint


def test_headers_as_written() -> None:
    assert parse_header("Authorization: Bearer a:b") == ("Authorization", "Bearer a:b")
    for wrong in ("Authorization Bearer verysecret", ": verysecret", "A: very\nsecret"):
        with pytest.raises(SpecError) as error:
            parse_header(wrong)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "base", "path"),
    [
        ("localhost:8000", "http://localhost:8000", None),
        ("http://h:8000/", "http://h:8000", None),
        ("http://h:8000/metrics", "http://h:8000", "/metrics"),
        ("http://h/svc/a/metrics?x=1", "http://h/svc/a", "/metrics?x=1"),
        ("http://h:8000/prometheus/metrics", "http://h:8000", "/prometheus/metrics"),
        ("https://h/v1", "https://h", None),
        ("http://[::1]:8000", "http://[::1]:8000", None),
        ("k8s:prod/vllm-0:8000", "k8s:prod/vllm-0:8000", None),
    ],
)
def test_urls_as_users_write_them(text: str, base: str, path: str | None) -> None:
    assert split_url(text) == (base, path)


@pytest.mark.parametrize(
    "text", ["ftp://h", "http://", "http://h:99999", "http://a b", "k8s:prod", "k8s:prod/--kubeconfig=x", "k8s:a/b:x"]
)
def test_urls_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(SpecError):
        split_url(text)


# The stand-in kubectl replays what a real one prints; no cluster is involved.


def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, timeout_s: float = 5.0) -> Page | Failure:
    program(tmp_path, "kubectl", script)
    monkeypatch.setenv("PATH", path_with(tmp_path))
    return KubePod("k8s:prod/vllm-0:8000", timeout_s=timeout_s).get("/metrics", "exposition")


def test_a_pods_page_comes_through_the_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = page(kube(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/asked\nprintf "a 1\\n"\n'))
    assert (got.body, got.origin) == (b"a 1\n", "k8s:prod/vllm-0:8000/metrics")
    assert (
        (tmp_path / "asked").read_text().startswith("get --raw /api/v1/namespaces/prod/pods/vllm-0:8000/proxy/metrics")
    )


@pytest.mark.parametrize(
    ("says", "hint"),
    [
        (
            'Error from server (Forbidden): pods "vllm-0" is forbidden: User "a" cannot get resource "pods/proxy"',
            "right to get pods/proxy",
        ),
        ('Error from server (NotFound): pods "vllm-0" not found', "check namespace and pod"),
        (
            "Error from server (ServiceUnavailable): error trying to reach service: dial tcp 10.0.0.3:8000: connect: connection refused",
            "does not listen on that port",
        ),
        (
            "E0803 12:00:00.1 1 memcache.go:265] x\nThe connection to the server localhost:8080 was refused",
            "kubectl cluster-info",
        ),
    ],
)
def test_kubectls_errors_get_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, hint: str) -> None:
    got = failure(kube(tmp_path, monkeypatch, f"cat >&2 <<'X'\n{says}\nX\nexit 1\n"))
    assert hint in got.missing.hint
    assert says.splitlines()[-1][:60] in got.missing.reason


def test_a_kubectl_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = failure(kube(tmp_path, monkeypatch, "sleep 30\n", timeout_s=0.3))
    assert "did not finish within 0.3 s" in got.missing.reason
    assert got.again


def test_no_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in failure(KubePod("k8s:a/b", timeout_s=1).get("/metrics", "exposition")).missing.reason
