-- The effect ledger. Every function here holds the lock of the run whose log it extends, then those of effects, then those of limits.

create function runs_effect_labels(p_effect uuid, p_tool text) returns text immutable language sql as $$
    select '{"effect":"' || p_effect || '","tool":"' || p_tool || '"}'
$$;

-- What a lease (null: every lease of the run) had in flight becomes unknown. A probe owns it when its tool has one.
create function runs_lose_effects(
    p_tenant uuid, p_run uuid, p_lease uuid, p_at timestamptz, inout seq bigint, inout digest bytea, p_owner text
) language plpgsql as $$
declare
    e record;
begin
    for e in
        select x.id, x.step_id, x.tool, x.probed from runs_effect x
        where x.tenant_id = p_tenant and x.run_id = p_run and x.status = 'in_flight' and (p_lease is null or x.lease_id = p_lease)
        order by x.id for no key update
    loop
        update runs_effect set status = 'unknown', owner = case when e.probed then 'probe' else p_owner end,
            probe_at = case when e.probed then p_at end, updated_at = p_at
        where tenant_id = p_tenant and id = e.id;
        select * into seq, digest from runs_mark(p_tenant, p_run, seq, digest, p_at, 'system', null, p_lease, 'effect_unknown',
                                                 e.step_id, runs_effect_labels(e.id, e.tool));
    end loop;
end $$;

-- A gate is decided, or not asked for any more: all who wait for it go on. The caller holds the run.
create function runs_gate_over(p_tenant uuid, p_run uuid, p_at timestamptz, p_gate uuid) returns void language plpgsql as $$
begin
    perform runs_ready(p_tenant, p_run, p_at, 'gate', array(
        select s.id from runs_step s
        where s.tenant_id = p_tenant and s.wait_id = p_gate and s.status = 'waiting' and s.wait_kind = 'gate' order by s.position));
end $$;

-- What was never permitted, of a step (null: of every step of the run), is given up with its gate and grant.
create function runs_cancel_effects(
    p_tenant uuid, p_run uuid, p_step uuid, p_at timestamptz, inout seq bigint, inout digest bytea
) language plpgsql as $$
declare
    e record;
    v_gate uuid;
begin
    for e in
        select x.id, x.step_id, x.tool from runs_effect x
        where x.tenant_id = p_tenant and x.run_id = p_run and x.status = 'reserved' and (p_step is null or x.step_id = p_step)
        order by x.id for no key update
    loop
        update runs_effect set status = 'cancelled', updated_at = p_at where tenant_id = p_tenant and id = e.id;
        update runs_gate set status = 'withdrawn', decided_at = p_at
        where tenant_id = p_tenant and effect_id = e.id and status = 'open' returning id into v_gate;
        if found then perform runs_gate_over(p_tenant, p_run, p_at, v_gate); end if;
        update runs_grant set status = 'revoked' where tenant_id = p_tenant and effect_id = e.id and status = 'unused';
        select * into seq, digest from runs_mark(p_tenant, p_run, seq, digest, p_at, 'system', null, null, 'effect_cancelled',
                                                 e.step_id, runs_effect_labels(e.id, e.tool));
    end loop;
end $$;

-- Takes a call, and its amount, from the limits of a tool. Answers null, or the rule that forbids it with nothing taken.
-- `p_limits`: {max_amount_per_call: {INR: "…"}, max_amount_per_day, calls_per_minute, calls_per_day, max_in_flight, time_zone}.
create function runs_take(
    p_tenant uuid, p_tool text, p_limits jsonb, p_amount numeric, p_currency text, p_at timestamptz, out denied jsonb, out counted_on date
) language plpgsql as $$
declare
    v_zone text := coalesce(p_limits ->> 'time_zone', 'UTC');
    v_tomorrow double precision;
    v_limit numeric;
    v_rate double precision := (p_limits ->> 'calls_per_minute')::double precision;
    v_tokens double precision;
    v_flying integer;
    u record;
