"""Asking a tool's probe URL what became of an unknown effect.

The question leaves through the outbox: it is put there in the transaction that takes it from the ledger's list, asked again until
there is an answer, and an operator owns the effect when there is none.
"""

from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct, field

from kernel import actor as actors
from kernel import clock, outbox, pool
from kernel.context import tenant_scope
from kernel.outbox import Dead, Delivered, Message, Outcome, Retry, http
from kernel.outbox import operations as outbox_ops
from kernel.outbox.http import Failed, Refused, Request, Response
from runs.models import Effect
from runs.operations.effects import settle_unknown
from runs.operations.refusals import ContradictingEvidence, EffectNotUnknown
from runs.queries import ledger

TOPIC: Final = "runs.probe"
# Unknown effects of every tenant that a probe was not asked about yet: ids only.
DUE: Final = "select tenant, effect from runs_due_probes(%s)"


class ProbeAnswer(Struct):
    """What a probe answers with 200; 404 is `not_found`. Other members are kept as evidence."""

    status: Literal["succeeded", "failed", "not_found", "pending"]
    external_id: str | None = None
    output: Raw = field(default_factory=Raw)


def send_probes(*, limit: int = 1000) -> int:
    """Put the questions that are due into the outbox; how many."""
    asked = 0
    for tenant, effect_id in pool.rows(DUE, (limit,)):
        with tenant_scope(tenant):
            effect = (
                Effect.objects.filter(id=effect_id, owner="probe", probe_at__isnull=False).select_for_update().first()
            )
            if effect is None:
                continue
            outbox_ops.enqueue(
                tenant=tenant, topic=TOPIC, body={"effect": str(effect_id)}, ordering=None,
                dedup=f"{effect_id}:{effect.attempts}", now=clock.now(),
            )  # fmt: skip
            Effect.objects.filter(id=effect_id).update(probe_at=None)
            asked += 1
    return asked


def deliver(message: Message) -> Outcome:
    """Ask once. What the service says settles the effect; "not found" only when it was asked after `settle_at`."""
    effect_id = UUID(msgspec.json.decode(message.body)["effect"])
    with tenant_scope(message.tenant):
        effect = Effect.objects.filter(id=effect_id, status="unknown", owner="probe").first()
        if effect is None:
            return Delivered()
        tool = ledger.tool_of_in_scope(tenant=message.tenant, tool_id=effect.tool_id)
        (now,) = pool.one("select clock_timestamp()", ())
    if tool is None or tool.reconcile.probe_url is None:
        return _give_up(message.tenant, effect_id, "no_probe")
    early = max(0.0, (effect.settle_at - now).total_seconds())
    url = tool.reconcile.probe_url.replace("{key}", effect.key)
    try:
        response = http.exchange(message, Request(url=url, method="GET", headers={"Accept": "application/json"}))
    except Refused as error:
        return _give_up(message.tenant, effect_id, error.reason)
    except Failed as error:
        return Retry(error.reason)
    answer = _understood(response)
    if answer is None:
        outcome = http.outcome_of(response)
        return Retry("not_understood") if isinstance(outcome, Delivered | Dead) else outcome
    if answer.status == "pending":
        return Retry("pending", after=max(1.0, early))
    if answer.status != "succeeded" and early:
        return Retry("too_early", after=early)
    return _settle(message.tenant, effect_id, answer, response)


def _settle(tenant: UUID, effect_id: UUID, answer: ProbeAnswer, response: Response) -> Outcome:
    members: dict[str, Any] = {
        "output": answer.output,
        "external_id": None if answer.external_id is None else msgspec.json.encode(answer.external_id),
        "evidence": response.body if response.status == 200 else msgspec.json.encode({"http": response.status}),
    }
    try:
        with tenant_scope(tenant):
            settle_unknown(
                tenant=tenant, effect_id=effect_id, succeeded=answer.status == "succeeded", failure_class="transient",
                members=members, actor=actors.system("probe"), early=False,
            )  # fmt: skip
    except EffectNotUnknown:
        return Delivered()
    except ContradictingEvidence as error:
        return _give_up(tenant, effect_id, error.code)
    return Delivered()


def _understood(response: Response) -> ProbeAnswer | None:
    if response.status == 404:
        return ProbeAnswer("not_found")
    if response.status != 200 or not response.whole:
        return None
    try:
        return msgspec.json.decode(response.body, type=ProbeAnswer)
    except msgspec.MsgspecError:
        return None


def _give_up(tenant: UUID, effect_id: UUID, reason: str) -> Outcome:
    with tenant_scope(tenant):
        Effect.objects.filter(id=effect_id, status="unknown").update(owner="operator", updated_at=clock.now())
    return Dead(reason)


def register() -> None:
    outbox.register(TOPIC, deliver)
