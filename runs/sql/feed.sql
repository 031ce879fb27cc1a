-- A log grew, and the feed does not have it yet. Called for the first change after a quiet moment only: while `feed_due` is set, a
-- commit pays for a comparison and nothing else.
create or replace function runs_mark_grown() returns trigger language plpgsql as $$
begin
    insert into runs_feeddue (tenant_id, id, fed_seq) values (new.tenant_id, new.id, old.last_seq);
    new.feed_due := true;
    return new;
end $$;

-- Gives positions to what grew since, at most `p_limit` stretches, and answers the last position. Takes no lock that a commit waits
-- for, except of runs that were quiet for seconds, and of those only when it gets it at once.
create function runs_feed_advance(p_tenant uuid, p_limit integer, out head bigint, out more boolean) language plpgsql as $$
declare
    v_count bigint;
begin
    perform smriti_enter(p_tenant);
    more := false;
    select h.position into head from runs_feedhead h where h.tenant_id = p_tenant;
    if not exists (
        select from runs_feeddue d join runs_run r on r.tenant_id = d.tenant_id and r.id = d.id
        where d.tenant_id = p_tenant and (r.last_seq > d.fed_seq or r.updated_at < clock_timestamp() - interval '10 seconds')
    ) then
        head := coalesce(head, 0); return;
    end if;
    if head is null then
        insert into runs_feedhead (tenant_id, position) values (p_tenant, 0) on conflict do nothing;
    end if;
    -- Positions become visible in the order in which this lock is held, thus in their own.
    select h.position into head from runs_feedhead h where h.tenant_id = p_tenant for no key update;
    -- A statement of its own, after the lock: its snapshot has all that the holder before wrote.
    with grown as (
        select d.id, d.fed_seq, r.last_seq, row_number() over (order by r.updated_at, d.id) as place
        from runs_feeddue d join runs_run r on r.tenant_id = d.tenant_id and r.id = d.id
        where d.tenant_id = p_tenant and r.last_seq > d.fed_seq order by r.updated_at, d.id limit p_limit
    ), noted as (
        update runs_feeddue d set fed_seq = g.last_seq from grown g where d.tenant_id = p_tenant and d.id = g.id
    ), fed as (
        insert into runs_feed (tenant_id, position, run_id, first_seq, last_seq)
        select p_tenant, head + g.place, g.id, g.fed_seq + 1, g.last_seq from grown g
    )
    select count(*) into v_count from grown;
    if v_count > 0 then
        head := head + v_count;
        more := v_count = p_limit;
        update runs_feedhead h set position = head where h.tenant_id = p_tenant;
    end if;
    with quiet as (
        select r.id from runs_feeddue d join runs_run r on r.tenant_id = d.tenant_id and r.id = d.id
        where d.tenant_id = p_tenant and r.last_seq = d.fed_seq and r.updated_at < clock_timestamp() - interval '10 seconds'
        limit p_limit for no key update of r skip locked
    ), rested as (
        update runs_run r set feed_due = false from quiet q where r.tenant_id = p_tenant and r.id = q.id
    )
    delete from runs_feeddue d using quiet q where d.tenant_id = p_tenant and d.id = q.id;
end $$;

