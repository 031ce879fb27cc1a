"""Answers where no view was reached: problems under /api/, pages elsewhere."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from kernel.rest import problems
from kernel.web import errors as pages

Handler = Callable[..., HttpResponse]


def _by_path(api: Handler, page: Handler) -> Handler:
    def handle(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
        arguments = () if exception is None else (exception,)
        return (api if request.path.startswith("/api/") else page)(request, *arguments)

    return handle


bad_request = _by_path(problems.bad_request, pages.bad_request)
forbidden = _by_path(problems.forbidden, pages.forbidden)
not_found = _by_path(problems.not_found, pages.not_found)
server_error = _by_path(problems.server_error, pages.server_error)
