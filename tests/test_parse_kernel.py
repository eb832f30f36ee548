"""Kernel log, ps, cgroup files, meminfo and kubectl descriptions: right numbers, units and clocks; nothing invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse import Unread, kernel
from kvdoctor.parse.kernel import (
    CgroupMemory,
    KernelLog,
    Kube,
    MemInfo,
    NotThis,
    ProcessTable,
    cgroup,
    kernel_log,
    kubectl,
    meminfo,
    ps,
    quantity,
)

KIB = 1024
XID = "NVRM: Xid (PCI:0000:2b:00): 31, pid=1201, name=VLLM::EngineCor, channel 0x00000008, intr 0. MMU Fault"
KILL = (
    "Memory cgroup out of memory: Killed process 4177 (ray::RayWorkerW) total-vm:61220340kB, anon-rss:33011200kB, "
    "file-rss:71232kB, shmem-rss:0kB, UID:0 pgtables:66012kB oom_score_adj:0"
)


def log(text: str) -> KernelLog:
    read = kernel_log(text)
    assert isinstance(read, KernelLog), read
    return read


@pytest.mark.parametrize(
    ("head", "since_boot", "clock", "zoned", "no_year"),
    [
        ("[81234.112] ", 81234.112, None, False, None),
        ("<4>[   12.500000] ", 12.5, None, False, None),
        ("[Tue Jul 28 03:00:15 2026] ", None, 1785207615.0, False, None),
        ("2026-07-28T03:00:15,250000+02:00 ", None, 1785200415.25, True, None),
        ("2026-07-28T03:00:15+0000 host kernel: ", None, 1785207615.0, True, None),
        ("Jul 28 03:00:15 host kernel: [  12.500000] ", 12.5, None, False, "Jul 28 03:00:15"),
        ("", None, None, False, None),
    ],
)
def test_xid_with_every_clock(head: str, since_boot: float, clock: float, zoned: bool, no_year: str) -> None:
    (xid,) = log(f"{head}{XID}\n").xids
    assert (xid.number, xid.pci, xid.pid, xid.process, xid.line) == (31, "0000:2b:00", 1201, "VLLM::EngineCor", 1)
    assert xid.message.startswith("channel 0x00000008")
    stamp = xid.stamp
    assert (stamp.since_boot, stamp.clock, stamp.zoned, stamp.no_year) == (since_boot, clock, zoned, no_year)


@pytest.mark.parametrize(
    ("line", "number", "pid"),
    [
        ("NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.", 79, None),
        ("NVRM: Xid (0000:07:00): 13, Graphics Exception", 13, None),
        ("NVRM: Xid (PCI:0000:07:00): 94, pid='<unknown>', name=<unknown>, Contained", 94, None),
        ("NVRM: Xid (PCI:0000:07:00): 43, pid=77, Ch 00000010", 43, 77),
    ],
)
def test_older_xid_forms(line: str, number: int, pid: int | None) -> None:
    (xid,) = log(f"[1.0] {line}\n").xids
    assert xid.number == number
    assert xid.pid == pid if pid is not None else isinstance(xid.pid, Unread)
    assert isinstance(xid.process, Unread)


def test_an_xid_line_that_is_cut_is_counted() -> None:
    read = log(f"[1.0] NVRM: Xid (PCI:0000\n[2.0] {XID}\n")
    assert ([b.line for b in read.bad], len(read.xids)) == ([1], 1)


def test_a_kill_by_a_cgroup_with_its_sizes_and_group() -> None:
    (kill,) = log(
        "[81234.100] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,"
        "oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c,task=ray,pid=4177,uid=0\n"
        f"[81234.112] {KILL}\n"
    ).kills
    assert (kill.scope, kill.pid, kill.process, kill.line) == ("memcg", 4177, "ray::RayWorkerW", 2)
    assert (kill.constraint, kill.cgroup) == ("MEMCG", "/kubepods/pod1")
    assert (kill.anon_rss, kill.file_rss, kill.total_vm) == (33011200 * KIB, 71232 * KIB, 61220340 * KIB)
    assert kill.stamp.since_boot == 81234.112


def test_a_global_kill_in_the_two_lines_of_old_kernels_is_one() -> None:
    (kill,) = log(
        "[5.0] Out of memory: Kill process 12 (python) score 900 or sacrifice child\n"
        "[5.1] Killed process 12 (python) total-vm:100kB, anon-rss:50kB, file-rss:4kB\n"
    ).kills
    assert (kill.scope, kill.anon_rss, kill.line) == ("global", 50 * KIB, 1)


def test_a_kill_without_the_telling_words_does_not_guess_the_scope() -> None:
    (kill,) = log("[5.1] Killed process 12 (python) total-vm:100kB, anon-rss:50kB\n").kills
    assert isinstance(kill.scope, Unread)
    assert isinstance(kill.cgroup, Unread)


def test_a_soft_lockup_names_task_cpu_and_the_module_of_the_trace() -> None:
    read = log(
        "[Wed Sep 17 13:02:41 2025] watchdog: BUG: soft lockup - CPU#17 stuck for 26s! [VLLM::EngineCor:77637]\n"
        "[Wed Sep 17 13:02:41 2025] Call Trace:\n"
        "[Wed Sep 17 13:02:41 2025]  ? guessed_frame+0x1/0x2 [other]\n"
        "[Wed Sep 17 13:02:41 2025]  native_queued_spin_lock_slowpath+0x6d/0x110\n"
        "[Wed Sep 17 13:02:41 2025]  uvm_va_space_destroy+0x1f4/0x5a0 [nvidia_uvm]\n"
        "[Wed Sep 17 13:02:41 2025]  uvm_release.isra.0+0x7d/0x140 [nvidia_uvm]\n"
    )
    (stall,) = read.stalls
    assert (stall.kind, stall.process, stall.pid, stall.cpu) == ("soft_lockup", "VLLM::EngineCor", 77637, 17)
    assert (stall.seconds, stall.function, stall.module) == (26.0, "uvm_va_space_destroy", "nvidia_uvm")


def test_a_hung_task_and_a_hard_lockup() -> None:
    hung, hard = log(
        "[9.0] INFO: task VLLM::EngineCor:77637 blocked for more than 122 seconds.\n"
        "[9.1] Watchdog detected hard LOCKUP on cpu 3\n"
    ).stalls
    assert (hung.kind, hung.process, hung.pid, hung.seconds) == ("hung_task", "VLLM::EngineCor", 77637, 122.0)
    assert (hard.kind, hard.cpu) == ("hard_lockup", 3)
    assert isinstance(hard.pid, Unread)


def test_a_quiet_kernel_log_is_empty_and_another_log_is_not_one() -> None:
    assert log("[    0.000000] Linux version 6.8\n[Wed Sep 17 13:02:41 2025] usb 1-1\n").xids == ()
    assert isinstance(kernel_log("INFO 03-19 07:27:50 [x.py:1] Out of memory\n"), NotThis)


def table(text: str) -> ProcessTable:
    read = ps(text)
    assert isinstance(read, ProcessTable), read
    return read


def test_ps_aux() -> None:
    (row,) = table(
        "USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\n"
        "root        4177  150 42.5 61220340 33011200 ?   Rl   Sep17  62:05 python -m vllm serve  --x 1\n"
    ).processes
    assert (row.pid, row.user, row.state, row.command) == (4177, "root", "Rl", "python -m vllm serve  --x 1")
    assert (row.rss, row.vsz, row.cpu, row.mem) == (33011200 * KIB, 61220340 * KIB, 1.5, 0.425)
    assert (row.cpu_time, row.started, row.start) == (3725.0, "Sep17", None)
    assert isinstance(row.ppid, Unread)


def test_ps_ef_and_forest() -> None:
    row, child = table(
        "UID          PID    PPID  C STIME TTY          TIME CMD\n"
        "root       21961   21913  0 12:51 ?        1-00:00:05 VLLM::EngineCore\n"
        "root       21977   21961  0 12:51 ?        00:00:05  |   \\_ VLLM::Worker_TP0\n"
    ).processes
    assert (row.ppid, row.cpu_time, row.started) == (21913, 86405.0, "12:51")
    assert child.command == "VLLM::Worker_TP0"


def test_ps_eo_with_a_full_start_date_and_elapsed_time() -> None:
    (row,) = table(
        "    PID    PPID STAT                  STARTED     ELAPSED CMD\n"
        "  77637       1 D    Wed Sep 17 12:51:13 2025  1-02:03:04 VLLM::EngineCore\n"
    ).processes
    assert (row.ppid, row.state, row.start, row.elapsed) == (1, "D", 1758113473.0, 93784.0)
    assert row.command == "VLLM::EngineCore"


def test_ps_with_the_command_in_the_middle_and_a_row_that_is_cut() -> None:
    read = table("CMD                PID   RSS\npython -m x y       12   100\npyth\n")
    assert [(p.command, p.pid, p.rss) for p in read.processes] == [("python -m x y", 12, 100 * KIB)]
    assert [b.line for b in read.bad] == [3]


def test_without_a_header_ps_is_not_understood() -> None:
    assert isinstance(ps("root 1 0 Ss init\n"), NotThis)


def group(text: str, name: str = "") -> CgroupMemory:
    read = cgroup(text, name=name)
    assert isinstance(read, CgroupMemory), read
    return read


V2 = """\
/sys/fs/cgroup/memory.max:68719476736
/sys/fs/cgroup/memory.current:68000000000
/sys/fs/cgroup/memory.stat:anon 1000
/sys/fs/cgroup/memory.stat:file 60000000000
/sys/fs/cgroup/memory.stat:inactive_file 59000000000
/sys/fs/cgroup/memory.events:max 12
/sys/fs/cgroup/memory.events:oom_kill 1
"""


@pytest.mark.parametrize(
    "text",
    [
        V2,
        V2.replace("/sys/fs/cgroup/", ""),
        "==> memory.max <==\n68719476736\n\n==> memory.current <==\n68000000000\n\n==> memory.stat <==\nanon 1000\n"
        "file 60000000000\ninactive_file 59000000000\n==> memory.events <==\nmax 12\noom_kill 1\n",
    ],
)
def test_several_cgroup_files_in_one_text(text: str) -> None:
    memory = group(text)
    assert (memory.version, memory.limit, memory.current) == (2, 68719476736, 68000000000)
    assert (memory.anon, memory.inactive_file, memory.oom_kills, memory.limit_hits) == (1000, 59000000000, 1, 12)
    assert not memory.unlimited
    assert isinstance(memory.shmem, Unread)


def test_a_lone_number_needs_the_name_of_its_file() -> None:
    assert group("1024\n", name="/snap/memory.current").current == 1024
    assert isinstance(cgroup("1024\n"), NotThis)
    assert isinstance(cgroup("1024\n", name="count.txt"), NotThis)


def test_no_limit_is_no_number() -> None:
    for memory in (group("max\n", "memory.max"), group("9223372036854771712\n", "memory.limit_in_bytes")):
        assert memory.unlimited
        assert memory.limit == Unread("the group has no limit")


def test_version_1_counts_the_groups_below() -> None:
    memory = group("cache 5\nrss 7\ninactive_file 1\ntotal_cache 50\ntotal_rss 70\ntotal_inactive_file 10\n")
    assert (memory.version, memory.anon, memory.file, memory.inactive_file) == (1, 70, 50, 10)
    assert group("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "memory.oom_control").oom_kills == 3


def test_other_key_value_text_is_no_cgroup() -> None:
    assert isinstance(cgroup("apples 3\npears 4\n"), NotThis)


def test_meminfo_is_in_bytes_with_lines() -> None:
    read = meminfo("MemTotal:       24684084 kB\nMemAvailable:    1024 kB\nHugePages_Total:       3\nodd\n")
    assert isinstance(read, MemInfo)
    assert (read.get("MemTotal"), read.get("MemAvailable"), read.get("HugePages_Total")) == (
        24684084 * KIB,
        KIB * KIB,
        3,
    )
    assert isinstance(read.get("SwapFree"), Unread)
    assert (read.where["MemAvailable"], [b.line for b in read.bad]) == (2, [4])
    assert isinstance(meminfo("hello: 1 kB\n"), NotThis)


POD = """\
Name:             vllm-0
Namespace:        inference
Priority:         0
Node:             gpu-1/10.0.0.7
Start Time:       Tue, 28 Jul 2026 02:00:00 +0000
Labels:           app=vllm
Status:           Running
IP:               10.1.0.5
Init Containers:
  fetch:
    Image:          busybox
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
    Ready:          True
    Restart Count:  0
