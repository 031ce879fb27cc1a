"""The allowed moves of a request, in one table. The database refuses every other move (`approvals/sql/moves.sql`)."""

from typing import Final

# An approved request becomes stale when its grant was not used and may not be used any more; what asks again supersedes it.
REQUEST_MOVES: Final[dict[str, tuple[str, ...]]] = {
    "open": ("approved", "rejected", "expired", "withdrawn", "superseded", "stale"),
    "stale": ("open", "expired", "withdrawn", "superseded"),
    "approved": ("stale",),
    "rejected": (),
    "expired": ("superseded",),
    "withdrawn": ("superseded",),
    "superseded": (),
}
WAITING: Final = ("open", "stale")
RISKS: Final = ("low", "medium", "high", "critical")
ACTIVITIES: Final = (
    "opened", "viewed", "voted", "approved", "rejected", "commented", "asked", "answered", "edited", "superseded", "reminded",
    "escalated", "expired", "stale", "revalidated", "withdrawn", "revoked", "target_reported",
)  # fmt: skip


def moves_sql() -> str:
    """The table as the elements of an SQL array."""
    return ", ".join(f"'{source}>{target}'" for source, targets in REQUEST_MOVES.items() for target in targets)
