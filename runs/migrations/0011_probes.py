"""Unknown effects that a probe is to be asked about."""

from django.db import migrations

from kernel.rls import definer_function
from runs.functions import functions

DUE = definer_function(
    "runs_due_probes(integer)",
    """create function runs_due_probes(p_limit integer) returns table (tenant uuid, effect uuid)
    language sql stable security definer set search_path = public, pg_temp as $$
        select e.tenant_id, e.id from runs_effect e
        where e.owner = 'probe' and e.probe_at <= clock_timestamp() order by e.probe_at limit p_limit
    $$""",
)


class Migration(migrations.Migration):
    dependencies = [("runs", "0010_offload"), ("outbox", "0001_initial")]
    operations = [migrations.RunSQL(DUE), functions()]
