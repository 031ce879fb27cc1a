"""Liveness and readiness, for whoever supervises the processes. They hold no tenant's data and need no key."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import redis
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from kernel import pool


def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> JsonResponse:
    """The process can serve: both databases and the broker answer. 503 otherwise, naming what does not."""
    state = {name: _answers(check) for name, check in _CHECKS.items()}
    ready = all(state.values())
    return JsonResponse({"ready": ready, **state}, status=200 if ready else 503, headers={"Cache-Control": "no-store"})


def _answers(check: Callable[[], object]) -> bool:
    for _ in range(2):  # a server that was restarted leaves dead connections behind; the first try replaces them
        with suppress(Exception):  # whatever it is, the answer is no
            check()
            return True
    return False


def _broker() -> None:
    client = redis.Redis.from_url(settings.BROKER_URL, socket_timeout=1, socket_connect_timeout=1)
    try:
        client.ping()
    finally:
        client.close()


_CHECKS: Final[dict[str, Callable[[], object]]] = {
    "database": lambda: pool.one("select 1", ()),
    "vault": lambda: pool.one("select 1", (), alias="vault"),
    "broker": _broker,
}