begin
    if p_limits is null or p_limits = '{}' then return; end if;
    counted_on := (p_at at time zone v_zone)::date;
    v_tomorrow := ceil(extract(epoch from ((counted_on + 1)::timestamp at time zone v_zone) - p_at));
    if p_limits ? 'max_amount_per_call' and p_amount is not null then
        v_limit := (p_limits -> 'max_amount_per_call' ->> p_currency)::numeric;
        if v_limit is null then denied := jsonb_build_object('rule', 'currency_not_allowed', 'currency', p_currency); return; end if;
        if p_amount > v_limit then
            denied := jsonb_build_object('rule', 'max_amount_per_call', 'limit', v_limit::text, 'currency', p_currency); return;
        end if;
    end if;
    -- One row a day and tool, locked: calls of one limited tool are counted one after the other.
    insert into runs_toolusage (tenant_id, id, tool, day, currency, calls, amount)
    values (p_tenant, uuidv7(), p_tool, counted_on, '', 0, 0) on conflict (tenant_id, tool, day, currency) do nothing;
    select * into u from runs_toolusage x
    where x.tenant_id = p_tenant and x.tool = p_tool and x.day = counted_on and x.currency = '' for no key update;
    if u.calls >= (p_limits ->> 'calls_per_day')::integer then
        denied := jsonb_build_object('rule', 'calls_per_day', 'limit', p_limits -> 'calls_per_day', 'retry_after', v_tomorrow); return;
    end if;
    if v_rate is not null then
        v_tokens := least(greatest(v_rate, 1), coalesce(u.tokens, greatest(v_rate, 1))
            + coalesce(extract(epoch from p_at - u.refilled_at), 0) * v_rate / 60);
        if v_tokens < 1 then
            denied := jsonb_build_object('rule', 'calls_per_minute', 'limit', v_rate,
                                         'retry_after', ceil((1 - v_tokens) * 60 / v_rate)); return;
        end if;
    end if;
    if p_limits ? 'max_in_flight' then
        select count(*) into v_flying from (
            select from runs_effect x where x.tenant_id = p_tenant and x.tool = p_tool and x.status = 'in_flight'
            limit (p_limits ->> 'max_in_flight')::integer) f;
        if v_flying >= (p_limits ->> 'max_in_flight')::integer then
            denied := jsonb_build_object('rule', 'max_in_flight', 'limit', p_limits -> 'max_in_flight', 'retry_after', 1); return;
        end if;
    end if;
    if p_limits ? 'max_amount_per_day' and p_amount is not null then
        v_limit := (p_limits -> 'max_amount_per_day' ->> p_currency)::numeric;
        if v_limit is null then denied := jsonb_build_object('rule', 'currency_not_allowed', 'currency', p_currency); return; end if;
        insert into runs_toolusage (tenant_id, id, tool, day, currency, calls, amount)
        values (p_tenant, uuidv7(), p_tool, counted_on, p_currency, 0, 0) on conflict (tenant_id, tool, day, currency) do nothing;
        update runs_toolusage x set amount = x.amount + p_amount
        where x.tenant_id = p_tenant and x.tool = p_tool and x.day = counted_on and x.currency = p_currency
          and x.amount + p_amount <= v_limit;
        if not found then
            denied := jsonb_build_object('rule', 'max_amount_per_day', 'limit', v_limit::text, 'currency', p_currency,
                                         'retry_after', v_tomorrow); return;
        end if;
    end if;
    update runs_toolusage x set calls = x.calls + 1, tokens = v_tokens - 1, refilled_at = p_at where x.tenant_id = p_tenant and x.id = u.id;
end $$;

-- An effect certainly did not happen: what it took from the day's amount is given back.
create function runs_give_back(p_tenant uuid, p_effect uuid) returns void language plpgsql as $$
begin
    update runs_toolusage u set amount = u.amount - e.amount from runs_effect e
    where e.tenant_id = p_tenant and e.id = p_effect and e.counted_on is not null and e.amount is not null
      and u.tenant_id = p_tenant and u.tool = e.tool and u.day = e.counted_on and u.currency = e.currency;
    update runs_effect set counted_on = null where tenant_id = p_tenant and id = p_effect and counted_on is not null;
end $$;

-- Is there another attempt for an effect that failed? Answers null, or the rule that forbids it.
create function runs_no_retry(p_class text, p_attempts integer, p_retry jsonb) returns text immutable language sql as $$
    select case when p_class in ('permanent', 'business_rejection') then 'failed_' || p_class
                when p_attempts >= coalesce((p_retry ->> 'max_attempts')::integer, 5) then 'attempts_exhausted' end
$$;

-- Records outcomes of effects that the caller holds in flight. `p_base` is the sequence number before the commit's events.
create function runs_settle(p_tenant uuid, p_at timestamptz, p_base bigint, p_effects jsonb) returns void language plpgsql as $$
declare
    o record;
    e record;
