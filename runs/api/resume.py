"""Resuming and forking over REST."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct, field

from kernel.rest.views import ApiView, Context, Created, endpoint
from privacy.guard import CredentialRefused
from privacy.operations import SubjectErased
from runs import operations, queries
from runs.api.answers import Status
from runs.operations.fork import NothingToDo
from runs.operations.refusals import RunFinished
from runs.operations.resume import ChainBroken, IncompatibleVersion, RunBusy
from runs.queries import ResumePlan
from runs.queries.fork import CheckpointUnreadable
from runs.registry import MAX_DEFINITION, RetryPolicy
from runs.wire import Identifier, Steps
from tenancy import queries as tenancy


class ResumeIn(Struct, forbid_unknown_fields=True):
    """Under which workflow version (the run's own when left out), and which tool versions the worker has.

    `apply` carries the plan out: the run goes on under that version, with its state migrated.
    """

    workflow_version: Identifier | None = None
    tools: Annotated[dict[Identifier, Identifier], Meta(max_length=64)] = field(default_factory=dict)
    apply: bool = False


class PlanCheckpoint(Struct):
    version: int
    seq: int
    skipped: list[int]
    missing: list[int]


class PlanEffect(Struct):
    """`action`: done (use its result), failed (it did not happen), reconcile (find out), await (a gate, or somebody else who finds
    out), or leave (a worker has it).
    """

    effect: UUID
    step: str
    key: str
    tool: str
    status: str
    action: Literal["done", "failed", "reconcile", "await", "leave"]


class PlanStep(Struct):
    """`action`: claim (runnable now), wait (for `waits_for`, at the latest until `due_at`), leave (a worker has it until
    `expires_at`), or decide. `compensates`: the effect that it is there to take back.
    """

    name: str
    action: Literal["claim", "wait", "leave", "decide"]
    attempt: int
    max_attempts: int
    due_at: datetime | None
    expires_at: datetime | None
    waits_for: str | None
    compensates: UUID | None
    retry: RetryPolicy
    advice: str


class MigrationUsed(Struct):
    from_schema: int
    to_schema: int
    registered_in: str
    instead_of: list[str]
    description: str


class MissingMigration(Struct):
    from_schema: int
    to_schema: int


class StateError(Struct):
    path: str
    code: str
    message: str


class WayOut(Struct):
    action: Literal["register_migration", "register_version", "enable_version", "resume_under", "fork"]
    detail: str


class ToolCheck(Struct):
    name: str
    version: str
    status: Literal["known", "untested", "disabled", "unregistered"]


class StateChange(Struct):
    """`before` and `after` are JSON text."""

    path: str
    kind: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None


class VersionCheck(Struct):
    status: Literal["compatible", "migrate", "incompatible"]
    from_version: str
    to_version: str
    from_schema: int
    to_schema: int | None
    migrations: list[MigrationUsed]
    changes: list[StateChange]
    reason: (
        Literal["unknown_version", "version_disabled", "migration_missing", "migration_failed", "state_invalid"] | None
    )
    detail: str
    missing: MissingMigration | None
    errors: list[StateError]
    ways_out: list[WayOut]
    tools: list[ToolCheck]


class ResumeAnswer(Struct):
    """The brief's six steps. `since`: what happened after the checkpoint, by event type."""

    status: Status
    chain_ok: bool
    bad_seq: int | None
    checkpoint: PlanCheckpoint | None
    workflow_version: str
    version_check: VersionCheck
    since: dict[str, int]
    effects: list[PlanEffect]
    next: list[PlanStep]
    advice: str
    applied: bool


class ForkIn(Struct, forbid_unknown_fields=True):
    """`checkpoint`: its version, null for the newest that opens. `steps`: "open" keeps the plan as it stood, with what was done by
    then carried as skipped; or another plan.
    """

    reason: Annotated[str, Meta(min_length=1, max_length=2000)]
    checkpoint: Annotated[int, Meta(ge=1, le=2_147_483_647)] | None = None
    workflow_version: Identifier | None = None
    steps: Literal["open"] | Steps = "open"


class ForkAnswer(Struct):
    """`carried`: steps that were done before. `carried_effects`: the source's effects whose outcome was not known."""

    id: UUID
    forked_from: UUID
    checkpoint: int
    workflow_version: str
    carried: list[str]
    skipped: list[int]
    version_check: VersionCheck
    carried_effects: list[PlanEffect]


class ForkView(ApiView):
    @endpoint(
        summary="Fork a run from a checkpoint", scope="runs:operate", body=ForkIn, answer=ForkAnswer, status=201,
        idempotent=True, max_bytes=MAX_DEFINITION,
        problems=(CheckpointUnreadable, IncompatibleVersion, NothingToDo, CredentialRefused, SubjectErased),
    )  # fmt: skip
    def post(self, call: Context, run_id: UUID) -> Created:
        """A new run in the same project, for the same agent and subject, whose first state is that of the checkpoint.

        Its log begins by naming the source; the source stays as it is.
        """
        queries.require_visible(principal=call.principal, run_id=run_id)
        wanted: ForkIn = call.body
        forked = operations.fork_run(
            tenant=call.tenant, run_id=run_id, version=wanted.checkpoint, workflow_version=wanted.workflow_version,
            steps=None if wanted.steps == "open" else wanted.steps, reason=wanted.reason, actor=call.actor, now=call.now,
        )  # fmt: skip
        return Created(forked, location=f"/api/v1/runs/{forked.id}")


class ResumeView(ApiView):
    @endpoint(
        summary="Ask how to resume a run, or take it over to another version", scope="runs:read", body=ResumeIn,
        optional=True, answer=ResumeAnswer, problems=(RunFinished, RunBusy, ChainBroken, IncompatibleVersion),
    )  # fmt: skip
    def post(self, call: Context, run_id: UUID) -> ResumePlan:
        """The verified checkpoint, the version check, what happened since, and what comes next.

        Without `apply` it changes nothing: claim to carry it out. With `apply` (scope `runs:write` or `runs:operate`) the
        state is migrated and the run goes on under `workflow_version`.
        """
        queries.require_visible(principal=call.principal, run_id=run_id)
        wanted: ResumeIn = call.body
        if not wanted.apply:
            return queries.resume_plan(
                tenant=call.tenant, run_id=run_id, now=call.now, version=wanted.workflow_version, tools=wanted.tools
            )
        if not tenancy.can(call.principal, "runs:write"):
            tenancy.require(call.principal, "runs:operate")
        return operations.resume_run(
            tenant=call.tenant, run_id=run_id, version=wanted.workflow_version, tools=wanted.tools, actor=call.actor,
            now=call.now,
        )  # fmt: skip
