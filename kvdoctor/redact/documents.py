"""JSON answers, iteration statistics, benchmark tables, allocator snapshots: only the keys their readers use."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields

from kvdoctor.engines.base import engines
from kvdoctor.kvsize import CONFIG_NUMBERS, CONFIG_WORDS
from kvdoctor.parse.benchcsv import COLUMNS, BenchTable
from kvdoctor.parse.iterstats import IterationRow, IterationStats
from kvdoctor.parse.torch_snapshot import TorchSnapshot
from kvdoctor.redact import words
from kvdoctor.redact.veil import Veil

JSON_NOTES = ("only known numeric keys; model names: last part of the path; other settings hashed",)
ITERATION_NOTES = ("only numbers",)
CONFIG_NOTES = ("only the sizes of the layers and known words; names left out",)
BENCH_NOTES = ("known columns as numbers; other columns and their cells hashed",)
TORCH_NOTES = ("written again as JSON; stack frames, settings in words and user annotations left out",)
PROBE_NOTES = ("only numbers, pattern names and allocator settings; serials hashed",)
COMMAND_NOTES = (
    "flags: known names with numbers, switches and known words; others hashed; who-and-where flags dropped",
)


def _json(value: object) -> bytes:
    return (json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _loads(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _numbers(row: object, keys: frozenset[str]) -> dict[str, float | bool]:
    """The keys of an object whose values are finite numbers or switches."""
    out: dict[str, float | bool] = {}
    for key, value in row.items() if isinstance(row, dict) else ():
        if key in keys and isinstance(value, (int, float)) and math.isfinite(value):
            out[key] = value
    return out


# ---- llama.cpp

_SLOT = words.known(
    "id id_task task_id is_processing state n_ctx n_prompt_tokens n_past n_prompt_tokens_processed "
    "n_prompt_tokens_cache n_predict max_tokens"
)
_NEXT = frozenset({"n_decoded", "n_remain", "has_next_token"})
_LIMITS = frozenset({"n_predict", "max_tokens"})


def slots(text: str, veil: Veil) -> bytes | None:
    """``/slots`` without prompts, samplers and generated text."""
    value = _loads(text)
    if not isinstance(value, list):
        return None
    out = []
    for row in value:
        kept: dict[str, object] = dict(_numbers(row, _SLOT))
        if isinstance(row, dict):
            following = row.get("next_token")
            token = following[0] if isinstance(following, list) and following else following
            kept |= {"next_token": [_numbers(token, _NEXT)]} if token is not None else {}
            kept |= {"params": _numbers(row["params"], _LIMITS)} if isinstance(row.get("params"), dict) else {}
        out.append(kept)
    return _json(out)


def props(text: str, veil: Veil) -> bytes | None:
    """``/props``: context, slots, model, build."""
    value = _loads(text)
    if not isinstance(value, dict):
        return None
    out: dict[str, object] = dict(_numbers(value, frozenset({"n_ctx", "total_slots"})))
    defaults = value.get("default_generation_settings")
    if isinstance(defaults, dict):
        inner: dict[str, object] = dict(_numbers(defaults, frozenset({"n_ctx"})))
        if isinstance(defaults.get("model"), str):
            inner["model"] = veil.model(defaults["model"])
        out["default_generation_settings"] = inner
    for key in ("model_path", "model_alias"):
        if isinstance(value.get(key), str) and value[key]:
            out[key] = veil.model(value[key])
    if isinstance(value.get("build_info"), str):
        out["build_info"] = veil.version(value["build_info"])
    return _json(out)


# ---- SGLang

_STATE = frozenset({"last_gen_throughput", "effective_max_running_requests_per_dp", "max_running_requests"})
_MEMORY = frozenset({"token_capacity", "weight", "kvcache", "cuda_graph", "startup_available", "graph"})
_LOAD = words.known(
    "dp_rank timestamp num_running_reqs num_waiting_reqs num_used_tokens max_total_num_tokens "
    "max_running_requests token_usage gen_throughput num_total_tokens cache_hit_rate utilization"
)
_QUEUES = frozenset({"grammar", "retracted", "waiting", "paused"})
_LOAD_MEMORY = frozenset({"weight_gb", "kv_cache_gb", "graph_gb", "token_capacity"})
_PD = frozenset(
    [
        "prefill_bootstrap_queue_reqs",
        "prefill_prealloc_queue_reqs",
        "prefill_inflight_queue_reqs",
        "decode_prealloc_queue_reqs",
        "decode_transfer_queue_reqs",
        "decode_retracted_queue_reqs",
    ]
)


def server_info(text: str, veil: Veil) -> bytes | None:
    """``/server_info``: settings as everywhere, and the schedulers' sizes."""
    value = _loads(text)
    if not isinstance(value, dict):
        return None
    scalars = {k: v for k, v in value.items() if isinstance(v, (str, int, float)) and v != ""}
    reduced = veil.settings({k: str(v) for k, v in scalars.items()})
    # a number stays a number, so that it reads the same
    known = _numbers(scalars, frozenset({"max_total_num_tokens"}))
    out: dict[str, object] = {
        k: scalars[k] if k in scalars and str(scalars[k]) == v and not isinstance(scalars[k], str) else v
        for k, v in reduced.items()
    }
    out |= known
    if "mem_fraction_static" not in out and "max_total_num_tokens" not in out:
        return None
    states = value.get("internal_states")
    if isinstance(states, list):
        out["internal_states"] = [_state(state) for state in states]
    if isinstance(value.get("memory_usage"), dict):
        out["memory_usage"] = _memory(value["memory_usage"])
    return _json(out)


