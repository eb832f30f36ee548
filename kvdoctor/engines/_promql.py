"""Facts as PromQL for every engine whose table has the roles: counters as rates, gauges by their largest value.

Counters enter as rates over the window and never as ``increase()``: ratios of two rates do not depend on how a server
extrapolates. A count is a rate times the window's length. A gauge of a pool is combined by ``max`` over engines, never by a mean.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvdoctor.engines.base import Promql


def rate(role: str) -> str:
    """A counter per second, over all engines of a server."""
    return f"sum by ({{by}}) (rate(<{role}>[{{win}}]))"


def count(role: str) -> str:
    """A counter's events in the window, by its rate."""
    return f"{rate(role)} * {{seconds}}"


def bucket(role: str, edge: int) -> str:
    """Observations up to ``edge`` per second; the edge in the spelling of either client library."""
    return rate(f'{role}:bucket,le=~"{edge}|{edge}[.]0"')


def quantile(role: str, q: float) -> str:
    """A quantile of a histogram over all engines of a server."""
    return f"histogram_quantile({q:g}, sum by ({{by}}, le) (rate(<{role}:bucket>[{{win}}])))"


def mean(role: str) -> str:
    """The mean of what a histogram gathered."""
    return f"{rate(role + ':sum')} / {rate(role + ':count')}"


def by_reason() -> tuple[Promql, ...]:
    """Finished requests of an engine whose counter tells the reason: the aborted and failed ones are no finished ones."""
    bad = 'finished_reason=~"abort|aborted|error|cancelled|timeout|repetition"'
    good = bad.replace("=~", "!~")
    return (
        Promql("req.finished", count(f"req.finished,{good}")),
        Promql(
            "req.length_share",
            rate('req.finished,finished_reason=~"length|max_tokens"') + f" / ({rate('req.finished,' + good)} > 0)",
        ),
        Promql("req.error_share", f"{rate('req.finished,' + bad)} / ({rate('req.finished')} > 0)"),
    )


def either_full(*parts: str) -> str:
    """1 while any of the comparisons (each 0 or 1, made with ``bool``) holds, 0 while none of those that are known does."""
    named = " or ".join(f'label_replace({part}, "part", "{i}", "", "")' for i, part in enumerate(parts, 1))
    return f"max by ({{by}}) ({named})"


def extend(common: Iterable[Promql], own: Iterable[Promql], *, without: Iterable[str] = ()) -> tuple[Promql, ...]:
    """``own`` and what ``common`` has beside it: a fact that ``own`` writes replaces the common form."""
    mine = tuple(own)
    taken = {entry.fact for entry in mine} | set(without)
    return (*mine, *(entry for entry in common if entry.fact not in taken))


_PER_ENGINE_LOAD = (
    "(sum by ({by}, {ranks}) (max_over_time(<req.running>[{win}]))"
    " + sum by ({by}, {ranks}) (max_over_time(<req.waiting>[{win}])))"
)
_PER_ENGINE_USAGE = "max by ({by}, {ranks}) (max_over_time(<kv.usage>[{win}]))"
_PER_ENGINE_PREEMPTIONS = "sum by ({by}, {ranks}) (rate(<preempt.total>[{win}]))"


