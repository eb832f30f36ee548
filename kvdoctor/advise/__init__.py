"""From what rules recommend to what a person can type: the engine version's real flags, or what to do instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvdoctor.advise import switches
from kvdoctor.advise.frees import frees
from kvdoctor.advise.moot import Seen, forced, moot
from kvdoctor.advise.ways import way
from kvdoctor.engines.base import COMMON_COMMANDS, Args, Command, Engine, Lever, in_range, lever_for
from kvdoctor.facts import LEVERS, Fact, FactSet, How, Known
from kvdoctor.findings import Action, Advice, Plan, Turn, Verdict, Watermark, WhatIf
from kvdoctor.frozen import frozen

ALERT_HIGH = 0.85
ALERT_LOW = 0.70
SHARE_STEP = 0.01


@frozen
class SimulatedLever:
    """A lever turned in replays of this load: best value, the values that do as well, what is in force, what it does."""

    value: float
    lo: float
    hi: float
    present: float
    effect: str
    next_limit: str


@frozen
class Simulated:
    """What the replays of this load say. ``idle``: levers that were tried and do no more than what is in force."""

    rows: tuple[WhatIf, ...]
    levers: Mapping[str, SimulatedLever]
    idle: frozenset[str]
    watermark: Watermark | None
    basis: str


@frozen
class Setting:
    """What advice depends on: the engine table (None: unknown engine), its version, its arguments, facts, replays.

    ``beside`` are the tables of what stands beside the server and spoke: their levers come first.
    """

    engine: Engine | None
    version: str | None
    args: Args
    facts: FactSet
    simulated: Simulated | None = None
    beside: tuple[Engine, ...] = ()


OPPOSITE: Mapping[str, str] = {"up": "down", "down": "up", "on": "off", "off": "on"}


def with_actions(verdict: Verdict, advice: Advice, setting: Setting) -> Verdict:
    """The verdict with its levers and confirm commands rendered for the engine version seen."""
    actions: list[Action] = []
    fixed: list[Action] = []
    for turn in advice.turns:
        entry = _entry(turn.lever, setting)
        turned = action(turn, advice.checks, setting)
        if entry is not None:
            args, facts, beside = setting.args, setting.facts, bool(setting.beside)
            seen = Seen(entry, setting.engine, setting.version, args, facts, beside)
            if moot(turn, seen):
                continue
            if (instead := forced(turned, seen)) is not None:
                # what overrules the others comes first
                fixed = fixed or [instead]
                continue
        # two levers may be one flag in this engine
        if turned.flag is None or (turned.flag, turned.direction) not in {(a.flag, a.direction) for a in actions}:
            actions.append(turned)
    return replace(verdict, actions=(*fixed, *actions), confirm=commands(advice.confirm, setting))


def action(turn: Turn, checks: Sequence[str], setting: Setting) -> Action:
    """One lever in the engine's words; a flag this version does not have is never printed."""
    entry = _entry(turn.lever, setting)
    verify = "; ".join(checks)
    switched = entry is not None and turn.direction in entry.values
    freed = frees(
        turn.lever, turn.direction, setting.facts, of_free=entry is not None and entry.of_free, switched=switched
    )
    if entry is None:
        said = f"{_words(turn)}: the engine is not known, so no flag can be named" + (f". {freed}" if freed else "")
        return Action(turn.lever, None, None, _target(turn), turn.direction, LEVERS[turn.lever], "", "", verify,
                      said.rstrip("."), turn.why)  # fmt: skip
    refused = entry.refused_with and setting.engine is not None and _setting(entry.refused_with, setting) is not None
    if refused:
        return Action(turn.lever, None, None, None, turn.direction, entry.effect, entry.cost, "", verify,
                      f"{entry.flag} is refused by this version beside {entry.refused_with.replace('_', ' ')}: leave it", turn.why)  # fmt: skip
    if turn.direction in entry.not_for:
        return Action(turn.lever, None, None, None, turn.direction, LEVERS[turn.lever], "", "", verify,
                      entry.not_for[turn.direction], turn.why)  # fmt: skip
    told = way(entry, turn.direction)
    if entry.inverse:
        turn = _inverted(turn)
    elif entry.of_free:
        # rules reckon in shares of the device; what a step of this one frees, the sentence about the bytes says
        turn = replace(turn, to=None)
    elif entry.margin:
        # a share, and what a hundredth of it frees, are no amounts of this flag
        turn, freed = replace(turn, direction=OPPOSITE.get(turn.direction, turn.direction), to=None), ""
    if no_room := _no_room(turn):
        turn, freed = replace(turn, to=None), no_room
    now = _now(entry, setting)
    other = entry.flags.get(turn.direction)
    flag = other or entry.flag
    to = None if other else entry.values.get(turn.direction) or _target(turn)
    switch = switches.against(flag) if flag is not None and turn.direction not in entry.values else None
    state = switches.state(turn.direction)
    if switch is not None and state is not None:
        flag, to, now = switch, state, switches.present(switch, setting.args, bool(setting.version))
    plain = Action(
        lever=turn.lever,
        flag=flag,
        start=now,
        to=to,
        direction=turn.direction,
        effect=f"{told.effect or LEVERS[turn.lever]} {freed}".strip(),
        cost=told.cost,
        next_limit=told.next_limit,
        verify=verify or entry.verify,
        instead=entry.instead if entry.flag is None else "",
        why=turn.why,
    )
    return plain if setting.simulated is None else _replayed(plain, setting.simulated)


