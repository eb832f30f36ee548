"""JSON that servers answer with: llama.cpp's /slots and /props, SGLang's /server_info and /v1/loads, TGI's /info, error
bodies; and the config.json of a model.

Pure functions over text. A field that is not there, is not a number, or says "unlimited" (-1) is None, never 0. A text of
another shape is an :class:`~kvdoctor.parse.Unread` with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from kvdoctor.frozen import frozen
from kvdoctor.parse import Unread

GIB = 2.0**30


@frozen
class Slot:
    """One slot of llama-server.

    ``held`` are the tokens the slot holds now (prompt and output), ``processed`` and ``cached`` those of the prompt that
    were computed and taken over, ``decoded`` the output so far, ``remain`` what may still follow, ``limit`` the output
    limit of the request. A slot that never had a request tells only ``id``, ``n_ctx`` and ``processing``.
    """

    id: int | None
    task: int | None
    processing: bool | None
    n_ctx: int | None
    held: int | None
    processed: int | None
    cached: int | None
    decoded: int | None
    remain: int | None
    limit: int | None


@frozen
class Props:
    """llama-server's properties. ``n_ctx`` is that of one slot: with a unified pool it is the whole pool."""

    n_ctx: int | None
    slots: int | None
    model: str | None
    build: str | None

    @property
    def settings(self) -> dict[str, str]:
        """What it says of the configuration, under llama-server's own names."""
        told = {"total_slots": self.slots, "n_ctx": self.n_ctx}
        return {name: str(value) for name, value in told.items() if value}


@frozen
class SchedulerState:
    """What one SGLang scheduler says of itself; sizes in bytes (printed as GB, meant as 2**30)."""

    pool_tokens: int | None
    weights: float | None
    kv_bytes: float | None
    graphs: float | None
    free_after_start: float | None
    gen_rate: float | None
    max_running: int | None


@frozen
class ServerInfo:
    """SGLang's /server_info (or /get_server_info) or TGI's /info: ``settings`` are the scalar settings as text, unset ones
    left out."""

    version: str | None
    pool_tokens: int | None
    settings: Mapping[str, str]
    states: tuple[SchedulerState, ...]


@frozen
class Load:
    """One scheduler in SGLang's /v1/loads; ``usage`` 0..1, sizes in bytes, ``time`` in epoch seconds."""

    rank: int | None
    time: float | None
    running: int | None
    waiting: int | None
    waiting_grammar: int | None
    retracted: int | None
    used_tokens: int | None
    pool_tokens: int | None
    max_running: int | None
    usage: float | None
    gen_rate: float | None
    weights: float | None
    kv_bytes: float | None
    graphs: float | None
    pd_mode: str | None
    pd_prefill_queue: int | None
    pd_inflight_queue: int | None
    pd_prealloc_queue: int | None
    pd_transfer_queue: int | None
    pd_retracted_queue: int | None


@frozen
class Loads:
    """SGLang's /v1/loads."""

    version: str | None
    loads: tuple[Load, ...]


@frozen
class ClientError:
    """An error body a client was sent; ``line`` is 1-based."""

    line: int
    code: int | None
    type: str | None
    message: str | None
    n_prompt_tokens: int | None
    n_ctx: int | None

    @property
    def context_limit(self) -> bool:
        """The request was longer than the context of its slot."""
        return self.type == "exceed_context_size_error" or (
            self.n_prompt_tokens is not None and self.n_ctx is not None and self.n_prompt_tokens > self.n_ctx
        )


def _decode(text: str) -> object | Unread:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        return Unread(f"not JSON: {error}")
    except RecursionError:
        return Unread("JSON nested too deeply")
    return value


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(source: Mapping[str, object], *names: str) -> float | None:
    for name in names:
        value = source.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                continue
            if math.isfinite(number):
                return number
    return None


def _count(source: Mapping[str, object], *names: str) -> int | None:
    """A count; -1 and other negative values mean "unlimited" or "none yet"."""
    number = _number(source, *names)
    return int(number) if number is not None and number >= 0 else None


def _size(source: Mapping[str, object], *names: str) -> float | None:
    """Bytes of a size given in GiB; negative ones are differences of two measurements that went wrong."""
    number = _number(source, *names)
    return number * GIB if number is not None and number >= 0 else None


