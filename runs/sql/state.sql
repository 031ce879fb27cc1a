-- The stored state: the newest whole checkpoint and every change after it. One statement, so that the run's row says of the same
-- moment how many there are (`base`, `changes`).
create function runs_state(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid,
    out code text, out head integer, out last_seq bigint, out data_key uuid, out base integer, out changes integer,
    out versions integer[], out seqs bigint[], out kinds text[], out bodies bytea[], out recorded_at timestamptz
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    if p_key is not null and not runs_key_valid(p_tenant, p_key, p_key_version) then code := 'key_refused'; return; end if;
    select r.head, r.last_seq, r.data_key_id, r.base_version, r.chain_count, c.versions, c.seqs, c.kinds, c.bodies, c.recorded_at
    into head, last_seq, data_key, base, changes, versions, seqs, kinds, bodies, recorded_at
    from runs_run r
    cross join lateral (
        select array_agg(x.version order by x.version) as versions, array_agg(x.seq order by x.version) as seqs,
               array_agg(x.kind order by x.version) as kinds, array_agg(x.body order by x.version) as bodies,
               max(x.recorded_at) as recorded_at
        from runs_checkpoint x
        where x.tenant_id = p_tenant and x.run_id = p_run
          and (x.version > r.base_version and x.kind = 'patch' or x.version = r.base_version and x.kind <> 'patch')
    ) c
    where r.tenant_id = p_tenant and r.id = p_run and (p_agent is null or r.agent_id = p_agent)
      and (p_projects is null or r.project_id = any (p_projects));
    code := case when found then 'ok' else 'not_found' end;
end $$;

create function runs_snapshot(p_tenant uuid, p_run uuid, p_version integer, p_body bytea, p_commitment bytea)
returns boolean language plpgsql as $$
declare
    v_seq bigint;
begin
    perform smriti_enter(p_tenant);
    perform from runs_run where tenant_id = p_tenant and id = p_run and base_version < p_version for no key update;
    if not found then return false; end if;
    select c.seq into v_seq from runs_checkpoint c
    where c.tenant_id = p_tenant and c.run_id = p_run and c.version = p_version and c.kind = 'patch';
    if not found then return false; end if;
    insert into runs_checkpoint (tenant_id, run_id, version, seq, recorded_at, kind, commitment, body)
    values (p_tenant, p_run, p_version, v_seq, clock_timestamp(), 'snapshot', p_commitment, p_body) on conflict do nothing;
    update runs_run r set base_version = p_version, base_bytes = runs_size(p_body),
        (chain_count, chain_bytes) = (
            select count(*), coalesce(sum(runs_size(c.body)), 0) from runs_checkpoint c
            where c.tenant_id = p_tenant and c.run_id = p_run and c.version > p_version and c.kind = 'patch')
    where r.tenant_id = p_tenant and r.id = p_run;
    return true;
end $$;
