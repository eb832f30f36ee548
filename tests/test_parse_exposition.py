"""Metrics text: the traps that real bodies hold, and agreement with prometheus_client where both are defined."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvdoctor.parse.exposition import Exposition, NotExposition, Sample, parse


def read(text: str, content_type: str | None = None) -> Exposition:
    body = parse(text, content_type=content_type)
    assert isinstance(body, Exposition), body
    return body


def only(text: str) -> Sample:
    samples = read(text).samples
    assert len(samples) == 1
    return samples[0]


def test_a_plain_body_keeps_names_labels_values_and_line_numbers() -> None:
    body = read('# TYPE a gauge\na{x="1"} 2\n\nb 3.5\n')
    assert body.samples == [Sample("a", {"x": "1"}, 2.0, 2, None), Sample("b", {}, 3.5, 4, None)]
    assert body.types == {"a": "gauge"}
    assert (body.bad_count, body.truncated, body.lines) == (0, False, 4)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"C:\\dir", r"C:\dir"),
        (r"say \"hi\"", 'say "hi"'),
        (r"two\nlines", "two\nlines"),
        (r"back\\nslash", r"back\nslash"),
        (r"odd \x escape", r"odd \x escape"),
        ("} 1 # {", "} 1 # {"),
        ("a,b=c", "a,b=c"),
        (" # ", " # "),
    ],
)
def test_label_values_with_tricky_characters(written: str, meant: str) -> None:
    for tail in ("", ',z="1"'):
        sample = only(f'm{{v="{written}"{tail}}} 7\n')
        assert (sample.labels["v"], sample.value) == (meant, 7.0)


@pytest.mark.parametrize("text", ["NaN", "nan", "Nan"])
def test_nan_spellings(text: str) -> None:
    assert math.isnan(only(f"m {text}\n").value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("+Inf", math.inf), ("Inf", math.inf), ("inf", math.inf), ("-Inf", -math.inf), ("1e3", 1000.0), ("+5", 5.0)],
)
def test_number_spellings(text: str, value: float) -> None:
    assert only(f"m {text}\n").value == value


@pytest.mark.parametrize("text", ["1_000", "٣", "0x10", "1,5", "1e999", "--", "abc"])
def test_what_python_or_a_person_might_take_for_a_number_is_refused(text: str) -> None:
    body = read(f"good 1\nbad {text}\nalso 2\n")
    assert [s.name for s in body.samples] == ["good", "also"]
    assert [b.line for b in body.bad] == [2]


@pytest.mark.parametrize(
    "line",
    [
        'm_bucket{le="1"} 5 # {trace_id="x"} 0.5',
        'm_bucket{le="1"} 5 # {trace_id="x"} 0.5 1700000000',
        'm_bucket{le="1"} 5 # {} 0.5',
        'm_bucket{le="1"} 5 # {a="b",c="} 9"} 0.5 1700000000.123',
    ],
)
def test_an_exemplar_is_neither_value_nor_timestamp(line: str) -> None:
    for ending in ("\n", "\n# EOF\n"):
        sample = only(line + ending)
        assert (sample.labels, sample.value, sample.time) == ({"le": "1"}, 5.0, None)


def test_an_exemplar_after_a_timestamp_keeps_the_timestamp() -> None:
    assert only('m 5 1795957344.5 # {a="b"} 1 1\n# EOF\n').time == 1795957344.5


def test_timestamps_are_milliseconds_in_0_0_4() -> None:
    assert only('m{a="b"} 1 1795957344534\n').time == pytest.approx(1795957344.534)


def test_timestamps_are_seconds_in_openmetrics() -> None:
    assert only("m 1 1795957344.5\n# EOF\n").time == 1795957344.5
    body = read("m 1 1795957344.5\n", content_type="application/openmetrics-text; version=1.0.0")
    assert (body.openmetrics, body.samples[0].time) == (True, 1795957344.5)


def test_seconds_in_a_body_without_its_end_are_not_read_as_1970() -> None:
    assert only("m 1 1795957344\n").time is None


def test_crlf_counts_lines_as_lines() -> None:
    body = read('# TYPE m gauge\r\nm{a="b"} 1\r\nn 2\r\n')
    assert [(s.name, s.value, s.line) for s in body.samples] == [("m", 1.0, 2), ("n", 2.0, 3)]


def test_interleaved_families_and_other_separators_inside_a_value() -> None:
    body = read('a{x="1"} 1\nb 2\na{x="\u2028\x0b"} 3\n')
    assert [s.line for s in body.named("a")] == [1, 3]
    assert body.named("a")[1].labels == {"x": "\u2028\x0b"}


def test_a_series_that_stands_twice_is_kept_and_reported() -> None:
    body = read('m{a="1",b="2"} 1\nm{b="2",a="1"} 5\nm{a="2"} 9\n')
    assert [s.value for s in body.named("m")] == [1.0, 5.0, 9.0]
    assert [(d.name, dict(d.labels), d.lines) for d in body.duplicates] == [("m", {"a": "1", "b": "2"}, (1, 2))]


def test_the_same_series_at_two_times_is_no_duplicate() -> None:
    body = read("m 1 1795957344000\nm 2 1795957354000\n")
    assert body.duplicates == ()
    assert body.times() == (1795957344.0, 1795957354.0)


def test_a_cut_last_line_is_refused_because_a_cut_number_still_reads() -> None:
    body = read("kv 0.97\ntotal 104")
    assert [s.name for s in body.samples] == ["kv"]
    assert body.truncated
    assert [(b.line, b.text) for b in body.bad] == [(2, "total 104")]


def test_an_end_mark_without_line_feed_is_no_cut() -> None:
    body = read("m 1\n# EOF")
    assert (body.truncated, body.bad_count, body.openmetrics) == (False, 0, True)


def test_names_stay_as_they_are_on_the_wire() -> None:
    body = read("# TYPE tgi_request_count counter\ntgi_request_count 3\n# TYPE b_total counter\nb_total 1\n")
    assert set(body.by_name) == {"tgi_request_count", "b_total"}


def test_creation_times_are_kept_and_marked() -> None:
    body = read(
        "# TYPE a_total counter\na_total 1\n# TYPE a_created gauge\na_created 1.7e9\n"
        "# TYPE h histogram\nh_count 1\nh_created 1.7e9\n# TYPE jobs_created gauge\njobs_created 4\n"
    )
    assert body.created == {"a_created", "h_created"}
    assert body.named("a_created")[0].value == 1.7e9


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('m{a="1"', "labels not closed"),
        ('m{a="1} 2', "label value not closed"),
        ('m{a="1"b="2"} 2', "no comma between labels"),
        ('m{a="1",a="2"} 2', "label a twice"),
        ("m{a=1} 2", "label value not closed"),
        ("m{ 3", "not a label name"),
        ("m{a} 2", "label without a value"),
        ('{a="1"} 2', "not a metric name"),
        ("m", "no value"),
        ("9m 1", "not a metric name"),
        ("m-x 1", "not a metric name"),
        ("m 1 2 3", "more than a value and a timestamp"),
        ("m 1 NaN", "not a timestamp"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_kept(line: str, why: str) -> None:
    body = read(f"before 1\n{line}\nafter 2\n")
    assert [s.name for s in body.samples] == ["before", "after"]
    assert [(b.line, b.why) for b in body.bad] == [(2, why)]


def test_lenient_spacing_and_quoted_names() -> None:
    assert only(' m\t{ a = "1" , b="2", } 4\t\n') == Sample("m", {"a": "1", "b": "2"}, 4.0, 1, None)
    assert only('{"a.b", c="1"} 4\n') == Sample("a.b", {"c": "1"}, 4.0, 1, None)
    assert only('m{"c.d"="1"} 4\n') == Sample("m", {"c.d": "1"}, 4.0, 1, None)


@pytest.mark.parametrize(
    ("page", "start"),
    [
        ("<html><body><h1>502 Bad Gateway</h1></body></html>\n", "an HTML or XML page"),
        ('{"detail": "Not Found"}', "JSON"),
        ("[]\n", "JSON"),
        ("404 page not found\n", "text without a metric"),
    ],
)
def test_another_page_is_said_to_be_one_with_its_first_characters(page: str, start: str) -> None:
    other = parse(page, origin="http://h/metrics")
    assert isinstance(other, NotExposition)
    assert other.reason.startswith(start)
    assert page.strip()[:20] in other.reason
    assert other.origin == "http://h/metrics"


def test_an_empty_page_is_said_to_be_empty_and_declarations_alone_are_a_page() -> None:
    assert isinstance(parse(""), NotExposition)
    assert read("# HELP m x\n# TYPE m gauge\n").samples == []


def test_refused_lines_are_counted_even_when_no_longer_kept() -> None:
    body = read("m 1\n" + "?\n" * 5000)
    assert (body.bad_count, len(body.bad) < 5000) == (5000, True)


def test_a_very_long_line_is_refused_when_it_is_odd() -> None:
    body = read("m 1\nm{a=" + "x" * 200_000 + "\nn 2\n")
    assert [s.name for s in body.samples] == ["m", "n"]
    assert len(body.bad[0].text) <= 60


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    parse(text)
    parse(f'm{{a="b"}} 1\n{text}\n')


NAMES = st.from_regex(r"[a-z_:][a-z0-9_:]{0,12}", fullmatch=True)
LABELS = st.dictionaries(
    # the other reader refuses labels that begin with two underscores
    st.from_regex(r"[a-z_][a-z0-9]{0,8}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12),
    max_size=4,
)
VALUES = st.floats() | st.integers(-(2**60), 2**60).map(float)


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def written(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
    return f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}"


@given(st.lists(st.tuples(NAMES, LABELS, VALUES), min_size=1, max_size=8))
def test_agrees_with_prometheus_client(rows: list[tuple[str, dict[str, str], float]]) -> None:
    text = "".join(written(*row) + "\n" for row in rows)
    theirs = [s for family in text_string_to_metric_families(text) for s in family.samples]
    ours = read(text).samples
    assert len(ours) == len(theirs) == len(rows)
    for mine, other, row in zip(ours, theirs, rows, strict=True):
        assert (mine.name, dict(mine.labels)) == (other.name, other.labels) == row[:2]
        assert repr(mine.value) == repr(float(other.value))


@given(st.lists(st.tuples(NAMES, LABELS, VALUES), min_size=2, max_size=8), st.data())
def test_a_cut_body_never_changes_a_value(rows: list[tuple[str, dict[str, str], float]], data: st.DataObject) -> None:
    text = "".join(written(*row) + "\n" for row in rows)
    whole = [(s.name, dict(s.labels), repr(s.value), s.line) for s in read(text).samples]
    body = parse(text[: data.draw(st.integers(0, len(text)))])
    if isinstance(body, Exposition):
        kept = [(s.name, dict(s.labels), repr(s.value), s.line) for s in body.samples]
        assert kept == whole[: len(kept)]
