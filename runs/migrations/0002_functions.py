"""Isolation, partitioned logs, and the functions that change a run: each is one transaction in one round trip.

All of them take the lock of the run's row first and then those of its steps and attempts, so that they cannot deadlock. They run
with the rights of the caller, under row-level security; they answer with a code instead of raising, so that an expected
refusal costs no aborted transaction and no line in the server's log.
"""

from django.db import migrations

from kernel import roles
from kernel.rls import TenantTable, definer_function, enter_sql, policy_sql
from runs.states import RUN_ENDS, RUN_MOVES, STEP_MOVES, moves_sql

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

# The tables of moves also say which states there are. They are triggers and not check constraints because a commit rewrites the
# run's row without touching its state, and then pays nothing for them.
MOVES = f"""
create function runs_refuse_move() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' and new.status <> tg_argv[1] then
        raise exception 'a % begins as %, not as %', tg_argv[0], tg_argv[1], new.status using errcode = 'check_violation';
    end if;
    if tg_op = 'UPDATE' and new.status <> old.status and not tg_argv[0] || ':' || old.status || '>' || new.status
           = any (array[{moves_sql("run", RUN_MOVES)}, {moves_sql("step", STEP_MOVES)}]) then
        raise exception 'a % cannot go from % to %', tg_argv[0], old.status, new.status using errcode = 'check_violation';
    end if;
    return new;
end $$;
create trigger allowed_moves before insert or update of status on runs_run
    for each row execute function runs_refuse_move('run', 'pending');
create trigger allowed_moves before insert or update of status on runs_step
    for each row execute function runs_refuse_move('step', 'blocked');
-- The row is rewritten at every commit: room in its page keeps those updates off the indexes.
alter table runs_run set (fillfactor = 50);
alter table runs_step set (fillfactor = 70);
alter table runs_attempt set (fillfactor = 70);
"""

# Extends a run's chain by events and answers the new last digest. The caller holds the run's row and stores what it answers.
# `p_commitments`: 32 bytes for each event, one after the other.
APPEND = """
create function runs_append(
    p_tenant uuid, p_run uuid, p_seq bigint, p_digest bytea, p_at timestamptz, p_actor_kind text, p_actor uuid, p_lease uuid,
    p_types text[], p_steps uuid[], p_occurred timestamptz[], p_labels jsonb[], p_payloads bytea[], p_commitments bytea
) returns bytea language plpgsql as $$
declare
    v_prefix bytea := '\\x736d726974693a6576656e743a763100'::bytea || uuid_send(p_tenant) || uuid_send(p_run);
    v_middle bytea := int8send((extract(epoch from p_at) * 1000000)::bigint)
        || coalesce(uuid_send(p_lease), '\\x00000000000000000000000000000000'::bytea)
        || coalesce(uuid_send(p_actor), '\\x00000000000000000000000000000000'::bytea)
        || int4send(octet_length(p_actor_kind)) || p_actor_kind::bytea;
    v_prev bytea;
    v_digest bytea := p_digest;
    v_commitment bytea;
begin
    for i in 1 .. array_length(p_types, 1) loop
        v_prev := v_digest;
        v_commitment := substr(p_commitments, 32 * i - 31, 32);
        v_digest := sha256(v_prefix || v_prev || int8send(p_seq + i) || v_middle
            || coalesce(uuid_send(p_steps[i]), '\\x00000000000000000000000000000000'::bytea)
            || '\\x0001'::bytea || int4send(octet_length(p_types[i])) || p_types[i]::bytea || coalesce(v_commitment, ''));
        insert into runs_event (
            tenant_id, run_id, seq, recorded_at, occurred_at, step_id, lease_id, actor_id, schema_version, type, actor_kind,
            prev_digest, digest, payload_commitment, labels, payload
        ) values (
            p_tenant, p_run, p_seq + i, p_at, p_occurred[i], p_steps[i], p_lease, p_actor, 1, p_types[i], p_actor_kind,
            v_prev, v_digest, v_commitment, p_labels[i], p_payloads[i]
        );
    end loop;
    return v_digest;
end $$;
"""

# True while the key is what the caller's process believes it to be.
KEY_VALID = """
create function runs_key_valid(p_tenant uuid, p_key uuid, p_version integer) returns boolean stable language plpgsql as $$
begin
    return exists (
        select from tenancy_apikey
        where tenant_id = p_tenant and id = p_key and version = p_version and revoked_at is null
          and (expires_at is null or expires_at > clock_timestamp())
    );
end $$;
"""

