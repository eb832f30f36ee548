"""The plan and the result of a probe as text for a person."""

from __future__ import annotations

from typing import Any

from kvdoctor.probe.driver import MIB


def _size(value: int | None) -> str:
    if value is None:
        return "unknown"
    return f"{value / (1024 * MIB):.2f} GiB" if value >= 1024 * MIB else f"{value / MIB:.0f} MiB"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def render_plan(result: dict[str, Any]) -> str:
    """Device and steps, one a line."""
    lines = ["Plan"]
    device = result["device"]
    if device is not None:
        lines.append(
            f"  device  {device['name']} {device['uuid']}: {_size(device['total_bytes'])}, "
            f"{_size(device['free_bytes'])} free"
        )
        if device["processes"] is None:
            lines.append("  others  not readable: only free memory can be watched")
        for other in device["processes"] if device["processes"] is not None else ():
            lines.append(f"  others  process {other['pid']} holds {_size(other['bytes'])}")
    for step in result["plan"]:
        most = f" (at most {_size(step['bytes'])})" if step["bytes"] is not None else ""
        lines.append(f"  {step['step']:<8}{step['text']}{most}")
    return "\n".join(lines)


def render_result(result: dict[str, Any]) -> str:
    """What was measured, then what it does not mean; empty when nothing was."""
    lines: list[str] = []
    level = result["device_level"]
    if level is not None:
        lines.append("Device level")
        if "largest_single_bytes" in level:
            more = ", all the reserve leaves" if level["largest_is_limit"] else ""
            lines.append(
                f"  largest single allocation {_size(level['largest_single_bytes'])} of {_size(level['limit_bytes'])}{more}; "
                f"gap {_share(level['gap'])}"
            )
        for fit in level.get("fit", ()):
            cut = f", counted up to {fit['counted_up_to']}" if fit["counted_up_to"] < fit["expected"] else ""
            lines.append(f"  {_size(fit['block_bytes'])} blocks: {fit['count']} of {fit['expected']} fit{cut}")
        for timing in level.get("malloc", ()):
            lines.append(
                f"  allocating {_size(timing['bytes'])}: median {timing['median_s'] * 1e6:.0f} us, "
                f"worst {timing['max_s'] * 1e6:.0f} us"
            )
        lines += [f"  {sentence}" for sentence in level["say"]]
    level = result["allocator_level"]
    if level is not None:
        lines.append("Allocator level")
        if "lengths" in level:
            lines.append(f"  request lengths: {level['lengths']}; budget {_size(level['budget_bytes'])}")
        for run in level.get("runs", ()):
            lines.append(
                f"  {run['pattern']}, {run['settings'] if run['settings'] else 'defaults'}: {run['refused']} of "
                f"{run['requests']} requests refused, {run['false_refused']} of them with enough memory free; peak reserved "
                f"{_size(run['reserved_peak_bytes'])}, allocated {_size(run['allocated_peak_bytes'])}, inactive split "
                f"{_size(run['inactive_split_peak_bytes'])}; smallest largest fit {_size(run['largest_fit_min_bytes'])}, "
                f"external up to {_share(run['external_max'])}"
            )
        lines += [f"  {sentence}" for sentence in level["say"]]
    return "\n".join(lines)
