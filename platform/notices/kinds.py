"""The kinds of notices. Apps register theirs in `ready()`: `kinds.register(name, title, note)`.

Invariant: a kind is a dotted lower-case word of ours, so it may stand in clear.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext_lazy as _

from kernel.outbox.models import TOPIC

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

PING: Final = "webhook.ping"
DISABLED: Final = "webhook.disabled"


@dataclass(frozen=True, slots=True)
class Kind:
    """`title` and `note` are what people read. `mailed`: whether there is an e-mail to switch off; else only webhooks get it."""

    name: str
    title: "str | _StrPromise"
    note: "str | _StrPromise"
    mailed: bool


_kinds: dict[str, Kind] = {}


def register(name: str, title: "str | _StrPromise", note: "str | _StrPromise" = "", *, mailed: bool = True) -> None:
    """Say that there are notices of a kind. The same again changes nothing."""
    if not re.fullmatch(TOPIC, name):
        raise ValueError(f"{name!r} is no dotted lower-case word")
    kind = Kind(name, title, note, mailed)
    if _kinds.setdefault(name, kind) != kind:
        raise ValueError(f"there is another kind {name!r} already")


def get(name: str) -> Kind:
    """Raises KeyError for a kind that nobody registered."""
    return _kinds[name]


def known() -> list[Kind]:
    """All kinds, by name."""
    return [_kinds[name] for name in sorted(_kinds)]


def register_own() -> None:
    register(PING, _("Test of a webhook"), mailed=False)
    register(DISABLED, _("A webhook was switched off"), _("Its receiver is gone, or failed for days"))
