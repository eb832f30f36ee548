"""From a snapshot's raw members to readings in canonical roles, split into targets.

Each member is told by its content, parsed by its parser, translated by the engine table that recognises it, and put to the
server run it belongs to. A member nobody understands stays in the list of sources with what it seems to be.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from kvdoctor.engines import recognise
from kvdoctor.engines.base import COMMON_SERIES, Args, Engine, Series, SeriesName, engines
from kvdoctor.findings import SourceNote
from kvdoctor.parse import Unread, exposition, sniff
from kvdoctor.parse.serverlog import NOT_TURNED, LogEvent, ParsedLog, later_year, parse_time, scan
from kvdoctor.readings import Histogram, HostReadings, Intake, Key, LogRun, Reading, Scrape, Target, Timed
from kvdoctor.snapshot import Member, Snapshot

if TYPE_CHECKING:
    from kvdoctor.parse import endpoints, kernel
    from kvdoctor.parse.benchcsv import BenchRow
    from kvdoctor.parse.iterstats import IterationRow

T = TypeVar("T")

TEXT_LIMIT = 64 << 20
SAME_START_S = 2.0


def normalise(snapshot: Snapshot, *, engine: str | None = None) -> Intake:
    """Read every member of ``snapshot``; ``engine`` overrules detection by name."""
    return Reader(engine).intake(snapshot)


class Reader:
    """Normalises one snapshot after another (a sliding window); a member that was in the one before is not read again."""

    def __init__(self, engine: str | None = None) -> None:
        self._forced = engines().get(engine) if engine else None
        self._parts: dict[Member, _Part] = {}

    def intake(self, snapshot: Snapshot) -> Intake:
        """What :func:`normalise` gives for ``snapshot``; members that are no longer in it are forgotten."""
        year = recognise.year_of([m.time for m in snapshot.members], snapshot.taken)
        parts = {m: self._parts.get(m) or _read(m, self._forced, year) for m in snapshot.members}
        self._parts = parts
        return _Assembly(snapshot, list(parts.values())).finish()

    def kind_of(self, member: Member) -> str:
        """The kind of a member, which need not be of the last snapshot."""
        return recognise.kind_of(
            member.head(sniff.HEAD), member.kind, forced=self._forced is not None, name=member.name
        )

    def engine_of(self, member: Member) -> str | None:
        """Name of the engine whose metrics page ``member`` of the last snapshot is; None for anything else."""
        part = self._parts.get(member)
        engine = part.scrapes[0][1] if part is not None and part.scrapes else None
        return engine.name if engine is not None else None


def _read(member: Member, forced: Engine | None, year: int | None) -> _Part:
    part = _Part(forced, year)
    part.read(member)
    return part


class _Part:
    """What one member says. Never changed once it is read, so that it can stay in a sliding window."""

    def __init__(self, forced: Engine | None, year: int | None) -> None:
        self.forced = forced
        self.year = year
        self.host = HostReadings()
        self.bench: list[Timed[tuple[BenchRow, ...]]] = []
        self.sources: list[SourceNote] = []
        self.warnings: list[str] = []
        self.scrapes: list[tuple[Scrape, Engine | None, SourceNote]] = []
        self.runs: list[tuple[LogRun, SourceNote]] = []
        self.slots: list[Timed[tuple[endpoints.Slot, ...]]] = []
        self.props: list[Timed[endpoints.Props]] = []
        self.info: list[Timed[endpoints.ServerInfo]] = []
        self.router: list[Timed[endpoints.ServerInfo]] = []
        self.configs: list[Timed[Mapping[str, object]]] = []
        self.loads: list[Timed[endpoints.Loads]] = []
        self.iters: list[Timed[tuple[IterationRow, ...]]] = []
        self.versions: list[Timed[str]] = []
        self.models: list[Timed[tuple[str, float | None]]] = []
        self.commands: list[Timed[tuple[str, str]]] = []
        self.usable = False

    # ------------------------------------------------------------ members

    def read(self, member: Member) -> None:
        try:
            self._read(member)
        except (OSError, EOFError, zlib.error) as error:
            # a packed file that was cut or changed fails only while it is read
            self._note(member, member.kind or "file", f"could not be read: cut off or damaged ({error})")

    def _read(self, member: Member) -> None:
        head = member.head(sniff.HEAD)
        kind = recognise.kind_of(head, member.kind, forced=self.forced is not None, name=member.name)
        handler = getattr(self, "_" + kind.replace("-", "_"), None)
        if handler is None:
            self._note(member, kind, _NOT_UNDERSTOOD.get(kind, "not understood: no known server prints this"))
            return
        if kind == "log":
            self._log(member, head)
            return
        handler(member, _text(member))

    def _note(
        self, member: Member, kind: str, status: str, lines: int | None = None, bad: int | None = None
    ) -> SourceNote:
        if member.truncated:
            status += ", cut"
        note = SourceNote(kind, member.origin, status, lines, bad)
        self.sources.append(note)
        return note

    def _exposition(self, member: Member, text: str) -> None:
        page = exposition.parse(text, origin=member.origin)
        if isinstance(page, exposition.NotExposition):
            self._note(member, "exposition", f"not a metrics page: {page.reason}")
            return
        status = "ok" if not page.bad_count else f"{page.bad_count} lines could not be read"
        if page.truncated:
            status = "cut at the end; the rest was read"
        if page.duplicates:
            status += f", {len(page.duplicates)} series twice"
        note = self._note(member, "metrics", status, page.lines, page.bad_count)
        primary = self.forced or recognise.of_page(page.by_name)
        side = [e for e in recognise.side() if recognise.count(page.by_name, e)]
        scrape = read_scrape(
            page, [e for e in (primary, *side) if e is not None], member.origin, recognise.page_time(page, member.time)
        )
        if any(e.name == "dcgm-exporter" for e in side):
            self.host.exporter.append(scrape)
            if primary is None:
                self.usable = True
                return
        if primary is None and not side:
            if scrape.values:
                self.sources[-1] = replace(note, status="metrics of no known engine: only process figures were read")
            else:
                self.sources[-1] = replace(note, status="metrics of no known engine: nothing was used")
            if not scrape.values:
                return
        self.usable = self.usable or primary is not None
        self.scrapes.append((scrape, primary, self.sources[-1]))

    def _log(self, member: Member, head: bytes) -> None:
        first = member.head(recognise.EDGE)
        edges = [first] if member.size <= recognise.EDGE else [first, member.tail(recognise.EDGE)]
        found = self.forced or recognise.of_log(edges)
        templates = recognise.log_templates(found, edges)
        with member.open() as stream:
            parsed = scan(stream, templates, year=self.year)
        self._add_log(member, found, parsed)
        said = recognise.kernel_lines(edges)
        if said is not None:
            self._kernel_in_log(member, said)

    def _kernel_in_log(self, member: Member, text: str) -> None:
        """A journal holds the kernel's lines between the server's."""
        from kvdoctor.parse import kernel

        parsed = kernel.kernel_log(text)
        if not isinstance(parsed, kernel.NotThis) and (parsed.xids or parsed.kills or parsed.stalls):
            self.usable = True
            self.host.kernel.append(Timed(member.origin, member.time, parsed))

    # most parsers are loaded only where a file needs them

    def _log_events(self, member: Member, text: str) -> None:
        from kvdoctor.parse import logevents

        loaded = logevents.load(text)
        if isinstance(loaded, Unread):
            self._note(member, "log", f"could not be read: {loaded.reason}")
            return
        name, parsed = loaded
        self._add_log(member, self.forced or engines().get(name or ""), parsed)

    def _add_log(self, member: Member, found: Engine | None, parsed: ParsedLog) -> None:
        engine_events = [e for e in parsed.events if e.event not in ("error", "exit")]
        status = (
            f"log of {found.title}" if found else "log of an unknown engine: only causes common to all are looked for"
        )
        if not engine_events and not found and not parsed.events:
            status = "text without a line kvdoctor knows"
        if parsed.wrapping:
            status += f", unwrapped from {parsed.wrapping}"
        if parsed.encoding != "utf-8":
            status += f", {parsed.encoding}"
        if parsed.order:
            status += ", newest line first"
        if parsed.order == NOT_TURNED:
            self.warnings.append(
                f"{member.origin}: the newest line comes first, and the log is too large to be turned round: its oldest line "
                "was taken for the last; export it with the oldest line first (reverse it: tac)"
            )
        for template, count in parsed.dropped.items():
            self.warnings.append(
                f"{member.origin}: {count} earlier lines of kind {template} are beyond the memory bound; the newest were judged"
            )
        note = self._note(member, "log", status, parsed.lines, parsed.bad_lines)
        self.usable = self.usable or bool(parsed.events)
        for run in split_runs(parsed, found, member.origin):
            self.runs.append((run, note))

    def _smi(self, member: Member, text: str) -> None:
        from kvdoctor.parse import gpu

        report = gpu.parse(text)
        if isinstance(report, gpu.NotGpu):
            self._note(member, "gpu", f"nvidia-smi output that could not be read: {report.reason}")
            return
        unread = sum(1 for r in report.readings if isinstance(r.mem_used, Unread))
        status = "ok" if not unread else f"memory not given for {unread} of {len(report.readings)} devices"
        self._note(member, "gpu", status, report.lines, report.bad_count)
        self.usable = self.usable or bool(report.readings or report.processes)
        self.host.gpu.append(Timed(member.origin, member.time, report))

    _smi_query = _smi_apps = _smi_table = _smi_q = _smi_xml = _smi

    def _kernel(self, member: Member, text: str) -> None:
        from kvdoctor.parse import kernel

        parsed = kernel.kernel_log(text)
        if isinstance(parsed, kernel.NotThis):
            self._note(member, "kernel log", f"could not be read: {parsed.reason}")
            return
        found = len(parsed.xids) + len(parsed.kills) + len(parsed.stalls)
        self._note(
            member,
            "kernel log",
            "ok" if found else "no Xid, no out-of-memory kill, no lockup in it",
            parsed.lines,
            parsed.bad_count,
        )
        self.usable = self.usable or bool(found)
        self.host.kernel.append(Timed(member.origin, member.time, parsed))

    def _ps(self, member: Member, text: str) -> None:
        from kvdoctor.parse import kernel

        parsed = kernel.ps(text)
        if isinstance(parsed, kernel.NotThis):
            self._note(member, "processes", f"could not be read: {parsed.reason}")
            return
        self._note(member, "processes", "ok", parsed.lines, parsed.bad_count)
        self.usable = self.usable or bool(parsed.processes or parsed.usages)
        self.host.processes.append(Timed(member.origin, member.time, parsed))

    def _kubectl(self, member: Member, text: str) -> None:
        from kvdoctor.parse import kernel

        parsed = kernel.kubectl(text)
        if isinstance(parsed, kernel.NotThis):
            self._note(member, "kubectl", f"not used: {parsed.reason}")
            return
        self.host.kube.append(Timed(member.origin, member.time, parsed))
        self.usable = True
        self._note(member, "kubectl", "ok", parsed.lines)

    def _cgroup(self, member: Member, text: str) -> None:
        from kvdoctor.parse import kernel

        parsed = kernel.cgroup(text, name=member.name)
        if isinstance(parsed, kernel.NotThis):
            self._note(member, "cgroup", f"could not be read: {parsed.reason}")
            return
        self.host.cgroups.append(Timed(member.origin, member.time, parsed))
        self.usable = True
        self._note(member, "cgroup", "ok", parsed.lines, parsed.bad_count)

    def _meminfo(self, member: Member, text: str) -> None:
        from kvdoctor.parse import kernel

        parsed = kernel.meminfo(text)
        if isinstance(parsed, kernel.NotThis):
            self._note(member, "meminfo", f"could not be read: {parsed.reason}")
            return
        self.host.meminfo.append(Timed(member.origin, member.time, parsed))
        self._note(member, "meminfo", "ok", parsed.lines, parsed.bad_count)

    def _iterstats(self, member: Member, text: str) -> None:
        from kvdoctor.parse import iterstats

        stats = iterstats.parse(text)
        if isinstance(stats, iterstats.NotIterationStats):
            self._note(member, "iteration stats", f"could not be read: {stats.reason}")
            return
        self._note(member, "iteration stats", "ok", len(stats.rows) + stats.bad_count, stats.bad_count)
        self.usable = self.usable or bool(stats.rows)
        self.iters.append(Timed(member.origin, member.time, tuple(stats.rows)))

    def _slots(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        self._endpoint(member, "slots", endpoints.slots(text), self.slots)

    def _props(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        self._endpoint(member, "props", endpoints.props(text), self.props)

    def _server_info(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        self._endpoint(member, "server info", endpoints.server_info(text), self.info)

    def _router_info(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        self._endpoint(member, "server info", endpoints.router_info(text), self.router)

    def _model_config(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        found = endpoints.model_config(text)
        if isinstance(found, Unread):
            self._note(member, "model config", f"not used: {found.reason}")
            return
        self.configs.append(Timed(member.origin, member.time, found))
        self._note(member, "model config", "ok")

    def _loads(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        self._endpoint(member, "loads", endpoints.loads(text), self.loads)

    def _endpoint(self, member: Member, kind: str, parsed: T | Unread, into: list[Timed[T]]) -> None:
        if isinstance(parsed, Unread):
            self._note(member, kind, f"could not be read: {parsed.reason}")
            return
        self._note(member, kind, "ok")
        self.usable = True
        into.append(Timed(member.origin, member.time, parsed))

    def _version(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        found = endpoints.version(text)
        if isinstance(found, Unread):
            self._note(member, "version", f"could not be read: {found.reason}")
            return
        self.versions.append(Timed(member.origin, member.time, found))
        self._note(member, "version", "ok")

    def _models(self, member: Member, text: str) -> None:
        from kvdoctor.parse import endpoints

        found = endpoints.models(text)
        if isinstance(found, Unread):
            self._note(member, "models", f"could not be read: {found.reason}")
            return
        self.models.extend(Timed(member.origin, member.time, one) for one in found)
        self._note(member, "models", "ok")

    def _command(self, member: Member, text: str) -> None:
        """``ENGINE<newline>FLAGS``: a command line found by discovery, secrets already masked."""
        name, _, flags = text.partition("\n")
        self.commands.append(Timed(member.origin, member.time, (name.strip(), flags)))
        self._note(member, "command line", "ok")

    def _torch_snapshot(self, member: Member, text: str) -> None:
        from kvdoctor.parse import torch_snapshot

        parsed = torch_snapshot.load(member.read())
        if isinstance(parsed, torch_snapshot.Refused):
            self._note(member, "torch snapshot", f"not read: {parsed.reason}")
            return
        self._note(member, "torch snapshot", "ok")
        self.usable = True
        self.host.torch.append(Timed(member.origin, member.time, parsed))

    def _probe(self, member: Member, text: str) -> None:
        from kvdoctor.parse import probe_result

        parsed = probe_result.load(text)
        if isinstance(parsed, probe_result.NotAProbe):
            self._note(member, "probe result", f"not read: {parsed.reason}")
            return
        self._note(member, "probe result", "ok")
        self.usable = True
        self.host.probes.append(Timed(member.origin, member.time, parsed))

    def _bench_csv(self, member: Member, text: str) -> None:
        from kvdoctor.parse import benchcsv

        parsed = benchcsv.parse(text, origin=member.origin)
        if isinstance(parsed, benchcsv.NotBench):
            self._note(member, "benchmark", f"not read: {parsed.reason}")
            return
        self._note(
            member, "benchmark", "ok" if parsed.rows else "no row could be read", text.count("\n"), parsed.bad_count
        )
        self.usable = self.usable or bool(parsed.rows)
        self.bench.append(Timed(member.origin, member.time, tuple(parsed.rows)))


class _Assembly:
    """The parts of a snapshot put to the server runs they belong to."""

    def __init__(self, snapshot: Snapshot, parts: Sequence[_Part]) -> None:
        self.sources: list[SourceNote] = [
            SourceNote(m.kind, m.origin, f"missing: {m.reason}" + (f" ({m.hint})" if m.hint else ""))
            for m in snapshot.missing
        ]
        self.warnings = list(snapshot.warnings)
        self.usable = any(p.usable for p in parts)
        self.sources.extend(s for p in parts for s in p.sources)
        self.warnings.extend(w for p in parts for w in p.warnings)
        self.bench = [b for p in parts for b in p.bench]
        self.scrapes = [s for p in parts for s in p.scrapes]
        runs = [r for p in parts for r in p.runs]
        self.slots = [i for p in parts for i in p.slots]
        self.props = [i for p in parts for i in p.props]
        self.info = [i for p in parts for i in p.info]
        self.router = [i for p in parts for i in p.router]
        self.configs = [i for p in parts for i in p.configs]
        self.loads = [i for p in parts for i in p.loads]
        self.iters = [i for p in parts for i in p.iters]
        self.versions = [i for p in parts for i in p.versions]
        self.models = [i for p in parts for i in p.models]
        self.commands = [i for p in parts for i in p.commands]
        self.host = HostReadings()
        for room in fields(HostReadings):
            into = getattr(self.host, room.name)
            for part in parts:
                into.extend(getattr(part.host, room.name))
        self.runs = _on_one_clock(runs, [s[0] for s in self.scrapes], _kernel_times(self.host), self.warnings)
        _kernel_on_clock(self.host, self.runs)

    def finish(self) -> Intake:
        targets = self._targets()
        self._attach_endpoints(targets)
        for target in targets:
            _settle(target)
        _name(targets)
        return Intake(targets, self.host, self.bench, self.sources, self.warnings, self.usable)

    def _targets(self) -> list[Target]:
        targets: list[Target] = []
        for scrapes, engine, notes, earlier in _servers(self.scrapes, self.warnings):
            target = Target("", engine, None, scrapes[-1].model or None, {}, scrapes, earlier_runs=earlier)
            target.sources.extend(notes)
            targets.append(target)
        with_pages = list(targets)
        # a log beside the pages of its server has the better claim than one from elsewhere
        groups = sorted(_same_run(self.runs), key=lambda g: not _beside(g[0][0].origin, with_pages))
        starts = Counter(_rivalry(g[0][0], with_pages) for g in groups if any(r.has_start for r, _ in g))
        for group in groups:
            run = group[0][0]
            rivals = starts[_rivalry(run, with_pages)] if run.engine is not None else 0
            alone = rivals <= 1 or not any(r.has_start for r, _ in group)
            home = _home(group, with_pages, alone=alone)
            if home is None and not any(r.has_start or r.of("stats") for r, _ in group):
                # a fragment without a start or a stats line (a client's error log) belongs to the only server of its engine
                same = [t for t in targets if t.engine is run.engine and run.engine is not None]
                home = same[0] if len(same) == 1 else None
            if home is None:
                home = Target("", run.engine, run.version, run.model or None, {})
                targets.append(home)
            home.logs.extend(r for r, _ in group)
            home.sources.extend(n for _, n in group if n not in home.sources)
        return _count_restarts(_fold_generic(targets))

    def _attach_endpoints(self, targets: list[Target]) -> None:
        answers: tuple[tuple[str, Sequence[Timed[Any]], str], ...] = (
            ("llamacpp", self.slots, "slots"),
            ("llamacpp", self.props, "props"),
            ("sglang", self.info, "server_info"),
            ("sglang", self.loads, "loads"),
            ("tgi", self.router, "server_info"),
            ("tensorrt-llm", self.iters, "iterations"),
        )
        for name, items, attribute in answers:
            for item in sorted(items, key=lambda i: (i.time is None, i.time or 0.0, _natural(i.origin))):
                owner = self._owner(name, item.origin, targets)
                getattr(owner, attribute).append(item)
                owner.sources.extend(s for s in self.sources if s.origin == item.origin and s not in owner.sources)
        for command in self.commands:
            home = next((t for t in targets if t.engine is not None and t.engine.name == command.value[0]), None)
            if home is None:
                home = Target("", engines().get(command.value[0]), None, None, {})
                targets.append(home)
            if home.engine is not None:
                home.args = {**flags_to_args(command.value[1]), **home.args}
        for config in self.configs:
            near = [t for t in targets if _place(config.origin) in {_place(o) for o in _origins(t)}] or targets
            # one configuration beside servers of several models belongs to nobody
            if len({_base(t.model) for t in near if t.model}) <= 1:
                for target in near:
                    target.config = config
        if len(targets) == 1:
            if self.versions:
                targets[0].version = targets[0].version or self.versions[-1].value
            for item in self.models:
                targets[0].model = targets[0].model or item.value[0]
                if item.value[1] is not None:
                    targets[0].args.setdefault("max_model_len", f"{item.value[1]:.0f}")

    @staticmethod
    def _owner(name: str, origin: str, targets: list[Target]) -> Target:
        """The server of engine ``name`` that answered what is kept in ``origin``: the one in its folder, else the first."""
        same = [t for t in targets if t.engine is not None and t.engine.name == name]
        near = [t for t in same if _place(origin) in {_place(o) for o in _origins(t)}]
        if near or same:
            return (near or same)[0]
        blank = [t for t in targets if t.engine is None and not t.scrapes]
        if len(blank) == 1:
            blank[0].engine = engines().get(name)
            return blank[0]
        made = Target("", engines().get(name), None, None, {})
        targets.append(made)
        return made


def _origins(target: Target) -> list[str]:
    return [s.origin for s in target.scrapes] + [r.origin for r in target.logs]


_NOT_UNDERSTOOD = {
    "empty": "empty",
    "binary": "not understood: binary data that is no torch memory snapshot",
    "html": "not understood: an HTML page (a proxy or error page instead of metrics?)",
    "prometheus-answer": "a Prometheus query result, which is not read: save the text of /metrics twice, or let kvdoctor ask "
    "(kvdoctor diagnose --prometheus URL --select LABELS)",
    "loki-answer": "a Loki query result, which is not read: save its lines as text (logcli query --output=raw)",
}


def _text(member: Member) -> str:
    return recognise.text_of(member.read(TEXT_LIMIT))


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", text) if p]


# ---------------------------------------------------------------- scrapes


def read_scrape(page: exposition.Exposition, tables: Sequence[Engine], origin: str, time: float | None) -> Scrape:
    """Translate a metrics page by engine tables; per role the first (newest) name present is used."""
    scrape = Scrape(origin, time)
    seen: set[tuple[str, str]] = set()
    rank_labels = tables[0].rank_labels if tables else ()
    for series in (*COMMON_SERIES, *(s for table in tables for s in table.series)):
        if (series.role, series.names[0].key) in seen:
            continue
        for name in series.names:
            if name.ignore:
                if name.name in page.by_name:
                    scrape.ignored[name.name] = name.ignore
                continue
            if _read_name(page, series, name, rank_labels, scrape):
                seen.add((series.role, series.names[0].key))
                break
    for made in page.created:
        if tables and made.startswith(tables[0].metric_prefixes):
            scrape.created[made] = max(sample.value for sample in page.by_name[made])
    for samples in page.by_name.values():
        for sample in samples:
            for label in ("model_name", "model", "model_id"):
                if sample.labels.get(label) and not scrape.model:
                    scrape.model = sample.labels[label]
            kept = {
                k: sample.labels[k]
                for k in ("instance", "pod", "job", "namespace", "hostname", "Hostname")
                if k in sample.labels
            }
            if kept and not scrape.labels:
                scrape.labels = kept
        if scrape.model and scrape.labels:
            break
    return scrape


GLANCE_ROLES = (
    "kv.usage",
    "kv.used_tokens",
    "kv.pool_tokens",
    "req.running",
    "req.waiting",
    "preempt.total",
    "tok.generated",
    "tok.gen_rate",
)
"""Roles that a display shows between two diagnoses."""


def glance(member: Member, engine_name: str) -> Scrape | None:
    """The roles of :data:`GLANCE_ROLES` and the process figures of one metrics page; only the lines that hold them are read.

    None when the bytes are no metrics page.
    """
    names, table = _glance_table(engine_name)
    kept = [line for line in _text(member).split("\n") if line.startswith(names)]
    page = exposition.parse("\n".join([*kept, ""]), origin=member.origin)
    if isinstance(page, exposition.NotExposition):
        return None
    return read_scrape(page, [table], member.origin, recognise.page_time(page, member.time))


@cache
def _glance_table(engine_name: str) -> tuple[tuple[str, ...], Engine]:
    table = engines()[engine_name]
    series = tuple(s for s in table.series if s.role in GLANCE_ROLES)
    names = tuple(n.name for s in (*COMMON_SERIES, *series) for n in s.names)
    return names, replace(table, series=series)


_REPLICA_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Labels whose values repeat one and the same reading (each tensor-parallel rank exports it)."""


