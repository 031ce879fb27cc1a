-- May these members (null: all) decide on these requests (null: all that are open)? One row for each pair: `rule` says why not, or by what
-- right. `authority` is whose right it is; `path` who stands between it and the member, when it was delegated further.
create function approvals_judge(p_tenant uuid, p_members uuid[], p_requests uuid[], p_at timestamptz)
returns table (request_id uuid, member_id uuid, allowed boolean, rule text, group_name text, authority uuid, path uuid[], until timestamptz)
language sql stable as $$
    with recursive r as (
        select x.id, x.policy_id, x.round, x.status, x.deadline_at, x.self_approval, x.editors, k.issued_by, a.owner_id,
               case when x.self_approval then x.editors
                    else array_remove(x.excluded || x.editors || k.issued_by || a.owner_id, null) end as excluded
        from approvals_request x
        left join tenancy_apikey k on k.tenant_id = x.tenant_id and k.id = x.requester_id
        left join tenancy_agent a on a.tenant_id = x.tenant_id and a.id = x.agent_id
        where x.tenant_id = p_tenant and (p_requests is null and x.status = 'open' or x.id = any (p_requests))
    ), m as (
        select x.id from tenancy_member x where x.tenant_id = p_tenant and (p_members is null or x.id = any (p_members))
    ), d as (
        select x.from_member_id, x.to_member_id, x.policy_id, x.away, x.ends_at from approvals_delegation x
        where x.tenant_id = p_tenant and x.revoked_at is null and x.starts_at <= p_at and x.ends_at > p_at
    ), away as (
        select d.from_member_id as member, max(d.ends_at) as until from d where d.away group by d.from_member_id
    ), standing (member, authority, path, policy) as (
        select m.id, m.id, '{}'::uuid[], null::uuid from m
        union all
        -- At most three hands, and never round in a circle.
        select s.member, d.from_member_id, case when s.authority = s.member then '{}' else s.authority || s.path end,
               coalesce(s.policy, d.policy_id)
        from standing s join d on d.to_member_id = s.authority
        where cardinality(s.path) < 2 and d.from_member_id <> s.member and d.from_member_id <> s.authority
          and d.from_member_id <> all (s.path) and (s.policy is null or d.policy_id is null or d.policy_id = s.policy)
    ), rights as (
        select s.member, s.authority, s.path, s.policy, x.roles, x.user_id from standing s
        join tenancy_member x on x.tenant_id = p_tenant and x.id = s.authority
    ), said as (
        select v.request_id, v.voter_id, v.authority_id, v.group, v.decision from approvals_vote v
        join r on r.id = v.request_id and r.round = v.round where v.tenant_id = p_tenant
    ), g as (
        select g.request_id, g.name, g.position, g.roles, g.approvers,
               g.needed <= (select count(*) from said v where v.request_id = g.request_id and v.group = g.name and v.decision = 'approve') as complete
        from approvals_requestgroup g join r on r.id = g.request_id and r.round = g.round where g.tenant_id = p_tenant
    ), perms as (
        select p.policy_id, p.user_id from approvals_policypermission p
        join auth_permission c on c.id = p.permission_id and c.codename = 'decide' where p.tenant_id = p_tenant
    ), found as (
        select r.id as request, s.member, s.authority, s.path, g.name, g.position,
               case when s.authority <> s.member then 'delegation' when s.roles && g.roles then 'role' else 'permission' end as basis,
               case when s.authority <> s.member and (s.authority = any (r.excluded) or s.path && r.excluded) then 'delegate_of_requester'
                    when exists (select from said v where v.request_id = r.id and v.authority_id = s.authority) then 'authority_used'
                    when g.complete then 'group_complete' end as blocked
        from r join g on g.request_id = r.id join rights s on s.policy is null or s.policy = r.policy_id
        where s.roles && g.roles
           or g.approvers and exists (select from perms p where p.policy_id = r.policy_id and p.user_id = s.user_id)
    ), best as (
        select distinct on (f.request, f.member) f.* from found f
        order by f.request, f.member, (f.blocked is not null), f.authority <> f.member, cardinality(f.path), f.position, f.authority
    ), judged as (
        select r.id as request, m.id as member, b.basis, b.name, b.authority, b.path, w.until,
               case when r.status = 'stale' then 'stale'
                    when r.status <> 'open' then 'not_open'
                    when r.deadline_at <= p_at then 'expired'
                    when m.id = any (r.editors) then 'editor'
                    when not r.self_approval and m.id = r.issued_by then 'requester'
                    when not r.self_approval and m.id = r.owner_id then 'agent_owner'
                    when m.id = any (r.excluded) then 'requester'
                    when exists (select from said v where v.request_id = r.id and v.voter_id = m.id) then 'already_voted'
                    when w.member is not null then 'absent'
                    when b.request is null then 'no_authority'
                    else b.blocked end as why_not
        from r cross join m left join best b on b.request = r.id and b.member = m.id left join away w on w.member = m.id
    )
    select j.request, j.member, j.why_not is null, coalesce(j.why_not, j.basis), j.name, j.authority, j.path, j.until from judged j
