"""Making data principals known, and legal holds."""

from datetime import date, datetime
from uuid import UUID

from django.db import connection

from audit import operations as audit_ops
from kernel import ids, ports
from kernel.actor import Actor
from kernel.errors import DomainError, NotFound
from privacy import codec, keys, queries
from privacy.models import HoldKind, LegalHold, Subject


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


def place_hold(
    *, tenant: UUID, kind: HoldKind, target_id: UUID, reason: str, review_on: date, actor: Actor, now: datetime
) -> LegalHold:
    """Keep a subject, run or project from every deletion until released. The caller holds the tenant scope."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"hold:{tenant}"])
    hold = LegalHold(kind=kind, target_id=target_id, review_on=review_on, placed_at=now)
    hold.reason_sealed = ports.codec().seal(tenant=tenant, context=hold.id.bytes, plaintext=reason.encode())
    hold.save(force_insert=True)
    content = {"kind": kind.value, "target": str(target_id), "reason": reason, "review_on": review_on.isoformat()}
    audit_ops.record(
        tenant=tenant,
        actor=actor,
        action="hold.placed",
        target_kind="hold",
        target_id=hold.id,
        content=content,
        now=now,
    )
    return hold


def release_hold(*, tenant: UUID, hold_id: UUID, reason: str, actor: Actor, now: datetime) -> None:
    """End a hold; what it deferred may go on. Releasing a released hold changes nothing. Raises NotFound."""
    hold = LegalHold.objects.select_for_update().filter(id=hold_id).first()
    if hold is None:
        raise NotFound("There is no such hold.")
    if hold.released_at is None:
        hold.released_at = now
        hold.save(update_fields=["released_at"])
        content = {"target": str(hold.target_id), "reason": reason}
        audit_ops.record(
            tenant=tenant,
            actor=actor,
            action="hold.released",
            target_kind="hold",
            target_id=hold_id,
            content=content,
            now=now,
        )
