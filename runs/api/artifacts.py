"""Artifacts over REST. Their bytes go through signed addresses (runs.api.content)."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Struct

from kernel.errors import NotFound
from kernel.rest.pages import PageQuery
from kernel.rest.views import ApiView, Context, Created, endpoint
from privacy.guard import CredentialRefused
from privacy.operations import SubjectErased
from privacy.queries import Held
from runs import media, operations, queries
from runs.addresses import Address
from runs.operations.artifacts import AlreadyUploaded, ArtifactReferenced, ArtifactTooLarge, OtherSubject
from runs.queries import artifacts
from runs.queries.artifacts import ArtifactGone, ArtifactInfected, ArtifactNotReady
from runs.states import ARTIFACT_MOVES
from runs.wire import Identifier

Status = Literal["uploading", "scanning", "ready", "infected", "failed", "expired", "deleted"]
assert set(ARTIFACT_MOVES) == set(Status.__args__)  # type: ignore[attr-defined]


class ArtifactIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`run_id`: the run that it belongs to; else `project`, which may be left out when the key can see only one."""

    name: Annotated[str, Meta(min_length=1, max_length=media.MAX_NAME)]
    media_type: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}\Z", max_length=129)]
    size: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    run_id: UUID | None = None
    project: Identifier | None = None


class Transfer(Struct):
    """Call `url` with `method` before `expires_at`. No API key is needed: keep the address to yourself. It is null in a replay."""

    url: str | None
    method: Literal["PUT", "GET"]
    headers: dict[str, str]
    expires_at: datetime


class ArtifactCreated(Struct):
    id: UUID
    upload: Transfer | None


class ArtifactAnswer(Struct):
    """`scan`: the verdict, null before it; `unscanned` where no scanner is set up. `expires_at`: when it goes by itself, unless
    something refers to it."""

    id: UUID
    run_id: UUID | None
    name: str
    media_type: str
    size: int
    sha256: str
    status: Status
    scan: Literal["clean", "infected", "unscanned"] | None
    scanner: str | None
    created_at: datetime
    ready_at: datetime | None
    expires_at: datetime | None
    referenced: bool


class ArtifactPage(Struct):
    items: list[ArtifactAnswer]
    next_cursor: UUID | None


class AttachIn(Struct, forbid_unknown_fields=True):
    artifact_id: UUID


class Attached(Struct):
    """Where the run's log refers to it."""

    seq: int


class Artifacts(ApiView):
    @endpoint(
        summary="Announce an artifact", scope="artifacts:write", body=ArtifactIn, answer=ArtifactCreated, status=201,
        secrets=("upload",), problems=(NotFound, ArtifactTooLarge, media.MediaTypeRefused, CredentialRefused, SubjectErased),
    )  # fmt: skip
    def post(self, call: Context) -> Any:
        """The answer says where to send the content. What is not uploaded within a day, or not referred to by a run then, goes."""
        body: ArtifactIn = call.body
        created = operations.create_artifact(
            tenant=call.tenant, principal=call.principal, size=body.size, run_id=body.run_id, project=body.project, now=call.now,
            meta=artifacts.Meta(name=body.name, media_type=body.media_type, sha256=body.sha256),
        )  # fmt: skip
        address = operations.upload_address(
            tenant=call.tenant, principal=call.principal, artifact_id=created, now=call.now
        )
        return Created(ArtifactCreated(created, _transfer("PUT", address)), f"/api/v1/artifacts/{created}")


class ArtifactView(ApiView):
    @endpoint(summary="Read about an artifact", scope="artifacts:read", answer=ArtifactAnswer)
    def get(self, call: Context, artifact_id: UUID) -> Any:
        """What it is, whether it can be read, and what the scanner said."""
        return queries.get_artifact(tenant=call.tenant, principal=call.principal, artifact_id=artifact_id)

    @endpoint(
        summary="Delete an artifact",
        scope="artifacts:write",
        answer=None,
        status=204,
        problems=(ArtifactReferenced, Held),
    )
    def delete(self, call: Context, artifact_id: UUID) -> None:
        """Only what no run refers to."""
        operations.delete_artifact(
            tenant=call.tenant, principal=call.principal, artifact_id=artifact_id, actor=call.actor, now=call.now
        )


class UploadAddress(ApiView):
    @endpoint(
        summary="Ask where to upload",
        scope="artifacts:write",
        answer=Transfer,
        secrets=("url",),
        problems=(AlreadyUploaded,),
    )
    def post(self, call: Context, artifact_id: UUID) -> Any:
        """A new address for an artifact that is not uploaded yet, when the first one has expired or its answer was lost."""
        address = operations.upload_address(
            tenant=call.tenant, principal=call.principal, artifact_id=artifact_id, now=call.now
        )
        return _transfer("PUT", address)


class DownloadAddress(ApiView):
    @endpoint(
        summary="Ask where to download", scope="artifacts:read", answer=Transfer, secrets=("url",),
        problems=(ArtifactNotReady, ArtifactInfected, ArtifactGone),
    )  # fmt: skip
    def post(self, call: Context, artifact_id: UUID) -> Any:
        """An address for minutes. It takes ranges, so an interrupted download can go on."""
        address = operations.download_address(
            tenant=call.tenant, principal=call.principal, artifact_id=artifact_id, now=call.now
        )
        return _transfer("GET", address)


class RunArtifacts(ApiView):
    @endpoint(summary="List a run's artifacts", scope="artifacts:read", query=PageQuery, answer=ArtifactPage)
    def get(self, call: Context, run_id: UUID) -> Any:
        """What was uploaded for the run, or is referred to by it; in order of creation."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        query: PageQuery = call.query
        rows = queries.list_artifacts(tenant=call.tenant, run_id=run_id, cursor=query.cursor, limit=query.limit + 1)
        shown = rows[: query.limit]
        return {"items": shown, "next_cursor": shown[-1].id if len(rows) > len(shown) else None}

    @endpoint(
        summary="Refer to an artifact from a run", scope="artifacts:write", body=AttachIn, answer=Attached,
        problems=(ArtifactNotReady, ArtifactInfected, ArtifactGone, OtherSubject),
    )  # fmt: skip
    def post(self, call: Context, run_id: UUID) -> Any:
        """It is kept as long as the run, and the log says so (`artifact_attached`). Repeating it changes nothing."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        seq = operations.attach_artifact(
            tenant=call.tenant,
            principal=call.principal,
            artifact_id=call.body.artifact_id,
            run_id=run_id,
            actor=call.actor,
        )
        return Attached(seq)


def _transfer(method: Literal["PUT", "GET"], address: Address) -> Transfer:
    return Transfer(url=address.url, method=method, headers={}, expires_at=address.expires_at)
