"""Announcing, referring to and deleting artifacts. Their bytes travel by signed addresses (runs.operations.transfers)."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection

from audit import operations as audit_ops
from kernel import ids
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, Invalid, NotFound
from privacy import codec, guard, keys
from privacy import queries as privacy
from privacy.keys import DataKey
from privacy.models import Subject
from privacy.operations import SubjectErased
from runs import addresses, media, sealing
from runs.addresses import Address
from runs.models import Artifact, ArtifactReference, Run
from runs.queries import artifacts as queries
from runs.queries.artifacts import LABEL, ArtifactRow, Meta
from runs.scanner import max_bytes
from tenancy.models import Project
from tenancy.queries import Principal

# How long an announced artifact waits for its upload, and a ready one for something that refers to it.
GRACE: Final = timedelta(hours=24)
# Refers to an artifact from a run's log.
ATTACH: Final = "select * from runs_attach(%s, %s, %s, %s, %s, %s, %s)"


class ArtifactTooLarge(DomainError):
    code = "artifact_too_large"
    status = 413
    title = "This artifact is too large"


class AlreadyUploaded(DomainError):
    """Its content is there, or it is over: an address is good for one upload."""

    code = "artifact_uploaded"
    status = 409
    title = "This artifact takes no upload any more"


class ArtifactReferenced(DomainError):
    code = "artifact_referenced"
    status = 409
    title = "A run refers to this artifact"


class OtherSubject(DomainError):
    """An artifact of one data principal is not put into the log of another's run: erasing one would tear the other."""

    code = "other_subject"
    status = 409
    title = "The artifact and the run belong to different subjects"


def create_artifact(
    *,
    tenant: UUID,
    principal: Principal,
    meta: Meta,
    size: int,
    run_id: UUID | None,
    project: str | None,
    now: datetime,
) -> UUID:
    """Announce an artifact; its upload is due within a day. With a run it belongs to the run's subject.

    The caller holds the tenant scope. Raises Invalid, ArtifactTooLarge, MediaTypeRefused, CredentialRefused,
    SubjectErased, NotFound.
    """
    reason = media.name_error(meta.name)
    if reason is not None:
        raise Invalid(reason, fields=(FieldError("/name", "invalid_name", reason),))
    limit = max_bytes()
    if size > limit:
        field = FieldError("/size", "artifact_too_large", f"An artifact may have at most {limit} bytes.", limit)
        raise ArtifactTooLarge(field.message, fields=(field,), extra={"limit": limit})
    media.check_declared(
        meta.media_type, allowed=settings.ARTIFACT_TYPES_ALLOWED, denied=settings.ARTIFACT_TYPES_DENIED
    )
    body = msgspec.json.encode(meta)
    guard.inspect(body)
    artifact = Artifact(id=ids.uuid7(), size=size, status="uploading", created_at=now, due_at=now + GRACE)
    if run_id is not None:
        _of_run(artifact, principal, run_id, project)
    else:
        _of_project(artifact, tenant, principal, project)
    key = keys.data_key(tenant=tenant, key_id=artifact.data_key_id)
    artifact.content_digest = content_digest(key, meta.sha256)
    artifact.meta_sealed = codec.seal(key, context=artifact.id.bytes, label=LABEL, body=body).blob
    artifact.save(force_insert=True)
    return artifact.id


def content_digest(key: DataKey, sha256: str) -> bytes:
    """By which the same content is found again. It is keyed with the data key: nobody else can compute it from a guess."""
    return key.derive(b"smriti:content:v1\0" + bytes.fromhex(sha256))


def upload_address(*, tenant: UUID, principal: Principal, artifact_id: UUID, now: datetime) -> Address:
    """Where to PUT the content. Raises NotFound, AlreadyUploaded."""
    found = queries.get_artifact(tenant=tenant, principal=principal, artifact_id=artifact_id)
    if found.status != "uploading":
        raise AlreadyUploaded(f"It is {found.status}.", extra={"artifact_status": found.status})
    return addresses.sign(method="PUT", tenant=tenant, artifact_id=artifact_id, now=now)


def download_address(*, tenant: UUID, principal: Principal, artifact_id: UUID, now: datetime) -> Address:
    """Where to GET the content. Raises NotFound, ArtifactNotReady, ArtifactInfected, ArtifactGone."""
    found = queries.get_artifact(tenant=tenant, principal=principal, artifact_id=artifact_id)
    queries.require_readable(found.status)
    return addresses.sign(method="GET", tenant=tenant, artifact_id=artifact_id, now=now)


