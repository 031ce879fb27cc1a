"""The order in which the logs of a tenant's runs grew."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable
from runs.functions import functions

# Runs of before: all of their log is still to be fed. As the owner, under whom row-level security is forced, nothing would be seen.
EARLIER = """
alter table runs_run no force row level security;
alter table runs_feeddue no force row level security;
insert into runs_feeddue (tenant_id, id, fed_seq) select tenant_id, id, 0 from runs_run;
update runs_run set feed_due = true;
alter table runs_run force row level security;
alter table runs_feeddue force row level security;
"""

# Nobody else writes these tables, and each row under the lock of its run or its tenant's head: they need no foreign keys.
TRIGGERS = """
create trigger grown before update of last_seq on runs_run for each row
    when (new.last_seq > old.last_seq and not new.feed_due) execute function runs_mark_grown();
alter table runs_feeddue set (fillfactor = 50);
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0006_schedules")]
    operations = [
        migrations.AddField(
            model_name="run", name="feed_due", field=models.BooleanField(db_default=False, default=False)
        ),
        migrations.CreateModel(
            name="FeedDue",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("fed_seq", models.BigIntegerField()),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="FeedHead",
            fields=[
                (
                    "tenant_id",
                    models.UUIDField(
                        default=kernel.context.current_tenant, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.BigIntegerField()),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="Feed",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "tenant_id", "position", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.BigIntegerField()),
                ("run_id", models.UUIDField()),
                ("first_seq", models.BigIntegerField()),
                ("last_seq", models.BigIntegerField()),
            ],
            options={"abstract": False},
        ),
        TenantTable("runs_feeddue", grants="select, insert, update, delete", definer_reads=True),
        TenantTable("runs_feedhead", grants="select, insert, update", composite_key=False),
        TenantTable("runs_feed", grants="select, insert", composite_key=False),
        functions(),
        migrations.RunSQL(TRIGGERS),
        migrations.RunSQL(EARLIER),
    ]
