"""Whether the kernel ended a process of the server for host memory: kernel log, containers' states, cgroups, exits in the log.

SIGKILL alone (137, -9) tells how a process ended, not why: the kubelet, ``docker stop`` and supervisors use it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdoctor.facts import Unknown, measured
from kvdoctor.frozen import frozen
from kvdoctor.parse import TORCH_PROCESS, Unread

if TYPE_CHECKING:
    from kvdoctor.derive.view import View
    from kvdoctor.parse.kernel import Container, ContainerState, Kube, OomKill, Pod
    from kvdoctor.readings import HostReadings, Timed

JOIN_S = 600.0
"""What happened further than this from the server's own life or errors is a story of its own."""

SURVIVED_S = 60.0
"""A server that is served from so long after a kill did not die of it: when a worker is killed its engine ends at once."""

KILLED = 137
"""128 + SIGKILL: exit code of a container or a shell's child."""

SIGNALLED = 128
"""An exit code above it is a signal."""

ASKED_TO_END = (0, 130, 143)
"""Exit codes of a process that finished, or was asked to end (SIGINT, SIGTERM)."""

RECENT_S = 3600.0
"""A server that came up again this short a time ago has not shown that it stays."""

_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}

ASK_WHOSE = "give kubectl describe pod with its Image and Limits, or journalctl -u of the server's own unit"
ASK = "kubectl describe pod (OOMKilled?), docker inspect (State.OOMKilled), or dmesg -T | grep -i oom at that time"

_SERVERS = (
    "vllm",
    "sglang",
    "llama",
    "trtllm",
    "triton",
    "text-generation",
    "lmdeploy",
    "ollama",
    "ray::",
    TORCH_PROCESS,
)


def names_server(command: str) -> bool:
    """A command line or a name (of a process, unit or container) that says which inference server it is of."""
    text = command.lower()
    return any(word in text for word in _SERVERS)


def is_server(command: str) -> bool:
    """A command line or a process name that an inference server can have."""
    return names_server(command) or "python" in command.lower()


@frozen
class _Said:
    """What a source says, and where."""

    source: str
    why: str


class _Evidence:
    """What speaks for a kill by the kernel, what for another end, and what only tells that a process was killed."""

    def __init__(self) -> None:
        self.proof: list[_Said] = []
        self.other: list[_Said] = []
        self.bare: list[_Said] = []
        self.unclear: list[_Said] = []


def add(view: View, host: HostReadings) -> None:
    """Derive ``host.oom_kill`` and ``host.killed``, and ``target.failure_reported`` where a container says so."""
    found = _Evidence()
    _kernel(view, host, found)
    _containers(view, host, found)
    for group in host.cgroups:
        if not isinstance(group.value.oom_kills, Unread) and group.value.oom_kills > 0:
            found.proof.append(_Said(group.origin, "the container's cgroup counts an out-of-memory kill"))
    _log(view, found)
    _settle(view, host, found)


def _settle(view: View, host: HostReadings, found: _Evidence) -> None:
    facts = view.facts
    if found.proof:
        first = found.proof[0]
        facts.set("host.killed", measured(True, "e", first.source, note=first.why))
        facts.set("host.oom_kill", measured(True, "e", first.source, note=first.why))
    elif found.bare and view.target.events("oom"):
        # an engine that fails on the device ends its workers itself
        why = "a process was killed, and a device out-of-memory message stands there too"
        facts.set("host.killed", Unknown(why, ASK))
        facts.set("host.oom_kill", Unknown(why, ASK))
    elif found.bare:
        first = found.bare[0]
        facts.set("host.killed", measured(True, "e", first.source, note=first.why))
        facts.set("host.oom_kill", Unknown(f"{first.why}, which does not tell why", ASK))
    elif found.other:
        first = found.other[0]
        facts.set("host.killed", measured(True, "e", first.source, note=first.why))
        facts.set("host.oom_kill", measured(False, "e", first.source, note=first.why))
    elif found.unclear:
        why = found.unclear[0].why
        facts.set("host.killed", Unknown(why, ASK_WHOSE))
        facts.set("host.oom_kill", Unknown(why, ASK_WHOSE))
    elif host.kernel or host.kube:
        facts.set("host.killed", measured(False, "e", "kernel log or pod description"))
        facts.set("host.oom_kill", measured(False, "e", "kernel log or pod description"))
    else:
        why, hint = (
            "no kernel log, pod description or cgroup counter in the snapshot",
            "add dmesg -T, or kubectl describe pod",
        )
        facts.set("host.killed", Unknown(why, hint))
        facts.set("host.oom_kill", Unknown(why, hint))


# -------------------------------------------------------------------- kernel


def _kernel(view: View, host: HostReadings, found: _Evidence) -> None:
    pids = {pid for run in view.target.logs for pid in run.pids}
    for timed in host.kernel:
        for kill in timed.value.kills:
            source = f"{timed.origin}:{kill.line}"
            other = _not_ours(view, kill, pids)
            if not other:
                found.proof.append(_Said(source, "the kernel killed it for host memory"))
            when = kill.stamp.clock if kill.stamp.zoned else None
            view.note_event(when, f"the kernel killed {kill.process} ({kill.pid}): host memory{other}", source)


def _not_ours(view: View, kill: OomKill, pids: set[int]) -> str:
    """Why the kernel's victim was no process of this server; empty where it can have been one."""
    if not _can_concern(view, kill.stamp.clock if kill.stamp.zoned else None):
        return "; not this server, which started later or lived on"
    if not is_server(kill.process) and kill.pid not in pids:
        return "; no process of an inference server"
    return ""


