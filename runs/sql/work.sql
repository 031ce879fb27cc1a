-- Wakes a waiting step when it is due, or blocks it when its run has stopped. Answers whether it can be claimed now.
create function runs_wake(p_tenant uuid, p_step uuid) returns boolean language plpgsql as $$
declare
    r record;
    s record;
    v_at timestamptz;
    v_reason text;
begin
    perform smriti_enter(p_tenant);
    select x.run_id into s from runs_step x where x.tenant_id = p_tenant and x.id = p_step;
    select x.id, x.status, x.last_seq, x.last_digest into r from runs_run x
    where x.tenant_id = p_tenant and x.id = s.run_id for no key update skip locked;
    if not found then return false; end if;
    v_at := clock_timestamp();
    select * into s from runs_step x where x.tenant_id = p_tenant and x.id = p_step;
    if s.status <> 'waiting' or s.due_at is null or s.due_at > v_at then return false; end if;
    if r.status in ({run_ends}) then
        update runs_step set status = 'blocked', wait_kind = null, wait_id = null where tenant_id = p_tenant and id = p_step;
        return false;
    end if;
    v_reason := case
        when s.wait_kind in ('retry', 'timer') then s.wait_kind
        when s.wait_kind = 'child' and exists (
            select from runs_run y where y.tenant_id = p_tenant and y.id = s.wait_id and y.status in ({run_finals})) then 'child'
        else 'timeout' end;
    -- Why a step is tried again matters less than the message that it was given before.
    perform runs_ready(p_tenant, r.id, v_at, case when s.wake_seq is null then v_reason end, array[p_step]);
    if v_reason <> 'retry' then
        select * into r.last_seq, r.last_digest from runs_mark(p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, null,
            'step_woken', p_step, '{"reason":"' || v_reason || '"}');
    end if;
    update runs_run set status = 'running', waiting_for = null, last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at
    where tenant_id = p_tenant and id = r.id;
    return true;
end $$;

-- Gives the oldest kept signal of a name to a step that waits for it. The caller holds the run.
create function runs_take_signal(p_tenant uuid, p_run uuid, p_step uuid, p_name text, p_at timestamptz)
returns boolean language plpgsql as $$
declare
    v_seq bigint;
begin
    update runs_signal set taken_at = p_at, taken_by_id = p_step
    where tenant_id = p_tenant and id = (
        select g.id from runs_signal g where g.tenant_id = p_tenant and g.run_id = p_run and g.name = p_name and g.taken_at is null
        order by g.seq limit 1)
    returning seq into v_seq;
    if v_seq is null then return false; end if;
    perform runs_ready(p_tenant, p_run, p_at, 'signal', array[p_step]);
    update runs_step set wake_reason = 'signal', wake_seq = v_seq where tenant_id = p_tenant and id = p_step;
    return true;
end $$;

create function runs_signal(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid, p_data_key uuid, p_key_epoch integer,
    p_name text, p_idempotency bytea, p_request bytea, p_payload bytea, p_commitment bytea, p_labels jsonb,
    out code text, out seq bigint, out woken boolean
) language plpgsql as $$
declare
    r record;
    v_at timestamptz;
    v_step uuid;
