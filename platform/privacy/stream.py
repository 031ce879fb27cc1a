"""Objects of any size at rest: AES-256-GCM in chunks (the STREAM construction), written and read piece by piece.

Stored bytes: `version (1) || nonce prefix (7, random)`, then each MiB of the plaintext as its ciphertext and 16 bytes of tag.
The nonce of a chunk is `prefix || u32(number, from 0) || last (1)`. The key is this object's alone, derived from the data key of
whoever it belongs to; associated data is `"smriti:object:v1\\0" || tenant || object`. So what was cut off, moved, repeated or taken
from another object does not open.
"""

import os
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kernel.ports import Corrupt
from privacy.keys import DataKey

CHUNK: Final = 1024 * 1024  # bytes of plaintext
TAG: Final = 16
_LABEL: Final = b"smriti:object:v1\0"
_VERSION: Final = b"\1"
_PREFIX: Final = 7
HEADER: Final = len(_VERSION) + _PREFIX


def stored_size(size: int) -> int:
    """How many bytes a plaintext of `size` bytes takes. An empty one is one empty chunk."""
    return HEADER + size + TAG * chunks(size)


def chunks(size: int) -> int:
    return max(1, -(-size // CHUNK))


class Sealer:
    """Seals a plaintext that arrives in pieces of any size."""

    def __init__(self, key: DataKey, object_id: UUID) -> None:
        self._cipher, self._aad = _cipher(key, object_id)
        self._prefix = os.urandom(_PREFIX)
        self._number = 0
        self._rest = bytearray()
        self._begun = False

    def update(self, data: bytes) -> bytes:
        """The stored bytes that are known by now. One chunk is held back: it may be the last."""
        self._rest += data
        sealed = [] if self._begun else [_VERSION + self._prefix]
        self._begun = True
        while len(self._rest) > CHUNK:
            sealed.append(self._seal(bytes(self._rest[:CHUNK]), last=False))
            del self._rest[:CHUNK]
        return b"".join(sealed)

    def finish(self) -> bytes:
        head = b"" if self._begun else _VERSION + self._prefix
        return head + self._seal(bytes(self._rest), last=True)

    def _seal(self, chunk: bytes, *, last: bool) -> bytes:
        nonce = _nonce(self._prefix, self._number, last)
        self._number += 1
        return self._cipher.encrypt(nonce, chunk, self._aad)


@dataclass(frozen=True, slots=True)
class Span:
    """Which stored bytes hold a range of the plaintext: `length` bytes from `offset`; its first chunk is number `first`."""

    first: int
    offset: int
    length: int
    skip: int
    size: int


def span(*, size: int, start: int, length: int) -> Span:
    """Where to read `length` bytes (at least one, unless the whole is empty) from `start` of a plaintext of `size` bytes."""
    first, last = start // CHUNK, max(start, start + length - 1) // CHUNK
    end = min(stored_size(size), HEADER + (last + 1) * (CHUNK + TAG))
    offset = HEADER + first * (CHUNK + TAG)
    return Span(first, offset, end - offset, start - first * CHUNK, length)


class Opener:
    """Opens chunk after chunk. `header`: the first HEADER stored bytes; `size`: of the plaintext. Raises Corrupt."""

    def __init__(self, key: DataKey, object_id: UUID, *, header: bytes, size: int, first: int = 0) -> None:
        if len(header) != HEADER or header[:1] != _VERSION:
            raise Corrupt
        self._cipher, self._aad = _cipher(key, object_id)
        self._prefix = header[1:]
        self._number, self._last = first, chunks(size) - 1
        self._last_size = size - self._last * CHUNK

    @property
    def next_size(self) -> int:
        """How many stored bytes the next chunk has."""
        return TAG + (self._last_size if self._number == self._last else CHUNK)

    def open(self, stored: bytes) -> bytes:
        """The plaintext of the next chunk."""
        last = self._number == self._last
        if self._number > self._last or len(stored) != self.next_size:
            raise Corrupt
        try:
            chunk = self._cipher.decrypt(_nonce(self._prefix, self._number, last), stored, self._aad)
        except InvalidTag as error:
            raise Corrupt from error
        self._number += 1
        return chunk


def _cipher(key: DataKey, object_id: UUID) -> tuple[AESGCM, bytes]:
    aad = _LABEL + key.tenant.bytes + object_id.bytes
    return AESGCM(key.derive(aad)), aad


def _nonce(prefix: bytes, number: int, last: bool) -> bytes:
    return prefix + number.to_bytes(4, "big") + (b"\1" if last else b"\0")
