"""vLLM's metric names, by role: 0.2.6 to 0.33, V0 and V1, and the names Ray gives them."""

from __future__ import annotations

from collections.abc import Mapping

from kvdoctor.engines.base import Kind, Series, SeriesName

_NOTHING: Mapping[str, str] = {}


def _name(
    bare: str,
    kind: Kind,
    since: str | None = None,
    until: str | None = None,
    *,
    where: Mapping[str, str] = _NOTHING,
    by: str = "",
    ignore: str = "",
) -> tuple[SeriesName, ...]:
    """``num_requests_running`` under every prefix it is exported with.

    Ray replaces the colon (older wrappers kept it), puts ``ray_`` in front and may drop a counter's ``_total``.
    """
    wire = [f"vllm:{bare}", f"ray_vllm_{bare}", f"ray_vllm:{bare}", f"vllm_{bare}"]
    if kind == "counter" and bare.endswith("_total"):
        wire.append(f"ray_vllm_{bare.removesuffix('_total')}")
    return tuple(SeriesName(name, kind, 1.0, since, until, where, by, ignore) for name in wire)


def _own(name: str, kind: Kind) -> tuple[SeriesName, ...]:
    """A series of kvdoctor's observer, which registers in the engine's own process."""
    return (SeriesName(f"kvdoctor:{name}", kind),)


