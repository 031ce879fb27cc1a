"""Changes to policies and to who decides by them. Every change is a new version; what was asked by an older one is asked anew."""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from django.db import IntegrityError, transaction
from guardian.shortcuts import assign_perm, remove_perm

from approvals import rules
from approvals.models import Policy, PolicyPermission, PolicyVersion, Request
from approvals.operations import asking
from approvals.operations.refusals import PolicyExists
from approvals.queries import policies as queries
from approvals.queries.policies import PolicyRow
from approvals.rules import MAX_RULES, Rules
from audit import operations as audit_ops
from kernel import ids
from kernel.actor import Actor
from kernel.errors import FieldError, Invalid, NotFound
from tenancy.models import Agent, ApiKey, Member, User

DECIDE = "approvals.decide"


def create_policy(
    *, tenant: UUID, name: str, priority: int, definition: Rules, actor: Actor, now: datetime
) -> PolicyRow:
    """A policy with its first version, in force at once. Raises Invalid, PolicyExists. The caller holds the tenant scope."""
    _check(definition)
    if name in rules.RESERVED:
        raise _invalid("/name", "A tool's approval says this of itself: choose another name.")
    row = Policy(
        id=ids.uuid7(), name=name, priority=priority, enabled=True, active_version=1, created_at=now, updated_at=now
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise PolicyExists(f"There is a policy {name!r} already.") from error
    _version(row, definition, actor, now)
    _record(tenant, actor, "policy.created", row, {"priority": priority, "rules": rules.dump(definition)}, now)
    return queries.get_policy(tenant=tenant, policy_id=row.id)


def change_policy(
    *, tenant: UUID, policy_id: UUID, actor: Actor, now: datetime, definition: Rules | None = None,
    priority: int | None = None, enabled: bool | None = None,
) -> PolicyRow:  # fmt: skip
    """Another version, another priority, on or off. Open requests that it asked become stale. Raises NotFound, Invalid."""
    row = _locked(policy_id)
    content: dict[str, object] = {}
    if definition is not None and definition != queries.get_policy(tenant=tenant, policy_id=policy_id).rules:
        _check(definition)
        row.active_version += 1
        _version(row, definition, actor, now)
        content |= {"version": row.active_version, "rules": rules.dump(definition)}
    if priority is not None and priority != row.priority:
        content |= {"priority": priority, "priority_before": row.priority}
        row.priority = priority
    if enabled is not None and enabled != row.enabled:
        content |= {"enabled": enabled}
        row.enabled = enabled
    if content:
        row.updated_at = now
        row.save(update_fields=["active_version", "priority", "enabled", "updated_at"])
        _record(tenant, actor, "policy.changed", row, content, now)
        if "version" in content or "enabled" in content:
            _make_stale(tenant, policy_id, now)
    return queries.get_policy(tenant=tenant, policy_id=policy_id)


def set_approver(
    *, tenant: UUID, policy_id: UUID, member_id: UUID, allowed: bool, actor: Actor, now: datetime
) -> PolicyRow:
    """Give or take the object permission to decide by this policy. Raises NotFound."""
    row = _locked(policy_id)
    member = Member.objects.filter(id=member_id).first()
    if member is None:
        raise NotFound("There is no such member.")
    user = User.objects.get(id=member.user_id)
    has = PolicyPermission.objects.filter(content_object_id=policy_id, user_id=member.user_id).exists()
    if has != allowed:
        (assign_perm if allowed else remove_perm)(DECIDE, user, row)
        action = "policy.approver_added" if allowed else "policy.approver_removed"
        _record(tenant, actor, action, row, {"member": str(member_id), "name": member.name}, now)
    return queries.get_policy(tenant=tenant, policy_id=policy_id)


def _check(definition: Rules) -> None:
    rules.check(definition)
    if len(rules.dump(definition)) > MAX_RULES:
        raise Invalid(f"A policy has at most {MAX_RULES} bytes.")
    keys = {key for group in definition.groups for key in group.keys}
    services = set(ApiKey.objects.filter(id__in=keys, agent_id=None).values_list("id", flat=True))
    if keys - services:
        raise _invalid("/rules/groups", "A key that decides is a service's: known, and bound to no agent.")
    _known("/rules/match/agents", definition.match.agents, set(Agent.objects.values_list("slug", flat=True)))


def _known(path: str, named: Collection[str], known: set[str]) -> None:
    if unknown := sorted(set(named) - known):
        raise _invalid(path, f"There is no {unknown[0]!r}.")


def _invalid(path: str, message: str) -> Invalid:
    return Invalid(f"{path}: {message}", fields=(FieldError(path=path, code="invalid_policy", message=message),))


def _locked(policy_id: UUID) -> Policy:
    row: Policy | None = Policy.objects.select_for_update(no_key=True).filter(id=policy_id).first()
    if row is None:
        raise NotFound("There is no such policy.")
    return row


def _version(row: Policy, definition: Rules, actor: Actor, now: datetime) -> None:
    PolicyVersion(
        id=ids.uuid7(), policy_id=row.id, version=row.active_version, rules=rules.dump(definition), created_at=now,
        created_by=actor.label,
    ).save(force_insert=True)  # fmt: skip


def _make_stale(tenant: UUID, policy_id: UUID, now: datetime) -> None:
    """In the order of runs, as everybody locks requests."""
    waiting = Request.objects.filter(policy_id=policy_id, status="open").order_by("run_id", "id")
    for request in waiting.select_for_update(no_key=True).defer("action", "summary"):
        asking.make_stale(tenant=tenant, request=request, reason="policy_changed", now=now)


def _record(tenant: UUID, actor: Actor, action: str, row: Policy, content: dict[str, object], now: datetime) -> None:
    audit_ops.record(
        tenant=tenant, actor=actor, action=action, target_kind="policy", target_id=row.id,
        content={"name": row.name, **content}, now=now,
    )  # fmt: skip
