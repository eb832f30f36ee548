"""The past of one server: real stores loaded with scrapes of real servers, and stand-ins for what stores refuse."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler

import pytest
import typer
from collect_helpers import Answer, dead_port, http_server
from corpus import ROOT, Expectation, report_on
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.cli.past import take_past, vocabularies
from kvdoctor.collect import SpecError
from kvdoctor.collect.prometheus import (
    MAX_QUERIES,
    Matcher,
    NotOneTarget,
    PastRequest,
    base_of,
    parse_select,
    parse_window,
    selector,
    take,
    wire_names,
)
from kvdoctor.facts import Known
from kvdoctor.findings import TargetReport
from kvdoctor.normalise import normalise
from kvdoctor.parse import exposition
from kvdoctor.redact import redact
from kvdoctor.snapshot import Snapshot, epoch_in_name, read_paths

START = 1795950000.0
SGLANG_TIMES = {"metrics_t00.txt": 0.0, "metrics_t04.txt": 4.0, "metrics_t10.txt": 10.0, "metrics_after.txt": 42.0}
CAPTURES = {"vllm-saturated": "10.0.0.5:8000", "vllm-healthy": "10.0.0.6:8000", "sglang-retract": "10.0.0.7:30000"}
KEY_FACTS = (
    "kv.usage_max", "kv.usage_mean", "req.waiting_max", "req.running_max", "preempt.count", "preempt.rate",
    "preempt.per_request", "tok.gen_rate", "latency.ttft_p99", "latency.stall_share", "recompute.token_share", "req.finished",
)  # fmt: skip
_LINE = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)$")


def scrapes(name: str) -> Snapshot:
    """The metrics pages of a shipped sample, dated."""
    pages = []
    for member in read_paths([ROOT / "samples" / name]).members:
        when = epoch_in_name(member.name)
        if when is None and member.name in SGLANG_TIMES:
            when = START + SGLANG_TIMES[member.name]
        if when is not None:
            pages.append(replace(member, time=when))
    return Snapshot(tuple(sorted(pages, key=lambda m: m.time or 0.0)))


def span(name: str) -> tuple[float, float]:
    times = [m.time for m in scrapes(name).members if m.time is not None]
    return times[0], times[-1]


def openmetrics(captures: dict[str, str]) -> str:
    """All captures as one OpenMetrics text, families together, each capture a target of its own."""
    families: dict[str, list[str]] = {}
    for name, instance in captures.items():
        for member in scrapes(name).members:
            for line in member.read().decode().splitlines():
                match = _LINE.match(line)
                if match and not line.startswith("#"):
                    labels = ",".join(part for part in (f'job="{name}",instance="{instance}"', match[2]) if part)
                    families.setdefault(match[1], []).append(f"{match[1]}{{{labels}}} {match[3]} {member.time}")
    return "".join(line + "\n" for lines in families.values() for line in lines) + "# EOF\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(argv: Sequence[str], ready: str) -> Iterator[None]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(ready, timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install --no-install-recommends prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "in.om").write_text(openmetrics(CAPTURES))
    (folder / "prometheus.yml").write_text("global: {}\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "in.om"), str(folder / "data")],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    url = f"http://127.0.0.1:{free_port()}/mimir/prometheus"
    with running(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         "--storage.tsdb.retention.time=100y", f"--web.listen-address={urllib.parse.urlsplit(url).netloc}",
         "--web.route-prefix=/mimir/prometheus"],
        f"{url}/-/ready",
    ):  # fmt: skip
        yield url


@pytest.fixture(scope="module")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("victoria-metrics") is None:
        pytest.skip(
            "victoria-metrics is not installed (Debian: apt-get install --no-install-recommends victoria-metrics)"
        )
    folder = tmp_path_factory.mktemp("victoria")
    url = f"http://127.0.0.1:{free_port()}"
    with running(
        ["victoria-metrics", f"-storageDataPath={folder}/data", f"-httpListenAddr={urllib.parse.urlsplit(url).netloc}",
         "-retentionPeriod=100y"],
        f"{url}/health",
    ):  # fmt: skip
        lines = []
        for line in openmetrics(CAPTURES).splitlines()[:-1]:
            head, _, when = line.rpartition(" ")
            lines.append(f"{head} {round(float(when) * 1000)}")
        body = ("\n".join(lines) + "\n").encode()
        urllib.request.urlopen(f"{url}/api/v1/import/prometheus", body, timeout=30).close()
        # what was just written is searchable only after a flush
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=30).close()
        yield url


def past(url: str, name: str, **more: object) -> Snapshot:
    start, end = span(name)
    options: dict[str, object] = {
        "select": f'instance="{CAPTURES[name]}"', "since": repr(start), "at": repr(end), "header": [], "timeout": 20.0,
        "engine": None, **more,
    }  # fmt: skip
    return take_past(url, **options)  # type: ignore[arg-type]


def same_figures(ours: TargetReport, theirs: TargetReport) -> list[str]:
    """Facts that both know and that differ by more than 2 %; one that only one of them knows differs too."""
    wrong = []
    for name, other in theirs.facts.items():
        one = ours.facts.get(name)
        if isinstance(one, Known) != isinstance(other, Known):
            wrong.append(f"{name}: {one} instead of {other}")
        elif isinstance(one, Known) and isinstance(other, Known):
            for a, b in ((one.lo, other.lo), (one.hi, other.hi)):
                if a != b and abs(float(a) - float(b)) > max(0.02 * abs(float(b)), 1e-9):
                    wrong.append(f"{name}: {a} instead of {b}")
    return wrong


def check_same(url: str, name: str) -> None:
    snapshot = past(url, name)
    assert snapshot.missing == ()
    assert [m.time for m in snapshot.members] == pytest.approx([m.time for m in scrapes(name).members], abs=0.0011)
    report, sample = report_on(snapshot), report_on(scrapes(name))
    assert report.main.verdict.rule == sample.main.verdict.rule
    assert Expectation.of(ROOT / "samples" / name).problem(report) is None
    assert same_figures(report.main, sample.main) == []
    assert sum(isinstance(report.main.facts.get(f), Known) for f in KEY_FACTS) >= 6


@pytest.mark.parametrize("name", CAPTURES)
def test_the_past_in_prometheus_says_what_the_scrapes_say(prometheus: str, name: str) -> None:
    check_same(prometheus, name)


@pytest.mark.parametrize("name", CAPTURES)
def test_the_past_in_victoria_metrics_says_what_the_scrapes_say(victoria: str, name: str) -> None:
    check_same(victoria, name)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object, **options: object) -> str:
    """What is said when the options lead to a usage error."""
    with pytest.raises(typer.Exit) as stopped:
        past(*arguments, **options)  # type: ignore[arg-type]
    assert stopped.value.exit_code == 2
    return capsys.readouterr().err


def test_several_servers_are_listed_with_a_select_that_leads_to_each(
    prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start, end = span("vllm-healthy")[0], span("vllm-saturated")[1]
    window = {"since": repr(start), "at": repr(end)}
    said = refusal(capsys, prometheus, "vllm-healthy", select='job=~"vllm.*"', **window)
    assert "matches 2 servers" in said
    offered = re.findall(r"--select '([^']+)'   vllm", said)
    assert len(offered) == 2
    for select in offered:
        assert past(prometheus, "vllm-healthy", select=select, **window).members


def test_no_server_names_what_was_looked_for_and_what_there_is(
    prometheus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, prometheus, "vllm-saturated", select='instance="10.9.9.9:1",team="x"')
    assert "matches no server" in said
    assert "requests_processing" in said
    assert "10.0.0.5:8000" in said
    assert "team: (no server has this label)" in said
    said = refusal(capsys, prometheus, "vllm-saturated", since="1795000000", at="1795000600", select="")
    assert "no server of a known engine" in said
    said = refusal(capsys, prometheus, "vllm-saturated", engine="tgi")
    assert "tgi_batch_current_size" in said


def test_a_long_window_says_how_far_apart_its_instants_are_and_where_its_readings_lie(prometheus: str) -> None:
    name = "vllm-saturated"
    snapshot = past(prometheus, name, since="2h", at=repr(span(name)[1] + 3600))
    said = " ".join(snapshot.warnings)
    assert "peaks between them are not seen" in said
    assert "the server or its scraping stopped then" in said
    assert all(m.time in [s.time for s in scrapes(name).members] for m in snapshot.members)


# ---- stand-ins


@dataclass
class Fake:
    """A store that answers the queries of this reading over given series; ``cap`` rows at most, ``refuse`` by query.

    ``series``: (labels with ``__name__``, values by time).
    """

    series: list[tuple[dict[str, str], dict[float, str]]]
    cap: int = 10_000
    beside: dict[str, object] = field(default_factory=dict)
    refuse: Callable[[str], Answer | None] = lambda query: None
    asked: list[str] = field(default_factory=list)
    seen: list[BaseHTTPRequestHandler] = field(default_factory=list)

    def __call__(self, handler: BaseHTTPRequestHandler) -> Answer:
        text = handler.rfile.read(int(handler.headers.get("Content-Length") or "0")).decode()
        form = dict(urllib.parse.parse_qsl(text or urllib.parse.urlsplit(handler.path).query))
        query = form["query"]
        self.asked.append(query)
        self.seen.append(handler)
        refused = self.refuse(query)
        if refused is not None:
            return refused
        at = [float(form["time"])] if "time" in form else []
        if not at:
            first, end, step = (float(form[k]) for k in ("start", "end", "step"))
            at = [first + i * step for i in range(int((end - first) / step + 1.001))]
        rows = self._rows(query, at)[: self.cap]
        key = "value" if "time" in form else "values"
        result = [{"metric": m, key: p[0] if key == "value" else p} for m, p in rows if p]
        kind = "vector" if key == "value" else "matrix"
        document = {"status": "success", "data": {"resultType": kind, "result": result}, **self.beside}
        return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()

    def _rows(self, query: str, at: list[float]) -> list[tuple[dict[str, str], list[tuple[float, str]]]]:
        inside = query[query.index("{") + 1 : query.rindex("}")]
        wanted = re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', inside)
        back = float(found[1]) if (found := re.search(r"\[(\d+)s\]", query)) else 300.0
        rows: list[tuple[dict[str, str], list[tuple[float, str]]]] = []
        for labels, points in self.series:
            if all(fits(op, labels.get(label, ""), value) for label, op, value in wanted):
                shown = []
                for when in at:
                    near = [t for t in points if when - back < t <= when + 0.001]
                    if near:
                        last = max(near)
                        shown.append((when, repr(last) if "timestamp(" in query else points[last]))
                rows.append((labels, shown))
        by = re.search(r"count by \(([\w, ]+)\)", query)
        if query.startswith(("count(", "max(")) or by:
            groups: dict[tuple[tuple[str, str], ...], dict[float, list[str]]] = {}
            for labels, shown in rows:
                key = tuple((k, labels[k]) for k in (by[1].split(", ") if by else []) if k in labels)
                for when, value in shown:
                    groups.setdefault(key, {}).setdefault(when, []).append(value)
            fold = max if query.startswith("max(") else lambda values: str(len(values))
            rows = [(dict(k), [(t, fold(v)) for t, v in sorted(g.items())]) for k, g in groups.items()]
        return rows


def fits(op: str, have: str, want: str) -> bool:
    return {"=": have == want, "!=": have != want, "=~": re.fullmatch(want, have) is not None}[op]


T0 = 1795950000.0
TIMES = [T0 + 15.0 * i for i in range(12)]
"""Twelve scrapes, 15 s apart."""


def server(
    instance: str = "a:8000", restart: int | None = None, **labels: str
) -> list[tuple[dict[str, str], dict[float, str]]]:
    """A small vLLM: two gauges, a counter, a histogram, its process start (later from scrape ``restart`` on)."""
    place = {"job": "vllm", "instance": instance, **labels}
    own = {**place, "engine": "0", "model_name": 'm"x\\y'}

    def made(
        name: str, value: Callable[[int], float], base: dict[str, str] = own, **more: str
    ) -> tuple[dict[str, str], dict[float, str]]:
        return {"__name__": name, **base, **more}, {t: repr(value(i)) for i, t in enumerate(TIMES)}

    def since_start(i: int) -> int:
        return i if restart is None or i < restart else i - restart

    return [
        made("vllm:num_requests_running", lambda i: 3.0),
        made("vllm:num_requests_waiting", lambda i: 1.0),
        made("vllm:kv_cache_usage_perc", lambda i: 0.5),
        made("vllm:generation_tokens_total", lambda i: 1000.0 * since_start(i)),
        *(made("vllm:time_to_first_token_seconds_bucket", lambda i: float(since_start(i)), le=le) for le in ("0.5", "1.0", "+Inf")),
        made("vllm:time_to_first_token_seconds_count", lambda i: float(since_start(i))),
        made("vllm:time_to_first_token_seconds_sum", lambda i: 0.1 * since_start(i)),
        made("process_start_time_seconds", lambda i: T0 - 100 if restart is None or i < restart else TIMES[restart] - 3, place),
    ]  # fmt: skip


def reading(url: str, select: str = "", end: float = TIMES[-1], timeout_s: float = 5.0, **headers: str) -> Snapshot:
    return take(PastRequest(url, parse_select(select), T0, end, vocabularies(), headers, timeout_s))


def said(snapshot: Snapshot) -> str:
    return " | ".join([*snapshot.warnings, *(f"{m.kind}: {m.reason} ({m.hint})" for m in snapshot.missing)])


def test_each_scrape_becomes_a_page_with_its_own_time_and_types() -> None:
    store = Fake(server())
    with http_server(store) as (url, asked):
        snapshot = reading(f"{url}/prometheus/", "instance=a:8000", Authorization="Bearer x")
    assert [m.time for m in snapshot.members] == pytest.approx(TIMES)
    assert said(snapshot) == ""
    page = exposition.parse(snapshot.members[4].read().decode())
    assert isinstance(page, exposition.Exposition)
    assert page.bad_count == 0
    assert page.types["vllm:generation_tokens_total"] == "counter"
    assert page.types["vllm:time_to_first_token_seconds"] == "histogram"
    counter = page.by_name["vllm:generation_tokens_total"][0]
    assert (counter.value, counter.labels["model_name"]) == (4000.0, 'm"x\\y')
    assert {s.labels["le"] for s in page.by_name["vllm:time_to_first_token_seconds_bucket"]} == {"0.5", "1.0", "+Inf"}
    assert len(asked) <= MAX_QUERIES
    assert {(method, path) for method, path in asked} == {
        ("POST", "/prometheus/api/v1/query"), ("POST", "/prometheus/api/v1/query_range"),
    }  # fmt: skip
    assert all(h.headers["Authorization"] == "Bearer x" and h.headers["Accept-Encoding"] == "gzip" for h in store.seen)


def test_a_restart_in_the_window_is_seen() -> None:
    with http_server(Fake(server(restart=5))) as (url, _):
        intake = normalise(reading(url))
    assert [len(t.scrapes) for t in intake.targets] == [5, 7]
    assert any("restarted 1 time" in w for w in intake.warnings)


def test_copies_of_one_server_are_not_added_up() -> None:
    copies = [*server(replica="a"), *server(replica="b")]
    with http_server(Fake(copies)) as (url, _):
        with pytest.raises(NotOneTarget, match="matches 2 servers") as stopped:
            reading(url, 'job="vllm"')
        assert """--select 'job="vllm",replica="b"'""" in str(stopped.value)
        snapshot = reading(url, 'replica="b"')
    assert all(b'replica="a"' not in m.read() for m in snapshot.members)
    assert len(snapshot.members) == len(TIMES)


def test_a_label_that_only_the_engine_puts_does_not_make_several_servers() -> None:
    ranks = [
        ({**labels, "shard": shard}, points)
        for shard in ("0", "1")
        for labels, points in server()
        if labels["__name__"].startswith("vllm:")
    ]
    with http_server(Fake([*ranks, server()[-1]])) as (url, _):
        snapshot = reading(url)
    page = exposition.parse(snapshot.members[0].read().decode())
    assert isinstance(page, exposition.Exposition)
    assert {s.labels["shard"] for s in page.by_name["vllm:num_requests_running"]} == {"0", "1"}
    assert len(page.by_name["process_start_time_seconds"]) == 1


def test_a_store_that_caps_its_answers_loses_whole_metrics_and_says_so() -> None:
    ranked = [({**labels, "engine": str(e)}, points) for labels, points in server()[:4] for e in range(4)]
    with http_server(Fake([*ranked, *server()[4:]], cap=10)) as (url, _):
        snapshot = reading(url)
    text = said(snapshot)
    assert "saw 10 of 17 series of this server" in text
    page = exposition.parse(snapshot.members[0].read().decode())
    assert isinstance(page, exposition.Exposition)
    assert len(page.by_name["vllm:num_requests_waiting"]) == 4
    # two of its four series came: their sum or maximum would be a wrong number
    assert "vllm:kv_cache_usage_perc" not in page.by_name
    assert "vllm:generation_tokens_total" not in page.by_name
    assert len(page.by_name["vllm:time_to_first_token_seconds_bucket"]) == 3


def test_histograms_that_are_too_dear_leave_the_rest() -> None:
    body = b'{"status":"error","errorType":"execution","error":"query processing would load too many samples into memory in query execution"}'

    def refuse(query: str) -> Answer | None:
        return (
            (422, {"Content-Type": "application/json"}, body) if query.startswith("{") and "_bucket" in query else None
        )

    with http_server(Fake(server(), refuse=refuse)) as (url, _):
        snapshot = reading(url)
    assert len(snapshot.members) == len(TIMES)
    assert b"vllm:kv_cache_usage_perc" in snapshot.members[0].read()
    assert "too many samples" in said(snapshot)
    assert "shorter --since" in said(snapshot)


@pytest.mark.parametrize(
    "status, body, reason, hint",
    [
        (401, b"no", "answers 401", "--header"),
        (401, b'{"status":"error","error":"no org id"}', "no org id", "X-Scope-OrgID"),
        (404, b"404 page not found", "answers 404", "/prometheus"),
        (400, b'{"status":"error","errorType":"bad_data","error":"exceeded maximum resolution of 11,000 points per timeseries."}',
         "11,000 points", "shorter --since"),
        (422, b'{"status":"error","errorType":"422","error":"cannot select more than -search.maxSamplesPerQuery=1 samples"}',
         "cannot select more", "narrower --select"),
        (503, b'{"status":"error","errorType":"timeout","error":"query timed out in expression evaluation"}', "timed out", "--timeout"),
        (200, b"<html>log in</html>", "HTML page", "login"),
        (200, b"{", "no JSON", "prefix"),
        (200, b'{"version": "1"}', "no query result", "prefix"),
        (200, b'{"status":"error","error":"boom"}', "boom", "log of the store"),
        (302, b"", "redirects", "own address"),
    ],
)  # fmt: skip
def test_what_the_store_refuses_is_a_missing_source_with_a_hint(
    status: int, body: bytes, reason: str, hint: str
) -> None:
    headers = {"Location": "/login"} if status == 302 else {}
    with http_server(lambda handler: (status, headers, body)) as (url, asked):
        snapshot = reading(url)
    assert len(asked) == 1
    assert snapshot.members == ()
    assert len(snapshot.missing) == 1
    assert reason in snapshot.missing[0].reason
    assert hint in snapshot.missing[0].hint


def test_nobody_there_and_a_store_that_hangs() -> None:
    assert "refused" in said(reading(f"http://127.0.0.1:{dead_port()}"))
    stop = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> Answer:
        stop.wait(20)
        return 200, {}, b"{}"

    with http_server(hang) as (url, _):
        text = said(reading(url, timeout_s=0.3))
        stop.set()
    assert "no answer within 0.3 s" in text
    assert "--timeout" in text


def test_a_gateway_that_only_lets_get_through() -> None:
    store = Fake(server())

    def gateway(handler: BaseHTTPRequestHandler) -> Answer:
        if handler.command == "POST":
            handler.rfile.read(int(handler.headers["Content-Length"]))
            return 405, {}, b""
        return store(handler)

    with http_server(gateway) as (url, asked):
        snapshot = reading(url)
    assert len(snapshot.members) == len(TIMES)
    assert [method for method, _ in asked].count("POST") == 1
    assert len(asked) <= MAX_QUERIES


def test_what_the_store_says_beside_the_data_is_shown() -> None:
    beside = {
        "warnings": ["one store-gateway did not answer"],
        "infos": ["metric might not be a counter"],
        "isPartial": True,
    }
    with http_server(Fake(server(), beside=beside)) as (url, _):
        snapshot = reading(url)
    text = said(snapshot)
    assert text.count("one store-gateway did not answer") == 1
    assert "might not be a counter" in text
    assert "partial" in text


def test_leftovers_of_a_server_that_is_gone_make_no_page() -> None:
    gone = [({**labels}, {t: v for t, v in points.items() if t < TIMES[4]}) for labels, points in server()]
    gone[2] = (gone[2][0], {**gone[2][1], TIMES[11]: "0.9"})
    with http_server(Fake(gone)) as (url, _):
        snapshot = reading(url, end=TIMES[3] + 600)
    assert [m.time for m in snapshot.members][-1] == TIMES[3]
    assert "stopped then" in said(snapshot)


@pytest.mark.parametrize(
    "text, found",
    [
        ('instance="10.0.0.5:8000"', [("instance", "=", "10.0.0.5:8000")]),
        ('{job="vllm", pod=~"a|b"}', [("job", "=", "vllm"), ("pod", "=~", "a|b")]),
        ("instance=10.0.0.5:8000,job!=x", [("instance", "=", "10.0.0.5:8000"), ("job", "!=", "x")]),
        ("job='v'", [("job", "=", "v")]),
        ('pod="a,b"', [("pod", "=", "a,b")]),
        ("", []),
    ],
)  # fmt: skip
def test_select_is_written_as_in_promql_or_shorter(text: str, found: list[tuple[str, str, str]]) -> None:
    assert parse_select(text) == tuple(Matcher(*one) for one in found)


@pytest.mark.parametrize("text", ["instance", 'a="b" or c="d"', '__name__="x"', "=x", 'a="b'])
def test_a_select_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_select(text)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), st.sampled_from(["=", "!=", "=~", "!~"]), st.text()
        ),
        max_size=4,
    )
)
def test_a_selector_reads_back_as_it_was_written(parts: list[tuple[str, str, str]]) -> None:
    matchers = tuple(Matcher(*part) for part in parts)
    assert parse_select(",".join(map(str, matchers))) == matchers


NOW = 1795960000.0


@pytest.mark.parametrize(
    "since, at, window",
    [
        ("10m", None, (NOW - 605, NOW - 5)),
        ("1h30m", "1795957480.5", (1795957480.5 - 5400, 1795957480.5)),
        ("2026-11-29T13:00:00Z", "2026-11-29T14:10:00+01:00", (1795957200.0, 1795957800.0)),
        ("1795957200", "1795957800000", (1795957200.0, 1795957800.0)),
    ],
)  # fmt: skip
def test_window(since: str, at: str | None, window: tuple[float, float]) -> None:
    assert parse_window(since, at, NOW) == pytest.approx(window)


@pytest.mark.parametrize(
    "since, at", [("yesterday", None), ("10", None), ("10m", "3am"), ("10m", repr(NOW + 7200)), ("0s", None), ("30d", None),
                  (repr(NOW), repr(NOW - 60)), ("500ms", None)],
)  # fmt: skip
def test_a_window_that_cannot_be_meant_is_refused(since: str, at: str | None) -> None:
    with pytest.raises(SpecError):
        parse_window(since, at, NOW)


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_window("1m", "2026-11-29 22:00", NOW)[1] == 1795957200.0
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text, base",
    [
        ("prom:9090", "http://prom:9090"),
        ("https://mimir/prometheus/", "https://mimir/prometheus"),
        ("http://prom:9090/graph?g0.expr=up", "http://prom:9090"),
        ("http://vm/select/0/prometheus/api/v1/query_range", "http://vm/select/0/prometheus"),
    ],
)  # fmt: skip
def test_the_address_of_the_store(text: str, base: str) -> None:
    assert base_of(text) == base


@pytest.mark.parametrize("text", ["ftp://x", "http://", "http://a b", "http://x:99999"])
def test_an_address_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        base_of(text)


def test_each_engine_is_looked_for_by_names_of_its_own_prefix() -> None:
    tables = vocabularies()
    assert {v.engine for v in tables} >= {"vllm", "sglang", "tensorrt-llm", "tgi", "llamacpp", "lmdeploy"}
    ray = next(v for v in tables if v.anchors == ("ray_vllm_num_requests_running",))
    assert "ray_vllm_kv_cache_usage_perc" in ray.kinds
    assert "vllm:kv_cache_usage_perc" not in ray.kinds
    # VictoriaMetrics takes queries of at most 16 KiB
    for table in tables:
        plain, split = wire_names(table.kinds)
        assert max(len(selector(plain, ())), len(selector(split, ()))) < 12_000
        assert "process_start_time_seconds" in plain


def test_a_capture_of_the_past_keeps_no_address(prometheus: str) -> None:
    snapshot = past(prometheus, "vllm-saturated")
    reduced = redact(snapshot, salt=b"x" * 32)
    kept = b"".join(m.read() + m.origin.encode() + m.name.encode() for m in reduced.members)
    assert b"10.0.0.5" not in kept
    assert report_on(reduced).main.verdict.rule == report_on(snapshot).main.verdict.rule
