"""Who there is and who may do what. One function, `can`, answers for API and pages alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import connection

from kernel import pool
from kernel.actor import Actor
from kernel.errors import Forbidden, NotFound
from tenancy.models import Agent, ApiKey, Member, Project, Role, Tenant

SCOPES: Final = (
    "runs:read",
    "runs:write",
    "runs:operate",
    "work:claim",
    "effects:write",
    "members:read",
    "members:write",
    "keys:read",
    "keys:write",
    "projects:read",
    "projects:write",
    "audit:read",
    "tools:read",
    "tools:write",
    "schedules:read",
    "schedules:write",
    "metrics:read",
    "artifacts:read",
    "artifacts:write",
    "approvals:read",
    "approvals:decide",
    "policies:write",
    "webhooks:read",
    "webhooks:write",
)

_READ: Final = frozenset(
    {
        "runs:read",
        "projects:read",
        "members:read",
        "tools:read",
        "schedules:read",
        "metrics:read",
        "artifacts:read",
        "approvals:read",
    }
)
ROLE_ACTIONS: Final[dict[str, frozenset[str]]] = {
    Role.OWNER: frozenset(SCOPES),
    Role.ADMIN: frozenset(SCOPES),
    Role.OPERATOR: _READ | {"runs:operate", "schedules:write", "artifacts:write"},
    Role.APPROVER: _READ | {"approvals:decide"},
    Role.COMPLIANCE: _READ | {"audit:read"},
    Role.AUDITOR: _READ | {"audit:read", "keys:read", "webhooks:read"},
    Role.VIEWER: _READ,
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: a key with its scopes, or a member with the actions of its roles."""

    kind: str
    id: UUID
    tenant_id: UUID
    tenant_slug: str
    name: str
    actions: frozenset[str]
    roles: frozenset[str] = frozenset()
    user_id: UUID | None = None
    agent_id: UUID | None = None
    project_ids: frozenset[UUID] | None = None
    version: int = 0

    @property
    def actor(self) -> Actor:
        return Actor(kind="key" if self.kind == "key" else "member", id=self.id, label=self.name)


@dataclass(frozen=True, slots=True)
class Membership:
    """A tenant that a user may enter."""

    tenant_id: UUID
    slug: str
    name: str
    member_id: UUID
    member_name: str
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What must be known of a key before a tenant is: enough to check the secret and to build the principal."""

    tenant_id: UUID
    tenant_slug: str
    id: UUID
    digest: bytes
    name: str
    scopes: frozenset[str]
    agent_id: UUID | None
    project_ids: frozenset[UUID] | None
    version: int
    expires_at: datetime | None
    revoked_at: datetime | None


def can(principal: Principal, action: str) -> bool:
    """May this principal do this? `action` is one of SCOPES."""
    return action in principal.actions


def require(principal: Principal, action: str) -> None:
    """Raise Forbidden, naming the missing scope, unless `principal` may do `action`."""
    if action not in principal.actions:
        needed = "scope" if principal.kind == "key" else "a role that grants"
        raise Forbidden(f"This needs {needed} {action!r}.", extra={"required": action})


def member_principal(membership: Membership, *, user_id: UUID) -> Principal:
    return Principal(
        kind="member",
        id=membership.member_id,
        tenant_id=membership.tenant_id,
        tenant_slug=membership.slug,
        name=membership.member_name,
        actions=frozenset().union(*(ROLE_ACTIONS[role] for role in membership.roles)),
        roles=membership.roles,
        user_id=user_id,
    )


def key_by_prefix(prefix: str) -> KeyRecord | None:
    """The key with this prefix, in whichever tenant. Through a definer function: no tenant is known yet."""
    found = pool.rows("select * from key_by_prefix(%b)", (prefix,))
    if not found:
        return None
    tenant_id, slug, key_id, digest, name, scopes, agent_id, projects, version, expires_at, revoked_at = found[0]
    return KeyRecord(
        tenant_id=tenant_id,
        tenant_slug=slug,
        id=key_id,
        digest=bytes(digest),
        name=name,
        scopes=frozenset(scopes),
        agent_id=agent_id,
        project_ids=None if projects is None else frozenset(projects),
        version=version,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def memberships_of(user_id: UUID) -> list[Membership]:
    """The tenants of a user, by name. Through a definer function: no tenant is known yet."""
    with connection.cursor() as cursor:
        cursor.execute("select * from memberships_of(%s)", [user_id])
        return [
            Membership(tenant_id=t, slug=slug, name=name, member_id=m, member_name=member_name, roles=frozenset(roles))
            for t, slug, name, m, member_name, roles in cursor.fetchall()
        ]


def get_tenant(*, tenant: UUID) -> Tenant:
    return Tenant.objects.get(id=tenant)


def list_members(*, tenant: UUID) -> Sequence[Member]:
    """All members, by name."""
    return list(Member.objects.order_by("name", "id"))


def get_member(*, tenant: UUID, member_id: UUID) -> Member:
    member: Member | None = Member.objects.filter(id=member_id).first()
    if member is None:
        raise NotFound("There is no such member.")
    return member


def list_projects(*, tenant: UUID) -> Sequence[Project]:
    return list(Project.objects.order_by("name", "id"))


def list_agents(*, tenant: UUID) -> Sequence[Agent]:
    return list(Agent.objects.order_by("name", "id"))


def list_keys(*, tenant: UUID) -> Sequence[ApiKey]:
    """All keys with their agents, newest first; revoked and expired ones too."""
    return list(ApiKey.objects.select_related("agent").order_by("-created_at", "-id"))


def get_key(*, tenant: UUID, key_id: UUID) -> ApiKey:
    key: ApiKey | None = ApiKey.objects.filter(id=key_id).first()
    if key is None:
        raise NotFound("There is no such API key.")
    return key
