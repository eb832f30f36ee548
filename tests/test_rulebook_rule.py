"""Rule files: reading, errors with file, line, key and right spelling, sets of rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rulebook_helpers import BODY, make, text_of, write

from kvdoctor.facts import Known, Unknown
from kvdoctor.rulebook.rule import (
    RuleError,
    check_set,
    find_cycle,
    line_of,
    load_rules,
    parse_rule,
    rules_dir,
)


def refused(text: str, file: str = "rules/AB100-some-rule.toml") -> RuleError:
    with pytest.raises(RuleError) as error:
        parse_rule(text, file)
    return error.value


def test_a_minimal_rule_has_the_documented_defaults() -> None:
    rule = parse_rule(text_of(), "rules/AB100-some-rule.toml")
    assert (rule.id, rule.name, rule.stage, rule.severity) == ("AB100", "some-rule", 6, "high")
    assert (rule.scopes, rule.fallback, rule.gated, rule.misdiagnosis) == (("target",), False, False, None)
    assert rule.when.strip() == "req.waiting > 0"
    assert (rule.body.cause, rule.body.say, rule.body.confirm) == ("the cause", "do this", ("observe.victims",))
    assert rule.body.alert is None


def test_everything_of_the_form_is_read() -> None:
    top = (
        'misdiagnosis = 2\nscope = "both"\nfallback = true\nmutes = ["a"]\nmutes_advice = ["b"]\nrefs = ["r"]\n'
        'min_events = { fact = "preempt.count", value = 5 }\napplies = "known(kv.usage_max)"'
    )
    tables = (
        '[thresholds]\nlimit = { value = 3, unit = "count", calibrated = true, why = "w", source = "s" }\n'
        '[group]\nwhen = "group.slope_break > 1"\n[alert]\nfor = "5m"\n'
        '[fix.policy]\n"admission.free_share" = 0.02\n'
    )
    body = BODY.replace("[fix]\n", "", 1).replace('say = "do this"\n', "")
    body = (
        '[fix]\nsay = "do this"\n[[fix.lever]]\nlever = "sched.max_running"\ndirection = "down"\n'
        'to = "req.running - thresholds.limit"\nwhy = "because"\n' + body
    )
    text = text_of(stage=5, when="req.waiting > thresholds.limit", top=top, tables=tables, body=body)
    rule = parse_rule(text, "rules/AB100-some-rule.toml")
    assert (rule.misdiagnosis, rule.scopes, rule.fallback, rule.gated) == (2, ("target", "group"), True, True)
    assert (rule.mutes, rule.mutes_advice, rule.refs) == (("a",), ("b",), ("r",))
    assert rule.min_events is not None
    assert (rule.min_events.fact, rule.min_events.value) == ("preempt.count", 5)
    assert (rule.thresholds["limit"].value, rule.thresholds["limit"].source) == (3, "s")
    assert rule.conditions("group")[1].facts == ("group.slope_break",)
    assert rule.conditions("target")[1].facts == ("req.waiting",)
    assert rule.body.alert is not None
    assert rule.body.alert.duration == "5m"
    assert rule.body.policy == {"admission.free_share": 0.02}
    lever = rule.body.levers[0]
    assert lever.quantity is not None
    assert (lever.lever, lever.direction, lever.quantity.thresholds) == ("sched.max_running", "down", ("limit",))


@pytest.mark.parametrize(
    ("change", "line", "key", "message"),
    [
        (("stage = 6", "stge = 6"), 6, "stge", "did you mean stage"),
        (("stage = 6", "stage = 9"), 6, "stage", "1 to 8"),
        (("stage = 6", "stage = true"), 6, "stage", "a number is wanted"),
        (('severity = "high"', 'severity = "hgh"'), 4, "severity", "did you mean high"),
        (('severity = "high"', ""), 1, "severity", "required"),
        (('id = "AB100"', 'id = "KV100"'), 1, "id", "kept for the rules that come with kvdoctor"),
        (('id = "AB100"', 'id = "100"'), 1, "id", "not an id"),
        (('name = "some-rule"', 'name = "Some_Rule"'), 2, "name", "not a name"),
        (('name = "some-rule"', 'name = "other-rule"'), 2, "name", "AB100-other-rule.toml"),
        (("req.waiting > 0", "req.waitng > 0"), 8, "when", "did you mean req.waiting"),
        (("req.waiting > 0", "req.waiting > 0\nand req.runing > 0"), 9, "when", "did you mean req.running"),
        (('cause = "the cause"', 'cause = ""'), 14, "explain.cause", "may not be empty"),
        (('cause = "the cause"', 'cuase = "x"'), 14, "explain.cuase", "did you mean cause"),
        (('run = ["observe.victims"]', 'run = "observe.victims"'), 22, "confirm.run", "a list of texts"),
        (('expect = "preempt.count == 0"', 'expect = "preempt.cout == 0"'), 18, "fix.check.expect", "preempt.count"),
        (('title = "Title of some-rule"', "title = "), 3, "", "not valid TOML"),
    ],
)
def test_errors_name_file_line_key_and_the_right_spelling(
    change: tuple[str, str], line: int, key: str, message: str
) -> None:
    text = text_of()
    assert change[0] in text
    error = refused(text.replace(*change))
    assert (error.file, error.line, error.key) == ("rules/AB100-some-rule.toml", line, key)
    assert message in str(error)
    assert str(error).startswith(f"rules/AB100-some-rule.toml:{line}: ") or key == ""


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('[thresholds]\nx = { value = 1, unit = "counts", calibrated = false, why = "w" }', "did you mean count"),
        ('[thresholds]\nx = { value = 1, unit = "count", calibrated = false }', "why: this key is required"),
        ('[thresholds]\nx = { value = 1, unit = "count", calibrated = true, why = "w" }', "where it was calibrated"),
        ('[thresholds]\nx = { value = "1", unit = "count", calibrated = true, why = "w" }', "a number is wanted"),
        ('[thresholds]\nx = { value = nan, unit = "count", calibrated = false, why = "w" }', "not a number"),
        ("[thresholds]\nx = 1", "a table is wanted"),
        ('[group]\nwhen = "req.waiting > 0"', 'only with scope = "both"'),
        ('[alert]\nfor = "5 minutes"', "not a duration"),
        ('[alert]\nfor = "5m"\nwhy_not = "x"', "exactly one"),
        ('[[fix.lever]]\nlever = "a"\ndirection = "set"\nwhy = "w"', "needs `to`"),
        ('[[fix.lever]]\nlever = "a"\ndirection = "on"\nto = "1"\nwhy = "w"', "takes no `to`"),
        ('[[fix.lever]]\nlever = "a"\ndirection = "up"\nto = "req.waitin"\nwhy = "w"', "did you mean req.waiting"),
        ('[[fix.lever]]\nlever = "a"\ndirection = "upp"\nwhy = "w"', "did you mean up"),
        ('[[examples]]\nname = "n"\nexpect = "fire"\nfacts = {}', "did you mean fires"),
        ('[[examples]]\nname = "n"\nexpect = "fires"\nfacts = { "req.waitin" = 1 }', "did you mean req.waiting"),
        ('[[examples]]\nname = "n"\nexpect = "fires"\nfacts = { req.waiting = 1 }', "written in quotes"),
        ('[[examples]]\nname = "n"\nexpect = "fires"\nfacts = { "req.waiting" = "x" }', "a number (count)"),
        ('[[examples]]\nname = "n"\nexpect = "fires"\nfacts = { "oom.site" = "attic" }', "one of prefill"),
        ('[[examples]]\nname = "n"\nexpect = "fires"\nfacts = { "oom.fragmented" = 1 }', "true or false"),
        ('[[examples]]\nname = "n"\nexpect = "fires"\nfacts = { "req.waiting" = { lo = 2, hi = 1 } }', "above hi"),
        (
            '[[examples]]\nname = "n"\nexpect = "blind"\nfacts = {}\nmissing = ["req.waitin"]',
            "did you mean req.waiting",
        ),
    ],
)
def test_errors_of_the_tables(tables: str, message: str) -> None:
    assert message in str(refused(text_of(tables=tables)))


def test_a_gate_makes_sense_for_pressure_rules_only() -> None:
    assert "only stage 5" in str(refused(text_of(top="gated = true")))
    assert parse_rule(text_of(stage=5), "rules/AB100-some-rule.toml").gated is True
    assert parse_rule(text_of(stage=5, top="gated = false"), "rules/AB100-some-rule.toml").gated is False
    assert parse_rule(text_of(stage=5, top='scope = "group"'), "rules/AB100-some-rule.toml").gated is False


def test_facts_of_examples_in_every_form() -> None:
    tables = """
