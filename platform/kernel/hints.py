"""Wake-up hints over Valkey: "something changed, look again". They carry no data, and losing one costs only latency.

Hints of the same name that arrive while nobody has looked yet are one hint. A hint named `a/b` wakes also those who wait for `a`.
Hints that hardly anybody waits for are sent only while somebody does: waiting processes enter the names into one list for all, and
the others read that list once a second.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import redis
import redis.asyncio
from django.conf import settings

logger = logging.getLogger(__name__)

_CHANNEL: Final = "smriti:hint"
_AWAITED: Final = "smriti:awaited"  # name: until when, in seconds since 1970
_RETRY_SECONDS: Final = 1.0
_QUIET_SECONDS: Final = 2.0
_READ_SECONDS: Final = 1.0
_ENTER_SECONDS: Final = 5.0
_AWAITED_SECONDS: Final = 15
_MOST_NAMES: Final = 1000  # of one process; beyond, `a` stands for all its `a/b`

_client: "redis.Redis | None" = None
_lock = threading.Lock()
_quiet_until = 0.0
_awaited: frozenset[bytes] = frozenset()
_awaited_until = 0.0


def publish(name: str) -> None:
    """Tell every waiting process. Never raises: whoever waits looks again by itself, later."""
    _try("publish", _CHANNEL, name)


def publish_if_awaited(name: str) -> None:
    """As `publish`, when a process has entered the name, or what stands before its slash, at least a second ago."""
    global _awaited, _awaited_until
    now = time.monotonic()
    if now >= _awaited_until:
        _awaited_until = now + _READ_SECONDS  # first, so that other threads go on with the list before
        found = _try("zrange", _AWAITED, int(time.time()), "+inf", byscore=True)
        _awaited = frozenset(found or ())
    if _awaited and (name.encode() in _awaited or name.partition("/")[0].encode() in _awaited):
        publish(name)


def _try(command: str, *arguments: Any, **options: Any) -> Any:
    """The answer of Valkey; None while it is away, without waiting for it again and again."""
    global _client, _quiet_until
    if time.monotonic() < _quiet_until:
        return None
    try:
        if _client is None:
            with _lock:
                _client = _client or redis.Redis.from_url(
                    settings.BROKER_URL, socket_timeout=0.2, socket_connect_timeout=0.2
                )
        return getattr(_client, command)(*arguments, **options)
    except redis.RedisError as error:
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("hint_not_sent", extra={"error": type(error).__name__})
        return None


class Listener:
    """The one subscription of a process that waits; every waiter shares it."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._entered: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._entering: asyncio.Task[None] | None = None
        self._new = asyncio.Event()

    @asynccontextmanager
    async def on(self, name: str, *, enter: bool = False) -> AsyncIterator[asyncio.Event]:
        """An event that is set when `name` is hinted. Clear it before looking, so that no hint falls in between.

        `enter`: the hint is one of those that are sent only while somebody waits.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        if enter and (self._entering is None or self._entering.done()):
            self._entering = asyncio.create_task(self._enter())
        event = asyncio.Event()
        self._waiting[name].add(event)
        if enter:
            self._entered[name] += 1
            self._new.set()
        try:
            yield event
        finally:
            self._waiting[name].discard(event)
            if not self._waiting[name]:
                del self._waiting[name]
            if enter:
                self._entered[name] -= 1
                if not self._entered[name]:
                    del self._entered[name]

    async def _listen(self) -> None:
        while True:
            client: Any = redis.asyncio.Redis.from_url(settings.BROKER_URL, socket_connect_timeout=1)
            try:
                subscription = client.pubsub(ignore_subscribe_messages=True)
                await subscription.subscribe(_CHANNEL)
                async for message in subscription.listen():
                    name = message["data"].decode()
                    for event in (*self._waiting.get(name, ()), *self._waiting.get(_group(name), ())):
                        event.set()
            except (redis.RedisError, OSError) as error:
                logger.warning("hints_interrupted", extra={"error": type(error).__name__})
            finally:
                with suppress(Exception):
                    await client.aclose()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _enter(self) -> None:
        """Keep the names of this process in the list of what is awaited."""
        client: Any = redis.asyncio.Redis.from_url(settings.BROKER_URL, socket_timeout=1, socket_connect_timeout=1)
        while True:
            self._new.clear()
            names = set(self._entered)
            if len(names) > _MOST_NAMES:
                names = {name.partition("/")[0] for name in names}
            try:
                now = int(time.time())
                if names:
                    await client.zadd(_AWAITED, dict.fromkeys(names, now + _AWAITED_SECONDS))
                await client.zremrangebyscore(_AWAITED, "-inf", now - 1)
            except (redis.RedisError, OSError) as error:
                logger.warning("hints_interrupted", extra={"error": type(error).__name__})
            with suppress(TimeoutError):
                await asyncio.sleep(_RETRY_SECONDS / 10)  # what comes at once is entered at once
                await asyncio.wait_for(self._new.wait(), _ENTER_SECONDS)


def _group(name: str) -> str:
    """What stands before the slash; empty without one."""
    return name.rpartition("/")[0]


def _forget() -> None:
    """A forked process must not share its parent's socket."""
    global _client, _quiet_until, _awaited_until
    _client, _quiet_until, _awaited_until = None, 0.0, 0.0


os.register_at_fork(after_in_child=_forget)
