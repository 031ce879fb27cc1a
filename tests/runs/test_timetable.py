"""The arithmetic of schedules: no planned time twice, none lost, and what time zones do to them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import timetable
from runs.timetable import GRACE, MAX_CATCH_UP, InvalidCron, Jitter, Missed, Timetable

SCHEDULE = UUID("018f0000-0000-7000-8000-000000000001")
START = datetime(2026, 1, 1, tzinfo=UTC)
ZONES = ("UTC", "Asia/Kolkata", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo")
CRONS = (
    "* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "0 0 * * *", "0,30 1-3 * * *", "15 */5 * * *", "0 9 * * MON-FRI",
    "59 23 L * *",
)  # fmt: skip


def table(cron: str | None = None, *, every: int | None = None, zone: str = "UTC", **parts: Any) -> Timetable:
    return Timetable(
        cron, None if every is None else timedelta(seconds=every), zone, parts.pop("anchor", START), **parts
    )


def clock(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("zone", "cron", "after", "expected"),
    [
        ("Asia/Kolkata", "0 9 * * *", "2026-03-28T12:00+05:30", ["2026-03-29T09:00+05:30", "2026-03-30T09:00+05:30"]),
        ("Asia/Kolkata", "*/30 * * * *", "2026-03-29T00:10+05:30", ["2026-03-29T00:30+05:30", "2026-03-29T01:00+05:30"]),
        # Berlin, 29 March 2026: from 02:00 to 03:00. Fixed times in between run right after, once.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
        ("Europe/Berlin", "*/30 * * * *", "2026-03-29T01:20+01:00", ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"]),
        # 25 October 2026: 02:00 to 03:00 twice. Fixed times run in the first pass, the others in both.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T02:10+01:00", ["2026-10-26T02:30+01:00"]),
        (
            "Europe/Berlin", "0 * * * *", "2026-10-25T01:30+02:00",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
        ),
        # New York, 8 March and 1 November 2026.
        ("America/New_York", "15 2 * * *", "2026-03-07T12:00-05:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:15-04:00"]),
        ("America/New_York", "30 1 * * *", "2026-10-31T12:00-04:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
        (
            "America/New_York", "*/30 * * * *", "2026-11-01T01:10-04:00",
            ["2026-11-01T01:30-04:00", "2026-11-01T01:00-05:00", "2026-11-01T01:30-05:00", "2026-11-01T02:00-05:00"],
        ),
    ],
)  # fmt: skip
def test_clocks_that_change(zone: str, cron: str, after: str, expected: list[str]) -> None:
    assert table(cron, zone=zone).upcoming(clock(after), len(expected)) == [clock(text) for text in expected]


def test_every_so_many_seconds_counts_from_the_anchor_whatever_the_zone_does() -> None:
    found = table(every=5400, zone="Europe/Berlin", anchor=clock("2026-10-25T00:30+02:00"))
    assert found.after(clock("2026-10-25T01:00+02:00")) == clock("2026-10-25T02:00+02:00")
    assert found.after(clock("2026-10-25T02:00+02:00")) == clock("2026-10-25T02:30+01:00")
    assert found.after(clock("2020-01-01T00:00+00:00")) == clock("2026-10-25T00:30+02:00")


def test_a_start_is_included_and_an_end_is_not() -> None:
    begin, end = clock("2026-05-01T09:00+00:00"), clock("2026-05-01T11:00+00:00")
    found = table("0 * * * *", starts_at=begin, ends_at=end)
    assert found.upcoming(START, 9) == [begin, begin + timedelta(hours=1)]
    assert found.after(end) is None


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "x * * * *",
        "0 0 30 2 *",
        "* * * * 9",
        "0 0 * * MON#9",
        "*/0 * * * *",
        "@daily",
    ],
)
def test_what_is_no_cron_expression_is_refused(expression: str) -> None:
    with pytest.raises(InvalidCron):
        timetable.check_cron(expression)


tables = st.one_of(
    st.builds(table, st.sampled_from(CRONS), zone=st.sampled_from(ZONES)),
    st.builds(lambda every: table(every=every), st.integers(1, 200_000)),
)
moments = st.timedeltas(timedelta(0), timedelta(days=700)).map(lambda passed: START + passed)


@given(tables, moments, st.lists(st.floats(0, 1), max_size=5))
@settings(max_examples=50, deadline=None)
def test_planned_times_increase_and_do_not_depend_on_when_they_are_asked_for(
    found: Timetable, moment: datetime, places: list[float]
) -> None:
    planned = found.upcoming(moment, 12)
    assert planned == sorted(set(planned))
    assert all(time > moment for time in planned)
    for place in places:
        asked = moment + place * (planned[-1] - moment)
        assert found.after(asked) == next((time for time in planned if time > asked), found.after(planned[-1]))
    assert found.latest(planned[0], planned[-1], 5) == planned[-5:]


@given(tables, moments, st.integers(1, 90), st.integers(0, 400))
@settings(max_examples=30, deadline=None)
def test_looking_back_finds_the_newest(found: Timetable, first: datetime, count: int, days: int) -> None:
    last = first + timedelta(days=days / 10)
    plain: list[datetime] = []
    following = found.after(first - timedelta(microseconds=1))
    while following is not None and following <= last and len(plain) < 5000:
        plain.append(following)
        following = found.after(following)
    if len(plain) < 5000:
        assert found.latest(first, last, count) == plain[-count:]


# How the clock of the database goes between two sweeps, in seconds: on time, asleep for hours, stepped back an hour.
steps = st.lists(
    st.one_of(st.floats(0.1, 30), st.floats(60, 100_000), st.just(-3600.0), st.just(3600.0)), min_size=1, max_size=60
)


@given(tables, st.sampled_from(["skip", "run_once", "run_all"]), st.integers(0, 300), moments, steps)
@settings(max_examples=80, deadline=None)
def test_no_planned_time_fires_twice_and_none_is_lost(
    found: Timetable, missed: Missed, seconds: int, begin: datetime, passing: list[float]
) -> None:
    jitter = Jitter(SCHEDULE, seconds)
    next_at, now = found.after(begin), begin
    ran: list[datetime] = []
    written: list[datetime] = []
    accounted = 0
    for step in passing:
        now += timedelta(seconds=step)
        while next_at is not None:
            fired = timetable.fire(found, missed=missed, jitter=jitter, next_at=next_at, now=now)
            if fired is None:
                break
            assert fired.planned <= now
            assert fired.next_at is None or fired.next_at > fired.planned
            assert fired.planned >= next_at
            (ran if fired.runs else written).append(fired.planned)
            late = jitter.due(next_at) + GRACE < now
            assert fired.runs or late, "a time was dropped although it was not late"
            assert fired.missed < timetable.MAX_COUNTED
            if fired.missed:
                assert late, "times were passed over although none was late"
                assert missed != "run_all" or len(found.latest(next_at, now - GRACE, 200)) > MAX_CATCH_UP
            accounted += 1 + fired.missed
            next_at = fired.next_at
    times = ran + written
    assert len(times) == len(set(times)), "a planned time fired twice"
    if next_at is not None and accounted < 900:
        planned = [time for time in found.latest(begin + timedelta(microseconds=1), next_at, 2000) if time < next_at]
        assert len(planned) == accounted, "a planned time was neither run nor counted"
        if missed == "run_all" and accounted <= MAX_CATCH_UP:
            assert ran == planned


def test_a_day_of_silence() -> None:
    hourly, jitter = table("0 * * * *"), Jitter(SCHEDULE, 0)
    now = START + timedelta(days=1, minutes=30)

    def all_fires(missed: Missed) -> list[tuple[datetime, bool, int]]:
        next_at: datetime | None = START
        fires = []
        while next_at and (found := timetable.fire(hourly, missed=missed, jitter=jitter, next_at=next_at, now=now)):
            fires.append((found.planned, found.runs, found.missed))
            next_at = found.next_at
        assert next_at == START + timedelta(days=1, hours=1)
        return fires

    last = START + timedelta(days=1)
    assert all_fires("run_once") == [(last, True, 24)]
    assert all_fires("skip") == [(last, False, 24)]
    assert all_fires("run_all") == [(START + timedelta(hours=hour), True, 0) for hour in range(25)]


def test_running_all_has_an_end() -> None:
    minutely, jitter = table("* * * * *"), Jitter(SCHEDULE, 0)
    now = START + timedelta(days=400)
    found = timetable.fire(minutely, missed="run_all", jitter=jitter, next_at=START, now=now)
    assert found is not None
    assert (found.planned, found.runs) == (now - timedelta(minutes=MAX_CATCH_UP + 1), True)
    assert found.missed == timetable.MAX_COUNTED - 1 - MAX_CATCH_UP


def test_jitter_is_of_the_planned_time() -> None:
    jitter = Jitter(SCHEDULE, 60)
    delays = {jitter.due(START + timedelta(hours=hour)) - (START + timedelta(hours=hour)) for hour in range(50)}
    assert len(delays) > 40
    assert all(timedelta(0) <= delay < timedelta(seconds=60) for delay in delays)
    assert jitter.due(START) == jitter.due(START)
