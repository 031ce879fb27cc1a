"""Putting a notice into the outbox, in the transaction that decided what it tells of.

Invariant: a notice is one message for each endpoint that takes its kind and for each member who wants it by e-mail; a link in it
leads to a page and decides nothing.
"""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.conf import settings
from django.utils import translation

from kernel import codec, ids
from kernel.outbox import operations as outbox_ops
from notices import kinds, queries, sealing
from notices.models import Delivery, Endpoint
from notices.operations import mail

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

TOPIC: Final = "notices.webhook"
MAX_DATA: Final = 256 * 1024  # bytes of a webhook's body
MAX_LINES: Final = 40
MAX_LINE: Final = 2000  # characters
MAX_SUBJECT: Final = 200
# Kept although they are invisible: scripts of India join letters with them.
_JOINERS: Final = frozenset("\u200c\u200d")


def tell(
    *,
    tenant: UUID,
    kind: str,
    to: Collection[UUID] | None,
    subject: "str | _StrPromise",
    lines: "Sequence[str | _StrPromise]",
    link: str,
    data: Mapping[str, Any],
    now: datetime,
) -> UUID:
    """Tell of something; the notice's id.

    `to`: members who may get an e-mail, or None: webhooks only. `subject` and `lines` are text, not markup; lazily translated ones
    are read in each member's language. `link`: a page of ours, such as `/t/acme/runs/…/`. `data`: JSON for webhooks. Raises
    KeyError for a kind that is not registered.
    """
    title = kinds.get(kind).title
    link = link.removeprefix(settings.BASE_URL)
    if not link.startswith("/") or link.startswith("//"):
        raise ValueError("a notice links to a path of ours")
    notice_id = ids.uuid7()
    taking = [
        row for row in Endpoint.objects.filter(status="active").order_by("id") if not row.kinds or kind in row.kinds
    ]
    if taking:
        body = payload(kind=kind, data=data, now=now)
        for endpoint in taking:
            send(tenant=tenant, endpoint_id=endpoint.id, notice_id=notice_id, kind=kind, body=body, now=now)
    for member_id, language in queries.mailed_to(tenant=tenant, members=list(to), kind=kind) if to else []:
        with translation.override(language):
            letter = {
                "member": str(member_id),
                "kind": kind,
                "language": language,
                "subject": plain(str(subject), MAX_SUBJECT) or str(title),
                "lines": [plain(str(line), MAX_LINE) for line in lines[:MAX_LINES]],
                "link": link,
            }
        outbox_ops.enqueue(
            tenant=tenant, topic=mail.TOPIC, body=letter, ordering=None, dedup=f"{notice_id}:{member_id}", now=now
        )
    return notice_id


def payload(*, kind: str, data: Mapping[str, Any], now: datetime) -> bytes:
    """The body of a webhook, as Standard Webhooks has it."""
    stamp = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = codec.canonical({"type": kind, "timestamp": stamp, "data": dict(data)})
    if len(body) > MAX_DATA:
        raise ValueError(f"a notice has at most {MAX_DATA} bytes")
    return body


def send(*, tenant: UUID, endpoint_id: UUID, notice_id: UUID, kind: str, body: bytes, now: datetime) -> UUID:
    """Have a notice sent to an endpoint; the delivery's id."""
    delivery_id = ids.uuid7()
    message_id = enqueue(tenant=tenant, delivery_id=delivery_id, sending=1, now=now)
    Delivery(
        id=delivery_id,
        endpoint_id=endpoint_id,
        notice_id=notice_id,
        kind=kind,
        body=sealing.seal(tenant=tenant, row=delivery_id, column="body", plaintext=body),
        message_id=message_id,
        sendings=1,
        attempts=0,
        created_at=now,
    ).save(force_insert=True)
    return delivery_id


def enqueue(*, tenant: UUID, delivery_id: UUID, sending: int, now: datetime) -> UUID:
    """Put a delivery into the outbox; the message's id. No order: a receiver that is down holds up nothing but itself."""
    return outbox_ops.enqueue(
        tenant=tenant, topic=TOPIC, body={"delivery": str(delivery_id)}, ordering=None,
        dedup=f"{delivery_id}:{sending}", now=now,
    )  # fmt: skip


def plain(text: str, limit: int) -> str:
    """One line without what could end it, hide in it, or turn its direction."""
    shown = "".join(
        " " if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign not in _JOINERS else sign
        for sign in text[: 4 * limit]
    )
    line = " ".join(shown.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
