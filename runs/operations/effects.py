"""The effect ledger: asking before a side effect, and finding out afterwards what became of it.

Invariant: for one key `execute` is answered once, and again only after the earlier execution was recorded as failed. The database
function decides, under the run's lock and the key's unique index; what is computed here (schema, key, digests, the policy's word)
goes into it as arguments.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db import connection
from msgspec import Raw

from audit import operations as audit_ops
from kernel import context, hints, ids
from kernel.actor import Actor
from kernel.errors import NotFound
from privacy import guard, keys
from runs import ports, sealing
from runs.models import Attempt, Effect, Grant
from runs.operations import actions
from runs.operations.actions import Call, invalid
from runs.operations.feed import tell_grown, tell_grown_at_commit
from runs.operations.lease import work_hint
from runs.operations.refusals import loaded, refusal
from runs.ports import Denied, ProposedAction, Requirement, Supporting
from runs.queries import ledger
from runs.queries.ledger import EvidenceRow
from runs.registry import ToolVersion
from runs.sealing import RunKey
from runs.wire import ReconcileIn, ReserveIn
from tenancy.queries import Principal

# The decision, and everything that follows from it.
RESERVE: Final = """
select * from runs_reserve(%s, %s, %s, %s, %s::uuid[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s::jsonb,
                           %s, %s, %s::jsonb, %s, %s, %s)"""
RECONCILE: Final = """
select * from runs_reconcile(%s, %s, %s::uuid[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"""
_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a reservation. `key` is what to pass to the external service; `detail` what belongs to the decision.

    `input` is set for a compensation and for an action that people amended: what to call the tool with. `result` has the members
    `output` and `external_id` of what was done already, as JSON; None when there is none that this key may see.
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
        raise invalid("tool", "Name either a tool, or the effect that this compensates.")
    guard.inspect(body)
    idempotency = keys.keyed_digest(tenant=tenant, label=b"decision", value=idempotency_key)
    subject_changed = False
    for _ in range(_TRIES):
        run = sealing.run_key(tenant=tenant, run_id=run_id)
        with context.tenant_scope(tenant):
            step = _step_of(run_id, request)
            call = (
                actions.compensating(tenant, principal, request)
                if request.compensates
                else actions.called(tenant, request, run_id, step)
            )
            asked = actions.request_digest(request, call)
            live = Effect.objects.filter(key=call.key).exclude(status="cancelled").first()
            sent = call.canonical
            call, amended = _as_amended(tenant, call, live)
            effect_id = ids.uuid7() if live is None else live.id
            code, decision, effect, detail = _reserve(
                tenant, principal, run_id, run, request, call, effect_id, idempotency, asked, amended
            )
            if code == "ok":
                decided = _decided(
                    tenant, principal, request, call, decision, effect, detail or {}, call.canonical != sent
                )
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
        raise invalid("epoch", "A lease is presented with its epoch.")
    if request.lease is None and request.reason is None:
        raise invalid("reason", "Without a lease an operator decides, and says why.")
    if request.result == "succeeded" and request.error is not None:
        raise invalid("error", "What succeeded has no error.")
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
            raise refusal(code, run_id=row.run_id, detail=loaded(detail))
    raise AssertionError("an effect that never stands still")


def _reserve(
    tenant: UUID,
    principal: Principal,
    run_id: UUID,
    run: RunKey,
    request: ReserveIn,
    call: Call,
    effect_id: UUID,
    idempotency: bytes,
    asked: bytes,
    amended: int | None,
) -> tuple[str, str, UUID, dict[str, Any] | None]:
    """Ask the policy, then the database; once more when a grant must be confirmed before it is used."""
    tool = call.tool
    amount, currency = call.amount or (None, None)
    action = ProposedAction(
        tool=tool, arguments=call.canonical, business_object=call.business_object, amount=amount, currency=currency, run_id=run_id,
        effect_id=effect_id, requester=principal.id, agent_id=principal.agent_id,
        digest=actions.action_digest(
            tenant=tenant, requester=principal.agent_id or principal.id, run_id=run_id, call=call,
            target_version=None if request.target is None else request.target.version,
        ),
        supporting=Supporting(request.explanation, request.target, tuple(request.evidence)),
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
    gate = None
    if isinstance(required, Denied):
        gate = _json({"deny": required.rule})
    elif required is not None:
        gate = _json({"rule": required.rule, "seconds": required.seconds})
    projects = None if principal.project_ids is None else list(principal.project_ids)
    confirmed: UUID | None = None
    while True:
        with connection.cursor() as cursor:
            cursor.execute(RESERVE, [
                tenant, principal.id, principal.version, principal.agent_id, projects, run_id, run.data_key_id, run.key_epoch,
                request.lease, request.epoch, idempotency, asked, effect_id, call.key,
                msgspec.json.encode(what).decode(),
                actions.input_digest(tenant, call), action.digest,
                sealed.blob, sealed.commitment, msgspec.json.encode(labels).decode(), amount, currency,
                None if gate is None else gate.decode(), confirmed, call.compensates, amended,
            ])  # fmt: skip
            code, decision, effect, detail = cursor.fetchone()
        detail = loaded(detail)
        if code == "ok" and decision == "await_approval" and isinstance(required, Requirement):
            policy.opened(tenant=tenant, gate_id=UUID(detail["gate"]), action=action, required=required)
        if code != "confirm":
            return code, decision, effect, detail
        confirmed = UUID(detail["grant"])
        if (
            policy.revalidate(tenant=tenant, action=action, gate_id=UUID(detail["gate"]), grant_id=confirmed)
            is not None
        ):
            # What was approved no longer stands: the next look finds no grant, and opens a gate.
            Grant.objects.filter(id=confirmed, status="unused").update(status="revoked")


def _decided(
    tenant: UUID,
    principal: Principal,
    request: ReserveIn,
    call: Call,
    decision: str,
    effect_id: UUID,
    detail: dict[str, Any],
    amended: bool,
) -> Decided:
    result: dict[str, Raw] | None = None
    evidence: tuple[EvidenceRow, ...] = ()
    if decision == "already_done":
        result = _result(tenant, principal, detail)
    elif decision == "reconcile":
        detail = detail | {"hint": call.tool.reconcile.hint}
        evidence = tuple(ledger.evidence_of(tenant=tenant, effect_id=effect_id))
    if amended:
        detail = detail | {"amended": True}
    given = (decision == "execute" and amended) or call.compensates is not None
    shown = {name: value for name, value in detail.items() if name not in ("outcome_seq", "project_id")}
    return Decided(
        decision=decision, effect_id=effect_id, key=call.key, tool=call.tool, detail=shown,
        input=call.input if given else None, result=result, evidence=evidence,
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


def _as_amended(tenant: UUID, call: Call, live: Effect | None) -> tuple[Call, int | None]:
    """The call with the input that people put in the place of this one, and the event with it."""
    if (
        live is None
        or live.amended_seq is None
        or bytes(live.amended_from or b"") != actions.input_digest(tenant, call)
    ):
        return call, None
    body = ledger.payload_member(tenant=tenant, run_id=live.run_id, seq=live.amended_seq, name="input")
    assert body is not None, "an amendment carries its input"
    return actions.amended(tenant, call.tool, call.key, call.business_object, body), live.amended_seq


def _json(value: object) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)
