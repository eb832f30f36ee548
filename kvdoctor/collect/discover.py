"""Engines that run on this host, from its process table alone.

Read are: command lines, parents, control groups, the listening sockets of the engines' own processes, where their output goes,
and the names of installed packages beside their interpreter. Nothing is connected to, no port is tried, no environment of
another process is read.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvdoctor.collect.mask import mask_argv
from kvdoctor.frozen import frozen

MAX_CMDLINE = 64 << 10
_LISTEN = "0A"
_PROGRAM_WORDS = 8

# programs that name an engine in their arguments without being one
_BYSTANDERS = frozenset({
    "grep", "egrep", "fgrep", "rg", "ag", "tail", "less", "more", "cat", "head", "vi", "vim", "nvim", "nano",
    "emacs", "code", "ssh", "scp", "rsync", "docker", "podman", "nerdctl", "ctr", "crictl", "kubectl", "k9s",
    "helm", "journalctl", "systemctl", "tee", "watch", "top", "htop", "nvtop", "nvitop", "ps", "pgrep", "pkill",
    "kill", "find", "ls", "git", "pip", "pip3", "uv-pip", "curl", "wget", "kvdoctor", "man", "apt", "apt-get",
    "make", "strace", "gdb", "py-spy", "perf", "nsys",
})  # fmt: skip
# programs that start another one and wait for it: they belong to the server, but are not it
_WRAPPERS = frozenset({
    "sh", "bash", "dash", "zsh", "fish", "ash", "tini", "dumb-init", "sudo", "su", "runuser", "env", "nohup",
    "setsid", "timeout", "nice", "ionice", "numactl", "taskset", "stdbuf", "script", "tmux", "screen", "conda",
    "mamba", "micromamba", "uv", "poetry", "pipenv", "mpirun", "mpiexec", "orterun", "srun", "torchrun",
    "docker-init", "catatonit", "s6-supervise", "supervisord", "containerd-shim", "containerd-shim-runc-v2",
    "conmon", "systemd", "init",
})  # fmt: skip
_PORT_FLAGS = ("--metrics-port", "--port", "-p", "--http-port")
# builds for other hardware are published under names of their own
_BUILDS = ("", "_cpu", "_rocm", "_xpu", "_tpu", "_cu11", "_cu12", "_cu13", "_nightly")
_MODEL_FLAGS = ("--model", "--model-path", "--model-id", "--model_path", "-m", "--hf-repo", "--model-repository")


@frozen
class LogPlace:
    """Where the output of a process goes. ``spec`` is what ``--log`` takes, None when it cannot be read again; ``why`` says it."""

    spec: str | None
    why: str


@frozen
class Found:
    """One engine server on this host.

    ``argv``: its command line, secrets masked. ``pids``: all its processes, the server's own first. ``ports``: (address,
    port) it listens on, the likeliest for HTTP first; ``urls`` the same as URLs (ask the first; most of the others are
    sockets between the engine's own processes). ``container``: (runtime, 64 digit id).
    ``version_from``: the package folder that tells the version. ``started``: epoch seconds. ``server`` is False for workers
    whose server is not there. ``notes``: what could not be read about it and why.
    """

    engine: str
    pid: int
    argv: tuple[str, ...]
    pids: tuple[int, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    urls: tuple[str, ...] = ()
    container: tuple[str, str] | None = None
    unit: str | None = None
    pod: str | None = None
    log: LogPlace = field(default_factory=lambda: LogPlace(None, "not looked at"))
    version: str | None = None
    version_from: str = ""
    model: str | None = None
    model_config: str | None = None
    started: float | None = None
    server: bool = True
    notes: tuple[str, ...] = ()

    @property
    def flags(self) -> str:
        """The command line as one text, secrets masked."""
        return " ".join(self.argv)


@frozen
class Discovery:
    """What was found, and what was looked at (``looked``: one sentence each, also when nothing was found).

    ``table``: the engines' processes with their ancestors, as ``ps`` prints them. ``gpu_others``: (pid, command) of processes
    that hold GPU memory and are no known engine.
    """

    found: tuple[Found, ...]
    looked: tuple[str, ...]
    notes: tuple[str, ...]
    table: str = ""
    gpu_others: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class _Process:
    pid: int
    ppid: int
    argv: tuple[str, ...]
    comm: str
    state: str
    start_ticks: int
    cpu_ticks: int
    rss_pages: int
    engine: str | None = None

    @property
    def program(self) -> str:
        return os.path.basename(self.argv[0]) if self.argv else self.comm


def discover(
    markers: Mapping[str, Sequence[str]],
    *,
    default_ports: Mapping[str, int],
    packages: Mapping[str, Sequence[str]] | None = None,
    gpu_pids: Mapping[int, str] | None = None,
    proc_root: str = "/proc",
    container_logs: str = "/var/log/containers",
    now: float | None = None,
) -> Discovery:
    """Find engines. ``markers``: by engine, pieces of a command line only it has; ``default_ports``: its usual port;
    ``packages``: names under which its Python package is installed (else the engine's own name); ``gpu_pids``: host pids of
    processes that hold GPU memory, with their names (from NVML), to tell the ones that are no engine.
    """
    host = _Host(proc_root, now)
    processes = host.processes()
    _tell_engines(processes, markers)
    found: list[Found] = []
    shown: set[int] = set()
    for group in _groups(processes):
        server = _server_of(group, processes)
        members = _family(group, processes)
        found.append(
            _describe(
                server,
                members,
                processes,
                host,
                default_ports,
                packages if packages is not None else {},
                container_logs,
            )
        )
        shown |= members | _ancestors(server.pid, processes)
    others: list[tuple[int, str]] = []
    for pid, name in (gpu_pids or {}).items():
        if pid not in shown:
            process = processes.get(pid)
            others.append(
                (pid, " ".join(mask_argv(process.argv))[:300] if process is not None and process.argv else name)
            )
            shown |= {pid, *_ancestors(pid, processes)} if process is not None else set()
    looked = [
        f"{len(processes)} processes in {proc_root}, for {', '.join(sorted(markers))}",
        "the ports that those processes listen on (no other port was tried)",
    ]
    if gpu_pids is not None:
        looked.append(f"{len(gpu_pids)} processes that hold GPU memory")
    notes = list(host.notes)
    if host.unreadable:
        notes.append(
            f"{host.unreadable} processes hide their command line from this user: run kvdoctor as root to see them"
        )
    order = sorted(found, key=lambda f: (not f.server, f.engine, f.pid))
    return Discovery(tuple(order), tuple(looked), tuple(notes), host.table(shown, processes), tuple(others))


# ---- the process table ----------------------------------------------------------------------------------------------


class _Host:
    """Reads below ``/proc``. What a user may not read is counted or noted, and the rest goes on."""

    def __init__(self, root: str, now: float | None) -> None:
        self.root = root
        self.now = time.time() if now is None else now
        self.unreadable = 0
        self.notes: list[str] = []
        self.ticks = os.sysconf("SC_CLK_TCK")
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.boot = self._boot_time()
        self._sockets: dict[str, dict[str, list[tuple[str, int, int]]]] = {}

    def read(self, path: str, limit: int = MAX_CMDLINE) -> bytes | None:
        """The start of a file below the root, None when it is gone or not ours to read."""
        try:
            descriptor = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        parts: list[bytes] = []
        try:
            # the kernel hands the tables below /proc out a page at a time
            while limit > 0 and (block := os.read(descriptor, limit)):
                parts.append(block)
                limit -= len(block)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return b"".join(parts)

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(f"{self.root}/{path}")
        except OSError:
            return None

    def _boot_time(self) -> float | None:
        stat_text = self.read("stat", 1 << 20)
        found = re.search(rb"^btime (\d+)", stat_text, re.M) if stat_text else None
        return float(found.group(1)) if found else None

    def processes(self) -> dict[int, _Process]:
        try:
            names = [name for name in os.listdir(self.root) if name.isdigit()]
        except OSError as error:
            self.notes.append(f"{self.root} cannot be listed: {error.strerror}")
            return {}
        table: dict[int, _Process] = {}
        for name in names:
            stat_text = self.read(f"{name}/stat", 4096)
            if stat_text is None:
                continue  # ended meanwhile
            raw = self.read(f"{name}/cmdline")
            if raw is None:
                self.unreadable += 1
                raw = b""
            process = _parse_stat(int(name), stat_text, raw)
            if process is not None:
                table[process.pid] = process
        return table

    def sockets(self, pid: int) -> dict[str, list[tuple[str, int, int]]]:
        """Listening TCP sockets of the process's network namespace: inode -> (address, port, uid)."""
        space = self.link(f"{pid}/ns/net") or f"pid {pid}"
        known = self._sockets.get(space)
        if known is None:
            known = {}
            for file in ("tcp", "tcp6"):
                raw = self.read(f"{pid}/net/{file}", 8 << 20)
                for line in (raw or b"").decode("ascii", "replace").splitlines()[1:]:
                    cells = line.split()
                    if len(cells) > 9 and cells[3] == _LISTEN:
                        address = _address(cells[1])
                        if address is not None:
                            known.setdefault(cells[9], []).append((*address, int(cells[7])))
            self._sockets[space] = known
        return known

    def descriptors(self, pid: int) -> dict[int, str] | None:
        """Open descriptors and where they lead; None when this user may not see them."""
        try:
            numbers = os.listdir(f"{self.root}/{pid}/fd")
        except OSError:
            return None
        links = {int(n): self.link(f"{pid}/fd/{n}") for n in numbers if n.isdigit()}
        return {n: target for n, target in links.items() if target is not None}

    def uid(self, pid: int) -> int | None:
        try:
            return os.stat(f"{self.root}/{pid}").st_uid
        except OSError:
            return None

    def inside(self, pid: int, path: str) -> Path:
        """A path as the process sees it (its container's root), or as this host does where that cannot be followed."""
        root = Path(f"{self.root}/{pid}/root")
        try:
            same = os.path.samefile(root, "/")
        except OSError:
            same = True
        return Path(path) if same else root / path.lstrip("/")

    def table(self, shown: set[int], processes: Mapping[int, _Process]) -> str:
        """Rows as ``ps -o pid,ppid,stat,rss,pcpu,etime,args`` prints them; empty without any process."""
        if not shown:
            return ""
        rows = ["    PID    PPID STAT      RSS %CPU     ELAPSED COMMAND"]
        for pid in sorted(shown & processes.keys()):
            p = processes[pid]
            started = self.started(p)
            alive = None if started is None else max(self.now - started, 0.0)
            busy = "-" if not alive else f"{100 * p.cpu_ticks / self.ticks / alive:.1f}"
            command = " ".join(mask_argv(p.argv)) if p.argv else f"[{p.comm}]"
            rows.append(
                f"{pid:7d} {p.ppid:7d} {p.state:<4} {p.rss_pages * self.page // 1024:8d} {busy:>4} {_elapsed(alive):>11} "
                + " ".join(command.split())[:1000]
            )
        return "\n".join(rows) + "\n"

    def started(self, process: _Process) -> float | None:
        return None if self.boot is None else self.boot + process.start_ticks / self.ticks


def _parse_stat(pid: int, stat_text: bytes, cmdline: bytes) -> _Process | None:
    """``/proc/PID/stat``; the name in it may hold blanks and brackets, so it is read from both ends."""
    text = stat_text.decode("utf-8", "replace")
    opening, closing = text.find("("), text.rfind(")")
    cells = text[closing + 2 :].split()
    if opening < 0 or closing < opening or len(cells) < 22:
        return None
    argv = cmdline.decode("utf-8", "replace").rstrip("\0").split("\0") if cmdline.strip(b"\0 ") else []
    if len(argv) == 1 and " " in argv[0] and not argv[0].startswith("/"):
        argv = argv[0].split()  # a process that renamed itself writes its title as one word
    return _Process(
        pid, int(cells[1]), tuple(argv), text[opening + 1 : closing], cells[0], int(cells[19]), int(cells[11]) + int(cells[12]),
        int(cells[21]),
    )  # fmt: skip


def _elapsed(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _address(text: str) -> tuple[str, int] | None:
    """``0100007F:1F40`` -> ("127.0.0.1", 8000); the kernel writes each 32 bit word in the host's byte order."""
    host, _, port = text.partition(":")
    try:
        raw = bytes.fromhex(host)
        number = int(port, 16)
    except ValueError:
        return None
    if len(raw) == 4:
        return ".".join(str(b) for b in raw[::-1]), number
    if len(raw) != 16:
        return None
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, 16, 4))
    if words == bytes(16):
        return "::", number
    if words[:12] == bytes(10) + b"\xff\xff":
        return ".".join(str(b) for b in words[12:]), number
    return str(ipaddress.IPv6Address(words)), number


# ---- which of them are engines --------------------------------------------------------------------------------------


def _tell_engines(processes: Mapping[int, _Process], markers: Mapping[str, Sequence[str]]) -> None:
    """Set ``engine`` where the program's own words hold a marker; the first in the line wins, then the longest."""
    own = {os.getpid(), *_ancestors(os.getpid(), processes)}
    listed = [(m, engine) for engine, words in markers.items() for m in words]
    for process in processes.values():
        if not process.argv or process.pid in own or process.program in _BYSTANDERS:
            continue
        words = _program_words(process.argv)
        hits = [(words.find(marker), -len(marker), engine) for marker, engine in listed if marker in words]
        process.engine = min(hits)[2] if hits else None


def _program_words(argv: Sequence[str]) -> str:
    """The part of a command line that says what runs: up to the first long option, paths shortened to their last parts."""
    words: list[str] = []
    for word in argv[:_PROGRAM_WORDS]:
        if word.startswith("--"):
            break
        # /srv/vllm/models/x is no program; .../bin/vllm and .../lmdeploy/cli.py are
        words.append("/".join(word.split("/")[-2:]) if word.startswith("/") else word)
    if argv and argv[0].startswith("/"):
        words[:1] = [os.path.basename(argv[0])]
    joined = " ".join(words)
    return joined.replace("bin/", "")


def _ancestors(pid: int, processes: Mapping[int, _Process]) -> set[int]:
    seen: set[int] = set()
    process = processes.get(pid)
    while process is not None and process.ppid not in seen and process.ppid > 0:
        seen.add(process.ppid)
        process = processes.get(process.ppid)
    return seen


def _groups(processes: Mapping[int, _Process]) -> Iterator[list[_Process]]:
    """Processes of one server together: those linked by ancestry to a topmost process of the same engine."""
    groups: dict[int, list[_Process]] = {}
    for process in processes.values():
        if process.engine is None:
            continue
        top = process.pid
        for above in _chain(process, processes):
            if above.engine == process.engine:
                top = above.pid
        groups.setdefault(top, []).append(process)
    yield from (sorted(g, key=lambda p: p.pid) for _, g in sorted(groups.items()))


def _chain(process: _Process, processes: Mapping[int, _Process]) -> Iterator[_Process]:
    seen = {process.pid}
    at = processes.get(process.ppid)
    while at is not None and at.pid not in seen:
        yield at
        seen.add(at.pid)
        at = processes.get(at.ppid)


def _server_of(group: Sequence[_Process], processes: Mapping[int, _Process]) -> _Process:
    """The topmost process that is no shell or starter."""
    pids = {p.pid for p in group}
    depth = {p.pid: sum(a.pid in pids for a in _chain(p, processes)) for p in group}
    own = [p for p in group if p.program not in _WRAPPERS]
    return min(own or group, key=lambda p: (depth[p.pid], p.pid))


def _family(group: Sequence[_Process], processes: Mapping[int, _Process]) -> set[int]:
    """The group and all its descendants (workers started by spawn carry no marker)."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    members: set[int] = set()
    stack = [p.pid for p in group]
    while stack:
        pid = stack.pop()
        if pid not in members:
            members.add(pid)
            stack.extend(children.get(pid, ()))
    return members


# ---- what is known of one -------------------------------------------------------------------------------------------


def _describe(
    server: _Process,
    members: set[int],
    processes: Mapping[int, _Process],
    host: _Host,
    default_ports: Mapping[str, int],
    packages: Mapping[str, Sequence[str]],
    container_logs: str,
) -> Found:
    engine = server.engine
    assert engine is not None
    notes: list[str] = []
    listening = _listening(server, members, host, notes)
    wanted = _flag(server.argv, _PORT_FLAGS)
    usual = default_ports.get(engine)
    ports = sorted(
        listening,
        key=lambda p: (str(p[1]) != wanted, p[1] != usual, listening[p] != server.pid, p[1]),
    )
    address = _namespace_address(server.pid, host)
    container, unit, pod_log = _belongs(server.pid, host, container_logs)
    model = _model(server)
    version, version_from = _version(server, host, packages.get(engine, (engine.replace("-", "_").replace(".", "_"),)))
    started = host.started(server)
    return Found(
        engine=engine,
        pid=server.pid,
        argv=mask_argv(server.argv),
        pids=(server.pid, *sorted(members - {server.pid})),
        ports=tuple(ports),
        urls=tuple(_url(host_address, port, address) for host_address, port in ports),
        container=container,
        unit=unit,
        pod=_pod_of(pod_log),
        log=_log_place(server, processes, host, container, unit, pod_log),
        version=version,
        version_from=version_from,
        model=model,
        model_config=_model_config(model, server.pid, host),
        started=started,
        # a worker's title has no option; a server has arguments or listens
        server=bool(ports) or len(server.argv) > 1,
        notes=tuple(notes),
    )


def _listening(server: _Process, members: set[int], host: _Host, notes: list[str]) -> dict[tuple[str, int], int]:
    """(address, port) -> pid of the member that listens there."""
    sockets = host.sockets(server.pid)
    found: dict[tuple[str, int], int] = {}
    hidden = 0
    for pid in [server.pid, *sorted(members - {server.pid})]:
        links = host.descriptors(pid)
        if links is None:
            hidden += 1
            continue
        for target in links.values():
            if target.startswith("socket:["):
                for address, port, _ in sockets.get(target[8:-1], ()):
                    found.setdefault((address, port), pid)
    if hidden and not found:
        # without the right to see its sockets: the port it was started with, if a process of its user listens there
        wanted, uid = _flag(server.argv, _PORT_FLAGS), host.uid(server.pid)
        for entries in sockets.values():
            for address, port, owner in entries:
                if str(port) == wanted and owner == uid:
                    found[(address, port)] = server.pid
        notes.append(
            f"process {server.pid}: its sockets and its output are hidden from this user"
            + ("; the port is that of its command line" if found else "")
            + " (run kvdoctor as root or as its user)"
        )
    return found


def _namespace_address(pid: int, host: _Host) -> str | None:
    """The address of the process's own network namespace, None when it shares this one (or that cannot be told)."""
    theirs, ours = host.link(f"{pid}/ns/net"), host.link("self/ns/net")
    if theirs is None or ours is None or theirs == ours:
        return None
    trie = (host.read(f"{pid}/net/fib_trie", 1 << 20) or b"").decode("ascii", "replace")
    for found in re.finditer(r"\|-- ([0-9.]{7,15})\n\s+/32 host LOCAL", trie):
        if not found.group(1).startswith("127."):
            return found.group(1)
    return None


def _url(address: str, port: int, namespace: str | None) -> str:
    host = address
    if address in ("0.0.0.0", "::") or namespace is not None:
        host = namespace or "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_CONTAINER_ID = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_RUNTIMES = (
    ("docker", "docker"),
    ("libpod", "podman"),
    ("cri-containerd", "containerd"),
    ("crio", "cri-o"),
    ("kubepods", "containerd"),
)


