"""Roll-ups of the logs, and what the operator of the platform sees of all tenants together: sums, and nothing else."""

from django.db import migrations, models

import kernel.context
from kernel.rls import TenantTable, definer_function, definer_reads_sql
from runs.functions import functions

CHANGES = "select, insert, update"

# Tenants whose feed was not counted to its end, and those whose feed has to go on first: ids only.
UNCOUNTED = definer_function(
    "runs_uncounted_tenants(integer)",
    """create function runs_uncounted_tenants(p_limit integer) returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select tenant_id from runs_feeddue
        union
        select h.tenant_id from runs_feedhead h left join runs_rollupcursor c on c.tenant_id = h.tenant_id
        where c.position is null or c.position <= h.position
        limit p_limit
    $$""",
)
# Sums over all tenants.
TOTALS = definer_function(
    "runs_platform_totals()",
    """create function runs_platform_totals() returns table (metric text, slot smallint, count bigint, total numeric)
    language sql stable security definer set search_path = public, pg_temp as $$
        select metric::text, slot, sum(count)::bigint, sum(total) from runs_rolluptotal group by metric, slot
    $$""",
)
# How things stand now, over all tenants.
GAUGES = definer_function(
    "runs_platform_gauges()",
    """create function runs_platform_gauges() returns table (name text, value double precision)
    language sql stable security definer set search_path = public, pg_temp as $$
        select 'steps_runnable', count(*) filter (where due_at <= clock_timestamp())::float8 from runs_step where status = 'runnable'
        union all
        select 'queue_age_seconds', coalesce(extract(epoch from clock_timestamp() - min(s.due_at)), 0)::float8
        from runs_step s join runs_run r on r.tenant_id = s.tenant_id and r.id = s.run_id
        where s.status = 'runnable' and s.due_at <= clock_timestamp() and r.status in ('pending', 'running')
        union all
        select 'steps_leased', count(*)::float8 from runs_attempt where ended_at is null
        union all
        select 'leases_expired', count(*)::float8 from runs_attempt where ended_at is null and expires_at <= clock_timestamp()
        union all
        select 'effects_unknown', count(*)::float8 from runs_effect where status = 'unknown'
        union all
        select 'effects_unknown_age_seconds', coalesce(extract(epoch from clock_timestamp() - min(updated_at)), 0)::float8
        from runs_effect where status = 'unknown'
        union all
        select 'runs_unanchored', count(*)::float8 from runs_anchordue
        union all
        select 'runs_uncounted', count(*)::float8 from runs_feeddue
        union all
        select 'audit_entries_unsealed', count(*)::float8 from audit_pending
    $$""",
)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0007_feed"),
        ("audit", "0001_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "tenant_id",
                        "hour",
                        "project_id",
                        "agent_id",
                        "workflow",
                        "workflow_version",
                        "agent_version",
                        "metric",
                        "name",
                        "slot",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("hour", models.DateTimeField()),
                ("project_id", models.UUIDField()),
                ("agent_id", models.UUIDField()),
                ("workflow", models.CharField(max_length=64)),
                ("workflow_version", models.CharField(max_length=64)),
                ("agent_version", models.CharField(max_length=64)),
                ("metric", models.CharField(max_length=32)),
                ("name", models.CharField(max_length=64)),
                ("slot", models.SmallIntegerField()),
                ("count", models.BigIntegerField()),
                ("total", models.DecimalField(decimal_places=9, max_digits=32)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RollupCursor",
            fields=[
                (
                    "tenant_id",
                    models.UUIDField(
                        default=kernel.context.current_tenant, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.BigIntegerField()),
                ("seq", models.BigIntegerField()),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RollupTotal",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "tenant_id", "metric", "slot", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("metric", models.CharField(max_length=32)),
                ("slot", models.SmallIntegerField()),
                ("count", models.BigIntegerField()),
                ("total", models.DecimalField(decimal_places=9, max_digits=32)),
            ],
            options={
                "abstract": False,
            },
        ),
        TenantTable("runs_rollup", grants="select, insert, update, delete", composite_key=False),
        TenantTable("runs_rolluptotal", grants=CHANGES, definer_reads=True, composite_key=False),
        TenantTable("runs_rollupcursor", grants=CHANGES, definer_reads=True, composite_key=False),
        migrations.RunSQL(definer_reads_sql("runs_feedhead")),
        functions(),
        migrations.RunSQL(UNCOUNTED),
        migrations.RunSQL(TOTALS),
        migrations.RunSQL(GAUGES),
    ]
