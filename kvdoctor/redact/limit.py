"""A cap on what is written: a too large log loses its oldest frequent events or its first bytes, other sources are left out."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import BinaryIO

from kvdoctor.parse import logevents
from kvdoctor.snapshot import Member, Missing, Snapshot, memory_member


def limit(snapshot: Snapshot, most: int) -> Snapshot:
    """The snapshot with at most about ``most`` bytes in its members (before compression); what is cut says so.

    Small members come first, so that one large log does not push out the metrics; the order of members stays.
    """
    if sum(m.size for m in snapshot.members) <= most:
        return snapshot
    left = most
    kept: dict[int, Member] = {}
    missing = list(snapshot.missing)
    order = sorted(range(len(snapshot.members)), key=lambda i: snapshot.members[i].size)
    for place, index in enumerate(order):
        member = snapshot.members[index]
        # what is left is shared by the members that are at least as large
        share = left // (len(order) - place)
        cut = member if member.size <= share else _cut(member, share)
        if cut is None or cut.size > left:
            missing.append(
                Missing(member.kind or "file", member.origin, "left out: larger than the cap", "raise --max-mb")
            )
            continue
        kept[index] = cut
        left -= cut.size
    return replace(snapshot, members=tuple(kept[i] for i in sorted(kept)), missing=tuple(missing))


def _cut(member: Member, most: int) -> Member | None:
    if member.kind == "log":
        with member.open() as stream:
            tail = _tail(stream, most)
        return memory_member(
            member.name, tail, kind="log", time=member.time, origin=member.origin, truncated=True,
            redactions=(*member.redactions, f"cut to its last {len(tail)} bytes"),
        )  # fmt: skip
    if member.kind == "log-events":
        return _fewer_events(member, most)
    return None


def _tail(stream: BinaryIO, most: int) -> bytes:
    """The last whole lines within ``most`` bytes; the stream may be one that cannot seek."""
    kept = b""
    while block := stream.read(1 << 20):
        kept = (kept + block)[-(most + 1) :]
    if len(kept) <= most:
        return kept
    buffer = io.BytesIO(kept[1:])
    buffer.readline()
    return buffer.read()


def _fewer_events(member: Member, most: int) -> Member | None:
    """The oldest half of the most frequent kind goes, again and again, until the document fits."""
    loaded = logevents.load(member.read().decode("utf-8", "replace"))
    if not isinstance(loaded, tuple):
        return None
    engine, log = loaded
    while True:
        data = logevents.dump(engine, log)
        if len(data) <= most:
            break
        counts: dict[str, int] = {}
        for event in log.events:
            counts[event.template] = counts.get(event.template, 0) + 1
        top = max(counts, key=lambda name: counts[name], default="")
        drop = counts.get(top, 0) // 2
        if drop < 1:
            return None
        gone = 0
        events = []
        for event in log.events:
            if event.template == top and gone < drop:
                gone += 1
            else:
                events.append(event)
        log = replace(log, events=events, dropped={**log.dropped, top: log.dropped.get(top, 0) + drop})
    return memory_member(
        member.name, data, kind="log-events", time=member.time, origin=member.origin, truncated=True,
        redactions=(*member.redactions, "the oldest of its most frequent events left out for the cap"),
    )  # fmt: skip
