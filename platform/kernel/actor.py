"""Who did it: the form in which a key, a member or the platform itself stands in events and in the audit log."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

ActorKind = Literal["key", "member", "system"]


@dataclass(frozen=True, slots=True)
class Actor:
    """`label` is what a person reads: a key's name, a member's name, or the part of the platform that acted."""

    kind: ActorKind
    id: UUID | None
    label: str


def system(part: str) -> Actor:
    return Actor(kind="system", id=None, label=part)
