-- A registered version by name, or the newest that is enabled. Its definition is left out when the caller knows it (`p_known`).
create function runs_tool_version(
    p_tenant uuid, p_name text, p_version text, p_known uuid[],
    out tool uuid, out version text, out enabled boolean, out definition text
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select t.id, t.version, t.enabled, case when t.id <> all (p_known) then t.definition end
    into tool, version, enabled, definition
    from runs_tool t
    where t.tenant_id = p_tenant and t.name = p_name and (t.version = p_version or p_version is null and t.enabled)
    order by t.created_at desc, t.id desc limit 1;
end $$;

create function runs_workflow_version(
    p_tenant uuid, p_name text, p_version text, p_known uuid[],
    out workflow uuid, out version text, out enabled boolean, out definition text
) language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select t.id, t.version, t.enabled, case when t.id <> all (p_known) then t.definition end
    into workflow, version, enabled, definition
    from runs_workflow t
    where t.tenant_id = p_tenant and t.name = p_name and (t.version = p_version or p_version is null and t.enabled)
    order by t.created_at desc, t.id desc limit 1;
end $$;
