"""Facts over several runs: rows of a benchmark under one load."""

from __future__ import annotations

import pytest

from kvdoctor.derive import derive
from kvdoctor.facts import FactSet
from kvdoctor.normalise import normalise
from kvdoctor.rulebook.judge import judge
from kvdoctor.rulebook.rule import load_rules
from kvdoctor.snapshot import Snapshot, memory_member

SWEEP = """tp,max_concurrency,output_throughput,mean_tpot_ms
1,1,90.1,11.0
2,1,77.8,12.8
4,1,77.1,12.9
1,16,902.2,17.2
2,16,861.0,18.1
4,16,872.5,17.9
"""


def group(text: str) -> FactSet:
    found = derive(normalise(Snapshot((memory_member("results.csv", text.encode()),)))).group
    assert found is not None
    return found


def test_sizes_are_compared_under_one_load() -> None:
    facts = group(SWEEP)
    assert facts.number("group.running_ratio") == 1
    assert facts.number("group.tp_ratio") == 4
    assert facts.number("group.tp_speedup") == pytest.approx(872.5 / 902.2)
    assert facts.number("group.throughput_ratio") == pytest.approx(872.5 / 902.2)


def test_the_load_at_which_more_ranks_help_counts() -> None:
    facts = group(SWEEP.replace("4,16,872.5", "4,16,2600.0"))
    assert facts.number("group.tp_speedup") == pytest.approx(2600.0 / 902.2)


def test_unlike_loads_are_told_as_such() -> None:
    facts = group("\n".join(line for line in SWEEP.splitlines() if line[:3] in ("tp,", "1,1") and ",16," not in line
                             or line.startswith("4,16")) + "\n")  # fmt: skip
    assert facts.number("group.running_ratio") == 16


def test_without_usage_it_is_suspected() -> None:
    verdicts = judge(load_rules(), group(SWEEP), scope="group")
    assert [v.state for v in verdicts if v.rule == "tp-communication"] == ["suspected"]
