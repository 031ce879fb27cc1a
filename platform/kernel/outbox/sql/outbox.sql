-- The table of moves. Only what is over may be deleted.
create or replace function outbox_refuse_move() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if old.status not in ({final}) then
            raise exception 'a message that is % is not deleted', old.status using errcode = 'check_violation';
        end if;
        return old;
    end if;
    if tg_op = 'INSERT' and new.status <> 'pending' then
        raise exception 'a message begins as pending, not as %', new.status using errcode = 'check_violation';
    end if;
    if tg_op = 'UPDATE' and new.status <> old.status and not old.status || '>' || new.status = any (array[{moves}]) then
        raise exception 'a message cannot go from % to %', old.status, new.status using errcode = 'check_violation';
    end if;
    return new;
end $$;

-- Whoever adds to an order or ends one of its messages waits here for the other: so positions are in the order of commits, and no
-- message is forgotten between the one who sees a predecessor and the one who ends it. Taken before the rows of the outbox and after
-- all other locks.
create function outbox_order(p_tenant uuid, p_ordering uuid) returns bigint immutable language sql as $$
    select hashtextextended('outbox:' || p_tenant || coalesce(p_ordering::text, ''), 4)
$$;

create function outbox_lock(p_tenant uuid, p_ordering uuid) returns void language sql as $$
    select pg_advisory_xact_lock(outbox_order(p_tenant, p_ordering)) where p_ordering is not null
$$;

-- Adds a message in the caller's transaction and tenant scope; answers its id, or that of the message that has the dedup id
-- already. `p_body` is sealed under the context of `kernel.outbox.operations.context(p_id)`.
create function outbox_put(
    p_tenant uuid, p_id uuid, p_topic text, p_ordering uuid, p_dedup text, p_body bytea, p_created timestamptz default null
) returns uuid language plpgsql as $$
declare
    v_at timestamptz := clock_timestamp();
    v_position bigint := 0;
    v_waits boolean := false;
    v_id uuid;
begin
    if p_ordering is not null then
        perform outbox_lock(p_tenant, p_ordering);
        select coalesce(max(m.position), 0) + 1 into v_position from outbox_message m
        where m.tenant_id = p_tenant and m.ordering = p_ordering;
        v_waits := exists (
            select from outbox_message m
            where m.tenant_id = p_tenant and m.ordering = p_ordering and m.status in ({open}));
    end if;
    insert into outbox_message (
        tenant_id, id, topic, ordering, position, dedup, body, status, attempts, due_at, created_at, queued_at
    ) values (
        p_tenant, p_id, p_topic, p_ordering, v_position, p_dedup, p_body, 'pending', 0, case when not v_waits then v_at end,
        coalesce(p_created, v_at), v_at
    ) on conflict (tenant_id, topic, dedup) do nothing returning id into v_id;
    if v_id is null then
        select m.id into v_id from outbox_message m
        where m.tenant_id = p_tenant and m.topic = p_topic and m.dedup = p_dedup;
    end if;
    return v_id;
end $$;

-- Sets the next message of an order free, after one was ended. The caller holds the order's lock.
create function outbox_go_on(p_tenant uuid, p_ordering uuid) returns void language sql as $$
    update outbox_message m set due_at = clock_timestamp()
    where m.tenant_id = p_tenant and m.ordering = p_ordering and m.status = 'pending' and m.due_at is null
      and m.position = (
          select min(x.position) from outbox_message x
          where x.tenant_id = p_tenant and x.ordering = p_ordering and x.status in ({open}))
$$;

-- Takes the oldest due message of the first topic that has one. A message whose lease ran out is due again; its dispatcher is gone,
-- or will be told so. One that was lost so often that no attempt is left is given up here.
create function outbox_claim(
    p_tenant uuid, p_topics text[], p_seconds double precision, p_max_attempts integer,
    out id uuid, out lease uuid, out topic text, out ordering uuid, out dedup text, out attempt integer, out created_at timestamptz,
    out body bytea
) language plpgsql as $$
declare
    v_at timestamptz := clock_timestamp();
    v_topic text;
    m outbox_message;
