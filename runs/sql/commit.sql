-- Ends a run. What is leased is taken from its worker, and what is in flight becomes unknown; what is open is skipped, or kept for an
-- operator after a dead letter.
create function runs_end(p_tenant uuid, p_run uuid, p_at timestamptz, p_status text, inout seq bigint, inout digest bytea)
language plpgsql as $$
begin
    select * into seq, digest from runs_lose_effects(p_tenant, p_run, null, p_at, seq, digest, 'operator');
    -- No worker of this run will come to find out.
    update runs_effect set owner = 'operator', updated_at = p_at
    where tenant_id = p_tenant and run_id = p_run and status = 'unknown' and owner = 'worker';
    select * into seq, digest from runs_cancel_effects(p_tenant, p_run, null, p_at, seq, digest);
    update runs_attempt set ended_at = p_at, outcome = 'cancelled'
    where tenant_id = p_tenant and run_id = p_run and ended_at is null;
    if p_status = 'dead_letter' then
        update runs_step set status = 'blocked', lease_id = null
        where tenant_id = p_tenant and run_id = p_run and status in ('leased', 'runnable');
    else
        update runs_step set status = 'skipped', lease_id = null, wait_kind = null, due_at = null, ended_at = p_at
        where tenant_id = p_tenant and run_id = p_run
          and status in ('blocked', 'runnable', 'leased', 'waiting');
        -- Whoever waits for this run as its child is woken by the sweep: no transaction locks two runs. Who begins to wait just now has
        -- said so before, or sees the end.
        perform pg_advisory_xact_lock(hashtextextended(p_run::text, 0));
        update runs_step set due_at = p_at where tenant_id = p_tenant and wait_id = p_run and status = 'waiting' and wait_kind = 'child';
    end if;
    insert into runs_anchordue (tenant_id, id) values (p_tenant, p_run) on conflict do nothing;
end $$;

-- Frees the steps that waited for one that succeeded or was skipped; the names of those that can go on.
create function runs_free(p_tenant uuid, p_run uuid, p_at timestamptz, p_step uuid) returns text[] language plpgsql as $$
declare
    v_ids uuid[];
    v_names text[];
begin
    with freed as (
        update runs_step d set waiting_on = d.waiting_on - 1
        from runs_stepdependency x
        where x.tenant_id = p_tenant and x.depends_on_id = p_step and d.tenant_id = p_tenant and d.id = x.step_id
        returning d.id, d.name, d.status, d.waiting_on, d.position)
    select array_agg(id order by position), array_agg(name order by position) into v_ids, v_names
    from freed where waiting_on = 0 and status = 'blocked';
    return case when runs_ready(p_tenant, p_run, p_at, null, v_ids) then v_names end;
end $$;

-- What a run is doing while it is not over: running while a step can go on, else waiting for what the first waiting step waits for.
create function runs_doing(p_tenant uuid, p_run uuid, out status text, out waiting_for text) language plpgsql as $$
begin
    status := 'running';
    perform from runs_step s
    where s.tenant_id = p_tenant and s.run_id = p_run and s.status in ('runnable', 'leased') limit 1;
    if found then return; end if;
    select 'waiting', s.wait_kind into status, waiting_for from runs_step s
    where s.tenant_id = p_tenant and s.run_id = p_run and s.status = 'waiting' order by s.position limit 1;
    status := coalesce(status, 'running');
end $$;

