"""Isolation, partitioned logs, and the functions that change a run."""

from django.db import migrations

from kernel import roles
from kernel.rls import TenantTable, definer_function, policy_sql
from runs.functions import functions

PARTITIONS = 8

# Ciphertext does not compress: keep PostgreSQL from trying. The logs have no foreign key to the run: their rows are written under
# its lock only, and checking each again costs a fifth of a commit.
LOGS = (
    """
create table runs_event (
    tenant_id uuid not null, run_id uuid not null, seq bigint not null,
    recorded_at timestamptz not null, occurred_at timestamptz,
    step_id uuid, lease_id uuid, actor_id uuid,
    schema_version smallint not null, type text not null, actor_kind text not null,
    prev_digest bytea not null, digest bytea not null, payload_commitment bytea,
    labels jsonb, payload bytea,
    primary key (tenant_id, run_id, seq)
) partition by hash (run_id);
create table runs_checkpoint (
    tenant_id uuid not null, run_id uuid not null, version integer not null, seq bigint not null,
    recorded_at timestamptz not null, kind text not null, commitment bytea not null, body bytea,
    primary key (tenant_id, run_id, version, kind),
    constraint runs_checkpoint_kind_known check (kind in ('full', 'patch', 'snapshot'))
) partition by hash (run_id);
create table runs_commit (
    tenant_id uuid not null, run_id uuid not null, first_seq bigint not null, last_seq bigint not null, head integer not null,
    key_digest bytea not null, request_digest bytea not null, digest bytea not null, run_status text not null, runnable text[],
    primary key (tenant_id, run_id, key_digest)
);
"""
    + "\n".join(
        f"""
create table {table}_{part} partition of {table} for values with (modulus {PARTITIONS}, remainder {part});
revoke all on {table}_{part} from public;
{policy_sql(f"{table}_{part}")}
alter table {table}_{part} alter column {column} set storage external;
"""
        for table, column in (("runs_event", "payload"), ("runs_checkpoint", "body"))
        for part in range(PARTITIONS)
    )
    + "".join(
        f"""
{policy_sql(table)}
grant select, insert on {table} to {roles.APP};
"""
        for table in ("runs_event", "runs_checkpoint", "runs_commit")
    )
    + f"""
create function runs_append_only() returns trigger language plpgsql as $$
begin
    if current_user = '{roles.ERASER}' then
        return case tg_op when 'DELETE' then old else new end;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;
"""
    + "".join(
        f"""
create trigger append_only before update or delete on {table} for each row execute function runs_append_only();
create trigger append_only_truncate before truncate on {table} for each statement execute function runs_append_only();
"""
        for table in ("runs_event", "runs_checkpoint", "runs_commit")
    )
)

TRIGGERS = """
create trigger allowed_moves before insert or update of status on runs_run
    for each row execute function runs_refuse_move('run', 'pending');
create trigger allowed_moves before insert or update of status on runs_step
    for each row execute function runs_refuse_move('step', 'blocked');
-- The row is rewritten at every commit: room in its page keeps those updates off the indexes.
alter table runs_run set (fillfactor = 50);
alter table runs_step set (fillfactor = 70);
alter table runs_attempt set (fillfactor = 70);
"""

# What is due, in every tenant: ids only.
DUE = definer_function(
    "runs_expired_leases(integer)",
    """create function runs_expired_leases(p_limit integer) returns table (tenant uuid, lease uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select a.tenant_id, a.id from runs_attempt a
        where a.ended_at is null and a.expires_at <= clock_timestamp() order by a.expires_at limit p_limit
    $$""",
) + definer_function(
    "runs_unanchored(integer)",
    """create function runs_unanchored(p_limit integer) returns table (tenant uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select tenant_id from runs_anchordue
        union
        select tenant_id from runs_run where status in ('pending', 'running', 'waiting') and last_seq > anchored_seq
        limit p_limit
    $$""",
)

CHANGES = "select, insert, update"


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0001_initial"),
        ("tenancy", "0001_initial"),
        ("privacy", "0001_initial"),
        ("audit", "0001_audit"),
    ]
    operations = [
        TenantTable(
            "runs_run",
            grants=CHANGES,
            foreign_keys=[
                ("project_id", "tenancy_project"),
                ("agent_id", "tenancy_agent"),
                ("subject_id", "privacy_subject"),
            ],
            definer_reads=True,
        ),
        TenantTable("runs_step", grants=CHANGES, foreign_keys=[("run_id", "runs_run")]),
        TenantTable(
            "runs_stepdependency",
            grants="select, insert",
            foreign_keys=[("run_id", "runs_run"), ("step_id", "runs_step"), ("depends_on_id", "runs_step")],
        ),
        TenantTable(
            "runs_attempt",
            grants=CHANGES,
            foreign_keys=[("run_id", "runs_run"), ("step_id", "runs_step")],
            definer_reads=True,
        ),
        TenantTable("runs_anchor", grants="select, insert", foreign_keys=[("run_id", "runs_run")]),
        TenantTable("runs_anchordue", grants="select, insert, delete", definer_reads=True),
        migrations.RunSQL(LOGS),
        functions(),
        migrations.RunSQL(TRIGGERS),
        migrations.RunSQL(DUE),
    ]
