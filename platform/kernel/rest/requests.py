"""Reading a request: its id, body, query and idempotency key. Everything odd is refused here, by name."""

import re
from typing import Any, Final, TypeVar

import msgspec
from django.http import HttpRequest

from kernel import ids, moments, typed
from kernel.errors import BadCall, DomainError, FieldError, Invalid, TooLarge

T = TypeVar("T")

MAX_KEY: Final = 255
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,64}")


class UnsupportedMediaType(DomainError):
    code = "unsupported_media_type"
    status = 415
    title = "Send application/json"


class IdempotencyKeyRequired(DomainError):
    code = "idempotency_key_required"
    status = 400
    title = "An Idempotency-Key header is required"


def request_id(request: HttpRequest) -> str:
    """The caller's X-Request-Id when it is a plain word, else a new one; the same for the whole request."""
    found: str | None = getattr(request, "_smriti_request_id", None)
    if found is None:
        sent = request.META.get("HTTP_X_REQUEST_ID", "")
        found = sent if _REQUEST_ID.fullmatch(sent) else str(ids.uuid7())
        request._smriti_request_id = found  # type: ignore[attr-defined]
    return found


def json_body(request: HttpRequest, *, max_bytes: int) -> bytes:
    """The bytes of a JSON body. Its size is judged by what is announced, before anything is read."""
    if (
        request.content_type != "application/json"
        or request.META.get("HTTP_CONTENT_ENCODING", "identity") != "identity"
    ):
        raise UnsupportedMediaType("The body is plain JSON: send Content-Type: application/json, without compression.")
    if (request.content_params or {}).get("charset", "utf-8").lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType("JSON is UTF-8: leave the charset out of the Content-Type.")
    try:
        announced = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError as error:
        raise BadCall("The Content-Length is not a number.") from error
    if announced > max_bytes:
        raise TooLarge(max_bytes)
    return request.body


def is_empty(request: HttpRequest) -> bool:
    """Whether no body was sent: none of any type, and not an empty one of some type."""
    return not request.content_type and request.META.get("CONTENT_LENGTH") in (None, "", "0")


def no_body(request: HttpRequest) -> None:
    """Refuse a body where none is read: who sends one expects something of it."""
    if request.META.get("CONTENT_LENGTH") not in (None, "", "0"):
        raise BadCall("This call takes no body.")


def query(request: HttpRequest, form: type[T]) -> T:
    """The query string as a `msgspec.Struct`. Unknown and repeated parameters are refused by name."""
    values: dict[str, Any] = {}
    for name, sent in request.GET.lists():
        if len(sent) > 1 and not _takes_many(form, name):
            raise _parameter(name, "repeated", "This parameter may stand once.")
        if any("\x00" in value for value in sent):
            raise _parameter(name, "nul_character", "A NUL character is not accepted.")
        values[name] = sent if _takes_many(form, name) else sent[0]
    try:
        return msgspec.convert(values, form, strict=False, dec_hook=moments.decode)
    except msgspec.ValidationError as error:
        raise typed.explain_parameter(error) from error


def idempotency_key(request: HttpRequest, *, required: bool) -> str | None:
    """The Idempotency-Key header: 1 to 255 printable ASCII characters."""
    key: str | None = request.META.get("HTTP_IDEMPOTENCY_KEY")
    if key is None and not required:
        return None
    if key is None or not 1 <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        message = f"Send an Idempotency-Key of 1 to {MAX_KEY} printable ASCII characters; repeat it with the request."
        raise IdempotencyKeyRequired(message, fields=(FieldError("Idempotency-Key", "invalid", message, MAX_KEY),))
    return key


def _takes_many(form: type[Any], name: str) -> bool:
    """Whether a query form declares the parameter as a list or tuple."""
    for field in msgspec.structs.fields(form):
        if field.encode_name == name:
            kind = msgspec.inspect.type_info(field.type)
            return isinstance(kind, msgspec.inspect.ListType | msgspec.inspect.VarTupleType)
    return False


def _parameter(name: str, code: str, message: str) -> Invalid:
    name = name[:120].replace("\x00", "\ufffd")
    return Invalid(f"{name}: {message}", fields=(FieldError(name, code, message),))
