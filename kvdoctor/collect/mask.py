"""Secrets out of command lines, URLs and messages, before they are kept anywhere.

This is the first of two fences: what a command line, a URL or an error message is likely to carry never enters a snapshot.
The second, what may be written to disk at all, is the ``redact`` room.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

MASK = "***"

_SECRET_WORDS = frozenset({
    "password", "passwd", "passphrase", "pwd", "secret", "secrets", "apikey", "credential", "credentials",
    "authorization", "auth", "bearer", "signature", "sig",
})  # fmt: skip
# "token" is a secret in --hf-token and a count or an id in --eos-token-id, --max-token-budget
_TOKEN_OF_TEXT = frozenset({
    "id", "ids", "limit", "budget", "usage", "count", "size", "ratio", "length", "num", "mode", "type", "healing",
    "max", "min", "eos", "bos", "pad", "unk", "image", "audio", "video", "stop", "special", "extend", "sep", "mask",
    "per", "next", "first", "last", "output", "input", "prompt", "decode", "prefill", "step", "string", "str",
})  # fmt: skip
_TOKENS_OWNER = frozenset({"auth", "api", "access", "bearer", "hf", "refresh"})
# the keys of attention, not of a lock
_KEY_OF_ATTENTION = frozenset({"cache", "value", "values", "dtype", "states", "head", "heads", "dim", "quant", "scale"})
_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?|true|false|none|auto", re.I)


def is_secret_name(name: str, value: str | None = None) -> bool:
    """Does an option, variable or query of this name hold a secret? ``value`` tells counts from tokens."""
    words = [w.lower() for w in _WORD.findall(name)]
    if any(w in _SECRET_WORDS for w in words):
        return True
    for index, word in enumerate(words):
        around = set(words[:index]) | set(words[index + 1 :])
        if word in ("key", "keys") and not around & _KEY_OF_ATTENTION:
            return True
        if word == "token" and not around & _TOKEN_OF_TEXT:
            return value is None or not _NUMBER.fullmatch(value)
        if word == "tokens" and around & _TOKENS_OWNER:
            return True
    return False


_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^/\s@'\"]{1,500}@")
_BEARER = re.compile(r"\b(bearer|basic|digest)\s{1,4}[A-Za-z0-9._~+/=-]{8,}", re.I)
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}|nvapi-[A-Za-z0-9_-]{16,}|ya29\.[A-Za-z0-9_-]{16,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]{8,})"
)
_VALUE = r"\"(?:[^\"\\]|\\.){0,4000}\"|'[^']{0,4000}'|[^\s,;&}\]\"']{1,4000}"
_ASSIGNED = re.compile(rf"([A-Za-z_][\w.-]{{0,80}})([\"']?[ \t]{{0,40}}[=:][ \t]{{0,40}})({_VALUE})")
_FLAGGED = re.compile(rf"(?<!\S)(--?[A-Za-z][\w.-]{{0,80}})([ \t]{{1,40}})(?!-)({_VALUE})")


def mask_text(text: str) -> str:
    """``text`` with known token forms, URL credentials and the values of secret names replaced by ``***``."""

    def named(match: re.Match[str]) -> str:
        name, between, value = match.groups()
        bare = value.strip("\"'")
        if bare == MASK or not is_secret_name(name, bare):
            return match.group()
        quote = value[0] if value[0] in "\"'" else ""
        return f"{name}{between}{quote}{MASK}{quote}"

    text = _USERINFO.sub(rf"\1{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _KNOWN_TOKENS.sub(MASK, text)
    return _FLAGGED.sub(named, _ASSIGNED.sub(named, text))


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of secret options replaced; all values of an option that takes several."""
    out: list[str] = []
    hiding = False
    for index, word in enumerate(argv):
        if word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            following = argv[index + 1] if index + 1 < len(argv) else None
            secret = is_secret_name(name, value if equals else following)
            hiding = secret and not equals
            out.append(f"{name}={MASK}" if secret and equals else mask_text(word))
        else:
            out.append(MASK if hiding else mask_text(word))
    return tuple(out)


def mask_url(url: str) -> str:
    """A URL without user, password, fragment and without the values of secret query names."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return mask_text(url)
    host = parts.netloc.rpartition("@")[2]
    query = "&".join(
        f"{name}={MASK}" if equals and is_secret_name(name) else name + equals + value
        for name, equals, value in (item.partition("=") for item in parts.query.split("&") if item)
    )
    return mask_text(urlunsplit((parts.scheme, host, parts.path, query, "")))
