"""What a store of objects can do."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol
from uuid import UUID

PAGE: Final = 1000


class ObjectMissing(Exception):
    """There is no such object in the store."""


class Writer(Protocol):
    """An object in the making. Whoever does not finish it aborts it."""

    def write(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...


class Reader(Protocol):
    """`read` answers exactly that many bytes, fewer only at the end of what was asked for."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class ObjectStore(Protocol):
    def create(self, tenant: UUID, object_id: UUID) -> Writer: ...

    def open(self, tenant: UUID, object_id: UUID, *, offset: int, length: int) -> Reader:
        """Bytes from `offset`. Raises ObjectMissing."""

    def remove(self, tenant: UUID, object_id: UUID) -> None:
        """Removing what is not there changes nothing."""

    def exists(self, tenant: UUID, object_id: UUID) -> bool: ...

    def page(self, tenant: UUID, after: UUID | None) -> list[UUID]:
        """Objects of a tenant in order, those after `after`, at most PAGE; none when there are no more."""

    def tenants(self) -> list[UUID]: ...

    def abandon(self, *, older_than: float) -> int:
        """Remove what killed writers left, when it is older than so many seconds; how many."""


def ids(names: Iterable[str]) -> list[UUID]:
    """The names that are ours, as ids; anything else that lies there is not ours to touch."""
    found = []
    for name in names:
        with suppress(ValueError):
            value = UUID(hex=name)
            if value.hex == name:
                found.append(value)
    return sorted(found)