# Adds steps to a plan. `p_steps`: [{name, depends_on: [names], queue, priority, max_attempts}]. Answers null, or why it cannot be,
# before anything was written. A dependency stands earlier in the plan: that alone keeps the plan free of cycles. Query plans are
# made anew for each call: one kept from plans of two steps takes minutes for a plan of thousands.
PLAN = """
create function runs_plan(p_tenant uuid, p_run uuid, p_at timestamptz, p_from integer, p_steps jsonb)
returns jsonb language plpgsql set plan_cache_mode = force_custom_plan as $$
declare
    v_bad text;
begin
    select s.name into v_bad from runs_step s
    where s.tenant_id = p_tenant and s.run_id = p_run
      and s.name in (select value ->> 'name' from jsonb_array_elements(p_steps)) limit 1;
    if found then
        return jsonb_build_object('code', 'step_exists', 'step', v_bad);
    end if;
    with planned as (
        select e.value ->> 'name' as name, e.ordinality, e.value -> 'depends_on' as depends_on
        from jsonb_array_elements(p_steps) with ordinality e
    )
    select d.name into v_bad
    from planned p cross join lateral jsonb_array_elements_text(p.depends_on) d(name)
    where not exists (select from planned q where q.name = d.name and q.ordinality < p.ordinality)
      and not exists (select from runs_step s where s.tenant_id = p_tenant and s.run_id = p_run and s.name = d.name)
    limit 1;
    if found then
        return jsonb_build_object('code', 'unknown_dependency', 'step', v_bad);
    end if;
    insert into runs_step (tenant_id, id, run_id, name, position, status, waiting_on, queue, priority, attempts, max_attempts,
                           epoch, due_at)
    select p_tenant, uuidv7(), p_run, e.value ->> 'name', p_from + e.ordinality - 1, 'blocked', 0, e.value ->> 'queue',
           (e.value ->> 'priority')::smallint, 0, (e.value ->> 'max_attempts')::integer, 0, p_at
    from jsonb_array_elements(p_steps) with ordinality e;
    insert into runs_stepdependency (tenant_id, id, run_id, step_id, depends_on_id)
    select distinct on (s.id, d.id) p_tenant, uuidv7(), p_run, s.id, d.id
    from jsonb_array_elements(p_steps) e
    cross join lateral jsonb_array_elements_text(e -> 'depends_on') n(name)
    join runs_step s on s.tenant_id = p_tenant and s.run_id = p_run and s.name = e ->> 'name'
    join runs_step d on d.tenant_id = p_tenant and d.run_id = p_run and d.name = n.name;
    update runs_step s set waiting_on = (
        select count(*) from runs_stepdependency x
        join runs_step d on d.tenant_id = x.tenant_id and d.id = x.depends_on_id
        where x.tenant_id = p_tenant and x.step_id = s.id and d.status not in ('succeeded', 'skipped'))
    where s.tenant_id = p_tenant and s.run_id = p_run and s.position >= p_from;
    update runs_step s set status = 'runnable'
    where s.tenant_id = p_tenant and s.run_id = p_run and s.position >= p_from and s.waiting_on = 0;
    return null;
end $$;
"""

