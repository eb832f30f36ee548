"""What a file is, told by its content."""

from __future__ import annotations

import json

import pytest
from corpus import CASES, SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from wrappers import WRAPPERS

from kvdoctor.engines import recognise
from kvdoctor.parse.sniff import HEAD, is_binary, sniff

MARKERS = recognise._markers()
STATS = (
    "INFO 11-29 13:04:50 [loggers.py:127] Engine 000: Avg prompt throughput: 472.5 tokens/s, Avg generation throughput: 351.5 "
    "tokens/s, Running: 8 reqs, Waiting: 52 reqs, GPU KV cache usage: 91.2%, Prefix cache hit rate: 0.0%\n"
)
KINDS = {
    "exposition": '# HELP vllm:num_requests_running n\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3.0\n',
    "log": STATS,
    "smi-query": "index, memory.used [MiB], memory.total [MiB]\n0, 70123 MiB, 81559 MiB\n",
    "smi-apps": "pid, process_name, used_gpu_memory [MiB]\n4711, python3, 70123 MiB\n",
    "smi-table": "+-----+\n| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15 |\n+-----+\n",
    "smi-q": "\n==============NVSMI LOG==============\n\nTimestamp : Sat Nov 29\n",
    "smi-xml": '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n',
    "kernel": "[Sat Nov 29 13:05:07 2025] NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008\n",
    "ps": "    PID    PPID STAT     RSS CMD\n   4711       1 Sl   1000000 VLLM::EngineCore\n",
    "kubectl": "Name:             vllm-0\nNamespace:        default\nStatus:           Running\nContainers:\n",
    "cgroup": "anon 1000\nfile 59000000\ninactive_file 5000\n",
    "meminfo": "MemTotal:       65851048 kB\nMemFree:         1212 kB\n",
    "iterstats": json.dumps({"iter": 1, "numActiveRequests": 3, "kvCacheStats": {"usedNumBlocks": 5}}) + "\n",
    "slots": json.dumps([{"id": 0, "id_task": 4, "n_ctx": 8192, "is_processing": True}]),
    "props": json.dumps({"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4}),
    "server-info": json.dumps({"internal_states": [{}], "mem_fraction_static": 0.9}),
    "router-info": json.dumps({"model_id": "acme/m", "max_concurrent_requests": 128, "max_batch_total_tokens": 9000}),
    "model-config": json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32}),
    "probe": json.dumps({"schema": "kvdoctor.probe/1", "device": None}),
    "log-events": json.dumps({"schema": "kvdoctor.log/1", "events": []}),
    "prometheus-answer": json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}),
    "loki-answer": json.dumps({"status": "success", "data": {"resultType": "streams", "result": []}}),
    "html": "<!doctype html><html><body>502 Bad Gateway</body></html>",
    "empty": " \n\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    assert sniff(KINDS[kind].encode(), MARKERS) == kind


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"empty"}))
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "crlf"])
def test_kinds_in_other_encodings(kind: str, encoding: str) -> None:
    text = KINDS[kind]
    raw = text.replace("\n", "\r\n").encode() if encoding == "crlf" else text.encode(encoding)
    assert sniff(raw, MARKERS) == kind


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_log_is_a_log(name: str) -> None:
    assert sniff(WRAPPERS[name](STATS * 3, 2026), MARKERS) == "log"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x7fELF\x02\x01\x01" + b"\x00" * 400,
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x01\x02\x03" * 20,
        b"PK\x03\x04\x14\x00\x00\x00\x08\x00" * 30,
    ],
    ids=["elf", "png", "zip"],
)
def test_binary(raw: bytes) -> None:
    assert is_binary(raw)
    assert sniff(raw, MARKERS) == "binary"


def test_a_log_that_begins_with_nuls_is_still_a_log() -> None:
    """A log that was truncated while a writer kept its offset begins with NULs."""
    assert sniff(b"\x00" * 5_000 + STATS.encode() * 3, MARKERS) == "log"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("just some notes about a server\n", "unknown"),
        ("WARNING: something happened\n", "log"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "log"),
        (STATS + "NVRM: Xid (PCI:0000:3b:00): 31 quoted in a server log\n", "log"),
        ("{}\n", "unknown"),
        ('{"log":"INFO 11-29 13:04:50 x\\n","stream":"stderr","time":"2025-11-29T13:04:50Z"}\n', "log"),
        ("Nov 29 13:05:07 host kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n", "kernel"),
        ("a,b,c\n1,2,3\n", "unknown"),
    ],
)
def test_near_misses(text: str, kind: str) -> None:
    assert sniff(text.encode(), MARKERS) == kind


def test_a_lone_number_is_told_by_the_cgroup_files_name() -> None:
    assert sniff(b"62689902592\n", MARKERS, "pod/memory.current") == "cgroup"
    assert sniff(b"max\n", MARKERS, "memory.max") == "cgroup"
    assert sniff(b"62689902592\n", MARKERS, "notes.txt") == "unknown"
    assert sniff(STATS.encode(), MARKERS, "memory.current") == "log"


def test_files_of_cases_and_samples_are_all_told() -> None:
    for folder in (*CASES, *SAMPLES):
        for file in folder.iterdir():
            if file.name != "expect.toml" and file.is_file():
                assert recognise.kind_of(file.read_bytes()[:HEAD], None, name=file.name) not in (
                    "unknown",
                    "binary",
                    "html",
                ), file


@given(st.binary(max_size=2_000))
@settings(max_examples=100, deadline=None)
def test_any_bytes_have_a_kind(raw: bytes) -> None:
    assert isinstance(sniff(raw, MARKERS), str)


@pytest.mark.parametrize(
    "head",
    [
        b"a" * HEAD,
        b"{" * HEAD,
        b"[" * HEAD,
        b"a{" * (HEAD // 2),
        b": " * (HEAD // 2),
        b"x 1\n" * (HEAD // 4),
        b"\n" * HEAD,
    ],
)
def test_hostile_heads_end(head: bytes) -> None:
    assert sniff(head, MARKERS) in ("unknown", "empty", "exposition", "cgroup")


STEP = json.dumps({"iter": 1, "numActiveRequests": 3, "kvCacheStats": {"usedNumBlocks": 5}}) + "\n"


@pytest.mark.parametrize(
    "first", [', "kvCacheStats": {"usedNumBlocks": 5}}\n', '{"iter": 0, "numActiveRequests": 3, "kvCac\n', "5}}\n"]
)
def test_a_cut_first_line_hides_no_iteration_statistics(first: str) -> None:
    assert sniff((first + STEP * 20 + STEP[:30]).encode(), MARKERS) == "iterstats"


def test_a_log_that_quotes_one_record_stays_a_log() -> None:
    assert sniff((STATS + STEP + STATS * 5).encode(), MARKERS) == "log"
    assert sniff((STATS * 2 + STEP).encode(), MARKERS) == "log"


def test_answers_of_prometheus_are_known_for_what_they_are() -> None:
    sample = {"metric": {"__name__": "vllm:num_requests_running"}, "values": [[1793700000, "1"]] * 5000}
    answer = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [sample]}})
    assert len(answer) > HEAD
    for text in (
        answer,
        answer.replace(" ", ""),
        json.dumps([sample]),
        'vllm:num_requests_running{engine="0", instance="10.0.0.5:8000"} => 50 @[1793700300]\n',
        'vllm:num_requests_running{engine="0"} =>\n50 @[1793700300]\n51 @[1793700315]\n',
        '{engine="0"} => 50 @[1793700300.25]\n',
    ):
        assert sniff(text.encode()[:HEAD], MARKERS) == "prometheus-answer", text[:80]
