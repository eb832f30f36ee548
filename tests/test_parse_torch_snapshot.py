"""Torch memory snapshots: real pickles with the layout of torch's ``_snapshot()``, and files that must be refused."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.parse import torch_snapshot
from kvdoctor.parse.torch_snapshot import MIB, Refused, TorchSnapshot, analyse, load, render_map, sniff, timeline

BASE = 0x7F5A00000000
MODEL = {"filename": "/srv/app/vllm/model_executor/models/llama.py", "line": 310, "name": "forward"}
INNER = {"filename": "/opt/env/lib/python3.11/site-packages/torch/nn/functional.py", "line": 2546, "name": "linear"}
CPP = {"filename": "??", "line": 0, "name": "c10::cuda::CUDACachingAllocator::Native::malloc(unsigned long)"}


def block(size: int, state: str, requested: int | None = None, frames: list[Any] | None = None) -> dict[str, Any]:
    asked = (size if requested is None else requested) if state != "inactive" else 0
    return {"size": size, "requested_size": asked, "state": state, "frames": frames if frames is not None else []}


def segment(address: int, blocks: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The fields of ``segmentInfoToDict``, in torch's order."""
    at = address
    placed = []
    for item in blocks:
        placed.append({"address": at, **item})
        at += item["size"]
    total = at - address
    live = sum(item["size"] for item in blocks if item["state"] == "active_allocated")
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "allocated_size": live,
        "active_size": sum(item["size"] for item in blocks if item["state"] != "inactive"),
        "requested_size": sum(item["requested_size"] for item in blocks),
        "stream": 0,
        "segment_type": "large" if total > 2 * MIB else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        **fields,
        "blocks": placed,
    }


def snapshot(segments: list[dict[str, Any]], trace: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "segments": segments,
        "device_traces": [trace if trace is not None else []],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "2": 0},
        },
        "external_annotations": [],
        **more,
    }


def fragmented() -> dict[str, Any]:
    """40 MiB: free 6 + 4 MiB beside blocks in use, one wholly free segment of 20 MiB, one block with rounding."""
    return snapshot(
        [
            segment(
                BASE,
                [
                    block(6 * MIB, "inactive"),
                    block(5 * MIB, "active_allocated", 5 * MIB - 300, [CPP, INNER, MODEL]),
                    block(4 * MIB, "inactive"),
                    block(5 * MIB, "active_awaiting_free"),
                ],
            ),
            segment(BASE + 64 * MIB, [block(20 * MIB, "inactive")]),
        ]
    )


def read(value: Any, protocol: int = 4) -> TorchSnapshot:
    result = load(pickle.dumps(value, protocol))
    assert isinstance(result, TorchSnapshot), result
    return result


def refused(data: bytes) -> Refused:
    result = load(data)
    assert isinstance(result, Refused), result
    assert result.say.startswith("torch memory snapshot not read: ")
    return result


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_gives_the_same_snapshot(protocol: int) -> None:
    assert read(fragmented(), protocol) == read(fragmented())


def test_three_kinds_of_loss_are_kept_apart() -> None:
    found = analyse(read(fragmented()))
    assert found.reserved == 40 * MIB
    assert found.allocated == 5 * MIB
    assert found.awaiting_free == 5 * MIB
    assert found.free == 30 * MIB
    assert found.largest_free == 20 * MIB
    assert found.external == pytest.approx(1 - 20 / 30)
    assert found.returnable == 20 * MIB
    assert found.pinned_free == 10 * MIB
    assert found.inactive_split == 10 * MIB
    assert found.internal == 300
    assert found.internal_share == pytest.approx(300 / (5 * MIB))


def test_holder_is_the_first_frame_outside_torch() -> None:
    holders = analyse(read(fragmented())).holders
    assert holders[0].where == "forward (model_executor/models/llama.py:310)"
    assert (holders[0].blocks, holders[0].bytes, holders[0].pins) == (1, 5 * MIB, 10 * MIB)
    assert holders[1].where == "not recorded"