Containers:
  server:
    Container ID:  containerd://abc
    Image:         vllm/vllm-openai:v0.11.0
    Port:          8000/TCP
    State:          Running
      Started:      Tue, 28 Jul 2026 03:01:00 +0000
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Tue, 28 Jul 2026 02:00:05 +0000
      Finished:     Tue, 28 Jul 2026 05:00:15 +0200
    Ready:          True
    Restart Count:  4
    Limits:
      cpu:             7500m
      memory:          64Gi
      nvidia.com/gpu:  1
    Requests:
      memory:     32G
    Environment:  <none>
Conditions:
  Type              Status
  Ready             True
Events:
  Type     Reason   Age    From     Message
  ----     ------   ----   ----     -------
  Warning  BackOff  5m30s  kubelet  Back-off restarting failed container: server in pod vllm-0
"""


def test_a_described_pod() -> None:
    read = kubectl(POD + "\n\nName:             other\nContainers:\n  c:\n    Image:  x\n")
    assert isinstance(read, Kube)
    pod, other = read.pods
    assert (pod.name, pod.namespace, pod.status, other.name) == ("vllm-0", "inference", "Running", "other")
    fetch, server = pod.containers
    assert (fetch.init, server.init, server.image, server.restarts) == (True, False, "vllm/vllm-openai:v0.11.0", 4)
    assert server.limits == {"cpu": 7.5, "memory": 64 * 2**30, "nvidia.com/gpu": 1.0}
    assert server.requests == {"memory": 32e9}
    last = server.last_state
    assert last is not None
    assert (last.state, last.reason, last.exit_code, last.line) == ("Terminated", "OOMKilled", 137, 24)
    assert (last.started, last.finished) == (1785204005.0, 1785207615.0)
    assert server.state is not None
    assert (server.state.state, server.state.started) == ("Running", 1785207660.0)
    (event,) = pod.events
    assert (event.kind, event.reason, event.message) == (
        "Warning",
        "BackOff",
        "Back-off restarting failed container: server in pod vllm-0",
    )
    assert other.containers[0].last_state is None


HPA = """\
Name:                                                  m-server
Namespace:                                             inference
Reference:                                             Deployment/m-server
Metrics:                                               ( current / target )
  "vllm:num_requests_waiting" on pods:                 12500m / 5
  resource cpu on pods  (as a percentage of request):  45% (90m) / 80%
  "s0-prometheus" (target average value):              <unknown> / 10
