"""The routes of the effect ledger: reserving, outcomes, reconciliation, gates; and signals."""

import hashlib
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import orjson
from django.http import HttpRequest, HttpResponse
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from kernel import codec
from kernel.rest import requests
from kernel.rest.endpoints import Endpoint
from kernel.rest.schema import describe
from kernel.rest.views import ApiView, Context, endpoint
from privacy.guard import CredentialRefused
from privacy.operations import SubjectErased
from runs import operations, queries
from runs.api.answers import CommitAnswer
from runs.api.hot import commit_answer, hot, json_answer, whole_body
from runs.operations.actions import InvalidReservation
from runs.operations.refusals import (
    ContradictingEvidence,
    EffectNotHeld,
    EffectNotUnknown,
    GateDecided,
    GateGoverned,
    LeaseExpired,
    RunFinished,
    StaleEpoch,
    TooEarly,
)
from runs.queries.ledger import EffectFilter
from runs.queries.registry import UnknownTool
from runs.registry import InvalidToolInput
from runs.states import EFFECT_MOVES, GATE_MOVES
from runs.wire import CommitIn, EffectOutcomeIn, OutcomeIn, ReconcileIn, ReserveIn, SignalIn
from tenancy import queries as tenancy
from tenancy.queries import Principal

EffectStatus = Literal[
    "reserved", "in_flight", "succeeded", "failed", "unknown", "reconciled_succeeded", "reconciled_failed", "compensating",
    "compensated", "compensation_failed", "cancelled",
]  # fmt: skip
GateStatus = Literal["open", "satisfied", "refused", "lapsed", "withdrawn"]
assert set(EFFECT_MOVES) == set(EffectStatus.__args__)  # type: ignore[attr-defined]
assert set(GATE_MOVES) == set(GateStatus.__args__)  # type: ignore[attr-defined]

MAX_RECONCILE: Final = 1024 * 1024  # bytes


class EvidenceAnswer(Struct):
    """`detail` is what was brought: `output`, `external_id`, `error`."""

    kind: str
    outcome: str
    seq: int
    recorded_at: Any
    detail: dict[str, Any]


class DecisionAnswer(Struct):
    """What to do; the members that belong to each decision are in the protocol. `seconds`: how long `execute` may still be used."""

    decision: Literal["execute", "already_done", "reconcile", "await_approval", "denied"]
    effect: UUID
    key: str
    tool_version: str
    attempt: int | UnsetType = UNSET
    deadline: str | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    input: Any = UNSET
    output: Any = UNSET
    external_id: str | UnsetType = UNSET
    input_matches: bool | UnsetType = UNSET
    run_id: UUID | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    owner: str | UnsetType | None = UNSET
    hint: str | UnsetType = UNSET
    settle_at: str | UnsetType = UNSET
    retry_after: float | UnsetType = UNSET
    evidence: list[EvidenceAnswer] | UnsetType = UNSET
    gate: UUID | UnsetType = UNSET
    expires_at: str | UnsetType | None = UNSET
    rule: str | UnsetType = UNSET
    policy: str | UnsetType = UNSET
    amended: bool | UnsetType = UNSET
    limit: Any = UNSET
    currency: str | UnsetType = UNSET


class EffectAnswer(Struct):
    """An effect of the ledger. `owner` is who must find out about an unknown one; `key` what the service was given."""

    id: UUID
    run_id: UUID
    step: str
    tool: str
    key: str
    status: EffectStatus
    owner: str | None
    attempts: int
    rule: str | None
    failure_class: str | None
    amount: str | None
    currency: str | None
    gate: UUID | None
    compensates: UUID | None
    deadline: Any
    settle_at: Any
    retry_at: Any
    created_at: Any
    updated_at: Any


class EffectDetailAnswer(Struct):
    """`outcome` has `output`, `external_id`, `error`, and of a reconciliation `evidence` and `reason`."""

    effect: EffectAnswer
    input: Any
    outcome: Any
    evidence: list[EvidenceAnswer]


class EffectsAnswer(Struct):
    items: list[EffectAnswer]
    next_cursor: str | None


class EffectsQuery(Struct, forbid_unknown_fields=True):
    status: list[EffectStatus] = []
    tool: str | None = None
    owner: Literal["worker", "probe", "operator"] | None = None
    run_id: UUID | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ReconcileAnswer(Struct):
    effect: UUID
    status: EffectStatus


class GateAnswer(Struct):
    """A gate and what exactly it asks for: `input`, under `action_digest`."""

    id: UUID
    run_id: UUID
    step: str
    effect: UUID
    tool: str
    rule: str
    status: GateStatus
    action_digest: str
    opened_at: Any
    expires_at: Any
    decided_at: Any
    input: Any


