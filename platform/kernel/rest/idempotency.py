"""Idempotency keys for every write that is not a hot path: the same key and the same body get the same answer.

Invariant: the record is written in the transaction of the effect, so there is never one without the other. A refused
request leaves no record: nothing happened, and repeating it judges anew. Secrets are left out of what is kept and of
every replay.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import orjson
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from django.conf import settings
from django.db import connection

from kernel import codec, ports
from kernel.errors import DomainError, IdempotencyKeyReused
from kernel.rest.models import IdempotencyRecord

KEEP: Final = timedelta(hours=24)
_SWEEP: Final = 50  # expired records that one new record takes with it
_LOCK: Final = "select pg_try_advisory_xact_lock(hashtextextended(%s, 2))"


class InProgress(DomainError):
    code = "idempotency_in_progress"
    status = 409
    title = "The first request with this Idempotency-Key is still running"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    location: str | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """What identifies a request: who calls, with which key, what."""

    tenant: UUID
    principal: UUID
    key: str
    method: str
    path: str
    body: bytes


def once(call: Call, run: Callable[[], Answer], *, now: datetime, secrets: tuple[str, ...] = ()) -> Answer:
    """The answer of `run`, or the one that was given before. Inside the tenant's scope.

    `secrets`: members of the answer that are shown once; in a replay they are null. Raises IdempotencyKeyReused and InProgress.
    """
    record_id = UUID(bytes=_digest(b"key", call.principal.bytes, call.key.encode())[:16])
    request = _digest(b"request", call.method.encode(), call.path.encode(), call.body)
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [f"{call.tenant}{record_id}"])
        if not cursor.fetchone()[0]:
            raise InProgress("Ask again in a moment.", headers={"Retry-After": "1"})
    found = IdempotencyRecord.objects.filter(id=record_id, created_at__gt=now - KEEP).first()
    if found is not None:
        if not hmac.compare_digest(bytes(found.request), request):
            raise IdempotencyKeyReused(
                "Use a new key for a new request; repeat a key only with the same method, path and body."
            )
        return _replay(call, found)
    answer = run()
    _keep(call, record_id, request, _without(answer, secrets), now)
    return answer


def _replay(call: Call, found: IdempotencyRecord) -> Answer:
    opened = ports.codec().open(tenant=call.tenant, context=_context(found.id), blob=bytes(found.answer))
    location, _, body = opened.partition(b"\n")
    return Answer(status=found.status, body=body, location=location.decode() or None, replayed=True)


def _keep(call: Call, record_id: UUID, request: bytes, answer: Answer, now: datetime) -> None:
    expired = IdempotencyRecord.objects.filter(created_at__lte=now - KEEP)
    IdempotencyRecord.objects.filter(id__in=[*expired.values_list("id", flat=True)[:_SWEEP], record_id]).delete()
    plaintext = (answer.location or "").encode() + b"\n" + answer.body
    IdempotencyRecord(
        id=record_id,
        request=request,
        status=answer.status,
        answer=ports.codec().seal(tenant=call.tenant, context=_context(record_id), plaintext=plaintext),
        created_at=now,
    ).save(force_insert=True)


def _without(answer: Answer, secrets: tuple[str, ...]) -> Answer:
    if not secrets:
        return answer
    members: dict[str, Any] = orjson.loads(answer.body)
    return Answer(answer.status, codec.dumps(members | dict.fromkeys(secrets)), answer.location)


def _context(record_id: UUID) -> bytes:
    return b"idempotency:" + record_id.bytes


def _digest(*parts: bytes) -> bytes:
    return hmac.digest(_pepper(), msgspec.msgpack.encode(parts), hashlib.sha256)


def _pepper() -> bytes:
    return HKDFExpand(algorithm=hashes.SHA256(), length=32, info=b"smriti:idempotency:v1").derive(settings.MASTER_KEY)