Min replicas:                                          1
Max replicas:                                          8
Deployment pods:                                       6 current / 8 desired
Conditions:
  Type            Status  Reason            Message
  ----            ------  ------            -------
  ScalingLimited  True    TooManyReplicas   the desired replica count is more than the maximum replica count
Events:
  Type    Reason             Age   From                       Message
  ----    ------             ----  ----                       -------
  Normal  SuccessfulRescale  22m   horizontal-pod-autoscaler  New size: 4; reason: above target
"""


def test_a_described_autoscaler() -> None:
    read = kubectl(HPA)
    assert isinstance(read, Kube)
    (scaler,) = read.autoscalers
    waiting, cpu, unknown = scaler.metrics
    assert (waiting.name, waiting.current, waiting.target, waiting.line) == ("vllm:num_requests_waiting", 12.5, 5.0, 5)
    assert (cpu.name, cpu.current, cpu.target, cpu.unit) == ("cpu", 0.45, 0.8, "share")
    assert (unknown.name, unknown.current) == ("s0-prometheus", Unread("Kubernetes prints <unknown>"))
    assert (scaler.replicas_min, scaler.replicas_max) == (1, 8)
    assert (scaler.replicas_current, scaler.replicas_desired) == (6, 8)
    assert scaler.conditions == {"ScalingLimited": "True TooManyReplicas"}
    assert scaler.events[0].message == "New size: 4; reason: above target"


def test_a_keda_scaled_object_and_a_listed_autoscaler() -> None:
    read = kubectl(
        "Name:         vllm-scaler\nAPI Version:  keda.sh/v1alpha1\nKind:         ScaledObject\nSpec:\n"
        "  Max Replica Count:  8\n  Min Replica Count:  2\n  Triggers:\n    Metadata:\n"
        "      Query:           sum(vllm:num_requests_waiting)\n      Threshold:       5\n    Type:              prometheus\n\n"
        "NAME       REFERENCE             TARGETS              MINPODS   MAXPODS   REPLICAS   AGE\n"
        "m-server   Deployment/m-server   cpu: 45%/80%, 99/80  1         8         6          3d\n"
    )
    assert isinstance(read, Kube)
    keda, listed = read.autoscalers
    assert (keda.replicas_min, keda.replicas_max, keda.queries) == (2, 8, ("sum(vllm:num_requests_waiting)",))
    assert isinstance(keda.replicas_current, Unread)
    cpu, other = listed.metrics
    assert (cpu.name, cpu.current, cpu.target) == ("cpu", 0.45, 0.8)
    assert (other.current, other.target, listed.replicas_current) == (99.0, 80.0, 6)


def test_other_text_is_no_description() -> None:
    assert isinstance(kubectl("Name: x\nHobby: y\n"), NotThis)
    assert isinstance(kubectl(""), NotThis)


@pytest.mark.parametrize(
    ("text", "value"), [("64Gi", 64 * 2**30), ("500M", 5e8), ("1500m", 1.5), ("12", 12.0), ("2Ki", 2048.0)]
)
def test_kubernetes_quantities(text: str, value: float) -> None:
    assert quantity(text) == value


@given(st.sampled_from([POD, HPA, V2, XID + "\n" + KILL, "PID CMD\n1 a\n"]), st.data())
def test_damage_never_raises(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    damaged = text[:cut] + data.draw(st.text(max_size=30)) + text[min(len(text), cut + data.draw(st.integers(0, 30))) :]
    for read in (kernel_log, ps, cgroup, meminfo, kubectl):
        read(damaged)


@pytest.mark.parametrize(
    "piece", ["NVRM: Xid (PCI:", "soft lockup - CPU#1 stuck for 1s! [a:", "Killed process 1 (", " : : "]
)
def test_a_hostile_line_is_cut_before_it_is_read(piece: str) -> None:
    line = piece * 200_000
    for read in (kernel_log, ps, cgroup, meminfo, kubectl):
        assert read(line) is not None


# ---------------------------------------------------------------- journals, manifests, dated tables


def test_a_record_of_a_json_journal_is_a_dated_line() -> None:
    record = (
        '{"__REALTIME_TIMESTAMP":"1760069462000000","MESSAGE":"NVRM: Xid (PCI:0000:4e:00): 94, pid=214, Contained"}'
    )
    line = kernel.journal_line(record)
    log = kernel.kernel_log(line)
    assert isinstance(log, kernel.KernelLog)
    assert (log.xids[0].number, log.xids[0].stamp.clock) == (94, 1760069462.0)
    assert kernel.journal_line("Oct 10 04:11:04 gpu7 kernel: x") == "Oct 10 04:11:04 gpu7 kernel: x"
    assert kernel.journal_line('{"MESSAGE": 3}') == '{"MESSAGE": 3}'


@pytest.mark.parametrize(
    "text",
    [
        '[{"Id": "ab", "State": {"OOMKilled": true, "ExitCode": 137, "Running": false}}]',
        '{"apiVersion": "v1", "kind": "Pod", "status": {"containerStatuses": [{"lastState": {"terminated": '
        '{"exitCode": 137, "reason": "OOMKilled"}}}]}}',
        "apiVersion: v1\nkind: Pod\nstatus:\n  containerStatuses:\n  - lastState:\n      terminated:\n        exitCode: 137\n"
        "        reason: OOMKilled\n",
    ],
)
def test_manifests_tell_how_a_container_ended(text: str) -> None:
    found = kernel.kubectl(text)
    assert isinstance(found, kernel.Kube)
    (container,) = found.pods[0].containers
    assert container.last_state is not None
    assert (container.last_state.reason, container.last_state.exit_code) == ("OOMKilled", 137)


def test_a_manifest_without_a_state_is_not_used() -> None:
    assert isinstance(kernel.kubectl("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: b\n"), kernel.NotThis)
    assert isinstance(kernel.kubectl('{"apiVersion": "v1", "kind": "Pod", "status": {}}'), kernel.NotThis)


def test_a_container_that_still_runs_has_no_exit_code() -> None:
    found = kernel.kubectl('[{"Id": "ab", "State": {"OOMKilled": false, "ExitCode": 0, "Running": true}}]')
    assert isinstance(found, kernel.Kube)
    state = found.pods[0].containers[0].last_state
    assert state is not None
    assert isinstance(state.exit_code, Unread)


def test_a_scaled_object_names_its_query() -> None:
    found = kernel.kubectl(
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nspec:\n  triggers:\n  - type: prometheus\n    metadata:\n"
        "      query: avg(DCGM_FI_DEV_GPU_UTIL)\n"
    )
    assert isinstance(found, kernel.Kube)
    assert found.autoscalers[0].queries == ("avg(DCGM_FI_DEV_GPU_UTIL)",)


@pytest.mark.parametrize("date", ["2025-10-10 06:00:00", "== 2025-10-10T06:00:00Z ==", "Fri Oct 10 06:00:00 UTC 2025"])
def test_a_date_above_a_table_dates_its_rows(date: str) -> None:
    table = kernel.ps(f"{date}\n  PID  PPID   RSS CMD\n    8     1  1000 VLLM::EngineCore\n")
    assert isinstance(table, kernel.ProcessTable)
    assert table.time_of(table.processes[0]) == 1760076000.0
    assert table.bad_count == 0