[[examples]]
name = "all forms"
expect = "clear"
facts = { "req.waiting" = 3, "kv.usage_max" = { lo = 0, hi = 0.3 }, "preempt.count" = { value = 9, span = "L", events = 9 }, "recompute.token_share" = { value = 0.2, how = "estimated", requests = 40 }, "oom.site" = "lora", "oom.fragmented" = true, "req.running" = { unknown = true } }
"""
    example = parse_rule(text_of(stage=5, tables=tables), "rules/AB100-some-rule.toml").examples[0]
    assert example.facts["req.waiting"] == Known(3, 3, "measured", "w", "example")
    assert example.facts["kv.usage_max"] == Known(0, 0.3, "bound", "w", "example")
    assert example.facts["preempt.count"] == Known(9, 9, "measured", "L", "example", "", 9, None)
    assert example.facts["recompute.token_share"] == Known(0.2, 0.2, "estimated", "w", "example", "", None, 40)
    assert example.facts["oom.site"] == Known("lora", "lora", "measured", "w", "example")
    assert isinstance(example.facts["req.running"], Unknown)
    # implied by the gate unless given
    assert example.facts["kv.pressure"] == Known(True, True, "measured", "w", "example")


def test_a_shipped_rule_is_read_in_pieces_with_the_same_result() -> None:
    tables = '[thresholds]\nx = { value = 3, unit = "count", calibrated = false, why = "w" }\n[alert]\nfor = "5m"\n'
    text = text_of("KV799", when="req.waiting > thresholds.x", tables=tables)
    file = "rules/KV799-some-rule.toml"
    lazy = parse_rule(text, file, shipped=True)
    assert lazy.pieces is not None
    eager = parse_rule(text.replace("KV799", "AB799"), "rules/AB799-some-rule.toml")
    assert (lazy.thresholds, lazy.body) == (eager.thresholds, eager.body)


def test_a_section_header_inside_a_text_does_not_cut_the_file() -> None:
    text = text_of("KV799").replace('cause = "the cause"', 'cause = """\nwrite\n[thresholds]\nthere"""')
    rule = parse_rule(text, "rules/KV799-some-rule.toml", shipped=True)
    assert rule.body.cause == "write\n[thresholds]\nthere"
    assert rule.thresholds == {}


def test_a_broken_explanation_of_a_shipped_rule_is_told_with_its_line() -> None:
    text = text_of("KV799").replace("cause = ", "cause ")
    rule = parse_rule(text, "rules/KV799-some-rule.toml", shipped=True)
    with pytest.raises(RuleError, match=r"KV799-some-rule.toml:14: not valid TOML"):
        assert rule.body


def test_a_changed_threshold_keeps_its_origin_and_is_no_longer_calibrated() -> None:
    tables = '[thresholds]\nx = { value = 3, unit = "count", calibrated = true, why = "w", source = "s" }\n'
    rule = make(when="req.waiting > thresholds.x", tables=tables)
    changed = rule.with_thresholds({"x": (7.0, "--set KV799.x=7")})
    assert (rule.thresholds["x"].value, rule.thresholds["x"].origin) == (3, "rule")
    new = changed.thresholds["x"]
    assert (new.value, new.origin, new.calibrated, new.unit) == (7.0, "--set KV799.x=7", False, "count")


# ------------------------------------------------------------------------------------------ folders


def test_rules_of_several_folders_are_loaded_by_id(tmp_path: Path) -> None:
    home, extra = tmp_path / "rules", tmp_path / "ours"
    home.mkdir()
    extra.mkdir()
    write(home, "KV799", "shipped-rule", text_of("KV799", "shipped-rule"))
    write(extra, "AB100", "own-rule", text_of("AB100", "own-rule", top='mutes = ["shipped-rule"]'))
    (extra / "README.md").write_text("not a rule")
    rules = load_rules([extra], base=home)
    assert [(rule.id, rule.shipped) for rule in rules] == [("AB100", False), ("KV799", True)]


def test_an_id_used_twice_names_both_files(tmp_path: Path) -> None:
    write(tmp_path, "KV799", "one-rule", text_of("KV799", "one-rule"))
    write(tmp_path, "KV799", "two-rule", text_of("KV799", "two-rule"))
    with pytest.raises(RuleError) as error:
        load_rules(base=tmp_path)
    assert "KV799-one-rule.toml" in str(error.value)
    assert "KV799-two-rule.toml" in str(error.value)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read"):
        load_rules([tmp_path / "nowhere"], base=tmp_path)


def test_a_file_that_is_not_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "KV799-x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleError, match=r"KV799-x\.toml: cannot be read"):
        load_rules(base=tmp_path)


def test_mutes_are_names_of_rules() -> None:
    first = make("KV700", "first-rule", top='mutes = ["secnd-rule"]')
    second = make("KV701", "second-rule")
    with pytest.raises(RuleError, match="did you mean second-rule"):
        check_set([first, second])
    with pytest.raises(RuleError, match="is an id; write its name, second-rule"):
        check_set([make("KV700", "first-rule", top='mutes = ["KV701"]'), second])


def test_a_cycle_of_mutes_is_told_as_a_path() -> None:
    rules = [
        make("KV700", "a-rule", top='mutes = ["b-rule"]'),
        make("KV701", "b-rule", top='mutes = ["c-rule"]'),
        make("KV702", "c-rule", top='mutes = ["a-rule"]'),
    ]
    with pytest.raises(RuleError, match="a-rule > b-rule > c-rule > a-rule"):
        check_set(rules)


def test_a_fallback_that_mutes_a_member_of_its_family_is_a_cycle() -> None:
    member = make("KV202", "member-rule", stage=5, top="misdiagnosis = 2")
    fallback = make("KV201", "fallback-rule", stage=5, top='misdiagnosis = 2\nfallback = true\nmutes = ["member-rule"]')
    with pytest.raises(RuleError, match="cycle"):
        check_set([member, fallback])


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=4)))
def test_a_cycle_is_found_exactly_when_there_is_one(edges: dict[str, list[str]]) -> None:
    reach = {name: set(targets) for name, targets in edges.items()}
    for _ in range(6):
        for name, targets in reach.items():
            reach[name] = targets | {far for near in targets for far in reach.get(near, ())}
    cycle = find_cycle(edges)
    assert (cycle is not None) == any(name in targets for name, targets in reach.items())
    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert all(after in edges[before] for before, after in zip(cycle, cycle[1:], strict=False))


@given(st.text(alphabet=st.sampled_from('ab[]="\n# {}.,1'), max_size=60))
def test_no_text_makes_the_reader_fail_in_another_way(text: str) -> None:
    for shipped in (True, False):
        with pytest.raises(RuleError):
            parse_rule(text, "rules/AB100-some-rule.toml", shipped=shipped)


def test_the_line_of_a_key_is_found_in_its_own_table() -> None:
    text = 'why = "x"\n[thresholds]\n# why\nwhy = 1\n"quoted.key" = 2\n[fix.policy]\nwhy = 3\n'
    assert line_of(text, "why") == 1
    assert line_of(text, "thresholds", "why") == 4
    assert line_of(text, "thresholds", "quoted.key", "value") == 5
    assert line_of(text, "fix", "policy", "why") == 7
    assert line_of(text, "nothing") is None


def test_the_shipped_rules_are_found_beside_the_package() -> None:
    assert any(path.name.startswith("KV200-") for path in rules_dir().iterdir())