def _life(view: View) -> tuple[float | None, float | None]:
    """Start of the server's process (else the first sign of it) and the last sign of life; epoch seconds."""
    target = view.target
    started = [r.value for s in target.scrapes for r in s.values.get("run.start", {}).values()]
    pages = [s.time for s in target.scrapes if s.time is not None]
    lines = [run.first_time for run in target.logs if run.first_time is not None]
    lived = [*pages, *(s.time for s in view.stats if s.time is not None)]
    first = max(started) if started else min([*pages, *lines], default=None)
    return first, max(lived, default=None)


def _can_concern(view: View, when: float | None) -> bool:
    """A kill long before this server started, or one it lived on after, hit something else."""
    first, last = _life(view)
    if when is None or first is None:
        return True
    if when < first - JOIN_S:
        return False
    return not (when > first and last is not None and last - when > SURVIVED_S)


# -------------------------------------------------------------------- containers


def _containers(view: View, host: HostReadings, found: _Evidence) -> None:
    all_of = [(t, pod, c) for t in host.kube for pod in t.value.pods for c in pod.containers if not c.init]
    ours = _ours([c for _, _, c in all_of])
    for timed, pod, container in all_of:
        for state in (container.state, container.last_state):
            if state is None:
                continue
            source = f"{timed.origin}:{state.line}"
            if any(container is one for one in ours):
                _container(pod, container, state, source, found)
                _crashed(view, state, source)
            elif state.reason == "OOMKilled":
                if ours:
                    view.note_event(state.finished, "a container beside the server's was OOMKilled", source)
                else:
                    found.unclear.append(
                        _Said(source, "a container was OOMKilled; nothing tells which one is the server's")
                    )
    for timed in host.kube:
        for pod in timed.value.pods:
            if any(one is container for one in ours for container in pod.containers):
                _evicted(timed, pod, found)


def _ours(containers: list[Container]) -> list[Container]:
    """The server's containers: those with an accelerator, else those that name a server, else a lone one."""
    lone = containers if len(containers) == 1 else []
    return [c for c in containers if c.accelerated] or [c for c in containers if c.server] or lone


def _container(pod: Pod, container: Container, state: ContainerState, source: str, found: _Evidence) -> None:
    if state.reason == "OOMKilled":
        found.proof.append(_Said(source, "the container was OOMKilled"))
    elif state.exit_code == KILLED and state.reason != "Completed":
        other = _other_end(pod, container, state)
        if other:
            found.other.append(_Said(source, other))
        else:
            found.bare.append(_Said(source, "the container ended with exit code 137 (SIGKILL)"))


def _crashed(view: View, state: ContainerState, source: str) -> None:
    """A container that neither was asked to end nor was killed has failed, whatever the readings beside it say."""
    code = state.exit_code
    if isinstance(code, Unread) or code in ASKED_TO_END or code == KILLED or state.reason in ("OOMKilled", "Completed"):
        return
    name = _SIGNALS.get(code - SIGNALLED)
    why = f"its container ended with exit code {code}{f' ({name})' if name else ''}"
    view.note_event(state.finished, why, source)
    _, last = _life(view)
    if last is None or state.finished is None or last - state.finished <= RECENT_S:
        view.facts.set("target.failure_reported", measured(True, "e", source, note=why))


def _other_end(pod: Pod, container: Container, state: ContainerState) -> str:
    """Who ended the container, where it is told that the kernel did not; empty where nothing tells."""
    if state.oom_killed is False:
        return "the runtime says that it was not OOMKilled"
    if isinstance(pod.reason, str):
        return f"the pod was ended from outside: {pod.reason}"
    for event in pod.events:
        # the kubelet reports only its own kills so: a failed probe, a deletion, a limit of the disk
        if event.reason == "Killing" and (event.names(container.name) or not event.names_one):
            return "the kubelet ended the container: a failed probe, or it was told to stop"
    return ""


def _evicted(timed: Timed[Kube], pod: Pod, found: _Evidence) -> None:
    """A node that runs out of memory evicts pods before the kernel has to kill."""
    if pod.low_on == "memory":
        found.proof.append(_Said(f"{timed.origin}:{pod.line}", "the node ran out of memory and evicted the pod"))


# -------------------------------------------------------------------- the server's log


def _log(view: View, found: _Evidence) -> None:
    events = view.target.events("exit", "oom_kill")
    denied = next(((r, e) for r, e in events if e.fields.get("denied")), None)
    for run, event in events:
        source = run.source(event)
        if event.fields.get("denied"):
            continue
        named = event.text("process")
        if event.event == "oom_kill" and named is not None and not names_server(named):
            found.unclear.append(
                _Said(source, "a unit was ended for host memory; nothing tells whether the server ran in it")
            )
        elif event.event == "oom_kill":
            found.proof.append(_Said(source, "killed for host memory, as the log says"))
        elif event.number("code") == KILLED:
            if denied is not None:
                found.other.append(_Said(denied[0].source(denied[1]), "the runtime says that it was not OOMKilled"))
            else:
                found.bare.append(_Said(source, "killed by SIGKILL (exit 137)"))
        elif event.number("code") == -9 or event.text("signal") == "SIGKILL":
            found.bare.append(_Said(source, "killed by SIGKILL"))
