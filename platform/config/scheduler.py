"""Sends the periodic tasks by name, each in its interval. `python -m config.scheduler`.

By the monotonic clock: a wall clock that is stepped back must not keep leases from being taken for an hour, which is what Celery's
own scheduler does. A message that is lost is sent again an interval later, and a second scheduler does no harm.
"""

import logging
import os
import signal
import time
from threading import Event
from typing import Any, Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from config.celery import app

logger = logging.getLogger(__name__)

_OPTIONS: Final = {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 0}
_RETRY_SECONDS: Final = 1.0


def run(stop: Event) -> None:
    """Send what is due until `stop` is set. A broker that is away costs a warning a second."""
    due = dict.fromkeys(app.conf.beat_schedule, 0.0)
    connection: Any = None
    while not stop.is_set():
        now = time.monotonic()
        try:
            if connection is None:
                options = {**app.conf.broker_transport_options, **_OPTIONS}
                connection = app.connection_for_write(connect_timeout=1, transport_options=options)
            for name, entry in app.conf.beat_schedule.items():
                if due[name] <= now:
                    app.send_task(entry["task"], connection=connection, retry=False, ignore_result=True)
                    due[name] = now + entry["schedule"]
        except Exception as error:  # whatever the transport raises
            logger.warning("schedule_not_sent", extra={"error": type(error).__name__})
            connection = None
            stop.wait(_RETRY_SECONDS)
        stop.wait(max(0.0, min(due.values()) - time.monotonic()))


def main() -> None:
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run(stop)


if __name__ == "__main__":
    main()
