"""Deciding: one outcome for each request, recorded once, for exactly what was shown. And taking back what was not used yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from django.db import transaction

from approvals import sealing
from approvals.models import PolicyPermission, Request, RequestGroup, Vote
from approvals.operations import asking, notices
from approvals.operations.refusals import (
    AlreadyDecided,
    DigestChanged,
    MayNotDecide,
    NotAlike,
    NothingToRevoke,
    StepUpRequired,
)
from approvals.queries import deciding, inbox, standing
from approvals.queries.deciding import Verdict
from kernel import codec, ids
from kernel.actor import Actor
from kernel.errors import DomainError, NotFound
from privacy import guard
from runs.models import Grant
from runs.operations import gates
from runs.operations.refusals import GateDecided
from tenancy.models import ApiKey, Member, Role
from tenancy.queries import Principal

Answer = Literal["approve", "reject"]
CONFIRMED_FOR: Final = timedelta(minutes=5)  # how long a proof of who one is counts
MAX_BULK: Final = 100


@dataclass(frozen=True, slots=True)
class Decision:
    """What a decision came to. `outcome`: approved, rejected, waiting (for others), or, with nothing recorded, stale or expired.

    `progress` is "1 of 2"; `grant_id` the permission that was minted; `stale_reason` why it must be asked again.
    """

    request_id: UUID
    outcome: str
    recorded: bool
    progress: str
    grant_id: UUID | None = None
    stale_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several requests that are decided together, with the digest (hex) that was shown for it."""

    request_id: UUID
    digest: str


def decide(
    *, tenant: UUID, principal: Principal, request_id: UUID, digest: str, answer: Answer, reason: str | None, actor: Actor,
    now: datetime, confirmed_at: datetime | None = None,
) -> Decision:  # fmt: skip
    """Approve or reject what was shown under `digest` (hex). The same decision again answers the same.

    `confirmed_at`: when this session last proved who sits before it. Who decides is judged here and now, whatever was shown. Raises
    NotFound, AlreadyDecided, DigestChanged, MayNotDecide, StepUpRequired, CredentialRefused. The caller holds the tenant scope.
    """
    if reason:
        guard.inspect(codec.dumps(reason))
    # A key that may do this sees all of its tenant: it is bound neither to an agent nor to projects.
    request = asking.locked(request_id=request_id)
    said = Vote.objects.filter(request_id=request_id, round=request.round, voter_id=principal.id).first()
    if said is not None and said.decision == answer and bytes(said.digest).hex() == digest:
        return _decision(request, recorded=True)
    if request.status == "stale":
        return _decision(request, recorded=False)
    if request.status != "open":
        raise _already_decided(request)
    if bytes(request.digest).hex() != digest:
        raise DigestChanged("Look at it again.", extra={"digest": bytes(request.digest).hex()})
    verdict = verdict_of(tenant, principal, request_id)
    if verdict.rule == "expired":
        return Decision(request_id, "expired", False, _progress(request))
    if not verdict.allowed:
        raise MayNotDecide(verdict.sentence, extra={"rule": verdict.rule})
    if request.step_up and principal.kind == "member" and not _confirmed(confirmed_at, now):
        raise StepUpRequired("The risk of this action asks for it.", extra={"risk": request.risk})
    if answer == "approve":
        stale = standing.stale_reason(tenant=tenant, request=request, now=asking.database_now())
        if stale is not None:
            asking.make_stale(tenant=tenant, request=request, reason=stale, now=now)
            return _decision(request, recorded=False)
    try:
        with transaction.atomic():
            return _record(tenant, principal, request, verdict, answer, reason, actor, now)
    except GateDecided:
        # The deadline passed between two looks at the clock.
        return Decision(request_id, "expired", False, _progress(request))


def decide_together(
    *, tenant: UUID, principal: Principal, choices: Sequence[Choice], answer: Answer, reason: str | None, actor: Actor,
    now: datetime, confirmed_at: datetime | None = None,
) -> dict[UUID, Decision | DomainError]:  # fmt: skip
    """Decide like requests of low risk together, each under the digest that was shown; what became of each. Raises NotAlike."""
    rows = {
        row.id: row
        for row in Request.objects.filter(id__in=[c.request_id for c in choices])
        .order_by("run_id", "id")
        .defer("action")
    }
    if not 1 <= len(choices) <= MAX_BULK or len(rows) != len(choices):
        raise NotFound("One of them does not exist, or they are too many.")
    alike = {(row.tool, row.risk, row.policy_id) for row in rows.values()}
    if len(alike) > 1 or not all(row.bulk for row in rows.values()):
        raise NotAlike("Decide them one by one.")
    # Every lock before the first decision, in the order in which everybody takes them.
    for row in rows.values():
        gates.lock_run(run_id=row.run_id)
    digests = {choice.request_id: choice.digest for choice in choices}
    done: dict[UUID, Decision | DomainError] = {}
    for request_id in rows:
        try:
            with transaction.atomic():
                done[request_id] = decide(
                    tenant=tenant, principal=principal, request_id=request_id, digest=digests[request_id], answer=answer,
                    reason=reason, actor=actor, now=now, confirmed_at=confirmed_at,
                )  # fmt: skip
        except DomainError as error:
            done[request_id] = error
    return done


