"""vLLM's facts as PromQL where they differ from the common form: who was hit how often, and what counts as finished."""

from __future__ import annotations

from kvdoctor.engines._promql import COMMON_PROMQL, bucket, by_reason, count, extend, rate
from kvdoctor.engines.base import Promql

_ALL = rate("preempt.per_request:count")
_TWICE = f"({_ALL} - {bucket('preempt.per_request', 1)})"
_THRICE = f"({_ALL} - {bucket('preempt.per_request', 2)})"
# The first bucket holds 0 and 1 together. Every further preemption of a request hit twice is in the sum, so the victims
# number at most sum - twice (and at most all requests).
_VICTIMS_AT_MOST = f"({rate('preempt.per_request:sum')} - {_TWICE} <= {_ALL} or {_ALL})"

_OBSERVED = "observer.preemptions"
_SEEN = rate(_OBSERVED + ":count")

PROMQL: tuple[Promql, ...] = extend(
    COMMON_PROMQL,
    (
        *by_reason(),
        Promql("req.waiting_capacity", 'sum by ({by}) (<req.waiting_reason,reason="capacity">)', since="0.20"),
        Promql("req.waiting_capacity", "sum by ({by}) (<req.waiting>)", until="0.19"),
        Promql("req.swapped_max", "sum by ({by}) (max_over_time(<req.swapped>[{win}]))", until="0.9.0"),
        Promql(
            "kv.host_usage_swing",
            "max by ({by}) (max_over_time(<kv.cpu_usage>[{win}]) - min_over_time(<kv.cpu_usage>[{win}]))",
            until="0.9.0",
        ),
        Promql(
            "preempt.kind",
            "max by ({by}) (max_over_time(<req.swapped>[{win}])) > 0",
            until="0.9.0",
            choice="swap",
        ),
        Promql("preempt.hit_share", f"({_SEEN} - {bucket(_OBSERVED, 0)}) / ({_SEEN} > 0)"),
        Promql("preempt.hit_share", f"{_TWICE} / ({_ALL} > 0)", end="lo"),
        Promql("preempt.hit_share", f"{_VICTIMS_AT_MOST} / ({_ALL} > 0)", end="hi"),
        Promql("preempt.hit_twice_share", f"({_SEEN} - {bucket(_OBSERVED, 1)}) / ({_SEEN} > 0)"),
        Promql("preempt.hit_twice_share", f"{_TWICE} / ({_ALL} > 0)"),
        Promql("preempt.hit_twice_share", "${preempt.count} == 0", until="0.29"),
        Promql(
            "preempt.hit_3plus_of_hit",
            f"({_SEEN} - {bucket(_OBSERVED, 2)}) / ({_SEEN} - {bucket(_OBSERVED, 0)} > 0)",
        ),
        Promql("preempt.hit_3plus_of_hit", f"{_THRICE} / ({_VICTIMS_AT_MOST} > 0)", end="lo"),
        Promql("recompute.tokens", count("observer.recomputed")),
        Promql("recompute.tokens", "${preempt.count} == 0"),
        Promql(
            "recompute.token_share",
            "${recompute.tokens} / (${recompute.tokens} + "
            + count("tok.prefill_effective")
            + " + ${tok.generated} > 0)",
            since="0.16",
        ),
        Promql(
            "recompute.token_share",
            "${recompute.tokens} / (${recompute.tokens} + ${tok.prompt} + ${tok.generated} > 0)",
            until="0.15",
        ),
        Promql(
            "recompute.prefill_share",
            "${recompute.tokens} / (${recompute.tokens} + " + count("tok.prefill_effective") + " > 0)",
            since="0.16",
        ),
        Promql(
            "recompute.prefill_share", "${recompute.tokens} / (${recompute.tokens} + ${tok.prompt} > 0)", until="0.15"
        ),
        Promql(
            "prefix.enabled",
            'max by ({by}) (<kv.info,enable_prefix_caching="True">) or 0 * max by ({by}) (<kv.info>)',
        ),
    ),
)
