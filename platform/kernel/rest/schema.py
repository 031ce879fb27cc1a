"""The OpenAPI 3.1 document: every route, its bodies, answers and problems, from what the server itself follows.

Types are `msgspec.Struct`s, whose JSON schema msgspec writes; drf-spectacular walks the routes. A plain view joins with
`describe`: it stays a function and is dispatched as one.
"""

import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.views import APIView

from kernel import moments
from kernel.errors import CODES, CONTENT_TYPE, DomainError
from kernel.rest.endpoints import Endpoint

View = TypeVar("View", bound=Callable[..., Any])

_REF: Final = "#/components/schemas/{name}"
_types: Final[set[Any]] = set()

# What every call can answer, by the parts of a request that it reads.
_ALWAYS: Final = ("unauthorized", "forbidden", "rate_limited", "tenant_busy", "internal_error", "unavailable")
_WITH_QUERY: Final = ("invalid",)
_WITH_ID: Final = ("not_found",)
_WITH_BODY: Final = (
    "empty_body", "invalid_encoding", "invalid_json", "body_too_large", "unsupported_media_type", "invalid",
    "duplicate_key", "integer_out_of_range", "number_not_finite", "nul_character", "lone_surrogate", "too_deep",
)  # fmt: skip
_WITH_KEY: Final = ("idempotency_key_required", "idempotency_key_reused", "idempotency_in_progress")
_WITH_CONDITION: Final = ("precondition_failed",)


class ProblemField(msgspec.Struct):
    """One offending value."""

    path: Annotated[str, msgspec.Meta(description="JSON pointer (RFC 6901) into the body, or the name of a parameter.")]
    code: str
    message: str
    limit: int | float | str | msgspec.UnsetType = msgspec.UNSET


class Problem(msgspec.Struct):
    """RFC 9457. `code` is stable; further members depend on it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | msgspec.UnsetType = msgspec.UNSET
    instance: str | msgspec.UnsetType = msgspec.UNSET
    errors: list[ProblemField] | msgspec.UnsetType = msgspec.UNSET


class BearerKey(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "tenancy.api.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer smr_…`."}


class Schema(AutoSchema):
    """Reads the Endpoint of the method; names operations after method and path."""

    view: Any

    @property
    def endpoint(self) -> Endpoint:
        found: Endpoint = getattr(self.view, self.method.lower()).endpoint
        return found

    def get_operation_id(self) -> str:
        words = re.findall(r"\w+", self.path.removeprefix("/api/v1/"))
        return "_".join([self.method.lower(), *words])

    def get_summary(self) -> str:
        return self.endpoint.summary

    def get_description(self) -> str:  # type: ignore[override]  # as AutoSchema itself does
        text = inspect.getdoc(getattr(self.view, self.method.lower())) or ""
        return f"{text}\n\nNeeds the scope `{self.endpoint.scope}`.".strip()

    def get_request_serializer(self) -> Any:
        body = self.endpoint.body
        return None if body is None else {"application/json": reference(body)}

    def _get_request_body(self, direction: Any = "request") -> Any:
        body: Any = super()._get_request_body(direction)  # type: ignore[no-untyped-call]
        return body and {**body, "x-optional-body": self.endpoint.optional}

    def get_response_serializers(self) -> Any:
        return _responses(self.endpoint, _problems(self.endpoint, has_id="{" in self.path))

    def get_override_parameters(self) -> list[Any]:
        return [*_query(self.endpoint), *_headers(self.endpoint)]

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False


def describe(method: str, spec: Endpoint) -> Callable[[View], View]:
    """Document a plain view, for the HTTP method that it serves."""

    def attach(view: View) -> View:
        def operation(self: APIView, request: Any, **kwargs: Any) -> None:
            raise NotImplementedError("only described here")

        operation.__doc__ = view.__doc__
        operation.endpoint = dataclasses.replace(spec, writes=method != "GET")  # type: ignore[attr-defined]
        known = getattr(view, "cls", APIView)
        view.cls = type(f"{view.__name__}_facade", (known,), {method.lower(): operation})  # type: ignore[attr-defined]
        view.initkwargs = {}  # type: ignore[attr-defined]
        view.initkwargs = {}  # type: ignore[attr-defined]  # the walker looks there for overrides
        return view

    return attach


def reference(kind: Any) -> dict[str, Any]:
    """A reference to the schema of a Struct, or the schema of any other type."""
    _types.add(kind)
    (found,), _ = msgspec.json.schema_components([kind], ref_template=_REF, schema_hook=moments.schema)
    return found


def finish(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Postprocessing hook: the schemas of all types, and what the walker cannot know."""
    _, components = msgspec.json.schema_components(
        sorted(_types, key=str), ref_template=_REF, schema_hook=moments.schema
    )
    result["components"].setdefault("schemas", {}).update(components)
    result["components"]["schemas"] = dict(sorted(result["components"]["schemas"].items()))
    for path in result["paths"].values():
        for operation in path.values():
            if "requestBody" in operation:
                operation["requestBody"]["required"] = not operation.pop("x-optional-body", False)
    return _ecma(result)  # type: ignore[no-any-return]


