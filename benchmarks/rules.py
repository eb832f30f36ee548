"""How fast rules are loaded and judged: 60 rules over 1,000 targets, and a folder of 80 rule files.

Run: ``python -m benchmarks.rules``. CPU milliseconds, best of several rounds. The set is the shipped rules, repeated under
other ids until there are enough; the targets are a fleet: mostly quiet, some waiting for a first sample, some thrashing.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Row, table
from kvdoctor.facts import FACTS, FactSet, Unknown, measured
from kvdoctor.rulebook.judge import Judge, choose, settle
from kvdoctor.rulebook.rule import load_rules, rules_dir

RULES = 60
FILES = 80
TARGETS = 1000
ROUNDS = 7


def cpu_ms(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU milliseconds of the fastest of ``rounds`` runs."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best * 1000


def copies(folder: Path, wanted: int) -> Path:
    """``wanted`` rule files: the shipped ones, then copies under other ids and names; all without their mutes."""
    sources = sorted(rules_dir().glob("*.toml"))
    for index in range(wanted):
        source = sources[index % len(sources)]
        rule_id, _, name = source.stem.partition("-")
        text = re.sub(
            r'(?m)^(mutes|mutes_advice|part_of) *= *(\[[^\]]*\]|"[^"]*")', "", source.read_text(encoding="utf-8")
        )
        if index >= len(sources):
            other_id, other_name = f"COPY{index:03d}", f"{name}-{index}"
            text = text.replace(f'id = "{rule_id}"', f'id = "{other_id}"', 1)
            text = text.replace(f'name = "{name}"', f'name = "{other_name}"', 1)
            rule_id, name = other_id, other_name
        (folder / f"{rule_id}-{name}.toml").write_text(text, encoding="utf-8")
    return folder


def fleet(count: int, *, thrashing: float) -> list[FactSet]:
    """Targets with every numeric fact known to most of them; a share of them thrashes."""
    chance = random.Random(7)
    out = []
    for _ in range(count):
        hot = chance.random() < thrashing
        facts = FactSet()
        for name, row in FACTS.items():
            if row.level == "x" or chance.random() < 0.3:
                facts.set(name, Unknown("not exported", "a newer engine"))
            elif row.unit == "bool":
                facts.set(name, measured(hot if name == "kv.pressure" else False, "w", "bench"))
            elif row.unit == "enum":
                facts.set(name, measured("serving" if name == "target.phase" else row.choices[-1], "e", "bench"))
            else:
                facts.set(name, measured(chance.random() if hot else 0.0, "w", "bench"))
        facts.values["kv.pressure"] = measured(hot, "w", "bench")
        facts.values["kv.usage_max"] = measured(0.97 if hot else 0.4, "w", "bench")
        facts.values["preempt.count"] = measured(90.0 if hot else 0.0, "w", "bench", events=90.0 if hot else 0.0)
        out.append(facts)
    return out


def rows() -> Iterator[Row]:
    """Loading, compiling, judging."""
    with tempfile.TemporaryDirectory() as name:
        folder = copies(Path(name), FILES)
        loading = cpu_ms(lambda: load_rules(base=folder))
        rules = load_rules(base=folder)[:RULES]
    first = cpu_ms(lambda: Judge(rules).judge(FactSet()))
    yield Row(f"load {FILES} rule files", "<= 15 ms", f"{loading:.1f} ms", loading <= 15)
    yield Row(f"compile {len(rules)} loaded rules and judge one target", "", f"{first:.1f} ms")
    for share, text in ((0.0, "quiet"), (0.05, "5 % thrashing"), (1.0, "all thrashing")):
        targets = fleet(TARGETS, thrashing=share)
        judge = Judge(rules)
        spent = cpu_ms(lambda judge=judge, targets=targets: [judge.judge(facts, brief=True) for facts in targets])  # type: ignore[misc]
        yield Row(f"{len(rules)} rules x {TARGETS:,} targets, {text}", "<= 50 ms", f"{spent:.1f} ms", spent <= 50)
        whole = cpu_ms(
            lambda judge=judge, targets=targets: [  # type: ignore[misc]
                choose(settle(judge.judge(facts, brief=True), judge.rules), facts) for facts in targets
            ]
        )
        yield Row("the same with mutes and the choice of the one verdict", "", f"{whole:.1f} ms")


if __name__ == "__main__":
    print(table(rows()))
