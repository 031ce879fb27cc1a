"""Webhook endpoints: create, change, rotate the secret, delete, test, send again. Each change writes its audit entry."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from audit import operations as audit_ops
from kernel import ids
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, Invalid, NotFound
from kernel.outbox import http
from kernel.outbox import operations as outbox_ops
from kernel.outbox.http import Refused
from kernel.outbox.operations import MessageNotOpen
from notices import kinds as known_kinds
from notices import queries, sealing, signatures
from notices.models import Delivery, Endpoint
from notices.operations import telling
from notices.queries import DeliveryRow, EndpointRow

MAX_ENDPOINTS: Final = 20
MAX_URL: Final = 2000  # characters
MAX_OVERLAP: Final = timedelta(days=7)
MAX_REDELIVERED: Final = 500


class TooManyEndpoints(DomainError):
    code = "too_many_webhooks"
    status = 409
    title = "No more webhooks"


class EndpointDisabled(DomainError):
    code = "webhook_disabled"
    status = 409
    title = "The webhook is switched off"


@dataclass(frozen=True, slots=True)
class Issued:
    """An endpoint and its new secret, which cannot be shown again."""

    endpoint: EndpointRow
    secret: str


@dataclass(frozen=True, slots=True)
class Redelivered:
    """`next_cursor`: there may be more; null at the end."""

    count: int
    next_cursor: UUID | None


def create_endpoint(*, tenant: UUID, url: str, kinds: Collection[str], actor: Actor, now: datetime) -> Issued:
    """A new endpoint for `kinds`, or for all when there are none. Raises Invalid, TooManyEndpoints."""
    _check_url(url)
    wanted = _kinds(kinds)
    if Endpoint.objects.count() >= MAX_ENDPOINTS:
        raise TooManyEndpoints(f"A tenant has at most {MAX_ENDPOINTS} webhooks.", extra={"limit": MAX_ENDPOINTS})
    endpoint_id, secret = ids.uuid7(), signatures.new_secret()
    row = Endpoint(
        id=endpoint_id,
        url=_sealed_url(tenant, endpoint_id, url),
        secrets=sealing.seal_secrets(tenant=tenant, row=endpoint_id, secrets=[secret]),
        kinds=wanted,
        status="active",
        created_at=now,
    )
    row.save(force_insert=True)
    _record(tenant, actor, "webhook.created", endpoint_id, {"url": url, "kinds": wanted}, now)
    return Issued(queries.endpoint_row(row), secret)


def change_endpoint(
    *,
    tenant: UUID,
    endpoint_id: UUID,
    actor: Actor,
    now: datetime,
    url: str | None = None,
    kinds: Collection[str] | None = None,
    enabled: bool | None = None,
) -> EndpointRow:
    """Change what is not None. Switching on forgets the failures. Raises NotFound, Invalid."""
    row = _locked(endpoint_id)
    before = queries.endpoint_row(row)
    changed: dict[str, object] = {}
    if url is not None and url != before.url:
        _check_url(url)
        row.url, row.failing_since = _sealed_url(tenant, row.id, url), None
        changed["url"] = url
    if kinds is not None and _kinds(kinds) != row.kinds:
        row.kinds = changed["kinds"] = _kinds(kinds)
    if enabled is not None and enabled != (row.status == "active"):
        row.status, row.disabled_reason = ("active", None) if enabled else ("disabled", "by_hand")
        row.failing_since = None
        changed["enabled"] = enabled
    if changed:
        row.save(update_fields=["url", "kinds", "status", "disabled_reason", "failing_since"])
        _record(tenant, actor, "webhook.changed", row.id, changed, now)
    return queries.endpoint_row(row)


def rotate_secret(*, tenant: UUID, endpoint_id: UUID, overlap: timedelta, actor: Actor, now: datetime) -> Issued:
    """A new secret; for `overlap` (at most 7 days) requests carry the signatures of both. Raises NotFound, Invalid."""
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise _invalid("overlap", f"The overlap may be 0 to {MAX_OVERLAP.days} days.")
    row, secret = _locked(endpoint_id), signatures.new_secret()
    old = sealing.secrets(tenant=tenant, row=row.id, blob=row.secrets)[:1] if overlap else []
    row.secrets = sealing.seal_secrets(tenant=tenant, row=row.id, secrets=[secret, *old])
    row.previous_until = now + overlap if overlap else None
    row.save(update_fields=["secrets", "previous_until"])
    _record(tenant, actor, "webhook.rotated", row.id, {"overlap_seconds": int(overlap.total_seconds())}, now)
    return Issued(queries.endpoint_row(row), secret)


def delete_endpoint(*, tenant: UUID, endpoint_id: UUID, actor: Actor, now: datetime) -> None:
    """Forget an endpoint and what was sent to it; what is under way ends without another attempt. Raises NotFound."""
    row = _locked(endpoint_id)
    undelivered = queries.with_message().filter(endpoint_id=row.id, message_status__in=["pending", "dead"])
    messages = list(undelivered.values_list("message_id", flat=True))
    url = queries.endpoint_row(row).url
    Delivery.objects.filter(endpoint_id=row.id).delete()
    Endpoint.objects.filter(id=row.id).delete()
    _record(tenant, actor, "webhook.deleted", row.id, {"url": url}, now)
    for message_id in messages:
        try:
            outbox_ops.skip(tenant=tenant, message_id=message_id)
        except MessageNotOpen:
            continue  # it is being sent, and finds no endpoint the next time


def ping(*, tenant: UUID, endpoint_id: UUID, now: datetime) -> DeliveryRow:
    """Send a test, whatever kinds the endpoint takes. Raises NotFound, EndpointDisabled."""
    row = _active(endpoint_id)
    body = telling.payload(kind=known_kinds.PING, data={"endpoint": str(row.id)}, now=now)
    delivery_id = telling.send(
        tenant=tenant, endpoint_id=row.id, notice_id=ids.uuid7(), kind=known_kinds.PING, body=body, now=now
    )
    return queries.get_delivery(tenant=tenant, endpoint_id=row.id, delivery_id=delivery_id)


def redeliver(*, tenant: UUID, endpoint_id: UUID, delivery_id: UUID, actor: Actor, now: datetime) -> DeliveryRow:
    """Send once more, now, under the same `webhook-id`. Raises NotFound, EndpointDisabled."""
    _active(endpoint_id)
    row = queries.with_message().filter(id=delivery_id, endpoint_id=endpoint_id).first()
    if row is None:
        raise NotFound("There is no such delivery.")
    _send_again(tenant, row, now)
    _record(tenant, actor, "webhook.redelivered", endpoint_id, {"deliveries": [str(delivery_id)]}, now)
    return queries.get_delivery(tenant=tenant, endpoint_id=endpoint_id, delivery_id=delivery_id)


def redeliver_since(
    *,
    tenant: UUID,
    endpoint_id: UUID,
    since: datetime,
    delivered: bool,
    cursor: UUID | None,
    limit: int,
    actor: Actor,
    now: datetime,
) -> Redelivered:
    """Send again what was made since a time and not delivered, and with `delivered` what was delivered too; the oldest first, at
    most `limit`. What is on its way is left alone. Raises NotFound, EndpointDisabled.
    """
    _active(endpoint_id)
    found = queries.with_message().filter(endpoint_id=endpoint_id, created_at__gte=since)
    found = found.exclude(queries.of_status("pending"))
    if not delivered:
        found = found.exclude(queries.of_status("delivered"))
    if cursor is not None:
        found = found.filter(id__gt=cursor)
    rows = list(found.order_by("id")[: limit + 1])
    for row in rows[:limit]:
        _send_again(tenant, row, now)
    if rows:
        content = {"since": since.isoformat(), "delivered": delivered, "count": len(rows[:limit])}
        _record(tenant, actor, "webhook.redelivered", endpoint_id, content, now)
    return Redelivered(len(rows[:limit]), rows[limit - 1].id if len(rows) > limit else None)


def _send_again(tenant: UUID, row: Any, now: datetime) -> None:
    """A message that is not over goes on as it is; one that is over has a successor."""
    if row.message_status in ("pending", "dead"):
        try:
            outbox_ops.retry(tenant=tenant, message_id=row.message_id)
        except MessageNotOpen:
            return  # it is being sent just now
    elif row.message_status != "sending":
        sending = row.sendings + 1
        message_id = telling.enqueue(tenant=tenant, delivery_id=row.id, sending=sending, now=now)
        Delivery.objects.filter(id=row.id).update(message_id=message_id, sendings=sending, delivered_at=None)


def _locked(endpoint_id: UUID) -> Endpoint:
    row: Endpoint | None = Endpoint.objects.select_for_update().filter(id=endpoint_id).first()
    if row is None:
        raise NotFound("There is no such webhook.")
    return row


def _active(endpoint_id: UUID) -> Endpoint:
    row = _locked(endpoint_id)
    if row.status != "active":
        raise EndpointDisabled("Switch it on first.")
    return row


def _sealed_url(tenant: UUID, endpoint_id: UUID, url: str) -> bytes:
    return sealing.seal(tenant=tenant, row=endpoint_id, column="url", plaintext=url.encode())


def _check_url(url: str) -> None:
    """Refuse at once what no attempt could reach. Names are judged when they are resolved, at each attempt."""
    if len(url) > MAX_URL:
        raise _invalid("url", f"The address may have at most {MAX_URL} characters.")
    try:
        found = http.checked(url)
    except Refused as error:
        message = "Requests may not go to this port." if error.reason == "port_refused" else "This is no web address."
        raise _invalid("url", message) from error
    if settings.SECURE and found.scheme != "https":
        raise _invalid("url", "The address must begin with https://.")
    try:
        address = ip_address(found.host)
    except ValueError:
        return
    if not http.permitted(address):
        raise _invalid("url", "Requests may not go to this address.")


def _kinds(wanted: Collection[str]) -> list[str]:
    unknown = sorted(set(wanted) - {kind.name for kind in known_kinds.known()})
    if unknown:
        raise _invalid("kinds", "There is no such kind of notice.")
    return sorted(set(wanted))


def _invalid(field: str, message: str) -> Invalid:
    return Invalid(message, fields=(FieldError(path=f"/{field}", code="invalid", message=message),))


def _record(
    tenant: UUID, actor: Actor, action: str, target: UUID, content: Mapping[str, object], now: datetime
) -> None:
    audit_ops.record(
        tenant=tenant, actor=actor, action=action, target_kind="webhook", target_id=target, content=content, now=now
    )
