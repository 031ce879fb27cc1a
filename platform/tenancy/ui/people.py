"""A signed-in person's own pages: the way in, the tenants, the profile."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.cache import patch_cache_control

from kernel.web import preferences
from kernel.web.door import Place
from tenancy import queries
from tenancy.ui.door import role_words

LAST_TENANT = "smriti_tenant"


def _places(request: HttpRequest) -> list[Place]:
    assert request.user.is_authenticated
    return [Place(m.slug, m.name, role_words(m.roles)) for m in queries.memberships_of(request.user.id)]


def _page(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    response = render(request, template, context)
    patch_cache_control(response, private=True, no_cache=True)
    return response


@login_required
def home(request: HttpRequest) -> HttpResponse:
    """To the tenant of last time, or the only one; a person in several chooses."""
    places = {place.slug for place in _places(request)}
    last = request.COOKIES.get(LAST_TENANT, "")
    if last in places:
        return redirect("runs:list", last)
    return redirect("runs:list", places.pop()) if len(places) == 1 else redirect("tenancy:places")


@login_required
def places(request: HttpRequest) -> HttpResponse:
    return _page(request, "tenancy/places.html", {"section": "places", "places": _places(request)})


@login_required
def enter(request: HttpRequest, slug: str) -> HttpResponse:
    """Remember the tenant for next time. The page it leads to asks whether the person may enter."""
    response = redirect("runs:list", slug)
    preferences.remember(response, LAST_TENANT, slug)
    return response


@login_required
def profile(request: HttpRequest) -> HttpResponse:
    return _page(
        request,
        "tenancy/profile.html",
        {"section": "profile", "places": _places(request), "zones": sorted(preferences.zones())},
    )
