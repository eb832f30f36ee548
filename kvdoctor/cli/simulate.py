"""``kvdoctor simulate``: a captured, public or made-up load under other policies, pools and numbers of GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdoctor.cli import EXIT_UNKNOWN, common

if TYPE_CHECKING:
    from kvdoctor.engines.base import Engine
    from kvdoctor.policy import Policy
    from kvdoctor.report.simulate import Allocation, Run
    from kvdoctor.sim import Bench, Cell, Goal, Workload
    from kvdoctor.sim.allocators import Kind, Replay
    from kvdoctor.sim.matrix import Task, Variant

RATES = {"chat": 6.0, "reasoning": 0.4, "short": 18.0, "size-mix": 0.09, "agents": 2.0}
"""Requests/s of a seeded load when none are asked for: near the knee of the default server."""

POOL_TOKENS = 131_072
COMPILE_ABOVE = 300_000
"""Simulated requests above which compiling the engine pays off, where the extra is installed."""


def simulate(
    source: Annotated[
        str | None,
        typer.Argument(help="Snapshot, sample:NAME, or a trace (Azure csv, Mooncake jsonl, csv).", show_default=False),
    ] = None,
    seed_load: Annotated[
        str | None, typer.Option("--seed-load", help="A made-up load: chat, reasoning, short, size-mix or agents.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", help="Name (stock, watermark, ratio ...) or TOML file. Repeatable.", show_default=False
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", help="KEY=FROM:TO:STEP, e.g. watermark=0:.1:.01. Repeatable.", show_default=False),
    ] = None,
    gpus: Annotated[str, typer.Option("--gpus", help="Number of GPUs, or several: 1,2,4.")] = "1",
    pool_tokens: Annotated[
        str | None,
        typer.Option("--pool-tokens", help="KV pool of one GPU in tokens, or several.", show_default=False),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Each policy also with twice the pool and with twice the GPUs.")
    ] = False,
    allocator: Annotated[
        list[str] | None,
        typer.Option(
            "--allocator", help="paged, tiered, first_fit, best_fit or buddy. Repeatable.", show_default=False
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", help="Requests of the load, at most.", min=1, max=1_000_000)
    ] = 2000,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests/s of a made-up load.", show_default=False)
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients", help="Closed loop: so many clients, each waits for its answer.", min=1, show_default=False
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Loads drawn, for the spread.", min=1, max=100)] = 3,
    seed: Annotated[int, typer.Option("--seed", help="First seed.")] = 0,
    cost: Annotated[
        str, typer.Option("--cost", help="Step costs of a preset, where nothing was captured.")
    ] = "a100-8b",
    max_running: Annotated[
        int | None, typer.Option("--max-running", help="Most sequences computed at a time.", min=1, show_default=False)
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", help="Tokens per scheduler step.", min=1, show_default=False)
    ] = None,
    ttft_limit: Annotated[float, typer.Option("--ttft-limit", help="Good: first token within so many seconds.")] = 10.0,
    stall_limit: Annotated[float, typer.Option("--stall-limit", help="Good: no gap between tokens above.")] = 2.0,
    format: Annotated[str, typer.Option("--format", help="text, json or csv.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
) -> None:
    """Replay a load under other policies, pools and GPUs, and compare what it costs.

    \b
    Examples:
      kvdoctor simulate sample:vllm-saturated --sweep watermark=0:.1:.02
      kvdoctor simulate AzureLLMInferenceTrace_conv.csv --policy stock --policy ratio --pool-tokens 31000
      kvdoctor simulate --seed-load reasoning --compare
    """
    from kvdoctor.policy import PolicyError
    from kvdoctor.report.simulate import Simulation, render, to_csv, to_json
    from kvdoctor.sim import Goal, SimulationError, TraceError
    from kvdoctor.sim import matrix as cells_of

    if format not in ("text", "json", "csv"):
        common.fail(f"--format {format}: choose text, json or csv")
    if (source is None) == (seed_load is None):
        common.fail(
            "give one load: a snapshot, a trace or sample:NAME, or --seed-load chat|reasoning|short|size-mix|agents"
        )
    if not ttft_limit > 0 or not stall_limit > 0:
        common.fail("--ttft-limit and --stall-limit are seconds above 0")
    goal = Goal(ttft_limit, stall_limit)
    kinds = _kinds(allocator or [])
    counts, pools = _numbers("--gpus", gpus), None if pool_tokens is None else _numbers("--pool-tokens", pool_tokens)
    try:
        load = _load(source, seed_load, requests, rate, clients, seeds, seed, cost, goal)
        bench = load.bench(max_running, batch_tokens)
        if pools is None:
            pools = [bench.pool_tokens]
        variants = _variants(policy or [], sweep or [], load.policy)
        todo = cells_of.tasks(
            variants, load.loads, gpus=[n * load.engines for n in counts], pools=pools, clients=bench.closed_loop
        )
        if compare:
            todo += cells_of.tasks(
                variants,
                load.loads,
                gpus=[n * load.engines for n in counts],
                pools=[2 * n for n in pools],
                clients=bench.closed_loop,
            )
            todo += cells_of.tasks(
                variants,
                load.loads,
                gpus=[2 * n * load.engines for n in counts],
                pools=pools,
                clients=bench.closed_loop,
            )
        _compile(sum(len(task.load.requests) for task in todo))
        with _Progress(sum(len(task.load.requests) for task in todo)) as progress:
            cells = cells_of.run(todo, bench.cost, bench.limits, goal, progress)
        grants = cells_of.allocators(kinds, load.loads[0], bench.cost, pools[0], load.policy) if kinds else []
    except (PolicyError, SimulationError, TraceError, ValueError) as error:
        common.fail(str(error))
    result = Simulation(
        load.name,
        tuple(_run(cell) for cell in cells),
        tuple(dict.fromkeys((*load.assumed, *bench.cost.assumed))),
        load.observed,
        tuple(_allocation(kind, grant) for kind, grant in grants),
        f"first token within {ttft_limit:g} s, no gap between tokens above {stall_limit:g} s",
        load.flags(variants),
    )
    text = (
        to_json(result)
        if format == "json"
        else to_csv(result)
        if format == "csv"
        else render(result, width=common.width())
    )
    common.write(text, output)


class _Load:
    """What is replayed: loads (one per seed), the policy in force, and the server to replay them on."""

    def __init__(
        self,
        name: str,
        loads: Sequence[Workload],
        bench: Bench,
        policy: Policy,
        assumed: Sequence[str],
        observed: dict[str, float | str | bool | None] | None = None,
        engines: int = 1,
        server: tuple[Engine, str | None] | None = None,
    ) -> None:
        self.name = name
        self.loads = tuple(loads)
        self.policy = policy
        self.assumed = tuple(assumed)
        self.observed = observed
        self.engines = engines
        self._server = server
        self._bench = bench

    def flags(self, variants: Sequence[Variant]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """How the captured server is told to follow each policy that is not the one in force."""
        from kvdoctor.advise.render import render_policy

        if self._server is None:
            return ()
        engine, version = self._server
        said = (
            (one.name, render_policy(one.policy, engine, version, self.policy))
            for one in variants
            if one.policy != self.policy
        )
        return tuple(
            (name, tuple(act.instead if act.flag is None else f"{act.flag}: {act.to}" for act in acts))
            for name, acts in said
            if acts
        )

    def bench(self, max_running: int | None, batch_tokens: int | None) -> Bench:
        """The server with the limits asked for."""
        from dataclasses import replace

        limits = self._bench.limits
        running = limits.max_num_seqs if max_running is None else max_running
        batch = max(limits.max_batched_tokens, running) if batch_tokens is None else batch_tokens
        return replace(self._bench, limits=replace(limits, max_num_seqs=running, max_batched_tokens=batch))


def _load(
    source: str | None,
    seed_load: str | None,
    requests: int,
    rate: float | None,
    clients: int | None,
    seeds: int,
    seed: int,
    cost: str,
    goal: Goal,
) -> _Load:
    import random

    from kvdoctor.policy import Policy
    from kvdoctor.sim import GENERATORS, Bench, preset_cost, read_trace

    stock = Policy(release="tail_blocks")
    if seed_load is not None:
        kind = {"agent": "agents", "sizes": "size-mix"}.get(seed_load, seed_load)
        if kind not in GENERATORS:
            common.fail(f"--seed-load {seed_load}: choose {', '.join(GENERATORS)}")
        speed = RATES[kind] if rate is None else rate
        loads = [GENERATORS[kind](random.Random(seed + at), requests, speed) for at in range(seeds)]
        assumed = [*loads[0].assumed, f"a KV pool of {POOL_TOKENS:,} tokens unless --pool-tokens says otherwise"]
        if rate is None:
            assumed.append(f"{speed:g} requests/s")
        bench = Bench(POOL_TOKENS, preset_cost(cost), closed_loop=clients, goal=goal)
        return _Load(f"{kind}, {requests} requests at {speed:g}/s", loads, bench, stock, assumed)
    assert source is not None
    path = Path(common.resolve(source))
    if rate is not None:
        common.fail("--rate belongs to --seed-load: a trace and a capture have their own arrivals")
    if path.is_file() and path.suffix.lower() in (".csv", ".jsonl", ".json"):
        try:
            trace = read_trace(path).head(requests)
        except (OSError, UnicodeDecodeError) as error:
            common.fail(f"cannot read {source}: {error}")
        loads = [trace if at == 0 else trace.resampled(seed + at) for at in range(seeds)]
        assumed = [*trace.assumed, f"a KV pool of {POOL_TOKENS:,} tokens unless --pool-tokens says otherwise"]
        if seeds > 1:
            assumed.append("further seeds: the same arrivals with lengths drawn again from the trace")
        bench = Bench(POOL_TOKENS, preset_cost(cost), closed_loop=clients, goal=goal)
        return _Load(f"{path.name}, {len(trace.requests)} requests", loads, bench, stock, assumed)
    return _captured(source, requests, seeds, clients, goal)


def _captured(source: str, requests: int, seeds: int, clients: int | None, goal: Goal) -> _Load:
    from dataclasses import replace

    from kvdoctor.facts import Unknown
    from kvdoctor.pipeline import observed
    from kvdoctor.whatif import captured

    why: list[str] = []
    ready: _Load | None = None
    for name, inputs in observed(common.read([source])):
        found = captured(inputs, requests=requests, seeds=seeds, goal=goal)
        if isinstance(found, Unknown):
            why.append(f"{name}: {found.reason}" + (f" ({found.hint})" if found.hint else ""))
            continue
        seen: dict[str, float | str | bool | None] = {
            "target": name,
            "preemptions": found.preempted,
            "finished": found.finished,
            "seconds": found.seconds,
            "reproduces": found.problem is None,
            "problem": found.problem,
        }
        bench = found.bench if clients is None else replace(found.bench, closed_loop=clients)
        count = len(found.loads[0].requests)
        ready = _Load(
            f"captured from {name}, {count} requests",
            found.loads,
            bench,
            found.policy,
            found.assumed,
            seen,
            found.engines,
            None if inputs.engine is None else (inputs.engine, inputs.version),
        )
        break
    if ready is None:
        common.fail("this capture cannot be replayed: " + ("; ".join(why) or "it holds no server"), EXIT_UNKNOWN)
    return ready


def _variants(names: Sequence[str], sweeps: Sequence[str], base: Policy) -> list[Variant]:
    """The policies asked for; without any, the one in force. A sweep varies the first policy named."""
    from kvdoctor.policy import NAMED_POLICIES, Policy, PolicyError
    from kvdoctor.sim.matrix import Variant, sweep

    found: list[Variant] = []
    for name in names:
        if name in NAMED_POLICIES:
            # named policies are patches: block size and prefix cache stay those of the server
            found.append(Variant(name, base.patch(NAMED_POLICIES[name])))
        elif Path(name).is_file():
            try:
                loaded = Policy.load(name)
            except (OSError, UnicodeDecodeError) as error:
                raise PolicyError(f"cannot read {name}: {error}") from error
            found.append(Variant(Path(name).stem, loaded))
        else:
            Policy.named(name)
    first = found[0].policy if found else base
    swept = [one for text in sweeps for one in sweep(text, first)]
    if not found and not swept:
        return [Variant("as it is", base)]
    return [*found, *swept]


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        common.fail(f"{option} {text}: whole numbers, separated by commas")
    if any(number < 1 for number in numbers):
        common.fail(f"{option} {text}: at least 1")
    return numbers


def _kinds(names: Sequence[str]) -> list[Kind]:
    from typing import get_args

    from kvdoctor.sim.allocators import Kind

    known: tuple[Kind, ...] = get_args(Kind)
    for name in names:
        if name not in known:
            common.fail(f"--allocator {name}: choose {', '.join(known)}")
    return [kind for name in names for kind in known if kind == name]


def _compile(work: int) -> None:
    if work > COMPILE_ABOVE:
        from kvdoctor.sim import fast

        fast.warm()


def _run(cell: Cell) -> Run:
    from kvdoctor.report.simulate import Run

    figures: dict[str, int | float | None] = {}
    spread: dict[str, tuple[float, float]] = {}
    for name in cell.results[0].figures():
        if name in ("gpus", "pool_tokens"):
            continue
        found = cell.spread(name)
        figures[name] = None if found is None else found.mean
        if found is not None and len(cell.results) > 1:
            spread[name] = (found.lo, found.hi)
    return Run(cell.name, cell.gpus, cell.pool_tokens, len(cell.results), figures, spread, cell.results[0].timeline)


def _allocation(kind: Kind, grant: Replay) -> Allocation:
    from kvdoctor.report.simulate import Allocation

    return Allocation(
        kind,
        grant.asked,
        grant.refused,
        grant.false_refused,
        grant.internal_mean,
        grant.external_max,
        grant.peak_granted / grant.capacity,
    )


class _Progress:
    """A bar on stderr while long work runs on a terminal; silent otherwise."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._advance: Callable[[int], None] | None = None
        self._stop: Callable[[], None] | None = None

    def __enter__(self) -> Callable[[Task], None]:
        if sys.stderr.isatty() and self._total > 5000:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            task = bar.add_task("simulating", total=self._total)
            bar.start()
            self._advance = lambda count: bar.advance(task, count)
            self._stop = bar.stop
        return self._one

    def _one(self, task: Task) -> None:
        if self._advance is not None:
            self._advance(len(task.load.requests))

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop()
