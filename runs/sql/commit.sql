-- Ends a run: what is leased is taken from its worker; what is open is skipped, or kept for an operator after a dead letter.
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

-- One durable transition: events, a change of the state, a step's result, new steps, the run's end. All or nothing.
-- `p_types` and its sister arrays hold the events in order, the ones that stand for the other parts included;
-- `p_checkpoint_event` is the position of the checkpoint's. `p_appended` and `p_required` are the channels that a patch takes for
-- granted, `p_lists`, `p_values` and `p_removed` what it makes of channels.
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
begin {enter}
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
           c.digest, c.head, c.run_status, coalesce(c.runnable, '{}')
    into code, first_seq, last_seq, digest, head, run_status, runnable
    from runs_commit c where c.tenant_id = p_tenant and c.run_id = p_run and c.key_digest = p_idempotency;
    if found then return; end if;

    if r.status in ({run_ends}) then
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
            if not (p_lists <@ r.list_channels and p_values <@ r.value_channels and p_removed = '{}') then
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
            select coalesce(runnable, '{}')
                || coalesce(array_agg(name order by position) filter (where status = 'runnable'), '{}')
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
        v_last := coalesce(v_last, '{}') || 'run_failed'::text; r.status := 'failed';
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
    runnable := coalesce(runnable, '{}');
    snapshot_due := r.chain_count >= 512 or r.chain_bytes >= greatest(65536, r.base_bytes);
end $$;
