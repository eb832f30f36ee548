"""Thirty kinds of secrets in every kind of source; none of them is in the archive, by any part of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import pytest
from redact_helpers import archived

from kvdoctor.snapshot import Missing, Snapshot, memory_member

SECRETS: Mapping[str, str] = {
    "openai key": "sk-proj-Zq8vT4mN2xLw7RkYh3Jd",
    "hugging face token": "hf_QwErTyUiOpAsDfGhJkLzXcVb",
    "aws key id": "AKIAIOSFODNN7EXAMPLE",
    "aws secret": "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY",
    "bearer token": "tok-9f8e7d6c5b4a39281706f5e4",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtYWxsb3J5In0.c2lnbmF0dXJl",
    "github token": "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345",
    "slack token": "xoxb-2345678901-abcdefghij",
    "private key": "MIIEvQIBADANBgkqhkiGw0BAQEFAASC",
    "password in a url": "hunter2swordfish",
    "user in a url": "svc-billing-prod",
    "email": "jane.roe@acme-medical.example",
    "ipv4": "203.0.113.77",
    "ipv6": "2001:db8:85a3::8a2e:370:7334",
    "host name": "gpu-node-17.acme.internal",
    "short host": "acmegpu17",
    "user name": "jroe42",
    "home path": "/home/jroe42/projects/secret-merger",
    "prompt": "Patient Doe complains of chest pain",
    "system prompt": "You are the acquisition assistant of Initech",
    "prompt token ids": "31373, 995, 50256, 7331",
    "completion": "The diagnosis is probably angina pectoris",
    "card number": "4111111111111111",
    "phone": "+1-555-867-5309",
    "social security": "078-05-1120",
    "cookie": "sessionid=s3ss10nC00k1eVaLuE",
    "kubernetes secret": "vault-prod-credentials",
    "gpu uuid": "GPU-8f6d2c1a-77b1-4c0e-9a55-1d2e3f4a5b6c",
    "serial": "1322621047853",
    "customer in a path": "customer-umbrella-corp",
    "user id in a label": "uid-7781-kovacs",
    "tenant": "tenant_wayne_enterprises",
    "database url": "postgres://ledger:pw4ledger@db",
    "internal project": "project-nightingale",
    "request id": "chatcmpl-5d41402abc4b2a76b9719d911017c592",
    "pod name": "llm-7c9d8b6f5-xk2lq",
    "namespace": "team-red-payments",
    "mac address": "00:1b:44:11:3a:b7",
}

ALL = " ".join(SECRETS.values())


def _lines(template: str) -> str:
    return "\n".join(template.replace("@", s) for s in SECRETS.values())


VLLM = f"""
(APIServer pid=1213) INFO 07-28 03:00:01 [api_server.py:1772] vLLM API server version 0.32.0
{_lines("(APIServer pid=1213) INFO 07-28 03:00:01 [utils.py:253] non-default args: {'api_key': ['@'], 'hf_token': '@', 'model': '/mnt/@/llama-3-8b', 'host': '@', 'max_num_seqs': 64, 'served_model_name': ['llama-3-8b'], 'custom_thing': '@', 'chat_template': '@'}")}
{_lines("(EngineCore_DP0 pid=1300) INFO 07-28 03:00:02 [core.py:80] Initializing a V1 LLM engine (v0.32.0+@) with config: model='/data/@/llama-3-8b', speculative_config=None, tokenizer='@', seed=0, hf_overrides={'@': '@'}, kv_cache_dtype=auto")}
(EngineCore_DP0 pid=1300) INFO 07-28 03:00:05 [kv_cache_utils.py:1087] GPU KV cache size: 6,400 tokens
{_lines("INFO 07-28 03:00:06 [logger.py:41] Received request @: prompt: '@', params: SamplingParams(n=1, max_tokens=256, stop=['@']), prompt_token_ids: [31373, 995, 50256, 7331], lora_request: @.")}
{_lines("INFO 07-28 03:00:06 [loggers.py:1] Generated response @: output: '@', output_token_ids: [31373, 995, 50256, 7331], finish_reason: stop")}
{_lines('(APIServer pid=1213) INFO:     @:51234 - "POST /v1/chat/completions?key=@ HTTP/1.1" 500 Internal Server Error')}
{_lines('INFO:     @:51234 - "GET /health HTTP/1.1" 200 OK cookie: @ authorization: Bearer @')}
{_lines("(EngineCore_DP0 pid=1300) ERROR 07-28 03:00:07 [core.py:1] Worker failed with error '@', please check the stack trace above")}
{_lines("Aborted request @.")}
{_lines("Request @ failed (@)")}
{_lines("vllm: error: unrecognized arguments: --@ @")}
{_lines("vllm: error: argument --max-num-seqs: invalid int value: '@'")}
Traceback (most recent call last):
{_lines('  File "/home/@/.venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 7, in @')}
{_lines("RuntimeError: CUDA error: @ in @")}
{_lines("RuntimeError: @ @")}
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free.
{_lines("HF_TOKEN=@ AWS_SECRET_ACCESS_KEY=@ HOSTNAME=@ USER=@")}
(APIServer pid=1213) INFO 07-28 03:00:16 [loggers.py:127] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV cache usage: 91.0%, Prefix cache hit rate: 0.0%
{_lines("(Worker_@ pid=4001) INFO 07-28 03:00:17 Model loading took 3.1 GiB and 1.2 seconds @")}
{_lines("Worker proc @ died unexpectedly")}
"""

SGLANG = f"""
{_lines("[2026-07-28 03:00:01] server_args=ServerArgs(model_path='/mnt/@/qwen-7b', host='@', api_key='@', tokenizer_path='@', served_model_name='qwen-7b', mem_fraction_static=0.8, schedule_policy='@', log_requests_level=3)")}
{_lines("[2026-07-28 03:00:02 TP0] Receive: obj=GenerateReqInput(rid='@', text='@', input_ids=[31373, 995, 50256, 7331], sampling_params={'max_new_tokens': 32})")}
{_lines("[2026-07-28 03:00:03] Finish: obj=GenerateReqInput(rid='@', text='@'), out={'text': '@', 'meta_info': {'id': '@', 'finish_reason': {'type': 'stop'}, 'prompt_tokens': 9}}")}
[2026-07-28 03:00:04 TP0] Decode batch. #running-req: 4, #token: 4100, token usage: 0.93, gen throughput (token/s): 40.1, #queue-req: 2,
{_lines("[2026-07-28 03:00:05 TP0] Scheduler hit an exception: @")}
{_lines("[2026-07-28 03:00:05] Retract requests. #retracted_reqs: 1, rid: @")}
"""

TGI = f"""
{_lines('2026-07-28T03:00:01.000000Z  INFO text_generation_launcher: Args { model_id: "/mnt/@/falcon", hostname: "@", api_key: Some("@"), max_batch_total_tokens: Some(16000), huggingface_hub_cache: Some("@") }')}
{_lines('2026-07-28T03:00:02.000000Z  INFO HTTP request{otel.name=POST / http.client_ip=@ http.user_agent=@}:generate{parameters=GenerateParameters { max_new_tokens: Some(20) } total_time="1.2s" validation_time="1ms" queue_time="10us" inference_time="1.1s" time_per_token="50ms" seed="None"}: text_generation_router::server: router/src/server.rs:1: Success @')}
{_lines("2026-07-28T03:00:03.000000Z ERROR batch{batch_size=2}:prefill:prefill{id=1 size=2}: text_generation_client: router/client/src/lib.rs:33: Server error: @")}
"""

LLAMACPP = f"""
build: 5012 (abcdef01) with cc for x86_64-linux-gnu
{_lines("main: loading model '/models/@/tiny.gguf'")}
{_lines("srv  log_server_r: request: POST /v1/chat/completions @ 200")}
{_lines("srv  log_server_r: request:  { messages: @ }")}
slot launch_slot_: id  0 | task 12 | processing task
{_lines("srv    send_error: task id = 12, error: @")}
"""

METRICS = f"""# HELP vllm:num_requests_running {ALL}
# TYPE vllm:num_requests_running gauge
{_lines('vllm:num_requests_running{engine="0",model_name="/mnt/@/llama-3-8b",instance="@",pod="@",user_id="@",job="@"} 3')}
vllm:kv_cache_usage_perc{{engine="0",model_name="llama-3-8b"}} 0.9
{_lines('vllm:cache_config_info{block_size="16",num_gpu_blocks="400",cache_dtype="@",customer="@",engine="0"} 1')}
{_lines('vllm:request_success_total{engine="@",finished_reason="@"} 3')}
{_lines('acme_requests_total{user="@"} 3')}
vllm:lora_requests_info{{running_lora_adapters="{SECRETS["tenant"]}",max_lora="4"}} 1
process_start_time_seconds 1.7e9
"""

SMI = "index, uuid, name, memory.total [MiB], memory.used [MiB], serial\n" + "\n".join(
    f"{i}, {s}, NVIDIA H100 80GB HBM3, 81559 MiB, 70000 MiB, {s}" for i, s in enumerate(SECRETS.values())
)
APPS = "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n" + _lines("@, 1300, /home/@/bin/@, 100 MiB")
KERNEL = "\n".join(
    (
        f"[1234.567890] {s} usb device {s}\n"
        f"[1235.000000] NVRM: Xid (PCI:0000:41:00): 31, pid=4242, name={s}, Ch 00000008 {s}\n"
        f"[1236.000000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={s},mems_allowed=0,oom_memcg=/{s},task_memcg=/{s},task={s},pid=77,uid=0\n"
        f"[1236.100000] Memory cgroup out of memory: Killed process 77 ({s[:30]}) total-vm:100kB, anon-rss:50kB\n"
        f"[1237.000000] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{s[:15]}:4242]"
    )
    for s in SECRETS.values()
)
PS = "USER PID PPID STAT RSS COMMAND\n" + _lines(
    "jroe42 1300 1 Sl 100 /home/jroe42/bin/python -m vllm.entrypoints.openai.api_server --model /mnt/@/m --api-key @ --host @ --x=@ @"
)
KUBE = "\n".join(
    f"""Name:         {s}
