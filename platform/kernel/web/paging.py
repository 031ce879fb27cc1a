"""Links that keep the filters of a page: the address is the whole state of a list."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

from django.http import QueryDict
from django.utils.dateparse import parse_date


def link(path: str, query: QueryDict, *, without: Iterable[str] = (), **changes: Any) -> str:
    """`path` with the query of the page, some parameters dropped and some replaced (None drops)."""
    new = query.copy()
    for name in [*without, *changes]:
        new.pop(name, None)
    for name, value in changes.items():
        if value is not None:
            new[name] = str(value)
    encoded = new.urlencode()
    return f"{path}?{encoded}" if encoded else path


def without_value(path: str, query: QueryDict, name: str, value: str) -> str:
    """`path` with one of several values of a parameter dropped, and the cursor with it: it belongs to the old list."""
    new = query.copy()
    new.setlist(name, [kept for kept in new.getlist(name) if kept != value])
    new.pop("cursor", None)
    encoded = new.urlencode()
    return f"{path}?{encoded}" if encoded else path


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter in force, with the address of the same list without it."""

    label: str
    value: str
    remove: str


@dataclass(frozen=True, slots=True)
class Pager:
    """`shown` of `total`; `capped`: there are at least `total`. `older` and `newest` are addresses, empty when there is none."""

    shown: int
    total: int | None
    capped: bool
    older: str
    newest: str


def pager(
    path: str, query: QueryDict, *, shown: int, total: int | None, next_cursor: str | None, capped: bool = False
) -> Pager:
    older = link(path, query, cursor=next_cursor) if next_cursor else ""
    newest = link(path, query, without=["cursor"]) if query.get("cursor") else ""
    return Pager(shown, total, capped, older, newest)


def clean(query: Mapping[str, str], name: str, limit: int = 200) -> str:
    """A text parameter without surrounding blanks; one that no stored value can equal counts as absent."""
    value = query.get(name, "").strip()
    return value if len(value) <= limit and "\x00" not in value else ""


def day(value: str, zone: tzinfo, *, after: bool = False) -> datetime | None:
    """The first moment of a date (or of the day after it) in the reader's zone; what is no date counts as absent."""
    try:
        date = parse_date(value)
        if date is None:
            return None
        return datetime.combine(date + timedelta(days=1) if after else date, time.min, zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
