"""How vLLM is turned: flags by version, what a version lacks and what to do instead, what it does not expose."""

from __future__ import annotations

from kvdoctor.engines.base import Command, Gap, Lever

_PREEMPTIONS = "the delta of vllm:num_preemptions_total over the same load"
_OBSERVER = (
    "`pip install --no-deps kvdoctor` in the server's own environment and restart it: the observer registers itself "
    "(vLLM >= 0.11.1) and counts recomputed tokens in /metrics"
)
_OBSERVER_PER_REQUEST = (
    "`pip install --no-deps kvdoctor` in the server's own environment and restart it: the observer counts the preemptions "
    "of each finished request, from 0 on"
)
_NO_VICTIM = "vLLM does not say whom it preempts, and a stat logger cannot see it either"
_NO_VICTIM_HINT = (
    "replay the load: `kvdoctor simulate` shows how near to their end the victims of this load are (estimated)"
)
_VICTIM_COST_HINT = f"{_OBSERVER}: what preemption costs; whom it hits, only a replay estimates (`kvdoctor simulate`)"
_UPGRADE_OBSERVER = "upgrade to vLLM 0.11.1 or later, then " + _OBSERVER
_ITERATIONS = "restart with --enable-logging-iteration-details (one log line per step)"


LEVERS: tuple[Lever, ...] = (
    Lever(
        "sched.max_running",
        "--max-num-seqs N",
        default="256; 1024 on devices of 70 GiB and more except A100 (V1, from 0.9); 1024 in 0.8.0-0.8.3; 256 on V0",
        setting="max_num_seqs",
        effect="Fewer requests hold blocks at a time, so the pool overflows less often.",
        cost="Time to first token grows for those who wait; throughput falls where the pool had room for more.",
        next_limit="the queue (TTFT)",
        verify=_PREEMPTIONS + " falls while generation tokens per second hold",
    ),
    Lever(
        "sched.batch_tokens",
        "--max-num-batched-tokens N",
        default="2048; 8192 on devices of 70 GiB and more except A100, 16384 from 160 GiB (0.28)",
        setting="max_num_batched_tokens",
        effect="The activation peak measured at start scales with it: lower frees memory for the pool, higher speeds prefill.",
        cost="Lower: long prompts take more steps. Higher: longer steps, so token gaps of the others grow.",
        next_limit="prefill throughput when lowered, inter-token latency when raised",
        verify="the activation figure of the next start and TTFT under load",
    ),
    Lever(
        "sched.max_queue",
        "--max-num-queued-reqs N",
        since="0.29",
        default="none",
        setting="max_num_queued_reqs",
        effect="Requests beyond it get HTTP 503 at once (--max-num-queued-tokens does the same for queued prompt tokens).",
        cost="Clients must handle 503 and retry elsewhere.",
        next_limit="rejections; counted in vllm:admission_rejections_total from 0.32",
        verify="queue time stays bounded while rejections are counted",
    ),
    Lever(
        "sched.max_queue",
        None,
        until="0.28",
        instead="This release queues without limit: cap requests in flight per replica in the gateway or router in front of "
        "it (--max-num-queued-reqs exists from 0.29).",
    ),
    Lever(
        "sched.policy",
        "--scheduling-policy priority",
        since="0.6.3",
        default="fcfs",
        setting="scheduling_policy",
        effect="priority orders queue and victims by the request's priority value (lower is more important).",
        cost="Low-priority requests may starve; V1 honours it from 0.9.2 only.",
        next_limit="latency of the low priorities",
        verify="TTFT of the important class",
    ),
    Lever(
        "sched.policy",
        None,
        until="0.6.2",
        instead="Only first come, first served exists before 0.6.3: separate the classes onto their own replicas.",
    ),
    Lever(
        "admission.free_share",
        "--watermark F",
        since="0.24",
        default="0.0",
        setting="watermark",
        effect="That share of the pool stays free when waiting or preempted requests are admitted: room for running ones to "
        "grow, so admit-evict-admit stops.",
        cost="Fewer requests run at once and TTFT rises; above about 0.10 throughput falls.",
        next_limit="the queue (TTFT)",
        verify=_PREEMPTIONS + " and requests hit twice both fall",
    ),
    Lever(
        "admission.free_share",
        None,
        since="0.7",
        until="0.23",
        instead="V1 has no admission watermark before 0.24 (V0 keeps a fixed 1 %): lower --max-num-seqs, or upgrade and set "
        "--watermark.",
    ),
    Lever(
        "admission.free_share",
        None,
        until="0.6",
        instead="V0 keeps a fixed 1 % free and has no flag for it: lower --max-num-seqs, or upgrade to 0.24 and set --watermark.",
    ),
    Lever(
        "admission.full_prompt",
        "--scheduler-reserve-full-isl",
        since="0.19",
        default="on",
        setting="scheduler_reserve_full_isl",
        effect="A request is admitted only when its whole prompt fits, not merely its first chunk.",
        cost="Long prompts wait longer for a slot.",
        next_limit="TTFT of long prompts",
        verify=_PREEMPTIONS,
    ),
    Lever(
        "admission.full_prompt",
        None,
        since="0.7",
        until="0.18",
        instead="V1 admits on the first chunk before 0.19: lower --max-num-seqs, or upgrade (whole-prompt admission is then "
        "the default).",
    ),
    Lever(
        "admission.full_prompt",
        None,
        until="0.6",
        default="always",
        instead="V0 already admits only prompts that fit whole; there is nothing to turn.",
    ),
    Lever(
        "admission.reserve_output",
        None,
        instead="vLLM never reserves room for output: keep room with --watermark (0.24 and later) or a lower --max-num-seqs, "
        "and let clients send an honest max_tokens.",
    ),
    Lever(
        "victim.order",
        "--scheduling-policy priority",
        since="0.6.3",
        default="fcfs: the request admitted last is the victim",
        setting="scheduling_policy",
        effect="The victim becomes the least important request instead of the newest (clients send `priority`; V1 honours "
        "it from 0.9.2).",
        cost="Low priorities are recomputed more often.",
        next_limit="latency of the low priorities",
        verify=_PREEMPTIONS,
    ),
    Lever(
        "victim.order",
        None,
        until="0.6.2",
        instead="The victim is always the request admitted last; make overflow rarer with a lower --max-num-seqs.",
    ),
    Lever(
        "victim.protect",
        None,
        since="0.24",
        instead="No release protects requests that are nearly done: make victims rarer with --watermark 0.02 to 0.10 "
        "(a scheduler of one's own by --scheduler-cls is a private interface).",
    ),
    Lever(
        "victim.protect",
        None,
        until="0.23",
        instead="No release protects requests that are nearly done: make victims rarer with a lower --max-num-seqs, or upgrade "
        "to 0.24 and set --watermark.",
    ),
    Lever(
        "victim.cooldown",
        None,
        since="0.24",
        instead="Set --watermark 0.02 to 0.10: it keeps a victim waiting until there is room. By itself vLLM pauses admission for one "
        "step after a preemption.",
    ),
    Lever(
        "victim.cooldown",
        None,
        until="0.23",
        instead="Lower --max-num-seqs, or upgrade to 0.24 and set --watermark. By itself vLLM pauses admission for one step after a "
        "preemption.",
    ),
    Lever(
        "kv.pool_share",
        "--gpu-memory-utilization F",
        since="0.20",
        default="0.92",
        setting="gpu_memory_utilization",
        effect="Share of the whole device for weights, activations, graphs and pool of this instance; the pool gets what is "
        "left.",
        cost="Raised: less head room for what is not profiled (LoRA, logprobs, NCCL); too high ends in an out-of-memory error. "
        "Lowered: a smaller pool.",
        next_limit="device memory",
        verify="the pool size printed at the next start",
    ),
    Lever(
        "kv.pool_share",
        "--gpu-memory-utilization F",
        until="0.19",
        default="0.9",
        setting="gpu_memory_utilization",
        effect="Share of the whole device for weights, activations and pool of this instance; graphs come on top.",
        cost="Raised: less head room for graphs and what is not profiled; too high ends in an out-of-memory error. Lowered: a "
        "smaller pool.",
        next_limit="device memory",
        verify="the pool size printed at the next start",
    ),
    Lever(
        "kv.pool_bytes",
        "--kv-cache-memory-bytes N",
        since="0.10.2",
        default="none",
        setting="kv_cache_memory_bytes",
        effect="A pool of exactly this size per device; --gpu-memory-utilization is ignored and profiling is skipped.",
        cost="Nothing checks that the rest still fits.",
        next_limit="device memory",
        verify="the pool size printed at the next start",
    ),
    Lever(
        "kv.pool_bytes",
        None,
        until="0.10.1",
        instead="Set --gpu-memory-utilization (--num-gpu-blocks-override forces the number of blocks but is meant for tests; a "
        "forgotten one makes the pool too small).",
    ),
    Lever(
        "kv.dtype",
        "--kv-cache-dtype fp8",
        since="0.3",
        default="auto (the model's)",
        setting="kv_cache_dtype",
        effect="Half the bytes per token of a 16-bit cache, so about twice the tokens in the same pool.",
        cost="Some quality; check on an own evaluation; not every attention back end supports it.",
        next_limit="compute",
        verify="tokens in the pool line of the next start",
    ),
    Lever(
        "kv.block_tokens",
        "--block-size N",
        default="16, or what the attention back end asks for",
        setting="block_size",
        effect="Smaller blocks waste less in each request's last block and share prefixes more finely.",
        cost="Longer block tables; not every back end takes every size and hybrid models choose their own.",
        next_limit="none; the waste is at most one block per request",
        verify="the start does not refuse it",
    ),
    Lever(
        "kv.offload_bytes",
        "--kv-offloading-size GIB",
        since="0.14",
        default="none; GiB of host memory, summed over the tensor-parallel ranks",
        setting="kv_offloading_size",
        effect="Evicted prefix blocks go to host memory and come back by copy instead of compute.",
        cost="Host memory and PCIe traffic; no gain where hits already come from the device.",
        next_limit="PCIe bandwidth, host memory",
        verify="vllm:external_prefix_cache_hits_total grows",
    ),
    Lever(
        "kv.offload_bytes",
        "--kv-offloading-size GIB --kv-offloading-backend native",
        since="0.11.1",
        until="0.13",
        default="none",
        setting="kv_offloading_size",
        effect="Evicted prefix blocks go to host memory and come back by copy instead of compute.",
        cost="Host memory and PCIe traffic; no gain where hits already come from the device.",
        next_limit="PCIe bandwidth, host memory",
        verify="vllm:external_prefix_cache_hits_total grows",
    ),
    Lever(
        "kv.offload_bytes",
        None,
        since="0.8",
        until="0.11.0",
        instead="V1 ignores --swap-space and has no tier of its own before 0.11.1: use LMCache through --kv-transfer-config, "
        "or upgrade.",
    ),
    Lever(
        "kv.offload_bytes",
        "--swap-space GIB",
        until="0.7",
        default="4 (GiB per device)",
        setting="swap_space",
        effect="V0 swaps groups of several sequences to host memory instead of recomputing them (--preemption-mode swap for "
        "all, from 0.5).",
        cost="Host memory and PCIe time for every swap.",
        next_limit="PCIe bandwidth",
        verify="vllm:cpu_cache_usage_perc and vllm:num_requests_swapped",
    ),
    Lever(
        "prefix.enable",
        "--enable-prefix-caching",
        since="0.4.1",
        default="on where the model supports it (V1), off on V0",
        setting="enable_prefix_caching",
        effect="Common prefixes are computed once, and a preempted request that resumes soon finds its own blocks again.",
        cost="None worth naming.",
        next_limit="pool space for what is worth keeping",
        verify="the hit share from counter deltas",
    ),
    Lever(
        "prefix.enable",
        None,
        until="0.4.0",
        instead="Prefix caching is not usable before 0.4.1: upgrade.",
    ),
    Lever(
        "mem.max_model_len",
        "--max-model-len N",
        default="the model's; -1 fits it to the memory (0.14 and later)",
        setting="max_model_len",
        effect="The pool must hold one request of this length; a shorter one starts where a longer is refused.",
        cost="Longer requests are refused.",
        next_limit="the longest conversation clients send",
        verify="the maximum concurrency line of the next start",
    ),
    Lever(
        "mem.graphs",
        """--compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}'""",
        since="0.20",
        default="sizes up to about 512",
        setting="cudagraph_capture_sizes",
        flags={"off": "--enforce-eager", "on": "remove --enforce-eager, if it is set"},
        effect="Fewer captured sizes hold less graph memory, which counts in the engine's share; --enforce-eager captures none. "
        "An estimate at start far above what graphs really take is left out with the environment variable "
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.",
        cost="Batches of other sizes run slower; eager mode costs decode speed at every size.",
        next_limit="decode latency",
        verify="the size in 'Graph capturing finished'",
    ),
    Lever(
        "mem.graphs",
        """--compilation-config '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}'""",
        since="0.8",
        until="0.19",
        default="sizes up to about 512",
        setting="cudagraph_capture_sizes",
        flags={"off": "--enforce-eager", "on": "remove --enforce-eager, if it is set"},
        effect="Fewer captured sizes hold less graph memory; --enforce-eager captures none.",
        cost="Batches of other sizes run slower; eager mode costs decode speed at every size.",
        next_limit="decode latency",
        verify="the size in 'Graph capturing finished'",
    ),
    Lever(
        "mem.graphs",
        "--enforce-eager",
        until="0.7",
        default="off",
        setting="enforce_eager",
        effect="No graphs are captured, their memory stays free.",
        cost="Decode steps get slower.",
        next_limit="decode latency",
        verify="no 'Capturing' line at the next start",
    ),
    Lever(
        "mem.prefill_chunk",
        "--max-num-batched-tokens N",
        since="0.8",
        default="2048, 8192 or 16384 by device",
        setting="max_num_batched_tokens",
        effect="No step computes more prompt tokens than this (chunked prefill is on); --long-prefill-token-threshold caps one "
        "request's share of a step.",
        cost="Long prompts need more steps.",
        next_limit="TTFT of long prompts",
        verify="the activation figure of the next start",
    ),
    Lever(
        "mem.prefill_chunk",
        "--enable-chunked-prefill --max-num-batched-tokens N",
        since="0.4.1",
        until="0.7",
        default="off; a whole prompt is one step",
        setting="max_num_batched_tokens",
        effect="Prompts are computed in pieces of at most this many tokens.",
        cost="Long prompts need more steps.",
        next_limit="TTFT of long prompts",
        verify="the activation figure of the next start",
    ),
    Lever(
        "mem.prefill_chunk",
        None,
        until="0.4.0",
        instead="Prompts are computed whole before 0.4.1: lower --max-model-len, or upgrade.",
    ),
    Lever(
        "mem.lora_slots",
        "--max-loras N --max-lora-rank R",
        since="0.3",
        default="1 adapter, rank 16",
        setting="max_loras",
        effect="Buffers are sized by both; a rank as small as the adapters really have frees memory.",
        cost="Adapters beyond the slots are swapped in on demand.",
        next_limit="adapter load time",
        verify="memory at the next start with an adapter request",
    ),
    Lever(
        "mem.multimodal_limit",
        """--limit-mm-per-prompt '{"image": {"count": 1, "width": 1024, "height": 1024}, "video": 0}'""",
        since="0.11.1",
        default="999 per kind, of the largest size the model takes",
        setting="limit_mm_per_prompt",
        effect="Profiling reserves memory for this worst case only; kinds set to 0 are not reserved for.",
        cost="Requests with more or larger items are refused.",
        next_limit="what clients send",
        verify="the pool size printed at the next start",
    ),
    Lever(
        "mem.multimodal_limit",
        """--limit-mm-per-prompt '{"image": 1, "video": 0}'""",
        since="0.9",
        until="0.11.0",
        default="1 per kind (V0), or the model's limit",
        setting="limit_mm_per_prompt",
        effect="Profiling reserves memory for this many items only; kinds set to 0 are not reserved for.",
        cost="Requests with more items are refused.",
        next_limit="what clients send",
        verify="the pool size printed at the next start",
    ),
    Lever(
        "mem.multimodal_limit",
        "--limit-mm-per-prompt image=1,video=0",
        since="0.5.5",
        until="0.8",
        default="1 per kind",
        setting="limit_mm_per_prompt",
        effect="Profiling reserves memory for this many items only.",
        cost="Requests with more items are refused.",
        next_limit="what clients send",
        verify="the pool size printed at the next start",
    ),
    Lever(
        "mem.multimodal_limit",
        None,
        until="0.5.4",
        instead="Items per prompt cannot be limited before 0.5.5: lower --max-num-batched-tokens, or upgrade.",
    ),
    Lever(
        "mem.logprobs_cap",
        "--max-logprobs N",
        since="0.4.1",
        default="20 (5 in early releases)",
        setting="max_logprobs",
        effect="Requests may not ask for more log probabilities per token, nor for prompt log probabilities beyond it.",
        cost="Such requests are refused. With 1 prompt logprob the whole prompt's logits are still built: cap prompt length "
        "for those clients too.",
        next_limit="what clients send",
        verify="no out-of-memory error with a logprobs frame",
    ),
    Lever(
        "mem.logprobs_cap",
        None,
        until="0.4.0",
        instead="There is no cap in this release: refuse logprobs and prompt_logprobs in the gateway.",
    ),
    Lever(
        "mem.allocator_conf",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        since="0.21",
        default="off",
        effect="Memory the allocator holds in pieces becomes usable; only where the unallocated part is at least the request.",
        cost="With a KV connector (--kv-transfer-config) the start is refused unless sleep mode (0.21) or the cumem allocator "
        "(0.22 and later) is on: do not set it there.",
        next_limit="device memory",
        verify="reserved but unallocated in the next out-of-memory message, or its absence",
        refused_with="connector",
    ),
    Lever(
        "mem.allocator_conf",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        until="0.20",
        default="off",
        effect="Memory the allocator holds in pieces becomes usable; only where the unallocated part is at least the request.",
        cost="Connectors that register KV memory for RDMA may fail with it; sleep mode excludes it in some releases.",
        next_limit="device memory",
        verify="reserved but unallocated in the next out-of-memory message, or its absence",
    ),
    Lever(
        "mem.process_cap",
        None,
        instead="vLLM sets no cap of its own: look for torch.cuda.set_per_process_memory_fraction in the launcher, "
        "per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, or a MIG slice.",
    ),
    Lever(
        "topo.tp",
        "--tensor-parallel-size N",
        default="1",
        setting="tensor_parallel_size",
        effect="Weights and (up to the number of KV heads) the cache are split over the devices, so each holds more tokens. With no more "
        "devices: a quantised checkpoint (--quantization), or --cpu-offload-gb GIB, which keeps so much of the weights in host memory.",
        cost="Communication at every layer: small models get slower.",
        next_limit="interconnect",
        verify="pool tokens at start and throughput at the same concurrency",
    ),
    Lever(
        "topo.dp",
        "--data-parallel-size N",
        since="0.9",
        default="1",
        setting="data_parallel_size",
        effect="Replicas behind one server, each with its own pool.",
        cost="One device set per replica; the balance between them must be watched per engine label.",
        next_limit="load imbalance",
        verify="running and usage per engine, not their mean",
    ),
    Lever(
        "topo.dp",
        None,
        until="0.8",
        instead="Start several servers and put a router in front of them (--data-parallel-size is usable from 0.9).",
    ),
    Lever(
        "topo.routing",
        None,
        instead="Put a router in front of vLLM that looks at each replica's KV usage and keeps sessions with their prefix. Within one "
        "server with data parallelism use a late release: early ones balance by request count.",
    ),
    Lever(
        "client.max_tokens",
        """--override-generation-config '{"max_new_tokens": 1024}'""",
        since="0.8",
        default="none; clients decide, up to max_model_len",
        effect="A server-wide limit on output for every request.",
        cost="Longer answers are cut with finish_reason length.",
        next_limit="clients that need more",
        verify="the share of finish_reason length and output lengths",
    ),
    Lever(
        "client.max_tokens",
        None,
        until="0.7",
        instead="Clients must send max_tokens themselves, or the gateway sets it.",
    ),
    Lever(
        "client.prefix_order",
        None,
        instead="Clients put what is common (system prompt, tools, documents) first and what changes (time, user) last; only "
        "equal leading tokens are reused.",
    ),
    Lever(
        "mem.device_layers",
        None,
        instead="every layer is computed on a device (--cpu-offload-gb only keeps weights in host memory).",
    ),
    Lever(
        "prefix.states",
        None,
        instead="what is kept of window and recurrent layers follows from the pool; it cannot be set.",
    ),
    Lever(
        "host.kill_orphan",
        None,
        instead="End left-over VLLM::EngineCore and VLLM::Worker processes whose parent is gone (`ps -eo pid,ppid,args | grep "
        "VLLM::`, then `kill PID`), then start again.",
    ),
    Lever(
        "host.separate_tenants",
        None,
        instead="Give each server its own device (CUDA_VISIBLE_DEVICES or MIG) or start them one after another: "
        "--gpu-memory-utilization is per instance and the start measures free memory.",
    ),
    Lever(
        "host.power_cap",
        None,
        instead="Outside vLLM: `nvidia-smi -q -d PERFORMANCE,POWER` names the reason; raise the limit with `nvidia-smi -pl "
        "WATTS`, or repair the cooling.",
    ),
    Lever(
        "host.memory",
        None,
        instead="Outside vLLM: raise the memory limit of the container; --kv-offloading-size, --swap-space (V0) and "
        "--cpu-offload-gb all take host memory.",
    ),
    Lever(
        "engine.version",
        None,
        instead="Install a later release, if there is one (`pip install --upgrade vllm`, or a newer image), and compare the pool size "
        "printed at the start: defaults change (0.20: share 0.92, graph memory deducted).",
    ),
    Lever(
        "observe.metrics",
        None,
        since="0.12",
        instead="Metrics are on at /metrics; remove --disable-log-stats if it is set, and add --kv-cache-metrics for the "
        "residency of cached blocks.",
    ),
    Lever(
        "observe.metrics",
        None,
        until="0.11",
        instead="Metrics are on at /metrics; remove --disable-log-stats if it is set.",
    ),
    Lever(
        "observe.request_log",
        "--enable-log-requests --enable-logging-iteration-details",
        since="0.14",
        default="off",
        effect="A line per request and a line per step: recomputed tokens can be measured.",
        cost="One log line per step; user data stays out of INFO lines from 0.11.1.",
        next_limit="log volume",
        verify="'Iteration(' lines in the log",
    ),
    Lever(
        "observe.request_log",
        "--enable-log-requests",
        since="0.10.1",
        until="0.13",
        default="off",
        effect="A line per request with its max_tokens.",
        cost="Up to 0.11.0 the prompt is in the line: redact before sharing.",
        next_limit="log volume",
        verify="'Received request' lines in the log",
    ),
    Lever(
        "observe.request_log",
        None,
        until="0.10.0",
        instead="Request lines are on by default: remove --disable-log-requests (the prompt is in the line: redact before "
        "sharing).",
    ),
    Lever(
        "observe.victims",
        "pip install --no-deps kvdoctor",
        since="0.11.1",
        default="off",
        effect="In the server's own environment, then restart: the observer registers itself and adds kvdoctor:* series to "
        "/metrics (recomputed tokens and their mean per victim; from 0.30 preemptions per request).",
        cost="Under 1 % overhead; where VLLM_PLUGINS is set its list must name kvdoctor.",
        verify="kvdoctor:recomputed_tokens_total in /metrics",
    ),
    Lever(
        "observe.victims",
        None,
        until="0.11.0",
        instead="The observer needs the stat-logger interface of vLLM 0.11.1: upgrade. V0 prints the id of every 50th victim.",
    ),
)