def test_largest_fit_is_what_can_be_returned_when_that_is_more_than_any_block() -> None:
    free = [segment(BASE + at * 64 * MIB, [block(20 * MIB, "inactive")]) for at in range(3)]
    found = analyse(read(snapshot(free)))
    assert found.largest_free == 20 * MIB
    assert found.largest_fit == 60 * MIB


def test_pools_streams_and_classes_never_share_free_memory() -> None:
    held = [block(10 * MIB, "inactive"), block(10 * MIB, "active_allocated")]
    found = analyse(
        read(
            snapshot(
                [
                    segment(BASE, held, stream=0),
                    segment(BASE + 64 * MIB, held, stream=94_000_000),
                    segment(BASE + 128 * MIB, [block(2 * MIB, "inactive")]),
                ]
            )
        )
    )
    groups = {(group.size_class, group.stream): group for group in found.groups}
    assert set(groups) == {("large", 0), ("large", 94_000_000), ("small", 0)}
    assert groups["large", 0].largest_free == 10 * MIB
    assert groups["large", 0].external == 0
    assert found.external == pytest.approx(1 - 10 / 22)


def test_private_graph_pool_is_counted_but_not_as_fragmentation() -> None:
    graph = segment(
        BASE, [block(30 * MIB, "inactive"), block(10 * MIB, "active_allocated")], segment_pool_id=(0, 7), stream=3
    )
    shared = segment(BASE + 64 * MIB, [block(8 * MIB, "inactive"), block(12 * MIB, "active_allocated")])
    found = analyse(read(snapshot([graph, shared])))
    assert (found.private_reserved, found.private_free) == (40 * MIB, 30 * MIB)
    assert found.free == 8 * MIB
    assert found.largest_free == 8 * MIB
    assert found.external == 0


def test_expandable_segment_returns_whole_free_pages_only() -> None:
    blocks = [block(30 * MIB, "active_allocated"), block(50 * MIB, "inactive"), block(20 * MIB, "active_allocated")]
    found = analyse(read(snapshot([segment(BASE, blocks, is_expandable=True)])))
    # free is [30, 80) MiB; whole 20 MiB pages in it are [40, 60) and [60, 80)
    assert found.returnable == 40 * MIB
    assert found.pinned_free == 10 * MIB
    assert found.expandable_reserved == 100 * MIB


def test_missing_requested_size_is_unknown_not_zero_waste() -> None:
    old = fragmented()
    for item in old["segments"][0]["blocks"]:
        del item["requested_size"]
        del item["address"]
    found = analyse(read(old))
    assert found.requested is None
    assert found.internal is None
    assert read(old).segments[0].blocks[1].address == BASE + 6 * MIB


def test_old_and_new_name_of_the_waiting_state() -> None:
    old = fragmented()
    old["segments"][0]["blocks"][3]["state"] = "active_pending_free"
    assert read(old) == read(fragmented())


def test_nothing_free_has_no_fragmentation_figure() -> None:
    found = analyse(read(snapshot([segment(BASE, [block(20 * MIB, "active_allocated")])])))
    assert found.external is None
    assert found.largest_fit == 0


def test_json_form_and_bare_segment_list() -> None:
    from_json = load(json.dumps(fragmented()).encode())
    assert isinstance(from_json, TorchSnapshot)
    assert from_json.form == "json"
    assert from_json.segments == read(fragmented()).segments
    assert read(fragmented()["segments"]).segments == read(fragmented()).segments


def test_settings_are_scalars_by_name() -> None:
    found = read(fragmented()).settings
    assert found["expandable_segments"] is False
    assert found["roundup_power2_divisions.2"] == 0


def test_several_devices_are_apart_and_an_absent_one_is_an_error() -> None:
    two = snapshot(
        [
            segment(BASE, [block(20 * MIB, "inactive")]),
            segment(BASE, [block(40 * MIB, "active_allocated")], device=1),
        ]
    )
    loaded = read(two)
    assert loaded.devices == (0, 1)
    assert analyse(loaded, 1).reserved == 40 * MIB
    with pytest.raises(KeyError, match="device 2"):
        analyse(loaded, 2)