CREATE = """
create function runs_create(
    p_tenant uuid, p_key uuid, p_key_version integer, p_run uuid, p_project uuid, p_workflow text, p_workflow_version text,
    p_agent uuid, p_agent_version text, p_subject uuid, p_key_epoch integer, p_data_key uuid, p_labels jsonb, p_versions jsonb,
    p_correlation bytea, p_task bytea, p_creation_key bytea, p_request bytea, p_steps jsonb, p_payload bytea, p_commitment bytea,
    out code text, out run uuid, out detail jsonb
) language plpgsql as $$
declare
    v_at timestamptz := clock_timestamp();
    v_genesis bytea := sha256('\\x736d726974693a72756e3a763100'::bytea || uuid_send(p_tenant) || uuid_send(p_run));
    v_request bytea;
    v_same_place boolean;
begin
    perform smriti_enter(p_tenant);
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    if p_subject is not null then
        perform from privacy_subject s
        where s.tenant_id = p_tenant and s.id = p_subject and s.key_epoch = p_key_epoch and s.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;
    insert into runs_run (
        tenant_id, id, project_id, workflow, workflow_version, agent_id, agent_version, subject_id, data_key_id, labels, versions,
        correlation_digest, task_digest, creation_key, creation_request, status, last_seq, last_digest, head, base_version,
        base_bytes, chain_count, chain_bytes, list_channels, value_channels, steps_total, steps_open, anchored_seq,
        created_at, updated_at
    ) values (
        p_tenant, p_run, p_project, p_workflow, p_workflow_version, p_agent, p_agent_version, p_subject, p_data_key, p_labels,
        p_versions, p_correlation, p_task, p_creation_key, p_request, 'pending', 0, v_genesis, 0, 0,
        0, 0, 0, '{}', '{}', jsonb_array_length(p_steps), jsonb_array_length(p_steps), 0, v_at, v_at
    ) on conflict (tenant_id, creation_key) do nothing;
    if not found then
        select r.id, r.creation_request, r.agent_id is not distinct from p_agent and r.project_id = p_project
        into run, v_request, v_same_place from runs_run r
        where r.tenant_id = p_tenant and r.creation_key = p_creation_key;
        code := case when v_request = p_request and v_same_place then 'replayed' else 'idempotency_key_reused' end;
        return;
    end if;
    detail := runs_plan(p_tenant, p_run, v_at, 0, p_steps);
    if detail is not null then
        raise exception 'the plan was checked before' using errcode = 'data_exception', detail = detail::text;
    end if;
    update runs_run set last_seq = 1, last_digest = runs_append(
        p_tenant, p_run, 0, v_genesis, v_at, 'key', p_key, null, array['run_created'], null,
        null, null, array[p_payload], p_commitment)
    where tenant_id = p_tenant and id = p_run;
    code := 'ok';
    run := p_run;
end $$;
"""

# Ends a run: what is leased is taken from its worker; what is open is skipped, or kept for an operator after a dead letter.
END = """
create function runs_end(p_tenant uuid, p_run uuid, p_at timestamptz, p_status text) returns void language plpgsql as $$
begin
    update runs_attempt set ended_at = p_at, outcome = 'cancelled'
    where tenant_id = p_tenant and run_id = p_run and ended_at is null;
    if p_status = 'dead_letter' then
        update runs_step set status = 'runnable', lease_id = null
        where tenant_id = p_tenant and run_id = p_run and status = 'leased';
    else
        update runs_step set status = 'skipped', lease_id = null, ended_at = p_at
        where tenant_id = p_tenant and run_id = p_run
          and status in ('blocked', 'runnable', 'leased', 'waiting');
    end if;
    insert into runs_anchordue (tenant_id, id) values (p_tenant, p_run) on conflict do nothing;
end $$;
"""

