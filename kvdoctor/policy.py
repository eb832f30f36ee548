"""One frozen vocabulary for admission, eviction and restore of a KV pool.

The simulator, the recommendations and the engine tables all speak these keys. A policy file is TOML whose keys are the
dotted names in :data:`KEYS`, either quoted (``"victim.order" = "ratio"``) or nested (``[victim]`` / ``order = "ratio"``).
The names of two published configurations (a ``kv_eviction`` block and a value-function scheduler) are read as well.

Shares are 0..1, lengths are tokens, times are seconds, bandwidth is 1e9 bytes per second.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path

from kvdoctor.frozen import frozen

ORDERS = (
    "tail",
    "priority",
    "fewest-output",
    "last-started",
    "oldest",
    "largest",
    "ratio",
    "value",
    "value-published",
    "explicit",
    "random",
    "none",
)
EXPLICIT_CLASSES = ("completed_not_released", "short_low_remaining", "long_stalled")
ADMISSIONS = ("first_chunk", "full_prompt", "reserve")


class PolicyError(ValueError):
    """A policy that cannot be read: names the key, the value, what is allowed and, from a file, the line."""


@frozen
class Weights:
    """Weights of the value order, each term scaled to 0..1 before weighting."""

    age: float = 0.30
    progress: float = 0.25
    size: float = 0.25
    priority: float = 0.20
    evicted: float = 0.20


WEIGHT_PRESETS: Mapping[str, Weights] = {
    "balanced": Weights(),
    "online-chat": Weights(age=0.45, progress=0.25, size=0.10),
    "offline-batch": Weights(age=0.15, progress=0.25, size=0.40),
}


@frozen
class Policy:
    """Who is admitted, who is evicted, what is kept and how it comes back. Defaults: stock vLLM 0.19 and later.

    ``queue_high``/``queue_low`` of 1.0 mean that queueing has no hysteresis (stock); the published pair is .85/.70.
    ``reuse_ttl_s`` counts only with ``reuse = "ttl"``; ``restore_gb_per_s`` only with ``restore = "swap"``.
    """

    victim_order: str = "tail"
    victim_explicit: tuple[str, ...] = EXPLICIT_CLASSES
    victim_weights: Weights = Weights()
    protect_near_completion_tokens: int = 0
    protect_near_completion_share: float = 0.0
    protect_long_tokens: int = 0
    protect_priority_at_most: int = 0
    cooldown_mode: str = "none"
    cooldown_seconds: float = 30.0
    release: str = "whole"
    restore: str = "recompute"
    restore_gb_per_s: float = 25.0
    admission_mode: str = "full_prompt"
    admission_free_share: float = 0.0
    queue_high: float = 1.0
    queue_low: float = 1.0
    breaker_mode: str = "none"
    breaker_evictions_per_s: float = 5.0
    breaker_recompute_share: float = 0.20
    breaker_per_finished: float = 0.75
    breaker_floor: float = 0.70
    fallback: str = "queue_new_request"
    pool_kind: str = "paged"
    pool_block_tokens: int = 16
    pool_tiers_mib: tuple[int, ...] = (64, 256, 1024)
    pool_preallocate: tuple[int, ...] = (10, 5, 2)
    reuse: str = "lru"
    reuse_ttl_s: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            key = _KEY_OF[field.name]
            value = getattr(self, field.name)
            checked = KEYS[key](key, value)
            if checked != value:
                object.__setattr__(self, field.name, checked)
        if self.queue_low > self.queue_high:
            raise PolicyError(f"queue.low = {self.queue_low} is above queue.high = {self.queue_high}")
        if len(self.pool_tiers_mib) != len(self.pool_preallocate):
            raise PolicyError("pool.tiers_mib and pool.preallocate need one entry per tier each")
        if list(self.pool_tiers_mib) != sorted(set(self.pool_tiers_mib)):
            raise PolicyError(f"pool.tiers_mib = {list(self.pool_tiers_mib)}: sizes must rise")

    def patch(self, changes: Mapping[str, object]) -> Policy:
        """This policy with dotted keys replaced, as a rule's ``[fix.policy]`` states them. Raises PolicyError."""
        return replace(self, **_fields_from(changes, None))  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, object]:
        """Dotted key -> plain value, in the order of KEYS; ``from_dict`` reads it back."""
        return {key: _plain(getattr(self, name)) for key, name in _FIELD_OF.items()}

    def differences(self, other: Policy) -> dict[str, tuple[object, object]]:
        """Dotted key -> (this value, the other's), only where the two differ."""
        mine, theirs = self.as_dict(), other.as_dict()
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}

    def to_toml(self) -> str:
        """The policy as a TOML document with quoted dotted keys; ``from_toml`` reads it back unchanged."""
        lines = []
        for key, value in self.as_dict().items():
            if isinstance(value, dict):
                lines += [f'"{key}.{name}" = {_toml_value(part)}' for name, part in value.items()]
            else:
                lines.append(f'"{key}" = {_toml_value(value)}')
        return "\n".join(lines) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Policy:
        """Read dotted or nested keys (and the published names). Raises PolicyError."""
        return cls(**_fields_from(data, None))  # type: ignore[arg-type]

    @classmethod
    def from_toml(cls, text: str, *, name: str = "policy") -> Policy:
        """Read a policy file's text; errors start with ``name:line``."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            hint = ""
            if re.search(r"^\s*(restore|reuse)\s*=", text, re.M) and re.search(r"^\s*(restore|reuse)\.\w", text, re.M):
                hint = ' (quote dotted keys that extend a plain one: "restore.gb_per_s" = 25)'
            raise PolicyError(f"{name}: not TOML: {error}{hint}") from error
        try:
            return cls(**_fields_from(data, text))  # type: ignore[arg-type]
        except PolicyError as error:
            raise PolicyError(f"{name}:{error}" if str(error)[:1].isdigit() else f"{name}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy file. Raises PolicyError with the file name and line, OSError when it cannot be opened."""
        return cls.from_toml(Path(path).read_text(encoding="utf-8"), name=str(path))

    @classmethod
    def named(cls, name: str) -> Policy:
        """A policy by its short name, one of NAMED_POLICIES. Raises PolicyError that lists them."""
        if name not in NAMED_POLICIES:
            raise PolicyError(f"unknown policy {name!r}{_suggest(name, NAMED_POLICIES)}")
        return cls.from_dict(NAMED_POLICIES[name])


