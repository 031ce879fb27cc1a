"""Errors as pages. The same domain errors that the API gives as problems, in words, with a way on."""

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template import loader
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kernel import errors
from kernel.errors import Forbidden, NotFound

# What a person reads instead of the API's words, by status.
_WORDS: Final[dict[int, tuple[str | Promise, str | Promise]]] = {
    400: (_("This request cannot be understood"), _("Go back and try again from the page.")),
    403: (_("You may not do this here"), ""),
    404: (_("There is nothing here"), _("It does not exist, or it is not in a tenant that you may enter.")),
    503: (_("Temporarily unavailable"), _("A part of the platform cannot answer now. Nothing was changed.")),
    500: (_("Something failed on our side"), _("It was logged. Nothing you sent is lost by trying again.")),
}


def page(request: HttpRequest, error: BaseException) -> HttpResponse:
    """The page of any exception; `from_exception` logs what nobody foresaw."""
    found = errors.from_exception(error)
    title, fallback = _WORDS.get(found.status, (found.title, ""))
    detail = fallback if found.status in {404, 500, 503} or found.detail == found.title else found.detail
    context = {"status_code": found.status, "title": title, "detail": detail, "hint": found.hint}
    if request.headers.get("X-Live"):
        # A page that looks for news keeps what it shows.
        return HttpResponse(status=found.status, headers={"HX-Reswap": "none"})
    if request.headers.get("HX-Request"):
        return render(request, "errors/fragment.html", context, status=found.status)
    if found.status >= 500:
        # Without the page's frame: whatever failed may be what the frame needs.
        return HttpResponse(
            loader.render_to_string("errors/plain.html", context), status=found.status, headers=found.headers
        )
    return render(request, "errors/page.html", context, status=found.status)


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return page(request, errors.BadCall())


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return page(request, Forbidden(str(_("You need another role for this."))))


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return page(request, NotFound())


def server_error(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        loader.render_to_string(
            "errors/plain.html", {"status_code": 500, "title": _WORDS[500][0], "detail": _WORDS[500][1]}
        ),
        status=500,
    )


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    context = {
        "status_code": 403,
        "title": _("This form is no longer valid"),
        "detail": _(
            "It was open for too long, or cookies are off. Nothing was changed. Reload the page and send it again."
        ),
        "hint": None,
    }
    return render(request, "errors/page.html", context, status=403)
