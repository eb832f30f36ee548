"""TGI's facts as PromQL: its pool is told in tokens, reserved for the whole request at admission."""

from __future__ import annotations

from kvdoctor.engines._promql import COMMON_PROMQL, extend
from kvdoctor.engines.base import Promql

PROMQL: tuple[Promql, ...] = extend(
    COMMON_PROMQL,
    (
        Promql("kv.usage_last", "max by ({by}) (<kv.used_tokens> / <kv.pool_tokens>)"),
        Promql("kv.usage_max", "max by ({by}) (max_over_time(<kv.used_tokens>[{win}]) / <kv.pool_tokens>)"),
        Promql("kv.usage_mean", "max by ({by}) (avg_over_time(<kv.used_tokens>[{win}]) / <kv.pool_tokens>)"),
        # reserved in full is pressure only while somebody waits for it
        Promql("kv.pressure", "(${kv.usage_max} >= bool 0.95) * (${req.waiting_max} > bool 0)"),
    ),
)
