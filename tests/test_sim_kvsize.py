"""KV bytes per token, layout by layout; what is not known stays unknown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.kvsize import kv_bytes_per_token, kv_size, mla_bytes_per_token

LLAMA_70B = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "torch_dtype": "bfloat16",
}


def test_70b_gqa() -> None:
    assert kv_bytes_per_token(80, 8, 128) == 327_680
    assert kv_bytes_per_token(80, 8, 128) * 32_768 == 10 * 2**30
    size = kv_size(LLAMA_70B)
    assert size.per_token == 327_680
    assert size.bytes_for(32_768) == 10 * 2**30
    assert size.concurrency(80 * 2**30, 32_768) == 8
    assert size.pool_tokens(80 * 2**30) == 262_144


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "dtype", "tp", "expected"),
    [
        (32, 8, 128, "bf16", 1, 131_072),  # 8B GQA
        (28, 4, 128, "bf16", 1, 57_344),  # 7B with 4 KV heads: 16 GiB hold 299,593 tokens
        (32, 8, 128, "fp8", 1, 65_536),
        (80, 8, 128, "bf16", 8, 40_960),
        (80, 8, 128, "bf16", 16, 40_960),  # heads are replicated, not split further
        (40, 40, 128, "fp16", 1, 819_200),  # 13B MHA
        (12, 1, 64, "float32", 4, 6_144),  # MQA
    ],
)
def test_known_models(layers: int, heads: int, dim: int, dtype: str, tp: int, expected: int) -> None:
    assert kv_bytes_per_token(layers, heads, dim, dtype, tp) == expected


def test_the_logged_pool_of_a_7b_model() -> None:
    # 16 GiB for KV were logged as 299,584 tokens in blocks of 16.
    assert 16 * 2**30 // kv_bytes_per_token(28, 4, 128) // 16 * 16 == 299_584


def test_the_logged_cache_of_a_small_llama_cpp_model() -> None:
    # "size = 16.00 MiB (1024 cells, 4 layers, 4/4 seqs), K (f16): 8.00 MiB, V (f16): 8.00 MiB", 8 KV heads of 32
    assert kv_bytes_per_token(4, 8, 32, "f16") * 1024 * 4 == 16 * 2**20
    assert kv_bytes_per_token(4, 8, 32, "q8_0") == 2176


def test_mla() -> None:
    assert mla_bytes_per_token(61, 512, 64) == 70_272
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    size = kv_size(config, dtype="bf16", tp=8)
    assert size.per_token == 70_272
    assert "whole on every GPU" in size.how


def test_a_sliding_window_stops_growing() -> None:
    size = kv_size({**LLAMA_70B, "model_type": "mistral", "num_hidden_layers": 32, "sliding_window": 4096})
    assert size.per_token == 0
    assert size.bytes_for(1000) == 1000 * 131_072
    assert size.bytes_for(100_000) == 4096 * 131_072
    assert size.pool_tokens(2**30) is None
    off = kv_size({**LLAMA_70B, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False})
    assert off.per_token == 327_680


def test_mixed_layers() -> None:
    config = {
        **LLAMA_70B,
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    size = kv_size(config)
    one = 2 * 8 * 64 * 2
    assert (size.per_token, size.window_per_token, size.window_tokens) == (2 * one, 2 * one, 128)
    assert size.bytes_for(1000) == 2 * one * 1000 + 2 * one * 128
    assert size.pool_tokens(2**30, length=1000) == 2**30 // (2 * one * 1128) * 1000


def test_hybrid_state_layers_cost_per_request() -> None:
    config = {
        "model_type": "jamba",
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_expand": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
    }
    size = kv_size(config)
    assert size.per_token == 4096
    assert size.per_request == 7 * 8192 * (3 * 2 + 16 * 4)
    assert size.bytes_for(10) == 40_960 + size.per_request


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "number of layers"),
        ({"num_hidden_layers": 2}, "KV heads"),
        ({**LLAMA_70B, "model_type": "brand_new"}, "'brand_new' is not known"),
        ({key: value for key, value in LLAMA_70B.items() if key != "model_type"}, "no model_type"),
        ({**LLAMA_70B, "layer_types": ["full_attention"]}, "1 layer types for 80 layers"),
        ({**LLAMA_70B, "layer_types": ["linear_attention"] * 80}, "'linear_attention' is not known"),
        ({**LLAMA_70B, "torch_dtype": "float3"}, "unknown KV dtype"),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}, "index"),
        ({"model_type": "jamba", "num_hidden_layers": 8}, "KV heads"),
    ],
)
def test_unknown_is_unknown_and_says_why(config: dict[str, object], reason: str) -> None:
    size = kv_size(config)
    assert size.per_token is None
    assert size.bytes_for(10) is None
    assert size.pool_tokens(1e9) is None
    assert size.concurrency(1e9, 10) is None
    assert any(reason in line for line in size.unknown)


def test_a_text_config_inside_a_multimodal_one_counts() -> None:
    assert kv_size({"model_type": "llava", "text_config": LLAMA_70B}).per_token == 327_680


def test_fp8_halves_and_an_unnamed_dtype_is_said() -> None:
    assert kv_size(LLAMA_70B, dtype="fp8").per_token == 163_840
    bare = {key: value for key, value in LLAMA_70B.items() if key != "torch_dtype"}
    assert "assumed 2 bytes" in kv_size(bare).how


@given(st.integers(1, 200), st.integers(1, 128), st.integers(1, 512), st.integers(1, 64))
@settings(deadline=None)
def test_tp_never_adds_and_never_splits_a_head(layers: int, heads: int, dim: int, tp: int) -> None:
    whole, part = kv_bytes_per_token(layers, heads, dim), kv_bytes_per_token(layers, heads, dim, tp=tp)
    assert part * tp >= whole
    assert part <= whole
    assert part % (layers * dim * 4) == 0


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "tp"])
def test_sizes_below_one_are_refused(field: str) -> None:
    sizes = {"layers": 2, "kv_heads": 2, "head_dim": 64, "tp": 1, field: 0}
    with pytest.raises(ValueError, match=field):
        kv_bytes_per_token(**sizes)  # type: ignore[arg-type]