# One durable transition: events, a change of the state, a step's result, new steps, the run's end. All or nothing.
# `p_types` and its sister arrays hold the events in order, the ones that stand for the other parts included;
# `p_checkpoint_event` is the position of the checkpoint's. `p_appended` and `p_required` are the channels that a patch takes for
# granted, `p_lists`, `p_values` and `p_removed` what it makes of channels.
COMMIT = f"""
create function runs_commit(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid, p_data_key uuid,
    p_key_epoch integer, p_lease uuid, p_epoch integer, p_idempotency bytea, p_request bytea, p_head integer,
    p_types text[], p_steps text[], p_occurred timestamptz[], p_labels jsonb[], p_payloads bytea[], p_commitments bytea,
    p_checkpoint_event integer, p_kind text, p_body bytea, p_lists bigint[], p_values bigint[], p_removed bigint[],
    p_appended bigint[], p_required bigint[], p_outcome text, p_retry_after double precision, p_new_steps jsonb,
    p_run_outcome text, p_run_payload bytea, p_run_commitment bytea,
    out code text, out first_seq bigint, out last_seq bigint, out digest bytea, out head integer, out run_status text,
    out runnable text[], out snapshot_due boolean, out detail jsonb
) language plpgsql as $$
declare
    r record;
    a record;
    s record;
    v_at timestamptz;
    v_status text;
    v_count integer := coalesce(array_length(p_types, 1), 0);
    v_step_ids uuid[];
    v_end text;
    v_last text[];
    v_bad text;
begin {enter_sql("p_tenant")}
    select x.project_id, x.agent_id, x.subject_id, x.data_key_id, x.status, x.last_seq, x.last_digest, x.head, x.base_version,
           x.base_bytes, x.chain_count, x.chain_bytes, x.list_channels, x.value_channels, x.steps_total, x.steps_open,
           exists (select from tenancy_apikey k
                   where k.tenant_id = p_tenant and k.id = p_key and k.version = p_key_version and k.revoked_at is null
                     and (k.expires_at is null or k.expires_at > clock_timestamp())) as key_valid
    into r from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update of x;
    if not found or (p_agent is not null and r.agent_id is distinct from p_agent)
       or (p_projects is not null and r.project_id <> all (p_projects)) then
        code := 'not_found'; return;
    end if;
    if not r.key_valid then code := 'key_refused'; return; end if;

    -- Everything from here is read after the lock was taken: what a concurrent commit of this run did is seen.
    select case when c.request_digest = p_request then 'replayed' else 'idempotency_key_reused' end, c.first_seq, c.last_seq,
           c.digest, c.head, c.run_status, coalesce(c.runnable, '{{}}')
    into code, first_seq, last_seq, digest, head, run_status, runnable
    from runs_commit c where c.tenant_id = p_tenant and c.run_id = p_run and c.key_digest = p_idempotency;
    if found then return; end if;

    if r.status in ({", ".join(f"'{end}'" for end in RUN_ENDS)}) then
        code := 'run_finished'; run_status := r.status; return;
    end if;
    if r.data_key_id <> p_data_key then code := 'subject_changed'; return; end if;
    if r.subject_id is not null then
        perform from privacy_subject x
        where x.tenant_id = p_tenant and x.id = r.subject_id and x.key_epoch = p_key_epoch and x.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;

    v_at := clock_timestamp();
    v_status := r.status;
    if p_lease is not null then
        select x.step_id, x.epoch, x.expires_at into a
        from runs_attempt x where x.tenant_id = p_tenant and x.id = p_lease and x.run_id = p_run;
        if not found then code := 'lease_not_found'; return; end if;
        select x.epoch, x.lease_id, x.status, x.attempts, x.max_attempts into s
        from runs_step x where x.tenant_id = p_tenant and x.id = a.step_id;
        if a.epoch <> p_epoch or s.epoch <> p_epoch or s.lease_id is distinct from p_lease then
            code := 'stale_epoch';
            detail := jsonb_build_object('current_epoch', s.epoch, 'step_status', s.status);
            return;
        end if;
        if a.expires_at <= v_at then
            code := 'lease_expired';
            detail := jsonb_build_object('current_epoch', s.epoch, 'expired_at', a.expires_at);
            return;
        end if;
        v_step_ids := array_fill(a.step_id, array[v_count]);
    end if;

    if p_head is not null and p_head <> r.head then
        code := 'stale_head'; head := r.head; last_seq := r.last_seq; return;
    end if;
    if not (p_appended <@ r.list_channels and p_required <@ (r.list_channels || r.value_channels)) then
        code := 'patch_conflict'; return;
    end if;
    if p_run_outcome = 'completed' and (
        p_outcome is distinct from 'succeeded' or r.steps_open > 1 or p_new_steps is not null) then
        code := 'steps_open';
        detail := jsonb_build_object('open', r.steps_open - (p_outcome is not distinct from 'succeeded')::int); return;
    end if;

    if p_steps is not null then
        select array_agg(coalesce(x.id, v_step_ids[e.n]) order by e.n),
               min(e.name) filter (where e.name is not null and x.id is null)
        into v_step_ids, v_bad
        from unnest(p_steps) with ordinality e(name, n)
        left join runs_step x on x.tenant_id = p_tenant and x.run_id = p_run and x.name = e.name;
        if v_bad is not null then code := 'unknown_step'; detail := jsonb_build_object('step', v_bad); return; end if;
    end if;

    if p_new_steps is not null then
        detail := runs_plan(p_tenant, p_run, v_at, r.steps_total, p_new_steps);
        if detail is not null then code := detail ->> 'code'; return; end if;
        r.steps_total := r.steps_total + jsonb_array_length(p_new_steps);
        r.steps_open := r.steps_open + jsonb_array_length(p_new_steps);
        select array_agg(x.name order by x.position) into runnable from runs_step x
        where x.tenant_id = p_tenant and x.run_id = p_run and x.status = 'runnable'
          and x.position >= r.steps_total - jsonb_array_length(p_new_steps);
    end if;

    first_seq := r.last_seq + 1;
    if v_count > 0 then
        r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'key', p_key, p_lease,
                                     p_types, v_step_ids, p_occurred, p_labels, p_payloads, p_commitments);
    end if;

    if p_kind is not null or p_new_steps is not null then
        r.head := r.head + 1;
    end if;
    if p_kind is not null then
        insert into runs_checkpoint (tenant_id, run_id, version, seq, recorded_at, kind, commitment, body)
        values (p_tenant, p_run, r.head, r.last_seq + p_checkpoint_event, v_at, p_kind,
                substr(p_commitments, 32 * p_checkpoint_event - 31, 32), p_body);
        if p_kind = 'full' then
            r.base_version := r.head; r.base_bytes := octet_length(p_body); r.chain_count := 0; r.chain_bytes := 0;
            r.list_channels := p_lists; r.value_channels := p_values;
        else
            r.chain_count := r.chain_count + 1; r.chain_bytes := r.chain_bytes + octet_length(p_body);
            if not (p_lists <@ r.list_channels and p_values <@ r.value_channels and p_removed = '{{}}') then
                r.list_channels := p_lists
                    || array(select x from unnest(r.list_channels) x where x <> all (p_values || p_removed || p_lists));
                r.value_channels := p_values
                    || array(select x from unnest(r.value_channels) x where x <> all (p_values || p_removed || p_lists));
            end if;
        end if;
    end if;
    r.last_seq := r.last_seq + v_count;

    if p_outcome is not null then
        update runs_attempt set ended_at = v_at, outcome = case p_outcome when 'succeeded' then 'succeeded' else 'failed' end
        where tenant_id = p_tenant and id = p_lease;
        v_end := case
            when p_outcome = 'succeeded' then 'succeeded'
            when p_outcome = 'failed' or p_outcome = 'retry' and p_run_outcome = 'failed' then 'failed'
            when p_outcome = 'retry' and s.attempts < s.max_attempts then 'runnable'
            else 'dead_letter' end;
        update runs_step set status = v_end, lease_id = null,
            ended_at = case when v_end = 'runnable' then null else v_at end,
            -- Full jitter under an exponential cap of 15 minutes; a provider's own retry-after is a lower bound.
            due_at = case when v_end <> 'runnable' then due_at else v_at + make_interval(secs =>
                coalesce(p_retry_after, 0) + random() * least(900, power(2, least(s.attempts, 20)))) end
        where tenant_id = p_tenant and id = a.step_id;
        if v_end = 'succeeded' then
            r.steps_open := r.steps_open - 1;
            with freed as (
                update runs_step d set waiting_on = d.waiting_on - 1,
                    status = case when d.waiting_on = 1 and d.status = 'blocked' then 'runnable' else d.status end, due_at = v_at
                from runs_stepdependency x
                where x.tenant_id = p_tenant and x.depends_on_id = a.step_id and d.tenant_id = p_tenant and d.id = x.step_id
                returning d.name, d.status, d.position)
            select coalesce(runnable, '{{}}')
                || coalesce(array_agg(name order by position) filter (where status = 'runnable'), '{{}}')
            into runnable from freed;
            if r.steps_open = 0 and p_run_outcome is distinct from 'failed' then
                v_last := array['run_completed']; r.status := 'completed';
            end if;
        elsif v_end = 'runnable' then
            v_last := array['step_retry_scheduled'];
        elsif v_end = 'failed' then
            v_last := array['run_failed']; r.status := 'failed';
        else
            v_last := array['step_dead_letter', 'run_dead_letter']; r.status := 'dead_letter';
        end if;
    end if;
    if p_run_outcome = 'failed' and r.status not in ('failed', 'dead_letter') then
        v_last := coalesce(v_last, '{{}}') || 'run_failed'::text; r.status := 'failed';
    end if;
    if v_last is not null then
        v_count := array_length(v_last, 1);
        if v_count > 1 then
            r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, p_lease,
                                         v_last[1:v_count - 1], array_fill(a.step_id, array[v_count]), null, null, null, null);
        end if;
        r.last_digest := runs_append(p_tenant, p_run, r.last_seq + v_count - 1, r.last_digest, v_at, 'system', null, p_lease,
                                     v_last[v_count:v_count], array[a.step_id], null, null, array[p_run_payload], p_run_commitment);
        r.last_seq := r.last_seq + v_count;
    end if;
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, head = r.head, base_version = r.base_version,
        base_bytes = r.base_bytes, chain_count = r.chain_count, chain_bytes = r.chain_bytes, list_channels = r.list_channels,
        value_channels = r.value_channels, steps_total = r.steps_total, steps_open = r.steps_open, updated_at = v_at
    where tenant_id = p_tenant and id = p_run;
    if r.status <> v_status then
        perform runs_end(p_tenant, p_run, v_at, r.status);
        update runs_run set status = r.status, completed_at = v_at where tenant_id = p_tenant and id = p_run;
    end if;
    insert into runs_commit (tenant_id, run_id, first_seq, last_seq, head, key_digest, request_digest, digest, run_status, runnable)
    values (p_tenant, p_run, first_seq, r.last_seq, r.head, p_idempotency, p_request, r.last_digest, r.status, runnable);
    code := 'ok'; last_seq := r.last_seq; digest := r.last_digest; head := r.head; run_status := r.status;
    runnable := coalesce(runnable, '{{}}');
    snapshot_due := r.chain_count >= 512 or r.chain_bytes >= greatest(65536, r.base_bytes);
end $$;
"""