def test_rocm_dump_is_read_alike_and_named() -> None:
    hip = {"filename": "c10/hip/HIPCachingAllocator.cpp", "line": 1, "name": "c10::hip::HIPCachingAllocator::malloc"}
    dump = fragmented()
    dump["segments"][0]["blocks"][1]["frames"] = [hip, MODEL]
    loaded = read(dump)
    assert loaded.vendor == "rocm"
    assert analyse(loaded).reserved == 40 * MIB
    assert read(snapshot([])).vendor == "unknown"


def test_one_bad_row_is_counted_and_the_rest_kept() -> None:
    dump = fragmented()
    dump["segments"].append({"address": "x"})
    dump["segments"][0]["blocks"].append({"state": "melting", "size": 1})
    loaded = read(dump)
    assert loaded.bad_rows == 2
    assert len(loaded.segments) == 2


def event(action: str, addr: int, size: int, time_us: int) -> dict[str, Any]:
    key = "device_free" if action == "oom" else "addr"
    return {"action": action, key: addr, "size": size, "stream": 0, "time_us": time_us, "frames": [MODEL]}


def test_history_gives_fragmentation_over_time_and_the_failed_request() -> None:
    middle = BASE + 8 * MIB
    trace = [
        event("segment_alloc", BASE, 20 * MIB, 1),
        event("alloc", BASE, 8 * MIB - 100, 2),
        event("alloc", middle, 4 * MIB, 3),
        event("free_requested", BASE, 8 * MIB - 100, 4),
        event("free_completed", BASE, 8 * MIB - 100, 5),
        event("oom", 3 * MIB, 16 * MIB, 6),
    ]
    final = segment(BASE, [block(8 * MIB, "inactive"), block(4 * MIB, "active_allocated"), block(8 * MIB, "inactive")])
    loaded = read(snapshot([final], trace))
    history = timeline(loaded, points=6)
    assert history is not None
    assert history.mismatches == 0
    by_entry = {moment.entry: moment for moment in history.moments}
    assert (by_entry[0].reserved, by_entry[0].in_use) == (0, 0)
    assert by_entry[1].largest_free == 20 * MIB
    assert (by_entry[3].in_use, by_entry[3].largest_free) == (12 * MIB, 8 * MIB)
    assert by_entry[3].external == 0
    assert by_entry[6].external == pytest.approx(0.5)
    (oom,) = loaded.ooms
    assert (oom.requested, oom.device_free, oom.time_us) == (16 * MIB, 3 * MIB, 6)
    assert loaded.stacks[oom.stack][0].name == "forward"
    assert analyse(loaded).device_free == 3 * MIB


def test_history_of_mapped_pages_is_undone_page_by_page() -> None:
    trace = [event("segment_map", BASE, 20 * MIB, 1), event("segment_map", BASE + 20 * MIB, 20 * MIB, 2)]
    trace.append(event("segment_unmap", BASE + 40 * MIB, 20 * MIB, 3))
    final = segment(BASE, [block(40 * MIB, "inactive")], is_expandable=True)
    history = timeline(read(snapshot([final], trace)), points=3)
    assert history is not None
    assert [moment.reserved for moment in history.moments] == [20 * MIB, 40 * MIB, 60 * MIB, 40 * MIB]
    assert [moment.largest_free for moment in history.moments] == [20 * MIB, 20 * MIB, 60 * MIB, 40 * MIB]
    assert history.mismatches == 0


def test_history_that_contradicts_the_state_says_so() -> None:
    trace = [event("alloc", BASE + 5, 100, 1), event("segment_alloc", 12345, 4, 2)]
    history = timeline(read(snapshot([segment(BASE, [block(20 * MIB, "inactive")])], trace)))
    assert history is not None
    assert history.mismatches == 2
    assert timeline(read(fragmented())) is None


def test_map_shows_pinned_segments_first_and_fits_the_width() -> None:
    text = render_map(read(fragmented()), 85)
    lines = text.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].endswith("............" + "##########" + "........" + "~~~~~~~~~~")
    assert lines[2].endswith("." * 40)
    assert "1 more segments, 20.0 MiB" in render_map(read(fragmented()), 85, rows=1)


