"""Reading and verifying the audit log. The caller holds the tenant scope for all of these but `unsealed_tenants`.

`verify` trusts no stored digest: it recomputes each from the columns and from the opened payload. It reads in batches,
so that its memory does not grow with the log, and a log that grows meanwhile is no error.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import orjson
import psycopg
from django.db import Error as DatabaseError
from django.db import connection
from django.db.models import Exists, OuterRef, Q

from audit import digests
from audit.models import Entry, Link, Pending
from kernel import ports
from kernel.errors import DomainError, FieldError, Invalid

MAX_PAGE: Final = 200
VERIFY_BATCH: Final = 1_000

# In one statement, thus one snapshot: where the head says that the chain ends, and where it ends.
_ENDS: Final = """
select head.position, head.digest, (select max(position) from audit_link where tenant_id = %(tenant)s)
from (select) nothing left join audit_head head on head.tenant_id = %(tenant)s
"""
# Tenants, ids only, with entries that are not yet in the chain.
_UNSEALED: Final = "select audit_unsealed_tenants()"


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Entries must match all that is set. `action` is a prefix, like `member.`; `recorded_to` itself is outside."""

    action: str | None = None
    actor_id: UUID | None = None
    target_kind: str | None = None
    target_id: str | None = None
    recorded_from: datetime | None = None
    recorded_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One entry. `position` and `digest` (hex) are None until it is sealed.

    `actor` (a label) and `content` are empty unless `payload` is intact.
    """

    id: UUID
    position: int | None
    recorded_at: datetime
    actor_kind: str
    actor_id: UUID | None
    actor: str
    action: str
    target_kind: str
    target_id: str
    content: Mapping[str, Any]
    payload: Literal["intact", "erased", "damaged"]
    digest: str | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    rows: tuple[AuditRow, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class AuditVerification:
    """`entries`: how many links verified. A failure without position concerns an entry outside the chain."""

    ok: bool
    entries: int
    first_bad_position: int | None = None
    reason: str | None = None


def page(*, tenant: UUID, filters: AuditFilter, cursor: str | None, limit: int) -> AuditPage:
    """A page of at most `limit` (1 to MAX_PAGE) entries, newest first. Raises Invalid for a foreign cursor."""
    limit = max(1, min(limit, MAX_PAGE))
    matching = Q()
    if filters.action is not None:
        # Identifiers hold nothing above "~", so these are exactly the actions with that prefix.
        matching &= Q(action__gte=filters.action, action__lt=filters.action + "~")
    for name in ("actor_id", "target_kind", "target_id"):
        if (value := getattr(filters, name)) is not None:
            matching &= Q((name, value))
    if filters.recorded_from is not None:
        matching &= Q(recorded_at__gte=filters.recorded_from)
    if filters.recorded_to is not None:
        matching &= Q(recorded_at__lt=filters.recorded_to)
    if cursor is not None:
        moment, entry_id = _read_cursor(cursor)
        # The first half is a bound of the index, the second decides among entries of one moment.
        matching &= Q(recorded_at__lte=moment) & (Q(recorded_at__lt=moment) | Q(id__lt=entry_id))
    found = list(Entry.objects.filter(matching).order_by("-recorded_at", "-id")[: limit + 1])
    shown = found[:limit]
    links = {link.entry_id: link for link in Link.objects.filter(entry_id__in=[entry.id for entry in shown])}
    return AuditPage(
        rows=tuple(_row(entry, links.get(entry.id)) for entry in shown),
        next_cursor=_cursor(shown[-1]) if len(found) > limit else None,
    )


def get_entry(*, tenant: UUID, entry_id: UUID) -> AuditRow | None:
    """One entry by its id."""
    entry = Entry.objects.filter(id=entry_id).first()
    return None if entry is None else _row(entry, Link.objects.filter(entry_id=entry_id).first())


def verify(*, tenant: UUID) -> AuditVerification:
    """Recompute the tenant's chain and name the first position that does not hold.

    Finds a changed byte in any column, missing, foreign and surplus links and entries, and a tail cut off. An erased
    payload leaves its commitment, which the chain covers; entries that wait for sealing are not judged.
    """
    position, prev = 0, digests.genesis(tenant)
    while True:
        links = list(Link.objects.filter(position__gt=position).order_by("position")[:VERIFY_BATCH])
        entries = Entry.objects.in_bulk([link.entry_id for link in links])
        for link in links:
            reason = _fault(link, entries.get(link.entry_id), position=position + 1, prev=prev)
            if reason is not None:
                return AuditVerification(ok=False, entries=position, first_bad_position=position + 1, reason=reason)
            position, prev = link.position, bytes(link.digest)
        if links:
            continue
        with connection.cursor() as cursor:
            cursor.execute(_ENDS, {"tenant": tenant})
            head, head_digest, last = cursor.fetchone()
        if (last or 0) == position:
            break
    if (head or 0) != position:
        reason = f"The chain has {position} links, its recorded head is at {head or 0}."
        bad = min(head or 0, position) + 1
        return AuditVerification(ok=False, entries=position, first_bad_position=bad, reason=reason)
    if position and bytes(head_digest) != prev:
        reason = "The recorded head is not the digest of the last link."
        return AuditVerification(ok=False, entries=position, first_bad_position=position, reason=reason)
    stray = Entry.objects.filter(
        ~Exists(Link.objects.filter(entry_id=OuterRef("id"))), ~Exists(Pending.objects.filter(entry_id=OuterRef("id")))
    ).first()
    if stray is not None:
        reason = f"Entry {stray.id} is neither in the chain nor waiting for it."
        return AuditVerification(ok=False, entries=position, reason=reason)
    return AuditVerification(ok=True, entries=position)


def unsealed_tenants() -> list[UUID]:
    """Tenants with entries that are not yet in their chain; outside any tenant scope."""
    with connection.cursor() as cursor:
        cursor.execute(_UNSEALED)
        return [tenant for (tenant,) in cursor.fetchall()]


def _fault(link: Link, entry: Entry | None, *, position: int, prev: bytes) -> str | None:
    if link.position != position:
        return "The link is missing."
    if bytes(link.prev_digest) != prev:
        return "The link does not follow the one before it."
    if entry is None:
        return "The entry is missing."
    if digests.content(entry) != bytes(entry.content_digest):
        return "The entry was changed."
    if digests.link(link, content_digest=bytes(entry.content_digest)) != bytes(link.digest):
        return "The link was changed, or belongs to another entry."
    if entry.payload is not None:
        plaintext = _plaintext(entry)
        if plaintext is None or digests.commitment(plaintext) != bytes(entry.commitment):
            return "The content was changed."
    return None


def _row(entry: Entry, link: Link | None) -> AuditRow:
    plaintext = None if entry.payload is None else _plaintext(entry)
    sealed: dict[str, Any] = orjson.loads(plaintext[digests.SALT_BYTES :]) if plaintext is not None else {}
    return AuditRow(
        id=entry.id,
        position=None if link is None else link.position,
        recorded_at=entry.recorded_at,
        actor_kind=entry.actor_kind,
        actor_id=entry.actor_id,
        actor=sealed.get("actor", ""),
        action=entry.action,
        target_kind=entry.target_kind,
        target_id=entry.target_id,
        content=sealed.get("content", {}),
        payload="erased" if entry.payload is None else "intact" if plaintext is not None else "damaged",
        digest=None if link is None else bytes(link.digest).hex(),
    )


def _plaintext(entry: Entry) -> bytes | None:
    """The opened payload; None when it does not open."""
    assert entry.payload is not None
    try:
        return ports.codec().open(
            tenant=entry.tenant_id, context=digests.payload_context(entry.id), blob=bytes(entry.payload)
        )
    except (DatabaseError, psycopg.Error, DomainError):
        raise  # the vault is away, or the key was destroyed: no statement about the payload
    except Exception:
        return None  # the port names no error for bytes that do not open


def _cursor(entry: Entry) -> str:
    return base64.urlsafe_b64encode(digests.microseconds(entry.recorded_at) + entry.id.bytes).decode()


def _read_cursor(cursor: str) -> tuple[datetime, UUID]:
    try:
        raw = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
        return digests.moment(raw[:8]), UUID(bytes=raw[8:])
    except (binascii.Error, ValueError, OverflowError) as error:
        field = FieldError(path="cursor", code="invalid", message="This cursor was not given out by this list.")
        raise Invalid(field.message, fields=(field,)) from error
