"""Members that lie about what they are, and figures no server can have: each costs itself and nothing else."""

from __future__ import annotations

import pytest

from kvdoctor import diagnose, load_rules
from kvdoctor.parse import Unread, endpoints
from kvdoctor.report.chart import nice_top
from kvdoctor.snapshot import Snapshot, memory_member

PAGE = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.4
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} VALUE
vllm:num_preemptions_total{engine="1"} VALUE
"""


@pytest.mark.parametrize(
    "kind",
    [
        "version",
        "models",
        "slots",
        "props",
        "server-info",
        "router-info",
        "model-config",
        "loads",
        "iterstats",
        "probe",
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"[[", b'{"data": 3}', b'{"data": [1, null]}', b"null", b'"x"', b"\xff\xfe"]
)
def test_a_member_that_is_not_what_it_says(kind: str, body: bytes) -> None:
    liar = memory_member("liar", body, kind=kind, origin="liar")
    page = memory_member("metrics_1790000000.prom", PAGE.replace("VALUE", "0").encode())
    report = diagnose(Snapshot((liar, page)), load_rules())
    assert report.main.facts["kv.usage_last"]
    assert any(s.origin == "liar" for t in report.targets for s in t.sources)


@pytest.mark.parametrize("value", ["1.7e308", "+Inf", "-Inf", "NaN", "1e31"])
def test_a_figure_no_server_can_have_is_not_counted(value: str) -> None:
    pages = tuple(
        memory_member(f"metrics_{1790000000 + at}.prom", PAGE.replace("VALUE", value).encode()) for at in (0, 60)
    )
    report = diagnose(Snapshot(pages), load_rules())
    count = report.main.facts.get("preempt.count")
    assert count is None or not hasattr(count, "hi")


def test_models_and_versions_are_read_or_refused() -> None:
    assert endpoints.models('{"data": [{"id": "m", "max_model_len": 4096}, {"id": "n"}]}') == (
        ("m", 4096.0),
        ("n", None),
    )
    assert endpoints.version('{"version": "0.32.0"}') == "0.32.0"
    assert isinstance(endpoints.version('{"version": 3}'), Unread)


def test_a_chart_of_next_to_nothing_has_a_scale() -> None:
    assert nice_top(5e-324) == 1.0
    assert nice_top(0.03) == pytest.approx(0.05)
