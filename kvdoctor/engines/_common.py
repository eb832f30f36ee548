"""Levers that do not belong to an engine: those of the host and of the clients."""

from __future__ import annotations

from kvdoctor.engines.base import Lever

HOST_LEVERS: tuple[Lever, ...] = (
    Lever(
        "client.prefix_order",
        None,
        instead="in the client: put what never changes (system prompt, tools, documents) first and what changes last",
        effect="Requests of one session share the longest possible prefix, so less is prefilled.",
        cost="Prompts have to be assembled in another order; nothing on the server changes.",
        next_limit="the pool, once prefixes of more sessions want to stay",
        verify="the share of prompt tokens taken from the cache rises at the same load",
    ),
    Lever(
        "host.kill_orphan",
        None,
        instead="end the left-over worker: kill PID, then kill -9 PID when it is still there after ten seconds",
        effect="The memory the dead server still held becomes free.",
        cost="None when the process really has no parent; check with ps -o pid,ppid,lstart,args -p PID first.",
        next_limit="the memory fraction the new server asks for",
        verify="nvidia-smi shows the used memory gone before the server is started again",
    ),
    Lever(
        "host.separate_tenants",
        None,
        instead="give each engine its own device (CUDA_VISIBLE_DEVICES, MIG) or start them one after another",
        effect="The engine measures free memory that stays free.",
        cost="A device is no longer shared, so more devices or a smaller share for each.",
        next_limit="the pool of the engine that keeps the device",
        verify="nvidia-smi --query-compute-apps=pid,used_memory lists one engine per device",
    ),
    Lever(
        "host.power_cap",
        None,
        instead="raise the power limit (nvidia-smi -pl WATTS) or repair cooling; the engine cannot help",
        effect="Clocks return to their normal value.",
        cost="More power and heat.",
        next_limit="memory bandwidth",
        verify="nvidia-smi -q -d PERFORMANCE shows no active slowdown reason under load",
    ),
    Lever(
        "host.memory",
        None,
        instead="raise the memory limit of the container or machine, or lower what the engine keeps in host memory",
        effect="The kernel no longer ends the server.",
        cost="Host memory.",
        next_limit="host tiers of the cache grow into the new room when they have no limit of their own",
        verify="memory.events of the control group shows no further oom_kill",
    ),
)
"""Levers that do not belong to an engine; every table adds them."""
