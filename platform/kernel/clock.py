"""The one reader of the wall clock. Operations take `now`; only edges call this. Leases are judged by the database clock."""

from datetime import UTC, datetime


def now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)
