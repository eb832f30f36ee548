"""The past of one server out of a Prometheus-compatible store, written back as metrics pages.

Range queries give every series of one target at up to 24 instants of the window. Each instant becomes a page in the text
format with its time, so that the past takes the same path as files and live readings. The instants are dated by the
scrapes that they show (PromQL ``timestamp()``), not by the grid of the query: rates come out as from the scrapes, and a
scrape that two instants show counts once. At most ten requests; nothing is asked of the server itself.

Sources: the Prometheus HTTP API; Mimir, Thanos and VictoriaMetrics answer the same API, usually below a path prefix.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from kvdoctor.collect import SpecError
from kvdoctor.collect.http import MAX_BODY, SAID, Failure, Page, WebServer
from kvdoctor.collect.mask import mask_text, mask_url
from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Member, Missing, Snapshot, memory_member

if TYPE_CHECKING:
    import requests

MAX_QUERIES = 10
INSTANTS = 24
FEW = 5
MAX_WINDOW_S = 7 * 86_400.0
MAX_ANCHORS = 5_000
SHOWN = 12
COARSE_S = 60.0
SETTLED_S = 5.0
"""A window that ends now ends this much earlier: a scrape of this moment may not be stored completely yet."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(
    r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^,\"'{}]+?))\s*(,|$)"
)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PLACES = ("instance", "pod", "job", "namespace", "container", "node", "host", "hostname", "service", "cluster")
"""Labels by which people tell servers apart, the handiest first."""


@frozen
class Vocabulary:
    """The names one engine has on the wire under one prefix.

    ``anchors``: gauges every server of it shows, best first. ``kinds``: wire name -> gauge, counter, info, histogram or
    summary (the last two by the name of the family). ``inner``: labels that the engine itself puts, which do not tell
    servers apart.
    """

    engine: str
    anchors: tuple[str, ...]
    kinds: Mapping[str, str]
    inner: frozenset[str] = frozenset()


@frozen
class Matcher:
    """One ``label=value`` of a selector; ``op`` is ``=``, ``!=``, ``=~`` or ``!~``."""

    label: str
    op: str
    value: str

    def __str__(self) -> str:
        escaped = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.label}{self.op}"{escaped}"'


@frozen
class PastRequest:
    """What to read: ``url`` as the user gave it, the window in epoch seconds."""

    url: str
    select: tuple[Matcher, ...]
    start: float
    end: float
    vocabularies: tuple[Vocabulary, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 5.0


class NotOneTarget(SpecError):
    """The selector matches several servers, or none; the message lists what there is."""


# ---- what the user writes


def parse_select(text: str) -> tuple[Matcher, ...]:
    """``instance="10.0.0.5:8000",job=~"vllm.*"`` -> matchers; braces around and quotes may be left out. Raises SpecError."""
    body = text.strip()
    if body.startswith("{") and body.endswith("}"):
        body = body[1:-1].strip()
    found: list[Matcher] = []
    position = 0
    while position < len(body):
        match = _MATCHER.match(body, position)
        if match is None:
            raise SpecError(
                f'--select {mask_text(text)}: labels are written instance="10.0.0.5:8000",job="vllm" '
                "(operators =, !=, =~, !~); not understood from character "
                f"{position + 1} on"
            )
        label, op, quoted, single, bare, _ = match.groups()
        if label == "__name__":
            raise SpecError("--select names labels of the server, not a metric: give instance, job or pod")
        value = _unescape(quoted) if quoted is not None else single if single is not None else bare
        found.append(Matcher(label, op, value))
        position = match.end()
    return tuple(found)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), text)


