"""Retention of what was sent."""

from typing import Any

from celery import shared_task

from kernel import clock
from notices import operations


@shared_task(name="notices.purge")
def purge(**_: Any) -> int:
    return operations.purge(now=clock.now())
