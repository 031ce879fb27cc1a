"""The functions anew: a claim does not look through a queue, a wait for a gate keeps its message, a retry waits its time."""

from django.db import migrations

from runs.functions import functions


class Migration(migrations.Migration):
    dependencies = [("runs", "0011_probes")]
    operations = [functions()]