def _suggest(word: object, choices: Mapping[str, object] | tuple[str, ...]) -> str:
    near = get_close_matches(str(word), list(choices), n=1)
    start = f"; did you mean {near[0]!r}?" if near else ""
    return f"{start} (choose from {', '.join(choices)})"


def _choice(*choices: str) -> Callable[[str, object], object]:
    def check(key: str, value: object) -> object:
        if value not in choices:
            raise PolicyError(f"{key} = {value!r} is not a choice{_suggest(value, choices)}")
        return value

    return check


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[str, object], object]:
    def check(key: str, value: object) -> object:
        kind = "a whole number" if whole else "a number"
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise PolicyError(f"{key} = {value!r} must be {kind}")
        if whole and value != int(value):
            raise PolicyError(f"{key} = {value!r} must be {kind}")
        if not low <= value <= high:
            top = "" if high == math.inf else f" and at most {high:g}"
            raise PolicyError(f"{key} = {value!r} must be at least {low:g}{top}")
        return int(value) if whole else float(value)

    return check


def _numbers(low: int) -> Callable[[str, object], object]:
    one = _number(low, math.inf, whole=True)

    def check(key: str, value: object) -> object:
        if not isinstance(value, (list, tuple)) or not value:
            raise PolicyError(f"{key} = {value!r} must be a list of whole numbers")
        return tuple(one(f"{key}[{at}]", item) for at, item in enumerate(value))

    return check


def _explicit(key: str, value: object) -> object:
    if not isinstance(value, (list, tuple)) or not value:
        raise PolicyError(f"{key} = {value!r} must be a list of {', '.join(EXPLICIT_CLASSES)}")
    for item in value:
        if item not in EXPLICIT_CLASSES:
            raise PolicyError(f"{key}: {item!r} is not a choice{_suggest(item, EXPLICIT_CLASSES)}")
    if len(set(value)) != len(value):
        raise PolicyError(f"{key} = {list(value)!r} names a class twice")
    return tuple(value)


