"""KV bytes per token for the attention layouts whose formula is known; anything else is unknown, with the reason.

Every formula counts all layers and both K and V, for one GPU. Sizes are bytes, lengths tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.frozen import frozen

DTYPE_BYTES: Mapping[str, float] = {
    "auto": 2,
    "float32": 4,
    "fp32": 4,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "f16": 2,
    "f32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "int4": 0.5,
    "q8_0": 1.0625,
    "q4_0": 0.5625,
    "nvfp4": 0.5625,
}
"""Bytes per stored element; q8_0 and q4_0 carry one 2-byte scale per 32 values, nvfp4 one fp8 scale per 16."""


@frozen
class KvSize:
    """KV bytes on one GPU.

    ``per_token`` grows with every token; ``window_per_token`` only up to ``window_tokens`` per request;
    ``per_request`` is a fixed state (state-space layers). None = unknown, and ``unknown`` says why.
    """

    per_token: int | None
    how: str
    window_per_token: int = 0
    window_tokens: int = 0
    per_request: int = 0
    unknown: tuple[str, ...] = ()

    def bytes_for(self, tokens: int) -> int | None:
        """Bytes that one request of ``tokens`` holds, or None when the size is unknown."""
        if self.per_token is None:
            return None
        return self.per_token * tokens + self.window_per_token * min(tokens, self.window_tokens) + self.per_request

    def pool_tokens(self, pool_bytes: float, *, length: int | None = None) -> int | None:
        """Tokens that ``pool_bytes`` holds; with windows or states it depends on ``length``, the tokens per request."""
        if self.per_token is None:
            return None
        if not self.window_per_token and not self.per_request:
            return int(pool_bytes // self.per_token)
        if length is None:
            return None
        one = self.bytes_for(length)
        return None if not one else int(pool_bytes // one) * length

    def concurrency(self, pool_bytes: float, length: int) -> int | None:
        """Requests of ``length`` tokens that fit into ``pool_bytes`` at once."""
        one = self.bytes_for(length)
        return None if not one else int(pool_bytes // one)


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: str = "bf16", tp: int = 1) -> int:
    """Bytes per token and GPU for MHA, GQA and MQA: 2 x layers x heads on this GPU x head_dim x element bytes.

    KV heads are replicated once ``tp`` exceeds them. Raises ValueError for sizes below 1 or an unknown dtype.
    """
    for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim), ("tp", tp)):
        if value < 1:
            raise ValueError(f"{name} = {value} must be at least 1")
    return round(2 * layers * -(-kv_heads // tp) * head_dim * element_bytes(dtype))


def mla_bytes_per_token(layers: int, kv_lora_rank: int, rope_dim: int, dtype: str = "bf16") -> int:
    """Bytes per token of multi-head latent attention: one latent and one rope key per layer, whole on every TP rank."""
    for name, value in (("layers", layers), ("kv_lora_rank", kv_lora_rank)):
        if value < 1:
            raise ValueError(f"{name} = {value} must be at least 1")
    if rope_dim < 0:
        raise ValueError(f"rope_dim = {rope_dim} must not be negative")
    return round(layers * (kv_lora_rank + rope_dim) * element_bytes(dtype))


def element_bytes(dtype: str) -> float:
    """Bytes of one stored element of ``dtype``. Raises ValueError for a name that is not known."""
    key = dtype.lower().removeprefix("torch.")
    if key not in DTYPE_BYTES:
        raise ValueError(f"unknown KV dtype {dtype!r} (known: {', '.join(DTYPE_BYTES)})")
    return DTYPE_BYTES[key]


def kv_size(config: Mapping[str, object], *, dtype: str | None = None, tp: int = 1) -> KvSize:
    """KV size from a model's ``config.json`` (Hugging Face names). ``dtype`` "auto" or None follows the model's own."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    if tp < 1:
        return KvSize(None, "", unknown=(f"tensor parallel size {tp} must be at least 1",))
    notes: list[str] = []
    if dtype is None or dtype == "auto":
        own = config.get("torch_dtype", config.get("dtype"))
        if isinstance(own, str):
            dtype = own
        else:
            dtype = "bf16"
            notes.append("element size assumed 2 bytes (the config names no dtype)")
    try:
        size = element_bytes(dtype)
    except ValueError as error:
        return KvSize(None, "", unknown=(str(error),))
    layers = _whole(config, "num_hidden_layers", "n_layer", "num_layers")
    if layers is None:
        return KvSize(None, "", unknown=("the config has no number of layers (num_hidden_layers)",))
    rank = _whole(config, "kv_lora_rank")
    if rank is not None:
        if _whole(config, "index_head_dim") is not None:
            reason = "sparse attention keeps an index beside the latent; its size depends on the engine"
            return KvSize(None, "", unknown=(reason,))
        rope = _whole(config, "qk_rope_head_dim")
        if rope is None:
            return KvSize(None, "", unknown=("latent attention without qk_rope_head_dim",))
        how = f"MLA: {layers} layers x ({rank} latent + {rope} rope) x {size:g} bytes, whole on every GPU"
        return KvSize(mla_bytes_per_token(layers, rank, rope, dtype), "; ".join([how, *notes]))
    heads = _whole(config, "num_attention_heads", "n_head")
    kv_heads = _whole(config, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    if config.get("multi_query") is True and kv_heads is None:
        kv_heads = 1
    hidden = _whole(config, "hidden_size", "n_embd", "d_model")
    head_dim = _whole(config, "head_dim", "kv_channels")
    if head_dim is None and heads is not None and hidden is not None and hidden % heads == 0:
        head_dim = hidden // heads
    if kv_heads is None:
        kv_heads = heads
    if kv_heads is None or head_dim is None:
        return KvSize(None, "", unknown=("the config names neither KV heads nor what they could be computed from",))
    kinds = _layer_kinds(config, layers)
    if isinstance(kinds, str):
        return KvSize(None, "", unknown=(kinds,))
    full, windowed, state = kinds
    per_layer = kv_bytes_per_token(1, kv_heads, head_dim, dtype, tp)
    per_request = 0
    if state:
        found = _state_bytes(config, state, tp)
        if isinstance(found, str):
            return KvSize(None, "", unknown=(found,))
        per_request = found
        notes.append(f"{state} state layers hold {per_request:,} bytes per request")
    window = _whole(config, "sliding_window") if windowed else None
    if windowed and window is None:
        return KvSize(None, "", unknown=("windowed layers without sliding_window",))
    if windowed:
        notes.append(f"{windowed} layers keep only the last {window} tokens")
    here = -(-kv_heads // tp)
    how = f"2 x {full} layers x {here} KV heads on a GPU x {head_dim} x {size:g} bytes"
    if tp > kv_heads:
        how += f" ({kv_heads} KV heads replicated over {tp} GPUs)"
    return KvSize(
        full * per_layer,
        "; ".join([how, *notes]),
        windowed * per_layer,
        window if window is not None else 0,
        per_request,
    )


_FULL_KINDS = {"full_attention", "attention", "global_attention", "full", "global"}
_WINDOW_KINDS = {"sliding_attention", "local_attention", "sliding", "local", "sliding_window"}
_STATE_KINDS = {"mamba", "mamba2", "recurrent", "ssm"}
# Families whose only attention is the plain one, so that the formula holds without a per-layer list.
_PLAIN = {
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi", "phi3", "opt", "gpt2",
    "gpt_neox", "gpt_bigcode", "gptj", "falcon", "bloom", "mpt", "starcoder2", "stablelm", "internlm2", "baichuan",
    "chatglm", "glm", "glm4", "granite", "granitemoe", "olmo", "olmo2", "olmoe", "yi", "cohere", "gemma", "exaone",
    "nemotron", "minicpm", "smollm3", "ernie4_5", "ernie4_5_moe", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
    "arctic", "dbrx", "seed_oss", "hunyuan_v1_dense",
}  # fmt: skip


CONFIG_NUMBERS = frozenset({
    "num_hidden_layers", "n_layer", "num_layers", "kv_lora_rank", "index_head_dim", "qk_rope_head_dim", "num_attention_heads",
    "n_head", "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "multi_query", "hidden_size",
    "n_embd", "d_model", "head_dim", "kv_channels", "sliding_window", "use_sliding_window", "sliding_window_pattern",
    "attn_layer_period", "attn_layer_offset", "mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_n_heads",
})  # fmt: skip
"""Keys of a config.json that the formula reads as numbers or switches."""
CONFIG_WORDS: Mapping[str, frozenset[str]] = {
    "model_type": frozenset(_PLAIN) | {"jamba", "gemma2", "gemma3", "gemma3_text", "deepseek_v2", "deepseek_v3"},
    "torch_dtype": frozenset(DTYPE_BYTES),
    "dtype": frozenset(DTYPE_BYTES),
    "layer_types": frozenset(_FULL_KINDS | _WINDOW_KINDS | _STATE_KINDS),
    "layers_block_type": frozenset(_FULL_KINDS | _WINDOW_KINDS | _STATE_KINDS),
}
"""Keys that it reads as words, and the words it knows."""


def _layer_kinds(config: Mapping[str, object], layers: int) -> tuple[int, int, int] | str:
    """(full, windowed, state) layers, or why they cannot be told apart."""
    listed = config.get("layer_types", config.get("layers_block_type"))
    if isinstance(listed, list):
        if len(listed) != layers:
            return f"{len(listed)} layer types for {layers} layers"
        counts = [0, 0, 0]
        for kind in listed:
            for at, known in enumerate((_FULL_KINDS, _WINDOW_KINDS, _STATE_KINDS)):
                if kind in known:
                    counts[at] += 1
                    break
            else:
                return f"layer type {kind!r} is not known"
        return counts[0], counts[1], counts[2]
    kind = config.get("model_type")
    if kind == "jamba":
        period, offset = _whole(config, "attn_layer_period"), _whole(config, "attn_layer_offset")
        if period is None or offset is None:
            return "jamba without attn_layer_period and attn_layer_offset"
        full = sum(1 for layer in range(layers) if layer % period == offset)
        return full, 0, layers - full
    if kind in ("gemma2", "gemma3", "gemma3_text"):
        pattern = _whole(config, "sliding_window_pattern")
        if pattern is None:
            pattern = 2 if kind == "gemma2" else 6
        full = layers // pattern
        return full, layers - full, 0
    if kind is not None and kind not in _PLAIN:
        return f"model type {kind!r} is not known to use one plain attention layout"
    if kind is None:
        return "the config names no model_type"
    # Mistral's config keeps the key with null when the window is off; Qwen2 switches it with its own flag.
    if _whole(config, "sliding_window") is not None and config.get("use_sliding_window", True) is not False:
        return 0, layers, 0
    return layers, 0, 0


def _state_bytes(config: Mapping[str, object], state_layers: int, tp: int) -> int | str:
    """Bytes per request of the state-space layers on one GPU (Mamba 1: conv + ssm state), or why they are unknown."""
    inner, hidden = _whole(config, "mamba_expand"), _whole(config, "hidden_size")
    d_state, d_conv = _whole(config, "mamba_d_state"), _whole(config, "mamba_d_conv")
    if inner is None or hidden is None or d_state is None or d_conv is None:
        return "state layers without mamba_expand, mamba_d_state and mamba_d_conv"
    if _whole(config, "mamba_n_heads") is not None:
        return "Mamba 2 state layout is not known"
    width = inner * hidden // tp
    # The convolution keeps d_conv - 1 inputs in the model's 2-byte type, the state is kept in 4 bytes.
    return state_layers * width * ((d_conv - 1) * 2 + d_state * 4)


def _whole(config: Mapping[str, object], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
