"""LMCache (0.3.5 to 0.5.6): a second tier for KV blocks that runs inside vLLM's or SGLang's process."""

from __future__ import annotations

from kvdoctor.engines.base import Command, Engine, Gap, Lever, Series, SeriesName
from kvdoctor.parse.serverlog import LogTemplate

SERIES: tuple[Series, ...] = (
    Series(
        "prefix.external_queries",
        (
            SeriesName("lmcache:num_lookup_tokens_total", "counter"),
            SeriesName("lmcache:num_requested_tokens_total", "counter"),
        ),
        "tokens; a preempted request looks up again when it resumes",
    ),
    Series(
        "prefix.external_hits",
        (
            SeriesName("lmcache:num_lookup_hits_total", "counter"),
            SeriesName("lmcache:num_hit_tokens_total", "counter"),
            SeriesName(
                "lmcache:num_vllm_hit_tokens_total",
                "counter",
                ignore="hits of vLLM's own prefix cache, not of this tier",
            ),
        ),
        "tokens; a hit that the device cache holds too is counted but not loaded",
    ),
    Series("offload.hits", (SeriesName("lmcache:num_hit_tokens_total", "counter"),)),
    Series(
        "offload.failures",
        (
            SeriesName("lmcache:put_failed_count", "gauge"),
            SeriesName("lmcache:local_cpu_evict_failed_count_total", "counter"),
        ),
        "put_failed_count is exported as a gauge but only grows",
    ),
)

TEMPLATES: tuple[LogTemplate, ...] = (
    LogTemplate(
        "lmcache_lookup",
        "offload_lookup",
        "LMCache hit tokens",
        r"Reqid: (?P<id>\S{1,200}), Total tokens (?P<total>\d{1,12})"
        r"(?:, Inference Engine computed tokens: (?P<computed>\d{1,12}))?, LMCache hit tokens: (?P<hit>\d{1,12})"
        r"(?:, (?:but )?need to load: (?P<need_load>-?\d{1,12}))?",
        note="printed again when a preempted request resumes; a lookup still pending prints None and is skipped",
    ),
    LogTemplate(
        "lmcache_no_memory",
        "offload_fail",
        "because no memory is available",
        r"Failed to allocate memory for tensor\([^\n]{0,200}because no memory is available",
        note="the host pool is full; one line per rank",
    ),
    LogTemplate(
        "lmcache_pressure",
        "offload_fail",
        "No eviction candidates",
        r"No eviction candidates found in local cpu backend",
    ),
    LogTemplate(
        "lmcache_partial",
        "offload_fail",
        "memory under pressure",
        r"Local cpu memory under pressure so choosing to store only",
    ),
    LogTemplate(
        "lmcache_unhealthy",
        "offload_fail",
        "LMCache is unhealthy",
        r"LMCache is unhealthy, skipping store",
    ),
)

ENGINE = Engine(
    name="lmcache",
    title="LMCache",
    metric_prefixes=("lmcache:",),
    log_markers=("LMCache INFO", "LMCache WARNING", "LMCache ERROR", "LMCache hit tokens"),
    process_markers=("lmcache_server", "lmcache.v1"),
    default_port=8000,
    endpoints=(),
    series=SERIES,
    templates=TEMPLATES,
    levers=(
        Lever(
            "kv.offload_bytes",
            "LMCACHE_MAX_LOCAL_CPU_SIZE=GB",
            default="5.0 (GB per rank)",
            setting="max_local_cpu_size",
            effect="max_local_cpu_size: host memory for KV chunks, on every rank.",
            cost="Host memory, once per rank.",
            next_limit="host memory, then PCIe bandwidth",
            verify="no 'no memory is available' lines",
        ),
    ),
    gaps=(
        Gap(
            "offload.usage",
            "lmcache:local_cache_usage is in bytes and the limit is not exported",
            "compare lmcache:local_cache_usage with max_local_cpu_size",
        ),
    ),
    commands=(
        Command(
            "metrics.offload", "curl -s {url}/metrics | grep -E '^lmcache:(local_cache_usage|num_lookup|put_failed)'"
        ),
        Command("log.offload", "grep -cE 'no memory is available|No eviction candidates' {log}"),
    ),
    rank_labels=("worker_id",),
    side=True,
)
