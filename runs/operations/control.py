"""What the platform and operators do to runs: what time makes due, cancelling, recovery, and anchors in the audit chain."""

import logging
from datetime import datetime
from typing import Any, Final, Literal, LiteralString
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import F
from psycopg import Error as DatabaseError

from audit import operations as audit_ops
from kernel import actor as actors
from kernel import context, hints, ids, pool
from kernel.actor import Actor
from kernel.errors import DomainError, NotFound
from privacy import guard, keys
from runs import sealing
from runs.models import Anchor, AnchorDue, Effect, Run, Step
from runs.operations.feed import feed_hint, tell_grown_at_commit
from runs.operations.lease import work_hint
from runs.operations.refusals import RunFinished, refusal
from runs.queries import ledger

logger = logging.getLogger(__name__)

Action = Literal["retry", "resume", "compensate", "skip", "cancel"]

# What is due in every tenant: ids only.
DUE: Final = "select kind, tenant, id from runs_due(%s)"
# What to do with each kind of it, if it is still due.
SWEEPS: Final[dict[str, LiteralString]] = {
    "lease": "select runs_expire(%s, %s)",
    "step": "select runs_wake(%s, %s)",
    "run": "select runs_time_over(%s, %s)",
    "gate": "select runs_lapse_gate(%s, %s)",
    "effect": "select runs_give_up(%s, %s)",
}
# Tenants with runs whose head is not in the audit chain yet.
UNANCHORED: Final = "select tenant from runs_unanchored(%s)"
CANCEL: Final = "select runs_cancel(%s, %s, %s, %s, %s, %s, %s)"
RECOVER: Final = "select * from runs_recover(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s::jsonb)"

_ANCHORS_PER_ENTRY: Final = 500


def sweep(*, limit: int = 1000) -> int:
    """Do what time has made due: take expired leases, wake waiting steps, end overdue runs, let gates lapse. How many.

    Each is a transaction of its own, and one that fails stops no other.
    """
    done = 0
    for kind, tenant, found in pool.rows(DUE, (limit,)):
        try:
            if pool.one(SWEEPS[kind], (tenant, found))[0]:
                done += 1
                hints.publish(work_hint(tenant))
                hints.publish_if_awaited(feed_hint(tenant))
        except DatabaseError:
            logger.exception("sweep_failed", extra={"kind": kind, "tenant": str(tenant), "id": str(found)})
    return done


def cancel_run(
    *, tenant: UUID, run_id: UUID, reason: str, grace_seconds: float = 0, actor: Actor, now: datetime
) -> None:
    """End a run now, or when its workers are done but at the latest after a grace. The caller holds the tenant scope.

    Raises NotFound, RunFinished.
    """
    body = sealing.members(reason=msgspec.json.encode(reason))
    guard.inspect(body)
    row = Run.objects.filter(id=run_id).values_list("data_key_id", flat=True).first()
    if row is None:
        raise NotFound("There is no such run.")
    sealed = sealing.seal_event(keys.data_key(tenant=tenant, key_id=row), run_id, body)
    with connection.cursor() as cursor:
        cursor.execute(CANCEL, [tenant, run_id, grace_seconds, actor.kind, actor.id, sealed.blob, sealed.commitment])
        (answer,) = cursor.fetchone()
    if answer != "ok":
        raise RunFinished(f"The run is {answer} already.", extra={"run_status": answer})
    tell_grown_at_commit(tenant, run_id)
    audit_ops.record(
        tenant=tenant, actor=actor, action="run.cancelled", target_kind="run", target_id=run_id,
        content={"reason": reason}, now=now,
    )  # fmt: skip


