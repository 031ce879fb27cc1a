"""Wake-up hints over Valkey: "something changed, look again". They carry no data, and losing one costs only latency.

Hints of the same name that arrive while nobody has looked yet are one hint.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import redis
import redis.asyncio
from django.conf import settings

logger = logging.getLogger(__name__)

_CHANNEL: Final = "smriti:hint"
_RETRY_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 2.0

_client: "redis.Redis | None" = None
_lock = threading.Lock()
_quiet_until = 0.0


def publish(name: str) -> None:
    """Tell every waiting process. Never raises: whoever waits looks again by itself, later."""
    global _client, _quiet_until
    if time.monotonic() < _quiet_until:
        return
    try:
        if _client is None:
            with _lock:
                _client = _client or redis.Redis.from_url(
                    settings.BROKER_URL, socket_timeout=0.2, socket_connect_timeout=0.2
                )
        _client.publish(_CHANNEL, name)
    except redis.RedisError as error:
        # While Valkey is away, a commit does not wait for it again and again.
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("hint_not_sent", extra={"error": type(error).__name__})


class Listener:
    """The one subscription of a process that waits; every waiter shares it."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def on(self, name: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when `name` is hinted. Clear it before looking, so that no hint falls in between."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        event = asyncio.Event()
        self._waiting[name].add(event)
        try:
            yield event
        finally:
            self._waiting[name].discard(event)
            if not self._waiting[name]:
                del self._waiting[name]

    async def _listen(self) -> None:
        while True:
            client: Any = redis.asyncio.Redis.from_url(settings.BROKER_URL, socket_connect_timeout=1)
            try:
                subscription = client.pubsub(ignore_subscribe_messages=True)
                await subscription.subscribe(_CHANNEL)
                async for message in subscription.listen():
                    for event in self._waiting.get(message["data"].decode(), ()):
                        event.set()
            except (redis.RedisError, OSError) as error:
                logger.warning("hints_interrupted", extra={"error": type(error).__name__})
            finally:
                with suppress(Exception):
                    await client.aclose()
            await asyncio.sleep(_RETRY_SECONDS)
