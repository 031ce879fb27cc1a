"""The icon and the word of every state that a page can show. The tone comes from the style sheet, by the API's own word.

Invariant: a state is never shown by colour alone, and one that is not listed here is still shown, by its name.
"""

from dataclasses import dataclass
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Look:
    icon: str
    word: str | Promise


STATES: Final[dict[str, Look]] = {
    # Run
    "pending": Look("pending", _("Pending")),
    "running": Look("run", _("Running")),
    "waiting": Look("clock", _("Waiting")),
    "completed": Look("ok", _("Completed")),
    "failed": Look("fail", _("Failed")),
    "cancelled": Look("slash", _("Cancelled")),
    "dead_letter": Look("dead", _("Dead letter")),
    # Step
    "blocked": Look("blocked", _("Blocked")),
    "runnable": Look("pending", _("Runnable")),
    "leased": Look("run", _("Leased")),
    "succeeded": Look("ok", _("Succeeded")),
    "skipped": Look("slash", _("Skipped")),
    # Attempt
    "lease_lost": Look("fail", _("Worker lost")),
    "released": Look("undo", _("Released")),
    # Effect
    "reserved": Look("pending", _("Reserved")),
    "in_flight": Look("run", _("In flight")),
    "unknown": Look("unknown", _("Outcome unknown")),
    "reconciled_succeeded": Look("ok", _("Reconciled, happened")),
    "reconciled_failed": Look("fail", _("Reconciled, did not happen")),
    "compensating": Look("undo", _("Being undone")),
    "compensated": Look("undo", _("Undone")),
    "compensation_failed": Look("fail", _("Undoing failed")),
    # Gate
    "open": Look("clock", _("Open")),
    "satisfied": Look("ok", _("Satisfied")),
    "refused": Look("fail", _("Refused")),
    "lapsed": Look("slash", _("Lapsed")),
    "withdrawn": Look("slash", _("Withdrawn")),
    # Approval
    "approved": Look("ok", _("Approved")),
    "rejected": Look("fail", _("Rejected")),
    "superseded": Look("slash", _("Superseded")),
    "stale": Look("stale", _("Stale")),
    "due_soon": Look("clock", _("Due soon")),
    "low": Look("down", _("Low risk")),
    "medium": Look("warn", _("Medium risk")),
    "high": Look("up", _("High risk")),
    "critical": Look("up", _("Critical risk")),
    # Delegation
    "planned": Look("calendar", _("Planned")),
    "over": Look("slash", _("Over")),
    # Tool and workflow versions, queues
    "enabled": Look("ok", _("Enabled")),
    "disabled": Look("slash", _("Disabled")),
    "serving": Look("run", _("Serving")),
    "paused": Look("clock", _("Paused")),
    # Webhook
    "failing": Look("warn", _("Failing")),
    # Chain
    "verified": Look("verified", _("Verified")),
    "broken": Look("fail", _("Does not verify")),
    # Key
    "active": Look("key", _("Active")),
    "expiring": Look("clock", _("Ends soon")),
    "expired": Look("slash", _("Expired")),
    "revoked": Look("slash", _("Revoked")),
}

# States of this release that share the tone of one that the style sheet knows.
TONES: Final[dict[str, str]] = {
    "lost": "lease_lost",
    "broken": "failed",
    "compensation_failed": "failed",
    "satisfied": "approved",
    "refused": "rejected",
    "failing": "failed",
    "enabled": "healthy",
    "serving": "running",
    "paused": "waiting",
    "active": "healthy",
    "expiring": "due_soon",
    "revoked": "cancelled",
    "critical": "high",
    "planned": "waiting",
    "over": "cancelled",
    "superseded": "expired",
}


def look(state: str) -> Look:
    """The look of a state; an unknown one keeps its own name, with blanks for underscores."""
    return STATES.get(state) or Look("info", state.replace("_", " ").capitalize())


def tone(state: str) -> str:
    """What `data-state` holds."""
    return TONES.get(state, state)
