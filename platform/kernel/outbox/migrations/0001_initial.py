"""The table of messages, the moves it allows, and what is due in every tenant: ids only."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.outbox.functions import functions
from kernel.rls import TenantTable, definer_function

TRIGGERS = """
create trigger allowed_moves before insert or delete or update of status on outbox_message
    for each row execute function outbox_refuse_move();
-- Ciphertext does not compress.
alter table outbox_message alter column body set storage external;
"""

# Both step from tenant to tenant by their index, so that a tenant with a hundred thousand messages costs what one with one does.
DUE = definer_function(
    "outbox_due_tenants(text[],integer)",
    """create function outbox_due_tenants(p_topics text[], p_limit integer) returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        with recursive first (tenant_id, topic, due_at) as (
            (select tenant_id, topic, due_at from outbox_message
             where status in ('pending', 'sending') and due_at is not null order by tenant_id, topic, due_at limit 1)
            union all
            select m.* from first f cross join lateral (
                select tenant_id, topic, due_at from outbox_message
                where status in ('pending', 'sending') and due_at is not null and (tenant_id, topic) > (f.tenant_id, f.topic)
                order by tenant_id, topic, due_at limit 1) m
        )
        select distinct tenant_id from first where due_at <= clock_timestamp() and topic = any (p_topics) limit p_limit
    $$""",
) + definer_function(
    "outbox_purgeable_tenants(double precision)",
    """create function outbox_purgeable_tenants(p_keep double precision) returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        with recursive first (tenant_id, ended_at) as (
            (select tenant_id, ended_at from outbox_message
             where status in ('sent', 'skipped') order by tenant_id, ended_at limit 1)
            union all
            select m.* from first f cross join lateral (
                select tenant_id, ended_at from outbox_message
                where status in ('sent', 'skipped') and tenant_id > f.tenant_id order by tenant_id, ended_at limit 1) m
        )
        select tenant_id from first where ended_at < clock_timestamp() - make_interval(secs => p_keep)
    $$""",
)


class Migration(migrations.Migration):
    initial = True
    dependencies = [("kernel", "0001_tenant_context")]
    operations = [
        migrations.CreateModel(
            name="Message",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=64)),
                ("ordering", models.UUIDField(null=True)),
                ("position", models.BigIntegerField()),
                ("dedup", models.CharField(max_length=200)),
                ("body", models.BinaryField(null=True)),
                ("status", models.CharField(max_length=16)),
                ("attempts", models.IntegerField()),
                ("due_at", models.DateTimeField(null=True)),
                ("lease_id", models.UUIDField(null=True)),
                ("last_error", models.CharField(max_length=64, null=True)),
                ("created_at", models.DateTimeField()),
                ("queued_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("topic"),
                        models.F("due_at"),
                        condition=models.Q(("due_at__isnull", False), ("status__in", ("pending", "sending"))),
                        name="outbox_message_due",
                    ),
                    models.Index(
                        models.F("tenant_id"),
                        models.F("ordering"),
                        models.F("position"),
                        condition=models.Q(("ordering__isnull", False), ("status__in", ("pending", "sending"))),
                        name="outbox_message_open",
                    ),
                    models.Index(
                        models.F("tenant_id"),
                        models.F("ended_at"),
                        condition=models.Q(("status__in", ("sent", "skipped"))),
                        name="outbox_message_over",
                    ),
                    models.Index(
                        models.F("tenant_id"), models.F("status"), models.F("id"), name="outbox_message_status"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("topic__regex", "^[a-z][a-z0-9_]*(\\.[a-z][a-z0-9_]*)*$")),
                        name="outbox_message_topic_identifier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("dedup__regex", "^[A-Za-z0-9][A-Za-z0-9._:/-]*$")),
                        name="outbox_message_dedup_identifier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("last_error__isnull", True),
                            ("last_error__regex", "^[a-z][a-z0-9_]*(\\.[a-z][a-z0-9_]*)*$"),
                            _connector="OR",
                        ),
                        name="outbox_message_error_identifier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["dead", "pending", "sending", "sent", "skipped"])),
                        name="outbox_message_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("body__isnull", True), ("status__in", ("sent", "skipped"))),
                            models.Q(
                                models.Q(("status__in", ("sent", "skipped")), _negated=True), ("body__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="outbox_message_body_until_over",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at__isnull", True), ("status__in", ("pending", "sending"))),
                            models.Q(
                                models.Q(("status__in", ("pending", "sending")), _negated=True),
                                ("ended_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="outbox_message_ended_at_end",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("due_at__isnull", False), ("lease_id__isnull", False), ("status", "sending")),
                            models.Q(models.Q(("status", "sending"), _negated=True), ("lease_id__isnull", True)),
                            _connector="OR",
                        ),
                        name="outbox_message_lease_while_sending",
                    ),
                    models.UniqueConstraint(fields=("tenant_id", "topic", "dedup"), name="outbox_message_dedup"),
                    models.UniqueConstraint(
                        condition=models.Q(("ordering__isnull", False)),
                        fields=("tenant_id", "ordering", "position"),
                        name="outbox_message_position",
                    ),
                ],
            },
        ),
        TenantTable("outbox_message", grants="select, insert, update, delete", definer_reads=True),
        functions(),
        migrations.RunSQL(TRIGGERS),
        migrations.RunSQL(DUE),
    ]
