"""The routes of queues."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from kernel.rest.views import ApiView, Context, endpoint
from runs import operations, queries
from runs.api.answers import Reason
from runs.operations.queues import EVERY_QUEUE


class QueueAnswer(Struct):
    """Counts stop at 10,000. `oldest_at`: since when the longest waiting step could be claimed."""

    name: str
    paused: bool
    max_leased: int | None
    rate_per_minute: float | None
    burst: float | None
    runnable: int
    leased: int
    oldest_at: Any


class QueuesAnswer(Struct):
    items: list[QueueAnswer]


class QueueIn(Struct, forbid_unknown_fields=True):
    """All limits of a queue; what is left out is not limited. `burst`: how many claims may come at once under a rate."""

    reason: Reason
    paused: bool = False
    max_leased: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rate_per_minute: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    burst: Annotated[float, Meta(ge=1, le=1_000_000)] | None = None


class QueuesView(ApiView):
    @endpoint(summary="List queues", scope="runs:read", answer=QueuesAnswer)
    def get(self, call: Context) -> Any:
        """By name, with what waits in them. `*` stands for all queues together."""
        return {"items": queries.list_queues(tenant=call.tenant)}

    @endpoint(summary="Pause or limit all queues together", scope="runs:operate", body=QueueIn, answer=None, status=204)
    def put(self, call: Context) -> None:
        """What the tenant's workers hold and take in all, whatever the queue. From the next claim on."""
        _set(call, EVERY_QUEUE)


class QueueView(ApiView):
    @endpoint(summary="Pause or limit a queue", scope="runs:operate", body=QueueIn, answer=None, status=204)
    def put(self, call: Context, queue: str) -> None:
        """From the next claim on; what is leased is left alone. A queue exists from its first step on."""
        _set(call, queue)


def _set(call: Context, name: str) -> None:
    wanted: QueueIn = call.body
    operations.set_queue(
        tenant=call.tenant, name=name, paused=wanted.paused, max_leased=wanted.max_leased,
        rate_per_minute=wanted.rate_per_minute, burst=wanted.burst, reason=wanted.reason, actor=call.actor, now=call.now,
    )  # fmt: skip
