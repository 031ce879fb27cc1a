"""The allowed moves of each machine, in one table. The database refuses every other move (`runs/sql/moves.sql`)."""

from typing import Final

Moves = dict[str, tuple[str, ...]]

RUN_MOVES: Final[Moves] = {
    "pending": ("running", "waiting", "completed", "failed", "cancelled", "dead_letter"),
    "running": ("waiting", "completed", "failed", "cancelled", "dead_letter"),
    "waiting": ("running", "completed", "failed", "cancelled", "dead_letter"),
    "dead_letter": ("pending", "cancelled"),
    "completed": (),
    "failed": (),
    "cancelled": (),
}
RUN_ENDS: Final = ("completed", "failed", "cancelled", "dead_letter")

# A step is blocked again when its run stops: a runnable step can be claimed.
STEP_MOVES: Final[Moves] = {
    "blocked": ("runnable", "waiting", "skipped"),
    "runnable": ("leased", "blocked", "skipped"),
    "leased": ("runnable", "blocked", "succeeded", "failed", "waiting", "skipped", "dead_letter"),
    "waiting": ("runnable", "blocked", "skipped", "failed", "dead_letter"),
    "failed": ("runnable", "skipped"),
    "dead_letter": ("runnable", "skipped"),
    "succeeded": (),
    "skipped": (),
}
WAITS: Final = ("retry", "timer", "signal", "child", "gate", "reconciliation")

EFFECT_MOVES: Final[Moves] = {
    "reserved": ("in_flight", "cancelled"),
    "in_flight": ("succeeded", "failed", "unknown"),
    "unknown": ("reconciled_succeeded", "reconciled_failed"),
    "failed": ("in_flight", "reserved"),
    "reconciled_failed": ("in_flight", "reserved"),
    "succeeded": ("compensating",),
    "reconciled_succeeded": ("compensating",),
    "compensating": ("compensated", "compensation_failed"),
    "compensation_failed": ("compensating",),
    "compensated": (),
    "cancelled": (),
}
GATE_MOVES: Final[Moves] = {
    "open": ("satisfied", "refused", "lapsed", "withdrawn"),
    "satisfied": (),
    "refused": (),
    "lapsed": (),
    "withdrawn": (),
}
GRANT_MOVES: Final[Moves] = {"unused": ("used", "revoked", "lapsed"), "used": (), "revoked": (), "lapsed": ()}
ARTIFACT_MOVES: Final[Moves] = {
    "uploading": ("scanning", "expired", "deleted"),
    "scanning": ("ready", "infected", "failed", "deleted"),
    "ready": ("infected", "failed", "deleted"),
    "infected": ("deleted",),
    "failed": ("deleted",),
    "expired": ("deleted",),
    "deleted": (),
}

MACHINES: Final = {
    "run": RUN_MOVES,
    "step": STEP_MOVES,
    "effect": EFFECT_MOVES,
    "gate": GATE_MOVES,
    "grant": GRANT_MOVES,
    "artifact": ARTIFACT_MOVES,
}

# What becomes of a step that failed, by the class the worker gives: retried while attempts are left, given to an operator, final,
# or left until somebody knows. A person's or a rule's "no" is final; an unknown outcome is never repeated blindly.
FAILURE_CLASSES: Final = {
    "transient": "retry",
    "rate_limited": "retry",
    "permanent": "dead_letter",
    "unknown_outcome": "unknown",
    "business_rejection": "failed",
}


def moves_sql() -> str:
    """The tables of all machines as the elements of an SQL array."""
    return ", ".join(
        f"'{machine}:{source}>{target}'"
        for machine, moves in MACHINES.items()
        for source, targets in moves.items()
        for target in targets
    )