def _belongs(pid: int, host: _Host, container_logs: str) -> tuple[tuple[str, str] | None, str | None, str | None]:
    """Container, systemd unit and, for a pod, the node's log file, from the control group."""
    text = (host.read(f"{pid}/cgroup", 16 << 10) or b"").decode("utf-8", "replace")
    container: tuple[str, str] | None = None
    unit: str | None = None
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        for found in _CONTAINER_ID.finditer(path):
            runtime = next((name for word, name in _RUNTIMES if word in path), "container")
            container = (runtime, found.group(1))
        services = [p for p in path.split("/") if p.endswith(".service") and not re.match(r"user@\d+\.service$", p)]
        if services and unit is None:
            unit = services[-1].replace("\\x2d", "-")
    pod_log: str | None = None
    if container is not None:
        unit = None  # that is the runtime's, not the server's
        if "kubepods" in text:
            try:
                names = os.listdir(container_logs)
            except OSError:
                names = []
            name = next((n for n in sorted(names) if n.endswith(f"-{container[1]}.log")), None)
            pod_log = f"{container_logs}/{name}" if name else None
    return container, unit, pod_log


def _pod_of(pod_log: str | None) -> str | None:
    """``POD_NAMESPACE_CONTAINER-ID.log`` -> ``NAMESPACE/POD/CONTAINER``."""
    if pod_log is None:
        return None
    parts = os.path.basename(pod_log).rsplit("-", 1)[0].split("_")
    return f"{parts[1]}/{parts[0]}/{parts[2]}" if len(parts) == 3 else None