def _weights(key: str, value: object) -> object:
    if isinstance(value, Weights):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, str):
        if value not in WEIGHT_PRESETS:
            raise PolicyError(f"{key} = {value!r} is not a preset{_suggest(value, WEIGHT_PRESETS)}")
        return WEIGHT_PRESETS[value]
    if not isinstance(value, Mapping):
        raise PolicyError(f"{key} = {value!r} must be a table or one of {', '.join(WEIGHT_PRESETS)}")
    names = tuple(field.name for field in fields(Weights))
    one = _number(0, 1)
    parts: dict[str, float] = {}
    for name, part in value.items():
        if name not in names:
            raise PolicyError(f"unknown key {key}.{name}{_suggest(name, names)}")
        parts[name] = one(f"{key}.{name}", part)  # type: ignore[assignment]
    return Weights(**parts)


KEYS: Mapping[str, Callable[[str, object], object]] = {
    "victim.order": _choice(*ORDERS),
    "victim.explicit": _explicit,
    "victim.weights": _weights,
    "protect.near_completion_tokens": _number(0, math.inf, whole=True),
    "protect.near_completion_share": _number(0, 1),
    "protect.long_tokens": _number(0, math.inf, whole=True),
    "protect.priority_at_most": _number(0, math.inf, whole=True),
    "cooldown.mode": _choice("none", "seconds", "regained"),
    "cooldown.seconds": _number(0, math.inf),
    "release": _choice("whole", "tail_blocks"),
    "restore": _choice("recompute", "swap"),
    "restore.gb_per_s": _number(1e-6, math.inf),
    "admission.mode": _choice(*ADMISSIONS),
    "admission.free_share": _number(0, 0.95),
    "queue.high": _number(0, 1),
    "queue.low": _number(0, 1),
    "breaker.mode": _choice("none", "latched", "floor"),
    "breaker.evictions_per_s": _number(0, math.inf),
    "breaker.recompute_share": _number(0, 1),
    "breaker.per_finished": _number(0, math.inf),
    "breaker.floor": _number(0, 1),
    "fallback": _choice("queue_new_request", "evict_anyway", "abort"),
    "pool.kind": _choice("paged", "tiered", "first_fit", "best_fit", "buddy"),
    "pool.block_tokens": _number(1, 65536, whole=True),
    "pool.tiers_mib": _numbers(1),
    "pool.preallocate": _numbers(0),
    "reuse": _choice("lru", "ttl"),
    "reuse.ttl_s": _number(0, math.inf),
}
"""Every key a policy may have, with the check of its value."""

_FIELD_OF = {key: key.replace(".", "_") for key in KEYS}
_KEY_OF = {name: key for key, name in _FIELD_OF.items()}

PUBLISHED_NAMES: Mapping[str, str] = {
    "preempt_mode": "restore",
    "victim_order": "victim.explicit",
    "protect": "protect.near_completion_tokens, protect.long_tokens, protect.priority_at_most",
    "fallback": "fallback",
    "weights": "victim.weights",
    "highWatermark": "queue.high",
    "lowWatermark": "queue.low",
}
"""Names of the published configurations and the keys they set."""

NAMED_POLICIES: Mapping[str, Mapping[str, object]] = {
    "stock": {},
    "first-chunk": {"admission.mode": "first_chunk"},
    "prefix-cached": {"release": "tail_blocks"},
    "watermark": {"admission.free_share": 0.02, "release": "tail_blocks"},
    "fewest-output": {"victim.order": "fewest-output"},
    "no-evict": {"victim.order": "none", "admission.mode": "reserve"},
    "ratio": {
        "victim.order": "ratio",
        "protect.near_completion_tokens": 512,
        "protect.near_completion_share": 0.25,
        "cooldown.mode": "regained",
    },
    "value": {"victim.order": "value"},
    "value-published": {"victim.order": "value-published", "queue.high": 0.85, "queue.low": 0.70},
}
"""Short names for the policies that are compared most, as patches of the stock policy."""

_CONDITION = re.compile(r"\s*(remaining|computed|priority)\s*(<=|<|>=|>)\s*(\d+)\s*")


