"""Putting messages into the outbox, sending them, and what operators do with them.

Invariant: a message exists exactly when the transaction that decided it committed, and it is over only when its receiver
acknowledged it, an attempt or a rule gave it up, or an operator skipped it. The broker carries hints only: a sweep finds what is
due.
"""

import logging
import random
import threading
import time
from collections import Counter, deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db import connection, connections

from kernel import codec, ids, jobs, pool, ports
from kernel.call import Call
from kernel.errors import DomainError, NotFound
from kernel.outbox import deliverers
from kernel.outbox.deliverers import Dead, Message, Outcome, Retry

logger = logging.getLogger(__name__)

MAX_BODY: Final = 1024 * 1024  # bytes of one message
FIRST_DELAY: Final = 2.0  # seconds; doubles with each attempt, and the actual delay is drawn from zero to it
LONGEST_DELAY: Final = 3600.0
LONGEST_ASKED: Final = 86_400.0  # what a receiver may ask for
SLICE_SECONDS: Final = 45.0  # after so long a dispatcher makes place for another task
_HINT_SECONDS: Final = 0.2
_TENANTS: Final = 1000
_PURGE: Final = 1000
_PURGE_ROUNDS: Final = 50

# Adds a sealed message to the transaction.
PUT: Final = "select outbox_put(%s, %s, %s, %s, %s, %s, %s)"
# Retries or skips one message.
OPERATE: Final = "select outbox_operate(%s, %s, %s)"
# Dead messages, in their order.
DEAD: Final = """
select id from outbox_message
where tenant_id = %s and status = 'dead' and (%s::text is null or topic = %s) and (%s::text is null or last_error = %s)
order by id limit %s
"""
# Tenants with due messages, ids only.
DUE: Final = "select tenant from outbox_due_tenants(%b, %b)"
# Takes one message under a lease.
CLAIM: Final = Call("outbox_claim", "uuid text[] float8 int4", "uuid uuid text uuid text int4 timestamptz bytea")
# Ends an attempt.
FINISH: Final = Call("outbox_finish", "uuid uuid uuid text text float8 int4 float8", "text")
PURGEABLE: Final = "select tenant from outbox_purgeable_tenants(%b)"
PURGE: Final = "select outbox_purge(%b, %b, %b)"

_next_hint = 0.0
_lock = threading.Lock()


class MessageNotOpen(DomainError):
    code = "message_not_open"
    status = 409
    title = "The message is being sent, or is over"


def context(message_id: UUID) -> bytes:
    """What binds a sealed body to its message."""
    return b"outbox:" + message_id.bytes


def enqueue(
    *, tenant: UUID, topic: str, body: dict[str, Any] | bytes, ordering: UUID | None, dedup: str, now: datetime
) -> UUID:
    """Add a message in the caller's transaction and tenant scope; its id, the one that the receiver sees.

    `topic` is a dotted lower-case word. `ordering`: messages with the same one are sent one after the other, each when those before
    are over. `dedup`: made of ids and words of ours; while a message with it is kept, there is no second one in the topic, and the
    first one's id is answered. The caller's last lock: whoever adds to the same order waits until it commits.
    """
    plaintext = body if isinstance(body, bytes) else codec.canonical(body)
    if len(plaintext) > MAX_BODY:
        raise ValueError(f"a message has at most {MAX_BODY} bytes")
    message_id = ids.uuid7()
    sealed = ports.codec().seal(tenant=tenant, context=context(message_id), plaintext=plaintext)
    with connection.cursor() as cursor:
        cursor.execute(PUT, [tenant, message_id, topic, ordering, dedup, sealed, now])
        found: UUID = cursor.fetchone()[0]
    hint(tenant=tenant)
    return found


def hint(*, tenant: UUID) -> None:
    """Have the outbox looked at after the commit, for who puts messages there in SQL. Often is no harm."""
    global _next_hint
    with _lock:
        if time.monotonic() < _next_hint:
            return  # one was sent just now, and the sweep is a second away
        _next_hint = time.monotonic() + _HINT_SECONDS
    jobs.enqueue("outbox.dispatch", tenant=tenant)


