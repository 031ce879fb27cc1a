"""The Celery application. The broker is never the truth: every task only finds due work in the database."""

import os

from celery import Celery
from celery.signals import worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("smriti")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_init.connect
def refuse_unsafe_database_role(**_: object) -> None:
    from config.startup import refuse_unsafe_roles

    try:
        refuse_unsafe_roles()
    except Exception as error:
        # Celery only logs what a receiver raises, and would go on unchecked.
        raise SystemExit(f"The worker does not start: {error}") from error