MOST = 1e30
"""No count, size or time of a server comes near; beyond it sums would overflow."""


def _read_name(
    page: exposition.Exposition, series: Series, name: SeriesName, rank_labels: Sequence[str], scrape: Scrape
) -> bool:
    if name.kind in ("histogram", "summary"):
        return _read_histogram(page, series, name, rank_labels, scrape)
    samples = [s for s in page.by_name.get(name.name, ()) if _fits(s, name)]
    if not samples:
        return False
    if name.kind == "info":
        scrape.infos[series.role] = (samples[0].labels, f"{scrape.origin}:{samples[0].line} {name.name}")
        return True
    grouped: dict[Key, dict[tuple[tuple[str, str], ...], tuple[float, int]]] = {}
    for sample in samples:
        if not abs(sample.value) < MOST:
            continue  # NaN, Inf, and what no server can have counted
        key = (_rank(sample.labels, rank_labels), _split_key(sample, name))
        rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in _REPLICA_LABELS))
        slot = grouped.setdefault(key, {})
        value = sample.value * name.scale
        if rest not in slot or value > slot[rest][0]:
            slot[rest] = (value, sample.line)
    if not grouped:
        return False
    target = scrape.values.setdefault(series.role, {})
    for key, parts in grouped.items():
        values = [v for v, _ in parts.values()]
        total = math.fsum(values) if name.kind == "counter" else max(values)
        target[key] = Reading(total, f"{scrape.origin}:{next(iter(parts.values()))[1]} {name.name}")
    return True


