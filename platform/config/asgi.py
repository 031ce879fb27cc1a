"""The process for waits and streams: what holds a connection open without work to do."""

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.exception import convert_exception_to_response

django.setup(set_prefix=False)

from config.startup import refuse_unsafe_roles
from runs.api import content


class WaitsHandler(ASGIHandler):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # Django's own gives each request a thread for its signals and keeps it until the answer is over: one thread for each
        # open stream. Without that context all requests share one.
        if scope["type"] != "http":
            raise ValueError(f"only HTTP is served, not {scope['type']}")
        await self.handle(scope, receive, send)

    def load_middleware(self, is_async: bool = True) -> None:
        handler: Any = self
        handler._view_middleware = handler._template_response_middleware = handler._exception_middleware = []
        handler._middleware_chain = convert_exception_to_response(handler._get_response_async)

    def create_request(self, scope: Any, body_file: Any) -> Any:
        request, refusal = super().create_request(scope, body_file)
        if request is not None:
            request.urlconf = "config.waits_urls"
        return request, refusal


refuse_unsafe_roles()
waits = WaitsHandler()


async def application(scope: Any, receive: Any, send: Any) -> None:
    # Django takes a whole body before a view sees it: the bytes of artifacts do not pass through it.
    if scope["type"] == "http" and content.PATH.fullmatch(scope["path"]):
        await content.serve(scope, receive, send)
    else:
        await waits(scope, receive, send)
