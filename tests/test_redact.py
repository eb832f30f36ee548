"""The law of redaction, and what each kind of source keeps."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from pathlib import Path

import pytest
from corpus import CASES, SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from redact_helpers import archived, judged

from kvdoctor.derive.kills import names_server
from kvdoctor.engines.base import engines
from kvdoctor.kvsize import kv_size
from kvdoctor.normalise import normalise
from kvdoctor.parse import Unread, benchcsv, endpoints, gpu, iterstats, kernel, logevents, probe_result, torch_snapshot
from kvdoctor.redact import RAW_NOTE, documents, redact
from kvdoctor.redact import host as host_room
from kvdoctor.redact.limit import limit
from kvdoctor.redact.veil import Origins, Veil
from kvdoctor.snapshot import Member, Missing, Snapshot, memory_member, read_paths

VEIL = Veil(b"v" * 32)


def taken(*members: Member) -> Snapshot:
    return Snapshot(members, (), {}, 1_785_207_600.0)


# ---------------------------------------------------------------- the law


@pytest.mark.parametrize("folder", [*SAMPLES, *CASES], ids=lambda p: p.name)
def test_a_diagnosis_of_the_redacted_snapshot_is_the_same(folder: Path) -> None:
    original = read_paths([folder])
    back, _ = archived(original)
    # a journal becomes two members: the server's events and the kernel's lines
    assert len({m.origin for m in back.members}) + len(back.missing) == len(original.members) + len(original.missing)
    assert back.warnings == () or original.warnings
    assert judged(back) == judged(original)


@given(data=st.data())
@settings(max_examples=25)
def test_the_law_holds_for_any_part_of_any_snapshots_and_any_key(data: st.DataObject) -> None:
    folders = data.draw(st.lists(st.sampled_from([*SAMPLES, *CASES]), min_size=1, max_size=2, unique=True))
    original = read_paths(folders)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(original.members), max_size=len(original.members)))
    members = tuple(m for m, keep in zip(original.members, chosen, strict=True) if keep)
    part = dataclasses.replace(original, members=members)
    back, _ = archived(part, salt=data.draw(st.binary(min_size=16, max_size=32)))
    assert judged(back) == judged(part)


def test_redacting_again_changes_no_diagnosis() -> None:
    original = read_paths([SAMPLES[-1]])
    once, _ = archived(original)
    twice, _ = archived(once, salt=b"another" * 4)
    assert judged(twice) == judged(original)


def test_the_same_key_gives_the_same_bytes_and_the_key_is_not_in_them() -> None:
    original = read_paths([SAMPLES[0]])
    salt = b"8bytes! and some more than that."
    first, everything = archived(original, salt=salt)
    second, _ = archived(original, salt=salt)
    assert [m.read() for m in first.members] == [m.read() for m in second.members]
    assert salt not in everything


# ---------------------------------------------------------------- logs

LOG = """INFO 07-28 03:00:01 [logger.py:41] Received request cmpl-1: prompt: 'private words', params: SamplingParams(max_tokens=64), prompt_token_ids: [1, 2, 3], lora_request: None.
WARNING 07-28 03:00:02 scheduler.py:900] Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. total_num_cumulative_preemption=1
WARNING 07-28 03:00:03 scheduler.py:900] Sequence group cmpl-2 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. total_num_cumulative_preemption=2
INFO 07-28 03:00:04 llm_engine.py:161] Initializing an LLM engine (v0.6.3) with config: model='/srv/umbrella/llama-3-8b', tokenizer='x', max_seq_len=4096, tensor_parallel_size=2, quantization=awq, kv_cache_dtype=auto, seed=7
"""


def _events(text: str, **options: bool) -> list[dict[str, object]]:
    reduced = redact(taken(memory_member("server.log", text.encode())), salt=b"k" * 32, **options)
    document = json.loads(reduced.members[0].read())
    events: list[dict[str, object]] = document["events"]
    return events


def _by(events: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [e["f"] for e in events if e["e"] == kind]  # type: ignore[misc]


def test_request_ids_stay_linkable_and_only_within_one_capture() -> None:
    events = _events(LOG)
    (asked,) = _by(events, "request_in")
    first, second = _by(events, "preempt")
    assert asked["id"] == first["id"] != second["id"]
    assert (asked["prompt_tokens"], asked["max_tokens"]) == (3.0, 64.0)
    other = redact(taken(memory_member("server.log", LOG.encode())), salt=b"j" * 32).members[0].read()
    assert str(asked["id"]).encode() not in other


def test_settings_keep_numbers_words_and_the_models_base_name() -> None:
    (found,) = [e["settings"] for e in _by(_events(LOG), "args")]
    assert isinstance(found, dict)
    assert found["tensor_parallel_size"] == "2"
    assert found["quantization"] == "awq"
    assert found["model"].endswith("/llama-3-8b")
    assert not {"tokenizer", "seed"} & found.keys()
    assert "umbrella" not in json.dumps(found)


def test_settings_nobody_knows_stay_comparable() -> None:
    one, same, other = (VEIL.settings({"acme_knob": value}) for value in ("a", "a", "b"))
    assert one == same
    assert one.keys() == other.keys()
    assert one != other
    assert "acme" not in str(one)


def test_events_read_back_as_they_were_written() -> None:
    reduced = redact(taken(memory_member("server.log", LOG.encode())), salt=b"k" * 32)
    loaded = logevents.load(reduced.members[0].read().decode())
    assert not isinstance(loaded, Unread)
    name, log = loaded
    assert (name, log.lines, log.bad_lines) == ("vllm", 4, 0)
    assert [e.line for e in log.events] == sorted(e.line for e in log.events)
    assert logevents.dump(name, log) == reduced.members[0].read()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": "kvdoctor.log/1"}',
        '{"schema": "kvdoctor.log/2", "events": []}',
        "null",
        "[" * 100_000,
    ],
)
def test_a_document_of_another_shape_is_not_read(text: str) -> None:
    assert isinstance(logevents.load(text), Unread)


def test_rows_of_another_shape_are_counted() -> None:
    rows = [{"t": "a", "e": "stats", "f": {"running": 1.0, "deep": {"x": 1}}, "n": 1}, 7, {"f": {}}, {"f": [], "n": 1}]
    loaded = logevents.load(json.dumps({"schema": logevents.SCHEMA, "engine": None, "events": rows}))
    assert not isinstance(loaded, Unread)
    _, log = loaded
    assert [dict(e.fields) for e in log.events] == [{"running": 1.0}]
    assert log.bad_lines == 3


def test_a_stranger_s_document_is_a_note_not_a_crash() -> None:
    broken = memory_member("events.json", b'{"schema": "kvdoctor.log/1", "events": 3}', kind="log-events")
    assert any("could not be read" in s.status for s in normalise(taken(broken)).sources)


def test_raw_logs_are_kept_as_they_are_and_say_so() -> None:
    reduced = redact(taken(memory_member("server.log", LOG.encode())), salt=b"k" * 32, include_raw_logs=True)
    assert reduced.members[0].read() == LOG.encode()
    assert reduced.members[0].redactions == (RAW_NOTE,)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("tiny.gguf", "tiny.gguf"),
        ("llama3:8b", "llama3:8b"),
        ("/models/llama-3-8b/", None),
        ("jane@corp.example", None),
        ("a prompt of words", None),
    ],
)
def test_a_model_keeps_its_base_name(given_name: str, kept: str | None) -> None:
    reduced = VEIL.model(given_name)
    if kept is not None:
        assert reduced == kept
    elif "/" in given_name:
        assert reduced.endswith("/llama-3-8b")
        assert "models" not in reduced
    else:
        assert reduced == VEIL.token(given_name)


@pytest.mark.parametrize(
    ("said", "kept"),
    [("0.32.0+cu128", "0.32.0+cu128"), ("0.32.1rc2.dev5+g1a2b3c4d5", "0.32.1rc2.dev5+g1a2b3c4d5"), ("0.32.0+acme", "0.32.0"),
     ("b5012-deadbee", "b5012-deadbee"), ("b5012-umbrella", "b5012")],
)  # fmt: skip
def test_a_version_keeps_number_stage_and_build(said: str, kept: str) -> None:
    assert VEIL.version(said) == kept


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (
            "/opt/acme/bin/python3.11 -m vllm.entrypoints.openai.api_server --model m7 --user ann --max-num-seqs 8",
            "python3.11 -m vllm.entrypoints.openai.api_server --model m7 * --max-num-seqs 8",
        ),
        ("VLLM::EngineCore_DP0", "VLLM::EngineCore_DP0"),
        ("vllm serve acme-model --token k", "vllm serve *"),
        ("trtllm-serve --max_num_tokens=4096 --backend=acme", "trtllm-serve --max_num_tokens=4096 *"),
    ],
)
def test_a_command_keeps_programs_and_known_flags(line: str, kept: str) -> None:
    assert VEIL.command(line) == kept


def test_a_command_nobody_knows_is_told_apart_from_another() -> None:
    one, other = VEIL.command("acme-etl --run"), VEIL.command("acme-web")
    assert one.startswith("process-x")
    assert one != other


def test_a_mark_in_a_part_that_was_cut_stays() -> None:
    assert VEIL.command("/opt/vllm-acme/launcher").endswith("vllm")


def test_origins_keep_places_rotation_order_and_port() -> None:
    names = Origins([
        ("a/acme/server.log", "log"), ("a/acme/server.log.1", "log"), ("a/acme/metrics_10.prom", "metrics"),
        ("a/acme/metrics_9.prom", "metrics"), ("b/server.log", "log"), ("http://u:p@acme.example:8123/metrics?key=x", "metrics"),
    ])  # fmt: skip
    assert names["a/acme/server.log.1"].rpartition(".")[0] == names["a/acme/server.log"]
    assert names["b/server.log"].rpartition("/")[0] != names["a/acme/server.log"].rpartition("/")[0]
    nine, ten = names["a/acme/metrics_9.prom"], names["a/acme/metrics_10.prom"]
    assert int(nine.rsplit("metrics", 1)[1]) < int(ten.rsplit("metrics", 1)[1])
    assert names["http://u:p@acme.example:8123/metrics?key=x"] == "http://host1:8123/metrics"


def test_settings_a_comparison_ignores_are_dropped_not_hashed() -> None:
    """A hashed name would be compared; the two lists may not drift apart."""
    from kvdoctor.derive import group

    kept = {name: VEIL.settings({name: "x1"}) for name in group._IGNORED}
    wrong = {name for name, out in kept.items() if out and name not in out}
    assert wrong == set()


# ---------------------------------------------------------------- metrics

PAGE = """# HELP vllm:num_requests_running customers of Umbrella
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="/srv/umbrella/m1",instance="10.0.0.9:8000"} 3
vllm:num_requests_running{engine="1",model_name="/srv/umbrella/m1",instance="10.0.0.9:8000"} 5
vllm:kv_cache_usage_perc{engine="0"} NaN
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",tenant="a"} 2
vllm:request_success_total{engine="0",finished_reason="stop",tenant="b"} 4
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 1
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 2
vllm:cache_config_info{block_size="16",num_gpu_blocks="400",hf_secret="s"} 1
umbrella_revenue 12
"""


def test_a_page_reads_the_same_and_holds_only_known_series() -> None:
    original = taken(memory_member("m.prom", PAGE.encode()))
    reduced = redact(original, salt=b"k" * 32)
    text = reduced.members[0].read().decode()
    assert "umbrella" not in text.lower()
    assert "HELP" not in text
    before, after = normalise(original).targets[0], normalise(reduced).targets[0]
    one, other = before.scrapes[0], after.scrapes[0]
    assert {r: {k: v.value for k, v in t.items()} for r, t in one.values.items()} == {
        r: {k: v.value for k, v in t.items()} for r, t in other.values.items()
    }
    assert {r: {k: h[0] for k, h in t.items()} for r, t in one.histograms.items()} == {
        r: {k: h[0] for k, h in t.items()} for r, t in other.histograms.items()
    }
    assert after.args["num_gpu_blocks"] == "400"
    assert other.model.endswith("/m1")


def test_two_servers_stay_two() -> None:
    pages = [memory_member(f"{n}.prom", PAGE.replace("10.0.0.9", f"10.0.0.{n}").encode()) for n in (1, 2)]
    original = taken(*pages)
    assert len(normalise(original).targets) == len(normalise(redact(original, salt=b"k" * 32)).targets) == 2


@pytest.mark.parametrize("name", [e.name for e in engines().values() if e.metric_prefixes])
def test_a_page_whose_series_nobody_reads_is_still_its_engine_s(name: str) -> None:
    prefix = engines()[name].metric_prefixes[0]
    original = taken(memory_member("m.prom", f"{prefix}acme_thing 1\n{prefix}acme_other 2\n".encode()))
    before, after = normalise(original), normalise(redact(original, salt=b"k" * 32))
    assert [t.engine for t in before.targets] == [t.engine for t in after.targets]


# ---------------------------------------------------------------- host

GPU_TEXTS = {
    "query": "index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], clocks.sm [MHz], power.draw [W], clocks_throttle_reasons.active, mig.mode.current\n"
    "0, NVIDIA H100 80GB HBM3, 70123 MiB, 81559 MiB, 97 %, 1410 MHz, 350.12 W, 0x0000000000000044, Disabled\n"
    "1, NVIDIA H100 80GB HBM3, [N/A], [N/A], [N/A], 375 MHz, [N/A], 0x0000000000000200, Enabled\n",
    "apps": "pid, process_name, used_gpu_memory [MiB]\n1200, VLLM::EngineCore, 1000 MiB\n1300, [N/A], [N/A]\n",
    "apps-empty": "pid, process_name, used_gpu_memory [MiB]\n",
    "table": """Tue Jul 28 03:00:15 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0            120W /  700W |   70123MiB /  81559MiB |     97%      Default |
