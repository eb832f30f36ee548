"""The policy vocabulary: files, published names, patches and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdoctor.policy import (
    ADMISSIONS,
    EXPLICIT_CLASSES,
    KEYS,
    NAMED_POLICIES,
    ORDERS,
    PUBLISHED_NAMES,
    WEIGHT_PRESETS,
    Policy,
    PolicyError,
    Weights,
)


def test_the_default_is_stock_vllm() -> None:
    stock = Policy()
    assert (stock.victim_order, stock.admission_mode, stock.release, stock.restore) == (
        "tail",
        "full_prompt",
        "whole",
        "recompute",
    )
    assert stock.admission_free_share == 0
    assert stock.breaker_mode == stock.cooldown_mode == "none"
    assert stock.protect_near_completion_tokens == stock.protect_long_tokens == stock.protect_priority_at_most == 0
    # No hysteresis: admission is never shut by pool usage.
    assert stock.queue_high == stock.queue_low == 1.0


def test_published_weights() -> None:
    assert WEIGHT_PRESETS["balanced"] == Weights(0.30, 0.25, 0.25, 0.20, 0.20)
    assert WEIGHT_PRESETS["online-chat"] == Weights(0.45, 0.25, 0.10, 0.20, 0.20)
    assert WEIGHT_PRESETS["offline-batch"] == Weights(0.15, 0.25, 0.40, 0.20, 0.20)


def test_a_key_is_its_field_with_a_dot() -> None:
    assert set(Policy().as_dict()) == set(KEYS)


def test_nested_and_quoted_keys_read_the_same() -> None:
    nested = """
    release = "tail_blocks"
    [victim]
    order = "value"
    weights = { age = 0.45, size = 0.1 }
    [admission]
    free_share = 0.02
    """
    quoted = """
    "victim.order" = "value"
    "victim.weights.age" = 0.45
    "victim.weights.size" = 0.1
    "admission.free_share" = 0.02
    "release" = "tail_blocks"
    """
    assert Policy.from_toml(nested) == Policy.from_toml(quoted)
    assert Policy.from_toml(nested).victim_weights == Weights(age=0.45, size=0.1)


def test_the_kv_eviction_block_is_read() -> None:
    policy = Policy.from_toml("""
    [kv_eviction]
    preempt_mode = "tail_blocks"
    victim_order = ["short_low_remaining", "completed_not_released"]
    protect = ["remaining < 512", "priority <= 1", "computed > 26000"]
    fallback = "queue_new_request"
    """)
    assert policy.release == "tail_blocks"
    assert policy.restore == "recompute"
    assert policy.victim_order == "explicit"
    assert policy.victim_explicit == ("short_low_remaining", "completed_not_released")
    assert (policy.protect_near_completion_tokens, policy.protect_near_completion_share) == (512, 0)
    assert (policy.protect_priority_at_most, policy.protect_long_tokens) == (1, 26000)
    assert policy.fallback == "queue_new_request"


def test_the_value_function_scheduler_is_read() -> None:
    policy = Policy.from_dict(
        {
            "weights": {"age": 0.3, "remain": 0.25, "size": 0.25, "priority": 0.2},
            "highWatermark": 0.85,
            "lowWatermark": 0.7,
        }
    )
    assert policy.victim_order == "value"
    assert policy.victim_weights.progress == 0.25
    assert (policy.queue_high, policy.queue_low) == (0.85, 0.7)


def test_preempt_mode_swap_is_a_restore() -> None:
    assert Policy.from_dict({"preempt_mode": "swap"}).restore == "swap"


def test_a_written_key_outranks_a_published_name() -> None:
    assert Policy.from_dict({"victim.order": "ratio", "weights": "offline-batch"}).victim_order == "ratio"
    assert Policy.from_dict({"weights": "offline-batch", "victim.order": "ratio"}).victim_order == "ratio"


def test_every_published_name_is_documented_with_real_keys() -> None:
    for keys in PUBLISHED_NAMES.values():
        for key in keys.split(", "):
            assert key in KEYS


def test_watermark_mode_is_full_prompt_with_a_share() -> None:
    policy = Policy.from_dict({"admission.mode": "watermark", "admission.free_share": 0.02})
    assert (policy.admission_mode, policy.admission_free_share) == ("full_prompt", 0.02)
    with pytest.raises(PolicyError, match="needs admission.free_share above 0"):
        Policy.from_dict({"admission.mode": "watermark"})


def test_patch_takes_a_rules_fix() -> None:
    patched = Policy().patch(
        {
            "protect.near_completion_tokens": 512,
            "protect.near_completion_share": 0.25,
            "fallback": "queue_new_request",
        }
    )
    assert patched.differences(Policy()) == {
        "protect.near_completion_tokens": (512, 0),
        "protect.near_completion_share": (0.25, 0.0),
    }


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_named_policies_are_valid_and_written_as_they_are_read(name: str) -> None:
    policy = Policy.named(name)
    assert Policy.from_toml(policy.to_toml()) == policy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[victim]\norder = "biggest"\n', ["p.toml:2:", "victim.order = 'biggest'", "largest"]),
        ('[victim]\noder = "tail"\n', ["p.toml:2:", "unknown key victim.oder", "did you mean 'victim.order'"]),
        ('# a\n\n"admission.free_share" = 2\n', ["p.toml:3:", "admission.free_share = 2", "at most 0.95"]),
        ("[pool]\nblock_tokens = 0\n", ["p.toml:2:", "pool.block_tokens = 0", "at least 1"]),
        ("[pool]\nblock_tokens = 1.5\n", ["p.toml:2:", "a whole number"]),
        ("[admission]\nfree_share = nan\n", ["p.toml:2:", "admission.free_share = nan", "a number"]),
        ("[admission]\nfree_share = true\n", ["p.toml:2:", "admission.free_share = True", "a number"]),
        ("[pool]\ntiers_mib = []\n", ["p.toml:2:", "pool.tiers_mib"]),
        ('[victim]\nexplicit = ["idle"]\n', ["p.toml:2:", "'idle'", "long_stalled"]),
        ('[victim]\nexplicit = ["long_stalled", "long_stalled"]\n', ["p.toml:2:", "twice"]),
        ("[victim]\nweights = { weight = 1 }\n", ["p.toml:2:", "victim.weights.weight"]),
        ('[victim]\nweights = "chat"\n', ["p.toml:2:", "online-chat"]),
        ("queue = { high = 0.5, low = 0.7 }\n", ["p.toml: ", "queue.low = 0.7 is above queue.high = 0.5"]),
        ("victim.order = tail\n", ["p.toml: not TOML"]),
        ('restore = "swap"\nrestore.gb_per_s = 25\n', ["p.toml: not TOML", "quote dotted keys"]),
        ('preempt_mode = "hard"\n', ["preempt_mode = 'hard'", "recompute"]),
        ('protect = ["remaining > 512"]\n', ["'remaining > 512' is not understood"]),
    ],
)
def test_errors_name_line_key_value_and_the_right_spelling(text: str, expected: list[str]) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.from_toml(text, name="p.toml")
    for part in expected:
        assert part in str(caught.value)


def test_load_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('"victim.order" = "ratio"\n')
    assert Policy.load(file).victim_order == "ratio"
    file.write_text('"victim.order" = "rato"\n')
    with pytest.raises(PolicyError, match=r"mine\.toml:1: victim\.order = 'rato'.*did you mean 'ratio'"):
        Policy.load(file)


def test_a_policy_built_in_code_is_checked_too() -> None:
    with pytest.raises(PolicyError, match=r"release = 'some'"):
        Policy(release="some")
    with pytest.raises(PolicyError, match="one entry per tier"):
        Policy(pool_tiers_mib=(64, 256))
    with pytest.raises(PolicyError, match="sizes must rise"):
        Policy(pool_tiers_mib=(256, 64, 1024))


shares = st.floats(0, 1, allow_nan=False)
policies = st.builds(
    Policy,
    victim_order=st.sampled_from(ORDERS),
    victim_explicit=st.permutations(EXPLICIT_CLASSES).map(tuple),
    victim_weights=st.builds(Weights, shares, shares, shares, shares, shares),
    protect_near_completion_tokens=st.integers(0, 10**6),
    protect_near_completion_share=shares,
    cooldown_mode=st.sampled_from(("none", "seconds", "regained")),
    cooldown_seconds=st.floats(0, 1e6),
    release=st.sampled_from(("whole", "tail_blocks")),
    restore=st.sampled_from(("recompute", "swap")),
    restore_gb_per_s=st.floats(0.1, 1e4),
    admission_mode=st.sampled_from(ADMISSIONS),
    admission_free_share=st.floats(0, 0.95),
    queue_low=st.floats(0, 0.5),
    queue_high=st.floats(0.5, 1),
    breaker_mode=st.sampled_from(("none", "latched", "floor")),
    pool_block_tokens=st.integers(1, 1024),
    reuse=st.sampled_from(("lru", "ttl")),
)


@given(policies)
@settings(deadline=None)
def test_a_policy_survives_its_file(policy: Policy) -> None:
    assert Policy.from_toml(policy.to_toml()) == policy
    assert Policy.from_dict(policy.as_dict()) == policy
