"""One run as a person looks at it: its steps, who worked on them, and what it waits for."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from kernel.errors import NotFound
from runs.models import Attempt, Run, Step, StepDependency
from runs.queries import listing
from runs.queries.listing import RunRow
from runs.states import RUN_ENDS
from tenancy.queries import Principal

MAX_ROWS: Final = 500  # steps and attempts shown at once; a run may have 10,000


@dataclass(frozen=True, slots=True)
class StepRow:
    id: UUID
    name: str
    position: int
    status: str
    depends_on: tuple[str, ...]
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    due_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One worker's try. `outcome` is None while it holds the lease."""

    id: UUID
    step: str
    number: int
    epoch: int
    worker: str
    claimed_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a run does not go on by itself: `reason` is the machine's word, the rest is for people."""

    reason: str
    step: str | None
    detail: str
    since: datetime
    next: str


@dataclass(frozen=True, slots=True)
class RunDetail:
    """`steps` and `attempts` are the first and the last MAX_ROWS of `run.steps_total` and `run.attempts`."""

    run: RunRow
    steps: list[StepRow]
    attempts: list[AttemptRow]
    wait: WaitReason | None


def get_run(*, tenant: UUID, run_id: UUID, now: datetime) -> RunDetail:
    """Everything the inspector shows at once, in a fixed number of queries. Raises NotFound."""
    found = listing.rows(Run.objects.filter(id=run_id))
    if not found:
        raise NotFound("There is no such run.")
    run = found[0]
    steps = list(Step.objects.filter(run_id=run_id).order_by("position")[:MAX_ROWS])
    names = {step.id: step.name for step in steps}
    depends: dict[UUID, list[str]] = {}
    for step_id, on in StepDependency.objects.filter(step_id__in=list(names)).values_list("step_id", "depends_on_id"):
        depends.setdefault(step_id, []).append(names.get(on, "…"))
    tries = list(Attempt.objects.filter(run_id=run_id).order_by("-claimed_at", "-id")[:MAX_ROWS])
    missing = {attempt.step_id for attempt in tries} - set(names)
    if missing:
        names |= dict(Step.objects.filter(id__in=missing).values_list("id", "name"))
    attempts = [
        AttemptRow(
            id=row.id, step=names[row.step_id], number=row.number, epoch=row.epoch, worker=row.worker, claimed_at=row.claimed_at,
            heartbeat_at=row.heartbeat_at, expires_at=row.expires_at, ended_at=row.ended_at, outcome=row.outcome,
        )
        for row in reversed(tries)
    ]  # fmt: skip
    rows = [
        StepRow(
            id=step.id, name=step.name, position=step.position, status=step.status, depends_on=tuple(depends.get(step.id, ())),
            queue=step.queue, priority=step.priority, attempts=step.attempts, max_attempts=step.max_attempts, due_at=step.due_at,
            started_at=step.started_at, ended_at=step.ended_at,
        )
        for step in steps
    ]  # fmt: skip
    return RunDetail(run, rows, attempts, _wait(run, rows, attempts, now))


def require_visible(*, principal: Principal, run_id: UUID) -> None:
    """Raise NotFound unless the run is one that a bound key may see."""
    runs = Run.objects.filter(id=run_id)
    if principal.agent_id is not None:
        runs = runs.filter(agent_id=principal.agent_id)
    if principal.project_ids is not None:
        runs = runs.filter(project_id__in=principal.project_ids)
    if not runs.exists():
        raise NotFound("There is no such run.")


def _wait(run: RunRow, steps: list[StepRow], attempts: list[AttemptRow], now: datetime) -> WaitReason | None:
    if run.status in RUN_ENDS and run.status != "dead_letter":
        return None
    lost = [attempt for attempt in attempts if attempt.outcome is None and attempt.expires_at <= now]
    if lost:
        last = lost[-1]
        return WaitReason(
            "lease_expired", last.step, f"Worker {last.worker} has not been heard of since its lease on {last.step} ran out.",
            last.expires_at, "The step is given to another worker within seconds.",
        )  # fmt: skip
    if any(step.status == "leased" for step in steps):
        return None
    if run.status == "dead_letter":
        step = next((step for step in steps if step.status == "dead_letter"), None)
        name = step.name if step else None
        return WaitReason(
            "dead_letter", name, f"{name or 'A step'} used up its attempts or failed for good.", run.completed_at or run.updated_at,
            "Nothing happens until an operator decides.",
        )  # fmt: skip
    later = [step for step in steps if step.status == "runnable" and step.due_at > now]
    ready = [step for step in steps if step.status == "runnable" and step.due_at <= now]
    if ready:
        first = ready[0]
        return WaitReason(
            "worker", first.name, f"{first.name} is ready and no worker of queue {first.queue} has taken it.", first.due_at,
            "It starts when a worker claims it.",
        )  # fmt: skip
    if later:
        first = min(later, key=lambda step: step.due_at)
        return WaitReason(
            "retry", first.name, f"{first.name} failed and is tried again: attempt {first.attempts + 1} of {first.max_attempts}.",
            run.updated_at, f"The next attempt is due at {first.due_at:%H:%M:%S} UTC.",
        )  # fmt: skip
    return None
