"""``kvdoctor size``: against sizes that servers logged, and what is not known."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import typer
from typer.testing import CliRunner, Result

from kvdoctor.cli.size import size

SCHEMA = json.loads(
    (Path(__file__).parent.parent / "kvdoctor" / "report" / "size.schema.json").read_text(encoding="utf-8")
)

app = typer.Typer()
app.command()(size)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def document(*words: str, code: int = 0) -> dict[str, object]:
    found = call(*words, "--format", "json")
    assert found.exit_code == code, found.output
    data: dict[str, object] = json.loads(found.stdout)
    jsonschema.validate(data, SCHEMA)
    return data


def write(path: Path, **keys: object) -> str:
    path.write_text(json.dumps(keys), encoding="utf-8")
    return str(path)


def test_the_pool_a_7b_model_logged() -> None:
    data = document("--layers", "28", "--kv-heads", "4", "--head-dim", "128", "--pool", "16GiB", "--length", "6000")
    assert data["bytes_per_token"] == 57_344
    assert data["pool_tokens"] == 299_584
    assert data["max_concurrency"] == {"6000": 49}


def test_a_70b_model_from_its_config(tmp_path: Path) -> None:
    path = write(
        tmp_path / "config.json", model_type="llama", num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        hidden_size=8192, torch_dtype="bfloat16",
    )  # fmt: skip
    assert document(path)["bytes_per_token"] == 327_680
    assert document(str(tmp_path), "--tp", "8")["bytes_per_token"] == 40_960
    assert document(path, "--tp", "16")["bytes_per_token"] == 40_960, "KV heads are replicated"
    assert document(path, "--kv-dtype", "fp8")["bytes_per_token"] == 163_840
    assert document(path, "--pool", "10GiB", "--length", "32768")["max_concurrency"] == {"32768": 1}


def test_mla_windows_and_states(tmp_path: Path) -> None:
    assert document("--layers", "61", "--mla-rank", "512")["bytes_per_token"] == 70_272
    window = write(
        tmp_path / "w.json", model_type="mistral", num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        hidden_size=4096, sliding_window=4096,
    )  # fmt: skip
    data = document(window, "--pool", "8GiB", "--length", "8192")
    assert data["bytes_per_token"] == 0
    assert data["window_tokens"] == 4096
    assert data["max_concurrency"] == {"8192": 16}


def test_the_pool_from_card_and_weights() -> None:
    data = document(
        "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--gpu-memory", "80GiB", "--fraction", "0.9", "--weights",
        "16GiB", "--overhead", "4GiB",
    )  # fmt: skip
    assert data["pool_bytes"] == 52 * 2**30
    assert data["pool_tokens"] == 52 * 2**30 // 131_072


def test_an_unknown_architecture_stays_unknown(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.json", model_type="brand_new", num_hidden_layers=4, num_attention_heads=4, hidden_size=64
    )
    data = document(path, "--pool", "1GiB", code=3)
    assert data["bytes_per_token"] is None
    assert data["pool_tokens"] is None
    assert data["max_concurrency"] == {"4096": None, "32768": None}
    assert "brand_new" in str(data["unknown"])
    text = call(path)
    assert text.exit_code == 3
    assert "unknown" in text.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a config.json"),
        (("--layers", "0", "--kv-heads", "8", "--head-dim", "128"), "layers = 0"),
        (("--layers", "2", "--kv-heads", "8", "--head-dim", "128", "--tp", "0"), "tp = 0"),
        (("--layers", "2", "--kv-heads", "8", "--head-dim", "128", "--kv-dtype", "float3"), "unknown KV dtype"),
        (("--layers", "2", "--kv-heads", "8", "--head-dim", "128", "--pool", "much"), "write bytes"),
        (("--layers", "2", "--kv-heads", "8", "--head-dim", "128", "--length", "0"), "at least 1"),
        (
            ("--layers", "2", "--kv-heads", "8", "--head-dim", "128", "--gpu-memory", "8GiB", "--weights", "9GiB"),
            "nothing is left",
        ),
        (("--mla-rank", "512"), "--layers"),
        (("no-such.json",), "cannot read"),
        (("--layers", "2", "--kv-heads", "8", "--head-dim", "128", "--format", "csv"), "choose text or json"),
    ],
)
def test_usage_errors_are_one_line(words: tuple[str, ...], says: str) -> None:
    found = call(*words)
    assert found.exit_code == 2, found.output
    assert says in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    (tmp_path / "b.json").write_text("[1]", encoding="utf-8")
    assert "not JSON" in call(str(tmp_path / "a.json")).output
    assert "not a JSON object" in call(str(tmp_path / "b.json")).output
    assert call(str(tmp_path / "a.json")).exit_code == 2
