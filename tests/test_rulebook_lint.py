"""The lint: each promise of a rule file broken once."""

from __future__ import annotations

from pathlib import Path

import pytest
from rulebook_helpers import BODY, text_of, write

from kvdoctor.rulebook.lint import lint, main

GOOD = '''id = "KV799"
name = "some-rule"
title = "Title"
severity = "high"
looks_like = "something else"
stage = 6
min_events = { fact = "req.finished", value = 3 }
applies = "known(kv.usage_max)"
when = """
req.waiting > thresholds.queue
and (kv.usage_max > thresholds.full or oom.fragmented)
and oom.site != "decode"
"""

[thresholds]
queue = { value = 2, unit = "count", calibrated = false, why = "w" }
full = { value = 0.9, unit = "1", calibrated = false, why = "w" }

[explain]
cause = "c"
not_this = "n"

[fix]
say = "s"
[[fix.lever]]
lever = "sched.max_running"
direction = "down"
why = "w"
[[fix.check]]
after = "an hour"
expect = "req.waiting < thresholds.queue"

[confirm]
run = ["observe.request_log", "metrics.queue"]

[[examples]]
name = "it fires"
facts = { "req.finished" = 9, "kv.usage_max" = 0.95, "req.waiting" = 5, "oom.site" = "lora" }
expect = "fires"
confidence = "medium"

[[examples]]
name = "no queue"
facts = { "req.finished" = 9, "kv.usage_max" = 0.95, "req.waiting" = 1, "oom.site" = "lora" }
expect = "clear"

[[examples]]
name = "not full and not fragmented"
facts = { "req.finished" = 9, "kv.usage_max" = 0.5, "req.waiting" = 5, "oom.site" = "lora", "oom.fragmented" = false }
expect = "clear"

[[examples]]
name = "during decode"
facts = { "req.finished" = 9, "kv.usage_max" = 0.95, "req.waiting" = 5, "oom.site" = "decode" }
expect = "clear"

[[examples]]
name = "nobody counted the queue"
facts = { "req.finished" = 9, "kv.usage_max" = 0.95, "oom.site" = "lora" }
expect = "suspected"
missing = ["req.waiting"]
'''


def problems(tmp_path: Path, *changes: tuple[str, str]) -> list[str]:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    write(tmp_path, "KV799", "some-rule", text)
    return [str(problem) for problem in lint([tmp_path], base=tmp_path)]


