"""Schedules, and what each of their planned times came to."""

from typing import Final

from django.db import models
from django.db.models import Q

from kernel.models import TenantModel

STATUSES: Final = ("active", "paused", "suspended", "ended")
OUTCOMES: Final = ("started", "overlapped", "missed", "refused")


class Schedule(TenantModel):
    """When runs of a template begin. `key_id`: the API key that it acts for. `template`: the body of POST /runs, sealed.

    `next_at` is the planned time that is looked at next, and `due_at` that time with its jitter; null unless active.
    """

    name = models.CharField(max_length=64)
    status = models.CharField(max_length=16)
    reason = models.CharField(max_length=64, null=True)
    cron = models.CharField(max_length=120, null=True)
    every_seconds = models.IntegerField(null=True)
    time_zone = models.CharField(max_length=64)
    overlap = models.CharField(max_length=8)
    missed = models.CharField(max_length=8)
    jitter_seconds = models.IntegerField()
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    project_id = models.UUIDField()
    agent_id = models.UUIDField(null=True)
    key_id = models.UUIDField()
    workflow = models.CharField(max_length=64)
    template = models.BinaryField()
    data_key_id = models.UUIDField()
    next_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    last_planned_at = models.DateTimeField(null=True)
    last_run_id = models.UUIDField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(status__in=STATUSES), name="runs_schedule_status_known"),
            models.CheckConstraint(
                condition=Q(cron__isnull=True, every_seconds__isnull=False)
                | Q(cron__isnull=False, every_seconds__isnull=True),
                name="runs_schedule_cron_or_every",
            ),
            models.CheckConstraint(
                condition=Q(status="active", next_at__isnull=False, due_at__isnull=False)
                | (~Q(status="active") & Q(next_at__isnull=True, due_at__isnull=True)),
                name="runs_schedule_due_while_active",
            ),
            models.CheckConstraint(
                condition=Q(status="suspended", reason__isnull=False)
                | (~Q(status="suspended") & Q(reason__isnull=True)),
                name="runs_schedule_suspended_names_reason",
            ),
        ]
        indexes = [models.Index("due_at", condition=Q(due_at__isnull=False), name="runs_schedule_due")]


class ScheduleFire(TenantModel):
    """A planned time that came, or a run that a person asked for (`manual`): at most one for each time. `missed`: how many planned
    times before it were passed over.
    """

    schedule_id = models.UUIDField()
    planned_at = models.DateTimeField()
    manual = models.BooleanField()
    outcome = models.CharField(max_length=16)
    reason = models.CharField(max_length=64, null=True)
    missed = models.IntegerField()
    run_id = models.UUIDField(null=True)
    fired_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(outcome__in=OUTCOMES), name="runs_schedulefire_outcome_known"),
            models.CheckConstraint(
                condition=Q(outcome="started", run_id__isnull=False) | (~Q(outcome="started") & Q(run_id__isnull=True)),
                name="runs_schedulefire_run_when_started",
            ),
            models.UniqueConstraint(
                fields=["tenant_id", "schedule_id", "manual", "planned_at"], name="runs_schedulefire_once"
            ),
        ]
        indexes = [models.Index("tenant_id", "schedule_id", "id", name="runs_schedulefire_newest")]
