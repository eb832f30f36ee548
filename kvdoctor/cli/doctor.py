"""``kvdoctor doctor``: what this installation can see on this host. Exit codes: 0, or 2 for a wrong option."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvdoctor.cli import common
from kvdoctor.frozen import frozen

if TYPE_CHECKING:
    from kvdoctor.collect.nvml import GpuTake, Nvml

SCHEMA = "kvdoctor.doctor/1"
State = Literal["ok", "absent", "refused"]
TOOL_TIMEOUT_S = 5.0
IMPORT_TIMEOUT_S = 30.0
KEPT = 1 << 16


@frozen
class Sight:
    """One thing looked at. ``state``: it works; it is not there; it is there and does not answer or may not be read.

    ``detail`` says what was seen or why not, ``needed_for`` what kvdoctor does with it, ``how`` how to get it (empty when it
    works).
    """

    group: str
    name: str
    state: State
    detail: str
    needed_for: str
    how: str = ""


def doctor(
    format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Say what kvdoctor can see on this host, what each thing is needed for, and how to get it.

    \b
    Examples:
      kvdoctor doctor
      kvdoctor doctor --format json
    """
    if format not in ("text", "json"):
        common.fail(f"--format {format}: choose text or json")
    sights = look()
    common.write(to_json(sights) if format == "json" else to_text(sights, common.width(), common.colour()), None)


def look(
    *, nvml: Nvml | None = None, proc_root: str = "/proc", environ: Mapping[str, str] | None = None
) -> list[Sight]:
    """Look at everything, side by side; each look has its own time limit. ``nvml`` stands in for this host's in tests."""
    from concurrent.futures import ThreadPoolExecutor
    from functools import partial

    variables = os.environ if environ is None else environ
    jobs: list[Callable[[], Sight]] = [
        _version,
        _rules,
        _engines,
        partial(_settings, variables),
        partial(_nvml, nvml),
        _nvidia_smi,
        partial(
            _library, "torch", "import torch; print(torch.__version__, 'with' if torch.cuda.is_available() else 'without', 'CUDA')",
            "kvdoctor probe (fragmentation on the device)",
            "pip install 'kvdoctor[probe]' in an environment with CUDA, best the server's own",
        ),
        partial(
            _library, "numba", "import numba; print(numba.__version__)", "faster replays: simulate, --what-if full",
            "pip install 'kvdoctor[fast]'; without it replays are slower and give the same numbers",
        ),
        partial(
            _library, "textual", "import textual; print(textual.__version__)", "kvdoctor watch as a screen",
            "it comes with kvdoctor: pip install --force-reinstall kvdoctor",
        ),
        _journald,
        _docker,
        _kubectl,
        partial(_processes, proc_root),
        _kernel_log,
        partial(_terminal, variables),
    ]  # fmt: skip
    with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


# ---- this installation


def _version() -> Sight:
    import platform

    from kvdoctor import __version__

    detail = f"{__version__}, Python {platform.python_version()} ({sys.executable})"
    return Sight("installation", "kvdoctor", "ok", detail, "this program")


def _rules() -> Sight:
    from kvdoctor.rulebook.rule import RuleError, load_rules

    need = "verdicts"
    try:
        rules = load_rules()
    except RuleError as error:
        return Sight("installation", "rules", "refused", str(error), need, "install kvdoctor again")
    return Sight("installation", "rules", "ok", f"{len(rules)} shipped rules", need)


def _engines() -> Sight:
    newest = newest_versions()
    told = ", ".join(f"{name} {version}" if version else name for name, version in newest.items())
    return Sight(
        "installation", "engines", "ok", f"{told} (newest version at which something changed)",
        "names of metrics, log lines and flags; a newer server is read with the newest known names",
    )  # fmt: skip


