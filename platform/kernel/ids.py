"""Identifiers: UUIDv7 (RFC 9562), so that primary keys grow with time and stay close together in an index."""

import os
import time
from uuid import UUID


def uuid7() -> UUID:
    """A new UUIDv7: 48 bits of Unix milliseconds, 12 of their fraction (RFC 9562, 6.2, method 3), 62 random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return UUID(int=milliseconds << 80 | 0x7 << 76 | (rest * 4096 // 1_000_000) << 64 | 0x2 << 62 | random)
