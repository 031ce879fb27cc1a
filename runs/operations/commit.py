"""The one hot call: a durable transition of a run, in one transaction and, with warm caches, one database round trip."""

import logging
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb
from psycopg.types.numeric import Int4

from kernel import hints, pool
from kernel.errors import DomainError, FieldError
from privacy import guard, keys
from privacy.keys import DataKey
from runs import patch, sealing
from runs.operations.lease import work_hint
from runs.operations.refusals import refusal
from runs.operations.snapshot import snapshot
from runs.queries import state as stored
from runs.sealing import RunKey
from runs.states import FAILURE_CLASSES
from runs.wire import CheckpointIn, CommitIn, EventIn
from tenancy.queries import Principal

logger = logging.getLogger(__name__)

# All parts of a commit, checked and written under the lock of the run's row.
COMMIT: Final = """select * from runs_commit(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b,
    %b::text[], %b::text[], %b::timestamptz[], %b::jsonb[], %b::bytea[], %b,
    %b, %b::text, %b, %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[],
    %b::text, %b::float8, %b::jsonb, %b::text, %b, %b)"""


class InvalidCommit(DomainError):
    """A commit whose parts contradict each other."""

    code = "invalid_commit"
    status = 422
    title = "The parts of this commit do not fit together"


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a commit, the same for every replay of its idempotency key. `digest` ends the run's chain."""

    first_seq: int
    last_seq: int
    digest: bytes
    head: int
    run_status: str
    runnable: list[str]


