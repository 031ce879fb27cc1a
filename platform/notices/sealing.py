"""Addresses, secrets and payloads at rest: sealed under the tenant's key, each bound to its row and column."""

from uuid import UUID

import msgspec

from kernel import ports


def seal(*, tenant: UUID, row: UUID, column: str, plaintext: bytes) -> bytes:
    return ports.codec().seal(tenant=tenant, context=_context(row, column), plaintext=plaintext)


def unseal(*, tenant: UUID, row: UUID, column: str, blob: "bytes | memoryview[int]") -> bytes:
    """Raises kernel.ports.Corrupt."""
    return ports.codec().open(tenant=tenant, context=_context(row, column), blob=bytes(blob))


def seal_secrets(*, tenant: UUID, row: UUID, secrets: list[str]) -> bytes:
    return seal(tenant=tenant, row=row, column="secrets", plaintext=msgspec.json.encode(secrets))


def secrets(*, tenant: UUID, row: UUID, blob: "bytes | memoryview[int]") -> list[str]:
    """The secret, and the one before it."""
    return msgspec.json.decode(unseal(tenant=tenant, row=row, column="secrets", blob=blob), type=list[str])


def _context(row: UUID, column: str) -> bytes:
    return b"notices:" + column.encode() + b":" + row.bytes
