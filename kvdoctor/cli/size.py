"""``kvdoctor size``: KV bytes per token, pool and concurrency from a model's config or a few numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdoctor.cli import EXIT_UNKNOWN, common

if TYPE_CHECKING:
    from kvdoctor.kvsize import KvSize

_UNITS = {"": 1.0, "b": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}  # fmt: skip


def size(
    config: Annotated[
        Path | None, typer.Argument(help="The model's config.json, or the folder that holds it.", show_default=False)
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", help="Layers, without a config.", show_default=False)
    ] = None,
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", help="KV heads.", show_default=False)] = None,
    head_dim: Annotated[int | None, typer.Option("--head-dim", help="Size of a head.", show_default=False)] = None,
    mla_rank: Annotated[
        int | None, typer.Option("--mla-rank", help="MLA: rank of the latent (kv_lora_rank).", show_default=False)
    ] = None,
    mla_rope: Annotated[int, typer.Option("--mla-rope", help="MLA: size of the rope key.")] = 64,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="auto, bf16, fp8, int8, q8_0 ...")] = "auto",
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel GPUs.")] = 1,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Memory for KV on one GPU: 16GiB, 20e9.", show_default=False)
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="Or: memory of the GPU ...", show_default=False)
    ] = None,
    fraction: Annotated[float, typer.Option("--fraction", help="... share of it the engine may take ...")] = 0.9,
    weights: Annotated[
        str | None, typer.Option("--weights", help="... weights on one GPU ...", show_default=False)
    ] = None,
    overhead: Annotated[
        str, typer.Option("--overhead", help="... activations, graphs and the rest, as logged at start.")
    ] = "2GiB",
    length: Annotated[
        list[int] | None, typer.Option("--length", help="Tokens of one request, prompt and output. Repeatable.")
    ] = None,
    block: Annotated[int, typer.Option("--block", help="Tokens per block: the pool holds whole blocks.")] = 16,
    format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
) -> None:
    """Size the KV cache: bytes per token, tokens in the pool, requests of a length at once.

    Exit code 3 when the architecture is not known: nothing is guessed.

    \b
    Examples:
      kvdoctor size config.json --pool 16GiB --length 8192
      kvdoctor size --layers 80 --kv-heads 8 --head-dim 128 --tp 4 --pool 40GiB
    """
    from kvdoctor.report.size import Sizing, render, to_json

    if format not in ("text", "json"):
        common.fail(f"--format {format}: choose text or json")
    lengths = length or [4096, 32_768]
    if min(lengths) < 1 or block < 1:
        common.fail("--length and --block are at least 1")
    kv = _kv(config, layers, kv_heads, head_dim, mla_rank, mla_rope, kv_dtype, tp)
    room, unknown = _pool(pool, gpu_memory, fraction, weights, overhead)
    tokens: int | None = None
    concurrency: dict[int, int | None] = {}
    if room is not None:
        tokens = kv.pool_tokens(room, length=max(lengths))
        if tokens is not None:
            tokens = tokens // block * block
        for one in lengths:
            # a request holds whole blocks
            concurrency[one] = kv.concurrency(room, -(-one // block) * block)
    result = Sizing(
        kv.per_token,
        kv.window_per_token,
        kv.window_tokens,
        kv.per_request,
        room,
        tokens,
        concurrency,
        kv.how,
        (*kv.unknown, *unknown),
    )
    common.write(to_json(result) if format == "json" else render(result), output)
    if kv.per_token is None:
        raise typer.Exit(EXIT_UNKNOWN)


def _kv(
    config: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    mla_rank: int | None,
    mla_rope: int,
    dtype: str,
    tp: int,
) -> KvSize:
    import json

    from kvdoctor.kvsize import KvSize, kv_bytes_per_token, kv_size, mla_bytes_per_token

    numbers = [layers, kv_heads, head_dim, mla_rank]
    if config is not None:
        if any(number is not None for number in numbers):
            common.fail("give either a config or numbers, not both")
        path = config / "config.json" if config.is_dir() else config
        try:
            data = json.loads(common.bytes_of(path))
        except OSError as error:
            common.fail(f"cannot read {path}: {error.strerror}")
        except (ValueError, RecursionError) as error:
            common.fail(f"{path} is not JSON: {error}")
        if not isinstance(data, dict):
            common.fail(f"{path} is not a JSON object")
        return kv_size(data, dtype=dtype, tp=tp)
    try:
        if mla_rank is not None:
            if layers is None:
                common.fail("--mla-rank also needs --layers")
            how = f"MLA: {layers} layers x ({mla_rank} latent + {mla_rope} rope), whole on every GPU"
            return KvSize(mla_bytes_per_token(layers, mla_rank, mla_rope, dtype), how)
        if layers is None or kv_heads is None or head_dim is None:
            common.fail("give a config.json, or --layers, --kv-heads and --head-dim, or --layers and --mla-rank")
        how = f"2 x {layers} layers x {-(-kv_heads // tp) if tp > 0 else kv_heads} KV heads on a GPU x {head_dim}"
        if tp > kv_heads:
            how += f" ({kv_heads} KV heads replicated over {tp} GPUs)"
        if dtype == "auto":
            how += "; 2 bytes per element assumed"
        return KvSize(kv_bytes_per_token(layers, kv_heads, head_dim, dtype, tp), how)
    except ValueError as error:
        common.fail(str(error))


def _pool(
    pool: str | None, gpu_memory: str | None, fraction: float, weights: str | None, overhead: str
) -> tuple[float | None, tuple[str, ...]]:
    """(bytes for KV on one GPU, or None; why it is not known)."""
    if pool is not None:
        if gpu_memory is not None or weights is not None:
            common.fail("give either --pool or --gpu-memory and --weights")
        return _bytes("--pool", pool), ()
    if gpu_memory is None:
        return None, ("the pool: give --pool, or --gpu-memory and --weights",)
    if weights is None:
        return None, ("the pool: --gpu-memory also needs --weights (the log says what loading took)",)
    if not 0 < fraction <= 1:
        common.fail(f"--fraction {fraction}: a share above 0, at most 1")
    left = _bytes("--gpu-memory", gpu_memory) * fraction - _bytes("--weights", weights) - _bytes("--overhead", overhead)
    if left <= 0:
        common.fail(f"nothing is left for KV: weights and overhead exceed the share by {-left / 2**30:.2f} GiB")
    return left, ()


def _bytes(option: str, text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d{1,2})?)\s*([a-z]{0,3})\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        common.fail(f"{option} {text}: write bytes or 16GiB, 16GB, 500MiB")
    return float(match[1]) * _UNITS[match[2]]
