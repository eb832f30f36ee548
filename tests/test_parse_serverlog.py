"""Server logs: any wrapping gives the same events; time, repeats, ranks; hostile input in bounded memory."""

from __future__ import annotations

import io
import random
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from corpus import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from wrappers import WRAPPERS, Wrapper

from kvdoctor.engines import recognise
from kvdoctor.engines.base import engines
from kvdoctor.parse.serverlog import (
    GENERIC,
    KEEP_FIRST,
    KEEP_LAST,
    LogEvent,
    LogTemplate,
    Matcher,
    ParsedLog,
    decode,
    line_shape,
    parse_time,
    scan,
    searchable,
)

VLLM = engines()["vllm"].templates
LOG = """\
(APIServer pid=21) INFO 11-29 13:01:55 [api_utils.py:347] ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.20.1
(APIServer pid=21) INFO 11-29 13:01:55 [api_utils.py:286] non-default args: {'model': 'm', 'max_model_len': 8192}
(EngineCore_DP0 pid=31) INFO 11-29 13:02:06 [core.py:133] Initializing a V1 LLM engine (v0.20.1) with config: model='m', x=1
(Worker_TP1 pid=42) INFO 11-29 13:02:20 [gpu_worker.py:298] Available KV cache memory: 35.84 GiB
(EngineCore_DP0 pid=31) INFO 11-29 13:02:20 [kv_cache_utils.py:864] GPU KV cache size: 293,568 tokens
(APIServer pid=21) INFO:     Application startup complete.
(APIServer pid=21) INFO 11-29 13:04:50 [loggers.py:127] Engine 000: Avg prompt throughput: 472.5 tokens/s, Avg generation throughput: 351.5 tokens/s, Running: 8 reqs, Waiting: 52 reqs, GPU KV cache usage: 91.2%, Prefix cache hit rate: 0.0%
(APIServer pid=21) INFO:     10.0.0.9:56038 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
(Worker_TP1 pid=42) ERROR 11-29 13:05:01 [multiproc_executor.py:596] Traceback (most recent call last):
(Worker_TP1 pid=42) ERROR 11-29 13:05:01 [multiproc_executor.py:596]   File "/opt/vllm/v1/sample/ops/topk_topp_sampler.py", line 175, in forward_native
(Worker_TP1 pid=42) ERROR 11-29 13:05:01 [multiproc_executor.py:596] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 1 has a total capacity of 79.10 GiB of which 341.88 MiB is free. Process 77 has 78.75 GiB memory in use. Of the allocated memory 76.30 GiB is allocated by PyTorch, with 1.01 GiB allocated in private pools (e.g., CUDA Graphs), and 100.94 MiB is reserved by PyTorch but unallocated.
"""


def read(log: str | bytes, templates: tuple[LogTemplate, ...] = VLLM, year: int | None = 2026) -> ParsedLog:
    return scan(io.BytesIO(log.encode() if isinstance(log, str) else log), templates, year=year)


def told(events: list[LogEvent]) -> list[tuple[str, dict[str, object]]]:
    return [(e.template, dict(e.fields)) for e in events]


# ---------------------------------------------------------------- wrappings


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapping_changes_no_event(name: str) -> None:
    bare = read(LOG)
    assert [e.event for e in bare.events] == [
        "banner", "args", "banner", "args", "pool", "pool", "ready", "stats", "request_failed", "error", "oom",
    ]  # fmt: skip
    assert bare.events[-1].fields["site"] == "sampler"
    wrapped = read(WRAPPERS[name](LOG, 2026))
    assert told(wrapped.events) == told(bare.events)
    stats = next(e for e in wrapped.events if e.event == "stats")
    assert stats.time == datetime(2026, 11, 29, 13, 4, 50, tzinfo=UTC).timestamp()


