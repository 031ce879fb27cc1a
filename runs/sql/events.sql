-- Extends a run's chain by events and answers the new last digest. The caller holds the run's row and stores what it answers.
-- `p_commitments`: 32 bytes for each event, one after the other.
create function runs_append(
    p_tenant uuid, p_run uuid, p_seq bigint, p_digest bytea, p_at timestamptz, p_actor_kind text, p_actor uuid, p_lease uuid,
    p_types text[], p_steps uuid[], p_occurred timestamptz[], p_labels jsonb[], p_payloads bytea[], p_commitments bytea
) returns bytea language plpgsql as $$
declare
    v_prefix bytea := '\x736d726974693a6576656e743a763100'::bytea || uuid_send(p_tenant) || uuid_send(p_run);
    v_middle bytea := int8send((extract(epoch from p_at) * 1000000)::bigint)
        || coalesce(uuid_send(p_lease), '\x00000000000000000000000000000000'::bytea)
        || coalesce(uuid_send(p_actor), '\x00000000000000000000000000000000'::bytea)
        || int4send(octet_length(p_actor_kind)) || p_actor_kind::bytea;
    v_prev bytea;
    v_digest bytea := p_digest;
    v_commitment bytea;
begin
    for i in 1 .. array_length(p_types, 1) loop
        v_prev := v_digest;
        v_commitment := substr(p_commitments, 32 * i - 31, 32);
        v_digest := sha256(v_prefix || v_prev || int8send(p_seq + i) || v_middle
            || coalesce(uuid_send(p_steps[i]), '\x00000000000000000000000000000000'::bytea)
            || '\x0001'::bytea || int4send(octet_length(p_types[i])) || p_types[i]::bytea || coalesce(v_commitment, ''));
        insert into runs_event (
            tenant_id, run_id, seq, recorded_at, occurred_at, step_id, lease_id, actor_id, schema_version, type, actor_kind,
            prev_digest, digest, payload_commitment, labels, payload
        ) values (
            p_tenant, p_run, p_seq + i, p_at, p_occurred[i], p_steps[i], p_lease, p_actor, 1, p_types[i], p_actor_kind,
            v_prev, v_digest, v_commitment, p_labels[i], p_payloads[i]
        );
    end loop;
    return v_digest;
end $$;

-- Appends one event of the platform's own. `p_labels` is canonical JSON (RFC 8785). Without a payload the commitment covers the labels
-- alone: they are of the declared vocabulary, so it needs no salt.
create function runs_mark(
    p_tenant uuid, p_run uuid, inout seq bigint, inout digest bytea, p_at timestamptz, p_actor_kind text, p_actor uuid, p_lease uuid,
    p_type text, p_step uuid, p_labels text, p_payload bytea default null, p_commitment bytea default null
) language plpgsql as $$
declare
    v_meta bytea;
begin
    if p_labels is not null and p_payload is null then
        v_meta := convert_to('{"labels":' || p_labels || ',"occurred_at":null}', 'UTF8');
        p_commitment := sha256('\x736d726974693a6c6162656c733a763100'::bytea || int4send(octet_length(v_meta)) || v_meta);
    end if;
    digest := runs_append(p_tenant, p_run, seq, digest, p_at, p_actor_kind, p_actor, p_lease, array[p_type], array[p_step], null,
                          case when p_labels is null then null else array[p_labels::jsonb] end, array[p_payload], p_commitment);
    seq := seq + 1;
end $$;

-- Labels as canonical JSON: names, in their order, and values of the declared vocabulary; those without a value are left out.
create function runs_labels(variadic p_pairs text[]) returns text immutable language sql as $$
    select '{' || string_agg('"' || p_pairs[n] || '":"' || p_pairs[n + 1] || '"', ',' order by n) || '}'
    from generate_series(1, array_length(p_pairs, 1), 2) n where p_pairs[n + 1] is not null
$$;

create function runs_events(
    p_tenant uuid, p_key uuid, p_key_version integer, p_agent uuid, p_projects uuid[], p_run uuid, p_after bigint, p_limit integer
) returns table (
    last_seq bigint, data_key uuid, seq bigint, type text, schema_version smallint, actor_kind text, actor_id uuid, step_id uuid, step text,
    lease_id uuid, occurred_at timestamptz, recorded_at timestamptz, labels jsonb, payload bytea, payload_commitment bytea,
    prev_digest bytea, digest bytea
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    return query
    select r.last_seq, r.data_key_id, e.seq, e.type, e.schema_version, e.actor_kind, e.actor_id, e.step_id, s.name::text, e.lease_id,
           e.occurred_at, e.recorded_at, e.labels, e.payload, e.payload_commitment, e.prev_digest, e.digest
    from runs_run r
    left join lateral (
        select * from runs_event x where x.tenant_id = p_tenant and x.run_id = p_run and x.seq > p_after
        order by x.seq limit p_limit
    ) e on true
    left join runs_step s on s.tenant_id = p_tenant and s.id = e.step_id
    where r.tenant_id = p_tenant and r.id = p_run and (p_agent is null or r.agent_id = p_agent)
      and (p_projects is null or r.project_id = any (p_projects))
      and runs_key_valid(p_tenant, p_key, p_key_version)
    order by e.seq;
end $$;
