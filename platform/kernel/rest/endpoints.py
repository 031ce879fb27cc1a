"""The declaration of one method of one route: what the server enforces and the OpenAPI document says."""

import dataclasses
from typing import Any, Final

import msgspec

from kernel.errors import DomainError

SMALL_BODY: Final = 64 * 1024


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A call without query parameters."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Declared once for a method.

    `scope`: the action that the principal needs; `or_scope`: one that will do instead. `secrets`: members of the answer that are
    shown once and left out of replays. `conditional`: the answer has an ETag; readers may send If-None-Match, writers If-Match.
    `idempotent`: the Idempotency-Key header is required, not only accepted. `may_be_empty`: 204 when there is nothing to answer.
    `optional`: the body may be left out and is then `{}`. `max_bytes`: of the body. `problems`: what this call adds to those that
    every call can answer. `writes` is set by the method.
    """

    summary: str
    scope: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    answer: Any = None
    media: str = "application/json"
    status: int = 200
    problems: tuple[type[DomainError], ...] = ()
    secrets: tuple[str, ...] = ()
    conditional: bool = False
    idempotent: bool = False
    may_be_empty: bool = False
    writes: bool = False
    optional: bool = False
    max_bytes: int = SMALL_BODY
    or_scope: str | None = None
