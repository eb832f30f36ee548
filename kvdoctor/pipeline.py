"""The one path: snapshot -> readings -> facts -> (what-if) -> verdicts -> plan -> report. Pure: all I/O is done before."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from kvdoctor.advise import Setting, Simulated, SimulatedLever, commands, plan, with_actions
from kvdoctor.derive import Derived, derive
from kvdoctor.derive.view import View
from kvdoctor.derive.vitals import series, vitals
from kvdoctor.engines import recognise
from kvdoctor.facts import FACTS, FactSet, Unknown
from kvdoctor.findings import SEVERITIES, Advice, Plan, Report, SourceNote, TargetReport, Turn, Verdict, Window
from kvdoctor.frozen import frozen
from kvdoctor.normalise import Reader, glance, normalise
from kvdoctor.readings import Intake, LogRun, Target
from kvdoctor.rulebook.config import Config, apply_config
from kvdoctor.rulebook.judge import choose, gravest, judge, settle, under_one_name
from kvdoctor.rulebook.rule import Rule
from kvdoctor.snapshot import Member, Snapshot

if TYPE_CHECKING:
    from kvdoctor.readings import Scrape
    from kvdoctor.whatif import Inputs, Interval, Lengths, WhatIfResult


@frozen
class Options:
    """What a run may vary beside rules and configuration. ``engine`` overrules detection; ``what_if`` is none, auto or full.

    In a replay a request is good when its first token comes within ``ttft_limit_s`` and no gap between its tokens exceeds
    ``stall_limit_s`` (seconds).
    """

    engine: str | None = None
    what_if: Literal["none", "auto", "full"] = "none"
    config: Config = field(default_factory=Config)
    ttft_limit_s: float = 10.0
    stall_limit_s: float = 2.0


def diagnose(snapshot: Snapshot, rules: Sequence[Rule], options: Options | None = None) -> Report:
    """The report on a snapshot. The same snapshot, rules and options give the same report."""
    options = options or Options()
    return diagnose_intake(normalise(snapshot, engine=options.engine), rules, options)


class Sliding:
    """:func:`diagnose` on a window that slides: what stays in the window is read once only.

    Law: ``report(s)`` is ``diagnose(s)`` for the same rules and options, whatever was asked before.
    """

    def __init__(self, rules: Sequence[Rule], options: Options | None = None) -> None:
        self.rules = rules
        self.options = options or Options()
        self._reader = Reader(self.options.engine)
        self._runs: tuple[LogRun, ...] = ()
        self._pages: tuple[tuple[str, float | None], ...] = ()

    def report(self, snapshot: Snapshot) -> Report:
        """The report on the window."""
        intake = self._reader.intake(snapshot)
        self._runs = tuple(run for target in intake.targets for run in target.logs)
        self._pages = tuple((s.origin, s.time) for target in intake.targets for s in target.scrapes)
        return diagnose_intake(intake, self.rules, self.options)

    @property
    def pages(self) -> tuple[tuple[str, float | None], ...]:
        """Origin and time of the metrics pages of the last window, server run by server run, each in its order."""
        return self._pages

    def runs(self, origin: str) -> tuple[LogRun, ...]:
        """Runs of servers in the log ``origin`` of the last window, in the order of their lines."""
        return tuple(sorted((r for r in self._runs if r.origin == origin), key=lambda r: r.first_line))

    def kind_of(self, member: Member) -> str:
        """What a member holds, by what it says of itself, else by its first bytes."""
        return self._reader.kind_of(member)

    def engine_of(self, page: Member) -> str | None:
        """Name of the engine whose metrics page ``page`` of the last window is; None for anything else."""
        return self._reader.engine_of(page)

    def glance(self, page: Member, engine: str) -> Scrape | None:
        """The few gauges and totals a display shows, from a page that need not be in the window; None when it is no page."""
        return glance(page, engine)


def diagnose_intake(intake: Intake, rules: Sequence[Rule], options: Options) -> Report:
    """The report on readings that are normalised already: :func:`diagnose` is normalise and this."""
    if not intake.targets:
        intake.targets.append(Target("no server", None, None, None, {}))
    derived = derive(intake)
    active = apply_config(rules, options.config)
    replays = {view.target.name: _replay(view, options) for view in derived.views}
    targets = [_target(view, active, options, intake, replays[view.target.name]) for view in derived.views]
    reports = list(targets)
    group = _group(derived, targets, active, options)
    main = _main(targets, group)
    if group is not None:
        reports.append(group)
    view = _view_of(main, derived)
    recommended = _plan(main, view, active, replays.get(main.name))
    return Report(main, tuple(reports), recommended, tuple(intake.warnings), intake.usable)


def _target(
    view: View, rules: Sequence[Rule], options: Options, intake: Intake, replayed: WhatIfResult | None
) -> TargetReport:
    verdicts = settle(judge(rules, view.facts, scope="target"), rules, options.config)
    verdicts = under_one_name(_with_actions(verdicts, rules, _setting(view, view.facts, replayed)), rules)
    return _report(view.target.name, view, verdicts, view.facts, intake)


def _advice(rule: Rule, facts: FactSet) -> Advice:
    """What the rule recommends here: its lever targets evaluated over the facts."""
    turns = []
    for lever in rule.body.levers:
        to = lever.quantity.evaluate(facts.values, rule.thresholds) if lever.quantity is not None else lever.to
        unit = lever.quantity.unit if lever.quantity is not None else ""
        turns.append(Turn(lever.lever, lever.direction, to, unit, lever.why))
    checks = tuple(f"after {check.after}: {_with_numbers(check.expect, rule)}" for check in rule.body.checks)
    return Advice(tuple(turns), rule.body.confirm, checks, rule.body.policy)


def _with_numbers(expression: str, rule: Rule) -> str:
    """A check as a person can test it: thresholds written as numbers."""
    for name in sorted(rule.thresholds, key=len, reverse=True):
        expression = expression.replace(f"thresholds.{name}", f"{rule.thresholds[name].value:g}")
    return expression


def _setting(view: View, facts: FactSet, replayed: WhatIfResult | None = None) -> Setting:
    target = view.target
    return Setting(
        target.engine,
        target.newest_version(),
        target.args,
        facts,
        _simulated(replayed),
        target.beside(recognise.side()),
    )


def _simulated(replayed: WhatIfResult | None) -> Simulated | None:
    """What the replays say, in the words of the plan; None where there are none to rely on."""
    if replayed is None or not replayed.rows:
        return None
    return Simulated(
        rows=replayed.rows,
        levers={
            one.lever: SimulatedLever(one.value, one.lo, one.hi, one.present, one.effect, one.next_limit)
            for one in replayed.settings
        },
        idle=frozenset(replayed.idle),
        watermark=replayed.watermark,
        basis="; ".join((replayed.say, "assumed: " + ", ".join(replayed.assumed))),
    )


def _with_actions(verdicts: Sequence[Verdict], rules: Sequence[Rule], setting: Setting) -> list[Verdict]:
    """Verdicts that fired get their texts, levers and commands; suspected ones their texts and commands."""
    by_name = {rule.name: rule for rule in rules}
    out: list[Verdict] = []
    for verdict in verdicts:
        rule = by_name.get(verdict.rule)
        if rule is None or verdict.state not in ("fires", "suspected"):
            out.append(verdict)
            continue
        verdict = replace(verdict, say=verdict.say or rule.body.say, cause=rule.body.cause, not_this=rule.body.not_this)
        advice = _advice(rule, setting.facts)
        if verdict.state == "fires":
            out.append(with_actions(verdict, advice, setting))
        else:
            out.append(replace(verdict, confirm=commands(advice.confirm, setting)))
    return out


def _plan(main: TargetReport, view: View, rules: Sequence[Rule], replayed: WhatIfResult | None) -> Plan:
    names = {v.rule for v in main.findings if v.muted_by is None}
    policies = {rule.name: rule.body.policy for rule in rules if rule.name in names and rule.body.policy}
    ordered = sorted(main.findings, key=lambda v: (v.rule != main.verdict.rule, v.stage, v.id))
    facts = FactSet(dict(main.facts))
    why = "" if replayed is None else replayed.say
    return plan(ordered, policies, _setting(view, facts, replayed), why_no_replay=why)


# ---------------------------------------------------------------------------------------------------------------- what-if


NOT_REPLAYED = Unknown("no replay was run", "run: kvdoctor diagnose --what-if auto")


def _replay(view: View, options: Options) -> WhatIfResult | None:
    """Replay the target's load and put ``whatif.*`` among its facts; None when the mode forbids it."""
    if options.what_if == "none":
        # the simulator is not even loaded
        for name in FACTS:
            if name.startswith("whatif."):
                view.facts.set(name, NOT_REPLAYED)
        return None
    from kvdoctor.sim import Goal
    from kvdoctor.whatif import replay

    result = replay(_observed(view), mode=options.what_if, goal=Goal(options.ttft_limit_s, options.stall_limit_s))
    for name, fact in result.facts.items():
        view.facts.set(name, fact)
    return result