begin
    perform smriti_enter(p_tenant);
    select x.project_id, x.agent_id, x.subject_id, x.data_key_id, x.status, x.last_seq, x.last_digest into r
    from runs_run x where x.tenant_id = p_tenant and x.id = p_run for no key update;
    if not found or (p_agent is not null and r.agent_id is distinct from p_agent)
       or (p_projects is not null and r.project_id <> all (p_projects)) then
        code := 'not_found'; return;
    end if;
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    select case when g.request_digest = p_request then 'replayed' else 'idempotency_key_reused' end, g.seq,
           coalesce(g.taken_at = g.received_at, false)
    into code, seq, woken
    from runs_signal g where g.tenant_id = p_tenant and g.run_id = p_run and g.key_digest = p_idempotency;
    if found then return; end if;
    if r.status in ({run_finals}) then code := 'run_finished'; return; end if;
    if r.data_key_id <> p_data_key then code := 'subject_changed'; return; end if;
    if r.subject_id is not null then
        perform from privacy_subject x
        where x.tenant_id = p_tenant and x.id = r.subject_id and x.key_epoch = p_key_epoch and x.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;
    v_at := clock_timestamp();
    seq := r.last_seq + 1;
    r.last_digest := runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, 'key', p_key, null, array['signal_received'], null, null,
                                 array[p_labels], array[p_payload], p_commitment);
    insert into runs_signal (tenant_id, id, run_id, name, seq, key_digest, request_digest, received_at)
    values (p_tenant, uuidv7(), p_run, p_name, seq, p_idempotency, p_request, v_at);
    update runs_run set last_seq = seq, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = p_run;
    woken := false;
    if r.status not in ({run_ends}) then
        select s.id into v_step from runs_step s
        where s.tenant_id = p_tenant and s.run_id = p_run and s.status = 'waiting' and s.wait_kind = 'signal' and s.wait_name = p_name
        order by s.position limit 1;
        if found then
            woken := runs_take_signal(p_tenant, p_run, v_step, p_name, v_at);
            update runs_run set status = 'running', waiting_for = null where tenant_id = p_tenant and id = p_run and status = 'waiting';
        end if;
    end if;
    code := 'ok';
end $$;

-- Refills the allowance of a queue; what is left of it, null without a rate.
create function runs_queue_tokens(
    p_rate double precision, p_burst double precision, p_tokens double precision, p_refilled timestamptz, p_at timestamptz
) returns double precision language sql immutable as $$
    select case when p_rate is not null then
        least(coalesce(p_burst, greatest(p_rate / 60, 1)),
              coalesce(p_tokens, p_burst, greatest(p_rate / 60, 1)) + coalesce(extract(epoch from p_at - p_refilled), 0) * p_rate / 60) end
$$;

-- Leases the most urgent runnable step whose run nobody else is changing. A repeated claim under the same key is given the same lease
-- again while it is held.
create function runs_claim(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_worker text, p_queues text[],
    p_run uuid, p_seconds double precision, p_capabilities text[], p_claim_key bytea,
    out code text, out lease uuid, out epoch integer, out expires_at timestamptz, out step text, out attempt integer,
    out max_attempts integer, out run uuid, out workflow text, out workflow_version text, out agent_version text,
    out data_key uuid, out head integer, out last_seq bigint, out run_payload bytea, out wake_reason text, out wake_payload bytea,
    out compensates uuid
) language plpgsql as $$
declare
    r record;
    s record;
    q runs_queue;
    everything runs_queue;
    v_at timestamptz;
    v_types text[] := array['step_leased'];
    v_queue text;
    v_queues text[] := p_queues;
    v_found uuid;
    v_tokens double precision;
    v_all_tokens double precision;
