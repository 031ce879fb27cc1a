"""The policy that runs asks before a side effect: which actions wait, what becomes of a gate, and whether a grant still stands."""

from datetime import datetime
from uuid import UUID

from approvals import sealing
from approvals.models import Request
from approvals.operations import asking
from approvals.operations import evidence as evidence_ops
from approvals.queries import standing
from approvals.rules import Matched
from kernel import actor as actors
from kernel import clock
from kernel.actor import Actor
from runs import ports
from runs.models import Grant, Run
from runs.ports import Denied, ProposedAction, Requirement

_SYSTEM = actors.system("approvals")


class ApprovalPolicy:
    """The tenant's policies; where none speaks, the tool's own rule, whose gates are an operator's."""

    def decide(self, *, tenant: UUID, action: ProposedAction) -> Requirement | Denied | None:
        found = standing.matched(
            tenant=tenant, tool=action.tool, run_id=action.run_id, amount=action.amount, currency=action.currency
        )
        if found is None:
            return None if action.tool.approval == "never" else Requirement(action.tool.approval)
        if found.denies:
            return Denied(found.policy.name)
        return Requirement(found.policy.name, found.policy.rules.deadline_seconds, found)

    def opened(self, *, tenant: UUID, gate_id: UUID, action: ProposedAction, required: Requirement) -> None:
        """One request for each gate. What was asked before about the same effect, and came to nothing, is superseded."""
        if not isinstance(required.basis, Matched) or Request.objects.filter(gate_id=gate_id).exists():
            return
        now = clock.now()
        before = _before(action.effect_id)
        summary = sealing.Summary(
            action.business_object, action.supporting.explanation,
            None if action.supporting.target is None else action.supporting.target.version,
        )  # fmt: skip
        run = Run.objects.only("id", "project_id").get(id=action.run_id)
        new = asking.open_request(
            tenant=tenant, gate_id=gate_id, action=action, matched=required.basis, now=now,
            evidence=evidence_ops.capture(tenant=tenant, run=run, supporting=action.supporting, now=now), summary=summary,
            supersedes=before, editors=_editors(before, action),
        )  # fmt: skip
        if before is not None and before.status in ("stale", "withdrawn", "expired"):
            asking.supersede(tenant=tenant, request=before, by=new.id, actor=_SYSTEM, now=now)

    def revalidate(self, *, tenant: UUID, action: ProposedAction, gate_id: UUID, grant_id: UUID) -> str | None:
        request = Request.objects.select_for_update(no_key=True).filter(gate_id=gate_id).defer("action").first()
        if request is None:
            return None  # an operator satisfied this gate
        now = clock.now()
        reason = None if bytes(request.action_digest) == action.digest else "action_changed"
        if reason is None and not standing.still_agreed(tenant=tenant, request_id=request.id):
            reason = "approver_lost_role"
        reason = reason or standing.stale_reason(tenant=tenant, request=request, now=asking.database_now())
        if reason is not None:
            asking.make_stale(tenant=tenant, request=request, reason=reason, now=now)
        return reason

    def renewed(self, *, tenant: UUID, gate_id: UUID, new_gate_id: UUID, actor: Actor, now: datetime) -> None:
        request = Request.objects.select_for_update(no_key=True).filter(gate_id=gate_id).first()
        if request is not None:
            asking.renewed(tenant=tenant, request=request, gate_id=new_gate_id, actor=actor, now=now)


def install() -> None:
    ports.install_gate_policy(ApprovalPolicy())


def _before(effect_id: UUID) -> Request | None:
    """The request about this effect before, if nothing came of it and nothing followed it yet."""
    found = Request.objects.filter(effect_id=effect_id).defer("action").order_by("-opened_at", "-id").first()
    if found is None or Request.objects.filter(supersedes_id=found.id).exists():
        return None
    return None if Grant.objects.filter(gate_id=found.gate_id, status="used").exists() else found


def _editors(before: Request | None, action: ProposedAction) -> list[UUID]:
    """Who wrote what is asked for, when it is the same as was edited before."""
    return [] if before is None or bytes(before.action_digest) != action.digest else list(before.editors)
