-- The request of a gate follows its gate, whatever closed it. The caller holds the run.
create or replace function approvals_gate_closed() returns trigger language plpgsql as $$
declare
    q record;
    v_status text := case new.status when 'withdrawn' then 'withdrawn' when 'lapsed' then 'expired' when 'satisfied' then 'approved' else 'rejected' end;
begin
    select x.id, x.status, x.round into q from approvals_request x
    where x.tenant_id = new.tenant_id and x.gate_id = new.id for no key update;
    if not found then return null; end if;
    if new.status in ('satisfied', 'refused') then
        if q.status <> v_status then
            raise exception 'this gate is decided by its request, which is %', q.status using errcode = 'check_violation';
        end if;
    elsif q.status in ('open', 'stale') then
        update approvals_request set status = v_status, decided_at = new.decided_at where tenant_id = new.tenant_id and id = q.id;
        insert into approvals_activity (tenant_id, id, request_id, kind, actor_kind, detail, at)
        values (new.tenant_id, uuidv7(), q.id, v_status, 'system', '{}', new.decided_at);
        insert into approvals_alarm (tenant_id, id, request_id, round, kind, ordinal, due_at)
        values (new.tenant_id, uuidv7(), q.id, q.round, 'closed', 0, new.decided_at) on conflict do nothing;
    end if;
    return null;
end $$;

-- A grant for a governed gate exists only when every group agreed to exactly this action, and is used only while its request stands.
create or replace function approvals_grant_earned() returns trigger language plpgsql as $$
declare
    q record;
    v_group text;
begin
    select x.id, x.status, x.round, x.action_digest into q from approvals_request x
    where x.tenant_id = new.tenant_id and x.gate_id = new.gate_id;
    if not found then return new; end if;
    if q.status <> 'approved' or q.action_digest <> new.action_digest then
        raise exception 'this gate needs an approved request for this action' using errcode = 'check_violation';
    end if;
    if tg_op = 'INSERT' then
        select g.name into v_group from approvals_requestgroup g
        where g.tenant_id = new.tenant_id and g.request_id = q.id and g.round = q.round and g.needed > (
            select count(*) from approvals_vote v
            where v.tenant_id = new.tenant_id and v.request_id = q.id and v.round = q.round and v.group = g.name and v.decision = 'approve') limit 1;
        if found then raise exception 'group % has not agreed', v_group using errcode = 'check_violation'; end if;
    end if;
    return new;
end $$;
