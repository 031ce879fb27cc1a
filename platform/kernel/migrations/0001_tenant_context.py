"""The function that sets the tenant of a transaction. It goes into both clusters: the vault is isolated the same way."""

from django.db import migrations

from kernel import roles
from kernel.rls import enter_sql

ENTER = f"""
create function smriti_enter(tenant uuid) returns void language plpgsql as $$
begin {enter_sql("tenant")}
end $$;
revoke all on function smriti_enter(uuid) from public;
grant execute on function smriti_enter(uuid) to {roles.APP}, {roles.ERASER}, {roles.VERIFIER};
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [migrations.RunSQL(ENTER)]