def observed(snapshot: Snapshot, engine: str | None = None) -> list[tuple[str, Inputs]]:
    """(name, what a replay is made from) of every server of a snapshot, for ``simulate``."""
    intake = normalise(snapshot, engine=engine)
    return [(view.target.name, _observed(view)) for view in derive(intake).views]


def _observed(view: View) -> Inputs:
    """The plain numbers a replay is made from."""
    from kvdoctor.whatif import Inputs, Observed

    target, facts = view.target, view.facts
    engines = max(1, len(view.rank_names))
    pools = {rank.number("kv.pool_tokens") for rank in view.ranks.values()} - {None}
    blocks = {rank.number("kv.block_tokens") for rank in view.ranks.values()} - {None}
    enabled = facts.known("prefix.enabled")
    observed = Observed(
        intervals=_intervals(view),
        prompt=_lengths(view, "work.prompt"),
        output=_lengths(view, "work.output"),
        max_tokens=_lengths(view, "work.max_tokens"),
        token_gap=_lengths(view, "latency.itl"),
        prefill_tokens_per_s=facts.number("tok.prefill_speed"),
        # engines with unequal pools are not replayed: one pool size would be made up for some of them
        pool_tokens=_whole(pools.pop()) if len(pools) == 1 else None,
        block_tokens=_whole(blocks.pop()) if len(blocks) == 1 else None,
        engines=engines,
        bytes_per_token=_whole(facts.number("kv.bytes_per_token")),
        max_running=_whole(facts.number("req.limit_running")),
        batch_tokens=_whole(_figure(target.setting("batch_tokens"))),
        max_model_len=_whole(_figure(target.setting("max_model_len"))),
        prefix_caching=enabled.hi if enabled is not None and isinstance(enabled.hi, bool) else None,
        reused_share=facts.number("prefix.hit_share"),
    )
    return Inputs(
        observed,
        target.engine,
        target.version,
        target.args,
        facts["kv.pressure"],
        facts["preempt.count"],
        facts["req.waiting_max"],
    )


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) or value < 1 else round(value)


