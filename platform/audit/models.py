"""The audit log's tables. Rows of `Entry` and `Link` are only ever added; triggers refuse all else, to everybody.

An entry is complete when it is inserted, without a lock. `Pending` marks it (by a trigger, so that no writer can
forget) until sealing gives it the next `Link` of its tenant's chain. `Head` is where the chain ends, so that a cut tail
is found.
"""

from typing import Final

from django.db import models

from kernel import context
from kernel.models import TenantModel, TenantRow

IDENTIFIER: Final = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"
TARGET: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
ACTOR_KINDS: Final = ("key", "member", "system")


class Entry(TenantModel):
    """One act. What people or clients wrote stands in `payload` only (salt and JSON, sealed); null once erased."""

    recorded_at = models.DateTimeField()
    actor_kind = models.CharField(max_length=16, db_collation="C")
    actor_id = models.UUIDField(null=True)
    action = models.CharField(max_length=80, db_collation="C")
    target_kind = models.CharField(max_length=40, db_collation="C")
    target_id = models.CharField(max_length=120, db_collation="C")
    payload = models.BinaryField(null=True)
    commitment = models.BinaryField(max_length=32)
    content_digest = models.BinaryField(max_length=32)

    class Meta:
        # Under collation C a prefix of an action is a range of its index. Row-level security keeps LIKE from using one.
        indexes = [
            models.Index(fields=["tenant_id", "recorded_at", "id"], name="audit_entry_time"),
            models.Index(fields=["tenant_id", "actor_id", "recorded_at", "id"], name="audit_entry_actor"),
            models.Index(fields=["tenant_id", "target_id", "recorded_at", "id"], name="audit_entry_target"),
            models.Index(fields=["tenant_id", "target_kind", "recorded_at", "id"], name="audit_entry_target_kind"),
            models.Index(fields=["tenant_id", "action", "recorded_at", "id"], name="audit_entry_action"),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(actor_kind__in=ACTOR_KINDS), name="audit_entry_actor_kind_known"),
            models.CheckConstraint(condition=models.Q(action__regex=IDENTIFIER), name="audit_entry_action_identifier"),
            models.CheckConstraint(
                condition=models.Q(target_kind__regex=IDENTIFIER, target_id__regex=TARGET),
                name="audit_entry_target_identifier",
            ),
        ]


class Pending(TenantRow):
    """An entry that is not yet in the chain."""

    pk = models.CompositePrimaryKey("tenant_id", "entry_id")
    entry_id = models.UUIDField()


class Link(TenantRow):
    """An entry's place in its tenant's chain. Positions begin at 1 and have no gaps."""

    pk = models.CompositePrimaryKey("tenant_id", "position")
    position = models.BigIntegerField()
    entry_id = models.UUIDField()
    prev_digest = models.BinaryField(max_length=32)
    digest = models.BinaryField(max_length=32)
    sealed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "prev_digest"], name="audit_link_no_fork"),
            models.UniqueConstraint(fields=["tenant_id", "entry_id"], name="audit_link_once"),
        ]


class Head(TenantRow):
    """The last link of a tenant's chain; it only moves forward."""

    tenant_id = models.UUIDField(primary_key=True, default=context.current_tenant, editable=False)
    position = models.BigIntegerField()
    digest = models.BinaryField(max_length=32)
