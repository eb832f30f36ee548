"""What proves that the kernel killed the server for host memory, and what only shows that it was killed."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from kvdoctor.facts import Fact, Known, Unknown
from kvdoctor.parse import kernel
from kvdoctor.pipeline import diagnose
from kvdoctor.redact import redact
from kvdoctor.snapshot import Snapshot, memory_member

LOG = "INFO 06-01 09:00:00 [api_server.py:1839] vLLM API server version 0.22.0\n"
KILLED, OOM = "host.killed", "host.oom_kill"


def told(*files: tuple[str, str]) -> tuple[bool | None, bool | None]:
    """(killed, killed for host memory); None where it is not known. The redacted snapshot says the same."""
    snapshot = Snapshot(tuple(memory_member(name, text.encode()) for name, text in files))
    said = [
        (flag(report.main.facts[KILLED]), flag(report.main.facts[OOM]))
        for report in (diagnose(one, ()) for one in (snapshot, redact(snapshot, salt=b"0" * 32)))
    ]
    assert said[0] == said[1]
    return said[0]


def flag(fact: Fact) -> bool | None:
    return bool(fact.hi) if isinstance(fact, Known) else None


def container(name: str, image: str, reason: str, code: int = 137, *, gpu: bool = False) -> str:
    limits = "    Limits:\n      memory:          24Gi\n" + ("      nvidia.com/gpu:  1\n" if gpu else "")
    return (
        f"  {name}:\n    Image:          {image}\n    State:          Waiting\n      Reason:       CrashLoopBackOff\n"
        f"    Last State:     Terminated\n      Reason:       {reason}\n      Exit Code:    {code}\n"
        f"    Restart Count:  5\n{limits}"
    )


def pod(*containers: str, head: str = "", events: str = "") -> str:
    table = f"Events:\n  Type     Reason     Age   From     Message\n{events}" if events else ""
    return f"Name:             llm-0\nNamespace:        acme\n{head}Containers:\n{''.join(containers)}{table}"


SERVER = ("server", "registry.acme/llm:1")
SIDECAR = ("log-shipper", "fluent/fluent-bit:3.1")
RUNNING = "  engine:\n    Image:          vllm/vllm-openai:v0.22.0\n    State:          Running\n    Ready:          True\n    Restart Count:  0\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pod(container(*SERVER, "OOMKilled")), (True, True)),
        (pod(container(*SERVER, "OOMKilled", gpu=True), container(*SIDECAR, "Error")), (True, True)),
        (pod(container(*SERVER, "OOMKilled", gpu=True), container("vllm-router", "acme/router:1", "Error")), (True, True)),
        (pod(container("main", "lmsysorg/sglang:v0.5", "OOMKilled"), container(*SIDECAR, "Error")), (True, True)),
        (pod(RUNNING, container(*SIDECAR, "OOMKilled")), (False, False)),
        (pod(container(*SERVER, "Error"), container(*SIDECAR, "OOMKilled")), (None, None)),
        (pod(container(*SERVER, "Error")), (True, None)),
        (pod(container(*SERVER, "Error", 1)), (False, False)),
    ],
    ids=["alone", "with a GPU", "with a GPU beside a router", "named by its image", "a sidecar", "nobody knows which",
         "137 only", "exit code 1"],
)  # fmt: skip
def test_a_container_counts_when_it_is_the_servers(text: str, expected: tuple[bool | None, bool | None]) -> None:
    assert told(("describe.txt", text), ("server.log", LOG)) == expected


@pytest.mark.parametrize(
    "message",
    [
        "Container server failed liveness probe, will be restarted",
        "Container server failed startup probe, will be restarted",
        "Stopping container server",
    ],
)
def test_a_kill_by_the_kubelet_is_none_by_the_kernel(message: str) -> None:
    events = f"  Normal   Killing    2m    kubelet  {message}\n"
    two = (container(*SERVER, "Error", gpu=True), container(*SIDECAR, "Error"))
    assert told(("describe.txt", pod(*two, events=events)), ("server.log", LOG)) == (True, False)
    # the sidecar's failed probe says nothing of the server
    other = events.replace("ontainer server", "ontainer log-shipper")
    assert told(("describe.txt", pod(*two, events=other)), ("server.log", LOG)) == (True, None)
    # and what the kubelet did on another day does not undo what Kubernetes says of the last end
    oom = pod(container(*SERVER, "OOMKilled"), events=events)
    assert told(("describe.txt", oom), ("server.log", LOG)) == (True, True)


@pytest.mark.parametrize(("resource", "expected"), [("ephemeral-storage", (True, False)), ("memory", (True, True))])
def test_an_eviction_is_for_what_the_node_lacked(resource: str, expected: tuple[bool, bool]) -> None:
    head = f"Status:           Failed\nReason:           Evicted\nMessage:          The node was low on resource: {resource}. Threshold quantity: 10Gi\n"
    text = pod(container(*SERVER, "ContainerStatusUnknown"), head=head)
    assert told(("describe.txt", text), ("server.log", LOG)) == expected


DOCKER = (
    '[{"Id": "ab", "Name": "/x", "State": {"Status": "exited", "Running": false, "OOMKilled": %s, "ExitCode": 137}}]'
)
STATUS = (
    '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "llm-0"}, "spec": {"containers": ['
    '{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, {"name": "b"}]}, "status": {"containerStatuses": ['
    '{"name": "a", "image": "acme/llm", "state": {"running": {}}%s}, {"name": "b", "image": "acme/tool", "lastState": '
    '{"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}}'
)
ENDED = ', "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}'
YAML = """apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    name: llm-0
  spec:
    containers:
    - name: tool
      image: acme/tool
    - name: llm
      image: acme/llm
      resources:
        limits:
          nvidia.com/gpu: "1"
  status:
    containerStatuses:
    - name: %s
      lastState:
        terminated:
          exitCode: 137
          reason: OOMKilled
    - name: %s
      state:
        running:
          startedAt: "2026-06-01T09:00:00Z"
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DOCKER % "true", (True, True)),
        (DOCKER % "false", (True, False)),
        (STATUS % ENDED, (True, True)),
        (STATUS % "", (False, False)),
        (YAML % ("llm", "tool"), (True, True)),
        (YAML % ("tool", "llm"), (False, False)),
    ],
    ids=["docker yes", "docker no", "json server", "json sidecar", "yaml server", "yaml sidecar"],
)
def test_manifests_tell_whose_container_it_was(text: str, expected: tuple[bool, bool]) -> None:
    assert told(("state.txt", text), ("server.log", LOG)) == expected


