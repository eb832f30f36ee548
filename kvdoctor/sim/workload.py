"""Requests to replay: generated from a seed, read from a public trace, or built from rates and histograms.

Lengths are tokens, times seconds from the start of the load. Everything that had to be assumed is in ``assumed``.
"""

from __future__ import annotations

import bisect
import csv
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from kvdoctor.frozen import frozen

MAX_LENGTH = 16_000_000
"""Longest prompt or output that is believed; anything above is a broken trace."""

DEFAULT_PRIORITY = 3
"""Middle of the scale 1 (highest) to 5 (lowest)."""


class TraceError(ValueError):
    """A trace that cannot be replayed: names the file, the line and what is wrong with it."""


@frozen
class Request:
    """One request. ``max_tokens`` is the client's limit (at least ``output_tokens``).

    ``prefix`` is how many leading prompt tokens repeat what the previous turn of ``session`` computed.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    session: str | None = None
    priority: int = DEFAULT_PRIORITY
    prefix: int = 0

    def problem(self) -> str | None:
        """Why this request cannot be replayed, or None."""
        if not math.isfinite(self.arrival_s) or self.arrival_s < 0:
            return f"arrival time {self.arrival_s} is not a time"
        if not 1 <= self.prompt_tokens <= MAX_LENGTH:
            return f"prompt of {self.prompt_tokens} tokens is not a length"
        if not 1 <= self.output_tokens <= MAX_LENGTH:
            return f"output of {self.output_tokens} tokens is not a length"
        if self.max_tokens < self.output_tokens:
            return f"max_tokens {self.max_tokens} is below the output of {self.output_tokens} tokens"
        if not 0 <= self.prefix <= self.prompt_tokens:
            return f"prefix of {self.prefix} tokens does not fit a prompt of {self.prompt_tokens}"
        return None


@frozen
class Workload:
    """Requests in order of arrival, the name of their source, what was assumed, and (from a file) their lines."""

    name: str
    requests: tuple[Request, ...]
    assumed: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.requests:
            raise TraceError(f"{self.name}: no requests")
        last = 0.0
        for at, request in enumerate(self.requests):
            problem = request.problem()
            if problem is None and request.arrival_s < last:
                problem = f"arrival {request.arrival_s} s is before the request ahead of it ({last} s)"
            if problem is not None:
                raise TraceError(f"{self.where(at)}: {problem}")
            last = request.arrival_s

    def where(self, index: int) -> str:
        """``file:line`` of a request read from a file, else its number in the load, counted from 1."""
        return f"{self.name}:{self.lines[index]}" if self.lines else f"{self.name}: request {index + 1}"

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    def head(self, count: int) -> Workload:
        """The first ``count`` requests."""
        return replace(self, requests=self.requests[:count], lines=self.lines[:count])

    def faster(self, factor: float) -> Workload:
        """The same requests, arriving ``factor`` times as fast."""
        if not math.isfinite(factor) or factor <= 0:
            raise TraceError(f"{self.name}: speed factor {factor} must be above 0")
        return replace(self, requests=tuple(replace(one, arrival_s=one.arrival_s / factor) for one in self.requests))

    def resampled(self, seed: int) -> Workload:
        """The same arrivals with lengths drawn again (with replacement): how much the answer hangs on this one day."""
        rng = random.Random(seed)
        shapes = rng.choices(self.requests, k=len(self.requests))
        fresh = [
            replace(shape, arrival_s=one.arrival_s, session=None, prefix=0)
            for one, shape in zip(self.requests, shapes, strict=True)
        ]
        return replace(self, requests=tuple(fresh), lines=())

    def grown(self, factor: int, seed: int) -> Workload:
        """``factor`` times the demand: copies of every request, the copies shifted within one mean gap."""
        if factor < 1:
            raise TraceError(f"{self.name}: demand factor {factor} must be at least 1")
        rng = random.Random(seed)
        gap = self.span_s / max(1, len(self.requests) - 1)
        many = list(self.requests)
        for copy in range(1, factor):
            for one in self.requests:
                session = None if one.session is None else f"{one.session}#{copy}"
                many.append(replace(one, arrival_s=one.arrival_s + rng.random() * gap, session=session))
        many.sort(key=lambda one: one.arrival_s)
        return replace(self, requests=tuple(many), lines=())


# --- from a seed ------------------------------------------------------------------------------------------------------


def likely_max_tokens(output_tokens: int) -> int:
    """A client's probable limit when none is known: the next power of two above 1.5 times what it used."""
    return 1 << max(4, math.ceil(math.log2(1.5 * output_tokens)))


