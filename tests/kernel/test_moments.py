"""Times come back as they were sent, or are refused."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import codec, moments
from kernel.errors import Invalid
from kernel.moments import Moment


class Timed(msgspec.Struct, forbid_unknown_fields=True):
    at: Moment | None = None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T09:30:00Z", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31T09:30:00.5z", "2026-01-31T09:30:00.500000+00:00"),
        ("2026-01-31t09:30:00.123456+05:30", "2026-01-31T04:00:00.123456+00:00"),
        ("2026-01-31 09:30:00-00:00", "2026-01-31T09:30:00+00:00"),
        ("1900-01-01T00:00:00Z", "1900-01-01T00:00:00+00:00"),
    ],
)
def test_takes_rfc_3339(text: str, expected: str) -> None:
    found = codec.decode_as(f'{{"at": "{text}"}}'.encode(), Timed, max_bytes=100).at
    assert type(found) is datetime
    assert found.isoformat() == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("2026-01-31T09:30:00", "wrong_format"),
        ("2026-01-31", "wrong_format"),
        ("2026-02-30T09:30:00Z", "wrong_format"),
        ("2026-01-31T09:30:60Z", "wrong_format"),
        ("2026-01-31T09:30:00+25:00", "wrong_format"),
        ("２026-01-31T09:30:00Z", "wrong_format"),
        ("2026-01-31T09:30:00Z\\n", "wrong_format"),
        ("", "wrong_format"),
        ("2026-01-31T09:30:00.1234567Z", "too_precise"),
        ("2026-01-31T09:30:00." + "1" * 10_000 + "Z", "too_precise"),
        ("0001-01-01T00:00:00+14:00", "wrong_format"),
        ("1899-12-31T23:59:59Z", "out_of_range"),
        ("2200-01-01T00:00:00Z", "out_of_range"),
        ("9999-12-31T23:59:59Z", "out_of_range"),
        ("9999-12-31T23:59:59-14:00", "wrong_format"),
    ],
)
def test_refuses_what_it_would_change_or_cannot_hold(text: str, code: str) -> None:
    with pytest.raises(Invalid) as caught:
        codec.decode_as(f'{{"at": "{text}"}}'.encode(), Timed, max_bytes=20_000)
    [field] = caught.value.fields
    assert (field.path, field.code) == ("/at", code)


@pytest.mark.parametrize("text", ["1", "true", "[]", "{}", "1.5"])
def test_refuses_what_is_no_text(text: str) -> None:
    with pytest.raises(Invalid, match="/at"):
        codec.decode_as(f'{{"at": {text}}}'.encode(), Timed, max_bytes=100)


@given(st.datetimes(datetime(1900, 1, 2), datetime(2199, 12, 31), timezones=st.timezones()))  # noqa: DTZ001  bounds are naive by contract
def test_every_time_comes_back(value: datetime) -> None:
    offset = value.utcoffset()
    if offset is None or offset.total_seconds() % 60:
        return
    assert moments.parse(value.isoformat()) == value.astimezone(UTC)
