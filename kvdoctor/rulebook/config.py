"""Settings: extra rule folders, changed thresholds, mutes. Later sources win: file < environment < ``--set``.

A settings file is ``kvdoctor.toml``, or the table ``[tool.kvdoctor]`` of a ``pyproject.toml``::

    fail_on = "high"
    [rules]
    paths = ["our-rules"]                 # relative to the file
    [thresholds.KV200]                    # by id or by name
    near_done_share = 0.4
    [mute]
    KV809 = { until = 2026-12-31, why = "known, ticket 4711" }
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from kvdoctor.facts import suggest
from kvdoctor.findings import SEVERITIES
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.expr import did_you_mean
from kvdoctor.rulebook.rule import Rule, line_of

FAIL_ON = (*SEVERITIES, "never")
_KEYS = ("fail_on", "rules", "thresholds", "mute")
_ENV = {
    "KVDOCTOR_CONFIG": "path of the settings file",
    "KVDOCTOR_RULES": "extra rule folders, separated like PATH",
    "KVDOCTOR_SET": "KV200.near_done_share=0.4, several separated by commas",
    "KVDOCTOR_FAIL_ON": "critical, high, medium, low, info or never",
}


class ConfigError(ValueError):
    """A setting that cannot be used; ``str()`` names the place (file and line, variable or option), the key and what is right."""

    def __init__(self, place: str, key: str, message: str) -> None:
        super().__init__(f"{place}: {key}: {message}" if key else f"{place}: {message}")
        self.place = place
        self.key = key
        self.message = message


@frozen
class Change:
    """One changed threshold, before it is known whether the rule exists. ``rule`` is an id or a name."""

    rule: str
    threshold: str
    value: float
    origin: str


@frozen
class Mute:
    """A rule the user does not want to hear of until a day, and why."""

    rule: str
    until: date
    why: str
    origin: str


@dataclass(frozen=True, eq=False)
class Config:
    """All settings. ``warnings`` are for the report (expired mutes, unknown environment variables)."""

    rule_dirs: tuple[Path, ...] = ()
    changes: tuple[Change, ...] = ()
    mutes: tuple[Mute, ...] = ()
    fail_on: str | None = None
    file: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    rule_dirs: list[Path] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    mutes: list[Mute] = field(default_factory=list)
    fail_on: str | None = None
    warnings: list[str] = field(default_factory=list)


def load_config(
    start_dir: Path,
    explicit: Path | None = None,
    env: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    today: date | None = None,
) -> Config:
    """Settings for a run started in ``start_dir``.

    ``explicit`` (``--config``) or ``KVDOCTOR_CONFIG`` names the file; otherwise the nearest ``kvdoctor.toml``, or
    ``pyproject.toml`` with ``[tool.kvdoctor]``, in ``start_dir`` or above it. ``env`` are the variables to look at, ``sets``
    the ``--set`` options. A mute that ended before ``today`` (None: no mute is checked) becomes a warning.
    Raises :class:`ConfigError`.
    """
    variables = dict(env or {})
    named = explicit or (Path(variables["KVDOCTOR_CONFIG"]) if variables.get("KVDOCTOR_CONFIG") else None)
    text: str | None = None
    path = named or _nearest(start_dir)
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), "", f"cannot be read: {error}") from None
    return parse_config(text, path, variables, sets, today)


def _nearest(start: Path) -> Path | None:
    for folder in (start, *start.parents):
        own, project = folder / "kvdoctor.toml", folder / "pyproject.toml"
        if own.is_file():
            return own
        if project.is_file():
            try:
                if "tool.kvdoctor" in project.read_text(encoding="utf-8"):
                    return project
            except (OSError, UnicodeDecodeError):
                # somebody else's broken project file is not ours to complain about
                continue
    return None


def parse_config(
    text: str | None,
    path: Path | None,
    env: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    today: date | None = None,
) -> Config:
    """The same from the text of the settings file; reads nothing. Raises :class:`ConfigError`."""
    draft = _Draft()
    if text is not None and path is not None:
        _File(text, path, today, draft).read()
    _environment(dict(env or {}), draft)
    for item in sets:
        draft.changes.append(_change(item, "--set"))
    return Config(
        rule_dirs=tuple(draft.rule_dirs),
        changes=tuple(draft.changes),
        mutes=tuple(draft.mutes),
        fail_on=draft.fail_on,
        file=str(path) if text is not None else None,
        warnings=tuple(draft.warnings),
    )


class _File:
    def __init__(self, text: str, path: Path, today: date | None, draft: _Draft) -> None:
        self.text, self.path, self.today, self.draft = text, path, today, draft
        self.prefix: tuple[str, ...] = ("tool", "kvdoctor") if path.name == "pyproject.toml" else ()

    def place(self, *keys: str) -> str:
        line = line_of(self.text, *self.prefix, *keys)
        return f"{self.path}:{line}" if line else str(self.path)

    def fail(self, keys: Sequence[str], message: str) -> ConfigError:
        return ConfigError(self.place(*keys), ".".join(keys), message)

    def read(self) -> None:
        try:
            data: Any = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(str(self.path), "", f"not valid TOML: {error}") from None
        for key in self.prefix:
            data = data.get(key, {}) if isinstance(data, dict) else {}
        table = self.table(data, ())
        for key in table:
            if key not in _KEYS:
                near = did_you_mean(suggest(key, _KEYS)) or f" (keys here: {', '.join(_KEYS)})"
                raise self.fail((key,), f"unknown setting{near}")
        if "fail_on" in table:
            self.draft.fail_on = _fail_on(table["fail_on"], self.place("fail_on"), "fail_on")
        self.rules(self.table(table.get("rules", {}), ("rules",)))
        for rule, row in self.table(table.get("thresholds", {}), ("thresholds",)).items():
            for name, value in self.table(row, ("thresholds", rule)).items():
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
                    raise self.fail(("thresholds", rule, name), f"a number is wanted, not {value!r}")
                origin = self.place("thresholds", rule, name)
                self.draft.changes.append(Change(rule, name, float(value), origin))
        for rule, row in self.table(table.get("mute", {}), ("mute",)).items():
            self.mute(rule, row)

    def table(self, data: object, keys: Sequence[str]) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise self.fail(keys, "a table is wanted here")
        return data

    def rules(self, table: dict[str, Any]) -> None:
        for key in table:
            if key != "paths":
                raise self.fail(("rules", key), "unknown setting; did you mean paths?")
        paths = table.get("paths", [])
        if not isinstance(paths, list) or not all(isinstance(item, str) and item for item in paths):
            raise self.fail(("rules", "paths"), "a list of folders is wanted")
        self.draft.rule_dirs.extend(self.path.parent / item for item in paths)

    def mute(self, rule: str, row: object) -> None:
        keys = ("mute", rule)
        table = self.table(row, keys)
        for key in table:
            if key not in ("until", "why"):
                raise self.fail(keys, f"unknown key {key}{did_you_mean(suggest(key, ('until', 'why')))}")
        until, why = table.get("until"), table.get("why")
        if isinstance(until, datetime):
            until = until.date()
        if not isinstance(until, date):
            raise self.fail(keys, "a mute needs `until`, a day such as 2026-12-31")
        if not isinstance(why, str) or not why.strip():
            raise self.fail(keys, "a mute needs `why`")
        if self.today is not None and until < self.today:
            self.draft.warnings.append(
                f"{self.place(*keys)}: the mute of {rule} ended on {until} ({why}); it is not applied"
            )
            return
        self.draft.mutes.append(Mute(rule, until, why.strip(), self.place(*keys)))


def _environment(env: Mapping[str, str], draft: _Draft) -> None:
    import os

    for name in sorted(env):
        if name.startswith("KVDOCTOR_") and name not in _ENV:
            near = did_you_mean(suggest(name, _ENV)) or f" (known: {', '.join(_ENV)})"
            draft.warnings.append(f"unknown environment variable {name}{near}")
    if env.get("KVDOCTOR_RULES"):
        draft.rule_dirs.extend(Path(part) for part in env["KVDOCTOR_RULES"].split(os.pathsep) if part)
    if env.get("KVDOCTOR_FAIL_ON"):
        draft.fail_on = _fail_on(env["KVDOCTOR_FAIL_ON"], "environment", "KVDOCTOR_FAIL_ON")
    for item in env.get("KVDOCTOR_SET", "").split(","):
        if item.strip():
            draft.changes.append(_change(item, "KVDOCTOR_SET"))


def _fail_on(value: object, place: str, key: str) -> str:
    if not isinstance(value, str) or value not in FAIL_ON:
        raise ConfigError(place, key, f"{value!r} is not one of {', '.join(FAIL_ON)}")
    return value


def _change(item: str, place: str) -> Change:
    left, equals, right = item.strip().partition("=")
    rule, dot, name = left.strip().rpartition(".")
    if not equals or not dot or not rule or not name:
        raise ConfigError(place, item, "the form is RULE.THRESHOLD=NUMBER, such as KV200.near_done_share=0.4")
    try:
        value = float(right)
    except ValueError:
        raise ConfigError(place, left.strip(), f"a number is wanted, not {right.strip()!r}") from None
    if not math.isfinite(value):
        raise ConfigError(place, left.strip(), f"a finite number is wanted, not {right.strip()!r}")
    return Change(rule, name, value, f"{place} {item.strip()}")


def apply_config(rules: Sequence[Rule], config: Config) -> tuple[Rule, ...]:
    """The rules with changed thresholds, each with its origin. Raises :class:`ConfigError` for a rule, threshold or mute
    that does not exist."""
    keys = {rule.id: rule for rule in rules} | {rule.name: rule for rule in rules}
    for mute in config.mutes:
        _rule(keys, mute.rule, mute.origin)
    changes: dict[str, dict[str, tuple[float, str]]] = {}
    for change in config.changes:
        rule = _rule(keys, change.rule, change.origin)
        if change.threshold not in rule.thresholds:
            near = did_you_mean(suggest(change.threshold, rule.thresholds))
            names = ", ".join(rule.thresholds) or "none"
            raise ConfigError(
                change.origin,
                f"{change.rule}.{change.threshold}",
                f"no such threshold{near} (thresholds of {rule.id}: {names})",
            )
        changes.setdefault(rule.id, {})[change.threshold] = (change.value, change.origin)
    return tuple(rule.with_thresholds(changes[rule.id]) if rule.id in changes else rule for rule in rules)


def _rule(keys: Mapping[str, Rule], name: str, origin: str) -> Rule:
    if name not in keys:
        raise ConfigError(origin, name, f"no such rule{did_you_mean(suggest(name, keys))}")
    return keys[name]