$$;

-- Does what was voted still satisfy the policy: has every authority that was used its right still? Locks who is asked about, so that a
-- change of roles comes before or after whatever follows from the answer.
create function approvals_still_agreed(p_tenant uuid, p_request uuid) returns boolean language plpgsql as $$
declare
    q record;
    v_short boolean;
begin
    select x.id, x.round, x.policy_id into q from approvals_request x where x.tenant_id = p_tenant and x.id = p_request;
    perform from tenancy_member x
    where x.tenant_id = p_tenant and x.id in (
        select unnest(array[v.voter_id, v.authority_id]) from approvals_vote v
        where v.tenant_id = p_tenant and v.request_id = p_request and v.round = q.round)
    order by x.id for share;
    perform from tenancy_apikey x
    where x.tenant_id = p_tenant and x.id in (
        select v.voter_id from approvals_vote v
        where v.tenant_id = p_tenant and v.request_id = p_request and v.round = q.round and v.voter_kind = 'key')
    order by x.id for share;
    perform from approvals_policypermission x
    where x.tenant_id = p_tenant and x.policy_id = q.policy_id order by x.id for share;
    perform from approvals_policy x where x.tenant_id = p_tenant and x.id = q.policy_id for share;
    select exists (
        select from approvals_requestgroup g
        where g.tenant_id = p_tenant and g.request_id = p_request and g.round = q.round and g.needed > (
            select count(*) from approvals_vote v
            where v.tenant_id = p_tenant and v.request_id = p_request and v.round = q.round and v.group = g.name and v.decision = 'approve'
              and case v.voter_kind when 'key' then exists (
                      select from tenancy_apikey k where k.tenant_id = p_tenant and k.id = v.voter_id and k.id = any (g.keys)
                        and k.revoked_at is null and (k.expires_at is null or k.expires_at > clock_timestamp())
                        and 'approvals:decide' = any (k.scopes))
                  else exists (select from tenancy_member m where m.tenant_id = p_tenant and m.id = v.voter_id) and exists (
                      select from tenancy_member m where m.tenant_id = p_tenant and m.id = v.authority_id and (
                          m.roles && g.roles or g.approvers and exists (
                              select from approvals_policypermission p join auth_permission c on c.id = p.permission_id and c.codename = 'decide'
                              where p.tenant_id = p_tenant and p.policy_id = q.policy_id and p.user_id = m.user_id))) end)) into v_short;
    return not v_short;
end $$;

-- Status and digest of a request, for whoever waits for it: outside a tenant scope, in one round trip.
create function approvals_standing(p_tenant uuid, p_agent uuid, p_projects uuid[], p_request uuid, out status text, out digest bytea)
language plpgsql as $$
begin
    perform smriti_enter(p_tenant);
    select x.status, x.digest into status, digest from approvals_request x
    where x.tenant_id = p_tenant and x.id = p_request and (p_agent is null or x.agent_id = p_agent)
      and (p_projects is null or x.project_id = any (p_projects));
end $$;