def newest_versions() -> dict[str, str | None]:
    """The newest version that each server's table tells apart from others; None where it tells none apart."""
    from kvdoctor.engines.base import engines, version_key

    found: dict[str, str | None] = {}
    for name, engine in sorted(engines().items()):
        if engine.side:
            continue
        ends: list[tuple[str | None, str | None]] = [
            *((n.since, n.until) for series in engine.series for n in series.names),
            *((e.since, e.until) for e in engine.templates),
            *((e.since, e.until) for e in engine.levers),
            *((e.since, e.until) for e in engine.gaps),
            *((e.since, e.until) for e in engine.commands),
            *((e.since, e.until) for e in engine.promql),
        ]
        known = {key: text for pair in ends for text in pair if text and (key := version_key(text))}
        found[name] = known[max(known)] if known else None
    return found


def _settings(environ: Mapping[str, str]) -> Sight:
    from datetime import UTC, datetime
    from pathlib import Path

    from kvdoctor.rulebook.config import ConfigError, load_config

    need = "own thresholds, mutes with an expiry, own rules"
    try:
        config = load_config(Path.cwd(), None, environ, (), datetime.now(UTC).date())
    except ConfigError as error:
        return Sight("installation", "settings", "refused", str(error), need, "correct it at the place named")
    if config.file is None:
        return Sight(
            "installation", "settings", "absent", "no settings file here or above: defaults are used", need,
            "write kvdoctor.toml, or [tool.kvdoctor] in pyproject.toml, in this folder or one above it",
        )  # fmt: skip
    said = f"{config.file}: {len(config.changes)} changed thresholds, {len(config.mutes)} mutes, {len(config.rule_dirs)} rule folders"
    return Sight("installation", "settings", "ok", "; ".join((said, *config.warnings)), need)


def _library(name: str, code: str, need: str, how: str) -> Sight:
    """A library, imported in a child: a broken or hanging one costs this run nothing else."""
    from importlib.util import find_spec

    from kvdoctor.collect.command import run

    if find_spec(name) is None:
        return Sight("libraries", name, "absent", f"not installed for {sys.executable}", need, how)
    output = run([sys.executable, "-c", code], timeout_s=IMPORT_TIMEOUT_S, cap=KEPT, merge=True)
    lines = [line.strip() for line in output.data.decode("utf-8", "replace").splitlines() if line.strip()]
    if output.timed_out:
        return Sight("libraries", name, "refused", f"importing it takes longer than {IMPORT_TIMEOUT_S:g} s", need, how)
    if output.problem or not lines:
        # the last line of a traceback is the error itself
        return Sight(
            "libraries", name, "refused", f"it cannot be imported: {(lines or [output.problem])[-1][:200]}", need, how
        )
    return Sight("libraries", name, "ok", lines[-1][:200], need)


# ---- GPUs


def _nvml(nvml: Nvml | None) -> Sight:
    from kvdoctor.collect.nvml import Nvml

    opened = nvml if nvml is not None else Nvml(timeout_s=TOOL_TIMEOUT_S)
    try:
        taken = opened.read(0.0, "doctor")
    finally:
        opened.close()
    return _gpus("NVML", taken, "memory, processes, clocks and throttling of each GPU")


def _nvidia_smi() -> Sight:
    from kvdoctor.collect import nvidia_smi

    taken = nvidia_smi.read(0.0, "doctor", timeout_s=2 * TOOL_TIMEOUT_S)
    return _gpus("nvidia-smi", taken, "the same where NVML cannot be used; kvdoctor falls back to it by itself")


def _gpus(name: str, taken: GpuTake, need: str) -> Sight:
    from kvdoctor.parse import gpu

    reports = [
        r for m in taken.members if isinstance(r := gpu.parse(m.read().decode("utf-8", "replace")), gpu.GpuReport)
    ]
    devices = [reading for report in reports for reading in report.readings]
    trouble = taken.missing[0] if taken.missing else None
    if not devices:
        reason = trouble.reason if trouble else "it lists no GPU"
        gone = any(
            word in reason for word in ("not installed", "no NVIDIA driver library", "no GPU is visible", "lists no")
        )
        return Sight("GPU", name, "absent" if gone else "refused", reason, need, trouble.hint if trouble else "")
    driver = next((r.driver for r in reports if isinstance(r.driver, str)), "")
    counted: dict[str, int] = {}
    for device in devices:
        kind = device.name if isinstance(device.name, str) else "a GPU that does not tell its name"
        counted[kind] = counted.get(kind, 0) + 1
    said = ", ".join(f"{count} x {kind}" for kind, count in counted.items()) + (f", driver {driver}" if driver else "")
    if trouble is not None:
        return Sight("GPU", name, "refused", f"{said}; but {trouble.kind}: {trouble.reason}", need, trouble.hint)
    return Sight("GPU", name, "ok", said, need)


