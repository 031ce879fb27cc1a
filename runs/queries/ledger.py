"""The effect ledger as it is read: effects, their gates, and the payloads that the log keeps for them."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import orjson
from django.db.models import Q, QuerySet
from msgspec import Raw

from kernel import pool
from kernel.errors import NotFound
from runs.models import Effect, Event, Evidence, Gate, Run, Step, Tool
from runs.queries import registry
from runs.queries.listing import decode_cursor, encode_cursor
from runs.queries.log import event_payload
from runs.registry import ToolVersion
from tenancy.queries import Principal

_TOOL: Final = "select * from runs_effect_tool(%b, %b)"
_CACHE_SIZE: Final = 100_000
_members: Final = msgspec.json.Decoder(dict[str, Raw])

_tools: dict[tuple[UUID, UUID], tuple[str, str]] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class EffectFilter:
    """Empty means all. `agent_id` and `projects` are the bindings of a key."""

    status: tuple[str, ...] = ()
    tool: str | None = None
    owner: str | None = None
    run_id: UUID | None = None
    agent_id: UUID | None = None
    projects: frozenset[UUID] | None = None


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One effect. `key` is what the external service was given; `owner` who must find out about an unknown one."""

    id: UUID
    run_id: UUID
    step: str
    tool: str
    tool_id: UUID
    key: str
    status: str
    owner: str | None
    attempts: int
    rule: str | None
    failure_class: str | None
    amount: str | None
    currency: str | None
    gate: UUID | None
    compensates: UUID | None
    deadline: datetime | None
    settle_at: datetime | None
    retry_at: datetime | None
    created_at: datetime
    updated_at: datetime
    input_seq: int
    outcome_seq: int | None


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    kind: str
    outcome: str
    seq: int
    recorded_at: datetime
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EffectDetail:
    """`input` and `outcome` are JSON, None where there is none. An outcome: output, external_id, error, evidence, reason."""

    effect: EffectRow
    input: bytes | None
    outcome: bytes | None
    evidence: list[EvidenceRow]


@dataclass(frozen=True, slots=True)
class EffectPage:
    rows: list[EffectRow]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class GateRow:
    """`input` is what is asked for, JSON text."""

    id: UUID
    run_id: UUID
    step: str
    effect: UUID
    tool: str
    rule: str
    status: str
    action_digest: str
    opened_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None
    input: bytes | None


@dataclass(frozen=True, slots=True)
class GatePage:
    rows: list[GateRow]
    next_cursor: str | None


def tool_of(*, tenant: UUID, effect_id: UUID) -> ToolVersion | None:
    """The tool version of an effect; None when there is no such effect. Cached, as only another reservation changes it."""
    found = _tools.get((tenant, effect_id))
    if found is None:
        rows = pool.rows(_TOOL, (tenant, effect_id))
        if not rows or rows[0][0] is None:
            return None
        found = (rows[0][0], rows[0][1])
        remember_tool(tenant=tenant, effect_id=effect_id, name=found[0], version=found[1])
    return registry.tool_version(tenant=tenant, name=found[0], version=found[1])


def tool_of_in_scope(*, tenant: UUID, tool_id: UUID) -> ToolVersion | None:
    found = Tool.objects.filter(id=tool_id).values_list("name", "version").first()
    return None if found is None else registry.tool_version(tenant=tenant, name=found[0], version=found[1])


def remember_tool(*, tenant: UUID, effect_id: UUID, name: str, version: str) -> None:
    with _lock:
        if len(_tools) >= _CACHE_SIZE:
            _tools.clear()
        _tools[(tenant, effect_id)] = (name, version)


def list_effects(*, tenant: UUID, filters: EffectFilter, cursor: str | None = None, limit: int = 50) -> EffectPage:
    """Effects, those that changed last first. Raises Invalid for a cursor that is not ours."""
    rows = _matching(filters)
    if cursor:
        moment, last = decode_cursor(cursor)
        rows = rows.filter(Q(updated_at__lt=moment) | Q(updated_at=moment, id__lt=last))
    found = list(rows.order_by("-updated_at", "-id")[: limit + 1])
    page = effect_rows(found[:limit])
    return EffectPage(page, encode_cursor(page[-1].updated_at, page[-1].id) if len(found) > limit else None)


def effects_of_run(*, tenant: UUID, run_id: UUID, limit: int = 200) -> list[EffectRow]:
    """The effects of a run in the order in which they were first reserved."""
    return effect_rows(list(Effect.objects.filter(run_id=run_id).order_by("id")[:limit]))


def get_effect(*, tenant: UUID, effect_id: UUID, principal: Principal) -> EffectDetail:
    """An effect with its input, its outcome and the evidence. Raises NotFound."""
    effect = _visible(principal).filter(id=effect_id).first()
    if effect is None:
        raise NotFound("There is no such effect.")
    return EffectDetail(
        effect=effect_rows([effect])[0],
        input=payload_member(tenant=tenant, run_id=effect.run_id, seq=effect.input_seq, name="input"),
        outcome=None if effect.outcome_seq is None
        else event_payload(tenant=tenant, run_id=effect.run_id, seq=effect.outcome_seq),
        evidence=evidence_of(tenant=tenant, effect_id=effect_id),
    )  # fmt: skip


