"""Gates that are decided by requests, and actions that people amended."""

from django.db import migrations, models

from runs.functions import functions


class Migration(migrations.Migration):
    dependencies = [("runs", "0012_young_database")]
    operations = [
        migrations.AddField("gate", "governed", models.BooleanField(default=False, db_default=False)),
        migrations.AddField("effect", "amended_seq", models.BigIntegerField(null=True)),
        migrations.AddField("effect", "amended_from", models.BinaryField(null=True)),
        functions(),
    ]
