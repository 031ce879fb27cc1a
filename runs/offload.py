"""Large payloads lie in the store of artifacts instead of the row, which then holds a pointer to them.

Only where the sealed bytes lie differs: commitments and digests cover the plaintext, and reading and verifying resolve the pointer.
The object and the row that owns it are written before the commit that points to them; what a commit leaves behind that did not
happen is removed by the sweep, a day later. A pointer is 28 bytes, shorter than any sealed payload:
`"SMO" || 1 || object (16) || u64(how many bytes lie there)`.
"""

from struct import Struct
from typing import Final
from uuid import UUID

from django.conf import settings

from kernel import ids
from kernel.call import Call
from kernel.ports import Corrupt
from runs import storage
from runs.storage import ObjectMissing

_POINTER: Final = Struct(">4s16sQ")
_MAGIC: Final = b"SMO\1"
SIZE: Final = _POINTER.size
# Makes a run the owner of an object.
OFFLOAD: Final = Call("runs_offload", "uuid uuid uuid int8", "bool")


def store(tenant: UUID, run_id: UUID, blob: bytes) -> bytes:
    """What to keep in the row: the sealed bytes, or a pointer to them when they are more than OFFLOAD_BYTES."""
    return blob if len(blob) <= settings.OFFLOAD_BYTES else _write(tenant, run_id, blob)


def store_all(tenant: UUID, run_id: UUID, blobs: list[bytes | None]) -> list[bytes | None]:
    """As `store`, for each."""
    limit = settings.OFFLOAD_BYTES
    return [blob if blob is None or len(blob) <= limit else _write(tenant, run_id, blob) for blob in blobs]


def _write(tenant: UUID, run_id: UUID, blob: bytes) -> bytes:
    object_id = ids.uuid7()
    writer = storage.store().create(tenant, object_id)
    try:
        writer.write(blob)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    OFFLOAD.one((tenant, run_id, object_id, len(blob)))
    return _POINTER.pack(_MAGIC, object_id.bytes, len(blob))


def fetch(tenant: UUID, stored: bytes) -> bytes:
    """The sealed bytes of what a row keeps. Raises Corrupt when they are gone."""
    if len(stored) != SIZE:
        return stored
    object_id, size = points_to(stored)
    try:
        reader = storage.store().open(tenant, object_id, offset=0, length=size)
    except ObjectMissing as error:
        raise Corrupt from error
    try:
        return reader.read(size)
    finally:
        reader.close()


def points_to(stored: bytes) -> tuple[UUID, int]:
    """The object of a pointer, and its size. Raises Corrupt."""
    magic, object_id, size = _POINTER.unpack(stored)
    if magic != _MAGIC:
        raise Corrupt
    return UUID(bytes=object_id), size