SERIES: tuple[Series, ...] = (
    Series("req.running", _name("num_requests_running", "gauge", "0.2.6")),
    Series(
        "req.waiting",
        _name("num_requests_waiting", "gauge", "0.2.6"),
        "V1 puts preempted requests back into it; from 0.20 it is capacity + deferred",
    ),
    Series(
        "req.waiting_reason",
        _name("num_requests_waiting_by_reason", "gauge", "0.20", by="reason"),
        "only reason capacity is evidence of a shortage; deferred waits for a LoRA slot, a KV transfer or a block",
    ),
    Series(
        "req.swapped",
        _name("num_requests_swapped", "gauge", "0.2.6", "0.9.0"),
        "V0 only; its absence on V1 says nothing, V1 has no swapped state",
    ),
    Series(
        "req.finished",
        _name("request_success_total", "counter", "0.4.2", by="finished_reason"),
        "aborts are in it (finished_reason=abort); error from 0.13, repetition from 0.17; length covers max_tokens and "
        "max_model_len, and on V0 prompts that can never fit; preemption never ends a request",
    ),
    Series("req.aborted", _name("request_success_total", "counter", "0.4.2", where={"finished_reason": "abort"})),
    Series("req.failed", _name("request_success_total", "counter", "0.13", where={"finished_reason": "error"})),
    Series(
        "req.rejected",
        _name("admission_rejections_total", "counter", "0.32"),
        "HTTP 503 by --max-num-queued-reqs or --max-num-queued-tokens; it has no engine label",
    ),
    Series(
        "kv.usage",
        (
            *_name("kv_cache_usage_perc", "gauge", "0.9.2"),
            *_name("gpu_cache_usage_perc", "gauge", "0.2.6", "0.11"),
        ),
        "named perc but a ratio 0..1; an instant value after a step, so a preemption lowers it; cached blocks nobody uses "
        "count as free; up to 0.10.1 the unusable null block counts as used (idle reads 1/num_gpu_blocks)",
    ),
    Series("kv.cpu_usage", _name("cpu_cache_usage_perc", "gauge", "0.2.6", "0.9.0"), "V0 swap space"),
    Series(
        "kv.info",
        (*_name("cache_config_info", "info", "0.3.3"),),
        "every CacheConfig field as a label, all strings, another set in nearly every release; V1 0.8 exports "
        'num_gpu_blocks="None"; kv_cache_size_tokens (0.24) is right for hybrid models, blocks x block size is not; '
        "kv_cache_memory_bytes is what was available, also when num_gpu_blocks_override made the pool smaller",
    ),
    Series(
        "kv.block_idle", _name("kv_block_idle_before_evict_seconds", "histogram", "0.12"), "--kv-cache-metrics only"
    ),
    Series("kv.reuse_gap", _name("kv_block_reuse_gap_seconds", "histogram", "0.12"), "--kv-cache-metrics only"),
    Series(
        "preempt.total",
        _name("num_preemptions_total", "counter", "0.4.3"),
        "V1 0.7 does not export it; a request preempted n times counts n; priority preemptions and, from 0.12, those "
        "forced by reset_prefix_cache are in it",
    ),
    Series(
        "preempt.per_request",
        _name("request_num_preemptions", "histogram", "0.30"),
        "per finished request; the first bucket, le=1, holds those never preempted and those preempted once",
    ),
    Series(
        "tok.prompt",
        _name("prompt_tokens_total", "counter", "0.3.1"),
        "V1: the whole prompt once, at its first token, cached tokens included, recompute never; V0: every scheduled "
        "prefill chunk, recompute included - the same name with another meaning",
    ),
    Series(
        "tok.generated",
        _name("generation_tokens_total", "counter", "0.3.1"),
        "delivered tokens; those replayed after a preemption are not added again",
    ),
    Series(
        "tok.prompt_rate", _name("avg_prompt_throughput_toks_per_s", "gauge", "0.2.6", "0.6"), "V0, deprecated early"
    ),
    Series(
        "tok.gen_rate", _name("avg_generation_throughput_toks_per_s", "gauge", "0.2.6", "0.6"), "V0, deprecated early"
    ),
    Series(
        "tok.prefill_effective",
        _name("prompt_tokens_by_source_total", "counter", "0.16", where={"source": "local_compute"}),
        "prompt tokens computed for the first time; recompute is left out on purpose",
    ),
    Series("tok.cached", _name("prompt_tokens_cached_total", "counter", "0.16")),
    Series(
        "tok.flops",
        _name("estimated_flops_per_gpu_total", "counter", "0.17"),
        "--enable-mfu-metrics only (else 0); estimated from scheduled work, so recompute is in it",
    ),
    Series(
        "prefix.queries",
        (
            *_name("prefix_cache_queries_total", "counter", "0.9.2"),
            *_name("gpu_prefix_cache_queries_total", "counter", "0.7.3", "0.11"),
        ),
        "tokens; up to 0.11.0 resumed requests look up and hit their own blocks, so preemption raises the hit rate; up to "
        "0.26 a request stuck at the head of the queue is counted at every attempt",
    ),
    Series(
        "prefix.hits",
        (
            *_name("prefix_cache_hits_total", "counter", "0.9.2"),
            *_name("gpu_prefix_cache_hits_total", "counter", "0.7.3", "0.11"),
        ),
        "tokens; same biases as the queries",
    ),
    Series(
        "prefix.hit_rate",
        _name("gpu_prefix_cache_hit_rate", "gauge", "0.5.5", "0.9.0"),
        "V0, in blocks; -1 means prefix caching is off",
    ),
    Series("prefix.external_queries", _name("external_prefix_cache_queries_total", "counter", "0.11.1")),
    Series("prefix.external_hits", _name("external_prefix_cache_hits_total", "counter", "0.11.1")),
    Series(
        "latency.ttft",
        _name("time_to_first_token_seconds", "histogram", "0.3.1"),
        "up to 0.8.3 the last finite edge is 10 s",
    ),
    Series(
        "latency.itl",
        (
            *_name("inter_token_latency_seconds", "histogram", "0.10.2"),
            *_name("time_per_output_token_seconds", "histogram", "0.3.1", "0.14"),
            *_name(
                "request_time_per_output_token_seconds",
                "histogram",
                "0.11",
                ignore="the mean of each finished request: a stall of one token disappears in it",
            ),
        ),
        "one sample per delivery: a preemption is one long sample; with speculative decoding one sample is several tokens",
    ),
    Series("latency.e2e", _name("e2e_request_latency_seconds", "histogram", "0.3.1")),
    Series(
        "latency.queue",
        (
            *_name("request_queue_time_seconds", "histogram", "0.6.4"),
            *_name("time_in_queue_requests", "histogram", "0.6.4", "0.9.0"),
        ),
        "until the first scheduling only; waiting again after a preemption is in the decode time; lowest edge 0.3 s",
    ),
    Series("latency.prefill", _name("request_prefill_time_seconds", "histogram", "0.6.4")),
    Series(
        "latency.decode",
        _name("request_decode_time_seconds", "histogram", "0.6.4"),
        "first to last token, preemption stalls included",
    ),
    Series("work.prompt", _name("request_prompt_tokens", "histogram", "0.4.2"), "finished requests"),
    Series("work.output", _name("request_generation_tokens", "histogram", "0.4.2"), "finished requests"),
    Series(
        "work.max_tokens",
        _name("request_params_max_tokens", "histogram", "0.6.4"),
        "requests without max_tokens are skipped",
    ),
    Series(
        "iter.tokens",
        _name("iteration_tokens_total", "histogram", "0.6.4"),
        "a histogram in spite of its name; V1 builds it from what the front end saw: recompute is missing",
    ),
    Series(
        "offload.usage",
        _name(
            "kv_offload_cpu_cache_usage_perc",
            "gauge",
            "0.24",
            ignore="the share pinned by transfers in flight; blocks that merely lie there count as free",
        ),
    ),
    Series(
        "offload.failures",
        (
            *_name("kv_offload_allocation_failure_total", "counter", "0.26"),
            *_name("simple_kv_offload_save_outcomes_total", "counter", "0.31", where={"outcome": "dropped_cpu_full"}),
        ),
    ),
    Series(
        "offload.hits",
        _name("prompt_tokens_by_source_total", "counter", "0.16", where={"source": "external_kv_transfer"}),
        "first prefills only",
    ),
    Series(
        "pd.transfer_queue",
        _name("num_requests_kv_fetch_by_stage", "gauge", "0.32"),
        "KV consumer side; sum of waiting_to_start, in_progress and completed_waiting",
    ),
    Series(
        "pd.expired",
        (
            *_name("nixl_num_kv_expired_reqs_total", "counter", "0.16"),
            *_name("mooncake_num_kv_expired_reqs_total", "counter", "0.33"),
        ),
    ),
    Series(
        "pd.failed",
        (
            *_name("nixl_num_failed_transfers_total", "counter", "0.11.1"),
            *_name("mooncake_num_failed_recvs_total", "counter", "0.33"),
        ),
    ),
    Series(
        "spec.drafts",
        (
            *_name("spec_decode_num_drafts_total", "counter", "0.8.5"),
            *_name("spec_decode_num_draft_tokens_total", "counter", "0.5.3"),
        ),
        "registered only with speculative decoding",
    ),
    Series(
        "observer.recomputed",
        (
            *_own("recomputed_tokens_total", "counter"),
            *_name(
                "prompt_tokens_recomputed_total",
                "counter",
                "0.16",
                "0.19",
                ignore="one token per request whose whole prompt was cached; it has nothing to do with preemption",
            ),
        ),
    ),
    Series("observer.resumed", _own("resumed_requests_total", "counter")),
    Series("observer.resume_queries", _own("resume_queries_total", "counter")),
    Series("observer.preemptions", _own("request_preemptions", "histogram")),
    # below: only a scheduler inside the engine can see these; the stat logger kvdoctor ships does not export them
    Series("observer.victims", _own("victims_total", "counter")),
    Series("observer.victims_near_done", _own("victims_near_completion_total", "counter")),
    Series("observer.victim_remaining", _own("victim_remaining_tokens", "histogram")),
    Series("observer.repeats", _own("repeat_preemptions_total", "counter")),
)
