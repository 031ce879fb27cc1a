-- The tables of moves also say which states there are. They are triggers and not check constraints because a commit rewrites the
-- run's row without touching its state, and then pays nothing for them.
create or replace function runs_refuse_move() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' and new.status <> tg_argv[1] then
        raise exception 'a % begins as %, not as %', tg_argv[0], tg_argv[1], new.status using errcode = 'check_violation';
    end if;
    if tg_op = 'UPDATE' and new.status <> old.status and not tg_argv[0] || ':' || old.status || '>' || new.status
           = any (array[{moves}]) then
        raise exception 'a % cannot go from % to %', tg_argv[0], old.status, new.status using errcode = 'check_violation';
    end if;
    return new;
end $$;
