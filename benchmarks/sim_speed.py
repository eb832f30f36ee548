"""How fast the simulator replays the Azure conversation trace, against DynoSim in the same run.

Run as ``python -m benchmarks.sim_speed [--dynamo-python PATH]``. CPU seconds, best of three, load already read.
DynoSim is the offline replay of ``ai-dynamo-runtime``; PATH is the interpreter of an environment that has it (it is
not a dependency of this project). Memory is the peak of this process, numba included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Row
from kvdoctor.policy import Policy
from kvdoctor.sim import Limits, Workload, fast, preset_cost, read_trace, simulate

TRACE = Path(__file__).parent / "data" / "AzureLLMInferenceTrace_conv.csv"
POOL_TOKENS = 31_000
LIMITS = Limits(max_num_seqs=256, max_batched_tokens=2048, prefix_caching=False)

DYNAMO = """
import json, sys, time
from dynamo._core import run_mocker_trace_replay
engine = {"num_gpu_blocks": %d, "block_size": 16, "max_num_seqs": 256, "max_num_batched_tokens": 2048,
          "enable_prefix_caching": False}
best = None
for _ in range(3):
    start = time.process_time()
    result = run_mocker_trace_replay([sys.argv[1]], extra_engine_args={"engine": engine}, trace_block_size=512,
                                     capture_planner_details=False)
    took = time.process_time() - start
    best = took if best is None else min(best, took)
summary = result.summary
print(json.dumps({"seconds": best, "prefill": summary["committed_prefill_tokens"], "input": summary["total_input_tokens"]}))
"""


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """Least CPU seconds of ``times`` calls."""
    took = []
    for _ in range(times):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def dynamo(interpreter: str, load: Workload) -> dict[str, float]:
    """Replay the load with DynoSim: CPU seconds and token counts."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        block = 0
        for one in load.requests:
            blocks = -(-one.prompt_tokens // 512)
            row = {
                "timestamp": round(one.arrival_s * 1000),
                "input_length": one.prompt_tokens,
                "output_length": one.output_tokens,
                "hash_ids": list(range(block, block + blocks)),
            }
            block += blocks
            file.write(json.dumps(row) + "\n")
        file.flush()
        script = DYNAMO % (POOL_TOKENS // 16)
        done = subprocess.run([interpreter, "-c", script, file.name], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def sweep_cells() -> list[Policy]:
    """The 40 policies of a what-if."""
    cells = [Policy(admission_free_share=share / 200, release="tail_blocks") for share in range(20)]
    orders = ("tail", "oldest", "largest", "ratio", "fewest-output")
    modes = ("first_chunk", "full_prompt")
    return cells + [Policy(victim_order=order, admission_mode=mode) for order in orders for mode in modes] * 2


def rows() -> Iterator[Row]:
    """The stock policy in plain Python and compiled, and a what-if of 40 cells."""
    load, cost = read_trace(TRACE), preset_cost("a100-8b")
    count = len(load.requests)

    def replay(policy: Policy, engine: str) -> Callable[[], object]:
        return lambda: simulate(load, policy, pool_tokens=POOL_TOKENS, cost=cost, limits=LIMITS, engine=engine)

    plain = count / best_of(replay(Policy(), "python"))
    yield Row("simulator, plain Python, Azure conversation trace", ">= 10,000 requests/s", f"{plain:,.0f} requests/s", plain >= 10_000)  # fmt: skip
    if not fast.available():
        yield Row("simulator, compiled", "> 16,000 requests/s (DynoSim elsewhere)", "numba is not installed")
        return
    if not fast.ready():
        fast.warm()
    quick = count / best_of(replay(Policy(), "fast"))
    yield Row("simulator, compiled", "> 16,000 requests/s (DynoSim elsewhere)", f"{quick:,.0f} requests/s", quick > 16_000)  # fmt: skip
    cells = sweep_cells()
    took = best_of(lambda: [replay(policy, "fast")() for policy in cells], 1)
    yield Row(f"what-if of {len(cells)} cells x {count:,} requests", "<= 5 s", f"{took:.1f} s", took <= 5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dynamo-python", help="interpreter with ai-dynamo-runtime")
    arguments = parser.parse_args()
    start = time.process_time()
    load = read_trace(TRACE)
    count = len(load.requests)
    print(
        f"{TRACE.name}: {count:,} requests read in {time.process_time() - start:.2f} s, pool {POOL_TOKENS:,} tokens\n"
    )
    cost = preset_cost("a100-8b")
    policies = {
        "stock (tail, full prompt)": Policy(),
        "first chunk": Policy(admission_mode="first_chunk"),
        "tail blocks + watermark .02": Policy(release="tail_blocks", admission_free_share=0.02),
        "ratio": Policy(victim_order="ratio"),
    }

    def replay(policy: Policy, engine: str) -> Callable[[], object]:
        return lambda: simulate(load, policy, pool_tokens=POOL_TOKENS, cost=cost, limits=LIMITS, engine=engine)

    print(f"{'policy':30} {'plain Python req/s':>20} {'compiled req/s':>16}")
    plain_peak = 0
    for name, policy in policies.items():
        plain = count / best_of(replay(policy, "python"))
        plain_peak = plain_peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if not fast.available():
            print(f"{name:30} {plain:20,.0f} {'numba missing':>16}")
            continue
        before = time.process_time()
        if not fast.ready():
            fast.warm()
            print(f"{'(loading the compiled kernel)':30} {'':20} {time.process_time() - before:14.1f} s")
        print(f"{name:30} {plain:20,.0f} {count / best_of(replay(policy, 'fast')):16,.0f}")
    if fast.ready():
        cells = sweep_cells()

        def sweep() -> None:
            for policy in cells:
                replay(policy, "fast")()

        print(f"\n{len(cells)} cells of {count:,} requests, compiled: {best_of(sweep, 1):.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory: {plain_peak} MB plain, {peak} MB with the kernel and all cells")
    if arguments.dynamo_python is None:
        print("DynoSim: not run (give --dynamo-python)")
        return
    found = dynamo(arguments.dynamo_python, load)
    ours = simulate(load, Policy(admission_mode="first_chunk"), pool_tokens=POOL_TOKENS, cost=cost, limits=LIMITS)
    stock = simulate(load, Policy(), pool_tokens=POOL_TOKENS, cost=cost, limits=LIMITS)
    share = 1 - found["input"] / found["prefill"]
    print(f"DynoSim: {count / found['seconds']:,.0f} req/s; recomputed share of prefill tokens {share:.1%}")
    print(
        f"(ours {stock.recompute_prefill_share:.1%} with the full prompt, {ours.recompute_prefill_share:.1%} with the first chunk)"
    )


if __name__ == "__main__":
    main()
