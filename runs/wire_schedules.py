"""The bodies by which schedules are defined."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from kernel.moments import Moment
from runs.timetable import Missed
from runs.wire import Identifier, RunIn

Cron = Annotated[str, Meta(min_length=1, max_length=120)]
Every = Annotated[int, Meta(ge=1, le=31_536_000)]
Zone = Annotated[str, Meta(min_length=1, max_length=64)]
Overlap = Literal["allow", "skip"]
JitterSeconds = Annotated[int, Meta(ge=0, le=3600)]


class ScheduleIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `cron` (five fields, in `time_zone`) or `every_seconds` (from `starts_at`, or from now). `run`: as in POST /runs.

    `overlap: skip`: not while the run before is still open. `missed`: what becomes of times that could not be started within a
    minute: nothing, one run for all of them, or each of them (the newest 100).
    """

    name: Identifier
    run: RunIn
    cron: Cron | None = None
    every_seconds: Every | None = None
    time_zone: Zone = "UTC"
    overlap: Overlap = "allow"
    missed: Missed = "run_once"
    jitter_seconds: JitterSeconds = 0
    starts_at: Moment | None = None
    ends_at: Moment | None = None


class SchedulePatch(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is left out stays as it is."""

    name: Identifier | UnsetType = UNSET
    run: RunIn | UnsetType = UNSET
    cron: Cron | UnsetType | None = UNSET
    every_seconds: Every | UnsetType | None = UNSET
    time_zone: Zone | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    jitter_seconds: JitterSeconds | UnsetType = UNSET
    starts_at: Moment | UnsetType | None = UNSET
    ends_at: Moment | UnsetType | None = UNSET
