"""How to resume a run: the brief's six steps, answered from what is stored. Reading it changes nothing.

1 the verified checkpoint, 2 the version check, 3 and 4 the effects since, 5 the next steps, 6 each with its policy and advice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec
from django.db.models import Count, Q, QuerySet

from kernel.errors import NotFound
from runs.models import Attempt, Effect, Event, Run, Step
from runs.queries import compatibility
from runs.queries.checkpoints import CheckpointView, checkpoint
from runs.queries.compatibility import Compatibility
from runs.queries.verify import verify_run
from runs.registry import RetryPolicy
from runs.states import RUN_ENDS
from runs.wire import RetryIn

MAX_STEPS: Final = 100
MAX_EFFECTS: Final = 200

Action = Literal["claim", "wait", "leave", "decide"]
EffectAction = Literal["done", "failed", "reconcile", "await", "leave"]
# Effects of which nobody can say yet what becomes of them.
OPEN: Final = ("reserved", "in_flight", "unknown", "compensating")
_WAITS: Final = {
    "retry": "It failed and is tried again by itself when it is due.",
    "timer": "It goes on by itself when its time has come.",
    "signal": "It goes on with the signal it waits for.",
    "child": "It goes on when the run it waits for is over.",
    "gate": "It goes on when the gate is decided.",
    "reconciliation": "It goes on when it is known what became of its effect.",
}
_ACTIONS: Final[dict[str, Action]] = {"leased": "leave", "failed": "decide", "dead_letter": "decide", "waiting": "wait"}


@dataclass(frozen=True, slots=True)
class PlanCheckpoint:
    """The newest state that opens; `skipped` are newer versions that do not, or build on `missing` ones (sequence numbers)."""

    version: int
    seq: int
    skipped: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanEffect:
    """An effect of the run. `action`: done (use its result), failed (it did not happen), reconcile (find out what became of it),
    await (a gate, or somebody else who finds out), or leave (a worker has it).
    """

    effect: UUID
    step: str
    key: str
    tool: str
    status: str
    action: EffectAction


@dataclass(frozen=True, slots=True)
class PlanStep:
    """`waits_for` says what a waiting step waits for; `compensates` the effect that a step is there to take back."""

    name: str
    action: Action
    attempt: int
    max_attempts: int
    due_at: datetime | None
    expires_at: datetime | None
    waits_for: str | None
    compensates: UUID | None
    retry: RetryPolicy
    advice: str


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """`since` counts the events after the checkpoint by type: what may not be in the state. `chain_ok` is about these.

    `applied`: the state was migrated and the run goes on under `workflow_version`.
    """

    status: str
    chain_ok: bool
    bad_seq: int | None
    checkpoint: PlanCheckpoint | None
    workflow_version: str
    version_check: Compatibility
    since: dict[str, int]
    next: list[PlanStep]
    advice: str
    effects: list[PlanEffect] = field(default_factory=list)
    applied: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan and what carrying it out needs. `state` is the state under the wanted version; None without a checkpoint."""

    plan: ResumePlan
    run: Run
    state: bytes | None


def resume_plan(
    *, tenant: UUID, run_id: UUID, now: datetime, version: str | None = None, tools: Mapping[str, str] | None = None
) -> ResumePlan:
    """What resuming a run means, under its own or another workflow version. Raises NotFound."""
    run = Run.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    return prepare(tenant=tenant, run=run, now=now, version=version, tools=tools).plan


def prepare(*, tenant: UUID, run: Run, now: datetime, version: str | None, tools: Mapping[str, str] | None) -> Prepared:
    """The plan for a run that the caller has read, or holds locked."""
    view = newest(tenant=tenant, run_id=run.id)
    found = PlanCheckpoint(view.version, view.seq, view.skipped, view.missing) if view else None
    # What the checkpoint stands for opened, so what counts is the log since; checkpoints after it are reported as skipped.
    start = found.seq if found else 0
    chain = verify_run(tenant=tenant, run_id=run.id, after=start, checkpoints=False)
    types = Event.objects.filter(run_id=run.id, seq__gt=start).values("type").annotate(count=Count("seq"))
    since = dict(types.order_by("type").values_list("type", "count"))
    usable = view.state if view and view.version else None
    written = (run.workflow_version, run.state_schema)
    if found and (found.skipped or found.missing):
        written = compatibility.written_under(tenant=tenant, run=run, seq=start)
    check, state = compatibility.check(
        tenant=tenant, run=run, state=usable, written=written, wanted=version or run.workflow_version, tools=tools or {}
    )
    effects = effects_since(tenant=tenant, run_id=run.id, seq=start)
    steps = _steps(run)
    plan = ResumePlan(
        status=run.status, chain_ok=chain.ok, bad_seq=chain.bad_seq, checkpoint=found,
        workflow_version=run.workflow_version, version_check=check, since=since, effects=effects, next=steps,
        advice=_advice(run, chain.ok, found, check, effects, steps),
    )  # fmt: skip
    return Prepared(plan, run, state)


