"""A hot card is not told to draw more power."""

from __future__ import annotations

import pytest
from corpus import report_on

from kvdoctor.facts import Known
from kvdoctor.findings import TargetReport
from kvdoctor.snapshot import Snapshot, memory_member

BITS = {"power": 0x4, "slowdown": 0x8, "sw thermal": 0x20, "hw thermal": 0x40, "brake": 0x80}
LOG = "INFO 05-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"


def capped(*reasons: str, log: str) -> TargetReport:
    mask = sum(BITS[reason] for reason in reasons)
    smi = (
        "index, clocks.sm [MHz], clocks.max.sm [MHz], clocks_event_reasons.active\n"
        f"0, 420 MHz, 2410 MHz, 0x{mask:016x}\n"
    )
    files = [memory_member("smi.csv", smi.encode())]
    if log:
        files.append(memory_member("server.log", log.encode()))
    return report_on(Snapshot(tuple(files))).main


@pytest.mark.parametrize("log", [LOG, ""], ids=["vLLM", "no engine"])
@pytest.mark.parametrize(
    ("reasons", "raised"),
    [
        (("power",), True),
        (("slowdown", "hw thermal"), False),
        (("sw thermal",), False),
        (("power", "sw thermal"), False),
        (("slowdown", "brake"), False),
        (("slowdown",), False),
    ],
)
def test_the_power_limit_is_raised_only_where_it_is_the_reason(
    reasons: tuple[str, ...], raised: bool, log: str
) -> None:
    target = capped(*reasons, log=log)
    (verdict,) = (v for v in target.findings if v.rule == "power-or-thermal-cap" and not v.muted_by)
    assert ("host.power_cap" in [action.lever for action in verdict.actions]) is raised


@pytest.mark.parametrize(("second", "reason"), [("hw thermal", "thermal"), ("brake", "hw_slowdown")])
def test_the_bit_beside_the_slowdown_says_why(second: str, reason: str) -> None:
    fact = capped("slowdown", second, log=LOG).facts["gpu.throttle"]
    assert isinstance(fact, Known)
    assert fact.hi == reason