_ASSUMED_MAX = "max_tokens unknown: next power of two above 1.5 x output"


def _lognormal(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return min(high, max(low, round(median * math.exp(rng.gauss(0.0, sigma)))))


def _arrivals(rng: random.Random, count: int, rate: float) -> list[float]:
    if count < 1:
        raise TraceError(f"a load of {count} requests is empty")
    if not math.isfinite(rate) or rate <= 0:
        raise TraceError(f"arrival rate {rate} must be above 0 requests/s")
    now, out = 0.0, []
    for _ in range(count):
        out.append(now)
        now += rng.expovariate(rate)
    return out


def chat(rng: random.Random, count: int, rate: float) -> Workload:
    """Short conversations: prompts around 1,000 tokens, answers around 130 (shape of the Azure conversation trace)."""
    return _independent(rng, "chat", _arrivals(rng, count, rate), (1000.0, 0.75, 16, 14_000), (130.0, 0.9, 1, 1000))


def reasoning(rng: random.Random, count: int, rate: float) -> Workload:
    """Short prompts, long generations: about 500 tokens in, 3,800 out on average."""
    return _independent(
        rng, "reasoning", _arrivals(rng, count, rate), (450.0, 0.5, 32, 4000), (3000.0, 0.7, 64, 16_000)
    )


def short(rng: random.Random, count: int, rate: float) -> Workload:
    """Narrow short traffic: about 300 tokens in and 60 out, the load for which eviction order hardly matters."""
    return _independent(rng, "short", _arrivals(rng, count, rate), (300.0, 0.3, 16, 1500), (60.0, 0.4, 1, 300))


def size_mix(rng: random.Random, count: int, rate: float) -> Workload:
    """The published size mix: half of the prompts 1.5k tokens, three eighths 14k, one eighth 60k."""
    return mixture(rng, "size-mix", count, rate, ((0.5, 1500, 300), (0.375, 14_000, 600), (0.125, 60_000, 1200)))


def mixture(
    rng: random.Random, name: str, count: int, rate: float, parts: Sequence[tuple[float, int, int]]
) -> Workload:
    """Requests of a few sizes: ``(share, prompt tokens, mean output tokens)``; outputs exponential, at least 8."""
    weights = [part[0] for part in parts]
    requests = []
    for arrival in _arrivals(rng, count, rate):
        _, prompt, mean = rng.choices(parts, weights)[0]
        output = min(8 * mean, max(8, round(rng.expovariate(1 / mean))))
        requests.append(Request(arrival, prompt, output, likely_max_tokens(output)))
    return Workload(name, tuple(requests), ("sizes and lengths synthetic", _ASSUMED_MAX))


def agents(rng: random.Random, count: int, rate: float, *, turns: int = 8) -> Workload:
    """Agent sessions of about ``turns`` turns, each repeating the whole context; ``rate`` counts requests/s."""
    heads = _arrivals(rng, -(-count // turns), rate / turns)
    requests = []
    for number, start in enumerate(heads):
        now, context = start, 0
        for turn in range(turns):
            new = _lognormal(rng, 1500.0 if turn == 0 else 400.0, 0.6, 16, 8000)
            output = _lognormal(rng, 200.0, 0.8, 4, 2000)
            requests.append(
                Request(now, context + new, output, likely_max_tokens(output), f"agent-{number}", prefix=context)
            )
            context += new + output
            now += 5.0 + output * 0.03 + rng.expovariate(0.1)
    requests.sort(key=lambda one: one.arrival_s)
    return Workload("agents", tuple(requests[:count]), ("sessions and think times synthetic", _ASSUMED_MAX))


def _independent(
    rng: random.Random,
    name: str,
    arrivals: Sequence[float],
    prompt: tuple[float, float, int, int],
    output: tuple[float, float, int, int],
) -> Workload:
    requests = []
    for arrival in arrivals:
        tokens_in = _lognormal(rng, *prompt)
        tokens_out = _lognormal(rng, *output)
        requests.append(Request(arrival, tokens_in, tokens_out, likely_max_tokens(tokens_out)))
    return Workload(name, tuple(requests), ("lengths and arrivals synthetic (lognormal, Poisson)", _ASSUMED_MAX))


GENERATORS = {"chat": chat, "reasoning": reasoning, "short": short, "size-mix": size_mix, "agents": agents}
"""Loads that need only a seed, a count and a rate."""


# --- from rates and histograms ----------------------------------------------------------------------------------------


@frozen
class Histogram:
    """Counts per bucket: ``edges[i]`` is the upper bound of bucket i (the last may be infinite), not cumulative."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) or not self.edges:
            raise TraceError(f"histogram with {len(self.edges)} edges and {len(self.counts)} counts")
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)) or self.edges[0] <= 0:
            raise TraceError("histogram edges must rise from above 0")
        if any(not math.isfinite(count) or count < 0 for count in self.counts) or sum(self.counts) <= 0:
            raise TraceError("histogram counts must be finite, not negative, and not all zero")

    @classmethod
    def from_cumulative(cls, buckets: Sequence[tuple[float, float]]) -> Histogram:
        """From Prometheus buckets: (le, cumulative count), rising."""
        edges = tuple(edge for edge, _ in buckets)
        totals = [0.0, *(total for _, total in buckets)]
        return cls(edges, tuple(b - a for a, b in zip(totals, totals[1:], strict=False)))

    def sampler(self, rng: random.Random, *, longest: int, mean: float | None = None) -> _Sampler:
        """Draws lengths: a bucket by its count, then evenly on a log scale inside it.

        ``mean`` (from sum / count) fixes the mean of the draws, so that wide buckets do not distort the total.
        """
        return _Sampler(self, rng, longest, mean)


class _Sampler:
    def __init__(self, histogram: Histogram, rng: random.Random, longest: int, mean: float | None) -> None:
        self._rng = rng
        self._longest = longest
        lows = [1.0, *histogram.edges]
        self._ranges = [
            (max(1.0, low), min(high if math.isfinite(high) else max(2.0 * low, low + 1), float(longest)))
            for low, high in zip(lows, histogram.edges, strict=False)
        ]
        total, self._cumulative = 0.0, []
        for count in histogram.counts:
            total += count
            self._cumulative.append(total)
        self._scale = 1.0
        if mean is not None and mean > 0:
            expected = sum(
                count * _log_mean(*bounds) for count, bounds in zip(histogram.counts, self._ranges, strict=True)
            )
            self._scale = mean * total / expected

    def draw(self) -> int:
        at = bisect.bisect_right(self._cumulative, self._rng.random() * self._cumulative[-1])
        low, high = self._ranges[min(at, len(self._ranges) - 1)]
        value = low if high <= low else math.exp(self._rng.uniform(math.log(low), math.log(high)))
        return min(self._longest, max(1, round(value * self._scale)))


def _log_mean(low: float, high: float) -> float:
    return low if high <= low else (high - low) / math.log(high / low)


def from_histograms(
    rng: random.Random,
    count: int,
    rate: float,
    prompt: Histogram,
    output: Histogram,
    *,
    prompt_mean: float | None = None,
    output_mean: float | None = None,
    max_tokens: Histogram | int | None = None,
    longest: int = MAX_LENGTH,
    reused_share: float = 0.0,
    turns: int = 4,
    name: str = "captured histograms",
) -> Workload:
    """A load with the arrival rate (requests/s) and length histograms of a captured server.

    ``reused_share`` is the share of prompt tokens found in the prefix cache; it is spread over sessions of ``turns``.
    """
    assumed = ["Poisson arrivals at the mean rate", "prompt and output lengths drawn independently"]
    if not 0 <= reused_share < 1:
        raise TraceError(f"{name}: reused share {reused_share} must be at least 0 and below 1")
    draw_prompt = prompt.sampler(rng, longest=longest, mean=prompt_mean)
    draw_output = output.sampler(rng, longest=longest, mean=output_mean)
    draw_limit = max_tokens.sampler(rng, longest=longest) if isinstance(max_tokens, Histogram) else None
    if max_tokens is None:
        assumed.append(_ASSUMED_MAX)
    if reused_share:
        assumed.append(f"prefix reuse spread over sessions of {turns} turns")
    requests = []
    for number, arrival in enumerate(_arrivals(rng, count, rate)):
        tokens_in, tokens_out = draw_prompt.draw(), draw_output.draw()
        if draw_limit is not None:
            limit = draw_limit.draw()
        elif isinstance(max_tokens, int):
            limit = max_tokens
        else:
            limit = likely_max_tokens(tokens_out)
        session, prefix = None, 0
        if reused_share and turns > 1:
            # Sessions are dealt round robin so that the turns of one are far apart in the load.
            session = f"s{number % max(1, count // turns)}"
            prefix = min(tokens_in - 1, round(tokens_in * min(1.0, reused_share * turns / (turns - 1))))
        requests.append(Request(arrival, tokens_in, tokens_out, max(limit, tokens_out), session, prefix=prefix))
    return Workload(name, tuple(requests), tuple(assumed))


# --- from a trace -----------------------------------------------------------------------------------------------------


def read_trace(path: str | Path) -> Workload:
    """Read an Azure csv, a Mooncake jsonl or a generic csv, told apart by its first line. Raises TraceError, OSError."""
    with open(path, encoding="utf-8", newline="") as file:
        return parse_trace(file, name=Path(path).name)


def parse_trace(lines: Iterable[str], *, name: str) -> Workload:
    """As ``read_trace``, from lines that are already open."""
    stream = iter(lines)
    head = next(stream, None)
    if head is None:
        raise TraceError(f"{name}: empty file")
    head = head.removeprefix("\ufeff")
    if head.lstrip().startswith("{"):
        return _mooncake(head, stream, name)
    return _csv(head, stream, name)


_COLUMNS = {
    "arrival": ("arrival_s", "arrival", "timestamp", "arrived_at", "time", "t"),
    "prompt": (
        "prompt_tokens",
        "contexttokens",
        "input_tokens",
        "input_length",
        "num_prefill_tokens",
        "request tokens",
    ),
    "output": ("output_tokens", "generatedtokens", "output_length", "num_decode_tokens", "response tokens"),
    "max_tokens": ("max_tokens",),
    "session": ("session", "session_id"),
    "priority": ("priority",),
    "prefix": ("prefix", "prefix_tokens"),
}


def _csv(head: str, stream: Iterable[str], name: str) -> Workload:
    try:
        header = [cell.strip().lower() for cell in next(csv.reader([head]))]
    except csv.Error as error:
        raise TraceError(f"{name}:1: no csv header: {error}") from error
    at: dict[str, int] = {}
    for key, names in _COLUMNS.items():
        found = next((header.index(one) for one in names if one in header), None)
        if found is not None:
            at[key] = found
    missing = [key for key in ("arrival", "prompt", "output") if key not in at]
    if missing:
        wanted = ", ".join(f"{key} ({_COLUMNS[key][0]})" for key in missing)
        raise TraceError(f"{name}:1: no column for {wanted}; found {', '.join(header)}")
    rows: list[tuple[int, Request]] = []
    reader = csv.reader(stream)
    start: float | None = None
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise TraceError(f"{name}:{reader.line_num + 1}: not a csv line: {error}") from error
        line = reader.line_num + 1
        if not cells:
            continue
        where = f"{name}:{line}"
        if len(cells) != len(header):
            raise TraceError(f"{where}: {len(cells)} cells, the header has {len(header)}")
        arrival = _seconds(cells[at["arrival"]], where)
        if start is None:
            start = arrival
        prompt = _whole(cells[at["prompt"]], where, "prompt tokens")
        output = _whole(cells[at["output"]], where, "output tokens")
        limit = _whole(cells[at["max_tokens"]], where, "max_tokens") if "max_tokens" in at else None
        rows.append(
            _row(
                line,
                where,
                arrival - start,
                prompt,
                output,
                limit,
                session=cells[at["session"]] or None if "session" in at else None,
                priority=_whole(cells[at["priority"]], where, "priority") if "priority" in at else DEFAULT_PRIORITY,
                prefix=_whole(cells[at["prefix"]], where, "prefix") if "prefix" in at else 0,
            )
        )
    return _ordered(name, rows, () if "max_tokens" in at else (_ASSUMED_MAX,))


def _mooncake(head: str, stream: Iterable[str], name: str) -> Workload:
    rows: list[tuple[int, Request]] = []
    seen: dict[int, str] = {}
    start: float | None = None
    for line, text in enumerate((head, *stream), 1):
        if not text.strip():
            continue
        where = f"{name}:{line}"
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"{where}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise TraceError(f"{where}: not a JSON object")
        for key in ("timestamp", "input_length", "output_length"):
            if key not in record:
                raise TraceError(f"{where}: no {key}")
        arrival = _seconds(str(record["timestamp"]), where) / 1000.0
        if start is None:
            start = arrival
        prompt = _whole(record["input_length"], where, "input_length")
        output = _whole(record["output_length"], where, "output_length")
        session, shared = _shared_blocks(record.get("hash_ids", []), seen, where, line)
        prefix = min(shared * _MOONCAKE_BLOCK, prompt - 1)
        rows.append(_row(line, where, arrival - start, prompt, output, None, session=session, prefix=max(0, prefix)))
    return _ordered(name, rows, (_ASSUMED_MAX, "prefix reuse only from the latest turn with the same leading blocks"))


_MOONCAKE_BLOCK = 512


def _shared_blocks(hashes: object, seen: dict[int, str], where: str, line: int) -> tuple[str, int]:
    """(session, leading blocks seen before): a request joins the session that last held its longest known prefix."""
    if not isinstance(hashes, list) or not all(isinstance(one, int) for one in hashes):
        raise TraceError(f"{where}: hash_ids is not a list of numbers")
    shared = 0
    while shared < len(hashes) and hashes[shared] in seen:
        shared += 1
    # One shared block is the system prompt that all sessions begin with.
    session = seen[hashes[shared - 1]] if shared > 1 else f"session-{line}"
    for one in hashes:
        seen[one] = session
    return session, shared if shared > 1 else 0


def _row(
    line: int,
    where: str,
    arrival: float,
    prompt: int,
    output: int,
    limit: int | None,
    *,
    session: str | None = None,
    priority: int = DEFAULT_PRIORITY,
    prefix: int = 0,
) -> tuple[int, Request]:
    for what, value in (("prompt", prompt), ("output", output)):
        if not 1 <= value <= MAX_LENGTH:
            raise TraceError(f"{where}: {what} of {value} tokens is not a length")
    request = Request(
        arrival, prompt, output, likely_max_tokens(output) if limit is None else limit, session, priority, prefix
    )
    return line, request


def _ordered(name: str, rows: list[tuple[int, Request]], assumed: tuple[str, ...]) -> Workload:
    if not rows:
        raise TraceError(f"{name}: no requests")
    if any(b[1].arrival_s < a[1].arrival_s for a, b in zip(rows, islice(rows, 1, None), strict=False)):
        rows = sorted(rows, key=lambda row: row[1].arrival_s)
        first = rows[0][1].arrival_s
        rows = [(line, replace(one, arrival_s=one.arrival_s - first)) for line, one in rows]
        assumed = (*assumed, "lines were not in order of arrival and were sorted")
    return Workload(name, tuple(one for _, one in rows), assumed, tuple(line for line, _ in rows))


def _seconds(text: str, where: str) -> float:
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        try:
            # datetime reads six decimals at most; Azure writes seven.
            head, _, decimals = text.partition(".")
            moment = datetime.fromisoformat(f"{head}.{decimals[:6]}" if decimals else text)
            # Without a zone the clock is taken as UTC, so that no local change of the clock bends the trace.
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            raise TraceError(f"{where}: {text!r} is not a time") from None
    if not math.isfinite(value):
        raise TraceError(f"{where}: {text!r} is not a time")
    return value


def _whole(value: object, where: str, what: str) -> int:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise TraceError(f"{where}: {what} {value!r} is not a number") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, float) or not math.isfinite(value):
        raise TraceError(f"{where}: {what} {value!r} is not a number")
    if value != int(value):
        raise TraceError(f"{where}: {what} {value!r} is not a whole number")
    return int(value)
