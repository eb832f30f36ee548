"""TensorRT-LLM's facts as PromQL: the pool in blocks, requests by their reason of ending."""

from __future__ import annotations

from kvdoctor.engines._promql import COMMON_PROMQL, by_reason, extend
from kvdoctor.engines.base import Promql

PROMQL: tuple[Promql, ...] = extend(
    COMMON_PROMQL,
    (
        *by_reason(),
        Promql(
            "kv.pool_tokens",
            "sum by ({by}) (max by ({by}, {ranks}) (<kv.pool_blocks>) * max by ({by}, {ranks}) (<kv.block_tokens>))",
        ),
        # paused requests are told for the last step only, so a full pool is all there is to see
        Promql("kv.pressure", "${kv.usage_max} >= bool 0.95"),
    ),
)
