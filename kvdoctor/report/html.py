"""The report as one HTML file: no script, nothing loaded, for light and dark screens and for paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvdoctor.facts import SPANS, Fact, Known
from kvdoctor.findings import Action, DeviceMemory, Evidence, Report, TargetReport, TimelineEntry, Verdict, WhatIf
from kvdoctor.report.chart import Event, Line, Mark, chart, finite, share_bar, stack
from kvdoctor.report.doubts import gap_words, held, listed, needs, undecided
from kvdoctor.report.first import not_this, summary, target_parts, window_words
from kvdoctor.report.gaps import source_lines
from kvdoctor.report.marks import certainty, rank_word, rule_words
from kvdoctor.report.markup import Markup, el, join, table
from kvdoctor.report.style import sheet
from kvdoctor.report.todo import CONCERNS, already, turn, watermarks, without_flag
from kvdoctor.report.words import (
    MISDIAGNOSES,
    clock,
    comparison,
    day,
    ended,
    flow,
    has_year,
    how_word,
    label,
    of_fact,
    place,
    sentence,
    size,
    span,
    spelled,
    unit_of,
    value,
)

MOST_EVENTS = 200
MOST_DRAWN_EVENTS = 12
MOST_DEVICES = 16
MOST_RANKS = 12
MOST_TARGETS = 200
MOST_SOURCES = 100
_COLOURS = 6


def render(report: Report, tool_version: str) -> str:
    """The whole file."""
    target = report.main
    verdict = target.verdict
    sections = [section for section in _sections(report) if section[2]]
    head = [
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # nothing may run or be fetched, whatever a log line holds
        el("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{rank_word(verdict)}: {flow(verdict.title)} - {flow(target.name)}"),
        el("style", Markup(sheet())),
    ]
    contents = el("nav", el("ul", *(el("li", el("a", title, href=f"#{key}")) for key, title, _ in sections)), aria_label="Contents")  # fmt: skip
    parts = [
        _header(report),
        el("main", contents, *(el("section", el("h2", title), body, id=key) for key, title, body in sections)),
        el("footer", el("p", f"kvdoctor {tool_version}. Times are UTC. What is unknown is said to be; it is never zero.", cls="quiet")),
    ]  # fmt: skip
    page = el("html", el("head", *head), el("body", *parts), lang="en")
    return f"<!doctype html>\n{page}\n"


def _sections(report: Report) -> list[tuple[str, str, Markup]]:
    """(anchor, title, content); without content a section is left out."""
    target = report.main
    return [
        ("verdict", "Verdict", _verdict(report)),
        ("targets", "Targets", _targets(report)),
        ("time", "Time lines", _charts(report)),
        ("evidence", "Evidence", _evidence(target.verdict)),
        ("vitals", "Vitals", _vitals(target)),
        ("not", "What it is not", el("p", is_not) if (is_not := not_this(target)) else Markup()),
        ("plan", "What to turn", _plan(report)),
        ("whatif", "What if", _what_if(report.plan.what_if)),
        ("confirm", "Confirm it yourself", _commands(target.verdict)),
        ("others", "Also found", _others(target)),
        ("memory", "Device memory", _memory(target.memory)),
        ("timeline", "Timeline", _timeline(target.timeline)),
        ("undecided", "Could not be decided", _undecided(target)),
        ("sources", "Sources", _sources(report)),
        ("facts", "Appendix: facts", _facts(target)),
        ("ranks", "Appendix: engines, ranks and devices", _ranks(target)),
        ("silent", "Appendix: looked for and not found", _silent(target)),
    ]


def _header(report: Report) -> Markup:
    target, verdict = report.main, report.main.verdict
    key = verdict.rule if verdict.rule in ("healthy", "undetermined") else verdict.severity
    words = rule_words(verdict)
    if verdict.misdiagnosis is not None:
        words += f"; misdiagnosis {verdict.misdiagnosis}: {MISDIAGNOSES[verdict.misdiagnosis]}"
    return el(
        "header",
        el("span", rank_word(verdict), cls=f"badge {key}"),
        el("h1", flow(verdict.title)),
        el("p", words, cls="quiet") if words else "",
        el("p", el("bdi", "; ".join([*target_parts(target), window_words(target.window)]))),
    )


def _verdict(report: Report) -> Markup:
    rows = []
    for name, said in summary(report):
        rows += [el("dt", name), el("dd", said, cls="first" if name == "First" else False)]
    warnings = [el("p", el("strong", "Warning: "), flow(warning)) for warning in report.warnings]
    return join([el("dl", *rows, cls="verdict"), *warnings])


def _targets(report: Report) -> Markup:
    if len(report.targets) < 2:
        return Markup()
    rows = []
    for target in report.targets[:MOST_TARGETS]:
        here = " (the one described here)" if target is report.main else ""
        words = rule_words(target.verdict)
        rows.append([target.name + here, rank_word(target.verdict), flow(target.verdict.title) + (f" ({words})" if words else "")])  # fmt: skip
    out = table(("target", "severity", "verdict"), rows, caption="Every server run that was judged")
    return join([out, _more(len(report.targets) - len(rows), "target")])


def _more(count: int, noun: str) -> Markup:
    return el("p", f"and {count} more {noun}{'s' if count != 1 else ''}", cls="quiet") if count > 0 else Markup()


# ---------------------------------------------------------------------------------------------- seen


def _charts(report: Report) -> Markup:
    target = report.main
    series = {name: finite(points) for name, points in target.series.items()}
    times = [t for points in series.values() for t, _ in points]
    if not times:
        return Markup()
    reach = (min(times), max(times))
    events = [
        Event(entry.t, number, flow(entry.what))
        for number, entry in enumerate(target.timeline, 1)
        if entry.t is not None and reach[0] <= entry.t <= reach[1]
    ][:MOST_DRAWN_EVENTS]
    out = [el("p", _days(reach) + (" Numbers above a chart are those of the timeline below." if events else ""), cls="quiet")]  # fmt: skip

    def draw(
        title: str, names: Mapping[str, tuple[str, str]], unit: str, marks: Sequence[Mark] = (), bars: bool = False
    ) -> None:
        lines = [Line(name, series[key], cls, bars) for key, (name, cls) in names.items() if series.get(key)]
        if not lines:
            return
        described = "; ".join(_described(line, unit) for line in lines)
        limits = ", ".join(f"{mark.name}" for mark in marks)
        drawn = chart(title, lines, reach, lambda v: value(v, unit), marks=marks, events=events,
                      top=1.0 if unit == "1" else None, described=described)  # fmt: skip
        caption = f"{described}." + (f" Lines: {limits}." if limits else "")
        out.append(el("figure", el("h3", title), el("div", drawn, cls="draw"), el("figcaption", caption)))

    draw("KV pool in use", {"kv.usage": ("", "s1")}, "1", _marks(report))
    draw("Requests", {"req.running": ("running", "s1"), "req.waiting": ("waiting", "s2")}, "count")
    draw("Preemptions since the sample before", {"preemptions": ("", "s3")}, "count", bars=True)
    draw("Tokens generated per second", {"tok.gen_rate": ("", "s4")}, "count")
    draw("Time to first token, mean since the sample before", {"latency.ttft": ("", "s1")}, "s")
    draw("Time between tokens, mean since the sample before", {"latency.itl": ("", "s2")}, "s")
    return join(out)


def _days(reach: tuple[float, float]) -> str:
    first, last = (day(t) for t in reach)
    days = first if first == last else f"{first} to {last}"
    return f"{days}, {'UTC' if has_year(reach[0]) else 'clock of the log, which prints no year'}."


def _described(line: Line, unit: str) -> str:
    values = [v for _, v in line.points]
    told = f"lowest {value(min(values), unit)}, highest {value(max(values), unit)}, last {value(values[-1], unit)}"
    return f"{line.name}: {told}" if line.name else told


def _marks(report: Report) -> list[Mark]:
    plan = report.plan
    out = []
    if plan.alert_high is not None:
        out.append(Mark(f"alert {value(plan.alert_high.value, '1')}", plan.alert_high.value))
    if plan.alert_low is not None:
        out.append(Mark(f"clear {value(plan.alert_low.value, '1')}", plan.alert_low.value))
    if plan.admission_free is not None:
        level = 1 - plan.admission_free.value
        out.append(Mark(f"admit below {value(level, '1')}", level, "mark2"))
    return out


def _comparisons(items: Iterable[Evidence]) -> list[list[str]]:
    rows = []
    for item in items:
        left, right = comparison(item)
        answer = {True: "holds", False: "does not hold", None: "not known"}[item.outcome]
        said = flow(item.reason) if item.outcome is None and item.reason else flow(item.source)
        # nothing was measured where nothing is known
        how = how_word(item.how) if item.hi is not None else ""
        rows.append([label(item.fact), el("span", left, cls="value"), el("span", right, cls="keep"), answer, how, said])  # fmt: skip
    return rows


def _evidence(verdict: Verdict) -> Markup:
    first = held(verdict)
    rest = [item for item in verdict.evidence if not item.outcome]
    head = ("fact", "seen", "limit", "answer", "how", "source")
    return table(
        head,
        _comparisons([*first, *rest]),
        caption="Every comparison the verdict rests on, and those that did not hold",
        right=frozenset({1}),
    )


def _vitals(target: TargetReport) -> Markup:
    rows = []
    for vital in target.vitals:
        fact = vital.value
        limit = value(vital.threshold, vital.unit) if vital.threshold is not None else ""
        if isinstance(fact, Known):
            # without a limit there is nothing to be ok against
            status = vital.status if vital.threshold is not None else "-"
            notes: list[str] = [str(fact.how)] if fact.how in ("estimated", "assumed") else []
            notes += [SPANS["L"]] if fact.span == "L" else []
            seen = el("span", of_fact(fact, vital.unit), cls="value")
        else:
            status, seen = "unknown", Markup()
            notes = [": ".join(filter(None, (flow(fact.reason), flow(fact.hint))))]
        rows.append([vital.name, el("span", status, cls=status if status != "-" else False), seen, limit, "; ".join(notes)])  # fmt: skip
    head = ("vital", "status", "value", "limit", "note")
    return table(head, rows, caption="What to watch day by day", right=frozenset({2, 3}))


def _memory(devices: Sequence[DeviceMemory]) -> Markup:
    out = []
    for device in devices[:MOST_DEVICES]:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        parts = []
        for number, part in enumerate(device.parts):
            free = part.name == "free"
            cls = "free" if free else f"m{number % _COLOURS}"
            parts.append(("." if free else next(letters, "z"), part.name, part.bytes, how_word(part.how), part.source, cls))  # fmt: skip
        if device.unexplained > 0:
            parts.append(("?", "unexplained", device.unexplained, "", "", "gap"))
        whole = max(device.total, sum(max(part[2], 0.0) for part in parts))
        rows = [
            [join([el("span", mark, cls=f"swatch {cls}"), name]), size(amount), _share(amount, device.total), how, flow(source)]
            for mark, name, amount, how, source, cls in parts
        ]  # fmt: skip
        out.append(el("h3", f"{flow(device.device)}, {size(device.total)}"))
        out.append(stack([(mark, amount, cls) for mark, _, amount, _, _, cls in parts], whole))
        head = ("part", "size", "share", "how", "source")
        caption = f"Memory of {flow(device.device)}, part by part"
        out.append(table(head, rows, caption=caption, right=frozenset({1, 2})))
        if device.unexplained < 0:
            over = size(-device.unexplained)
            out.append(el("p", f"The parts add up to {over} more than the device has: some bytes are counted twice."))
        if device.note:
            out.append(el("p", flow(device.note), cls="quiet"))
    return join([*out, _more(len(devices) - MOST_DEVICES, "device")])


def _share(amount: float, total: float) -> str:
    if total <= 0:
        return ""
    share = amount / total
    return "< 0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def _timeline(entries: Sequence[TimelineEntry]) -> Markup:
    rows = []
    for number, entry in enumerate(entries[:MOST_EVENTS], 1):
        when = "no clock" if entry.t is None else f"{day(entry.t)} {clock(entry.t)}"
        rows.append([f"{number}", when, flow(entry.what), flow(place(entry.source))])
    out = table(("number", "when", "what", "source"), rows, caption="In the order it happened")
    return join([out, _more(len(entries) - len(rows), "later event")])


# ---------------------------------------------------------------------------------------------- to do


def _plan(report: Report) -> Markup:
    levers = sorted(report.plan.levers, key=already)
    owners = {id(action): verdict for verdict in report.main.findings for action in verdict.actions}
    out = []
    if len(levers) > 1:
        out.append(el("p", "In this order, one at a time."))
    if levers:
        out.append(el("ol", *(_lever(action, report.main.engine is not None) for action in levers), cls="levers"))
    checks: dict[str, None] = {}
    for action in levers:
        owner = owners.get(id(action), report.main.verdict)
        checks |= {spelled(check, owner): None for check in action.verify.split("; ") if check}
    if checks:
        out += [el("h3", "How to see that it worked"), el("ul", *(el("li", check) for check in checks))]
    marks = watermarks(report, False) if levers or report.plan.what_if else []
    for title, said in marks:
        out += [el("h3", title), el("p", sentence(said))]
    if marks and report.plan.basis:
        out.append(el("p", f"Rests on: {ended(flow(report.plan.basis))}", cls="quiet"))
    if report.plan.policy:
        lines = [el("code", f'"{key}" = {_literal(wanted)}') for key, wanted in report.plan.policy.items()]
        out += [el("h3", "As a policy file"), el("pre", Markup("\n".join(lines)))]
    return join(out)


def _lever(action: Action, engine_known: bool) -> Markup:
    what = ""
    if action.flag is None and action.instead and engine_known:
        what = without_flag(action)
    rest = []
    if not already(action):
        said = (
            ("", "" if action.flag is None else action.effect),
            ("Why: ", action.why),
            ("Cost: ", action.cost),
            ("Next limit: ", action.next_limit),
        )
        rest = [el("div", name, ended(flow(words)) if name else sentence(words)) for name, words in said if words]
    return el("li", what, el("strong", turn(action)), *rest)


def _literal(wanted: object) -> str:
    return (
        str(wanted).lower() if isinstance(wanted, bool) else f'"{wanted}"' if isinstance(wanted, str) else f"{wanted}"
    )


def _what_if(runs: Sequence[WhatIf] | None) -> Markup:
    rows = []
    for run in runs or ():
        spread = span(run.lo, run.hi, "1") if run.lo != run.hi else ""
        rows.append([
            run.name,
            share_bar(run.lo, run.goodput, run.hi),
            el("span", value(run.goodput, "1"), cls="value"),
            spread,
            value(run.ttft_p99_s, "s"),
            value(run.stall_p99_s, "s"),
            value(run.recompute_time_share, "1"),
        ])  # fmt: skip
    head = ("alternative", "0 to 100 %", "goodput", "over seeds", "TTFT P99", "stall P99", "time recomputing")
    caption = "The same load, replayed; goodput is the share of requests that came in time"
    return table(head, rows, caption=caption, right=frozenset({2, 3, 4, 5, 6}))


def _commands(verdict: Verdict) -> Markup:
    return join(el("pre", el("code", command)) for command in verdict.confirm)


# ---------------------------------------------------------------------------------------------- the rest


def _named(verdict: Verdict) -> Markup:
    sure = certainty(verdict)
    words = f" ({verdict.id}, {verdict.severity}{', ' + sure if sure else ''}) {flow(verdict.title)}"
    return join([el("strong", verdict.rule), words])


def _others(target: TargetReport) -> Markup:
    rows = []
    for verdict in target.findings:
        if verdict.rule == target.verdict.rule:
            continue
        below: list[str] = []
        if verdict.muted_by is not None:
            below.append(f"explained by {verdict.muted_by}" + (f": {flow(verdict.mute_reason)}" if verdict.mute_reason else ""))  # fmt: skip
        elif verdict.severity in CONCERNS and verdict.say and verdict.advice_muted_by is None:
            below.append(f"Do: {flow(verdict.say)}")
        elif verdict.severity not in CONCERNS:
            below.append("Good to know.")
        rows.append(el("li", _named(verdict), *(el("div", words, cls="quiet") for words in below)))
    return el("ul", *rows) if rows else Markup()


def _undecided(target: TargetReport) -> Markup:
    suspected, blind, aside = undecided(target)
    out: list[Markup] = []
    rows = []
    for verdict in suspected:
        holds = [f"{label(item.fact)} {' '.join(comparison(item))}".rstrip() for item in held(verdict)]
        gaps = [gap_words(gap.fact, gap.reason) for gap in verdict.missing]
        ways = [sentence(need.hint) for need in needs([verdict])]
        said = (("Holds: ", listed(holds, 99)), ("Open: ", listed(gaps, 99)), ("To decide it: ", " ".join(ways)))
        rows.append(el("li", _named(verdict), *(el("div", name, words) for name, words in said if words)))
    if rows:
        out.append(el("ul", *rows))
    out += [
        el("p", f"Set aside, {muter} explains it: {listed((v.rule for v in rest), 99)}.") for muter, rest in aside.items()
    ]  # fmt: skip
    if blind:
        out.append(el("p", f"Too little seen for: {listed((v.rule for v in blind), 99)}."))
        ways = [
            el("li", f"{sentence(need.hint)} (decides {need.rules} rule{'s' if need.rules != 1 else ''})") for need in needs(blind)
        ]  # fmt: skip
        out.append(el("ul", *ways) if ways else Markup())
    return join(out)


def _sources(report: Report) -> Markup:
    lines = source_lines(report.main.sources, False)
    rows = [el("li", line if whole else join([el("strong", "Not understood: "), line])) for whole, line in lines[:MOST_SOURCES]]  # fmt: skip
    return join([el("ul", *rows) if rows else Markup(), _more(len(lines) - len(rows), "source")])


def _facts(target: TargetReport) -> Markup:
    rows = []
    unknown: dict[tuple[str, str], list[str]] = {}
    for name, fact in sorted(target.facts.items()):
        if isinstance(fact, Known):
            called = label(name)
            shown = el("code", name) if called == name else join([called, el("div", el("code", name), cls="quiet")])
            seen = el("span", of_fact(fact, unit_of(name)), cls="value")
            rows.append([shown, seen, f"{how_word(fact.how)}, {SPANS[fact.span]}", flow(fact.source)])
        else:
            unknown.setdefault((flow(fact.reason), flow(fact.hint)), []).append(name)
    head = ("fact", "value", "how", "source")
    known = table(head, rows, caption="Facts that are known", right=frozenset({1}))
    gaps = [[", ".join(names), reason, hint] for (reason, hint), names in unknown.items()]
    return join([known, table(("not known", "why", "how to get it"), gaps, caption="Facts that are not known")])


def _ranks(target: TargetReport) -> Markup:
    """Facts whose parts differ from one another: what a sum or a maximum hides."""
    names = [name for name in target.ranks if any(isinstance(fact, Known) for fact in target.ranks[name].values())]
    if len(names) < 2:
        return Markup()
    shown = names[:MOST_RANKS]
    facts = sorted({fact for name in shown for fact, seen in target.ranks[name].items() if isinstance(seen, Known)})
    rows = [[label(fact), *(_cell(target.ranks[name].get(fact), fact) for name in shown)] for fact in facts]
    out = table(("fact", *map(flow, shown)), rows, caption="Each part by itself")
    return join([out, _more(len(names) - len(shown), "part")])


def _cell(fact: Fact | None, name: str) -> str:
    return "" if fact is None else of_fact(fact, unit_of(name))


def _silent(target: TargetReport) -> Markup:
    out = []
    for state, words in (("clear", "Looked for and not found: "), ("not_applicable", "Does not apply here: ")):
        names = [f"{v.rule} ({v.id})" for v in target.silent if v.state == state]
        if names:
            out.append(el("p", el("strong", words), ", ".join(names)))
    return join(out)
