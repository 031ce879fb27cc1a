"""Messages to a run. The first that comes, also before anybody waits for it, goes to the step that waits first."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from kernel import hints
from kernel.call import Call
from privacy import guard, keys
from runs import sealing
from runs.operations.feed import tell_grown
from runs.operations.lease import work_hint
from runs.operations.refusals import refusal
from runs.wire import SignalIn
from tenancy.queries import Principal

SIGNAL: Final = Call(
    "runs_signal", "uuid uuid int4 uuid uuid[] uuid uuid int4 text bytea bytea bytea bytea jsonb", "text int8 bool"
)


@dataclass(frozen=True, slots=True)
class Signalled:
    """`woken`: a step was waiting for it."""

    seq: int
    woken: bool


def signal(
    *,
    tenant: UUID,
    principal: Principal,
    run_id: UUID,
    request: SignalIn,
    digest: bytes,
    body: bytes,
    idempotency_key: str,
) -> Signalled:
    """Send a signal once for each idempotency key. Raises NotFound, RunFinished, IdempotencyKeyReused, SubjectErased."""
    guard.inspect(body)
    idempotency = keys.keyed_digest(tenant=tenant, label=b"signal", value=idempotency_key)
    labels = {"signal": request.name}
    projects = None if principal.project_ids is None else list(principal.project_ids)
    for last_try in (False, True):
        run = sealing.run_key(tenant=tenant, run_id=run_id)
        key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
        sealed = sealing.seal_event(key, run_id, sealing.members(payload=request.payload), labels=labels)
        code, seq, woken = SIGNAL.one((
            tenant, principal.id, principal.version, principal.agent_id, projects, run_id, run.data_key_id, run.key_epoch,
            request.name, idempotency, digest, sealed.blob, sealed.commitment, labels,
        ))  # fmt: skip
        if code in ("ok", "replayed"):
            if woken and code == "ok":
                hints.publish(work_hint(tenant))
            tell_grown(tenant, run_id)
            return Signalled(seq, woken)
        if code == "subject_changed" and not last_try:
            sealing.forget(tenant=tenant, run_id=run_id)
            continue
        raise refusal(code, run_id=run_id, detail=None)
    raise AssertionError("unreachable")