begin
    for o in
        select (x ->> 'effect')::uuid as id, x ->> 'outcome' as outcome, x ->> 'class' as class,
               (x ->> 'retry_after')::double precision as retry_after, (x ->> 'event')::integer as event
        from jsonb_array_elements(p_effects) x order by 1
    loop
        select x.attempts, x.compensates_id, x.retry, x.probed into e from runs_effect x where x.tenant_id = p_tenant and x.id = o.id;
        update runs_effect set status = o.outcome, outcome_seq = p_base + o.event, updated_at = p_at,
            owner = case when o.outcome = 'unknown' then case when e.probed then 'probe' else 'worker' end end,
            probe_at = case when o.outcome = 'unknown' and e.probed then p_at end,
            failure_class = case when o.outcome = 'failed' then o.class end,
            retry_at = case when o.outcome = 'failed' then p_at + make_interval(secs => coalesce(o.retry_after, 0) + random() * least(
                coalesce((e.retry ->> 'max_seconds')::double precision, 900),
                coalesce((e.retry ->> 'initial_seconds')::double precision, 1)
                * power(coalesce((e.retry ->> 'factor')::double precision, 2), least(e.attempts - 1, 30)))) end
        where tenant_id = p_tenant and id = o.id;
        if o.outcome = 'failed' then
            perform runs_give_back(p_tenant, o.id);
        end if;
        if e.compensates_id is not null then
            perform runs_compensated(p_tenant, e.compensates_id, p_at, o.outcome, runs_no_retry(o.class, e.attempts, e.retry));
        end if;
    end loop;
end $$;

-- What the end of a compensation makes of the effect that it undoes.
create function runs_compensated(p_tenant uuid, p_effect uuid, p_at timestamptz, p_outcome text, p_no_retry text)
returns void language plpgsql as $$
begin
    update runs_effect set updated_at = p_at,
        status = case when p_outcome in ('succeeded', 'reconciled_succeeded') then 'compensated' else 'compensation_failed' end
    where tenant_id = p_tenant and id = p_effect and status = 'compensating'
      and (p_outcome in ('succeeded', 'reconciled_succeeded')
           or p_outcome in ('failed', 'reconciled_failed') and p_no_retry is not null);
end $$;

-- Outcomes that came under a lost lease change no state, and are kept for whoever reconciles. One that says "it happened" of an effect
-- that was executed again since, or recorded as not done, is an incident.
create function runs_keep_evidence(
    p_tenant uuid, p_run uuid, p_key uuid, p_lease uuid, p_step uuid, p_seq bigint, p_digest bytea, p_at timestamptz, p_effects jsonb,
    p_labels jsonb[], p_payloads bytea[], p_commitments bytea
) returns void language plpgsql as $$
declare
    o record;
    e record;
    v_seq bigint := p_seq;
begin
    for o in
        select (x ->> 'effect')::uuid as id, x ->> 'outcome' as outcome, (x ->> 'event')::integer as event
        from jsonb_array_elements(p_effects) x order by 1
    loop
        select x.id, x.status, x.tool, x.lease_id into e from runs_effect x
        where x.tenant_id = p_tenant and x.id = o.id and exists (
            select from runs_decision d where d.tenant_id = p_tenant and d.lease_id = p_lease and d.effect_id = o.id and d.decision = 'execute');
        continue when not found or exists (
            select from runs_evidence v
            where v.tenant_id = p_tenant and v.effect_id = o.id and v.lease_id = p_lease and v.outcome = o.outcome);
        p_digest := runs_append(p_tenant, p_run, v_seq, p_digest, p_at, 'key', p_key, p_lease, array['effect_evidence'], array[p_step],
            null, p_labels[o.event : o.event], p_payloads[o.event : o.event], substr(p_commitments, 32 * o.event - 31, 32));
        v_seq := v_seq + 1;
        insert into runs_evidence (tenant_id, id, effect_id, run_id, lease_id, kind, outcome, seq, recorded_at)
        values (p_tenant, uuidv7(), o.id, p_run, p_lease, 'late_outcome', o.outcome, v_seq, p_at);
        if o.outcome = 'succeeded' and (e.status in ('reconciled_failed', 'failed') or e.lease_id <> p_lease) then
            select * into v_seq, p_digest from runs_mark(p_tenant, p_run, v_seq, p_digest, p_at, 'system', null, p_lease,
                'effect_duplicate', p_step, runs_effect_labels(e.id, e.tool));
        end if;
    end loop;
    if v_seq > p_seq then
        update runs_run set last_seq = v_seq, last_digest = p_digest, updated_at = p_at where tenant_id = p_tenant and id = p_run;
        insert into runs_anchordue (tenant_id, id) values (p_tenant, p_run) on conflict do nothing;
    end if;
