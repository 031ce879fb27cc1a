"""The one hot call: a durable transition of a run, in one transaction and, with warm caches, one database round trip."""

import logging
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
from django.conf import settings

from kernel import hints
from kernel.call import Call
from kernel.errors import DomainError, FieldError
from privacy import guard, keys
from privacy.keys import DataKey
from runs import offload, patch, sealing
from runs.operations.create import with_defaults
from runs.operations.feed import tell_grown
from runs.operations.lease import work_hint
from runs.operations.refusals import refusal
from runs.operations.snapshot import snapshot
from runs.patch import PatchConflict
from runs.queries import ledger, registry
from runs.queries import state as stored
from runs.sealing import RunKey
from runs.states import FAILURE_CLASSES
from runs.wire import CheckpointIn, CommitIn, EffectOutcomeIn, EventIn, StepResultIn
from tenancy.queries import Principal

logger = logging.getLogger(__name__)

# Of a commit: lists, values, removed, appended, required.
Channels = tuple[list[int], ...]
_NEVER: Final = patch.Channels(required={"\0"})  # what no state has
_NO_CHANNELS: Final[Channels] = ([], [], [], [], [])

# All parts of a commit, checked and written under the lock of the run's row.
COMMIT: Final = Call(
    "runs_commit",
    "uuid uuid int4 uuid uuid[] uuid uuid int4 uuid int4 bytea bytea int4 text[] text[] timestamptz[] jsonb[] bytea[] bytea "
    "int4 text bytea int8[] int8[] int8[] int8[] int8[] text float8 jsonb text bytea bytea jsonb jsonb",
    "text int8 int8 bytea int4 text text[] bool jsonb",
)


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
    labels: list[dict[str, str] | None]
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
        self.labels.append(labels)
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
    EffectNotHeld, EffectsOpen, UnknownChild, IdempotencyKeyReused, CredentialRefused, SubjectErased, InvalidCommit.
    """
    lease = _check(request)
    guard.inspect(body)
    idempotency = keys.keyed_digest(tenant=tenant, label=b"idempotency", value=idempotency_key)
    for last_try in (False, True):
        run = sealing.run_key(tenant=tenant, run_id=run_id)
        key = keys.data_key(tenant=tenant, key_id=run.data_key_id)
        params = _parameters(principal, run_id, run, key, lease, request, idempotency, digest, exact=last_try)
        code, first_seq, last_seq, chain, head, run_status, runnable, snapshot_due, detail = COMMIT.one(params)
        if code in ("ok", "replayed"):
            if code == "ok" and (runnable or _gives_back(request)):
                hints.publish(work_hint(tenant))
            if code == "ok":
                tell_grown(tenant, run_id)
            if snapshot_due:
                _pack(tenant, run_id)
            return Committed(first_seq, last_seq, chain, head, run_status, runnable)
        if code == "subject_changed" and not last_try:
            sealing.forget(tenant=tenant, run_id=run_id)
            continue
        if code == "patch_conflict" and not last_try:
            continue  # judged by the names of channels; the state itself knows better, and which operation does not fit
        detail = detail or {}
        if code == "stale_head":
            detail |= {"head": head, "last_seq": last_seq}
        elif code == "run_finished":
            detail |= {"run_status": run_status}
        raise refusal(code, run_id=run_id, detail=detail)
    raise AssertionError("unreachable")


def _gives_back(request: CommitIn) -> bool:
    """The step itself may be runnable again at once."""
    return request.step is not None and request.step.outcome in ("waiting", "released")


def _pack(tenant: UUID, run_id: UUID) -> None:
    """The commit is on disk and must be answered, whatever becomes of the snapshot: the next commit finds it due again."""
    try:
        snapshot(tenant=tenant, run_id=run_id)
    except Exception:
        logger.exception("snapshot_failed", extra={"tenant": str(tenant), "run": str(run_id)})


def _check(request: CommitIn) -> UUID | None:
    """Refuse contradictions that need no database; the lease's id."""
    changes_state = request.checkpoint or request.step or request.new_steps or request.run or request.effects
    if request.lease is None:
        if changes_state or request.epoch is not None:
            raise _invalid("lease", "Without a lease only events can be appended, and no epoch is presented.")
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
    if request.step:
        _check_result(request.step)
        if request.run and request.step.outcome in ("waiting", "released"):
            raise _invalid("run", "A run that ends has no step that goes on.")
    for index, effect in enumerate(request.effects):
        if (effect.outcome == "failed") != (effect.error is not None):
            raise _invalid(f"effects/{index}/error", "A failure, and nothing else, has an error.")
    if len({effect.effect for effect in request.effects}) < len(request.effects):
        raise _invalid("effects", "An effect has one outcome.")
    if (
        request.run
        and request.run.outcome == "completed"
        and not (request.step and request.step.outcome == "succeeded")
    ):
        raise _invalid("run/outcome", "A run completes with the success of its last step.")
    known: set[str] = set()
    for index, step in enumerate(request.new_steps or ()):
        if step.name in known:
            raise _invalid(f"new_steps/{index}/name", f"There are two steps {step.name!r}.")
        known.add(step.name)
    try:
        return UUID(request.lease)
    except ValueError as error:
        raise _invalid("lease", "This is not the id of a lease.") from error


