"""Under which schema a run's state was written, and which run it was forked from."""

from django.db import migrations, models

from runs.functions import functions


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0004_engine"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="forked_from",
            field=models.UUIDField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="forked_version",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="state_schema",
            field=models.IntegerField(db_default=1),
        ),
        functions(),
    ]