end $$;

-- Whether a lease is held now: null, or the refusal.
create function runs_lease_refused(
    p_tenant uuid, p_run uuid, p_lease uuid, p_epoch integer, p_at timestamptz, out code text, out detail jsonb, out step uuid
) language plpgsql as $$
declare
    a record;
    s record;
begin
    select x.step_id, x.epoch, x.expires_at into a from runs_attempt x
    where x.tenant_id = p_tenant and x.id = p_lease and x.run_id = p_run;
    if not found then code := 'lease_not_found'; return; end if;
    step := a.step_id;
    select x.epoch, x.lease_id, x.status into s from runs_step x where x.tenant_id = p_tenant and x.id = a.step_id;
    if a.epoch <> p_epoch or s.epoch <> p_epoch or s.lease_id is distinct from p_lease then
        code := 'stale_epoch'; detail := jsonb_build_object('current_epoch', s.epoch, 'step_status', s.status);
    elsif a.expires_at <= p_at then
        code := 'lease_expired'; detail := jsonb_build_object('current_epoch', s.epoch, 'expired_at', a.expires_at);
    end if;
end $$;

-- Judges a reservation and commits what follows from it. `p_effect` is the id of the live effect with this key, or a new one.
-- `p_tool`: {id, name, limits, retry, probed, execute_seconds, settle_seconds, give_up_seconds}. `p_gate`: {rule, seconds} when the action needs
-- a grant, which is used only when the caller's policy has confirmed it (`p_confirmed`); {deny} when the policy forbids it. `p_amended`: the
-- event whose input was put in the place of the one that was sent. The caller holds the tenant scope.
create function runs_reserve(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid, p_data_key uuid, p_key_epoch integer,
    p_lease uuid, p_epoch integer, p_idempotency bytea, p_request bytea, p_effect uuid, p_effect_key text, p_tool jsonb,
    p_input_digest bytea, p_action_digest bytea, p_payload bytea, p_commitment bytea, p_labels jsonb, p_amount numeric, p_currency text,
    p_gate jsonb, p_confirmed uuid, p_compensates uuid, p_amended bigint,
    out code text, out decision text, out effect uuid, out detail jsonb
) language plpgsql as $$
declare
    r record;
    e record;
    d record;
    g record;
    t record;
    v_at timestamptz;
    v_step uuid;
    v_status text;
    v_new boolean := false;
    v_go boolean := false;
    v_grant uuid;
    v_gate uuid;
    v_old uuid;
    v_rule text;
    v_counted date;
    v_labels text := runs_effect_labels(p_effect, p_tool ->> 'name');
    v_deadline timestamptz;
