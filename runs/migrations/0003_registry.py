"""What tenants register of tools and workflows."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable
from runs.functions import functions

# A version never changes, but for whether it may be used.
GRANTS = "select, insert, update (enabled)"


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0002_functions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Tool",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("version", models.CharField(max_length=64)),
                ("definition", models.TextField()),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                ("created_by", models.CharField(max_length=160)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("name"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        models.OrderBy(models.F("id"), descending=True),
                        name="runs_tool_newest",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "name", "version"), name="runs_tool_version_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="Workflow",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("version", models.CharField(max_length=64)),
                ("definition", models.TextField()),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                ("created_by", models.CharField(max_length=160)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("name"),
                        models.OrderBy(models.F("created_at"), descending=True),
                        models.OrderBy(models.F("id"), descending=True),
                        name="runs_workflow_newest",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "name", "version"), name="runs_workflow_version_unique"
                    )
                ],
            },
        ),
        TenantTable("runs_tool", grants=GRANTS),
        TenantTable("runs_workflow", grants=GRANTS),
        functions(),
    ]
