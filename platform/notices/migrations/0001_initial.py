"""Endpoints, deliveries and wishes. A wish ends with the membership, a delivery with its endpoint."""

import django.contrib.postgres.fields
from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable, definer_function

FOREIGN_KEYS = """
alter table notices_delivery add constraint notices_delivery_endpoint_fk
    foreign key (tenant_id, endpoint_id) references notices_endpoint (tenant_id, id) on delete cascade;
alter table notices_preference add constraint notices_preference_member_fk
    foreign key (tenant_id, member_id) references tenancy_member (tenant_id, id) on delete cascade;
-- Ciphertext does not compress.
alter table notices_delivery alter column body set storage external;
"""

AGED = definer_function(
    "notices_aged_tenants(timestamptz)",
    """create function notices_aged_tenants(p_before timestamptz) returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        with recursive first (tenant_id, created_at) as (
            (select tenant_id, created_at from notices_delivery order by tenant_id, created_at limit 1)
            union all
            select d.* from first f cross join lateral (
                select tenant_id, created_at from notices_delivery
                where tenant_id > f.tenant_id order by tenant_id, created_at limit 1) d
        )
        select tenant_id from first where created_at < p_before
    $$""",
)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("kernel", "0001_tenant_context"), ("tenancy", "0002_global_grants"), ("outbox", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("endpoint_id", models.UUIDField()),
                ("notice_id", models.UUIDField()),
                ("kind", models.CharField(max_length=64)),
                ("body", models.BinaryField()),
                ("message_id", models.UUIDField()),
                ("sendings", models.IntegerField()),
                ("attempts", models.IntegerField()),
                ("last_at", models.DateTimeField(null=True)),
                ("last_status", models.SmallIntegerField(null=True)),
                ("last_error", models.CharField(max_length=64, null=True)),
                ("latency_ms", models.IntegerField(null=True)),
                ("delivered_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"), models.F("endpoint_id"), models.F("id"), name="notices_delivery_endpoint"
                    ),
                    models.Index(models.F("tenant_id"), models.F("created_at"), name="notices_delivery_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "endpoint_id", "notice_id"), name="notices_delivery_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__regex", "^[a-z][a-z0-9_]*(\\.[a-z][a-z0-9_]*)*$")),
                        name="notices_delivery_kind_identifier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("last_error__isnull", True),
                            ("last_error__regex", "^[a-z][a-z0-9_]*(\\.[a-z][a-z0-9_]*)*$"),
                            _connector="OR",
                        ),
                        name="notices_delivery_error_identifier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("delivered_at__isnull", True), ("last_error__isnull", True), _connector="OR"
                        ),
                        name="notices_delivery_delivered_or_failed",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Endpoint",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("url", models.BinaryField()),
                ("secrets", models.BinaryField()),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), size=None),
                ),
                ("status", models.CharField(max_length=16)),
                ("disabled_reason", models.CharField(max_length=16, null=True)),
                ("previous_until", models.DateTimeField(null=True)),
                ("failing_since", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("disabled_reason__isnull", True), ("status", "active")),
                            models.Q(
                                ("disabled_reason__in", ["gone", "failing", "by_hand"]),
                                ("disabled_reason__isnull", False),
                                ("status", "disabled"),
                            ),
                            _connector="OR",
                        ),
                        name="notices_endpoint_disabled_for_a_reason",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Preference",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("member_id", models.UUIDField()),
                ("language", models.CharField(max_length=8)),
                (
                    "unwanted",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), size=None),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "member_id"), name="notices_preference_member")
                ],
            },
        ),
        TenantTable("notices_endpoint", grants="select, insert, update, delete"),
        TenantTable("notices_delivery", grants="select, insert, update, delete", definer_reads=True),
        TenantTable("notices_preference", grants="select, insert, update, delete"),
        migrations.RunSQL(FOREIGN_KEYS),
        migrations.RunSQL(AGED),
    ]
