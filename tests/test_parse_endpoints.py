"""JSON of llama-server and SGLang: right values, None for what is missing, a reason for another shape."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse import Unread, endpoints

GIB = 2.0**30

BUSY = {
    "id": 2,
    "n_ctx": 2048,
    "speculative": False,
    "is_processing": True,
    "id_task": 60,
    "n_prompt_tokens": 271,
    "n_prompt_tokens_processed": 265,
    "n_prompt_tokens_cache": 31,
    "params": {"seed": 4294967295, "max_tokens": 300, "n_predict": 300, "stream": False},
    "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": 294, "n_decoded": 6}],
}
FRESH = {"id": 3, "n_ctx": 2048, "speculative": False, "is_processing": False}


def test_slots_busy_and_never_used() -> None:
    found = endpoints.slots(json.dumps([BUSY, FRESH]))
    assert not isinstance(found, Unread)
    busy, fresh = found
    assert (busy.id, busy.task, busy.processing, busy.n_ctx) == (2, 60, True, 2048)
    assert (busy.held, busy.processed, busy.cached) == (271, 265, 31)
    assert (busy.decoded, busy.remain, busy.limit) == (6, 294, 300)
    assert fresh.processing is False
    assert (fresh.held, fresh.decoded, fresh.remain, fresh.limit, fresh.task) == (None, None, None, None, None)


def test_slots_of_older_builds() -> None:
    old = {"id": 0, "state": 1, "n_ctx": 512, "n_predict": -1, "next_token": {"n_remain": -1, "n_decoded": 4}}
    found = endpoints.slots(json.dumps([old]))
    assert not isinstance(found, Unread)
    assert found[0].processing is True
    assert found[0].decoded == 4
    assert found[0].remain is None  # -1: unlimited
    assert found[0].limit is None


def test_slots_of_a_runner_that_tells_less() -> None:
    text = '[{"id":0,"id_task":1350,"is_processing":true,"n_ctx":131072,"n_prompt_tokens":95538,"n_prompt_tokens_cache":0}]'
    found = endpoints.slots(text)
    assert not isinstance(found, Unread)
    assert (found[0].held, found[0].cached) == (95538, 0)
    assert found[0].remain is None


@pytest.mark.parametrize(
    "text, why",
    [
        ('{"error":{"code":501,"message":"This server does not support slots endpoint."}}', "does not support"),
        ("[]", "not a list of slots"),
        ('[{"a":1}]', "not of slots"),
        ("<html>", "not JSON"),
        ("[" * 100_000, "deep"),
    ],
)
def test_slots_of_another_shape(text: str, why: str) -> None:
    found = endpoints.slots(text)
    assert isinstance(found, Unread)
    assert why in found.reason


def test_props() -> None:
    found = endpoints.props(
        json.dumps(
            {
                "default_generation_settings": {"params": {"n_predict": -1}, "n_ctx": 1024},
                "total_slots": 4,
                "model_path": "m/x.gguf",
                "build_info": "b11434-abc",
            }
        )
    )
    assert found == endpoints.Props(n_ctx=1024, slots=4, model="m/x.gguf", build="b11434-abc")
    assert isinstance(endpoints.props("[1]"), Unread)


def test_server_info_of_a_new_version() -> None:
    info = {
        "model_path": "m",
        "mem_fraction_static": 0.85,
        "max_running_requests": 32,
        "max_queued_requests": None,
        "page_size": 16,
        "disable_radix_cache": False,
        "cuda_graph_config": {"decode": {"max_bs": 8}},
        "max_total_num_tokens": 4096,
        "version": "0.5.23",
        "internal_states": [
            {
                "memory_usage": {
                    "weight": 15.25,
                    "kvcache": 50.5,
                    "token_capacity": 4096,
                    "startup_available": 9.5,
                    "graph": {"decode": 1.5, "prefill": 0.25},
                },
                "last_gen_throughput": 371.5,
                "effective_max_running_requests_per_dp": 16,
            }
        ],
    }
    found = endpoints.server_info(json.dumps(info))
    assert not isinstance(found, Unread)
    assert (found.version, found.pool_tokens) == ("0.5.23", 4096)
    assert found.settings["page_size"] == "16"
    assert "max_queued_requests" not in found.settings
    (state,) = found.states
    assert (state.weights, state.kv_bytes, state.graphs) == (15.25 * GIB, 50.5 * GIB, 1.75 * GIB)
    assert (state.gen_rate, state.max_running, state.pool_tokens) == (371.5, 16, 4096)


def test_server_info_of_an_old_version() -> None:
    old = {"mem_fraction_static": 0.9, "memory_usage": {"weight": 2.5, "graph": 0.5}, "last_gen_throughput": 8.0}
    found = endpoints.server_info(json.dumps(old))
    assert not isinstance(found, Unread)
    assert found.version is None
    assert found.pool_tokens is None
    assert (found.states[0].weights, found.states[0].graphs, found.states[0].gen_rate) == (2.5 * GIB, 0.5 * GIB, 8.0)
    assert isinstance(endpoints.server_info('{"version":"0.32"}'), Unread)


LOAD = {
    "timestamp": 1795958009.5,
    "dp_rank": 1,
    "num_running_reqs": 4,
    "num_waiting_reqs": 20,
    "num_used_tokens": 1713,
    "max_total_num_tokens": 2048,
    "max_running_requests": 32,
    "token_usage": 0.8364,
    "gen_throughput": 371.66,
    "memory": {"weight_gb": -0.009, "kv_cache_gb": 0.25, "graph_gb": 0.0, "token_capacity": 2048},
    "disaggregation": {"mode": "decode", "decode_prealloc_queue_reqs": 3, "decode_retracted_queue_reqs": 2},
    "queues": {"waiting": 20, "grammar": 1, "paused": 0, "retracted": 5},
}


def test_loads() -> None:
    found = endpoints.loads(json.dumps({"version": "0.5.23", "loads": [LOAD, {"dp_rank": 2}]}))
    assert not isinstance(found, Unread)
    one, bare = found.loads
    assert (one.rank, one.running, one.waiting, one.usage, one.pool_tokens) == (1, 4, 20, 0.8364, 2048)
    assert (one.kv_bytes, one.graphs, one.retracted, one.waiting_grammar) == (0.25 * GIB, 0.0, 5, 1)
    assert one.weights is None  # the difference of two measurements came out negative: no size
    assert (one.pd_mode, one.pd_prealloc_queue, one.pd_retracted_queue) == ("decode", 3, 2)
    assert (bare.rank, bare.running, bare.usage, bare.kv_bytes, bare.pd_mode) == (2, None, None, None, None)
    assert isinstance(endpoints.loads('{"loads":3}'), Unread)


def test_client_errors() -> None:
    text = (
        "2026-11-29 13:00:00 POST /completion 400\n"
        '{"error":{"code":400,"message":"request (1377 tokens) exceeds the available context size (1024 tokens), try '
        'increasing it","type":"exceed_context_size_error","n_prompt_tokens":1377,"n_ctx":1024}}\n'
        '13:00:02 got {"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}\n'
        '{"error": cut\n'
    )
    found = endpoints.client_errors(text)
    assert not isinstance(found, Unread)
    assert [(e.line, e.code, e.context_limit) for e in found] == [(2, 400, True), (3, 500, False)]
    assert (found[0].n_prompt_tokens, found[0].n_ctx) == (1377, 1024)
    assert isinstance(endpoints.client_errors("all fine\n"), Unread)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "is_processing",
                    "next_token",
                    "params",
                    "n_ctx",
                    "loads",
                    "memory",
                    "total_slots",
                    "error",
                    "graph",
                ]
                + ["internal_states", "max_total_num_tokens", "memory_usage", "disaggregation", "dp_rank", "n_predict"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_any_json_is_read_or_refused(value: object) -> None:
    text = json.dumps(value)
    for reader in (endpoints.slots, endpoints.props, endpoints.server_info, endpoints.loads, endpoints.client_errors):
        reader(text)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for reader in (endpoints.slots, endpoints.props, endpoints.server_info, endpoints.loads, endpoints.client_errors):
        reader(text)
