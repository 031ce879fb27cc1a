"""Errors that a caller can act on: one base with a stable code, made into RFC 9457 problems in one place.

Invariant: a code is of one class, thus has one status everywhere; no problem carries internals or a value that a client
sent; and what nobody foresaw becomes a problem too (500, with nothing but the request id).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson
import psycopg
from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import Error as DatabaseError
from django.http import Http404, HttpResponse

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/problem+json"

# What passes by itself: connection lost, out of resources, shutting down or cancelled, deadlock, lock timeout.
_PASSING: Final = ("08", "53", "57", "40", "55P03")


@dataclass(frozen=True, slots=True)
class FieldError:
    """One offending value. `path` is a JSON pointer (RFC 6901) into the body, or the name of a header or parameter."""

    path: str
    code: str
    message: str
    limit: int | float | str | None = None

    def as_dict(self) -> dict[str, Any]:
        member: dict[str, Any] = {"path": self.path, "code": self.code, "message": self.message}
        if self.limit is not None:
            member["limit"] = self.limit
        return member


CODES: Final[dict[str, "type[DomainError]"]] = {}


class DomainError(Exception):
    """What a caller did wrong or must know. Subclasses stand beside the code that raises them: code, status and title.

    `detail` says what happened here, `hint` what to do about it; `extra` are further members of the problem, `headers`
    go into the response.
    """

    code: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]

    def __init__(
        self,
        detail: str = "",
        *,
        hint: str | None = None,
        fields: tuple[FieldError, ...] = (),
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.hint = hint
        self.fields = fields
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        code = cls.__dict__.get("code")
        if code is not None:
            known = CODES.setdefault(code, cls)
            if known is not cls:
                raise TypeError(f"the code {code!r} is that of {known.__module__}.{known.__qualname__} already")


class Invalid(DomainError):
    """A value that cannot be accepted; `fields` name it."""

    code = "invalid"
    status = 422
    title = "Invalid value"


class Forbidden(DomainError):
    code = "forbidden"
    status = 403
    title = "Not permitted"


class NotFound(DomainError):
    """No such thing for this caller: absent, or another tenant's, and the answer does not tell which."""

    code = "not_found"
    status = 404
    title = "Not found"


class BadCall(DomainError):
    """The request itself, not a value in it, cannot be understood."""

    code = "bad_request"
    status = 400
    title = "Malformed request"


class IdempotencyKeyReused(DomainError):
    code = "idempotency_key_reused"
    status = 422
    title = "This Idempotency-Key was used for another request"


class TooLarge(DomainError):
    code = "body_too_large"
    status = 413
    title = "The body is too large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body may have at most {limit} bytes.", extra={"limit": limit})


class Unavailable(DomainError):
    """A part of the platform is away for a moment; nothing was changed, or the idempotency key will tell."""

    code = "unavailable"
    status = 503
    title = "Temporarily unavailable"

    def __init__(self) -> None:
        super().__init__(
            "A part of the platform cannot answer now.",
            hint="Repeat the request, with the same Idempotency-Key if it had one.",
            headers={"Retry-After": "1"},
        )


class Unexpected(DomainError):
    code = "internal_error"
    status = 500
    title = "Internal error"

    def __init__(self) -> None:
        super().__init__("Something failed on our side; it was logged under this request's id.")


ErrorFactory = Callable[[], DomainError]
_constraints: dict[str, ErrorFactory] = {}


def register_constraint(name: str, factory: ErrorFactory) -> None:
    """Say what the violation of a named database constraint means to a caller. An error class will do as factory."""
    if _constraints.setdefault(name, factory) is not factory:
        raise ValueError(f"the constraint {name!r} has a meaning already")


def translate(error: BaseException) -> DomainError | None:
    """The domain error of a violated constraint (Django's or psycopg's); None when no meaning was registered."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    name = cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None
    factory = _constraints.get(name or "")
    return factory() if factory else None


def from_exception(error: BaseException) -> DomainError:
    """Any exception as a domain error. What nobody foresaw is logged here, once, and becomes `Unexpected`."""
    match error:
        case DomainError():
            return error
        case Http404():
            return NotFound()
        case PermissionDenied():
            return Forbidden()
        case RequestDataTooBig():
            return TooLarge(settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0)
        case BadRequest() | SuspiciousOperation():
            return BadCall()
        case psycopg.Error() | DatabaseError():
            found = translate(error)
            if found is not None:
                return found
            cause = error if isinstance(error, psycopg.Error) else error.__cause__
            state = getattr(cause, "sqlstate", None)
            # Without a state it is the driver's own: no answer, or half of one.
            lost = state is None and isinstance(
                cause, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
            )
            if lost or (state is not None and state.startswith(_PASSING)):
                logger.warning("unavailable", exc_info=error)
                return Unavailable()
    logger.error("unexpected_error", exc_info=error)
    return Unexpected()


def problem(error: DomainError, *, instance: str | None = None) -> dict[str, Any]:
    """The members of the RFC 9457 problem. `instance` is the request's path or id."""
    members: dict[str, Any] = {
        "type": f"{settings.BASE_URL}/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.hint:
        members["hint"] = error.hint
    if instance:
        members["instance"] = instance
    if error.fields:
        members["errors"] = [field.as_dict() for field in error.fields]
    # The standard members win: an `extra` can add but never disguise.
    return {**error.extra, **members}


def respond(error: BaseException, *, instance: str | None = None) -> HttpResponse:
    """The problem response to any exception, for plain views and error handlers."""
    found = from_exception(error)
    body = orjson.dumps(problem(found, instance=instance), option=orjson.OPT_UTC_Z, default=str)
    return HttpResponse(body, status=found.status, content_type=CONTENT_TYPE, headers=found.headers)
