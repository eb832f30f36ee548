"""The HTML report: complete, offline, harmless, readable, small."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from corpus import SAMPLES, report_on
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import GIB, NOON, action, evidence, full_report, of_sample, report, target, verdict

from kvdoctor.facts import Fact, Unknown, measured
from kvdoctor.findings import (
    DeviceMemory,
    MemoryPart,
    Missing,
    Plan,
    Report,
    SourceNote,
    TimelineEntry,
    Watermark,
    Window,
)
from kvdoctor.report.chart import Line, chart, nice_top, stretches, thin
from kvdoctor.report.html import render
from kvdoctor.report.markup import Markup, el, text
from kvdoctor.report.style import BADGES, DARK, LIGHT
from kvdoctor.report.words import LABELS, clean

VOID = {"meta", "br"}
Series = Mapping[str, tuple[tuple[float, float], ...]]


class Parsed(HTMLParser):
    """Elements with their attributes, and the text outside the style sheet; fails on a tag that is not closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(said: Report) -> str:
    return render(said, "1.2.3")


# ---------------------------------------------------------------------------------------------- what is in it


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_every_sample_gives_a_whole_page(sample: Path) -> None:
    said = of_sample(sample)
    parsed = Parsed(page(said))
    verdict_ = said.main.verdict
    assert " ".join(verdict_.title.split()) in parsed.text
    for finding in said.main.findings:
        assert finding.rule in parsed.text
    for fact, seen in said.main.facts.items():
        assert LABELS.get(fact, fact) in parsed.text or (isinstance(seen, Unknown) and fact in parsed.text)
    for entry in said.main.timeline:
        assert clean(" ".join(entry.what.split())) in parsed.text
    for command in verdict_.confirm:
        assert " ".join(command.split()) in parsed.text


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_nothing_runs_and_nothing_is_loaded(sample: Path) -> None:
    text_ = page(of_sample(sample))
    parsed = Parsed(text_)
    used = {tag for tag, _ in parsed.tags}
    assert not used & {"script", "img", "link", "iframe", "object", "embed", "form", "input", "base", "use", "image"}
    for _, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcdoc", "style")]
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in text_
    assert "@import" not in text_
    policy = next(m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("said", [full_report(), of_sample(SAMPLES[-2])], ids=["full", "sample"])
def test_it_can_be_read_without_eyes(said: Report) -> None:
    parsed = Parsed(page(said))
    assert parsed.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert len(parsed.all("caption")) == len(parsed.all("table"))
    assert {th["scope"] for th in parsed.all("th")} == {"col", "row"}
    for svg in parsed.all("svg"):
        assert svg.get("aria-hidden") == "true" or (svg.get("role") == "img" and svg.get("aria-label"))
    anchors = {section["id"] for section in parsed.all("section")}
    assert {(a["href"] or "").removeprefix("#") for a in parsed.all("a")} == anchors


def test_a_full_report_says_all_its_parts() -> None:
    said = Parsed(page(full_report())).text
    for words in (
        "Title of main-cause", "--max-num-seqs N: from 256 to 48", "Cost: the queue grows.", "Change the router in front.",
        "explained by main-cause: its cause is found", "a-suspect", "Switch the request log on.", "Add nvidia-smi. (decides 1 rule)",
        "Too little seen for: a-blind-one", "weights 40 GiB 50.0 %", "unexplained 4 GiB 5.0 %",
        "the KV pool is full", "as it is", "40 %", "35 to 45 %", '"admission.free_share" = 0.03', "the clock goes backwards",
        "vllm other", "HEALTHY", "a-clear-one (KV994)", "kvdoctor 1.2.3",
    ):  # fmt: skip
        assert words in said, words


def test_unknown_is_shown_as_unknown() -> None:
    said = page(report(target(facts={"gpu.util": Unknown("no reading", "add nvidia-smi")}, vitals=())))
    assert ">no reading<" in said
    assert ">add nvidia-smi<" in said
    parsed = Parsed(page(report()))
    row = parsed.text[parsed.text.index("GPU utilisation unknown") :]
    assert row.startswith("GPU utilisation unknown no GPU reading in the snapshot: add nvidia-smi output")


@pytest.mark.parametrize("rule", ["healthy", "undetermined"])
def test_a_verdict_that_is_no_rule(rule: str) -> None:
    gap = Missing("gpu.util", "no reading", "add nvidia-smi")
    said = Parsed(page(report(target(main=verdict(rule, id="", state="clear", severity="info", misdiagnosis=None, missing=(gap,)))))).text  # fmt: skip
    assert rule.upper() in said
    assert ("Need Add nvidia-smi (tells GPU utilisation)" in said) == (rule == "undetermined")


# ---------------------------------------------------------------------------------------------- strangers' text

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a\u202egnp.exe",
    "x\x1b[31m\x00\x07\r\n\u2028y",
    "&lt;b&gt; &amp;",
    "</style></title><svg onload=alert(1)>",
    "--><!-- ]]> {{7*7}}",
    "\ud800 lone",
)