def logs_of_cases() -> list[tuple[str, bytes]]:
    found = []
    for folder in CASES:
        for file in sorted(folder.iterdir()):
            raw = file.read_bytes() if file.is_file() else b""
            # an export that begins with its newest line is no output of a runtime: nobody splits or wraps its lines again
            if file.name != "expect.toml" and recognise.kind_of(raw[:65_536], None) == "log" and not read(raw).order:
                found.append((f"{folder.name}/{file.name}", raw))
    return found


@pytest.mark.parametrize(("name", "raw"), logs_of_cases(), ids=lambda v: v if isinstance(v, str) else "")
def test_every_case_log_reads_the_same_in_every_wrapping(name: str, raw: bytes) -> None:
    text = recognise.text_of(raw)
    engine = recognise.of_log([raw])
    bare = read(text, tuple(recognise.log_templates(engine, [raw])))
    for wrapper, wrap in WRAPPERS.items():
        wrapped = wrap(text, 2026)
        assert recognise.kind_of(wrapped[:65_536], None) == "log", wrapper
        assert recognise.of_log([wrapped]) is engine, wrapper
        assert told(read(wrapped, tuple(recognise.log_templates(engine, [wrapped]))).events) == told(bare.events), (
            wrapper
        )


def test_which_wrapping_it_was_is_told() -> None:
    met = {name: read(wrap(LOG, 2026)).wrapping for name, wrap in WRAPPERS.items()}
    assert met["docker-json"] == met["journald-json"] == "json"
    assert (met["cri"], met["kubernetes"], met["compose"], met["journald"]) == (
        "cri",
        "kubernetes",
        "compose",
        "journald",
    )
    assert (met["kubectl-prefix"], met["logfmt"], met["ray"], met["crlf"]) == ("kubectl", "logfmt", "ray", "")


def test_ray_says_how_many_workers_said_it() -> None:
    line = (
        "(RayWorkerWrapper pid=901, ip=10.1.2.3) ERROR 03-19 10:00:00 [worker.py:9] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 44.53 GiB of which 1.94 MiB is free. [repeated 30x across cluster] "
        "(Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable log deduplication)\n"
    )
    (event,) = read(line).events
    assert (event.event, event.repeat, event.pid) == ("oom", 30, 901)


def test_behind_a_ray_actor_the_engines_own_rank_is_kept() -> None:
    stats = (
        "[2026-01-05 12:40:30 DP{0} TP1] Decode batch. #running-req: 8, #token: 81234, token usage: 0.99, "
        "cuda graph: True, gen throughput (token/s): 512.20, #queue-req: 37, "
    )
    text = "".join(f"(SGLangActor pid={900 + i}, ip=10.1.2.3) {stats.format(i)}\n" for i in (0, 1))
    log = read(text, engines()["sglang"].templates)
    assert [(e.event, e.rank, e.pid) for e in log.events] == [("stats", "DP0_TP1", 900), ("stats", "DP1_TP1", 901)]


def test_the_level_twice_in_one_line() -> None:
    stats = LOG.splitlines()[6]
    inner = stats.partition(") ")[2]
    for line in (
        f"ERROR {inner}",
        f"INFO (APIServer pid=21) {inner}",
        f"INFO ERROR 11-29 13:04:50 {inner.partition('] ')[2]}",
    ):
        assert [e.event for e in read(line + "\n").events] == ["stats"], line


def test_ranks_and_process_ids() -> None:
    sglang = engines()["sglang"].templates
    line = (
        "[2025-07-01 10:00:00 DP1 TP3] Decode batch. #running-req: 4, #token: 900, token usage: 0.95, "
        "gen throughput (token/s): 41.02, #queue-req: 7\n"
    )
    (event,) = read(line, sglang).events
    assert event.rank == "DP1_TP3"
    old = (
        "(VllmWorker rank=3 pid=77) ERROR 03-19 10:00:00 [multiproc_executor.py:1] Traceback (most recent call last):\n"
    )
    (event,) = read(old).events
    assert (event.rank, event.pid) == ("rank3", 77)


