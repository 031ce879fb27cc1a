"""The fixed cast: people and keys of one tenant, and the same of another that must never see anything of the first."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from django.db import connections

from kernel import actor, clock, ids
from kernel.context import tenant_scope
from tenancy import operations as tenancy_ops
from tenancy.models import Role, User
from tenancy.queries import SCOPES

PASSWORD = "correct horse battery 7"
KEYS = {
    "agent": (
        "runs:read",
        "runs:write",
        "work:claim",
        "effects:write",
        "tools:read",
        "artifacts:read",
        "artifacts:write",
    ),
    "operator": ("runs:read", "runs:operate", "projects:read", "members:read"),
    "admin": SCOPES,
}


@dataclass(frozen=True)
class House:
    """A tenant with a member of each role and a key of each kind. `keys` holds credentials, `key_ids` their ids."""

    id: UUID
    slug: str
    name: str
    project_id: UUID
    agent_id: UUID
    users: dict[str, User] = field(default_factory=dict)
    members: dict[str, UUID] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    key_ids: dict[str, UUID] = field(default_factory=dict)


@dataclass(frozen=True)
class Cast:
    home: House
    other: House


def make_house(name: str, *, roles: tuple[str, ...] = tuple(Role.values), now: datetime | None = None) -> House:
    """A fresh, committed tenant."""
    now = now or clock.now()
    tenant = ids.uuid7()
    slug = f"{name.lower()}-{tenant.hex[-10:]}"
    who = actor.system("tests")
    with tenant_scope(tenant):
        tenancy_ops.create_tenant(tenant=tenant, slug=slug, name=name, actor=who, now=now)
        project = tenancy_ops.create_project(tenant=tenant, slug="main", name="Main", actor=who, now=now)
        agent = tenancy_ops.register_agent(tenant=tenant, slug="clerk", name="Clerk", actor=who, now=now)
        house = House(id=tenant, slug=slug, name=name, project_id=project.id, agent_id=agent.id)
        for kind, scopes in KEYS.items():
            issued = tenancy_ops.issue_key(
                tenant=tenant,
                name=kind,
                scopes=scopes,
                agent_id=agent.id if kind == "agent" else None,
                actor=who,
                now=now,
            )
            house.keys[kind], house.key_ids[kind] = issued.secret, issued.key.id
        for role in roles:
            email = f"{role}.{tenant.hex[-10:]}@{name.lower()}.example"
            user = tenancy_ops.create_user(email=email, password=PASSWORD, name=f"{role.title()} {name}", now=now)
            member = tenancy_ops.add_member(tenant=tenant, user=user, roles=[role], actor=who, now=now)
            house.users[role], house.members[role] = user, member.id
    return house


def client(key: str | None) -> httpx.Client:
    """A client of the API, in process, through the same entry point as the web server."""
    from config.wsgi import application  # asks the database which role it is: not while tests are collected

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return list(application(environ, start_response))
        finally:
            # A thread of a test ends; one of a server does not, and keeps its connections.
            if threading.current_thread() is not threading.main_thread():
                connections.close_all()

    transport = httpx.WSGITransport(app=served, raise_app_exceptions=True)
    return httpx.Client(transport=transport, base_url="http://testserver/api/v1", headers=headers)
