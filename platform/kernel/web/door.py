"""Who looks at a tenant's pages. A port: the kernel knows no members, so tenancy installs the one function that does.

Invariant: somebody who is not a member learns nothing, not even that the tenant exists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.http import HttpRequest

from kernel.actor import Actor


@dataclass(frozen=True, slots=True)
class Place:
    """A tenant that the visitor may enter."""

    slug: str
    name: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Visitor:
    """A member in one of its tenants. `actions` answer for what it may do; `roles` are words to read."""

    tenant_id: UUID
    slug: str
    tenant_name: str
    member_id: UUID
    name: str
    roles: tuple[str, ...]
    actions: frozenset[str]
    places: tuple[Place, ...]

    @property
    def actor(self) -> Actor:
        return Actor(kind="member", id=self.member_id, label=self.name)

    def may(self, action: str) -> bool:
        return action in self.actions


Door = Callable[[HttpRequest, str], Visitor | None]
_door: Door | None = None


def install(door: Door) -> None:
    global _door
    _door = door


def enter(request: HttpRequest, slug: str) -> Visitor | None:
    """The signed-in user as a member of the tenant `slug`; None for a stranger and for a tenant that does not exist."""
    if _door is None:
        raise RuntimeError("no door is installed")
    return _door(request, slug)
