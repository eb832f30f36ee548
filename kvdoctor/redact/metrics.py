"""A metrics page -> the same page with only the series and labels the engine tables read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from kvdoctor.engines import recognise
from kvdoctor.engines.base import Engine
from kvdoctor.parse.exposition import Exposition
from kvdoctor.redact import words
from kvdoctor.redact.veil import Veil

NOTES = (
    "metrics: only series in the engine tables; help texts left out",
    "labels: numbers and known words; server names and others hashed; model names: last part of the path",
)

TARGET = "kvdoctor_target_info"
"""Carries the model and the hashed place that the page's first such sample named."""

_EDGE = re.compile(r"[-+]?(?:Inf|inf|\d{1,15}(?:\.\d{1,18})?(?:e[-+]?\d{1,3})?)")
_SMALL = re.compile(r"\d{1,7}")
_TYPES = words.known("counter gauge histogram summary untyped unknown info gaugehistogram stateset")


def redacted(page: Exposition, veil: Veil, forced: Engine | None) -> bytes | None:
    """The page's text; None when nothing on it is known."""
    names = [name for name in page.by_name if name in words.metric_names() and name not in page.created]
    engine = forced or recognise.of_page(page.by_name)
    lines = _target(page, veil)
    declared: set[str] = set()
    for name in names:
        lines += _declare(page, name, declared)
        info = name in words.info_names()
        for sample in page.by_name[name]:
            labels = veil.settings(sample.labels) if info else _labels(sample.labels, veil)
            lines.append(_line(name, labels, sample.value))
    lines += _created(page, engine, veil)
    lines += _recognised(page, names, engine)
    return ("\n".join(lines) + "\n").encode() if lines else None


def _target(page: Exposition, veil: Veil) -> list[str]:
    model: dict[str, str] = {}
    place: dict[str, str] = {}
    for samples in page.by_name.values():
        for sample in samples:
            if not model:
                model = {k: v for k in ("model_name", "model", "model_id") if (v := sample.labels.get(k))}
            if not place:
                place = {k: v for k, v in sample.labels.items() if k in words.PLACES}
        if model and place:
            break
    found = {**place, **model}
    return [_line(TARGET, _labels(found, veil), 1.0)] if found else []


def _declare(page: Exposition, name: str, declared: set[str]) -> list[str]:
    for family in (name, *(name.removesuffix(s) for s in ("_bucket", "_sum", "_count", "_total") if name.endswith(s))):
        kind = page.types.get(family)
        if kind in _TYPES and family not in declared:
            declared.add(family)
            return [f"# TYPE {family} {kind}"]
    return []


def _labels(labels: Mapping[str, str], veil: Veil) -> dict[str, str]:
    out: dict[str, str] = {}
    for name, value in labels.items():
        if name in words.MODELS:
            out[name] = veil.model(value)
        elif name in ("le", "quantile"):
            if _EDGE.fullmatch(value):
                out[name] = value
        elif name in words.PLACES:
            out[name] = veil.token(value)
        elif name in words.labels():
            plain = not value or _SMALL.fullmatch(value) or value.lower() in words.values()
            out[name] = value if plain else veil.token(value)
        else:
            out[veil.token(name)] = veil.token(value)
    return out


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    if math.isnan(value):
        number = "NaN"
    elif math.isinf(value):
        number = "+Inf" if value > 0 else "-Inf"
    else:
        number = repr(value)
    body = ",".join(f'{k}="{_escape(v)}"' for k, v in labels.items())
    return f"{name}{{{body}}} {number}" if body else f"{name} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _created(page: Exposition, engine: Engine | None, veil: Veil) -> list[str]:
    """Creation times tell a restart; of families nobody reads, only that they are there."""
    lines: list[str] = []
    for name in sorted(page.created):
        prefix = next((p for p in engine.metric_prefixes if name.startswith(p)), None) if engine else None
        if prefix is None:
            continue
        base = name.removesuffix("_created")
        read = {base, f"{base}_total", f"{base}_bucket"} & words.metric_names()
        wire = base if read else prefix + veil.token(base)
        lines.append(f"# TYPE {wire} counter")
        lines.append(_line(f"{wire}_created", {}, max(sample.value for sample in page.by_name[name])))
    return lines


def _recognised(page: Exposition, names: list[str], engine: Engine | None) -> list[str]:
    """What recognises the page stays: a nameless series where every series of an engine was left out."""
    left = list(names)
    lines: list[str] = []
    for other in recognise.side():
        if recognise.count(page.by_name, other) and not recognise.count(left, other):
            left.append(f"{other.metric_prefixes[0]}left_out")
    while engine is not None and recognise.of_page(left) is not engine and len(left) < len(page.by_name) + 64:
        left.append(f"{engine.metric_prefixes[0]}left_out_{len(left)}")
    for name in left[len(names) :]:
        lines.append(f"{name} 0")
    return lines