-- One durable transition: events, outcomes of effects, a change of the state, a step's result, new steps, the run's end. All or
-- nothing. `p_types` and its sister arrays hold the events in order, the ones that stand for the other parts included;
-- `p_checkpoint_event` is the position of the checkpoint's. `p_appended` and `p_required` are the channels that a patch takes for
-- granted, `p_lists`, `p_values` and `p_removed` what it makes of channels. `p_effects`: [{effect, outcome, class, retry_after,
-- event}], where `event` is a position. `p_wait`: {kind, name, id, seconds, until}.
create function runs_commit(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid, p_data_key uuid,
    p_key_epoch integer, p_lease uuid, p_epoch integer, p_idempotency bytea, p_request bytea, p_head integer,
    p_types text[], p_steps text[], p_occurred timestamptz[], p_labels jsonb[], p_payloads bytea[], p_commitments bytea,
    p_checkpoint_event integer, p_kind text, p_body bytea, p_lists bigint[], p_values bigint[], p_removed bigint[],
    p_appended bigint[], p_required bigint[], p_outcome text, p_retry_after double precision, p_new_steps jsonb,
    p_run_outcome text, p_run_payload bytea, p_run_commitment bytea, p_effects jsonb, p_wait jsonb,
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
    v_due timestamptz;
    v_last text[];
    v_bad text;
    v_reason text;
    v_effect uuid;
begin {enter}
    select x.project_id, x.agent_id, x.subject_id, x.data_key_id, x.status, x.last_seq, x.last_digest, x.head, x.base_version,
           x.base_bytes, x.chain_count, x.chain_bytes, x.list_channels, x.value_channels, x.steps_total, x.steps_open, x.ending,
           x.waiting_for, x.cancel_at,
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

    if r.data_key_id <> p_data_key then code := 'subject_changed'; return; end if;
    if r.subject_id is not null then
        perform from privacy_subject x
        where x.tenant_id = p_tenant and x.id = r.subject_id and x.key_epoch = p_key_epoch and x.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;

    v_at := clock_timestamp();
    v_status := r.status;
    if r.status in ({run_ends}) then
        code := 'run_finished'; run_status := r.status;
    end if;
    if p_lease is not null then
        select x.step_id, x.epoch, x.expires_at into a
        from runs_attempt x where x.tenant_id = p_tenant and x.id = p_lease and x.run_id = p_run;
        if not found then code := coalesce(code, 'lease_not_found'); return; end if;
        select x.epoch, x.lease_id, x.status, x.attempts, x.max_attempts, x.retry, x.deadline_seconds, x.started_at into s
        from runs_step x where x.tenant_id = p_tenant and x.id = a.step_id;
        if code is null and (a.epoch <> p_epoch or s.epoch <> p_epoch or s.lease_id is distinct from p_lease) then
            code := 'stale_epoch';
            detail := jsonb_build_object('current_epoch', s.epoch, 'step_status', s.status);
        elsif code is null and a.expires_at <= v_at then
            code := 'lease_expired';
            detail := jsonb_build_object('current_epoch', s.epoch, 'expired_at', a.expires_at);
        end if;
    end if;
    if code is not null then
        if p_effects is not null then
            perform runs_keep_evidence(p_tenant, p_run, p_key, p_lease, a.step_id, r.last_seq, r.last_digest, v_at, p_effects,
                                       p_labels, p_payloads, p_commitments);
        end if;
        return;
    end if;
    if p_lease is not null then
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
    if p_effects is not null then
        -- Lock them in one order, whatever order they were sent in.
        perform from runs_effect e where e.tenant_id = p_tenant
            and e.id in (select (x ->> 'effect')::uuid from jsonb_array_elements(p_effects) x) order by e.id for no key update;
        select x ->> 'effect', coalesce(e.status, 'absent') into v_bad, run_status from jsonb_array_elements(p_effects) x
        left join runs_effect e on e.tenant_id = p_tenant and e.id = (x ->> 'effect')::uuid
            and e.status = 'in_flight' and e.lease_id = p_lease and e.epoch = p_epoch and e.run_id = p_run
        where e.id is null limit 1;
        if found then
            code := 'effect_not_held';
            detail := jsonb_build_object('effect', v_bad, 'effect_status', (
                select e.status from runs_effect e where e.tenant_id = p_tenant and e.id = v_bad::uuid and e.run_id = p_run));
            run_status := null;
            return;
        end if;
    end if;
    if p_outcome = 'succeeded' then
        select e.id into v_effect from runs_effect e
        where e.tenant_id = p_tenant and e.run_id = p_run and e.step_id = a.step_id and e.status in ('in_flight', 'unknown')
          and not exists (select from jsonb_array_elements(p_effects) x
                          where (x ->> 'effect')::uuid = e.id and x ->> 'outcome' <> 'unknown') limit 1;
        if found then code := 'effects_open'; detail := jsonb_build_object('effect', v_effect); return; end if;
    end if;
    if p_wait ->> 'kind' = 'child' then
        -- The child's end waits for this lock, or this wait sees that it ended. It is not that of the child's row: two runs may begin to
        -- wait for each other.
        perform pg_advisory_xact_lock_shared(hashtextextended((p_wait ->> 'id')::uuid::text, 0));
        perform from runs_run y where y.tenant_id = p_tenant and y.id = (p_wait ->> 'id')::uuid and y.id <> p_run
          and (p_agent is null or y.agent_id = p_agent) and (p_projects is null or y.project_id = any (p_projects));
        if not found then code := 'unknown_child'; return; end if;
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
            r.base_version := r.head; r.base_bytes := runs_size(p_body); r.chain_count := 0; r.chain_bytes := 0;
            r.list_channels := p_lists; r.value_channels := p_values;
        else
            r.chain_count := r.chain_count + 1; r.chain_bytes := r.chain_bytes + runs_size(p_body);
            if not (p_lists <@ r.list_channels and p_values <@ r.value_channels and p_removed = '{}') then
                r.list_channels := p_lists
                    || array(select x from unnest(r.list_channels) x where x <> all (p_values || p_removed || p_lists));
                r.value_channels := p_values
                    || array(select x from unnest(r.value_channels) x where x <> all (p_values || p_removed || p_lists));
            end if;
        end if;
    end if;
    if p_effects is not null then
        perform runs_settle(p_tenant, v_at, r.last_seq, p_effects);
    end if;
    r.last_seq := r.last_seq + v_count;

    if p_outcome is not null then
        if p_outcome = 'succeeded' then
            v_end := 'succeeded';
            select * into r.last_seq, r.last_digest
            from runs_cancel_effects(p_tenant, p_run, a.step_id, v_at, r.last_seq, r.last_digest);
        else
            select * into r.last_seq, r.last_digest
            from runs_lose_effects(p_tenant, p_run, p_lease, v_at, r.last_seq, r.last_digest,
                case when p_outcome in ('failed', 'dead_letter') or p_run_outcome = 'failed' then 'operator' else 'worker' end);
            -- The unknown effect that the step must know about before it goes on, one that others find out about first.
            if p_outcome in ('unknown', 'retry') then
                select e.id, e.settle_at into v_effect, v_due from runs_effect e
                where e.tenant_id = p_tenant and e.run_id = p_run and e.step_id = a.step_id and e.status = 'unknown'
                order by e.owner = 'worker', e.settle_at desc limit 1;
            end if;
            v_end := case
                when p_outcome = 'released' then 'runnable'
                when p_outcome = 'waiting' then 'waiting'
                when p_outcome = 'failed' or p_run_outcome = 'failed' then 'failed'
                when p_outcome = 'dead_letter' or p_outcome = 'unknown' and v_effect is null then 'dead_letter'
                when s.attempts >= s.max_attempts then 'dead_letter'
                else 'waiting' end;
            v_reason := case
                when p_outcome = 'dead_letter' then 'permanent'
                when p_outcome = 'unknown' and v_effect is null then 'unknown_outcome'
                else 'attempts_exhausted' end;
        end if;
        update runs_attempt set ended_at = v_at, outcome = case
            when p_outcome = 'succeeded' then 'succeeded' when p_outcome in ('waiting', 'released') then 'released' else 'failed' end
        where tenant_id = p_tenant and id = p_lease;
        if v_end = 'waiting' and p_wait is not null then
            select (p_wait ->> 'kind'), least(v_at + make_interval(secs => (p_wait ->> 'seconds')::double precision),
                                              (p_wait ->> 'until')::timestamptz)
            into v_bad, v_due;
            v_reason := 'timer';
            if v_bad = 'child' and exists (select from runs_run y where y.tenant_id = p_tenant and y.id = (p_wait ->> 'id')::uuid
                                           and y.status in ({run_finals})) then
                v_due := v_at; v_reason := 'child';
            elsif v_bad <> 'timer' then
                v_reason := 'timeout';
            end if;
            update runs_step set status = 'waiting', lease_id = null, attempts = attempts - 1, due_at = v_due, wait_kind = v_bad,
                wait_name = p_wait ->> 'name', wait_id = (p_wait ->> 'id')::uuid, wake_reason = null, wake_seq = null
            where tenant_id = p_tenant and id = a.step_id;
            if v_bad = 'signal' then
                perform runs_take_signal(p_tenant, p_run, a.step_id, p_wait ->> 'name', v_at);
            elsif v_due <= v_at then
                perform runs_ready(p_tenant, p_run, v_at, v_reason, array[a.step_id]);
            end if;
        elsif v_end = 'waiting' then
            if p_outcome = 'retry' or v_effect is not null and exists (
                select from runs_effect e where e.tenant_id = p_tenant and e.id = v_effect and e.owner = 'worker') then
                -- Full jitter under an exponential cap; a provider's own retry-after is a lower bound, and so is the time before which
                -- nothing can be learnt of an unknown effect.
                v_due := greatest(v_due, v_at + make_interval(secs => coalesce(p_retry_after, 0) + random() * least(
                    coalesce((s.retry ->> 'max_seconds')::double precision, 900),
                    coalesce((s.retry ->> 'initial_seconds')::double precision, 2)
                    * power(coalesce((s.retry ->> 'factor')::double precision, 2), least(s.attempts - 1, 30)))));
                v_bad := 'retry';
                if v_due > s.started_at + make_interval(secs => s.deadline_seconds) then
                    v_end := 'dead_letter'; v_reason := 'deadline';
                end if;
            else
                v_due := null; v_bad := 'reconciliation';
            end if;
            if v_end = 'waiting' then
                update runs_step set status = 'waiting', lease_id = null, due_at = v_due, wait_kind = v_bad,
                    -- Finding out what became of the effect ends the wait, but for a provider that asked for time.
                    wait_id = case when v_bad = 'reconciliation' or coalesce(p_retry_after, 0) = 0 then v_effect end
                where tenant_id = p_tenant and id = a.step_id;
                select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null,
                    p_lease, 'step_retry_scheduled', a.step_id, runs_labels('attempt', (s.attempts + 1)::text,
                    'due_at', to_char(v_due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'for', v_bad));
            end if;
        elsif v_end = 'runnable' then
            update runs_step set attempts = attempts - 1 where tenant_id = p_tenant and id = a.step_id;
            perform runs_ready(p_tenant, p_run, v_at, null, array[a.step_id]);
        end if;
        if v_end in ('succeeded', 'failed', 'dead_letter') then
            update runs_step set status = v_end, lease_id = null, ended_at = v_at where tenant_id = p_tenant and id = a.step_id;
        end if;
        if v_end = 'succeeded' then
            r.steps_open := r.steps_open - 1;
            runnable := nullif(coalesce(runnable, '{}') || coalesce(runs_free(p_tenant, p_run, v_at, a.step_id), '{}'), '{}');
            if r.steps_open = 0 and p_run_outcome is distinct from 'failed' then
                r.status := coalesce(r.ending, 'completed');
                v_last := array['run_' || r.status];
            end if;
        elsif v_end = 'failed' then
            v_last := array['run_failed']; r.status := 'failed';
        elsif v_end = 'dead_letter' then
            select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null,
                p_lease, 'step_dead_letter', a.step_id, runs_labels('reason', v_reason));
            -- Of a run that is being cancelled nothing is left to be recovered.
            r.status := case when r.cancel_at is null then 'dead_letter' else 'cancelled' end;
            v_last := array['run_' || r.status];
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
    if r.status in ({run_ends}) then
        select * into r.last_seq, r.last_digest from runs_end(p_tenant, p_run, v_at, r.status, r.last_seq, r.last_digest);
    elsif p_outcome is not null and runnable is null then
        select * into r.status, r.waiting_for from runs_doing(p_tenant, p_run);
    end if;
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, head = r.head, base_version = r.base_version,
        base_bytes = r.base_bytes, chain_count = r.chain_count, chain_bytes = r.chain_bytes, list_channels = r.list_channels,
        value_channels = r.value_channels, steps_total = r.steps_total, steps_open = r.steps_open, updated_at = v_at
    where tenant_id = p_tenant and id = p_run;
    if r.status <> v_status then
        update runs_run set status = r.status, waiting_for = case r.status when 'waiting' then r.waiting_for end,
            completed_at = case when r.status in ({run_ends}) then v_at end where tenant_id = p_tenant and id = p_run;
    end if;
    insert into runs_commit (tenant_id, run_id, first_seq, last_seq, head, key_digest, request_digest, digest, run_status, runnable)
    values (p_tenant, p_run, first_seq, r.last_seq, r.head, p_idempotency, p_request, r.last_digest, r.status, runnable);
    code := 'ok'; last_seq := r.last_seq; digest := r.last_digest; head := r.head; run_status := r.status;
    runnable := coalesce(runnable, '{}');
    snapshot_due := r.chain_count >= 512 or r.chain_bytes >= greatest(65536, r.base_bytes);
end $$;