def _entry(lever: str, setting: Setting) -> Lever | None:
    """The lever of what stands beside the server, where that has it (a cache tier's size is set there); else the server's."""
    for beside in setting.beside:
        found = lever_for(beside, lever, None)
        if found is not None:
            return found
    if setting.engine is None:
        return None
    fork = (e for e in setting.engine.levers if e.lever == lever and e.only_with and e.only_with in setting.args)
    return next(fork, None) or lever_for(setting.engine, lever, setting.version)


def _inverted(turn: Turn) -> Turn:
    """The same wish in the words of a flag that is one minus the lever."""
    to = turn.to
    if isinstance(to, Known) and not isinstance(to.lo, str) and not isinstance(to.hi, str):
        to = replace(to, lo=1 - float(to.hi), hi=1 - float(to.lo))
    return replace(turn, direction=OPPOSITE.get(turn.direction, turn.direction), to=to)


def _words(turn: Turn) -> str:
    return (
        {"up": "raise", "down": "lower", "on": "switch on", "off": "switch off", "set": "change"}.get(
            turn.direction, turn.direction
        )
        + " "
        + LEVERS[turn.lever]
    )


def _now(entry: Lever, setting: Setting) -> str | None:
    if entry.setting:
        found = _setting(entry.setting, setting)
        if found is not None:
            return found
    told = setting.facts["mem.fraction"]
    if entry.lever == "kv.pool_share" and isinstance(told, Known) and told.how == "measured":
        return f"{float(told.hi):g}"
    if entry.default is not None:
        return f"{entry.default} (default)" if setting.version else f"{entry.default} (default, version not known)"
    return None


def _setting(name: str, setting: Setting) -> str | None:
    keys = (*setting.engine.canonical_args.get(name, ()), name) if setting.engine is not None else (name,)
    return next((setting.args[k] for k in keys if k in setting.args), None)


def _target(turn: Turn) -> str | None:
    if turn.to is None:
        return {"on": "on", "off": "off"}.get(turn.direction)
    if isinstance(turn.to, str):
        return turn.to
    if not isinstance(turn.to, Known):
        return None
    low, high = float(turn.to.lo), float(turn.to.hi)
    if turn.unit in ("count", "tok"):
        # a limit is rounded towards the safe side of its direction
        rounded = math.floor if turn.direction == "down" else math.ceil
        low, high = float(rounded(low)), float(rounded(high))
    if turn.unit == "1" and turn.direction == "down" and low >= SHARE_STEP:
        # shares are turned in hundredths, and a limit is rounded towards its safe side
        low, high = (math.floor(share / SHARE_STEP + 1e-9) * SHARE_STEP for share in (low, high))
    text = _shown(low) if low == high else f"{_shown(low)} to {_shown(high)}"
    if turn.unit == "B":
        text = f"{low / 2**30:.2f} GiB"
    return f"about {text}" if turn.to.how != "measured" else text


def _shown(value: float) -> str:
    """A value to type: whole numbers in full, others with three digits, which is more than any of them is sure of."""
    return f"{value:.0f}" if value.is_integer() else f"{value:.3g}"


_LEAST_SHARE = 0.05


def _no_room(turn: Turn) -> str:
    """Why the share that was reckoned is no setting, where it is none; else nothing."""
    if turn.lever != "kv.pool_share" or not isinstance(turn.to, Known) or isinstance(turn.to.hi, str):
        return ""
    if float(turn.to.hi) >= _LEAST_SHARE:
        return ""
    return "By these numbers next to nothing of the device is left for it: no value of it helps alone."


def commands(names: Sequence[str], setting: Setting) -> tuple[str, ...]:
    """The commands of these names that exist on the engine version, in order; at most three."""
    out: list[str] = []
    for name in names:
        table: Sequence[Command] = (*(setting.engine.commands if setting.engine is not None else ()), *COMMON_COMMANDS)
        for command in table:
            if command.name == name and in_range(setting.version, command.since, command.until) is not False:
                out.append(fill(command.text))
                break
    return tuple(dict.fromkeys(out))[:3]


def fill(text: str) -> str:
    """Placeholders nobody filled are printed in capitals, so that a person sees what to put there."""
    for name in ("url", "log", "pid", "model"):
        text = text.replace("{" + name + "}", name.upper())
    return text


