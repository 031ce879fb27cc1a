"""What the framework raises, as domain errors; and the API's answers where no view was reached."""

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import APIException

from kernel import errors
from kernel.errors import BadCall, DomainError, Forbidden, Invalid, NotFound, Unavailable
from kernel.rest.requests import UnsupportedMediaType


class MethodNotAllowed(DomainError):
    code = "method_not_allowed"
    status = 405
    title = "Method not allowed"


class NotAcceptable(DomainError):
    code = "not_acceptable"
    status = 406
    title = "Only JSON is served"


_BY_STATUS: Final[dict[int, type[DomainError]]] = {
    400: BadCall,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    406: NotAcceptable,
    415: UnsupportedMediaType,
    422: Invalid,
}


def from_framework(error: BaseException) -> BaseException:
    """An exception of the REST framework as a domain error; any other as it is."""
    if isinstance(error, APIException):
        kind = _BY_STATUS.get(error.status_code)
        if kind is not None:
            return kind()
        return Unavailable() if error.status_code == 503 else error
    return error


def exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """For REST_FRAMEWORK["EXCEPTION_HANDLER"]: views of others, such as the schema's, answer with problems too."""
    request = context.get("request")
    return errors.respond(from_framework(error), instance=getattr(request, "path", None))


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return errors.respond(BadCall(), instance=request.path)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return errors.respond(Forbidden(), instance=request.path)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return errors.respond(NotFound(), instance=request.path)


def server_error(request: HttpRequest) -> HttpResponse:
    return errors.respond(errors.Unexpected(), instance=request.path)
