"""Messages that leave the platform, for operators. Bodies are not shown."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from kernel.errors import Forbidden
from kernel.outbox import queries
from kernel.outbox.operations import MessageNotOpen
from kernel.outbox.states import MOVES
from kernel.rest.views import ApiView, Context, endpoint
from runs.operations import outbox as operations

Status = Literal["pending", "sending", "dead", "sent", "skipped"]
assert set(MOVES) == set(Status.__args__)  # type: ignore[attr-defined]
Word = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\Z", max_length=64)]


class OutboxQuery(Struct, forbid_unknown_fields=True):
    """`status` may stand several times. `cursor`: `next_cursor` of the page before."""

    status: list[Status] = []
    topic: Word | None = None
    cursor: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class OutboxMessage(Struct):
    """`ordering`: messages with the same one are sent one after the other. `attempts` begin anew with an operator's retry.
    `due_at` is null while an earlier message of its order is not over; while it is sent, it is the end of the sender's lease.
    """

    id: UUID
    topic: str
    ordering: UUID | None
    dedup: str
    status: Status
    attempts: int
    due_at: datetime | None
    last_error: str | None
    created_at: datetime
    ended_at: datetime | None


class OutboxAnswer(Struct):
    """`counts` are of all messages, by status. `oldest_seconds`: since when the oldest that is not over is tried."""

    items: list[OutboxMessage]
    next_cursor: UUID | None
    counts: dict[Status, int]
    oldest_seconds: float | None


class SkipMessageIn(Struct, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=2000)]


class RetryMessagesIn(Struct, forbid_unknown_fields=True):
    """Which dead messages: of a topic, given up for `last_error`. The oldest first, at most `limit`."""

    topic: Word | None = None
    last_error: Word | None = None
    limit: Annotated[int, Meta(ge=1, le=operations.MAX_RETRIED)] = operations.MAX_RETRIED


class RetriedMessages(Struct):
    retried: int


class Outbox(ApiView):
    @endpoint(
        summary="List messages that leave the platform", scope="runs:read", query=OutboxQuery, answer=OutboxAnswer
    )
    def get(self, call: Context) -> OutboxAnswer:
        """Newest first. A key that is bound to an agent or to projects is refused: messages are the whole tenant's."""
        whole_tenant(call)
        query: OutboxQuery = call.query
        found = queries.overview(
            tenant=call.tenant, statuses=list(query.status), topic=query.topic, cursor=query.cursor, limit=query.limit
        )
        oldest = found.oldest_open_at
        return OutboxAnswer(
            items=[_message(row) for row in found.rows],
            next_cursor=found.next_cursor,
            counts=found.counts,  # type: ignore[arg-type]  # its keys are those of MOVES
            oldest_seconds=None if oldest is None else max(0.0, (call.now - oldest).total_seconds()),
        )


class OutboxRetry(ApiView):
    @endpoint(summary="Send a message again", scope="runs:operate", answer=OutboxMessage, problems=(MessageNotOpen,))
    def post(self, call: Context, message_id: UUID) -> OutboxMessage:
        """Now, with all its attempts anew: a dead message, or one that waits for its next attempt."""
        whole_tenant(call)
        operations.retry_message(tenant=call.tenant, message_id=message_id, actor=call.actor, now=call.now)
        return _message(queries.get_message(tenant=call.tenant, message_id=message_id))


class OutboxRetries(ApiView):
    @endpoint(summary="Send dead messages again", scope="runs:operate", body=RetryMessagesIn, answer=RetriedMessages)
    def post(self, call: Context) -> RetriedMessages:
        """Repeat it until `retried` is below `limit`."""
        whole_tenant(call)
        body: RetryMessagesIn = call.body
        return RetriedMessages(
            operations.retry_messages(
                tenant=call.tenant,
                topic=body.topic,
                error=body.last_error,
                limit=body.limit,
                actor=call.actor,
                now=call.now,
            )
        )


class OutboxSkip(ApiView):
    @endpoint(
        summary="Give a message up",
        scope="runs:operate",
        body=SkipMessageIn,
        answer=OutboxMessage,
        problems=(MessageNotOpen,),
    )
    def post(self, call: Context, message_id: UUID) -> OutboxMessage:
        """The next of its order goes on. The reason is kept, sealed, in the audit log."""
        whole_tenant(call)
        operations.skip_message(
            tenant=call.tenant, message_id=message_id, reason=call.body.reason, actor=call.actor, now=call.now
        )
        return _message(queries.get_message(tenant=call.tenant, message_id=message_id))


def whole_tenant(call: Context) -> None:
    """Refuse a key that is bound to a part of the tenant."""
    if call.principal.agent_id is not None or call.principal.project_ids is not None:
        raise Forbidden("This needs a key that is not bound to an agent or to projects.")


def _message(row: queries.MessageRow) -> OutboxMessage:
    return OutboxMessage(
        id=row.id,
        topic=row.topic,
        ordering=row.ordering,
        dedup=row.dedup,
        status=row.status,  # type: ignore[arg-type]  # a key of MOVES
        attempts=row.attempts,
        due_at=row.due_at,
        last_error=row.last_error,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
