"""Changes to tenants, people and keys. Each writes its audit entry in the same transaction; the caller holds the tenant scope."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from audit import operations as audit_ops
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, Invalid, NotFound
from tenancy import auth
from tenancy.models import Agent, ApiKey, Member, Project, Role, Tenant, User
from tenancy.queries import ROLE_ACTIONS, SCOPES

_SLUG: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
MAX_NAME: Final = 120
MAX_OVERLAP: Final = timedelta(days=30)
# What reaches beyond any one agent or project, and is therefore not for a key that is bound to one.
# Agents neither decide nor edit policies.
TENANT_WIDE: Final = frozenset(
    {
        "members:write",
        "keys:write",
        "projects:write",
        "tools:write",
        "approvals:decide",
        "policies:write",
        "webhooks:read",
        "webhooks:write",
    }  # fmt: skip
)


class SlugTaken(DomainError):
    code = "slug_taken"
    status = 409
    title = "This short name is taken"


class AlreadyMember(DomainError):
    code = "already_member"
    status = 409
    title = "Already a member"


class LastOwner(DomainError):
    """A tenant always keeps an owner."""

    code = "last_owner"
    status = 409
    title = "A tenant needs an owner"


class KeyNotActive(DomainError):
    code = "key_not_active"
    status = 409
    title = "This API key is no longer active"


class ScopeTooWide(DomainError):
    """A key can be given only what its issuer may do."""

    code = "scope_too_wide"
    status = 403
    title = "Wider than your own permissions"


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key and its credential, which is nowhere else and cannot be shown again."""

    key: ApiKey
    secret: str


def create_user(*, email: str, password: str, name: str, now: datetime) -> User:
    """A person who can sign in, in no tenant yet. Raises Invalid for a bad e-mail, a weak password or a taken e-mail."""
    email = email.strip()
    try:
        validate_email(email)
    except ValidationError as error:
        raise _invalid("email", "This is not an e-mail address.") from error
    user = User(email=email, name=_name(name), created_at=now)
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise _invalid("password", " ".join(error.messages)) from error
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError as error:
        raise _invalid("email", "Someone signs in with this e-mail already.") from error
    return user


def create_tenant(*, tenant: UUID, slug: str, name: str, actor: Actor, now: datetime) -> Tenant:
    """The tenant of the open scope; its id was made by the caller, who opened the scope with it."""
    row = Tenant(id=tenant, slug=_slug(slug), name=_name(name), created_at=now)
    with _unique(SlugTaken, f"There is a tenant {slug!r} already."):
        row.save(force_insert=True)
    _record(tenant, actor, "tenant.created", "tenant", tenant, {"slug": slug, "name": row.name}, now)
    return row


def create_project(*, tenant: UUID, slug: str, name: str, actor: Actor, now: datetime) -> Project:
    row = Project(slug=_slug(slug), name=_name(name), created_at=now)
    with _unique(SlugTaken, f"There is a project {slug!r} already."):
        row.save(force_insert=True)
    _record(tenant, actor, "project.created", "project", row.id, {"slug": slug, "name": row.name}, now)
    return row


def register_agent(
    *, tenant: UUID, slug: str, name: str, actor: Actor, now: datetime, owner_id: UUID | None = None
) -> Agent:
    """A program. `owner_id`: the member it acts for, who does not approve what it asks for."""
    if owner_id is not None and not Member.objects.filter(id=owner_id).exists():
        raise _invalid("owner_id", "There is no such member.")
    row = Agent(slug=_slug(slug), name=_name(name), owner_id=owner_id, created_at=now)
    with _unique(SlugTaken, f"There is an agent {slug!r} already."):
        row.save(force_insert=True)
    _record(tenant, actor, "agent.registered", "agent", row.id, {"slug": slug, "name": row.name}, now)
    return row


def add_member(
    *, tenant: UUID, user: User, roles: Collection[str], actor: Actor, now: datetime, name: str | None = None
) -> Member:
    row = Member(user_id=user.id, email=user.email, name=_name(name or user.name), roles=_roles(roles), created_at=now)
    with _unique(AlreadyMember, f"{user.email} is a member already."):
        row.save(force_insert=True)
    _record(tenant, actor, "member.added", "member", row.id, {"name": row.name, "roles": row.roles}, now)
    return row


