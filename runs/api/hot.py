"""The hot paths: plain views with typed decoding and one database call. DRF serves the rest.

Each translates in, makes one domain call and translates out.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from kernel import clock, codec, errors
from kernel.errors import BadCall, DomainError, FieldError, NotFound
from runs import operations, queries
from runs.wire import ClaimIn, CommitIn, HeartbeatIn, RunIn
from tenancy import auth
from tenancy import queries as tenancy
from tenancy.queries import Principal

MAX_KEY: Final = 255
MAX_PAGE: Final = 1000
_SMALL_BODY: Final = 16 * 1024
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

View = Callable[..., HttpResponseBase]


class UnsupportedMediaType(DomainError):
    code = "unsupported_media_type"
    status = 415
    title = "Send application/json"


class IdempotencyKeyMissing(DomainError):
    code = "idempotency_key_required"
    status = 400
    title = "An Idempotency-Key header is required"


class MethodNotAllowed(DomainError):
    code = "method_not_allowed"
    status = 405
    title = "Method not allowed"


def hot(method: str, action: str) -> Callable[[View], View]:
    """A view for one method and one scope, given the principal. Every exception becomes a problem."""

    def decorate(view: View) -> View:
        @csrf_exempt
        def wrapped(request: HttpRequest, **kwargs: UUID) -> HttpResponseBase:
            try:
                if request.method != method:
                    raise MethodNotAllowed(f"Use {method}.", headers={"Allow": method})
                principal = auth.authenticate(request.META.get("HTTP_AUTHORIZATION", ""))
                tenancy.require(principal, action)
                return view(request, principal, **kwargs)
            except auth.Unauthorized as error:
                auth.forget(request.META.get("HTTP_AUTHORIZATION", ""))
                return errors.respond(error, instance=request.path)
            except Exception as error:
                return errors.respond(error, instance=request.path)

        return wrapped

    return decorate


@hot("POST", "runs:write")
def create(request: HttpRequest, principal: Principal) -> HttpResponse:
    key, body = _idempotency_key(request), _body(request, settings.REQUEST_BODY_LIMIT)
    created = operations.create_run(
        tenant=principal.tenant_id, principal=principal,
        request=codec.decode_as(body, RunIn, max_bytes=settings.REQUEST_BODY_LIMIT), body=body, idempotency_key=key,
        now=clock.now(),
    )  # fmt: skip
    response = _json({"id": created.run_id}, status=201)
    response["Location"] = f"/api/v1/runs/{created.run_id}"
    return response


@hot("POST", "runs:write")
def commit(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    key, body = _idempotency_key(request), _body(request, settings.REQUEST_BODY_LIMIT)
    done = operations.commit(
        tenant=principal.tenant_id, principal=principal, run_id=run_id,
        request=codec.decode_as(body, CommitIn, max_bytes=settings.REQUEST_BODY_LIMIT), body=body, idempotency_key=key,
    )  # fmt: skip
    return _json(
        {
            "first_seq": done.first_seq, "last_seq": done.last_seq, "digest": done.digest.hex(), "head": done.head,
            "run_status": done.run_status, "runnable": done.runnable,
        }
    )  # fmt: skip


@hot("POST", "work:claim")
def claim(request: HttpRequest, principal: Principal) -> HttpResponse:
    body = _body(request, _SMALL_BODY)
    work = operations.claim(
        tenant=principal.tenant_id, principal=principal, request=codec.decode_as(body, ClaimIn, max_bytes=_SMALL_BODY)
    )
    if work is None:
        return HttpResponse(status=204)
    return _json(
        {
            "lease": work.lease, "epoch": work.epoch, "expires_at": work.expires_at,
            "step": {"name": work.step, "attempt": work.attempt, "max_attempts": work.max_attempts},
            "run": {
                "id": work.run_id, "workflow": work.workflow, "workflow_version": work.workflow_version,
                "agent_version": work.agent_version, "head": work.head, "last_seq": work.last_seq,
                **{name: orjson.Fragment(bytes(value)) for name, value in _members.decode(work.creation).items() if name != "steps"},
            },
            "resumed": work.attempt > 1,
        }
    )  # fmt: skip


@hot("POST", "work:claim")
def heartbeat(request: HttpRequest, principal: Principal, lease: UUID) -> HttpResponse:
    body = _body(request, _SMALL_BODY)
    expires_at: datetime = operations.heartbeat(
        tenant=principal.tenant_id, principal=principal, lease=lease,
        request=codec.decode_as(body, HeartbeatIn, max_bytes=_SMALL_BODY),
    )  # fmt: skip
    return _json({"expires_at": expires_at})


@hot("GET", "runs:read")
def events(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    page = queries.events_for_key(
        tenant=principal.tenant_id, principal=principal, run_id=run_id, after=_number(request, "after", 0, 0, 2**53),
        limit=_number(request, "limit", 100, 1, MAX_PAGE),
    )  # fmt: skip
    return _json({"items": [event.as_json() for event in page.rows], "last_seq": page.last_seq, "next_after": page.next_after})


@hot("GET", "runs:read")
def latest_checkpoint(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    view = queries.latest_checkpoint(tenant=principal.tenant_id, principal=principal, run_id=run_id)
    if not view.version:
        raise NotFound("This run has no checkpoint yet.")
    etag = f'"{view.version}"'
    if request.META.get("HTTP_IF_NONE_MATCH") == etag:
        return HttpResponse(status=304, headers={"ETag": etag})
    response = _json(
        {
            "version": view.version, "seq": view.seq, "recorded_at": view.recorded_at, "head": view.head,
            "last_seq": view.last_seq, "skipped": view.skipped, "state": orjson.Fragment(view.state),
        }
    )  # fmt: skip
    response["ETag"] = etag
    return response


def _json(value: object, status: int = 200) -> HttpResponse:
    return HttpResponse(codec.dumps(value), content_type="application/json", status=status)


def _body(request: HttpRequest, limit: int) -> bytes:
    if request.content_type != "application/json":
        raise UnsupportedMediaType("The body is JSON: send Content-Type: application/json.")
    try:
        announced = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError as error:
        raise BadCall("The Content-Length is not a number.") from error
    if announced > limit:
        raise errors.TooLarge(limit)
    return request.body


def _idempotency_key(request: HttpRequest) -> str:
    key: str = request.META.get("HTTP_IDEMPOTENCY_KEY", "")
    if not 1 <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        message = f"Send an Idempotency-Key of 1 to {MAX_KEY} printable ASCII characters; repeat it when you repeat the request."
        raise IdempotencyKeyMissing(message, fields=(FieldError("Idempotency-Key", "invalid", message, MAX_KEY),))
    return key


def _number(request: HttpRequest, name: str, default: int, least: int, most: int) -> int:
    text = request.GET.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 17 and least <= int(text) <= most):
        message = f"{name} is a whole number from {least} to {most}."
        raise errors.Invalid(message, fields=(FieldError(name, "out_of_range", message, most),))
    return int(text)
