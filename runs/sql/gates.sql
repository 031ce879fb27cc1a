-- Gates that people decide on. Every function holds the lock of the run first.

-- Decides an open gate. Satisfied, it mints the grant; either way the step goes on. A governed gate is decided
-- only by what governs it. The caller holds the tenant scope.
create function runs_decide_gate(
    p_tenant uuid, p_gate uuid, p_run uuid, p_satisfied boolean, p_grant_seconds double precision, p_actor_kind text, p_actor uuid,
    p_payload bytea, p_commitment bytea, p_labels jsonb, p_governed boolean, out code text, out grant_id uuid, out detail jsonb
) language plpgsql as $$
declare
    r record;
    g record;
    v_at timestamptz;
    v_run_status text;
    v_waiting text;
begin
    select x.status, x.last_seq, x.last_digest into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    select * into g from runs_gate x where x.tenant_id = p_tenant and x.id = p_gate and x.run_id = p_run for no key update;
    v_at := clock_timestamp();
    if g.status = 'open' and g.expires_at <= v_at then g.status := 'lapsed'; end if;
    if g.status is distinct from 'open' then
        code := 'gate_decided'; detail := jsonb_build_object('gate_status', g.status, 'decided_at', g.decided_at); return;
    end if;
    if g.governed <> p_governed then code := 'gate_is_governed'; detail := jsonb_build_object('gate', p_gate); return; end if;
    update runs_gate set status = case when p_satisfied then 'satisfied' else 'refused' end, decided_at = v_at, decided_by = p_actor
    where tenant_id = p_tenant and id = p_gate;
    if p_satisfied then
        grant_id := uuidv7();
        insert into runs_grant (tenant_id, id, gate_id, effect_id, run_id, action_digest, status, minted_at, expires_at)
        values (p_tenant, grant_id, p_gate, g.effect_id, p_run, g.action_digest, 'unused', v_at,
                v_at + make_interval(secs => p_grant_seconds));
    end if;
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null,
        array[case when p_satisfied then 'gate_satisfied' else 'gate_refused' end], array[g.step_id], null, array[p_labels],
        array[p_payload], p_commitment);
    perform runs_gate_over(p_tenant, p_run, v_at, p_gate);
    select x.status, x.waiting_for into v_run_status, v_waiting from runs_doing(p_tenant, p_run) x;
    update runs_run set last_seq = r.last_seq + 1, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    if v_run_status <> r.status then
        update runs_run set status = v_run_status, waiting_for = v_waiting where tenant_id = p_tenant and id = p_run;
    end if;
    code := 'ok';
end $$;

-- A gate that lapsed is opened anew: what exactly is asked for stays the same, and so does who waits for it. The caller holds the tenant
-- scope.
create function runs_renew_gate(
    p_tenant uuid, p_gate uuid, p_run uuid, p_new uuid, p_seconds double precision, p_actor_kind text, p_actor uuid, p_payload bytea,
    p_commitment bytea, p_labels jsonb, out code text, out detail jsonb
) language plpgsql as $$
declare
    r record;
    g record;
    v_at timestamptz;
begin
    select x.last_seq, x.last_digest into r from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    select x.* into g from runs_gate x join runs_effect e on e.tenant_id = x.tenant_id and e.id = x.effect_id
    where x.tenant_id = p_tenant and x.id = p_gate and x.run_id = p_run and e.status = 'reserved' and e.gate_id = p_gate;
    if not found or g.status <> 'lapsed' then
        code := 'gate_decided';
        detail := jsonb_build_object('gate_status', (select x.status from runs_gate x where x.tenant_id = p_tenant and x.id = p_gate));
        return;
    end if;
    v_at := clock_timestamp();
    insert into runs_gate (tenant_id, id, run_id, step_id, effect_id, rule, status, action_digest, opened_at, expires_at)
    values (p_tenant, p_new, p_run, g.step_id, g.effect_id, g.rule, 'open', g.action_digest, v_at, v_at + make_interval(secs => p_seconds));
    update runs_effect set gate_id = p_new, updated_at = v_at where tenant_id = p_tenant and id = g.effect_id;
    update runs_step set wait_id = p_new
    where tenant_id = p_tenant and run_id = p_run and status = 'waiting' and wait_kind = 'gate' and wait_id = p_gate;
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null, array['gate_opened'],
                                 array[g.step_id], null, array[p_labels], array[p_payload], p_commitment);
    update runs_run set last_seq = r.last_seq + 1, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    code := 'ok';
