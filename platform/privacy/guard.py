"""The payload guard: every payload passes here before it is stored. Secrets are never stored.

This is a port. The rules below refuse credentials that are recognised by their form alone; compliance installs the full engine.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import orjson

from kernel.errors import DomainError, FieldError


class CredentialRefused(DomainError):
    """A payload carries what is plainly a credential. Tools take references into a secrets manager, never values."""

    code = "credential_refused"
    status = 422
    title = "A credential may not be stored"


# Each rule: its name, a literal that must occur before the pattern is tried, and the pattern.
_RULES: Final = tuple(
    (name, literal, re.compile(pattern))
    for name, literal, pattern in (
        ("smriti_api_key", "smr_", r"\bsmr_[a-z0-9]{12}_[A-Za-z0-9_-]{43}"),
        ("private_key", "PRIVATE KEY", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
        ("aws_access_key", "AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
        ("aws_session_key", "ASIA", r"\bASIA[0-9A-Z]{16}\b"),
        *(("github_token", f"gh{kind}_", rf"\bgh{kind}_[A-Za-z0-9]{{36,}}\b") for kind in "pousr"),
        ("github_fine_grained_token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{60,}"),
        ("slack_token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}"),
        ("stripe_key", "k_live_", r"\b[sr]k_live_[A-Za-z0-9]{20,}"),
        ("google_api_key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}\b"),
        ("model_provider_key", "sk-", r"\bsk-(?:proj-|ant-|or-)?[A-Za-z0-9_-]{32,}"),
        ("json_web_token", "eyJ", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
        ("bearer_header", "earer ", r"\b[Bb]earer [A-Za-z0-9_\-.=+/]{32,}"),
        ("url_password", "://", r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"]+:[^\s/:@\"]{4,}@"),
    )
)


def _refuse_credentials(body: bytes) -> None:
    text = body.decode()
    # An escaped letter hides a credential from the text as sent, not from whoever reads it back.
    if "\\u" in text or "\\/" in text:
        text = "\0".join(value for _, value in _strings(orjson.loads(body)))
    for name, literal, pattern in _RULES:
        if literal in text and pattern.search(text):
            raise _refusal(name, pattern, body)


def _refusal(name: str, pattern: re.Pattern[str], body: bytes) -> CredentialRefused:
    path = next((path for path, value in _strings(orjson.loads(body)) if pattern.search(value)), "")
    message = f"This looks like a credential ({name}). Store a reference to your secrets manager instead."
    return CredentialRefused(message, fields=(FieldError(path=path, code=name, message=message),))


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Every string of a JSON value, keys included, with its JSON pointer."""
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, dict):
            for key, child in item.items():
                pointer = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
                yield pointer, key
                stack.append((pointer, child))
        elif isinstance(item, list):
            stack.extend((f"{path}/{index}", child) for index, child in enumerate(item))


_inspect: Callable[[bytes], None] = _refuse_credentials


def inspect(body: bytes) -> None:
    """Raise CredentialRefused unless the JSON text `body`, already checked by kernel.codec, may be stored."""
    _inspect(body)


def install(inspect: Callable[[bytes], None]) -> None:
    global _inspect
    _inspect = inspect
