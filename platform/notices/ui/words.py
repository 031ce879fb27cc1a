"""States of endpoints and deliveries, and what went wrong, in words."""

from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

REASONS: Final[dict[str, str | Promise]] = {
    "gone": _("Its receiver answered 410 Gone: it wants no more requests."),
    "failing": _("No request got through for days."),
    "by_hand": _("Somebody switched it off."),
}
# How the states of deliveries look (kernel.web.states) and read.
STATES: Final[dict[str, tuple[str, str | Promise]]] = {
    "pending": ("pending", _("On its way")),
    "delivered": ("succeeded", _("Delivered")),
    "dead": ("failed", _("Given up")),
    "skipped": ("skipped", _("Skipped")),
}
_ERRORS: Final[dict[str, str | Promise]] = {
    "address_refused": _("leads to a private network"),
    "port_refused": _("a port that may not be used"),
    "invalid_url": _("no web address"),
    "dns": _("the name is not known"),
    "timeout": _("no answer in time"),
    "tls": _("its certificate is not trusted"),
    "not_connected": _("nobody listens there"),
    "connection_lost": _("the connection broke off"),
}


def error_words(error: str | None) -> str:
    """The word of the last attempt, for people."""
    if error is None:
        return ""
    if error.startswith("http_"):
        status = error.removeprefix("http_")
        if status.startswith("3"):
            return gettext("answered %(status)s: redirects are not followed") % {"status": status}
        return gettext("answered %(status)s") % {"status": status}
    return str(_ERRORS.get(error, error.replace("_", " ")))
