"""Credentials are never stored: what is plainly one is refused by name and place, whatever hides it."""

import contextlib
import json
import time

import pytest

from privacy import guard
from privacy.guard import CredentialRefused

LETTERS = "Abc0123456789defGHIjklMNOpqrSTUvwxYZ_-abcdefghijklmnop"
CREDENTIALS = {
    "smriti_api_key": "smr_abcdef123456_" + LETTERS[:43],
    "private_key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "aws_access_key": "AKIA" + "IOSFODNN7EXAMPLE",
    "github_token": "ghp_" + "A1b2" * 9,
    "slack_token": "xoxb-" + "123456789012-" * 2,
    "stripe_key": "sk_live_" + "a1B2" * 6,
    "google_api_key": "AIza" + "B" * 35,
    "model_provider_key": "sk-proj-" + LETTERS[:40].replace("_", "x"),
    "json_web_token": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0." + "c" * 43,
    "bearer_header": "Bearer " + "a1" * 20,
    "url_password": "postgres://app:hunter22@db.example/x",
}
HARMLESS = [
    "smr_abcdef123456_short",
    "AKIA is how they begin",
    "skip-to-the-next-invoice-in-the-batch",
    "https://bank.example/statement?id=1",
    "eyJ is base64 of {\\",
    "ORDER-2026-0000000000000000000000000000000001",
    "Bearer of bad news",
    "नमस्ते, ₹4,12,500.00",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
]


@pytest.mark.parametrize("rule", CREDENTIALS)
def test_a_credential_is_refused_with_its_rule_and_place(rule: str) -> None:
    body = json.dumps({"steps": [{"note": f"use {CREDENTIALS[rule]} for it"}]}).encode()
    with pytest.raises(CredentialRefused) as refused:
        guard.inspect(body)
    found = refused.value.fields[0]
    assert (found.path, found.code) == ("/steps/0/note", rule)
    assert CREDENTIALS[rule] not in refused.value.detail


@pytest.mark.parametrize("rule", CREDENTIALS)
def test_escaped_letters_hide_nothing(rule: str) -> None:
    hidden = "".join(f"\\u{ord(letter):04x}" for letter in CREDENTIALS[rule])
    with pytest.raises(CredentialRefused):
        guard.inspect(f'{{"a": "{hidden}"}}'.encode())


def test_a_credential_as_a_name_is_refused() -> None:
    with pytest.raises(CredentialRefused):
        guard.inspect(json.dumps({CREDENTIALS["github_token"]: 1}).encode())


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_is_stored(text: str) -> None:
    guard.inspect(json.dumps({"a": text}).encode())
    guard.inspect(json.dumps({"a": text}, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    "piece", ["eyJ" + "a" * 50 + ".", "a://b:", "sk-" + "a" * 20 + " ", "smr_abcdefabcdef_", "x" * 64]
)
def test_ten_megabytes_of_near_misses_take_linear_time(piece: str) -> None:
    body = json.dumps({"a": piece * (10_000_000 // len(piece))}).encode()
    begin = time.monotonic()
    with contextlib.suppress(CredentialRefused):
        guard.inspect(body)
    assert time.monotonic() - begin < 5  # milliseconds when idle; a quadratic rule would take hours