begin
    select x.id, x.project_id, x.agent_id, x.subject_id, x.data_key_id, x.status, x.last_seq, x.last_digest into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    if not found or (p_agent is not null and r.agent_id is distinct from p_agent)
       or (p_projects is not null and r.project_id <> all (p_projects)) then
        code := 'not_found'; return;
    end if;
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    v_at := clock_timestamp();
    perform from runs_decision x
    where x.tenant_id = p_tenant and x.run_id = p_run and x.key_digest = p_idempotency and x.request_digest <> p_request;
    if found then code := 'idempotency_key_reused'; return; end if;
    select * into d from runs_decision x
    where x.tenant_id = p_tenant and x.run_id = p_run and x.key_digest = p_idempotency and x.lease_id = p_lease;
    if found and d.epoch = p_epoch and d.decision <> 'execute' then
        code := 'ok'; decision := d.decision; effect := d.effect_id; detail := d.detail; return;
    end if;
    if r.status in ({run_ends}) then code := 'run_finished'; detail := jsonb_build_object('run_status', r.status); return; end if;
    if r.data_key_id <> p_data_key then code := 'subject_changed'; return; end if;
    if r.subject_id is not null then
        perform from privacy_subject x
        where x.tenant_id = p_tenant and x.id = r.subject_id and x.key_epoch = p_key_epoch and x.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;
    select x.code, x.detail, x.step into code, detail, v_step from runs_lease_refused(p_tenant, p_run, p_lease, p_epoch, v_at) x;
    if code is not null then return; end if;

    -- The unique key decides between reservations of several runs: the loser waits here and then sees the winner's row.
    loop
        select * into e from runs_effect x
        where x.tenant_id = p_tenant and x.key = p_effect_key and x.status <> 'cancelled' for no key update;
        exit when found;
        insert into runs_effect (tenant_id, id, run_id, step_id, project_id, tool_id, tool, key, status, attempts, input_digest,
                                 input_seq, amount, currency, compensates_id, retry, probed, probes, created_at, updated_at)
        values (p_tenant, p_effect, p_run, v_step, r.project_id, (p_tool ->> 'id')::uuid, p_tool ->> 'name', p_effect_key, 'reserved', 0,
                p_input_digest, r.last_seq + 1, p_amount, p_currency, p_compensates, p_tool -> 'retry', (p_tool ->> 'probed')::boolean, 0, v_at, v_at)
        on conflict (tenant_id, key) where status <> 'cancelled' do nothing;
        v_new := found;
    end loop;
    -- Another effect has the key by now, or people amended this one since the caller looked.
    if e.id <> p_effect or e.amended_seq is not null and (case when p_amended is null then e.amended_from = p_input_digest
                                                               else e.amended_seq <> p_amended end) then
        code := 'moved'; effect := e.id; return;
    end if;
    effect := e.id;
    -- The key's row may have been waited for. And when it is the same call again, its answer was lost: what is left of it.
    v_at := clock_timestamp();
    if d.decision = 'execute' and d.epoch = p_epoch and e.status = 'in_flight' and e.lease_id = p_lease
       and e.attempts = (d.detail ->> 'attempt')::integer then
        code := 'ok'; decision := 'execute';
        detail := d.detail || jsonb_build_object('seconds', greatest(0, extract(epoch from e.deadline_at - v_at)));
        return;
    end if;

    case
        when e.status = 'in_flight' or e.status = 'reserved' and e.run_id <> p_run then
            decision := 'reconcile';
            detail := jsonb_build_object('reason', 'in_flight_elsewhere', 'retry_after', case e.status when 'reserved' then 30 else
                least(30, greatest(1, ceil(extract(epoch from e.deadline_at - v_at)))) end);
        when e.status = 'unknown' then
            decision := 'reconcile';
            detail := jsonb_build_object('reason', 'outcome_unknown', 'settle_at', e.settle_at, 'owner', e.owner,
                'retry_after', greatest(0, extract(epoch from e.settle_at - v_at)));
        when e.status in ('succeeded', 'reconciled_succeeded') then
            decision := 'already_done';
            detail := jsonb_build_object('run_id', e.run_id, 'outcome_seq', e.outcome_seq, 'project_id', e.project_id,
                                         'input_matches', e.input_digest = p_input_digest);
        when e.status in ('compensating', 'compensated', 'compensation_failed') then
            v_rule := 'compensated';
        when e.status in ('failed', 'reconciled_failed') then
            v_rule := case
                when e.input_digest <> p_input_digest then 'input_changed'
                when exists (select from runs_evidence v
                             where v.tenant_id = p_tenant and v.effect_id = e.id and v.outcome = 'succeeded') then 'contradicting_evidence'
                else runs_no_retry(e.failure_class, e.attempts, p_tool -> 'retry') end;
            if v_rule is null and e.retry_at > v_at then
                v_rule := 'retry_later';
                detail := jsonb_build_object('retry_after', ceil(extract(epoch from e.retry_at - v_at)));
            end if;
            v_go := v_rule is null;
        else
            v_go := true;
    end case;

    if v_go then
        select x.enabled into t from runs_tool x where x.tenant_id = p_tenant and x.id = (p_tool ->> 'id')::uuid;
        if t.enabled is distinct from true then v_rule := 'tool_disabled'; end if;
        if p_compensates is not null and not exists (
            select from runs_effect x where x.tenant_id = p_tenant and x.id = p_compensates
              and x.status in ('succeeded', 'reconciled_succeeded', 'compensating', 'compensation_failed')) then
            v_rule := 'nothing_to_compensate';
        end if;
    end if;
    if v_go and v_rule is null and p_gate ? 'deny' then
        v_rule := 'policy_denied'; detail := jsonb_build_object('policy', p_gate ->> 'deny');
    end if;
    if v_go and v_rule is null and p_gate is not null then
        select x.id, x.gate_id into g from runs_grant x
        where x.tenant_id = p_tenant and x.effect_id = e.id and x.status = 'unused' and x.action_digest = p_action_digest
          and x.run_id = p_run and x.expires_at > v_at for no key update;
        if found then
            if p_confirmed is distinct from g.id then
                code := 'confirm'; detail := jsonb_build_object('grant', g.id, 'gate', g.gate_id); return;
            end if;
            v_grant := g.id;
        else
            select x.id, x.status, x.action_digest, x.expires_at into g from runs_gate x
            where x.tenant_id = p_tenant and x.id = e.gate_id for no key update;
            if found and g.action_digest = p_action_digest and g.status = 'refused' then
                v_rule := 'gate_refused'; detail := jsonb_build_object('gate', g.id);
            else
                decision := 'await_approval';
                v_gate := case when g.status = 'open' and g.action_digest = p_action_digest then g.id end;
            end if;
        end if;
    end if;
    if v_go and v_rule is null and decision is null then
        select x.denied, x.counted_on into detail, v_counted
        from runs_take(p_tenant, p_tool ->> 'name', p_tool -> 'limits', p_amount, p_currency, v_at) x;
        v_rule := detail ->> 'rule';
        if v_rule is null then decision := 'execute'; end if;
        v_at := clock_timestamp();
    end if;
    if v_rule is not null then
        decision := 'denied'; detail := coalesce(detail, '{}') || jsonb_build_object('rule', v_rule);
    end if;

    -- The input is in the log when the effect is new, is another's, or asks for something else than before.
    if v_new or v_go and (e.run_id <> p_run or e.input_digest <> p_input_digest or e.gate_id is not null and v_gate is null and v_grant is null) then
        r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'key', p_key, p_lease, array['effect_reserved'],
                                     array[v_step], null, array[p_labels], array[p_payload], p_commitment);
        r.last_seq := r.last_seq + 1;
        update runs_effect set run_id = p_run, step_id = v_step, project_id = r.project_id, input_digest = p_input_digest,
            input_seq = r.last_seq, amount = p_amount, currency = p_currency, tool_id = (p_tool ->> 'id')::uuid,
            retry = p_tool -> 'retry', probed = (p_tool ->> 'probed')::boolean,
            amended_seq = case when e.input_digest = p_input_digest then e.amended_seq end,
            amended_from = case when e.input_digest = p_input_digest then e.amended_from end
        where tenant_id = p_tenant and id = e.id;
    end if;
    if v_go and (decision = 'execute' or decision = 'await_approval' and v_gate is null or v_rule = 'policy_denied') then
        -- Another action than the one that was asked for, or none that needs asking.
        update runs_gate set status = 'withdrawn', decided_at = v_at where tenant_id = p_tenant and effect_id = e.id and status = 'open'
        returning id into v_old;
        if found then perform runs_gate_over(p_tenant, p_run, v_at, v_old); end if;
        update runs_grant set status = case when expires_at <= v_at then 'lapsed' else 'revoked' end
        where tenant_id = p_tenant and effect_id = e.id and status = 'unused' and id is distinct from v_grant;
    end if;

    if decision = 'execute' then
        v_deadline := v_at + make_interval(secs => (p_tool ->> 'execute_seconds')::double precision);
        update runs_grant set status = 'used', used_at = v_at where tenant_id = p_tenant and id = v_grant;
        update runs_effect set status = 'in_flight', attempts = attempts + 1, lease_id = p_lease, epoch = p_epoch, started_at = v_at,
            step_id = v_step, deadline_at = v_deadline,
            give_up_at = v_deadline + make_interval(secs => (p_tool ->> 'give_up_seconds')::double precision), counted_on = v_counted, failure_class = null, retry_at = null, probe_at = null, probes = 0,
            outcome_seq = null, rule = null, updated_at = v_at,
            settle_at = v_deadline + make_interval(secs => (p_tool ->> 'settle_seconds')::double precision)
        where tenant_id = p_tenant and id = e.id;
        update runs_effect set status = 'compensating', updated_at = v_at
        where tenant_id = p_tenant and id = p_compensates and status in ('succeeded', 'reconciled_succeeded', 'compensation_failed');
        select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'key', p_key, p_lease,
            'effect_executing', v_step, v_labels);
        detail := jsonb_build_object('attempt', e.attempts + 1, 'deadline', v_deadline,
                                     'seconds', (p_tool ->> 'execute_seconds')::double precision);
    elsif decision = 'await_approval' then
        if v_gate is null then
            v_gate := uuidv7();
            insert into runs_gate (tenant_id, id, run_id, step_id, effect_id, rule, status, action_digest, opened_at, expires_at)
            values (p_tenant, v_gate, p_run, v_step, e.id, p_gate ->> 'rule', 'open', p_action_digest, v_at,
                    v_at + make_interval(secs => (p_gate ->> 'seconds')::double precision));
            update runs_effect set status = 'reserved', gate_id = v_gate, updated_at = v_at where tenant_id = p_tenant and id = e.id;
            select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null,
                p_lease, 'gate_opened', v_step,
                '{"effect":"' || e.id || '","gate":"' || v_gate || '","rule":"' || (p_gate ->> 'rule') || '","tool":"' || (p_tool ->> 'name') || '"}');
        end if;
        update runs_attempt set ended_at = v_at, outcome = 'released' where tenant_id = p_tenant and id = p_lease;
        -- What else this lease had in flight has nobody who could bring its outcome any more.
        select * into r.last_seq, r.last_digest from runs_lose_effects(p_tenant, p_run, p_lease, v_at, r.last_seq, r.last_digest, 'worker');
        update runs_step set status = 'waiting', lease_id = null, attempts = attempts - 1, due_at = null, wait_kind = 'gate',
            wait_id = v_gate, wake_reason = null where tenant_id = p_tenant and id = v_step;
        select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, p_lease,
            'step_waiting', v_step, '{"for":"gate"}');
        detail := jsonb_build_object('gate', v_gate, 'expires_at', (select x.expires_at from runs_gate x where x.tenant_id = p_tenant and x.id = v_gate));
    elsif decision = 'denied' then
        if v_new then
            update runs_effect set status = 'cancelled', rule = v_rule, updated_at = v_at where tenant_id = p_tenant and id = e.id;
        elsif e.run_id = p_run then
            update runs_effect set rule = v_rule, updated_at = v_at where tenant_id = p_tenant and id = e.id;
        end if;
        select * into r.last_seq, r.last_digest from runs_mark(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'system', null, p_lease,
            'effect_denied', v_step, '{"effect":"' || e.id || '","rule":"' || v_rule || '","tool":"' || (p_tool ->> 'name') || '"}');
    end if;
    v_status := r.status;
    if decision = 'await_approval' then
        select x.status, x.waiting_for into r.status, v_rule from runs_doing(p_tenant, p_run) x;
    end if;
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    if r.status <> v_status then
        update runs_run set status = r.status, waiting_for = v_rule where tenant_id = p_tenant and id = p_run;
    end if;
    insert into runs_decision (tenant_id, run_id, key_digest, request_digest, lease_id, epoch, effect_id, decision, detail, decided_at)
    values (p_tenant, p_run, p_idempotency, p_request, p_lease, p_epoch, e.id, decision, coalesce(detail, '{}'), v_at)
    -- Who was once told to execute stays known: an outcome that comes too late is evidence.
    on conflict (tenant_id, run_id, key_digest, lease_id) do update set effect_id = excluded.effect_id, decision = excluded.decision,
        detail = excluded.detail, decided_at = excluded.decided_at
    where runs_decision.decision <> 'execute' or excluded.decision = 'execute';
    code := 'ok';