def _fits(sample: exposition.Sample, name: SeriesName) -> bool:
    """An empty value in ``where`` means: the label is absent or empty."""
    return all(sample.labels.get(k, "") == v for k, v in name.where.items())


def _split_key(sample: exposition.Sample, name: SeriesName) -> str:
    return name.key or (sample.labels.get(name.by, "") if name.by else "")


def _rank(labels: Mapping[str, str], rank_labels: Sequence[str]) -> str:
    found = [labels[k] for k in rank_labels if labels.get(k)]
    return ".".join(found)


def _read_histogram(
    page: exposition.Exposition, series: Series, name: SeriesName, rank_labels: Sequence[str], scrape: Scrape
) -> bool:
    buckets: dict[Key, dict[float, float]] = {}
    line = 0
    for sample in page.by_name.get(name.name + "_bucket", ()):
        if not _fits(sample, name) or "le" not in sample.labels:
            continue
        try:
            edge = float(sample.labels["le"].replace("+Inf", "inf")) * name.scale
        except ValueError:
            continue
        key = (_rank(sample.labels, rank_labels), _split_key(sample, name))
        slot = buckets.setdefault(key, {})
        slot[edge] = slot.get(edge, 0.0) + sample.value
        line = line or sample.line
    quantiles: dict[Key, dict[float, float]] = {}
    for sample in page.by_name.get(name.name, ()):
        if _fits(sample, name) and "quantile" in sample.labels:
            key = (_rank(sample.labels, rank_labels), _split_key(sample, name))
            quantiles.setdefault(key, {})[float(sample.labels["quantile"])] = sample.value * name.scale
            line = line or sample.line
    totals = _totals(page, name, rank_labels, "_count", 1.0)
    sums = _totals(page, name, rank_labels, "_sum", name.scale)
    keys = buckets.keys() | quantiles.keys() | totals.keys()
    if not keys:
        return False
    target = scrape.histograms.setdefault(series.role, {})
    for key in keys:
        histogram = Histogram(
            tuple(sorted(buckets.get(key, {}).items())),
            totals.get(key),
            sums.get(key),
            tuple(sorted(quantiles.get(key, {}).items())),
        )
        target[key] = (histogram, f"{scrape.origin}:{line} {name.name}" if line else f"{scrape.origin} {name.name}")
    return True