# Leases the most urgent runnable step whose run nobody else is changing.
CLAIM = """
create function runs_claim(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_worker text, p_queues text[],
    p_run uuid, p_seconds double precision,
    out code text, out lease uuid, out epoch integer, out expires_at timestamptz, out step text, out attempt integer,
    out max_attempts integer, out run uuid, out workflow text, out workflow_version text, out agent_version text,
    out data_key uuid, out head integer, out last_seq bigint, out run_payload bytea
) language plpgsql as $$
declare
    r runs_run;
    s runs_step;
    v_at timestamptz;
    v_types text[] := array['step_leased'];
begin
    perform smriti_enter(p_tenant);
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    for i in 1 .. 20 loop
        v_at := clock_timestamp();
        -- Locks the run, not the step: the order in which every change takes its locks.
        select x.id into s.id from runs_step x
        join runs_run y on y.tenant_id = x.tenant_id and y.id = x.run_id
        where x.tenant_id = p_tenant and x.status = 'runnable' and x.queue = any (p_queues) and x.due_at <= v_at
          and y.status in ('pending', 'running')
          and (p_run is null or x.run_id = p_run)
          and (p_agent is null or y.agent_id = p_agent) and (p_projects is null or y.project_id = any (p_projects))
        order by x.priority desc, x.due_at, x.id limit 1
        for no key update of y skip locked;
        if not found then code := 'nothing'; return; end if;
        lease := uuidv7();
        expires_at := v_at + make_interval(secs => p_seconds);
        -- The step may have been taken between the snapshot and the lock.
        update runs_step x set status = 'leased', epoch = x.epoch + 1, attempts = x.attempts + 1, lease_id = lease,
            started_at = coalesce(x.started_at, v_at)
        where x.tenant_id = p_tenant and x.id = s.id and x.status = 'runnable' returning x.* into s;
        if found then
            select * into r from runs_run where tenant_id = p_tenant and id = s.run_id;
            if r.status in ('pending', 'running') then exit; end if;
            raise exception 'a runnable step in a run that is %', r.status;
        end if;
    end loop;
    if s.run_id is null then code := 'nothing'; return; end if;

    insert into runs_attempt (tenant_id, id, run_id, step_id, number, epoch, worker, key_id, claimed_at, heartbeat_at, expires_at)
    values (p_tenant, lease, r.id, s.id, s.attempts, s.epoch, p_worker, p_key, v_at, v_at, expires_at);
    if r.status = 'pending' then v_types := array['run_started', 'step_leased']; end if;
    r.last_digest := runs_append(p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'key', p_key, lease, v_types,
        array_fill(s.id, array[2]), null, null, null, null);
    last_seq := r.last_seq + array_length(v_types, 1);
    update runs_run x set status = 'running', last_seq = runs_claim.last_seq, last_digest = r.last_digest,
        started_at = coalesce(x.started_at, v_at), updated_at = v_at
    where x.tenant_id = p_tenant and x.id = r.id;
    select e.payload into run_payload from runs_event e where e.tenant_id = p_tenant and e.run_id = r.id and e.seq = 1;
    code := 'ok'; epoch := s.epoch; step := s.name; attempt := s.attempts; max_attempts := s.max_attempts; run := r.id;
    workflow := r.workflow; workflow_version := r.workflow_version; agent_version := r.agent_version;
    data_key := r.data_key_id; head := r.head;
end $$;
"""

