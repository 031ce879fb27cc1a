"""What a reader chose for the pages: theme, time zone, keyboard shortcuts. Cookies, so that the sign-in page has them too.

They decide how a page looks, never what it may show, and every value is checked before it is used.
"""

import functools
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

THEME: Final = "smriti_theme"
ZONE: Final = "smriti_zone"
# Written by the browser: the zone of its clock. A chosen zone wins over it.
BROWSER_ZONE: Final = "smriti_browser_zone"
KEYS: Final = "smriti_keys"
THEMES: Final = ("light", "dark")
YEAR: Final = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Preferences:
    theme: str
    chosen_zone: str
    browser_zone: str
    keys: bool

    @property
    def zone(self) -> tzinfo:
        return zoneinfo.ZoneInfo(self.chosen_zone or self.browser_zone or "UTC")


@functools.cache
def zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def read(request: HttpRequest) -> Preferences:
    def zone(cookie: str) -> str:
        name = request.COOKIES.get(cookie, "").replace("%2F", "/")
        return name if name in zones() else ""

    theme = request.COOKIES.get(THEME, "")
    return Preferences(
        theme=theme if theme in THEMES else "",
        chosen_zone=zone(ZONE),
        browser_zone=zone(BROWSER_ZONE),
        keys=request.COOKIES.get(KEYS) != "off",
    )


def remember(response: HttpResponse, cookie: str, value: str) -> None:
    """Keep a choice for a year; an empty one is forgotten. Scripts of our own pages may read it: it is no secret."""
    if value:
        response.set_cookie(cookie, value, max_age=YEAR, samesite="Lax", secure=settings.SECURE)
    else:
        response.delete_cookie(cookie, samesite="Lax")


class ZoneMiddleware:
    """Renders every page in the reader's time zone."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with timezone.override(read(request).zone):
            return self.get_response(request)