| Processes:                                                                              |
|    0   N/A  N/A      1200      C   VLLM::EngineCore                            70000MiB |
+-----------------------------------------------------------------------------------------+
""",
}  # fmt: skip


def _plain(item: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(item)
    skip = {"line", "uuid", "gpu_uuid", "used_includes_reserved", "gpu_index", "gi", "ci", "kind"}
    out: dict[str, object] = {}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if field.name not in skip:
            out[field.name] = (
                "unread" if isinstance(value, Unread) else round(value, 3) if isinstance(value, float) else value
            )
    return out


@pytest.mark.parametrize("form", GPU_TEXTS)
def test_gpu_text_reads_the_same(form: str) -> None:
    before = gpu.parse(GPU_TEXTS[form])
    assert isinstance(before, gpu.GpuReport)
    after = gpu.parse(host_room.gpu(before, VEIL).decode())
    assert isinstance(after, gpu.GpuReport)
    assert [_plain(r) for r in before.readings] == [_plain(r) for r in after.readings]
    assert [_plain(p) for p in before.processes] == [_plain(p) for p in after.processes]
    assert (before.processes_listed, before.driver) == (after.processes_listed, after.driver)


KERNEL = """[Tue Jul 28 03:00:15 2026] NVRM: Xid (PCI:0000:2b:00): 31, pid=1201, name=python3, channel 0x08
2026-07-28T03:00:16.250000+02:00 gpu7 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods/acme,task=python,pid=4177,uid=0
2026-07-28T03:00:16.250000+02:00 gpu7 kernel: Memory cgroup out of memory: Killed process 4177 (python) total-vm:61220340kB, anon-rss:33011200kB, file-rss:71232kB, shmem-rss:0kB
Jul 28 03:00:17 gpu7 kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4242]
Jul 28 03:00:17 gpu7 kernel: RIP: 0010:uvm_va_block_unmap+0x1/0x2 [nvidia_uvm]
[ 1234.500000] INFO: task python:99 blocked for more than 120 seconds.
"""


def test_kernel_lines_read_the_same() -> None:
    before = kernel.kernel_log(KERNEL)
    assert isinstance(before, kernel.KernelLog)
    after = kernel.kernel_log(host_room.kernel(before, VEIL).decode())
    assert isinstance(after, kernel.KernelLog)
    assert len(before.xids) == len(before.kills) == 1
    assert len(before.stalls) == 2
    for one, other in zip(
        (*before.xids, *before.kills, *before.stalls), (*after.xids, *after.kills, *after.stalls), strict=True
    ):
        skip = {"line": 0, "message": "", "cgroup": ""}
        assert {**dataclasses.asdict(one), **skip} == {**dataclasses.asdict(other), **skip}


def test_a_quiet_kernel_log_stays_a_kernel_log() -> None:
    before = kernel.kernel_log("[   12.500000] usb 1-1: new device of Umbrella\n")
    assert isinstance(before, kernel.KernelLog)
    text = host_room.kernel(before, VEIL).decode()
    assert "Umbrella" not in text
    assert isinstance(kernel.kernel_log(text), kernel.KernelLog)


def test_processes_read_the_same() -> None:
    before = kernel.ps(
        "USER PID PPID STAT RSS %CPU %MEM ELAPSED STARTED COMMAND\n"
        "root 1300 1 Sl 2048 312.5 1.2 1-02:03:04 Tue Jul 28 03:00:15 2026 python3 -m sglang.launch_server\n"
        "ann 1400 1300 Z 0 0.0 0.0 05:00 Tue Jul 28 03:10:15 2026 acme-tool\n"
    )
    assert isinstance(before, kernel.ProcessTable)
    after = kernel.ps(host_room.ps(before, VEIL).decode())
    assert isinstance(after, kernel.ProcessTable)
    assert after.bad_count == 0
    for one, other in zip(before.processes, after.processes, strict=True):
        for name in ("pid", "ppid", "state", "rss", "cpu", "mem", "elapsed", "start"):
            assert getattr(one, name) == getattr(other, name), name
    assert after.processes[0].command == "python3 -m sglang.launch_server"
    assert isinstance(after.processes[0].user, Unread)


USAGES = {
    "docker": "Tue Nov  3 06:00:00 UTC 2026\nCONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %\n"
    "4f1c0e9b2a77   vllm-eu   98.1%    18.2GiB / 125.6GiB   14.49%\n5f1c0e9b2a77   acme-db   8.1%    412.1MB / 125.6GiB   0.49%\n",
    "kubectl": "NAMESPACE  NAME     CPU(cores)   MEMORY(bytes)\nacme  vllm-0   1430m  18200Mi\n",
    "proc": "2026-11-03T08:00:00Z pid=4711 VmRSS: 9011220 kB\n2026-11-03T10:00:00Z pid=4711 VmRSS: 9011230 kB\n",
    "mixed": "VmRSS:\t 77 kB\n2026-11-03 08:00:00\nPID PPID COMMAND\n12 1 vllm\n/proc/12/status:VmRSS:  78 kB\n"
    "PID PPID COMMAND\n12 1 vllm\n",
}


@pytest.mark.parametrize("form", USAGES)
def test_memory_of_containers_pods_and_processes_reads_the_same(form: str) -> None:
    before = kernel.ps(USAGES[form])
    assert isinstance(before, kernel.ProcessTable)
    text = host_room.ps(before, VEIL).decode()
    assert "acme" not in text
    after = kernel.ps(text)
    assert isinstance(after, kernel.ProcessTable)
    assert after.bad_count == 0
    assert [(u.kind, u.memory, u.time) for u in after.usages] == [(u.kind, u.memory, u.time) for u in before.usages]
    assert [names_server(u.name) for u in after.usages] == [names_server(u.name) for u in before.usages]
    assert [after.time_of(p) for p in after.processes] == [before.time_of(p) for p in before.processes]


POD = """Name:         llm-0
Namespace:    acme
Status:       Running
Start Time:   Tue, 28 Jul 2026 03:00:15 +0000
Init Containers:
  prepare:
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
Containers:
  server:
    Image:          registry/acme/llm:1
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Tue, 28 Jul 2026 03:00:20 +0000
      Finished:     Tue, 28 Jul 2026 03:10:20 +0000
    Restart Count:  3
    Limits:
      cpu:             8
      memory:          64Gi
      nvidia.com/gpu:  1
