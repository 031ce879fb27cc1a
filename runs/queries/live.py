"""What live readers see of the logs: the tail of one run, and the feed of all runs of a tenant (runs.models.feed).

These reads are shared by many readers and ask for no key; whoever hands their rows out has checked `visible` for each reader.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from kernel.call import Call
from kernel.errors import NotFound
from privacy import keys
from privacy.keys import DataKey, KeyShredded
from runs.queries.log import EventRow, event_row
from tenancy.queries import Principal

_EVENT: Final = "int8 text int2 text uuid uuid text uuid timestamptz timestamptz jsonb bytea bytea bytea bytea"
# A run and a page of its events.
TAIL: Final = Call("runs_tail", "uuid uuid int8 int4 int8", f"int8 text uuid uuid uuid {_EVENT}", reads=True)
# A page of the events of all runs, in the order of the feed.
FEED: Final = Call(
    "runs_feed_events", "uuid int8 int8 int4 int8", f"int8 int8 uuid text text text uuid uuid uuid {_EVENT}", reads=True
)
# The ends of many logs.
LAST_SEQS: Final = Call("runs_last_seqs", "uuid uuid[]", "uuid int8 text", reads=True)


class FeedCursor(NamedTuple):
    """Everything before `position` was read, and of `position` the events up to `seq`."""

    position: int
    seq: int

    def __str__(self) -> str:
        return f"{self.position}.{self.seq}"


START: Final = FeedCursor(1, 0)


@dataclass(frozen=True, slots=True)
class Tail:
    """Events of a run. With fewer than asked for, the last is `last_seq`."""

    last_seq: int
    status: str
    project_id: UUID
    agent_id: UUID | None
    rows: list[EventRow]


@dataclass(frozen=True, slots=True)
class FeedItem:
    cursor: FeedCursor
    run_id: UUID
    workflow: str
    workflow_version: str
    project: str
    project_id: UUID
    agent_id: UUID | None
    event: EventRow

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id, "workflow": self.workflow, "workflow_version": self.workflow_version,
            "project": self.project, **self.event.as_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class FeedPage:
    """`through`: everything before it was read. `more`: there may be more now."""

    items: list[FeedItem]
    through: FeedCursor
    more: bool


def tail(*, tenant: UUID, run_id: UUID, after: int, limit: int, payload_bytes: int | None) -> Tail:
    """At most `limit` events, and fewer when their payloads reach `payload_bytes` (None: no payloads). Raises NotFound."""
    rows = TAIL.rows((tenant, run_id, after, limit, payload_bytes))
    if not rows:
        raise NotFound("There is no such run.")
    last_seq, status, project_id, agent_id, data_key = rows[0][:5]
    key = _key(tenant, data_key, payload_bytes)
    events = [event_row(key, run_id, *row[5:]) for row in rows if row[5] is not None]
    return Tail(last_seq, status, project_id, agent_id, events)


def feed(*, tenant: UUID, cursor: FeedCursor, limit: int, payload_bytes: int | None) -> FeedPage:
    """The events of all runs after a cursor, in the order of the feed; ends as `tail` does."""
    rows = FEED.rows((tenant, *cursor, limit, payload_bytes))
    head = rows[0][0]
    items = [
        FeedItem(
            FeedCursor(position, event[0]), run_id, workflow, version, project, project_id, agent_id,
            event_row(_key(tenant, data_key, payload_bytes), run_id, *event),
        )
        for _, position, run_id, workflow, version, project, project_id, agent_id, data_key, *event in rows
        if position is not None
    ]  # fmt: skip
    full = len(items) == limit or sum(item.event.size for item in items) >= (payload_bytes or 1)
    through = items[-1].cursor if full else max(cursor, FeedCursor(head + 1, 0))
    return FeedPage(items, through, more=full)


def _key(tenant: UUID, data_key: UUID, payload_bytes: int | None) -> DataKey | None:
    """The key to payloads, when they were asked for; None also for what was erased: that must not end the feed of the others."""
    try:
        return None if payload_bytes is None else keys.data_key(tenant=tenant, key_id=data_key)
    except KeyShredded:
        return None


def last_seqs(*, tenant: UUID, run_ids: list[UUID]) -> dict[UUID, int]:
    """How far the logs of these runs go."""
    return {run: last_seq for run, last_seq, _ in LAST_SEQS.rows((tenant, run_ids))}


def visible(principal: Principal, *, project_id: UUID, agent_id: UUID | None) -> bool:
    """May this principal see a run of that project and agent? As the database functions judge it."""
    return (principal.project_ids is None or project_id in principal.project_ids) and (
        principal.agent_id is None or agent_id == principal.agent_id
    )
