"""Writing to a tenant's log, and who else may come to it."""

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from audit import operations, queries
from config.embedded.provision import url_for
from kernel import clock, ids
from kernel.actor import Actor
from kernel.context import tenant_scope
from tests.servers import PASSWORD

Attack = Callable[..., int]
ASHA = Actor(kind="member", id=UUID("018f0000-0000-7000-8000-000000000001"), label="Asha आशा")


def record(tenant: UUID, count: int = 1, **changes: Any) -> list[UUID]:
    """`count` entries, each in a transaction of its own; their ids."""
    found = []
    for number in range(count):
        with tenant_scope(tenant):
            found.append(record_here(tenant, number=number, **changes))
    return found


def record_here(
    tenant: UUID,
    *,
    number: int = 0,
    actor: Actor = ASHA,
    action: str = "member.roles_changed",
    target_kind: str = "member",
    target_id: UUID | str | None = None,
    now: datetime | None = None,
) -> UUID:
    """One entry in the open scope."""
    return operations.record(
        tenant=tenant,
        actor=actor,
        action=action,
        target_kind=target_kind,
        target_id=target_id or ids.uuid7(),
        content={"number": number, "after": ["admin"], "comment": "नमस्ते"},
        now=now or clock.now(),
    )


def verify(tenant: UUID) -> queries.AuditVerification:
    with tenant_scope(tenant):
        return queries.verify(tenant=tenant)


def page(
    tenant: UUID, filters: queries.AuditFilter | None = None, cursor: str | None = None, limit: int = 50
) -> queries.AuditPage:
    with tenant_scope(tenant):
        return queries.page(tenant=tenant, filters=filters or queries.AuditFilter(), cursor=cursor, limit=limit)


def superuser() -> psycopg.Connection[Any]:
    return psycopg.connect(os.environ["SMRITI_TEST_ADMIN_URL"], dbname=_database(), autocommit=True)


def connect(role: str, tenant: UUID | None = None) -> psycopg.Connection[Any]:
    """A connection of a database role, inside the tenant if one is given; what it does is rolled back on close."""
    connection = psycopg.connect(url_for(os.environ["SMRITI_TEST_ADMIN_URL"], _database(), role, PASSWORD))
    if tenant is not None:
        connection.execute("select smriti_enter(%s)", [tenant])
    return connection


def _database() -> str:
    return os.environ["DATABASE_URL"].rpartition("/")[2]
