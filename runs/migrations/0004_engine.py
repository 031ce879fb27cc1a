"""Effects, gates, waits and queues."""

import django.contrib.postgres.fields
from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel import roles
from kernel.rls import TenantTable, definer_function, policy_sql
from runs.functions import functions

CHANGES = "select, insert, update"

# Decisions are found by the key of their request alone. The dependencies of a plan are written by one function from the plan's own
# steps: checking each again was most of what a plan of thousands costs.
TABLES = f"""
create table runs_decision (
    tenant_id uuid not null, run_id uuid not null, lease_id uuid not null, effect_id uuid, epoch integer not null,
    decided_at timestamptz not null, key_digest bytea not null, request_digest bytea not null, decision text not null,
    detail jsonb not null, primary key (tenant_id, run_id, key_digest, lease_id)
);
create index runs_decision_lease on runs_decision (tenant_id, lease_id);
{policy_sql("runs_decision")}
grant select, insert, update on runs_decision to {roles.APP};
create policy definer on runs_step for select to {roles.DEFINER} using (true);
grant select on runs_step to {roles.DEFINER};
alter table runs_stepdependency drop constraint runs_stepdependency_run_id_fk, drop constraint runs_stepdependency_step_id_fk,
    drop constraint runs_stepdependency_depends_on_id_fk;
create trigger allowed_moves before insert or update of status on runs_effect
    for each row execute function runs_refuse_move('effect', 'reserved');
create trigger allowed_moves before insert or update of status on runs_gate
    for each row execute function runs_refuse_move('gate', 'open');
create trigger allowed_moves before insert or update of status on runs_grant
    for each row execute function runs_refuse_move('grant', 'unused');
alter table runs_effect set (fillfactor = 70);
alter table runs_queue set (fillfactor = 50);
"""

# A step that is to be tried later waits since; the steps of a run that stopped are blocked; every queue has a row.
DATA = """
alter table runs_step no force row level security;
alter table runs_run no force row level security;
alter table runs_queue no force row level security;
alter table runs_step disable trigger user;
update runs_step s set status = 'blocked' from runs_run r
where r.tenant_id = s.tenant_id and r.id = s.run_id and r.status = 'dead_letter' and s.status = 'runnable';
update runs_step set status = 'waiting', wait_kind = 'retry' where status = 'runnable' and due_at > clock_timestamp();
insert into runs_queue (tenant_id, id, name, turn, paused)
select distinct on (tenant_id, queue) tenant_id, uuidv7(), queue, 0, false from runs_step;
alter table runs_step enable trigger user;
alter table runs_step force row level security;
alter table runs_run force row level security;
alter table runs_queue force row level security;
"""