def _log_place(
    server: _Process,
    processes: Mapping[int, _Process],
    host: _Host,
    container: tuple[str, str] | None,
    unit: str | None,
    pod_log: str | None,
) -> LogPlace:
    out = next((t for n in (2, 1) if (t := host.link(f"{server.pid}/fd/{n}")) is not None and t != "/dev/null"), None)
    if out is not None and out.startswith("/") and not out.startswith("/dev/"):
        path = out.removesuffix(" (deleted)")
        if path != out:
            return LogPlace(
                f"{host.root}/{server.pid}/fd/2",
                f"it writes to {path}, which was deleted; it is read through the process",
            )
        return LogPlace(str(host.inside(server.pid, path)), "its output goes to this file")
    if pod_log is not None:
        return LogPlace(pod_log, "the node keeps its pod's log there")
    if container is not None:
        runtime, identity = container
        if runtime == "docker":
            return LogPlace(f"docker:{identity[:12]}", "it runs in a docker container")
        return LogPlace(
            None, f"it runs in a {runtime} container: give --log k8s:NAMESPACE/POD, or pipe its log into --log -"
        )
    if out is not None and out.startswith("pipe:["):
        file = _tee_file(out, processes, host)
        if file is not None:
            return LogPlace(file, "tee writes its output there")
    if unit is not None:
        return LogPlace(f"journal:{unit}", "it runs in this unit")
    if out is None:
        if host.descriptors(server.pid) is None:
            return LogPlace(None, "where its output goes is hidden from this user: give --log")
        return LogPlace(None, "its output goes to /dev/null: start it with its output in a file")
    if out.startswith("/dev/"):
        return LogPlace(
            None, f"its output goes to a terminal ({out}): start it with 2>&1 | tee FILE, then give --log FILE"
        )
    return LogPlace(None, "its output goes to another program: give --log")


