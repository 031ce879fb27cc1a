"""Takes what a reader chose for the pages: theme, language, time zone, shortcuts. Open to people who are not signed in."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import check_for_language
from django.views.decorators.http import require_POST

from kernel.web import preferences


@require_POST
def choose(request: HttpRequest) -> HttpResponse:
    """Remember the choices that are in the form and go back to where it stood. Values that do not exist change nothing."""
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, allowed_hosts=None):
        target = "/"
    response = redirect(target)
    theme = request.POST.get("theme")
    if theme == "toggle":
        theme = "light" if preferences.read(request).theme == "dark" else "dark"
    if theme in {*preferences.THEMES, ""}:
        preferences.remember(response, preferences.THEME, theme)
    zone = request.POST.get("zone")
    if zone == "" or zone in preferences.zones():
        preferences.remember(response, preferences.ZONE, zone)
    keys = request.POST.get("keys")
    if keys in {"on", "off"}:
        preferences.remember(response, preferences.KEYS, "off" if keys == "off" else "")
    language = request.POST.get("language", "")
    if language in dict(settings.LANGUAGES) and check_for_language(language):
        preferences.remember(response, settings.LANGUAGE_COOKIE_NAME, language)
    return response