end $$;

-- People changed what is asked for: the effect has another input from here on, and waits at another gate for that. The input stands in
-- the event. The caller holds the tenant scope.
create function runs_amend(
    p_tenant uuid, p_gate uuid, p_run uuid, p_new uuid, p_seconds double precision, p_rule text, p_action_digest bytea, p_input_digest bytea,
    p_amount numeric, p_currency text, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea, p_labels jsonb,
    out code text, out detail jsonb
) language plpgsql as $$
declare
    r record;
    g record;
    v_at timestamptz;
begin
    select x.last_seq, x.last_digest into r from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    select x.*, e.input_digest, e.tool into g from runs_gate x join runs_effect e on e.tenant_id = x.tenant_id and e.id = x.effect_id
    where x.tenant_id = p_tenant and x.id = p_gate and x.run_id = p_run and e.status = 'reserved' and e.gate_id = p_gate;
    v_at := clock_timestamp();
    if not found or g.status <> 'open' or g.expires_at <= v_at then
        code := 'gate_decided';
        detail := jsonb_build_object('gate_status', (select x.status from runs_gate x where x.tenant_id = p_tenant and x.id = p_gate));
        return;
    end if;
    update runs_gate set status = 'withdrawn', decided_at = v_at where tenant_id = p_tenant and id = p_gate;
    insert into runs_gate (tenant_id, id, run_id, step_id, effect_id, rule, status, action_digest, opened_at, expires_at)
    values (p_tenant, p_new, p_run, g.step_id, g.effect_id, p_rule, 'open', p_action_digest, v_at, v_at + make_interval(secs => p_seconds));
    update runs_step set wait_id = p_new
    where tenant_id = p_tenant and run_id = p_run and status = 'waiting' and wait_kind = 'gate' and wait_id = p_gate;
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null, array['effect_amended'],
                                 array[g.step_id], null, array[p_labels], array[p_payload], p_commitment);
    r.last_seq := r.last_seq + 1;
    update runs_effect set gate_id = p_new, input_digest = p_input_digest, input_seq = r.last_seq, amended_seq = r.last_seq,
        amended_from = coalesce(amended_from, g.input_digest), amount = p_amount, currency = p_currency, updated_at = v_at
    where tenant_id = p_tenant and id = g.effect_id;
    select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, null,
        'gate_opened', g.step_id,
        '{"effect":"' || g.effect_id || '","gate":"' || p_new || '","rule":"' || p_rule || '","tool":"' || g.tool || '"}');
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    code := 'ok';
end $$;

-- Nobody is asked any more: an open gate is withdrawn, or the unused grant of a satisfied one revoked. Who waits goes on, and may ask anew.
-- The caller holds the tenant scope.
create function runs_withdraw_gate(
    p_tenant uuid, p_gate uuid, p_run uuid, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea, p_labels jsonb,
    out code text, out detail jsonb
) language plpgsql as $$
declare
    r record;
    g record;
    v_at timestamptz;
    v_type text := 'gate_withdrawn';
    v_run_status text;
    v_waiting text;
begin
    select x.status, x.last_seq, x.last_digest into r from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    select * into g from runs_gate x where x.tenant_id = p_tenant and x.id = p_gate and x.run_id = p_run for no key update;
    v_at := clock_timestamp();
    if g.status = 'open' then
        update runs_gate set status = 'withdrawn', decided_at = v_at where tenant_id = p_tenant and id = p_gate;
    else
        update runs_grant set status = case when expires_at <= v_at then 'lapsed' else 'revoked' end
        where tenant_id = p_tenant and gate_id = p_gate and status = 'unused';
        if not found then code := 'gate_decided'; detail := jsonb_build_object('gate_status', g.status); return; end if;
        v_type := 'gate_revoked';
    end if;
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null, array[v_type],
                                 array[g.step_id], null, array[p_labels], array[p_payload], p_commitment);
    perform runs_gate_over(p_tenant, p_run, v_at, p_gate);
    update runs_run set last_seq = r.last_seq + 1, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    if r.status in ('running', 'waiting') then
        select x.status, x.waiting_for into v_run_status, v_waiting from runs_doing(p_tenant, p_run) x;
        if v_run_status <> r.status then
            update runs_run set status = v_run_status, waiting_for = v_waiting where tenant_id = p_tenant and id = p_run;
        end if;
    end if;
    code := 'ok';
end $$;
