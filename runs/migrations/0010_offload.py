"""Large payloads lie with the artifacts."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable, definer_function
from runs.functions import functions

DUE = definer_function(
    "runs_offloads_due(integer)",
    """create function runs_offloads_due(p_limit integer) returns table (tenant uuid, run uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select distinct o.tenant_id, o.run_id from (
            select x.tenant_id, x.run_id from runs_offload x where x.due_at <= clock_timestamp() order by x.due_at limit p_limit) o
    $$""",
) + definer_function(
    "runs_offload_tenants()",
    """create function runs_offload_tenants() returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select distinct o.tenant_id from runs_offload o
    $$""",
)


class Migration(migrations.Migration):
    dependencies = [("runs", "0009_artifacts")]
    operations = [
        migrations.CreateModel(
            name="Offload",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("size", models.BigIntegerField()),
                ("created_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index("due_at", condition=models.Q(("due_at__isnull", False)), name="runs_offload_due"),
                    models.Index("tenant_id", "run_id", name="runs_offload_run"),
                ],
            },
        ),
        TenantTable("runs_offload", grants="select, insert, update, delete", definer_reads=True),
        functions(),
        migrations.RunSQL(DUE),
    ]