def _totals(
    page: exposition.Exposition, name: SeriesName, rank_labels: Sequence[str], suffix: str, scale: float
) -> dict[Key, float]:
    out: dict[Key, float] = {}
    for sample in page.by_name.get(name.name + suffix, ()):
        if _fits(sample, name):
            key = (_rank(sample.labels, rank_labels), _split_key(sample, name))
            out[key] = out.get(key, 0.0) + sample.value * scale
    return out


_Page = tuple[Scrape, Engine | None, SourceNote]


def _servers(
    pages: list[_Page], warnings: list[str]
) -> list[tuple[list[Scrape], Engine | None, list[SourceNote], int]]:
    """Pages of one server run together, in order; runs of the same server count as restarts when they do not overlap."""
    servers: dict[tuple[object, ...], list[_Page]] = {}
    for page in pages:
        scrape, engine, _ = page
        identity: tuple[object, ...] = (
            engine.name if engine else None, scrape.model,
            tuple(sorted((k, v) for k, v in scrape.labels.items())), _place(scrape.origin),
        )  # fmt: skip
        servers.setdefault(identity, []).append(page)
    for identity, group in list(servers.items()):
        # a page without a model beside the pages of one named server (SGLang's /v1/loads as text): another view of it
        named = [i for i in servers if i[0] == identity[0] and i[1] and i[3] == identity[3]]
        if not identity[1] and len(named) == 1 and all(_process_start(p[0]) is None for p in group):
            for scrape, _, note in group:
                warnings.append(
                    f"{scrape.origin} is another page of the same server ({note.status}): its gauges were not used for the window"
                )
            del servers[identity]
    out: list[tuple[list[Scrape], Engine | None, list[SourceNote], int]] = []
    for group in [part for pages_of_one in servers.values() for part in _apart(pages_of_one)]:
        runs: list[list[_Page]] = []
        for page in sorted(group, key=_page_order):
            home = next((r for r in runs if _same_process(r[-1][0], page[0])), None)
            if home is None:
                runs.append([page])
            else:
                home.append(page)
        runs = [_ordered(r) for r in runs]
        disjoint = all(
            a[-1][0].time is not None and b[0][0].time is not None and a[-1][0].time <= b[0][0].time
            for a, b in zip(runs, runs[1:], strict=False)
        )
        for index, run in enumerate(runs):
            out.append(([p[0] for p in run], run[0][1], [p[2] for p in run], index if disjoint else 0))
        if len(runs) > 1 and disjoint:
            warnings.append(
                f"the server restarted {len(runs) - 1} time(s) between the scrapes ({runs[-1][0][0].origin} is the first after it); "
                "no difference is taken across a restart"
            )
    return out