def _protect_conditions(key: str, value: list[object]) -> dict[str, object]:
    """The published list form: ``["remaining < 512", "priority <= 1", "computed > 26000"]``."""
    allowed = {
        ("remaining", "<"): "protect.near_completion_tokens",
        ("priority", "<="): "protect.priority_at_most",
        ("computed", ">"): "protect.long_tokens",
    }
    out: dict[str, object] = {}
    for item in value:
        match = _CONDITION.fullmatch(item) if isinstance(item, str) else None
        target = allowed.get((match[1], match[2])) if match else None
        if match is None or target is None:
            raise PolicyError(
                f"{key}: {item!r} is not understood (write 'remaining < 512', 'priority <= 1' or 'computed > 26000')"
            )
        out[target] = int(match[3])
    if "protect.near_completion_tokens" in out:
        # The published rule is absolute; the share of computed tokens is this project's addition.
        out["protect.near_completion_share"] = 0.0
    return out


def _published(key: str, value: object) -> dict[str, object] | None:
    """The dotted keys that a published name stands for, or None when ``key`` is no published name."""
    if key == "preempt_mode":
        modes: dict[object, dict[str, object]] = {
            "recompute": {"restore": "recompute"},
            "swap": {"restore": "swap"},
            "full": {"release": "whole"},
            "tail_blocks": {"release": "tail_blocks"},
        }
        if value not in modes:
            raise PolicyError(f"preempt_mode = {value!r} is not a choice (choose from {', '.join(map(str, modes))})")
        return modes[value]
    if key == "victim_order":
        return {"victim.order": "explicit", "victim.explicit": value}
    if key == "protect" and isinstance(value, list):
        return _protect_conditions(key, value)
    if key in ("highWatermark", "high_watermark"):
        return {"queue.high": value}
    if key in ("lowWatermark", "low_watermark"):
        return {"queue.low": value}
    if key == "weights":
        renamed = {"remain": "progress"}
        if isinstance(value, Mapping):
            value = {renamed.get(str(name), name): part for name, part in value.items()}
        return {"victim.order": "value", "victim.weights": value}
    return None


def _flatten(data: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    out: dict[str, object] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        published = None if prefix else _published(key, value)
        if published is not None:
            for target, part in published.items():
                # A key written out in full outranks what a published name implies for it.
                out.setdefault(target, part)
        elif not prefix and name == "kv_eviction" and isinstance(value, Mapping):
            out.update(_flatten(value))
        elif key.startswith("victim.weights."):
            table = out.setdefault("victim.weights", {})
            if not isinstance(table, dict):
                raise PolicyError(f"{key}: victim.weights is already set to {table!r}")
            table[key.removeprefix("victim.weights.")] = value
        elif isinstance(value, Mapping) and key not in KEYS:
            out.update(_flatten(value, f"{key}."))
        else:
            out[key] = dict(value) if isinstance(value, Mapping) else value
    return out


def _line_of(text: str | None, key: str) -> str:
    """``"12: "`` for the line that sets ``key`` (by its last words), or an empty string."""
    if text is None:
        return ""
    words = key.split(".")
    for start in range(len(words)):
        tail = r"\s*\.\s*".join(re.escape(word) for word in words[start:])
        match = re.search(rf'^[\s"\']*{tail}["\']?\s*=', text, re.M)
        if match:
            return f"{text.count(chr(10), 0, match.end()) + 1}: "
    return ""


def _fields_from(data: Mapping[str, object], text: str | None) -> dict[str, object]:
    out: dict[str, object] = {}
    for key, value in _flatten(data).items():
        if key == "admission.mode" and value == "watermark":
            # The watermark mode is full_prompt with a free share; the share itself says whether it is on.
            value = "full_prompt"
            if not _flatten(data).get("admission.free_share"):
                raise PolicyError(
                    f"{_line_of(text, key)}admission.mode = 'watermark' needs admission.free_share above 0"
                )
        if key not in KEYS:
            raise PolicyError(f"{_line_of(text, key)}unknown key {key}{_suggest(key, KEYS)}")
        try:
            out[_FIELD_OF[key]] = KEYS[key](key, value)
        except PolicyError as error:
            raise PolicyError(f"{_line_of(text, key)}{error}") from None
    return out


def _plain(value: object) -> object:
    if isinstance(value, Weights):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _toml_value(value: object) -> str:
    return json.dumps(value)
