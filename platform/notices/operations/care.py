"""Forgetting what was sent long ago."""

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from kernel import pool
from kernel.context import tenant_scope
from kernel.outbox import operations as outbox_ops
from kernel.outbox.operations import MessageNotOpen
from notices import queries
from notices.models import Delivery

# Tenants with deliveries from before a time, ids only.
AGED: Final = "select tenant from notices_aged_tenants(%b)"
_BATCH: Final = 1000
_ROUNDS: Final = 50


def purge(*, now: datetime) -> int:
    """Delete deliveries from before the retention time, in bounded batches; how many. One that is dead is given up, one that is on
    its way stays until it is over.
    """
    before = now - timedelta(days=settings.WEBHOOK_KEEP_DAYS)
    total = 0
    for _ in range(_ROUNDS):
        deleted = 0
        for (tenant,) in pool.rows(AGED, (before,)):
            with tenant_scope(tenant):
                deleted += _purge(tenant, before)
        total += deleted
        if not deleted:
            break
    return total


def _purge(tenant: object, before: datetime) -> int:
    aged = queries.with_message().filter(created_at__lt=before).exclude(queries.of_status("pending"))
    gone = []
    for row in aged.order_by("created_at")[:_BATCH]:
        if row.message_status == "dead":
            try:
                outbox_ops.skip(tenant=row.tenant_id, message_id=row.message_id)
            except MessageNotOpen:
                continue  # somebody sends it again just now
        gone.append(row.id)
    found: int = Delivery.objects.filter(id__in=gone).delete()[0]
    return found