def plan(
    findings: Sequence[Verdict],
    policies: Mapping[str, Mapping[str, object]],
    setting: Setting,
    *,
    why_no_replay: str = "",
) -> Plan:
    """One plan from the unmuted findings: no lever twice, never two that pull in opposite directions (the graver wins).

    Levers that were replayed on this load get the value and the effect found there. ``why_no_replay`` goes into the basis.
    """
    simulated = setting.simulated
    chosen: dict[str, Action] = {}
    patch: dict[str, object] = {}
    for verdict in findings:
        if verdict.muted_by is not None or verdict.advice_muted_by is not None:
            continue
        for act in verdict.actions:
            if act.lever in chosen or _against(act, chosen) or _done(act) or _refuted(act, simulated):
                continue
            chosen[act.lever] = act
        for key, value in policies.get(verdict.rule, {}).items():
            patch.setdefault(key, value)
    watermark, how = _watermark(setting.facts)
    if simulated is not None and simulated.watermark is not None:
        watermark = simulated.watermark
    high = Watermark(ALERT_HIGH, ALERT_HIGH, ALERT_HIGH)
    low = Watermark(ALERT_LOW, ALERT_LOW, ALERT_LOW)
    basis = (
        "the alert pair is the published default for queueing and shared devices, on KV-pool usage, never on device memory; "
        + ("the admission watermark was found by replaying this load" if watermark is not None else
           "the admission watermark needs a replay of this load "
           f"({why_no_replay or 'kvdoctor diagnose --what-if auto, with arrivals and lengths'})")
        + (f" ({simulated.basis})" if simulated is not None else "")
    )  # fmt: skip
    if watermark is not None and "admission.free_share" in patch:
        patch["admission.free_share"] = watermark.value
    rows = simulated.rows if simulated is not None else None
    return Plan(high, low, watermark, basis, how, tuple(chosen.values()), patch or None, rows)


def _replayed(act: Action, simulated: Simulated) -> Action:
    """The action with the value and effect of the replay, where the lever was replayed in this direction."""
    found = simulated.levers.get(act.lever)
    if found is None or act.flag is None or _refuted(act, simulated):
        return act
    to = act.to
    if act.direction not in ("on", "off"):
        # a span that holds what is in force tells nothing about where to go
        wide = found.lo < found.hi and not found.lo <= found.present <= found.hi
        to = f"about {_shown(found.value)}" + (
            f" ({_shown(found.lo)} to {_shown(found.hi)} do as well)" if wide else ""
        )
    return replace(
        act, to=to, effect=f"{act.effect} {found.effect}".strip(), next_limit=found.next_limit or act.next_limit
    )


def _refuted(act: Action, simulated: Simulated | None) -> bool:
    """The replays show that turning this lever this way does nothing for the load."""
    if simulated is None:
        return False
    if act.lever in simulated.idle:
        return True
    found = simulated.levers.get(act.lever)
    if found is None:
        return False
    return (act.direction == "up" and found.value <= found.present) or (
        act.direction == "down" and found.value >= found.present
    )


def _done(act: Action) -> bool:
    """The setting in force is the one recommended: nothing to do."""
    return (
        act.to is not None and act.start is not None and act.start.removesuffix(" (default)").lower() == act.to.lower()
    )


def _watermark(facts: FactSet) -> tuple[Watermark | None, How | None]:
    fact: Fact = facts["whatif.watermark"]
    if isinstance(fact, Known):
        low, high = float(fact.lo), float(fact.hi)
        return Watermark((low + high) / 2, low, high), "estimated"
    return None, None


_PULLS: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = {
    # more sequences at once against fewer admitted, and so on: pairs that undo each other
    ("sched.max_running", "up"): (
        ("admission.free_share", "up"),
        ("admission.full_prompt", "on"),
        ("admission.reserve_output", "up"),
        # longer requests and more of them want the same pool
        ("mem.max_model_len", "up"),
    ),
    ("kv.pool_share", "up"): (("kv.pool_share", "down"), ("mem.graphs", "up")),
    ("admission.reserve_output", "down"): (("admission.free_share", "up"),),
}


def _against(act: Action, chosen: Mapping[str, Action]) -> bool:
    mine = (act.lever, act.direction)
    for other in chosen.values():
        theirs = (other.lever, other.direction)
        if act.lever == other.lever and OPPOSITE.get(act.direction) == other.direction:
            return True
        if theirs in _PULLS.get(mine, ()) or mine in _PULLS.get(theirs, ()):
            return True
    return False


__all__ = [
    "ALERT_HIGH",
    "ALERT_LOW",
    "Setting",
    "Simulated",
    "SimulatedLever",
    "action",
    "commands",
    "fill",
    "plan",
    "with_actions",
]
