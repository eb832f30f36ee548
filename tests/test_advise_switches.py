"""A switch named by its opposite is turned the other way: graphs off is eager mode on."""

from __future__ import annotations

import pytest

from kvdoctor.advise import Setting, action, switches
from kvdoctor.engines import llamacpp, lmdeploy, sglang, vllm
from kvdoctor.engines.base import Engine
from kvdoctor.facts import FactSet
from kvdoctor.findings import Turn
from kvdoctor.report.todo import already, turn


def said(engine: Engine, version: str, lever: str, direction: str, **args: str) -> str:
    return turn(action(Turn(lever, direction, None, "", ""), (), Setting(engine, version, args, FactSet())))


@pytest.mark.parametrize(
    ("engine", "version", "lever", "switch"),
    [
        (vllm.ENGINE, "0.14.0", "mem.graphs", "--enforce-eager"),
        (vllm.ENGINE, "0.6.4", "mem.graphs", "--enforce-eager"),
        (sglang.ENGINE, "0.5.6", "mem.graphs", "--disable-cuda-graph"),
        (sglang.ENGINE, "0.5.6", "prefix.enable", "--disable-radix-cache"),
        (lmdeploy.ENGINE, "0.7.0", "mem.graphs", "--eager-mode"),
        (llamacpp.ENGINE, "12000", "mem.graphs", "GGML_CUDA_DISABLE_GRAPHS=1"),
    ],
)
def test_off_is_the_opposite_switch_on(engine: Engine, version: str, lever: str, switch: str) -> None:
    assert said(engine, version, lever, "off") == f"{switch}: switch it on (default off)"
    name = switch.lstrip("-").removesuffix("=1").replace("-", "_")
    assert said(engine, version, lever, "on", **{name: "True"}) == f"{switch}: switch it off (now on)"
    unset = action(Turn(lever, "on", None, "", ""), (), Setting(engine, version, {}, FactSet()))
    assert already(unset)


def test_a_switch_of_the_same_sense_is_left_as_it_is() -> None:
    assert said(vllm.ENGINE, "0.6.4", "prefix.enable", "on", enable_prefix_caching="False").startswith(
        "--enable-prefix-caching: switch it on"
    )
    assert switches.against("--enable-prefix-caching") is None
    assert switches.against("kv_cache_config.enable_block_reuse") is None


def test_a_flag_does_not_show_the_value_of_another() -> None:
    """enforce_eager is no list of capture sizes."""
    assert said(vllm.ENGINE, "0.25.0", "mem.graphs", "down", enforce_eager="False").endswith(
        "as in this example (default sizes up to about 512)"
    )
