"""KV size as text and as ``kvdoctor.size/1`` (the schema lies beside this file)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kvdoctor.frozen import frozen

SCHEMA = "kvdoctor.size/1"


@frozen
class Sizing:
    """Sizes on one GPU in bytes, lengths in tokens; None is unknown and ``unknown`` says why.

    ``concurrency``: length -> requests of that length that fit at once.
    """

    bytes_per_token: int | None
    window_bytes_per_token: int
    window_tokens: int
    bytes_per_request: int
    pool_bytes: float | None
    pool_tokens: int | None
    concurrency: Mapping[int, int | None]
    how: str
    unknown: tuple[str, ...]


def to_json(size: Sizing) -> str:
    """JSON text with a final newline; unknown is null."""
    known = size.bytes_per_token is not None
    document = {
        "schema": SCHEMA,
        "bytes_per_token": size.bytes_per_token,
        "window_bytes_per_token": size.window_bytes_per_token if known else None,
        "window_tokens": size.window_tokens if known else None,
        "bytes_per_request": size.bytes_per_request if known else None,
        "pool_bytes": size.pool_bytes,
        "pool_tokens": size.pool_tokens,
        "max_concurrency": {str(length): count for length, count in size.concurrency.items()},
        "how": size.how,
        "unknown": list(size.unknown),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def render(size: Sizing) -> str:
    """A few lines for a person."""
    lines = []
    if size.bytes_per_token is None:
        lines.append("KV bytes per token  unknown")
    else:
        lines.append(f"KV bytes per token  {size.bytes_per_token:,} B on each GPU")
        if size.window_tokens:
            lines.append(
                f"  and for the last {size.window_tokens:,} tokens of a request {size.window_bytes_per_token:,} B more each"
            )
        if size.bytes_per_request:
            lines.append(f"  and per request {size.bytes_per_request:,} B of state, whatever its length")
        if size.how:
            lines.append(f"  {size.how}")
    if size.pool_bytes is not None:
        tokens = "unknown" if size.pool_tokens is None else f"{size.pool_tokens:,} tokens"
        lines.append(f"pool                {size.pool_bytes / 2**30:.2f} GiB = {tokens}")
    for length, count in size.concurrency.items():
        lines.append(
            f"at {length:,} tokens".ljust(20) + ("unknown" if count is None else f"{count:,} requests at once")
        )
    lines += [f"not known: {reason}" for reason in size.unknown]
    return "\n".join(lines) + "\n"
