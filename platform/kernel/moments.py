"""Times that clients send. What cannot be kept exactly is refused: digits below the microsecond, years that the digests' 53-bit
count of microseconds or a calendar cannot hold, times without a zone.
"""

import re
from datetime import UTC, datetime
from typing import Any, Final

EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_FORM: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.(\d+))?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


class _IsDatetime(type):
    """Lets a plain datetime pass for a Moment, so that only the annotation is special and never a value."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


class Moment(datetime, metaclass=_IsDatetime):
    """In a `msgspec.Struct`: an RFC 3339 time with a zone, to the microsecond, between 1900 and 2200. Decodes to a datetime."""


def decode(kind: type[Any], value: Any) -> Any:
    """msgspec's `dec_hook`."""
    if kind is not Moment:
        raise NotImplementedError(f"no way to decode {kind}")
    return parse(value)


def schema(kind: type[Any]) -> dict[str, Any]:
    """msgspec's `schema_hook`."""
    if kind is not Moment:
        raise NotImplementedError(f"no schema of {kind}")
    return {"type": "string", "format": "date-time"}


def parse(value: object) -> datetime:
    """The time, in UTC. Raises ValueError with a sentence that `kernel.typed` knows."""
    if not isinstance(value, str):
        raise ValueError("Invalid time")
    match = _FORM.fullmatch(value)
    if match is None:
        raise ValueError("Invalid time")
    if len(match[1] or "") > 6:
        raise ValueError("Time too precise")
    try:
        found = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("Invalid time") from None
    if not EARLIEST <= found < LATEST:
        raise ValueError("Time out of range")
    return found