def parse_window(since: str, at: str | None, now: float) -> tuple[float, float]:
    """(start, end) in epoch seconds of ``--since`` and ``--at``; raises :class:`SpecError`.

    ``at`` is the end: an ISO time or epoch seconds; None is now. ``since`` is a length before the end (``30m``, ``1h30m``)
    or a time. An ISO time without a zone is local time, as journalctl takes it.
    """
    end = now - SETTLED_S if at is None else _instant(at, "--at")
    if end > now + 60:
        raise SpecError(f"--at {at} is in the future ({_iso(end)}; now it is {_iso(now)}): is its time zone right?")
    end = min(end, now)
    if _DURATION.fullmatch(since.strip()):
        start = end - math.fsum(float(n) * _SECONDS[u] for n, u in _PART.findall(since))
    else:
        start = _instant(since, "--since")
    if start >= end:
        raise SpecError(f"the window is empty: it starts at {_iso(start)} and ends at {_iso(end)}")
    if end - start < 1:
        raise SpecError("the window is shorter than a second")
    if end - start > MAX_WINDOW_S:
        raise SpecError(f"the window is longer than {MAX_WINDOW_S / 86_400:.0f} days: give the hours of the incident")
    return start, end


def _instant(text: str, option: str) -> float:
    word = text.strip()
    if re.fullmatch(r"\d{9,11}(?:\.\d+)?", word):
        return float(word)
    if re.fullmatch(r"\d{12,14}", word):
        return float(word) / 1000
    try:
        return datetime.fromisoformat(word).timestamp()
    except (ValueError, OverflowError, OSError):
        lengths = " or a length such as 30m, 2h" if option == "--since" else ""
        raise SpecError(
            f"{option} {word[:80]}: give an ISO time (2026-11-29T03:10:00+01:00), epoch seconds{lengths}"
        ) from None


def base_of(text: str) -> str:
    """The address below which ``/api/v1`` lies, of what the user gave as ``--prometheus``; raises :class:`SpecError`."""
    full = text if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) else f"http://{text}"
    try:
        parts = urlsplit(full)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SpecError(f"--prometheus {mask_url(full)} is not a usable URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", full):
        raise SpecError(
            f"--prometheus {mask_url(full)} is not a usable URL: give http://HOST:9090, with the prefix if it has one "
            "(http://mimir/prometheus)"
        )
    path = re.sub(r"/(?:api/v1(?:/.*)?|graph|query|vmui/?)$", "", parts.path.rstrip("/"))
    return urlunsplit((parts.scheme, parts.netloc, path.rstrip("/"), "", ""))


# ---- the store


