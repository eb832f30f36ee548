"""Switches named by their opposite: ``--disable-x`` and ``--enforce-eager`` are on where the lever is off."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SWITCH = re.compile(r"--[a-z][\w-]*|\b[A-Z][A-Z0-9_]{3,}(?:=1)?")
_AGAINST = re.compile(r"(?:^|[-_])(?:no|disable|eager)(?:[-_]|$)", re.IGNORECASE)
_TURNED: Mapping[str, str] = {"on": "off", "off": "on", "down": "on"}
"""The lever's direction -> the switch's state. Less of what a switch forbids is none of it."""


def against(flag: str) -> str | None:
    """The switch in a flag's text that is on where its lever is off (``remove --disable-x, if it is set`` holds one too)."""
    found = _SWITCH.search(flag)
    if found is None:
        return None
    name = found.group().lstrip("-").removesuffix("=1")
    return found.group() if _AGAINST.search(name) else None


def state(direction: str) -> str | None:
    """``on`` or ``off`` for the switch, so that the lever goes in this direction; None where a switch cannot do that."""
    return _TURNED.get(direction)


def present(switch: str, args: Mapping[str, str], version_known: bool) -> str:
    """What the switch is now, in the form of a lever's start: such a switch is off unless it was set."""
    value = args.get(switch.lstrip("-").removesuffix("=1").replace("-", "_"), "").lower()
    if value:
        return "off" if value in ("false", "0", "no") else "on"
    return "off (default)" if version_known else "off (default, version not known)"
