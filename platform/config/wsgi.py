"""The web process. The API has no sessions, cookies or forms, so it runs without the pages' middleware: a stolen cookie can
call nothing, and a commit pays for nothing it does not use.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django
from django.core.handlers.exception import convert_exception_to_response
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

django.setup(set_prefix=False)

from config.startup import refuse_unsafe_roles
from runs.api.urls import HOT

API = "/api/v1/"


class ApiHandler(WSGIHandler):
    """Django's handler without middleware."""

    def load_middleware(self, is_async: bool = False) -> None:
        handler: Any = self
        handler._view_middleware = handler._template_response_middleware = handler._exception_middleware = []
        handler._middleware_chain = convert_exception_to_response(handler._get_response)

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        return measured(super().get_response(request))


def measured(response: HttpResponseBase) -> HttpResponseBase:
    """A length lets the server send an answer whole, and the connection be kept."""
    if isinstance(response, HttpResponse) and "Content-Length" not in response:
        response["Content-Length"] = str(len(response.content))
    return response


refuse_unsafe_roles()
api, pages = ApiHandler(), WSGIHandler()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    path: str = environ["PATH_INFO"]
    if not path.startswith(API):
        return pages(environ, start_response)
    # The hot views use the pool of kernel.pool and no Django connection, so they need none of the signals that tidy those up.
    for route in HOT:
        match = route.resolve(path[len(API) :])
        if match is not None:
            response: HttpResponse = match.func(WSGIRequest(environ), **match.kwargs)
            measured(response)
            start_response(f"{response.status_code} {response.reason_phrase}", list(response.items()))
            return [response.content]
    return api(environ, start_response)