def router_info(text: str, veil: Veil) -> bytes | None:
    """TGI's ``/info``: settings as everywhere."""
    value = _loads(text)
    if not isinstance(value, dict):
        return None
    scalars = {k: v for k, v in value.items() if isinstance(v, (str, int, float)) and v != ""}
    kept: dict[str, object] = dict(veil.settings({k: str(v) for k, v in scalars.items()}))
    # a number stays a number, so that it reads the same
    kept |= _numbers(scalars, frozenset({"max_batch_total_tokens"}))
    return _json(kept) if "model_id" in kept else None


def model_config(text: str, veil: Veil) -> bytes | None:
    """A model's ``config.json``: the numbers that the size of its KV follows from, and words the formula knows."""
    value = _loads(text)
    if not isinstance(value, dict):
        return None
    out = _shape(value)
    if isinstance(value.get("text_config"), dict):
        out["text_config"] = _shape(value["text_config"])
    return _json(out)


def _shape(config: Mapping[str, object]) -> dict[str, object]:
    out: dict[str, object] = dict(_numbers(config, CONFIG_NUMBERS))
    for key, known in CONFIG_WORDS.items():
        said = config.get(key)
        if isinstance(said, str):
            out[key] = said if said in known else "other"
        elif isinstance(said, list):
            out[key] = [word if word in known else "other" for word in said]
    return out


def _state(state: object) -> dict[str, object]:
    out: dict[str, object] = dict(_numbers(state, _STATE))
    if isinstance(state, dict) and isinstance(state.get("memory_usage"), dict):
        out["memory_usage"] = _memory(state["memory_usage"])
    return out


def _memory(usage: Mapping[str, object]) -> dict[str, object]:
    out: dict[str, object] = dict(_numbers(usage, _MEMORY))
    graph = usage.get("graph")
    if isinstance(graph, dict):
        # one size per phase; a phase that is no number makes the sum unknown, so it stays as such
        out["graph"] = {
            f"phase{i}": v if isinstance(v, (int, float)) and math.isfinite(v) else None
            for i, v in enumerate(graph.values())
        }
    return out