def _ecma(value: Any) -> Any:
    """Patterns as JSON Schema wants them: ECMAScript knows no `\\Z`, and its `$` does not allow a final newline."""
    if isinstance(value, dict):
        return {
            name: re.sub(r"\\Z$", "$", member) if name == "pattern" and isinstance(member, str) else _ecma(member)
            for name, member in value.items()
        }
    return [_ecma(member) for member in value] if isinstance(value, list) else value


def _query(spec: Endpoint) -> list[OpenApiParameter]:
    _, components = msgspec.json.schema_components([spec.query], ref_template=_REF, schema_hook=moments.schema)
    form = components[spec.query.__name__]
    required = form.get("required", [])
    return [
        OpenApiParameter(name, _plain(schema), OpenApiParameter.QUERY, required=name in required)
        for name, schema in form["properties"].items()
    ]


def _plain(schema: dict[str, Any]) -> Any:
    """A parameter that may be absent is not one that may be null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    plain = kinds[0] if len(kinds) == 1 else schema
    return {name: value for name, value in plain.items() if not (name == "default" and value is None)}


def _headers(spec: Endpoint) -> list[OpenApiParameter]:
    found = []
    if spec.writes:
        key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
        text = "A new one for each new request, repeated with it: the same key and body get the same answer."
        found.append(OpenApiParameter("Idempotency-Key", key, "header", required=spec.idempotent, description=text))
    if spec.conditional:
        name = "If-Match" if spec.writes else "If-None-Match"
        found.append(OpenApiParameter(name, {"type": "string"}, "header", description="The ETag of an earlier answer."))
        if not spec.writes:
            found.append(OpenApiParameter("ETag", {"type": "string"}, "header", response=[spec.status]))
    if spec.status == HTTPStatus.CREATED:
        found.append(OpenApiParameter("Location", {"type": "string"}, "header", response=[spec.status]))
    return found


def _responses(spec: Endpoint, problems: list[type[DomainError]]) -> Any:
    found: dict[Any, Any] = {}
    if spec.answer is None:
        found[spec.status] = OpenApiResponse(description="Done.")
    else:
        found[spec.status, spec.media] = OpenApiResponse(reference(spec.answer), description="")
    if spec.may_be_empty:
        found[204] = OpenApiResponse(description="There is nothing.")
    if spec.conditional and not spec.writes:
        found[304] = OpenApiResponse(description="Unchanged.")
    by_status: dict[int, list[type[DomainError]]] = defaultdict(list)
    for problem in problems:
        by_status[problem.status].append(problem)
    for status, group in sorted(by_status.items()):
        text = "\n".join(f"- `{problem.code}`: {problem.title}" for problem in group)
        found[status, CONTENT_TYPE] = OpenApiResponse(reference(Problem), description=text)
    return found


def _problems(spec: Endpoint, *, has_id: bool) -> list[type[DomainError]]:
    codes = [*_ALWAYS, *(_WITH_ID if has_id else ())]
    if msgspec.structs.fields(spec.query):
        codes += _WITH_QUERY
    if spec.body is not None:
        codes += _WITH_BODY
    if spec.writes:
        codes += _WITH_KEY
    if spec.conditional and spec.writes:
        codes += _WITH_CONDITION
    known = [CODES[code] for code in codes if code in CODES]
    return list(dict.fromkeys([*known, *spec.problems]))
