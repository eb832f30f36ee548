"""Names to keyed hashes and neutral names: equal things stay equal, and nothing can be turned back without the key."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from kvdoctor.redact import words

_LETTERS = "bcdfghjklmnpqrtv"
_NUMBER = re.compile(r"[-+]?\d{1,14}(?:\.\d{1,17})?(?:[eE][-+]?\d{1,3})?|[-+]?\.\d{1,17}")
_NOTHING = frozenset({"", "None", "null", "True", "False", "true", "false"})
_VERSION = re.compile(r"v?b?\d{1,8}(?:\.\d{1,6}){0,4}(?:[.-]?(?:dev|rc|post|a|b|alpha|beta)\.?\d{0,8}){0,3}")
_LOCAL = re.compile(
    r"-(?:unknown|[0-9a-f]{7,12})(?![A-Za-z0-9])|\+(?:cu|cpu|rocm|xpu|tpu|hip|g(?=[0-9a-f]{7}))[0-9a-f.]{0,16}(?![A-Za-z])"
)
_MODEL = re.compile(r"(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9._-]{1,96}(?::[A-Za-z0-9._-]{1,40})?")
_ORGANISATIONS = words.known(
    "meta-llama Qwen mistralai google deepseek-ai microsoft openai facebook nvidia NousResearch TheBloke unsloth "
    "RedHatAI neuralmagic ibm-granite CohereForAI CohereLabs HuggingFaceTB HuggingFaceH4 bigcode tiiuae THUDM "
    "zai-org moonshotai MiniMaxAI baidu tencent ByteDance-Seed stabilityai EleutherAI bartowski ggml-org lmsys "
    "internlm OpenGVLab 01-ai allenai amd intel apple baichuan-inc databricks mosaicml xai-org Salesforce "
    "sentence-transformers BAAI"
)


class Veil:
    """One capture's key. Tokens are ``x`` and consonants: valid in label names, names and paths, and never a word."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._seen: dict[str, str] = {}

    def token(self, text: str) -> str:
        """``x`` and 12 letters, the same for the same text in this capture."""
        known = self._seen.get(text)
        if known is None:
            digest = hmac.new(self._salt, text.encode("utf-8", "replace"), hashlib.sha256).digest()
            known = self._seen[text] = "x" + "".join(_LETTERS[b >> 4] + _LETTERS[b & 15] for b in digest[:6])
        return known

    def identifier(self, text: str) -> str:
        """Request ids: each of a list by itself, so that a request stays linkable."""
        return ",".join(self.token(part) for part in re.split(r"[\s,'\"\[\]]+", text) if part)

    def model(self, text: str) -> str:
        """``/data/acme/llama-3`` -> ``x.../llama-3``; a name on a public hub stays whole."""
        bare = text.strip().rstrip("/")
        folder, _, base = bare.rpartition("/")
        base = base if _MODEL.fullmatch(base) else self.token(base)
        if not folder:
            return base
        return f"{folder}/{base}" if folder in _ORGANISATIONS else f"{self.token(folder)}/{base}"

    def version(self, text: str) -> str:
        """The number, its stage, and the build's device or commit; anything else a packager put there is left out."""
        found = _VERSION.match(text)
        if not found:
            return self.token(text)
        local = _LOCAL.match(text, found.end())
        return found.group() + (local.group() if local else "")

    def value(self, text: str) -> str:
        """A setting's or label's value: numbers, switches and known words stay."""
        if text in _NOTHING or _NUMBER.fullmatch(text) or text.lower() in words.values():
            return text
        tail = text.rsplit(".", 1)[-1]
        if re.fullmatch(r"torch\.\w{1,20}|\w{1,40}\.[A-Z_]{1,40}", text) and tail.lower() in words.values():
            return text if text.startswith("torch.") else tail
        return self.token(text)

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Settings the tables know with plain values; of others, hashed names and values (equal ones stay equal)."""
        out: dict[str, str] = {}
        for name, text in given.items():
            if name in words.NEVER:
                continue
            if name in words.SETTINGS_BY_MODEL:
                out[name] = self._models(text)
            elif name == "version":
                out[name] = self.version(text)
            elif name in words.settings():
                digits = sum(c.isdigit() for c in text)
                out[name] = self.token(text) if name in words.in_words() and digits > 6 else self.value(text)
            else:
                out[self.token(name)] = self.token(text)
        return out

    def _models(self, text: str) -> str:
        """One model, or a list of served names."""
        names = re.findall(r"[\w./:@-]+", text) if text.strip()[:1] in ("[", "(") else [text]
        return ", ".join(self.model(name) for name in names)

    def command(self, text: str) -> str:
        """A command line: programs and flags that are known stay, the rest becomes ``*``; marks in what was cut are kept."""
        out: list[str] = []
        pieces = text.replace("\x00", " ").split()[:200]
        for index, piece in enumerate(pieces):
            word = words.program(piece) or self._flag(piece, pieces[index - 1] if index else "")
            if word != "*" or out[-1:] != ["*"]:
                out.append(word)
        if out in ([], ["*"]):
            out = [f"process-{self.token(text)}"]
        lower, kept = text.lower(), " ".join(out).lower()
        for mark in words.PROCESS_MARKS:
            if mark in lower and mark not in kept:
                out.append(mark)
                kept += f" {mark}"
        if "serve " in lower and "serve " not in " ".join(out).lower():
            out += ["serve", "*"]
        return " ".join(out)

    def _flag(self, piece: str, before: str) -> str:
        name, equals, given = piece.partition("=")
        flag = _setting_of(name)
        if flag:
            return f"{name}={self._given(flag, given)}" if equals else name
        owner = _setting_of(before)
        value = self._given(owner, piece) if owner else ""
        return value if value == piece or owner in words.SETTINGS_BY_MODEL else "*"

    def _given(self, name: str, text: str) -> str:
        return self.model(text) if name in words.SETTINGS_BY_MODEL else self.value(text)


def _setting_of(flag: str) -> str:
    """The known setting a flag names; empty for anything else."""
    name = flag.lstrip("-").replace("-", "_")
    return name if flag.startswith("--") and (name in words.settings() or name in words.SETTINGS_BY_MODEL) else ""


_URL = re.compile(r"(https?)://([^/\s]*)(/[^?#\s]*)?")
_ROTATED = re.compile(r"(?:[.-]\d{1,8})?(?:\.gz)?$")
_PATHS = words.known(
    "/metrics /prometheus/metrics /version /v1/models /props /slots /server_info /get_server_info /v1/loads /info "
    "/health"
)


class Origins:
    """Paths and addresses -> ``p1/log3``, ``http://host1:8000/metrics``. What a diagnosis tells by them stays: which share a
    folder or a server, their order, a log and its rotated pieces, the pages of replicas in one folder, the port."""

    def __init__(self, origins: Iterable[tuple[str, str]]) -> None:
        self._names: dict[str, str] = {}
        origins = list(origins)
        series = _series(origin for origin, kind in origins if kind != "log")
        places: dict[str, str] = {}
        stems: dict[str, str] = {}
        hosts: dict[str, str] = {}
        for number, (origin, kind) in enumerate(sorted(dict(origins).items(), key=lambda i: _natural(i[0])), 1):
            url = _URL.match(origin)
            if url:
                host = url.group(2).rpartition("@")[2]
                name, _, port = host.rpartition(":")
                name, port = (name, port) if port.isdigit() else (host, "")
                neutral = hosts.setdefault(name, f"host{len(hosts) + 1}")
                path = url.group(3) if url.group(3) in _PATHS else f"/{kind}{number}"
                self._names[origin] = f"{url.group(1)}://{neutral}{':' + port if port else ''}{path}"
                continue
            folder = os.path.dirname(origin)
            place = places.setdefault(folder, f"p{len(places) + 1}/") if folder else ""
            stem = _ROTATED.sub("", origin)
            if origin in series:
                self._names[origin] = f"{place}{kind}{series[origin]}"
            elif kind != "log":
                self._names[origin] = f"{place}{kind}{number}"
            elif stem in stems:
                self._names[origin] = f"{stems[stem]}.{number}"
            else:
                self._names[origin] = stems[stem] = f"{place}log{number}"

    def __getitem__(self, origin: str) -> str:
        return self._names[origin]


_END = r"(?:\.[a-z]{1,8}){0,2}$"
_TIMED = re.compile(
    r"^(.*?)([0-9]{9,13}(?:\.[0-9]{1,9})?|20[0-9]{2}-?[0-9]{2}-?[0-9]{2}[T_-]?[0-9]{2}[-:_]?[0-9]{2}[-:_]?[0-9]{2}Z?)"
    + _END,
    re.S,
)
_COUNTED = re.compile(r"^(.*?)([0-9]{1,6})" + _END, re.S)


def _series(origins: Iterable[str]) -> dict[str, str]:
    """Files named by time of which one folder holds several series: ``2-1795957400`` is a page of the second.

    Series that are counted alike instead (pod-a_1, pod-b_1) keep their places: ``2-1`` is the first page of the second.
    """
    names = sorted({origin for origin in origins if not _URL.match(origin)}, key=_natural)
    timed = {
        origin: f"-{number}-{time}"
        for parts in _parts(names, _TIMED)
        if all(len({t for _, t in files}) == len(files) for files in parts)
        for number, files in enumerate(parts, 1)
        for origin, time in files
    }
    counted = {
        origin: f"-{number}-{place}"
        for parts in _parts([name for name in names if name not in timed], _COUNTED)
        if len(parts[0]) > 1 and all([n for _, n in files] == [n for _, n in parts[0]] for files in parts)
        for number, files in enumerate(parts, 1)
        for place, (origin, _) in enumerate(files, 1)
    }
    return timed | counted


def _parts(names: Iterable[str], pattern: re.Pattern[str]) -> Iterator[list[list[tuple[str, str]]]]:
    """Folder by folder, the series of names with what ends each name; folders with one series are left out."""
    found: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for name in names:
        match = pattern.match(name)
        if match:
            found.setdefault(os.path.dirname(name), {}).setdefault(match.group(1), []).append((name, match.group(2)))
    for parts in found.values():
        if len(parts) > 1:
            yield list(parts.values())


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", text) if p]
