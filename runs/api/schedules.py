"""Runs that begin by themselves."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from kernel.rest.pages import PageQuery
from kernel.rest.views import ApiView, Context, Created, endpoint
from privacy.guard import CredentialRefused
from privacy.operations import SubjectErased
from runs.api.answers import RunCreated
from runs.operations import schedules as operations
from runs.operations.create import InvalidRun
from runs.operations.schedules import InvalidSchedule, ScheduleEnded
from runs.queries import schedules as queries
from runs.timetable import Missed
from runs.wire_schedules import Overlap, ScheduleIn, SchedulePatch

ScheduleStatus = Literal["active", "paused", "suspended", "ended"]


class SchedulesQuery(Struct, forbid_unknown_fields=True):
    """`cursor`: `next_cursor` of the page before."""

    status: ScheduleStatus | None = None
    cursor: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ScheduleAnswer(Struct):
    """`reason`: why it is suspended. `key_id`: the key that it acts for. `run`: the body of POST /runs; null when its subject was
    erased, and left out of lists.
    """

    id: UUID
    name: str
    status: ScheduleStatus
    reason: str | None
    cron: str | None
    every_seconds: int | None
    time_zone: str
    overlap: Overlap
    missed: Missed
    jitter_seconds: int
    starts_at: datetime | None
    ends_at: datetime | None
    project: str
    agent: str | None
    key_id: UUID
    workflow: str
    created_at: datetime
    updated_at: datetime
    run: dict[str, Any] | UnsetType | None = UNSET


class SchedulesAnswer(Struct):
    items: list[ScheduleAnswer]
    next_cursor: UUID | None


class FireAnswer(Struct):
    """`planned_at` is without jitter. `outcome`: started (`run_id`), overlapped (the run before was open), missed, or refused
    (`reason`). `missed`: how many planned times before it were passed over. `manual`: a person asked for it.
    """

    planned_at: datetime
    fired_at: datetime
    manual: bool
    outcome: Literal["started", "overlapped", "missed", "refused"]
    reason: str | None
    missed: int
    run_id: UUID | None


class FiresAnswer(Struct):
    """Newest first. `upcoming`: the next ten planned times."""

    items: list[FireAnswer]
    next_cursor: UUID | None
    upcoming: list[datetime]


PROBLEMS = (InvalidSchedule, InvalidRun, CredentialRefused, SubjectErased)


class Schedules(ApiView):
    @endpoint(summary="List schedules", scope="schedules:read", query=SchedulesQuery, answer=SchedulesAnswer)
    def get(self, call: Context) -> SchedulesAnswer:
        """In order of creation. A key that is bound to an agent or to projects sees theirs."""
        query: SchedulesQuery = call.query
        found = queries.list_schedules(
            tenant=call.tenant, principal=call.principal, status=query.status, cursor=query.cursor, limit=query.limit
        )
        return SchedulesAnswer(items=[_answer(row) for row in found.rows], next_cursor=found.next_cursor)

    @endpoint(
        summary="Define a schedule",
        scope="schedules:write",
        body=ScheduleIn,
        answer=ScheduleAnswer,
        status=201,
        problems=PROBLEMS,
    )
    def post(self, call: Context) -> Created:
        """It acts for the calling key, which needs `runs:write` too, and is suspended when that key may no longer start runs."""
        template = operations.raw_run(call.request.body)
        assert template is not None
        schedule_id = operations.create_schedule(
            tenant=call.tenant, principal=call.principal, wanted=call.body, template=template, now=call.now
        )
        return Created(_read(call, schedule_id), location=f"/api/v1/schedules/{schedule_id}")


class Schedule(ApiView):
    @endpoint(summary="Read a schedule", scope="schedules:read", answer=ScheduleAnswer, conditional=True)
    def get(self, call: Context, schedule_id: UUID) -> ScheduleAnswer:
        return _read(call, schedule_id)

    @endpoint(
        summary="Change a schedule",
        scope="schedules:write",
        body=SchedulePatch,
        answer=ScheduleAnswer,
        conditional=True,
        problems=PROBLEMS,
    )
    def patch(self, call: Context, schedule_id: UUID) -> ScheduleAnswer:
        """It acts for the calling key from now on. Planned times that are over do not come again."""
        call.require_match(lambda: _read(call, schedule_id))
        operations.change_schedule(
            tenant=call.tenant,
            principal=call.principal,
            schedule_id=schedule_id,
            changes=call.body,
            template=operations.raw_run(call.request.body),
            now=call.now,
        )
        return _read(call, schedule_id)

    @endpoint(summary="Delete a schedule", scope="schedules:write", status=204, conditional=True)
    def delete(self, call: Context, schedule_id: UUID) -> None:
        """Its history goes with it; its runs stay."""
        call.require_match(lambda: _read(call, schedule_id))
        operations.delete_schedule(tenant=call.tenant, principal=call.principal, schedule_id=schedule_id, now=call.now)


class SchedulePause(ApiView):
    @endpoint(summary="Pause a schedule", scope="schedules:write", answer=ScheduleAnswer, problems=(ScheduleEnded,))
    def post(self, call: Context, schedule_id: UUID) -> ScheduleAnswer:
        """Planned times do not count as missed while it is paused."""
        operations.pause_schedule(tenant=call.tenant, principal=call.principal, schedule_id=schedule_id, now=call.now)
        return _read(call, schedule_id)


class ScheduleResume(ApiView):
    @endpoint(summary="Resume a schedule", scope="schedules:write", answer=ScheduleAnswer, problems=(ScheduleEnded,))
    def post(self, call: Context, schedule_id: UUID) -> ScheduleAnswer:
        """From its next planned time on, acting for the calling key, which needs `runs:write` too."""
        operations.resume_schedule(tenant=call.tenant, principal=call.principal, schedule_id=schedule_id, now=call.now)
        return _read(call, schedule_id)


class ScheduleRunNow(ApiView):
    @endpoint(
        summary="Start a run of a schedule",
        scope="schedules:write",
        answer=RunCreated,
        status=201,
        problems=(InvalidRun, CredentialRefused, SubjectErased),
    )
    def post(self, call: Context, schedule_id: UUID) -> Created:
        """At once, whatever its status. The calling key needs `runs:write` too. Planned times stay as they are."""
        run_id = operations.run_now(tenant=call.tenant, principal=call.principal, schedule_id=schedule_id, now=call.now)
        return Created(RunCreated(run_id), location=f"/api/v1/runs/{run_id}")


class ScheduleFires(ApiView):
    @endpoint(summary="Read what a schedule did", scope="schedules:read", query=PageQuery, answer=FiresAnswer)
    def get(self, call: Context, schedule_id: UUID) -> FiresAnswer:
        found = queries.fires(
            tenant=call.tenant,
            principal=call.principal,
            schedule_id=schedule_id,
            cursor=call.query.cursor,
            limit=call.query.limit,
        )
        return FiresAnswer(
            items=[msgspec.convert(row, FireAnswer, from_attributes=True) for row in found.rows],
            next_cursor=found.next_cursor,
            upcoming=found.upcoming,
        )


def _read(call: Context, schedule_id: UUID) -> ScheduleAnswer:
    row = queries.get_schedule(tenant=call.tenant, principal=call.principal, schedule_id=schedule_id)
    answer = _answer(row)
    answer.run = None if row.template is None else msgspec.Raw(row.template)  # type: ignore[assignment]  # as it was sent
    return answer


def _answer(row: queries.ScheduleRow) -> ScheduleAnswer:
    return msgspec.convert(row, ScheduleAnswer, from_attributes=True)
