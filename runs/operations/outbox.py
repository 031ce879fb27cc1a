"""What operators do with messages that do not get through: retry and skip, with an audit entry in the same transaction.

The outbox itself is the kernel's, which knows no audit log; these are its operators' doors. The caller holds the tenant scope.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

from audit import operations as audit_ops
from kernel.actor import Actor
from kernel.outbox import operations as outbox_ops

MAX_RETRIED: Final = 1000


def retry_message(*, tenant: UUID, message_id: UUID, actor: Actor, now: datetime) -> None:
    """Try a message now, with all its attempts anew. Raises NotFound, MessageNotOpen."""
    outbox_ops.retry(tenant=tenant, message_id=message_id)
    _record(tenant, actor, "outbox.retried", "outbox_message", message_id, {}, now)


def skip_message(*, tenant: UUID, message_id: UUID, reason: str, actor: Actor, now: datetime) -> None:
    """Give a message up, so that the next of its order goes on. Raises NotFound, MessageNotOpen."""
    outbox_ops.skip(tenant=tenant, message_id=message_id)
    _record(tenant, actor, "outbox.skipped", "outbox_message", message_id, {"reason": reason}, now)


def retry_messages(
    *, tenant: UUID, topic: str | None, error: str | None, limit: int, actor: Actor, now: datetime
) -> int:
    """Try the dead messages of a filter again, the oldest first, at most `limit`; how many."""
    retried = outbox_ops.retry_dead(tenant=tenant, topic=topic, error=error, limit=limit)
    if retried:
        content = {"topic": topic, "last_error": error, "messages": [str(message_id) for message_id in retried]}
        _record(tenant, actor, "outbox.retried_all", "tenant", tenant, content, now)
    return len(retried)


def _record(
    tenant: UUID, actor: Actor, action: str, kind: str, target: UUID, content: Mapping[str, object], now: datetime
) -> None:
    audit_ops.record(
        tenant=tenant, actor=actor, action=action, target_kind=kind, target_id=target, content=content, now=now
    )
