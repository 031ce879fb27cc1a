"""Taking work and keeping it. A lease is judged by the database clock, and every write under it by its epoch."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from psycopg import OperationalError

from kernel.call import Call
from kernel.errors import NotFound
from privacy import keys
from runs import sealing
from runs.operations.feed import tell_grown
from runs.operations.refusals import refusal
from runs.wire import ClaimIn, HeartbeatIn
from tenancy.queries import Principal

# Leases the most urgent runnable step, skipping runs that someone is changing.
CLAIM: Final = Call(
    "runs_claim",
    "uuid uuid int4 uuid uuid[] text text[] uuid float8 text[] bytea",
    "text uuid int4 timestamptz text int4 int4 uuid text text text uuid int4 int8 bytea text bytea uuid",
)
# Gives back what could not be handed out.
UNCLAIM: Final = Call("runs_unclaim", "uuid uuid", "bool")
# Extends a lease that is still held.
HEARTBEAT: Final = Call(
    "runs_heartbeat", "uuid uuid int4 uuid uuid[] uuid int4 float8", "text timestamptz timestamptz jsonb"
)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A step under lease. `creation` is the JSON object with the run's input, correlation_id and task_id.

    `wake_reason` says why the step goes on after a wait or a loss; `wake_payload` is the JSON object with a signal's `payload`.
    `compensates` is the effect that the step was planned to undo.
    """

    lease: UUID
    epoch: int
    expires_at: datetime
    step: str
    attempt: int
    max_attempts: int
    run_id: UUID
    workflow: str
    workflow_version: str
    agent_version: str
    head: int
    last_seq: int
    creation: bytes
    wake_reason: str | None
    wake_payload: bytes | None
    compensates: UUID | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A lease that is held until `expires_at`. `cancel_at`: the run is being cancelled, and then its worker is refused."""

    expires_at: datetime
    cancel_at: datetime | None


def claim(
    *, tenant: UUID, principal: Principal, request: ClaimIn, idempotency_key: str | None = None
) -> Claimed | None:
    """Lease one runnable step to a worker; None when there is nothing to do now. The same key is given the same lease again.

    An outage of the vault costs no attempt: nothing is leased then, and a lease whose input cannot be opened is given back.
    """
    keys.data_key(tenant=tenant, key_id=tenant)
    run_id = None if request.run_id is None else _uuid(request.run_id)
    claim_key = (
        None if idempotency_key is None else keys.keyed_digest(tenant=tenant, label=b"claim", value=idempotency_key)
    )
    params = (
        tenant, principal.id, principal.version, principal.agent_id, _list(principal.project_ids), request.worker,
        list(dict.fromkeys(request.queues)), run_id, float(request.lease_seconds), request.capabilities, claim_key,
    )  # fmt: skip
    code, lease, epoch, expires_at, step, attempt, max_attempts, run, *rest = CLAIM.one(params)
    if code == "nothing":
        return None
    if code != "ok":
        raise refusal(code, run_id=run_id, detail=None)
    workflow, workflow_version, agent_version, data_key_id, head, last_seq, payload, reason, woken, compensates = rest
    tell_grown(tenant, run)
    try:
        key = keys.data_key(tenant=tenant, key_id=data_key_id)
    except OperationalError:
        if claim_key is None:  # else the same key is given the same lease, when the vault is back
            UNCLAIM.one((tenant, lease))
        raise
    creation = sealing.open_event(key, run, payload)
    message = None if woken is None else sealing.open_event(key, run, woken)
    return Claimed(
        lease=lease, epoch=epoch, expires_at=expires_at, step=step, attempt=attempt, max_attempts=max_attempts, run_id=run,
        workflow=workflow, workflow_version=workflow_version, agent_version=agent_version, head=head, last_seq=last_seq,
        creation=creation, wake_reason=reason, wake_payload=message, compensates=compensates,
    )  # fmt: skip


def heartbeat(*, tenant: UUID, principal: Principal, lease: UUID, request: HeartbeatIn) -> Kept:
    """Extend a lease. Raises NotFound, LeaseLost (also when the run was cancelled: stop working)."""
    params = (
        tenant, principal.id, principal.version, principal.agent_id, _list(principal.project_ids), lease,
        request.epoch, float(request.lease_seconds),
    )  # fmt: skip
    code, expires_at, cancel_at, detail = HEARTBEAT.one(params)
    if code != "ok":
        raise refusal(code, run_id=None, detail=detail)
    return Kept(expires_at, cancel_at)


def work_hint(tenant: UUID) -> str:
    """The hint that says: this tenant has new work."""
    return f"work:{tenant}"


def _uuid(value: str) -> UUID:
    try:
        return UUID(value)
    except ValueError as error:
        raise NotFound("There is no such run.") from error


def _list(ids: frozenset[UUID] | None) -> list[UUID] | None:
    return None if ids is None else list(ids)
