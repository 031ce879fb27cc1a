"""Objects as files, each written beside its place, synced, and then put there in one step."""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import IO
from uuid import UUID

from django.core.files.storage import FileSystemStorage

from runs.storage.port import PAGE, ObjectMissing, Reader, Writer, ids


class Folder:
    def __init__(self, backend: FileSystemStorage) -> None:
        self._root = Path(backend.location)

    def create(self, tenant: UUID, object_id: UUID) -> Writer:
        return _File(self._path(tenant, object_id))

    def open(self, tenant: UUID, object_id: UUID, *, offset: int, length: int) -> Reader:
        try:
            file = self._path(tenant, object_id).open("rb")
        except FileNotFoundError as error:
            raise ObjectMissing from error
        file.seek(offset)
        return file

    def remove(self, tenant: UUID, object_id: UUID) -> None:
        self._path(tenant, object_id).unlink(missing_ok=True)

    def exists(self, tenant: UUID, object_id: UUID) -> bool:
        return self._path(tenant, object_id).exists()

    def page(self, tenant: UUID, after: UUID | None) -> list[UUID]:
        try:
            names = os.listdir(self._root / tenant.hex)
        except FileNotFoundError:
            return []
        return [found for found in ids(names) if after is None or found > after][:PAGE]

    def tenants(self) -> list[UUID]:
        return ids(os.listdir(self._root)) if self._root.exists() else []

    def abandon(self, *, older_than: float) -> int:
        count = 0
        for path in self._root.glob("*/.*.part"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - older_than:
                    path.unlink()
                    count += 1
        return count

    def _path(self, tenant: UUID, object_id: UUID) -> Path:
        return self._root / tenant.hex / object_id.hex


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self._file: IO[bytes] = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 0)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def finish(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._part, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def abort(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)
