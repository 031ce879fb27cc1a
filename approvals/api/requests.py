"""Requests over REST: for agents that ask, and for services that a policy names as approvers. Agents never decide."""

from typing import Any
from uuid import UUID

from approvals.api import wire
from approvals.operations import asking, decisions
from approvals.operations.decisions import Choice, Decision
from approvals.operations.refusals import (
    AlreadyDecided,
    DigestChanged,
    MayNotDecide,
    NotAlike,
    NothingToRevoke,
    PolicyDenies,
    RequestNotOpen,
    StillStale,
)
from approvals.queries import inbox, request
from approvals.queries.inbox import Filters
from kernel.errors import DomainError, NotFound
from kernel.rest.views import ApiView, Context, Created, endpoint
from privacy.guard import CredentialRefused
from runs.operations.actions import InvalidReservation
from runs.operations.refusals import GateDecided


class RequestsView(ApiView):
    @endpoint(
        summary="List approval requests",
        scope="approvals:read",
        or_scope="effects:write",
        query=wire.RequestsQuery,
        answer=wire.RequestsOut,
    )
    def get(self, call: Context) -> Any:
        """What waits by its deadline, the nearest first; what is over newest first. A bound key sees its own."""
        query: wire.RequestsQuery = call.query
        named = query.gate_id or query.effect_id or query.run_id or query.status
        filters = Filters(
            view=query.view or ("all" if named else "open"), risk=tuple(query.risk), tool=query.tool, policy_id=query.policy_id,
            run_id=query.run_id, gate_id=query.gate_id, effect_id=query.effect_id, status=tuple(query.status),
            bound_agent=call.principal.agent_id, bound_projects=call.principal.project_ids,
        )  # fmt: skip
        page = inbox.page(
            tenant=call.tenant,
            member=None,
            filters=filters,
            cursor=query.cursor,
            limit=query.limit,
            key_id=call.principal.id,
        )
        return {"items": [wire.request_out(row) for row in page.rows], "next_cursor": page.next_cursor}


class RequestView(ApiView):
    @endpoint(
        summary="Read an approval request",
        scope="approvals:read",
        or_scope="effects:write",
        answer=wire.DetailOut,
        conditional=True,
    )
    def get(self, call: Context, request_id: UUID) -> Any:
        """With exactly what would be done, what it rests on, and everything that was said and decided."""
        found = request.detail(tenant=call.tenant, request_id=request_id, principal=call.principal)
        return wire.detail_out(found)


class WaitView(ApiView):
    @endpoint(
        summary="Wait for a decision",
        scope="approvals:read",
        or_scope="effects:write",
        query=wire.WaitQuery,
        answer=wire.StandingOut,
    )
    def get(self, call: Context, request_id: UUID) -> Any:
        """The process for waits waits up to `wait_seconds` for another status; the web process answers at once."""
        status, digest = request.standing(tenant=call.tenant, request_id=request_id, principal=call.principal)
        return {"id": request_id, "status": status, "digest": digest}