Events:
  Type     Reason   Age                From     Message
  Warning  BackOff  5m (x3 over 10m)   kubelet  Back-off restarting acme

Name:  llm
Reference:  Deployment/llm
Metrics:  ( current / target )
  "vllm:num_requests_waiting" on pods:  7 / 10
  resource cpu on pods  (as a percentage of request):  45% (450m) / 90%
Min replicas:  1
Max replicas:  4
Deployment pods:  2 current / 3 desired
"""


def test_kubernetes_reads_the_same() -> None:
    before = kernel.kubectl(POD)
    assert isinstance(before, kernel.Kube)
    text = host_room.kube(before, VEIL).decode()
    assert "acme" not in text
    after = kernel.kubectl(text)
    assert isinstance(after, kernel.Kube)
    (pod,), (same,) = before.pods, after.pods
    assert (pod.status, pod.started) == (same.status, same.started)
    for one, other in zip(pod.containers, same.containers, strict=True):
        for name in ("init", "restarts", "limits", "requests"):
            assert getattr(one, name) == getattr(other, name), name
        for state in ("state", "last_state"):
            x, y = getattr(one, state), getattr(other, state)
            assert (x is None) == (y is None)
            if x is not None:
                assert dataclasses.replace(x, line=0) == dataclasses.replace(y, line=0)
    assert [(e.kind, e.reason, e.age) for e in same.events] == [("Warning", "BackOff", "5m")]
    (scaler,), (again,) = before.autoscalers, after.autoscalers
    assert [dataclasses.replace(m, line=0) for m in scaler.metrics] == [
        dataclasses.replace(m, line=0) for m in again.metrics
    ]
    assert (scaler.replicas_min, scaler.replicas_max, scaler.replicas_current, scaler.replicas_desired) == (
        again.replicas_min, again.replicas_max, again.replicas_current, again.replicas_desired,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.max", "max\n"),
        ("memory.current", "123456789\n"),
        (
            "x",
            "memory.stat:anon 5\nmemory.stat:file 7\nmemory.stat:inactive_file 3\nmemory.events:oom_kill 2\nmemory.max:99\n",
        ),
        ("x", "==> memory.limit_in_bytes <==\n1000\n==> memory.stat <==\ntotal_rss 5\ntotal_cache 6\n"),
    ],
)
def test_cgroup_files_read_the_same(name: str, text: str) -> None:
    before = kernel.cgroup(text, name=name)
    assert isinstance(before, kernel.CgroupMemory)
    after = kernel.cgroup(host_room.cgroup(before).decode())
    assert isinstance(after, kernel.CgroupMemory)
    for field in dataclasses.fields(before):
        if field.name not in ("where", "lines", "bad", "bad_count"):
            assert getattr(before, field.name) == getattr(after, field.name), field.name


def test_meminfo_reads_the_same() -> None:
    before = kernel.meminfo("MemTotal: 1000 kB\nMemAvailable: 400 kB\nCached: 30 kB\nHugePages_Total: 0\n")
    assert isinstance(before, kernel.MemInfo)
    after = kernel.meminfo(host_room.meminfo(before).decode())
    assert isinstance(after, kernel.MemInfo)
    assert dict(after.values) == {"MemTotal": 1024000, "MemAvailable": 409600, "Cached": 30720}


# ---------------------------------------------------------------- documents

_NUMBERS = st.none() | st.integers(0, 10**9).map(float) | st.floats(0, 1e6, allow_nan=False)


@given(st.fixed_dictionaries({f.name: _NUMBERS for f in dataclasses.fields(iterstats.IterationRow) if f.name not in ("line", "time")}))  # fmt: skip
def test_iteration_rows_read_back_whole(values: dict[str, float | None]) -> None:
    row = iterstats.IterationRow(1, 1_785_207_615.25, **values)
    text = documents.iterations(iterstats.IterationStats("", (row,), (), 0, 1)).decode()
    back = iterstats.parse(text)
    assert isinstance(back, iterstats.IterationStats)
    for field in dataclasses.fields(row):
        one, other = getattr(row, field.name), getattr(back.rows[0], field.name)
        assert (one is None) == (other is None), field.name
        assert one is None or math.isclose(one, other, rel_tol=1e-12), field.name


@pytest.mark.parametrize("name", benchcsv.COLUMNS)
def test_every_benchmark_column_has_a_header_that_is_read_as_it(name: str) -> None:
    load, result = ("concurrency", "goodput")
    shown = dict.fromkeys((name, load, result))
    values = {n: 0.25 if benchcsv.COLUMNS[n][0] == "1" else 3.5 for n in shown}
    text = ",".join(documents.bench_header(n) for n in shown) + "\n" + ",".join(str(values[n]) for n in shown) + "\n"
    table = benchcsv.parse(text)
    assert isinstance(table, benchcsv.BenchTable)
    assert dict(table.rows[0].values) == values


def test_a_benchmark_table_keeps_numbers_and_tells_other_columns_apart() -> None:
    before = benchcsv.parse(
        "concurrency,tpot_ms,kv_usage,policy,owner\n4,20,0.5,round-robin,ann\n8,25,0.9,acme-router,ann\n16,40,1,acme-router,bob\n"
    )
    assert isinstance(before, benchcsv.BenchTable)
    text = documents.bench(before, VEIL).decode()
    after = benchcsv.parse(text)
    assert isinstance(after, benchcsv.BenchTable)
    assert [dict(r.values) for r in before.rows] == [dict(r.values) for r in after.rows]
    policies = [r.policy for r in after.rows]
    assert policies[0] == "round-robin"
    assert policies[1] == policies[2] != "acme-router"
    owners = [tuple(r.settings.values()) for r in after.rows]
    assert owners[0] == owners[1] != owners[2]


SLOTS = '[{"id": 0, "id_task": 7, "is_processing": true, "n_ctx": 512, "n_prompt_tokens": 9, "prompt": "p", "params": {"n_predict": 64, "grammar": "g"}, "next_token": [{"n_decoded": 3, "n_remain": 61}]}, {"id": 1, "is_processing": false, "n_ctx": 512}]'
INFO = '{"version": "0.5.23", "mem_fraction_static": 0.85, "max_total_num_tokens": 5000, "schedule_policy": "lpm", "log_level": "info", "disable_radix_cache": false, "internal_states": [{"last_gen_throughput": 1.5, "memory_usage": {"weight": 1.2, "kvcache": 3.4, "token_capacity": 5000, "graph": {"a": 0.1, "b": 0.2}}}]}'
LOADS = '{"version": "0.5.23", "loads": [{"dp_rank": 0, "timestamp": 1785207615.5, "num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 90, "max_total_num_tokens": 100, "max_running_requests": 8, "token_usage": 0.9, "gen_throughput": 12.5, "memory": {"weight_gb": 1.5, "kv_cache_gb": 2, "graph_gb": 0.5}, "queues": {"grammar": 0, "retracted": 2}, "disaggregation": {"mode": "decode", "decode_transfer_queue_reqs": 4}}]}'
PROPS = '{"total_slots": 2, "model_path": "tiny.gguf", "build_info": "b5012-deadbee", "default_generation_settings": {"n_ctx": 512}}'


ROUTER = '{"model_id": "acme/m-7b", "model_sha": "ab12", "max_concurrent_requests": 128, "max_total_tokens": 8192, "max_batch_total_tokens": 121000, "version": "3.3.4"}'
CONFIG = '{"_name_or_path": "/home/me/secret", "architectures": ["SecretForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "auto_map": {"x": "secret"}}'


def test_a_model_config_keeps_what_its_size_follows_from() -> None:
    reduced = documents.model_config(CONFIG, VEIL)
    assert reduced is not None
    assert b"ecret" not in reduced
    assert kv_size(json.loads(reduced)).per_token == kv_size(json.loads(CONFIG)).per_token == 131072
    other = documents.model_config(CONFIG.replace('"llama"', '"acme-secret"'), VEIL)
    assert other is not None
    assert b"ecret" not in other
    assert kv_size(json.loads(other)).per_token is None


def test_router_information_keeps_its_limits() -> None:
    reduced = documents.router_info(ROUTER, VEIL)
    assert reduced is not None
    before, after = endpoints.router_info(ROUTER), endpoints.router_info(reduced.decode())
    assert isinstance(before, endpoints.ServerInfo)
    assert isinstance(after, endpoints.ServerInfo)
    assert (before.version, before.pool_tokens, before.states) == (after.version, after.pool_tokens, after.states)
    assert after.settings["max_total_tokens"] == "8192"


def test_endpoint_answers_read_the_same() -> None:
    for read, reduce, text in (
        (endpoints.slots, documents.slots, SLOTS),
        (endpoints.loads, documents.loads, LOADS),
        (endpoints.props, documents.props, PROPS),
    ):
        reduced = reduce(text, VEIL)
        assert reduced is not None
        assert read(reduced.decode()) == read(text)
    reduced = documents.server_info(INFO, VEIL)
    assert reduced is not None
    before, after = endpoints.server_info(INFO), endpoints.server_info(reduced.decode())
    assert isinstance(before, endpoints.ServerInfo)
    assert isinstance(after, endpoints.ServerInfo)
    assert (before.version, before.pool_tokens, before.states) == (after.version, after.pool_tokens, after.states)
    assert after.settings["schedule_policy"] == "lpm"
    assert after.settings["mem_fraction_static"] == "0.85"


@pytest.mark.parametrize("reduce", [documents.slots, documents.loads, documents.props, documents.server_info, documents.models, documents.version, documents.probe, documents.router_info, documents.model_config])  # fmt: skip
@given(text=st.text(max_size=60) | st.sampled_from(["[[[", "null", "3", "[1]", '{"loads": [1], "data": [2]}', '{"version": null}']))  # fmt: skip
@settings(max_examples=40)
def test_an_answer_of_another_shape_never_raises(reduce, text: str) -> None:  # type: ignore[no-untyped-def]
    assert reduce(text, VEIL) is None or isinstance(reduce(text, VEIL), bytes)


def test_an_allocator_snapshot_analyses_the_same() -> None:
    def block(at: int, size: int, state: str, asked: int) -> dict[str, object]:
        frames = [{"filename": "/home/ann/secret.py", "line": 3, "name": "acme"}]
        return {"address": at, "size": size, "requested_size": asked, "state": state, "frames": frames}

    mib = 1 << 20
    raw = {
        "segments": [
            {"device": 0, "address": 4096, "total_size": 20 * mib, "stream": 0, "segment_type": "large", "segment_pool_id": [0, 0], "is_expandable": False,
             "blocks": [block(4096, 8 * mib, "active_allocated", 7 * mib), block(4096 + 8 * mib, 12 * mib, "inactive", 0)]},
            {"device": 0, "address": 1 << 30, "total_size": 2 * mib, "stream": 0, "segment_type": "small", "segment_pool_id": [0, 1],
             "blocks": [block(1 << 30, 2 * mib, "active_awaiting_free", mib)]},
        ],
        "device_traces": [[{"action": "oom", "size": 64 * mib, "time_us": 5, "device_free": mib, "frames": []}, {"action": "alloc", "addr": 4096, "size": 7 * mib, "time_us": 4}]],
        "allocator_settings": {"max_split_size": -1, "owner": "ann"},
    }  # fmt: skip
    before = torch_snapshot.load(json.dumps(raw).encode())
    assert isinstance(before, torch_snapshot.TorchSnapshot)
    text = documents.torch(before)
    assert b"ann" not in text
    assert b"acme" not in text
    after = torch_snapshot.load(text)
    assert isinstance(after, torch_snapshot.TorchSnapshot)
    strip = {"stacks": (), "settings": {}, "ooms": (), "segments": ()}
    assert dataclasses.replace(before, **strip) == dataclasses.replace(after, **strip)  # type: ignore[arg-type]
    x, y = torch_snapshot.analyse(before, 0), torch_snapshot.analyse(after, 0)
    assert (x.external, x.largest_fit, x.free, x.requested, x.allocated) == (
        y.external,
        y.largest_fit,
        y.free,
        y.requested,
        y.allocated,
    )
    assert x.device_free == y.device_free == mib


def test_a_probe_result_reads_the_same_but_for_its_serial() -> None:
    text = json.dumps({
        "schema": "kvdoctor.probe/1", "device": {"name": "NVIDIA H200", "uuid": "GPU-1", "total_bytes": 9, "free_bytes": 8}, "stopped": None,
        "device_level": {"gap": 0.25, "limit_bytes": 7, "largest_single_bytes": 5, "largest_is_limit": False, "fit": [{"block_bytes": 2, "count": 3, "expected": 4, "counted_up_to": 9}]},
        "allocator_level": {"runs": [{"pattern": "paged", "settings": "expandable_segments:True", "requests": 5, "refused": 1, "external_max": 0.5}]},
    })  # fmt: skip
    before, reduced = probe_result.load(text), documents.probe(text, VEIL)
    assert reduced is not None
    assert isinstance(before, probe_result.ProbeResult)
    assert dataclasses.replace(before, device_uuid=None) == probe_result.load(reduced.decode())


def test_a_found_command_line_gives_the_same_known_settings() -> None:
    text = "vllm\n--model /srv/acme/m1 --max-num-seqs 5 --api-key sk-1 --enforce-eager --block-size=16 --acme-flag x"
    reduced = documents.command(text, VEIL)
    assert reduced is not None
    target = normalise(taken(memory_member("c", reduced, kind="command"))).targets[0]
    assert target.args["max_num_seqs"] == "5"
    assert target.args["block_size"] == "16"
    assert target.args["enforce_eager"] == "True"
    assert target.args["model"].endswith("/m1")
    assert b"acme" not in reduced
    assert b"sk-1" not in reduced


# ---------------------------------------------------------------- what is not written, and the cap


def test_what_nobody_understands_is_missing_with_a_reason() -> None:
    reduced = redact(taken(memory_member("acme-notes.txt", b"words of nobody's format\n")), salt=b"k" * 32)
    assert reduced.members == ()
    assert reduced.missing == (Missing("unknown", "file1", "not included: content not understood", ""),)


def test_reasons_of_missing_sources_are_told_in_own_words() -> None:
    entry = Missing("metrics", "http://acme:8000/metrics", "HTTPConnectionPool(host='acme'): timed out", "ask ann")
    reduced = redact(Snapshot((), (entry,)), salt=b"k" * 32)
    assert reduced.missing == (Missing("metrics", "http://host1:8000/metrics", "timed out", ""),)


def _many_events(count: int) -> str:
    stats = "INFO 07-28 03:{:02d}:{:02d} [loggers.py:127] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV cache usage: 91.0%, Prefix cache hit rate: 0.0%"
    return "\n".join(stats.format(i // 60, i % 60) for i in range(count)) + "\n"


def test_the_cap_cuts_the_oldest_frequent_events_and_says_so() -> None:
    reduced = redact(
        taken(memory_member("s.log", _many_events(600).encode()), memory_member("m.prom", PAGE.encode())),
        salt=b"k" * 32,
    )
    capped = limit(reduced, 40_000)
    assert sum(m.size for m in capped.members) <= 40_000
    log, page = capped.members
    assert page.read() == reduced.members[1].read()
    assert log.truncated
    assert any("cap" in r for r in log.redactions)
    events = json.loads(log.read())["events"]
    full = json.loads(reduced.members[0].read())["events"]
    assert events == full[-len(events) :]


def test_the_cap_keeps_the_last_lines_of_a_raw_log_and_names_what_does_not_fit() -> None:
    text = _many_events(600)
    whole = redact(taken(memory_member("s.log", text.encode())), salt=b"k" * 32, include_raw_logs=True)
    (log,) = limit(whole, 10_000).members
    assert 9_000 < log.size <= 10_000
    assert text.endswith(log.read().decode())
    assert log.read().startswith(b"INFO 07-28")
    page = redact(taken(memory_member("m.prom", (PAGE * 1).encode())), salt=b"k" * 32)
    capped = limit(page, 100)
    assert capped.members == ()
    assert capped.missing[0].reason == "left out: larger than the cap"


@pytest.mark.parametrize("size", [50, 5000])
def test_a_damaged_file_is_left_out_and_stops_nothing(size: int, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(PAGE.encode() * size))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "m.prom.gz").write_bytes(packed)
    (tmp_path / "server.log").write_text(LOG)
    original = read_paths([tmp_path])
    reduced = redact(original, salt=b"k" * 32)
    assert [m.kind for m in reduced.members] == ["log-events"]
    assert len(reduced.missing) == 1
    assert any("damaged" in s.status for s in normalise(original).sources)
    assert normalise(original).usable