def poisoned(bad: str) -> Report:
    """``bad`` everywhere where a file, a log line, a model or a flag is named."""
    main = verdict(
        "main-cause",
        title=f"Title {bad}",
        cause=bad,
        say=bad,
        not_this=bad,
        evidence=(evidence(source=bad, fact=bad), evidence(reason=bad, outcome=None, lo=None, hi=None)),
        actions=(action(flag=f"--x {bad}", start=bad, to=bad, effect=bad, cost=bad, verify=bad, why=bad),),
        confirm=(bad,),
        missing=(Missing(bad, bad, bad),),
    )
    blind = replace(main, rule="b", state="blind", id="KV1", would_fire_if=bad)
    suspected = replace(main, rule="s", state="suspected", id="KV2")
    muted = replace(main, rule="m", id="KV3", muted_by=bad, mute_reason=bad)
    facts: dict[str, Fact] = {
        "kv.usage_max": measured(bad, "w", bad),
        "gpu.util": Unknown(bad, bad),
        bad: measured(1.0, "w", bad),
    }
    memory = DeviceMemory(bad, 80 * GIB, (MemoryPart(bad, 40 * GIB, "measured", bad),), 40 * GIB, bad)
    first = target(
        name=bad, main=main, model=bad, engine_version=bad, gpus=(bad,), sources=(SourceNote(bad, bad, bad, 3, 2), SourceNote("log", bad, "ok", 3, 0)),
        findings=(main, muted), undecided=(blind, suspected), silent=(replace(main, state="clear", rule="c"),), facts=facts,
        ranks={bad: facts, "other": facts}, memory=(memory,), timeline=(TimelineEntry(NOON + 5, bad, bad),),
        series={"kv.usage": ((NOON, 0.2), (NOON + 10, 0.9))},
    )  # fmt: skip
    plan = Plan(levers=main.actions, policy={bad: bad}, basis=bad, alert_high=Watermark(0.85, 0.85, 0.85))
    return report(first, target(name=bad), plan=plan, warnings=(bad,))


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_what_strangers_wrote_stays_text(bad: str) -> None:
    def tags(page_: Parsed) -> Counter[str]:
        # how many lines a text makes may differ, what they are made of may not
        return Counter(tag for tag, _ in page_.tags if tag not in ("div", "li", "p"))

    text_ = page(poisoned(bad))
    parsed = Parsed(text_)
    assert tags(parsed) == tags(Parsed(page(poisoned("plain"))))
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert text_.isascii()
    assert all(c.isprintable() or c == "\n" for c in text_)
    assert " ".join(clean(bad).split()) in parsed.text or " ".join(clean(" ".join(bad.split())).split()) in parsed.text
    text_.encode()


@given(st.text(st.characters(), max_size=60))
def test_any_text_comes_back_as_it_was(bad: str) -> None:
    made = el("p", bad, title=bad)
    parsed = Parsed(made)
    assert parsed.tags == [("p", {"title": clean(bad)})]
    assert "".join(parsed.words) == clean(bad)
    assert text(made) is made
    assert not isinstance(made + bad, Markup)


# ---------------------------------------------------------------------------------------------- time lines


def hour(points: int = 720, step: float = 5.0) -> Series:
    rows = [(NOON + step * at, at) for at in range(points)]
    return {
        "kv.usage": tuple((t, 0.9 + 0.1 * ((at * 7919) % 101) / 100) for t, at in rows),
        "req.running": tuple((t, float(20 + at % 13)) for t, at in rows),
        "req.waiting": tuple((t, float(at % 29)) for t, at in rows),
        "preemptions": tuple((t, float(at % 5)) for t, at in rows),
        "tok.gen_rate": tuple((t, 1234.5678 + at * 1.01) for t, at in rows),
    }


