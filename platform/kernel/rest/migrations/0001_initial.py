"""The store of answers given under an idempotency key."""

from django.db import migrations, models

import kernel.context
import kernel.ids
from kernel.rls import TenantTable


class Migration(migrations.Migration):
    initial = True
    dependencies = [("kernel", "0001_tenant_context")]
    operations = [
        migrations.CreateModel(
            name="IdempotencyRecord",
            fields=[
                ("tenant_id", models.UUIDField(default=kernel.context.current_tenant, editable=False)),
                ("id", models.UUIDField(default=kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("request", models.BinaryField(max_length=32)),
                ("status", models.SmallIntegerField()),
                ("answer", models.BinaryField()),
                ("created_at", models.DateTimeField()),
            ],
            options={"db_table": "kernel_idempotency"},
        ),
        migrations.AddIndex(
            model_name="idempotencyrecord",
            index=models.Index("tenant_id", "created_at", name="kernel_idempotency_age"),
        ),
        TenantTable("kernel_idempotency", grants="select, insert, delete"),
    ]
