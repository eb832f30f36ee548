"""Findings a team has accepted for a while: which rule, on which snapshots, until when and why.

A baseline is a TOML file::

    [[accept]]
    rule = "KV301"                 # id or name
    snapshot = "nightly-*"         # optional glob on the snapshot's name
    until = 2026-12-31
    why = "known, ticket 4711"
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date, datetime
from fnmatch import fnmatchcase

from kvdoctor.facts import suggest
from kvdoctor.frozen import frozen
from kvdoctor.rulebook.config import ConfigError
from kvdoctor.rulebook.rule import Rule


@frozen
class Accepted:
    """One accepted finding (the rule's name)."""

    rule: str
    snapshot: str
    until: date
    why: str


@frozen
class Baseline:
    """Accepted findings that still hold, and what has to be said about the file."""

    accepted: tuple[Accepted, ...] = ()
    warnings: tuple[str, ...] = ()

    def for_snapshot(self, name: str) -> tuple[tuple[str, str], ...]:
        """(rule, why) of everything accepted on this snapshot."""
        return tuple((a.rule, a.why) for a in self.accepted if fnmatchcase(name, a.snapshot))


def read_baseline(text: str, file: str, rules: Sequence[Rule], today: date) -> Baseline:
    """Parse a baseline; an expired entry or one of a vanished rule is a warning, a malformed one a :class:`ConfigError`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, "", f"is not TOML: {error}") from error
    unknown = set(data) - {"accept"}
    if unknown:
        raise ConfigError(file, sorted(unknown)[0], "a baseline holds [[accept]] tables only")
    names = {key: rule.name for rule in rules for key in (rule.id, rule.name)}
    accepted: list[Accepted] = []
    warnings: list[str] = []
    for number, row in enumerate(data.get("accept", ()), 1):
        place = f"{file}: accept {number}"
        if not isinstance(row, dict):
            raise ConfigError(place, "accept", "must be a table: rule, until, why")
        extra = set(row) - {"rule", "snapshot", "until", "why"}
        if extra:
            near = suggest(sorted(extra)[0], ("rule", "snapshot", "until", "why"))
            raise ConfigError(place, sorted(extra)[0], "unknown key" + (f"; did you mean {near[0]}?" if near else ""))
        for key in ("rule", "until", "why"):
            if not row.get(key):
                raise ConfigError(place, key, "is required: say which rule, until when, and why")
        until = row["until"]
        if isinstance(until, datetime):
            until = until.date()
        if not isinstance(until, date):
            raise ConfigError(place, "until", "must be a date such as 2026-12-31")
        rule = str(row["rule"])
        if rule not in names:
            near = suggest(rule, names)
            warnings.append(
                f"{place}: there is no rule {rule} any more"
                + (f" (did you mean {', '.join(near)}?)" if near else "")
                + ": entry ignored"
            )
            continue
        if until < today:
            warnings.append(f"{place}: {rule} was accepted until {until} only: it counts again")
            continue
        accepted.append(Accepted(names[rule], str(row.get("snapshot", "*")), until, str(row["why"])))
    return Baseline(tuple(accepted), tuple(warnings))
