"""Sending a webhook once, as the outbox asks, and writing down how it went.

Invariant: the same `webhook-id` and the same bytes however often a delivery is sent; time and signatures are of the moment. Where a
request may go is judged by `kernel.outbox.http`, anew at each attempt, on the address that is then used.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from audit import operations as audit_ops
from kernel import actor as actors
from kernel import clock
from kernel.context import tenant_scope
from kernel.outbox import Dead, Delivered, Message, Outcome, Retry, http
from kernel.outbox.http import Failed, Refused, Request
from notices import kinds, queries, sealing, signatures
from notices.models import Delivery, Endpoint
from notices.operations.telling import tell
from tenancy import queries as tenancy_queries


@dataclass(frozen=True, slots=True)
class _Job:
    endpoint_id: UUID
    failing_since: datetime | None
    url: str
    webhook_id: str
    secrets: list[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Attempt:
    """`status` is of HTTP; None when there was no answer."""

    outcome: Outcome
    status: int | None
    latency_ms: int


def deliver(message: Message) -> Outcome:
    """Send once. An endpoint that was deleted meanwhile ends the message; a disabled one leaves it for a redelivery."""
    delivery_id = UUID(msgspec.json.decode(message.body)["delivery"])
    with tenant_scope(message.tenant):
        delivery = Delivery.objects.filter(id=delivery_id).first()
        endpoint = None if delivery is None else Endpoint.objects.filter(id=delivery.endpoint_id).first()
        if delivery is None or endpoint is None:
            return Delivered()
        if endpoint.status != "active":
            return Dead("endpoint_disabled")
        job = _job(delivery, endpoint, clock.now())
    attempt = _send(message, job)
    with tenant_scope(message.tenant):
        _write_down(message.tenant, delivery_id, job, attempt, clock.now())
    return attempt.outcome


def _job(delivery: Delivery, endpoint: Endpoint, now: datetime) -> _Job:
    tenant = endpoint.tenant_id
    secrets = sealing.secrets(tenant=tenant, row=endpoint.id, blob=endpoint.secrets)
    both = endpoint.previous_until is not None and now < endpoint.previous_until
    return _Job(
        endpoint_id=endpoint.id,
        failing_since=endpoint.failing_since,
        url=sealing.unseal(tenant=tenant, row=endpoint.id, column="url", blob=endpoint.url).decode(),
        webhook_id=str(delivery.notice_id),
        secrets=secrets if both else secrets[:1],
        body=sealing.unseal(tenant=tenant, row=delivery.id, column="body", blob=delivery.body),
    )


def _send(message: Message, job: _Job) -> _Attempt:
    headers = {"Content-Type": "application/json"} | signatures.headers(
        webhook_id=job.webhook_id, secrets=job.secrets, body=job.body, now=clock.now()
    )
    began, status = time.monotonic(), None
    try:
        response = http.exchange(message, Request(url=job.url, headers=headers, content=job.body.decode()))
        status, outcome = response.status, _outcome(response)
    except Refused as error:
        outcome = Dead(error.reason)
    except Failed as error:
        outcome = Retry(error.reason)
    return _Attempt(outcome, status, int((time.monotonic() - began) * 1000))


def _outcome(response: http.Response) -> Outcome:
    """Standard Webhooks: whatever is not 2xx failed and is tried again, also a 4xx, which a new release of the receiver may mend;
    410 says "never again". A redirect is not followed, and leads nowhere else the next time."""
    outcome = http.outcome_of(response)
    if isinstance(outcome, Dead) and response.status >= 400 and response.status != 410:
        return Retry(outcome.reason)
    return outcome


def _write_down(tenant: UUID, delivery_id: UUID, job: _Job, attempt: _Attempt, now: datetime) -> None:
    row = Delivery.objects.select_for_update().filter(id=delivery_id).first()
    if row is None:
        return
    done = isinstance(attempt.outcome, Delivered)
    row.attempts, row.last_at, row.latency_ms = row.attempts + 1, now, attempt.latency_ms
    row.last_status, row.delivered_at = attempt.status, now if done else None
    row.last_error = attempt.outcome.reason if isinstance(attempt.outcome, Dead | Retry) else None
    row.save(update_fields=["attempts", "last_at", "latency_ms", "last_status", "last_error", "delivered_at"])
    endpoint = Endpoint.objects.filter(id=job.endpoint_id)
    if done:
        if job.failing_since is not None:
            endpoint.update(failing_since=None)
    elif attempt.status == 410:
        disable(tenant=tenant, endpoint_id=job.endpoint_id, reason="gone", now=now)
    elif job.failing_since is None:
        endpoint.filter(failing_since__isnull=True).update(failing_since=now)
    elif now - job.failing_since >= timedelta(days=settings.WEBHOOK_FAILING_DAYS):
        disable(tenant=tenant, endpoint_id=job.endpoint_id, reason="failing", now=now)


def disable(*, tenant: UUID, endpoint_id: UUID, reason: str, now: datetime) -> None:
    """Switch an endpoint off and tell those who can mend it. One that is off already stays as it is."""
    row = Endpoint.objects.select_for_update().filter(id=endpoint_id, status="active").first()
    if row is None:
        return
    row.status, row.disabled_reason = "disabled", reason
    row.save(update_fields=["status", "disabled_reason"])
    audit_ops.record(
        tenant=tenant, actor=actors.system("webhooks"), action="webhook.disabled", target_kind="webhook", target_id=row.id,
        content={"reason": reason}, now=now,
    )  # fmt: skip
    slug = tenancy_queries.get_tenant(tenant=tenant).slug
    why = _("It answered 410 Gone: it wants no more requests.")
    if reason == "failing":
        why = _("No request got through for days.")
    tell(
        tenant=tenant,
        kind=kinds.DISABLED,
        to=queries.members_who_may(tenant=tenant, action="webhooks:write"),
        subject=_("A webhook was switched off"),
        # The host alone: the rest of an address may hold a secret.
        lines=[queries.endpoint_row(row).host, why, _("What was not delivered is kept and can be sent again.")],
        link=f"/t/{slug}/webhooks/{row.id}/",
        data={"endpoint": str(row.id), "reason": reason},
        now=now,
    )
