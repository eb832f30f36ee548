"""A closed loop of mixed completion requests against an OpenAI-compatible server on this machine.

``python -m benchmarks.loadgen --url http://127.0.0.1:8911 --requests 90 --concurrency 14``

Prompts are lists of token ids and every request generates exactly its ``max_tokens`` (``ignore_eos``), so equal seeds
are equal work and the preemptions of a vLLM server repeat. Two kinds, as in a chat service: two thirds short (51-300
tokens in, 100-500 out), one third long (300-850 in, 520-1190 out). No two prompts share a prefix. Only loopback
addresses are accepted; the run ends with the last request or after ``--max-seconds``, whichever is first.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import json
import math
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MOST_REQUESTS = 2000
MOST_CONCURRENCY = 64
MOST_SECONDS = 900.0
STALL_S = 1.0
FIRST_TOKEN_ID, LAST_TOKEN_ID = 10, 8000


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send."""

    number: int
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request as the client saw it; seconds. ``gaps`` are those between deliveries that exceed one second."""

    number: int
    prompt_tokens: int
    max_tokens: int
    status: int
    output_tokens: int
    ttft: float | None
    total: float
    gaps: tuple[float, ...]
    error: str = ""


def jobs(count: int, seed: int, long_share: float = 0.36) -> list[Job]:
    """The same ``count`` requests for the same seed."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        if rng.random() < long_share:
            size, output = rng.randint(300, 850), rng.randint(520, 1190)
        else:
            size, output = rng.randint(51, 300), rng.randint(100, 500)
        prompt = tuple(rng.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(size))
        made.append(Job(number, prompt, output))
    return made


def address(url: str) -> tuple[str, int]:
    """Host and port of an http URL on this machine; ValueError for any other."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if parts.scheme != "http":
        raise ValueError(f"{url}: only http")
    try:
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here:
        raise ValueError(f"{url}: only an address of this machine; a load generator is not pointed at others")
    return host, port


def send(host: str, port: int, model: str, job: Job, deadline: float) -> Outcome:
    """One streamed completion. A failure of the server or the connection is an outcome, not an exception."""
    body = json.dumps(
        {
            "model": model,
            "prompt": list(job.prompt),
            "max_tokens": job.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    )
    begun = time.monotonic()
    status, tokens, ttft, last = 0, 0, None, begun
    gaps: list[float] = []
    error = ""
    connection = http.client.HTTPConnection(host, port, timeout=max(deadline - begun, 1.0))
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        status = answer.status
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            tokens += 1
            if ttft is None:
                ttft = now - begun
            elif now - last > STALL_S:
                gaps.append(now - last)
            last = now
            if now > deadline:
                error = "out of time"
                break
    except (OSError, http.client.HTTPException) as failure:
        error = f"{type(failure).__name__}: {failure}"
    finally:
        connection.close()
    return Outcome(
        job.number,
        len(job.prompt),
        job.max_tokens,
        status,
        tokens,
        ttft,
        time.monotonic() - begun,
        tuple(gaps),
        error,
    )


def run(url: str, model: str, todo: Sequence[Job], concurrency: int, seconds: float) -> tuple[list[Outcome], float]:
    """Keep ``concurrency`` requests in flight until all are done or ``seconds`` are over; outcomes and wall seconds."""
    host, port = address(url)
    begun = time.monotonic()
    deadline = begun + seconds
    waiting = iter(todo)
    lock = threading.Lock()
    outcomes: list[Outcome] = []

    def work() -> None:
        while time.monotonic() < deadline:
            with lock:
                job = next(waiting, None)
            if job is None:
                return
            outcome = send(host, port, model, job, deadline)
            with lock:
                outcomes.append(outcome)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline + 5.0 - time.monotonic(), 0.0))
    with lock:
        return sorted(outcomes, key=lambda o: o.number), time.monotonic() - begun


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` of the values do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def summary(outcomes: Sequence[Outcome], wall: float) -> dict[str, Any]:
    """What the client saw, as one flat object; times in seconds."""
    good = [o for o in outcomes if o.status == 200 and not o.error]
    tokens = sum(o.output_tokens for o in outcomes)
    first = [o.ttft for o in good if o.ttft is not None]
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "wall_s": round(wall, 2),
        "prompt_tokens": sum(o.prompt_tokens for o in outcomes),
        "output_tokens": tokens,
        "tokens_per_s": round(tokens / wall, 1) if wall > 0 else None,
        "ttft_p50_s": quantile(first, 0.5),
        "ttft_p99_s": quantile(first, 0.99),
        "e2e_p50_s": quantile([o.total for o in good], 0.5),
        "e2e_p99_s": quantile([o.total for o in good], 0.99),
        "gaps_over_1s": sum(len(o.gaps) for o in outcomes),
        "requests_stalled": sum(bool(o.gaps) for o in outcomes),
        "longest_gap_s": max((g for o in outcomes for g in o.gaps), default=None),
        "errors": sorted({o.error for o in outcomes if o.error}),
    }


def _bounded(most: float) -> Any:
    def parse(text: str) -> float:
        value = float(text)
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text}: between 0 and {most:g}")
        return value

    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="http://127.0.0.1:PORT")
    parser.add_argument("--model", default="tiny", help="served model name")
    parser.add_argument("--requests", type=_bounded(MOST_REQUESTS), default=90)
    parser.add_argument("--concurrency", type=_bounded(MOST_CONCURRENCY), default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-seconds", type=_bounded(MOST_SECONDS), default=300.0)
    parser.add_argument("--output", type=Path, help="write one JSON line per request here")
    given = parser.parse_args(arguments)
    try:
        address(given.url)
    except ValueError as wrong:
        parser.error(str(wrong))
    todo = jobs(int(given.requests), given.seed)
    outcomes, wall = run(given.url, given.model, todo, int(given.concurrency), given.max_seconds)
    if given.output is not None:
        lines = (json.dumps({name: getattr(o, name) for name in Outcome.__dataclass_fields__}) for o in outcomes)
        given.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(json.dumps(summary(outcomes, wall)))
    return 0 if outcomes and not any(o.error or o.status != 200 for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
