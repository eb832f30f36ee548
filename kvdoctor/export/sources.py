"""Expressions out of a user's files: Grafana dashboards (JSON), Prometheus rules, PrometheusRules and ConfigMaps (YAML)."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from typing import Any

from kvdoctor.frozen import frozen

_MAX_TEXT = 20 << 20
_MAX_NODES = 500_000
_FUNCTION = re.compile(r"^\s*(label_values|query_result|metrics|label_names)\s*\((.*)\)\s*$", re.DOTALL)
_OTHER_SOURCES = frozenset(
    {"loki", "tempo", "elasticsearch", "influxdb", "mysql", "postgres", "cloudwatch", "graphite"}
)
_DASHBOARD_KEYS = frozenset({"panels", "rows", "templating", "elements", "schemaVersion", "dashboard"})


@frozen
class Expression:
    """One PromQL text. ``line`` is where it begins; ``block`` says that its own lines are lines of the file.

    ``record`` is the name it is recorded under, ``where`` the panel, alert or variable.
    """

    file: str
    line: int
    text: str
    where: str = ""
    record: str = ""
    block: bool = False

    def line_at(self, offset: int) -> int:
        """The line of a place in the text."""
        return self.line + (self.text.count("\n", 0, offset) if self.block else 0)


@frozen
class Unreadable:
    """A file that could not be judged, and what to do about it."""

    file: str
    reason: str
    line: int = 1


def expressions(file: str, text: str) -> Iterator[Expression | Unreadable]:
    """Every expression of a file, told by its content: JSON begins with a brace or bracket, everything else is YAML."""
    if len(text) > _MAX_TEXT:
        yield Unreadable(file, f"larger than {_MAX_TEXT >> 20} MiB: not read")
        return
    body = text.removeprefix("\ufeff")
    if not body.strip():
        yield Unreadable(file, "the file is empty")
    elif body.lstrip()[0] in "{[" and not body.lstrip().startswith("{{"):
        yield from _json(file, body)
    else:
        yield from _yaml(file, body)


# ---------------------------------------------------------------------------------------------- JSON


class _Lines:
    """Finds the line of a JSON string by looking for it from where the one before was found."""

    def __init__(self, text: str, first: int = 1) -> None:
        self.text = text
        self.first = first
        self.after: dict[str, int] = {}

    def of(self, value: str) -> int:
        for ascii_only in (False, True):
            spelled = json.dumps(value, ensure_ascii=ascii_only)
            found = self.text.find(spelled, self.after.get(spelled))
            if found >= 0:
                self.after[spelled] = found + 1
                return self.first + self.text.count("\n", 0, found)
        return self.first


def _json(file: str, text: str, first: int = 1, fixed: bool = False) -> Iterator[Expression | Unreadable]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = first + getattr(error, "lineno", 1) - 1
        reason = getattr(error, "msg", "nested too deeply")
        yield Unreadable(file, f"not valid JSON: {reason}", line)
        return
    lines = _Lines(text if not fixed else "", first)
    try:
        found = list(_walk(file, document, lines))
    except RecursionError:
        yield Unreadable(file, "not valid JSON: nested too deeply", first)
        return
    if not found and not _is_dashboard(document):
        keys = ", ".join(list(document)[:5]) if isinstance(document, dict) else type(document).__name__
        yield Unreadable(
            file,
            f"JSON, but no Grafana dashboard and no rules: it has no panels and no expressions (top: {keys})",
            first,
        )
        return
    yield from found


def _is_dashboard(document: object) -> bool:
    if not isinstance(document, dict):
        return False
    return bool(_DASHBOARD_KEYS & document.keys()) or any(
        isinstance(value, dict) and _DASHBOARD_KEYS & value.keys() for value in document.values()
    )


def _walk(
    file: str, node: Any, lines: _Lines, where: str = "", source: str = "", rule: bool = False
) -> Iterator[Expression]:
    """Nested panels, rows, library elements and newer layouts alike: wherever an ``expr`` stands."""
    if isinstance(node, list):
        for item in node:
            yield from _walk(file, item, lines, where, source, rule)
        return
    if not isinstance(node, dict):
        return
    datasource = node.get("datasource")
    if isinstance(datasource, dict) and isinstance(datasource.get("type"), str):
        source = datasource["type"].lower()
    title = node.get("title") or node.get("alert") or node.get("record")
    if isinstance(title, str) and title:
        where = title
    rule = rule or "alert" in node or "record" in node
    if source in _OTHER_SOURCES:
        for key in ("panels", "rows"):
            yield from _walk(file, node.get(key), lines, where, "", rule)
        return
    for key, value in node.items():
        if key == "expr" and isinstance(value, str):
            record = node.get("record")
            yield Expression(file, lines.of(value), value, where, record if isinstance(record, str) else "")
        elif key == "templating":
            yield from _variables(file, value, lines)
        else:
            yield from _walk(file, value, lines, where, source, rule)


def _variables(file: str, templating: object, lines: _Lines) -> Iterator[Expression]:
    items = templating.get("list") if isinstance(templating, dict) else None
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or item.get("type") != "query":
            continue
        query: object = item.get("query")
        if isinstance(query, dict):
            query = query.get("query")
        if not isinstance(query, str):
            continue
        name = f"variable {item.get('name', '?')}"
        match = _FUNCTION.match(query)
        text = query
        if match is not None:
            if match[1] in ("metrics", "label_names"):
                continue
            text = f"label_values({_first_argument(match[2])})" if match[1] == "label_values" else match[2]
            if match[1] == "label_values" and "," not in match[2]:
                continue
        yield Expression(file, lines.of(query), text, name)


def _first_argument(text: str) -> str:
    depth = 0
    quote = ""
    last = len(text)
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'`":
            quote = char
        elif char in "{(":
            depth += 1
        elif char in "})":
            depth -= 1
        elif char == "," and depth == 0:
            last = at
    return text[:last]


# ---------------------------------------------------------------------------------------------- YAML


def _yaml(file: str, text: str) -> Iterator[Expression | Unreadable]:
    try:
        # optional, and without types of its own
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        yield Unreadable(file, "reading YAML needs the package pyyaml: pip install pyyaml")
        return
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: list[Expression | Unreadable] = []
    documents = 0
    try:
        for document in yaml.compose_all(text, Loader=loader):
            if document is None:
                continue
            documents += 1
            found.extend(_nodes(file, document, yaml))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = str(getattr(error, "problem", None) or "nested too deeply")
        hint = ""
        if re.search(r"^\s*\{\{-?\s*(if|range|with|end|include|define|template)\b", text, re.MULTILINE):
            hint = "; it is a Helm template: render it first (helm template) and lint the result"
        yield Unreadable(file, f"not valid YAML: {problem}{hint}", line)
        return
    if not found:
        what = "it holds no expressions" if documents else "the file is empty"
        yield Unreadable(file, f"no rules: {what} (groups with rules that have an expr are wanted)")
    yield from found


def _nodes(file: str, root: Any, yaml: Any) -> Iterator[Expression | Unreadable]:
    """Walk a node graph (aliases are followed once) without recursion."""
    seen: set[int] = set()
    stack: list[tuple[Any, str]] = [(root, "")]
    budget = _MAX_NODES
    found: list[Expression | Unreadable] = []
    while stack:
        node, where = stack.pop()
        budget -= 1
        if budget < 0:
            found.append(Unreadable(file, "too many values: the rest was not read"))
            break
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            stack.extend((item, where) for item in node.value)
        elif isinstance(node, yaml.MappingNode):
            found.extend(_mapping(file, node, where, stack, yaml))
    yield from sorted(found, key=lambda item: item.line)


def _mapping(
    file: str, node: Any, where: str, stack: list[tuple[Any, str]], yaml: Any
) -> Iterator[Expression | Unreadable]:
    texts = {
        key.value: value
        for key, value in node.value
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode)
    }
    record = texts["record"].value if "record" in texts else ""
    for name in ("alert", "record", "title"):
        if name in texts and texts[name].value:
            where = texts[name].value
            break
    for key, value in node.value:
        if not isinstance(value, yaml.ScalarNode):
            stack.append((value, where))
            continue
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        block = value.style in ("|", ">")
        line = value.start_mark.line + 1 + block
        if name == "expr":
            yield Expression(file, line, value.value, where, record, block=value.style == "|")
        elif name.endswith(".json") and value.value.lstrip().startswith("{"):
            # a dashboard inside a ConfigMap
            yield from _json(file, value.value, line, fixed=not block)
        elif name.endswith((".yaml", ".yml", ".rules")) and "expr:" in value.value:
            for item in _yaml(file, value.value):
                yield _moved(item, line - 1 if block else 0)


def _moved(item: Expression | Unreadable, by: int) -> Expression | Unreadable:
    if isinstance(item, Unreadable):
        return Unreadable(item.file, item.reason, item.line + by)
    return Expression(item.file, item.line + by, item.text, item.where, item.record, item.block)
