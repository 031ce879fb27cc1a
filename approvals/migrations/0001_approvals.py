"""Policies, requests, decisions; and what keeps gates and grants true to them."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import kernel.context
import kernel.ids
from approvals.functions import functions
from kernel.rls import TenantTable, definer_function

# What ends with the membership, and with nothing else.
MEMBERS = """
alter table approvals_policypermission add constraint approvals_policypermission_user_id_fk
    foreign key (tenant_id, user_id) references tenancy_member (tenant_id, user_id) on delete cascade;
alter table approvals_delegation add constraint approvals_delegation_from_member_id_fk
    foreign key (tenant_id, from_member_id) references tenancy_member (tenant_id, id) on delete cascade;
alter table approvals_delegation add constraint approvals_delegation_to_member_id_fk
    foreign key (tenant_id, to_member_id) references tenancy_member (tenant_id, id) on delete cascade;
"""
TRIGGERS = """
create trigger approvals_request_moves before insert or update of status, round on approvals_request
    for each row execute function approvals_refuse_move();
create trigger approvals_request_stands
    before update of digest, action, action_digest, policy_version_id, gate_id, effect_id, run_id on approvals_request
    for each row execute function approvals_refuse_change();
create trigger approvals_gate_closed after update of status on runs_gate
    for each row when (old.status = 'open' and new.status <> 'open') execute function approvals_gate_closed();
create trigger approvals_grant_earned before insert on runs_grant for each row execute function approvals_grant_earned();
create trigger approvals_grant_used before update of status on runs_grant
    for each row when (new.status = 'used' and old.status <> 'used') execute function approvals_grant_earned();