HEARTBEAT = """
create function runs_heartbeat(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_lease uuid, p_epoch integer,
    p_seconds double precision,
    out code text, out expires_at timestamptz, out detail jsonb
) language plpgsql as $$
declare
    a runs_attempt;
    v_epoch integer;
begin
    perform smriti_enter(p_tenant);
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    select x.* into a from runs_attempt x join runs_run r on r.tenant_id = x.tenant_id and r.id = x.run_id
    where x.tenant_id = p_tenant and x.id = p_lease and (p_agent is null or r.agent_id = p_agent)
      and (p_projects is null or r.project_id = any (p_projects)) for no key update of x;
    if not found then code := 'lease_not_found'; return; end if;
    select s.epoch into v_epoch from runs_step s where s.tenant_id = p_tenant and s.id = a.step_id;
    if a.epoch <> p_epoch or a.epoch <> v_epoch or a.ended_at is not null or a.expires_at <= clock_timestamp() then
        code := 'lease_lost';
        detail := jsonb_build_object('current_epoch', v_epoch, 'outcome', a.outcome, 'expired_at', a.expires_at);
        return;
    end if;
    update runs_attempt x set heartbeat_at = clock_timestamp(),
        -- A short heartbeat never takes back time that was granted.
        expires_at = greatest(x.expires_at, clock_timestamp() + make_interval(secs => p_seconds))
    where x.tenant_id = p_tenant and x.id = p_lease returning x.expires_at into expires_at;
    code := 'ok';
end $$;
"""

