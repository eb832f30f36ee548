"""Lines without a year beside lines that print one: the log dates itself."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from kvdoctor.engines.vllm import ENGINE
from kvdoctor.parse.serverlog import ParsedLog, scan

START = "INFO 12-26 07:06:25 llm_engine.py:73] Initializing an LLM engine (v0.2.6) with config: model='acme/chat'\n"
RAY = "2023-12-26 07:10:19,486\tWARNING worker.py:2074 -- A worker died or was killed while executing a task.\n"
PLAIN = "RuntimeError: nothing that prints a time\n"


def read(text: str, year: int | None = None) -> ParsedLog:
    return scan(io.BytesIO(text.encode()), ENGINE.templates, year=year)


def at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


@pytest.mark.parametrize("year", [None, 2026])
@pytest.mark.parametrize("text", [START + RAY, RAY + START, START + PLAIN * 200 + RAY, RAY + PLAIN * 200 + START])
def test_one_dated_line_dates_the_log(text: str, year: int | None) -> None:
    parsed = read(text, year)
    assert [e.time for e in parsed.events if e.event == "banner"] == [at(2023, 12, 26, 7, 6, 25)]
    assert {parsed.first_time, parsed.last_time} <= {at(2023, 12, 26, 7, 6, 25), at(2023, 12, 26, 7, 10, 19) + 0.486}
    assert parsed.clock == "local"
    assert parsed.wrapping == ""


def test_new_year_between_the_two() -> None:
    parsed = read(
        START.replace("12-26 07:06:25", "12-31 23:59:50") + RAY.replace("2023-12-26 07:10", "2024-01-01 00:00")
    )
    assert parsed.events[0].time == at(2023, 12, 31, 23, 59, 50)


def test_without_a_dated_line_the_capture_tells_the_year_or_nobody() -> None:
    assert read(START, 2026).first_time == at(2026, 12, 26, 7, 6, 25)
    assert read(START).first_time == at(1972, 12, 26, 7, 6, 25)
    assert read(START).clock == "yearless"
