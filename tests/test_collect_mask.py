"""Secrets leave command lines, URLs and messages; options that only sound alike stay, since the diagnosis needs them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.collect.mask import mask_argv, mask_text, mask_url

SECRET = "Zq7secretvalue9X"


@pytest.mark.parametrize(
    "argv",
    [
        ["vllm", "serve", "m", "--api-key", SECRET],
        ["vllm", "serve", "m", "--api-key", SECRET, SECRET + "2", "--port", "1"],
        ["vllm", "serve", "m", f"--api-key={SECRET}"],
        ["x", "--hf-token", SECRET],
        ["x", "--hf_token=" + SECRET],
        ["x", "--admin-api-key", SECRET],
        ["x", "--ssl-keyfile-password", SECRET],
        ["x", "--client-secret", SECRET],
        ["x", "--basic-auth", f"user:{SECRET}"],
        ["env", f"HF_TOKEN={SECRET}", "vllm"],
        ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "vllm"],
        ["sh", "-c", f"HF_TOKEN={SECRET} vllm serve m --api-key {SECRET} --port 1"],
        ["x", "--config", f'{{"password": "{SECRET}", "a": 1}}'],
        ["x", f"https://user:{SECRET}@host/path"],
        ["x", f"Authorization: Bearer {SECRET}"],
        ["x", "hf_" + "A1b2" * 8],
        ["x", "sk-" + "A1b2" * 8],
        ["x", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"],
    ],
)
def test_secrets_of_command_lines(argv: list[str]) -> None:
    masked = " ".join(mask_argv(argv))
    assert SECRET not in masked
    assert "A1b2A1b2" not in masked
    assert "eyJhb" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192",
        "--max-total-tokens=100",
        "--tokenizer org/name",
        "--tokenizer-mode auto",
        "--eos-token-id 2",
        "--max-token-budget 5",
        "--skip-tokenizer-init",
        "--kv-cache-dtype fp8",
        "--cache-type-k q8_0",
        "--ssl-keyfile /etc/key.pem",
        "--chunked-prefill-size 4096",
        "--served-model-name key-model",
    ],
)
def test_what_only_sounds_like_a_secret_stays(text: str) -> None:
    assert mask_text(text) == text
    assert " ".join(mask_argv(text.split())) == text


def test_urls_lose_user_password_and_secret_queries() -> None:
    assert mask_url(f"https://u:{SECRET}@h:1/m?token={SECRET}&a=b#x") == "https://h:1/m?token=***&a=b"


@given(st.text(max_size=300))
def test_masking_never_raises_and_is_stable(text: str) -> None:
    once = mask_text(text)
    assert mask_text(once) == once
    mask_url(text)
    mask_argv(text.split())
