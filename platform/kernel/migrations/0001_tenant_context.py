"""The function that sets the tenant of a transaction. It goes into both clusters: the vault is isolated the same way."""

from django.db import migrations

from kernel import roles

ENTER = f"""
create function smriti_enter(tenant uuid) returns void language plpgsql as $$
begin
    if tenant is null then
        raise exception 'a tenant is required' using errcode = 'invalid_parameter_value';
    end if;
    if nullif(current_setting('smriti.tenant', true), '') is not null then
        raise exception 'a tenant context is already open' using errcode = 'invalid_transaction_state';
    end if;
    perform set_config('smriti.tenant', tenant::text, true);
end $$;
revoke all on function smriti_enter(uuid) from public;
grant execute on function smriti_enter(uuid) to {roles.APP}, {roles.ERASER}, {roles.VERIFIER};
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [migrations.RunSQL(ENTER)]
