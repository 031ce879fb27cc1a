"""Due work, found in the database. Every task may run late, twice or at the same time as itself."""

from typing import Any

from celery import shared_task

from kernel import clock
from runs import operations
from runs.operations import schedules


@shared_task(name="runs.sweep")
def sweep(**_: Any) -> int:
    return operations.sweep()


@shared_task(name="runs.fire_schedules")
def fire_schedules(**_: Any) -> int:
    return schedules.fire_schedules()


@shared_task(name="runs.count_metrics")
def count_metrics(**_: Any) -> int:
    return operations.count_metrics(seconds=8)


@shared_task(name="runs.anchor_heads")
def anchor_heads(**_: Any) -> int:
    return operations.anchor_heads(now=clock.now())
