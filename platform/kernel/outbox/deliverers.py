"""What delivers the messages of each topic, and what it answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Message:
    """`id` stays the same however often the message is sent: receivers drop duplicates by it.

    `attempt` counts from 1, anew after an operator's retry. A deliverer gives up at `deadline` (time.monotonic); until then no
    other process has the message.
    """

    tenant: UUID
    id: UUID
    topic: str
    ordering: UUID | None
    dedup: str
    attempt: int
    created_at: datetime
    body: bytes
    deadline: float

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now. `reason`: a lower-case word of ours, stored in clear. `after`: the seconds that the receiver asked for."""

    reason: str
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Dead:
    """Never, as it is: an operator decides."""

    reason: str


Outcome = Delivered | Retry | Dead
Deliver = Callable[[Message], Outcome]

_deliverers: dict[str, Deliver] = {}


def register(topic: str, deliver: Deliver) -> None:
    """Say how messages of `topic` are delivered. `deliver` holds no transaction; what it raises counts as `Retry`."""
    if _deliverers.setdefault(topic, deliver) is not deliver:
        raise ValueError(f"the topic {topic!r} has a deliverer already")


def deliverer(topic: str) -> Deliver:
    return _deliverers[topic]


def topics() -> list[str]:
    """The topics that this process can deliver; others wait for a process that can."""
    return sorted(_deliverers)
