"""Writing the audit log. An entry is hashed when it is inserted, in the caller's transaction and without a lock; the
chain is sealed after commit, one tenant at a time. Invariant: one link follows each link, and none is ever changed.

The bytes, for verifiers elsewhere. H is SHA-256; integers are big-endian; times are microseconds since 1970-01-01 UTC
as i64; ids are the 16 bytes of the UUID; u32(x) is the length of x in four bytes; quoted strings are ASCII; 00 is a
zero byte.

    plaintext      = salt (16 random bytes) || RFC 8785 JSON of {"actor": <label>, "content": {...}}
    payload        = plaintext, sealed by the payload codec under context "audit:" || entry id; null once erased
    commitment     = H("smriti:audit-payload:v1" 00 || plaintext)
    content_digest = H("smriti:audit-entry:v1" 00 || for each field: u32(field) || field)
                     fields: tenant id, entry id, recorded_at, actor_kind, actor_id (empty when there is none), action,
                     target_kind, target_id, commitment; text in UTF-8
    genesis        = H("smriti:audit-genesis:v1" 00 || tenant id)
    digest         = H("smriti:audit-link:v1" 00 || prev_digest || tenant id || position (i64, from 1) || entry id
                       || content_digest || sealed_at), where prev_digest of position 1 is genesis

The salt is sealed with the text: once a payload is destroyed, its commitment can be neither opened nor guessed, and the
chain still verifies.
"""

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

import psycopg
from django.db import transaction

from audit import digests, queries
from audit.models import Entry
from kernel import codec, ids, ports
from kernel.actor import Actor
from kernel.pool import pool

logger = logging.getLogger(__name__)

SEAL_BATCH: Final = 1_000  # entries; bounds how long another sealer of the tenant waits

# Append links for a tenant's pending entries; how many it appended.
_SEAL: Final = "select audit_seal(%s, %s)"


def record(
    *,
    tenant: UUID,
    actor: Actor,
    action: str,
    target_kind: str,
    target_id: str | UUID,
    content: Mapping[str, object],
    now: datetime,
) -> UUID:
    """Add an entry in the caller's transaction and tenant scope; the chain is sealed after its commit.

    `action` and `target_kind` are dotted lower-case identifiers, `target_id` an id or slug of ours: they stay in clear.
    The actor's label and `content` (JSON) are sealed. Returns the entry's id.
    """
    entry_id = ids.uuid7()
    plaintext = os.urandom(digests.SALT_BYTES) + codec.canonical({"actor": actor.label, "content": dict(content)})
    entry = Entry(
        tenant_id=tenant,
        id=entry_id,
        recorded_at=now,
        actor_kind=actor.kind,
        actor_id=actor.id,
        action=action,
        target_kind=target_kind,
        target_id=str(target_id),
        payload=ports.codec().seal(tenant=tenant, context=digests.payload_context(entry_id), plaintext=plaintext),
        commitment=digests.commitment(plaintext),
    )
    entry.content_digest = digests.content(entry)
    entry.save(force_insert=True)
    transaction.on_commit(partial(_seal_or_log, tenant))
    return entry_id


def seal(*, tenant: UUID) -> int:
    """Append every pending entry of the tenant to its chain, outside any tenant scope; how many there were."""
    total = 0
    with pool().connection() as connection:
        while True:
            row = connection.execute(_SEAL, (tenant, SEAL_BATCH)).fetchone()
            assert row is not None
            sealed: int = row[0]
            total += sealed
            if sealed < SEAL_BATCH:
                return total


def seal_all() -> int:
    """Seal every tenant with pending entries; a tenant that cannot be sealed does not hold up the others."""
    return sum(_seal_or_log(tenant) for tenant in queries.unsealed_tenants())


def _seal_or_log(tenant: UUID) -> int:
    # The entry is committed and stays pending, so the next sealing takes it: nothing is lost by going on.
    try:
        return seal(tenant=tenant)
    except psycopg.Error:
        logger.exception("audit_seal_failed", extra={"tenant": str(tenant)})
        return 0
