"""Tenants share a process's capacity: while it is busy and others want it too, none may use more than its share.

A tenant alone may use all of it. Which share each one used is the busy time of threads, fading within a second. Nothing is asked of
anybody: every process judges by what it sees itself, and who is refused costs it next to nothing.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from django.conf import settings

from kernel.errors import DomainError

_FADE_SECONDS: Final = 1.0
_BUSY: Final = 0.75  # of all threads: below it nobody is in anybody's way
_WANTS: Final = 0.005  # threads; who uses less is not taken for somebody who wants a share
_COUNT_SECONDS: Final = 0.1
_SIZE: Final = 20_000


class TenantBusy(DomainError):
    """The tenant uses more than its share of a process that others need too."""

    code = "tenant_busy"
    status = 429
    title = "Your organisation uses more than its share just now"


class Shares:
    """What each tenant uses of `threads`, in threads. Times are seconds of one clock, given by the caller."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._used: dict[UUID, tuple[float, float]] = {}
        self._total = (0.0, 0.0)
        self._counted = (0, -1.0)
        self._lock = threading.Lock()

    def admits(self, tenant: UUID, now: float) -> bool:
        if _faded(self._total, now) < _BUSY * self._threads:
            return True
        with self._lock:
            wanting, at = self._counted
            if now - at > _COUNT_SECONDS:
                wanting = sum(_wants(used, now) for used in self._used.values())
                self._counted = (wanting, now)
            used = self._used.get(tenant, (0.0, now))
        others = wanting - _wants(used, now)
        return others < 1 or _faded(used, now) < self._threads / (others + 1)

    def spent(self, tenant: UUID, seconds: float, now: float) -> None:
        with self._lock:
            if tenant not in self._used and len(self._used) >= _SIZE:
                self._used.clear()
            self._used[tenant] = (_faded(self._used.get(tenant, (0.0, now)), now) + seconds, now)
            self._total = (_faded(self._total, now) + seconds, now)


def _wants(used: tuple[float, float], now: float) -> bool:
    """Whether a tenant asked for something just now, and for more than a little."""
    return used[1] > now - _FADE_SECONDS and _faded(used, now) > _WANTS


def _faded(used: tuple[float, float], now: float) -> float:
    return used[0] * math.exp((used[1] - now) / _FADE_SECONDS)


_shares = Shares(settings.WEB_THREADS)


@contextmanager
def turn(tenant: UUID) -> Iterator[None]:
    """Around what is done for a tenant. Raises TenantBusy."""
    begin = time.monotonic()
    if not _shares.admits(tenant, begin):
        raise TenantBusy("Try again in a second: other organisations are waiting.", headers={"Retry-After": "1"})
    try:
        yield
    finally:
        end = time.monotonic()
        _shares.spent(tenant, end - begin, end)
