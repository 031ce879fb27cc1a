"""Artifacts as their users see them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from django.db.models import Exists, OuterRef, Q, QuerySet

from kernel.errors import DomainError, NotFound
from privacy import codec, keys
from privacy.keys import DataKey
from runs.models import Artifact, ArtifactReference
from tenancy.queries import Principal

LABEL = b"artifact"


class ArtifactNotReady(DomainError):
    """It is being uploaded or scanned; nothing can be read before the scan's verdict."""

    code = "artifact_not_ready"
    status = 409
    title = "This artifact is not ready"


class ArtifactInfected(DomainError):
    code = "artifact_infected"
    status = 410
    title = "This artifact was found to be malware and was destroyed"


class ArtifactGone(DomainError):
    """It was never uploaded, or its content was lost."""

    code = "artifact_gone"
    status = 410
    title = "This artifact has no content"


class Meta(msgspec.Struct):
    """What a client said of an artifact; stored sealed."""

    name: str
    media_type: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """`expires_at`: when it goes by itself unless something refers to it. `scan`: the verdict, None before it."""

    id: UUID
    run_id: UUID | None
    name: str
    media_type: str
    size: int
    sha256: str
    status: str
    scan: str | None
    scanner: str | None
    created_at: datetime
    ready_at: datetime | None
    expires_at: datetime | None
    referenced: bool


def get_artifact(*, tenant: UUID, principal: Principal, artifact_id: UUID) -> ArtifactRow:
    """An artifact that this key may see. The caller holds the tenant scope. Raises NotFound."""
    found = _rows(tenant, visible(principal).filter(id=artifact_id))
    if not found:
        raise NotFound("There is no such artifact.")
    return found[0]


def list_artifacts(*, tenant: UUID, run_id: UUID, cursor: UUID | None, limit: int) -> list[ArtifactRow]:
    """What was uploaded for a run or is referred to by it, in the order of ids after `cursor`; at most `limit`."""
    refers = ArtifactReference.objects.filter(run_id=run_id, artifact_id=OuterRef("id"))
    found = Artifact.objects.filter(Q(run_id=run_id) | Exists(refers)).exclude(status="deleted")
    if cursor is not None:
        found = found.filter(id__gt=cursor)
    return _rows(tenant, found.order_by("id")[:limit])


def visible(principal: Principal) -> "QuerySet[Artifact]":
    """The artifacts that a bound key may see; all others see the tenant's."""
    found = Artifact.objects.exclude(status="deleted")
    if principal.agent_id is not None:
        found = found.filter(agent_id=principal.agent_id)
    if principal.project_ids is not None:
        found = found.filter(project_id__in=principal.project_ids)
    return found


def require_readable(status: str | None) -> None:
    """Raise unless an artifact in this state can be downloaded: NotFound, ArtifactNotReady, ArtifactInfected, ArtifactGone."""
    match status:
        case "ready":
            return
        case "uploading" | "scanning":
            raise ArtifactNotReady(f"It is {status}.", extra={"artifact_status": status})
        case "infected":
            raise ArtifactInfected
        case "expired" | "failed":
            raise ArtifactGone(f"It is {status}.", extra={"artifact_status": status})
    raise NotFound("There is no such artifact.")


def open_meta(key: DataKey, artifact_id: UUID, blob: bytes) -> Meta:
    """Raises Corrupt."""
    opened = codec.unseal(key, context=artifact_id.bytes, label=LABEL, blob=blob)
    return msgspec.json.decode(opened.body, type=Meta)


def _rows(tenant: UUID, found: "Iterable[Artifact]") -> list[ArtifactRow]:
    stored = list(found)
    referenced = set(
        ArtifactReference.objects.filter(artifact_id__in=[row.id for row in stored]).values_list(
            "artifact_id", flat=True
        )
    )
    return [_row(tenant, row, row.id in referenced) for row in stored]


def _row(tenant: UUID, row: Artifact, referenced: bool) -> ArtifactRow:
    meta = open_meta(keys.data_key(tenant=tenant, key_id=row.data_key_id), row.id, bytes(row.meta_sealed))
    return ArtifactRow(
        id=row.id, run_id=row.run_id, name=meta.name, media_type=meta.media_type, size=row.size, sha256=meta.sha256,
        status=row.status, scan=row.verdict, scanner=row.scanner, created_at=row.created_at, ready_at=row.ready_at,
        expires_at=row.due_at if row.status in ("uploading", "ready") else None, referenced=referenced,
    )  # fmt: skip