def _text(source: Mapping[str, object], *names: str) -> str | None:
    for name in names:
        value = source.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def _flag(source: Mapping[str, object], *names: str) -> bool | None:
    for name in names:
        value = source.get(name)
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value != 0
    return None


def slots(text: str) -> tuple[Slot, ...] | Unread:
    """llama-server's ``GET /slots``: a list with one object per slot."""
    value = _decode(text)
    if isinstance(value, Unread):
        return value
    if not isinstance(value, list) or not value:
        error = _object(_object(value).get("error"))
        said = _text(error, "message")
        return Unread(f"/slots answered: {said}" if said else "not a list of slots")
    rows = [_object(row) for row in value]
    if not any("is_processing" in row or "state" in row for row in rows):
        return Unread("a list, but not of slots")
    return tuple(_slot(row) for row in rows)


def _slot(row: Mapping[str, object]) -> Slot:
    following = row.get("next_token")
    token = _object(following[0] if isinstance(following, list) and following else following)
    params = _object(row.get("params"))
    return Slot(
        id=_count(row, "id"),
        task=_count(row, "id_task", "task_id"),
        processing=_flag(row, "is_processing", "state"),
        n_ctx=_count(row, "n_ctx"),
        held=_count(row, "n_prompt_tokens", "n_past"),
        processed=_count(row, "n_prompt_tokens_processed"),
        cached=_count(row, "n_prompt_tokens_cache"),
        decoded=_count(token, "n_decoded"),
        remain=_count(token, "n_remain"),
        limit=_count(params or row, "n_predict", "max_tokens"),
    )


def props(text: str) -> Props | Unread:
    """llama-server's ``GET /props``."""
    value = _decode(text)
    if isinstance(value, Unread):
        return value
    row = _object(value)
    if "default_generation_settings" not in row and "total_slots" not in row:
        return Unread("not llama-server's properties")
    defaults = _object(row.get("default_generation_settings"))
    return Props(
        n_ctx=_count(defaults, "n_ctx") or _count(row, "n_ctx"),
        slots=_count(row, "total_slots"),
        model=_text(row, "model_path", "model_alias") or _text(defaults, "model"),
        build=_text(row, "build_info"),
    )


def server_info(text: str) -> ServerInfo | Unread:
    """SGLang's ``GET /server_info``: flat settings, and the schedulers' own states."""
    value = _decode(text)
    if isinstance(value, Unread):
        return value
    row = _object(value)
    if "mem_fraction_static" not in row and "max_total_num_tokens" not in row:
        return Unread("not SGLang's server information")
    settings: dict[str, str] = {}
    for name, setting in row.items():
        if isinstance(setting, (str, int, float)) and setting != "":
            settings[name] = str(setting)
    states = row.get("internal_states")
    listed = states if isinstance(states, list) else [row]
    return ServerInfo(
        version=_text(row, "version"),
        pool_tokens=_count(row, "max_total_num_tokens"),
        settings=settings,
        states=tuple(_state(_object(state)) for state in listed),
    )


def router_info(text: str) -> ServerInfo | Unread:
    """TGI's ``GET /info``: the model and the router's limits. It tells no state of a scheduler."""
    value = _decode(text)
    if isinstance(value, Unread):
        return value
    row = _object(value)
    if "model_id" not in row:
        return Unread("not TGI's information")
    settings = {k: str(v) for k, v in row.items() if isinstance(v, (str, int, float)) and v != ""}
    return ServerInfo(_text(row, "version"), _count(row, "max_batch_total_tokens"), settings, ())


def model_config(text: str) -> Mapping[str, object] | Unread:
    """A model's ``config.json`` (Hugging Face names), as it is."""
    value = _decode(text)
    if isinstance(value, Unread):
        return value
    row = _object(value)
    inner = _object(row.get("text_config"))
    if not any(k in part for part in (row, inner) for k in ("num_hidden_layers", "n_layer", "num_layers")):
        return Unread("not the configuration of a language model")
    return row


