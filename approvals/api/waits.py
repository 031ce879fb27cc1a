"""Waiting for a decision, in the process for waits. An idle wait holds no database connection and no thread."""

import asyncio
from typing import Any, Final
from uuid import UUID

import msgspec
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from approvals.api import wire
from approvals.operations.asking import waiting_hint
from approvals.queries import request as queries
from kernel import errors
from kernel.errors import Forbidden
from kernel.hints import Listener
from kernel.rest import requests
from kernel.rest.problems import MethodNotAllowed
from tenancy import auth
from tenancy.queries import Principal

_LOOK_AGAIN: Final = 2.0  # seconds; a hint may be lost, and a deadline has none
_SCOPES: Final = frozenset({"approvals:read", "effects:write"})

_listener = Listener()


@csrf_exempt
async def wait(request: HttpRequest, request_id: UUID) -> HttpResponse:
    """As in the web process, but waits up to `wait_seconds` for a status other than the one that is named."""
    try:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("Use GET.", headers={"Allow": "GET, HEAD"})
        query = requests.query(request, wire.WaitQuery)
        principal = await asyncio.to_thread(_principal, request.META.get("HTTP_AUTHORIZATION", ""))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.wait_seconds
        async with _listener.on(f"{waiting_hint(principal.tenant_id)}/{request_id}") as hint:
            while True:
                hint.clear()
                status, digest = await asyncio.to_thread(
                    queries.standing_now, tenant=principal.tenant_id, request_id=request_id, principal=principal
                )
                left = deadline - loop.time()
                if status != query.status or left <= 0:
                    body = msgspec.json.encode({"id": request_id, "status": status, "digest": digest})
                    headers = {"Cache-Control": "private, no-cache"}
                    return HttpResponse(body, content_type="application/json", headers=headers)
                try:
                    await asyncio.wait_for(hint.wait(), min(left, _LOOK_AGAIN))
                except TimeoutError:
                    continue
    except Exception as error:
        return errors.respond(error, instance=request.path)


def _principal(header: str) -> Principal:
    principal = auth.authenticate(header)
    if not _SCOPES & principal.actions:
        raise Forbidden("This needs the scope 'approvals:read'.", extra={"required": "approvals:read"})
    return principal


urlpatterns: list[Any] = [path("api/v1/approvals/requests/<uuid:request_id>/wait", wait)]
