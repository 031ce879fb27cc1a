"""Taking a run over to another workflow version: its state migrated, in one transaction under the lock of its row."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db import connection

from audit import operations as audit_ops
from kernel.actor import Actor
from kernel.errors import DomainError, NotFound
from privacy import keys
from privacy.keys import DataKey
from runs import offload, patch, sealing
from runs.models import Run
from runs.operations.refusals import RunFinished, refusal
from runs.queries import resume
from runs.queries.compatibility import Compatibility
from runs.queries.resume import PlanCheckpoint, Prepared, ResumePlan

# The event, the migrated state and the new version, written together.
MIGRATE: Final = "select * from runs_migrate(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[], %s::bigint[], %s)"


class IncompatibleVersion(DomainError):
    """The state cannot go on under this version; `version_check` says why and what to do."""

    code = "incompatible_version"
    status = 409
    title = "The state does not fit this workflow version"


class RunBusy(DomainError):
    """A worker holds a step under the version that would be taken from under it."""

    code = "run_busy"
    status = 409
    title = "A worker is at work on this run"


class ChainBroken(DomainError):
    code = "chain_broken"
    status = 409
    title = "The log was changed after it was written"


def resume_run(
    *, tenant: UUID, run_id: UUID, version: str | None, tools: Mapping[str, str], actor: Actor, now: datetime
) -> ResumePlan:
    """Carry out what `queries.resume_plan` says of a version: afterwards workers claim under it. The caller holds the tenant scope.

    Nothing is written when the run is under that version already. Raises NotFound, RunFinished, RunBusy, ChainBroken,
    IncompatibleVersion, SubjectErased.
    """
    run = Run.objects.select_for_update(no_key=True).filter(id=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    prepared = resume.prepare(tenant=tenant, run=run, now=now, version=version, tools=tools)
    plan, check = prepared.plan, prepared.plan.version_check
    if check.to_version == run.workflow_version and check.status == "compatible":
        return plan
    if not plan.chain_ok:
        raise ChainBroken("Nothing was written. An operator must look at it.", extra={"bad_seq": plan.bad_seq})
    refuse_incompatible(check)
    head, seq = _migrate(tenant, prepared, actor)
    content = {"from": check.from_version, "to": check.to_version}
    audit_ops.record(
        tenant=tenant, actor=actor, action="run.migrated", target_kind="run", target_id=run_id, content=content, now=now
    )
    found = plan.checkpoint if prepared.state is None else PlanCheckpoint(head, seq, (), ())
    return replace(plan, applied=True, workflow_version=check.to_version, checkpoint=found)


def refuse_incompatible(check: Compatibility) -> None:
    """Raise IncompatibleVersion, with everything that `check` says, unless the state can go on."""
    if check.status == "incompatible":
        raise IncompatibleVersion(
            check.detail, hint=check.ways_out[0].detail, extra={"version_check": msgspec.to_builtins(check)}
        )


def migration_members(check: Compatibility) -> dict[str, Any]:
    """What the log keeps of a migration."""
    return {
        "from": {"workflow_version": check.from_version, "state_schema": check.from_schema},
        "to": {"workflow_version": check.to_version, "state_schema": check.to_schema},
        "migrations": [
            {"from": used.from_schema, "to": used.to_schema, "registered_in": used.registered_in}
            for used in check.migrations
        ],
    }


def channel_numbers(key: DataKey, run_id: UUID, state: bytes) -> tuple[list[int], list[int]]:
    """The keyed digests of a state's channels: lists and values."""
    channels = patch.channels_of(state)
    lists, values = ([key.number(name.encode(), salt=run_id.bytes) for name in names]
                     for names in (channels.lists, channels.values))  # fmt: skip
    return lists, values


def _migrate(tenant: UUID, prepared: Prepared, actor: Actor) -> tuple[int, int]:
    """Head and last sequence number after the migration was written."""
    run, check = prepared.run, prepared.plan.version_check
    held = sealing.run_key(tenant=tenant, run_id=run.id)
    key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
    payload = msgspec.json.encode(migration_members(check))
    event = sealing.seal_event(key, run.id, sealing.members(payload=payload))
    body, commitments = None, event.commitment
    lists: list[int] = []
    values: list[int] = []
    if prepared.state is not None:
        sealed = sealing.seal_checkpoint(key, run.id, run.head + 1, "full", prepared.state)
        body, commitments = offload.store(tenant, run.id, sealed.blob), event.commitment + sealed.commitment
        lists, values = channel_numbers(key, run.id, prepared.state)
    params: list[Any] = [
        tenant, run.id, actor.kind, actor.id, run.data_key_id, held.key_epoch, check.to_version, check.to_schema, event.blob,
        body, lists, values, commitments,
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(MIGRATE, params)
        code, head, seq = cursor.fetchone()
    if code == "run_finished":
        raise RunFinished(f"The run is {run.status}; nothing was written.", extra={"run_status": run.status})
    if code == "run_busy":
        raise RunBusy("Nothing was written. Wait until it has committed or its lease has run out, or cancel it.")
    if code != "ok":
        sealing.forget(tenant=tenant, run_id=run.id)
        raise refusal(code, run_id=run.id, detail=None)
    return head, seq
