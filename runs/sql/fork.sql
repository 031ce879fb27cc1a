-- Starts a run with the state of another's checkpoint, in its place (project, agent, subject, labels). The caller holds the tenant scope.
-- `p_commitments`: of the events run_created, run_forked and checkpoint_created. Steps in `p_carried` were done before.
create function runs_fork(
    p_tenant uuid, p_run uuid, p_source uuid, p_version integer, p_actor_kind text, p_actor uuid, p_data_key uuid, p_key_epoch integer,
    p_workflow_version text, p_schema integer, p_steps jsonb, p_carried text[], p_created bytea, p_forked bytea, p_body bytea,
    p_lists bigint[], p_values bigint[], p_commitments bytea
) returns text language plpgsql set plan_cache_mode = force_custom_plan as $$
declare
    r runs_run;
    v_at timestamptz := clock_timestamp();
    v_total integer := jsonb_array_length(p_steps);
    v_genesis bytea := sha256('\x736d726974693a72756e3a763100'::bytea || uuid_send(p_tenant) || uuid_send(p_run));
    v_detail jsonb;
begin
    select * into r from runs_run where tenant_id = p_tenant and id = p_source;
    if r.data_key_id <> p_data_key then return 'subject_changed'; end if;
    if r.subject_id is not null then
        perform from privacy_subject x
        where x.tenant_id = p_tenant and x.id = r.subject_id and x.key_epoch = p_key_epoch and x.erased_at is null for share;
        if not found then return 'subject_changed'; end if;
    end if;
    insert into runs_run (
        tenant_id, id, project_id, workflow, workflow_version, agent_id, agent_version, subject_id, data_key_id, labels, versions,
        correlation_digest, task_digest, creation_key, creation_request, status, last_seq, last_digest, head, base_version,
        base_bytes, chain_count, chain_bytes, list_channels, value_channels, steps_total, steps_open, anchored_seq,
        created_at, updated_at, state_schema, forked_from, forked_version
    ) values (
        p_tenant, p_run, r.project_id, r.workflow, p_workflow_version, r.agent_id, r.agent_version, r.subject_id, r.data_key_id, r.labels,
        r.versions, r.correlation_digest, r.task_digest, v_genesis, v_genesis, 'pending', 0, v_genesis, 1, 1,
        runs_size(p_body), 0, 0, p_lists, p_values, v_total, v_total - cardinality(p_carried), 0,
        v_at, v_at, p_schema, p_source, p_version
    );
    v_detail := runs_plan(p_tenant, p_run, v_at, 0, p_steps);
    if v_detail is not null then
        raise exception 'the plan was checked before' using errcode = 'data_exception', detail = v_detail::text;
    end if;
    update runs_step set status = 'skipped', ended_at = v_at
    where tenant_id = p_tenant and run_id = p_run and name = any (p_carried);
    update runs_step s set waiting_on = (
        select count(*) from runs_stepdependency x
        join runs_step d on d.tenant_id = x.tenant_id and d.id = x.depends_on_id
        where x.tenant_id = p_tenant and x.step_id = s.id and d.status not in ('succeeded', 'skipped'))
    where s.tenant_id = p_tenant and s.run_id = p_run and s.status = 'blocked';
    perform runs_ready(p_tenant, p_run, v_at, null, array(
        select s.id from runs_step s
        where s.tenant_id = p_tenant and s.run_id = p_run and s.status = 'blocked' and s.waiting_on = 0 order by s.position));
    insert into runs_checkpoint (tenant_id, run_id, version, seq, recorded_at, kind, commitment, body)
    values (p_tenant, p_run, 1, 3, v_at, 'full', substr(p_commitments, 65, 32), p_body);
    update runs_run set last_seq = 3, last_digest = runs_append(
        p_tenant, p_run, 0, v_genesis, v_at, p_actor_kind, p_actor, null, array['run_created', 'run_forked', 'checkpoint_created'],
        null, null, null, array[p_created, p_forked, null], p_commitments)
    where tenant_id = p_tenant and id = p_run;
    return 'ok';
end $$;
