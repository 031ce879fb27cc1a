"""Telling people and other systems, and the endpoints and wishes that say whom. The caller holds the tenant scope."""

from notices.operations.care import purge
from notices.operations.endpoints import (
    Issued,
    Redelivered,
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    ping,
    redeliver,
    redeliver_since,
    rotate_secret,
)
from notices.operations.telling import tell
from notices.operations.wishes import choose

__all__ = [
    "Issued",
    "Redelivered",
    "change_endpoint",
    "choose",
    "create_endpoint",
    "delete_endpoint",
    "ping",
    "purge",
    "redeliver",
    "redeliver_since",
    "rotate_secret",
    "tell",
]
