"""Advice that is turned outside of the server: its autoscaler, its replicas, the models it keeps loaded."""

from __future__ import annotations

from corpus import CASES, report_on

from kvdoctor.findings import Action
from kvdoctor.report import words


def actions(case: str) -> list[Action]:
    folder = next(f for f in CASES if f.name == case)
    return list(report_on(folder).plan.levers)


def test_a_scaler_on_utilisation_is_given_another_metric() -> None:
    for case in ("own-u-keda-util", "own-u-hpa-get"):
        first = actions(case)[0]
        assert (first.lever, first.flag) == ("host.scaler_metric", "the metric in the HPA or KEDA object"), case
        assert "waiting requests" in (first.to or "")


def test_what_must_not_hold_is_told_as_no() -> None:
    assert words.condition("not scaler.on_gpu_util") == f"{words.label('scaler.on_gpu_util')}: no"
    assert words.condition("not kv.usage_max") != f"{words.label('kv.usage_max')}: no"


def test_replicas_are_moved_between_the_sides_and_both_are_verified() -> None:
    first = actions("own-pd-decode-full")[0]
    assert first.lever == "topo.pd_split"
    assert "dp" not in (first.flag or "")
    assert "pd.prefill_queue" in first.verify
    assert "pd.decode_queue" in first.verify


def test_models_that_take_turns_are_kept_loaded() -> None:
    found = actions("own-ollama-models-take-turns")
    assert found[0].flag == "OLLAMA_MAX_LOADED_MODELS=N"
    assert not any("install" in (a.flag or "") for a in found)


def test_options_that_differ_are_made_the_same() -> None:
    found = actions("106-ollama-reloads-per-request")
    assert found[0].lever == "mem.max_model_len"
    assert all(a.flag != "OLLAMA_MAX_LOADED_MODELS=N" for a in found)
