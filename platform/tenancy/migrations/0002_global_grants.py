"""What the app role may do with the few tables that belong to no tenant. They hold sign-ins and sessions, no tenant data."""

from django.db import migrations

from kernel import roles

GRANTS = f"""
grant select, insert, update on tenancy_user to {roles.APP};
grant select, insert, update, delete on django_session to {roles.APP};
grant select, insert, update, delete on account_emailaddress to {roles.APP};
grant select on account_emailconfirmation, django_content_type, auth_permission, django_migrations to {roles.APP};
"""


class Migration(migrations.Migration):
    dependencies = [
        ("tenancy", "0001_initial"),
        ("sessions", "0001_initial"),
        ("account", "0009_emailaddress_unique_primary_email"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]
    operations = [migrations.RunSQL(GRANTS)]
