"""Ports that a higher app fills at start-up, so that lower apps can use what they may not import."""

from typing import Protocol
from uuid import UUID


class Corrupt(Exception):
    """Sealed bytes do not open: changed, moved, or sealed under another key."""


class PayloadCodec(Protocol):
    """Seals bytes for a tenant under its common data key. `context` binds the ciphertext to its place."""

    def seal(self, *, tenant: UUID, context: bytes, plaintext: bytes) -> bytes: ...

    # Raises Corrupt.
    def open(self, *, tenant: UUID, context: bytes, blob: bytes) -> bytes: ...


_codec: PayloadCodec | None = None


def install_codec(codec: PayloadCodec) -> None:
    global _codec
    _codec = codec


def codec() -> PayloadCodec:
    if _codec is None:
        raise RuntimeError("no payload codec is installed")
    return _codec
