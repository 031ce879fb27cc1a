"""Artifacts and what refers to them."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable, definer_function
from runs.functions import functions

TRIGGERS = """
create trigger allowed_moves before insert or update of status on runs_artifact
    for each row execute function runs_refuse_move('artifact', 'uploading');
-- Ciphertext does not compress.
alter table runs_artifact alter column meta_sealed set storage external;
"""
# What is due, in every tenant: ids only.
DUE = definer_function(
    "runs_artifacts_due(integer)",
    """create function runs_artifacts_due(p_limit integer) returns table (tenant uuid, artifact uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select a.tenant_id, a.id from runs_artifact a where a.due_at <= clock_timestamp() order by a.due_at limit p_limit
    $$""",
) + definer_function(
    "runs_artifact_tenants()",
    """create function runs_artifact_tenants() returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select distinct a.tenant_id from runs_artifact a
    $$""",
)


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0008_metrics"),
    ]

    operations = [
        migrations.CreateModel(
            name="Artifact",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("project_id", models.UUIDField()),
                ("agent_id", models.UUIDField(null=True)),
                ("subject_id", models.UUIDField(null=True)),
                ("data_key_id", models.UUIDField()),
                ("run_id", models.UUIDField(null=True)),
                ("size", models.BigIntegerField()),
                ("content_digest", models.BinaryField()),
                ("meta_sealed", models.BinaryField()),
                ("object_id", models.UUIDField(null=True)),
                ("status", models.CharField(max_length=16)),
                ("verdict", models.CharField(max_length=16, null=True)),
                ("scanner", models.CharField(max_length=200, null=True)),
                ("scans", models.IntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                ("ready_at", models.DateTimeField(null=True)),
                ("due_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("due_at"), condition=models.Q(("due_at__isnull", False)), name="runs_artifact_due"
                    ),
                    models.Index(models.F("tenant_id"), models.F("run_id"), models.F("id"), name="runs_artifact_run"),
                    models.Index(models.F("tenant_id"), models.F("content_digest"), name="runs_artifact_content"),
                    models.Index(models.F("tenant_id"), models.F("object_id"), name="runs_artifact_object"),
                ],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("size__gte", 0)), name="runs_artifact_size_positive"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status__in", ["scanning", "ready"]), _negated=True),
                            ("object_id__isnull", False),
                            _connector="OR",
                        ),
                        name="runs_artifact_stored_has_object",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ArtifactReference",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("artifact_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("kind", models.CharField(max_length=8)),
                ("seq", models.BigIntegerField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("run_id"),
                        models.F("artifact_id"),
                        name="runs_artifactreference_run",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["event", "state", "payload"])),
                        name="runs_artifactreference_kind_known",
                    ),
                    models.UniqueConstraint(
                        fields=("tenant_id", "artifact_id", "run_id", "kind", "seq"),
                        name="runs_artifactreference_unique",
                    ),
                ],
            },
        ),
        TenantTable(
            "runs_artifact",
            grants="select, insert, update",
            foreign_keys=[
                ("project_id", "tenancy_project"),
                ("agent_id", "tenancy_agent"),
                ("subject_id", "privacy_subject"),
                ("run_id", "runs_run"),
            ],
            definer_reads=True,
        ),
        TenantTable(
            "runs_artifactreference",
            grants="select, insert",
            foreign_keys=[("artifact_id", "runs_artifact"), ("run_id", "runs_run")],
        ),
        functions(),
        migrations.RunSQL(TRIGGERS),
        migrations.RunSQL(DUE),
    ]
