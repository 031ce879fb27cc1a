"""Reading endpoints, what was sent to them, and what members want. The caller holds the tenant scope. Secrets are not shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery

from kernel.errors import NotFound
from kernel.outbox.models import Message
from notices import sealing
from notices.models import Delivery, Endpoint, Preference
from tenancy.models import Member
from tenancy.queries import ROLE_ACTIONS

STATUSES: Final = ("pending", "delivered", "dead", "skipped")


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """`kinds`: none means all. `disabled_reason`: gone (it answered 410), failing (for days), by_hand."""

    id: UUID
    url: str
    kinds: list[str]
    status: str
    disabled_reason: str | None
    previous_until: datetime | None
    failing_since: datetime | None
    created_at: datetime

    @property
    def host(self) -> str:
        return self.url.partition("://")[2].partition("/")[0]


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """`status`: pending, delivered, dead (given up; can be sent again), skipped (an operator gave it up)."""

    id: UUID
    notice_id: UUID
    kind: str
    status: str
    attempts: int
    last_at: datetime | None
    last_status: int | None
    last_error: str | None
    latency_ms: int | None
    due_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Deliveries:
    rows: list[DeliveryRow]
    next_cursor: UUID | None


@dataclass(frozen=True, slots=True)
class Wishes:
    """Of a member: `unwanted` kinds get no e-mail."""

    language: str
    unwanted: frozenset[str]


def list_endpoints(*, tenant: UUID) -> list[EndpointRow]:
    """In order of creation."""
    return [endpoint_row(row) for row in Endpoint.objects.order_by("id")]


def get_endpoint(*, tenant: UUID, endpoint_id: UUID) -> EndpointRow:
    """Raises NotFound."""
    row = Endpoint.objects.filter(id=endpoint_id).first()
    if row is None:
        raise NotFound("There is no such webhook.")
    return endpoint_row(row)


def deliveries(*, tenant: UUID, endpoint_id: UUID, status: str | None, cursor: UUID | None, limit: int) -> Deliveries:
    """What was sent to an endpoint, newest first. Raises NotFound."""
    if not Endpoint.objects.filter(id=endpoint_id).exists():
        raise NotFound("There is no such webhook.")
    found = with_message().filter(endpoint_id=endpoint_id).order_by("-id")
    if status is not None:
        found = found.filter(of_status(status))
    if cursor is not None:
        found = found.filter(id__lt=cursor)
    rows = [_delivery(row) for row in found[: limit + 1]]
    return Deliveries(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)


def get_delivery(*, tenant: UUID, endpoint_id: UUID, delivery_id: UUID) -> DeliveryRow:
    """Raises NotFound."""
    row = with_message().filter(id=delivery_id, endpoint_id=endpoint_id).first()
    if row is None:
        raise NotFound("There is no such delivery.")
    return _delivery(row)


def wishes(*, tenant: UUID, member_id: UUID) -> Wishes:
    """Who has chosen nothing gets every e-mail, in English."""
    row = Preference.objects.filter(member_id=member_id).first()
    return Wishes("en", frozenset()) if row is None else Wishes(row.language, frozenset(row.unwanted))


def members_who_may(*, tenant: UUID, action: str) -> list[UUID]:
    """The members whose roles grant an action: whom to tell of what somebody should look at."""
    roles = [str(role) for role, actions in ROLE_ACTIONS.items() if action in actions]
    return list(Member.objects.filter(roles__overlap=roles).order_by("id").values_list("id", flat=True))


def with_message() -> "QuerySet[Any]":
    """Deliveries without their bodies, each with the status of its last message, null when that is over and forgotten."""
    message = Message.objects.filter(id=OuterRef("message_id"))
    found: QuerySet[Any] = Delivery.objects.defer("body").annotate(
        message_status=Subquery(message.values("status")[:1]), message_due_at=Subquery(message.values("due_at")[:1])
    )
    return found


def of_status(status: str) -> Q:
    """The condition under which a delivery of `with_message` has a status."""
    if status == "delivered":
        return Q(delivered_at__isnull=False)
    undelivered = Q(delivered_at__isnull=True)
    if status == "dead":
        return undelivered & Q(message_status="dead")
    if status == "pending":
        return undelivered & Q(message_status__in=["pending", "sending"])
    return undelivered & (Q(message_status__in=["sent", "skipped"]) | Q(message_status__isnull=True))


def endpoint_row(row: Endpoint) -> EndpointRow:
    return EndpointRow(
        id=row.id,
        url=sealing.unseal(tenant=row.tenant_id, row=row.id, column="url", blob=row.url).decode(),
        kinds=row.kinds,
        status=row.status,
        disabled_reason=row.disabled_reason,
        previous_until=row.previous_until,
        failing_since=row.failing_since,
        created_at=row.created_at,
    )


def status_of(row: Any) -> str:
    if row.delivered_at is not None:
        return "delivered"
    if row.message_status in ("pending", "sending"):
        return "pending"
    return "dead" if row.message_status == "dead" else "skipped"


def _delivery(row: Any) -> DeliveryRow:
    status = status_of(row)
    return DeliveryRow(
        id=row.id,
        notice_id=row.notice_id,
        kind=row.kind,
        status=status,
        attempts=row.attempts,
        last_at=row.last_at,
        last_status=row.last_status,
        last_error=row.last_error,
        latency_ms=row.latency_ms,
        due_at=row.message_due_at if status == "pending" else None,
        created_at=row.created_at,
    )


def mailed_to(*, tenant: UUID, members: Sequence[UUID], kind: str) -> list[tuple[UUID, str]]:
    """Of some members those who want a kind by e-mail, each with the language."""
    chosen = {row.member_id: row for row in Preference.objects.filter(member_id__in=members)}
    found = Member.objects.filter(id__in=members).order_by("id").values_list("id", flat=True)
    return [
        (member, chosen[member].language if member in chosen else "en")
        for member in found
        if member not in chosen or kind not in chosen[member].unwanted
    ]
