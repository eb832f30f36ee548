"""NVIDIA's DCGM exporter: device readings beside an engine's own, one set of labels per device."""

from __future__ import annotations

from kvdoctor.engines.base import Command, Endpoint, Engine, Gap, Series, SeriesName

_MIB = float(2**20)

_SERIES: tuple[Series, ...] = (
    Series(
        "gpu.mem_used",
        (
            SeriesName("DCGM_FI_DEV_FB_USED", "gauge", _MIB),
            SeriesName(
                "DCGM_FI_DEV_MEM_COPY_UTIL",
                "gauge",
                ignore="share of time the memory bus was busy, not the share of memory in use",
            ),
        ),
        "reserved memory is not in it where FB_RESERVED exists",
    ),
    Series("gpu.mem_free", (SeriesName("DCGM_FI_DEV_FB_FREE", "gauge", _MIB),)),
    Series(
        "gpu.mem_reserved",
        (SeriesName("DCGM_FI_DEV_FB_RESERVED", "gauge", _MIB),),
        "total = used + free + reserved; the default set has no total",
    ),
    Series(
        "gpu.util",
        (SeriesName("DCGM_FI_DEV_GPU_UTIL", "gauge", 0.01), SeriesName("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge")),
        "1 with a single request running: it tells that work exists, not how much",
    ),
    Series("gpu.sm_clock", (SeriesName("DCGM_FI_DEV_SM_CLOCK", "gauge"),)),
    Series("gpu.power", (SeriesName("DCGM_FI_DEV_POWER_USAGE", "gauge"),)),
    Series(
        "gpu.throttle",
        (
            SeriesName("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge"),
            SeriesName("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge"),
        ),
        "a bit mask; not in the default set of counters",
    ),
    Series("gpu.xid", (SeriesName("DCGM_FI_DEV_XID_ERRORS", "gauge"),), "the last one, 0 when there was none"),
)

_GAPS: tuple[Gap, ...] = (
    Gap(
        "gpu.throttle",
        "throttle reasons are not in the exporter's default set",
        "add DCGM_FI_DEV_CLOCK_THROTTLE_REASONS to its counters file",
    ),
    Gap("gpu.clock_share", "the highest clock is not exported", "nvidia-smi -q -d CLOCK"),
    Gap(
        "mem.foreign",
        "memory is not told by process",
        "nvidia-smi --query-compute-apps=pid,used_gpu_memory --format=csv",
    ),
)

_COMMANDS: tuple[Command, ...] = (
    Command("metrics.gpu", "curl -s {url}/metrics | grep -E '^DCGM_FI_DEV_(FB_|GPU_UTIL|XID)'"),
)

ENGINE = Engine(
    name="dcgm-exporter",
    title="DCGM exporter",
    metric_prefixes=("DCGM_FI_",),
    log_markers=(),
    process_markers=("dcgm-exporter",),
    default_port=9400,
    endpoints=(Endpoint("/metrics", "exposition"),),
    series=_SERIES,
    templates=(),
    levers=(),
    gaps=_GAPS,
    commands=_COMMANDS,
    # the host label was renamed from Hostname to hostname in 2026; a MIG instance has its own id beside its parent's UUID
    rank_labels=("UUID", "GPU_I_ID", "gpu", "hostname", "Hostname"),
    side=True,
)