def attach_artifact(*, tenant: UUID, principal: Principal, artifact_id: UUID, run_id: UUID, actor: Actor) -> int:
    """Refer to an artifact from a run, which keeps it as long as the run; the sequence number in the run's log.

    Repeating it changes nothing. The caller holds the tenant scope. Raises NotFound, ArtifactNotReady, OtherSubject.
    """
    found = queries.get_artifact(tenant=tenant, principal=principal, artifact_id=artifact_id)
    run_key = Run.objects.filter(id=run_id).values_list("data_key_id", flat=True).first()
    if run_key is None:
        raise NotFound("There is no such run.")
    sealed = attached_event(keys.data_key(tenant=tenant, key_id=run_key), run_id, found)
    params = [tenant, artifact_id, run_id, actor.kind, actor.id, sealed.blob, sealed.commitment]
    with connection.cursor() as cursor:
        cursor.execute(ATTACH, params)
        code, seq = cursor.fetchone()
    if code == "other_subject":
        raise OtherSubject
    if code != "ok":
        queries.require_readable(code)
    return int(seq)


def attached_event(key: DataKey, run_id: UUID, found: "ArtifactRow | Attached") -> codec.Sealed:
    text = {
        "id": str(found.id), "name": found.name, "media_type": found.media_type, "size": found.size, "sha256": found.sha256,
    }  # fmt: skip
    return sealing.seal_event(key, run_id, sealing.members(artifact=msgspec.json.encode(text)))


class Attached(msgspec.Struct):
    """What an event says of an artifact."""

    id: UUID
    name: str
    media_type: str
    size: int
    sha256: str


def delete_artifact(*, tenant: UUID, principal: Principal, artifact_id: UUID, actor: Actor, now: datetime) -> None:
    """Delete an artifact that nothing refers to; its bytes go with the next sweep.

    The caller holds the tenant scope. Raises NotFound, ArtifactReferenced, Held.
    """
    found = queries.visible(principal).filter(id=artifact_id).select_for_update(no_key=True).first()
    if found is None:
        raise NotFound("There is no such artifact.")
    if ArtifactReference.objects.filter(artifact_id=artifact_id).exists():
        raise ArtifactReferenced("It is kept as long as the run is.")
    retire(tenant=tenant, artifact=found, actor=actor, action="artifact.deleted", now=now)


def retire(*, tenant: UUID, artifact: Artifact, actor: Actor, action: str, now: datetime) -> None:
    """Turn a locked row into a tombstone, unless a hold stands against it; the sweep removes the object. Raises Held."""
    targets = [target for target in (artifact.subject_id, artifact.run_id, artifact.project_id) if target is not None]
    privacy.require_no_hold(tenant=tenant, targets=targets)
    artifact.status, artifact.due_at = "deleted", now
    artifact.save(update_fields=["status", "due_at"])
    audit_ops.record(
        tenant=tenant, actor=actor, action=action, target_kind="artifact", target_id=artifact.id,
        content={"size": artifact.size}, now=now,
    )  # fmt: skip


def _of_run(artifact: Artifact, principal: Principal, run_id: UUID, project: str | None) -> None:
    if project is not None:
        message = "Name the run or the project: an artifact of a run is in the run's project."
        raise Invalid(message, fields=(FieldError("/project", "invalid", message),))
    runs = Run.objects.filter(id=run_id)
    if principal.agent_id is not None:
        runs = runs.filter(agent_id=principal.agent_id)
    if principal.project_ids is not None:
        runs = runs.filter(project_id__in=principal.project_ids)
    run = runs.first()
    if run is None:
        raise NotFound("There is no such run.")
    if run.subject_id is not None and Subject.objects.filter(id=run.subject_id, erased_at__isnull=False).exists():
        raise SubjectErased("Nothing new is stored for it.")
    artifact.run_id, artifact.project_id, artifact.agent_id = run.id, run.project_id, run.agent_id
    artifact.subject_id, artifact.data_key_id = run.subject_id, run.data_key_id


def _of_project(artifact: Artifact, tenant: UUID, principal: Principal, project: str | None) -> None:
    projects = Project.objects.all()
    if principal.project_ids is not None:
        projects = projects.filter(id__in=principal.project_ids)
    if project is not None:
        projects = projects.filter(slug=project)
    found = list(projects.order_by("created_at", "id").values_list("id", flat=True)[:2])
    if len(found) != 1:
        message = "Name the project: there is more than one." if found else "There is no such project."
        raise Invalid(message, fields=(FieldError("/project", "invalid", message),))
    artifact.project_id, artifact.agent_id, artifact.data_key_id = found[0], principal.agent_id, tenant
