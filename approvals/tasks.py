"""Due work, found in the database. It may run late, twice or at the same time as itself."""

from typing import Any

from celery import shared_task

from approvals.operations import care


@shared_task(name="approvals.sweep")
def sweep(**_: Any) -> int:
    return care.sweep()