@frozen
class Row:
    """One series of an answer: labels, and its values as the store wrote them by time (epoch seconds)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, str], ...]


class Store(WebServer):
    """The query API of one store. ``warnings`` collects what its answers say beside the data."""

    def __init__(self, base: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        super().__init__(base, headers=headers, timeout_s=timeout_s)
        self.warnings: dict[str, None] = {}
        self.asked = 0
        self._form: dict[str, str] = {}
        self._by_get = False

    def instant(self, query: str, at: float) -> tuple[Row, ...] | Failure:
        """The vector of ``query`` at ``at``."""
        return self._ask("/api/v1/query", {"query": query, "time": f"{at:.3f}"})

    def range(self, query: str, start: float, end: float, step: float) -> tuple[Row, ...] | Failure:
        """The matrix of ``query`` over start..end (epoch seconds)."""
        return self._ask(
            "/api/v1/query_range",
            {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"},
        )

    def _ask(self, path: str, form: dict[str, str]) -> tuple[Row, ...] | Failure:
        if self.asked >= MAX_QUERIES:
            return self.failure(path, f"more than {MAX_QUERIES} queries would be needed", "give a narrower --select")
        self.asked += 1
        self._form = {**form, "timeout": f"{self._timeout_s:g}s"}
        answer = self.get(path, "prometheus")
        if isinstance(answer, Page):
            return self._rows(path, answer.body)
        missing = answer.missing
        return replace(answer, missing=replace(missing, hint=missing.hint.replace("--url", "--prometheus")))

    def _follow(self, url: str, path: str, kind: str, origin: str) -> Page | Failure:
        response = self._send(url)
        if response.status_code == 405 and not self._by_get and self.asked < MAX_QUERIES:
            # a gateway that lets only reads through
            response.close()
            self._by_get = True
            self.asked += 1
            response = self._send(url)
        try:
            if response.is_redirect:
                return self.failure(
                    path, f"it redirects to {mask_url(response.headers.get('location', ''))}, which is not followed",
                    "give the store's own address with its prefix, or --header with credentials",
                )  # fmt: skip
            return self._body(response, kind, origin, 0.0)
        finally:
            response.close()

    def _send(self, url: str) -> requests.Response:
        accept = {"Accept": "application/json"}
        if self._by_get:
            return self._session.get(
                url, params=self._form, headers=accept, timeout=self._timeout_s, stream=True, allow_redirects=False
            )
        return self._session.post(
            url, data=self._form, headers=accept, timeout=self._timeout_s, stream=True, allow_redirects=False
        )

    def _body(self, response: requests.Response, kind: str, origin: str, answered: float) -> Page | Failure:
        body = bytearray()
        for block in response.iter_content(1 << 16):
            body += block
            if len(body) > MAX_BODY:
                break
        if self._watch.fired:
            return self._too_slow(kind, origin, len(body))
        if len(body) > MAX_BODY:
            return Failure(
                Missing(kind, origin, f"the answer is larger than {MAX_BODY >> 20} MiB", "give a narrower --select")
            )
        if response.status_code != 200:
            return _refused(response.status_code, bytes(body), kind, origin)
        return Page(bytes(body), kind, origin, answered)

    def _rows(self, path: str, body: bytes) -> tuple[Row, ...] | Failure:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            html = body.lstrip()[:1] == b"<"
            return self.failure(
                path, "an HTML page instead of a query result" if html else "the answer is no JSON",
                "is this the address of Prometheus, with its prefix (Mimir, Thanos: /prometheus)? A login page in between wants --header",
            )  # fmt: skip
        data = document.get("data") if isinstance(document, dict) else None
        if isinstance(document, dict) and document.get("status") == "error":
            return self.failure(path, _said(document) or "the query failed", "look at the log of the store")
        rows = data.get("result") if isinstance(data, dict) else None
        if not isinstance(document, dict) or document.get("status") != "success" or not isinstance(rows, list):
            return self.failure(
                path, "JSON that is no query result", "is this the address of Prometheus, with its prefix?"
            )
        for key in ("warnings", "infos"):
            said = document.get(key)
            for one in said if isinstance(said, list) else ():
                self.warnings[f"{self.origin} says: {mask_text(str(one)[:SAID])}"] = None
        if document.get("isPartial") is True:
            self.warnings[f"{self.origin} says that its answer is partial: a part of the store did not answer"] = None
        return tuple(_row(row) for row in rows if isinstance(row, dict))

    def failure(self, path: str, reason: str, hint: str) -> Failure:
        return Failure(Missing("prometheus", self.origin + path, reason, hint))


def _row(row: Mapping[str, Any]) -> Row:
    labels = row.get("metric")
    pairs = row.get("values", [row["value"]] if "value" in row else [])
    points = []
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and _is_time(pair[0]) and _number(pair[1]):
            points.append((float(pair[0]), pair[1]))
    named = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
    return Row(named, tuple(points))


def _is_time(value: object) -> bool:
    """Epoch seconds up to the year 9999."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 253_402_300_800


def _count(text: str) -> int | None:
    """A whole number of series; None for what no count() answers."""
    value = float(text)
    return int(value) if 0 <= value < 1e15 else None


