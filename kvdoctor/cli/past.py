"""The past of one server for ``diagnose`` and ``capture``: engine tables and options to a range of queries. Wiring only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvdoctor.cli import common

if TYPE_CHECKING:
    from kvdoctor.collect.prometheus import Vocabulary
    from kvdoctor.engines.base import Engine, Series
    from kvdoctor.snapshot import Snapshot

ANCHOR = "req.running"
_OF_THE_ENGINE = frozenset({
    "le", "quantile", "pid", "engine", "engine_type", "tp_rank", "pp_rank", "dp_rank", "moe_ep_rank", "model_name", "model",
    "model_id", "served_model_name", "model_type",
})  # fmt: skip
"""Labels that servers put themselves, beside those the tables read."""


def take_past(
    prometheus: str, select: str, since: str, at: str | None, header: Sequence[str], timeout: float, engine: str | None
) -> Snapshot:
    """One server's window out of a Prometheus-compatible store.

    Usage error (2) when an option cannot be meant or ``select`` does not lead to one server; a store that cannot be asked
    is a missing source of the snapshot.
    """
    from kvdoctor.collect import SpecError
    from kvdoctor.collect.http import parse_header
    from kvdoctor.collect.prometheus import PastRequest, parse_select, parse_window, take

    try:
        start, end = parse_window(since, at, time.time())
        request = PastRequest(
            prometheus, parse_select(select), start, end, vocabularies(engine), dict(map(parse_header, header)), timeout
        )
        return take(request)
    except SpecError as error:
        common.fail(str(error))


def vocabularies(engine: str | None = None) -> tuple[Vocabulary, ...]:
    """What to look for: every server table by wire prefix, or only that of ``engine``, with what may stand beside it."""
    from kvdoctor.collect.prometheus import Vocabulary
    from kvdoctor.engines.base import COMMON_SERIES, engines

    tables = [e for e in engines().values() if not e.side and (engine is None or e.name == engine)]
    beside = _kinds([s for e in engines().values() if e.side for s in e.series])
    beside.update(_kinds(COMMON_SERIES))
    out: list[Vocabulary] = []
    for table in tables:
        kinds = _kinds(table.series)
        anchors = [n.name for s in table.series if s.role == ANCHOR for n in s.names if not n.ignore]
        inner = _OF_THE_ENGINE.union(table.rank_labels, *([n.by, *n.where] for s in table.series for n in s.names)) - {
            ""
        }
        for prefix in table.metric_prefixes:
            own = {n: k for n, k in kinds.items() if _prefix(n, table) in (prefix, None)}
            mine = tuple(a for a in anchors if _prefix(a, table) == prefix)
            if mine:
                out.append(Vocabulary(table.name, mine, {**own, **beside}, inner))
    return tuple(out)


def _prefix(name: str, table: Engine) -> str | None:
    """The longest prefix of the table that ``name`` starts with."""
    return max((p for p in table.metric_prefixes if name.startswith(p)), key=len, default=None)


def _kinds(series: Iterable[Series]) -> dict[str, str]:
    return {n.name: n.kind for s in series for n in s.names if not n.ignore}
