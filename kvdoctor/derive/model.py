"""What the model's own configuration says: KV bytes per token, to compare with what the engine books."""

from __future__ import annotations

from kvdoctor.derive.view import View
from kvdoctor.facts import Unknown, bound, estimated, measured


def add(view: View) -> None:
    """Set ``kv.bytes_per_token_formula`` from a config.json in the snapshot (one GPU's part, as engines book it)."""
    config = view.target.config
    if config is None:
        return
    from kvdoctor.kvsize import kv_size

    facts, name = view.facts, "kv.bytes_per_token_formula"
    tp, pp = (view.target.setting(n) or "1" for n in ("tp", "pp"))
    if not tp.isdigit() or pp != "1":
        facts.set(name, Unknown(f"tensor parallel {tp}, pipeline parallel {pp}: the part of one GPU is not known"))
        return
    size = kv_size(config.value, dtype=view.target.setting("kv_dtype"), tp=int(tp))
    if size.per_token is None or size.per_request:
        facts.set(name, Unknown(f"{config.origin}: {'; '.join(size.unknown) or size.how}"))
        return
    low, high = float(size.per_token), float(size.per_token + size.window_per_token)
    # layers with a window hold their last tokens only: what a token costs on the average lies between with and without them
    fact = (
        bound(low, high, "c", config.origin, note=size.how)
        if low < high
        else estimated(low, "c", config.origin, note=size.how)
    )
    facts.set(name, fact)
    if "kv.hybrid_full" not in facts:
        facts.set("kv.hybrid_full", measured(False, "c", "no such line"))
