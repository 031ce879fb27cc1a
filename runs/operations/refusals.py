"""What the database functions answer instead of "ok", as domain errors."""

from typing import Any
from uuid import UUID

from kernel.errors import DomainError, IdempotencyKeyReused, NotFound
from privacy.operations import SubjectErased
from runs.patch import PatchConflict
from tenancy.auth import Unauthorized


class StaleEpoch(DomainError):
    """The lease is no longer the step's: another worker has it, or the step is over."""

    code = "stale_epoch"
    status = 409
    title = "This lease was lost"


class LeaseExpired(DomainError):
    code = "lease_expired"
    status = 409
    title = "This lease has expired"


class LeaseLost(DomainError):
    code = "lease_lost"
    status = 409
    title = "This lease was lost"


class StaleHead(DomainError):
    """Someone else changed the state or the plan since."""

    code = "stale_head"
    status = 409
    title = "The state has changed"


class RunFinished(DomainError):
    code = "run_finished"
    status = 409
    title = "The run is over"


class StepsOpen(DomainError):
    code = "steps_open"
    status = 409
    title = "The run still has open steps"


class PlanConflict(DomainError):
    code = "plan_conflict"
    status = 409
    title = "The plan does not fit"


def refusal(code: str, *, run_id: UUID | None, detail: dict[str, Any] | None) -> DomainError:
    """The error for a code that a database function of this app answered."""
    extra = dict(detail or {})
    match code:
        case "not_found":
            return NotFound("There is no such run.")
        case "lease_not_found":
            return NotFound("There is no such lease.")
        case "key_refused":
            return Unauthorized()
        case "idempotency_key_reused":
            return IdempotencyKeyReused("The first request with this Idempotency-Key had another body.")
        case "stale_epoch":
            return StaleEpoch("Stop: your write was refused and changed nothing.", extra=extra)
        case "lease_expired":
            return LeaseExpired("Stop: the lease ran out before this write, which changed nothing.", extra=extra)
        case "lease_lost":
            return LeaseLost("Stop working on this step.", extra=extra)
        case "run_finished":
            return RunFinished(f"The run is {extra.get('run_status')}; nothing was written.", extra=extra)
        case "stale_head":
            return StaleHead(
                "Nothing was written. Read what happened since, rebuild your change on the new head and send it again.",
                hint=f"GET /api/v1/runs/{run_id}/checkpoints/latest",
                extra=extra,
            )
        case "patch_conflict":
            return PatchConflict("The patch appends to, replaces or removes what the state does not have.")
        case "steps_open":
            return StepsOpen("A run completes with its last step.", extra=extra)
        case "step_exists" | "unknown_dependency" | "unknown_step":
            reason = {"step_exists": "exists already", "unknown_dependency": "does not stand earlier in the plan"}
            return PlanConflict(f"Step {extra.get('step')!r} {reason.get(code, 'does not exist')}.", extra=extra)
        case "subject_changed":
            return SubjectErased("Nothing new is stored for it.")
    raise AssertionError(f"unknown answer {code!r}")