COMMON_PROMQL: tuple[Promql, ...] = (
    Promql("target.samples", "max by ({by}) (count_over_time(<req.running>[{win}]))"),
    # queue
    Promql("req.running", "sum by ({by}) (<req.running>)"),
    Promql("req.running_max", "sum by ({by}) (max_over_time(<req.running>[{win}]))"),
    Promql("req.running_drop", "(1 - ${req.running} / ${req.running_max}) * (${req.waiting_max} > bool 0)"),
    Promql("req.waiting", "sum by ({by}) (<req.waiting>)"),
    Promql("req.waiting_max", "sum by ({by}) (max_over_time(<req.waiting>[{win}]))"),
    Promql("req.waiting_capacity", "sum by ({by}) (<req.waiting>)"),
    Promql("req.waiting_slope", "sum by ({by}) (deriv(<req.waiting>[{win}]))"),
    Promql("req.waiting_growth", "sum by ({by}) (<req.waiting>) - sum by ({by}) (<req.waiting> offset {win})"),
    Promql(
        "req.stuck_samples",
        "max by ({by}) (count_over_time(<req.waiting>[{win}])) and ${req.running_max} == 0"
        " and sum by ({by}) (min_over_time(<req.waiting>[{win}])) > 0 and ${tok.generated} == 0 and ${tok.prompt} == 0",
        end="lo",
    ),
    Promql("req.finished", count("req.finished")),
    Promql("req.rejected", count("req.rejected")),
    Promql("req.limit_running", "sum by ({by}) (<req.limit_running>)"),
    # pool
    Promql("kv.pool_tokens", "sum by ({by}) (<kv.pool_tokens>)"),
    Promql("kv.usage_last", "max by ({by}) (<kv.usage>)"),
    Promql("kv.usage_max", "max by ({by}) (max_over_time(<kv.usage>[{win}]))"),
    Promql("kv.usage_mean", "max by ({by}) (avg_over_time(<kv.usage>[{win}]))"),
    Promql("kv.full_share", "max by ({by}) (avg_over_time((<kv.usage> >= bool 0.95)[{win}:15s]))", exact=False),
    Promql(
        "kv.frozen_samples",
        "min by ({by}) (count_over_time(<kv.usage>[{win}]) * (changes(<kv.usage>[{win}]) == bool 0))"
        " and (sum by ({by}) (min_over_time(<req.running>[{win}])) > 0)",
        end="lo",
    ),
    Promql("kv.context_last", "${kv.usage_last} * ${kv.pool_tokens} / (${req.running} > 0)", exact=False),
    Promql(
        "kv.context_growth",
        "(max by ({by}) (<kv.usage>) / (sum by ({by}) (<req.running>) > 0))"
        " / (max by ({by}) (<kv.usage> offset {win}) / (sum by ({by}) (<req.running> offset {win}) > 0) > 0)"
        " and count by ({by}) (<kv.usage>) == 1",
        exact=False,
    ),
    Promql("kv.pressure", either_full("(${kv.usage_max} >= bool 0.95)", "(${preempt.rate} > bool 0)")),
    # preemption
    Promql("preempt.rate", rate("preempt.total")),
    Promql("preempt.count", "${preempt.rate} * {seconds}"),
    Promql("preempt.per_finished", "${preempt.count} / (${req.finished} > 0)"),
    Promql("preempt.per_finished", "${preempt.count} == 0"),
    Promql(
        "preempt.per_request_min",
        "${preempt.count} / (${req.finished} + ${req.running_max} + ${req.waiting_max})",
    ),
    # how often one request is hit: from the observer where it is installed, else from the engine's own histogram
    *(
        entry
        for role in ("observer.preemptions", "preempt.per_request")
        for entry in (
            Promql(
                "preempt.hit_share", f"({rate(role + ':count')} - {bucket(role, 0)}) / ({rate(role + ':count')} > 0)"
            ),
            Promql(
                "preempt.hit_twice_share",
                f"({rate(role + ':count')} - {bucket(role, 1)}) / ({rate(role + ':count')} > 0)",
            ),
            Promql(
                "preempt.hit_3plus_of_hit",
                f"({rate(role + ':count')} - {bucket(role, 2)}) / ({rate(role + ':count')} - {bucket(role, 0)} > 0)",
            ),
        )
    ),
    # kvdoctor's observer, where it is installed
    Promql("preempt.repeats_30s", count("observer.repeats")),
    Promql("preempt.victims_near_done", f"{rate('observer.victims_near_done')} / ({rate('observer.victims')} > 0)"),
    Promql("preempt.victim_remaining_p50", quantile("observer.victim_remaining", 0.5)),
    Promql("recompute.tokens", count("observer.recomputed")),
    Promql("recompute.rate", "${recompute.tokens} / {seconds}"),
    Promql(
        "recompute.token_share",
        "${recompute.tokens} / (${recompute.tokens} + ${tok.prompt} + ${tok.generated} > 0)",
    ),
    Promql("recompute.prefill_share", "${recompute.tokens} / (${recompute.tokens} + ${tok.prompt} > 0)"),
    Promql("recompute.time_share", "clamp_max(${recompute.rate} / ${tok.prefill_speed}, 1)"),
    # tokens
    Promql("tok.prompt", count("tok.prompt")),
    Promql("tok.prompt_rate", rate("tok.prompt")),
    Promql("tok.generated", count("tok.generated")),
    Promql("tok.gen_rate", rate("tok.generated")),
    Promql(
        "tok.gen_drop",
        "(1 - sum by ({by}) (rate(<tok.generated>[2m]))"
        " / (max_over_time(sum by ({by}) (rate(<tok.generated>[2m]))[{win}:30s]) > 0)) and (${req.running} > 0)",
        exact=False,
    ),
    Promql("tok.prefill_speed", f"{rate('tok.prompt')} / ({rate('latency.prefill:sum')} > 0)"),
    # latency
    Promql("latency.ttft_p50", quantile("latency.ttft", 0.5)),
    Promql("latency.ttft_p99", quantile("latency.ttft", 0.99)),
    Promql("latency.e2e_p99", quantile("latency.e2e", 0.99)),
    Promql("latency.itl_p50", quantile("latency.itl", 0.5)),
    Promql("latency.itl_p99", quantile("latency.itl", 0.99)),
    Promql("latency.itl_p999", quantile("latency.itl", 0.999)),
    Promql("latency.itl_tail_ratio", "${latency.itl_p99} / ${latency.itl_p50}"),
    Promql(
        "latency.stalls",
        f"clamp_min({rate('latency.itl:count')} - {bucket('latency.itl', 1)}, 0) * {{seconds}}",
    ),
    Promql("latency.stalls_per_finished", "${latency.stalls} / (${req.finished} > 0)"),
    Promql("latency.queue_p50", quantile("latency.queue", 0.5)),
    Promql("latency.queue_p99", quantile("latency.queue", 0.99)),
    Promql("latency.queue_share", f"clamp_max(({mean('latency.queue')}) / ({mean('latency.ttft')}), 1)"),
    # lengths
    Promql("work.prompt_p50", quantile("work.prompt", 0.5)),
    Promql("work.prompt_p99", quantile("work.prompt", 0.99)),
    Promql("work.prompt_mean", mean("work.prompt")),
    Promql("work.output_p50", quantile("work.output", 0.5)),
    Promql("work.output_p99", quantile("work.output", 0.99)),
    Promql("work.output_mean", mean("work.output")),
    Promql("work.max_tokens_p50", quantile("work.max_tokens", 0.5)),
    Promql("work.sequence_mean", "${work.prompt_mean} + ${work.output_mean}"),
    Promql(
        "work.arrival_rate",
        "clamp_min((${req.finished} + sum by ({by}) (<req.running>) - sum by ({by}) (<req.running> offset {win})"
        " + ${req.waiting_growth}) / {seconds}, 0)",
    ),
    Promql(
        "work.concurrency_max",
        "max_over_time((sum by ({by}) (<req.running>) + sum by ({by}) (<req.waiting>))[{win}:15s])",
        exact=False,
    ),
    # prefix reuse
    Promql("prefix.lookup_tokens", count("prefix.queries")),
    Promql("prefix.hit_share", f"clamp_max({rate('prefix.hits')} / ({rate('prefix.queries')} > 0), 1)"),
    Promql(
        "prefix.external_hit_share",
        f"clamp_max({rate('prefix.external_hits')} / ({rate('prefix.external_queries')} > 0), 1)",
    ),
    Promql("prefix.evicted_tokens", count("prefix.evicted")),
    # second tier, disaggregation, host
    Promql("offload.store_failures", count("offload.failures")),
    Promql("offload.usage", "max by ({by}) (<offload.usage>)"),
    Promql("pd.expired", count("pd.expired")),
    Promql("host.rss_samples", "max by ({by}) (count_over_time(<run.rss>[{win}]))"),
    Promql("host.rss_slope", "max by ({by}) (deriv(<run.rss>[{win}]))"),
    Promql("host.rss_growth", "max by ({by}) (<run.rss>) / (max by ({by}) (<run.rss> offset {win}) > 0) - 1"),
    Promql(
        "host.rss_steps_up",
        "max by ({by}) ((changes(<run.rss>[{win}]) - resets(<run.rss>[{win}])) / (count_over_time(<run.rss>[{win}]) - 1 > 0))",
    ),
    Promql("host.cpu_busy", rate("run.cpu")),
    # engines of one server against each other
    Promql(
        "spread.running_ratio",
        f"(max by ({{by}}) ({_PER_ENGINE_LOAD}) / avg by ({{by}}) ({_PER_ENGINE_LOAD}))"
        f" and count by ({{by}}) ({_PER_ENGINE_LOAD}) > 1",
    ),
    Promql(
        "spread.usage_gap",
        f"(max by ({{by}}) ({_PER_ENGINE_USAGE}) - min by ({{by}}) ({_PER_ENGINE_USAGE}))"
        f" and count by ({{by}}) ({_PER_ENGINE_USAGE}) > 1",
    ),
    Promql(
        "spread.preempt_top",
        f"(max by ({{by}}) ({_PER_ENGINE_PREEMPTIONS}) / (sum by ({{by}}) ({_PER_ENGINE_PREEMPTIONS}) > 0))"
        f" and count by ({{by}}) ({_PER_ENGINE_PREEMPTIONS}) > 1",
    ),
)
"""Entries every engine takes over by :func:`extend`; one whose roles the engine does not export falls away by itself."""


GROUP_PROMQL: tuple[Promql, ...] = (
    Promql(
        "spread.running_ratio",
        "(max by (job) (${req.running_max}) / avg by (job) (${req.running_max}) > 0)"
        " and count by (job) (${req.running_max}) > 1",
    ),
    Promql(
        "spread.usage_gap",
        "(max by (job) (${kv.usage_max}) - min by (job) (${kv.usage_max})) and count by (job) (${kv.usage_max}) > 1",
    ),
    Promql(
        "spread.preempt_top",
        "(max by (job) (${preempt.rate}) / (sum by (job) (${preempt.rate}) > 0))"
        " and count by (job) (${preempt.rate}) > 1",
    ),
)
"""Facts of a group of replicas (one job) from the facts of its servers; the same for every engine."""
