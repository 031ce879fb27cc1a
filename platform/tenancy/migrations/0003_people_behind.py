"""The member that an agent acts for, and the one behind a key: neither approves what they asked for."""

from django.db import migrations, models

KEYS = """
alter table tenancy_agent add constraint tenancy_agent_owner_id_fk foreign key (tenant_id, owner_id)
    references tenancy_member (tenant_id, id) on delete set null (owner_id);
alter table tenancy_apikey add constraint tenancy_apikey_issued_by_fk foreign key (tenant_id, issued_by)
    references tenancy_member (tenant_id, id) on delete set null (issued_by);
"""


class Migration(migrations.Migration):
    dependencies = [("tenancy", "0002_global_grants")]
    operations = [
        migrations.AddField("agent", "owner_id", models.UUIDField(null=True)),
        migrations.AddField("apikey", "issued_by", models.UUIDField(null=True)),
        migrations.RunSQL(KEYS),
    ]
