"""The digests of the audit chain, described byte by byte in `audit.operations`.

The database function `audit_seal` makes those of links; here they are recomputed.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from audit.models import Entry, Link

SALT_BYTES: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def genesis(tenant: UUID) -> bytes:
    return hashlib.sha256(b"smriti:audit-genesis:v1\0" + tenant.bytes).digest()


def commitment(plaintext: bytes) -> bytes:
    """`plaintext` is salt and canonical JSON, as sealed in the payload."""
    return hashlib.sha256(b"smriti:audit-payload:v1\0" + plaintext).digest()


def content(entry: Entry) -> bytes:
    fields = (
        entry.tenant_id.bytes,
        entry.id.bytes,
        microseconds(entry.recorded_at),
        entry.actor_kind.encode(),
        b"" if entry.actor_id is None else entry.actor_id.bytes,
        entry.action.encode(),
        entry.target_kind.encode(),
        entry.target_id.encode(),
        entry.commitment,
    )
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(b"smriti:audit-entry:v1\0" + framed).digest()


def link(row: Link, *, content_digest: bytes) -> bytes:
    return hashlib.sha256(
        b"".join(
            (
                b"smriti:audit-link:v1\0",
                row.prev_digest,
                row.tenant_id.bytes,
                row.position.to_bytes(8, "big", signed=True),
                row.entry_id.bytes,
                content_digest,
                microseconds(row.sealed_at),
            )
        )
    ).digest()


def payload_context(entry_id: UUID) -> bytes:
    """What binds a sealed payload to its entry."""
    return b"audit:" + entry_id.bytes


def microseconds(moment: datetime) -> bytes:
    return ((moment - _EPOCH) // timedelta(microseconds=1)).to_bytes(8, "big", signed=True)


def moment(field: bytes) -> datetime:
    """The inverse of `microseconds`."""
    return _EPOCH + timedelta(microseconds=int.from_bytes(field, "big", signed=True))