DMESG = "[%s] Out of memory: Killed process 4711 (%s) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ("VLLM::EngineCor", (True, True)),
        ("python3", (True, True)),
        ("pt_main_thread", (True, True)),
        ("ray::RayWorkerW", (True, True)),
        ("fluent-bit", (False, False)),
        ("mysqld", (False, False)),
    ],
)
def test_a_line_of_the_kernel_counts_when_its_victim_can_be_the_server(
    process: str, expected: tuple[bool, bool]
) -> None:
    assert told(("dmesg.txt", DMESG % ("81234.112000", process)), ("server.log", LOG)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ERROR core_client.py:600] Engine core proc EngineCore_DP0 died unexpectedly (exit code: -9)", (True, None)),
        ("container exited with code 137", (True, None)),
        ("worker 3 was killed by SIGKILL", (True, None)),
        (
            "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.",
            (None, None),
        ),
        ("The worker may have been killed by signal SIGKILL, for example by the OOM killer", (None, None)),
        ('state {"Running":false,"OOMKilled":false,"Dead":false,"Pid":0,"ExitCode":137}', (True, False)),
        ('state {"Running":false,"OOMKilled":true,"Dead":false,"Pid":0,"ExitCode":137}', (True, True)),
        ("Task was killed due to the node running low on memory.", (True, True)),
    ],
)
def test_a_line_of_a_log_says_that_it_was_killed_not_why(line: str, expected: tuple[bool | None, bool | None]) -> None:
    assert told(("server.log", LOG + line + "\n")) == expected


