"""The text report: what comes first, what fits, what is never said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from corpus import ROOT, SAMPLES, report_on
from report_helpers import NOON, action, evidence, full_report, of_sample, report, target, verdict
from rich.cells import cell_len

from kvdoctor.facts import Unknown, measured
from kvdoctor.findings import DeviceMemory, MemoryPart, Missing, Plan, Report, SourceNote, TimelineEntry, Vital, Window
from kvdoctor.report.brief import first_line
from kvdoctor.report.text import render

HOSTILE = "evil\x1b[31m[bold red]x[/]\u202e\r\n" + "名" * 70


def lines_of(said: Report, width: int = 100, **options: bool) -> list[str]:
    return render(said, width=width, **options).splitlines()


def section(text: str, title: str) -> str:
    """The lines under a heading, joined."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].strip()), len(lines))
    return "\n".join(lines[start + 1 : end])


def commands(said: Report) -> set[str]:
    return {command for finding in said.main.findings for command in finding.confirm}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_real_reports_fit_the_page(sample: Any, width: int) -> None:
    said = of_sample(sample)
    for verbose in (False, True):
        text = render(said, width=width, verbose=verbose)
        assert "\x1b" not in text
        long = [line for line in text.splitlines() if cell_len(line) > width]
        assert {line.strip() for line in long} <= commands(said)
        assert not [line for line in text.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_the_first_screen_says_what_why_and_what_to_do(sample: Any) -> None:
    said = of_sample(sample)
    screen = "\n".join(lines_of(said, 80)[:24])
    flat = " ".join(screen.split())
    assert " ".join(said.main.verdict.title.split()) in flat
    assert "\nWhy " in screen
    if said.main.verdict.rule not in ("healthy", "undetermined"):
        assert said.main.verdict.id in screen
        assert "\nDo " in screen
    if said.plan.levers and said.main.verdict.advice_muted_by is None:
        assert "\nFirst " in screen


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_full_report_fits_and_has_every_part(width: int) -> None:
    said = full_report()
    text = render(said, width=width, verbose=True)
    flat = " ".join(text.split())
    for part in ("main-cause", "an-effect", "a-boundary", "a-suspect", "a-blind-one", "a-clear-one", "vllm other",
                 "Change the router in front.", "unexplained", "goodput", "the clock goes backwards",
                 "switch the request log on", "admission.free_share = 0.03"):  # fmt: skip
        assert part.lower() in flat.lower(), part
    assert {line.strip() for line in text.splitlines() if cell_len(line) > width} == commands(said)


def test_the_verdict_is_first_and_its_certainty_is_one_word() -> None:
    for confidence, word in (("high", "certain"), ("medium", "likely"), ("low", "likely")):
        lines = lines_of(report(target(main=verdict(confidence=confidence))))
        assert lines[1] == "HIGH  Title of some-rule"
        assert lines[2].startswith(f"some-rule, KV999, {word}; misdiagnosis 4: ")


def test_only_a_certain_verdict_has_no_doubt() -> None:
    sure = verdict(confidence="high", evidence=(evidence(),))
    assert not [line for line in lines_of(report(target(main=sure))) if line.startswith("Doubt")]
    open_one = evidence("tok.gen_drop", outcome=None, value=None, lo=None, hi=None, reason="one scrape only")
    shaky = verdict(
        confidence="low",
        evidence=(
            evidence(calibrated=False),
            evidence("recompute.token_share", 0.4, 0.2, unit="1", how="estimated"),
            evidence("preempt.count", 7.0, 3.0, unit="count", events=7.0),
            open_one,
        ),
    )
    flat = " ".join(render(report(target(main=shaky)), width=100).split())
    for doubt in (
        "Estimated, not measured: recomputed share of all computed tokens.",
        "Only 7 events behind preemptions.",
        "Not known: fall of the generation rate (one scrape only).",
        "Limit not calibrated for preemptions per finished request.",
    ):
        assert doubt in flat


def test_unknown_vitals_are_neither_zero_nor_ok() -> None:
    text = section(render(report(), width=100), "Vitals")
    rows = text.splitlines()
    assert rows[0].split() == ["ok", "KV", "pool", "in", "use,", "largest", "50", "%", "limit", "95", "%"]
    assert rows[1].split()[:1] == ["unknown"]
    assert "0 to 29 %" in rows[1]
    assert rows[2].strip() == "unknown  GPU utilisation: no GPU reading in the snapshot"


def test_a_vital_without_a_limit_is_not_called_ok() -> None:
    waiting = Vital("requests waiting", "req.waiting_max", measured(30.0, "w", "x"), None, "count", "ok")
    text = section(render(report(target(vitals=(waiting,))), width=100), "Vitals")
    assert text.split() == ["-", "requests", "waiting", "30"]


def test_nothing_known_names_what_is_missing_and_how_to_get_it() -> None:
    gap = Missing("preempt.count", "one scrape only", "take a second scrape")
    said = verdict(
        "undetermined",
        id="",
        state="blind",
        severity="info",
        stage=9,
        misdiagnosis=None,
        missing=(gap,),
        confidence="low",
    )
    screen = "\n".join(lines_of(report(target(main=said, facts={"kv.usage_max": Unknown("no source")})))[:12])
    assert screen.splitlines()[1].startswith("UNDETERMINED")
    assert "Not known: preemptions (one scrape only)." in screen
    assert "Need    Take a second scrape (tells preemptions)." in screen
    assert "HEALTHY" not in screen
    unusable = "\n".join(lines_of(report(target(main=said), usable=False))[:12])
    assert "None of the sources that were looked at could be used." in unusable


def test_evidence_shows_bounds_and_how() -> None:
    share = evidence("preempt.hit_twice_share", 0.0375, 0.05, unit="1", op="<", how="bound", lo=0.0, hi=0.0375)
    text = section(render(report(target(main=verdict(evidence=(share, evidence())))), width=120), "Evidence")
    assert "between 0 and 3.75 %  < 5 %" in text
    assert "bounds from vllm:num_preemptions_total" in text
    assert "measured" not in text


def test_of_two_comparisons_of_one_fact_the_stricter_is_shown() -> None:
    weak = evidence("preempt.count", 92.0, 0.0, unit="count", op=">")
    strong = evidence("preempt.count", 92.0, 10.0, unit="count")
    text = section(render(report(target(main=verdict(evidence=(weak, strong)))), width=100), "Evidence")
    assert ">= 10" in text
    assert "> 0" not in text


def test_actions_say_from_to_cost_and_verify() -> None:
    main = verdict(evidence=(evidence(),), actions=(action(),))
    text = section(render(report(target(main=main)), width=100), "What to turn")
    flat = " ".join(text.split())
    assert "1. --max-num-seqs N: from 256 to 48 Fewer requests hold blocks." in flat
    assert "Cost: the queue grows. Next limit: TTFT." in flat
    assert "Verify after an hour: preemptions per finished request < 0.75" in flat


def test_a_missing_flag_gives_the_way_around_it_and_never_a_flag() -> None:
    turn = action(flag=None, start=None, to=None, instead="Change the router in front.")
    text = render(report(target(main=verdict(actions=(turn,)))), width=100)
    assert "(no flag for it in this version): Change the router in front." in " ".join(text.split())
    assert "--max-num-seqs" not in text


def test_what_is_set_already_is_not_the_first_step() -> None:
    done = action(lever="a", flag="--done", start="on (default)", to="on", direction="on")
    lines = lines_of(report(plan=Plan(levers=(done, action()))))
    assert "First   --max-num-seqs N: from 256 to 48" in lines
    assert any(line.strip().startswith("2. --done: default on; as it should be") for line in lines)


def test_advice_a_boundary_silences_is_not_given() -> None:
    boundary = verdict("a-boundary", id="KV997", severity="info", stage=8, misdiagnosis=None, say="Leave it.")
    main = verdict(advice_muted_by="a-boundary")
    text = render(report(target(main=main, findings=(main, boundary))), width=100)
    assert "Do the thing." not in text
    flat = " ".join(text.split())
    assert "Do Leave it. Tuning eviction or admission would not pay: a-boundary (Title of a-boundary) holds." in flat


def test_a_muted_finding_stands_under_its_cause() -> None:
    text = section(render(full_report(), width=100), "Also found")
    assert text.splitlines()[0] == "  explained by main-cause: an-effect (KV998, high, likely)"


def test_memory_bar_and_table_add_up() -> None:
    text = section(render(full_report(), width=100), "Device memory")
    bar = text[text.index("[") + 1 : text.index("]")]
    assert len(bar) == 60
    assert {mark: bar.count(mark) for mark in "ab?."} == {"a": 30, "b": 24, "?": 3, ".": 3}
    shares = [float(row.split(" %")[0].split()[-1]) for row in text.splitlines()[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.2)


def test_bytes_counted_twice_are_admitted() -> None:
    device = DeviceMemory("GPU 0", 10.0 * 2**30, (MemoryPart("in use", 12.0 * 2**30, "measured", "x"),), -2.0 * 2**30)
    assert "add up to 2 GiB more than the device has" in render(report(target(memory=(device,))), width=100)


def test_times_without_a_clock_or_a_year_are_not_dates() -> None:
    yearless = 91_889_694.0
    text = render(report(target(window=Window(yearless, yearless + 70, 70.0, 0),
                                timeline=(TimelineEntry(yearless, "start refused", "server.log:7"),))), width=100)  # fmt: skip
    assert "1972" not in text
    assert "11-29 12:54:54 to 12:56:04 (the log prints no year)" in " ".join(text.split())
    text = render(
        report(target(window=Window(None, None, None, 2), timeline=(TimelineEntry(None, "first", "a:1"),))), width=100
    )
    assert "no clock: nothing per second can be told" in text
    assert "no clock  first  a:1" in text


def test_sources_not_understood_are_named() -> None:
    notes = (
        SourceNote("metrics", "a.prom", "ok", 10, 0),
        SourceNote("metrics", "b.prom", "ok", 10, 0),
        SourceNote("metrics", "c.prom", "ok", 10, 0),
        SourceNote("unknown", "notes.bin", "not understood: no known server prints this"),
        SourceNote("gpu", "smi.csv", "missing: no driver"),
        SourceNote("log", "server.log", "log of vLLM", 50, 3),
    )
    text = section(render(report(target(sources=notes)), width=100), "Sources")
    assert text.splitlines() == [
        "  3 x metrics: a.prom to c.prom (30 lines)",
        "  ! unknown: notes.bin: not understood: no known server prints this",
        "  ! gpu: smi.csv: missing: no driver",
        "  ! log: server.log: log of vLLM, 3 of 50 lines not read",
    ]


def test_long_lists_are_cut_and_counted() -> None:
    events = tuple(TimelineEntry(NOON + i, f"event {i}", "a:1") for i in range(20))
    said = report(target(timeline=events))
    assert "event 7" in render(said, width=100)
    assert "event 8" not in render(said, width=100)
    assert "and 12 more later events (--verbose)" in render(said, width=100)
    assert "event 19" in render(said, width=100, verbose=True)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_hostile_text_is_shown_and_does_nothing(width: int) -> None:
    main = verdict(evidence=(evidence(source=HOSTILE),), confirm=(HOSTILE,))
    said = report(
        replace(
            target(HOSTILE, main),
            model=HOSTILE,
            engine_version=HOSTILE,
            gpus=(HOSTILE,),
            sources=(SourceNote("log", HOSTILE, HOSTILE, None, None),),
            timeline=(TimelineEntry(NOON, HOSTILE, HOSTILE),),
        ),
        target("other"),
        warnings=(HOSTILE,),
    )
    for verbose in (False, True):
        text = render(said, width=width, verbose=verbose)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold red]x[/]" in "".join(line.strip() for line in text.splitlines())
        long = [line for line in text.splitlines() if cell_len(line) > width]
        assert len(long) == 1  # the command, which is never wrapped
    assert first_line(said).isprintable()


def test_colour_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    plain = render(full_report(), width=100)
    assert "\x1b" not in plain
    coloured = render(full_report(), width=100, color=True)
    assert "\x1b[" in coloured
    stripped = [line for line in coloured.splitlines() if line.startswith("\x1b[31mHIGH")]
    assert len(stripped) == 1


def test_one_line_names_verdict_and_target() -> None:
    assert first_line(report()) == "HIGH Title of some-rule [some-rule, KV999, likely] on vllm tiny"
    assert first_line(full_report()).endswith("on vllm tiny (of 2 targets)")
    group = target("group")
    assert first_line(report(group, target("a"), target("b"))).endswith("on the group of 2 targets")
    nothing = verdict(
        "undetermined", id="", state="blind", severity="info", stage=9, misdiagnosis=None, confidence="low"
    )
    assert first_line(report(target(main=nothing))) == "UNDETERMINED Title of undetermined on vllm tiny"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("own-crash-after-calm-vllm", "EngineCore encountered a fatal error"),
        ("own-standing-queue", "requests wait"),
        ("own-kv-transfers-waiting", "held up between prefill and decode"),
    ],
)
def test_what_was_seen_and_contradicts_health_comes_before_what_is_not_known(case: str, words: str) -> None:
    text = " ".join(render(report_on(ROOT / "tests" / "cases" / case), width=100).split())
    why = text.index("Why Seen, and no rule explains it:")
    assert why < text.index(words) < text.index("Target")
    assert f"Not known: {words}" not in text