def revoke(*, tenant: UUID, principal: Principal, request_id: UUID, reason: str, actor: Actor, now: datetime) -> None:
    """Take back an approval that was not used yet: by who gave it, who could have, or who administers the tenant.

    The agent may ask anew. Raises NotFound, MayNotDecide, NothingToRevoke.
    """
    guard.inspect(codec.dumps(reason))
    request = asking.locked(request_id=request_id)
    if not _may_revoke(principal, request):
        raise MayNotDecide("Neither did you approve it, nor could you have.", extra={"rule": "no_authority"})
    if request.status != "approved" or not Grant.objects.filter(gate_id=request.gate_id, status="unused").exists():
        raise NothingToRevoke(f"It is {request.status}.", extra={"request_status": request.status})
    gates.withdraw_gate(tenant=tenant, gate_id=request.gate_id, reason=reason, actor=actor)
    asking.note(request, "revoked", actor, now)
    asking.record(tenant, actor, "approval.revoked", request.id, {"reason": reason}, now)
    notices.to_requester(tenant=tenant, kind="approval.revoked", request=request, now=now)
    asking.tell_waiting(tenant, request.id)


def verdict_of(tenant: UUID, principal: Principal, request_id: UUID) -> Verdict:
    if principal.kind == "member":
        return deciding.may_decide(tenant=tenant, member=principal.id, request_id=request_id)
    return deciding.key_verdicts(tenant=tenant, key_id=principal.id, request_ids=[request_id])[request_id]


def _record(
    tenant: UUID, principal: Principal, request: Request, verdict: Verdict, answer: Answer, reason: str | None, actor: Actor,
    now: datetime,
) -> Decision:  # fmt: skip
    assert verdict.group is not None
    assert verdict.authority_id is not None
    vote = Vote(
        id=ids.uuid7(), request_id=request.id, round=request.round, voter_kind=principal.kind, voter_id=principal.id,
        authority_id=verdict.authority_id, path=list(verdict.path), group=verdict.group, decision=answer, basis=verdict.rule,
        digest=request.digest, at=now,
    )  # fmt: skip
    if reason:
        vote.reason = sealing.seal(tenant=tenant, key_id=request.data_key_id, row=vote.id, body=reason.encode())
    vote.save(force_insert=True)
    asking.note(request, "voted", actor, now, decision=answer, group=verdict.group, authority=str(verdict.authority_id))
    content = {
        "decision": answer, "digest": bytes(request.digest).hex(), "group": verdict.group, "by_right_of": str(verdict.authority_id),
        "basis": verdict.rule, "reason": reason, "round": request.round,
    }  # fmt: skip
    asking.record(tenant, actor, "approval.voted", request.id, content, now)
    grant: UUID | None = None
    if answer == "reject" or all(part.got >= part.needed for part in inbox.progress([request])[request.id]):
        request.status = "approved" if answer == "approve" else "rejected"
        request.decided_at = asking.database_now()
        request.save(update_fields=["status", "decided_at"])
        grant = gates.settle_gate(
            tenant=tenant, gate_id=request.gate_id, satisfied=answer == "approve", grant_seconds=request.grant_seconds,
            detail={"request": str(request.id)}, actor=actor,
        )  # fmt: skip
        asking.note(request, request.status, actor, now)
        asking.record(tenant, actor, f"approval.{request.status}", request.id, content, now)
        others = set(Vote.objects.filter(request_id=request.id, voter_kind="member").values_list("voter_id", flat=True))
        notices.to_requester(
            tenant=tenant, kind=f"approval.{request.status}", request=request, now=now, also=others - {principal.id}
        )
    asking.tell_waiting(tenant, request.id)
    return _decision(request, recorded=True, grant=grant)


def _decision(request: Request, *, recorded: bool, grant: UUID | None = None) -> Decision:
    outcome = "waiting" if request.status == "open" else request.status
    if grant is None and request.status == "approved":
        grant = Grant.objects.filter(gate_id=request.gate_id).values_list("id", flat=True).first()
    return Decision(request.id, outcome, recorded, _progress(request), grant, request.stale_reason)


def _progress(request: Request) -> str:
    parts = inbox.progress([request])[request.id]
    return f"{sum(min(part.got, part.needed) for part in parts)} of {sum(part.needed for part in parts)}"


def _already_decided(request: Request) -> AlreadyDecided:
    """Tells who decided, so that the one who came second knows whom to ask."""
    votes = Vote.objects.filter(request_id=request.id, round=request.round)
    decision = {"approved": "approve", "rejected": "reject"}.get(request.status)
    voters = list(votes.filter(decision=decision).order_by("at").values_list("voter_id", flat=True))
    names = dict(Member.objects.filter(id__in=voters).values_list("id", "name"))
    names |= dict(ApiKey.objects.filter(id__in=voters).values_list("id", "name"))
    who = [names[voter] for voter in voters if voter in names]
    text = f"It was {request.status} by {', '.join(who)}." if who else f"It is {request.status}."
    return AlreadyDecided(text, extra={
        "request_status": request.status, "decided_by": who,
        "decided_at": None if request.decided_at is None else request.decided_at.isoformat(),
    })  # fmt: skip


def _confirmed(confirmed_at: datetime | None, now: datetime) -> bool:
    return confirmed_at is not None and timedelta(0) <= now - confirmed_at <= CONFIRMED_FOR


def _may_revoke(principal: Principal, request: Request) -> bool:
    if Vote.objects.filter(request_id=request.id, voter_id=principal.id, decision="approve").exists():
        return True
    if principal.kind == "key":
        return False
    if principal.roles & {Role.OWNER, Role.ADMIN}:
        return True
    groups = list(RequestGroup.objects.filter(request_id=request.id, round=request.round))
    if any(principal.roles & set(group.roles) for group in groups):
        return True
    user = Member.objects.filter(id=principal.id).values("user_id")
    permission = PolicyPermission.objects.filter(content_object_id=request.policy_id, user_id__in=user)
    return any(group.approvers for group in groups) and permission.exists()
