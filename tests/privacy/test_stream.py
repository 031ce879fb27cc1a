"""Chunked encryption: whatever is done to the stored bytes, what opens is what was sealed, or nothing."""

import os

import pytest

from kernel.ids import uuid7
from kernel.ports import Corrupt
from privacy import stream
from privacy.keys import DataKey
from privacy.stream import CHUNK, HEADER, TAG, Opener, Sealer

TENANT, OBJECT = uuid7(), uuid7()
STORED = CHUNK + TAG


def key(tenant: object = TENANT) -> DataKey:
    return DataKey(tenant=tenant, key_id=TENANT, secret=b"k" * 32)  # type: ignore[arg-type]


def sealed(content: bytes, piece: int = 300_000, object_id: object = OBJECT) -> bytes:
    sealer = Sealer(key(), object_id)  # type: ignore[arg-type]
    parts = [sealer.update(content[at : at + piece]) for at in range(0, len(content), piece)]
    return b"".join(parts) + sealer.finish()


def opened(stored: bytes, size: int, *, tenant: object = TENANT, object_id: object = OBJECT) -> bytes:
    opener = Opener(key(tenant), object_id, header=stored[:HEADER], size=size)  # type: ignore[arg-type]
    at, parts = HEADER, []
    for _ in range(stream.chunks(size)):
        length = opener.next_size
        parts.append(opener.open(stored[at : at + length]))
        at += length
    if at != len(stored):
        raise Corrupt
    return b"".join(parts)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 17])
@pytest.mark.parametrize("piece", [1000, CHUNK, 5 * CHUNK])
def test_what_was_sealed_is_opened(size: int, piece: int) -> None:
    content = os.urandom(size)
    stored = sealed(content, piece)
    assert len(stored) == stream.stored_size(size)
    assert opened(stored, size) == content


def test_the_same_content_is_never_stored_the_same() -> None:
    assert sealed(b"x" * 100) != sealed(b"x" * 100)


def pieces(stored: bytes) -> list[bytes]:
    return [stored[at : at + STORED] for at in range(HEADER, len(stored), STORED)]


CONTENT = os.urandom(3 * CHUNK)


@pytest.mark.parametrize(
    "order",
    [[0, 1], [0], [1, 0, 2], [0, 2, 1], [0, 0, 2], [0, 1, 1], [0, 1, 2, 2], [2], [0, 2], []],
    ids=str,
)
def test_cut_moved_and_repeated_chunks_do_not_open(order: list[int]) -> None:
    """Even when the row's size is made to fit."""
    stored = sealed(CONTENT)
    found = pieces(stored)
    changed = stored[:HEADER] + b"".join(found[index] for index in order)
    with pytest.raises(Corrupt):
        opened(changed, len(CONTENT))
    with pytest.raises(Corrupt):
        opened(changed, len(order) * CHUNK)


def test_longer_and_shorter_sizes_do_not_open() -> None:
    stored = sealed(CONTENT)
    for size in (0, 1, CHUNK, len(CONTENT) - 1, len(CONTENT) + 1, 4 * CHUNK):
        with pytest.raises(Corrupt):
            opened(stored, size)


def test_another_object_tenant_or_header_does_not_open() -> None:
    stored, other = sealed(CONTENT), sealed(CONTENT)
    with pytest.raises(Corrupt):
        opened(stored, len(CONTENT), object_id=uuid7())
    with pytest.raises(Corrupt):
        opened(stored, len(CONTENT), tenant=uuid7())
    with pytest.raises(Corrupt):
        opened(other[:HEADER] + stored[HEADER:], len(CONTENT))
    with pytest.raises(Corrupt):
        opened(b"\2" + stored[1:], len(CONTENT))
    mixed = stored[:HEADER] + pieces(stored)[0] + pieces(other)[1] + pieces(stored)[2]
    with pytest.raises(Corrupt):
        opened(mixed, len(CONTENT))


@pytest.mark.parametrize("at", [0, 3, HEADER, HEADER + CHUNK, HEADER + STORED, -1])
def test_a_flipped_bit_does_not_open(at: int) -> None:
    stored = bytearray(sealed(CONTENT))
    stored[at] ^= 1
    with pytest.raises(Corrupt):
        opened(bytes(stored), len(CONTENT))
