"""Whether anything changed, for pages that are followed: statuses and numbers only, nothing is decrypted."""

import hashlib
from typing import Final
from uuid import UUID

from django.db import connection
from django.db.models import Q

from approvals.queries import inbox
from approvals.queries.inbox import Filters
from kernel.errors import NotFound
from runs.queries.listing import decode_cursor

# What was said and done about requests; nothing of it is ever taken away, so its number says whether it is the same.
_NEWS: Final = """
select x.id, x.status, x.round,
       (select count(*) from approvals_activity a where a.tenant_id = x.tenant_id and a.request_id = x.id and a.kind <> 'viewed')
from approvals_request x where x.tenant_id = %s and x.id = any (%s) order by x.id
"""


def of_page(
    *, tenant: UUID, member: UUID, filters: Filters, cursor: str | None, limit: int, also: UUID | None = None
) -> str:  # fmt: skip
    """Changes when what `inbox.page` would show has changed. `also`: another request that the page shows."""
    rows = inbox.matching(tenant, member, filters)
    history = filters.view == "history"
    order = "opened_at" if history else "deadline_at"
    if cursor:
        moment, last = decode_cursor(cursor)
        past = "lt" if history else "gt"
        rows = rows.filter(Q(**{f"{order}__{past}": moment}) | Q(**{order: moment, f"id__{past}": last}))
    sign = "-" if history else ""
    shown = list(rows.order_by(f"{sign}{order}", f"{sign}id").values_list("id", flat=True)[: limit + 1])
    return _digest(tenant, shown + ([also] if also else []))


def of_request(*, tenant: UUID, request_id: UUID) -> str:
    """Changes when something happened to a request other than that somebody looked at it. Raises NotFound."""
    found = _news(tenant, [request_id])
    if not found:
        raise NotFound("There is no such request.")
    return _told([request_id], found)


def _digest(tenant: UUID, requests: list[UUID]) -> str:
    return _told(requests, _news(tenant, requests))


def _news(tenant: UUID, requests: list[UUID]) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(_NEWS, [tenant, requests])
        return list(cursor.fetchall())


def _told(requests: list[UUID], found: list[tuple[object, ...]]) -> str:
    return hashlib.sha256(repr((requests, found)).encode()).hexdigest()[:24]


def total(*, tenant: UUID, member: UUID, filters: Filters) -> int:
    """How many requests there are, exactly."""
    return inbox.matching(tenant, member, filters).count()
