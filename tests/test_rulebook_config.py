"""Settings: where they come from, who wins, and what a mistake says."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from rulebook_helpers import make

from kvdoctor.rulebook.config import Config, ConfigError, apply_config, load_config, parse_config

TABLES = """
[thresholds]
near = { value = 0.25, unit = "1", calibrated = true, why = "w", source = "s" }
"""
RULE = make("KV799", "some-rule", when="kv.usage_max > thresholds.near", tables=TABLES)
FILE = """fail_on = "medium"
[rules]
paths = ["ours"]
[thresholds.KV799]
near = 0.4
[mute]
KV799 = { until = 2026-12-31, why = "ticket 7" }
"""


def parsed(text: str, name: str = "kvdoctor.toml", **options: object) -> Config:
    return parse_config(text, Path("/etc") / name, **options)  # type: ignore[arg-type]


def test_every_setting_of_the_file() -> None:
    config = parsed(FILE, today=date(2026, 1, 1))
    assert config.fail_on == "medium"
    assert config.rule_dirs == (Path("/etc/ours"),)
    assert [(c.rule, c.threshold, c.value, c.origin) for c in config.changes] == [
        ("KV799", "near", 0.4, "/etc/kvdoctor.toml:5")
    ]
    assert [(m.rule, m.until, m.why, m.origin) for m in config.mutes] == [
        ("KV799", date(2026, 12, 31), "ticket 7", "/etc/kvdoctor.toml:7")
    ]
    assert config.warnings == ()


def test_a_project_file_holds_the_same_below_tool() -> None:
    text = "[tool.other]\nx = 1\n[tool.kvdoctor.thresholds.some-rule]\nnear = 0.5\n"
    config = parsed(text, "pyproject.toml")
    assert [(c.rule, c.value, c.origin) for c in config.changes] == [("some-rule", 0.5, "/etc/pyproject.toml:4")]


def test_the_command_line_beats_the_environment_beats_the_file() -> None:
    env = {"KVDOCTOR_SET": "KV799.near=0.5", "KVDOCTOR_FAIL_ON": "low", "KVDOCTOR_RULES": "/a:/b", "HOME": "/root"}
    config = parsed(FILE, env=env, sets=["some-rule.near=0.6"])
    (rule,) = apply_config([RULE], config)
    near = rule.thresholds["near"]
    assert (near.value, near.origin) == (0.6, "--set some-rule.near=0.6")
    (rule,) = apply_config([RULE], parsed(FILE, env=env))
    assert (rule.thresholds["near"].value, rule.thresholds["near"].origin) == (0.5, "KVDOCTOR_SET KV799.near=0.5")
    assert config.fail_on == "low"
    assert config.rule_dirs == (Path("/etc/ours"), Path("/a"), Path("/b"))


def test_a_rule_that_is_not_changed_is_the_same_object() -> None:
    assert apply_config([RULE], Config())[0] is RULE


def test_an_ended_mute_is_a_warning_and_does_not_mute() -> None:
    assert parsed(FILE, today=date(2026, 12, 31)).mutes
    config = parsed(FILE, today=date(2027, 1, 1))
    assert config.mutes == ()
    assert "ended on 2026-12-31 (ticket 7)" in config.warnings[0]
    assert config.warnings[0].startswith("/etc/kvdoctor.toml:7")


def test_an_unknown_variable_is_a_warning_with_the_right_spelling() -> None:
    assert "did you mean KVDOCTOR_SET" in parse_config(None, None, {"KVDOCTOR_STE": "1"}).warnings[0]


@pytest.mark.parametrize(
    ("text", "place", "key", "message"),
    [
        ("fail_no = 1", ":1", "fail_no", "did you mean fail_on"),
        ('fail_on = "sometimes"', ":1", "fail_on", "not one of critical"),
        ("[mute]\nKV799 = { until = 2026-12-31 }", ":2", "mute.KV799", "needs `why`"),
        ('[mute]\nKV799 = { why = "x" }', ":2", "mute.KV799", "needs `until`"),
        ('[mute]\nKV799 = { until = "soon", why = "x" }', ":2", "mute.KV799", "needs `until`"),
        ('[mute]\nKV799 = { untill = 2026-12-31, why = "x" }', ":2", "mute.KV799", "did you mean until"),
        ("[mute]\nKV799 = true", ":2", "mute.KV799", "a table is wanted"),
        ('[thresholds.KV799]\nnear = "much"', ":2", "thresholds.KV799.near", "a number is wanted"),
        ("[thresholds.KV799]\nnear = nan", ":2", "thresholds.KV799.near", "a number is wanted"),
        ("[rules]\npath = []", ":2", "rules.path", "did you mean paths"),
        ('[rules]\npaths = "ours"', ":2", "rules.paths", "a list of folders"),
        ("x = ", "", "", "not valid TOML"),
    ],
)
def test_errors_of_the_file(text: str, place: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(text)
    assert (error.value.place, error.value.key) == (f"/etc/kvdoctor.toml{place}", key)
    assert message in str(error.value)


@pytest.mark.parametrize("item", ["KV799", "KV799=1", "KV799.near", ".near=1", "KV799.near=much", "KV799.near=nan"])
def test_a_malformed_set_option_is_refused(item: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_config(None, None, sets=[item])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("KV798.near=1", "did you mean KV799"),
        ("some-rul.near=1", "did you mean some-rule"),
        ("KV799.nea=1", "did you mean near"),
    ],
)
def test_a_threshold_that_does_not_exist_lists_the_right_ones(item: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_config([RULE], parse_config(None, None, sets=[item]))


def test_a_mute_of_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kvdoctor.toml:2: KV798: no such rule; did you mean KV799"):
        apply_config([RULE], parsed('[mute]\nKV798 = { until = 2026-12-31, why = "x" }'))


def test_the_nearest_file_above_is_read(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "kvdoctor.toml").write_text('fail_on = "low"')
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'")
    assert load_config(deep).fail_on == "low"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.kvdoctor]\nfail_on = 'info'")
    assert load_config(deep).fail_on == "info"


def test_an_explicit_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, tmp_path / "gone.toml")
    named = tmp_path / "x.toml"
    named.write_text('fail_on = "never"')
    assert load_config(Path("/"), env={"KVDOCTOR_CONFIG": str(named)}).fail_on == "never"


def test_without_any_file_there_are_no_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'tool'\n")
    config = load_config(tmp_path)
    assert (config.changes, config.mutes, config.rule_dirs) == ((), (), ())