def change_roles(
    *,
    tenant: UUID,
    member_id: UUID,
    roles: Collection[str],
    actor: Actor,
    now: datetime,
    within: Collection[str] | None = None,
) -> Member:
    """Replace a member's roles. Raises LastOwner when no owner would be left, and ScopeTooWide as for keys."""
    wanted = _roles(roles)
    row = _locked_member(member_id)
    _grantable(frozenset().union(*(ROLE_ACTIONS[role] for role in wanted)), within)
    if row.roles != wanted:
        before, row.roles = row.roles, wanted
        if Role.OWNER not in wanted:
            _keep_an_owner(except_member=row)
        row.save(update_fields=["roles"])
        _record(tenant, actor, "member.roles_changed", "member", row.id, {"before": before, "after": wanted}, now)
    return row


def remove_member(*, tenant: UUID, member_id: UUID, actor: Actor, now: datetime) -> None:
    """End a membership; the person's sign-in stays. Raises LastOwner."""
    row = _locked_member(member_id)
    _keep_an_owner(except_member=row)
    Member.objects.filter(id=row.id).delete()
    _record(tenant, actor, "member.removed", "member", row.id, {"name": row.name, "roles": row.roles}, now)


def issue_key(
    *,
    tenant: UUID,
    name: str,
    scopes: Collection[str],
    actor: Actor,
    now: datetime,
    agent_id: UUID | None = None,
    project_ids: Sequence[UUID] | None = None,
    expires_at: datetime | None = None,
    within: Collection[str] | None = None,
) -> IssuedKey:
    """A new API key. `within`: what the issuer may do; a wider scope raises ScopeTooWide."""
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise _invalid("scopes", f"Unknown scope {unknown[0]!r}." if unknown else "Name at least one scope.")
    _grantable(scopes, within)
    wide = sorted(TENANT_WIDE & set(scopes))
    if wide and (agent_id is not None or project_ids is not None):
        raise _invalid("scopes", f"A key that is bound to an agent or to projects cannot hold {wide[0]!r}.")
    if expires_at is not None and expires_at <= now:
        raise _invalid("expires_at", "The expiry must lie in the future.")
    if agent_id is not None and not Agent.objects.filter(id=agent_id).exists():
        raise _invalid("agent_id", "There is no such agent.")
    if project_ids is not None:
        known = set(Project.objects.filter(id__in=project_ids).values_list("id", flat=True))
        if not project_ids or set(project_ids) != known:
            raise _invalid("project_ids", "There is no such project.")
    prefix, secret, digest = auth.new_credential()
    row = ApiKey(
        prefix=prefix,
        digest=digest,
        name=_name(name),
        scopes=sorted(set(scopes)),
        agent_id=agent_id,
        project_ids=None if project_ids is None else sorted(set(project_ids)),
        created_at=now,
        created_by=actor.label,
        issued_by=_behind(actor),
        expires_at=expires_at,
    )
    row.save(force_insert=True)
    content = {
        "name": row.name,
        "prefix": prefix,
        "scopes": row.scopes,
        "expires_at": expires_at and expires_at.isoformat(),
    }
    _record(tenant, actor, "key.issued", "key", row.id, content, now)
    return IssuedKey(key=row, secret=secret)


def rotate_key(
    *,
    tenant: UUID,
    key_id: UUID,
    overlap: timedelta,
    actor: Actor,
    now: datetime,
    within: Collection[str] | None = None,
) -> IssuedKey:
    """A successor with the same powers; the old key goes on for `overlap` (at most 30 days).

    Raises KeyNotActive, and ScopeTooWide when the key may do more than `within`: its caller would gain its powers.
    """
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise _invalid("overlap", f"The overlap may be 0 to {MAX_OVERLAP.days} days.")
    old = _active_key(key_id, now)
    _grantable(old.scopes, within)
    prefix, secret, digest = auth.new_credential()
    new = ApiKey(
        prefix=prefix,
        digest=digest,
        name=old.name,
        scopes=old.scopes,
        agent_id=old.agent_id,
        project_ids=old.project_ids,
        created_at=now,
        created_by=actor.label,
        issued_by=old.issued_by or _behind(actor),
        expires_at=old.expires_at,
    )
    new.save(force_insert=True)
    old.expires_at = min(now + overlap, old.expires_at or now + overlap)
    old.replaced_by, old.version = new.id, old.version + 1
    old.save(update_fields=["expires_at", "replaced_by", "version"])
    content = {"name": old.name, "prefix": prefix, "replaces": old.prefix, "old_expires_at": old.expires_at.isoformat()}
    _record(tenant, actor, "key.rotated", "key", old.id, content, now)
    return IssuedKey(key=new, secret=secret)