# Files that are not taken. None of them may run code: each would create a file or kill the process if it did.


class Hostile:
    """Pickles as a call, like an exploit does."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.call = call
        self.args = args

    def __reduce__(self) -> Any:
        return self.call, self.args


@pytest.mark.parametrize("place", ["top", "segments", "block", "frame", "unread"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, place: str) -> None:
    flag = tmp_path / "ran"
    bomb = Hostile(os.system, f"touch {flag}")
    value: Any = fragmented()
    if place == "top":
        value = bomb
    elif place == "segments":
        value["segments"].append(bomb)
    elif place == "block":
        value["segments"][0]["blocks"][0]["state"] = bomb
    elif place == "frame":
        value["segments"][0]["blocks"][1]["frames"] = [bomb]
    else:
        value["nobody_reads_this"] = bomb
    answer = refused(pickle.dumps(value))
    assert answer.reason == "names_code"
    assert answer.detail == "posix.system"
    assert not flag.exists()


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", "names_code"),
        (b"\x80\x02cbuiltins\ngetattr\n.", "names_code"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.", "names_code"),
        (b"\x80\x02U\x03abcQ.", "names_code"),
        (b"Pabc\n.", "names_code"),
        (b"\x80\x02\x82\x01.", "corrupt"),
        (b"\x80\x05\x97.", "corrupt"),
        (b"\x80\x02}}b.", "corrupt"),
        (b"\x80\x02K\x01K\x02R.", "corrupt"),
        (b"\x80\xff.", "corrupt"),
        (b"\x80\x04N.", "not_a_snapshot"),
        (b"[1, 2, 3]", "not_a_snapshot"),
        (b'{"a": 1}', "not_a_snapshot"),
        (b'{"segments": [}', "corrupt"),
        (b"hello world", "corrupt"),
        (b"", "truncated"),
    ],
)
def test_what_is_not_a_snapshot_is_refused_with_its_reason(data: bytes, reason: str) -> None:
    assert refused(data).reason == reason


def test_pickles_of_other_things_are_refused() -> None:
    for value in ({"state_dict": [1, 2]}, [1, 2], "segments", {"segments": 3}, {"segments": [{"a": 1}]}, (1, 2)):
        assert refused(pickle.dumps(value)).reason == "not_a_snapshot"


def test_every_truncation_is_refused() -> None:
    data = pickle.dumps(fragmented())
    for length in [*range(1, 40), *range(40, len(data), 211)]:
        assert refused(data[:length]).reason in ("truncated", "corrupt")


def deep(levels: int) -> bytes:
    return b"\x80\x04" + b")" + b"\x85" * levels


def test_deep_nesting_is_refused_without_recursion() -> None:
    assert refused(deep(200_000) + b".").reason == "not_a_snapshot"
    assert refused(b"[" * 200_000).reason == "corrupt"


def test_deep_key_kills_only_the_child() -> None:
    # hashing a nested tuple recurses in C
    assert refused(b"\x80\x04}" + deep(2_000_000)[2:] + b"Ns.").reason in ("crashed", "corrupt", "not_a_snapshot")


def test_deep_object_in_an_unread_field_is_not_walked() -> None:
    data = b"\x80\x04}(\x8c\x08segments]\x8c\x04more" + deep(200_000)[2:] + b"u."
    assert load(data) == read({"segments": []})


def test_shared_references_run_into_the_node_budget() -> None:
    row = block(512, "inactive")
    blocks = [row] * 40_000
    shared = segment(BASE, [])
    shared["blocks"] = blocks
    data = pickle.dumps(snapshot([shared] * 40_000))
    assert len(data) < 1_000_000
    assert refused(data).reason == "too_many_nodes"


def test_a_list_that_holds_itself_is_not_followed() -> None:
    loop: list[Any] = []
    loop.append(loop)
    dump = fragmented()
    dump["segments"][0]["blocks"][1]["frames"] = loop
    dump["segments"].append(loop)
    assert read(dump).bad_rows == 1


@pytest.mark.parametrize(
    "opcode",
    [
        b"\x8e" + struct.pack("<Q", 1 << 40),  # BINBYTES8
        b"\x96" + struct.pack("<Q", 1 << 40),  # BYTEARRAY8
        b"\x8d" + struct.pack("<Q", 1 << 40),  # BINUNICODE8
        b"N" + b"r" + struct.pack("<I", 0xFFFFFFF0),  # LONG_BINPUT
    ],
)
def test_huge_declared_sizes_end_in_a_refusal(opcode: bytes) -> None:
    assert refused(b"\x80\x05" + opcode + b"abc.").reason in ("memory_limit", "truncated", "corrupt")


def test_numbers_out_of_range_are_bad_rows_not_figures() -> None:
    dump = fragmented()
    dump["segments"][0]["blocks"][0]["size"] = 1 << 5000
    dump["segments"][0]["blocks"][2]["size"] = -5
    dump["segments"][0]["blocks"][3]["size"] = True
    assert read(dump).bad_rows == 3


def test_a_reader_out_of_time_is_stopped() -> None:
    # every multiple of 2^61 - 1 has the hash 0, so each key is compared with all before it
    keys = [pickle.encode_long(number * ((1 << 61) - 1)) for number in range(1, 80_000)]
    body = b"".join(b"\x8a" + bytes([len(key)]) + key + b"N" for key in keys)
    result = load(b"\x80\x04}(" + body + b"u.", cpu_seconds=1)
    assert isinstance(result, Refused)
    assert result.reason == "time_limit"


def test_files_that_cannot_be_opened_are_values(tmp_path: Path) -> None:
    missing = load(tmp_path / "absent")
    assert isinstance(missing, Refused)
    assert missing.reason == "unreadable"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waiting = load(fifo)
    assert isinstance(waiting, Refused)
    assert waiting.detail == "not a regular file"
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(fragmented()))
    assert load(path) == read(fragmented())


def test_sniff_knows_snapshots_by_content() -> None:
    assert sniff(pickle.dumps(fragmented()))
    assert sniff(pickle.dumps(fragmented()["segments"]))
    assert sniff(json.dumps(fragmented()).encode())
    assert not sniff(pickle.dumps({"weights": [1]}))
    assert not sniff(b'{"a": 1}')
    assert not sniff(b"INFO 11-29 12:00:00 segments")


STATES = st.sampled_from(["active_allocated", "active_awaiting_free", "inactive"])
BLOCKS = st.lists(st.tuples(st.integers(1, 64), STATES), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(BLOCKS, st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_bytes_are_conserved(layout: list[tuple[list[tuple[int, str]], bool, bool]]) -> None:
    segments = [
        segment(
            BASE + at * 1024 * MIB,
            [block(size * 512, state, size * 512 - 1) for size, state in blocks],
            is_expandable=expandable,
            segment_pool_id=(0, 1) if private else (0, 0),
        )
        for at, (blocks, expandable, private) in enumerate(layout)
    ]
    found = analyse(read(snapshot(segments)), holders=100)
    assert found.reserved == found.allocated + found.awaiting_free + found.free + found.private_free
    assert found.reserved == sum(group.reserved for group in found.groups)
    assert 0 <= found.largest_free <= found.free
    assert found.returnable + found.pinned_free <= found.free
    assert found.internal is not None
    assert 0 <= found.internal <= found.allocated


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_pickles_never_raise(data: st.DataObject) -> None:
    good = pickle.dumps(fragmented())
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 8))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(load(bytes(bad)), (Refused, TorchSnapshot))


def test_the_made_pickles_hold_plain_data_only() -> None:
    """The fixtures are what torch writes: no global in them, so the refusals above are for the hostile part."""
    names = {opcode.name for opcode, _, _ in pickletools.genops(pickle.dumps(fragmented()))}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"}
    assert torch_snapshot.DEFAULT_POOL == (0, 0)
