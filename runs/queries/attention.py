"""What operators look at and decide on: a run's effects as people read them, what recovery would do, and what needs a person."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import Q

from kernel.errors import NotFound
from runs import registry
from runs.models import Effect, Event, Evidence, Gate, Run, Step, Tool
from runs.queries import inspect, ledger, listing, log
from runs.queries.inspect import RunDetail, StepRow
from runs.queries.ledger import EffectRow, payload_member
from runs.queries.listing import RunFilter, RunRow
from runs.registry import ToolDefinition
from tenancy.models import Member

MAX_EFFECTS: Final = 200  # of a run, shown at once
COUNT_CAP: Final = 100  # counting stops here: nobody needs to know by how much it is too many
UNDOABLE: Final = ("succeeded", "reconciled_succeeded", "compensation_failed")

# What needs a person now, each counted up to the cap.
COUNTS: Final = """
select (select count(*) from (
           select from runs_effect where tenant_id = %(tenant)s and status = 'unknown' and owner = 'operator' limit %(cap)s) x),
       (select count(*) from (select from runs_gate where tenant_id = %(tenant)s and status = 'open' limit %(cap)s) x),
       (select count(*) from (select from runs_run where tenant_id = %(tenant)s and status = 'dead_letter' limit %(cap)s) x)"""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much needs a person: each at most COUNT_CAP, which stands for "so many or more"."""

    unknown: int
    gates: int
    dead: int

    @property
    def all(self) -> int:
        return self.unknown + self.gates + self.dead


@dataclass(frozen=True, slots=True)
class GateState:
    """The newest gate of an effect. `decided_by` is a member's name, if a member decided."""

    id: UUID
    status: str
    rule: str
    opened_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None
    decided_by: str | None


@dataclass(frozen=True, slots=True)
class EvidenceMark:
    """That somebody knows something, without what: `seq` is the event that holds it."""

    kind: str
    outcome: str
    seq: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class EffectView:
    """An effect with what its tool says of it, and without any payload. `undone_by` is the effect that compensates it.

    `run_status` is its run's: who comes next to find out depends on it. `probe_at` is when the platform asks again.
    """

    effect: EffectRow
    version: str
    side_effect: str
    hint: str
    probed: bool
    probe_at: datetime | None
    probes: int
    started_at: datetime | None
    run_status: str
    workflow: str
    compensation: str | None
    gate: GateState | None
    undone_by: UUID | None
    evidence: tuple[EvidenceMark, ...]


