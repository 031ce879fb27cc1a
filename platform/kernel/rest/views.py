"""The base of the REST views that are not hot: translate in, ONE domain call, translate out.

`endpoint` declares a method once, and both the server and the OpenAPI document follow it: scope, typed body and query,
answer, problems. Around the method stand authentication, the scope check, the rate limit, the tenant's transaction, the
idempotency key and conditions.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

import msgspec
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from kernel import clock, codec, errors, fairness
from kernel.actor import Actor
from kernel.context import tenant_scope
from kernel.errors import Forbidden
from kernel.logging import bound
from kernel.rest import conditions, idempotency, problems, ratelimit, requests
from kernel.rest.endpoints import Endpoint
from kernel.rest.idempotency import Answer, Call

Method = TypeVar("Method", bound=Callable[..., Any])


class Caller(Protocol):
    """What the views need of a principal."""

    @property
    def id(self) -> UUID: ...
    @property
    def tenant_id(self) -> UUID: ...
    @property
    def actions(self) -> frozenset[str]: ...
    @property
    def actor(self) -> Actor: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What a method is called with. `body` and `query` have the declared types; `now` is the time of the request."""

    principal: Any
    tenant: UUID
    actor: Actor
    now: Any
    body: Any
    query: Any
    request: HttpRequest

    def require_match(self, current: Callable[[], object]) -> None:
        """Refuse the write when `If-Match` names something else than `current`, the answer that a reader gets."""
        if "HTTP_IF_MATCH" in self.request.META:
            conditions.require_match(self.request, msgspec.json.encode(current()))


class Created(msgspec.Struct):
    """An answer with a Location."""

    value: Any
    location: str


def endpoint(**declared: Any) -> Callable[[Method], Method]:
    """Declare a method of an ApiView: the members of `Endpoint`. The method takes a Context and the URL's arguments."""

    def declare(method: Method) -> Method:
        method.endpoint = Endpoint(writes=method.__name__ != "get", **declared)  # type: ignore[attr-defined]
        return method

    return declare


class ApiView(APIView):
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.headers = {"X-Request-Id": requests.request_id(request)}
        with bound(request_id=self.headers["X-Request-Id"]):
            try:
                response: HttpResponseBase = self._serve(request, kwargs)
            except Exception as error:
                response = errors.respond(problems.from_framework(error), instance=request.path)
        for name, value in self.headers.items():
            response[name] = value
        return response

    def _serve(self, request: HttpRequest, arguments: dict[str, Any]) -> HttpResponse:
        """Find the method, authenticate, meter, authorise, answer."""
        method = getattr(self, (request.method or "").lower(), None)
        spec: Endpoint | None = getattr(method, "endpoint", None)
        if spec is None or method is None:
            allowed = ", ".join(sorted(name.upper() for name in self.http_method_names if hasattr(self, name)))
            raise problems.MethodNotAllowed(f"Use {allowed}.", headers={"Allow": allowed})
        principal = cast(Caller, Request(request, authenticators=self.get_authenticators()).user)
        self.headers |= ratelimit.take(principal.id)
        if not {spec.scope, spec.or_scope} & principal.actions:
            raise Forbidden(f"This needs the scope {spec.scope!r}.", extra={"required": spec.scope})
        raw = b""
        if spec.body is not None:
            left_out = spec.optional and requests.is_empty(request)
            raw = b"{}" if left_out else requests.json_body(request, max_bytes=spec.max_bytes)
        elif spec.writes:
            requests.no_body(request)
        context = Context(
            principal=principal,
            tenant=principal.tenant_id,
            actor=principal.actor,
            now=clock.now(),
            body=None if spec.body is None else codec.decode_as(raw, spec.body, max_bytes=spec.max_bytes),
            query=requests.query(request, spec.query),
            request=request,
        )
        with fairness.turn(context.tenant):
            answer = _run(spec, context, raw, lambda: _render(spec, method(context, **arguments)))
        return _respond(request, answer, tagged=spec.conditional)


def _run(spec: Endpoint, context: Context, raw: bytes, run: Callable[[], Answer]) -> Answer:
    """The method in the tenant's transaction, once for each idempotency key."""
    request, tenant = context.request, context.tenant
    key = requests.idempotency_key(request, required=spec.idempotent) if spec.writes else None
    with tenant_scope(tenant):
        if spec.writes:
            conditions.lock(request, tenant)
        if key is None:
            return run()
        call = Call(tenant, context.principal.id, key, request.method or "", request.get_full_path(), raw)
        return idempotency.once(call, run, now=context.now, secrets=spec.secrets)


def _render(spec: Endpoint, value: Any) -> Answer:
    location = None
    if isinstance(value, Created):
        value, location = value.value, value.location
    return Answer(spec.status, b"" if spec.answer is None else msgspec.json.encode(value), location)


def _respond(request: HttpRequest, answer: Answer, *, tagged: bool) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status, content_type="application/json" if answer.body else None)
    if not answer.body:
        del response["Content-Type"]
    if answer.location:
        response["Location"] = answer.location
    if answer.replayed:
        response["Idempotency-Replayed"] = "true"
    # What is behind a key is for its holder only.
    response["Cache-Control"] = "private, no-cache"
    return conditions.tagged(request, response) if tagged else response