def test_frames_of_interleaved_ranks_are_kept_apart() -> None:
    def line(pid: int, text: str) -> str:
        return f"(Worker_TP{pid} pid={pid}) ERROR 11-29 13:05:01 [multiproc_executor.py:596] {text}\n"

    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."
    log = (
        line(1, '  File "/opt/vllm/v1/sample/sampler.py", line 17, in sample')
        + line(2, '  File "/opt/vllm/v1/worker/gpu_worker.py", line 17, in determine_available_memory')
        + line(1, oom)
        + line(2, oom)
    )
    assert [e.fields["site"] for e in read(log).events if e.event == "oom"] == ["sampler", "prefill"]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."
NAMING = (
    "(APIServer pid=21) INFO 11-29 13:01:55 [utils.py:253] non-default args: {'model': 'acme/vision-7b', 'enable_lora': True, 'max_logprobs': 20}\n"
    "(APIServer pid=21) INFO 11-29 13:04:59 [logger.py:59] Received request cmpl-1: params: SamplingParams(n=1, max_tokens=5, logprobs=None, prompt_logprobs=None), lora_request: None.\n"
    "(Worker pid=42) DEBUG 11-29 13:05:00 [gpu_model_runner.py:4043] Running batch with BatchDescriptor(num_tokens=12, has_lora=False)\n"
)


def test_settings_and_requests_above_an_error_are_no_frames() -> None:
    """They name adapters, samplers, log probabilities and pictures whether or not anybody used them."""
    bare = read(NAMING + "ERROR 11-29 13:05:01 [core.py:1] " + OOM + "\n")
    assert bare.events[-1].fields["site"] == "other"
    frames = 'Traceback (most recent call last):\n  File "/vllm/v1/worker/gpu_worker.py", line 3, in load_model\n'
    traced = read(frames + "RuntimeError: over\n" + NAMING + frames.replace("load_model", "capture_model") + OOM + "\n")
    assert traced.events[-1].fields["site"] == "graph_capture"


def test_the_error_an_error_was_raised_from_counts_too() -> None:
    first = (
        'Traceback (most recent call last):\n  File "/vllm/v1/sample/sampler.py", line 3, in sample\nRuntimeError: x\n'
    )
    again = 'Traceback (most recent call last):\n  File "/vllm/v1/engine/core.py", line 3, in step\n'
    chained = first + "\nThe above exception was the direct cause of the following exception:\n\n" + again + OOM + "\n"
    assert read(chained).events[-1].fields["site"] == "sampler"
    assert read(first + "\n" + again + OOM + "\n").events[-1].fields["site"] == "other"


# ---------------------------------------------------------------- damaged lines


def test_two_messages_in_one_line() -> None:
    stats = LOG.splitlines()[6]
    events = read(stats + stats.replace("Waiting: 52", "Waiting: 7") + "\n").events
    assert [e.fields["waiting"] for e in events] == [52.0, 7.0]


@given(st.integers(min_value=60, max_value=len(LOG.splitlines()[6]) - 1))
@settings(max_examples=60, deadline=None)
def test_a_message_broken_over_two_lines_anywhere(cut: int) -> None:
    stats = LOG.splitlines()[6]
    (whole,) = read(stats + "\n").events
    (broken,) = read(
        stats[:cut] + "\n" + stats[cut:] + '\nINFO:     10.0.0.9:1 - "GET /health HTTP/1.1" 200 OK\n'
    ).events
    for name in ("prompt_rate", "gen_rate", "running", "waiting", "kv_usage"):
        assert broken.fields.get(name) == whole.fields[name], (name, stats[:cut][-20:])


def test_a_line_is_never_joined_with_a_new_message() -> None:
    cut = LOG.splitlines()[6][:150]
    events = read(cut + "\n" + LOG.splitlines()[6] + "\n").events
    assert [e.fields["waiting"] for e in events] == [52.0]