def revoke_key(*, tenant: UUID, key_id: UUID, actor: Actor, now: datetime) -> ApiKey:
    """End a key at once, everywhere. Revoking a revoked key changes nothing."""
    row: ApiKey | None = ApiKey.objects.select_for_update().filter(id=key_id).first()
    if row is None:
        raise NotFound("There is no such API key.")
    if row.revoked_at is None:
        row.revoked_at, row.version = now, row.version + 1
        row.save(update_fields=["revoked_at", "version"])
        _record(tenant, actor, "key.revoked", "key", row.id, {"name": row.name, "prefix": row.prefix}, now)
    return row


def _behind(actor: Actor) -> UUID | None:
    """The member behind an actor."""
    if actor.kind == "member":
        return actor.id
    found: UUID | None = ApiKey.objects.filter(id=actor.id).values_list("issued_by", flat=True).first()
    return found


def _grantable(actions: Collection[str], within: Collection[str] | None) -> None:
    if within is not None and not set(actions) <= set(within):
        raise ScopeTooWide(f"You may not give {sorted(set(actions) - set(within))[0]!r}.")


def _active_key(key_id: UUID, now: datetime) -> ApiKey:
    row: ApiKey | None = ApiKey.objects.select_for_update().filter(id=key_id).first()
    if row is None:
        raise NotFound("There is no such API key.")
    if (
        row.revoked_at is not None
        or (row.expires_at is not None and row.expires_at <= now)
        or row.replaced_by is not None
    ):
        raise KeyNotActive("It was revoked, replaced, or has expired.")
    return row


def _locked_member(member_id: UUID) -> Member:
    # All owners are locked with the member, in one order, so that two removals cannot each leave the other as the last owner.
    rows = Member.objects.select_for_update().order_by("id")
    locked: dict[UUID, Member] = {
        row.id: row for row in rows.filter(roles__contains=[Role.OWNER]) | rows.filter(id=member_id)
    }
    if member_id not in locked:
        raise NotFound("There is no such member.")
    return locked[member_id]


def _keep_an_owner(*, except_member: Member) -> None:
    if not Member.objects.filter(roles__contains=[Role.OWNER]).exclude(id=except_member.id).exists():
        raise LastOwner("Make someone else an owner first.")


def _roles(roles: Collection[str]) -> list[str]:
    unknown = sorted(set(roles) - set(Role.values))
    if unknown or not roles:
        raise _invalid("roles", f"Unknown role {unknown[0]!r}." if unknown else "Name at least one role.")
    return [role for role in Role.values if role in roles]


def _name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME:
        raise _invalid("name", f"The name must have 1 to {MAX_NAME} characters.", limit=MAX_NAME)
    return name


def _slug(slug: str) -> str:
    if not _SLUG.fullmatch(slug):
        raise _invalid("slug", "Use 1 to 40 lower-case letters, digits and inner hyphens.", limit=40)
    return slug


def _invalid(field: str, message: str, limit: int | None = None) -> Invalid:
    return Invalid(message, fields=(FieldError(path=f"/{field}", code="invalid", message=message, limit=limit),))


@contextmanager
def _unique(error: type[DomainError], detail: str) -> Iterator[None]:
    """A savepoint that turns a unique violation into a domain error."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as violation:
        raise error(detail) from violation


def _record(
    tenant: UUID, actor: Actor, action: str, kind: str, target: UUID, content: Mapping[str, object], now: datetime
) -> None:
    audit_ops.record(
        tenant=tenant, actor=actor, action=action, target_kind=kind, target_id=target, content=content, now=now
    )