begin
    perform smriti_enter(p_tenant);
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    if p_claim_key is not null then
        perform pg_advisory_xact_lock(hashtextextended(encode(p_claim_key, 'hex'), 0));
        select a.id, a.expires_at, a.step_id into lease, expires_at, v_found from runs_attempt a
        join runs_step x on x.tenant_id = a.tenant_id and x.id = a.step_id and x.lease_id = a.id
        where a.tenant_id = p_tenant and a.claim_key = p_claim_key and a.key_id = p_key and a.worker = p_worker
          and a.expires_at > clock_timestamp();
    end if;
    if lease is not null then
        select * into s from runs_step x where x.tenant_id = p_tenant and x.id = v_found;
    else
        if array_length(p_queues, 1) > 1 then
            -- Turns of several queues cannot be compared: those of one priority share by chance.
            select array_agg(n order by h.priority desc, random()) into v_queues from unnest(p_queues) n cross join lateral (
                select x.priority from runs_step x where x.tenant_id = p_tenant and x.queue = n and x.status = 'runnable'
                order by x.priority desc, x.turn, x.id limit 1) h;
        end if;
        -- A tenant that limits all its queues together counts its claims one after the other.
        select * into everything from runs_queue x where x.tenant_id = p_tenant and x.name = '*' for no key update;
        v_at := clock_timestamp();
        if everything.paused or everything.max_leased <= (
            select count(*) from (select from runs_step x where x.tenant_id = p_tenant and x.status = 'leased' limit everything.max_leased) l)
        then
            code := 'nothing'; return;
        end if;
        v_all_tokens := runs_queue_tokens(everything.rate_per_minute, everything.burst, everything.tokens, everything.refilled_at, v_at);
        if v_all_tokens < 1 then code := 'nothing'; return; end if;

        -- The limits of several queues are locked in one order, whatever order they are looked at in.
        if array_length(v_queues, 1) > 1 then
            perform from runs_queue x where x.tenant_id = p_tenant and x.name = any (v_queues)
                and (x.max_leased is not null or x.rate_per_minute is not null) order by x.name for no key update;
        end if;
        foreach v_queue in array coalesce(v_queues, '{}') loop
            v_tokens := null;
            select * into q from runs_queue x where x.tenant_id = p_tenant and x.name = v_queue;
            continue when q.paused;
            if q.max_leased is not null or q.rate_per_minute is not null then
                select * into q from runs_queue x where x.tenant_id = p_tenant and x.name = v_queue for no key update;
                v_at := clock_timestamp();
                v_tokens := runs_queue_tokens(q.rate_per_minute, q.burst, q.tokens, q.refilled_at, v_at);
                continue when v_tokens < 1 or q.max_leased <= (
                    select count(*) from (select from runs_step x where x.tenant_id = p_tenant and x.queue = v_queue
                                          and x.status = 'leased' limit q.max_leased) l);
            end if;
            for i in 1 .. 20 loop
                v_at := clock_timestamp();
                -- Locks the run, not the step: the order in which every change takes its locks.
                if p_run is null then
                    select x.id into v_found from runs_step x
                    join runs_run y on y.tenant_id = x.tenant_id and y.id = x.run_id
                    where x.tenant_id = p_tenant and x.status = 'runnable' and x.queue = v_queue
                      and (x.requires is null or x.requires <@ p_capabilities)
                      and (p_agent is null or y.agent_id = p_agent) and (p_projects is null or y.project_id = any (p_projects))
                    order by x.priority desc, x.turn, x.id limit 1
                    for no key update of y skip locked;
                else
                    select x.id into v_found from runs_step x
                    join runs_run y on y.tenant_id = x.tenant_id and y.id = x.run_id
                    where x.tenant_id = p_tenant and x.run_id = p_run and x.status = 'runnable' and x.queue = v_queue
                      and (x.requires is null or x.requires <@ p_capabilities)
                      and (p_agent is null or y.agent_id = p_agent) and (p_projects is null or y.project_id = any (p_projects))
                    order by x.priority desc, x.turn, x.id limit 1
                    for no key update of y skip locked;
                end if;
                exit when v_found is null;
                lease := uuidv7();
                -- The step may have been taken between the snapshot and the lock. (`|| ''` keeps a database that is too young for
                -- statistics from looking through the index of all runnable steps.)
                update runs_step x set status = 'leased', epoch = x.epoch + 1, attempts = x.attempts + 1, lease_id = lease,
                    started_at = coalesce(x.started_at, v_at)
                where x.tenant_id = p_tenant and x.id = v_found and x.status || '' = 'runnable' returning x.* into s;
                exit when found;
                lease := null;
            end loop;
            exit when lease is not null;
        end loop;
        if lease is null then code := 'nothing'; return; end if;
        if v_tokens is not null then
            update runs_queue x set tokens = v_tokens - 1, refilled_at = v_at where x.tenant_id = p_tenant and x.id = q.id;
        end if;
        if v_all_tokens is not null then
            update runs_queue x set tokens = v_all_tokens - 1, refilled_at = v_at where x.tenant_id = p_tenant and x.id = everything.id;
        end if;
        -- How far the queue's turn has come. Whoever finds another claim at it leaves it alone: the next one catches up.
        if s.turn > q.turn then
            perform from runs_queue x where x.tenant_id = p_tenant and x.id = q.id and x.turn < s.turn for no key update skip locked;
            if found then
                update runs_queue x set turn = s.turn where x.tenant_id = p_tenant and x.id = q.id;
            end if;
        end if;
    end if;

    select x.id, x.status, x.last_seq, x.last_digest, x.workflow, x.workflow_version, x.agent_version, x.data_key_id, x.head into r
    from runs_run x where x.tenant_id = p_tenant and x.id = s.run_id;
    if expires_at is null then
        if r.status in ({run_ends}) then
            raise exception 'a runnable step in a run that is %', r.status;
        end if;
        expires_at := v_at + make_interval(secs => p_seconds);
        insert into runs_attempt (
            tenant_id, id, run_id, step_id, number, epoch, worker, key_id, claim_key, claimed_at, heartbeat_at, expires_at)
        values (p_tenant, lease, r.id, s.id, s.attempts, s.epoch, p_worker, p_key, p_claim_key, v_at, v_at, expires_at);
        if r.status = 'pending' then v_types := array['run_started', 'step_leased']; end if;
        r.last_digest := runs_append(p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'key', p_key, lease, v_types,
            array_fill(s.id, array[2]), null, null, null, null);
        r.last_seq := r.last_seq + array_length(v_types, 1);
        update runs_run x set last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at
        where x.tenant_id = p_tenant and x.id = r.id;
        if r.status <> 'running' then
            update runs_run x set status = 'running', waiting_for = null, started_at = coalesce(x.started_at, v_at)
            where x.tenant_id = p_tenant and x.id = r.id;
        end if;
    end if;
    select e.payload into run_payload from runs_event e where e.tenant_id = p_tenant and e.run_id = r.id and e.seq = 1;
    if s.wake_seq is not null then
        select e.payload into wake_payload from runs_event e where e.tenant_id = p_tenant and e.run_id = r.id and e.seq = s.wake_seq;
    end if;
    code := 'ok'; epoch := s.epoch; step := s.name; attempt := s.attempts; max_attempts := s.max_attempts; run := r.id;
    workflow := r.workflow; workflow_version := r.workflow_version; agent_version := r.agent_version;
    data_key := r.data_key_id; head := r.head; last_seq := r.last_seq; wake_reason := s.wake_reason; compensates := s.compensates_id;
