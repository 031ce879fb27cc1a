"""How to resume a run: the brief's six steps, answered from what is stored. Reading it changes nothing."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from django.db.models import Count

from kernel.errors import NotFound
from runs.models import Attempt, Event, Run, Step
from runs.queries.checkpoints import checkpoint
from runs.queries.verify import verify_run
from runs.states import RUN_ENDS

MAX_STEPS: Final = 100

Action = Literal["claim", "wait", "leave", "decide"]
_ACTIONS: Final[dict[str, Action]] = {"leased": "leave", "failed": "decide", "dead_letter": "decide", "waiting": "wait"}


@dataclass(frozen=True, slots=True)
class PlanCheckpoint:
    """The newest state that opens; `skipped` are newer versions that do not."""

    version: int
    seq: int
    skipped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanStep:
    name: str
    action: Action
    attempt: int
    max_attempts: int
    due_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """`since` counts the events after the checkpoint by type: what may not be in the state. `chain_ok` is about these."""

    status: str
    chain_ok: bool
    bad_seq: int | None
    checkpoint: PlanCheckpoint | None
    workflow_version: str
    since: dict[str, int]
    next: list[PlanStep]
    advice: str


def resume_plan(*, tenant: UUID, run_id: UUID, now: datetime) -> ResumePlan:
    """The verified checkpoint, what happened since, and the next steps, at most MAX_STEPS. Raises NotFound."""
    run = Run.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    try:
        view = checkpoint(tenant=tenant, run_id=run_id)
        found = PlanCheckpoint(view.version, view.seq, view.skipped) if view.version else None
    except NotFound:
        found = None
    # What the checkpoint stands for opened, so what counts is the log since.
    start = found.seq if found else 0
    chain = verify_run(tenant=tenant, run_id=run_id, after=start)
    types = Event.objects.filter(run_id=run_id, seq__gt=start).values("type").annotate(count=Count("seq"))
    since = dict(types.order_by("type").values_list("type", "count"))
    steps = list(
        Step.objects.filter(run_id=run_id, status__in=["runnable", *_ACTIONS]).order_by("position")[:MAX_STEPS]
    )
    expiry = dict(Attempt.objects.filter(run_id=run_id, ended_at__isnull=True).values_list("step_id", "expires_at"))
    plan = [_next(step, expiry.get(step.id), now) for step in steps]
    return ResumePlan(
        status=run.status, chain_ok=chain.ok, bad_seq=chain.bad_seq, checkpoint=found, workflow_version=run.workflow_version,
        since=since, next=plan, advice=_advice(run.status, chain.ok, found, plan),
    )  # fmt: skip


def _next(step: Step, expires_at: datetime | None, now: datetime) -> PlanStep:
    action: Action = _ACTIONS.get(step.status) or "claim"
    return PlanStep(
        name=step.name, action=action, attempt=step.attempts + (action in ("claim", "wait")), max_attempts=step.max_attempts,
        due_at=step.due_at if action in ("claim", "wait") else None, expires_at=expires_at,
    )  # fmt: skip


def _advice(status: str, chain_ok: bool, found: PlanCheckpoint | None, plan: list[PlanStep]) -> str:
    if not chain_ok:
        return "The log was changed after it was written. Do not resume; an operator must look at it."
    if status in RUN_ENDS and status != "dead_letter":
        return f"The run is {status}. There is nothing to resume."
    if any(step.action == "decide" for step in plan):
        return "An operator must decide about a failed step first."
    state = f"Load checkpoint {found.version}" if found else "Start without a state: there is no checkpoint yet"
    if any(step.action == "claim" for step in plan):
        return f"{state}, claim the step, and go on with what the state does not hold as done."
    if any(step.action == "leave" for step in plan):
        return "A worker holds the step. If it is gone, its lease runs out and the step can be claimed."
    return "The next attempt is due later."
