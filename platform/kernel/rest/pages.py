"""Cursor pages in a stable order: by id, which grows with time. A cursor is the id of the last row that was shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar
from uuid import UUID

import msgspec

Row = TypeVar("Row")


class PageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`cursor`: `next_cursor` of the page before."""

    cursor: UUID | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    next_cursor: UUID | None


def page(rows: Sequence[Row], *, query: PageQuery, key: Callable[[Row], UUID]) -> Page[Row]:
    """The page of a list that fits into memory, in the order of its ids."""
    ordered = sorted((row for row in rows if query.cursor is None or key(row) > query.cursor), key=key)
    shown = ordered[: query.limit]
    return Page(rows=shown, next_cursor=key(shown[-1]) if len(ordered) > len(shown) else None)
