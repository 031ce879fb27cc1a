"""The published OpenAPI document and a page to read and try it. Both are public: they hold no tenant's data."""

from functools import cache
from typing import Any, Final

import orjson
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.cache import patch_cache_control
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

# Swagger UI writes style attributes; this is the one page of the platform that may. It runs no inline script.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def document() -> bytes:
    """The OpenAPI document of all routes. They do not change while a process lives."""
    generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]
    return orjson.dumps(generator.get_schema(request=None, public=True), default=str)


class SchemaView(APIView):
    authentication_classes = []
    schema = None

    def get(self, request: Request) -> HttpResponse:
        response = HttpResponse(document(), content_type="application/json")
        patch_cache_control(response, public=True, max_age=60)
        return response


class DocsView(SpectacularSwaggerSplitView):
    authentication_classes = []
    title = "Smriti API"
    schema = None

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        response: Response = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
        response["Content-Security-Policy"] = _POLICY
        response["X-Content-Type-Options"] = "nosniff"
        response["Referrer-Policy"] = "same-origin"
        return response

    def _get_schema_url(self, request: HttpRequest) -> str:
        return reverse("openapi")