end $$;

-- Gives back a lease that was just taken, because the platform could not hand out its work. It costs no attempt.
create function runs_unclaim(p_tenant uuid, p_lease uuid) returns boolean language plpgsql as $$
declare
    r record;
    s record;
    v_at timestamptz;
begin
    perform smriti_enter(p_tenant);
    select x.run_id, x.step_id into s from runs_attempt x where x.tenant_id = p_tenant and x.id = p_lease;
    select x.id, x.last_seq, x.last_digest into r from runs_run x where x.tenant_id = p_tenant and x.id = s.run_id for no key update;
    select x.id, x.status, x.lease_id, x.wake_reason into s from runs_step x where x.tenant_id = p_tenant and x.id = s.step_id;
    if s.status <> 'leased' or s.lease_id <> p_lease then return false; end if;
    v_at := clock_timestamp();
    update runs_attempt set ended_at = v_at, outcome = 'released' where tenant_id = p_tenant and id = p_lease;
    update runs_step set attempts = attempts - 1 where tenant_id = p_tenant and id = s.id;
    perform runs_ready(p_tenant, r.id, v_at, null, array[s.id]);
    select * into r.last_seq, r.last_digest from runs_mark(
        p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, p_lease, 'lease_released', s.id, null);
    update runs_run set last_seq = r.last_seq, last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = r.id;
    return true;
end $$;

create function runs_heartbeat(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_lease uuid, p_epoch integer,
    p_seconds double precision,
    out code text, out expires_at timestamptz, out cancel_at timestamptz, out detail jsonb
) language plpgsql as $$
declare
    a record;
    s record;
