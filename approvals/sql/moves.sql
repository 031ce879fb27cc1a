-- A request begins open and moves by the table. What it asks for changes only when it is asked again, in another round.
create or replace function approvals_refuse_move() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        if new.status <> 'open' then raise exception 'a request begins as open' using errcode = 'check_violation'; end if;
        return new;
    end if;
    if new.status <> old.status and not old.status || '>' || new.status = any (array[{moves}]) then
        raise exception 'a request cannot go from % to %', old.status, new.status using errcode = 'check_violation';
    end if;
    if old.status = 'stale' and new.status = 'open' then
        if new.round <> old.round + 1 then raise exception 'a request is asked again in the next round' using errcode = 'check_violation'; end if;
    elsif new.round <> old.round then
        raise exception 'a round begins when a stale request is asked again' using errcode = 'check_violation';
    end if;
    -- Who reminds of what is over?
    if new.status not in ('open', 'stale') and old.status in ('open', 'stale') then
        update approvals_alarm set due_at = null
        where tenant_id = new.tenant_id and request_id = new.id and due_at is not null and kind <> 'closed';
    end if;
    return new;
end $$;

create or replace function approvals_refuse_change() returns trigger language plpgsql as $$
begin
    if (old.status <> 'stale' or new.status <> 'open')
       and (new.digest, new.action_digest, new.policy_version_id, new.gate_id, new.effect_id, new.run_id)
           is distinct from (old.digest, old.action_digest, old.policy_version_id, old.gate_id, old.effect_id, old.run_id)
       or new.action is distinct from old.action or new.action_digest <> old.action_digest then
        raise exception 'what a request asks for does not change' using errcode = 'restrict_violation';
    end if;
    return new;
end $$;