def test_escaped_line_feeds_in_one_line() -> None:
    oom = LOG.splitlines()[-1].partition("] ")[2]
    line = (
        'ERROR: {"error": "Traceback (most recent call last):\\n  File \\"/a/sampler.py\\", line 1, in sample\\n'
        + oom
        + '\\n"}\n'
    )
    events = read(line).events
    assert [e.event for e in events] == ["error", "oom"]
    assert events[1].fields["site"] == "sampler"


@pytest.mark.parametrize("cut", [1, 37, 90])
def test_the_first_and_the_last_line_may_be_cut(cut: int) -> None:
    whole = told(read(LOG).events)
    assert told(read(LOG[cut:]).events) in (whole, whole[1:])
    assert told(read(LOG[:-cut]).events)[:10] == whole[:10]


def test_what_a_user_wrote_is_no_message_of_the_server() -> None:
    line = (
        "INFO 03-19 10:00:00 [logger.py:39] Received request cmpl-1-0: prompt: 'why does it say CUDA out of memory. Tried to "
        "allocate 2.00 GiB? Traceback (most recent call last): signal 9', params: SamplingParams(n=1, max_tokens=64), "
        "prompt_token_ids: [1, 2, 3], lora_request: None.\n"
    )
    (event,) = read(line).events
    assert (event.event, event.fields["prompt_tokens"], event.fields["max_tokens"]) == ("request_in", 3.0, 64.0)


def test_nuls_and_binary_in_the_middle() -> None:
    lines = LOG.splitlines(keepends=True)
    noise = bytes(random.Random(1).randrange(256) for _ in range(70_000)).replace(b"\n", b"x") + b"\n"
    raw = "".join(lines[:6]).encode() + b"\x00" * 9_000 + b"\n" + noise + "".join(lines[6:]).encode()
    assert told(read(raw).events) == told(read(LOG).events)


# ---------------------------------------------------------------- time


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "year", "time", "sure"),
    [
        ("2025-11-29T13:01:55.5Z x", None, at(2025, 11, 29, 13, 1, 55) + 0.5, "zone"),
        ("2025-11-29T13:01:55.123456789+01:00 x", None, at(2025, 11, 29, 12, 1, 55) + 0.123456789, "zone"),
        ("Sat 2025-11-29 13:01:55 UTC x", None, at(2025, 11, 29, 13, 1, 55), "zone"),
        ("[2025-11-29 13:01:55,250] x", None, at(2025, 11, 29, 13, 1, 55) + 0.25, "local"),
        ("[11/29/2025-13:01:55] [TRT-LLM] [I] x", None, at(2025, 11, 29, 13, 1, 55), "local"),
        ("[GIN] 2025/11/29 - 13:01:55 | 200 |", None, at(2025, 11, 29, 13, 1, 55), "local"),
        ("INFO 11-29 13:01:55 [a.py:1] x", 2024, at(2024, 11, 29, 13, 1, 55), "yearless"),
        ("INFO 02-29 13:01:55 [a.py:1] x", None, at(1972, 2, 29, 13, 1, 55), "yearless"),
        ("Nov  9 13:01:55.25 host vllm[1]: x", 2024, at(2024, 11, 9, 13, 1, 55) + 0.25, "yearless"),
        ("2016-12-31T23:59:60Z x", None, at(2017, 1, 1, 0, 0, 0), "zone"),
        ("2025-13-29T13:01:55Z x", None, None, ""),
        ("took 12:30:11 in all", None, None, ""),
    ],
)
def test_a_time_and_how_sure_it_is(text: str, year: int | None, time: float | None, sure: str) -> None:
    assert parse_time(text, year) == (pytest.approx(time) if time is not None else None, sure)


