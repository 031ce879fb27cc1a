-- True while the key is what the caller's process believes it to be.
create function runs_key_valid(p_tenant uuid, p_key uuid, p_version integer) returns boolean stable language plpgsql as $$
begin
    return exists (
        select from tenancy_apikey
        where tenant_id = p_tenant and id = p_key and version = p_version and revoked_at is null
          and (expires_at is null or expires_at > clock_timestamp())
    );
end $$;

-- Makes steps runnable, each with its turn: one after the other behind what the run has in that queue and behind the queue's turn. So a
-- run with ten thousand steps and one that comes later take turns, and none of them starves. Answers whether they can be claimed.
create function runs_ready(p_tenant uuid, p_run uuid, p_at timestamptz, p_reason text, p_steps uuid[])
returns boolean language plpgsql as $$
declare
    v_status text;
begin
    if array_length(p_steps, 1) is null then return false; end if;
    -- Nothing more is begun in a run that is being cancelled.
    select case when r.cancel_at is null then 'runnable' else 'blocked' end into v_status
    from runs_run r where r.tenant_id = p_tenant and r.id = p_run;
    with line as (
        select n.id, x.queue, row_number() over (partition by x.queue order by n.place) as place
        from unnest(p_steps) with ordinality n(id, place) join runs_step x on x.tenant_id = p_tenant and x.id = n.id
    ), queue as (
        select l.queue, greatest(q.turn, (
            select x.turn from runs_step x
            where x.tenant_id = p_tenant and x.run_id = p_run and x.queue = l.queue and x.status = 'runnable'
            order by x.turn desc limit 1)) as turn
        from (select distinct queue from line) l left join runs_queue q on q.tenant_id = p_tenant and q.name = l.queue)
    update runs_step s set status = v_status, lease_id = null, due_at = p_at, wait_kind = null, wait_name = null, wait_id = null,
        wake_reason = coalesce(p_reason, s.wake_reason), turn = line.place + coalesce(queue.turn, 0)
    from line join queue on queue.queue = line.queue where s.tenant_id = p_tenant and s.id = line.id;
    return v_status = 'runnable';
end $$;

-- Adds steps to a plan. `p_steps`: [{name, depends_on: [names], queue, priority, max_attempts}]. Answers null, or why it cannot be,
-- before anything was written. A dependency stands earlier in the plan: that alone keeps the plan free of cycles. Query plans are
-- made anew for each call: one kept from plans of two steps takes minutes for a plan of thousands.
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
    insert into runs_queue (tenant_id, id, name, turn, paused)
    select distinct on (e ->> 'queue') p_tenant, uuidv7(), e ->> 'queue', 0, false from jsonb_array_elements(p_steps) e
    on conflict (tenant_id, name) do nothing;
    insert into runs_step (tenant_id, id, run_id, name, position, status, waiting_on, queue, priority, turn, requires, attempts,
                           max_attempts, retry, deadline_seconds, epoch, due_at, compensates_id)
    select p_tenant, uuidv7(), p_run, e.value ->> 'name', p_from + e.ordinality - 1, 'blocked', 0, e.value ->> 'queue',
           (e.value ->> 'priority')::smallint, 0,
           (select array_agg(c) from jsonb_array_elements_text(nullif(e.value -> 'requires', 'null')) c), 0,
           (e.value ->> 'max_attempts')::integer, nullif(e.value -> 'retry', 'null'),
           (e.value ->> 'deadline_seconds')::double precision, 0, p_at, (e.value ->> 'compensates')::uuid
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
    perform runs_ready(p_tenant, p_run, p_at, null, array(
        select s.id from runs_step s
        where s.tenant_id = p_tenant and s.run_id = p_run and s.position >= p_from and s.waiting_on = 0 order by s.position));
    return null;
end $$;

create function runs_create(
    p_tenant uuid, p_key uuid, p_key_version integer, p_run uuid, p_project uuid, p_workflow text, p_workflow_version text,
    p_agent uuid, p_agent_version text, p_subject uuid, p_key_epoch integer, p_data_key uuid, p_labels jsonb, p_versions jsonb,
    p_correlation bytea, p_task bytea, p_creation_key bytea, p_request bytea, p_steps jsonb, p_payload bytea, p_commitment bytea,
    p_parent uuid, p_deadline double precision, p_schema integer,
    out code text, out run uuid, out detail jsonb
) language plpgsql as $$
declare
    v_at timestamptz := clock_timestamp();
    v_genesis bytea := sha256('\x736d726974693a72756e3a763100'::bytea || uuid_send(p_tenant) || uuid_send(p_run));
    v_request bytea;
    v_same_place boolean;
begin
    -- Without a key the platform itself starts the run: its caller holds the tenant scope and has judged whom it acts for.
    if p_key is not null then
        perform smriti_enter(p_tenant);
        if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    end if;
    if p_subject is not null then
        perform from privacy_subject s
        where s.tenant_id = p_tenant and s.id = p_subject and s.key_epoch = p_key_epoch and s.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;
    insert into runs_run (
        tenant_id, id, project_id, workflow, workflow_version, agent_id, agent_version, subject_id, data_key_id, labels, versions,
        correlation_digest, task_digest, creation_key, creation_request, status, last_seq, last_digest, head, base_version,
        base_bytes, chain_count, chain_bytes, list_channels, value_channels, steps_total, steps_open, anchored_seq,
        parent_run_id, deadline_at, state_schema, created_at, updated_at
    ) values (
        p_tenant, p_run, p_project, p_workflow, p_workflow_version, p_agent, p_agent_version, p_subject, p_data_key, p_labels,
        p_versions, p_correlation, p_task, p_creation_key, p_request, 'pending', 0, v_genesis, 0, 0,
        0, 0, 0, '{}', '{}', jsonb_array_length(p_steps), jsonb_array_length(p_steps), 0,
        p_parent, v_at + make_interval(secs => p_deadline), p_schema, v_at, v_at
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
        p_tenant, p_run, 0, v_genesis, v_at, case when p_key is null then 'system' else 'key' end, p_key, null, array['run_created'], null,
        null, null, array[p_payload], p_commitment)
    where tenant_id = p_tenant and id = p_run;
    code := 'ok';
    run := p_run;
end $$;

-- Under which key a run's payloads are sealed, and the epoch of its subject's key.
create function runs_key(p_tenant uuid, p_run uuid, out data_key uuid, out key_epoch integer) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select r.data_key_id, coalesce(s.key_epoch, 0) into data_key, key_epoch
    from runs_run r left join privacy_subject s on s.tenant_id = r.tenant_id and s.id = r.subject_id
    where r.tenant_id = p_tenant and r.id = p_run;
end $$;
