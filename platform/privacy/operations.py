"""Making data principals known."""

from datetime import datetime
from uuid import UUID

from kernel import ids
from kernel.errors import DomainError
from privacy import codec, keys, queries
from privacy.models import Subject


class SubjectErased(DomainError):
    """The tombstone: nothing new is stored for an erased subject under the old relationship."""

    code = "subject_erased"
    status = 410
    title = "This subject was erased"


def ensure_subject(*, tenant: UUID, ref: str, now: datetime) -> Subject:
    """The subject with this reference, made known if it is new. The caller holds the tenant scope. Raises SubjectErased."""
    digest = queries.ref_digest(tenant=tenant, ref=ref)
    subject: Subject | None = Subject.objects.filter(ref_digest=digest).first()
    if subject is None:
        new_id, key_id = ids.uuid7(), ids.uuid7()
        key = keys.data_key(tenant=tenant, key_id=key_id)
        sealed = codec.seal(key, context=new_id.bytes, label=b"subject", body=ref.encode()).blob
        Subject.objects.bulk_create(
            [Subject(id=new_id, ref_digest=digest, ref_sealed=sealed, key_id=key_id, created_at=now)],
            ignore_conflicts=True,
        )
        subject = Subject.objects.get(ref_digest=digest)
    if subject.erased_at is not None:
        raise SubjectErased("It was erased; a new relationship needs a new reference.")
    return subject
