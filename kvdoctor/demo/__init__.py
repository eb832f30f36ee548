"""An embedded engine: the simulator behind ``/metrics`` in vLLM's names and a log, to try everything without a GPU."""

from __future__ import annotations

from .scenario import SCENARIOS, Scenario
from .server import Demo, DemoServer

__all__ = ["SCENARIOS", "Demo", "DemoServer", "Scenario"]
