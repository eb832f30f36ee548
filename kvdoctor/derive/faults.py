"""Whether the kernel log holds an Xid that means broken hardware, and whether it can concern this server.

Such numbers need no error of the server to stand beside them: a bus, a link or a memory that failed is no noise of a teardown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdoctor.derive.kills import JOIN_S, SURVIVED_S
from kvdoctor.facts import Unknown, measured

if TYPE_CHECKING:
    from kvdoctor.derive.view import View
    from kvdoctor.readings import HostReadings

HARDWARE = frozenset({48, 74, 79, 94, 95, 119, 120})
"""Double-bit error of the memory, link between devices, fallen off the bus, contained and uncontained memory error, firmware that
does not answer (119, 120). Numbers an application can cause (13, 31, 43, 45) and page retirement (63, 64) are not among them."""

HINT = "dmesg -T | grep -i xid, beside a log or metrics that show whether the server worked afterwards"


def add(view: View, host: HostReadings) -> None:
    """Derive ``gpu.xid_fatal`` and ``gpu.xid_outlived``."""
    found = [(x.number, x.stamp.clock, f"{t.origin}:{x.line}") for t in host.kernel for x in t.value.xids]
    for run, event in view.target.events("xid"):
        number = event.number("number")
        if number is not None:
            found.append((int(number), event.time, run.source(event)))
    if found:
        _outlived(view, found[-1][1], found[-1][2])
    broken = [(number, when, source) for number, when, source in found if number in HARDWARE]
    if not broken:
        if host.kernel or found:
            source = found[0][2] if found else host.kernel[0].origin
            view.facts.set("gpu.xid_fatal", measured(False, "e", source))
        else:
            view.facts.set(
                "gpu.xid_fatal", Unknown("no kernel log in the snapshot", "add the output of: dmesg -T | grep -i xid")
            )
        return
    judged = [(_concerns(view, when), number, source) for number, when, source in broken]
    for concerns, number, source in judged:
        if concerns:
            view.facts.set("gpu.xid_fatal", measured(True, "e", source, note=f"Xid {number}"))
            return
    for concerns, number, source in judged:
        if concerns is None:
            why = f"Xid {number} ({source}) means broken hardware, and nothing tells whether the server worked after it"
            view.facts.set("gpu.xid_fatal", Unknown(why, HINT))
            return
    view.facts.set("gpu.xid_fatal", measured(False, "e", judged[0][2], note="the server started later or worked on"))


def _outlived(view: View, when: float | None, source: str) -> None:
    """Whether work was done after the last Xid, whatever its number."""
    shows_work = bool(view.stats or view.target.events("request_out") or view.has_role("tok.generated"))
    if when is not None and _ended_before(view, when):
        why = "the server's log ends before the Xid"
        view.facts.set("gpu.xid_outlived", Unknown(why, "give the log up to now"))
    elif when is not None or not shows_work:
        after = when is not None and _worked_after(view, when + SURVIVED_S)
        view.facts.set("gpu.xid_outlived", measured(after, "e", source))
    else:
        view.facts.set("gpu.xid_outlived", Unknown("the Xid carries no time", "take dmesg -T"))


def _concerns(view: View, when: float | None) -> bool | None:
    """None where the time is missing, or where the server still answers and does not show that it computes."""
    if when is None:
        return None
    if _worked_after(view, when + SURVIVED_S):
        return False
    started = _started(view)
    if started is not None and when < started - JOIN_S:
        return False
    pages = [s.time for s in view.target.scrapes if s.time is not None]
    lines = [run.first_time for run in view.target.logs if run.first_time is not None]
    begins = min([*pages, *lines], default=None)
    if begins is not None and when < begins - JOIN_S:
        return None
    if any(page > when + SURVIVED_S for page in pages):
        return None
    return None if _ended_before(view, when) else True


def _ended_before(view: View, when: float) -> bool:
    """The server's log stops before this without an error: it does not show what became of the server."""
    ends = [run.last_time for run in view.target.logs if run.last_time is not None]
    failed = [e.time for _, e in view.target.events("error", "exit", "oom") if e.time is not None]
    return bool(ends) and max(ends) < int(when) and not any(abs(time - when) <= JOIN_S for time in failed)


def _started(view: View) -> float | None:
    """Start of the process, from the metrics or its banner."""
    told = [r.value for s in view.target.scrapes for r in s.values.get("run.start", {}).values()]
    banners = [event.time for _, event in view.target.events("banner") if event.time is not None]
    return max(told) if told else min(banners, default=None)


def _worked_after(view: View, when: float) -> bool:
    """A token or a finished request later than this: the device computed."""
    for stat in view.stats:
        if (
            stat.time is not None
            and stat.time > when
            and any(stat.event.number(r) for r in ("gen_rate", "prompt_rate"))
        ):
            return True
    for _, event in view.target.events("request_out"):
        if event.time is not None and event.time > when and event.text("finish") != "abort":
            return True
    generated = [s.value for s in view.samples("tok.generated") if s.time is not None and s.time > when]
    return len(generated) > 1 and generated[-1] > generated[0]
