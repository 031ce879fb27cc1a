-- What a transfer needs to know of an artifact. The caller presents a signed address, or acts for the platform.
create function runs_artifact(
    p_tenant uuid, p_artifact uuid,
    out status text, out data_key uuid, out object uuid, out size bigint, out meta bytea, out run uuid
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select a.status, a.data_key_id, a.object_id, a.size, a.meta_sealed, a.run_id
    into status, data_key, object, size, meta, run
    from runs_artifact a where a.tenant_id = p_tenant and a.id = p_artifact;
end $$;

-- An upload is complete: `p_object` lies in the store. Answers the status that the artifact had, and the object it has now, which is
-- another when the same content lies there already under the same data key; then `p_object` is the caller's to remove.
create function runs_artifact_stored(p_tenant uuid, p_artifact uuid, p_object uuid, out status text, out object uuid)
language plpgsql as $$
declare
    a runs_artifact;
begin
    perform smriti_enter(p_tenant);
    select * into a from runs_artifact x where x.tenant_id = p_tenant and x.id = p_artifact for no key update;
    status := a.status;
    if status is distinct from 'uploading' then return; end if;
    if a.subject_id is not null then
        perform from privacy_subject x where x.tenant_id = p_tenant and x.id = a.subject_id and x.erased_at is null for share;
        if not found then status := 'subject_erased'; return; end if;
    end if;
    -- Only an object of a readable artifact is shared: under this lock it cannot be on its way out.
    select x.object_id into object from runs_artifact x
    where x.tenant_id = p_tenant and x.content_digest = a.content_digest and x.data_key_id = a.data_key_id and x.size = a.size
      and x.status = 'ready' limit 1 for share;
    object := coalesce(object, p_object);
    update runs_artifact set status = 'scanning', object_id = object, due_at = clock_timestamp()
    where tenant_id = p_tenant and id = p_artifact;
end $$;

-- Refers to an artifact from a run, at a sequence number of its log, which keeps it. The caller holds the tenant and the run's row.
create function runs_refer(p_tenant uuid, p_artifact uuid, p_run uuid, p_kind text, p_seq bigint) returns void
language plpgsql as $$
begin
    update runs_artifact set due_at = null
    where tenant_id = p_tenant and id = p_artifact and status = 'ready' and due_at is not null;
    insert into runs_artifactreference (tenant_id, id, artifact_id, run_id, kind, seq)
    values (p_tenant, uuidv7(), p_artifact, p_run, p_kind, p_seq)
    on conflict do nothing;
end $$;

-- Refers to a readable artifact from a run's log, by an event while the run is open. Answers the sequence number, or why not.
create function runs_attach(
    p_tenant uuid, p_artifact uuid, p_run uuid, p_actor_kind text, p_actor uuid, p_payload bytea, p_commitment bytea,
    out code text, out seq bigint
) language plpgsql as $$
declare
    r runs_run;
    a runs_artifact;
    v_at timestamptz;
begin
    select * into r from runs_run where tenant_id = p_tenant and id = p_run for no key update;
    if not found then code := 'run_not_found'; return; end if;
    select * into a from runs_artifact where tenant_id = p_tenant and id = p_artifact for no key update;
    if not found then code := 'not_found'; return; end if;
    if a.status <> 'ready' then code := a.status; return; end if;
    if a.data_key_id not in (p_tenant, r.data_key_id) then code := 'other_subject'; return; end if;
    code := 'ok';
    select x.seq into seq from runs_artifactreference x
    where x.tenant_id = p_tenant and x.artifact_id = p_artifact and x.run_id = p_run and x.kind = 'event' limit 1;
    if found then return; end if;
    seq := r.last_seq;
    if r.status not in ({run_ends}) then
        seq := r.last_seq + 1;
        v_at := clock_timestamp();
        update runs_run set last_seq = r.last_seq + 1, updated_at = v_at,
            last_digest = runs_append(p_tenant, p_run, r.last_seq, r.last_digest, v_at, p_actor_kind, p_actor, null,
                array['artifact_attached'], null, null, null, array[p_payload], p_commitment)
        where tenant_id = p_tenant and id = p_run;
    end if;
    perform runs_refer(p_tenant, p_artifact, p_run, 'event', seq);
end $$;

-- A verdict makes a scanned artifact readable for as long as something refers to it, and its run refer to it. Answers the status it had.
create function runs_artifact_ready(
    p_tenant uuid, p_artifact uuid, p_verdict text, p_scanner text, p_payload bytea, p_commitment bytea
) returns text language plpgsql as $$
declare
    v_run uuid;
    v_status text;
begin
    perform smriti_enter(p_tenant);
    select run_id into v_run from runs_artifact where tenant_id = p_tenant and id = p_artifact;
    perform from runs_run where tenant_id = p_tenant and id = v_run for no key update;
    select status into v_status from runs_artifact where tenant_id = p_tenant and id = p_artifact for no key update;
    if v_status is distinct from 'scanning' then return v_status; end if;
    update runs_artifact set status = 'ready', verdict = p_verdict, scanner = nullif(p_scanner, ''), ready_at = clock_timestamp(),
        due_at = clock_timestamp() + interval '24 hours'
    where tenant_id = p_tenant and id = p_artifact;
    if v_run is not null then
        perform runs_attach(p_tenant, p_artifact, v_run, 'system', null, p_payload, p_commitment);
    end if;
    return v_status;
end $$;

-- Makes a run, which may be about to be made, the owner of an object in the store.
create function runs_offload(p_tenant uuid, p_run uuid, p_object uuid, p_size bigint) returns boolean language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    insert into runs_offload (tenant_id, id, run_id, size, created_at, due_at)
    values (p_tenant, p_object, p_run, p_size, clock_timestamp(), clock_timestamp() + interval '24 hours');
    return true;
end $$;

-- How many sealed bytes there are, of a payload or body, or of a pointer to one (runs/offload.py).
create or replace function runs_size(p_stored bytea) returns bigint language sql immutable parallel safe as $$
    select case when octet_length(p_stored) = 28 then ('x' || encode(substr(p_stored, 21, 8), 'hex'))::bit(64)::bigint
                else octet_length(p_stored) end
$$;
