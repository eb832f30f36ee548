"""Levers that do not depend on the engine: what is done to the host or asked of the clients."""

from __future__ import annotations

from kvdoctor.engines.base import Lever

FLEET_LEVERS: tuple[Lever, ...] = (
    # of one kind of engine alone, which has its own entry before this
    Lever("host.loaded_models", None, instead="a server holds one model: start one for each"),
    Lever(
        "host.scaler_metric",
        "the metric in the HPA or KEDA object",
        effect="Replicas follow what waits instead of how long some kernel ran.",
        cost="The engine's metrics must reach the autoscaler (an adapter or a Prometheus trigger).",
        next_limit="time until a new replica serves",
        verify="kubectl get hpa names the metric of the queue",
    ),
    Lever(
        "topo.pd_split",
        "replicas of the prefill and of the decode deployment",
        effect="The side that is full gets the work of more cards; the sum stays as it is.",
        cost="The other side has less to spare when prompts or answers get longer.",
        next_limit="the queue of the other side",
        verify="both queues stay short at the busiest hour",
    ),
)
"""What is turned outside of the server: its deployment and its autoscaler."""

HOST_LEVERS: tuple[Lever, ...] = (
    *FLEET_LEVERS,
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
        values={"on": "a device of its own for each engine"},
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
