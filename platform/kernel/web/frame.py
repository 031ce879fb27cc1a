"""What the frame of every page needs: the visitor, the reader's choices, and the clock."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from kernel import clock
from kernel.web import preferences


def frame(request: HttpRequest) -> dict[str, Any]:
    return {
        "visitor": getattr(request, "visitor", None),
        "prefs": preferences.read(request),
        "now": clock.now(),
        # By their own names: who looks for a language may not read this one.
        "languages": settings.LANGUAGES,
    }
