"""Messages of the ground all servers stand on: argument parser, socket, model hub, driver, Ray. Every log is read with them."""

from __future__ import annotations

import re

from kvdoctor.parse.serverlog import LogTemplate


def _refused(id_: str, literal: str, pattern: str, error: str = "config_refused") -> LogTemplate:
    return LogTemplate(f"start.{id_}", "start_error", literal, pattern, fields={"error": error})


TEMPLATES: tuple[LogTemplate, ...] = (
    _refused(
        "unknown_argument", "error: unrecognized arguments", r"(?P<text>error: unrecognized arguments: [^\n]{1,200})"
    ),
    _refused("bad_argument", "error: argument ", r"(?P<text>error: argument [^\n]{1,200})"),
    _refused("port", "ddress already in use", r"(?P<text>[Aa]ddress already in use)", "port_in_use"),
    _refused("dtype", "is only supported on GPUs", r"(?P<text>\w{1,20} is only supported on GPUs with compute cap)"),
    _refused("validation", "validation error", r"(?P<text>\d{1,4} validation errors? for \w{0,60}(?:Config|Args))\b"),
    _refused(
        "architecture",
        "Model architectures [",
        r"(?P<text>Model architectures \[[^\]\n]{1,200}\] (?:are not supported|failed to be inspected))",
    ),
    _refused(
        "architecture_unknown",
        "but Transformers does not recognize this architecture",
        r"(?P<text>model type `[^`\n]{1,80}` but Transformers does not recognize this architecture)",
    ),
    _refused("hub_gated", "gated repo", r"(?P<text>(?:trying to access a|Cannot access) gated repo)", "weights"),
    _refused(
        "hub_missing",
        "is not a local folder and is not a valid model identifier",
        r"(?P<text>is not a local folder and is not a valid model identifier)",
        "weights",
    ),
    _refused(
        "hub_unreachable", "We couldn't connect to ", r"(?P<text>We couldn't connect to '[^'\n]{1,200}')", "weights"
    ),
    *(
        _refused(f"weights_{name}", text, rf"(?P<text>{re.escape(text)})", "weights")
        for name, text in (
            # safetensors, PyTorch's zip, a pickle that is a Git LFS pointer or a page, the hub's own check
            ("header", "Error while deserializing header"),
            ("archive", "PytorchStreamReader failed"),
            ("pickle", "invalid load key, "),
            ("size", "Consistency check failed: file should be of size"),
        )
    ),
    *(
        _refused(f"shm_{name}", text, rf"(?P<text>{re.escape(text)})", "shared_memory")
        for name, text in (
            # NCCL, PyTorch, Triton's Python backend; a kernel's "out of resource: shared memory" is the GPU's
            ("segment", "Error while creating shared memory segment"),
            ("extend", "failed to extend /dev/shm/"),
            ("torch", "unable to allocate shared memory(shm) for file"),
            ("triton", "Unable to initialize shared memory key"),
        )
    ),
    _refused(
        "no_device",
        "No CUDA GPUs are available",
        r"(?P<text>No CUDA GPUs are available)",
    ),
    LogTemplate(
        "ray.node_memory",
        "oom_kill",
        "node running low on memory",
        r"killed due to the node running low on memory",
        note="Ray ends the worker itself, before the kernel does; this is the host's memory",
    ),
    _refused("no_platform", "Failed to infer device type", r"(?P<text>Failed to infer device type)"),
    _refused(
        "driver_old",
        "driver on your system is too old",
        r"(?P<text>The NVIDIA driver on your system is too old)",
    ),
    _refused(
        "no_kernel_image",
        "no kernel image is available",
        r"(?P<text>no kernel image is available for execution on the device)",
    ),
    _refused(
        "build_newer_than_driver",
        "was compiled with an unsupported toolchain",
        r"(?P<text>the provided PTX was compiled with an unsupported toolchain)",
    ),
    _refused(
        "driver_insufficient",
        "CUDA driver version is insufficient",
        r"(?P<text>CUDA driver version is insufficient for CUDA runtime version)",
    ),
)
