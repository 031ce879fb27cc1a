"""The effect ledger: asking before a side effect, and finding out afterwards what became of it.

Invariant: for one key `execute` is answered once, and again only after the earlier execution was recorded as failed. The database
function decides, under the run's lock and the key's unique index; what is computed here (schema, key, digests, the policy's word)
goes into it as arguments.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db import connection
from msgspec import Raw

from audit import operations as audit_ops
from kernel import codec as json
from kernel import context, hints, ids
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, Invalid, NotFound
from privacy import guard, keys
from privacy.codec import Sealed
from runs import ports, sealing
from runs import registry as rules
from runs.models import Attempt, Effect, Gate, Grant
from runs.operations.feed import tell_grown, tell_grown_at_commit
from runs.operations.lease import work_hint
from runs.operations.refusals import refusal
from runs.ports import ProposedAction
from runs.queries import ledger, registry
from runs.queries.ledger import EvidenceRow
from runs.registry import ToolVersion
from runs.sealing import RunKey
from runs.wire import ReconcileIn, ReserveIn
from tenancy.queries import Principal

# The decision, and everything that follows from it.
RESERVE: Final = """
select * from runs_reserve(%s, %s, %s, %s, %s::uuid[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s::jsonb,
                           %s, %s, %s::jsonb, %s, %s)"""
RECONCILE: Final = """
select * from runs_reconcile(%s, %s, %s::uuid[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"""
DECIDE_GATE: Final = "select * from runs_decide_gate(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"

RENEW_GATE: Final = "select * from runs_renew_gate(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"

GRANT_SECONDS: Final = 24 * 3600.0
_TRIES: Final = 8


class InvalidReservation(DomainError):
    code = "invalid_reservation"
    status = 422
    title = "This reservation does not fit"


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a reservation. `key` is what to pass to the external service; `detail` what belongs to the decision.

    `input` is set for a compensation: what to call its tool with. `result` has the members `output` and `external_id` of what was
    done already, as JSON; None when there is none that this key may see.
    """

    decision: str
    effect_id: UUID
    key: str
    tool: ToolVersion
    detail: dict[str, Any]
    input: bytes | None = None
    result: dict[str, Raw] | None = None
    evidence: tuple[EvidenceRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconciled:
    effect_id: UUID
    status: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A reservation with everything that can be computed before the run is locked."""

    tool: ToolVersion
    input: bytes
    business_object: str
    amount: tuple[Decimal, str] | None
    key: str
    arguments: Any
    canonical: bytes
    compensates: UUID | None


def reserve(
    *,
    tenant: UUID,
    principal: Principal,
    run_id: UUID,
    request: ReserveIn,
    body: bytes,
    idempotency_key: str,
) -> Decided:
    """Judge a side effect before it happens. `request` and `body` are one JSON text.

    The idempotency key stands for what is asked for and not for the lease: a new worker that derives the same key is judged anew.

    Raises NotFound, UnknownTool, InvalidToolInput, InvalidReservation, Invalid (the tool's schema), StaleEpoch, LeaseExpired,
    RunFinished, IdempotencyKeyReused, CredentialRefused, SubjectErased.
    """
    if (request.tool is None) == (request.compensates is None):
        raise _invalid("tool", "Name either a tool, or the effect that this compensates.")
    guard.inspect(body)
    idempotency = keys.keyed_digest(tenant=tenant, label=b"decision", value=idempotency_key)
    subject_changed = False
    for _ in range(_TRIES):
        run = sealing.run_key(tenant=tenant, run_id=run_id)
        with context.tenant_scope(tenant):
            step = _step_of(run_id, request)
            call = (
                _compensation(tenant, principal, request)
                if request.compensates
                else _call(tenant, request, run_id, step)
            )
            effect_id = _live_effect(call.key) or ids.uuid7()
            code, decision, effect, detail = _reserve(
                tenant, principal, run_id, run, request, call, effect_id, idempotency
            )
            if code == "ok":
                decided = _decided(tenant, principal, request, call, decision, effect, detail or {})
                break
        if code == "subject_changed" and not subject_changed:
            subject_changed = True
            sealing.forget(tenant=tenant, run_id=run_id)
        elif code != "moved":
            raise refusal(code, run_id=run_id, detail=detail)
    else:
        raise AssertionError("an effect that never stands still")
    ledger.remember_tool(tenant=tenant, effect_id=effect, name=call.tool.name, version=call.tool.version)
    tell_grown(tenant, run_id)
    if decision == "await_approval":
        hints.publish(f"gates:{tenant}")
    return decided


def reconcile(
    *,
    tenant: UUID,
    principal: Principal,
    effect_id: UUID,
    request: ReconcileIn,
    actor: Actor,
    now: datetime,
) -> Reconciled:
    """Say what became of an unknown effect. The caller holds the tenant scope.

    Raises NotFound, EffectNotUnknown, EffectNotHeld, TooEarly, ContradictingEvidence, StaleEpoch, InvalidReservation.
    """
    if (request.lease is None) != (request.epoch is None):
        raise _invalid("epoch", "A lease is presented with its epoch.")
    if request.lease is None and request.reason is None:
        raise _invalid("reason", "Without a lease an operator decides, and says why.")
    if request.result == "succeeded" and request.error is not None:
        raise _invalid("error", "What succeeded has no error.")
    failure = "transient" if request.error is None else request.error.class_
    members = {
        "output": request.output, "external_id": _json(request.external_id), "evidence": request.evidence,
        "reason": _json(request.reason), "error": _json(request.error),
    }  # fmt: skip
    reconciled = settle_unknown(
        tenant=tenant, effect_id=effect_id, succeeded=request.result == "succeeded", failure_class=failure, members=members,
        actor=actor, lease=request.lease, epoch=request.epoch, principal=principal, early=False,
    )  # fmt: skip
    if request.lease is None:
        audit_ops.record(
            tenant=tenant, actor=actor, action="effect.reconciled", target_kind="effect", target_id=effect_id,
            content={"result": request.result, "reason": request.reason}, now=now,
        )  # fmt: skip
    return reconciled


def settle_unknown(
    *,
    tenant: UUID,
    effect_id: UUID,
    succeeded: bool,
    failure_class: str,
    members: dict[str, Any],
    actor: Actor,
    lease: UUID | None = None,
    epoch: int | None = None,
    principal: Principal | None = None,
    early: bool,
) -> Reconciled:
    """Settle an unknown effect by what somebody found out. The caller holds the tenant scope. Raises CredentialRefused."""
    text = sealing.members(**members)
    guard.inspect(text)
    agent = None if principal is None else principal.agent_id
    projects = None if principal is None or principal.project_ids is None else list(principal.project_ids)
    for _ in range(_TRIES):
        found = Effect.objects.filter(id=effect_id)
        if principal is not None and lease is None:
            found = found.filter(run_id__in=ledger.visible_runs(principal).values("id"))
        row = found.first()
        if row is None:
            raise NotFound("There is no such effect.")
        run = sealing.run_key_in_scope(run_id=row.run_id)
        labels = {"effect": str(effect_id), "result": "succeeded" if succeeded else "failed", "tool": row.tool}
        key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
        sealed = sealing.seal_event(key, row.run_id, text, labels=labels)
        with connection.cursor() as cursor:
            cursor.execute(RECONCILE, [
                tenant, agent, projects, effect_id, row.run_id, run.data_key_id, lease, epoch, actor.kind, actor.id, succeeded,
                failure_class, early, sealed.blob, sealed.commitment, msgspec.json.encode(labels).decode(),
            ])  # fmt: skip
            code, status, detail = cursor.fetchone()
        if code == "ok":
            hints.publish(work_hint(tenant))
            tell_grown_at_commit(tenant, row.run_id)
            return Reconciled(effect_id, status)
        if code != "moved":
            raise refusal(code, run_id=row.run_id, detail=_loaded(detail))
    raise AssertionError("an effect that never stands still")


def decide_gate(
    *, tenant: UUID, principal: Principal, gate_id: UUID, satisfied: bool, reason: str, actor: Actor, now: datetime
) -> UUID | None:
    """Satisfy or refuse an open gate; the grant. The caller holds the tenant scope. Raises NotFound, GateDecided."""
    gate = _visible_gate(principal, gate_id)
    sealed, labels = _seal_decision(tenant, gate, gate_id, reason)
    with connection.cursor() as cursor:
        cursor.execute(DECIDE_GATE, [
            tenant, gate_id, gate.run_id, satisfied, GRANT_SECONDS, actor.kind, actor.id, sealed.blob, sealed.commitment,
            labels,
        ])  # fmt: skip
        code, grant, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=_loaded(detail))
    audit_ops.record(
        tenant=tenant, actor=actor, action="gate.satisfied" if satisfied else "gate.refused", target_kind="gate", target_id=gate_id,
        content={"reason": reason, "effect": str(gate.effect_id), "digest": bytes(gate.action_digest).hex()}, now=now,
    )  # fmt: skip
    hints.publish(work_hint(tenant))
    tell_grown_at_commit(tenant, gate.run_id)
    granted: UUID | None = grant
    return granted


def renew_gate(*, tenant: UUID, principal: Principal, gate_id: UUID, reason: str, actor: Actor, now: datetime) -> UUID:
    """Open a gate that lapsed anew; the new gate. The caller holds the tenant scope. Raises NotFound, GateDecided."""
    gate = _visible_gate(principal, gate_id)
    new = ids.uuid7()
    sealed, labels = _seal_decision(tenant, gate, new, reason)
    with connection.cursor() as cursor:
        cursor.execute(RENEW_GATE, [
            tenant, gate_id, gate.run_id, new, ports.GATE_SECONDS, actor.kind, actor.id, sealed.blob, sealed.commitment, labels,
        ])  # fmt: skip
        code, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=_loaded(detail))
    audit_ops.record(
        tenant=tenant, actor=actor, action="gate.renewed", target_kind="gate", target_id=new,
        content={"reason": reason, "effect": str(gate.effect_id), "lapsed": str(gate_id)}, now=now,
    )  # fmt: skip
    return new


def _visible_gate(principal: Principal, gate_id: UUID) -> Gate:
    gate: Gate | None = Gate.objects.filter(id=gate_id, run_id__in=ledger.visible_runs(principal).values("id")).first()
    if gate is None:
        raise NotFound("There is no such gate.")
    return gate


def _seal_decision(tenant: UUID, gate: Gate, gate_id: UUID, reason: str) -> tuple[Sealed, str]:
    """The event of what a person did to a gate, and its labels as JSON."""
    text = sealing.members(reason=_json(reason))
    guard.inspect(text)
    run = sealing.run_key_in_scope(run_id=gate.run_id)
    labels = {"effect": str(gate.effect_id), "gate": str(gate_id), "rule": gate.rule}
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    return sealing.seal_event(key, gate.run_id, text, labels=labels), msgspec.json.encode(labels).decode()


def _call(tenant: UUID, request: ReserveIn, run_id: UUID, step: UUID) -> _Call:
    assert request.tool is not None
    tool = registry.tool_version(tenant=tenant, name=request.tool, version=request.tool_version)
    body = bytes(request.input) or b"{}"
    business_object = rules.business_object(tool, body, request.business_object)
    place = {"step": [str(run_id), str(step)], "run": [str(run_id)], "tenant": []}[tool.scope]
    return _checked(tenant, tool, body, business_object, [tool.scope, tool.name, *place, business_object], None)


def _compensation(tenant: UUID, principal: Principal, request: ReserveIn) -> _Call:
    """The call that undoes an effect: by its tool's definition, from what was sent and what came back."""
    if bytes(request.input) or request.business_object or request.tool_version:
        raise _invalid("input", "What a compensation is called with follows from the effect.")
    original = Effect.objects.filter(
        id=request.compensates, run_id__in=ledger.visible_runs(principal).values("id")
    ).first()
    done = None if original is None else ledger.tool_of_in_scope(tenant=tenant, tool_id=original.tool_id)
    if original is None or done is None or done.compensation is None or original.outcome_seq is None:
        raise _invalid("compensates", "There is no such effect that could be compensated.")
    tool = registry.tool_version(tenant=tenant, name=done.compensation.tool, version=done.compensation.version)
    sent = ledger.payload_member(tenant=tenant, run_id=original.run_id, seq=original.input_seq, name="input")
    answer = ledger.payload_member(tenant=tenant, run_id=original.run_id, seq=original.outcome_seq, name="output")
    body = rules.compensation_input(done, sent or b"{}", answer or b"null")
    business_object = f"compensates:{original.id}"
    return _checked(tenant, tool, body, business_object, ["compensation", tool.name, business_object], original.id)


def _checked(
    tenant: UUID, tool: ToolVersion, body: bytes, business_object: str, identity: list[str], compensates: UUID | None
) -> _Call:
    errors = registry.validate_input(tool, body)
    if errors:
        raise Invalid(f"The input does not fit tool {tool.name!r}.", fields=tuple(errors))
    key = keys.keyed_digest(tenant=tenant, label=b"effect", value=msgspec.json.encode(identity).decode())
    arguments = json.decode(body, max_bytes=len(body))
    return _Call(
        tool=tool, input=body, business_object=business_object, amount=rules.amount_of(tool, body), key=f"smr-{key[:20].hex()}",
        arguments=arguments, canonical=json.canonical(arguments), compensates=compensates,
    )  # fmt: skip


def _reserve(
    tenant: UUID,
    principal: Principal,
    run_id: UUID,
    run: RunKey,
    request: ReserveIn,
    call: _Call,
    effect_id: UUID,
    idempotency: bytes,
) -> tuple[str, str, UUID, dict[str, Any] | None]:
    """Ask the policy, then the database; once more when a grant must be confirmed before it is used."""
    tool = call.tool
    amount, currency = call.amount or (None, None)
    action = ProposedAction(
        tool=tool, arguments=call.canonical, business_object=call.business_object, amount=amount, currency=currency, run_id=run_id,
        effect_id=effect_id, requester=principal.id, agent_id=principal.agent_id,
        digest=_action_digest(tenant, principal, run_id, call),
    )  # fmt: skip
    policy = ports.gate_policy()
    required = policy.decide(tenant=tenant, action=action)
    labels = {"effect": str(effect_id), "tool": tool.name}
    text = sealing.members(input=call.input, business_object=_json(call.business_object))
    sealed = sealing.seal_event(keys.data_key(tenant=tenant, key_id=run.data_key_id), run_id, text, labels=labels)
    what = {
        "id": str(tool.id), "name": tool.name, "limits": _limits(tool), "retry": msgspec.to_builtins(tool.retry),
        "probed": tool.reconcile.probe_url is not None, "execute_seconds": tool.execute_seconds,
        "settle_seconds": tool.reconcile.settle_seconds, "give_up_seconds": tool.reconcile.give_up_seconds,
    }  # fmt: skip
    gate = None if required is None else _json({"rule": required.rule, "seconds": required.seconds})
    projects = None if principal.project_ids is None else list(principal.project_ids)
    confirmed: UUID | None = None
    while True:
        with connection.cursor() as cursor:
            cursor.execute(RESERVE, [
                tenant, principal.id, principal.version, principal.agent_id, projects, run_id, run.data_key_id, run.key_epoch,
                request.lease, request.epoch, idempotency, _request_digest(request, call), effect_id, call.key,
                msgspec.json.encode(what).decode(),
                keys.keyed_digest(tenant=tenant, label=b"effect-input", value=call.canonical.decode()), action.digest,
                sealed.blob, sealed.commitment, msgspec.json.encode(labels).decode(), amount, currency,
                None if gate is None else gate.decode(), confirmed, call.compensates,
            ])  # fmt: skip
            code, decision, effect, detail = cursor.fetchone()
        detail = _loaded(detail)
        if code != "confirm":
            return code, decision, effect, detail
        confirmed = UUID(detail["grant"])
        if not policy.revalidate(tenant=tenant, action=action, gate_id=UUID(detail["gate"]), grant_id=confirmed):
            # What was approved no longer stands: the next look finds no grant, and opens a gate.
            Grant.objects.filter(id=confirmed, status="unused").update(status="revoked")


def _decided(
    tenant: UUID,
    principal: Principal,
    request: ReserveIn,
    call: _Call,
    decision: str,
    effect_id: UUID,
    detail: dict[str, Any],
) -> Decided:
    result: dict[str, Raw] | None = None
    evidence: tuple[EvidenceRow, ...] = ()
    if decision == "already_done":
        result = _result(tenant, principal, detail)
    elif decision == "reconcile":
        detail = detail | {"hint": call.tool.reconcile.hint}
        evidence = tuple(ledger.evidence_of(tenant=tenant, effect_id=effect_id))
    shown = {name: value for name, value in detail.items() if name not in ("outcome_seq", "project_id")}
    return Decided(
        decision=decision, effect_id=effect_id, key=call.key, tool=call.tool, detail=shown,
        input=call.input if call.compensates else None, result=result, evidence=evidence,
    )  # fmt: skip


def _result(tenant: UUID, principal: Principal, detail: dict[str, Any]) -> dict[str, Raw] | None:
    """What came back, when the key may see the run that did it."""
    run_id = UUID(detail["run_id"])
    if not ledger.visible_runs(principal).filter(id=run_id).exists():
        return None
    found = {
        name: ledger.payload_member(tenant=tenant, run_id=run_id, seq=detail["outcome_seq"], name=name)
        for name in ("output", "external_id")
    }
    return {name: Raw(value) for name, value in found.items() if value is not None}


def _action_digest(tenant: UUID, principal: Principal, run_id: UUID, call: _Call) -> bytes:
    """SHA-256 over "smriti:action:v1\\0" and the canonical JSON of what exactly is asked for, by whom and where."""
    what = {
        "arguments": call.arguments,
        "requester": str(principal.agent_id or principal.id),
        "run": str(run_id), "target": call.business_object, "tenant": str(tenant), "tool": call.tool.name,
        "tool_version": call.tool.version,
    }  # fmt: skip
    return hashlib.sha256(b"smriti:action:v1\0" + json.canonical(what)).digest()


def _request_digest(request: ReserveIn, call: _Call) -> bytes:
    """What an idempotency key of a reservation stands for."""
    what = [
        request.tool,
        request.tool_version,
        request.business_object,
        str(request.compensates),
        call.canonical.decode(),
    ]
    return hashlib.sha256(msgspec.json.encode(what)).digest()


def _limits(tool: ToolVersion) -> dict[str, Any] | None:
    limits = {name: value for name, value in msgspec.to_builtins(tool.limits).items() if value}
    return None if set(limits) <= {"time_zone"} else limits


def _step_of(run_id: UUID, request: ReserveIn) -> UUID:
    step: UUID | None = (
        Attempt.objects.filter(id=request.lease, run_id=run_id).values_list("step_id", flat=True).first()
    )
    if step is None:
        raise refusal("lease_not_found", run_id=run_id, detail=None)
    return step


def _live_effect(key: str) -> UUID | None:
    found: UUID | None = Effect.objects.filter(key=key).exclude(status="cancelled").values_list("id", flat=True).first()
    return found


def _json(value: object) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def _loaded(detail: Any) -> Any:
    return msgspec.json.decode(detail) if isinstance(detail, str | bytes) else detail


def _invalid(path: str, message: str) -> InvalidReservation:
    return InvalidReservation(
        message, fields=(FieldError(path=f"/{path}", code="invalid_reservation", message=message),)
    )
