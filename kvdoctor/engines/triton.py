"""Triton Inference Server's own series (``nv_*``), which stand beside those of the backend it runs.

Every model of a pipeline (tokenizer, engine, detokenizer, the ensemble around them) counts each request once, so request
counters are kept apart by model and never added up.
"""

from __future__ import annotations

from kvdoctor.engines.base import Command, Endpoint, Engine, Gap, Series, SeriesName

_SERIES: tuple[Series, ...] = (
    Series("req.finished", (SeriesName("nv_inference_request_success", "counter", by="model"),)),
    Series("req.failed", (SeriesName("nv_inference_request_failure", "counter", by="model"),)),
    Series(
        "req.waiting",
        (SeriesName("nv_inference_pending_request_count", "gauge", by="model"),),
        "not yet taken by the backend; an in-flight batcher takes requests at once and queues them itself",
    ),
    Series(
        "latency.ttft",
        (SeriesName("nv_inference_first_response_histogram_ms", "histogram", 1e-3),),
        "first response, which is the first token only for a streaming model; off by default",
    ),
    Series("latency.e2e", (SeriesName("nv_inference_request_summary_us", "summary", 1e-6),), "off by default"),
    Series("latency.queue", (SeriesName("nv_inference_queue_summary_us", "summary", 1e-6),), "off by default"),
    Series("gpu.util", (SeriesName("nv_gpu_utilization", "gauge"),)),
    Series("gpu.mem_used", (SeriesName("nv_gpu_memory_used_bytes", "gauge"),)),
    Series("gpu.power", (SeriesName("nv_gpu_power_usage", "gauge"),)),
)

_GAPS: tuple[Gap, ...] = (
    Gap("kv", "Triton knows nothing of the KV cache", "read the backend's series (nv_trt_llm_*, vllm:*)"),
    Gap("preempt", "Triton knows nothing of preemption", "read the backend's series or its iteration statistics"),
    Gap("latency", "latency series are off by default", "start with --metrics-config histogram_latencies=true"),
)

_COMMANDS: tuple[Command, ...] = (
    Command("metrics.queue", "curl -s {url}/metrics | grep -E '^nv_inference_(pending_request_count|request_failure)'"),
)

ENGINE = Engine(
    name="triton",
    title="Triton Inference Server",
    metric_prefixes=("nv_inference_", "nv_gpu_", "nv_energy_", "nv_cpu_", "nv_cache_", "nv_model_", "nv_pinned_"),
    log_markers=(),
    process_markers=("tritonserver",),
    default_port=8002,
    endpoints=(Endpoint("/metrics", "exposition"),),
    series=_SERIES,
    templates=(),
    levers=(),
    gaps=_GAPS,
    commands=_COMMANDS,
    rank_labels=("gpu_uuid", "model"),
    side=True,
)
