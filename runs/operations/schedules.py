"""Schedules: defining them, and starting their runs.

Whom a schedule acts for: the API key that defined, changed or resumed it last, with what that key may do at the moment of the
fire, in the project and for the agent that were resolved before. When the key was rotated its successor takes over; when it was
revoked, ran out or lost a power, the schedule is suspended with the reason. The runs themselves begin by actor kind `system`.

Invariant: a planned time is one row and at most one run: the row, the run and the step to the next time are one transaction under
the schedule's lock, and time is the database's.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db import connection, transaction
from msgspec import UNSET

from audit import operations as audit_ops
from kernel import actor as actors
from kernel import codec as json
from kernel import context, ids, pool
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, NotFound
from privacy import codec, guard, keys
from runs import timetable
from runs.models import Run, Schedule, ScheduleFire
from runs.operations.create import InvalidRun, check_plan, create_run, place_of, plan_of
from runs.queries import registry
from runs.queries.schedules import TEMPLATE, open_template, timetable_of, visible
from runs.states import RUN_ENDS
from runs.timetable import Fire, InvalidCron, Jitter
from runs.wire import RunIn
from runs.wire_schedules import ScheduleIn, SchedulePatch
from tenancy import queries as tenancy
from tenancy.models import ApiKey
from tenancy.queries import Principal

logger = logging.getLogger(__name__)

# Due schedules of every tenant, the longest due first: ids only.
DUE: Final = "select tenant, schedule from runs_due_schedules(%b)"
_TIMES: Final = ("cron", "every_seconds", "time_zone", "jitter_seconds", "starts_at", "ends_at")
_DEFINITION: Final = ("name", *_TIMES, "overlap", "missed")
_MOST_SUCCESSORS: Final = 100


class InvalidSchedule(DomainError):
    code = "invalid_schedule"
    status = 422
    title = "This schedule cannot be"


class ScheduleEnded(DomainError):
    code = "schedule_ended"
    status = 409
    title = "The schedule has no time left"


class ScheduleRefused(DomainError):
    """The run of a fire was refused: what suspends a schedule."""

    code = "schedule_refused"
    status = 409
    title = "The run cannot be started"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The run cannot be started: {reason}.", extra={"reason": reason})
        self.reason = reason


# Definition -----------------------------------------------------------------------------------------------------------


def create_schedule(*, tenant: UUID, principal: Principal, wanted: ScheduleIn, template: bytes, now: datetime) -> UUID:
    """Define a schedule that acts for `principal`; its id. `template`: the JSON text of `wanted.run`. The caller holds the tenant
    scope. Raises InvalidSchedule, InvalidRun, Forbidden, SubjectErased, CredentialRefused.
    """
    clock = _clock()
    schedule = Schedule(id=ids.uuid7(), status="active", created_at=clock, updated_at=clock)
    for name in _DEFINITION:
        setattr(schedule, name, getattr(wanted, name))
    _act_for(schedule, principal)
    _set_template(schedule, principal, wanted.run, template, now)
    _check(schedule)
    if not _plan(schedule, clock):
        raise _invalid("ends_at", "There is no planned time left.")
    schedule.save(force_insert=True)
    _record(schedule, principal.actor, "schedule.created", _content(schedule), now)
    return schedule.id


def change_schedule(
    *,
    tenant: UUID,
    principal: Principal,
    schedule_id: UUID,
    changes: SchedulePatch,
    template: bytes | None,
    now: datetime,
) -> None:
    """Change a schedule, which acts for `principal` from now on. Times that were planned before now do not come again.

    The caller holds the tenant scope. Raises what `create_schedule` does, and NotFound.
    """
    schedule = _locked(principal, schedule_id)
    changed = [name for name in _DEFINITION if getattr(changes, name) is not UNSET]
    for name in changed:
        setattr(schedule, name, getattr(changes, name))
    _act_for(schedule, principal)
    if changes.run is not UNSET:
        assert template is not None
        _set_template(schedule, principal, changes.run, template, now)
    _check(schedule)
    clock = _clock()
    if schedule.status in ("active", "ended") and (schedule.status == "ended" or not set(changed).isdisjoint(_TIMES)):
        _plan(schedule, clock)
    schedule.updated_at = clock
    schedule.save(force_update=True)
    content = _content(schedule) | {"changed": changed + ["run"] * (changes.run is not UNSET)}
    _record(schedule, principal.actor, "schedule.changed", content, now)


def pause_schedule(*, tenant: UUID, principal: Principal, schedule_id: UUID, now: datetime) -> None:
    """Stop a schedule until it is resumed; the times in between do not count as missed. Raises NotFound, ScheduleEnded."""
    schedule = _locked(principal, schedule_id)
    if schedule.status == "ended":
        raise ScheduleEnded("There is nothing to pause.")
    if schedule.status != "paused":
        _stop(schedule, "paused", None)
        _record(schedule, principal.actor, "schedule.paused", {"name": schedule.name}, now)


def resume_schedule(*, tenant: UUID, principal: Principal, schedule_id: UUID, now: datetime) -> None:
    """Go on with a paused or suspended schedule, acting for `principal`. Raises NotFound, Forbidden, ScheduleEnded."""
    schedule = _locked(principal, schedule_id)
    if schedule.status == "active":
        return
    _act_for(schedule, principal)
    clock = _clock()
    if not _plan(schedule, clock):
        raise ScheduleEnded("There is no planned time left; change the schedule first.")
    schedule.updated_at = clock
    schedule.save(force_update=True)
    _record(schedule, principal.actor, "schedule.resumed", {"name": schedule.name}, now)


def delete_schedule(*, tenant: UUID, principal: Principal, schedule_id: UUID, now: datetime) -> None:
    """Remove a schedule and its history; its runs stay. Raises NotFound."""
    schedule = _locked(principal, schedule_id)
    ScheduleFire.objects.filter(schedule_id=schedule_id).delete()
    Schedule.objects.filter(id=schedule_id).delete()
    _record(schedule, principal.actor, "schedule.deleted", _content(schedule), now)


def run_now(*, tenant: UUID, principal: Principal, schedule_id: UUID, now: datetime) -> UUID:
    """Start a run at once, whatever the schedule's status and overlap policy; the run's id. Planned times stay as they are.

    Raises NotFound, Forbidden, and what creating a run raises.
    """
    schedule = _locked(principal, schedule_id)
    tenancy.require(principal, "runs:write")
    clock = _clock()
    fire = ScheduleFire(
        id=ids.uuid7(), schedule_id=schedule.id, planned_at=clock, manual=True, missed=0, fired_at=clock
    )
    acting = replace(principal, project_ids=frozenset([schedule.project_id]), agent_id=schedule.agent_id)
    fire.outcome, fire.run_id = "started", _start(schedule, acting, f"now:{fire.id}", now)
    fire.save(force_insert=True)
    Schedule.objects.filter(id=schedule_id).update(last_run_id=fire.run_id)
    content = {"name": schedule.name, "run": str(fire.run_id)}
    _record(schedule, principal.actor, "schedule.run_now", content, now)
    assert fire.run_id is not None
    return fire.run_id


# Firing ---------------------------------------------------------------------------------------------------------------


def fire_schedules(*, limit: int = 1000) -> int:
    """Look at every due schedule; how many planned times were dealt with. Each is a transaction of its own."""
    fired = 0
    for tenant, schedule_id in pool.rows(DUE, (limit,)):
        try:
            for _ in range(timetable.MAX_CATCH_UP):
                if not fire_schedule(tenant=tenant, schedule_id=schedule_id):
                    break
                fired += 1
        except Exception:  # of one schedule: the others go on, and the next sweep tries it again
            logger.exception("schedule_not_fired", extra={"tenant": str(tenant), "schedule": str(schedule_id)})
    return fired


def fire_schedule(*, tenant: UUID, schedule_id: UUID) -> bool:
    """Deal with the next planned time of a schedule, if it is due. False when there was nothing to do."""
    with context.tenant_scope(tenant):
        rows = Schedule.objects.select_for_update(skip_locked=True, no_key=True)
        schedule: Schedule | None = rows.filter(id=schedule_id, status="active").first()
        if schedule is None or schedule.next_at is None:
            return False
        clock = _clock()
        found = timetable.fire(
            timetable_of(schedule),
            missed=schedule.missed,  # type: ignore[arg-type]  # as the API accepted it
            jitter=Jitter(schedule.id, schedule.jitter_seconds),
            next_at=schedule.next_at,
            now=clock,
        )
        if found is None:
            return False
        _carry_out(schedule, found, clock)
    return True


def _carry_out(schedule: Schedule, found: Fire, clock: datetime) -> None:
    fire = ScheduleFire(
        id=ids.uuid7(), schedule_id=schedule.id, planned_at=found.planned, manual=False, missed=found.missed, fired_at=clock
    )  # fmt: skip
    schedule.last_planned_at = found.planned
    if found.next_at is None:
        _stop(schedule, "ended", None, save=False)
    else:
        schedule.next_at, schedule.due_at = (
            found.next_at,
            Jitter(schedule.id, schedule.jitter_seconds).due(found.next_at),
        )
    if not found.runs:
        fire.outcome = "missed"
    elif schedule.overlap == "skip" and _is_open(schedule.last_run_id):
        fire.outcome = "overlapped"
    else:
        try:
            with transaction.atomic():
                fire.run_id = _start(schedule, _acting(schedule, clock), found.planned.isoformat(), clock)
            fire.outcome, schedule.last_run_id = "started", fire.run_id
        except DomainError as error:
            if error.status >= 500:
                raise
            fire.outcome = "refused"
            fire.reason = error.reason if isinstance(error, ScheduleRefused) else error.code
            _stop(schedule, "suspended", fire.reason, save=False)
            schedule.updated_at = clock
            content = {"name": schedule.name, "planned_at": found.planned.isoformat(), "reason": fire.reason}
            _record(schedule, actors.system("schedules"), "schedule.suspended", content, clock)
    fire.save(force_insert=True)
    schedule.save(force_update=True)


def _start(schedule: Schedule, principal: Principal, time: str, now: datetime) -> UUID:
    """The run of one fire, in the open transaction: one for each `time`, however often it is asked for."""
    template = open_template(schedule)
    request, digest = json.decode_request(template, RunIn, max_bytes=len(template))
    created = create_run(
        tenant=schedule.tenant_id, principal=principal, request=request, digest=digest, body=template,
        idempotency_key=f"schedule:{schedule.id}:{time}", now=now, scheduled=True,
    )  # fmt: skip
    return created.run_id


def _acting(schedule: Schedule, clock: datetime) -> Principal:
    """The key that the schedule acts for, as it is now. Raises ScheduleRefused."""
    key: ApiKey = ApiKey.objects.get(id=schedule.key_id)
    for _ in range(_MOST_SUCCESSORS):
        if _is_active(key, clock) or key.replaced_by is None:
            break
        key = ApiKey.objects.get(id=key.replaced_by)
    if not _is_active(key, clock):
        raise ScheduleRefused("key_revoked" if key.revoked_at is not None else "key_expired")
    in_place = (key.project_ids is None or schedule.project_id in key.project_ids) and (
        key.agent_id is None or key.agent_id == schedule.agent_id
    )
    if "runs:write" not in key.scopes or not in_place:
        raise ScheduleRefused("key_lacks_scope")
    schedule.key_id = key.id
    return Principal(
        kind="key", id=key.id, tenant_id=schedule.tenant_id, tenant_slug="", name=key.name, actions=frozenset(key.scopes),
        agent_id=schedule.agent_id, project_ids=frozenset([schedule.project_id]), version=key.version,
    )  # fmt: skip


def _is_active(key: ApiKey, clock: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > clock)


def _is_open(run_id: UUID | None) -> bool:
    return run_id is not None and Run.objects.filter(id=run_id).exclude(status__in=RUN_ENDS).exists()


# Parts ----------------------------------------------------------------------------------------------------------------


def _act_for(schedule: Schedule, principal: Principal) -> None:
    """Whoever says what runs, or lets it run, answers for it: with the power to start runs, and within its bounds."""
    tenancy.require(principal, "runs:write")
    schedule.key_id = principal.id


def _set_template(schedule: Schedule, principal: Principal, request: RunIn, template: bytes, now: datetime) -> None:
    guard.inspect(template)
    try:
        workflow = registry.workflow_version(
            tenant=schedule.tenant_id, name=request.workflow, version=request.workflow_version
        )
        check_plan(plan_of(request, workflow))
        place = place_of(schedule.tenant_id, principal, request, now)
    except InvalidRun as error:
        fields = tuple(replace(field, path=f"/run{field.path}") for field in error.fields)
        raise InvalidRun(error.detail, fields=fields) from error
    key = keys.data_key(tenant=schedule.tenant_id, key_id=place.data_key_id)
    schedule.project_id, schedule.agent_id, schedule.data_key_id = place.project_id, place.agent_id, place.data_key_id
    schedule.workflow = request.workflow
    schedule.template = codec.seal(key, context=schedule.id.bytes, label=TEMPLATE, body=template).blob


def _check(schedule: Schedule) -> None:
    """Raise InvalidSchedule, naming the field, when the times make no sense."""
    if (schedule.cron is None) == (schedule.every_seconds is None):
        raise _invalid("cron", "Send either cron or every_seconds, and null for the other.")
    if schedule.time_zone not in timetable.zones():
        raise _invalid("time_zone", "This is no time zone of the IANA database, such as Asia/Kolkata.")
    if schedule.cron is not None:
        try:
            timetable.check_cron(schedule.cron)
        except InvalidCron as error:
            raise _invalid("cron", str(error)) from error
    elif schedule.every_seconds is not None and schedule.jitter_seconds > schedule.every_seconds:
        raise _invalid("jitter_seconds", "This may be at most every_seconds.")
    if schedule.starts_at is not None and schedule.ends_at is not None and schedule.starts_at >= schedule.ends_at:
        raise _invalid("ends_at", "The end must come after the start.")


def _plan(schedule: Schedule, clock: datetime) -> bool:
    """Make it active, looking for the next planned time after now and after the last one; False, and ended, when there is none."""
    after = clock if schedule.last_planned_at is None else max(clock, schedule.last_planned_at)
    found = timetable_of(schedule).after(after)
    if found is None:
        _stop(schedule, "ended", None, save=False)
        return False
    schedule.status, schedule.reason = "active", None
    schedule.next_at, schedule.due_at = found, Jitter(schedule.id, schedule.jitter_seconds).due(found)
    return True


def _stop(schedule: Schedule, status: str, reason: str | None, *, save: bool = True) -> None:
    schedule.status, schedule.reason, schedule.next_at, schedule.due_at = status, reason, None, None
    if save:
        schedule.updated_at = _clock()
        schedule.save(force_update=True)


def _locked(principal: Principal, schedule_id: UUID) -> Schedule:
    found = visible(principal).select_for_update(no_key=True).filter(id=schedule_id).first()
    if found is None:
        raise NotFound("There is no such schedule.")
    return found


def _clock() -> datetime:
    """The database's clock, by which schedules go."""
    with connection.cursor() as cursor:
        cursor.execute("select clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def _content(schedule: Schedule) -> dict[str, Any]:
    found = {name: getattr(schedule, name) for name in _DEFINITION}
    return {"workflow": schedule.workflow, "key": str(schedule.key_id)} | {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in found.items()
    }


def _record(schedule: Schedule, actor: Actor, action: str, content: Mapping[str, object], now: datetime) -> None:
    audit_ops.record(
        tenant=schedule.tenant_id, actor=actor, action=action, target_kind="schedule", target_id=schedule.id,
        content=content, now=now,
    )  # fmt: skip


def _invalid(field: str, message: str) -> InvalidSchedule:
    return InvalidSchedule(message, fields=(FieldError(path=f"/{field}", code="invalid_schedule", message=message),))


def raw_run(body: bytes) -> bytes | None:
    """The JSON text of the member `run` of a checked body, to the letter."""
    found = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("run")
    return None if found is None else bytes(found)