"""
DUE = definer_function(
    "approvals_due(integer)",
    """create function approvals_due(p_limit integer) returns table (tenant uuid, alarm uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select a.tenant_id, a.id from approvals_alarm a where a.due_at <= clock_timestamp() order by a.due_at limit p_limit
    $$""",
)


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0013_governed_gates"),
        ("tenancy", "0003_people_behind"),
    ]

    operations = [
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField()),
                ("kind", models.CharField(max_length=16)),
                ("actor_kind", models.CharField(max_length=8)),
                ("actor_id", models.UUIDField(null=True)),
                ("detail", models.JSONField(default=dict)),
                ("at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"), models.F("request_id"), models.F("id"), name="approvals_activity_request"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "viewed")),
                        fields=("tenant_id", "request_id", "actor_id"),
                        name="approvals_activity_viewed_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "kind__in",
                                (
                                    "opened",
                                    "viewed",
                                    "voted",
                                    "approved",
                                    "rejected",
                                    "commented",
                                    "asked",
                                    "answered",
                                    "edited",
                                    "superseded",
                                    "reminded",
                                    "escalated",
                                    "expired",
                                    "stale",
                                    "revalidated",
                                    "withdrawn",
                                    "revoked",
                                    "target_reported",
                                ),
                            )
                        ),
                        name="approvals_activity_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Alarm",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField()),
                ("round", models.IntegerField()),
                ("kind", models.CharField(max_length=10)),
                ("ordinal", models.SmallIntegerField()),
                ("due_at", models.DateTimeField(null=True)),
                ("fired_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("due_at"), condition=models.Q(("due_at__isnull", False)), name="approvals_alarm_due"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "request_id", "round", "kind", "ordinal"), name="approvals_alarm_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["reminder", "escalation", "closed"])),
                        name="approvals_alarm_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Comment",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField()),
                ("author_kind", models.CharField(max_length=8)),
                ("author_id", models.UUIDField()),
                ("kind", models.CharField(max_length=8)),
                ("answers_id", models.UUIDField(null=True)),
                ("text", models.BinaryField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"), models.F("request_id"), models.F("id"), name="approvals_comment_request"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["comment", "question", "answer"])),
                        name="approvals_comment_kind_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Delegation",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("from_member_id", models.UUIDField()),
                ("to_member_id", models.UUIDField(null=True)),
                ("policy_id", models.UUIDField(null=True)),
                ("away", models.BooleanField(default=False)),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("reason", models.BinaryField(null=True)),
                ("created_at", models.DateTimeField()),
                ("created_by", models.CharField(max_length=160)),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("to_member_id"),
                        condition=models.Q(("revoked_at__isnull", True)),
                        name="approvals_delegation_to",
                    ),
                    models.Index(
                        models.F("tenant_id"),
                        models.F("from_member_id"),
                        condition=models.Q(("revoked_at__isnull", True)),
                        name="approvals_delegation_from",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__gt", models.F("starts_at"))), name="approvals_delegation_window"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("from_member_id", models.F("to_member_id")), _negated=True),
                        name="approvals_delegation_to_another",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("away", True), ("to_member_id__isnull", False), _connector="OR"),
                        name="approvals_delegation_says_something",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Evidence",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField()),
                ("round", models.IntegerField()),
                ("position", models.SmallIntegerField()),
                ("kind", models.CharField(max_length=8)),
                ("event_run_id", models.UUIDField(null=True)),
                ("event_seq", models.BigIntegerField(null=True)),
                ("artifact_id", models.UUIDField(null=True)),
                ("digest", models.BinaryField()),
                ("snapshot", models.BinaryField()),
                ("observed_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("request_id"),
                        models.F("round"),
                        models.F("position"),
                        name="approvals_evidence_request",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["event", "artifact", "fact", "target"])),
                        name="approvals_evidence_kind_known",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Policy",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("priority", models.IntegerField(default=0)),
                ("enabled", models.BooleanField(default=True)),
                ("active_version", models.IntegerField()),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "permissions": [("decide", "May decide what this policy asks for")],
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "name"), name="approvals_policy_name_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="PolicyVersion",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("policy_id", models.UUIDField()),
                ("version", models.IntegerField()),
                ("rules", models.TextField()),
                ("created_at", models.DateTimeField()),
                ("created_by", models.CharField(max_length=160)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "policy_id", "version"), name="approvals_policyversion_number_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Request",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("gate_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("step_id", models.UUIDField()),
                ("effect_id", models.UUIDField()),
                ("project_id", models.UUIDField()),
                ("agent_id", models.UUIDField(null=True)),
                ("requester_id", models.UUIDField()),
                ("data_key_id", models.UUIDField()),
                ("tool_id", models.UUIDField()),
                ("tool", models.CharField(max_length=64)),
                ("tool_version", models.CharField(max_length=64)),
                ("status", models.CharField(max_length=16)),
                ("version", models.IntegerField(default=1)),
                ("round", models.IntegerField(default=1)),
                ("digest", models.BinaryField()),
                ("action_digest", models.BinaryField()),
                ("policy_id", models.UUIDField()),
                ("policy_version_id", models.UUIDField()),
                ("risk", models.CharField(max_length=8)),
                ("risk_rule", models.CharField(max_length=160)),
                ("amount", models.DecimalField(decimal_places=6, max_digits=18, null=True)),
                ("currency", models.CharField(max_length=3, null=True)),
                ("action", models.BinaryField()),
                ("action_size", models.BigIntegerField()),
                ("summary", models.BinaryField()),
                (
                    "excluded",
                    django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None),
                ),
                (
                    "editors",
                    django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None),
                ),
                ("self_approval", models.BooleanField(default=False)),
                ("step_up", models.BooleanField(default=False)),
                ("bulk", models.BooleanField(default=False)),
                ("grant_seconds", models.FloatField()),
                ("supersedes_id", models.UUIDField(null=True)),
                ("stale_reason", models.CharField(max_length=40, null=True)),
                ("opened_at", models.DateTimeField()),
                ("deadline_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        models.F("tenant_id"),
                        models.F("status"),
                        models.F("deadline_at"),
                        models.F("id"),
                        name="approvals_request_queue",
                    ),
                    models.Index(
                        models.F("tenant_id"),
                        models.OrderBy(models.F("opened_at"), descending=True),
                        models.OrderBy(models.F("id"), descending=True),
                        name="approvals_request_newest",
                    ),
                    models.Index(
                        models.F("tenant_id"),
                        models.F("effect_id"),
                        models.OrderBy(models.F("opened_at"), descending=True),
                        name="approvals_request_effect",
                    ),
                    models.Index(models.F("tenant_id"), models.F("run_id"), name="approvals_request_run"),
                    models.Index(
                        models.F("tenant_id"),
                        models.F("policy_id"),
                        condition=models.Q(("status__in", ["open", "stale"])),
                        name="approvals_request_policy",
                    ),
                    models.Index(
                        models.F("tenant_id"),
                        models.F("supersedes_id"),
                        condition=models.Q(("supersedes_id__isnull", False)),
                        name="approvals_request_successor",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "gate_id"), name="approvals_request_gate_unique"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                ["open", "stale", "approved", "rejected", "expired", "withdrawn", "superseded"],
                            )
                        ),
                        name="approvals_request_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("risk__in", ("low", "medium", "high", "critical"))),
                        name="approvals_request_risk_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "stale"), _negated=True),
                            ("stale_reason__isnull", False),
                            _connector="OR",
                        ),
                        name="approvals_request_stale_says_why",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RequestGroup",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField()),
                ("round", models.IntegerField()),
                ("position", models.SmallIntegerField()),
                ("name", models.CharField(max_length=64)),
                ("needed", models.SmallIntegerField()),
                (
                    "roles",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=20), default=list, size=None
                    ),
                ),
                ("approvers", models.BooleanField(default=False)),
                (
                    "keys",
                    django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "request_id", "round", "name"), name="approvals_requestgroup_name_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("needed__gte", 1)), name="approvals_requestgroup_needs_somebody"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Vote",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request_id", models.UUIDField()),
                ("round", models.IntegerField()),
                ("voter_kind", models.CharField(max_length=8)),
                ("voter_id", models.UUIDField()),
                ("authority_id", models.UUIDField()),
                (
                    "path",
                    django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None),
                ),
                ("group", models.CharField(max_length=64)),
                ("decision", models.CharField(max_length=8)),
                ("basis", models.CharField(max_length=16)),
                ("reason", models.BinaryField(null=True)),
                ("digest", models.BinaryField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "request_id", "round", "voter_id"), name="approvals_vote_voter_unique"
                    ),
                    models.UniqueConstraint(
                        fields=("tenant_id", "request_id", "round", "authority_id"),
                        name="approvals_vote_authority_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("decision__in", ["approve", "reject"])),
                        name="approvals_vote_decision_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("voter_kind__in", ["member", "key"])),
                        name="approvals_vote_voter_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PolicyPermission",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "content_object",
                    models.ForeignKey(
                        db_column="policy_id",
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="approvals.policy",
                    ),
                ),
                (
                    "permission",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="auth.permission",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "content_object", "user", "permission"),
                        name="approvals_policypermission_unique",
                    )
                ],
            },
        ),
        functions(),
        TenantTable("approvals_policy", grants="select, insert, update"),
        TenantTable(
            "approvals_policyversion", grants="select, insert", foreign_keys=[("policy_id", "approvals_policy")]
        ),
        TenantTable(
            "approvals_policypermission",
            grants="select, insert, update, delete",
            foreign_keys=[("policy_id", "approvals_policy")],
        ),
        TenantTable(
            "approvals_delegation",
            grants="select, insert, update",
            foreign_keys=[("policy_id", "approvals_policy")],
        ),
        TenantTable(
            "approvals_request",
            grants="select, insert, update",
            foreign_keys=[
                ("gate_id", "runs_gate"),
                ("run_id", "runs_run"),
                ("effect_id", "runs_effect"),
                ("policy_id", "approvals_policy"),
                ("policy_version_id", "approvals_policyversion"),
                ("supersedes_id", "approvals_request"),
            ],
        ),
        *(
            TenantTable(
                f"approvals_{table}",
                grants=grants,
                foreign_keys=[("request_id", "approvals_request")],
                definer_reads=read,
            )
            for table, grants, read in (
                ("requestgroup", "select, insert, update", False),
                ("evidence", "select, insert", False),
                ("vote", "select, insert", False),
                ("comment", "select, insert", False),
                ("activity", "select, insert", False),
                ("alarm", "select, insert, update", True),
            )
        ),
        migrations.RunSQL(MEMBERS + TRIGGERS + DUE),
    ]
