-- The caller holds the tenant scope: a cancellation and its audit entry are one transaction.
create function runs_cancel(p_tenant uuid, p_run uuid, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea)
returns text language plpgsql as $$
declare
    r runs_run;
    v_at timestamptz;
begin
    select * into r from runs_run where tenant_id = p_tenant and id = p_run for no key update;
    if not found then return 'not_found'; end if;
    if r.status in ({run_finals}) then return r.status; end if;
    v_at := clock_timestamp();
    perform runs_end(p_tenant, p_run, v_at, 'cancelled');
    update runs_run set status = 'cancelled', waiting_for = null, completed_at = v_at, updated_at = v_at, last_seq = r.last_seq + 1,
        last_digest = runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null,
            array['run_cancelled'], null, null, null, array[p_payload], p_commitment)
    where tenant_id = p_tenant and id = p_run;
    return 'ok';
end $$;
