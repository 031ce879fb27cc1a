-- The caller holds the tenant scope: a cancellation and its audit entry are one transaction. With a grace, what is leased may go on until
-- then; whoever is not leased by now never will be.
create function runs_cancel(
    p_tenant uuid, p_run uuid, p_grace double precision, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea
) returns text language plpgsql as $$
declare
    r record;
    v_at timestamptz;
    v_now boolean;
begin
    select x.status, x.last_seq, x.last_digest, x.cancel_at into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    if not found then return 'not_found'; end if;
    if r.status in ({run_finals}) then return r.status; end if;
    v_at := clock_timestamp();
    v_now := p_grace = 0 or not exists (
        select from runs_step s where s.tenant_id = p_tenant and s.run_id = p_run and s.status = 'leased');
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null,
        array[case when v_now then 'run_cancelled' else 'run_cancel_requested' end], null, null, null, array[p_payload], p_commitment);
    r.last_seq := r.last_seq + 1;
    if v_now then
        select * into r.last_seq, r.last_digest from runs_end(p_tenant, p_run, v_at, 'cancelled', r.last_seq, r.last_digest);
        update runs_run set status = 'cancelled', waiting_for = null, completed_at = v_at where tenant_id = p_tenant and id = p_run;
    else
        update runs_run set cancel_at = least(coalesce(cancel_at, 'infinity'), v_at + make_interval(secs => p_grace))
        where tenant_id = p_tenant and id = p_run;
        update runs_step set status = 'blocked', wait_kind = null, due_at = null
        where tenant_id = p_tenant and run_id = p_run and status in ('runnable', 'waiting');
    end if;
    update runs_run set updated_at = v_at, last_seq = r.last_seq, last_digest = r.last_digest where tenant_id = p_tenant and id = p_run;
    return 'ok';
end $$;

-- A run whose time is over: the grace of its cancellation, or its own deadline.
create function runs_time_over(p_tenant uuid, p_run uuid) returns boolean language plpgsql as $$
declare
    r record;
    v_at timestamptz;
    v_status text;
begin
    perform smriti_enter(p_tenant);
    select x.status, x.last_seq, x.last_digest, x.cancel_at, x.deadline_at into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update skip locked;
    if not found or r.status in ({run_ends}) then return false; end if;
    v_at := clock_timestamp();
    v_status := case
        when r.cancel_at <= v_at or r.cancel_at is not null and not exists (
            select from runs_step s where s.tenant_id = p_tenant and s.run_id = p_run and s.status = 'leased') then 'cancelled'
        when r.deadline_at <= v_at then 'dead_letter' end;
    if v_status is null then return false; end if;
    select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, null,
        'run_' || v_status, null, case v_status when 'dead_letter' then '{"reason":"deadline"}' end);
    select * into r.last_seq, r.last_digest from runs_end(p_tenant, p_run, v_at, v_status, r.last_seq, r.last_digest);
    update runs_run set status = v_status, waiting_for = null, completed_at = v_at, deadline_at = null, updated_at = v_at,
        last_seq = r.last_seq, last_digest = r.last_digest where tenant_id = p_tenant and id = p_run;
    return true;
end $$;

-- A gate whose time is over lapses. Nothing goes on: the step waits until the gate is renewed.
create function runs_lapse_gate(p_tenant uuid, p_gate uuid) returns boolean language plpgsql as $$
declare
    r record;
    g record;
    v_at timestamptz;
begin
    perform smriti_enter(p_tenant);
    select x.run_id into g from runs_gate x where x.tenant_id = p_tenant and x.id = p_gate;
    select x.id, x.last_seq, x.last_digest into r
    from runs_run x where x.tenant_id = p_tenant and x.id = g.run_id for no key update skip locked;
    if not found then return false; end if;
    v_at := clock_timestamp();
    select x.id, x.step_id, x.effect_id into g from runs_gate x
    where x.tenant_id = p_tenant and x.id = p_gate and x.status = 'open' and x.expires_at <= v_at for no key update;
    if not found then return false; end if;
    update runs_gate set status = 'lapsed', decided_at = v_at where tenant_id = p_tenant and id = p_gate;
    select * into r.last_seq, r.last_digest from runs_mark(p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, null,
        'gate_lapsed', g.step_id, '{"effect":"' || g.effect_id || '","gate":"' || p_gate || '"}');
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = r.id;
    return true;
end $$;

-- An operator's way out of a dead letter. `p_step`: the step it is about, null for all that stopped. `p_plan`: the steps that undo the
-- run's effects. The caller holds the tenant scope: the action and its audit entry are one transaction.
create function runs_recover(
    p_tenant uuid, p_run uuid, p_action text, p_step text, p_plan jsonb, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea,
    p_labels jsonb, out code text, out run_status text, out detail jsonb
) language plpgsql as $$
declare
    r record;
    s record;
    v_at timestamptz;
    v_ids uuid[];
    v_effect uuid;
