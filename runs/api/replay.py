"""Replaying a run over REST."""

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct

from kernel.rest.views import ApiView, Context, endpoint
from runs import queries
from runs.api.answers import Status


class ReplayQuery(Struct, forbid_unknown_fields=True):
    """`upto`: the last event to replay. `after`: steps to pass over, `next_after` of the page before. `state`: with the state."""

    upto: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None
    after: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    state: bool = True


class ReplayedStep(Struct):
    name: str
    status: str
    attempts: int
    epoch: int


class Difference(Struct):
    what: Literal["log", "run", "step", "state"]
    name: str
    replayed: str
    stored: str


class ReplayAnswer(Struct):
    """The run after event `upto`, by its log and checkpoints alone. `differences` from what is stored, at the end of the log."""

    upto: int
    last_seq: int
    run_status: Status
    steps_total: int
    steps: list[ReplayedStep]
    next_after: int | None
    state_version: int
    state: dict[str, Any] | None
    differences: list[Difference]


class ReplayView(ApiView):
    @endpoint(summary="Replay a run's log", scope="runs:read", query=ReplayQuery, answer=ReplayAnswer)
    def get(self, call: Context, run_id: UUID) -> Any:
        """Recompute steps and state at any event, and compare them with what is stored. It performs nothing."""
        queries.require_visible(principal=call.principal, run_id=run_id)
        query: ReplayQuery = call.query
        found = queries.replay(
            tenant=call.tenant,
            run_id=run_id,
            upto=query.upto,
            after=query.after,
            limit=query.limit,
            with_state=query.state,
        )
        return {
            "upto": found.upto, "last_seq": found.last_seq, "run_status": found.run_status,
            "steps_total": found.steps_total, "steps": found.steps, "next_after": found.next_after,
            "state_version": found.state_version, "state": None if found.state is None else Raw(found.state),
            "differences": found.differences,
        }  # fmt: skip