def test_new_year_inside_a_log_without_years() -> None:
    def line(stamp: str, waiting: int) -> str:
        return LOG.splitlines()[6].replace("11-29 13:04:50", stamp).replace("Waiting: 52", f"Waiting: {waiting}") + "\n"

    log = read(line("12-31 23:59:50", 1) + line("01-01 00:00:10", 2) + line("01-01 00:00:20", 3), year=2025)
    times = [e.time for e in log.events]
    assert times == [at(2025, 12, 31, 23, 59, 50), at(2026, 1, 1, 0, 0, 10), at(2026, 1, 1, 0, 0, 20)]
    assert (log.first_time, log.last_time, log.clock) == (times[0], times[2], "yearless")


def test_a_wrappers_zoned_time_beats_the_lines_own() -> None:
    stats = LOG.splitlines()[6]
    (event,) = read(f"2026-11-29T05:04:51.000000Z stderr F {stats}\n").events
    assert event.time == at(2026, 11, 29, 5, 4, 51)


# ---------------------------------------------------------------- shapes, bounds


@given(
    st.text(alphabet='abcdef 0123456789:{}"\\/x', max_size=80), st.text(alphabet='abcdef 0123456789"\\', max_size=12)
)
def test_a_shape_keeps_every_literal(line: str, literal: str) -> None:
    assert line_shape(literal.encode()) in line_shape((line[:40] + literal + line[40:]).encode())


@pytest.mark.parametrize("engine", [e for e in engines() if engines()[e].templates])
def test_widened_literals_are_in_every_line_the_patterns_match(engine: str) -> None:
    """A literal is what a line must hold to be looked at: what the reader makes of it must never lose a line."""
    matcher = Matcher([*engines()[engine].templates, *GENERIC])
    for _, raw in logs_of_cases():
        for line in decode(raw).splitlines():
            for compiled in matcher.compiled:
                if compiled.template.literal in line and compiled.pattern.search(line):
                    assert compiled.literal in line, (compiled.template.id, compiled.literal)


def test_alternatives_are_not_taken_for_literals() -> None:
    template = LogTemplate("x", "error", "failed", r"(?:Alpha failed to start|Beta) now")
    assert Matcher([template]).compiled[0].literal == "failed"
    lazy = LogTemplate("x", "error", "equest ", r"\A[^\n]{0,40}?Received request (?P<id>\S{1,9}):")
    assert Matcher([lazy]).compiled[0].literal == "Received request "
    named = LogTemplate("x", "error", "Bound", r"(?P<text>Bound to port)? \d{1,3}")
    assert Matcher([named]).compiled[0].literal == "Bound to port"


class Endless(io.RawIOBase):
    """``size`` bytes made while they are read."""

    def __init__(self, size: int, make: Callable[[int], bytes]) -> None:
        self.left, self.make, self.count, self.rest = size, make, 0, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.left)
        while len(self.rest) < size:
            self.rest += self.make(self.count)
            self.count += 1
        out, self.rest = self.rest[:size], self.rest[size:]
        self.left -= len(out)
        return out


