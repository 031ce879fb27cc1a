"""Numbering what grew: the feed of a tenant goes on, so that its readers never miss and never repeat an event."""

from functools import partial
from typing import Final
from uuid import UUID

from django.db import transaction

from kernel import hints
from kernel.call import Call

# Gives positions to what grew since.
ADVANCE: Final = Call("runs_feed_advance", "uuid int4", "int8 bool")
_STRETCHES: Final = 1000


def advance_feed(*, tenant: UUID) -> int:
    """Bring the tenant's feed up to the logs; its last position."""
    more, head = True, 0
    while more:
        head, more = ADVANCE.one((tenant, _STRETCHES))
    return head


def log_hint(tenant: UUID, run_id: UUID) -> str:
    """The hint that says: this run's log grew. It is one for the tenant's feed, too."""
    return f"{feed_hint(tenant)}/{run_id}"


def feed_hint(tenant: UUID) -> str:
    return f"log:{tenant}"


def tell_grown(tenant: UUID, run_id: UUID) -> None:
    """Wake whoever reads the log live. Costs a look into a set when nobody does."""
    hints.publish_if_awaited(log_hint(tenant, run_id))


def tell_grown_at_commit(tenant: UUID, run_id: UUID) -> None:
    """The same, when the tenant scope of the caller ends."""
    transaction.on_commit(partial(tell_grown, tenant, run_id), robust=True)
