"""API keys: `smr_<prefix>_<secret>`, checked against a keyed digest in constant time.

A key's record is cached for a few seconds in the process. The database is asked again, in the same statement that uses it, by
the hot paths (`id` and `version`), so that a revoked or narrowed key is refused at once where state changes.
"""

import hashlib
import hmac
import re
import secrets
import string
import threading
import time
from contextlib import suppress
from typing import Final
from uuid import UUID

import psycopg
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from django.conf import settings
from psycopg_pool import PoolTimeout

from kernel import clock
from kernel.errors import DomainError
from kernel.pool import pool
from tenancy import queries
from tenancy.queries import KeyRecord, Principal

_ALPHABET: Final = string.ascii_lowercase + string.digits
_FORMAT: Final = re.compile(r"Bearer smr_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_CACHE_SECONDS: Final = 5.0
_CACHE_SIZE: Final = 10_000
_NOTE_SECONDS: Final = 60.0

_cache: dict[str, tuple[float, Principal]] = {}
_noted: dict[UUID, float] = {}
_lock = threading.Lock()
_pepper = HKDFExpand(algorithm=hashes.SHA256(), length=32, info=b"smriti:api-key:v1").derive(settings.MASTER_KEY)


class Unauthorized(DomainError):
    """The same answer for a missing, malformed, unknown, expired and revoked key."""

    code = "unauthorized"
    status = 401
    title = "No valid API key"

    def __init__(self) -> None:
        super().__init__(
            "Send a valid API key as `Authorization: Bearer smr_…`.",
            headers={"WWW-Authenticate": 'Bearer realm="smriti"'},
        )


def new_credential() -> tuple[str, str, bytes]:
    """A prefix, the whole credential (to be shown once), and the digest to store."""
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    return prefix, f"smr_{prefix}_{secret}", _digest(secret)


def _digest(secret: str) -> bytes:
    return hmac.digest(_pepper, secret.encode(), hashlib.sha256)


def authenticate(header: str) -> Principal:
    """The principal of an Authorization header. Raises Unauthorized."""
    cached = _cache.get(header)
    if cached is not None and cached[0] > time.monotonic():
        return cached[1]
    match = _FORMAT.fullmatch(header)
    if match is None:
        raise Unauthorized
    prefix, secret = match.groups()
    record = queries.key_by_prefix(prefix)
    digest = _digest(secret)
    if record is None or not hmac.compare_digest(record.digest, digest):
        raise Unauthorized
    if record.revoked_at is not None or (record.expires_at is not None and record.expires_at <= clock.now()):
        raise Unauthorized
    principal = Principal(
        kind="key",
        id=record.id,
        tenant_id=record.tenant_id,
        tenant_slug=record.tenant_slug,
        name=record.name,
        actions=record.scopes,
        agent_id=record.agent_id,
        project_ids=record.project_ids,
        version=record.version,
    )
    _note_use(record)
    with _lock:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[header] = (time.monotonic() + _CACHE_SECONDS, principal)
    return principal


def _note_use(record: KeyRecord) -> None:
    """Write when the key was last used, at most once a minute from each process. A key is not refused because this fails."""
    with _lock:
        if _noted.get(record.id, 0.0) > time.monotonic():
            return
        if len(_noted) >= _CACHE_SIZE:
            _noted.clear()
        _noted[record.id] = time.monotonic() + _NOTE_SECONDS
    with suppress(psycopg.Error, PoolTimeout), pool().connection() as connection, connection.transaction():
        connection.execute("select smriti_enter(%b)", (record.tenant_id,))
        connection.execute("update tenancy_apikey set last_used_at = now() where id = %b", (record.id,))


def forget(header: str) -> None:
    """Drop a cached principal, after the database refused it."""
    with _lock:
        _cache.pop(header, None)