def peak_mb(work: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_a_line_without_end_is_skipped_in_bounded_memory() -> None:
    block = (LOG.replace("\n", " ") * 100).encode()
    result: list[ParsedLog] = []

    def work() -> None:
        stream = Endless(200 << 20, lambda n: block if n else LOG.encode() + block)
        result.append(scan(stream, VLLM, year=2026))  # type: ignore[arg-type]

    assert peak_mb(work) < 40
    assert (result[0].bad_lines, result[0].lines) == (1, len(LOG.splitlines()) + 1)
    assert told(result[0].events)[:11] == told(read(LOG).events)


def test_a_long_log_is_streamed_in_bounded_memory_and_its_end_is_kept() -> None:
    request = "(APIServer pid=21) INFO 11-29 13:04:{:02d} [logger.py:59] Received request cmpl-{:032x}: params: SamplingParams(n=1, max_tokens={}), lora_request: None.\n"
    access = '(APIServer pid=21) INFO:     10.0.0.{}:{} - "POST /v1/completions HTTP/1.1" 200 OK\n'
    result: list[ParsedLog] = []

    def make(n: int) -> bytes:
        return "".join(
            request.format(i % 60, n * 500 + i, i) + access.format(i % 250, 3000 + i) for i in range(500)
        ).encode()

    def work() -> None:
        result.append(scan(Endless(12 << 20, make), VLLM, year=2026))  # type: ignore[arg-type]

    assert peak_mb(work) < 40
    log = result[0]
    requests = [e for e in log.events if e.event == "request_in"]
    assert len(requests) in (KEEP_FIRST + KEEP_LAST - 1, KEEP_FIRST + KEEP_LAST)  # the stream ends inside a line
    assert log.lines - requests[-1].line <= 3
    total = KEEP_FIRST + KEEP_LAST + log.dropped["request_received"]
    assert abs(total - log.lines / 2) <= 1


@pytest.mark.parametrize(
    "bomb",
    [
        "Avg prompt throughput: " + "1" * 60_000,
        "Avg prompt throughput: 1.0 tokens/s" + ", Running: " * 5_000,
        "(" * 60_000 + "pid=1",
        "Received request " + "a" * 60_000 + ": params: SamplingParams(" + "(" * 2_000,
        "CUDA out of memory. Tried to allocate " + "9" * 60_000 + " GiB " * 3_000,
        '{"log":"' + '\\"' * 30_000 + '","stream":"stderr","time":"x"}',
        'time=x msg="' + "\\\\" * 30_000,
        "\x1b[" + "0;" * 30_000 + "m KV cache " + "\x1b]" * 20_000,
        "2025-11-29T13:01:55Z " * 3_000 + "KV cache",
        "(RayWorkerWrapper pid=1) " * 2_500 + "Traceback (most recent call last)",
        "pod/" + "a/" * 30_000 + ": failed to start",
        " " * 60_000 + "failed",
    ],
    ids=lambda b: b[:14],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "tgi", "lmdeploy", "tensorrt-llm", "ollama"])
def test_hostile_lines_end(engine: str, bomb: str) -> None:
    """No pattern runs away: a run that never ends fails the suite's own time limit."""
    log = read((bomb + "\n") * 3, engines()[engine].templates)
    assert log.lines == 3


@given(st.binary(max_size=3_000), st.integers(min_value=16, max_value=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_any_pieces_give_the_same_result(raw: bytes, chunk: int) -> None:
    log = LOG.encode() + raw + b"\n" + LOG.encode()
    assert scan(io.BytesIO(log), VLLM, year=2026, chunk=chunk).lines == scan(io.BytesIO(log), VLLM, year=2026).lines


@pytest.mark.parametrize("name", ["docker-json-split", "cri-split", "utf-16-le", "journald-bytes", "crlf"])
@pytest.mark.parametrize("chunk", [97, 4_096])
def test_small_pieces_of_a_wrapped_log_give_the_same_events(name: str, chunk: int) -> None:
    wrap: Wrapper = WRAPPERS[name]
    log = scan(io.BytesIO(wrap(LOG, 2026)), VLLM, year=2026, chunk=chunk)
    assert told(log.events)[:10] == told(read(LOG).events)[:10]
    assert log.events[-1].event == "oom"


def test_many_lines_for_lack_of_memory_are_bounded() -> None:
    oom = LOG.splitlines()[-1] + "\n"
    log = read(oom * 1_000)
    found = [e for e in log.events if e.event == "oom"]
    assert (found[0].line, found[-1].line) == (1, 1_000)
    assert len(found) + log.dropped["oom"] == 1_000


def test_searchable_keeps_a_few_lines_of_each_shape() -> None:
    log = "".join(f'INFO:     10.0.0.{n}:1 - "GET /health HTTP/1.1" 200 OK\n' for n in range(500)) + LOG
    text = searchable(log.encode("utf-16-le"))
    assert b"Avg prompt throughput" in text
    assert text.count(b"/health") == 50


def test_the_cases_are_there() -> None:
    assert len(logs_of_cases()) > 40
    assert all(isinstance(folder, Path) for folder in CASES)
