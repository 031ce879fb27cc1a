"""Starting a run from a checkpoint of another. The other one gets nothing but an audit entry: its log may be over."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import Jsonb

from audit import operations as audit_ops
from kernel import hints, ids
from kernel.actor import Actor
from kernel.errors import DomainError, FieldError, NotFound
from privacy import guard, keys
from runs import offload, registry, sealing
from runs.models import Run
from runs.operations.create import with_defaults
from runs.operations.lease import work_hint
from runs.operations.refusals import refusal
from runs.operations.resume import channel_numbers, migration_members, refuse_incompatible
from runs.queries import fork
from runs.queries.compatibility import Compatibility
from runs.queries.fork import ForkPoint
from runs.queries.resume import PlanEffect
from runs.wire import StepIn

# The run with its plan, its first three events and its first checkpoint.
FORK: Final = "select runs_fork(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::text[], %s, %s, %s, %s::bigint[], %s::bigint[], %s)"


class NothingToDo(DomainError):
    """Every step was done at the checkpoint: a fork without steps would be a run without an end."""

    code = "nothing_to_do"
    status = 422
    title = "No step is open at this checkpoint"


@dataclass(frozen=True, slots=True)
class Forked:
    """`carried`: steps that were done before; `carried_effects`: effects of the source whose outcome was not known."""

    id: UUID
    forked_from: UUID
    checkpoint: int
    workflow_version: str
    carried: list[str]
    skipped: tuple[int, ...]
    version_check: Compatibility
    carried_effects: list[PlanEffect]


def fork_run(
    *,
    tenant: UUID,
    run_id: UUID,
    version: int | None,
    workflow_version: str | None,
    steps: list[StepIn] | None,
    reason: str,
    actor: Actor,
    now: datetime,
) -> Forked:
    """A new run with the state of a checkpoint (None: the newest that opens), in the same project, for the same agent and subject.

    `steps`: another plan; without one, the plan as it stood, of which the steps that were done are carried as skipped. The caller
    holds the tenant scope. Raises NotFound, CheckpointUnreadable, IncompatibleVersion, NothingToDo, Invalid,
    CredentialRefused, SubjectErased.
    """
    run = Run.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    if steps is not None:
        registry.refuse(registry.check_plan(steps))
        steps = with_defaults(steps)
    guard.inspect(msgspec.json.encode({"reason": reason, "steps": steps}))
    point = fork.fork_point(tenant=tenant, run=run, version=version, workflow_version=workflow_version)
    refuse_incompatible(point.check)
    plan, carried = (steps, []) if steps is not None else (point.steps, point.carried)
    if len(carried) == len(plan):
        message = "Every step was done at this checkpoint: name the steps."
        raise NothingToDo(message, fields=(FieldError("/steps", "nothing_to_do", message),))
    new_id = ids.uuid7()
    _write(tenant, run, point, new_id, plan, carried, reason, actor)
    content = {"new_run": str(new_id), "checkpoint": point.checkpoint.version, "reason": reason}
    audit_ops.record(
        tenant=tenant, actor=actor, action="run.forked", target_kind="run", target_id=run_id, content=content, now=now
    )
    transaction.on_commit(partial(hints.publish, work_hint(tenant)))
    return Forked(
        id=new_id, forked_from=run_id, checkpoint=point.checkpoint.version, workflow_version=point.check.to_version,
        carried=carried, skipped=point.checkpoint.skipped, version_check=point.check, carried_effects=point.effects,
    )  # fmt: skip


def _write(
    tenant: UUID,
    run: Run,
    point: ForkPoint,
    new_id: UUID,
    plan: list[StepIn],
    carried: list[str],
    reason: str,
    actor: Actor,
) -> None:
    assert point.state is not None
    held = sealing.run_key(tenant=tenant, run_id=run.id)
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    members = point.created | {"steps": msgspec.Raw(msgspec.json.encode(plan))}
    created = sealing.seal_event(key, new_id, sealing.members(**members))
    told = {
        "run": run.id, "checkpoint": point.checkpoint.version, "seq": point.checkpoint.seq, "digest": point.digest.hex(),
        "reason": reason, "carried": carried, **migration_members(point.check),
    }  # fmt: skip
    forked = sealing.seal_event(key, new_id, sealing.members(payload=msgspec.json.encode(told)))
    state = sealing.seal_checkpoint(key, new_id, 1, "full", point.state)
    lists, values = channel_numbers(key, new_id, point.state)
    params = [
        tenant, new_id, run.id, point.checkpoint.version, actor.kind, actor.id, run.data_key_id, held.key_epoch,
        point.check.to_version, point.check.to_schema, Jsonb(msgspec.to_builtins(plan)), carried,
        offload.store(tenant, new_id, created.blob), forked.blob, offload.store(tenant, new_id, state.blob),
        lists, values, created.commitment + forked.commitment + state.commitment,
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(FORK, params)
        (code,) = cursor.fetchone()
    if code != "ok":
        sealing.forget(tenant=tenant, run_id=run.id)
        raise refusal(code, run_id=run.id, detail=None)
