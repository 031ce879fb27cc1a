"""Reading and verifying the tenant's audit log over REST."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct

from audit import queries
from kernel.moments import Moment
from kernel.rest.views import ApiView, Context, endpoint

Word = Annotated[str, Meta(min_length=1, max_length=120)]


class AuditQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    action: Word | None = None
    actor_id: UUID | None = None
    target_kind: Word | None = None
    target_id: Word | None = None
    recorded_from: Moment | None = None
    recorded_to: Moment | None = None
    cursor: Annotated[str, Meta(max_length=64)] | None = None
    limit: Annotated[int, Meta(ge=1, le=queries.MAX_PAGE)] = 50


class AuditEntryOut(Struct):
    """`position` and `digest` are null until the entry is sealed into the chain; that takes seconds."""

    id: UUID
    position: int | None
    recorded_at: datetime
    actor_kind: str
    actor_id: UUID | None
    actor: str
    action: str
    target_kind: str
    target_id: str
    content: dict[str, Any]
    payload: Literal["intact", "erased", "damaged"]
    digest: str | None


class AuditPageOut(Struct):
    items: list[AuditEntryOut]
    next_cursor: str | None


class AuditVerificationOut(Struct):
    ok: bool
    entries: int
    first_bad_position: int | None
    reason: str | None


class Entries(ApiView):
    @endpoint(summary="Read the audit log", scope="audit:read", query=AuditQuery, answer=AuditPageOut)
    def get(self, call: Context) -> AuditPageOut:
        """Newest first. `action` is a prefix, such as `key.`; `recorded_to` itself is left out."""
        query: AuditQuery = call.query
        filters = queries.AuditFilter(
            action=query.action,
            actor_id=query.actor_id,
            target_kind=query.target_kind,
            target_id=query.target_id,
            recorded_from=query.recorded_from,
            recorded_to=query.recorded_to,
        )
        found = queries.page(tenant=call.tenant, filters=filters, cursor=query.cursor, limit=query.limit)
        return AuditPageOut(items=[_entry(row) for row in found.rows], next_cursor=found.next_cursor)


class Verification(ApiView):
    @endpoint(summary="Verify the audit log", scope="audit:read", answer=AuditVerificationOut)
    def get(self, call: Context) -> AuditVerificationOut:
        """Recomputes the chain from its first entry and names the first position that does not hold."""
        found = queries.verify(tenant=call.tenant)
        return AuditVerificationOut(
            ok=found.ok, entries=found.entries, first_bad_position=found.first_bad_position, reason=found.reason
        )


def _entry(row: queries.AuditRow) -> AuditEntryOut:
    return AuditEntryOut(
        id=row.id,
        position=row.position,
        recorded_at=row.recorded_at,
        actor_kind=row.actor_kind,
        actor_id=row.actor_id,
        actor=row.actor,
        action=row.action,
        target_kind=row.target_kind,
        target_id=row.target_id,
        content=dict(row.content),
        payload=row.payload,
        digest=row.digest,
    )
