"""The bytes of artifacts on their way in and out, chunk by chunk, in memory that does not grow with their size.

An upload's object is written first and made the artifact's afterwards, in one step. Whatever is cut off between leaves an
object that nothing names; the sweep removes it. These calls block, and use the pool of kernel.pool, never a connection of Django's.
"""

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.conf import settings

from kernel import ids, jobs
from kernel.call import Call
from kernel.errors import DomainError, FieldError, NotFound
from kernel.ports import Corrupt
from privacy import keys, stream
from privacy.keys import DataKey
from privacy.operations import SubjectErased
from runs import media
from runs.operations.artifacts import AlreadyUploaded, Attached, attached_event
from runs.queries import artifacts as queries
from runs.queries.artifacts import Meta
from runs.scanner import Verdict
from runs.storage import ObjectMissing, ObjectStore, store

# What a transfer must know of an artifact.
ARTIFACT: Final = Call("runs_artifact", "uuid uuid", "text uuid uuid int8 bytea uuid", reads=True)
# Makes an object the content of an artifact.
STORED: Final = Call("runs_artifact_stored", "uuid uuid uuid", "text uuid")
# A verdict makes an artifact readable, and its run refer to it.
READY: Final = Call("runs_artifact_ready", "uuid uuid text text bytea bytea", "text")


class ContentMismatch(DomainError):
    """What came is not what was announced: another size or another digest. Nothing was kept; the address may be used again."""

    code = "content_mismatch"
    status = 422
    title = "The content is not what was announced"


class ArtifactUnreadable(DomainError):
    """The stored bytes are gone or do not open."""

    code = "artifact_unreadable"
    status = 409
    title = "This artifact cannot be read"


class Upload:
    """One upload, from the first byte to `finish` or `abort`. Raises NotFound, AlreadyUploaded, KeyShredded."""

    def __init__(self, *, tenant: UUID, artifact_id: UUID, announced: int | None) -> None:
        found = _find(tenant, artifact_id)
        if found.status != "uploading":
            raise AlreadyUploaded(f"It is {found.status}.", extra={"artifact_status": found.status})
        self.size, self.received = found.size, 0
        if announced is not None and announced != self.size:
            raise self._mismatch(f"{self.size} bytes were announced, not {announced}.")
        self._tenant, self._artifact, self._found = tenant, artifact_id, found
        self._object = ids.uuid7()
        self._sealer = stream.Sealer(found.key, self._object)
        self._digest = hashlib.sha256()
        self._beginning = b""
        self._checked = False
        self._store: ObjectStore = store()
        self._writer = self._store.create(tenant, self._object)

    def write(self, data: bytes) -> None:
        """Take a piece, of any size. Raises ContentMismatch, MediaTypeRefused; then `abort`."""
        self.received += len(data)
        if self.received > self.size:
            raise self._mismatch(f"More than the {self.size} bytes that were announced came.")
        if not self._checked:
            self._beginning += data[: media.SNIFFED]
            if len(self._beginning) >= media.SNIFFED:
                self._check_type()
        self._digest.update(data)
        self._writer.write(self._sealer.update(data))

    def finish(self) -> str:
        """Keep what came, if it is what was announced; the artifact's status, `scanning` or `ready`."""
        if self.received != self.size:
            raise self._mismatch(f"{self.size} bytes were announced and {self.received} came.")
        if not hmac.compare_digest(self._digest.hexdigest(), self._found.meta.sha256):
            raise self._mismatch("The SHA-256 is not the announced one.", path="sha256")
        if not self._checked:
            self._check_type()
        self._writer.write(self._sealer.finish())
        self._writer.finish()
        status, kept = STORED.one((self._tenant, self._artifact, self._object))
        if kept != self._object:
            self._store.remove(self._tenant, self._object)
        if status == "subject_erased":
            raise SubjectErased("Nothing new is stored for it.")
        if status != "uploading":
            raise AlreadyUploaded(f"It is {status}.", extra={"artifact_status": status})
        if not settings.CLAMD_URL:
            make_ready(tenant=self._tenant, artifact_id=self._artifact, verdict=Verdict("unscanned"))
            return "ready"
        jobs.send("runs.scan_artifact", tenant=self._tenant, artifact_id=self._artifact)
        return "scanning"

    def abort(self) -> None:
        """Throw away what came."""
        self._writer.abort()

    def _check_type(self) -> None:
        media.check_content(self._found.meta.media_type, self._beginning)
        self._checked = True

    @staticmethod
    def _mismatch(message: str, path: str = "size") -> ContentMismatch:
        return ContentMismatch(message, fields=(FieldError(f"/{path}", "content_mismatch", message),))