def _apart(group: list[_Page]) -> list[list[_Page]]:
    """Replicas of one model scraped into one folder: one server has no two pages of the same instant.

    They are told apart by what stands in their names before the time, where that makes every part's instants different.
    Two names whose pages alternate are two servers as well, and without a clock two names that are both counted 1, 2, 3;
    unless the process says that it is the same one.
    """
    if all(page[0].time is None for page in group):
        parts = _by_name(group, _COUNT_IN_NAME)
        counts = [{m[1] for page in part if (m := _COUNT_IN_NAME.search(page[0].origin))} for part in parts]
        together = len(counts[0]) > 1 and all(count == counts[0] for count in counts)
        return parts if together and not _one_process(group) else [group]
    parts = _by_name(group, _TIME_IN_NAME)
    if _repeats(group):
        return [group] if any(_repeats(part) for part in parts) else parts
    spans = [(min(times), max(times)) for part in parts if len(times := _times(part)) > 1]
    alternate = len(spans) == len(parts) > 1 and max(lo for lo, _ in spans) < min(hi for _, hi in spans)
    return parts if alternate and not _one_process(group) else [group]


def _by_name(group: list[_Page], end: re.Pattern[str]) -> list[list[_Page]]:
    parts: dict[str, list[_Page]] = {}
    for page in group:
        parts.setdefault(end.sub("", page[0].origin), []).append(page)
    return list(parts.values())


def _times(pages: list[_Page]) -> list[float]:
    return [page[0].time for page in pages if page[0].time is not None]


def _one_process(group: list[_Page]) -> bool:
    born = [start for page in group if (start := _process_start(page[0])) is not None]
    return len(born) == len(group) and max(born) - min(born) <= SAME_START_S