@dataclass(slots=True)
class _Events:
    """The rows that a commit appends, column by column."""

    types: list[str]
    steps: list[str | None]
    occurred: list[Any]
    labels: list[Jsonb | None]
    payloads: list[bytes | None]
    commitments: list[bytes]

    def add(
        self,
        kind: str,
        payload: bytes | None,
        commitment: bytes,
        *,
        step: str | None = None,
        occurred: Any = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.types.append(kind)
        self.steps.append(step)
        self.occurred.append(occurred)
        self.labels.append(None if labels is None else Jsonb(labels))
        self.payloads.append(payload)
        self.commitments.append(commitment)


def commit(
    *,
    tenant: UUID,
    principal: Principal,
    run_id: UUID,
    request: CommitIn,
    digest: bytes,
    body: bytes,
    idempotency_key: str,
) -> Committed:
    """Apply a commit, all or nothing. `request`, `digest` and `body` are one JSON text: typed, digested, and as it was sent.

    Raises NotFound, StaleEpoch, LeaseExpired, StaleHead, RunFinished, PatchConflict, PlanConflict, StepsOpen,
    IdempotencyKeyReused, CredentialRefused, SubjectErased, InvalidCommit.
    """
    lease = _check(request)
    guard.inspect(body)
    idempotency = keys.keyed_digest(tenant=tenant, label=b"idempotency", value=idempotency_key)
    for last_try in (False, True):
        run = sealing.run_key(tenant=tenant, run_id=run_id)
        key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
        params = _parameters(principal, run_id, run, key, lease, request, idempotency, digest)
        row = pool.one(COMMIT, params)
        code, first_seq, last_seq, chain, head, run_status, runnable, snapshot_due, detail = row
        if code in ("ok", "replayed"):
            if runnable and code == "ok":
                hints.publish(work_hint(tenant))
            if snapshot_due:
                _pack(tenant, run_id)
            return Committed(first_seq, last_seq, bytes(chain), head, run_status, runnable)
        if code == "subject_changed" and not last_try:
            sealing.forget(tenant=tenant, run_id=run_id)
            continue
        detail = detail or {}
        if code == "stale_head":
            detail |= {"head": head, "last_seq": last_seq}
        elif code == "run_finished":
            detail |= {"run_status": run_status}
        raise refusal(code, run_id=run_id, detail=detail)
    raise AssertionError("unreachable")


def _pack(tenant: UUID, run_id: UUID) -> None:
    """The commit is on disk and must be answered, whatever becomes of the snapshot: the next commit finds it due again."""
    try:
        snapshot(tenant=tenant, run_id=run_id)
    except Exception:
        logger.exception("snapshot_failed", extra={"tenant": str(tenant), "run": str(run_id)})


def _check(request: CommitIn) -> UUID | None:
    """Refuse contradictions that need no database; the lease's id."""
    changes_state = request.checkpoint or request.step or request.new_steps or request.run
    if request.lease is None:
        if changes_state:
            raise _invalid("lease", "Without a lease only events can be appended.")
        if not request.events:
            raise _invalid("events", "This commit is empty.")
        return None
    if request.epoch is None:
        raise _invalid("epoch", "A lease is presented with its epoch.")
    if not changes_state and not request.events:
        raise _invalid("events", "This commit is empty.")
    if (request.checkpoint or request.new_steps) and request.head is None:
        raise _invalid("head", "A change of the state or the plan presents the head it builds on.")
    if request.checkpoint and bool(request.checkpoint.state) == bool(request.checkpoint.patch):
        raise _invalid("checkpoint", "Send either the whole state or a patch.")
    if request.step and request.step.outcome == "failed" and request.step.error is None:
        raise _invalid("step/error", "A failure has a class.")
    try:
        return UUID(request.lease)
    except ValueError as error:
        raise _invalid("lease", "This is not the id of a lease.") from error


def _parameters(
    principal: Principal,
    run_id: UUID,
    run: RunKey,
    key: DataKey,
    lease: UUID | None,
    request: CommitIn,
    idempotency: bytes,
    digest: bytes,
) -> tuple[Any, ...]:
    events = _Events([], [], [], [], [], [])
    for event in request.events:
        _add_event(events, key, run_id, event)

    position, kind, sealed_body, channels = None, None, None, _NO_CHANNELS
    if request.checkpoint is not None:
        assert request.head is not None
        kind, state_body, channels = _checkpoint(principal, key, run_id, request.checkpoint, request.head)
        sealed = sealing.seal_checkpoint(key, run_id, request.head + 1, kind, state_body)
        events.add("checkpoint_created", None, sealed.commitment)
        position, sealed_body = Int4(len(events.types)), sealed.blob
    if request.new_steps is not None:
        plan = sealing.seal_event(key, run_id, sealing.members(steps=msgspec.json.encode(request.new_steps)))
        events.add("steps_added", plan.blob, plan.commitment)

    outcome, retry_after = None, None
    if request.step is not None:
        result = request.step
        if result.outcome == "succeeded":
            outcome, sealed = "succeeded", sealing.seal_event(key, run_id, sealing.members(output=result.output))
            events.add("step_succeeded", sealed.blob, sealed.commitment)
        else:
            assert result.error is not None
            outcome, retry_after = FAILURE_CLASSES[result.error.class_], result.error.retry_after
            labels: dict[str, str] = {"class": result.error.class_}
            text = sealing.members(error=msgspec.json.encode(result.error), output=result.output)
            sealed = sealing.seal_event(key, run_id, text, labels=labels)
            events.add("step_failed", sealed.blob, sealed.commitment, labels=labels)
    run_outcome, run_payload, run_commitment = None, None, None
    if request.run is not None:
        run_outcome = request.run.outcome
        sealed = sealing.seal_event(key, run_id, sealing.members(output=request.run.output))
        run_payload, run_commitment = sealed.blob, sealed.commitment

    return (
        principal.tenant_id, principal.id, Int4(principal.version), principal.agent_id, _list(principal.project_ids),
        run_id, run.data_key_id, Int4(run.key_epoch), lease, None if request.epoch is None else Int4(request.epoch),
        idempotency, digest, None if request.head is None else Int4(request.head),
        "{%s}" % ",".join(events.types), _sparse(events.steps), _sparse(events.occurred), _sparse(events.labels),
        _sparse(events.payloads), b"".join(events.commitments),
        position, kind, sealed_body, *channels,
        outcome, retry_after, None if request.new_steps is None else Jsonb(msgspec.to_builtins(request.new_steps)),
        run_outcome, run_payload, run_commitment,
    )  # fmt: skip


def _add_event(events: _Events, key: DataKey, run_id: UUID, event: EventIn) -> None:
    usage = None if event.usage is None else msgspec.json.encode(event.usage)
    text = sealing.members(
        input=event.input, output=event.output, payload=event.payload, usage=usage,
        trace_id=_quoted(event.trace_id), span_id=_quoted(event.span_id),
    )  # fmt: skip
    sealed = sealing.seal_event(key, run_id, text, labels=event.labels, occurred_at=event.occurred_at)
    events.add(
        event.type, sealed.blob, sealed.commitment, step=event.step, occurred=event.occurred_at, labels=event.labels
    )


def _checkpoint(
    principal: Principal, key: DataKey, run_id: UUID, checkpoint: CheckpointIn, head: int
) -> tuple[str, bytes, tuple[str, ...]]:
    """What to store for a checkpoint, as small as it can be: kind, body, and its effect on channels."""
    if checkpoint.patch:
        try:
            operations = patch.parse(bytes(checkpoint.patch))
        except msgspec.ValidationError as error:
            raise _invalid("checkpoint/patch", str(error)) from error
        channels = patch.top_level(operations)
        if channels is None:
            before = stored.state_at_head(principal=principal, run_id=run_id, head=head)
            channels = patch.difference(before, patch.apply(before, operations))
        return "patch", bytes(checkpoint.patch), _channel_digests(key, run_id, channels)
    text = bytes(checkpoint.state)
    if text.lstrip()[:1] != b"{":
        raise _invalid("checkpoint/state", "The state is an object.")
    if head > 0:
        before = stored.state_at_head(principal=principal, run_id=run_id, head=head)
        after = patch.load(text)
        change = patch.diff(before, after)
        if before and len(change) < len(text):
            return "patch", change, _channel_digests(key, run_id, patch.difference(before, after))
    return "full", text, _channel_digests(key, run_id, patch.channels_of(text))


def _channel_digests(key: DataKey, run_id: UUID, channels: patch.Channels) -> tuple[str, ...]:
    """Channel names are client-chosen: the database compares keyed 64-bit digests of them, sent as array literals."""
    salt = run_id.bytes
    groups = (channels.lists, channels.values, channels.removed, channels.appended, channels.required)
    digests = {name: str(key.number(name.encode(), salt=salt)) for name in set().union(*groups)}
    return tuple(["{%s}" % ",".join([digests[name] for name in names]) for names in groups])


_NO_CHANNELS: Final[tuple[str, ...]] = ("{}", "{}", "{}", "{}", "{}")


def _sparse(column: list[Any]) -> list[Any] | None:
    """A column without any value is sent as null."""
    return column if any(value is not None for value in column) else None


def _list(ids: frozenset[UUID] | None) -> list[UUID] | None:
    return None if ids is None else list(ids)


def _quoted(value: str | None) -> bytes | None:
    return None if value is None else b'"' + value.encode() + b'"'


def _invalid(path: str, message: str) -> InvalidCommit:
    return InvalidCommit(message, fields=(FieldError(path=f"/{path}", code="invalid_commit", message=message),))