def loads(text: str, veil: Veil) -> bytes | None:
    """``/v1/loads`` in its JSON form."""
    value = _loads(text)
    if not isinstance(value, dict) or not isinstance(value.get("loads"), list):
        return None
    rows = []
    for row in value["loads"]:
        kept: dict[str, object] = dict(_numbers(row, _LOAD))
        if isinstance(row, dict):
            for key, known in (("queues", _QUEUES), ("memory", _LOAD_MEMORY), ("disaggregation", _PD)):
                if isinstance(row.get(key), dict):
                    kept[key] = _numbers(row[key], known)
            mode = row["disaggregation"].get("mode") if isinstance(row.get("disaggregation"), dict) else None
            if mode in ("prefill", "decode", "null", "none"):
                kept["disaggregation"] = {**_numbers(row["disaggregation"], _PD), "mode": mode}
        rows.append(kept)
    out: dict[str, object] = {"loads": rows}
    if isinstance(value.get("version"), str):
        out["version"] = veil.version(value["version"])
    return _json(out)


# ---- what every server answers, and its command line


def version(text: str, veil: Veil) -> bytes | None:
    """``/version``."""
    value = _loads(text)
    return (
        _json({"version": veil.version(str(value["version"]))})
        if isinstance(value, dict) and "version" in value
        else None
    )


def models(text: str, veil: Veil) -> bytes | None:
    """``/v1/models``: names and lengths."""
    value = _loads(text)
    listed = value.get("data") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        return None
    rows = [
        {"id": veil.model(str(e.get("id", ""))), **_numbers(e, frozenset({"max_model_len"}))}
        for e in listed
        if isinstance(e, dict)
    ]
    return _json({"data": rows})


def command(text: str, veil: Veil) -> bytes | None:
    """``ENGINE`` and its flags; a value that is not known is hashed, a flag that is not known too."""
    name, _, flags = text.partition("\n")
    if name.strip() not in engines():
        return None
    out: list[str] = []
    pieces = flags.replace("\x00", " ").split()
    for index, piece in enumerate(pieces):
        match = re.match(r"--?([A-Za-z][\w-]*)(?:=(.*))?$", piece)
        if not match:
            continue
        key = match.group(1).replace("-", "_")
        given = match.group(2)
        spaced = given is None and index + 1 < len(pieces) and not re.match(r"--?[A-Za-z]", pieces[index + 1])
        value = pieces[index + 1] if spaced else given
        for kept, text_value in veil.settings({key: value if value is not None else "True"}).items():
            flag = f"--{kept.replace('_', '-')}"
            out.append(f"{flag}={text_value}" if value is not None else flag)
    return f"{name.strip()}\n{' '.join(out)}\n".encode()


# ---- TensorRT-LLM iteration statistics

_PLACES: Mapping[str, str] = {
    "iteration": "iter", "rank": "attention_dp_rank", "latency_s": "iter_latency_ms",
    "queue_latency_s": "new_active_requests_queue_latency_ms", "new_active": "num_new_active_requests",
    "active": "num_active_requests", "queued": "num_queued_requests", "completed": "num_completed_requests",
    "max_active": "max_num_active_requests", "max_batch_static": "max_batch_size_static",
    "max_batch_runtime": "max_batch_size_runtime", "max_step_tokens": "max_num_tokens_runtime",
    "gpu_bytes": "gpu_mem_usage", "cpu_bytes": "cpu_mem_usage", "pinned_bytes": "pinned_mem_usage",
    "max_blocks": "kv_cache_stats/max_num_blocks", "free_blocks": "kv_cache_stats/free_num_blocks",
    "used_blocks": "kv_cache_stats/used_num_blocks", "tokens_per_block": "kv_cache_stats/tokens_per_block",
    "reused_blocks": "kv_cache_stats/reused_blocks", "missed_blocks": "kv_cache_stats/missed_blocks",
    "hit_rate": "kv_cache_stats/cache_hit_rate", "scheduled": "inflight_batching_stats/num_scheduled_requests",
    "context_requests": "inflight_batching_stats/num_context_requests",
    "generation_requests": "inflight_batching_stats/num_gen_requests",
    "paused": "inflight_batching_stats/num_paused_requests", "context_tokens": "inflight_batching_stats/num_ctx_tokens",
    "generation_tokens": "static_batching_stats/num_gen_tokens",
    "paused_kv_tokens": "inflight_batching_stats/num_paused_kv_tokens", "time": "timestamp",
    "micro_batch": "inflight_batching_stats/micro_batch_id",
    "secondary_max_blocks": "kv_cache_iteration_stats/0/secondary_max_num_blocks",
    "secondary_used_blocks": "kv_cache_iteration_stats/0/secondary_used_num_blocks",
}  # fmt: skip