_COUNT_IN_NAME = re.compile(r"([0-9]{1,6})(?:\.[a-z]{1,8}){0,2}$")
_TIME_IN_NAME = re.compile(
    r"(?:[0-9]{9,13}(?:\.[0-9]{1,9})?|20[0-9]{2}-?[0-9]{2}-?[0-9]{2}[T_-]?[0-9]{2}[-:_]?[0-9]{2}[-:_]?[0-9]{2}Z?)"
    r"(?:\.[a-z]{1,8}){0,2}$"
)


def _repeats(group: list[_Page]) -> bool:
    times = _times(group)
    return len(times) != len(set(times))


def _place(origin: str) -> str:
    """What distinguishes two servers by origin: the folder of a file, the host and port of a URL."""
    match = re.match(r"https?://([^/]+)", origin)
    if match:
        return match.group(1)
    return os.path.dirname(origin)


def _same_process(a: Scrape, b: Scrape) -> bool:
    start_a, start_b = _process_start(a), _process_start(b)
    if start_a is not None and start_b is not None and abs(start_a - start_b) > SAME_START_S:
        return False
    return not any(
        abs(b.created[n] - t) > SAME_START_S and b.created[n] > t for n, t in a.created.items() if n in b.created
    )


def _process_start(scrape: Scrape) -> float | None:
    values = [r.value for r in scrape.values.get("run.start", {}).values()]
    return max(values) if values else None


def _progress(scrape: Scrape) -> tuple[float, float]:
    cpu = [r.value for r in scrape.values.get("run.cpu", {}).values()]
    roles = ("tok.prompt", "tok.generated", "req.finished", "preempt.total", "prefix.queries", "tok.prefill_compute")
    total = math.fsum(r.value for role in roles for r in scrape.values.get(role, {}).values())
    return (max(cpu) if cpu else 0.0, total)


def _page_order(page: _Page) -> tuple[object, ...]:
    scrape = page[0]
    if scrape.time is not None:
        return (0, scrape.time, 0.0, [])
    return (1, *_progress(scrape), _natural(scrape.origin))


def _ordered(run: list[_Page]) -> list[_Page]:
    """By time; where times are missing, by monotone counters, then by name."""
    if all(p[0].time is not None for p in run):
        return sorted(run, key=lambda p: p[0].time or 0.0)
    return sorted(run, key=lambda p: (*_progress(p[0]), _natural(p[0].origin)))


# ---------------------------------------------------------------- time

ZONE_STEP_S = 1_800.0
FARTHEST_ZONE_S = 14 * 3_600.0
LINE_EVERY_S = 15.0


def _on_one_clock(
    runs: list[tuple[LogRun, SourceNote]], scrapes: Sequence[Scrape], kernel_times: Sequence[float], warnings: list[str]
) -> list[tuple[LogRun, SourceNote]]:
    """Logs whose stamps have no year or no zone, put on the clock of the scrapes where only one way fits.

    Without scrapes the kernel log tells the year.
    """
    dated = [s for s in scrapes if s.time is not None]
    ends = [s.time for s in dated[-1:] if s.time is not None] or list(kernel_times[-1:])
    if not ends:
        return runs
    logs: dict[str, list[LogRun]] = {}
    for run, _ in runs:
        logs.setdefault(run.origin, []).append(run)
    moved: dict[str, tuple[int, float]] = {}
    for origin, pieces in logs.items():
        if pieces[0].clock == "zone" or pieces[-1].last_time is None:
            continue
        years = _years_off(pieces[-1].last_time, ends[0]) if pieces[0].clock == "yearless" else 0
        shift = _zone_off(pieces, years, dated)
        if shift:
            warnings.append(
                f"{origin}: its clock has no zone; its lines fit the scrapes {shift / 3600:+g} h from UTC and were put there"
            )
        if years or shift:
            moved[origin] = (years, shift)
    return [(_moved(run, *moved[run.origin]) if run.origin in moved else run, note) for run, note in runs]


def _stamps(log: kernel.KernelLog) -> list[kernel.Stamp]:
    return [x.stamp for x in log.xids] + [k.stamp for k in log.kills] + [s.stamp for s in log.stalls]


def _kernel_times(host: HostReadings) -> list[float]:
    """Times with a year in the kernel logs, ascending."""
    return sorted(s.clock for log in host.kernel for s in _stamps(log.value) if s.clock is not None)


SAME_STORY_S = 600.0
SAME_MOMENT_S = 30.0


def _kernel_on_clock(host: HostReadings, runs: Sequence[tuple[LogRun, SourceNote]]) -> None:
    """Kernel lines without a year or a zone, put on the clock of the servers' errors.

    Local time stays where something stands within ten minutes of an error; else it moves by half hours when exactly one
    move brings a line within half a minute of one. After this all of them count as placed.
    """
    errors = [
        e.time for run, _ in runs for e in run.events
        if e.event in ("error", "oom", "exit", "start_error") and e.time is not None
    ]  # fmt: skip
    if not errors:
        return
    for index, timed in enumerate(host.kernel):
        if all(s.zoned or (s.clock is None and s.no_year is None) for s in _stamps(timed.value)):
            continue
        dated = {s: c for s in _stamps(timed.value) if not s.zoned and (c := _with_year(s, errors)) is not None}
        shift = _shift_to(list(dated.values()), errors)
        log = timed.value
        host.kernel[index] = Timed(timed.origin, timed.time, replace(
            log,
            xids=tuple(replace(x, stamp=_placed(x.stamp, dated, shift)) for x in log.xids),
            kills=tuple(replace(k, stamp=_placed(k.stamp, dated, shift)) for k in log.kills),
            stalls=tuple(replace(s, stamp=_placed(s.stamp, dated, shift)) for s in log.stalls),
        ))  # fmt: skip


def _with_year(stamp: kernel.Stamp, errors: Sequence[float]) -> float | None:
    if stamp.clock is not None or stamp.no_year is None:
        return stamp.clock
    year = datetime.fromtimestamp(errors[-1], UTC).year
    guesses = [parse_time(stamp.no_year, year + more)[0] for more in (0, -1, 1)]
    return min((g for g in guesses if g is not None), key=lambda g: abs(g - errors[-1]), default=None)


def _shift_to(times: Sequence[float], errors: Sequence[float]) -> float:
    def nearest(shift: float) -> float:
        return min((abs(t + shift - e) for t in times for e in errors), default=math.inf)

    if nearest(0.0) <= SAME_STORY_S:
        return 0.0
    steps = int(FARTHEST_ZONE_S / ZONE_STEP_S)
    fits = [k * ZONE_STEP_S for k in range(-steps, steps + 1) if nearest(k * ZONE_STEP_S) <= SAME_MOMENT_S]
    return fits[0] if len(fits) == 1 else 0.0


