"""What the database functions answer instead of "ok", as domain errors."""

from typing import Any
from uuid import UUID

import msgspec

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


class EffectNotHeld(DomainError):
    """The effect is not in flight under this lease."""

    code = "effect_not_held"
    status = 409
    title = "This effect is not yours to close"


class EffectsOpen(DomainError):
    code = "effects_open"
    status = 409
    title = "The outcome of an effect is missing"


class EffectNotUnknown(DomainError):
    code = "effect_not_unknown"
    status = 409
    title = "The outcome of this effect is known"


class TooEarly(DomainError):
    """ "Not found" proves nothing yet: the call may still be under way."""

    code = "too_early"
    status = 409
    title = "It is too early to say that it did not happen"


class ContradictingEvidence(DomainError):
    code = "contradicting_evidence"
    status = 409
    title = "There is evidence that it did happen"


class GateDecided(DomainError):
    code = "gate_decided"
    status = 409
    title = "This gate is decided"


class GateGoverned(DomainError):
    """A policy governs this gate: whoever its request names decides, and nobody else."""

    code = "gate_is_governed"
    status = 409
    title = "This gate is decided by its approval request"


class NotInDeadLetter(DomainError):
    code = "not_in_dead_letter"
    status = 409
    title = "The run is not in the dead letter"


class UnknownChild(DomainError):
    code = "unknown_child"
    status = 422
    title = "There is no such child run"


def loaded(detail: Any) -> Any:
    """What a function answered beside its code, whether the driver has read it as JSON or not."""
    return msgspec.json.decode(detail) if isinstance(detail, str | bytes) else detail


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
        case "effect_not_held":
            return EffectNotHeld(
                f"It is {extra.get('effect_status') or 'unknown to this run'}; nothing was written.", extra=extra
            )
        case "effects_open":
            return EffectsOpen(
                "Bring the outcome of the effect, or reconcile it, first.",
                hint=f"GET /api/v1/effects/{extra.get('effect')}",
                extra=extra,
            )
        case "effect_not_unknown":
            return EffectNotUnknown(f"It is {extra.get('effect_status')}.", extra=extra)
        case "too_early":
            return TooEarly(
                "Ask the service again after retry_after seconds, and report what it says then.", extra=extra
            )
        case "contradicting_evidence":
            return ContradictingEvidence("An operator must look at it.", extra=extra)
        case "gate_decided":
            return GateDecided(f"It is {extra.get('gate_status')}.", extra=extra)
        case "gate_is_governed":
            return GateGoverned("Decide its request.", hint="GET /api/v1/approvals/requests?gate=…", extra=extra)
        case "not_in_dead_letter":
            return NotInDeadLetter(f"It is {extra.get('run_status')}.", extra=extra)
        case "steps_left":
            return StepsOpen(
                f"Step {extra.get('step')!r} is in the dead letter too: name none to act on all.", extra=extra
            )
        case "unknown_child":
            return UnknownChild("Nothing was written.")
        case "subject_changed":
            return SubjectErased("Nothing new is stored for it.")
    raise AssertionError(f"unknown answer {code!r}")