class GatesAnswer(Struct):
    items: list[GateAnswer]
    next_cursor: str | None


class GatesQuery(Struct, forbid_unknown_fields=True):
    status: list[GateStatus] = []
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class DecisionIn(Struct, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=2000)]


class GateDecision(Struct):
    """`grant`: the permission that was minted; null when the gate was refused, or only opened anew."""

    gate: UUID
    status: GateStatus
    grant: UUID | None


class SignalAnswer(Struct):
    """`woken`: a step was waiting for it; otherwise it is kept."""

    seq: int
    woken: bool


@describe("POST", Endpoint(
    summary="Ask before a side effect", scope="effects:write", body=ReserveIn, answer=DecisionAnswer, idempotent=True,
    problems=(
        InvalidReservation, InvalidToolInput, UnknownTool, StaleEpoch, LeaseExpired, RunFinished, CredentialRefused, SubjectErased,
    ),
))  # fmt: skip
@hot("POST", "effects:write")
def reserve(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    """Reserve an effect under the lease of a step. The answer says what to do; only `execute` permits the call."""
    key, body = requests.idempotency_key(request, required=True), whole_body(request)
    wanted = codec.decode_as(body, ReserveIn, max_bytes=len(body))
    done = operations.reserve(
        tenant=principal.tenant_id, principal=principal, run_id=run_id, request=wanted, body=body,
        idempotency_key=key or "",
    )  # fmt: skip
    answer: dict[str, Any] = {
        "decision": done.decision, "effect": done.effect_id, "key": done.key, "tool_version": done.tool.version, **done.detail,
    }  # fmt: skip
    if done.input is not None:
        answer["input"] = orjson.Fragment(done.input)
    for name, value in (done.result or {}).items():
        answer[name] = orjson.Fragment(bytes(value))
    if done.decision == "reconcile":
        answer["evidence"] = done.evidence
    return json_answer(answer)


@describe("POST", Endpoint(
    summary="Bring the outcome of an effect", scope="effects:write", body=OutcomeIn, answer=CommitAnswer, idempotent=True,
    problems=(StaleEpoch, LeaseExpired, RunFinished, EffectNotHeld, CredentialRefused, SubjectErased),
))  # fmt: skip
@hot("POST", "effects:write")
def outcome(request: HttpRequest, principal: Principal, run_id: UUID, effect_id: UUID) -> HttpResponse:
    """A commit with this outcome alone. Under a lease that was lost it changes no state and is kept as evidence."""
    key, body = requests.idempotency_key(request, required=True), whole_body(request)
    wanted, digest = codec.decode_request(body, OutcomeIn, max_bytes=len(body))
    part = EffectOutcomeIn(
        effect=effect_id,
        outcome=wanted.outcome,
        output=wanted.output,
        external_id=wanted.external_id,
        error=wanted.error,
    )
    done = operations.commit(
        tenant=principal.tenant_id, principal=principal, run_id=run_id,
        request=CommitIn(lease=str(wanted.lease), epoch=wanted.epoch, effects=[part]),
        digest=hashlib.sha256(digest + effect_id.bytes).digest(), body=body, idempotency_key=key or "",
    )  # fmt: skip
    return commit_answer(done)


@describe("POST", Endpoint(
    summary="Send a signal to a run", scope="runs:write", body=SignalIn, answer=SignalAnswer, idempotent=True,
    problems=(RunFinished, CredentialRefused, SubjectErased),
))  # fmt: skip
@hot("POST", "runs:write")
def signal(request: HttpRequest, principal: Principal, run_id: UUID) -> HttpResponse:
    """The first signal of a name goes to the step that waits for it first; one that nobody waits for yet is kept."""
    key, body = requests.idempotency_key(request, required=True), whole_body(request)
    wanted, digest = codec.decode_request(body, SignalIn, max_bytes=len(body))
    done = operations.signal(
        tenant=principal.tenant_id, principal=principal, run_id=run_id, request=wanted, digest=digest, body=body,
        idempotency_key=key or "",
    )  # fmt: skip
    return json_answer({"seq": done.seq, "woken": done.woken})


class EffectsView(ApiView):
    @endpoint(summary="List effects", scope="runs:read", query=EffectsQuery, answer=EffectsAnswer)
    def get(self, call: Context) -> Any:
        """Those that changed last first. `status=unknown` is what somebody must find out about."""
        query: EffectsQuery = call.query
        filters = EffectFilter(
            status=tuple(query.status), tool=query.tool, owner=query.owner, run_id=query.run_id, agent_id=call.principal.agent_id,
            projects=call.principal.project_ids,
        )  # fmt: skip
        page = queries.list_effects(tenant=call.tenant, filters=filters, cursor=query.cursor, limit=query.limit)
        return {"items": [_effect(row) for row in page.rows], "next_cursor": page.next_cursor}


class EffectView(ApiView):
    @endpoint(summary="Read an effect", scope="runs:read", answer=EffectDetailAnswer)
    def get(self, call: Context, effect_id: UUID) -> Any:
        """With what was sent, what came back, and the evidence that nobody decided on yet."""
        found = queries.get_effect(tenant=call.tenant, effect_id=effect_id, principal=call.principal)
        return {
            "effect": _effect(found.effect), "input": _raw(found.input), "outcome": _raw(found.outcome), "evidence": found.evidence,
        }  # fmt: skip


class ReconcileView(ApiView):
    @endpoint(
        summary="Say what became of an unknown effect", scope="effects:write", body=ReconcileIn, answer=ReconcileAnswer,
        problems=(
            InvalidReservation, EffectNotUnknown, EffectNotHeld, TooEarly, ContradictingEvidence, StaleEpoch, CredentialRefused,
        ), or_scope="runs:operate", max_bytes=MAX_RECONCILE,
    )  # fmt: skip
    def post(self, call: Context, effect_id: UUID) -> Any:
        """By the worker that was told to, under its lease; or by an operator, with a reason."""
        request: ReconcileIn = call.body
        tenancy.require(call.principal, "runs:operate" if request.lease is None else "effects:write")
        done = operations.reconcile(
            tenant=call.tenant,
            principal=call.principal,
            effect_id=effect_id,
            request=request,
            actor=call.actor,
            now=call.now,
        )
        return {"effect": done.effect_id, "status": done.status}


class GatesView(ApiView):
    @endpoint(summary="List gates", scope="runs:read", query=GatesQuery, answer=GatesAnswer)
    def get(self, call: Context) -> Any:
        """Newest first, each with exactly what it asks for."""
        query: GatesQuery = call.query
        page = queries.list_gates(
            tenant=call.tenant,
            principal=call.principal,
            status=tuple(query.status),
            cursor=query.cursor,
            limit=query.limit,
        )
        names = GateAnswer.__struct_fields__
        return {
            "items": [{name: getattr(row, name) for name in names} | {"input": _raw(row.input)} for row in page.rows],
            "next_cursor": page.next_cursor,
        }


class SatisfyView(ApiView):
    @endpoint(
        summary="Satisfy a gate",
        scope="runs:operate",
        body=DecisionIn,
        answer=GateDecision,
        problems=(GateDecided, GateGoverned),
    )
    def post(self, call: Context, gate_id: UUID) -> Any:
        """Mint the grant that lets exactly this action execute once."""
        return _decide(call, gate_id, satisfied=True)


class RefuseView(ApiView):
    @endpoint(
        summary="Refuse a gate",
        scope="runs:operate",
        body=DecisionIn,
        answer=GateDecision,
        problems=(GateDecided, GateGoverned),
    )
    def post(self, call: Context, gate_id: UUID) -> Any:
        """The step goes on and is told that the effect is denied."""
        return _decide(call, gate_id, satisfied=False)


class RenewView(ApiView):
    @endpoint(
        summary="Open a gate anew", scope="runs:operate", body=DecisionIn, answer=GateDecision, problems=(GateDecided,)
    )
    def post(self, call: Context, gate_id: UUID) -> Any:
        """One that lapsed: nothing went on meanwhile, and the step waits for the new gate."""
        gate = operations.renew_gate(
            tenant=call.tenant,
            principal=call.principal,
            gate_id=gate_id,
            reason=call.body.reason,
            actor=call.actor,
            now=call.now,
        )
        return {"gate": gate, "status": "open", "grant": None}


def _decide(call: Context, gate_id: UUID, *, satisfied: bool) -> dict[str, Any]:
    grant = operations.decide_gate(
        tenant=call.tenant, principal=call.principal, gate_id=gate_id, satisfied=satisfied, reason=call.body.reason,
        actor=call.actor, now=call.now,
    )  # fmt: skip
    return {"gate": gate_id, "status": "satisfied" if satisfied else "refused", "grant": grant}


def _effect(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in EffectAnswer.__struct_fields__}


def _raw(text: bytes | None) -> Raw | None:
    return None if text is None else Raw(text)
