"""Objects in a bucket, written as multipart uploads, which become visible whole."""

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from botocore.exceptions import BotoCoreError, ClientError

from kernel.errors import Unavailable
from runs.storage.port import PAGE, ObjectMissing, Reader, Writer, ids

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

PART: Final = 8 * 1024 * 1024  # bytes of a part of a multipart upload; 10,000 parts are 80 GB


def reaching(work: Callable[P, T]) -> Callable[P, T]:
    """A store that is away, or refuses us, is a part of the platform that cannot answer now."""

    @wraps(work)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except (BotoCoreError, ClientError) as error:
            logger.warning("store_unavailable", exc_info=error)
            raise Unavailable from error

    return wrapped


class Bucket:
    def __init__(self, backend: Any) -> None:
        self._client: Any = backend.bucket.meta.client
        self._bucket: str = backend.bucket_name

    def create(self, tenant: UUID, object_id: UUID) -> Writer:
        return _Multipart(self._client, self._bucket, _key(tenant, object_id))

    @reaching
    def open(self, tenant: UUID, object_id: UUID, *, offset: int, length: int) -> Reader:
        span = f"bytes={offset}-{offset + length - 1}"
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=_key(tenant, object_id), Range=span)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404", "InvalidRange"):
                raise ObjectMissing from error
            raise
        return _Body(answer["Body"])

    @reaching
    def remove(self, tenant: UUID, object_id: UUID) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=_key(tenant, object_id))

    @reaching
    def exists(self, tenant: UUID, object_id: UUID) -> bool:
        try:
            self._client.head_object(Bucket=self._bucket, Key=_key(tenant, object_id))
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return False
            raise
        return True

    @reaching
    def page(self, tenant: UUID, after: UUID | None) -> list[UUID]:
        prefix = f"{tenant.hex}/"
        behind = prefix if after is None else _key(tenant, after)
        while True:
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, StartAfter=behind, MaxKeys=PAGE)
            names = [item["Key"] for item in answer.get("Contents", ())]
            found = ids(name.removeprefix(prefix) for name in names)
            if found or not answer["IsTruncated"]:
                return found
            behind = names[-1]

    @reaching
    def tenants(self) -> list[UUID]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Delimiter="/")
        return ids([item["Prefix"].rstrip("/") for page in pages for item in page.get("CommonPrefixes", ())])

    @reaching
    def abandon(self, *, older_than: float) -> int:
        count = 0
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket):
            for upload in page.get("Uploads", ()):
                if upload["Initiated"].timestamp() < time.time() - older_than:
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    count += 1
        return count


def _key(tenant: UUID, object_id: UUID) -> str:
    return f"{tenant.hex}/{object_id.hex}"


class _Body:
    def __init__(self, body: Any) -> None:
        self._body = body

    @reaching
    def read(self, size: int) -> bytes:
        """The body may answer less than was asked for, in the middle too."""
        parts, missing = [], size
        while missing and (part := self._body.read(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._body.close()


class _Multipart:
    """Small objects are put at once; from PART on, part by part."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._place = {"Bucket": bucket, "Key": key}
        self._buffer = bytearray()
        self._upload: dict[str, str] | None = None
        self._parts: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= PART:
            self._send(bytes(self._buffer[:PART]))
            del self._buffer[:PART]

    @reaching
    def _send(self, part: bytes) -> None:
        if self._upload is None:
            answer = self._client.create_multipart_upload(**self._place)
            self._upload = {**self._place, "UploadId": answer["UploadId"]}
        number = len(self._parts) + 1
        answer = self._client.upload_part(**self._upload, PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    @reaching
    def finish(self) -> None:
        if self._upload is None:
            self._client.put_object(**self._place, Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send(bytes(self._buffer))
        self._client.complete_multipart_upload(**self._upload, MultipartUpload={"Parts": self._parts})
        self._upload = None

    @reaching
    def abort(self) -> None:
        if self._upload is not None:
            self._client.abort_multipart_upload(**self._upload)