@dataclass(frozen=True, slots=True)
class RunEffects:
    """The first MAX_EFFECTS effects of a run."""

    detail: RunDetail
    effects: list[EffectView]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step ended for good: its last failure. `message` is None where there is none, or it does not open."""

    step: str
    attempts: int
    max_attempts: int
    class_: str | None
    message: str | None
    seq: int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """What ending or recovering a run would do to it.

    `stopped`: the steps that failed for good, `blocked` those that wait behind them or stopped with the run. `undo` are
    the effects that a compensation takes back, newest first, `stay` those that happened and have no way back.
    """

    detail: RunDetail
    stopped: list[StepRow]
    blocked: list[StepRow]
    failures: list[Failure]
    in_flight: list[EffectView]
    unknown: list[EffectView]
    undo: list[EffectView]
    stay: list[EffectView]
    gates: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    run: RunRow
    failure: Failure | None
    since: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    """A gate as it is decided: the effect with exactly what is asked for, `input` as it was sent (JSON)."""

    detail: RunDetail
    view: EffectView
    gate: GateState
    action_digest: str
    input: bytes | None


@dataclass(frozen=True, slots=True)
class OpenGate:
    gate: GateState
    view: EffectView


@dataclass(frozen=True, slots=True)
class Attention:
    """What needs a person, of the kinds that were asked for; each list is cut at the limit, `counts` is not."""

    counts: Counts
    unknown: list[EffectView]
    gates: list[OpenGate]
    dead: list[DeadLetter]
    dead_total: int
    workflows: list[str]


def counts(*, tenant: UUID) -> Counts:
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, {"tenant": tenant, "cap": COUNT_CAP})
        return Counts(*cursor.fetchone())


def run_effects(*, tenant: UUID, run_id: UUID, now: datetime) -> RunEffects:
    """A run with its effects, in the order in which they were first reserved. Raises NotFound."""
    detail = inspect.get_run(tenant=tenant, run_id=run_id, now=now)
    return RunEffects(detail, _views(list(Effect.objects.filter(run_id=run_id).order_by("id")[:MAX_EFFECTS])))


def run_effect(*, tenant: UUID, run_id: UUID, effect_id: UUID, now: datetime) -> tuple[RunDetail, EffectView]:
    """A run with one of its effects. Raises NotFound."""
    detail = inspect.get_run(tenant=tenant, run_id=run_id, now=now)
    found = _views(list(Effect.objects.filter(run_id=run_id, id=effect_id)))
    if not found:
        raise NotFound("There is no such effect.")
    return detail, found[0]


def asked(*, tenant: UUID, run_id: UUID, gate_id: UUID, now: datetime) -> Asked:
    """A gate with exactly what it asks for. Raises NotFound."""
    gate = Gate.objects.filter(run_id=run_id, id=gate_id).first()
    if gate is None:
        raise NotFound("There is no such gate.")
    detail = inspect.get_run(tenant=tenant, run_id=run_id, now=now)
    view = _views(list(Effect.objects.filter(id=gate.effect_id)))[0]
    body = payload_member(tenant=tenant, run_id=view.effect.run_id, seq=view.effect.input_seq, name="input")
    state = view.gate if view.gate and view.gate.id == gate.id else _gate_state(gate, _names([gate]))
    return Asked(detail, view, state, bytes(gate.action_digest).hex(), body)


def standing(*, tenant: UUID, run_id: UUID, now: datetime) -> Standing:
    """What a cancellation or a recovery of this run would mean. Reads the messages of its last failures. Raises NotFound."""
    detail = inspect.get_run(tenant=tenant, run_id=run_id, now=now)
    effects = _views(list(Effect.objects.filter(run_id=run_id).order_by("-started_at", "-id")))
    done = [view for view in effects if view.effect.status in UNDOABLE and view.effect.compensates is None]
    stopped = [step for step in detail.steps if step.status in ("dead_letter", "failed")]
    return Standing(
        detail=detail,
        stopped=stopped,
        blocked=[step for step in detail.steps if step.status == "blocked"],
        failures=_failures(tenant, [(run_id, step.id, step) for step in stopped], detail.run.completed_at or now),
        in_flight=[view for view in effects if view.effect.status == "in_flight"],
        unknown=[view for view in effects if view.effect.status == "unknown"],
        undo=[view for view in done if view.compensation],
        stay=[view for view in done if not view.compensation],
        gates=sum(view.gate is not None and view.gate.status == "open" for view in effects),
    )


def attention(
    *, tenant: UUID, kinds: Iterable[str], workflow: str | None = None, limit: int = 50, now: datetime
) -> Attention:
    """What needs a person: unknown effects that operators own and open gates, oldest first, and dead letters, newest first.

    `kinds` are of "unknown", "gate" and "dead"; what is not asked for is empty. Reads the messages of
    the dead letters' last failures.
    """
    kinds = set(kinds)
    ours = Run.objects.filter(workflow=workflow).values("id") if workflow else None
    unknown: list[EffectView] = []
    gates: list[OpenGate] = []
    dead: list[DeadLetter] = []
    total = 0
    if "unknown" in kinds:
        rows = Effect.objects.filter(status="unknown", owner="operator")
        rows = rows if ours is None else rows.filter(run_id__in=ours)
        unknown = _views(list(rows.order_by("updated_at", "id")[:limit]))
    if "gate" in kinds:
        open_gates = Gate.objects.filter(status="open")
        open_gates = open_gates if ours is None else open_gates.filter(run_id__in=ours)
        found = list(open_gates.order_by("opened_at", "id")[:limit])
        views = {
            view.effect.id: view for view in _views(list(Effect.objects.filter(id__in=[g.effect_id for g in found])))
        }
        gates = [OpenGate(_gate_state(gate, {}), views[gate.effect_id]) for gate in found]
    if "dead" in kinds:
        page = listing.list_runs(
            tenant=tenant, filters=RunFilter(status=("dead_letter",), workflow=workflow), limit=limit
        )
        dead, total = _dead(tenant, page.rows, now), page.total
    workflows = Run.objects.filter(
        Q(status="dead_letter")
        | Q(id__in=Effect.objects.filter(status="unknown", owner="operator").values("run_id"))
        | Q(id__in=Gate.objects.filter(status="open").values("run_id"))
    )
    names = list(workflows.order_by("workflow").values_list("workflow", flat=True).distinct()[:100])
    return Attention(counts(tenant=tenant), unknown, gates, dead, total, names)


def oldest_dead(*, tenant: UUID, filters: RunFilter, after: UUID | None = None, limit: int) -> tuple[list[RunRow], int]:
    """The oldest runs of a filter, as `oldest_runs`."""
    ids, left = listing.oldest_runs(tenant=tenant, filters=filters, after=after, limit=limit)
    return listing.rows(Run.objects.filter(id__in=ids).order_by("created_at", "id")), left


def _dead(tenant: UUID, rows: list[RunRow], now: datetime) -> list[DeadLetter]:
    steps = Step.objects.filter(run_id__in=[row.id for row in rows], status="dead_letter").order_by(
        "run_id", "position"
    )
    first = {step.run_id: step for step in reversed(list(steps))}
    wanted = [(row.id, first[row.id].id, first[row.id]) for row in rows if row.id in first]
    found = dict(zip((run_id for run_id, _, _ in wanted), _failures(tenant, wanted, now), strict=True))
    return [DeadLetter(row, found.get(row.id), row.completed_at or row.updated_at) for row in rows]


def _failures(tenant: UUID, wanted: list[tuple[UUID, UUID, Step | StepRow]], otherwise: datetime) -> list[Failure]:
    """The last failure of each step. A step whose last worker was lost has no message."""
    last: dict[UUID, Event] = {}
    for event in (
        Event.objects.filter(run_id__in={run for run, _, _ in wanted}, step_id__in=[step for _, step, _ in wanted])
        .filter(type__in=["step_failed", "lease_lost"])
        .defer("payload")
        .order_by("seq")
    ):
        last[event.step_id] = event
    texts = log.payloads(
        tenant=tenant, of=[(event.run_id, event.seq) for event in last.values() if event.type == "step_failed"]
    )
    messages = {
        place: msgspec.json.decode(text).get("error", {}).get("message") or None for place, text in texts.items()
    }
    failures = []
    for run_id, step_id, step in wanted:
        found = last.get(step_id)
        class_ = (
            None if found is None else "lease_lost" if found.type == "lease_lost" else (found.labels or {}).get("class")
        )
        failures.append(
            Failure(
                step.name, step.attempts, step.max_attempts, class_, messages.get((run_id, found.seq)) if found else None,
                found.seq if found else None,
                found.recorded_at if found else otherwise,
            )
        )  # fmt: skip
    return failures


def _views(effects: list[Effect]) -> list[EffectView]:
    """Effects with their tools, gates, evidence and runs, in a fixed number of queries."""
    if not effects:
        return []
    ids = [effect.id for effect in effects]
    tools = {
        tool_id: (version, registry.load(definition, ToolDefinition))
        for tool_id, version, definition in Tool.objects.filter(
            id__in={effect.tool_id for effect in effects}
        ).values_list("id", "version", "definition")
    }
    gates = {gate.effect_id: gate for gate in Gate.objects.filter(effect_id__in=ids).order_by("opened_at", "id")}
    names = _names(gates.values())
    undone = dict(
        Effect.objects.filter(compensates_id__in=ids).exclude(status="cancelled").values_list("compensates_id", "id")
    )
    marks: dict[UUID, list[EvidenceMark]] = {}
    for row in Evidence.objects.filter(effect_id__in=ids).order_by("seq"):
        marks.setdefault(row.effect_id, []).append(EvidenceMark(row.kind, row.outcome, row.seq, row.recorded_at))
    runs = {
        run_id: (status, workflow)
        for run_id, status, workflow in Run.objects.filter(id__in={effect.run_id for effect in effects}).values_list(
            "id", "status", "workflow"
        )
    }
    views = []
    for effect, row in zip(effects, ledger.effect_rows(effects), strict=True):
        version, definition = tools[effect.tool_id]
        gate = gates.get(effect.id)
        views.append(
            EffectView(
                effect=row, version=version, side_effect=definition.side_effect, hint=definition.reconcile.hint,
                probed=effect.probed,
                probe_at=effect.probe_at, probes=effect.probes, started_at=effect.started_at, run_status=runs[effect.run_id][0],
                workflow=runs[effect.run_id][1],
                compensation=definition.compensation.tool if definition.compensation else None,
                gate=_gate_state(gate, names) if gate else None, undone_by=undone.get(effect.id),
                evidence=tuple(marks.get(effect.id, ())),
            )
        )  # fmt: skip
    return views


def _names(gates: Iterable[Gate]) -> dict[UUID, str]:
    deciders = {gate.decided_by for gate in gates if gate.decided_by}
    return dict(Member.objects.filter(id__in=deciders).values_list("id", "name")) if deciders else {}


def _gate_state(gate: Gate, names: dict[UUID, str]) -> GateState:
    decider = None if gate.decided_by is None else names.get(gate.decided_by)
    return GateState(gate.id, gate.status, gate.rule, gate.opened_at, gate.expires_at, gate.decided_at, decider)
