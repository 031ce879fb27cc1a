"""How values read: durations, numbers in Indian grouping, sizes, ids, times with a zone. Pure; words come from the catalogue."""

from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Final
from uuid import UUID

from django.utils.formats import date_format
from django.utils.translation import pgettext

NO_BREAK: Final = "\u00a0"
_TWO_DECIMALS: Final = ("INR", "USD", "EUR", "GBP", "AED", "SGD")
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def duration(span: timedelta) -> str:
    """Two units at most: `3 d 4 h`, `2 h 36 min`, `2 min 04 s`, `58 s`, `1.4 s`, `210 ms`."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return _unit(f"{round(seconds * 1000)}", pgettext("milliseconds", "ms"))
    if seconds < 10:
        return _unit(f"{seconds:.1f}".removesuffix(".0"), pgettext("seconds", "s"))
    whole = round(seconds)
    if whole < 60:
        return _unit(whole, pgettext("seconds", "s"))
    if whole < 3600:
        rest = f"{whole % 60:02}" if whole % 60 else ""
        return _pair(whole // 60, pgettext("minutes", "min"), rest, pgettext("seconds", "s"))
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return _pair(minutes // 60, pgettext("hours", "h"), minutes % 60 or "", pgettext("minutes", "min"))
    hours = round(seconds / 3600)
    return _pair(hours // 24, pgettext("days", "d"), hours % 24 or "", pgettext("hours", "h"))


def _unit(value: object, unit: str) -> str:
    return f"{value}{NO_BREAK}{unit}"


def _pair(major: int, major_unit: str, minor: object, minor_unit: str) -> str:
    return _unit(major, major_unit) + (f"{NO_BREAK}{_unit(minor, minor_unit)}" if minor else "")


def grouped(value: int | Decimal) -> str:
    """Indian grouping: `1,284`, `4,12,500.00`."""
    sign, number = ("−", -value) if value < 0 else ("", value)
    whole, _, fraction = f"{number:f}".partition(".") if isinstance(number, Decimal) else (str(number), "", "")
    head, tail = whole[:-3], whole[-3:]
    while head:
        head, tail = head[:-2], f"{head[-2:]},{tail}"
    return sign + tail + (f".{fraction}" if fraction else "")


def money(amount: str, currency: str | None) -> str:
    """`₹4,12,500.00`, `JPY 500`: as many decimals as the amount has, and two at least where the currency has two."""
    value = Decimal(amount)
    if currency in _TWO_DECIMALS and -int(value.as_tuple().exponent) < 2:
        value = value.quantize(Decimal("0.01"))
    shown = grouped(value)
    return f"₹{shown}" if currency == "INR" else f"{currency}{NO_BREAK}{shown}" if currency else shown


def size(count: int) -> str:
    """Bytes in steps of 1000: `87 B`, `2.4 KB`, `3.1 MB`."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    number = f"{value:.1f}" if unit and value < 99.95 else f"{round(value)}"
    return _unit(number, _UNITS[unit])


def short_id(value: UUID | str) -> str:
    """First eight and last four characters of a long id or digest; a short one whole."""
    whole = str(value)
    return whole if len(whole) <= 16 else f"{whole[:8]}…{whole[-4:]}"


def zone_name(moment: datetime) -> str:
    """`IST`, `UTC`; zones without a letter name give their offset, `UTC+04`."""
    name = moment.tzname() or ""
    return name if name.isalpha() else f"UTC{name}"


def clock_time(moment: datetime, zone: tzinfo, *, seconds: bool = True) -> str:
    """`09:12:04`, without date or zone; for columns whose head names both."""
    return moment.astimezone(zone).strftime("%H:%M:%S" if seconds else "%H:%M")


def list_time(moment: datetime, zone: tzinfo, *, today: datetime, seconds: bool = False) -> str:
    """`09:12` today, `24 Nov 09:12` this year, `24 Nov 2025 09:12` before; for a list that names the zone."""
    local, current = moment.astimezone(zone), today.astimezone(zone)
    text = clock_time(moment, zone, seconds=seconds)
    if local.date() == current.date():
        return text
    return f"{date_format(local, 'j M' if local.year == current.year else 'j M Y')} {text}"


def moment_text(moment: datetime, zone: tzinfo, *, today: datetime | None = None, seconds: bool = True) -> str:
    """`24 November 2026, 09:12:04 IST`; only the time and the zone when it is on the day of `today`."""
    local = moment.astimezone(zone)
    text = f"{clock_time(moment, zone, seconds=seconds)}{NO_BREAK}{zone_name(local)}"
    if today is not None and today.astimezone(zone).date() == local.date():
        return text
    return f"{day_text(local)}, {text}"


def day_text(local: datetime) -> str:
    """`24 November 2026`, in the reader's language."""
    return date_format(local, "j F Y")
