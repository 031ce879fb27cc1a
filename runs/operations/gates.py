"""Gates: what people, or an app that governs them, decide about an action that waits, and what becomes of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from django.db import connection

from audit import operations as audit_ops
from kernel import hints, ids
from kernel.actor import Actor
from kernel.errors import NotFound
from privacy import guard, keys
from privacy.codec import Sealed
from runs import ports, sealing
from runs.models import Effect, Gate, Run
from runs.operations import actions
from runs.operations.feed import tell_grown_at_commit
from runs.operations.lease import work_hint
from runs.operations.refusals import loaded, refusal
from runs.ports import ProposedAction, Supporting
from runs.queries import ledger, registry
from tenancy.queries import Principal

DECIDE_GATE: Final = "select * from runs_decide_gate(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s)"
RENEW_GATE: Final = "select * from runs_renew_gate(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"
WITHDRAW: Final = "select * from runs_withdraw_gate(%s, %s, %s, %s, %s, %s, %s, %s::jsonb)"
AMEND: Final = "select * from runs_amend(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"

GRANT_SECONDS: Final = 24 * 3600.0


def decide_gate(
    *, tenant: UUID, principal: Principal, gate_id: UUID, satisfied: bool, reason: str, actor: Actor, now: datetime
) -> UUID | None:
    """Satisfy or refuse an open gate; the grant. The caller holds the tenant scope. Raises NotFound, GateDecided, GateGoverned."""
    gate = _visible_gate(principal, gate_id)
    sealed, labels = _seal_decision(tenant, gate, gate_id, reason)
    with connection.cursor() as cursor:
        cursor.execute(DECIDE_GATE, [
            tenant, gate_id, gate.run_id, satisfied, GRANT_SECONDS, actor.kind, actor.id, sealed.blob, sealed.commitment,
            labels, False,
        ])  # fmt: skip
        code, grant, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=loaded(detail))
    audit_ops.record(
        tenant=tenant, actor=actor, action="gate.satisfied" if satisfied else "gate.refused", target_kind="gate", target_id=gate_id,
        content={"reason": reason, "effect": str(gate.effect_id), "digest": bytes(gate.action_digest).hex()}, now=now,
    )  # fmt: skip
    hints.publish(work_hint(tenant))
    tell_grown_at_commit(tenant, gate.run_id)
    granted: UUID | None = grant
    return granted


def renew_gate(
    *,
    tenant: UUID,
    principal: Principal,
    gate_id: UUID,
    reason: str,
    actor: Actor,
    now: datetime,
    seconds: float = ports.GATE_SECONDS,
) -> UUID:
    """Open a gate that lapsed anew; the new gate. The caller holds the tenant scope. Raises NotFound, GateDecided."""
    gate = _visible_gate(principal, gate_id)
    new = ids.uuid7()
    sealed, labels = _seal_decision(tenant, gate, new, reason)
    with connection.cursor() as cursor:
        cursor.execute(RENEW_GATE, [
            tenant, gate_id, gate.run_id, new, seconds, actor.kind, actor.id, sealed.blob, sealed.commitment, labels,
        ])  # fmt: skip
        code, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=loaded(detail))
    ports.gate_policy().renewed(tenant=tenant, gate_id=gate_id, new_gate_id=new, actor=actor, now=now)
    audit_ops.record(
        tenant=tenant, actor=actor, action="gate.renewed", target_kind="gate", target_id=new,
        content={"reason": reason, "effect": str(gate.effect_id), "lapsed": str(gate_id)}, now=now,
    )  # fmt: skip
    return new


def settle_gate(
    *, tenant: UUID, gate_id: UUID, satisfied: bool, grant_seconds: float, detail: dict[str, str], actor: Actor
) -> UUID | None:
    """Decide a governed gate, for the app that governs it; the grant. The caller holds the tenant scope and the run.

    `detail`: plain labels of the run's event, words and ids of ours. Raises GateDecided.
    """
    gate = Gate.objects.get(id=gate_id)
    sealed, labels = _seal_decision(tenant, gate, gate_id, None, detail)
    with connection.cursor() as cursor:
        cursor.execute(DECIDE_GATE, [
            tenant, gate_id, gate.run_id, satisfied, grant_seconds, actor.kind, actor.id, sealed.blob, sealed.commitment,
            labels, True,
        ])  # fmt: skip
        code, grant, refused = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=loaded(refused))
    _tell(tenant, gate.run_id)
    granted: UUID | None = grant
    return granted


def withdraw_gate(*, tenant: UUID, gate_id: UUID, reason: str | None, actor: Actor) -> None:
    """Ask nobody any more, or take back a grant that was not used. Whoever waits goes on and may ask anew.

    The caller holds the tenant scope. Raises GateDecided.
    """
    gate = Gate.objects.get(id=gate_id)
    sealed, labels = _seal_decision(tenant, gate, gate_id, reason)
    with connection.cursor() as cursor:
        cursor.execute(
            WITHDRAW, [tenant, gate_id, gate.run_id, actor.kind, actor.id, sealed.blob, sealed.commitment, labels]
        )
        code, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=loaded(detail))
    _tell(tenant, gate.run_id)


@dataclass(frozen=True, slots=True)
class Amended:
    """The gate that an amended action waits at, and the action."""

    gate_id: UUID
    action: ProposedAction


def amended_action(
    *, tenant: UUID, gate_id: UUID, input: bytes, business_object: str, requester: UUID, agent_id: UUID | None,
    tool_version: str, supporting: Supporting,
) -> ProposedAction:  # fmt: skip
    """The action of a gate with another input (JSON). Raises Invalid, InvalidToolInput when it does not fit the tool."""
    effect = Effect.objects.get(id=Gate.objects.get(id=gate_id).effect_id)
    tool = registry.tool_version(tenant=tenant, name=effect.tool, version=tool_version)
    call = actions.amended(tenant, tool, effect.key, business_object, input)
    version = None if supporting.target is None else supporting.target.version
    digest = actions.action_digest(
        tenant=tenant, requester=agent_id or requester, run_id=effect.run_id, call=call, target_version=version
    )
    amount, currency = call.amount or (None, None)
    return ProposedAction(
        tool=tool, arguments=call.canonical, business_object=business_object, amount=amount, currency=currency,
        run_id=effect.run_id, effect_id=effect.id, requester=requester, agent_id=agent_id, digest=digest, supporting=supporting,
    )  # fmt: skip


def amend(*, tenant: UUID, gate_id: UUID, action: ProposedAction, rule: str, seconds: float, actor: Actor) -> UUID:
    """Put an amended action in the place of the one that waits at an open gate; the gate that it waits at.

    What executes are these bytes: the agent is told of them. The caller holds the tenant scope and the run. Raises GateDecided.
    """
    gate = Gate.objects.get(id=gate_id)
    new = ids.uuid7()
    text = sealing.members(input=action.arguments, business_object=msgspec.json.encode(action.business_object))
    guard.inspect(text)
    run = sealing.run_key_in_scope(run_id=gate.run_id)
    labels = {"effect": str(gate.effect_id), "tool": action.tool.name}
    sealed = sealing.seal_event(keys.data_key(tenant=tenant, key_id=run.data_key_id), gate.run_id, text, labels=labels)
    digest = keys.keyed_digest(tenant=tenant, label=b"effect-input", value=action.arguments.decode())
    with connection.cursor() as cursor:
        cursor.execute(AMEND, [
            tenant, gate_id, gate.run_id, new, seconds, rule, action.digest, digest, action.amount, action.currency, actor.kind,
            actor.id, sealed.blob, sealed.commitment, msgspec.json.encode(labels).decode(),
        ])  # fmt: skip
        code, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=gate.run_id, detail=loaded(detail))
    tell_grown_at_commit(tenant, gate.run_id)
    return new


def lock_run(*, run_id: UUID) -> None:
    """Take the run's lock, which everything takes first that decides on its gates. The caller holds the tenant scope."""
    Run.objects.select_for_update(no_key=True).only("id").get(id=run_id)


def _tell(tenant: UUID, run_id: UUID) -> None:
    hints.publish(work_hint(tenant))
    tell_grown_at_commit(tenant, run_id)


def _visible_gate(principal: Principal, gate_id: UUID) -> Gate:
    gate: Gate | None = Gate.objects.filter(id=gate_id, run_id__in=ledger.visible_runs(principal).values("id")).first()
    if gate is None:
        raise NotFound("There is no such gate.")
    return gate


def _seal_decision(
    tenant: UUID, gate: Gate, gate_id: UUID, reason: str | None, detail: dict[str, str] | None = None
) -> tuple[Sealed, str]:
    """The event of what a person did to a gate, and its labels as JSON."""
    text = sealing.members(reason=None if reason is None else msgspec.json.encode(reason))
    guard.inspect(text)
    run = sealing.run_key_in_scope(run_id=gate.run_id)
    labels = {"effect": str(gate.effect_id), "gate": str(gate_id), "rule": gate.rule, **(detail or {})}
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    return sealing.seal_event(key, gate.run_id, text, labels=labels), msgspec.json.encode(labels).decode()