# Takes an expired lease from its worker: the step is runnable again, or given to an operator when its attempts are used up.
EXPIRE = """
create function runs_expire(p_tenant uuid, p_lease uuid) returns boolean language plpgsql as $$
declare
    r runs_run;
    s runs_step;
    a runs_attempt;
    v_at timestamptz;
    v_types text[] := array['lease_lost'];
begin
    perform smriti_enter(p_tenant);
    select x.run_id into a.run_id from runs_attempt x where x.tenant_id = p_tenant and x.id = p_lease;
    select * into r from runs_run where tenant_id = p_tenant and id = a.run_id for no key update skip locked;
    if not found then return false; end if;
    v_at := clock_timestamp();
    select * into a from runs_attempt where tenant_id = p_tenant and id = p_lease for no key update;
    if a.ended_at is not null or a.expires_at > v_at then return false; end if;
    select * into s from runs_step where tenant_id = p_tenant and id = a.step_id;
    update runs_attempt set ended_at = v_at, outcome = 'lost' where tenant_id = p_tenant and id = p_lease;
    if s.lease_id is distinct from p_lease then return true; end if;
    if s.attempts < s.max_attempts then
        update runs_step set status = 'runnable', lease_id = null, due_at = v_at where tenant_id = p_tenant and id = s.id;
    else
        update runs_step set status = 'dead_letter', lease_id = null, ended_at = v_at where tenant_id = p_tenant and id = s.id;
        v_types := array['lease_lost', 'step_dead_letter', 'run_dead_letter'];
        r.status := 'dead_letter';
        r.completed_at := v_at;
        perform runs_end(p_tenant, r.id, v_at, r.status);
    end if;
    r.last_digest := runs_append(p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, p_lease, v_types,
        array_fill(s.id, array[3]), null, null, null, null);
    update runs_run set status = r.status, completed_at = r.completed_at, last_seq = r.last_seq + array_length(v_types, 1),
        last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = r.id;
    return true;
end $$;
"""

# The caller holds the tenant scope: a cancellation and its audit entry are one transaction.
CANCEL = f"""
create function runs_cancel(p_tenant uuid, p_run uuid, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea)
returns text language plpgsql as $$
declare
    r runs_run;
    v_at timestamptz;
begin
    select * into r from runs_run where tenant_id = p_tenant and id = p_run for no key update;
    if not found then return 'not_found'; end if;
    if r.status in ({", ".join(f"'{end}'" for end in RUN_ENDS if end != "dead_letter")}) then return r.status; end if;
    v_at := clock_timestamp();
    perform runs_end(p_tenant, p_run, v_at, 'cancelled');
    update runs_run set status = 'cancelled', waiting_for = null, completed_at = v_at, updated_at = v_at, last_seq = r.last_seq + 1,
        last_digest = runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null,
            array['run_cancelled'], null, null, null, array[p_payload], p_commitment)
    where tenant_id = p_tenant and id = p_run;
    return 'ok';
end $$;
"""

