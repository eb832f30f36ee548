"""Levers that do not depend on the engine: what is done to the host or asked of the clients."""

from __future__ import annotations

from kvdoctor.engines.base import Lever

HOST_LEVERS: tuple[Lever, ...] = (
    # the two of one kind of engine alone, which has its own entries before these
    Lever("mem.device_layers", None, instead="every layer is computed on a device already"),
    Lever("prefix.states", None, instead="what is kept of window and recurrent layers cannot be set"),
    Lever(
        "client.prefix_order",
        "prompt (request)",
        effect="Common parts of prompts come first and stay unchanged, so that whole blocks match.",
        cost="A change in the clients.",
        next_limit="pool size",
        verify="the prefix hit rate rises",
    ),
    Lever(
        "host.kill_orphan",
        "kill PID",
        effect="Ends a worker whose server is gone and gives its memory back.",
        cost="None, once the process is known to be an orphan.",
        next_limit="memory of the processes that stay",
        verify="nvidia-smi --query-compute-apps=pid,used_gpu_memory --format=csv no longer lists it",
    ),
    Lever(
        "host.separate_tenants",
        "CUDA_VISIBLE_DEVICES",
        effect="Each engine sizes its pool from the memory it finds, so an own device gives it all of it.",
        cost="A device per engine, or a start of one after the other.",
        next_limit="number of devices",
        verify="the pool size in the start lines is the same at every start",
    ),
    Lever(
        "host.power_cap",
        "nvidia-smi -pl WATTS",
        effect="Restores clocks that a power limit held down.",
        cost="Heat and power.",
        next_limit="cooling",
        verify="nvidia-smi -q -d PERFORMANCE shows no active slowdown reason",
    ),
    Lever(
        "host.memory",
        "resources.limits.memory",
        effect="Gives the container the host memory that loading, pinned buffers and host caches need.",
        cost="Host memory.",
        next_limit="memory of the machine",
        verify="resident memory stays below the limit and no exit code 137 follows",
    ),
)