def evidence_of(*, tenant: UUID, effect_id: UUID) -> list[EvidenceRow]:
    """What is known of an effect without having decided it, oldest first."""
    return [
        EvidenceRow(
            row.kind, row.outcome, row.seq, row.recorded_at,
            orjson.loads(event_payload(tenant=tenant, run_id=row.run_id, seq=row.seq)),
        )
        for row in Evidence.objects.filter(effect_id=effect_id).order_by("seq")[:20]
    ]  # fmt: skip


def payload_member(*, tenant: UUID, run_id: UUID, seq: int, name: str) -> bytes | None:
    """One member of an event's payload, as it was sent."""
    if not Event.objects.filter(run_id=run_id, seq=seq, payload__isnull=False).exists():
        return None
    found = _members.decode(event_payload(tenant=tenant, run_id=run_id, seq=seq)).get(name)
    return None if found is None else bytes(found)


def list_gates(
    *, tenant: UUID, principal: Principal, status: tuple[str, ...] = (), cursor: str | None = None, limit: int = 50
) -> GatePage:
    """Gates, newest first, with what each asks for. Raises Invalid for a cursor that is not ours."""
    rows = (
        Gate.objects.filter(run_id__in=visible_runs(principal).values("id"))
        if _bound(principal)
        else Gate.objects.all()
    )
    if status:
        rows = rows.filter(status__in=status)
    if cursor:
        moment, last = decode_cursor(cursor)
        rows = rows.filter(Q(opened_at__lt=moment) | Q(opened_at=moment, id__lt=last))
    found = list(rows.order_by("-opened_at", "-id")[: limit + 1])
    page = found[:limit]
    effects = {row.id: row for row in Effect.objects.filter(id__in=[gate.effect_id for gate in page])}
    steps = dict(Step.objects.filter(id__in=[gate.step_id for gate in page]).values_list("id", "name"))
    shown = [
        GateRow(
            gate.id, gate.run_id, steps[gate.step_id], gate.effect_id, effects[gate.effect_id].tool, gate.rule, gate.status,
            bytes(gate.action_digest).hex(), gate.opened_at, gate.expires_at, gate.decided_at,
            payload_member(tenant=tenant, run_id=gate.run_id, seq=effects[gate.effect_id].input_seq, name="input"),
        )
        for gate in page
    ]  # fmt: skip
    return GatePage(shown, encode_cursor(page[-1].opened_at, page[-1].id) if len(found) > limit else None)


def visible_runs(principal: Principal) -> QuerySet[Run]:
    """The runs that a key may see, by its bindings."""
    runs = Run.objects.all()
    if principal.agent_id is not None:
        runs = runs.filter(agent_id=principal.agent_id)
    if principal.project_ids is not None:
        runs = runs.filter(project_id__in=principal.project_ids)
    return runs


def _bound(principal: Principal) -> bool:
    return principal.agent_id is not None or principal.project_ids is not None


def _visible(principal: Principal) -> QuerySet[Effect]:
    return _matching(EffectFilter(agent_id=principal.agent_id, projects=principal.project_ids))


def _matching(filters: EffectFilter) -> QuerySet[Effect]:
    rows = Effect.objects.all()
    if filters.status:
        rows = rows.filter(status__in=filters.status)
    for name in ("tool", "owner", "run_id"):
        if getattr(filters, name) is not None:
            rows = rows.filter(**{name: getattr(filters, name)})
    if filters.projects is not None:
        rows = rows.filter(project_id__in=filters.projects)
    if filters.agent_id is not None:
        rows = rows.filter(run_id__in=Run.objects.filter(agent_id=filters.agent_id).values("id"))
    return rows


def effect_rows(effects: list[Effect]) -> list[EffectRow]:
    """Read models of effects, with one query for their steps."""
    steps = dict(Step.objects.filter(id__in={effect.step_id for effect in effects}).values_list("id", "name"))
    return [
        EffectRow(
            id=row.id, run_id=row.run_id, step=steps.get(row.step_id, ""), tool=row.tool, tool_id=row.tool_id, key=row.key,
            status=row.status, owner=row.owner, attempts=row.attempts, rule=row.rule, failure_class=row.failure_class,
            amount=None if row.amount is None else f"{row.amount.normalize():f}", currency=row.currency, gate=row.gate_id,
            compensates=row.compensates_id, deadline=row.deadline_at, settle_at=row.settle_at, retry_at=row.retry_at,
            created_at=row.created_at, updated_at=row.updated_at, input_seq=row.input_seq, outcome_seq=row.outcome_seq,
        )
        for row in effects
    ]  # fmt: skip