def _number(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _said(document: Mapping[str, Any]) -> str:
    """The store's own words; ``errorType`` is a word in Prometheus and a status number in VictoriaMetrics."""
    text = document.get("error", document.get("message"))
    return mask_text(text[:SAID]) if isinstance(text, str) else ""


def _refused(status: int, body: bytes, kind: str, origin: str) -> Failure:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    said = _said(document) if isinstance(document, dict) else ""
    reason = f"the store answers {status}" + (f": {said}" if said else "")
    text = said.lower()
    hint = "look at the log of the store"
    if status in (401, 403):
        hint = "give --header 'Authorization: Bearer ...' (Mimir also wants X-Scope-OrgID: TENANT)"
    elif status == 404:
        hint = "is the prefix of the store in the URL? (Mimir, Thanos: http://HOST/prometheus)"
    elif "too many samples" in text or "maxsamples" in text or "memory" in text or "cannot select more" in text:
        hint = "the store limits what one query may read: give a shorter --since or a narrower --select"
    elif "11,000 points" in text or "resolution" in text or "points per" in text:
        hint = "the store limits the points of one query: give a shorter --since"
    elif "tenant" in text or "org id" in text:
        hint = "give --header 'X-Scope-OrgID: TENANT'"
    elif status in (408, 429, 502, 503, 504) or "timeout" in text or "timed out" in text:
        hint = "the store is overloaded or restarts: try again, raise --timeout, or give a shorter --since"
    elif status == 400:
        hint = "does this store understand PromQL? Give the address of Prometheus, Mimir, Thanos or VictoriaMetrics"
    return Failure(Missing(kind, origin, reason, hint), again=status in (408, 429, 502, 503, 504))


# ---- the reading


def take(request: PastRequest) -> Snapshot:
    """The window as a snapshot of one server.

    Raises :class:`~kvdoctor.collect.SpecError` when the URL cannot be meant and :class:`NotOneTarget` when the selector does
    not lead to one server. A store that cannot be asked, or refuses, gives a snapshot in which that is missing.
    """
    store = Store(base_of(request.url), headers=request.headers, timeout_s=request.timeout_s)
    try:
        return _Reading(store, request).snapshot()
    finally:
        store.close()


@frozen
class _Target:
    labels: Mapping[str, str]
    anchor: str
    vocabulary: Vocabulary

    @property
    def shown(self) -> str:
        return ",".join(str(Matcher(k, "=", self.labels[k])) for k in _by_use(self.labels))


def _by_use(labels: Iterable[str]) -> list[str]:
    return sorted(labels, key=lambda k: (_PLACES.index(k) if k in _PLACES else len(_PLACES), k))


class _Reading:
    def __init__(self, store: Store, request: PastRequest) -> None:
        self.store = store
        self.request = request
        self.warnings: list[str] = []
        self.missing: list[Missing] = []
        # counted back from the end in whole milliseconds, the resolution of the store
        end = round(request.end * 1000)
        step = max((end - round(request.start * 1000)) // (INSTANTS - 1), 1)
        self.step = step / 1000
        self.first = (end - step * (INSTANTS - 1)) / 1000

    def snapshot(self) -> Snapshot:
        members: list[Member] = []
        target = self._target()
        if isinstance(target, Failure):
            self.missing.append(target.missing)
        else:
            members = self._pages(target)
        return Snapshot(
            tuple(members), tuple(self.missing), {}, self.request.end,
            f"{self.store.origin}, {_iso(self.request.start)} to {_iso(self.request.end)}",
            (*self.warnings, *self.store.warnings),
        )  # fmt: skip

    # -- which server

    def _over_window(self, names: Iterable[str], select: Sequence[Matcher]) -> str:
        # a second more: the oldest sample may lie exactly at the start
        return f"last_over_time({selector(names, select)}[{math.ceil(self.request.end - self.request.start) + 1}s])"

    def _target(self) -> _Target | Failure:
        request = self.request
        anchors = [a for v in request.vocabularies for a in v.anchors]
        query = self._over_window(anchors, request.select)
        counted = self.store.instant(f"count({query})", request.end)
        if isinstance(counted, Failure):
            return counted
        total = _count(counted[0].points[0][1]) if counted and counted[0].points else 0
        if total is None:
            return self.store.failure(
                "/api/v1/query", "a count that is no number", "is this the address of Prometheus?"
            )
        if total == 0:
            return self._none(anchors)
        if total > MAX_ANCHORS:
            raise NotOneTarget(
                f"--select {_shown(request.select)} matches {total:,} series of servers: give a narrower one, e.g. "
                "--select 'instance=\"HOST:PORT\"'"
            )
        rows = self.store.instant(query, request.end)
        if isinstance(rows, Failure):
            return rows
        if len(rows) < total:
            self.warnings.append(
                f"saw {len(rows)} of {total} series that tell the servers apart: {self.store.origin} caps its answers, "
                "there may be more servers than are listed"
            )
        targets = self._targets(rows)
        if isinstance(targets, Failure):
            return targets
        if len(targets) > 1:
            raise NotOneTarget(self._several(targets))
        if not targets:
            return self.store.failure("/api/v1/query", "the rows of the answer name no metric", "give --engine")
        return targets[0]

    def _targets(self, rows: Sequence[Row]) -> list[_Target] | Failure:
        found = self._grouped(rows, None)
        places = {tuple(t.labels.get(k, "") for k in _PLACES) for t in found}
        if len(found) > len(places):
            # one place, several label sets: copies kept by two stores, or a label of the engine that no table knows
            known = [Matcher(k, "=", found[0].labels[k]) for k in _PLACES if k in found[0].labels]
            bare = self.store.instant(self._over_window(("up", "process_start_time_seconds"), known), self.request.end)
            if isinstance(bare, Failure):
                return bare
            if bare:
                found = self._grouped(rows, frozenset(k for row in bare for k in row.labels))
        return found

    def _grouped(self, rows: Sequence[Row], outer: frozenset[str] | None) -> list[_Target]:
        """Targets of anchor rows. ``outer``: the labels of series that carry nothing but the target's own labels."""
        found: dict[tuple[tuple[str, str], ...], _Target] = {}
        for row in rows:
            name = row.labels.get("__name__", "")
            vocabulary = next((v for v in self.request.vocabularies if name in v.anchors), None)
            if vocabulary is None:
                continue
            labels = {
                k: v
                for k, v in row.labels.items()
                if k != "__name__" and k not in vocabulary.inner and (outer is None or k in outer)
            }
            key = tuple(sorted(labels.items()))
            old = found.get(key)
            if old is None or _rank(name, self.request.vocabularies) < _rank(old.anchor, self.request.vocabularies):
                found[key] = _Target(labels, name, vocabulary)
        return [found[key] for key in sorted(found)]

    def _several(self, targets: Sequence[_Target]) -> str:
        differing = [
            k
            for k in _by_use({k for t in targets for k in t.labels})
            if len({t.labels.get(k, "") for t in targets}) > 1
        ]
        alone = next((k for k in differing if len({t.labels.get(k, "") for t in targets}) == len(targets)), None)
        lines = []
        for target in targets[:SHOWN]:
            more = [Matcher(k, "=", target.labels.get(k, "")) for k in ([alone] if alone else differing)]
            kept = [m for m in self.request.select if m.label not in {n.label for n in more}]
            lines.append(f"  --select '{_shown((*kept, *more))}'   {target.vocabulary.engine}")
        if len(targets) > SHOWN:
            lines.append(f"  and {len(targets) - SHOWN} more")
        chosen = f"--select '{_shown(self.request.select)}'" if self.request.select else "without --select"
        return f"{chosen} matches {len(targets)} servers; one at a time, give one of\n" + "\n".join(lines)

    def _none(self, anchors: Sequence[str]) -> Failure:
        """Nothing matches: say what was looked for and what there is."""
        request = self.request
        window = f"between {_iso(request.start)} and {_iso(request.end)}"
        looked = ", ".join(anchors[:3]) + (f" and {len(anchors) - 3} more names" if len(anchors) > 3 else "")
        if not request.select:
            raise NotOneTarget(
                f"{self.store.origin} has no server of a known engine {window} (looked for {looked}): is it the store that "
                "scrapes the server, and is the time right? A server scraped for the first time just now appears after "
                "half a minute"
            )
        asked = list(dict.fromkeys(m.label for m in request.select))
        by = list(dict.fromkeys([*asked, "job", "instance"]))
        rows = self.store.instant(
            f"topk({SHOWN * 4}, count by ({', '.join(by)}) ({self._over_window(anchors, ())}))", request.end
        )
        if isinstance(rows, Failure):
            return rows
        if not rows:
            raise NotOneTarget(
                f"--select '{_shown(request.select)}' matches no server {window}, and {self.store.origin} has none of a known "
                f"engine then (looked for {looked}): is the time right, and is it the store that scrapes the server?"
            )
        lines = []
        for label in by:
            values = sorted({row.labels[label] for row in rows if row.labels.get(label)})
            more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
            told = ", ".join(values[:SHOWN]) + more if values else "(no server has this label)"
            lines.append(f"  {label}: {told}")
        raise NotOneTarget(
            f"--select '{_shown(request.select)}' matches no server {window} (looked for {looked}); there are\n"
            + "\n".join(lines)
        )

    # -- its pages

    def _pages(self, target: _Target) -> list[Member]:
        # what the user wants absent is not among the labels of the target
        absent = [
            m for m in self.request.select if m.label not in target.labels and (m.op in ("!=", "!~") or not m.value)
        ]
        select = (*(Matcher(k, "=", target.labels[k]) for k in _by_use(target.labels)), *absent)
        times = self._range(f"max(timestamp({selector((target.anchor,), select)}))")
        if isinstance(times, Failure):
            self.missing.append(times.missing)
            return []
        dated = {self._slot(t): float(v) for row in times for t, v in row.points if _is_time(float(v))}
        plain, split = wire_names(target.vocabulary.kinds)
        families = (("metrics", plain, False), ("metrics (histograms)", split, True))
        counts: dict[str, dict[int, int]] = {}
        counted = self._range(f"count by (__name__) ({selector((*plain, *split), select)})")
        if isinstance(counted, Failure):
            self.warnings.append(f"whether all series came could not be checked ({counted.missing.reason})")
        else:
            counts = {
                r.labels.get("__name__", ""): {self._slot(t): n for t, v in r.points if (n := _count(v)) is not None}
                for r in counted
            }
        rows: list[Row] = []
        for what, names, _ in families:
            # names nobody counted are not there: without any, the query is spared
            wanted = names if isinstance(counted, Failure) else [n for n in names if n in counts]
            if not wanted:
                continue
            got = self._range(selector(wanted, select))
            if isinstance(got, Failure):
                self.missing.append(replace(got.missing, kind=what))
                continue
            rows += got if isinstance(counted, Failure) else self._whole(got, counts, wanted, target)
        return self._written(rows, dated, target)

    def _range(self, query: str) -> tuple[Row, ...] | Failure:
        return self.store.range(query, self.first, self.request.end, self.step)

    def _slot(self, when: float) -> int:
        return round((when - self.first) / self.step)

    def _whole(
        self, rows: Sequence[Row], counts: Mapping[str, Mapping[int, int]], wanted: Sequence[str], target: _Target
    ) -> list[Row]:
        """The rows of names that came completely: a sum over some of its series, or a histogram without some of its buckets,
        would be a wrong number."""
        seen: dict[str, dict[int, int]] = {}
        for row in rows:
            slots = seen.setdefault(row.labels.get("__name__", ""), {})
            for when, _ in row.points:
                slots[self._slot(when)] = slots.get(self._slot(when), 0) + 1
        cut = {
            name
            for name in wanted
            if any(seen.get(name, {}).get(slot, 0) < count for slot, count in counts[name].items())
        }
        if cut:
            families = {family_of(name, target.vocabulary.kinds) for name in cut}
            cut = {n for n in (*wanted, *seen) if family_of(n, target.vocabulary.kinds) in families}
            total = sum(max(counts[name].values(), default=0) for name in wanted)
            self.missing.append(
                Missing(
                    "metrics", self.store.origin,
                    f"saw {len(rows)} of {total} series of this server: the store caps its answers; "
                    f"{len(families)} incomplete metrics are left out ({', '.join(sorted(families)[:4])}"
                    + (", ...)" if len(families) > 4 else ")"),
                    "raise the limit of the store, or ask the Prometheus that scrapes the server",
                )
            )  # fmt: skip
        return [row for row in rows if row.labels.get("__name__", "") not in cut]

    def _written(self, rows: Sequence[Row], dated: Mapping[int, float], target: _Target) -> list[Member]:
        """A page for each scrape that the instants show."""
        pages: dict[int, list[str]] = {}
        declared: dict[int, str] = {}
        kinds = target.vocabulary.kinds
        for row in sorted(
            rows, key=lambda r: (family_of(r.labels.get("__name__", ""), kinds), sorted(r.labels.items()))
        ):
            name = row.labels.get("__name__", "")
            family = family_of(name, kinds)
            if not _NAME.fullmatch(name) or family not in kinds:
                continue
            head = name + _labels(row.labels) + " "
            for at, value in row.points:
                slot = self._slot(at)
                page = pages.setdefault(slot, [])
                if declared.get(slot) != family:
                    declared[slot] = family
                    page.append(f"# TYPE {family} {_type(kinds[family])}\n")
                page.append(head + value + "\n")
        members: dict[float, Member] = {}
        for slot in sorted(pages):
            # an instant without the anchor shows leftovers of some series (each store has its own rule of what is stale)
            when = dated.get(slot) if dated else self.first + slot * self.step
            if when is None or when < self.request.start - 0.001 or round(when, 3) in members:
                continue
            members[round(when, 3)] = memory_member(
                f"server-1/metrics.{when:.3f}.txt", "".join(pages[slot]).encode(), kind="exposition", time=when,
                origin=f"{self.store.origin}/ {target.shown} {_iso(when)}",
            )  # fmt: skip
        self._remarks(sorted(members), target)
        return [members[when] for when in sorted(members)]

    def _remarks(self, times: Sequence[float], target: _Target) -> None:
        request = self.request
        if not times:
            if not self.missing:
                self.missing.append(
                    Missing("metrics", f"{self.store.origin} {target.shown}",
                            f"no reading between {_iso(request.start)} and {_iso(request.end)}",
                            "give a longer --since, or another --at")
                )  # fmt: skip
            return
        if len(times) < FEW:
            self.warnings.append(
                f"only {len(times)} scrapes of {target.shown} lie in the window: give a longer --since for firmer numbers"
            )
        slack = max(2 * self.step, COARSE_S)
        if request.end - times[-1] > slack:
            self.warnings.append(
                f"the last reading of {target.shown} is from {_iso(times[-1])}, {request.end - times[-1]:.0f} s before the end "
                "of the window: the server or its scraping stopped then"
            )
        if times[0] - request.start > slack:
            self.warnings.append(f"the first reading of {target.shown} in the window is from {_iso(times[0])}")
        if self.step > COARSE_S:
            self.warnings.append(
                f"the window was read at {INSTANTS} instants, {self.step:.0f} s apart: peaks between them are not seen; "
                "give a shorter --since around the incident"
            )


def _rank(name: str, vocabularies: Sequence[Vocabulary]) -> int:
    return [a for v in vocabularies for a in v.anchors].index(name)


def _shown(select: Iterable[Matcher]) -> str:
    return ",".join(map(str, select))


def selector(names: Iterable[str], select: Sequence[Matcher]) -> str:
    """``{__name__=~"a|b",job="x"}``; names are plain metric names."""
    listed = tuple(dict.fromkeys(names))
    first = f'__name__="{listed[0]}"' if len(listed) == 1 else f'__name__=~"{"|".join(listed)}"'
    return "{" + ",".join((first, *map(str, select))) + "}"


def wire_names(kinds: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(names of single values, names of the parts of histograms and summaries)."""
    plain: list[str] = []
    split: list[str] = []
    for name, kind in kinds.items():
        if kind in ("histogram", "summary"):
            split += [f"{name}_bucket" if kind == "histogram" else name, f"{name}_sum", f"{name}_count"]
        else:
            plain.append(name)
    return plain, [name for name in split if name not in plain]


def family_of(name: str, kinds: Mapping[str, str]) -> str:
    """The family a wire name belongs to: a histogram's ``_bucket``, ``_sum`` and ``_count`` to its base name."""
    if name in kinds:
        return name
    base = re.sub(r"_(?:bucket|sum|count)$", "", name)
    return base if kinds.get(base) in ("histogram", "summary") else name


def _type(kind: str) -> str:
    return "gauge" if kind == "info" else kind


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    body = ",".join(f'{k}="{escaped(v)}"' for k, v in sorted(labels.items()) if k != "__name__")
    return "{" + body + "}" if body else ""


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
