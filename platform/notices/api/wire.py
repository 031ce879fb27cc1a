"""What the routes of webhooks take and answer."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from kernel.moments import Moment
from notices.operations.endpoints import MAX_OVERLAP, MAX_REDELIVERED, MAX_URL
from notices.queries import STATUSES, DeliveryRow, EndpointRow

Url = Annotated[str, Meta(min_length=1, max_length=MAX_URL)]
Kinds = Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=100)]
Status = Literal["pending", "delivered", "dead", "skipped"]
assert Status.__args__ == STATUSES  # type: ignore[attr-defined]


class EndpointIn(Struct, forbid_unknown_fields=True):
    """`kinds`: those it takes, such as `approval.requested`; none: all, also those that come later."""

    url: Url
    kinds: Kinds = []


class EndpointPatch(Struct, forbid_unknown_fields=True):
    """What is left out stays. Switching on forgets the failures."""

    url: Url | None = None
    kinds: Kinds | None = None
    enabled: bool | None = None


class EndpointOut(Struct):
    """`disabled_reason`: `gone` (it answered 410), `failing` (nothing got through for days), `by_hand`. `previous_until`: until
    then the secret before the last rotation signs too.
    """

    id: UUID
    url: str
    kinds: list[str]
    enabled: bool
    disabled_reason: str | None
    previous_until: datetime | None
    failing_since: datetime | None
    created_at: datetime


class EndpointPage(Struct):
    items: list[EndpointOut]
    next_cursor: UUID | None


class IssuedEndpointOut(Struct):
    """`secret` verifies the signatures. It is shown once; a repeated request gets null."""

    webhook: EndpointOut
    secret: str | None


class RotateSecretIn(Struct, forbid_unknown_fields=True):
    """For how long requests carry the signature of the old secret beside that of the new one."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=int(MAX_OVERLAP.total_seconds()))] = 86_400


class DeliveryQuery(Struct, forbid_unknown_fields=True):
    """`cursor`: `next_cursor` of the page before."""

    status: Status | None = None
    cursor: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class DeliveryOut(Struct):
    """`webhook_id` is what the receiver gets in the header of that name, the same for each attempt. `last_status` is of HTTP, null
    when there was no answer; `latency_ms` of the last attempt. `due_at`: when the next one is due.
    """

    id: UUID
    webhook_id: UUID
    kind: str
    status: Status
    attempts: int
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    latency_ms: int | None
    due_at: datetime | None
    created_at: datetime


class DeliveryPage(Struct):
    items: list[DeliveryOut]
    next_cursor: UUID | None


class RedeliverIn(Struct, forbid_unknown_fields=True):
    """What was made since `since` and not delivered; with `delivered`, what was delivered too. `cursor`: `next_cursor` of the
    answer before.
    """

    since: Moment
    delivered: bool = False
    cursor: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_REDELIVERED)] = MAX_REDELIVERED


class RedeliveredOut(Struct):
    redelivered: int
    next_cursor: UUID | None


def endpoint(row: EndpointRow) -> EndpointOut:
    return EndpointOut(
        id=row.id,
        url=row.url,
        kinds=row.kinds,
        enabled=row.status == "active",
        disabled_reason=row.disabled_reason,
        previous_until=row.previous_until,
        failing_since=row.failing_since,
        created_at=row.created_at,
    )


def delivery(row: DeliveryRow) -> DeliveryOut:
    return DeliveryOut(
        id=row.id,
        webhook_id=row.notice_id,
        kind=row.kind,
        status=row.status,  # type: ignore[arg-type]  # one of STATUSES
        attempts=row.attempts,
        last_at=row.last_at,
        last_status=row.last_status,
        last_error=row.last_error,
        latency_ms=row.latency_ms,
        due_at=row.due_at,
        created_at=row.created_at,
    )