def test_an_hour_stays_below_300_kilobytes() -> None:
    base = of_sample(next(s for s in SAMPLES if s.name == "vllm-saturated"))
    sources = tuple(SourceNote("metrics", f"metrics_{NOON + 5 * at}.prom", "ok", 420, 0) for at in range(720))
    events = tuple(TimelineEntry(NOON + 5 * at, f"event {at} of a busy hour", f"server.log:{at}") for at in range(720))
    main = replace(base.main, series=hour(), sources=sources, timeline=events, window=Window(NOON, NOON + 3595, 3595.0, 720))  # fmt: skip
    assert len(page(replace(base, main=main, targets=(main,))).encode()) <= 300_000
    day = replace(main, series=hour(17_280))
    assert len(page(replace(base, main=day, targets=(day,))).encode()) <= 300_000


points = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), min_size=1, max_size=400).map(sorted)


@given(points, st.integers(8, 60))
def test_thinning_keeps_ends_and_extremes(rows: list[tuple[float, float]], most: int) -> None:
    kept = thin(rows, most)
    assert len(kept) <= max(most, 4)
    rest = iter(rows)
    assert all(point in rest for point in kept)
    assert (kept[0], kept[-1]) == (rows[0], rows[-1])
    values, all_values = [v for _, v in kept], [v for _, v in rows]
    assert (min(values), max(values)) == (min(all_values), max(all_values))


@given(points)
def test_stretches_are_the_points(rows: list[tuple[float, float]]) -> None:
    assert [point for part in stretches(rows) for point in part] == rows


def test_no_line_is_drawn_where_nothing_was_sampled() -> None:
    before = [(float(t), 1.0) for t in range(0, 50, 5)]
    after = [(float(t), 2.0) for t in range(200, 250, 5)]
    drawn = chart("x", [Line("", before + after, "s1")], (0.0, 245.0), str, described="d")
    assert drawn.count("<polyline") == 2
    assert chart("x", [Line("", before, "s1")], (0.0, 245.0), str, described="d").count("<polyline") == 1


@given(st.floats(1e-9, 1e15))
def test_the_axis_ends_at_or_above_the_largest(largest: float) -> None:
    assert largest <= nice_top(largest) <= largest * 10


def test_watermarks_and_events_are_drawn() -> None:
    base = full_report()
    main = replace(base.main, series={"kv.usage": ((NOON, 0.2), (NOON + 10, 1.0), (NOON + 20, 0.4))})
    said = page(replace(base, main=main, targets=(main,)))
    assert "alert 85 %" in said
    assert "clear 70 %" in said
    assert "admit below 97 %" in said
    assert "lowest 20 %, highest 100 %, last 40 %" in said
    assert said.count('class="event"') == 1


def test_points_that_are_no_numbers_are_left_out() -> None:
    main = target(series={"kv.usage": ((NOON, float("nan")), (NOON + 5, 0.5), (NOON + 9, float("inf")))})
    said = page(report(main))
    assert "lowest 50 %, highest 50 %" in said
    assert not re.search(r"(?i)[\", ](nan|inf)\b", "".join(re.findall(r"<svg.*?</svg>", said)))


def test_a_report_without_a_clock_has_no_time_lines() -> None:
    assert 'id="time"' not in page(report(target(series={})))


# ---------------------------------------------------------------------------------------------- colours


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(colours: Mapping[str, str]) -> None:
    assert LIGHT.keys() == DARK.keys()
    for name in ("ink", "muted", "link", "good", "warn", "poor", "s1", "s2", "s3", "s4"):
        for ground in ("paper", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in colours:
        if name in ("free", "gap") or re.fullmatch(r"m\d", name):
            assert contrast(colours["ink"], colours[name]) >= 4.5, name
    for name, colour in BADGES.items():
        assert contrast("#ffffff", colour) >= 4.5, name


def test_the_page_is_the_same_twice() -> None:
    sample = next(s for s in SAMPLES if s.name == "vllm-saturated")
    assert page(report_on(sample)) == page(report_on(sample))
