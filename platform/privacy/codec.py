"""Payloads at rest: zstd, AES-256-GCM, and a salted commitment that may stand in a hash chain.

Sealed bytes: `nonce (12) || AES-256-GCM(salt (16) || packing (1) || body)`, with the tenant, the context and the label as
associated data, so that a ciphertext moved to another place does not open. The salt is inside: destroying the payload or its
key destroys it too, and what is left in the chain can be neither read nor guessed.

Commitment: `SHA-256("smriti:payload:v1\\0" || salt || u32(len(meta)) || meta || body)`, lengths big-endian. `meta` holds
the client-chosen values that stand in plain columns beside the payload.
"""

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import zstandard
from cryptography.exceptions import InvalidTag

from kernel.ports import Corrupt
from privacy import keys
from privacy.keys import DataKey

_RAW: Final = b"\0"
_ZSTD: Final = b"\1"
_COMPRESS_FROM: Final = 96  # bytes; below it zstd's own frame costs more than it saves
MAX_BODY: Final = 64 * 1024 * 1024  # bytes; a frame that claims more is not ours

_local = threading.local()


@dataclass(frozen=True, slots=True)
class Sealed:
    blob: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    body: bytes
    salt: bytes


def seal(key: DataKey, *, context: bytes, label: bytes, body: bytes, meta: bytes = b"") -> Sealed:
    """Seal `body` for a place: `context` selects the derived cipher (a run), `label` says what it is there."""
    random = os.urandom(28)
    nonce, salt = random[:12], random[12:]
    packed = _RAW + body if len(body) < _COMPRESS_FROM else _ZSTD + _compressor().compress(body)
    blob = nonce + key.cipher(context).encrypt(nonce, salt + packed, key.tenant.bytes + context + label)
    return Sealed(blob, commitment(salt=salt, meta=meta, body=body))


def unseal(key: DataKey, *, context: bytes, label: bytes, blob: bytes) -> Opened:
    """The inverse of `seal`. Raises Corrupt."""
    try:
        frame = key.cipher(context).decrypt(blob[:12], blob[12:], key.tenant.bytes + context + label)
        packing, body = frame[16:17], frame[17:]
        if packing == _ZSTD:
            body = _decompressor().decompress(body, max_output_size=MAX_BODY)
    except (InvalidTag, ValueError, zstandard.ZstdError) as error:
        raise Corrupt from error
    return Opened(body=body, salt=frame[:16])


def commitment(*, salt: bytes, meta: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"".join((b"smriti:payload:v1\0", salt, len(meta).to_bytes(4, "big"), meta, body))).digest()


def _compressor() -> zstandard.ZstdCompressor:
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        found = _local.compressor = zstandard.ZstdCompressor(level=3)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found


class TenantCodec:
    """kernel.ports.PayloadCodec under the tenant's common data key."""

    def seal(self, *, tenant: UUID, context: bytes, plaintext: bytes) -> bytes:
        return seal(keys.data_key(tenant=tenant, key_id=tenant), context=context, label=b"", body=plaintext).blob

    def open(self, *, tenant: UUID, context: bytes, blob: bytes) -> bytes:
        return unseal(keys.data_key(tenant=tenant, key_id=tenant), context=context, label=b"", blob=blob).body
