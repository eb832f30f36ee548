"""The watch as a text file for a node exporter (its textfile collector): verdict, vitals, recompute, memory.

What is not known has no series: a missing figure must not read as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvdoctor.facts import Known
from kvdoctor.snapshot import replacing
from kvdoctor.watch.watcher import Frame, known

_FACTS: tuple[tuple[str, str, str], ...] = (
    ("kv.usage_last", "kvdoctor_kv_usage_ratio", "Share of the KV pool in use, last sample."),
    ("kv.usage_max", "kvdoctor_kv_usage_peak_ratio", "Largest share of the KV pool in use within the window."),
    ("kv.headroom_requests", "kvdoctor_kv_headroom_requests", "Requests of average length that still fit into the KV pool."),
    ("req.running", "kvdoctor_requests_running", "Requests being computed."),
    ("req.waiting", "kvdoctor_requests_waiting", "Requests in the queue."),
    ("preempt.rate", "kvdoctor_preemptions_per_second", "Preemptions per second within the window."),
    ("preempt.per_finished", "kvdoctor_preemptions_per_finished_request", "Preemptions per finished request within the window."),
    ("recompute.rate", "kvdoctor_recomputed_tokens_per_second", "Tokens computed again, per second."),
    ("recompute.token_share", "kvdoctor_recomputed_token_ratio", "Share of computed tokens that were computed again."),
    ("tok.gen_rate", "kvdoctor_generated_tokens_per_second", "Tokens generated per second within the window."),
    ("work.sequence_mean", "kvdoctor_sequence_length_mean_tokens", "Average length of a sequence."),
    ("latency.ttft_p50", "kvdoctor_ttft_p50_seconds", "Median time to the first token within the window."),
    ("latency.ttft_p99", "kvdoctor_ttft_p99_seconds", "P99 time to the first token within the window."),
    ("latency.itl_p50", "kvdoctor_itl_p50_seconds", "Median time between tokens within the window."),
    ("latency.itl_p999", "kvdoctor_itl_p999_seconds", "P99.9 time between tokens within the window."),
    ("latency.stalls", "kvdoctor_token_stalls", "Gaps over one second between two tokens within the window."),
    ("gpu.util", "kvdoctor_gpu_utilisation_ratio", "Utilisation of the busiest device."),
)  # fmt: skip
"""Fact, metric name, help. A bound gives no value, so it is left out; lifetime values are no window's values and left out too."""

_SEVERITY_LEVEL: Mapping[str, int] = {"critical": 4, "high": 3, "medium": 2, "low": 1, "info": 0}


def render(frame: Frame) -> str:
    """The text of the file for one frame; empty before the first diagnosis."""
    report = frame.report
    if report is None or frame.judged is None:
        return ""
    out: list[str] = []

    def family(name: str, text: str, samples: list[tuple[dict[str, str], float]]) -> None:
        if samples:
            out.extend((f"# HELP {name} {text}", f"# TYPE {name} gauge"))
            out.extend(f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples)

    family("kvdoctor_last_sample_timestamp_seconds", "When the last sample was taken.", [({}, frame.time)])
    family("kvdoctor_last_diagnosis_timestamp_seconds", "When the window was judged last.", [({}, frame.judged)])
    family(
        "kvdoctor_verdict",
        "1 for the verdict of each target; its labels name rule and severity (healthy and undetermined are verdicts).",
        [
            ({"target": t.name, "rule": t.verdict.rule, "id": t.verdict.id, "severity": t.verdict.severity,
              "confidence": t.verdict.confidence}, 1.0)
            for t in report.targets
        ],
    )  # fmt: skip
    family(
        "kvdoctor_finding_severity_level",
        "Every finding that nothing else explains: 4 critical, 3 high, 2 medium, 1 low, 0 info.",
        [
            ({"target": t.name, "rule": v.rule, "id": v.id}, float(_SEVERITY_LEVEL[v.severity]))
            for t in report.targets for v in t.findings if v.muted_by is None
        ],
    )  # fmt: skip
    single = [t for t in report.targets if t.name != "group"]
    family(
        "kvdoctor_rules_undecided", "Rules that could not be decided for lack of a fact.",
        [({"target": t.name}, float(len(t.undecided))) for t in single],
    )  # fmt: skip
    lost = dict(frame.lost)
    servers = dict.fromkeys([*(row.server for row in frame.rows), *lost])
    family("kvdoctor_server_up", "1 when the server answered the last sample.", [
        ({"server": name}, 0.0 if name in lost else 1.0) for name in servers
    ])  # fmt: skip
    for fact_name, name, text in _FACTS:
        samples = []
        for target in single:
            fact = target.facts.get(fact_name)
            value = known(fact)
            if value is not None and not (isinstance(fact, Known) and fact.span == "L"):
                samples.append(({"target": target.name}, value))
        family(name, text, samples)
    devices = {d.device: d for t in single for d in t.memory}.values()
    family("kvdoctor_memory_total_bytes", "Memory of a device.", [({"device": d.device}, d.total) for d in devices])
    parts: dict[tuple[str, str], float] = {}
    for device in devices:
        for part in device.parts:
            parts[device.device, part.name] = parts.get((device.device, part.name), 0.0) + part.bytes
        parts[device.device, "unexplained"] = device.unexplained
    family("kvdoctor_memory_part_bytes", "Named shares of the memory of a device.", [
        ({"device": device, "part": part}, size) for (device, part), size in parts.items()
    ])  # fmt: skip
    return "\n".join([*out, ""])


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = (f'{k}="{v}"' for k, v in ((k, _escape(v)) for k, v in labels.items()))
    return "{" + ",".join(escaped) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 2**53 else repr(value)


def write(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step; raises OSError and leaves the old file when that fails."""
    with replacing(path) as target:
        target.write_text(text, encoding="utf-8")
        if target != path:
            # the exporter runs as another user
            target.chmod(0o644)