def test_what_is_missing_is_asked_for() -> None:
    snapshot = Snapshot((memory_member("server.log", (LOG + "container exited with code 137\n").encode()),))
    fact = diagnose(snapshot, ()).main.facts[OOM]
    assert isinstance(fact, Unknown)
    assert "kubectl describe pod" in fact.hint
    assert "dmesg -T" in fact.hint


def test_a_kill_beside_the_server_stands_on_the_time_line() -> None:
    text = pod(RUNNING, container(*SIDECAR, "OOMKilled"))
    snapshot = Snapshot((memory_member("d.txt", text.encode()), memory_member("server.log", LOG.encode())))
    assert any("beside the server" in entry.what for entry in diagnose(snapshot, ()).main.timeline)


@pytest.mark.parametrize(
    ("name", "image", "limits", "server", "accelerated"),
    [
        ("x", "vllm/vllm-openai:v1", {}, "vllm", False),
        ("ollama", "acme/tool", {}, "ollama", False),
        ("x", "ghcr.io/ggml-org/llama.cpp:server-cuda", {}, "llama.cpp", False),
        ("x", "acme/tool", {"amd.com/gpu": 1.0}, "", True),
        ("x", "acme/tool", {"gpu.intel.com/i915": 1.0}, "", True),
        ("x", "acme/tool", {"nvidia.com/mig-1g.10gb": 1.0}, "", True),
        ("x", "acme/tool", {"google.com/tpu": 4.0}, "", True),
        ("x", "acme/tool", {"nvidia.com/gpu": 0.0, "memory": 1.0, "rdma/hca": 1.0}, "", False),
    ],
)
def test_a_container_tells_what_it_is(
    name: str, image: str, limits: dict[str, float], server: str, accelerated: bool
) -> None:
    one = kernel.Container(name, image, False, None, None, 0, limits, {}, 1)
    assert (one.server, one.accelerated) == (server, accelerated)


def failed(*files: tuple[str, str], salt: bytes = b"1" * 32) -> bool | None:
    """Whether a failure is reported; the redacted snapshot says the same."""
    snapshot = Snapshot(tuple(memory_member(name, text.encode()) for name, text in files))
    said = [flag(diagnose(one, ()).main.facts[FAILED]) for one in (snapshot, redact(snapshot, salt=salt))]
    assert said[0] == said[1]
    return said[0]


FAILED = "target.failure_reported"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pod(container(*SERVER, "Error", 139)), True),
        (pod(container(*SERVER, "Error", 1)), True),
        (pod(container(*SERVER, "Completed", 0)), False),
        (pod(container(*SERVER, "Error", 143)), False),
        (pod(container(*SERVER, "OOMKilled", 137)), False),
        (pod(RUNNING, container(*SIDECAR, "Error", 139)), False),
    ],
    ids=["segmentation fault", "an error", "done", "asked to end", "a kill has its own fact", "a sidecar's end"],
)
def test_a_container_that_failed_is_a_failure_of_the_server(text: str, expected: bool) -> None:
    assert failed(("server.log", LOG), ("pod.txt", text)) is expected


@pytest.mark.parametrize(("hours", "expected"), [(0.5, True), (30.0, False)], ids=["just before", "the day before"])
def test_a_failure_long_before_is_no_failure_of_this_run(hours: float, expected: bool) -> None:
    finished = format_datetime(datetime.fromtimestamp(PAGE_AT - hours * 3600, UTC))
    text = pod(container("engine", "vllm/vllm-openai:v0.22.0", "Error", 139)).replace(
        "    Restart", f"      Finished:     {finished}\n    Restart"
    )
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.4\nvllm:num_requests_running{engine="0"} 1\n'
    files = (memory_member("a.prom", page.encode(), time=PAGE_AT), memory_member("pod.txt", text.encode()))
    report = diagnose(Snapshot(files), ())
    assert flag(report.main.facts[FAILED]) is expected
    assert any("139 (SIGSEGV)" in entry.what for entry in report.main.timeline)


PAGE_AT = 1_790_000_000.0
