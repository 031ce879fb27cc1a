"""Envelope keys: the master key wraps a tenant's key, which wraps its data keys (AES-256-GCM at each level).

Unwrapped keys live in this process for at most CACHE_SECONDS. A tenant's common data key, for what belongs to no subject, has
the tenant's own id. Keys are made at first use: two processes that race make one, the vault decides which.
"""

import hashlib
import hmac
import os
import threading
import time
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings

from kernel import pool
from kernel.errors import DomainError

CACHE_SECONDS: Final = 60.0
# Each answers the stored key, or stores the fresh one that is offered.
TENANT_KEY: Final = "select vault_tenant_key(%b, %b)"
DATA_KEY: Final = "select vault_data_key(%b, %b, %b)"
_CACHE_SIZE: Final = 50_000
_CIPHERS_PER_KEY: Final = 4_096


class KeyShredded(DomainError):
    """The data key was destroyed by an erasure: what it sealed can never be read again."""

    code = "key_shredded"
    status = 410
    title = "Erased"


class VaultCorrupt(RuntimeError):
    """A wrapped key does not open: wrong master key, or damage in the vault."""


class DataKey:
    """An unwrapped data key and the ciphers derived from it, one for each context.

    A cipher of its own for each run keeps the number of random 96-bit nonces under one key far below the bound of 2^32
    (NIST SP 800-38D, 8.3).
    """

    __slots__ = ("_ciphers", "_numbers", "_secret", "id", "tenant")

    def __init__(self, *, tenant: UUID, key_id: UUID, secret: bytes) -> None:
        self.tenant, self.id, self._secret = tenant, key_id, secret
        self._ciphers: dict[bytes, AESGCM] = {}
        self._numbers = self.derive(b"smriti:number:v1\0")

    def cipher(self, context: bytes) -> AESGCM:
        cipher = self._ciphers.get(context)
        if cipher is None:
            if len(self._ciphers) >= _CIPHERS_PER_KEY:
                self._ciphers.clear()
            cipher = self._ciphers[context] = AESGCM(self.derive(b"smriti:cipher:v1\0" + context))
        return cipher

    def derive(self, info: bytes) -> bytes:
        """32 bytes for `info`: HKDF-Expand with SHA-256 (RFC 5869), of which one block is enough."""
        return hmac.digest(self._secret, info + b"\x01", hashlib.sha256)

    def number(self, value: bytes, *, salt: bytes) -> int:
        """A keyed 64-bit digest of a client-chosen name, as a signed integer. `salt`: 16 bytes."""
        digest = hashlib.blake2b(value, digest_size=8, key=self._numbers, salt=salt).digest()
        return int.from_bytes(digest, "big", signed=True)


_lock = threading.Lock()
_cache: dict[tuple[UUID, UUID], tuple[float, DataKey]] = {}


def data_key(*, tenant: UUID, key_id: UUID) -> DataKey:
    """A data key, unwrapped. `key_id=tenant` is the tenant's common key. Raises KeyShredded."""
    cached = _cache.get((tenant, key_id))
    if cached is not None and cached[0] > time.monotonic():
        return cached[1]
    key = _load(tenant, key_id)
    with _lock:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[(tenant, key_id)] = (time.monotonic() + CACHE_SECONDS, key)
    return key


def forget(*, tenant: UUID, key_id: UUID) -> None:
    """Drop a key from this process's cache."""
    with _lock:
        _cache.pop((tenant, key_id), None)


def keyed_digest(*, tenant: UUID, label: bytes, value: str) -> bytes:
    """A digest of a client-chosen value that only this tenant can reproduce: HMAC-SHA-256 under a key of the tenant's."""
    secret = data_key(tenant=tenant, key_id=tenant).derive(b"smriti:digest:v1\0" + label)
    return hmac.digest(secret, value.encode(), hashlib.sha256)


def _load(tenant: UUID, key_id: UUID) -> DataKey:
    aad = b"tenant" + tenant.bytes
    fresh = _wrap(settings.MASTER_KEY, aad, AESGCM.generate_key(256))
    (wrapped,) = pool.one(TENANT_KEY, (tenant, fresh), alias="vault")
    tenant_secret = _unwrap(settings.MASTER_KEY, aad, wrapped)
    aad = b"data" + tenant.bytes + key_id.bytes
    fresh = _wrap(tenant_secret, aad, AESGCM.generate_key(256))
    (wrapped,) = pool.one(DATA_KEY, (tenant, key_id, fresh), alias="vault")
    if wrapped is None:
        raise KeyShredded("The key of this data was destroyed.")
    return DataKey(tenant=tenant, key_id=key_id, secret=_unwrap(tenant_secret, aad, wrapped))


def _wrap(key: bytes, aad: bytes, secret: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, secret, aad)


def _unwrap(key: bytes, aad: bytes, wrapped: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(wrapped[:12], wrapped[12:], aad)
    except InvalidTag as error:
        raise VaultCorrupt("a wrapped key does not open; is MASTER_KEY the one it was wrapped with?") from error
