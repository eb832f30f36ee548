"""LMDeploy's facts as PromQL: no counter of preemptions, so pressure is read from the pool alone."""

from __future__ import annotations

from kvdoctor.engines._promql import COMMON_PROMQL, by_reason, extend
from kvdoctor.engines.base import Promql

PROMQL: tuple[Promql, ...] = extend(
    COMMON_PROMQL, (*by_reason(), Promql("kv.pressure", "${kv.usage_max} >= bool 0.95"))
)
