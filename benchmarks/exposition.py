"""How fast a 1 MB metrics body is read, side by side with prometheus_client (which is the reader to beat, by 10x).

Run: ``python -m benchmarks.exposition``. Prints CPU milliseconds of the best of several rounds; both readers run in turn in
one process, so a noisy machine hits both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.measure import Row, table
from kvdoctor.parse.exposition import Exposition, parse

TARGET_BYTES = 1_000_000
ROUNDS = 7


def body(size: int = TARGET_BYTES) -> str:
    """A body shaped like an engine's: gauges, counters and histograms for as many engines as fill ``size`` bytes."""
    edges = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0]
    families = [f"vllm:histogram_{n}_seconds" for n in range(12)]
    out: list[str] = []
    length = engine = 0
    while length < size:
        labels = f'engine="{engine}",model_name="meta-llama/Llama-3.1-70B-Instruct"'
        chunk = [f"vllm:gauge_{n}{{{labels}}} {n * 0.37 + engine}" for n in range(20)]
        for family in families:
            for step, edge in enumerate(edges):
                chunk.append(
                    f'{family}_bucket{{engine="{engine}",le="{edge}",model_name="meta-llama/Llama-3.1-70B-Instruct"}}'
                    f" {float(step * engine)}"
                )
            chunk.append(f"{family}_count{{{labels}}} {float(engine)}")
            chunk.append(f"{family}_sum{{{labels}}} {engine * 1.0831}")
        out += chunk
        length += sum(len(line) + 1 for line in chunk)
        engine += 1
    head = [f"# HELP {family} A histogram.\n# TYPE {family} histogram" for family in families]
    return "\n".join(head + out) + "\n"


def cpu_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds of the fastest of ``rounds`` runs."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def rows() -> Iterator[Row]:
    """Both readers on one body."""
    from prometheus_client.parser import text_string_to_metric_families

    text = body()
    ours = parse(text)
    if not isinstance(ours, Exposition):
        raise SystemExit(f"the benchmark body was not read: {ours.reason}")
    samples = sum(len(family) for family in ours.by_name.values())
    mine = cpu_seconds(lambda: parse(text))
    other = cpu_seconds(lambda: list(text_string_to_metric_families(text)), rounds=3)
    yield Row(
        f"exposition of {len(text) / 1e6:.2f} MB, {samples} samples",
        ">= 10 x prometheus_client",
        f"{mine * 1e3:.1f} ms against {other * 1e3:.0f} ms, {other / mine:.1f} x",
        other >= 10 * mine,
    )


if __name__ == "__main__":
    print(table(rows()))