def iterations(stats: IterationStats) -> bytes:
    """One JSON object a line with the numbers of each row."""
    names = [f.name for f in fields(IterationRow) if f.name in _PLACES]
    lines = []
    for row in stats.rows:
        record: dict[str, object] = {}
        for name in names:
            value = getattr(row, name)
            if value is None:
                continue
            *groups, key = _PLACES[name].split("/")
            home = record
            for group in groups:
                home = home.setdefault(group, {})  # type: ignore[assignment]
            home[key] = _milliseconds(value) if name.endswith("_s") else value
        # without one of its marks a row would not be read back
        record.setdefault("kv_cache_stats", {})
        lines.append(json.dumps(record, separators=(",", ":"), allow_nan=False))
    return ("\n".join(lines) + "\n").encode()


def _milliseconds(seconds: float) -> float:
    """The milliseconds that read back as exactly these seconds."""
    value = seconds * 1000.0
    for near in (value, round(value, 9), math.nextafter(value, math.inf), math.nextafter(value, 0.0)):
        if near / 1000.0 == seconds:
            return near
    return value


# ---- benchmark tables

_HEADERS: Mapping[str, str] = {
    "max_running": "max_num_seqs", "batch_tokens": "max_num_batched_tokens", "fraction": "gpu_memory_utilization",
    "output_rate": "output_throughput", "total_rate": "total_throughput", "prompt_rate": "prompt_throughput",
    "finished_rate": "request_throughput", "hit_share": "hit_rate",
}  # fmt: skip


def bench_header(name: str) -> str:
    """A header that is read as the canonical column ``name`` in its canonical unit."""
    if COLUMNS[name][0] == "s" and name not in ("duration_s",):
        return f"{name}_s"
    return _HEADERS.get(name, name)


def bench(table: BenchTable, veil: Veil) -> bytes:
    """The rows under canonical headers."""
    present = set(table.columns.values())
    used = [name for name in COLUMNS if name in present]
    others = sorted({key for row in table.rows for key in row.settings})
    policy = "policy" in present
    lines = [",".join([bench_header(n) for n in used] + ["policy"] * policy + [veil.token(key) for key in others])]
    for row in table.rows:
        cells = [repr(row.values[name]) if name in row.values else "" for name in used]
        if policy:
            known = row.policy is not None and row.policy.lower() in words.values()
            cells.append(
                row.policy if row.policy is not None and known else veil.token(row.policy) if row.policy else ""
            )
        cells += [veil.token(row.settings[key]) if key in row.settings else "" for key in others]
        lines.append(",".join(cells))
    return ("\n".join(lines) + "\n").encode()


# ---- torch allocator snapshot, probe

_ACTIONS = words.known(
    "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap snapshot oom user_defined"
)
_STATES = {"allocated": "active_allocated", "awaiting_free": "active_awaiting_free", "inactive": "inactive"}


