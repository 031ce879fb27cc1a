"""The payload guard: every payload passes here before it is stored. Secrets are never stored.

This is a port. The rules below refuse credentials that are recognised by their form alone; compliance installs the full engine.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
import re2

from kernel.errors import DomainError, FieldError


class CredentialRefused(DomainError):
    """A payload carries what is plainly a credential. Tools take references into a secrets manager, never values."""

    code = "credential_refused"
    status = 422
    title = "A credential may not be stored"


_RULES: Final = {
    "smriti_api_key": r"\bsmr_[a-z0-9]{12}_[A-Za-z0-9_-]{43}",
    "private_key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "aws_access_key": r"\bA[KS]IA[0-9A-Z]{16}\b",
    "github_token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})",
    "slack_token": r"\bxox[abeoprs]-[A-Za-z0-9-]{20}",
    "stripe_key": r"\b[sr]k_live_[A-Za-z0-9]{20}",
    "google_api_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "model_provider_key": r"\bsk-(?:proj-|ant-|or-)?[A-Za-z0-9_-]{32}",
    "json_web_token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20}",
    "bearer_header": r"\b[Bb]earer [A-Za-z0-9_\-.=+/]{32}",
    "url_password": r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"]+:[^\s/:@\"]{4,}@",
}


def _compile(pattern: str) -> Any:
    # RE2 is linear in the text, whatever a client sends; on bytes, because every rule is ASCII.
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    return re2.compile(pattern.encode(), options)


_PATTERNS: Final = {name: _compile(pattern) for name, pattern in _RULES.items()}
_ANY: Final = _compile("|".join(_RULES.values()))


def _refuse_credentials(body: bytes) -> None:
    # An escaped letter hides a credential from the text as sent, not from whoever reads it back.
    text = orjson.dumps(orjson.loads(body)) if b"\\" in body else body
    if _ANY.search(text):
        name = next(name for name, pattern in _PATTERNS.items() if pattern.search(text))
        raise _refusal(name, body)


def _refusal(name: str, body: bytes) -> CredentialRefused:
    pattern = _PATTERNS[name]
    path = next((path for path, value in _strings(orjson.loads(body)) if pattern.search(value.encode())), "")
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