def newest(*, tenant: UUID, run_id: UUID) -> CheckpointView | None:
    """The newest state that opens; version 0 when none does, None when none was ever stored."""
    try:
        return checkpoint(tenant=tenant, run_id=run_id)
    except NotFound:
        return None


def effects_since(*, tenant: UUID, run_id: UUID, seq: int) -> list[PlanEffect]:
    """The effects that were begun or decided after an event, and those that are open, oldest first, at most MAX_EFFECTS."""
    recent = Q(input_seq__gt=seq) | Q(outcome_seq__gt=seq) | Q(status__in=OPEN)
    return plan_effects(Effect.objects.filter(recent, run_id=run_id).exclude(status="cancelled"))


def plan_effects(rows: QuerySet[Effect]) -> list[PlanEffect]:
    effects = list(rows.order_by("id")[:MAX_EFFECTS])
    steps = dict(Step.objects.filter(id__in={row.step_id for row in effects}).values_list("id", "name"))
    return [
        PlanEffect(row.id, steps.get(row.step_id, ""), row.key, row.tool, row.status, _effect_action(row))
        for row in effects
    ]


def _effect_action(effect: Effect) -> EffectAction:
    match effect.status:
        case "failed" | "reconciled_failed":
            return "failed"
        case "unknown":
            return "reconcile" if effect.owner == "worker" else "await"
        case "reserved":
            return "await"
        case "in_flight" | "compensating":
            return "leave"
    return "done"


def _steps(run: Run) -> list[PlanStep]:
    rows = Step.objects.filter(run_id=run.id, status__in=["runnable", *_ACTIONS]).order_by("position")[:MAX_STEPS]
    expiry = dict(Attempt.objects.filter(run_id=run.id, ended_at__isnull=True).values_list("step_id", "expires_at"))
    return [_next(step, expiry.get(step.id)) for step in rows]


def _next(step: Step, expires_at: datetime | None) -> PlanStep:
    action: Action = _ACTIONS.get(step.status) or "claim"
    attempt = step.attempts + (action in ("claim", "wait"))
    match action:
        case "claim":
            advice = f"Claim it: this is attempt {attempt} of {step.max_attempts}."
        case "wait":
            advice = _WAITS[step.wait_kind or ""]
        case "leave":
            advice = "A worker has it. If that worker is gone, the lease runs out and the step can be claimed."
        case "decide":
            advice = "It failed for good or used up its attempts: an operator retries, resumes, compensates, skips or cancels."
    if step.compensates_id is not None:
        advice = f"It takes back an effect. {advice}"
    retry = step.retry or msgspec.to_builtins(RetryIn())
    return PlanStep(
        name=step.name, action=action, attempt=attempt, max_attempts=step.max_attempts,
        due_at=step.due_at if action in ("claim", "wait") else None, expires_at=expires_at, waits_for=step.wait_kind,
        compensates=step.compensates_id,
        retry=RetryPolicy(max_attempts=step.max_attempts, deadline_seconds=step.deadline_seconds, **retry), advice=advice,
    )  # fmt: skip


def _advice(
    run: Run, chain_ok: bool, found: PlanCheckpoint | None, check: Compatibility, effects: list[PlanEffect],
    plan: list[PlanStep],
) -> str:  # fmt: skip
    if not chain_ok:
        return "The log was changed after it was written. Do not resume; an operator must look at it."
    if run.status in RUN_ENDS and run.status != "dead_letter":
        return f"The run is {run.status}. There is nothing to resume."
    if check.status == "incompatible":
        return f"{check.detail} {check.ways_out[0].detail}"
    if any(step.action == "decide" for step in plan):
        return "An operator must decide about a failed step first."
    words = []
    if found and (found.skipped or found.missing):
        words.append("Newer checkpoints cannot be read: what they held is lost.")
    if check.to_version != run.workflow_version or check.status == "migrate":
        words.append(f"Send this again with apply: the run then goes on under version {check.to_version}.")
    if any(effect.action == "reconcile" for effect in effects):
        words.append("Learn what became of the effects to reconcile before anything is repeated.")
    if any(step.action == "claim" for step in plan):
        state = f"Load checkpoint {found.version}" if found and found.version else "Start without a state"
        words.append(f"{state}, claim the step, and go on with what the state does not hold as done.")
    elif any(step.action == "leave" for step in plan):
        words.append("A worker holds the step. If it is gone, its lease runs out and the step can be claimed.")
    else:
        words.append(next((step.advice for step in plan), "No step can go on."))
    return " ".join(words)
