"""SGLang's facts as PromQL where they differ from the common form: retractions, what they cost, secondary pools."""

from __future__ import annotations

from kvdoctor.engines._promql import COMMON_PROMQL, either_full, extend, rate
from kvdoctor.engines.base import Promql

_SECONDARY = (
    'label_replace(max by ({by}) (max_over_time(<kv.secondary_usage#swa>[{win}])), "pool", "swa", "", "")',
    'label_replace(max by ({by}) (max_over_time(<kv.secondary_usage#mamba>[{win}])), "pool", "mamba", "", "")',
)
_FULL = ("(${kv.usage_max} >= bool 0.95)", "(${preempt.rate} > bool 0)")
_NONE = "0 * max by ({by}) (<req.running>)"


def _retracted(role: str) -> str:
    """A retraction counter per second. It does not exist before the first retraction.

    Absent beside other series is none, not unknown. Where it appears inside the window on a server that was there before, all
    it shows happened in the window; a rate alone would miss what it began with.
    """
    appeared = (
        f"(sum by ({{by}}) (<{role}>) / {{seconds}} and sum by ({{by}}) (<req.running> offset {{win}})"
        f" unless sum by ({{by}}) (<{role}> offset {{win}}))"
    )
    return f"({appeared} or {rate(role)} or {_NONE})"


PROMQL: tuple[Promql, ...] = extend(
    COMMON_PROMQL,
    (
        Promql("preempt.rate", _retracted("preempt.total")),
        Promql(
            "preempt.victim_computed_mean",
            f"({_retracted('retract.input_tokens')} + {_retracted('retract.output_tokens')}) / (${{preempt.rate}} > 0)",
        ),
        Promql(
            "recompute.tokens",
            f"clamp_min({rate('tok.prefill_compute')} - {rate('tok.prefill_effective')}, 0) * {{seconds}}",
            since="0.5.18",
        ),
        Promql(
            "recompute.tokens",
            f"({_retracted('retract.input_tokens')} + {_retracted('retract.output_tokens')}) * {{seconds}}",
            until="0.5.17",
        ),
        Promql("kv.secondary_usage_max", f"max by ({{by}}) ({_SECONDARY[0]} or {_SECONDARY[1]})", since="0.5.6"),
        Promql(
            "kv.secondary_usage_max",
            "max by ({by}) (max_over_time(<kv.secondary_usage#swa>[{win}]))",
            until="0.5.5",
        ),
        Promql("kv.pressure", either_full(*_FULL, "(${kv.secondary_usage_max} >= bool 0.95)"), since="0.5.8"),
        Promql("kv.pressure", "${kv.usage_max} >= bool 0.95", until="0.5.7"),
        Promql(
            "kv.evictable_share",
            "min by ({by}) (max by ({by}, {ranks}) (<kv.evictable_tokens>) / max by ({by}, {ranks}) (<kv.pool_tokens>))",
        ),
        Promql("pd.prefill_queue", "max by ({by}) (max_over_time(<pd.prefill_queue>[{win}]))"),
        Promql("pd.decode_queue", "max by ({by}) (max_over_time(<pd.decode_queue>[{win}]))"),
        Promql(
            "offload.usage",
            "max by ({by}) (<offload.used_tokens>) / (max by ({by}) (<offload.pool_tokens>) > 0)",
        ),
    ),
)