def _figure(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _lengths(view: View, role: str) -> Lengths | None:
    """The histogram of the window as plain buckets; None without one or with nothing in it."""
    from kvdoctor.whatif import Lengths

    gathered = view.histogram(role)
    if isinstance(gathered, Unknown) or gathered[1] == "L":
        return None
    histogram = gathered[0]
    if not histogram.buckets or histogram.buckets[-1][1] <= 0:
        return None
    return Lengths(histogram.buckets, histogram.sum)


def _intervals(view: View) -> tuple[Interval, ...]:
    """What happened between consecutive scrapes; empty where one of the counts is missing in a scrape."""
    from kvdoctor.whatif import Interval

    rows: list[tuple[float | None, float, float, float, float]] = []
    usages: list[float | None] = []
    for scrape in view.target.scrapes:
        running, waiting = _sum(scrape, "req.running"), _sum(scrape, "req.waiting")
        finished, preempted = _sum(scrape, "req.finished"), _sum(scrape, "preempt.total")
        if running is None or waiting is None:
            return ()
        # a labelled counter of finished requests appears with the first that ends
        rows.append((scrape.time, finished if finished is not None else math.nan, preempted if preempted is not None else math.nan, running, waiting))  # fmt: skip
        held = [reading.value for reading in scrape.values.get("kv.usage", {}).values()]
        usages.append(math.fsum(held) / len(held) if held else None)
    out: list[Interval] = []
    for at, ((t0, f0, p0, r0, w0), (t1, f1, p1, r1, w1)) in enumerate(zip(rows, rows[1:], strict=False)):
        done, hit = _grown(f0, f1), _grown(p0, p1)
        if done is None or hit is None:
            return ()
        out.append(Interval(None if t0 is None or t1 is None else t1 - t0, done, hit, r0, w0, r1, w1, usages[at]))
    return tuple(out)


def _grown(before: float, after: float) -> float | None:
    """Growth of a counter; one that is absent at first and there later began at nothing. None: never told, or reset."""
    if math.isnan(after):
        return None
    if math.isnan(before):
        return after
    return after - before if after >= before else None


def _sum(scrape: Scrape, role: str) -> float | None:
    found = [reading.value for reading in scrape.values.get(role, {}).values()]
    return math.fsum(found) if found else None


def _report(name: str, view: View, verdicts: list[Verdict], facts: FactSet, intake: Intake) -> TargetReport:
    target = view.target
    chosen = choose(verdicts, facts)
    owned = {s for t in intake.targets for s in t.sources}
    # what belongs to no server stands beside each of them: the host's readings, and what could not be read or understood
    host_notes = [
        s for s in intake.sources if s.kind in _HOST_KINDS or (s not in owned and not s.status.startswith("ok"))
    ]
    sources: list[SourceNote] = list(target.sources)
    sources.extend(s for s in host_notes if s not in sources)
    return TargetReport(
        name=name,
        engine=target.engine.name if target.engine else None,
        engine_version=target.version,
        model=target.model,
        gpus=tuple(view.devices),
        sources=tuple(sources),
        window=view.window,
        verdict=chosen,
        findings=tuple(v for v in verdicts if v.state == "fires"),
        undecided=tuple(v for v in verdicts if v.state in ("suspected", "blind")),
        silent=tuple(v for v in verdicts if v.state in ("clear", "not_applicable")),
        facts=dict(facts.values),
        ranks={r: dict(f.values) for r, f in {**view.ranks, **view.devices}.items()},
        vitals=vitals(view),
        memory=tuple(view.memory),
        timeline=tuple(sorted(view.timeline, key=lambda e: (e.t is None, e.t if e.t is not None else 0.0))),
        series=series(view),
    )


_HOST_KINDS = frozenset(
    {"gpu", "kernel log", "processes", "kubectl", "cgroup", "meminfo", "benchmark", "torch snapshot", "probe result"}
)


def _group(
    derived: Derived, targets: Sequence[TargetReport], rules: Sequence[Rule], options: Options
) -> TargetReport | None:
    """The group's own report, only when a group rule fires."""
    if derived.group is None:
        return None
    verdicts = settle(judge(rules, derived.group, scope="group"), rules, options.config)
    fired = [v for v in verdicts if v.state == "fires"]
    if not fired:
        return None
    view = derived.views[-1]
    verdicts = under_one_name(_with_actions(verdicts, rules, _setting(view, derived.group)), rules)
    fired = [v for v in verdicts if v.state == "fires"]
    starts = [t.window.start for t in targets if t.window.start is not None]
    ends = [t.window.end for t in targets if t.window.end is not None]
    window = (
        Window(min(starts), max(ends), max(ends) - min(starts), sum(t.window.scrapes for t in targets))
        if starts and ends
        else Window(None, None, None, 0)
    )
    engines = {t.engine for t in targets}
    sources = tuple(dict.fromkeys(s for t in targets for s in t.sources))
    return TargetReport(
        name="group",
        engine=engines.pop() if len(engines) == 1 else None,
        engine_version=None,
        model=targets[0].model if targets else None,
        gpus=(),
        sources=sources,
        window=window,
        verdict=gravest([v for v in fired if v.muted_by is None] or fired),
        findings=tuple(fired),
        undecided=tuple(v for v in verdicts if v.state in ("suspected", "blind")),
        silent=tuple(v for v in verdicts if v.state in ("clear", "not_applicable")),
        facts=dict(derived.group.values),
    )


def _main(targets: Sequence[TargetReport], group: TargetReport | None) -> TargetReport:
    """The group's when a group rule fires, unless a target has a stage 1 finding; else the gravest target's."""
    hard = [t for t in targets if any(v.stage == 1 and v.muted_by is None for v in t.findings)]
    if group is not None and not hard:
        return group
    pool = hard or list(targets)
    best = gravest([t.verdict for t in pool])
    return next(t for t in pool if t.verdict is best)


def _view_of(report: TargetReport, derived: Derived) -> View:
    return next((v for v in derived.views if v.target.name == report.name), derived.views[-1])


def exit_code(
    report: Report, fail_on: str, *, check: bool = False, allow_unknown: bool = False, accepted: Collection[str] = ()
) -> int:
    """0, 1 a finding at or above ``fail_on``, 3 could not tell (contract: 1 beats 3).

    In ``check``, a rule at or above the level that is only suspected, while no rule of its family fired, is 3 too. ``accepted``
    are names of rules whose findings do not count.
    """
    levels = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    fired = [v for t in report.targets for v in t.findings if v.muted_by is None and v.rule not in accepted]
    if any(v.severity in levels for v in fired):
        return 1
    if not report.usable or report.main.verdict.rule == "undetermined":
        return 3
    if check and not allow_unknown:
        families = {v.misdiagnosis for v in fired if v.misdiagnosis is not None}
        doubts = [
            v for t in report.targets for v in t.undecided
            if v.state == "suspected" and v.muted_by is None and v.severity in levels and v.id not in ("KV500", "KV913")
            and v.misdiagnosis not in families
        ]  # fmt: skip
        if doubts:
            return 3
    return 0
