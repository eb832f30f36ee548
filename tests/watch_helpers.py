"""What the tests of the watch share: made metrics pages, samples, a sampler that plays a list."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kvdoctor.pipeline import Options
from kvdoctor.rulebook.rule import Rule, load_rules
from kvdoctor.snapshot import Member, memory_member
from kvdoctor.watch.sample import LogBytes, Page, Sample
from kvdoctor.watch.watcher import Frame, Watcher

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
OPTIONS = Options(what_if="none")
T0 = 1_800_000_000.0


def rules() -> tuple[Rule, ...]:
    return load_rules(())


def page_text(
    *, usage: float = 0.5, running: float = 4, waiting: float = 0, preempted: float = 0, generated: float = 1000,
    start: float = T0 - 1000, engine: str = "0", model: str = "m", extra: Mapping[str, float] | None = None,
) -> str:  # fmt: skip
    label = f'{{engine="{engine}",model_name="{model}"}}'
    lines = [
        f"vllm:kv_cache_usage_perc{label} {usage}",
        f"vllm:num_requests_running{label} {running}",
        f"vllm:num_requests_waiting{label} {waiting}",
        f"vllm:num_preemptions_total{label} {preempted}",
        f"vllm:generation_tokens_total{label} {generated}",
        f"process_start_time_seconds {start}",
    ]
    lines += [f"{name}{label} {value}" for name, value in (extra or {}).items()]
    return "\n".join(lines) + "\n"


def page(time: float, text: str, server: str = "h:8000") -> Page:
    name = f"{server}/metrics.{time:.3f}.txt"
    origin = f"http://{server}/metrics"
    return Page(server, memory_member(name, text.encode(), kind="exposition", time=time, origin=origin))


def sample(at: float, *pages: Page, log: bytes = b"", others: Sequence[Member] = ()) -> Sample:
    logs = (LogBytes("server.log", log),) if log else ()
    return Sample(T0 + at, pages, tuple(others), logs)


def watcher(**named: float | bool) -> Watcher:
    return Watcher(rules(), OPTIONS, **named)  # type: ignore[arg-type]


class Played:
    """A sampler that gives a list and ends."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.left = list(samples)
        self.closed = 0
        self.refreshed = 0

    def next(self, stop: threading.Event) -> Sample | None:
        return self.left.pop(0) if self.left and not stop.is_set() else None

    def refresh(self) -> None:
        self.refreshed += 1

    def close(self) -> None:
        self.closed += 1


def texts(frame: Frame) -> list[str]:
    return [event.text for event in frame.events]
