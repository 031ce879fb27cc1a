"""What the routes of tenancy take and answer."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from kernel.moments import Moment
from tenancy.models import Agent, ApiKey, Member, Project, Role
from tenancy.operations import MAX_NAME, MAX_OVERLAP
from tenancy.queries import SCOPES

# Blanks around a name would be cut off; what is not kept as it was sent is refused.
Name = Annotated[str, Meta(pattern=r"^\S([\s\S]*\S)?\Z", min_length=1, max_length=MAX_NAME)]
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z", min_length=1, max_length=40)]
Scope = Literal[SCOPES]  # type: ignore[valid-type]


class NamedIn(Struct, forbid_unknown_fields=True):
    slug: Slug
    name: Name


class AgentIn(NamedIn, forbid_unknown_fields=True):
    """`owner_id`: the member whom the agent acts for, and who does not approve what it asks for."""

    owner_id: UUID | None = None


class NamedOut(Struct):
    id: UUID
    slug: str
    name: str
    created_at: datetime


class NamedPage(Struct):
    items: list[NamedOut]
    next_cursor: UUID | None


class MemberOut(Struct):
    id: UUID
    name: str
    email: str
    roles: list[str]
    created_at: datetime


class MemberPage(Struct):
    items: list[MemberOut]
    next_cursor: UUID | None


class RolesIn(Struct, forbid_unknown_fields=True):
    roles: Annotated[list[Role], Meta(min_length=1, max_length=len(Role.values))]


class KeyIn(Struct, forbid_unknown_fields=True):
    """`agent_id` and `project_ids` bind the key; without them it is for all of the tenant."""

    name: Name
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=len(SCOPES))]
    agent_id: UUID | None = None
    project_ids: Annotated[list[UUID], Meta(min_length=1, max_length=100)] | None = None
    expires_at: Moment | None = None


class RotateIn(Struct, forbid_unknown_fields=True):
    """For how long the old key goes on."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=int(MAX_OVERLAP.total_seconds()))] = 0


class KeyOut(Struct):
    id: UUID
    prefix: str
    name: str
    scopes: list[str]
    agent_id: UUID | None
    project_ids: list[UUID] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: UUID | None


class KeyPage(Struct):
    items: list[KeyOut]
    next_cursor: UUID | None


class IssuedOut(Struct):
    """`secret` is the whole credential. It is shown once; a repeated request gets null."""

    key: KeyOut
    secret: str | None


def named(row: Project | Agent) -> NamedOut:
    return NamedOut(id=row.id, slug=row.slug, name=row.name, created_at=row.created_at)


def member(row: Member) -> MemberOut:
    return MemberOut(id=row.id, name=row.name, email=row.email, roles=row.roles, created_at=row.created_at)


def key(row: ApiKey) -> KeyOut:
    return KeyOut(
        id=row.id,
        prefix=row.prefix,
        name=row.name,
        scopes=row.scopes,
        agent_id=row.agent_id,
        project_ids=row.project_ids,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        replaced_by=row.replaced_by,
    )