GAPS: tuple[Gap, ...] = (
    Gap(
        "recompute",
        "vLLM exports no count of tokens computed again after a preemption",
        f"{_OBSERVER}; or {_ITERATIONS}",
        since="0.14",
    ),
    Gap(
        "recompute",
        "vLLM exports no count of tokens computed again after a preemption",
        _OBSERVER,
        since="0.11.1",
        until="0.13",
    ),
    Gap(
        "recompute",
        "vLLM V1 exports no count of tokens computed again after a preemption (V0 has them inside prompt_tokens_total)",
        _UPGRADE_OBSERVER,
        since="0.7",
        until="0.11.0",
    ),
    Gap(
        "recompute",
        "V0 has it only as prompt_tokens_total less request_prompt_tokens_sum",
        "two scrapes of /metrics some minutes apart",
        until="0.6",
    ),
    Gap("preempt.victims", _NO_VICTIM, _VICTIM_COST_HINT, since="0.11.1"),
    Gap("preempt.victims", _NO_VICTIM, _NO_VICTIM_HINT, until="0.11.0"),
    Gap(
        "preempt.victim_computed",
        "vLLM does not say how much a victim had computed",
        f"{_OBSERVER}; the mean follows from it",
        since="0.11.1",
    ),
    Gap("preempt.victim", _NO_VICTIM, _VICTIM_COST_HINT, since="0.11.1"),
    Gap("preempt.victim", _NO_VICTIM, _NO_VICTIM_HINT, until="0.11.0"),
    Gap("preempt.repeats", "vLLM names no request when it preempts", _VICTIM_COST_HINT, since="0.11.1"),
    Gap("preempt.repeats", "vLLM names no request when it preempts", _NO_VICTIM_HINT, until="0.11.0"),
    Gap("preempt.secondary", "vLLM names no request when it preempts", _VICTIM_COST_HINT, since="0.11.1"),
    Gap("preempt.secondary", "vLLM names no request when it preempts", _NO_VICTIM_HINT, until="0.11.0"),
    Gap(
        "preempt.hit",
        "the first bucket of vllm:request_num_preemptions holds requests never hit and hit once",
        _OBSERVER_PER_REQUEST,
        since="0.30",
    ),
    Gap(
        "preempt.hit",
        "preemptions per request are exported from 0.30 on",
        "upgrade to 0.30 (vllm:request_num_preemptions)",
        since="0.11.1",
        until="0.29",
    ),
    Gap(
        "preempt.hit",
        "preemptions per request are exported from 0.30 on",
        "upgrade to 0.30 (vllm:request_num_preemptions)",
        until="0.11.0",
    ),
    Gap(
        "preempt.hit_twice_share",
        "vllm:request_num_preemptions is missing from this scrape",
        "curl -s URL/metrics | grep '^vllm:request_num_preemptions' over two scrapes with finished requests between them",
        since="0.30",
    ),
    Gap(
        "preempt.hit_twice_share",
        "preemptions per request are exported from 0.30 on",
        "upgrade to 0.30 (vllm:request_num_preemptions)",
        since="0.11.1",
        until="0.29",
    ),
    Gap(
        "preempt.hit_twice_share",
        "preemptions per request are exported from 0.30 on",
        "upgrade to 0.30 (vllm:request_num_preemptions)",
        until="0.11.0",
    ),
    Gap(
        "preempt",
        "V1 prints nothing when it preempts: only the counter tells",
        "two scrapes of /metrics with vllm:num_preemptions_total",
        since="0.8",
    ),
    Gap(
        "preempt",
        "V1 0.7 does not export the preemption counter",
        "upgrade to 0.8 or later; on V0 two scrapes of /metrics with vllm:num_preemptions_total",
        since="0.7",
        until="0.7",
    ),
    Gap(
        "preempt",
        "only the counter tells; the log prints every 50th preemption",
        "two scrapes of /metrics with vllm:num_preemptions_total (0.4.3 and later)",
        until="0.6",
    ),
    Gap(
        "kv.evictable_share",
        "cached blocks that nobody uses count as free and are not exported apart",
        "--kv-cache-metrics shows how long cached blocks lie idle, --kv-events-config streams every stored and removed block",
        since="0.12",
    ),
    Gap(
        "kv.evictable_share",
        "cached blocks that nobody uses count as free and are not exported apart",
        "upgrade to 0.12 and start with --kv-cache-metrics",
        until="0.11",
    ),
    Gap(
        "kv.block",
        "the residency of cached blocks is measured on request only",
        "restart with --kv-cache-metrics (--kv-cache-metrics-sample 0.1 on a quiet server)",
        since="0.12",
    ),
    Gap(
        "kv.block",
        "the residency of cached blocks is exported from 0.12 on",
        "upgrade to 0.12, --kv-cache-metrics",
        until="0.11",
    ),
    Gap(
        "kv.block_tokens",
        "no cache_config_info and no block size in the arguments",
        "curl -s URL/metrics | grep cache_config_info",
    ),
    Gap(
        "kv.secondary_usage",
        "vLLM has one pool: sliding-window and mamba layers take their blocks from it",
        "nothing to look at",
    ),
    Gap(
        "kv.page_shortfall",
        "vLLM allocates single blocks: a shortage of whole pages cannot occur",
        "nothing to look at",
    ),
    Gap(
        "kv.lost_tokens",
        "free and cached blocks are not exported apart",
        "look at the usage of an idle server: it must read 0",
    ),
    Gap(
        "req.rejected",
        "refusals are counted from 0.32 on",
        "count 503 answers in the access log",
        since="0.29",
        until="0.31",
    ),
    Gap("req.rejected", "this release refuses nobody for its queue", "nothing to look at", until="0.28"),
    Gap(
        "req.waiting_capacity",
        "the queue is split by reason from 0.20 on",
        "upgrade, or take the whole queue as waiting for room",
        until="0.19",
    ),
    Gap(
        "prefix.external",
        "hits of a second tier are exported from 0.11.1 on",
        "upgrade, or read the LMCache lines of the log",
        until="0.11.0",
    ),
    Gap(
        "offload.usage",
        "vllm:kv_offload_cpu_cache_usage_perc is the share pinned by transfers, not how full the tier is",
        "compare --kv-offloading-size with the size of the working set",
    ),
    Gap(
        "offload.store_failures",
        "failed stores are counted from 0.26 on",
        "upgrade, or read the connector's log lines",
        until="0.25",
    ),
    Gap(
        "latency.stall",
        "gaps are exported per token, not per request",
        "measure the gaps at a client: `vllm bench serve --save-result --save-detailed` keeps them per request",
    ),
    Gap("latency.queue", "queue time is exported from 0.6.4 on", "upgrade", until="0.6.3"),
    Gap(
        "work.max_tokens",
        "max_tokens is exported from 0.6.4 on",
        "upgrade, or read the request lines of the log",
        until="0.6.3",
    ),
    Gap(
        "mem",
        "vLLM prints its memory budget at start only",
        "the log from its first line on (log.start), and nvidia-smi",
    ),
)


