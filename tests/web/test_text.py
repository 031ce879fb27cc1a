"""How values read."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.utils import translation

from kernel.web import text

MOMENT = datetime(2026, 11, 24, 3, 42, 4, tzinfo=UTC)
IST = ZoneInfo("Asia/Kolkata")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 ms"),
        (0.2104, "210 ms"),
        (1.42, "1.4 s"),
        (2, "2 s"),
        (58.4, "58 s"),
        (59.6, "1 min"),
        (112, "1 min 52 s"),
        (124, "2 min 04 s"),
        (3599.7, "1 h"),
        (2 * 3600 + 36 * 60 + 10, "2 h 36 min"),
        (23 * 3600 + 59 * 60 + 59, "1 d"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert text.duration(timedelta(seconds=seconds)).replace(text.NO_BREAK, " ") == words


def test_duration_in_hindi() -> None:
    with translation.override("hi"):
        assert text.duration(timedelta(minutes=96)).replace(text.NO_BREAK, " ") == "1 घं. 36 मि."


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (999, "999"),
        (1284, "1,284"),
        (412500, "4,12,500"),
        (-1234567, "−12,34,567"),
        (Decimal("412500.00"), "4,12,500.00"),
    ],
)
def test_grouped(value: int | Decimal, words: str) -> None:
    assert text.grouped(value) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(87, "87 B"), (999, "999 B"), (1000, "1.0 KB"), (2449, "2.4 KB"), (99_999, "100 KB"), (3_100_000, "3.1 MB")],
)
def test_size(count: int, words: str) -> None:
    assert text.size(count).replace(text.NO_BREAK, " ") == words


def test_short_id_keeps_short_ones_whole() -> None:
    assert text.short_id("01a20ba5-7ae0-7c42-9d05-4f2a6be1c0d7") == "01a20ba5…c0d7"
    assert text.short_id("worker-2") == "worker-2"


def test_times_name_their_zone_and_leave_out_today() -> None:
    assert text.moment_text(MOMENT, IST).replace(text.NO_BREAK, " ") == "24 November 2026, 09:12:04 IST"
    assert text.moment_text(MOMENT, IST, today=MOMENT, seconds=False).replace(text.NO_BREAK, " ") == "09:12 IST"
    # The same moment is another day in another zone.
    late = MOMENT + timedelta(hours=16)
    assert text.moment_text(late, IST, today=MOMENT).startswith("25 November")
    assert not text.moment_text(late, UTC, today=MOMENT).startswith("24")
    assert text.zone_name(MOMENT.astimezone(ZoneInfo("Asia/Dubai"))) == "UTC+04"


def test_list_time_is_as_short_as_it_can_be() -> None:
    assert text.list_time(MOMENT, IST, today=MOMENT) == "09:12"
    assert text.list_time(MOMENT, IST, today=MOMENT + timedelta(days=2)) == "24 Nov 09:12"
    assert text.list_time(MOMENT, IST, today=MOMENT + timedelta(days=90)) == "24 Nov 2026 09:12"


def test_money_keeps_its_digits_and_indian_grouping() -> None:
    assert text.money("412500", "INR") == "₹4,12,500.00"
    assert text.money("0.1", "INR") == "₹0.10"
    assert text.money("1.2345", "USD") == "USD\u00a01.2345"
    assert text.money("1E+3", "INR") == "₹1,000.00"
    assert text.money("500", "JPY") == "JPY\u00a0500"
    assert text.money("7", None) == "7"