# Sending --------------------------------------------------------------------------------------------------------------


def dispatch(*, seconds: float = SLICE_SECONDS) -> int:
    """Send what is due, outside of any transaction, until nothing is or `seconds` are over; how many attempts.

    Tenants take turns, a message each, and none has more than a quarter of the places: one with a hundred thousand messages, or
    with receivers that hang, delays no other. A tenant's topics take turns too.
    """
    places: int = settings.OUTBOX_CONCURRENCY
    share = max(1, places // 4)
    until = time.monotonic() + seconds
    flying: dict[Future[None], UUID] = {}
    attempts = 0
    with ThreadPoolExecutor(places, thread_name_prefix="outbox") as executor:
        try:
            while time.monotonic() < until:
                turns = deque(_due_tenants())
                random.shuffle(turns)
                if not turns and not flying:
                    break
                before = attempts
                while turns and time.monotonic() < until:
                    if len(flying) >= places:
                        _land(flying)
                    tenant = turns.popleft()
                    if Counter(flying.values())[tenant] >= share:
                        continue  # it is due again when the list is made anew
                    claimed = _claim(tenant, turn=attempts)
                    if claimed is not None:
                        attempts += 1
                        flying[executor.submit(_attempt, *claimed)] = tenant
                        turns.append(tenant)
                if attempts == before and not flying:
                    break  # what is due is another dispatcher's, or waits for one of its
                _land(flying)
        finally:
            executor.shutdown(wait=True)
    return attempts


def _due_tenants() -> list[UUID]:
    return [tenant for (tenant,) in pool.rows(DUE, (deliverers.topics(), _TENANTS))]


def _land(flying: dict[Future[None], UUID]) -> None:
    """Wait until an attempt is over, briefly: what falls due meanwhile waits no longer than that."""
    for done in wait(flying, timeout=0.5, return_when=FIRST_COMPLETED).done:
        del flying[done]
        if (error := done.exception()) is not None:
            logger.error("outbox_attempt_failed", exc_info=error)


def _claim(tenant: UUID, *, turn: int) -> tuple[Message, UUID] | None:
    """A message and its lease; None when there is nothing to take."""
    topics = deliverers.topics()
    at = turn % len(topics)
    began = time.monotonic()
    seconds = float(settings.OUTBOX_SEND_SECONDS)
    row = CLAIM.one((tenant, topics[at:] + topics[:at], 2 * seconds + 1, settings.OUTBOX_MAX_ATTEMPTS))
    message_id, lease, topic, ordering, dedup, attempt, created_at, body = row
    if message_id is None:
        return None
    message = Message(
        tenant=tenant, id=message_id, topic=topic, ordering=ordering, dedup=dedup, attempt=attempt, created_at=created_at,
        body=body, deadline=began + seconds,
    )  # fmt: skip
    return message, lease


def _attempt(sealed: Message, lease: UUID) -> None:
    """Deliver once and write down how it ended. If this is cut off anywhere, the lease runs out and it is tried again."""
    try:
        outcome = _deliver(sealed)
    finally:
        connections.close_all()  # a deliverer may have read something; its thread's connection is not kept
    status, reason, delay = "sent", None, 0.0
    if isinstance(outcome, Dead):
        status, reason = "dead", outcome.reason
    elif isinstance(outcome, Retry):
        status, reason, delay = "pending", outcome.reason, delay_of(sealed.attempt, after=outcome.after)
    age = timedelta(hours=settings.OUTBOX_MAX_AGE_HOURS).total_seconds()
    (ended,) = FINISH.one((sealed.tenant, sealed.id, lease, status, reason, delay, settings.OUTBOX_MAX_ATTEMPTS, age))
    if ended == "dead":
        logger.warning("outbox_dead", extra={"message_id": str(sealed.id), "topic": sealed.topic, "reason": reason})


def _deliver(sealed: Message) -> Outcome:
    if not sealed.seconds_left():
        return Retry("late")  # this process was stopped for a while; the lease may be another's
    try:
        body = ports.codec().open(tenant=sealed.tenant, context=context(sealed.id), blob=sealed.body)
    except ports.Corrupt:
        return Dead("unreadable")
    except DomainError as error:  # the key was destroyed
        return Dead(error.code)
    except Exception as error:
        logger.warning("outbox_not_opened", extra={"message_id": str(sealed.id), "error": type(error).__name__})
        return Retry("unavailable")
    message = Message(
        tenant=sealed.tenant, id=sealed.id, topic=sealed.topic, ordering=sealed.ordering, dedup=sealed.dedup,
        attempt=sealed.attempt, created_at=sealed.created_at, body=body, deadline=sealed.deadline,
    )  # fmt: skip
    try:
        return deliverers.deliverer(message.topic)(message)
    except Exception as error:
        # Its text may hold what clients wrote.
        logger.warning(
            "outbox_deliverer_failed",
            extra={"message_id": str(message.id), "topic": message.topic, "error": type(error).__name__},
        )
        return Retry("deliverer_failed")


def delay_of(attempt: int, *, after: float | None) -> float:
    """Seconds to the next attempt: exponential back-off with full jitter, and never less than the receiver asked for."""
    ceiling = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(attempt - 1, 30))
    return max(random.uniform(0, ceiling), min(max(after or 0.0, 0.0), LONGEST_ASKED))  # noqa: S311  not a secret


