"""What the routes of runs answer, and the query strings they read, for the server and the OpenAPI document."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from kernel.moments import Moment
from runs.states import RUN_MOVES
from runs.wire import Identifier

Status = Literal["pending", "running", "waiting", "completed", "failed", "cancelled", "dead_letter"]
assert set(RUN_MOVES) == set(Status.__args__)  # type: ignore[attr-defined]


class EventsQuery(Struct, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class RunsQuery(Struct, forbid_unknown_fields=True):
    """`status` may stand several times. `cursor`: `next_cursor` of the page before."""

    status: list[Status] = []
    workflow: str | None = None
    agent: str | None = None
    project: str | None = None
    created_from: Moment | None = None
    created_to: Moment | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class RunCreated(Struct):
    id: UUID


class CommitAnswer(Struct):
    """`digest` ends the run's chain; `head` is what the next change of the state presents; `runnable` names steps set free."""

    first_seq: int
    last_seq: int
    digest: str
    head: int
    run_status: Status
    runnable: list[str]


class WorkStep(Struct):
    name: str
    attempt: int
    max_attempts: int


class WorkRun(Struct):
    id: UUID
    workflow: str
    workflow_version: str
    agent_version: str
    head: int
    last_seq: int
    input: Any = UNSET
    correlation_id: str | UnsetType = UNSET
    task_id: str | UnsetType = UNSET


class Wake(Struct):
    """Why a step goes on after a wait or a loss; `payload` is that of the signal."""

    reason: Literal["timer", "signal", "child", "timeout", "gate", "reconciled", "retry", "lease_lost", "operator"]
    payload: Any = UNSET


class Work(Struct):
    """A step under lease. Every write of it carries `lease` and `epoch`. `resumed`: it was held before.

    `compensates`: the effect that the step is there to undo.
    """

    lease: UUID
    epoch: int
    expires_at: datetime
    step: WorkStep
    run: WorkRun
    resumed: bool
    wake: Wake | None
    compensates: UUID | None


class Heartbeat(Struct):
    """`cancel_requested`: bring what is under way to an end before `cancel_at`; then the lease is taken."""

    expires_at: datetime
    cancel_requested: bool
    cancel_at: datetime | None


class EventAnswer(Struct):
    """`input`, `output` and `payload` are what was sent, to the letter. `readable` is false where stored bytes do not open."""

    seq: int
    type: str
    schema_version: int
    actor_kind: Literal["key", "member", "system"]
    actor_id: UUID | None
    step: str | None
    step_id: UUID | None
    lease: UUID | None
    occurred_at: datetime | None
    recorded_at: datetime
    labels: dict[str, str]
    readable: bool
    payload_commitment: str | None
    prev_digest: str
    digest: str
    input: Any = UNSET
    output: Any = UNSET
    payload: Any = UNSET


class EventsAnswer(Struct):
    items: list[EventAnswer]
    last_seq: int
    next_after: int | None


class CheckpointAnswer(Struct):
    """`skipped`: newer versions that do not open or build on what is gone; `missing`: sequence numbers of those that are gone."""

    version: int
    seq: int
    recorded_at: datetime | None
    head: int
    last_seq: int
    skipped: list[int]
    missing: list[int]
    state: dict[str, Any]


class StepAnswer(Struct):
    name: str
    status: str
    depends_on: list[str]
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    due_at: datetime | None
    wait: str | None
    started_at: datetime | None
    ended_at: datetime | None


class AttemptAnswer(Struct):
    """`outcome` is null while the worker holds the lease."""

    lease: UUID
    step: str
    number: int
    epoch: int
    worker: str
    claimed_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    outcome: str | None


class WaitAnswer(Struct):
    reason: str
    step: str | None
    detail: str
    since: datetime
    next: str


class RunSummary(Struct):
    id: UUID
    project: str
    workflow: str
    workflow_version: str
    agent: str | None
    agent_version: str
    status: Status
    waiting_for: str | None
    current_step: str | None
    steps_total: int
    steps_done: int
    attempts: int
    lost_attempts: int
    last_seq: int
    head: int
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    completed_at: datetime | None


class RunsAnswer(Struct):
    """`total` counts all runs of the filter, up to 10,000 (then `total_capped`)."""

    items: list[RunSummary]
    next_cursor: str | None
    total: int
    total_capped: bool


class RunAnswer(Struct):
    """`wait` says why the run does not go on by itself; null while it works or when it is over."""

    run: RunSummary
    steps: list[StepAnswer]
    attempts: list[AttemptAnswer]
    wait: WaitAnswer | None


Reason = Annotated[str, Meta(min_length=1, max_length=2000)]
Action = Literal["retry", "resume", "compensate", "skip", "cancel"]


class CancelIn(Struct, forbid_unknown_fields=True):
    """`grace_seconds`: how long workers that hold a lease may go on."""

    reason: Reason
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0


class RecoverIn(Struct, forbid_unknown_fields=True):
    """`step`: the one that stopped, when it is not all of them."""

    action: Action
    reason: Reason
    step: Identifier | None = None


class RecoverAnswer(Struct):
    run_status: Status


class RecoverManyIn(Struct, forbid_unknown_fields=True):
    """The oldest runs in the dead letter that match, at most `limit`; with `after`, of those younger than that run."""

    action: Action
    reason: Reason
    workflow: Identifier | None = None
    agent: Identifier | None = None
    project: Identifier | None = None
    created_from: Moment | None = None
    created_to: Moment | None = None
    after: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class RecoverManyAnswer(Struct):
    """`results`: by run, the status it has now, or the code of the refusal. `left`: how many of the filter come after them."""

    results: dict[UUID, str]
    left: int
    next_after: UUID | None


class VerifyAnswer(Struct):
    """`bad_seq` is the first event that is not what was recorded; `anchored_seq` the last one found in the audit chain."""

    ok: bool
    checked: int
    last_seq: int
    digest: str
    anchored_seq: int
    bad_seq: int | None
    reason: str | None
