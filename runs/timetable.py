"""When a schedule fires: planned times by cron in a time zone or every so many seconds, and what becomes of missed ones.

Pure: no clock, no database. Invariant: planned times strictly increase, and do not depend on when they are asked for.
A time zone's changes are those of Debian's cron, by cronsim: a job at fixed times that fall into the skipped hour runs right after
it, once, and one in the repeated hour runs in the first pass only; jobs with `*` in minutes or hours run by the clock as it goes.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, Literal
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

Missed = Literal["skip", "run_once", "run_all"]

GRACE: Final = timedelta(seconds=60)  # a time that is not begun so long after it was due counts as missed
MAX_CATCH_UP: Final = 100  # missed times that `run_all` runs
MAX_COUNTED: Final = 1000  # missed times that are counted
_MICROSECOND: Final = timedelta(microseconds=1)


class InvalidCron(ValueError):
    """Not five fields that cronsim reads, or never due."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """`cron` in `zone`, or `every` from `anchor` on; from `starts_at` (included) to `ends_at` (not included)."""

    cron: str | None
    every: timedelta | None
    zone: str
    anchor: datetime
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first planned time after `moment`, in UTC; None when there is none."""
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - _MICROSECOND)
        found = self._cron_after(moment) if self.cron is not None else self._every_after(moment)
        return found if found is not None and (self.ends_at is None or found < self.ends_at) else None

    def upcoming(self, moment: datetime, count: int) -> list[datetime]:
        """The next planned times after `moment`, at most `count`."""
        found: list[datetime] = []
        following = self.after(moment)
        while following is not None and len(found) < count:
            found.append(following)
            following = self.after(following)
        return found

    def latest(self, first: datetime, last: datetime, count: int) -> list[datetime]:
        """The newest `count` planned times from `first` to `last` (both included), in order.

        Looks back further and further, so that a long time with many of them costs no more than `count` does.
        """
        span = timedelta(hours=1) if self.every is None else self.every * count
        while True:
            begin = max(first, last - span)
            found: list[datetime] = []
            following = self.after(begin - _MICROSECOND)
            while following is not None and following <= last:
                found.append(following)
                following = self.after(following)
            if begin == first or len(found) >= count:
                return found[-count:]
            span *= 2

    def _every_after(self, moment: datetime) -> datetime | None:
        assert self.every is not None
        return self.anchor + max(0, (moment - self.anchor) // self.every + 1) * self.every

    def _cron_after(self, moment: datetime) -> datetime | None:
        assert self.cron is not None
        times = CronSim(self.cron, moment.astimezone(ZoneInfo(self.zone)))
        # In the repeated hour cronsim starts from the clock's face, which was passed before.
        for found in times:
            if found.astimezone(UTC) > moment:
                return found.astimezone(UTC)
        return None


@dataclass(frozen=True, slots=True)
class Fire:
    """What to do now: `planned` runs, or is only written down as missed; so were `missed` times before it (MAX_COUNTED at most).

    `next_at`: the planned time to look at then.
    """

    planned: datetime
    runs: bool
    missed: int
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class Jitter:
    """A delay of each planned time, up to `seconds`: always the same for the same time."""

    schedule: UUID
    seconds: int

    def due(self, planned: datetime) -> datetime:
        if not self.seconds:
            return planned
        digest = hashlib.sha256(self.schedule.bytes + planned.isoformat().encode()).digest()
        share = int.from_bytes(digest[:4], "big") / 2**32
        return planned + timedelta(milliseconds=int(share * self.seconds * 1000))


def fire(timetable: Timetable, *, missed: Missed, jitter: Jitter, next_at: datetime, now: datetime) -> Fire | None:
    """What a schedule whose next planned time is `next_at` does at `now`; None: nothing yet."""
    if jitter.due(next_at) > now:
        return None
    if jitter.due(next_at) + GRACE >= now:
        return Fire(next_at, runs=True, missed=0, next_at=timetable.after(next_at))
    behind = timetable.latest(next_at, now - GRACE, MAX_COUNTED)
    late = [planned for planned in behind if jitter.due(planned) + GRACE < now] or [next_at]
    chosen = late[-1]
    if missed == "run_all":
        chosen = late[-MAX_CATCH_UP] if len(late) > MAX_CATCH_UP else next_at
    passed = behind.index(chosen) if chosen in behind else 0
    return Fire(chosen, runs=missed != "skip", missed=passed, next_at=timetable.after(chosen))


def check_cron(expression: str) -> None:
    """Raise InvalidCron unless it has five fields and is due at some time."""
    if len(expression.split()) != 5:
        raise InvalidCron("It must have five fields: minute, hour, day of the month, month, day of the week.")
    try:
        if next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
            raise InvalidCron("It is never due.")
    except CronSimError as error:
        raise InvalidCron(f"{error}.") from error


@cache
def zones() -> frozenset[str]:
    """IANA's names of time zones."""
    return frozenset(available_timezones() - {"localtime", "Factory"})
