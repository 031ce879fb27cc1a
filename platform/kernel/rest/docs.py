"""The published OpenAPI document and a page to read and try it. Both are public: they hold no tenant's data."""

from functools import cache
from typing import Any, Final

import orjson
from django.http import HttpRequest, HttpResponse
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator

# Swagger UI writes style attributes; this is the one page of the platform that may. It runs no inline script.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Smriti API</title>
<link rel="icon" href="{icon}">
<link rel="stylesheet" href="{style}">
</head>
<body>
<div id="swagger-ui" data-document="{document}"></div>
<script src="{bundle}"></script>
<script src="{start}"></script>
</body>
</html>
"""


@cache
def document() -> bytes:
    """The OpenAPI document of all routes. They do not change while a process lives."""
    generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]
    return orjson.dumps(generator.get_schema(request=None, public=True), default=str)


@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    return HttpResponse(document(), content_type="application/json", headers={"Cache-Control": "public, max-age=60"})


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    vendor = "drf_spectacular_sidecar/swagger-ui-dist/"
    html = format_html(
        _PAGE,
        icon=static("ui/favicon.svg"),
        style=static(vendor + "swagger-ui.css"),
        bundle=static(vendor + "swagger-ui-bundle.js"),
        start=static("ui/js/api-docs.js"),
        document=reverse("openapi"),
    )
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
    return HttpResponse(html, headers=headers)