begin
    perform smriti_enter(p_tenant);
    if not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    select x.step_id, x.epoch, x.ended_at, x.expires_at, x.outcome, r.cancel_at into a
    from runs_attempt x join runs_run r on r.tenant_id = x.tenant_id and r.id = x.run_id
    where x.tenant_id = p_tenant and x.id = p_lease and (p_agent is null or r.agent_id = p_agent)
      and (p_projects is null or r.project_id = any (p_projects)) for no key update of x;
    if not found then code := 'lease_not_found'; return; end if;
    select x.epoch, x.started_at + make_interval(secs => x.deadline_seconds) as deadline_at into s
    from runs_step x where x.tenant_id = p_tenant and x.id = a.step_id;
    if a.epoch <> p_epoch or a.epoch <> s.epoch or a.ended_at is not null or a.expires_at <= clock_timestamp() then
        code := 'lease_lost';
        detail := jsonb_build_object('current_epoch', s.epoch, 'outcome', a.outcome, 'expired_at', a.expires_at);
        return;
    end if;
    cancel_at := a.cancel_at;
    update runs_attempt x set heartbeat_at = clock_timestamp(),
        -- A short heartbeat never takes back time that was granted; none extends past the deadline of the step, or of a cancellation.
        expires_at = greatest(x.expires_at, least(clock_timestamp() + make_interval(secs => p_seconds), s.deadline_at, a.cancel_at))
    where x.tenant_id = p_tenant and x.id = p_lease returning x.expires_at into expires_at;
    code := 'ok';
end $$;

-- Takes an expired lease from its worker: its effects in flight become unknown, then the step is runnable again, or given to an
-- operator when its attempts or its time are used up.
create function runs_expire(p_tenant uuid, p_lease uuid) returns boolean language plpgsql as $$
declare
    r record;
    s record;
    a record;
    v_at timestamptz;
    v_dead boolean;
begin
    perform smriti_enter(p_tenant);
    select x.run_id into a from runs_attempt x where x.tenant_id = p_tenant and x.id = p_lease;
    select x.id, x.status, x.last_seq, x.last_digest, x.completed_at, x.cancel_at into r
    from runs_run x where x.tenant_id = p_tenant and x.id = a.run_id for no key update skip locked;
    if not found then return false; end if;
    v_at := clock_timestamp();
    select * into a from runs_attempt x where x.tenant_id = p_tenant and x.id = p_lease for no key update;
    if a.ended_at is not null or a.expires_at > v_at then return false; end if;
    select * into s from runs_step x where x.tenant_id = p_tenant and x.id = a.step_id;
    update runs_attempt set ended_at = v_at, outcome = 'lost' where tenant_id = p_tenant and id = p_lease;
    if s.lease_id is distinct from p_lease then return true; end if;
    v_dead := s.attempts >= s.max_attempts or coalesce(s.started_at + make_interval(secs => s.deadline_seconds) <= v_at, false);
    select * into r.last_seq, r.last_digest from runs_lose_effects(
        p_tenant, r.id, p_lease, v_at, r.last_seq, r.last_digest, case when v_dead then 'operator' else 'worker' end);
    select * into r.last_seq, r.last_digest from runs_mark(
        p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, p_lease, 'lease_lost', s.id, null);
    if not v_dead then
        perform runs_ready(p_tenant, r.id, v_at, case when s.wake_seq is null then 'lease_lost' end, array[s.id]);
    else
        update runs_step set status = 'dead_letter', lease_id = null, ended_at = v_at where tenant_id = p_tenant and id = s.id;
        r.status := case when r.cancel_at is null then 'dead_letter' else 'cancelled' end;
        r.completed_at := v_at;
        select * into r.last_seq, r.last_digest from runs_mark(
            p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, p_lease, 'step_dead_letter', s.id,
            runs_labels('reason', case when s.attempts >= s.max_attempts then 'attempts_exhausted' else 'deadline' end));
        select * into r.last_seq, r.last_digest from runs_mark(
            p_tenant, r.id, r.last_seq, r.last_digest, v_at, 'system', null, p_lease, 'run_' || r.status, s.id, null);
        select * into r.last_seq, r.last_digest from runs_end(p_tenant, r.id, v_at, r.status, r.last_seq, r.last_digest);
    end if;
    update runs_run set status = r.status, completed_at = r.completed_at, last_seq = r.last_seq,
        last_digest = r.last_digest, updated_at = v_at where tenant_id = p_tenant and id = r.id;
    return true;
end $$;