class Download:
    """A readable artifact. Raises NotFound, ArtifactNotReady, ArtifactInfected, ArtifactGone, ArtifactUnreadable, KeyShredded."""

    def __init__(self, *, tenant: UUID, artifact_id: UUID) -> None:
        found = _find(tenant, artifact_id)
        queries.require_readable(found.status)
        self.name, self.media_type, self.size = found.meta.name, found.meta.media_type, found.size
        self._tenant, self._found = tenant, found

    def read(self, start: int, length: int) -> Iterator[bytes]:
        """A range of the content, in pieces of at most a chunk."""
        found = self._found
        assert found.object_id is not None
        return read(self._tenant, found.key, found.object_id, size=found.size, start=start, length=length)


def read(
    tenant: UUID, key: DataKey, object_id: UUID, *, size: int, start: int = 0, length: int | None = None
) -> Iterator[bytes]:
    """The plaintext of an object, chunk by chunk. Raises ArtifactUnreadable."""
    span = stream.span(size=size, start=start, length=size - start if length is None else length)
    source = store()
    try:
        with closing(source.open(tenant, object_id, offset=0, length=stream.HEADER)) as reader:
            header = reader.read(stream.HEADER)
        opener = stream.Opener(key, object_id, header=header, size=size, first=span.first)
        with closing(source.open(tenant, object_id, offset=span.offset, length=span.length)) as reader:
            skip, missing, left = span.skip, span.size, span.length
            while left > 0:
                stored = reader.read(opener.next_size)
                left -= len(stored)
                chunk = opener.open(stored)[skip : skip + missing]
                skip, missing = 0, missing - len(chunk)
                yield chunk
    except (ObjectMissing, Corrupt) as error:
        raise ArtifactUnreadable("The stored bytes are gone or damaged.") from error


def make_ready(*, tenant: UUID, artifact_id: UUID, verdict: Verdict) -> str | None:
    """A scanned artifact becomes readable, and the run it was uploaded for refers to it; the status it had."""
    found = _find(tenant, artifact_id)
    payload, commitment = None, None
    if found.run_id is not None:
        meta = found.meta
        said = Attached(artifact_id, meta.name, meta.media_type, found.size, meta.sha256)
        sealed = attached_event(found.key, found.run_id, said)
        payload, commitment = sealed.blob, sealed.commitment
    (status,) = READY.one((tenant, artifact_id, verdict.status, verdict.version, payload, commitment))
    return status  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Found:
    status: str
    key: DataKey
    object_id: UUID | None
    size: int
    meta: Meta
    run_id: UUID | None


def _find(tenant: UUID, artifact_id: UUID) -> _Found:
    status, key_id, object_id, size, meta, run_id = ARTIFACT.one((tenant, artifact_id))
    if status is None or status == "deleted":
        raise NotFound("There is no such artifact.")
    key = keys.data_key(tenant=tenant, key_id=key_id)
    try:
        return _Found(status, key, object_id, size, queries.open_meta(key, artifact_id, meta), run_id)
    except Corrupt as error:
        raise ArtifactUnreadable("What is stored of it does not open.") from error