# The stored state: the newest whole checkpoint at or before `p_before` (null: the newest) and every change after it.
STATE = """
create function runs_state(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid,
    out code text, out head integer, out last_seq bigint, out data_key uuid, out versions integer[], out seqs bigint[],
    out kinds text[], out bodies bytea[], out recorded_at timestamptz
) language plpgsql as $$
declare
    v_base integer;
begin
    perform smriti_enter(p_tenant);
    if p_key is not null and not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    select r.head, r.last_seq, r.data_key_id, r.base_version into head, last_seq, data_key, v_base from runs_run r
    where r.tenant_id = p_tenant and r.id = p_run and (p_agent is null or r.agent_id = p_agent)
      and (p_projects is null or r.project_id = any (p_projects));
    if not found then code := 'not_found'; return; end if;
    select array_agg(c.version order by c.version), array_agg(c.seq order by c.version), array_agg(c.kind order by c.version),
           array_agg(c.body order by c.version), max(c.recorded_at)
    into versions, seqs, kinds, bodies, recorded_at
    from runs_checkpoint c
    where c.tenant_id = p_tenant and c.run_id = p_run
      and (c.version > v_base and c.kind = 'patch' or c.version = v_base and c.kind <> 'patch');
    code := 'ok';
end $$;
"""

# Under which key a run's payloads are sealed, and the epoch of its subject's key.
RUN_KEY = """
create function runs_key(p_tenant uuid, p_run uuid, out data_key uuid, out key_epoch integer) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select r.data_key_id, coalesce(s.key_epoch, 0) into data_key, key_epoch
    from runs_run r left join privacy_subject s on s.tenant_id = r.tenant_id and s.id = r.subject_id
    where r.tenant_id = p_tenant and r.id = p_run;
end $$;
"""

SNAPSHOT = """
create function runs_snapshot(p_tenant uuid, p_run uuid, p_version integer, p_body bytea, p_commitment bytea)
returns boolean language plpgsql as $$
declare
    v_seq bigint;
begin
    perform smriti_enter(p_tenant);
    perform from runs_run where tenant_id = p_tenant and id = p_run and base_version < p_version for no key update;
    if not found then return false; end if;
    select c.seq into v_seq from runs_checkpoint c
    where c.tenant_id = p_tenant and c.run_id = p_run and c.version = p_version and c.kind = 'patch';
    if not found then return false; end if;
    insert into runs_checkpoint (tenant_id, run_id, version, seq, recorded_at, kind, commitment, body)
    values (p_tenant, p_run, p_version, v_seq, clock_timestamp(), 'snapshot', p_commitment, p_body) on conflict do nothing;
    update runs_run r set base_version = p_version, base_bytes = octet_length(p_body),
        (chain_count, chain_bytes) = (
            select count(*), coalesce(sum(octet_length(c.body)), 0) from runs_checkpoint c
            where c.tenant_id = p_tenant and c.run_id = p_run and c.version > p_version and c.kind = 'patch')
    where r.tenant_id = p_tenant and r.id = p_run;
    return true;
end $$;
"""

EVENTS = """
create function runs_events(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid, p_after bigint, p_limit integer
) returns table (
    last_seq bigint, data_key uuid, seq bigint, type text, schema_version smallint, actor_kind text, actor_id uuid, step_id uuid, step text,
    lease_id uuid, occurred_at timestamptz, recorded_at timestamptz, labels jsonb, payload bytea, payload_commitment bytea,
    prev_digest bytea, digest bytea
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    return query
    select r.last_seq, r.data_key_id, e.seq, e.type, e.schema_version, e.actor_kind, e.actor_id, e.step_id, s.name::text, e.lease_id,
           e.occurred_at, e.recorded_at, e.labels, e.payload, e.payload_commitment, e.prev_digest, e.digest
    from runs_run r
    left join lateral (
        select * from runs_event x where x.tenant_id = p_tenant and x.run_id = p_run and x.seq > p_after
        order by x.seq limit p_limit
    ) e on true
    left join runs_step s on s.tenant_id = p_tenant and s.id = e.step_id
    where r.tenant_id = p_tenant and r.id = p_run and (p_agent is null or r.agent_id = p_agent)
      and (p_projects is null or r.project_id = any (p_projects))
      and runs_key_valid(p_tenant, p_key, p_key_version)
    order by e.seq;
end $$;
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
        migrations.RunSQL(MOVES),
        *[
            migrations.RunSQL(sql)
            for sql in (
                APPEND,
                KEY_VALID,
                PLAN,
                CREATE,
                END,
                COMMIT,
                CLAIM,
                HEARTBEAT,
                EXPIRE,
                CANCEL,
                STATE,
                RUN_KEY,
                SNAPSHOT,
                EVENTS,
                DUE,
            )
        ],
    ]
