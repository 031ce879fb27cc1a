"""Enqueue a task by name, after commit. The broker is never the truth: losing a message costs latency, and a sweep
finds the work.

Invariant: a broker that is down or slow never fails a request, and delays at most one request in a few seconds.
"""

import logging
import os
import threading
import time
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import transaction

logger = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 5.0  # after a failure nothing is sent for so long: the broker gets no storm, requests no delay
_OPTIONS: Final = {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 0}

_lock = threading.Lock()
_connections: Any = None
_quiet_until = 0.0


def enqueue(name: str, *, tenant: UUID, **kwargs: Any) -> None:
    """Send task `name` with `tenant` and `kwargs` (ids and other scalars) at commit; now, outside of a transaction."""
    transaction.on_commit(partial(send, name, tenant=tenant, **kwargs), robust=True)


def send(name: str, *, tenant: UUID, **kwargs: Any) -> None:
    """Send task `name` now, for callers without a transaction or a connection of Django's. Otherwise as `enqueue`."""
    values = {key: str(value) if isinstance(value, UUID) else value for key, value in kwargs.items()}
    _send(name, {"tenant": str(tenant), **values})


def _send(name: str, kwargs: dict[str, Any]) -> None:
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    from celery import current_app  # imported late: the web process starts without it until a job is due

    try:
        with _pool(current_app).acquire(block=True, timeout=1) as connection:
            current_app.send_task(name, kwargs=kwargs, connection=connection, retry=False, ignore_result=True)
    except Exception as error:  # whatever the transport raises: the sweep finds the work
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("enqueue_failed", extra={"task": name, "error": type(error).__name__})


def _pool(app: Any) -> Any:
    global _connections
    if _connections is None:
        with _lock:
            if _connections is None:
                options = {**app.conf.broker_transport_options, **_OPTIONS}
                _connections = app.connection_for_write(connect_timeout=1, transport_options=options).Pool(8)
    return _connections


def _forget() -> None:
    """A forked process must not share its parent's sockets."""
    global _connections, _quiet_until
    _connections, _quiet_until = None, 0.0


os.register_at_fork(after_in_child=_forget)
