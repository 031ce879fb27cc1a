-- Moves a run to another workflow version: the event that says so and, when there is a state, the migrated state as one whole
-- checkpoint. The caller holds the tenant scope and the lock of the run's row, and has made both from what it read under it.
-- `p_commitments`: of the event and of the checkpoint.
create function runs_migrate(
    p_tenant uuid, p_run uuid, p_actor_kind text, p_actor uuid, p_data_key uuid, p_key_epoch integer, p_version text, p_schema integer,
    p_payload bytea, p_body bytea, p_lists bigint[], p_values bigint[], p_commitments bytea,
    out code text, out head integer, out seq bigint
) language plpgsql as $$
declare
    r runs_run;
    v_at timestamptz := clock_timestamp();
    v_types text[] := array['state_migrated'];
begin
    select * into r from runs_run where tenant_id = p_tenant and id = p_run for no key update;
    if r.status in ({run_finals}) then code := 'run_finished'; return; end if;
    if exists (select from runs_attempt where tenant_id = p_tenant and run_id = p_run and ended_at is null and expires_at > v_at) then
        code := 'run_busy'; return;
    end if;
    if r.data_key_id <> p_data_key then code := 'subject_changed'; return; end if;
    if r.subject_id is not null then
        perform from privacy_subject x
        where x.tenant_id = p_tenant and x.id = r.subject_id and x.key_epoch = p_key_epoch and x.erased_at is null for share;
        if not found then code := 'subject_changed'; return; end if;
    end if;
    head := r.head;
    if p_body is not null then
        v_types := v_types || 'checkpoint_created'::text;
        head := head + 1;
        insert into runs_checkpoint (tenant_id, run_id, version, seq, recorded_at, kind, commitment, body)
        values (p_tenant, p_run, head, r.last_seq + 2, v_at, 'full', substr(p_commitments, 33, 32), p_body);
        update runs_run set base_version = runs_migrate.head, base_bytes = runs_size(p_body), chain_count = 0, chain_bytes = 0,
            list_channels = p_lists, value_channels = p_values
        where tenant_id = p_tenant and id = p_run;
    end if;
    seq := r.last_seq + array_length(v_types, 1);
    update runs_run set workflow_version = p_version, state_schema = p_schema, head = runs_migrate.head, last_seq = runs_migrate.seq,
        updated_at = v_at, last_digest = runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null,
            v_types, null, null, null, array[p_payload, null], p_commitments)
    where tenant_id = p_tenant and id = p_run;
    if r.status in ({run_ends}) then
        insert into runs_anchordue (tenant_id, id) values (p_tenant, p_run) on conflict do nothing;
    end if;
    code := 'ok';
end $$;
