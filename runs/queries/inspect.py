"""One run as a person looks at it: its steps, who worked on them, and what it waits for."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from kernel.errors import NotFound
from runs.models import Attempt, Effect, Gate, Run, Step, StepDependency
from runs.queries import ledger, listing
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
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    wait: str | None = None
    wait_name: str | None = None
    wait_id: UUID | None = None


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
class WaitsOn:
    """The effect that a waiting step cannot go on without, and the gate before it, if that is what it waits for."""

    effect: UUID
    tool: str
    owner: str | None
    settle_at: datetime | None
    gate: UUID | None = None
    rule: str | None = None
    gate_status: str | None = None
    opened_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunDetail:
    """`steps` and `attempts` are the first and the last MAX_ROWS of `run.steps_total` and `run.attempts`. `effects` counts those of
    the ledger; `cancel_at` is the end of a cancellation's grace.
    """

    run: RunRow
    steps: list[StepRow]
    attempts: list[AttemptRow]
    wait: WaitReason | None
    waits_on: WaitsOn | None = None
    effects: int = 0
    cancel_at: datetime | None = None


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
            started_at=step.started_at, ended_at=step.ended_at, wait=step.wait_kind, wait_name=step.wait_name, wait_id=step.wait_id,
        )
        for step in steps
    ]  # fmt: skip
    wait = _wait(run, rows, attempts, now)
    cancel_at = Run.objects.filter(id=run_id).values_list("cancel_at", flat=True).get()
    effects = Effect.objects.filter(run_id=run_id).count()
    return RunDetail(run, rows, attempts, wait, _waits_on(wait, rows), effects, cancel_at)


def require_visible(*, principal: Principal, run_id: UUID) -> None:
    """Raise NotFound unless the run is one that a bound key may see."""
    if not ledger.visible_runs(principal).filter(id=run_id).exists():
        raise NotFound("There is no such run.")


def _waits_on(wait: WaitReason | None, steps: list[StepRow]) -> WaitsOn | None:
    step = None if wait is None else next((s for s in steps if s.name == wait.step and s.wait == wait.reason), None)
    if step is None or step.wait_id is None or step.wait not in ("gate", "reconciliation"):
        return None
    gate = Gate.objects.filter(id=step.wait_id).first() if step.wait == "gate" else None
    effect = Effect.objects.filter(id=gate.effect_id if gate else step.wait_id).first()
    if effect is None:
        return None
    if gate is None:
        return WaitsOn(effect.id, effect.tool, effect.owner, effect.settle_at)
    return WaitsOn(
        effect.id, effect.tool, effect.owner, effect.settle_at, gate.id, gate.rule, gate.status, gate.opened_at, gate.expires_at
    )  # fmt: skip


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
    ready = next((step for step in steps if step.status == "runnable"), None)
    if ready is not None:
        return WaitReason(
            "worker", ready.name, f"{ready.name} is ready and no worker of queue {ready.queue} has taken it.",
            ready.due_at or run.updated_at, "It starts when a worker claims it.",
        )  # fmt: skip
    waiting = next((step for step in steps if step.status == "waiting"), None)
    if waiting is not None:
        return _waits_for(waiting, run)
    return None


def _waits_for(step: StepRow, run: RunRow) -> WaitReason:
    until = "" if step.due_at is None else f" It goes on at {step.due_at:%Y-%m-%d %H:%M:%S} UTC at the latest."
    match step.wait:
        case "retry":
            detail = f"{step.name} failed and is tried again: attempt {step.attempts + 1} of {step.max_attempts}."
            following = f"The next attempt is due at {step.due_at:%H:%M:%S} UTC."
        case "timer":
            detail, following = f"{step.name} sleeps.", f"It goes on at {step.due_at:%Y-%m-%d %H:%M:%S} UTC."
        case "signal":
            detail, following = (
                f"{step.name} waits for the signal {step.wait_name}.",
                "It goes on when the signal comes." + until,
            )
        case "child":
            detail, following = (
                f"{step.name} waits for run {step.wait_id}.",
                "It goes on when that run is over." + until,
            )
        case "gate":
            detail = f"{step.name} asked for something that needs a permission."
            following = "It goes on when the gate is satisfied or refused."
        case _:
            detail = f"Nobody knows yet whether an effect of {step.name} happened."
            following = "It goes on when that was found out: by the probe of its tool, or by an operator."
    return WaitReason(step.wait or "reconciliation", step.name, detail, run.updated_at, following)
