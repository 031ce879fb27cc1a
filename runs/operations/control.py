"""What the platform and operators do to runs: take expired leases, cancel, and anchor heads in the audit chain."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import F

from audit import operations as audit_ops
from kernel import actor as actors
from kernel import context, hints, ids, pool
from kernel.actor import Actor
from kernel.errors import NotFound
from privacy import guard, keys
from runs import sealing
from runs.models import Anchor, AnchorDue, Run
from runs.operations.lease import work_hint
from runs.operations.refusals import RunFinished

# Expired leases of every tenant, the oldest first: ids only.
EXPIRED: Final = "select tenant, lease from runs_expired_leases(%s)"
# Takes one lease from its worker, if it is still expired.
EXPIRE: Final = "select runs_expire(%s, %s)"
# Tenants with runs whose head is not in the audit chain yet.
UNANCHORED: Final = "select tenant from runs_unanchored(%s)"
CANCEL: Final = "select runs_cancel(%s, %s, %s, %s, %s, %s)"

_ANCHORS_PER_ENTRY: Final = 500


def expire_leases(*, limit: int = 1000) -> int:
    """Take every expired lease from its worker; how many. Each is a transaction of its own."""
    taken = 0
    for tenant, lease in pool.rows(EXPIRED, (limit,)):
        if pool.one(EXPIRE, (tenant, lease))[0]:
            taken += 1
            hints.publish(work_hint(tenant))
    return taken


def cancel_run(*, tenant: UUID, run_id: UUID, reason: str, actor: Actor, now: datetime) -> None:
    """End a run now. Its workers are refused from here on. The caller holds the tenant scope. Raises NotFound, RunFinished."""
    body = sealing.members(reason=msgspec.json.encode(reason))
    guard.inspect(body)
    row = Run.objects.filter(id=run_id).values_list("data_key_id", flat=True).first()
    if row is None:
        raise NotFound("There is no such run.")
    sealed = sealing.seal_event(keys.data_key(tenant=tenant, key_id=row), run_id, body)
    with connection.cursor() as cursor:
        cursor.execute(CANCEL, [tenant, run_id, actor.kind, actor.id, sealed.blob, sealed.commitment])
        (answer,) = cursor.fetchone()
    if answer != "ok":
        raise RunFinished(f"The run is {answer} already.", extra={"run_status": answer})
    audit_ops.record(
        tenant=tenant, actor=actor, action="run.cancelled", target_kind="run", target_id=run_id,
        content={"reason": reason}, now=now,
    )  # fmt: skip


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
