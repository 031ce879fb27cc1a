"""Rate limits: a token bucket for each key, kept in Valkey and drawn in portions, so that most requests ask nobody.

Invariant: fails open. Without Valkey every request passes; trying to reach it costs one request in a few seconds.
"""

import logging
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from kernel.errors import DomainError

logger = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 5.0
_HOLD_SECONDS: Final = (
    1.0  # a portion that is not used lapses, so that an idle process does not keep another one's tokens
)
_PORTION: Final = 0.02  # of the bucket

# Takes up to ARGV[3] tokens from a bucket of ARGV[2] that fills at ARGV[1] a second; tells how many, and what is left.
_TAKE: Final = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1000000
local was = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = tonumber(was[1]) or tonumber(ARGV[2])
left = math.min(tonumber(ARGV[2]), left + (now - (tonumber(was[2]) or now)) * tonumber(ARGV[1]))
local taken = math.max(0, math.min(tonumber(ARGV[3]), math.floor(left)))
redis.call('HSET', KEYS[1], 'left', left - taken, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / ARGV[1] * 1000) + 1000)
return {taken, math.floor(left - taken)}
"""


class RateLimited(DomainError):
    code = "rate_limited"
    status = 429
    title = "Too many requests"


@dataclass(slots=True)
class _Portion:
    tokens: int
    left: int  # in the bucket, when the portion was taken
    until: float


_lock = threading.Lock()
_portions: dict[UUID, _Portion] = {}
_script: Any = None
_quiet_until = 0.0


def take(principal: UUID) -> dict[str, str]:
    """Spend one token; the RateLimit headers of the response. Raises RateLimited (with the same headers)."""
    per_minute: int = settings.RATE_LIMIT
    if per_minute <= 0:
        return {}
    now = time.monotonic()
    with _lock:
        portion = _portions.get(principal)
        if portion is not None and portion.tokens > 0 and portion.until > now:
            portion.tokens -= 1
            return _headers(per_minute, portion)
    taken = _draw(principal, per_minute)
    if taken is None:
        return {}
    portion = _Portion(tokens=taken[0], left=taken[1], until=now + _HOLD_SECONDS)
    if portion.tokens < 1:
        wait = max(1, math.ceil(60 / per_minute))
        raise RateLimited(
            f"This key may send {per_minute} requests a minute.",
            headers={**_headers(per_minute, portion), "Retry-After": str(wait)},
        )
    portion.tokens -= 1
    with _lock:
        if len(_portions) > 10_000:
            _portions.clear()
        _portions[principal] = portion
    return _headers(per_minute, portion)


def _headers(per_minute: int, portion: _Portion) -> dict[str, str]:
    remaining = portion.left + portion.tokens
    reset = math.ceil((per_minute - remaining) * 60 / per_minute)
    return {
        "RateLimit-Policy": f'"key";q={per_minute};w=60',
        "RateLimit": f'"key";r={remaining};t={max(0, reset)}',
    }


def _draw(principal: UUID, per_minute: int) -> tuple[int, int] | None:
    """A portion from the shared bucket: tokens, and what is left there. None when Valkey does not answer."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return None
    portion = max(1, int(per_minute * _PORTION))
    try:
        taken, left = _bucket()(keys=[f"smriti:rate:{principal}"], args=[per_minute / 60, per_minute, portion])
    except Exception as error:  # whatever the client raises: a limit is no reason to be down
        _quiet_until = time.monotonic() + _QUIET_SECONDS
        logger.warning("rate_limit_unavailable", extra={"error": type(error).__name__})
        return None
    return int(taken), int(left)


def _bucket() -> Any:
    global _script
    if _script is None:
        import redis  # imported late: only a process that serves the API needs it

        client = redis.Redis.from_url(settings.BROKER_URL, socket_timeout=0.2, socket_connect_timeout=0.2)
        _script = client.register_script(_TAKE)
    return _script


def forget() -> None:
    """A forked process must not share its parent's sockets; tests start fresh."""
    global _script, _quiet_until
    _script, _quiet_until = None, 0.0
    _portions.clear()


os.register_at_fork(after_in_child=forget)
