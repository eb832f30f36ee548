"""A Prometheus page in vLLM's names: families of series, histograms with vLLM's own edges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # fmt: skip
GAP_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_EDGES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
PREEMPTION_EDGES = (1, 2, 3, 4, 5, 10, 20)
OWN_PREEMPTION_EDGES = (0, 1, 2, 3, 4, 5, 10, 20)
TOKEN_EDGES = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def length_edges(longest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to the longest request."""
    edges: list[int] = []
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > longest:
                return tuple(edges)
            edges.append(step * power)
        power *= 10


class Hist:
    """Counts per bucket and the sum of what was observed."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(float(edge) for edge in edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` so many times."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Values observed."""
        return sum(self.counts)


class Page:
    """Lines of a metrics page. ``time_ms`` is put on every sample where the page's clock is not the wall's."""

    def __init__(self, time_ms: int | None = None) -> None:
        self._lines: list[str] = []
        self._stamp = "" if time_ms is None else f" {time_ms}"
        self._family = ""

    def family(self, name: str, kind: str, text: str) -> None:
        """Begin a family."""
        self._family = name
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def sample(self, value: float, labels: Mapping[str, str], suffix: str = "") -> None:
        """One series of the family at hand."""
        inside = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
        body = f"{{{inside}}}" if inside else ""
        self._lines.append(f"{self._family}{suffix}{body} {float(value)!r}{self._stamp}")

    def histogram(self, hist: Hist, labels: Mapping[str, str]) -> None:
        """Buckets, count and sum of the family at hand."""
        total = 0
        for edge, count in zip((*hist.edges, None), hist.counts, strict=True):
            total += count
            self.sample(total, {**labels, "le": "+Inf" if edge is None else repr(edge)}, "_bucket")
        self.sample(total, labels, "_count")
        self.sample(hist.sum, labels, "_sum")

    def text(self) -> str:
        """The whole page."""
        return "\n".join(self._lines) + "\n"
