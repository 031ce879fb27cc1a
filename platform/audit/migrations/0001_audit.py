"""The audit log: entries, their chain, and the database's own refusal to change either.

Not partitioned: the log holds what people and keys administer, some rows a minute at most, not what agents do at full
speed. Every key and index begins with the tenant, so that it can be distributed or partitioned later.
"""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel import roles
from kernel.rls import TenantTable, definer_function

DIGESTS = """
alter table audit_entry
    add constraint audit_entry_digest_sizes check (octet_length(commitment) = 32 and octet_length(content_digest) = 32);
alter table audit_link
    add constraint audit_link_digest_sizes check (octet_length(prev_digest) = 32 and octet_length(digest) = 32),
    add constraint audit_link_position check (position >= 1);
alter table audit_head add constraint audit_head_digest_size check (octet_length(digest) = 32);
"""

# The eraser may only empty a payload. The owner is refused too; nobody else has the grants to begin with.
APPEND_ONLY = f"""
create function audit_refuse() returns trigger language plpgsql as $$
begin
    raise exception 'the audit log is append-only: % of % is refused', tg_op, tg_table_name
        using errcode = 'restrict_violation';
end $$;

create trigger append_only_update before update on audit_entry for each row
    when (current_user <> '{roles.ERASER}' or new.payload is not null
          or to_jsonb(new) - 'payload' is distinct from to_jsonb(old) - 'payload')
    execute function audit_refuse();
create trigger append_only before delete on audit_entry for each row execute function audit_refuse();
create trigger append_only_truncate before truncate on audit_entry for each statement execute function audit_refuse();
grant select, update (payload) on audit_entry to {roles.ERASER};

create trigger append_only before update or delete on audit_link for each row execute function audit_refuse();
create trigger append_only_truncate before truncate on audit_link for each statement execute function audit_refuse();

create trigger forward_only before update on audit_head for each row
    when (new.tenant_id <> old.tenant_id or new.position <= old.position) execute function audit_refuse();
create trigger append_only before delete on audit_head for each row execute function audit_refuse();
create trigger append_only_truncate before truncate on audit_head for each statement execute function audit_refuse();
"""

PENDING = """
create function audit_mark_pending() returns trigger language plpgsql as $$
begin
    insert into audit_pending (tenant_id, entry_id) values (new.tenant_id, new.id);
    return null;
end $$;
create trigger mark_pending after insert on audit_entry for each row execute function audit_mark_pending();
"""

# One sealer of a tenant at a time; should two ever run at once, the unique predecessor stops one of them. Each
# statement after the lock sees what the sealer before committed. The chain goes on from the recorded head, so that a
# tail that was cut off leaves a gap.
SEAL = """
create function audit_seal(tenant uuid, most integer) returns integer language plpgsql as $$
declare
    place bigint;
    prev bytea;
    link bytea;
    moment timestamptz := clock_timestamp();
    sealed integer := 0;
    entry record;
begin
    perform smriti_enter(tenant);
    perform pg_advisory_xact_lock(hashtextextended('smriti:audit:' || tenant, 0));
    select head.position, head.digest into place, prev from audit_head head where head.tenant_id = tenant;
    if not found then
        place := 0;
        prev := sha256('smriti:audit-genesis:v1'::bytea || '\\x00'::bytea || uuid_send(tenant));
    end if;
    for entry in
        select e.id, e.content_digest
        from audit_pending p join audit_entry e on e.tenant_id = p.tenant_id and e.id = p.entry_id
        where p.tenant_id = tenant order by p.entry_id limit most
    loop
        sealed := sealed + 1;
        place := place + 1;
        link := sha256('smriti:audit-link:v1'::bytea || '\\x00'::bytea || prev || uuid_send(tenant) || int8send(place)
                       || uuid_send(entry.id) || entry.content_digest
                       || int8send((extract(epoch from moment) * 1000000)::bigint));
        insert into audit_link (tenant_id, position, entry_id, prev_digest, digest, sealed_at)
        values (tenant, place, entry.id, prev, link, moment);
        delete from audit_pending p where p.tenant_id = tenant and p.entry_id = entry.id;
        prev := link;
    end loop;
    if sealed > 0 then
        insert into audit_head (tenant_id, position, digest) values (tenant, place, prev)
        on conflict (tenant_id) do update set position = excluded.position, digest = excluded.digest;
    end if;
    return sealed;
end $$;
revoke all on function audit_seal(uuid, integer) from public;
"""
SEAL_GRANT = f"grant execute on function audit_seal(uuid, integer) to {roles.APP}"

UNSEALED = definer_function(
    "audit_unsealed_tenants()",
    """create function audit_unsealed_tenants() returns setof uuid
       language sql stable security definer set search_path = public, pg_temp
       as 'select distinct tenant_id from audit_pending'""",
)


class Migration(migrations.Migration):
    initial = True
    dependencies = [("kernel", "0001_tenant_context")]
    operations = [
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("recorded_at", models.DateTimeField()),
                ("actor_kind", models.CharField(db_collation="C", max_length=16)),
                ("actor_id", models.UUIDField(null=True)),
                ("action", models.CharField(db_collation="C", max_length=80)),
                ("target_kind", models.CharField(db_collation="C", max_length=40)),
                ("target_id", models.CharField(db_collation="C", max_length=120)),
                ("payload", models.BinaryField(null=True)),
                ("commitment", models.BinaryField(max_length=32)),
                ("content_digest", models.BinaryField(max_length=32)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant_id", "recorded_at", "id"], name="audit_entry_time"),
                    models.Index(fields=["tenant_id", "actor_id", "recorded_at", "id"], name="audit_entry_actor"),
                    models.Index(fields=["tenant_id", "target_id", "recorded_at", "id"], name="audit_entry_target"),
                    models.Index(
                        fields=["tenant_id", "target_kind", "recorded_at", "id"], name="audit_entry_target_kind"
                    ),
                    models.Index(fields=["tenant_id", "action", "recorded_at", "id"], name="audit_entry_action"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(actor_kind__in=("key", "member", "system")),
                        name="audit_entry_actor_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(action__regex=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$"),
                        name="audit_entry_action_identifier",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            target_kind__regex=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$",
                            target_id__regex=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$",
                        ),
                        name="audit_entry_target_identifier",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Pending",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "tenant_id", "entry_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("entry_id", models.UUIDField()),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="Link",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "tenant_id", "position", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.BigIntegerField()),
                ("entry_id", models.UUIDField()),
                ("prev_digest", models.BinaryField(max_length=32)),
                ("digest", models.BinaryField(max_length=32)),
                ("sealed_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=["tenant_id", "prev_digest"], name="audit_link_no_fork"),
                    models.UniqueConstraint(fields=["tenant_id", "entry_id"], name="audit_link_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Head",
            fields=[
                (
                    "tenant_id",
                    models.UUIDField(
                        default=kernel.context.current_tenant, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.BigIntegerField()),
                ("digest", models.BinaryField(max_length=32)),
            ],
            options={"abstract": False},
        ),
        TenantTable("audit_entry", grants="select, insert"),
        TenantTable(
            "audit_pending",
            grants="select, insert, delete",
            foreign_keys=[("entry_id", "audit_entry")],
            definer_reads=True,
            composite_key=False,
        ),
        TenantTable(
            "audit_link", grants="select, insert", foreign_keys=[("entry_id", "audit_entry")], composite_key=False
        ),
        TenantTable("audit_head", grants="select, insert, update", composite_key=False),
        migrations.RunSQL([DIGESTS, APPEND_ONLY, PENDING, SEAL, SEAL_GRANT, UNSEALED]),
    ]
