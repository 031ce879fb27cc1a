"""Claims that wait for work, in the process for waits and streams. An idle wait holds no database connection and no thread."""

import asyncio
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from kernel import codec, errors
from kernel.hints import Listener
from kernel.rest import requests
from kernel.rest.problems import MethodNotAllowed
from runs import operations
from runs.api import hot
from runs.operations.lease import work_hint
from runs.wire import ClaimIn
from tenancy import auth
from tenancy import queries as tenancy
from tenancy.queries import Principal

# A retry falls due without a hint, and a hint may be lost: a waiter looks again after this many seconds at the latest.
_LOOK_AGAIN: Final = 2.0
_SMALL_BODY: Final = 16 * 1024

_listener = Listener()


@csrf_exempt
async def claim(request: HttpRequest) -> HttpResponse:
    """As the claim of the web process, but waits up to `wait_seconds` for work."""
    try:
        if request.method != "POST":
            raise MethodNotAllowed("Use POST.", headers={"Allow": "POST"})
        body = requests.json_body(request, max_bytes=_SMALL_BODY)
        principal = await asyncio.to_thread(_principal, request.META.get("HTTP_AUTHORIZATION", ""))
        wanted = codec.decode_as(body, ClaimIn, max_bytes=_SMALL_BODY)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wanted.wait_seconds
        async with _listener.on(work_hint(principal.tenant_id)) as hint:
            while True:
                hint.clear()
                work = await asyncio.to_thread(
                    operations.claim, tenant=principal.tenant_id, principal=principal, request=wanted
                )
                left = deadline - loop.time()
                if work is not None or left <= 0:
                    return hot.work_answer(work)
                try:
                    await asyncio.wait_for(hint.wait(), min(left, _LOOK_AGAIN))
                except TimeoutError:
                    continue
    except Exception as error:
        return errors.respond(error, instance=request.path)


def _principal(header: str) -> Principal:
    principal = auth.authenticate(header)
    tenancy.require(principal, "work:claim")
    return principal


urlpatterns = [path("api/v1/work/claim", claim)]