def torch(snapshot: TorchSnapshot) -> bytes:
    """Segments, blocks and the history of actions; no frames."""
    segments = []
    for s in snapshot.segments:
        row: dict[str, object] = {
            "device": s.device, "address": s.address, "total_size": s.size, "segment_type": s.size_class,
            "blocks": [
                {"address": b.address, "size": b.size, "state": _STATES[b.state]}
                | ({"requested_size": b.requested} if b.requested is not None else {})
                for b in s.blocks
            ],
        }  # fmt: skip
        if s.stream is not None:
            row["stream"] = s.stream
        if s.pool_id is not None:
            row["segment_pool_id"] = list(s.pool_id)
        if s.expandable is not None:
            row["is_expandable"] = s.expandable
        segments.append(row)
    traces: list[list[dict[str, object]]] = [
        [] for _ in range(max((h.device for h in snapshot.histories), default=-1) + 1)
    ]
    for history in snapshot.histories:
        ooms = iter([o for o in snapshot.ooms if o.device == history.device])
        for action, address, size, time in zip(
            history.actions, history.addresses, history.sizes, history.times_us, strict=True
        ):
            entry: dict[str, object] = {"action": action if action in _ACTIONS else "other"}
            entry |= {k: v for k, v in (("addr", address), ("size", size), ("time_us", time)) if v >= 0}
            if action == "oom" and (oom := next(ooms, None)) is not None and oom.device_free is not None:
                entry["device_free"] = oom.device_free
            traces[history.device].append(entry)
    settings = {
        k: v for k, v in snapshot.settings.items()
        if isinstance(v, (bool, int, float)) and re.fullmatch(r"(?:PYTORCH_[A-Z_]{1,40}|[a-z0-9_]{1,60})(?:\.[a-z0-9_]{1,20})?", k)
    }  # fmt: skip
    return _json({"segments": segments, "device_traces": traces, "allocator_settings": settings})


_DEVICE = frozenset({"total_bytes", "free_bytes", "index"})
_LEVEL = frozenset({"limit_bytes", "largest_single_bytes", "largest_is_limit", "gap"})
_FIT = frozenset({"block_bytes", "count", "expected", "counted_up_to"})
_REPLAY = words.known(
    "requests refused false_refused external_max largest_fit_min_bytes inactive_split_peak_bytes "
    "reserved_peak_bytes allocated_peak_bytes"
)
_ALLOCATOR = re.compile(
    r"(?:(?:expandable_segments|max_split_size_mb|garbage_collection_threshold|roundup_power2_divisions|backend|"
    r"pinned_use_cuda_host_register|release_lock_on_cudamalloc):(?:True|False|native|cudaMallocAsync|[0-9.]{1,12}),?){0,6}"
)
_PRODUCT = re.compile(r"(?:NVIDIA|Tesla|GeForce|Quadro|AMD|Instinct)(?: [A-Za-z0-9+/.-]{1,16}){1,8}")


def probe(text: str, veil: Veil) -> bytes | None:
    """A probe result's numbers."""
    value = _loads(text)
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        return None
    device, level = value.get("device"), value.get("device_level")
    out: dict[str, object] = {"schema": "kvdoctor.probe/1", "device": dict(_numbers(device, _DEVICE))}
    if value["schema"] != out["schema"]:
        return None
    if isinstance(device, dict) and isinstance(device.get("name"), str):
        out["device"] = {
            **_numbers(device, _DEVICE), "name": device["name"] if _PRODUCT.fullmatch(device["name"]) else veil.token(device["name"]),
        }  # fmt: skip
    if isinstance(level, dict):
        fit = level.get("fit")
        out["device_level"] = {
            **_numbers(level, _LEVEL),
            "fit": [_numbers(row, _FIT) for row in fit] if isinstance(fit, list) else [],
        }
    allocator = value.get("allocator_level")
    runs = allocator.get("runs") if isinstance(allocator, dict) else None
    if isinstance(runs, list):
        out["allocator_level"] = {"runs": [_run(run) for run in runs if isinstance(run, dict)]}
    out["stopped"] = None if value.get("stopped") is None else "stopped early"
    return _json(out)


def _run(run: Mapping[str, object]) -> dict[str, object]:
    out: dict[str, object] = dict(_numbers(run, _REPLAY))
    if run.get("pattern") in ("contiguous", "paged", "tiered"):
        out["pattern"] = run["pattern"]
    settings = run.get("settings")
    if isinstance(settings, str) and _ALLOCATOR.fullmatch(settings):
        out["settings"] = settings
    return out