end $$;

-- Somebody found out what became of an unknown effect. `p_lease` is that of a worker that was told to reconcile it; null: an operator or a
-- probe, whose word is taken as it is. The caller holds the tenant scope.
create function runs_reconcile(
    p_tenant uuid, p_agent uuid, p_projects uuid[], p_effect uuid, p_run uuid, p_data_key uuid, p_lease uuid, p_epoch integer, p_actor_kind text,
    p_actor uuid, p_succeeded boolean, p_class text, p_early boolean, p_payload bytea, p_commitment bytea, p_labels jsonb,
    out code text, out status text, out detail jsonb
) language plpgsql as $$
declare
    r record;
    e record;
    v_at timestamptz;
    v_run_status text;
    v_waiting text;
    v_holder uuid;
begin
    select x.project_id, x.agent_id, x.status, x.last_seq, x.last_digest, x.data_key_id into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    select * into e from runs_effect x where x.tenant_id = p_tenant and x.id = p_effect for no key update;
    if e.run_id is distinct from p_run or r.data_key_id <> p_data_key then code := 'moved'; return; end if;
    v_at := clock_timestamp();
    if p_lease is not null then
        -- The lease may be of another run, which shares the business object.
        select a.run_id into v_holder from runs_attempt a join runs_step s on s.tenant_id = a.tenant_id and s.id = a.step_id
        join runs_run y on y.tenant_id = a.tenant_id and y.id = a.run_id
        where a.tenant_id = p_tenant and a.id = p_lease and a.epoch = p_epoch and s.epoch = p_epoch and s.lease_id = p_lease
          and a.expires_at > v_at and (p_agent is null or y.agent_id = p_agent) and (p_projects is null or y.project_id = any (p_projects));
        if not found then code := 'stale_epoch'; detail := '{}'; return; end if;
        -- Who had the call in flight itself may also find out, and so may whoever was told to.
        if e.lease_id is distinct from p_lease and not exists (
            select from runs_decision d where d.tenant_id = p_tenant and d.lease_id = p_lease and d.effect_id = p_effect) then
            code := 'effect_not_held'; detail := jsonb_build_object('effect', p_effect, 'effect_status', e.status); return;
        end if;
    end if;
    status := case when p_succeeded then 'reconciled_succeeded' else 'reconciled_failed' end;
    if e.status = status then code := 'ok'; return; end if;
    if e.status <> 'unknown' then
        code := 'effect_not_unknown'; detail := jsonb_build_object('effect', p_effect, 'effect_status', e.status); return;
    end if;
    if not p_succeeded and not p_early and e.settle_at > v_at then
        code := 'too_early';
        detail := jsonb_build_object('settle_at', e.settle_at, 'retry_after', extract(epoch from e.settle_at - v_at)); return;
    end if;
    if not p_succeeded and p_actor_kind <> 'member' and not p_early and exists (
        select from runs_evidence v where v.tenant_id = p_tenant and v.effect_id = p_effect and v.outcome = 'succeeded') then
        code := 'contradicting_evidence'; detail := jsonb_build_object('effect', p_effect); return;
    end if;
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, p_lease, array['effect_reconciled'],
                                 array[e.step_id], null, array[p_labels], array[p_payload], p_commitment);
    r.last_seq := r.last_seq + 1;
    update runs_effect x set status = runs_reconcile.status, owner = null, outcome_seq = r.last_seq, probe_at = null, updated_at = v_at,
        failure_class = case when not p_succeeded then p_class end where x.tenant_id = p_tenant and x.id = p_effect;
    if not p_succeeded then
        perform runs_give_back(p_tenant, p_effect);
    end if;
    if e.compensates_id is not null then
        perform runs_compensated(p_tenant, e.compensates_id, v_at, status, runs_no_retry(p_class, e.attempts, e.retry));
    end if;
    v_run_status := r.status;
    if r.status not in ({run_ends}) then
        perform runs_ready(p_tenant, p_run, v_at, 'reconciled', array(
            select s.id from runs_step s where s.tenant_id = p_tenant and s.run_id = p_run and s.id = e.step_id
              and s.status = 'waiting' and s.wait_kind in ('reconciliation', 'retry') and s.wait_id = p_effect));
        select x.status, x.waiting_for into v_run_status, v_waiting from runs_doing(p_tenant, p_run) x;
    else
        -- In the dead letter it has nothing to wait for any more, and goes on with its run.
        update runs_step s set status = 'blocked', wait_kind = null, wait_id = null
        where s.tenant_id = p_tenant and s.wait_id = p_effect and s.status = 'waiting' and s.wait_kind = 'reconciliation';
        insert into runs_anchordue (tenant_id, id) values (p_tenant, p_run) on conflict do nothing;
    end if;
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    if v_run_status <> r.status and r.status <> 'pending' then
        update runs_run x set status = v_run_status, waiting_for = v_waiting where x.tenant_id = p_tenant and x.id = p_run;
    end if;
    code := 'ok';
end $$;

-- The tool of an effect.
create function runs_effect_tool(p_tenant uuid, p_effect uuid, out name text, out version text) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select t.name, t.version into name, version
    from runs_effect e join runs_tool t on t.tenant_id = e.tenant_id and t.id = e.tool_id where e.tenant_id = p_tenant and e.id = p_effect;
end $$;

-- Nobody found out in time what became of an unknown effect: an operator must. A change of owner is no event of the run.
create function runs_give_up(p_tenant uuid, p_effect uuid) returns boolean language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    update runs_effect set owner = 'operator', probe_at = null, updated_at = clock_timestamp()
    where tenant_id = p_tenant and id = p_effect and status = 'unknown' and owner <> 'operator' and give_up_at <= clock_timestamp();
    return found;
end $$;