def _check_result(step: StepResultIn) -> None:
    if step.outcome == "failed" and step.error is None:
        raise _invalid("step/error", "A failure has a class.")
    if (step.outcome == "waiting") != (step.wait is not None):
        raise _invalid("step/wait", "Who ends an attempt by waiting, and nobody else, says for what.")
    if step.wait is None:
        return
    if sum(part is not None for part in (step.wait.timer, step.wait.signal, step.wait.child)) != 1:
        raise _invalid("step/wait", "Wait for exactly one of timer, signal and child.")
    if step.wait.timer and (step.wait.timer.seconds is None) == (step.wait.timer.until is None):
        raise _invalid("step/wait/timer", "Give either seconds or until.")


def _wait(step: StepResultIn | None) -> dict[str, Any] | None:
    if step is None or step.wait is None:
        return None
    if step.wait.timer:
        return {"kind": "timer", "seconds": step.wait.timer.seconds, "until": step.wait.timer.until}
    if step.wait.signal:
        return {"kind": "signal", "name": step.wait.signal.name, "seconds": step.wait.signal.timeout_seconds}
    assert step.wait.child is not None
    return {"kind": "child", "id": step.wait.child.run_id, "seconds": step.wait.child.timeout_seconds}


def _parameters(
    principal: Principal,
    run_id: UUID,
    run: RunKey,
    key: DataKey,
    lease: UUID | None,
    request: CommitIn,
    idempotency: bytes,
    digest: bytes,
    *,
    exact: bool,
) -> tuple[Any, ...]:
    events = _Events([], [], [], [], [], [])
    for event in request.events:
        _add_event(events, key, run_id, event)

    effects = [_add_effect(events, principal.tenant_id, key, run_id, effect) for effect in request.effects]
    position, kind, sealed_body, channels = None, None, None, _NO_CHANNELS
    if request.checkpoint is not None:
        assert request.head is not None
        kind, state_body, channels = _checkpoint(principal, key, run_id, request.checkpoint, request.head, exact=exact)
        sealed = sealing.seal_checkpoint(key, run_id, request.head + 1, kind, state_body)
        events.add("checkpoint_created", None, sealed.commitment)
        position, sealed_body = len(events.types), offload.store(key.tenant, run_id, sealed.blob)
    new_steps = None if request.new_steps is None else with_defaults(request.new_steps)
    if new_steps is not None:
        plan = sealing.seal_event(key, run_id, sealing.members(steps=msgspec.json.encode(new_steps)))
        events.add("steps_added", plan.blob, plan.commitment)

    outcome, retry_after = None, None
    if request.step is not None:
        result = request.step
        if result.outcome == "succeeded":
            outcome, sealed = "succeeded", sealing.seal_event(key, run_id, sealing.members(output=result.output))
            events.add("step_succeeded", sealed.blob, sealed.commitment)
        elif result.outcome != "failed":
            outcome, sealed = result.outcome, sealing.seal_event(key, run_id, sealing.members(output=result.output))
            kind_of_event = "step_waiting" if result.outcome == "waiting" else "lease_released"
            events.add(kind_of_event, sealed.blob, sealed.commitment)
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
        run_payload, run_commitment = offload.store(key.tenant, run_id, sealed.blob), sealed.commitment

    return (
        principal.tenant_id, principal.id, principal.version, principal.agent_id, _list(principal.project_ids), run_id,
        run.data_key_id, run.key_epoch, lease, request.epoch, idempotency, digest, request.head,
        events.types, _sparse(events.steps), _sparse(events.occurred), _sparse(events.labels),
        _sparse(offload.store_all(key.tenant, run_id, events.payloads)),
        b"".join(events.commitments), position, kind, sealed_body, *channels, outcome, retry_after,
        None if new_steps is None else msgspec.to_builtins(new_steps), run_outcome, run_payload, run_commitment,
        effects or None, _wait(request.step),
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


def _add_effect(events: _Events, tenant: UUID, key: DataKey, run_id: UUID, outcome: EffectOutcomeIn) -> dict[str, Any]:
    """The event of an outcome, and what the ledger must know of it."""
    tool = ledger.tool_of(tenant=tenant, effect_id=outcome.effect)
    labels = {"effect": str(outcome.effect), "tool": "unknown" if tool is None else tool.name}
    if (
        outcome.outcome == "succeeded"
        and tool is not None
        and registry.validate_output(tool, bytes(outcome.output) or b"null")
    ):
        # It happened, whatever its output looks like.
        labels["output"] = "invalid"
    if outcome.error is not None:
        labels["class"] = outcome.error.class_
    text = sealing.members(output=outcome.output, external_id=_json(outcome.external_id), error=_json(outcome.error))
    sealed = sealing.seal_event(key, run_id, text, labels=labels)
    events.add(f"effect_{outcome.outcome}", sealed.blob, sealed.commitment, labels=labels)
    error = outcome.error
    return {
        "effect": outcome.effect, "outcome": outcome.outcome, "event": len(events.types),
        "class": error and error.class_, "retry_after": error and error.retry_after,
    }  # fmt: skip


def _json(value: object) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def _checkpoint(
    principal: Principal, key: DataKey, run_id: UUID, checkpoint: CheckpointIn, head: int, *, exact: bool
) -> tuple[str, bytes, Channels]:
    """What to store for a checkpoint, as small as it can be: kind, body, and its effect on channels.

    On another head than the stored one nothing is computed: the database answers, as it does for a replay.
    """
    if checkpoint.patch:
        try:
            operations = patch.parse(bytes(checkpoint.patch))
        except msgspec.ValidationError as error:
            raise _invalid("checkpoint/patch", str(error)) from error
        channels = None if exact else patch.top_level(operations)
        if channels is None:
            before = stored.load(tenant=principal.tenant_id, run_id=run_id, principal=principal)
            if before.head != head:
                channels = _NEVER
            elif before.damaged:
                raise PatchConflict("The stored state does not open: send the whole state.")
            else:
                after = patch.apply(before.state, operations, limit=settings.REQUEST_BODY_LIMIT)
                channels = patch.difference(before.state, after)
        return "patch", bytes(checkpoint.patch), _channel_digests(key, run_id, channels)
    text = bytes(checkpoint.state)
    if text.lstrip()[:1] != b"{":
        raise _invalid("checkpoint/state", "The state is an object.")
    if head > 0:
        before = stored.load(tenant=principal.tenant_id, run_id=run_id, principal=principal)
        # Never a change on top of what does not open.
        if before.head == head and before.state and not before.damaged:
            after = patch.load(text)
            change = patch.diff(before.state, after)
            if len(change) < len(text):
                return "patch", change, _channel_digests(key, run_id, patch.difference(before.state, after))
    return "full", text, _channel_digests(key, run_id, patch.channels_of(text))


def _channel_digests(key: DataKey, run_id: UUID, channels: patch.Channels) -> Channels:
    """Channel names are client-chosen: the database compares keyed 64-bit digests of them."""
    salt = run_id.bytes
    groups = (channels.lists, channels.values, channels.removed, channels.appended, channels.required)
    digests = {name: key.number(name.encode(), salt=salt) for name in set().union(*groups)}
    return tuple([[digests[name] for name in names] for names in groups])


def _sparse(column: list[Any]) -> list[Any] | None:
    """A column without any value is sent as null."""
    return column if any(value is not None for value in column) else None


def _list(ids: frozenset[UUID] | None) -> list[UUID] | None:
    return None if ids is None else list(ids)


def _quoted(value: str | None) -> bytes | None:
    return None if value is None else b'"' + value.encode() + b'"'


def _invalid(path: str, message: str) -> InvalidCommit:
    return InvalidCommit(message, fields=(FieldError(path=f"/{path}", code="invalid_commit", message=message),))
