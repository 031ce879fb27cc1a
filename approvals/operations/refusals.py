"""What is refused of requests, by stable code."""

from kernel.errors import DomainError


class MayNotDecide(DomainError):
    """`rule` in the problem says why."""

    code = "may_not_decide"
    status = 403
    title = "You may not decide this"


class AlreadyDecided(DomainError):
    """Somebody was first; the problem says who, when and what."""

    code = "already_decided"
    status = 409
    title = "This request is decided already"


class DigestChanged(DomainError):
    """What is to be decided is not what was shown."""

    code = "digest_changed"
    status = 409
    title = "This is not what you were shown"


class StepUpRequired(DomainError):
    code = "step_up_required"
    status = 403
    title = "Confirm who you are"


class RequestNotOpen(DomainError):
    code = "request_not_open"
    status = 409
    title = "This request does not wait for a decision"


class NothingToRevoke(DomainError):
    code = "nothing_to_revoke"
    status = 409
    title = "There is no unused grant"


class StillStale(DomainError):
    """Asked again, it would be stale at once; `reason` says why."""

    code = "still_stale"
    status = 409
    title = "What it rests on has still changed"


class PolicyDenies(DomainError):
    code = "policy_denies"
    status = 409
    title = "The policy denies this"


class NotAlike(DomainError):
    """Decided together are only requests of one tool and one risk, low enough for their policy."""

    code = "not_alike"
    status = 409
    title = "These cannot be decided together"


class PolicyExists(DomainError):
    code = "policy_exists"
    status = 409
    title = "There is a policy of this name"
