"""Policies with their versions and approvers, delegations, and which policies are in force."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, OuterRef, Subquery

from approvals import rules
from approvals.models import Delegation, Policy, PolicyPermission, PolicyVersion
from approvals.rules import Candidate, Rules
from kernel import ports
from kernel.errors import NotFound
from tenancy.models import Member


@dataclass(frozen=True, slots=True)
class Approver:
    """A member with the object permission to decide on a policy's requests."""

    member_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy with its version in force."""

    id: UUID
    name: str
    priority: int
    enabled: bool
    version: int
    rules: Rules
    approvers: tuple[Approver, ...]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class VersionRow:
    version: int
    rules: Rules
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class DelegationRow:
    """`state`: planned, active, over or revoked, by the time that was given. `to` is None for an absence without a stand-in."""

    id: UUID
    from_id: UUID
    from_: str
    to_id: UUID | None
    to: str | None
    policy_id: UUID | None
    policy: str | None
    away: bool
    starts_at: datetime
    ends_at: datetime
    reason: str | None
    created_at: datetime
    created_by: str
    revoked_at: datetime | None
    state: str


def active(*, tenant: UUID) -> list[Candidate]:
    """The policies in force. One query; the caller holds the tenant scope."""
    current = PolicyVersion.objects.filter(policy_id=OuterRef("id"), version=OuterRef("active_version"))
    rows = (
        Policy.objects.filter(enabled=True)
        .annotate(version_id=Subquery(current.values("id")[:1]), text=Subquery(current.values("rules")[:1]))
        .values_list("id", "version_id", "name", "active_version", "priority", "text")
    )
    return [
        Candidate(policy_id, version_id, name, number, priority, rules.parse(text))
        for policy_id, version_id, name, number, priority, text in rows
    ]


def list_policies(*, tenant: UUID) -> list[PolicyRow]:
    """All policies, by priority."""
    return _rows(Policy.objects.order_by("-priority", "name"))


def get_policy(*, tenant: UUID, policy_id: UUID) -> PolicyRow:
    """Raises NotFound."""
    found = _rows(Policy.objects.filter(id=policy_id))
    if not found:
        raise NotFound("There is no such policy.")
    return found[0]


def versions(*, tenant: UUID, policy_id: UUID) -> list[VersionRow]:
    """The versions of a policy, newest first. Raises NotFound."""
    rows = PolicyVersion.objects.filter(policy_id=policy_id).order_by("-version")
    found = [VersionRow(row.version, rules.parse(row.rules), row.created_at, row.created_by) for row in rows]
    if not found:
        raise NotFound("There is no such policy.")
    return found


def list_delegations(*, tenant: UUID, now: datetime, member: UUID | None = None) -> list[DelegationRow]:
    """Delegations and absences, newest first: all, or those from or to a member."""
    rows = Delegation.objects.order_by("-id")
    if member is not None:
        rows = rows.filter(from_member_id=member) | rows.filter(to_member_id=member)
    found = list(rows[:1000])
    people = {row.from_member_id for row in found} | {row.to_member_id for row in found}
    names = dict(Member.objects.filter(id__in=people).values_list("id", "name"))
    policies = dict(Policy.objects.filter(id__in={row.policy_id for row in found}).values_list("id", "name"))
    return [
        DelegationRow(
            id=row.id, from_id=row.from_member_id, from_=names[row.from_member_id], to_id=row.to_member_id,
            to=None if row.to_member_id is None else names[row.to_member_id], policy_id=row.policy_id,
            policy=None if row.policy_id is None else policies[row.policy_id], away=row.away, starts_at=row.starts_at,
            ends_at=row.ends_at,
            reason=None if row.reason is None else ports.codec().open(tenant=tenant, context=row.id.bytes,
            blob=bytes(row.reason)).decode(),
            created_at=row.created_at, created_by=row.created_by, revoked_at=row.revoked_at, state=_state(row, now),
        )
        for row in found
    ]  # fmt: skip


def get_delegation(*, tenant: UUID, delegation_id: UUID, now: datetime) -> DelegationRow:
    """Raises NotFound."""
    found = [row for row in list_delegations(tenant=tenant, now=now) if row.id == delegation_id]
    if not found:
        raise NotFound("There is no such delegation.")
    return found[0]


def _rows(found: Any) -> list[PolicyRow]:
    current = PolicyVersion.objects.filter(policy_id=OuterRef("id"), version=OuterRef("active_version"))
    rows = list(found.annotate(text=Subquery(current.values("rules")[:1])))
    granted = PolicyPermission.objects.filter(
        content_object_id__in=[row.id for row in rows], permission__codename="decide"
    )
    people = {member.user_id: member for member in Member.objects.filter(user_id__in=granted.values("user_id"))}
    approvers: dict[UUID, list[Approver]] = {row.id: [] for row in rows}
    for policy_id, user_id in granted.values_list(F("content_object_id"), "user_id"):
        approvers[policy_id].append(Approver(people[user_id].id, people[user_id].name))
    return [
        PolicyRow(
            row.id, row.name, row.priority, row.enabled, row.active_version, rules.parse(row.text),
            tuple(sorted(approvers[row.id], key=lambda approver: approver.name)), row.created_at, row.updated_at,
        )
        for row in rows
    ]  # fmt: skip


def _state(row: Delegation, now: datetime) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.ends_at <= now:
        return "over"
    return "active" if row.starts_at <= now else "planned"
