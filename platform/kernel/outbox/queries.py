"""Reading the outbox. The caller holds the tenant scope. Bodies are not shown to anybody."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Min

from kernel.errors import NotFound
from kernel.outbox.models import Message
from kernel.outbox.states import MOVES, OPEN


@dataclass(frozen=True, slots=True)
class MessageRow:
    """`due_at` is null while the message waits for one before it in its order."""

    id: UUID
    topic: str
    ordering: UUID | None
    dedup: str
    status: str
    attempts: int
    due_at: datetime | None
    last_error: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Overview:
    """A page, and of all the tenant's messages: how many there are by status, and since when the oldest is open."""

    rows: list[MessageRow]
    next_cursor: UUID | None
    counts: dict[str, int]
    oldest_open_at: datetime | None


def overview(*, tenant: UUID, statuses: list[str], topic: str | None, cursor: UUID | None, limit: int) -> Overview:
    """Messages of the filter, newest first."""
    found = Message.objects.order_by("-id")
    if statuses:
        found = found.filter(status__in=statuses)
    if topic is not None:
        found = found.filter(topic=topic)
    if cursor is not None:
        found = found.filter(id__lt=cursor)
    rows = [_row(message) for message in found.defer("body")[: limit + 1]]
    counts = dict(Message.objects.values_list("status").annotate(Count("id")).order_by())
    oldest: datetime | None = Message.objects.filter(status__in=OPEN).aggregate(at=Min("queued_at"))["at"]
    return Overview(
        rows=rows[:limit],
        next_cursor=rows[limit - 1].id if len(rows) > limit else None,
        counts={status: counts.get(status, 0) for status in MOVES},
        oldest_open_at=oldest,
    )


def get_message(*, tenant: UUID, message_id: UUID) -> MessageRow:
    """One message. Raises NotFound."""
    message = Message.objects.filter(id=message_id).defer("body").first()
    if message is None:
        raise NotFound("There is no such message.")
    return _row(message)


def _row(message: Message) -> MessageRow:
    return MessageRow(
        id=message.id,
        topic=message.topic,
        ordering=message.ordering,
        dedup=message.dedup,
        status=message.status,
        attempts=message.attempts,
        due_at=message.due_at,
        last_error=message.last_error,
        created_at=message.created_at,
        ended_at=message.ended_at,
    )
