"""What stands around a server's lines by the time somebody hands the log over: each as a function from text to bytes.

Times in wrappers are those of the lines themselves (a line without one has that of the line before), as when a runtime
writes down what it gets at once.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from kvdoctor.parse.serverlog import parse_time

Wrapper = Callable[[str, int], bytes]
"""(text of a log, year of its yearless stamps) -> the bytes of the wrapped log."""

PIECE = 120
"""Where the runtimes below split long lines (they do at 16 KiB)."""


def moments(text: str, year: int) -> Iterator[tuple[str, datetime]]:
    """Each line with its time."""
    now = datetime(year, 1, 1, tzinfo=UTC).timestamp()
    for line in text.splitlines():
        when, _ = parse_time(line, year)
        now = when if when is not None else now + 0.001
        yield line, datetime.fromtimestamp(now, UTC)


def _nano(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def _each(make: Callable[[str, datetime], str]) -> Wrapper:
    def wrap(text: str, year: int) -> bytes:
        return "".join(make(line, moment) + "\n" for line, moment in moments(text, year)).encode()

    return wrap


def _pieces(line: str) -> list[str]:
    return [line[i : i + PIECE] for i in range(0, len(line), PIECE)] or [""]


def _docker(log: str, moment: datetime) -> str:
    return json.dumps(
        {"log": log, "stream": "stderr", "time": _nano(moment)}, separators=(",", ":"), ensure_ascii=False
    )


def _docker_split(line: str, moment: datetime) -> str:
    parts = _pieces(line)
    parts[-1] += "\n"
    return "\n".join(_docker(part, moment) for part in parts)


def _cri_split(line: str, moment: datetime) -> str:
    parts = _pieces(line)
    return "\n".join(
        f"{_nano(moment)} stderr {'F' if i == len(parts) - 1 else 'P'} {part}" for i, part in enumerate(parts)
    )


def _journal(line: str, moment: datetime) -> str:
    return f"{moment.strftime('%b %d %H:%M:%S')} gpu-node-7 vllm[4242]: {line}"


def _journal_json(line: str, moment: datetime) -> str:
    micro = str(int(moment.timestamp() * 1e6))
    return json.dumps({"__REALTIME_TIMESTAMP": micro, "PRIORITY": "6", "_PID": "4242", "MESSAGE": line})


def _journal_bytes(line: str, moment: datetime) -> str:
    micro = str(int(moment.timestamp() * 1e6))
    return json.dumps({"MESSAGE": list(line.encode()), "__REALTIME_TIMESTAMP": micro})


def _cloud(line: str, moment: datetime) -> str:
    return json.dumps({"insertId": "1b0xk", "textPayload": line, "timestamp": _nano(moment), "severity": "INFO"})


def _colours(line: str, moment: datetime) -> str:
    """Process prefixes, levels and whole messages in colour, as vLLM, uvicorn, tracing (Rust) and llama.cpp print them."""
    line = re.sub(r"^(\(\w[^)]*pid=\d+\))", "\x1b[0;36m\\1\x1b[0;0m", line)
    line = re.sub(r"\b(INFO|WARN|WARNING|ERROR)\b", "\x1b[32m\\1\x1b[0m", line, count=1)
    return f"\x1b[2m{line}\x1b[0m"


def _logfmt(line: str, moment: datetime) -> str:
    quoted = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'time="{moment.strftime("%Y-%m-%dT%H:%M:%SZ")}" level=info msg="{quoted}"'


def _encoded(encoding: str, mark: bytes = b"", end: str = "\n") -> Wrapper:
    def wrap(text: str, year: int) -> bytes:
        return mark + "".join(line + end for line in text.splitlines()).encode(encoding, "replace")

    return wrap


def _after(outer: Callable[[str, datetime], str], inner: Callable[[str, datetime], str]) -> Wrapper:
    return _each(lambda line, moment: outer(inner(line, moment), moment))


def _compose(line: str, moment: datetime) -> str:
    return f"vllm-server-1  | {line}"


def _cri(line: str, moment: datetime) -> str:
    return f"{_nano(moment)} stdout F {line}"


def _kubernetes(line: str, moment: datetime) -> str:
    return f"{_nano(moment)} {line}"


def _kubectl(line: str, moment: datetime) -> str:
    return f"[pod/vllm-7c9f-x2/server] {line}"


def _ray(text: str, year: int) -> bytes:
    """Workers of different servers have different process ids."""
    pid = 4_000 + zlib.crc32(text.encode()) % 50_000
    return "".join(f"(RayWorkerWrapper pid={pid}, ip=10.0.0.2) {line}\n" for line in text.splitlines()).encode()


WRAPPERS: dict[str, Wrapper] = {
    "docker-json": _each(lambda line, moment: _docker(line + "\n", moment)),
    "docker-json-split": _each(_docker_split),
    "compose": _each(_compose),
    "compose-colour": _each(lambda line, moment: f"\x1b[36mvllm-1  | \x1b[0m{line}"),
    "compose-times": _each(lambda line, moment: f"vllm-1  | {_nano(moment)} {line}"),
    "cri": _each(_cri),
    "cri-split": _each(_cri_split),
    "kubernetes": _each(_kubernetes),
    "kubectl-prefix": _each(_kubectl),
    "kubectl-prefix-times": _after(_kubectl, _kubernetes),
    "gke-level": _each(lambda line, moment: f"INFO {line}"),
    "ray": _ray,
    "journald": _each(_journal),
    "journald-json": _each(_journal_json),
    "journald-bytes": _each(_journal_bytes),
    "cloud-logging": _each(_cloud),
    "json-formatter": _each(
        lambda line, moment: json.dumps({"asctime": _nano(moment), "levelname": "INFO", "message": line})
    ),
    "logfmt": _each(_logfmt),
    "colours": _each(_colours),
    "crlf": _encoded("utf-8", end="\r\n"),
    "utf-8-mark": _encoded("utf-8", b"\xef\xbb\xbf"),
    "utf-16-le-mark": _encoded("utf-16-le", b"\xff\xfe", end="\r\n"),
    "utf-16-be-mark": _encoded("utf-16-be", b"\xfe\xff"),
    "utf-16-le": _encoded("utf-16-le"),
    "utf-16-be": _encoded("utf-16-be"),
    "latin-1-line": lambda text, year: b"caf\xe9 na\xefve\n" + text.encode(),
    "journald-compose": _after(_journal, _compose),
    "docker-cri": _after(lambda line, moment: _docker(line + "\n", moment), _cri),
    "kubectl-colours": _after(_kubectl, _colours),
}
"""Every wrapping by its name."""