# What is due, in every tenant: ids only.
DUE = "drop function runs_expired_leases(integer);" + definer_function(
    "runs_due(integer)",
    """create function runs_due(p_limit integer) returns table (kind text, tenant uuid, id uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        (select 'lease', a.tenant_id, a.id from runs_attempt a
         where a.ended_at is null and a.expires_at <= clock_timestamp() order by a.expires_at limit p_limit)
        union all
        (select 'step', s.tenant_id, s.id from runs_step s
         where s.status = 'waiting' and s.due_at <= clock_timestamp() order by s.due_at limit p_limit)
        union all
        (select 'run', r.tenant_id, r.id from runs_run r
         where r.completed_at is null and r.deadline_at <= clock_timestamp() order by r.deadline_at limit p_limit)
        union all
        (select 'run', r.tenant_id, r.id from runs_run r
         where r.completed_at is null and r.cancel_at is not null order by r.cancel_at limit p_limit)
        union all
        (select 'gate', g.tenant_id, g.id from runs_gate g
         where g.status = 'open' and g.expires_at <= clock_timestamp() order by g.expires_at limit p_limit)
        union all
        (select 'effect', e.tenant_id, e.id from runs_effect e
         where e.owner in ('worker', 'probe') and e.give_up_at <= clock_timestamp() order by e.give_up_at limit p_limit)
    $$""",
)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0003_registry"),
    ]

    operations = [
        migrations.CreateModel(
            name="Decision",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "tenant_id",
                        "run_id",
                        "key_digest",
                        "lease_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("run_id", models.UUIDField()),
                ("key_digest", models.BinaryField()),
                ("request_digest", models.BinaryField()),
                ("lease_id", models.UUIDField()),
                ("epoch", models.IntegerField()),
                ("effect_id", models.UUIDField(null=True)),
                ("decision", models.CharField(max_length=16)),
                ("detail", models.JSONField()),
                ("decided_at", models.DateTimeField()),
            ],
            options={
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Effect",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("step_id", models.UUIDField()),
                ("project_id", models.UUIDField()),
                ("tool_id", models.UUIDField()),
                ("tool", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=64)),
                ("status", models.CharField(max_length=24)),
                ("attempts", models.IntegerField()),
                ("lease_id", models.UUIDField(null=True)),
                ("epoch", models.IntegerField(null=True)),
                ("owner", models.CharField(max_length=8, null=True)),
                ("failure_class", models.CharField(max_length=24, null=True)),
                ("rule", models.CharField(max_length=64, null=True)),
                ("input_digest", models.BinaryField()),
                ("input_seq", models.BigIntegerField()),
                ("outcome_seq", models.BigIntegerField(null=True)),
                ("amount", models.DecimalField(decimal_places=6, max_digits=18, null=True)),
                ("currency", models.CharField(max_length=3, null=True)),
                ("counted_on", models.DateField(null=True)),
                ("gate_id", models.UUIDField(null=True)),
                ("compensates_id", models.UUIDField(null=True)),
                ("deadline_at", models.DateTimeField(null=True)),
                ("give_up_at", models.DateTimeField(null=True)),
                ("settle_at", models.DateTimeField(null=True)),
                ("retry", models.JSONField(null=True)),
                ("probed", models.BooleanField(default=False)),
                ("retry_at", models.DateTimeField(null=True)),
                ("probe_at", models.DateTimeField(null=True)),
                ("probes", models.IntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("updated_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Evidence",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("effect_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("lease_id", models.UUIDField(null=True)),
                ("kind", models.CharField(max_length=16)),
                ("outcome", models.CharField(max_length=16)),
                ("seq", models.BigIntegerField()),
                ("recorded_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Gate",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("step_id", models.UUIDField()),
                ("effect_id", models.UUIDField()),
                ("rule", models.CharField(max_length=64)),
                ("status", models.CharField(max_length=16)),
                ("action_digest", models.BinaryField()),
                ("opened_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("decided_at", models.DateTimeField(null=True)),
                ("decided_by", models.UUIDField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Grant",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("gate_id", models.UUIDField()),
                ("effect_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("action_digest", models.BinaryField()),
                ("status", models.CharField(max_length=16)),
                ("minted_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("turn", models.BigIntegerField(default=0)),
                ("paused", models.BooleanField(default=False)),
                ("max_leased", models.IntegerField(null=True)),
                ("rate_per_minute", models.FloatField(null=True)),
                ("burst", models.FloatField(null=True)),
                ("tokens", models.FloatField(null=True)),
                ("refilled_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Signal",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("name", models.CharField(max_length=64)),
                ("seq", models.BigIntegerField()),
                ("key_digest", models.BinaryField()),
                ("request_digest", models.BinaryField()),
                ("received_at", models.DateTimeField()),
                ("taken_at", models.DateTimeField(null=True)),
                ("taken_by_id", models.UUIDField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="ToolUsage",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("tool", models.CharField(max_length=64)),
                ("day", models.DateField()),
                ("currency", models.CharField(max_length=3)),
                ("calls", models.IntegerField(default=0)),
                ("amount", models.DecimalField(decimal_places=6, default=0, max_digits=24)),
                ("tokens", models.FloatField(null=True)),
                ("refilled_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.RemoveConstraint(
            model_name="attempt",
            name="runs_attempt_outcome_known",
        ),
        migrations.RemoveIndex(
            model_name="step",
            name="runs_step_due",
        ),
        migrations.AddField(
            model_name="attempt",
            name="claim_key",
            field=models.BinaryField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="cancel_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="deadline_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="ending",
            field=models.CharField(max_length=16, null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="parent_run_id",
            field=models.UUIDField(null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="compensates_id",
            field=models.UUIDField(null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="deadline_seconds",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="requires",
            field=django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), null=True, size=None),
        ),
        migrations.AddField(
            model_name="step",
            name="retry",
            field=models.JSONField(null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="turn",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="step",
            name="wait_id",
            field=models.UUIDField(null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="wait_kind",
            field=models.CharField(max_length=16, null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="wait_name",
            field=models.CharField(max_length=64, null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="wake_reason",
            field=models.CharField(max_length=16, null=True),
        ),
        migrations.AddField(
            model_name="step",
            name="wake_seq",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AlterField(
            model_name="step",
            name="due_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                models.F("tenant_id"),
                models.F("claim_key"),
                condition=models.Q(("claim_key__isnull", False)),
                name="runs_attempt_claim",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("tenant_id"),
                models.F("parent_run_id"),
                condition=models.Q(("parent_run_id__isnull", False)),
                name="runs_run_children",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("deadline_at"),
                condition=models.Q(("completed_at__isnull", True), ("deadline_at__isnull", False)),
                name="runs_run_deadline",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("cancel_at"),
                condition=models.Q(("cancel_at__isnull", False), ("completed_at__isnull", True)),
                name="runs_run_cancel",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                models.F("tenant_id"),
                models.F("queue"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("turn"),
                models.F("id"),
                condition=models.Q(("status", "runnable")),
                name="runs_step_next",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                models.F("tenant_id"),
                models.F("run_id"),
                models.F("queue"),
                models.F("turn"),
                condition=models.Q(("status", "runnable")),
                name="runs_step_line",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                models.F("tenant_id"),
                models.F("queue"),
                condition=models.Q(("status", "leased")),
                name="runs_step_leased",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                models.F("due_at"),
                models.F("tenant_id"),
                condition=models.Q(("due_at__isnull", False), ("status", "waiting")),
                name="runs_step_wakes",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                models.F("tenant_id"),
                models.F("wait_id"),
                condition=models.Q(("status", "waiting"), ("wait_id__isnull", False)),
                name="runs_step_waits_for",
            ),
        ),
        migrations.AddConstraint(
            model_name="attempt",
            constraint=models.CheckConstraint(
                condition=models.Q(("outcome__in", ["succeeded", "failed", "lost", "cancelled", "released"])),
                name="runs_attempt_outcome_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("ending__in", ["cancelled", "failed"])), name="runs_run_ending_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="step",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("status", "waiting"),
                        ("wait_kind__in", ("retry", "timer", "signal", "child", "gate", "reconciliation")),
                        ("wait_kind__isnull", False),
                    ),
                    models.Q(models.Q(("status", "waiting"), _negated=True), ("wait_kind__isnull", True)),
                    _connector="OR",
                ),
                name="runs_step_waiting_names_reason",
            ),
        ),
        migrations.AddIndex(
            model_name="effect",
            index=models.Index(models.F("tenant_id"), models.F("run_id"), models.F("id"), name="runs_effect_run"),
        ),
        migrations.AddIndex(
            model_name="effect",
            index=models.Index(
                models.F("tenant_id"),
                models.F("status"),
                models.OrderBy(models.F("updated_at"), descending=True),
                models.OrderBy(models.F("id"), descending=True),
                name="runs_effect_status",
            ),
        ),
        migrations.AddIndex(
            model_name="effect",
            index=models.Index(
                models.F("tenant_id"),
                models.F("tool"),
                condition=models.Q(("status", "in_flight")),
                name="runs_effect_in_flight",
            ),
        ),
        migrations.AddIndex(
            model_name="effect",
            index=models.Index(
                models.F("give_up_at"),
                condition=models.Q(("owner__in", ["worker", "probe"])),
                name="runs_effect_give_up",
            ),
        ),
        migrations.AddIndex(
            model_name="effect",
            index=models.Index(models.F("probe_at"), condition=models.Q(("owner", "probe")), name="runs_effect_probe"),
        ),
        migrations.AddIndex(
            model_name="effect",
            index=models.Index(
                models.F("tenant_id"),
                models.F("compensates_id"),
                condition=models.Q(("compensates_id__isnull", False)),
                name="runs_effect_undoes",
            ),
        ),
        migrations.AddConstraint(
            model_name="effect",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("owner__in", ["worker", "probe", "operator"]), ("owner__isnull", False), ("status", "unknown")
                    ),
                    models.Q(models.Q(("status", "unknown"), _negated=True), ("owner__isnull", True)),
                    _connector="OR",
                ),
                name="runs_effect_unknown_has_owner",
            ),
        ),
        migrations.AddConstraint(
            model_name="effect",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("deadline_at__isnull", False), ("lease_id__isnull", False), ("status", "in_flight")),
                    models.Q(("status", "in_flight"), _negated=True),
                    _connector="OR",
                ),
                name="runs_effect_in_flight_has_holder",
            ),
        ),
        migrations.AddConstraint(
            model_name="effect",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "status__in",
                        [
                            "reserved",
                            "in_flight",
                            "unknown",
                            "failed",
                            "reconciled_failed",
                            "succeeded",
                            "reconciled_succeeded",
                            "compensating",
                            "compensation_failed",
                            "compensated",
                            "cancelled",
                        ],
                    )
                ),
                name="runs_effect_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="effect",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status", "cancelled"), _negated=True),
                fields=("tenant_id", "key"),
                name="runs_effect_key_unique",
            ),
        ),
        migrations.AddIndex(
            model_name="evidence",
            index=models.Index(
                models.F("tenant_id"), models.F("effect_id"), models.F("seq"), name="runs_evidence_effect"
            ),
        ),
        migrations.AddIndex(
            model_name="gate",
            index=models.Index(
                models.F("tenant_id"),
                models.F("status"),
                models.OrderBy(models.F("opened_at"), descending=True),
                models.OrderBy(models.F("id"), descending=True),
                name="runs_gate_status",
            ),
        ),
        migrations.AddIndex(
            model_name="gate",
            index=models.Index(
                models.F("expires_at"),
                condition=models.Q(("expires_at__isnull", False), ("status", "open")),
                name="runs_gate_expiry",
            ),
        ),
        migrations.AddConstraint(
            model_name="gate",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status", "open")), fields=("tenant_id", "effect_id"), name="runs_gate_one_open"
            ),
        ),
        migrations.AddIndex(
            model_name="grant",
            index=models.Index(
                models.F("tenant_id"),
                models.F("effect_id"),
                condition=models.Q(("status", "unused")),
                name="runs_grant_unused",
            ),
        ),
        migrations.AddConstraint(
            model_name="grant",
            constraint=models.UniqueConstraint(fields=("tenant_id", "gate_id"), name="runs_grant_gate_unique"),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.UniqueConstraint(fields=("tenant_id", "name"), name="runs_queue_name_unique"),
        ),
        migrations.AddIndex(
            model_name="signal",
            index=models.Index(
                models.F("tenant_id"),
                models.F("run_id"),
                models.F("name"),
                models.F("seq"),
                condition=models.Q(("taken_at__isnull", True)),
                name="runs_signal_kept",
            ),
        ),
        migrations.AddConstraint(
            model_name="signal",
            constraint=models.UniqueConstraint(
                fields=("tenant_id", "run_id", "key_digest"), name="runs_signal_key_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="toolusage",
            constraint=models.UniqueConstraint(
                fields=("tenant_id", "tool", "day", "currency"), name="runs_toolusage_day_unique"
            ),
        ),
        TenantTable(
            "runs_effect",
            grants=CHANGES,
            foreign_keys=[
                ("run_id", "runs_run"),
                ("step_id", "runs_step"),
                ("tool_id", "runs_tool"),
                ("compensates_id", "runs_effect"),
            ],
            definer_reads=True,
        ),
        TenantTable(
            "runs_evidence",
            grants="select, insert",
            foreign_keys=[("effect_id", "runs_effect"), ("run_id", "runs_run")],
        ),
        TenantTable(
            "runs_gate",
            grants=CHANGES,
            foreign_keys=[("effect_id", "runs_effect"), ("run_id", "runs_run"), ("step_id", "runs_step")],
            definer_reads=True,
        ),
        TenantTable(
            "runs_grant",
            grants=CHANGES,
            foreign_keys=[("gate_id", "runs_gate"), ("effect_id", "runs_effect"), ("run_id", "runs_run")],
        ),
        TenantTable("runs_queue", grants=CHANGES),
        TenantTable("runs_signal", grants=CHANGES, foreign_keys=[("run_id", "runs_run")]),
        TenantTable("runs_toolusage", grants=CHANGES),
        migrations.RunSQL(TABLES),
        functions(),
        migrations.RunSQL(DATA),
        migrations.RunSQL(DUE),
    ]
