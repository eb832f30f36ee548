"""Exports that begin with the newest line are read in the order in which things happened."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from corpus import CASES, SAMPLES

from kvdoctor.engines.base import engines
from kvdoctor.parse import logevents, logorder
from kvdoctor.parse.serverlog import NOT_TURNED, TURNED, ParsedLog, scan
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, memory_member

VLLM = engines()["vllm"].templates
START = datetime(2026, 9, 14, 8, 20, tzinfo=UTC).timestamp()
RECORDS = [
    "(APIServer pid=1) INFO 09-14 08:20:00 [api_server.py:1977] vLLM API server version 0.13.0",
    "(EngineCore_DP0 pid=97) INFO 09-14 08:20:00 [kv_cache_utils.py:1291] GPU KV cache size: 151,552 tokens",
    *(
        f"(APIServer pid=1) INFO 09-14 08:2{1 + i // 6}:{i % 6}0 [loggers.py:257] Engine 000: Avg prompt throughput: 10.0 tokens/s, "
        f"Avg generation throughput: {900 - 30 * i}.0 tokens/s, Running: {8 + i} reqs, Waiting: {i} reqs, GPU KV cache usage: "
        f"{50 + i}.0%, Prefix cache hit rate: 0.0%"
        for i in range(24)
    ),
    "(EngineCore_DP0 pid=97) ERROR 09-14 08:25:01 [core.py:866] Traceback (most recent call last):\n"
    '(EngineCore_DP0 pid=97)   File "/vllm/v1/worker/gpu_model_runner.py", line 2, in execute_model\n'
    '(EngineCore_DP0 pid=97)   File "/vllm/v1/sample/sampler.py", line 7, in forward\n'
    "(EngineCore_DP0 pid=97) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
    "of 79.10 GiB of which 1.10 GiB is free. 70.00 GiB is allocated by PyTorch",
]


def stamp(index: int) -> datetime:
    return datetime.fromtimestamp(START + 10 * index, UTC)


def plain(records: list[tuple[int, str]]) -> str:
    return "".join(f"{text}\n" for _, text in records)


def grafana(records: list[tuple[int, str]]) -> str:
    rows = [
        f'{stamp(i):%Y-%m-%d %H:%M:%S}.000,"{text.replace(chr(34), chr(34) * 2)}",{int(stamp(i).timestamp())}000000000\n'
        for i, text in records
    ]
    return "Time,Line,tsNs\n" + "".join(rows)


def gcloud(records: list[tuple[int, str]]) -> str:
    rows = [
        {
            "labels": {"app": "vllm"},
            "receiveTimestamp": f"{stamp(i // 5 * 5 + 5):%Y-%m-%dT%H:%M:%S}Z",
            "textPayload": text,
            "timestamp": f"{stamp(i):%Y-%m-%dT%H:%M:%S}Z",
        }
        for i, text in records
    ]
    return json.dumps(rows, indent=2) + "\n"


def loki(records: list[tuple[int, str]]) -> str:
    rows = [
        {"line": text, "timestamp": f"{int(stamp(i).timestamp())}000000000", "date": f"{stamp(i):%Y-%m-%dT%H:%M:%S}.000Z", "fields": {"app": "v"}}
        for i, text in records
    ]  # fmt: skip
    return json.dumps(rows, indent=2)


def lines(records: list[tuple[int, str]]) -> str:
    return "".join(
        json.dumps({"message": text, "time": f"{stamp(i):%Y-%m-%dT%H:%M:%S}Z"}) + "\n" for i, text in records
    )


FORMS: dict[str, Callable[[list[tuple[int, str]]], str]] = {
    "plain": plain, "grafana": grafana, "gcloud": gcloud, "loki": loki, "lines": lines,
}  # fmt: skip


def read(text: str, chunk: int = 1 << 20) -> ParsedLog:
    return scan(io.BytesIO(text.encode()), VLLM, year=2026, chunk=chunk)


def told(log: ParsedLog) -> list[tuple[str, dict[str, object], float | None]]:
    return [(e.template, dict(e.fields), e.time) for e in log.events]


@pytest.mark.parametrize("form", FORMS)
def test_newest_first_says_what_oldest_first_says(form: str) -> None:
    records = list(enumerate(RECORDS))
    forward, backward = read(FORMS[form](records)), read(FORMS[form](records[::-1]))
    assert forward.order == ""
    assert backward.order == TURNED
    assert any(e.event == "oom" for e in forward.events)
    assert told(backward) == told(forward)
    assert (backward.first_time, backward.last_time) == (forward.first_time, forward.last_time)
    assert backward.lines == forward.lines


@pytest.mark.parametrize("form", FORMS)
def test_sources_point_at_the_lines_of_the_file(form: str) -> None:
    text = FORMS[form](list(enumerate(RECORDS))[::-1])
    for event in read(text).events:
        if event.event == "stats":
            assert event.place is not None
            assert f"Waiting: {event.fields['waiting']:.0f} reqs" in text.splitlines()[event.place - 1]


def test_the_report_names_them_too() -> None:
    text = grafana(list(enumerate(RECORDS[:-1]))[::-1])
    report = diagnose(Snapshot((memory_member("export.csv", text.encode()),)), ())
    assert report.main.facts["req.waiting"].source == "export.csv:2"
    assert "newest line first" in report.main.sources[0].status


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 20])
def test_small_pieces(chunk: int) -> None:
    text = grafana(list(enumerate(RECORDS))[::-1])
    assert told(read(text, chunk)) == told(read(text))


def test_a_log_too_large_to_be_turned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logorder, "MOST", 1000)
    monkeypatch.setattr(logorder, "LOOK", 3000)
    text = plain(list(enumerate(RECORDS[:-1]))[::-1])
    log = read(text, 1000)
    assert log.order == NOT_TURNED
    assert all(e.place is None for e in log.events)


def test_what_is_written_down_keeps_order_and_lines() -> None:
    log = read(plain(list(enumerate(RECORDS))[::-1]))
    again = logevents.load(logevents.dump("vllm", log).decode())
    assert isinstance(again, tuple)
    assert again[1].order == TURNED
    assert [e.place for e in again[1].events] == [e.place for e in log.events]


@pytest.mark.parametrize(
    "order",
    [
        [0, 1, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14],
        [*range(12, 24), *range(12)],
        [3, 2, 1, 0],
        [5, 5, 5, 5, 4, 4, 4],
    ],
    ids=["two processes a little out of order", "two logs put together", "four lines quoted", "two times only"],
)
def test_what_is_not_turned(order: list[int]) -> None:
    assert read(plain([(i, RECORDS[i + 2]) for i in order])).order == ""


def test_no_log_of_ours_is_taken_for_an_export() -> None:
    taken = []
    for folder in (*CASES, *SAMPLES):
        for path in sorted(folder.rglob("*.log")):
            if scan(io.BytesIO(path.read_bytes()), VLLM).order:
                taken.append(str(path.relative_to(folder.parent)))
    assert [name for name in taken if "newest-first" not in name] == []
