-- Leases the most urgent runnable step whose run nobody else is changing.
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

-- Takes an expired lease from its worker: the step is runnable again, or given to an operator when its attempts are used up.
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