def _tee_file(pipe: str, processes: Mapping[int, _Process], host: _Host) -> str | None:
    for process in processes.values():
        if process.program != "tee":
            continue
        links = host.descriptors(process.pid)
        if links is not None and links.get(0) == pipe:
            files = [t for n, t in sorted(links.items()) if n > 2 and t.startswith("/") and not t.startswith("/dev/")]
            return str(host.inside(process.pid, files[0])) if files else None
    return None


def _flag(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the first of these options that is given, as ``--x v`` or ``--x=v``."""
    for name in names:
        for index, word in enumerate(argv):
            if word == name and index + 1 < len(argv):
                return argv[index + 1]
            if word.startswith(name + "="):
                return word[len(name) + 1 :]
    return None


def _model(server: _Process) -> str | None:
    argv = server.argv
    for index, word in enumerate(argv[:-1]):
        # vllm serve MODEL, lmdeploy serve api_server MODEL, trtllm-serve MODEL
        if word in ("serve", "api_server") or word.endswith(("/trtllm-serve", "trtllm-serve")):
            following = argv[index + 1]
            if not following.startswith("-") and following not in ("serve", "api_server"):
                return following
    # python -m module takes -m for itself
    start = next((i + 2 for i, w in enumerate(argv[:4]) if w == "-m" and server.program.startswith("python")), 0)
    return _flag(argv[start:], _MODEL_FLAGS)


def _model_config(model: str | None, pid: int, host: _Host) -> str | None:
    """The path of the model's readable ``config.json``: in its folder, or in the Hugging Face cache of the server's user."""
    if not model:
        return None
    if model.startswith("/"):
        candidates = [host.inside(pid, f"{model}/config.json")]
    elif re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", model):
        homes = [home for home in (_home(host.uid(pid)), "/root") if home is not None]
        name = f".cache/huggingface/hub/models--{model.replace('/', '--')}/snapshots"
        candidates = []
        for home in dict.fromkeys(homes):
            folder = host.inside(pid, f"{home}/{name}")
            try:
                candidates += [folder / entry / "config.json" for entry in sorted(os.listdir(folder))]
            except OSError:
                continue
    else:
        return None
    return next((str(path) for path in candidates if os.access(path, os.R_OK)), None)


def _home(uid: int | None) -> str | None:
    try:
        return None if uid is None else pwd.getpwuid(uid).pw_dir
    except KeyError:
        return None  # a user of the container only


def _version(server: _Process, host: _Host, packages: Sequence[str]) -> tuple[str | None, str]:
    """Version and folder from the ``.dist-info`` beside the interpreter or script that the command line names."""
    wanted = {re.sub(r"[-_.]+", "_", p).lower() + build for p in packages for build in _BUILDS}
    prefixes = [os.path.dirname(os.path.dirname(w)) for w in server.argv[:3] if w.startswith("/") and "/bin/" in w]
    real = host.link(f"{server.pid}/exe")
    if real:
        prefixes.append(os.path.dirname(os.path.dirname(real)))
    for prefix in dict.fromkeys([*prefixes, "/usr/local"]):
        for library in _libraries(host.inside(server.pid, f"{prefix}/lib")):
            try:
                names = os.listdir(library)
            except OSError:
                continue
            for name in names:
                if name.endswith(".dist-info"):
                    package, _, version = name.removesuffix(".dist-info").rpartition("-")
                    if re.sub(r"[-_.]+", "_", package).lower() in wanted:
                        return version, str(library / name)
    return None, ""


def _libraries(folder: Path) -> Iterator[Path]:
    try:
        names = sorted((n for n in os.listdir(folder) if re.fullmatch(r"python3(?:\.\d+)?", n)), reverse=True)
    except OSError:
        return
    for name in names:
        yield folder / name / "site-packages"
        yield folder / name / "dist-packages"