Namespace:    {s}
Node:         {s}/{SECRETS["ipv4"]}
Labels:       owner={s}
Annotations:  note: {s}
Status:       Running
Reason:       {s}
Message:      {s}
Containers:
  {s}:
    Image:          registry/{s}:1
    Environment:
      KEY:   <set to the key '{s}' in secret '{s}'>
    State:          Waiting
      Reason:       {s}
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Limits:
      memory:  64Gi
Events:
  Type     Reason   Age   From     Message
  Warning  BackOff  5m    {s}  {s}
"""
    for s in SECRETS.values()
)
HPA = "\n".join(
    f"""Name:  {s}
Reference:  Deployment/{s}
Metrics:  ( current / target )
  "{s}" on pods:  1 / 2
Min replicas:  1
Max replicas:  4
Spec:
  Query:  sum(DCGM_FI_DEV_GPU_UTIL{{pod="{s}"}})
"""
    for s in SECRETS.values()
)


def _documents() -> dict[str, tuple[str, str]]:
    every = list(SECRETS.values())
    slots = [
        {
            "id": i,
            "is_processing": True,
            "n_ctx": 512,
            "prompt": s,
            "generated": s,
            "params": {"n_predict": 9, "stop": [s]},
        }
        for i, s in enumerate(every)
    ]
    info = {
        "mem_fraction_static": 0.8, "max_total_num_tokens": 1000, "model_path": f"/mnt/{every[29]}/m", "api_key": every[0],
        **{f"setting_{i}": s for i, s in enumerate(every)}, "schedule_policy": every[5],
        "internal_states": [{"memory_usage": {"weight": 1.0, "note": s}, "secret": s} for s in every],
    }  # fmt: skip
    iteration = [
        {"iter": i, "iterLatencyMS": 1.5, "numActiveRequests": 1, "note": s, "kvCacheStats": {"maxNumBlocks": 9, s: s}}
        for i, s in enumerate(every)
    ]
    probe = {
        "schema": "kvdoctor.probe/1",
        "device": {"name": every[14], "uuid": every[27], "total_bytes": 9, "host": every[13]},
        "device_level": {"gap": 0.1, "fit": [{"block_bytes": 1, "count": 1, "expected": 1, "counted_up_to": 1, "n": every[0]}]},
        "allocator_level": {"runs": [{"pattern": s, "settings": s, "requests": 1} for s in every]},
        "stopped": ALL,
    }  # fmt: skip
    torch = {
        "segments": [
            {
                "device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small",
                "blocks": [{
                    "address": 4096, "size": 2097152, "requested_size": 9, "state": "active_allocated",
                    "frames": [{"filename": f"/home/{s}/x.py", "line": 1, "name": s} for s in every], "user_metadata": every[0],
                }],
            }
        ],
        "device_traces": [[
            {"action": "oom", "size": 9, "addr": 1, "time_us": 1, "device_free": 4, "frames": [{"filename": every[17], "name": every[29], "line": 2}]},
            {"action": "user_defined", "addr": 1, "size": 2, "category": every[3]},
        ]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": every[1], every[0]: 1},
    }  # fmt: skip
    return {
        "slots.json": ("slots", json.dumps(slots)),
        "props.json": ("props", json.dumps({"total_slots": 2, "model_path": f"/mnt/{every[29]}/m.gguf", "build_info": f"b5012-{every[29]}",
                                            "chat_template": ALL, "default_generation_settings": {"n_ctx": 512, "model": f"/home/{every[16]}/m.gguf", "prompt": ALL}})),
        "info.json": ("server-info", json.dumps(info)),
        "router.json": ("router-info", json.dumps({"model_id": f"/mnt/{every[29]}/m", "max_total_tokens": 9, "model_sha": every[3], "docker_label": every[7], every[5]: 1})),
        "config.json": ("model-config", json.dumps({"model_type": every[2], "num_hidden_layers": 2, "_name_or_path": f"/mnt/{every[29]}/m", "layer_types": [every[4], "full_attention"], "auto_map": {s: s for s in every}})),
        "loads.json": ("loads", json.dumps({"loads": [{"num_running_reqs": 1, "host": s, "queues": {"grammar": 0, "who": s}} for s in every], "version": f"0.5.1+{every[29]}"})),
        "models.json": ("models", json.dumps({"data": [{"id": f"/mnt/{s}/m", "owned_by": s, "root": s, "max_model_len": 9} for s in every]})),
        "version.json": ("version", json.dumps({"version": f"0.32.0+{every[29]}", "host": every[13]})),
        "iterations.jsonl": ("iterstats", "\n".join(json.dumps(r) for r in iteration)),
        "probe.json": ("probe", json.dumps(probe)),
        "torch.json": ("torch-snapshot", json.dumps(torch)),
        "command": ("command", "vllm\n" + " ".join(f"--api-key {s} --model /mnt/{s}/m --max-num-seqs=5 --whatever={s} --served-model-name m {s}" for s in every)),
        "bench.csv": ("bench-csv", "concurrency,output_throughput,policy,owner\n" + "\n".join(f"{i},{i * 10},{s.replace(',', ' ')},{s.replace(',', ' ')}" for i, s in enumerate(every, 1))),
    }  # fmt: skip


SOURCES: dict[str, tuple[str | None, str]] = {
    "vllm.log": ("log", VLLM),
    "sglang.log": ("log", SGLANG),
    "tgi.log": ("log", TGI),
    "llamacpp.log": ("log", LLAMACPP),
    "metrics.prom": (None, METRICS),
    "smi.csv": (None, SMI),
    "apps.csv": (None, APPS),
    "dmesg": (None, KERNEL),
    "ps": ("ps", PS),
    "pods": ("kubectl", KUBE),
    "hpa": ("kubectl", HPA),
    "notes.txt": (None, "some words of nobody's format\n" + ALL.replace(":", " ")),
    "page.html": (None, f"<html><body>{ALL}</body></html>"),
    **_documents(),
}


def _planted(names: list[str]) -> Snapshot:
    members = tuple(
        memory_member(
            f"{SECRETS['customer in a path']}/{name}", SOURCES[name][1].encode(), kind=SOURCES[name][0],
            origin=f"{SECRETS['home path']}/{SECRETS['tenant']}/{name}", time=1.7e9,
        )
        for name in names
    )  # fmt: skip
    url = f"http://{SECRETS['user in a url']}:{SECRETS['password in a url']}@{SECRETS['host name']}:8000/{SECRETS['tenant']}"
    missing = tuple(
        Missing(s, f"{url}/{s}", f"cannot be read: {s}: permission denied", f"ask {s}") for s in SECRETS.values()
    )
    host = {"hostname": SECRETS["host name"], "user": SECRETS["user name"], "os": SECRETS["short host"], "cpus": "16"}
    return Snapshot(members, missing, host, 1.7e9, SECRETS["home path"], (f"{SECRETS['home path']} is a loop",))


def _searched(secret: str) -> list[bytes]:
    raw = secret.encode()
    return [raw.lower(), json.dumps(secret).strip('"').encode().lower(), base64.b64encode(raw).lower()]


def _found(everything: bytes) -> list[str]:
    low = everything.lower()
    return [kind for kind, secret in SECRETS.items() if any(form in low for form in _searched(secret))]


@pytest.mark.parametrize("name", SOURCES)
def test_no_secret_of_a_source_is_in_the_archive(name: str) -> None:
    raw = SOURCES[name][1].lower()
    assert any(secret.lower() in raw for secret in SECRETS.values()), (
        "the source holds no secret: the test tests nothing"
    )
    _, everything = archived(_planted([name]))
    assert _found(everything) == []


def test_no_secret_is_in_an_archive_of_all_sources_and_the_work_is() -> None:
    back, everything = archived(_planted(list(SOURCES)))
    assert _found(everything) == []
    assert len(SECRETS) >= 30
    kinds = {m.kind for m in back.members}
    assert {
        "log-events",
        "exposition",
        "smi-query",
        "kernel",
        "ps",
        "kubectl",
        "slots",
        "torch-snapshot",
        "bench-csv",
    } <= kinds
    for word in (
        b'"kv_usage":0.91',
        b"vllm:kv_cache_usage_perc",
        b"llama-3-8b",
        b'"max_num_seqs":"64"',
        b"OOMKilled",
        b"NVIDIA H100 80GB HBM3",
    ):
        assert word in everything


def test_words_of_prompts_do_not_survive_one_by_one() -> None:
    _, everything = archived(_planted(["vllm.log", "sglang.log", "tgi.log", "llamacpp.log"]))
    for word in (b"patient", b"chest", b"angina", b"initech", b"acquisition", b"50256", b"hunter2", b"umbrella"):
        assert word not in everything.lower()


def test_raw_logs_are_kept_only_on_request() -> None:
    _, kept = archived(_planted(["vllm.log"]), include_raw_logs=True)
    assert SECRETS["prompt"].encode() in kept