def _placed(stamp: kernel.Stamp, dated: Mapping[kernel.Stamp, float], shift: float) -> kernel.Stamp:
    clock = dated.get(stamp)
    return stamp if clock is None else replace(stamp, clock=clock + shift, zoned=True)


def _years_off(last: float, end: float) -> int:
    """Years by which stamps without a year must move so that the log ends nearest to ``end``."""
    guess = datetime.fromtimestamp(end, UTC).year - datetime.fromtimestamp(last, UTC).year
    return min((guess, guess - 1, guess + 1), key=lambda years: abs(later_year(last, years) - end))


def _zone_off(pieces: Sequence[LogRun], years: int, dated: Sequence[Scrape]) -> float:
    """Seconds by which the log must move so that its stats lines say what the scrapes say; 0 when not exactly one fits."""
    lines = [
        (later_year(e.time, years), e.number("running"), e.number("kv_usage"))
        for run in pieces for e in run.events if e.event == "stats" and e.time is not None
    ]  # fmt: skip
    seen = [
        (s.time, _largest(s, "req.running"), _largest(s, "kv.usage"))
        for s in dated if s.time is not None
    ]  # fmt: skip
    if not lines or len(seen) < 2:
        return 0.0
    lines.sort(key=lambda line: line[0])
    steps = int(FARTHEST_ZONE_S / ZONE_STEP_S)
    fits = [step * ZONE_STEP_S for step in range(-steps, steps + 1) if _says_the_same(lines, seen, step * ZONE_STEP_S)]
    return fits[0] if len(fits) == 1 else 0.0


def _largest(scrape: Scrape, role: str) -> float | None:
    return max((r.value for r in scrape.values.get(role, {}).values()), default=None)


_Said = tuple[float, float | None, float | None]


def _says_the_same(lines: Sequence[_Said], seen: Sequence[_Said], shift: float) -> bool:
    """Every scrape but one at most has a line within a few seconds, and these agree in running requests and usage.

    ``lines`` are in order of time: a window holds hundreds of them and of scrapes, and fifty shifts are tried.
    """
    alone = 0
    for time, running, usage in seen:
        first = bisect_left(lines, time - shift - LINE_EVERY_S, key=_time_of)
        near = lines[first : bisect_right(lines, time - shift + LINE_EVERY_S, lo=first, key=_time_of)]
        if not near:
            alone += 1
            if alone > 1:
                return False
        elif not any(
            a is not None and running is not None and abs(a - running) <= max(2.0, 0.1 * running)
            and b is not None and usage is not None and abs(b - usage) <= 0.05
            for _, a, b in near
        ):  # fmt: skip
            return False
    return len(seen) - alone >= 2


def _time_of(said: _Said) -> float:
    return said[0]


def _moved(run: LogRun, years: int, shift: float) -> LogRun:
    def at(time: float | None) -> float | None:
        return None if time is None else later_year(time, years) + shift

    return replace(
        run,
        events=[replace(e, time=at(e.time)) for e in run.events],
        first_time=at(run.first_time),
        last_time=at(run.last_time),
    )


# ---------------------------------------------------------------- logs


_ENDS = frozenset(
    {"stats", "ready", "start_error", "oom", "exit", "graphs_end", "request_in", "request_out", "model_load"}
)


def split_runs(parsed: ParsedLog, engine: Engine | None, origin: str) -> list[LogRun]:
    """Cut a log at the banners that follow work: each piece is one run of a server."""
    pieces: list[list[LogEvent]] = [[]]
    worked = False
    for event in parsed.events:
        if event.event == "banner" and worked:
            pieces.append([])
            worked = False
        pieces[-1].append(event)
        worked = worked or event.event in _ENDS
    runs: list[LogRun] = []
    for index, events in enumerate(pieces):
        single = len(pieces) == 1
        times = [e.time for e in events if e.time is not None]
        version: str | None = None
        model = ""
        args: Args = {}
        for event in events:
            if event.event == "banner":
                version = event.text("version") or version
                model = event.text("model") or model
            if event.event == "args" and engine is not None:
                text, settings = event.text("text"), event.fields.get("settings")
                # the first mention wins: front ends print what the user gave, workers repeat it with defaults
                if isinstance(settings, Mapping):
                    args = {**settings, **args}
                elif text:
                    args = {**engine.parse_args(text), **args}
        runs.append(
            LogRun(
                origin, engine, version, args, events,
                parsed.first_time if index == 0 else (times[0] if times else None),
                parsed.last_time if index == len(pieces) - 1 else (times[-1] if times else None),
                parsed.clock, model or args.get("model", args.get("model_path", "")),
                frozenset(e.pid for e in events if e.pid is not None),
                1 if index == 0 else (events[0].line if events else 1),
                parsed.lines if single or index == len(pieces) - 1 else (pieces[index + 1][0].line - 1),
                any(e.event in ("banner", "args", "pool") for e in events), parsed.dropped,
            )
        )  # fmt: skip
    return runs


_Run = tuple[LogRun, SourceNote]


def _same_run(runs: list[_Run]) -> list[list[_Run]]:
    """Logs of one server run together: processes in common, or a continuation (rotation) in the same folder."""
    groups: list[list[_Run]] = []
    for item in runs:
        run = item[0]
        home = None
        for group in groups if run.engine is not None else ():
            other = group[-1][0]
            if other.engine is not run.engine or other.origin == run.origin:
                continue
            # containers number their processes alike: two logs that both start a server are two servers
            shared = bool((run.pids - {1}) & (other.pids - {1})) and not (_starts(run) & _starts(other))
            rotated = _stem(run.origin) == _stem(other.origin) and not (run.has_start and other.has_start)
            if shared or rotated:
                home = group
                break
        if home is None:
            groups.append([item])
        else:
            home.append(item)
            home.sort(key=lambda i: (i[0].first_time is None, i[0].first_time or 0.0, _natural(i[0].origin)))
    return groups


def _starts(run: LogRun) -> frozenset[tuple[str, str]]:
    """What of a start a log tells: kinds of start-up lines, by rank."""
    return frozenset((e.event, e.rank) for e in run.of("banner", "args", "pool"))


def _stem(origin: str) -> str:
    """``logs/server.log.2`` -> ``logs/server.log``."""
    return re.sub(r"(?:[.-]\d{1,8})?(?:\.gz)?$", "", origin)


def _base(model: str | None) -> str:
    return (model or "").rstrip("/").rsplit("/", 1)[-1].lower()


