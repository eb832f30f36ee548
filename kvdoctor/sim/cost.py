"""What a step costs: seconds as a function of the tokens it computes and the context it reads.

``step = overhead + max(floor, token x tokens) + context x cached tokens read + attention x sum(tokens x context)``.
The floor is the time to read the weights once; it hides the compute of small batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from kvdoctor.frozen import frozen


@frozen
class CostModel:
    """Seconds per step and per token; ``assumed`` lists in words every constant that was not measured."""

    name: str
    overhead_s: float
    floor_s: float
    token_s: float
    context_s: float
    attention_s: float
    kv_bytes_per_token: int
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("overhead_s", "floor_s", "token_s", "context_s", "attention_s"):
            value = getattr(self, key)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"cost model {self.name}: {key} = {value} must be a finite number, not below 0")
        if self.overhead_s + max(self.floor_s, self.token_s) <= 0:
            raise ValueError(f"cost model {self.name}: a step would take no time (give a decode step time)")
        if self.kv_bytes_per_token <= 0:
            raise ValueError(f"cost model {self.name}: kv_bytes_per_token = {self.kv_bytes_per_token} must be above 0")

    def decode_step_s(self, running: int, context_tokens: int) -> float:
        """Seconds of one decode step of ``running`` requests over ``context_tokens`` cached tokens in all."""
        return self.overhead_s + max(self.floor_s, self.token_s * running) + self.context_s * context_tokens

    def prefill_s(self, tokens: int) -> float:
        """Seconds of compute for a prompt of ``tokens`` alone, without the fixed part of its steps."""
        return self.token_s * tokens + self.attention_s * tokens * tokens / 2

    @classmethod
    def calibrated(
        cls,
        *,
        decode_step_s: float | None = None,
        prefill_tokens_per_s: float | None = None,
        kv_bytes_per_token: int | None = None,
        base: str = "a100-8b",
    ) -> CostModel:
        """The preset ``base`` with what was measured put in; what was not stays and is listed as assumed.

        A measured decode step already holds overhead and KV reading, so both are taken as part of it.
        """
        preset = preset_cost(base)
        assumed: list[str] = []
        model = replace(preset, name="calibrated")
        if decode_step_s is None:
            assumed.append(f"decode step time from the preset {base}")
        else:
            if not math.isfinite(decode_step_s) or decode_step_s <= 0:
                raise ValueError(f"decode step time = {decode_step_s} s must be above 0")
            model = replace(model, overhead_s=0.0, floor_s=decode_step_s, context_s=0.0)
        if prefill_tokens_per_s is None:
            assumed.append(f"prefill speed of {1 / preset.token_s:,.0f} tokens/s from the preset {base}")
        else:
            if not math.isfinite(prefill_tokens_per_s) or prefill_tokens_per_s <= 0:
                raise ValueError(f"prefill speed = {prefill_tokens_per_s} tokens/s must be above 0")
            model = replace(model, token_s=1.0 / prefill_tokens_per_s, attention_s=0.0)
        if kv_bytes_per_token is None:
            assumed.append(f"{preset.kv_bytes_per_token:,} KV bytes per token from the preset {base}")
        else:
            model = replace(model, kv_bytes_per_token=kv_bytes_per_token)
        return replace(model, assumed=tuple(assumed))


def _preset(
    name: str, overhead_ms: float, floor_ms: float, token_us: float, tb_per_s: float, kv: int, attention_ns: float
) -> CostModel:
    return CostModel(
        name=name,
        overhead_s=overhead_ms / 1e3,
        floor_s=floor_ms / 1e3,
        token_s=token_us / 1e6,
        context_s=kv / (tb_per_s * 1e12),
        attention_s=attention_ns / 1e9,
        kv_bytes_per_token=kv,
        assumed=(f"all step costs from the preset {name}: {floor_ms} ms weight reading, {token_us} us/token compute",),
    )


PRESETS: Mapping[str, CostModel] = {
    model.name: model
    for model in (
        # weights / bandwidth = floor: 16 GB over 1.6 TB/s; 8B GQA at 128 KiB of KV per token
        _preset("a100-8b", 2.0, 10.0, 80.0, 1.6, 131_072, 3.5),
        # 16 GB over 3.35 TB/s; compute about 2.5 times an A100
        _preset("h100-8b", 2.0, 5.0, 32.0, 3.0, 131_072, 1.4),
        # 15 GB over 8 TB/s; 7B GQA with 4 KV heads at 56 KiB per token
        _preset("gb200-7b", 1.0, 2.5, 10.0, 7.0, 57_344, 0.6),
        # 35 GB of a 70B model per GPU at TP 4; 80 KiB of KV per token and GPU
        _preset("h100-70b-tp4", 4.0, 11.0, 75.0, 3.0, 81_920, 2.0),
    )
}
"""Named presets for when nothing was measured; round figures from public specifications, not measurements."""


def preset_cost(name: str) -> CostModel:
    """The preset cost model ``name``. Raises ValueError that lists the names."""
    if name not in PRESETS:
        raise ValueError(f"unknown cost preset {name!r} (choose from {', '.join(PRESETS)})")
    return PRESETS[name]
