"""The allowed moves of each machine, in one table. The database refuses every other move (`runs/sql/moves.sql`)."""

from typing import Final

RUN_MOVES: Final = {
    "pending": ("running", "waiting", "completed", "failed", "cancelled", "dead_letter"),
    "running": ("waiting", "completed", "failed", "cancelled", "dead_letter"),
    "waiting": ("running", "completed", "failed", "cancelled", "dead_letter"),
    "dead_letter": ("pending", "cancelled"),
    "completed": (),
    "failed": (),
    "cancelled": (),
}
RUN_ENDS: Final = ("completed", "failed", "cancelled", "dead_letter")

STEP_MOVES: Final = {
    "blocked": ("runnable", "skipped"),
    "runnable": ("leased", "skipped"),
    "leased": ("runnable", "succeeded", "failed", "waiting", "skipped", "dead_letter"),
    "waiting": ("runnable", "skipped", "failed"),
    "failed": ("runnable", "skipped"),
    "dead_letter": ("runnable", "skipped"),
    "succeeded": (),
    "skipped": (),
}

# What becomes of a step that failed, by the class the worker gives: retried while attempts are left, given to an operator, or
# final. A person's or a rule's "no" is final; an unknown outcome is never repeated blindly.
FAILURE_CLASSES: Final = {
    "transient": "retry",
    "rate_limited": "retry",
    "permanent": "dead_letter",
    "unknown_outcome": "dead_letter",
    "business_rejection": "failed",
}


def moves_sql(machine: str, moves: dict[str, tuple[str, ...]]) -> str:
    """The table of one machine as the elements of an SQL array."""
    return ", ".join(f"'{machine}:{source}>{target}'" for source, targets in moves.items() for target in targets)
