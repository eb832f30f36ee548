"""SGLang's facts as PromQL where they differ from the common form: retractions, what they cost, secondary pools."""

from __future__ import annotations

from kvdoctor.engines._promql import COMMON_PROMQL, either_full, extend, rate
from kvdoctor.engines.base import Promql

_SECONDARY = (
    'label_replace(max by ({by}) (max_over_time(<kv.secondary_usage#swa>[{win}])), "pool", "swa", "", "")',
    'label_replace(max by ({by}) (max_over_time(<kv.secondary_usage#mamba>[{win}])), "pool", "mamba", "", "")',
)
_FULL = ("(${kv.usage_max} >= bool 0.95)", "(${preempt.rate} > bool 0)")
# The retraction counters do not exist before the first retraction: absent beside other series is none, not unknown.
_NONE = "0 * max by ({by}) (<req.running>)"


PROMQL: tuple[Promql, ...] = extend(
    COMMON_PROMQL,
    (
        Promql("preempt.rate", f"{rate('preempt.total')} or {_NONE}"),
        Promql(
            "preempt.victim_computed_mean",
            f"({rate('retract.input_tokens')} + {rate('retract.output_tokens')}) / (${{preempt.rate}} > 0)",
        ),
        Promql(
            "recompute.tokens",
            f"clamp_min({rate('tok.prefill_compute')} - {rate('tok.prefill_effective')}, 0) * {{seconds}}",
            since="0.5.18",
        ),
        Promql(
            "recompute.tokens",
            f"({rate('retract.input_tokens')} + {rate('retract.output_tokens')}) * {{seconds}} or {_NONE}",
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