# ---- logs and clusters


def _journald() -> Sight:
    from kvdoctor.collect.command import run

    need = "--log journal:UNIT, and the log of a server that runs as a unit"
    output = run(["journalctl", "-n", "1", "--no-pager"], timeout_s=TOOL_TIMEOUT_S, cap=KEPT, merge=True)
    text = output.data.decode("utf-8", "replace")
    name = "journald"
    if output.absent:
        return Sight("logs", name, "absent", output.problem, need, "give the log as a file: --log FILE")
    if "No journal files were found" in text or (not output.problem and "-- No entries --" in text):
        return Sight(
            "logs", name, "absent", "no journal here (in a container the host's is not visible)", need,
            "run kvdoctor on the host, or give the log as a file: --log FILE",
        )  # fmt: skip
    if "not seeing messages from other users" in text or "insufficient permissions" in text.lower():
        return Sight(
            "logs", name, "refused", "only this user's own messages can be read", need,
            "run as root, or add the user to the group systemd-journal",
        )  # fmt: skip
    if output.problem:
        return Sight("logs", name, "refused", output.problem, need, "run journalctl -n 1 by hand")
    return Sight("logs", name, "ok", "the journal can be read", need)


def _docker() -> Sight:
    from kvdoctor.collect.command import run

    need = "--log docker:NAME, and the log of a server in a container"
    output = run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=TOOL_TIMEOUT_S, cap=KEPT)
    if output.absent:
        return Sight("logs", "docker", "absent", output.problem, need, "give the log as a file: --log FILE")
    if output.problem:
        denied = "permission denied" in output.problem.lower()
        how = (
            "run as root, or add the user to the group docker"
            if denied
            else "is the daemon running? docker ps says more"
        )
        return Sight("logs", "docker", "refused", output.problem, need, how)
    return Sight("logs", "docker", "ok", f"the daemon answers, version {_first(output.data)}", need)


def _kubectl() -> Sight:
    import json

    from kvdoctor.collect.command import run
    from kvdoctor.collect.http import kube_hint

    need = "--url k8s:NS/POD and --log k8s:NS/POD"
    output = run(
        ["kubectl", "get", "--raw", "/version", f"--request-timeout={TOOL_TIMEOUT_S - 1:g}s"],
        timeout_s=TOOL_TIMEOUT_S, cap=KEPT,
    )  # fmt: skip
    if output.absent:
        return Sight(
            "logs", "kubectl", "absent", output.problem, need, "install kubectl, with a kubeconfig of the cluster"
        )
    if output.problem:
        return Sight("logs", "kubectl", "refused", output.problem, need, kube_hint(output.problem, "get /version"))
    try:
        version = str(json.loads(output.data)["gitVersion"])
    except (ValueError, KeyError, TypeError):
        version = "not told"
    return Sight("logs", "kubectl", "ok", f"the cluster answers, version {version}", need)


