"""How fast a large vLLM log is read, side by side with ``grep -c -F -f LITERALS`` into a pipe in the same run.

Run: ``python -m benchmarks.serverlog [--mb 150] [--rounds 3]`` (``--mb 500`` for the size of the goal: at most 6 x grep, at
most 60 MB above the start, flat). CPU seconds; grep's are those of its own process. Rows:

``mix``        stats lines, one request line and one access line per request, two probes a second
``access``     access lines and stats lines only (request logging off)
``prompts``    every line differs in its words: the worst case, prompts in the log
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row
from kvdoctor.engines.base import engines
from kvdoctor.parse import OOM_LITERALS
from kvdoctor.parse.serverlog import GENERIC, ParsedLog, scan

ROWS = ("mix", "access", "prompts")
_WORDS = (
    "the", "model", "answers", "a", "question", "about", "rivers", "and", "then", "lists", "every", "bridge", "that",
    "crosses", "them", "while", "another", "asks", "for", "poems",
)  # fmt: skip


def lines(row: str, seed: int = 7) -> Iterator[str]:
    """Log lines without end; ten seconds of server time give one stats line."""
    draw = random.Random(seed)
    second = port = 0
    start = "(APIServer pid=12720)"
    while True:
        second += 1
        clock = f"11-{1 + second // 86400 % 28:02d} {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        if second % 10 == 0:
            yield (
                f"{start} INFO {clock} [loggers.py:310] Engine 000: Avg prompt throughput: {draw.random() * 9000:.1f} "
                f"tokens/s, Avg generation throughput: {draw.random() * 900:.1f} tokens/s, Running: {draw.randrange(60)} "
                f"reqs, Waiting: {draw.randrange(9)} reqs, GPU KV cache usage: {draw.random() * 90:.1f}%, "
                f"Prefix cache hit rate: {draw.random() * 90:.1f}%\n"
            )
        for _ in range(8):
            port = port % 30000 + 1
            if row != "access":
                prompt = "" if row == "mix" else f"prompt: '{' '.join(draw.choices(_WORDS, k=40))}', "
                yield (
                    f"{start} INFO {clock} [logger.py:59] Received request chatcmpl-{draw.getrandbits(128):032x}: {prompt}"
                    "params: SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, "
                    "temperature=0.7, top_p=0.95, top_k=20, min_p=0.0, seed=None, stop=[], stop_token_ids=[], bad_words=[], "
                    "thinking_token_budget=None, include_stop_str_in_output=False, ignore_eos=False, "
                    f"max_tokens={draw.randrange(64, 4096)}, min_tokens=0, logprobs=None, prompt_logprobs=None, "
                    "skip_special_tokens=True, spaces_between_special_tokens=True, structured_outputs=None, "
                    "extra_args=None), lora_request: None.\n"
                )
            yield f'{start} INFO:     10.0.{port % 250}.{port % 199}:{30000 + port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        for path in ("/metrics", "/health"):
            yield f'{start} INFO:     10.0.0.9:{30000 + port} - "GET {path} HTTP/1.1" 200 OK\n'


def write(row: str, size: int, path: Path) -> int:
    """Write ``size`` bytes of a row's lines; returns the number of lines."""
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        for line in lines(row):
            file.write(line)
            written += len(line)
            count += 1
            if written >= size:
                return count
    return count


def grep_seconds(literals: Path, log: Path) -> float:
    """CPU seconds of grep, its output into a pipe."""
    before = os.times()
    subprocess.run(["grep", "-c", "-F", "-f", str(literals), str(log)], stdout=subprocess.PIPE, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def read(log: Path) -> tuple[float, float, ParsedLog]:
    """(CPU seconds, MB above the start at the highest, what was read)."""
    templates = engines()["vllm"].templates
    top = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with log.open("rb") as stream:
        parsed = scan(stream, templates)
    spent = time.process_time() - start
    return spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - top) / 1024, parsed


def rows(mb: int = 150, rounds: int = 2) -> Iterator[Row]:
    """The log of a server with request logging, in one pass."""
    literals = sorted({t.literal for t in (*engines()["vllm"].templates, *GENERIC)} | set(OOM_LITERALS))
    with tempfile.TemporaryDirectory() as folder:
        words, log = Path(folder, "literals"), Path(folder, "mix.log")
        words.write_text("\n".join(literals) + "\n", encoding="utf-8")
        count = write("mix", mb << 20, log)
        grep = min(grep_seconds(words, log) for _ in range(rounds))
        passes = [read(log) for _ in range(rounds)]
    best, above = min(spent for spent, *_ in passes), max(grown for _, grown, _ in passes)
    yield Row(
        f"server log of {mb} MB, {count:,} lines, {len(literals)} literals",
        "<= 6 x grep -c -F into a pipe, <= 60 MB above the start",
        f"{best:.1f} s against {grep:.2f} s, {best / grep:.1f} x, {above:.0f} MB",
        best <= 6 * grep and above <= 60,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--mb", type=int, default=150)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    chosen = options.parse_args()
    literals = sorted({t.literal for t in (*engines()["vllm"].templates, *GENERIC)} | set(OOM_LITERALS))
    print(f"{len(literals)} literals, {chosen.mb} MB, best of {chosen.rounds}")
    print(f"{'row':8} {'lines':>9} {'events':>7} {'grep s':>7} {'read s':>7} {'ratio':>6} {'MB above start':>15}")
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder, "literals")
        words.write_text("\n".join(literals) + "\n", encoding="utf-8")
        for row in chosen.rows:
            log = Path(folder, f"{row}.log")
            count = write(row, chosen.mb << 20, log)
            best: float | None = None
            above = 0.0
            grep = min(grep_seconds(words, log) for _ in range(chosen.rounds))
            for _ in range(chosen.rounds):
                spent, grown, parsed = read(log)
                best = spent if best is None else min(best, spent)
                above = max(above, grown)
            if best is not None:
                print(
                    f"{row:8} {count:9} {len(parsed.events):7} {grep:7.2f} {best:7.2f} {best / grep:6.1f} {above:15.0f}"
                )
            log.unlink()


if __name__ == "__main__":
    main()
