"""What is known of a data principal, and what must be kept."""

from collections.abc import Collection
from uuid import UUID

from django.db import connection

from kernel.errors import DomainError
from privacy import keys
from privacy.models import LegalHold, Subject


def ref_digest(*, tenant: UUID, ref: str) -> bytes:
    return keys.keyed_digest(tenant=tenant, label=b"subject", value=ref)


def get_subject(*, tenant: UUID, ref: str) -> Subject | None:
    return Subject.objects.filter(ref_digest=ref_digest(tenant=tenant, ref=ref)).first()


class Held(DomainError):
    """A legal hold stands against deleting this."""

    code = "legal_hold"
    status = 409
    title = "A legal hold stands against this"


def active_holds(*, tenant: UUID, targets: Collection[UUID]) -> list[LegalHold]:
    """The holds in force on any of the subjects, runs and projects named, the oldest first."""
    holds = LegalHold.objects.filter(target_id__in=list(targets), released_at__isnull=True)
    return list(holds.order_by("placed_at", "id"))


def require_no_hold(*, tenant: UUID, targets: Collection[UUID]) -> None:
    """Raise Held when a hold is in force on any target. To be called inside the deleting transaction.

    It takes a share of the lock that `operations.place_hold` takes whole: a hold placed meanwhile either is seen here, or
    waits until the deletion is over.
    """
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", [f"hold:{tenant}"])
    holds = active_holds(tenant=tenant, targets=targets)
    if holds:
        raise Held("It is kept until the hold is released.", extra={"holds": [str(hold.id) for hold in holds]})