def _first(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip().split("\n")[0][:80]


# ---- the host


def _processes(proc_root: str) -> Sight:
    need = "finding servers on this host by command line, port and log: diagnose without arguments"
    name = "processes"
    try:
        pids = [entry for entry in os.listdir(proc_root) if entry.isdigit()]
    except OSError as error:
        return Sight(
            "host", name, "refused", f"{proc_root} cannot be listed: {error.strerror}", need, "give --url and --log"
        )
    me = os.geteuid()
    others = closed = 0
    for pid in pids:
        try:
            if os.stat(f"{proc_root}/{pid}").st_uid == me:
                continue
            others += 1
            os.listdir(f"{proc_root}/{pid}/fd")
        except PermissionError:
            closed += 1
        except OSError:
            continue  # it ended meanwhile
    said = f"{len(pids)} visible, {others} of other users"
    if closed:
        return Sight(
            "host", name, "refused", f"{said}; ports and log files of {closed} of them cannot be seen", need,
            "run as root or as the user of the server, or give --url and --log",
        )  # fmt: skip
    if "1" not in pids:
        return Sight(
            "host", name, "refused", f"{said}: those of other users are hidden (hidepid)", need,
            "run as root or as the user of the server, or give --url and --log",
        )  # fmt: skip
    return Sight("host", name, "ok", said, need)


def _kernel_log() -> Sight:
    from kvdoctor.collect import host
    from kvdoctor.snapshot import Missing

    need = "Xid errors and out-of-memory kills"
    read = host.kernel_log(0.0, timeout_s=TOOL_TIMEOUT_S)
    if isinstance(read, Missing):
        gone = "not installed" in read.reason or "it is empty" in read.reason
        return Sight("host", "kernel log", "absent" if gone else "refused", read.reason, need, read.hint)
    return Sight("host", "kernel log", "ok", "dmesg can be read", need)


def _terminal(environ: Mapping[str, str]) -> Sight:
    import shutil

    need = "kvdoctor watch as a screen, colours"
    closed = [name for name, stream in (("output", sys.stdout), ("error output", sys.stderr)) if not stream.isatty()]
    if closed:
        return Sight(
            "host", "terminal", "absent", f"not a terminal: standard {' and '.join(closed)}", need,
            "watch prints one JSON object a line then; run it in a terminal for the screen",
        )  # fmt: skip
    size = shutil.get_terminal_size()
    term = environ.get("TERM") or "not set"
    colours = "no colours (NO_COLOR)" if environ.get("NO_COLOR") else "colours"
    said = f"{size.columns} x {size.lines}, TERM {term}, {colours}, {sys.stdout.encoding}"
    if term in ("dumb", "not set"):
        return Sight("host", "terminal", "refused", said, need, "set TERM, e.g. TERM=xterm-256color")
    return Sight("host", "terminal", "ok", said, need)


# ---- output


def to_json(sights: Sequence[Sight]) -> str:
    """``{"schema", "tool", "sights": [{"group", "name", "state", "detail", "needed_for", "how"}]}``; ``how`` null when it works."""
    import json

    from kvdoctor import __version__

    rows = [
        {"group": s.group, "name": s.name, "state": s.state, "detail": s.detail, "needed_for": s.needed_for, "how": s.how or None}
        for s in sights
    ]  # fmt: skip
    document = {"schema": SCHEMA, "tool": {"name": "kvdoctor", "version": __version__}, "sights": rows}
    return json.dumps(document, indent=1, ensure_ascii=False)


_STYLE = {"ok": "\x1b[32m", "absent": "\x1b[2m", "refused": "\x1b[33m"}


def to_text(sights: Sequence[Sight], width: int, color: bool) -> str:
    """A paragraph for each thing, by group: state and what was seen, what it is for, how to get it."""
    import textwrap

    from kvdoctor.collect.mask import mask_text

    wide = max(len(s.name) for s in sights)
    lead = " " * (wide + 12)
    room = max(width, 50)
    lines: list[str] = []
    group = ""
    for sight in sights:
        if sight.group != group:
            lines += [*([""] if lines else []), sight.group]
            group = sight.group
        word = f"{sight.state:7}"
        word = f"{_STYLE[sight.state]}{word}\x1b[0m" if color else word
        parts = [sight.detail, f"for: {sight.needed_for}", *([f"get it: {sight.how}"] if sight.how else [])]
        for index, part in enumerate(parts):
            clean = "".join(c if c.isprintable() else " " for c in mask_text(part))
            wrapped = textwrap.wrap(clean, room - len(lead), break_long_words=False, break_on_hyphens=False)
            for row, text in enumerate(wrapped or [""]):
                first = index == 0 and row == 0
                lines.append(f"  {word} {sight.name:{wide}}  {text}" if first else lead + text)
    counts = {state: sum(s.state == state for s in sights) for state in _STYLE}
    lines += ["", ", ".join(f"{count} {state}" for state, count in counts.items() if count)]
    return "\n".join(lines)
