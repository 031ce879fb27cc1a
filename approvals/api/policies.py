"""Policies, who decides by them, and delegations over REST. Keys that are bound to an agent have no part in it."""

from typing import Any
from uuid import UUID

from approvals.api import wire
from approvals.operations import delegations, policies
from approvals.operations.refusals import PolicyExists
from approvals.queries import dryrun
from approvals.queries import policies as queries
from kernel.errors import NotFound
from kernel.rest.views import ApiView, Context, Created, endpoint
from privacy.guard import CredentialRefused


class PoliciesView(ApiView):
    @endpoint(summary="List approval policies", scope="approvals:read", answer=wire.PoliciesOut)
    def get(self, call: Context) -> Any:
        """By priority, the highest first."""
        return {"items": [wire.policy_out(row) for row in queries.list_policies(tenant=call.tenant)]}

    @endpoint(
        summary="Create an approval policy", scope="policies:write", body=wire.PolicyIn, answer=wire.PolicyOut, status=201,
        problems=(PolicyExists,),
    )  # fmt: skip
    def post(self, call: Context) -> Any:
        """In force at once."""
        row = policies.create_policy(
            tenant=call.tenant, name=call.body.name, priority=call.body.priority, definition=call.body.rules, actor=call.actor,
            now=call.now,
        )  # fmt: skip
        return Created(wire.policy_out(row), f"/api/v1/approvals/policies/{row.id}")


class PolicyView(ApiView):
    @endpoint(summary="Read an approval policy", scope="approvals:read", answer=wire.PolicyOut, conditional=True)
    def get(self, call: Context, policy_id: UUID) -> Any:
        return wire.policy_out(queries.get_policy(tenant=call.tenant, policy_id=policy_id))

    @endpoint(
        summary="Change an approval policy", scope="policies:write", body=wire.PolicyChangeIn, answer=wire.PolicyOut,
        conditional=True,
    )  # fmt: skip
    def patch(self, call: Context, policy_id: UUID) -> Any:
        """Other rules are a new version. What the policy asks for at the moment becomes stale, and is asked again by the
        new one."""
        call.require_match(lambda: wire.policy_out(queries.get_policy(tenant=call.tenant, policy_id=policy_id)))
        row = policies.change_policy(
            tenant=call.tenant, policy_id=policy_id, definition=call.body.rules, priority=call.body.priority,
            enabled=call.body.enabled, actor=call.actor, now=call.now,
        )  # fmt: skip
        return wire.policy_out(row)


class PolicyVersionsView(ApiView):
    @endpoint(summary="List a policy's versions", scope="approvals:read", answer=wire.PolicyVersionsOut)
    def get(self, call: Context, policy_id: UUID) -> Any:
        """Newest first."""
        return {"items": queries.versions(tenant=call.tenant, policy_id=policy_id)}


class ApproverView(ApiView):
    @endpoint(summary="Name an approver of a policy", scope="policies:write", answer=wire.PolicyOut)
    def put(self, call: Context, policy_id: UUID, member_id: UUID) -> Any:
        """The member may decide where a group of the policy says `approvers`."""
        return _set(call, policy_id, member_id, allowed=True)

    @endpoint(summary="Take an approver from a policy", scope="policies:write", answer=wire.PolicyOut)
    def delete(self, call: Context, policy_id: UUID, member_id: UUID) -> Any:
        """What was approved and not used yet becomes stale when its approvers are too few then."""
        return _set(call, policy_id, member_id, allowed=False)


class DryRunView(ApiView):
    @endpoint(summary="Try a policy on past actions", scope="approvals:read", body=wire.DryRunIn, answer=wire.DryRunOut)
    def post(self, call: Context) -> Any:
        """What the rules would have done with the last actions, beside what the policies in force say. Changes nothing."""
        body: wire.DryRunIn = call.body
        return dryrun.dry_run(
            tenant=call.tenant, definition=body.rules, last=body.last, policy_id=body.policy_id, name=body.name,
            priority=body.priority,
        )  # fmt: skip


class DelegationsView(ApiView):
    @endpoint(
        summary="List delegations", scope="approvals:read", query=wire.DelegationsQuery, answer=wire.DelegationsOut
    )
    def get(self, call: Context) -> Any:
        """And absences; newest first, at most 1,000."""
        rows = queries.list_delegations(tenant=call.tenant, now=call.now, member=call.query.member_id)
        return {"items": [wire.delegation_out(row) for row in rows]}

    @endpoint(
        summary="Delegate", scope="policies:write", body=wire.DelegationIn, answer=wire.DelegationOut, status=201,
        problems=(NotFound, CredentialRefused),
    )  # fmt: skip
    def post(self, call: Context) -> Any:
        """For a member, by whoever administers policies. Members delegate on their own page."""
        body: wire.DelegationIn = call.body
        row = delegations.delegate(
            tenant=call.tenant, from_member=body.from_, to_member=body.to, starts_at=body.starts_at, ends_at=body.ends_at,
            away=body.away, reason=body.reason, policy_id=body.policy_id, actor=call.actor, now=call.now,
        )  # fmt: skip
        return Created(wire.delegation_out(row), f"/api/v1/approvals/delegations/{row.id}")


class DelegationView(ApiView):
    @endpoint(summary="Read a delegation", scope="approvals:read", answer=wire.DelegationOut, conditional=True)
    def get(self, call: Context, delegation_id: UUID) -> Any:
        return wire.delegation_out(
            queries.get_delegation(tenant=call.tenant, delegation_id=delegation_id, now=call.now)
        )

    @endpoint(summary="End a delegation", scope="policies:write", status=204, conditional=True)
    def delete(self, call: Context, delegation_id: UUID) -> None:
        """Now. What was decided under it stays."""
        call.require_match(
            lambda: wire.delegation_out(
                queries.get_delegation(tenant=call.tenant, delegation_id=delegation_id, now=call.now)
            )
        )
        delegations.revoke(tenant=call.tenant, delegation_id=delegation_id, actor=call.actor, now=call.now)


def _set(call: Context, policy_id: UUID, member_id: UUID, *, allowed: bool) -> dict[str, Any]:
    row = policies.set_approver(
        tenant=call.tenant, policy_id=policy_id, member_id=member_id, allowed=allowed, actor=call.actor, now=call.now
    )
    return wire.policy_out(row)
