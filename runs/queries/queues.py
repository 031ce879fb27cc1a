"""Queues: what waits in them, and what limits them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import connection

MAX_QUEUES: Final = 500

# Counts stop at 10,000 for each queue and status: a backlog of millions costs no more.
COUNTS: Final = """
select q.name, q.paused, q.max_leased, q.rate_per_minute, q.burst,
       (select count(*) from (select from runs_step s where s.tenant_id = q.tenant_id and s.queue = q.name and s.status = 'runnable'
                              limit 10000) x),
       (select count(*) from (select from runs_step s where s.tenant_id = q.tenant_id and s.queue = q.name and s.status = 'leased'
                              limit 10000) x),
       (select min(x.due_at) from (select s.due_at from runs_step s
                                   where s.tenant_id = q.tenant_id and s.queue = q.name and s.status = 'runnable' limit 10000) x)
from runs_queue q where q.tenant_id = %s and (%s::text is null or q.name = %s) order by q.name limit %s
"""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """`runnable` and `leased` count up to 10,000. `oldest_at`: since when the longest waiting step could be claimed.

    `*` stands for all queues of the tenant together.
    """

    name: str
    paused: bool
    max_leased: int | None
    rate_per_minute: float | None
    burst: float | None
    runnable: int
    leased: int
    oldest_at: datetime | None


def list_queues(*, tenant: UUID, name: str | None = None) -> list[QueueRow]:
    """Queues by name, at most MAX_QUEUES. The caller holds the tenant scope."""
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, [tenant, name, name, MAX_QUEUES])
        return [QueueRow(*row) for row in cursor.fetchall()]
