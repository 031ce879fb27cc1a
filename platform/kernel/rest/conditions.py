"""Conditional requests: `ETag` on what can change, `If-None-Match` for readers, `If-Match` against lost updates.

Invariant: conditional writers of one resource go one after the other: of two with the same `If-Match`, one is refused.
"""

import hashlib
from typing import Final

from django.db import connection
from django.http import HttpRequest, HttpResponse

from kernel.errors import DomainError


class PreconditionFailed(DomainError):
    code = "precondition_failed"
    status = 412
    title = "It has changed since you read it"


_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended(%s, 1))"


def etag(body: bytes) -> str:
    """The strong validator of a representation."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def lock(request: HttpRequest, tenant: object) -> None:
    """Inside the write's transaction and before its first read: wait for other conditional writers of this URL."""
    if "HTTP_IF_MATCH" in request.META:
        with connection.cursor() as cursor:
            cursor.execute(_LOCK, [f"{tenant}{request.path}"])


def require_match(request: HttpRequest, current: bytes) -> None:
    """Raise PreconditionFailed unless `If-Match` is absent, `*`, or names the current representation."""
    sent = request.META.get("HTTP_IF_MATCH")
    if sent is not None and not _names(sent, etag(current)):
        raise PreconditionFailed("Read it again and repeat the change.", headers={"ETag": etag(current)})


def tagged(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """`response` with its ETag, or 304 when the reader has it already."""
    tag = etag(response.content)
    sent = request.META.get("HTTP_IF_NONE_MATCH")
    if request.method in ("GET", "HEAD") and sent is not None and _names(sent, tag, weak=True):
        response = HttpResponse(status=304, headers={"Cache-Control": response["Cache-Control"]})
    response["ETag"] = tag
    return response


def _names(header: str, tag: str, *, weak: bool = False) -> bool:
    sent = {part.strip() for part in header.split(",")}
    return "*" in sent or tag in sent or (weak and f"W/{tag}" in sent)
