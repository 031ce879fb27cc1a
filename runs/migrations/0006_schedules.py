"""Schedules and their fires, and which are due in every tenant: ids only."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable, definer_function
from runs.functions import functions

DUE = definer_function(
    "runs_due_schedules(integer)",
    """create function runs_due_schedules(p_limit integer) returns table (tenant uuid, schedule uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select s.tenant_id, s.id from runs_schedule s
        where s.due_at is not null and s.due_at <= clock_timestamp() order by s.due_at limit p_limit
    $$""",
)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0005_resume"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("status", models.CharField(max_length=16)),
                ("reason", models.CharField(max_length=64, null=True)),
                ("cron", models.CharField(max_length=120, null=True)),
                ("every_seconds", models.IntegerField(null=True)),
                ("time_zone", models.CharField(max_length=64)),
                ("overlap", models.CharField(max_length=8)),
                ("missed", models.CharField(max_length=8)),
                ("jitter_seconds", models.IntegerField()),
                ("starts_at", models.DateTimeField(null=True)),
                ("ends_at", models.DateTimeField(null=True)),
                ("project_id", models.UUIDField()),
                ("agent_id", models.UUIDField(null=True)),
                ("key_id", models.UUIDField()),
                ("workflow", models.CharField(max_length=64)),
                ("template", models.BinaryField()),
                ("data_key_id", models.UUIDField()),
                ("next_at", models.DateTimeField(null=True)),
                ("due_at", models.DateTimeField(null=True)),
                ("last_planned_at", models.DateTimeField(null=True)),
                ("last_run_id", models.UUIDField(null=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("due_at"), condition=models.Q(("due_at__isnull", False)), name="runs_schedule_due"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ("active", "paused", "suspended", "ended"))),
                        name="runs_schedule_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("cron__isnull", True), ("every_seconds__isnull", False)),
                            models.Q(("cron__isnull", False), ("every_seconds__isnull", True)),
                            _connector="OR",
                        ),
                        name="runs_schedule_cron_or_every",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("due_at__isnull", False), ("next_at__isnull", False), ("status", "active")),
                            models.Q(
                                models.Q(("status", "active"), _negated=True),
                                ("due_at__isnull", True),
                                ("next_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="runs_schedule_due_while_active",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("reason__isnull", False), ("status", "suspended")),
                            models.Q(models.Q(("status", "suspended"), _negated=True), ("reason__isnull", True)),
                            _connector="OR",
                        ),
                        name="runs_schedule_suspended_names_reason",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleFire",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("schedule_id", models.UUIDField()),
                ("planned_at", models.DateTimeField()),
                ("manual", models.BooleanField()),
                ("outcome", models.CharField(max_length=16)),
                ("reason", models.CharField(max_length=64, null=True)),
                ("missed", models.IntegerField()),
                ("run_id", models.UUIDField(null=True)),
                ("fired_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"), models.F("schedule_id"), models.F("id"), name="runs_schedulefire_newest"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("outcome__in", ("started", "overlapped", "missed", "refused"))),
                        name="runs_schedulefire_outcome_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("outcome", "started"), ("run_id__isnull", False)),
                            models.Q(models.Q(("outcome", "started"), _negated=True), ("run_id__isnull", True)),
                            _connector="OR",
                        ),
                        name="runs_schedulefire_run_when_started",
                    ),
                    models.UniqueConstraint(
                        fields=("tenant_id", "schedule_id", "manual", "planned_at"), name="runs_schedulefire_once"
                    ),
                ],
            },
        ),
        TenantTable(
            "runs_schedule",
            grants="select, insert, update, delete",
            foreign_keys=[
                ("project_id", "tenancy_project"),
                ("agent_id", "tenancy_agent"),
                ("key_id", "tenancy_apikey"),
            ],
            definer_reads=True,
        ),
        TenantTable(
            "runs_schedulefire",
            grants="select, insert, delete",
            foreign_keys=[("schedule_id", "runs_schedule"), ("run_id", "runs_run")],
        ),
        functions(),
        migrations.RunSQL(DUE),
    ]