begin
    select x.status, x.last_seq, x.last_digest, x.steps_total, x.steps_open, x.ending into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    if not found then code := 'not_found'; return; end if;
    run_status := r.status;
    if r.status <> 'dead_letter' then code := 'not_in_dead_letter'; detail := jsonb_build_object('run_status', r.status); return; end if;
    v_at := clock_timestamp();
    select array_agg(x.id order by x.position) into v_ids from runs_step x
    where x.tenant_id = p_tenant and x.run_id = p_run and x.status in ('dead_letter', 'failed') and (p_step is null or x.name = p_step);
    if p_step is not null and v_ids is null then code := 'unknown_step'; detail := jsonb_build_object('step', p_step); return; end if;
    select x.name into s from runs_step x where x.tenant_id = p_tenant and x.run_id = p_run and x.status in ('dead_letter', 'failed')
        and p_action <> 'compensate' and x.id <> all (coalesce(v_ids, '{}')) limit 1;
    if found then code := 'steps_left'; detail := jsonb_build_object('step', s.name); return; end if;
    if p_action in ('skip', 'compensate') then
        select e.id into v_effect from runs_effect e
        where e.tenant_id = p_tenant and e.run_id = p_run and e.status = 'unknown'
          and (p_action = 'compensate' or e.step_id = any (v_ids)) limit 1;
        if found then code := 'effects_open'; detail := jsonb_build_object('effect', v_effect); return; end if;
    end if;

    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null, array['run_recovered'],
                                 array[v_ids[1]], null, array[p_labels], array[p_payload], p_commitment);
    r.last_seq := r.last_seq + 1;
    update runs_run set status = 'pending', completed_at = null, deadline_at = null, cancel_at = null where tenant_id = p_tenant and id = p_run;
    if p_action <> 'skip' then
        -- What certainly did not happen may be tried anew: an operator says so.
        update runs_effect e set attempts = 0, failure_class = null, retry_at = null, updated_at = v_at
        where e.tenant_id = p_tenant and e.run_id = p_run and e.status in ('failed', 'reconciled_failed')
          and (p_action = 'compensate' and e.compensates_id is not null or p_action <> 'compensate' and e.step_id = any (v_ids));
    end if;
    if p_action = 'compensate' then
        update runs_step set status = 'skipped', wait_kind = null, due_at = null, ended_at = v_at
        where tenant_id = p_tenant and run_id = p_run and status in ('blocked', 'waiting', 'dead_letter', 'failed');
        r.steps_open := 0;
        r.ending := 'cancelled';
        if p_plan <> '[]' then
            detail := runs_plan(p_tenant, p_run, v_at, r.steps_total, p_plan);
            if detail is not null then
                raise exception 'the plan of a compensation does not fit' using errcode = 'data_exception', detail = detail::text;
            end if;
        end if;
        r.steps_total := r.steps_total + jsonb_array_length(p_plan);
        r.steps_open := jsonb_array_length(p_plan);
    else
        -- What stopped with the run goes on with it.
        perform runs_ready(p_tenant, p_run, v_at, 'operator', array(
            select x.id from runs_step x
            where x.tenant_id = p_tenant and x.run_id = p_run and x.status = 'blocked' and x.waiting_on = 0 order by x.position));
        if p_action = 'skip' then
            for s in select x.id from runs_step x where x.tenant_id = p_tenant and x.id = any (v_ids) order by x.position loop
                update runs_step set status = 'skipped', ended_at = v_at where tenant_id = p_tenant and id = s.id;
                select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, null,
                    'step_skipped', s.id, null);
                r.steps_open := r.steps_open - 1;
                perform runs_free(p_tenant, p_run, v_at, s.id);
            end loop;
        else
            update runs_step set attempts = 0, started_at = null, ended_at = null where tenant_id = p_tenant and id = any (v_ids);
            perform runs_ready(p_tenant, p_run, v_at, 'operator', v_ids);
        end if;
    end if;
    if p_action <> 'compensate' then
        -- A signal may have come meanwhile.
        for s in select x.id, x.wait_name from runs_step x
                 where x.tenant_id = p_tenant and x.run_id = p_run and x.status = 'waiting' and x.wait_kind = 'signal' order by x.position loop
            perform runs_take_signal(p_tenant, p_run, s.id, s.wait_name, v_at);
        end loop;
    end if;
    run_status := 'pending';
    if r.steps_open > 0 then
        select x.status, x.waiting_for into s from runs_doing(p_tenant, p_run) x;
        if s.status = 'waiting' then
            run_status := 'waiting';
            update runs_run set status = 'waiting', waiting_for = s.waiting_for where tenant_id = p_tenant and id = p_run;
        end if;
    else
        run_status := coalesce(r.ending, 'completed');
        select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, null,
            'run_' || run_status, null, null);
        select * into r.last_seq, r.last_digest from runs_end(p_tenant, p_run, v_at, run_status, r.last_seq, r.last_digest);
        update runs_run set status = run_status, completed_at = v_at where tenant_id = p_tenant and id = p_run;
    end if;
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, steps_total = r.steps_total, steps_open = r.steps_open,
        ending = r.ending, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    detail := null;
    code := 'ok';
end $$;
