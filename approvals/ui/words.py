"""What the pages of approvals say: kinds, reasons, moves, and the domain's refusals, in the reader's language."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from kernel.errors import DomainError
from kernel.web import states, text

RISKS: Final[dict[str, str | Promise]] = {
    "low": _("Low risk"),
    "medium": _("Medium risk"),
    "high": _("High risk"),
    "critical": _("Critical risk"),
}
VIEWS: Final[tuple[tuple[str, str | Promise], ...]] = (
    ("mine", _("For you")),
    ("open", _("All open")),
    ("stale", _("Stale")),
    ("history", _("Decided")),
)
STALE: Final[dict[str, str | Promise]] = {
    "policy_changed": _("The policy has changed since it was asked."),
    "tool_disabled": _("The tool was switched off."),
    "evidence_changed": _("Evidence that it rests on has changed or is gone."),
    "evidence_too_old": _("Evidence that it rests on is older than the policy allows."),
    "subject_erased": _("The person whom it is about was erased."),
    "target_changed": _("What it would change has changed meanwhile."),
    "approver_lost_role": _("Somebody who approved may not decide any more."),
    "grant_lapsed": _("The approval was not used in time."),
}
ACTIVITIES: Final[dict[str, str | Promise]] = {
    "opened": _("asked for approval"),
    "viewed": _("looked at it"),
    "voted": _("decided"),
    "approved": _("It was approved"),
    "rejected": _("It was rejected"),
    "commented": _("commented"),
    "asked": _("asked a question"),
    "answered": _("answered"),
    "edited": _("edited the action"),
    "superseded": _("Another request took its place"),
    "reminded": _("Approvers were reminded"),
    "escalated": _("It was escalated"),
    "expired": _("The deadline passed"),
    "stale": _("It became stale"),
    "revalidated": _("It was asked again"),
    "withdrawn": _("It was withdrawn"),
    "revoked": _("took the approval back"),
    "target_reported": _("reported that the target has changed"),
}
KINDS: Final[dict[str, tuple[str, str | Promise]]] = {
    "event": ("runs", _("event of a run, as it was recorded")),
    "artifact": ("audit", _("artifact")),
    "fact": ("memory", _("what the agent says; not checked by the platform")),
    "target": ("tool", _("the target as the agent reported it")),
}
COMMENTS: Final[dict[str, str | Promise]] = {
    "comment": _("Comment"),
    "question": _("Question"),
    "answer": _("Answer"),
}
GRANTS: Final[dict[str, str | Promise]] = {
    "unused": _("Approved, not used yet"),
    "used": _("Used: the action was started"),
    "revoked": _("Taken back before it was used"),
    "lapsed": _("Lapsed: it was not used in time"),
}
DIFFERENCES: Final[dict[str, tuple[str, str, str | Promise]]] = {
    "added": ("add", "+", _("added")),
    "removed": ("remove", "−", _("removed")),
    "changed": ("change", "~", _("changed")),
}


def progress(got: int, needed: int, status: str) -> str:
    """ "1 of 2, waiting for another person"."""
    share = gettext("%(got)s of %(needed)s") % {"got": got, "needed": needed}
    if status != "open":
        return share
    left = needed - got
    if got == 0:
        return share
    if left == 1:
        return gettext("%(share)s, waiting for another person") % {"share": share}
    return gettext("%(share)s, waiting for %(left)s more people") % {"share": share, "left": left}


def outcome(status: str, *, progress: str = "", stale: str | None = None) -> str:
    """What a decision came to, for whoever made it."""
    match status:
        case "approved":
            return gettext("Approved. The agent may now do exactly this, once.")
        case "rejected":
            return gettext("Rejected. Nothing is done, and the agent is told why.")
        case "waiting":
            return gettext("Your approval is recorded: %(progress)s. It waits for somebody else.") % {
                "progress": progress
            }
        case "expired":
            return gettext("Nothing was recorded: the deadline had passed.")
        case "stale":
            why = STALE.get(stale or "", "")
            return gettext("Nothing was recorded: it is stale. %(why)s") % {"why": why}
    return str(states.look(status).word)


def refusal(error: DomainError) -> str:
    """What the domain answered, in the reader's words; its own where there are none."""
    extra: Mapping[str, Any] = error.extra
    match error.code:
        case "already_decided":
            return _already(extra)
        case "digest_changed":
            return gettext("This is not what you were shown: it has changed since. Look at it again, then decide.")
        case "step_up_required":
            return gettext("Confirm who you are: the risk of this action asks for your password.")
        case "request_not_open":
            word = states.look(str(extra.get("request_status", ""))).word
            return gettext("It does not wait for a decision any more: it is %(status)s.") % {
                "status": str(word).lower()
            }
        case "nothing_to_revoke":
            return gettext("There is no unused approval to take back.")
        case "still_stale":
            why = STALE.get(str(extra.get("reason", "")), "")
            return gettext("Asked again, it would be stale at once. %(why)s") % {"why": why}
        case "policy_denies":
            return gettext("A policy denies this action. Nobody can approve it.")
        case "not_alike":
            return gettext("Only requests of one tool, one policy and one low risk can be decided together.")
        case "policy_exists":
            return gettext("There is a policy of this name.")
    return error.detail


def _already(extra: Mapping[str, Any]) -> str:
    who = ", ".join(extra.get("decided_by") or [])
    word = str(states.look(str(extra.get("request_status", ""))).word).lower()
    if not who:
        return gettext("Somebody was first: it is %(status)s.") % {"status": word}
    at = extra.get("decided_at")
    moment = text.moment_text(datetime.fromisoformat(at), timezone.get_current_timezone()) if at else ""
    return gettext("%(who)s was first: it is %(status)s since %(time)s. Nothing of yours was recorded.") % {
        "who": who, "status": word, "time": moment,
    }  # fmt: skip
