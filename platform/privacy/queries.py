"""What is known of a data principal."""

from uuid import UUID

from privacy import keys
from privacy.models import Subject


def ref_digest(*, tenant: UUID, ref: str) -> bytes:
    return keys.keyed_digest(tenant=tenant, label=b"subject", value=ref)


def get_subject(*, tenant: UUID, ref: str) -> Subject | None:
    return Subject.objects.filter(ref_digest=ref_digest(tenant=tenant, ref=ref)).first()
