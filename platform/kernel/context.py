"""The tenant context: one transaction, one tenant, set by a database function and gone with the transaction.

Row-level security compares every row with this setting, so without it reads return nothing and writes fail. It is never set for
a session (a pooler would hand it to the next request) and never nested (an inner tenant would silently widen the outer one).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from django.db import connection, transaction

_current: ContextVar[UUID | None] = ContextVar("smriti_tenant", default=None)


class TenantRequired(RuntimeError):
    """Tenant data was touched outside `tenant_scope`: a bug in the caller."""


class NestedTenant(RuntimeError):
    """A tenant context was opened inside another: a bug in the caller."""


@contextmanager
def tenant_scope(tenant: UUID) -> Iterator[None]:
    """Open a transaction in which the database shows and accepts rows of `tenant` only."""
    if _current.get() is not None:
        raise NestedTenant("a tenant context is already open")
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("select smriti_enter(%s)", [tenant])
        token = _current.set(tenant)
        try:
            yield
        finally:
            _current.reset(token)


def current_tenant() -> UUID:
    """The tenant of the open scope; raises TenantRequired without one."""
    tenant = _current.get()
    if tenant is None:
        raise TenantRequired("no tenant context is open")
    return tenant