begin
    perform smriti_enter(p_tenant);
    foreach v_topic in array p_topics loop
        loop
            select * into m from outbox_message x
            where x.tenant_id = p_tenant and x.topic = v_topic and x.status in ({open}) and x.due_at is not null
              and x.due_at <= v_at
              and not exists (
                  select from outbox_message y
                  where y.tenant_id = p_tenant and y.ordering = x.ordering and y.position < x.position
                    and y.status in ({open}) and y.ordering is not null)
            order by x.due_at limit 1 for no key update skip locked;
            exit when not found;
            if m.attempts >= p_max_attempts and m.status = 'sending' then
                -- Not waited for: the row is held already.
                exit when not pg_try_advisory_xact_lock(outbox_order(p_tenant, m.ordering));
                update outbox_message x set status = 'dead', lease_id = null, ended_at = v_at, last_error = 'lost'
                where x.tenant_id = p_tenant and x.id = m.id;
                perform outbox_go_on(p_tenant, m.ordering);
                v_at := clock_timestamp();
                continue;
            end if;
            lease := uuidv7();
            update outbox_message x set status = 'sending', attempts = x.attempts + 1, lease_id = lease,
                due_at = v_at + make_interval(secs => p_seconds)
            where x.tenant_id = p_tenant and x.id = m.id;
            id := m.id; topic := m.topic; ordering := m.ordering; dedup := m.dedup; attempt := m.attempts + 1;
            created_at := m.created_at; body := m.body;
            return;
        end loop;
    end loop;
end $$;

-- Ends an attempt: `sent`, `dead`, or `pending` again after `p_delay` seconds, which becomes `dead` when the attempts or the time are
-- used up. Answers the new status, or `lost` when the lease is another's by now.
create function outbox_finish(
    p_tenant uuid, p_id uuid, p_lease uuid, p_status text, p_error text, p_delay double precision, p_max_attempts integer,
    p_max_age double precision
) returns text language plpgsql as $$
declare
    v_at timestamptz := clock_timestamp();
    v_status text := p_status;
    m outbox_message;
begin
    perform smriti_enter(p_tenant);
    perform outbox_lock(p_tenant, (select x.ordering from outbox_message x where x.tenant_id = p_tenant and x.id = p_id));
    select * into m from outbox_message x
    where x.tenant_id = p_tenant and x.id = p_id and x.lease_id = p_lease and x.status = 'sending' for no key update;
    if not found then return 'lost'; end if;
    if p_status = 'pending'
       and (m.attempts >= p_max_attempts or v_at >= m.queued_at + make_interval(secs => p_max_age)) then
        v_status := 'dead';
    end if;
    update outbox_message x set status = v_status, lease_id = null, last_error = coalesce(p_error, x.last_error),
        body = case when v_status <> 'sent' then x.body end,
        due_at = case when v_status = 'pending' then v_at + make_interval(secs => p_delay) else x.due_at end,
        ended_at = case when v_status <> 'pending' then v_at end
    where x.tenant_id = p_tenant and x.id = p_id;
    if v_status <> 'pending' then perform outbox_go_on(p_tenant, m.ordering); end if;
    return v_status;
end $$;

-- An operator's retry or skip, in the caller's tenant scope. Answers the status that it found.
create function outbox_operate(p_tenant uuid, p_id uuid, p_action text) returns text language plpgsql as $$
declare
    v_at timestamptz := clock_timestamp();
    m outbox_message;
begin
    perform outbox_lock(p_tenant, (select x.ordering from outbox_message x where x.tenant_id = p_tenant and x.id = p_id));
    select * into m from outbox_message x where x.tenant_id = p_tenant and x.id = p_id for no key update;
    if not found then return null; end if;
    if p_action = 'skip' and m.status in ('pending', 'dead') then
        update outbox_message x set status = 'skipped', body = null, ended_at = v_at where x.tenant_id = p_tenant and x.id = p_id;
        perform outbox_go_on(p_tenant, m.ordering);
    elsif p_action = 'retry' and m.status in ('pending', 'dead') then
        update outbox_message x set status = 'pending', attempts = 0, queued_at = v_at, ended_at = null,
            due_at = case when not exists (
                select from outbox_message y
                where y.tenant_id = p_tenant and y.ordering = m.ordering and y.position < m.position
                  and y.status in ({open})) then v_at end
        where x.tenant_id = p_tenant and x.id = p_id;
    end if;
    return m.status;
end $$;

-- Deletes what was over before a time; how many.
create function outbox_purge(p_tenant uuid, p_keep double precision, p_limit integer) returns integer language plpgsql as $$
declare
    v_deleted integer;
begin
    perform smriti_enter(p_tenant);
    delete from outbox_message m where m.tenant_id = p_tenant and m.id in (
        select x.id from outbox_message x
        where x.tenant_id = p_tenant and x.status in ({final}) and x.ended_at < clock_timestamp() - make_interval(secs => p_keep)
        order by x.ended_at limit p_limit);
    get diagnostics v_deleted = row_count;
    return v_deleted;
end $$;
