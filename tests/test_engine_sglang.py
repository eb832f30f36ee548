"""SGLang's table: every known log line gives the right event, every trap its right reading, every lever an answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.engines.base import ROLES, engines, gap_for, in_range, lever_for
from kvdoctor.engines.sglang import ENGINE
from kvdoctor.facts import LEVERS
from kvdoctor.parse.serverlog import EVENTS, Matcher

MATCHER = Matcher(ENGINE.templates)
GIB = 2.0**30
MIB = 2.0**20
VERSIONS = ("0.4.6.post5", "0.5.3", "0.5.8", "0.5.12", "0.5.16", "0.5.23", None)


def read(line: str) -> dict[str, list[dict[str, object]]]:
    """Events of a line by template."""
    out: dict[str, list[dict[str, object]]] = {}
    for template, _, fields in MATCHER.match(line):
        out.setdefault(template, []).append(fields)
    return out


def one(line: str, template: str) -> dict[str, object]:
    found = read(line)
    assert list(found) == [template], f"{line!r} -> {found}"
    assert len(found[template]) == 1
    return found[template][0]


def series(role: str) -> dict[str, object]:
    return {name.name: name for entry in ENGINE.series if entry.role == role for name in entry.names}


# ---------------------------------------------------------------- periodic lines


@pytest.mark.parametrize(
    "line, expected",
    [
        (
            "[2025-07-25 01:07:00 TP0] Decode batch. #running-req: 61, #token: 733000, token usage: 0.73, cuda graph: True, "
            "gen throughput (token/s): 2604.70, #queue-req: 7",
            {"running": 61.0, "tokens_used": 733000.0, "kv_usage": 0.73, "gen_rate": 2604.7, "waiting": 7.0},
        ),
        (
            "[2026-11-29 13:18:01] Decode batch, #running-req: 3, #token: 425, token usage: 0.21, cpu graph: False, "
            "gen throughput (token/s): 0.34, #queue-req: 17",
            {"running": 3.0, "tokens_used": 425.0, "kv_usage": 0.21, "gen_rate": 0.34, "waiting": 17.0},
        ),
        (
            "[2026-08-23 09:05:37 DP1 TP0 EP0] Decode batch [812], #running-req: 9, #full token: 165376, full token usage: "
            "0.42, #swa token: 768, swa token usage: 0.97, accept len: 5.30, accept rate: 0.86, cuda graph: True, "
            "gen throughput (token/s): 167.04, #queue-req: 2",
            {
                "running": 9.0,
                "tokens_used": 165376.0,
                "kv_usage": 0.42,
                "secondary_usage": 0.97,
                "secondary_pool": "swa",
                "spec_accept": 5.3,
                "waiting": 2.0,
            },
        ),
        (
            "[2026-01-12 10:57:43 TP3] Decode batch, #running-req: 5, #full token: 6016, full token usage: 0.02, "
            "mamba num: 315, mamba usage: 0.69, npu graph: True, gen throughput (token/s): 88.10, #queue-req: 0",
            {"kv_usage": 0.02, "mamba_usage": 0.69, "secondary_pool": "mamba", "secondary_usage": 0.69},
        ),
        (
            "[2025-11-05 16:41:02 TP0] Decode batch, #running-req: 40, #token: 90112, token usage: 0.88, pre-allocated usage: "
            "0.31, #prealloc-req: 12, #transfer-req: 4, #retracted-req: 3, cuda graph: True, gen throughput (token/s): 951.00, "
            "#queue-req: 6, ",
            {
                "kv_usage": 0.88,
                "prealloc_usage": 0.31,
                "pd_decode_queue": 12.0,
                "pd_transfer_queue": 4.0,
                "retracted_waiting": 3.0,
                "waiting": 6.0,
            },
        ),
        (
            "Decode batch, #running-req: 5, #gpu token: 20800, gpu token usage: 0.29, #cpu token: 99000, cpu token usage: "
            "0.61, cuda graph: True, gen throughput (token/s): 144.95, #queue-req: 0",
            {"kv_usage": 0.29, "tokens_used": 20800.0},
        ),
    ],
)
def test_decode_line_in_all_its_forms(line: str, expected: dict[str, object]) -> None:
    fields = one(line, "sgl.decode")
    assert fields["batch"] == "decode"
    assert {name: fields.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "line, expected",
    [
        (
            "[2025-01-05 20:41:07 TP0] Prefill batch. #new-seq: 2, #new-token: 1846, #cached-token: 34, cache hit rate: 1.81%, "
            "token usage: 0.05, #running-req: 3, #queue-req: 1",
            {
                "new_seqs": 2.0,
                "new_tokens": 1846.0,
                "cached_tokens": 34.0,
                "prefix_hit": pytest.approx(0.0181),
                "waiting": 1.0,
            },
        ),
        (
            "[2026-05-24 03:51:52 TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, full token usage: 0.70, "
            "swa token usage: 0.10, #running-req: 3, #queue-req: 4, #pending-token: 566830, cuda graph: False, "
            "input throughput (token/s): 20485.54",
            {"kv_usage": 0.7, "swa_usage": 0.1, "pending_tokens": 566830.0, "prompt_rate": 20485.54, "running": 3.0},
        ),
        (
            "[2025-06-18 18:11:03] Prefill batch. #new-seq: 14, #new-token: 8192, #cached-token: 0, token usage: 0.92, "
            "#unbootstrapped-req: 8, #queue-req: 105, #transferring-req: 990, input throughput (token/s): 96875.08",
            {"pd_prefill_queue": 8.0, "pd_transfer_queue": 990.0, "waiting": 105.0, "prompt_rate": 96875.08},
        ),
        (
            "Prefill batch [7], #new-seq: 1, #new-token: 16, #cached-token: 2, token usage: 0.10, #running-req: 0, "
            "#queue-req: 0, #pending-token: 0, #bootstrap-req: 5, #inflight-req: 2, cuda graph: False, input throughput "
            "(token/s): 12.00",
            {"pd_prefill_queue": 5.0, "pd_transfer_queue": 2.0},
        ),
    ],
)
def test_prefill_line_in_all_its_forms(line: str, expected: dict[str, object]) -> None:
    fields = one(line, "sgl.prefill")
    assert {name: fields.get(name) for name in expected} == expected


def test_a_line_without_the_queue_has_no_queue() -> None:
    fields = one("Prefill batch. #new-seq: 1, #new-token: 9, #cached-token: 0, token usage: 0.00", "sgl.prefill")
    assert "waiting" not in fields
    assert "prompt_rate" not in fields


@given(
    st.permutations(
        [
            "token usage: 0.25",
            "#token: 77",
            "gen throughput (token/s): 3.50",
            "#queue-req: 4",
            "some new field: 9",
            "swa token usage: 0.75",
        ]
    )
)
def test_fields_are_found_in_any_order(parts: list[str]) -> None:
    fields = one("Decode batch, #running-req: 2, " + ", ".join(parts), "sgl.decode")
    assert (fields["kv_usage"], fields["swa_usage"], fields["tokens_used"]) == (0.25, 0.75, 77.0)
    assert (fields["gen_rate"], fields["waiting"]) == (3.5, 4.0)


def test_two_glued_lines_are_two_events() -> None:
    text = "Decode batch, #running-req: 2, #token: 10, token usage: 0.10, #queue-req: 0"
    found = read(text + text.replace("2, #token: 10", "8, #token: 90"))
    assert [fields["running"] for fields in found["sgl.decode"]] == [2.0, 8.0]


# ---------------------------------------------------------------- other log lines

LINES = [
    (
        "[2026-11-29 13:19:06] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 271, "
        "#new_token_ratio: 0.0428 -> 0.5837",
        "sgl.retract",
        {"count": 2.0, "tokens_gained": 271.0, "ratio_from": 0.0428, "ratio_to": 0.5837},
    ),
    (
        "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 12, #mamba_num_gained: 3, "
        "#new_token_ratio: 0.1 -> 0.9000",
        "sgl.retract",
        {"count": 3.0, "tokens_gained": 12.0, "ratio_to": 0.9},
    ),
    (
        "[2025-10-01 08:00:00 TP1] KV cache pool is full. Retract requests. #retracted_reqs: 4, #aborted_retracted_reqs: 1, "
        "#new_token_ratio: 0.2000 -> 0.7000",
        "sgl.retract",
        {"count": 4.0, "aborted": 1.0, "ratio_from": 0.2},
    ),
    (
        "[2025-01-06 02:58:44 TP5] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.0980 -> 0.9446",
        "sgl.retract.046",
        {"count": 1.0, "ratio_from": 0.098, "ratio_to": 0.9446},
    ),
    (
        "[2026-04-02 11:00:00 TP0] retract_decode: aborted last request chatcmpl-9f1 due to OOM",
        "sgl.retract.abort_last",
        {"id": "chatcmpl-9f1"},
    ),
    (
        "retract_decode: aborted request 77ab: Retracted under decode memory pressure without a KV backup. Retry later.",
        "sgl.retract.abort",
        {"id": "77ab"},
    ),
    ("RuntimeError: Prefill out of memory. Try to lower your batch size.", "sgl.oom.pool", {"batch": "prefill"}),
    ("RuntimeError: Decode out of memory. Try to lower your batch size.", "sgl.oom.pool", {"batch": "decode"}),
    ("Try to allocate 127 tokens.", "sgl.oom.want", {"want_tokens": 127.0}),
    ("Avaliable tokens: 4096", "sgl.oom.free", {"free": 4096.0}),
    (
        "Available tokens: 5248 (available_size=5200 + evictable_size=48)",
        "sgl.oom.free",
        {"free": 5248.0, "available": 5200.0, "evictable": 48.0},
    ),
    (
        "Available full tokens: 640 (full_available_size=512 + full_evictable_size_=128)",
        "sgl.oom.free_full",
        {"free": 640.0, "available": 512.0, "evictable": 128.0},
    ),
    (
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. ",
        "sgl.oom.slots",
        {"why": "no free request slot"},
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.84",
        "sgl.start.not_enough",
        {"error": "pool_too_small", "fraction": 0.84},
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "self.server_args.mem_fraction_static=0.7",
        "sgl.start.not_enough",
        {"fraction": 0.7},
    ),
    (
        "[2026-07-13 01:00:41 DP1] max_total_num_tokens=81561, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=17, context_len=32768, available_gpu_mem=11.25 GB",
        "sgl.start.limits",
        {
            "tokens": 81561.0,
            "max_running": 17.0,
            "max_model_len": 32768.0,
            "free": 11.25 * GIB,
            "device": "gpu",
        },
    ),
    ("[2025-03-20 03:05:00] The server is fired up and ready to roll!", "sgl.start.ready", {}),
    (
        "[2025-10-16 09:06:10 TP5] Load weight end. elapsed=41.20 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail "
        "mem=63.50 GB, mem usage=15.25 GB.",
        "sgl.start.weights",
        {"weights": 15.25 * GIB, "free": 63.5 * GIB, "stage": "after_weights"},
    ),
    (
        "[2025-10-16 09:06:00] Load weight begin. avail mem=78.75 GB",
        "sgl.start.weights_begin",
        {"free": 78.75 * GIB, "stage": "before_weights"},
    ),
    (
        "[2026-06-08 07:20:53 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1106304, K size: 25.25 GB, V size: "
        "25.25 GB",
        "sgl.start.kv",
        {"tokens": 1106304.0, "bytes": 50.5 * GIB, "dtype": "torch.bfloat16"},
    ),
    (
        "KV Cache is allocated. #tokens: 90112, KV size: 6.50 GB",
        "sgl.start.kv",
        {"tokens": 90112.0, "bytes": 6.5 * GIB},
    ),
    (
        "Mamba Cache is allocated. max_mamba_cache_size: 454, conv_state size: 0.25GB, ssm_state size: 7.50GB ",
        "sgl.start.mamba",
        {"secondary_pool": 7.5 * GIB, "mamba_slots": 454.0},
    ),
    ("[2025-10-16 09:06:22 TP5] Memory pool end. avail mem=11.75 GB", "sgl.start.pool_end", {"free": 11.75 * GIB}),
    (
        "KV pool holds 3072 tokens, fewer than --context-length 4096. One full-length request cannot fit, so long requests "
        "will be refused or truncated at serving time.",
        "sgl.start.pool_small",
        {"length": 4096.0, "ratio": 0.75},
    ),
    (
        "Capture decode cuda graph end. bs=[1, 2, 4, 8], elapsed=12.50 s, mem usage=1.50 GB, avail mem=9.75 GB.",
        "sgl.start.graph",
        {"graphs": 1.5 * GIB, "free": 9.75 * GIB, "seconds": 12.5},
    ),
    (
        "[2025-05-01 00:00:00 TP0] Capture cuda graph end. Time elapsed: 8.25 s. mem usage=0.50 GB. avail mem=10.25 GB.",
        "sgl.start.graph",
        {"graphs": 0.5 * GIB, "seconds": 8.25},
    ),
    (
        "Capture draft cuda graph end. Time elapsed: 2.50 s. avail mem=4.00 GB. mem usage=0.25 GB.",
        "sgl.start.graph",
        {"graphs": 0.25 * GIB, "free": 4 * GIB},
    ),
    (
        "[2025-10-16 09:06:22 TP7] Capture cuda graph begin. This can take up to several minutes. avail mem=12.00 GB",
        "sgl.start.graph_begin",
        {"free": 12 * GIB},
    ),
    (
        "Allocating MHA hierarchical KV host pool: 640000 tokens, 96.00 GB host memory.",
        "sgl.start.hicache",
        {"host_tokens": 640000.0, "host_pool": 96e9},
    ),
    (
        "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=3189424, protected_size=0, "
        "self.max_total_num_tokens=3185200",
        "sgl.leak",
        {"total": 3185200.0, "available": 3189424.0, "lost": -4224.0},
    ),
    (
        "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=270331, available_size=644, "
        "evictable_size=269000, protected_size=600",
        "sgl.leak",
        {"total": 270331.0, "lost": 87.0},
    ),
    (
        "ValueError: token_to_kv_pool_allocator memory leak detected! full_available_size=6016, full_evictable_size=390000, "
        "self.token_to_kv_pool_allocator.size=396701, self.tree_cache.full_protected_size()=0",
        "sgl.leak.hybrid",
        {"total": 396701.0, "lost": 685.0},
    ),
    (
        "pool memory leak detected! [full] total=2048, available=1000, evictable=900, protected=100, session_held=0, "
        "uncached=0",
        "sgl.leak.pool",
        {"pool": "full", "total": 2048.0, "lost": 48.0},
    ),
    ("The request queue is full.", "sgl.queue_full", {"why": "queue full"}),
    ("The request is aborted by a higher priority request.", "sgl.queue_preempted", {}),
    (
        "ValueError: The input (40961 tokens) is longer than the model's context length (32768 tokens).",
        "sgl.context.input",
        {"n_tokens": 40961.0, "n_ctx": 32768.0},
    ),
    (
        "Input length (9001 tokens) exceeds the maximum allowed length (8186 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        "sgl.context.max",
        {"n_tokens": 9001.0, "n_ctx": 8186.0},
    ),
    (
        "Request 5a1 exceeds the maximum number of tokens: 70000 > 65536",
        "sgl.pd.oversize",
        {"id": "5a1", "n_tokens": 70000.0, "n_ctx": 65536.0},
    ),
    (
        "[2025-11-05 16:39:09 TP2] Decode transfer failed for request rank=2 decode_req.req.rid='78fde' "
        "decode_req.req.bootstrap_room=4793 with exception KVTransferError(bootstrap_room=4793): Aborted by AbortReq.",
        "sgl.pd.transfer",
        {"failed": 1.0, "id": "78fde", "side": "Decode"},
    ),
    (
        "Prefill bootstrap failed for request rank=0 req.rid='a1' req.bootstrap_room=12",
        "sgl.pd.bootstrap",
        {"failed": 1.0, "id": "a1"},
    ),
    (
        "Request 81 timed out after 300.0s in KVPoll.WaitingForInput",
        "sgl.pd.timeout",
        {"expired": 1.0, "id": "81", "seconds": 300.0},
    ),
    ("[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)", "sgl.watchdog", {"seconds": 300.0}),
    (
        "Scheduler watchdog timeout (self.watchdog_timeout=120, self.soft=True)",
        "sgl.watchdog",
        {"seconds": 120.0, "soft": True},
    ),
    (
        "[2025-03-09 00:57:20] Received sigquit from a child proces. It usually means the child failed.",
        "sgl.child_failed",
        {"process": "child"},
    ),
    (
        "[2026-03-06 00:37:19] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "sgl.child_failed",
        {"process": "child"},
    ),
    (
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "min_per_gpu_memory=21.5, local_gpu_memory=78.5, local_gpu_memory * 0.9=70.65",
        "sgl.start.unbalanced",
        {"have": 21.5 * GIB, "need": 78.5 * GIB, "error": "free_below_fraction"},
    ),
    (
        "ValueError: User-specified context_length (65536) is greater than the derived context_length (32768). This may "
        "lead to incorrect model outputs or CUDA errors.",
        "sgl.start.context",
        {"error": "config_refused", "tokens_need": 65536.0, "tokens_have": 32768.0},
    ),
]


@pytest.mark.parametrize("line, template, expected", LINES)
def test_line(line: str, template: str, expected: dict[str, object]) -> None:
    fields = one(line, template)
    assert {name: fields.get(name) for name in expected} == expected


def test_catalogue_and_rank_tag_do_not_matter() -> None:
    bare = LINES[0][0].partition("] ")[2]
    assert one(bare, "sgl.retract") == one("[2026-01-01 00:00:00 DP3 TP0 PP1] " + bare, "sgl.retract")


def test_retraction_notice_is_no_out_of_memory() -> None:
    line = "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.2"
    assert [event for _, event, _ in MATCHER.match(line)] == ["retract"]


@pytest.mark.parametrize(
    "line",
    [
        "Testing retraction. #retracted_reqs: 3, #new_tokens_gained: 12",  # a self-test
        "[2026-11-29 13:15:28] server_args=x",
        "  Example: sglang serve --model-path <model> [options]",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.",
        "WARNING: User-specified context_length (65536) is greater than the derived context_length (32768).",
        "self.token_to_kv_pool_allocator.available_size()=2048",
    ],
)
def test_lines_that_say_nothing(line: str) -> None:
    assert read(line) == {}


def test_sizes_that_round_to_nothing_are_not_zero() -> None:
    fields = one(
        "KV Cache is allocated. dtype: torch.float32, #tokens: 2048, K size: 0.00 GB, V size: 0.00 GB", "sgl.start.kv"
    )
    assert "bytes" not in fields


def test_a_negative_weight_size_is_left_out() -> None:
    line = "Load weight end. elapsed=0.03 s, type=LlamaForCausalLM, avail mem=20.48 GB, mem usage=-0.01 GB."
    assert "weights" not in one(line, "sgl.start.weights")


def test_request_log_gives_lengths_and_retractions() -> None:
    receive = (
        "[2026-05-01 00:00:01] Receive: obj=GenerateReqInput(rid='r-7', text='x', "
        "sampling_params={'temperature': 0.0, 'max_new_tokens': 640, 'ignore_eos': False}, stream=True)"
    )
    finish = (
        "[2026-05-01 00:00:09] Finish: obj=GenerateReqInput(rid='r-7', text=None), out={'text': 'x', 'meta_info': {'id': "
        "'r-7', 'finish_reason': {'type': 'length', 'length': 640}, 'prompt_tokens': 91, 'num_retractions': 2, "
        "'completion_tokens': 640, 'cached_tokens': 5, 'e2e_latency': 8.1}}"
    )
    assert one(receive, "sgl.request.receive") == {"id": "r-7", "max_tokens": 640.0}
    assert one(finish, "sgl.request.finish") == {
        "id": "r-7",
        "prompt_tokens": 91.0,
        "output_tokens": 640.0,
        "cached_tokens": 5.0,
        "retractions": 2.0,
        "finish": "length",
    }
    older = finish.replace("num_retractions", "total_retractions")
    assert one(older, "sgl.request.finish")["retractions"] == 2.0


def test_start_line_gives_banner_and_arguments() -> None:
    line = (
        "[2025-03-20 03:02:11] server_args=ServerArgs(model_path='m', tp_size=8, mem_fraction_static=0.9, page_size=64, "
        "max_running_requests=None, disable_radix_cache=True, chunked_prefill_size=8192)"
    )
    found = read(line)
    assert set(found) == {"sgl.banner", "sgl.args"}
    args = ENGINE.parse_args(str(found["sgl.args"][0]["text"]))
    assert args["page_size"] == "64"
    assert "max_running_requests" not in args  # None: not set
    assert [args.get(name) for name in ENGINE.canonical_args["prefix"]] == ["False"]


def test_command_line_and_print_agree() -> None:
    printed = ENGINE.parse_args(
        "ServerArgs(model_path='m', mem_fraction_static=0.85, max_queued_requests=64, dp_size=2)"
    )
    typed = ENGINE.parse_args("--model-path m --mem-fraction-static 0.85 --max-queued-requests=64 --dp-size 2")
    for setting in ("model", "fraction", "max_queue", "dp"):
        names = ENGINE.canonical_args[setting]
        first = [[args[n] for n in names if n in args] for args in (printed, typed)]
        assert first[0] == first[1] != []


@given(st.text(max_size=400))
def test_arguments_never_fail(text: str) -> None:
    ENGINE.parse_args(text)


def test_hostile_line_stays_cheap() -> None:
    for template in ENGINE.templates:
        text = (template.literal + " ") * (60_000 // (len(template.literal) + 1))
        assert len(MATCHER.match(text[:60_000])) < 2000


# ---------------------------------------------------------------- series


def test_every_series_is_in_the_vocabulary() -> None:
    for entry in ENGINE.series:
        assert entry.role in ROLES
        for name in entry.names:
            assert re.fullmatch(r"[a-zA-Z_:][\w:]*", name.name)
            assert not (name.kind == "counter" and not name.name.endswith("_total") and name.name.startswith("sglang"))


def test_recompute_is_the_difference_of_two_counters() -> None:
    computed, useful = series("tok.prefill_compute"), series("tok.prefill_effective")
    compute = computed["sglang:realtime_tokens_total"]
    effective = useful["sglang:prefill_effective_tokens_total"]
    assert (compute.where, effective.where) == ({"mode": "prefill_compute"}, {"mode": "input"})  # type: ignore[attr-defined]
    assert in_range("0.5.16", effective.since, effective.until) is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "role, name",
    [
        ("req.paused", "sglang:num_retracted_reqs"),
        ("req.paused", "sglang:num_paused_reqs"),
        ("gpu.util", "sglang:utilization"),
    ],
)
def test_gauges_that_mislead_are_not_read(role: str, name: str) -> None:
    assert series(role)[name].ignore  # type: ignore[attr-defined]


def test_retractions_are_read_from_the_counter() -> None:
    assert list(series("preempt.total")) == ["sglang:num_retracted_requests_total"]


def test_gb_means_gib() -> None:
    for role in ("mem.weights", "mem.graphs", "kv.pool_bytes", "mem.free_after_start"):
        assert {name.scale for name in series(role).values()} == {GIB}  # type: ignore[attr-defined]


def test_secondary_pools_have_their_own_keys() -> None:
    entries = [entry for entry in ENGINE.series if entry.role == "kv.secondary_usage"]
    assert {name.key for entry in entries for name in entry.names} == {"swa", "mamba"}


def test_queue_totals_leave_out_the_split_by_priority() -> None:
    assert series("req.waiting")["sglang:num_queue_reqs"].where == {"priority": ""}  # type: ignore[attr-defined]


# ---------------------------------------------------------------- levers, gaps, commands


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("lever", sorted(LEVERS))
def test_every_lever_has_an_answer(lever: str, version: str | None) -> None:
    entry = lever_for(ENGINE, lever, version)
    assert entry is not None
    if entry.flag is None:
        assert entry.instead
    else:
        assert entry.effect
        assert entry.cost
        assert entry.verify
        assert entry.next_limit


@pytest.mark.parametrize(
    "lever, version, flag",
    [
        ("victim.order", "0.5.12", None),
        ("victim.order", "0.5.23", "--retraction-policy"),
        ("sched.max_queue", "0.4.6.post5", None),
        ("sched.max_queue", "0.5.3", "--max-queued-requests"),
        ("mem.graphs", "0.5.12", "--cuda-graph-max-bs N"),
        ("mem.graphs", "0.5.23", "--cuda-graph-max-bs-decode"),
        ("victim.cooldown", "0.5.23", None),
    ],
)
def test_a_flag_is_offered_only_where_it_exists(lever: str, version: str, flag: str | None) -> None:
    entry = lever_for(ENGINE, lever, version)
    assert entry is not None
    if flag is None:
        assert entry.flag is None
    else:
        assert entry.flag is not None
        assert entry.flag.startswith(flag)


def test_recompute_gap_closes_with_the_version() -> None:
    assert gap_for(ENGINE, "recompute.tokens", "0.5.16") is not None
    assert gap_for(ENGINE, "recompute.tokens", "0.5.18") is None


@pytest.mark.parametrize(
    "topic",
    [
        "metrics.kv",
        "metrics.preemptions",
        "metrics.queue",
        "metrics.latency",
        "metrics.prefix",
        "log.oom",
        "log.start",
        "log.stats",
        "observe.metrics",
        "observe.request_log",
        "observe.victims",
    ],
)
def test_common_topics_have_a_command(topic: str) -> None:
    for version in ("0.5.8", "0.5.23"):
        assert any(c.name == topic and in_range(version, c.since, c.until) for c in ENGINE.commands)


def test_preemption_kind() -> None:
    assert ENGINE.preempt_kind("0.5.23", {}) == "recompute"
    decode = {"disaggregation_mode": "decode", "disaggregation_decode_retraction_backup": "cpu_tensor"}
    assert ENGINE.preempt_kind("0.5.23", decode) == "swap"
    assert ENGINE.never_preempts("0.5.23", {}) is False


def test_table_is_found_and_uses_known_events() -> None:
    assert engines()["sglang"] is ENGINE
    assert {template.event for template in ENGINE.templates} <= set(EVENTS)
    assert len({template.id for template in ENGINE.templates}) == len(ENGINE.templates)
    for template in ENGINE.templates:
        re.compile(template.pattern)
