"""Identifiers: UUIDv7 (RFC 9562), so that primary keys grow with time and stay close together in an index."""

import os
import time
from uuid import UUID


def uuid7() -> UUID:
    """A new UUIDv7: 48 bits of Unix milliseconds, 74 random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)
