"""Reading schedules and their fires. The caller holds the tenant scope; a bound key sees what is its own."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from kernel.errors import NotFound
from privacy import codec, keys
from runs.models import Schedule, ScheduleFire
from runs.timetable import Timetable
from tenancy.models import Agent, Project
from tenancy.queries import Principal

UPCOMING = 10
TEMPLATE = b"schedule"


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """`template` is the JSON body of POST /runs; None in lists, and when its subject was erased."""

    id: UUID
    name: str
    status: str
    reason: str | None
    cron: str | None
    every_seconds: int | None
    time_zone: str
    overlap: str
    missed: str
    jitter_seconds: int
    starts_at: datetime | None
    ends_at: datetime | None
    project: str
    agent: str | None
    key_id: UUID
    workflow: str
    template: bytes | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SchedulePage:
    rows: list[ScheduleRow]
    next_cursor: UUID | None


@dataclass(frozen=True, slots=True)
class FireRow:
    id: UUID
    planned_at: datetime
    fired_at: datetime
    manual: bool
    outcome: str
    reason: str | None
    missed: int
    run_id: UUID | None


@dataclass(frozen=True, slots=True)
class FirePage:
    """Newest first; `upcoming`: the next planned times, none unless it is active."""

    rows: list[FireRow]
    next_cursor: UUID | None
    upcoming: list[datetime]


def visible(principal: Principal) -> "QuerySet[Schedule]":
    """The schedules that a key may see."""
    found: QuerySet[Schedule] = Schedule.objects.all()
    if principal.agent_id is not None:
        found = found.filter(agent_id=principal.agent_id)
    if principal.project_ids is not None:
        found = found.filter(project_id__in=principal.project_ids)
    return found


def list_schedules(
    *, tenant: UUID, principal: Principal, status: str | None, cursor: UUID | None, limit: int
) -> SchedulePage:
    """In order of creation, without templates."""
    found = visible(principal).defer("template").order_by("id")
    if status is not None:
        found = found.filter(status=status)
    if cursor is not None:
        found = found.filter(id__gt=cursor)
    rows = list(found[: limit + 1])
    return SchedulePage(
        rows=_rows(rows[:limit], [None] * len(rows)), next_cursor=rows[limit - 1].id if len(rows) > limit else None
    )


def get_schedule(*, tenant: UUID, principal: Principal, schedule_id: UUID) -> ScheduleRow:
    """One schedule with its template. Raises NotFound."""
    found = visible(principal).filter(id=schedule_id).first()
    if found is None:
        raise NotFound("There is no such schedule.")
    try:
        template: bytes | None = open_template(found)
    except keys.KeyShredded:
        template = None
    return _rows([found], [template])[0]


def fires(*, tenant: UUID, principal: Principal, schedule_id: UUID, cursor: UUID | None, limit: int) -> FirePage:
    """What the planned times of a schedule came to. Raises NotFound."""
    schedule = visible(principal).filter(id=schedule_id).first()
    if schedule is None:
        raise NotFound("There is no such schedule.")
    found = ScheduleFire.objects.filter(schedule_id=schedule_id).order_by("-id")
    if cursor is not None:
        found = found.filter(id__lt=cursor)
    rows = list(found[: limit + 1])
    upcoming: list[datetime] = []
    if schedule.next_at is not None:
        upcoming = [schedule.next_at, *timetable_of(schedule).upcoming(schedule.next_at, UPCOMING - 1)]
    return FirePage(
        rows=[
            FireRow(
                id=row.id,
                planned_at=row.planned_at,
                fired_at=row.fired_at,
                manual=row.manual,
                outcome=row.outcome,
                reason=row.reason,
                missed=row.missed,
                run_id=row.run_id,
            )
            for row in rows[:limit]
        ],
        next_cursor=rows[limit - 1].id if len(rows) > limit else None,
        upcoming=upcoming,
    )


def timetable_of(schedule: Schedule) -> Timetable:
    every = None if schedule.every_seconds is None else timedelta(seconds=schedule.every_seconds)
    return Timetable(
        cron=schedule.cron,
        every=every,
        zone=schedule.time_zone,
        anchor=schedule.starts_at or schedule.created_at,
        starts_at=schedule.starts_at,
        ends_at=schedule.ends_at,
    )


def open_template(schedule: Schedule) -> bytes:
    """The body of POST /runs. Raises KeyShredded."""
    key = keys.data_key(tenant=schedule.tenant_id, key_id=schedule.data_key_id)
    return codec.unseal(key, context=schedule.id.bytes, label=TEMPLATE, blob=bytes(schedule.template)).body


def _rows(schedules: list[Schedule], templates: list[Any]) -> list[ScheduleRow]:
    projects = dict(Project.objects.filter(id__in={row.project_id for row in schedules}).values_list("id", "slug"))
    agents = dict(Agent.objects.filter(id__in={row.agent_id for row in schedules}).values_list("id", "slug"))
    return [
        ScheduleRow(
            id=row.id,
            name=row.name,
            status=row.status,
            reason=row.reason,
            cron=row.cron,
            every_seconds=row.every_seconds,
            time_zone=row.time_zone,
            overlap=row.overlap,
            missed=row.missed,
            jitter_seconds=row.jitter_seconds,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            project=projects[row.project_id],
            agent=agents.get(row.agent_id),
            key_id=row.key_id,
            workflow=row.workflow,
            template=template,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
        for row, template in zip(schedules, templates, strict=False)
    ]