def test_a_good_rule_has_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('severity = "high"', 'severity = "info"'), "info is for boundaries"),
        (("stage = 6", "stage = 5"), "rules of the block KV7xx have stage 3 or 4 or 6, not 5"),
        (('lever = "sched.max_running"', 'lever = "sched.max_runing"'), "did you mean sched.max_running"),
        (("[explain]", 'spare = { value = 2, unit = "1", calibrated = false, why = "w" }\n[explain]'), "used nowhere"),
        (('run = ["observe.request_log", "metrics.queue"]', "run = []"), "at least one command"),
        (('"metrics.queue"', '"a.b", "metrics.queue", "log.x"'), "at most 3"),
        (('"observe.request_log"', '"observe.request_lo"'), "did you mean observe.request_log"),
        (('expect = "fires"', 'expect = "clear"'), "expected clear, got fires"),
        (('expect = "fires"', 'expect = "clear"'), "no example of a target that fires"),
        (('confidence = "medium"', 'confidence = "high"'), "expected confidence high, got medium"),
        (('missing = ["req.waiting"]', 'missing = ["kv.usage_max"]'), "missing is ['req.waiting']"),
        (('missing = ["req.waiting"]', ""), "`missing` is wanted: ['req.waiting']"),
        (("stage = 6", 'stage = 6\nmutes = ["no-rule"]'), "unknown rule no-rule"),
        (("req.waiting > thresholds.queue", "group.pool_ratio > 1"), "belongs to a group of targets"),
        (("req.waiting > thresholds.queue", "req.waiting > 2"), "bare number 2"),
        (("req.waiting > thresholds.queue", "req.waiting > thresholds.full"), "units do not agree"),
    ],
)
def test_broken_promises(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    found = problems(tmp_path, change)
    assert any(message in problem for problem in found), found
    assert all(problem.startswith(str(tmp_path / "KV799-some-rule.toml")) for problem in found)


@pytest.mark.parametrize(
    ("example", "comparison"),
    [
        ("no queue", "req.waiting > thresholds.queue"),
        ("not full and not fragmented", "kv.usage_max > thresholds.full"),
        ("not full and not fragmented", "oom.fragmented"),
        ("during decode", 'oom.site != "decode"'),
    ],
)
def test_every_comparison_needs_its_near_miss(tmp_path: Path, example: str, comparison: str) -> None:
    start = GOOD.index(f'[[examples]]\nname = "{example}"')
    end = GOOD.find("[[examples]]", start + 1)
    found = problems(tmp_path, (GOOD[start:end], ""))
    assert any(f"no near miss for `{comparison}`" in problem for problem in found), found


def test_a_near_miss_below_the_floor_or_outside_the_rule_proves_nothing(tmp_path: Path) -> None:
    line = '"req.finished" = 9, "kv.usage_max" = 0.95, "req.waiting" = 1'
    below = problems(tmp_path, (line, line.replace("= 9", "= 1")))
    assert [p for p in below if "no near miss for `req.waiting > thresholds.queue`" in p]
    two_off = problems(tmp_path, (line + ', "oom.site" = "lora"', line + ', "oom.site" = "decode"'))
    assert [p for p in two_off if "no near miss for `req.waiting > thresholds.queue`" in p]


def test_families_and_gates_are_checked_by_the_id(tmp_path: Path) -> None:
    text = text_of("KV299", "gated-rule", stage=5, when="kv.pressure and req.waiting > 0", top="misdiagnosis = 3")
    write(tmp_path, "KV299", "gated-rule", text)
    found = [str(problem) for problem in lint([tmp_path], base=tmp_path)]
    assert any("KV299 belongs to misdiagnosis 2" in problem for problem in found)
    assert any("kv.pressure is implied" in problem for problem in found)


def test_a_wrong_policy_key_is_told(tmp_path: Path) -> None:
    found = problems(tmp_path, ("[[fix.lever]]", '[fix.policy]\n"admission.fre_share" = 0.1\n[[fix.lever]]'))
    assert any("admission.free_share" in problem for problem in found), found


def test_a_users_rule_is_checked_against_the_shipped_ones(tmp_path: Path) -> None:
    home, ours = tmp_path / "rules", tmp_path / "ours"
    home.mkdir()
    ours.mkdir()
    write(home, "KV799", "some-rule", GOOD)
    text = GOOD.replace("KV799", "AB100").replace("some-rule", "our-rule")
    write(ours, "AB100", "our-rule", text.replace("stage = 6", 'stage = 6\nmutes = ["some-rule"]'))
    assert lint([ours], base=home) == []
    write(ours, "KV798", "their-rule", text_of("KV798", "their-rule"))
    write(ours, "AB101", "some-rule", text_of("AB101", "some-rule"))
    found = [str(problem) for problem in lint([ours], base=home)]
    assert any("kept for the rules that come with kvdoctor" in problem for problem in found)
    assert any("some-rule is used twice" in problem for problem in found)


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, "KV798", "broken", "id = ")
    found = problems(tmp_path, ("stage = 6", "stage = 5"))
    assert any("not valid TOML" in problem for problem in found)
    assert any("KV7xx have stage" in problem for problem in found)


def test_the_command_prints_problems_and_exits_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "AB100", "some-rule", text_of(body=BODY))
    assert main([str(path)]) == 1
    assert "AB100-some-rule.toml" in capsys.readouterr().out
