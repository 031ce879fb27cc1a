"""Pausing and limiting queues. A limit holds from the next claim on; what is leased is left alone."""

from datetime import datetime
from typing import Final
from uuid import UUID

from audit import operations as audit_ops
from kernel.actor import Actor
from kernel.errors import NotFound
from runs.models import Queue

EVERY_QUEUE: Final = "*"


def set_queue(
    *,
    tenant: UUID,
    name: str,
    paused: bool,
    max_leased: int | None,
    rate_per_minute: float | None,
    burst: float | None,
    reason: str,
    actor: Actor,
    now: datetime,
) -> None:
    """Set all limits of a queue, or of EVERY_QUEUE together. The caller holds the tenant scope. Raises NotFound."""
    limits = {"paused": paused, "max_leased": max_leased, "rate_per_minute": rate_per_minute, "burst": burst}
    # The allowance begins anew.
    fresh = {**limits, "tokens": None, "refilled_at": None}
    if name == EVERY_QUEUE:
        Queue.objects.update_or_create(name=name, defaults=fresh)
    elif not Queue.objects.filter(name=name).update(**fresh):
        raise NotFound("There is no such queue: it exists from its first step on.")
    audit_ops.record(
        tenant=tenant, actor=actor, action="queue.set", target_kind="tenant" if name == EVERY_QUEUE else "queue",
        target_id=tenant if name == EVERY_QUEUE else name,
        content={**limits, "reason": reason}, now=now,
    )  # fmt: skip
