"""What people are told about requests: one place for the kinds, the recipients and the words. A link never decides by itself."""

from collections.abc import Collection
from datetime import datetime
from typing import Final
from uuid import UUID

from django.conf import settings
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from approvals.models import Policy, Request
from approvals.queries import deciding
from notices import kinds
from notices import operations as notices_ops
from tenancy.models import Agent, ApiKey, Member, Tenant

TITLES: Final = {
    "approval.requested": _("Your approval is asked for"),
    "approval.reminder": _("A reminder before the deadline"),
    "approval.escalated": _("An approval was escalated to you"),
    "approval.approved": _("What you are behind was approved"),
    "approval.rejected": _("What you are behind was rejected"),
    "approval.expired": _("Nobody decided in time"),
    "approval.stale": _("A request must be checked again"),
    "approval.withdrawn": _("A request was withdrawn"),
    "approval.revoked": _("An approval was taken back"),
    "approval.question": _("A question about a request"),
    "approval.comment": _("A comment on a request"),
}
SUBJECTS: Final = {
    "approval.requested": _("Your approval is asked for: {tool}"),
    "approval.reminder": _("Still waiting for approval: {tool}"),
    "approval.escalated": _("An approval was escalated to you: {tool}"),
    "approval.approved": _("Approved: {tool}"),
    "approval.rejected": _("Rejected: {tool}"),
    "approval.expired": _("Nobody decided in time: {tool}"),
    "approval.stale": _("Must be checked again: {tool}"),
    "approval.withdrawn": _("Withdrawn: {tool}"),
    "approval.revoked": _("The approval was taken back: {tool}"),
    "approval.question": _("A question about an approval: {tool}"),
    "approval.comment": _("A comment on an approval: {tool}"),
}


def to_deciders(*, tenant: UUID, kind: str, request: Request, now: datetime) -> None:
    """Tell everybody who may decide now."""
    people = {decider.member_id for decider in deciding.deciders(tenant=tenant, request_id=request.id)}
    tell(tenant=tenant, kind=kind, request=request, to=people, now=now)


def to_requester(*, tenant: UUID, kind: str, request: Request, now: datetime, also: Collection[UUID] = ()) -> None:
    """Tell the people behind the request."""
    owner = Agent.objects.filter(id=request.agent_id).values_list("owner_id", flat=True).first()
    issuer = ApiKey.objects.filter(id=request.requester_id).values_list("issued_by", flat=True).first()
    people = {person for person in (owner, issuer, *also) if person is not None}
    tell(tenant=tenant, kind=kind, request=request, to=people, now=now)


def to_role(*, tenant: UUID, kind: str, request: Request, role: str, now: datetime) -> None:
    people = set(Member.objects.filter(roles__contains=[role]).values_list("id", flat=True))
    tell(tenant=tenant, kind=kind, request=request, to=people, now=now)


def tell(*, tenant: UUID, kind: str, request: Request, to: Collection[UUID], now: datetime) -> None:
    """Tell members, and whoever listens for this kind, in the caller's transaction. Nothing an agent wrote stands in a message."""
    slug = Tenant.objects.values_list("slug", flat=True).get(id=tenant)
    policy = Policy.objects.values_list("name", flat=True).get(id=request.policy_id)
    amount = None if request.amount is None else f"{request.amount.normalize():f} {request.currency}"
    lines = [f"Tool: {request.tool} (version {request.tool_version})", f"Risk: {request.risk} (by {request.risk_rule})"]
    lines += [f"Amount: {amount}"] if amount else []
    lines += [f"Policy: {policy}", f"Deadline: {request.deadline_at:%Y-%m-%d %H:%M} UTC"]
    lines += [f"Reason: {request.stale_reason}"] if request.status == "stale" else []
    data = {
        "request": str(request.id), "gate": str(request.gate_id), "run": str(request.run_id), "effect": str(request.effect_id),
        "status": request.status, "tool": request.tool, "risk": request.risk, "policy": policy,
        "digest": bytes(request.digest).hex(),
        "deadline_at": request.deadline_at.isoformat(), "stale_reason": request.stale_reason,
    }  # fmt: skip
    link = f"{settings.BASE_URL}/t/{slug}/approvals/{request.id}/"
    subject = format_lazy(SUBJECTS[kind], tool=request.tool)
    notices_ops.tell(
        tenant=tenant, kind=kind, to=frozenset(to), subject=subject, lines=lines, link=link, data=data, now=now
    )


def register() -> None:
    for kind, title in TITLES.items():
        kinds.register(kind, title)