def _state(row: Mapping[str, object]) -> SchedulerState:
    memory = _object(row.get("memory_usage"))
    graph = memory.get("graph")
    if isinstance(graph, dict):
        # one size per phase in newer versions
        sizes = [_size(graph, name) for name in graph]
        known = [size for size in sizes if size is not None]
        graphs = sum(known) if known and len(known) == len(sizes) else None
    else:
        graphs = _size(memory, "graph", "cuda_graph")
    return SchedulerState(
        pool_tokens=_count(memory, "token_capacity"),
        weights=_size(memory, "weight"),
        kv_bytes=_size(memory, "kvcache"),
        graphs=graphs,
        free_after_start=_size(memory, "startup_available"),
        gen_rate=_number(row, "last_gen_throughput"),
        max_running=_count(row, "effective_max_running_requests_per_dp", "max_running_requests"),
    )


def loads(text: str) -> Loads | Unread:
    """SGLang's ``GET /v1/loads`` in its JSON form (the Prometheus form is an ordinary exposition)."""
    value = _decode(text)
    if isinstance(value, Unread):
        return value
    row = _object(value)
    listed = row.get("loads")
    if not isinstance(listed, list):
        return Unread("no list of loads")
    return Loads(version=_text(row, "version"), loads=tuple(_load(_object(load)) for load in listed))


def _load(row: Mapping[str, object]) -> Load:
    memory = _object(row.get("memory"))
    queues = _object(row.get("queues"))
    pd = _object(row.get("disaggregation"))
    return Load(
        rank=_count(row, "dp_rank"),
        time=_number(row, "timestamp"),
        running=_count(row, "num_running_reqs"),
        waiting=_count(row, "num_waiting_reqs"),
        waiting_grammar=_count(queues, "grammar"),
        retracted=_count(queues, "retracted"),
        used_tokens=_count(row, "num_used_tokens"),
        pool_tokens=_count(row, "max_total_num_tokens"),
        max_running=_count(row, "max_running_requests"),
        usage=_number(row, "token_usage"),
        gen_rate=_number(row, "gen_throughput"),
        weights=_size(memory, "weight_gb"),
        kv_bytes=_size(memory, "kv_cache_gb"),
        graphs=_size(memory, "graph_gb"),
        pd_mode=_text(pd, "mode"),
        pd_prefill_queue=_count(pd, "prefill_bootstrap_queue_reqs", "prefill_prealloc_queue_reqs"),
        pd_inflight_queue=_count(pd, "prefill_inflight_queue_reqs"),
        pd_prealloc_queue=_count(pd, "decode_prealloc_queue_reqs"),
        pd_transfer_queue=_count(pd, "decode_transfer_queue_reqs"),
        pd_retracted_queue=_count(pd, "decode_retracted_queue_reqs"),
    )


def client_errors(text: str) -> tuple[ClientError, ...] | Unread:
    """Error bodies in a client's log, one JSON object per line (anything may stand before it)."""
    found: list[ClientError] = []
    for number, line in enumerate(text.splitlines(), 1):
        start = line.find('{"error"')
        if start < 0:
            continue
        value = _decode(line[start:].strip())
        error = _object(_object(value).get("error"))
        if error:
            found.append(
                ClientError(
                    line=number,
                    code=_count(error, "code"),
                    type=_text(error, "type"),
                    message=_text(error, "message"),
                    n_prompt_tokens=_count(error, "n_prompt_tokens"),
                    n_ctx=_count(error, "n_ctx"),
                )
            )
    return tuple(found) if found else Unread("no error body in JSON")


def version(text: str) -> str | Unread:
    """``{"version": "0.32.0"}``, as vLLM's /version answers."""
    whole = _decode(text)
    if isinstance(whole, Unread):
        return whole
    found = _object(whole).get("version")
    return found if isinstance(found, str) else Unread("it names no version")


def models(text: str) -> tuple[tuple[str, float | None], ...] | Unread:
    """(id, longest sequence in tokens or None) of each model, as the OpenAI-style /v1/models answers."""
    whole = _decode(text)
    if isinstance(whole, Unread):
        return whole
    rows = _object(whole).get("data")
    if not isinstance(rows, list):
        return Unread("it lists no models")
    found = tuple((name, _number(row, "max_model_len")) for row in map(_object, rows) if (name := _text(row, "id")))
    return found or Unread("it lists no models")
