"""Sending and purging. A hint and a sweep start the same task; the host's lock lets one dispatcher of a host run at a time, so that
receivers that hang never take the place of other tasks. A process that is killed frees the lock.
"""

import fcntl
from typing import Any

from celery import shared_task
from django.conf import settings

from kernel.outbox import operations


@shared_task(name="outbox.dispatch")
def dispatch(**_: Any) -> int:
    with (settings.DATA_DIR / "outbox.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        return operations.dispatch()


@shared_task(name="outbox.purge")
def purge(**_: Any) -> int:
    return operations.purge()
