"""Replay a load under a policy: step-level continuous batching on a paged KV pool.

``simulate(workload, policy, pool_tokens=..., cost=...)`` gives a Result; ``what_if_cells`` compares policy, pool and
GPUs; ``Engine`` is the server itself, fed request by request. Nothing here knows where a load was captured.
"""

from __future__ import annotations

from .cost import PRESETS, CostModel, preset_cost
from .engine import Engine, Event, Gauges, SimulationError
from .limits import GrowthReserve, Limits
from .replay import Bench, Cell, Spread, WatermarkChoice, best_watermark, loads_for, what_if_cells
from .result import Goal, Result, percentile
from .run import simulate
from .workload import (
    GENERATORS,
    Histogram,
    Request,
    TraceError,
    Workload,
    from_histograms,
    mixture,
    parse_trace,
    read_trace,
)

__all__ = [
    "GENERATORS",
    "PRESETS",
    "Bench",
    "Cell",
    "CostModel",
    "Engine",
    "Event",
    "Gauges",
    "Goal",
    "GrowthReserve",
    "Histogram",
    "Limits",
    "Request",
    "Result",
    "SimulationError",
    "Spread",
    "TraceError",
    "WatermarkChoice",
    "Workload",
    "best_watermark",
    "from_histograms",
    "loads_for",
    "mixture",
    "parse_trace",
    "percentile",
    "preset_cost",
    "read_trace",
    "simulate",
    "what_if_cells",
]