def _grep(names: str) -> str:
    return f"curl -s {{url}}/metrics | grep -E '^(ray_)?vllm[:_]({names})'"


COMMANDS: tuple[Command, ...] = (
    Command("metrics.kv", _grep("kv_cache_usage_perc|num_requests_running|cache_config_info"), since="0.9.2"),
    Command("metrics.kv", _grep("gpu_cache_usage_perc|num_requests_running|cache_config_info"), until="0.9.1"),
    Command("metrics.preemptions", _grep("num_preemptions_total|request_num_preemptions_(bucket|count)"), since="0.30"),
    Command("metrics.preemptions", _grep("num_preemptions_total"), since="0.4.3", until="0.29"),
    Command(
        "metrics.queue",
        _grep("num_requests_(running|waiting)|num_requests_waiting_by_reason|request_queue_time_seconds_(sum|count)"),
        since="0.20",
    ),
    Command(
        "metrics.queue",
        _grep("num_requests_(running|waiting|swapped)|request_queue_time_seconds_(sum|count)"),
        until="0.19",
    ),
    Command(
        "metrics.latency",
        _grep(
            'inter_token_latency_seconds_(bucket.*le="(0.1|1.0|10.0)"|count)|time_to_first_token_seconds_(sum|count)'
        ),
        since="0.10.2",
    ),
    Command(
        "metrics.latency",
        _grep('time_per_output_token_seconds_(bucket.*le="(0.1|1.0)"|count)|time_to_first_token_seconds_(sum|count)'),
        until="0.10.1",
    ),
    Command("metrics.prefix", _grep("(external_)?prefix_cache_(queries|hits)_total"), since="0.11"),
    Command("metrics.prefix", _grep("gpu_prefix_cache_(queries|hits)_total"), since="0.8", until="0.10"),
    Command(
        "metrics.prefix", _grep("gpu_prefix_cache_(hit_rate|queries_total|hits_total)"), since="0.5.5", until="0.7"
    ),
    Command("metrics.finished", _grep("request_success_total"), since="0.4.2"),
    Command("metrics.offload", _grep("(simple_)?kv_offload_|external_prefix_cache_"), since="0.16"),
    Command("metrics.pd", _grep("(nixl|mooncake)_num_|num_requests_kv_fetch_by_stage"), since="0.11.1"),
    Command("metrics.blocks", _grep("kv_block_(idle_before_evict|reuse_gap)_seconds_(sum|count)"), since="0.12"),
    Command("log.oom", "grep -nE 'out of memory|OutOfMemoryError' {log} | head -5"),
    Command(
        "log.start",
        "grep -nE 'Model loading took|model weights take|Actual usage is|KV cache (size|memory)|GPU blocks|Maximum concurrency|"
        "Graph capturing finished|max seq len' {log}",
    ),
    Command("log.stats", "grep -F 'Avg prompt throughput' {log} | tail -30"),
    Command(
        "log.iterations",
        "grep -oE '[0-9]+ generation requests, [0-9]+ generation tokens' {log} | "
        "sed -E 's/([0-9]+) generation requests, ([0-9]+) .*/\\2-\\1/' | paste -sd+ | bc   # tokens computed again",
        since="0.14",
    ),
    Command(
        "log.preemptions",
        "grep -oE 'total_(num_)?cumulative_preemption(_cnt)?=[0-9]+' {log} | tail -1",
        since="0.4.3",
        until="0.7",
    ),
    Command(
        "log.crash",
        "grep -nE 'SchedulerStats\\(|EngineCore (encountered|failed)|died unexpectedly' {log}",
        since="0.8.5",
    ),
    Command("log.crash", "grep -nE 'Background loop|EngineCore hit an exception|died, exit code' {log}", until="0.8.4"),
    Command("observe.metrics", "curl -s {url}/metrics | grep -cE '^(ray_)?vllm[:_]'"),
    Command(
        "observe.request_log",
        "vllm serve MODEL ... --enable-log-requests --enable-logging-iteration-details",
        since="0.14",
    ),
    Command("observe.request_log", "vllm serve MODEL ... --enable-log-requests", since="0.10.1", until="0.13"),
    Command("observe.request_log", "grep -c 'Received request' {log}", until="0.10.0"),
    Command(
        "observe.victims",
        "pip install --no-deps kvdoctor   # in the server's own environment, then restart it and: curl -s {url}/metrics | grep '^kvdoctor:'",
        since="0.11.1",
    ),
)