def recover_run(
    *, tenant: UUID, run_id: UUID, action: Action, step: str | None, reason: str, actor: Actor, now: datetime
) -> str:
    """Move a run out of the dead letter; its status then. The caller holds the tenant scope.

    `retry` and `resume` give the steps that stopped new attempts, `skip` goes on without them, `compensate` plans the steps that
    undo the run's effects, newest first, after which the run is cancelled. Raises NotFound, NotInDeadLetter, PlanConflict,
    EffectsOpen, StepsOpen.
    """
    if action == "cancel":
        cancel_run(tenant=tenant, run_id=run_id, reason=reason, actor=actor, now=now)
        return "cancelled"
    text = sealing.members(reason=msgspec.json.encode(reason))
    guard.inspect(text)
    run = sealing.run_key_in_scope(run_id=run_id)
    labels: dict[str, str] = {"action": action}
    sealed = sealing.seal_event(keys.data_key(tenant=tenant, key_id=run.data_key_id), run_id, text, labels=labels)
    plan = _undoing(tenant, run_id) if action == "compensate" else []
    with connection.cursor() as cursor:
        cursor.execute(RECOVER, [
            tenant, run_id, action, step, msgspec.json.encode(plan).decode(), actor.kind, actor.id, sealed.blob, sealed.commitment,
            msgspec.json.encode(labels).decode(),
        ])  # fmt: skip
        code, status, detail = cursor.fetchone()
    if code != "ok":
        raise refusal(code, run_id=run_id, detail=msgspec.json.decode(detail) if isinstance(detail, str) else detail)
    audit_ops.record(
        tenant=tenant, actor=actor, action="run.recovered", target_kind="run", target_id=run_id,
        content={"action": action, "step": step, "reason": reason}, now=now,
    )  # fmt: skip
    hints.publish(work_hint(tenant))
    tell_grown_at_commit(tenant, run_id)
    recovered: str = status
    return recovered


def _undoing(tenant: UUID, run_id: UUID) -> list[dict[str, Any]]:
    """The steps that undo what the run did and can be undone, the newest first, one after the other."""
    done = Effect.objects.filter(
        run_id=run_id,
        status__in=["succeeded", "reconciled_succeeded", "compensation_failed"],
        compensates_id__isnull=True,
    )
    queues = dict(Step.objects.filter(run_id=run_id).values_list("id", "queue"))
    number = Step.objects.filter(run_id=run_id).count()
    plan: list[dict[str, Any]] = []
    for effect in done.order_by("-started_at", "-id"):
        tool = ledger.tool_of_in_scope(tenant=tenant, tool_id=effect.tool_id)
        if tool is None or tool.compensation is None:
            continue
        name = f"compensate:{number + len(plan) + 1}"
        plan.append(
            {
                "name": name, "depends_on": [plan[-1]["name"]] if plan else [], "queue": queues[effect.step_id], "priority": 0,
                "max_attempts": 5, "compensates": str(effect.id),
            }
        )  # fmt: skip
    return plan


def recover_runs(
    *, tenant: UUID, run_ids: list[UUID], action: Action, reason: str, actor: Actor, now: datetime
) -> dict[UUID, str]:
    """The same for many runs; the status of each, or the code of its refusal. The caller holds the tenant scope."""
    done: dict[UUID, str] = {}
    for run_id in run_ids:
        try:
            with transaction.atomic():
                done[run_id] = recover_run(
                    tenant=tenant, run_id=run_id, action=action, step=None, reason=reason, actor=actor, now=now
                )
        except DomainError as error:
            done[run_id] = error.code
    return done


def anchor_heads(*, limit: int = 1000, now: datetime) -> int:
    """Write the heads of changed runs into their tenants' audit chains; how many runs."""
    return sum(_anchor_tenant(tenant, now) for (tenant,) in pool.rows(UNANCHORED, (limit,)))


def _anchor_tenant(tenant: UUID, now: datetime) -> int:
    with context.tenant_scope(tenant):
        due = list(AnchorDue.objects.values_list("id", flat=True)[:_ANCHORS_PER_ENTRY])
        runs = list(
            (Run.objects.filter(id__in=due) | Run.objects.filter(status__in=["pending", "running", "waiting"]))
            .filter(last_seq__gt=F("anchored_seq"))
            .order_by("id")
            .select_for_update(no_key=True, skip_locked=True)[:_ANCHORS_PER_ENTRY]
        )
        if runs:
            heads = [{"run": str(run.id), "seq": run.last_seq, "digest": bytes(run.last_digest).hex()} for run in runs]
            entry = audit_ops.record(
                tenant=tenant, actor=actors.system("anchor"), action="runs.anchored", target_kind="tenant", target_id=tenant,
                content={"heads": heads}, now=now,
            )  # fmt: skip
            Anchor.objects.bulk_create(
                Anchor(id=ids.uuid7(), run_id=run.id, seq=run.last_seq, digest=run.last_digest, entry_id=entry)
                for run in runs
            )
            for run in runs:
                run.anchored_seq = run.last_seq
            Run.objects.bulk_update(runs, ["anchored_seq"], batch_size=100)
        locked = {run.id for run in runs}
        anchored = Run.objects.filter(id__in=due, last_seq=F("anchored_seq")).values_list("id", flat=True)
        AnchorDue.objects.filter(id__in=locked | set(anchored)).delete()
        return len(runs)