class WithdrawView(ApiView):
    @endpoint(
        summary="Withdraw a request", scope="effects:write", or_scope="runs:operate", body=wire.WithdrawIn,
        answer=wire.AskedOut, optional=True, problems=(RequestNotOpen, CredentialRefused),
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> Any:
        """Nobody is asked any more. The step goes on, and may ask anew."""
        return _asked(asking.withdraw(
            tenant=call.tenant, request_id=request_id, reason=call.body.reason, actor=call.actor, now=call.now,
            principal=call.principal,
        ))  # fmt: skip


class RevalidateView(ApiView):
    @endpoint(
        summary="Ask a stale request again", scope="effects:write", or_scope="runs:operate", body=wire.RevalidateIn,
        answer=wire.AskedOut, optional=True, problems=(RequestNotOpen, StillStale, InvalidReservation), max_bytes=1024 * 1024,
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> Any:
        """On what holds now. Decisions made before do not count any more."""
        return _asked(asking.revalidate(
            tenant=call.tenant, request_id=request_id, actor=call.actor, now=call.now, principal=call.principal,
            evidence=call.body.evidence,
        ))  # fmt: skip


class TargetView(ApiView):
    @endpoint(
        summary="Report that the target has changed", scope="effects:write", or_scope="runs:operate", body=wire.TargetReportIn,
        answer=wire.TargetOut, problems=(CredentialRefused,), max_bytes=1024 * 1024,
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> Any:
        """Another version than the one that was asked for makes the request stale."""
        return {"status": asking.report_target(
            tenant=call.tenant, request_id=request_id, target=call.body, actor=call.actor, now=call.now, principal=call.principal,
        )}  # fmt: skip


class RenewView(ApiView):
    @endpoint(
        summary="Ask again what nobody decided in time", scope="effects:write", or_scope="runs:operate", body=wire.ReasonIn,
        answer=wire.AskedOut, problems=(GateDecided, PolicyDenies, CredentialRefused),
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> Any:
        """A new request for the same action, with a new deadline; the step goes on waiting."""
        return _asked(asking.renew(
            tenant=call.tenant, request_id=request_id, reason=call.body.reason, actor=call.actor, now=call.now,
            principal=call.principal,
        ))  # fmt: skip


class CommentsView(ApiView):
    @endpoint(
        summary="Comment, ask or answer", scope="effects:write", or_scope="approvals:decide", body=wire.CommentIn,
        answer=wire.CommentedOut, status=201, problems=(CredentialRefused,),
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> Any:
        """It changes nothing of the request. An answer names its question."""
        found = asking.comment(
            tenant=call.tenant, request_id=request_id, kind=call.body.kind, text=call.body.text, actor=call.actor, now=call.now,
            answers_id=call.body.answers, principal=call.principal,
        )  # fmt: skip
        return Created({"id": found}, f"/api/v1/approvals/requests/{request_id}")


class DecideView(ApiView):
    @endpoint(
        summary="Decide on a request", scope="approvals:decide", body=wire.DecideIn, answer=wire.DecisionOut,
        problems=(AlreadyDecided, DigestChanged, MayNotDecide, CredentialRefused),
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> Any:
        """By a service whose key a group of the policy names. The same decision again is answered the same."""
        return _decision(decisions.decide(
            tenant=call.tenant, principal=call.principal, request_id=request_id, digest=call.body.digest, answer=call.body.answer,
            reason=call.body.reason, actor=call.actor, now=call.now,
        ))  # fmt: skip


class DecideManyView(ApiView):
    @endpoint(
        summary="Decide on several requests", scope="approvals:decide", body=wire.DecideManyIn, answer=wire.DecidedMany,
        problems=(NotFound, NotAlike, CredentialRefused),
    )  # fmt: skip
    def post(self, call: Context) -> Any:
        """Of one tool, one policy and one low risk, each under the digest that was looked at."""
        choices = [Choice(choice.request, choice.digest) for choice in call.body.requests]
        done = decisions.decide_together(
            tenant=call.tenant, principal=call.principal, choices=choices, answer=call.body.answer, reason=call.body.reason,
            actor=call.actor, now=call.now,
        )  # fmt: skip
        return {"items": [_one(request_id, found) for request_id, found in done.items()]}


class RevokeView(ApiView):
    @endpoint(
        summary="Take back an approval", scope="approvals:decide", body=wire.ReasonIn, status=204,
        problems=(MayNotDecide, NothingToRevoke, CredentialRefused),
    )  # fmt: skip
    def post(self, call: Context, request_id: UUID) -> None:
        """Before it was used. The agent may ask anew."""
        decisions.revoke(
            tenant=call.tenant,
            principal=call.principal,
            request_id=request_id,
            reason=call.body.reason,
            actor=call.actor,
            now=call.now,
        )


def _asked(found: asking.Asked) -> dict[str, Any]:
    return {"request": found.request_id, "status": found.status, "digest": found.digest}


def _decision(done: Decision) -> dict[str, Any]:
    return {
        "request": done.request_id, "outcome": done.outcome, "recorded": done.recorded, "progress": done.progress,
        "grant": done.grant_id, "stale_reason": done.stale_reason,
    }  # fmt: skip


def _one(request_id: UUID, found: Decision | DomainError) -> dict[str, Any]:
    if isinstance(found, DomainError):
        return {"request": request_id, "decision": None, "code": found.code, "detail": found.detail}
    return {"request": request_id, "decision": _decision(found), "code": None, "detail": None}
