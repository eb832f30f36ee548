"""NVIDIA Dynamo: the frontend and router in front of engines, and what it says of the workers behind it.

A worker's own page also carries the series of its engine (``vllm:``, ``sglang:``, ``trtllm_``), which are read by that
engine's table.
"""

from __future__ import annotations

from kvdoctor.engines.base import Command, Endpoint, Engine, Gap, Series, SeriesName

_SERIES: tuple[Series, ...] = (
    Series("req.running", (SeriesName("dynamo_frontend_inflight_requests", "gauge"),)),
    Series(
        "req.waiting",
        (
            SeriesName("dynamo_frontend_queued_requests", "gauge"),
            SeriesName("dynamo_work_handler_queue_depth", "gauge"),
        ),
        "before the first token, in the frontend or in front of a worker",
    ),
    Series("req.finished", (SeriesName("dynamo_frontend_requests_total", "counter"),)),
    Series("req.rejected", (SeriesName("dynamo_frontend_model_rejection_total", "counter"),)),
    Series("req.limit_running", (SeriesName("dynamo_frontend_model_max_num_seqs", "gauge"),), "per worker"),
    Series(
        "kv.usage",
        (SeriesName("dynamo_component_gpu_cache_usage_percent", "gauge"),),
        "a ratio 0..1 despite its name",
    ),
    Series(
        "kv.pool_blocks",
        (
            SeriesName("dynamo_component_total_blocks", "gauge"),
            SeriesName("dynamo_frontend_model_total_kv_blocks", "gauge"),
        ),
    ),
    Series(
        "kv.used_blocks",
        (SeriesName("dynamo_frontend_worker_active_decode_blocks", "gauge"),),
        "as the router believes",
    ),
    Series("kv.block_tokens", (SeriesName("dynamo_frontend_model_kv_cache_block_size", "gauge"),)),
    Series("prefix.hit_rate", (SeriesName("dynamo_component_kv_cache_hit_rate", "gauge"),)),
    Series("latency.ttft", (SeriesName("dynamo_frontend_time_to_first_token_seconds", "histogram"),)),
    Series("latency.itl", (SeriesName("dynamo_frontend_inter_token_latency_seconds", "histogram"),)),
    Series("latency.e2e", (SeriesName("dynamo_frontend_request_duration_seconds", "histogram"),)),
)

_GAPS: tuple[Gap, ...] = (
    Gap(
        "preempt",
        "the frontend does not see preemptions",
        "scrape the workers (DYN_SYSTEM_PORT), which pass their engine on",
    ),
    Gap("kv", "the frontend only knows what workers report", "scrape the workers (DYN_SYSTEM_PORT)"),
)

_COMMANDS: tuple[Command, ...] = (
    Command("metrics.queue", "curl -s {url}/metrics | grep -E '^dynamo_frontend_(queued|inflight)_requests'"),
    Command("metrics.kv", "curl -s {url}/metrics | grep -E '^dynamo_component_(gpu_cache_usage_percent|total_blocks)'"),
)

ENGINE = Engine(
    name="dynamo",
    title="NVIDIA Dynamo",
    metric_prefixes=("dynamo_frontend_", "dynamo_component_", "dynamo_work_handler_"),
    log_markers=(),
    process_markers=("dynamo.frontend", "dynamo-run", "dynamo.vllm", "dynamo.sglang", "dynamo.trtllm"),
    default_port=8000,
    endpoints=(Endpoint("/metrics", "exposition"),),
    series=_SERIES,
    templates=(),
    levers=(),
    gaps=_GAPS,
    commands=_COMMANDS,
    rank_labels=("worker_id", "dp_rank", "model"),
    side=True,
)