-- The feed after a cursor: the next position, and the sequence number in it up to which everything was read. Events end where their
-- payloads reach `p_bytes` (null: no payloads). `head` is of the same snapshot.
create function runs_feed_events(p_tenant uuid, p_position bigint, p_seq bigint, p_limit integer, p_bytes bigint)
returns table (
    head bigint, feed_position bigint, run_id uuid, workflow text, workflow_version text, project text, project_id uuid, run_agent uuid, data_key uuid,
    seq bigint, type text, schema_version smallint, actor_kind text, actor_id uuid, step_id uuid, step text, lease_id uuid,
    occurred_at timestamptz, recorded_at timestamptz, labels jsonb, payload bytea, payload_commitment bytea, prev_digest bytea,
    digest bytea
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    return query
    with page as (
        select f.position, r.id, r.workflow, r.workflow_version, o.slug, r.project_id, r.agent_id, r.data_key_id, e.*
        from runs_feed f
        join runs_run r on r.tenant_id = f.tenant_id and r.id = f.run_id
        join tenancy_project o on o.tenant_id = r.tenant_id and o.id = r.project_id
        cross join lateral (
            select x.seq, x.type, x.schema_version, x.actor_kind, x.actor_id, x.step_id, x.lease_id, x.occurred_at, x.recorded_at,
                   x.labels, case when p_bytes is not null then x.payload end as payload, x.payload_commitment, x.prev_digest, x.digest
            from runs_event x
            where x.tenant_id = p_tenant and x.run_id = f.run_id and x.seq <= f.last_seq
              and x.seq >= greatest(f.first_seq, case when f.position = p_position then p_seq + 1 else 0 end)
            order by x.seq limit p_limit
        ) e
        where f.tenant_id = p_tenant and f.position >= p_position
        order by f.position, e.seq limit p_limit
    ), measured as (
        select p.*, sum(octet_length(p.payload)) over (order by p.position, p.seq)
                    - coalesce(octet_length(p.payload), 0) as before from page p
    )
    select coalesce((select h.position from runs_feedhead h where h.tenant_id = p_tenant), 0), m.position, m.id, m.workflow::text,
           m.workflow_version::text, m.slug::text, m.project_id, m.agent_id, m.data_key_id, m.seq, m.type, m.schema_version, m.actor_kind,
           m.actor_id, m.step_id, s.name::text, m.lease_id, m.occurred_at, m.recorded_at, m.labels, m.payload,
           m.payload_commitment, m.prev_digest, m.digest
    from (select) one left join measured m on m.before is null or m.before < p_bytes
    left join runs_step s on s.tenant_id = p_tenant and s.id = m.step_id
    order by m.position, m.seq;
end $$;

-- A run and its events after a sequence number, ending where their payloads reach `p_bytes` (null: no payloads).
create function runs_tail(p_tenant uuid, p_run uuid, p_after bigint, p_limit integer, p_bytes bigint)
returns table (
    last_seq bigint, status text, project_id uuid, run_agent uuid, data_key uuid,
    seq bigint, type text, schema_version smallint, actor_kind text, actor_id uuid, step_id uuid, step text, lease_id uuid,
    occurred_at timestamptz, recorded_at timestamptz, labels jsonb, payload bytea, payload_commitment bytea, prev_digest bytea,
    digest bytea
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    return query
    select r.last_seq, r.status::text, r.project_id, r.agent_id, r.data_key_id, e.seq, e.type, e.schema_version, e.actor_kind,
           e.actor_id, e.step_id, s.name::text, e.lease_id, e.occurred_at, e.recorded_at, e.labels, e.payload,
           e.payload_commitment, e.prev_digest, e.digest
    from runs_run r
    left join lateral (
        select m.* from (
            select p.*, sum(octet_length(p.payload)) over (order by p.seq) - coalesce(octet_length(p.payload), 0) as before
            from (
                select x.seq, x.type, x.schema_version, x.actor_kind, x.actor_id, x.step_id, x.lease_id, x.occurred_at,
                       x.recorded_at, x.labels, case when p_bytes is not null then x.payload end as payload,
                       x.payload_commitment, x.prev_digest, x.digest
                from runs_event x where x.tenant_id = p_tenant and x.run_id = p_run and x.seq > p_after
                order by x.seq limit p_limit
            ) p
        ) m where m.before is null or m.before < p_bytes
    ) e on true
    left join runs_step s on s.tenant_id = p_tenant and s.id = e.step_id
    where r.tenant_id = p_tenant and r.id = p_run
    order by e.seq;
end $$;

-- How far the logs of some runs go.
create function runs_last_seqs(p_tenant uuid, p_runs uuid[]) returns table (run uuid, last_seq bigint, status text)
language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    return query select r.id, r.last_seq, r.status::text from runs_run r where r.tenant_id = p_tenant and r.id = any (p_runs);
end $$;
