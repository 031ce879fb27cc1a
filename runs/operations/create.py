"""Starting a run: its plan, its input, and under whose key it is sealed."""

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
import orjson
from django.db import transaction
from msgspec.structs import replace

from kernel import context, hints, ids
from kernel.call import Call
from kernel.errors import DomainError, FieldError, Forbidden
from privacy import guard, keys
from privacy import operations as privacy_ops
from runs import offload, sealing
from runs.operations.feed import tell_grown_at_commit
from runs.operations.lease import work_hint
from runs.operations.refusals import refusal
from runs.queries import ledger, registry
from runs.registry import Defaults, WorkflowVersion
from runs.sealing import RunKey
from runs.wire import RetryIn, RunIn, StepIn
from tenancy.models import Agent, Project
from tenancy.queries import Principal

# The run, its steps and its first event.
CREATE: Final = Call(
    "runs_create",
    "uuid uuid int4 uuid uuid text text uuid text uuid int4 uuid jsonb jsonb bytea bytea bytea bytea jsonb bytea bytea "
    "uuid float8 int4",
    "text uuid jsonb",
)


class InvalidRun(DomainError):
    code = "invalid_run"
    status = 422
    title = "This run cannot be created"


@dataclass(frozen=True, slots=True)
class Created:
    """`replayed`: the idempotency key had created this run before."""

    run_id: UUID
    replayed: bool


@dataclass(frozen=True, slots=True)
class Place:
    project_id: UUID
    agent_id: UUID | None
    subject_id: UUID | None
    data_key_id: UUID
    key_epoch: int


def create_run(
    *,
    tenant: UUID,
    principal: Principal,
    request: RunIn,
    digest: bytes,
    body: bytes,
    idempotency_key: str,
    now: datetime,
    scheduled: bool = False,
) -> Created:
    """Create a run once for each idempotency key. Raises InvalidRun, IdempotencyKeyReused, SubjectErased, CredentialRefused.

    `scheduled`: the platform starts it, for `principal`, in the transaction and tenant scope of the caller.
    """
    workflow = registry.workflow_version(tenant=tenant, name=request.workflow, version=request.workflow_version)
    steps = plan_of(request, workflow)
    check_plan(steps)
    guard.inspect(body)
    creation_key = keys.keyed_digest(tenant=tenant, label=b"schedule" if scheduled else b"run", value=idempotency_key)
    for last_try in (False, True):
        with nullcontext() if scheduled else context.tenant_scope(tenant):
            place = place_of(tenant, principal, request, now)
        run_id = ids.uuid7()
        key = keys.data_key(tenant=tenant, key_id=place.data_key_id)
        text = sealing.members(
            input=request.input,
            **{
                name: orjson.dumps(text)
                for name, text in (("correlation_id", request.correlation_id), ("task_id", request.task_id))
                if text is not None
            },
            steps=msgspec.json.encode(steps),
        )
        sealed = sealing.seal_event(key, run_id, text)
        params = (
            tenant, None if scheduled else principal.id, principal.version, run_id, place.project_id, request.workflow,
            request.workflow_version, place.agent_id, request.agent_version, place.subject_id, place.key_epoch,
            place.data_key_id, request.labels, request.versions,
            _digest(tenant, b"correlation", request.correlation_id), _digest(tenant, b"task", request.task_id),
            creation_key, digest, msgspec.to_builtins(steps), offload.store(tenant, run_id, sealed.blob),
            sealed.commitment, request.parent_run_id, request.deadline_seconds, 1 if workflow is None else workflow.state_schema,
        )  # fmt: skip
        code, created, detail = CREATE.within(params) if scheduled else CREATE.one(params)
        if code in ("ok", "replayed"):
            if code == "ok":
                transaction.on_commit(partial(hints.publish, work_hint(tenant)))
                tell_grown_at_commit(tenant, run_id)
                sealing.remember(tenant=tenant, run_id=run_id, key=RunKey(place.data_key_id, place.key_epoch))
            return Created(run_id=created, replayed=code == "replayed")
        if code != "subject_changed" or last_try:
            raise refusal(code, run_id=None, detail=detail)
        keys.forget(tenant=tenant, key_id=place.data_key_id)
    raise AssertionError("unreachable")


def place_of(tenant: UUID, principal: Principal, request: RunIn, now: datetime) -> Place:
    """Where the run belongs: project, agent, subject. A key that is bound decides what the request leaves open."""
    if (
        request.parent_run_id is not None
        and not ledger.visible_runs(principal).filter(id=request.parent_run_id).exists()
    ):
        raise _invalid("parent_run_id", "There is no such run.")
    projects = Project.objects.all()
    if principal.project_ids is not None:
        projects = projects.filter(id__in=principal.project_ids)
    if request.project is not None:
        projects = projects.filter(slug=request.project)
    found = list(projects.order_by("created_at", "id").values_list("id", flat=True)[:2])
    if not found:
        raise _invalid("project", "There is no such project.")
    if len(found) > 1:
        raise _invalid("project", "Name the project: there is more than one.")
    agent_id = principal.agent_id
    if request.agent is not None:
        named = Agent.objects.filter(slug=request.agent).values_list("id", flat=True).first()
        if named is None:
            raise _invalid("agent", "There is no such agent.")
        if agent_id is not None and named != agent_id:
            raise Forbidden("This key is bound to another agent.")
        agent_id = named
    if request.subject is None:
        return Place(found[0], agent_id, None, tenant, 0)
    subject = privacy_ops.ensure_subject(tenant=tenant, ref=request.subject, now=now)
    return Place(found[0], agent_id, subject.id, subject.key_id, subject.key_epoch)


def with_defaults(steps: list[StepIn], workflow: WorkflowVersion | None = None) -> list[StepIn]:
    """Steps with what they leave open: as the workflow registered it."""
    defaults = Defaults() if workflow is None else workflow.defaults
    policy = defaults.retry
    retry = None if policy is None else RetryIn(policy.initial_seconds, policy.factor, policy.max_seconds)
    return [
        replace(
            step,
            max_attempts=step.max_attempts or defaults.max_attempts,
            retry=step.retry or retry,
            deadline_seconds=step.deadline_seconds or defaults.deadline_seconds,
        )
        for step in steps
    ]


def plan_of(request: RunIn, workflow: WorkflowVersion | None) -> list[StepIn]:
    """The steps that were sent, else those that the workflow version registered."""
    steps = request.steps
    if steps is None and workflow is not None and workflow.enabled:
        steps = workflow.steps
    if steps is None:
        raise _invalid("steps", "Send the steps: this workflow version registered none.")
    return with_defaults(steps, workflow)


def check_plan(steps: list[StepIn]) -> None:
    """A step depends only on steps before it, which keeps the plan free of cycles."""
    known: set[str] = set()
    for index, step in enumerate(steps):
        if step.name in known:
            raise _invalid(f"steps/{index}/name", f"There are two steps {step.name!r}.")
        for position, name in enumerate(step.depends_on):
            if name not in known:
                raise _invalid(
                    f"steps/{index}/depends_on/{position}", f"Step {name!r} does not stand earlier in the plan."
                )
        known.add(step.name)


def _digest(tenant: UUID, label: bytes, value: str | None) -> bytes | None:
    return None if value is None else keys.keyed_digest(tenant=tenant, label=label, value=value)


def _invalid(path: str, message: str) -> InvalidRun:
    return InvalidRun(message, fields=(FieldError(path=f"/{path}", code="invalid_run", message=message),))