def _home(group: list[_Run], targets: list[Target], *, alone: bool) -> Target | None:
    """The scraped server a log belongs to, or None.

    Pages in the log's own folder come first. Whatever else fits, a log of another time is another run.
    """
    run = group[0][0]
    same_engine = [t for t in targets if run.engine is None or t.engine is None or t.engine.name == run.engine.name]
    fitting = [t for t in same_engine if not _another_time([r for r, _ in group], t)]
    beside = _beside(run.origin, fitting)
    if not beside and any(r.has_start for r, _ in group):
        fitting = [t for t in fitting if not _has_its_own_log(t)]
    fitting = beside or fitting
    if not fitting:
        return None
    if len(fitting) == 1 and alone:
        return fitting[0]
    served = _served_names(run)
    by_model = [t for t in fitting if t.model and _base(t.model) in served]
    if len(by_model) == 1:
        return by_model[0]
    pool = by_model or fitting
    port = run.args.get("port")
    if port:
        by_port = [t for t in pool if any(f":{port}/" in s.origin for s in t.scrapes)]
        if len(by_port) == 1:
            return by_port[0]
    overlapping = [t for t in pool if _overlap(run, t)]
    if len(overlapping) == 1:
        return overlapping[0]
    if len(pool) == 1 and not pool[0].logs:
        return pool[0]
    return None


def _beside(origin: str, targets: Sequence[Target]) -> list[Target]:
    """The servers whose pages lie in the folder of ``origin``."""
    return [t for t in targets if t.scrapes and _place(t.scrapes[0].origin) == _place(origin)]


def _rivalry(run: LogRun, targets: Sequence[Target]) -> tuple[str, str | None]:
    """Logs with the same answer may belong to the same server: those of one engine in one folder with pages, or in none."""
    return run.engine.name if run.engine else "", _place(run.origin) if _beside(run.origin, targets) else None


def _has_its_own_log(target: Target) -> bool:
    return any(r.has_start and _beside(r.origin, [target]) for r in target.logs)


IDLE_S = 86_400.0
"""A server prints nothing while it is idle: a log may end hours before the pages of the same run."""
CLOCKS_APART_S = 3_600.0


def _another_time(runs: Sequence[LogRun], target: Target) -> bool:
    """Both carry a clock, and the log starts after the last page, or comes from another folder and ends before this process.

    Where the pages do not tell when the process began, a log that ends long before them counts as an older run's. In the
    pages' own folder an early end is no sign: often only the start of a log is kept. A log without a zone may be off by hours.
    """
    firsts = [r.first_time for r in runs if r.first_time is not None]
    lasts = [r.last_time for r in runs if r.last_time is not None]
    times = [s.time for s in target.scrapes if s.time is not None]
    if not firsts or not lasts or not times or not target.clocked:
        return False
    unsure = CLOCKS_APART_S if all(r.clock == "zone" for r in runs) else FARTHEST_ZONE_S
    if min(firsts) > times[-1] + unsure:
        return True
    born = _process_start(target.scrapes[0])
    begin = times[0] - IDLE_S if born is None else born
    return not _beside(runs[0].origin, [target]) and max(lasts) < begin - unsure


def _served_names(run: LogRun) -> set[str]:
    names = {_base(run.model)}
    for key in ("served_model_name", "model", "model_path"):
        for part in re.findall(r"[\w./:-]+", run.args.get(key, "")):
            names.add(_base(part))
    return names - {""}


def _overlap(run: LogRun, target: Target) -> bool:
    if run.first_time is None or run.last_time is None or not target.clocked:
        return False
    first, last = target.scrapes[0].time, target.scrapes[-1].time
    return first is not None and last is not None and run.first_time <= last and first <= run.last_time


def _fold_generic(targets: list[Target]) -> list[Target]:
    """A log of no known engine beside exactly one server is that server's (a client log, a launcher log)."""
    known = [t for t in targets if t.engine is not None]
    generic = [t for t in targets if t.engine is None and not t.scrapes]
    if len(known) == 1:
        home, rest = known[0], generic
    elif not known and len(generic) > 1:
        home, rest = generic[0], generic[1:]
    else:
        return targets
    for extra in rest:
        home.logs.extend(extra.logs)
        home.sources.extend(extra.sources)
    gone = {id(t) for t in rest}
    return [t for t in targets if id(t) not in gone]


def _count_restarts(targets: list[Target]) -> list[Target]:
    """Number the earlier runs of targets whose logs stand in the same file."""
    last: dict[str, int] = {}
    for target in targets:
        for run in target.logs:
            if run.origin in last:
                target.earlier_runs = max(target.earlier_runs, last[run.origin] + 1)
            last[run.origin] = target.earlier_runs
    return targets


def flags_to_args(text: str) -> Args:
    """``--max-num-seqs 5 --enable-x --port=80`` -> {'max_num_seqs': '5', 'enable_x': 'True', 'port': '80'}."""
    out: Args = {}
    words = text.replace("\x00", " ").split()
    for index, word in enumerate(words):
        match = re.match(r"--?([A-Za-z][\w-]*)(?:=(.*))?$", word)
        if not match:
            continue
        key = match.group(1).replace("-", "_")
        if match.group(2) is not None:
            out[key] = match.group(2)
        elif index + 1 < len(words) and not re.match(r"--?[A-Za-z]", words[index + 1]):
            out[key] = words[index + 1]
        else:
            out[key] = "True"
    return out


def _settle(target: Target) -> None:
    """Version, model and arguments of a target from its logs, its pages and its endpoints."""
    for run in target.logs:
        target.version = target.version or run.version
        target.model = target.model or run.model or None
        target.args = {**run.args, **target.args}
    for scrape in target.scrapes:
        info = scrape.infos.get("kv.info")
        if info is not None:
            target.args = {**{k: v for k, v in info[0].items() if v}, **target.args}
    for item in target.server_info:
        target.args = {**item.value.settings, **target.args}
        target.version = target.version or item.value.version
    for prop in target.props:
        target.model = target.model or prop.value.model
        target.version = target.version or prop.value.build
        target.args = {**prop.value.settings, **target.args}
    target.model = target.model or target.setting("model")


def _name(targets: list[Target]) -> None:
    for target in targets:
        parts = [target.engine.name if target.engine else "unknown engine"]
        if target.model:
            parts.append(_base(target.model))
        target.name = " ".join(parts)
    names = [t.name for t in targets]
    for target in targets:
        if names.count(target.name) > 1:
            origins = [s.origin for s in target.scrapes[:1]] + [r.origin for r in target.logs[:1]]
            suffix = origins[0] if origins else str(targets.index(target) + 1)
            target.name += f" ({suffix}" + (f", run {target.earlier_runs + 1})" if target.earlier_runs else ")")
    seen: dict[str, int] = {}
    for target in targets:
        seen[target.name] = seen.get(target.name, 0) + 1
        if seen[target.name] > 1:
            target.name += f" #{seen[target.name]}"