# Operators ------------------------------------------------------------------------------------------------------------


def retry(*, tenant: UUID, message_id: UUID) -> None:
    """Try a message now, with all its attempts anew. The caller holds the tenant scope. Raises NotFound, MessageNotOpen."""
    _operate(tenant, message_id, "retry")


def skip(*, tenant: UUID, message_id: UUID) -> None:
    """Give a message up; the next of its order goes on. The caller holds the tenant scope. Raises NotFound, MessageNotOpen."""
    _operate(tenant, message_id, "skip")


def retry_dead(*, tenant: UUID, topic: str | None, error: str | None, limit: int) -> list[UUID]:
    """Try dead messages again, the oldest first; which. The caller holds the tenant scope."""
    with connection.cursor() as cursor:
        cursor.execute(DEAD, [tenant, topic, topic, error, error, limit])
        found = [message_id for (message_id,) in cursor.fetchall()]
        retried = [message_id for message_id in found if _execute(cursor, tenant, message_id, "retry") == "dead"]
    hint(tenant=tenant)
    return retried


def _operate(tenant: UUID, message_id: UUID, action: str) -> None:
    with connection.cursor() as cursor:
        found = _execute(cursor, tenant, message_id, action)
    if found is None:
        raise NotFound("There is no such message.")
    if found not in ("pending", "dead"):
        raise MessageNotOpen(f"The message is {found}; nothing was changed.", extra={"message_status": found})
    hint(tenant=tenant)


def _execute(cursor: Any, tenant: UUID, message_id: UUID, action: str) -> str | None:
    cursor.execute(OPERATE, [tenant, message_id, action])
    found: str | None = cursor.fetchone()[0]
    return found


# Retention ------------------------------------------------------------------------------------------------------------


def purge() -> int:
    """Delete the rows of what was sent or skipped longer ago than the retention time, in bounded batches; how many."""
    keep = timedelta(days=settings.OUTBOX_KEEP_DAYS).total_seconds()
    total = 0
    for _ in range(_PURGE_ROUNDS):
        deleted = [pool.one(PURGE, (tenant, keep, _PURGE))[0] for (tenant,) in pool.rows(PURGEABLE, (keep,))]
        total += sum(deleted)
        if not any(deleted):
            break
    return total
