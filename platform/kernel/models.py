"""The base of every tenant-owned model. A query outside a tenant scope raises instead of quietly returning nothing.

Models say `id` is the primary key; `kernel.rls.TenantTable` makes it `(tenant_id, id)` in the database.
"""

from typing import Any, ClassVar, TypeVar

from django.db import models

from kernel import context, ids

Row = TypeVar("Row", bound=models.Model, covariant=True)


class TenantManager(models.Manager[Row]):
    def get_queryset(self) -> models.QuerySet[Row]:
        """Rows of the open tenant only: by row-level security, and by a condition the planner can use as an index prefix."""
        return super().get_queryset().filter(tenant_id=context.current_tenant())


class TenantRow(models.Model):
    """A row of one tenant whose key is declared by the model itself."""

    tenant_id = models.UUIDField(default=context.current_tenant, editable=False)

    objects: ClassVar[TenantManager[Any]] = TenantManager()

    class Meta:
        abstract = True


class TenantModel(TenantRow):
    """A row of one tenant with a UUIDv7 `id`."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)

    class Meta:
        abstract = True
