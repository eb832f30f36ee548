"""Replays as a table with pictures, as ``kvdoctor.simulate/1`` (the schema lies beside this file), or as csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

from kvdoctor.frozen import frozen

SCHEMA = "kvdoctor.simulate/1"

Figure = int | float | None

COLUMNS = (
    "requests",
    "finished",
    "preemptions",
    "recompute_tokens",
    "recompute_token_share",
    "recompute_time_share",
    "hit_twice",
    "chain_evictions",
    "ttft_p50_s",
    "ttft_p99_s",
    "stall_p99_s",
    "goodput",
    "tokens_per_s",
)
"""Figures of a run that every format shows; means over the seeds."""

_BARS = " ▁▂▃▄▅▆▇█"


@frozen
class Run:
    """One policy on one server: means over the seeds, (lowest, highest) per figure, and the first seed over time.

    ``timeline``: (seconds, pool usage 0..1, waiting, running). ``figures`` holds every figure, COLUMNS among them.
    """

    policy: str
    gpus: int
    pool_tokens: int
    seeds: int
    figures: Mapping[str, Figure]
    spread: Mapping[str, tuple[float, float]]
    timeline: tuple[tuple[float, float, int, int], ...]


@frozen
class Allocation:
    """What the load cost under one allocator. Shares are 0..1, None where there was nothing to take them from."""

    allocator: str
    asked: int
    refused: int
    false_refused: int
    internal_waste: float | None
    external_max: float | None
    peak_share: float


@frozen
class Simulation:
    """Everything ``simulate`` says. ``observed``: what the capture counted, None for a trace or a seed.

    ``flags``: for each policy how the captured server's version is told to follow it, or that it cannot be told.
    """

    load: str
    runs: tuple[Run, ...]
    assumed: tuple[str, ...]
    observed: Mapping[str, float | str | bool | None] | None = None
    allocations: tuple[Allocation, ...] = ()
    goal: str = ""
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()


def to_json(result: Simulation) -> str:
    """JSON text with a final newline; unknown is null."""
    document = {
        "schema": SCHEMA,
        "load": result.load,
        "assumed": list(result.assumed),
        "observed": None if result.observed is None else dict(result.observed),
        "runs": [
            {
                "policy": run.policy,
                "gpus": run.gpus,
                "pool_tokens": run.pool_tokens,
                **{name: run.figures[name] for name in COLUMNS},
                "seeds": run.seeds,
                "spread": {name: list(ends) for name, ends in run.spread.items()},
                "figures": {name: value for name, value in run.figures.items() if name not in COLUMNS},
            }
            for run in result.runs
        ],
        "allocators": [
            {
                "allocator": one.allocator,
                "asked": one.asked,
                "refused": one.refused,
                "false_refused": one.false_refused,
                "internal_waste": one.internal_waste,
                "external_max": one.external_max,
                "peak_share": one.peak_share,
            }
            for one in result.allocations
        ],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_csv(result: Simulation) -> str:
    """One line per run: names, the figures of every format, then all others; unknown is empty."""
    out = io.StringIO()
    more = [name for name in result.runs[0].figures if name not in COLUMNS] if result.runs else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("policy", "gpus", "pool_tokens", "seeds", *COLUMNS, "goodput_lo", "goodput_hi", *more))
    for run in result.runs:
        lo, hi = run.spread.get("goodput", ("", ""))
        cells = ["" if run.figures[name] is None else run.figures[name] for name in (*COLUMNS, *more)]
        writer.writerow(
            (run.policy, run.gpus, run.pool_tokens, run.seeds, *cells[: len(COLUMNS)], lo, hi, *cells[len(COLUMNS) :])
        )
    return out.getvalue()


def render(result: Simulation, *, width: int = 100, pictures: bool = True) -> str:
    """The table, pool usage and queue over time policy against policy, and what was assumed."""
    lines = [f"Load: {result.load}"]
    if result.goal:
        lines.append(f"Good: {result.goal}")
    if result.observed is not None:
        lines.append(_seen(result.observed))
    lines += ["", *_table(result.runs), ""]
    if pictures:
        lines += _pictures(result.runs, width)
    if result.allocations:
        lines += [*_allocators(result.allocations), ""]
    for name, said in result.flags:
        lines += [f"To run {name}:", *(f"  {one}" for one in said), ""]
    lines.append("Assumed:")
    lines += [f"  {one}" for one in result.assumed] or ["  nothing"]
    return "\n".join(lines) + "\n"


def _seen(observed: Mapping[str, float | str | bool | None]) -> str:
    counted = observed["preemptions"]
    said = "reproduces it" if observed["reproduces"] else f"does not: {observed['problem']}"
    return f"Seen: {counted:.0f} preemptions for {observed['finished']:.0f} finished requests; the replay {said}"


_HEADS = (
    ("policy", "", 0),
    ("GPUs", "gpus", 4),
    ("pool", "pool_tokens", 9),
    ("good %", "goodput", 12),
    ("evicted", "preemptions", 8),
    ("tok %", "recompute_token_share", 6),
    ("time %", "recompute_time_share", 6),
    (">=2x", "hit_twice", 5),
    ("TTFT p50", "ttft_p50_s", 8),
    ("p99 s", "ttft_p99_s", 7),
    ("stall p99 s", "stall_p99_s", 11),
    ("tok/s", "tokens_per_s", 8),
)


def _table(runs: Sequence[Run]) -> list[str]:
    names = max([6, *(len(run.policy) for run in runs)])
    head = "policy".ljust(names) + "".join("  " + title.rjust(wide) for title, _, wide in _HEADS[1:])
    lines = [head]
    for run in runs:
        cells = [run.policy.ljust(names)]
        for _, name, wide in _HEADS[1:]:
            cells.append("  " + _cell(run, name).rjust(wide))
        lines.append("".join(cells))
    if any(run.seeds > 1 for run in runs):
        lines.append(f"means over {max(run.seeds for run in runs)} seeds; good %: lowest and highest seed in brackets")
    near = [(run, run.figures.get("near_done"), run.figures["preemptions"]) for run in runs]
    shares = [f"{_label(run)} {done / hits:.0%}" for run, done, hits in near if done is not None and hits]
    if shares:
        lines.append(f"victims that were nearly done: {', '.join(shares)}")
    lines.append(
        "tok %, time %: recomputed share of all computed tokens, of busy time; evicted: preemptions; >=2x: requests"
    )
    lines.append("preempted twice or more; times in seconds; stall: longest gap between two tokens of a request")
    return lines


def _cell(run: Run, name: str) -> str:
    if name == "gpus":
        return str(run.gpus)
    if name == "pool_tokens":
        return f"{run.pool_tokens:,}"
    value = run.figures[name]
    if value is None:
        return "-"
    if name == "goodput":
        ends = run.spread.get("goodput")
        return f"{value:.1%}".rstrip("%") + (f" [{ends[0]:.0%}-{ends[1]:.0%}]".replace("%", "") if ends else "")
    if name.endswith("_share"):
        return f"{100 * value:.1f}"
    if name.endswith("_s") and name != "tokens_per_s":
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"{value:,.0f}"


def _pictures(runs: Sequence[Run], width: int) -> list[str]:
    """Pool usage on a fixed scale of 0 to 1 and the queue on one scale for all runs, over the time of the longest run."""
    drawn = [run for run in runs if len(run.timeline) >= 2]
    if not drawn:
        return []
    names = max(len(_label(run)) for run in drawn)
    room = max(16, min(width - names - 12, 100))
    end = max(run.timeline[-1][0] for run in drawn)
    most = max([1, *(point[2] for run in drawn for point in run.timeline)])
    lines = [f"Pool in use, first GPU, 0 to {end:,.0f} s (full block = 100 %)"]
    lines += [
        f"  {_label(run).ljust(names)}  {_spark([(p[0], p[1]) for p in run.timeline], end, 1.0, room)}" for run in drawn
    ]
    lines += ["", f"Requests waiting (full block = {most:,})"]
    lines += [
        f"  {_label(run).ljust(names)}  {_spark([(p[0], float(p[2])) for p in run.timeline], end, float(most), room)}"
        for run in drawn
    ]
    return [*lines, ""]


def _label(run: Run) -> str:
    return run.policy + (f" x{run.gpus}" if run.gpus > 1 else "")


def _spark(points: Sequence[tuple[float, float]], end: float, top: float, room: int) -> str:
    """The largest value of each column; a column without a point repeats the one before, after the end it is blank."""
    columns: list[float | None] = [None] * room
    for when, value in points:
        at = min(room - 1, int(room * when / end)) if end > 0 else 0
        before = columns[at]
        columns[at] = value if before is None else max(before, value)
    last = min(room - 1, int(room * points[-1][0] / end)) if end > 0 else 0
    out, held = "", 0.0
    for column in columns[: last + 1]:
        held = held if column is None else column
        share = min(1.0, max(0.0, held / top))
        out += _BARS[0 if share == 0 else max(1, round(share * (len(_BARS) - 1)))]
    return out


def _allocators(rows: Sequence[Allocation]) -> list[str]:
    lines = ["allocator   refused  of which with room free  internal waste  external, worst  peak in use"]
    for one in rows:
        lines.append(
            f"{one.allocator:<10}  {one.refused:>7,}  {one.false_refused:>23,}  {_share(one.internal_waste):>14}  "
            f"{_share(one.external_max):>15}  {_share(one.peak_share):>11}"
        )
    lines.append("every sequence asks for its whole length in one piece; a refused one is dropped")
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
